//! A plan as options of torchtitan, with the pipeline schedule as a file beside them.

pub mod import;

use train::layout::{ContextExchange, Zero};
use train::optimizer::Optimizer;
use train::problem::Recompute;

use crate::export::{ExportError, File, Planned, Target, Words, expressible, training};
use crate::schedule;

const NAME: &str = "torchtitan";
const VERSION: &str = "torchtitan 0.3 (torchtitan/config/configs.py)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "options of a run, and the pipeline schedule as CSV", VERSION, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let (layout, execution) = (&problem.layout, &problem.execution);
    let found = expressible(
        (problem, plan),
        NAME,
        &[
            (layout.cp > 1 && layout.exchange == ContextExchange::Ulysses, "a context exchange by all-to-all"),
            (execution.offload > 0.0, "a share of all activations in host memory"),
            (layout.expert_tp != 1 && layout.ep > 1, "experts that are cut over tensor ranks"),
            (matches!(execution.recompute, Recompute::Modules(_)), "recompute of single modules of a layer"),
            (matches!(layout.zero, Zero::OptimizerStates), "optimizer states that are sharded alone (ZeRO 1)"),
            (execution.unit_times.is_some(), "passes with times of their own"),
            (execution.optimizer != Optimizer::ADAM, "an optimizer other than Adam in 32 bits on the device"),
            (execution.trains_adapters, "training of adapters alone"),
        ],
    )?;
    let (replicas, shards) = if layout.zero == Zero::Off { (layout.dp, 1) } else { (1, layout.dp) };
    // A pipeline cuts the local batch into micro-batches; without one the local batch is a micro-batch, and gradients are added up over them.
    let local = if layout.pp > 1 { found.batch / u64::from(layout.dp) } else { found.micro_batch };
    let mut lines = vec![
        format!("--training.seq_len={}", found.tokens),
        format!("--training.local_batch_size={local}"),
        format!("--training.global_batch_size={}", found.batch),
        format!("--parallelism.data_parallel_replicate_degree={replicas}"),
        format!("--parallelism.data_parallel_shard_degree={shards}"),
        format!("--parallelism.tensor_parallel_degree={}", layout.tp),
        format!("--parallelism.context_parallel_degree={}", layout.cp),
        format!("--parallelism.expert_parallel_degree={}", layout.ep),
        format!("--parallelism.pipeline_parallel_degree={}", layout.pp),
        format!(
            "--parallelism.fsdp_reshard_after_forward={}",
            if layout.zero == Zero::Parameters { "always" } else { "never" }
        ),
    ];
    if layout.tp > 1 && !layout.sequence_parallel {
        lines.push("--parallelism.no-enable_sequence_parallel".to_owned());
    }
    if layout.cp > 1 {
        // A ring passes the shards on; all-gather has them all at once.
        let method = if layout.exchange == ContextExchange::Gather { "allgather" } else { "alltoall" };
        lines.push(format!("--parallelism.context_parallel_rotate_method={method}"));
    }
    let mut files = Vec::new();
    if layout.pp > 1 {
        files = schedule::write(planned, words)?;
        lines.push(format!("--parallelism.pipeline_parallel_microbatch_size={}", found.micro_batch));
        lines.push("--parallelism.pipeline_parallel_schedule=_PipelineScheduleRuntime".to_owned());
        lines.push("--parallelism.pipeline_parallel_schedule_csv=schedule.csv".to_owned());
        // Captured by default, which its reader of options refuses beside a pipeline.
        lines.push("--training.disable_cuda_graphs".to_owned());
    }
    let recompute = match execution.recompute {
        Recompute::Full => "full",
        Recompute::Selective => "selective",
        Recompute::Off | Recompute::Modules(_) => "none",
    };
    let mut text = words.comments(VERSION);
    text += &format!("# Activation checkpointing of the recipe: {recompute}. Model: {}.\n", problem.model.name);
    text += &(lines.join("\n") + "\n");
    files.insert(0, File::new("options.txt", text));
    Ok(files)
}
