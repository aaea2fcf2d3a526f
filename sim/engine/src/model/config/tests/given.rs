//! Whole files of public models with states, convolutions or experts: every key has a say, or none in time and memory.
//!
//! Keys as the public repositories that repeat these files have them, without those of tokens, training and numerics.

use crate::model::{Model, embedded};

const KIMI: &str = r#"{"first_k_dense_replace": 1, "head_dim": 72, "hidden_size": 2304, "intermediate_size": 9216, "kv_lora_rank": 512, "linear_attn_config":
    {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25,
    26], "num_heads": 32, "short_conv_kernel_size": 4}, "mla_use_nope": true, "model_max_length": 1048576, "model_type": "kimi_linear",
    "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
    "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32, "num_nextn_predict_layers":
    0, "num_shared_experts": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": null, "routed_scaling_factor":
    2.446, "tie_word_embeddings": false, "topk_group": 1, "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840}"#;
const GRANITE: &str = r#"{"attention_bias": false, "attention_multiplier": 0.0078125, "embedding_multiplier": 12, "hidden_size": 1536, "init_method": "mup",
    "intermediate_size": 512, "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba",
    "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention",
    "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"], "logits_scaling":
    6, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups":
    1, "mamba_n_heads": 48, "mamba_proj_bias": false, "max_position_embeddings": 131072, "model_type": "granitemoehybrid", "normalization_function":
    "rmsnorm", "num_attention_heads": 12, "num_experts_per_tok": 6, "num_hidden_layers": 40, "num_key_value_heads": 4, "num_local_experts": 64,
    "output_router_logits": false, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rope_scaling": null, "router_aux_loss_coef": 0.0001,
    "shared_intermediate_size": 1024, "tie_word_embeddings": true, "vocab_size": 100352}"#;
const FALCON: &str = r#"{"attention_bias": false, "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "attn_layer_indices": null, "embedding_multiplier":
    5.656854249492381, "head_dim": 128, "hidden_size": 3072, "intermediate_size": 12288, "key_multiplier": 0.045, "lm_head_multiplier": 0.03,
    "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 128, "mamba_d_ssm": 3072, "mamba_d_state": 256, "mamba_expand":
    2, "mamba_n_groups": 1, "mamba_n_heads": 24, "mamba_norm_before_gate": false, "mamba_proj_bias": false, "mamba_rms_norm": false, "mamba_use_mlp":
    true, "max_position_embeddings": 262144, "mlp_bias": false, "mlp_expansion_factor": 8, "mlp_multipliers": [0.88, 0.22], "model_type": "falcon_h1",
    "num_attention_heads": 12, "num_hidden_layers": 44, "num_key_value_heads": 2, "num_logits_to_keep": 1, "projectors_bias": false, "rope_scaling": null,
    "ssm_in_multiplier": 1.25, "ssm_multipliers": [0.35, 0.25, 0.17, 0.5, 0.35], "ssm_out_multiplier": 0.23, "tie_word_embeddings": false, "vocab_size":
    130048}"#;
const LFM2: &str = r#"{"block_auto_adjust_ff_dim": true, "block_dim": 2048, "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": true, "block_use_xavier_init": true,
    "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": true, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05, "num_attention_heads": 32, "num_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "theta": 1000000.0, "tie_embedding": true, "use_pos_enc": true, "vocab_size": 65536}"#;
const LFM2_MOE: &str = r#"{"conv_L_cache": 3, "conv_bias": false, "hidden_size": 2048, "intermediate_size": 7168, "layer_types": ["conv", "conv", "full_attention", "conv",
    "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv",
    "full_attention", "conv", "conv", "full_attention", "conv", "conv"], "max_position_embeddings": 128000, "model_type": "lfm2_moe",
    "moe_intermediate_size": 1792, "norm_eps": 1e-05, "norm_topk_prob": true, "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "routed_scaling_factor": 1.0, "tie_embedding": true, "use_expert_bias":
    true, "vocab_size": 65536}"#;
