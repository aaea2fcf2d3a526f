//! Packing algorithms that at least two policies share. Items are named by their index; ties go to the lower index.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Longest processing time first: each item, heaviest first, to the lightest bin.
pub fn longest_first(weights: &[f64], n_bins: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_unstable_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let mut bins = vec![Vec::new(); n_bins];
    let mut load = vec![0.0_f64; n_bins];
    for item in order {
        let lightest = (0..n_bins).min_by(|&a, &b| load[a].total_cmp(&load[b])).expect("at least one bin");
        load[lightest] += weights[item];
        bins[lightest].push(item);
    }
    bins
}

/// Best fit decreasing: each item, largest first, to the fullest bin that still takes it, else to a new one.
/// Items above the capacity get a bin of their own.
pub fn best_fit_decreasing(sizes: &[u64], capacity: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_unstable_by(|&a, &b| sizes[b].cmp(&sizes[a]).then(a.cmp(&b)));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    // What bins hold, each with its index; of equally full ones the first comes last.
    let mut held: BTreeSet<(u64, Reverse<usize>)> = BTreeSet::new();
    for item in order {
        let room = capacity.checked_sub(sizes[item]);
        let fullest = room.and_then(|room| held.range(..=(room, Reverse(0))).next_back().copied());
        let (used, Reverse(index)) = fullest.unwrap_or((0, Reverse(bins.len())));
        match fullest {
            Some(bin) => {
                held.remove(&bin);
                bins[index].push(item);
            }
            None => bins.push(vec![item]),
        }
        held.insert((used + sizes[item], Reverse(index)));
    }
    bins
}

/// Sequences of a step whose data set is packed into rows: as many as best fit packs into `rows` rows of so many tokens in each of the steps. `first` gives
/// the first so many lengths, none above a row; a step has `most` of them at most.
pub fn filling(
    first: &dyn Fn(usize) -> Vec<u64>,
    (rows, row_tokens): (usize, u64),
    steps: usize,
    most: usize,
) -> usize {
    let fit = |n: usize| {
        let lengths = first(n * steps);
        let holds = |step: &[u64]| {
            step.iter().sum::<u64>() <= row_tokens * rows as u64 && best_fit_decreasing(step, row_tokens).len() <= rows
        };
        lengths.chunks(n).all(holds)
    };
    // A row takes at least one sequence.
    let (mut least, mut most) = (rows.min(most), most);
    let mut tried = 2 * least;
    while least < most {
        if fit(tried.min(most)) {
            least = tried.min(most);
        } else {
            most = tried.min(most) - 1;
        }
        // First twice as many each time, then halves of what is open.
        tried = if most - least > least { 2 * least } else { least + (most - least).div_ceil(2) };
    }
    least
}

/// Next fit: items in order, a new bin whenever the next one does not fit.
pub fn next_fit(sizes: &[u64], capacity: u64) -> Vec<Vec<usize>> {
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut used = 0;
    for (item, &size) in sizes.iter().enumerate() {
        match bins.last_mut().filter(|_| used + size <= capacity) {
            Some(bin) => {
                bin.push(item);
                used += size;
            }
            None => {
                bins.push(vec![item]);
                used = size;
            }
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_cases_by_hand() {
        // 5 | 4, then 3 to the 4 (7), then 2 to the 5 (7).
        assert_eq!(longest_first(&[3.0, 5.0, 2.0, 4.0], 2), [vec![1, 2], vec![3, 0]]);
        // 7 alone; 5 opens; 4 opens (5 + 4 = 9 fits 10: joins 5); 3 fits with 7 exactly.
        assert_eq!(best_fit_decreasing(&[4, 7, 5, 3], 10), [vec![1, 3], vec![2, 0]]);
        assert_eq!(next_fit(&[4, 7, 3, 1], 10), [vec![0], vec![1, 2], vec![3]]);
    }

    /// Best fit as it is written down: look at every bin.
    fn looked_up(sizes: &[u64], capacity: u64) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|item| (Reverse(sizes[*item]), *item));
        let mut bins: Vec<Vec<usize>> = Vec::new();
        for item in order {
            let held = |bin: &Vec<usize>| bin.iter().map(|one| sizes[*one]).sum::<u64>();
            let taking = bins.iter_mut().enumerate().filter(|(_, bin)| held(bin) + sizes[item] <= capacity);
            match taking.max_by_key(|(index, bin)| (held(bin), Reverse(*index))) {
                Some((_, bin)) => bin.push(item),
                None => bins.push(vec![item]),
            }
        }
        bins
    }

    proptest! {
        #[test]
        fn the_fullest_bin_is_that_of_a_look_at_all(sizes in prop::collection::vec(0_u64..40, 0..60), capacity in 1_u64..60) {
            prop_assert_eq!(best_fit_decreasing(&sizes, capacity), looked_up(&sizes, capacity));
        }

        /// What rows take fits in every step, and of one step no less than half of what they hold, unless there is no more.
        #[test]
        fn rows_are_filled(
            lengths in prop::collection::vec(1_u64..=64, 1..40),
            rows in 1_usize..12,
            steps in 1_usize..4,
            most in 12_usize..400,
        ) {
            let first = |n: usize| lengths.iter().copied().cycle().take(n).collect::<Vec<u64>>();
            let n = filling(&first, (rows, 64), steps, most);
            prop_assert!((rows..=most).contains(&n));
            for step in first(n * steps).chunks(n) {
                prop_assert!(best_fit_decreasing(step, 64).len() <= rows);
            }
            // Best fit leaves at most one bin less than half full.
            let fullest = first(n * steps).chunks(n).map(|step| step.iter().sum::<u64>()).max().unwrap_or(0);
            prop_assert!(steps > 1 || n == most || 2 * fullest + 128 >= rows as u64 * 64, "{n} sequences, {fullest} tokens");
        }
    }

    /// One length: whole sequences of a row, by hand.
    #[test]
    fn rows_of_one_length_hold_whole_sequences() {
        let first = |n: usize| vec![30; n];
        assert_eq!(filling(&first, (4, 100), 3, 1000), 12);
        assert_eq!(filling(&first, (4, 100), 3, 7), 7, "no more than there may be");
    }
}
