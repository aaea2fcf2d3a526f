//! In which formats the parts of a published checkpoint are, by its path on a hub.

use hw::{Dtype, Format};

use super::Model;
use crate::formats::Formats;

/// Formats of the parts of a checkpoint: projections in front of attention, the one behind it, dense feed-forward and shared experts, routed experts.
type Parts = [Format; 4];

/// Checkpoints whose parts differ, by parts of the path with `*` between them and the width that is published; the first that fits holds. All others
/// have one format throughout. What `quantization_config` or `hf_quant_config.json` of each leaves out is in 16 bits.
const MIXED: [(&str, &str, Parts, &str); 28] = [
    (
        "gpt-oss",
        "fp4",
        [Format::Bf16, Format::Bf16, Format::Bf16, Format::Mxfp4],
        "openai/gpt-oss-120b: experts alone are MXFP4",
    ),
    (
        "kimi-k2",
        "int4",
        [Format::Bf16, Format::Bf16, Format::Bf16, Format::Int4By32],
        "moonshotai/Kimi-K2-Thinking and -K2.5: routed experts alone are int4, `group_size` 32, `symmetric`",
    ),
    ("kimi-k2.5", "fp4", WITHOUT_ATTENTION, "nvidia/Kimi-K2.5-NVFP4: attention is not quantised"),
    (
        "kimi-k2",
        "fp4",
        EXPERTS_ALONE,
        "nvidia/Kimi-K2.6-NVFP4 and -K2.7-Code-NVFP4: neither attention nor shared experts",
    ),
    ("kimi-k2", "fp8", BLOCKS, "moonshotai/Kimi-K2-Instruct"),
    (
        "deepseek-v4*nvfp4",
        "fp4",
        [Format::Fp8Block, Format::Fp8Block, Format::Fp8Block, Format::Nvfp4],
        "nvidia/DeepSeek-V4-Pro-NVFP4",
    ),
    ("deepseek-v4*-fp8", "fp8", BLOCKS, "sgl-project/DeepSeek-V4-Pro-FP8"),
    ("deepseek-v4", "fp4", V4, "deepseek-ai/DeepSeek-V4-Pro"),
    ("deepseek-v4", "fp8", V4, "deepseek-ai/DeepSeek-V4-Pro, also where InferenceX calls it fp8"),
    (
        "deepseek*fp4-v2",
        "fp4",
        WITH_OUTPUT,
        "nvidia/DeepSeek-R1-0528-FP4-v2 (\"additionally quantizes the wo module in attention layers\")",
    ),
    ("deepseek-r1*fp4", "fp4", WITHOUT_ATTENTION, "nvidia/DeepSeek-R1-0528-FP4, without what its second one adds"),
    ("deepseek", "fp4", WITH_OUTPUT, "nvidia/DeepSeek-V3.1-NVFP4, and the published runs of DeepSeek-R1"),
    ("deepseek", "fp8", BLOCKS, "deepseek-ai/DeepSeek-R1"),
    ("qwen3.5-27b", "fp4", BESIDE_8_BITS, "nvidia/Qwen3.6-27B-NVFP4, whose shape and layers it has"),
    (
        "qwen3.6-27b",
        "fp4",
        BESIDE_8_BITS,
        "nvidia/Qwen3.6-27B-NVFP4: `MIXED_PRECISION`, feed-forwards alone in NVFP4 (its hf_quant_config.json as noonghunna/club-3090 #603 tells it)",
    ),
    (
        "qwen3.6-35b-a3b",
        "fp4",
        BESIDE_8_BITS,
        "nvidia/Qwen3.6-35B-A3B-NVFP4: the same of its experts (noonghunna/club-3090 #607)",
    ),
    (
        "qwen3.5",
        "fp4",
        EXPERTS_ALONE,
        "nvidia/Qwen3.5-397B-A17B-NVFP4: neither attention, delta nets nor shared experts",
    ),
    ("qwen3.", "fp8", BLOCKS, "Qwen/Qwen3.5-397B-A17B-FP8"),
    ("qwen/*-fp8", "fp8", BLOCKS, "Qwen/Qwen3-235B-A22B-FP8"),
    ("glm-5.", "fp4", EXPERTS_ALONE, "nvidia/GLM-5.1-NVFP4 and -5.2-NVFP4: neither attention nor shared experts"),
    ("glm-5", "fp4", WITHOUT_ATTENTION, "nvidia/GLM-5-NVFP4: attention and its index are not quantised"),
    ("glm-5", "fp8", BLOCKS, "zai-org/GLM-5-FP8"),
    (
        "minimax-m2",
        "fp4",
        EXPERTS_ALONE,
        "nvidia/MiniMax-M2.5-NVFP4: attention is not quantised, and nothing else but experts is there",
    ),
    ("minimax-m2", "fp8", BLOCKS, "MiniMaxAI/MiniMax-M2.5"),
    ("mimo-v2", "fp8", BLOCKS, "XiaomiMiMo/MiMo-V2-Flash"),
    ("step-3", "fp8", BLOCKS, "stepfun-ai/Step-3.7-Flash-FP8"),
    ("mistral-large-3", "fp8", BLOCKS, "mistralai/Mistral-Large-3-675B-Instruct-2512"),
    (
        "meta-llama/*405b*-fp8",
        "fp8",
        [Format::Bf16, Format::Bf16, Format::Fp8, Format::Fp8],
        "arXiv:2407.21783, section 6.2: attention is not quantised",
    ),
];

