//! Kernels that an engine runs by its name and device.

use hw::{Capability, Format, Gpu};

use super::EnginePreset;

impl EnginePreset {
    /// Multiples to which it fills up the model's width and an expert's on a GPU. `create_weights` of vllm/model_executor/layers/quantization/mxfp4.py
    /// (neuralmagic/vllm @ 053549c3fca4): 256 and 256 for FlashInfer on Blackwell of servers, 256 and 128 for Marlin. From 0.14 on Triton runs on Hopper, whose
    /// layout takes 2 % less than this (vllm-project/vllm#33155).
    pub fn expert_padding(&self, format: Format, gpu: &Gpu) -> Option<[u64; 2]> {
        let pads = self.name == "vllm" && format == Format::Mxfp4;
        pads.then_some(if gpu.capability() == Capability::Ten { [256, 256] } else { [256, 128] })
    }

    /// Whether experts of a format run through kernels of Triton: those with 4-bit weights, where the device has no 4-bit units (`moe_config.backend` of
    /// TensorRT-LLM).
    pub fn has_triton_experts(&self, format: Format, gpu: &Gpu) -> bool {
        self.name == "trtllm" && format == Format::Mxfp4 && gpu.capability() != Capability::Ten
    }

    /// Whether it computes chunks of prompts and decoding sequences of an iteration in one launch: vLLM V1 does (`v1/attention/backends/flash_attn.py`).
    /// `SGLang` has iterations of one kind, and TensorRT-LLM a kernel for each.
    pub fn has_joint_attention(&self) -> bool {
        self.name == "vllm"
    }
}
