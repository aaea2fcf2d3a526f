//! One device type: dense peak per dtype, memory, bandwidths, host link and dated prices.
//!
//! Units are in the field names. Every figure comes from `hw/catalog/gpus.toml`, where its source
//! and date stand beside it.

use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond};

/// Number format of a matrix operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16 inputs, 32-bit accumulation.
    Bf16,
    /// IEEE half inputs, 32-bit accumulation.
    Fp16,
    /// 8-bit float inputs.
    Fp8,
    /// 32-bit float.
    Fp32,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Fp8 => 1,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp32 => 4,
        }
    }
}

/// A rental price as quoted on one day.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// Who asks it.
    pub provider: String,
    /// When it was read, ISO date or month.
    pub date: String,
    /// Dollars per GPU and hour.
    pub usd_per_hour: f64,
}

/// One device type.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Catalogue name, for example `h100-sxm`.
    pub name: String,
    /// Device memory.
    pub memory: Bytes,
    /// Peak memory bandwidth.
    pub memory_bandwidth: BytesPerSecond,
    /// Dense bf16/fp16 tensor peak.
    pub peak_bf16: FlopsPerSecond,
    /// Dense fp8 tensor peak, where the device has it.
    pub peak_fp8: Option<FlopsPerSecond>,
    /// Link to the other GPUs of the node, per direction (NVLink; PCIe where there is none).
    pub intra_node_bandwidth: BytesPerSecond,
    /// Link to the host, per direction.
    pub host_bandwidth: BytesPerSecond,
    /// Where the figures come from.
    pub source: String,
    /// Quoted prices.
    pub prices: Vec<Price>,
}

impl Gpu {
    /// Dense peak for a dtype; fp8 falls back to bf16 where the device has none, fp32 is the bf16 peak over eight
    /// as a stated approximation for the vector and TF32 paths.
    #[must_use]
    pub fn peak(&self, dtype: Dtype) -> FlopsPerSecond {
        match dtype {
            Dtype::Bf16 | Dtype::Fp16 => self.peak_bf16,
            Dtype::Fp8 => self.peak_fp8.unwrap_or(self.peak_bf16),
            Dtype::Fp32 => self.peak_bf16 * 0.125,
        }
    }
}
