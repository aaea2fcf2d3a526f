//! Plays a schedule and says where an iteration's time goes.

use hw::topology::Topology;
use hw::{Bytes, Time};

use super::Work;
use super::lower::{Extent, lower};
use super::schedule::Schedule;
use crate::metrics;
use crate::metrics::unexplained::{HOST, Kernels, Parts};
use engine::CostModel;
use engine::play::{Case, Machine, Outcome, simulate_cases};
use engine::task::{Role, TaskGraph};
use engine::timeline::Timeline;
use engine::verdict::Refused;

/// A played iteration.
#[derive(Debug)]
pub struct Played {
    /// Its tasks and when they ran.
    pub step: metrics::Played,
    /// Seconds, as expected.
    pub iteration_s: f64,
    /// Seconds that it may take, as costs leave open.
    pub interval_s: [f64; 2],
    /// What the iteration would take without messages, gradients and optimizer.
    pub computation_s: f64,
    /// What messages between pieces add.
    pub messages_s: f64,
    /// What gradients and optimizer add.
    pub sync_s: f64,
    /// Mean part of the iteration that a device computes forward or backward.
    pub busy_ratio: f64,
    /// Bytes that travel between pieces, both ways.
    pub message_bytes: u64,
    /// Most memory of a device.
    pub peak_memory: Bytes,
    /// Least memory peak of a device.
    pub least_memory: Bytes,
}

/// Tasks of so much of an iteration, and when they ran in each case.
fn timelines(
    work: &Work,
    schedule: &Schedule,
    cost: &dyn CostModel,
    (extent, cases): (Extent, &[Case]),
) -> Result<(TaskGraph, Vec<Timeline>), Refused> {
    let (topology, memory_bytes) = (Topology::of(&work.training.cluster), work.training.room().0);
    let machine = Machine { cost, topology: &topology, memory_bytes, case: Case::Expected, speed_changes: &[] };
    let graph = lower(work, schedule, extent);
    let played = simulate_cases(&graph, &machine, cases).into_iter();
    let timelines = played.map(|outcome| finished(work, outcome)).collect::<Result<_, _>>()?;
    Ok((graph, timelines))
}

/// Seconds of an iteration as expected, for who compares many schedules.
///
/// # Errors
/// A sentence when a device runs out of memory.
pub fn iteration_s(work: &Work, schedule: &Schedule, cost: &dyn CostModel) -> Result<f64, Refused> {
    let (_, played) = timelines(work, schedule, cost, (Extent::Iteration, &[Case::Expected]))?;
    Ok(played[0].span().to_seconds().get())
}

/// Plays an iteration.
///
/// # Errors
/// A sentence when a device runs out of memory.
pub fn play(work: &Work, schedule: &Schedule, cost: &dyn CostModel) -> Result<Played, Refused> {
    let at = |extent, cases: &[Case]| timelines(work, schedule, cost, (extent, cases));
    let seconds = |timeline: &Timeline| timeline.span().to_seconds().get();
    let (graph, mut timelines) = at(Extent::Iteration, &[Case::Expected, Case::Low, Case::High])?;
    let iteration_s = seconds(&timelines[0]);
    let with_messages_s = seconds(&at(Extent::Messages, &[Case::Expected])?.1[0]);
    let computation_s = seconds(&at(Extent::Computation, &[Case::Expected])?.1[0]);
    let peaks: Vec<Bytes> = (0..graph.lanes.len()).map(|lane| Bytes(timelines[0].peak_memory_bytes(lane))).collect();
    let ends = [seconds(&timelines[1]), iteration_s, seconds(&timelines[2])];
    let busy_ratio = busy_s(&graph, &timelines[0]) / (iteration_s * f64::from(work.n_devices()));
    let step = metrics::Played { graph, timeline: timelines.swap_remove(0) };
    let interval_s = Parts::of(std::slice::from_ref(&step), cost).interval(ends, Kernels::OfOtherAge, HOST);
    Ok(Played {
        iteration_s,
        interval_s,
        computation_s,
        messages_s: with_messages_s - computation_s,
        sync_s: iteration_s - with_messages_s,
        busy_ratio,
        message_bytes: message_bytes(&step.graph),
        peak_memory: peaks.iter().max().copied().unwrap_or_default(),
        least_memory: peaks.iter().min().copied().unwrap_or_default(),
        step,
    })
}

fn finished(work: &Work, outcome: Outcome) -> Result<Timeline, Refused> {
    let gib = |bytes: u64| hw::real(bytes) / hw::GIB;
    match outcome {
        Outcome::Done(timeline) => Ok(timeline),
        Outcome::OutOfMemory { rank, at, allocation, needed, free, .. } => Err(Refused::out_of_memory(format!(
            "device {} has no room for {allocation} {:.1} ms into the iteration: {:.2} GiB are needed and {:.2} of {:.2} GiB are free",
            rank.0,
            (at - Time::ZERO).to_seconds().get() * 1e3,
            gib(needed),
            gib(free),
            gib(work.training.room().0)
        ))),
        Outcome::Stuck { waiting } => {
            Err(Refused::out_of_memory(format!("{} streams wait for each other", waiting.len())))
        }
    }
}

/// Device seconds of forward and backward.
fn busy_s(graph: &TaskGraph, timeline: &Timeline) -> f64 {
    let passes = graph.tasks.iter().zip(timeline.start.iter().zip(&timeline.end));
    let passes = passes.filter(|(task, _)| matches!(task.role, Role::Forward | Role::Backward));
    passes.map(|(_, (&start, &end))| (end - start).to_seconds().get()).sum()
}

fn message_bytes(graph: &TaskGraph) -> u64 {
    let messages = graph.tasks.iter().filter(|task| task.role == Role::StageExchange);
    let bytes = messages.map(|task| match &graph.ops[task.op.0 as usize] {
        engine::task::Op::Collective { bytes, .. } => *bytes,
        _ => 0,
    });
    bytes.sum()
}
