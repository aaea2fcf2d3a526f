//! `[experts.compression]`: merging similar tokens before the all-to-all (LSH-MoE, arXiv:2411.08446), and the keys of a policy that
//! has it its own way.

use engine::compression::ExpertRows;
use hw::Seconds;
use planner::train::compression::{HASHES_MAX, Question, Sample};
use toml_span::value::ValueInner;
use train::Problem;
use train::compression::hash::Family;

use super::PolicyChoice;
use input::diagnostic::Code;
use input::reader::{Place, Reader, Section, place_of};

/// Keys of `[policies.<name>]` and of variants that are about compression.
pub const POLICY_KEYS: [&str; 6] = ["compression", "hashes", "rate", "family", "compensation", "expert_rows"];

/// Keys of the tokens that are drawn where rates are counted.
const SAMPLE_KEYS: [&str; 5] = ["clusters", "skew", "spread", "rows", "expert_change"];

/// Compression of a scenario, with where it stands.
pub struct Given {
    /// What is asked.
    pub question: Question,
    /// The section.
    pub at: Place,
    /// Keys that are there and say how rates are counted, with their places.
    counting: Vec<(&'static str, Place)>,
}

/// Reads the table inside `[experts]`.
pub fn read(mut section: Section<'_>) -> Given {
    let at = section.at();
    let of_rates = SAMPLE_KEYS.into_iter().chain(["error_max"]);
    let counting = of_rates.filter_map(|key| Some((key, section.place(key)?))).collect();
    let (hashes, rate) = hashes_and_rate(&mut section);
    let error_max = number_given(&mut section, "error_max", 0.0..=10.0);
    let hash_width = count_given(&mut section, "hash_width", 1_000_000);
    let question = Question {
        hashes,
        rate,
        error_max,
        family: family(&mut section),
        hash_width,
        compensation: section.flag("compensation", true),
        expert_rows: expert_rows(&mut section),
        host: Seconds::new(section.number("host_us", 0.0, 0.0..=1e6) / 1e6),
        sample: sample(&mut section),
    };
    section.finish();
    Given { question, at, counting }
}

/// `hashes` and `rate`, where they are there.
fn hashes_and_rate(section: &mut Section<'_>) -> (Option<u32>, Option<f64>) {
    let hashes = count_given(section, "hashes", u64::from(HASHES_MAX));
    let rate = number_given(section, "rate", 0.001..=1.0);
    (hashes.map(|n| u32::try_from(n).expect("few hash functions")), rate)
}

/// A count from 1, if the key is there; either way it is known as one that may be.
fn count_given(section: &mut Section<'_>, key: &'static str, most: u64) -> Option<u64> {
    let is_given = section.has(key);
    let count = section.count(key, Some(1), 1..=most).0;
    is_given.then_some(count)
}

/// A number, if the key is there.
fn number_given(section: &mut Section<'_>, key: &'static str, range: std::ops::RangeInclusive<f64>) -> Option<f64> {
    let is_given = section.has(key);
    let number = section.number(key, *range.end(), range);
    is_given.then_some(number)
}

/// Kind of hash function.
fn family(section: &mut Section<'_>) -> Family {
    section.one_of("family", Family::CrossPolytope, &Family::WORDS)
}

/// What experts compute.
fn expert_rows(section: &mut Section<'_>) -> ExpertRows {
    [ExpertRows::Centroids, ExpertRows::Tokens][section.word("expert_rows", 0, &["centroids", "tokens"])]
}

/// Keys of the tokens that are drawn.
fn sample(section: &mut Section<'_>) -> Sample {
    Sample {
        clusters: section.count("clusters", Some(64), 1..=4096).0,
        skew: section.number("skew", 1.0, 0.0..=10.0),
        spreads: spreads(section),
        rows: count_given(section, "rows", 1_000_000),
        expert_change: section.number("expert_change", 0.5, 0.0..=10.0),
    }
}

/// `spread = 0.2`, or one number per layer with experts.
fn spreads(section: &mut Section<'_>) -> Vec<f64> {
    let Some((value, at)) = section.take("spread") else { return vec![0.1] };
    let allowed = "allowed are numbers from 0 to 10: one, or a list with one for each layer with experts";
    let number = |value: &ValueInner<'_>| {
        let number = match value {
            ValueInner::Integer(number) => Some(*number as f64),
            ValueInner::Float(number) => Some(*number),
            _ => None,
        };
        number.filter(|number| (0.0..=10.0).contains(number))
    };
    let ValueInner::Array(items) = value else {
        return number(&value).map_or_else(
            || {
                section.refuse(Code::OutOfRange, at, "`experts.compression.spread` is out of range", allowed);
                vec![0.1]
            },
            |number| vec![number],
        );
    };
    let mut spreads = Vec::with_capacity(items.len());
    for mut item in items {
        let at = place_of(&item);
        match number(&item.take()) {
            Some(number) => spreads.push(number),
            None => {
                spreads.push(0.0);
                let what = "`experts.compression.spread` holds something out of range";
                section.refuse(Code::OutOfRange, at, what, allowed);
            }
        }
    }
    if spreads.is_empty() { vec![0.1] } else { spreads }
}

