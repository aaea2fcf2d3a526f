//! A prompt's chunk through a layer's mixer, as one question: a scan with its convolution, or attention to selected keys with the index that
//! selects them.
//!
//! Engines run several kernels for it, and tables time them together or one by one. What was fitted is the time over that of the parts on the
//! datasheet, so parts that nobody measured still say how the time grows.

use hw::Dtype;

use crate::mixing;
use crate::model::{LinearRule, Mixer, Model};
use crate::shard::Shard;
use crate::state::State;
use crate::task::{Document, Op, Ops};

/// What mixes the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixingKernel {
    /// A gated delta net.
    Delta,
    /// An index and attention to the keys that it picks, in a format of keys and values.
    Selected(Dtype),
}

/// A chunk on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedChunk {
    /// What mixes it.
    pub kernel: MixingKernel,
    /// What that is in operations.
    pub parts: Ops,
    /// Place on the axes of the surface: tokens of a scan or length of a document, heads, heads per key head.
    pub at: [f64; 3],
}

/// Heads that kernels of selected keys compute together; fewer are filled up. `FlashMLA`'s take 64 on Hopper and 128 on Blackwell, which the surface tells apart
/// (`required_padding` in `_forward_flashmla_sparse` of `SGLang`'s `nsa_backend.py`).
const PICKED_HEADS: u64 = 64;

/// Names of the axes, in the order of `MixedChunk::at`.
pub const AXES: [&str; 3] = ["length", "heads", "heads per key head"];

impl MixedChunk {
    /// A chunk of `new` tokens after `past` earlier ones, where its mixer has kernels of its own. A prompt that is not longer than what an index
    /// picks is attended to as a whole, by the kernel of plain prompts.
    pub fn of(shard: &Shard<'_>, mixer: Mixer, past: u64, new: u64) -> Option<Self> {
        let parts = || mixing::chunk(shard, mixer, past, new);
        match mixer {
            Mixer::Linear => {
                let (state, linear) = (State::of(shard, mixer)?, shard.model.linear?);
                // Nobody measured scans with a decay of each channel, nor those without a delta rule.
                if linear.rule != LinearRule::Delta {
                    return None;
                }
                let group = hw::real(linear.n_value_heads) / hw::real(linear.n_key_heads);
                let at = [hw::real(new), hw::real(state.n_heads), group];
                Some(Self { kernel: MixingKernel::Delta, parts: parts(), at })
            }
            // Nobody measured an index over heads, nor one of pools.
            Mixer::Selected(tokens) if past + new > tokens && is_measured(shard.model) => {
                let document = Document::chunk(past, new);
                let length = 2.0 * hw::real(document.pairs) / hw::real(new);
                let heads = shard.model.n_heads.div_ceil(u64::from(shard.tp));
                let at = [length, hw::real(heads), 1.0];
                let mut parts = parts();
                parts.iter_mut().for_each(|(op, _)| absorb(op, shard.model));
                Some(Self { kernel: MixingKernel::Selected(shard.formats.kv), parts, at })
            }
            _ => None,
        }
    }
}

/// Attention to selected keys is to latent vectors as they are kept, which all heads share: scores over a vector and its positions, values of the vector.
fn absorb(op: &mut Op, model: &Model) {
    if let (Op::Attention { n_heads, n_kv_heads, head_dim, .. }, Some(latent)) = (op, model.latent) {
        (*n_heads, *n_kv_heads) = (n_heads.next_multiple_of(PICKED_HEADS), 1);
        *head_dim = latent.kv_rank + latent.rope_dim / 2;
    }
}

/// Whether selection is what was measured: of latent vectors, by an index with a key of every token.
fn is_measured(model: &Model) -> bool {
    model.latent.is_some() && model.index.is_some_and(|index| index.pool == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::embedded;

    #[test]
    fn a_scan_is_asked_by_its_tokens_and_heads_and_short_prompts_select_nothing() {
        let model = embedded("qwen3.5-397b-a17b").expect("embedded");
        let shard = Shard::forward(&model, Dtype::Bf16, 8);
        let found = MixedChunk::of(&shard, Mixer::Linear, 5000, 1024).expect("a scan");
        // 64 value heads and 16 key heads over eight GPUs.
        assert_eq!((found.kernel, found.at), (MixingKernel::Delta, [1024.0, 8.0, 4.0]));
        assert_eq!(found.parts, mixing::chunk(&shard, Mixer::Linear, 0, 1024));
        let model = embedded("glm-5").expect("embedded");
        let shard = Shard::forward(&model, Dtype::Bf16, 8);
        let at = |past, new| MixedChunk::of(&shard, Mixer::Selected(2048), past, new).map(|found| found.at);
        assert_eq!(at(0, 2048), None);
        // A whole causal document is as long as it is, but for the diagonal; 64 heads over eight GPUs.
        assert_eq!(at(0, 4096), Some([4097.0, 8.0, 1.0]));
        assert!(at(2048, 1).is_some() && MixedChunk::of(&shard, Mixer::Full, 0, 9000).is_none());
        // Eight heads are filled up to 64. Each takes 576 elements of a key and 512 of a value, 544 on average.
        let found = MixedChunk::of(&shard, Mixer::Selected(2048), 0, 4096).expect("longer than what is selected");
        let pairs = 2048 * 2049 / 2 + 2048 * 2048;
        assert!((found.parts[0].0.flops() - 4.0 * 64.0 * 544.0 * hw::real(pairs)).abs() < 1.0, "{:?}", found.parts[0]);
    }
}
