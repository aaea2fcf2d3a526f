//! torchtitan's measured steps: Llama under fully sharded data parallelism, with tensor, context and pipeline parallelism, bf16 and float8. And steps
//! of PyTorch's modules that this project measured on one GPU (`calibrate/torch/steps.py`), whose models are cut to so many layers.
//!
//! Source: pytorch/torchtitan @ b5bcd76c66d0, benchmarks/*.md; docs/performance.md @ 3faaa1a0d. Values of the 90th iteration, one run.
//! Micro-batches of a pipeline are not stated; one sequence each is what `local_batch_seqs` over stages allows, and is assumed.

use engine::Model;
use engine::formats::Formats;
use hw::Format;
use train::layout::{ContextExchange, Zero};
use train::optimizer::{Optimizer, UpdateKernels};
use train::problem::{Casts, Execution, Framework, GradientSync, Loss, Overlap, Recompute, TorchModules};

use super::models;
use super::row::{Asked, Bound, Counted, Label, Measured, Other, Row, Run, Weighs};
use super::setting::{Degrees, GIBIBYTE, Machine, StepSize};
use crate::reason::Reason;
use crate::table::Cells;

/// Columns without which nothing can be said.
pub(super) const NEEDED: [&str; 9] = [
    "row",
    "model",
    "gpu",
    "gpus",
    "precision",
    "activation_checkpointing",
    "seq_tokens",
    "local_batch_seqs",
    "global_batch_seqs",
];

/// A line of the table.
pub(super) fn row(cells: &mut Cells<'_>) -> Row {
    let dp = cells.count("fsdp_gpus").unwrap_or(1).max(1);
    let degrees = Degrees { dp, ..Degrees::read(cells) };
    let format = cells.word("precision").to_owned();
    let variant = format!("table {}", cells.word("table"));
    let is_own = cells.has("static_gib");
    let (set, variant) = if is_own { ("PyTorch", variant_of(cells)) } else { ("torchtitan", variant) };
    let label = Label { format, variant, set, ..super::setting::label(cells, &degrees) };
    let tokens = u64::from(cells.positive("seq_tokens"));
    let local = cells.positive("local_batch_seqs");
    let (counted, column) =
        if is_own { (Counted::Allocated, "peak_allocated_gib") } else { (Counted::Reserved, "peak_mem_gib") };
    let largest_memory = cells.positive_number(column).map(|gib| gib * GIBIBYTE);
    let step_s = cells.positive_number("step_time_s");
    let parts = ["forward_s", "backward_s", "optimizer_s"].map(|column| cells.positive_number(column));
    let parts_s =
        if let [Some(forward), Some(backward), Some(rest)] = parts { Some([forward, backward, rest]) } else { None };
    let bound = if is_host_bound(cells) { Bound::Host } else { Bound::Device };
    let measured = Measured { step_s, bound, largest_memory, parts_s, ..Measured::default() };
    let (micro_batch, n_micro_batches) = if degrees.pp > 1 { (1, local) } else { (local, 1) };
    let sound = super::setting::same_gpus(cells, &degrees);
    let asked = sound.and_then(|()| asked(cells, &label, &degrees)).map(|problem| {
        let run = Run { counted, ..Run::usual(problem, [micro_batch, n_micro_batches], tokens) };
        let other = other(&run, &label, cells.word("compile").is_empty()).map(Box::new);
        Asked::from(Run { other, ..run })
    });
    let more =
        ["compile", "async_tp", "activation_checkpointing", "schedule"].map(|column| cells.word(column)).join(" ");
    let size = StepSize { sequences: cells.positive("global_batch_seqs"), micro_batch, tokens, gpus: degrees.n_gpus() };
    let compared = Some(super::setting::compared(&label, "", &size, &more));
    Row { label, asked, measured, compared }
}

/// What a row may have run instead. It may not say whether layers were compiled. Products with a scale per row are known to be slow at that
/// time: no faster than 16 bits at worst, with operands that are cast all the same. Pieces of a context are balanced by default
/// (pytorch/pytorch, issue 141429), which the table does not say; the error without grows as 2 − 1/n does.
fn other(asked: &Run, label: &Label, compile_is_open: bool) -> Option<Other> {
    let mut other = asked.clone();
    if let (true, Framework::Fsdp2(modules)) = (compile_is_open, asked.problem.execution.framework) {
        other.problem.execution.framework = Framework::Fsdp2(TorchModules { compiled: false, ..modules });
    } else if label.format == "float8 rowwise" {
        other.problem.execution.formats = Some(Formats::of(hw::Dtype::Bf16));
    } else if asked.problem.layout.cp > 1 {
        other.problem.execution.context_in_blocks = true;
    } else {
        return None;
    }
    Some(Other { run: other, weighs: Weighs::Both })
}

