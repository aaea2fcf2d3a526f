//! Kinds of kernels that a profiler tells apart by their names, and that a recorded step says a factor of.

use serde::{Deserialize, Serialize};

use crate::task::{Collective, CopyKind, Op, Pass};

hw::words! {
    /// A kind of kernels.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum KernelKind: word {
        /// Matrix products, grouped ones among them.
        Product = "product",
        /// Attention forward.
        AttentionForward = "attention-forward",
        /// Attention backward.
        AttentionBackward = "attention-backward",
        /// Kernels that memory bounds, copies inside of the device among them.
        Memory = "memory",
        /// Rows of a table.
        Embedding = "embedding",
        /// All-reduce.
        AllReduce = "all-reduce",
        /// All-gather.
        AllGather = "all-gather",
        /// Reduce-scatter.
        ReduceScatter = "reduce-scatter",
        /// All-to-all.
        AllToAll = "all-to-all",
        /// Messages between two ranks.
        Message = "message",
    }
}

impl KernelKind {
    /// The kind of an elementary operation; `None` for the host and for copies from and to it.
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
    pub const fn is_exchange(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::AllToAll | Self::Message)
    }
}
