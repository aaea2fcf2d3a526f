//! The passes of a pipeline with what must come before and after each: heads, tails, and the bounds that follow.
//!
//! Units: nanoseconds.

use train::schedule::{PassKind, Pipeline, Slot};

/// Most rounds of `tighten`; stopping early loses tightness only.
const MOST_ROUNDS: usize = 100;

/// A pass.
#[derive(Clone)]
pub struct Pass {
    pub slot: Slot,
    pub stage: usize,
    pub duration: u64,
    /// Longest path to its start.
    pub head: u64,
    /// Longest path from its end.
    pub tail: u64,
    /// Passes that wait for it, and the transfer time to each.
    pub next: Vec<(usize, u64)>,
    /// Its message to another rank, which leaves behind those of its rank's passes before it; 0 without one.
    pub message: u64,
    /// What it adds to the activation of its rank.
    pub memory: i64,
}

impl Pass {
    /// Takes memory.
    pub fn takes(&self) -> bool {
        self.slot.kind == PassKind::Forward
    }

    /// Place on a micro-batch's way: 0, 1, … forward, then backward.
    fn step(&self, n_stages: usize) -> usize {
        if self.takes() { self.stage } else { 2 * n_stages - 1 - self.stage }
    }
}

/// All passes.
#[derive(Clone)]
pub struct Passes {
    pub all: Vec<Pass>,
    /// Passes of each rank.
    pub of_rank: Vec<Vec<usize>>,
    /// For each micro-batch, the first one just like it (and of its direction).
    twin: Vec<usize>,
    n_stages: usize,
    /// Greatest common divisor of all times.
    unit: u64,
}

impl Passes {
    pub fn new(pipeline: &Pipeline, splits: bool) -> Self {
        let (n_stages, m) = (pipeline.n_stages(), pipeline.n_micro_batches);
        let kinds: &[PassKind] = if splits {
            &[PassKind::Forward, PassKind::Input, PassKind::Weight]
        } else {
            &[PassKind::Forward, PassKind::Backward]
        };
        let id = |kind: usize, stage: usize, j: usize| (kind * n_stages + stage) * m + j;
        let mut all = Vec::with_capacity(kinds.len() * n_stages * m);
        let mut of_rank = vec![Vec::new(); pipeline.n_ranks];
        for (number, &kind) in kinds.iter().enumerate() {
            for (stage, j) in (0..n_stages).flat_map(|stage| (0..m).map(move |j| (stage, j))) {
                let (rank, chunk) = pipeline.place(stage, j);
                let sent = pipeline.message(kind, stage, j).map_or(0, |(_, time)| time);
                // A rank that waits until its message is sent is as busy as if it computed.
                let (busy, message) = if pipeline.waits_for_messages { (sent, 0) } else { (0, sent) };
                let next_stage = pipeline.next_stage(kind, stage);
                let mut next: Vec<(usize, u64)> = match kind {
                    PassKind::Forward => vec![next_stage.map_or((id(1, stage, j), 0), |to| (id(0, to, j), message))],
                    _ => next_stage.map(|to| (id(1, to, j), message)).into_iter().collect(),
                };
                next.extend((kind == PassKind::Input).then(|| (id(number + 1, stage, j), 0)));
                of_rank[rank].push(all.len());
                let duration = pipeline.duration(kind, stage, j) + busy;
                all.push(Pass {
                    slot: slot(kind, chunk, j),
                    stage,
                    duration,
                    head: 0,
                    tail: 0,
                    next,
                    message,
                    memory: pipeline.memory(kind, stage, j),
                });
            }
        }
        let unit = all.iter().fold(0, |unit, pass| gcd(gcd(unit, pass.duration), pass.message)).max(1);
        let mut passes = Self { all, of_rank, twin: (0..m).map(|j| twin(pipeline, j)).collect(), n_stages, unit };
        passes.set_heads_and_tails();
        passes
    }

    /// Greatest common divisor of all times, at least 1.
    pub const fn unit(&self) -> u64 {
        self.unit
    }

    /// Carries heads forward and tails backward along the micro-batches' ways.
    fn set_heads_and_tails(&mut self) {
        let mut by_step: Vec<usize> = (0..self.all.len()).collect();
        by_step.sort_by_key(|&id| (self.all[id].slot.kind == PassKind::Weight, self.all[id].step(self.n_stages)));
        for &id in &by_step {
            let end = self.all[id].head + self.all[id].duration;
            for (next, lag) in self.all[id].next.clone() {
                self.all[next].head = self.all[next].head.max(end + lag);
            }
        }
        for &id in by_step.iter().rev() {
            let after = |&(next, lag): &(usize, u64)| lag + self.all[next].duration + self.all[next].tail;
            self.all[id].tail = self.all[id].next.iter().map(after).fold(self.all[id].tail, u64::max);
        }
    }

    /// Whether a message of a rank may have to wait for the one before it: some message takes longer than some pass that sends one.
    pub fn queues_messages(&self, rank: usize) -> bool {
        let senders = || self.of_rank[rank].iter().map(|&id| &self.all[id]).filter(|pass| pass.message > 0);
        senders().map(|pass| pass.message).max() > senders().map(|pass| pass.duration).min()
    }

    /// Longest path to the arrival of a pass's message.
    pub fn earliest_arrival(&self, id: usize) -> u64 {
        let pass = &self.all[id];
        pass.head + pass.duration + pass.message
    }

    /// How long before it could leave behind the message of `x` that of `y` may arrive at most, within a span of `upper`.
    pub fn overlap(&self, x: usize, y: usize, upper: u64) -> u64 {
        let latest = upper - self.after_arrival(x) + self.all[y].message;
        latest.saturating_sub(self.earliest_arrival(y))
    }

