//! Models of tables of measured steps: embedded ones with another number of layers, and shapes that a table states itself.

use engine::Model;
use engine::model::{Experts, FeedForward, Layer, Mixer, Pattern, StateSpace};
use hw::{Bytes, Gpu};

/// Layers of a hybrid behind its own for every further token that it predicts: attention and experts.
pub const LAYERS_PER_FURTHER_TOKEN: u32 = 2;

/// A vocabulary padded as Megatron-LM pads it: to a multiple of so many rows on every tensor rank (`--make-vocab-size-divisible-by`, 128 by default).
pub const fn padded_vocabulary(vocab: u64, multiple: u64, tp: u32) -> u64 {
    vocab.next_multiple_of(multiple * tp as u64)
}

/// Memory that deterministic products need beside PyTorch's usual workspace: `CUBLAS_WORKSPACE_CONFIG=:4096:8` is eight buffers of 4 MiB, which is
/// the usual one from Hopper on and four times that of earlier cards.
pub fn deterministic_workspace(gpu: &Gpu) -> Bytes {
    Bytes(if gpu.peak_fp8.is_some() { 0 } else { 24 << 20 })
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

/// DeepSeek-V2 (arXiv:2405.04434, section 3.1.2): two shared experts of 1,536.
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

/// Nemotron 3 Super: state-space layers, attention and experts behind a projection (nvidia/NVIDIA-Nemotron-3-Super-120B-A12B, config.json).
///
/// # Panics
/// Never: its relative is embedded.
pub fn nemotron_3_super() -> Model {
    let base = engine::model::embedded("nemotron-3-nano-30b-a3b").expect("an embedded model");
    let blocks = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME";
    let experts = Experts { shared_intermediate: 5376, latent: Some(1024), ..Experts::plain(512, 22, 2688) };
    let state_space = base.state_space.map(|space| StateSpace { n_heads: 128, ..space });
    Model {
        name: "nemotron-3-super-120b-a12b".to_owned(),
        hidden: 4096,
        layers: Pattern::of_layers(&blocks.chars().map(block).collect::<Vec<_>>()),
        n_layers: blocks.len() as u64,
        experts: Some(experts),
        state_space,
        ..base
    }
}

/// A layer of Nemotron's pattern strings.
const fn block(letter: char) -> Layer {
    match letter {
        'M' => Layer { mixer: Mixer::StateSpace, feed_forward: FeedForward::Off },
        '*' => Layer { mixer: Mixer::Full, feed_forward: FeedForward::Off },
        '-' => Layer { mixer: Mixer::Off, feed_forward: FeedForward::Dense },
        _ => Layer { mixer: Mixer::Off, feed_forward: FeedForward::Experts },
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
        let whole = deepseek_v2(60);
        assert!((235.0e9..236.5e9).contains(&hw::real(whole.n_parameters())));
        let llama = cut("llama-3-70b", 12, 0);
        assert_eq!(llama.n_layers, 12);
    }
}
