//! Kind `training`: how fast is a training step: layouts, schedules and policies that place sequences, simulated from a profile. With `[[group]]` the
//! cards are of several types (`mixed_training/`).

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "training",
    about: "how fast is a training step: layouts, schedules and policies that place sequences, simulated from a profile",
    read: |reader, source, folder, overrides| match reader.has("group") || reader.has("stage") {
        true => boxed(scenario::mixed_training::read(reader, source, folder, overrides)),
        false => boxed(scenario::training::read(reader, source, folder, overrides)),
    },
};
