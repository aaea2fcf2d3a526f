//! Ranks of data-parallel attention, where prompts wait until every rank has one.
//!
//! A request goes to the rank with the fewest and stays there. Every rank has tokens and places of its own. Elsewhere ranks are not told apart: sequences
//! are spread evenly (`step_cost/lanes.rs`). Source: NVIDIA/TensorRT-LLM, `tensorrt_llm/_torch/pyexecutor/` (Apache-2.0), `executor_request_queue.py`
//! (`_balance_requests_across_ranks`) and `py_executor.py` (`_balance_adp_requests`). Approximation: memory is that of all ranks together.
//! Invariant: who has blocks here is on one rank.

use super::{Composed, Cut, Gather, Replica, Reserve, Waiting};

/// Which rank has which sequence.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    /// Sequences of every rank.
    n: Vec<u32>,
    /// Rank of every slot that has blocks.
    of_slot: Vec<Option<u32>>,
}

/// Somebody who waits, with a rank.
#[derive(Clone, Copy, Debug)]
struct Queued {
    rank: usize,
    /// Tokens of the prompt.
    tokens: u32,
}

impl Ranks {
    /// Of an engine whose prompts wait for ranks, where there are several.
    pub(super) fn of(gather: Option<Gather>, n_ranks: u32) -> Option<Box<Self>> {
        let is_asked = matches!(gather, Some(Gather::Ranks { .. })) && n_ranks > 1;
        is_asked.then(|| Box::new(Self { n: vec![0; n_ranks as usize], of_slot: Vec::new() }))
    }

    fn enter(&mut self, id: u32, rank: usize) {
        let id = id as usize;
        self.of_slot.resize(self.of_slot.len().max(id + 1), None);
        assert!(self.of_slot[id].is_none(), "a sequence is on one rank");
        self.of_slot[id] = u32::try_from(rank).ok();
        self.n[rank] += 1;
    }

    fn leave(&mut self, id: u32) {
        if let Some(rank) = self.of_slot.get_mut(id as usize).and_then(Option::take) {
            self.n[rank as usize] -= 1;
        }
    }
}

impl Replica<'_> {
    /// Rank of a slot, where ranks are told apart.
    pub(super) fn rank_of(&self, id: u32) -> Option<u32> {
        self.ranks.as_ref().and_then(|ranks| ranks.of_slot.get(id as usize).copied().flatten())
    }

    /// Whether prompts wait until every rank has one.
    pub const fn tells_ranks_apart(&self) -> bool {
        self.ranks.is_some()
    }

    /// A sequence gives its place up.
    pub(super) fn leave_rank(&mut self, id: u32) {
        if let Some(ranks) = &mut self.ranks {
            ranks.leave(id);
        }
    }

    /// Nobody is left.
    pub(super) fn forget_ranks(&mut self) {
        if let Some(ranks) = &mut self.ranks {
            ranks.n.fill(0);
            ranks.of_slot.clear();
        }
    }

    /// Whether prompts stay behind at one more boundary because not every rank has one; counts the boundary. With a prompt on every rank
    /// they stay for `more` boundaries. A rank that does not decode waits for nobody.
    pub(super) fn waits_for_ranks(&mut self, composed: &mut Composed, iterations: u32, more: u32) -> bool {
        let Some(ranks) = &self.ranks else { return false };
        let places = self.engine.limits.sequences_max;
        let (all_decode, all_have_places) = (ranks.n.iter().all(|n| *n > 0), ranks.n.iter().all(|n| *n < places));
        let queue = self.queue_on_ranks(&ranks.n);
        let room = self.tokens_of_rank();
        let has_prompt =
            |rank| queue.iter().find(|queued| queued.rank == rank).is_some_and(|queued| queued.tokens <= room);
        let waits = if all_have_places && (0..ranks.n.len()).all(has_prompt) {
            self.n_gathered = 0;
            self.n_more = if all_decode && self.n_more < more { self.n_more + 1 } else { 0 };
            self.n_more > 0
        } else {
            self.n_gathered += 1;
            let is_over = self.n_gathered >= iterations || !all_decode;
            self.n_gathered = if is_over { 0 } else { self.n_gathered };
            !is_over
        };
        composed.gathers = waits && !queue.is_empty();
        waits
    }

    /// Counts the boundaries within a span in which nobody came.
    pub(super) fn count_boundaries(&mut self, n_steps: u64) {
        let (Some(_), Some(Gather::Ranks { iterations, .. })) = (&self.ranks, self.engine.limits.gather) else {
            return;
        };
        let n = (u64::from(self.n_gathered) + n_steps - 1) % u64::from(iterations);
        self.n_gathered = u32::try_from(n).expect("below the iterations");
    }

    /// Takes in whole prompts, as far as their ranks have room.
    pub fn admit_on_ranks(&mut self, composed: &mut Composed, reserve: Reserve) {
        let Some(ranks) = self.ranks.as_ref().filter(|_| composed.n_preempted == 0) else { return };
        let mut left = vec![self.tokens_of_rank(); ranks.n.len()];
        let places = self.engine.limits.sequences_max;
        let mut at = 0;
        for Queued { rank, tokens } in self.queue_on_ranks(&ranks.n) {
            let is_full = self.ranks.as_ref().is_none_or(|ranks| ranks.n[rank] >= places);
            if is_full || tokens > left[rank] {
                // Whoever comes behind on this rank waits too.
                left[rank] = 0;
                at += 1;
                continue;
            }
            if !self.admit_at(composed, at, left[rank], (reserve, Cut::Never)) {
                break;
            }
            left[rank] -= tokens;
            self.enter_rank(composed, rank);
        }
    }

    /// Whoever was taken in last is on a rank from now on.
    fn enter_rank(&mut self, composed: &Composed, rank: usize) {
        let prompt = composed.chunks.last().map(|(id, _)| *id).filter(|id| self.rank_of(*id).is_none());
        let id = prompt.or_else(|| composed.returning.last().copied()).expect("somebody was taken in");
        if let Some(ranks) = &mut self.ranks {
            ranks.enter(id, rank);
        }
    }

    /// Tokens that a rank has left beside its decoding sequences.
    fn tokens_of_rank(&self) -> u32 {
        let table = &self.engine.table;
        let decoding = self.n_decode.div_ceil(table.lanes().ranks) * table.tokens_per_sequence();
        self.engine.limits.tokens_max.saturating_sub(decoding)
    }

    /// Those who wait and are seen, in order, each on the rank with the fewest then: as many as there are places.
    fn queue_on_ranks(&self, n: &[u32]) -> Vec<Queued> {
        let mut n = n.to_vec();
        let places = self.sequences_max().saturating_sub(self.n_running()) as usize;
        let n_seen = self.waiting.len() - self.n_unseen;
        let placed = |waiting: &Waiting| {
            let rank = (0..n.len()).min_by_key(|rank| n[*rank]).expect("several ranks");
            n[rank] += 1;
            Queued { rank, tokens: self.target_of(*waiting) }
        };
        self.waiting.iter().take(n_seen.min(places)).map(placed).collect()
    }
}
