//! Runs a task graph on a device: the second interpreter of the waist, besides the simulator.
//!
//! Every task runs its operations with their real shapes on random data, on its stream, behind the marks of what it waits for. A graph
//! of one lane runs live. Of several lanes each runs by itself; a meeting runs once, on the first of its lanes that comes to it; the
//! measured durations are then joined through the graph's dependencies. What the device cannot run takes the cost model's time.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::play::{self, Machine};
use engine::stop;
use engine::task::{LaneId, Op, TaskGraph, TaskId};
use engine::validation::{Execution, How, PartTime, elementary};
use engine::{Outcome, Timeline};
use hw::{Span, Time, quantile};
use thiserror::Error;

use crate::campaign::SLOW;
use crate::device::{Device, DeviceError};
use crate::sample::{self, UNDISTURBED};

/// Why a plan was not executed.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ExecuteError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What the plan keeps in memory does not fit; no kernel was run.
    #[error("out of device memory: `{tensor}` needs {needed} bytes on rank {rank}, {free} are free")]
    OutOfMemory { tensor: String, rank: u32, needed: u64, free: u64 },
    /// Tasks wait for each other.
    #[error("the plan cannot be executed: {0} tasks wait for each other")]
    Stuck(usize),
}

/// Runs of a step, after one to warm up.
pub const RUNS: usize = 3;
/// A step may take so many times what is predicted, and this much more, before the watchdog gives up.
const PATIENCE: (f64, Duration) = (50.0, Duration::from_secs(60));

/// Executes a graph `runs` times and takes lower quartiles.
///
/// # Errors
/// When the device fails or the plan does not fit.
pub fn execute(
    graph: &TaskGraph,
    device: &mut dyn Device,
    machine: &Machine<'_>,
    runs: usize,
) -> Result<Execution, ExecuteError> {
    let mut running = Running::begin(graph, device, machine)?;
    for _ in 0..runs {
        running.run(device)?;
        // One run has times of everything.
        if stop::is_asked() {
            stop::finish(stop::Whose::Process);
            break;
        }
    }
    let best = running.reference_s();
    running.finish(machine, best)
}

/// A graph that is run as often as wanted. Several can take turns on a device, so that a while in which it is slow meets one run of each
/// and no result.
pub struct Running<'a> {
    graph: &'a TaskGraph,
    /// Whether the device can run a task.
    runnable: Vec<bool>,
    /// What the cost model says of each task.
    modelled: Vec<Span>,
    limit: Duration,
    reference: Op,
    runs: Vec<Run<'a>>,
}

/// One run of a graph: for its length, and for the times of its operations.
struct Run<'a> {
    pass: Pass,
    times: Times<'a>,
    /// Seconds of the reference kernel before and after.
    reference: [f64; 2],
}

impl Run<'_> {
    fn slowdown(&self, best: f64) -> f64 {
        self.reference[0].max(self.reference[1]) / best.max(1e-12)
    }
}

impl<'a> Running<'a> {
    /// Looks whether everything fits, makes room, and runs once to warm up.
    ///
    /// # Errors
    /// When the device fails or the plan does not fit.
    pub fn begin(graph: &'a TaskGraph, device: &mut dyn Device, machine: &Machine<'_>) -> Result<Self, ExecuteError> {
        // What does not fit is found before anything runs.
        let predicted = finished(graph, engine::simulate(graph, machine))?;
        let limit = PATIENCE.1 + Duration::from_secs_f64(predicted.span().to_seconds().get() * PATIENCE.0);
        let reference = device.facts().reference.clone();
        let runnable = prepare(graph, device)?;
        pass(graph, device, &runnable, limit, None)?;
        let modelled = (0..graph.tasks.len()).map(|task| predicted.end[task] - predicted.start[task]).collect();
        Ok(Self { graph, runnable, modelled, limit, reference, runs: Vec::new() })
    }