const NEMOTRON: &str = r#"{"attention_bias": false, "attention_head_dim": 128, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", "intermediate_size": 15680, "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 80, "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": false, "max_position_embeddings": 131072, "mlp_bias":
    false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8, "num_attention_heads": 40, "num_hidden_layers": 56,
    "num_key_value_heads": 8, "num_logits_to_keep": 1, "num_query_groups": 8, "rescale_prenorm_residual": true, "residual_in_fp32": false,
    "sliding_window": null, "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_limit": [0.0, Infinity],
    "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256, "use_bias": false, "use_conv_bias": true, "use_mamba_kernels": true,
    "vocab_size": 131072}"#;
const JAMBA: &str = r#"{"attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2, "hidden_size": 4096, "intermediate_size": 14336,
    "mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_proj_bias": false,
    "max_position_embeddings": 262144, "model_type": "jamba", "num_attention_heads": 32, "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers":
    32, "num_key_value_heads": 8, "num_logits_to_keep": 1, "output_router_logits": false, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "use_mamba_kernels": true, "vocab_size": 65536}"#;
const PHI_4: &str = r#"{"attention_bias": false, "full_attn_mod": 1, "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads":
    8, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rope_scaling": {"long_factor": [1.0], "short_factor": [1.0], "type":
    "longrope"}, "sliding_window": 262144, "tie_word_embeddings": true, "vocab_size": 200064}"#;
const LING: &str = r#"{"first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 5120, "max_position_embeddings": 32768, "max_window_layers":
    20, "model_type": "bailing_moe_v2", "moe_intermediate_size": 512, "moe_router_enable_expert_bias": true, "moe_shared_expert_intermediate_size": 512,
    "mtp_loss_scaling_factor": 0, "n_group": 8, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
    "num_hidden_layers": 20, "num_key_value_heads": 4, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "output_router_logits": false,
    "partial_rotary_factor": 0.5, "rope_scaling": null, "rotary_dim": 64, "routed_scaling_factor": 2.5, "router_dtype": "fp32", "score_function":
    "sigmoid", "tie_word_embeddings": false, "topk_group": 4, "use_bias": false, "use_qk_norm": true, "use_qkv_bias": false, "use_rmsnorm": true,
    "using_split_qkv_in_self_attention": false, "vocab_size": 157184}"#;
const LING_LITE: &str = r#"{"first_k_dense_replace": 0, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 32768, "max_window_layers":
    28, "model_type": "bailing_moe", "moe_intermediate_size": 1408, "multi_gate": false, "norm_head": false, "norm_softmax": false, "norm_topk_prob":
    true, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 6, "num_hidden_layers": 28, "num_key_value_heads": 4, "num_shared_experts":
    2, "output_router_logits": false, "pretraining_tp": 1, "rope_scaling": null, "tie_word_embeddings": false, "use_bias": false, "use_qkv_bias": false,
    "vocab_size": 126464}"#;
const HUNYUAN: &str = r#"{"add_classification_head": false, "attention_bias": false, "attention_head_dim": 128, "capacity_factor": 1.0, "cla_share_factor": 2, "class_num": 0,
    "dense_list": [4096, 0], "group_limited_greedy": false, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 3072, "max_position_embeddings":
    32768, "mlp_bias": false, "model_type": "hunyuan_v1_moe", "moe_drop_tokens": false, "moe_intermediate_size": [3072, 3072, 3072, 3072, 3072, 3072,
    3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072, 3072,
    3072], "moe_layer_num_skipped": 0, "moe_random_routing_dropped_token": false, "moe_topk": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
    8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8], "n_group": null, "norm_topk_prob": true, "norm_type": "rms", "num_attention_heads": 32, "num_experts": 64,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_shared_expert": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1], "num_media_embeds": 257, "pretraining_tp": 1, "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
    "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"}, "routed_scaling_factor": 1.0, "tie_word_embeddings": true, "topk_group": null, "use_cla":
    false, "use_mixed_mlp_moe": true, "use_mla": false, "use_qk_norm": true, "use_rotary_pos_emb": true, "vocab_size": 128167}"#;
