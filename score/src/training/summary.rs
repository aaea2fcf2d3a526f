//! Predicted over measured: rows, groups of them, and reasons.
//!
//! An error is |predicted / measured − 1|; a bias is the mean of predicted / measured less 1.

use std::collections::BTreeMap;

use super::dominant::Dominant;
use super::order::{self, Orders};
use super::play::{Costs, Says, Scored, predict};
use super::row::{Bound, Row};
use super::select::{Key, Selection};
use crate::errors::{self, Bias, Figure, holds};
use crate::scored::{reasons, scored};
use crate::tally::{Missing, counted, together};

/// Figures of a group of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Time of the step.
    pub step: Figure,
    /// Memory: each measured pipeline stage counts. It has no interval.
    pub memory: Figure,
}

/// A group of steps.
pub type GroupErrors = errors::GroupErrors<Figures>;

/// Rows that are bound by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBound {
    /// Their errors.
    pub errors: GroupErrors,
    /// Settings: repeats count once.
    pub n_settings: usize,
    /// Kendall's tau of the times of steps, over settings.
    pub tau: Option<f64>,
}

/// Everything about a table.
#[derive(Clone, Debug)]
pub struct Score {
    /// Every row that was asked for, in the table's order.
    pub rows: Vec<Scored>,
    /// All rows together.
    pub all: GroupErrors,
    /// Groups by key, in the order of `Key::GROUPS`.
    pub groups: Vec<(Key, Vec<GroupErrors>)>,
    /// Groups by what dominates the predicted step.
    pub causes: Vec<GroupErrors>,
    /// Order of settings.
    pub orders: Orders,
    /// Rows that are bound by the host: all of them and by card, with the order of their times.
    pub host_bound: Vec<HostBound>,
    /// Rows without prediction by their reason.
    pub missing: Vec<Missing>,
}

/// Scores rows in parallel; `done` is called as each one ends.
pub fn score(rows: Vec<Row>, only: &Selection, costs: &Costs<'_>, done: &(dyn Fn() + Sync)) -> Score {
    let rows = rows.into_iter().filter(|row| only.takes(&row.label)).collect();
    let rows: Vec<Scored> = scored(rows, |row| Ok(predict(row.asked.as_ref().map_err(Clone::clone)?, costs)), done);
    let every: Vec<&Scored> = rows.iter().collect();
    Score {
        all: group("all", &every),
        groups: Key::GROUPS.into_iter().map(|key| (key, groups(key, &rows))).collect(),
        causes: causes(&rows),
        orders: Orders::of(rows.iter().filter(|scored| scored.row.measured.bound == Bound::Device)),
        host_bound: host_bound(&rows),
        missing: counted(reasons(&rows).map(|reason| [reason.name(), reason.about()])),
        rows,
    }
}

impl Scored {
    /// Predicted over measured time of a step, where both are there.
    pub fn step_ratio(&self) -> Option<f64> {
        let found = self.outcome.as_ref().ok().filter(|found| found.says == Says::Value)?;
        Some(found.step_s / self.row.measured.step_s?)
    }

    /// Whether the measured step lies in the interval.
    pub fn is_covered(&self) -> Option<bool> {
        let found = self.outcome.as_ref().ok().filter(|found| found.says != Says::Nothing)?;
        let measured = self.row.measured.step_s?;
        Some(holds(found.interval, measured))
    }

    /// Predicted over measured memory of every stage that was measured: (stage, ratio).
    pub fn memory_ratios(&self) -> Vec<(u32, f64)> {
        let (Ok(found), measured) = (&self.outcome, &self.row.measured) else { return Vec::new() };
        let stages = (0_u32..).zip(&found.memory).filter_map(|(stage, bytes)| Some((stage, (*bytes)?)));
        let largest = stages.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(stage, _)| stage);
        let of = |(stage, bytes): (u32, f64)| Some((stage, (*found.memory.get(stage as usize)?)? / bytes));
        measured.memory.iter().copied().chain(largest.zip(measured.largest_memory)).filter_map(of).collect()
    }
}

fn groups(key: Key, rows: &[Scored]) -> Vec<GroupErrors> {
    let members = together(rows, |scored| key.of(&scored.row.label));
    members.iter().map(|(value, rows)| group(value, rows)).collect()
}

/// Rows with a prediction by what dominates it.
fn causes(rows: &[Scored]) -> Vec<GroupErrors> {
    let mut members: BTreeMap<Dominant, Vec<&Scored>> = BTreeMap::new();
    for scored in rows {
        if let Ok(found) = &scored.outcome {
            members.entry(found.dominant).or_default().push(scored);
        }
    }
    members.iter().map(|(dominant, rows)| group(dominant.word(), rows)).collect()
}

/// Rows that are bound by the host, all and by card; none where there are no such rows.
fn host_bound(rows: &[Scored]) -> Vec<HostBound> {
    let bound: Vec<&Scored> = rows.iter().filter(|scored| scored.row.measured.bound == Bound::Host).collect();
    if bound.is_empty() {
        return Vec::new();
    }
    let mut cards: BTreeMap<&str, Vec<&Scored>> = BTreeMap::new();
    for scored in &bound {
        cards.entry(&scored.row.label.card).or_default().push(scored);
    }
    let of = |(value, rows): (&str, &[&Scored])| {
        let steps = order::mean_steps(rows.iter().copied());
        let errors = group_of(value, rows, Bound::Host);
        HostBound { errors, n_settings: steps.len(), tau: crate::order::tau(&steps) }
    };
    let of_cards = cards.iter().map(|(card, rows)| (*card, rows.as_slice()));
    std::iter::once(("all", bound.as_slice())).chain(of_cards).map(of).collect()
}

fn group(value: &str, rows: &[&Scored]) -> GroupErrors {
    group_of(value, rows, Bound::Device)
}

/// Errors of rows; of their times those that tell of the device, or of the host.
fn group_of(value: &str, rows: &[&Scored], bound: Bound) -> GroupErrors {
    let timed: Vec<&Scored> = rows.iter().copied().filter(|scored| scored.row.measured.bound == bound).collect();
    let steps: Vec<f64> = timed.iter().filter_map(|scored| scored.step_ratio()).collect();
    let memory: Vec<f64> = rows.iter().flat_map(|scored| scored.memory_ratios()).map(|(_, ratio)| ratio).collect();
    let inside: Vec<bool> = timed.iter().filter_map(|scored| scored.is_covered()).collect();
    let n_predicted = rows.iter().filter(|scored| scored.outcome.is_ok()).count();
    let (step, memory) = (Figure::of(&steps, Bias::Mean, &inside), Figure::of(&memory, Bias::Mean, &[]));
    GroupErrors { value: value.to_owned(), n_rows: rows.len(), n_predicted, figures: Figures { step, memory } }
}
