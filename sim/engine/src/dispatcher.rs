//! How tokens travel to experts on other GPUs.

use hw::Capability;

hw::words! {
    /// What sends tokens to experts (`--moe-token-dispatcher-type`, `--moe-flex-dispatcher-backend`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Dispatcher: word {
        /// NCCL: every copy of a token.
        #[default]
        AllToAll = "alltoall",
        /// DeepEP: a token goes to a node once, and is copied there by a kernel of the pass.
        DeepEp = "deepep",
        /// HybridEP: the same, and what sends tokens also puts their copies into the order of experts (`_HybridEPManager.dispatch`, `dispatch_with_permute`).
        HybridEp = "hybridep",
    }
}

hw::words! {
    /// Which kernels of DeepEP an engine of serving calls between nodes (SGLang `--deepep-mode`; vLLM `--all2all-backend`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DeepEpMode: word {
        /// Those for latency where a rank has as few tokens as their buffers take, else those for throughput.
        Auto = "deepep",
        /// Those for throughput: a token goes to a node once.
        Normal = "deepep-normal",
        /// Those for latency: every copy is a message of its own.
        LowLatency = "deepep-low-latency",
    }
}

/// Tokens of a rank that the kernels for latency take at once (SGLang, `SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK`).
const LATENCY_TOKENS: u64 = 128;

impl DeepEpMode {
    /// Whether so many tokens of a rank go by the kernels for latency.
    pub const fn is_low_latency(self, tokens: u64) -> bool {
        match self {
            Self::Auto => tokens <= LATENCY_TOKENS,
            Self::Normal => false,
            Self::LowLatency => true,
        }
    }
}

/// Multiprocessors that DeepEP takes (`moe_deepep_num_sms`), and HybridEP in Megatron Bridge's recipes (`moe_hybridep_num_sms`, `scripts/performance/utils/overrides.py`
/// at v0.3.1).
const DEEP_EP: f64 = 20.0;
const HYBRID_EP: f64 = 32.0;

impl Dispatcher {
    /// What stands behind Megatron-Core's `flex` where no backend is named: recipes run HybridEP on Blackwell and DeepEP elsewhere.
    pub const fn flex(card: Capability) -> Self {
        match card {
            Capability::Ten => Self::HybridEp,
            Capability::Nine | Capability::Other => Self::DeepEp,
        }
    }

    /// Whether a token goes to a node once, however many of its experts are there.
    pub const fn is_once_per_node(self) -> bool {
        !matches!(self, Self::AllToAll)
    }

    /// Share of a card's multiprocessors that send tokens. Other kernels lose them for as long as tokens travel. What NCCL's all-to-all takes no source says, and
    /// nothing is taken.
    pub fn sending_share(self, card: Capability) -> f64 {
        let sending = match self {
            Self::AllToAll => 0.0,
            Self::DeepEp => DEEP_EP,
            Self::HybridEp => HYBRID_EP,
        };
        sending / f64::from(multiprocessors(card))
    }
}

/// Multiprocessors of the usual card of a capability.
fn multiprocessors(card: Capability) -> u32 {
    let usual = match card {
        Capability::Nine => "h100-sxm",
        Capability::Ten => "b200",
        Capability::Other => "a100-sxm-80g",
    };
    hw::catalog::multiprocessors(usual).expect("the catalogue has it, which a test holds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sends_takes_its_multiprocessors() {
        let share = |sends: Dispatcher, card| sends.sending_share(card);
        assert_eq!(share(Dispatcher::DeepEp, Capability::Nine), 20.0 / 132.0);
        assert_eq!(share(Dispatcher::HybridEp, Capability::Ten), 32.0 / 148.0);
        assert_eq!(share(Dispatcher::DeepEp, Capability::Ten), 20.0 / 148.0);
        assert_eq!(share(Dispatcher::AllToAll, Capability::Ten), 0.0);
        let once = Dispatcher::ALL.iter().filter(|sends| sends.is_once_per_node()).count();
        assert_eq!(once, 2);
    }
}
