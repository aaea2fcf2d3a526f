//! What the name of a checkpoint or a recipe says of the format of its weights, and what is answered where the catalogue lacks its model.

use std::ops::Range;

use engine::model::embedded_names;
use input::diagnostic::{Code, Finding, nearest};

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

#[cfg(test)]
mod tests {
    use engine::model::of_checkpoint;

    use super::*;

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
            assert_eq!(of_checkpoint(asked).map(|model| model.name).as_deref(), Some(name), "{asked}");
            assert_eq!(weights(asked), format, "{asked}");
        }
    }
}
