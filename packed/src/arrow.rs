//! A table in Arrow's format of files and streams as CSV: a heading, a line for each row. Data sets of Hugging Face lie on disk so.
//!
//! A list becomes the number of its elements, a missing cell is empty. Columns of numbers, truth, text and lists are written; a column of another
//! type is not in the heading, so whoever names it is told. Source: Apache Arrow, "Arrow columnar format", 1.4, with `Message.fbs` and `Schema.fbs`. A file
//! is the stream between two marks, so both are read as streams. Nothing is believed of a size before the bytes are there.

mod flat;

use std::fmt::Write;

use flat::{CutShort, Table, array};
use thiserror::Error;

use crate::csv::{quoted, separate};
use crate::{Limit, PackedError};

/// How a file begins.
pub const FILE: &[u8] = b"ARROW1";
/// How a stream, and every message, begins.
pub const STREAM: [u8; 4] = [0xff; 4];
/// Where the stream of a file begins.
const FILE_HEAD: usize = 8;
/// Bytes of the end of a stream.
const END_BYTES: usize = 8;
/// Fields inside of fields, at most.
const DEPTH_MAX: usize = 32;

/// Why bytes are no table that is read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArrowError {
    /// They end early, or a place lies outside of them.
    #[error("it ends early, or points outside of itself")]
    CutShort,
    /// There is no schema before the first rows.
    #[error("rows come before their schema")]
    NoSchema,
    /// Numbers are big-endian.
    #[error("its numbers are big-endian")]
    BigEndian,
    /// Another schema, or bytes behind the end of a stream.
    #[error("a second table follows the first one")]
    Second,
    /// Buffers are compressed.
    #[error(
        "its buffers are compressed; write it without, for example `pyarrow.ipc.IpcWriteOptions(compression=None)`"
    )]
    Compressed,
    /// A column whose buffers are not counted here.
    #[error("column `{0}` has a type whose layout is not known here; write the other columns alone")]
    Layout(String),
    /// No column of numbers, text or lists.
    #[error("it has no column of numbers, text or lists")]
    NoColumn,
}

impl From<CutShort> for ArrowError {
    fn from(_: CutShort) -> Self {
        Self::CutShort
    }
}

/// What of a type is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// Whole numbers of so many bytes.
    Int { bytes: usize, is_signed: bool },
    /// Numbers of 4 or 8 bytes.
    Float { bytes: usize },
    /// Bits.
    Bool,
    /// Text, by ends of 4 or 8 bytes.
    Text { bytes: usize },
    /// The number of elements, by ends of 4 or 8 bytes.
    List { bytes: usize },
    /// Lists of one size.
    FixedList { n: i32 },
    /// Not written.
    Other,
}

/// A column, and what lies below it in the order of buffers.
#[derive(Clone, Debug)]
struct Field {
    name: String,
    cell: Cell,
    /// Buffers of its own.
    n_buffers: usize,
    children: Vec<Field>,
}

impl Field {
    fn read(table: &Table<'_>, depth: usize) -> Result<Self, ArrowError> {
        let name = table.text(0)?;
        if depth > DEPTH_MAX {
            return Err(ArrowError::Layout(name));
        }
        let (mut cell, mut n_buffers) = layout(table, &name)?;
        let mut children = Vec::new();
        if table.table(4)?.is_some() {
            // Words of a dictionary: numbers stand in their place.
            (cell, n_buffers) = (Cell::Other, 2);
        } else {
            for child in table.tables(5)? {
                children.push(Self::read(&child, depth + 1)?);
            }
        }
        Ok(Self { name, cell, n_buffers, children })
    }

    /// Buffers of the column with what lies below.
    fn all_buffers(&self) -> usize {
        self.n_buffers + self.children.iter().map(Self::all_buffers).sum::<usize>()
    }

    fn all_nodes(&self) -> usize {
        1 + self.children.iter().map(Self::all_nodes).sum::<usize>()
    }
}

