//! Models by name; figures are those of the public configurations, one row each. Weights are in 16 bits, in whatever format a checkpoint is
//! published: `[model] weights` says which is served.

use super::vision::{LLAMA4_TILES, QWEN2_PIXELS, QWEN3_PIXELS};
use super::{
    Experts, FeedForward, Grid, Index, LatentAttention, Layer, LinearAttention, Mixer, Model, Pattern, QueryKeyNorm,
    Squares, StateSpace, Tower, VisionEncoder,
};
use crate::formats::Formats;

/// A row of the table of dense models.
struct Row {
    name: &'static str,
    /// Layers, hidden, heads, key-value heads, head width, intermediate, vocabulary, positions.
    shape: [u64; 8],
    family: Family,
    tied: bool,
    experts: Option<Experts>,
    /// Of the layers, every so many-th has experts: 1 for all, 2 for the last of each two.
    every: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Gpt,
}

const fn dense(name: &'static str, family: Family, tied: bool, shape: [u64; 8]) -> Row {
    Row { name, shape, family, tied, experts: None, every: 1 }
}

const fn sparse(name: &'static str, family: Family, shape: [u64; 8], experts: Experts) -> Row {
    Row { name, shape, family, tied: false, experts: Some(experts), every: 1 }
}

/// GPT with experts in every so many-th layer.
const fn some_layers(name: &'static str, shape: [u64; 8], experts: Experts, every: u64) -> Row {
    Row { name, shape, family: Family::Gpt, tied: true, experts: Some(experts), every }
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
    // ai-dynamo/aiconfigurator, model_configs/meta-llama--Meta-Llama-3.1-{8B,70B,405B}_config.json; shapes of Llama 3 and 3.1 are the same.
    dense("llama-3.1-8b", Family::Llama, false, [32, 4096, 32, 8, 128, 14_336, 128_256, 131_072]),
    dense("llama-3.1-70b", Family::Llama, false, [80, 8192, 64, 8, 128, 28_672, 128_256, 131_072]),
    dense("llama-3.1-405b", Family::Llama, false, [126, 16_384, 128, 8, 128, 53_248, 128_256, 131_072]),
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
    sparse("mixtral-8x7b", Family::Llama, [32, 4096, 32, 8, 128, 14_336, 32_000, 32_768], Experts::plain(8, 2, 14_336)),
    sparse(
        "mixtral-8x22b",
        Family::Llama,
        [56, 6144, 48, 8, 128, 16_384, 32_768, 65_536],
        Experts::plain(8, 2, 16_384),
    ),
    sparse("qwen3-30b-a3b", Family::Qwen3, [48, 2048, 32, 4, 128, 6144, 151_936, 40_960], Experts::plain(128, 8, 768)),
    sparse(
        "qwen3-235b-a22b",
        Family::Qwen3,
        [94, 4096, 64, 4, 128, 12_288, 151_936, 40_960],
        Experts::plain(128, 8, 1536),
    ),
    // Table 1 of arXiv:2411.08446: experts in every second layer, two visited. Vocabulary and positions of the public checkpoints
    // (fairseq, examples/moe_lm) are those of GPT-2.
    some_layers("gpt-moe-15b", [12, 768, 12, 12, 64, 3072, 50_257, 2048], Experts::plain(512, 2, 3072), 2),
    some_layers("gpt-moe-52b", [24, 1024, 16, 16, 64, 4096, 50_257, 2048], Experts::plain(512, 2, 4096), 2),
    // The same table; its 302 M parameters of 16 experts are those of four layers of twelve.
    some_layers("roberta-moe", [12, 768, 12, 12, 64, 3072, 50_257, 514], Experts::plain(16, 2, 3072), 3),
];

/// Makes a model.
type Made = fn() -> Model;

