//! Who gives up its blocks when they run out, and what becomes of it: computed again, or moved to the host and back.
//!
//! A swapped sequence shares prefixes as others do. Source: vllm-project/vllm, `vllm/core/block/cpu_gpu_block_allocator.py` (`swap`) and
//! `prefix_caching_block.py` (`swap_in` asks for full blocks by what they hold, and finds those that are cached). Approximation: vLLM copies cached
//! blocks onto themselves as well; here a prefix that others hold is not copied out, and what is cached or still lies where it was left is not copied back.

use std::cmp::Ordering;

use super::{Composed, Phase, Preemption, Replica};

/// What a swapped sequence takes on its way back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Back<'a> {
    /// Its prefixes that are cached on the device.
    pub(super) held: &'a [u32],
    /// Blocks of its own.
    pub(super) blocks: u32,
    /// Those of them that it has left and finds again; the others are copied.
    pub(super) n_left: u32,
}

impl<'a> Replica<'a> {
    /// Takes the blocks of the sequence that was admitted last; by priority, of the last one of the class that gives way first. Returns its place in the
    /// order of admission, at which the one behind it is now.
    pub(super) fn preempt_latest(&mut self, composed: &mut Composed) -> usize {
        let at = self.gives_way();
        let (id, epoch) = self.order.remove(at);
        if self.slots[id as usize].epoch == epoch {
            self.preempt(composed, id);
        }
        at
    }

    /// By priority, running sequences take their blocks in the order of admission, and whoever gives way may have had its turn. One that has to give up its own
    /// blocks ends the turns of this iteration (vLLM, `schedule` of vllm/v1/core/sched/scheduler.py).
    pub(super) fn take_turns(&mut self, composed: &mut Composed) {
        if self.pool.available() >= self.decode_growth() {
            return;
        }
        self.drop_void();
        let (mut at, mut before) = (0, 0);
        while at < self.order.len() {
            let needed = before + self.growth_of(self.order[at]);
            if needed <= self.pool.available() {
                (at, before) = (at + 1, needed);
                continue;
            }
            let last = self.gives_way();
            let given = self.growth_of(self.order[last]);
            self.preempt_latest(composed);
            match last.cmp(&at) {
                Ordering::Less => (at, before) = (at - 1, before - given),
                Ordering::Equal => return self.stop_behind(composed, at),
                Ordering::Greater => {}
            }
        }
    }

    /// Blocks that a running sequence takes to decode once; none where it does not decode.
    fn growth_of(&self, (id, _): (u32, u32)) -> u32 {
        let slot = &self.slots[id as usize];
        let decodes = matches!(slot.phase, Phase::Decode | Phase::Spent);
        match self.engine.table.acceptance() {
            _ if !decodes => 0,
            Some(_) => self.missing(slot),
            None => u32::from(self.phase_at(self.step, self.cached_of(slot)) == self.phase_of(self.step)),
        }
    }

    /// Nobody from a place in the order of admission on gets a token in this iteration.
    pub(super) fn stop_behind(&mut self, composed: &mut Composed, place: usize) {
        for at in place..self.order.len() {
            let id = self.order[at].0;
            match self.slots[id as usize].phase {
                Phase::Decode => self.skip(composed, at),
                Phase::Prefill => composed.behind.push(id),
                _ => {}
            }
        }
        composed.decodes &= self.n_decode > 0;
    }

    /// A decoding sequence has no part in this iteration and keeps its blocks, but for one that it had taken for it.
    fn skip(&mut self, composed: &Composed, at: usize) {
        let id = self.order[at].0;
        let taken = if composed.decodes { self.growth_of(self.order[at]) } else { 0 };
        let (tokens, blocks) = self.leave(id, false);
        if self.engine.table.acceptance().is_none() {
            self.pool.give(taken);
        }
        let slot = &mut self.slots[id as usize];
        slot.generated += tokens - slot.target;
        (slot.target, slot.blocks) = (tokens, blocks);
        (slot.phase, slot.epoch) = (Phase::Skipped, slot.epoch + 1);
        self.order[at].1 = slot.epoch;
        let first = self.firsts.iter_mut().find(|(other, _)| *other == id);
        first.into_iter().for_each(|first| first.1 = slot.epoch);
        self.skipped.push(id);
    }

    /// Sequences that had no part in the last iteration decode again.
    pub(super) fn go_on(&mut self) {
        for id in std::mem::take(&mut self.skipped) {
            self.join(id, self.slots[id as usize].target);
        }
    }

    /// Takes the blocks of a running sequence between two boundaries: it gets no token of the iteration under way.
    pub(crate) fn evict(&mut self, id: u32) {
        let mut composed = std::mem::take(&mut self.composed);
        if self.going.is_none() {
            composed.clear();
        }
        self.preempt(&mut composed, id);
        self.composed = composed;
    }

