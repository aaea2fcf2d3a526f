//! The bound is below every simulated step, and the search returns what simulating everything returns.

use std::collections::BTreeMap;

use engine::Model;
use engine::cost::roofline::Roofline;
use hw::topology::Topology;
use train::Workload;
use train::layout::{ContextExchange, Layout, Zero};
use train::problem::{Execution, GradientSync, Problem, Recompute};

use super::bound::{Judge, of_order};
use super::space::Space;
use super::*;

/// A small model on two nodes of four GPUs with little memory, so that some layouts do not fit.
fn problem(lengths: Vec<u64>, execution: Execution, memory_gib: f64) -> Problem {
    let mut gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    gpu.memory = hw::Bytes::from_gib(memory_gib);
    let model =
        Model { n_layers: 6, n_heads: 8, n_kv_heads: 8, ..engine::model::embedded("gpt-7b").expect("embedded") };
    Problem {
        model,
        cluster: hw::catalog::cluster(&gpu, 2, 4),
        layout: Layout::data_and_context(8, 1, Zero::OptimizerStates, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: Workload { batch_size: lengths.len(), lengths, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution,
        bucket_tokens: 1024,
        reserved_memory: hw::Bytes(0),
        seed: 1,
    }
}

/// Every kind of layout, few values each.
fn space(problem: &Problem) -> Space {
    let all = ["1f1b", "interleaved", "zb-1p", "zb-v", "dualpipe"];
    Space {
        chunks: vec![1, 2, 3],
        micro_batch: vec![1, 2, 4],
        schedules: all.into_iter().filter_map(train::schedule::named).collect(),
        cp: vec![1, 2],
        offload: vec![0.0, 0.7],
        ..Space::of(problem)
    }
}

fn check(problem: &Problem, policy: &str) {
    let cost = Roofline::new(&problem.cluster);
    let topology = Topology::of(&problem.cluster);
    let policy = crate::train::policies::named(policy).expect("listed");
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let space = space(problem);
    let mut judge = Judge::new(problem, policy, &context);
    let mut best = f64::INFINITY;
    let mut n_fit = 0;
    for candidate in space.candidates(problem) {
        let laid_out = candidate.problem(problem);
        let Ok(plan) = plan(&laid_out, policy, &context) else { continue };
        let step = simulate(&laid_out, &plan, &context, &topology);
        match (judge.bound(&candidate), step) {
            (None, found) => assert_eq!(found, None, "dropped for memory, yet it fits: {candidate:?}"),
            (Some(bound), Some(step)) => {
                n_fit += 1;
                assert!(bound <= step, "bound {bound} above {step}: {candidate:?}");
                if let Some(closer) = of_order(&laid_out, &plan, &cost) {
                    assert!(closer <= step, "bound of the order {closer} above {step}: {candidate:?}");
                }
                best = best.min(step);
            }
            (Some(_), None) => {}
        }
    }
    assert!(n_fit > 20, "{n_fit} layouts fit");
    let each: Each<'_> = &|all, judge| all.iter().map(judge).collect();
    let found =
        search(problem, policy, &context, &space, &topology, Effort::UntilProved, each).expect("some layout fits");
    assert_eq!(found.best.plan.step_s, best);
    assert!(found.n_simulated < found.n_judged);
}

#[test]
fn equal_sequences_are_searched_without_losing_the_best() {
    for gradient_sync in [GradientSync::AtEnd, GradientSync::Overlapped] {
        check(&problem(vec![1024; 16], Execution { gradient_sync, ..Execution::default() }, 40.0), "megatron");
    }
}

#[test]
fn hidden_exchanges_are_searched_without_losing_the_best() {
    for tensor in [0.4, 0.77] {
        for gradient_sync in [GradientSync::AtEnd, GradientSync::Overlapped] {
            let overlap = train::problem::Overlap { tensor, ..Execution::default().overlap };
            let execution = Execution { overlap, gradient_sync, ..Execution::default() };
            check(&problem(vec![1024; 16], execution, 40.0), "megatron");
        }
    }
}

/// One layer in two passes of 16 micro-batches has four exchanges that reduce, and with sequence parallelism as many that gather.
#[test]
fn only_the_hidden_share_of_an_exchange_leaves_the_bound() {
    let bound = |tensor: f64| {
        let overlap = train::problem::Overlap { tensor, ..Execution::default().overlap };
        let execution = Execution { overlap, gradient_sync: GradientSync::AtEnd, ..Execution::default() };
        let problem = problem(vec![1024; 16], execution, 80.0);
        let cost = Roofline::new(&problem.cluster);
        let policy = crate::train::policies::named("megatron").expect("listed");
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        let space = Space {
            tp: vec![4],
            pp: vec![1],
            micro_batch: vec![1],
            recompute: vec![Recompute::Off],
            ..space(&problem)
        };
        let mut judge = Judge::new(&problem, policy, &context);
        space.candidates(&problem).iter().map(|candidate| judge.bound(candidate).unwrap_or(0.0)).collect::<Vec<_>>()
    };
    let [whole, half, none] = [0.0, 0.5, 1.0].map(bound);
    for ((whole, half), none) in whole.into_iter().zip(half).zip(none).filter(|((whole, _), _)| *whole > 0.0) {
        assert!(none < half && half < whole, "{none} {half} {whole}");
        // Half of the exchange, less what six layers in whole repeats may round away.
        let left = (half - none) / (whole - none);
        assert!((0.3..=0.5).contains(&left), "{left}");
    }
}

#[test]
fn mixed_sequences_are_searched_without_losing_the_best() {
    let lengths = (0..24).map(|k| 64 + 37 * (k * k % 27)).collect();
    check(
        &problem(lengths, Execution { gradient_sync: GradientSync::AtEnd, ..Execution::default() }, 80.0),
        "best_fit",
    );
}

#[test]
fn tight_memory_drops_only_what_does_not_fit() {
    check(&problem(vec![1024; 16], Execution::default(), 14.0), "megatron");
}
