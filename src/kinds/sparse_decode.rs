//! Kind `sparse-decode`: what do sparse weights gain: GPUs, batch and tokens per second and GPU.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "sparse-decode",
    about: "what do sparse weights gain: GPUs, batch and tokens per second and GPU",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
