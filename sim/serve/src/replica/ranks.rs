//! Ranks of data-parallel attention, where prompts wait for them.
//!
//! Either prompts wait until every rank has one. Then a request goes to the rank with the fewest and stays there. Or a rank was drawn for a request before it
//! came, and it waits for that one while others may be idle. Every rank has tokens and places of its own. Elsewhere sequences are not told apart by rank:
//! they are spread evenly (`step_cost/lanes.rs`), and each chunk goes to the rank with the fewest tokens, as far as that has room.
//!
//! Sources: NVIDIA/TensorRT-LLM, `tensorrt_llm/_torch/pyexecutor/` (Apache-2.0), `executor_request_queue.py` (`_balance_requests_across_ranks`) and
//! `py_executor.py` (`_balance_adp_requests`). sgl-project/sglang v0.5.5 to v0.5.8 (Apache-2.0), `data_parallel_controller.py`: a worker that computes prompts for
//! others sends a request to rank `bootstrap_room % n`, whatever `--load-balance-method` says (`_handle_load_balance_method` in server_args.py). Routers draw the
//! room: `random.randint(0, 2**63 - 1)` in dynamo/sglang/request_handlers/handler_base.py of ai-dynamo 0.8.1, `rand::rng().random()` in its
//! prefill_router.rs. Approximation: memory is that of all ranks together. Invariant: who is computed or decodes here is on one rank.

use engine::random::{self, Stream};

use super::batcher::Batcher;
use super::{Composed, Cut, Gather, Replica, Reserve, Waiting};

hw::words! {
    /// Which rank computes a prompt, on a replica that computes prompts for others.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PromptRank: word {
        /// Any: ranks have as many tokens.
        #[default]
        Even = "even",
        /// One that was drawn for the request.
        Drawn = "drawn",
    }
}

/// Which rank has which sequence.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    /// Sequences of every rank.
    n: Vec<u32>,
    /// Rank of every slot that is computed or decodes.
    of_slot: Vec<Option<u32>>,
    /// Draws of requests, where these decide.
    drawn: Option<Stream>,
}

/// Somebody who waits, with a rank.
#[derive(Clone, Copy, Debug)]
struct Queued {
    rank: usize,
    /// Tokens of the prompt.
    tokens: u32,
}

impl Ranks {
    /// Of a replica whose prompts wait for ranks, where there are several; whether it computes prompts for others.
    pub(super) fn of(
        (gather, rank): (Option<Gather>, PromptRank),
        is_for_others: bool,
        n_ranks: u32,
    ) -> Option<Box<Self>> {
        let waits = matches!(gather, Some(Gather::Ranks { .. }));
        let is_drawn = !waits && rank == PromptRank::Drawn && is_for_others;
        let drawn = is_drawn.then(|| random::stream(0, "prompt ranks"));
        let ranks = || Box::new(Self { n: vec![0; n_ranks as usize], of_slot: Vec::new(), drawn });
        ((waits || is_drawn) && n_ranks > 1).then(ranks)
    }

    /// Rank that was drawn for a request.
    fn drawn(&self, request: u32) -> Option<usize> {
        let mut stream = self.drawn.as_ref()?.branch(request.into());
        usize::try_from(stream.below(self.n.len() as u64)).ok()
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
    pub fn tells_ranks_apart(&self) -> bool {
        self.ranks.as_ref().is_some_and(|ranks| ranks.drawn.is_none())
    }

    /// Whether a rank was drawn for every prompt.
    pub fn draws_ranks(&self) -> bool {
        self.ranks.as_ref().is_some_and(|ranks| ranks.drawn.is_some())
    }

    /// Gives chunks to prompts on the ranks that were drawn for them: to those under way, then to whoever waits, as far as every rank has room.
    pub fn compute_on_drawn(&mut self, composed: &mut Composed, policy: &dyn Batcher) {
        let Some(ranks) = &self.ranks else { return };
        let mut left = vec![self.engine.limits.tokens_max; ranks.n.len()];
        let mut n = vec![0; ranks.n.len()];
        for index in 0..self.prefilling.len() {
            let Some(&id) = self.prefilling.get(index) else { return };
            let rank = self.rank_of(id).expect("a prompt under way is on a rank") as usize;
            n[rank] += 1;
            let before = composed.n_chunk_tokens;
            if left[rank] > 0 && !self.give_chunk(composed, id, left[rank]) {
                return;
            }
            left[rank] -= composed.n_chunk_tokens - before;
        }
        let (places, wish) = (self.engine.limits.sequences_max, (policy.reserve(), policy.cut()));
        let mut at = 0;
        while at + self.n_unseen < self.waiting.len() && composed.n_preempted == 0 {
            let request = self.who(self.waiting[at]);
            let rank = self.ranks.as_ref().and_then(|ranks| ranks.drawn(request)).expect("a rank of every request");
            if left[rank] == 0 || n[rank] >= places {
                at += 1;
                continue;
            }
            let before = composed.n_chunk_tokens;
            if !self.admit_at(composed, at, left[rank], wish) {
                break;
            }
            left[rank] -= composed.n_chunk_tokens - before;
            n[rank] += 1;
            self.enter_rank(composed, rank);
        }
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
        let room = self.room_of_rank();
        let has_prompt =
            |rank| queue.iter().find(|queued| queued.rank == rank).is_some_and(|queued| queued.tokens <= room);
        let is_whole = all_have_places && (0..ranks.n.len()).all(has_prompt);
        let waits = if is_whole {
            self.n_gathered = 0;
            self.n_more = if all_decode && self.n_more < more { self.n_more + 1 } else { 0 };
            self.n_more > 0
        } else {
            self.n_gathered += 1;
            let is_over = self.n_gathered >= iterations || !all_decode;
            self.n_gathered = if is_over { 0 } else { self.n_gathered };
            !is_over
        };
        // With a prompt on every rank boundaries count otherwise than in a span, also where blocks are all that is missing.
        composed.gathers = (waits || is_whole) && !queue.is_empty();
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
        let mut left = vec![self.room_of_rank(); ranks.n.len()];
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
    fn enter_rank(&mut self, composed: &mut Composed, rank: usize) {
        let prompt = composed.chunks.last().map(|(id, _)| *id).filter(|id| self.rank_of(*id).is_none());
        if prompt.is_some() {
            composed.move_last(u32::try_from(rank).expect("few ranks"));
        }
        let id = prompt.or_else(|| composed.returning.last().copied()).expect("somebody was taken in");
        if let Some(ranks) = &mut self.ranks {
            ranks.enter(id, rank);
        }
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
