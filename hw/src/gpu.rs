//! One device type: dense peak per format, memory, bandwidths, host link and dated prices.
//!
//! Units are in the field names. Every figure comes from `hw/catalog/gpus.toml`, where its source
//! and date stand beside it.

use serde::Deserialize;

use crate::format::Format;
use crate::generation::Maker;
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond};

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

/// Shares of its limit that a card draws (`power.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// Of a card that holds a program, whatever it does.
    pub idle: f64,
    /// Of memory that is read at the datasheet's bandwidth all the time.
    pub memory: f64,
    /// Of products at the datasheet's peak all the time.
    pub products: f64,
}

/// Shares of the datasheet that the largest kernels of a card were measured to reach, where somebody published them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reached {
    /// Of the peak, products in 16 bits.
    pub products: Option<f64>,
    /// Of the peak, narrower products.
    pub narrow: Option<f64>,
    /// Of the memory's bandwidth, copies.
    pub memory: Option<f64>,
    /// Of all links of a GPU, an all-reduce over the node.
    pub links: Option<f64>,
}

/// One device type.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Catalogue name, for example `h100-sxm`.
    pub name: String,
    /// Memory of the board.
    pub memory: Bytes,
    /// What of it CUDA or ROCm gives to programs (`cudaMemGetInfo`, `total_memory`), where logs show it.
    pub visible_memory: Option<Bytes>,
    /// Peak memory bandwidth.
    pub memory_bandwidth: BytesPerSecond,
    /// Dense bf16/fp16 tensor peak.
    pub peak_bf16: FlopsPerSecond,
    /// Peak of 32-bit floats, which are no TF32, where it is known.
    pub peak_fp32: Option<FlopsPerSecond>,
    /// Dense fp8 tensor peak, where the device has it.
    pub peak_fp8: Option<FlopsPerSecond>,
    /// Dense int8 tensor peak, where it is not that of fp8.
    pub peak_int8: Option<FlopsPerSecond>,
    /// Dense fp4 tensor peak, where the device has it.
    pub peak_fp4: Option<FlopsPerSecond>,
    /// Power that the card may draw for hours, watts, where its datasheet says so.
    pub power_watts: Option<f64>,
    /// Link to the other GPUs of the node, per direction (NVLink, Infinity Fabric; PCIe where there is none). All links together, where there are several.
    pub intra_node_bandwidth: BytesPerSecond,
    /// How many links to others of the node it has, one to each of them, where no switch joins them: two GPUs exchange over one alone.
    pub mesh_links: Option<u32>,
    /// Link to the host, per direction.
    pub host_bandwidth: BytesPerSecond,
    /// Whether it reads and writes the memory of another GPU of its node; without, what they exchange goes through host memory.
    pub peer_access: bool,
    /// Where the figures come from.
    pub source: String,
    /// Quoted prices.
    pub prices: Vec<Price>,
}

/// NVIDIA's compute capability, as far as kernels differ that are known here. Cards of other makers have none of these kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capability {
    /// Hopper. A card that the catalogue lacks counts as one where it multiplies 8 bits and has a link of its own.
    Nine,
    /// Blackwell of servers. Other cards count where they multiply 4 bits and have a link of their own, which those of capability 12 lack.
    Ten,
    /// Any other.
    #[default]
    Other,
}

impl Gpu {
    /// Memory that programs see: the driver keeps the rest. Where no log shows it, all of the board.
    pub fn visible(&self) -> Bytes {
        self.visible_memory.map_or(self.memory, |seen| seen.min(self.memory))
    }

    /// Takes a size of memory as it is written: programs see all of it.
    pub const fn set_memory(&mut self, memory: Bytes) {
        self.memory = memory;
        self.visible_memory = None;
    }

    /// Takes dollars of a GPU and hour as they are written: what others quote no longer counts.
    pub fn set_price(&mut self, usd_per_hour: f64) {
        self.prices = vec![Price { provider: "the scenario".to_owned(), date: String::new(), usd_per_hour }];
    }

    /// Dense peak of a product's operands. What the device has no units for is multiplied in the next wider format that it has; fp32 is the
    /// bf16 peak over eight where it is not known, a stated approximation for the vector and TF32 paths.
    pub fn peak(&self, format: impl Into<Format>) -> FlopsPerSecond {
        let eight = self.peak_fp8.unwrap_or(self.peak_bf16);
        match format.into() {
            Format::Bf16 | Format::Fp16 | Format::Int8Weights | Format::Int4 | Format::Int4By32 | Format::Mxfp4 => {
                self.peak_bf16
            }
            Format::Fp8 | Format::Fp8Block | Format::Mxfp8 => eight,
            Format::Int8 => self.peak_int8.unwrap_or(eight),
            Format::Nvfp4 => self.peak_fp4.unwrap_or(eight),
            Format::Fp32 => self.peak_fp32.unwrap_or(self.peak_bf16 * 0.125),
        }
    }

    /// Dollars of a GPU and hour: the least that is quoted; `None` where nobody quotes any.
    pub fn usd_per_hour(&self) -> Option<f64> {
        self.prices.iter().map(|price| price.usd_per_hour).reduce(f64::min)
    }

    /// What a list shows of it: memory, bandwidth, peak in 16 bits, quoted prices and where that stands.
    pub fn words(&self) -> String {
        let quoted = |price: &Price| format!("{} $/h ({}, {})", price.usd_per_hour, price.provider, price.date);
        let prices: Vec<String> = self.prices.iter().map(quoted).collect();
        let prices = if prices.is_empty() { String::new() } else { format!("; {}", prices.join(", ")) };
        let (memory, bandwidth) = (self.memory.as_f64() / crate::GIB, self.memory_bandwidth.get() / 1e9);
        let peak = self.peak_bf16.get() / 1e12;
        format!("{memory:6.1} GiB  {bandwidth:5.0} GB/s  {peak:6.1} TFLOP/s  {}{prices}", self.source)
    }

    /// What carries a message to so many others at once, per direction: a mesh has a link to each.
    pub fn bandwidth_to(&self, n_others: u32) -> BytesPerSecond {
        let share = |links: u32| f64::from(n_others.clamp(1, links)) / f64::from(links);
        self.intra_node_bandwidth * self.mesh_links.map_or(1.0, share)
    }

    /// Whether devices of a node are joined by a link of their own, as NVLink is, and not by the bus to the host.
    pub fn has_own_link(&self) -> bool {
        self.intra_node_bandwidth > self.host_bandwidth
    }

    /// Whether the device multiplies such operands itself; weights alone may be narrow on any device.
    pub fn multiplies(&self, format: Format) -> bool {
        match format {
            Format::Fp8 | Format::Fp8Block => self.peak_fp8.is_some(),
            // Scales of 32 elements came into the units together with four bits (OCP Microscaling; PTX `tcgen05.mma` with `block_scale`).
            Format::Mxfp8 => self.peak_fp8.is_some() && self.peak_fp4.is_some(),
            Format::Int8 => self.peak_int8.is_some() || self.peak_fp8.is_some(),
            // Units of CDNA 4 scale 32 elements by a power of two (`V_MFMA_SCALE_F32_16X16X128_F8F6F4`), and not 16 by 8 bits.
            Format::Nvfp4 => self.peak_fp4.is_some() && self.maker() == Maker::Nvidia,
            Format::Fp32 | Format::Bf16 | Format::Fp16 | Format::Int8Weights => true,
            Format::Int4 | Format::Int4By32 | Format::Mxfp4 => true,
        }
    }
}
