//! Batches as Megatron-LM divides them: whole micro-batches, as many for every replica.
//!
//! Source: NVIDIA/Megatron-LM d98e8a64d, `megatron/core/num_microbatches_calculator.py`: "global batch size is not divisible by micro batch size times
//! data parallel size".

use train::Problem;
use train::batches::{around, together};
use train::problem::Framework;

use input::diagnostic::Code;
use input::reader::Reader;

/// Refuses a batch that Megatron-LM does not start with. Sequences of many lengths are packed, and their number is no number of micro-batches.
pub fn whole(reader: &mut Reader<'_>, problem: &Problem) {
    let execution = &problem.execution;
    if execution.framework != Framework::MegatronCore || execution.unit_times.is_some() {
        return;
    }
    let batch = problem.workload.batch_size as u64;
    let Some(together) = together(problem).filter(|together| !batch.is_multiple_of(*together)) else { return };
    let dp = u64::from(problem.layout.dp);
    let what = format!(
        "`batch_size = {batch}` is not a multiple of {together}, the sequences of a micro-batch on {dp} replicas"
    );
    let near: Vec<String> = around(batch, together).iter().map(u64::to_string).collect();
    let help = format!("Megatron-LM asserts it: allowed are multiples of {together}, nearest {}", near.join(" and "));
    let at = reader.peek_in("training", "batch_size").and_then(|(_, at)| at);
    reader.refuse(Code::UnevenBatch, at, what, help);
}
