//! A step of pipelines whose stages stand on cards of their own: every stage of every replica brings its times along.
//!
//! So stages may have other cards, layers and tensor degrees than their neighbours, and replicas other cards than each other. Passes go by 1F1B.
//! A message that blocks keeps both stages busy, the one that sends and the one that takes it: nothing runs behind it (Sailor, SOSP 2025, adds it to
//! the slowest stage in both directions). Replicas of a stage reduce gradients when the last one of them has computed its own.

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

/// Times of a stage on the cards of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTimes {
    /// GPUs that act as one: its tensor group.
    pub n_gpus: u32,
    /// Forward of a micro-batch; the mean where they differ.
    pub forward: Span,
    /// Backward of a micro-batch, as the forward.
    pub backward: Span,
    /// Step of the optimizer.
    pub update: Span,
    /// A message to the next stage, or back from it, as the forward; nothing for the last one.
    pub message: Span,
}

/// Times of one micro-batch on a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassTimes {
    /// Forward.
    pub forward: Span,
    /// Backward.
    pub backward: Span,
    /// A message to the next stage, or back from it.
    pub message: Span,
}

impl PassTimes {
    /// Forward and backward.
    pub const fn computed(&self) -> Span {
        Span::from_ns(self.forward.as_ns() + self.backward.as_ns())
    }
}

impl StageTimes {
    /// Times of a micro-batch where all are alike.
    const fn alike(&self) -> PassTimes {
        PassTimes { forward: self.forward, backward: self.backward, message: self.message }
    }

