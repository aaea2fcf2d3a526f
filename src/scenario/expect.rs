//! `[expect]`: golden figures that a scenario carries, and whether a result meets them.
//!
//! Keys are `metrics.<policy>.<metric>`, `planner.<policy>.<figure>`, `speedup_ratio.<policy>`, `status.<policy>` and `order` (policies from slow to fast).

use std::collections::BTreeMap;

use reports::{PolicyResult, RunResult};
use toml_span::value::ValueInner;

use super::reader::{Section, place_of};
use crate::diagnostic::{Code, Finding};

/// One expectation.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Key.
    pub key: String,
    /// What must hold.
    pub holds: Holds,
}

/// What an expectation asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Holds {
    /// A number between two bounds, both included.
    Between(f64, f64),
    /// A status.
    Status(String),
    /// Policies in increasing speed.
    Order(Vec<String>),
}

/// Reads the section.
pub fn read(mut section: Section<'_>) -> Vec<Expectation> {
    let mut expectations = Vec::new();
    for (key, mut value) in section.rest() {
        let at = place_of(&value);
        let name = key.name.into_owned();
        let kinds = ["metrics.", "planner.", "speedup_ratio.", "status."];
        if name != "order" && !kinds.iter().any(|kind| name.starts_with(kind)) {
            let what = format!("expectation `{name}` is about nothing that a result has");
            section.find(Finding::error(Code::WrongExpectation, at, what).help(
                "keys are \"metrics.POLICY.METRIC\", \"planner.POLICY.FIGURE\", \"speedup_ratio.POLICY\", \"status.POLICY\" and order",
            ));
            continue;
        }
        match holds(&name, value.take()) {
            Some(holds) => expectations.push(Expectation { key: name, holds }),
            None => section.find(
                Finding::error(Code::WrongExpectation, at, format!("expectation `{name}` cannot be read"))
                    .help("write { near = 1.4, within = 0.1 }, { exact = 4 }, { min = 1, max = 2 }, { status = \"oom\" } or order = [...]"),
            ),
        }
    }
    section.finish();
    expectations
}

/// Limits on metrics: `{ n_preempted = { max = 0 } }`.
pub fn limits(mut section: Section<'_>) -> Vec<Expectation> {
    let mut limits = Vec::new();
    for (key, mut value) in section.rest() {
        let at = place_of(&value);
        let name = key.name.into_owned();
        match holds(&name, value.take()) {
            Some(holds @ Holds::Between(..)) => limits.push(Expectation { key: name, holds }),
            _ => section
                .find(Finding::error(Code::WrongExpectation, at, format!("limit `{name}` cannot be read")).help(
                "write { max = 2 }, { min = 1 }, { min = 1, max = 2 }, { exact = 4 } or { near = 1.4, within = 0.1 }",
            )),
        }
    }
    section.finish();
    limits
}

/// The first limit that metrics break, in words; one that they do not have is broken.
#[must_use]
pub fn broken(limits: &[Expectation], metrics: &BTreeMap<String, f64>) -> Option<String> {
    limits.iter().find_map(|limit| {
        let Holds::Between(low, high) = limit.holds else { return None };
        let key = &limit.key;
        match metrics.get(key) {
            Some(found) if (low..=high).contains(found) => None,
            Some(found) if *found < low => Some(format!("`{key}` is {found}, at least {low} is asked")),
            Some(found) => Some(format!("`{key}` is {found}, at most {high} is allowed")),
            None => Some(format!("there is no `{key}`")),
        }
    })
}

/// What a value asks; `None` where it is not one of the forms, with all of its keys and no other.
fn holds(name: &str, value: ValueInner<'static>) -> Option<Holds> {
    if name == "order" {
        let ValueInner::Array(items) = value else { return None };
        return items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>().map(Holds::Order);
    }
    let ValueInner::Table(table) = value else { return None };
    let number = |key: &str| {
        let value = table.get(key)?;
        value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).filter(|number| number.is_finite())
    };
    let mut keys: Vec<&str> = table.keys().map(|key| key.name.as_ref()).collect();
    keys.sort_unstable();
    let (low, high) = match (keys[..].as_ref(), name.starts_with("status.")) {
        (["status"], true) => return table.get("status")?.as_str().map(|status| Holds::Status(status.to_owned())),
        (["near", "within"], false) => (number("near")? - number("within")?, number("near")? + number("within")?),
        (["exact"], false) => (number("exact")?, number("exact")?),
        (["max", "min"], false) => (number("min")?, number("max")?),
        (["min"], false) => (number("min")?, f64::INFINITY),
        (["max"], false) => (f64::NEG_INFINITY, number("max")?),
        _ => return None,
    };
    (low <= high).then_some(Holds::Between(low, high))
}

/// What a result misses, one sentence each.
#[must_use]
pub fn misses(expectations: &[Expectation], result: &RunResult) -> Vec<String> {
    expectations.iter().filter_map(|expectation| miss(expectation, result)).collect()
}

fn miss(expectation: &Expectation, result: &RunResult) -> Option<String> {
    let key = &expectation.key;
    let row = |policy: &str| result.results.iter().find(|row| row.policy == policy);
    match &expectation.holds {
        Holds::Order(policies) => {
            let times: Vec<Option<f64>> =
                policies.iter().map(|p| row(p).and_then(|row| row.metrics.get("iteration_time_s").copied())).collect();
            let rising = times.windows(2).all(|pair| matches!(pair, [Some(slow), Some(fast)] if slow > fast));
            (!rising)
                .then(|| format!("`order`: expected increasing speed over {policies:?}, iteration times are {times:?}"))
        }
        Holds::Status(status) => {
            let policy = key.strip_prefix("status.").unwrap_or(key);
            let found = row(policy).map_or("absent", |row| row.status.as_str());
            (found != status).then(|| format!("`{key}`: expected {status}, found {found}"))
        }
        Holds::Between(low, high) => {
            let found = match key.strip_prefix("speedup_ratio.") {
                Some(policy) => result.speedup_ratio.get(policy).copied(),
                None => figure(key, row),
            };
            match found {
                Some(found) if (*low..=*high).contains(&found) => None,
                Some(found) => Some(format!("`{key}`: expected {low} to {high}, found {found}")),
                None => Some(format!("`{key}`: expected {low} to {high}, found no such figure")),
            }
        }
    }
}

/// A metric, or a figure that a planner gave with its plan.
fn figure<'a>(key: &str, row: impl Fn(&str) -> Option<&'a PolicyResult>) -> Option<f64> {
    let (kind, rest) = key.split_once('.')?;
    // Names of policies and of metrics may both hold dots: every way to part them is tried.
    rest.match_indices('.').find_map(|(at, _)| {
        let (policy, name) = (row(&rest[..at])?, &rest[at + 1..]);
        match kind {
            "metrics" => policy.metrics.get(name).copied(),
            "planner" => policy.planner.as_ref()?.figures.get(name).copied(),
            _ => None,
        }
    })
}
