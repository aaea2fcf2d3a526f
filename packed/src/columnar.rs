//! Parquet files of a table by columns: one page for each column of a group of rows, plain and not compressed.
//!
//! Source: Apache Parquet Format 2.x (`parquet.thrift`, encodings PLAIN and RLE) and the compact protocol of Thrift. A crate for this takes
//! longer to build than the rest of the reports; readers need no more than what is here.

use crate::columns::{Cells, Column};

/// First and last bytes of a file.
const MAGIC: &[u8] = b"PAR1";
/// Rows of a group, so that a page's size stays far below 2 GiB.
const GROUP_ROWS: usize = 1 << 17;

/// Numbers of the format.
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;
const OPTIONAL: i64 = 1;
const UTF8: i64 = 0;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const DATA_PAGE: i64 = 0;
const UNCOMPRESSED: i64 = 0;

/// Types of the compact protocol.
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A page of a column that was written.
struct Chunk {
    at: usize,
    bytes: usize,
    n_rows: usize,
}

/// Renders columns, which have equally many rows.
///
/// # Panics
/// When a column has more rows than another one.
pub fn render(columns: &[Column]) -> Vec<u8> {
    let n_rows = columns.first().map_or(0, Column::n_rows);
    assert!(columns.iter().all(|column| column.n_rows() == n_rows), "columns are equally long");
    let mut out = MAGIC.to_vec();
    let mut groups: Vec<Vec<Chunk>> = Vec::new();
    for first in (0..n_rows).step_by(GROUP_ROWS) {
        let rows = first..n_rows.min(first + GROUP_ROWS);
        groups.push(columns.iter().map(|column| chunk(&mut out, column, rows.clone())).collect());
    }
    let footer = footer(columns, &groups, n_rows);
    out.extend(&footer);
    out.extend(len32(&footer));
    out.extend(MAGIC);
    out
}

fn len32(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("a page is below 4 GiB").to_le_bytes()
}

/// Writes a page with its header.
fn chunk(out: &mut Vec<u8>, column: &Column, rows: std::ops::Range<usize>) -> Chunk {
    let (n_rows, at) = (rows.len(), out.len());
    let page = page(column, rows);
    let mut header = Compact::default();
    header.int(1, I32, DATA_PAGE);
    header.int(2, I32, page.len() as i64);
    header.int(3, I32, page.len() as i64);
    header.begin(5);
    header.int(1, I32, n_rows as i64);
    header.int(2, I32, PLAIN);
    header.int(3, I32, RLE);
    header.int(4, I32, RLE);
    header.end();
    header.end();
    out.extend(header.out);
    out.extend(page);
    Chunk { at, bytes: out.len() - at, n_rows }
}

/// Which cells are there, in runs, and the values of those.
fn page(column: &Column, rows: std::ops::Range<usize>) -> Vec<u8> {
    let (levels, values) = match &column.cells {
        Cells::Numbers(cells) => {
            let values = cells[rows.clone()].iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
            (levels(&cells[rows]), values)
        }
        Cells::Texts(cells) => {
            let mut values = Vec::new();
            for text in cells[rows.clone()].iter().flatten() {
                values.extend(len32(text.as_bytes()));
                values.extend(text.as_bytes());
            }
            (levels(&cells[rows]), values)
        }
    };
    [len32(&levels).to_vec(), levels, values].concat()
}

/// Runs of cells that are there or not.
fn levels<T>(cells: &[Option<T>]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in cells.chunk_by(|one, next| one.is_some() == next.is_some()) {
        varint(&mut out, 2 * run.len() as u64);
        out.push(u8::from(run[0].is_some()));
    }
    out
}

/// The metadata at the end of the file.
fn footer(columns: &[Column], groups: &[Vec<Chunk>], n_rows: usize) -> Vec<u8> {
    let mut out = Compact::default();
    out.int(1, I32, 1);
    out.list(2, STRUCT, columns.len() + 1);
    out.open();
    out.text(4, "schema");
    out.int(5, I32, columns.len() as i64);
    out.end();
    for column in columns {
        out.open();
        out.int(1, I32, physical(column));
        out.int(3, I32, OPTIONAL);
        out.text(4, &column.name);
        if physical(column) == BYTE_ARRAY {
            out.int(6, I32, UTF8);
        }
        out.end();
    }
    out.int(3, I64, n_rows as i64);
    out.list(4, STRUCT, groups.len());
    for group in groups {
        self::group(&mut out, columns, group);
    }
    out.text(6, concat!("skrull-sim version ", env!("CARGO_PKG_VERSION")));
    out.end();
    out.out
}

