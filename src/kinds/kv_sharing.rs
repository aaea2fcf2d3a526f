//! Kind `kv-sharing`: what do instances gain that lend each other memory for keys and values.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "kv-sharing",
    about: "what do instances gain that lend each other memory for keys and values",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
