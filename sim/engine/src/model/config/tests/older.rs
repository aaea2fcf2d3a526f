//! Falcon, BLOOM and Arctic against the parameters of their checkpoints.

use crate::model::{FeedForward, Model, Norms};

fn of(config: &str) -> Model {
    Model::from_config("x", config).unwrap_or_else(|findings| panic!("{}", findings.join("; ")))
}

/// The parameters, but for biases of norms and feed-forwards.
fn holds(model: &Model, checkpoint: u64) {
    let off = model.n_parameters().abs_diff(checkpoint);
    assert!(off * 5000 <= checkpoint, "{} against {checkpoint}", model.n_parameters());
    assert_eq!(model.not_priced(), []);
}

/// Keys of tiiuae/falcon-7b and falcon-40b. Their checkpoints hold the table of the head beside that of the embedding, of which it is a copy: 14,434,379,520
/// bytes of 16 bits (`total_size` of the index), and 41.8B parameters.
#[test]
fn falcon_has_the_parameters_of_its_checkpoints() {
    let seven = r#"{ "model_type": "falcon", "alibi": false, "apply_residual_connection_post_layernorm": false, "bias": false,
        "hidden_size": 4544, "layer_norm_epsilon": 1e-05, "multi_query": true, "new_decoder_architecture": false, "num_attention_heads": 71,
        "num_hidden_layers": 32, "parallel_attn": true, "vocab_size": 65024 }"#;
    let model = of(seven);
    holds(&model, 14_434_379_520 / 2 - 65_024 * 4544);
    assert_eq!((model.n_kv_heads, model.head_dim, model.norms, model.tied), (1, 64, Norms::Shared, true));
    let forty = r#"{ "model_type": "falcon", "alibi": false, "bias": false, "hidden_size": 8192, "new_decoder_architecture": true,
        "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8, "parallel_attn": true, "vocab_size": 65024 }"#;
    let model = of(forty);
    let stored = model.n_parameters() + 65_024 * 8192;
    assert!(stored.abs_diff(41_800_000_000) < 50_000_000, "{stored}");
    assert_eq!((model.n_kv_heads, model.norms), (8, Norms::Each));
    // Falcon 11B has one norm in the new architecture; a model of the first papers has as many heads of keys, and biases.
    assert_eq!(of(&forty.replace("\"alibi\"", "\"num_ln_in_parallel_attn\": 1, \"alibi\"")).norms, Norms::Shared);
    let plain = seven
        .replace("\"multi_query\": true", "\"multi_query\": false")
        .replace("\"parallel_attn\": true", "\"parallel_attn\": false");
    let plain = of(&plain.replace("\"bias\": false", "\"bias\": true"));
    assert_eq!((plain.n_kv_heads, plain.norms, plain.qkv_bias, plain.output_bias), (71, Norms::Each, true, true));
}

/// Keys of bigscience/bloom-7b1 and bloom. A layer has 12h² + 13h parameters; around the layers are a table and two norms. That is 7,069,016,064 and
/// 176,247,271,424 parameters, as their model cards say.
#[test]
fn bloom_has_the_parameters_of_its_checkpoints() {
    for (width, n_layers, n_heads, published) in
        [(("n_embed", 4096), 30, 32, 7_069_016_064), (("hidden_size", 14_336), 70, 112, 176_247_271_424)]
    {
        let (key, hidden) = width;
        let config = format!(
            r#"{{ "model_type": "bloom", "{key}": {hidden}, "n_layer": {n_layers}, "n_head": {n_heads}, "n_inner": null, "vocab_size": 250880,
            "seq_length": 2048, "bias_dropout_fusion": true, "masked_softmax_fusion": true, "offset_alibi": 100, "skip_bias_add": true }}"#
        );
        let h: u64 = hidden;
        assert_eq!(n_layers * (12 * h * h + 13 * h) + 250_880 * h + 4 * h, published);
        let model = of(&config);
        holds(&model, published);
        assert_eq!((model.max_positions, model.gated, model.learned_positions), (2048, false, false));
    }
}

/// Keys of Snowflake/snowflake-arctic-instruct: 480B parameters, of which a token uses 17B (its model card).
#[test]
fn arctic_has_a_feed_forward_beside_its_experts() {
    let config = r#"{ "model_type": "arctic", "attention_bias": false, "enable_expert_tensor_parallelism": false, "hidden_act": "silu",
        "hidden_size": 7168, "intermediate_size": 4864, "max_position_embeddings": 4096, "moe_eval_capacity_factor": 1, "moe_layer_frequency": 1,
        "moe_min_capacity": 0, "moe_token_dropping": true, "moe_train_capacity_factor": 1, "num_attention_heads": 56, "num_experts_per_tok": 2,
        "num_hidden_layers": 35, "num_key_value_heads": 8, "num_local_experts": 128, "parallel_attn_mlp_res": true, "tie_word_embeddings": false,
        "use_residual": true, "vocab_size": 32000 }"#;
    let model = of(config);
    let (attention, experts) = (7168 * (7168 + 2 * 1024) + 7168 * 7168, 128 * (3 * 7168 * 4864 + 7168));
    let outside = 2 * 32_000 * 7168;
    holds(&model, 35 * (attention + 3 * 7168 * 7168 + experts + 3 * 7168) + 7168 + outside);
    assert!(model.n_parameters().abs_diff(480_000_000_000) < 4_000_000_000, "{}", model.n_parameters());
    assert!(model.active_parameters().abs_diff(17_000_000_000) < 1_000_000_000, "{}", model.active_parameters());
    let every_second = of(&config.replace("\"moe_layer_frequency\": 1", "\"moe_layer_frequency\": 2"));
    assert_eq!(every_second.count(35, |layer| layer.feed_forward == FeedForward::Experts), 17);
}

/// Keys of Qwen/Qwen-1_8B and Qwen-7B, whose `intermediate_size` is that of both factors together. Their model cards and ms-swift's pages give 1,836,828,672 and
/// 7,721,324,544 parameters.
#[test]
fn the_first_qwen_has_the_parameters_of_its_checkpoints() {
    for (hidden, layers, heads, both, published) in
        [(2048, 24, 16, 11_008, 1_836_828_672), (4096, 32, 32, 22_016, 7_721_324_544)]
    {
        let config = format!(
            r#"{{ "model_type": "qwen", "attn_dropout_prob": 0.0, "bf16": false, "emb_dropout_prob": 0.0, "fp16": false, "fp32": false,
            "hidden_size": {hidden}, "initializer_range": 0.02, "intermediate_size": {both}, "kv_channels": 128, "layer_norm_epsilon": 1e-06,
            "max_position_embeddings": 8192, "no_bias": true, "num_attention_heads": {heads}, "num_hidden_layers": {layers}, "onnx_safe": null,
            "rotary_emb_base": 10000, "rotary_pct": 1.0, "scale_attn_weights": true, "seq_length": 8192, "tie_word_embeddings": false,
            "tokenizer_class": "QWenTokenizer", "use_cache": true, "use_dynamic_ntk": true, "use_flash_attn": "auto", "use_logn_attn": true,
            "vocab_size": 151936 }}"#
        );
        let model = of(&config);
        holds(&model, published);
        assert_eq!((model.qkv_bias, model.output_bias, model.joined), (true, false, crate::model::Joined::QUERIES));
        assert_eq!(model.not_priced(), [], "{config}");
    }
}
