//! Megatron-LM's functional tests: peak memory of the last rank, and the time of the few that are large enough.
//!
//! Source: NVIDIA/Megatron-LM @ d98e8a64ddf3, tests/functional_tests. Most runs are host-bound or deterministic; a row has a measured step
//! only where it is marked as good for time.

use engine::Model;
use engine::formats::Formats;
use engine::model::{Experts, Layer, Pattern};
use hw::{Dtype, Format};
use train::layout::Zero;
use train::problem::{AttentionKernel, Execution, Framework, GradientSync, Overlap, Recompute};

use super::models;
use super::reason::Reason;
use super::row::{Asked, Bound, Compared, Kernels, Label, Measured, Row, Run};
use super::setting::{Degrees, Machine, StepSize};
use super::test_hosts;
use crate::table::Cells;

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 10] = [
    "row",
    "kind",
    "gpu",
    "gpus",
    "layers",
    "hidden",
    "seq_tokens",
    "micro_batch_seqs",
    "iter_time_median_s",
    "peak_mem_allocated_bytes",
];

/// A line of the table.
pub(super) fn row(cells: &mut Cells<'_>) -> Row {
    let degrees = Degrees::read(cells);
    // Experts are cut as everything else is unless a flag says otherwise (`--expert-tensor-parallel-size`).
    let expert_tp = if cells.word("etp_gpus").is_empty() { degrees.tp } else { degrees.expert_tp };
    let degrees = Degrees { expert_tp, ..degrees };
    let label = Label {
        set: "Megatron-LM",
        model: cells.word("setting").to_owned(),
        format: format_word(cells),
        variant: format!("{} {}", cells.word("test"), cells.word("environment")),
        ..super::setting::label(cells, &degrees)
    };
    let bound = bound(cells);
    let step_s = cells.positive_number("iter_time_median_s").filter(|_| bound.is_some());
    let bytes = cells.positive_number("peak_mem_allocated_bytes");
    let again_s = replicates(cells.word("replicate_medians_s"));
    let memory = bytes.map(|bytes| (degrees.pp - 1, bytes)).into_iter().collect();
    let compared = compared(cells, &label);
    let asked = asked(cells, &label, &degrees).map(Asked::from);
    Row { label, asked, measured: Measured { step_s, bound: bound.unwrap_or_default(), again_s, memory }, compared }
}

/// What the time of a row tells of; none where it is neither marked as useful nor as bound by the host.
fn bound(cells: &Cells<'_>) -> Option<Bound> {
    let is_host_bound = cells.word("flags").split(';').any(|flag| flag == "host_bound");
    match (cells.flag("useful_for_time"), is_host_bound) {
        (true, _) => Some(Bound::Device),
        (false, true) => Some(Bound::Host),
        (false, false) => None,
    }
}

/// Medians of a test that is stored more than once, as `0.4083(resumed) 0.3984(oci)`.
fn replicates(text: &str) -> Vec<f64> {
    let number = |word: &str| word.split('(').next()?.parse().ok().filter(|median| *median > 0.0);
    text.split_whitespace().filter_map(number).collect()
}

/// Tests of one shape and length; a setting is a test, in whichever container it ran.
fn compared(cells: &Cells<'_>, label: &Label) -> Option<Compared> {
    let number = |column: &str| cells.word(column).parse::<u32>().ok().filter(|n| *n > 0);
    let size = StepSize {
        sequences: number("global_batch_seqs")?,
        micro_batch: number("micro_batch_seqs")?,
        tokens: u64::from(number("seq_tokens")?),
        gpus: number("gpus")?,
    };
    let shape = label.model.split("-gb").next().unwrap_or_default().to_owned();
    Some(super::setting::compared(&Label { model: shape, ..label.clone() }, "", &size, cells.word("test")))
}

fn format_word(cells: &Cells<'_>) -> String {
    let recipe = cells.word("fp8_recipe");
    if recipe.is_empty() { cells.word("precision").to_owned() } else { format!("fp8 {recipe}") }
}

fn asked(cells: &mut Cells<'_>, label: &Label, degrees: &Degrees) -> Result<Run, Reason> {
    let kind = cells.word("kind").to_owned();
    if !matches!(kind.as_str(), "gpt" | "moe") {
        return Err(Reason::Kind { word: kind });
    }
    if cells.count("gpus").is_none() {
        return Err(Reason::GpusNotPublished);
    }
    let per_node = if label.card.starts_with("GB") { 64 } else { 8 };
    let machine = Machine::of(&label.card, degrees.n_gpus(), per_node)?;
    let model = model(cells, degrees)?;
    let micro_batch = cells.positive("micro_batch_seqs");
    let n_micro_batches = cells.positive("micro_batches_per_step");
    let tokens = u64::from(cells.positive("seq_tokens"));
    let mut problem = machine.problem(model, degrees, execution(cells)?)?;
    problem.layout.sequence_parallel = cells.flag("sequence_parallel");
    problem.layout.zero = if cells.flag("distributed_optimizer") { Zero::OptimizerStates } else { Zero::Off };
    let kernels = if cells.flag("deterministic") { Kernels::Deterministic } else { Kernels::Usual };
    if kernels == Kernels::Deterministic {
        problem.reserved_memory = super::models::deterministic_workspace(&problem.cluster.gpu);
    }
    problem.execution.launches.each = test_hosts::launch(&problem);
    let host_waits_s = test_hosts::waits_s(cells, &problem, n_micro_batches);
    Ok(Run {
        problem,
        micro_batch,
        n_micro_batches,
        tokens,
        kernels,
        host_off: test_hosts::OFF,
        host_waits_s,
        other: None,
    })
}

