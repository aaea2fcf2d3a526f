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

/// Rows of a table that have no prediction for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The reason's word.
    pub reason: &'static str,
    /// What it means.
    pub about: &'static str,
    /// How many rows.
    pub n: usize,
}

/// Reasons by their word and what it means, with how often each is given; the most frequent first.
pub(crate) fn counted(given: impl Iterator<Item = [&'static str; 2]>) -> Vec<Missing> {
    let mut counts: BTreeMap<&str, Missing> = BTreeMap::new();
    for [reason, about] in given {
        counts.entry(reason).or_insert(Missing { reason, about, n: 0 }).n += 1;
    }
    let mut counted: Vec<Missing> = counts.into_values().collect();
    counted.sort_by_key(|missing| std::cmp::Reverse(missing.n));
    counted
}

/// Lines about them under a title; none where there are none.
pub(crate) fn lines(missing: &[Missing]) -> Vec<String> {
    if missing.is_empty() {
        return Vec::new();
    }
    let line = |Missing { reason, about, n }: &Missing| format!("  {n:>5}  {reason:13} {about}");
    let mut lines = vec![String::new(), "without prediction".to_owned()];
    lines.extend(missing.iter().map(line));
    lines
}

/// The same as a table of Markdown; `what` has no prediction.
pub(crate) fn markdown(what: &str, missing: &[Missing]) -> String {
    let rows: String = missing.iter().map(|Missing { about, n, .. }| format!("| {n} | {about} |\n")).collect();
    format!("\n| {what} without prediction | reason |\n|---|---|\n{rows}")
}
