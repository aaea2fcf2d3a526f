//! Models by name; figures are those of the public configurations, one row each.

use super::{Experts, LatentAttention, Model};
use crate::formats::Formats;

/// A row of the table of dense models.
struct Row {
    name: &'static str,
    /// Layers, hidden, heads, key-value heads, head width, intermediate, vocabulary, positions.
    shape: [u64; 8],
    family: Family,
    tied: bool,
    experts: Option<Experts>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Gpt,
}

const fn dense(name: &'static str, family: Family, tied: bool, shape: [u64; 8]) -> Row {
    Row { name, shape, family, tied, experts: None }
}

const fn experts(n_routed: u64, top_k: u64, intermediate: u64) -> Option<Experts> {
    Some(Experts { n_routed, top_k, n_shared: 0, intermediate, n_dense_layers: 0, every: 1 })
}

/// Experts in every so many-th layer.
const fn some_layers(n_routed: u64, top_k: u64, intermediate: u64, every: u64) -> Option<Experts> {
    Some(Experts { n_routed, top_k, n_shared: 0, intermediate, n_dense_layers: 0, every })
}

const ROWS: &[Row] = &[
    // Small enough for a step on a CPU.
    dense("llama-3m", Family::Llama, false, [2, 256, 4, 2, 64, 704, 2048, 32_768]),
    dense("qwen2.5-0.5b", Family::Qwen2, true, [24, 896, 14, 2, 64, 4864, 151_936, 32_768]),
    dense("qwen2.5-1.5b", Family::Qwen2, true, [28, 1536, 12, 2, 128, 8960, 151_936, 32_768]),
    dense("qwen2.5-7b", Family::Qwen2, false, [28, 3584, 28, 4, 128, 18_944, 152_064, 131_072]),
    dense("qwen2.5-14b", Family::Qwen2, false, [48, 5120, 40, 8, 128, 13_824, 152_064, 131_072]),
    dense("qwen2.5-32b", Family::Qwen2, false, [64, 5120, 40, 8, 128, 27_648, 152_064, 131_072]),
    dense("qwen2.5-72b", Family::Qwen2, false, [80, 8192, 64, 8, 128, 29_568, 152_064, 131_072]),
    dense("qwen3-8b", Family::Qwen3, false, [36, 4096, 32, 8, 128, 12_288, 151_936, 40_960]),
    dense("qwen3-32b", Family::Qwen3, false, [64, 5120, 64, 8, 128, 25_600, 151_936, 40_960]),
    dense("llama-30b", Family::Llama, false, [60, 6656, 52, 52, 128, 17_920, 32_000, 2048]),
    // arXiv:2412.16985 names it and no shape: layers of llama-2-7b, as many as come to 1.07 billion parameters.
    dense("llama-2-1b", Family::Llama, false, [4, 4096, 32, 32, 128, 11_008, 32_000, 4096]),
    dense("llama-2-7b", Family::Llama, false, [32, 4096, 32, 32, 128, 11_008, 32_000, 4096]),
    dense("llama-2-70b", Family::Llama, false, [80, 8192, 64, 8, 128, 28_672, 32_000, 4096]),
    dense("llama-3-8b", Family::Llama, false, [32, 4096, 32, 8, 128, 14_336, 128_256, 131_072]),
    dense("llama-3-70b", Family::Llama, false, [80, 8192, 64, 8, 128, 28_672, 128_256, 131_072]),
    // Shape of the 32B model of PKU-DAIR/Hetu, examples/hydraulis (layers 60, hidden 6656, vocabulary 30592).
    dense("llama-32b", Family::Llama, false, [60, 6656, 64, 64, 104, 17_920, 30_592, 32_768]),
    dense("mistral-7b", Family::Llama, false, [32, 4096, 32, 8, 128, 14_336, 32_000, 32_768]),
    // Shapes of arXiv:2502.21231 (layers, hidden, heads, key-value groups); LLaMA's feed-forward and vocabulary, and heads of 128, are choices.
    dense("llama-13b-gqa", Family::Llama, false, [40, 5120, 40, 8, 128, 13_824, 32_000, 4096]),
    dense("llama-30b-gqa", Family::Llama, false, [60, 6656, 56, 8, 128, 17_920, 32_000, 4096]),
    dense("gpt-7b", Family::Gpt, true, [32, 4096, 32, 32, 128, 16_384, 51_200, 2048]),
    // All-to-all over 64 ranks, as in arXiv:2412.01523, takes 64 heads. Its table of positions is as long as the context; with it and a head
    // of its own the model has the 7.85 · 2^30 parameters of AFDWang/Hetu-Galvatron @ flexsp, gpt_hf/train_dist.py.
    dense("gpt-7b-64-heads", Family::Gpt, false, [32, 4096, 64, 64, 64, 16_384, 50_257, 384_000]),
    dense("gpt-13b", Family::Gpt, true, [40, 5120, 40, 40, 128, 20_480, 51_200, 2048]),
    dense("gpt-30b", Family::Gpt, true, [60, 6656, 52, 52, 128, 26_624, 51_200, 2048]),
    // Shapes of arXiv:2104.04473 table 1 and arXiv:2205.05198 table 3.
    dense("gpt-7.5b", Family::Gpt, true, [36, 4096, 32, 32, 128, 16_384, 51_200, 2048]),
    dense("gpt-22b", Family::Gpt, true, [48, 6144, 64, 64, 96, 24_576, 51_200, 2048]),
    dense("gpt-39b", Family::Gpt, true, [48, 8192, 64, 64, 128, 32_768, 51_200, 2048]),
    dense("gpt-145b", Family::Gpt, true, [80, 12_288, 96, 96, 128, 49_152, 51_200, 2048]),
    dense("gpt-530b", Family::Gpt, true, [105, 20_480, 128, 128, 160, 81_920, 51_200, 2048]),
    dense("gpt-1t", Family::Gpt, true, [128, 25_600, 160, 160, 160, 102_400, 51_200, 2048]),
    dense("gpt-3-175b", Family::Gpt, true, [96, 12_288, 96, 96, 128, 49_152, 51_200, 2048]),
    // arXiv:2205.01068 table 1; positions with the two reserved rows of the public checkpoints.
    dense("opt-30b", Family::Gpt, true, [48, 7168, 56, 56, 128, 28_672, 50_272, 2050]),
    dense("opt-66b", Family::Gpt, true, [64, 9216, 72, 72, 128, 36_864, 50_272, 2050]),
    dense("opt-175b", Family::Gpt, true, [96, 12_288, 96, 96, 128, 49_152, 50_272, 2050]),
    Row {
        name: "mixtral-8x7b",
        shape: [32, 4096, 32, 8, 128, 14_336, 32_000, 32_768],
        family: Family::Llama,
        tied: false,
        experts: experts(8, 2, 14_336),
    },
    Row {
        name: "mixtral-8x22b",
        shape: [56, 6144, 48, 8, 128, 16_384, 32_768, 65_536],
        family: Family::Llama,
        tied: false,
        experts: experts(8, 2, 16_384),
    },
    Row {
        name: "qwen3-30b-a3b",
        shape: [48, 2048, 32, 4, 128, 6144, 151_936, 40_960],
        family: Family::Qwen3,
        tied: false,
        experts: experts(128, 8, 768),
    },
    Row {
        name: "qwen3-235b-a22b",
        shape: [94, 4096, 64, 4, 128, 12_288, 151_936, 40_960],
        family: Family::Qwen3,
        tied: false,
        experts: experts(128, 8, 1536),
    },
    // Table 1 of arXiv:2411.08446: experts in every second layer, two visited. Vocabulary and positions of the public checkpoints
    // (fairseq, examples/moe_lm) are those of GPT-2.
    Row {
        name: "gpt-moe-15b",
        shape: [12, 768, 12, 12, 64, 3072, 50_257, 2048],
        family: Family::Gpt,
        tied: true,
        experts: some_layers(512, 2, 3072, 2),
    },
    Row {
        name: "gpt-moe-52b",
        shape: [24, 1024, 16, 16, 64, 4096, 50_257, 2048],
        family: Family::Gpt,
        tied: true,
        experts: some_layers(512, 2, 4096, 2),
    },
    // The same table; its 302 M parameters of 16 experts are those of four layers of twelve.
    Row {
        name: "roberta-moe",
        shape: [12, 768, 12, 12, 64, 3072, 50_257, 514],
        family: Family::Gpt,
        tied: true,
        experts: some_layers(16, 2, 3072, 3),
    },
    // Every second layer attends to the last 128 tokens only and all matrices have biases; both are left out here.
    Row {
        name: "gpt-oss-120b",
        shape: [36, 2880, 64, 8, 64, 2880, 201_088, 131_072],
        family: Family::Llama,
        tied: false,
        experts: experts(128, 4, 2880),
    },
    Row {
        name: "minimax-m2.5",
        shape: [62, 3072, 48, 8, 128, 1536, 200_064, 196_608],
        family: Family::Qwen3,
        tied: false,
        experts: experts(256, 8, 1536),
    },
];

