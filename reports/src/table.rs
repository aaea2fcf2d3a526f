//! The terminal table: one row per policy, plain characters, at most `WIDTH_MAX` columns wide.
//!
//! Rows that failed carry their reason in the line below; the footer names the cost model and what it does not know.

use std::fmt::Write as _;

use crate::quantity::{ABSENT, duration, gib, percent, plain, rate, ratio, shortened, times};
use crate::view::{self, View};
use crate::{CostShare, PolicyResult, RunResult, serving, shown};

/// Widest line, in characters.
pub const WIDTH_MAX: usize = 110;

const GAP: usize = 2;
/// Narrowest policy column that still tells names apart.
const POLICY_WIDTH_MIN: usize = 8;

/// Headings, in the order of `cells`. A run with a pipeline shows its bubble where others show their imbalance.
pub(crate) fn headings(run: &RunResult) -> Vec<String> {
    match view::of(run) {
        View::Columns => return shown::headings(run),
        View::Requests => return serving::HEADINGS.map(str::to_owned).to_vec(),
        View::Steps => {}
    }
    let balance = if has_pipeline(run) { "bubble" } else { "imbalance" };
    ["policy", "status", "iteration", "speed-up", "tokens/s", "MFU", balance, "exposed", "peak mem"]
        .map(str::to_owned)
        .to_vec()
}

fn has_pipeline(run: &RunResult) -> bool {
    run.results.iter().any(|result| result.metrics.contains_key("bubble_ratio"))
}

/// The figures of a policy as texts, in the order of `headings`.
pub(crate) fn cells(run: &RunResult, result: &PolicyResult) -> Vec<String> {
    match view::of(run) {
        View::Columns => return shown::cells(run, result),
        View::Requests => return serving::cells(run, result).to_vec(),
        View::Steps => {}
    }
    let metric = |key: &str, show: &dyn Fn(f64) -> String| {
        result.metrics.get(key).map_or_else(|| ABSENT.to_owned(), |&value| show(value))
    };
    let interval = result.interval.get("iteration_time_s").copied();
    let speedup = run.speedup_ratio.get(&result.policy).map_or_else(|| ABSENT.to_owned(), |&value| times(value));
    vec![
        plain(&result.policy),
        plain(&result.status),
        metric("iteration_time_s", &|seconds| duration(seconds, interval)),
        speedup,
        metric("tokens_per_s", &rate),
        metric("mfu_ratio", &percent),
        if has_pipeline(run) { metric("bubble_ratio", &percent) } else { metric("dp_imbalance_ratio", &ratio) },
        metric("comm_exposed_ratio", &percent),
        metric("peak_memory_bytes", &gib),
    ]
}

/// Sentences under every table: where the costs come from and how far to trust them.
pub(crate) fn footer(run: &RunResult) -> Vec<String> {
    let model = &run.cost_model;
    let mut first = format!("cost model: {} ({})", plain(&model.profile), source_words(run));
    if model.outside_hull_ratio.is_finite() {
        let _ = write!(first, "; {} of busy time outside the measured hull", percent(model.outside_hull_ratio));
    }
    if !model.outside_hull.is_empty() {
        let _ = write!(first, " ({})", plain(&model.outside_hull.join(", ")));
    }
    let mut lines = vec![first];
    lines.extend(model.free_parameters.iter().map(|sentence| format!("free parameter: {}", plain(sentence))));
    lines
}

/// Where the costs come from, in words.
pub(crate) fn source_words(run: &RunResult) -> String {
    let model = &run.cost_model;
    if model.shares.is_empty() { plain(&model.source) } else { sources(&model.shares) }
}

