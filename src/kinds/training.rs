//! Kind `training`: how fast is a training step: layouts, schedules and policies that place sequences, simulated from a profile.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "training",
    about: "how fast is a training step: layouts, schedules and policies that place sequences, simulated from a profile",
    read: |reader, source, folder, overrides| boxed(scenario::training::read(reader, source, folder, overrides)),
};
