//! One optimizer step as a task graph: passes of every pipeline rank in the plan's order, exchanges of context, tensor and
//! expert groups, messages between stages, gradient reduction, optimizer.
//!
//! Folding. Layers are alike, so a pass has one lead task (the operations before the first exchange), one exchange task for
//! all layers, and compute tasks for all layers. Between two exchanges a rank does "attention, rest of the layer, start of
//! the next layer"; this cycle stands as a whole behind the exchange, so the slowest rank of the cycle sets the pace exactly
//! as it does layer by layer. What folding gives up is the drift of ranks inside one layer. Exchanges of a tensor or expert
//! group block the ranks that take part, so they stand as one block behind the computation of the pass, except for the share
//! that the scenario lets run behind it.
//!
//! Lanes. Ranks that act alike are one lane (`lanes.rs`).
//!
//! Overlap (arXiv:2505.19609, section 4.1): the exchange of sharded sequences hides behind attention of local
//! sequences; sharded attention comes after it. With a ring the exchange hides behind sharded attention, one hop ahead.
//! Gradients of a chunk's last backward are reduced in buckets of layers behind it. With ZeRO 3 every rank joins every
//! parameter gather, ranks without a micro-batch too; the gather of the first layer is exposed and the rest overlaps.

mod attention;
mod beside;
mod chains;
mod compressed;
mod durations;
mod exchange;
mod hosted;
pub(crate) mod hybrid;
mod known;
mod lanes;
pub(crate) mod layers;
mod messages;
pub mod mixed;
mod pass;
#[cfg(test)]
mod published;
mod rank_times;
mod sharded;
mod sync;
mod torch;
mod torch_block;

pub(crate) use attention::hop_bytes;
pub use durations::{Parts, computed_parts, parts, pipelines};
pub(crate) use durations::{exchanged, layer_passes, lead};
pub(crate) use exchange::tensor_group;
pub use lanes::Fold;
pub use rank_times::RankTimes;
pub use sharded::RESERVED;
pub(crate) use sync::{around_update, tied_bytes, update};

use std::collections::BTreeMap;
use std::rc::Rc;

use hw::Rank;

use crate::experts::{self, ExpertLoad};
use crate::memory;
use crate::pipeline_states::Batches;
use crate::plan::{MicroBatch, Place, Plan};
use crate::problem::Problem;
use crate::schedule::{Order, Pipeline, Slot};
use crate::stage::{Stage, stages};
use engine::layer::Accumulation;
use engine::stop;
use engine::task::Ops;
use engine::task::{
    Collective, Document, GroupId, LabelId, LaneId, MeetingId, MemoryEffect, Moment, Op, OpId, Role, Stream, Task,
    TaskGraph, TaskId,
};
use known::{Exchange, ExchangeKey, OpKey};
use lanes::Lanes;

/// Buckets in which overlapped gradients are reduced.
pub const GRADIENT_BUCKETS: u32 = 4;
const NO_MICRO_BATCH: u32 = u32::MAX;

/// Task graph of one step of a plan, with one lane for ranks that act alike.
///
/// # Panics
/// When the plan has no such step; `check` holds a plan against its problem first.
pub fn lower(problem: &Problem, plan: &Plan, step_index: usize) -> TaskGraph {
    lower_folded(problem, plan, step_index, Fold::Alike)
}

/// Task graph of one step of a plan, with the lanes that `fold` asks for.
///
/// # Panics
/// As `lower`.
pub fn lower_folded(problem: &Problem, plan: &Plan, step_index: usize, fold: Fold) -> TaskGraph {
    if plan.steps[step_index].is_mixed() {
        return mixed::lower(problem, plan, step_index, fold);
    }
    let contents = contents(problem, plan, step_index);
    let lanes = Lanes::new(problem, &contents, step_index, fold);
    let mut builder = Builder::new(problem, &lanes, &contents, step_index);
    builder.pause(plan.steps[step_index].pause_ns);
    builder.gather_ahead();
    builder.passes(&orders(problem, plan, step_index, &lanes, &contents));
    builder.sync_gradients();
    builder.optimizer();
    builder.graph
}

