//! Rounds of a pipeline one behind the other: when the micro-batches of a round leave the last stage, and what the next round waits for.
//!
//! The next round starts while batches of this one are still in the stages, and no batch overtakes another (`step_cost/transit.rs`). So a replica keeps when
//! the last chunk that entered leaves the last stage. A sequence has its tokens as much later than the ends of rounds as its batch came behind the first
//! one. Where a round was held up by what is ahead of it, its first batches wait for the last ones of the round before, and those lag less.
//! Units: ticks. A batch that only decodes behind others like it waits for none of them, so spans need no such book.

use super::going::Going;
use super::{Replica, Slot};
use crate::step_cost::Round;
use crate::step_cost::transit::Transit;
use hw::Tick;

/// What a replica knows of its pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipeline {
    /// Micro-batches of the round under way, where that has chunks; none with one stage.
    transits: Vec<Transit>,
    /// Ticks from the start of that round's first batch until the next round's first one may start.
    turn: Tick,
    /// When the last chunk that entered in an earlier round leaves the last stage.
    drained: Tick,
    /// Ticks for which rounds were held up so far.
    held_up: Tick,
}

/// How much later than the ends of rounds a sequence has its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lag {
    /// Ticks, below zero where its batch entered before its round.
    pub(super) ticks: i64,
    /// Ticks for which rounds had been held up when that was so.
    since: Tick,
}

impl Lag {
    /// The same when rounds have been held up for so many ticks.
    pub(super) fn at(self, held_up: Tick) -> i64 {
        if self.ticks <= 0 { self.ticks } else { self.ticks.saturating_sub((held_up - self.since).signed()).max(0) }
    }
}

impl Pipeline {
    /// Ticks for which rounds were held up so far.
    pub(super) const fn held_up(&self) -> Tick {
        self.held_up
    }

    /// Ticks from a moment until what entered before has left the last stage.
    pub(super) const fn ahead(&self, now: Tick) -> Tick {
        self.drained.saturating_sub(now)
    }

    /// Nothing is in the stages any more.
    pub(super) const fn stop(&mut self) {
        self.drained = Tick::ZERO;
    }

    /// A round with chunks starts.
    pub(super) fn enter(&mut self, round: Round) {
        self.held_up += round.held_up;
        (self.transits, self.turn) = (round.transits, round.turn);
    }

    /// A round has ended, with chunks in its first micro-batches, so many of them; the last chunk entered so many ticks before its time.
    pub(super) fn drain(&mut self, n: u32, [start, end]: [Tick; 2], early: i64) {
        self.drained = end.shifted(self.left(n, start, early));
    }

    /// Ticks from the end of the round that started then until its first micro-batches, so many of them, have left the last stage. The last of these entered so
    /// many ticks before its time.
    fn left(&self, n: u32, start: Tick, early: i64) -> i64 {
        let all = self.transits.iter().take(n as usize).copied().fold(Transit::default(), Transit::and);
        let by_itself = (all.pace + all.fill).saturating_sub(self.turn).signed() - early;
        let behind = (self.drained + all.pace).signed() - (start + self.turn).signed();
        by_itself.max(behind)
    }
}

impl Replica<'_> {
    /// Ticks from the end of a round to the moment at which a sequence's micro-batch is through.
    pub(super) fn lag(&self, slot: &Slot) -> i64 {
        slot.lag.at(self.pipeline.held_up)
    }

    /// A prompt ended in the last of so many micro-batches of the round that started then. A sequence that was computed again does not lag less than before: no
    /// client sees a later token before an earlier one.
    pub(super) fn lag_behind(&mut self, id: u32, n: u32, start: Tick) {
        if self.engine.table.lanes().stages == 1 {
            return;
        }
        let slot = self.slots[id as usize];
        let left = self.pipeline.left(n, start, slot.early());
        let ticks = if slot.generated == 0 { left } else { left.max(self.lag(&slot)) };
        self.slots[id as usize].lag = Lag { ticks, since: self.pipeline.held_up };
    }

    /// An iteration or span that only decodes, which waits for the chunks of earlier rounds. Behind these, it waits for nothing.
    pub(super) fn behind_chunks(&mut self, going: Going) -> Going {
        let first = going.end_of(1) - going.start;
        let stage = first / u64::from(self.engine.table.lanes().stages);
        let held_up = (self.pipeline.ahead(going.start) + stage).saturating_sub(first);
        if held_up == Tick::ZERO {
            return going;
        }
        self.pipeline.held_up += held_up;
        let (part, whole) = going.stage_share;
        let stage_share = (first.share(part, whole).get(), (first + held_up).get());
        Going { n_steps: 1, fixed: going.fixed + held_up, least: going.least + held_up, stage_share, ..going }
    }
}
