//! One replica of an engine: who waits, who runs, which blocks they own; and the moves that a batching policy may make.
//!
//! A policy composes every iteration from these moves (`batcher.rs`); `replica/run.rs` then advances time. Decoding sequences are never
//! touched one by one: all of them gain a token per iteration that decodes, so it is enough to know in which iteration each
//! ends, how many cached tokens they read together, and how many cross into a new block in each phase of the block size.
//! Units: tokens, blocks, ticks. Invariants: a sequence is in one place at a time, and a decoding sequence of `k` cached tokens owns
//! or holds exactly `ceil(k / block)` blocks between iterations. Where tokens are drafted, sequences gain different numbers of tokens
//! and are kept one by one (`replica/verify.rs`). With several lanes an iteration is a round of all of them (`step_cost/lanes.rs`).

mod adapters;
mod admission;
pub mod batcher;
mod composed;
mod flow;
mod gathering;
mod going;
mod gone;
mod hand_on;
mod handover;
mod images;
mod limits;
mod loans;
mod looks;
mod loss;
pub mod offer;
mod outputs;
mod pipeline;
mod preempt;
mod promises;
mod queue;
mod ranks;
mod run;
mod token_log;
mod verify;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::kv::pool::Pool;
use crate::request::Requests;
use crate::step_cost::StepTable;
use adapters::Adapters;
use batcher::{Batcher, Cut, Reserve};
pub use composed::Composed;
use flow::Flow;
pub use gathering::Gather;
use going::Going;
use handover::Handover;
pub use handover::{FirstToken, Moving, Role};
use hw::{Tick, TickSum};
pub use limits::{Limits, Preemption};
use loans::Loans;
pub use loans::{Head, Needs, Neighbour, Part};
use looks::Looks;
pub use loss::Lost;
use pipeline::{Lag, Pipeline};
pub use promises::CapacityPolicy;
pub use queue::Order;
pub use ranks::PromptRank;
use ranks::Ranks;
pub(crate) use token_log::TokenLog;

/// An engine: its limits, its speed and how it batches.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Limits.
    pub limits: Limits,
    /// Time of an iteration.
    pub table: StepTable,
    /// Policy that composes iterations.
    pub batcher: &'static dyn Batcher,
    /// Whether spans in which the batch does not change are advanced at once; results are the same either way.
    pub spans: Spans,
}

/// How iterations with an unchanged batch are advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spans {
    /// All at once.
    Closed,
    /// One by one: the independent check of `Closed`.
    Stepwise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Waiting,
    Swapped,
    Prefill,
    Decode,
    /// It has ended, but an asynchronous engine computes one more token before it knows.
    Spent,
    /// It decodes, but for the iteration under way.
    Skipped,
    /// Its keys and values are on their way to or from another replica.
    Moving,
}

/// A sequence that was admitted at least once.
#[derive(Clone, Copy, Debug)]
struct Slot {
    request: u32,
    phase: Phase,
    /// Changes when the slot changes hands or its sequence leaves the running ones; older references are void.
    epoch: u32,
    /// Output tokens so far.
    generated: u32,
    /// Tokens of the prefill that are computed or were cached.
    computed: u32,
    /// Those that came from below the device when it was admitted, and those of them that came from the store.
    below: [u32; 2],
    /// Tokens that the prefill must cover: the prompt, and after a preemption what was generated.
    target: u32,
    /// Blocks of its own, as of `joined_step` for a decoding sequence.
    blocks: u32,
    /// Leading prefixes that it holds.
    shared: u32,
    /// Its blocks on the host.
    host_blocks: u32,
    /// Leading images of its prompt that need no encoder any more.
    encoded: u32,
    /// Decode iteration after which it started to decode.
    joined_step: u64,
    /// Ticks from the end of a round to the moment at which its micro-batch is through the pipeline, which may be before.
    lag: Lag,
}

impl Slot {
    /// Ticks that its prompt entered the pipeline before its round, below zero where it entered later.
    const fn early(&self) -> i64 {
        if self.generated == 0 { self.lag.ticks.saturating_neg() } else { 0 }
    }
}

/// Who waits: a new request, or a sequence that was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    New(u32),
    Again(u32),
}

