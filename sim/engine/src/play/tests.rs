//! Claims about the engine: hand arithmetic on small graphs, and properties of random ones.
//!
//! Times are nanoseconds; `Op::Host` gives a task an exact duration.

use hw::topology::Topology;
use hw::{Bytes, BytesPerSecond, Cluster, FlopsPerSecond, Gpu, GroupShape, Rank, Seconds, Span, Time};
use proptest::prelude::*;

use super::*;
use crate::cost::fixed::Fixed;
use crate::task::{Collective, CopyKind, LabelId, LaneId, MemoryEffect, Moment, Op, Role, Stream, Task};

fn cluster(n_gpus: u32) -> Cluster {
    let gpu = Gpu {
        name: "test".to_owned(),
        memory: Bytes(1000),
        visible_memory: None,
        memory_bandwidth: BytesPerSecond::new(1e12),
        peak_bf16: FlopsPerSecond::new(1e14),
        peak_fp32: None,
        peak_fp8: None,
        peak_int8: None,
        peak_fp4: None,
        power_watts: None,
        intra_node_bandwidth: BytesPerSecond::new(1e9),
        mesh_links: None,
        host_bandwidth: BytesPerSecond::new(1e9),
        peer_access: true,
        source: String::new(),
        prices: Vec::new(),
    };
    Cluster {
        name: "test".to_owned(),
        gpu,
        n_nodes: 1,
        gpus_per_node: n_gpus,
        nvlink_island: n_gpus,
        nic_bandwidth: BytesPerSecond::new(1e9),
        intra_node_latency: Seconds::ZERO,
        inter_node_latency: Seconds::ZERO,
        gpus_per_switch: 1,
        host_memory: None,
        oversubscription: 1.0,
        fabric: hw::Fabric::Rail,
        collective_algorithm: None,
    }
}

fn play(graph: &TaskGraph, cost: &Fixed, speed_changes: &[SpeedChange]) -> Outcome {
    let n_ranks = u32::try_from(graph.lanes.len()).expect("few lanes");
    let topology = Topology::of(&cluster(n_ranks));
    let machine = Machine { cost, topology: &topology, memory_bytes: 1000, case: Case::Expected, speed_changes };
    simulate(graph, &machine)
}

fn ends(outcome: &Outcome) -> Vec<u64> {
    match outcome {
        Outcome::Done(timeline) => timeline.end.iter().map(|end| end.as_ns()).collect(),
        other => panic!("expected a finished run, found {other:?}"),
    }
}

struct Maker {
    graph: TaskGraph,
}

impl Maker {
    fn new(n_ranks: u32) -> Self {
        Self { graph: TaskGraph::new(n_ranks) }
    }

    fn task(&mut self, rank: u32, stream: Stream, op: Op, preds: &[TaskId]) -> TaskId {
        let op = self.graph.add_op(op);
        let task = Task { op, lane: LaneId(rank), stream, role: Role::Forward, micro_batch: 0, meeting: None };
        self.graph.add_task(task, preds)
    }

    fn compute(&mut self, rank: u32, ns: u64, preds: &[TaskId]) -> TaskId {
        self.task(rank, Stream::Compute, Op::Host { ns }, preds)
    }

    fn meet(&mut self, ranks: &[u32], preds: &[TaskId]) -> Vec<TaskId> {
        let members: Vec<Rank> = ranks.iter().map(|&rank| Rank(rank)).collect();
        let shape = GroupShape::inside(u32::try_from(ranks.len()).expect("few ranks"));
        let op = self.graph.add_op(Op::Collective { kind: Collective::AllGather, bytes: 8, shape });
        let group = self.graph.add_group(&members);
        let meeting = self.graph.add_meeting(group);
        let of = |rank| Task {
            op,
            lane: LaneId(rank),
            stream: Stream::IntraNode,
            role: Role::GradientSync,
            micro_batch: 0,
            meeting: Some(meeting),
        };
        ranks.iter().zip(preds).map(|(&rank, pred)| self.graph.add_task(of(rank), &[*pred])).collect()
    }

    fn effect(&mut self, task: TaskId, moment: Moment, label: LabelId, delta_bytes: i64) {
        self.graph.add_effect(MemoryEffect { task, moment, label, delta_bytes });
    }
}

#[test]
fn a_two_rank_pipeline_takes_what_hand_arithmetic_says() {
    // Stage 0 computes 10 ns per micro-batch, stage 1 20 ns behind it: 10 + 3 × 20 = 70.
    let mut maker = Maker::new(2);
    for _ in 0..3 {
        let first = maker.compute(0, 10, &[]);
        maker.compute(1, 20, &[first]);
    }
    assert_eq!(ends(&play(&maker.graph, &Fixed::default(), &[])), [10, 30, 20, 50, 30, 70]);
}

