//! Kind `mixed-training`: how fast does a model train on GPUs of several types, and what lies where.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "mixed-training",
    about: "how fast does a model train on GPUs of several types, in one place or in several, and which stage lies where",
    read: |reader, source, folder, overrides| boxed(scenario::mixed_training::read(reader, source, folder, overrides)),
};
