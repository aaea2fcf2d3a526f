//! Cards and models by the words of the tables. Units: GPUs.

use engine::Model;

use super::reason::Reason;

/// GPUs that NVLink joins where a rack is one domain: NVL72 holds whole groups of 64.
const RACK: u32 = 64;
/// GPUs of a node elsewhere.
const NODE: u32 = 8;

/// GPUs of a domain of fast links around a card.
pub(super) fn domain(card: &str) -> u32 {
    if card.starts_with("GB") { RACK } else { NODE }
}

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
