//! Fleets that are planned while they serve, through the shell: closed forms under constant load, bounds, hindsight, and messages about input.

use input::diagnostic;
use reports::{PolicyResult, RunResult};
use scenario::{self, Overrides};
use skrull_sim::kinds;

fn checked(set: &[&str]) -> kinds::Checked {
    super::checked("serving/sla-planner", set)
}

fn run(set: &[&str]) -> RunResult {
    let checked = checked(set);
    let text = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{text}")).run(&|_| {})
}

fn row<'r>(result: &'r RunResult, policy: &str) -> &'r PolicyResult {
    result.results.iter().find(|row| row.policy == policy).expect("a row")
}

/// Half an hour at one rate.
const CONSTANT: [&str; 2] = ["trace.schedule=[{from_s=0,rate_per_s=12.0}]", "trace.requests=21600"];

#[test]
fn every_way_has_a_bound_a_gap_a_limit_and_a_runner_up() {
    for set in [&["trace.requests=12000"][..], &["trace.requests=30000", "engine.max_tokens=512"]] {
        let result = run(set);
        assert_eq!(result.results.len(), 8);
        for row in &result.results {
            let (name, figure) = (&row.policy, |key: &str| row.metrics[key]);
            assert_eq!(figure("n_refused"), 0.0, "{name}");
            assert!(
                figure("cost_bound_usd") > 0.0 && figure("cost_bound_usd") <= figure("cost_usd"),
                "{name}: {row:?}"
            );
            let gap = 1.0 - figure("cost_bound_usd") / figure("cost_usd");
            assert!((figure("cost_gap_ratio") - gap).abs() < 1e-9, "{name}");
            let served = figure("slo_attainment_ratio") * figure("n_requests");
            assert!((figure("cost_usd_per_mreq_met") * served / 1e6 - figure("cost_usd")).abs() < 1e-9, "{name}");
            let notes = row.planner.as_ref().expect("facts").notes.join("; ");
            for words in ["what holds it back: ", "runner-up", "at the least times of tokens"] {
                assert!(notes.contains(words), "{name} says nothing of {words}: {notes}");
            }
        }
        // Those who know what comes pay least of all that keep the limits as well.
        let hindsight = row(&result, "hindsight");
        for other in result.results.iter().filter(|row| row.policy != "hindsight") {
            let meets = other.metrics["slo_attainment_ratio"] >= hindsight.metrics["slo_attainment_ratio"];
            assert!(!meets || other.metrics["cost_usd"] > hindsight.metrics["cost_usd"], "{}", other.policy);
        }
    }
}

#[test]
fn under_constant_load_hindsight_and_planner_have_the_same_replicas_all_the_time() {
    let result = run(&CONSTANT);
    let hours = |policy: &str| row(&result, policy).metrics["replica_hours"];
    let makespan_h = |policy: &str| row(&result, policy).metrics["makespan_s"] / 3600.0;
    // Poisson counts of a minute vary by 4 %, so that hindsight may have one more in some minutes.
    let mean = hours("hindsight") / makespan_h("hindsight");
    assert!((1.0..3.0).contains(&mean) && (mean - mean.round()).abs() < 0.35, "{mean} replicas");
    let figures = |policy: &str| &row(&result, policy).metrics;
    assert!(figures("sla-tight")["slo_attainment_ratio"] > 0.99, "{:?}", figures("sla-tight"));
    // Once it has settled, the planner changes little: the load is the same, and only its draws differ.
    let changes = figures("sla-tight")["n_started"] + figures("sla-tight")["n_stopped"];
    assert!(changes <= 12.0, "{changes} changes in 29 decisions");
}

#[test]
fn the_same_seed_gives_the_same_bill_and_other_seeds_another() {
    let of = |seed: u64| {
        let (source, folder) = scenario::find("serving/sla-planner").expect("shipped");
        let set = vec!["trace.requests=4000".to_owned(), "policies.run=['fixed-peak','sla-kalman']".to_owned()];
        let overrides = Overrides { set, seed: Some(seed), ..Overrides::default() };
        let result = kinds::check(source, &folder, &overrides).scenario.expect("a good scenario").run(&|_| {});
        result.results.iter().map(|row| row.metrics["cost_usd"].to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn planners_count_the_tokens_that_drafts_give_and_nobody_is_below_the_bound() {
    let of = |acceptance: &str| {
        let drafts = format!("engine.speculation={{draft_tokens=3,acceptance={acceptance},draft_us_per_token=500}}");
        run(&["trace.requests=12000", "engine.max_tokens=4096", &drafts])
    };
    let results = ["0.0", "0.6", "1.0"].map(of);
    for result in &results {
        for row in &result.results {
            let figure = |key: &str| row.metrics[key];
            let (least, paid) = (figure("cost_bound_usd"), figure("cost_usd"));
            assert!(least > 0.0 && least <= paid, "{}: {least} and {paid}", row.policy);
        }
    }
    let hours = results.each_ref().map(|result| row(result, "hindsight").metrics["replica_hours"]);
    assert!(hours[0] > hours[1] && hours[1] > hours[2], "accepted drafts save replicas: {hours:?}");
}

#[test]
fn what_does_not_fit_a_planner_is_named() {
    let sla = "scaling={rule='sla',start_up_s=1}";
    let group = |name: &str, role: &str, scaling: &str| {
        format!("{{name='{name}',gpu='h100-sxm',replicas=2,role='{role}',{scaling}}}")
    };
    let fleet = |groups: &[String]| format!("fleet={{group=[{}]}}", groups.join(","));
    let one = "policies={run=['vllm-v1']}";
    let pair =
        fleet(&[group("p", "prefill", sla), group("d", "decode", "scaling={rule='sla',start_up_s=1,interval_s=60}")]);
    let half = fleet(&[group("a", "both", sla), group("b", "both", "tp=1")]);
    for (set, expected) in [
        (vec![half.as_str(), one], "a planner decides for one group of both roles"),
        (vec![pair.as_str(), one], "prefill and decode are planned together"),
        (vec!["slo={ttft_s=1.0}"], "a planner has no target between tokens"),
        (vec!["fleet.group.sla.scaling.forecast='kalmann'"], "did you mean `kalman`?"),
        (vec!["fleet.group.sla.scaling.rule='slo'"], "did you mean `sla`?"),
        (vec!["fleet.group.sla.scaling.target=3"], "unknown key `fleet.group.scaling.target`"),
        (vec!["fleet.group.sla.scaling.forecast='seasonal'"], "`fleet.group.scaling.forecast_intervals` is missing"),
        (vec!["fleet.group.slo.replicas=3"], "no table of that list has that name"),
        (vec!["fleet.group.peak.replicas=0"], "no group of `fixed-peak` has a replica"),
    ] {
        let checked = checked(&set);
        assert!(checked.scenario.is_none(), "{set:?} was accepted");
        let text = diagnostic::render(&checked.source, &checked.findings);
        assert!(text.contains(expected), "{set:?}:\n{text}");
    }
}
