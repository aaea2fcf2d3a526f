//! Chrome/Perfetto trace of one step: a process per rank, a thread per stream, a counter for memory.
//!
//! Units: microseconds with three decimals, which is exact for nanoseconds. Every task that takes time is one `ph: X` event, in task order,
//! with its operation, tokens, bytes and micro-batch; messages that are on their way lie over each other and are left out. Of a very large step only as many ranks are written as a viewer can hold, from the
//! first on. Format: "Trace Event Format" of the Chromium project.

use std::fmt::Write as _;

use engine::Op;
use engine::task::{Collective, Stream, TaskId};

use crate::Picture;
use crate::quantity::float;

/// Bytes that an event takes at most in practice, for one allocation up front.
const EVENT_BYTES: usize = 160;

/// Tasks that a trace holds at most; viewers become slow beyond.
const TASKS_MAX: usize = 200_000;

/// Lanes that fit: all, or the first ones.
fn n_shown(picture: &Picture<'_>) -> usize {
    let n_tasks = picture.graph.tasks.len().max(1);
    if n_tasks <= TASKS_MAX {
        picture.graph.lanes.len()
    } else {
        (picture.graph.lanes.len() * TASKS_MAX / n_tasks).max(1)
    }
}

/// Renders the trace; linear in the tasks, no tree in between.
pub fn render(picture: &Picture<'_>) -> String {
    let n_marks: usize = picture.timeline.memory.iter().map(Vec::len).sum();
    let n_shown = n_shown(picture);
    let n_events = picture.graph.tasks.len().min(TASKS_MAX) + n_marks;
    let mut out = String::with_capacity(EVENT_BYTES * n_events + 4096);
    let n_instant = (0..picture.graph.tasks.len()).filter(|&index| is_instant(picture, index)).count();
    let _ = write!(
        out,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"policy\":\"{}\",\"tasks_without_time\":{n_instant}}},",
        escape(picture.policy)
    );
    out.push_str("\"traceEvents\":[");
    let mut writer = Writer { out, is_first: true };
    names(&mut writer, picture);
    let works: Vec<Work> = picture.graph.ops.iter().map(Work::of).collect();
    for index in (0..picture.graph.tasks.len()).filter(|&index| is_shown(picture, index, n_shown)) {
        task(&mut writer, picture, &works, index);
    }
    for (rank, marks) in picture.timeline.memory.iter().enumerate().take(n_shown) {
        for mark in marks {
            let (at, gib) = (Micros(mark.at.as_ns()), crate::quantity::gib_of(float(mark.bytes)));
            let _ = write!(
                writer.next(),
                "{{\"name\":\"memory\",\"ph\":\"C\",\"ts\":{at},\"pid\":{rank},\"args\":{{\"GiB\":{gib:.6}}}}}"
            );
        }
    }
    let mut out = writer.out;
    out.push_str("\n]}\n");
    out
}

/// File of a picture's trace.
pub fn file_name(picture: &Picture<'_>) -> String {
    match picture.step {
        Some(step) => format!("trace-{}-step-{step}.json", picture.policy),
        None => format!("trace-{}.json", picture.policy),
    }
}

/// Whether a task takes no time: marks of the graph, of which a step may have thousands.
fn is_instant(picture: &Picture<'_>, index: usize) -> bool {
    picture.timeline.start[index] == picture.timeline.end[index]
}

/// Whether a task is on a shown lane, takes time, and lies over no other one of its stream.
fn is_shown(picture: &Picture<'_>, index: usize, n_shown: usize) -> bool {
    let task = &picture.graph.tasks[index];
    task.lane.index() < n_shown && task.stream.is_in_turn() && !is_instant(picture, index)
}

/// Name of an operation, or those of its parts.
pub(crate) fn operation(graph: &engine::TaskGraph, op: engine::task::OpId) -> String {
    Work::of(&graph.ops[op.0 as usize]).name
}

/// What an operation works on.
struct Work {
    /// Its name, or those of its parts.
    name: String,
    tokens: u64,
    bytes: u64,
}

impl Work {
    fn of(op: &Op) -> Self {
        let mut work = Self { name: String::new(), tokens: 0, bytes: 0 };
        let mut names: Vec<&str> = Vec::new();
        work.add(op, 1, &mut names);
        work.name = names.join(", ");
        work
    }

