//! The terminal table: one row per policy, plain characters, from `WIDTH_MIN` to `WIDTH_MAX` columns wide.
//!
//! Rows that failed carry their reason in the line below; the footer names the cost model and what it does not know.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::lines::{GAP, wrap};
use crate::quantity::{ABSENT, percent, plain, shortened, times};
use crate::view::{self, View};
use crate::{CostModelFacts, CostShare, PolicyResult, RunResult, serving, shown, views};

/// Widest line, in characters.
pub const WIDTH_MAX: usize = 110;

/// Narrowest terminal that tables are made for.
pub const WIDTH_MIN: usize = 80;

/// Names of so many characters are kept whole: a block of columns below reads better than a name without its middle.
const POLICY_WIDTH_MIN: usize = 24;

/// Headings, in the order of `cells`.
pub(crate) fn headings(run: &RunResult) -> Vec<String> {
    match view::of(run) {
        View::Columns => return shown::headings(run),
        View::Requests => return serving::HEADINGS.map(str::to_owned).to_vec(),
        View::Steps => {}
    }
    let mut headings: Vec<String> = views::steps(run).iter().map(|(_, heading)| (*heading).to_owned()).collect();
    headings.insert(1, "speed-up".to_owned());
    ["policy", "status"].map(str::to_owned).into_iter().chain(headings).collect()
}

/// The figures of a policy as texts, in the order of `headings`.
pub(crate) fn cells(run: &RunResult, result: &PolicyResult) -> Vec<String> {
    match view::of(run) {
        View::Columns => return shown::cells(run, result),
        View::Requests => return serving::cells(run, result).to_vec(),
        View::Steps => {}
    }
    let mut cells: Vec<String> = views::steps(run).iter().map(|(key, _)| shown::cell(result, key)).collect();
    let speedup = run.speedup_ratio.get(&result.policy).map_or_else(|| ABSENT.to_owned(), |&value| times(value));
    cells.insert(1, speedup);
    [plain(&result.policy), result.status.to_string()].into_iter().chain(cells).collect()
}

/// Sentences under every table: where the costs come from and how far to trust them.
pub(crate) fn footer(run: &RunResult) -> Vec<String> {
    let model = &run.cost_model;
    let mut first = format!("cost model: {}", costs(model));
    if model.is_outside_hull() {
        let _ = write!(first, "; {} of busy time outside the measured hull", percent(model.outside_hull_ratio));
        if !model.outside_hull.is_empty() {
            let _ = write!(first, " ({})", plain(&model.outside_hull.join(", ")));
        }
    }
    let mut lines = vec![first];
    lines.extend(model.free_parameters.iter().map(|sentence| format!("free parameter: {}", plain(sentence))));
    lines
}

/// Profiles and where the costs come from, in words.
pub fn costs(model: &CostModelFacts) -> String {
    format!("{} ({})", plain(&model.profile), words_of(model))
}

/// Where the costs of a run come from, in words.
pub(crate) fn source_words(run: &RunResult) -> String {
    words_of(&run.cost_model)
}

/// Where costs come from, in words. Without shares only the weakest source is known, which may be that of a single small cost.
fn words_of(model: &CostModelFacts) -> String {
    match model.source.as_str() {
        _ if !model.shares.is_empty() => sources(&model.shares),
        source if model.is_one_source() => plain(source),
        source => format!("weakest: {}", plain(source)),
    }
}

