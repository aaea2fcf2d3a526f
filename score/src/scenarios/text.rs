//! A score of scenarios as text and as Markdown: groups, every row, what has no prediction, and what `run` warns of.

use super::{Score, Scored};
use crate::errors::GroupErrors;
use crate::group;
use crate::text::{cut, or_dash, signed_1};

/// The score in lines of at most `width` letters, at least 92.
pub fn text(score: &Score, width: usize) -> String {
    let width = width.clamp(92, 140);
    let mut lines = group::head(&score.all, width);
    for (key, groups) in shown(score) {
        lines.push(format!("by {key}"));
        lines.extend(groups.iter().map(|group| group::line(group, width)));
    }
    lines.extend([String::new(), format!("{:>6}  {:>10} {:>10} {:>8}", "line", "predicted", "measured", "error")]);
    let common = common(score);
    lines.extend(score.rows.iter().filter_map(|scored| row_line(scored, &common)));
    if score.all.n_predicted < score.all.n_rows {
        lines.extend([String::new(), "without a prediction".to_owned()]);
    }
    lines.extend(score.rows.iter().filter_map(reason_line));
    lines.extend(warning_lines(score));
    lines.iter().map(|line| cut(line, width) + "\n").collect()
}

/// Groups that say more than all rows together.
fn shown(score: &Score) -> impl Iterator<Item = &(&'static str, Vec<GroupErrors>)> {
    score.groups.iter().filter(|(_, groups)| groups.len() > 1)
}

/// What a row asks, in words.
fn asked(scored: &Scored) -> String {
    let row = &scored.row;
    let parts = [row.scenario.clone(), row.policy.clone(), row.set.join("; ")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Settings that all rows have.
fn common(score: &Score) -> Vec<String> {
    let Some((first, others)) = score.rows.split_first() else { return Vec::new() };
    let have_all = |set: &&String| !others.is_empty() && others.iter().all(|scored| scored.row.set.contains(set));
    first.row.set.iter().filter(have_all).cloned().collect()
}

/// What tells a row from the others, short enough for a line: its policy, its group, and the last words of the keys that are set.
fn told(scored: &Scored, common: &[String]) -> String {
    let row = &scored.row;
    let set = row.set.iter().filter(|set| !common.contains(set)).map(|set| {
        let (key, value) = set.split_once('=').unwrap_or((set, ""));
        let word = key.rsplit('.').next().unwrap_or(key).trim();
        format!("{word}={}", value.trim().trim_matches(['\'', '"']))
    });
    let parts = [row.scenario.clone(), row.policy.clone(), row.group.clone(), set.collect::<Vec<_>>().join(" ")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// What `run` warns of, each warning once with the lines of the table that it is of.
fn warning_lines(score: &Score) -> Vec<String> {
    let mut found: Vec<(&String, Vec<String>)> = Vec::new();
    for scored in &score.rows {
        for warning in &scored.warnings {
            let line = scored.row.line.to_string();
            match found.iter_mut().find(|(known, _)| *known == warning) {
                Some((_, lines)) => lines.push(line),
                None => found.push((warning, vec![line])),
            }
        }
    }
    let said = |(warning, lines): (&String, Vec<String>)| format!("  line {}: {warning}", lines.join(", "));
    let title = (!found.is_empty()).then(|| [String::new(), "warnings".to_owned()]);
    title.into_iter().flatten().chain(found.into_iter().map(said)).collect()
}

/// A figure in four digits.
fn figure(value: f64) -> String {
    match value.abs() {
        1e6.. => format!("{value:.3e}"),
        1e3.. => format!("{value:.0}"),
        1e-2.. => format!("{value:.4}").chars().take(6).collect(),
        _ => format!("{value:.3e}"),
    }
}

fn row_line(scored: &Scored, common: &[String]) -> Option<String> {
    let (found, ratio) = (scored.outcome.as_ref().ok()?, scored.ratio()?);
    let outside = if scored.is_inside() == Some(false) { " outside" } else { "        " };
    let row = &scored.row;
    Some(format!(
        "{:>6}  {:>10} {:>10} {:>8}{outside}  {} of {}",
        row.line,
        figure(found.value),
        figure(row.measured),
        signed_1(ratio - 1.0),
        row.metric,
        told(scored, common)
    ))
}

fn reason_line(scored: &Scored) -> Option<String> {
    let why = scored.outcome.as_ref().err()?;
    Some(format!("{:>6}  {}: {why}", scored.row.line, asked(scored)))
}

/// Groups and every row as Markdown.
pub fn markdown(score: &Score) -> String {
    let mut text = group::markdown_head(&score.all);
    for (key, groups) in shown(score) {
        text.extend(groups.iter().map(|group| group::markdown(key, group)));
    }
    text +=
        "\n| group | scenario | metric | measured | predicted | interval | error |\n|---|---|---|---|---|---|---|\n";
    text.extend(score.rows.iter().map(markdown_row));
    text
}

fn markdown_row(scored: &Scored) -> String {
    let row = &scored.row;
    let begin = format!("| {} | {} | {} | {} |", row.group, asked(scored), row.metric, figure(row.measured));
    let (Ok(found), Some(ratio)) = (&scored.outcome, scored.ratio()) else {
        let why = scored.outcome.as_ref().err().map_or_else(String::new, ToString::to_string);
        return format!("{begin} - | - | {} |\n", why.replace('|', "/").replace('\n', " "));
    };
    let interval = or_dash(found.interval, |[low, high]| format!("{} to {}", figure(low), figure(high)));
    format!("{begin} {} | {interval} | {} |\n", figure(found.value), signed_1(ratio - 1.0))
}
