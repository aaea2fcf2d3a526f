//! A step of pipelines whose stages stand on cards of their own: every stage of every replica brings its times along.
//!
//! So stages may have other cards, layers and tensor degrees than their neighbours, and replicas other cards than each other. Passes go by 1F1B.
//! A message that blocks keeps both stages busy, the one that sends and the one that takes it: nothing runs behind it (Sailor, SOSP 2025, adds it to
//! the slowest stage in both directions). Behind computation each direction between two stages is a line of its own. A message holds it while its bytes go
//! through, and is there one latency later, in which the next one may go. Replicas of a stage reduce gradients when the last one of them has computed its own.

use hw::topology::Topology;
use hw::{Rank, Span};

use crate::metrics::Played;
use crate::schedule::{self, PassKind, Pipeline, Slot};
use engine::cost::fixed::Fixed;
use engine::play::{Case, Machine, Outcome, simulate};
use engine::task::{Lane, LaneId, Op, OpId, Role, Stream, Task, TaskGraph, TaskId};

/// What costs leave unexplained of a step, as factors of its predicted time: an interval is at least that wide.
pub const UNEXPLAINED: [f64; 2] = [0.85, 1.2];

hw::words! {
    /// How stages exchange messages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Messages: word {
        /// The sender goes on.
        #[default]
        Behind = "behind",
        /// Both stages wait until it is there.
        Blocking = "blocking",
    }
}

impl Messages {
    /// How long a message holds what it goes through: both stages all the time, or its line while bytes go through.
    pub fn hold(self, message: &Message) -> Span {
        match self {
            Self::Blocking => message.whole(),
            Self::Behind => message.line,
        }
    }
}

/// A forward or backward of one micro-batch on a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTime {
    /// What its GPUs compute.
    pub computed: Span,
    /// Exchanges of the tensor group behind that, which the pass waits for.
    pub exchanged: Span,
    /// From its begin to the end of its copy to the host or back; nothing where nothing is copied.
    pub copied: Span,
}

impl PassTime {
    /// One that only computes.
    pub fn computing(computed: Span) -> Self {
        Self { computed, ..Self::default() }
    }

    /// From its begin to its end: a pass goes no faster than its copy.
    pub fn whole(&self) -> Span {
        (self.computed + self.exchanged).max(self.copied)
    }

    fn mean(of: &[PassTimes], pass: fn(&PassTimes) -> Self) -> Self {
        let mean = |time: fn(&Self) -> Span| mean(of.iter().map(|of| time(&pass(of))));
        Self {
            computed: mean(|pass| pass.computed),
            exchanged: mean(|pass| pass.exchanged),
            copied: mean(|pass| pass.copied),
        }
    }
}

/// A message between two stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// While its bytes hold the line.
    pub line: Span,
    /// Until its end is there, behind that.
    pub latency: Span,
}

impl Message {
    /// From its begin until it is there.
    pub fn whole(&self) -> Span {
        self.line + self.latency
    }
}

/// Times of one micro-batch on a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Forward.
    pub forward: PassTime,
    /// Backward.
    pub backward: PassTime,
    /// A message to the next stage, or back from it; nothing for the last one.
    pub message: Message,
}

impl PassTimes {
    /// Forward and backward.
    pub fn both(&self) -> Span {
        self.forward.whole() + self.backward.whole()
    }

    /// What GPUs compute in both.
    fn computed(&self) -> Span {
        self.forward.computed + self.backward.computed
    }

    /// The means of some micro-batches.
    pub fn mean(of: &[Self]) -> Self {
        let line = mean(of.iter().map(|of| of.message.line));
        let latency = mean(of.iter().map(|of| of.message.latency));
        let [forward, backward] = [PassTime::mean(of, |of| of.forward), PassTime::mean(of, |of| of.backward)];
        Self { forward, backward, message: Message { line, latency } }
    }
}

fn mean(of: impl ExactSizeIterator<Item = Span>) -> Span {
    let n = (of.len() as u64).max(1);
    Span::from_ns(of.sum::<Span>().as_ns() / n)
}