/// A replica.
#[derive(Debug)]
pub struct Replica<'a> {
    engine: &'a Engine,
    /// Composes iterations: the engine's policy, or somebody's own.
    batcher: &'a dyn Batcher,
    requests: &'a Requests,
    model: u32,
    /// Blocks.
    pub pool: Pool,
    /// In order of admission; those that the host has not seen are at the end.
    waiting: VecDeque<Waiting>,
    /// Those at its end that the next iteration is composed without: the host is an iteration ahead, or has not looked since they came.
    n_unseen: usize,
    /// When the host looks for them.
    looks: Looks,
    /// Iterations for which prompts have waited for others.
    n_gathered: u32,
    /// Iterations for which they have waited since every rank had one.
    n_more: u32,
    /// Only where prompts wait for ranks of data-parallel attention.
    ranks: Option<Box<Ranks>>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    /// Slots whose prompts are not done, oldest first.
    prefilling: VecDeque<u32>,
    /// Admitted slots in order of admission, with their epochs; those that left are void.
    order: Vec<(u32, u32)>,
    /// Decoding slots by the iteration that ends them.
    ends: BinaryHeap<Reverse<(u64, u32, u32)>>,
    n_decode: u32,
    /// Decoding slots one by one, in the order in which they joined; only where tokens are drafted.
    verifying: Vec<u32>,
    /// Decoding sequences that have ended.
    n_spent: u32,
    /// Decoding sequences that have no part in what is under way.
    skipped: Vec<u32>,
    /// Swapped sequences on their way back.
    n_returning: u32,
    /// Requests that came during a round, and when their micro-batches enter before the next one.
    newcomers: Vec<(u32, Tick)>,
    /// Keys that decoding sequences attend to in their next iteration.
    context: u64,
    /// Decode iterations so far.
    step: u64,
    /// Decoding sequences that need a block at a step of that remainder.
    phases: Vec<u32>,
    host_blocks_used: u32,
    /// Blocks that everybody who has some may still take (`replica/promises.rs`).
    promised: u64,
    handover: Handover,
    flow: Flow,
    pipeline: Pipeline,
    /// Only where replicas lend each other blocks.
    loans: Option<Box<Loans>>,
    /// Only where some requests ask for adapters, and the engine has room for them.
    adapters: Option<Box<Adapters>>,
    /// Sequences that were computed elsewhere and have given no token yet, with their epochs.
    firsts: Vec<(u32, u32)>,
    /// Requests whose clients gave up during what is under way.
    leaving: Vec<u32>,
    /// When the last request of the run ended, once that is known.
    run_ends: Option<Tick>,
    going: Option<Going>,
    /// When its frontend is done with all tokens so far.
    sent_until: Tick,
    composed: Composed,
    /// What was counted.
    pub counts: Counts,
    outstanding: u32,
    /// Blocks of their prompts, together.
    outstanding_blocks: u64,
    outstanding_since: Tick,
    /// Only where somebody asks when tokens came.
    token_log: Option<Box<TokenLog>>,
}

/// What a replica counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Iterations.
    pub n_steps: u64,
    /// Times that the event loop touched the replica's batch.
    pub n_spans: u64,
    /// Iterations that had not ended when the run did.
    pub n_beyond: u64,
    /// Preemptions.
    pub n_preempted: u64,
    /// Prompt tokens that a cached prefix saved.
    pub cached_tokens: u64,
    /// Prompt tokens computed, again after preemptions included.
    pub prefill_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Verifications of a sequence's drafts.
    pub n_verified: u64,
    /// Tokens that they gave.
    pub verified_tokens: u64,
    /// Chunks of prompts computed.
    pub n_chunks: u64,
    /// Images encoded.
    pub n_images: u64,
    /// Tokens of these images.
    pub image_tokens: u64,
    /// Ticks of encoding them, which are busy ticks too.
    pub encode_ticks: Tick,
    /// Ticks with an iteration under way.
    pub busy_ticks: Tick,
    /// Ticks with a batch under way that only decodes, that no graph holds, and that waits for the launches of its kernels.
    pub launch_ticks: Tick,
    /// Ticks that a stage computed, on average over stages; only where there are several.
    pub stage_ticks: Tick,
    /// Ticks of its frontend's work.
    pub frontend_ticks: Tick,
    /// Requests in the system, integrated over ticks.
    pub request_ticks: TickSum,
    /// Times that an adapter was loaded.
    pub n_adapter_loads: u64,
    /// Ticks that iterations waited for it.
    pub adapter_load_ticks: Tick,
    /// Requests that others passed because their adapter found no slot.
    pub n_passed_over: u64,
    /// Tokens with an adapter.
    pub adapter_tokens: u64,
    /// Different adapters of iterations, added up.
    pub adapters_read: u64,
}

