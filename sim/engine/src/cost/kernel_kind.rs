//! Kinds of kernels that a profiler tells apart by their names, and that a recorded step says a factor of.

use serde::{Deserialize, Serialize};

use crate::task::{Collective, CopyKind, Op, Pass};

/// A kind of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelKind {
    /// Matrix products, grouped ones among them.
    Product,
    /// Attention forward.
    AttentionForward,
    /// Attention backward.
    AttentionBackward,
    /// Kernels that memory bounds, copies inside of the device among them.
    Memory,
    /// Rows of a table.
    Embedding,
    /// All-reduce.
    AllReduce,
    /// All-gather.
    AllGather,
    /// Reduce-scatter.
    ReduceScatter,
    /// All-to-all.
    AllToAll,
    /// Messages between two ranks.
    Message,
}

impl KernelKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Product,
        Self::AttentionForward,
        Self::AttentionBackward,
        Self::Memory,
        Self::Embedding,
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Message,
    ];

    /// The kind of an elementary operation; `None` for the host and for copies from and to it.
    #[must_use]
    pub const fn of(op: &Op) -> Option<Self> {
        Some(match op {
            Op::Gemm { .. } | Op::GroupedGemm { .. } => Self::Product,
            Op::Attention { pass: Pass::Forward, .. } => Self::AttentionForward,
            Op::Attention { pass: Pass::Backward, .. } => Self::AttentionBackward,
            Op::Elementwise { .. } | Op::Copy { kind: CopyKind::DeviceToDevice, .. } => Self::Memory,
            Op::Embedding { .. } => Self::Embedding,
            Op::Collective { kind, .. } => match kind {
                Collective::AllReduce => Self::AllReduce,
                Collective::AllGather => Self::AllGather,
                Collective::ReduceScatter => Self::ReduceScatter,
                Collective::AllToAll => Self::AllToAll,
                Collective::RingShift | Collective::SendRecv => Self::Message,
            },
            _ => return None,
        })
    }

    /// Whether ranks exchange something, so that a recorded kernel may wait for another rank.
    #[must_use]
    pub const fn is_exchange(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Message)
    }
}
