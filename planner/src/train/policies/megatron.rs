//! Fixed-length packing as in Megatron-LM's SFT data path: sequences are laid one after another into micro-batches of one
//! fixed length, padded to it, all cut over the context group.

use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use super::{all_fit, deal, heuristic};
use crate::proof::Decision;
use crate::train::pack;
use crate::train::policy::{Card, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "megatron",
    about: "sequences packed in arrival order into padded micro-batches of a fixed length, cut over all context ranks",
    source: "Megatron-LM packed sequences with context parallelism",
    method: "next-fit packing",
    parameters: &[],
};

/// Sequences that share a micro-batch, all sharded.
pub(super) fn together(items: &[usize], sequences: &[(u32, u64)]) -> MicroBatch {
    let place = |&index: &usize| Placement {
        sequence: sequences[index].0,
        from: 0,
        tokens: sequences[index].1,
        place: Place::Sharded,
    };
    MicroBatch { sequences: items.iter().map(place).collect(), ..MicroBatch::default() }
}

pub(super) fn plan(problem: &Problem, _context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    // Shards are whole tokens: lengths count rounded up to the context degree, and so does the padding.
    let cp = u64::from(problem.layout.cp);
    let step = |index| {
        let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
        let shards: Vec<u64> = sequences.iter().map(|(_, tokens)| tokens.div_ceil(cp)).collect();
        let padded = pack::next_fit(&shards, problem.bucket_tokens).into_iter().map(|bin| {
            let micro_batch = together(&bin, &sequences);
            let held: u64 = bin.iter().map(|&index| shards[index]).sum();
            MicroBatch { padding: (problem.bucket_tokens - held) * cp, ..micro_batch }
        });
        Step::of_groups(deal(padded, problem.layout.dp))
    };
    Ok(heuristic(CARD.name, problem, (0..problem.workload.n_steps()).map(step).collect()))
}
