//! Search for the best layout: every legal combination of degrees, micro-batch, schedule, sharding, recompute and offload is
//! judged by a lower bound, and the promising ones are simulated until no bound is below the best step found.
//!
//! The bound (`bound.rs`) is never above the simulated step of the same layout, so the search returns what simulating
//! everything would return; a property test holds this. Layouts that cannot fit in memory are dropped before, by an
//! amount that they need at least.

pub mod bound;
pub mod space;
#[cfg(test)]
mod tests;

use engine::play::{Case, Machine};
use engine::{Outcome, TaskGraph, Timeline};
use hw::topology::Topology;
use train::metrics::{self, Played};
use train::problem::Problem;
use train::{Plan, lower};

use crate::proof::{self, Aim, Bound, Decision, Status};
use crate::train::orders;
use crate::train::policy::{PlanContext, PlanError, Policy};
use bound::Judge;
use engine::stop;
use space::{Candidate, Space};

/// A simulated candidate.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Layout.
    pub candidate: Candidate,
    /// Mean step time over the workload's steps, seconds.
    pub step_s: f64,
    /// Its lower bound, seconds.
    pub bound_s: f64,
    /// What dominates its step, in words; of the best and the runner-up.
    pub why: String,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Best layout, with its own lower bound and the best of the others that were simulated.
    pub best: Decision<Simulated>,
    /// Legal layouts that were judged.
    pub n_judged: usize,
    /// Of these, dropped because they cannot fit.
    pub n_too_large: usize,
    /// Of these, simulated; the rest has a bound above the best step.
    pub n_simulated: usize,
}

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Stop as soon as no bound is below the best step: the result is the optimum.
    UntilProved,
    /// Simulate everything that may fit; for tests of the bound.
    Everything,
}

/// Candidates that are judged side by side; fixed, so that the number of threads changes nothing.
const BATCH: usize = 8;

/// A candidate with its bound.
pub type Promising = (f64, Candidate);
/// Step if it fits, bound, candidate; nothing when the bound was enough.
pub type Judged = Option<(Option<f64>, f64, Candidate)>;
/// Applies a function to each of some candidates, in order; the caller decides on how many threads.
pub type Each<'a> = &'a dyn Fn(&[Promising], &(dyn Fn(&Promising) -> Judged + Sync)) -> Vec<Judged>;

/// Searches the space for the layout with the shortest step.
///
/// # Errors
/// When no layout fits, or the policy has no plan for any.
pub fn search(
    problem: &Problem,
    policy: &dyn Policy,
    context: &PlanContext<'_>,
    space: &Space,
    topology: &Topology,
    effort: Effort,
    each: Each<'_>,
) -> Result<Found, PlanError> {
    let mut judge = Judge::new(problem, policy, context);
    let candidates = space.candidates(problem);
    let n_judged = candidates.len();
    let mut bounds: Vec<(f64, usize)> = Vec::with_capacity(n_judged);
    let mut n_too_large = 0;
    for (index, candidate) in candidates.iter().enumerate() {
        match judge.bound(candidate) {
            Some(bound) => bounds.push((bound, index)),
            None => n_too_large += 1,
        }
    }
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut ranking: Vec<Simulated> = Vec::new();
    let mut n_simulated = 0;
    for batch in bounds.chunks(BATCH) {
        let best_s = match (effort, ranking.first()) {
            (Effort::UntilProved, Some(best)) => best.step_s,
            _ => f64::INFINITY,
        };
        let promising: Vec<(f64, Candidate)> = batch
            .iter()
            .filter(|(bound_s, _)| *bound_s < best_s)
            .map(|&(bound_s, index)| (bound_s, candidates[index]))
            .collect();
        if promising.is_empty() || (stop::is_asked() && !ranking.is_empty()) {
            break;
        }
        let judged = each(&promising, &|&(bound_s, candidate)| {
            let laid_out = candidate.problem(problem);
            let plan = plan(&laid_out, policy, context).ok()?;
            // The order alone, without exchange between ranks and contention, is a closer bound where ranks are independent.
            let bound_s = bound_s.max(bound::of_order(&laid_out, &plan, context.cost).unwrap_or(0.0));
            if bound_s >= best_s {
                return None;
            }
            let step_s = simulate(&laid_out, &plan, context, topology);
            Some((step_s, bound_s, candidate))
        });
        n_simulated += judged.iter().flatten().count();
        let finished = judged.into_iter().flatten();
        ranking.extend(finished.filter_map(|(step_s, bound_s, candidate)| {
            Some(Simulated { candidate, step_s: step_s?, bound_s, why: String::new() })
        }));
        ranking.sort_by(|a, b| a.step_s.total_cmp(&b.step_s));
        ranking.truncate(2);
    }
    for simulated in &mut ranking {
        simulated.why = why(&simulated.candidate.problem(problem), policy, context, topology);
    }
    let ranking = ranking.into_iter().map(|simulated| (simulated.step_s, simulated)).collect();
    let best = proof::ranked(Aim::Seconds, ranking, |_| (), |_, _| true).ok_or_else(|| {
        PlanError::Infeasible(format!("none of {n_judged} layouts fits ({n_too_large} need too much memory)"))
    })?;
    let bound = Bound::plain(best.plan.bound_s);
    Ok(Found { best: best.bounded(Some(bound), Status::Heuristic), n_judged, n_too_large, n_simulated })
}

/// Plans a problem and puts its passes in order.
///
/// # Errors
/// When the policy has no plan.
pub fn plan(problem: &Problem, policy: &dyn Policy, context: &PlanContext<'_>) -> Result<Plan, PlanError> {
    let mut plan = policy.plan(problem, context)?.plan;
    _ = orders::complete(problem, &mut plan, context.cost);
    Ok(plan)
}

/// Mean step of a plan, seconds; `None` when it does not fit.
#[must_use]
pub fn simulate(problem: &Problem, plan: &Plan, context: &PlanContext<'_>, topology: &Topology) -> Option<f64> {
    let mut total = 0.0;
    for step_index in 0..plan.steps.len() {
        let graph = lower::training::lower(problem, plan, step_index);
        total += play(problem, &graph, context, topology)?.span().to_seconds().get();
    }
    Some(total / hw::real(plan.steps.len() as u64))
}

/// What dominates the steps of a problem, in words.
fn why(problem: &Problem, policy: &dyn Policy, context: &PlanContext<'_>, topology: &Topology) -> String {
    let Ok(plan) = plan(problem, policy, context) else { return String::new() };
    let step = |step_index| {
        let graph = lower::training::lower(problem, &plan, step_index);
        let timeline = play(problem, &graph, context, topology)?;
        Some(Played { graph, timeline })
    };
    let steps: Vec<Played> = (0..plan.steps.len()).filter_map(step).collect();
    metrics::of_steps(problem, &steps, context.cost).why
}

/// A step in the simulator; `None` when it runs out of memory.
pub(crate) fn play(
    problem: &Problem,
    graph: &TaskGraph,
    context: &PlanContext<'_>,
    topology: &Topology,
) -> Option<Timeline> {
    let machine = Machine {
        cost: context.cost,
        topology,
        memory_bytes: problem.cluster.gpu.memory.0,
        case: Case::Expected,
        speed_changes: &[],
    };
    match engine::simulate(graph, &machine) {
        Outcome::Done(timeline) => Some(timeline),
        Outcome::OutOfMemory { .. } => None,
        Outcome::Stuck { waiting } => panic!("lowering made a graph that cannot finish: {waiting:?}"),
    }
}