/// Shares of the time by source; of the weak ones with what they are.
fn sources(shares: &[CostShare]) -> String {
    let first = &shares[0].source;
    if shares.iter().all(|share| share.source == *first) {
        return plain(first);
    }
    let mut parts = Vec::new();
    for source in ["measured", "borrowed", "published", "datasheet"] {
        let of_source: Vec<&CostShare> = shares.iter().filter(|share| share.source == source).collect();
        let ratio: f64 = of_source.iter().map(|share| share.ratio).sum();
        if ratio < 0.0005 {
            continue;
        }
        let largest: Vec<String> = of_source.iter().take(3).map(|share| plain(&share.what)).collect();
        let what = if source == "measured" { String::new() } else { format!(" – {}", largest.join(", ")) };
        let of = if parts.is_empty() { " of the time" } else { "" };
        parts.push(format!("{}{of} {source}{what}", percent(ratio)));
    }
    parts.join("; ")
}

/// Scenario, seed and baseline in a line.
pub(crate) fn headline(run: &RunResult) -> String {
    let ratio = if view::of(run) == View::Steps { "speed-up" } else { "gain" };
    format!("{} · seed {} · {ratio} relative to {}", plain(&run.scenario), run.seed, plain(&run.baseline))
}

/// Renders the table with a final line feed.
#[must_use]
pub fn render(run: &RunResult) -> String {
    let rows: Vec<_> = run.results.iter().map(|result| cells(run, result)).collect();
    let widths = widths(&headings(run), &rows);
    let mut out = String::new();
    wrap(&mut out, &headline(run), "");
    out.push('\n');
    line(&mut out, &headings(run), &widths);
    for (result, row) in run.results.iter().zip(&rows) {
        line(&mut out, row, &widths);
        if result.status != "ok" && !result.why.is_empty() {
            wrap(&mut out, &format!("{}: {}", plain(&result.status), plain(&result.why)), "  ");
        }
    }
    out.push('\n');
    for result in run.results.iter().filter(|result| result.status == "ok" && !result.why.is_empty()) {
        wrap(&mut out, &format!("{}: {}", plain(&result.policy), plain(&result.why)), "");
        let against = [crate::lost::words(result), crate::lost::planner(result)];
        for sentence in against.into_iter().flatten() {
            wrap(&mut out, &sentence, "  ");
        }
        for note in result.planner.iter().flat_map(|planner| &planner.notes) {
            wrap(&mut out, &plain(note), "  ");
        }
    }
    out.push('\n');
    footer(run).iter().for_each(|sentence| wrap(&mut out, sentence, ""));
    out
}

/// Width of each column; the policy column yields where the line would be too long.
fn widths(headings: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths[1] = widths[1].min(12);
    let others: usize = widths[1..].iter().sum::<usize>() + GAP * (widths.len() - 1);
    widths[0] = widths[0].min(WIDTH_MAX.saturating_sub(others).max(POLICY_WIDTH_MIN));
    widths
}

/// One row: the first two columns to the left, figures to the right.
fn line(out: &mut String, cells: &[String], widths: &[usize]) {
    let mut text = String::new();
    for (index, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        let cell = shortened(cell, width);
        let gap = if index == 0 { 0 } else { GAP };
        let _ = if index < 2 {
            write!(text, "{:gap$}{cell:<width$}", "")
        } else {
            write!(text, "{:gap$}{cell:>width$}", "")
        };
    }
    out.push_str(text.trim_end());
    out.push('\n');
}

/// Breaks a sentence at spaces; continuation lines are indented by two more.
fn wrap(out: &mut String, sentence: &str, indent: &str) {
    let mut current = indent.to_owned();
    let mut is_empty = true;
    for word in sentence.split(' ').filter(|word| !word.is_empty()) {
        for piece in pieces(word, WIDTH_MAX - indent.len() - GAP) {
            if !is_empty && current.chars().count() + 1 + piece.chars().count() > WIDTH_MAX {
                out.push_str(&current);
                out.push('\n');
                current = format!("{indent}  ");
                is_empty = true;
            }
            if !is_empty {
                current.push(' ');
            }
            current.push_str(&piece);
            is_empty = false;
        }
    }
    out.push_str(&current);
    out.push('\n');
}

/// A word cut where it is longer than a line.
fn pieces(word: &str, width: usize) -> Vec<String> {
    let letters: Vec<char> = word.chars().collect();
    letters.chunks(width).map(|chunk| chunk.iter().collect()).collect()
}
