//! A synthetic run for tests and the example: invented times, no measurement of anything.

use std::collections::BTreeMap;

use engine::task::{LaneId, Op, Role, Stream, Task};
use engine::timeline::MemoryMark;
use engine::{TaskGraph, Timeline};
use hw::Time;
use reports::{CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};

/// Memory of the made-up device.
pub const DEVICE_BYTES: u64 = 80 << 30;

/// A step of `n_ranks` ranks with `n_rounds` rounds of forward, exchange and backward; later ranks have less to do
/// when `is_uneven`, and everyone waits for the slowest before the gradient sync.
pub fn step(n_ranks: u32, n_rounds: u32, is_uneven: bool) -> (TaskGraph, Timeline) {
    let mut graph = TaskGraph::new(n_ranks);
    let op = graph.add_op(Op::Host { ns: 1 });
    let mut timeline = Timeline { memory: vec![Vec::new(); n_ranks as usize], ..Timeline::default() };
    let mut add = |rank: u32, stream: Stream, role: Role, start: u64, dur: u64, micro_batch: u32| {
        graph.add_task(Task { op, lane: LaneId(rank), stream, role, micro_batch, meeting: None }, &[]);
        timeline.start.push(Time::from_ns(start));
        timeline.end.push(Time::from_ns(start + dur));
        start + dur
    };
    let base = |rank: u32| if is_uneven { 900_000 - u64::from(rank % 8) * 70_000 } else { 640_000 };
    let mut ends = Vec::new();
    for rank in 0..n_ranks {
        let mut at = 0;
        for round in 0..n_rounds {
            let work = base(rank) * (1 + u64::from((round * 7 + rank) % 5)) / 3;
            at = add(rank, Stream::Compute, Role::Forward, at, work, round);
            add(rank, Stream::IntraNode, Role::ContextExchange, at - work / 3, work / 2, round);
            at += work / 6;
            add(rank, Stream::InterNode, Role::ParameterGather, at, work / 4, round);
            at = add(rank, Stream::Compute, Role::Recompute, at, work / 2, round);
            at = add(rank, Stream::Compute, Role::Backward, at, work * 2, round);
        }
        ends.push(at);
    }
    let slowest = ends.iter().copied().max().unwrap_or(0);
    for rank in 0..n_ranks {
        let at = add(rank, Stream::InterNode, Role::GradientSync, slowest, slowest / 12, u32::MAX);
        add(rank, Stream::Compute, Role::Optimizer, at, slowest / 20, u32::MAX);
    }
    for (rank, marks) in timeline.memory.iter_mut().enumerate() {
        let end = ends[rank];
        for index in 0..40_u64 {
            let gib = 20 + (rank as u64 % 8) + if index % 2 == 0 { 0 } else { 4 + index / 2 };
            marks.push(MemoryMark { at: Time::from_ns(end * index / 40), bytes: gib << 30 });
        }
    }
    (graph, timeline)
}

/// Lengths with a long tail.
pub fn lengths() -> Vec<u64> {
    (0..256_u64).map(|index| 120 + (index * index * 37) % 900 + if index % 16 == 0 { 700 * index } else { 0 }).collect()
}

fn policy(name: &str, seconds: f64, imbalance: f64, exposed: f64) -> PolicyResult {
    let metrics = [
        ("iteration_time_s", seconds),
        ("tokens_per_s", 420_000.0 / seconds),
        ("tokens_per_s_per_gpu", 420_000.0 / seconds / 32.0),
        ("mfu_ratio", 0.3 / seconds),
        ("dp_imbalance_ratio", imbalance),
        ("comm_exposed_ratio", exposed),
        ("peak_memory_bytes", 4.4e10),
        ("peak_memory_bytes_min", 3.1e10),
    ];
    PolicyResult {
        chosen: BTreeMap::new(),
        draws: None,
        policy: name.to_owned(),
        status: reports::Ended::Ok,
        why: "attention 41 %, matrix multiplication 22 %, waiting for slower ranks 19 %, exposed context exchange 9 %"
            .to_owned(),
        metrics: metrics.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        interval: BTreeMap::from([("iteration_time_s".to_owned(), [seconds * 0.95, seconds * 1.045])]),
        planner: Some(PlannerFacts {
            objective: Some(1.25),
            bound: Some(1.0),
            gap_ratio: Some(0.2),
            status: reports::Status::Heuristic,
            ..PlannerFacts::default()
        }),
        measured: Measured { planner_wall_s: 0.001, simulate_wall_s: 0.02 },
    }
}

/// Three policies that ran and one that did not fit.
pub fn run() -> RunResult {
    let oom = PolicyResult {
        policy: "skrull-without-roll-back".to_owned(),
        status: reports::Ended::OutOfMemory,
        why: "rank 3 asks for 12.4 GiB for `activations` at 0.214 s and has 3.1 GiB left of 80.0 GiB".to_owned(),
        ..PolicyResult::default()
    };
    RunResult {
        origin: reports::Origin::default(),
        measured: reports::RunMeasured::default(),
        schema: reports::SCHEMA.to_owned(),
        kind: "training".to_owned(),
        scenario: "synthetic-32".to_owned(),
        seed: 7,
        version: "0.1.0".to_owned(),
        cost_model: CostModelFacts {
            shares: Vec::new(),
            profile: "synthetic".to_owned(),
            source: "datasheet".to_owned(),
            outside_hull_ratio: 0.125,
            outside_hull: vec!["attention: document length".to_owned()],
            free_parameters: vec!["host time per kernel, fitted to nothing, for this picture only".to_owned()],
        },
        columns: Vec::new(),
        results: vec![
            policy("deepspeed", 1.842, 1.84, 0.221),
            policy("longalign-sorted", 1.574, 1.41, 0.187),
            oom,
            policy("skrull", 1.316, 1.06, 0.094),
        ],
        baseline: "deepspeed".to_owned(),
        relative_to: String::new(),
        speedup_ratio: BTreeMap::from([
            ("deepspeed".to_owned(), 1.0),
            ("longalign-sorted".to_owned(), 1.842 / 1.574),
            ("skrull".to_owned(), 1.842 / 1.316),
        ]),
    }
}
