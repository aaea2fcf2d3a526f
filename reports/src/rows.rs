//! Tables of plain texts, the first row being their headings: columns in a terminal, or Markdown.

use std::fmt::Write as _;

/// A table as rows of texts, the first one its headings.
pub(crate) type Rows = Vec<Vec<String>>;

/// Columns aligned: the first one to the left, the last one as it is, the others to the right.
pub(crate) fn aligned(rows: &Rows) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let last = row.len() - 1;
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ if column == last => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// The same as Markdown.
pub(crate) fn markdown(out: &mut String, rows: &Rows) {
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
        if index == 0 {
            let _ = writeln!(out, "|{}", "---|".repeat(row.len()));
        }
    }
}