/// Times of a stage on the cards of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    /// GPUs that act as one: its tensor group.
    pub n_gpus: u32,
    /// Of a micro-batch; means where they differ.
    pub passes: PassTimes,
    /// Step of the optimizer.
    pub update: Span,
}

/// A pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its stages.
    pub stages: Vec<StageTimes>,
    /// Micro-batches that it computes in a step; at least one.
    pub n_micro_batches: u32,
    /// Times of every micro-batch, by stage; empty where all are alike.
    pub own: Vec<Vec<PassTimes>>,
}

/// A step of pipelines of as many stages each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedStep {
    /// Pipelines.
    pub replicas: Vec<Replica>,
    /// Reduction of the gradients of each stage over the replicas.
    pub reductions: Vec<Span>,
    /// Gather of what each stage's replicas have updated, each its part.
    pub gathers: Vec<Span>,
    /// Sum of the gradients of a table that the first and the last stage share; nothing where it is not shared.
    pub tied: Span,
    /// How stages exchange messages.
    pub messages: Messages,
}

/// Messages that each of so many replicas sends one after another where they sum up around a ring: each has an n-th of all bytes
/// (the ring of `engine/src/cost/collective.rs`).
pub fn ring_steps(n_replicas: usize) -> f64 {
    2.0 * (hw::real(n_replicas as u64) - 1.0)
}

impl TimedStep {
    /// Its task graph: a lane for every stage of every replica.
    ///
    /// # Panics
    /// When the replicas have different numbers of stages.
    pub fn lower(&self) -> TaskGraph {
        let n_stages = self.reductions.len();
        assert!(self.replicas.iter().all(|replica| replica.stages.len() == n_stages), "replicas have the same stages");
        let mut graph = TaskGraph::with_lanes(self.lanes());
        let mut computed: Vec<Vec<TaskId>> = vec![Vec::new(); n_stages];
        for (index, replica) in self.replicas.iter().enumerate() {
            let passes = Passes::new(&mut graph, replica, index * n_stages, self.messages);
            let ends = passes.lower(&mut graph);
            computed.iter_mut().zip(ends).for_each(|(stage, ends)| stage.extend(ends));
        }
        let mut reduced: Vec<Vec<TaskId>> = Vec::with_capacity(n_stages);
        for (stage, ends) in computed.iter().enumerate() {
            let reduce = host(&mut graph, self.reductions[stage]);
            reduced.push(self.on_replicas(&mut graph, stage, (reduce, Role::GradientSync), |_| ends.clone()));
        }
        if let Some(tied) = some_host(&mut graph, self.tied) {
            let last = n_stages - 1;
            let both = [reduced[0].clone(), reduced[last].clone()];
            for stage in [0, last] {
                let of = (tied, Role::GradientSync);
                reduced[stage] =
                    self.on_replicas(&mut graph, stage, of, |index| both.iter().map(|of| of[index]).collect());
            }
        }
        for (stage, reduced) in reduced.iter().enumerate() {
            let mut updated = Vec::with_capacity(reduced.len());
            for (index, &reduced) in reduced.iter().enumerate() {
                let update = host(&mut graph, self.replicas[index].stages[stage].update);
                let task = of(lane_id(index * n_stages + stage), Role::Optimizer, u32::MAX);
                updated.push(graph.add_task(Task { op: update, ..task }, &[reduced]));
            }
            if let Some(gather) = some_host(&mut graph, self.gathers[stage]) {
                self.on_replicas(&mut graph, stage, (gather, Role::ParameterGather), |_| updated.clone());
            }
        }
        graph
    }

    /// A task of the end of the step on every replica of a stage, behind some others.
    fn on_replicas(
        &self,
        graph: &mut TaskGraph,
        stage: usize,
        (op, role): (OpId, Role),
        preds: impl Fn(usize) -> Vec<TaskId>,
    ) -> Vec<TaskId> {
        let lane = |index| lane_id(index * self.reductions.len() + stage);
        let task = |index| Task { op, ..of(lane(index), role, u32::MAX) };
        (0..self.replicas.len()).map(|index| graph.add_task(task(index), &preds(index))).collect()
    }

