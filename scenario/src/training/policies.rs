//! `[policies]`: which to run, with parameters, under names of their own, and with a pipeline schedule of their own.

use std::collections::BTreeMap;

use hw::Gpu;
use planner::train::compression::Question;
use planner::train::objective::Objective;
use planner::train::policy::{Allowed, Card};
use planner::{Policy, Value};
use toml_span::value::ValueInner;

use super::{PolicyChoice, compression, parallel};
use crate::recompute;
use input::diagnostic::{Code, Finding};
use input::reader::seen::{self, Seen};
use input::reader::{Place, Section, place_of, unknown};
use input::run_list::{RunList, Silence, run_list_or};

/// What a framework does by itself: sequences packed in their order.
const USUAL: &str = "megatron";
/// What says how sequences fill micro-batches, and that they do so by best fit.
const FILL: &str = "fill";
const PACKED: &str = "packed";

/// Reads the section.
pub fn policies(
    mut section: Section<'_>,
    compressed: Option<&Question>,
    (gpu, is_of_days, has_rows): (Option<&Gpu>, bool, bool),
) -> Asked {
    let unpriced = gpu.filter(|gpu| gpu.prices.is_empty()).map(|gpu| gpu.name.as_str());
    let help = "write `cluster.usd_per_gpu_hour`, or take a card with a quoted price: `skrull-sim list gpus`";
    let objective = objective(&mut section, (unpriced, help), (is_of_days, Objective::Seconds));
    let mut variants = Vec::new();
    section.each_table("variant", &mut |table| variants.extend(variant(table, compressed)));
    let mut plain = Vec::new();
    for policy in planner::train::policies::POLICIES {
        let name = policy.card().name;
        known(&section, &format!("{name}."), *policy);
        let choice = match section.table(name) {
            Some(table) => choice(table, name.to_owned(), *policy, compressed),
            None => PolicyChoice {
                name: name.to_owned(),
                policy: name.to_owned(),
                compression: compressed.cloned(),
                ..PolicyChoice::default()
            },
        };
        plain.push((name, choice));
    }
    let RunList { choices, baseline } = run_list_or(&mut section, plain, variants, Silence::Means(USUAL));
    section.finish();
    let mut policies: Vec<PolicyChoice> = choices.into_iter().map(|(_, choice)| choice).collect();
    if has_rows {
        policies.iter_mut().for_each(fills_rows);
    }
    Asked { policies, baseline, objective }
}

/// Sequences of rows lie in them by best fit, however they came, unless a policy says another thing.
fn fills_rows(choice: &mut PolicyChoice) {
    let policy = planner::train::policies::named(&choice.policy);
    let fills = |policy: &&dyn Policy| policy.card().parameters.iter().any(|parameter| parameter.name == FILL);
    if policy.as_ref().is_some_and(fills) {
        choice.parameters.entry(FILL.to_owned()).or_insert_with(|| Value::Word(PACKED.to_owned()));
    }
}

/// What the section says.
pub struct Asked {
    /// Policies that run, in order.
    pub policies: Vec<PolicyChoice>,
    /// The one that others are compared with.
    pub baseline: String,
    /// By what.
    pub objective: Objective,
}

/// All that may be sought; the word of `maximize` is its metric.
const OBJECTIVES: [Objective; 4] =
    [Objective::Seconds, Objective::Usd, Objective::RunTokens, Objective::RunTokensPerUsd];
/// Words of `minimize`: every step has the same tokens, so these mean the same as tokens per second and per dollar.
const LEAST: [(&str, Objective); 2] = [("iteration_time_s", Objective::Seconds), ("cost_usd_per_step", Objective::Usd)];

/// What plans are searched for and compared by, on cards of which one may have no price, with what to do about that; the default where nothing is said.
pub fn objective(
    section: &mut Section<'_>,
    (unpriced, help): (Option<&str>, &str),
    (is_of_days, default): (bool, Objective),
) -> Objective {
    let most = OBJECTIVES.map(|objective| (objective.metric(), objective));
    let (objective, at) = sought(section, &most, default);
    let word = objective.metric();
    if let Some(name) = unpriced.filter(|_| objective.is_of_dollars()) {
        section.refuse(Code::NoPrice, at, format!("dollars are sought, and `{name}` has no price"), help);
    } else if objective.is_of_run() && !is_of_days {
        let what = format!("`{word}` is sought, and the scenario has no run of days");
        let help = format!("write `[failures]`, or maximize `{}`", word.trim_start_matches("run_"));
        section.refuse(Code::MissingKey, at, what, help);
    }
    objective
}

