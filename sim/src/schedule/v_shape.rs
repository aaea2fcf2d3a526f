//! V-shaped schedules (arXiv:2405.15362): rank r has stages r and 2p − 1 − r, so the last stage feeds the loss on the rank of the
//! first and activations of early and late stages share memory. A building block says when a micro-batch's four passes come on
//! each rank; it repeats every 6 units (two chunks of forward, input, weight), which gives the order of passes, and the list
//! scheduler squeezes it and fills in the weights. The block's life time is what the schedule holds: at least p micro-batches for
//! ZB-V (as 1F1B, no bubble), ⌊(p + 2)/2⌋ for V-Half and ⌊(p + 4)/3⌋ for V-Min.

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
    order: |pipeline| order(pipeline, pipeline.n_ranks),
};

/// Half of 1F1B's memory.
pub const HALF: Schedule = Schedule {
    name: "v-half",
    about: "zb-v with half of 1f1b's memory and half of its bubble",
    source: "V-Half, arXiv:2405.15362",
    order: |pipeline| order(pipeline, (pipeline.n_ranks + 2) / 2),
    ..ZERO
};

/// A third of 1F1B's memory.
pub const MIN: Schedule = Schedule {
    name: "v-min",
    about: "zb-v with a third of 1f1b's memory and two thirds of its bubble",
    source: "V-Min, arXiv:2405.15362",
    order: |pipeline| order(pipeline, (pipeline.n_ranks + 4) / 3),
    ..ZERO
};

/// When a block's passes come: units between neighbouring ranks on the way of F0, F1, B1, B0, and rests before F1, B1 and B0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub step: [i64; 4],
    pub rest: [i64; 3],
}

impl Block {
    /// Units from the block's start to a pass.
    fn at(self, n_ranks: usize, rank: usize, kind: PassKind, chunk: usize) -> i64 {
        let (p, rank) = (n_ranks as i64, rank as i64);
        let [down, up, down_again, up_again] = self.step;
        let turn = |turns: usize| -> i64 {
            let legs: i64 = self.step[..turns].iter().map(|step| step * (p - 1) + 1).sum();
            legs + self.rest[..turns].iter().sum::<i64>()
        };
        match (kind, chunk) {
            (PassKind::Forward, 0) => down * rank,
            (PassKind::Forward, _) => turn(1) + up * (p - 1 - rank),
            (_, 1) => turn(2) + down_again * rank,
            _ => turn(3) + up_again * (p - 1 - rank),
        }
    }
}

const PERIOD: i64 = 6;

fn order(pipeline: &Pipeline, micro_batches: usize) -> Order {
    let p = pipeline.n_ranks as i64;
    let cap = cap(pipeline, micro_batches);
    let blocks = [
        Block { step: [1, 1, 1, 1], rest: [0, if p % 3 == 0 { 2 } else { 0 }, 0] },
        Block { step: [2, 1, 2, 1], rest: [0, if p % 2 == 0 { 3 } else { 0 }, 0] },
        Block { step: [4, 2, 4, 2], rest: [0, 0, 0] },
    ];
    let keys = blocks.map(|block| {
        move |rank, kind, chunk, micro_batch: usize| {
            PERIOD * micro_batch as i64 + block.at(pipeline.n_ranks, rank, kind, chunk)
        }
    });
    let rules = keys.iter().flat_map(|key| {
        [(true, false), (false, false)].map(|(strict, patient)| Rule { key, strict, patient })
    });
    best(pipeline, &cap, PassKind::Input, rules).order
}

#[cfg(test)]
mod explore {
    use super::*;
    #[test]
    fn explore_blocks() {
        for (name, cap_of) in [("zb-v", (|p| p) as fn(usize) -> usize), ("v-half", |p| (p + 2) / 2), ("v-min", |p| (p + 4) / 3)] {
            for (p, m) in [(3,9),(4, 12), (5,15),(6, 18), (8, 24)] {
                let pipeline = Pipeline::equal(p, &ZERO, m, [1, 1, 1]);
                let cap = cap(&pipeline, cap_of(p));
                let mut found = Vec::new();
                for code in 0..4_i64.pow(4) {
                    let step = [code % 4 + 1, code / 4 % 4 + 1, code / 16 % 4 + 1, code / 64 + 1];
                    for rest in [[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 3, 0], [0, 4, 0], [1, 0, 0], [0, 0, 1], [1, 1, 1], [2,0,0],[0,0,2]] {
                        let block = Block { step, rest };
                        let key = |rank, kind, chunk, micro_batch: usize| PERIOD * micro_batch as i64 + block.at(p, rank, kind, chunk);
                        for strict in [0, 1] {
                            let drawn = best(&pipeline, &cap, PassKind::Input, [Rule { key: &key, strict: strict==1, patient: false }]);
                            found.push((drawn.rank_span - 6 * m as u64, drawn.span - 6 * m as u64, strict, step, rest));
                        }
                    }
                }
                found.sort();
                println!("{name} {p} {m}: {:?}", &found[..6]);
                found.sort_by_key(|f| (f.1, f.0));
                println!("      by span: {:?}", &found[..6]);
            }
        }
    }
}
