//! Hugging Face `config.json` → `Model`: every finding at once, never a panic.
//!
//! Keys are those of the public configurations of the supported model types, or of Mistral's own `params.json`. Models of text and images keep theirs under
//! `text_config`.

mod feed_forwards;
mod known;
mod layers;
mod listed;
mod mistral;
mod modules;
mod name_list;
mod names;
mod no_format;
mod packed;
mod parts;
mod patterns;
mod positions;
mod predicting;
mod quantization;
mod reader;
mod searched;
mod types;
mod vision;

use serde_json::{Map, Value};

use super::style::{Activation, Positions, Style};
use super::{Experts, Heads, IndexMade, LatentAttention, Mixer, Model, Norms, OutputGate, QueryKeyNorm, VisionEncoder};
use crate::formats::Formats;
use reader::Reader;
use types::{Family, TYPES, Type};

/// Largest parameter count that is taken for real, far above any model and far below what `u64` holds.
const PARAMETERS_MAX: f64 = 1e17;
/// Rows of Gemma 3's embedding where the file does not say so, as in `configuration_gemma3.py`.
const GEMMA3_VOCAB: u64 = 262_208;

impl Model {
    /// Reads a Hugging Face `config.json`, or a `params.json` of Mistral's.
    ///
    /// # Errors
    /// All findings, each naming the key, what was found and what is allowed.
    pub fn from_config(name: &str, config: &str) -> Result<Self, Vec<String>> {
        let keys = flat(config)?;
        let stated = keys.get("model_type").filter(|kind| !kind.is_null());
        let kind = stated.and_then(Value::as_str).unwrap_or("");
        let mut reader = Reader::new(&keys);
        let known = TYPES.iter().find(|(word, _)| *word == kind).map(|(_, known)| *known);
        if known.is_none() {
            let allowed = TYPES.map(|(word, _)| word).join(", ");
            let near = TYPES.iter().find(|(word, _)| is_near(kind, word));
            let hint = near.map_or_else(String::new, |(near, _)| format!("; did you mean `{near}`?"));
            reader.findings.push(match stated {
                None => format!("key `model_type` is missing, allowed are {allowed}"),
                Some(Value::String(kind)) => format!("`model_type` is `{kind}`, allowed are {allowed}{hint}"),
                Some(other) => format!("`model_type` is {other}, allowed are {allowed}"),
            });
        }
        let quantization = reader.value("quantization_config").or_else(|| reader.value("compression_config"));
        let narrow = narrow_experts(&mut reader);
        let mut model = read(name, known.unwrap_or(types::LLAMA), &mut reader);
        let mut findings = reader.findings;
        if findings.is_empty() {
            findings.extend(contradictions(&model));
        }
        let packed = quantization.and_then(Value::as_object).and_then(packed::packed);
        match quantization {
            Some(Value::Object(_)) if packed.is_some() => match packed {
                Some(Ok((frozen, unpriced))) => {
                    model.packed = Some(frozen);
                    model.unpriced.extend(unpriced);
                }
                Some(Err(finding)) => findings.push(finding.to_string()),
                None => {}
            },
            Some(Value::Object(keys)) => match quantization::scheme(keys, kind) {
                Ok(scheme) if findings.is_empty() => {
                    scheme.apply(&mut model);
                    if matches!(model.formats.experts, hw::Format::Fp8 | hw::Format::Fp8Block) {
                        model.formats.experts = narrow.unwrap_or(model.formats.experts);
                    }
                }
                Ok(_) => {}
                Err(finding) => findings.push(finding.to_string()),
            },
            None => {}
            Some(other) => findings.push(format!("`quantization_config` is {other}, allowed are objects")),
        }
        if findings.is_empty() { Ok(model) } else { Err(findings) }
    }
}

/// Format of the experts where a file in 8 bits has them in 4 (DeepSeek-V4's `expert_dtype`): floats with a scale per 32.
fn narrow_experts(reader: &mut Reader<'_>) -> Option<hw::Format> {
    match reader.word("expert_dtype") {
        Some("fp4") => Some(hw::Format::Mxfp4),
        None | Some("fp8" | "bf16") => None,
        Some(other) => {
            reader.find("expert_dtype", &other, "fp4, fp8, bf16");
            None
        }
    }
}