/// Checkpoints that say 8 bits for keys and values (`kv_cache_quant_algo` of `hf_quant_config.json`), which engines follow where nothing else is asked
/// for: parts of the path, width of the weights, and where that stands.
const KEPT_IN_8_BITS: [(&str, &str, &str); 12] = [
    ("nvidia/*llama-3.1-8b", "fp4", ACCURACY),
    ("nvidia/*llama-3.1-8b", "fp8", ACCURACY),
    ("nvidia/*llama-3.3-70b", "fp4", ACCURACY),
    (
        "nvidia/*llama-3.3-70b",
        "fp8",
        "published throughput of NIM on two H100 with 5,000 and 500 tokens: 917 tok/s with 100 requests in flight need room for as many",
    ),
    ("nvidia/*llama-4-scout", "fp4", ACCURACY),
    ("nvidia/qwen3-32b", "fp4", CONFIGURATIONS),
    ("nvidia/qwen3.6-27b", "fp4", "scales of keys and values stand in the checkpoint (noonghunna/club-3090 #603)"),
    ("nvidia/qwen3-30b-a3b", "fp4", CONFIGURATIONS),
    ("nvidia/qwen3-30b-a3b", "fp8", ACCURACY),
    ("nvidia/qwen3-235b-a22b", "fp4", ACCURACY),
    ("nvidia/qwen3-235b-a22b", "fp8", ACCURACY),
    (
        "nvidia/*nemotron-3-nano-30b",
        "fp",
        "hf_quant_config.json of its NVFP4 as tests of readers have it; vllm-project/vllm #50019 for FP8",
    ),
];

/// Rows with `kv_cache_quant_algo: FP8` of checkpoints that the tests read ready-made.
const ACCURACY: &str = "NVIDIA/TensorRT-LLM @ 000a01de66f0, tests/integration/defs/accuracy/references/mmlu.yaml";

/// Copies of these files.
const CONFIGURATIONS: &str =
    "ai-dynamo/aiconfigurator, src/aiconfigurator/model_configs/nvidia--Qwen3-{32B,30B-A3B}-NVFP4_hf_quant_config.json";

