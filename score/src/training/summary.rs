//! Predicted over measured: rows, groups of them, and reasons.
//!
//! An error is |predicted / measured − 1|; a bias is the mean of predicted / measured less 1.

use std::collections::BTreeMap;

use hw::quantile::median;
use rayon::prelude::*;

use super::dominant::Dominant;
use super::order::{self, Orders};
use super::play::{Costs, Says, Scored, predict};
use super::row::{Bound, Row};
use super::select::{Key, Selection};
use crate::summary::holds;
use crate::tally::{Missing, counted, together};

/// Errors over some rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Rows.
    pub n: usize,
    /// Mean of the error.
    pub mean: f64,
    /// Median of the error.
    pub median: f64,
    /// Largest error.
    pub worst: f64,
    /// Mean of predicted over measured, less 1.
    pub bias: f64,
}

/// A group of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupErrors {
    /// What they have in common.
    pub value: String,
    /// Rows.
    pub n_rows: usize,
    /// Those with a prediction.
    pub n_predicted: usize,
    /// Of the step.
    pub step: Option<Errors>,
    /// Share of measured steps inside the interval.
    pub covered: Option<f64>,
    /// Of memory: each measured pipeline stage counts.
    pub memory: Option<Errors>,
}

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
    let scored = |row: Row| {
        let outcome = row.asked.as_ref().map(|asked| predict(asked, costs)).map_err(Clone::clone);
        done();
        Scored { row, outcome }
    };
    let rows: Vec<Scored> = rows.into_par_iter().filter(|row| only.takes(&row.label)).map(scored).collect();
    let every: Vec<&Scored> = rows.iter().collect();
    Score {
        all: group("all", &every),
        groups: Key::GROUPS.into_iter().map(|key| (key, groups(key, &rows))).collect(),
        causes: causes(&rows),
        orders: Orders::of(rows.iter().filter(|scored| scored.row.measured.bound == Bound::Device)),
        host_bound: host_bound(&rows),
        missing: counted(
            rows.iter()
                .filter_map(|scored| scored.outcome.as_ref().err())
                .map(|reason| [reason.name(), reason.about()]),
        ),
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
    let covered: Vec<bool> = timed.iter().filter_map(|scored| scored.is_covered()).collect();
    let inside = covered.iter().filter(|is_inside| **is_inside).count();
    GroupErrors {
        value: value.to_owned(),
        n_rows: rows.len(),
        n_predicted: rows.iter().filter(|scored| scored.outcome.is_ok()).count(),
        step: errors(&steps),
        covered: (!covered.is_empty()).then(|| share(inside, covered.len())),
        memory: errors(&memory),
    }
}

pub(crate) fn share(part: usize, whole: usize) -> f64 {
    hw::real(part as u64) / hw::real(whole as u64)
}

pub(crate) fn errors(ratios: &[f64]) -> Option<Errors> {
    if ratios.is_empty() {
        return None;
    }
    let n = hw::real(ratios.len() as u64);
    let off: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
    Some(Errors {
        n: ratios.len(),
        mean: off.iter().sum::<f64>() / n,
        worst: off.iter().copied().fold(0.0, f64::max),
        median: median(&off),
        bias: ratios.iter().sum::<f64>() / n - 1.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_hand_arithmetic() {
        // 10 % above, 20 % below, exact: mean 10 %, median 10 %, worst 20 %, bias −10/3 %.
        let found = errors(&[1.1, 0.8, 1.0]).expect("ratios");
        assert!((found.mean - 0.1).abs() < 1e-12 && (found.median - 0.1).abs() < 1e-12);
        assert!((found.worst - 0.2).abs() < 1e-12 && (found.bias + 0.1 / 3.0).abs() < 1e-12);
        assert_eq!(errors(&[]), None);
    }
}
