//! From a schedule to tasks of the engine: a lane per device, forward through the pieces, backward in reverse, then gradients and optimizer.
//! Where tasks take turns, each goes forward and backward before the next one, so the activations of one are held at a time.
//!
//! Exchanges of a tensor group are part of its computation. What travels between pieces is a message on the sender's lane that the
//! receiver waits for. Devices that hold the same layers reduce their gradients together, everything that one group shares at once (the
//! paper's parameter device groups, section 3.6), after a device's last backward. With sharded optimizer states (ZeRO 1) a reduce-scatter
//! and an all-gather take the place of the all-reduce, which moves the same bytes, so the all-reduce stands for both.

use engine::layer::ADAM_STATES;
use std::collections::BTreeMap;

use hw::Rank;

use super::schedule::{Piece, Schedule, Turns};
use super::{ELEMENT, Work, cost, flow};
use engine::layer::{self, repeated};
use engine::task::{
    Collective, LabelId, LaneId, MemoryEffect, Moment, Op, OpId, Role, Stream, Task, TaskGraph, TaskId,
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
    fn reductions(&self) -> impl Iterator<Item = (&Vec<Rank>, u64)> {
        let bytes = |shared: f64| hw::whole(shared * hw::real(ELEMENT));
        let groups = self.groups.iter().filter(|(members, _)| members.len() > 1);
        groups.map(move |(members, shared)| (members, bytes(*shared)))
    }
}

/// Groups of devices that reduce gradients together, with the bytes of each.
pub fn gradient_groups(work: &Work, schedule: &Schedule) -> Vec<(Vec<Rank>, u64)> {
    parameters(work, schedule).reductions().map(|(members, bytes)| (members.clone(), bytes)).collect()
}

struct Builder<'a> {
    work: &'a Work,
    schedule: &'a Schedule,
    graph: TaskGraph,
    ops: BTreeMap<Op, OpId>,
    activations: LabelId,
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
    let (ops, turn, of_turn) = (BTreeMap::new(), None, Vec::new());
    let mut builder = Builder { work, schedule, graph, ops, activations, forward, backward, turn, of_turn };
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

    /// A pass of a piece on each of its devices.
    fn compute(&mut self, at: usize, pass: Pass, arrivals: &[Vec<TaskId>]) -> Vec<TaskId> {
        let piece = &self.schedule.pieces[at];
        let size = self.work.sizes[piece.meta_op][piece.size];
        let call = self.work.meta_ops[piece.meta_op].call;
        let (training, n) = (&self.work.training, piece.n_layers);
        let kept = cost::activation_bytes(training, call, &size, n);
        let mut tasks = Vec::with_capacity(piece.devices.len());
        for group in piece.devices.chunks(size.tensor as usize) {
            let shape = training.cluster.shape_of(group);
            let [forward, backward] = cost::passes(training, call, (size.n_devices, shape));
            let (ops, role) = match pass {
                Pass::Forward => (forward, Role::Forward),
                Pass::Backward => (backward, Role::Backward),
            };
            let op = self.op(Op::Sequence(repeated(&ops, n)));
            for rank in group {
                let task = Task {
                    op,
                    lane: LaneId(rank.0),
                    stream: Stream::Compute,
                    role,
                    micro_batch: u32::MAX,
                    meeting: None,
                };
                let task = self.graph.add_task(task, &arrivals[tasks.len()]);
                self.keep(task, pass, kept);
                tasks.push(task);
            }
        }
        tasks
    }

    /// Activations are there from the start of forward to the end of backward.
    fn keep(&mut self, task: TaskId, pass: Pass, bytes: u64) {
        let bytes = i64::try_from(bytes).expect("activations fit memory");
        let (moment, delta_bytes) = match pass {
            Pass::Forward => (Moment::Start, bytes),
            Pass::Backward => (Moment::End, -bytes),
        };
        self.graph.add_effect(MemoryEffect { task, moment, label: self.activations, delta_bytes });
    }

    /// Memory that is held from before the first task.
    fn states(&mut self, parameters: &Parameters) {
        let labels = ["parameters", "gradients", "optimizer"].map(|name| self.graph.label(name));
        let shards = self.work.training.execution.shards_optimizer;
        for (device, &whole) in parameters.of_device.iter().enumerate() {
            let stepped = if shards { parameters.share[device] } else { whole };
            let element = hw::real(ELEMENT);
            let bytes = [whole * element, whole * element, stepped * ADAM_STATES];
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
        let mut reduced = last.clone();
        for (members, bytes) in parameters.reductions() {
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
            let stepped = if shards { parameters.share[index] } else { parameters.of_device[index] };
            if stepped > 0.0 {
                let op = self.op(Op::Sequence(layer::optimizer(stepped)));
                let (stream, role) = (Stream::Compute, Role::Optimizer);
                let task = Task { op, lane: LaneId(device), stream, role, micro_batch: u32::MAX, meeting: None };
                self.graph.add_task(task, preds);
            }
        }
    }
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
    let element = 2.0 * hw::real(ELEMENT);
    let states = parameters.of_device.iter().zip(&parameters.share).map(|(whole, share)| {
        let stepped = if shards { share } else { whole };
        hw::whole(whole * element + stepped * ADAM_STATES)
    });
    let mut fullest = vec![0; work.n_devices() as usize];
    for turn in schedule.in_turn(work) {
        let mut kept = vec![0; fullest.len()];
        for piece in &schedule.pieces[turn] {
            let bytes = piece_bytes(work, piece);
            piece.devices.iter().for_each(|rank| kept[rank.index()] += bytes);
        }
        fullest.iter_mut().zip(kept).for_each(|(most, of_turn)| *most = of_turn.max(*most));
    }
    states.zip(fullest).map(|(states, kept)| states + kept).collect()
}

/// Activations that a piece keeps on each of its devices.
pub fn piece_bytes(work: &Work, piece: &Piece) -> u64 {
    let size = work.sizes[piece.meta_op][piece.size];
    let call = work.meta_ops[piece.meta_op].call;
    cost::activation_bytes(&work.training, call, &size, piece.n_layers)
}
