//! Adapters of a job: their rank, and the products that they stand beside.

use super::{Dialect, is_on, is_true, word_of, words_of};
use crate::flags::{Flags, words};
use crate::job::Job;

/// Modules of checkpoints, and the products of a layer that they are. Models with one product for several have adapters beside all of them.
const MODULES: [(&str, &[&str]); 26] = [
    ("q_proj", &["q_proj"]),
    ("k_proj", &["k_proj"]),
    ("v_proj", &["v_proj"]),
    ("o_proj", &["o_proj"]),
    ("gate_proj", &["gate_proj"]),
    ("up_proj", &["up_proj"]),
    ("down_proj", &["down_proj"]),
    ("output_proj", &["o_proj"]),
    ("out_proj", &["o_proj"]),
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("query_key_value", &["q_proj", "k_proj", "v_proj"]),
    ("c_attn", &["q_proj", "k_proj", "v_proj"]),
    ("Wqkv", &["q_proj", "k_proj", "v_proj"]),
    ("W_pack", &["q_proj", "k_proj", "v_proj"]),
    ("wqkv", &["q_proj", "k_proj", "v_proj"]),
    ("wo", &["o_proj"]),
    ("dense", &["o_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("dense_h_to_4h", &["up_proj"]),
    ("dense_4h_to_h", &["down_proj"]),
    ("fc1", &["up_proj"]),
    ("fc2", &["down_proj"]),
    ("w1", &["gate_proj"]),
    ("w2", &["down_proj"]),
    ("w3", &["up_proj"]),
    ("c_fc", &["up_proj"]),
];
/// Words for every product of a layer.
const ALL: [&str; 3] = ["all", "all-linear", "all_linear"];
/// Products of a feed-forward with a gate (`apply_lora_to_mlp`).
const FEED_FORWARD: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
/// PEFT's products for nearly every model: queries and values (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`).
const USUAL: [&str; 2] = ["q_proj", "v_proj"];

/// What a job trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trained {
    /// Every parameter.
    All,
    /// Adapters.
    Adapters,
}

/// Reads what is trained, and adapters.
pub(super) fn trained(flags: &mut Flags<'_>, job: &mut Job, dialect: Dialect) -> Trained {
    if !has_adapters(flags, dialect) {
        return Trained::All;
    }
    job.word(("optimizer", "trains"), "adapters", "adapters alone: finetuning_type, adapter, use_peft, lora_r");
    let rank = word_of(flags, "optimizer.adapter_rank").and_then(|name| flags.count(&name, 1..=100_000));
    job.key(("optimizer", "adapter_rank"), rank.unwrap_or(dialect.rank()), "lora_r, lora_rank");
    let beside = beside(flags, dialect);
    let list: Vec<String> = beside.iter().map(|name| format!("\"{name}\"")).collect();
    let value = if list.len() == 7 { "\"all\"".to_owned() } else { format!("[{}]", list.join(", ")) };
    job.key(("optimizer", "adapters_beside"), value, "lora_target, lora_target_modules, lora_target_linear");
    if dialect != Dialect::Torchtune {
        of_peft(flags, job, dialect);
    }
    Trained::Adapters
}

/// PEFT makes adapters in 32 bits (`autocast_adapter_dtype`), and has dropout where it is asked for: TRL asks for it by itself (`ModelConfig.lora_dropout`).
fn of_peft(flags: &mut Flags<'_>, job: &mut Job, dialect: Dialect) {
    job.word(("optimizer", "adapter_dtype"), "fp32", "PEFT makes adapters in 32 bits");
    let given = word_of(flags, "optimizer.adapter_dropout").and_then(|name| flags.text(&name));
    let ratio = given.map(|word| word.parse::<f64>().unwrap_or(0.0));
    if ratio.map_or(dialect == Dialect::Trl, |ratio| ratio > 0.0) {
        job.key(("optimizer", "adapter_dropout"), true, "lora_dropout");
    }
}

fn has_adapters(flags: &mut Flags<'_>, dialect: Dialect) -> bool {
    match dialect {
        Dialect::LlamaFactory => {
            let word = flags.text("finetuning_type").unwrap_or_else(|| "lora".to_owned());
            if word == "oft" || word == "freeze" {
                flags.not_modelled("finetuning_type", "all parameters are trained here");
            }
            word == "lora"
        }
        Dialect::Torchtune => {
            let component = flags.text("model._component_").unwrap_or_default();
            [".qlora_", ".lora_"].iter().any(|mark| component.contains(mark))
        }
        Dialect::Axolotl => flags.text("adapter").is_some(),
        Dialect::Trl | Dialect::Trainer => {
            let switches = words_of(flags, "optimizer.trains");
            let is_off = switches.first().is_some_and(|name| !is_on(flags, name));
            // Scripts of their own often have a rank and no switch.
            let has_rank = dialect == Dialect::Trainer && word_of(flags, "optimizer.adapter_rank").is_some();
            !is_off && (!switches.is_empty() || has_rank)
        }
    }
}

/// Products that have adapters.
fn beside(flags: &mut Flags<'_>, dialect: Dialect) -> Vec<&'static str> {
    let mut found: Vec<&str> = Vec::new();
    for name in words_of(flags, "optimizer.adapters_beside") {
        let Some(value) = flags.text(&name) else { continue };
        if name == "lora_target_linear" || name == "model.apply_lora_to_mlp" {
            let these = if name == "lora_target_linear" { &of_all()[..] } else { &FEED_FORWARD };
            found.extend(these.iter().filter(|_| is_true(&value)));
            continue;
        }
        for word in words(&value) {
            match MODULES.iter().find(|(module, _)| *module == word) {
                _ if ALL.contains(&word) => found.extend(of_all()),
                Some((_, products)) => found.extend(*products),
                None => flags.not_modelled(&name, &format!("no adapter is counted beside `{word}`")),
            }
        }
    }
    if found.is_empty() {
        // LLaMA-Factory's `lora_target` is `all`; PEFT chooses by the model.
        return if dialect == Dialect::LlamaFactory { of_all().to_vec() } else { USUAL.to_vec() };
    }
    of_all().into_iter().filter(|name| found.contains(name)).collect()
}

/// Every product of a layer, in order.
fn of_all() -> [&'static str; 7] {
    engine::shard::AdaptedProducts::MODULES.map(|(name, _)| name)
}