/// What is sought, by the metric that is most or least then, and where it was written.
fn sought(section: &mut Section<'_>, most: &[(&str, Objective)], default: Objective) -> (Objective, Place) {
    let at = section.place("maximize").or_else(|| section.place("minimize")).flatten();
    if section.alternatives(&["maximize", "minimize"]).len() > 1 {
        let what = "`[policies]` takes one of two keys: `maximize` and `minimize`";
        section.refuse(Code::NoEffect, at.clone(), what, "leave one of them out");
    }
    let found = section.one_of("maximize", default, most);
    // What is only ever most has no word there.
    let is_least = section.place("minimize").is_some();
    let least = section.one_of("minimize", found, &LEAST);
    (if is_least { least } else { found }, at)
}

/// `[[policies.variant]]`: a policy under a name of its own, with its own parameters.
fn variant(mut section: Section<'_>, compressed: Option<&Question>) -> Option<(String, PolicyChoice)> {
    let name = section.name();
    section.offers("policy", || planner::train::policies::POLICIES.iter().map(|policy| policy.card().name));
    let Some((policy, at)) = section.text("policy") else {
        section.missing("policy", "a policy, for example `skrull`; `skrull-sim list policies` shows all");
        return None;
    };
    let Some(found) = planner::train::policies::named(&policy) else {
        let names = planner::train::policies::POLICIES.iter().map(|policy| policy.card().name);
        section.find(unknown(Code::UnknownPolicy, format!("unknown policy `{policy}`"), &policy, names, at));
        return None;
    };
    let choice = choice(section, name.clone().unwrap_or_default(), found, compressed);
    name.map(|name| (name, choice))
}

/// A policy under a name, with its keys: those of any policy (`schedule`, `chunks`, `cp`, `exchange`, `recompute`, `recompute_layers`, those of
/// compression) and its own parameters.
fn choice(mut section: Section<'_>, name: String, policy: &dyn Policy, compressed: Option<&Question>) -> PolicyChoice {
    section.offers("schedule", || planner::train::orders::schedules().map(|schedule| schedule.name));
    let schedule = section.text("schedule").and_then(|(name, at)| parallel::schedule(&mut section, &name, at));
    let chunks = count(&mut section, "chunks", 1000);
    let cp = count(&mut section, "cp", 100_000);
    let has_exchange = section.has("exchange");
    let exchange = has_exchange.then(|| section.one_of("exchange", parallel::EXCHANGES[0].1, &parallel::EXCHANGES));
    let recompute = recompute::given(&mut section);
    let recompute_layers = count(&mut section, "recompute_layers", 10_000);
    let compression = compression::of_policy(&mut section, compressed);
    let parameters = parameters(&mut section, policy);
    let policy = policy.card().name.to_owned();
    PolicyChoice { name, policy, parameters, schedule, chunks, cp, exchange, recompute, recompute_layers, compression }
}

/// A count from 1, if the key is there.
fn count(section: &mut Section<'_>, key: &'static str, most: u64) -> Option<u32> {
    section.has(key).then(|| u32::try_from(section.count(key, Some(1), 1..=most).0).expect("ranges are below 2^32"))
}

/// Tells who watches which parameters a policy has, beside the keys of any policy.
fn known(section: &Section<'_>, before: &str, policy: &dyn Policy) {
    section.takes(|| Seen { path: format!("{before}{}", seen::OTHERS), what: "value", ..Seen::default() });
    for parameter in policy.card().parameters {
        section.takes(|| {
            let (what, allowed) = match parameter.allowed {
                Allowed::Words(words) => ("word", words.join(", ")),
                Allowed::Range(low, high) => ("number", format!("{low} to {high}")),
                Allowed::Count(low, high) => ("whole number", format!("{low} to {high}")),
            };
            let (path, default) = (format!("{before}{}", parameter.name), parameter.default.to_owned());
            Seen { path, what, default, allowed, about: parameter.about, ..Seen::default() }
        });
    }
}

