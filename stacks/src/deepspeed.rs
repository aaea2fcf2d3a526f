//! A plan as the JSON configuration of DeepSpeed.

pub mod import;

use serde_json::json;
use train::layout::{ContextExchange, Zero};
use train::optimizer::Optimizer;
use train::problem::GradientSync;

use crate::export::{ExportError, File, Planned, Target, Words, expressible, training};

const NAME: &str = "deepspeed";
const VERSION: &str = "DeepSpeed 0.19 (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "the JSON configuration", VERSION, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (problem, plan) = training(planned, NAME)?;
    let (layout, execution) = (&problem.layout, &problem.execution);
    let found = expressible(
        (problem, plan),
        NAME,
        &[
            (layout.pp > 1, "a pipeline: DeepSpeed takes it from the module, not from the configuration"),
            (layout.cp > 1 && layout.exchange != ContextExchange::Ulysses, "a context exchange other than Ulysses"),
            (
                layout.tp > 1 && layout.sequence_parallel,
                "activations that are cut over the tensor group between products",
            ),
            (layout.ep > 1, "experts over ranks: DeepSpeed takes them from the module"),
            (execution.offload > 0.0, "a share of all activations in host memory"),
            (execution.formats.is_some_and(|formats| formats.dense != hw::Format::Bf16), "products in narrow formats"),
            (execution.unit_times.is_some(), "passes with times of their own"),
            (execution.optimizer != Optimizer::ADAM, "an optimizer other than Adam in 32 bits on the device"),
            (execution.trains_adapters, "training of adapters alone"),
        ],
    )?;
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
        "bf16": { "enabled": true },
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": execution.gradient_sync != GradientSync::AtEnd,
            "contiguous_gradients": true,
        },
        "data_types": { "grad_accum_dtype": if execution.gradient_dtype == hw::Dtype::Bf16 { "bf16" } else { "fp32" } },
    });
    if layout.tp > 1 {
        config["tensor_parallel"] = json!({ "autotp_size": layout.tp });
    }
    if layout.cp > 1 {
        config["sequence_parallel_size"] = json!(layout.cp);
    }
    Ok(vec![File::new("ds_config.json", format!("{config:#}\n")), words.beside(VERSION)])
}
