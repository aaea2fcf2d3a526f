//! A measured table: CSV with a header line, plain or gzipped, or Parquet.
//!
//! Rows are kept as text; a column becomes numbers when it is asked for. An empty cell is a number that is not there, written NaN;
//! any other text that is no number is refused with its line.

use std::io::Read;
use std::path::{Path, PathBuf};

use csv::StringRecord;
use hw::Format;
use packed::PackedError;
use thiserror::Error;

use super::ImportError;

/// Why a table could not be read.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum TableError {
    /// The file cannot be opened or ends early.
    #[error(transparent)]
    File(#[from] std::io::Error),
    /// The file is packed and stands for no table.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// The text is not CSV, or a line has other columns than the header.
    #[error(transparent)]
    Text(#[from] csv::Error),
    /// No column of that name.
    #[error("no column `{0}`; the table has {1}")]
    Column(String, String),
    /// A cell holds no format of products.
    #[error("line {line}, column `format`: `{text}` is no format of products")]
    Format { line: u64, text: String },
    /// A cell holds something else.
    #[error("line {line}, column `{column}`: `{text}` is not a number")]
    Number { line: u64, column: String, text: String },
}

/// Rows of a CSV file under the names of its header.
pub(crate) struct Table {
    path: PathBuf,
    header: StringRecord,
    rows: Vec<StringRecord>,
}

impl Table {
    pub(crate) fn read(path: PathBuf) -> Result<Self, ImportError> {
        match rows(&path) {
            Ok((header, rows)) => Ok(Self { path, header, rows }),
            Err(error) => Err(ImportError::Table(path, error)),
        }
    }

    /// A column as numbers.
    pub(crate) fn numbers(&self, column: &str) -> Result<Vec<f64>, ImportError> {
        let position = self.position(column)?;
        let numbers = self.rows.iter().map(|row| number(row, position, column)).collect::<Result<_, _>>();
        numbers.map_err(|error| ImportError::Table(self.path.clone(), error))
    }

    /// Several columns as numbers.
    pub(crate) fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[Vec<f64>; N], ImportError> {
        let columns: Result<Vec<Vec<f64>>, ImportError> = names.iter().map(|name| self.numbers(name)).collect();
        Ok(columns?.try_into().expect("a column for each name"))
    }

    /// A column as numbers; `other` in every row where the table has none of that name.
    pub(crate) fn numbers_if_any(&self, column: &str, other: f64) -> Vec<f64> {
        self.numbers(column).unwrap_or_else(|_| vec![other; self.rows.len()])
    }

    /// Last keys that a query of attention sees; 0 for all of them, as in tables without sliding windows.
    pub(crate) fn windows(&self) -> Vec<f64> {
        self.numbers_if_any("window_size", 0.0)
    }

    /// A column as text.
    pub(crate) fn words(&self, column: &str) -> Result<Vec<String>, ImportError> {
        let position = self.position(column)?;
        Ok(self.rows.iter().map(|row| row[position].to_owned()).collect())
    }

    /// A column as text; blank where the table has none of that name.
    pub(crate) fn words_if_any(&self, column: &str) -> Vec<String> {
        self.words(column).unwrap_or_else(|_| vec![String::new(); self.rows.len()])
    }

    /// The column `format`: 16 bits where it is blank or absent.
    pub(crate) fn formats(&self) -> Result<Vec<Format>, ImportError> {
        let mut formats = Vec::with_capacity(self.rows.len());
        for (row, word) in self.rows.iter().zip(self.words_if_any("format")) {
            let known = if word.is_empty() { Some(Format::Bf16) } else { Format::of_word(&word) };
            formats.push(known.ok_or_else(|| {
                let line = row.position().map_or(0, csv::Position::line);
                ImportError::Table(self.path.clone(), TableError::Format { line, text: word })
            })?);
        }
        Ok(formats)
    }

    fn position(&self, column: &str) -> Result<usize, ImportError> {
        self.header.iter().position(|name| name == column).ok_or_else(|| {
            let known = self.header.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            ImportError::Table(self.path.clone(), TableError::Column(column.to_owned(), known))
        })
    }
}

fn rows(path: &Path) -> Result<(StringRecord, Vec<StringRecord>), TableError> {
    parse(&packed::plain(std::fs::read(path)?, u64::MAX)?[..])
}

fn parse(text: impl Read) -> Result<(StringRecord, Vec<StringRecord>), TableError> {
    let mut reader = csv::Reader::from_reader(text);
    let header = reader.headers()?.clone();
    let rows: Result<Vec<StringRecord>, csv::Error> = reader.records().collect();
    Ok((header, rows?))
}

fn number(row: &StringRecord, position: usize, column: &str) -> Result<f64, TableError> {
    let text = row[position].trim();
    if text.is_empty() {
        return Ok(f64::NAN);
    }
    text.parse().map_err(|_| TableError::Number {
        line: row.position().map_or(0, csv::Position::line),
        column: column.to_owned(),
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &[u8]) -> Result<Table, TableError> {
        parse(text).map(|(header, rows)| Table { path: PathBuf::from("table.csv"), header, rows })
    }

    #[test]
    fn quoted_text_missing_cells_and_exponents_are_read() {
        let table = table(b"name,latency\n\"a, b\",1.5e-3\nc,\nd,-4\n").expect("a table");
        assert_eq!(table.words("name").expect("a column"), ["a, b", "c", "d"]);
        let latency = table.numbers("latency").expect("a column");
        assert_eq!((latency[0], latency[2]), (1.5e-3, -4.0));
        assert!(latency[1].is_nan());
    }

    #[test]
    fn formats_are_sixteen_bits_where_a_table_says_nothing() {
        let formats = |text: &[u8]| table(text).expect("a table").formats();
        assert_eq!(formats(b"m\n1\n2\n").expect("formats"), [Format::Bf16; 2]);
        assert_eq!(formats(b"m,format\n1,\n2,fp8\n").expect("formats"), [Format::Bf16, Format::Fp8]);
        let error = formats(b"m,format\n1,fp9\n").expect_err("no format");
        assert_eq!(error.to_string(), "table.csv: line 2, column `format`: `fp9` is no format of products");
    }

    #[test]
    fn a_cell_that_is_no_number_is_named_with_its_line() {
        let error = table(b"m,n\n1,2\n3,four\n").expect("a table").numbers("n").expect_err("no number");
        assert_eq!(error.to_string(), "table.csv: line 3, column `n`: `four` is not a number");
    }

    #[test]
    fn a_missing_column_is_answered_with_those_that_are_there() {
        let error = table(b"m,n\n1,2\n").expect("a table").words("k").expect_err("no such column");
        assert_eq!(error.to_string(), "table.csv: no column `k`; the table has `m`, `n`");
    }

    #[test]
    fn a_line_with_a_missing_column_is_refused_with_its_line() {
        let error = table(b"m,n\n1,2\n3\n").err().expect("a short line");
        assert!(error.to_string().contains("line: 3"), "{error}");
    }

    #[test]
    fn a_gzipped_table_is_recognised_by_its_first_bytes() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, b"m\n7\n").expect("memory");
        let path = std::env::temp_dir().join(format!("skrull-sim-table-{}.csv", std::process::id()));
        std::fs::write(&path, packed.finish().expect("memory")).expect("a temporary file");
        let table = Table::read(path.clone());
        std::fs::remove_file(&path).expect("it was written");
        assert_eq!(table.expect("a table").numbers("m").expect("a column"), [7.0]);
    }
}
