//! Models whose layers a search over architectures chose (Puzzle, arXiv:2411.19146): `block_configs` says of each what it keeps.
//!
//! Approximation: feed-forwards of all layers have the mean of their widths, so parameters and operations are those of the model. Source of the keys:
//! `configuration_decilm.py` and `block_config.py` of nvidia/Llama-3_3-Nemotron-Super-49B-v1.

use serde_json::{Map, Value};

use super::reader::Reader;
use crate::model::{FeedForward, Layer, Mixer};

/// Widths of feed-forwards are rounded up to a multiple of this (`_find_multiple` in `modeling_decilm.py`).
const WIDTH_MULTIPLE: u64 = 256;
/// The mean of them is rounded to a multiple of this, so that tensor groups can cut it.
const MEAN_MULTIPLE: u64 = 64;
/// What a block may say that no kernel is known for.
const UNKNOWN: [&str; 5] = ["replace_with_linear", "sparsify", "num_sink_tokens", "unshifted_sink", "window_length"];

/// Layers, each with attention or without and with a feed-forward or without.
pub(super) fn layers(reader: &mut Reader<'_>) -> Vec<Layer> {
    let of = |[attention, feed_forward]: [&Map<String, Value>; 2]| Layer {
        mixer: if is_off(attention) { Mixer::Off } else { Mixer::Full },
        feed_forward: if is_off(feed_forward) { FeedForward::Off } else { FeedForward::Dense },
    };
    blocks(reader).into_iter().map(of).collect()
}

/// Mean width of the feed-forwards: two thirds of a multiple of the hidden width each, rounded up.
pub(super) fn width(hidden: u64, reader: &mut Reader<'_>) -> u64 {
    let of = |[_, feed_forward]: [&Map<String, Value>; 2]| {
        let multiple = feed_forward.get("ffn_mult").and_then(Value::as_f64).filter(|_| !is_off(feed_forward))?;
        Some(hw::whole((2.0 * multiple * hw::real(hidden) / 3.0).floor()).next_multiple_of(WIDTH_MULTIPLE))
    };
    let widths: Vec<u64> = blocks(reader).into_iter().filter_map(of).collect();
    let mean = hw::real(widths.iter().sum::<u64>()) / hw::real(widths.len().max(1) as u64);
    hw::whole((mean / hw::real(MEAN_MULTIPLE)).round().max(1.0)) * MEAN_MULTIPLE
}

/// Key-value heads, of which all layers with attention have as many.
pub(super) fn n_kv_heads(n_heads: u64, reader: &mut Reader<'_>) -> Option<u64> {
    let of = |[attention, _]: [&Map<String, Value>; 2]| attention.get("n_heads_in_group").and_then(Value::as_u64);
    let groups: Vec<u64> = blocks(reader).into_iter().filter_map(of).collect();
    let first = groups.first().copied().filter(|group| *group > 0)?;
    if groups.iter().any(|group| *group != first) {
        reader.find("block_configs", &"a list with several `n_heads_in_group`", "one number for all layers");
    }
    Some((n_heads / first).max(1))
}

/// Attention and feed-forward of every block.
fn blocks<'a>(reader: &mut Reader<'a>) -> Vec<[&'a Map<String, Value>; 2]> {
    let Some(listed) = reader.value("block_configs").and_then(Value::as_array) else {
        reader.findings.push("key `block_configs` is missing".to_owned());
        return Vec::new();
    };
    let of = |block: &'a Value| Some([block.get("attention")?.as_object()?, block.get("ffn")?.as_object()?]);
    let found: Vec<_> = listed.iter().filter_map(of).collect();
    if found.len() < listed.len() {
        reader.find("block_configs", &"a list with other blocks", "blocks with `attention` and `ffn`");
    }
    let odd = |part: &&Map<String, Value>| UNKNOWN.into_iter().find(|key| part.get(*key).is_some_and(says_more));
    if let Some(key) = found.iter().flatten().find_map(odd) {
        reader.find(
            "block_configs",
            &format!("a list with `{key}`"),
            "attention to all tokens, feed-forwards and `no_op`",
        );
    }
    found
}

fn is_off(part: &Map<String, Value>) -> bool {
    part.get("no_op").and_then(Value::as_bool).unwrap_or(false)
}

fn says_more(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}
