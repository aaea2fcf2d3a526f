//! How groups of rows with one figure are written as text and as Markdown.

use crate::errors::{Errors, Figure, GroupErrors};
use crate::text::{cut_middle, or_dash, percent_1, signed_1};

/// Cells of a figure that nobody knows.
pub(crate) const NO_FIGURES: &str = "- | - | - | - | -";
/// Letters of the columns of figures of a group.
const FIGURES: usize = 48;

/// Mean, median and largest error, bias, and share of rows inside the interval.
pub(crate) fn words(figure: &Figure) -> Option<[String; 5]> {
    let Errors { mean, median, worst, bias, .. } = figure.errors?;
    let covered = or_dash(figure.covered, percent_1);
    Some([percent_1(mean), percent_1(median), percent_1(worst), signed_1(bias), covered])
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
    let figures = words(&group.figures).map_or_else(
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
    let figures = words(&group.figures).map_or_else(|| NO_FIGURES.to_owned(), |figures| figures.join(" | "));
    format!("| {by} | {} | {}/{} | {figures} |\n", group.value, group.n_predicted, group.n_rows)
}
