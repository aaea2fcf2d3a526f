//! Arrays of NumPy: one in `.npy`, several in `.npz`, which is a zip archive of them (NumPy format 1.0 to 3.0; PKWARE APPNOTE 4.3).
//!
//! Whole numbers of 4 or 8 bytes in little-endian order, as `numpy.save` and `scipy.sparse.save_npz` write them.

use super::ReadError;
use crate::csr::{Csr, index};

/// An array of whole numbers, or the shape of one of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Sizes.
    pub shape: Vec<u64>,
    /// Numbers in rows; empty where they are not whole.
    pub numbers: Vec<u64>,
}

fn wrong(name: &str, why: impl Into<String>) -> ReadError {
    ReadError::Array { name: name.to_owned(), why: why.into() }
}

/// An array of a `.npy` file.
///
/// # Errors
/// When it is broken, or has another order or type.
pub fn array(name: &str, bytes: &[u8]) -> Result<Array, ReadError> {
    if !bytes.starts_with(b"\x93NUMPY") || bytes.len() < 12 {
        return Err(wrong(name, "does not begin as a file of `numpy.save` does"));
    }
    let (start, length) = match bytes[6] {
        1 => (10, u64::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
        _ => (12, u64::from(u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]))),
    };
    let end = start + index(length);
    let header = bytes.get(start..end).ok_or_else(|| wrong(name, "ends inside its header"))?;
    let header = String::from_utf8_lossy(header);
    if header.contains("'fortran_order': True") {
        return Err(wrong(name, "is in columns; write it with `numpy.ascontiguousarray`"));
    }
    let kind =
        between(&header, "'descr': '", "'").ok_or_else(|| wrong(name, "has no type of numbers in its header"))?;
    let sizes = between(&header, "'shape': (", ")").ok_or_else(|| wrong(name, "has no shape in its header"))?;
    let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape: Vec<u64> = sizes
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong(name, "has a shape that is no list of counts"))?;
    // Sizes that multiply to more than a file can hold are as wrong as a file that is cut off.
    let n = shape.iter().try_fold(1, |n: u64, size| n.checked_mul(*size)).unwrap_or(u64::MAX);
    Ok(Array { numbers: numbers(name, kind, &bytes[end..], n)?, shape })
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after)?.0)
}

fn numbers(name: &str, kind: &str, bytes: &[u8], n: u64) -> Result<Vec<u64>, ReadError> {
    let size = match kind {
        "<i8" | "<u8" => 8,
        "<i4" | "<u4" => 4,
        "<f4" | "<f2" | "<f8" | "|u1" | "|i1" | "|b1" => return Ok(Vec::new()),
        other => return Err(wrong(name, format!("has numbers of type `{other}`; write `<i8` or `<i4`"))),
    };
    if (bytes.len() as u64) < n.saturating_mul(size) {
        return Err(wrong(name, format!("has {} bytes for {n} numbers of {size}", bytes.len())));
    }
    let is_signed = kind.starts_with("<i");
    let mut found = Vec::with_capacity(index(n));
    for chunk in bytes.chunks_exact(index(size)).take(index(n)) {
        let mut wide = [0_u8; 8];
        wide[..chunk.len()].copy_from_slice(chunk);
        if is_signed && chunk[chunk.len() - 1] >= 0x80 {
            return Err(wrong(
                name,
                format!("has a negative number at position {}; ids are counted from 0", found.len()),
            ));
        }
        found.push(u64::from_le_bytes(wide));
    }
    Ok(found)
}

/// Rows of a graph from an archive with `indptr` and `indices`, as `scipy.sparse.save_npz` writes a matrix of kind `csr`.
///
/// # Errors
/// When a part is missing or broken, or the arrays are no graph.
pub fn rows(archive: &[u8]) -> Result<Csr, ReadError> {
    let part = |name: &str| -> Result<Vec<u64>, ReadError> {
        let file = format!("{name}.npy");
        Ok(array(name, &member(archive, &file)?)?.numbers)
    };
    let (offsets, neighbours) = (part("indptr")?, part("indices")?);
    let mut ids = Vec::with_capacity(neighbours.len());
    for (at, neighbour) in neighbours.into_iter().enumerate() {
        let id = u32::try_from(neighbour);
        ids.push(
            id.map_err(|_| wrong("indices", format!("has vertex {neighbour} at position {at}, ids are below 2^32")))?,
        );
    }
    Ok(Csr::from_parts(offsets, ids)?)
}

/// A file of a zip archive, stored or deflated.
fn member(archive: &[u8], name: &str) -> Result<Vec<u8>, ReadError> {
    const ENTRY: &[u8] = b"PK\x01\x02";
    const ENTRY_BYTES: usize = 46;
    let mut names = Vec::new();
    let mut at = directory(archive).ok_or_else(|| wrong(name, "the archive has no directory"))?;
    while archive.get(at..).is_some_and(|rest| rest.starts_with(ENTRY) && rest.len() >= ENTRY_BYTES) {
        let short = |offset: usize| usize::from(u16::from_le_bytes([archive[at + offset], archive[at + offset + 1]]));
        let long = |offset: usize| {
            archive[at + offset..at + offset + 4].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let own = archive.get(at + ENTRY_BYTES..at + ENTRY_BYTES + short(28)).unwrap_or_default();
        if own == name.as_bytes() {
            return unpacked(archive, name, (short(10), long(20), long(42)));
        }
        names.push(String::from_utf8_lossy(own).into_owned());
        at += ENTRY_BYTES + short(28) + short(30) + short(32);
    }
    Err(wrong(name, format!("is not in the archive, which has {}", names.join(", "))))
}

/// Where the directory of an archive begins: its end says so.
fn directory(archive: &[u8]) -> Option<usize> {
    let end = archive.windows(4).rposition(|window| window == b"PK\x05\x06")?;
    let field = archive.get(end + 16..end + 20)?;
    let at = field.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    (at < archive.len()).then_some(at)
}

fn unpacked(archive: &[u8], name: &str, (method, size, start): (usize, usize, usize)) -> Result<Vec<u8>, ReadError> {
    let broken =
        || wrong(name, "lies outside the archive; archives above 4 GiB are not read: save the arrays by themselves");
    let head = archive.get(start..start + 30).ok_or_else(broken)?;
    let short = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let first = start + 30 + short(26) + short(28);
    let packed = archive.get(first..first + size).ok_or_else(broken)?;
    match method {
        0 => Ok(packed.to_vec()),
        8 => Ok(packed::inflated(packed)?),
        other => {
            Err(wrong(name, format!("is packed by method {other}; write it with `numpy.savez` or `savez_compressed`")))
        }
    }
}

/// Numbers of a feature from the header of a features file, for so many vertices.
///
/// # Errors
/// When the file has another number of rows, or is no table.
pub fn width(name: &str, bytes: &[u8], n_vertices: u64) -> Result<u64, ReadError> {
    let shape = array(name, bytes)?.shape;
    match shape[..] {
        [rows, width] if rows == n_vertices => Ok(width),
        [rows, _] => Err(wrong(name, format!("has features of {rows} vertices, the graph has {n_vertices}"))),
        _ => Err(wrong(name, format!("has {} sizes; features are a table of vertices by numbers", shape.len()))),
    }
}
