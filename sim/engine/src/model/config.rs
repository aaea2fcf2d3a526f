//! Hugging Face `config.json` → `Model`: every finding at once, never a panic.
//!
//! Keys are those of the public configurations of the supported model types. Models of text and images keep theirs under `text_config`.

mod known;
mod layers;
mod modules;
mod no_format;
mod quantization;
mod reader;
mod types;
mod vision;

use serde_json::{Map, Value};

use super::{Experts, Index, LatentAttention, LinearAttention, Mixer, Model, QueryKeyNorm, StateSpace, VisionEncoder};
use crate::formats::Formats;
use reader::Reader;
use types::{Family, TYPES, Type};

/// Largest parameter count that is taken for real, far above any model and far below what `u64` holds.
const PARAMETERS_MAX: f64 = 1e17;
/// Rows of Gemma 3's embedding where the file does not say so, as in `configuration_gemma3.py`.
const GEMMA3_VOCAB: u64 = 262_208;

impl Model {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// All findings, each naming the key, what was found and what is allowed.
    pub fn from_config(name: &str, config: &str) -> Result<Self, Vec<String>> {
        let keys = flat(config)?;
        let kind = keys.get("model_type").and_then(Value::as_str).unwrap_or("");
        let mut reader = Reader::new(&keys);
        let known = TYPES.iter().find(|(word, _)| *word == kind).map(|(_, known)| *known);
        if known.is_none() {
            let allowed = TYPES.map(|(word, _)| word).join(", ");
            let near = TYPES.iter().find(|(word, _)| is_near(kind, word));
            let hint = near.map_or_else(String::new, |(near, _)| format!("; did you mean `{near}`?"));
            reader.findings.push(format!("`model_type` is `{kind}`, allowed are {allowed}{hint}"));
        }
        let quantization = reader.value("quantization_config").or_else(|| reader.value("compression_config"));
        let mut model = read(name, known.unwrap_or(types::LLAMA), &mut reader);
        let mut findings = reader.findings;
        if findings.is_empty() {
            findings.extend(contradictions(&model));
        }
        match quantization {
            Some(Value::Object(keys)) => match quantization::scheme(keys) {
                Ok(scheme) if findings.is_empty() => scheme.apply(&mut model),
                Ok(_) => {}
                Err(finding) => findings.push(finding.to_string()),
            },
            None => {}
            Some(other) => findings.push(format!("`quantization_config` is {other}, allowed are objects")),
        }
        if findings.is_empty() { Ok(model) } else { Err(findings) }
    }
}