/// What ends the passes of a lane.
struct Ends {
    /// Whatever is last.
    tail: Vec<TaskId>,
    /// Last backward in the pieces behind which gradients are reduced; empty for a lane without a micro-batch.
    pieces: Vec<TaskId>,
}

/// Passes of a step alone, without what data-parallel ranks do together, and what ends them on each lane.
fn lower_passes(problem: &Problem, plan: &Plan, step_index: usize, fold: Fold) -> (TaskGraph, Vec<Ends>) {
    let contents = contents(problem, plan, step_index);
    let lanes = Lanes::new(problem, &contents, step_index, fold);
    let has_peers = problem.execution.unit_times.is_none();
    let placed = 0..problem.execution.places.len();
    let own: Vec<Problem> = placed.map(|pp| problem.at_stage(pp).into_owned()).collect();
    let mut builder = Builder { has_peers, own: &own, ..Builder::new(problem, &lanes, &contents, step_index) };
    builder.pause(plan.steps[step_index].pause_ns);
    builder.passes(&orders(problem, plan, step_index, &lanes, &contents));
    let ends = |lane: LaneId| Ends { tail: builder.tail(lane), pieces: builder.pieces[lane.index()].concat() };
    let ends = builder.lane_ids().map(ends).collect();
    (builder.graph, ends)
}

fn orders(problem: &Problem, plan: &Plan, step_index: usize, lanes: &Lanes, contents: &[Vec<Content>]) -> Vec<Order> {
    let of = |group: &lanes::LaneGroup| {
        let dp = group.dp as usize;
        order(problem, plan, step_index, dp, &contents[dp])
    };
    lanes.groups.iter().map(of).collect()
}

/// Order of a data-parallel group: the plan's, or one micro-batch after another without a pipeline.
fn order(problem: &Problem, plan: &Plan, step_index: usize, dp: usize, contents: &[Content]) -> Order {
    if let Some(order) = plan.steps[step_index].order(dp) {
        return order.clone();
    }
    assert!(problem.layout.pp == 1, "a plan for a pipeline has an order");
    let mut pipeline = Pipeline::of_schedule(problem.schedule, 1, problem.layout.chunks as usize, contents.len());
    pipeline.chains = chains::of(contents);
    (problem.schedule.order)(&pipeline)
}

/// What one context rank computes in a micro-batch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    tokens: u64,
    local: Vec<Document>,
    sharded: Vec<Document>,
    /// Ranks that share the sharded ones; 0 without any.
    ring: u32,
    /// How much of its activations streams to the host and back.
    streamed: Streamed,
}

impl Share {
    /// Pairs of a query and a key.
    fn pairs(&self) -> u64 {
        self.local.iter().chain(&self.sharded).map(|document| document.queries * document.keys).sum()
    }
}

/// Share of a micro-batch's activations that waits in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Streamed {
    /// What the execution says.
    AsExecuted,
    /// So many thousandths.
    Permille(u32),
}

impl Streamed {
    /// What a micro-batch says of a context rank.
    fn of(micro_batch: &MicroBatch, cp: u32) -> Self {
        if micro_batch.offload_permille.is_empty() {
            return Self::AsExecuted;
        }
        Self::Permille(micro_batch.offload_permille.get(cp as usize).copied().unwrap_or(0))
    }
}

/// Context ranks that share sequences of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ring {
    first: u32,
    count: u32,
    /// Tokens whose keys and values they exchange.
    tokens: u64,
}

/// Content of a micro-batch seen from its group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Content {
    shares: Vec<Share>,
    /// Who exchanges keys and values, from the first rank on; no rank is in two.
    rings: Vec<Ring>,
    /// Whether only keys and values are wanted.
    forward_only: bool,
    /// Whether all context ranks wait for each other before it.
    barrier: bool,
    /// Which part of which long sequence of the group it is: (sequence in order of appearance, part).
    chain: Option<(u32, u32)>,
    /// Tokens of the parts of long sequences in it.
    part_tokens: u64,
    /// Whether their keys and values are held from here to the part's backward.
    opens_state: bool,
    /// Tokens before the last parts in it: their keys and values get gradients from its backward on.
    earlier_tokens: u64,
    /// Tokens of parts that are not the last: the gradients of their keys and values go with their backward.
    gradient_tokens: u64,
}

