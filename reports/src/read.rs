//! `result.json`, read back: its form, and what a file can get wrong beyond its form.

use thiserror::Error;

use crate::{RunResult, SCHEMA};

/// Why a text is no result that can be compared.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum WrongResult {
    /// It is not written like one.
    #[error("is no result of a run: {0}")]
    Form(#[from] serde_json::Error),
    /// It is written like another one.
    #[error("has schema `{found}`, expected `{SCHEMA}`")]
    Schema { found: String },
    /// Two rows of one name.
    #[error("has policy `{policy}` twice")]
    Twice { policy: String },
    /// No row.
    #[error("has no policy")]
    Empty,
}

/// A result of a run.
///
/// # Errors
/// Why it is none; the name of the file stands before.
pub fn result(text: &str) -> Result<RunResult, WrongResult> {
    let run: RunResult = serde_json::from_str(text)?;
    if run.schema != SCHEMA {
        return Err(WrongResult::Schema { found: run.schema });
    }
    for (index, row) in run.results.iter().enumerate() {
        let policy = &row.policy;
        if run.results[..index].iter().any(|other| other.policy == *policy) {
            return Err(WrongResult::Twice { policy: policy.clone() });
        }
    }
    if run.results.is_empty() {
        return Err(WrongResult::Empty);
    }
    Ok(run)
}
