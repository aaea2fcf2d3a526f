//! Which layers a `config.json` describes: what mixes the tokens of each, and its feed-forward.
//!
//! Rules where a file does not list its layers are those of the public model code: huggingface/transformers, `configuration_<type>.py`.

use super::listed::{listed, turns, window, within};
use super::patterns;
use super::reader::Reader;
use super::searched;
use super::types::{Family, Type};
use crate::model::{FeedForward, Layer, Mixer, Pattern};

/// Most layers that are taken for real.
const LAYERS_MAX: u64 = 10_000;
/// Every so many-th layer attends to all tokens where a Gemma 3 file does not say so.
const GEMMA3_PERIOD: u64 = 6;
/// The same for Command R7B, OLMo 3, EXAONE 4 and AFMoE.
const WINDOW_PERIOD: u64 = 4;
/// The same for the layers of Llama 4 without rotary positions.
const LLAMA4_PERIOD: u64 = 4;
/// Tokens of a chunk of Llama 4 where the file does not say so.
const LLAMA4_CHUNK: u64 = 8192;

/// Layers of Qwen in front that attend to all tokens where a file with windows does not say so.
const QWEN_FULL: u64 = 28;

/// Letters of `hybrid_override_pattern` and words of `layers_block_type`.
const BLOCKS: [(char, &str, Layer); 4] = [
    ('M', "mamba", Layer { mixer: Mixer::StateSpace, feed_forward: FeedForward::Off }),
    ('*', "attention", Layer { mixer: Mixer::Full, feed_forward: FeedForward::Off }),
    ('-', "mlp", Layer { mixer: Mixer::Off, feed_forward: FeedForward::Dense }),
    ('E', "moe", Layer { mixer: Mixer::Off, feed_forward: FeedForward::Experts }),
];

/// Layers: how many, and what they are.
pub(super) fn layers(of: Type, reader: &mut Reader<'_>, has_experts: bool) -> (u64, Pattern) {
    let family = of.family;
    if family == Family::NemotronH || family == Family::Megatron && reader.has("hybrid_override_pattern") {
        let blocks = blocks(reader);
        return (blocks.len().max(1) as u64, Pattern::of_layers(&blocks));
    }
    if family == Family::Searched {
        let layers = searched::layers(reader);
        let _ = reader.optional(&["num_hidden_layers"]);
        return (layers.len().max(1) as u64, Pattern::of_layers(&layers));
    }
    let n = match family {
        // A layer has two attentions and two feed-forwards, and its experts run beside the second half.
        Family::Longcat => 2 * reader.required(&["num_layers", "num_hidden_layers"]),
        _ => reader.required(&["num_hidden_layers", "n_layer", "n_layers"]),
    };
    if n > LAYERS_MAX {
        reader.find("num_hidden_layers", &n, &format!("whole numbers from 1 to {LAYERS_MAX}"));
        return (n, Pattern::uniform(Layer::DENSE));
    }
    let mixers = mixers(family, reader, n);
    let feed_forwards = if has_experts { feed_forwards(of, reader, n) } else { Vec::new() };
    let layer = |(index, mixer): (usize, &Mixer)| Layer {
        mixer: *mixer,
        feed_forward: feed_forwards.get(index).copied().unwrap_or(FeedForward::Dense),
    };
    (n, Pattern::of_layers(&mixers.iter().enumerate().map(layer).collect::<Vec<_>>()))
}

/// Blocks of Nemotron-H, each a mixer or a feed-forward.
fn blocks(reader: &mut Reader<'_>) -> Vec<Layer> {
    let listed = reader.optional(&["num_hidden_layers"]);
    let allowed = "M for Mamba, * for attention, - for a feed-forward, E for experts";
    let mut blocks = Vec::new();
    if let Some(letters) = reader.word("hybrid_override_pattern") {
        for letter in letters.chars() {
            match BLOCKS.iter().find(|(known, _, _)| *known == letter) {
                Some((_, _, layer)) => blocks.push(*layer),
                None => reader.find("hybrid_override_pattern", &format!("with `{letter}`"), allowed),
            }
        }
    } else if let Some(words) = reader.words("layers_block_type") {
        for word in words {
            match BLOCKS.iter().find(|(_, known, _)| *known == word) {
                Some((_, _, layer)) => blocks.push(*layer),
                None => reader.find("layers_block_type", &format!("with `{word}`"), "mamba, attention, mlp, moe"),
            }
        }
    } else {
        reader.findings.push("key `hybrid_override_pattern` is missing".to_owned());
    }
    let n = blocks.len() as u64;
    if n > LAYERS_MAX || (reader.findings.is_empty() && (n == 0 || listed.is_some_and(|listed| listed != n))) {
        let expected =
            listed.map_or_else(|| format!("1 to {LAYERS_MAX}"), |listed| format!("{listed} of `num_hidden_layers`"));
        reader.findings.push(format!("`hybrid_override_pattern` has {n} layers, allowed are the {expected}"));
    }
    blocks
}

