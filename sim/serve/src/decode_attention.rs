//! Attention of decoding sequences in all layers of a deployment, from the device's law (`cost/decode.rs`).

use hw::{Bytes, Seconds};

use crate::step_cost::decoding::Decoding;
use crate::step_cost::{ReplicaConfig, ticks_of};
use engine::cost::decode::{DecodeLaw, HEADS};
use engine::cost::{CostModel, Source};
pub use engine::memory::kv_bytes_per_token;
use engine::memory::kv_elements_per_layer;
use engine::play::Case;

/// Ticks of decode attention in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeTicks {
    /// Per iteration that decodes, per sequence, per cached token.
    pub alone: [u64; 3],
    /// The same in an iteration that also computes chunks of prompts.
    pub mixed: [u64; 3],
    /// Where the law comes from.
    pub source: Source,
}

impl DecodeTicks {
    /// Ticks in an iteration with so many chunks.
    #[must_use]
    pub const fn beside(&self, n_chunks: u32) -> [u64; 3] {
        if n_chunks == 0 { self.alone } else { self.mixed }
    }

    /// Decode attention of a deployment, fitted or assumed.
    #[must_use]
    pub fn new(deployment: &ReplicaConfig<'_>, cost: &dyn CostModel, case: Case) -> Self {
        let law = cost.decode().cloned().unwrap_or_else(DecodeLaw::assumed);
        let (model, layers) = (deployment.model, Decoding::new(deployment));
        let heads = hw::Tokens(model.n_heads.div_ceil(u64::from(deployment.tensor_degree))).as_f64();
        let bytes = kv_elements_per_layer(model, deployment.tensor_degree) * deployment.formats.kv.bytes();
        let ticks = |start_s: f64, per_sequence_s: f64, reached: f64, interval: [f64; 2]| {
            let factor = match case {
                Case::Low => interval[0],
                Case::Expected => 1.0,
                Case::High => interval[1],
            };
            let bandwidth = deployment.cluster.gpu.memory_bandwidth * reached;
            let key_s = (Bytes(bytes) / bandwidth).get();
            let [start, key] = layers.seconds(start_s, key_s, 0);
            let [sequence, _] = layers.seconds(per_sequence_s * heads / HEADS, key_s, 1);
            let ticks = |seconds: f64| ticks_of(Seconds::new(seconds * factor));
            [ticks(start), ticks(sequence), ticks(key).max(1)]
        };
        let alone = ticks(law.start_s, law.per_sequence_s, law.reached, [law.residuals.low, law.residuals.high]);
        let mixed = law.mixed.as_ref().map_or(alone, |mixed| {
            ticks(0.0, mixed.per_sequence_s, mixed.reached, [mixed.residuals.low, mixed.residuals.high])
        });
        Self { alone, mixed, source: law.source() }
    }
}
