//! What a replica offers a batching rule from outside before an iteration, and the batch that the rule answers with.
//!
//! A batch is a list of wishes in order. The replica grants it with the moves of its own policies: blocks are taken in that order, and the
//! first request in the queue that finds none ends the admissions. Each chunk goes to the emptiest rank of data-parallel attention, and is as long as that
//! has room. Units: tokens, blocks. Invariant: what breaks a limit of the engine is refused
//! before anything is moved.

use std::collections::BTreeSet;

use hw::Time;

use super::batcher::{Cut, Reserve};
use super::{Composed, Phase, Replica, Role, Waiting};

/// A prompt that is under way, or a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Number of the request, by arrival.
    pub request: u32,
    /// When it came.
    pub arrival: Time,
    /// Tokens of its prefill; what was generated before a preemption is a part of it.
    pub target: u32,
    /// Tokens of these that are computed, cached, or kept by the host.
    pub computed: u32,
    /// Most tokens that this iteration may compute of it; 0 for one whose blocks only come back from the host.
    pub tokens_max: u32,
    /// Output tokens that its client has.
    pub generated: u32,
    /// Priority of its stream, lower first.
    pub priority: u32,
}

/// A replica before an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// When.
    pub at: Time,
    /// Sequences that decode.
    pub n_decode: u32,
    /// Tokens of an iteration that they take, all together.
    pub decode_tokens: u32,
    /// Tokens of an iteration.
    pub tokens_max: u32,
    /// Sequences that run at once, and those that run now.
    pub sequences_max: u32,
    /// Sequences that run now, those that decode and those under way.
    pub n_running: u32,
    /// Blocks that are free once those that decode have theirs.
    pub free_blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Prompts under way, oldest first.
    pub prompts: Vec<Offered>,
    /// The queue, as the engine orders it, as far as its host has seen it.
    pub waiting: Vec<Offered>,
    /// Whether an empty batch leaves somebody behind who could be served.
    pub must_go_on: bool,
}

/// What an iteration shall hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Whether those that decode take part; all of them do, or none.
    pub decodes: bool,
    /// Requests with their tokens, in order.
    pub chunks: Vec<(u32, u32)>,
    /// Whether a prompt that is admitted takes the blocks of all its tokens at once.
    pub reserves_whole: bool,
}

/// Why a batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum WrongBatch {
    /// Nobody of that number is here.
    #[error("request {0} neither waits nor is under way here")]
    Unknown(u32),
    /// One request twice.
    #[error("request {0} is in the batch twice")]
    Twice(u32),
    /// Too few or too many tokens of one prompt.
    #[error("{tokens} tokens of request {request} are asked for; an iteration computes {least} to {most} of it now")]
    Chunk { request: u32, tokens: u32, least: u32, most: u32 },
    /// More tokens than an iteration holds.
    #[error("the batch has {tokens} tokens, those of decoding sequences included, and an iteration holds {most}")]
    Tokens { tokens: u64, most: u32 },
    /// More sequences than run at once.
    #[error("with the batch {sequences} sequences would run, and at most {most} do")]
    Sequences { sequences: u64, most: u32 },
    /// Nothing, though somebody is here.
    #[error(
        "the batch is empty, and nothing else would ever wake the replica: {running} sequences run and {waiting} requests wait"
    )]
    Empty { running: u32, waiting: usize },
}

impl Offer {
    /// Holds a batch against the limits of the engine.
    ///
    /// # Errors
    /// The first limit that it breaks.
    pub fn check(&self, batch: &Batch) -> Result<(), WrongBatch> {
        let (mut seen, mut sequences) = (BTreeSet::new(), u64::from(self.n_running));
        let mut tokens = if batch.decodes { u64::from(self.decode_tokens) } else { 0 };
        for &(request, of) in &batch.chunks {
            let is = |offered: &&Offered| offered.request == request;
            let under_way = self.prompts.iter().find(is);
            let offered = under_way.or_else(|| self.waiting.iter().find(is)).ok_or(WrongBatch::Unknown(request))?;
            if !seen.insert(request) {
                return Err(WrongBatch::Twice(request));
            }
            let (least, most) = (offered.tokens_max.min(1), offered.tokens_max);
            if of < least || of > most {
                return Err(WrongBatch::Chunk { request, tokens: of, least, most });
            }
            tokens += u64::from(of);
            sequences += u64::from(under_way.is_none());
        }
        if tokens > u64::from(self.tokens_max) {
            return Err(WrongBatch::Tokens { tokens, most: self.tokens_max });
        }
        if sequences > u64::from(self.sequences_max.max(self.n_running)) {
            return Err(WrongBatch::Sequences { sequences, most: self.sequences_max });
        }
        let is_empty = batch.chunks.is_empty() && !(batch.decodes && self.n_decode > 0);
        if is_empty && self.must_go_on {
            return Err(WrongBatch::Empty { running: self.n_running, waiting: self.waiting.len() });
        }
        Ok(())
    }
}