/// What mixes the tokens of each of `n` layers.
fn mixers(family: Family, reader: &mut Reader<'_>, n: u64) -> Vec<Mixer> {
    if let Some(mixers) = patterns::mixers(family, reader, n) {
        return mixers;
    }
    let rest = rest(family, reader);
    let attention_every =
        |period: u64| (0..n).map(|index| if (index + 1).is_multiple_of(period) { Mixer::Full } else { rest }).collect();
    if let Some(words) = reader.words("layer_types") {
        return listed(reader, &words, n, Mixer::Full, rest);
    }
    match family {
        Family::Qwen3Next => attention_every(reader.optional(&["full_attention_interval"]).unwrap_or(4)),
        Family::Gemma3 => {
            let keys = ["sliding_window_pattern", "_sliding_window_pattern"];
            attention_every(reader.optional(&keys).unwrap_or(GEMMA3_PERIOD))
        }
        Family::Gemma2 | Family::GptOss => attention_every(2),
        Family::Cohere2 | Family::Olmo3 => attention_every(period(reader)),
        // Layers are counted from 1.
        Family::KimiLinear => {
            let attends = attending(reader);
            (1..=n).map(|layer| if attends.contains(&layer) { Mixer::Full } else { rest }).collect()
        }
        Family::Bamba => {
            let attends = reader.numbers("attn_layer_indices").unwrap_or_default();
            (0..n).map(|index| if attends.contains(&index) { Mixer::Full } else { rest }).collect()
        }
        Family::Llama4 => match reader.numbers("no_rope_layers").filter(|list| !list.is_empty()) {
            Some(rotary) => {
                let found = format!("a list of {} layers", rotary.len());
                if rotary.len() as u64 != n {
                    reader.find("no_rope_layers", &found, &format!("lists of the {n} of `num_hidden_layers`"));
                }
                (0..n).map(|index| if at(&rotary, index) == 0 { Mixer::Full } else { rest }).collect()
            }
            None => attention_every(reader.optional(&["no_rope_layer_interval"]).unwrap_or(LLAMA4_PERIOD)),
        },
        Family::Qwen => {
            // `configuration_qwen2.py` and those of Qwen's later types.
            let default = Some(QWEN_FULL).filter(|_| matches!(rest, Mixer::Window(_)));
            let stated = reader.stated_count("max_window_layers");
            let n_full = match (stated, default) {
                (None, Some(default)) => reader.or_default(&["max_window_layers"], Some(default)),
                _ => stated.unwrap_or(0),
            };
            (0..n).map(|index| if index < n_full { Mixer::Full } else { rest }).collect()
        }
        _ => vec![rest; usize::try_from(n).expect("at most the largest count of layers")],
    }
}

/// Layers of Kimi Linear that attend to all tokens.
fn attending(reader: &mut Reader<'_>) -> Vec<u64> {
    let listed = reader.value("linear_attn_config").and_then(|keys| keys.get("full_attn_layers")?.as_array());
    if listed.is_none() {
        reader.findings.push("key `linear_attn_config.full_attn_layers` is missing".to_owned());
    }
    listed.into_iter().flatten().filter_map(serde_json::Value::as_u64).collect()
}

/// Every so many-th layer attends to all tokens: a number, or a letter for each of them (`LLLG`).
fn period(reader: &mut Reader<'_>) -> u64 {
    match reader.word_or_none("sliding_window_pattern") {
        Some(letters) => (letters.len() as u64).max(1),
        None => reader.optional(&["sliding_window_pattern", "global_attn_every_n_layers"]).unwrap_or(WINDOW_PERIOD),
    }
}

fn at(list: &[u64], index: u64) -> u64 {
    usize::try_from(index).ok().and_then(|index| list.get(index)).copied().unwrap_or(1)
}

/// What mixes the tokens of layers that do not attend to all of them.
fn rest(family: Family, reader: &mut Reader<'_>) -> Mixer {
    match family {
        Family::Qwen3Next | Family::KimiLinear => Mixer::Linear,
        Family::Granite | Family::Bamba => Mixer::StateSpace,
        Family::Llama4 => Mixer::Chunked(reader.optional(&["attention_chunk_size"]).unwrap_or(LLAMA4_CHUNK)),
        Family::SparseLatent => Mixer::Selected(reader.required(&["index_topk"])),
        _ => window(family, reader),
    }
}