fn asked(cells: &Cells<'_>, label: &Label, degrees: &Degrees) -> Result<train::Problem, Reason> {
    let machine = Machine::of(&label.card, degrees.n_gpus())?;
    let casts = match label.format.as_str() {
        "float8 tensorwise" => Casts::Whole,
        "float8 rowwise" => Casts::Rows,
        _ => Casts::Off,
    };
    let model = cut(model(&label.model)?, cells.word("layers"))?;
    let (recompute, recompute_layers) = recompute(cells.word("activation_checkpointing"), &model)?;
    let compiled = cells.word("compile") != "0";
    // Neither was the loss of torchtitan compiled then, nor its norm one kernel.
    let is_own = cells.has("static_gib");
    let modules =
        TorchModules { compiled, fused_norms: is_own, casts, in_pieces: cells.flag("async_tp"), repeats_keys: true };
    let loss = if compiled && is_own { Loss::Compiled } else { Loss::Unfused };
    let optimizer = Optimizer { kernels: update_kernels(cells.word("optimizer"))?, ..Optimizer::ADAM };
    let execution = Execution {
        recompute,
        recompute_layers,
        loss,
        optimizer,
        framework: Framework::Fsdp2(modules),
        formats: Some(formats(&label.format)?),
        // Ranks of a context alone gather 16 bits (`Float8Handler`: `dp_shard_enabled`).
        gathers_narrow: casts == Casts::Whole && degrees.dp > 1,
        gradient_sync: GradientSync::Overlapped,
        gradient_dtype: hw::Dtype::Fp32,
        overlap: Overlap { tensor: if cells.flag("async_tp") { Overlap::ASYNC_TENSOR } else { 0.0 }, ..Overlap::NONE },
        ..Execution::default()
    };
    let mut problem = machine.problem(model, degrees, execution)?;
    problem.layout.zero = Zero::Parameters;
    // `context_parallel_rotate_method` was "allgather" then.
    problem.layout.exchange = ContextExchange::Gather;
    Ok(problem)
}

fn model(word: &str) -> Result<Model, Reason> {
    let name = match word {
        "Llama 3 8B" | "Llama 3.1 8B" => "llama-3.1-8b",
        "Llama 3 70B" | "Llama 3.1 70B" => "llama-3.1-70b",
        "Llama 3.1 405B" => "llama-3.1-405b",
        "Llama 3.2 1B" => "llama-3.2-1b",
        "Llama 3.2 3B" => "llama-3.2-3b",
        "Qwen3 0.6B" => "qwen3-0.6b",
        "Qwen3 1.7B" => "qwen3-1.7b",
        _ => return Err(Reason::Model { word: word.to_owned() }),
    };
    let model = engine::model::embedded(name).ok_or_else(|| Reason::Model { word: word.to_owned() })?;
    Ok(models::cut(name, model.n_layers, 0))
}

/// A model's first layers, where the table says how many.
fn cut(model: Model, word: &str) -> Result<Model, Reason> {
    let n_layers = match word.parse() {
        _ if word.is_empty() => model.n_layers,
        Ok(n) if (1..=model.n_layers).contains(&n) => n,
        _ => return Err(Reason::Degrees { what: format!("`{word}` of {} layers of {}", model.n_layers, model.name) }),
    };
    Ok(models::cut(&model.name, n_layers, 0))
}

/// The slowest of some steps over the fastest above which a host cannot keep ahead of the device.
const UNEVEN: f64 = 1.25;

/// Whether a step waits for its host: the table says so, or its steps differ.
fn is_host_bound(cells: &mut Cells<'_>) -> bool {
    let times = ["step_p10_s", "step_p90_s"].map(|column| cells.positive_number(column));
    cells.flag("host_bound") || matches!(times, [Some(fast), Some(slow)] if slow > UNEVEN * fast)
}

/// How AdamW runs; empty for PyTorch's fused kernel.
fn update_kernels(word: &str) -> Result<UpdateKernels, Reason> {
    match word {
        "" | "fused" => Ok(UpdateKernels::Fused),
        "foreach" => Ok(UpdateKernels::Foreach),
        _ => Err(Reason::Option { what: format!("optimizer `{word}`; allowed are `fused` and `foreach`") }),
    }
}

/// What tells rows of PyTorch's own modules apart.
fn variant_of(cells: &Cells<'_>) -> String {
    let compiled = if cells.flag("compile") { ", compiled" } else { "" };
    let [layers, sequences, tokens, kept, optimizer] =
        ["layers", "local_batch_seqs", "seq_tokens", "activation_checkpointing", "optimizer"]
            .map(|column| cells.word(column));
    format!("{layers} layers, {sequences} of {tokens}, checkpoints {kept}, {optimizer}{compiled}")
}

/// The recipe makes the products of layers narrow, not the output head (torchao, `filter_fqns = ["output"]`).
fn formats(word: &str) -> Result<Formats, Reason> {
    let format = match word {
        "bf16" => Format::Bf16,
        "float8 tensorwise" | "float8 rowwise" => Format::Fp8,
        _ => return Err(Reason::Format { word: word.to_owned() }),
    };
    Ok(Formats::weights(format, hw::Dtype::Bf16))
}

/// What is computed again, in how many layers of a stage. `selective layer` is every second one (torchtitan, `selective_ac_option = 2`).
fn recompute(word: &str, model: &Model) -> Result<(Recompute, u32), Reason> {
    let half = u32::try_from(model.n_layers.div_ceil(2)).expect("layers fit u32");
    match word {
        "selective" | "selective op" | "selective per op" => Ok((Recompute::Selective, u32::MAX)),
        "selective layer" => Ok((Recompute::Full, half)),
        "full" => Ok((Recompute::Full, u32::MAX)),
        "none" | "" => Ok((Recompute::Off, u32::MAX)),
        _ => Err(Reason::Option { what: format!("activation checkpointing `{word}`") }),
    }
}
