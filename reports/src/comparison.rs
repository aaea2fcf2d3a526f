//! Policies side by side over seeded batches: means, paired ratios to a baseline with their 95 % interval.
//!
//! A pair is one batch under two policies (or one policy in two results), so that what differs between batches cancels. The
//! interval is Student's t over the pairs' ratios; one pair has none. Ratios are candidate over baseline: for a time,
//! below 1 is better. Which metrics a scenario shows, and which way is better, its results say themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::junit::Case;
use crate::serving::Counted;
use crate::view::{self, View};
use crate::{Column, Ended, PolicyResult, RunResult};

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

    /// The interval at another confidence, of `n` values; none of one value.
    pub fn at(&self, confidence: f64, n: usize) -> Option<[f64; 2]> {
        let half = self.high? - self.mean;
        let freedom = crate::quantity::float(n as u64) - 1.0;
        let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
        let half = half / student.inverse_cdf(QUANTILE) * student.inverse_cdf(0.5 + confidence / 2.0);
        Some([self.mean - half, self.mean + half])
    }
}

/// One policy of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Scenario.
    pub scenario: String,
    /// Policy; with the result that it is from, where results are compared.
    pub policy: String,
    /// Keys that were laid over the scenario, the varied ones among them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Whether ratios are relative to this one.
    pub is_baseline: bool,
    /// Batches that it planned and finished.
    pub n_ok: usize,
    /// Batches that ran out of time.
    #[serde(default, skip_serializing_if = "is_none")]
    pub n_out_of_time: usize,
    /// Why the others failed, first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Every metric over its batches.
    pub metrics: BTreeMap<String, Spread>,
    /// Paired ratios to the baseline, by metric.
    pub ratio: BTreeMap<String, Spread>,
}

/// Whether a count is of nothing.
const fn is_none(n: &usize) -> bool {
    *n == 0
}

/// What the table shows of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Scenario.
    pub scenario: String,
    /// Metrics, the one that counts first.
    pub columns: Vec<Column>,
    /// Whether more of the first is better.
    pub more_is_better: bool,
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
    /// What is shown of every scenario.
    #[serde(default)]
    pub shown: Vec<Shown>,
    /// What was held against gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Case>,
}

impl Comparison {
    /// What the table shows of a scenario.
    pub fn shown(&self, scenario: &str) -> Shown {
        let found = self.shown.iter().find(|shown| shown.scenario == scenario).cloned();
        let steps = || Shown { scenario: scenario.to_owned(), columns: of_training(), more_is_better: false };
        found.unwrap_or_else(steps)
    }

    /// Why it is not what was asked: it was stopped and has not all batches, or no policy has a result on any. Nothing where it is.
    pub fn unfinished(&self, is_stopped: bool) -> Option<String> {
        let sum = |of: fn(&Entry) -> usize| self.entries.iter().map(of).sum::<usize>();
        let (n_ok, n_late) = (sum(|entry| entry.n_ok), sum(|entry| entry.n_out_of_time));
        if is_stopped && n_late > 0 {
            let rest = if n_ok == 0 { "nothing was compared" } else { "the figures are of the others" };
            return Some(format!("stopped: {n_late} runs of a policy on a batch have no result; {rest}"));
        }
        let why = self.entries.iter().find_map(|entry| entry.failure.as_deref()).unwrap_or("nothing ran");
        (n_ok == 0).then(|| format!("no policy has a result: {why}"))
    }
}

fn columns(of: &[(&str, &str)]) -> Vec<Column> {
    of.iter().map(|(key, heading)| Column { key: (*key).to_owned(), heading: (*heading).to_owned() }).collect()
}

fn of_training() -> Vec<Column> {
    columns(&[("iteration_time_s", "step"), ("bound_gap_ratio", "gap to bound"), ("mfu_ratio", "MFU")])
}

/// Metrics that a result shows, the one that counts first.
fn columns_of(run: &RunResult) -> Vec<Column> {
    match view::of(run) {
        View::Columns => return run.columns.clone(),
        View::Steps => return of_training(),
        View::Requests => {}
    }
    let is_within = |result: &PolicyResult| Counted::of(result).is_some_and(|(of, _)| of == Counted::WithinLimits);
    let has_limits = run.results.iter().any(is_within);
    let latencies = [("ttft_s.p99", "TTFT p99"), ("tpot_s.p99", "TPOT p99")];
    if has_limits {
        let figures = [("goodput_requests_per_s", "goodput/s"), ("slo_attainment_ratio", "in limits")];
        return columns(&[figures.as_slice(), &latencies].concat());
    }
    columns(&[[("requests_per_s", "requests/s")].as_slice(), &latencies].concat())
}

