//! Parts of layers beside plain heads and experts: heads by kind of layer, compressed keys, indices, states, streams and inputs of layers.

use serde_json::{Map, Value};

use super::patterns::PICKED_RATIO;
use super::reader::Reader;
use super::types::Family;
use crate::model::{
    CompressedAttention, Heads, HeadsByLayer, Index, IndexMade, LayerInputs, LinearAttention, LinearRule, StateSpace,
    Streams,
};

/// Widths of Gemma 4 and Gemma 3n where a file does not say so.
const GEMMA4_WHOLE_DIM: u64 = 512;
const GEMMA_INPUTS: u64 = 256;
const GEMMA_INPUT_ROWS: u64 = 262_144;
/// Streams of types that have them where a file does not say so.
const STREAMS: u64 = 4;
/// Numbers of state of a channel of Mamba-1 and tokens of its convolution where a file does not say so.
const MAMBA_1: [u64; 2] = [16, 4];

/// Heads, where the type has others in layers with a window, or values of another width.
pub(super) fn heads(family: Family, plain: Heads, reader: &mut Reader<'_>) -> Option<HeadsByLayer> {
    let found = match family {
        Family::Gemma4 | Family::Gemma4Unified => {
            let is_one = reader.flag("attention_k_eq_v", false);
            let whole_dim = reader.optional(&["global_head_dim"]).unwrap_or(GEMMA4_WHOLE_DIM);
            let stated = reader.optional(&["num_global_key_value_heads"]);
            let n_kv = stated.filter(|_| is_one).unwrap_or(plain.n_kv);
            let whole = Heads { n_kv, key_dim: whole_dim, value_dim: whole_dim, projects_values: !is_one, ..plain };
            HeadsByLayer { whole, windowed: plain }
        }
        Family::MimoV2 => {
            let value_dim = reader.optional(&["v_head_dim"]).unwrap_or(plain.key_dim);
            let sinks = reader.flag("add_full_attention_sink_bias", false);
            let whole = Heads { value_dim, sinks, ..plain };
            let windowed = Heads {
                n: reader.optional(&["swa_num_attention_heads"]).unwrap_or(plain.n),
                n_kv: reader.optional(&["swa_num_key_value_heads"]).unwrap_or(2 * plain.n_kv),
                key_dim: reader.optional(&["swa_head_dim"]).unwrap_or(plain.key_dim),
                value_dim: reader.optional(&["swa_v_head_dim"]).unwrap_or(value_dim),
                sinks: reader.flag("add_swa_attention_sink_bias", true),
                ..whole
            };
            HeadsByLayer { whole, windowed }
        }
        Family::Step => {
            let other = "attention_other_setting";
            let n = reader.optional(&["num_sliding_attention_heads"]);
            let n = n.or_else(|| reader.count_under(other, "num_attention_heads"));
            let n_kv = reader.count_under(other, "num_attention_groups");
            let n_kv = n_kv.or_else(|| reader.count_under(other, "num_key_value_heads"));
            let windowed = Heads { n: n.unwrap_or(plain.n), n_kv: n_kv.unwrap_or(plain.n_kv), ..plain };
            HeadsByLayer { whole: plain, windowed }
        }
        _ => return None,
    };
    (found.whole != plain || found.windowed != plain).then_some(found)
}

pub(super) fn compressed(family: Family, reader: &mut Reader<'_>) -> Option<CompressedAttention> {
    (family == Family::DeepseekV4).then(|| CompressedAttention {
        q_rank: reader.required(&["q_lora_rank"]),
        rope_dim: reader.optional(&["qk_rope_head_dim"]).unwrap_or(64),
        n_groups: reader.required(&["o_groups"]),
        group_rank: reader.required(&["o_lora_rank"]),
    })
}

