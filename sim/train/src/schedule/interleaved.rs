//! Interleaved 1F1B (Megatron-LM, SC21, arXiv:2104.04473 section 2.2.2): rank r has the stages r, p + r, …; micro-batches go in
//! groups of p, or of more where that is asked for, through one chunk after the other, and one forward and one backward pass take turns after a
//! warm-up. The bubble is 1F1B's divided by the chunks v. A last group smaller than p is allowed; the list scheduler keeps such orders playable.
//! The order is fixed before anything is timed, as Megatron-LM fixes it: passes count as equally long, whatever their stages take, and nobody asks
//! whether what is kept fits.

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
        chains: pipeline.chains.clone(),
        group: pipeline.group,
        ..Pipeline::of_schedule(&SCHEDULE, p, v, m)
    };
    // Number of a pass in the rank's forwards or, with chunks in reverse, its backwards.
    let whole = pipeline.group;
    let number = |chunk: usize, micro_batch: usize| {
        let group = micro_batch / whole;
        let size = whole.min(m - group * whole);
        group * whole * v + chunk * size + micro_batch % whole
    };
    let key = |rank: usize, kind, chunk: usize, micro_batch| {
        // Backward n comes after forward n + ahead.
        let ahead = if v == 1 { p - 1 - rank } else { 2 * (p - 1 - rank) + (v - 1) * whole };
        let key = match kind {
            PassKind::Forward => 2 * number(chunk, micro_batch),
            _ => 2 * (number(v - 1 - chunk, micro_batch) + ahead) + 1,
        };
        key as i64
    };
    let rule = Rule { key: &key, window: -1, eager_start: false, patience: Patience::Never };
    best(&even, &cap(&even, m), PassKind::Backward, [rule]).order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Micro-batch and chunk of the first rank's forwards.
    fn forwards(group: usize, n_ranks: usize, n_chunks: usize, n_micro_batches: usize) -> Vec<(u32, u32)> {
        let even = Pipeline { group, ..Pipeline::of_schedule(&SCHEDULE, n_ranks, n_chunks, n_micro_batches) };
        let slots = order(&even).swap_remove(0).into_iter();
        slots.filter(|slot| slot.kind == PassKind::Forward).map(|slot| (slot.micro_batch, slot.chunk)).collect()
    }

    #[test]
    fn groups_run_through_a_chunk_as_megatron_lm_documents() {
        // NVIDIA/Megatron-LM @ d98e8a64ddf3, `microbatch_group_size_per_vp_stage`: two ranks of two chunks, groups of two, four micro-batches; and
        // groups of three, five micro-batches.
        let two = [0, 1, 0, 1, 2, 3, 2, 3].into_iter().zip([0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(forwards(2, 2, 2, 4), two.collect::<Vec<_>>());
        let three = [0, 1, 2, 0, 1, 2, 3, 4, 3, 4].into_iter().zip([0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
        assert_eq!(forwards(3, 2, 2, 5), three.collect::<Vec<_>>());
    }

    #[test]
    fn forwards_before_the_first_backward_are_as_many_as_megatron_lm_runs() {
        // `get_pp_rank_microbatches`: two for every rank behind, and a group for every chunk but one; then a forward before each backward.
        let (p, v, group, m) = (4, 3, 5, 10);
        let pipeline = Pipeline { group, ..Pipeline::of_schedule(&SCHEDULE, p, v, m) };
        for (rank, slots) in order(&pipeline).iter().enumerate() {
            let n = slots.iter().take_while(|slot| slot.kind == PassKind::Forward).count();
            assert_eq!(n, 2 * (p - 1 - rank) + (v - 1) * group + 1, "rank {rank}");
        }
    }

    #[test]
    fn the_order_is_fixed_before_anything_is_timed() {
        let even = Pipeline::of_schedule(&SCHEDULE, 4, 2, 8);
        let mut uneven = even.clone();
        uneven.forward[7].fill(9);
        uneven.input[3].fill(5);
        assert_eq!(order(&even), order(&uneven));
    }
}
