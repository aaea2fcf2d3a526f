//! Mixers of layers as `layer_types` and `sliding_window` name them, whatever the family.

use super::reader::Reader;
use super::types::Family;
use crate::model::Mixer;

/// A window, where the file has one that is in use.
pub(super) fn window(family: Family, reader: &mut Reader<'_>) -> Mixer {
    let width = reader.optional(&["sliding_window"]);
    let is_used = reader.flag("use_sliding_window", family != Family::Qwen);
    width.filter(|_| is_used).map_or(Mixer::Full, Mixer::Window)
}

/// Layers as `layer_types` lists them, perhaps with those that predict tokens further on: `whole` where they attend to all tokens or to what an index
/// picks of all, or `rest`.
pub(super) fn listed(reader: &mut Reader<'_>, words: &[&str], n: u64, whole: Mixer, rest: Mixer) -> Vec<Mixer> {
    let found = words.len() as u64;
    if found != n && found != n + reader.count("num_nextn_predict_layers") {
        let found = format!("a list of {found} layers");
        reader.find("layer_types", &found, &format!("lists of the {n} of `num_hidden_layers`"));
    }
    let words = &words[..words.len().min(usize::try_from(n).expect("few layers"))];
    let mut unknown = std::collections::BTreeSet::new();
    let mut mixers = Vec::with_capacity(words.len());
    for word in words {
        mixers.push(listed_mixer(word, whole, rest).unwrap_or(whole));
        if listed_mixer(word, whole, rest).is_none() {
            unknown.insert(*word);
        }
    }
    for word in unknown {
        let allowed = match (whole, rest) {
            (_, Mixer::Window(_)) => "full_attention, sliding_attention",
            (_, Mixer::Chunked(_)) => "full_attention, chunked_attention",
            (Mixer::Selected(_), Mixer::Linear) => "full_attention, indexed_attention, linear_attention",
            (_, Mixer::Linear) => "full_attention, linear_attention",
            (_, Mixer::StateSpace) => "attention, mamba",
            (_, Mixer::Selected(_)) => "full_attention, deepseek_sparse_attention, minimax_m3_sparse",
            (_, Mixer::Convolution) => "full_attention, conv",
            _ => "full_attention, and sliding_attention with a `sliding_window` that is in use",
        };
        reader.find("layer_types", &format!("with `{word}`"), allowed);
    }
    mixers
}

/// The mixer of a word, where layers may be `rest` besides.
fn listed_mixer(word: &str, whole: Mixer, rest: Mixer) -> Option<Mixer> {
    match (word, whole, rest) {
        ("full_attention", ..)
        | ("attention", _, Mixer::StateSpace)
        | ("indexed_attention", Mixer::Selected(_), Mixer::Linear) => Some(whole),
        ("deepseek_sparse_attention" | "minimax_m3_sparse", _, Mixer::Selected(_))
        | ("sliding_attention", _, Mixer::Window(_))
        | ("chunked_attention", _, Mixer::Chunked(_))
        | ("linear_attention", _, Mixer::Linear)
        | ("linear_attention" | "mamba", _, Mixer::StateSpace)
        | ("conv", _, Mixer::Convolution) => Some(rest),
        _ => None,
    }
}

/// Every so many-th layer from one on.
pub(super) fn turns(reader: &mut Reader<'_>, [period_key, offset_key]: [&str; 2]) -> (u64, u64) {
    let (period, offset) = (reader.required(&[period_key]), reader.count(offset_key));
    if offset >= period {
        reader.find(offset_key, &offset, &format!("numbers below the {period} of `{period_key}`"));
    }
    (period, offset)
}

/// Refuses a layer behind the last one in a list of layers.
pub(super) fn within(reader: &mut Reader<'_>, key: &str, layers: &[u64], n: u64) {
    if let Some(far) = layers.iter().find(|index| **index >= n) {
        reader.find(key, &format!("with {far}"), &format!("layers from 0 to {}", n - 1));
    }
}