const DEEPSEEK_V3: &str = "deepseek-v3";
const KIMI_K2: &str = "kimi-k2";

/// A model embedded by name.
#[must_use]
pub fn embedded(name: &str) -> Option<Model> {
    if name == DEEPSEEK_V3 {
        return Some(deepseek_v3());
    }
    if name == KIMI_K2 {
        return Some(kimi_k2());
    }
    ROWS.iter().find(|row| row.name == name).map(from_row)
}

/// Names of all embedded models.
#[must_use]
pub fn embedded_names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).chain([DEEPSEEK_V3, KIMI_K2]).collect()
}

fn from_row(row: &Row) -> Model {
    let [n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab, max_positions] = row.shape;
    Model {
        name: row.name.to_owned(),
        n_layers,
        hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        intermediate,
        gated: row.family != Family::Gpt,
        vocab,
        tied: row.tied,
        qkv_bias: matches!(row.family, Family::Qwen2 | Family::Gpt),
        learned_positions: row.family == Family::Gpt,
        qk_norm: row.family == Family::Qwen3,
        max_positions,
        latent: None,
        experts: row.experts,
        formats: Formats::of(hw::Dtype::Bf16),
    }
}

fn deepseek_v3() -> Model {
    let latent = LatentAttention { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128 };
    Model {
        name: DEEPSEEK_V3.to_owned(),
        n_layers: 61,
        hidden: 7168,
        n_heads: 128,
        n_kv_heads: 128,
        head_dim: 128,
        intermediate: 18_432,
        gated: true,
        vocab: 129_280,
        tied: false,
        qkv_bias: false,
        learned_positions: false,
        qk_norm: false,
        max_positions: 163_840,
        latent: Some(latent),
        experts: Some(Experts {
            n_routed: 256,
            top_k: 8,
            n_shared: 1,
            intermediate: 2048,
            n_dense_layers: 3,
            every: 1,
        }),
        formats: Formats::of(hw::Dtype::Bf16),
    }
}

/// DeepSeek-V3 with half the heads, more experts and one dense layer.
fn kimi_k2() -> Model {
    Model {
        name: KIMI_K2.to_owned(),
        n_heads: 64,
        n_kv_heads: 64,
        vocab: 163_840,
        max_positions: 131_072,
        experts: Some(Experts {
            n_routed: 384,
            top_k: 8,
            n_shared: 1,
            intermediate: 2048,
            n_dense_layers: 1,
            every: 1,
        }),
        ..deepseek_v3()
    }
}
