//! Kind `rental`: which GPUs to rent within a budget, how to deploy them, and who serves what, so that work ends soonest.

pub mod read;
pub mod run;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "rental",
    about: "which GPUs to rent within a budget, how to deploy them, and who serves what, so that work ends soonest",
    read: |reader, source, folder, overrides| boxed(read::read(reader, source, folder, overrides)),
};
