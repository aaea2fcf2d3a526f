//! Which kernels add up what a tensor group computed, inside a node and in captured iterations.
//!
//! `SGLang` has two kernels of its own, one after the other, and takes `FlashInfer`'s where that may compute the norm behind it. Source: sgl-project/sglang
//! v0.5.6 to v0.5.10, python/sglang/srt/server_args.py (`enable_flashinfer_allreduce_fusion`, by architecture), layers/communicator.py and
//! layers/layernorm.py; distributed/device_communicators/custom_all_reduce.py (`SGLANG_USE_JIT_ALL_REDUCE`).

use engine::Model;
use engine::cost::reduce::ReduceKernel;
use hw::Gpu;

use crate::step_cost::fusion::Fusion;

/// Whether somebody asks for norms inside of all-reduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// Nobody does: the engine's version decides.
    #[default]
    Auto,
    /// `--enable-flashinfer-allreduce-fusion`.
    Fused,
    /// `--enforce-disable-flashinfer-allreduce-fusion`.
    Separate,
}

impl Asked {
    /// Words of a scenario.
    pub const WORDS: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("fused", Self::Fused), ("separate", Self::Separate)];
}

/// Which kernels add up what a tensor group computed, inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduces {
    /// The engine's own, as its newest tables have it.
    Own,
    /// The one that the engine had before. `FlashInfer`'s, which computes the norm behind it, where an option asks for it, and by itself with DeepSeek-V3,
    /// Kimi-K2.5 and gpt-oss on Blackwell.
    Few,
    /// The same by itself on Hopper too and with all models that have experts, but for those with an index, whose architecture is not in the
    /// engine's list. Not with gated delta nets, whose norms it cannot compute.
    Experts,
    /// The same with gated delta nets too.
    AllExperts,
}

impl Reduces {
    /// Kernel for a model, with so many ranks of data-parallel attention.
    pub fn kernel(self, model: &Model, gpu: &Gpu, ranks: u32, asked: Asked) -> ReduceKernel {
        let is_listed = model.experts.is_some() && model.index.is_none();
        let is_first = model.latent.is_some() || model.experts.is_some_and(|experts| experts.biased);
        let by_itself = match self {
            Self::Own => return ReduceKernel::Own,
            Self::Few => is_listed && is_first && gpu.peak_fp4.is_some(),
            Self::Experts | Self::AllExperts => is_listed,
        };
        let fuses = match asked {
            Asked::Auto => by_itself,
            Asked::Fused => true,
            Asked::Separate => false,
        };
        let computes_norms = self != Self::Experts || model.linear.is_none();
        let has_kernel = ranks == 1 && gpu.peak_fp8.is_some() && gpu.peer_access;
        if fuses && computes_norms && has_kernel { ReduceKernel::Fused } else { ReduceKernel::Earlier }
    }
}

/// What an engine computes in one kernel, where its all-reduces may compute the norms behind them.
pub const fn fusion(all_reduce: ReduceKernel, of_engine: Fusion) -> Fusion {
    match all_reduce {
        ReduceKernel::Fused => Fusion::Exchanges,
        ReduceKernel::Own | ReduceKernel::Earlier => of_engine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine_preset::{Version, named};

    fn kernel(version: &str, name: &str, card: &str, (ranks, asked): (u32, Asked)) -> ReduceKernel {
        let model = engine::model::embedded(name).expect("embedded");
        let gpu = hw::catalog::gpu(card).expect("listed");
        named("sglang", Version::parse(version)).expect("listed").reduces.kernel(&model, &gpu, ranks, asked)
    }

    #[test]
    fn sglang_fuses_norms_into_all_reduces_as_its_versions_list_models() {
        let by_itself = (1, Asked::Auto);
        for (version, name, card, fuses) in [
            ("0.5.6", "deepseek-v3", "b200", true),
            ("0.5.6", "deepseek-v3", "h200-sxm", false),
            ("0.5.6", "qwen3-235b-a22b", "h200-sxm", false),
            ("0.5.9", "deepseek-v3", "h200-sxm", true),
            ("0.5.9", "qwen3-235b-a22b", "h200-sxm", true),
            ("0.5.9", "qwen3.5-397b-a17b", "b200", false),
            ("0.5.10", "qwen3.5-397b-a17b", "b200", true),
            ("0.5.10", "glm-5", "b200", false),
            ("0.5.10", "llama-3-8b", "h200-sxm", false),
            ("0.5.10", "deepseek-v3", "a100-sxm-80g", false),
        ] {
            let wanted = if fuses { ReduceKernel::Fused } else { ReduceKernel::Earlier };
            assert_eq!(kernel(version, name, card, by_itself), wanted, "{version} {name} {card}");
        }
    }

    #[test]
    fn an_option_asks_for_it_where_layers_and_ranks_can() {
        assert_eq!(kernel("0.5.9", "glm-5", "b200", (1, Asked::Fused)), ReduceKernel::Fused);
        assert_eq!(kernel("0.5.9", "qwen3.5-397b-a17b", "b200", (1, Asked::Fused)), ReduceKernel::Earlier);
        assert_eq!(kernel("0.5.9", "deepseek-v3", "b200", (4, Asked::Fused)), ReduceKernel::Earlier);
        assert_eq!(kernel("0.5.10", "deepseek-v3", "b200", (1, Asked::Separate)), ReduceKernel::Earlier);
        let own = named("vllm", Version::NEWEST).expect("listed").reduces;
        let (model, gpu) = (engine::model::embedded("deepseek-v3"), hw::catalog::gpu("b200"));
        assert_eq!(own.kernel(&model.expect("embedded"), &gpu.expect("listed"), 1, Asked::Fused), ReduceKernel::Own);
    }

    #[test]
    fn a_fused_all_reduce_leaves_no_norm_to_launch() {
        assert_eq!(fusion(ReduceKernel::Fused, Fusion::Norms), Fusion::Exchanges);
        assert_eq!(fusion(ReduceKernel::Earlier, Fusion::Norms), Fusion::Norms);
        assert_eq!(fusion(ReduceKernel::Own, Fusion::Exchanges), Fusion::Exchanges);
    }
}