impl<'a> Replica<'a> {
    /// An idle replica.
    pub fn new(engine: &'a Engine, requests: &'a Requests) -> Self {
        let limits = &engine.limits;
        let decode_tokens = u64::from(limits.sequences_max) * u64::from(engine.table.tokens_per_sequence());
        let round_tokens = u64::from(limits.tokens_max) * u64::from(engine.table.lanes().stages);
        let has_room = !engine.batcher.counts_decoding() || round_tokens >= decode_tokens;
        assert!(has_room, "every decoding sequence has its tokens in an iteration");
        let prefix_tokens = if limits.shares_prefixes { requests.prefix_tokens } else { 0 };
        Self {
            engine,
            batcher: engine.batcher,
            requests,
            model: 0,
            pool: Pool::new(limits.kv_blocks, limits.block_tokens, prefix_tokens)
                .evicting(limits.eviction)
                .with_tiers(&limits.tiers),
            waiting: VecDeque::new(),
            n_unseen: 0,
            looks: Looks::default(),
            n_gathered: 0,
            n_more: 0,
            ranks: Ranks::of((limits.gather, limits.prompt_rank), false, engine.table.lanes().ranks),
            slots: Vec::new(),
            free_slots: Vec::new(),
            prefilling: VecDeque::new(),
            order: Vec::new(),
            ends: BinaryHeap::new(),
            n_decode: 0,
            verifying: Vec::new(),
            n_spent: 0,
            skipped: Vec::new(),
            n_returning: 0,
            newcomers: Vec::new(),
            context: 0,
            step: 0,
            phases: vec![0; limits.block_tokens as usize],
            host_blocks_used: 0,
            promised: 0,
            handover: Handover::default(),
            flow: Flow::default(),
            pipeline: Pipeline::default(),
            loans: None,
            adapters: Adapters::of(limits.adapters, requests),
            firsts: Vec::new(),
            leaving: Vec::new(),
            run_ends: None,
            going: None,
            sent_until: Tick::ZERO,
            composed: Composed::of_ranks(engine.table.lanes().ranks),
            counts: Counts::default(),
            outstanding: 0,
            outstanding_blocks: 0,
            outstanding_since: Tick::ZERO,
            token_log: None,
        }
    }

    /// Keeps from now on when tokens come.
    pub(crate) fn watch_tokens(&mut self) {
        self.token_log = Some(Box::new(TokenLog::new(self.engine.limits.frontend)));
    }

    /// When tokens came, where that was asked.
    pub(crate) fn token_log(&self) -> Option<&TokenLog> {
        self.token_log.as_deref()
    }

    /// Requests that are here and not finished.
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Blocks of the prompts that are here and not finished, and of others' requests.
    pub fn outstanding_blocks(&self) -> u64 {
        self.outstanding_blocks + u64::from(self.pool.lent())
    }

    /// A request is here from now on.
    fn count_in(&mut self, request: u32, now: Tick) {
        self.count_time(now);
        self.outstanding += 1;
        self.outstanding_blocks += self.prompt_blocks(request);
    }

    /// A request is here no more; time was counted.
    fn count_out(&mut self, request: u32) {
        self.outstanding -= 1;
        self.outstanding_blocks -= self.prompt_blocks(request);
    }

    fn prompt_blocks(&self, request: u32) -> u64 {
        u64::from(self.blocks_of(self.requests.list[request as usize].prompt))
    }

    /// Limits of the engine.
    pub const fn limits(&self) -> &Limits {
        &self.engine.limits
    }

    /// Decoding sequences.
    pub const fn n_decode(&self) -> u32 {
        self.n_decode
    }

    /// Batches under way at once.
    pub const fn n_lanes(&self) -> u32 {
        self.engine.table.lanes().n()
    }

