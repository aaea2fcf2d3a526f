//! A score of measured steps as JSON and as CSV, a row a line. Seconds and bytes.

use engine::cost::Source;
use serde::Serialize;

use super::order::{Ordered, Orders};
use super::play::{Says, Scored};
use super::select::Key;
use super::summary::{self, GroupErrors, HostBound, Score};
use crate::errors::Errors;
use crate::order::Agreement;
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
    bound: &'static str,
    measured_step_s: Option<f64>,
    predicted_step_s: Option<f64>,
    step_ratio: Option<f64>,
    step_low_s: Option<f64>,
    step_high_s: Option<f64>,
    measured_memory_bytes: String,
    predicted_memory_bytes: String,
    memory_ratio: Option<f64>,
    measured_parts_s: String,
    predicted_parts_s: String,
    source: Option<&'static str>,
    dominant: Option<&'static str>,
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
    step: Option<Figures>,
    covered: Option<f64>,
    memory: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    n: usize,
    mean_error: f64,
    median_error: f64,
    worst_error: f64,
    bias: f64,
}

#[derive(Serialize)]
struct HostBoundGroup<'s> {
    group: Group<'s>,
    settings: usize,
    tau: Option<f64>,
}

/// An order of settings; `beyond` is about pairs that lie at least a factor apart.
#[derive(Serialize)]
struct Ordering {
    among: String,
    settings: usize,
    pairs: u64,
    tau: Option<f64>,
    beyond: Vec<Beyond>,
}

#[derive(Serialize)]
struct Beyond {
    factor: f64,
    pairs: u64,
    tau: Option<f64>,
}

#[derive(Serialize)]
struct Document<'s> {
    schema: &'static str,
    groups: Vec<Group<'s>>,
    bound_by_host: Vec<HostBoundGroup<'s>>,
    repeats: usize,
    tau_of_a_repeat: [Option<f64>; 3],
    order: Vec<Ordering>,
    without_prediction: Vec<MissingRows>,
    rows: Vec<Line>,
}

/// Everything as JSON.
pub fn json(score: &Score) -> String {
    let mut groups = in_groups((&score.all, &score.groups), Key::word, group);
    groups.extend(score.causes.iter().map(|found| group("dominant", found)));
    as_json(&Document {
        schema: "skrull-sim/score-training/1",
        groups,
        bound_by_host: score.host_bound.iter().map(host_bound).collect(),
        repeats: score.orders.n_repeats,
        tau_of_a_repeat: score.orders.again,
        order: orders(&score.orders),
        without_prediction: missing_rows(&score.missing),
        rows: score.rows.iter().map(line).collect(),
    })
}

fn host_bound(found: &HostBound) -> HostBoundGroup<'_> {
    HostBoundGroup { group: group("card", &found.errors), settings: found.n_settings, tau: found.tau }
}

/// All groups together, and each of them.
fn orders(orders: &Orders) -> Vec<Ordering> {
    let of = |group: &Ordered| Ordering {
        among: group.among.clone(),
        settings: group.n_settings,
        pairs: group.all.n,
        tau: group.all.tau(),
        beyond: beyond(group, orders.apart),
    };
    std::iter::once(&orders.all()).chain(&orders.groups).map(of).collect()
}

fn beyond(group: &Ordered, apart: [f64; 2]) -> Vec<Beyond> {
    let of = |(pairs, factor): (&Agreement, f64)| Beyond { factor, pairs: pairs.n, tau: pairs.tau() };
    group.beyond.iter().zip(apart).map(of).collect()
}

/// Every row as a line of CSV under a header; memory of several stages with blanks between.
pub fn csv(score: &Score) -> String {
    rows_as_csv(&score.rows.iter().map(line).collect::<Vec<_>>())
}

fn group<'s>(by: &'static str, found: &'s GroupErrors) -> Group<'s> {
    let figures = |errors: Errors| Figures {
        n: errors.n,
        mean_error: errors.mean,
        median_error: errors.median,
        worst_error: errors.worst,
        bias: errors.bias,
    };
    let summary::Figures { step, memory } = found.figures;
    Group {
        by,
        value: &found.value,
        rows: found.n_rows,
        predicted: found.n_predicted,
        step: step.errors.map(figures),
        covered: step.covered,
        memory: memory.errors.map(figures),
    }
}

/// Bytes of several stages.
fn joined(bytes: impl Iterator<Item = f64>) -> String {
    bytes.map(|bytes| format!("{bytes:.0}")).collect::<Vec<_>>().join(" ")
}

/// Times of forward, backward and optimizer.
fn seconds(parts: Option<[f64; 3]>) -> String {
    parts.map_or_else(String::new, |parts| parts.map(|part| format!("{part:.6}")).join(" "))
}

fn line(scored: &Scored) -> Line {
    let (label, measured) = (&scored.row.label, &scored.row.measured);
    let found = scored.outcome.as_ref().ok();
    let (reason, detail) = reason_of(scored.outcome.as_ref().err());
    let of_step = found.filter(|found| found.says != Says::Nothing);
    let ratios = scored.memory_ratios();
    let largest = ratios.iter().map(|(_, ratio)| *ratio).max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()));
    Line {
        row: label.row.clone(),
        line: label.line,
        set: label.set,
        model: label.model.clone(),
        card: label.card.clone(),
        format: label.format.clone(),
        layout: label.layout.clone(),
        variant: label.variant.clone(),
        bound: measured.bound.word(),
        measured_step_s: measured.step_s,
        predicted_step_s: found.filter(|found| found.says == Says::Value).map(|found| found.step_s),
        step_ratio: scored.step_ratio(),
        step_low_s: of_step.map(|found| found.interval[0]),
        step_high_s: of_step.map(|found| found.interval[1]),
        measured_memory_bytes: joined(measured.memory.iter().map(|(_, bytes)| *bytes).chain(measured.largest_memory)),
        predicted_memory_bytes: found.map_or_else(String::new, |found| joined(found.memory.iter().flatten().copied())),
        memory_ratio: largest,
        measured_parts_s: seconds(measured.parts_s),
        predicted_parts_s: seconds(found.and_then(|found| found.parts_s).filter(|_| measured.parts_s.is_some())),
        source: found.map(|found| Source::name(found.source)),
        dominant: found.map(|found| found.dominant.word()),
        why: found.map(|found| found.why.clone()),
        reason,
        detail,
    }
}
