//! Degrees of parallelism and how model states are sharded.
//!
//! Invariant: `dp × cp × tp × pp` equals the ranks in use, checked by `Layout::new`. Rank order is
//! tensor fastest, then context, then data, then pipeline: a context group is consecutive and stays inside a
//! node when it fits. Tensor and pipeline degrees above 1 are not lowered yet and the scenario reader says so.

use hw::Rank;
use serde::{Deserialize, Serialize};

/// ZeRO stage: which model states are sharded over the data-parallel group (which includes context ranks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Zero {
    /// Nothing is sharded.
    Off,
    /// Optimizer states.
    OptimizerStates,
    /// Optimizer states and gradients.
    Gradients,
    /// Optimizer states, gradients and parameters.
    Parameters,
}

/// How ranks of a context-parallel group exchange keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextExchange {
    /// Key and value blocks travel around a ring, one step ahead of the attention that needs them.
    Ring,
    /// Heads are exchanged for tokens by all-to-all before and after attention (Ulysses).
    Ulysses,
    /// Keys and values of sharded sequences are all-gathered before attention (Skrull, Llama 3).
    Gather,
}

/// Parallel degrees of a training job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Data-parallel degree.
    pub dp: u32,
    /// Context-parallel degree.
    pub cp: u32,
    /// Tensor-parallel degree.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Sharding of model states.
    pub zero: Zero,
    /// Exchange inside a context group.
    pub exchange: ContextExchange,
}

impl Layout {
    /// Ranks that the layout uses.
    #[must_use]
    pub const fn n_ranks(&self) -> u32 {
        self.dp * self.cp * self.tp * self.pp
    }

    /// Rank of context position `cp_index` in data-parallel group `dp_index` (tensor and pipeline position 0).
    #[must_use]
    pub const fn rank(&self, dp_index: u32, cp_index: u32) -> Rank {
        Rank(self.tp * (cp_index + self.cp * dp_index))
    }
}
