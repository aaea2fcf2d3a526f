//! The event loop: in-order streams, meetings, flows, memory.
//!
//! Flat arrays indexed by task; everything is allocated at set-up except flows. Every task starts once and ends once.

use std::collections::BTreeMap;

use hw::{Seconds, Span, Time};

use super::flow::{self, Flows};
use super::memory::{Memory, Overflow};
use super::{Case, Machine, Outcome};
use crate::cost::Estimate;
use crate::queue::Queue;
use crate::stop;
use crate::task::{GroupId, Lane, LaneId, Moment, OpId, Stream, TaskGraph, TaskId};
use crate::timeline::{self, Timeline};

const N_STREAMS: usize = Stream::ALL.len();
const NOT_YET: Time = Time::from_ns(u64::MAX);

/// Lists of small integers, one after another: `items[ends[i-1]..ends[i]]`.
struct Lists {
    items: Vec<u32>,
    starts: Vec<u32>,
}

impl Lists {
    /// Groups `(list, item)` pairs by list, keeping their order.
    fn new(n_lists: usize, pairs: impl Iterator<Item = (usize, u32)> + Clone) -> Self {
        let mut starts = vec![0_u32; n_lists + 1];
        pairs.clone().for_each(|(list, _)| starts[list + 1] += 1);
        for list in 0..n_lists {
            starts[list + 1] += starts[list];
        }
        let mut cursor = starts.clone();
        let mut items = vec![0; starts[n_lists] as usize];
        for (list, item) in pairs {
            items[cursor[list] as usize] = item;
            cursor[list] += 1;
        }
        Self { items, starts }
    }

    fn range(&self, list: usize) -> std::ops::Range<usize> {
        self.starts[list] as usize..self.starts[list + 1] as usize
    }
}

/// How long tasks take.
enum Spans<'a> {
    /// By operation, with links shared among flows.
    Estimated(Vec<Span>),
    /// By task, as measured: nothing is shared any more.
    Measured(&'a [Span]),
}

struct Player<'a> {
    graph: &'a TaskGraph,
    machine: &'a Machine<'a>,
    spans: Spans<'a>,
    successors: Lists,
    effects: Lists,
    queues: Lists,
    /// Position of each stream's next task in `queues.items`.
    heads: Vec<usize>,
    busy: Vec<bool>,
    preds_left: Vec<u32>,
    /// Members that each meeting still waits for.
    absent: Vec<u32>,
    members: Lists,
    flows: Flows,
    loads: BTreeMap<(OpId, GroupId), flow::Loads>,
    /// Task (first member) of each flow.
    flow_task: Vec<TaskId>,
    queue: Queue,
    memory: Memory,
    start: Vec<Time>,
    end: Vec<Time>,
    /// Streams whose head may start now.
    wake: Vec<usize>,
    changed: Vec<u32>,
    n_ended: usize,
}

/// Plays a graph to its end.
pub(super) fn play(graph: &TaskGraph, machine: &Machine<'_>, estimates: &[Estimate]) -> Outcome {
    play_spans(graph, machine, Spans::Estimated(spans(estimates, machine.case)))
}

/// Plays a graph whose tasks take these times.
pub(super) fn play_measured(graph: &TaskGraph, machine: &Machine<'_>, measured: &[Span]) -> Outcome {
    assert_eq!(measured.len(), graph.tasks.len(), "a time for every task");
    play_spans(graph, machine, Spans::Measured(measured))
}

fn play_spans<'a>(graph: &'a TaskGraph, machine: &'a Machine<'a>, spans: Spans<'a>) -> Outcome {
    let memory = match Memory::new(graph, machine.memory_bytes) {
        Ok(memory) => memory,
        Err(overflow) => return out_of_memory(graph, overflow, Time::ZERO, TaskId(0)),
    };
    let mut player = Player::new(graph, machine, spans, memory);
    let mut now = Time::ZERO;
    player.wake = (0..player.heads.len()).collect();
    loop {
        stop::pause();
        if let Err((overflow, task)) = player.instant(now) {
            return out_of_memory(graph, overflow, now, task);
        }
        match player.queue.next_time() {
            Some(next) => now = next,
            None => break,
        }
        if let Err((overflow, task)) = player.end_batch(now) {
            return out_of_memory(graph, overflow, now, task);
        }
    }
    player.outcome()
}

