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

/// The shortest order within the memory of 1F1B's fullest rank, or the device's where that is less; logits are part of it.
fn found(pipeline: &Pipeline) -> Result<Decision<Spanned>, PlanError> {
    let pipeline = &pipeline.with_logits();
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
            _ => problem.schedule.ordered(pipeline),
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
    use engine::cost::roofline::Roofline;
    use engine::play::{Case, Machine};
    use engine::task::Moment;
    use engine::{Outcome, TaskGraph, Timeline};
    use hw::topology::Topology;
    use proptest::prelude::*;
    use train::plan::{MicroBatch, Place, Placement, Step};
    use train::problem::UnitTimes;

    use super::*;

    /// Micro-batches of a sequence each on a pipeline whose last stage has large logits for what a layer keeps.
    fn with_large_logits(lengths: &[u64], pp: u32) -> (Problem, Plan) {
        let mut problem = super::super::policies::tests::problem(lengths.to_vec(), lengths.len(), 1, 1, 8192);
        problem.cluster = hw::catalog::cluster(&problem.cluster.gpu, 1, pp);
        problem.layout.pp = pp;
        (problem.model.n_layers, problem.model.vocab) = (2 * u64::from(pp), 20_000);
        let micro_batch = |(sequence, &tokens): (u32, &u64)| MicroBatch {
            sequences: vec![Placement { sequence, from: 0, tokens, place: Place::Sharded }],
            ..MicroBatch::default()
        };
        let step = Step::of_groups(vec![(0..).zip(lengths).map(micro_batch).collect()]);
        let plan = Plan::new("test", &problem, vec![step]);
        (problem, plan)
    }

    /// Activations and logits of the fullest rank, as a step is played in an order of each rank, bytes.
    fn played_peak(problem: &Problem, plan: &Plan, order: Order) -> i64 {
        let mut plan = plan.clone();
        (plan.steps[0].orders, plan.steps[0].order_of) = (vec![order], vec![0]);
        let (graph, timeline) = played(problem, &plan, &Roofline::new(&problem.cluster));
        (0..graph.lanes.len()).map(|lane| held(&graph, &timeline, lane)).max().expect("there are ranks")
    }

    /// The first step of a plan as it is played, with room for everything.
    fn played(problem: &Problem, plan: &Plan, cost: &dyn CostModel) -> (TaskGraph, Timeline) {
        let graph = train::lower::training::lower(problem, plan, 0);
        let topology = Topology::of(&problem.cluster);
        let machine =
            Machine { cost, topology: &topology, memory_bytes: u64::MAX / 4, case: Case::Expected, speed_changes: &[] };
        match engine::simulate(&graph, &machine) {
            Outcome::Done(timeline) => (graph, timeline),
            other => panic!("{other:?}"),
        }
    }

    fn held(graph: &TaskGraph, timeline: &Timeline, lane: usize) -> i64 {
        let is_counted = |label: &String| label == "activations" || label == "logits";
        let mut effects: Vec<_> = graph
            .effects
            .iter()
            .filter(|effect| graph.tasks[effect.task.0 as usize].lane.index() == lane)
            .filter(|effect| is_counted(&graph.labels[effect.label.0 as usize]))
            .map(|effect| match effect.moment {
                Moment::End => (timeline.end[effect.task.0 as usize], 0, effect.delta_bytes),
                Moment::Start => (timeline.start[effect.task.0 as usize], 1, effect.delta_bytes),
            })
            .collect();
        effects.sort_by_key(|(at, moment, _)| (*at, *moment));
        let held = effects.iter().scan(0, |held, (_, _, change)| {
            *held += change;
            Some(*held)
        });
        held.max().unwrap_or(0)
    }

    #[test]
    fn optimal_orders_hold_no_more_than_1f1b_as_they_are_played() {
        let mut n_above = 0;
        for lengths in [&[4000, 1000, 2000, 1000][..], &[1000, 1000, 4000, 1000], &[2000; 4], &[1000, 3000, 500, 2500]]
        {
            let (problem, plan) = with_large_logits(lengths, 2);
            let (pipelines, _) = pipelines(&problem, &plan, 0, &Roofline::new(&problem.cluster));
            let pipeline = Pipeline { limit: None, ..pipelines[0].clone() };
            assert!(pipeline.logits.iter().all(|logits| *logits > 0));
            let of_1f1b = (train::schedule::named("1f1b").expect("listed").order)(&pipeline);
            let most = played_peak(&problem, &plan, of_1f1b);
            let peak = |pipeline: &Pipeline| {
                let found = found(pipeline).expect("one micro-batch fits");
                played_peak(&problem, &plan, found.plan.order)
            };
            assert!(peak(&pipeline) <= most, "{lengths:?}: {} against {most}", peak(&pipeline));
            let without = Pipeline { logits: vec![0; lengths.len()], ..pipeline };
            n_above += usize::from(peak(&without) > most);
        }
        assert!(n_above > 0, "logits count nowhere");
    }

    /// Two stages and four, micro-batches of one length and of several, messages shorter and longer than passes: what the solver says is what is played.
    #[test]
    fn spans_of_optimal_orders_are_those_that_are_played() {
        for (pp, lengths, message) in
            [(2, &[3, 4, 2][..], 2), (2, &[6, 6, 1], 2), (4, &[2, 2, 2, 2], 2), (4, &[1, 3, 2], 1), (2, &[3, 4, 2], 0)]
        {
            for stage in [true, false] {
                let (mut problem, mut plan) = with_large_logits(lengths, pp);
                problem.schedule = &OPTIMAL;
                problem.execution.overlap.stage = stage;
                let units = UnitTimes { forward: 1000, input: 2000, weight: 500, message: message * 1000 };
                problem.execution.unit_times = Some(units);
                let cost = Roofline::new(&problem.cluster);
                let said = complete(&problem, &mut plan, &cost).and_then(|found| found.objective()).expect("an order");
                let (_, timeline) = played(&problem, &plan, &cost);
                let played_s = timeline.span().to_seconds().get();
                assert!(
                    (said - played_s).abs() < 1e-12,
                    "{pp} {lengths:?} {message} {stage}: {said} against {played_s}"
                );
            }
        }
    }

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