    /// Runs the step twice: without marks between its operations, and then with, for their times.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let before = sample::time(device, &self.reference)?.seconds;
        let whole = pass(self.graph, device, &self.runnable, self.limit, None)?;
        let mut times = BTreeMap::new();
        pass(self.graph, device, &self.runnable, self.limit, Some(&mut times))?;
        let after = sample::time(device, &self.reference)?.seconds;
        self.runs.push(Run { pass: whole, times, reference: [before, after] });
        Ok(())
    }

    /// Runs so far.
    pub const fn n_runs(&self) -> usize {
        self.runs.len()
    }

    /// Runs beside which the reference kernel took at most a tenth longer than its best time, in seconds.
    pub fn n_steady(&self, best: f64) -> usize {
        self.runs.iter().filter(|run| run.slowdown(best) <= SLOW).count()
    }

    /// Shortest time of the reference kernel, seconds; infinite before the first run.
    pub fn reference_s(&self) -> f64 {
        self.runs.iter().flat_map(|run| run.reference).fold(f64::INFINITY, f64::min)
    }

    /// Lower quartiles over the runs beside which the device was steady, or over those of the lesser half of slowdowns where it never was.
    ///
    /// # Errors
    /// When tasks wait for each other.
    pub fn finish(mut self, machine: &Machine<'_>, best: f64) -> Result<Execution, ExecuteError> {
        let slowdowns: Vec<f64> = self.runs.iter().map(|run| run.slowdown(best)).collect();
        let allowed = SLOW.max(quantile::of(&slowdowns, 0.5));
        self.runs.retain(|run| run.slowdown(best) <= allowed);
        let Self { graph, runnable, runs, .. } = self;
        let passes: Vec<&Pass> = runs.iter().map(|run| &run.pass).collect();
        let spans: Vec<Span> = (0..graph.tasks.len())
            .map(|task| {
                if !runnable[task] {
                    return self.modelled[task];
                }
                let times: Vec<f64> = passes.iter().map(|pass| hw::real(pass.end[task] - pass.start[task])).collect();
                Span::from_ns(hw::whole(quantile::of(&times, UNDISTURBED)))
            })
            .collect();
        let spans = shared(graph, spans);
        let is_live = graph.lanes.len() == 1 && runnable.iter().all(|runs| *runs);
        let mut timeline = finished(graph, play::join(graph, machine, &spans))?;
        if is_live {
            live(&mut timeline, &passes);
        }
        let how = runnable.iter().map(|runs| match (runs, is_live) {
            (false, _) => How::Modelled,
            (true, true) => How::Live,
            (true, false) => How::Joined,
        });
        let unsteady = runs.iter().map(|run| run.slowdown(best)).fold(1.0, f64::max);
        Ok(Execution { how: how.collect(), timeline, parts: parts(&runs), unsteady })
    }
}

/// A finished timeline, or what stood in its way.
fn finished(graph: &TaskGraph, outcome: Outcome) -> Result<Timeline, ExecuteError> {
    match outcome {
        Outcome::Done(timeline) => Ok(timeline),
        Outcome::OutOfMemory { rank, allocation, needed, free, .. } => {
            Err(ExecuteError::OutOfMemory { tensor: allocation, rank: rank.0, needed, free })
        }
        Outcome::Stuck { waiting } => Err(ExecuteError::Stuck(waiting.len().min(graph.tasks.len()))),
    }
}

/// Makes room for everything and looks at results once; which tasks can run here.
fn prepare(graph: &TaskGraph, device: &mut dyn Device) -> Result<Vec<bool>, DeviceError> {
    let mut runs = Vec::with_capacity(graph.ops.len());
    for op in &graph.ops {
        let parts = elementary(op);
        let all = parts.iter().all(|(part, _)| device.runs(part));
        for (part, _) in parts.iter().filter(|_| all) {
            device.reserve(part)?;
        }
        runs.push(all);
    }
    // The largest operation of each kernel stands for all.
    let mut largest: BTreeMap<&'static str, &Op> = BTreeMap::new();
    for (op, _) in graph.ops.iter().zip(&runs).filter(|(_, runs)| **runs).flat_map(|(op, _)| elementary(op)) {
        let known = largest.entry(op.class()).or_insert(op);
        if op.flops() > known.flops() {
            *known = op;
        }
    }
    for op in largest.into_values().filter(|op| !matches!(op, Op::Host { .. })) {
        device.check_finite(op)?;
    }
    Ok(graph.tasks.iter().map(|task| runs[task.op.0 as usize]).collect())
}

/// Times of one run of all lanes, in nanoseconds; each lane's clock begins with its first task.
struct Pass {
    start: Vec<u64>,
    end: Vec<u64>,
}

/// Times of each operation, one per launch.
type Times<'a> = BTreeMap<&'a Op, Vec<f64>>;