    /// Longest path from the arrival of a pass's message.
    pub fn after_arrival(&self, id: usize) -> u64 {
        let Some(&(next, _)) = self.all[id].next.first() else { return 0 };
        self.all[next].duration + self.all[next].tail
    }

    /// Whether some shortest order that spans `upper` or less has pass `a` before `b` of the same rank.
    pub fn may_precede(&self, a: usize, b: usize, upper: u64) -> bool {
        let (before, after) = (&self.all[a], &self.all[b]);
        !self.must_precede(b, a) && before.head + before.duration + after.duration + after.tail <= upper
    }

    /// Whether `a` precedes `b` on a micro-batch's way, or the same of its lower-numbered twin. Passes of twins can be swapped
    /// until they go in the order of their numbers everywhere, so nothing is lost.
    fn must_precede(&self, a: usize, b: usize) -> bool {
        let (before, after) = (&self.all[a], &self.all[b]);
        let (i, j) = (before.slot.micro_batch as usize, after.slot.micro_batch as usize);
        let (step, to) = (before.step(self.n_stages), after.step(self.n_stages));
        let weight = |pass: &Pass| pass.slot.kind == PassKind::Weight;
        let on_the_way = match (weight(before), weight(after)) {
            (false, false) => step <= to,
            (false, true) => step <= to,
            (true, true) => step == to,
            (true, false) => false,
        };
        self.twin[i] == self.twin[j] && on_the_way && a != b && i <= j
    }

    /// Lower bound on the span: every rank by itself with heads and tails, its passes interruptible (Jackson's rule), which
    /// is never more than the true optimum and never less than a micro-batch's critical path.
    pub fn bound(&self) -> u64 {
        self.of_rank.iter().map(|ids| self.preemptive_span(ids)).max().unwrap_or(0)
    }

    /// Raises heads and tails by the pairs whose order follows when the span is `upper` or less, until nothing moves. `false`
    /// when that cannot be.
    pub fn tighten(&mut self, upper: u64) -> bool {
        for _ in 0..MOST_ROUNDS {
            let mut moved = false;
            for rank in 0..self.of_rank.len() {
                let ids = self.of_rank[rank].clone();
                for (row, &a) in ids.iter().enumerate() {
                    for &b in &ids[row + 1..] {
                        let (first, second) = match (self.may_precede(a, b, upper), self.may_precede(b, a, upper)) {
                            (true, true) => continue,
                            (false, false) => return false,
                            (true, false) => (a, b),
                            (false, true) => (b, a),
                        };
                        let head = self.all[first].head + self.all[first].duration;
                        let tail = self.all[second].duration + self.all[second].tail;
                        moved |= head > self.all[second].head || tail > self.all[first].tail;
                        self.all[second].head = self.all[second].head.max(head);
                        self.all[first].tail = self.all[first].tail.max(tail);
                    }
                }
            }
            self.set_heads_and_tails();
            if self.bound() > upper {
                return false;
            }
            if !moved {
                break;
            }
        }
        true
    }

    /// The bound, raised as long as tightening refutes a span, up to the known span `to`.
    pub fn raised_bound(&self, to: u64) -> u64 {
        // Spans are whole units: `low` units are not refuted by the bound itself, `high` units are known to be possible.
        let (mut low, mut high) = (self.bound() / self.unit, to / self.unit);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.clone().tighten(middle * self.unit) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low * self.unit
    }

    /// Pairs of passes of a rank.
    pub fn n_pairs(&self) -> usize {
        self.of_rank.iter().map(|ids| ids.len() * ids.len().saturating_sub(1) / 2).sum()
    }

    /// Span of one rank when, at any time, the arrived pass with the longest tail is computed.
    fn preemptive_span(&self, ids: &[usize]) -> u64 {
        let mut arrivals: Vec<usize> = ids.to_vec();
        arrivals.sort_by_key(|&id| std::cmp::Reverse(self.all[id].head));
        let mut waiting: std::collections::BinaryHeap<(u64, u64)> = std::collections::BinaryHeap::new();
        let (mut now, mut span) = (0, 0);
        loop {
            while let Some(&id) = arrivals.last().filter(|&&id| self.all[id].head <= now) {
                waiting.push((self.all[id].tail, self.all[id].duration));
                arrivals.pop();
            }
            let arrival = arrivals.last().map(|&id| self.all[id].head);
            match (waiting.pop(), arrival) {
                (Some((tail, left)), arrival) => {
                    let step = arrival.map_or(left, |at| left.min(at - now));
                    now += step;
                    if step < left {
                        waiting.push((tail, left - step));
                    } else {
                        span = span.max(now + tail);
                    }
                }
                (None, Some(arrival)) => now = arrival,
                (None, None) => return span,
            }
        }
    }
}

/// A slot.
pub fn slot(kind: PassKind, chunk: usize, micro_batch: usize) -> Slot {
    let small = |n: usize| u32::try_from(n).expect("pipelines have fewer than 2^32 micro-batches");
    Slot { kind, chunk: small(chunk), micro_batch: small(micro_batch) }
}

/// The first micro-batch with the same durations, messages, activations and ranks.
fn twin(pipeline: &Pipeline, micro_batch: usize) -> usize {
    let times = [&pipeline.forward, &pipeline.input, &pipeline.weight, &pipeline.transfer];
    let grids = times.into_iter().chain([&pipeline.activation, &pipeline.for_weights]);
    let same = |other: &usize| {
        grids.clone().all(|grid| grid.iter().all(|row| row[*other] == row[micro_batch]))
            && pipeline.place(0, *other) == pipeline.place(0, micro_batch)
    };
    (0..=micro_batch).find(same).unwrap_or(micro_batch)
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
