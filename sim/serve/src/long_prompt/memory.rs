//! What a GPU keeps while a long prompt is computed: weights, keys and values of all tokens so far, activations of one chunk.
//!
//! Units: bytes per GPU. Weights and keys are cut over tensor and pipeline ranks, evenly.

use hw::Bytes;

use crate::decode_attention::kv_bytes_per_token;
use engine::model::Model;

/// Bytes of an element.
const ELEMENT: u64 = 2;

/// GPUs of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// GPUs that share every layer.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
}

/// Memory of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptMemory {
    /// Weights.
    pub weights: Bytes,
    /// Keys and values of all tokens.
    pub kv: Bytes,
    /// Activations of the largest chunk.
    pub activations: Bytes,
}

/// Inner activations of one feed-forward layer for so many tokens, uncut: gate and up projection where it is gated.
#[must_use]
pub fn feed_forward_activations(model: &Model, tokens: u64) -> Bytes {
    let matrices = if model.gated { 2 } else { 1 };
    let width = model.experts.map_or(model.intermediate, |experts| experts.intermediate * experts.top_k);
    Bytes(tokens * matrices * width * ELEMENT)
}

/// Memory of `tokens` tokens computed in chunks of at most `chunk`.
#[must_use]
pub fn of(model: &Model, degrees: Degrees, tokens: u64, chunk: u64) -> PromptMemory {
    let (tensor, pipeline) = (u64::from(degrees.tensor), u64::from(degrees.pipeline));
    let weights = (model.n_parameters() * ELEMENT).div_ceil(tensor * pipeline);
    let kv = (kv_bytes_per_token(model, degrees.tensor, ELEMENT) * tokens).div_ceil(pipeline);
    // Residual stream and its norm are whole on every GPU; the feed-forward's inside is cut.
    let residual = 2 * chunk * model.hidden * ELEMENT;
    let activations = residual + feed_forward_activations(model, chunk).0.div_ceil(tensor);
    PromptMemory { weights: Bytes(weights), kv: Bytes(kv), activations: Bytes(activations) }
}

impl PromptMemory {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.weights + self.kv + self.activations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    #[test]
    fn a_million_tokens_of_the_7b_keep_71_gib_per_layer_and_chunks_save_96_7_percent() {
        let model = engine::model::embedded("qwen2.5-7b").expect("listed");
        let whole = feed_forward_activations(&model, 1_000_000).as_f64();
        assert!((whole / GIB - 71.0).abs() < 0.5, "{} GiB", whole / GIB);
        let saved = 1.0 - feed_forward_activations(&model, 32_768).as_f64() / whole;
        assert!((saved - 0.967).abs() < 5e-4, "{saved}");
    }

    #[test]
    fn both_models_fit_what_their_page_asks_for() {
        // The model cards ask for 120 GB and 320 GB over all GPUs for a million tokens.
        for (name, tensor, limit) in [("qwen2.5-7b", 4, 120e9), ("qwen2.5-14b", 8, 320e9)] {
            let model = engine::model::embedded(name).expect("listed");
            let memory = of(&model, Degrees { tensor, pipeline: 1 }, 1_000_000, 32_768);
            let all = memory.total().as_f64() * f64::from(tensor);
            assert!(all < limit && all > 0.5 * limit, "{name}: {all}");
        }
        // 57 KB and 197 KB of keys and values per token.
        let kv = |name: &str| kv_bytes_per_token(&engine::model::embedded(name).expect("listed"), 1, 2);
        assert_eq!((kv("qwen2.5-7b"), kv("qwen2.5-14b")), (57_344, 196_608));
    }
}
