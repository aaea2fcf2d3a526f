//! Formats that files name in ways of their own, and a file whose type is its publisher's own.

use hw::Format;

use super::GLM_5;
use crate::formats::Formats;
use crate::frozen::Frozen;
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

/// A model in such formats, with so many bytes of weights in 16-bit activations on one GPU.
fn weight_bytes(widths: &str, how: &str) -> (f64, Vec<String>) {
    let config = format!("{{ {widths}, \"quantization_config\": {{ {how} }} }}");
    let model = Model::from_config("x", &config).expect(how);
    let [n_layers, n_expert] = [model.n_layers, model.n_expert_layers()].map(|n| u32::try_from(n).expect("few"));
    let n_dense = n_layers - n_expert;
    let stage = crate::stage::Stage { n_dense, n_expert, first: true, last: true, ..crate::stage::Stage::NONE };
    let shard = crate::shard::Shard::forward(&model, hw::Dtype::Bf16, 1);
    let shard = crate::shard::Shard { formats: model.formats, ..shard };
    (crate::memory::stage_weight_bytes(&shard, &stage), model.left_out())
}

/// Llama-3.1-8B, whose three matrices of a feed-forward have as many parameters each.
const LLAMA_8B: &str = r#""model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192"#;
const LLAMA_MATRIX: f64 = 4096.0 * 14_336.0 * 32.0;

/// Names of every layer, quoted.
fn of_layers(layers: std::ops::Range<u32>, names: &[&str]) -> String {
    let of_layer = |index| names.iter().map(move |name| format!("\"model.layers.{index}.{name}\""));
    layers.flat_map(of_layer).collect::<Vec<_>>().join(", ")
}

