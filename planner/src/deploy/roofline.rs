//! Time of one layer of a model on tensor-parallel GPUs of one type, from datasheet figures: what the planners below `rental/` count with
//! where no table was measured.
//!
//! A pass over D GPUs takes max(operations / (D·η_c·peak), bytes / (D·η_m·bandwidth)) + 4·(D-1)·(α + tokens·H·2 / (D·β)), the last part
//! two all-reduces as rings. Coarser than the engine's step (`serve::step_cost`), which adds up operators by size with their start-up
//! and the host's time: compare plans with it, not absolute figures. Units: bytes, seconds, tokens; 16-bit numbers.

use engine::model::Model;
use hw::{BytesPerSecond, Dtype, FlopsPerSecond, Gpu, real};

/// Share of the tensor peak that prompts reach; assumption, of the order of published model utilisation.
const COMPUTE_REACHED: f64 = 0.6;
/// Share of memory bandwidth; aiconfigurator's correction.
const BANDWIDTH_REACHED: f64 = 0.8;
/// Share of a link's bandwidth; as `engine::cost::roofline`.
pub(super) const LINK_REACHED: f64 = 0.75;
/// Start-up of a message inside a node, seconds; aiconfigurator's correction.
const LINK_START_S: f64 = 10e-6;
/// Share of memory that weights and cache may take; the common default of serving engines.
pub(super) const MEMORY_USED: f64 = 0.9;
/// Requests of a batch at most; the common default of serving engines.
pub(super) const BATCH_MAX: f64 = 256.0;

/// A GPU on which every time of a layer is so many times as long, but for the start-up of its messages.
pub(super) fn slower(gpu: &Gpu, by: f64) -> Gpu {
    let part = |rate: FlopsPerSecond| FlopsPerSecond::new(rate.get() / by);
    Gpu {
        peak_bf16: part(gpu.peak_bf16),
        memory_bandwidth: BytesPerSecond::new(gpu.memory_bandwidth.get() / by),
        intra_node_bandwidth: BytesPerSecond::new(gpu.intra_node_bandwidth.get() / by),
        ..gpu.clone()
    }
}

/// Seconds of a kernel that moves so many bytes and does so many operations on a GPU.
pub(super) fn kernel_s(gpu: &Gpu, bytes: f64, flops: f64) -> f64 {
    let compute = flops / (COMPUTE_REACHED * gpu.peak(Dtype::Bf16).get());
    compute.max(bytes / (BANDWIDTH_REACHED * gpu.memory_bandwidth.get()))
}

/// The mean layer of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Layer {
    /// Bytes of its weights.
    pub(super) weight_bytes: f64,
    /// Bytes of keys and values of a token.
    pub(super) kv_bytes: f64,
    /// Parameters that a token meets.
    active: f64,
    /// Width of all attention heads.
    heads: f64,
    hidden: f64,
}

/// What a pass over a layer holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pass {
    /// New tokens.
    pub(super) tokens: f64,
    /// Tokens that each of them attends to, for the operations.
    pub(super) attended: f64,
    /// Tokens whose keys and values are read.
    pub(super) read: f64,
}

impl Layer {
    /// Of a model; parameters outside its layers are spread over them.
    pub(super) fn of(model: &Model) -> Self {
        let layers = real(model.n_layers);
        let width = model.latent.map_or(2 * model.kv_width(), |latent| latent.kv_rank + latent.rope_dim);
        Self {
            weight_bytes: 2.0 * real(model.n_parameters()) / layers,
            kv_bytes: 2.0 * real(width),
            active: real(model.active_parameters()) / layers,
            heads: real(model.n_heads * model.head_dim),
            hidden: real(model.hidden),
        }
    }

    /// Of a model of which a pass reads so many bytes of weights in a layer, and that keeps so many bytes of keys and values of a token in it.
    pub(super) fn of_bytes(model: &Model, weight_bytes: f64, kv_bytes: f64) -> Self {
        Self { weight_bytes, kv_bytes, active: weight_bytes / 2.0, ..Self::of(model) }
    }

    /// Seconds per pair of a query and a key where operations are what takes time, and per cached key that is read, on `d` tensor-parallel
    /// GPUs: what `seconds` grows by.
    pub(super) fn attention_s(&self, gpu: &Gpu, d: f64) -> (f64, f64) {
        let per_pair = 4.0 * self.heads / (d * COMPUTE_REACHED * gpu.peak(Dtype::Bf16).get());
        (per_pair, self.kv_bytes / (d * BANDWIDTH_REACHED * gpu.memory_bandwidth.get()))
    }

    /// Seconds of a pass on `d` tensor-parallel GPUs.
    pub(super) fn seconds(&self, gpu: &Gpu, d: f64, pass: Pass) -> f64 {
        let flops = pass.tokens * (2.0 * self.active + 4.0 * pass.attended * self.heads);
        let bytes = self.weight_bytes + pass.read * self.kv_bytes;
        let compute = flops / (d * COMPUTE_REACHED * gpu.peak(Dtype::Bf16).get());
        let memory = bytes / (d * BANDWIDTH_REACHED * gpu.memory_bandwidth.get());
        let others = u32::try_from(hw::whole((d - 1.0).max(0.0))).unwrap_or(u32::MAX);
        let message = pass.tokens * self.hidden * 2.0 / (d * LINK_REACHED * gpu.bandwidth_to(others).get());
        compute.max(memory) + 4.0 * (d - 1.0) * (LINK_START_S + message)
    }
}
