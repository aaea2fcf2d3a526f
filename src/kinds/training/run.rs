//! From a checked scenario to a result: plan, check, lower, simulate, measure, for every policy in parallel.
//!
//! Results are collected by index, so the number of threads changes nothing outside `measured`.

use std::time::Instant;

use engine::cost::provenance::Grounds;
use engine::verdict::Refused;
use engine::{CostModel, Source};
use hw::topology::Topology;
use planner::PlanError;
pub use planner::train::chosen::Decided;
use planner::train::chosen::{self, layout_words, searched, simulate};
use planner::train::objective::Objective;
use rayon::prelude::*;
use reports::{Measured, PolicyResult, RunResult, gains, views};
use train::metrics::{self, Played, causes};
use train::problem::Problem;

use crate::kinds::{self, Kind, Planned, Run};
use scenario::Head;
use scenario::training::{PolicyChoice, Scenario};

impl Kind for Scenario {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.policies.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn draw(&self, done: &(dyn Fn(&str) + Sync)) -> Run {
        run(self, done)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, Refused>> {
        let choice = self.policies.iter().find(|known| known.name == choice)?;
        Some(planned(self, choice))
    }

    fn strict_hull(&self) -> Option<bool> {
        Some(self.strict_hull)
    }

    fn training(&self) -> Option<&Scenario> {
        Some(self)
    }
}

/// Decides with a policy: the plan with its scenario, so that a device needs no other file.
fn planned(scenario: &Scenario, choice: &PolicyChoice) -> Result<Planned, Refused> {
    let cost = scenario.costs();
    let topology = Topology::of(&scenario.problem.cluster);
    let Decided { mut decision, found, .. } = decide(scenario, choice, cost.as_ref(), &topology)?;
    decision.plan.origin = Some(scenario.head.origin.clone());
    let file = serde_json::to_string_pretty(&decision.plan).expect("a plan is a text");
    let how = format!("{} steps by `{}` ({})", decision.plan.steps.len(), choice.name, decision.status.name());
    let words = found.as_ref().map(|found| searched(&scenario.problem, found)).unwrap_or_default();
    Ok(Planned { file: Some(file), words, how: Some(how), ..Planned::default() })
}

/// Runs every policy of a scenario; `done` is called as each finishes.
pub fn run(scenario: &Scenario, done: &(dyn Fn(&str) + Sync)) -> Run {
    let cost = scenario.costs();
    let topology = Topology::of(&scenario.problem.cluster);
    let row = |choice: &PolicyChoice| policy(scenario, choice, cost.as_ref(), &topology);
    of_rows(scenario, kinds::rows(&scenario.policies, |choice| &choice.name, done, row, Row::without))
}

/// Scores a plan that was made before like one of a policy; the checker has let it pass.
pub fn score(scenario: &Scenario, decided: Decided) -> Run {
    let cost = scenario.costs();
    let topology = Topology::of(&scenario.problem.cluster);
    let result = PolicyResult { policy: decided.decision.plan.policy.clone(), ..PolicyResult::default() };
    let row = judged(result, decided, 0.0, (cost.as_ref(), &topology), scenario);
    of_rows(scenario, vec![row])
}

fn of_rows(scenario: &Scenario, rows: Vec<Row>) -> Run {
    let profile = match scenario.problem.execution.unit_times {
        Some(_) => "units",
        None => kinds::profile_name(scenario.profile.as_ref()),
    };
    let mut grounds = Grounds::default();
    let (mut results, mut pictures) = (Vec::new(), Vec::new());
    for row in rows {
        grounds.join(&row.grounds);
        pictures.extend(row.pictures.into_iter().map(|(step, played)| (row.result.policy.clone(), step, played)));
        results.push(row.result);
    }
    if scenario.profile.is_none() {
        grounds.source = Source::Datasheet;
    }
    let facts = kinds::grounded(profile, &grounds, &scenario.free_parameters);
    let is_given = scenario.problem.execution.unit_times.is_some();
    let facts = if is_given { facts.given() } else { facts };
    let is_by_cost = scenario.objective == Objective::Usd;
    let priced = results.iter_mut().filter(|_| is_by_cost);
    priced.for_each(|row| row.metrics.extend(chosen::tokens_per_usd(&row.metrics)));
    let columns = views::columns(views::of_steps(scenario.long_run.is_some(), is_by_cost));
    let speedup_ratio = match scenario.compared_by() {
        Some(key) => gains::of_metric(&results, &scenario.head.baseline, key),
        None => gains::of_least(&results, &scenario.head.baseline, "iteration_time_s"),
    };
    let result = RunResult { cost_model: facts, columns, results, speedup_ratio, ..kinds::blank(&scenario.head) };
    let batch_size = scenario.problem.workload.batch_size;
    Run {
        result,
        pictures,
        curves: Vec::new(),
        lengths: scenario.problem.workload.lengths[..batch_size].to_vec(),
        device_memory_bytes: scenario.problem.cluster.gpu.memory.0,
    }
}

struct Row {
    result: PolicyResult,
    pictures: Vec<(Option<usize>, Played)>,
    grounds: Grounds,
}

impl Row {
    fn failed(result: PolicyResult, refused: impl Into<Refused>) -> Self {
        let Refused { ended, why } = refused.into();
        Self::without(PolicyResult { status: ended, why, ..result })
    }

