//! Megatron-LM's functional tests: peak memory of the last rank, and the time of the few that are large enough.
//!
//! Source: NVIDIA/Megatron-LM @ d98e8a64ddf3, tests/functional_tests. Most runs are host-bound or deterministic; a row has a measured step
//! only where it is marked as good for time.

use engine::Model;
use engine::formats::Formats;
use hw::Capability;
use hw::{Dtype, Format};
use train::layout::Zero;
use train::metrics::unexplained::Kernels;
use train::problem::{
    AttentionKernel, Captured, Dropout, Execution, ExpertTraffic, Framework, Fusion, GradientSync, Launches, Loss,
    Overlap, Problem, Unfused,
};

use super::beside;
use super::row::{Asked, Bound, Compared, Label, Measured, Row, Run};
use super::setting::{self, Degrees, Machine, StepSize};
use super::test_hosts;
use super::test_memory;
use super::{megatron_shapes, models};
use crate::reason::Reason;
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
        ..setting::label(cells, &degrees)
    };
    let bound = bound(cells);
    let step_s = cells.positive_number("iter_time_median_s").filter(|_| bound.is_some());
    let bytes = cells.positive_number("peak_mem_allocated_bytes");
    let again_s = replicates(cells);
    let memory = bytes.map(|bytes| (degrees.pp - 1, bytes)).into_iter().collect();
    let compared = compared(cells, &label);
    let asked = asked(cells, &label, &degrees);
    Row {
        label,
        asked,
        measured: Measured { step_s, bound: bound.unwrap_or_default(), again_s, memory, ..Measured::default() },
        compared,
    }
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

/// Medians of a test that is stored more than once, as `0.4083(resumed) 0.3984(oci)`; those of the slow cloud cluster are of other machines.
fn replicates(cells: &Cells<'_>) -> Vec<f64> {
    const COLUMN: &str = "replicate_medians_s";
    let number = |word: &str| {
        let found = word.split('(').next()?.parse().ok().filter(|median| *median > 0.0);
        if found.is_none() {
            cells.fault(COLUMN, format!("`{word}` is no number above 0"));
        }
        found
    };
    cells.word(COLUMN).split_whitespace().filter(|word| !word.ends_with("(dgxc)")).filter_map(number).collect()
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
    Some(setting::compared(&Label { model: shape, ..label.clone() }, "", &size, cells.word("test")))
}

fn format_word(cells: &Cells<'_>) -> String {
    let recipe = cells.word("fp8_recipe");
    if recipe.is_empty() { cells.word("precision").to_owned() } else { format!("fp8 {recipe}") }
}

fn asked(cells: &mut Cells<'_>, label: &Label, degrees: &Degrees) -> Result<Asked, Reason> {
    if cells.count("gpus").is_none() {
        return counts(cells, label, degrees);
    }
    setting::same_gpus(cells, degrees)?;
    let n_micro_batches = cells.positive("micro_batches_per_step");
    run(cells, label, degrees, n_micro_batches).map(Asked::from)
}

/// On as many GPUs as the batch can be spread over, where their number is not published.
fn counts(cells: &mut Cells<'_>, label: &Label, degrees: &Degrees) -> Result<Asked, Reason> {
    let sequences = cells.positive("global_batch_seqs") / cells.positive("micro_batch_seqs");
    let mut runs = Vec::new();
    let mut refused = Reason::GpusNotPublished;
    for dp in (1..=sequences).filter(|dp| sequences.is_multiple_of(*dp)) {
        match run(cells, label, &Degrees { dp, ..*degrees }, sequences / dp) {
            Ok(run) => runs.push(run),
            Err(reason) => refused = reason,
        }
    }
    if runs.is_empty() { Err(refused) } else { Ok(Asked::Counts(runs)) }
}