/// Keys of the model of text: those of the file, and over them those under `text_config`.
fn flat(config: &str) -> Result<Map<String, Value>, Vec<String>> {
    let value: Value =
        serde_json::from_str(&finite(config)).map_err(|error| vec![format!("not valid JSON: {error}")])?;
    let Value::Object(mut keys) = value else {
        return Err(vec!["the file holds no JSON object".to_owned()]);
    };
    // MPT keeps the keys of attention apart.
    if let Some(Value::Object(mut attention)) = keys.remove("attn_config") {
        // An empty word for the type of the section.
        attention.remove("model_type");
        keys.extend(attention);
    }
    // A model that listens and speaks has the one that thinks under a key of its own (Qwen3-Omni).
    if let Some(Value::Object(thinker)) = keys.remove("thinker_config") {
        keys.extend(thinker);
    }
    match keys.remove("text_config") {
        None | Some(Value::Null) => {}
        Some(Value::Object(text)) => keys.extend(text),
        Some(other) => return Err(vec![format!("`text_config` is {other}, allowed are objects")]),
    }
    Ok(mistral::translated(keys))
}

/// The text with `null` for the numbers that Python writes and JSON lacks.
fn finite(config: &str) -> String {
    let mut text = String::with_capacity(config.len());
    for (index, part) in config.split('"').enumerate() {
        // Every second part is inside quotes; a quote behind a backslash shifts that, and then nothing worse than a word is replaced.
        if index > 0 {
            text.push('"');
        }
        if index % 2 == 0 {
            text.push_str(&nulled(part));
        } else {
            text.push_str(part);
        }
    }
    text
}

/// A part outside of quotes without numbers that JSON lacks.
fn nulled(part: &str) -> String {
    part.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null")
}

/// Whether one letter added, left out or changed makes one word the other.
fn is_near(found: &str, known: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (found.chars().collect(), known.chars().collect());
    let same_start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[same_start..], &b[same_start..]);
    match (a, b) {
        ([], [_]) | ([_], []) => true,
        ([_, a @ ..], [_, b @ ..]) if a == b => true,
        ([_, rest @ ..], _) if rest == b => true,
        (_, [_, rest @ ..]) => rest == a,
        _ => false,
    }
}

fn read(name: &str, of: Type, reader: &mut Reader<'_>) -> Model {
    let family = of.family;
    let hidden = hidden(reader);
    let n_heads = n_heads(of, reader);
    let (intermediate, experts) = feed_forwards::feed_forwards(of, hidden, reader);
    let latent = latent(family, reader);
    let learned_positions = learns_positions(family, reader);
    let positions = positions::positions(of, learned_positions, reader);
    let (n_layers, layers) = layers::layers(of, reader, experts.is_some());
    positions.check(&layers, family, reader);
    let layers = positions.limit(layers, n_layers, family);
    let (qkv_bias, output_bias) = biases(of, reader);
    let is_stated = family == Family::Megatron;
    let vocab = vocab(family, reader);
    let n_kv_heads = n_kv_heads(of, n_heads, reader);
    let head_dim = head_dim(of, [hidden, n_heads], reader);
    let sinks = matches!(family, Family::GptOss | Family::DeepseekV4);
    let plain =
        Heads { n: n_heads, n_kv: n_kv_heads, key_dim: head_dim, value_dim: head_dim, projects_values: true, sinks };
    let heads_by_layer = parts::heads(family, plain, reader);
    let whole = heads_by_layer.map_or(plain, |heads| heads.whole);
    let selects = layers.kinds().iter().any(|layer| layer.mixer.has_index());
    let (n_predicting, predicting_layer) = predicting::predicting(of, &layers, n_layers, reader);
    let vision = encoder(hidden, reader);
    let has_vision = vision.is_some();
    Model {
        name: name.to_owned(),
        n_layers,
        layers,
        hidden,
        n_heads,
        n_kv_heads: whole.n_kv,
        head_dim: whole.key_dim,
        intermediate,
        gated: if is_stated { reader.flag("gated", false) } else { of.gated && reader.flag("block_use_swiglu", true) },
        joined: of.joined,
        vocab,
        tied: tied(of, reader),
        qkv_bias,
        output_bias,
        output_gate: output_gate(of, reader),
        sinks,
        learned_positions,
        scaled_positions: family == Family::GptOss,
        norms: norms(of, reader),
        style: style(of, reader),
        qk_norm: qk_norm(of, reader),
        max_positions: positions.n,
        heads_by_layer,
        query_rank: reader.optional(&["share_q_dim"]).filter(|_| family == Family::Step3),
        latent,
        compressed: parts::compressed(family, reader),
        index: parts::index(family, selects, reader),
        experts,
        linear: parts::linear(family, [n_heads, head_dim], reader),
        state_space: parts::state_space(family, hidden, reader),
        convolution: convolution(family, hidden, reader),
        streams: parts::streams(family, reader),
        layer_inputs: parts::layer_inputs(family, reader),
        wide_reusing: family == Family::Gemma4 && reader.flag("use_double_wide_mlp", false),
        n_predicting,
        predicting_layer,
        predicting_whole: false,
        vision: vision.map(Box::new),
        formats: Formats::of(hw::Dtype::Bf16),
        packed: None,
        unpriced: known::unpriced(reader, has_vision, family == Family::Lightning),
    }
}