/// Lower quartiles over all launches of some runs.
fn parts(runs: &[Run<'_>]) -> Vec<PartTime> {
    let mut all: Times<'_> = BTreeMap::new();
    for (op, times) in runs.iter().flat_map(|run| &run.times) {
        all.entry(op).or_default().extend(times);
    }
    let part = |(op, times): (&Op, Vec<f64>)| {
        let n = (times.len() / runs.len().max(1)) as u64;
        PartTime { op: op.clone(), seconds: quantile::of(&times, UNDISTURBED), n }
    };
    all.into_iter().map(part).collect()
}

/// Runs all lanes once; with `times`, every operation is timed.
fn pass<'a>(
    graph: &'a TaskGraph,
    device: &mut dyn Device,
    runnable: &[bool],
    limit: Duration,
    mut times: Option<&mut Times<'a>>,
) -> Result<Pass, DeviceError> {
    let n = graph.tasks.len();
    let mut pass = Pass { start: vec![0; n], end: vec![0; n] };
    let mut met = vec![false; graph.meetings.len()];
    for lane in (0..).map(LaneId).take(graph.lanes.len()) {
        let mut sent = Sent::default();
        for (id, task) in graph.tasks.iter().enumerate().filter(|(_, task)| task.lane == lane) {
            let first = task.meeting.is_none_or(|meeting| !std::mem::replace(&mut met[meeting.0 as usize], true));
            let task_id = TaskId(u32::try_from(id).expect("graphs have fewer than 2^32 tasks"));
            sent.task(graph, device, task_id, runnable[id] && first, times.is_some())?;
        }
        let marks = device.finish(limit)?;
        let origin = marks.iter().min().copied().unwrap_or(0);
        for (task, start, end) in sent.tasks {
            (pass.start[task], pass.end[task]) = (marks[start] - origin, marks[end] - origin);
        }
        if let Some(times) = &mut times {
            let mark_s = device.mark_s()?;
            for (op, start, end) in sent.parts {
                times.entry(op).or_default().push(sample::between(marks[start], marks[end], mark_s));
            }
        }
    }
    Ok(pass)
}

/// What was sent to the device for a lane: tasks and parts with their marks.
#[derive(Default)]
struct Sent<'a> {
    tasks: Vec<(usize, usize, usize)>,
    parts: Vec<(&'a Op, usize, usize)>,
    ends: BTreeMap<TaskId, crate::device::Mark>,
}

impl<'a> Sent<'a> {
    fn task(
        &mut self,
        graph: &'a TaskGraph,
        device: &mut dyn Device,
        id: TaskId,
        runs: bool,
        detail: bool,
    ) -> Result<(), DeviceError> {
        let task = &graph.tasks[id.0 as usize];
        // Predecessors of other lanes play their part when the lanes are joined.
        for pred in graph.preds(id).iter().filter(|pred| graph.tasks[pred.0 as usize].stream != task.stream) {
            if let Some(mark) = self.ends.get(pred) {
                device.wait(task.stream, *mark)?;
            }
        }
        let start = device.mark(task.stream)?;
        let mut last = start;
        for op in layer_by_layer(&elementary(&graph.ops[task.op.0 as usize])).into_iter().filter(|_| runs) {
            device.launch(op, task.stream)?;
            if detail {
                let next = device.mark(task.stream)?;
                self.parts.push((op, last.0, next.0));
                last = next;
            }
        }
        let end = device.mark(task.stream)?;
        self.ends.insert(id, end);
        self.tasks.push((id.0 as usize, start.0, end.0));
        Ok(())
    }
}

/// Launches of parts that run so many times each: in turn, as layers follow each other, and not each part by itself.
fn layer_by_layer<'a>(parts: &[(&'a Op, u32)]) -> Vec<&'a Op> {
    let n_rounds = u64::from(parts.iter().map(|(_, times)| *times).max().unwrap_or(0));
    // Parts that run less often than the rest are spread evenly.
    let runs = |times: u32, round: u64| (round + 1) * u64::from(times) / n_rounds - round * u64::from(times) / n_rounds;
    (0..n_rounds)
        .flat_map(|round| parts.iter().filter(move |(_, times)| runs(*times, round) > 0))
        .map(|(op, _)| *op)
        .collect()
}

/// Every member of a meeting takes the time of the one that ran it.
fn shared(graph: &TaskGraph, mut spans: Vec<Span>) -> Vec<Span> {
    let mut longest = vec![Span::ZERO; graph.meetings.len()];
    let members = || graph.tasks.iter().enumerate().filter_map(|(id, task)| Some((id, task.meeting?.0 as usize)));
    members().for_each(|(id, meeting)| longest[meeting] = longest[meeting].max(spans[id]));
    members().for_each(|(id, meeting)| spans[id] = longest[meeting]);
    spans
}

/// Starts and ends of the run at the lower quartile of all by length.
fn live(timeline: &mut Timeline, passes: &[&Pass]) {
    let mut order = passes.to_vec();
    order.sort_by_key(|pass| pass.end.iter().max().copied());
    let Some(pass) = order.get(order.len() / 4) else { return };
    timeline.start = pass.start.iter().map(|&ns| Time::from_ns(ns)).collect();
    timeline.end = pass.end.iter().map(|&ns| Time::from_ns(ns)).collect();
}

#[cfg(test)]
mod tests;
