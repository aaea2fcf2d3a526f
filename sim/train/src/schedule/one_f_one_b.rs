//! 1F1B (PipeDream-flush, arXiv:2104.04473 section 2.2.1): rank r does p − r forwards, then one backward and one forward in turn.
//! Bubble (p − 1)/(m + p − 1) for equal passes; at most p − r micro-batches are held. With parts of long sequences it is
//! ChunkFlow's state-aware 1F1B (arXiv:2503.02356).

use super::{Order, PassKind, Pipeline, Placement, Schedule, Slot};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "1f1b",
    about: "one forward, one backward in turn after a warm-up; holds at most as many micro-batches as stages",
    source: "PipeDream-flush, arXiv:2104.04473 section 2.2.1",
    placement: Placement::Linear,
    n_chunks: 1,
    splits_backward: false,
    order,
};

fn order(pipeline: &Pipeline) -> Order {
    let in_turn: Vec<u32> = (0..pipeline.n_micro_batches).map(super::u32_of).collect();
    let backward = if pipeline.chains.is_empty() { &in_turn } else { &pipeline.chains.backward_order };
    (0..pipeline.n_ranks).map(|rank| rank_order(pipeline, pipeline.n_ranks - 1 - rank, backward)).collect()
}

/// Before its n-th backward a rank has done n + `ahead` + 1 forwards that are held, and the one that the backward needs;
/// forwards that keep nothing do not count, and a forward that waits for a backward lets it go first.
fn rank_order(pipeline: &Pipeline, ahead: usize, backward: &[u32]) -> Vec<Slot> {
    let chains = &pipeline.chains;
    let slot = |kind, micro_batch| Slot { kind, chunk: 0, micro_batch };
    let mut slots = Vec::with_capacity(2 * pipeline.n_micro_batches);
    let mut done = vec![false; pipeline.n_micro_batches];
    let (mut next, mut n_held) = (0, 0);
    for (n, &micro_batch) in backward.iter().enumerate() {
        while next < pipeline.n_micro_batches && (n_held < n + ahead + 1 || next <= micro_batch as usize) {
            let waits = chains.forward_after.get(next).copied().flatten();
            if waits.is_some_and(|before| !done[before as usize]) {
                break;
            }
            slots.push(slot(PassKind::Forward, super::u32_of(next)));
            n_held += usize::from(!chains.is_forward_only(next));
            next += 1;
        }
        slots.push(slot(PassKind::Backward, micro_batch));
        done[micro_batch as usize] = true;
    }
    slots
}
