//! Kind `rl`: how long does a step of reinforcement learning take, generation, log probabilities, training and weights together.

pub mod run;
mod sides;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "rl",
    about: "how long does a step of reinforcement learning take: generation, log probabilities, training, weights",
    read: |reader, source, folder, overrides| boxed(scenario::rl::read(reader, source, folder, overrides)),
};
