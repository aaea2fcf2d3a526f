//! Kernels that a layer of a serving engine launches beside those that `engine::layer` writes.

use engine::model::{Layer, Mixer, QueryKeyNorm};
use engine::shard::Shard;
use hw::{Dtype, Seconds};

use super::fusion::GRAPH_START_S;

/// Kernels more, or fewer, by what a layer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    pub heads: i32,
    pub query_key_norm: i32,
    pub output_gate: i32,
    pub latent: i32,
    pub latent_block: i32,
    pub narrow_latent: i32,
    pub selected: i32,
    pub delta: i32,
    pub shared: i32,
    pub shared_gate: i32,
}

/// Kernels of an engine's layers beside those that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census(pub Kernels);

const NONE: Kernels = Kernels {
    heads: 0,
    query_key_norm: 0,
    output_gate: 0,
    latent: 0,
    latent_block: 0,
    narrow_latent: 0,
    selected: 0,
    delta: 0,
    shared: 0,
    shared_gate: 0,
};

pub const VLLM: Kernels = Kernels { query_key_norm: 1, latent: 3, latent_block: 0, selected: -1, delta: -1, output_gate: 1, shared: 1, shared_gate: 2, ..NONE };
pub const SGLANG: Kernels = Kernels {
    query_key_norm: 1,
    output_gate: 4,
    latent: 2,
    latent_block: 2,
    narrow_latent: 4,
    selected: -1,
    delta: 0,
    shared: 1,
    shared_gate: 3,
    ..NONE
};
pub const SGLANG_NEW: Kernels = Kernels { delta: -2, ..SGLANG };
pub const TRTLLM: Kernels = Kernels { heads: -1, query_key_norm: 1, shared: 1, ..NONE };

impl Census {
    pub const NONE: Self = Self(NONE);

    fn of_layer(self, shard: &Shard<'_>, layer: Layer, beside: bool) -> i32 {
        let (model, kernels) = (shard.model, self.0);
        let when = |is: bool, n: i32| if is { n } else { 0 };
        let mixing = match layer.mixer {
            Mixer::Linear => kernels.delta,
            Mixer::StateSpace | Mixer::Off => 0,
            Mixer::Selected(_) => kernels.selected,
            _ if model.latent.is_some() => {
                let is_narrow = shard.formats.attention.weight_bytes(1.0) < 2.0;
                let row = if shard.formats.kv == Dtype::Fp8 { kernels.latent_block } else { kernels.latent };
                row + when(is_narrow, kernels.narrow_latent)
            }
            _ => {
                kernels.heads
                    + when(model.qk_norm == QueryKeyNorm::Head, kernels.query_key_norm)
                    + when(model.output_gate, kernels.output_gate)
            }
        };
        let Some(experts) = model.experts.filter(|_| layer.has_experts()) else { return mixing };
        let has_shared = experts.shared_intermediate > 0;
        mixing + when(has_shared, kernels.shared) + when(has_shared && experts.shared_gate && !beside, kernels.shared_gate)
    }

    /// Seconds of all layers of these kinds.
    pub fn added(self, shard: &Shard<'_>, layers: impl Iterator<Item = (Layer, u32)>, beside: bool) -> Seconds {
        if crate::engine_preset::x("XC") <= 0.0 {
            return Seconds::ZERO;
        }
        let n: i32 = layers.map(|(layer, n)| self.of_layer(shard, layer, beside) * n as i32).sum();
        Seconds::new(f64::from(n) * GRAPH_START_S)
    }
}
