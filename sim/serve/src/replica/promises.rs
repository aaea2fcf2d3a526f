//! Which blocks must be free for whoever is admitted: those that it takes, or all that it and everybody who runs may come to need.
//!
//! Source: NVIDIA/TensorRT-LLM, `cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp` (Apache-2.0), `GuaranteedNoEvictScheduler`: requests that
//! run keep the blocks of their prompt and of their whole output limit. Whoever waits longest is admitted where as many are free beside these, and nobody
//! passes it. Units: blocks. Invariant: blocks that are promised go down as they are taken, so that the difference of free and of promised ones
//! stays while the batch does. Their sum is kept, and changes only where a sequence takes blocks, joins or leaves. Approximation: memory is that of all
//! ranks of attention together. Blocks that replicas lend each other are not promised.

use super::admission::Claim;
use super::{Composed, Phase, Replica, Role, Slot};

hw::words! {
    /// Which blocks must be free for whoever is admitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CapacityPolicy: word {
        /// Those that it takes: sequences may have to give theirs up later.
        #[default]
        MaxUtilization = "max_utilization",
        /// Those of its whole prompt, though it takes those of its first chunk: prompts that are under way may still have to give theirs up.
        WholePrompt = "whole_prompt",
        /// Those of prompts and whole outputs of all who run: nobody ever gives any up.
        GuaranteedNoEvict = "guaranteed_no_evict",
    }
}

impl Replica<'_> {
    /// Whether blocks are promised. Whoever computes prompts for others takes all of its blocks at once.
    fn promises(&self) -> bool {
        self.limits().capacity_policy == CapacityPolicy::GuaranteedNoEvict && self.role() != Role::Prefill
    }

    /// Blocks of a request at its end, were it to use its whole limit. Drafts may reach beyond that.
    fn whole(&self, request: u32) -> u32 {
        let prompt = self.requests.list[request as usize].prompt;
        let ahead = self.engine.table.tokens_per_sequence() - 1;
        self.blocks_of(prompt.saturating_add(self.requests.asked_of(request as usize)).saturating_add(ahead))
    }

    /// Blocks that a sequence may still take.
    fn to_come(&self, slot: &Slot) -> u32 {
        let held = match slot.phase {
            Phase::Free | Phase::Waiting | Phase::Swapped => return 0,
            Phase::Prefill | Phase::Moving | Phase::Skipped => self.held(slot),
            Phase::Decode | Phase::Spent => self.own_blocks(slot, 0) + slot.shared * self.pool.blocks_per_prefix(),
        };
        let whole = self.whole(slot.request);
        debug_assert!(held <= whole, "{held} blocks held of {whole}");
        whole.saturating_sub(held)
    }

    /// A sequence that has blocks from now on may take the rest of its blocks.
    pub(super) fn keep_for(&mut self, id: u32) {
        self.promised += u64::from(self.to_come(&self.slots[id as usize]));
    }

    /// It is about to give its blocks up, or to have others.
    pub(super) fn keep_no_more(&mut self, id: u32) {
        self.promised -= u64::from(self.to_come(&self.slots[id as usize]));
    }

    /// Blocks that decoding sequences have taken for the first iteration of what is composed.
    pub(super) fn taken_by(&self, composed: &Composed) -> u32 {
        let is_at_once = composed.decodes && self.engine.table.acceptance().is_none();
        if is_at_once { self.phases[self.phase_of(self.step)] } else { 0 }
    }

    /// Blocks that everybody who has some may still take. `taken`: those of them that were taken for the iteration that is composed.
    fn promised(&self, taken: u32) -> u32 {
        debug_assert_eq!(self.promised, self.promised_one_by_one(), "the sum that is kept is that of all sequences");
        u32::try_from(self.promised.saturating_sub(taken.into())).unwrap_or(u32::MAX)
    }

    /// The same without what is taken, added up over all sequences.
    fn promised_one_by_one(&self) -> u64 {
        self.slots.iter().map(|slot| u64::from(self.to_come(slot))).sum()
    }

    /// Blocks that must stay free beside those that a claim takes. `taken`: blocks of the iteration that is composed. An idle replica has to start with
    /// someone.
    pub(super) fn spare_beside(&self, taken: u32, claim: &Claim<'_>) -> u32 {
        if self.promises() && self.n_running() > 0 {
            let own = self.whole(claim.request).saturating_sub(self.at_once(claim));
            return self.limits().watermark_blocks.saturating_add(self.promised(taken)).saturating_add(own);
        }
        let spare = if claim.is_whole && self.n_running() > 0 { self.limits().watermark_blocks } else { 0 };
        let spare = spare + self.rest_of_prompt(claim);
        if self.role() == Role::Outputs { spare + claim.next + self.decode_growth() } else { spare }
    }

    /// Blocks of a prompt behind its first chunk that have to be free as it begins, beside somebody who runs (vLLM, `scheduler_reserve_full_isl`:
    /// `full_sequence_must_fit` in vllm/v1/core/kv_cache_manager.py).
    fn rest_of_prompt(&self, claim: &Claim<'_>) -> u32 {
        if self.limits().capacity_policy != CapacityPolicy::WholePrompt || claim.is_whole || self.n_running() == 0 {
            return 0;
        }
        self.blocks_of(claim.target).saturating_sub(self.at_once(claim))
    }

    /// Blocks that a claim takes at once, those of cached prefixes among them.
    fn at_once(&self, claim: &Claim<'_>) -> u32 {
        let n_held = u32::try_from(claim.held.len()).expect("fewer than 2^32 prefixes");
        claim.blocks + n_held * self.pool.blocks_per_prefix()
    }

    /// Blocks that must stay free for sequences with blocks here beside those of one that comes from elsewhere. `grown`: what is under way takes of
    /// them.
    pub(super) fn spare_for(&self, request: u32, blocks: u32, grown: u32) -> u32 {
        let is_empty = self.holds_nobody();
        let spare = if is_empty { 0 } else { self.limits().watermark_blocks };
        if !self.promises() || is_empty {
            return spare.saturating_add(grown);
        }
        let own = self.whole(request).saturating_sub(blocks);
        spare.saturating_add(self.promised(self.taken_by(&self.composed))).saturating_add(own)
    }
}

#[cfg(test)]
mod tests;
