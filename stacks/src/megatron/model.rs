//! The shape of a model that flags state, as keys of `[model.config]`.

use crate::Machine;
use crate::document::Document;
use crate::flags::{Flag, Flags};
use crate::megatron::Shape;
use crate::megatron::hybrid::Hybrid;
use crate::shell::UNKNOWN;
use engine::model::{Model, Positions, of_checkpoint};
use input::diagnostic::{Code, Finding, divisors};

/// Where the shape is written.
const SECTION: &str = "model.config";
/// Rows of a vocabulary that a tokenizer has, where no flag says so.
const TOKENIZERS: [(&str, u64); 4] = [
    ("GPT2BPETokenizer", 50_257),
    ("Llama2Tokenizer", 32_000),
    ("Llama3Tokenizer", 128_256),
    ("TikTokenizer", 131_072),
];
/// Dropout where a script is silent (`megatron/core/transformer/transformer_config.py`, `hidden_dropout`, `attention_dropout`).
pub(super) const DROPOUT: f64 = 0.1;
/// Layers that predict a further token in a hybrid: attention, and experts.
pub(super) const PREDICTING_OF_HYBRID: u64 = 2;
/// Largest width or count.
pub(super) const MOST: u64 = 100_000_000;
/// What to do about a flag that a scenario needs.
pub(super) const NEEDED: &str = "a scenario needs it, and checkpoints are not read: give it in the script, or the model with `--set model.name=…` and the \
                                 length with `--set workload.tokens=…`";

/// The word of a model's positions.
pub(super) const fn positions(model: &Model) -> &'static str {
    match (model.learned_positions, model.style.positions) {
        (true, _) => "learned_absolute",
        (false, Positions::Off) => "none",
        (false, Positions::Rotary | Positions::Biases) => "rope",
    }
}

/// Writes the model; `None` without layers, width or heads.
pub(crate) fn write(flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) -> Option<Shape> {
    let is_hybrid = super::hybrid::flag(flags).is_some();
    let hybrid = super::hybrid::read(flags);
    if is_hybrid && hybrid.is_none() {
        return None;
    }
    let mut needed = |names: [&'static str; 2]| {
        let found = names.into_iter().find(|name| flags.find(name).is_some());
        let count = found.and_then(|name| flags.count(name, 1..=MOST));
        if found.is_none() {
            flags.missing(names[0], NEEDED);
        }
        count
    };
    let n_layers = hybrid.as_ref().map(Hybrid::n_layers).or_else(|| needed(["num-layers", "encoder-num-layers"]));
    let hidden = needed(["hidden-size", "hidden-size"]);
    let n_heads = needed(["num-attention-heads", "num-attention-heads"]);
    let tokens = needed(["seq-length", "encoder-seq-length"]);
    let (n_layers, hidden, n_heads, tokens) = (n_layers?, hidden?, n_heads?, tokens?);
    if n_layers > 10_000 {
        flags.wrong(
            "num-layers",
            format!("`--num-layers {n_layers}` is no such number"),
            "allowed are whole numbers from 1 to 10000".to_owned(),
        );
        return None;
    }
    out.word(SECTION, "model_type", "megatron", "");
    out.set(SECTION, "num_hidden_layers", n_layers, "--num-layers");
    out.set(SECTION, "hidden_size", hidden, "--hidden-size");
    let is_gated = flags.is("swiglu") || flags.is("quick-geglu");
    feed_forward(flags, out, hidden, is_gated);
    out.set(SECTION, "num_attention_heads", n_heads, "--num-attention-heads");
    let n_groups = groups(flags, out, n_heads);
    let width = flags.count("kv-channels", 1..=MOST).unwrap_or((hidden / n_heads).max(1));
    out.set(SECTION, "head_dim", width, "--kv-channels");
    let given = flags.count("max-position-embeddings", 1..=MOST).unwrap_or(tokens);
    out.set(SECTION, "max_position_embeddings", given.max(tokens), "--max-position-embeddings");
    vocabulary(flags, out, machine);
    let is_tied = !flags.is("untie-embeddings-and-output-weights");
    out.set(SECTION, "tie_word_embeddings", is_tied, "--untie-embeddings-and-output-weights");
    let positions = flags.text("position-embedding-type");
    let is_learned = positions.as_deref().is_none_or(|word| word == "learned_absolute")
        && !flags.is("use-rotary-position-embeddings");
    out.set(SECTION, "learned_positions", is_learned, "--position-embedding-type");
    if positions.is_some_and(|word| ["none", "alibi", "relative"].contains(&word.as_str())) {
        out.set(SECTION, "rotary_positions", false, "--position-embedding-type");
    }
    let has_bias = !flags.is("disable-bias-linear");
    out.set(SECTION, "attention_bias", has_bias || flags.is("add-qkv-bias"), "--disable-bias-linear, --add-qkv-bias");
    out.set(SECTION, "output_bias", has_bias, "--disable-bias-linear");
    if flags.is("qk-layernorm") {
        out.set(SECTION, "use_qk_norm", true, "--qk-layernorm");
    }
    windows(flags, out, n_layers);
    super::dropout(flags, out, DROPOUT);
    latent(flags, out);
    let n_experts = experts(flags, out, n_layers, is_hybrid);
    let stated = flags.count("mtp-num-layers", 0..=100).unwrap_or(0);
    let n_predicting = hybrid.as_ref().map_or(0, |hybrid| hybrid.n_predicting).max(stated);
    if let Some(hybrid) = &hybrid {
        super::hybrid::write(flags, out, hybrid, hidden);
    }
    let layers_per_further_token = if is_hybrid { PREDICTING_OF_HYBRID } else { 1 };
    let stages = hybrid.map(|hybrid| hybrid.stages).filter(|stages| stages.len() > 1).unwrap_or_default();
    Some(Shape { n_layers, n_predicting, layers_per_further_token, stages, n_heads, n_groups, n_experts, tokens })
}