    /// Tokens are those of the widest part, which all parts share; bytes add up.
    fn add(&mut self, op: &Op, times: u64, names: &mut Vec<&'static str>) {
        let (tokens, bytes) = match op {
            Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } => {
                for (part, n) in parts {
                    self.add(part, times * u64::from(*n), names);
                }
                return;
            }
            Op::Gemm { m, .. } => (*m, 0),
            Op::GroupedGemm { rows, .. } => (rows.iter().sum(), 0),
            Op::Attention { documents, .. } => (documents.iter().map(|document| document.queries).sum(), 0),
            Op::Embedding { tokens, row_bytes } => (*tokens, tokens.saturating_mul(*row_bytes)),
            Op::Elementwise { bytes } | Op::Collective { bytes, .. } | Op::Copy { bytes, .. } => (0, *bytes),
            Op::Host { .. } => (0, 0),
        };
        self.tokens = self.tokens.max(tokens);
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(times));
        let name = op_name(op);
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

struct Writer {
    out: String,
    is_first: bool,
}

impl Writer {
    /// The place of the next event.
    fn next(&mut self) -> &mut String {
        self.out.push_str(if self.is_first { "\n" } else { ",\n" });
        self.is_first = false;
        &mut self.out
    }
}

/// Nanoseconds shown as microseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Names of ranks and of the streams that have tasks.
fn names(writer: &mut Writer, picture: &Picture<'_>) {
    let mut used = vec![[false; Stream::ALL.len()]; picture.graph.lanes.len()];
    for task in picture.graph.tasks.iter().filter(|task| task.stream.is_in_turn()) {
        used[task.lane.index()][task.stream.index()] = true;
    }
    let lanes = crate::lanes::names(picture.graph);
    for (rank, streams) in used.iter().enumerate().take(n_shown(picture)) {
        let _ = write!(
            writer.next(),
            "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\"args\":{{\"name\":\"{}\"}}}}",
            lanes[rank]
        );
        for stream in Stream::ALL.into_iter().filter(|stream| streams[stream.index()]) {
            let (tid, name) = (stream.index(), stream.name());
            let _ = write!(
                writer.next(),
                "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{rank},\"tid\":{tid},\
                 \"args\":{{\"name\":\"{name}\"}}}}"
            );
            let _ = write!(
                writer.next(),
                "{{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":{rank},\"tid\":{tid},\
                 \"args\":{{\"sort_index\":{tid}}}}}"
            );
        }
    }
}

fn task(writer: &mut Writer, picture: &Picture<'_>, works: &[Work], index: usize) {
    let task = &picture.graph.tasks[index];
    let (start, end) = (picture.timeline.start[index], picture.timeline.end[index]);
    let (ts, dur) = (Micros(start.as_ns()), Micros((end - start).as_ns()));
    let id = TaskId(u32::try_from(index).expect("a graph has fewer than 2^32 tasks"));
    let role = task.role.name();
    let work = &works[task.op.0 as usize];
    let op = &work.name;
    let (pid, tid) = (task.lane.0, task.stream.index());
    let out = writer.next();
    let _ = write!(
        out,
        "{{\"name\":\"{role}\",\"cat\":\"{op}\",\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur},\"pid\":{pid},\"tid\":{tid},\
         \"args\":{{\"task\":{},\"operation\":\"{op}\"",
        id.0
    );
    for (key, n) in [("tokens", work.tokens), ("bytes", work.bytes)] {
        if n > 0 {
            let _ = write!(out, ",\"{key}\":{n}");
        }
    }
    if task.micro_batch != u32::MAX {
        let _ = write!(out, ",\"micro_batch\":{}", task.micro_batch);
    }
    if let Some(meeting) = task.meeting {
        let _ = write!(out, ",\"meeting\":{}", meeting.0);
    }
    out.push_str("}}");
}

/// Collectives are told apart, everything else by its class.
const fn op_name(op: &Op) -> &'static str {
    match op {
        Op::Collective { kind, .. } => match kind {
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllReduce => "all-reduce",
            Collective::AllToAll => "all-to-all",
            Collective::RingShift => "ring shift",
            Collective::SendRecv => "send",
        },
        other => other.class(),
    }
}

/// A text inside a JSON string.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}
