//! Batches as Megatron-LM divides them: whole micro-batches, as many for every replica.
//!
//! Source: NVIDIA/Megatron-LM d98e8a64d, `megatron/core/num_microbatches_calculator.py`: "global batch size is not divisible by micro batch size times
//! data parallel size".

use train::Problem;
use train::problem::Framework;

use input::diagnostic::Code;
use input::reader::Reader;

/// Sequences of a micro-batch on all replicas together, where all sequences are alike; `None` where they are packed.
fn together(problem: &Problem) -> Option<u64> {
    let lengths = &problem.workload.lengths;
    let tokens = lengths.first().copied().filter(|first| lengths.iter().all(|other| other == first))?;
    let held = problem.bucket_tokens * u64::from(problem.layout.cp) / tokens.max(1);
    Some(held.max(1) * u64::from(problem.layout.dp))
}

/// The multiples of a number around another one that is none; 0 is left out.
fn around(n: u64, of: u64) -> Vec<u64> {
    let below = n / of * of;
    [below, below + of].into_iter().filter(|near| *near > 0).collect()
}

/// Refuses a batch that Megatron-LM does not start with. Sequences of many lengths are packed, and their number is no number of micro-batches.
pub fn whole(reader: &mut Reader<'_>, problem: &Problem) {
    let execution = &problem.execution;
    if execution.framework != Framework::MegatronCore || execution.unit_times.is_some() {
        return;
    }
    let batch = problem.workload.batch_size as u64;
    let Some(together) = together(problem).filter(|together| !batch.is_multiple_of(*together)) else { return };
    let dp = u64::from(problem.layout.dp);
    let what =
        format!("`batch_size = {batch}` is not a multiple of micro-batches of {} on {dp} replicas", together / dp);
    let near: Vec<String> = around(batch, together).iter().map(u64::to_string).collect();
    let help = format!("Megatron-LM asserts it: allowed are multiples of {together}, nearest {}", near.join(" and "));
    let at = reader.peek_in("training", "batch_size").and_then(|(_, at)| at);
    reader.refuse(Code::UnevenBatch, at, what, help);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_batches_are_the_multiples_on_both_sides() {
        for of in 1..20 {
            for n in (1_u64..100).filter(|n| n % of != 0) {
                let multiples = (1..200).filter(|near| near % of == 0);
                let brute: Vec<u64> = multiples.filter(|near| near.abs_diff(n) < of).collect();
                assert_eq!(around(n, of), brute, "{n}, {of}");
            }
        }
    }
}