/// A policy's own compression: the scenario's with its keys laid over it, or none.
pub fn of_policy(section: &mut Section<'_>, given: Option<&Question>) -> Option<Question> {
    let at = POLICY_KEYS.into_iter().find(|key| section.has(key)).and_then(|_| section.at());
    let (has_word, word_at) = (section.has("compression"), section.place("compression").flatten());
    let is_off = section.word("compression", 0, &["lsh", "none"]) == 1;
    let asks = has_word && !is_off || POLICY_KEYS[1..].iter().any(|key| section.has(key));
    if is_off && given.is_none() {
        let what = "`compression = \"none\"` of a policy changes nothing: the scenario compresses nothing";
        section.warn(Code::NoEffect, word_at, what, "leave it out");
    }
    let (hashes, rate) = hashes_and_rate(section);
    let family = section.has("family").then(|| family(section));
    let compensation = section.has("compensation").then(|| section.flag("compensation", true));
    let rows = section.has("expert_rows").then(|| expert_rows(section));
    if is_off {
        return None;
    }
    let Some(given) = given else {
        if asks {
            let what = "a policy is to merge tokens, but the scenario compresses nothing";
            section.refuse(Code::NoCompression, at, what, "`[experts.compression]` says what is merged and how");
        }
        return None;
    };
    // Functions of its own are counted, unless it gives their rate too.
    let counts = hashes.is_some() && rate.is_none();
    Some(Question {
        hashes: hashes.or(given.hashes),
        rate: if counts { None } else { rate.or(given.rate) },
        family: family.unwrap_or(given.family),
        compensation: compensation.unwrap_or(given.compensation),
        expert_rows: rows.unwrap_or(given.expert_rows),
        ..given.clone()
    })
}

/// What only shows with the model, the layout and the policies.
pub fn cross_checks(
    reader: &mut Reader<'_>,
    given: Option<&Given>,
    problem: &Problem,
    searched: bool,
    policies: &[PolicyChoice],
) {
    let Some(given) = given else { return };
    let mut find = |what: String, help: &str| {
        reader.refuse(Code::WrongCompression, given.at.clone(), what, help.to_owned());
    };
    let n_layers = problem.model.n_expert_layers();
    if problem.model.experts.is_none() {
        find(format!("tokens are merged before experts, but `{}` has none", problem.model.name), "leave it out");
        return;
    }
    if problem.execution.unit_times.is_some() {
        find("`cost.units` gives passes a duration that merging cannot change".to_owned(), "leave one of them out");
    }
    if problem.layout.ep < 2 && !searched {
        find("tokens are merged for the all-to-all, which `parallel.ep = 1` does not have".to_owned(), "set `ep`");
    }
    let n_spreads = given.question.sample.spreads.len() as u64;
    if n_spreads > 1 && n_spreads != n_layers {
        let what = format!("`spread` lists {n_spreads} layers, `{}` has {n_layers} with experts", problem.model.name);
        find(what, "give one number, or one for each of them");
    }
    for (name, question) in policies.iter().filter_map(|choice| Some((&choice.name, choice.compression.as_ref()?))) {
        if question.rate.is_some() && question.hashes.is_none() {
            find(format!("`{name}` has a `rate` without `hashes`"), "the work of hashing follows from their number");
        }
        if question.rate.is_none() && question.hashes.is_none() && question.error_max.is_none() {
            let help = "give `hashes`, or `error_max`, and the fewest functions within it are chosen";
            find(format!("`{name}` has neither a number of hash functions nor a limit that decides it"), help);
        }
        if question.rate.is_none() && question.sample.rows.is_none() && searched {
            let help = "give `rows`: they depend on the layout, which is searched for";
            find(format!("`{name}` counts rates, but not on how many rows"), help);
        }
    }
    idle(reader, given, policies);
}

/// Warns of keys that say how rates are counted, where no policy counts any, and of a limit of errors beside a number of functions.
fn idle(reader: &mut Reader<'_>, given: &Given, policies: &[PolicyChoice]) {
    let asked: Vec<&Question> = policies.iter().filter_map(|choice| choice.compression.as_ref()).collect();
    let counts = asked.iter().any(|question| question.rate.is_none());
    let chooses = asked.iter().any(|question| question.rate.is_none() && question.hashes.is_none());
    for (key, at) in &given.counting {
        let (is_heeded, help) = match *key {
            "error_max" => (chooses, "it chooses `hashes`, where neither they nor a `rate` are given"),
            _ => (counts, "rates are counted on tokens that are drawn, where no `rate` is given"),
        };
        if !is_heeded && !asked.is_empty() {
            reader.warn(Code::NoEffect, at.clone(), format!("`experts.compression.{key}` changes nothing"), help);
        }
    }
}

/// What of it was fitted or assumed, as key and value.
pub fn free_parameters(question: &Question) -> Vec<(String, f64)> {
    let mut free = Vec::new();
    let mut put = |key: &str, value: f64| free.push((format!("experts.compression.{key}"), value));
    match question.rate {
        Some(rate) => put("rate", rate),
        None => {
            let sample = &question.sample;
            put("clusters", hw::real(sample.clusters));
            put("skew", sample.skew);
            put("expert_change", sample.expert_change);
            let mut spreads = sample.spreads.clone();
            spreads.dedup();
            spreads.into_iter().for_each(|spread| put("spread", spread));
        }
    }
    if let Some(error_max) = question.error_max.filter(|_| question.hashes.is_none()) {
        put("error_max", error_max);
    }
    if question.host.get() > 0.0 {
        put("host_us", question.host.get() * 1e6);
    }
    free
}
