//! GPipe (arXiv:1811.06965): all forwards, then all backwards in reverse. Bubble (p − 1)/(m + p − 1) for equal passes, and the
//! activations of every micro-batch are held at once.

use super::{Order, PassKind, Pipeline, Placement, Schedule, Slot};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "gpipe",
    about: "all forwards, then all backwards; holds every micro-batch's activations",
    source: "GPipe, arXiv:1811.06965",
    placement: Placement::Linear,
    n_chunks: 1,
    splits_backward: false,
    order,
};

fn order(pipeline: &Pipeline) -> Order {
    let slot = |kind| move |micro_batch: usize| Slot { kind, chunk: 0, micro_batch: super::u32_of(micro_batch) };
    let m = pipeline.n_micro_batches;
    let slots = (0..m).map(slot(PassKind::Forward)).chain((0..m).rev().map(slot(PassKind::Backward)));
    vec![slots.collect(); pipeline.n_ranks]
}
