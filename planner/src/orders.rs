//! Puts the passes of a plan's micro-batches in order on every pipeline rank, with the problem's schedule.
//!
//! A policy decides what is computed together; the schedule decides when. Groups that go in step have one order. Besides the
//! schedules of `sim` there is the shortest one, by mixed-integer program, for small pipelines.

use sim::lower::training::pipelines;
use sim::schedule::{Order, Pipeline, Schedule};
use sim::{CostModel, Plan, Problem};

use crate::milp::Budget;
use crate::optimal_schedule::optimal_schedule;

/// The shortest schedule with split backward within 1F1B's memory; the best heuristic where the solver does not finish.
pub static OPTIMAL: Schedule = Schedule {
    name: "optimal",
    about: "the shortest schedule with split backward, by MILP; for small pipelines, else the best heuristic",
    source: "mixed-integer program over the order of passes on every rank",
    placement: sim::schedule::Placement::Linear,
    n_chunks: 1,
    splits_backward: true,
    order: optimal,
};

/// Budget of one order: small pipelines are proved in it, larger ones keep the best heuristic.
const BUDGET: Budget = Budget { nodes: 20_000, seconds: 10.0 };

fn optimal(pipeline: &Pipeline) -> Order {
    // 1F1B's memory, or the device's where that is less.
    let micro_batch = |index: usize| pipeline.activation.iter().map(|row| row[index]).max().unwrap_or(0);
    let largest = (0..pipeline.n_micro_batches).map(micro_batch).max().unwrap_or(0);
    let limit = (largest * pipeline.n_ranks as u64).min(pipeline.limit.unwrap_or(u64::MAX));
    let pipeline = &Pipeline { limit: Some(limit), ..pipeline.clone() };
    match optimal_schedule(pipeline, true, BUDGET) {
        Ok(found) => found.order,
        // A limit below one micro-batch: the simulation will say so.
        Err(_) => (sim::schedule::named("zb-1p").expect("listed").order)(pipeline),
    }
}

/// Every pipeline schedule.
pub fn schedules() -> impl Iterator<Item = &'static Schedule> {
    sim::schedule::SCHEDULES.iter().chain([&OPTIMAL])
}

/// A pipeline schedule by name.
#[must_use]
pub fn schedule(name: &str) -> Option<&'static Schedule> {
    schedules().find(|schedule| schedule.name == name)
}

/// Adds the orders that a pipeline needs; does nothing without one.
pub fn complete(problem: &Problem, plan: &mut Plan, cost: &dyn CostModel) {
    if problem.layout.pp == 1 {
        return;
    }
    for step_index in 0..plan.steps.len() {
        let (pipelines, order_of) = pipelines(problem, plan, step_index, cost);
        let step = &mut plan.steps[step_index];
        step.orders = pipelines.iter().map(problem.schedule.order).collect();
        step.order_of = order_of;
    }
}
