//! Cuts sorted sequences into consecutive micro-batches (FlexSP, "blaster"): the least largest token sum.
//!
//! The paper's dynamic programme DP\[k\]\[i\] = min_j max(DP\[j\]\[i − 1\], Σ s) has the same optimum as the least bound that a greedy cut keeps.

/// Cuts sizes into at most `n` consecutive parts with the least largest sum: the least bound that a greedy cut keeps.
pub(super) fn cut(sizes: &[u64], n: usize) -> Vec<std::ops::Range<usize>> {
    let greedy = |bound: u64| {
        let (mut parts, mut begin, mut sum) = (Vec::new(), 0, 0);
        for (index, &size) in sizes.iter().enumerate() {
            if sum + size > bound && index > begin {
                parts.push(begin..index);
                (begin, sum) = (index, 0);
            }
            sum += size;
        }
        parts.push(begin..sizes.len());
        parts
    };
    let (mut low, mut high) = (sizes.iter().max().copied().unwrap_or(0), sizes.iter().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        if greedy(middle).len() <= n { high = middle } else { low = middle + 1 }
    }
    greedy(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_have_the_least_largest_sum() {
        let sizes = [9, 7, 7, 4, 3, 3, 1];
        for n in 1..=sizes.len() {
            let parts = cut(&sizes, n);
            let sum = |part: &std::ops::Range<usize>| sizes[part.clone()].iter().sum::<u64>();
            let found = parts.iter().map(sum).max().expect("parts");
            // Every way to cut six gaps.
            let best = (0_u32..64)
                .filter(|gaps| (gaps.count_ones() as usize) < n)
                .map(|gaps| {
                    let (mut most, mut sum) = (0, 0);
                    for (index, size) in sizes.iter().enumerate() {
                        sum += size;
                        if index + 1 == sizes.len() || gaps & (1 << index) != 0 {
                            most = most.max(sum);
                            sum = 0;
                        }
                    }
                    most
                })
                .min();
            assert_eq!(Some(found), best, "{n}");
        }
    }
}