/// Blocks of 128 by 128.
const BLOCKS: Parts = [Format::Fp8Block; 4];
/// DeepSeek-V4: `expert_dtype` of its config.json is fp4, with a scale per 32 numbers.
const V4: Parts = [Format::Fp8Block, Format::Fp8Block, Format::Fp8Block, Format::Mxfp4];
const WITHOUT_ATTENTION: Parts = [Format::Bf16, Format::Bf16, Format::Nvfp4, Format::Nvfp4];
const WITH_OUTPUT: Parts = [Format::Bf16, Format::Nvfp4, Format::Nvfp4, Format::Nvfp4];
/// Attention and delta nets with one scale per tensor in 8 bits.
const BESIDE_8_BITS: Parts = [Format::Fp8, Format::Fp8, Format::Nvfp4, Format::Nvfp4];
const EXPERTS_ALONE: Parts = [Format::Bf16, Format::Bf16, Format::Bf16, Format::Nvfp4];

/// What a part of a name says of the width of its weights, and the format where all parts have one; the first that is there counts.
const SAID: [(&str, &str, Format); 14] = [
    ("nvfp4", "fp4", Format::Nvfp4),
    ("mxfp4", "fp4", Format::Mxfp4),
    ("-fp4", "fp4", Format::Nvfp4),
    ("fp8-block", "fp8", Format::Fp8Block),
    ("-fp8", "fp8", Format::Fp8),
    ("_fp8", "fp8", Format::Fp8),
    ("w8a16", "int8", Format::Int8Weights),
    ("w8a8", "int8", Format::Int8),
    ("gptq-int8", "int8", Format::Int8Weights),
    ("w4a16", "int4", Format::Int4),
    ("awq", "int4", Format::Int4),
    ("gptq", "int4", Format::Int4),
    ("-int4", "int4", Format::Int4),
    ("-int8", "int8", Format::Int8),
];

/// Checkpoints that are published narrow without a word of it in their names: beginning of the path, and width. Their cards on the hub,
/// `quantization_config` of `config.json`.
const NARROW: [(&str, &str); 10] = [
    ("deepseek-ai/deepseek-v3", "fp8"),
    ("deepseek-ai/deepseek-r1", "fp8"),
    ("deepseek-ai/deepseek-v4", "fp4"),
    ("xiaomimimo/mimo-v2-flash", "fp8"),
    ("openai/gpt-oss", "fp4"),
    ("moonshotai/kimi-k2-thinking", "int4"),
    ("moonshotai/kimi-k2.", "int4"),
    ("moonshotai/kimi-k2", "fp8"),
    ("minimaxai/minimax-m2", "fp8"),
    ("mistralai/mistral-large-3-675b", "fp8"),
];

/// Models of the catalogue that nobody publishes in 16 bits, with the paths of their checkpoints.
const ALWAYS_NARROW: [(&str, &str); 12] = [
    ("deepseek-v3", "deepseek-ai/DeepSeek-V3"),
    ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
    ("deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2"),
    ("deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash"),
    ("deepseek-v4-pro", "deepseek-ai/DeepSeek-V4-Pro"),
    ("kimi-k2", "moonshotai/Kimi-K2-Instruct"),
    ("kimi-k2.5", "moonshotai/Kimi-K2.5"),
    ("gpt-oss-20b", "openai/gpt-oss-20b"),
    ("gpt-oss-120b", "openai/gpt-oss-120b"),
    ("mimo-v2-flash", "XiaomiMiMo/MiMo-V2-Flash"),
    ("minimax-m2", "MiniMaxAI/MiniMax-M2"),
    ("minimax-m2.5", "MiniMaxAI/MiniMax-M2.5"),
];

/// A dense model that was taught by another one has the other one's name in its own, and none of its formats: distillations, and DeepSeek-R1-0528-Qwen3-8B.
const TAUGHT: [&str; 2] = ["distill", "-qwen3-8b"];

