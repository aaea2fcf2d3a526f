//! Consecutive ranks for a ring: those that are free first.

use std::collections::VecDeque;

/// First rank and begin of a ring of `width` ranks on ranks that are busy until `load`: the window whose last rank is free first, on ties
/// the one that leaves its ranks least idle, then the lowest. A ring that fits a node of `per_node` ranks stays in one.
///
/// # Panics
/// When the ring is wider than all ranks, or of none.
pub(super) fn first_free(load: &[f64], width: usize, per_node: usize) -> (usize, f64) {
    assert!((1..=load.len()).contains(&width), "a ring of {width} ranks among {}", load.len());
    let (mut best, mut sum) = (None, load[..width - 1].iter().sum::<f64>());
    // Ranks of the window whose load no later one exceeds.
    let mut highest: VecDeque<usize> = VecDeque::new();
    for last in 0..load.len() {
        while highest.back().is_some_and(|&rank| load[rank] <= load[last]) {
            highest.pop_back();
        }
        highest.push_back(last);
        let Some(first) = (last + 1).checked_sub(width) else { continue };
        if highest[0] < first {
            highest.pop_front();
        }
        sum = if first == 0 { load[..width].iter().sum() } else { sum + load[last] - load[first - 1] };
        let is_cut = width <= per_node && first / per_node != last / per_node;
        let begin = load[highest[0]];
        // Sums that slide have rounding errors; a nanosecond is a tie.
        let idle = begin * hw::real(width as u64) - sum;
        let is_better = |&(_, least, least_idle): &(usize, f64, f64)| {
            begin < least - 1e-9 || begin <= least && idle < least_idle - 1e-9
        };
        if !is_cut && best.as_ref().is_none_or(is_better) {
            best = Some((first, begin, idle));
        }
    }
    let (first, begin, _) = best.expect("some window is whole");
    (first, begin)
}

/// First rank of the window that is free first among those that begin at multiples of their width: rings of one width lie side by side and
/// leave no gaps between them.
pub(super) fn side_by_side(load: &[f64], width: usize) -> usize {
    let free = |first: usize| load[first..first + width].iter().copied().fold(0.0, f64::max);
    let windows = (0..=load.len() - width).step_by(width);
    windows.min_by(|&a, &b| free(a).total_cmp(&free(b))).expect("a ring fits the ranks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_by_hand() {
        // Two ranks are free at 1 from rank 3 on; three at 2, from there on too.
        let load = [2.0, 0.0, 3.0, 1.0, 1.0, 2.0];
        assert_eq!(first_free(&load, 2, 1), (3, 1.0));
        assert_eq!(first_free(&load, 3, 1), (3, 2.0));
        assert_eq!(first_free(&load, 1, 1), (1, 0.0));
        assert_eq!(first_free(&load, 6, 1), (0, 3.0));
        // In nodes of four ranks, 3 and 4 are in different ones: 4 and 5 are free at 2, and so are 0 and 1, which idle longer.
        assert_eq!(first_free(&load, 2, 4), (4, 2.0));
    }

    #[test]
    fn the_window_is_the_best_of_all() {
        let mut random = engine::random::stream(3, "windows");
        for _ in 0..200 {
            let n = 1 + usize::try_from(random.below(20)).expect("small");
            let load: Vec<f64> = (0..n).map(|_| f64::from(u32::try_from(random.below(6)).expect("small"))).collect();
            let width = 1 + usize::try_from(random.below(n as u64)).expect("small");
            let begin = |first: usize| load[first..first + width].iter().copied().fold(0.0, f64::max);
            let least = (0..=n - width).map(begin).fold(f64::INFINITY, f64::min);
            let (first, found) = first_free(&load, width, 1);
            assert_eq!((found, begin(first)), (least, least));
        }
    }
}
