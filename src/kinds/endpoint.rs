//! Kind `endpoint`: mean latencies of endpoints at a held concurrency, from coefficients of published runs.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "endpoint",
    about: "mean latencies of endpoints at a held concurrency, from coefficients of published runs",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
