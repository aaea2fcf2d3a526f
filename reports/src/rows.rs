//! Tables of plain texts, the first row being their headings: columns in a terminal, or Markdown.

use std::fmt::Write as _;

use crate::lines::{GAP, PAGE, wrap};

/// A table as rows of texts, the first one its headings.
pub(crate) type Rows = Vec<Vec<String>>;

/// Columns aligned: the first one to the left, the last one as it is, the others to the right. Where they are wider than a page, headings stand in several
/// lines, and what the last column says stands below its row.
pub(crate) fn aligned(rows: &Rows) -> String {
    let whole = widths(rows);
    let is_wide = whole.iter().map(|width| width + GAP).sum::<usize>() > PAGE;
    let heads = if is_wide { stacked(&rows[0], &widths(&rows[1..])) } else { rows[..1].to_vec() };
    let widths = widths(&[&heads, &rows[1..]].concat());
    let mut out = String::new();
    for row in heads.iter().chain(&rows[1..]) {
        let (last, figures) = row.split_last().expect("a table has columns");
        let cells = figures.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}  "),
            _ => format!("{cell:>width$}  "),
        });
        let line: String = cells.collect();
        let is_beside = line.chars().count() + last.chars().count() <= PAGE || last.is_empty();
        out.push_str(if is_beside { line + last } else { line }.trim_end());
        out.push('\n');
        if !is_beside {
            wrap(&mut out, last, "    ", PAGE);
        }
    }
    out
}

/// Characters of every column but the last.
fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let n = rows.first().map_or(0, Vec::len).saturating_sub(1);
    (0..n).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect()
}

/// Headings as several rows: each is broken between its words, as far as the cells below are narrower.
fn stacked(headings: &[String], widths: &[usize]) -> Rows {
    let widths = widths.iter().chain([&usize::MAX]);
    let columns: Vec<Vec<String>> =
        headings.iter().zip(widths).map(|(heading, width)| lines_of(heading, *width)).collect();
    let n = columns.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |column: &Vec<String>, row: usize| {
        (row + column.len()).checked_sub(n).map_or_else(String::new, |at| column[at].clone())
    };
    (0..n).map(|row| columns.iter().map(|column| cell(column, row)).collect()).collect()
}

/// A heading in lines of so many characters, or as many as its longest word has.
fn lines_of(heading: &str, width: usize) -> Vec<String> {
    let words = || heading.split_inclusive(['_', ' ']);
    let width = words().map(|word| word.trim_end().chars().count()).max().unwrap_or(0).max(width);
    let mut lines = vec![String::new()];
    for word in words() {
        let line = lines.last_mut().expect("one at least");
        if (line.len() + word.trim_end().len() > width) && !line.is_empty() {
            lines.push(word.to_owned());
        } else {
            line.push_str(word);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[&[&str]]) -> Rows {
        of.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_that_fit_stand_side_by_side() {
        let table = rows(&[&["key", "from", ""], &["tp", "2", "late"], &["replicas", "16", ""]]);
        assert_eq!(aligned(&table), "key       from\ntp           2  late\nreplicas    16\n");
    }

    #[test]
    fn a_wide_table_breaks_its_headings_and_says_the_last_column_below() {
        let (wide, why) = ("one_of_the_settings_that_are_listed", "a limit is broken ".repeat(5));
        let table = rows(&[&[wide, wide, wide, ""], &["1", "2", "3", why.trim_end()]]);
        let text = aligned(&table);
        assert!(text.lines().all(|line| line.chars().count() <= PAGE), "{text}");
        let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).count();
        assert_eq!(letters(&text), table.iter().flatten().map(|cell| letters(cell)).sum::<usize>(), "{text}");
        let row = text.lines().position(|line| line.starts_with('1')).expect("the row");
        assert!(text.lines().nth(row + 1).is_some_and(|line| line.starts_with("    a limit")), "{text}");
    }
}
