//! What every result keeps, whoever made it: a figure lies inside its interval, shares lie between 0 and 1, percentiles rise, lost time is no
//! gain. A result that breaks one is a defect of the program, so a run says so and does not pass it off as an answer.

use std::collections::BTreeMap;

use crate::{PolicyResult, RunResult};

/// Metrics that are a part of a whole, by their beginning before a dot.
const SHARES: [&str; 13] = [
    "bubble_ratio",
    "busy_ratio",
    "comm_exposed_ratio",
    "feature_hit_ratio",
    "hfu_ratio",
    "hit_ratio",
    "kv_peak_ratio",
    "mfu_ratio",
    "offload_hidden_ratio",
    "outside_hull_ratio",
    "padding_ratio",
    "prefix_hit_ratio",
    "slo_attainment_ratio",
];

/// Parts of a metric that rise in this order.
const RISING: [&str; 6] = ["min", "p50", "p90", "p95", "p99", "max"];

/// Relative error of sums of many floats.
const ROUNDING: f64 = 1e-9;

/// What a result breaks, a sentence each; none is usual.
#[must_use]
pub fn faults(result: &RunResult) -> Vec<String> {
    result.results.iter().flat_map(of_row).collect()
}

fn of_row(row: &PolicyResult) -> Vec<String> {
    let mut found = outside(row);
    found.extend(no_shares(&row.metrics));
    found.extend(falling(&row.metrics));
    found.extend(gains(&row.metrics));
    found.into_iter().map(|what| format!("`{}`: {what}", row.policy)).collect()
}

/// Figures outside their interval.
fn outside(row: &PolicyResult) -> Vec<String> {
    let mut found = Vec::new();
    for (key, [low, high]) in &row.interval {
        let Some(figure) = row.metrics.get(key) else { continue };
        let slack = ROUNDING * figure.abs();
        if *figure < low - slack || *figure > high + slack {
            found.push(format!("{key} = {figure} lies outside its interval from {low} to {high}"));
        }
    }
    found
}

/// Shares below 0 or above 1.
fn no_shares(metrics: &BTreeMap<String, f64>) -> Vec<String> {
    let is_share = |key: &str| SHARES.contains(&key.split('.').next().unwrap_or(key));
    let is_wrong = |value: f64| !(-ROUNDING..=1.0 + ROUNDING).contains(&value);
    let wrong = metrics.iter().filter(|(key, value)| is_share(key) && is_wrong(**value));
    wrong.map(|(key, value)| format!("{key} = {value} is no share of a whole")).collect()
}

/// Percentiles that do not rise.
fn falling(metrics: &BTreeMap<String, f64>) -> Vec<String> {
    let mut found = Vec::new();
    let bases = metrics.keys().filter_map(|key| key.strip_suffix(".p50"));
    for base in bases {
        let known = RISING.iter().filter_map(|part| Some((*part, *metrics.get(&format!("{base}.{part}"))?)));
        let known: Vec<(&str, f64)> = known.collect();
        for pair in known.windows(2) {
            if pair[0].1 > pair[1].1 * (1.0 + ROUNDING) {
                found.push(format!("{base}: {} = {} is above {} = {}", pair[0].0, pair[0].1, pair[1].0, pair[1].1));
            }
        }
    }
    found
}

/// Lost time below zero.
fn gains(metrics: &BTreeMap<String, f64>) -> Vec<String> {
    let wrong = metrics.iter().filter(|(key, value)| key.starts_with("lost_") && key.ends_with("_s") && **value < 0.0);
    wrong.map(|(key, value)| format!("{key} = {value}: lost time is not below zero")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metrics, intervals, and what is said of them.
    type Case<'a> = (&'a [(&'a str, f64)], &'a [(&'a str, [f64; 2])], &'a str);

    fn row(metrics: &[(&str, f64)], interval: &[(&str, [f64; 2])]) -> PolicyResult {
        PolicyResult {
            policy: "a".to_owned(),
            status: crate::Ended::Ok,
            why: String::new(),
            metrics: metrics.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect(),
            interval: interval.iter().map(|(key, ends)| ((*key).to_owned(), *ends)).collect(),
            planner: None,
            measured: crate::Measured { planner_wall_s: 0.0, simulate_wall_s: 0.0 },
            ..PolicyResult::default()
        }
    }

    #[test]
    fn a_sound_row_breaks_nothing() {
        let metrics = [("ttft_s.p50", 1.0), ("ttft_s.p99", 2.0), ("busy_ratio", 1.0), ("lost_host_s", 0.0)];
        assert!(of_row(&row(&metrics, &[("ttft_s.p99", [1.5, 2.0])])).is_empty());
    }

    #[test]
    fn every_rule_is_told_by_the_figure_that_breaks_it() {
        let cases: [Case<'_>; 4] = [
            (&[("ttft_s.p99", 2.1)], &[("ttft_s.p99", [1.5, 2.0])], "outside its interval"),
            (&[("kv_peak_ratio", 1.08)], &[], "no share"),
            (&[("tpot_s.p50", 3.0), ("tpot_s.p99", 2.0)], &[], "is above p99"),
            (&[("lost_other_s", -1.4e-7)], &[], "not below zero"),
        ];
        for (metrics, interval, expected) in cases {
            let found = of_row(&row(metrics, interval));
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }
}
