//! DualPipe (DeepSeek-V3, arXiv:2412.19437 section 3.2.1): every rank holds one stage of each of two copies of the model, and
//! micro-batches enter from both ends. At most p + 1 stage activations are held. The paper's bubble for even p is
//! (p/2 − 1)(F + B + B − 3W) with whole backwards B, which is p − 2 units for F = I = W = 1; with the backward split
//! throughout, the list scheduler idles p/2 − 1. A split is undone where nobody waits for the first half.

use super::greedy::{Patience, Rule, best, cap};
use super::{Order, PassKind, Pipeline, Placement, Schedule, play};

/// The schedule.
pub const SCHEDULE: Schedule = Schedule {
    name: "dualpipe",
    about: "micro-batches enter from both ends of two model copies; small bubble, one stage activation more than 1f1b",
    source: "DualPipe, DeepSeek-V3, arXiv:2412.19437 section 3.2.1",
    placement: Placement::Bidirectional,
    n_chunks: 2,
    splits_backward: true,
    order,
};

/// When passes come, as `v_shape` has it: units between neighbouring stages forward and backward, rest between, and habits.
struct Line {
    step: [i64; 2],
    rest: i64,
    window: i64,
    eager_start: bool,
    patience: Patience,
}

const fn line(step: [i64; 2], rest: i64, window: i64, patience: Patience) -> Line {
    Line { step, rest, window, eager_start: false, patience }
}

// Chosen like the lines of `v_shape`, of 864.
static LINES: [Line; 7] = [
    line([4, 2], 0, 6, Patience::Half),
    Line { eager_start: true, ..line([3, 3], 2, 2, Patience::Half) },
    line([4, 4], 0, 6, Patience::Never),
    line([3, 4], 0, 6, Patience::Never),
    Line { eager_start: true, ..line([2, 4], 0, 2, Patience::Never) },
    line([4, 2], 0, 1, Patience::Never),
    line([3, 3], 4, 3, Patience::Half),
];

/// Units of a rank's work for one micro-batch of each direction.
const PERIOD: i64 = 6;

/// The paper has even counts alone. An odd number of micro-batches may end later in an order of its own than in that of one more, so the latter is played too.
fn order(pipeline: &Pipeline) -> Order {
    let own = drawn(pipeline);
    if pipeline.n_micro_batches.is_multiple_of(2) {
        return own;
    }
    let mut of_more = drawn(&with_one_more(pipeline));
    of_more.iter_mut().for_each(|slots| slots.retain(|slot| (slot.micro_batch as usize) < pipeline.n_micro_batches));
    let span = |order: &Order| play(pipeline, order).expect("fewer passes wait for each other no more").span;
    if span(&of_more) < span(&own) { of_more } else { own }
}

/// The same with one micro-batch more, which is as the last one that goes the same way.
fn with_one_more(pipeline: &Pipeline) -> Pipeline {
    let mut more = pipeline.clone();
    let like = pipeline.n_micro_batches.saturating_sub(2);
    more.n_micro_batches += 1;
    let grids = [&mut more.forward, &mut more.input, &mut more.weight, &mut more.transfer];
    let memory = [&mut more.activation, &mut more.for_weights];
    grids.into_iter().chain(memory).flatten().for_each(|row| row.push(row[like]));
    more.joint.iter_mut().for_each(|row| row.push(row[like]));
    more.logits.push(more.logits[like]);
    more
}

fn drawn(pipeline: &Pipeline) -> Order {
    let last = pipeline.n_ranks as i64 - 1;
    let keys: Vec<_> = LINES
        .iter()
        .map(|line| {
            move |rank, kind, chunk, micro_batch: usize| {
                let stage = pipeline.stage(rank, chunk) as i64;
                let at = match kind {
                    PassKind::Forward => line.step[0] * stage,
                    _ => line.step[0] * last + 1 + line.rest + line.step[1] * (last - stage),
                };
                PERIOD * (micro_batch / 2) as i64 + at
            }
        })
        .collect();
    let rules = keys.iter().zip(&LINES).map(|(key, line)| Rule {
        key,
        window: line.window,
        eager_start: line.eager_start,
        patience: line.patience,
    });
    best(pipeline, &cap(pipeline, pipeline.n_ranks + 1), PassKind::Input, rules).merged(pipeline)
}
