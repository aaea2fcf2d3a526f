//! Puts the passes of a plan's micro-batches in order on every pipeline rank, with the problem's schedule.
//!
//! A policy decides what is computed together; the schedule decides when. Groups that go in step have one order.

use sim::lower::training::pipelines;
use sim::schedule::{Order, Schedule};
use sim::{CostModel, Plan, Problem};

/// Every pipeline schedule.
pub fn schedules() -> impl Iterator<Item = &'static Schedule> {
    sim::schedule::SCHEDULES.iter()
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
        let mut known: Vec<(sim::schedule::Pipeline, Order)> = Vec::new();
        let mut orders = Vec::new();
        for pipeline in pipelines(problem, plan, step_index, cost) {
            let order = match known.iter().find(|(like, _)| *like == pipeline) {
                Some((_, order)) => order.clone(),
                None => {
                    let order = (problem.schedule.order)(&pipeline);
                    known.push((pipeline, order.clone()));
                    order
                }
            };
            orders.push(order);
        }
        plan.steps[step_index].orders = orders;
    }
}
