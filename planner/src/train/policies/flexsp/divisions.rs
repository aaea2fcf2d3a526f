//! Divisions of a pool of ranks into groups of powers of two: all of them for small pools, neighbours of one for large pools.
//!
//! There are 1,828 divisions of 64 ranks, 27,338 of 128 and 692,004 of 256 (OEIS A002577), so beyond `ALL_MAX` the best one is found by
//! climbing from equal groups: some groups are halved, or pairs of equal groups are joined.

/// Largest pool of which every division is tried.
pub(super) const ALL_MAX: u32 = 64;

/// Degrees of the groups, widest first; they add up to all ranks.
pub(super) type Division = Vec<u32>;

/// Divisions of `n` (a power of two) into equal groups of up to `widest`.
pub(super) fn same(n: u32, widest: u32) -> Vec<Division> {
    (0..=widest.ilog2()).map(|power| vec![1 << power; (n >> power) as usize]).collect()
}

/// Every division of `n` (a power of two) into powers of two up to `widest`.
pub(super) fn all(n: u32, widest: u32) -> Vec<Division> {
    fn extend(left: u32, widest: u32, parts: &mut Division, found: &mut Vec<Division>) {
        if left == 0 {
            found.push(parts.clone());
            return;
        }
        let mut part = widest.min(1 << left.ilog2());
        while part > 0 {
            parts.push(part);
            extend(left - part, part, parts, found);
            parts.pop();
            part /= 2;
        }
    }
    let mut found = Vec::new();
    extend(n, widest, &mut Vec::new(), &mut found);
    found
}

/// Divisions in which one, half or all groups of a degree are halved, or one, half or all pairs of them joined.
pub(super) fn neighbours(division: &[u32], widest: u32) -> Vec<Division> {
    let mut found: Vec<Division> = Vec::new();
    for run in division.chunk_by(|a, b| a == b) {
        let (degree, n) = (run[0], run.len());
        let mut change = |gone: usize, degree_of_new: u32, n_new: usize| {
            let mut left = gone;
            let kept = division.iter().copied().filter(|&part| {
                let goes = part == degree && left > 0;
                left -= usize::from(goes);
                !goes
            });
            let mut changed: Division = kept.chain(std::iter::repeat_n(degree_of_new, n_new)).collect();
            changed.sort_unstable_by(|a, b| b.cmp(a));
            if !found.contains(&changed) {
                found.push(changed);
            }
        };
        for count in [1, n.div_ceil(2), n] {
            if degree > 1 {
                change(count, degree / 2, 2 * count);
            }
            let pairs = (count / 2).max(usize::from(n > 1));
            if degree < widest && pairs > 0 {
                change(2 * pairs, degree * 2, pairs);
            }
        }
    }
    found
}

/// `32,16,8x2`: degrees with how often they occur.
pub(super) fn name(division: &[u32]) -> String {
    division.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>().join(",")
}

/// Equal degrees that follow one another.
fn run(run: &[u32]) -> String {
    if run.len() == 1 { run[0].to_string() } else { format!("{}x{}", run[0], run.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_all_binary_partitions() {
        // 1, 2, 4, 10, 36, 202, 1828: the binary partitions of powers of two (OEIS A002577).
        for (n, count) in [(1, 1), (2, 2), (4, 4), (8, 10), (16, 36), (32, 202), (64, 1828)] {
            let found = all(n, n);
            assert_eq!(found.len(), count, "{n}");
            assert!(found.iter().all(|parts| parts.iter().sum::<u32>() == n));
            assert!(same(n, n).iter().all(|same| found.contains(same)));
        }
    }

    #[test]
    fn neighbours_keep_all_ranks_and_reach_every_division() {
        let all = all(16, 16);
        let mut reached = vec![vec![16]];
        let mut next = 0;
        while next < reached.len() {
            for neighbour in neighbours(&reached[next], 16) {
                assert_eq!(neighbour.iter().sum::<u32>(), 16, "{neighbour:?}");
                if !reached.contains(&neighbour) {
                    reached.push(neighbour);
                }
            }
            next += 1;
        }
        assert_eq!(reached.len(), all.len());
        assert_eq!(name(&[32, 16, 8, 8]), "32,16,8x2");
    }
}