const VOXTRAL: &str = r#"{"audio_config": {"activation_function": "gelu", "head_dim": 64, "hidden_size": 1280, "intermediate_size": 5120, "max_source_positions": 1500,
    "model_type": "voxtral_encoder", "num_attention_heads": 20, "num_hidden_layers": 32, "num_mel_bins": 128, "vocab_size": 51866}, "audio_token_id": 24,
    "hidden_size": 3072, "model_type": "voxtral", "projector_hidden_act": "gelu", "text_config": {"attention_bias": false, "head_dim": 128, "hidden_size":
    3072, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 30, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 100000000.0, "vocab_size": 131072}, "vocab_size": 131072}"#;

fn read(config: &str) -> Model {
    Model::from_config("x", config).unwrap_or_else(|findings| panic!("{}", findings.join("; ")))
}

#[test]
fn files_give_the_models_of_the_catalogue_and_nothing_is_left_out() {
    for (name, config) in [
        ("kimi-linear-48b-a3b", KIMI),
        ("granite-4.0-h-tiny", GRANITE),
        ("falcon-h1-7b", FALCON),
        ("lfm2-1.2b", LFM2),
        ("lfm2-8b-a1b", LFM2_MOE),
        ("nemotron-nano-9b-v2", NEMOTRON),
        ("jamba-v0.1", JAMBA),
        ("phi-4-mini", PHI_4),
        ("ling-mini-2.0", LING),
        ("ling-lite", LING_LITE),
        ("hunyuan-a13b", HUNYUAN),
    ] {
        let model = read(config);
        assert_eq!(model.not_priced(), [], "{name}");
        let own = embedded(name).expect(name);
        assert_eq!(Model { name: own.name.clone(), ..model }, own, "{name}");
    }
}

#[test]
fn a_model_that_listens_names_what_listens() {
    let model = read(VOXTRAL);
    assert_eq!(model.n_parameters(), embedded("voxtral-mini-3b").expect("embedded").n_parameters());
    let left_out = model.left_out();
    assert!(left_out.len() == 1 && left_out[0].contains("audio encoder"), "{left_out:?}");
    // The text has Llama's type where its section has none.
    let plain = VOXTRAL.replace("\"model_type\": \"llama\", ", "");
    assert_eq!(read(&plain), model);
}

#[test]
fn what_a_file_says_twice_has_to_agree() {
    for (config, from, to, part) in [
        (LFM2, "\"conv_dim\": 2048", "\"conv_dim\": 1024", "`conv_dim` is 1024, allowed are the 2048 of `hidden_size`"),
        (LFM2, "\"block_dim\": 2048", "\"block_dim\": 1024", "`block_dim` is 1024, allowed are the 2048"),
        (
            LFM2,
            "\"num_heads\": 32",
            "\"num_heads\": 16",
            "`num_heads` is 16, allowed are the 32 of `num_attention_heads`",
        ),
        (NEMOTRON, "\"num_query_groups\": 8", "\"num_query_groups\": 4", "`num_query_groups` is 4, allowed are the 8"),
        (
            FALCON,
            "\"mamba_d_ssm\": 3072",
            "\"mamba_d_ssm\": 4096",
            "`mamba_d_ssm` is 4096, allowed are the 24 heads of 128",
        ),
    ] {
        assert!(config.contains(from), "{from}");
        let findings = Model::from_config("x", &config.replace(from, to)).expect_err(to).join("; ");
        assert!(findings.contains(part), "{to}: {findings}");
    }
    let apart = read(&LFM2.replace("\"tie_embedding\": true", "\"tie_embedding\": false"));
    assert_eq!(apart.n_parameters() - read(LFM2).n_parameters(), 65_536 * 2048);
    let alone = read(&HUNYUAN.replace("\"use_mixed_mlp_moe\": true", "\"use_mixed_mlp_moe\": false"));
    assert_eq!(read(HUNYUAN).n_parameters() - alone.n_parameters(), 32 * 3 * 4096 * 3072);
    assert!(!read(&LFM2.replace("\"block_use_swiglu\": true", "\"block_use_swiglu\": false")).gated);
}

/// A small model of a type, and what is wrong with it.
fn findings(kind: &str, more: &str) -> String {
    let config = format!(
        r#"{{ "model_type": "{kind}", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 1024,
        "vocab_size": 1000, "max_position_embeddings": 4096{more} }}"#
    );
    Model::from_config("x", &config).map_or_else(|why| why.join("; "), |model| model.left_out().join("; "))
}

