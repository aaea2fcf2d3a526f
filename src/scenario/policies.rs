//! `[policies]`: which to run, with parameters, under names of their own, and with a pipeline schedule of their own.

use planner::policy::Allowed;
use planner::{Policy, Value};
use sim::schedule::Schedule;
use toml_span::value::ValueInner;

use sim::layout::ContextExchange;
use sim::problem::Recompute;

use super::reader::{Section, place_of, unknown};
use super::run_list::baseline;
use super::{PolicyChoice, parallel};
use crate::diagnostic::Finding;

/// Policies under a name of their own, with their own parameters.
fn variants(section: &mut Section<'_>, names: &[&'static str]) -> Vec<PolicyChoice> {
    let mut variants: Vec<PolicyChoice> = Vec::new();
    if let Some((ValueInner::Array(tables), _)) = section.take("variant") {
        for mut table in tables {
            let at = place_of(&table);
            let ValueInner::Table(mut keys) = table.take() else { continue };
            let mut word = |key: &str| {
                keys.remove(key).and_then(|mut value| match value.take() {
                    ValueInner::String(text) => Some(text.into_owned()),
                    _ => None,
                })
            };
            let (name, policy) = (word("name"), word("policy"));
            match (name, policy.as_deref().and_then(planner::policies::named)) {
                (Some(name), Some(policy)) => {
                    variants.push(choice(section, name, policy, keys));
                }
                (_, None) => {
                    let found = policy.unwrap_or_default();
                    section.find(unknown(
                        "S027",
                        format!("unknown policy `{found}`"),
                        &found,
                        names.iter().copied(),
                        at,
                    ));
                }
                (None, _) => section.find(Finding::error("S013", at, "a `[[policies.variant]]` needs a `name`")),
            }
        }
    }
    variants
}

/// Reads the section: the choices in order, and the baseline.
pub fn policies(mut section: Section<'_>) -> (Vec<PolicyChoice>, String) {
    let names: Vec<&'static str> = planner::policies::POLICIES.iter().map(|policy| policy.card().name).collect();
    let variants = variants(&mut section, &names);
    let (run, run_at) = match section.take("run") {
        Some((ValueInner::Array(items), at)) => (items, at),
        _ => {
            section.missing(
                "run",
                "for example `run = [\"deepspeed\", \"skrull\"]`; `skrull-sim list policies` shows all",
            );
            (Vec::new(), section.at())
        }
    };
    let mut own: std::collections::BTreeMap<&str, _> = names
        .iter()
        .filter_map(|name| match section.take(name)?.0 {
            ValueInner::Table(keys) => Some((*name, keys)),
            _ => None,
        })
        .collect();
    let mut chosen = Vec::new();
    if run.is_empty() && run_at.is_some() {
        section
            .find(Finding::error("S028", run_at.clone(), "`policies.run` names no policy").help("name at least one"));
    }
    for item in &run {
        let name = item.as_str().unwrap_or_default().to_owned();
        if let Some(variant) = variants.iter().find(|variant| variant.name == name) {
            chosen.push(variant.clone());
        } else if let Some(policy) = planner::policies::named(&name) {
            let keys = own.remove(name.as_str()).unwrap_or_default();
            chosen.push(choice(&mut section, name, policy, keys));
        } else {
            let known = names.iter().copied().chain(variants.iter().map(|variant| variant.name.as_str()));
            section.find(unknown("S027", format!("unknown policy `{name}`"), &name, known, place_of(item)));
        }
    }
    let baseline = baseline(&mut section, chosen.iter().map(|choice| choice.name.as_str()).collect());
    section.finish();
    (chosen, baseline)
}

/// A policy under a name, with its keys: those of any policy (`schedule`, `chunks`, `cp`, `exchange`, `recompute`) and its own parameters.
fn choice(
    section: &mut Section<'_>,
    name: String,
    policy: &dyn Policy,
    mut keys: toml_span::value::Table<'static>,
) -> PolicyChoice {
    let schedule = keys.remove("schedule").and_then(|mut value| {
        let at = place_of(&value);
        match value.take() {
            ValueInner::String(name) => schedule(section, &name, at),
            _ => None,
        }
    });
    let chunks = keys.remove("chunks").and_then(|value| value.as_integer()).and_then(|n| u32::try_from(n).ok());
    let cp = keys.remove("cp").and_then(|value| value.as_integer()).and_then(|n| u32::try_from(n).ok());
    let exchange = word(section, &mut keys, "exchange", &parallel::EXCHANGES)
        .map(|index| [ContextExchange::Gather, ContextExchange::Ring, ContextExchange::Ulysses][index]);
    let recompute = word(section, &mut keys, "recompute", &["selective", "none", "full"])
        .map(|index| [Recompute::Selective, Recompute::Off, Recompute::Full][index]);
    let parameters = parameters(section, policy, keys);
    PolicyChoice { name, policy: policy.card().name.to_owned(), parameters, schedule, chunks, cp, exchange, recompute }
}

/// Which of some words a key has, if it is there.
fn word(
    section: &mut Section<'_>,
    keys: &mut toml_span::value::Table<'static>,
    key: &str,
    words: &[&str],
) -> Option<usize> {
    let mut value = keys.remove(key)?;
    let at = place_of(&value);
    let found = if let ValueInner::String(word) = value.take() { word.into_owned() } else { String::new() };
    let index = words.iter().position(|word| *word == found);
    if index.is_none() {
        section.find(unknown("S014", format!("unknown {key} `{found}`"), &found, words.iter().copied(), at));
    }
    index
}

/// A pipeline schedule by name.
pub fn schedule(
    section: &mut Section<'_>,
    name: &str,
    at: Option<std::ops::Range<usize>>,
) -> Option<&'static Schedule> {
    let found = planner::orders::schedule(name);
    if found.is_none() {
        let names = planner::orders::schedules().map(|schedule| schedule.name);
        section.find(unknown("S038", format!("unknown pipeline schedule `{name}`"), name, names, at));
    }
    found
}

fn parameters(
    section: &mut Section<'_>,
    policy: &dyn Policy,
    keys: toml_span::value::Table<'static>,
) -> std::collections::BTreeMap<String, Value> {
    let card = policy.card();
    let mut parameters = std::collections::BTreeMap::new();
    for (key, mut value) in keys {
        let at = place_of(&value);
        let Some(known) = card.parameters.iter().find(|parameter| parameter.name == key.name) else {
            let names = card.parameters.iter().map(|parameter| parameter.name);
            let what = format!("policy `{}` has no parameter `{}`", card.name, key.name);
            section.find(unknown("S032", what, &key.name, names, at));
            continue;
        };
        let what = format!("parameter `{}` of `{}` has a value that is not allowed", key.name, card.name);
        match (known.allowed, value.take()) {
            (Allowed::Words(words), ValueInner::String(word)) if words.contains(&word.as_ref()) => {
                parameters.insert(key.name.into_owned(), Value::Word(word.into_owned()));
            }
            (Allowed::Words(words), other) => {
                let found = if let ValueInner::String(word) = &other { word.to_string() } else { String::new() };
                section.find(unknown("S033", what, &found, words.iter().copied(), at));
            }
            (Allowed::Range(low, high), other) => {
                let number = match other {
                    ValueInner::Integer(number) => number as f64,
                    ValueInner::Float(number) => number,
                    _ => f64::NAN,
                };
                if (low..=high).contains(&number) {
                    parameters.insert(key.name.into_owned(), Value::Number(number));
                } else {
                    section.find(
                        Finding::error("S033", at, what).help(format!("allowed are numbers from {low} to {high}")),
                    );
                }
            }
        }
    }
    parameters
}