/// Windows of attention, and the layers that have none.
fn windows(flags: &mut Flags<'_>, out: &mut Document, n_layers: u64) {
    const NAME: &str = "window-size";
    const SKIP: &str = "window-attn-skip-freq";
    let Some(window) = flags.text(NAME) else {
        if flags.is(SKIP) {
            flags.not_modelled(SKIP, "there is no `--window-size`, so all layers attend to all tokens");
        }
        return;
    };
    let bare = window.replace(['(', ')', '[', ']', ' '], ",");
    let sides: Option<Vec<i64>> =
        bare.split(',').filter(|side| !side.is_empty()).map(|side| side.parse().ok()).collect();
    let Some([left, right]) = sides.as_deref().and_then(|sides| <[i64; 2]>::try_from(sides).ok()) else {
        let help = "allowed are two numbers: tokens to the left and to the right, for example `127,0`; -1 is no limit";
        return flags.wrong(NAME, format!("`--{NAME} {window}` is no window"), help.to_owned());
    };
    if right > 0 {
        flags.not_modelled(NAME, "attention is causal: no token sees one to its right");
    }
    // A token sees itself too.
    let Some(width) = u64::try_from(left).ok().map(|left| left + 1) else { return };
    out.set(SECTION, "sliding_window", width, "--window-size");
    let Some(skip) = flags.text(SKIP) else { return };
    let Some(list) = super::layers::windows(&skip, n_layers) else {
        let what = format!("`--{SKIP} {skip}` is no list of the {n_layers} layers");
        return flags.wrong(SKIP, what, super::layers::allowed(n_layers));
    };
    let word = |has_window: &u8| if *has_window == 1 { "\"sliding_attention\"" } else { "\"full_attention\"" };
    let words: Vec<&str> = list.iter().map(word).collect();
    out.set(SECTION, "layer_types", format!("[{}]", words.join(", ")), "--window-attn-skip-freq");
}

fn feed_forward(flags: &mut Flags<'_>, out: &mut Document, hidden: u64, is_gated: bool) {
    // Megatron-LM keeps the parameters of a gated feed-forward near those of a plain one: 4 · 2/3, to a multiple of 64.
    let default = if is_gated { (4 * hidden * 2 / 3) / 64 * 64 } else { 4 * hidden };
    let width = flags.count("ffn-hidden-size", 1..=MOST).unwrap_or(default.max(1));
    out.set(SECTION, "intermediate_size", width, "--ffn-hidden-size");
    out.set(SECTION, "gated", is_gated, "--swiglu");
}