fn out_of_memory(graph: &TaskGraph, overflow: Overflow, at: Time, task: TaskId) -> Outcome {
    Outcome::OutOfMemory {
        rank: graph.lanes[overflow.lane.index()].rank,
        at,
        allocation: graph.labels[overflow.label.0 as usize].clone(),
        needed: overflow.needed,
        free: overflow.free,
        task,
    }
}

fn spans(estimates: &[Estimate], case: Case) -> Vec<Span> {
    estimates.iter().map(|estimate| Span::from_seconds(case.of(estimate))).collect()
}

/// What computation takes on a straggler.
fn slowed(span: Span, rate: f64) -> Span {
    let ns = hw::real(span.as_ns()) * rate;
    if rate == 1.0 { span } else { Span::from_ns(hw::whole(ns.ceil())) }
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("task graphs have fewer than 2^32 tasks")
}

impl<'a> Player<'a> {
    fn new(graph: &'a TaskGraph, machine: &'a Machine<'a>, spans: Spans<'a>, memory: Memory) -> Self {
        let n_tasks = graph.tasks.len();
        let ids = 0..n_tasks;
        let n_streams = graph.lanes.len() * N_STREAMS;
        let preds = ids
            .clone()
            .flat_map(|task| graph.preds(TaskId(u32_of(task))).iter().map(move |pred| (pred.0 as usize, u32_of(task))));
        let stream = |task: &crate::task::Task| task.lane.index() * N_STREAMS + task.stream.index();
        let meetings =
            ids.clone().filter_map(|task| graph.tasks[task].meeting.map(|meeting| (meeting.0 as usize, u32_of(task))));
        let in_turn = graph.tasks.iter().enumerate().filter(|(_, task)| task.stream.is_in_turn());
        let queues = Lists::new(n_streams, in_turn.map(|(id, task)| (stream(task), u32_of(id))));
        let members = Lists::new(graph.meetings.len(), meetings);
        Self {
            spans,
            successors: Lists::new(n_tasks, preds),
            effects: Lists::new(
                n_tasks,
                graph.effects.iter().enumerate().map(|(id, e)| (e.task.0 as usize, u32_of(id))),
            ),
            heads: (0..n_streams).map(|stream| queues.range(stream).start).collect(),
            busy: vec![false; n_streams],
            preds_left: ids.map(|task| u32_of(graph.preds(TaskId(u32_of(task))).len())).collect(),
            absent: (0..graph.meetings.len()).map(|meeting| u32_of(members.range(meeting).len())).collect(),
            queues,
            members,
            flows: Flows::new(machine.topology),
            loads: BTreeMap::new(),
            flow_task: Vec::new(),
            queue: Queue::with_capacity(n_streams),
            memory,
            start: vec![NOT_YET; n_tasks],
            end: vec![NOT_YET; n_tasks],
            wake: Vec::new(),
            changed: Vec::new(),
            n_ended: 0,
            graph,
            machine,
        }
    }

    fn span_of(&self, task: TaskId) -> Span {
        match &self.spans {
            Spans::Estimated(by_op) => by_op[self.graph.tasks[task.0 as usize].op.0 as usize],
            Spans::Measured(by_task) => by_task[task.0 as usize],
        }
    }

    fn stream_of(&self, task: TaskId) -> usize {
        let task = &self.graph.tasks[task.0 as usize];
        task.lane.index() * N_STREAMS + task.stream.index()
    }

