//! Hugging Face `config.json` → `Model`: every finding at once, never a panic.
//!
//! Keys are those of the public configurations of the supported model types.

use serde_json::{Map, Value};

use super::{Experts, LatentAttention, Model};
use crate::formats::Formats;

/// Supported values of `model_type`.
pub const MODEL_TYPES: [&str; 9] =
    ["deepseek_v3", "gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v2"];

/// Largest width or count that is taken for real.
const COUNT_MAX: u64 = 10_000_000;

/// Largest parameter count that is taken for real, far above any model and far below what `u64` holds.
const PARAMETERS_MAX: f64 = 1e17;

struct Reader<'a> {
    keys: &'a Map<String, Value>,
    findings: Vec<String>,
}

impl Reader<'_> {
    /// A positive count under the first of `names` that is present.
    fn optional(&mut self, names: &[&str]) -> Option<u64> {
        let (name, value) = names.iter().find_map(|name| self.keys.get(*name).map(|value| (*name, value)))?;
        if value.is_null() {
            return None;
        }
        match value.as_u64().filter(|count| (1..=COUNT_MAX).contains(count)) {
            Some(count) => Some(count),
            None => {
                self.findings.push(format!("`{name}` is {value}, allowed are whole numbers from 1 to {COUNT_MAX}"));
                Some(1)
            }
        }
    }

    fn required(&mut self, names: &[&str]) -> u64 {
        self.optional(names).unwrap_or_else(|| {
            self.findings.push(format!("key `{}` is missing", names[0]));
            1
        })
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        match self.keys.get(name) {
            None | Some(Value::Null) => default,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                self.findings.push(format!("`{name}` is {other}, allowed are true and false"));
                default
            }
        }
    }

    /// A count that may be zero, or absent.
    fn count(&mut self, name: &str) -> u64 {
        match self.keys.get(name) {
            None | Some(Value::Null) => 0,
            Some(value) => value.as_u64().filter(|count| *count <= COUNT_MAX).unwrap_or_else(|| {
                self.findings.push(format!("`{name}` is {value}, allowed are whole numbers from 0 to {COUNT_MAX}"));
                0
            }),
        }
    }
}

impl Model {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// All findings, each naming the key, what was found and what is allowed.
    pub fn from_config(name: &str, config: &str) -> Result<Self, Vec<String>> {
        let value: Value = serde_json::from_str(config).map_err(|error| vec![format!("not valid JSON: {error}")])?;
        let Value::Object(keys) = &value else {
            return Err(vec!["the file holds no JSON object".to_owned()]);
        };
        let kind = keys.get("model_type").and_then(Value::as_str).unwrap_or("");
        let mut reader = Reader { keys, findings: Vec::new() };
        if !MODEL_TYPES.contains(&kind) {
            let allowed = MODEL_TYPES.join(", ");
            let near = MODEL_TYPES.into_iter().find(|known| is_near(kind, known));
            let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            reader.findings.push(format!("`model_type` is `{kind}`, allowed are {allowed}{hint}"));
        }
        let model = read(name, kind, &mut reader);
        let mut findings = reader.findings;
        if findings.is_empty() {
            findings.extend(contradictions(&model));
        }
        if findings.is_empty() { Ok(model) } else { Err(findings) }
    }
}

/// Whether one letter added, left out or changed makes one word the other.
fn is_near(found: &str, known: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (found.chars().collect(), known.chars().collect());
    let same_start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[same_start..], &b[same_start..]);
    match (a, b) {
        ([], [_]) | ([_], []) => true,
        ([_, a @ ..], [_, b @ ..]) if a == b => true,
        ([_, rest @ ..], _) if rest == b => true,
        (_, [_, rest @ ..]) => rest == a,
        _ => false,
    }
}

fn read(name: &str, kind: &str, reader: &mut Reader<'_>) -> Model {
    let gpt = kind == "gpt2";
    let hidden = reader.required(&["hidden_size", "n_embd"]);
    let n_heads = reader.required(&["num_attention_heads", "n_head"]);
    let intermediate =
        if gpt { reader.optional(&["n_inner"]).unwrap_or(4 * hidden) } else { reader.required(&["intermediate_size"]) };
    let latent = reader.optional(&["kv_lora_rank"]).map(|kv_rank| LatentAttention {
        q_rank: reader.optional(&["q_lora_rank"]),
        kv_rank,
        nope_dim: reader.required(&["qk_nope_head_dim"]),
        rope_dim: reader.required(&["qk_rope_head_dim"]),
        value_dim: reader.required(&["v_head_dim"]),
    });
    let experts = reader.optional(&["n_routed_experts", "num_local_experts", "num_experts"]).map(|n_routed| Experts {
        n_routed,
        top_k: reader.required(&["num_experts_per_tok"]),
        n_shared: reader.count("n_shared_experts"),
        intermediate: reader.optional(&["moe_intermediate_size"]).unwrap_or(intermediate),
        n_dense_layers: reader.count("first_k_dense_replace"),
        every: reader.optional(&["decoder_sparse_step"]).unwrap_or(1),
    });
    Model {
        name: name.to_owned(),
        n_layers: reader.required(&["num_hidden_layers", "n_layer"]),
        hidden,
        n_heads,
        n_kv_heads: reader.optional(&["num_key_value_heads"]).unwrap_or(n_heads),
        head_dim: reader.optional(&["head_dim"]).unwrap_or(hidden / n_heads),
        intermediate,
        gated: !gpt,
        vocab: reader.required(&["vocab_size"]),
        tied: reader.flag("tie_word_embeddings", gpt),
        qkv_bias: matches!(kind, "qwen2" | "gpt2"),
        learned_positions: gpt,
        qk_norm: kind.starts_with("qwen3"),
        max_positions: reader.optional(&["max_position_embeddings", "n_positions"]).unwrap_or(2048),
        latent,
        experts,
        formats: Formats::of(hw::Dtype::Bf16),
    }
}

