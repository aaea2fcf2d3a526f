//! A measured run beside its prediction, term by term, with what repeated runs differ by.
//!
//! The spread is the standard deviation of repeated runs of one setting; of a single run, that of the means of ten parts of it, over the root of ten,
//! which knows nothing of what differs from run to run. A client that kept sums alone says the standard deviation over its requests; divided by the
//! root of their number it stands for the same, and is too small where requests that follow each other are alike.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Bench, Seen};
use crate::errors::mean;
use crate::text::or_dash;

/// Terms that are shown, in order, with their words.
const TERMS: [(&str, &str); 13] = [
    ("queue_s.mean", "queue, mean"),
    ("ttft_s.mean", "first token, mean"),
    ("ttft_s.p50", "first token, p50"),
    ("ttft_s.p90", "first token, p90"),
    ("ttft_s.p99", "first token, p99"),
    ("tpot_s.mean", "further token, mean"),
    ("tpot_s.p50", "further token, p50"),
    ("tpot_s.p90", "further token, p90"),
    ("tpot_s.p99", "further token, p99"),
    ("e2e_s.mean", "whole answer, mean"),
    ("e2e_s.p99", "whole answer, p99"),
    ("requests_per_s", "requests a second"),
    ("output_tokens_per_s", "output tokens a second"),
];
/// Parts of a single run.
const PARTS: usize = 10;

/// One figure of a setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Key of the contract.
    pub key: &'static str,
    /// Mean over repeated runs.
    pub measured: f64,
    /// What it is known to.
    pub spread: Option<f64>,
    /// What is predicted.
    pub predicted: f64,
    /// With every cost at its low and at its high end.
    pub interval: Option<[f64; 2]>,
}

impl Term {
    /// Predicted over measured, less 1.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }
}

/// Repeated runs of one setting beside what is predicted of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// What was run.
    pub setting: String,
    /// Runs of it.
    pub n_runs: usize,
    /// Figures that both sides have.
    pub terms: Vec<Term>,
}

/// Runs of the same setting together, in order.
pub fn settings(benches: &[Bench]) -> Vec<Vec<&Bench>> {
    let mut settings: Vec<(String, Vec<&Bench>)> = Vec::new();
    for bench in benches {
        let setting = bench.setting();
        match settings.iter_mut().find(|(known, _)| *known == setting) {
            Some((_, runs)) => runs.push(bench),
            None => settings.push((setting, vec![bench])),
        }
    }
    settings.into_iter().map(|(_, runs)| runs).collect()
}

/// Compares the runs of a setting with what is predicted.
pub fn compare(runs: &[&Bench], predicted: &BTreeMap<String, f64>, intervals: &BTreeMap<String, [f64; 2]>) -> Compared {
    let term = |(key, _): &(&'static str, &str)| {
        let values: Vec<f64> = runs.iter().filter_map(|bench| bench.figures.get(*key).copied()).collect();
        let predicted = *predicted.get(*key)?;
        let measured = mean(&values)?;
        let spread = if values.len() > 1 { deviation(&values) } else { alone(runs[0], key) };
        // Requests that stand for sums are all alike, and say nothing of a spread.
        let spread = spread.filter(|spread| values.len() > 1 || *spread > 0.0);
        // Of sums alone nothing but means can be compared: requests that are all alike have no tails of their own.
        let is_tail = key.contains(".p") && runs[0].has_sums_alone;
        (!is_tail).then(|| Term { key, measured, spread, predicted, interval: intervals.get(*key).copied() })
    };
    Compared {
        setting: format!("{}: {}", runs[0].client, runs[0].words()),
        n_runs: runs.len(),
        terms: TERMS.iter().filter_map(term).collect(),
    }
}

/// Standard deviation of at least two values.
pub(crate) fn deviation(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - centre) * (value - centre)).sum();
    (values.len() > 1).then(|| libm::sqrt(squares / hw::real(values.len() as u64 - 1)))
}

/// How well a single run knows a mean.
fn alone(run: &Bench, key: &str) -> Option<f64> {
    if !run.has_sums_alone {
        return within(&run.requests, key);
    }
    run.deviations.get(key).map(|deviation| deviation / libm::sqrt(hw::real(run.requests.len() as u64)))
}

/// The same by parts of its requests.
fn within(requests: &[Seen], key: &str) -> Option<f64> {
    let of: fn(&Seen) -> Option<f64> = match key {
        "ttft_s.mean" => |seen| Some(seen.ttft_s),
        "tpot_s.mean" => Seen::tpot_s,
        "e2e_s.mean" => |seen| Some(seen.e2e_s),
        "queue_s.mean" => |seen| seen.queue_s,
        _ => return None,
    };
    let part = requests.len() / PARTS;
    if part == 0 {
        return None;
    }
    let means = requests.chunks_exact(part).take(PARTS).filter_map(|part| {
        let values: Vec<f64> = part.iter().filter_map(of).collect();
        mean(&values)
    });
    Some(deviation(&means.collect::<Vec<f64>>())? / libm::sqrt(hw::real(PARTS as u64)))
}

/// Tables of several settings, as Markdown.
pub fn markdown(all: &[Compared]) -> String {
    let mut text = String::new();
    for found in all {
        let runs = if found.n_runs > 1 { format!(" ({} runs)", found.n_runs) } else { String::new() };
        text += &format!("{}{runs}\n\n", found.setting);
        text += "| term | measured | spread | predicted | interval | error |\n|---|---|---|---|---|---|\n";
        for term in &found.terms {
            let name = TERMS.iter().find(|(key, _)| *key == term.key).map_or(term.key, |(_, words)| words);
            let spread = or_dash(term.spread, |spread| format!("± {spread:.4}"));
            let interval = or_dash(term.interval, |[low, high]| format!("{low:.4} to {high:.4}"));
            let (measured, predicted, error) = (term.measured, term.predicted, term.error() * 100.0);
            text += &format!("| {name} | {measured:.4} | {spread} | {predicted:.4} | {interval} | {error:+.1} % |\n");
        }
        text.push('\n');
    }
    text
}

/// The same for programs.
pub fn json(all: &[Compared]) -> Value {
    let term = |term: &Term| json!({ "key": term.key, "measured": term.measured, "spread": term.spread, "predicted": term.predicted, "interval": term.interval, "error_ratio": term.error() });
    let setting = |found: &Compared| {
        let terms: Vec<Value> = found.terms.iter().map(term).collect();
        json!({ "setting": found.setting, "runs": found.n_runs, "terms": terms })
    };
    Value::from(all.iter().map(setting).collect::<Vec<Value>>())
}