/// The feed-forwards of `n` layers of a model with experts.
fn feed_forwards(of: Type, reader: &mut Reader<'_>, n: u64) -> Vec<FeedForward> {
    let by_turns = |period: u64, offset: u64| {
        let of = |index: u64| if index % period == offset { FeedForward::Experts } else { FeedForward::Dense };
        (0..n).map(of).collect()
    };
    match of.family {
        Family::Longcat => return by_turns(2, 1),
        Family::Jamba => {
            let (period, offset) = turns(reader, ["expert_layer_period", "expert_layer_offset"]);
            return by_turns(period, offset);
        }
        // Routers by hash and routers that learn have experts alike.
        Family::DeepseekV4 => {
            let _ = (reader.value("mlp_layer_types"), reader.count("num_hash_layers"));
            return by_turns(1, 0);
        }
        _ => {}
    }
    let keys = ["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"];
    let stated = keys.into_iter().find(|key| reader.has(key));
    let n_dense = stated.map_or(of.n_dense, |key| reader.count(key));
    if n_dense > n {
        reader.find(stated.unwrap_or(keys[0]), &n_dense, &format!("at most the {n} layers"));
    }
    let dense = reader.numbers("mlp_only_layers").unwrap_or_default();
    within(reader, "mlp_only_layers", &dense, n);
    let step = ["decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "moe_layer_frequency"];
    let step = reader.optional(&step).unwrap_or(1);
    // A last layer below 0 is the last one of all.
    let last = reader.value("moe_layer_end_index").and_then(serde_json::Value::as_u64).unwrap_or(n);
    let (every, each) = frequency(reader, n);
    let named = match of.family {
        Family::Step | Family::Step3 => step_layers(reader),
        _ => reader.numbers("moe_layers").filter(|_| of.family == Family::Llama4),
    };
    if of.family == Family::Llama4 {
        within(reader, "moe_layers", named.as_deref().unwrap_or(&[]), n);
    }
    let n_dense = if named.is_some() { 0 } else { n_dense };
    if let Some(words) = reader.words("mlp_layer_types") {
        return listed_feed_forwards(reader, &words, n);
    }
    let has_experts = |index: u64| {
        let is_named = named.as_ref().is_none_or(|named| named.contains(&index));
        let is_turn = named.is_some() || (index + 1).is_multiple_of(step);
        (n_dense..=last).contains(&index)
            && !dense.contains(&index)
            && is_turn
            && is_named
            && index.is_multiple_of(every)
            && at(&each, index) > 0
    };
    (0..n).map(|index| if has_experts(index) { FeedForward::Experts } else { FeedForward::Dense }).collect()
}

/// Layers of Step 3.7 with experts, as `moe_layers_enum` writes them: numbers with commas between them.
fn step_layers(reader: &mut Reader<'_>) -> Option<Vec<u64>> {
    let text = reader.word("moe_layers_enum")?;
    let numbers: Option<Vec<u64>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
    if numbers.is_none() {
        reader.find("moe_layers_enum", &format!("`{text}`"), "numbers of layers with commas between them");
    }
    numbers
}

/// Feed-forwards as `mlp_layer_types` lists them.
fn listed_feed_forwards(reader: &mut Reader<'_>, words: &[&str], n: u64) -> Vec<FeedForward> {
    let predicting = reader.count("num_nextn_predict_layers");
    if words.len() as u64 != n && words.len() as u64 != n + predicting {
        let found = format!("a list of {} layers", words.len());
        reader.find("mlp_layer_types", &found, &format!("lists of the {n} of `num_hidden_layers`"));
    }
    if let Some(word) = words.iter().find(|word| !["dense", "sparse"].contains(word)) {
        reader.find("mlp_layer_types", &format!("with `{word}`"), "dense, sparse");
    }
    let of = |word: &&str| if *word == "sparse" { FeedForward::Experts } else { FeedForward::Dense };
    words.iter().take(usize::try_from(n).expect("few layers")).map(of).collect()
}

/// `moe_layer_freq`: every so many-th layer, or 1 and 0 for each.
fn frequency(reader: &mut Reader<'_>, n: u64) -> (u64, Vec<u64>) {
    if !reader.value("moe_layer_freq").is_some_and(serde_json::Value::is_array) {
        return (reader.optional(&["moe_layer_freq"]).unwrap_or(1), Vec::new());
    }
    let each = reader.numbers("moe_layer_freq").unwrap_or_default();
    if each.len() as u64 != n {
        let found = format!("a list of {} layers", each.len());
        reader.find("moe_layer_freq", &found, &format!("lists of the {n} of `num_hidden_layers`"));
    }
    (1, each)
}