/// Micro-batches of every data-parallel group. Groups whose exchanges join them get empty ones up to the longest group.
pub(crate) fn contents(problem: &Problem, plan: &Plan, step_index: usize) -> Vec<Vec<Content>> {
    let groups = &plan.steps[step_index].groups;
    let empty = MicroBatch::default();
    let in_step = problem.layout.groups_in_step();
    groups
        .chunks(in_step as usize)
        .flat_map(|block| {
            let n = block.iter().map(Vec::len).max().unwrap_or(0);
            let n = if in_step > 1 { n } else { 0 };
            block.iter().map(move |group| (group, n))
        })
        .map(|(group, n)| {
            let missing = n.saturating_sub(group.len());
            let mut contents: Vec<Content> =
                group.iter().chain(std::iter::repeat_n(&empty, missing)).map(|mb| content(problem, mb)).collect();
            chains::mark(problem, group, &mut contents);
            contents
        })
        .collect()
}

/// Equal micro-batches have equal numbers.
fn content_ids(contents: &[Vec<Content>]) -> Vec<Vec<u32>> {
    let mut known: BTreeMap<&Content, u32> = BTreeMap::new();
    let mut number = |content| {
        stop::pause();
        let next = u32::try_from(known.len()).expect("contents fit u32");
        *known.entry(content).or_insert(next)
    };
    contents.iter().map(|group| group.iter().map(&mut number).collect()).collect()
}

fn content(problem: &Problem, micro_batch: &MicroBatch) -> Content {
    stop::pause();
    let layout = &problem.layout;
    let mut shares: Vec<Share> = (0..layout.cp)
        .map(|cp| Share {
            tokens: micro_batch.tokens_on(cp, layout.cp),
            local: Vec::new(),
            sharded: Vec::new(),
            ring: 0,
            streamed: Streamed::of(micro_batch, cp),
        })
        .collect();
    let mut rings: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for placement in &micro_batch.sequences {
        let whole = Document::chunk(placement.from, placement.tokens);
        match (placement.place, placement.place.ring(layout.cp)) {
            (Place::Local(cp), _) => shares[cp as usize].local.push(whole),
            // A ring of one exchanges nothing.
            (_, Some((first, 1))) => shares[first as usize].local.push(whole),
            (_, Some((first, count))) => {
                *rings.entry((first, count)).or_default() += placement.from + placement.tokens;
                let mut document =
                    attention::sharded_document(attention::attends(problem), count, placement.from, placement.tokens);
                if problem.execution.context_in_blocks {
                    document.pairs = attention::busiest_pairs(document.pairs, count);
                }
                for share in &mut shares[first as usize..(first + count) as usize] {
                    share.sharded.push(document);
                    share.ring = count;
                }
            }
            (_, None) => {}
        }
    }
    Content {
        shares,
        rings: rings.into_iter().map(|((first, count), tokens)| Ring { first, count, tokens }).collect(),
        forward_only: micro_batch.forward_only,
        barrier: micro_batch.barrier,
        chain: None,
        part_tokens: 0,
        opens_state: false,
        earlier_tokens: 0,
        gradient_tokens: 0,
    }
}

/// The lanes of one context group at one pipeline rank and tensor position.
struct Column {
    lanes: Vec<LaneId>,
    ranks: Vec<Rank>,
}

/// Where in the step a pass happens.
#[derive(Clone, Copy)]
struct Frame<'a> {
    /// Index into the lanes' groups.
    group: usize,
    pp: u32,
    /// Tensor positions that have lanes of their own.
    tp: u32,
    /// Tensor degree.
    degree: u32,
    slot: Slot,
    /// Position of the slot in its rank's order.
    position: u32,
    stage: Stage,
    content: &'a Content,
    /// Number of the content among the distinct ones.
    content_id: u32,
    /// What becomes of its gradients.
    accumulation: Accumulation,
}

