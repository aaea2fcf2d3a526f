//! Most requests per second within limits: the ways of serving that scenarios compare, each as a plan that the request loop plays.
//!
//! The objective counts means, as the planners do; what is played is below that. Bounds are those of `thunderserve/bound.rs`: of the same kind of
//! deployment, and of any. Units: requests per second, seconds.

use std::collections::BTreeMap;

use serve::request::Requests;

use super::RentalError;
use super::thunderserve::played::{Playable, Played, playable};
use super::thunderserve::{
    self, Deployment, Groups, Phase, PlayedBest, Stage, Tabu, Task, Trial, Working, bound, colocated,
};
use crate::proof::{Aim, Bound, Decision, Status};

/// How a model is put on a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Equal replicas of both phases on every machine.
    Colocated,
    /// Replicas of both phases over any GPUs.
    HexGen,
    /// Phases on different groups of the same machine.
    DistServe,
    /// Phases on any groups.
    ThunderServe,
    /// Replicas of both phases by the program of renting.
    CostEfficiency,
    /// Replicas of both phases by Mélange.
    Melange,
    /// The plan for all GPUs when some are lost, with nothing changed.
    Stale,
    /// The same with flipped phases: no weight is loaded again.
    Flip,
}

/// A method with its name and what it does.
pub static METHODS: &[(&str, Method, &str)] = &[
    ("colocated", Method::Colocated, "equal replicas on each machine, which read prompts and generate (as vLLM)"),
    (
        "hexgen",
        Method::HexGen,
        "replicas over any GPUs with stages of their own, which read and generate (arXiv:2311.11514)",
    ),
    ("distserve", Method::DistServe, "prefill and decode on different groups of the same machine (arXiv:2401.09670)"),
    ("thunderserve", Method::ThunderServe, "prefill and decode on any groups, by tabu search (arXiv:2502.09334)"),
    (
        "cost-efficiency",
        Method::CostEfficiency,
        "replicas of one machine each and their shares by one mixed-integer program (arXiv:2502.00722)",
    ),
    ("melange", Method::Melange, "the smallest replica of every machine, requests in quarters (arXiv:2404.14527)"),
    ("thunderserve-stale", Method::Stale, "what a loss leaves of ThunderServe's plan"),
    (
        "thunderserve-flip",
        Method::Flip,
        "what a loss leaves of ThunderServe's plan, with flipped phases and no weights loaded",
    ),
];

/// A method by name.
#[must_use]
pub fn named(name: &str) -> Option<Method> {
    METHODS.iter().find(|(known, ..)| *known == name).map(|(_, method, _)| *method)
}

/// One way of serving that is compared.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Method.
    pub method: Method,
    /// The problem, with the links and bits on the wire.
    pub task: Task,
    /// GPUs of every machine that are lost after planning.
    pub lost: Vec<u32>,
    /// How the replicas work.
    pub working: Working,
}

/// What plans are made for and played with.
#[derive(Clone, Copy, Debug)]
pub struct Load<'l> {
    /// Requests that arrive once per second on average.
    pub requests: &'l Requests,
    /// Share of the requests that must meet both targets.
    pub attainment_ratio: f64,
    /// Limits of the search.
    pub tabu: Tabu,
}

/// What is played.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Groups and pairs.
    pub groups: Groups,
    /// Requests per second for the load that it was planned for.
    pub planned_per_s: f64,
    /// GPUs that only read prompts, and GPUs that only generate.
    pub n_gpus: [u32; 2],
    /// What holds it back, in a sentence.
    pub why: String,
}

/// A plan before it is held against its bound.
struct Found {
    plan: Plan,
    /// What it would serve of all arrivals: the objective.
    most_per_s: f64,
    notes: Vec<String>,
}

/// Distance to the bound that rounding explains, relative.
const CLOSED: f64 = 1e-9;

