//! Admission: who waits longest gets blocks and a slot, or waits on. Prompts that are under way get their chunks.
//!
//! Invariant: blocks are taken for the first chunk or for the whole prompt, as the batching policy reserves; on failure nothing is taken.

use super::{Composed, Cut, Lag, Phase, Replica, Reserve, Role, Slot, Waiting};
use crate::kv::pool::Brought;
use crate::step_cost::{Chunk, StepLoad};
use hw::Tick;

/// What whoever waits would take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) request: u32,
    pub(super) generated: u32,
    pub(super) target: u32,
    pub(super) lag: Lag,
    /// Its prefixes that are cached.
    pub(super) held: &'a [u32],
    /// Its prefixes behind them that come from below the device, and what brings them.
    pub(super) brought: (&'a [u32], Brought),
    /// Blocks of its own that it has left and finds again.
    pub(super) n_left: u32,
    /// Tokens that are neither cached, left nor brought.
    pub(super) rest: u32,
    /// Tokens of its first chunk.
    pub(super) tokens: u32,
    pub(super) blocks: u32,
    /// Blocks that its first tokens take at once: whoever was computed elsewhere decodes in the iteration that takes it in.
    pub(super) next: u32,
    /// Whether the blocks are those of the whole prompt.
    pub(super) is_whole: bool,
}

impl<'a> Replica<'a> {
    /// Admits whoever waits longest, with at most `budget` prompt tokens; false when it has to wait on. Who waits for a slot of its adapter is
    /// passed over.
    pub fn admit(&mut self, composed: &mut Composed, budget: u32, reserve: Reserve, cut: Cut) -> bool {
        if self.is_full(budget) {
            return false;
        }
        let Some(at) = self.in_turn() else { return false };
        let is_in = self.admit_at(composed, at, budget, (reserve, cut));
        if is_in {
            self.count_passed(at);
        }
        is_in
    }

    /// Whether nobody can be admitted, whoever waits.
    fn is_full(&self, budget: u32) -> bool {
        budget == 0 || self.n_running() >= self.sequences_max() || self.waiting.len() <= self.n_unseen
    }

    /// Admits somebody by the position in the queue; nothing changes where there is no room.
    pub(super) fn admit_at(
        &mut self,
        composed: &mut Composed,
        at: usize,
        budget: u32,
        (reserve, cut): (Reserve, Cut),
    ) -> bool {
        if self.is_full(budget) {
            return false;
        }
        if at > 0 {
            let waiting = self.waiting.remove(at).expect("a place in the queue");
            self.waiting.push_front(waiting);
        }
        let is_in = self.admit_first(composed, budget, reserve, cut);
        if !is_in && at > 0 {
            let waiting = self.waiting.pop_front().expect("it was put there");
            self.waiting.insert(at, waiting);
        }
        is_in
    }

    fn admit_first(&mut self, composed: &mut Composed, budget: u32, reserve: Reserve, cut: Cut) -> bool {
        match self.waiting.front() {
            None => false,
            Some(Waiting::Again(id)) if self.slots[*id as usize].phase == Phase::Swapped => {
                let id = *id;
                if let Some(back) = self.back(id) {
                    return self.swap_in(composed, id, back);
                }
                // It is computed again.
                self.leave_host(id);
                self.slots[id as usize].phase = Phase::Waiting;
                self.admit_first(composed, budget, reserve, cut)
            }
            // Whoever was computed elsewhere has joined as far as there is room.
            Some(_) if self.role() == Role::Outputs => false,
            Some(&head) => self.admit_prompt(composed, head, budget, reserve, cut),
        }
    }

    /// Gives chunks to prompts that are under way, oldest first, within `room` tokens on every rank, which grows as decoding sequences give way. Preempts the latest
    /// admitted until blocks suffice, which may be the prompt itself.
    pub fn continue_prefills(&mut self, composed: &mut Composed, room: fn(&Self) -> u32) {
        let mut index = 0;
        while index < self.prefilling.len() {
            let left = room(self).saturating_sub(composed.fewest_tokens());
            if left == 0 {
                break;
            }
            let id = self.prefilling[index];
            if !self.give_chunk(composed, id, left) {
                break;
            }
            if composed.n_preempted > 0 {
                // By priority, one that is ahead may have given way.
                index = self.prefilling.iter().position(|other| *other == id).expect("a prompt under way");
            }
            index += 1;
        }
    }

