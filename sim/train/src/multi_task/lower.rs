//! From a schedule to tasks of the engine: a lane per device, forward through the pieces, backward in reverse, then gradients and optimizer.
//! Where tasks take turns, each goes forward and backward before the next one, so the activations of one are held at a time.
//!
//! Exchanges of a tensor group are part of its computation. What travels between pieces is a message on the sender's lane that the
//! receiver waits for. Devices that hold the same layers reduce their gradients together, everything that one group shares at once (the
//! paper's parameter device groups, section 3.6), after a device's last backward. With sharded optimizer states (ZeRO 1) a reduce-scatter
//! and an all-gather take the place of the all-reduce, which moves the same bytes, so the all-reduce stands for both.

use std::collections::BTreeMap;

use hw::{GroupShape, Rank};

use super::cost::Activations;
use super::schedule::{Schedule, Turns};
use super::{Work, cost, flow};
use crate::straggler::Rates;
use engine::layer::repeated;
use engine::task::{
    Collective, CopyKind, LabelId, LaneId, MemoryEffect, Moment, Op, OpId, Ops, Role, Stream, Task, TaskGraph, TaskId,
};

/// What of an iteration is played; the differences say where time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Forward and backward alone, what they need being there at once.
    Computation,
    /// And messages between pieces.
    Messages,
    /// And gradients and optimizer.
    Iteration,
}

/// Layers of an operator that a device holds, and how it shares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shard {
    /// Devices of the tensor group.
    tensor: u32,
    /// Position in it.
    index: u32,
}

/// Who holds a layer, in which shards.
type Holders = Vec<(Rank, Shard)>;

/// Who holds each layer of each operator: (operator, layer) to devices with their shards, each once.
fn holders(work: &Work, schedule: &Schedule) -> BTreeMap<(usize, u32), Holders> {
    let mut held: BTreeMap<(usize, u32), Holders> = BTreeMap::new();
    for piece in &schedule.pieces {
        let meta_op = &work.meta_ops[piece.meta_op];
        let operator = work.training.calls[meta_op.call].operator;
        let tensor = work.sizes[piece.meta_op][piece.size].tensor;
        for &layer in &meta_op.layers[piece.first as usize..(piece.first + piece.n_layers) as usize] {
            engine::stop::pause();
            let of_layer = held.entry((operator, layer)).or_default();
            of_layer
                .extend((0_u32..).zip(&piece.devices).map(|(at, &rank)| (rank, Shard { tensor, index: at % tensor })));
        }
    }
    for of_layer in held.values_mut() {
        of_layer.sort_unstable();
        of_layer.dedup();
    }
    held
}

/// Parameters that each device holds, and the groups that share some: devices to parameters.
struct Parameters {
    of_device: Vec<f64>,
    /// The same, each divided by the devices that share it.
    share: Vec<f64>,
    groups: BTreeMap<Vec<Rank>, f64>,
}

fn parameters(work: &Work, schedule: &Schedule) -> Parameters {
    let n = work.n_devices() as usize;
    let mut found = Parameters { of_device: vec![0.0; n], share: vec![0.0; n], groups: BTreeMap::new() };
    for ((operator, _), of_layer) in holders(work, schedule) {
        engine::stop::pause();
        let whole = hw::real(work.training.operators[operator].parameters);
        let tensor = of_layer[0].1.tensor;
        let mut by_shard: BTreeMap<u32, Vec<Rank>> = BTreeMap::new();
        if of_layer.iter().all(|(_, shard)| shard.tensor == tensor) {
            of_layer.iter().for_each(|(rank, shard)| by_shard.entry(shard.index).or_default().push(*rank));
        } else {
            // Shards of different cuts do not match: everyone keeps the whole layer.
            let all = by_shard.entry(0).or_default();
            all.extend(of_layer.iter().map(|(rank, _)| *rank));
            all.dedup();
        }
        let each = whole / f64::from(u32::try_from(by_shard.len()).expect("shards fit u32"));
        for group in by_shard.into_values() {
            let n_sharing = f64::from(u32::try_from(group.len()).expect("ranks fit u32"));
            for rank in &group {
                found.of_device[rank.index()] += each;
                found.share[rank.index()] += each / n_sharing;
            }
            *found.groups.entry(group).or_default() += each;
        }
    }
    found
}

impl Parameters {
    /// Groups that reduce gradients together, with the bytes.
    fn reductions(&self, work: &Work) -> impl Iterator<Item = (&Vec<Rank>, u64)> {
        let element = hw::real(work.training.execution.of_step.gradient_dtype.bytes());
        let bytes = move |shared: f64| hw::whole(shared * element);
        let groups = self.groups.iter().filter(|(members, _)| members.len() > 1);
        groups.map(move |(members, shared)| (members, bytes(*shared)))
    }
}

