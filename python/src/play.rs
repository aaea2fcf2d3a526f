//! Plans of others: what a policy is asked, and its answer checked and played as one of the table.

use planner::proof::Decision;
use planner::train::{dacp, orders};
use pyo3::prelude::*;
use scenario::Overrides;
use scenario::training::Scenario;
use serde_json::json;
use skrull_sim::kinds::training::run::{Decided, score};
use train::plan::{Plan, Step};

use crate::errors;
use crate::run::Asked;
use crate::working::work;

fn training(asked: Asked) -> PyResult<Scenario> {
    let found = asked.read()?;
    let wrong =
        || errors::wrong("the scenario is not of kind `training`, and policies of steps take no other".to_owned());
    let scenario = found.training().cloned().ok_or_else(wrong)?;
    if scenario.search.is_some() {
        return Err(errors::wrong(
            "a policy is asked with a given layout, and the scenario searches for one".to_owned(),
        ));
    }
    Ok(scenario)
}

/// What a policy is asked, as JSON: layout, room, and the lengths and operations of every step's sequences.
#[pyfunction]
pub fn batches(
    py: Python<'_>,
    name: String,
    text: Option<String>,
    set: Vec<String>,
    seed: Option<u64>,
) -> PyResult<String> {
    work(py, move || {
        let scenario = training(Asked { name, text, overrides: Overrides { set, seed, ..Overrides::default() } })?;
        let problem = &scenario.problem;
        let steps: Vec<_> = problem.workload.lengths.chunks(problem.workload.batch_size).collect();
        let flops: Vec<Vec<f64>> =
            steps.iter().map(|step| step.iter().map(|tokens| dacp::flops(&problem.model, *tokens)).collect()).collect();
        let layout = &problem.layout;
        Ok(json!({
            "layout": { "dp": layout.dp, "cp": layout.cp, "pp": layout.pp, "tp": layout.tp },
            "bucket_tokens": problem.bucket_tokens, "batch_size": problem.workload.batch_size,
            "steps": steps, "flops": flops,
        })
        .to_string())
    })?
}

/// Plays the steps of somebody's policy, as JSON of `plan.json`, and returns `result.json`; what the checker refuses is an error with its words.
#[pyfunction]
#[pyo3(signature = (name, text, set, seed, policy, steps))]
pub fn play(
    py: Python<'_>,
    name: String,
    text: Option<String>,
    set: Vec<String>,
    seed: Option<u64>,
    policy: String,
    steps: String,
) -> PyResult<String> {
    work(py, move || {
        let mut scenario = training(Asked { name, text, overrides: Overrides { set, seed, ..Overrides::default() } })?;
        let groups: Vec<Step> =
            serde_json::from_str(&steps).map_err(|error| errors::wrong(format!("no steps of a plan: {error}")))?;
        let cost = scenario.costs();
        let mut plan = Plan::new(&policy, &scenario.problem, groups);
        // The order of passes is not the policy's.
        orders::complete(&scenario.problem, &mut plan, cost.as_ref());
        train::check::check(&scenario.problem, &plan).map_err(|findings| {
            errors::wrong(format!("policy `{policy}` made a plan that the checker refuses: {}", findings.join("; ")))
        })?;
        scenario.head.baseline.clone_from(&policy);
        let decided = Decided { problem: scenario.problem.clone(), decision: Decision::plain(plan), found: None };
        let run = score(&scenario, decided);
        reports::json::render(&run.result).map_err(|error| errors::wrong(error.to_string()))
    })?
}