    /// Tokens of an iteration, over all lanes.
    pub const fn tokens_max(&self) -> u32 {
        self.engine.limits.tokens_max.saturating_mul(self.engine.table.lanes().n())
    }

    /// Tokens of an iteration on each rank of data-parallel attention, over all its micro-batches.
    pub const fn tokens_of_rank(&self) -> u32 {
        self.engine.limits.tokens_max.saturating_mul(self.engine.table.lanes().stages)
    }

    /// Tokens of chunks for which each rank has room beside its decoding sequences.
    pub fn room_of_rank(&self) -> u32 {
        let table = &self.engine.table;
        let decoding = self.n_decode.div_ceil(table.lanes().ranks) * table.tokens_per_sequence();
        self.tokens_of_rank().saturating_sub(decoding)
    }

    /// Tokens that the emptiest rank has left beside its decoding sequences and its chunks.
    pub fn tokens_left(&self, composed: &Composed) -> u32 {
        self.room_of_rank().saturating_sub(composed.fewest_tokens())
    }

    /// The same where decoding sequences take no room.
    pub fn prompt_tokens_left(&self, composed: &Composed) -> u32 {
        self.tokens_of_rank().saturating_sub(composed.fewest_tokens())
    }

    /// Tokens of one prompt in an iteration after `past` tokens: it stays on one rank of data-parallel attention, and has a chunk in each
    /// micro-batch.
    fn chunk_max(&self, past: u32) -> u32 {
        let (table, tokens_max) = (&self.engine.table, self.engine.limits.tokens_max);
        let stages = table.lanes().stages;
        if table.chunking().is_none() {
            return tokens_max.saturating_mul(stages);
        }
        (0..stages)
            .fold(0, |taken: u32, _| taken.saturating_add(table.chunk_max(past.saturating_add(taken)).min(tokens_max)))
    }

    /// Sequences that run at once, over all ranks.
    const fn sequences_max(&self) -> u32 {
        self.engine.limits.sequences_max.saturating_mul(self.engine.table.lanes().ranks)
    }

    /// Sequences with blocks.
    pub fn n_running(&self) -> u32 {
        let others = self.prefilling.len() + self.skipped.len();
        self.n_decode + self.n_returning + u32::try_from(others).expect("fewer than 2^32 sequences")
    }

    /// Whether someone waits to be admitted.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Prompt tokens of a request that are cached here.
    pub fn cached_tokens(&self, request: u32) -> u32 {
        let request = &self.requests.list[request as usize];
        self.pool.cached(self.requests.prefix(request)) * self.pool.prefix_tokens()
    }

    /// Gives the replica its model.
    pub fn with_model(self, model: u32) -> Self {
        Self { model, ..self }
    }

    /// Gives the replica another policy than its engine's.
    pub fn with_batcher(self, batcher: &'a dyn Batcher) -> Self {
        Self { batcher, ..self }
    }

    /// Whether it serves the model that a request asks for.
    pub fn serves(&self, request: u32) -> bool {
        self.requests.model_of(request as usize) == self.model
    }

    /// Whether a request could ever run here.
    pub fn can_hold(&self, request: u32) -> bool {
        self.can_hold_with(request, self.borrowable())
    }

    /// Whether a request could ever run here, where others lend so many blocks.
    pub fn can_hold_with(&self, request: u32, borrowed: u32) -> bool {
        if !self.serves(request) {
            return false;
        }
        let index = request as usize;
        let limits = self.limits();
        let tokens = u64::from(self.requests.list[index].prompt) + u64::from(self.requests.asked_of(index));
        // The last output token is never cached.
        let blocks = (tokens - 1).div_ceil(u64::from(limits.block_tokens)) + u64::from(limits.blocks_per_sequence);
        let fits_step = self.batcher.cut() == Cut::Chunked || self.requests.list[index].prompt <= limits.tokens_max;
        let own = u64::from(limits.kv_blocks / self.engine.table.lanes().ranks);
        let borrowed = if own < u64::from(limits.home_blocks()) { 0 } else { u64::from(borrowed) };
        tokens <= u64::from(limits.context_max) && blocks <= own + borrowed && fits_step
    }

    const fn blocks_of(&self, tokens: u32) -> u32 {
        self.engine.limits.blocks_of(tokens)
    }

