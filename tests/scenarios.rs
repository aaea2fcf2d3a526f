//! Every scenario outside `scenarios/bad/` runs, meets its own expectations, and takes no less than its lower bound.

use std::collections::BTreeMap;

use input::diagnostic;
use reports::{expect, metrics};

/// The one scenario that states the rates of its configurations, of which no cost is known.
const RATES_ARE_GIVEN: &str = "cloud/milp-example.toml";

#[test]
fn every_scenario_runs_and_meets_its_expectations() {
    let bad = super::root().join("scenarios/bad");
    for path in super::files(&super::root().join("scenarios"), "toml") {
        if path.starts_with(&bad) {
            continue;
        }
        let checked = super::check(&path);
        let messages = diagnostic::render(&checked.source, &checked.findings);
        let scenario = checked.scenario.unwrap_or_else(|| panic!("{messages}"));
        let result = scenario.run(&|_| {});
        let misses = expect::misses(&scenario.head().expectations, &result);
        assert!(misses.is_empty(), "{}:\n{}", path.display(), misses.join("\n"));
        let bare = result.results.iter().find(|row| row.status.is_ok() && row.interval.is_empty());
        assert!(bare.is_none() || path.ends_with(RATES_ARE_GIVEN), "{}: {bare:?} has no interval", path.display());
        let unexplained = unexplained(&result);
        assert!(unexplained.is_empty(), "{}: `reports/src/metrics.toml` lacks {unexplained:?}", path.display());
        let faults = reports::sound::faults(&result);
        assert!(faults.is_empty(), "{}:\n{}", path.display(), faults.join("\n"));
        if scenario.training().is_none() {
            continue;
        }
        assert!(result.results.iter().any(|row| row.status.is_ok()), "{}", path.display());
        for row in result.results.iter().filter(|row| row.status.is_ok()) {
            lost_time_adds_up(&row.metrics, &format!("{}: {}", path.display(), row.policy));
        }
    }
}

/// Metrics of a result, and figures of its planners, that have no row in the table.
fn unexplained(result: &reports::RunResult) -> Vec<&String> {
    let metrics = result.results.iter().flat_map(|row| row.metrics.keys()).map(|key| (result.kind.as_str(), key));
    let planners = result.results.iter().filter_map(|row| row.planner.as_ref());
    let figures = planners.flat_map(|facts| facts.figures.keys()).map(|key| (metrics::PLANNER, key));
    metrics.chain(figures).filter(|(kind, key)| !metrics::is_known(kind, key)).map(|(_, key)| key).collect()
}

/// No step is shorter than its bound, and the causes of lost time add up to the difference without a rest.
fn lost_time_adds_up(metrics: &BTreeMap<String, f64>, at: &str) {
    let (step_s, bound_s) = (metrics["iteration_time_s"], metrics["iteration_time_bound_s"]);
    assert!(bound_s <= step_s, "{at}: bound {bound_s}, step {step_s}");
    let lost: Vec<(&String, &f64)> = metrics.iter().filter(|(key, _)| key.starts_with("lost_")).collect();
    let sum: f64 = lost.iter().map(|(_, seconds)| **seconds).sum();
    assert!((sum - (step_s - bound_s)).abs() < 1e-6 * step_s, "{at}: {sum} of {}", step_s - bound_s);
    assert!(lost.iter().all(|(_, seconds)| **seconds > 0.0), "{at}: {lost:?}");
    assert!(!metrics.contains_key("lost_other_s"), "{at}: {lost:?}");
}
