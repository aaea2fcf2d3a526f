//! Models by the words of the tables.

use engine::Model;

use crate::reason::Reason;

/// A model by the table's word.
pub(super) fn model(word: &str) -> Result<Model, Reason> {
    let name = match word {
        "LLAMA3.1_8B" => "llama-3.1-8b",
        "LLAMA3.1_70B" => "llama-3.1-70b",
        "Qwen3-32B" => "qwen3-32b",
        "Qwen3-8B" => "qwen3-8b",
        "Qwen2.5-7B" | "Qwen2.5-Math-7B" => "qwen2.5-7b",
        "Qwen3-30B3A" | "Qwen3-30B-A3B" | "Qwen3-30B-A3B-Base" => "qwen3-30b-a3b",
        "Qwen3-235B" | "Qwen3-235B-A22B" => "qwen3-235b-a22b",
        "DeepSeek-V3 671B" => "deepseek-v3",
        _ => return Err(Reason::Model { word: word.to_owned() }),
    };
    engine::model::embedded(name).ok_or_else(|| Reason::Model { word: word.to_owned() })
}
