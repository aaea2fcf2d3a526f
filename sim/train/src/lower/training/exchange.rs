//! Exchanges of tensor and expert groups around a pass: a share beside its computation, the rest behind it.

use std::rc::Rc;

use hw::Rank;

use super::known::{Exchange, ExchangeKey};
use super::{Builder, Column, Content, Frame, MeetingKey};
use crate::layout::{ExpertSpan, Position};
use crate::problem::Problem;
use crate::schedule::PassKind;
use crate::stage::Stage;
use engine::layer;
use engine::task::Ops;
use engine::task::{LaneId, Op, Role, TaskId};

impl Builder<'_> {
    /// Starts the exchanges that run beside a pass; one entry per lane and exchange.
    pub(super) fn begin_exchanges(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        stage: &Stage,
        kind: PassKind,
    ) -> Vec<(LaneId, TaskId)> {
        let overlap = self.at(frame.pp).execution.overlap;
        let mut begun = Vec::new();
        if overlap.tensor == 0.0 && overlap.hidden_experts() == 0.0 {
            return begun;
        }
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let tail = self.tail(lane);
            for exchange in self.exchanges(frame, column, cp, stage, kind).iter().filter(|exchange| exchange.beside) {
                begun.push((lane, self.exchange_task(frame, lane, exchange, &tail)));
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
            for exchange in self.exchanges(frame, column, cp, stage, kind).iter().filter(|exchange| !exchange.beside) {
                tail = vec![self.exchange_task(frame, lane, exchange, &tail)];
                self.gate[lane.index()].extend_from_slice(&tail);
            }
        }
        self.await_all(begun);
    }

    /// The same where gradients of weights are still to come: the expert group's exchanges run beside them (Megatron-Core,
    /// `TransformerLayerSchedulePlan.run`: `dispatch_bwd` beside `mlp_bwd_dw`). Gives what a lane waits for behind them.
    pub(super) fn expert_exchanges_beside(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        stage: &Stage,
        kind: PassKind,
        mut begun: Vec<(LaneId, TaskId)>,
    ) -> Vec<(LaneId, TaskId)> {
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let mut tail: Vec<TaskId> = self.last[lane.index()].into_iter().collect();
            for exchange in self.exchanges(frame, column, cp, stage, kind).iter().filter(|exchange| !exchange.beside) {
                let task = self.exchange_task(frame, lane, exchange, &tail);
                tail = vec![task];
                match exchange.role {
                    Role::ExpertExchange => begun.push((lane, task)),
                    _ => self.gate[lane.index()].push(task),
                }
            }
        }
        begun
    }

    /// Holds lanes back until exchanges beside what they compute have ended.
    pub(super) fn await_all(&mut self, exchanges: Vec<(LaneId, TaskId)>) {
        for (lane, task) in exchanges {
            let last = self.last[lane.index()].expect("the pass has just computed");
            self.gate[lane.index()].extend([last, task]);
        }
    }

    fn exchange_task(&mut self, frame: &Frame<'_>, lane: LaneId, exchange: &Exchange, preds: &[TaskId]) -> TaskId {
        let Exchange { role, op, group, .. } = *exchange;
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
    fn exchanges(
        &mut self,
        frame: &Frame<'_>,
        column: &Column,
        cp: usize,
        stage: &Stage,
        kind: PassKind,
    ) -> Rc<[Exchange]> {
        let alone = self.at(frame.pp).layout.expert_span().is_none_or(|span| span.dp == 1);
        let micro_batch = if alone { 0 } else { frame.slot.micro_batch };
        let lane = column.lanes[cp];
        let key = ExchangeKey { lane, kind, stage: *stage, content: frame.content_id, micro_batch };
        if let Some(known) = self.exchanges.get(&key) {
            return Rc::clone(known);
        }
        let made: Rc<[Exchange]> = self.make_exchanges(frame, column.ranks[cp], cp, stage, kind).into();
        self.exchanges.insert(key, Rc::clone(&made));
        made
    }

    fn make_exchanges(
        &mut self,
        frame: &Frame<'_>,
        rank: Rank,
        cp: usize,
        stage: &Stage,
        kind: PassKind,
    ) -> Vec<Exchange> {
        let (problem, overlap) = (self.at(frame.pp), self.at(frame.pp).execution.overlap);
        let position = problem.position(rank);
        let mut exchanges = Vec::new();
        if problem.layout.tp > 1 {
            let members = tensor_group(problem, position);
            let shape = problem.cluster.shape_of(&members);
            let ops = layer::tensor_exchange(&problem.shard(), stage, frame.content.shares[cp].tokens, kind, shape);
            self.add_exchange(&mut exchanges, Role::TensorExchange, split(ops, overlap.tensor), &members);
        }
        if let (Some(span), true) = (problem.layout.expert_span(), problem.layout.ep > 1) {
            let members = expert_group(problem, position, span);
            let shape = problem.cluster.shape_of(&members);
            let tokens = self.most_tokens(position, span, frame.slot.micro_batch);
            let ops = layer::expert_exchange(&problem.shard(), stage, tokens, kind, self.load, shape);
            self.add_exchange(
                &mut exchanges,
                Role::ExpertExchange,
                split(ops, problem.hidden_expert_exchange()),
                &members,
            );
        }
        exchanges
    }

    fn add_exchange(&mut self, exchanges: &mut Vec<Exchange>, role: Role, ops: (Ops, Ops), members: &[Rank]) {
        for (ops, beside) in [(ops.0, true), (ops.1, false)] {
            if !ops.is_empty() {
                let (op, group) = (self.op(Op::Sequence(ops)), self.graph.add_group(members));
                exchanges.push(Exchange { role, op, group, beside });
            }
        }
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
        let taken = u32::try_from(hw::whole(f64::from(n) * share)).expect("a share of a 32-bit count");
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
pub(crate) fn tensor_group(problem: &Problem, position: Position) -> Vec<Rank> {
    (0..problem.layout.tp).map(|tp| problem.rank(Position { tp, ..position })).collect()
}

/// Ranks of a position's expert group.
pub(super) fn expert_group(problem: &Problem, position: Position, span: ExpertSpan) -> Vec<Rank> {
    let layout = &problem.layout;
    let from = |at: u32, n: u32| at / n * n..at / n * n + n;
    let mut ranks = Vec::with_capacity(layout.ep as usize);
    for dp in from(position.dp, span.dp) {
        for cp in from(position.cp, span.cp) {
            // Of ranks that cut an expert together, each is in a group of its own.
            let tps = from(position.tp / layout.expert_tp, span.tp)
                .map(|cut| cut * layout.expert_tp + position.tp % layout.expert_tp);
            ranks.extend(tps.map(|tp| problem.rank(Position { tp, cp, dp, ..position })));
        }
    }
    ranks
}