/// Models that a row does not describe. Unless a function names another source, shapes are those of the public `config.json` in
/// ai-dynamo/aiconfigurator @ 095f58a51c4c, aic-core/src/aiconfigurator_core/model_configs.
const OTHERS: [(&str, Made); 19] = [
    ("deepseek-v3", deepseek_v3),
    ("deepseek-r1", deepseek_v3),
    ("deepseek-v3.2", deepseek_v32),
    ("kimi-k2", kimi_k2),
    ("kimi-k2.5", kimi_k2_5),
    ("glm-5", glm_5),
    ("gpt-oss-20b", gpt_oss_20b),
    ("gpt-oss-120b", gpt_oss_120b),
    ("minimax-m2", minimax_m2),
    ("minimax-m2.5", minimax_m2),
    ("qwen3-next-80b-a3b", qwen3_next_80b_a3b),
    ("qwen3.5-27b", qwen3_5_27b),
    ("qwen3.5-397b-a17b", qwen3_5_397b_a17b),
    ("qwen2.5-vl-7b", qwen2_5_vl_7b),
    ("qwen3-vl-8b", qwen3_vl_8b),
    ("gemma-3-27b", gemma_3_27b),
    ("llama-4-maverick", llama_4_maverick),
    ("nemotron-h-56b", nemotron_h_56b),
    ("nemotron-3-nano-30b-a3b", nemotron_3_nano),
];

/// Formats in which checkpoints are published that have no 16-bit weights, as `[model] weights` writes them. Source: `quantization_config` of the same
/// public configurations, and of openai/gpt-oss, moonshotai/Kimi-K2.5 and MiniMaxAI/MiniMax-M2.
const PUBLISHED: [(&str, &str); 9] = [
    ("deepseek-v3", "\"fp8-block\""),
    ("deepseek-r1", "\"fp8-block\""),
    ("deepseek-v3.2", "\"fp8-block\""),
    ("kimi-k2", "\"fp8-block\""),
    ("kimi-k2.5", "{ experts = \"int4\" }"),
    ("gpt-oss-20b", "\"4-bit-experts\""),
    ("gpt-oss-120b", "\"4-bit-experts\""),
    ("minimax-m2", "\"fp8-block\""),
    ("minimax-m2.5", "\"fp8-block\""),
];

/// Format of a model's published checkpoint, as a scenario writes it; `None` where that has 16 bits.
#[must_use]
pub fn published_weights(name: &str) -> Option<&'static str> {
    PUBLISHED.iter().find(|(known, _)| *known == name).map(|(_, word)| *word)
}

/// A model embedded by name.
#[must_use]
pub fn embedded(name: &str) -> Option<Model> {
    let other = OTHERS.iter().find(|(known, _)| *known == name);
    if let Some((name, model)) = other {
        return Some(Model { name: (*name).to_owned(), ..model() });
    }
    ROWS.iter().find(|row| row.name == name).map(from_row)
}

/// Names of all embedded models.
#[must_use]
pub fn embedded_names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).chain(OTHERS.iter().map(|(name, _)| *name)).collect()
}

fn from_row(row: &Row) -> Model {
    let [n_layers, hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab, max_positions] = row.shape;
    let gpt = row.family == Family::Gpt;
    Model {
        name: row.name.to_owned(),
        n_layers,
        layers: row.experts.map_or_else(|| Pattern::uniform(Layer::DENSE), |_| Pattern::of_experts(0, row.every)),
        hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        intermediate,
        gated: !gpt,
        vocab,
        tied: row.tied,
        qkv_bias: gpt || row.family == Family::Qwen2,
        output_bias: gpt,
        output_gate: false,
        sinks: false,
        learned_positions: gpt,
        sandwich_norms: false,
        qk_norm: if row.family == Family::Qwen3 { QueryKeyNorm::Head } else { QueryKeyNorm::Off },
        max_positions,
        latent: None,
        experts: row.experts,
        linear: None,
        state_space: None,
        n_predicting: 0,
        vision: None,
        formats: Formats::of(hw::Dtype::Bf16),
        unpriced: Vec::new(),
    }
}

/// A model of such a shape, as `ROWS` has it, with experts.
fn of_experts(family: Family, shape: [u64; 8], experts: Experts) -> Model {
    from_row(&sparse("", family, shape, experts))
}

