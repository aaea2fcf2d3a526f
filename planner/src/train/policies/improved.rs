//! A reference that no paper has: the best plan of all other policies, improved by local search on the common plan type.
//!
//! Every policy that can plan the problem in little time is simulated; the best plan is the start. Each try changes one step of it a little
//! (`improved/moves.rs`), puts the passes in order, and simulates; what is faster and fits stays. So the result is never slower than the best
//! policy with the scenario's layout, whatever that policy believed. Objective: the simulated step, seconds. Bound: the certified
//! one of `train::bound`. Deterministic: a number of tries, no clock.

use std::collections::BTreeMap;

use engine::random;
use engine::task::{Role, Stream};
use hw::topology::Topology;
use train::lower::training;
use train::metrics::causes;
use train::plan::Step;
use train::{Plan, Problem};

use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};
use crate::train::{orders, search};
use engine::stop;

mod moves;

pub(super) const CARD: Card = Card {
    name: "improved",
    about: "the best plan of the other policies but `skrull_exact`, improved by local search; a reference for how much is left",
    source: "reference of this project",
    method: "local search, every change simulated",
    parameters: &[Parameter::count(("tries", "plans"), ("200", 0.0, 1e6), "changed plans that are simulated per step")],
};

/// Policies that search or solve themselves, and take long for it.
const NOT_A_START: [&str; 2] = ["improved", "skrull_exact"];

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    let topology = Topology::of(&problem.cluster);
    let judge = Judge { problem, context, topology: &topology };
    let (start, name, start_s) = judge.start()?;
    let tries = hw::whole(context.number("tries", 200.0));
    let mut plan = start;
    let mut n_kept = 0;
    for index in 0..plan.steps.len() {
        let mut random = random::stream(problem.seed, &format!("improver of step {index}"));
        n_kept += judge.improve(&mut plan, index, tries, &mut random);
    }
    let n_steps = hw::real(plan.steps.len() as u64);
    let objective = (0..plan.steps.len()).filter_map(|index| judge.played(&plan, index)).map(|played| played.span_s);
    let objective = objective.sum::<f64>() / n_steps;
    let tokens_max = problem.bucket_tokens.max(causes::tokens_max(&plan));
    let bound = causes::bound_s(problem, &plan, tokens_max, context.cost);
    // Orders are added after every policy alike.
    plan.steps.iter_mut().for_each(|step| (step.orders, step.order_of) = (Vec::new(), Vec::new()));
    plan.policy = CARD.name.to_owned();
    // A cost model in which nothing takes time has nothing to improve.
    let ratio = if objective > 0.0 { start_s / objective } else { 1.0 };
    let gained = (1.0 - 1.0 / ratio) * 100.0;
    let mut notes = vec![format!("{gained:.1} % faster than `{name}`, from which it starts; {n_kept} changes kept")];
    if !problem.execution.stragglers.is_empty() {
        notes.push("every change was simulated beside the stragglers".to_owned());
    }
    let figures = [("improvement_ratio".to_owned(), ratio)].into();
    let decision = Decision::new(plan, Aim::Seconds, objective).bounded(Some(Bound::plain(bound)), Status::Heuristic);
    Ok(decision.said(notes, figures))
}

/// A simulated step.
struct PlayedStep {
    span_s: f64,
    /// Ends of the lanes' last passes, added up: what may fall while the slowest lane still holds the step.
    ends_s: f64,
    /// Data-parallel group that ends last.
    last: u32,
}

impl PlayedStep {
    /// Whether the step is shorter, or as long with lanes that end earlier.
    fn is_better(&self, than: &Self) -> bool {
        self.span_s.total_cmp(&than.span_s).then(self.ends_s.total_cmp(&than.ends_s)).is_lt()
    }
}

struct Judge<'a> {
    problem: &'a Problem,
    context: &'a PlanContext<'a>,
    topology: &'a Topology,
}

impl Judge<'_> {
    /// The fastest plan of the other policies, whose it is, and its mean step.
    fn start(&self) -> Result<(Plan, &'static str, f64), PlanError> {
        let mut best: Option<(Plan, &'static str, f64)> = None;
        for policy in super::POLICIES {
            let name = policy.card().name;
            if NOT_A_START.contains(&name) {
                continue;
            }
            let context = PlanContext { cost: self.context.cost, parameters: BTreeMap::new() };
            let Ok(plan) = search::plan(self.problem, *policy, &context) else { continue };
            let Some(step_s) = search::simulate(self.problem, &plan, &context, self.topology) else { continue };
            if best.as_ref().is_none_or(|(_, _, least)| step_s < *least) {
                best = Some((plan, name, step_s));
            }
        }
        best.ok_or_else(|| PlanError::Infeasible("no other policy has a plan that fits memory".to_owned()))
    }

    /// Tries changes of one step and keeps what is faster; says how many were kept.
    fn improve(&self, plan: &mut Plan, index: usize, tries: u64, random: &mut random::Stream) -> usize {
        let Some(mut best) = self.played(plan, index) else { return 0 };
        let mut n_kept = 0;
        for _ in 0..tries {
            if stop::is_asked() {
                break;
            }
            let Some(step) = moves::propose(self.problem, &plan.steps[index], best.last, random) else { continue };
            let mut changed = plan.clone();
            changed.steps[index] = Step { orders: Vec::new(), order_of: Vec::new(), ..step };
            _ = orders::complete(self.problem, &mut changed, self.context.cost);
            if train::check::check(self.problem, &changed).is_err() {
                continue;
            }
            if let Some(played) = self.played(&changed, index).filter(|played| played.is_better(&best)) {
                (best, *plan) = (played, changed);
                n_kept += 1;
            }
        }
        n_kept
    }

    /// One step in the simulator; `None` when it does not fit.
    fn played(&self, plan: &Plan, index: usize) -> Option<PlayedStep> {
        let graph = training::lower(self.problem, plan, index);
        let timeline = search::play(self.problem, &graph, self.context, self.topology)?;
        let mut ends = vec![hw::Time::ZERO; graph.lanes.len()];
        for (task, &end) in graph.tasks.iter().zip(&timeline.end) {
            if task.stream == Stream::Compute && task.role != Role::Optimizer {
                ends[task.lane.index()] = ends[task.lane.index()].max(end);
            }
        }
        let lane = (0..ends.len()).max_by_key(|&lane| (ends[lane], std::cmp::Reverse(lane)))?;
        let last = graph.lanes[lane].group;
        let end_s = |(end, lane): (&hw::Time, &engine::task::Lane)| {
            (*end - hw::Time::ZERO).to_seconds().get() * f64::from(lane.multiplicity)
        };
        let ends_s = ends.iter().zip(&graph.lanes).map(end_s).sum();
        Some(PlayedStep { span_s: timeline.span().to_seconds().get(), ends_s, last })
    }
}

#[cfg(test)]
mod tests;
