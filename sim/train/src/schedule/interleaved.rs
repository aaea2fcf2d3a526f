//! Interleaved 1F1B (Megatron-LM, SC21, arXiv:2104.04473 section 2.2.2): rank r has the stages r, p + r, …; micro-batches go in
//! groups of p through one chunk after the other, and one forward and one backward pass take turns after a warm-up. The bubble
//! is 1F1B's divided by the chunks v. A last group smaller than p is allowed; the list scheduler keeps such orders playable. The order is fixed
//! before anything is timed, as Megatron-LM fixes it: passes count as equally long, whatever their stages take.

use super::greedy::{Patience, Rule, best, cap};
use super::{Order, PassKind, Pipeline, Placement, Schedule};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "interleaved",
    about: "1f1b over several chunks per rank: the bubble divided by the chunks, more transfers and memory",
    source: "Megatron-LM, arXiv:2104.04473 section 2.2.2",
    placement: Placement::Loop,
    n_chunks: 2,
    splits_backward: false,
    order,
};

fn order(pipeline: &Pipeline) -> Order {
    let (p, m, v) = (pipeline.n_ranks, pipeline.n_micro_batches, pipeline.n_chunks);
    let even = Pipeline {
        activation: pipeline.activation.clone(),
        for_weights: pipeline.for_weights.clone(),
        limit: pipeline.limit,
        chains: pipeline.chains.clone(),
        ..Pipeline::of_schedule(&SCHEDULE, p, v, m)
    };
    // Number of a pass in the rank's forwards or, with chunks in reverse, its backwards.
    let number = |chunk: usize, micro_batch: usize| {
        let group = micro_batch / p;
        let size = p.min(m - group * p);
        group * p * v + chunk * size + micro_batch % p
    };
    let key = |rank: usize, kind, chunk: usize, micro_batch| {
        // Backward n comes after forward n + ahead.
        let ahead = if v == 1 { p - 1 - rank } else { 2 * (p - 1 - rank) + (v - 1) * p };
        let key = match kind {
            PassKind::Forward => 2 * number(chunk, micro_batch),
            _ => 2 * (number(v - 1 - chunk, micro_batch) + ahead) + 1,
        };
        key as i64
    };
    let rule = Rule { key: &key, window: -1, eager_start: false, patience: Patience::Never };
    best(&even, &cap(pipeline, m), PassKind::Backward, [rule]).order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_fixed_before_anything_is_timed() {
        let even = Pipeline::of_schedule(&SCHEDULE, 4, 2, 8);
        let mut uneven = even.clone();
        uneven.forward[7].fill(9);
        uneven.input[3].fill(5);
        assert_eq!(order(&even), order(&uneven));
    }
}
