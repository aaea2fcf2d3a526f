//! Messages from a slot to the stage after it (before it, in backward): they leave on a stream of their own.

use crate::problem::Problem;
use hw::Rank;

use super::{Builder, Column, Frame};
use crate::layout::Position;
use crate::schedule::{Pipeline, Slot};
use engine::task::{Collective, GroupId, LaneId, MeetingId, Op, OpId, Role, Stream, Task, TaskId};

impl Builder<'_> {
    /// Messages to the next rank, one per lane; what follows waits for the lane's tail where nothing is sent.
    pub(super) fn send(&mut self, frame: &Frame<'_>, column: &Column, next: Option<u32>) -> Vec<TaskId> {
        let mut arrivals = Vec::with_capacity(column.lanes.len());
        for (cp, &lane) in column.lanes.iter().enumerate() {
            let tail = self.tail(lane);
            let tokens = frame.content.shares[cp].tokens;
            let Some((op, meeting)) =
                next.and_then(|to| self.carried(self.at(frame.pp), lane, column.ranks[cp], to, tokens))
            else {
                // Nothing takes time between the stages: what follows waits for the last computation.
                arrivals.extend(self.last[lane.index()]);
                continue;
            };
            let task = Task {
                op,
                lane,
                stream: Stream::PointToPoint,
                role: Role::StageExchange,
                micro_batch: frame.slot.micro_batch,
                meeting,
            };
            let message = self.graph.add_task(task, &tail);
            if !self.at(frame.pp).execution.overlap.stage {
                self.gate[lane.index()].push(message);
            }
            arrivals.push(message);
        }
        arrivals
    }

    /// What carries a message; `None` where it takes no time. One of given duration loads no link.
    fn carried(
        &mut self,
        problem: &Problem,
        lane: LaneId,
        from: Rank,
        to: u32,
        tokens: u64,
    ) -> Option<(OpId, Option<MeetingId>)> {
        let Some(units) = problem.execution.unit_times else {
            let (op, group) = self.message(problem, lane, from, to, tokens);
            return Some((op, Some(self.graph.add_meeting(group))));
        };
        let ns = units.message * tokens;
        (ns > 0).then(|| (self.op(Op::Host { ns }), None))
    }

    /// Operation and group of a message of `tokens` tokens from a lane to a pipeline rank.
    fn message(&mut self, problem: &Problem, lane: LaneId, from: Rank, to: u32, tokens: u64) -> (OpId, GroupId) {
        if let Some(&known) = self.messages.get(&(lane, to, tokens)) {
            return known;
        }
        let position = problem.position(from);
        let target = problem.rank(Position { pp: to, ..position });
        let bytes = tokens * problem.model.hidden * problem.dtype.bytes();
        // Each tensor rank sends its part; the receiver's node gathers it (arXiv:2104.04473, section 4.1). Between stages of different
        // degree the fewer ranks carry it all.
        let receivers = problem.at_stage(to as usize).layout.tp;
        let bytes = bytes.div_ceil(u64::from(problem.layout.tp.min(receivers)));
        let members = [from, target];
        let known = (self.collective(Collective::SendRecv, bytes, &members, 1), self.graph.add_group(&members));
        self.messages.insert((lane, to, tokens), known);
        known
    }
}

/// Pipeline rank that a slot's result goes to, if it leaves its rank.
pub(super) fn next_rank(pipeline: &Pipeline, slot: Slot, stage: usize) -> Option<u32> {
    let micro_batch = slot.micro_batch as usize;
    let (to, _) = pipeline.message(slot.kind, stage, micro_batch)?;
    Some(u32::try_from(to).expect("ranks fit u32"))
}
