//! Kind `pool`: which layers of one model go to which nodes of a mixed pool, and how requests travel through them.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "pool",
    about: "which layers of one model go to which nodes of a mixed pool, and how requests travel through them",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
