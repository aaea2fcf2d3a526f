//! Kind `curriculum`: which facts to fine-tune on in which stage, with how much replay, and what classifying them costs.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "curriculum",
    about: "which facts to fine-tune on in which stage, with how much replay, and what classifying them costs",
    read: |reader, source, folder, overrides| boxed(scenario::curriculum::read(reader, source, folder, overrides)),
};
