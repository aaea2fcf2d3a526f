//! Tables of an SQLite file, row by row: what recorders write, and no queries.
//!
//! A page is read when it is walked over, so a file of gigabytes needs the memory of one page and one row. A broken or hostile file is refused:
//! a page may be walked over once, rows together are no longer than the file, and what points beyond it is an error.
//! Source: sqlite.org/fileformat2.html, sections 1.3 (header), 1.6 (b-trees), 2.1 (records); read 2026-11.

use std::io::{self, Read, Seek, SeekFrom};

use thiserror::Error;

/// How every file begins.
pub const MAGIC: &[u8] = b"SQLite format 3\0";
/// Bytes of a row, at most.
const ROW_BYTES_MAX: u64 = 16 << 20;

/// Why a file gives no rows.
#[derive(Debug, Error)]
pub enum SqliteError {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// It has no place to go back to.
    #[error("it is read page by page, so give the file and not a pipe")]
    Pipe,
    /// It breaks the format.
    #[error("the SQLite file is broken: {0}")]
    Broken(&'static str),
    /// A table lacks what is needed.
    #[error("its table `{table}` has no column `{column}`; it has {}", .columns.join(", "))]
    NoColumn { table: String, column: String, columns: Vec<String> },
}

use SqliteError::Broken;

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing, or bytes that nobody asked for.
    Null,
    /// A whole number.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// Characters.
    Text(String),
}

impl Cell {
    /// A whole number that is not negative.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Its characters.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A table of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    name: String,
    root: u32,
    columns: Vec<String>,
}

impl Table {
    /// The place of a column.
    ///
    /// # Errors
    /// When there is none.
    pub fn column(&self, name: &str) -> Result<usize, SqliteError> {
        self.columns.iter().position(|column| column.eq_ignore_ascii_case(name)).ok_or_else(|| SqliteError::NoColumn {
            table: self.name.clone(),
            column: name.to_owned(),
            columns: self.columns.clone(),
        })
    }
}

/// An open file.
pub struct Database<R> {
    source: R,
    page_bytes: usize,
    /// Bytes of a page that hold content.
    usable: usize,
    n_pages: u32,
}

/// A page of a table's tree.
enum Page {
    /// Pages below it.
    Interior(Vec<u32>),
    /// Its bytes, and where in them rows begin.
    Leaf(Vec<u8>, Vec<usize>),
}

impl<R: Read + Seek> Database<R> {
    /// Opens a file.
    ///
    /// # Errors
    /// When it is no SQLite file, or a broken one.
    pub fn open(mut source: R) -> Result<Self, SqliteError> {
        let n_bytes = source.seek(SeekFrom::End(0)).map_err(|_| SqliteError::Pipe)?;
        source.seek(SeekFrom::Start(0))?;
        let mut head = [0; 100];
        source.read_exact(&mut head)?;
        if !head.starts_with(MAGIC) {
            return Err(Broken("it begins otherwise"));
        }
        let page_bytes = match u16::from_be_bytes([head[16], head[17]]) {
            1 => 65_536,
            bytes => usize::from(bytes),
        };
        if !page_bytes.is_power_of_two() || page_bytes < 512 {
            return Err(Broken("the size of its pages is no power of two"));
        }
        if head[59] != 1 || head[56..59] != [0; 3] {
            return Err(Broken("its text is not UTF-8"));
        }
        let usable = page_bytes - usize::from(head[20]);
        if usable < 480 {
            return Err(Broken("its pages hold nothing"));
        }
        let n_pages = u32::try_from(n_bytes / page_bytes as u64).map_err(|_| Broken("it has too many pages"))?;
        Ok(Self { source, page_bytes, usable, n_pages })
    }