/// Identity of a meeting that several lanes join at different times of lowering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MeetingKey {
    role: Role,
    group: GroupId,
    /// Slot position, or bucket.
    position: u32,
    /// Part of the pass.
    part: u32,
}

struct Builder<'a> {
    problem: &'a Problem,
    /// As the stages of each pipeline rank see it, where stages are placed.
    own: &'a [Problem],
    lanes: &'a Lanes,
    /// Whether other ranks hold the same parameters, so that gradients are reduced.
    has_peers: bool,
    stages: Vec<Stage>,
    load: ExpertLoad,
    graph: TaskGraph,
    ops: BTreeMap<Op, OpId>,
    meetings: BTreeMap<MeetingKey, MeetingId>,
    activations: LabelId,
    logits: LabelId,
    working: LabelId,
    buffers: LabelId,
    states: LabelId,
    sharded: sharded::Labels,
    /// Which lanes have gradients.
    has_gradients: Vec<bool>,
    /// Last compute task of each lane.
    last: Vec<Option<TaskId>>,
    /// What the next compute task of each lane waits for besides its stream.
    gate: Vec<Vec<TaskId>>,
    /// Pieces of each lane's last backward of each chunk, in bucket order.
    pieces: Vec<Vec<Vec<TaskId>>>,
    /// Gathers ahead of each chunk of each lane: what its first layer waits for, and the rest.
    ahead: Vec<Vec<[Vec<TaskId>; 2]>>,
    /// What ends the pass that a lane is in, besides computation.
    behind: Vec<Vec<TaskId>>,
    /// Slot position and exchanges of it so far, per lane.
    parts: Vec<(u32, u32)>,
    contents: &'a [Vec<Content>],
    /// Number of each distinct content, by group and micro-batch.
    content_ids: Vec<Vec<u32>>,
    known: BTreeMap<OpKey, OpId>,
    known_activations: BTreeMap<OpKey, crate::activation::Activation>,
    messages: BTreeMap<(LaneId, u32, u64), (OpId, GroupId)>,
    exchanges: BTreeMap<ExchangeKey, Rc<[Exchange]>>,
    /// Stream of each group's collectives.
    streams: Vec<Stream>,
}

impl<'a> Builder<'a> {
    fn new(problem: &'a Problem, lanes: &'a Lanes, contents: &'a [Vec<Content>], step_index: usize) -> Self {
        let mut graph = TaskGraph::with_lanes(lanes.lanes.clone());
        let n_lanes = lanes.lanes.len();
        let n_chunks = problem.layout.chunks as usize;
        let stages = stages(problem);
        for pp in 0..problem.layout.pp {
            let held: Vec<Stage> =
                (0..problem.layout.chunks).map(|chunk| stages[stage_index(problem, pp, chunk)]).collect();
            let parts = memory::resident(problem, pp, &held, batches(contents));
            let resident: Vec<(LabelId, u64)> =
                parts.into_iter().map(|(name, bytes)| (graph.label(name), bytes)).collect();
            for lane in lanes.at_pipeline_rank(pp) {
                graph.resident[lane.index()].clone_from(&resident);
            }
        }
        Self {
            problem,
            own: &[],
            lanes,
            has_peers: problem.has_peers() && problem.execution.unit_times.is_none(),
            stages,
            load: experts::load(problem, step_index).unwrap_or(ExpertLoad::EVEN),
            ops: BTreeMap::new(),
            meetings: BTreeMap::new(),
            activations: graph.label("activations"),
            logits: graph.label("logits"),
            working: graph.label("recomputed layer"),
            buffers: graph.label("exchange buffers"),
            states: graph.label("keys and values of earlier chunks"),
            sharded: sharded::Labels::of(&mut graph),
            has_gradients: vec![false; n_lanes],
            graph,
            last: vec![None; n_lanes],
            gate: vec![Vec::new(); n_lanes],
            pieces: vec![vec![Vec::new(); n_chunks]; n_lanes],
            ahead: vec![vec![<[Vec<TaskId>; 2]>::default(); n_chunks]; n_lanes],
            behind: vec![Vec::new(); n_lanes],
            parts: vec![(0, 0); n_lanes],
            contents,
            content_ids: content_ids(contents),
            known: BTreeMap::new(),
            known_activations: BTreeMap::new(),
            messages: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            streams: Vec::new(),
        }
    }

