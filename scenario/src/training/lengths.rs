//! Lengths of sequences from a field of a data set: JSON lines, CSV, or a table in Parquet, which is read as its CSV.
//!
//! The field holds the length as a number, or the tokens themselves as a list, whose elements are counted. A CSV of a table has that count.

use serde_json::Value;
use train::workload::distribution::{BadLength, LENGTH_MAX};

/// Lengths of a field, one for each row.
///
/// # Errors
/// Every row that has no length there; the first line where no column has the name.
pub fn of_field(text: &str, field: &str) -> Result<Vec<u64>, Vec<BadLength>> {
    let rows = if text.trim_start().starts_with('{') { of_json(text, field) } else { of_table(text, field)? };
    let (mut lengths, mut bad) = (Vec::new(), Vec::new());
    for (line, length, found) in rows {
        match length.filter(|length| (1..=LENGTH_MAX).contains(length)) {
            Some(length) => lengths.push(length),
            None => bad.push(BadLength { line, found: shortened(&found) }),
        }
    }
    if lengths.is_empty() && bad.is_empty() {
        bad.push(BadLength { line: 1, found: String::new() });
    }
    if bad.is_empty() { Ok(lengths) } else { Err(bad) }
}

/// A line, what it says of a length, and what stands there.
type Row = (usize, Option<u64>, String);

fn shortened(line: &str) -> String {
    line.trim().chars().take(40).collect()
}

fn of_json(text: &str, field: &str) -> Vec<Row> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| (number, in_object(line, field), line.to_owned())).collect()
}

fn in_object(line: &str, field: &str) -> Option<u64> {
    let row: Value = serde_json::from_str(line).ok()?;
    match row.get(field)? {
        Value::Array(tokens) => Some(tokens.len() as u64),
        number => number.as_u64(),
    }
}

fn of_table(text: &str, field: &str) -> Result<Vec<Row>, Vec<BadLength>> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let head = reader.headers().cloned().unwrap_or_default();
    let Some(column) = head.iter().position(|name| name.trim() == field) else {
        return Err(vec![BadLength { line: 1, found: shortened(text.lines().next().unwrap_or("")) }]);
    };
    let mut rows = Vec::new();
    for record in reader.records() {
        // Text is UTF-8 and rows may differ in length, so that nothing is left to be wrong.
        let Ok(record) = record else { continue };
        let cell = record.get(column).unwrap_or("").trim().to_owned();
        let line = record.position().map_or(1, csv::Position::line);
        rows.push((usize::try_from(line).unwrap_or(usize::MAX), cell.parse().ok(), cell));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lists_and_columns_are_lengths() {
        let lines = "{\"id\": 1, \"tokens\": 12}\n\n{\"tokens\": [5, 6, 7]}\n";
        assert_eq!(of_field(lines, "tokens"), Ok(vec![12, 3]));
        assert_eq!(of_field("id,text,tokens\n1,\"a,\nb\",12\n2,c,3\n", "tokens"), Ok(vec![12, 3]));
    }

    #[test]
    fn a_line_without_a_length_is_named() {
        let lines = "{\"tokens\": 12}\n{\"tokens\": \"long\"}\n{\"text\": 3}\n{\"tokens\": []}\nx";
        let bad = of_field(lines, "tokens").expect_err("four bad lines");
        assert_eq!(bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [2, 3, 4, 5]);
        let bad = of_field("id,length\n1,12\n", "tokens").expect_err("no such column");
        assert_eq!((bad[0].line, bad[0].found.as_str()), (1, "id,length"));
        assert_eq!(of_field("", "tokens").expect_err("nothing").len(), 1);
    }
}
