//! Files as the text they stand for: gzip is undone, a table in Parquet or Arrow's format becomes its CSV, an index of Megatron-LM its lengths, and
//! everything else stays as it is.
//!
//! Tables are written in Parquet too (`columnar.rs`).
//!
//! Bytes decide, not names. So every reader of text reads packed files as well, and none has a decompressor of its own. What is unpacked is
//! bounded by what it was packed in: a small file cannot take all memory.

mod arrow;
pub mod columnar;
pub mod columns;
mod csv;
mod index;
#[cfg(any(test, feature = "parquet"))]
mod table;

use std::io::{self, Read};

use flate2::read::{DeflateDecoder, MultiGzDecoder};
use thiserror::Error;

pub use arrow::ArrowError;
pub use index::IndexError;

/// Bytes over packed bytes, at most: lists of edges and tables have below 100, runs of one byte 1,000.
const RATIO_MAX: u64 = 200;
/// Bytes that any file may become.
const FREE_BYTES: u64 = 1 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const PARQUET: &[u8] = b"PAR1";

/// Why packed bytes stand for no text.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum PackedError {
    /// Bytes that cannot be decompressed.
    #[error("the compressed bytes end early or are broken: {0}")]
    Compressed(#[from] std::io::Error),
    /// Bytes that become more than tables ever do.
    #[error("the compressed bytes become more than {RATIO_MAX} times as many; write the file without compression")]
    Trap,
    /// Bytes that become more than is read whole.
    #[error("it is longer than {} MiB", .most >> 20)]
    TooLong { most: u64 },
    /// The program has no reader of Parquet.
    #[error(
        "it is a Parquet file, which this program was built without; build it with `--features parquet`, or write CSV, for example \
         `duckdb -c \"copy (from 'table.parquet') to 'table.csv'\"`"
    )]
    NoParquet,
    /// Bytes that are no table.
    #[error("the Parquet file is broken: {0}")]
    Parquet(String),
    /// Bytes that are no table.
    #[error("the Arrow file is broken: {0}")]
    Arrow(#[from] ArrowError),
    /// Bytes that are no index.
    #[error("the index of Megatron-LM is broken: {0}")]
    Index(#[from] IndexError),
}

/// What packed bytes may become.
#[derive(Clone, Copy)]
struct Limit {
    /// By what they are.
    packed: u64,
    /// By what is read.
    most: u64,
}

impl Limit {
    const fn of(n_packed: u64, most: u64) -> Self {
        Self { packed: n_packed.saturating_mul(RATIO_MAX).saturating_add(FREE_BYTES), most }
    }

    fn check(self, n: u64) -> Result<(), PackedError> {
        if n > self.most {
            return Err(PackedError::TooLong { most: self.most });
        }
        if n > self.packed { Err(PackedError::Trap) } else { Ok(()) }
    }

    fn read(self, packed: impl Read) -> Result<Vec<u8>, PackedError> {
        let mut out = Vec::new();
        packed.take(self.packed.min(self.most).saturating_add(1)).read_to_end(&mut out)?;
        self.check(out.len() as u64)?;
        Ok(out)
    }
}

/// Whether bytes that begin so are gzip, which is undone as it is read.
pub fn is_gzip(head: &[u8]) -> bool {
    head.starts_with(&GZIP)
}

/// Whether bytes that begin so are a table in Parquet or Arrow's format, or an index of Megatron-LM, which are read whole.
pub fn is_table(head: &[u8]) -> bool {
    head.starts_with(PARQUET) || is_arrow(head) || head.starts_with(index::MAGIC)
}

/// Text never begins as a stream does: no letter has the byte.
fn is_arrow(head: &[u8]) -> bool {
    head.starts_with(arrow::FILE) || head.starts_with(&arrow::STREAM)
}

/// A stream of gzip as the text it stands for, for files that are too long to read whole.
pub struct Unpacked<R> {
    decoder: MultiGzDecoder<Counted<R>>,
    n: u64,
}

impl<R: Read> Unpacked<R> {
    /// What a stream of gzip stands for.
    pub fn new(packed: R) -> Self {
        Self { decoder: MultiGzDecoder::new(Counted { packed, n: 0 }), n: 0 }
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.decoder.read(into)?;
        self.n += n as u64;
        let limit = Limit::of(self.decoder.get_ref().n, u64::MAX);
        limit.check(self.n).map_err(io::Error::other)?;
        Ok(n)
    }
}

/// A stream, and how many bytes were read of it.
struct Counted<R> {
    packed: R,
    n: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.packed.read(into)?;
        self.n += n as u64;
        Ok(n)
    }
}

/// The bytes that a file stands for, so many at the most.
///
/// # Errors
/// Why it stands for none.
pub fn plain(bytes: Vec<u8>, most: u64) -> Result<Vec<u8>, PackedError> {
    let limit = Limit::of(bytes.len() as u64, most);
    if is_gzip(&bytes) {
        return limit.read(MultiGzDecoder::new(&bytes[..]));
    }
    if bytes.starts_with(PARQUET) {
        return of_parquet(bytes, limit);
    }
    if is_arrow(&bytes) {
        return arrow::csv(&bytes, limit);
    }
    if bytes.starts_with(index::MAGIC) {
        let text = index::lines(&bytes)?;
        limit.check(text.len() as u64)?;
        return Ok(text);
    }
    limit.check(bytes.len() as u64)?;
    Ok(bytes)
}

/// A deflated part of an archive.
///
/// # Errors
/// Why it cannot be read.
pub fn inflated(bytes: &[u8]) -> Result<Vec<u8>, PackedError> {
    Limit::of(bytes.len() as u64, u64::MAX).read(DeflateDecoder::new(bytes))
}

#[cfg(any(test, feature = "parquet"))]
fn of_parquet(bytes: Vec<u8>, limit: Limit) -> Result<Vec<u8>, PackedError> {
    table::csv(bytes, limit)
}

#[cfg(not(any(test, feature = "parquet")))]
fn of_parquet(_: Vec<u8>, _: Limit) -> Result<Vec<u8>, PackedError> {
    Err(PackedError::NoParquet)
}

#[cfg(test)]
mod tests;
