//! Puts the passes of a plan's micro-batches in order on every pipeline rank, with the problem's schedule.
//!
//! A policy decides what is computed together; the schedule decides when. Groups that go in step have one order. Besides the
//! schedules of `sim` there is the shortest one, by mixed-integer program, for small pipelines.

use engine::CostModel;
use train::lower::training::pipelines;
use train::schedule::{Order, Pipeline, Schedule};
use train::{Plan, Problem};

use crate::milp::Budget;
use crate::train::optimal_schedule::{Found, optimal_schedule};
use crate::train::policy::{PlanError, Status};

/// The shortest schedule with split backward within 1F1B's memory; the best heuristic where the solver does not finish.
pub static OPTIMAL: Schedule = Schedule {
    name: "optimal",
    about: "the shortest schedule with split backward, by MILP; for small pipelines, else the best heuristic",
    source: "mixed-integer program over the order of passes on every rank",
    placement: train::schedule::Placement::Linear,
    n_chunks: 1,
    splits_backward: true,
    order: optimal,
};

/// Budget of one order: small pipelines are proved in it, larger ones keep the best heuristic.
const BUDGET: Budget = Budget::new(20_000, 10.0);

fn optimal(pipeline: &Pipeline) -> Order {
    match found(pipeline) {
        Ok(found) => found.order,
        // A limit below one micro-batch: the simulation will say so.
        Err(_) => (train::schedule::named("zb-1p").expect("listed").order)(pipeline),
    }
}

/// The shortest order within 1F1B's memory, or the device's where that is less.
fn found(pipeline: &Pipeline) -> Result<Found, PlanError> {
    let micro_batch = |index: usize| pipeline.activation.iter().map(|row| row[index]).max().unwrap_or(0);
    let largest = (0..pipeline.n_micro_batches).map(micro_batch).max().unwrap_or(0);
    let limit = (largest * pipeline.n_ranks as u64).min(pipeline.limit.unwrap_or(u64::MAX));
    optimal_schedule(&Pipeline { limit: Some(limit), ..pipeline.clone() }, true, BUDGET)
}

/// How good the orders of a plan are known to be: spans of the pipelines alone, mean over steps, slowest group of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proof {
    /// Span of the orders, seconds.
    pub span_s: f64,
    /// No orders are shorter, seconds.
    pub bound_s: f64,
    /// Weakest status among them.
    pub status: Status,
}

/// Every pipeline schedule.
pub fn schedules() -> impl Iterator<Item = &'static Schedule> {
    train::schedule::SCHEDULES.iter().chain([&OPTIMAL])
}

/// A pipeline schedule by name.
#[must_use]
pub fn schedule(name: &str) -> Option<&'static Schedule> {
    schedules().find(|schedule| schedule.name == name)
}

/// Adds the orders that a pipeline needs; does nothing without one. Says how good they are under `optimal`.
pub fn complete(problem: &Problem, plan: &mut Plan, cost: &dyn CostModel) -> Option<Proof> {
    let has_own = |step: &train::plan::Step| (0..step.groups.len()).any(|group| step.own_depth(group) > Some(1));
    if problem.layout.pp == 1 && !plan.steps.iter().any(has_own) {
        return None;
    }
    let is_optimal = *problem.schedule == OPTIMAL;
    let n_steps = hw::Tokens(plan.steps.len() as u64).as_f64();
    let mut proof = Proof { span_s: 0.0, bound_s: 0.0, status: Status::Optimal };
    for step_index in 0..plan.steps.len() {
        let (pipelines, order_of) = pipelines(problem, plan, step_index, cost);
        let (mut longest, mut bound) = (0, 0);
        let order = |pipeline: &Pipeline| match is_optimal.then(|| found(pipeline)) {
            Some(Ok(found)) => {
                (longest, bound) = (found.span.max(longest), found.bound.max(bound));
                proof.status = weaker(proof.status, found.status);
                found.order
            }
            _ => (problem.schedule.order)(pipeline),
        };
        let orders = pipelines.iter().map(order).collect();
        let seconds = |ns| hw::Span::from_ns(ns).to_seconds().get() / n_steps;
        proof.span_s += seconds(longest);
        proof.bound_s += seconds(bound);
        let step = &mut plan.steps[step_index];
        (step.orders, step.order_of) = (orders, order_of);
    }
    (is_optimal && proof.span_s > 0.0).then_some(proof)
}

const fn weaker(a: Status, b: Status) -> Status {
    match (a, b) {
        (Status::Heuristic, _) | (_, Status::Heuristic) => Status::Heuristic,
        (Status::Feasible, _) | (_, Status::Feasible) => Status::Feasible,
        _ => Status::Optimal,
    }
}