fn deepseek_v3() -> Model {
    let latent =
        LatentAttention { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128, index: None };
    let experts = Experts { shared_intermediate: 2048, n_groups: 8, ..Experts::plain(256, 8, 2048) };
    Model {
        layers: Pattern::of_experts(3, 1),
        latent: Some(latent),
        n_predicting: 1,
        ..of_experts(Family::Llama, [61, 7168, 128, 128, 128, 18_432, 129_280, 163_840], experts)
    }
}

/// DeepSeek-V3 with an index in front of attention.
fn deepseek_v32() -> Model {
    let base = deepseek_v3();
    let index = Some(Index { n_heads: 64, head_dim: 128 });
    let latent = base.latent.map(|latent| LatentAttention { index, ..latent });
    Model { layers: selecting(&base.layers, base.n_layers, 2048), latent, ..base }
}

/// The same layers with attention to so many selected tokens.
fn selecting(layers: &Pattern, n: u64, tokens: u64) -> Pattern {
    let layer = |index| Layer { mixer: Mixer::Selected(tokens), ..layers.layer(index) };
    Pattern::of_layers(&(0..n).map(layer).collect::<Vec<_>>())
}

/// DeepSeek-V3 with half the heads, more experts and one dense layer.
fn kimi_k2() -> Model {
    let experts = Experts { shared_intermediate: 2048, ..Experts::plain(384, 8, 2048) };
    Model {
        n_heads: 64,
        n_kv_heads: 64,
        vocab: 163_840,
        max_positions: 131_072,
        layers: Pattern::of_experts(1, 1),
        experts: Some(experts),
        n_predicting: 0,
        ..deepseek_v3()
    }
}

/// The text model of Kimi-K2.5 is that of Kimi-K2 with longer positions.
fn kimi_k2_5() -> Model {
    Model { max_positions: 262_144, ..kimi_k2() }
}

fn glm_5() -> Model {
    let index = Some(Index { n_heads: 32, head_dim: 128 });
    let latent =
        LatentAttention { q_rank: Some(2048), kv_rank: 512, nope_dim: 192, rope_dim: 64, value_dim: 256, index };
    let experts = Experts { shared_intermediate: 2048, ..Experts::plain(256, 8, 2048) };
    Model {
        layers: selecting(&Pattern::of_experts(3, 1), 78, 2048),
        latent: Some(latent),
        n_predicting: 1,
        ..of_experts(Family::Llama, [78, 6144, 64, 64, 64, 12_288, 154_880, 202_752], experts)
    }
}

/// Windows of 128 tokens in every layer before one that attends to all; biases and sinks throughout.
fn gpt_oss(n_layers: u64, n_experts: u64) -> Model {
    let experts = Experts { biased: true, ..Experts::plain(n_experts, 4, 2880) };
    let window = Layer { mixer: Mixer::Window(128), feed_forward: FeedForward::Experts };
    Model {
        layers: Pattern::repeating(&[window, Layer::EXPERTS]),
        qkv_bias: true,
        output_bias: true,
        sinks: true,
        ..of_experts(Family::Llama, [n_layers, 2880, 64, 8, 64, 2880, 201_088, 131_072], experts)
    }
}

fn gpt_oss_20b() -> Model {
    gpt_oss(24, 32)
}

fn gpt_oss_120b() -> Model {
    gpt_oss(36, 128)
}

/// MiniMax-M2 and M2.5 have one shape. Engines keep the router in 32 bits: vllm-project/vllm, vllm/model_executor/models/minimax_m2.py (`params_dtype`).
fn minimax_m2() -> Model {
    let experts = Experts { fp32_router: true, ..Experts::plain(256, 8, 1536) };
    Model {
        qk_norm: QueryKeyNorm::Whole,
        n_predicting: 3,
        ..of_experts(Family::Llama, [62, 3072, 48, 8, 128, 1536, 200_064, 196_608], experts)
    }
}

/// Three layers of gated delta nets, then one of gated attention.
fn three_linear(feed_forward: FeedForward) -> Pattern {
    let linear = Layer { mixer: Mixer::Linear, feed_forward };
    Pattern::repeating(&[linear, linear, linear, Layer { mixer: Mixer::Full, feed_forward }])
}

