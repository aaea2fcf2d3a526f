//! What every result keeps, whoever made it: a figure lies inside its interval and on the right side of its bound, shares lie between 0 and 1,
//! percentiles rise, lost time is no gain. A result that breaks one is a defect of the program, so a run says so and does not pass it off as an answer.

use std::collections::BTreeMap;

use engine::verdict::{Aim, Ended};

use crate::{PolicyResult, RunResult};

/// Metrics that are a part of a whole, by their beginning before a dot.
const SHARES: [&str; 30] = [
    "bound_from_start_ratio",
    "bound_ratio",
    "brought_ratio",
    "bubble_ratio",
    "busy_ratio",
    "comm_exposed_ratio",
    "encode_busy_ratio",
    "energy_borrowed_ratio",
    "frontend_busy_ratio",
    "feature_hit_ratio",
    "few_users_ratio",
    "hit_ratio",
    "kv_peak_ratio",
    "launch_wait_ratio",
    "link_busy_ratio",
    "lost_output_tokens_ratio",
    "offload_hidden_ratio",
    "outside_hull_ratio",
    "padding_ratio",
    "passed_over_ratio",
    "prefix_hit_ratio",
    "remote_ratio",
    "run_again_ratio",
    "run_checkpoint_ratio",
    "run_goodput_ratio",
    "run_restart_ratio",
    "run_waiting_ratio",
    "slo_attainment_ratio",
    "tool_hit_ratio",
    "user_hit_ratio",
];

/// Operations over those of the card's peak in 16 bits, which products of fewer bits pass.
const OPERATIONS: [&str; 2] = ["hfu_ratio", "mfu_ratio"];

/// Peak of any format over that of 16 bits, at most: four bits of a GB300 have six times as much.
const NARROW: f64 = 8.0;

/// Parts of a metric that rise in this order.
const RISING: [&str; 6] = ["min", "p50", "p90", "p95", "p99", "max"];

/// Metrics that are never below another one.
const BOUNDS: [(&str, &str); 2] =
    [("iteration_time_s", "iteration_time_bound_s"), ("peak_memory_bytes", "peak_memory_bound_bytes")];

/// Relative error of sums of many floats.
const ROUNDING: f64 = 1e-9;

/// Why a result has no figures: rows that could not be are another answer than rows that were stopped. `None` where a row has some.
pub fn without_figures(result: &RunResult) -> Option<String> {
    let n = |status: Ended| result.results.iter().filter(|row| row.status == status).count() as u64;
    if n(Ended::Ok) > 0 {
        return None;
    }
    if n(Ended::OutOfTime) + n(Ended::OutOfMemory) == 0 {
        return Some("no policy of the scenario was feasible".to_owned());
    }
    let ways = [
        (Ended::OutOfTime, "stopped before it had a result"),
        (Ended::OutOfMemory, "out of memory"),
        (Ended::Infeasible, "infeasible"),
    ];
    let ways = ways.into_iter().filter(|(status, _)| n(*status) > 0);
    let said: Vec<String> = ways.map(|(status, words)| format!("{} {words}", n(status))).collect();
    Some(format!("no policy of the scenario has a result: {}", said.join(", ")))
}

/// What a result breaks, a sentence each; none is usual.
pub fn faults(result: &RunResult) -> Vec<String> {
    result.results.iter().flat_map(of_row).collect()
}

fn of_row(row: &PolicyResult) -> Vec<String> {
    let mut found = outside(row);
    found.extend(no_shares(&row.metrics));
    found.extend(falling(&row.metrics));
    found.extend(gains(&row.metrics));
    found.extend(beyond(row));
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
    let most = |key: &str| {
        let base = key.split('.').next().unwrap_or(key);
        let is_share = SHARES.contains(&base).then_some(1.0);
        is_share.or_else(|| OPERATIONS.contains(&base).then_some(NARROW))
    };
    let is_wrong =
        |key: &str, value: f64| most(key).is_some_and(|most| !(-ROUNDING..=most + ROUNDING).contains(&value));
    let wrong = metrics.iter().filter(|(key, value)| is_wrong(key, **value));
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

/// Figures that are better than what nothing can beat.
fn beyond(row: &PolicyResult) -> Vec<String> {
    let metric = |key: &str| row.metrics.get(key).copied();
    let figures = BOUNDS.iter().filter_map(|(key, bound)| Some((*key, metric(key)?, metric(bound)?, Aim::Seconds)));
    let planned =
        row.planner.as_ref().and_then(|facts| Some(("the objective", facts.objective?, facts.bound?, facts.aim)));
    let wrong = figures.chain(planned).filter(|(_, figure, bound, aim)| aim.is_better(*figure, *bound));
    wrong.map(|(key, figure, bound, _)| format!("{key} = {figure} is better than its bound of {bound}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_stopped_are_not_called_infeasible() {
        let run = |ended: &[Ended]| RunResult {
            results: ended.iter().map(|&status| PolicyResult { status, ..PolicyResult::default() }).collect(),
            ..RunResult::default()
        };
        use Ended::{Infeasible, Ok, OutOfMemory, OutOfTime};
        let said = |ended: &[Ended]| without_figures(&run(ended)).unwrap_or_default();
        assert_eq!(said(&[OutOfTime, Ok]), "");
        assert_eq!(said(&[Infeasible, Infeasible]), "no policy of the scenario was feasible");
        let found = said(&[OutOfTime, OutOfMemory, OutOfTime]);
        assert_eq!(found, "no policy of the scenario has a result: 2 stopped before it had a result, 1 out of memory");
    }

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
        let metrics =
            [("ttft_s.p50", 1.0), ("ttft_s.p99", 2.0), ("busy_ratio", 1.0), ("lost_host_s", 0.0), ("mfu_ratio", 1.4)];
        assert!(of_row(&row(&metrics, &[("ttft_s.p99", [1.5, 2.0])])).is_empty());
    }

    #[test]
    fn an_objective_beyond_its_bound_is_told_whichever_way_is_better() {
        let planned = |aim, objective, bound| {
            let planner =
                crate::PlannerFacts { objective: Some(objective), aim, bound: Some(bound), ..Default::default() };
            of_row(&PolicyResult { planner: Some(planner), ..row(&[], &[]) }).len()
        };
        assert_eq!([planned(Aim::Facts, 3797.0, 3397.0), planned(Aim::Facts, 3397.0, 3797.0)], [1, 0]);
        assert_eq!([planned(Aim::Seconds, 1.0, 2.0), planned(Aim::Seconds, 2.0, 1.0)], [1, 0]);
    }

    #[test]
    fn every_rule_is_told_by_the_figure_that_breaks_it() {
        let cases: [Case<'_>; 6] = [
            (&[("mfu_ratio", 9.0)], &[], "no share"),
            (&[("ttft_s.p99", 2.1)], &[("ttft_s.p99", [1.5, 2.0])], "outside its interval"),
            (&[("kv_peak_ratio", 1.08)], &[], "no share"),
            (&[("tpot_s.p50", 3.0), ("tpot_s.p99", 2.0)], &[], "is above p99"),
            (&[("lost_other_s", -1.4e-7)], &[], "not below zero"),
            (&[("iteration_time_s", 0.9), ("iteration_time_bound_s", 1.0)], &[], "better than its bound"),
        ];
        for (metrics, interval, expected) in cases {
            let found = of_row(&row(metrics, interval));
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }
}