fn vocab(family: Family, reader: &mut Reader<'_>) -> u64 {
    match family {
        Family::Gemma3 => reader.optional(&["vocab_size"]).unwrap_or(GEMMA3_VOCAB),
        _ => reader.required(&["vocab_size"]),
    }
}

/// Width of the residual stream. OPT-350M alone has embeddings of another width than its layers, and LFM2 says the width twice.
fn hidden(reader: &mut Reader<'_>) -> u64 {
    let hidden = reader.required(&["hidden_size", "n_embd", "n_embed", "d_model"]);
    for twin in ["word_embed_proj_dim", "block_dim"] {
        reader.same(twin, hidden, "hidden_size");
    }
    hidden
}

/// Tokens that the convolutions of LFM2 see, whose channels are those of the residual stream.
fn convolution(family: Family, hidden: u64, reader: &mut Reader<'_>) -> Option<u64> {
    (family == Family::Lfm2).then(|| {
        for twin in ["conv_dim", "conv_dim_out"] {
            reader.same(twin, hidden, "hidden_size");
        }
        reader.required(&["conv_L_cache"])
    })
}

/// Whether head and embedding are one table.
fn tied(of: Type, reader: &mut Reader<'_>) -> bool {
    let key = ["tie_word_embeddings", "tie_embedding"].into_iter().find(|key| reader.has(key));
    key.map_or(of.tied, |key| reader.flag(key, of.tied))
}

/// Query heads: what a file states, or what its class takes.
fn n_heads(of: Type, reader: &mut Reader<'_>) -> u64 {
    let keys = ["num_attention_heads", "n_head", "n_heads"];
    let usual = of.defaults.heads.map(|[n, _]| n);
    let stated = if usual.is_some() { reader.optional(&keys) } else { None };
    let n = stated.or(usual).unwrap_or_else(|| reader.required(&keys));
    if of.family == Family::Lfm2 {
        reader.same("num_heads", n, keys[0]);
    }
    n
}

/// Width of a head: what a file states, or what its class takes, or a part of the hidden width.
fn head_dim(of: Type, [hidden, n_heads]: [u64; 2], reader: &mut Reader<'_>) -> u64 {
    let keys = ["head_dim", "attention_head_dim", "kv_channels"];
    // A class takes its own where the key is left out, and a part of the hidden width where it is null.
    let is_null = keys.into_iter().any(|key| reader.is_null(key));
    let usual = of.defaults.head_dim.filter(|_| !is_null);
    let stated = reader.optional(&keys).or(usual);
    let has_none = matches!(of.family, Family::Latent | Family::SparseLatent | Family::Longcat);
    if stated.is_none() && !has_none && hidden >= n_heads && !hidden.is_multiple_of(n_heads) {
        reader.find("hidden_size", &hidden, &format!("multiples of the {n_heads} heads, or a `head_dim`"));
    }
    let found = stated.unwrap_or(hidden / n_heads);
    // Rotary positions turn pairs of numbers; a table and ALiBi do not.
    let turns = !matches!(of.family, Family::Gpt2 | Family::Mpt | Family::Bloom | Family::Megatron) && !has_none;
    if turns && found % 2 == 1 && found > 1 {
        reader.find("head_dim", &found, "even numbers");
    }
    found
}

