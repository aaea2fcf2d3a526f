//! Predicted over measured: rows, groups of them, and reasons.
//!
//! An error is |predicted / measured − 1|; a bias is the mean of predicted / measured less 1. Rows that contradict themselves are predicted and listed, and are in
//! no error.

use super::predict::{Costs, Predicted, predict};
use super::row::Row;
use crate::errors::{Bias, Figure, GroupErrors, holds};
use crate::reason::Reason;
use crate::scored;
use crate::tally::{Missing, counted, together};
use crate::training::select::{Key, Selection};

/// Keys that a summary has groups of.
const GROUPS: [Key; 4] = [Key::Set, Key::Card, Key::Model, Key::Variant];

/// A row with what became of it.
pub type Scored = scored::Scored<Row, Predicted, Reason>;

/// Everything about a table.
#[derive(Clone, Debug)]
pub struct Score {
    /// Every row that was asked for, in the table's order.
    pub rows: Vec<Scored>,
    /// All rows together.
    pub all: GroupErrors,
    /// Groups by key, in the order of `GROUPS`.
    pub groups: Vec<(Key, Vec<GroupErrors>)>,
    /// Rows without prediction by their reason.
    pub missing: Vec<Missing>,
}

impl Scored {
    /// Predicted over measured, where both are there.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.outcome.as_ref().ok()?.seconds / self.row.measured.middle()?)
    }

    /// Whether the measurement lies in the interval.
    pub fn is_covered(&self) -> Option<bool> {
        let found = self.outcome.as_ref().ok()?;
        self.row.measured.middle().map(|measured| holds(found.interval, measured))
    }
}

/// Scores rows in parallel; `done` is called as each one ends.
pub fn score(rows: Vec<Row>, only: &Selection, costs: &Costs<'_>, done: &(dyn Fn() + Sync)) -> Score {
    let rows = rows.into_iter().filter(|row| only.takes(&row.label)).collect();
    let rows: Vec<Scored> =
        scored::scored(rows, |row| Ok(predict(row.asked.as_ref().map_err(Clone::clone)?, costs)), done);
    let every: Vec<&Scored> = rows.iter().collect();
    Score {
        all: group("all", &every),
        groups: GROUPS.into_iter().map(|key| (key, groups(key, &rows))).collect(),
        missing: counted(scored::reasons(&rows).map(|reason| [reason.name(), reason.about()])),
        rows,
    }
}

fn groups(key: Key, rows: &[Scored]) -> Vec<GroupErrors> {
    let members = together(rows, |scored| key.of(&scored.row.label));
    members.iter().map(|(value, rows)| group(value, rows)).collect()
}

fn group(value: &str, rows: &[&Scored]) -> GroupErrors {
    let sound = || rows.iter().filter(|scored| !scored.row.measured.disagrees);
    let ratios: Vec<f64> = sound().filter_map(|scored| scored.ratio()).collect();
    let inside: Vec<bool> = sound().filter_map(|scored| scored.is_covered()).collect();
    let n_predicted = rows.iter().filter(|scored| scored.outcome.is_ok()).count();
    let figures = Figure::of(&ratios, Bias::Mean, &inside);
    GroupErrors { value: value.to_owned(), n_rows: rows.len(), n_predicted, figures }
}