    /// The step as it was played.
    ///
    /// # Panics
    /// Never: a step of 1F1B ends.
    pub fn played(&self) -> Played {
        let graph = self.lower();
        // Nothing but times is asked of the machine.
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let topology = Topology::of(&cluster);
        let cost = Fixed::default();
        let machine = Machine {
            cost: &cost,
            topology: &topology,
            memory_bytes: u64::MAX,
            case: Case::Expected,
            speed_changes: &[],
        };
        match simulate(&graph, &machine) {
            Outcome::Done(timeline) => Played { graph, timeline },
            other => panic!("a step of 1F1B ends: {other:?}"),
        }
    }

    /// Time of the step.
    pub fn span(&self) -> Span {
        self.played().timeline.span()
    }

    /// Seconds that GPUs compute, all of them together: passes without what they wait for, and the step of the optimizer.
    pub fn computed_gpu_s(&self) -> f64 {
        let of = |replica: &Replica| {
            let stages = replica.stages.iter().enumerate();
            let computed = |stage| replica.total(stage, PassTimes::computed);
            stages
                .map(|(stage, times)| f64::from(times.n_gpus) * (computed(stage) + times.update).to_seconds().get())
                .sum::<f64>()
        };
        self.replicas.iter().map(of).sum()
    }

    /// What sets the pace, in words.
    pub fn why(&self) -> String {
        let mut slowest = (Span::ZERO, String::new());
        for (index, replica) in self.replicas.iter().enumerate() {
            for (stage, times) in replica.stages.iter().enumerate() {
                let [passes, sent] = [replica.total(stage, PassTimes::both), replica.sent(stage, self.messages)];
                let all = passes + sent;
                if all > slowest.0 {
                    let [passes, sent] = [passes, sent].map(|span| span.to_seconds().get());
                    let gpus = if times.n_gpus == 1 { "GPU" } else { "GPUs" };
                    let n_gpus = times.n_gpus;
                    let words = format!(
                        "stage {stage} of replica {index} ({n_gpus} {gpus}): passes take {passes:.3} s, messages {sent:.3} s"
                    );
                    slowest = (all, words);
                }
            }
        }
        slowest.1
    }

    fn lanes(&self) -> Vec<Lane> {
        let (mut lanes, mut first) = (Vec::new(), 0);
        for (group, replica) in (0_u32..).zip(&self.replicas) {
            for (stage, times) in (0_u32..).zip(&replica.stages) {
                lanes.push(Lane { rank: Rank(first), multiplicity: times.n_gpus, group, stage, rate: 1.0 });
                first += times.n_gpus;
            }
        }
        lanes
    }
}

impl Replica {
    /// Times of every micro-batch on a stage.
    pub fn times(&self, stage: usize) -> Vec<PassTimes> {
        match self.own.get(stage) {
            Some(own) => own.clone(),
            None => vec![self.stages[stage].passes; self.n_micro_batches as usize],
        }
    }

    /// Time of all micro-batches on a stage.
    fn total(&self, stage: usize, of: impl Fn(&PassTimes) -> Span) -> Span {
        match self.own.get(stage) {
            Some(own) => own.iter().map(of).sum(),
            None => of(&self.stages[stage].passes) * u64::from(self.n_micro_batches),
        }
    }

    /// Messages of a stage, those to it and those from it: while they block it, or hold its lines.
    fn sent(&self, stage: usize, messages: Messages) -> Span {
        let held = |times: &PassTimes| messages.hold(&times.message) * 2;
        stage.checked_sub(1).map_or(Span::ZERO, |before| self.total(before, held)) + self.total(stage, held)
    }
}

fn lane_id(index: usize) -> LaneId {
    LaneId(u32::try_from(index).expect("lanes fit u32"))
}

fn host(graph: &mut TaskGraph, time: Span) -> OpId {
    graph.add_op(Op::Host { ns: time.as_ns() })
}

fn some_host(graph: &mut TaskGraph, time: Span) -> Option<OpId> {
    (time > Span::ZERO).then(|| host(graph, time))
}

