//! The same table as Markdown, for pull requests and notes.
//!
//! Invariant: no text of a scenario can open a tag, a link or a new cell.

use std::fmt::Write as _;

use crate::RunResult;
use crate::table::{N_COLUMNS, cells, footer, headings, headline};

/// Renders the table, the reasons of failed policies and the footer.
#[must_use]
pub fn render(run: &RunResult) -> String {
    let mut out = format!("{}\n\n", escape(&headline(run)));
    row(&mut out, &headings(run).map(str::to_owned));
    let rules: [String; N_COLUMNS] = std::array::from_fn(|index| if index < 2 { ":--" } else { "--:" }.to_owned());
    let _ = writeln!(out, "| {} |", rules.join(" | "));
    for result in &run.results {
        row(&mut out, &cells(run, result));
    }
    out.push('\n');
    for result in run.results.iter().filter(|result| !result.why.is_empty()) {
        let name = escape(&result.policy);
        let why = escape(&crate::quantity::plain(&result.why));
        let _ = match result.status.as_str() {
            "ok" => writeln!(out, "- **{name}**: {why}"),
            status => writeln!(out, "- **{name}** ({}): {why}", escape(status)),
        };
    }
    for result in run.results.iter().filter(|result| result.status == "ok") {
        if let Some(words) = crate::lost::words(result) {
            let _ = writeln!(out, "- **{}**: {}", escape(&result.policy), escape(&words));
        }
    }
    out.push('\n');
    for sentence in footer(run) {
        let _ = writeln!(out, "{}  ", escape(&sentence));
    }
    out
}

fn row(out: &mut String, cells: &[String; N_COLUMNS]) {
    let _ = writeln!(out, "| {} |", cells.each_ref().map(|cell| escape(cell)).join(" | "));
}

pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}
