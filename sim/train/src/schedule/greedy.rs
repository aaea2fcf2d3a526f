//! Deterministic list scheduling: simulates time and gives every free rank the best ready pass by a rule.
//!
//! A rule is a key per pass (lower first) and a few habits. A rank takes the forward or input pass with the lowest key that is
//! ready and fits its memory; gradients of weights fill idle time and make room. Several rules are played and the shortest
//! kept. The keys are where the papers come in; see the files that call `best`. Units: nanoseconds, the caller's activation.
//!
//! Never a deadlock: a forward is admitted only if all micro-batches in flight could still finish in the order of their number
//! (the banker's test), so the oldest unfinished one always can; and when all ranks wait for each other the keys are put aside.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::play::Ends;
use super::{Order, PassKind, Pipeline, Placement, Slot};

/// Key of a forward or input pass from rank, kind, chunk and micro-batch; the lowest goes first.
pub type Key<'a> = dyn Fn(usize, PassKind, usize, usize) -> i64 + 'a;

/// How ranks choose.
#[derive(Clone, Copy)]
pub struct Rule<'a> {
    /// Which pass goes first.
    pub key: &'a Key<'a>,
    /// How much higher than the lowest key a pass may be and go first because the lowest lacks its inputs; negative for a
    /// rank that waits for it and computes only weight passes in the meantime.
    pub window: i64,
    /// Whether ranks take what comes until the first backward has come back to rank 0.
    pub eager_start: bool,
    /// When a rank waits for a pass that is on its way and starts no weight pass before it.
    pub patience: Patience,
}

/// When a rank waits for a pass that would arrive while a weight pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Never.
    Never,
    /// If it arrives before half of the weight pass is done.
    Half,
    /// If the rank, having waited, has idled no longer than the rank that has idled longest: it delays nobody.
    Slack,
}

/// A simulated order.
pub struct Drawn {
    /// The order.
    pub order: Order,
    /// Start of each slot.
    pub start: Vec<Vec<u64>>,
    /// End of the last slot.
    pub span: u64,
    /// First start to last end on the rank where that is longest.
    pub rank_span: u64,
}

/// The order of the rule with the shortest span; among equals the one with the shortest span of a rank, then the first.
pub fn best<'a>(
    pipeline: &Pipeline,
    cap: &[u64],
    backward: PassKind,
    rules: impl IntoIterator<Item = Rule<'a>>,
) -> Drawn {
    let drawn = rules.into_iter().map(|rule| Run::new(pipeline, cap, backward, rule).play());
    drawn.min_by_key(|drawn| (drawn.span, drawn.rank_span)).expect("at least one rule")
}

impl Drawn {
    /// The order, with an input pass and the weight pass right after it made one where nobody waits for the first.
    pub fn merged(self, pipeline: &Pipeline) -> Order {
        let m = pipeline.n_micro_batches;
        let mut begins = vec![0; pipeline.n_stages() * m];
        let stage = |rank: usize, slot: &Slot| pipeline.stage(rank, slot.chunk as usize);
        for (rank, (slots, starts)) in self.order.iter().zip(&self.start).enumerate() {
            for (slot, &start) in slots.iter().zip(starts).filter(|(slot, _)| slot.kind == PassKind::Input) {
                begins[stage(rank, slot) * m + slot.micro_batch as usize] = start;
            }
        }
        let mut order = self.order;
        for (rank, slots) in order.iter_mut().enumerate() {
            let mut merged: Vec<Slot> = Vec::with_capacity(slots.len());
            for &slot in slots.iter() {
                let (stage, j) = (stage(rank, &slot), slot.micro_batch as usize);
                let message = pipeline.message(PassKind::Backward, stage, j).map_or(0, |(_, time)| time);
                let whole = pipeline.duration(PassKind::Backward, stage, j) + message;
                let unhurried = stage == 0 || begins[(stage - 1) * m + j] >= begins[stage * m + j] + whole;
                match merged.last_mut() {
                    Some(last)
                        if unhurried
                            && slot.kind == PassKind::Weight
                            && *last == (Slot { kind: PassKind::Input, ..slot }) =>
                    {
                        last.kind = PassKind::Backward;
                    }
                    _ => merged.push(slot),
                }
            }
            *slots = merged;
        }
        order
    }
}

/// Most activation each rank may hold: `micro_batches` times the largest of a rank, what the schedule is known for, within the
/// pipeline's limit; and always enough for the largest.
pub fn cap(pipeline: &Pipeline, micro_batches: usize) -> Vec<u64> {
    let m = pipeline.n_micro_batches;
    let largest = |rank: usize| (0..m).map(|j| whole(pipeline, rank, j)).max().unwrap_or(0);
    let own = |largest: u64| pipeline.limit.unwrap_or(u64::MAX).min(largest * micro_batches as u64).max(largest);
    (0..pipeline.n_ranks).map(|rank| own(largest(rank))).collect()
}

