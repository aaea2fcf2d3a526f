//! From most requests within limits to a result: plan, then play the plan request by request and look for the largest rate that still meets
//! the targets.

use std::collections::BTreeMap;
use std::time::Instant;

use planner::deploy::RentalError;
use planner::deploy::thunderserve::played::{Playable, goodput, playable};
use planner::deploy::thunderserve::{self, Groups, Phase, PlayedBest, Stage, Task, Trial, bound, colocated};
use planner::{Bound, Decision, Status};
use reports::{Aim, CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};
use serde_json::json;

use crate::kinds::deployment::read::goodput::{Goodput, GoodputChoice, METHODS, Method};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;

impl Kind for Goodput {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        run(self, done)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let choice = self.choices.iter().find(|known| known.name == choice)?;
        let plan = planned(self, choice).and_then(|plan| written(self, choice, &plan));
        Some(plan.map_err(|why| why.to_string()))
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

fn run(scenario: &Goodput, done: &(dyn Fn(&str) + Sync)) -> RunResult {
    let results = kinds::rows(&scenario.choices, |choice| &choice.name, done, |choice| policy(scenario, choice));
    let worth = |row: &PolicyResult| row.metrics.get(COLUMNS[0].0).copied();
    let speedup_ratio = kinds::gains(&results, &scenario.head.baseline, worth);
    RunResult {
        cost_model: CostModelFacts {
            profile: "roofline of a stage".to_owned(),
            source: "datasheet".to_owned(),
            free_parameters: scenario.free_parameters.clone(),
            outside_hull_ratio: f64::NAN,
            ..CostModelFacts::default()
        },
        columns: kinds::columns(&COLUMNS),
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

/// What is played, and what is known of it.
struct Plan {
    groups: Groups,
    /// For the load that it was planned for.
    planned_per_s: f64,
    /// What it would serve of all arrivals: the objective.
    most_per_s: f64,
    /// No deployment of the same kind would serve more.
    bound_per_s: f64,
    /// No deployment at all would, whoever planned it.
    any_bound_per_s: f64,
    n_prefill_gpus: u32,
    n_decode_gpus: u32,
    notes: Vec<String>,
    why: String,
    wall_s: f64,
}

/// Distance to the bound that rounding explains, relative.
const CLOSED: f64 = 1e-9;

impl Plan {
    /// The objective counts means, as the planner does; what is played is below that.
    fn facts(&self) -> PlannerFacts {
        let bound = self.bound_per_s.max(self.most_per_s);
        let is_closed = bound - self.most_per_s <= CLOSED * bound;
        let status = if is_closed { Status::Optimal } else { Status::Heuristic };
        let decided = Decision::new((), planner::Aim::RequestsPerS, self.most_per_s);
        let gap = decided.bounded(Some(Bound::plain(bound)), status).gap();
        let figures = [
            ("bound_requests_per_s", Some(bound)),
            ("any_bound_requests_per_s", Some(self.any_bound_per_s)),
            ("gap_ratio", gap),
        ];
        PlannerFacts {
            objective: Some(self.most_per_s),
            aim: Aim::RequestsPerS,
            bound: Some(bound),
            gap_ratio: gap,
            status: status.name().to_owned(),
            notes: self.notes.clone(),
            figures: figures.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
        }
    }
}

/// `plan.json` and its words.
fn written(scenario: &Goodput, choice: &GoodputChoice, plan: &Plan) -> Result<Planned, RentalError> {
    let Playable { placed, .. } = playable(&choice.task, &plan.groups, choice.working, &scenario.requests.list)?;
    let facts = plan.facts();
    let json = json!({
        "scenario": scenario.head.name, "version": env!("CARGO_PKG_VERSION"), "policy": choice.name,
        "ttft_s": choice.task.ttft_s, "tpot_s": choice.task.tpot_s,
        "deployment": placed, "why": plan.why, "plan": facts,
    });
    let words: Vec<String> = [plan.why.clone(), facts.words(0.0)].into_iter().chain(facts.notes).collect();
    Ok(Planned { json, words: words.join("\n"), ..Planned::default() })
}

fn policy(scenario: &Goodput, choice: &GoodputChoice) -> PolicyResult {
    let begun = Instant::now();
    let planned = planned(scenario, choice).and_then(|plan| {
        let playable = playable(&choice.task, &plan.groups, choice.working, &scenario.requests.list)?;
        Ok((plan, playable))
    });
    let (plan, playable) = match planned {
        Ok(planned) => planned,
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
    let (rate, played) = goodput(&choice.task, &playable, &scenario.requests, scenario.attainment_ratio);
    let hits = if choice.working.prefix_cache { played.prefix_hit_ratio } else { f64::NAN };
    let metrics = [
        ("goodput_requests_per_s", rate),
        ("planned_requests_per_s", plan.planned_per_s),
        ("planned_over_played_ratio", plan.planned_per_s / rate),
        ("tokens_per_s", played.tokens_per_s),
        ("attainment_ratio", played.attainment),
        ("ttft_s", if rate > 0.0 { played.ttft_s } else { f64::NAN }),
        ("tpot_s", if rate > 0.0 { played.tpot_s } else { f64::NAN }),
        ("prefix_hit_ratio", hits),
        ("n_prefill_gpus", f64::from(plan.n_prefill_gpus)),
        ("n_decode_gpus", f64::from(plan.n_decode_gpus)),
    ]
    // At no rate are the targets met: then there are no times and no ratio.
    .into_iter()
    .filter(|(_, value)| value.is_finite())
    .map(|(key, value)| (key.to_owned(), value))
    .collect::<BTreeMap<String, f64>>();
    let facts = plan.facts();
    PolicyResult {
        policy: choice.name.clone(),
        status: "ok".to_owned(),
        why: plan.why,
        metrics,
        planner: Some(facts),
        measured: Measured { planner_wall_s: plan.wall_s, simulate_wall_s: begun.elapsed().as_secs_f64() },
        ..PolicyResult::default()
    }
}

fn planned(scenario: &Goodput, choice: &GoodputChoice) -> Result<Plan, RentalError> {
    let task = &choice.task;
    let mut after = task.clone();
    let machines = after.machines.offers.iter_mut().zip(&choice.lost);
    machines.for_each(|(machine, lost)| machine.n_available = machine.n_available.saturating_sub(*lost));
    let begun = Instant::now();
    let wall_s = || begun.elapsed().as_secs_f64();
    // Fewer requests choose among plans than measure the chosen one.
    let mut some = scenario.requests.clone();
    some.list.truncate(scenario.requests.len().div_ceil(3));
    let trial = Trial { requests: &some, attainment_ratio: scenario.attainment_ratio, working: choice.working };
    let best = |task: &Task| thunderserve::plan_played(task, scenario.tabu, &trial);
    match choice.method {
        Method::Colocated => {
            let most = bound::by_machine(&after, bound::colocated);
            of_replicas(&after, colocated::per_machine, most, wall_s)
        }
        Method::CostEfficiency => {
            let most = bound::by_machine(&after, bound::colocated);
            of_replicas(&after, thunderserve::cost_efficiency, most, wall_s)
        }
        Method::Melange => {
            let most = bound::by_machine(&after, bound::colocated);
            of_replicas(&after, thunderserve::melange, most, wall_s)
        }
        Method::HexGen => of_replicas(&after, colocated::mixed, bound::colocated(&after), wall_s),
        Method::DistServe => {
            let found = thunderserve::within_machines(&after, scenario.tabu, &trial)?;
            let most = bound::by_machine(&after, bound::split);
            of_deployments(&after, &found, most, wall_s())
        }
        Method::ThunderServe => {
            let found = best(&after)?;
            let most = thunderserve::stale(&after, &found.plan.deployment.plan)?.bound().unwrap_or(f64::INFINITY);
            of_deployments(&after, &[found], most * after.requests_per_s, wall_s())
        }
        Method::Stale | Method::Flip => {
            let before = best(task)?.plan;
            let loaded = after.clone();
            after.requests_per_s = before.planned_for_per_s;
            // Only what happens after the loss counts.
            let begun = Instant::now();
            let again = if choice.method == Method::Flip { thunderserve::replan } else { thunderserve::stale };
            let deployment = again(&after, &before.deployment.plan)?;
            let wall_s = begun.elapsed().as_secs_f64();
            let most = thunderserve::stale(&loaded, &deployment.plan)?.bound().unwrap_or(f64::INFINITY);
            let found = [Decision::plain(PlayedBest { deployment, n_played: 0, ..before })];
            of_deployments(&loaded, &found, most * loaded.requests_per_s, wall_s)
        }
    }
}

/// What no deployment on these machines serves, with its phases on groups of their own or together.
fn any_bound_per_s(task: &Task) -> f64 {
    bound::split(task).max(bound::colocated(task))
}

fn stages_words(task: &Task, stages: &[Stage]) -> String {
    let stage = |s: &Stage| format!("{} x {} for {} layers", s.tp, task.machines.offers[s.machine].name, s.layers);
    stages.iter().map(stage).collect::<Vec<_>>().join(", then ")
}

fn n_gpus(stages: &[Stage]) -> u32 {
    stages.iter().map(|stage| stage.tp).sum()
}

fn of_replicas(
    task: &Task,
    way: colocated::Way,
    bound_per_s: f64,
    wall_s: impl Fn() -> f64,
) -> Result<Plan, RentalError> {
    let replicas = way(task)?;
    let wall_s = wall_s();
    let notes = replicas.iter().map(|r| format!("both phases on {}", stages_words(task, &r.stages))).collect();
    let n = replicas.len();
    let limit = colocated::binding(task, way)?;
    let planned_per_s = replicas.iter().map(|replica| replica.requests_per_s).sum();
    Ok(Plan {
        planned_per_s,
        most_per_s: planned_per_s,
        groups: Groups::colocated(&replicas),
        bound_per_s,
        any_bound_per_s: any_bound_per_s(task),
        n_prefill_gpus: 0,
        n_decode_gpus: 0,
        notes,
        why: format!("{n} replicas that read and generate, so that prompts hold up tokens; limit: {limit}"),
        wall_s,
    })
}

/// Deployments beside each other as one.
fn of_deployments(
    task: &Task,
    found: &[Decision<PlayedBest>],
    bound_per_s: f64,
    wall_s: f64,
) -> Result<Plan, RentalError> {
    let mut groups = Groups::default();
    let mut notes = Vec::new();
    let (mut planned_per_s, mut most_per_s, mut gpus) = (0.0, 0.0, [0, 0]);
    let mut limits = Vec::new();
    for PlayedBest { deployment: Decision { plan: deployment, .. }, planned_for_per_s, .. } in
        found.iter().map(|best| &best.plan)
    {
        let loaded = thunderserve::stale(task, deployment)?;
        most_per_s += loaded.plan.attainment * task.requests_per_s;
        limits.push(loaded.limit);
        let (own, offset) = (Groups::of(deployment), groups.groups.len());
        groups.pairs.extend(own.pairs.iter().map(|&(i, j, share)| (i + offset, j + offset, share)));
        groups.groups.extend(own.groups);
        planned_per_s += deployment.attainment * planned_for_per_s;
        for group in deployment.groups.iter().filter(|group| !group.stages.is_empty()) {
            let at = usize::from(group.phase == Phase::Decode);
            gpus[at] += n_gpus(&group.stages);
            notes.push(format!("{} on {}", ["prefill", "decode"][at], stages_words(task, &group.stages)));
        }
    }
    notes.extend(found.iter().flat_map(|best| looked_at(task, best)));
    Ok(Plan {
        groups,
        planned_per_s,
        most_per_s,
        bound_per_s,
        any_bound_per_s: any_bound_per_s(task),
        n_prefill_gpus: gpus[0],
        n_decode_gpus: gpus[1],
        notes,
        why: format!("limit: {}", limits.join("; ")),
        wall_s,
    })
}

/// For which load a deployment was planned, and the second choices of the search and of playing.
fn looked_at(task: &Task, best: &Decision<PlayedBest>) -> Vec<String> {
    let PlayedBest { deployment, planned_for_per_s: load, n_played } = &best.plan;
    let n = deployment.plan.n_evaluated;
    let played = match n_played {
        0 => String::new(),
        _ => format!(", best of {n_played} played"),
    };
    let mut notes = vec![format!("planned for {load:.2} requests/s, {n} deployments looked at{played}")];
    notes.extend(deployment.runner_up().map(|other| {
        let planned = other.objective * load;
        let words = other.plan.words(task);
        format!("runner-up of those looked at, planned for {planned:.3} requests/s: {words}")
    }));
    notes.extend(best.runner_up().map(|other| {
        let rate = other.objective;
        let words = other.plan.deployment.plan.words(task);
        format!("runner-up of those played, which meets the targets at {rate:.3} requests/s: {words}")
    }));
    notes
}

/// Names that such a scenario may use for policies, with what they do.
#[must_use]
pub fn policies() -> Vec<(&'static str, &'static str)> {
    METHODS.iter().map(|(name, _, about)| (*name, *about)).collect()
}
