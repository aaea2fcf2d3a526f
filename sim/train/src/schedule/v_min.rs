//! V-Min (arXiv:2405.15362): a third of 1F1B's memory, ⌊(p + 4)/3⌋ micro-batches, and about two thirds of its bubble.

use super::Schedule;
use super::greedy::Patience;
use super::v_shape::{self, BASE, Line, line};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "v-min",
    about: "zb-v with a third of 1f1b's memory and two thirds of its bubble",
    source: "V-Min, arXiv:2405.15362",
    order: |pipeline| v_shape::order(pipeline, (pipeline.n_ranks + 4) / 3, &LINES),
    ..BASE
};

// The few lines that, of 1 980 tried, were together within 0.6 % of the best one on each of 19 cases: 2 to 16 ranks, equal
// passes, unequal passes, transfers, ragged micro-batches.
static LINES: [Line; 7] = [
    line([1, 1, 1, 1], [0, 2, 0], 3),
    line([1, 1, 2, 1], [0, 0, 0], 6),
    line([1, 1, 1, 1], [0, 0, 0], 1),
    line([1, 1, 1, 2], [0, 0, 0], 6),
    line([1, 1, 2, 1], [0, 0, 0], 3),
    Line { patience: Patience::Never, ..line([1, 1, 1, 2], [0, 0, 0], 3) },
    Line { eager_start: true, patience: Patience::Never, ..line([1, 2, 1, 1], [0, 3, 0], 2) },
];
