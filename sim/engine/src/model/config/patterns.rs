//! Which mixers the layers of a type have, where that is no period of windows: each type's own keys, and the rules of its model code without them.
//!
//! Source: huggingface/transformers 5.24.0, `configuration_<type>.py`.

use super::listed::{listed, turns, window, within};
use super::reader::Reader;
use super::types::Family;
use crate::model::Mixer;

/// Ratio of DeepSeek-V4's layers whose entries an index picks.
pub(super) const PICKED_RATIO: u64 = 4;
/// Every so many-th layer of Gemma 4 and Gemma 3n attends to all tokens, where a file does not list them.
const GEMMA4_PERIOD: u64 = 6;
const GEMMA3N_PERIOD: u64 = 5;
/// The same for MiMo-V2, whose first layer does too.
const MIMO_PERIOD: u64 = 6;
/// The same for the layers of Qwen4 and GLM-5 Next that attend to tokens that an index picks.
const INDEXED_PERIOD: u64 = 4;
/// Layers of Gemma 3n that use another one's keys and values where a file does not say so.
const GEMMA3N_REUSING: u64 = 15;
/// Tokens that GLM-5 Next's index picks where a file does not say so.
const GLM5_NEXT_PICKED: u64 = 2048;

/// Mixers of `n` layers, of types that have rules of their own.
pub(super) fn mixers(family: Family, reader: &mut Reader<'_>, n: u64) -> Option<Vec<Mixer>> {
    let alike = |mixer| (0..n).map(|_| mixer).collect();
    Some(match family {
        Family::DeepseekV4 => compressed(reader, n),
        Family::Gemma3n | Family::Gemma4 | Family::Gemma4Unified => gemma(family, reader, n),
        Family::MimoV2 => mimo(reader, n),
        Family::MiniMaxM3 => blocks(reader, n),
        Family::Longcat => alike(Mixer::Full),
        Family::FalconH1 => alike(Mixer::Joint),
        Family::Qwen4 => {
            let picked = Mixer::Selected(reader.required(&["indexer_budget"]));
            let period = reader.optional(&["full_attention_interval"]).unwrap_or(INDEXED_PERIOD);
            with_linear(reader, n, picked, period)
        }
        Family::Glm5Next => {
            let picked = reader.optional(&["index_topk"]).unwrap_or(GLM5_NEXT_PICKED);
            let mixers = with_linear(reader, n, Mixer::Selected(picked), INDEXED_PERIOD);
            shared_indices(reader, mixers)
        }
        Family::SparseLatent if reader.has("indexer_types") || reader.count("index_topk_freq") > 1 => {
            let picked = Mixer::Selected(reader.required(&["index_topk"]));
            let mixers = match reader.words("layer_types") {
                Some(words) => listed(reader, &words, n, Mixer::Full, picked),
                None => alike(picked),
            };
            shared_indices(reader, mixers)
        }
        Family::Lfm2 => convolutions(reader, n),
        Family::Jamba => {
            let (period, offset) = turns(reader, ["attn_layer_period", "attn_layer_offset"]);
            let of = |index: u64| if index % period == offset { Mixer::Full } else { Mixer::StateSpace };
            (0..n).map(of).collect()
        }
        Family::Lightning => lightning(reader, n),
        _ => return None,
    })
}

/// A list of numbers for each layer, and perhaps for those that predict tokens further on.
fn numbers_of(reader: &mut Reader<'_>, key: &str, n: u64) -> Option<Vec<u64>> {
    let predicting = reader.count("num_nextn_predict_layers");
    let mut numbers = reader.numbers(key)?;
    let found = numbers.len() as u64;
    if found != n && found != n + predicting {
        reader.find(key, &format!("a list of {found} layers"), &format!("lists of the {n} of `num_hidden_layers`"));
    }
    numbers.resize(usize::try_from(n).expect("at most the largest count of layers"), 0);
    Some(numbers)
}

