//! What the Zero Bubble schedules on one stage per rank share (arXiv:2401.10241): the backward pass is split, the gradients of inputs go first
//! and those of weights fill the bubble. ZB-H1 ("zb-1p") holds at most 1F1B's p micro-batches and idles p − 1 passes of equal
//! length, a third of 1F1B's; ZB-H2 ("zb-2p") holds up to 2p − 1 and leaves no bubble on any rank. Where an input pass frees memory, more
//! weight passes wait, and "zb-2p" is the authors' ZB-2p.

use super::greedy::{Key, Patience, Rule, best, cap};
use super::{Order, PassKind, Pipeline, Placement, Schedule};

/// What both schedules are; each names itself and its order.
pub(super) const BASE: Schedule = Schedule {
    name: "",
    about: "",
    source: "",
    placement: Placement::Linear,
    n_chunks: 1,
    splits_backward: true,
    order: |_| Order::new(),
};

/// Order within `micro_batches` of memory.
pub(super) fn order(pipeline: &Pipeline, micro_batches: usize) -> Order {
    let backward_first = |_, kind, _, _| i64::from(kind == PassKind::Forward);
    // 1F1B's turns, with as many forwards ahead as follow from one or two stage passes per stage behind this one.
    let in_turn = [1, 2].map(|behind| {
        move |rank: usize, kind, _, micro_batch: usize| match kind {
            PassKind::Forward => 2 * micro_batch as i64,
            _ => 2 * (micro_batch + behind * (pipeline.n_ranks - 1 - rank)) as i64 + 1,
        }
    });
    let rule = |key, window, patience| Rule { key, window, eager_start: false, patience };
    let rules = [
        rule(&in_turn[0] as &Key<'_>, -1, Patience::Never),
        rule(&in_turn[0], -1, Patience::Slack),
        rule(&in_turn[0], 2, Patience::Slack),
        rule(&in_turn[1], -1, Patience::Never),
        rule(&in_turn[1], -1, Patience::Slack),
        rule(&in_turn[1], 2, Patience::Slack),
        rule(&backward_first, i64::MAX, Patience::Never),
        rule(&backward_first, i64::MAX, Patience::Slack),
    ];
    best(pipeline, &cap(pipeline, micro_batches), PassKind::Input, rules).order
}
