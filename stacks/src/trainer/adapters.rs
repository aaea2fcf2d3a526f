//! Adapters of a job: their rank, and the products that they stand beside.

use input::diagnostic::Code;

use super::scripts::Script;
use super::{Dialect, is_on, is_true, word_of, words_of};
use crate::flags::{Flags, words};
use crate::job::Job;

/// Modules of checkpoints, and the products of a layer that they are. Models with one product for several have adapters beside all of them.
const MODULES: [(&str, &[&str]); 27] = [
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
    ("c_proj", &["o_proj", "down_proj"]),
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

/// Whose words a job has, and the program of a known project that it starts.
pub(super) type Whose = (Dialect, Option<Script>);

/// Reads what is trained, and adapters.
pub(super) fn trained(flags: &mut Flags<'_>, job: &mut Job, whose: Whose) -> Trained {
    let (dialect, script) = whose;
    if !has_adapters(flags, whose) {
        return Trained::All;
    }
    job.word(("optimizer", "trains"), "adapters", "adapters alone: finetuning_type, adapter, use_peft, lora_r");
    let rank = word_of(flags, "optimizer.adapter_rank").and_then(|name| flags.count(&name, 1..=100_000));
    let usual = script.map_or(dialect.rank(), Script::rank);
    job.key(("optimizer", "adapter_rank"), rank.unwrap_or(usual), "lora_r, lora_rank");
    let asked = beside(flags);
    let beside = asked.clone().unwrap_or_else(|| without_word(whose));
    let list: Vec<String> = beside.iter().map(|name| format!("\"{name}\"")).collect();
    let value = if list.len() == 7 { "\"all\"".to_owned() } else { format!("[{}]", list.join(", ")) };
    job.key(("optimizer", "adapters_beside"), value, "lora_target, lora_target_modules, lora_target_linear");
    match script {
        _ if dialect == Dialect::Torchtune => {}
        Some(script) => {
            script.beside(flags);
            of_peft(flags, job, whose);
        }
        None => {
            guessed(flags, dialect, (rank.is_none().then_some(usual), asked.is_none().then_some(&list)));
            of_peft(flags, job, whose);
        }
    }
    Trained::Adapters
}

/// Says what is taken of adapters where a script of its own says it in its program.
fn guessed(flags: &mut Flags<'_>, dialect: Dialect, (rank, beside): (Option<u64>, Option<&Vec<String>>)) {
    if dialect != Dialect::Trainer || rank.is_none() && beside.is_none() {
        return;
    }
    let rank = rank.map(|rank| format!("rank {rank}"));
    let beside = beside.map(|list| format!("adapters beside {}", list.join(", ").replace('"', "`")));
    let taken: Vec<String> = beside.into_iter().chain(rank).collect();
    let what = format!("the program itself says more of its adapters: {}, PEFT's own, are taken", taken.join(" of "));
    let help = "give `--set optimizer.adapter_rank=…` and `--set optimizer.adapters_beside=…`";
    flags.warn(Code::MissingFlag, None, what, help);
}

/// PEFT makes adapters in 32 bits (`autocast_adapter_dtype`), and has dropout where it is asked for: some ask for it by themselves (TRL's
/// `ModelConfig.lora_dropout`, `lora_dropout` of ms-swift and of known programs).
fn of_peft(flags: &mut Flags<'_>, job: &mut Job, (dialect, script): Whose) {
    if script.is_some_and(|script| !script.is_of_peft()) {
        return;
    }
    let narrow = flags.text("lora_dtype").filter(|word| word != "float32");
    if narrow.is_some() {
        flags.not_modelled("lora_dtype", "adapters are counted in 32 bits");
    }
    job.word(("optimizer", "adapter_dtype"), "fp32", "PEFT makes adapters in 32 bits");
    let given = word_of(flags, "optimizer.adapter_dropout").and_then(|name| flags.text(&name));
    let ratio = given.map(|word| word.parse::<f64>().unwrap_or(0.0));
    let by_itself = matches!(dialect, Dialect::Trl | Dialect::Swift) || script.is_some();
    if ratio.map_or(by_itself, |ratio| ratio > 0.0) {
        job.key(("optimizer", "adapter_dropout"), true, "lora_dropout");
    }
}

fn has_adapters(flags: &mut Flags<'_>, (dialect, script): Whose) -> bool {
    match dialect {
        Dialect::Swift => swift(flags),
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
            let rank = word_of(flags, "optimizer.adapter_rank").filter(|_| dialect == Dialect::Trainer);
            let is_none = rank.as_ref().is_some_and(|name| flags.find(name).is_some_and(|flag| flag.value() == "0"));
            let has_any = !switches.is_empty() || rank.is_some() || script == Some(Script::FastChat);
            !is_off && !is_none && has_any && (!switches.is_empty() || script != Some(Script::Llava))
        }
    }
}

/// Products that have adapters, as words say it.
fn beside(flags: &mut Flags<'_>) -> Option<Vec<&'static str>> {
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
    let is_of = |name: &&str| found.contains(name);
    (!found.is_empty()).then(|| of_all().into_iter().filter(is_of).collect())
}

/// Products that have adapters where no word says it: PEFT chooses by the model.
fn without_word((dialect, script): Whose) -> Vec<&'static str> {
    let has_all = script.map_or(matches!(dialect, Dialect::LlamaFactory | Dialect::Swift), Script::has_all);
    if has_all { of_all().to_vec() } else { USUAL.to_vec() }
}

/// What ms-swift tunes: adapters where nothing is said. Older releases have other names for the word.
fn swift(flags: &mut Flags<'_>) -> bool {
    const FULL: &str = "full";
    let Some(name) = flags.last_of(&super::TUNERS) else { return true };
    let word = flags.text(name).unwrap_or_default();
    if word != FULL && !["lora", "lora_llm", "qlora"].contains(&word.as_str()) {
        flags.not_modelled(name, "adapters of LoRA are counted in its place");
    }
    word != FULL
}

/// Every product of a layer, in order.
fn of_all() -> [&'static str; 7] {
    engine::shard::AdaptedProducts::MODULES.map(|(name, _)| name)
}
