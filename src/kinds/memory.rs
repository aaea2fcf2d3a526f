//! Kind `memory`: what a step of changing sizes needs: order of operations, evictions and recompute by symbolic sizes.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "memory",
    about: "what a step of changing sizes needs: order of operations, evictions and recompute by symbolic sizes",
    read: |reader, source, folder, overrides| boxed(scenario::memory::read(reader, source, folder, overrides)),
};
