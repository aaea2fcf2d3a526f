//! What the V-shaped schedules share (arXiv:2405.15362): rank r has stages r and 2p − 1 − r, so the last stage feeds the loss on the rank of
//! the first and activations of early and late stages share memory. A building block says when a micro-batch's four passes
//! come on each rank; it repeats every 6 units (two chunks of forward, input, weight), which gives the order of passes, and
//! the list scheduler squeezes it and fills in the weights. A block's life time over its period is what it holds: p
//! micro-batches for ZB-V (as 1F1B, no bubble), ⌊(p + 2)/2⌋ for V-Half and ⌊(p + 4)/3⌋ for V-Min.

use super::greedy::{Patience, Rule, best, cap};
use super::{Order, PassKind, Pipeline, Placement, Schedule};

/// What all V-shaped schedules are; each names itself and its order.
pub(super) const BASE: Schedule = Schedule {
    name: "",
    about: "",
    source: "",
    placement: Placement::V,
    n_chunks: 2,
    splits_backward: true,
    order: |_| Order::new(),
};

/// A building block, and the habits it is played with.
pub(super) struct Line {
    /// Units between neighbouring ranks on the way of F0, F1, B1, B0.
    pub(super) step: [i64; 4],
    /// Units of rest before F1, B1 and B0.
    pub(super) rest: [i64; 3],
    /// See `Rule`.
    pub(super) window: i64,
    pub(super) eager_start: bool,
    pub(super) patience: Patience,
}

pub(super) const fn line(step: [i64; 4], rest: [i64; 3], window: i64) -> Line {
    Line { step, rest, window, eager_start: false, patience: Patience::Half }
}

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

/// Order by the best of the lines within `micro_batches` of memory.
pub(super) fn order(pipeline: &Pipeline, micro_batches: usize, lines: &[Line]) -> Order {
    let p = pipeline.n_ranks;
    let keys: Vec<_> = lines
        .iter()
        .map(|line| move |rank, kind, chunk, micro_batch| line.at(p, rank, kind, chunk, micro_batch))
        .collect();
    let rules = keys.iter().zip(lines).map(|(key, line)| Rule {
        key,
        window: line.window,
        eager_start: line.eager_start,
        patience: line.patience,
    });
    best(pipeline, &cap(pipeline, micro_batches), PassKind::Input, rules).order
}