/// The last part of a path, which names the model.
pub fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// Formats of the parts of a checkpoint, as far as its path says them; all in 16 bits where it says nothing.
pub fn of_path(path: &str) -> Formats {
    let path = path.to_lowercase();
    let of_16_bits = Formats::of(Dtype::Bf16);
    let name = last_part(&path);
    if name.contains("bf16") {
        return of_16_bits;
    }
    let is_taught = path.contains("deepseek") && TAUGHT.iter().any(|part| path.contains(part));
    let said = SAID.iter().find(|(part, ..)| name.contains(part));
    let is_of_release = |start: &str| path.starts_with(start) || is_folder(&path) && name.starts_with(last_part(start));
    let narrow = NARROW.iter().find(|(start, _)| is_of_release(start) && !is_taught);
    let width = said.map(|(_, width, _)| *width).or_else(|| narrow.map(|(_, width)| *width));
    let mixed = width.filter(|_| !is_taught).and_then(|width| of_width(&path, width));
    let whole = said.map(|(_, _, format)| Formats::weights(*format, Dtype::Bf16));
    let kept_in_8_bits = width.is_some_and(|width| keeps_8_bits(&path, width));
    let found = mixed.or(whole).unwrap_or(of_16_bits);
    if kept_in_8_bits { Formats { kv: Dtype::Fp8, ..found } } else { found }
}

/// Whether a path is one of a folder, and no name on a hub, which has one slash: `/models/DeepSeek-R1`. A copy that was widened says so in its name.
fn is_folder(path: &str) -> bool {
    path.starts_with(['/', '.', '~', '$']) || path.trim_end_matches('/').matches('/').count() > 1
}

/// Whether a checkpoint with weights of such a width says that keys and values have 8 bits.
fn keeps_8_bits(path: &str, width: &str) -> bool {
    KEPT_IN_8_BITS.iter().any(|(pattern, of, _)| width.starts_with(of) && is_of(pattern, path))
}

/// Whether all parts of a pattern are in a path.
fn is_of(pattern: &str, path: &str) -> bool {
    pattern.split('*').all(|part| path.contains(part))
}

/// Formats of the parts of a checkpoint that is published in such a width (`fp8`, `fp4`, `int4`), where they differ or need a scale per block; keys and
/// values in 16 bits.
pub fn of_width(path: &str, width: &str) -> Option<Formats> {
    let path = path.to_lowercase();
    let (.., [attention, behind, dense, experts], _) =
        *MIXED.iter().find(|(pattern, published, ..)| *published == width && is_of(pattern, &path))?;
    let output = Some(behind).filter(|behind| *behind != attention);
    Some(Formats { attention, output, dense, experts, ..Formats::of(Dtype::Bf16) })
}

/// Path of the published checkpoint of a model of the catalogue, where none has 16 bits.
pub fn narrow_checkpoint(model: &str) -> Option<&'static str> {
    ALWAYS_NARROW.iter().find(|(name, _)| *name == model).map(|(_, path)| *path)
}

