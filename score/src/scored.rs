//! Rows of a table with what became of them.

use rayon::prelude::*;

/// A row with what became of it.
#[derive(Clone, Debug)]
pub struct Scored<R, P, Y> {
    /// The row.
    pub row: R,
    /// Its prediction, or why there is none.
    pub outcome: Result<P, Y>,
}

/// Predicts rows in parallel; `done` is called as each one ends.
pub(crate) fn scored<R: Send, P: Send, Y: Send>(
    rows: Vec<R>,
    predict: impl Fn(&R) -> Result<P, Y> + Sync,
    done: &(dyn Fn() + Sync),
) -> Vec<Scored<R, P, Y>> {
    let of = |row: R| {
        let outcome = predict(&row);
        done();
        Scored { row, outcome }
    };
    rows.into_par_iter().map(of).collect()
}

/// Why rows have no prediction.
pub(crate) fn reasons<R, P, Y>(rows: &[Scored<R, P, Y>]) -> impl Iterator<Item = &Y> {
    rows.iter().filter_map(|scored| scored.outcome.as_ref().err())
}
