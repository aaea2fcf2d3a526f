//! Which kernel adds up what a tensor group computed, in a serving engine's captured iterations.

use super::names;

/// Kernel of an all-reduce inside a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReduceKernel {
    /// The engine's own, as its newest tables have it.
    #[default]
    Own,
    /// The one that the engine had before.
    Earlier,
    /// One that computes the norm behind it as well.
    Fused,
}

impl ReduceKernel {
    /// Name of its curve in profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => names::CUSTOM_ALL_REDUCE,
            Self::Earlier => names::EARLIER_ALL_REDUCE,
            Self::Fused => names::FUSED_ALL_REDUCE,
        }
    }
}
