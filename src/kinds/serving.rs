//! Kind `serving`: what do clients of an engine and a fleet see: latencies, goodput, dollars.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "serving",
    about: "what do clients of an engine and a fleet see: latencies, goodput, dollars",
    read: |reader, source, folder, overrides| boxed(scenario::serving::read(reader, source, folder, overrides)),
};