/// Groups of devices that reduce gradients together, with the bytes of each.
pub fn gradient_groups(work: &Work, schedule: &Schedule) -> Vec<(Vec<Rank>, u64)> {
    parameters(work, schedule).reductions(work).map(|(members, bytes)| (members.clone(), bytes)).collect()
}

struct Builder<'a> {
    work: &'a Work,
    schedule: &'a Schedule,
    graph: TaskGraph,
    ops: BTreeMap<Op, OpId>,
    activations: LabelId,
    rates: Rates,
    /// What the next pass of a device waits for besides: copies to the host and back.
    gate: Vec<Vec<TaskId>>,
    /// Forward task of each piece on each of its devices, and then backward.
    forward: Vec<Vec<TaskId>>,
    backward: Vec<Vec<TaskId>>,
    /// What all that comes waits for, where something takes turns.
    turn: Option<TaskId>,
    /// Passes since then.
    of_turn: Vec<TaskId>,
}

/// Tasks of one iteration.
pub fn lower(work: &Work, schedule: &Schedule, extent: Extent) -> TaskGraph {
    let mut graph = TaskGraph::new(work.n_devices());
    let activations = graph.label("activations");
    let n = schedule.pieces.len();
    let (forward, backward) = (vec![Vec::new(); n], vec![Vec::new(); n]);
    let mut builder = Builder {
        work,
        schedule,
        graph,
        ops: BTreeMap::new(),
        activations,
        rates: work.training.rates(),
        gate: vec![Vec::new(); work.n_devices() as usize],
        forward,
        backward,
        turn: None,
        of_turn: Vec::new(),
    };
    builder.pieces(extent);
    let parameters = parameters(work, schedule);
    builder.states(&parameters);
    if extent == Extent::Iteration {
        builder.finish(&parameters);
    }
    builder.graph
}

