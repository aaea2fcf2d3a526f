//! `result.json`: stable keys in the order of the fields, units in the names, finite figures only.
//!
//! A figure that is NaN or infinite is absent (see the serde attributes of `RunResult`).

use serde::de::Error as _;

use crate::{RunResult, SCHEMA};

/// Renders with a final line feed.
///
/// # Errors
/// Never for a `RunResult`; the type leaves the choice to the caller.
pub fn render(run: &RunResult) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(run)?;
    text.push('\n');
    Ok(text)
}

/// Reads what `render` wrote.
///
/// # Errors
/// When the text is not JSON, a key is missing or the schema is another one.
pub fn parse(text: &str) -> Result<RunResult, serde_json::Error> {
    let run: RunResult = serde_json::from_str(text)?;
    if run.schema == SCHEMA {
        Ok(run)
    } else {
        Err(serde_json::Error::custom(format!("schema `{}` is not known, allowed here: `{SCHEMA}`", run.schema)))
    }
}
