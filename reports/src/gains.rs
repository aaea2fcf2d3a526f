//! What rows are worth over the baseline's, above 1 is better.

use std::collections::BTreeMap;

use crate::PolicyResult;

/// What every row is worth over what the baseline is; rows without a worth are left out.
pub fn of_worth(
    results: &[PolicyResult],
    baseline: &str,
    worth: impl Fn(&PolicyResult) -> Option<f64>,
) -> BTreeMap<String, f64> {
    let base = results.iter().find(|row| row.policy == baseline).and_then(&worth);
    results.iter().filter_map(|row| Some((row.policy.clone(), worth(row)? / base?))).collect()
}

/// The same for a metric of which more is better.
pub fn of_metric(results: &[PolicyResult], baseline: &str, key: &str) -> BTreeMap<String, f64> {
    of_worth(results, baseline, |row| row.metrics.get(key).copied())
}

/// The same for a metric of which less is better.
pub fn of_least(results: &[PolicyResult], baseline: &str, key: &str) -> BTreeMap<String, f64> {
    let value = |row: &PolicyResult| row.metrics.get(key).copied();
    let base = results.iter().find(|row| row.policy == baseline).and_then(value);
    results.iter().filter_map(|row| Some((row.policy.clone(), base? / value(row)?))).collect()
}

/// Names each row's runner-up: the cheapest other way that keeps the limits for as many requests, or else the one that keeps them for most.
pub fn runners_up(rows: &mut [PolicyResult]) {
    let figures: Vec<Option<(f64, f64)>> = rows
        .iter()
        .map(|row| row.metrics.get("cost_usd").copied().zip(row.metrics.get("slo_attainment_ratio").copied()))
        .collect();
    let names: Vec<String> = rows.iter().map(|row| row.policy.clone()).collect();
    for (index, row) in rows.iter_mut().enumerate() {
        let (Some(facts), Some((_, met))) = (&mut row.planner, figures[index]) else { continue };
        let others = || (0..names.len()).filter(|&other| other != index).filter_map(|at| Some((at, figures[at]?)));
        let as_good = others().filter(|(_, (_, of))| *of >= met).min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let closest = || others().max_by(|a, b| a.1.1.total_cmp(&b.1.1).then(b.0.cmp(&a.0)));
        let words =
            |(at, (usd, of)): (usize, (f64, f64))| format!("`{}`, {usd:.2} $ and {:.1} %", names[at], of * 100.0);
        let note = match (as_good, closest()) {
            (Some(other), _) => format!("runner-up, the cheapest that meets as many: {}", words(other)),
            (None, Some(other)) => format!("runner-up, as no other meets as many: {}", words(other)),
            (None, None) => continue,
        };
        facts.notes.push(note);
    }
}
