//! Kind `deployment`: what to rent or which of the GPUs that are there to use, how models lie on them, and who serves what.
//!
//! One `[inventory]`, one `[objective]`, policies by paper. Work is to end soonest within a budget (`time`) or within a deadline for the fewest dollars (`dollars`), most requests are to be served
//! within limits (`goodput`), or most tokens are to pass (`throughput`). A file under `run/` for each.

pub mod run;

use scenario::deployment::Asked;

use super::{Card, boxed};

/// Its row of the table of kinds.
pub static CARD: Card = Card {
    name: "deployment",
    about: "which GPUs to rent or use, how models lie on them, and who serves what: soonest, within limits, or most tokens",
    read: |reader, source, folder, overrides| match scenario::deployment::read(reader, source, folder, overrides)? {
        Asked::Rent(asked) => boxed(Some(*asked)),
        Asked::Goodput(asked) => boxed(Some(*asked)),
        Asked::Throughput(asked) => boxed(Some(*asked)),
    },
};