impl Builder<'_> {
    fn op(&mut self, op: Op) -> OpId {
        if let Some(&known) = self.ops.get(&op) {
            return known;
        }
        let id = self.graph.add_op(op.clone());
        self.ops.insert(op, id);
        id
    }

    fn pieces(&mut self, extent: Extent) {
        let flows = flow::flows(self.work, self.schedule);
        let (mut into, mut out_of) = (vec![Vec::new(); self.forward.len()], vec![Vec::new(); self.forward.len()]);
        for flow in flows {
            into[flow.to].push((flow.from, flow.bytes));
            out_of[flow.from].push((flow.to, flow.bytes));
        }
        for turn in self.schedule.in_turn(self.work) {
            self.next_turn();
            for at in turn.clone() {
                self.forward[at] = self.pass(at, Pass::Forward, &into[at], extent);
            }
            for at in turn.rev() {
                self.backward[at] = self.pass(at, Pass::Backward, &out_of[at], extent);
            }
        }
    }

    /// A pass of a piece that hears from others: in its turn, where pieces take turns.
    fn pass(&mut self, at: usize, pass: Pass, sources: &[(usize, u64)], extent: Extent) -> Vec<TaskId> {
        let mut arrivals = self.arrivals(at, sources, pass, extent > Extent::Computation);
        if self.schedule.turns == Turns::Pieces {
            self.next_turn();
        }
        arrivals.iter_mut().for_each(|of| of.extend(self.turn));
        let tasks = self.compute(at, pass, &arrivals);
        self.of_turn.extend(&tasks);
        tasks
    }

    /// What comes waits for all passes until now.
    fn next_turn(&mut self) {
        let before = std::mem::take(&mut self.of_turn);
        if before.is_empty() {
            return;
        }
        let op = self.op(Op::Sequence(Vec::new()));
        let (lane, stream, role) = (LaneId(0), Stream::Compute, Role::Forward);
        let task = Task { op, lane, stream, role, micro_batch: u32::MAX, meeting: None };
        self.turn = Some(self.graph.add_task(task, &before));
    }

    /// What each device of a piece waits for: messages of other devices, and computation of its own.
    fn arrivals(&mut self, at: usize, sources: &[(usize, u64)], pass: Pass, with_messages: bool) -> Vec<Vec<TaskId>> {
        let to = &self.schedule.pieces[at].devices;
        let mut arrivals = vec![Vec::new(); to.len()];
        for &(source, bytes) in sources {
            let from = &self.schedule.pieces[source].devices;
            let made = match pass {
                Pass::Forward => self.forward[source].clone(),
                Pass::Backward => self.backward[source].clone(),
            };
            for part in flow::messages(bytes, from.len(), to.len()) {
                let pred = made[part.from];
                let waits_for = if with_messages && from[part.from] != to[part.to] {
                    self.message(pred, (from[part.from], to[part.to]), part.bytes)
                } else {
                    pred
                };
                arrivals[part.to].push(waits_for);
            }
        }
        arrivals
    }

    fn message(&mut self, pred: TaskId, (from, to): (Rank, Rank), bytes: u64) -> TaskId {
        let members = [from, to];
        let shape = self.work.training.cluster.shape_of(&members);
        let op = self.op(Op::Collective { kind: Collective::SendRecv, bytes, shape });
        let group = self.graph.add_group(&members);
        let meeting = Some(self.graph.add_meeting(group));
        let stream = Stream::PointToPoint;
        let task = Task { op, lane: LaneId(from.0), stream, role: Role::StageExchange, micro_batch: u32::MAX, meeting };
        self.graph.add_task(task, &[pred])
    }

    /// A pass of a piece on each of its devices; a tensor group computes at the pace of its slowest.
    fn compute(&mut self, at: usize, pass: Pass, arrivals: &[Vec<TaskId>]) -> Vec<TaskId> {
        let piece = &self.schedule.pieces[at];
        let size = self.work.sizes[piece.meta_op][piece.size];
        let call = self.work.meta_ops[piece.meta_op].call;
        let (training, n) = (&self.work.training, piece.n_layers);
        let activations = self.work.activations(piece.meta_op, piece.size, n);
        let mut known: Option<(GroupShape, [Ops; 2])> = None;
        let mut tasks = Vec::with_capacity(piece.devices.len());
        for group in piece.devices.chunks(size.tensor as usize) {
            let shape = training.cluster.shape_of(group);
            // Most groups of a piece have one shape.
            if known.as_ref().is_none_or(|(of, _)| *of != shape) {
                known = Some((shape, cost::passes(training, call, (size.n_devices, shape))));
            }
            let [forward, backward] = &known.as_ref().expect("just found").1;
            let (ops, role) = match pass {
                Pass::Forward => (forward, Role::Forward),
                Pass::Backward => (backward, Role::Backward),
            };
            let rate = self.rates.slowest(group.iter().copied());
            let op = self.op(Op::Sequence(slowed(repeated(ops, n), rate)));
            for rank in group {
                let mut preds = arrivals[tasks.len()].clone();
                preds.append(&mut self.gate[rank.index()]);
                let lane = LaneId(rank.0);
                let task = Task { op, lane, stream: Stream::Compute, role, micro_batch: u32::MAX, meeting: None };
                let task = self.graph.add_task(task, &preds);
                self.keep(task, pass, activations);
                self.stream(lane, pass, activations.on_host, &preds);
                tasks.push(task);
            }
        }
        tasks
    }

    /// Activations are there from the start of forward to the end of backward, and those that stream while a pass runs.
    fn keep(&mut self, task: TaskId, pass: Pass, Activations { kept, in_passing, .. }: Activations) {
        let [kept, in_passing] = [kept, in_passing].map(|bytes| i64::try_from(bytes).expect("activations fit memory"));
        let changes = match pass {
            Pass::Forward => [(Moment::Start, kept + in_passing), (Moment::End, -in_passing)],
            Pass::Backward => [(Moment::Start, in_passing), (Moment::End, -kept - in_passing)],
        };
        for (moment, delta_bytes) in changes.into_iter().filter(|(_, bytes)| *bytes != 0) {
            self.graph.add_effect(MemoryEffect { task, moment, label: self.activations, delta_bytes });
        }
    }

    /// Activations on their way to the host or back beside a pass, which begin with it; what follows on the device waits for them.
    fn stream(&mut self, lane: LaneId, pass: Pass, bytes: u64, preds: &[TaskId]) {
        if bytes == 0 {
            return;
        }
        let (kind, stream) = match pass {
            Pass::Forward => (CopyKind::DeviceToHost, Stream::DeviceToHost),
            Pass::Backward => (CopyKind::HostToDevice, Stream::HostToDevice),
        };
        let op = self.op(Op::Copy { kind, bytes });
        let task = Task { op, lane, stream, role: Role::Offload, micro_batch: u32::MAX, meeting: None };
        let copy = self.graph.add_task(task, preds);
        self.gate[lane.index()].push(copy);
    }

    /// Memory that is held from before the first task.
    fn states(&mut self, parameters: &Parameters) {
        let labels = ["parameters", "gradients", "optimizer"].map(|name| self.graph.label(name));
        let shards = self.work.training.execution.shards_optimizer;
        let [parameter, gradient, states] = self.work.of_parameter;
        for (device, &whole) in parameters.of_device.iter().enumerate() {
            let stepped = if shards { parameters.share[device] } else { whole };
            let bytes = [whole * parameter, whole * gradient, stepped * states];
            self.graph.resident[device] = labels.into_iter().zip(bytes.map(hw::whole)).collect();
        }
    }

    /// Gradients and optimizer: every group in one order on all devices, each device after its last backward.
    fn finish(&mut self, parameters: &Parameters) {
        let mut last: Vec<Vec<TaskId>> = vec![Vec::new(); self.work.n_devices() as usize];
        for at in self.schedule.in_turn(self.work).into_iter().flat_map(Iterator::rev) {
            let devices = &self.schedule.pieces[at].devices;
            devices.iter().zip(&self.backward[at]).for_each(|(rank, task)| last[rank.index()] = vec![*task]);
        }
        last.iter_mut().zip(&mut self.gate).for_each(|(last, gate)| last.append(gate));
        let mut reduced = last.clone();
        for (members, bytes) in parameters.reductions(self.work) {
            let shape = self.work.training.cluster.shape_of(members);
            let op = self.op(Op::Collective { kind: Collective::AllReduce, bytes, shape });
            let group = self.graph.add_group(members);
            let meeting = Some(self.graph.add_meeting(group));
            let stream = if shape.n_nodes > 1 { Stream::InterNode } else { Stream::IntraNode };
            for rank in members {
                let task =
                    Task { op, lane: LaneId(rank.0), stream, role: Role::GradientSync, micro_batch: u32::MAX, meeting };
                let task = self.graph.add_task(task, &last[rank.index()]);
                reduced[rank.index()].push(task);
            }
        }
        for (device, preds) in (0_u32..).zip(&reduced) {
            let index = device as usize;
            let shards = self.work.training.execution.shards_optimizer;
            let held = parameters.of_device[index];
            let stepped = if shards { parameters.share[index] } else { held };
            if stepped > 0.0 {
                let (of_step, n_of_switch) =
                    (&self.work.training.execution.of_step, self.work.training.cluster.gpus_per_switch);
                let ops = of_step.optimizer.step(of_step.framework, [held, stepped, stepped], n_of_switch);
                let op = self.op(Op::Sequence(slowed(ops, self.rates.of(Rank(device)))));
                let (stream, role) = (Stream::Compute, Role::Optimizer);
                let task = Task { op, lane: LaneId(device), stream, role, micro_batch: u32::MAX, meeting: None };
                self.graph.add_task(task, preds);
            }
        }
    }
}

