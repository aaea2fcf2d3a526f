//! Micro-batches that go through the stages of a pipeline one behind the other.
//!
//! Stages are a flow shop: a batch waits before each stage for the batch ahead, and none overtakes another. Where stages are alike, the last of
//! some batches has left after the times of all of them on one stage, and the longest time that one of them takes on all other stages: a
//! critical path changes stages only within the longest batch. Where stages differ that is never too short. Units: ticks.

use hw::Tick;

/// How long a micro-batch takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transit {
    /// Ticks on the slowest stage.
    pub pace: Tick,
    /// Ticks on all other stages, and on the way from one to the next.
    pub fill: Tick,
}

impl Transit {
    /// Ticks until it may start again, where so many like it are in flight: it is through all stages, and the slowest has taken the others.
    pub(super) fn turn(self, in_flight: u32) -> Tick {
        (self.pace + self.fill).max(self.pace * u64::from(in_flight))
    }

    /// Batches one behind the other as if they were one.
    pub fn and(self, next: Self) -> Self {
        Self { pace: self.pace + next.pace, fill: self.fill.max(next.fill) }
    }
}