impl Replica<'_> {
    /// What a rule is offered; nothing where nobody is here.
    pub fn offer(&self) -> Option<Offer> {
        let mut prompts = Vec::new();
        for id in &self.prefilling {
            let slot = &self.slots[*id as usize];
            let tokens_max = (slot.target - slot.computed).min(self.chunk_max(slot.computed));
            prompts.push(self.offered(slot.request, (slot.target, slot.computed, tokens_max), slot.generated));
        }
        let waiting = self.offered_queue();
        if self.n_decode == 0 && prompts.is_empty() && waiting.is_empty() {
            return None;
        }
        let is_running = self.n_decode > 0 || !prompts.is_empty();
        Some(Offer {
            at: self.outstanding_since.time(),
            n_decode: self.n_decode,
            decode_tokens: self.n_decode * self.engine.table.tokens_per_sequence(),
            tokens_max: self.tokens_max(),
            sequences_max: self.sequences_max(),
            n_running: self.n_running(),
            free_blocks: self.pool.available().saturating_sub(self.decode_growth()),
            block_tokens: self.limits().block_tokens,
            prompts,
            waiting,
            must_go_on: is_running || !self.may_rest(),
        })
    }

    /// The queue as far as the host has seen it.
    fn offered_queue(&self) -> Vec<Offered> {
        let mut waiting = Vec::new();
        for &each in self.waiting.iter().take(self.waiting.len() - self.n_unseen) {
            if let Waiting::Again(id) = each
                && self.slots[id as usize].phase == Phase::Swapped
            {
                let slot = &self.slots[id as usize];
                waiting.push(self.offered(slot.request, (slot.target, slot.target, 0), slot.generated));
            } else if self.role() != Role::Outputs {
                let claim = self.claim(each, u32::MAX, Reserve::Chunk);
                let parts = (claim.target, claim.target - claim.rest, claim.tokens);
                waiting.push(self.offered(claim.request, parts, claim.generated));
            }
        }
        waiting
    }

    fn offered(&self, request: u32, parts: (u32, u32, u32), generated: u32) -> Offered {
        let (target, computed, tokens_max) = parts;
        let (of, priority) = (&self.requests.list[request as usize], self.requests.priority_of(request as usize));
        Offered { request, arrival: of.arrival, target, computed, tokens_max, generated, priority }
    }

    /// Composes an iteration as a batch says that was checked.
    pub fn grant(&mut self, batch: &Batch, composed: &mut Composed) {
        if batch.decodes {
            self.decode_all(composed);
        }
        let room = if batch.decodes { self.room_of_rank() } else { self.tokens_of_rank() };
        let mut admits = true;
        for &(request, wish) in &batch.chunks {
            let tokens = wish.min(room.saturating_sub(composed.fewest_tokens()));
            let is_it = |id: &&u32| self.slots[**id as usize].request == request;
            if let Some(&id) = self.prefilling.iter().find(is_it) {
                self.give_chunk(composed, id, tokens);
            } else {
                // Who has given way in this iteration comes back in a later one.
                admits = admits && composed.n_preempted == 0 && tokens.min(1) == wish.min(1);
                admits = admits && self.admit_named(composed, (request, tokens), batch);
            }
        }
    }

    /// Admits somebody out of turn; nothing changes where there is no room.
    fn admit_named(&mut self, composed: &mut Composed, chunk: (u32, u32), batch: &Batch) -> bool {
        let (request, tokens) = chunk;
        let Some(at) = self.waiting.iter().position(|waiting| self.who(*waiting) == request) else { return false };
        if !self.admits_adapter(request) {
            return false;
        }
        let reserve = if batch.reserves_whole { Reserve::Whole } else { Reserve::Chunk };
        // A sequence that comes back from the host takes no tokens of the budget.
        self.admit_at(composed, at, tokens.max(1), (reserve, Cut::Chunked))
    }
}
