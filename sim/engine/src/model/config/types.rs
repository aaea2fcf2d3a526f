//! Types of models: what the model code of each fixes, or takes where a file does not say so.
//!
//! Source: huggingface/transformers, `configuration_<type>.py` and `modeling_<type>.py` of every type below; the tests hold the parameters that its
//! modules have. Biases of feed-forwards and norms are counted for GPT alone: elsewhere they are below a tenth of a percent of a layer.

use crate::model::{Activation, Joined, Norm, Norms, QueryKeyNorm, Style};

/// Which rules say what the layers are and which keys name their widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Gpt2,
    Mistral,
    Phi3,
    Qwen,
    /// The first Qwen of 2023, whose files say the width of both factors of a feed-forward together.
    FirstQwen,
    Qwen3Next,
    KimiLinear,
    Gemma2,
    Gemma3,
    Cohere2,
    Olmo3,
    Llama4,
    GptOss,
    Granite,
    Bamba,
    MiniMax,
    Latent,
    SparseLatent,
    NemotronH,
    DeepseekV4,
    Gemma3n,
    Gemma4,
    Gemma4Unified,
    MimoV2,
    Mpt,
    MiniMaxM3,
    Longcat,
    Qwen4,
    Glm5Next,
    Step,
    Step3,
    Hunyuan,
    Lfm2,
    FalconH1,
    Jamba,
    Lightning,
    Searched,
    Megatron,
    Falcon,
    Bloom,
    Arctic,
}

impl Family {
    /// Whether layers with a window may have other heads than those that attend to all tokens.
    pub(super) const fn has_windowed_heads(self) -> bool {
        matches!(self, Self::Gemma4 | Self::Gemma4Unified | Self::MimoV2 | Self::Step | Self::DeepseekV4)
    }
}

/// Biases of the projections of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Biases {
    /// Whether they are there where a file does not say so.
    pub(super) default: bool,
    /// Whether the output projection has one too.
    pub(super) of_output: bool,
}

/// What a configuration class takes where a file leaves a key out: `configuration_<type>.py` of huggingface/transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Defaults {
    /// Heads of queries, and of keys and values.
    pub(super) heads: Option<[u64; 2]>,
    pub(super) head_dim: Option<u64>,
    pub(super) positions: Option<u64>,
}

impl Defaults {
    const NONE: Self = Self { heads: None, head_dim: None, positions: None };

    const fn of(heads: [u64; 2], head_dim: u64, positions: u64) -> Self {
        Self { heads: Some(heads), head_dim: Some(head_dim), positions: Some(positions) }
    }
}

/// What sets a type apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) family: Family,
    /// Whether head and embedding are one table where a file does not say so.
    pub(super) tied: bool,
    /// Whether feed-forwards are gated.
    pub(super) gated: bool,
    pub(super) biases: Biases,
    pub(super) norms: Norms,
    /// What scripts of training say of it beside its widths, where a file does not say so.
    pub(super) style: Style,
    /// How queries and keys are normalised where they are.
    pub(super) qk_norm: QueryKeyNorm,
    /// Whether they are where a file does not say so.
    pub(super) has_qk_norm: bool,
    /// Whether the output of attention is gated where a file does not say so.
    pub(super) output_gate: bool,
    /// Layers in front without experts where a file does not say so.
    pub(super) n_dense: u64,
    /// Whether routers have a bias for every expert that balances their load, where a file does not say so.
    pub(super) balanced: bool,
    pub(super) defaults: Defaults,
    /// Layers behind the last one that predict a token more each, where a file does not say so.
    pub(super) n_predicting: u64,
    /// Matrices that its code has as one.
    pub(super) joined: Joined,
}

