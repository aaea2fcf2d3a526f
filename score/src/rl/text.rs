//! A score of steps of reinforcement learning as text and as Markdown: groups, every row with its parts, and what has no prediction.

use rl::cycle::Parts;

use super::summary::{Score, Scored};
use crate::group;
use crate::tally;
use crate::text::{cut, error_words};
use crate::training::row::Label;

/// Parts of a step as columns.
const PARTS: &str = "answers | log probabilities | training | weights | switch";

/// The score in lines of at most `width` letters, at least 92.
pub fn text(score: &Score, width: usize) -> String {
    let width = width.clamp(92, 140);
    let mut lines = group::head(&score.all, width);
    for (key, groups) in score.groups.iter().filter(|(_, groups)| groups.len() > 1 && groups.len() < score.rows.len()) {
        lines.push(format!("by {}", key.word()));
        lines.extend(groups.iter().map(|group| group::line(group, width)));
    }
    lines.extend([String::new(), "rows".to_owned()]);
    lines.extend(score.rows.iter().filter_map(row_line));
    lines.extend(contradicting(score));
    lines.extend(tally::lines(&score.missing));
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

/// Rows that are marked, where there are any.
fn contradicting(score: &Score) -> Option<String> {
    let is_marked = |scored: &&Scored| scored.outcome.is_ok() && scored.row.measured.disagrees;
    let n = score.rows.iter().filter(is_marked).count();
    (n > 0).then(|| format!("  * {n} contradict themselves: they are in no error and no share above"))
}

fn row_line(scored: &Scored) -> Option<String> {
    let found = scored.outcome.as_ref().ok()?;
    let error = error_words(scored.ratio());
    let Label { row, model, card, format, layout, variant, .. } = &scored.row.label;
    let mark = if scored.row.measured.disagrees { " *" } else { "" };
    let seconds = found.seconds;
    Some(format!("  {row:>4}  {seconds:>8.2} s {error:>8}{mark:2}{card} {model} {format} {variant}, {layout}"))
}

/// Groups and every row as Markdown, for `docs/accuracy-rl.md`.
pub fn markdown(score: &Score) -> String {
    let mut text = group::markdown_head(&score.all);
    for (key, groups) in score.groups.iter().filter(|(_, groups)| groups.len() > 1) {
        text.extend(groups.iter().map(|group| group::markdown(key.word(), group)));
    }
    text += "\n| row | card | model | format | placement | layout | seconds | interval | error |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
    text.extend(score.rows.iter().filter_map(markdown_row));
    text += &markdown_parts(&score.rows);
    if !score.missing.is_empty() {
        text += &tally::markdown("rows", &score.missing);
    }
    text
}

/// What is predicted of a row, and how far it is from what was measured; the measurement itself stays in the table.
fn markdown_row(scored: &Scored) -> Option<String> {
    let found = scored.outcome.as_ref().ok()?;
    let Label { row, model, card, format, layout, variant, .. } = &scored.row.label;
    let error = error_words(scored.ratio());
    let mark = if scored.row.measured.disagrees { " (contradicts itself)" } else { "" };
    let [low, high] = found.interval;
    let seconds = found.seconds;
    Some(format!(
        "| {row} | {card} | {model} | {format} | {variant} | {layout} | {seconds:.2} | {low:.2} to {high:.2} | {error}{mark} |\n"
    ))
}

/// Parts of steps, as predicted.
fn markdown_parts(rows: &[Scored]) -> String {
    let lines: String = rows.iter().filter_map(markdown_parts_of).collect();
    if lines.is_empty() {
        return lines;
    }
    format!("\n| row | {PARTS} |\n|---|---|---|---|---|---|\n{lines}")
}

fn markdown_parts_of(scored: &Scored) -> Option<String> {
    let parts = scored.outcome.as_ref().ok()?.parts?;
    let cells = listed(&parts).map(|seconds| format!("{seconds:.2}")).join(" | ");
    Some(format!("| {} | {cells} |\n", scored.row.label.row))
}

/// Parts in the order of their columns.
pub(super) const fn listed(parts: &Parts) -> [f64; 5] {
    [parts.generation, parts.log_probabilities, parts.training, parts.weights, parts.switch]
}