    /// Gives a prompt that is under way its next chunk of at most `budget` tokens; false where it had to give up its own blocks.
    pub(super) fn give_chunk(&mut self, composed: &mut Composed, id: u32, budget: u32) -> bool {
        if composed.behind.contains(&id) {
            return false;
        }
        let slot = self.slots[id as usize];
        let tokens = budget.min(slot.target - slot.computed).min(self.chunk_max(slot.computed));
        let (tokens, encoded) =
            self.before_images(composed, (slot.request, Some(id)), (slot.computed, tokens), slot.encoded);
        if tokens == 0 {
            return true;
        }
        let missing = self.blocks_of(slot.computed + tokens).saturating_sub(self.held(&slot));
        while !self.pool.take(missing) {
            let at = self.preempt_latest(composed);
            if self.slots[id as usize].epoch != slot.epoch {
                self.stop_behind(composed, at);
                return false;
            }
        }
        self.slots[id as usize].blocks += missing;
        self.promised -= u64::from(missing);
        self.encode(composed, id, slot.computed, encoded);
        composed.give(id, tokens, self.rank_of(id));
        true
    }

    /// Tokens that whoever waits had been answered before its blocks were taken. Where prompts are not cut they come back beside the prompt and take no
    /// room of an iteration: engines of that kind keep blocks for the whole answer (`GUARANTEED_NO_EVICT`), or have room for whole contexts.
    pub(super) fn said_before(&self, waiting: Waiting, cut: Cut) -> u32 {
        match waiting {
            Waiting::Again(id) if cut == Cut::Never => self.slots[id as usize].generated,
            _ => 0,
        }
    }

