//! Rows that have something in common, and how often something is said of them.

use std::collections::BTreeMap;

/// Rows by what they have in common, in order of that.
pub(crate) fn together<'r, T, K: Ord>(rows: &'r [T], of: impl Fn(&'r T) -> K) -> BTreeMap<K, Vec<&'r T>> {
    let mut members: BTreeMap<K, Vec<&T>> = BTreeMap::new();
    for row in rows {
        members.entry(of(row)).or_default().push(row);
    }
    members
}

/// Reasons by their word and what it means, with how often each is given; the most frequent first.
pub(crate) fn counted(given: impl Iterator<Item = [&'static str; 2]>) -> Vec<(&'static str, &'static str, usize)> {
    let mut counts: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for [name, about] in given {
        counts.entry(name).or_insert((about, 0)).1 += 1;
    }
    let mut counted: Vec<_> = counts.into_iter().map(|(name, (about, n))| (name, about, n)).collect();
    counted.sort_by_key(|(_, _, n)| std::cmp::Reverse(*n));
    counted
}