/// Qwen3-Next and Qwen3.5 with so many value heads of linear attention.
fn qwen3_next(base: Model, n_value_heads: u64, feed_forward: FeedForward) -> Model {
    let linear =
        LinearAttention { n_key_heads: 16, n_value_heads, key_dim: 128, value_dim: 128, kernel: 4, state_bytes: 4 };
    Model { layers: three_linear(feed_forward), output_gate: true, linear: Some(linear), n_predicting: 1, ..base }
}

/// huggingface/transformers, docs/source/en/model_doc/qwen3_next.md, and the defaults of `configuration_qwen3_next.py`.
fn qwen3_next_80b_a3b() -> Model {
    let experts = Experts { shared_intermediate: 512, shared_gate: true, ..Experts::plain(512, 10, 512) };
    let base = of_experts(Family::Qwen3, [48, 2048, 16, 2, 256, 5120, 151_936, 262_144], experts);
    Model { n_predicting: 0, ..qwen3_next(base, 32, FeedForward::Experts) }
}

fn qwen3_5_27b() -> Model {
    let row = dense("", Family::Qwen3, false, [64, 5120, 24, 4, 256, 17_408, 248_320, 262_144]);
    qwen3_next(from_row(&row), 48, FeedForward::Dense)
}

fn qwen3_5_397b_a17b() -> Model {
    let experts = Experts { shared_intermediate: 1024, shared_gate: true, ..Experts::plain(512, 10, 1024) };
    let base = of_experts(Family::Qwen3, [60, 4096, 32, 2, 256, 1024, 248_320, 262_144], experts);
    qwen3_next(base, 64, FeedForward::Experts)
}

/// Modules as printed by developers.googleblog.com, "Gemma explained: what's new in Gemma 3"; five windows of 1024 tokens to one layer that
/// attends to all, arXiv:2503.19786, section 2.
fn gemma_3_27b() -> Model {
    let window = Layer { mixer: Mixer::Window(1024), ..Layer::DENSE };
    let row = dense("", Family::Qwen3, true, [62, 5376, 32, 16, 128, 21_504, 262_208, 131_072]);
    Model {
        layers: Pattern::repeating(&[window, window, window, window, window, Layer::DENSE]),
        sandwich_norms: true,
        vision: Some(Box::new(siglip(row.shape[1]))),
        ..from_row(&row)
    }
}

/// SigLIP with 256 tokens for an image, as huggingface/transformers has it for Gemma 3 (`configuration_siglip.py` with the widths of
/// arXiv:2303.15343's So400m, `configuration_gemma3.py`).
fn siglip(model_hidden: u64) -> VisionEncoder {
    VisionEncoder {
        tower: Tower::SigLip,
        n_layers: 27,
        hidden: 1152,
        n_heads: 16,
        intermediate: 4304,
        patch: 14,
        frames: 1,
        merge: 4,
        grid: Grid::Square { side: 896 },
        squares: None,
        projector: vec![[1152, model_hidden]],
    }
}

/// Qwen2.5-7B behind an encoder whose layers attend to windows of 112 pixels but for four (arXiv:2502.13923, section 2.1.1 and table 1;
/// `configuration_qwen2_5_vl.py` of huggingface/transformers).
fn qwen2_5_vl_7b() -> Model {
    let row = dense("", Family::Qwen2, false, [28, 3584, 28, 4, 128, 18_944, 152_064, 128_000]);
    let vision = VisionEncoder {
        tower: Tower::Qwen25,
        n_layers: 32,
        hidden: 1280,
        n_heads: 16,
        intermediate: 3420,
        patch: 14,
        frames: 2,
        merge: 2,
        grid: Grid::Resized { pixels_min: QWEN2_PIXELS[0], pixels_max: QWEN2_PIXELS[1] },
        squares: Some(Squares { side: 8, n_whole: 4 }),
        projector: vec![[5120, 5120], [5120, 3584]],
    };
    Model { vision: Some(Box::new(vision)), ..from_row(&row) }
}

