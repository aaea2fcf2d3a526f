//! What came of a choice: its row of a report, and how steps are played and timed.

use std::collections::{BTreeMap, BTreeSet};

use engine::CostModel;
use engine::cost::Source;
use engine::play::{Case, Machine as Play, Outcome, simulate_cases};
use engine::task::{LaneId, Role, Stream, Task, TaskGraph};
use engine::timeline::Timeline;
use engine::verdict::{Ended, Refused};
use hw::Cluster;
use hw::topology::Topology;

use super::Machine;
use crate::proof::Decision;

/// The cost model of a machine, also of one that is only imagined.
pub type Costs<'a> = dyn Fn(&Cluster) -> Box<dyn CostModel> + Sync + 'a;

/// Steps that are played; the second half stands for all later ones.
pub const N_STEPS: usize = 8;
/// Seconds of an hour.
const HOUR_S: f64 = 3600.0;

/// A choice with all that is said of it.
#[derive(Clone, Debug)]
pub struct Judged<P> {
    /// What was decided; `None` where nothing runs.
    pub decision: Option<Decision<P>>,
    /// How it ended.
    pub ended: Ended,
    /// What binds it, or why it does not run.
    pub why: String,
    /// Figures.
    pub metrics: BTreeMap<String, f64>,
    /// Their ends.
    pub interval: BTreeMap<String, [f64; 2]>,
    /// Where costs come from.
    pub source: Source,
    /// Tasks and when they ran.
    pub played: Option<(TaskGraph, Timeline)>,
}

impl<P> Judged<P> {
    /// What does not run.
    pub fn refused(Refused { ended, why }: Refused) -> Self {
        Self {
            decision: None,
            ended,
            why,
            metrics: BTreeMap::new(),
            interval: BTreeMap::new(),
            source: Source::Datasheet,
            played: None,
        }
    }
}

/// Times of steps in a row.
#[derive(Clone, Debug)]
pub struct Times {
    /// To the end of the first half, and of each further step; low, expected, high.
    pub first_s: [f64; 3],
    /// A further step.
    pub further_s: [f64; 3],
    /// Seconds of a further step by cause, on the GPU that trains first.
    pub causes: BTreeMap<&'static str, f64>,
    /// Longest part of a further step, in words.
    pub binding: &'static str,
    /// Tasks and when they ran.
    pub played: (TaskGraph, Timeline),
    /// Weakest source of a cost.
    pub source: Source,
    n_steps: usize,
}

impl Times {
    /// Seconds of so many steps: low, expected, high.
    pub fn epoch_s(&self, n_steps: f64) -> [f64; 3] {
        let half = hw::real(self.n_steps as u64 / 2);
        // A few steps take their part of the first ones.
        let (first, further) = if n_steps < half { (n_steps / half, 0.0) } else { (1.0, n_steps - half) };
        [0, 1, 2].map(|case| self.first_s[case] * first + further * self.further_s[case])
    }
}

/// Plays steps of a graph; tasks carry the step's number as micro-batch.
///
/// # Panics
/// When the engine finds tasks that wait for each other, which would be a fault of the lowering.
pub fn play(mut graph: TaskGraph, machine: &Machine, cost: &dyn CostModel, n_steps: usize) -> Times {
    let topology = Topology::of(&machine.cluster);
    // Lanes of GPUs come first; workers of the host stand beside them and are none of the stragglers.
    for lane in graph.lanes.iter_mut().take(machine.cluster.n_gpus() as usize) {
        lane.rate = machine.stragglers.of(lane.rank);
    }
    // Memory is counted before steps are made.
    let play = Play { cost, topology: &topology, memory_bytes: u64::MAX, case: Case::Expected, speed_changes: &[] };
    let mut timelines = Vec::with_capacity(3);
    for outcome in simulate_cases(&graph, &play, &[Case::Low, Case::Expected, Case::High]) {
        match outcome {
            Outcome::Done(timeline) => timelines.push(timeline),
            other => panic!("steps of a graph end: {other:?}"),
        }
    }
    let ends: Vec<[f64; 2]> = timelines.iter().map(|timeline| ends(&graph, timeline, n_steps)).collect();
    let half = hw::real((n_steps - n_steps / 2) as u64);
    let timeline = timelines.swap_remove(1);
    let (causes, binding) = causes(&graph, &timeline, n_steps);
    let source = graph.ops.iter().map(|op| cost.estimate(op).source).max().unwrap_or(Source::Datasheet);
    Times {
        first_s: [0, 1, 2].map(|case| ends[case][0]),
        further_s: [0, 1, 2].map(|case| (ends[case][1] - ends[case][0]) / half),
        causes,
        binding,
        played: (graph, timeline),
        source,
        n_steps,
    }
}

