//! From a checked scenario of phases to a result: plan, then play the plan request by request and look for the largest rate that still meets
//! the targets.

use std::collections::BTreeMap;
use std::time::Instant;

use planner::rental::RentalError;
use planner::rental::thunderserve::replay::{Fleet, goodput};
use planner::rental::thunderserve::{self, Phase, PlayedBest, Replica, Stage, Task, colocated};
use reports::{CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};

use super::Job;
use crate::scenario::expect::Expectation;
use crate::scenario::phases::{METHODS, Method, PhasesChoice, PhasesScenario};

impl Job for PhasesScenario {
    fn name(&self) -> &str {
        &self.name
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn expectations(&self) -> &[Expectation] {
        &self.expectations
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        run(self, done)
    }
}

/// What the table shows.
const COLUMNS: [(&str, &str); 6] = [
    ("goodput_requests_per_s", "goodput req/s"),
    ("planned_requests_per_s", "planned req/s"),
    ("tokens_per_s", "tokens/s"),
    ("ttft_s", "TTFT"),
    ("tpot_s", "TPOT"),
    ("n_prefill_gpus", "prefill GPUs"),
];

fn run(scenario: &PhasesScenario, done: &(dyn Fn(&str) + Sync)) -> RunResult {
    let results = super::rows(&scenario.choices, |choice| &choice.name, done, |choice| policy(scenario, choice));
    let worth = |row: &PolicyResult| row.metrics.get(COLUMNS[0].0).copied();
    let speedup_ratio = super::gains(&results, &scenario.baseline, worth);
    RunResult {
        cost_model: CostModelFacts {
            profile: "roofline of a stage".to_owned(),
            source: "datasheet".to_owned(),
            free_parameters: scenario.free_parameters.clone(),
            ..CostModelFacts::default()
        },
        columns: super::columns(&COLUMNS),
        results,
        speedup_ratio,
        ..super::head(&scenario.name, scenario.seed, &scenario.baseline)
    }
}

/// What is played, and what is known of it.
struct Plan {
    fleet: Fleet,
    planned_per_s: f64,
    n_prefill_gpus: u32,
    n_decode_gpus: u32,
    facts: PlannerFacts,
    why: String,
    wall_s: f64,
}

fn policy(scenario: &PhasesScenario, choice: &PhasesChoice) -> PolicyResult {
    let begun = Instant::now();
    let plan = match planned(scenario, choice) {
        Ok(plan) => plan,
        Err(why) => {
            return PolicyResult {
                policy: choice.name.clone(),
                status: "infeasible".to_owned(),
                why: why.to_string(),
                measured: Measured { planner_wall_s: begun.elapsed().as_secs_f64(), simulate_wall_s: 0.0 },
                ..PolicyResult::default()
            };
        }
    };
    let begun = Instant::now();
    let (rate, played) = goodput(&choice.task, &plan.fleet, &scenario.requests, scenario.attainment_ratio);
    let metrics = BTreeMap::from(
        [
            ("goodput_requests_per_s", rate),
            ("planned_requests_per_s", plan.planned_per_s),
            ("planned_over_played_ratio", plan.planned_per_s / rate.max(1e-9)),
            ("tokens_per_s", played.tokens_per_s),
            ("attainment_ratio", played.attainment),
            ("ttft_s", played.ttft_s),
            ("tpot_s", played.tpot_s),
            ("n_prefill_gpus", f64::from(plan.n_prefill_gpus)),
            ("n_decode_gpus", f64::from(plan.n_decode_gpus)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    PolicyResult {
        policy: choice.name.clone(),
        status: "ok".to_owned(),
        why: plan.why,
        metrics,
        planner: Some(plan.facts),
        measured: Measured { planner_wall_s: plan.wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() },
        ..PolicyResult::default()
    }
}

fn planned(scenario: &PhasesScenario, choice: &PhasesChoice) -> Result<Plan, RentalError> {
    let task = &choice.task;
    let mut after = task.clone();
    let machines = after.pool.machines.iter_mut().zip(&choice.lost);
    machines.for_each(|(machine, lost)| machine.n_gpus = machine.n_gpus.saturating_sub(*lost));
    let begun = Instant::now();
    let wall_s = || begun.elapsed().as_secs_f64();
    // Fewer requests choose among plans than measure the chosen one.
    let (some, share) = (&scenario.requests[..scenario.requests.len().div_ceil(3)], scenario.attainment_ratio);
    let best = |task: &Task| thunderserve::plan_played(task, scenario.tabu, some, share);
    match choice.method {
        Method::Colocated => Ok(of_replicas(&after, &colocated::per_machine(&after)?, wall_s())),
        Method::HexGen => Ok(of_replicas(&after, &colocated::mixed(&after)?, wall_s())),
        Method::DistServe => {
            let found = thunderserve::within_machines(&after, scenario.tabu, some, share)?;
            Ok(of_deployments(&after, found, wall_s()))
        }
        Method::ThunderServe => Ok(of_deployments(&after, vec![best(&after)?], wall_s())),
        Method::Stale | Method::Flip => {
            let before = best(task)?;
            after.requests_per_s = before.planned_for_per_s;
            // Only what happens after the loss counts.
            let begun = Instant::now();
            let again = if choice.method == Method::Flip { thunderserve::replan } else { thunderserve::stale };
            let deployment = again(&after, &before.deployment)?;
            let wall_s = begun.elapsed().as_secs_f64();
            Ok(of_deployments(&after, vec![PlayedBest { deployment, n_played: 0, ..before }], wall_s))
        }
    }
}

fn stages_words(task: &Task, stages: &[Stage]) -> String {
    let stage = |s: &Stage| format!("{} x {} for {} layers", s.tp, task.pool.machines[s.machine].name, s.layers);
    stages.iter().map(stage).collect::<Vec<_>>().join(", then ")
}

fn n_gpus(stages: &[Stage]) -> u32 {
    stages.iter().map(|stage| stage.tp).sum()
}

fn of_replicas(task: &Task, replicas: &[Replica], wall_s: f64) -> Plan {
    let notes = replicas.iter().map(|r| format!("both phases on {}", stages_words(task, &r.stages))).collect();
    let n = replicas.len();
    Plan {
        fleet: Fleet::colocated(replicas),
        planned_per_s: replicas.iter().map(|replica| replica.requests_per_s).sum(),
        n_prefill_gpus: 0,
        n_decode_gpus: 0,
        facts: PlannerFacts { status: "heuristic".to_owned(), notes, ..PlannerFacts::default() },
        why: format!("{n} replicas that read and generate, so that prompts hold up tokens"),
        wall_s,
    }
}

/// Deployments beside each other as one.
fn of_deployments(task: &Task, found: Vec<PlayedBest>, wall_s: f64) -> Plan {
    let mut fleet = Fleet { groups: Vec::new(), pairs: Vec::new() };
    let mut notes = Vec::new();
    let (mut planned_per_s, mut gpus) = (0.0, [0, 0]);
    for PlayedBest { deployment, planned_for_per_s, .. } in &found {
        let (own, offset) = (Fleet::of(deployment), fleet.groups.len());
        fleet.pairs.extend(own.pairs.iter().map(|&(i, j, share)| (i + offset, j + offset, share)));
        fleet.groups.extend(own.groups);
        planned_per_s += deployment.attainment * planned_for_per_s;
        for group in deployment.groups.iter().filter(|group| !group.stages.is_empty()) {
            let at = usize::from(group.phase == Phase::Decode);
            gpus[at] += n_gpus(&group.stages);
            notes.push(format!("{} on {}", ["prefill", "decode"][at], stages_words(task, &group.stages)));
        }
        notes.extend(deployment.proof.runner_up.iter().map(|other| format!("runner-up: {}", other.about)));
    }
    for PlayedBest { deployment, planned_for_per_s, n_played } in &found {
        let n = deployment.n_evaluated;
        notes.push(format!(
            "planned for {planned_for_per_s:.2} requests/s, {n} deployments looked at, best of {n_played} played"
        ));
    }
    let bindings: Vec<&str> = found.iter().map(|best| best.deployment.proof.binding.as_str()).collect();
    Plan {
        fleet,
        planned_per_s,
        n_prefill_gpus: gpus[0],
        n_decode_gpus: gpus[1],
        facts: PlannerFacts { status: "heuristic".to_owned(), notes, ..PlannerFacts::default() },
        why: format!("limit: {}", bindings.join("; ")),
        wall_s,
    }
}

/// Names that a scenario of phases may use for policies, with what they do.
#[must_use]
pub fn policies() -> Vec<(&'static str, &'static str)> {
    METHODS.iter().map(|(name, _, about)| (*name, *about)).collect()
}