/// Keys of the model of text: those of the file, and over them those under `text_config`.
fn flat(config: &str) -> Result<Map<String, Value>, Vec<String>> {
    let value: Value =
        serde_json::from_str(&finite(config)).map_err(|error| vec![format!("not valid JSON: {error}")])?;
    let Value::Object(mut keys) = value else {
        return Err(vec!["the file holds no JSON object".to_owned()]);
    };
    match keys.remove("text_config") {
        None | Some(Value::Null) => {}
        Some(Value::Object(text)) => keys.extend(text),
        Some(other) => return Err(vec![format!("`text_config` is {other}, allowed are objects")]),
    }
    Ok(keys)
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
    let gpt = family == Family::Gpt2;
    let hidden = reader.required(&["hidden_size", "n_embd"]);
    let n_heads = reader.required(&["num_attention_heads", "n_head"]);
    // OPT-350M alone has embeddings of another width than its layers.
    if let Some(width) = reader.optional(&["word_embed_proj_dim"]).filter(|width| *width != hidden) {
        reader.find("word_embed_proj_dim", &width, &format!("the {hidden} of `hidden_size`"));
    }
    let (intermediate, experts) = feed_forwards(of, hidden, reader);
    let latent = latent(family, reader);
    let max_positions = positions(family, reader);
    let (n_layers, layers) = layers::layers(of, reader, max_positions, experts.is_some());
    let (qkv_bias, output_bias) = biases(of, reader);
    let is_stated = family == Family::Megatron;
    let is_learned = is_stated && reader.flag("learned_positions", false);
    let vocab = match family {
        Family::Gemma3 => reader.optional(&["vocab_size"]).unwrap_or(GEMMA3_VOCAB),
        _ => reader.required(&["vocab_size"]),
    };
    let linear = match family {
        Family::Qwen3Next => Some(linear(reader)),
        Family::KimiLinear => Some(kimi_delta(reader)),
        _ => None,
    };
    let is_hybrid = matches!(family, Family::NemotronH | Family::Granite | Family::Bamba)
        || is_stated && reader.has("hybrid_override_pattern");
    let state_space = is_hybrid.then(|| state_space(hidden, reader));
    let vision = encoder(hidden, reader);
    let has_vision = vision.is_some();
    Model {
        name: name.to_owned(),
        n_layers,
        layers,
        hidden,
        n_heads,
        n_kv_heads: reader.optional(&["num_key_value_heads"]).unwrap_or(n_heads),
        head_dim: reader.optional(&["head_dim", "attention_head_dim"]).unwrap_or(hidden / n_heads),
        intermediate,
        gated: if is_stated { reader.flag("gated", false) } else { of.gated },
        vocab,
        tied: reader.flag("tie_word_embeddings", of.tied),
        qkv_bias,
        output_bias,
        output_gate: of.output_gate && reader.flag("attn_output_gate", true),
        sinks: family == Family::GptOss,
        learned_positions: gpt || is_learned,
        scaled_positions: family == Family::GptOss,
        norms: of.norms,
        qk_norm: qk_norm(of, reader),
        max_positions,
        latent,
        experts,
        linear,
        state_space,
        n_predicting: predicting(reader),
        vision: vision.map(Box::new),
        formats: Formats::of(hw::Dtype::Bf16),
        unpriced: known::unpriced(reader, has_vision),
    }
}

/// Whether queries, keys and values have biases, and whether the output projection has one.
fn biases(of: Type, reader: &mut Reader<'_>) -> (bool, bool) {
    let keys = ["attention_bias", "use_qkv_bias", "use_bias", "enable_bias"];
    let stated = keys.into_iter().find(|key| reader.has(key));
    let is_there = stated.map_or(of.biases.default, |key| reader.flag(key, of.biases.default));
    let apart = ["output_bias", "attention_out_bias"].into_iter().find(|key| reader.has(key));
    let of_output = apart.map_or(is_there && of.biases.of_output, |key| reader.flag(key, false));
    (is_there, of_output)
}

fn positions(family: Family, reader: &mut Reader<'_>) -> u64 {
    let default = if family == Family::Gemma3 { 131_072 } else { 2048 };
    reader.optional(&["max_position_embeddings", "n_positions", "model_max_length"]).unwrap_or(default)
}

