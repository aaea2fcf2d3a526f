//! What a replica has borrowed and lent: which blocks of its sequences lie on other replicas, and attention over blocks that are not at home.
//!
//! Whoever would find too few blocks asks the fleet before it begins an iteration; the fleet borrows for it, moves blocks, or asks back what it
//! has lent (`fleet/run/lending.rs`); then it begins with what it has. Attention over blocks elsewhere is computed there: the lender's next
//! iteration is longer by it, and the home replica waits only for what is not hidden behind its own attention. A replica that has lent or
//! borrowed, or at which somebody waits, runs step by step.
//! Units: blocks, tokens, ticks. Invariants: blocks of its sequences elsewhere are what its pool has borrowed; the last block of a sequence is
//! at home, and so are its windows and states; cached prefixes are at home.

mod needs;

use std::collections::BTreeMap;
use std::rc::Rc;

use super::batcher::Batcher;
use super::batcher::{Cut, Reserve};
use super::preempt::Back;
use super::{Composed, Phase, Replica, Waiting};
use crate::kv::lending::Borrow;
use crate::kv::lending::rates::Load;
use crate::records::Records;
use crate::step_cost::{Chunk, StepLoad};
use hw::Tick;
pub use needs::{Head, Needs, Neighbour, Part};

/// Sequences that wait at which the fleet looks.
const HEADS_SEEN: usize = 64;
/// Waiting requests that the planner of moves looks at.
const WAITING_SEEN: usize = 8;

/// Loans of a replica.
#[derive(Debug)]
pub(super) struct Loans {
    borrow: Borrow,
    /// By replica of the fleet; this one among them.
    neighbours: Rc<[Neighbour]>,
    me: u32,
    /// Blocks that others may lend it together.
    borrowable: u32,
    /// Blocks elsewhere by slot, one part per lender.
    away: BTreeMap<u32, Vec<Part>>,
    /// Blocks elsewhere for requests that are about to be admitted.
    promised: BTreeMap<u32, Vec<Part>>,
    /// What has come free elsewhere since the fleet last asked.
    returned: Vec<Part>,
    /// Attention that others compute for the iteration under way, by lender; the fleet has not told them yet.
    sent: Vec<(u32, Tick)>,
    /// Attention for others since the last iteration began.
    hosted_ticks: Tick,
    /// Since when it waits for the fleet.
    asks: Option<Tick>,
    /// Whether the fleet has answered: it begins with what it has.
    is_answered: bool,
}

/// What blocks elsewhere change about an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Elsewhere {
    /// Keys that decoding sequences have elsewhere.
    pub(super) keys: u64,
    /// Ticks more: for others, and waiting for lenders.
    pub(super) added: Tick,
    /// Ticks less: attention of chunks that lenders compute.
    pub(super) saved: Tick,
}

impl Head {
    /// Blocks that are not free any more once it is admitted.
    pub(crate) const fn taken(&self) -> u32 {
        self.blocks + self.held
    }

    /// Blocks that must be free before it is admitted.
    pub(crate) const fn wanted(&self) -> u32 {
        self.taken() + self.spare
    }
}

fn small(n: u64) -> u32 {
    u32::try_from(n).expect("below 2^32")
}

impl Loans {
    fn blocks_away(&self, id: u32) -> u32 {
        self.away.get(&id).map_or(0, |parts| sum(parts))
    }
}

fn sum(parts: &[Part]) -> u32 {
    parts.iter().map(|part| part.blocks).sum()
}