/// Plans of a choice; `begins` is called when what counts as its time begins: what only happens after a loss counts from there.
///
/// # Errors
/// On figures without meaning, and where no plan serves anything.
pub fn plan(choice: &Choice, load: &Load<'_>, begins: &mut dyn FnMut()) -> Result<Decision<Plan>, RentalError> {
    let after = after_losses(choice);
    // Fewer requests choose among plans than measure the chosen one.
    let mut some = load.requests.clone();
    some.list.truncate(load.requests.len().div_ceil(3));
    let trial = Trial { requests: &some, attainment_ratio: load.attainment_ratio, working: choice.working };
    match choice.method {
        Method::Colocated => of_replicas(&after, colocated::per_machine, bound::by_machine(&after, bound::colocated)),
        Method::CostEfficiency => {
            of_replicas(&after, thunderserve::cost_efficiency, bound::by_machine(&after, bound::colocated))
        }
        Method::Melange => of_replicas(&after, thunderserve::melange, bound::by_machine(&after, bound::colocated)),
        Method::HexGen => of_replicas(&after, colocated::mixed, bound::colocated(&after)),
        Method::DistServe => {
            let found = thunderserve::within_machines(&after, load.tabu, &trial)?;
            Ok(held(&after, of_deployments(&after, &found)?, bound::by_machine(&after, bound::split)))
        }
        Method::ThunderServe => {
            let found = thunderserve::plan_played(&after, load.tabu, &trial)?;
            let most_per_s = most_per_s(&after, &found.plan.deployment.plan)?;
            Ok(held(&after, of_deployments(&after, &[found])?, most_per_s))
        }
        Method::Stale | Method::Flip => {
            let before = thunderserve::plan_played(&choice.task, load.tabu, &trial)?.plan;
            begins();
            adapted(choice.method, &after, before)
        }
    }
}

/// The task without the GPUs that are lost.
fn after_losses(choice: &Choice) -> Task {
    let mut after = choice.task.clone();
    for (machine, lost) in after.machines.offers.iter_mut().zip(&choice.lost) {
        machine.n_available = machine.n_available.saturating_sub(*lost);
    }
    after
}

/// What a loss leaves of a plan, as it is or with flipped phases.
fn adapted(method: Method, after: &Task, before: PlayedBest) -> Result<Decision<Plan>, RentalError> {
    let load = Task { requests_per_s: before.planned_for_per_s, ..after.clone() };
    let again = if method == Method::Flip { thunderserve::replan } else { thunderserve::stale };
    let deployment = again(&load, &before.deployment.plan)?;
    let most_per_s = most_per_s(after, &deployment.plan)?;
    let found = [Decision::plain(PlayedBest { deployment, n_played: 0, ..before })];
    Ok(held(after, of_deployments(after, &found)?, most_per_s))
}

/// What the groups of a deployment serve at most of all arrivals.
fn most_per_s(task: &Task, deployment: &Deployment) -> Result<f64, RentalError> {
    let most = thunderserve::stale(task, deployment)?.bound().unwrap_or(f64::INFINITY);
    Ok(most * task.requests_per_s)
}

/// A plan with its bounds: that of the same kind of deployment, and what no deployment on these machines serves, with its phases on groups of their
/// own or together.
fn held(task: &Task, found: Found, bound_per_s: f64) -> Decision<Plan> {
    let Found { plan, most_per_s, notes } = found;
    let any_per_s = bound::split(task).max(bound::colocated(task));
    let bound_per_s = bound_per_s.max(most_per_s);
    let is_closed = bound_per_s - most_per_s <= CLOSED * bound_per_s;
    let status = if is_closed { Status::Optimal } else { Status::Heuristic };
    let decided = Decision::new(plan, Aim::RequestsPerS, most_per_s).bounded(Some(Bound::plain(bound_per_s)), status);
    let figures = [
        ("bound_requests_per_s", Some(bound_per_s)),
        ("any_bound_requests_per_s", Some(any_per_s)),
        ("gap_ratio", decided.gap()),
    ];
    let figures = figures.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    decided.said(notes, figures)
}

fn stages_words(task: &Task, stages: &[Stage]) -> String {
    let words: Vec<String> = stages.iter().map(|stage| stage_words(task, stage)).collect();
    words.join(", then ")
}

fn stage_words(task: &Task, stage: &Stage) -> String {
    format!("{} x {} for {} layers", stage.tp, task.machines.offers[stage.machine].name, stage.layers)
}