#[test]
fn messages_on_their_way_do_not_wait_for_each_other() {
    // Two leave their line at 10 and at 20, and are there 100 later each.
    let mut maker = Maker::new(1);
    for _ in 0..2 {
        let sent = maker.task(0, Stream::Back, Op::Host { ns: 10 }, &[]);
        maker.task(0, Stream::OnTheWay, Op::Host { ns: 100 }, &[sent]);
    }
    assert_eq!(ends(&play(&maker.graph, &Fixed::default(), &[])), [10, 110, 20, 120]);
}

#[test]
fn a_collective_starts_with_its_last_member_and_ends_for_all() {
    let mut maker = Maker::new(2);
    let fast = maker.compute(0, 10, &[]);
    let slow = maker.compute(1, 50, &[]);
    maker.meet(&[0, 1], &[fast, slow]);
    let cost = Fixed { default: Seconds::new(7e-9), table: Vec::new() };
    assert_eq!(ends(&play(&maker.graph, &cost, &[])), [10, 50, 57, 57]);
}

#[test]
fn collectives_entered_in_opposite_order_are_stuck_and_named() {
    // Rank 0 enters meeting a then b, rank 1 b then a: both wait for each other.
    let mut maker = Maker::new(2);
    let shape = GroupShape::inside(2);
    let op = maker.graph.add_op(Op::Collective { kind: Collective::AllReduce, bytes: 8, shape });
    let group = maker.graph.add_group(&[Rank(0), Rank(1)]);
    let (a, b) = (maker.graph.add_meeting(group), maker.graph.add_meeting(group));
    for (rank, meeting) in [(0, a), (0, b), (1, b), (1, a)] {
        let task = Task {
            op,
            lane: LaneId(rank),
            stream: Stream::IntraNode,
            role: Role::GradientSync,
            micro_batch: 0,
            meeting: Some(meeting),
        };
        maker.graph.add_task(task, &[]);
    }
    assert_eq!(play(&maker.graph, &Fixed::default(), &[]), Outcome::Stuck { waiting: vec![TaskId(0), TaskId(2)] });
}

#[test]
fn an_allocation_that_does_not_fit_is_named_with_what_was_free() {
    let mut maker = Maker::new(1);
    let weights = maker.graph.label("weights");
    let activations = maker.graph.label("activations");
    maker.graph.resident[0].push((weights, 600));
    let task = maker.compute(0, 5, &[]);
    let next = maker.compute(0, 5, &[]);
    maker.effect(task, Moment::Start, activations, 300);
    maker.effect(next, Moment::Start, activations, 200);
    let expected = Outcome::OutOfMemory {
        rank: Rank(0),
        at: Time::from_ns(5),
        allocation: "activations".to_owned(),
        needed: 200,
        free: 100,
        task: next,
    };
    assert_eq!(play(&maker.graph, &Fixed::default(), &[]), expected);
}

#[test]
fn what_a_cache_holds_free_counts_as_far_as_there_is_room() {
    // A device of 1000 bytes.
    let peak = |of_activations: i64| {
        let mut maker = Maker::new(1);
        let [activations, free] = ["activations", "free"].map(|name| maker.graph.label(name));
        maker.graph.spare = Some(free);
        let task = maker.compute(0, 5, &[]);
        maker.effect(task, Moment::Start, free, 300);
        maker.effect(task, Moment::Start, activations, of_activations);
        maker.effect(task, Moment::End, activations, -of_activations);
        maker.effect(task, Moment::End, free, -300);
        match play(&maker.graph, &Fixed::default(), &[]) {
            Outcome::Done(timeline) => Some(timeline.peak_memory_bytes(0)),
            _ => None,
        }
    };
    assert_eq!([600, 800, 1000].map(peak), [Some(900), Some(1000), Some(1000)]);
    assert_eq!(peak(1001), None, "tensors do not fit");
}

#[test]
fn a_device_at_half_speed_takes_twice_as_long_from_then_on() {
    // 10 ns at full speed, then 30 ns of work at half speed: 10 + 60.
    let mut maker = Maker::new(1);
    maker.compute(0, 40, &[]);
    let change = SpeedChange { rank: Rank(0), at: Time::from_ns(10), speed: 0.5 };
    assert_eq!(ends(&play(&maker.graph, &Fixed::default(), &[change])), [70]);
}

#[test]
fn two_collectives_on_the_same_ports_share_them() {
    // One of 100 ns alone from 0, another of 100 ns on the same ports from 50: both at half rate until the first
    // has its 50 ns left done at 150, then the second has 50 ns left: 200.
    let mut maker = Maker::new(2);
    let shape = GroupShape::inside(2);
    let op = Op::Collective { kind: Collective::AllGather, bytes: 200, shape };
    let delays = [0, 50];
    for (delay, stream) in delays.into_iter().zip([Stream::IntraNode, Stream::InterNode]) {
        let waits = [maker.compute(0, delay, &[]), maker.compute(1, delay, &[])];
        let id = maker.graph.add_op(op.clone());
        let meeting = {
            let group = maker.graph.add_group(&[Rank(0), Rank(1)]);
            maker.graph.add_meeting(group)
        };
        for rank in 0..2_u32 {
            let task = Task {
                op: id,
                lane: LaneId(rank),
                stream,
                role: Role::GradientSync,
                micro_batch: 0,
                meeting: Some(meeting),
            };
            maker.graph.add_task(task, &[waits[rank as usize]]);
        }
    }
    let cost = Fixed { default: Seconds::new(100e-9), table: Vec::new() };
    assert_eq!(ends(&play(&maker.graph, &cost, &[])), [0, 0, 150, 150, 50, 50, 200, 200]);
}

