//! Which kernels add up what a tensor group computed, inside a node and in captured iterations.
//!
//! `SGLang` has two kernels of its own, one after the other, and takes `FlashInfer`'s where that may compute the norm behind it. Source: sgl-project/sglang
//! v0.5.6 to v0.5.10, python/sglang/srt/server_args.py (`enable_flashinfer_allreduce_fusion`, by architecture), layers/communicator.py and
//! layers/layernorm.py; distributed/device_communicators/custom_all_reduce.py (`SGLANG_USE_JIT_ALL_REDUCE`).
//!
//! vLLM takes it with dense models where an option asks for it (`fuse_allreduce_rms`, before `enable_fi_allreduce_fusion`), and by itself from 0.17 on. Behind experts it
//! has no norm to compute (#34109). Source: vllm-project/vllm #34299, docs/design/fusions.md of v0.18; B300 has no sizes for it before v0.19 (#37755, #37756).

use engine::Model;
use engine::cost::reduce::ReduceKernel;
use engine::model::QueryKeyNorm;
use hw::{Capability, Gpu, Maker};

use crate::step_cost::fusion::Fusion;

hw::words! {
    /// Whether somebody asks for norms inside of all-reduces.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Asked: word {
        /// Nobody does: the engine's version decides.
        #[default]
        Auto = "auto",
        /// `--enable-flashinfer-allreduce-fusion` of `SGLang`, `fuse_allreduce_rms` of vLLM.
        Fused = "fused",
        /// `--enforce-disable-flashinfer-allreduce-fusion`, or that option switched off.
        Separate = "separate",
    }
}

/// Which kernels add up what a tensor group computed, inside a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduces {
    /// The engine's own, as its newest tables have it.
    Own,
    /// The same, but `FlashInfer`'s with dense models where an option asks for it. Not with gated delta nets, whose norms it cannot compute.
    OnRequest,
    /// `FlashInfer`'s with these by itself on Hopper and Blackwell, but for B300 and GB300.
    FirstOfBlackwell,
    /// The same on these as well.
    Dense,
    /// The one that the engine had before. `FlashInfer`'s, which computes the norm behind it, where an option asks for it, and by itself with DeepSeek-V3,
    /// Kimi-K2.5 and gpt-oss on Blackwell.
    Few,
    /// The same by itself on Hopper too and with all models that have experts, but for those whose architecture is not in the engine's list. Not with gated
    /// delta nets, whose norms it cannot compute.
    Experts,
    /// The same with gated delta nets too.
    AllExperts,
}

impl Reduces {
    /// Kernel for a model, with so many ranks of data-parallel attention.
    pub fn kernel(self, model: &Model, gpu: &Gpu, ranks: u32, asked: Asked) -> ReduceKernel {
        let is_listed = model.experts.is_some() && !is_unlisted(model);
        let is_first = model.latent.is_some() || model.experts.is_some_and(|experts| experts.biased);
        let has_norms = model.linear.is_none();
        let is_dense = has_norms && model.experts.is_none();
        let (by_itself, computes_norms) = match self {
            Self::Own => return ReduceKernel::Own,
            Self::OnRequest => (false, is_dense),
            Self::FirstOfBlackwell => (!gpu.name.ends_with("b300"), is_dense),
            Self::Dense => (true, is_dense),
            Self::Few => (is_listed && is_first && gpu.capability() == Capability::Ten, true),
            Self::Experts => (is_listed, has_norms),
            Self::AllExperts => (is_listed, true),
        };
        let fuses = match asked {
            Asked::Auto => by_itself,
            Asked::Fused => true,
            Asked::Separate => false,
        };
        // The kernel is FlashInfer's, which is CUDA's.
        let is_served = gpu.maker() == Maker::Nvidia && gpu.peak_fp8.is_some();
        let has_kernel = ranks == 1 && is_served && gpu.peer_access && gpu.has_own_link();
        match self {
            _ if fuses && computes_norms && has_kernel => ReduceKernel::Fused,
            Self::Few | Self::Experts | Self::AllExperts => ReduceKernel::Earlier,
            _ => ReduceKernel::Own,
        }
    }
}

/// Whether an architecture with experts is not in SGLang's list: those with an index, MiniMax, and those with a state space.
fn is_unlisted(model: &Model) -> bool {
    model.index.is_some() || model.qk_norm == QueryKeyNorm::Whole || model.state_space.is_some()
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
            ("0.5.9", "glm-4.5-air", "h100-sxm", true),
            ("0.5.9", "minimax-m2.5", "h100-sxm", false),
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
        let own = named("trtllm", Version::NEWEST).expect("listed").reduces;
        let (model, gpu) = (engine::model::embedded("deepseek-v3"), hw::catalog::gpu("b200"));
        assert_eq!(own.kernel(&model.expect("embedded"), &gpu.expect("listed"), 1, Asked::Fused), ReduceKernel::Own);
    }

    #[test]
    fn vllm_fuses_where_it_is_asked_and_by_itself_later() {
        use Asked::{Auto, Fused, Separate};
        for (version, name, card, asked, fuses) in [
            ("0.16.0", "llama-3-8b", "b200", Auto, false),
            ("0.16.0", "llama-3-8b", "b200", Fused, true),
            ("0.17.0", "llama-3-8b", "h100-sxm", Auto, true),
            ("0.17.0", "llama-3-8b", "h100-sxm", Separate, false),
            ("0.17.0", "deepseek-v3", "b200", Fused, false),
            ("0.18.2", "llama-3-8b", "b300", Auto, false),
            ("0.19.0", "llama-3-8b", "b300", Auto, true),
            ("0.19.0", "qwen3.5-397b-a17b", "b200", Auto, false),
            ("0.19.0", "llama-3-8b", "a100-sxm-80g", Fused, false),
            ("0.19.0", "llama-3-8b", "l40s", Fused, false),
        ] {
            let (model, gpu) = (engine::model::embedded(name), hw::catalog::gpu(card));
            let reduces = named("vllm", Version::parse(version)).expect("listed").reduces;
            let found = reduces.kernel(&model.expect("embedded"), &gpu.expect("listed"), 1, asked);
            let wanted = if fuses { ReduceKernel::Fused } else { ReduceKernel::Own };
            assert_eq!(found, wanted, "{version} {name} {card}");
        }
    }

    #[test]
    fn a_fused_all_reduce_leaves_no_norm_to_launch() {
        assert_eq!(fusion(ReduceKernel::Fused, Fusion::Norms), Fusion::Exchanges);
        assert_eq!(fusion(ReduceKernel::Earlier, Fusion::Norms), Fusion::Norms);
        assert_eq!(fusion(ReduceKernel::Own, Fusion::Exchanges), Fusion::Exchanges);
    }
}
