//! A score of scenarios as JSON and as CSV, a row a line, in the units of the metrics.

use serde::Serialize;

use super::{Score, Scored};
use crate::written::{as_json, rows_as_csv};

#[derive(Serialize)]
struct Written<'s> {
    line: u64,
    group: &'s str,
    scenario: &'s str,
    policy: &'s str,
    set: String,
    metric: &'s str,
    measured: f64,
    predicted: Option<f64>,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    reason: Option<String>,
    warnings: String,
    source: &'s str,
}

fn rows(score: &Score) -> Vec<Written<'_>> {
    score.rows.iter().map(row).collect()
}

fn row(scored: &Scored) -> Written<'_> {
    let row = &scored.row;
    let found = scored.outcome.as_ref().ok();
    let interval = found.and_then(|found| found.interval);
    Written {
        line: row.line,
        group: &row.group,
        scenario: &row.scenario,
        policy: &row.policy,
        set: row.set.join("; "),
        metric: &row.metric,
        measured: row.measured,
        predicted: found.map(|found| found.value),
        ratio: scored.ratio(),
        low: interval.map(|[low, _]| low),
        high: interval.map(|[_, high]| high),
        reason: scored.outcome.as_ref().err().map(ToString::to_string),
        warnings: scored.warnings.join("; "),
        source: &row.source,
    }
}

/// Every row as JSON.
pub fn json(score: &Score) -> String {
    as_json(&rows(score))
}

/// Every row as a line.
pub fn csv(score: &Score) -> String {
    rows_as_csv(&rows(score))
}
