//! `[training]`, `[overlap]` and `[experts]`: how a step is executed.

use engine::dispatcher::Dispatcher;
use engine::formats::Formats;
use hw::Capability;
use hw::{Dtype, Seconds};
use score::training::constants::Graphs;
use train::problem::{
    AttentionKernel, Casts, Dropout, Execution, ExpertTraffic, Framework, GradientSync, Loss, Overlap, TorchModules,
};

use planner::effort;

use super::usual::{MEGATRON_CORE, Usual};
use super::{compression, unfused};
use crate::effort::is_within_reason;
use crate::{formats, recompute};
use input::diagnostic::Code;
use input::reader::{Place, Section};

/// What the section says besides the execution.
pub struct Training {
    /// Sequences per optimizer step.
    pub batch_size: u64,
    /// Simulated steps.
    pub steps: u64,
    /// Where their number stands.
    pub steps_at: Place,
    /// Zero, or absent, leaves it to memory.
    pub bucket_tokens: u64,
    /// Tokens of a row into which sequences are packed, where `[workload]` says so.
    pub row_tokens: Option<u64>,
    /// Host time per layer and pass, microseconds: a free parameter.
    pub host_us: f64,
    /// What CUDA graphs replay.
    pub graphs: Graphs,
    /// Layers that predict further tokens, where the model's own number is not meant.
    pub predicting_layers: Option<u64>,
    /// Where the formats of products stand.
    pub products_at: Place,
    /// Where the kernel of attention stands, if anywhere.
    pub attention_at: Option<Place>,
    /// Number format of parameters and activations.
    pub dtype: Dtype,
    /// How a step is executed.
    pub execution: Execution,
}

/// Most sequences of all steps together: a plan holds each with its place.
pub const SEQUENCES_MAX: u64 = 10_000_000;

/// Formats of gradients.
const GRADIENTS: [(&str, Dtype); 2] = [("bf16", Dtype::Bf16), ("fp32", Dtype::Fp32)];

/// Reads `[training]`; a pipeline has so many ranks.
pub fn training(mut section: Section<'_>, n_ranks: u64, usual: Usual) -> Training {
    let (batch_size, at) = section.count("batch_size", None, 1..=1_000_000);
    let (steps, steps_at) = section.count("steps", Some(1), 1..=10_000);
    let effort = effort::stepped(steps, batch_size, n_ranks);
    let what = format!("{steps} steps of {batch_size} sequences on pipelines of {n_ranks} ranks");
    let help = "lower `training.batch_size` or `training.steps`";
    let n_sequences = batch_size * steps;
    let is_begun = if n_sequences > SEQUENCES_MAX {
        let what = format!("{n_sequences} sequences in {steps} steps are more than {SEQUENCES_MAX}");
        section.refuse(Code::TakesTooLong, at, what, help);
        false
    } else {
        is_within_reason(&mut section, effort, (at, &what, help))
    };
    // Nothing is drawn of what is refused.
    let (batch_size, steps) = if is_begun { (batch_size, steps) } else { (1, 1) };
    let bucket_tokens = section.count("bucket_tokens", Some(0), 0..=100_000_000).0;
    let executed = executed(&mut section, usual);
    section.finish();
    Training { batch_size, steps, steps_at, bucket_tokens, ..executed }
}

/// What the section says of the execution alone, of a batch of one sequence.
pub fn executed(section: &mut Section<'_>, usual: Usual) -> Training {
    if section.has("host_overhead_per_layer_us") {
        section.idle(&["graphs"], "the launches of the card's host, which `host_overhead_per_layer_us` stands for");
    }
    let graphs = section.one_of("graphs", Graphs::Off, &Graphs::WORDS);
    let host_us = section.number("host_overhead_per_layer_us", 0.0, 0.0..=1e6);
    let recompute = recompute::read(section, usual.recompute());
    let recompute_layers = section.count("recompute_layers", Some(u64::from(u32::MAX)), 1..=u64::from(u32::MAX)).0;
    let has_products = section.has("products");
    let products_at = section.place("products").unwrap_or_else(|| section.at());
    let attention_at = section.place("attention");
    let dtype = [Dtype::Bf16, Dtype::Fp16][section.word("dtype", 0, &["bf16", "fp16"])];
    let products = formats::products(section, Formats::of(dtype));
    let (framework, casts) = framework(section, &products, usual);
    let has_predicting = section.has("predicting_layers");
    let predicting_layers = section.count("predicting_layers", Some(0), 0..=100).0;
    let execution = Execution {
        recompute,
        recompute_layers: u32::try_from(recompute_layers).expect("the range is that of u32"),
        gradient_sync: GradientSync::WORDS
            [section.word("gradient_sync", 0, &GradientSync::WORDS.map(|(word, _)| word))]
        .1,
        gradient_dtype: section.one_of("gradient_dtype", usual.gradient_dtype(dtype), &GRADIENTS),
        attention: section.one_of("attention", AttentionKernel::Flash, &AttentionKernel::WORDS),
        framework,
        unfused: unfused::read(section),
        loss: section.one_of("loss", usual_loss(framework), &Loss::WORDS),
        dropout: dropout(section),
        gathers_logits: gathers_logits(section, framework),
        formats: has_products.then_some(products),
        casts,
        gathers_narrow: section.flag("narrow_gather", false),
        offload: section.number("offload_ratio", 0.0, 0.0..=1.0),
        parameters_on_host: section.flag("parameters_on_host", false),
        fragmentation: section.number("fragmentation", 1.0, 1.0..=10.0),
        host_overhead_per_layer: Seconds::new(host_us / 1e6),
        ..Execution::default()
    };
    let predicting_layers = has_predicting.then_some(predicting_layers);
    Training {
        batch_size: 1,
        steps: 1,
        bucket_tokens: 0,
        row_tokens: None,
        host_us,
        graphs,
        predicting_layers,
        products_at,
        steps_at: None,
        attention_at,
        dtype,
        execution,
    }
}

