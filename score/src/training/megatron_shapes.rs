//! Models of Megatron-LM's tests: the shape that a row's flags state, latent attention and hybrids with them.

use engine::Model;
use engine::model::{Experts, LatentAttention, Layer, Pattern, QueryKeyNorm};

use super::beside::Encoder;
use super::models;
use super::setting::Degrees;
use crate::reason::Reason;
use crate::table::Cells;

/// Vocabulary of BERT's tokenizer in lower case (`pretrain_bert.py`; google-bert/bert-large-uncased, config.json).
const BERT_VOCABULARY: u64 = 30_522;
/// Vocabulary of Mixtral's tokenizer (mistralai/Mixtral-8x22B-v0.1, config.json).
const MIXTRAL_VOCABULARY: u64 = 32_000;

/// Value of one of the `other_flags`, which stand as `name=value;name=value`.
pub(super) fn flag<'c>(cells: &'c Cells<'_>, name: &str) -> Option<&'c str> {
    cells.word("other_flags").split(';').find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='))
}

/// A count among the `other_flags`; `None` where it is not stated, and with a fault where it is none.
pub(super) fn count<T: std::str::FromStr>(cells: &Cells<'_>, name: &str) -> Option<T> {
    let text = flag(cells, name)?;
    let found = text.parse().ok();
    if found.is_none() {
        cells.fault("other_flags", format!("`{name}={text}` is not a count"));
    }
    found
}

/// Whether a switch among the `other_flags` is on.
pub(super) fn has(cells: &Cells<'_>, name: &str) -> bool {
    flag(cells, name) == Some("true")
}

/// A count of the model, or of its decoder where a cell has one of the encoder and one of the decoder, as `512+128`.
pub(super) fn last(cells: &Cells<'_>, column: &str) -> u32 {
    let text = cells.word(column).to_owned();
    let found = text.rsplit('+').next().and_then(|last| last.parse().ok()).filter(|n| *n > 0);
    if found.is_none() {
        cells.fault(column, format!("`{text}` is not a count"));
    }
    found.unwrap_or(1)
}

/// The encoder of a row that has one.
pub(super) fn encoder(cells: &Cells<'_>) -> Option<Encoder> {
    let first = |column: &str| {
        let text = cells.word(column).split_once('+')?.0;
        let found = text.parse::<u32>().ok();
        if found.is_none() {
            cells.fault(column, format!("`{text}` is not a count"));
        }
        found
    };
    Some(Encoder { n_layers: first("layers")?, tokens: u64::from(first("seq_tokens")?) })
}

/// The model of a row.
pub(super) fn model(cells: &mut Cells<'_>, degrees: &Degrees) -> Result<Model, Reason> {
    let kind = cells.word("kind").to_owned();
    let model = match kind.as_str() {
        "gpt" | "moe" | "bert" | "t5" => stated(cells)?,
        "nemotron" => hybrid(cells)?,
        _ => return Err(Reason::Kind { word: kind }),
    };
    let n_predicting = u64::from(cells.count("mtp_layers").unwrap_or(0));
    let multiple = count(cells, "make-vocab-size-divisible-by").unwrap_or(128);
    let vocab = models::padded_vocabulary(model.vocab, multiple, degrees.tp);
    Ok(Model { vocab, ..model }.with_predicting(n_predicting))
}

/// Nemotron's hybrids by their width and depth; their vocabulary is the row's, where it states one.
fn hybrid(cells: &mut Cells<'_>) -> Result<Model, Reason> {
    let shape = ["layers", "hidden"].map(|column| cells.word(column).to_owned());
    let name = match [shape[0].as_str(), shape[1].as_str()] {
        ["52", "2688"] => "nemotron-3-nano-30b-a3b",
        ["88", "4096"] => "nemotron-3-super-120b-a12b",
        ["108", "8192"] => "nemotron-3-ultra-550b-a55b",
        _ => return Err(Reason::Kind { word: format!("a hybrid of {} layers", shape[0]) }),
    };
    let model = engine::model::embedded(name).expect("embedded");
    let vocab = cells.count("vocab").map_or(model.vocab, u64::from);
    Ok(Model { vocab, ..model })
}