/// What is left of a policy's keys: parameters of its card.
fn parameters(section: &mut Section<'_>, policy: &dyn Policy) -> BTreeMap<String, Value> {
    known(section, "", policy);
    let card = policy.card();
    let mut parameters = BTreeMap::new();
    let mut places = Vec::new();
    for (key, mut value) in section.rest() {
        let at = place_of(&value);
        places.push((key.name.to_string(), at.clone()));
        let Some(known) = card.parameters.iter().find(|parameter| parameter.name == key.name) else {
            let names = card.parameters.iter().map(|parameter| parameter.name);
            let names = names.chain(["schedule", "chunks", "cp", "exchange", "recompute", "recompute_layers"]);
            let names = names.chain(compression::POLICY_KEYS);
            let what = format!("policy `{}` has no parameter `{}`", card.name, key.name);
            section.find(unknown(Code::UnknownParameter, what, &key.name, names, at));
            continue;
        };
        match (known.allowed, value.take()) {
            (Allowed::Words(words), ValueInner::String(word)) if words.contains(&word.as_ref()) => {
                parameters.insert(key.name.into_owned(), Value::Word(word.into_owned()));
            }
            (allowed, found) => match number(allowed, &found) {
                Some(number) => {
                    parameters.insert(key.name.into_owned(), Value::Number(number));
                }
                None => section.find(not_allowed(card.name, &key.name, allowed, &found, at)),
            },
        }
    }
    without_mode(section, card, &parameters, &places);
    parameters
}

/// Warns of parameters that have no effect under the words that others have.
fn without_mode(section: &mut Section<'_>, card: &Card, given: &BTreeMap<String, Value>, places: &[(String, Place)]) {
    for (name, at) in places {
        let known = card.parameters.iter().find(|parameter| parameter.name == name);
        let Some((mode, words)) = known.and_then(|parameter| parameter.under) else { continue };
        let default = card.parameters.iter().find(|parameter| parameter.name == mode).map_or("", |of| of.default);
        let word = match given.get(mode) {
            Some(Value::Word(word)) => word,
            _ => default,
        };
        if !words.contains(&word) {
            let what = format!("`{name}` of policy `{}` changes nothing under `{mode} = \"{word}\"`", card.name);
            let wanted: Vec<String> = words.iter().map(|word| format!("`{mode} = \"{word}\"`")).collect();
            section.warn(Code::NoEffect, at.clone(), what, format!("it needs {}", wanted.join(" or ")));
        }
    }
}

/// The number, where a parameter takes numbers and this one.
fn number(allowed: Allowed, found: &ValueInner<'_>) -> Option<f64> {
    let number = match (allowed, found) {
        (Allowed::Words(_), _) | (Allowed::Count(..), ValueInner::Float(_)) => None,
        (_, ValueInner::Integer(number)) => Some(*number as f64),
        (_, ValueInner::Float(number)) => Some(*number),
        _ => None,
    };
    number.filter(|number| match allowed {
        Allowed::Range(low, high) | Allowed::Count(low, high) => (low..=high).contains(number),
        Allowed::Words(_) => false,
    })
}

fn not_allowed(policy: &str, key: &str, allowed: Allowed, found: &ValueInner<'_>, at: Place) -> Finding {
    let what = format!("parameter `{key}` of `{policy}` has a value that is not allowed");
    match (allowed, found) {
        (Allowed::Words(words), ValueInner::String(word)) => {
            unknown(Code::WrongParameter, what, word, words.iter().copied(), at)
        }
        (Allowed::Words(words), _) => unknown(Code::WrongParameter, what, "", words.iter().copied(), at),
        (Allowed::Range(low, high), _) => {
            Finding::error(Code::WrongParameter, at, what).help(format!("allowed are numbers from {low} to {high}"))
        }
        (Allowed::Count(low, high), _) => Finding::error(Code::WrongParameter, at, what)
            .help(format!("allowed are whole numbers from {low} to {high}")),
    }
}
