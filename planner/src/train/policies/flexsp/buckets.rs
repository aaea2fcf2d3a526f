//! Lengths in few buckets, each counted at its upper length (FlexSP, section on bucketing), by dynamic programme.
//!
//! The excess of a bucket is a Monge array: sequences that two buckets have in common cost no less in the one that goes on to longer ones. So the best last
//! split of a longer beginning lies no further left (Yao, STOC 1980), and ends are halved with the splits that are left to them.

/// One bucket fewer is as good.
const SAME: usize = usize::MAX;

/// Upper lengths, ascending, of at most `n` buckets with the least total excess of upper over length (FlexSP, section on bucketing).
pub(super) fn buckets(lengths: &[u64], n: usize) -> Vec<u64> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let k = sorted.len();
    let prefix: Vec<u64> = std::iter::once(0)
        .chain(sorted.iter().scan(0, |sum, s| {
            *sum += s;
            Some(*sum)
        }))
        .collect();
    // Excess of one bucket over sequences j..i, in ascending order.
    let excess = |j: usize, i: usize| sorted[i - 1] * (i - j) as u64 - (prefix[i] - prefix[j]);
    let mut least: Vec<u64> = (0..=k).map(|i| if i == 0 { 0 } else { excess(0, i) }).collect();
    let mut from = vec![vec![0; k + 1]];
    for _ in 1..n.min(k.max(1)) {
        let (mut next, mut origin) = (least.clone(), vec![SAME; k + 1]);
        split(&|j, i| least[j] + excess(j, i), (2, k), (1, k), &mut |i, (sum, j)| {
            if sum < next[i] {
                (next[i], origin[i]) = (sum, j);
            }
        });
        least = next;
        from.push(origin);
    }
    let (mut uppers, mut end) = (Vec::new(), k);
    for origin in from.iter().rev() {
        if end > 0 && origin[end] != SAME {
            uppers.push(sorted[end - 1]);
            end = origin[end];
        }
    }
    uppers.sort_unstable();
    uppers.dedup();
    uppers
}

/// The best last split of every end, both inclusive: the sum with it, and where it is, the leftmost of equal ones.
fn split(
    sum: &dyn Fn(usize, usize) -> u64,
    (first, last): (usize, usize),
    (low, high): (usize, usize),
    found: &mut dyn FnMut(usize, (u64, usize)),
) {
    if first > last {
        return;
    }
    let end = first.midpoint(last);
    let best = (low..=high.min(end - 1)).map(|at| (sum(at, end), at)).min().expect("an end has a split before it");
    found(end, best);
    split(sum, (first, end - 1), (low, best.1), found);
    split(sum, (end + 1, last), (best.1, high), found);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upper_of(uppers: &[u64], tokens: u64) -> u64 {
        uppers[uppers.partition_point(|upper| *upper < tokens)]
    }

    #[test]
    fn buckets_waste_less_than_fixed_widths() {
        let lengths = train::workload::distribution::named("commoncrawl-like").expect("listed").sample(512, 196_608, 3);
        let waste = |uppers: &[u64]| {
            let total: u64 = lengths.iter().sum();
            let excess: u64 = lengths.iter().map(|&length| upper_of(uppers, length) - length).sum();
            hw::real(excess) / hw::real(total)
        };
        let found = buckets(&lengths, 16);
        assert!(found.len() <= 16);
        let longest = *lengths.iter().max().expect("lengths");
        let fixed: Vec<u64> = (1..=16).map(|k| (longest * k).div_ceil(16)).collect();
        assert!(waste(&found) * 10.0 < waste(&fixed), "{} {}", waste(&found), waste(&fixed));
        assert_eq!(buckets(&[5, 5, 5], 4), [5]);
        assert_eq!(buckets(&[1, 2, 9], 2), [2, 9]);
    }

    #[test]
    fn buckets_are_the_best_of_all_choices() {
        let lengths = [3, 4, 4, 9, 10, 15, 31, 33];
        let waste = |uppers: &[u64]| lengths.iter().map(|&length| upper_of(uppers, length) - length).sum::<u64>();
        // With many lengths, and with many that are equal, every split of every end.
        for seed in 0..20 {
            let mut random = engine::random::stream(seed, "lengths");
            let values: Vec<u64> = (0..60).map(|_| random.below(1 + 40 * (seed % 3))).collect();
            let sum = |j: usize, i: usize| values[j] * 7 + (i - j) as u64 * ((i - j) as u64);
            let mut found = vec![None; 60];
            split(&sum, (2, 59), (1, 59), &mut |end, best| found[end] = Some(best));
            for (end, found) in found.into_iter().enumerate().skip(2) {
                let all = (1..end).map(|at| (sum(at, end), at)).min();
                assert_eq!(found, all, "seed {seed}, end {end}");
            }
        }
        for n in 1..=5 {
            let best = (0_u32..128)
                .map(|chosen| {
                    let kept = (0..7).filter(|bit| chosen & (1 << bit) != 0).map(|bit| lengths[bit]);
                    kept.chain([33]).collect::<Vec<u64>>()
                })
                .filter(|uppers| uppers.len() <= n)
                .map(|uppers| waste(&uppers))
                .min();
            assert_eq!(Some(waste(&buckets(&lengths, n))), best, "{n} buckets");
        }
    }
}