/// The shape that the flags state, GPT with learned positions unless they say otherwise.
fn stated(cells: &mut Cells<'_>) -> Result<Model, Reason> {
    let name = cells.word("setting").to_owned();
    let is_mixtral = cells.word("test").starts_with("mixtral");
    let latent = cells.flag("mla").then(|| latent(cells));
    let n_dense = dense_layers(cells);
    let n_layers = u64::from(last(cells, "layers"));
    let is_bert = cells.word("kind") == "bert";
    let extra = count(cells, "vocab-extra-ids").unwrap_or(0);
    let of = |name: &str| cells.count(name).map(u64::from);
    let usual = if is_bert { Some(BERT_VOCABULARY) } else { is_mixtral.then_some(MIXTRAL_VOCABULARY) };
    let vocab = of("vocab").or(usual).ok_or(Reason::Vocabulary)? + extra;
    let [hidden, intermediate] = ["hidden", "ffn"].map(|name| of(name).unwrap_or(1));
    let [n_heads, n_kv_heads, head_dim] = ["heads", "kv_heads", "head_dim"].map(|name| of(name).unwrap_or(1));
    let experts = of("experts").map(|n_routed| {
        let (top_k, width) = (of("topk").unwrap_or(1), of("moe_ffn").unwrap_or(intermediate));
        Experts { shared_intermediate: of("shared_ffn").unwrap_or(0), ..Experts::plain(n_routed, top_k, width) }
    });
    let has_biases = cells.flag("linear_bias");
    // Of latent attention the flag means the norms of what it is projected from, which it has.
    let has_norms = latent.is_none() && has(cells, "qk-layernorm");
    // Latent attention has rotary positions.
    let base = engine::model::embedded(if latent.is_some() { "deepseek-v3" } else { "gpt-3-175b" }).expect("embedded");
    Ok(Model {
        name,
        n_layers,
        layers: experts.map_or_else(|| Pattern::uniform(Layer::DENSE), |_| Pattern::of_experts(n_dense, 1)),
        hidden,
        n_heads,
        n_kv_heads: latent.map_or(n_kv_heads, |_| n_heads),
        head_dim: latent.map_or(head_dim, |latent| latent.nope_dim + latent.rope_dim),
        intermediate,
        gated: cells.flag("swiglu"),
        vocab,
        tied: !cells.flag("untied_embeddings"),
        qkv_bias: has_biases && latent.is_none(),
        output_bias: has_biases && latent.is_none(),
        qk_norm: if has_norms { QueryKeyNorm::Head } else { QueryKeyNorm::Off },
        experts,
        latent,
        n_predicting: 0,
        ..base
    })
}

/// Ranks and widths of latent attention; what no flag states is Megatron-LM's default (`megatron/training/arguments.py`, `_add_mla_args`).
fn latent(cells: &Cells<'_>) -> LatentAttention {
    let of = |name: &str| count(cells, name);
    LatentAttention {
        q_rank: of("q-lora-rank"),
        kv_rank: of("kv-lora-rank").unwrap_or(32),
        nope_dim: of("qk-head-dim").unwrap_or(128),
        rope_dim: of("qk-pos-emb-head-dim").unwrap_or(64),
        value_dim: of("v-head-dim").unwrap_or(128),
    }
}

/// First layers without experts, from `--moe-layer-freq ([0]*3+[1]*11)`; none without one.
fn dense_layers(cells: &Cells<'_>) -> u64 {
    const NAME: &str = "moe-layer-freq";
    let Some(text) = flag(cells, NAME).filter(|text| *text != "1") else { return 0 };
    let first = text.strip_prefix("([0]*").and_then(|rest| rest.split('+').next()?.parse().ok());
    if first.is_none() {
        cells.fault("other_flags", format!("`{NAME}={text}` is neither 1 nor `([0]*m+[1]*n)`"));
    }
    first.unwrap_or(0)
}
