//! A comparison as a table for the terminal and as Markdown for a pull request.

use std::fmt::Write as _;

use crate::Column;
use crate::comparison::{Comparison, Entry, Shown, Spread};
use crate::quantity::{ABSENT, plain, ratio};
use crate::shown::figure;

/// Width of an interval that is rounding, of its end.
const ROUNDING: f64 = 1e-9;

/// Headings of a scenario, the scenario's own first.
fn headings(shown: &Shown) -> Vec<String> {
    let heading = |column: &Column| plain(&column.heading);
    let first = shown.columns.first().map_or_else(|| "figure".to_owned(), heading);
    let lead =
        ["scenario".to_owned(), "policy".to_owned(), "batches".to_owned(), first, "ratio to baseline".to_owned()];
    lead.into_iter().chain(shown.columns.iter().skip(1).map(heading)).chain(["status".to_owned()]).collect()
}

fn cells(entry: &Entry, shown: &Shown) -> Vec<String> {
    let absent = || ABSENT.to_owned();
    let first = shown.columns.first();
    let relative = match first.and_then(|column| entry.ratio.get(&column.key)) {
        _ if entry.is_baseline => "baseline".to_owned(),
        Some(spread) => interval(spread),
        None => absent(),
    };
    let value = |column: &Column, show: &dyn Fn(&str, &Spread) -> String| {
        entry.metrics.get(&column.key).map_or_else(absent, |spread| show(&column.key, spread))
    };
    let counts = first.map_or_else(absent, |column| value(column, &with_interval));
    let mean = |column: &Column| value(column, &|key, spread| figure(key, spread.mean, None));
    let lead = [entry.scenario.clone(), entry.policy.clone(), entry.n_ok.to_string(), counts, relative];
    let status = entry.failure.clone().unwrap_or_else(|| "ok".to_owned());
    lead.into_iter().chain(shown.columns.iter().skip(1).map(mean)).chain([status]).collect()
}

/// A mean with half of its interval.
fn with_interval(key: &str, spread: &Spread) -> String {
    let interval = spread.low.zip(spread.high);
    let shown = figure(key, spread.mean, interval.map(|(low, high)| [low, high]));
    match interval {
        // Nothing was drawn.
        Some((low, high)) if high - low <= ROUNDING * high.abs() => shown,
        // Durations have it already.
        Some((low, high)) if !shown.contains(['±', '(']) => {
            format!("{shown} ± {}", figure(key, (high - low) / 2.0, None))
        }
        _ => shown,
    }
}

/// `0.61 (0.58 to 0.64)`.
fn interval(spread: &Spread) -> String {
    match spread.low.zip(spread.high) {
        Some((low, high)) if ratio(low) != ratio(high) => {
            format!("{} ({} to {})", ratio(spread.mean), ratio(low), ratio(high))
        }
        _ => ratio(spread.mean),
    }
}

/// Table for the terminal: a block of rows per scenario.
pub fn table(comparison: &Comparison) -> String {
    let mut out = String::new();
    for entries in comparison.entries.chunk_by(|a, b| a.scenario == b.scenario) {
        let shown = comparison.shown(&entries[0].scenario);
        let rows: Vec<Vec<String>> =
            std::iter::once(headings(&shown)).chain(entries.iter().map(|entry| cells(entry, &shown))).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let gap = if out.is_empty() { "" } else { "\n" };
        // The scenario stands above its block.
        let _ = writeln!(out, "{gap}{}", entries[0].scenario);
        for row in &rows {
            let padded: Vec<String> =
                (1..row.len()).map(|column| format!("{:1$}", row[column], width(column))).collect();
            let _ = writeln!(out, "  {}", padded.join("  ").trim_end());
        }
    }
    out
}

/// Markdown: a table for every run of scenarios that show the same.
pub fn markdown(comparison: &Comparison) -> String {
    let shown: Vec<Shown> = comparison.entries.iter().map(|entry| comparison.shown(&entry.scenario)).collect();
    let rows: Vec<(&Entry, &Shown)> = comparison.entries.iter().zip(&shown).collect();
    let mut out = String::new();
    for block in rows.chunk_by(|a, b| a.1.columns == b.1.columns && a.1.more_is_better == b.1.more_is_better) {
        let headings = headings(block[0].1);
        let gap = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}| {} |\n|{}", headings.join(" | "), " --- |".repeat(headings.len()));
        for (entry, shown) in block {
            let cells: Vec<String> = cells(entry, shown).iter().map(|cell| crate::markdown::escape(cell)).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        let better = if block[0].1.more_is_better { "above" } else { "below" };
        let mut first = headings[3].clone();
        if let Some(letter) = first.get_mut(..1) {
            letter.make_ascii_uppercase();
        }
        let _ = writeln!(
            out,
            "\n{first}: mean and 95 % interval over batches. Ratio: paired by batch; {better} 1 is better."
        );
    }
    out
}
