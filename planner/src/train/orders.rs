//! Puts the passes of a plan's micro-batches in order on every pipeline rank, with the problem's schedule.
//!
//! A policy decides what is computed together; the schedule decides when. Groups that go in step have one order. Besides the
//! schedules of `sim` there is the shortest one, by mixed-integer program, for small pipelines.

use engine::CostModel;
use train::lower::training::pipelines;
use train::schedule::{Order, Pipeline, Schedule, play};
use train::{Plan, Problem};

use crate::milp::Budget;
use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::optimal_schedule::{Spanned, optimal_schedule};
use crate::train::policy::PlanError;

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
        Ok(found) => found.plan.order,
        // A limit below one micro-batch: the simulation will say so.
        Err(_) => (train::schedule::named("zb-1p").expect("listed").order)(pipeline),
    }
}

/// The shortest order within the memory of 1F1B's fullest rank, or the device's where that is less.
fn found(pipeline: &Pipeline) -> Result<Decision<Spanned>, PlanError> {
    let order = (train::schedule::named("1f1b").expect("listed").order)(pipeline);
    let of_1f1b = play(pipeline, &order).ok().and_then(|played| played.peak_activation.into_iter().max());
    let limit = [of_1f1b, pipeline.limit].into_iter().flatten().min().unwrap_or(u64::MAX);
    optimal_schedule(&Pipeline { limit: Some(limit), ..pipeline.clone() }, true, BUDGET)
}

/// Every pipeline schedule.
pub fn schedules() -> impl Iterator<Item = &'static Schedule> {
    train::schedule::SCHEDULES.iter().chain([&OPTIMAL])
}

/// A pipeline schedule by name.
pub fn schedule(name: &str) -> Option<&'static Schedule> {
    schedules().find(|schedule| schedule.name == name)
}

/// Adds the orders that a pipeline needs; does nothing without one. Says how good they are under `optimal`: spans of the pipelines alone,
/// mean over steps, slowest group of each, and the weakest status among them.
pub fn complete(problem: &Problem, plan: &mut Plan, cost: &dyn CostModel) -> Option<Decision<()>> {
    let has_own = |step: &train::plan::Step| (0..step.groups.len()).any(|group| step.own_depth(group) > Some(1));
    if problem.layout.pp == 1 && !plan.steps.iter().any(has_own) {
        return None;
    }
    let is_optimal = *problem.schedule == OPTIMAL;
    let n_steps = hw::real(plan.steps.len() as u64);
    let (mut span_s, mut bound_s, mut status) = (0.0, 0.0, Status::Optimal);
    for step_index in 0..plan.steps.len() {
        let (pipelines, order_of) = pipelines(problem, plan, step_index, cost);
        let (mut longest_s, mut least_s) = (0.0_f64, 0.0_f64);
        let order = |pipeline: &Pipeline| match is_optimal.then(|| found(pipeline)) {
            Some(Ok(found)) => {
                longest_s = longest_s.max(found.objective().unwrap_or(0.0));
                least_s = least_s.max(found.bound().unwrap_or(0.0));
                status = status.weaker(found.status);
                found.plan.order
            }
            _ => (problem.schedule.order)(pipeline),
        };
        let orders = pipelines.iter().map(order).collect();
        span_s += longest_s / n_steps;
        bound_s += least_s / n_steps;
        let step = &mut plan.steps[step_index];
        (step.orders, step.order_of) = (orders, order_of);
    }
    let decided = || Decision::new((), Aim::Seconds, span_s).bounded(Some(Bound::plain(bound_s)), status);
    (is_optimal && span_s > 0.0).then(decided)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Micro-batches of any lengths on up to three ranks, and some room of the device.
        #[test]
        fn optimal_orders_hold_no_more_than_1f1b(lengths in prop::collection::vec(1_u64..9, 2..5), p in 2_usize..4, room in 8_u64..40) {
            let named = |name| train::schedule::named(name).expect("listed");
            let mut pipeline = Pipeline::of_schedule(&OPTIMAL, p, 1, lengths.len());
            for grid in [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight, &mut pipeline.activation] {
                grid.iter_mut().for_each(|row| row.copy_from_slice(&lengths));
            }
            pipeline.for_weights.clone_from(&pipeline.activation);
            pipeline.limit = Some(room);
            let peak = |order: &Order| play(&pipeline, order).expect("can be played").peak_activation.into_iter().max();
            let most = peak(&(named("1f1b").order)(&pipeline)).min(Some(room));
            prop_assert!(peak(&optimal(&pipeline)) <= most, "{:?} against {:?}", peak(&optimal(&pipeline)), most);
        }
    }
}
