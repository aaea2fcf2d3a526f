//! Models of tables of measured steps: embedded ones with another number of layers, and shapes that a table states itself.

use engine::Model;
use engine::model::{Layer, Pattern};

/// Layers of a hybrid behind its own for every further token that it predicts: attention and experts.
pub const LAYERS_PER_FURTHER_TOKEN: u32 = 2;

/// A vocabulary padded as Megatron-LM pads it: to a multiple of so many rows on every tensor rank (`--make-vocab-size-divisible-by`, 128 by default).
pub const fn padded_vocabulary(vocab: u64, multiple: u64, tp: u32) -> u64 {
    vocab.next_multiple_of(multiple * tp as u64)
}

/// An embedded model cut to so many layers, the first `n_dense` of them without experts.
///
/// # Panics
/// When no such model is embedded.
pub fn cut(name: &str, n_layers: u64, n_dense: u64) -> Model {
    let model = engine::model::embedded(name).expect("an embedded model");
    let layers = match model.experts {
        Some(_) => Pattern::of_experts(n_dense, 1),
        None => Pattern::uniform(Layer::DENSE),
    };
    Model { n_layers, layers, n_predicting: 0, ..model }
}

/// A GPT of two layers, 64 wide, with four heads.
#[cfg(test)]
pub(super) fn small_gpt() -> Model {
    Model {
        n_layers: 2,
        hidden: 64,
        n_heads: 4,
        n_kv_heads: 4,
        head_dim: 16,
        intermediate: 256,
        vocab: 512,
        ..engine::model::embedded("gpt-3-175b").expect("embedded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_model_has_the_parameters_of_its_layers() {
        // Megatron-LM counts 155.0 M parameters without embeddings in twelve layers of width 1024 (12 · 12 · 1024² = 151 M and biases).
        assert_eq!(padded_vocabulary(50_257, 128, 1), 50_304);
        assert_eq!(padded_vocabulary(50_257, 128, 4), 50_688);
        // DeepSeek-V2 has 235.7 B parameters in 60 layers, one of them dense.
        let whole = cut("deepseek-v2", 60, 1);
        assert!((235.0e9..236.5e9).contains(&hw::real(whole.n_parameters())));
        let llama = cut("llama-3-70b", 12, 0);
        assert_eq!(llama.n_layers, 12);
    }
}