/// In which formats a model's parts are, for people.
pub fn words(model: &Model) -> String {
    let of = model.formats;
    let [attention, output, dense, experts] = [of.attention, of.behind(), of.dense, of.experts].map(Format::word);
    let shape = format!("shape of `{}`", model.name);
    if of == Formats::of(Dtype::Bf16) {
        let narrow = narrow_checkpoint(&model.name);
        let published =
            narrow.map_or_else(String::new, |path| format!("; the published checkpoint `{path}` has fewer"));
        return format!("{shape}, weights in 16 bits{published}");
    }
    let experts = if model.experts.is_some() { format!(", routed experts {experts}") } else { String::new() };
    let kv = if of.kv == Dtype::Bf16 { "16 bits".to_owned() } else { Format::from(of.kv).word().to_owned() };
    format!(
        "{shape}, weights: attention {attention}, the product behind it {output}, feed-forwards {dense}{experts}; keys and values: {kv}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::stage_weight_bytes;
    use crate::model::{embedded, of_checkpoint};
    use crate::shard::Shard;
    use crate::stage::Stage;
    use Format::{Bf16, Fp8, Fp8Block, Int4, Int4By32, Int8, Int8Weights, Mxfp4, Nvfp4};

    /// Formats of attention, what lies behind it, dense feed-forwards and routed experts.
    fn parts(formats: Formats) -> Parts {
        [formats.attention, formats.behind(), formats.dense, formats.experts]
    }

    #[test]
    fn paths_say_the_formats_of_their_parts() {
        for (path, expected) in [
            ("deepseek-ai/DeepSeek-R1", [Fp8Block; 4]),
            ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", [Bf16; 4]),
            ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", [Bf16; 4]),
            ("deepseek-ai/DeepSeek-V4-Flash", [Fp8Block, Fp8Block, Fp8Block, Mxfp4]),
            ("sgl-project/DeepSeek-V4-Pro-FP8", [Fp8Block; 4]),
            ("openai/gpt-oss-120b", [Bf16, Bf16, Bf16, Mxfp4]),
            ("nvidia/DeepSeek-R1-0528-FP4", [Bf16, Bf16, Nvfp4, Nvfp4]),
            ("nvidia/DeepSeek-R1-0528-NVFP4-v2", [Bf16, Nvfp4, Nvfp4, Nvfp4]),
            ("nvidia/DeepSeek-V3.1-NVFP4", [Bf16, Nvfp4, Nvfp4, Nvfp4]),
            ("nvidia/Llama-3.3-70B-Instruct-FP4", [Nvfp4; 4]),
            ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", [Int8; 4]),
            ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a16", [Int8Weights; 4]),
            ("Qwen/Qwen3-32B-AWQ", [Int4; 4]),
            ("Qwen/Qwen3-32B-FP8", [Fp8Block; 4]),
            ("RedHatAI/Qwen3-32B-FP8-dynamic", [Fp8; 4]),
            ("moonshotai/Kimi-K2-Instruct-0905", [Fp8Block; 4]),
            ("moonshotai/Kimi-K2-Thinking", [Bf16, Bf16, Bf16, Int4By32]),
            ("moonshotai/Kimi-K2.5/", [Bf16, Bf16, Bf16, Int4By32]),
            ("meta-llama/Llama-3.1-405B-Instruct-FP8", [Bf16, Bf16, Fp8, Fp8]),
            ("meta-llama/Llama-3.3-70B-Instruct", [Bf16; 4]),
            ("mistralai/Mistral-Large-3-675B-Instruct-2512", [Fp8Block; 4]),
            ("mistralai/Mistral-Large-3-675B-Instruct-2512-BF16", [Bf16; 4]),
            ("unsloth/DeepSeek-V3-bf16", [Bf16; 4]),
            // A folder has the release that its name says.
            ("/models/DeepSeek-R1", [Fp8Block; 4]),
            ("/mnt/models/deepseek-ai/DeepSeek-V3-0324/", [Fp8Block; 4]),
            ("/models/gpt-oss-120b", [Bf16, Bf16, Bf16, Mxfp4]),
            ("/models/DeepSeek-R1-BF16", [Bf16; 4]),
            ("/models/DeepSeek-R1-Distill-Qwen-32B", [Bf16; 4]),
            ("somebody/DeepSeek-R1", [Bf16; 4]),
            ("nvidia/Qwen3.5-397B-A17B-NVFP4", [Bf16, Bf16, Bf16, Nvfp4]),
            ("RedHatAI/Qwen3.5-27B-NVFP4", [Fp8, Fp8, Nvfp4, Nvfp4]),
            // A model of the catalogue by its own name says nothing.
            ("deepseek-v3", [Bf16; 4]),
        ] {
            assert_eq!(parts(of_path(path)), expected, "{path}");
            assert!(of_checkpoint(path).is_some(), "{path}");
        }
    }

    /// What is published of two checkpoints, and what vLLM says that builds of Qwen3.8-27B take of each of two GPUs, 10.6 to 12.0 GiB
    /// (vllm-project/recipes #810): within a tenth. Files also hold an encoder of images and a layer that predicts, in 16 bits.
    #[test]
    fn narrow_checkpoints_are_as_large_as_published() {
        let bytes = |path: &str, tensor: u32| {
            let model = of_checkpoint(path).expect(path);
            let n_layers = model.n_layers as u32;
            let is_dense = model.experts.is_none();
            let (n_dense, n_expert) = if is_dense { (n_layers, 0) } else { (0, n_layers) };
            let stage = Stage { n_dense, n_expert, first: true, last: true, ..Stage::NONE };
            let shard = Shard { formats: model.formats, ..Shard::forward(&model, Dtype::Bf16, tensor) };
            stage_weight_bytes(&shard, &stage)
        };
        for (path, published) in [("nvidia/Qwen3.6-27B-NVFP4", 21.9e9), ("nvidia/Qwen3.6-35B-A3B-NVFP4", 23.4e9)] {
            let whole = bytes(path, 1);
            assert!((whole / published - 1.0).abs() < 0.1, "{path}: {whole}");
        }
        for path in ["nvidia/Qwen3.5-27B-NVFP4", "RedHatAI/Qwen3.5-27B-NVFP4"] {
            let gib = bytes(path, 2) / hw::GIB;
            assert!((0.9 * 10.6..1.1 * 12.0).contains(&gib), "{path}: {gib}");
        }
    }

    #[test]
    fn keys_and_values_have_8_bits_where_a_checkpoint_says_so() {
        for (path, expected) in [
            ("nvidia/Llama-3.3-70B-Instruct-FP8", Dtype::Fp8),
            ("nvidia/Llama-3.3-70B-Instruct-NVFP4", Dtype::Fp8),
            ("nvidia/Llama-3.1-8B-Instruct-FP4", Dtype::Fp8),
            ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", Dtype::Fp8),
            ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", Dtype::Bf16),
            ("nvidia/Qwen3-235B-A22B-NVFP4", Dtype::Fp8),
            ("nvidia/Qwen3-32B-NVFP4", Dtype::Fp8),
            ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", Dtype::Bf16),
            ("Qwen/Qwen3-235B-A22B-FP8", Dtype::Bf16),
            ("nvidia/DeepSeek-V3.1-NVFP4", Dtype::Bf16),
        ] {
            let model = of_checkpoint(path).expect(path);
            assert_eq!(model.formats.kv, expected, "{path}");
            let bits = if expected == Dtype::Fp8 { "fp8" } else { "16 bits" };
            let is_narrow = parts(model.formats) != [Bf16; 4];
            assert!(!is_narrow || words(&model).ends_with(&format!("keys and values: {bits}")), "{}", words(&model));
        }
        // Tables of runs say their own.
        assert!(of_width("nvidia/Llama-3.3-70B-Instruct-FP8", "fp8").is_none());
    }

    #[test]
    fn a_width_from_elsewhere_has_the_parts_of_the_checkpoint() {
        for (path, width, expected) in [
            ("deepseek-ai/DeepSeek-R1", "fp4", Some([Bf16, Nvfp4, Nvfp4, Nvfp4])),
            ("zhipuai/GLM-5", "fp4", Some([Bf16, Bf16, Nvfp4, Nvfp4])),
            ("zai-org/GLM-5.1", "fp4", Some([Bf16, Bf16, Bf16, Nvfp4])),
            ("Qwen/Qwen3.5-397B-A17B", "fp4", Some([Bf16, Bf16, Bf16, Nvfp4])),
            ("meta-llama/Llama-3.1-70B", "fp4", None),
        ] {
            assert_eq!(of_width(path, width).map(parts), expected, "{path}");
        }
    }

    #[test]
    fn models_without_16_bits_have_a_checkpoint_of_their_shape() {
        for (name, path) in ALWAYS_NARROW {
            let (own, found) = (embedded(name).expect(name), of_checkpoint(path).expect(path));
            assert_eq!(own.n_parameters(), found.n_parameters(), "{name}");
            assert_ne!(of_path(path), Formats::of(Dtype::Bf16), "{path}");
        }
    }
}