    /// Takes the blocks of a running sequence.
    fn preempt(&mut self, composed: &mut Composed, id: u32) {
        let slot = self.slots[id as usize];
        let is_decoding = matches!(slot.phase, Phase::Decode | Phase::Spent | Phase::Skipped);
        let (tokens, blocks) = if slot.phase == Phase::Skipped {
            self.skipped.retain(|other| *other != id);
            (slot.target, slot.blocks)
        } else if is_decoding {
            let left = self.leave(id, composed.decodes);
            composed.decodes &= self.n_decode > 0;
            left
        } else {
            let index = self.prefilling.iter().rposition(|other| *other == id).expect("a prompt under way");
            self.prefilling.remove(index);
            composed.drop_chunk(id);
            (0, slot.blocks)
        };
        if slot.phase == Phase::Spent {
            return self.vacate(id, blocks);
        }
        self.keep_no_more(id);
        self.let_adapter_go(id);
        self.leave_rank(id);
        let in_shared = slot.shared * self.pool.prefix_tokens();
        let cached = if is_decoding { tokens } else { slot.computed };
        let full = cached.saturating_sub(in_shared) / self.limits().block_tokens;
        let n_full = if self.keeps_preempted() { full.min(blocks) } else { 0 };
        self.pool.leave((id, slot.epoch + 1), in_shared, (n_full, blocks));
        self.pool.let_go(&self.prefix(&slot)[..slot.shared as usize]);
        let was_away = self.give_back(id);
        let shared = slot.shared;
        let decoded = tokens.saturating_sub(slot.target);
        composed.preempted.push(slot.request);
        let slot = &mut self.slots[id as usize];
        slot.epoch += 1;
        (slot.blocks, slot.shared, slot.computed) = (0, 0, 0);
        slot.phase = Phase::Waiting;
        if is_decoding {
            slot.generated += decoded;
            // The last generated token is not cached yet; it is part of what must be computed again.
            slot.target = tokens + 1;
            // What lies on several replicas is not gathered for the host.
            if !was_away {
                self.swap_out(composed, id, tokens, shared);
            }
        }
        self.queue_first(id);
        composed.n_preempted += 1;
        self.counts.n_preempted += 1;
    }

    /// Whether preempted sequences find again what they had computed; with blocks elsewhere they do not. Windows and states come back with it, as they do
    /// with a prefix of another request.
    fn keeps_preempted(&self) -> bool {
        self.engine.batcher.keeps_preempted() && self.limits().shares_prefixes && self.pool.borrowed() == 0
    }

    /// Moves a preempted sequence to the host, if the engine does so and the host has room. It has let go of `shared` prefixes: those that others hold
    /// stay on the device.
    fn swap_out(&mut self, composed: &mut Composed, id: u32, tokens: u32, shared: u32) {
        let Preemption::Swap { host_blocks, ticks_per_block } = self.limits().preemption else { return };
        let shared_ids = &self.prefix(&self.slots[id as usize])[..shared as usize];
        let staying = shared * self.pool.blocks_per_prefix() - self.pool.unheld(shared_ids);
        let blocks = self.blocks_of(tokens) - staying;
        if self.host_blocks_used + blocks <= host_blocks {
            self.host_blocks_used += blocks;
            composed.transfer_ticks += ticks_per_block * u64::from(blocks);
            let slot = &mut self.slots[id as usize];
            (slot.phase, slot.host_blocks) = (Phase::Swapped, blocks);
        }
    }

    /// What a swapped sequence takes on its way back; none where a prefix that was not copied has left the device.
    pub(super) fn back(&self, id: u32) -> Option<Back<'a>> {
        let slot = &self.slots[id as usize];
        let tokens = slot.target - 1;
        let ids = self.prefix(slot);
        let full = tokens.checked_div(self.pool.prefix_tokens()).unwrap_or(0) as usize;
        let ids = &ids[..ids.len().min(full)];
        let n_held = self.pool.cached(ids);
        let blocks = self.blocks_of(tokens) - n_held * self.pool.blocks_per_prefix();
        let n_left = self.pool.left((id, slot.epoch), n_held * self.pool.prefix_tokens());
        (blocks - n_left <= slot.host_blocks).then_some(Back { held: &ids[..n_held as usize], blocks, n_left })
    }

    /// Brings a swapped sequence back during this iteration.
    pub(super) fn swap_in(&mut self, composed: &mut Composed, id: u32, back: Back<'_>) -> bool {
        let Preemption::Swap { ticks_per_block, .. } = self.limits().preemption else { return false };
        // One more, so that it can go on; an idle replica has to start with someone.
        let spare = if self.n_running() > 0 { self.limits().watermark_blocks + 1 } else { 0 };
        if self.pool.available() < back.blocks + self.pool.unheld(back.held) + spare {
            return false;
        }
        self.pool.hold(back.held);
        let owner = (id, self.slots[id as usize].epoch);
        assert!(self.pool.take_again(owner, back.n_left, back.blocks), "{} blocks are there", back.blocks);
        self.waiting.pop_front();
        self.leave_host(id);
        let slot = &mut self.slots[id as usize];
        slot.blocks = back.blocks;
        slot.shared = u32::try_from(back.held.len()).expect("fewer than 2^32 prefixes");
        let copied = u64::from(back.blocks - back.n_left);
        composed.transfer_ticks += ticks_per_block * copied + self.take_adapter(id);
        composed.returning.push(id);
        self.n_returning += 1;
        true
    }

    /// Frees what a sequence has on the host.
    pub(super) fn leave_host(&mut self, id: u32) {
        self.host_blocks_used -= std::mem::take(&mut self.slots[id as usize].host_blocks);
    }
}