    /// What whoever waits would take of blocks and of an iteration.
    pub(super) fn claim(&self, waiting: Waiting, budget: u32, reserve: Reserve) -> Claim<'a> {
        let (request, generated, target, lag, owner) = match waiting {
            Waiting::New(request) => (request, 0, self.requests.list[request as usize].prompt, Lag::default(), None),
            Waiting::Again(id) => {
                let slot = &self.slots[id as usize];
                (slot.request, slot.generated, slot.target, slot.lag, Some((id, slot.epoch)))
            }
        };
        let output = self.requests.list[request as usize].output;
        let ids = self.requests.prefix(&self.requests.list[request as usize]);
        // At least one token is computed, for its logits.
        let usable = (target - 1).checked_div(self.pool.prefix_tokens()).unwrap_or(0);
        let ids = &ids[..ids.len().min(usable as usize)];
        let shared = self.pool.cached(ids);
        let in_shared = shared * self.pool.prefix_tokens();
        let n_left = owner.map_or(0, |owner| self.pool.left(owner, in_shared));
        let n_left = n_left.min((target - 1 - in_shared) / self.limits().block_tokens);
        let below = if n_left > 0 { &ids[..0] } else { &ids[shared as usize..] };
        let brought = self.brought(below, shared, target);
        let n_brought = u32::try_from(brought.0.len()).expect("fewer than 2^32 prefixes");
        let cached_tokens = in_shared + n_brought * self.pool.prefix_tokens() + n_left * self.limits().block_tokens;
        let rest = target - cached_tokens;
        let is_here = self.role() != Role::Outputs;
        let tokens = if is_here { rest.min(budget).min(self.chunk_max(cached_tokens)) } else { 0 };
        let is_whole = !is_here || reserve == Reserve::Whole || self.is_long(target);
        let covered = if is_whole { target - u32::from(!is_here) } else { cached_tokens + tokens };
        let blocks = self.blocks_of(covered) - shared * self.pool.blocks_per_prefix();
        let held = &ids[..shared as usize];
        let next = if is_here { 0 } else { self.first_growth(target - 1, output - generated) };
        Claim { request, generated, target, lag, held, n_left, brought, rest, tokens, blocks, next, is_whole }
    }

    /// Which prefixes of a prompt of `target` tokens come from below, behind `shared` cached ones: as many as save most of the time that they add to what
    /// is computed, and none where bringing them takes as long.
    fn brought(&self, ids: &'a [u32], shared: u32, target: u32) -> (&'a [u32], Brought) {
        let none = (&ids[..0], Brought::default());
        if self.role() == Role::Outputs {
            return none;
        }
        let (each, past) = (self.pool.prefix_tokens(), shared * self.pool.prefix_tokens());
        // Most prompts have nothing below, and are not timed.
        let mut ways = self.pool.below(ids).peekable();
        if ways.peek().is_none() {
            return none;
        }
        let computed = self.prompt_ticks(past, target);
        let gain = |found: &Brought| {
            let n = u32::try_from(found.n).expect("fewer than 2^32 prefixes");
            computed.saturating_sub(self.prompt_ticks(past + n * each, target) + found.ticks)
        };
        let best = ways.map(|found| (gain(&found), found)).max_by_key(|(gain, _)| *gain);
        best.filter(|(gain, _)| *gain > Tick::ZERO).map_or(none, |(_, found)| (&ids[..found.n], found))
    }

    /// Ticks to compute a prompt by itself from so many tokens on, in iterations that are as large as may be.
    fn prompt_ticks(&self, mut past: u32, target: u32) -> Tick {
        let mut ticks = Tick::ZERO;
        while past < target {
            let new = (target - past).min(self.limits().tokens_max);
            let load = StepLoad { n_chunk_tokens: new, n_chunks: 1, ..StepLoad::default() };
            ticks += self.engine.table.round(&load, [Chunk { past, new }].into_iter()).ticks;
            past += new;
        }
        ticks
    }

    /// Blocks that a sequence of so many cached tokens takes in its first iteration, with so many output tokens left.
    pub(super) fn first_growth(&self, tokens: u32, left: u32) -> u32 {
        let ahead = self.engine.table.tokens_per_sequence().min(left);
        self.blocks_of(tokens + ahead) - self.blocks_of(tokens)
    }

    /// Takes the blocks of whoever waits longest and gives it a slot; none, and nothing taken, when it has to wait on. `taken`: blocks that decoding sequences
    /// have taken for the iteration that is composed.
    pub(super) fn take_in(&mut self, taken: u32, head: Waiting, claim: &Claim<'_>) -> Option<u32> {
        let spare = self.spare_beside(taken, claim);
        if !self.fits_beside(spare, claim) {
            return None;
        }
        let free = self.place_free(claim.blocks);
        self.pool.hold(claim.held);
        let id = match head {
            Waiting::New(_) => self.free_slot(),
            Waiting::Again(id) => id,
        };
        let owner = (id, self.slots[id as usize].epoch);
        let is_there = self.pool.take_again(owner, claim.n_left, claim.blocks);
        assert!(is_there, "{} blocks are there", claim.blocks);
        self.waiting.pop_front();
        let Claim { request, generated, target, lag, blocks, .. } = *claim;
        let epoch = self.slots[id as usize].epoch;
        let (computed, phase) = (target - claim.rest, Phase::Prefill);
        let shared = u32::try_from(claim.held.len()).expect("fewer than 2^32 prefixes");
        self.slots[id as usize] = Slot {
            request,
            phase,
            epoch,
            generated,
            computed,
            below: [0; 2],
            target,
            blocks,
            shared,
            host_blocks: 0,
            encoded: 0,
            joined_step: 0,
            lag,
        };
        self.take_place(id, free);
        self.keep_for(id);
        self.take_up(request, id);
        Some(id)
    }

    /// Whether a claim leaves so many blocks free. Cached prefixes that nobody holds are free until it holds them.
    pub(super) fn fits_beside(&self, spare: u32, claim: &Claim<'_>) -> bool {
        let held = self.pool.unheld(claim.held);
        self.pool.available() >= claim.blocks.saturating_add(held).saturating_add(spare)
    }

    pub(super) fn admit_prompt(
        &mut self,
        composed: &mut Composed,
        head: Waiting,
        budget: u32,
        reserve: Reserve,
        cut: Cut,
    ) -> bool {
        let budget = budget + self.said_before(head, cut);
        let mut claim = self.claim(head, budget, reserve);
        if cut == Cut::Never {
            if claim.rest > budget {
                return false;
            }
            // The largest chunk of a lane has no room for what was answered before.
            claim.tokens = claim.rest;
        }
        let cached = claim.target - claim.rest;
        let (tokens, encoded) = self.before_images(composed, (claim.request, None), (cached, claim.tokens), 0);
        if tokens < claim.tokens {
            if tokens == 0 {
                return false;
            }
            claim = self.claim(head, tokens, reserve);
        }
        let Some(id) = self.take_in(self.taken_by(composed), head, &claim) else { return false };
        self.counts.cached_tokens += u64::from(cached - claim.n_left * self.limits().block_tokens);
        let (brought, chosen) = claim.brought;
        let below = [brought.len() as u64, self.pool.bring(brought, &chosen)];
        let small = |n: u64| u32::try_from(n).expect("fewer than 2^32 prefixes");
        self.slots[id as usize].below = below.map(|n| small(n) * self.pool.prefix_tokens());
        composed.transfer_ticks += chosen.ticks + self.take_adapter(id);
        self.prefilling.push_back(id);
        self.remember(id);
        self.encode(composed, id, cached, encoded);
        composed.give(id, claim.tokens, None);
        true
    }

    pub(super) fn free_slot(&mut self) -> u32 {
        self.free_slots.pop().unwrap_or_else(|| {
            let slot = Slot {
                request: 0,
                phase: Phase::Free,
                epoch: 0,
                generated: 0,
                computed: 0,
                below: [0; 2],
                target: 0,
                blocks: 0,
                shared: 0,
                host_blocks: 0,
                encoded: 0,
                joined_step: 0,
                lag: Lag::default(),
            };
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 slots")
        })
    }

    /// Notes an admission; void entries are dropped once they outnumber the running sequences.
    pub(super) fn remember(&mut self, id: u32) {
        if self.order.len() > 64 + 4 * self.n_running() as usize {
            self.drop_void();
        }
        self.order.push((id, self.slots[id as usize].epoch));
    }
}
