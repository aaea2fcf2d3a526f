//! Items that workers share: equal ones, and micro-batches that are taken in their order.

/// Shares equal items among workers that need so long for one and have begun with so much: each has one, and the last to finish is as early as can
/// be. `None` where there are fewer items than workers.
pub(super) fn shared(n_items: u32, paces: &[f64], begun: &[f64]) -> Option<Vec<u32>> {
    let mut shares = vec![1_u32; paces.len()];
    let rest = n_items.checked_sub(u32::try_from(paces.len()).ok()?)?;
    for _ in 0..rest {
        let end = |index: usize| begun[index] + f64::from(shares[index] + 1) * paces[index];
        let first = (0..paces.len()).min_by(|a, b| end(*a).total_cmp(&end(*b)))?;
        shares[first] += 1;
    }
    Some(shares)
}

/// Sums over the first items, from none to all, of items that take so long; nanoseconds.
pub(super) fn sums(items: impl Iterator<Item = u64>) -> Vec<u64> {
    let running = items.scan(0, |sum, item| {
        *sum += item;
        Some(*sum)
    });
    std::iter::once(0).chain(running).collect()
}

/// Shares items that are taken in their order among workers, of whom each has the sums of its own times: each has one, and the last to finish is about as
/// early as can be. Each takes as many as it can by then. `None` where there are fewer items than workers.
pub(super) fn in_order(workers: &[&[u64]]) -> Option<Vec<u32>> {
    let longest = workers.iter().filter_map(|sums| sums.last()).max()?;
    let (mut early, mut late) = (0, *longest);
    let mut best = taken(workers, late)?;
    while early < late {
        let middle = early.midpoint(late);
        match taken(workers, middle) {
            Some(shares) => (late, best) = (middle, shares),
            None => early = middle + 1,
        }
    }
    Some(best)
}

/// What every worker takes until then, where that is everything.
fn taken(workers: &[&[u64]], until: u64) -> Option<Vec<u32>> {
    let n_items = workers[0].len() - 1;
    let (mut first, mut shares) = (0, Vec::with_capacity(workers.len()));
    for (index, sums) in workers.iter().enumerate() {
        let most = n_items.checked_sub(workers.len() - 1 - index)?;
        let next = sums.partition_point(|sum| *sum <= sums[first] + until).saturating_sub(1).min(most);
        if next <= first {
            return None;
        }
        shares.push(u32::try_from(next - first).ok()?);
        first = next;
    }
    (first == n_items).then_some(shares)
}

/// Every way to share so many equal items among so many workers, each with one; empty where there are more than so many ways.
pub(super) fn all_shares(n_items: u32, n_workers: usize, most: usize) -> Vec<Vec<u32>> {
    let Some(rest) = u32::try_from(n_workers).ok().and_then(|n| n_items.checked_sub(n)) else { return Vec::new() };
    // Items that are left over, and how many each of the workers so far has.
    let mut heads: Vec<(u32, Vec<u32>)> = vec![(rest, Vec::new())];
    for worker in 0..n_workers {
        let is_last = worker + 1 == n_workers;
        let with = |(left, head): &(u32, Vec<u32>)| {
            let least = if is_last { *left } else { 0 };
            let (left, head) = (*left, head.clone());
            (least..=left).map(move |more| (left - more, [head.as_slice(), &[1 + more]].concat()))
        };
        heads = heads.iter().flat_map(with).take(most + 1).collect();
        if heads.len() > most {
            return Vec::new();
        }
    }
    heads.into_iter().map(|(_, shares)| shares).collect()
}