fn n_kv_heads(of: Type, n_heads: u64, reader: &mut Reader<'_>) -> u64 {
    let stated = match of.family {
        Family::Searched => searched::n_kv_heads(n_heads, reader),
        Family::Falcon => falcon_kv_heads(n_heads, reader),
        Family::Mpt => match reader.word("attn_type") {
            Some("multiquery_attention") => Some(1),
            Some("grouped_query_attention") => Some(reader.required(&["kv_n_heads"])),
            None | Some("multihead_attention") => None,
            Some(other) => {
                let allowed = "multihead_attention, multiquery_attention, grouped_query_attention";
                reader.find("attn_type", &other, allowed);
                None
            }
        },
        _ => {
            let keys = ["num_key_value_heads", "num_attention_groups"];
            let usual = of.defaults.heads.map(|[_, n_kv]| n_kv).filter(|_| !reader.is_null(keys[0]));
            let n = reader.optional(&keys).or(usual);
            if of.family == Family::NemotronH {
                reader.same("num_query_groups", n.unwrap_or(n_heads), keys[0]);
            }
            n
        }
    };
    stated.unwrap_or(n_heads)
}

/// Falcon's heads of keys and values (`modeling_falcon.py`): a number in its new architecture, one or as many as of queries in the old.
fn falcon_kv_heads(n_heads: u64, reader: &mut Reader<'_>) -> Option<u64> {
    let stated = reader.optional(&["num_kv_heads", "n_head_kv"]);
    let is_new = reader.flag("new_decoder_architecture", false);
    let is_multi_query = reader.flag("multi_query", true);
    if is_multi_query && !is_new { Some(1) } else { stated.or(Some(n_heads)) }
}

/// Where the norms of a layer are. Falcon has one for attention and feed-forward where both run beside each other, and two in its new architecture unless it says
/// one (`num_ln_in_parallel_attn`).
fn norms(of: Type, reader: &mut Reader<'_>) -> Norms {
    if of.family != Family::Falcon {
        return of.norms;
    }
    let stated = reader.optional(&["num_ln_in_parallel_attn"]);
    let is_new = reader.flag("new_decoder_architecture", false);
    let is_parallel = reader.flag("parallel_attn", true) || is_new;
    let n = stated.filter(|_| is_new).unwrap_or(if is_new { 2 } else { 1 });
    // ALiBi costs what rotary positions do.
    let _ = reader.flag("alibi", false);
    if is_parallel && n == 1 { of.norms } else { Norms::Each }
}

/// What scripts of training say of a model beside its widths.
fn style(of: Type, reader: &mut Reader<'_>) -> Style {
    let keys = ["hidden_act", "activation_function", "hidden_activation", "mlp_hidden_act"];
    let stated = keys.into_iter().find_map(|key| reader.word_or_none(key));
    // MPT's files have neither, and Falcon's say it in its first ones.
    let has_biases = match of.family {
        Family::Mpt => reader.flag("alibi", true),
        Family::Falcon => reader.flag("alibi", false),
        Family::Bloom => true,
        _ => false,
    };
    let usual = if of.gated { Activation::Silu } else { Activation::Gelu };
    let activation = stated.map(Activation::named).or(of.style.activation).unwrap_or(usual);
    Style {
        activation: (of.family != Family::Megatron).then_some(activation),
        positions: match of.family {
            _ if has_biases => Positions::Biases,
            Family::Megatron if !reader.flag("rotary_positions", true) => Positions::Off,
            _ => Positions::Rotary,
        },
        parallel: match of.family {
            Family::Falcon => reader.flag("parallel_attn", true) || reader.flag("new_decoder_architecture", false),
            _ => reader.flag("use_parallel_residual", of.style.parallel),
        },
        ..of.style
    }
}

