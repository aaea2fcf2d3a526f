//! Kind `phases`: whether prefill and decode go to different groups of a mixed pool, and which.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "phases",
    about: "whether prefill and decode go to different groups of a mixed pool, and which",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
