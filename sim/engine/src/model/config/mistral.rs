//! Mistral's own `params.json` → keys of a `config.json`, so that one reader reads both.
//!
//! Source: vllm-project/vllm, `vllm/transformers_utils/configs/mistral.py`, which serves such checkpoints by the same names.

use serde_json::{Map, Value, json};

/// Names of widths and counts.
const KEYS: [(&str, &str); 7] = [
    ("dim", "hidden_size"),
    ("hidden_dim", "intermediate_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("tied_embeddings", "tie_word_embeddings"),
    ("vision_encoder", "vision_config"),
];
/// Names under `moe`; what else stands there says how it was trained.
const EXPERTS: [(&str, &str); 9] = [
    ("num_experts", "n_routed_experts"),
    ("num_experts_per_tok", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
    ("expert_hidden_dim", "moe_intermediate_size"),
    ("first_k_dense_replace", "first_k_dense_replace"),
    ("route_every_n", "moe_layer_freq"),
    ("routed_scale", "routed_scaling_factor"),
    ("num_expert_groups", "n_group"),
    ("num_expert_groups_per_tok", "topk_group"),
];
/// Keys under `moe` that place experts on GPUs of the training.
const PLACED: [&str; 2] = ["expert_parallel", "expert_model_parallel"];
/// Positions where a file says none.
const POSITIONS: u64 = 128_000;

/// The keys of a file, by the names of Hugging Face where it has Mistral's.
pub(super) fn translated(mut keys: Map<String, Value>) -> Map<String, Value> {
    if keys.contains_key("hidden_size") || !["dim", "n_layers", "n_heads"].iter().all(|key| keys.contains_key(*key)) {
        return keys;
    }
    for (own, other) in KEYS {
        rename(&mut keys, own, other);
    }
    // `qformat_weight` is that of 8-bit floats alone.
    if let Some(Value::Object(formats)) = keys.get("quantization")
        && formats.get("qformat_weight").and_then(Value::as_str) == Some("fp8_e4m3")
    {
        keys.remove("quantization");
        keys.insert("quantization_config".to_owned(), json!({ "quant_method": "fp8" }));
    }
    if let Some(Value::Object(mut experts)) = keys.remove("moe") {
        for (own, other) in EXPERTS {
            rename(&mut experts, own, other);
        }
        experts.retain(|key, _| !PLACED.contains(&key.as_str()));
        keys.extend(experts);
    }
    // The factor of its scaling is one of the length before it.
    if let Some(Value::Object(mut yarn)) = keys.remove("yarn") {
        yarn.insert("rope_type".to_owned(), json!("yarn"));
        keys.insert("rope_scaling".to_owned(), Value::Object(yarn));
    }
    if !keys.contains_key("max_position_embeddings") && !keys.contains_key("max_seq_len") {
        keys.insert("max_position_embeddings".to_owned(), json!(POSITIONS));
    }
    let kind = match (keys.get("kv_lora_rank"), keys.contains_key("n_routed_experts")) {
        (Some(rank), _) if !rank.is_null() => "mistral4",
        (_, true) => "mixtral",
        (_, false) => "mistral",
    };
    keys.insert("model_type".to_owned(), json!(kind));
    keys
}

fn rename(keys: &mut Map<String, Value>, own: &str, other: &str) {
    if let Some(value) = keys.remove(own) {
        keys.insert(other.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{Model, embedded};
    use hw::Format::{Bf16, Fp8Block};

    /// params.json of mistralai/Mistral-Large-3-675B-Instruct-2512, as tests of unslothai/unsloth have it, with the widths of its encoder of images.
    const LARGE_3: &str = r#"{ "dim": 7168, "head_dim": 192, "hidden_dim": 16384, "kv_lora_rank": 512,
        "llama_4_scaling": { "beta": 0.1, "original_max_position_embeddings": 8192 }, "max_position_embeddings": 294912,
        "max_seq_len": 262144, "moe": { "expert_hidden_dim": 4096, "expert_model_parallel": 1, "expert_parallel": 1,
        "first_k_dense_replace": 3, "num_expert_groups": 1, "num_expert_groups_per_tok": 1, "num_experts": 128,
        "num_experts_per_tok": 4, "num_shared_experts": 1, "route_every_n": 1, "routed_scale": 1.0 }, "n_heads": 128,
        "n_kv_heads": 128, "n_layers": 61, "norm_eps": 1e-06, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "quantization_config": { "config_groups": { "FP8_BLOCK": { "format": "float-quantized",
        "input_activations": { "dynamic": true, "group_size": 128, "num_bits": 8, "strategy": "group", "type": "float" },
        "targets": ["Linear"], "weights": { "block_structure": [128, 128], "num_bits": 8, "strategy": "block", "type": "float" } } },
        "ignore": ["model.embed_tokens", "re:patch_merger.*", "re:vision_encoder.*", "re:vision_language_adapter.*", "re:.*gate$", "lm_head"],
        "quant_method": "compressed-tensors" }, "rope_theta": 10000.0, "tied_embeddings": false, "v_head_dim": 128,
        "vision_encoder": { "hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48 }, "vocab_size": 131072,
        "yarn": { "alpha": 1, "apply_scale": false, "beta": 32, "factor": 36, "original_max_position_embeddings": 8192 } }"#;

    #[test]
    fn own_files_of_mistral_are_read() {
        let model = Model::from_config("x", LARGE_3).unwrap_or_else(|findings| panic!("{}", findings.join("; ")));
        let own = embedded("mistral-large-3-675b").expect("embedded");
        assert_eq!((model.max_positions, own.max_positions), (294_912, 294_912));
        assert_eq!((model.formats.attention, model.formats.experts, model.formats.head), (Fp8Block, Fp8Block, Bf16));
        let left_out = model.left_out();
        assert!(left_out.len() == 1 && left_out[0].contains("vision encoder"), "{left_out:?}");
        assert!(Model { unpriced: Vec::new(), ..model }.has_layers_of(&own));
    }

    #[test]
    fn plain_ones_are_those_of_the_catalogue() {
        let nemo = r#"{ "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
            "rope_theta": 1000000.0, "norm_eps": 1e-05, "vocab_size": 131072 }"#;
        let model = Model::from_config("x", nemo).expect("read");
        assert!(model.has_layers_of(&embedded("mistral-nemo-12b").expect("embedded")));
        assert_eq!((model.max_positions, model.not_priced()), (128_000, vec![]));
        let mixtral = r#"{ "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
            "norm_eps": 1e-05, "vocab_size": 32000, "moe": { "num_experts_per_tok": 2, "num_experts": 8 } }"#;
        let model = Model::from_config("x", mixtral).expect("read");
        assert!(model.has_layers_of(&embedded("mixtral-8x7b").expect("embedded")));
        let findings = Model::from_config("x", &mixtral.replace("\"dim\": 4096", "\"dim\": 0")).expect_err("no width");
        assert!(findings[0].contains("`hidden_size` is 0"), "{findings:?}");
    }
}