    /// The same stage with the means of such micro-batches.
    #[must_use]
    pub fn with_means(self, of: &[PassTimes]) -> Self {
        let n = (of.len() as u64).max(1);
        let mean = |time: fn(&PassTimes) -> Span| Span::from_ns(of.iter().map(|of| time(of).as_ns()).sum::<u64>() / n);
        Self {
            forward: mean(|of| of.forward),
            backward: mean(|of| of.backward),
            message: mean(|of| of.message),
            ..self
        }
    }
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
            computed.iter_mut().zip(ends).for_each(|(stage, end)| stage.push(end));
        }
        for (stage, ends) in computed.iter().enumerate() {
            let reduce = host(&mut graph, self.reductions[stage]);
            for (index, replica) in self.replicas.iter().enumerate() {
                let lane = lane_id(index * n_stages + stage);
                let task = |op, role| Task { op, ..of(lane, role, u32::MAX) };
                let reduced = graph.add_task(task(reduce, Role::GradientSync), ends);
                let update = host(&mut graph, replica.stages[stage].update);
                graph.add_task(task(update, Role::Optimizer), &[reduced]);
            }
        }
        graph
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

    /// Seconds that GPUs compute, all of them together.
    pub fn computed_gpu_s(&self) -> f64 {
        let of = |replica: &Replica| {
            let stages = replica.stages.iter().enumerate();
            stages
                .map(|(stage, times)| f64::from(times.n_gpus) * replica.computed(stage).to_seconds().get())
                .sum::<f64>()
        };
        self.replicas.iter().map(of).sum()
    }

    /// What sets the pace, in words.
    pub fn why(&self) -> String {
        let mut slowest = (Span::ZERO, String::new());
        for (index, replica) in self.replicas.iter().enumerate() {
            for (stage, times) in replica.stages.iter().enumerate() {
                let [computed, sent] = [replica.computed(stage), replica.sent(stage)];
                let all = Span::from_ns(computed.as_ns() + sent.as_ns());
                if all > slowest.0 {
                    let [computed, sent] = [computed, sent].map(|span| span.to_seconds().get());
                    let gpus = if times.n_gpus == 1 { "GPU" } else { "GPUs" };
                    let n_gpus = times.n_gpus;
                    let words = format!(
                        "stage {stage} of replica {index} ({n_gpus} {gpus}) computes {computed:.3} s and is in messages for {sent:.3} s"
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
            None => vec![self.stages[stage].alike(); self.n_micro_batches as usize],
        }
    }

    /// Nanoseconds of all micro-batches on a stage.
    fn total(&self, stage: usize, of: impl Fn(&PassTimes) -> u64) -> u64 {
        match self.own.get(stage) {
            Some(own) => own.iter().map(of).sum(),
            None => u64::from(self.n_micro_batches) * of(&self.stages[stage].alike()),
        }
    }

    fn computed(&self, stage: usize) -> Span {
        Span::from_ns(self.total(stage, |times| times.forward.as_ns() + times.backward.as_ns()))
    }

    /// Messages of a stage, those to it and those from it.
    fn sent(&self, stage: usize) -> Span {
        let of = |stage: usize| self.total(stage, |times| 2 * times.message.as_ns());
        Span::from_ns(stage.checked_sub(1).map_or(0, of) + of(stage))
    }
}

fn lane_id(index: usize) -> LaneId {
    LaneId(u32::try_from(index).expect("lanes fit u32"))
}

fn host(graph: &mut TaskGraph, time: Span) -> OpId {
    graph.add_op(Op::Host { ns: time.as_ns() })
}

const fn of(lane: LaneId, role: Role, micro_batch: u32) -> Task {
    Task { op: OpId(0), lane, stream: Stream::Compute, role, micro_batch, meeting: None }
}

/// Operations of a stage.
struct StageOps {
    forward: OpId,
    backward: OpId,
    message: OpId,
}

/// The passes of one replica while they are lowered.
struct Passes {
    /// By stage and micro-batch; one for all that are alike.
    ops: Vec<Vec<StageOps>>,
    first_lane: usize,
    n_micro_batches: usize,
    messages: Messages,
    /// What a forward or a backward of a stage waits for, by stage and micro-batch.
    forward_ready: Vec<Vec<Option<TaskId>>>,
    backward_ready: Vec<Vec<Option<TaskId>>>,
    /// Last task of each stage.
    last: Vec<Option<TaskId>>,
}

impl Passes {
    fn new(graph: &mut TaskGraph, replica: &Replica, first_lane: usize, messages: Messages) -> Self {
        let n_micro_batches = replica.n_micro_batches as usize;
        let mut ops = |times: &PassTimes| StageOps {
            forward: host(graph, times.forward),
            backward: host(graph, times.backward),
            message: host(graph, times.message),
        };
        let mut ops = |(index, stage): (usize, &StageTimes)| match replica.own.get(index) {
            Some(own) => own.iter().map(&mut ops).collect(),
            None => vec![ops(&stage.alike())],
        };
        let ops: Vec<Vec<StageOps>> = replica.stages.iter().enumerate().map(&mut ops).collect();
        let nothing = vec![vec![None; n_micro_batches]; ops.len()];
        Self {
            first_lane,
            n_micro_batches,
            messages,
            forward_ready: nothing.clone(),
            backward_ready: nothing,
            last: vec![None; ops.len()],
            ops,
        }
    }

    /// Adds slots as their inputs come to be known, stage after stage, and gives the last task of each stage.
    fn lower(mut self, graph: &mut TaskGraph) -> Vec<TaskId> {
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
        self.last.into_iter().map(|task| task.expect("a replica has micro-batches")).collect()
    }

    fn ops_of(&self, stage: usize, micro_batch: usize) -> &StageOps {
        let of_stage = &self.ops[stage];
        &of_stage[micro_batch.min(of_stage.len() - 1)]
    }

    fn is_ready(&self, stage: usize, slot: Slot) -> bool {
        let micro_batch = slot.micro_batch as usize;
        match slot.kind {
            PassKind::Forward => stage == 0 || self.forward_ready[stage][micro_batch].is_some(),
            _ => stage + 1 == self.ops.len() || self.backward_ready[stage][micro_batch].is_some(),
        }
    }

    /// A pass with the message before it and the one behind it.
    fn pass(&mut self, graph: &mut TaskGraph, stage: usize, slot: Slot) {
        let micro_batch = slot.micro_batch as usize;
        let is_forward = slot.kind == PassKind::Forward;
        let (op, role, ready) = if is_forward {
            (self.ops_of(stage, micro_batch).forward, Role::Forward, self.forward_ready[stage][micro_batch])
        } else {
            (self.ops_of(stage, micro_batch).backward, Role::Backward, self.backward_ready[stage][micro_batch])
        };
        // A message stands on the link behind the earlier one of its two stages.
        let link = |is_before: bool| if is_before == is_forward { stage.checked_sub(1) } else { Some(stage) };
        let blocks = self.messages == Messages::Blocking;
        let mut add = |op, role, stream, pred: Option<TaskId>| {
            let task = Task { op, stream, ..of(lane_id(self.first_lane + stage), role, slot.micro_batch) };
            graph.add_task(task, pred.as_slice())
        };
        if blocks && ready.is_some() {
            let message = self.ops_of(link(true).expect("a message has a link"), micro_batch).message;
            add(message, Role::StageExchange, Stream::Compute, ready);
        }
        let done = add(op, role, Stream::Compute, ready);
        self.last[stage] = Some(done);
        let to = if is_forward { Some(stage + 1).filter(|&to| to < self.ops.len()) } else { stage.checked_sub(1) };
        if let Some(to) = to {
            let message = self.ops_of(link(false).expect("a message has a link"), micro_batch).message;
            let stream = if blocks { Stream::Compute } else { Stream::PointToPoint };
            let sent = add(message, Role::StageExchange, stream, Some(done));
            let ready = if is_forward { &mut self.forward_ready } else { &mut self.backward_ready };
            // A message that blocks stands on the other side as well, from when it is ready to be sent.
            ready[to][micro_batch] = Some(if blocks { done } else { sent });
            if blocks {
                self.last[stage] = Some(sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span_of(step: &TimedStep) -> u64 {
        step.span().as_ns()
    }

    fn stage(forward: u64, backward: u64, message: u64) -> StageTimes {
        let [forward, backward, message] = [forward, backward, message].map(Span::from_ns);
        StageTimes { n_gpus: 1, forward, backward, update: Span::from_ns(7), message }
    }

    fn step(stages: Vec<StageTimes>, n_micro_batches: u32) -> TimedStep {
        let reductions = vec![Span::ZERO; stages.len()];
        TimedStep {
            replicas: vec![Replica { stages, n_micro_batches, own: Vec::new() }],
            reductions,
            messages: Messages::Blocking,
        }
    }

    #[test]
    fn equal_stages_without_messages_have_the_span_of_1f1b() {
        // (m + p − 1)(f + b), and the optimizer.
        for (p, m) in [(1, 1), (2, 8), (4, 8), (4, 3)] {
            let found = span_of(&step(vec![stage(100, 200, 0); p], m));
            assert_eq!(found, (u64::from(m) + p as u64 - 1) * 300 + 7, "{p} stages, {m} micro-batches");
        }
    }

    #[test]
    fn a_message_keeps_both_stages_busy() {
        // One micro-batch through two stages: both forwards, both backwards, a message each way.
        assert_eq!(span_of(&step(vec![stage(100, 200, 50), stage(100, 200, 0)], 1)), 600 + 2 * 50 + 7);
        // Many: the slow stage computes, takes a message and sends one for each of them.
        let few = span_of(&step(vec![stage(10, 20, 50), stage(100, 200, 0)], 40));
        let more = span_of(&step(vec![stage(10, 20, 50), stage(100, 200, 0)], 41));
        assert_eq!(more - few, 300 + 2 * 50);
    }

    #[test]
    fn a_message_behind_computation_costs_what_two_micro_batches_in_flight_cannot_hide() {
        // Two stages of 1F1B have two micro-batches in flight. A way there and back takes 100 + 50 + 300 + 50 + 200, which is 700 for two of them.
        let behind = |n| {
            let blocking = step(vec![stage(100, 200, 50), stage(100, 200, 0)], n);
            span_of(&TimedStep { messages: Messages::Behind, ..blocking })
        };
        assert_eq!(behind(1), 600 + 2 * 50 + 7);
        assert_eq!(behind(42) - behind(40), 700);
    }

    #[test]
    fn a_reduction_waits_for_the_slowest_replica_of_its_stage() {
        let replica = |forward| Replica { stages: vec![stage(forward, 200, 0)], n_micro_batches: 4, own: Vec::new() };
        let reductions = vec![Span::from_ns(1000)];
        let two = TimedStep { replicas: vec![replica(100), replica(300)], reductions, messages: Messages::Behind };
        assert_eq!(span_of(&two), 4 * 500 + 1000 + 7);
    }

    #[test]
    fn replicas_may_have_other_numbers_of_micro_batches() {
        let replica = |forward, n_micro_batches| Replica {
            stages: vec![stage(forward, forward, 0)],
            n_micro_batches,
            own: Vec::new(),
        };
        let replicas = vec![replica(100, 9), replica(300, 3)];
        let two = TimedStep { replicas, reductions: vec![Span::ZERO], messages: Messages::Behind };
        assert_eq!(span_of(&two), 1800 + 7);
    }

    /// Micro-batches of 300, 600 and 900 take their sum on one stage. On two, the first stage has forwards 1 and 2, backward 1, forward 3, and the other backwards.
    #[test]
    fn micro_batches_of_their_own_take_their_own_times() {
        let times = |n: u64| {
            let [forward, backward, message] = [100 * n, 200 * n, 0].map(Span::from_ns);
            PassTimes { forward, backward, message }
        };
        let own: Vec<PassTimes> = [1, 2, 3].map(times).to_vec();
        let alone = stage(0, 0, 0).with_means(&own);
        assert_eq!((alone.forward.as_ns(), alone.backward.as_ns()), (200, 400));
        let replica = |n_stages: usize, own: &[PassTimes]| Replica {
            stages: vec![alone; n_stages],
            n_micro_batches: 3,
            own: vec![own.to_vec(); n_stages],
        };
        let span = |n_stages: usize, own: &[PassTimes]| {
            let reductions = vec![Span::ZERO; n_stages];
            let step = TimedStep { replicas: vec![replica(n_stages, own)], reductions, messages: Messages::Behind };
            (span_of(&step), step.computed_gpu_s())
        };
        assert_eq!(span(1, &own), (1800 + 7, 1800e-9));
        // First stage: forwards until 300; backward 1 of the last stage is from 100 + 100 until 400, so backward 1 here until 600; forward 3 until 900;
        // backward 2 of the last stage is from 400 + 200 until 1000, so here until 1400. The last stage has forward 3 until 1300 and backward 3 until 1900,
        // which ends here at 2500.
        assert_eq!(span(2, &own).0, 2500 + 7);
        // Alike, they are those of a stage.
        let alike = vec![times(2); 3];
        let plain = step(vec![stage(200, 400, 0); 2], 3);
        assert_eq!(span(2, &alike).0, span_of(&TimedStep { messages: Messages::Behind, ..plain }));
    }
}
