//! The index of a tokenised data set of Megatron-LM (`.idx`) as text: the tokens of each sequence, a line each.
//!
//! Source: NVIDIA/Megatron-LM, `megatron/core/datasets/indexed_dataset.py` (BSD-3-Clause), version 1: a mark, the version, the type of a token, how many
//! sequences and documents there are, then four bytes of tokens for each sequence and eight for its place in the `.bin`. All numbers are little-endian.
//! Invariant: the file is at least as long as its counts say before any is used.

use std::fmt::Write;

use thiserror::Error;

/// How an index begins.
pub const MAGIC: &[u8] = b"MMIDIDX\0\0";
/// Bytes of the head: mark, version, type, and two counts.
const HEAD_BYTES: usize = 9 + 8 + 1 + 8 + 8;

/// Why bytes are no index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum IndexError {
    /// It ends in its head.
    #[error("it ends within its head")]
    Head,
    /// Another version.
    #[error("it has version {0}, and version 1 is known")]
    Version(u64),
    /// It ends before its last sequence.
    #[error("it promises {n_sequences} sequences and {n_documents} documents, and is too short for them")]
    Short { n_sequences: u64, n_documents: u64 },
    /// A sequence with fewer than no tokens.
    #[error("sequence {at} has {tokens} tokens")]
    Negative { at: usize, tokens: i32 },
}

/// A number of eight bytes.
fn count(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The text of an index.
pub fn lines(bytes: &[u8]) -> Result<Vec<u8>, IndexError> {
    let version = count(bytes, MAGIC.len()).ok_or(IndexError::Head)?;
    if version != 1 {
        return Err(IndexError::Version(version));
    }
    let at = MAGIC.len() + 9;
    let (n_sequences, n_documents) = count(bytes, at).zip(count(bytes, at + 8)).ok_or(IndexError::Head)?;
    let short = IndexError::Short { n_sequences, n_documents };
    // Tokens and places of sequences, and first sequences of documents.
    let needed = n_sequences.checked_mul(12).and_then(|n| n.checked_add(n_documents.checked_mul(8)?));
    let there = (bytes.len() - HEAD_BYTES) as u64;
    if needed.is_none_or(|needed| needed > there) {
        return Err(short);
    }
    let end = usize::try_from(n_sequences).map_err(|_| short)? * 4 + HEAD_BYTES;
    let mut text = String::new();
    for (at, tokens) in bytes[HEAD_BYTES..end].chunks_exact(4).enumerate() {
        let tokens = i32::from_le_bytes(tokens.try_into().expect("four bytes"));
        if tokens < 0 {
            return Err(IndexError::Negative { at, tokens });
        }
        writeln!(text, "{tokens}").expect("text takes everything");
    }
    Ok(text.into_bytes())
}
