//! Models by the path of a checkpoint, as tables of measured runs name them.

use super::{Model, embedded};

/// Embedded models by a part of the path. Kimi-K2.5 has the shape of Kimi-K2.
const MODELS: [(&str, &str); 16] = [
    ("Llama-3.1-8B", "llama-3-8b"),
    ("Llama-3.1-70B", "llama-3-70b"),
    ("Qwen3-32B", "qwen3-32b"),
    ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("MiniMax-M2.5", "minimax-m2.5"),
    ("DeepSeek-R1", "deepseek-v3"),
    ("DeepSeek-V3", "deepseek-v3"),
    ("Kimi-K2.5", "kimi-k2"),
    ("Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
    ("GLM-5.2", "glm-5.2"),
    ("GLM-5", "glm-5"),
    ("DeepSeek-V4-Flash", "deepseek-v4-flash"),
    ("DeepSeek-V4-Pro", "deepseek-v4-pro"),
    ("MiMo-V2-Flash", "mimo-v2-flash"),
    ("MiniMax-M3", "minimax-m3"),
];

/// Architecture of a checkpoint; `None` where no embedded model has it.
pub fn of_checkpoint(path: &str) -> Option<Model> {
    let (_, name) = MODELS.iter().find(|(part, _)| path.contains(part))?;
    embedded(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_an_embedded_model() {
        for (part, name) in MODELS {
            assert_eq!(of_checkpoint(&format!("maker/{part}-Instruct")).expect(part).name, name);
        }
        assert_eq!(of_checkpoint("maker/other"), None);
    }
}