/// DeepSeek-V4: tokens of a compressed entry in each layer, 0 for a window alone; or words for them.
fn compressed(reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    let window = reader.required(&["sliding_window"]);
    let picked = Some(reader.required(&["index_topk"]));
    let of_ratio = |ratio: u64| match ratio {
        0 => Some(Mixer::Window(window)),
        PICKED_RATIO => Some(Mixer::Compressed { ratio, window, picked }),
        128 => Some(Mixer::Compressed { ratio, window, picked: None }),
        _ => None,
    };
    let ratios = match (numbers_of(reader, "compress_ratios", n), reader.words("layer_types")) {
        (Some(ratios), _) => ratios,
        (None, Some(words)) => words.into_iter().map(ratio_of).collect(),
        // Two layers that compress much, then turns.
        (None, None) => (0..n).map(|index| if index > 2 && index % 2 == 1 { PICKED_RATIO } else { 128 }).collect(),
    };
    if let Some(odd) = ratios.iter().find(|ratio| of_ratio(**ratio).is_none()) {
        let allowed = "0, 4, 128 in `compress_ratios`, or sliding_attention, compressed_sparse_attention, heavily_compressed_attention";
        let found = if *odd == u64::MAX { "with another word".to_owned() } else { format!("with {odd}") };
        reader.find(if *odd == u64::MAX { "layer_types" } else { "compress_ratios" }, &found, allowed);
    }
    ratios.into_iter().map(|ratio| of_ratio(ratio).unwrap_or(Mixer::Window(window))).collect()
}

fn ratio_of(word: &str) -> u64 {
    match word {
        "sliding_attention" => 0,
        "compressed_sparse_attention" => PICKED_RATIO,
        "heavily_compressed_attention" => 128,
        _ => u64::MAX,
    }
}

/// Gemma 4 and Gemma 3n: windows, and a last part of layers that use the keys and values of a layer before of the same kind.
fn gemma(family: Family, reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    let near = window(family, reader);
    let (period, reusing) = match family {
        Family::Gemma3n => (GEMMA3N_PERIOD, reader.stated_count("num_kv_shared_layers").unwrap_or(GEMMA3N_REUSING)),
        _ => (GEMMA4_PERIOD, reader.count("num_kv_shared_layers")),
    };
    let mut mixers: Vec<Mixer> = match reader.words("layer_types") {
        Some(words) => listed(reader, &words, n, Mixer::Full, near),
        None => (1..=n).map(|layer| if layer.is_multiple_of(period) { Mixer::Full } else { near }).collect(),
    };
    // The model code makes the last layer of Gemma 4 attend to all tokens, whatever the list says.
    if family != Family::Gemma3n
        && let Some(last) = mixers.last_mut()
    {
        *last = Mixer::Full;
    }
    if reusing >= n {
        reader.find("num_kv_shared_layers", &reusing, &format!("numbers below the {n} layers"));
    }
    for mixer in mixers.iter_mut().skip(usize::try_from(n.saturating_sub(reusing)).expect("few layers")) {
        *mixer = match *mixer {
            Mixer::Window(tokens) => Mixer::Reused(Some(tokens)),
            _ => Mixer::Reused(None),
        };
    }
    mixers
}

/// MiMo-V2: `sliding_window_size` counts the tokens before a query, and the model code adds it.
fn mimo(reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    // Files carry the window under a name of chunks too.
    let _ = reader.value("attention_chunk_size");
    let stated = window(Family::MimoV2, reader);
    let near = reader.optional(&["sliding_window_size"]).map_or(stated, |before| Mixer::Window(before + 1));
    if let Some(words) = reader.words("layer_types") {
        return listed(reader, &words, n, Mixer::Full, near);
    }
    let is_full = match numbers_of(reader, "hybrid_layer_pattern", n) {
        Some(pattern) => pattern.iter().map(|kind| *kind == 0).collect(),
        None => (1..=n).map(|layer| layer == 1 || layer.is_multiple_of(MIMO_PERIOD)).collect::<Vec<bool>>(),
    };
    is_full.into_iter().map(|is_full| if is_full { Mixer::Full } else { near }).collect()
}