    /// A table by its name; `None` where there is none.
    ///
    /// # Errors
    /// When the file is broken.
    pub fn table(&mut self, name: &str) -> Result<Option<Table>, SqliteError> {
        let columns = ["type", "name", "tbl_name", "rootpage", "sql"].map(str::to_owned).to_vec();
        let schema = Table { name: "sqlite_schema".to_owned(), root: 1, columns };
        let mut found = None;
        self.rows(&schema, &[0, 1, 3, 4], |_, cells| {
            let is_it = cells[0].text() == Some("table") && cells[1].text() == Some(name);
            if let (true, Some(root), Some(sql)) = (is_it, cells[2].count(), cells[3].text()) {
                let root = u32::try_from(root).map_err(|_| Broken("a table begins beyond the file"))?;
                found = Some(Table { name: name.to_owned(), root, columns: columns_of(sql) });
            }
            Ok::<(), SqliteError>(())
        })?;
        Ok(found)
    }

    /// Shows every row's number and some of its cells, in order of the numbers.
    ///
    /// # Errors
    /// When the file is broken, and what `each` refuses.
    pub fn rows<E: From<SqliteError>>(
        &mut self,
        table: &Table,
        columns: &[usize],
        mut each: impl FnMut(i64, &[Cell]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = vec![table.root];
        let (mut n_walked, mut n_bytes) = (0_u32, 0_u64);
        while let Some(page) = left.pop() {
            n_walked += 1;
            if n_walked > self.n_pages {
                return Err(Broken("its pages lead in a circle").into());
            }
            match self.page(page)? {
                Page::Interior(below) => left.extend(below.into_iter().rev()),
                Page::Leaf(bytes, places) => {
                    for place in places {
                        let (number, payload) = self.row(&bytes, place)?;
                        n_bytes += payload.len() as u64;
                        // Rows that share their bytes would be more than the file holds.
                        if n_bytes > u64::from(self.n_pages) * self.page_bytes as u64 {
                            return Err(Broken("its rows are longer than the file").into());
                        }
                        each(number, &cells(&payload, columns)?)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The bytes of a page.
    fn bytes(&mut self, number: u32) -> Result<Vec<u8>, SqliteError> {
        if number == 0 || number > self.n_pages {
            return Err(Broken("a page lies beyond the file"));
        }
        self.source.seek(SeekFrom::Start(u64::from(number - 1) * self.page_bytes as u64))?;
        let mut bytes = vec![0; self.page_bytes];
        self.source.read_exact(&mut bytes)?;
        bytes.truncate(self.usable);
        Ok(bytes)
    }

    fn page(&mut self, number: u32) -> Result<Page, SqliteError> {
        let bytes = self.bytes(number)?;
        // The first page has the header of the file before its own.
        let start = if number == 1 { 100 } else { 0 };
        let (is_leaf, pointers) = match bytes[start] {
            0x0d => (true, start + 8),
            0x05 => (false, start + 12),
            _ => return Err(Broken("a page is none of a table with row numbers")),
        };
        let n_cells = usize::from(short(&bytes, start + 3)?);
        let places = (0..n_cells).map(|at| short(&bytes, pointers + 2 * at).map(usize::from));
        let places = places.collect::<Result<Vec<usize>, _>>()?;
        if is_leaf {
            return Ok(Page::Leaf(bytes, places));
        }
        let mut below = places.into_iter().map(|place| long(&bytes, place)).collect::<Result<Vec<u32>, _>>()?;
        below.push(long(&bytes, start + 8)?);
        Ok(Page::Interior(below))
    }

    /// A row of a leaf: what does not fit its page lies on pages of its own.
    fn row(&mut self, page: &[u8], place: usize) -> Result<(i64, Vec<u8>), SqliteError> {
        let mut at = place;
        let n_bytes = varint(page, &mut at)?.cast_unsigned();
        let number = varint(page, &mut at)?;
        if n_bytes > ROW_BYTES_MAX {
            return Err(Broken("a row is longer than 16 MiB"));
        }
        let n_bytes = usize::try_from(n_bytes).expect("below 16 MiB");
        let n_here = self.local_bytes(n_bytes);
        let mut payload = page.get(at..at + n_here).ok_or(Broken("a row lies beyond its page"))?.to_vec();
        let mut next = if n_here < n_bytes { long(page, at + n_here)? } else { 0 };
        while payload.len() < n_bytes {
            let more = self.bytes(next)?;
            next = long(&more, 0)?;
            let n = (n_bytes - payload.len()).min(self.usable - 4);
            payload.extend_from_slice(&more[4..4 + n]);
        }
        Ok((number, payload))
    }

    /// Bytes of a row that lie in its leaf.
    const fn local_bytes(&self, n_bytes: usize) -> usize {
        if n_bytes <= self.usable - 35 {
            return n_bytes;
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let most = least + (n_bytes - least) % (self.usable - 4);
        if most <= self.usable - 35 { most } else { least }
    }
}

fn short(bytes: &[u8], at: usize) -> Result<u16, SqliteError> {
    let found = bytes.get(at..at + 2).ok_or(Broken("a page ends early"))?;
    Ok(u16::from_be_bytes([found[0], found[1]]))
}

fn long(bytes: &[u8], at: usize) -> Result<u32, SqliteError> {
    let found = bytes.get(at..at + 4).ok_or(Broken("a page ends early"))?;
    Ok(u32::from_be_bytes([found[0], found[1], found[2], found[3]]))
}

/// A number of one to nine bytes, seven bits each and eight of the last.
fn varint(bytes: &[u8], at: &mut usize) -> Result<i64, SqliteError> {
    let mut number = 0_i64;
    for index in 0..9 {
        let byte = *bytes.get(*at).ok_or(Broken("a number ends early"))?;
        *at += 1;
        if index == 8 {
            return Ok(number << 8 | i64::from(byte));
        }
        number = number << 7 | i64::from(byte & 0x7f);
        if byte < 0x80 {
            break;
        }
    }
    Ok(number)
}

/// Some cells of a row; columns that were added after it was written are empty.
fn cells(payload: &[u8], columns: &[usize]) -> Result<Vec<Cell>, SqliteError> {
    let mut at = 0;
    let head = usize::try_from(varint(payload, &mut at)?).unwrap_or(usize::MAX);
    if head > payload.len() {
        return Err(Broken("the head of a row is longer than the row"));
    }
    let (mut found, mut body) = (vec![Cell::Null; columns.len()], head);
    let mut index = 0;
    while at < head {
        let kind = varint(payload, &mut at)?.cast_unsigned();
        let n_bytes = usize::try_from(width(kind)).unwrap_or(usize::MAX);
        let end = body.checked_add(n_bytes).filter(|end| *end <= payload.len()).ok_or(Broken("a cell ends early"))?;
        for (place, _) in columns.iter().enumerate().filter(|(_, column)| **column == index) {
            found[place] = cell(kind, &payload[body..end])?;
        }
        body = end;
        index += 1;
    }
    Ok(found)
}

/// Bytes of a cell of a kind.
const fn width(kind: u64) -> u64 {
    match kind {
        0 | 8 | 9 => 0,
        1..=4 => kind,
        5 => 6,
        6 | 7 => 8,
        _ => kind.saturating_sub(12) / 2,
    }
}

fn cell(kind: u64, bytes: &[u8]) -> Result<Cell, SqliteError> {
    Ok(match kind {
        1..=6 => {
            // The first byte has the sign.
            let first = i64::from(bytes[0].cast_signed());
            Cell::Integer(bytes[1..].iter().fold(first, |number, byte| number << 8 | i64::from(*byte)))
        }
        7 => Cell::Real(f64::from_be_bytes(bytes.try_into().expect("eight bytes"))),
        8 | 9 => Cell::Integer(i64::from(kind == 9)),
        _ if kind >= 13 && kind % 2 == 1 => {
            Cell::Text(String::from_utf8(bytes.to_vec()).map_err(|_| Broken("a text is not UTF-8"))?)
        }
        _ => Cell::Null,
    })
}

/// Names of columns, from the statement that made a table: the first word of each part between the outer parentheses.
fn columns_of(sql: &str) -> Vec<String> {
    let bare: String = sql.lines().map(|line| line.split("--").next().unwrap_or(line)).collect::<Vec<_>>().join(" ");
    let inner = bare.split_once('(').map_or("", |(_, inner)| inner);
    let (mut parts, mut depth) = (vec![String::new()], 0_u32);
    for letter in inner.chars() {
        match letter {
            ')' if depth == 0 => break,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        parts.last_mut().expect("at least one").push(letter);
    }
    let name =
        |part: &String| part.split_whitespace().next().map(|word| word.trim_matches(['"', '`', '[', ']']).to_owned());
    parts.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_the_first_words_of_the_parts() {
        let sql = "CREATE TABLE KERNELS (\n start INTEGER NOT NULL, -- when (ns), as told\n \"end\" NUMERIC(10, 2),\n\
                   name TEXT DEFAULT 'a', PRIMARY KEY (start) )";
        assert_eq!(columns_of(sql), ["start", "end", "name", "PRIMARY"]);
        assert_eq!(columns_of("CREATE TABLE x"), Vec::<String>::new());
    }

    #[test]
    fn numbers_have_seven_bits_a_byte() {
        for (bytes, number) in [
            (vec![0x7f], 127),
            (vec![0x81, 0x00], 128),
            (vec![0x82, 0x2c], 300),
            (vec![0xff; 9], -1),
            (vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x05], 5),
        ] {
            let mut at = 0;
            assert_eq!((varint(&bytes, &mut at).expect("whole"), at), (number, bytes.len()));
        }
        assert!(varint(&[0x80], &mut 0).is_err());
    }

    /// A leaf whose rows are all the same one, of 20,000 bytes on a page that follows itself.
    #[test]
    fn rows_that_share_their_bytes_are_refused() {
        let mut file = vec![0; 3 * 512];
        file[..16].copy_from_slice(MAGIC);
        (file[16], file[59]) = (2, 1);
        let page = &mut file[512..1024];
        (page[0], page[4]) = (0x0d, 100);
        for at in 0..100 {
            page[8 + 2 * at..10 + 2 * at].copy_from_slice(&210_u16.to_be_bytes());
        }
        // 20,000 as a number of three bytes, row 1, the 188 bytes that lie here, and the page of the rest.
        page[210..214].copy_from_slice(&[0x81, 0x9c, 0x20, 1]);
        page[402..406].copy_from_slice(&[0, 0, 0, 3]);
        file[1024..1028].copy_from_slice(&[0, 0, 0, 3]);
        let mut database = Database::open(io::Cursor::new(&file)).expect("a header");
        let table = Table { name: "t".to_owned(), root: 2, columns: Vec::new() };
        let found = database.rows(&table, &[], |_, _| Ok::<(), SqliteError>(()));
        assert_eq!(
            found.expect_err("it is refused").to_string(),
            "the SQLite file is broken: its rows are longer than the file"
        );
    }

    #[test]
    fn cells_have_the_widths_of_their_kinds() {
        // Three cells: -2 in one byte, a text of two letters, nothing; the fourth was added later.
        let payload = [4, 1, 17, 0, 0xfe, b'o', b'k'];
        let found = cells(&payload, &[1, 0, 2, 3]).expect("whole");
        assert_eq!(found, [Cell::Text("ok".to_owned()), Cell::Integer(-2), Cell::Null, Cell::Null]);
        assert!(cells(&payload[..6], &[0]).is_err());
        assert_eq!(cell(7, &1.5_f64.to_be_bytes()).expect("whole"), Cell::Real(1.5));
        assert_eq!(cell(5, &[0, 0, 0, 1, 0, 0]).expect("whole"), Cell::Integer(65_536));
    }
}
