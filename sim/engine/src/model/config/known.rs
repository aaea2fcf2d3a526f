//! Keys of a `config.json` that change neither time nor memory, and what is left over of it.

use serde_json::{Map, Value};

use super::reader::Reader;
use crate::model::Unpriced;

/// Keys without a say in time and memory: names, tokens, training, numerics, positions, and what a key that is read implies.
const SILENT: &str = include_str!("silent.txt");

/// Parts of names of such keys.
const SILENT_PARTS: [&str; 15] = [
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
    "multiplier",
    "alpha_factor",
    "beta_factor",
];

/// What the keys name that is not priced: encoders of sound, those of images that are not known, and keys that nobody reads.
pub(super) fn unpriced(reader: &mut Reader<'_>, knows_vision: bool, knows_linear: bool) -> Vec<Unpriced> {
    let mut parts = Vec::new();
    // MiniMax-M2 lists a 1 for every layer with full attention, and has no others; MiniMax-M1 has a pattern of both.
    let stated = reader.numbers("attn_type_list");
    let n = reader.count("num_hidden_layers");
    if let Some(list) = stated.as_ref().filter(|list| n > 0 && list.len() as u64 != n) {
        let found = format!("a list of {} layers", list.len());
        reader.find("attn_type_list", &found, &format!("lists of the {n} of `num_hidden_layers`"));
    }
    let plain = knows_linear || stated.is_none_or(|list| list.iter().all(|kind| *kind == 1));
    if !plain {
        parts.push(Unpriced::left_out("layers other than 1 of `attn_type_list`".to_owned(), 0));
    }
    for (key, what) in [("talker_config", "model that speaks"), ("code2wav_config", "model that makes sound")] {
        if reader.has(key) {
            parts.push(Unpriced::left_out(format!("{what} (`{key}`)"), 0));
        }
    }
    for (key, what) in [("vision_config", "vision encoder"), ("audio_config", "audio encoder")] {
        if let Some(Value::Object(keys)) = reader.value(key)
            && !(knows_vision && key == "vision_config")
        {
            parts.push(Unpriced::left_out(format!("{what} (`{key}`)"), encoder(keys)));
        }
    }
    parts.extend(ngrams(reader));
    let default = |(key, value): (String, String)| Unpriced::taken(format!("key `{key}`, which is missing,"), value, 0);
    parts.extend(std::mem::take(&mut reader.defaults).into_iter().map(default));
    let is_silent =
        |key: &str| SILENT.lines().any(|silent| silent == key) || SILENT_PARTS.iter().any(|part| key.contains(part));
    let unread = reader.left_over().filter(|key| !is_silent(key));
    parts.extend(unread.map(|key| Unpriced::left_out(format!("key `{key}`"), 0)));
    parts
}

/// Tables of several tokens together that Qwen4 looks up in some layers: a table of so many rows for each head and length, two projections, three
/// norms and a convolution over all streams. The rows are the primes behind what a file says, so there are a few more.
fn ngrams(reader: &mut Reader<'_>) -> Option<Unpriced> {
    let n_layers = reader.numbers("ple_layer_ids")?.len() as u64;
    let counts = ["ngram_size", "heads_per_ngram", "ngram_vocab_size_base", "ple_embed_dim", "ple_conv_kernel_size"];
    let [size, heads, rows, width, kernel] = counts.map(|key| reader.count(key));
    let _ = reader.count("make_ngram_vocab_size_divisible_by");
    let [streams, hidden] = ["hc_count", "hidden_size"].map(|key| reader.count(key));
    let width = if width == 0 { hidden } else { width };
    let of_layer = size.saturating_sub(1).saturating_mul(heads).saturating_mul(rows);
    let table = of_layer.saturating_mul(width / size.saturating_sub(1).saturating_mul(heads).max(1));
    let around = width.saturating_mul(hidden).saturating_mul(streams + 1);
    let mixed = streams.saturating_mul(hidden).saturating_mul(kernel + 3);
    let parameters = table.saturating_add(around).saturating_add(mixed).saturating_mul(n_layers).min(ENCODER_MAX);
    (n_layers > 0)
        .then(|| Unpriced::left_out("look-ups of several tokens together (`ple_layer_ids`)".to_owned(), parameters))
}

/// Parameters of an encoder's layers: four square matrices of attention and two of the feed-forward; 0 where a width is not given.
fn encoder(keys: &Map<String, Value>) -> u64 {
    let count = |names: &[&str]| names.iter().find_map(|name| keys.get(*name).and_then(Value::as_u64)).unwrap_or(0);
    let layers = count(&["depth", "num_hidden_layers", "vt_num_hidden_layers", "encoder_layers", "layers"]);
    let hidden = count(&["hidden_size", "vt_hidden_size", "d_model", "width"]);
    let wide = count(&["intermediate_size", "vt_intermediate_size", "encoder_ffn_dim"]);
    layers
        .saturating_mul(hidden.saturating_mul(4).saturating_add(wide.saturating_mul(2)))
        .saturating_mul(hidden)
        .min(ENCODER_MAX)
}

/// Largest encoder that is taken for real, in parameters.
const ENCODER_MAX: u64 = 1_000_000_000_000;