    /// Starts everything that can start at `now`, then settles the links.
    fn instant(&mut self, now: Time) -> Result<(), (Overflow, TaskId)> {
        let mut wake = std::mem::take(&mut self.wake);
        wake.sort_unstable();
        wake.dedup();
        for stream in wake {
            self.try_start(stream, now)?;
        }
        let changed = std::mem::take(&mut self.changed);
        let (queue, n_tasks) = (&mut self.queue, u32_of(self.graph.tasks.len()));
        self.flows.settle(&changed, now, |flow, end| queue.push(end, n_tasks + flow));
        Ok(())
    }

    fn try_start(&mut self, stream: usize, now: Time) -> Result<(), (Overflow, TaskId)> {
        let head = self.heads[stream];
        if self.busy[stream] || head == self.queues.range(stream).end {
            return Ok(());
        }
        let task = TaskId(self.queues.items[head]);
        if self.preds_left[task.0 as usize] > 0 {
            return Ok(());
        }
        // The task holds its stream from here on, also while a meeting waits for others.
        self.busy[stream] = true;
        self.heads[stream] = head + 1;
        match self.graph.tasks[task.0 as usize].meeting {
            Some(meeting) => {
                let absent = &mut self.absent[meeting.0 as usize];
                *absent -= 1;
                if *absent == 0 { self.start_meeting(meeting.0 as usize, task, now) } else { Ok(()) }
            }
            None => self.start_alone(task, now),
        }
    }

    fn start_alone(&mut self, task: TaskId, now: Time) -> Result<(), (Overflow, TaskId)> {
        self.begin(task, now)?;
        let entry = self.graph.tasks[task.0 as usize];
        let span = self.span_of(task);
        let op = &self.graph.ops[entry.op.0 as usize];
        let is_estimated = matches!(self.spans, Spans::Estimated(_));
        // Whatever a stream of copies runs loads links, reads of a sequence too.
        let copies = matches!(entry.stream, Stream::HostToDevice | Stream::DeviceToHost);
        if is_estimated && copies {
            let loads = flow::loads(op, &[self.graph.lanes[entry.lane.index()].rank], self.machine.topology).into();
            self.start_flow(loads, span, task, now);
        } else {
            let computes = is_estimated && entry.stream == Stream::Compute;
            let end = if computes { self.finish(entry.lane, now, span) } else { now + span };
            self.queue.push(end, task.0);
        }
        Ok(())
    }

    /// The last member has arrived: all members begin.
    fn start_meeting(&mut self, meeting: usize, task: TaskId, now: Time) -> Result<(), (Overflow, TaskId)> {
        for index in self.members.range(meeting) {
            self.begin(TaskId(self.members.items[index]), now)?;
        }
        let span = self.span_of(task);
        if let Spans::Measured(_) = self.spans {
            self.queue.push(now + span, task.0);
            return Ok(());
        }
        let loads = self.loads(self.graph.tasks[task.0 as usize].op, self.graph.meetings[meeting]);
        self.start_flow(loads, span, task, now);
        Ok(())
    }

    /// Links that an operation of a group loads; computed once, since steps repeat the same exchanges.
    fn loads(&mut self, op: OpId, group: GroupId) -> flow::Loads {
        let (graph, topology) = (self.graph, self.machine.topology);
        let loads = self.loads.entry((op, group)).or_insert_with(|| {
            flow::loads(&graph.ops[op.0 as usize], &graph.groups[group.0 as usize], topology).into()
        });
        std::rc::Rc::clone(loads)
    }

    fn start_flow(&mut self, loads: flow::Loads, span: Span, task: TaskId, now: Time) {
        let flow = self.flows.start(&loads, span, now);
        self.flow_task.push(task);
        self.changed.push(flow);
    }

    fn begin(&mut self, task: TaskId, now: Time) -> Result<(), (Overflow, TaskId)> {
        debug_assert!(self.start[task.0 as usize] == NOT_YET, "task {} starts once", task.0);
        self.start[task.0 as usize] = now;
        self.apply_effects(task, Moment::Start, now)
    }

