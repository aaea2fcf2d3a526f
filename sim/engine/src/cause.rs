//! Why a step takes longer than its lower bound: the causes, their keys in results and their names for people.

/// Why time is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Waiting for slower ranks.
    Imbalance,
    /// Waiting in a pipeline.
    Bubble,
    /// Communication that nothing hides.
    Communication,
    /// Kernels below their best size, start-ups, host time.
    Kernel,
    /// Forward computed again.
    Recompute,
    /// Padded tokens.
    Padding,
    /// Copies to or from the host that nothing hides.
    Offload,
    /// What computation takes longer on stragglers than on healthy devices.
    Straggler,
    /// Changes from one plan to another.
    Replan,
    /// What is left; nothing, unless a bound were wrong.
    Other,
}

impl Cause {
    /// Every cause in index order.
    pub const ALL: [Self; 10] = [
        Self::Imbalance,
        Self::Bubble,
        Self::Communication,
        Self::Kernel,
        Self::Recompute,
        Self::Padding,
        Self::Offload,
        Self::Straggler,
        Self::Replan,
        Self::Other,
    ];

    /// Key in the metrics.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Imbalance => "lost_imbalance_s",
            Self::Bubble => "lost_bubble_s",
            Self::Communication => "lost_communication_s",
            Self::Kernel => "lost_kernel_s",
            Self::Recompute => "lost_recompute_s",
            Self::Padding => "lost_padding_s",
            Self::Offload => "lost_offload_s",
            Self::Straggler => "lost_straggler_s",
            Self::Replan => "lost_replan_s",
            Self::Other => "lost_other_s",
        }
    }

    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Imbalance => "imbalance between ranks",
            Self::Bubble => "pipeline bubbles",
            Self::Communication => "exposed communication",
            Self::Kernel => "kernels below their best efficiency",
            Self::Recompute => "recompute",
            Self::Padding => "padding",
            Self::Offload => "offload stalls",
            Self::Straggler => "slow devices",
            Self::Replan => "changes of plan",
            Self::Other => "other",
        }
    }
}
