//! Attention of decoding sequences: one query each over all cached keys and values, bound by memory.
//!
//! Per layer `start + 32-head sequences · per_sequence + bytes / (reached · bandwidth)`. The constants were fitted by us (robust relative
//! least squares) to `generation_attention_perf` of ai-dynamo/aiconfigurator @ 095f58a51c4c (Apache-2.0), vLLM rows with head width
//! 128 and 16-bit keys and values: A100 SXM 2,992 rows, median error 9 %; H100 SXM 3,946 rows, 6 %; H200 SXM 3,946 rows, 7 %;
//! and to the decode rows of `attention.csv` of casys-kaist/LLMServingSim @ 5daddb21a545 (MIT), Llama-3.1-8B: RTX 4090 90 rows, 5 %; RTX PRO 6000
//! 162 rows, 4 %.

use hw::Seconds;

use crate::cost::Source;
use crate::engine::Case;
use crate::model::Model;
use crate::serving::step_cost::{Deployment, ticks_of};

/// Query heads of the sequence that `per_sequence_s` stands for.
const HEADS: f64 = 32.0;

/// Law of one device type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeAttention {
    /// Start of the kernel and its reduction, seconds.
    pub start_s: f64,
    /// Seconds per sequence of 32 query heads.
    pub per_sequence_s: f64,
    /// Share of the datasheet's memory bandwidth.
    pub reached: f64,
    /// Measured over predicted times: 5 % and 95 % quantile of the fitted rows.
    pub interval: [f64; 2],
    /// Where the law comes from.
    pub source: Source,
}

/// Where nothing was fitted: the start of the fitted devices and the middle of what they reach.
const ASSUMED: DecodeAttention = DecodeAttention {
    start_s: 12e-6,
    per_sequence_s: 0.07e-6,
    reached: 0.83,
    interval: [0.6, 1.8],
    source: Source::Datasheet,
};

const fn fitted(start_us: f64, per_sequence_us: f64, reached: f64, interval: [f64; 2]) -> DecodeAttention {
    let (start_s, per_sequence_s) = (start_us * 1e-6, per_sequence_us * 1e-6);
    DecodeAttention { start_s, per_sequence_s, reached, interval, source: Source::Measured }
}

const FITTED: [(&str, DecodeAttention); 5] = [
    ("a100-sxm", fitted(17.6, 0.073, 0.738, [0.70, 1.81])),
    ("h100-sxm", fitted(11.9, 0.062, 0.901, [0.83, 1.39])),
    ("h200-sxm", fitted(12.0, 0.069, 0.864, [0.87, 1.48])),
    ("rtx-4090", fitted(12.5, 0.156, 0.909, [0.79, 1.18])),
    ("rtx-pro-6000", fitted(12.6, 0.082, 0.809, [0.91, 1.11])),
];

/// Bytes of keys and values that one token keeps on each GPU of a replica.
#[must_use]
pub fn kv_bytes_per_token(model: &Model, tensor_degree: u32, bytes_per_element: u64) -> u64 {
    let width = model.latent.map_or_else(
        // Fewer key-value heads than GPUs: every GPU keeps one.
        || 2 * model.n_kv_heads.div_ceil(u64::from(tensor_degree)) * model.head_dim,
        |latent| latent.kv_rank + latent.rope_dim,
    );
    model.n_layers * width * bytes_per_element
}

impl DecodeAttention {
    /// The law of a device type, or the assumed one.
    #[must_use]
    pub fn of(gpu: &str) -> Self {
        FITTED.iter().find(|(name, _)| gpu.starts_with(name)).map_or(ASSUMED, |(_, law)| *law)
    }

    /// Ticks of all layers: per iteration, per sequence, per cached token.
    #[must_use]
    pub fn ticks(&self, deployment: &Deployment<'_>, case: Case) -> [u64; 3] {
        let factor = match case {
            Case::Low => self.interval[0],
            Case::Expected => 1.0,
            Case::High => self.interval[1],
        };
        let model = deployment.model;
        let layers = hw::Tokens(model.n_layers).as_f64();
        let heads = hw::Tokens(model.n_heads.div_ceil(u64::from(deployment.tensor_degree))).as_f64();
        let bytes = kv_bytes_per_token(model, deployment.tensor_degree, deployment.dtype.bytes());
        let bandwidth = deployment.cluster.gpu.memory_bandwidth * self.reached;
        [
            ticks_of(Seconds::new(layers * self.start_s * factor)),
            ticks_of(Seconds::new(layers * self.per_sequence_s * heads / HEADS * factor)),
            ticks_of(hw::Bytes(bytes) / bandwidth * factor).max(1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_bytes_are_those_of_a_printed_example() {
        // Qwen3-32B on four GPUs: 2 · 64 layers · 2 heads · 128 · 2 bytes; 5,120 tokens are 0.3125 GiB (aiconfigurator prints it).
        let model = Model { n_layers: 64, n_kv_heads: 8, head_dim: 128, ..base() };
        assert_eq!(kv_bytes_per_token(&model, 4, 2) * 5120, 335_544_320);
        // Two heads over eight GPUs: each keeps one.
        let model = Model { n_layers: 1, n_kv_heads: 2, head_dim: 128, ..base() };
        assert_eq!(kv_bytes_per_token(&model, 8, 2), 512);
    }

    fn base() -> Model {
        crate::model::embedded("llama-3-8b").expect("listed")
    }
}
