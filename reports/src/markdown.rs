//! The table for a pull request.

use crate::{RunResult, table};

/// A Markdown table with reasons and provenance below.
#[must_use]
pub fn render(result: &RunResult) -> String {
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let header = table::header().map(str::to_owned);
    let mut text = format!("### {}\n\n{}|{}\n", result.scenario, line(&header), "---|".repeat(header.len()));
    for row in &result.results {
        text += &line(&table::cells(result, row));
    }
    text.push('\n');
    for row in &result.results {
        text += &format!("- `{}`: {}\n", row.policy, row.why);
    }
    for sentence in table::provenance(result) {
        text += &format!("- {sentence}\n");
    }
    text
}
