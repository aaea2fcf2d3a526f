//! Models by the path of a checkpoint, its name on a hub, or the name of a recipe.

use super::{Model, checkpoint_formats, embedded, embedded_names};

/// Releases that have the shape of another model of the catalogue.
const ALIKE: [(&str, &str); 59] = [
    ("llama-3-405b", "llama-3.1-405b"),
    ("llama-3.3-70b", "llama-3.1-70b"),
    ("llama-4-maverick-17b-128e", "llama-4-maverick"),
    ("nemotron-3.5-lightning-30b-a3b", "nemotron-3-nano-30b-a3b"),
    ("deepseek-r1-distill-llama-8b", "llama-3.1-8b"),
    ("deepseek-r1-distill-llama-70b", "llama-3.1-70b"),
    ("deepseek-r1-distill-qwen-7b", "qwen2.5-7b"),
    ("deepseek-r1-distill-qwen-14b", "qwen2.5-14b"),
    ("deepseek-r1-distill-qwen-32b", "qwen2.5-32b"),
    ("deepseek-r1-0528-qwen3-8b", "qwen3-8b"),
    ("deepseek-v3.1", "deepseek-v3"),
    ("devstral-small", "mistral-small-24b"),
    ("kimi-k2.6", "kimi-k2.5"),
    ("kimi-k2.7", "kimi-k2.5"),
    ("kimi-k2.7-code", "kimi-k2.5"),
    ("glm-4.6", "glm-4.5"),
    ("glm-4.7", "glm-4.5"),
    ("glm-5.1", "glm-5"),
    ("minimax-m2.1", "minimax-m2.5"),
    ("minimax-m2.7", "minimax-m2.5"),
    ("mistral-nemo", "mistral-nemo-12b"),
    ("mimo-7b-rl", "mimo-7b"),
    ("qwen2-0.5b", "qwen2.5-0.5b"),
    ("qwen2-1.5b", "qwen2.5-1.5b"),
    ("qwen2-7b", "qwen2.5-7b"),
    ("qwen2-72b", "qwen2.5-72b"),
    ("qwen2.5-math-1.5b", "qwen2.5-1.5b"),
    ("qwen2.5-math-7b", "qwen2.5-7b"),
    ("qwen2.5-7b-instruct-1m", "qwen2.5-7b"),
    ("qwen2.5-coder-3b", "qwen2.5-3b"),
    ("qwen2.5-coder-7b", "qwen2.5-7b"),
    ("qwen2.5-coder-14b", "qwen2.5-14b"),
    ("qwen2.5-coder-32b", "qwen2.5-32b"),
    ("qwq-32b", "qwen2.5-32b"),
    ("qwen3-coder-30b-a3b", "qwen3-30b-a3b"),
    ("qwen3-coder-next", "qwen3-next-80b-a3b"),
    ("qwen3.6-27b", "qwen3.5-27b"),
    ("qwen3.6-35b-a3b", "qwen3.5-35b-a3b"),
    ("llama-4-scout-17b-16e", "llama-4-scout"),
    ("nemotron-h-56b-base-8k", "nemotron-h-56b"),
    ("step-3.7-flash", "step-3.5-flash"),
    ("ai21-jamba-1.5-mini", "jamba-v0.1"),
    ("ai21-jamba-mini", "jamba-v0.1"),
    ("ai21-jamba-1.5-large", "jamba-1.5-large"),
    ("ai21-jamba-large", "jamba-1.5-large"),
    ("phi-4-mini-reasoning", "phi-4-mini"),
    ("phi-4-reasoning", "phi-4"),
    ("phi-4-reasoning-plus", "phi-4"),
    ("falcon-h1r-7b", "falcon-h1-7b"),
    ("lfm2.5-1.2b", "lfm2-1.2b"),
    ("dots.llm1.inst", "dots.llm1"),
    ("olmo-3-1025-7b", "olmo-3-7b"),
    ("olmo-3-1125-32b", "olmo-3-32b"),
    ("olmo-3.1-32b", "olmo-3-32b"),
    ("exaone-4.0.1-32b", "exaone-4.0-32b"),
    ("ring-mini-2.0", "ling-mini-2.0"),
    ("ring-1t", "ling-1t"),
    ("ring-lite", "ling-lite"),
    ("voxtral-small-24b", "mistral-small-24b"),
];

/// Positions of releases that have others than the model of their shape, by how their names begin: `max_position_embeddings` of their config.json, which
/// xorbitsai/inference (doc/source/models/builtin/llm) and ai-dynamo/aiconfigurator (model_configs) give; of Kimi-K2-Instruct-0905 its rotary scaling, 64 times
/// 4096 (ParagEkbote/hf-model-inspector, model_inspection_report.md).
const POSITIONS: [(&str, u64); 16] = [
    ("qwen3-4b-instruct-2507", 262_144),
    ("qwen3-4b-thinking-2507", 262_144),
    ("qwen3-30b-a3b-instruct-2507", 262_144),
    ("qwen3-30b-a3b-thinking-2507", 262_144),
    ("qwen3-235b-a22b-instruct-2507", 262_144),
    ("qwen3-235b-a22b-thinking-2507", 262_144),
    ("qwen3-coder-30b-a3b", 262_144),
    ("qwq-32b", 40_960),
    ("qwen2.5-7b-instruct-1m", 1_010_000),
    ("deepseek-r1-0528-qwen3-8b", 131_072),
    ("devstral-small", 131_072),
    ("kimi-k2-instruct-0905", 262_144),
    ("kimi-k2-thinking", 262_144),
    ("glm-4.6", 202_752),
    ("glm-4.7", 202_752),
    ("phi-4-reasoning", 32_768),
];