/// MiniMax-M3: blocks of tokens that an index picks, in the layers that are listed.
fn blocks(reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    let sparse = "sparse_attention_config";
    let block = reader.count_under(sparse, "sparse_block_size").or_else(|| reader.optional(&["index_block_size"]));
    let picked = reader.count_under(sparse, "sparse_topk_blocks").or_else(|| reader.optional(&["index_topk_blocks"]));
    let picked = Mixer::Selected(block.unwrap_or(128) * picked.unwrap_or(16));
    if let Some(words) = reader.words("layer_types") {
        return listed(reader, &words, n, Mixer::Full, picked);
    }
    let listed = reader.under(sparse).and_then(|keys| keys.get("sparse_attention_freq")?.as_array());
    let is_sparse = |index: u64| {
        let stated = listed.and_then(|list| list.get(usize::try_from(index).ok()?)?.as_u64());
        stated.is_some_and(|stated| stated > 0)
    };
    (0..n).map(|index| if is_sparse(index) { picked } else { Mixer::Full }).collect()
}

/// Linear attention, and in every so many-th layer attention to what an index picks. Files call it `full_attention` too.
fn with_linear(reader: &mut Reader<'_>, n: u64, picked: Mixer, period: u64) -> Vec<Mixer> {
    match reader.words("layer_types") {
        Some(words) => listed(reader, &words, n, picked, Mixer::Linear),
        None => (1..=n).map(|layer| if layer.is_multiple_of(period) { picked } else { Mixer::Linear }).collect(),
    }
}

/// Layers whose index is another's: as `indexer_types` lists them, or by letters (`FSSF`), or all but every so many-th.
fn shared_indices(reader: &mut Reader<'_>, mixers: Vec<Mixer>) -> Vec<Mixer> {
    let n = mixers.len();
    let every = usize::try_from(reader.count("index_topk_freq")).expect("few layers").max(1);
    let offset = usize::try_from(reader.stated_count("index_skip_topk_offset").unwrap_or(2)).expect("few layers");
    let letters = reader.word("index_topk_pattern");
    let listed = reader.words("indexer_types");
    let length = listed.as_ref().map(Vec::len).or_else(|| letters.map(str::len));
    if let Some(length) = length.filter(|length| *length != n) {
        let key = if listed.is_some() { "indexer_types" } else { "index_topk_pattern" };
        reader.find(key, &format!("a list of {length} layers"), &format!("lists of the {n} of `num_hidden_layers`"));
    }
    if let Some(word) = listed.iter().flatten().find(|word| !["full", "shared"].contains(word)) {
        reader.find("indexer_types", &format!("with `{word}`"), "full, shared");
    }
    let shares = |index: usize| match (&listed, letters) {
        (Some(words), _) => words.get(index) == Some(&"shared"),
        (None, Some(letters)) => letters.as_bytes().get(index) == Some(&b'S'),
        (None, None) => !(index + 1).saturating_sub(offset).is_multiple_of(every),
    };
    let of = |(index, mixer)| match mixer {
        Mixer::Selected(tokens) if shares(index) => Mixer::Reselected(tokens),
        mixer => mixer,
    };
    mixers.into_iter().enumerate().map(of).collect()
}

/// LFM2: convolutions, and attention in the layers that are listed.
fn convolutions(reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    if let Some(words) = reader.words("layer_types") {
        return listed(reader, &words, n, Mixer::Full, Mixer::Convolution);
    }
    let attends = reader.numbers("full_attn_idxs").unwrap_or_else(|| (0..n).collect());
    within(reader, "full_attn_idxs", &attends, n);
    (0..n).map(|index| if attends.contains(&index) { Mixer::Full } else { Mixer::Convolution }).collect()
}

/// MiniMax-Text-01 and M1: lightning attention, and attention to all tokens in the layers that are listed.
fn lightning(reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    // Tokens that a kernel takes at once.
    let _ = reader.value("block_size");
    if let Some(words) = reader.words("layer_types") {
        return listed(reader, &words, n, Mixer::Full, Mixer::Linear);
    }
    let is_full = match numbers_of(reader, "attn_type_list", n) {
        Some(list) => list.iter().map(|kind| *kind == 1).collect(),
        None => (0..n).map(|index| index % 2 == 0).collect::<Vec<bool>>(),
    };
    is_full.into_iter().map(|is_full| if is_full { Mixer::Full } else { Mixer::Linear }).collect()
}
