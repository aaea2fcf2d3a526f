//! A score of steps of reinforcement learning as JSON and as CSV, a row a line. Seconds.

use engine::cost::Source;
use serde::Serialize;

use super::summary::{Score, Scored};
use super::text::listed;
use crate::errors::{Figure, GroupErrors};
use crate::training::select::Key;
use crate::written::{MissingRows, as_json, in_groups, missing_rows, reason_of, rows_as_csv};

#[derive(Serialize)]
struct Line {
    row: String,
    line: u64,
    set: &'static str,
    model: String,
    card: String,
    format: String,
    layout: String,
    variant: String,
    contradicts_itself: bool,
    measured_low_s: Option<f64>,
    measured_high_s: Option<f64>,
    predicted_s: Option<f64>,
    ratio: Option<f64>,
    low_s: Option<f64>,
    high_s: Option<f64>,
    answers_s: Option<f64>,
    log_probabilities_s: Option<f64>,
    training_s: Option<f64>,
    weights_s: Option<f64>,
    switch_s: Option<f64>,
    source: Option<&'static str>,
    why: Option<String>,
    reason: Option<&'static str>,
    detail: Option<String>,
}

#[derive(Serialize)]
struct Group<'s> {
    by: &'static str,
    value: &'s str,
    rows: usize,
    predicted: usize,
    mean_error: Option<f64>,
    median_error: Option<f64>,
    worst_error: Option<f64>,
    bias: Option<f64>,
    covered: Option<f64>,
}

#[derive(Serialize)]
struct Document<'s> {
    schema: &'static str,
    groups: Vec<Group<'s>>,
    without_prediction: Vec<MissingRows>,
    rows: Vec<Line>,
}

/// Everything as JSON.
pub fn json(score: &Score) -> String {
    as_json(&Document {
        schema: "skrull-sim/score-rl/1",
        groups: in_groups((&score.all, &score.groups), Key::word, group),
        without_prediction: missing_rows(&score.missing),
        rows: score.rows.iter().map(line).collect(),
    })
}

/// Every row as a line of CSV under a header.
pub fn csv(score: &Score) -> String {
    rows_as_csv(&score.rows.iter().map(line).collect::<Vec<_>>())
}

fn group<'s>(by: &'static str, found: &'s GroupErrors) -> Group<'s> {
    let Figure { errors, covered } = found.figures;
    Group {
        by,
        value: &found.value,
        rows: found.n_rows,
        predicted: found.n_predicted,
        mean_error: errors.map(|errors| errors.mean),
        median_error: errors.map(|errors| errors.median),
        worst_error: errors.map(|errors| errors.worst),
        bias: errors.map(|errors| errors.bias),
        covered,
    }
}

fn line(scored: &Scored) -> Line {
    let (label, measured) = (&scored.row.label, &scored.row.measured);
    let found = scored.outcome.as_ref().ok();
    let (reason, detail) = reason_of(scored.outcome.as_ref().err());
    let parts = found.and_then(|found| found.parts).map(|parts| listed(&parts));
    let [answers_s, log_probabilities_s, training_s, weights_s, switch_s] =
        [0, 1, 2, 3, 4].map(|part: usize| parts.map(|parts| parts[part]));
    Line {
        row: label.row.clone(),
        line: label.line,
        set: label.set,
        model: label.model.clone(),
        card: label.card.clone(),
        format: label.format.clone(),
        layout: label.layout.clone(),
        variant: label.variant.clone(),
        contradicts_itself: measured.disagrees,
        measured_low_s: measured.seconds.map(|[low, _]| low),
        measured_high_s: measured.seconds.map(|[_, high]| high),
        predicted_s: found.map(|found| found.seconds),
        ratio: scored.ratio(),
        low_s: found.map(|found| found.interval[0]),
        high_s: found.map(|found| found.interval[1]),
        answers_s,
        log_probabilities_s,
        training_s,
        weights_s,
        switch_s,
        source: found.map(|found| Source::name(found.source)),
        why: found.map(|found| found.why.clone()),
        reason,
        detail,
    }
}
