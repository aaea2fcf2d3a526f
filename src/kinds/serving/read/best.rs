//! `[[policies.best]]`: one choice among several ways. It has the keys of a variant, each with one value or a list of them; every combination
//! is served, and the best one within `within` by a metric is the choice.

use toml_span::value::ValueInner;

use super::ServingChoice;
use super::engine::EngineSection;
use super::policies;
use crate::diagnostic::{Code, Finding};
use crate::scenario::expect::{self, Expectation};
use crate::scenario::reader::{Listed, Section};
use serve::router::RouterKind;

/// Keys of a variant that may have a list of values.
const LISTS: [&str; 10] = [
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
pub enum Aim {
    /// As little as can be of a metric.
    Least(String),
    /// As much as can be of a metric.
    Most(String),
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
pub fn best(mut section: Section<'_>, engine: &EngineSection, router: &'static RouterKind) -> Option<(Best, Vec<ServingChoice>)> {
    let (least, most) = (section.text("least"), section.text("most"));
    let aim = match (least, most) {
        (Some((metric, _)), None) => Some(Aim::Least(metric)),
        (None, Some((metric, _))) => Some(Aim::Most(metric)),
        (Some(_), Some((_, at))) => {
            section.find(Finding::error(Code::ExclusiveKeys, at, "`least` and `most` exclude each other"));
            None
        }
        (None, None) => {
            section.missing("most", "a metric to be as large as can be, or `least` with one to be as small as can be");
            None
        }
    };
    let within = section.table("within").map_or_else(Vec::new, expect::limits);
    let mut ways = Vec::new();
    let n = section.each_combination(&LISTS, WAYS_MAX, &mut |way, listed| {
        let label: Vec<String> = listed.iter().map(|(key, value)| format!("{key}_{}", word(value.as_ref()))).collect();
        let number = |(key, value): &Listed| Some(((*key).to_owned(), number(value.as_ref())?));
        let values = listed.iter().filter_map(number).collect();
        let Some((of, choice)) = policies::variant(way, engine, router) else { return };
        let candidate = Candidate { of: of.clone(), label: label.join("_"), values, refused: None };
        let name = format!("{of} ({})", label.join(" "));
        ways.push(ServingChoice { name, candidate: Some(candidate), ..choice });
    });
    let name = ways.first()?.candidate.as_ref()?.of.clone();
    (n == ways.len()).then_some((Best { name, aim: aim?, within }, ways))
}

fn number(value: &ValueInner<'_>) -> Option<f64> {
    match value {
        ValueInner::Integer(number) => Some(*number as f64),
        ValueInner::Float(number) => Some(*number),
        _ => None,
    }
}

/// A value in a word: of a table, its first text or number.
fn word(value: &ValueInner<'_>) -> String {
    match value {
        ValueInner::String(text) => text.to_string(),
        ValueInner::Integer(number) => number.to_string(),
        ValueInner::Float(number) => number.to_string(),
        ValueInner::Table(table) => {
            let words = ["format", "kernel", "name"].iter().find_map(|key| table.get(*key)?.as_str());
            words.unwrap_or("table").to_owned()
        }
        ValueInner::Boolean(flag) => flag.to_string(),
        ValueInner::Array(_) => "list".to_owned(),
    }
}