const fn of(lane: LaneId, role: Role, micro_batch: u32) -> Task {
    Task { op: OpId(0), lane, stream: Stream::Compute, role, micro_batch, meeting: None }
}

/// Tasks that a pass is; the last two where there is something to wait for.
struct PassOps {
    computed: OpId,
    exchanged: Option<OpId>,
    copied: Option<OpId>,
}

/// Operations of a stage.
struct StageOps {
    forward: PassOps,
    backward: PassOps,
    /// A message: the whole of it where it blocks, and else while it holds its line.
    message: OpId,
    /// What it takes behind that.
    latency: Option<OpId>,
}

impl StageOps {
    fn new(graph: &mut TaskGraph, times: &PassTimes, messages: Messages) -> Self {
        let mut pass = |of: &PassTime| PassOps {
            computed: host(graph, of.computed),
            exchanged: some_host(graph, of.exchanged),
            copied: some_host(graph, of.copied),
        };
        let (forward, backward, message) = (pass(&times.forward), pass(&times.backward), times.message);
        let is_behind = messages == Messages::Behind;
        let latency = some_host(graph, message.latency).filter(|_| is_behind);
        Self { forward, backward, message: host(graph, messages.hold(&message)), latency }
    }
}

/// Where a pass is, and which way it goes.
#[derive(Clone, Copy)]
struct At {
    stage: usize,
    micro_batch: usize,
    is_forward: bool,
}

impl At {
    /// The stage that has the message before a pass, or the one behind it: the earlier one of its two ends.
    const fn link(self, is_before: bool) -> usize {
        if is_before == self.is_forward { self.stage - 1 } else { self.stage }
    }
}

/// The passes of one replica while they are lowered.
struct Passes {
    /// By stage and micro-batch; one for all that are alike.
    ops: Vec<Vec<StageOps>>,
    first_lane: usize,
    n_micro_batches: usize,
    messages: Messages,
    /// What a forward or a backward of a stage waits for, by stage and micro-batch; nothing before that is added.
    forward_ready: Vec<Vec<Vec<TaskId>>>,
    backward_ready: Vec<Vec<Vec<TaskId>>>,
    /// What ends the last pass of each stage.
    last: Vec<Vec<TaskId>>,
}

impl Passes {
    fn new(graph: &mut TaskGraph, replica: &Replica, first_lane: usize, messages: Messages) -> Self {
        let n_micro_batches = replica.n_micro_batches as usize;
        let mut of = |times: &PassTimes| StageOps::new(graph, times, messages);
        let mut ops = |(index, stage): (usize, &StageTimes)| match replica.own.get(index) {
            Some(own) => own.iter().map(&mut of).collect(),
            None => vec![of(&stage.passes)],
        };
        let ops: Vec<Vec<StageOps>> = replica.stages.iter().enumerate().map(&mut ops).collect();
        let nothing = vec![vec![Vec::new(); n_micro_batches]; ops.len()];
        Self {
            first_lane,
            n_micro_batches,
            messages,
            forward_ready: nothing.clone(),
            backward_ready: nothing,
            last: vec![Vec::new(); ops.len()],
            ops,
        }
    }

    /// Adds slots as their inputs come to be known, stage after stage, and gives what ends each stage.
    fn lower(mut self, graph: &mut TaskGraph) -> Vec<Vec<TaskId>> {
        let one_f_one_b = schedule::named("1f1b").expect("listed");
        let pipeline = Pipeline::of_schedule(one_f_one_b, self.ops.len(), 1, self.n_micro_batches);
        let order = (one_f_one_b.order)(&pipeline);
        let mut next = vec![0; self.ops.len()];
        while next.iter().zip(&order).any(|(&at, slots)| at < slots.len()) {
            for (stage, slots) in order.iter().enumerate() {
                while next[stage] < slots.len() && self.is_ready(stage, slots[next[stage]]) {
                    self.pass(graph, stage, slots[next[stage]]);
                    next[stage] += 1;
                }
            }
        }
        self.last
    }