/// Operations of a device that computes so much slower; what it exchanges and copies goes as fast as ever.
fn slowed(ops: Ops, rate: f64) -> Ops {
    if rate == 1.0 {
        return ops;
    }
    let permille = u32::try_from(hw::whole(rate * 1000.0)).expect("rates are below a million");
    let (mut sent, parts): (Ops, Ops) =
        ops.into_iter().partition(|(op, _)| matches!(op, Op::Collective { .. } | Op::Copy { .. }));
    sent.push((Op::Slowed { parts, permille }, 1));
    sent
}

/// Direction through the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
}

/// Model states and activations of each device if all pieces of a turn were held at once, bytes: what placement counts.
pub fn memory_bytes(work: &Work, schedule: &Schedule) -> Vec<u64> {
    let parameters = parameters(work, schedule);
    let shards = work.training.execution.shards_optimizer;
    let [parameter, gradient, of_optimizer] = work.of_parameter;
    let states = parameters.of_device.iter().zip(&parameters.share).map(|(whole, share)| {
        let stepped = if shards { share } else { whole };
        hw::whole(whole * (parameter + gradient) + stepped * of_optimizer)
    });
    let mut fullest = vec![0; work.n_devices() as usize];
    for turn in schedule.in_turn(work) {
        let (mut kept, mut in_passing) = (vec![0; fullest.len()], vec![0; fullest.len()]);
        for piece in &schedule.pieces[turn] {
            let of_piece = work.activations(piece.meta_op, piece.size, piece.n_layers);
            for rank in &piece.devices {
                kept[rank.index()] += of_piece.kept;
                in_passing[rank.index()] = of_piece.in_passing.max(in_passing[rank.index()]);
            }
        }
        let held = kept.iter().zip(in_passing).map(|(kept, in_passing)| kept + in_passing);
        fullest.iter_mut().zip(held).for_each(|(most, of_turn)| *most = of_turn.max(*most));
    }
    states.zip(fullest).map(|(states, kept)| states + kept).collect()
}