/// When the first half of the steps and all of them have ended, seconds.
fn ends(graph: &TaskGraph, timeline: &Timeline, n_steps: usize) -> [f64; 2] {
    let mut found = [0.0_f64; 2];
    for (task, end) in graph.tasks.iter().zip(&timeline.end) {
        let end = (*end - hw::Time::ZERO).to_seconds().get();
        found[1] = found[1].max(end);
        if (task.micro_batch as usize) < n_steps / 2 {
            found[0] = found[0].max(end);
        }
    }
    found
}

/// Seconds of a step by cause on the lane that trains first, with a mean share of those that sample for it; and which is busiest.
fn causes(graph: &TaskGraph, timeline: &Timeline, n_steps: usize) -> (BTreeMap<&'static str, f64>, &'static str) {
    let trains = graph.tasks.iter().find(|task| task.role == Role::Forward).map(|task| task.lane);
    let samples = |task: &&Task| task.role == Role::Sampling && task.stream == Stream::Compute;
    let samplers: BTreeSet<LaneId> = graph.tasks.iter().filter(samples).map(|task| task.lane).collect();
    let (mut by_cause, mut by_stream) = (BTreeMap::new(), BTreeMap::new());
    let n_later = hw::real((n_steps - n_steps / 2) as u64);
    for (at, task) in graph.tasks.iter().enumerate() {
        let n_lanes = if samples(&task) { hw::real(samplers.len() as u64) } else { 1.0 };
        if (Some(task.lane) != trains && !samples(&task)) || (task.micro_batch as usize) < n_steps / 2 {
            continue;
        }
        let seconds = (timeline.end[at] - timeline.start[at]).to_seconds().get() / n_later / n_lanes;
        *by_cause.entry(cause(task.role)).or_insert(0.0) += seconds;
        *by_stream.entry(limit(task.stream, task.role)).or_insert(0.0) += seconds;
    }
    let mut longest = ("nothing", 0.0);
    for (name, seconds) in by_stream {
        if seconds > longest.1 {
            longest = (name, seconds);
        }
    }
    (by_cause, longest.0)
}

/// Key of a cause in the metrics.
const fn cause(role: Role) -> &'static str {
    match role {
        Role::Sampling => "sampling",
        Role::Gather => "gather",
        Role::GradientSync => "reduction",
        _ => "training",
    }
}

/// What a busy stream means.
const fn limit(stream: Stream, role: Role) -> &'static str {
    match (stream, role) {
        (Stream::Compute, Role::Sampling) => "sampling and extraction",
        (Stream::Compute, _) => "training on the GPU",
        (Stream::HostToDevice, _) => "reads over PCIe",
        _ => "NVLink and reductions",
    }
}

/// An amount of memory, for people.
pub(super) fn size(bytes: f64) -> String {
    if bytes < hw::GIB { format!("{:.1} MiB", bytes / hw::GIB * 1024.0) } else { format!("{:.1} GiB", bytes / hw::GIB) }
}

/// Figures by their keys.
pub(super) fn keyed(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

/// Adds seconds of an epoch by cause, and dollars where there is a price.
pub(super) fn add_times(
    found: &mut BTreeMap<String, f64>,
    times: &Times,
    n_steps: f64,
    machine: &Machine,
    epoch_s: f64,
) {
    for (cause, seconds) in &times.causes {
        found.insert(format!("{cause}_per_epoch_s"), seconds * n_steps);
    }
    if let Some(usd) = usd(machine, epoch_s) {
        found.insert("cost_usd_per_epoch".to_owned(), usd);
    }
}

/// Dollars of a time on all GPUs; `None` without a price.
fn usd(machine: &Machine, seconds: f64) -> Option<f64> {
    Some(machine.usd_per_gpu_hour? * f64::from(machine.cluster.n_gpus()) * seconds / HOUR_S)
}