fn run(cells: &mut Cells<'_>, label: &Label, degrees: &Degrees, n_micro_batches: u32) -> Result<Run, Reason> {
    let machine = Machine::of(&label.card, degrees.n_gpus())?;
    let model = megatron_shapes::model(cells, degrees)?;
    let micro_batch = cells.positive("micro_batch_seqs");
    let tokens = u64::from(megatron_shapes::last(cells, "seq_tokens"));
    let mut execution = execution(cells, machine.capability())?;
    execution.wide_layers = wide_layers(cells, &model);
    let layers = setting::stage_layers(cells.word("pipeline_layout"), degrees, &model)?;
    if !layers.is_empty() {
        execution.layers = layers;
    }
    let mut problem = machine.problem(model, degrees, execution)?;
    problem.layout.sequence_parallel = cells.flag("sequence_parallel");
    problem.layout.zero = zero(cells)?;
    let copies = megatron_shapes::count(cells, "num-distributed-optimizer-instances");
    problem.layout.replicate = copies.filter(|n: &u32| problem.layout.n_holders().is_multiple_of(*n)).unwrap_or(1);
    let is_unfused = problem.execution.attention == AttentionKernel::Unfused;
    let is_unlisted = cells.flag("deterministic") || is_unfused;
    let kernels = if is_unlisted { Kernels::Unlisted } else { Kernels::OfOtherAge };
    let (each, host_off) = test_hosts::launch(cells, &problem);
    problem.execution.launches = Launches { each, captured: captured(cells) };
    let host_waits_s = test_hosts::waits_s(cells, &problem, n_micro_batches);
    let beside = beside_a_gpt(cells, &problem, micro_batch, n_micro_batches, tokens);
    // The times of an encoder and of the attention across are not known, and not those of attention that looks both ways.
    let is_whole = !matches!(cells.word("kind"), "bert" | "t5");
    let usual = Run::usual(problem, [micro_batch, n_micro_batches], tokens);
    Ok(Run { kernels, host_off, host_waits_s, beside, is_whole, ..usual })
}

/// What is cut over replicas: by the optimizer, or by Megatron FSDP (`--data-parallel-sharding-strategy`).
fn zero(cells: &Cells<'_>) -> Result<Zero, Reason> {
    if !cells.flag("fsdp") {
        return Ok(if cells.flag("distributed_optimizer") { Zero::OptimizerStates } else { Zero::Off });
    }
    match cells.word("sharding_strategy") {
        "" | "no_shard" => Ok(Zero::Off),
        "optim" => Ok(Zero::OptimizerStates),
        "optim_grads" => Ok(Zero::Gradients),
        "optim_grads_params" => Ok(Zero::Parameters),
        word => Err(Reason::Option { what: format!("Megatron FSDP with {word}") }),
    }
}

/// What the last stage holds beside a GPT.
fn beside_a_gpt(cells: &Cells<'_>, problem: &Problem, micro_batch: u32, n_micro_batches: u32, tokens: u64) -> f64 {
    let all = u64::from(micro_batch) * tokens;
    let is = |name: &str| megatron_shapes::has(cells, name);
    let limit = megatron_shapes::count(cells, "wgrad-deferral-limit").unwrap_or(0);
    let waiting =
        if is("defer-embedding-wgrad-compute") { beside::deferred(problem, limit, n_micro_batches, all) } else { 0.0 };
    let head =
        if cells.word("kind") == "bert" { beside::bert_head(problem, !is("bert-no-binary-head"), all) } else { 0.0 };
    let encoder = megatron_shapes::encoder(cells).map_or(0.0, |encoder| encoder.held(problem, micro_batch, tokens));
    let options = test_memory::Options::read(cells).beside(problem, micro_batch, tokens);
    waiting + head + encoder + options
}

/// Modules whose kernels graphs replay (`--cuda-graph-modules`, `--cuda-graph-scope`).
fn captured(cells: &Cells<'_>) -> Captured {
    let scope = megatron_shapes::flag(cells, "cuda-graph-modules").or(megatron_shapes::flag(cells, "cuda-graph-scope"));
    let has = |module: &str| scope.is_some_and(|scope| scope.contains(module));
    Captured { attention: has("attn"), router: has("moe_router") }
}

/// Layers at the end of a hybrid that stay in 16 bits: those that predict further tokens, and `--num-layers-at-end-in-bf16`.
fn wide_layers(cells: &Cells<'_>, model: &Model) -> u32 {
    if model.state_space.is_none() {
        return 0;
    }
    let at_end = megatron_shapes::count(cells, "num-layers-at-end-in-bf16");
    let n_predicting = u32::try_from(model.n_predicting).expect("few layers predict");
    models::LAYERS_PER_FURTHER_TOKEN * n_predicting + at_end.unwrap_or(0)
}

