//! A replica is lost at once: memory and cached prefixes are gone, and everyone who was here has to go elsewhere.
//!
//! Tokens that clients have are not given again: a sequence goes on from its prompt and what it has generated, which is computed again.
//! The iteration under way is lost. Units: ticks, tokens. Invariant: afterwards nobody is here and no block is held.

use super::{Moving, Phase, Replica, Waiting};
use crate::records::Records;

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

impl Replica<'_> {
    /// Loses everything at a tick before which all that ends has ended.
    pub fn lose(&mut self, now: u64) -> Lost {
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
        lost.unsent.extend(self.handover.expected.drain(..));
        let between = std::mem::take(&mut self.handover.sending);
        lost.sending = between.into_keys().collect();
        self.handover.receiving.clear();
        self.handover.ready.clear();
        self.waiting.clear();
        self.prefilling.clear();
        self.order.clear();
        self.newcomers.clear();
        self.ends.clear();
        self.composed.clear();
        self.flow_stops();
        (self.n_returning, self.host_blocks_used, self.outstanding) = (0, 0, 0);
        assert!(self.pool.held() == 0 && self.n_decode == 0, "nobody is left");
        self.pool.forget();
        lost.again.sort_unstable();
        lost.unsent.sort_unstable_by_key(|moving| moving.request);
        lost
    }

    /// Cuts what is under way off; whether the blocks of an iteration that never ends were taken.
    fn stop(&mut self, now: u64) -> bool {
        let Some(going) = self.going.take() else { return false };
        let n_done = going.steps_done(now);
        self.counts.busy_ticks += now - going.start();
        self.counts.n_steps += n_done;
        self.counts.n_spans += 1;
        if n_done > 0 && self.composed.decodes {
            self.decoded(n_done);
        }
        n_done == 0 && self.composed.decodes
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
            Phase::Waiting | Phase::Swapped | Phase::Prefill | Phase::Moving => {}
        }
        self.vacate(id, blocks);
        if slot.phase == Phase::Spent {
            return;
        }
        if self.handover.receiving.get(&slot.request) == Some(&id) {
            lost.unsent.push(Moving { at: 0, request: slot.request, tokens: slot.target, generated });
        } else {
            lost.again.push((slot.request, generated));
        }
    }

    /// A sequence that was to come here comes no more. Returns the end of what is under way, if that is new or has moved.
    pub fn forget(&mut self, request: u32, now: u64, records: &mut Records) -> Option<u64> {
        self.count_time(now);
        self.outstanding -= 1;
        match self.handover.receiving.remove(&request) {
            Some(id) => self.vacate(id, self.slots[id as usize].blocks),
            None => self.handover.expected.retain(|moving| moving.request != request),
        }
        self.interrupt(now, records)
    }

    /// Whether a request's keys and values are held here until they are sent.
    #[must_use]
    pub fn is_sending(&self, request: u32) -> bool {
        self.handover.sending.contains_key(&request)
    }

    /// Requests in the system, integrated over ticks until now.
    #[must_use]
    pub fn request_ticks(&self, now: u64) -> u128 {
        self.counts.request_ticks + u128::from(now - self.outstanding_since) * u128::from(self.outstanding)
    }
}