/// Activation of all chunks of a rank for one micro-batch.
fn whole(pipeline: &Pipeline, rank: usize, micro_batch: usize) -> u64 {
    let chunks = 0..pipeline.n_chunks;
    let through = chunks.filter(|&chunk| pipeline.placement != Placement::Bidirectional || micro_batch % 2 == chunk);
    through.map(|chunk| pipeline.activation[pipeline.stage(rank, chunk)][micro_batch]).sum()
}

/// Passes of one rank that wait, and its memory.
struct Worker {
    /// Next micro-batch forward, per chunk.
    forward: Vec<usize>,
    /// Next micro-batch backward, per chunk.
    input: Vec<usize>,
    /// Weight passes whose input pass is done: chunk, micro-batch.
    weights: VecDeque<(usize, usize)>,
    free_at: u64,
    /// Time without work since its first pass.
    idled: u64,
    cap: u64,
    held: u64,
    /// Per micro-batch: what its forwards to come will add, and what it holds.
    claims: Vec<(u64, u64)>,
    /// First micro-batch that is not through, and the first that has not begun.
    flight: (usize, usize),
}

impl Worker {
    /// Whether every micro-batch in flight can still finish, in the order of their number, after one of them takes `amount`.
    fn admits(&self, micro_batch: usize, amount: u64) -> bool {
        let Some(mut room) = self.cap.checked_sub(self.held + amount) else { return false };
        let until = self.flight.1.max(micro_batch + 1);
        for (index, &(need, held)) in self.claims.iter().enumerate().take(until).skip(self.flight.0) {
            let (need, held) = if index == micro_batch { (need - amount, held + amount) } else { (need, held) };
            if need > room {
                return false;
            }
            room += held;
        }
        true
    }

    fn take(&mut self, micro_batch: usize, amount: u64) {
        let claim = &mut self.claims[micro_batch];
        *claim = (claim.0 - amount, claim.1 + amount);
        self.held += amount;
        self.flight.1 = self.flight.1.max(micro_batch + 1);
    }

    fn give_back(&mut self, micro_batch: usize, amount: u64) {
        self.claims[micro_batch].1 -= amount;
        self.held -= amount;
        while self.flight.0 < self.flight.1 && self.claims[self.flight.0] == (0, 0) {
            self.flight.0 += 1;
        }
    }
}

/// One simulation.
struct Run<'a> {
    pipeline: &'a Pipeline,
    rule: Rule<'a>,
    backward: PassKind,
    ends: Ends,
    workers: Vec<Worker>,
    /// Times at which a rank should look again: its own ends and the arrivals of inputs.
    wakes: BinaryHeap<Reverse<(u64, usize)>>,
    drawn: Drawn,
    left: usize,
}

impl<'a> Run<'a> {
    fn new(pipeline: &'a Pipeline, cap: &[u64], backward: PassKind, rule: Rule<'a>) -> Self {
        let (p, m, v) = (pipeline.n_ranks, pipeline.n_micro_batches, pipeline.n_chunks);
        let first: Vec<usize> = (0..v).map(|chunk| pipeline.micro_batches(chunk).next().unwrap_or(m)).collect();
        let worker = |rank: usize| Worker {
            forward: first.clone(),
            input: first.clone(),
            weights: VecDeque::new(),
            free_at: 0,
            idled: 0,
            cap: cap[rank],
            held: 0,
            claims: (0..m).map(|j| (whole(pipeline, rank, j), 0)).collect(),
            flight: (0, 0),
        };
        let per_stage = if backward == PassKind::Input { 3 } else { 2 };
        Self {
            pipeline,
            rule,
            backward,
            ends: Ends::none(pipeline),
            workers: (0..p).map(worker).collect(),
            wakes: (0..p).map(|rank| Reverse((0, rank))).collect(),
            drawn: Drawn { order: vec![Vec::new(); p], start: vec![Vec::new(); p], span: 0, rank_span: 0 },
            left: per_stage * pipeline.n_stages() * m,
        }
    }

    fn play(mut self) -> Drawn {
        let mut now = 0;
        while self.left > 0 {
            engine::stop::pause();
            let Some(Reverse((time, rank))) = self.wakes.pop() else {
                // All ranks wait for each other: the oldest micro-batch's next pass, at least, is ready and admitted.
                let free =
                    (0..self.workers.len()).find_map(|rank| self.choose(rank, now, i64::MAX).map(|slot| (rank, slot)));
                let (rank, slot) = free.expect("the oldest micro-batch can always go on");
                self.start(rank, slot, now);
                continue;
            };
            now = time;
            if self.workers[rank].free_at <= now
                && let Some(slot) = self.choose(rank, now, self.window(rank))
            {
                self.start(rank, slot, now);
            }
        }
        let ends = self.workers.iter().map(|worker| worker.free_at);
        self.drawn.span = ends.clone().max().unwrap_or(0);
        let spans = ends.zip(&self.drawn.start).map(|(end, start)| end - start.first().unwrap_or(&end));
        self.drawn.rank_span = spans.max().unwrap_or(0);
        self.drawn
    }