/// Replicas of both phases.
fn of_replicas(task: &Task, way: colocated::Way, bound_per_s: f64) -> Result<Decision<Plan>, RentalError> {
    let replicas = way(task)?;
    let notes = replicas.iter().map(|r| format!("both phases on {}", stages_words(task, &r.stages))).collect();
    let (n, limit) = (replicas.len(), colocated::binding(task, way)?);
    let planned_per_s = replicas.iter().map(|replica| replica.requests_per_s).sum();
    let plan = Plan {
        groups: Groups::colocated(&replicas),
        planned_per_s,
        n_gpus: [0, 0],
        why: format!("{n} replicas that read and generate, so that prompts hold up tokens; limit: {limit}"),
    };
    Ok(held(task, Found { plan, most_per_s: planned_per_s, notes }, bound_per_s))
}

/// Deployments beside each other as one.
fn of_deployments(task: &Task, found: &[Decision<PlayedBest>]) -> Result<Found, RentalError> {
    let mut plan = Plan { groups: Groups::default(), planned_per_s: 0.0, n_gpus: [0, 0], why: String::new() };
    let (mut notes, mut limits, mut most_per_s) = (Vec::new(), Vec::new(), 0.0);
    for best in found {
        let (deployment, planned_for_per_s) = (&best.plan.deployment.plan, best.plan.planned_for_per_s);
        let loaded = thunderserve::stale(task, deployment)?;
        most_per_s += loaded.plan.attainment * task.requests_per_s;
        limits.push(loaded.limit);
        let (own, offset) = (Groups::of(deployment), plan.groups.groups.len());
        plan.groups.pairs.extend(own.pairs.iter().map(|&(i, j, share)| (i + offset, j + offset, share)));
        plan.groups.groups.extend(own.groups);
        plan.planned_per_s += deployment.attainment * planned_for_per_s;
        for group in deployment.groups.iter().filter(|group| !group.stages.is_empty()) {
            let at = usize::from(group.phase == Phase::Decode);
            plan.n_gpus[at] += group.stages.iter().map(|stage| stage.tp).sum::<u32>();
            notes.push(format!("{} on {}", ["prefill", "decode"][at], stages_words(task, &group.stages)));
        }
    }
    plan.why = format!("limit: {}", limits.join("; "));
    notes.extend(found.iter().flat_map(|best| looked_at(task, best)));
    Ok(Found { plan, most_per_s, notes })
}

/// For which load a deployment was planned, and the second choices of the search and of playing.
fn looked_at(task: &Task, best: &Decision<PlayedBest>) -> Vec<String> {
    let PlayedBest { deployment, planned_for_per_s: load, n_played } = &best.plan;
    let n = deployment.plan.n_evaluated;
    let played = if *n_played == 0 { String::new() } else { format!(", best of {n_played} played") };
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

/// A plan as the loop plays it.
///
/// # Errors
/// When the checker refuses it, which would be a fault of the planner.
pub fn playable_of(choice: &Choice, plan: &Plan, requests: &Requests) -> Result<Playable, RentalError> {
    playable(&choice.task, &plan.groups, choice.working, &requests.list)
}

/// Figures of a plan that was played at the largest rate that meets the targets; at no rate there are no times and no ratio.
#[must_use]
pub fn metrics(choice: &Choice, plan: &Plan, (rate, played): (f64, &Played)) -> BTreeMap<String, f64> {
    let of_rate = |value: f64| if rate > 0.0 { value } else { f64::NAN };
    let metrics = [
        ("goodput_requests_per_s", rate),
        ("planned_requests_per_s", plan.planned_per_s),
        ("planned_over_played_ratio", plan.planned_per_s / rate),
        ("tokens_per_s", played.tokens_per_s),
        ("attainment_ratio", played.attainment),
        ("ttft_s", of_rate(played.ttft_s)),
        ("tpot_s", of_rate(played.tpot_s)),
        ("prefix_hit_ratio", if choice.working.prefix_cache { played.prefix_hit_ratio } else { f64::NAN }),
        ("n_prefill_gpus", f64::from(plan.n_gpus[0])),
        ("n_decode_gpus", f64::from(plan.n_gpus[1])),
    ];
    let finite = metrics.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| (key.to_owned(), value)).collect()
}
