//! The same table as Markdown, for pull requests and notes.
//!
//! Invariant: no text of a scenario can open a tag, a link or a new cell.

use std::fmt::Write as _;

use crate::table::{cells, footer, headings, headline};
use crate::{Ended, RunResult};

/// Renders the table, the reasons of failed policies and the footer.
pub fn render(run: &RunResult) -> String {
    let mut out = format!("{}\n\n", escape(&headline(run)));
    let headings = headings(run);
    row(&mut out, &headings);
    let rules: Vec<&str> = (0..headings.len()).map(|index| if index < 2 { ":--" } else { "--:" }).collect();
    let _ = writeln!(out, "| {} |", rules.join(" | "));
    for result in &run.results {
        row(&mut out, &cells(run, result));
    }
    out.push('\n');
    for result in run.results.iter().filter(|result| !result.why.is_empty()) {
        let name = escape(&result.policy);
        let why = escape(&crate::quantity::plain(&result.why));
        let _ = match result.status {
            Ended::Ok => writeln!(out, "- **{name}**: {why}"),
            ended => writeln!(out, "- **{name}** ({ended}): {why}"),
        };
    }
    for result in run.results.iter().filter(|result| result.status.is_ok()) {
        for words in crate::lost::words(result).into_iter().chain(crate::draws::words(result)) {
            let _ = writeln!(out, "- **{}**: {}", escape(&result.policy), escape(&words));
        }
    }
    out.push('\n');
    for sentence in footer(run) {
        let _ = writeln!(out, "{}  ", escape(&sentence));
    }
    out
}

fn row(out: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
    let _ = writeln!(out, "| {} |", cells.join(" | "));
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
