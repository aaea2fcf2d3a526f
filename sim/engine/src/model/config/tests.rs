//! Files of public models, and files that are none.

use super::*;

mod defaults;
mod formats;
mod given;
mod older;
mod released;

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
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 128, "max_position_embeddings": 163840,
        "num_nextn_predict_layers": 1 }"#;
    let gpt = r#"{ "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024 }"#;
    for (name, config) in [("qwen2.5-0.5b", qwen), ("mixtral-8x7b", mixtral), ("deepseek-v3", deepseek)] {
        assert_eq!(Some(Model::from_config(name, config).expect(name)), crate::model::embedded(name));
    }
    // The tensors of the public GPT-2 checkpoint: 124,439,808 parameters.
    assert_eq!(Model::from_config("gpt2", gpt).expect("gpt2").n_parameters(), 124_439_808);
}

#[test]
fn mpt_has_the_parameters_of_its_checkpoint_and_keys_of_its_own() {
    // Keys of mosaicml/mpt-7b, whose checkpoint has 13,298,573,312 bytes of 16 bits (`total_size` of its index).
    let of = |attention: &str, more: &str| {
        let config = format!(
            r#"{{ "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432, "max_seq_len": 2048,
            "expansion_ratio": 4, "learned_pos_emb": true, "init_device": "cpu", "norm_type": "low_precision_layernorm", "no_bias": true,
            "attn_config": {{ "attn_impl": "torch", "alibi_bias_max": 8 {attention} }} {more} }}"#
        );
        Model::from_config("mpt-7b", &config).map_err(|findings| findings.join("; "))
    };
    let plain = of(r#", "alibi": true, "attn_type": "multihead_attention""#, "").expect("read");
    assert_eq!(2 * plain.n_parameters(), 13_298_573_312);
    assert_eq!(
        (plain.max_positions, plain.tied, plain.learned_positions, plain.not_priced()),
        (2048, true, false, vec![])
    );
    // What the file leaves out is what its model code takes.
    assert_eq!(of("", "").expect("read"), plain);
    // Four key-value heads of 128 in place of 32, queries and keys that are normalised, a table of positions with biases, wider feed-forwards.
    let grouped = of(r#", "attn_type": "grouped_query_attention", "kv_n_heads": 4"#, "").expect("read");
    assert_eq!(plain.n_parameters() - grouped.n_parameters(), 32 * 2 * 4096 * 28 * 128);
    assert_eq!(of(r#", "attn_type": "multiquery_attention""#, "").expect("read").n_kv_heads, 1);
    let normed = of(r#", "qk_ln": true"#, "").expect("read");
    assert_eq!(normed.n_parameters() - plain.n_parameters(), 32 * 2 * 4096);
    let learned = of(r#", "alibi": false"#, r#", "no_bias": false"#).expect("read");
    // Biases of three projections, the output's, two products, two norms, and the last norm's.
    assert_eq!(learned.n_parameters() - plain.n_parameters(), 2048 * 4096 + 32 * (3 + 1 + 4 + 1 + 2) * 4096 + 4096);
    assert!(!of(r#", "alibi": false, "rope": true"#, "").expect("read").learned_positions);
    let wide = of("", r#", "expansion_ratio": 5"#).expect("read");
    assert_eq!(wide.intermediate, 5 * 4096);
    let findings = of(r#", "attn_type": "linear""#, "").expect_err("no such attention");
    assert_eq!(
        findings,
        "`attn_type` is linear, allowed are multihead_attention, multiquery_attention, grouped_query_attention"
    );
}

#[test]
fn a_file_says_whether_a_bias_balances_its_experts_and_which_groups_a_token_chooses() {
    let of = |kind: &str, more: &str| {
        let config = format!(
            "{{ \"model_type\": \"{kind}\", \"hidden_size\": 512, \"num_attention_heads\": 8, \"num_hidden_layers\": 2, \"intermediate_size\": 1024,
            \"vocab_size\": 1000, \"n_routed_experts\": 64, \"num_experts_per_tok\": 6, \"moe_intermediate_size\": 128, \"q_lora_rank\": 64,
            \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, \"v_head_dim\": 32{more} }}"
        );
        let experts = Model::from_config(kind, &config).map(|model| model.experts.expect("some"));
        experts
            .map(|experts| (experts.balanced, experts.n_groups, experts.groups_of_token))
            .map_err(|why| why.join("; "))
    };
    let wrong = |more: &str| of("deepseek_v3", more).expect_err(more);
    let of = |kind: &str, more: &str| of(kind, more).expect(more);
    let (v3, v2) = ("deepseek_v3", "deepseek_v2");
    assert_eq!(of(v3, r#", "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4"#), (true, 8, 4));
    assert_eq!(of(v3, r#", "topk_method": "greedy", "n_group": 8"#), (false, 8, 8));
    assert_eq!((of(v3, ""), of(v2, "")), ((true, 1, 1), (false, 1, 1)));
    // A group of four experts does not hold six, and nobody chooses more groups than there are.
    assert!(
        wrong(r#", "n_group": 16, "topk_group": 1"#).contains("`topk_group` is 1, allowed are numbers up to the 16")
    );
    assert!(wrong(r#", "n_group": 4, "topk_group": 8"#).contains("`topk_group` is 8, allowed are numbers up to the 4"));
    assert!(wrong(r#", "n_group": 7"#).contains("`n_group` is 7, allowed are numbers that divide the 64 experts"));
    assert!(wrong(r#", "topk_method": "noaux_tk""#).contains("`topk_method` is `noaux_tk`"));
    assert_eq!(of("minimax_m2", r#", "use_routing_bias": false"#).0, of("qwen3_moe", "").0);
}

#[test]
fn odd_files_are_findings() {
    for text in ["", "[]", "{", "null", "{\"model_type\": 3}"] {
        assert!(Model::from_config("x", text).is_err(), "{text}");
    }
}

/// The file's model but for what an embedded one leaves out: formats, parts that are not priced and layers that predict further on.
fn bare(name: &str, config: &str) -> Model {
    let model = Model::from_config(name, config).expect(name);
    let embedded = crate::model::embedded(name).expect(name);
    Model { formats: embedded.formats, unpriced: Vec::new(), n_predicting: embedded.n_predicting, ..model }
}

// Keys with a say in layers and widths, as in ai-dynamo/aiconfigurator @ 095f58a51c4c, model_configs.
const GPT_OSS: &str = r#"{ "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "num_hidden_layers": 36, "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4,
    "max_position_embeddings": 131072, "sliding_window": 128, "attention_bias": true, "tie_word_embeddings": false,
    "quantization_config": { "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"] } }"#;
const QWEN3_5: &str = r#"{ "model_type": "qwen3_5_moe", "tie_word_embeddings": false, "vision_config": { "depth": 27, "hidden_size": 1152,
    "intermediate_size": 4304 }, "text_config": { "model_type": "qwen3_5_moe_text", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 256, "num_hidden_layers": 60, "vocab_size": 248320, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "mlp_only_layers": [], "mtp_num_hidden_layers": 1, "attn_output_gate": true,
    "max_position_embeddings": 262144 } }"#;
const NEMOTRON: &str = r#"{ "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "num_hidden_layers": 52, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "mamba_ssm_cache_dtype": "float32", "vocab_size": 131072, "max_position_embeddings": 262144, "time_step_limit": [0.0, Infinity],
    "tie_word_embeddings": false }"#;
const LLAMA4: &str = r#"{ "model_type": "llama4", "text_config": { "model_type": "llama4_text", "hidden_size": 5120, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 48, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "vocab_size": 202048,
    "max_position_embeddings": 1048576, "use_qk_norm": false }, "vision_config": { "model_type": "llama4_vision_model", "hidden_size": 1408,
    "image_size": 336, "intermediate_size": 5632, "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 34, "patch_size": 14,
    "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 4096 } }"#;
const GLM_5: &str = r#"{ "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 64,
    "num_hidden_layers": 78, "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 2048, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
    "num_nextn_predict_layers": 1, "vocab_size": 154880, "max_position_embeddings": 202752, "tie_word_embeddings": false }"#;
const GEMMA: &str = r#"{ "model_type": "gemma3", "text_config": { "model_type": "gemma3_text", "hidden_size": 5376, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "num_hidden_layers": 62, "intermediate_size": 21504, "sliding_window": 1024 },
    "mm_tokens_per_image": 256, "vision_config": { "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896,
    "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false } }"#;
const QWEN2_5_VL: &str = r#"{ "model_type": "qwen2_5_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 128000, "tie_word_embeddings": false,
    "vision_config": { "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
    "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2 } }"#;
const QWEN3_VL: &str = r#"{ "model_type": "qwen3_vl", "tie_word_embeddings": false, "text_config": { "model_type": "qwen3_vl_text",
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36,
    "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 262144 }, "vision_config": { "model_type": "qwen3_vl",
    "deepstack_visual_indexes": [8, 16, 24], "depth": 27, "hidden_size": 1152, "in_channels": 3, "intermediate_size": 4304, "num_heads": 16,
    "num_position_embeddings": 2304, "out_hidden_size": 4096, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2 } }"#;
const MINIMAX: &str = r#"{ "model_type": "minimax_m2", "hidden_size": 3072, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
    "num_hidden_layers": 62, "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": true,
    "qk_norm_type": "per_layer", "vocab_size": 200064, "max_position_embeddings": 196608, "num_mtp_modules": 3, "shared_intermediate_size": 0,
    "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"] } }"#;

#[test]
fn layers_of_public_configurations_are_those_of_the_embedded_models() {
    for (name, config) in [
        ("gpt-oss-120b", GPT_OSS),
        ("qwen3.5-397b-a17b", QWEN3_5),
        ("nemotron-3-nano-30b-a3b", NEMOTRON),
        ("llama-4-maverick", LLAMA4),
        ("glm-5", GLM_5),
        ("gemma-3-27b", GEMMA),
        ("qwen2.5-vl-7b", QWEN2_5_VL),
        ("qwen3-vl-8b", QWEN3_VL),
        ("minimax-m2.5", MINIMAX),
    ] {
        assert_eq!(bare(name, config), crate::model::embedded(name).expect(name), "{name}");
    }
}

#[test]
fn what_is_left_out_is_named_with_its_share() {
    let model = Model::from_config("x", QWEN3_5).expect("a public file");
    // The encoder's 27 layers: 27 · 1152 · (4 · 1152 + 2 · 4304) = 411 M of 397 B.
    let found = model.not_priced();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0.contains("vision") && (found[0].1 - 0.411 / 396.76).abs() < 1e-5, "{found:?}");
    let odd = GPT_OSS.replace("\"tie_word_embeddings\": false", "\"some_new_attention\": 7");
    let model = Model::from_config("x", &odd).expect("a key more");
    assert_eq!(model.not_priced(), [("key `some_new_attention`", 0.0)]);
}

#[test]
fn encoders_of_images_are_read_or_refused_by_key() {
    let wrong = |from: &str, to: &str| {
        let config = QWEN2_5_VL.replace(from, to);
        assert_ne!(config, QWEN2_5_VL);
        Model::from_config("x", &config).expect_err(to).join("\n")
    };
    for (from, to, expected) in [
        ("\"depth\": 32,", "", "`vision_config`: key `depth` is missing"),
        ("\"num_heads\": 16", "\"num_heads\": 17", "17 heads do not divide `hidden_size` 1280"),
        ("\"window_size\": 112", "\"window_size\": 100", "`window_size` is 100, allowed are multiples of 28"),
        ("[7, 15, 23, 31]", "7", "`fullatt_block_indexes` is 7, allowed are lists"),
        ("\"hidden_size\": 1280", "\"hidden_size\": 12800000", "widths up to 1000000"),
        ("\"patch_size\": 14, \"sp", "\"patch_size\": 0, \"sp", "`patch_size` is 0"),
    ] {
        let found = wrong(from, to);
        assert!(found.contains(expected), "{expected} in {found}");
    }
    let older = QWEN2_5_VL.replace("\"fullatt_block_indexes\": [7, 15, 23, 31], ", "\"embed_dim\": 1280, ");
    let older = Model::from_config("x", &older).expect("Qwen2-VL").vision.expect("an encoder");
    assert_eq!((older.hidden, older.intermediate, older.squares), (1280, 5120, None));
}

#[test]
fn formats_follow_the_quantisation() {
    use hw::Format::{Bf16, Fp8, Fp8Block, Int4, Int8, Int8Weights, Mxfp4, Nvfp4};
    let of = |config: &str| {
        let formats = Model::from_config("x", config).expect(config).formats;
        (formats.attention, formats.experts, formats.head, formats.kv)
    };
    assert_eq!(of(GPT_OSS), (Bf16, Mxfp4, Bf16, hw::Dtype::Bf16));
    assert_eq!(of(MINIMAX), (Fp8Block, Fp8Block, Bf16, hw::Dtype::Bf16));
    let quantised = |how: &str| {
        of(&GLM_5.replace("\"model_type\"", &format!("\"quantization_config\": {{ {how} }}, \"model_type\"")))
    };
    let group = |weights: &str, activations: &str| {
        format!(
            "\"config_groups\": {{ \"group_0\": {{ \"weights\": {weights}, \"input_activations\": {activations} }} }}"
        )
    };
    let packed = r#""quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"], "#;
    let kv8 = r#""kv_cache_scheme": { "num_bits": 8, "type": "float" }, "#;
    let (int4, int8, fp8) = (
        r#"{ "num_bits": 4, "type": "int" }"#,
        r#"{ "num_bits": 8, "type": "int" }"#,
        r#"{ "num_bits": 8, "type": "float" }"#,
    );
    let fp4 = r#"{ "num_bits": 4, "type": "float" }"#;
    for (how, expected) in [
        (r#""quant_method": "awq", "bits": 4"#.to_owned(), (Int4, Int4, Bf16, hw::Dtype::Bf16)),
        (r#""quant_method": "gptq", "bits": 8"#.to_owned(), (Int8Weights, Int8Weights, Bf16, hw::Dtype::Bf16)),
        (r#""quant_method": "fp8""#.to_owned(), (Fp8, Fp8, Bf16, hw::Dtype::Bf16)),
        (packed.to_owned() + &group(int4, "null"), (Bf16, Int4, Bf16, hw::Dtype::Bf16)),
        (packed.to_owned() + &group(int8, int8), (Bf16, Int8, Bf16, hw::Dtype::Bf16)),
        (packed.to_owned() + kv8 + &group(fp8, fp8), (Bf16, Fp8, Bf16, hw::Dtype::Fp8)),
        (
            r#""quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8""#.to_owned(),
            (Nvfp4, Nvfp4, Bf16, hw::Dtype::Fp8),
        ),
        (r#""quant_method": "modelopt", "#.to_owned() + &group(fp4, fp4), (Nvfp4, Nvfp4, Bf16, hw::Dtype::Bf16)),
    ] {
        assert_eq!(quantised(&how), expected, "{how}");
    }
}

#[test]
fn a_quantisation_without_a_kernel_is_a_finding() {
    for (how, part) in [
        (r#""quant_method": "aqlm""#, "`aqlm`, of which no kernel is known; allowed are fp8"),
        (r#""quant_method": "bitsandbytes""#, "`quantization_config.load_in_4bit` is `false`"),
        (r#""quant_method": "awq", "bits": 3"#, "`quantization_config.bits` is 3"),
        (r#""quant_method": "fp8", "weight_block_size": [64, 64]"#, "[64,64]"),
        (r#""quant_method": "fp8", "modules_to_not_convert": 3"#, "allowed are lists of names"),
        (r#""quant_method": "fp8", "kv_cache_scheme": "FP4""#, "kv_cache_scheme"),
        (r#""quant_algo": "W4A8""#, "quant_algo"),
        (r#""quant_method": "compressed-tensors""#, "config_groups"),
    ] {
        let config = GLM_5.replace("\"model_type\"", &format!("\"quantization_config\": {{ {how} }}, \"model_type\""));
        let findings = Model::from_config("x", &config).expect_err(how).join("; ");
        assert!(findings.contains(part), "{how}: {findings}");
    }
}

#[test]
fn layers_that_cannot_be_are_findings() {
    for (config, from, to, part) in [
        (
            GPT_OSS,
            "\"sliding_window\": 128",
            "\"sliding_window\": 262144",
            "`sliding_window` is 262144, allowed are windows of at most the 131072 positions",
        ),
        (
            GPT_OSS,
            "\"sliding_window\": 128",
            "\"sliding_window\": 128, \"layer_types\": [\"full_attention\"]",
            "`layer_types` is a list of 1 layers, allowed are lists of the 36",
        ),
        (
            LLAMA4,
            "\"use_qk_norm\": false",
            "\"layer_types\": [\"sliding_attention\"]",
            "allowed are full_attention, chunked_attention",
        ),
        (
            LLAMA4,
            "\"num_hidden_layers\": 48",
            "\"num_hidden_layers\": 20000",
            "allowed are whole numbers from 1 to 10000",
        ),
        (NEMOTRON, "MEMEM*", "MEMEMX", "`hybrid_override_pattern` is with `X`"),
        (NEMOTRON, "\"num_hidden_layers\": 52", "\"num_hidden_layers\": 51", "has 52 layers, allowed are the 51"),
        (GLM_5, "\"first_k_dense_replace\": 3", "\"first_k_dense_replace\": 79", "`first_k_dense_replace` is 79"),
        (GLM_5, "\"moe_layer_freq\": 1", "\"moe_layer_freq\": [1, 0]", "`moe_layer_freq` is a list of 2 layers"),
        (QWEN3_5, "\"mlp_only_layers\": []", "\"mlp_only_layers\": [60]", "`mlp_only_layers` is with 60"),
        (QWEN3_5, "\"float32\"", "\"int3\"", "`mamba_ssm_dtype` is int3"),
    ] {
        assert!(config.contains(from), "{from}");
        let findings = Model::from_config("x", &config.replace(from, to)).expect_err(to).join("; ");
        assert!(findings.contains(part), "{to}: {findings}");
    }
}

#[test]
fn windows_of_whole_models_are_read() {
    let mistral = r#"{ "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096 }"#;
    let mixers = |config: &str| {
        Model::from_config("x", config)
            .expect(config)
            .kinds(0, 32)
            .into_iter()
            .map(|(kind, n)| (kind.mixer, n))
            .collect::<Vec<_>>()
    };
    assert_eq!(mixers(mistral), [(Mixer::Window(4096), 32)]);
    assert_eq!(mixers(&mistral.replace("\"mistral\"", "\"qwen2\"")), [(Mixer::Full, 32)]);
    let used = mistral
        .replace("\"mistral\"", "\"qwen2\"")
        .replace('}', ", \"use_sliding_window\": true, \"max_window_layers\": 28 }");
    assert_eq!(mixers(&used), [(Mixer::Full, 28), (Mixer::Window(4096), 4)]);
}

#[test]
fn a_model_that_flags_state_has_the_parameters_of_its_layers() {
    // GPT-3 175B: 96 layers of 12 h² + 13 h, a final norm of 2 h, 50,304 rows and 2,048 positions of h (arXiv:2005.14165, table 2.1).
    let h: u64 = 12_288;
    let config = r#"{"model_type": "megatron", "num_hidden_layers": 96, "hidden_size": 12288, "intermediate_size": 49152,
        "num_attention_heads": 96, "vocab_size": 50304, "max_position_embeddings": 2048, "tie_word_embeddings": true,
        "learned_positions": true, "attention_bias": true, "output_bias": true, "gated": false}"#;
    let model = Model::from_config("stated", config).unwrap();
    assert_eq!(model.n_parameters(), 96 * (12 * h * h + 13 * h) + 2 * h + (50_304 + 2048) * h);
}

/// Small models of every type, as keys of a file and the parameters of the modules that huggingface/transformers 5.24.0 builds from them
/// (`AutoModelForCausalLM.from_config` on the device `meta`; the model of text and a head where a type has no such class). That of LongCat-Flash has
/// gates for the experts that compute nothing, which no checkpoint has: they are taken off.
const COUNTED: &str = include_str!("counted.tsv");
/// Types whose norms or feed-forwards have biases, or whose routers have, which are not counted.
const BIASED: [&str; 11] = [
    "afmoe",
    "apertus",
    "ernie4_5_moe",
    "gpt_neox",
    "nemotron",
    "olmo",
    "opt",
    "phi",
    "phimoe",
    "stablelm",
    "starcoder2",
];

#[test]
fn models_have_the_parameters_of_their_modules() {
    for line in COUNTED.lines() {
        let (config, expected) = line.split_once('\t').expect("keys and a count");
        let expected: u64 = expected.parse().expect("a count");
        let model = Model::from_config("x", config).expect(config);
        let off = model.n_parameters().abs_diff(expected);
        let is_biased = BIASED.iter().any(|kind| config.contains(&format!("\"{kind}\"")));
        let allowed = if is_biased { expected / 500 } else { 0 };
        assert!(off <= allowed, "{} against {expected}: {config}", model.n_parameters());
        assert_eq!(model.not_priced(), [], "{config}");
    }
}

#[test]
fn windows_of_types_that_state_a_period_are_where_their_configurations_put_them() {
    let config = |kind: &str, pattern: &str| {
        format!(
            r#"{{ "model_type": "{kind}", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 8, "vocab_size": 100,
                "intermediate_size": 128, "max_position_embeddings": 4096, "sliding_window": 512 {pattern} }}"#
        )
    };
    let full = |kind: &str, pattern: &str| {
        let model = Model::from_config("x", &config(kind, pattern)).expect(kind);
        (0..8).filter(|&index| model.layers.layer(index).mixer == Mixer::Full).collect::<Vec<_>>()
    };
    assert_eq!(full("gemma2", ""), [1, 3, 5, 7]);
    assert_eq!(full("cohere2", ""), [3, 7]);
    assert_eq!(full("exaone4", r#", "sliding_window_pattern": "LG""#), [1, 3, 5, 7]);
    assert_eq!(full("exaone4", r#", "sliding_window_pattern": 3"#), [2, 5]);
    assert!(full("starcoder2", "").is_empty());
}

/// Layers of an embedded model by what mixes their tokens.
fn mixers(name: &str) -> Vec<(Mixer, u64)> {
    let model = crate::model::embedded(name).expect(name);
    let mut found: Vec<(Mixer, u64)> = Vec::new();
    for (kind, n) in model.kinds(0, model.n_layers) {
        match found.iter_mut().find(|(mixer, _)| *mixer == kind.mixer) {
            Some((_, all)) => *all += n,
            None => found.push((kind.mixer, n)),
        }
    }
    found
}

#[test]
fn layers_of_models_of_2026_are_those_of_their_configurations() {
    let entries = |ratio, picked| Mixer::Compressed { ratio, window: 128, picked };
    // The 44th ratio of V4 Flash is of the layer that predicts a token further on.
    let flash = [(Mixer::Window(128), 2), (entries(4, Some(512)), 21), (entries(128, None), 20)];
    assert_eq!(mixers("deepseek-v4-flash"), flash);
    assert_eq!(mixers("deepseek-v4-pro"), [(entries(128, None), 31), (entries(4, Some(1024)), 30)]);
    // 128 tokens before a query and itself; the first layer and every sixth attend to all.
    assert_eq!(mixers("mimo-v2-flash"), [(Mixer::Full, 9), (Mixer::Window(129), 39)]);
    assert_eq!(mixers("gemma-4-31b"), [(Mixer::Window(1024), 50), (Mixer::Full, 10)]);
    assert_eq!(mixers("minimax-m3"), [(Mixer::Full, 3), (Mixer::Selected(2048), 57)]);
    // GLM-5.2 states its 21 layers with an index of their own in a list too.
    assert_eq!(mixers("glm-5.2"), [(Mixer::Selected(2048), 21), (Mixer::Reselected(2048), 57)]);
    let longcat = crate::model::embedded("longcat-flash").expect("embedded");
    let experts = longcat.experts.expect("some");
    // Of 12 experts that a token chooses among 768, 256 of which compute nothing, 8 compute on average.
    assert_eq!((longcat.n_layers, experts.n_routed, experts.n_zero, experts.top_k), (56, 512, 256, 8));
    assert_eq!(longcat.n_expert_layers(), 28);
}

#[test]
fn what_a_type_of_2026_cannot_be_is_a_finding() {
    let widths = r#""hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 4,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 4096, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "q_lora_rank": 8, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 32, "sliding_window": 128"#;
    for (more, part) in [
        (
            r#""model_type": "deepseek_v4", "o_groups": 2, "compress_ratios": [0, 4, 64, 4]"#,
            "`compress_ratios` is with 64, allowed are 0, 4, 128",
        ),
        (
            r#""model_type": "deepseek_v4", "o_groups": 2, "compress_ratios": [0, 4]"#,
            "`compress_ratios` is a list of 2 layers, allowed are lists of the 4",
        ),
        (r#""model_type": "deepseek_v4", "o_groups": 3"#, "`o_groups` 3 do not divide 4 heads"),
        (
            r#""model_type": "deepseek_v4", "o_groups": 2, "expert_dtype": "fp3""#,
            "`expert_dtype` is fp3, allowed are fp4",
        ),
        (
            r#""model_type": "gemma4", "num_kv_shared_layers": 4"#,
            "`num_kv_shared_layers` is 4, allowed are numbers below",
        ),
        (r#""model_type": "mimo_v2_flash", "swa_num_key_value_heads": 3"#, "3 key-value heads do not divide 4 heads"),
        (
            r#""model_type": "lfm2", "conv_L_cache": 3, "layer_types": ["conv", "mamba", "conv", "conv"]"#,
            "full_attention, conv",
        ),
        (r#""model_type": "jamba", "attn_layer_period": 2, "expert_layer_period": 0"#, "`expert_layer_period` is 0"),
        (
            r#""model_type": "minimax_m3_vl", "sparse_attention_config": { "sparse_block_size": 18446744073709551615 }"#,
            "`sparse_attention_config.sparse_block_size` is 18446744073709551615",
        ),
        (
            r#""model_type": "step3p7", "attention_other_setting": { "num_attention_heads": 0 }"#,
            "`attention_other_setting.num_attention_heads` is 0",
        ),
        (r#""model_type": "hunyuan_v1_moe", "moe_topk": [1, 2]"#, "`moe_topk` is a list, allowed are one number"),
    ] {
        let config = format!("{{ {widths}, {more} }}");
        let config = if more.contains("moe_topk") { config.replace("\"num_experts_per_tok\": 2,", "") } else { config };
        let findings = Model::from_config("x", &config).expect_err(more).join("; ");
        assert!(findings.contains(part), "{more}: {findings}");
    }
}

#[test]
fn models_have_the_parameters_that_their_authors_state() {
    // Billions of all and of a token, from the model cards; what is beyond half a percent is rounded there.
    for (name, all, active) in [
        ("qwen3.5-35b-a3b", 35.0, 3.0),
        ("qwen3.5-122b-a10b", 122.0, 10.0),
        ("qwen3-vl-235b-a22b", 235.0, 22.0),
        ("step-3.5-flash", 196.8, 11.0),
        ("ernie-4.5-300b-a47b", 300.0, 47.0),
    ] {
        let model = crate::model::embedded(name).expect(name);
        let found = [model.n_parameters(), model.active_parameters()].map(|n| hw::real(n) / 1e9);
        assert!((found[0] / all - 1.0).abs() < 0.015, "{name}: {found:?}");
        assert!((found[1] - active).abs() < 0.05 * active + 0.5, "{name}: {found:?}");
    }
}

#[test]
fn small_models_have_the_parameters_of_their_checkpoints() {
    // Of the model cards' safetensors, and of keras-team/keras-hub (`gemma3_presets.py`, `phi3_presets.py`), whose Gemma 3 has 64 rows of its vocabulary less.
    for (name, expected) in [
        ("gemma-3-4b", 3_880_099_328 + 64 * 2560),
        ("gemma-3-12b", 11_765_788_416 + 64 * 3840),
        ("mistral-small-3.2-24b", 23_572_403_200),
        ("phi-3-mini-4k", 3_821_079_552),
        ("smollm3-3b", 3_075_098_624),
        ("deepseek-r1-distill-qwen-1.5b", 1_777_088_000_u64),
    ] {
        let found = crate::model::embedded(name).expect(name).n_parameters();
        assert!(found.abs_diff(expected) < expected / 20_000, "{name}: {found}");
    }
    assert_eq!(mixers("gemma-3-4b"), [(Mixer::Window(1024), 29), (Mixer::Full, 5)]);
    assert_eq!(mixers("phi-3-mini-4k"), [(Mixer::Window(2047), 32)]);
}

#[test]
fn layers_that_a_search_chose_have_the_parameters_of_their_blocks() {
    let model = crate::model::embedded("llama-3.3-nemotron-super-49b").expect("embedded");
    let (hidden, kv) = (8192, 1024);
    // Layers by width, as the public file lists them; 49 attend.
    let widths = [(49, 28_672), (10, 7168), (8, 5632), (6, 2816), (6, 14_336), (1, 17_920)];
    let wide: u64 = widths.iter().map(|(n, width)| n * 3 * hidden * width).sum();
    let expected = 49 * (2 * hidden * hidden + 2 * hidden * kv) + wide + 2 * 128_256 * hidden;
    assert!(model.n_parameters().abs_diff(expected) < expected / 1000, "{}", model.n_parameters());
    assert_eq!(mixers(&model.name), [(Mixer::Full, 49), (Mixer::Off, 31)]);
    assert_eq!((model.n_kv_heads, model.n_expert_layers()), (8, 0));
    let widths = r#""model_type": "nemotron-nas", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 100"#;
    let block = |attention: &str| format!(r#"{{ "attention": {attention}, "ffn": {{ "ffn_mult": 1.0 }} }}"#);
    for (blocks, part) in [
        (block(r#"{ "n_heads_in_group": 2, "window_length": 32 }"#), "`block_configs` is a list with `window_length`"),
        (r#"{ "attention": { "n_heads_in_group": 2 } }"#.to_owned(), "allowed are blocks with `attention` and `ffn`"),
        (block(r#"{ "n_heads_in_group": 2 }"#) + ", " + &block(r#"{ "n_heads_in_group": 4 }"#), "one number for all"),
    ] {
        let config = format!(r#"{{ {widths}, "block_configs": [{blocks}] }}"#);
        let findings = Model::from_config("x", &config).expect_err(&config).join("; ");
        assert!(findings.contains(part), "{config}: {findings}");
    }
}

#[test]
fn the_projection_behind_attention_may_have_a_format_of_its_own() {
    let of = |left_out: &str| {
        let quantised = format!(
            r#""quantization_config": {{ "quant_algo": "NVFP4", "exclude_modules": [{left_out}] }}, "model_type""#
        );
        Model::from_config("x", &GLM_5.replace("\"model_type\"", &quantised)).expect("read").formats
    };
    // NVIDIA's DeepSeek-V3.1 names the projections in front of attention alone; its GLM-5 names all.
    let front = r#""*.q_a_proj", "*.q_b_proj", "*.kv_a_proj_with_mqa", "*.kv_b_proj""#;
    let formats = of(front);
    assert_eq!(
        (formats.attention, formats.output, formats.dense),
        (hw::Format::Bf16, Some(hw::Format::Nvfp4), hw::Format::Nvfp4)
    );
    let formats = of(&format!("{front}, \"*.o_proj\""));
    assert_eq!((formats.attention, formats.output, formats.behind()), (hw::Format::Bf16, None, hw::Format::Bf16));
}
