//! Kind `multi-task`: how do tasks that share parts of a model train together: who runs where and when in an iteration.

pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "multi-task",
    about: "how do tasks that share parts of a model train together: who runs where and when in an iteration",
    read: |reader, source, folder, overrides| boxed(scenario::multi_task::read(reader, source, folder, overrides)),
};
