//! Decoding with drafts: every sequence gains as many tokens as are accepted, so each is kept by itself.
//!
//! While a sequence decodes, its slot's `target` is what is cached, and its blocks cover what a verification may add: at most its
//! drafts and one more, and never more than its output needs. Blocks of refused drafts are kept for the next ones.

use super::{Composed, Phase, Replica, Slot};
use crate::records::Records;
use crate::speculation::Acceptance;
use hw::Tick;

impl Replica<'_> {
    /// Blocks that a slot lacks for its next verification.
    pub(super) fn missing(&self, slot: &Slot) -> u32 {
        let left = self.requests.list[slot.request as usize].output - slot.generated;
        let ahead = left.min(self.engine.table.tokens_per_sequence());
        self.blocks_of(slot.target + ahead).saturating_sub(self.held(slot))
    }

    /// Blocks that all decoding sequences lack for their next verification.
    pub(super) fn verify_growth(&self) -> u32 {
        self.verifying.iter().map(|id| self.missing(&self.slots[*id as usize])).sum()
    }

    /// Lets every decoding sequence take part in the iteration, preempting the latest admitted until blocks suffice.
    pub(super) fn verify_all(&mut self, composed: &mut Composed) {
        while !self.pool.take(self.verify_growth()) {
            self.preempt_latest(composed);
        }
        for index in 0..self.verifying.len() {
            let id = self.verifying[index];
            let missing = self.missing(&self.slots[id as usize]);
            self.slots[id as usize].blocks += missing;
            self.promised -= u64::from(missing);
        }
        composed.decodes = self.n_decode > 0;
    }

    /// Every decoding sequence gains one token and its accepted drafts; how many were verified.
    pub(super) fn verified(&mut self, acceptance: &Acceptance, now: Tick) -> usize {
        self.step += 1;
        let (in_queue, held_up) = (self.in_queue(now), self.pipeline.held_up());
        for &id in &self.verifying {
            let slot = &mut self.slots[id as usize];
            if slot.phase != Phase::Decode {
                continue;
            }
            let left = self.requests.list[slot.request as usize].output - slot.generated;
            let gained = (1 + acceptance.accepted(slot.request, slot.generated)).min(left);
            slot.generated += gained;
            slot.target += gained;
            self.context += u64::from(gained);
            self.counts.output_tokens += u64::from(gained);
            self.counts.n_verified += 1;
            self.counts.verified_tokens += u64::from(gained);
            if let Some(log) = &mut self.token_log {
                log.at_once(slot.request, now.shifted(slot.lag.at(held_up)) + in_queue, gained);
            }
        }
        self.verifying.len()
    }

    /// Of the first so many sequences, which were verified, those leave whose output is complete, from an asynchronous engine an iteration later.
    pub(super) fn finish_verified(&mut self, n: usize, now: Tick, records: &mut Records) {
        // In the order in which sequences leave that decode without drafts.
        let mut verified = self.verifying[..n].to_vec();
        verified.sort_unstable();
        for id in verified {
            let slot = self.slots[id as usize];
            let is_spent = slot.phase == Phase::Spent;
            if !is_spent {
                if slot.generated < self.requests.list[slot.request as usize].output {
                    continue;
                }
                self.conclude(id, now, records);
                if self.engine.table.is_asynchronous() {
                    self.spend(id);
                    continue;
                }
            }
            self.retire(id, 0, now);
        }
    }
}
