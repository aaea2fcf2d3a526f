//! Keys of a `config.json` that change neither time nor memory, and what is left over of it.

use serde_json::{Map, Value};

use super::reader::Reader;
use crate::model::Unpriced;

/// Keys without a say in time and memory: names, tokens, training, numerics, positions, and what a key that is read implies.
const SILENT: [&str; 75] = [
    "full_attention_interval",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "mtp_transformer_layers",
    "mtp_use_dedicated_embeddings",
    "output_gate_type",
    "repetition_penalty",
    "use_conv_bias",
    "use_mamba_kernels",
    "use_mtp",
    "use_routing_bias",
    "use_unified_vision_chunk",
    "interleave_moe_layer_step",
    "_attn_implementation",
    "_name_or_path",
    "activation_function",
    "architectures",
    "aux_loss_alpha",
    "cache_implementation",
    "chunk_size",
    "dtype",
    "expand",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "hidden_act",
    "hidden_activation",
    "hidden_dropout",
    "id2label",
    "ignore_index",
    "initial_context_length",
    "initializer_range",
    "is_decoder",
    "label2id",
    "layer_norm_epsilon",
    "length_penalty",
    "max_length",
    "mlp_hidden_act",
    "mamba_hidden_act",
    "mm_tokens_per_image",
    "model_type",
    "moe_router_dtype",
    "n_ctx",
    "n_group",
    "n_groups",
    "norm_eps",
    "norm_topk_prob",
    "num_beam_groups",
    "num_beams",
    "num_logits_to_keep",
    "num_return_sequences",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "pretraining_tp",
    "qk_head_dim",
    "qk_norm_type",
    "query_pre_attn_scalar",
    "rescale_prenorm_residual",
    "return_dict",
    "rms_norm_eps",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "rotary_dim",
    "scoring_func",
    "seq_aux",
    "summary_type",
    "swiglu_limit",
    "task_specific_params",
    "temperature",
    "topk_group",
    "topk_method",
    "torch_dtype",
    "transformers_version",
    "video_placeholder",
    "ep_size",
];

/// Parts of names of such keys.
const SILENT_PARTS: [&str; 12] = [
    "rope",
    "token_id",
    "token_index",
    "dropout",
    "_pdrop",
    "time_step",
    "auto_map",
    "summary_",
    "top_",
    "typical_p",
    "use_cache",
    "encoder_no_repeat",
];

/// What the keys name that is not priced: encoders of sound, those of images that are not known, and keys that nobody reads.
pub(super) fn unpriced(reader: &mut Reader<'_>, knows_vision: bool) -> Vec<Unpriced> {
    let mut parts = Vec::new();
    // MiniMax-M2 lists a 1 for every layer with full attention, and has no others.
    let plain = reader.numbers("attn_type_list").is_none_or(|list| list.iter().all(|kind| *kind == 1));
    if !plain {
        parts.push(Unpriced { what: "layers other than 1 of `attn_type_list`".to_owned(), parameters: 0 });
    }
    for (key, what) in [("vision_config", "vision encoder"), ("audio_config", "audio encoder")] {
        if let Some(Value::Object(keys)) = reader.value(key)
            && !(knows_vision && key == "vision_config")
        {
            parts.push(Unpriced { what: format!("{what} (`{key}`)"), parameters: encoder(keys) });
        }
    }
    let is_silent = |key: &str| SILENT.contains(&key) || SILENT_PARTS.iter().any(|part| key.contains(part));
    let unread = reader.left_over().filter(|key| !is_silent(key));
    parts.extend(unread.map(|key| Unpriced { what: format!("key `{key}`"), parameters: 0 }));
    parts
}

/// Parameters of an encoder's layers: four square matrices of attention and two of the feed-forward; 0 where a width is not given.
fn encoder(keys: &Map<String, Value>) -> u64 {
    let count = |names: [&str; 3]| names.iter().find_map(|name| keys.get(*name).and_then(Value::as_u64)).unwrap_or(0);
    let layers = count(["depth", "num_hidden_layers", "vt_num_hidden_layers"]);
    let hidden = count(["hidden_size", "vt_hidden_size", "d_model"]);
    let wide = count(["intermediate_size", "vt_intermediate_size", "encoder_ffn_dim"]);
    layers
        .saturating_mul(hidden.saturating_mul(4).saturating_add(wide.saturating_mul(2)))
        .saturating_mul(hidden)
        .min(ENCODER_MAX)
}

/// Largest encoder that is taken for real, in parameters.
const ENCODER_MAX: u64 = 1_000_000_000_000;