    fn ops_of(&self, stage: usize, micro_batch: usize) -> &StageOps {
        let of_stage = &self.ops[stage];
        &of_stage[micro_batch.min(of_stage.len() - 1)]
    }

    fn is_ready(&self, stage: usize, slot: Slot) -> bool {
        let micro_batch = slot.micro_batch as usize;
        match slot.kind {
            PassKind::Forward => stage == 0 || !self.forward_ready[stage][micro_batch].is_empty(),
            _ => stage + 1 == self.ops.len() || !self.backward_ready[stage][micro_batch].is_empty(),
        }
    }

    /// A pass with the message before it and the one behind it.
    fn pass(&mut self, graph: &mut TaskGraph, stage: usize, slot: Slot) {
        let (micro_batch, is_forward) = (slot.micro_batch as usize, slot.kind == PassKind::Forward);
        let at = At { stage, micro_batch, is_forward };
        let ready = if is_forward { &mut self.forward_ready } else { &mut self.backward_ready };
        let ready = std::mem::take(&mut ready[stage][micro_batch]);
        let is_sent = !ready.is_empty();
        self.last[stage].extend(ready);
        if self.messages == Messages::Blocking && is_sent {
            let message = self.ops_of(at.link(true), micro_batch).message;
            let taken = self.add(graph, at, (message, Role::StageExchange, Stream::Compute), &self.last[stage]);
            self.last[stage] = vec![taken];
        }
        self.compute(graph, at);
        let to = if is_forward { Some(stage + 1).filter(|&to| to < self.ops.len()) } else { stage.checked_sub(1) };
        if let Some(to) = to {
            let sent = self.send(graph, at);
            let ready = if is_forward { &mut self.forward_ready } else { &mut self.backward_ready };
            ready[to][micro_batch] = sent;
        }
    }

    /// The tasks of a pass, which begins when all before it has ended.
    fn compute(&mut self, graph: &mut TaskGraph, at: At) {
        let preds = std::mem::take(&mut self.last[at.stage]);
        let ops = self.ops_of(at.stage, at.micro_batch);
        let (ops, role, copies) = if at.is_forward {
            (&ops.forward, Role::Forward, Stream::DeviceToHost)
        } else {
            (&ops.backward, Role::Backward, Stream::HostToDevice)
        };
        let mut end = self.add(graph, at, (ops.computed, role, Stream::Compute), &preds);
        if let Some(exchanged) = ops.exchanged {
            end = self.add(graph, at, (exchanged, Role::TensorExchange, Stream::IntraNode), &[end]);
        }
        let copied = ops.copied.map(|copied| self.add(graph, at, (copied, Role::Offload, copies), &preds));
        self.last[at.stage] = [end].into_iter().chain(copied).collect();
    }

    /// Sends what a pass has made, and gives what the other side waits for.
    fn send(&mut self, graph: &mut TaskGraph, at: At) -> Vec<TaskId> {
        let ops = self.ops_of(at.link(false), at.micro_batch);
        let done = self.last[at.stage].clone();
        if self.messages == Messages::Blocking {
            let sent = self.add(graph, at, (ops.message, Role::StageExchange, Stream::Compute), &done);
            self.last[at.stage] = vec![sent];
            // It stands on the other side as well, from when it is ready to be sent.
            return done;
        }
        let line = if at.is_forward { Stream::PointToPoint } else { Stream::Back };
        let sent = self.add(graph, at, (ops.message, Role::StageExchange, line), &done);
        match ops.latency {
            Some(latency) => vec![self.add(graph, at, (latency, Role::StageExchange, Stream::OnTheWay), &[sent])],
            None => vec![sent],
        }
    }

    fn add(&self, graph: &mut TaskGraph, at: At, (op, role, stream): (OpId, Role, Stream), preds: &[TaskId]) -> TaskId {
        let micro_batch = u32::try_from(at.micro_batch).expect("micro-batches fit u32");
        graph.add_task(Task { op, stream, ..of(lane_id(self.first_lane + at.stage), role, micro_batch) }, preds)
    }
}

#[cfg(test)]
mod tests;
