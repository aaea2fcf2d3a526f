//! Log probabilities of answers: forward passes of the trainer's model, without a backward.
//!
//! The same plan is played with GPipe's order, which runs all forwards before any backward (arXiv:1811.06965). The last forward ends where a pass of
//! forwards alone would. So everything that a forward has is in it: exchanges, launches, messages between stages, the head. Units: seconds.

use engine::cost::CostModel;
use engine::play::{Case, Machine, Outcome, simulate_cases};
use engine::task::Role;
use engine::verdict::Refused;
use hw::Time;
use hw::topology::Topology;
use train::lower::training::lower;
use train::plan::{Plan, Step};
use train::problem::Problem;
use train::schedule::{self, Pipeline};

use crate::cycle::CASES;

/// Time of the forwards of all steps of a plan one after another, without an update in between, at all ends of the costs.
///
/// # Errors
/// When a plan has pipelines of different shape, which have no common order.
///
/// # Panics
/// When lowering made a graph that cannot finish.
pub fn forward_s(problem: &Problem, plan: &Plan, cost: &dyn CostModel) -> Result<[f64; 3], Refused> {
    if plan.steps.iter().any(|step| step.is_mixed()) {
        let why = "log probabilities need pipelines of one shape, and this plan has several";
        return Err(Refused::infeasible(why.to_owned()));
    }
    let mut problem = problem.clone();
    problem.schedule = schedule::named("gpipe").expect("listed");
    problem.layout.chunks = 1;
    if problem.execution.layers.len() > problem.layout.pp as usize {
        problem.execution.layers = joined(&problem.execution.layers, problem.layout.pp as usize);
    }
    // Parameters are there: nothing was updated in between.
    problem.execution.overlap.parameter_gather = false;
    let plan = forwards_first(&problem, plan);
    let topology = Topology::of(&problem.cluster);
    let machine =
        Machine { cost, topology: &topology, memory_bytes: u64::MAX, case: Case::Expected, speed_changes: &[] };
    Ok(last_forward_s(&problem, &plan, &machine))
}

/// Layers of ranks whose chunks were listed along the path of interleaved stages.
fn joined(layers: &[u32], n_ranks: usize) -> Vec<u32> {
    (0..n_ranks).map(|rank| layers.iter().skip(rank).step_by(n_ranks).sum()).collect()
}

/// The plan in one step, with the order of passes that has all forwards first.
fn forwards_first(problem: &Problem, plan: &Plan) -> Plan {
    let mut groups = vec![Vec::new(); problem.layout.dp as usize];
    for step in &plan.steps {
        for (group, micro_batches) in groups.iter_mut().zip(&step.groups) {
            group.extend(micro_batches.iter().cloned());
        }
    }
    let most = groups.iter().map(Vec::len).max().unwrap_or(0);
    let in_step = problem.layout.groups_in_step() > 1;
    // Groups whose exchanges join them have as many passes as the longest one.
    let n_passes: Vec<usize> = groups.iter().map(|group| if in_step { most } else { group.len() }).collect();
    let mut step = Step::of_groups(groups);
    if problem.layout.pp > 1 {
        let mut counts = n_passes.clone();
        counts.sort_unstable();
        counts.dedup();
        let order = |n: &usize| {
            let pipeline = Pipeline::of_schedule(problem.schedule, problem.layout.pp as usize, 1, *n);
            (problem.schedule.order)(&pipeline)
        };
        let of = |n: &usize| u32::try_from(counts.partition_point(|known| known < n)).expect("few orders");
        step.orders = counts.iter().map(order).collect();
        step.order_of = n_passes.iter().map(of).collect();
    }
    Plan::new(&plan.policy, problem, vec![step])
}

fn last_forward_s(problem: &Problem, plan: &Plan, machine: &Machine<'_>) -> [f64; 3] {
    let graph = lower(problem, plan, 0);
    let ends = simulate_cases(&graph, machine, &CASES).into_iter().map(|outcome| {
        let Outcome::Done(timeline) = outcome else { panic!("a step with memory for all ends") };
        let tasks = graph.tasks.iter().zip(&timeline.end);
        let ends = tasks.filter(|(task, _)| task.role == Role::Forward).map(|(_, end)| *end);
        ends.max().map_or(0.0, |end| (end - Time::ZERO).to_seconds().get())
    });
    ends.collect::<Vec<_>>().try_into().expect("an end for every case")
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;
    use train::layout::Layout;
    use train::plan::{MicroBatch, Place, Placement};
    use train::problem::{Execution, UnitTimes};
    use train::workload::Workload;

    use super::*;
    use crate::example;

    const TOKENS: u64 = 1000;

    /// Equal micro-batches of one sequence.
    fn asked(pp: u32, chunks: u32, n_micro_batches: u32, execution: Execution) -> (Problem, Plan) {
        let one = example::trainer([1, pp, 1], 1);
        let schedule = schedule::named(if chunks > 1 { "interleaved" } else { "1f1b" }).expect("listed");
        let n = n_micro_batches as usize;
        let problem = Problem {
            layout: Layout { chunks, ..one.layout },
            schedule,
            workload: Workload { lengths: vec![TOKENS; n], batch_size: n, source: String::new() },
            execution,
            bucket_tokens: TOKENS,
            ..one
        };
        let sequences = |sequence| vec![Placement { sequence, from: 0, tokens: TOKENS, place: Place::Local(0) }];
        let group =
            (0..n_micro_batches).map(|id| MicroBatch { sequences: sequences(id), ..MicroBatch::default() }).collect();
        let mut plan = Plan::new("equal", &problem, vec![Step::of_groups(vec![group])]);
        let pipeline = Pipeline::of_schedule(schedule, pp as usize, chunks as usize, n);
        plan.steps[0].orders = vec![(schedule.order)(&pipeline)];
        plan.steps[0].order_of = vec![0];
        (problem, plan)
    }

    fn seconds(pp: u32, chunks: u32, n_micro_batches: u32, execution: Execution) -> f64 {
        let (problem, plan) = asked(pp, chunks, n_micro_batches, execution);
        let [low, expected, high] = forward_s(&problem, &plan, &Roofline::new(&problem.cluster)).expect("one shape");
        assert!(low <= expected && expected <= high);
        expected
    }

    #[test]
    fn a_pipeline_of_forwards_fills_once() {
        // A pass of the whole model takes 4 µs a token, a fourth of it on each of four ranks: (8 + 3) · 1 ms.
        let units = UnitTimes { forward: 1000, input: 2000, weight: 2000, message: 0 };
        let execution = Execution { unit_times: Some(units), ..Execution::default() };
        for chunks in [1, 2] {
            let found = seconds(4, chunks, 8, execution.clone());
            assert!((found - 11e-3).abs() < 1e-9, "{found} s with {chunks} chunks");
        }
    }

    #[test]
    fn forwards_add_up_and_what_backward_computes_again_does_not_count() {
        let of = |n, recompute| seconds(1, 1, n, Execution { recompute, ..Execution::default() });
        let (off, full) = (train::problem::Recompute::Off, train::problem::Recompute::Full);
        let four = of(4, off);
        assert!((of(8, off) / four - 2.0).abs() < 1e-3);
        assert_eq!(four, of(4, full));
        // 2 · 7.1 billion parameters of layers and head · 4000 tokens, at three quarters of 989 TFLOP/s; the rest is bound by memory.
        assert!((0.077..0.1).contains(&four), "{four}");
    }
}
