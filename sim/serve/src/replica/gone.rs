//! Clients who give up: what was computed for them is lost, and their blocks come free.
//!
//! They leave at the end of the iteration under way, or at the host's next look where it does not look at every boundary. Who gave up sends the next request at once,
//! and routers count it no more. Approximation: an asynchronous engine, which has composed one iteration more by then, is not charged for it.

use super::{Lost, Phase, Replica, Slot, Waiting};
use crate::records::Records;
use hw::Tick;

impl Replica<'_> {
    /// The last request of the run has ended.
    pub(crate) fn run_ends(&mut self, end: Tick) {
        self.run_ends = Some(end);
    }

    /// Requests here whose clients wait, as a router counts them.
    pub fn waited_for(&self) -> u32 {
        self.outstanding.saturating_sub(u32::try_from(self.leaving.len()).expect("fewer than 2^32 requests"))
    }

    /// The client of a request that is here gives up. Returns the end of what is under way, if that is new or has moved.
    pub fn give_up(&mut self, request: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        self.leaving.push(request);
        if self.going.is_none() {
            self.let_leave(now, records);
            return self.interrupt(now, records);
        }
        // Where batches follow each other through stages, a token may be given before the round has ended that tells of it.
        if !self.has_rounds() && !self.engine.table.flows() {
            records.expire(request, now);
        }
        self.look_soon(now)
    }

    /// Request of whoever waits.
    pub(super) fn who(&self, waiting: Waiting) -> u32 {
        match waiting {
            Waiting::New(request) => request,
            Waiting::Again(id) => self.slots[id as usize].request,
        }
    }

    fn leave_queue(&mut self, index: usize, now: Tick) {
        let is_unseen = index + self.n_unseen >= self.waiting.len();
        self.n_unseen -= usize::from(is_unseen);
        let waiting = self.waiting.remove(index).expect("a position in the queue");
        self.count_time(now);
        match waiting {
            Waiting::Again(id) => self.lose_one(id, &mut Lost::default()),
            Waiting::New(request) => {
                self.newcomers.retain(|(newcomer, _)| *newcomer != request);
                self.count_out(request);
            }
        }
    }

    /// What is under way ends at the next boundary after `now` at which the host looks.
    pub(super) fn look_soon(&mut self, now: Tick) -> Option<Tick> {
        let (looks, interval) = (self.looks, self.engine.limits.recv_interval);
        let has_chunks = self.looks_behind_chunks();
        let going = self.going.as_mut()?;
        let seen_after = looks.from(going.steps_until(now + Tick::ONE), has_chunks, interval);
        let has_moved = seen_after < going.n_steps;
        going.n_steps = going.n_steps.min(seen_after);
        has_moved.then(|| going.end_of(seen_after))
    }

    /// At a look between iterations: requests of clients who have given up leave. Some may have had their token in time after all.
    pub(super) fn let_leave(&mut self, now: Tick, records: &mut Records) {
        for request in std::mem::take(&mut self.leaving) {
            if !records.expire(request, now) {
                continue;
            }
            match self.waiting.iter().position(|waiting| self.who(*waiting) == request) {
                Some(index) => self.leave_queue(index, now),
                None => self.leave_batch(request, now),
            }
        }
    }

    /// Nothing is left to do where its last token came with the iteration that has ended.
    fn leave_batch(&mut self, request: u32, now: Tick) {
        let is_over = |slot: &Slot| matches!(slot.phase, Phase::Free | Phase::Spent);
        let is_here = |slot: &Slot| slot.request == request && !is_over(slot);
        let Some(slot) = self.slots.iter().position(is_here) else { return };
        self.count_time(now);
        self.lose_one(u32::try_from(slot).expect("fewer than 2^32 slots"), &mut Lost::default());
    }
}