#[test]
fn opposite_host_copies_do_not_share_a_link() {
    let mut maker = Maker::new(1);
    maker.task(0, Stream::HostToDevice, Op::Copy { kind: CopyKind::HostToDevice, bytes: 100 }, &[]);
    maker.task(0, Stream::DeviceToHost, Op::Copy { kind: CopyKind::DeviceToHost, bytes: 100 }, &[]);
    let cost = Fixed { default: Seconds::new(100e-9), table: Vec::new() };
    assert_eq!(ends(&play(&maker.graph, &cost, &[])), [100, 100]);
}

/// Random graphs over three ranks: compute, copies and meetings with predecessors among earlier tasks.
fn graphs() -> impl Strategy<Value = TaskGraph> {
    prop::collection::vec((0_u32..3, 0_u64..50, 0_u32..5, any::<u32>(), any::<u32>()), 1..60).prop_map(|rows| {
        let mut maker = Maker::new(3);
        let label = maker.graph.label("buffer");
        for (rank, ns, kind, a, b) in rows {
            let n = u32::try_from(maker.graph.tasks.len()).expect("few tasks");
            let preds: Vec<TaskId> = if n == 0 { Vec::new() } else { vec![TaskId(a % n), TaskId(b % n)] };
            if kind == 0 && n > 0 {
                maker.meet(&[0, 1, 2], &[preds[0], preds[1], preds[0]]);
            } else if kind == 1 {
                maker.task(rank, Stream::HostToDevice, Op::Copy { kind: CopyKind::HostToDevice, bytes: ns }, &preds);
            } else {
                let task = maker.compute(rank, ns, &preds);
                maker.effect(task, Moment::Start, label, 100);
                maker.effect(task, Moment::End, label, -100);
            }
        }
        maker.graph
    })
}

proptest! {
    #[test]
    fn no_run_beats_its_critical_path_or_its_busiest_stream(graph in graphs()) {
        let cost = Fixed { default: Seconds::new(20e-9), table: Vec::new() };
        let Outcome::Done(timeline) = play(&graph, &cost, &[]) else { panic!("meetings in one order never get stuck") };
        let span = |task: usize| Span::from_seconds(cost.estimate(&graph.ops[graph.tasks[task].op.0 as usize]).time);
        let mut longest = vec![Span::ZERO; graph.tasks.len()];
        let mut busy = std::collections::BTreeMap::new();
        let mut last_on_stream = std::collections::BTreeMap::new();
        for (id, task) in graph.tasks.iter().enumerate() {
            let before = graph.preds(TaskId(u32::try_from(id).expect("few"))).iter().map(|pred| longest[pred.0 as usize]).max();
            longest[id] = before.unwrap_or(Span::ZERO) + span(id);
            *busy.entry((task.lane, task.stream)).or_insert(Span::ZERO) += span(id);
            for pred in graph.preds(TaskId(u32::try_from(id).expect("few"))) {
                prop_assert!(timeline.start[id] >= timeline.end[pred.0 as usize]);
            }
            if let Some(previous) = last_on_stream.insert((task.lane, task.stream), id) {
                prop_assert!(timeline.start[id] >= timeline.end[previous], "streams run in order without overlap");
            }
            prop_assert!(timeline.end[id] - timeline.start[id] >= span(id));
        }
        prop_assert!(timeline.span() >= longest.into_iter().max().unwrap_or(Span::ZERO));
        prop_assert!(timeline.span() >= busy.into_values().max().unwrap_or(Span::ZERO));
        for marks in &timeline.memory {
            prop_assert_eq!(marks.last().map_or(0, |mark| mark.bytes), 0, "memory returns to what was resident");
        }
    }

    #[test]
    fn the_same_graph_gives_the_same_timeline(graph in graphs()) {
        let cost = Fixed { default: Seconds::new(20e-9), table: Vec::new() };
        prop_assert_eq!(play(&graph, &cost, &[]), play(&graph, &cost, &[]));
    }
    #[test]
    fn durations_that_were_played_join_to_the_same_timeline(graph in graphs()) {
        let cost = Fixed { default: Seconds::new(20e-9), table: Vec::new() };
        let played = play(&graph, &cost, &[]);
        let Outcome::Done(timeline) = &played else { panic!("meetings in one order never get stuck") };
        let spans: Vec<Span> = timeline.start.iter().zip(&timeline.end).map(|(&start, &end)| end - start).collect();
        let topology = Topology::of(&cluster(3));
        let machine = Machine { cost: &cost, topology: &topology, memory_bytes: 1000, case: Case::Expected, speed_changes: &[] };
        prop_assert_eq!(join(&graph, &machine, &spans), played);
    }
}