    fn op(&mut self, op: Op) -> OpId {
        if let Some(&id) = self.ops.get(&op) {
            return id;
        }
        let id = self.graph.add_op(op.clone());
        self.ops.insert(op, id);
        id
    }

    fn collective(&mut self, kind: Collective, bytes: u64, members: &[Rank], repeat: u32) -> OpId {
        let shape = self.problem.cluster.shape_of(members);
        self.op(Op::Sequence(vec![(Op::Collective { kind, bytes, shape }, repeat)]))
    }

    /// Stream of a group's collectives.
    fn network(&mut self, group: GroupId) -> Stream {
        for index in self.streams.len()..self.graph.groups.len() {
            let shape = self.problem.cluster.shape_of(&self.graph.groups[index]);
            self.streams.push(if shape.n_nodes == 1 { Stream::IntraNode } else { Stream::InterNode });
        }
        self.streams[group.0 as usize]
    }

    fn compute(&mut self, lane: LaneId, role: Role, micro_batch: u32, ops: Ops, preds: &[TaskId]) -> TaskId {
        let op = self.op(Op::Sequence(ops));
        self.compute_op(lane, role, micro_batch, op, preds)
    }

    fn compute_op(&mut self, lane: LaneId, role: Role, micro_batch: u32, op: OpId, preds: &[TaskId]) -> TaskId {
        let task = Task { op, lane, stream: Stream::Compute, role, micro_batch, meeting: None };
        let mut all = std::mem::take(&mut self.gate[lane.index()]);
        all.extend_from_slice(preds);
        let id = self.graph.add_task(task, &all);
        self.last[lane.index()] = Some(id);
        id
    }

    /// What a task that follows everything on a lane waits for.
    fn tail(&self, lane: LaneId) -> Vec<TaskId> {
        let gate = &self.gate[lane.index()];
        if gate.is_empty() { self.last[lane.index()].into_iter().collect() } else { gate.clone() }
    }

    fn join(&mut self, meeting: MeetingId, op: OpId, lane: LaneId, role: Role, mb: u32, preds: &[TaskId]) -> TaskId {
        let network = self.network(self.graph.meetings[meeting.0 as usize]);
        let stream = if role == Role::GradientSync && self.problem.sums_apart() { Stream::Gradients } else { network };
        self.graph.add_task(Task { op, lane, stream, role, micro_batch: mb, meeting: Some(meeting) }, preds)
    }

    /// The meeting of a key; the first lane that asks makes it.
    fn meeting(&mut self, key: MeetingKey) -> MeetingId {
        if let Some(&meeting) = self.meetings.get(&key) {
            return meeting;
        }
        let meeting = self.graph.add_meeting(key.group);
        self.meetings.insert(key, meeting);
        meeting
    }

    /// Number of the next exchange of a lane in the slot at `position`; equal for all lanes of a group.
    fn next_part(&mut self, lane: LaneId, position: u32) -> u32 {
        let (at, next) = &mut self.parts[lane.index()];
        if *at != position {
            (*at, *next) = (position, 0);
        }
        *next += 1;
        *next
    }

    fn effect(&mut self, task: TaskId, moment: Moment, label: LabelId, delta_bytes: i64) {
        if delta_bytes != 0 {
            self.graph.add_effect(MemoryEffect { task, moment, label, delta_bytes });
        }
    }