/// Whether more of a metric is better, by the speed-ups that results state; by its unit where all are equal.
fn more_is_better(runs: &[&RunResult], key: &str) -> bool {
    for run in runs {
        let metric = |policy: &str| {
            let found = run.results.iter().find(|result| result.policy == policy);
            found.and_then(|result| result.metrics.get(key).copied())
        };
        for (policy, speedup) in &run.speedup_ratio {
            let Some(ratio) = metric(policy).zip(metric(&run.baseline)).map(|(value, base)| value / base) else {
                continue;
            };
            let (as_is, inverted) = ((speedup - ratio).abs(), (speedup - 1.0 / ratio).abs());
            if as_is.is_finite() && inverted.is_finite() && (as_is - inverted).abs() > 1e-9 {
                return as_is < inverted;
            }
        }
    }
    let key = key.split('.').next().unwrap_or(key);
    let is_drawn = key.starts_with("energy_") || key.ends_with("_power_w");
    key.contains("_per_s") || !(is_drawn || key.ends_with("_s") || key.contains("usd") || key.ends_with("_bytes"))
}

/// Metrics of a policy by batch (seed), and failures.
#[derive(Default)]
struct Batches<'a> {
    ok: BTreeMap<u64, &'a BTreeMap<String, f64>>,
    n_out_of_time: usize,
    failure: Option<String>,
    set: BTreeMap<String, String>,
}

/// Name of the table in which scenarios stand side by side.
const SIDE_BY_SIDE: &str = "side by side";

/// Whether scenarios stand side by side, and what is compared: several of one kind with one policy each themselves, else their policies. Given are label, kind
/// and policies of each.
pub fn rows<'a>(scenarios: &[(&'a str, &'a str, Vec<&'a str>)]) -> (bool, Vec<&'a str>) {
    let labels: BTreeSet<&str> = scenarios.iter().map(|(label, ..)| *label).collect();
    let kinds: BTreeSet<&str> = scenarios.iter().map(|(_, kind, _)| *kind).collect();
    let are_plain = scenarios.iter().all(|(.., policies)| policies.len() == 1);
    let is_beside = labels.len() > 1 && kinds.len() == 1 && are_plain;
    let policies = || scenarios.iter().flat_map(|(.., policies)| policies.iter().copied()).collect();
    (is_beside, if is_beside { labels.into_iter().collect() } else { policies() })
}

/// Scenarios that were each run with several seeds: side by side, or policy by policy.
pub fn of_scenarios(runs: Vec<RunResult>, is_beside: bool, baseline: Option<&str>) -> Comparison {
    let runs = if is_beside { side_by_side(runs) } else { runs };
    within(&runs, baseline)
}

/// Runs of scenarios with one policy each as runs of one whose policies are the scenarios: the first is the baseline.
fn side_by_side(mut runs: Vec<RunResult>) -> Vec<RunResult> {
    let first = runs.first().map(|run| run.scenario.clone()).unwrap_or_default();
    for run in &mut runs {
        let label = std::mem::replace(&mut run.scenario, SIDE_BY_SIDE.to_owned());
        run.results.iter_mut().for_each(|row| row.policy.clone_from(&label));
        run.baseline.clone_from(&first);
        run.speedup_ratio.clear();
    }
    runs
}

/// Policies of scenarios that were each run with several seeds, against a policy of the same scenario.
pub fn within(runs: &[RunResult], baseline: Option<&str>) -> Comparison {
    let labelled: Vec<(&RunResult, String)> = runs.iter().map(|run| (run, String::new())).collect();
    compare(&labelled, |run, policy| {
        let name = baseline.unwrap_or(&run.baseline);
        let is_row = |name: &str| run.results.iter().any(|row| row.policy == name);
        // Rows of several budgets or deadlines are named `policy@limit`, and pair within a limit.
        let at_limit = policy.rsplit_once('@').map(|(_, limit)| format!("{name}@{limit}"));
        at_limit.filter(|at_limit| !is_row(name) && is_row(at_limit)).unwrap_or_else(|| name.to_owned())
    })
}

