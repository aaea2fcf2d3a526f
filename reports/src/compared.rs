//! A comparison as a table for the terminal and as Markdown for a pull request.

use std::fmt::Write as _;

use crate::comparison::{Comparison, Entry, Spread};
use crate::quantity::{duration, percent, ratio};

const HEADINGS: [&str; 8] =
    ["scenario", "policy", "batches", "step", "ratio to baseline", "gap to bound", "MFU", "status"];
const STEP: &str = "iteration_time_s";

fn cells(entry: &Entry) -> [String; 8] {
    let absent = || "-".to_owned();
    let step = entry.metrics.get(STEP);
    let share = |key: &str| entry.metrics.get(key).map_or_else(absent, |spread| percent(spread.mean));
    let relative = match entry.ratio.get(STEP) {
        _ if entry.is_baseline => "baseline".to_owned(),
        Some(spread) => interval(spread),
        None => absent(),
    };
    [
        entry.scenario.clone(),
        entry.policy.clone(),
        entry.n_ok.to_string(),
        step.map_or_else(absent, |spread| duration(spread.mean, spread.low.zip(spread.high).map(|(a, b)| [a, b]))),
        relative,
        share("bound_gap_ratio"),
        share("mfu_ratio"),
        entry.failure.clone().unwrap_or_else(|| "ok".to_owned()),
    ]
}

/// `0.61 (0.58 to 0.64)`.
fn interval(spread: &Spread) -> String {
    match spread.low.zip(spread.high) {
        Some((low, high)) => format!("{} ({} to {})", ratio(spread.mean), ratio(low), ratio(high)),
        None => ratio(spread.mean),
    }
}

/// Table for the terminal: a block of rows per scenario.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    let rows: Vec<[String; 8]> = comparison.entries.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADINGS[column].len()]).max().unwrap_or(0)
    };
    let line = |out: &mut String, row: &[String; 8]| {
        // The scenario stands above its block.
        let padded: Vec<String> = (1..row.len()).map(|column| format!("{:1$}", row[column], width(column))).collect();
        let _ = writeln!(out, "  {}", padded.join("  ").trim_end());
    };
    let mut out = String::new();
    for block in rows.chunk_by(|a, b| a[0] == b[0]) {
        let gap = if out.is_empty() { "" } else { "\n" };
        let _ = writeln!(out, "{gap}{}", block[0][0]);
        line(&mut out, &HEADINGS.map(str::to_owned));
        block.iter().for_each(|row| line(&mut out, row));
    }
    out
}

/// Markdown table.
#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    let mut out = format!("| {} |\n|{}\n", HEADINGS.join(" | "), " --- |".repeat(HEADINGS.len()));
    for entry in &comparison.entries {
        let cells = cells(entry).map(|cell| crate::markdown::escape(&cell));
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out.push_str("\nStep: mean and 95 % interval over batches. Ratio: paired by batch; below 1 is faster.\n");
    out
}