/// What of a field is written, and how many buffers it has of its own.
fn layout(field: &Table<'_>, name: &str) -> Result<(Cell, usize), ArrowError> {
    let [kind] = field.number::<1>(2)?;
    let of = field.table(3)?;
    let int = |at| of.map_or(Ok(0), |of| of.number(at).map(i32::from_le_bytes));
    let short = |at| of.map_or(Ok(0), |of| of.number(at).map(i16::from_le_bytes));
    Ok(match kind {
        // Nothing but a number of rows; ends of runs are children.
        1 | 22 => (Cell::Other, 0),
        2 => {
            let bits = usize::try_from(int(0)?).map_err(|_| ArrowError::CutShort)?;
            let [is_signed] = of.map_or(Ok([0]), |of| of.number::<1>(1))?;
            if ![8, 16, 32, 64].contains(&bits) {
                return Err(ArrowError::Layout(name.to_owned()));
            }
            (Cell::Int { bytes: bits / 8, is_signed: is_signed != 0 }, 2)
        }
        3 => match short(0)? {
            1 => (Cell::Float { bytes: 4 }, 2),
            2 => (Cell::Float { bytes: 8 }, 2),
            _ => (Cell::Other, 2),
        },
        4 | 19 => (Cell::Other, 3),
        5 => (Cell::Text { bytes: 4 }, 3),
        20 => (Cell::Text { bytes: 8 }, 3),
        6 => (Cell::Bool, 2),
        12 => (Cell::List { bytes: 4 }, 2),
        21 => (Cell::List { bytes: 8 }, 2),
        16 => (Cell::FixedList { n: int(0)? }, 1),
        13 => (Cell::Other, 1),
        // Maps are lists of pairs.
        17 => (Cell::Other, 2),
        7..=11 | 15 | 18 => (Cell::Other, 2),
        _ => return Err(ArrowError::Layout(name.to_owned())),
    })
}

/// The text of a file or a stream.
pub fn csv(bytes: &[u8], limit: Limit) -> Result<Vec<u8>, PackedError> {
    let is_file = bytes.starts_with(FILE);
    let mut rest = if is_file { bytes.get(FILE_HEAD..).unwrap_or_default() } else { bytes };
    let (mut fields, mut text): (Option<Vec<Field>>, _) = (None, String::new());
    while let Some((head, after)) = next_message(rest)? {
        let message = Table::root(head).map_err(ArrowError::from)?;
        let [kind] = message.number::<1>(1).map_err(ArrowError::from)?;
        let length = i64::from_le_bytes(message.number(3).map_err(ArrowError::from)?);
        let length = usize::try_from(length).map_err(|_| ArrowError::CutShort)?;
        let body = after.get(..length).ok_or(ArrowError::CutShort)?;
        let header = message.table(2).map_err(ArrowError::from)?.ok_or(ArrowError::CutShort)?;
        match kind {
            1 if fields.is_some() => return Err(ArrowError::Second.into()),
            1 => fields = Some(schema(&header, &mut text)?),
            3 => rows(&header, body, fields.as_deref().ok_or(ArrowError::NoSchema)?, (&mut text, limit))?,
            // Dictionaries belong to columns that are not written.
            _ => {}
        }
        rest = &after[length..];
    }
    fields.ok_or(ArrowError::NoSchema)?;
    if !is_file && rest.len() > END_BYTES {
        return Err(ArrowError::Second.into());
    }
    Ok(text.into_bytes())
}

/// The metadata of a message, and what follows it.
type Message<'b> = (&'b [u8], &'b [u8]);

/// The next message; nothing at the end.
fn next_message(bytes: &[u8]) -> Result<Option<Message<'_>>, ArrowError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    if array(bytes, 0)? != STREAM {
        return Err(ArrowError::CutShort);
    }
    let length = usize::try_from(i32::from_le_bytes(array(bytes, 4)?)).map_err(|_| ArrowError::CutShort)?;
    if length == 0 {
        return Ok(None);
    }
    let end = length.checked_add(8).ok_or(ArrowError::CutShort)?;
    Ok(Some((bytes.get(8..end).ok_or(ArrowError::CutShort)?, &bytes[end..])))
}

/// The columns; their heading is written.
fn schema(header: &Table<'_>, text: &mut String) -> Result<Vec<Field>, ArrowError> {
    if i16::from_le_bytes(header.number(0)?) != 0 {
        return Err(ArrowError::BigEndian);
    }
    let fields: Result<Vec<Field>, ArrowError> = header.tables(1)?.iter().map(|field| Field::read(field, 0)).collect();
    let fields = fields?;
    text.clear();
    for (at, field) in fields.iter().filter(|field| field.cell != Cell::Other).enumerate() {
        separate(text, at);
        quoted(text, &field.name);
    }
    if text.is_empty() {
        return Err(ArrowError::NoColumn);
    }
    text.push('\n');
    Ok(fields)
}

/// A column of a batch: which cells are there, and its own buffers.
struct Cells<'b> {
    cell: Cell,
    /// Bits of the rows that are there; empty where all are.
    there: &'b [u8],
    buffers: [&'b [u8]; 2],
}

/// Writes the rows of a batch.
fn rows(header: &Table<'_>, body: &[u8], fields: &[Field], out: (&mut String, Limit)) -> Result<(), PackedError> {
    let (text, limit) = out;
    let (n_rows, columns) = columns(header, body, fields)?;
    for row in 0..n_rows {
        for (at, cells) in columns.iter().enumerate() {
            separate(text, at);
            let is_there = cells.there.is_empty() || bit(cells.there, row)?;
            if is_there {
                cell(text, cells, row)?;
            }
        }
        text.push('\n');
        limit.check(text.len() as u64)?;
    }
    Ok(())
}

