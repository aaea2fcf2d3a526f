//! Plays a task graph on a machine: the simulator's interpreter of the waist.
//!
//! Integer nanoseconds; equal times in insertion order; events of one instant are handled as a batch before link shares are
//! computed again. Compute runs at its device's speed over time. A collective or host copy is a flow: alone it takes exactly
//! its estimate; flows that share links share them max-min fairly, where a link carries at least what its fastest flow alone
//! would put on it, so an estimate that beats the datasheet is never slowed by itself. Ends are rounded up to the next
//! nanosecond. Memory effects apply at task starts and ends; the first allocation that does not fit ends the run.

pub mod memory;

mod flow;
mod run;

use hw::topology::Topology;
use hw::{Rank, Seconds, Span, Time};

use crate::cost::{CostModel, Estimate};
use crate::task::{TaskGraph, TaskId};
use crate::timeline::Timeline;

/// Which end of the cost interval to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Every estimate at its low end.
    Low,
    /// Every estimate as expected.
    Expected,
    /// Every estimate at its high end.
    High,
}

impl Case {
    /// This end of an estimate.
    pub const fn of(self, estimate: &Estimate) -> Seconds {
        match self {
            Self::Low => estimate.low,
            Self::Expected => estimate.time,
            Self::High => estimate.high,
        }
    }
}

/// From `at` on, compute on `rank` runs at `speed` (1 is nominal, 0.5 takes twice as long).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedChange {
    /// Device.
    pub rank: Rank,
    /// When.
    pub at: Time,
    /// Positive factor.
    pub speed: f64,
}

/// What a graph is played on.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Cost of operations.
    pub cost: &'a dyn CostModel,
    /// Links.
    pub topology: &'a Topology,
    /// Memory of each device that a job may use.
    pub memory_bytes: u64,
    /// End of the interval.
    pub case: Case,
    /// Speed changes in time order.
    pub speed_changes: &'a [SpeedChange],
}

/// How a simulation ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Every task ran.
    Done(Timeline),
    /// An allocation did not fit.
    OutOfMemory {
        /// Device.
        rank: Rank,
        /// When.
        at: Time,
        /// Label of the allocation.
        allocation: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Task.
        task: TaskId,
    },
    /// Tasks that wait for each other.
    Stuck {
        /// Heads of the streams that never started.
        waiting: Vec<TaskId>,
    },
}

/// Plays `graph`; same graph and machine, same bytes.
pub fn simulate(graph: &TaskGraph, machine: &Machine<'_>) -> Outcome {
    let estimates = estimates(graph, machine.cost);
    run::play(graph, machine, &estimates)
}

/// Plays `graph` at several ends of the interval; operations are estimated once.
pub fn simulate_cases(graph: &TaskGraph, machine: &Machine<'_>, cases: &[Case]) -> Vec<Outcome> {
    let estimates = estimates(graph, machine.cost);
    cases.iter().map(|&case| run::play(graph, &Machine { case, ..*machine }, &estimates)).collect()
}

/// Plays `graph` with a time for every task, as a device measured them one by one: what each lane did meets what the others
/// did through the graph's dependencies. A meeting takes the time of its last member to arrive. Costs, links and speed
/// changes of the machine play no part.
pub fn join(graph: &TaskGraph, machine: &Machine<'_>, measured: &[Span]) -> Outcome {
    run::play_measured(graph, &Machine { speed_changes: &[], ..*machine }, measured)
}

fn estimates(graph: &TaskGraph, cost: &dyn CostModel) -> Vec<Estimate> {
    graph.ops.iter().map(|op| cost.estimate(op)).collect()
}

#[cfg(test)]
mod tests;
