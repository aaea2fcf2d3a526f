//! ZB-H2 (arXiv:2401.10241): up to 2p − 1 micro-batches, and no bubble on any rank for equal passes.

use super::Schedule;
use super::zero_bubble::{self, BASE};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "zb-2p",
    about: "zb-1p with twice the memory of 1f1b and no bubble",
    source: "Zero Bubble (ZB-H2), arXiv:2401.10241",
    order: |pipeline| zero_bubble::order(pipeline, 2 * pipeline.n_ranks - 1),
    ..BASE
};
