//! ZB-H1 (arXiv:2401.10241): 1F1B's memory, p micro-batches, and a third of its idle time for equal passes.

use super::Schedule;
use super::zero_bubble::{self, BASE};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "zb-1p",
    about: "backward split in two, weight gradients fill the bubble; holds as much as 1f1b",
    source: "Zero Bubble (ZB-H1), arXiv:2401.10241",
    order: |pipeline| zero_bubble::order(pipeline, pipeline.n_ranks),
    ..BASE
};
