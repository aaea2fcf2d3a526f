//! How a result is shown: as steps of training, as requests served, or by the columns that it names itself.

use crate::RunResult;

/// A way to show a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// Steps of training: time, bubble, exposed communication, memory.
    Steps,
    /// Requests served: latencies, rates, limits.
    Requests,
    /// What the result says itself.
    Columns,
}

/// The view of a result: by its own columns where it has some, else by its kind.
pub(crate) fn of(run: &RunResult) -> View {
    match run.kind.as_str() {
        _ if !run.columns.is_empty() => View::Columns,
        "serving" => View::Requests,
        _ => View::Steps,
    }
}
