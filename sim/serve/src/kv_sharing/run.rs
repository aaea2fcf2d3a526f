//! The event loop over instances that share KV memory, iteration by iteration.
//!
//! Each instance batches continuously: decodes first, then chunks of prompts in order of admission, first come first served. Keys and values of a
//! request lie at home as far as they fit and else on lenders; its last block is always at home. Attention over lent blocks is computed by the
//! lender, whose next iteration is longer by it, while the home instance goes on and waits only for what is not hidden behind its own
//! attention. Blocks are copied in the background, between two heartbeats at most as many as an instance's link carries in that time.
//! Approximation: a lender that is idle computes at once.
//!
//! Invariants (checked at every event in debug builds): those of `pool.rs`, and that every live request has the blocks of its tokens.

mod memory;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Exchange;
use super::ledger::{Heartbeat, Ledger};
use super::pool::Pool;
use crate::request::Requests;
use crate::step_cost::{Chunk, StepLoad, StepTable, TICKS_PER_NS, ticks_of};

/// How instances share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Not at all: a request that no instance holds is refused.
    Off,
    /// Whoever is short borrows (DistKV-LLM, the paper's first version).
    Borrow,
    /// Only requests that no instance holds alone borrow by themselves; else the planner moves blocks (Infinite-LLM, its second version).
    Planned,
}

/// Where prompts are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefill {
    /// On the instance, in chunks beside its decodes.
    Here,
    /// On other machines, which hand over keys and values; here only decoding takes time.
    Elsewhere,
}

/// Identical instances.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// Iterations of an instance.
    pub table: &'a StepTable,
    /// Instances.
    pub n_instances: usize,
    /// Instances per node.
    pub per_node: usize,
    /// Blocks of an instance.
    pub blocks: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Bytes of a block on all GPUs of an instance.
    pub block_bytes: u64,
    /// Most blocks that an instance lends.
    pub lent_max: u64,
    /// Most sequences of an instance.
    pub sequences_max: usize,
    /// Most tokens of an iteration.
    pub tokens_max: u32,
    /// Messages between instances.
    pub exchange: Exchange,
    /// Ticks between heartbeats.
    pub heartbeat: u64,
    /// How memory is shared.
    pub sharing: Sharing,
    /// Where prompts are computed.
    pub prefill: Prefill,
}

impl Cluster<'_> {
    /// Most tokens that one request may have.
    #[must_use]
    pub fn context_max(&self) -> u64 {
        let others = match self.sharing {
            Sharing::Off => 0,
            Sharing::Borrow | Sharing::Planned => (self.n_instances as u64 - 1) * self.blocks.min(self.lent_max),
        };
        (self.blocks + others) * self.block_tokens
    }

    const fn blocks_of(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block_tokens)
    }
}

/// What happened, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were preempted and computed again.
    pub preempted: u64,
    /// Loans that a lender refused.
    pub refused_loans: u64,
    /// Blocks that were borrowed.
    pub borrowed_blocks: u64,
    /// Blocks that were moved: by the planner, recalled, or home from a cancelled cycle.
    pub moved_blocks: u64,
    /// Debt that cancelled cycles took away, blocks.
    pub cancelled_blocks: u64,
    /// Largest sum of debts, blocks.
    pub debt_max: u64,
    /// Events.
    pub events: u64,
    /// Iterations.
    pub steps: u64,
}

/// When requests were served, by their index; ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// First token.
    pub first: Vec<Option<u64>>,
    /// Last token; `None` where the request was refused.
    pub end: Vec<Option<u64>>,
    /// Counts.
    pub counts: Counts,
}

/// A request that has memory.
#[derive(Clone, Debug)]
struct Live {
    request: usize,
    home: usize,
    /// Blocks by instance.
    placed: Vec<u64>,
    /// Tokens to compute before it decodes: the prompt, and after a preemption what was generated.
    prompt: u64,
    /// Of these, computed.
    computed: u64,
    /// Tokens with keys and values.
    tokens: u64,
    /// Position among all admissions.
    admitted: u64,
}

impl Live {
    fn remote(&self) -> u64 {
        self.placed.iter().enumerate().filter(|(instance, _)| *instance != self.home).map(|(_, blocks)| blocks).sum()
    }
}

/// An iteration that runs: admissions whose sequences decode, and chunks of others with their tokens.
#[derive(Clone, Debug, Default)]
struct Step {
    decoding: Vec<u64>,
    chunks: Vec<(u64, u64)>,
}