/// Whether queries, keys and values have biases, and whether the output projection has one.
fn biases(of: Type, reader: &mut Reader<'_>) -> (bool, bool) {
    if of.family == Family::Mpt {
        return [!reader.flag("no_bias", true); 2].into();
    }
    // Queries, keys and values always have them (Qwen/Qwen-7B, `modeling_qwen.py`).
    if of.family == Family::FirstQwen {
        return (true, !reader.flag("no_bias", true));
    }
    let keys = ["attention_bias", "use_qkv_bias", "use_bias", "enable_bias", "bias"];
    let stated = keys.into_iter().find(|key| reader.has(key));
    let is_there = stated.map_or(of.biases.default, |key| reader.flag(key, of.biases.default));
    let apart = ["output_bias", "attention_out_bias"].into_iter().find(|key| reader.has(key));
    let of_output = apart.map_or(is_there && of.biases.of_output, |key| reader.flag(key, false));
    (is_there, of_output)
}

/// Whether positions are a table. MPT has one where attention has no biases that grow with the distance (ALiBi), and no rotary positions.
fn learns_positions(family: Family, reader: &mut Reader<'_>) -> bool {
    match family {
        Family::Gpt2 => true,
        Family::Megatron => reader.flag("learned_positions", false),
        Family::Mpt => {
            let [learned, alibi, rope] = [("learned_pos_emb", true), ("alibi", true), ("rope", false)]
                .map(|(key, usual)| reader.flag(key, usual));
            learned && !alibi && !rope
        }
        _ => false,
    }
}

/// The gate behind attention.
fn output_gate(of: Type, reader: &mut Reader<'_>) -> OutputGate {
    match of.family {
        Family::Step => OutputGate::Heads,
        _ if of.output_gate && reader.flag("attn_output_gate", true) => OutputGate::Whole,
        _ => OutputGate::Off,
    }
}

fn latent(family: Family, reader: &mut Reader<'_>) -> Option<LatentAttention> {
    let kv_rank = reader.optional(&["kv_lora_rank"])?;
    let rope_dim = match family {
        // Without positions at all.
        Family::Glm5Next => reader.count("qk_rope_head_dim"),
        _ => reader.required(&["qk_rope_head_dim"]),
    };
    Some(LatentAttention {
        q_rank: reader.optional(&["q_lora_rank"]),
        kv_rank,
        nope_dim: reader.required(&["qk_nope_head_dim"]),
        rope_dim,
        value_dim: reader.required(&["v_head_dim"]),
    })
}

fn qk_norm(of: Type, reader: &mut Reader<'_>) -> QueryKeyNorm {
    let stated = ["use_qk_norm", "qk_layernorm", "qk_ln"].into_iter().find(|key| reader.has(key));
    let is_on = stated.map_or(of.has_qk_norm, |key| reader.flag(key, of.has_qk_norm));
    match of.qk_norm {
        _ if !is_on => QueryKeyNorm::Off,
        QueryKeyNorm::Whole if reader.word("qk_norm_type") == Some("per_head") => QueryKeyNorm::Head,
        kind => kind,
    }
}

/// The encoder of images in front of a model of such a width, where it is one that is known.
fn encoder(hidden: u64, reader: &mut Reader<'_>) -> Option<VisionEncoder> {
    let mm_tokens = reader.optional(&["mm_tokens_per_image"]);
    let Some(Value::Object(keys)) = reader.value("vision_config") else { return None };
    vision::vision(keys, mm_tokens, hidden, &mut reader.findings)
}