/// Width of the dense feed-forward, and the experts.
fn feed_forwards(of: Type, hidden: u64, reader: &mut Reader<'_>) -> (u64, Option<Experts>) {
    let family = of.family;
    let n_routed = n_routed(reader);
    let width = reader.optional(&["moe_intermediate_size"]);
    let dense = match family {
        Family::Gpt2 => reader.optional(&["n_inner", "ffn_dim"]).unwrap_or(4 * hidden),
        Family::Granite if n_routed.is_none() => reader.required(&["shared_intermediate_size"]),
        Family::Llama4 | Family::Cohere2 => {
            reader.required(&["intermediate_size_mlp", "prefix_dense_intermediate_size", "intermediate_size"])
        }
        // Models whose layers all have experts may leave it out.
        _ if n_routed.is_some() && width.is_some() => reader.optional(&["intermediate_size"]).or(width).unwrap_or(1),
        _ => reader.required(&["intermediate_size"]),
    };
    let Some(n_routed) = n_routed else { return (dense, None) };
    let intermediate = match family {
        Family::Llama4 | Family::Cohere2 => reader.required(&["intermediate_size"]),
        _ => width.unwrap_or(dense),
    };
    let top_k = reader.required(&["num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k"]);
    let n_shared = ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"].map(|key| reader.count(key));
    let n_shared = n_shared.into_iter().max().unwrap_or(0);
    let each = reader.optional(&["moe_shared_expert_intermediate_size"]).unwrap_or(intermediate);
    let by_width = reader.count("shared_expert_intermediate_size").max(reader.count("shared_intermediate_size"));
    let shared_intermediate = match family {
        Family::Llama4 => intermediate,
        _ => n_shared * each + by_width,
    };
    let (n_groups, groups_of_token) = router_groups(n_routed, top_k, reader);
    let experts = Experts {
        shared_intermediate,
        shared_gate: matches!(family, Family::Qwen | Family::Qwen3Next) && by_width > 0,
        latent: reader.optional(&["moe_latent_size"]),
        biased: family == Family::GptOss,
        clamped: family == Family::GptOss,
        fp32_router: family == Family::MiniMax,
        n_groups,
        groups_of_token,
        balanced: is_balanced(of, reader),
        ..Experts::plain(n_routed, top_k, intermediate)
    };
    (dense, Some(experts))
}

/// Routed experts; none where their number is 0.
fn n_routed(reader: &mut Reader<'_>) -> Option<u64> {
    let keys = ["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"];
    keys.map(|key| reader.count(key)).into_iter().find(|n| *n > 0)
}

/// Groups of experts that a router chooses among, and as many as a token chooses: all of them where a file does not say.
fn router_groups(n_routed: u64, top_k: u64, reader: &mut Reader<'_>) -> (u64, u64) {
    let all = reader.optional(&["n_group", "num_expert_group"]).filter(|n| n_routed.is_multiple_of(*n)).unwrap_or(1);
    let holds = |n: &u64| *n <= all && *n * (n_routed / all) >= top_k;
    (all, reader.optional(&["topk_group"]).filter(holds).unwrap_or(all))
}

/// Whether the router was trained with a bias for every expert that balances their load: where a file says so, or where all of its type were.
fn is_balanced(of: Type, reader: &mut Reader<'_>) -> bool {
    let stated = reader.word("topk_method").map(|method| method == "noaux_tc");
    stated.unwrap_or_else(|| reader.flag("use_routing_bias", of.balanced))
}

fn latent(family: Family, reader: &mut Reader<'_>) -> Option<LatentAttention> {
    let kv_rank = reader.optional(&["kv_lora_rank"])?;
    let index = (family == Family::SparseLatent).then(|| Index {
        n_heads: reader.required(&["index_n_heads"]),
        head_dim: reader.required(&["index_head_dim"]),
    });
    Some(LatentAttention {
        q_rank: reader.optional(&["q_lora_rank"]),
        kv_rank,
        nope_dim: reader.required(&["qk_nope_head_dim"]),
        rope_dim: reader.required(&["qk_rope_head_dim"]),
        value_dim: reader.required(&["v_head_dim"]),
        index,
    })
}

fn linear(reader: &mut Reader<'_>) -> LinearAttention {
    LinearAttention {
        n_key_heads: reader.required(&["linear_num_key_heads"]),
        n_value_heads: reader.required(&["linear_num_value_heads"]),
        key_dim: reader.required(&["linear_key_head_dim"]),
        value_dim: reader.required(&["linear_value_head_dim"]),
        kernel: reader.required(&["linear_conv_kernel_dim"]),
        state_bytes: state_bytes(reader, "mamba_ssm_dtype"),
        gate_rank: None,
    }
}