/// The shape that the flags state, GPT with learned positions unless they say otherwise.
fn model(cells: &mut Cells<'_>, degrees: &Degrees) -> Result<Model, Reason> {
    let mut of = |name: &str| cells.count(name).map(u64::from);
    let vocab = of("vocab").ok_or(Reason::Vocabulary)?;
    let base = engine::model::embedded("gpt-3-175b").expect("embedded");
    let [n_layers, hidden, intermediate] = ["layers", "hidden", "ffn"].map(|name| of(name).unwrap_or(1));
    let [n_heads, n_kv_heads, head_dim] = ["heads", "kv_heads", "head_dim"].map(|name| of(name).unwrap_or(1));
    let experts = of("experts").map(|n_routed| {
        let (top_k, width) = (of("topk").unwrap_or(1), of("moe_ffn").unwrap_or(intermediate));
        Experts { shared_intermediate: of("shared_ffn").unwrap_or(0), ..Experts::plain(n_routed, top_k, width) }
    });
    if cells.flag("mla") {
        return Err(Reason::Option { what: "latent attention of default ranks".to_owned() });
    }
    let has_biases = cells.flag("linear_bias");
    Ok(Model {
        name: cells.word("setting").to_owned(),
        n_layers,
        layers: experts.map_or_else(|| Pattern::uniform(Layer::DENSE), |_| Pattern::of_experts(0, 1)),
        hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        intermediate,
        gated: cells.flag("swiglu"),
        vocab: models::padded_vocabulary(vocab, degrees.tp),
        tied: !cells.flag("untied_embeddings"),
        qkv_bias: has_biases,
        output_bias: has_biases,
        experts,
        ..base
    })
}

fn execution(cells: &Cells<'_>) -> Result<Execution, Reason> {
    if cells.flag("fsdp") {
        return Err(Reason::Option { what: "Megatron FSDP".to_owned() });
    }
    let formats = match cells.word("fp8_recipe") {
        "" => Formats::of(Dtype::Bf16),
        "tensorwise" | "delayed" => Formats::weights(Format::Fp8, Dtype::Bf16),
        "blockwise" => Formats::weights(Format::Fp8Block, Dtype::Bf16),
        "mxfp8" => Formats::weights(Format::Mxfp8, Dtype::Bf16),
        word => return Err(Reason::Format { word: word.to_owned() }),
    };
    let other = cells.word("other_flags").to_owned();
    if other.contains("defer-embedding-wgrad-compute=true") {
        return Err(Reason::Option { what: "--defer-embedding-wgrad-compute".to_owned() });
    }
    let is_unfused = cells.word("attention_backend") == "unfused" || cells.word("transformer_impl") == "local";
    Ok(Execution {
        layers: uneven_layers(cells, &other),
        recompute: match cells.word("recompute_granularity") {
            "full" => Recompute::Full,
            _ => Recompute::Off,
        },
        framework: Framework::MegatronCore,
        formats: Some(formats),
        attention: if is_unfused { AttentionKernel::Unfused } else { AttentionKernel::Flash },
        gradient_sync: if cells.flag("grad_reduce_overlap") { GradientSync::Overlapped } else { GradientSync::AtEnd },
        gradient_dtype: Dtype::Fp32,
        overlap: Overlap {
            stage: cells.word("vp_chunks") != "1",
            parameter_gather: cells.flag("param_gather_overlap"),
            ..Overlap::NONE
        },
        ..Execution::default()
    })
}

/// Layers of each stage where the first and the last have another number (`--decoder-first-pipeline-num-layers`); empty for an even split.
fn uneven_layers(cells: &Cells<'_>, other: &str) -> Vec<u32> {
    let number = |name: &str| cells.word(name).parse::<u32>().unwrap_or(1);
    let flag = |name: &str| -> Option<u32> {
        let value = other.split(';').find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='))?;
        value.parse().ok()
    };
    let ends = ["decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"].map(flag);
    let (pp, n_layers) = (number("pp_stages"), number("layers"));
    let ([Some(first), Some(last)], true) = (ends, pp > 2 && number("vp_chunks") == 1) else { return Vec::new() };
    let inner = n_layers.saturating_sub(first + last);
    let mut layers = vec![inner / (pp - 2); pp as usize];
    layers[0] = first;
    layers[pp as usize - 1] = last;
    if layers.iter().sum::<u32>() == n_layers { layers } else { Vec::new() }
}