fn contradictions(model: &Model) -> Vec<String> {
    let mut findings = Vec::new();
    if model.latent.is_none() && !model.n_heads.is_multiple_of(model.n_kv_heads) {
        findings.push(format!("{} key-value heads do not divide {} heads", model.n_kv_heads, model.n_heads));
    }
    if model.head_dim == 0 {
        findings.push(format!("`hidden_size` {} is below the {} heads", model.hidden, model.n_heads));
    }
    // Every derived count multiplies at most these; beyond it nothing is a model, and `u64` would not hold it.
    let wide = model.hidden.max(model.intermediate).max(model.n_heads.saturating_mul(model.head_dim)).max(model.vocab);
    let n_experts = model.experts.map_or(1, |experts| experts.n_routed.max(experts.n_shared));
    let factors = [model.n_layers, n_experts, 8, wide, wide];
    if factors.iter().map(|&factor| hw::Tokens(factor).as_f64()).product::<f64>() > PARAMETERS_MAX {
        findings.push(format!("the widths make more than {PARAMETERS_MAX:.0e} parameters"));
    }
    if let Some(experts) = model.experts {
        if experts.top_k > experts.n_routed {
            findings.push(format!("`num_experts_per_tok` {} exceeds {} experts", experts.top_k, experts.n_routed));
        }
        if experts.n_dense_layers > model.n_layers {
            findings.push(format!("{} dense layers exceed {} layers", experts.n_dense_layers, model.n_layers));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_findings_come_at_once() {
        let config = r#"{ "model_type": "lama", "hidden_size": -3, "num_attention_heads": 1e99, "vocab_size": "x" }"#;
        let findings = Model::from_config("x", config).expect_err("a bad file");
        assert_eq!(findings.len(), 6, "{findings:?}");
    }

    #[test]
    fn wrong_types_are_findings_and_not_defaults() {
        let config = r#"{ "model_type": "lama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": "yes", "num_local_experts": 4,
            "num_experts_per_tok": 2, "n_shared_experts": -1 }"#;
        let findings = Model::from_config("x", config).expect_err("three findings").join("\n");
        for part in ["did you mean `llama`?", "`tie_word_embeddings` is \"yes\"", "`n_shared_experts` is -1"] {
            assert!(findings.contains(part), "{part} in {findings}");
        }
    }

    #[test]
    fn a_model_too_large_to_count_is_a_finding() {
        let config = r#"{ "model_type": "llama", "hidden_size": 10000000, "num_attention_heads": 1, "num_hidden_layers": 10000000,
            "intermediate_size": 10000000, "vocab_size": 10000000 }"#;
        assert_eq!(Model::from_config("x", config).expect_err("too large").len(), 1);
    }

    #[test]
    fn public_configurations_give_the_embedded_models() {
        let qwen = r#"{ "model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
            "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true,
            "max_position_embeddings": 32768, "rope_theta": 1000000.0, "torch_dtype": "bfloat16" }"#;
        let mixtral = r#"{ "model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
            "num_experts_per_tok": 2, "max_position_embeddings": 32768, "tie_word_embeddings": false }"#;
        let deepseek = r#"{ "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
            "num_key_value_heads": 128, "num_hidden_layers": 61, "intermediate_size": 18432, "vocab_size": 129280,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 128, "max_position_embeddings": 163840 }"#;
        let gpt = r#"{ "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024 }"#;
        for (name, config) in [("qwen2.5-0.5b", qwen), ("mixtral-8x7b", mixtral), ("deepseek-v3", deepseek)] {
            assert_eq!(Some(Model::from_config(name, config).expect(name)), crate::model::embedded(name));
        }
        // The tensors of the public GPT-2 checkpoint: 124,439,808 parameters.
        assert_eq!(Model::from_config("gpt2", gpt).expect("gpt2").n_parameters(), 124_439_808);
    }

    #[test]
    fn odd_files_are_findings() {
        for text in ["", "[]", "{", "null", "{\"model_type\": 3}"] {
            assert!(Model::from_config("x", text).is_err(), "{text}");
        }
    }
}
