//! 1F1B (PipeDream-flush, arXiv:2104.04473 section 2.2.1): rank r does p − r forwards, then one backward and one forward in turn.
//! Bubble (p − 1)/(m + p − 1) for equal passes; at most p − r micro-batches are held.

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
    let m = pipeline.n_micro_batches;
    let slot = |kind, micro_batch: usize| Slot { kind, chunk: 0, micro_batch: super::u32_of(micro_batch) };
    (0..pipeline.n_ranks)
        .map(|rank| {
            let ahead = (pipeline.n_ranks - 1 - rank).min(m);
            let mut slots: Vec<Slot> = (0..ahead).map(|k| slot(PassKind::Forward, k)).collect();
            for k in 0..m {
                slots.extend((k + ahead < m).then(|| slot(PassKind::Forward, k + ahead)));
                slots.push(slot(PassKind::Backward, k));
            }
            slots
        })
        .collect()
}