/// The loss without the key. Where torchtitan compiles its modules it compiles its loss with them (`compile.components`).
fn usual_loss(framework: Framework) -> Loss {
    if framework.is_compiled() { Loss::Compiled } else { Loss::Unfused }
}

/// Where the layers have dropout; `None` without the key.
fn dropout(section: &mut Section<'_>) -> Option<Dropout> {
    let is_given = section.has("dropout");
    let found = section.one_of("dropout", Dropout::WORDS[0].1, &Dropout::WORDS);
    is_given.then_some(found)
}

/// Whether logits are gathered before the loss. The modules of other frameworks have no such switch.
fn gathers_logits(section: &mut Section<'_>, framework: Framework) -> bool {
    if framework.torch().is_none() {
        section.idle(&["loss_parallel"], "`framework = \"pytorch\"`: others never gather logits");
    }
    !section.flag("loss_parallel", true)
}

/// Words of frameworks, by their position.
const FRAMEWORKS: [&str; 4] = ["formulas", MEGATRON_CORE, "pytorch", "deepspeed"];

/// Whether a value of `training.framework`, as it stands in the file, names a framework whose steps have layers that differ.
pub fn is_of_framework(value: &str) -> bool {
    FRAMEWORKS[1..].contains(&value.trim_matches('"'))
}

/// Whose kernels compute the layers, how PyTorch's own modules run, and how they would make operands of narrow products.
fn framework(section: &mut Section<'_>, products: &Formats, usual: Usual) -> (Framework, Casts) {
    let word = section.word("framework", usize::from(usual == Usual::Megatron), &FRAMEWORKS);
    if word < 2 {
        section.idle(&["compile", "casts", "repeat_kv"], "`framework = \"pytorch\"`");
    }
    let casts = section.one_of("casts", Casts::Whole, &[("tensorwise", Casts::Whole), ("rowwise", Casts::Rows)]);
    let modules = TorchModules {
        compiled: section.flag("compile", false),
        fused_norms: true,
        casts: if products.is_narrow() { casts } else { Casts::Off },
        // `[overlap]` says whether exchanges of the tensor group run behind products.
        in_pieces: false,
        repeats_keys: section.flag("repeat_kv", false),
    };
    let all = [Framework::Formulas, Framework::MegatronCore, Framework::Fsdp2(modules), Framework::DeepSpeed(modules)];
    (all[word], casts)
}

/// Reads `[overlap]`.
pub fn overlap(mut section: Section<'_>) -> Overlap {
    let expert = section.some_number("expert", 0.0..=1.0);
    let overlap = Overlap {
        tensor: section.number("tensor", 0.0, 0.0..=1.0),
        expert,
        delayed_weights: delayed_weights(&mut section, expert),
        slowdown: section.number("slowdown", 1.0, 1.0..=10.0),
        stage: section.flag("stage", true),
        parameter_gather: section.flag("parameter_gather", false),
        forward_prefetch: section.flag("forward_prefetch", true),
        backward_prefetch: section.flag("backward_prefetch", true),
    };
    section.finish();
    overlap
}

/// Whether gradients of weights come behind those of inputs, beside the all-to-all; without an overlap of it Megatron-LM refuses that.
fn delayed_weights(section: &mut Section<'_>, expert: Option<f64>) -> bool {
    const KEY: &str = "delayed_weights";
    let at = section.place(KEY).unwrap_or_else(|| section.at());
    let is_delayed = section.flag(KEY, false);
    if is_delayed && expert.is_none() {
        let what = "gradients of weights are delayed, and no all-to-all runs behind computation";
        let help = "give `overlap.expert`, which Megatron-LM asks for too (`--overlap-moe-expert-parallel-comm`)";
        section.refuse(Code::MissingKey, at, what, help);
    }
    is_delayed
}

/// Reads `[experts]` on such cards: traffic, and how similar tokens are merged where they are.
pub fn experts(mut section: Section<'_>, card: Option<Capability>) -> (ExpertTraffic, Option<compression::Given>) {
    let imbalance = section.number("imbalance", 0.0, 0.0..=10.0);
    let capacity = section.number("capacity", 0.0, 0.0..=1000.0);
    // `flex` is what Megatron-Core calls both of the others; the card says which one stands behind it.
    let dispatcher = match section.word("dispatcher", 0, &["alltoall", "flex", "deepep", "hybridep"]) {
        0 => Dispatcher::AllToAll,
        1 => Dispatcher::flex(card.unwrap_or_default()),
        2 => Dispatcher::DeepEp,
        _ => Dispatcher::HybridEp,
    };
    let fused = section.flag("fused", false);
    let given = section.table("compression").map(compression::read);
    section.finish();
    // What is merged is decided per policy.
    let capacity = Some(capacity).filter(|capacity| *capacity > 0.0);
    (ExpertTraffic { imbalance, capacity, compression: None, dispatcher, fused }, given)
}
