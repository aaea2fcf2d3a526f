//! Formats that files name in ways of their own, and a file whose type is its publisher's own.

use hw::Format;

use super::GLM_5;
use crate::model::{Mixer, Model};

/// A model of 78 layers and one that predicts, in such formats.
fn quantised(how: &str) -> Model {
    let config = GLM_5.replace("\"model_type\"", &format!("\"quantization_config\": {{ {how} }}, \"model_type\""));
    Model::from_config("x", &config).expect(how)
}

#[test]
fn bits_may_be_a_word() {
    let format = |how: &str| quantised(how).formats.experts;
    assert_eq!(format(r#""quant_method": "awq", "bits": "4""#), Format::Int4);
    assert_eq!(format(r#""quant_method": "gptq", "bits": "8""#), Format::Int8Weights);
    let rules = r#""quant_method": "gptq", "bits": 4, "dynamic": { "+:.*experts.*": { "bits": "8" } }"#;
    assert_eq!(format(rules), Format::Int8Weights);
}

#[test]
fn small_groups_of_integers_have_their_own_scales() {
    let of = |size: u64, symmetric: bool| {
        let weights = format!(
            r#"{{ "num_bits": 4, "type": "int", "strategy": "group", "group_size": {size}, "symmetric": {symmetric} }}"#
        );
        let groups = format!(r#"{{ "group_0": {{ "targets": ["Linear"], "weights": {weights} }} }}"#);
        let model = quantised(&format!(r#""quant_method": "compressed-tensors", "config_groups": {groups}"#));
        (model.formats.experts, model.not_priced().len())
    };
    let plain = quantised(r#""quant_method": "awq", "bits": 4"#).not_priced().len();
    // moonshotai/Kimi-K2-Thinking, `quantization_config`: groups of 32, symmetric.
    assert_eq!(of(32, true), (Format::Int4By32, plain));
    assert_eq!(of(128, true), (Format::Int4, plain));
    // Zeros, and scales of groups that have no format, are named.
    assert_eq!(of(32, false), (Format::Int4By32, plain + 1));
    assert_eq!(of(64, true), (Format::Int4, plain + 1));
}

#[test]
fn groups_of_32_are_mx_formats() {
    // `MXFP4` and `MXFP8` of vllm-project/compressed-tensors, `quant_scheme.py`; `NVFP4` has groups of 16 with a scale of the tensor besides.
    let of = |packed: &str, bits: u64, strategy: &str, size: u64| {
        let side =
            format!(r#"{{ "num_bits": {bits}, "type": "float", "strategy": "{strategy}", "group_size": {size} }}"#);
        let groups = format!(r#"{{ "group_0": {{ "weights": {side}, "input_activations": {side} }} }}"#);
        quantised(&format!(r#""quant_method": "compressed-tensors", "format": "{packed}", "config_groups": {groups}"#))
            .formats
            .experts
    };
    assert_eq!(of("mxfp4-pack-quantized", 4, "group", 32), Format::Mxfp4);
    assert_eq!(of("nvfp4-pack-quantized", 4, "tensor_group", 16), Format::Nvfp4);
    assert_eq!(of("mxfp8-quantized", 8, "group", 32), Format::Mxfp8);
    assert_eq!(of("float-quantized", 8, "group", 32), Format::Mxfp8);
    assert_eq!(of("float-quantized", 8, "channel", 0), Format::Fp8);
}

#[test]
fn layers_that_predict_stay_whole_where_a_file_says_so() {
    let is_whole =
        |names: &str| quantised(&format!(r#""quant_algo": "NVFP4", "exclude_modules": [{names}]"#)).predicting_whole;
    // Lists of NVIDIA's checkpoints in NVFP4: by the number behind the last layer, or by the name of such layers.
    for names in [
        r#""model.layers.78*", "lm_head""#,
        r#""model.layers.78.*""#,
        r#""mtp*""#,
        r#""re:.*mtp.*""#,
        r#""mtp.layers.0*""#,
    ] {
        assert!(is_whole(names), "{names}");
    }
    for names in [r#""lm_head""#, r#""mtp.fc""#, r#""model.layers.78.self_attn*""#, r#""model.layers.77*""#] {
        assert!(!is_whole(names), "{names}");
    }
    assert!(!Model::from_config("x", GLM_5).expect("read").predicting_whole);
}

#[test]
fn minimax_m1_is_read_from_its_own_file() {
    // MiniMaxAI/MiniMax-M1-80k, config.json: seven layers of lightning attention to one that attends to all.
    let turns = ["0, 0, 0, 0, 0, 0, 0, 1"; 10].join(", ");
    let config = format!(
        r#"{{ "model_type": "minimax_m1", "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "num_hidden_layers": 80, "intermediate_size": 9216, "vocab_size": 200064, "num_local_experts": 32, "num_experts_per_tok": 2,
        "attn_type_list": [{turns}], "layernorm_full_attention_alpha": 3.5565588200778455, "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_alpha": 3.5565588200778455, "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_alpha": 3.5565588200778455, "layernorm_mlp_beta": 1.0, "max_position_embeddings": 10240000, "postnorm": true,
        "rotary_dim": 64, "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid", "sliding_window": null,
        "tie_word_embeddings": false }}"#
    );
    let model = Model::from_config("minimax-m1", &config).expect("read");
    // arXiv:2506.13585, abstract: 456 B parameters, of which a token uses 45.9 B.
    assert!((hw::real(model.n_parameters()) / 456e9 - 1.0).abs() < 0.005, "{}", model.n_parameters());
    let active = hw::real(model.active_parameters() - model.embedding_parameters());
    assert!((active / 45.9e9 - 1.0).abs() < 0.005, "{active}");
    let n_full = model.count(80, |layer| layer.mixer == Mixer::Full);
    // Keys and values of a token in 16 bits: ten layers, eight heads of 128.
    assert_eq!((n_full, n_full * model.kept_width() * 2), (10, 40_960));
    assert_eq!(model.not_priced(), []);
}
