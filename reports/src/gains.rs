//! What rows are worth over the baseline's, above 1 is better.

use std::collections::BTreeMap;

use crate::PolicyResult;

/// What every row is worth over what the baseline is; rows without a worth are left out.
#[must_use]
pub fn of_worth(
    results: &[PolicyResult],
    baseline: &str,
    worth: impl Fn(&PolicyResult) -> Option<f64>,
) -> BTreeMap<String, f64> {
    let base = results.iter().find(|row| row.policy == baseline).and_then(&worth);
    results.iter().filter_map(|row| Some((row.policy.clone(), worth(row)? / base?))).collect()
}

/// The same for a metric of which more is better.
#[must_use]
pub fn of_metric(results: &[PolicyResult], baseline: &str, key: &str) -> BTreeMap<String, f64> {
    of_worth(results, baseline, |row| row.metrics.get(key).copied())
}

/// The same for a metric of which less is better.
#[must_use]
pub fn of_least(results: &[PolicyResult], baseline: &str, key: &str) -> BTreeMap<String, f64> {
    let value = |row: &PolicyResult| row.metrics.get(key).copied();
    let base = results.iter().find(|row| row.policy == baseline).and_then(value);
    results.iter().filter_map(|row| Some((row.policy.clone(), base? / value(row)?))).collect()
}