impl Replica<'_> {
    /// Lets an idle replica take part in lending.
    pub fn with_loans(mut self, me: u32, borrow: Borrow, neighbours: Rc<[Neighbour]>) -> Self {
        self.loans = Some(Box::new(Loans {
            borrow,
            neighbours,
            me,
            borrowable: 0,
            away: BTreeMap::new(),
            promised: BTreeMap::new(),
            returned: Vec::new(),
            sent: Vec::new(),
            hosted_ticks: Tick::ZERO,
            asks: None,
            is_answered: false,
        }));
        self
    }

    fn loans(&mut self) -> &mut Loans {
        self.loans.as_mut().expect("a replica that takes part in lending")
    }

    /// Blocks that others may lend it together, from now on.
    pub(crate) fn may_borrow(&mut self, blocks: u32) {
        self.loans().borrowable = blocks;
    }

    /// Blocks that others may lend it together.
    pub(super) fn borrowable(&self) -> u32 {
        self.loans.as_ref().map_or(0, |loans| loans.borrowable)
    }

    /// Whether every iteration has to be looked at: blocks come and go between replicas.
    pub(super) fn is_stepwise(&self) -> bool {
        self.loans.is_some() && (self.pool.lent() > 0 || self.pool.borrowed() > 0 || self.somebody_waits())
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.has_waiting() || !self.handover.expected.is_empty()
    }

    /// Whether a request of so many tokens is more than the replica holds alone.
    pub(super) fn is_long(&self, tokens: u32) -> bool {
        self.loans.is_some() && self.blocks_of(tokens) > self.limits().kv_blocks
    }

    /// Whether the fleet has to help before the next iteration begins; notes that it was asked.
    pub(super) fn asks_first(&mut self, now: Tick) -> bool {
        let Some(loans) = &self.loans else { return false };
        let asks = !loans.is_answered && self.is_short();
        self.loans().asks = asks.then_some(now);
        asks
    }

    /// Whether somebody lacks blocks that the fleet may find.
    pub(super) fn is_short(&self) -> bool {
        let Some(loans) = &self.loans else { return false };
        let (needs, is_lender) = (self.needs(), self.pool.lent() > 0);
        let mut room = self.pool.available();
        if needs.growth > room {
            return is_lender || loans.borrow != Borrow::Never;
        }
        room -= needs.growth;
        for head in &needs.heads {
            if head.wanted() > room {
                return is_lender || self.borrows_for(head);
            }
            room -= head.taken();
        }
        false
    }

    /// Whether somebody who waits may have blocks elsewhere.
    pub(crate) fn borrows_for(&self, head: &Head) -> bool {
        match self.loans.as_ref().map_or(Borrow::Never, |loans| loans.borrow) {
            _ if head.is_swapped => false,
            Borrow::Never => false,
            Borrow::WhenShort => true,
            Borrow::WhenLong => head.is_long,
        }
    }

    /// Whether running sequences may send blocks away.
    pub(crate) fn may_send_away(&self) -> bool {
        self.loans.as_ref().is_some_and(|loans| loans.borrow != Borrow::Never)
    }

    /// Since when it waits for the fleet.
    pub(crate) fn asks(&self) -> Option<Tick> {
        self.loans.as_ref().and_then(|loans| loans.asks)
    }

    /// An idle replica at which somebody waits asks again.
    pub(crate) fn ask_again(&mut self, now: Tick) -> bool {
        let asks = self.going.is_none() && self.somebody_waits() && self.loans.is_some();
        if asks {
            self.loans().asks = Some(now);
        }
        asks
    }

    /// What the next iteration would take.
    pub(crate) fn needs(&self) -> Needs {
        let (chunk_blocks, chunk_tokens) = self.chunk_growth();
        let growth = self.decode_growth() + chunk_blocks;
        let batcher = self.batcher;
        let taken = if batcher.cut() == Cut::Never {
            0
        } else {
            self.n_decode * self.engine.table.tokens_per_sequence() + chunk_tokens
        };
        let mut budget = self.tokens_max().saturating_sub(taken);
        let mut places = self.sequences_max().saturating_sub(self.n_running());
        let mut heads = Vec::new();
        for &waiting in self.waiting.iter().take(HEADS_SEEN) {
            if places == 0 || budget == 0 {
                break;
            }
            let Some((head, tokens)) = self.head(waiting, budget, batcher) else { break };
            heads.push(head);
            (budget, places) = (budget.saturating_sub(tokens), places - 1);
        }
        if self.waiting.is_empty() {
            heads.extend(self.expected_heads());
        }
        Needs { growth, heads }
    }

    /// Somebody who waits, and the tokens of the iteration that it takes.
    fn head(&self, waiting: Waiting, budget: u32, batcher: &dyn Batcher) -> Option<(Head, u32)> {
        let is_idle = self.n_running() == 0;
        let spare = if is_idle { 0 } else { self.limits().watermark_blocks };
        if let Waiting::Again(id) = waiting {
            let slot = self.slots[id as usize];
            if slot.phase == Phase::Swapped
                && let Some(Back { held, blocks, .. }) = self.back(id)
            {
                let (held, spare) = (self.pool.unheld(held), spare + u32::from(!is_idle));
                return Some((
                    Head { request: slot.request, blocks, held, spare, is_long: false, is_swapped: true },
                    0,
                ));
            }
        }
        let room = budget + self.said_before(waiting, batcher.cut());
        let claim = self.claim(waiting, room, batcher.reserve());
        if batcher.cut() == Cut::Never && claim.rest > room {
            return None;
        }
        let spare = if claim.is_whole { spare } else { 0 };
        let (request, blocks, is_long) = (claim.request, claim.blocks, self.is_long(claim.target));
        let held = self.pool.unheld(claim.held) + claim.next;
        Some((Head { request, blocks, held, spare, is_long, is_swapped: false }, claim.tokens))
    }

    /// Sequences that wait for blocks before they come from elsewhere.
    fn expected_heads(&self) -> Vec<Head> {
        let mut heads = Vec::new();
        for moving in self.handover.expected.iter().take(HEADS_SEEN) {
            let blocks = self.blocks_of(moving.tokens);
            let spare = if self.holds_nobody() && heads.is_empty() { 0 } else { self.limits().watermark_blocks };
            let is_long = self.is_long(moving.tokens);
            heads.push(Head { request: moving.request, blocks, held: 0, spare, is_long, is_swapped: false });
        }
        heads
    }

    /// Blocks that decoding sequences take in their next iteration.
    pub(super) fn decode_growth(&self) -> u32 {
        if self.engine.table.acceptance().is_some() {
            self.verify_growth()
        } else {
            self.phases[self.phase_of(self.step)]
        }
    }

    /// Blocks and tokens that prompts under way take in their next iteration.
    fn chunk_growth(&self) -> (u32, u32) {
        let decoding = self.n_decode * self.engine.table.tokens_per_sequence();
        let (mut left, mut blocks, mut taken) = (self.tokens_max().saturating_sub(decoding), 0, 0);
        for id in &self.prefilling {
            let slot = self.slots[*id as usize];
            let tokens = left.min(slot.target - slot.computed).min(self.chunk_max(slot.computed));
            blocks += self.blocks_of(slot.computed + tokens).saturating_sub(self.held(&slot));
            (left, taken) = (left - tokens, taken + tokens);
        }
        (blocks, taken)
    }

    /// Blocks elsewhere for a request that is about to be admitted.
    pub(crate) fn promise(&mut self, request: u32, parts: Vec<Part>) {
        self.pool.borrow(sum(&parts));
        self.loans().promised.insert(request, parts);
    }

    /// Begins with what it has. Returns the end of what is under way, and what was promised and not taken.
    pub(crate) fn answer(&mut self, now: Tick, records: &mut Records) -> (Option<Tick>, Vec<Part>) {
        (self.loans().is_answered, self.loans().asks) = (true, None);
        let end = if self.going.is_none() { self.begin(now, records) } else { None };
        self.loans().is_answered = false;
        let left = std::mem::take(&mut self.loans().promised);
        let left: Vec<Part> = left.into_values().flatten().collect();
        self.pool.repay(sum(&left));
        (end, left)
    }

    /// An admitted request has its blocks elsewhere in a slot.
    pub(super) fn take_up(&mut self, request: u32, id: u32) {
        let Some(loans) = &mut self.loans else { return };
        if let Some(parts) = loans.promised.remove(&request) {
            let least = self.engine.limits.home_blocks();
            assert!(sum(&parts) + least <= self.slots[id as usize].blocks, "the last block is at home");
            loans.away.insert(id, parts);
        }
    }

    /// A slot has given all its blocks to the pool: those elsewhere go back.
    pub(super) fn give_back(&mut self, id: u32) -> bool {
        let Some(loans) = &mut self.loans else { return false };
        let Some(parts) = loans.away.remove(&id) else { return false };
        self.pool.repay(sum(&parts));
        loans.returned.extend(parts);
        true
    }

    /// Own blocks of a slot that may be cached for others: not those elsewhere, nor those that stay at home.
    pub(super) fn publishable(&self, id: u32, own: u32) -> u32 {
        let away = self.loans.as_ref().map_or(0, |loans| loans.blocks_away(id));
        if away == 0 { own } else { own - away - self.limits().home_blocks() }
    }

    /// What has come free elsewhere since the last call.
    pub(crate) fn take_returned(&mut self) -> Vec<Part> {
        self.loans.as_mut().map_or_else(Vec::new, |loans| std::mem::take(&mut loans.returned))
    }

    /// Attention that lenders compute for the iteration that has begun.
    pub(crate) fn take_sent(&mut self) -> Vec<(u32, Tick)> {
        self.loans.as_mut().map_or_else(Vec::new, |loans| std::mem::take(&mut loans.sent))
    }

    /// Attention for others: the next iteration is longer by it. An idle replica computes it at once.
    pub(crate) fn host(&mut self, ticks: Tick) {
        if self.going.is_some() {
            self.loans().hosted_ticks += ticks;
        }
    }

    /// Nothing is under way: attention for others is computed at once.
    pub(super) fn host_at_once(&mut self) {
        if let Some(loans) = &mut self.loans {
            loans.hosted_ticks = Tick::ZERO;
        }
    }

    /// Blocks that can be had now, at a tick at which all that ends has ended: what a span has taken so far is not free.
    pub(crate) fn free_blocks(&self, now: Tick) -> u32 {
        let taken = match &self.going {
            Some(going) if self.composed.decodes => self.grown(going.steps_begun(now)),
            _ => 0,
        };
        self.pool.available() - taken
    }

    /// Iterations of what is under way that have given every decoding sequence its token.
    fn decodes_done(&self, now: Tick) -> u32 {
        match &self.going {
            Some(going) if self.composed.decodes => small(going.steps_done(now)),
            _ => 0,
        }
    }

    /// Lends blocks; what is under way ends at its next boundary. Returns its end, if that has moved.
    pub(crate) fn lend(&mut self, blocks: u32, now: Tick, records: &mut Records) -> Option<Tick> {
        assert!(blocks <= self.free_blocks(now), "a lender gives what is free");
        self.pool.lend(blocks);
        if self.going.is_some() { self.interrupt(now, records) } else { None }
    }

    /// Blocks of a running sequence at home after so many iterations of what is under way; none of one that does not run.
    fn home_blocks(&self, id: u32, done: u32) -> u32 {
        let slot = &self.slots[id as usize];
        let own = match slot.phase {
            Phase::Decode | Phase::Spent => self.own_blocks(slot, done),
            Phase::Prefill | Phase::Skipped => slot.blocks,
            Phase::Free | Phase::Waiting | Phase::Swapped | Phase::Moving => return 0,
        };
        own - self.loans.as_ref().map_or(0, |loans| loans.blocks_away(id))
    }

    /// The running sequence with the most blocks at home, and how many of them may leave.
    pub(crate) fn largest(&self, now: Tick) -> Option<(u32, u32)> {
        let (ids, done) = (0..small(self.slots.len() as u64), self.decodes_done(now));
        let largest = ids.map(|id| (id, self.home_blocks(id, done))).max_by_key(|(_, blocks)| *blocks)?;
        Some((largest.0, largest.1.saturating_sub(self.limits().home_blocks())))
    }

    /// Running sequences with blocks on a lender, and how many.
    pub(crate) fn parts_on(&self, lender: u32) -> Vec<(u32, u32)> {
        let Some(loans) = &self.loans else { return Vec::new() };
        let mut found = Vec::new();
        for (&id, parts) in &loans.away {
            let runs =
                matches!(self.slots[id as usize].phase, Phase::Decode | Phase::Spent | Phase::Skipped | Phase::Prefill);
            let blocks = blocks_on(parts, lender);
            if runs && blocks > 0 {
                found.push((id, blocks));
            }
        }
        found
    }

    /// Blocks of a slot have moved: `None` is home. The pool has as many blocks more when they leave, and fewer when they come.
    pub(crate) fn shift(&mut self, id: u32, from: Option<u32>, to: Option<u32>, blocks: u32) {
        assert!(from != to, "blocks move somewhere else");
        if let Some(lender) = from {
            let parts = self.loans().away.get_mut(&id).expect("a slot with blocks elsewhere");
            let part = parts.iter_mut().find(|part| part.lender == lender).expect("blocks on that lender");
            part.blocks -= blocks;
            parts.retain(|part| part.blocks > 0);
            if parts.is_empty() {
                self.loans().away.remove(&id);
            }
        }
        if let Some(lender) = to {
            let parts = self.loans().away.entry(id).or_default();
            match parts.iter_mut().find(|part| part.lender == lender) {
                Some(part) => part.blocks += blocks,
                None => parts.push(Part { lender, blocks }),
            }
        }
        match (from, to) {
            (None, Some(_)) => self.pool.borrow(blocks),
            (Some(_), None) => self.pool.repay(blocks),
            _ => {}
        }
    }

    /// Request of a slot.
    pub(crate) fn request_of(&self, id: u32) -> u32 {
        self.slots[id as usize].request
    }

    /// Requests that wait for blocks.
    pub(crate) fn n_waiting(&self) -> usize {
        self.waiting.len() + self.handover.expected.len()
    }

    /// Everything that lies elsewhere, one entry per slot and lender, promises included.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let Some(loans) = &self.loans else { return Vec::new() };
        loans.away.values().chain(loans.promised.values()).flatten().chain(&loans.returned).copied().collect()
    }

    /// What the iteration that begins has elsewhere, and what it owes others. Notes what lenders compute.
    pub(super) fn attend_elsewhere(&mut self, composed: &Composed) -> Elsewhere {
        let Some(loans) = &mut self.loans else { return Elsewhere::default() };
        let mut found = Elsewhere { added: std::mem::take(&mut loans.hosted_ticks), ..Elsewhere::default() };
        if loans.away.is_empty() {
            return found;
        }
        let mut sent = Vec::new();
        if composed.decodes {
            self.decode_elsewhere(&mut found, &mut sent);
        }
        for &(id, new) in &composed.chunks {
            self.chunk_elsewhere(id, new, &mut found, &mut sent);
        }
        self.loans().sent.extend(sent);
        found
    }

    /// Decoding sequences wait for queries, results and the slowest lender, beyond their attention at home.
    fn decode_elsewhere(&self, found: &mut Elsewhere, sent: &mut Vec<(u32, Tick)>) {
        let loans = self.loans.as_ref().expect("a replica that takes part in lending");
        let (mut there, mut n_remote) = (BTreeMap::new(), 0);
        for (id, parts) in &loans.away {
            if matches!(self.slots[*id as usize].phase, Phase::Decode | Phase::Spent) {
                n_remote += 1;
                for part in parts {
                    *there.entry(part.lender).or_insert(0) += self.tokens_of(part.blocks);
                }
            }
        }
        found.keys = there.values().sum();
        let own = self.engine.table.rate(1) * self.context.saturating_sub(found.keys);
        let n_queries = n_remote * u64::from(self.engine.table.tokens_per_sequence());
        let (mut way, mut slowest) = (Tick::ZERO, Tick::ZERO);
        for (lender, keys) in there {
            let ticks = loans.neighbours[lender as usize].rate * keys;
            sent.push((lender, ticks));
            slowest = slowest.max(ticks);
            way = way.max(self.way(lender, n_queries));
        }
        found.added += (way + slowest).saturating_sub(own);
    }

    /// A chunk's attention over blocks elsewhere runs there at the same time, the oldest blocks first.
    fn chunk_elsewhere(&self, id: u32, new: u32, found: &mut Elsewhere, sent: &mut Vec<(u32, Tick)>) {
        let loans = self.loans.as_ref().expect("a replica that takes part in lending");
        let Some(parts) = loans.away.get(&id) else { return };
        let past = self.slots[id as usize].computed;
        let whole = self.attention_ticks(Chunk { past, new });
        let keys = u64::from(past) + u64::from(new);
        let mut left = u64::from(past);
        let (mut slowest, mut away, mut way) = (Tick::ZERO, Tick::ZERO, Tick::ZERO);
        for part in parts {
            let there = left.min(self.tokens_of(part.blocks));
            left -= there;
            let ticks = whole.share(there, keys);
            sent.push((part.lender, ticks));
            (slowest, away) = (slowest.max(ticks), away + ticks);
            way = way.max(self.way(part.lender, u64::from(new)));
        }
        if away > Tick::ZERO {
            found.saved += whole;
            found.added += (whole - away).max(way + slowest);
        }
    }

    /// Ticks of a chunk's attention over everything.
    fn attention_ticks(&self, chunk: Chunk) -> Tick {
        let load = StepLoad { n_chunk_tokens: chunk.new, n_chunks: 1, ..StepLoad::default() };
        let table = &self.engine.table;
        table.step(&load, std::iter::once(chunk)) - table.step(&load, std::iter::empty())
    }

    /// Ticks of the queries of `n` tokens and their results between here and a lender.
    fn way(&self, lender: u32, n: u64) -> Tick {
        let loans = self.loans.as_ref().expect("a replica that takes part in lending");
        let time = |replica: u32| Tick::from_seconds(loans.neighbours[replica as usize].exchange.time(n));
        time(loans.me).max(time(lender))
    }

    fn tokens_of(&self, blocks: u32) -> u64 {
        u64::from(blocks) * u64::from(self.limits().block_tokens)
    }

    /// What a planner of moves sees, without what others have here.
    pub(crate) fn load(&self, now: Tick, n_replicas: usize) -> Load {
        let mut load = Load {
            n_running: self.n_running(),
            free_tokens: self.tokens_of(self.free_blocks(now)),
            remote_tokens: vec![0; n_replicas],
            ..Load::default()
        };
        let done = self.decodes_done(now);
        for id in 0..small(self.slots.len() as u64) {
            let home = self.home_blocks(id, done);
            load.own_tokens += self.tokens_of(home.saturating_sub(self.limits().blocks_per_sequence));
        }
        load.movable_tokens = self.largest(now).map_or(0, |(_, blocks)| self.tokens_of(blocks));
        for parts in self.loans.iter().flat_map(|loans| loans.away.values()) {
            load.n_remote += 1;
            for part in parts {
                load.remote_tokens[part.lender as usize] += self.tokens_of(part.blocks);
            }
        }
        for &waiting in self.waiting.iter().take(WAITING_SEEN) {
            let claim = self.claim(waiting, u32::MAX, Reserve::Whole);
            load.waiting.push(self.tokens_of(claim.blocks));
        }
        load
    }
}

/// Blocks of some parts on a lender.
pub(super) fn blocks_on(parts: &[Part], lender: u32) -> u32 {
    parts.iter().filter(|part| part.lender == lender).map(|part| part.blocks).sum()
}

impl Loans {
    /// Slots with blocks on a lender, whatever they do.
    pub(super) fn slots_on(&self, lender: u32) -> Vec<u32> {
        let mut ids = Vec::new();
        for (&id, parts) in &self.away {
            if blocks_on(parts, lender) > 0 {
                ids.push(id);
            }
        }
        ids
    }

    /// Nothing is asked, promised or owed any more.
    pub(super) fn clear(&mut self) {
        assert!(self.away.is_empty(), "every slot has given its blocks back");
        (self.asks, self.hosted_ticks) = (None, Tick::ZERO);
        self.sent.clear();
    }
}