/// Why results have nothing to do with the first one; nothing where all have.
pub fn unrelated(runs: &[(String, RunResult)]) -> Option<String> {
    let ((first, base), others) = runs.split_first()?;
    others.iter().find_map(|(path, run)| {
        let policies = |run: &RunResult| run.results.iter().map(|row| row.policy.clone()).collect::<BTreeSet<_>>();
        let why = match () {
            () if run.kind != base.kind => format!("its kind is `{}`, not `{}`", run.kind, base.kind),
            () if run.scenario != base.scenario => {
                format!("its scenario is `{}`, not `{}`", run.scenario, base.scenario)
            }
            () if run.seed != base.seed => format!("its batch is that of seed {}, not of {}", run.seed, base.seed),
            () if policies(run).is_disjoint(&policies(base)) => "they have no policy in common".to_owned(),
            () => return None,
        };
        Some(format!("`{path}` and `{first}` are of different things: {why}"))
    })
}

/// Policies of several results against the same policy in the first one.
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
            let keys = run.origin.set.iter().filter_map(|set| set.split_once('='));
            batches.set.extend(keys.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())));
            if result.status.is_ok() {
                batches.ok.insert(run.seed, &result.metrics);
            } else {
                batches.n_out_of_time += usize::from(result.status == Ended::OutOfTime);
                batches.failure.get_or_insert_with(|| format!("{}: {}", result.status, result.why));
            }
        }
    }
    let entry = |(scenario, policy, baseline): &(&str, String, String)| {
        let batches = &rows[&(*scenario, policy.clone())];
        let base = rows.get(&(*scenario, baseline.clone()));
        Entry {
            scenario: (*scenario).to_owned(),
            set: batches.set.clone(),
            is_baseline: policy == baseline,
            n_ok: batches.ok.len(),
            n_out_of_time: batches.n_out_of_time,
            failure: batches.failure.clone(),
            metrics: spreads(batches, |metric, metrics, _| metrics.get(metric).copied()),
            ratio: spreads(batches, |metric, metrics, seed| {
                let base = base?.ok.get(&seed)?.get(metric)?;
                let own = metrics.get(metric)?;
                // Nothing over nothing is as much.
                let ratio = if own == base { 1.0 } else { own / base };
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
    let shown = |scenario: &String| {
        let runs: Vec<&RunResult> = runs.iter().map(|(run, _)| *run).filter(|run| run.scenario == *scenario).collect();
        // A scenario where everything failed in one batch may show more in another.
        let columns = runs.iter().map(|run| columns_of(run)).max_by_key(Vec::len).unwrap_or_default();
        let more_is_better = columns.first().is_some_and(|first| more_is_better(&runs, &first.key));
        Shown { scenario: scenario.clone(), columns, more_is_better }
    };
    let shown = scenarios.iter().map(shown).collect();
    Comparison { schema: SCHEMA.to_owned(), version, entries, shown, gates: Vec::new() }
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
            status: crate::Ended::Ok,
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
    fn rows_of_several_limits_pair_within_a_limit() {
        let found = within(&[run(0, &[("a@1", 4.0), ("b@1", 2.0), ("a@2", 0.0), ("b@2", 0.0)])], None);
        let ratio = |policy: &str| {
            let entry = found.entries.iter().find(|entry| entry.policy == policy).expect("a row");
            (entry.is_baseline, entry.ratio["iteration_time_s"].mean)
        };
        assert_eq!(["a@1", "b@1", "a@2", "b@2"].map(ratio), [(true, 1.0), (false, 0.5), (true, 1.0), (false, 1.0)]);
    }

    #[test]
    fn scenarios_of_one_policy_each_are_what_is_compared() {
        let row = |label, kind, n| (label, kind, ["p", "q"][..n].to_vec());
        assert_eq!(rows(&[row("b", "training", 1), row("a", "training", 1)]), (true, vec!["a", "b"]));
        assert_eq!(
            rows(&[row("a", "training", 1), row("a", "training", 1)]),
            (false, vec!["p", "p"]),
            "nothing beside"
        );
        assert_eq!(rows(&[row("a", "training", 1), row("b", "training", 2)]), (false, vec!["p", "p", "q"]));
        assert_eq!(rows(&[row("a", "training", 1), row("b", "serving", 1)]), (false, vec!["p", "p"]), "another kind");
        let of = |label: &str, seed, time| RunResult { scenario: label.to_owned(), ..run(seed, &[("a", time)]) };
        let found =
            within(&side_by_side(vec![of("x", 0, 4.0), of("x", 1, 8.0), of("y", 0, 2.0), of("y", 1, 4.0)]), None);
        let rows: Vec<(&str, bool, f64)> = found
            .entries
            .iter()
            .map(|entry| (entry.policy.as_str(), entry.is_baseline, entry.ratio["iteration_time_s"].mean))
            .collect();
        assert_eq!(rows, [("x", true, 1.0), ("y", false, 0.5)]);
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
    fn a_wider_interval_is_asked_for_by_its_confidence() {
        // Two degrees of freedom: t is 4.303 at 95 % and 9.925 at 99 %; values 1, 2, 3 as above.
        let spread = Spread::of(&[1.0, 2.0, 3.0]).expect("three values");
        let [_, high] = spread.at(0.99, 3).expect("an interval");
        assert!((high - 2.0 - 9.925 / 3.0_f64.sqrt()).abs() < 0.001, "{high}");
        assert_eq!(Spread::of(&[1.0]).expect("one").at(0.99, 1), None);
    }

    #[test]
    fn results_of_other_scenarios_are_unrelated() {
        let named = |scenario: &str, policy: &str| {
            let run = RunResult { scenario: scenario.to_owned(), ..run(0, &[(policy, 1.0)]) };
            (scenario.to_owned(), run)
        };
        assert_eq!(unrelated(&[named("s", "a"), named("s", "a")]), None);
        assert!(unrelated(&[named("s", "a"), named("t", "a")]).is_some_and(|why| why.contains("its scenario is `t`")));
        assert!(unrelated(&[named("s", "a"), named("s", "b")]).is_some_and(|why| why.contains("no policy")));
        let (path, run) = named("s", "a");
        let other = (path, RunResult { seed: 7, ..run });
        assert!(unrelated(&[named("s", "a"), other]).is_some_and(|why| why.contains("seed 7, not of")));
    }

    #[test]
    fn a_result_says_what_counts_and_which_way_is_better() {
        let steps = within(&[run(0, &[("a", 2.0), ("b", 1.0)])], None);
        assert_eq!(
            (steps.shown[0].columns[0].key.as_str(), steps.shown[0].more_is_better),
            ("iteration_time_s", false)
        );
        // A kind of its own: half as many hops, and twice the speed-up because fewer are better.
        let mut own = run(0, &[("a", 0.0), ("b", 0.0)]);
        own.columns = columns(&[("hops", "hops")]);
        for (result, hops) in own.results.iter_mut().zip([8.0, 4.0]) {
            result.metrics.insert("hops".to_owned(), hops);
        }
        for (speedup, more) in [(2.0, false), (0.5, true)] {
            own.speedup_ratio = [("a".to_owned(), 1.0), ("b".to_owned(), speedup)].into();
            let found = within(&[own.clone()], None);
            assert_eq!((found.shown[0].columns.clone(), found.shown[0].more_is_better), (own.columns.clone(), more));
            assert_eq!(found.entries[1].ratio["hops"].mean, 0.5);
        }
    }

    #[test]
    fn what_was_stopped_or_has_no_result_is_not_what_was_asked() {
        let late = |seed, ended| {
            let mut run = run(seed, &[("a", 1.0), ("b", 1.0)]);
            run.results[1] = PolicyResult { policy: "b".to_owned(), status: ended, ..PolicyResult::default() };
            run
        };
        let found = within(&[late(0, Ended::OutOfTime), run(1, &[("a", 1.0), ("b", 1.0)])], None);
        assert_eq!(found.entries.iter().map(|entry| entry.n_out_of_time).collect::<Vec<_>>(), [0, 1]);
        let stopped = found.unfinished(true).expect("a batch is missing");
        assert!(stopped.contains("1 runs of a policy") && stopped.contains("of the others"), "{stopped}");
        assert_eq!(found.unfinished(false), None, "a policy's own budget is no stop");
        assert_eq!(within(&[late(0, Ended::Infeasible)], None).unfinished(true), None, "the other policy has a result");
        let mut nothing = late(0, Ended::Infeasible);
        nothing.results.remove(0);
        assert!(within(&[nothing], None).unfinished(false).is_some_and(|why| why.contains("no policy has a result")));
    }

    #[test]
    fn results_are_paired_by_policy() {
        let runs = [("old".to_owned(), run(0, &[("a", 2.0)])), ("new".to_owned(), run(0, &[("a", 1.0)]))];
        let found = across(&runs);
        assert_eq!(found.entries[0].policy, "a (old)");
        assert_eq!(found.entries[1].ratio["iteration_time_s"].mean, 0.5);
    }
}
