//! Claims of the paper about plans (its sections 3.3 to 3.5 and 5), on made-up tasks whose layers follow T(n) = a + w/n.

use good_lp::{Expression, ProblemVariables, constraint, variable};
use hw::{Bytes, Cluster};
use proptest::prelude::*;
use sim::cost::fixed::Fixed;
use sim::engine::Case;
use sim::multi_task::curve::Curve;
use sim::multi_task::schedule::check;
use sim::multi_task::{Body, Call, Execution, MultiTask, Operator, Task, Work};

use super::bound::bound;
use super::contract::contract;
use super::optimum::{Job, optimum, two_sizes, whole_layers};
use super::place::Placement;
use super::{POLICIES, Policy, plan, spindle};

/// An encoder or head: layers, and milliseconds of one sample's layer.
type Kind = (&'static str, u32, f64);

/// Lengths and widths of ImageBind's encoders, as milliseconds per sample in the proportion of their work, and a contrastive head.
const KINDS: [Kind; 7] = [
    ("vision", 32, 0.050),
    ("text", 24, 0.010),
    ("audio", 12, 0.016),
    ("depth", 12, 0.004),
    ("thermal", 12, 0.014),
    ("imu", 6, 0.008),
    ("head", 1, 0.010),
];

/// Pairs of modalities with their batches; the first `n` are a set.
const PAIRS: [(&str, &str, u64); 10] = [
    ("vision", "text", 64),
    ("audio", "text", 96),
    ("vision", "audio", 48),
    ("depth", "text", 64),
    ("thermal", "text", 96),
    ("imu", "text", 64),
    ("vision", "depth", 32),
    ("vision", "thermal", 32),
    ("audio", "imu", 64),
    ("vision", "imu", 48),
];

fn cluster(n_gpus: u32) -> Cluster {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    hw::catalog::cluster(&gpu, n_gpus.div_ceil(8), n_gpus.min(8))
}

/// A call whose layer takes `fixed_ms + per_sample_ms × batch / n`.
fn call(task: usize, operator: usize, after: Vec<usize>, n_gpus: u32, law: impl Fn(f64) -> f64) -> Call {
    let times = (1..=n_gpus).map(|n| (n, law(f64::from(n)) / 1e3)).collect();
    let name = KINDS.get(operator).map_or("part", |kind| kind.0).to_owned();
    Call { task, operator, name, tokens: 64, output_tokens: 1, after, times }
}

fn operator(name: &str, n_layers: u32) -> Operator {
    let body = Body::Given;
    Operator { name: name.to_owned(), n_layers, hidden: 1024, body, parameters: 1_000_000, tensor_degrees: vec![1] }
}

fn work(training: MultiTask) -> Work {
    let meta_ops = contract(&training);
    Work::new(training, meta_ops, &Fixed::default(), Case::Expected).expect("every call can run")
}

fn training(operators: Vec<Operator>, tasks: Vec<Task>, calls: Vec<Call>, n_gpus: u32) -> MultiTask {
    let (cluster, reserved, execution) = (cluster(n_gpus), Bytes::ZERO, Execution::default());
    MultiTask { operators, tasks, calls, cluster, reserved, execution }
}

/// The first `n_tasks` pairs on so many GPUs, each layer with `fixed_ms` that more GPUs do not shorten.
fn pairs(n_tasks: usize, n_gpus: u32, fixed_ms: f64) -> Work {
    let of = |name: &str| KINDS.iter().position(|kind| kind.0 == name).expect("listed");
    let (mut tasks, mut calls) = (Vec::new(), Vec::new());
    for (task, &(a, b, batch)) in PAIRS[..n_tasks].iter().enumerate() {
        tasks.push(Task { name: format!("{a}-{b}"), batch });
        for (kind, after) in [(of(a), vec![]), (of(b), vec![]), (6, vec![calls.len(), calls.len() + 1])] {
            let samples = f64::from(u32::try_from(batch).expect("small"));
            calls.push(call(task, kind, after, n_gpus, |n| fixed_ms + KINDS[kind].2 * samples / n));
        }
    }
    work(training(KINDS.map(|(name, n, _)| operator(name, n)).to_vec(), tasks, calls, n_gpus))
}

fn seconds(work: &Work, policy: Policy) -> f64 {
    let planned = plan(work, policy, Placement::Local);
    check(work, &planned.schedule).expect("every plan is a schedule");
    planned.seconds
}

#[test]
fn print_gaps() {
    for n_tasks in [4, 7, 10] {
        for n_gpus in [8, 16, 32] {
            for fixed in [0.02, 0.05, 0.2] {
            let work = pairs(n_tasks, n_gpus, fixed);
            let theory = spindle::theory_s(&work);
            let b = bound(&work).expect("bound");
            let all: Vec<f64> = POLICIES.iter().map(|p| seconds(&work, p.1) / theory).collect();
            println!("{n_tasks} {n_gpus} {fixed} theory {theory:.4} bound {:.4} {all:.3?} {}", b.seconds / theory, b.binding);
            }
        }
    }
}
