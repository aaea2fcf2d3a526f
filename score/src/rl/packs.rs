//! Sequences that share micro-batches, and the plan that they make.
//!
//! NeMo-RL packs the sequences of a batch up to a number of tokens, for all data-parallel groups at once, and deals the packs out in turn
//! (NVIDIA-NeMo/RL @ v0.5.0, nemo_rl/distributed/batched_data_dict.py, `shard_by_batch_size`; nemo_rl/data/packing/algorithms.py). Their number is a multiple of the
//! groups: `_adjust_bin_count` takes single sequences out of the packs that have most. With a pipeline every pack is filled up to the longest one of its
//! group, because stages agree on one length (nemo_rl/models/megatron/common.py, `_get_pack_sequence_parameters_for_megatron`). First-fit decreasing stands for its modified form
//! (Johnson and Garey 1985), which makes as many packs of drawn lengths like those of the rows. Units: tokens.

use train::plan::{MicroBatch, Place, Placement, Plan, Step};
use train::problem::Problem;
use train::schedule::Pipeline;

/// Sequences of each pack, as positions in `lengths`: at most so many tokens in a pack, and a multiple of `n_groups` packs.
pub fn packs(lengths: &[u64], capacity: u64, n_groups: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(lengths[*index]));
    let mut packs: Vec<Vec<usize>> = Vec::new();
    let mut room: Vec<u64> = Vec::new();
    for index in order {
        let length = lengths[index];
        if let Some(pack) = room.iter().position(|room| *room >= length) {
            packs[pack].push(index);
            room[pack] -= length;
        } else {
            packs.push(vec![index]);
            room.push(capacity.saturating_sub(length));
        }
    }
    while !packs.len().is_multiple_of(n_groups) {
        let Some(fullest) = packs.iter_mut().filter(|pack| pack.len() > 1).max_by_key(|pack| pack.len()) else { break };
        let moved = fullest.pop().expect("several sequences");
        packs.push(vec![moved]);
    }
    packs
}

/// The plan of steps of so many sequences each, in the order of the problem's workload, in packs of at most so many tokens.
pub fn plan(problem: &Problem, sequences_of_step: usize, capacity: u64) -> Plan {
    let lengths = &problem.workload.lengths;
    let firsts = (0..lengths.len()).step_by(sequences_of_step.max(1));
    let steps = firsts.map(|first| {
        let end = (first + sequences_of_step).min(lengths.len());
        step(problem, first, &lengths[first..end], capacity)
    });
    Plan::new("packs", problem, steps.collect())
}

/// One step of sequences that begin at `first` in the workload.
fn step(problem: &Problem, first: usize, lengths: &[u64], capacity: u64) -> Step {
    let n_groups = problem.layout.dp as usize;
    let mut groups: Vec<Vec<MicroBatch>> = vec![Vec::new(); n_groups];
    for (index, pack) in packs(lengths, capacity, n_groups).iter().enumerate() {
        groups[index % n_groups].push(micro_batch(problem, first, lengths, pack));
    }
    if problem.layout.pp > 1 {
        groups.iter_mut().for_each(|group| fill_up(group));
    }
    let mut step = Step::of_groups(groups);
    if problem.layout.pp > 1 {
        let n_micro_batches = step.groups[0].len();
        let pipeline = Pipeline::of_schedule(problem.schedule, problem.layout.pp as usize, 1, n_micro_batches);
        step.orders = vec![(problem.schedule.order)(&pipeline)];
        step.order_of = vec![0; n_groups];
    }
    step
}

fn micro_batch(problem: &Problem, first: usize, lengths: &[u64], pack: &[usize]) -> MicroBatch {
    let place = if problem.layout.cp > 1 { Place::Sharded } else { Place::Local(0) };
    let placed = |index: &usize| Placement {
        sequence: u32::try_from(first + index).expect("few sequences"),
        from: 0,
        tokens: lengths[*index],
        place,
    };
    MicroBatch { sequences: pack.iter().map(placed).collect(), ..MicroBatch::default() }
}

/// Fills every micro-batch of a group up to the longest one.
fn fill_up(group: &mut [MicroBatch]) {
    let tokens = |micro_batch: &MicroBatch| micro_batch.sequences.iter().map(|placed| placed.tokens).sum::<u64>();
    let longest = group.iter().map(tokens).max().unwrap_or(0);
    for micro_batch in group {
        micro_batch.padding = longest - tokens(micro_batch);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packs_hold_every_sequence_once_and_no_more_than_their_room(
            lengths in prop::collection::vec(1_u64..=100, 8..60),
            n_groups in 1_usize..5,
        ) {
            // A batch has a multiple of the groups' number.
            let lengths = &lengths[lengths.len() % n_groups..];
            let found = packs(lengths, 100, n_groups);
            prop_assert!(found.len().is_multiple_of(n_groups));
            let mut all: Vec<usize> = found.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for pack in &found {
                prop_assert!(pack.iter().map(|index| lengths[*index]).sum::<u64>() <= 100);
            }
        }
    }

    #[test]
    fn the_longest_come_first_and_short_ones_fill_the_rest() {
        // 70 takes 30, 60 takes 40; two packs for two groups, four where there are four.
        assert_eq!(packs(&[30, 70, 40, 60], 100, 2), [vec![1, 0], vec![3, 2]]);
        assert_eq!(packs(&[30, 70, 40, 60], 100, 4).len(), 4);
    }
}
