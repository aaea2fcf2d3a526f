//! Kernels that an engine runs by its name and device.

use hw::{Capability, Format, Gpu};

use super::EnginePreset;

impl EnginePreset {
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
