//! Exchanges of tensor and expert groups around a pass: a share beside its computation, the rest behind it.

use hw::Rank;

use super::{Builder, Column, Content, Frame, MeetingKey};
use crate::layout::{ExpertSpan, Position};
use crate::lower::layer::{self, Ops};
use crate::problem::Problem;
use crate::schedule::PassKind;
use crate::stage::Stage;
use crate::task::{LaneId, Op, Role, TaskId};

/// What runs beside a pass and what follows it.
struct Exchanges {
    /// Behind computation.
    beside: Vec<(Role, Op, Vec<Rank>)>,
    /// After it, holding the lane back.
    after: Vec<(Role, Op, Vec<Rank>)>,
}

impl Builder<'_> {
    /// Starts the exchanges that run beside a pass; one entry per lane and exchange.
    pub(super) fn begin_exchanges(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        stage: &Stage,
        kind: PassKind,
    ) -> Vec<(LaneId, TaskId)> {
        let mut begun = Vec::new();
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let tail = self.tail(lane);
            for (role, op, members) in self.exchanges(frame, column, cp, stage, kind).beside {
                begun.push((lane, self.exchange_task(frame, lane, (role, op, &members), &tail)));
            }
        }
        begun
    }

    /// Puts the exchanges that a pass cannot hide behind it and holds the lanes back until all have ended.
    pub(super) fn end_exchanges(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        stage: &Stage,
        kind: PassKind,
        begun: Vec<(LaneId, TaskId)>,
    ) {
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let mut tail: Vec<TaskId> = self.last[lane.index()].into_iter().collect();
            for (role, op, members) in self.exchanges(frame, column, cp, stage, kind).after {
                tail = vec![self.exchange_task(frame, lane, (role, op, &members), &tail)];
                self.gate[lane.index()].extend_from_slice(&tail);
            }
        }
        for (lane, task) in begun {
            let last = self.last[lane.index()].expect("the pass has just computed");
            self.gate[lane.index()].extend([last, task]);
        }
    }

    fn exchange_task(
        &mut self,
        frame: &Frame<'_>,
        lane: LaneId,
        what: (Role, Op, &[Rank]),
        preds: &[TaskId],
    ) -> TaskId {
        let (role, op, members) = what;
        let op = self.op(op);
        let group = self.graph.add_group(members);
        let alone = role == Role::TensorExchange && self.lanes.n_tp == 1;
        let meeting = if alone {
            self.graph.add_meeting(group)
        } else {
            let part = self.next_part(lane, frame.position);
            self.meeting(MeetingKey { role, group, position: frame.position, part })
        };
        self.join(meeting, op, lane, role, frame.slot.micro_batch, preds)
    }

    /// Tensor and expert exchanges of one lane in a pass, split by the scenario's overlap.
    fn exchanges(&self, frame: &Frame<'_>, column: &Column, cp: usize, stage: &Stage, kind: PassKind) -> Exchanges {
        let (problem, overlap) = (self.problem, self.problem.execution.overlap);
        let position = problem.layout.position(column.ranks[cp]);
        let mut exchanges = Exchanges { beside: Vec::new(), after: Vec::new() };
        let mut add = |role: Role, ops: Ops, share: f64, members: Vec<Rank>| {
            let (beside, after) = split(ops, share);
            if !beside.is_empty() {
                exchanges.beside.push((role, Op::Sequence(beside), members.clone()));
            }
            if !after.is_empty() {
                exchanges.after.push((role, Op::Sequence(after), members));
            }
        };
        if problem.layout.tp > 1 {
            let members = tensor_group(problem, position);
            let shape = problem.cluster.shape_of(&members);
            let ops = layer::tensor_exchange(problem, stage, frame.content.shares[cp].tokens, kind, shape);
            add(Role::TensorExchange, ops, overlap.tensor, members);
        }
        if let (Some(span), true) = (problem.layout.expert_span(), problem.layout.ep > 1) {
            let members = expert_group(problem, position, span);
            let shape = problem.cluster.shape_of(&members);
            let tokens = self.most_tokens(position, span, frame.slot.micro_batch);
            let ops = layer::expert_exchange(problem, stage, tokens, kind, self.load, shape);
            add(Role::ExpertExchange, ops, overlap.expert, members);
        }
        exchanges
    }

    /// Most tokens that a rank of an expert group has in a micro-batch: its all-to-all takes as long as the fullest sender.
    fn most_tokens(&self, position: Position, span: ExpertSpan, micro_batch: u32) -> u64 {
        let first = position.dp / span.dp * span.dp;
        let of = |content: &Content| content.shares.iter().map(|share| share.tokens).max().unwrap_or(0);
        (first..first + span.dp)
            .filter_map(|dp| self.contents[dp as usize].get(micro_batch as usize))
            .map(of)
            .max()
            .unwrap_or(0)
    }
}

/// Splits repeated operations into a share and the rest, in whole repeats.
pub(super) fn split(ops: Ops, share: f64) -> (Ops, Ops) {
    let (mut part, mut rest) = (Vec::new(), Vec::new());
    for (op, n) in ops {
        let taken = u32::try_from(hw::Bytes::from_f64(f64::from(n) * share).0).expect("a share of a 32-bit count");
        if taken > 0 {
            part.push((op.clone(), taken));
        }
        if taken < n {
            rest.push((op, n - taken));
        }
    }
    (part, rest)
}

/// Ranks of a position's tensor group.
pub(super) fn tensor_group(problem: &Problem, position: Position) -> Vec<Rank> {
    (0..problem.layout.tp).map(|tp| problem.layout.rank(Position { tp, ..position })).collect()
}

/// Ranks of a position's expert group.
pub(super) fn expert_group(problem: &Problem, position: Position, span: ExpertSpan) -> Vec<Rank> {
    let layout = &problem.layout;
    let from = |at: u32, n: u32| at / n * n..at / n * n + n;
    let mut ranks = Vec::with_capacity(layout.ep as usize);
    for dp in from(position.dp, span.dp) {
        for cp in from(position.cp, span.cp) {
            ranks.extend(from(position.tp, span.tp).map(|tp| layout.rank(Position { tp, cp, dp, ..position })));
        }
    }
    ranks
}