fn groups(flags: &mut Flags<'_>, out: &mut Document, n_heads: u64) -> u64 {
    let given = flags.count("num-query-groups", 1..=MOST);
    // Without a number there is one group (`--num-query-groups` of megatron/training/arguments.py).
    let n_groups = if flags.is("group-query-attention") { given.unwrap_or(1) } else { n_heads };
    if !n_heads.is_multiple_of(n_groups) {
        let what = format!("{n_groups} query groups do not divide {n_heads} heads");
        flags.wrong("num-query-groups", what, format!("allowed are {}", divisors(n_heads)));
    }
    out.set(SECTION, "num_key_value_heads", n_groups, "--group-query-attention, --num-query-groups");
    n_groups
}

/// Rows of the embedding, padded as Megatron-LM pads them.
fn vocabulary(flags: &mut Flags<'_>, out: &mut Document, machine: &Machine) {
    if let Some(rows) = flags.count("padded-vocab-size", 1..=MOST) {
        return out.set(SECTION, "vocab_size", rows, "--padded-vocab-size");
    }
    if let Some(rows) = machine.vocabulary {
        return out.set(SECTION, "vocab_size", rows, "--set model.config.vocab_size");
    }
    let Some((rows, whose)) = rows(flags, machine) else {
        let help = "files of the tokenizer are not read: give `--vocab-size` or `--padded-vocab-size` in the script, or \
                    `--set model.config.vocab_size=…`";
        return flags.missing("vocab-size", help);
    };
    let extra = flags.count("vocab-extra-ids", 0..=MOST).unwrap_or(0);
    let multiple = flags.count("make-vocab-size-divisible-by", 1..=MOST).unwrap_or(128);
    let tp = flags.count("tensor-model-parallel-size", 1..=100_000).unwrap_or(1);
    let padded = (rows + extra).next_multiple_of(multiple * tp);
    out.set(
        SECTION,
        "vocab_size",
        padded,
        format!("{rows} rows of {whose}, padded to a multiple of {}", multiple * tp),
    );
}

/// Rows of a vocabulary before they are padded, and whose they are. A flag says those of the few tokenizers that take it, and stands in for files of others
/// (`build_tokenizer` of `megatron/core/tokenizers/utils/build_tokenizer.py`). NullTokenizer of releases before April 2026 has one row more.
fn rows(flags: &mut Flags<'_>, machine: &Machine) -> Option<(u64, String)> {
    const FLAG: &str = "vocab-size";
    const TOKENIZER: &str = "the tokenizer";
    const TAKING: [&str; 3] = ["NullTokenizer", "NullMultimodalTokenizer", "TikTokenizer"];
    let tokenizer = flags.text("tokenizer-type");
    let given = flags.count(FLAG, 1..=MOST);
    let is_taken = tokenizer.as_deref().is_none_or(|name| TAKING.contains(&name));
    let own = if is_taken && given.is_some() { None } else { of_tokenizer(flags, machine, tokenizer.as_deref()) };
    match (given, own) {
        (Some(given), Some((rows, whose))) => {
            if rows != given {
                let name = tokenizer.unwrap_or_default();
                let what = format!("`--{FLAG} {given}` changes nothing: `{name}` has {rows} rows of its own");
                flags.warn(Code::NoEffect, flags.at(FLAG), what, "give `--padded-vocab-size`, or leave it out");
            }
            Some((rows, whose))
        }
        (Some(given), None) => Some((given, TOKENIZER.to_owned())),
        (None, Some(own)) => Some(own),
        (None, None) if tokenizer.is_some() => None,
        (None, None) => Some((TOKENIZERS[0].1, TOKENIZER.to_owned())),
    }
}

/// Rows of a tokenizer that is known, or of the checkpoint that it is named by.
fn of_tokenizer(flags: &Flags<'_>, machine: &Machine, tokenizer: Option<&str>) -> Option<(u64, String)> {
    let known = TOKENIZERS.iter().find(|(name, _)| tokenizer == Some(*name));
    if let Some((name, rows)) = known {
        return Some((*rows, (*name).to_owned()));
    }
    // The tokenizer of a checkpoint of the catalogue: its embedding has a row for each token, and some more.
    let path = flags.find("tokenizer-model").map(Flag::value).filter(|path| !path.contains(UNKNOWN));
    let named = path.and_then(|path| of_checkpoint(&path));
    let model = named.or_else(|| of_checkpoint(machine.model.as_ref()?))?;
    Some((model.vocab, format!("the vocabulary of {}", model.name)))
}