/// Shares of the time by source; of the weak ones with what they are.
fn sources(shares: &[CostShare]) -> String {
    let first = &shares[0].source;
    if shares.iter().all(|share| share.source == *first) {
        return plain(first);
    }
    let mut parts = Vec::new();
    for source in ["measured", "borrowed within generation", "borrowed", "published", "datasheet"] {
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
    format!("{} · seed {} · {ratio} relative to {}", plain(&run.scenario), run.seed, plain(run.against()))
}

/// Renders the table with a final line feed, for files and pipes.
pub fn render(run: &RunResult) -> String {
    render_at(run, WIDTH_MAX)
}

/// Renders the table for a terminal of so many columns. What does not fit beside the names follows in a block below.
pub fn render_at(run: &RunResult, columns: usize) -> String {
    let room = columns.clamp(WIDTH_MIN, WIDTH_MAX);
    let headings = headings(run);
    let mut rows: Vec<_> = run.results.iter().map(|result| cells(run, result)).collect();
    let widths = widths(&headings, &mut rows, room);
    let mut out = String::new();
    wrap(&mut out, &headline(run), "", room);
    out.push('\n');
    let blocks = blocks(&widths, room);
    for (number, block) in blocks.iter().enumerate() {
        line(&mut out, &headings, &widths, block);
        for (result, row) in run.results.iter().zip(&rows) {
            line(&mut out, row, &widths, block);
            if number == 0 && !result.status.is_ok() && !result.why.is_empty() {
                wrap(&mut out, &format!("{}: {}", result.status, plain(&result.why)), "  ", room);
            }
        }
        out.push('\n');
    }
    for result in run.results.iter().filter(|result| result.status.is_ok() && !result.why.is_empty()) {
        wrap(&mut out, &format!("{}: {}", plain(&result.policy), plain(&result.why)), "", room);
        let against = [crate::lost::words(result), crate::lost::planner(result)];
        for sentence in against.into_iter().flatten() {
            wrap(&mut out, &sentence, "  ", room);
        }
        for sentence in crate::draws::words(result) {
            wrap(&mut out, &sentence, "  ", room);
        }
        for note in result.planner.iter().flat_map(|planner| &planner.notes) {
            wrap(&mut out, &plain(note), "  ", room);
        }
    }
    out.push('\n');
    footer(run).iter().for_each(|sentence| wrap(&mut out, sentence, "", room));
    out
}

/// Width of each column. Names are shortened in the middle where the line would be too long, as far as they stay different.
fn widths(headings: &[String], rows: &mut [Vec<String>], room: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count()).collect();
    for row in rows.iter() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths[1] = widths[1].min(12);
    let others: usize = widths[1..].iter().sum::<usize>() + GAP * (widths.len() - 1);
    let least = room.saturating_sub(others).max(POLICY_WIDTH_MIN);
    let names: Vec<String> = rows.iter().map(|row| row[0].clone()).collect();
    let names = shorter(&names, least.min(widths[0]), room / 2);
    widths[0] = names.iter().map(|name| name.chars().count()).chain([headings[0].chars().count()]).max().unwrap_or(0);
    for (row, name) in rows.iter_mut().zip(names) {
        row[0] = name;
    }
    widths
}

/// Names of at most so many characters, or as many more as keep them different, up to `most`.
fn shorter(names: &[String], least: usize, most: usize) -> Vec<String> {
    let at = |width: usize| -> Vec<String> { names.iter().map(|name| in_middle(name, width)).collect() };
    let n_names = names.iter().collect::<BTreeSet<_>>().len();
    let is_clear = |width: &usize| at(*width).iter().collect::<BTreeSet<_>>().len() == n_names;
    at((least..most).find(is_clear).unwrap_or(most))
}

/// A name without its middle where it is longer than `width`.
fn in_middle(name: &str, width: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= width {
        return name.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (front, back) = (kept.div_ceil(2), kept / 2);
    letters[..front].iter().chain(['…'].iter()).chain(&letters[letters.len() - back..]).collect()
}

/// Columns that fit beside the names, in order; a line each.
fn blocks(widths: &[usize], room: usize) -> Vec<Vec<usize>> {
    let mut blocks: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for (column, width) in widths.iter().enumerate().skip(1) {
        if used.saturating_add(GAP + width) > room {
            blocks.push(vec![0]);
            used = widths[0];
        }
        used += GAP + width;
        blocks.last_mut().expect("one was begun").push(column);
    }
    blocks
}

/// One row of a block: names and states to the left, figures to the right.
fn line(out: &mut String, cells: &[String], widths: &[usize], block: &[usize]) {
    let mut text = String::new();
    for &column in block {
        let (width, gap) = (widths[column], if column == 0 { 0 } else { GAP });
        let cell = shortened(&cells[column], width);
        let _ = if column < 2 {
            write!(text, "{:gap$}{cell:<width$}", "")
        } else {
            write!(text, "{:gap$}{cell:>width$}", "")
        };
    }
    out.push_str(text.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_middle_only_while_they_stay_different() {
        let names = ["interleaved-a-4".to_owned(), "interleaved-b-4".to_owned()];
        // With 9 characters both would be `inte…-4` and the like; the letter in the middle is kept by not cutting.
        let short = shorter(&names, 9, 40);
        assert_ne!(short[0], short[1]);
        assert_eq!(in_middle("abcdefghij", 5), "ab…ij");
        assert_eq!(shorter(&["one".to_owned()], 8, 40), ["one"]);
    }

    #[test]
    fn columns_that_do_not_fit_follow_below_with_the_names() {
        // Names 10, then 2 + 30 thrice: two beside the names, one below.
        assert_eq!(blocks(&[10, 30, 30, 30], 80), [vec![0, 1, 2], vec![0, 3]]);
    }
}