    /// The problem as the stages of a pipeline rank see it.
    fn at(&self, pp: u32) -> &'a Problem {
        self.own.get(pp as usize).unwrap_or(self.problem)
    }

    fn column(&self, frame: &Frame<'_>) -> Column {
        let problem = self.at(frame.pp);
        let positions = (0..problem.layout.cp).map(|cp| self.lanes.position(frame.group, frame.pp, cp, frame.tp));
        let ranks = positions.map(|position| problem.rank(position)).collect();
        let lanes = (0..problem.layout.cp).map(|cp| self.lanes.id(frame.group, frame.pp, cp, frame.tp)).collect();
        Column { lanes, ranks }
    }

    /// A time before everything else in which nothing is computed.
    fn pause(&mut self, ns: u64) {
        if ns == 0 {
            return;
        }
        let op = self.op(Op::Host { ns });
        for lane in self.lane_ids() {
            let (role, stream) = (Role::Replan, Stream::InterNode);
            let task = Task { op, lane, stream, role, micro_batch: NO_MICRO_BATCH, meeting: None };
            let id = self.graph.add_task(task, &[]);
            self.gate[lane.index()].push(id);
        }
    }

    /// Lowers every slot as soon as what it waits for is lowered, rank by rank in order.
    fn passes(&mut self, orders: &[Order]) {
        let (n_stages, contents) = (self.stages.len(), self.contents);
        for (group, order) in orders.iter().enumerate() {
            let dp = self.lanes.groups[group].dp as usize;
            let contents = &contents[dp];
            let pipeline = Pipeline::of_schedule(
                self.problem.schedule,
                self.problem.layout.pp as usize,
                self.problem.layout.chunks as usize,
                contents.len(),
            );
            let mut done = pass::Done::new(n_stages, contents.len());
            let mut cursor = vec![0; order.len()];
            let lasts: Vec<BTreeMap<u32, pass::LastOf>> =
                order.iter().map(|slots| pass::last_passes(slots, self.problem)).collect();
            let mut moved = true;
            while moved {
                moved = false;
                for (rank, slots) in order.iter().enumerate() {
                    while let Some(&slot) = slots.get(cursor[rank]) {
                        let stage = pipeline.stage(rank, slot.chunk as usize);
                        if !done.ready(slot, stage) {
                            break;
                        }
                        stop::pause();
                        let pp = u32::try_from(rank).expect("ranks fit u32");
                        let frame = Frame {
                            group,
                            pp,
                            tp: 0,
                            degree: self.at(pp).layout.tp,
                            slot,
                            position: u32::try_from(cursor[rank]).expect("slots fit u32"),
                            stage: self.stages[stage],
                            content: &contents[slot.micro_batch as usize],
                            content_id: self.content_ids[dp][slot.micro_batch as usize],
                            accumulation: sharded::accumulation(self.at(pp), slots, cursor[rank]),
                        };
                        let last = lasts[rank].get(&frame.position).copied();
                        let next = messages::next_rank(&pipeline, slot, stage);
                        self.slot(&frame, last, stage, next, &mut done);
                        cursor[rank] += 1;
                        moved = true;
                    }
                }
            }
            let all = order.iter().zip(&cursor).all(|(slots, &cursor)| cursor == slots.len());
            assert!(all, "the order of a plan can be played");
        }
    }
}

/// Micro-batches of the longest group, and tokens of the fullest rank in the largest one, for which graphs are captured.
fn batches(contents: &[Vec<Content>]) -> Batches {
    let shares = contents.iter().flatten().flat_map(|content| &content.shares);
    let n = contents.iter().map(Vec::len).max().unwrap_or(0);
    Batches { n: n as u64, tokens: shares.map(|share| share.tokens).max().unwrap_or(0) }
}

/// Stage that a pipeline rank's chunk is.
fn stage_index(problem: &Problem, pp: u32, chunk: u32) -> usize {
    let layout = &problem.layout;
    Pipeline::of_schedule(problem.schedule, layout.pp as usize, layout.chunks as usize, 0)
        .stage(pp as usize, chunk as usize)
}