pub(super) fn index(family: Family, selects: bool, reader: &mut Reader<'_>) -> Option<Index> {
    let plain = |pool, made, reader: &mut Reader<'_>| Index {
        n_heads: reader.required(&["index_n_heads"]),
        head_dim: reader.required(&["index_head_dim"]),
        pool,
        made,
    };
    Some(match family {
        Family::SparseLatent => plain(1, IndexMade::Weighed, reader),
        Family::DeepseekV4 => plain(PICKED_RATIO, IndexMade::Compressed, reader),
        Family::Glm5Next => {
            let pool = reader.optional(&["index_kpool"]).unwrap_or(16);
            plain(pool, IndexMade::Pooled, reader)
        }
        Family::MiniMaxM3 if selects => {
            let sparse = "sparse_attention_config";
            let [n_heads, head_dim] =
                ["sparse_num_index_heads", "sparse_index_dim"].map(|key| reader.count_under(sparse, key));
            Index {
                n_heads: n_heads.unwrap_or_else(|| reader.required(&["index_n_heads"])),
                head_dim: head_dim.unwrap_or_else(|| reader.required(&["index_head_dim"])),
                pool: 1,
                made: IndexMade::Plain,
            }
        }
        Family::Qwen4 if selects => {
            let n_keys = reader.optional(&["indexer_kv_heads"]).unwrap_or(1);
            if n_keys > 1 {
                reader.find("indexer_kv_heads", &n_keys, "1: all heads of an index share a key");
            }
            Index {
                n_heads: reader.required(&["indexer_n_heads"]),
                head_dim: reader.required(&["indexer_head_dim"]),
                pool: reader.required(&["indexer_compress_ratio"]),
                made: IndexMade::Plain,
            }
        }
        _ => return None,
    })
}

pub(super) fn streams(family: Family, reader: &mut Reader<'_>) -> Option<Streams> {
    Some(match family {
        Family::DeepseekV4 | Family::Glm5Next => Streams::Mixed {
            n: reader.optional(&["hc_mult"]).unwrap_or(STREAMS),
            learned_head: family == Family::DeepseekV4,
        },
        Family::Qwen4 => Streams::Gated {
            n: reader.optional(&["hc_count"]).unwrap_or(STREAMS),
            rank: reader.required(&["hc_lowrank"]),
        },
        Family::Gemma3n => Streams::Alternating {
            n: reader.optional(&["altup_num_inputs"]).unwrap_or(STREAMS),
            rank: reader.optional(&["laurel_rank"]).unwrap_or(64),
        },
        _ => return None,
    })
}

pub(super) fn layer_inputs(family: Family, reader: &mut Reader<'_>) -> Option<LayerInputs> {
    let default = match family {
        Family::Gemma3n | Family::Gemma4 => GEMMA_INPUTS,
        Family::Gemma4Unified => 0,
        _ => return None,
    };
    let width = reader.stated_count("hidden_size_per_layer_input").unwrap_or(default);
    let vocab = reader.optional(&["vocab_size_per_layer_input"]).unwrap_or(GEMMA_INPUT_ROWS);
    (width > 0).then_some(LayerInputs { width, vocab })
}

/// Linear attention of a type, of a model with heads of such a number and width.
pub(super) fn linear(family: Family, heads: [u64; 2], reader: &mut Reader<'_>) -> Option<LinearAttention> {
    Some(match family {
        Family::Qwen3Next | Family::Qwen4 => delta(family, reader),
        Family::KimiLinear => kimi_delta(reader),
        Family::Glm5Next if !reader.has("linear_attn_config") => {
            let [n, width] = ["linear_num_heads", "linear_head_dim"].map(|key| reader.required(&[key]));
            channels(n, width, reader.optional(&["linear_conv_kernel_dim"]).unwrap_or(4))
        }
        Family::Glm5Next => kimi_delta(reader),
        Family::Lightning => {
            let [n, width] = heads;
            LinearAttention { kernel: 0, rule: LinearRule::Lightning, ..channels(n, width, 0) }
        }
        _ => return None,
    })
}

fn delta(family: Family, reader: &mut Reader<'_>) -> LinearAttention {
    LinearAttention {
        n_key_heads: reader.required(&["linear_num_key_heads"]),
        n_value_heads: reader.required(&["linear_num_value_heads"]),
        key_dim: reader.required(&["linear_key_head_dim"]),
        value_dim: reader.required(&["linear_value_head_dim"]),
        kernel: reader.required(&["linear_conv_kernel_dim"]),
        state_bytes: delta_state_bytes(family, reader),
        rule: LinearRule::Delta,
    }
}

/// Bytes of a number of a delta net's state. Where a file does not say so (Qwen3-Next), SGLang keeps it in 32 bits (`mamba_ssm_dtype` of its `server_args.py`), as
/// later files state it; vLLM takes the 16 of the model (`gated_delta_net_state_dtype` of `mamba_utils.py` with `auto`).
fn delta_state_bytes(family: Family, reader: &mut Reader<'_>) -> u64 {
    let key = "mamba_ssm_dtype";
    if reader.has(key) {
        return state_bytes(reader, key);
    }
    if family == Family::Qwen3Next {
        reader.defaults.push((key.to_owned(), "float32, as SGLang keeps states (vLLM: 16 bits)".to_owned()));
    }
    4
}

