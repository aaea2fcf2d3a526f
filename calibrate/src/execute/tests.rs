//! Executions on a device with scripted times, against the simulator under the same times and against hand arithmetic.

use engine::cost::fixed::Fixed;
use engine::play::Case;
use engine::task::{Collective, CopyKind, MemoryEffect, Moment, Role, Stream, Task};
use hw::topology::Topology;
use hw::{GroupShape, Rank, Seconds};

use super::*;
use crate::tests::fake::Fake;

/// Every operation takes 100 ns, host time what it says.
fn fake() -> Fake {
    Fake::new(Box::new(|_, _| 100))
}

struct Maker {
    graph: TaskGraph,
}

impl Maker {
    fn task(&mut self, lane: u32, stream: Stream, op: Op, preds: &[TaskId]) -> TaskId {
        let op = self.graph.add_op(op);
        let task = Task { op, lane: LaneId(lane), stream, role: Role::Forward, micro_batch: 0, meeting: None };
        self.graph.add_task(task, preds)
    }

    fn compute(&mut self, lane: u32, ns: u64, preds: &[TaskId]) -> TaskId {
        self.task(lane, Stream::Compute, Op::Host { ns }, preds)
    }

    fn meet(&mut self, n_nodes: u32, preds: &[TaskId]) -> Vec<TaskId> {
        let shape = GroupShape { n_nodes, ..GroupShape::inside(2) };
        let op = self.graph.add_op(Op::Collective { kind: Collective::AllReduce, bytes: 8, shape });
        let group = self.graph.add_group(&[Rank(0), Rank(1)]);
        let meeting = Some(self.graph.add_meeting(group));
        let of = |lane| Task {
            op,
            lane: LaneId(lane),
            stream: Stream::IntraNode,
            role: Role::GradientSync,
            micro_batch: 0,
            meeting,
        };
        (0..2).map(|lane| self.graph.add_task(of(lane), &[preds[lane as usize]])).collect()
    }
}

fn run(graph: &TaskGraph, memory_bytes: u64) -> Result<Execution, ExecuteError> {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 2, 8);
    let topology = Topology::of(&cluster);
    let cost = Fixed { default: Seconds::new(400e-9), table: Vec::new() };
    let machine = Machine { cost: &cost, topology: &topology, memory_bytes, case: Case::Expected, speed_changes: &[] };
    execute(graph, &mut fake(), &machine, 3)
}

fn times(execution: &Execution) -> Vec<(u64, u64)> {
    let timeline = &execution.timeline;
    timeline.start.iter().zip(&timeline.end).map(|(start, end)| (start.as_ns(), end.as_ns())).collect()
}

#[test]
fn one_lane_runs_live_with_copies_behind_what_they_wait_for() {
    let mut maker = Maker { graph: TaskGraph::new(1) };
    let first = maker.compute(0, 300, &[]);
    let copy = maker.task(0, Stream::DeviceToHost, Op::Copy { kind: CopyKind::DeviceToHost, bytes: 8 }, &[first]);
    maker.compute(0, 50, &[]);
    maker.compute(0, 20, &[copy]);
    let execution = run(&maker.graph, 100).expect("it runs");
    // The copy runs from 300 to 400 beside compute until 350; the last task waits for it.
    assert_eq!(times(&execution), [(0, 300), (300, 400), (300, 350), (400, 420)]);
    assert!(execution.how.iter().all(|how| *how == How::Live));
}

#[test]
fn lanes_run_one_by_one_and_are_joined() {
    let mut maker = Maker { graph: TaskGraph::new(2) };
    let a = maker.compute(0, 300, &[]);
    let b = maker.compute(1, 500, &[]);
    let met = maker.meet(1, &[a, b]);
    maker.compute(0, 10, &[met[0]]);
    maker.compute(1, 20, &[met[1]]);
    let execution = run(&maker.graph, 100).expect("it runs");
    assert_eq!(times(&execution), [(0, 300), (0, 500), (500, 600), (500, 600), (600, 610), (600, 620)]);
    assert!(execution.how.iter().all(|how| *how == How::Joined));
    let exchange = execution.parts.iter().find(|part| matches!(part.op, Op::Collective { .. })).expect("it ran");
    assert_eq!((exchange.n, exchange.seconds), (1, 1e-7), "a meeting runs once");
}

#[test]
fn what_the_device_cannot_run_takes_the_models_time_and_says_so() {
    let mut maker = Maker { graph: TaskGraph::new(2) };
    let (a, b) = (maker.compute(0, 300, &[]), maker.compute(1, 500, &[]));
    maker.meet(2, &[a, b]);
    let execution = run(&maker.graph, 100).expect("it runs");
    assert_eq!(times(&execution)[2..], [(500, 900), (500, 900)]);
    assert_eq!(execution.how, [How::Joined, How::Joined, How::Modelled, How::Modelled]);
}

#[test]
fn parts_of_a_task_run_as_often_as_it_says() {
    let mut maker = Maker { graph: TaskGraph::new(1) };
    let part = Op::Elementwise { bytes: 8 };
    maker.task(0, Stream::Compute, Op::Sequence(vec![(part.clone(), 7), (Op::Host { ns: 5 }, 2)]), &[]);
    let execution = run(&maker.graph, 100).expect("it runs");
    assert_eq!(times(&execution), [(0, 710)]);
    assert_eq!(execution.parts[0], PartTime { op: part, seconds: 1e-7, n: 7 });
}

#[test]
fn a_plan_that_does_not_fit_names_the_tensor_before_anything_runs() {
    let mut maker = Maker { graph: TaskGraph::new(1) };
    let task = maker.compute(0, 300, &[]);
    let label = maker.graph.label("activations");
    maker.graph.add_effect(MemoryEffect { task, moment: Moment::Start, label, delta_bytes: 101 });
    let error = run(&maker.graph, 100).expect_err("it does not fit").to_string();
    assert_eq!(error, "out of device memory: `activations` needs 101 bytes on rank 0, 100 are free");
}

#[test]
fn an_operand_that_does_not_fit_names_its_operation() {
    let mut maker = Maker { graph: TaskGraph::new(1) };
    maker.task(0, Stream::Compute, Op::Elementwise { bytes: 1 << 50 }, &[]);
    let error = run(&maker.graph, 100).expect_err("it does not fit").to_string();
    assert!(error.starts_with("out of device memory: operands of elementwise kernel"), "{error}");
}

#[test]
fn parts_of_a_sequence_take_turns_as_layers_do() {
    let part = |ns| Op::Host { ns };
    let (norm, product, gather) = (part(1), part(2), part(3));
    let order = |parts: &[(&Op, u32)]| -> Vec<u64> {
        let ns = |op: &Op| if let Op::Host { ns } = op { *ns } else { 0 };
        layer_by_layer(parts).into_iter().map(ns).collect()
    };
    assert_eq!(order(&[(&norm, 3), (&product, 3)]), [1, 2, 1, 2, 1, 2]);
    assert_eq!(order(&[(&norm, 4), (&gather, 2)]), [1, 1, 3, 1, 1, 3]);
    assert_eq!(order(&[(&norm, 1), (&product, 2), (&gather, 0)]), [2, 1, 2]);
    assert!(order(&[]).is_empty());
}