    fn apply_effects(&mut self, task: TaskId, moment: Moment, now: Time) -> Result<(), (Overflow, TaskId)> {
        let lane = self.graph.tasks[task.0 as usize].lane;
        for index in self.effects.range(task.0 as usize) {
            let effect = self.graph.effects[self.effects.items[index] as usize];
            if effect.moment != moment {
                continue;
            }
            let bytes = effect.delta_bytes.unsigned_abs();
            if effect.delta_bytes > 0 {
                self.memory.allocate(lane, effect.label, bytes, now).map_err(|overflow| (overflow, task))?;
            } else {
                self.memory.free(lane, effect.label, bytes, now);
            }
        }
        Ok(())
    }

    /// When compute that starts now ends, at the device's speed over time.
    fn finish(&self, lane: LaneId, now: Time, span: Span) -> Time {
        let Lane { rank, rate, .. } = self.graph.lanes[lane.index()];
        let span = slowed(span, rate);
        if self.machine.speed_changes.is_empty() {
            return now + span;
        }
        let mut left = hw::real(span.as_ns());
        let (mut at, mut speed) = (now, 1.0);
        for change in self.machine.speed_changes.iter().filter(|change| change.rank == rank) {
            if change.at <= at {
                speed = change.speed;
                continue;
            }
            let done = hw::real((change.at - at).as_ns()) * speed;
            if done >= left {
                break;
            }
            left -= done;
            (at, speed) = (change.at, change.speed);
        }
        at + Span::from_seconds(Seconds::new((left / speed).ceil() / 1e9))
    }

    /// Ends everything that ends at `now`.
    fn end_batch(&mut self, now: Time) -> Result<(), (Overflow, TaskId)> {
        let n_tasks = u32_of(self.graph.tasks.len());
        while self.queue.next_time() == Some(now) {
            let event = self.queue.pop().expect("an event was just seen");
            let task = if event.slot < n_tasks {
                TaskId(event.slot)
            } else {
                let flow = event.slot - n_tasks;
                if !self.flows.ends_with(flow, event.sequence) {
                    continue;
                }
                let neighbours = self.flows.end(flow);
                self.changed.extend(neighbours);
                self.flow_task[flow as usize]
            };
            match self.graph.tasks[task.0 as usize].meeting {
                None => self.finish_task(task, now)?,
                Some(meeting) => {
                    for index in self.members.range(meeting.0 as usize) {
                        self.finish_task(TaskId(self.members.items[index]), now)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn finish_task(&mut self, task: TaskId, now: Time) -> Result<(), (Overflow, TaskId)> {
        debug_assert!(self.end[task.0 as usize] == NOT_YET, "task {} ends once", task.0);
        self.end[task.0 as usize] = now;
        self.n_ended += 1;
        self.apply_effects(task, Moment::End, now)?;
        let stream = self.stream_of(task);
        self.busy[stream] = false;
        self.wake.push(stream);
        for index in self.successors.range(task.0 as usize) {
            let next = TaskId(self.successors.items[index]);
            let left = &mut self.preds_left[next.0 as usize];
            *left -= 1;
            if *left > 0 {
                continue;
            }
            if self.graph.tasks[next.0 as usize].stream.is_in_turn() {
                self.wake.push(self.stream_of(next));
            } else {
                self.start_alone(next, now)?;
            }
        }
        Ok(())
    }

    fn outcome(self) -> Outcome {
        if self.n_ended < self.graph.tasks.len() {
            let arrived = |task: &u32| self.start[*task as usize] == NOT_YET;
            let waiting = (0..self.heads.len()).filter_map(|stream| {
                let range = self.queues.range(stream);
                // A stream that waits in a meeting has its head behind it.
                let first = if self.busy[stream] { self.heads[stream] - 1 } else { self.heads[stream] };
                (first < range.end).then(|| self.queues.items[first]).filter(arrived).map(TaskId)
            });
            return Outcome::Stuck { waiting: waiting.collect() };
        }
        Outcome::Done(Timeline {
            schema: timeline::SCHEMA.to_owned(),
            start: self.start,
            end: self.end,
            memory: self.memory.into_marks(),
        })
    }
}