    /// Of a policy whose step was not played.
    fn without(result: PolicyResult) -> Self {
        Self { result, pictures: Vec::new(), grounds: Grounds::default() }
    }
}

/// Decides with a policy of a scenario; searches for the layout where the scenario asks for it.
///
/// # Errors
/// When the policy has no plan.
pub fn decide(
    scenario: &Scenario,
    choice: &PolicyChoice,
    cost: &dyn CostModel,
    topology: &Topology,
) -> Result<Decided, PlanError> {
    let asked = (&scenario.problem, scenario.search.as_ref());
    chosen::decide(asked, choice, (cost, topology), &|n, job| (0..n).into_par_iter().with_max_len(1).for_each(job))
}

/// Steps that are drawn: each where GPUs slow down and recover, as each is another one then; else the first.
fn drawn(problem: &Problem, steps: Vec<Played>) -> Vec<(Option<usize>, Played)> {
    let is_one = problem.execution.stragglers.is_empty();
    let n = if is_one { 1 } else { steps.len() };
    steps.into_iter().take(n).enumerate().map(|(number, step)| ((!is_one).then_some(number), step)).collect()
}

fn policy(scenario: &Scenario, choice: &PolicyChoice, cost: &dyn CostModel, topology: &Topology) -> Row {
    let begun = Instant::now();
    let result = PolicyResult { policy: choice.name.clone(), ..PolicyResult::default() };
    match decide(scenario, choice, cost, topology) {
        Ok(decided) => judged(result, decided, begun.elapsed().as_secs_f64(), (cost, topology), scenario),
        Err(why) => Row::failed(result, why),
    }
}

/// Plays what was decided.
fn judged(
    mut result: PolicyResult,
    decided: Decided,
    planner_wall_s: f64,
    (cost, topology): (&dyn CostModel, &Topology),
    scenario: &Scenario,
) -> Row {
    let Decided { problem, decision, found } = decided;
    result.planner = Some(kinds::facts(&decision));
    result.chosen = chosen::fields(&problem, found.as_ref());
    let begun = Instant::now();
    let simulated = simulate(&problem, &decision, cost, &Topology::of(&problem.cluster));
    result.measured = Measured { planner_wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() };
    let (steps, [low, high]) = match simulated {
        Ok(simulated) => simulated,
        Err(refused) => return Row::failed(result, refused),
    };
    let metrics = metrics::of_steps(&problem, &steps, cost);
    result.status = reports::Ended::Ok;
    result.why = found.iter().map(|found| layout_words(&problem, found) + "; ").chain([metrics.why.clone()]).collect();
    let interval = metrics.parts.interval_of(&problem, [low, metrics.step_s(), high]);
    result.metrics = metrics.values.clone();
    let tokens_max = problem.bucket_tokens.max(causes::tokens_max(&decision.plan));
    if let Some(run) = &scenario.long_run {
        let planned = (&problem, &decision.plan, metrics.step_s());
        let lasted = match chosen::lasted(run, &scenario.policies, planned, (cost, topology)) {
            Ok(lasted) => lasted,
            Err(why) => return Row::failed(result, why),
        };
        result.interval.extend(lasted.intervals(metrics.step_s(), interval));
        result.metrics.extend(lasted.values);
        result.why = format!("{}; {}", result.why, lasted.why);
    }
    result.metrics.extend(causes::of_steps(&problem, &decision.plan, &steps, tokens_max, cost).figures());
    result.interval.extend(metrics::follow_from(metrics.step_s(), interval, &result.metrics));
    Row { result, pictures: drawn(&problem, steps), grounds: Grounds::of(metrics.source, metrics.provenance) }
}
