//! Policies side by side over seeded batches: means, paired ratios to a baseline with their 95 % interval.
//!
//! A pair is one batch under two policies (or one policy in two results), so that what differs between batches cancels. The
//! interval is Student's t over the pairs' ratios; one pair has none. Ratios are candidate over baseline: for a time,
//! below 1 is better.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::RunResult;

/// Schema of `compare.json`.
pub const SCHEMA: &str = "skrull-sim/compare/1";
/// Two-sided 95 %.
const QUANTILE: f64 = 0.975;

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Low end; absent with one value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// High end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Spread {
    /// Mean and interval of some values; `None` of none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = crate::quantity::float(values.len() as u64);
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Some(Self { mean, low: None, high: None });
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let student = StudentsT::new(0.0, 1.0, n - 1.0).expect("at least one degree of freedom");
        let half = student.inverse_cdf(QUANTILE) * (variance / n).sqrt();
        Some(Self { mean, low: Some(mean - half), high: Some(mean + half) })
    }
}

/// One policy of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Scenario.
    pub scenario: String,
    /// Policy; with the result that it is from, where results are compared.
    pub policy: String,
    /// Whether ratios are relative to this one.
    pub is_baseline: bool,
    /// Batches that it planned and finished.
    pub n_ok: usize,
    /// Why the others failed, first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Every metric over its batches.
    pub metrics: BTreeMap<String, Spread>,
    /// Paired ratios to the baseline, by metric.
    pub ratio: BTreeMap<String, Spread>,
}

/// A finished comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// `SCHEMA`.
    pub schema: String,
    /// Version of the program.
    pub version: String,
    /// Rows, scenario by scenario, baseline first.
    pub entries: Vec<Entry>,
}

/// Metrics of a policy by batch (seed), and failures.
#[derive(Default)]
struct Batches<'a> {
    ok: BTreeMap<u64, &'a BTreeMap<String, f64>>,
    failure: Option<String>,
}

/// Policies of scenarios that were each run with several seeds, against a policy of the same scenario.
#[must_use]
pub fn within(runs: &[RunResult], baseline: Option<&str>) -> Comparison {
    let labelled: Vec<(&RunResult, String)> = runs.iter().map(|run| (run, String::new())).collect();
    compare(&labelled, |run, _| baseline.unwrap_or(&run.baseline).to_owned())
}

/// Policies of several results against the same policy in the first one.
#[must_use]
pub fn across(runs: &[(String, RunResult)]) -> Comparison {
    let labelled: Vec<(&RunResult, String)> = runs.iter().map(|(label, run)| (run, format!(" ({label})"))).collect();
    let first = labelled.first().map(|(_, label)| label.clone()).unwrap_or_default();
    compare(&labelled, move |_, policy| {
        let bare = policy.rsplit_once(" (").map_or(policy, |(bare, _)| bare);
        format!("{bare}{first}")
    })
}

