//! `[[policies.best]]`: one choice among several ways. It has the keys of a variant, each with one value or a list of them; every combination
//! is served, and the best one within `within` by a metric is the choice.

use planner::deploy::tune::Seeks;
use reports::expect::Expectation;
use serve::router::RouterKind;
use toml_span::value::ValueInner;

use super::ServingChoice;
use super::engine::EngineSection;
use super::kv::KvTerms;
use super::policies;
use crate::diagnostic::Code;
use crate::scenario::expect;
use crate::scenario::reader::{self, Listed, Section, unknown};

/// Keys of a variant that may have a list of values.
const LISTS: [&str; 11] = [
    "policy",
    "router",
    "tp",
    "pp",
    "max_sequences",
    "max_tokens",
    "chunk_tokens",
    "chunk_sizes",
    "weights",
    "prefill_attention",
    "kv",
];
/// Ways that are tried at most.
const WAYS_MAX: usize = 4096;

/// What is chosen among several ways.
#[derive(Clone, Debug)]
pub struct Best {
    /// Name in results.
    pub name: String,
    /// What is sought.
    pub aim: Aim,
    /// Limits on metrics that a way has to keep.
    pub within: Vec<Expectation>,
}

/// What is sought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aim {
    /// Little or much.
    pub seeks: Seeks,
    /// Of this metric.
    pub metric: String,
    /// What it counts.
    pub counts: planner::Aim,
}

/// Metrics that may be sought, without the part behind a dot, with what they count.
const SOUGHT: [(&str, Seeks, planner::Aim); 8] = [
    ("ttft_s", Seeks::Least, planner::Aim::Seconds),
    ("tpot_s", Seeks::Least, planner::Aim::Seconds),
    ("e2e_s", Seeks::Least, planner::Aim::Seconds),
    ("makespan_s", Seeks::Least, planner::Aim::Seconds),
    ("requests_per_s", Seeks::Most, planner::Aim::RequestsPerS),
    ("goodput_requests_per_s", Seeks::Most, planner::Aim::RequestsPerS),
    ("output_tokens_per_s", Seeks::Most, planner::Aim::TokensPerS),
    ("output_tokens_per_s_per_gpu", Seeks::Most, planner::Aim::TokensPerSPerGpu),
];

/// `by`: the metric, which says itself whether it is to be small or large.
fn aim(section: &mut Section<'_>) -> Option<Aim> {
    let names: Vec<&str> = SOUGHT.iter().map(|(name, ..)| *name).collect();
    let Some((metric, at)) = section.text("by") else {
        section.missing("by", &format!("the metric that is best in the choice: {}", names.join(", ")));
        return None;
    };
    let start = metric.split('.').next().unwrap_or_default();
    let Some((_, seeks, counts)) = SOUGHT.iter().find(|(name, ..)| *name == start) else {
        section.find(unknown(Code::UnknownWord, format!("nothing is chosen by `{metric}`"), &metric, names, at));
        return None;
    };
    let (seeks, counts) = (*seeks, *counts);
    Some(Aim { seeks, metric, counts })
}

/// Whose way a choice is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Name of what is chosen.
    pub of: String,
    /// Values that were listed, as a label of the way: `tp_4_max_sequences_8`.
    pub label: String,
    /// Listed values that are numbers, by key.
    pub values: Vec<(String, f64)>,
    /// Why it cannot be served, where that was found when the scenario was read.
    pub refused: Option<String>,
}

/// Reads one, with every way that it may choose.
pub fn best(
    mut section: Section<'_>,
    engine: (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<(Best, Vec<ServingChoice>)> {
    let aim = aim(&mut section);
    let within = section.table("within").map_or_else(Vec::new, expect::limits);
    let mut ways = Vec::new();
    let n = section.each_combination(&LISTS, WAYS_MAX, &mut |way, listed| {
        let label: Vec<String> = listed.iter().map(|(key, value)| format!("{key}_{}", word(value.as_ref()))).collect();
        let number = |(key, value): &Listed| Some(((*key).to_owned(), reader::number(value.as_ref())?));
        let values = listed.iter().filter_map(number).collect();
        let Some((of, choice)) = policies::variant(way, engine, router) else { return };
        let candidate = Candidate { of: of.clone(), label: label.join("_"), values, refused: None };
        let name = format!("{of} ({})", label.join(" "));
        ways.push(ServingChoice { name, candidate: Some(candidate), ..choice });
    });
    let name = ways.first()?.candidate.as_ref()?.of.clone();
    (n == ways.len()).then_some((Best { name, aim: aim?, within }, ways))
}

/// A value in a word: of a table, what it is called.
fn word(value: &ValueInner<'_>) -> String {
    match value {
        ValueInner::String(text) => text.to_string(),
        ValueInner::Integer(number) => number.to_string(),
        ValueInner::Float(number) => number.to_string(),
        ValueInner::Table(table) => {
            let words = ["format", "kernel", "borrow", "name"].iter().find_map(|key| table.get(*key)?.as_str());
            let products = table.get("products").and_then(|list| list.as_array());
            let part = products.map_or_else(String::new, |list| format!("-{}-products", list.len()));
            format!("{}{part}", words.unwrap_or("table"))
        }
        ValueInner::Boolean(flag) => flag.to_string(),
        ValueInner::Array(_) => "list".to_owned(),
    }
}
