//! V-shaped schedules (arXiv:2405.15362): rank r has stages r and 2p − 1 − r, so the last stage feeds the loss on the rank of
//! the first and activations of early and late stages share memory. A building block says when a micro-batch's four passes
//! come on each rank; it repeats every 6 units (two chunks of forward, input, weight), which gives the order of passes, and
//! the list scheduler squeezes it and fills in the weights. A block's life time over its period is what it holds: p
//! micro-batches for ZB-V (as 1F1B, no bubble), ⌊(p + 2)/2⌋ for V-Half and ⌊(p + 4)/3⌋ for V-Min.

use super::greedy::{Rule, best, cap};
use super::{Order, PassKind, Pipeline, Placement, Schedule};

/// Zero bubble at 1F1B's memory.
pub const ZERO: Schedule = Schedule {
    name: "zb-v",
    about: "two chunks per rank in a V, split backward; no bubble at 1f1b's memory",
    source: "ZB-V, arXiv:2401.10241 section 6 and arXiv:2405.15362",
    placement: Placement::V,
    n_chunks: 2,
    splits_backward: true,
    order: |pipeline| order(pipeline, pipeline.n_ranks, &ZERO_LINES),
};

/// Half of 1F1B's memory.
pub const HALF: Schedule = Schedule {
    name: "v-half",
    about: "zb-v with half of 1f1b's memory and half of its bubble",
    source: "V-Half, arXiv:2405.15362",
    order: |pipeline| order(pipeline, (pipeline.n_ranks + 2) / 2, &HALF_LINES),
    ..ZERO
};

/// A third of 1F1B's memory.
pub const MIN: Schedule = Schedule {
    name: "v-min",
    about: "zb-v with a third of 1f1b's memory and two thirds of its bubble",
    source: "V-Min, arXiv:2405.15362",
    order: |pipeline| order(pipeline, (pipeline.n_ranks + 4) / 3, &MIN_LINES),
    ..ZERO
};

/// A building block, and the habits it is played with.
struct Line {
    /// Units between neighbouring ranks on the way of F0, F1, B1, B0.
    step: [i64; 4],
    /// Units of rest before F1, B1 and B0.
    rest: [i64; 3],
    /// See `Rule`.
    window: i64,
    eager_start: bool,
    patient: bool,
}

const fn line(step: [i64; 4], rest: [i64; 3], window: i64) -> Line {
    Line { step, rest, window, eager_start: false, patient: true }
}

// The few lines that, of 1 980 tried, were together within 0.6 % of the best one on each of 19 cases: 2 to 16 ranks, equal
// passes, unequal passes, transfers, ragged micro-batches.

static ZERO_LINES: [Line; 5] = [
    line([2, 4, 2, 4], [0, 0, 0], 6),
    Line { eager_start: true, ..line([2, 4, 2, 4], [0, 0, 0], 2) },
    Line { eager_start: true, ..line([1, 4, 2, 4], [0, 0, 0], 2) },
    line([2, 4, 2, 4], [0, 0, 0], -1),
    Line { eager_start: true, patient: false, ..line([1, 2, 1, 1], [0, 3, 0], 2) },
];

static HALF_LINES: [Line; 7] = [
    line([2, 1, 2, 1], [0, 3, 0], 3),
    line([2, 1, 2, 2], [1, 1, 1], 2),
    line([2, 2, 2, 1], [1, 1, 1], 2),
    Line { eager_start: true, patient: false, ..line([1, 2, 1, 1], [0, 3, 0], 2) },
    Line { patient: false, ..line([2, 1, 2, 2], [0, 3, 0], 3) },
    line([1, 1, 1, 2], [1, 1, 1], 6),
    line([2, 1, 2, 1], [1, 0, 0], 6),
];

static MIN_LINES: [Line; 7] = [
    line([1, 1, 1, 1], [0, 2, 0], 3),
    line([1, 1, 2, 1], [0, 0, 0], 6),
    line([1, 1, 1, 1], [0, 0, 0], 1),
    line([1, 1, 1, 2], [0, 0, 0], 6),
    line([1, 1, 2, 1], [0, 0, 0], 3),
    Line { patient: false, ..line([1, 1, 1, 2], [0, 0, 0], 3) },
    Line { eager_start: true, patient: false, ..line([1, 2, 1, 1], [0, 3, 0], 2) },
];

/// Units of a rank's work for one micro-batch: two chunks of forward, input, weight.
const PERIOD: i64 = 6;

impl Line {
    /// When a pass comes, units.
    fn at(&self, n_ranks: usize, rank: usize, kind: PassKind, chunk: usize, micro_batch: usize) -> i64 {
        let (up, down) = (rank as i64, (n_ranks - 1 - rank) as i64);
        let (leg, along) = match (kind, chunk) {
            (PassKind::Forward, 0) => (0, up),
            (PassKind::Forward, _) => (1, down),
            (_, 1) => (2, up),
            _ => (3, down),
        };
        let before = |leg: usize| self.step[leg] * (n_ranks as i64 - 1) + 1 + self.rest[leg];
        PERIOD * micro_batch as i64 + (0..leg).map(before).sum::<i64>() + self.step[leg] * along
    }
}

fn order(pipeline: &Pipeline, micro_batches: usize, lines: &[Line]) -> Order {
    let p = pipeline.n_ranks;
    let keys: Vec<_> = lines
        .iter()
        .map(|line| move |rank, kind, chunk, micro_batch| line.at(p, rank, kind, chunk, micro_batch))
        .collect();
    let rules = keys.iter().zip(lines).map(|(key, line)| Rule {
        key,
        window: line.window,
        eager_start: line.eager_start,
        patient: line.patient,
    });
    best(pipeline, &cap(pipeline, micro_batches), PassKind::Input, rules).order
}
