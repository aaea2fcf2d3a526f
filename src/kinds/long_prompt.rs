//! Kind `long-prompt`: how soon does a very long prompt get its first token: chunks, pipeline, sparse attention.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "long-prompt",
    about: "how soon does a very long prompt get its first token: chunks, pipeline, sparse attention",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