/// A type like Llama: gated, with a head of its own, biases where a file says so.
pub(super) const LLAMA: Type = Type {
    family: Family::Llama,
    tied: false,
    gated: true,
    biases: Biases { default: false, of_output: true },
    norms: Norms::Each,
    style: Style::PLAIN,
    qk_norm: QueryKeyNorm::Off,
    has_qk_norm: false,
    output_gate: false,
    n_dense: 0,
    balanced: false,
    defaults: Defaults::NONE,
    n_predicting: 0,
    joined: Joined::NONE,
};
/// Norms of mean and variance.
const LAYER_NORMS: Style = Style { norm: Norm::Layer, ..Style::PLAIN };
const GATED_GELU: Style = Style { activation: Some(Activation::Gelu), ..Style::PLAIN };
const SQUARED_RELU: Style = Style { activation: Some(Activation::SquaredRelu), ..Style::PLAIN };
const TIED: Type = Type { tied: true, ..LLAMA };
/// Queries, keys and values have biases.
const INSIDE: Biases = Biases { default: true, of_output: false };
const EVERYWHERE: Biases = Biases { default: true, of_output: true };
/// Plain feed-forwards under one table for embedding and head.
const UNGATED: Type = Type { gated: false, ..TIED };
const GPT: Type = Type {
    style: LAYER_NORMS,
    family: Family::Gpt2,
    tied: true,
    gated: false,
    biases: EVERYWHERE,
    joined: Joined::QUERIES,
    ..LLAMA
};
/// `configuration_mistral.py` and `configuration_mixtral.py`: the width of a head follows from the file.
const OF_MISTRAL: Defaults = Defaults { heads: Some([32, 8]), head_dim: None, positions: Some(131_072) };
const MISTRAL: Type = Type { family: Family::Mistral, defaults: OF_MISTRAL, ..LLAMA };
const MINISTRAL_3: Type = Type { defaults: Defaults::of([32, 8], 128, 262_144), ..MISTRAL };
const QWEN2: Type = Type { family: Family::Qwen, biases: INSIDE, ..LLAMA };
/// Each head's queries and keys are normalised.
const NORMED: Type = Type { qk_norm: QueryKeyNorm::Head, has_qk_norm: true, ..LLAMA };
const QWEN3: Type = Type { family: Family::Qwen, ..NORMED };
const QWEN3_VL: Type = Type { defaults: Defaults::of([32, 32], 128, 128_000), ..QWEN3 };
const QWEN3_NEXT: Type = Type { family: Family::Qwen3Next, output_gate: true, ..NORMED };
const GEMMA3: Type = Type {
    style: GATED_GELU,
    family: Family::Gemma3,
    tied: true,
    norms: Norms::Around,
    defaults: Defaults::of([8, 4], 256, 131_072),
    ..NORMED
};
const COHERE: Type = Type { style: LAYER_NORMS, norms: Norms::Shared, qk_norm: QueryKeyNorm::Head, ..TIED };
/// All heads of queries are normalised together, and all of keys.
const OLMO2: Type = Type { qk_norm: QueryKeyNorm::Whole, has_qk_norm: true, ..LLAMA };
const LLAMA4: Type = Type { family: Family::Llama4, ..LLAMA };
const GLM4_MOE: Type =
    Type { biases: Biases { default: false, of_output: false }, qk_norm: QueryKeyNorm::Head, balanced: true, ..LLAMA };
const DEEPSEEK_V4: Type = Type { family: Family::DeepseekV4, balanced: true, ..LLAMA };
const LATENT: Type = Type { family: Family::Latent, balanced: true, ..LLAMA };
const GEMMA4: Type = Type { family: Family::Gemma4, ..GEMMA3 };
const GEMMA4_UNIFIED: Type = Type {
    family: Family::Gemma4Unified,
    defaults: Defaults { positions: None, ..Defaults::of([8, 4], 256, 0) },
    ..GEMMA4
};
const GEMMA3N: Type = Type { family: Family::Gemma3n, defaults: Defaults::of([8, 2], 256, 32_768), ..GEMMA4 };
const MINIMAX_M3: Type = Type { family: Family::MiniMaxM3, balanced: true, ..NORMED };
const QWEN4: Type = Type { family: Family::Qwen4, output_gate: true, ..NORMED };
const GLM5_NEXT: Type = Type { family: Family::Glm5Next, n_dense: 3, ..LATENT };
const STEP: Type = Type { family: Family::Step, n_dense: 3, balanced: true, ..NORMED };
const STEP_3: Type = Type { family: Family::Step3, n_dense: 1, ..LLAMA };
const LFM2: Type = Type { family: Family::Lfm2, tied: true, ..NORMED };
const BAILING: Type = Type { biases: Biases { default: false, of_output: false }, ..LLAMA };
const SPARSE_LATENT: Type = Type { family: Family::SparseLatent, ..LATENT };