/// Kimi delta attention by its own section of a file.
fn kimi_delta(reader: &mut Reader<'_>) -> LinearAttention {
    let keys = Map::new();
    let keys = reader.value("linear_attn_config").and_then(Value::as_object).unwrap_or(&keys);
    let mut own = Reader::new(keys);
    let [n_heads, width, kernel] = ["num_heads", "head_dim", "short_conv_kernel_size"].map(|key| own.required(&[key]));
    reader.findings.extend(own.findings.into_iter().map(|finding| format!("`linear_attn_config`: {finding}")));
    channels(n_heads, width, kernel)
}

/// As many heads of keys as of values, all of one width, which is the rank of the gates too. States are in 32 bits, as the kernels of fla keep them.
fn channels(n_heads: u64, width: u64, kernel: u64) -> LinearAttention {
    LinearAttention {
        n_key_heads: n_heads,
        n_value_heads: n_heads,
        key_dim: width,
        value_dim: width,
        kernel,
        state_bytes: 4,
        rule: LinearRule::Channels { rank: width },
    }
}

/// The state space of a type that has one.
pub(super) fn state_space(family: Family, hidden: u64, reader: &mut Reader<'_>) -> Option<StateSpace> {
    match family {
        Family::NemotronH | Family::Granite | Family::Bamba => Some(mamba_2(hidden, true, reader)),
        Family::Megatron if reader.has("hybrid_override_pattern") => Some(mamba_2(hidden, true, reader)),
        Family::FalconH1 => {
            let normed = reader.flag("mamba_rms_norm", false);
            Some(mamba_2(hidden, normed, reader))
        }
        Family::Jamba => Some(mamba_1(hidden, reader)),
        _ => None,
    }
}

fn mamba_2(hidden: u64, normed: bool, reader: &mut Reader<'_>) -> StateSpace {
    let n_heads = reader.required(&["mamba_num_heads", "mamba_n_heads"]);
    let expand = reader.optional(&["mamba_expand", "expand"]).unwrap_or(2);
    let width = reader.optional(&["mamba_d_ssm"]);
    let head_dim = if reader.word_or_none("mamba_d_head") == Some("auto") {
        width.unwrap_or(expand * hidden) / n_heads
    } else {
        reader.required(&["mamba_head_dim", "mamba_d_head"])
    };
    if let Some(width) = width.filter(|width| *width != n_heads * head_dim) {
        reader.find("mamba_d_ssm", &width, &format!("the {n_heads} heads of {head_dim}"));
    }
    StateSpace {
        n_heads,
        head_dim,
        n_groups: reader.required(&["n_groups", "mamba_n_groups"]),
        state: reader.required(&["ssm_state_size", "mamba_d_state"]),
        kernel: reader.required(&["conv_kernel", "mamba_d_conv"]),
        state_bytes: state_bytes(reader, "mamba_ssm_cache_dtype"),
        normed,
        step_rank: None,
    }
}

/// Mamba-1: every channel is a head, and nothing that goes into the state passes the convolution.
fn mamba_1(hidden: u64, reader: &mut Reader<'_>) -> StateSpace {
    let expand = reader.optional(&["mamba_expand"]).unwrap_or(2);
    let step_rank = match reader.word_or_none("mamba_dt_rank") {
        Some(_) => hidden.div_ceil(16),
        None => reader.optional(&["mamba_dt_rank"]).unwrap_or(hidden.div_ceil(16)),
    };
    StateSpace {
        n_heads: expand * hidden,
        head_dim: 1,
        n_groups: 0,
        state: reader.optional(&["mamba_d_state"]).unwrap_or(MAMBA_1[0]),
        kernel: reader.optional(&["mamba_d_conv"]).unwrap_or(MAMBA_1[1]),
        state_bytes: state_bytes(reader, "mamba_ssm_cache_dtype"),
        normed: false,
        step_rank: Some(step_rank),
    }
}

/// Bytes of a number of state; 16 bits where the file does not say so.
fn state_bytes(reader: &mut Reader<'_>, key: &str) -> u64 {
    match reader.word(key) {
        None | Some("bfloat16" | "float16" | "auto") => 2,
        Some("float32") => 4,
        Some(other) => {
            reader.find(key, &other, "float32, bfloat16, float16");
            2
        }
    }
}
