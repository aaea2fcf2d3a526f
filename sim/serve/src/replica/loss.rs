//! A replica is lost at once: memory and cached prefixes are gone, and everyone who was here has to go elsewhere.
//!
//! Tokens that clients have are not given again: a sequence goes on from its prompt and what it has generated, which is computed again.
//! The iteration under way is lost. Units: ticks, tokens. Invariant: afterwards nobody is here and no block is held.

use super::{Moving, Phase, Replica, Waiting};
use crate::records::Records;
use hw::{Tick, TickSum};

/// Who was on a lost replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Requests to compute again, with their output tokens so far, in order of arrival.
    pub again: Vec<(u32, u32)>,
    /// Those among them whose keys and values were being sent from here.
    pub sending: Vec<u32>,
    /// Sequences that were sent here and are still whole where they come from, in order of arrival.
    pub unsent: Vec<Moving>,
}

impl Lost {
    /// Who was lost elsewhere besides.
    pub(crate) fn add(&mut self, other: Self) {
        self.again.extend(other.again);
        self.sending.extend(other.sending);
        self.unsent.extend(other.unsent);
    }
}

impl Replica<'_> {
    /// Loses everything at a tick before which all that ends has ended.
    pub fn lose(&mut self, now: Tick) -> Lost {
        self.count_time(now);
        let is_in_step = self.stop(now);
        let mut lost = Lost::default();
        for id in 0..u32::try_from(self.slots.len()).expect("fewer than 2^32 slots") {
            self.lose_slot(id, is_in_step, &mut lost);
        }
        let new = |waiting: &Waiting| match waiting {
            Waiting::New(request) => Some((*request, 0)),
            Waiting::Again(_) => None,
        };
        lost.again.extend(self.waiting.iter().filter_map(new));
        lost.unsent.extend(self.handover.expected.iter().chain(&self.handover.unseen));
        lost.sending = self.handover.sending.keys().copied().collect();
        self.handover.clear();
        self.waiting.clear();
        self.n_unseen = 0;
        self.prefilling.clear();
        self.skipped.clear();
        self.order.clear();
        self.newcomers.clear();
        self.leaving.clear();
        self.ends.clear();
        self.composed.clear();
        self.flow_stops();
        self.sent_until = Tick::ZERO;
        self.looks.idle();
        (self.n_gathered, self.n_more) = (0, 0);
        (self.n_returning, self.host_blocks_used) = (0, 0);
        (self.outstanding, self.outstanding_blocks) = (0, 0);
        if let Some(loans) = &mut self.loans {
            loans.clear();
        }
        assert!(self.pool.held() == 0 && self.n_decode == 0, "nobody is left");
        self.pool.forget();
        self.forget_adapters();
        self.forget_ranks();
        lost.again.sort_unstable();
        lost.unsent.sort_unstable_by_key(|moving| moving.request);
        lost
    }

    /// Output tokens until now, those of iterations that have ended within a span too.
    pub(crate) fn tokens_until(&self, now: Tick) -> u64 {
        let of_span = self.going.as_ref().filter(|_| self.composed.decodes);
        let n_done = of_span.map_or(0, |going| going.steps_done(now));
        self.counts.output_tokens + n_done * u64::from(self.n_decode - self.n_spent)
    }

    /// Cuts what is under way off; whether it was an iteration that decodes. Its blocks were taken when it began.
    fn stop(&mut self, now: Tick) -> bool {
        let Some(going) = self.going.take() else { return false };
        let n_done = going.steps_done(now);
        self.count_until(&going, n_done, now);
        if n_done > 0 && self.composed.decodes {
            let queue = self.hand_on(n_done, &going);
            self.decoded(n_done, &going, queue);
            let is_there = self.pool.take(self.phases[self.phase_of(self.step)]);
            assert!(is_there, "a span ends before blocks run out");
        }
        self.composed.decodes
    }

    fn lose_slot(&mut self, id: u32, is_in_step: bool, lost: &mut Lost) {
        let slot = self.slots[id as usize];
        let (mut blocks, mut generated) = (slot.blocks, slot.generated);
        match slot.phase {
            Phase::Free => return,
            Phase::Decode | Phase::Spent => {
                let (tokens, own) = self.leave(id, is_in_step);
                blocks = own;
                generated += tokens - slot.target;
            }
            Phase::Waiting | Phase::Swapped | Phase::Prefill | Phase::Skipped | Phase::Moving => {}
        }
        self.vacate(id, blocks);
        if slot.phase == Phase::Spent {
            return;
        }
        if self.handover.receiving.get(&slot.request) == Some(&id) {
            lost.unsent.push(Moving { at: Tick::ZERO, request: slot.request, tokens: slot.target, generated });
        } else {
            lost.again.push((slot.request, generated));
        }
    }

    /// Requests that are being sent from here, all of them or those with blocks on a lender.
    pub(crate) fn sending(&self, lender: Option<u32>) -> Vec<u32> {
        let sending = &self.handover.sending;
        let Some(lender) = lender else { return sending.keys().copied().collect() };
        let ids = self.loans.as_ref().map_or_else(Vec::new, |loans| loans.slots_on(lender));
        sending.iter().filter(|(_, id)| ids.contains(id)).map(|(request, _)| *request).collect()
    }

    /// Loses the sequences that have blocks on a replica that is lost.
    pub(crate) fn lose_parts_on(&mut self, lender: u32, now: Tick) -> Lost {
        let mut lost = Lost::default();
        let ids = self.loans.as_ref().map_or_else(Vec::new, |loans| loans.slots_on(lender));
        self.count_time(now);
        for id in ids {
            self.lose_one(id, &mut lost);
        }
        lost
    }

    /// Sends away who waits here and is more than this replica and its lenders hold from now on.
    pub(crate) fn lose_too_long(&mut self, now: Tick) -> Lost {
        let mut lost = Lost::default();
        self.count_time(now);
        for waiting in std::mem::take(&mut self.waiting) {
            let request = self.who(waiting);
            match waiting {
                _ if self.can_hold(request) => self.waiting.push_back(waiting),
                Waiting::Again(id) => self.lose_one(id, &mut lost),
                Waiting::New(request) => {
                    lost.again.push((request, 0));
                    self.count_out(request);
                }
            }
        }
        self.see_expected();
        for moving in std::mem::take(&mut self.handover.expected) {
            if self.can_hold(moving.request) {
                self.handover.expected.push_back(moving);
            } else {
                lost.unsent.push(moving);
                self.count_out(moving.request);
            }
        }
        lost
    }

    /// Loses one sequence in the middle of an iteration, which ends as it would have.
    pub(super) fn lose_one(&mut self, id: u32, lost: &mut Lost) {
        let slot = self.slots[id as usize];
        match slot.phase {
            Phase::Prefill => {
                self.prefilling.retain(|other| *other != id);
                self.composed.drop_chunk(id);
            }
            Phase::Skipped => self.skipped.retain(|other| *other != id),
            Phase::Swapped => {
                self.leave_host(id);
                let before = self.composed.returning.len();
                self.composed.returning.retain(|other| *other != id);
                self.n_returning -= u32::from(self.composed.returning.len() < before);
            }
            _ => {}
        }
        let is_sending = self.handover.sending.get(&slot.request) == Some(&id);
        self.lose_slot(id, self.going.is_some() && self.composed.decodes, lost);
        self.handover.ready.retain(|other| *other != id);
        self.handover.arrived.retain(|other| *other != id);
        if is_sending {
            self.handover.sending.remove(&slot.request);
            lost.sending.push(slot.request);
            return;
        }
        self.handover.receiving.remove(&slot.request);
        // The client of one that has ended has everything.
        if slot.phase != Phase::Spent {
            self.count_out(slot.request);
        }
    }

    /// A sequence that was to come here comes no more. Returns the end of what is under way, if that is new or has moved.
    pub fn forget(&mut self, request: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        self.count_time(now);
        self.count_out(request);
        match self.handover.receiving.remove(&request) {
            Some(id) => self.vacate(id, self.slots[id as usize].blocks),
            None => {
                let goes_on = |moving: &Moving| moving.request != request;
                self.handover.expected.retain(goes_on);
                self.handover.unseen.retain(goes_on);
            }
        }
        self.interrupt(now, records)
    }

    /// Whether a request's keys and values are held here until they are sent.
    pub fn is_sending(&self, request: u32) -> bool {
        self.handover.sending.contains_key(&request)
    }

    /// Requests in the system, integrated over ticks until now.
    pub fn request_ticks(&self, now: Tick) -> TickSum {
        self.counts.request_ticks + (now - self.outstanding_since).of_each(self.outstanding)
    }
}
