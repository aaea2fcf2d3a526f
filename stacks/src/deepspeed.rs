//! A plan as the JSON configuration of DeepSpeed.

pub(crate) mod filled;
pub mod import;
pub(crate) mod named;
#[cfg(test)]
mod tests;

use hw::Dtype;
use serde_json::json;
use train::Problem;
use train::layout::Zero;
use train::problem::{GradientSync, Recompute};

use crate::export::{ExportError, File, Planned, Target, Words, expressible, training};
use crate::fields::Stack;
use crate::weeks;

const NAME: &str = "deepspeed";
const VERSION: &str = "DeepSpeed 0.19 (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "the JSON configuration", VERSION, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let (layout, execution) = (&problem.layout, &problem.execution);
    let (found, mut told) = expressible((problem, plan), NAME, Stack::Deepspeed)?;
    told.extend(weeks::remarks(words.weeks.as_ref(), problem, false));
    let stage = match layout.zero {
        Zero::Off => 0,
        Zero::OptimizerStates => 1,
        Zero::Gradients => 2,
        Zero::Parameters => 3,
    };
    let mut config = json!({
        "train_batch_size": found.batch,
        "train_micro_batch_size_per_gpu": found.micro_batch,
        "gradient_accumulation_steps": found.n_micro_batches,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": execution.gradient_sync != GradientSync::AtEnd,
            "contiguous_gradients": true,
        },
        "data_types": { "grad_accum_dtype": gradients(problem) },
    });
    let half = if problem.dtype == Dtype::Fp16 { "fp16" } else { "bf16" };
    config[half] = json!({ "enabled": true });
    if execution.recompute == Recompute::Full {
        let n_layers = problem.model.n_layers;
        config["activation_checkpointing"] = json!({ "number_checkpoints": n_layers });
    }
    if layout.zero == Zero::Parameters && !execution.overlap.forward_prefetch {
        config["zero_optimization"]["stage3_prefetch_bucket_size"] = json!(0);
    }
    if execution.parameters_on_host {
        config["zero_optimization"]["offload_param"] = json!({ "device": "cpu" });
    }
    if layout.tp > 1 {
        config["tensor_parallel"] = json!({ "autotp_size": layout.tp });
    }
    if layout.cp > 1 {
        config["sequence_parallel_size"] = json!(layout.cp);
    }
    let beside = words.lines(VERSION).into_iter().chain(told).collect::<Vec<_>>().join("\n") + "\n";
    let config = File::new("ds_config.json", format!("{config:#}\n"));
    Ok(vec![config, File::new(&words.beside(VERSION).name, beside)])
}

/// Format in which gradients are kept and reduced: of 16 bits, the one of the activations.
fn gradients(problem: &Problem) -> &'static str {
    match (problem.execution.gradient_dtype, problem.dtype) {
        (Dtype::Fp32, _) => "fp32",
        (_, Dtype::Fp16) => "fp16",
        _ => "bf16",
    }
}
