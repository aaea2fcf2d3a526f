//! Errors of a group of rows with one figure each, and how they are written as text and as Markdown.

use std::collections::BTreeMap;

use crate::text::{cut_middle, percent_1, signed_1};
use crate::training::summary::Errors;

/// Letters of the columns of figures of a group.
const FIGURES: usize = 48;

/// A group of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupErrors {
    /// What they have in common.
    pub value: String,
    /// Rows.
    pub n_rows: usize,
    /// Those with a prediction.
    pub n_predicted: usize,
    /// Of those that count.
    pub errors: Option<Errors>,
    /// Share of them inside the interval.
    pub covered: Option<f64>,
}

impl GroupErrors {
    /// Mean, median and largest error, bias, and share of rows inside the interval.
    fn figures(&self) -> Option<[String; 5]> {
        let Errors { mean, median, worst, bias, .. } = self.errors?;
        let covered = self.covered.map_or_else(|| "-".to_owned(), percent_1);
        Some([percent_1(mean), percent_1(median), percent_1(worst), signed_1(bias), covered])
    }
}

/// Rows by what they have in common, in order of that.
pub(crate) fn together<'r, T, K: Ord>(rows: &'r [T], of: impl Fn(&'r T) -> K) -> BTreeMap<K, Vec<&'r T>> {
    let mut members: BTreeMap<K, Vec<&T>> = BTreeMap::new();
    for row in rows {
        members.entry(of(row)).or_default().push(row);
    }
    members
}

/// Reasons by their word and what it means, with how often each is given; the most frequent first.
pub(crate) fn counted(given: impl Iterator<Item = [&'static str; 2]>) -> Vec<(&'static str, &'static str, usize)> {
    let mut counts: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
    for [name, about] in given {
        counts.entry(name).or_insert((about, 0)).1 += 1;
    }
    let mut counted: Vec<_> = counts.into_iter().map(|(name, (about, n))| (name, about, n)).collect();
    counted.sort_by_key(|(_, _, n)| std::cmp::Reverse(*n));
    counted
}

/// Lines above groups, in a page so wide: how many rows there are, the columns, and all rows together.
pub fn head(all: &GroupErrors, width: usize) -> Vec<String> {
    let name = name_letters(width);
    vec![
        format!("{} rows, {} with a prediction", all.n_rows, all.n_predicted),
        String::new(),
        format!("{:name$}{:>9}{:>38}", "", "predicted", "mean median  worst   bias  cover"),
        line(all, width),
    ]
}

/// A line of a group.
pub fn line(group: &GroupErrors, width: usize) -> String {
    let name = name_letters(width);
    let counts = format!("{}/{}", group.n_predicted, group.n_rows);
    let figures = group.figures().map_or_else(
        || format!("{:>38}", "-"),
        |[mean, median, worst, bias, covered]| format!("{mean:>10} {median:>6} {worst:>6} {bias:>6} {covered:>6}"),
    );
    format!("  {:<1$}{counts:>9}{figures}", cut_middle(&group.value, name.saturating_sub(3)), name - 2)
}

/// Letters of a group's name.
fn name_letters(width: usize) -> usize {
    width.min(120) - FIGURES
}

/// The head of a table of groups as Markdown, with all rows together.
pub fn markdown_head(all: &GroupErrors) -> String {
    format!("{} rows, {} with a prediction.\n\n", all.n_rows, all.n_predicted)
        + "| by | group | rows | mean | median | worst | bias | in interval |\n|---|---|---|---|---|---|---|---|\n"
        + &markdown("all", all)
}

/// A row of that table.
pub fn markdown(by: &str, group: &GroupErrors) -> String {
    let figures = group.figures().map_or_else(|| "- | - | - | - | -".to_owned(), |figures| figures.join(" | "));
    format!("| {by} | {} | {}/{} | {figures} |\n", group.value, group.n_predicted, group.n_rows)
}