    /// Blocks that a slot owns or holds.
    fn held(&self, slot: &Slot) -> u32 {
        slot.blocks + slot.shared * self.pool.blocks_per_prefix()
    }

    fn prefix(&self, slot: &Slot) -> &'a [u32] {
        self.requests.prefix(&self.requests.list[slot.request as usize])
    }

    /// Lets every decoding sequence take part in the iteration, preempting the latest admitted until blocks suffice.
    pub fn decode_all(&mut self, composed: &mut Composed) {
        if self.n_decode == 0 {
            return;
        }
        if self.engine.limits.order == Order::Priority {
            self.take_turns(composed);
        }
        if self.engine.table.acceptance().is_some() {
            return self.verify_all(composed);
        }
        while !self.pool.take(self.phases[self.phase_of(self.step)]) {
            self.preempt_latest(composed);
        }
        composed.decodes = self.n_decode > 0;
    }

    const fn phase_of(&self, step: u64) -> usize {
        (step % self.engine.limits.block_tokens as u64) as usize
    }

    /// Remainder of the steps at which a sequence that has `tokens` cached at `step` needs a new block.
    fn phase_at(&self, step: u64, tokens: u32) -> usize {
        let block = u64::from(self.engine.limits.block_tokens);
        let phase = (step % block + block - u64::from(tokens) % block) % block;
        usize::try_from(phase).expect("below the block size")
    }

    /// Lets a sequence decode from now on, with `tokens` cached.
    fn join(&mut self, id: u32, tokens: u32) {
        self.n_decode += 1;
        self.decode_adapter(id, true);
        self.keep_no_more(id);
        let slot = &mut self.slots[id as usize];
        slot.phase = Phase::Decode;
        slot.joined_step = self.step;
        slot.target = tokens;
        self.keep_for(id);
        let slot = &self.slots[id as usize];
        if self.engine.table.acceptance().is_some() {
            self.verifying.push(id);
            self.context += u64::from(tokens + self.engine.table.tokens_per_sequence());
            return;
        }
        // One that has ended with its first token takes part in one more iteration.
        let left = (self.requests.list[slot.request as usize].output - slot.generated).max(1);
        self.ends.push(Reverse((self.step + u64::from(left), id, slot.epoch)));
        let phase = self.phase_at(self.step, tokens);
        self.phases[phase] += 1;
        self.context += u64::from(tokens) + 1;
    }

    /// Takes a sequence out of the decoding ones; returns its cached tokens and its own blocks. `is_in_step`: the block of the next
    /// iteration's token was taken with those of all others.
    fn leave(&mut self, id: u32, is_in_step: bool) -> (u32, u32) {
        self.n_decode -= 1;
        self.decode_adapter(id, false);
        let slot = self.slots[id as usize];
        if self.engine.table.acceptance().is_some() {
            self.verifying.retain(|other| *other != id);
            self.context -= u64::from(slot.target + self.engine.table.tokens_per_sequence());
            return (slot.target, slot.blocks);
        }
        if let Some(log) = &mut self.token_log {
            log.decoded(slot.request, [slot.joined_step, self.step], slot.lag);
        }
        let tokens = self.cached_of(&slot);
        let phase = self.phase_at(self.step, tokens);
        self.phases[phase] -= 1;
        self.context -= u64::from(tokens) + 1;
        let next = u32::from(is_in_step && phase == self.phase_of(self.step));
        (tokens, self.own_blocks(&slot, 0) + next)
    }

    /// Cached tokens of a decoding sequence.
    fn cached_of(&self, slot: &Slot) -> u32 {
        if self.engine.table.acceptance().is_some() {
            return slot.target;
        }
        slot.target + u32::try_from(self.step - slot.joined_step).expect("outputs stay below 2^32 tokens")
    }

    /// Blocks of a decoding sequence's own after so many iterations of what is under way, but for that of the next one.
    fn own_blocks(&self, slot: &Slot, done: u32) -> u32 {
        if self.engine.table.acceptance().is_some() {
            return slot.blocks;
        }
        self.blocks_of(self.cached_of(slot) + done) - slot.shared * self.pool.blocks_per_prefix()
    }
}

#[cfg(test)]
pub(crate) mod tests;