#[test]
fn each_matrix_that_stays_whole_takes_16_bits() {
    let fp8 = |names: &str| weight_bytes(LLAMA_8B, &format!(r#""quant_method": "fp8", "ignored_layers": [{names}]"#));
    let (plain, left_out) = fp8("");
    assert!((plain / 9.0812e9 - 1.0).abs() < 1e-4 && left_out.is_empty(), "{plain}");
    // A byte more for every parameter that is kept in 16 bits, whichever matrices of the feed-forward they are.
    for (names, n) in [
        (r#""re:.*down_proj""#.to_owned(), 1.0),
        (r#""re:.*gate_proj""#.to_owned(), 1.0),
        (r#""re:.*up_proj""#.to_owned(), 1.0),
        (of_layers(0..32, &["mlp.down_proj"]), 1.0),
        (of_layers(0..32, &["mlp.gate_proj", "mlp.up_proj"]), 2.0),
        (of_layers(0..16, &["mlp.down_proj"]), 0.5),
        (of_layers(0..8, &["mlp.gate_proj"]), 0.25),
        (of_layers(0..32, &["mlp"]), 3.0),
    ] {
        let (bytes, left_out) = fp8(&names);
        assert!((bytes - plain - n * LLAMA_MATRIX).abs() < 64.0, "{names}: {bytes} beside {plain}");
        // What kernels are timed in is told where a part has two formats.
        assert_eq!(left_out.is_empty(), n >= 3.0, "{names}: {left_out:?}");
    }
    // Four bits with 20 more per 128, and 8.
    let gptq = |more: &str| {
        weight_bytes(LLAMA_8B, &format!(r#""quant_method": "gptq", "bits": 4, "group_size": 128{more}"#)).0
    };
    let bits = 8.0 - 4.0 - 20.0 / 128.0;
    let wide = gptq(r#", "dynamic": { "+:.*down_proj.*": { "bits": 8 } }"#) - gptq("");
    assert!((wide - LLAMA_MATRIX * bits / 8.0).abs() < 64.0, "{wide}");
    // GPTQ of attention alone.
    let alone = gptq(
        r#", "modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"], ["self_attn.v_proj"], ["self_attn.o_proj"]]"#,
    );
    let whole = 3.0 * LLAMA_MATRIX * (16.0 - 4.0 - 20.0 / 128.0) / 8.0;
    assert!((alone - gptq("") - whole).abs() < 64.0, "{alone}");
    // Scales of groups of 64 take as many bits more as they are more.
    let small = weight_bytes(LLAMA_8B, r#""quant_method": "awq", "bits": 4, "group_size": 64"#).0;
    let packed = 3.0 * LLAMA_MATRIX + 32.0 * 4096.0 * (2.0 * 4096.0 + 2.0 * 1024.0);
    assert!((small - gptq("") - packed * 20.0 / 128.0 / 8.0).abs() < 64.0, "{small}");
}

/// Parameters of matrices in a model's files by their names, under which every one of a layer is found.
#[test]
fn matrices_of_layers_with_names_of_their_own_stay_whole() {
    // `modeling_longcat_flash.py` of transformers 5.24: two attentions and two feed-forwards in a layer, and experts beside them.
    let longcat = r#""model_type": "longcat_flash", "num_layers": 3, "hidden_size": 512, "ffn_hidden_size": 1024, "expert_ffn_hidden_size": 256,
        "num_attention_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "n_routed_experts": 8, "zero_expert_num": 2, "moe_topk": 2, "vocab_size": 1000, "max_position_embeddings": 4096"#;
    let mixer = 512 * 96 + 96 * 4 * 48 + 512 * 80 + 64 * 4 * 64 + 4 * 32 * 512;
    // `step3_text.py`, `step3p5.py`, `minimax_m3/nvidia/model.py` and `hy_v3.py` of vLLM 0.32, `load_weights`.
    let common = r#""hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 64, "vocab_size": 1000, "intermediate_size": 256"#;
    let step3 = format!(
        r#""model_type": "step3_text", {common}, "num_attention_groups": 1, "share_q_dim": 128, "max_seq_len": 4096, "moe_num_experts": 8,
        "moe_top_k": 2, "moe_intermediate_size": 128, "share_expert_dim": 128, "moe_layers_enum": "1,2""#
    );
    let hunyuan = format!(
        r#""model_type": "hy_v3", {common}, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
        "num_shared_experts": 1, "first_k_dense_replace": 1, "max_position_embeddings": 4096"#
    );
    for (widths, names, n) in [
        (longcat, of_layers(0..3, &["self_attn.0"]), 3 * mixer),
        (longcat, of_layers(1..2, &["self_attn.1.q_a_proj", "self_attn.1.q_b_proj"]), 512 * 96 + 96 * 4 * 48),
        (longcat, of_layers(2..3, &["mlps.0"]), 3 * 512 * 1024),
        (longcat, of_layers(2..3, &["mlps.1.down_proj"]), 512 * 1024),
        (longcat, of_layers(0..3, &["mlp.experts"]), 3 * 8 * 3 * 512 * 256),
        // Norms of the vectors go with attention where all of it is wide.
        (
            longcat,
            of_layers(0..3, &["self_attn", "mlps", "mlp"]),
            6 * (mixer + 96 + 64 + 3 * 512 * 1024) + 3 * 8 * 3 * 512 * 256,
        ),
        (&step3, of_layers(0..3, &["self_attn.wq"]), 3 * 128 * 256),
        (&step3, of_layers(0..1, &["self_attn.q_proj"]), 512 * 128),
        (&step3, of_layers(1..2, &["moe.gate_proj", "share_expert.up_proj"]), 8 * 512 * 128 + 512 * 128),
        (&hunyuan, of_layers(1..3, &["mlp.shared_mlp"]), 2 * 3 * 512 * 128),
        (&hunyuan, of_layers(2..3, &["mlp.experts.3.up_proj"]), 512 * 128),
    ] {
        let fp8 =
            |names: &str| weight_bytes(widths, &format!(r#""quant_method": "fp8", "ignored_layers": [{names}]"#)).0;
        let more = fp8(&names) - fp8("");
        assert!((more - f64::from(n)).abs() < 64.0, "{names}: {more} beside {n}");
    }
}

#[test]
fn experts_that_are_listed_one_by_one_stay_whole() {
    // Qwen3-30B-A3B.
    let widths = r#""model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8"#;
    let fp8 =
        |names: &str| weight_bytes(widths, &format!(r#""quant_method": "fp8", "modules_to_not_convert": [{names}]"#)).0;
    let plain = fp8("");
    let matrix = 2048.0 * 768.0 * 48.0 * 128.0;
    let listed = |experts: std::ops::Range<u32>| {
        let names = ["gate_proj", "up_proj", "down_proj"];
        let of_expert = |expert| names.map(|name| format!("mlp.experts.{expert}.{name}"));
        let names: Vec<String> = experts.flat_map(of_expert).collect();
        of_layers(0..48, &names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (names, n) in [
        (r#""re:.*experts.*""#.to_owned(), 3.0),
        (r#""re:.*down_proj""#.to_owned(), 1.0),
        (listed(0..128), 3.0),
        (listed(0..32), 0.75),
        (r#""re:.*experts\\.(0|1)\\..*""#.to_owned(), 3.0 * 2.0 / 128.0),
    ] {
        let found = fp8(&names) - plain;
        assert!((found - n * matrix).abs() < 96.0, "{:.60}: {found}", names);
    }
}

#[test]
fn names_of_an_encoder_change_no_layer_of_text() {
    let names: Vec<String> = (0..27)
        .flat_map(|index| {
            ["self_attn.q_proj", "self_attn.out_proj", "mlp.fc1"]
                .map(|name| format!("\"vision_tower.vision_model.encoder.layers.{index}.{name}\""))
        })
        .collect();
    let widths = LLAMA_8B.replace("\"llama\"", "\"gemma3_text\"");
    let fp8 = |names: &str| weight_bytes(&widths, &format!(r#""quant_method": "fp8", "ignored_layers": [{names}]"#));
    assert_eq!(fp8(&names.join(", ")), fp8(""));
}

#[test]
fn what_a_quantisation_says_in_vain_is_named() {
    let left_out = |how: &str| weight_bytes(LLAMA_8B, how).1.join("; ");
    for (how, part) in [
        (r#""quant_method": "fp8", "weight_block_sizes": [128, 128]"#, "key `quantization_config.weight_block_sizes`"),
        (
            r#""quant_method": "fp8", "modules_to_not_convrt": ["lm_head"]"#,
            "`quantization_config.modules_to_not_convrt`",
        ),
        (
            r#""quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.down_prj"]"#,
            "names `model.layers.3.mlp.down_prj`",
        ),
        (r#""quant_method": "fp8", "sparsity_config": { "sparsity_structure": "2:4" }"#, "sparsity of weights"),
    ] {
        assert!(left_out(how).contains(part), "{how}: {}", left_out(how));
    }
    assert_eq!(left_out(r#""quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]"#), "");
    for size in ["0", "-5", "64.5", "\"big\""] {
        let config = format!(
            r#"{{ {LLAMA_8B}, "quantization_config": {{ "quant_method": "awq", "bits": 4, "group_size": {size} }} }}"#
        );
        let findings = Model::from_config("x", &config).expect_err(size).join("; ");
        assert!(findings.contains("`quantization_config.group_size` is"), "{size}: {findings}");
    }
}

/// Files of `BitsAndBytesConfig`, with and without `quant_method`.
#[test]
fn weights_that_bitsandbytes_has_packed_are_frozen_ones() {
    let four =
        r#""quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false, "bnb_4bit_quant_type": "nf4""#;
    for (how, packed, told) in [
        (four.to_owned(), Frozen::Nf4, ""),
        (format!(r#"{four}, "bnb_4bit_use_double_quant": true, "_load_in_4bit": true"#), Frozen::Nf4Double, ""),
        (r#""load_in_8bit": true, "llm_int8_threshold": 6.0"#.to_owned(), Frozen::Int8, ""),
        (
            format!(r#"{four}, "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp"]"#),
            Frozen::Nf4,
            "which names 1 beside the head",
        ),
        (format!(r#"{four}, "bnb_4bit_compute_dtype": "float32""#), Frozen::Nf4, "products in 32 bits"),
        (format!(r#"{four}, "made_up": 3"#), Frozen::Nf4, "key `quantization_config.made_up`"),
    ] {
        let model = quantised(&how);
        assert_eq!((model.packed, model.formats), (Some(packed), Formats::of(hw::Dtype::Bf16)), "{how}");
        let found = model.left_out().join("; ");
        assert!(found.contains(told) && told.is_empty() == found.is_empty(), "{how}: {found}");
    }
}