fn execution(cells: &Cells<'_>, card: Capability) -> Result<Execution, Reason> {
    let formats = match cells.word("fp8_recipe") {
        "" if megatron_shapes::flag(cells, "fp4-recipe") == Some("nvfp4") => {
            Formats { attention: Format::Mxfp8, dense: Format::Mxfp8, ..Formats::weights(Format::Nvfp4, Dtype::Bf16) }
        }
        "" => Formats::of(Dtype::Bf16),
        "tensorwise" | "delayed" => Formats::weights(Format::Fp8, Dtype::Bf16),
        "blockwise" => Formats::weights(Format::Fp8Block, Dtype::Bf16),
        "mxfp8" => Formats::weights(Format::Mxfp8, Dtype::Bf16),
        word => return Err(Reason::Format { word: word.to_owned() }),
    };
    let is_unfused = cells.word("attention_backend") == "unfused" || cells.word("transformer_impl") == "local";
    Ok(Execution {
        layers: uneven_layers(cells),
        recompute: setting::recompute(cells, ' ')?,
        framework: Framework::MegatronCore,
        unfused: unfused(cells),
        loss: loss(cells),
        dropout: dropout(cells),
        micro_batch_group: megatron_shapes::count(cells, "microbatch-group-size-per-virtual-pipeline-stage"),
        formats: Some(formats),
        gathers_narrow: ["fp8-param-gather", "fp4-param-gather"].iter().any(|name| megatron_shapes::has(cells, name)),
        attention: if is_unfused { AttentionKernel::Unfused } else { AttentionKernel::Flash },
        gradient_sync: if cells.flag("grad_reduce_overlap") { GradientSync::Overlapped } else { GradientSync::AtEnd },
        gradient_dtype: test_memory::gradient_dtype(cells),
        overlap: Overlap {
            stage: cells.word("vp_chunks") != "1",
            parameter_gather: cells.flag("param_gather_overlap"),
            ..Overlap::NONE
        },
        experts: ExpertTraffic {
            dispatcher: setting::dispatcher(cells.word("moe_dispatcher"), cells.word("moe_flex_backend"), card),
            ..ExpertTraffic::EVEN
        },
        ..Execution::default()
    })
}

/// Kernels that a test does not fuse: permutations are fused by a switch alone, the others without one.
fn unfused(cells: &Cells<'_>) -> Unfused {
    let is = |name: &str| megatron_shapes::has(cells, name);
    let activation = if cells.flag("swiglu") { "no-bias-swiglu-fusion" } else { "no-bias-gelu-fusion" };
    let found = [
        (Fusion::Permutation, !is("moe-permute-fusion")),
        (Fusion::Activation, is(activation)),
        (Fusion::Positions, is("no-rope-fusion")),
    ];
    found.into_iter().filter(|(_, is_unfused)| *is_unfused).map(|(fusion, _)| fusion).collect()
}

/// Kernels of the loss (`--cross-entropy-loss-fusion`, `--cross-entropy-fusion-impl`). No container here has Transformer Engine 2.18.
fn loss(cells: &Cells<'_>) -> Loss {
    let is_fused = megatron_shapes::has(cells, "cross-entropy-loss-fusion");
    match megatron_shapes::flag(cells, "cross-entropy-fusion-impl") {
        _ if !is_fused => Loss::Unfused,
        Some("te") => Loss::InPlace,
        _ if cells.word("environment") == "lts" => Loss::CompiledReused,
        _ => Loss::Compiled,
    }
}

/// Where layers have dropout. No column says so. Latent attention of GPT's tests has Megatron-LM's default, 0.1; those with experts turn it off, as
/// released models do. Attention over a context group has none (`--attention-dropout 0.0` in each of its tests).
fn dropout(cells: &Cells<'_>) -> Option<Dropout> {
    if cells.word("cp_gpus") != "1" {
        return Some(Dropout { attention: false, residual: false });
    }
    let is_default = cells.word("kind") == "gpt" && cells.flag("mla");
    is_default.then_some(Dropout { attention: true, residual: true })
}

/// Layers of each stage where the first and the last have another number (`--decoder-first-pipeline-num-layers`); empty for an even split.
fn uneven_layers(cells: &Cells<'_>) -> Vec<u32> {
    let ends = ["decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"]
        .map(|name| megatron_shapes::count::<u32>(cells, name));
    let number = |name: &str| cells.count(name).unwrap_or(1);
    let (pp, n_layers) = (number("pp_stages"), megatron_shapes::last(cells, "layers"));
    let ([Some(first), Some(last)], true) = (ends, pp > 2 && number("vp_chunks") == 1) else { return Vec::new() };
    let inner = n_layers.saturating_sub(first + last);
    let mut layers = vec![inner / (pp - 2); pp as usize];
    layers[0] = first;
    layers[pp as usize - 1] = last;
    if layers.iter().sum::<u32>() == n_layers { layers } else { Vec::new() }
}