/// One instance.
#[derive(Clone, Debug, Default)]
struct Instance {
    waiting: VecDeque<usize>,
    /// Blocks of their prompts, together.
    waiting_blocks: u64,
    /// In order of admission.
    running: Vec<Live>,
    step: Option<Step>,
    /// Attention for others since the last iteration began.
    hosted_ticks: u64,
    /// Blocks that its link can still carry before the next heartbeat.
    link_blocks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    StepEnd(usize),
    Heartbeat,
}

struct State<'a> {
    cluster: &'a Cluster<'a>,
    requests: &'a Requests,
    pool: Pool,
    ledger: Ledger,
    instances: Vec<Instance>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events and admissions so far: they order what happens at once.
    n_pushed: u64,
    n_admitted: u64,
    generated: Vec<u32>,
    n_open: usize,
    outcome: Outcome,
}

/// Serves requests; the number of those that end is that of those that fit.
#[must_use]
pub fn serve(requests: &Requests, cluster: &Cluster<'_>) -> Outcome {
    let n = requests.len();
    let mut state = State {
        cluster,
        requests,
        pool: Pool::new(vec![cluster.blocks; cluster.n_instances], cluster.lent_max),
        ledger: Ledger::new(cluster.n_instances, cluster.per_node),
        instances: vec![Instance::default(); cluster.n_instances],
        events: BinaryHeap::new(),
        n_pushed: 0,
        n_admitted: 0,
        generated: vec![0; n],
        n_open: n,
        outcome: Outcome { first: vec![None; n], end: vec![None; n], counts: Counts::default() },
    };
    state.heartbeats();
    for (index, request) in requests.list.iter().enumerate() {
        state.push(request.arrival.as_ns() * TICKS_PER_NS, Event::Arrival(index));
    }
    if cluster.sharing != Sharing::Off {
        state.push(cluster.heartbeat, Event::Heartbeat);
    }
    while let Some(Reverse((now, _, event))) = state.events.pop() {
        state.handle(now, event);
        if cfg!(debug_assertions) {
            state.check();
        }
    }
    assert!(state.pool.debt() == 0 && state.n_open == 0, "every request ended and gave its memory back");
    state.outcome
}