/// Qwen3-8B behind an encoder that also feeds the model's first three layers (`configuration_qwen3_vl.py` of huggingface/transformers; NVIDIA-NeMo/
/// Megatron-Bridge, `qwen3_vl_provider.py`).
fn qwen3_vl_8b() -> Model {
    let row = dense("", Family::Qwen3, false, [36, 4096, 32, 8, 128, 12_288, 151_936, 262_144]);
    let vision = VisionEncoder {
        tower: Tower::Qwen3 { n_positions: 2304, n_inner: 3 },
        n_layers: 27,
        hidden: 1152,
        n_heads: 16,
        intermediate: 4304,
        patch: 16,
        frames: 2,
        merge: 2,
        grid: Grid::Resized { pixels_min: QWEN3_PIXELS[0], pixels_max: QWEN3_PIXELS[1] },
        squares: None,
        projector: vec![[4608, 4608], [4608, 4096]],
    };
    Model { vision: Some(Box::new(vision)), ..from_row(&row) }
}

/// Chunks of 8192 tokens in three of four layers; experts in every second.
fn llama_4_maverick() -> Model {
    let experts = Experts { shared_intermediate: 8192, ..Experts::plain(128, 1, 8192) };
    let layer = |index: u64| Layer {
        mixer: if (index + 1).is_multiple_of(4) { Mixer::Full } else { Mixer::Chunked(8192) },
        feed_forward: if (index + 1).is_multiple_of(2) { FeedForward::Experts } else { FeedForward::Dense },
    };
    let vision = VisionEncoder {
        tower: Tower::Llama4,
        n_layers: 34,
        hidden: 1408,
        n_heads: 16,
        intermediate: 5632,
        patch: 14,
        frames: 1,
        merge: 2,
        grid: Grid::Tiles { side: 336, n_max: LLAMA4_TILES },
        squares: None,
        projector: vec![[5632, 4096], [4096, 4096], [4096, 5120]],
    };
    Model {
        layers: Pattern::of_layers(&(0..48).map(layer).collect::<Vec<_>>()),
        vision: Some(Box::new(vision)),
        ..of_experts(Family::Llama, [48, 5120, 40, 8, 128, 16_384, 202_048, 1_048_576], experts)
    }
}

/// Blocks of Nemotron-H: `M` of Mamba-2, `*` of attention, `-` of a feed-forward, `E` of experts.
fn nemotron_h(blocks: &str, state_space: StateSpace, base: Model) -> Model {
    let block = |letter: char| match letter {
        'M' => Layer { mixer: Mixer::StateSpace, feed_forward: FeedForward::Off },
        '*' => Layer { mixer: Mixer::Full, feed_forward: FeedForward::Off },
        '-' => Layer { mixer: Mixer::Off, feed_forward: FeedForward::Dense },
        _ => Layer { mixer: Mixer::Off, feed_forward: FeedForward::Experts },
    };
    let layers = Pattern::of_layers(&blocks.chars().map(block).collect::<Vec<_>>());
    Model { layers, gated: false, state_space: Some(state_space), ..base }
}

fn nemotron_h_56b() -> Model {
    let blocks = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
    let state_space = StateSpace { n_heads: 256, head_dim: 64, n_groups: 8, state: 256, kernel: 4, state_bytes: 2 };
    let row = dense("", Family::Llama, false, [118, 8192, 64, 8, 128, 32_768, 131_072, 8192]);
    nemotron_h(blocks, state_space, from_row(&row))
}

fn nemotron_3_nano() -> Model {
    let blocks = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
    let state_space = StateSpace { n_heads: 64, head_dim: 64, n_groups: 8, state: 128, kernel: 4, state_bytes: 4 };
    let experts = Experts { shared_intermediate: 3712, ..Experts::plain(128, 6, 1856) };
    nemotron_h(blocks, state_space, of_experts(Family::Llama, [52, 2688, 32, 2, 128, 1856, 131_072, 262_144], experts))
}