/// Groups rows by scenario and policy and pairs them with what `baseline_of` names.
fn compare(runs: &[(&RunResult, String)], baseline_of: impl Fn(&RunResult, &str) -> String) -> Comparison {
    let mut rows: BTreeMap<(&str, String), Batches<'_>> = BTreeMap::new();
    let mut order: Vec<(&str, String, String)> = Vec::new();
    for (run, label) in runs {
        for result in &run.results {
            let policy = format!("{}{label}", result.policy);
            let key = (run.scenario.as_str(), policy.clone());
            if !rows.contains_key(&key) {
                order.push((run.scenario.as_str(), policy.clone(), baseline_of(run, &policy)));
            }
            let batches = rows.entry(key).or_default();
            if result.status == "ok" {
                batches.ok.insert(run.seed, &result.metrics);
            } else {
                batches.failure.get_or_insert_with(|| format!("{}: {}", result.status, result.why));
            }
        }
    }
    let entry = |(scenario, policy, baseline): &(&str, String, String)| {
        let batches = &rows[&(*scenario, policy.clone())];
        let base = rows.get(&(*scenario, baseline.clone()));
        Entry {
            scenario: (*scenario).to_owned(),
            is_baseline: policy == baseline,
            n_ok: batches.ok.len(),
            failure: batches.failure.clone(),
            metrics: spreads(batches, |metric, metrics, _| metrics.get(metric).copied()),
            ratio: spreads(batches, |metric, metrics, seed| {
                let base = base?.ok.get(&seed)?.get(metric)?;
                let ratio = metrics.get(metric)? / base;
                ratio.is_finite().then_some(ratio)
            }),
            policy: policy.clone(),
        }
    };
    let mut entries: Vec<Entry> = order.iter().map(entry).collect();
    let mut scenarios: Vec<String> = Vec::new();
    for entry in &entries {
        if !scenarios.contains(&entry.scenario) {
            scenarios.push(entry.scenario.clone());
        }
    }
    let place = |name: &str| scenarios.iter().position(|scenario| scenario == name);
    entries.sort_by_key(|entry| (place(&entry.scenario), !entry.is_baseline));
    let version = runs.first().map_or_else(String::new, |(run, _)| run.version.clone());
    Comparison { schema: SCHEMA.to_owned(), version, entries }
}

/// A spread per metric over the batches in which `value` finds one.
fn spreads(
    batches: &Batches<'_>,
    value: impl Fn(&str, &BTreeMap<String, f64>, u64) -> Option<f64>,
) -> BTreeMap<String, Spread> {
    let metrics: BTreeSet<&String> = batches.ok.values().flat_map(|metrics| metrics.keys()).collect();
    let of = |metric: &&String| {
        let found: Vec<f64> = batches.ok.iter().filter_map(|(&seed, metrics)| value(metric, metrics, seed)).collect();
        Some(((*metric).clone(), Spread::of(&found)?))
    };
    metrics.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PolicyResult;

    fn run(seed: u64, times: &[(&str, f64)]) -> RunResult {
        let results = times.iter().map(|(policy, time)| PolicyResult {
            policy: (*policy).to_owned(),
            status: "ok".to_owned(),
            metrics: [("iteration_time_s".to_owned(), *time)].into(),
            ..PolicyResult::default()
        });
        RunResult {
            scenario: "s".to_owned(),
            seed,
            results: results.collect(),
            baseline: "a".to_owned(),
            ..RunResult::default()
        }
    }

    #[test]
    fn pairs_cancel_what_differs_between_batches() {
        // Batches differ by a factor of ten, the policies always by two: the ratio is 0.5 without spread.
        let runs = [run(0, &[("a", 1.0), ("b", 0.5)]), run(1, &[("a", 10.0), ("b", 5.0)])];
        let found = within(&runs, None);
        assert!(found.entries[0].is_baseline);
        let ratio = found.entries[1].ratio["iteration_time_s"];
        assert_eq!((ratio.mean, ratio.low, ratio.high), (0.5, Some(0.5), Some(0.5)));
        assert!(found.entries[1].metrics["iteration_time_s"].low < Some(0.0));
    }

    #[test]
    fn the_interval_is_students() {
        // Values 1, 2, 3: mean 2, deviation 1, t of two degrees 4.303: half width 2.484.
        let spread = Spread::of(&[1.0, 2.0, 3.0]).expect("three values");
        assert!((spread.high.expect("an interval") - 4.484).abs() < 0.001);
        assert_eq!(Spread::of(&[1.0]), Some(Spread { mean: 1.0, low: None, high: None }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn results_are_paired_by_policy() {
        let runs = [("old".to_owned(), run(0, &[("a", 2.0)])), ("new".to_owned(), run(0, &[("a", 1.0)]))];
        let found = across(&runs);
        assert_eq!(found.entries[0].policy, "a (old)");
        assert_eq!(found.entries[1].ratio["iteration_time_s"].mean, 0.5);
    }
}
