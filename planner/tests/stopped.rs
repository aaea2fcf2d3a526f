//! A search of layouts that is stopped while it plays. The wish to stop is the process's, so this test has a process of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::cost::roofline::Roofline;
use engine::stop;
use hw::topology::Topology;
use planner::PlanContext;
use planner::train::policies;
use planner::train::search::space::Space;
use planner::train::search::{self, Effort, Found};
use train::layout::{ContextExchange, Layout, Zero};
use train::problem::{Execution, Problem};
use train::{Workload, schedule};

/// A small model on two nodes of four GPUs.
fn problem() -> Problem {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    let whole = engine::model::embedded("gpt-7b").expect("embedded");
    Problem {
        model: engine::Model { n_layers: 6, n_heads: 8, n_kv_heads: 8, ..whole },
        cluster: hw::catalog::cluster(&gpu, 2, 4),
        layout: Layout::data_and_context(8, 1, Zero::OptimizerStates, ContextExchange::Gather),
        schedule: schedule::named("1f1b").expect("listed"),
        workload: Workload { batch_size: 16, lengths: vec![1024; 16], source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens: 1024,
        reserved_memory: hw::Bytes(0),
        seed: 1,
    }
}

/// No run of days is sought.
fn unasked(_: &Problem, _: &train::Plan, _: f64) -> Result<f64, planner::PlanError> {
    unreachable!("steps alone are ranked")
}

/// The answer where everything is to end before the job of a number, counted over bounds and plays.
fn stopped_before(job: usize) -> Result<Found, planner::PlanError> {
    let problem = problem();
    let (cost, topology) = (Roofline::new(&problem.cluster), Topology::of(&problem.cluster));
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let policy = policies::named("megatron").expect("listed");
    let n_done = AtomicUsize::new(0);
    let each = |n: usize, one: &(dyn Fn(usize) + Sync)| {
        for index in 0..n {
            if n_done.fetch_add(1, Ordering::Relaxed) == job {
                stop::ask_all();
            }
            one(index);
        }
    };
    let found = stop::unless_over(|| {
        let space = Space::of(&problem);
        let found =
            search::search(&problem, policy, &context, (&space, &unasked), &topology, (Effort::UntilProved, &each))?;
        // What follows from the answer is still played.
        stop::pause();
        Ok(found)
    });
    stop::forget();
    found.expect("an answer, or why there is none")
}

#[test]
fn a_search_that_is_stopped_has_the_best_that_it_has_played() {
    let whole = stopped_before(usize::MAX).expect("an answer");
    assert_eq!(whole.n_open, 0);
    // Parts of the space with as many pipeline ranks are judged side by side: one, two, four and six or eight.
    let n_parts = {
        let problem = problem();
        let mut ranks: Vec<u32> = Space::of(&problem).candidates(&problem).iter().map(|of| of.layout.pp).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks.len()
    };
    let mut last = f64::INFINITY;
    for n_played in 1..8 {
        let found = stopped_before(n_parts + n_played).expect("an answer");
        assert!(found.n_simulated <= n_played && found.n_simulated > 0, "{} of {n_played}", found.n_simulated);
        assert!(found.n_open > 0, "{n_played}");
        let best = found.best.plan.step_s;
        assert!(whole.best.plan.step_s <= best && best <= last, "{} {best} {last}", whole.best.plan.step_s);
        last = best;
    }
    // Before anything is played there is no answer, and none is claimed not to exist.
    let none = stopped_before(n_parts).expect_err("nothing was played");
    assert!(matches!(none, planner::PlanError::Budget(_)), "{none}");
}