/// Rows of a batch, and the columns of it that are written.
fn columns<'b>(header: &Table<'_>, body: &'b [u8], fields: &[Field]) -> Result<(usize, Vec<Cells<'b>>), ArrowError> {
    if header.table(3)?.is_some() {
        return Err(ArrowError::Compressed);
    }
    let n_rows = usize::try_from(i64::from_le_bytes(header.number(0)?)).map_err(|_| ArrowError::CutShort)?;
    let (nodes, buffers) = (header.pairs(1)?, header.pairs(2)?);
    let buffer = |at: usize| -> Result<&'b [u8], ArrowError> {
        let [offset, length] = buffers.get(at).ok_or(ArrowError::CutShort)?.map(usize::try_from);
        let (offset, length) = (offset.map_err(|_| ArrowError::CutShort)?, length.map_err(|_| ArrowError::CutShort)?);
        let end = offset.checked_add(length).ok_or(ArrowError::CutShort)?;
        body.get(offset..end).ok_or(ArrowError::CutShort)
    };
    let (mut at, mut node, mut columns) = (0, 0, Vec::new());
    for field in fields {
        let [_, n_missing] = nodes.get(node).ok_or(ArrowError::CutShort)?;
        if field.cell != Cell::Other {
            let there = if *n_missing == 0 { &[] } else { buffer(at)? };
            let own = |nth: usize| if nth < field.n_buffers { buffer(at + nth) } else { Ok(&[][..]) };
            columns.push(Cells { cell: field.cell, there, buffers: [own(1)?, own(2)?] });
        }
        at += field.all_buffers();
        node += field.all_nodes();
    }
    Ok((n_rows, columns))
}

fn bit(bits: &[u8], at: usize) -> Result<bool, ArrowError> {
    let byte = bits.get(at / 8).ok_or(ArrowError::CutShort)?;
    Ok(byte >> (at % 8) & 1 == 1)
}

/// Writes one cell that is there.
fn cell(text: &mut String, cells: &Cells<'_>, row: usize) -> Result<(), ArrowError> {
    let [first, second] = cells.buffers;
    let done = match cells.cell {
        Cell::Int { bytes, is_signed } => write!(text, "{}", whole(first, row, bytes, is_signed)?),
        Cell::Float { bytes: 4 } => write!(text, "{}", f32::from_le_bytes(item(first, row)?)),
        Cell::Float { .. } => write!(text, "{}", f64::from_le_bytes(item(first, row)?)),
        Cell::Bool => write!(text, "{}", bit(first, row)?),
        Cell::Text { bytes } => {
            let [from, to] = ends(first, row, bytes)?;
            let word = second.get(from..to).ok_or(ArrowError::CutShort)?;
            quoted(text, &String::from_utf8_lossy(word));
            Ok(())
        }
        Cell::List { bytes } => {
            let [from, to] = ends(first, row, bytes)?;
            write!(text, "{}", to.checked_sub(from).ok_or(ArrowError::CutShort)?)
        }
        Cell::FixedList { n } => write!(text, "{n}"),
        Cell::Other => Ok(()),
    };
    done.expect("text takes everything");
    Ok(())
}

/// The item of a row.
fn item<const N: usize>(bytes: &[u8], row: usize) -> Result<[u8; N], ArrowError> {
    Ok(array(bytes, row.checked_mul(N).ok_or(ArrowError::CutShort)?)?)
}

/// A whole number of so many bytes.
fn whole(bytes: &[u8], row: usize, size: usize, is_signed: bool) -> Result<i128, ArrowError> {
    Ok(match (size, is_signed) {
        (1, false) => u8::from_le_bytes(item(bytes, row)?).into(),
        (1, true) => i8::from_le_bytes(item(bytes, row)?).into(),
        (2, false) => u16::from_le_bytes(item(bytes, row)?).into(),
        (2, true) => i16::from_le_bytes(item(bytes, row)?).into(),
        (4, false) => u32::from_le_bytes(item(bytes, row)?).into(),
        (4, true) => i32::from_le_bytes(item(bytes, row)?).into(),
        (_, false) => u64::from_le_bytes(item(bytes, row)?).into(),
        (_, true) => i64::from_le_bytes(item(bytes, row)?).into(),
    })
}

/// Where the elements of a row begin and end.
fn ends(bytes: &[u8], row: usize, size: usize) -> Result<[usize; 2], ArrowError> {
    let end = |at| whole(bytes, at, size, true).and_then(|at| usize::try_from(at).map_err(|_| ArrowError::CutShort));
    Ok([end(row)?, end(row + 1)?])
}