    /// How far a rank's passes may overtake now.
    fn window(&self, rank: usize) -> i64 {
        let m = self.pipeline.n_micro_batches;
        let forward = &self.workers[rank].forward;
        let warming = self.rule.eager_start && self.workers[0].input[0] == 0;
        let loose = warming || forward.iter().all(|&j| j >= m);
        if loose { i64::MAX } else { self.rule.window }
    }

    /// What a free rank does now, if anything.
    fn choose(&self, rank: usize, now: u64, window: i64) -> Option<Slot> {
        let worker = &self.workers[rank];
        let weight = worker.weights.front().map(|&(chunk, j)| slot(PassKind::Weight, chunk, j));
        let heads = self.heads(rank);
        let lowest = heads.first().map_or(0, |head| head.0);
        // Earliest known arrival of a pass that lacks its inputs; such a pass holds the place for those far behind it.
        let mut arrival = None;
        for &(key, slot) in &heads {
            if arrival.is_some() && key.saturating_sub(lowest) > window {
                break;
            }
            let (stage, j) = (self.pipeline.stage(rank, slot.chunk as usize), slot.micro_batch as usize);
            if slot.kind == PassKind::Forward && !worker.admits(j, self.pipeline.activation[stage][j]) {
                // A weight pass makes room; without one, the forward is overtaken.
                if weight.is_some() && window < i64::MAX {
                    break;
                }
                continue;
            }
            match self.ends.ready(self.pipeline, slot, stage) {
                Some(ready) if ready <= now => return Some(slot),
                ready => arrival = Some(arrival.unwrap_or(u64::MAX).min(ready.unwrap_or(u64::MAX))),
            }
        }
        let weight = weight?;
        let stage = self.pipeline.stage(rank, weight.chunk as usize);
        let length = self.pipeline.weight[stage][weight.micro_batch as usize];
        let waits = arrival.is_some_and(|arrival| self.waits(rank, now, arrival - now, length));
        (!waits).then_some(weight)
    }

    /// Whether a rank idles for so long rather than start a weight pass of that length.
    fn waits(&self, rank: usize, now: u64, rest: u64, length: u64) -> bool {
        match self.rule.patience {
            Patience::Never => false,
            Patience::Half => rest < length.div_ceil(2),
            Patience::Slack => {
                let longest = self.workers.iter().map(|worker| worker.idled).max().unwrap_or(0);
                let own = &self.workers[rank];
                rest < length && own.idled + (now - own.free_at) + rest <= longest
            }
        }
    }

    /// The next forward and backward of each chunk, lowest key first.
    fn heads(&self, rank: usize) -> Vec<(i64, Slot)> {
        let (worker, m) = (&self.workers[rank], self.pipeline.n_micro_batches);
        let mut heads: Vec<(i64, Slot)> = Vec::with_capacity(2 * worker.forward.len());
        for chunk in 0..worker.forward.len() {
            for (kind, j) in [(self.backward, worker.input[chunk]), (PassKind::Forward, worker.forward[chunk])] {
                heads.extend((j < m).then(|| ((self.rule.key)(rank, kind, chunk, j), slot(kind, chunk, j))));
            }
        }
        heads.sort_by_key(|head| head.0);
        heads
    }

    fn start(&mut self, rank: usize, slot: Slot, now: u64) {
        let (chunk, j) = (slot.chunk as usize, slot.micro_batch as usize);
        let stage = self.pipeline.stage(rank, chunk);
        let end = now + self.pipeline.duration(slot.kind, stage, j);
        let amount = self.pipeline.activation[stage][j];
        let step = if self.pipeline.placement == Placement::Bidirectional { 2 } else { 1 };
        let worker = &mut self.workers[rank];
        worker.idled += if self.drawn.order[rank].is_empty() { 0 } else { now - worker.free_at };
        let arrival = self.ends.set(self.pipeline, slot, stage, end);
        let end = if self.pipeline.waits_for_messages { arrival } else { end };
        worker.free_at = end;
        match slot.kind {
            PassKind::Forward => {
                worker.forward[chunk] += step;
                worker.take(j, amount);
            }
            PassKind::Backward | PassKind::Input => worker.input[chunk] += step,
            PassKind::Weight => _ = worker.weights.pop_front(),
        }
        if slot.kind != PassKind::Forward {
            worker.give_back(j, self.pipeline.memory(slot.kind, stage, j).unsigned_abs());
        }
        if slot.kind == PassKind::Input {
            worker.weights.push_back((chunk, j));
        }
        self.wakes.push(Reverse((end, rank)));
        if let Some((to, _)) = self.pipeline.message(slot.kind, stage, j) {
            self.wakes.push(Reverse((arrival, to)));
        }
        self.drawn.order[rank].push(slot);
        self.drawn.start[rank].push(now);
        self.left -= 1;
    }
}

fn slot(kind: PassKind, chunk: usize, micro_batch: usize) -> Slot {
    Slot { kind, chunk: super::u32_of(chunk), micro_batch: super::u32_of(micro_batch) }
}