/// Supported values of `model_type`.
pub(super) const TYPES: [(&str, Type); 121] = [
    (
        "afmoe",
        Type { family: Family::Olmo3, norms: Norms::Around, output_gate: true, n_dense: 1, balanced: true, ..NORMED },
    ),
    ("apertus", Type { style: Style { activation: Some(Activation::Other), ..Style::PLAIN }, gated: false, ..NORMED }),
    // Snowflake Arctic: a feed-forward for every token beside the experts.
    ("arctic", Type { family: Family::Arctic, ..LLAMA }),
    ("arcee", Type { style: SQUARED_RELU, gated: false, ..LLAMA }),
    // Ling and Ring (`modeling_bailing_moe_v2.py` of NVIDIA-NeMo/Megatron-Bridge @ 067f987df03b); the first ones norm neither queries nor keys, and have no
    // bias that balances experts.
    ("bailing_moe", BAILING),
    ("bailing_moe_v2", Type { qk_norm: QueryKeyNorm::Head, has_qk_norm: true, n_dense: 1, balanced: true, ..BAILING }),
    ("bamba", Type { family: Family::Bamba, ..LLAMA }),
    // Positions as biases of attention (ALiBi) cost what rotary ones do.
    (
        "bloom",
        Type { style: LAYER_NORMS, family: Family::Bloom, biases: EVERYWHERE, joined: Joined::QUERIES, ..UNGATED },
    ),
    ("cohere", COHERE),
    ("cohere2", Type { family: Family::Cohere2, ..COHERE }),
    ("cohere2_moe", Type { family: Family::Cohere2, ..COHERE }),
    ("deepseek_v2", Type { balanced: false, ..LATENT }),
    ("deepseek_v3", LATENT),
    // DeepSeek-V4 where SGLang's authors published it in 8 bits.
    ("deepseek_ref", DEEPSEEK_V4),
    ("deepseek_v32", SPARSE_LATENT),
    ("deepseek_v4", DEEPSEEK_V4),
    ("dots1", Type { balanced: true, ..QWEN3 }),
    ("ernie4_5", TIED),
    ("ernie4_5_moe", Type { n_dense: 1, balanced: true, ..TIED }),
    ("exaone4", Type { family: Family::Olmo3, ..NORMED }),
    ("exaone_moe", Type { family: Family::Olmo3, n_dense: 1, balanced: true, ..NORMED }),
    // One norm in front of attention and feed-forward, which run beside each other.
    (
        "falcon",
        Type { style: LAYER_NORMS, family: Family::Falcon, norms: Norms::Shared, joined: Joined::QUERIES, ..UNGATED },
    ),
    ("falcon_h1", Type { family: Family::FalconH1, ..LLAMA }),
    ("gemma", Type { style: GATED_GELU, defaults: Defaults::of([16, 16], 256, 8192), ..TIED }),
    (
        "gemma2",
        Type {
            style: GATED_GELU,
            family: Family::Gemma2,
            norms: Norms::Around,
            defaults: Defaults::of([8, 4], 256, 8192),
            ..TIED
        },
    ),
    ("gemma3", GEMMA3),
    ("gemma3_text", GEMMA3),
    ("gemma3n", GEMMA3N),
    ("gemma3n_text", GEMMA3N),
    ("gemma4", GEMMA4),
    ("gemma4_text", GEMMA4),
    ("gemma4_unified", GEMMA4_UNIFIED),
    ("gemma4_unified_text", GEMMA4_UNIFIED),
    ("glm", Type { biases: INSIDE, joined: Joined::FACTORS, ..LLAMA }),
    ("glm4", Type { biases: INSIDE, norms: Norms::Around, joined: Joined::FACTORS, ..LLAMA }),
    ("glm4_moe", GLM4_MOE),
    ("glm4_moe_lite", LATENT),
    ("glm5_next", GLM5_NEXT),
    ("glm5_next_text", GLM5_NEXT),
    ("glm_moe_dsa", SPARSE_LATENT),
    ("gpt2", GPT),
    (
        "gpt_neox",
        Type {
            style: Style { parallel: true, ..LAYER_NORMS },
            gated: false,
            biases: EVERYWHERE,
            joined: Joined::QUERIES,
            ..LLAMA
        },
    ),
    ("gpt_oss", Type { family: Family::GptOss, biases: EVERYWHERE, ..LLAMA }),
    ("granite", LLAMA),
    ("granitemoe", LLAMA),
    ("granitemoehybrid", Type { family: Family::Granite, ..LLAMA }),
    ("granitemoeshared", LLAMA),
    ("hunyuan_v1_dense", NORMED),
    ("hunyuan_v1_moe", Type { family: Family::Hunyuan, ..NORMED }),
    ("hy_v3", Type { n_dense: 1, balanced: true, ..NORMED }),
    ("jamba", Type { family: Family::Jamba, ..LLAMA }),
    ("kimi_k2", LATENT),
    ("kimi_k25", LATENT),
    ("kimi_linear", Type { family: Family::KimiLinear, n_dense: 1, balanced: true, ..LLAMA }),
    ("lfm2", LFM2),
    ("lfm2_moe", Type { balanced: true, ..LFM2 }),
    ("llama", LLAMA),
    ("llama4", LLAMA4),
    ("llama4_text", LLAMA4),
    ("longcat_flash", Type { family: Family::Longcat, n_predicting: 1, ..LATENT }),
    // No type of Hugging Face: what flags of Megatron-LM state (`stacks`).
    (
        "megatron",
        Type {
            family: Family::Megatron,
            biases: Biases { default: false, of_output: false },
            qk_norm: QueryKeyNorm::Head,
            ..LLAMA
        },
    ),
    // Qwen2's layers, and one that predicts a token more.
    ("mimo", QWEN2),
    (
        "mimo_v2_flash",
        Type {
            family: Family::MimoV2,
            biases: Biases { default: false, of_output: false },
            n_dense: 1,
            balanced: true,
            // `mtp.layers.{0,1,2}` of the checkpoint, whose config.json has no key for them.
            n_predicting: 3,
            ..LLAMA
        },
    ),
    ("minimax", Type { family: Family::Lightning, ..LLAMA }),
    // MiniMax-M1's own file; `minimax` is that of its conversion for huggingface/transformers.
    ("minimax_m1", Type { family: Family::Lightning, ..LLAMA }),
    (
        "minimax_m2",
        Type { family: Family::MiniMax, qk_norm: QueryKeyNorm::Whole, has_qk_norm: true, balanced: true, ..LLAMA },
    ),
    ("minimax_m3", MINIMAX_M3),
    ("minimax_m3_vl", MINIMAX_M3),
    ("minimax_m3_vl_text", MINIMAX_M3),
    ("ministral", Type { defaults: Defaults::NONE, ..MISTRAL }),
    ("ministral3", MINISTRAL_3),
    ("mistral", MISTRAL),
    ("mistral3", MISTRAL),
    ("mistral4", Type { balanced: false, ..LATENT }),
    ("mixtral", MISTRAL),
    // Positions as biases of attention (ALiBi) cost what rotary ones do.
    (
        "mpt",
        Type {
            style: LAYER_NORMS,
            family: Family::Mpt,
            tied: true,
            gated: false,
            qk_norm: QueryKeyNorm::Whole,
            joined: Joined::QUERIES,
            ..LLAMA
        },
    ),
    ("nemotron", Type { style: Style { norm: Norm::LayerAroundOne, ..SQUARED_RELU }, gated: false, ..LLAMA }),
    ("nemotron-nas", Type { family: Family::Searched, ..LLAMA }),
    ("nemotron_h", Type { style: SQUARED_RELU, family: Family::NemotronH, gated: false, balanced: true, ..LLAMA }),
    ("olmo", Type { style: Style { norm: Norm::LayerWithoutWeights, ..Style::PLAIN }, ..LLAMA }),
    ("olmo2", OLMO2),
    ("olmo3", Type { family: Family::Olmo3, ..OLMO2 }),
    ("olmoe", OLMO2),
    ("opt", Type { style: Style { activation: Some(Activation::Relu), ..LAYER_NORMS }, joined: Joined::NONE, ..GPT }),
    (
        "phi",
        Type {
            style: LAYER_NORMS,
            gated: false,
            biases: EVERYWHERE,
            norms: Norms::Shared,
            qk_norm: QueryKeyNorm::Head,
            ..LLAMA
        },
    ),
    ("phi3", Type { family: Family::Phi3, joined: Joined::BOTH, ..LLAMA }),
    ("phimoe", Type { style: LAYER_NORMS, family: Family::Phi3, ..LLAMA }),
    ("qwen", Type { family: Family::FirstQwen, joined: Joined::QUERIES, ..QWEN2 }),
    ("qwen2", QWEN2),
    ("qwen2_5_vl", QWEN2),
    ("qwen2_5_vl_text", QWEN2),
    ("qwen2_moe", QWEN2),
    ("qwen2_vl", QWEN2),
    ("qwen2_vl_text", QWEN2),
    ("qwen3", Type { defaults: Defaults::of([32, 32], 128, 32_768), ..QWEN3 }),
    ("qwen3_5", QWEN3_NEXT),
    ("qwen3_5_moe", QWEN3_NEXT),
    ("qwen3_5_moe_text", QWEN3_NEXT),
    ("qwen3_5_text", QWEN3_NEXT),
    ("qwen3_moe", QWEN3),
    ("qwen3_next", Type { n_predicting: 1, ..QWEN3_NEXT }),
    ("qwen3_omni_moe", QWEN3),
    ("qwen3_omni_moe_text", QWEN3),
    ("qwen3_vl", QWEN3_VL),
    ("qwen3_vl_moe", QWEN3),
    ("qwen3_vl_moe_text", QWEN3),
    ("qwen3_vl_text", QWEN3_VL),
    ("qwen4_exp", QWEN4),
    ("qwen4_exp_text", QWEN4),
    ("sarvam_mla", Type { n_dense: 1, ..LATENT }),
    ("sarvam_moe", Type { biases: Biases { default: false, of_output: false }, n_dense: 1, balanced: true, ..NORMED }),
    ("seed_oss", Type { biases: INSIDE, ..LLAMA }),
    ("smollm3", Type { family: Family::Qwen, ..TIED }),
    ("solar_open", Type { balanced: true, ..LLAMA }),
    (
        "stablelm",
        Type {
            style: LAYER_NORMS,
            biases: Biases { default: false, of_output: false },
            qk_norm: QueryKeyNorm::Head,
            ..LLAMA
        },
    ),
    ("starcoder2", Type { style: LAYER_NORMS, family: Family::Mistral, gated: false, biases: EVERYWHERE, ..TIED }),
    // Step-3: heads that share one of keys and values, and a vector that their queries are made of (vllm-project/vllm, `step3_vl.py`, `step3_text.py`).
    ("step3_text", STEP_3),
    ("step3_vl", STEP_3),
    // The text of Step 3.7 has the type of Step 3.5.
    ("step3p5", STEP),
    ("step3p7", STEP),
    // The text of a model that listens has Llama's type where a file does not say so.
    ("voxtral", LLAMA),
];