fn physical(column: &Column) -> i64 {
    match column.cells {
        Cells::Numbers(_) => DOUBLE,
        Cells::Texts(_) => BYTE_ARRAY,
    }
}

/// A group of rows: where the page of each column is.
fn group(out: &mut Compact, columns: &[Column], chunks: &[Chunk]) {
    out.open();
    out.list(1, STRUCT, columns.len());
    for (column, chunk) in columns.iter().zip(chunks) {
        out.open();
        out.int(2, I64, chunk.at as i64);
        out.begin(3);
        out.int(1, I32, physical(column));
        out.list(2, I32, 2);
        out.number(PLAIN);
        out.number(RLE);
        out.list(3, BINARY, 1);
        out.bytes(&column.name);
        out.int(4, I32, UNCOMPRESSED);
        out.int(5, I64, chunk.n_rows as i64);
        out.int(6, I64, chunk.bytes as i64);
        out.int(7, I64, chunk.bytes as i64);
        out.int(9, I64, chunk.at as i64);
        out.end();
        out.end();
    }
    out.int(2, I64, chunks.iter().map(|chunk| chunk.bytes).sum::<usize>() as i64);
    out.int(3, I64, chunks.first().map_or(0, |chunk| chunk.n_rows) as i64);
    out.end();
}

/// Seven bits a byte, the lowest first.
fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A writer of the compact protocol: fields name their distance from the field before.
struct Compact {
    out: Vec<u8>,
    last: Vec<u8>,
}

impl Default for Compact {
    fn default() -> Self {
        Self { out: Vec::new(), last: vec![0] }
    }
}

impl Compact {
    fn field(&mut self, id: u8, of: u8) {
        let last = self.last.last_mut().expect("inside of a struct");
        self.out.push((id - *last) << 4 | of);
        *last = id;
    }

    /// Positive and negative numbers take turns.
    fn number(&mut self, number: i64) {
        varint(&mut self.out, ((number << 1) ^ (number >> 63)) as u64);
    }

    fn int(&mut self, id: u8, of: u8, number: i64) {
        self.field(id, of);
        self.number(number);
    }

    fn bytes(&mut self, text: &str) {
        varint(&mut self.out, text.len() as u64);
        self.out.extend(text.as_bytes());
    }

    fn text(&mut self, id: u8, text: &str) {
        self.field(id, BINARY);
        self.bytes(text);
    }

    fn list(&mut self, id: u8, of: u8, n: usize) {
        self.field(id, LIST);
        match u8::try_from(n) {
            Ok(n) if n < 15 => self.out.push(n << 4 | of),
            _ => {
                self.out.push(0xf0 | of);
                varint(&mut self.out, n as u64);
            }
        }
    }

    /// Begins a struct that is an item of a list.
    fn open(&mut self) {
        self.last.push(0);
    }

    /// Begins a struct that is a field.
    fn begin(&mut self, id: u8) {
        self.field(id, STRUCT);
        self.open();
    }

    fn end(&mut self) {
        self.out.push(0);
        self.last.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_the_format_has_them() {
        let mut out = Compact::default();
        out.int(1, I32, 150);
        out.int(3, I32, -1);
        out.text(4, "ab");
        // Field 1: 150 as 300 = 0xac 0x02. Field 3, two on: -1 as 1. Field 4: two bytes.
        assert_eq!(out.out, [0x15, 0xac, 0x02, 0x25, 0x01, 0x18, 2, b'a', b'b']);
    }

    #[test]
    fn a_page_has_runs_of_cells_and_then_the_values() {
        let column = Column::numbers("a", [Some(1.0), Some(2.0), None]);
        // Two cells that are there (2 << 1, 1), one that is not (1 << 1, 0): four bytes.
        let expected =
            [vec![4, 0, 0, 0, 4, 1, 2, 0], 1f64.to_le_bytes().to_vec(), 2f64.to_le_bytes().to_vec()].concat();
        assert_eq!(page(&column, 0..3), expected);
    }

    #[test]
    fn a_file_begins_and_ends_as_readers_ask_and_says_where_its_metadata_is() {
        let file = render(&[Column::texts("name", [Some("x"), None]), Column::numbers("a_s", [None, Some(0.5)])]);
        let end = file.len() - 8;
        let n = u32::from_le_bytes(file[end..end + 4].try_into().expect("four bytes")) as usize;
        assert!(file.starts_with(MAGIC) && file.ends_with(MAGIC) && n < end);
        let footer = String::from_utf8_lossy(&file[end - n..end]);
        assert!(footer.contains("name") && footer.contains("a_s"), "{footer}");
    }
}
