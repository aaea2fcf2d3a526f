//! How kernels keep a latent or compressed vector of 8-bit keys and values. Units: bytes.

use crate::model::{Mixer, Model};

/// Numbers of a latent vector that share a scale of 32 bits.
const LATENT_SCALED: u64 = 128;
/// Numbers of a compressed vector that share a scale of 8 bits, and what these scales are filled up to.
const COMPRESSED_SCALED: [u64; 2] = [64, 8];
/// Numbers of an MX format that share a scale of 8 bits.
const MX_SCALED: u64 = 32;

/// What lies beside the numbers of a vector in 8 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatentLayout {
    /// Nothing: a byte for each number.
    #[default]
    Plain,
    /// Scales, and what is rotated in 16 bits. Latent vectors whose keys are selected take 656 bytes in place of 576, compressed ones 584 in place of 512
    /// (vLLM `fp8_ds_mla`, v1/attention/backends/mla/flashmla_sparse.py of 0.32; SGLang `calculate_mla_kv_cache_dim`, and
    /// mem_cache/deepseek_v4_memory_pool.py of 0.5.23).
    WidePositions,
    /// A scale for every 32 numbers of a compressed vector, rotated ones among them: 528 bytes (SGLang `KVLayout.V41`, the same files).
    Blocks,
}

impl LatentLayout {
    /// Bytes by which a vector of a layer is longer than a byte for each of its numbers.
    pub fn more_bytes(self, model: &Model, mixer: Mixer) -> u64 {
        let latent = model.latent.filter(|_| matches!(mixer, Mixer::Selected(_)));
        match (self, latent, model.compressed) {
            (Self::WidePositions, Some(latent), _) => {
                latent.kv_rank.div_ceil(LATENT_SCALED) * hw::Dtype::Fp32.bytes() + latent.rope_dim
            }
            (Self::WidePositions, None, Some(compressed)) => {
                let [scaled, filled] = COMPRESSED_SCALED;
                let n_scales = (model.head_dim - compressed.rope_dim).div_ceil(scaled);
                compressed.rope_dim + n_scales.next_multiple_of(filled)
            }
            (Self::Blocks, None, Some(_)) => model.head_dim.div_ceil(MX_SCALED),
            _ => 0,
        }
    }

    /// Bytes by which a token takes more in all layers that keep its vector for good.
    pub fn more_bytes_per_token(self, model: &Model) -> u64 {
        let kinds = model.kinds(0, model.n_layers).into_iter().filter(|(kind, _)| model.keeps_all(kind.mixer));
        kinds.map(|(kind, n)| n * self.more_bytes(model, kind.mixer).div_ceil(kind.mixer.kept_together())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{kept_bytes_per_sequence, kv_bytes_per_token};
    use crate::shard::Shard;

    fn model(name: &str) -> Model {
        crate::model::embedded(name).expect(name)
    }

    #[test]
    fn latent_vectors_of_8_bits_that_are_selected_have_scales_and_wide_positions() {
        let of = |name: &str| {
            let model = model(name);
            kv_bytes_per_token(&model, 8, 1) + LatentLayout::WidePositions.more_bytes_per_token(&model)
        };
        // 512 numbers in 8 bits, four scales of 32 bits, 64 numbers in 16 bits, and a key of the index of 132 bytes.
        assert_eq!(of("deepseek-v3.2"), 61 * (512 + 4 * 4 + 64 * 2 + 132));
        assert_eq!(of("glm-5"), 78 * (656 + 132));
        // Attention to all keys has vectors without scales, and plain heads have none.
        assert_eq!(of("deepseek-v3"), 61 * 576);
        assert_eq!(of("llama-3-8b"), 32 * 2 * 128);
    }

    /// 448 numbers in 8 bits, 64 in 16 bits, seven scales of 8 bits and a byte that fills them up; or 512 numbers and 16 scales.
    #[test]
    fn compressed_vectors_of_8_bits_have_scales_in_windows_too() {
        for (layout, vector) in [
            (LatentLayout::Plain, 512),
            (LatentLayout::WidePositions, 448 + 64 * 2 + 8),
            (LatentLayout::Blocks, 512 + 512 / 32),
        ] {
            let model = model("deepseek-v4-flash");
            let index = 132 / 4;
            let [of_four, of_many] = [4, 128].map(|ratio: u64| u64::div_ceil(vector, ratio));
            let kept = kv_bytes_per_token(&model, 1, 1) + layout.more_bytes_per_token(&model);
            assert_eq!(kept, 21 * (of_four + index) + 20 * of_many, "{layout:?}");
            // Each of 43 layers keeps the last 128 vectors one by one, whatever else is kept.
            let formats =
                crate::formats::Formats { kv: hw::Dtype::Fp8, ..crate::formats::Formats::of(hw::Dtype::Bf16) };
            let of = |layout| {
                let shard = Shard { formats, latent_layout: layout, ..Shard::forward(&model, hw::Dtype::Bf16, 1) };
                kept_bytes_per_sequence(&shard, u64::MAX)
            };
            assert_eq!(of(layout) - of(LatentLayout::Plain), 43 * 128 * (vector - 512), "{layout:?}");
            // Wider numbers have no scales.
            let wide = Shard { latent_layout: layout, ..Shard::forward(&model, hw::Dtype::Bf16, 1) };
            let plain = Shard { latent_layout: LatentLayout::Plain, ..wide };
            assert_eq!(kept_bytes_per_sequence(&wide, 1000), kept_bytes_per_sequence(&plain, 1000));
        }
    }
}