impl State<'_> {
    fn push(&mut self, at: u64, event: Event) {
        self.n_pushed += 1;
        self.events.push(Reverse((at, self.n_pushed, event)));
    }

    fn handle(&mut self, now: u64, event: Event) {
        self.outcome.counts.events += 1;
        match event {
            Event::Arrival(request) => self.arrive(now, request),
            Event::StepEnd(instance) => {
                self.end_step(now, instance);
                self.start(now, instance);
            }
            Event::Heartbeat => {
                self.heartbeats();
                self.settle();
                for instance in 0..self.instances.len() {
                    self.start(now, instance);
                }
                if self.n_open > 0 {
                    self.push(now + self.cluster.heartbeat, Event::Heartbeat);
                }
            }
        }
        self.outcome.counts.debt_max = self.outcome.counts.debt_max.max(self.pool.debt());
    }

    /// Every instance says how much is free, and its link is free again.
    fn heartbeats(&mut self) {
        let seconds = hw::Tokens(self.cluster.heartbeat).as_f64() / (1e9 * hw::Tokens(TICKS_PER_NS).as_f64());
        let bytes = self.cluster.exchange.bandwidth.get() * seconds;
        let blocks = hw::Bytes::from_f64(bytes).0 / self.cluster.block_bytes.max(1);
        self.instances.iter_mut().for_each(|instance| instance.link_blocks = blocks);
        for instance in 0..self.instances.len() {
            let n_waiting = self.instances[instance].waiting.len();
            self.ledger.note(instance, Heartbeat { free: self.pool.free(instance), n_waiting });
        }
    }

    /// To the instance with the least work in its queue and in its memory; equal ones by index.
    fn arrive(&mut self, now: u64, request: usize) {
        let asked = &self.requests.list[request];
        // The last token needs no keys of its own.
        let tokens = u64::from(asked.prompt) + u64::from(asked.output) - 1;
        let cluster = self.cluster;
        if cluster.blocks_of(tokens) * cluster.block_tokens > cluster.context_max() {
            self.n_open -= 1;
            return;
        }
        let work = |(index, instance): (usize, &Instance)| {
            (instance.waiting_blocks + cluster.blocks - self.pool.free(index), index)
        };
        let to = self.instances.iter().enumerate().map(work).min().expect("at least one instance").1;
        self.instances[to].waiting.push_back(request);
        self.instances[to].waiting_blocks += self.prompt_blocks(request);
        self.start(now, to);
    }

    fn prompt_blocks(&self, request: usize) -> u64 {
        self.cluster.blocks_of(u64::from(self.requests.list[request].prompt))
    }

    /// Starts an iteration where none runs and there is work.
    fn start(&mut self, now: u64, at: usize) {
        if self.instances[at].step.is_some() {
            return;
        }
        self.admit(at);
        self.grow(at);
        let step = self.composed(at);
        if step.decoding.is_empty() && step.chunks.is_empty() {
            self.instances[at].hosted_ticks = 0;
            return;
        }
        let ticks = self.ticks(at, &step);
        self.outcome.counts.steps += 1;
        self.instances[at].step = Some(step);
        self.push(now + ticks.max(1), Event::StepEnd(at));
    }

    fn admit(&mut self, at: usize) {
        while self.instances[at].running.len() < self.cluster.sequences_max {
            let Some(&request) = self.instances[at].waiting.front() else { break };
            let prompt = u64::from(self.requests.list[request].prompt) + u64::from(self.generated[request]);
            let Some(placed) = self.place(at, self.cluster.blocks_of(prompt)) else { break };
            self.instances[at].waiting.pop_front();
            self.instances[at].waiting_blocks -= self.prompt_blocks(request);
            self.n_admitted += 1;
            let computed = if self.cluster.prefill == Prefill::Elsewhere { prompt } else { 0 };
            let live =
                Live { request, home: at, placed, prompt, computed, tokens: computed, admitted: self.n_admitted };
            self.instances[at].running.push(live);
        }
    }

    /// Decodes of all, then chunks in order of admission as far as the token budget goes.
    fn composed(&self, at: usize) -> Step {
        let mut step = Step::default();
        let running = &self.instances[at].running;
        step.decoding.extend(running.iter().filter(|live| live.computed == live.prompt).map(|live| live.admitted));
        let mut budget = u64::from(self.cluster.tokens_max).saturating_sub(step.decoding.len() as u64);
        for live in running.iter().filter(|live| live.computed < live.prompt) {
            let tokens = budget.min(live.prompt - live.computed);
            if tokens == 0 {
                break;
            }
            budget -= tokens;
            step.chunks.push((live.admitted, tokens));
        }
        step
    }

    /// Ticks of an iteration; attention for it on lenders is added to their next ones.
    fn ticks(&mut self, at: usize, step: &Step) -> u64 {
        let (table, block_tokens) = (self.cluster.table, self.cluster.block_tokens);
        let (mut own, mut n_remote, mut there) = (0, 0, vec![0; self.instances.len()]);
        let (mut chunk_ticks, mut n_sampled) = (0, step.decoding.len());
        let mut hosted = vec![0; self.instances.len()];
        for live in self.instances[at].running.iter().filter(|live| live.computed == live.prompt) {
            let remote = live.remote() * block_tokens;
            own += (live.tokens + 1).saturating_sub(remote);
            n_remote += u64::from(remote > 0);
            let parts = live.placed.iter().enumerate().filter(|(lender, blocks)| *lender != at && **blocks > 0);
            parts.for_each(|(lender, blocks)| there[lender] += blocks * block_tokens);
        }
        for &(admitted, tokens) in &step.chunks {
            let live = self.live(at, admitted).expect("composed of running requests");
            n_sampled += usize::from(live.computed + tokens == live.prompt);
            chunk_ticks += self.chunk_ticks(live, tokens, &mut hosted);
        }
        let small = |n: u64| u32::try_from(n).expect("budgets keep counts below 2^32");
        let load = StepLoad {
            n_decode: small(step.decoding.len() as u64),
            context: own,
            n_chunk_tokens: small(step.chunks.iter().map(|(_, tokens)| tokens).sum()),
            n_chunks: small(step.chunks.len() as u64),
            n_sampled: small(n_sampled as u64),
        };
        let per_token = table.rate(1);
        let slowest = per_token * there.iter().copied().max().unwrap_or(0);
        let exposed = if n_remote == 0 {
            0
        } else {
            (ticks_of(self.cluster.exchange.time(n_remote)) + slowest).saturating_sub(per_token * own)
        };
        for (lender, (tokens, prefill)) in there.iter().zip(&hosted).enumerate() {
            // One that is idle computes at once.
            if self.instances[lender].step.is_some() {
                self.instances[lender].hosted_ticks += per_token * tokens + prefill;
            }
        }
        let mine = std::mem::take(&mut self.instances[at].hosted_ticks);
        table.step(&load, std::iter::empty()) + chunk_ticks + exposed + mine
    }

    /// Attention of a chunk: its part over lent blocks runs on the lenders at the same time, the oldest blocks first.
    fn chunk_ticks(&self, live: &Live, tokens: u64, hosted: &mut [u64]) -> u64 {
        let small = |n: u64| u32::try_from(n).expect("prompts stay below 2^32 tokens");
        let bare = StepLoad { n_chunk_tokens: small(tokens), n_chunks: 1, ..StepLoad::default() };
        let chunk = Chunk { past: small(live.computed), new: small(tokens) };
        let table = self.cluster.table;
        let whole = table.step(&bare, std::iter::once(chunk)) - table.step(&bare, std::iter::empty());
        let keys = live.computed + tokens;
        let (mut left, mut slowest, mut away) = (live.computed, 0, 0);
        for (lender, &blocks) in live.placed.iter().enumerate().filter(|(lender, _)| *lender != live.home) {
            let past = left.min(blocks * self.cluster.block_tokens);
            left -= past;
            // Below 2^64: ticks of a chunk are below 2^44, tokens below 2^27 — in 128 bits for safety.
            let part = u64::try_from(u128::from(whole) * u128::from(past) / u128::from(keys)).expect("a part");
            hosted[lender] += part;
            away += part;
            slowest = slowest.max(part);
        }
        if away == 0 {
            return whole;
        }
        (whole - away).max(ticks_of(self.cluster.exchange.time(tokens)) + slowest)
    }

    fn live(&self, at: usize, admitted: u64) -> Option<&Live> {
        let running = &self.instances[at].running;
        running.binary_search_by_key(&admitted, |live| live.admitted).ok().map(|index| &running[index])
    }

    /// Tokens of an iteration that has ended; requests that were preempted meanwhile get none.
    fn end_step(&mut self, now: u64, at: usize) {
        let Some(step) = self.instances[at].step.take() else { return };
        for (admitted, tokens) in step.chunks {
            let Ok(index) = self.index(at, admitted) else { continue };
            let live = &mut self.instances[at].running[index];
            live.computed += tokens;
            live.tokens += tokens;
            if live.computed == live.prompt {
                self.sampled(now, at, admitted);
            }
        }
        for admitted in step.decoding {
            let Ok(index) = self.index(at, admitted) else { continue };
            self.instances[at].running[index].tokens += 1;
            self.sampled(now, at, admitted);
        }
    }

    fn index(&self, at: usize, admitted: u64) -> Result<usize, usize> {
        self.instances[at].running.binary_search_by_key(&admitted, |live| live.admitted)
    }

    /// A token comes out; the last one frees the request's memory.
    fn sampled(&mut self, now: u64, at: usize, admitted: u64) {
        let Ok(index) = self.index(at, admitted) else { return };
        let request = self.instances[at].running[index].request;
        self.generated[request] += 1;
        self.outcome.first[request].get_or_insert(now);
        if self.generated[request] == self.requests.list[request].output {
            let live = self.instances[at].running.remove(index);
            self.free(&live);
            self.outcome.end[request] = Some(now);
            self.n_open -= 1;
        }
    }

    /// Whether every table agrees with where the requests' blocks lie.
    ///
    /// # Panics
    /// When one does not.
    fn check(&self) {
        let live = || self.instances.iter().flat_map(|instance| &instance.running);
        let placements = live().map(|live| (live.home, live.placed.as_slice()));
        if let Err(why) = self.pool.check(placements) {
            panic!("broken ledger: {why}");
        }
        for live in live() {
            let blocks: u64 = live.placed.iter().sum();
            let needed = self.cluster.blocks_of(live.tokens.max(live.prompt));
            assert!(blocks >= needed, "request {} has {blocks} blocks, needs {needed}", live.request);
            assert!(live.placed[live.home] > 0, "request {} has no block at home", live.request);
        }
    }
}