/// Kimi delta attention: as many heads of keys as of values, all of one width, which is the rank of the gates too. States are in 32 bits, as the kernels
/// of fla keep them.
fn kimi_delta(reader: &mut Reader<'_>) -> LinearAttention {
    let keys = Map::new();
    let keys = reader.value("linear_attn_config").and_then(Value::as_object).unwrap_or(&keys);
    let mut own = Reader::new(keys);
    let [n_heads, width, kernel] = ["num_heads", "head_dim", "short_conv_kernel_size"].map(|key| own.required(&[key]));
    reader.findings.extend(own.findings.into_iter().map(|finding| format!("`linear_attn_config`: {finding}")));
    LinearAttention {
        n_key_heads: n_heads,
        n_value_heads: n_heads,
        key_dim: width,
        value_dim: width,
        kernel,
        state_bytes: 4,
        gate_rank: Some(width),
    }
}

fn state_space(hidden: u64, reader: &mut Reader<'_>) -> StateSpace {
    let n_heads = reader.required(&["mamba_num_heads", "mamba_n_heads"]);
    let expand = reader.optional(&["mamba_expand", "expand"]).unwrap_or(2);
    let head_dim = if reader.word_or_none("mamba_d_head") == Some("auto") {
        expand * hidden / n_heads
    } else {
        reader.required(&["mamba_head_dim", "mamba_d_head"])
    };
    StateSpace {
        n_heads,
        head_dim,
        n_groups: reader.required(&["n_groups", "mamba_n_groups"]),
        state: reader.required(&["ssm_state_size", "mamba_d_state"]),
        kernel: reader.required(&["conv_kernel", "mamba_d_conv"]),
        state_bytes: state_bytes(reader, "mamba_ssm_cache_dtype"),
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

fn qk_norm(of: Type, reader: &mut Reader<'_>) -> QueryKeyNorm {
    let stated = ["use_qk_norm", "qk_layernorm"].into_iter().find(|key| reader.has(key));
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

/// Layers behind the last one that predict tokens further on.
fn predicting(reader: &mut Reader<'_>) -> u64 {
    let counts = ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"].map(|key| reader.count(key));
    counts.into_iter().max().unwrap_or(0)
}

fn contradictions(model: &Model) -> Vec<String> {
    let mut findings = Vec::new();
    if model.latent.is_none() && !model.n_heads.is_multiple_of(model.n_kv_heads) {
        findings.push(format!("{} key-value heads do not divide {} heads", model.n_kv_heads, model.n_heads));
    }
    if model.head_dim == 0 {
        findings.push(format!("`hidden_size` {} is below the {} heads", model.hidden, model.n_heads));
    }
    if model.latent.is_none() && model.layers.kinds().iter().any(|layer| matches!(layer.mixer, Mixer::Selected(_))) {
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
    let heads = model.n_heads.saturating_mul(model.head_dim);
    let linear = model.linear.map_or(1, |linear| {
        let dim = linear.key_dim.max(linear.value_dim);
        linear.n_key_heads.max(linear.n_value_heads).saturating_mul(dim).max(linear.kernel)
    });
    let space = model.state_space.map_or(1, |space| {
        let width = space.n_heads.saturating_mul(space.head_dim);
        width.max(space.n_groups.saturating_mul(space.state)).max(space.kernel)
    });
    let latent = model.latent.map_or(1, |latent| {
        let head = latent.nope_dim.saturating_add(latent.rope_dim).saturating_add(latent.value_dim);
        let index = latent.index.map_or(1, |index| index.n_heads.saturating_mul(index.head_dim));
        model.n_heads.saturating_mul(head).max(index).max(latent.kv_rank).max(latent.q_rank.unwrap_or(1))
    });
    let experts = model.experts.unwrap_or(Experts::plain(1, 1, 1));
    let inside = experts.intermediate.max(experts.shared_intermediate).max(experts.latent.unwrap_or(1));
    let positions = if model.learned_positions { model.max_positions } else { 1 };
    let widths = [model.hidden, model.intermediate, heads, model.vocab, positions, linear, space, latent, inside];
    let wide = widths.into_iter().max().unwrap_or(1);
    let factors = [model.n_layers.max(model.n_predicting), experts.n_routed, 8, wide, wide];
    factors.iter().map(|&factor| hw::real(factor)).product::<f64>() > PARAMETERS_MAX
}

#[cfg(test)]
mod tests;