/// A warning where nothing says the vocabulary, and GPT-2's is taken.
pub(super) fn guessed(given: &[Flag], machine: &Machine) -> Option<Finding> {
    const SAYING: [&str; 5] = ["padded-vocab-size", "vocab-size", "tokenizer-type", "tokenizer-model", "vocab-file"];
    let is_said = given.iter().any(|flag| SAYING.contains(&flag.name.as_str()));
    if is_said || machine.vocabulary.is_some() || machine.model.is_some() {
        return None;
    }
    let (name, rows) = TOKENIZERS[0];
    let what = format!("the script names neither a tokenizer nor `--vocab-size`: the {rows} tokens of GPT-2 are taken");
    let help = format!("give `--vocab-size`, or `--tokenizer-type {name}`");
    Some(Finding::warning(Code::MissingFlag, None, what).help(help))
}

/// Ranks of latent attention, with Megatron-LM's defaults.
fn latent(flags: &mut Flags<'_>, out: &mut Document) {
    if !flags.is("multi-latent-attention") {
        return;
    }
    if let Some(rank) = flags.count("q-lora-rank", 1..=MOST) {
        out.set(SECTION, "q_lora_rank", rank, "--q-lora-rank");
    }
    for (key, flag, default) in [
        ("kv_lora_rank", "kv-lora-rank", 512),
        ("qk_nope_head_dim", "qk-head-dim", 128),
        ("qk_rope_head_dim", "qk-pos-emb-head-dim", 64),
        ("v_head_dim", "v-head-dim", 128),
    ] {
        let value = flags.count(flag, 1..=MOST).unwrap_or(default);
        out.set(SECTION, key, value, format!("--{flag}"));
    }
}

/// Experts, and which layers have them.
fn experts(flags: &mut Flags<'_>, out: &mut Document, n_layers: u64, is_hybrid: bool) -> u64 {
    let Some(n) = flags.count("num-experts", 1..=100_000) else { return 0 };
    out.set(SECTION, "num_experts", n, "--num-experts");
    let top_k = flags.count("moe-router-topk", 1..=100_000).unwrap_or(2);
    if top_k > n {
        flags.wrong(
            "moe-router-topk",
            format!("a token visits {top_k} of {n} experts"),
            format!("allowed are 1 to {n}"),
        );
    }
    out.set(SECTION, "num_experts_per_tok", top_k, "--moe-router-topk");
    let width = flags.count("moe-ffn-hidden-size", 1..=MOST).or_else(|| flags.count("ffn-hidden-size", 1..=MOST));
    let width = width.unwrap_or_else(|| 4 * flags.count("hidden-size", 1..=MOST).unwrap_or(1));
    out.set(SECTION, "moe_intermediate_size", width, "--moe-ffn-hidden-size");
    if let Some(shared) = flags.count("moe-shared-expert-intermediate-size", 1..=MOST) {
        out.set(SECTION, "shared_expert_intermediate_size", shared, "--moe-shared-expert-intermediate-size");
    }
    if let Some(latent) = flags.count("moe-latent-size", 1..=MOST) {
        out.set(SECTION, "moe_latent_size", latent, "--moe-latent-size");
    }
    // A pattern tells which layers have them.
    if let Some(frequency) = flags.text("moe-layer-freq").filter(|_| !is_hybrid) {
        match super::layers::frequency(&frequency, n_layers) {
            Some(list) => {
                let words: Vec<String> = list.iter().map(u8::to_string).collect();
                out.set(SECTION, "moe_layer_freq", format!("[{}]", words.join(", ")), "--moe-layer-freq");
            }
            None => flags.wrong(
                "moe-layer-freq",
                format!("`--moe-layer-freq {frequency}` is no list of the {n_layers} layers"),
                super::layers::allowed(n_layers),
            ),
        }
    }
    n
}
