//! Which model of the catalogue the name of a checkpoint or a recipe means.

use std::ops::Range;

use engine::Model;
use engine::model::{embedded, embedded_names, of_checkpoint};
use input::diagnostic::{Code, Finding, nearest};

/// What names carry besides the model's.
const ENDINGS: [&str; 32] = [
    "-instruct",
    "-chat",
    "-it",
    "-base",
    "-hf",
    "_pretrain_config",
    "_pretrain",
    "-fp8",
    "-fp8-dynamic",
    "-dynamic",
    "-block",
    "-bf16",
    "-fp4",
    "-nvfp4",
    "-mxfp4",
    "-awq",
    "-gptq",
    "-int4",
    "-int8",
    "-w4a16",
    "-w8a8",
    "-w8a16",
    "-quantized.w4a16",
    "-quantized.w8a8",
    "-quantized.w8a16",
    "-0324",
    "-0528",
    "-0905",
    "-2507",
    "-gptq-int4",
    "-gptq-int8",
    "-terminus",
];

/// Releases that have the shape of another model of the catalogue.
const ALIKE: [(&str, &str); 3] =
    [("llama-3.3-70b", "llama-3.1-70b"), ("kimi-k2-thinking", "kimi-k2"), ("deepseek-v3.1", "deepseek-v3")];

/// What a part of a name says of the format of its weights, as a scenario has it; the first that is there counts.
const FORMATS: [(&str, &str); 14] = [
    ("nvfp4", "\"nvfp4\""),
    ("mxfp4", "\"mxfp4\""),
    ("-fp4", "\"nvfp4\""),
    ("fp8-block", "\"fp8-block\""),
    ("-fp8", "\"fp8\""),
    ("_fp8", "\"fp8\""),
    ("w8a16", "\"int8-weights\""),
    ("w8a8", "\"int8\""),
    ("gptq-int8", "\"int8-weights\""),
    ("w4a16", "\"int4\""),
    ("awq", "\"int4\""),
    ("gptq", "\"int4\""),
    ("-int4", "\"int4\""),
    ("-int8", "\"int8\""),
];

/// Checkpoints that are published in a narrow format: owner, part of the name, format. Their cards on the hub, `quantization_config` of `config.json`.
const PUBLISHED: [(&str, &str, &str); 10] = [
    ("qwen", "-fp8", "\"fp8-block\""),
    ("deepseek-ai", "deepseek-v3", "\"fp8-block\""),
    ("deepseek-ai", "deepseek-r1", "\"fp8-block\""),
    ("deepseek-ai", "deepseek-v4", "{ format = \"fp8-block\", experts = \"mxfp4\" }"),
    ("xiaomimimo", "mimo-v2-flash", "\"fp8-block\""),
    ("openai", "gpt-oss", "\"4-bit-experts\""),
    ("moonshotai", "kimi-k2-thinking", "{ format = \"bf16\", experts = \"int4\" }"),
    ("moonshotai", "kimi-k2.5", "{ format = \"bf16\", experts = \"int4\" }"),
    ("moonshotai", "kimi-k2", "\"fp8-block\""),
    ("minimaxai", "minimax-m2", "\"fp8-block\""),
];

/// The model of a path, a name on a hub or a recipe; `None` where the catalogue has none.
pub(crate) fn find(asked: &str) -> Option<Model> {
    let last = last(asked);
    let mut bare = last.replace("meta-", "");
    for ending in ENDINGS.iter().cycle().take(3 * ENDINGS.len()) {
        bare = bare.trim_end_matches(ending).to_owned();
    }
    let alike = || embedded_names().into_iter().find(|name| letters(name) == letters(&bare)).and_then(embedded);
    let other = || ALIKE.iter().find(|(name, _)| *name == bare).and_then(|(_, name)| embedded(name));
    of_checkpoint(asked).or_else(|| embedded(&last)).or_else(|| embedded(&bare)).or_else(alike).or_else(other)
}

/// Format of a checkpoint's weights as TOML, as far as its name says it; `None` for 16 bits.
pub(crate) fn weights(asked: &str) -> Option<&'static str> {
    let name = last(asked);
    if name.contains("bf16") {
        return None;
    }
    let said = FORMATS.iter().find(|(part, _)| name.contains(part)).map(|(_, format)| *format);
    let trimmed = asked.trim_end_matches('/').to_lowercase();
    let owner = trimmed.rsplit('/').nth(1).unwrap_or_default();
    let published = PUBLISHED.iter().find(|(by, part, _)| *by == owner && name.contains(part));
    published.map(|(_, _, format)| *format).or(said)
}

/// An error about a file that names no model.
pub(crate) fn unnamed() -> Finding {
    let help =
        "give `--set model.name=llama-3-8b` (`import`: `--model llama-3-8b`); `skrull-sim list models` shows all";
    Finding::error(Code::MissingFlag, None, "the file does not say which model it trains").help(help)
}

/// An error about a name that the catalogue lacks.
pub(crate) fn unknown(asked: &str, at: Option<Range<usize>>) -> Finding {
    let what = format!("the model `{asked}` is not in the catalogue");
    let near =
        nearest(&last(asked), embedded_names()).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    let help = format!("{near}give `--set model.name=…`, or a scenario with `model.config = \"config.json\"`");
    Finding::error(Code::UnknownModel, at, what).help(help)
}

/// The part of a path that names the model.
fn last(asked: &str) -> String {
    asked.trim_end_matches('/').rsplit('/').next().unwrap_or(asked).to_lowercase()
}

/// Letters and digits alone.
fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hubs_and_recipes_are_those_of_the_catalogue() {
        for (asked, name) in [
            ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
            ("llama3_8b", "llama-3-8b"),
            ("llama3_70b_pretrain_config", "llama-3-70b"),
            ("~/models/llama-3-8b/", "llama-3-8b"),
        ] {
            assert_eq!(find(asked).map(|model| model.name).as_deref(), Some(name), "{asked}");
        }
        assert_eq!(find("nobody/knows-this"), None);
    }

    #[test]
    fn names_say_the_format_of_their_weights() {
        for (asked, name, format) in [
            ("deepseek-ai/DeepSeek-R1", "deepseek-v3", Some("\"fp8-block\"")),
            ("openai/gpt-oss-120b", "gpt-oss-120b", Some("\"4-bit-experts\"")),
            ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3", Some("\"nvfp4\"")),
            ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "llama-3.1-70b", Some("\"int8\"")),
            ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", Some("\"int4\"")),
            ("Qwen/Qwen3-32B-FP8", "qwen3-32b", Some("\"fp8-block\"")),
            ("RedHatAI/Qwen3-32B-FP8-dynamic", "qwen3-32b", Some("\"fp8\"")),
            ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", Some("\"fp8-block\"")),
            ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", None),
            ("google/gemma-3-27b-it", "gemma-3-27b", None),
            // A model of the catalogue by its own name says nothing.
            ("deepseek-v3", "deepseek-v3", None),
            ("unsloth/DeepSeek-V3-bf16", "deepseek-v3", None),
        ] {
            assert_eq!(find(asked).map(|model| model.name).as_deref(), Some(name), "{asked}");
            assert_eq!(weights(asked), format, "{asked}");
        }
    }
}
