//! Layouts beside slow GPUs.

use train::straggler::Straggler;

use super::*;

fn straggler(rank: u32, rate: f64, from_step: usize) -> Straggler {
    Straggler { ranks: vec![hw::Rank(rank)], rate, from_step, until_step: None }
}

#[test]
fn layouts_beside_stragglers_are_searched_without_losing_the_best() {
    let few = |problem: &Problem| Space {
        micro_batch: vec![1, 2],
        recompute: vec![Recompute::Off, Recompute::Full],
        zero: vec![Zero::Off, Zero::OptimizerStates],
        ..space(problem)
    };
    // One from the second step on, one beside a milder one on its node, one that is named and healthy.
    for stragglers in
        [vec![straggler(5, 2.5, 1)], vec![straggler(0, 1.7, 0), straggler(3, 4.0, 0), straggler(6, 1.0, 0)]]
    {
        let lengths: Vec<u64> = (0..16).map(|k| 64 + 37 * (k * k % 27)).collect();
        let mut mixed = problem(lengths, Execution { stragglers, ..Execution::default() }, 60.0);
        mixed.workload.batch_size = 8;
        check_space(&mixed, "skrull", &few(&mixed));
        let overlap = train::problem::Overlap { tensor: 0.5, ..mixed.execution.overlap };
        let equal = Workload { lengths: vec![1024; 32], batch_size: 16, source: "test".to_owned() };
        let equal = Problem { workload: equal, execution: Execution { overlap, ..mixed.execution.clone() }, ..mixed };
        check_space(&equal, "megatron", &few(&equal));
    }
}

/// A straggler of rate 3 that exchanges nothing before the step's end takes three times as long for its passes: the bound is no looser beside it than
/// without it.
#[test]
fn the_bound_beside_a_straggler_is_as_close_as_without() {
    let of = |stragglers: Vec<Straggler>| {
        let problem = problem(vec![1024; 32], Execution { stragglers, ..Execution::default() }, 80.0);
        let cost = Roofline::new(&problem.cluster);
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        let policy = crate::train::policies::named("megatron").expect("listed");
        let few = Space {
            tp: vec![1],
            cp: vec![1],
            pp: vec![1],
            micro_batch: vec![1],
            offload: vec![0.0],
            ..space(&problem)
        };
        let mut judge = Judge::new(&problem, policy, &context);
        let close = few.candidates(&problem).into_iter().map(|candidate| {
            let laid_out = candidate.problem(&problem);
            let plan = plan(&laid_out, policy, &context).expect("a plan");
            let step_s = simulate(&laid_out, &plan, &context, &Topology::of(&laid_out.cluster));
            let least = judge.least(&candidate).map_or(0.0, |least| least.step_s);
            step_s.map_or(1.0, |step_s| least / step_s)
        });
        close.fold(1.0, f64::min)
    };
    let [healthy, beside] = [Vec::new(), vec![straggler(5, 3.0, 0)]].map(of);
    assert!(beside >= healthy && healthy > 0.8, "{beside} beside one, {healthy} without");
}
