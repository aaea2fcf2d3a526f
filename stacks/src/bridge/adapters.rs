//! Adapters that a recipe of Bridge trains alone: `peft=…`, `--peft_scheme …`, `--mode lora`, or a recipe that is named so.

use input::diagnostic::{Code, Finding};

use super::Override;
use crate::document::Document;
use crate::flags::{Flag, words};

/// Section of their keys.
pub(super) const SECTION: &str = "peft";
/// Flags that name the scheme.
const SCHEMES: [&str; 4] = ["peft", "peft-scheme", "peft-method", "mode"];
/// Values of theirs without adapters.
const WITHOUT: [&str; 5] = ["null", "none", "None", "pretrain", "sft"];
/// Rank where nothing says it (`LoRA.dim`, `megatron/bridge/peft/lora.py` @ 067f987df03b).
const RANK: u32 = 32;

/// Adapters as they are asked for.
pub(super) struct Adapters {
    rank: u32,
    beside: &'static str,
    /// What is to be said of them.
    findings: Vec<Finding>,
}

/// Whether an override is one of adapters.
pub(super) fn is_of_adapters(text: &str) -> bool {
    let key = text.trim_start_matches('+').split('=').next().unwrap_or(text);
    key == SECTION || key.strip_prefix(SECTION).is_some_and(|own| own.starts_with('.'))
}

/// The value of an override of adapters, and where it stands: the last one.
fn value<'w>(words: &'w [Override], key: &str) -> Option<(&'w str, std::ops::Range<usize>)> {
    words.iter().rev().find_map(|(text, at)| {
        let (known, value) = text.trim_start_matches('+').split_once('=')?;
        (known == key).then(|| (value.trim_matches(['"', '\'']), at.clone()))
    })
}

/// What the flags of the program, overrides and the recipe's name ask for.
pub(super) fn read(recipe: Option<&str>, flags: &[Flag], words: &[Override]) -> Option<Adapters> {
    let of_scheme = flags.iter().filter(|flag| SCHEMES.contains(&flag.name.as_str()));
    // Overrides stand behind the value of a flag.
    let mut named = of_scheme.filter_map(|flag| Some((flag.values.first()?.clone(), flag.at.clone())));
    let by_flag = named.find(|(scheme, _)| !WITHOUT.contains(&scheme.as_str()));
    let by_word = value(words, SECTION).map(|(value, at)| (value.to_owned(), at));
    let by_name = recipe.filter(|name| name.contains("_peft") || name.contains("_lora"));
    let (scheme, at) = by_word.or(by_flag).or_else(|| by_name.map(|_| ("lora".to_owned(), 0..0)))?;
    if WITHOUT.contains(&scheme.as_str()) {
        return None;
    }
    let mut findings = Vec::new();
    let mut warn = |what: String, at: std::ops::Range<usize>, help: &str| {
        findings.push(Finding::warning(Code::NotModelled, Some(at).filter(|at| !at.is_empty()), what).help(help));
    };
    if scheme != "lora" {
        warn(format!("adapters of `{scheme}` are not modelled"), at, "they are counted as those of `lora`");
    }
    let rank = value(words, "peft.dim");
    let parsed =
        rank.as_ref().map_or(Some(RANK), |(rank, _)| rank.parse().ok().filter(|rank| (1..=100_000).contains(rank)));
    let modules = value(words, "peft.target_modules");
    let beside = modules.as_ref().map_or(Some("all"), |(text, _)| beside(text));
    if let (None, Some((text, at))) = (beside, modules) {
        warn(format!("`peft.target_modules={text}` is not modelled"), at, "adapters are counted beside all products");
    }
    if let (None, Some((text, at))) = (parsed, rank) {
        let what = format!("`peft.dim={text}` is no such number");
        findings
            .push(Finding::error(Code::WrongFlag, Some(at), what).help("allowed are whole numbers from 1 to 100000"));
    }
    Some(Adapters { rank: parsed.unwrap_or(RANK), beside: beside.unwrap_or("all"), findings })
}

/// The word of a scenario for the products that have an adapter.
pub(crate) fn beside(modules: &str) -> Option<&'static str> {
    let has = |name: &str| words(modules).any(|word| word.trim_start_matches('*').ends_with(name));
    match ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"].map(has) {
        [true, true, true, true] => Some("all"),
        [true, true, false, false] => Some("attention"),
        [true, false, false, false] => Some("qkv"),
        _ => None,
    }
}

impl Adapters {
    /// Writes them. Gives what is to be said of them beside a model with or without experts.
    pub(super) fn write(&self, out: &mut Document, has_experts: bool) -> Vec<Finding> {
        out.word("optimizer", "trains", "adapters", "peft, --peft_scheme, --mode or the recipe's name");
        out.set("optimizer", "adapter_rank", self.rank, "peft.dim");
        out.word("optimizer", "adapters_beside", self.beside, "peft.target_modules");
        let mut findings = self.findings.clone();
        if has_experts {
            let what = "adapters beside the products of experts are not modelled";
            let help = "their kernels and states are left out, which are few";
            findings.push(Finding::warning(Code::NotModelled, None, what).help(help));
        }
        findings
    }
}