/// Defaults are those of `configuration_<type>.py` of huggingface/transformers.
#[test]
fn a_mixture_without_its_experts_has_those_of_its_class_or_is_refused() {
    let told = |key: &str, value: u64| format!("key `{key}`, which is missing, counts as {value}");
    for (kind, more, expected) in [
        ("mixtral", "", vec![told("num_local_experts", 8), told("num_experts_per_tok", 2)]),
        ("gpt_oss", "", vec![told("num_local_experts", 128), told("num_experts_per_tok", 4)]),
        ("olmoe", r#", "num_experts": 32"#, vec![told("num_experts_per_tok", 8)]),
        ("qwen3_moe", r#", "num_experts": 32, "num_experts_per_tok": 4"#, vec![told("moe_intermediate_size", 768)]),
        ("qwen2", r#", "use_sliding_window": true, "sliding_window": 512"#, vec![told("max_window_layers", 28)]),
    ] {
        let found = findings(kind, more);
        assert!(expected.iter().all(|part| found.contains(part)), "{kind}: {found}");
    }
    for (kind, key) in [("dots1", "n_routed_experts"), ("hunyuan_v1_moe", "num_experts")] {
        assert!(findings(kind, "").contains(&format!("key `{key}` is missing")), "{kind}");
    }
    // None are stated.
    assert_eq!(findings("mixtral", r#", "num_local_experts": 0"#), "");
    assert_eq!(findings("qwen2", ""), "");
}

#[test]
fn values_that_cannot_be_are_findings() {
    let delta = r#", "linear_num_key_heads": 16, "linear_num_value_heads": 33, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64"#;
    let jamba = r#", "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2"#;
    for (kind, more, part) in [
        (
            "llama4_text",
            r#", "no_rope_layers": [1, 1, 1]"#,
            "`no_rope_layers` is a list of 3 layers, allowed are lists of the 4",
        ),
        ("llama4_text", r#", "moe_layers": [4]"#, "`moe_layers` is with 4, allowed are layers from 0 to 3"),
        ("lfm2", r#", "conv_L_cache": 3, "full_attn_idxs": [99]"#, "`full_attn_idxs` is with 99"),
        (
            "jamba",
            &format!(r#"{jamba}, "expert_layer_offset": 2"#),
            "`expert_layer_offset` is 2, allowed are numbers below the 2",
        ),
        (
            "hunyuan_v1_moe",
            r#", "num_experts": 4, "moe_topk": [1, 1, 1, 1], "moe_intermediate_size": [64, 64, 64]"#,
            "`moe_intermediate_size` is a list of 3 layers",
        ),
        ("minimax_m2", r#", "attn_type_list": [1, 1, 1]"#, "`attn_type_list` is a list of 3 layers"),
        ("qwen3_next", delta, "16 key heads do not divide 33 value heads"),
        ("llama", r#", "head_dim": 63"#, "`head_dim` is 63, allowed are even numbers"),
        ("qwen3", r#", "num_key_value_heads": 8, "n_layer": 10"#, "key `n_layer` is left out"),
        (
            "qwen3_moe",
            r#", "num_experts": 8, "num_experts_per_tok": 4, "num_experts_per_token": 2"#,
            "key `num_experts_per_token`",
        ),
    ] {
        let found = findings(kind, more);
        assert!(found.contains(part), "{kind}: {found}");
    }
    let llama = |model_type: &str| {
        let config = format!(
            r#"{{ {model_type} "hidden_size": 513, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 9 }}"#
        );
        Model::from_config("x", &config).expect_err("odd").join("; ")
    };
    assert!(llama(r#""model_type": "llama","#).contains("`hidden_size` is 513, allowed are multiples of the 8 heads"));
    assert!(llama("").contains("key `model_type` is missing"));
    assert!(llama(r#""model_type": null,"#).contains("key `model_type` is missing"));
    assert!(llama(r#""model_type": 5,"#).contains("`model_type` is 5, allowed"));
    // A section's own empty type is none of the model.
    let mpt = r#", "d_model": 512, "n_heads": 8, "n_layers": 4, "attn_config": { "model_type": "" }"#;
    assert!(!findings("mpt", mpt).contains("model_type"), "{}", findings("mpt", mpt));
}
