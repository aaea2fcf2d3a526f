//! Prompts that wait for others while sequences decode, so that an iteration with prompts is worth its while.
//!
//! Source: NVIDIA/TensorRT-LLM, `tensorrt_llm/_torch/pyexecutor/py_executor.py` (`_waiting_requests`, Apache-2.0): `batch_wait_timeout_iters` and
//! `batch_wait_max_tokens_ratio`. A boundary at which prompts could join counts one, until the tokens of the iteration would be enough or
//! the count is full. Where nobody decodes, nobody waits. With ranks of data-parallel attention prompts wait until every rank has one (`ranks.rs`;
//! `_balance_adp_requests`: `timeout_iters` and `batching_wait_iters` of `attention_dp_config`). Units: iterations, tokens.

use serde::{Deserialize, Serialize};

use super::{Composed, Replica, Reserve, Waiting};

/// How long prompts wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Gather {
    /// Until an iteration has enough tokens.
    Tokens {
        /// Boundaries at which they stay behind, at most.
        iterations: u32,
        /// Tokens of an iteration, those of decoding sequences too, that are enough.
        tokens: u32,
    },
    /// Until every rank of data-parallel attention has one.
    Ranks {
        /// Boundaries from one opening to the next, at most; they count whether somebody waits or not.
        iterations: u32,
        /// Boundaries at which they stay behind once every rank has one.
        more: u32,
    },
}

impl Replica<'_> {
    /// Whether those who wait are left behind once more; counts the boundary.
    pub fn gathers(&mut self, composed: &mut Composed) -> bool {
        let (iterations, enough) = match self.engine.limits.gather {
            None => return false,
            Some(Gather::Ranks { iterations, more }) => return self.waits_for_ranks(composed, iterations, more),
            Some(Gather::Tokens { iterations, tokens }) => (iterations, tokens),
        };
        let decoding = self.n_decode * self.engine.table.tokens_per_sequence();
        let room = self.tokens_max().saturating_sub(decoding);
        let prompts = self.prompts_within(room);
        if !composed.decodes || prompts == 0 || !self.first_fits(composed, room) {
            return false;
        }
        composed.gathers = self.n_gathered < iterations && decoding + prompts < enough;
        self.n_gathered = if composed.gathers { self.n_gathered + 1 } else { 0 };
        composed.gathers
    }

    /// Whether memory holds whoever waits longest: who waits for blocks does not wait for others.
    fn first_fits(&self, composed: &Composed, room: u32) -> bool {
        let Some(head) = self.waiting.front().copied() else { return false };
        let claim = self.claim(head, room, Reserve::Whole);
        let spare = self.spare_beside(self.taken_by(composed), &claim);
        self.fits_beside(spare, &claim)
    }

    /// Tokens of the prompt of somebody who waits.
    pub(super) fn target_of(&self, waiting: Waiting) -> u32 {
        match waiting {
            Waiting::New(request) => self.requests.list[request as usize].prompt,
            Waiting::Again(id) => self.slots[id as usize].target,
        }
    }

    /// Tokens of the prompts that whole fit the room and the places of an iteration, oldest first.
    fn prompts_within(&self, room: u32) -> u32 {
        let places = self.sequences_max().saturating_sub(self.n_running());
        let n_seen = self.waiting.len().saturating_sub(self.n_unseen);
        let mut taken = 0;
        for waiting in self.waiting.iter().take(n_seen.min(places as usize)) {
            let tokens = self.target_of(*waiting);
            if taken + tokens > room {
                break;
            }
            taken += tokens;
        }
        taken
    }
}
