//! What ZeRO 3 moves in a step, and the copies around exchanges of heads, counted by hand.

use crate::layout::{ContextExchange, Layout, Zero};
use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
use crate::problem::{Execution, GradientSync, Problem, Recompute};
use crate::workload::Workload;
use engine::task::{Collective, Op, Role, TaskGraph};

const N_RANKS: u32 = 4;
const TOKENS: u64 = 4096;

fn problem(zero: Zero) -> Problem {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    Problem {
        model: engine::model::embedded("llama-3-8b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 1, N_RANKS),
        layout: Layout::data_and_context(1, N_RANKS, zero, ContextExchange::Ulysses),
        schedule: crate::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: vec![TOKENS; 3], batch_size: 3, source: "test".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution { recompute: Recompute::Off, ..Execution::default() },
        bucket_tokens: 1 << 20,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    }
}

/// One sequence per micro-batch, over all ranks or on one.
fn graph(problem: &Problem, place: Place) -> TaskGraph {
    let of = |(sequence, tokens)| MicroBatch {
        sequences: vec![Placement { sequence, from: 0, tokens, place }],
        ..MicroBatch::default()
    };
    let step = Step::of_groups(vec![problem.workload.step(0).map(of).collect()]);
    let plan = Plan::new("test", problem, vec![step]);
    assert_eq!(crate::check::check(problem, &plan), Ok(()));
    super::super::lower(problem, &plan, 0)
}

/// Tasks and bytes of a collective in a role on the first lane.
fn moved(graph: &TaskGraph, role: Role, of: Collective) -> (usize, u64) {
    let bytes = |op: &Op| match op {
        Op::Sequence(parts) => parts
            .iter()
            .map(|(part, n)| match part {
                Op::Collective { kind, bytes, .. } if *kind == of => bytes * u64::from(*n),
                _ => 0,
            })
            .sum(),
        _ => 0,
    };
    let tasks = graph.tasks.iter().filter(|task| task.lane.index() == 0 && task.role == role);
    let each: Vec<u64> = tasks.map(|task| bytes(&graph.ops[task.op.0 as usize])).filter(|bytes| *bytes > 0).collect();
    (each.len(), each.iter().sum())
}

#[test]
fn zero_3_reduces_every_micro_batch_and_the_others_where_the_scenario_says_so() {
    let parameters = problem(Zero::Off).model.n_parameters();
    let (last, each) = (GradientSync::Overlapped, GradientSync::EachMicroBatch);
    for (zero, sync, n_reduced) in [
        (Zero::OptimizerStates, last, 1),
        (Zero::Gradients, last, 1),
        (Zero::Gradients, each, 3),
        (Zero::Parameters, last, 3),
    ] {
        let mut problem = problem(zero);
        problem.execution.gradient_sync = sync;
        let graph = graph(&problem, Place::Sharded);
        let (n, bytes) = moved(&graph, Role::GradientSync, Collective::ReduceScatter);
        assert_eq!(n, 4 * n_reduced, "{zero:?}");
        let expected = 2 * parameters * n_reduced as u64;
        assert!(bytes.abs_diff(expected) < expected / 1000, "{zero:?}: {bytes} against {expected}");
    }
}

#[test]
fn zero_3_gathers_all_parameters_twice_per_micro_batch() {
    let problem = problem(Zero::Parameters);
    let (n, bytes) = moved(&graph(&problem, Place::Sharded), Role::ParameterGather, Collective::AllGather);
    // First layer and rest, forward and backward, three micro-batches.
    assert_eq!(n, 12);
    let expected = 6 * 2 * problem.model.n_parameters();
    assert!(bytes.abs_diff(expected) < expected / 1000, "{bytes} against {expected}");
}

#[test]
fn an_exchange_of_heads_copies_what_it_sends_or_gets_once() {
    let problem = problem(Zero::OptimizerStates);
    let elementwise = |graph: &TaskGraph| -> u64 {
        let of = |op: &Op| match op {
            Op::Sequence(parts) => parts
                .iter()
                .map(|(part, n)| match part {
                    Op::Elementwise { bytes } => bytes * u64::from(*n),
                    _ => 0,
                })
                .sum::<u64>(),
            _ => 0,
        };
        let computes = [Role::Forward, Role::Backward];
        graph
            .tasks
            .iter()
            .filter(|task| computes.contains(&task.role))
            .map(|task| of(&graph.ops[task.op.0 as usize]))
            .sum()
    };
    // The graph has a lane per distinct rank: whole sequences on the first rank against all ranks' shares, which add up to the same but for copies.
    let cut = graph(&problem, Place::Sharded);
    let shares: u64 = elementwise(&cut) * u64::from(N_RANKS) / cut.lanes.len() as u64;
    let whole = elementwise(&graph(&problem, Place::Local(0)));
    let model = &problem.model;
    // Queries, keys and values in, outputs out, two bytes an element, read and written; forward and backward of 32 layers.
    let per_token = 2 * 2 * (2 * model.n_heads + 2 * model.n_kv_heads) * model.head_dim;
    assert_eq!(shares - whole, per_token * TOKENS * 3 * 2 * model.n_layers);
}
