//! Graphs from files: lists of edges or events as text, and rows as arrays of NumPy. Bytes in, a graph out; the shell opens the files.
//!
//! An error has the line or the part, what was found, and what to do. Self-loops and
//! duplicates become counts, nothing else is left out.

mod npy;

use packed::PackedError;
use thiserror::Error;

use crate::csr::{Csr, CsrError, Removed};
use crate::tcsr::Event;

pub use npy::{Array, array, rows, width};

/// Why bytes are no graph.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum ReadError {
    /// A line that is no edge.
    #[error("line {line}: `{found}` is no {expected}")]
    Line { line: u64, found: String, expected: &'static str },
    /// A negative id.
    #[error("line {line}: vertex `{found}` is negative; ids are counted from 0")]
    Negative { line: u64, found: String },
    /// An id beyond those that the scenario says there are.
    #[error(
        "line {line}: vertex {vertex} is beyond the {n_vertices} of the graph; leave `vertices` out to take the largest id"
    )]
    Beyond { line: u64, vertex: u64, n_vertices: u64 },
    /// Time goes back.
    #[error("line {line}: time {time} is before the {before} of the line ahead; sort the file by time")]
    Unsorted { line: u64, time: u64, before: u64 },
    /// No edge at all.
    #[error("the file has no edge")]
    Empty,
    /// An array that is broken or of another kind.
    #[error("array `{name}`: {why}")]
    Array { name: String, why: String },
    /// A packed part of an archive that cannot be read.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// Arrays that are no graph.
    #[error(transparent)]
    Graph(#[from] CsrError),
}

/// Edges with their line, and the vertices that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Ends.
    pub edges: Vec<(u32, u32)>,
    /// Times, where the file has a third column.
    pub times: Vec<u64>,
    /// Vertices: given, or one more than the largest id.
    pub n_vertices: u32,
}

impl Edges {
    /// Edges as events.
    pub fn events(&self) -> Vec<Event> {
        let event = |(&(source, target), &time)| Event { source, target, time };
        self.edges.iter().zip(&self.times).map(event).collect()
    }
}

/// A graph of rows, with what was removed on the way.
pub type Made = (Csr, Removed);

/// Whether a file's second column is followed by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Two ends; further columns are weights and the like, and are not read.
    Edge,
    /// Two ends and a time, in the order of time.
    Event,
}

/// Edges or events from text: a line each, columns apart by comma, tab or spaces; lines that begin with `#` or `%` are comments, and the first
/// line may be a heading. `n_vertices` is how many there are, where that is known.
///
/// # Errors
/// With the first line that is wrong.
pub fn edges(text: &[u8], columns: Columns, n_vertices: Option<u64>) -> Result<Edges, ReadError> {
    let mut found = Edges { edges: Vec::new(), times: Vec::new(), n_vertices: 0 };
    let mut largest = 0;
    for (line, words) in (1_u64..).zip(text.split(|byte| *byte == b'\n')) {
        let Some((from, to, rest)) = ends(words, line, found.edges.is_empty())? else { continue };
        let limit = n_vertices.unwrap_or(crate::csr::VERTICES_MAX);
        let vertex = from.max(to);
        if vertex >= limit {
            return Err(ReadError::Beyond { line, vertex, n_vertices: limit });
        }
        largest = largest.max(vertex);
        found.edges.push((id(from), id(to)));
        if columns == Columns::Event {
            found.times.push(time(&rest, line, found.times.last().copied())?);
        }
    }
    if found.edges.is_empty() {
        return Err(ReadError::Empty);
    }
    found.n_vertices = id(n_vertices.unwrap_or(largest + 1));
    Ok(found)
}

fn id(vertex: u64) -> u32 {
    u32::try_from(vertex).expect("checked against the largest id")
}

/// Both ends of a line and its third column; `None` for a comment, an empty line or a heading.
fn ends(line: &[u8], number: u64, is_first: bool) -> Result<Option<(u64, u64, String)>, ReadError> {
    let text = String::from_utf8_lossy(line);
    let text = text.trim();
    if text.is_empty() || text.starts_with(['#', '%']) {
        return Ok(None);
    }
    let mut words = text.split(|letter: char| letter == ',' || letter.is_whitespace()).filter(|word| !word.is_empty());
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_heading = is_first && first.chars().any(char::is_alphabetic);
    if is_heading {
        return Ok(None);
    }
    let rest = words.next().unwrap_or_default().to_owned();
    Ok(Some((vertex(first, text, number)?, vertex(second, text, number)?, rest)))
}

fn vertex(word: &str, line_text: &str, line: u64) -> Result<u64, ReadError> {
    if word.starts_with('-') && word[1..].parse::<u64>().is_ok() {
        return Err(ReadError::Negative { line, found: word.to_owned() });
    }
    word.parse().map_err(|_| wrong(line, line_text, "edge: two whole numbers, apart by a comma, a tab or spaces"))
}

fn time(word: &str, line: u64, before: Option<u64>) -> Result<u64, ReadError> {
    // Times of data sets are often written as floats with whole values.
    let word = word.strip_suffix(".0").unwrap_or(word);
    let time: u64 = word.parse().map_err(|_| wrong(line, word, "time: a whole number in the third column"))?;
    match before.filter(|before| time < *before) {
        Some(before) => Err(ReadError::Unsorted { line, time, before }),
        None => Ok(time),
    }
}

fn wrong(line: u64, found: &str, expected: &'static str) -> ReadError {
    let found: String = found.chars().take(40).collect();
    ReadError::Line { line, found, expected }
}

#[cfg(test)]
mod tests;
