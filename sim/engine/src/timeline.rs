//! When every task ran, from the engine or from hardware alike, with memory marks.
//!
//! Units: nanoseconds since the step's start, bytes. Task ids are those of the graph, so two timelines of one graph
//! are compared without matching.

use hw::{Span, Time};
use serde::{Deserialize, Serialize};

/// Schema of `timeline.json`.
pub const SCHEMA: &str = "skrull-sim/timeline/1";

/// Memory of a rank after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMark {
    /// When.
    pub at: Time,
    /// Bytes in use from then on.
    pub bytes: u64,
}

/// A played task graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// `SCHEMA`.
    pub schema: String,
    /// Start of each task.
    pub start: Vec<Time>,
    /// End of each task.
    pub end: Vec<Time>,
    /// Memory of each rank over time.
    pub memory: Vec<Vec<MemoryMark>>,
}

impl Timeline {
    /// From the start of the step to the end of its last task.
    pub fn span(&self) -> Span {
        self.end.iter().max().map_or(Span::ZERO, |&end| end - Time::ZERO)
    }

    /// Highest memory of a rank.
    pub fn peak_memory_bytes(&self, rank_index: usize) -> u64 {
        self.memory[rank_index].iter().map(|mark| mark.bytes).max().unwrap_or(0)
    }
}