fn contradictions(model: &Model) -> Vec<String> {
    let mut findings = Vec::new();
    let heads = model.heads_by_layer.map_or([model.heads(Mixer::Full); 2], |heads| [heads.whole, heads.windowed]);
    if let Some(heads) = heads.iter().find(|heads| model.latent.is_none() && !heads.n.is_multiple_of(heads.n_kv)) {
        findings.push(format!("{} key-value heads do not divide {} heads", heads.n_kv, heads.n));
    }
    if let Some(n) = model.compressed.map(|compressed| compressed.n_groups)
        && !model.n_heads.is_multiple_of(n)
    {
        findings.push(format!("`o_groups` {n} do not divide {} heads", model.n_heads));
    }
    if let Some(linear) = model.linear.filter(|linear| !linear.n_value_heads.is_multiple_of(linear.n_key_heads)) {
        findings.push(format!("{} key heads do not divide {} value heads", linear.n_key_heads, linear.n_value_heads));
    }
    if let Some(space) = model.state_space.filter(|space| !space.n_heads.is_multiple_of(space.n_groups.max(1))) {
        findings.push(format!("{} groups do not divide {} heads of the state space", space.n_groups, space.n_heads));
    }
    if model.head_dim == 0 {
        findings.push(format!("`hidden_size` {} is below the {} heads", model.hidden, model.n_heads));
    }
    let selects = model.layers.kinds().iter().any(|layer| layer.mixer.selects());
    if selects
        && model.index.is_none_or(|index| index.made != IndexMade::Plain)
        && model.compressed.is_none()
        && model.latent.is_none()
    {
        findings.push("key `kv_lora_rank` is missing".to_owned());
    }
    if model.experts.is_none() && model.n_expert_layers() > 0 {
        findings.push("key `n_routed_experts` is missing".to_owned());
    }
    if too_large(model) {
        findings.push(format!("the widths make more than {PARAMETERS_MAX:.0e} parameters"));
    }
    if let Some(experts) = model.experts.filter(|experts| experts.top_k > experts.n_routed) {
        findings.push(format!("`num_experts_per_tok` {} exceeds {} experts", experts.top_k, experts.n_routed));
    }
    findings
}

/// Whether a derived count may exceed what `u64` holds: each multiplies at most these, and beyond it nothing is a model.
fn too_large(model: &Model) -> bool {
    let of_heads = |heads: Heads| heads.n.max(heads.n_kv).saturating_mul(heads.key_dim.max(heads.value_dim));
    let windowed = model.heads_by_layer.map_or(1, |heads| of_heads(heads.windowed));
    let heads = of_heads(model.heads(Mixer::Full)).max(windowed);
    let linear = model.linear.map_or(1, |linear| {
        let dim = linear.key_dim.max(linear.value_dim);
        linear.n_key_heads.max(linear.n_value_heads).saturating_mul(dim).max(linear.kernel)
    });
    let space = model.state_space.map_or(1, |space| {
        let width = space.n_heads.saturating_mul(space.head_dim);
        let inside = space.step_rank.unwrap_or(1).saturating_add(space.state.saturating_mul(2));
        width.max(space.n_groups.saturating_mul(space.state)).max(space.kernel).max(inside)
    });
    let latent = model.latent.map_or(1, |latent| {
        let head = latent.nope_dim.saturating_add(latent.rope_dim).saturating_add(latent.value_dim);
        model.n_heads.saturating_mul(head).max(latent.kv_rank).max(latent.q_rank.unwrap_or(1))
    });
    let index = model.index.map_or(1, |index| index.n_heads.saturating_mul(index.head_dim).max(index.pool));
    let compressed = model.compressed.map_or(1, |compressed| {
        compressed.n_groups.saturating_mul(compressed.group_rank).max(compressed.q_rank).max(compressed.rope_dim)
    });
    let streams = model.streams.map_or(1, |streams| streams.n().saturating_mul(model.hidden));
    let inputs = model.layer_inputs.map_or(1, |inputs| {
        inputs.vocab.max(inputs.width.saturating_mul(model.n_layers)).max(model.convolution.unwrap_or(1))
    });
    let alone = [model.convolution, model.query_rank].map(|width| width.unwrap_or(1));
    let beside = [index, compressed, streams, inputs].into_iter().chain(alone).max().unwrap_or(1);
    let experts = model.experts.unwrap_or(Experts::plain(1, 1, 1));
    let inside = experts.intermediate.max(experts.shared_intermediate).max(experts.latent.unwrap_or(1));
    let positions = if model.learned_positions { model.max_positions } else { 1 };
    let widths =
        [model.hidden, model.intermediate, heads, model.vocab, positions, linear, space, latent, inside, beside];
    let wide = widths.into_iter().max().unwrap_or(1);
    let factors = [model.n_layers.max(model.n_predicting), experts.n_routed, 8, wide, wide];
    factors.iter().map(|&factor| hw::real(factor)).product::<f64>() > PARAMETERS_MAX
}

#[cfg(test)]
mod tests;
