//! Public files that leave out what their configuration classes take.

use crate::model::{Mixer, Model, Positions};

/// Text of google/gemma-3-12b-it and of -4b-it: the one has no width of a head, the other no heads either.
const GEMMA_3_12B: &str = r#"{ "model_type": "gemma3", "text_config": { "model_type": "gemma3_text", "hidden_size": 3840,
    "intermediate_size": 15360, "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "rope_scaling": { "factor": 8.0, "rope_type": "linear" }, "sliding_window": 1024 } }"#;
const GEMMA_3_4B: &str = r#"{ "model_type": "gemma3", "text_config": { "model_type": "gemma3_text", "hidden_size": 2560,
    "intermediate_size": 10240, "num_hidden_layers": 34, "rope_scaling": { "factor": 8.0, "rope_type": "linear" },
    "sliding_window": 1024 } }"#;

fn read(config: &str) -> Model {
    Model::from_config("x", config).expect(config)
}

#[test]
fn gemma_3_without_heads_has_the_parameters_of_its_report() {
    // arXiv:2503.19786, table 1: millions of embedding parameters and of the others.
    for (config, embedding, others, heads) in
        [(GEMMA_3_12B, 1012.0, 10_759.0, [16, 8, 256]), (GEMMA_3_4B, 675.0, 3209.0, [8, 4, 256])]
    {
        let model = read(config);
        assert_eq!([model.n_heads, model.n_kv_heads, model.head_dim], heads);
        let first = hw::real(model.first_stage_parameters()) / 1e6;
        let rest = hw::real(model.n_parameters()) / 1e6 - first;
        assert!((first / embedding - 1.0).abs() < 0.01 && (rest / others - 1.0).abs() < 0.01, "{first} and {rest}");
        // The report's scaling by 8 is in the positions of the class.
        assert_eq!(model.max_positions, 131_072);
    }
    // Keys and values of a token in the eight layers that attend to all: two of eight heads of 256 in 16 bits.
    let model = read(GEMMA_3_12B);
    let n_full = model.count(48, |layer| layer.mixer == Mixer::Full);
    assert_eq!(n_full * model.kept_width() * 2, 65_536);
}

#[test]
fn heads_of_other_classes_are_those_of_their_configurations() {
    // mistral-community/pixtral-12b leaves out the number of heads, and has Mistral-Nemo's layers.
    let pixtral = r#"{ "model_type": "llava", "text_config": { "model_type": "mistral", "head_dim": 128, "hidden_size": 5120,
        "intermediate_size": 14336, "max_position_embeddings": 1024000, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "sliding_window": null, "vocab_size": 131072 } }"#;
    let nemo = crate::model::embedded("mistral-nemo-12b").expect("embedded");
    assert_eq!(read(pixtral).n_parameters(), nemo.n_parameters());
    let of = |kind: &str, more: &str| {
        let config = format!(
            r#"{{ "model_type": "{kind}", "hidden_size": 2304, "num_hidden_layers": 26, "intermediate_size": 9216,
            "vocab_size": 256000 {more} }}"#
        );
        let model = read(&config);
        (model.n_heads, model.n_kv_heads, model.head_dim, model.max_positions)
    };
    assert_eq!(of("gemma", ""), (16, 16, 256, 8192));
    assert_eq!(of("gemma2", ""), (8, 4, 256, 8192));
    assert_eq!(of("gemma3n_text", ""), (8, 2, 256, 32_768));
    assert_eq!(of("gemma4_text", ""), (8, 4, 512, 131_072));
    assert_eq!(of("qwen3", ""), (32, 32, 128, 32_768));
    assert_eq!(of("ministral3", ""), (32, 8, 128, 262_144));
    assert_eq!(of("mixtral", ""), (32, 8, 72, 131_072));
    // What a file states holds. Without a number of key-value heads Mistral has eight, and with null as many as heads.
    assert_eq!(of("gemma2", r#", "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64"#).2, 64);
    assert_eq!(of("mistral", r#", "num_attention_heads": 16"#).1, 8);
    assert_eq!(of("mistral", r#", "num_attention_heads": 16, "num_key_value_heads": null"#).1, 16);
    // Qwen3-MoE's class has no width of a head: it is a part of the hidden width.
    let moe = r#", "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2"#;
    assert_eq!(of("qwen3_moe", moe).2, 72);
}

#[test]
fn a_model_that_flags_state_turns_heads_unless_they_say_otherwise() {
    let of = |more: &str| {
        let config = format!(
            r#"{{"model_type": "megatron", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
            "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64{more}}}"#
        );
        Model::from_config("stated", &config).unwrap().style.positions
    };
    assert_eq!(of(""), Positions::Rotary);
    assert_eq!(of(r#", "rotary_positions": true"#), Positions::Rotary);
    assert_eq!(of(r#", "rotary_positions": false"#), Positions::Off);
}
