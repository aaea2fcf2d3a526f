//! Models of tables of measured steps: embedded ones with another number of layers, and shapes that a table states itself.

use engine::Model;
use engine::model::{Experts, FeedForward, Layer, Mixer, Pattern};

/// A vocabulary padded as Megatron-LM pads it: to a multiple of 128 rows on every tensor rank (`--make-vocab-size-divisible-by`).
#[must_use]
pub const fn padded_vocabulary(vocab: u64, tp: u32) -> u64 {
    vocab.next_multiple_of(128 * tp as u64)
}

/// An embedded model cut to so many layers, the first `n_dense` of them without experts.
///
/// # Panics
/// When no such model is embedded.
#[must_use]
pub fn cut(name: &str, n_layers: u64, n_dense: u64) -> Model {
    let model = engine::model::embedded(name).expect("an embedded model");
    let layers = match model.experts {
        Some(_) => Pattern::of_experts(n_dense, 1),
        None => Pattern::uniform(Layer::DENSE),
    };
    Model { n_layers, layers, n_predicting: 0, ..model }
}

/// DeepSeek-V2 (arXiv:2405.04434, section 3.1.2): two shared experts of 1,536.
#[must_use]
pub fn deepseek_v2(n_layers: u64) -> Model {
    let experts = Experts { shared_intermediate: 3072, ..Experts::plain(160, 6, 1536) };
    let base = cut("deepseek-v3", n_layers, 1);
    Model {
        name: "deepseek-v2".to_owned(),
        hidden: 5120,
        intermediate: 12_288,
        vocab: 102_400,
        experts: Some(experts),
        ..base
    }
}

/// Layers that a training step does not time, in words; empty where there are none.
#[must_use]
pub fn not_timed(model: &Model) -> String {
    let words = |layer: Layer| match (layer.mixer, layer.feed_forward) {
        (Mixer::Full | Mixer::Window(_), FeedForward::Off) => Some("attention alone"),
        (Mixer::Full | Mixer::Window(_), _) => None,
        (Mixer::Chunked(_), _) => Some("attention in chunks"),
        (Mixer::Selected(_), _) => Some("attention to selected tokens"),
        (Mixer::Linear, _) => Some("linear attention"),
        (Mixer::StateSpace, _) => Some("state space"),
        (Mixer::Off, _) => Some("feed-forward alone"),
    };
    let found: Vec<&str> = model.layers.kinds().into_iter().filter_map(words).collect();
    found.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_model_has_the_parameters_of_its_layers() {
        // Megatron-LM counts 155.0 M parameters without embeddings in twelve layers of width 1024 (12 · 12 · 1024² = 151 M and biases).
        assert_eq!(padded_vocabulary(50_257, 1), 50_304);
        assert_eq!(padded_vocabulary(50_257, 4), 50_688);
        // DeepSeek-V2 has 235.7 B parameters in 60 layers, one of them dense.
        let whole = deepseek_v2(60);
        assert!((235.0e9..236.5e9).contains(&hw::Tokens(whole.n_parameters()).as_f64()));
        let llama = cut("llama-3-70b", 12, 0);
        assert_eq!(llama.n_layers, 12);
    }
}
