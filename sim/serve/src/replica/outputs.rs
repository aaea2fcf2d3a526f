//! Outputs of prompts that machines outside of the fleet compute: a request comes with its keys and values, and only decoding takes time here.
//!
//! The last token of the prompt is the first that is decoded, as engines do that read keys and values from elsewhere (vLLM's connectors
//! compute it again for its logits). A sequence that loses its blocks gets keys and values of what it has generated from there again.

use super::{Phase, Replica, Reserve, Waiting};
use crate::records::Records;
use hw::Tick;

impl Replica<'_> {
    /// Between iterations: whoever waits and is seen joins the batch, first come first served, as far as there is room.
    pub(super) fn join_computed(&mut self, now: Tick, records: &mut Records) {
        while self.n_running() < self.sequences_max() && self.waiting.len() > self.n_unseen {
            let Some(&head) = self.waiting.front() else { break };
            if self.is_swapped(head) {
                break;
            }
            let claim = self.claim(head, 0, Reserve::Whole);
            let free = self.place_free(claim.blocks);
            let Some(id) = self.take_in(0, head, &claim) else { break };
            records.schedule(claim.request, now, [0; 3]);
            self.slots[id as usize].lag = self.lag_in_place(free, now);
            self.slots[id as usize].target = claim.target - 1;
            self.share(id);
            self.join(id, claim.target - 1);
            self.remember(id);
            if claim.generated == 0 {
                self.firsts.push((id, self.slots[id as usize].epoch));
            }
        }
    }

    /// Whether somebody who waits comes back from the host.
    fn is_swapped(&self, head: Waiting) -> bool {
        match head {
            Waiting::New(_) => false,
            Waiting::Again(id) => self.slots[id as usize].phase == Phase::Swapped,
        }
    }

    /// Sequences that were computed elsewhere have given their first token.
    pub(super) fn give_firsts(&mut self, now: Tick, records: &mut Records) {
        for (id, epoch) in std::mem::take(&mut self.firsts) {
            let slot = &self.slots[id as usize];
            if slot.phase == Phase::Skipped {
                self.firsts.push((id, epoch));
            } else if slot.epoch == epoch {
                records.give_first_token(slot.request, now.shifted(self.lag(slot)));
            }
        }
    }
}
