//! Operations that were lowered before: a step repeats few different passes many times.

use super::{Builder, Frame};
use crate::schedule::PassKind;
use crate::stage::Stage;
use engine::layer::Accumulation;
use engine::task::Ops;
use engine::task::{GroupId, LaneId, Op, OpId, Role};

/// Part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// What comes before the first exchange.
    Lead,
    /// The same with the embedding.
    LeadWithEmbedding,
    /// What follows it.
    Rest,
    /// The head.
    Head,
    /// What selective recompute makes again.
    Again,
}

/// What an operation of a pass depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpKey {
    part: Part,
    kind: PassKind,
    stage: Stage,
    degree: u32,
    content: u32,
    cp: u32,
    accumulation: Accumulation,
}

impl OpKey {
    pub(super) fn new(part: Part, kind: PassKind, stage: &Stage, frame: &Frame<'_>, cp: usize) -> Self {
        let cp = u32::try_from(cp).expect("ranks fit u32");
        // What becomes of gradients is nothing to a forward.
        let accumulation = if kind == PassKind::Forward { Accumulation::Reduced } else { frame.accumulation };
        Self { part, kind, stage: *stage, degree: frame.degree, content: frame.content_id, cp, accumulation }
    }
}

/// What the exchanges of a lane in a pass depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExchangeKey {
    pub(super) lane: LaneId,
    pub(super) kind: PassKind,
    pub(super) stage: Stage,
    pub(super) content: u32,
    /// Micro-batch, where other groups' tokens count.
    pub(super) micro_batch: u32,
}

/// One exchange of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) role: Role,
    pub(super) op: OpId,
    pub(super) group: GroupId,
    /// Whether it runs beside the pass's computation.
    pub(super) beside: bool,
}

impl Builder<'_> {
    /// The operation of a key, made at first use.
    pub(super) fn known_op(&mut self, key: OpKey, make: impl FnOnce(&Self) -> Ops) -> OpId {
        if let Some(&op) = self.known.get(&key) {
            return op;
        }
        let ops = make(self);
        let op = self.op(Op::Sequence(ops));
        self.known.insert(key, op);
        op
    }
}