/// Parts of a name that say how a model was trained, packed or made narrow, and nothing of its shape.
const NO_SHAPE: [&str; 35] = [
    "awq",
    "base",
    "bf16",
    "block",
    "chat",
    "config",
    "dpo",
    "dynamic",
    "exp",
    "fp4",
    "fp8",
    "gptq",
    "hf",
    "instruct",
    "int4",
    "int8",
    "it",
    "kv",
    "mxfp4",
    "nvfp4",
    "paddle",
    "pertensor",
    "pretrain",
    "pt",
    "quantized",
    "sft",
    "static",
    "terminus",
    "think",
    "thinking",
    "turbo",
    "verl",
    "w4a16",
    "w8a16",
    "w8a8",
];

/// The model of a path, a name on a hub or a recipe, in the formats that the path says; `None` where the catalogue has none.
pub fn of_checkpoint(path: &str) -> Option<Model> {
    shape(path).map(|model| Model {
        formats: checkpoint_formats::of_path(path),
        max_positions: positions(path).unwrap_or(model.max_positions),
        ..model
    })
}

/// Positions of a release that has others than its shape.
fn positions(path: &str) -> Option<u64> {
    let name = letters(&checkpoint_formats::last_part(path).to_lowercase());
    POSITIONS.iter().find(|(release, _)| name.starts_with(&letters(release))).map(|(_, positions)| *positions)
}

/// The model of a name of `known_names`, letter by letter, or of a path with a slash.
pub fn of_name(name: &str) -> Option<Model> {
    let is_known = || known_names().contains(&name);
    if name.contains('/') || is_known() { of_checkpoint(name) } else { None }
}

/// Models of the catalogue, and releases of the same shape.
pub fn known_names() -> Vec<&'static str> {
    embedded_names().into_iter().chain(ALIKE.iter().map(|(name, _)| *name)).collect()
}

fn shape(path: &str) -> Option<Model> {
    let last = checkpoint_formats::last_part(path);
    if let Some(model) = embedded(last) {
        return Some(model);
    }
    let last = last.to_lowercase().replace("meta-", "");
    let mut name = last.strip_prefix("nvidia-").unwrap_or(&last);
    loop {
        if let Some(model) = named(name) {
            return Some(model);
        }
        let (front, part) = name.rsplit_once(['-', '_'])?;
        if !part.split('.').all(says_no_shape) {
            return None;
        }
        name = front;
    }
}

/// A model whose name has the same letters and digits, or has the shape of one that has.
fn named(name: &str) -> Option<Model> {
    let wanted = letters(name);
    let own = embedded_names().into_iter().find(|known| letters(known) == wanted);
    let alike = || ALIKE.iter().find(|(other, _)| letters(other) == wanted).map(|(_, name)| *name);
    embedded(own.or_else(alike)?)
}

/// Whether a part is no more than training, a format, a date or a version.
fn says_no_shape(part: &str) -> bool {
    let digits = part.trim_start_matches('v');
    NO_SHAPE.contains(&part) || (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> Option<String> {
        of_checkpoint(path).map(|model| model.name)
    }

    #[test]
    fn every_row_names_an_embedded_model() {
        for (alike, name) in ALIKE {
            assert_eq!(found(&format!("maker/{alike}-Instruct")).as_deref(), Some(name), "{alike}");
        }
        for name in embedded_names() {
            assert_eq!(found(name).as_deref(), Some(name));
        }
    }

    #[test]
    fn names_of_hubs_and_recipes_are_those_of_the_catalogue() {
        for (asked, name) in [
            ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
            ("llama3_8b", "llama-3-8b"),
            ("llama3_70b_pretrain_config", "llama-3-70b"),
            ("~/models/llama-3-8b/", "llama-3-8b"),
            ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
            ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-r1"),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
            ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"),
            ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
            ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama-4-maverick"),
            ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nemotron-3-ultra-550b-a55b"),
            ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "llama-3.1-70b"),
            ("moonshotai/Kimi-K2-Thinking", "kimi-k2"),
            ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b"),
            ("mistralai/Devstral-Small-2507", "mistral-small-24b"),
            ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b"),
        ] {
            assert_eq!(found(asked).as_deref(), Some(name), "{asked}");
        }
    }

    #[test]
    fn releases_have_positions_of_their_own() {
        let of = |path: &str| of_checkpoint(path).expect(path).max_positions;
        for (path, positions) in [
            ("Qwen/Qwen3-235B-A22B-Instruct-2507", 262_144),
            ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", 262_144),
            ("Qwen/Qwen3-4B-Instruct-2507", 262_144),
            ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262_144),
            ("qwen3-coder-30b-a3b", 262_144),
            ("moonshotai/Kimi-K2-Instruct-0905", 262_144),
            ("nvidia/Kimi-K2-Thinking-NVFP4", 262_144),
            ("zai-org/GLM-4.6-FP8", 202_752),
            ("glm-4.7", 202_752),
            // Releases of before.
            ("Qwen/Qwen3-30B-A3B", 40_960),
            ("Qwen/Qwen3-235B-A22B-FP8", 40_960),
            ("moonshotai/Kimi-K2-Instruct", 131_072),
            ("zai-org/GLM-4.5", 131_072),
        ] {
            assert_eq!(of(path), positions, "{path}");
        }
        for (release, positions) in POSITIONS {
            let shape = of_checkpoint(release).expect(release);
            assert_ne!(embedded(&shape.name).expect(release).max_positions, positions, "{release} needs no row");
        }
    }

    #[test]
    fn another_model_that_begins_alike_is_not_taken_for_it() {
        for other in [
            "nobody/knows-this",
            "nvidia/gpt-oss-120b-Eagle3",
            "microsoft/Phi-4-mini-flash-reasoning",
            "moonshotai/Kimi-K2.9",
            "deepseek-ai/DeepSeek-V3-16B",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
