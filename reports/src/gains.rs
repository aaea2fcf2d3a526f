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

/// The same where each row has the baseline with its own limit or size, which stands behind the `@` of their names.
pub fn of_own_metric(results: &[PolicyResult], baseline: &str, key: &str) -> BTreeMap<String, f64> {
    of_pairs(results, baseline, key, |own, base| own / base)
}

/// The same for a metric of which less is better.
pub fn of_own_least(results: &[PolicyResult], baseline: &str, key: &str) -> BTreeMap<String, f64> {
    of_pairs(results, baseline, key, |own, base| base / own)
}

fn of_pairs(
    results: &[PolicyResult],
    baseline: &str,
    key: &str,
    gain: impl Fn(f64, f64) -> f64,
) -> BTreeMap<String, f64> {
    let value = |row: &PolicyResult| row.metrics.get(key).copied();
    let of_row = |row: &PolicyResult| {
        let of = row.policy.rsplit_once('@').map(|(_, of)| of);
        let base = of.map_or_else(|| baseline.to_owned(), |of| format!("{baseline}@{of}"));
        let base = results.iter().find(|other| other.policy == base)?;
        Some((row.policy.clone(), gain(value(row)?, value(base)?)))
    };
    results.iter().filter_map(of_row).collect()
}

/// What gains of rows are relative to where each has the baseline with its own `what`, which their names tell behind an `@`; empty where all
/// have one.
pub fn relative_to(results: &[PolicyResult], baseline: &str, what: &str) -> String {
    let has_own = results.iter().any(|row| row.policy.contains('@'));
    if has_own { format!("{baseline} at the same {what}") } else { String::new() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_held_against_the_baseline_of_its_own_size() {
        let row = |policy: &str, rate: f64| PolicyResult {
            policy: policy.to_owned(),
            metrics: [("rate".to_owned(), rate)].into(),
            ..PolicyResult::default()
        };
        let rows = [row("padded@14", 2.0), row("dynamic@14", 3.0), row("padded@16", 4.0), row("dynamic@16", 8.0)];
        let gains: Vec<f64> = of_own_metric(&rows, "padded", "rate").into_values().collect();
        assert_eq!(gains, [1.5, 2.0, 1.0, 1.0]);
        assert!((of_own_least(&rows, "padded", "rate")["dynamic@16"] - 0.5).abs() < 1e-12);
        assert_eq!(relative_to(&rows, "padded", "batch size"), "padded at the same batch size");
        // One size needs no name of its own.
        let alone = [row("padded", 2.0), row("dynamic", 3.0)];
        assert!((of_own_metric(&alone, "padded", "rate")["dynamic"] - 1.5).abs() < 1e-12);
        assert_eq!(relative_to(&alone, "padded", "batch size"), "");
    }
}
