//! Tokens of a replica on their way through its frontend (`frontend.rs`), which the engine does not wait for.
//!
//! A replica that computes prompts for others hands on one token of each, which is left out: the replica that decodes is who streams.

use super::going::Going;
use super::{Replica, Role};
use crate::frontend::{Frontend, Queue};
use hw::Tick;

impl Replica<'_> {
    /// Tokens of so many iterations of what was under way come to the frontend. An iteration with chunks is by itself.
    pub(super) fn hand_on(&mut self, n: u64, going: &Going) -> Queue {
        let Some(frontend) = self.frontend() else { return Queue::default() };
        let n_decode = if self.composed.decodes { self.n_decode - self.n_spent } else { 0 };
        let work = frontend.work(n_decode, self.n_completed(&self.composed));
        let queue = Queue { free: self.sent_until, work };
        self.sent_until = queue.through(n, [going.end_of(1), going.end_of(n)]);
        self.counts.frontend_ticks += queue.work * n;
        queue
    }

    /// A first token comes to the frontend by itself; when it is through.
    pub(super) fn hand_on_first(&mut self, now: Tick) -> Tick {
        let Some(frontend) = self.frontend() else { return now };
        let queue = Queue { free: self.sent_until, work: frontend.work(0, 1) };
        self.sent_until = queue.through(1, [now; 2]);
        self.counts.frontend_ticks += queue.work;
        self.sent_until
    }

    /// Ticks until the tokens of the iteration that has ended now are through.
    pub(super) fn in_queue(&self, now: Tick) -> Tick {
        self.sent_until.saturating_sub(now)
    }

    /// The frontend, where it takes time.
    fn frontend(&self) -> Option<Frontend> {
        let frontend = self.engine.limits.frontend;
        (frontend.takes_time() && self.role() != Role::Prefill).then_some(frontend)
    }
}
