//! What a framework does where a scenario does not say it.
//!
//! Source: NVIDIA/Megatron-LM `megatron/training/arguments.py`: `--bf16` accumulates and reduces gradients in 32 bits unless `--grad-reduce-in-bf16` is given, nothing is
//! computed again without `--recompute-granularity`, `--cp-comm-type` is `p2p`, and the distributed optimizer cuts states and leaves gradients whole.

use engine::recompute::Recompute;
use hw::Dtype;
use input::reader::Reader;
use train::layout::ContextExchange;

/// The framework of Megatron-LM, as `training.framework` names it.
pub const MEGATRON_CORE: &str = "megatron-core";

/// Words of `[training]` and `[parallel]` that a scenario leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usual {
    /// Those of papers, and of PyTorch.
    Papers,
    /// Those of Megatron-LM.
    Megatron,
}

impl Usual {
    /// Those of the framework that a scenario names.
    pub fn of(reader: &Reader<'_>) -> Self {
        Self::or(reader, Self::Papers)
    }

    /// The same where a scenario that names none has these.
    pub fn or(reader: &Reader<'_>, unnamed: Self) -> Self {
        match reader.peek_in("training", "framework") {
            Some((word, _)) if word.trim_matches('"') == MEGATRON_CORE => Self::Megatron,
            Some(_) => Self::Papers,
            None => unnamed,
        }
    }

    /// Format in which gradients are kept and reduced.
    pub fn gradient_dtype(self, dtype: Dtype) -> Dtype {
        if self == Self::Megatron && dtype == Dtype::Bf16 { Dtype::Fp32 } else { Dtype::Bf16 }
    }

    /// What backward computes again.
    pub const fn recompute(self) -> Recompute {
        match self {
            Self::Papers => Recompute::Selective,
            Self::Megatron => Recompute::Off,
        }
    }

    /// Exchange inside a context group.
    pub const fn exchange(self) -> ContextExchange {
        match self {
            Self::Papers => ContextExchange::Gather,
            Self::Megatron => ContextExchange::Ring,
        }
    }

    /// Stage of ZeRO. Gradients that are cut would be reduced for every micro-batch of a pipeline.
    pub const fn zero(self, pp: u64) -> usize {
        match self {
            Self::Papers if pp == 1 => 2,
            Self::Papers | Self::Megatron => 1,
        }
    }
}
