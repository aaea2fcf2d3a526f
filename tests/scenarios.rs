//! Every scenario outside `scenarios/bad/` runs and meets its own expectations.

use skrull_sim::scenario::expect;
use skrull_sim::{diagnostic, pipeline};

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
        let run = pipeline::run(&scenario, &|_| {});
        let misses = expect::misses(&scenario.expectations, &run.result);
        assert!(misses.is_empty(), "{}:\n{}", path.display(), misses.join("\n"));
        assert!(run.result.results.iter().any(|row| row.status == "ok"), "{}", path.display());
    }
}
