//! Pipeline schedules: in which order every pipeline rank computes the passes of its chunks.
//!
//! A micro-batch runs forward through the stages 0, 1, …, then backward through them in reverse. A schedule's `Placement`
//! says which rank holds which stage; a rank with several stages calls them its chunks 0, 1, …. A schedule is a function
//! from a `Pipeline` (durations of every pass, memory limit) to an `Order`, in a file of its own under `SCHEDULES`.
//! Units: nanoseconds; activation in the caller's unit. Durations of different micro-batches may differ.
//!
//! Invariant, held by a property test: every order holds every pass exactly once and can be played without a deadlock.

mod dualpipe;
mod gpipe;
mod greedy;
mod interleaved;
mod one_f_one_b;
mod play;
mod v_half;
mod v_min;
mod v_shape;
mod zb_1p;
mod zb_2p;
mod zb_v;
mod zero_bubble;

pub use play::{Played, Stuck, play};

use std::ops::Range;

pub use engine::task::PassKind;
use serde::{Deserialize, Serialize};

use crate::activation::Activation;

/// Which rank holds which stage, for `p` ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Stage k on rank k.
    Linear,
    /// Stage k on rank k mod p: interleaved stages, chunk k / p.
    Loop,
    /// Two chunks: stage k on rank k, stage p + k on rank p − 1 − k, so the last stage is on rank 0.
    V,
    /// Two copies of the model: even micro-batches have stage k on rank k (chunk 0), odd ones on rank p − 1 − k (chunk 1).
    Bidirectional,
}

/// One pass of one micro-batch through one chunk of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// What.
    pub kind: PassKind,
    /// Chunk of the rank.
    pub chunk: u32,
    /// Micro-batch.
    pub micro_batch: u32,
}

/// For each pipeline rank, its slots in order of computation.
pub type Order = Vec<Vec<Slot>>;

/// Durations of one pass kind, `[stage][micro_batch]`.
pub type Grid = Vec<Vec<u64>>;

/// A pipeline whose passes are to be ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Ranks p.
    pub n_ranks: usize,
    /// Chunks per rank v.
    pub n_chunks: usize,
    /// Where the stages lie.
    pub placement: Placement,
    /// Micro-batches m.
    pub n_micro_batches: usize,
    /// Forward, nanoseconds.
    pub forward: Grid,
    /// Gradients of inputs, nanoseconds.
    pub input: Grid,
    /// Gradients of weights, nanoseconds.
    pub weight: Grid,
    /// What a whole backward takes more than input + weight, nanoseconds: below 0 where its host launches meanwhile.
    pub joint: Vec<Vec<i64>>,
    /// Time of a message between a stage and the one after it, nanoseconds; nothing inside a rank. A rank sends one at a time, in the order of its passes.
    pub transfer: Grid,
    /// Whether a rank waits until its message is sent.
    pub waits_for_messages: bool,
    /// Activation that a stage keeps from forward to the end of its backward, or of `Input` where backward is split.
    pub activation: Grid,
    /// What of it, or in place of it, a stage keeps from the end of `Input` to that of `Weight`; at most `activation`.
    pub for_weights: Grid,
    /// Logits of every micro-batch on the last stage, from its forward to its backward, in the same unit. Rules that order passes count micro-batches and
    /// leave them out; `with_logits` counts them.
    pub logits: Vec<u64>,
    /// Most activation that a rank may hold; `None` for as much as the schedule likes. A rank that could not hold one
    /// micro-batch may hold one. `gpipe`, `1f1b` and `interleaved` have one order each and do not heed it.
    pub limit: Option<u64>,
    /// Micro-batches that are parts of one sequence.
    pub chains: Chains,
    /// Micro-batches that interleaved stages run through one chunk before the next one, at least as many as ranks.
    pub group: usize,
    /// Micro-batches behind which the pipeline is flushed; `None` for all of them.
    pub flush_every: Option<usize>,
}

/// What parts of long sequences ask of the order (ChunkFlow, arXiv:2503.02356): later parts attend to the keys and values of
/// earlier ones, so forward goes up and backward goes down a sequence. Empty where every micro-batch stands alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chains {
    /// Micro-batches whose forward makes only keys and values: no activation is kept, no backward follows.
    pub forward_only: Vec<bool>,
    /// All other micro-batches in the order of their backward.
    pub backward_order: Vec<u32>,
    /// Micro-batch whose backward comes before a micro-batch's forward on every rank.
    pub forward_after: Vec<Option<u32>>,
}

impl Chains {
    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.backward_order.is_empty()
    }

    /// Whether a micro-batch has a forward only.
    pub fn is_forward_only(&self, micro_batch: usize) -> bool {
        self.forward_only.get(micro_batch).copied().unwrap_or(false)
    }
}

impl Pipeline {
    /// A pipeline of equal stages and micro-batches with activation 1 per stage.
    pub fn equal(n_ranks: usize, schedule: &Schedule, n_micro_batches: usize, durations: [u64; 3]) -> Self {
        let mut pipeline = Self::of_schedule(schedule, n_ranks, schedule.n_chunks, n_micro_batches);
        for (grid, duration) in
            [&mut pipeline.forward, &mut pipeline.input, &mut pipeline.weight].into_iter().zip(durations)
        {
            grid.iter_mut().for_each(|row| row.fill(duration));
        }
        pipeline
    }

    /// A pipeline of passes of one nanosecond with activation 1 per stage, with so many chunks per rank.
    pub fn of_schedule(schedule: &Schedule, n_ranks: usize, n_chunks: usize, n_micro_batches: usize) -> Self {
        let grid = || vec![vec![1; n_micro_batches]; schedule.placement.n_stages(n_ranks, n_chunks)];
        Self {
            n_ranks,
            n_chunks,
            placement: schedule.placement,
            n_micro_batches,
            forward: grid(),
            input: grid(),
            weight: grid(),
            joint: vec![vec![0; n_micro_batches]; schedule.placement.n_stages(n_ranks, n_chunks)],
            transfer: vec![vec![0; n_micro_batches]; schedule.placement.n_stages(n_ranks, n_chunks)],
            waits_for_messages: false,
            activation: grid(),
            for_weights: grid(),
            logits: vec![0; n_micro_batches],
            limit: None,
            chains: Chains::default(),
            group: n_ranks,
            flush_every: None,
        }
    }

    /// Some of its micro-batches as a pipeline of their own.
    fn part(&self, micro_batches: Range<usize>) -> Self {
        Self {
            n_micro_batches: micro_batches.len(),
            forward: columns(&self.forward, &micro_batches),
            input: columns(&self.input, &micro_batches),
            weight: columns(&self.weight, &micro_batches),
            joint: columns(&self.joint, &micro_batches),
            transfer: columns(&self.transfer, &micro_batches),
            activation: columns(&self.activation, &micro_batches),
            for_weights: columns(&self.for_weights, &micro_batches),
            logits: self.logits[micro_batches].to_vec(),
            flush_every: None,
            ..self.clone()
        }
    }

    /// The same with logits among what the last stage keeps until a backward, or its input pass.
    #[must_use]
    pub fn with_logits(&self) -> Self {
        let mut all = self.clone();
        for (kept, logits) in all.activation.last_mut().into_iter().flatten().zip(&mut all.logits) {
            *kept += std::mem::take(logits);
        }
        all
    }

    /// Stages of a micro-batch's path.
    pub const fn n_stages(&self) -> usize {
        self.placement.n_stages(self.n_ranks, self.n_chunks)
    }

    /// (rank, chunk) of a stage of a micro-batch.
    pub const fn place(&self, stage: usize, micro_batch: usize) -> (usize, usize) {
        self.placement.place(self.n_ranks, stage, micro_batch)
    }

    /// Stage that a rank's chunk is.
    pub const fn stage(&self, rank: usize, chunk: usize) -> usize {
        let p = self.n_ranks;
        match (self.placement, chunk) {
            (Placement::Linear, _) | (Placement::V | Placement::Bidirectional, 0) => rank,
            (Placement::Loop, chunk) => chunk * p + rank,
            (Placement::V, _) => 2 * p - 1 - rank,
            (Placement::Bidirectional, _) => p - 1 - rank,
        }
    }

    /// Duration of a pass of a stage, nanoseconds.
    pub fn duration(&self, kind: PassKind, stage: usize, micro_batch: usize) -> u64 {
        match kind {
            PassKind::Forward => self.forward[stage][micro_batch],
            PassKind::Backward => {
                let halves = self.input[stage][micro_batch] + self.weight[stage][micro_batch];
                halves.saturating_add_signed(self.joint[stage][micro_batch])
            }
            PassKind::Input => self.input[stage][micro_batch],
            PassKind::Weight => self.weight[stage][micro_batch],
        }
    }

    /// Stage that a pass's result goes to.
    pub fn next_stage(&self, kind: PassKind, stage: usize) -> Option<usize> {
        match kind {
            PassKind::Forward => (stage + 1 < self.n_stages()).then_some(stage + 1),
            PassKind::Backward | PassKind::Input => stage.checked_sub(1),
            PassKind::Weight => None,
        }
    }

    /// Rank that a pass's result goes to and the time of that message, nanoseconds; nothing where the result stays on its rank.
    pub fn message(&self, kind: PassKind, stage: usize, micro_batch: usize) -> Option<(usize, u64)> {
        let next = self.next_stage(kind, stage)?;
        let [from, to] = [stage, next].map(|stage| self.place(stage, micro_batch).0);
        (from != to).then(|| (to, self.transfer[stage.min(next)][micro_batch]))
    }

    /// What a pass adds to the activation of its rank as it starts (a forward) or ends.
    pub fn memory(&self, kind: PassKind, stage: usize, micro_batch: usize) -> i64 {
        let [whole, for_weights] = [&self.activation, &self.for_weights].map(|grid| grid[stage][micro_batch]);
        Activation { whole, for_weights }.change(kind)
    }

    /// Micro-batches that pass through a rank's chunk, in order.
    pub fn micro_batches(&self, chunk: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let bidirectional = self.placement == Placement::Bidirectional;
        (0..self.n_micro_batches).filter(move |micro_batch| !bidirectional || micro_batch % 2 == chunk)
    }
}

impl Placement {
    /// Stages of a path over `n_ranks` ranks with `n_chunks` chunks.
    pub const fn n_stages(self, n_ranks: usize, n_chunks: usize) -> usize {
        match self {
            Self::Linear | Self::Bidirectional => n_ranks,
            Self::Loop => n_ranks * n_chunks,
            Self::V => 2 * n_ranks,
        }
    }

    /// (rank, chunk) of a stage of a micro-batch on `n_ranks` ranks.
    pub const fn place(self, n_ranks: usize, stage: usize, micro_batch: usize) -> (usize, usize) {
        match self {
            Self::Linear => (stage, 0),
            Self::Loop => (stage % n_ranks, stage / n_ranks),
            Self::V if stage < n_ranks => (stage, 0),
            Self::V => (2 * n_ranks - 1 - stage, 1),
            Self::Bidirectional if micro_batch.is_multiple_of(2) => (stage, 0),
            Self::Bidirectional => (n_ranks - 1 - stage, 1),
        }
    }
}

/// A schedule: what it says of itself, and its function.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Name in scenario files.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// Paper or public source.
    pub source: &'static str,
    /// Where stages lie.
    pub placement: Placement,
    /// Chunks per rank; the scenario may choose another number where the placement is `Loop`.
    pub n_chunks: usize,
    /// Whether backward is split into `Input` and `Weight`.
    pub splits_backward: bool,
    /// Orders a pipeline that is flushed once.
    pub order: fn(&Pipeline) -> Order,
}

impl Schedule {
    /// The order of a pipeline, flush behind flush. No sequence is cut over several of them.
    pub fn ordered(&self, pipeline: &Pipeline) -> Order {
        let n = pipeline.n_micro_batches;
        let Some(every) = pipeline.flush_every.filter(|every| *every < n) else { return (self.order)(pipeline) };
        let mut all = vec![Vec::new(); pipeline.n_ranks];
        // Most flushes are alike.
        let mut known: Option<(Pipeline, Order)> = None;
        for from in (0..n).step_by(every) {
            let part = pipeline.part(from..(from + every).min(n));
            if known.as_ref().is_none_or(|(known, _)| *known != part) {
                let order = (self.order)(&part);
                known = Some((part, order));
            }
            for (all, slots) in all.iter_mut().zip(known.iter().flat_map(|(_, order)| order)) {
                let from = u32_of(from);
                all.extend(slots.iter().map(|slot| Slot { micro_batch: slot.micro_batch + from, ..*slot }));
            }
        }
        all
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every schedule.
pub static SCHEDULES: &[Schedule] = &[
    gpipe::SCHEDULE,
    one_f_one_b::SCHEDULE,
    interleaved::SCHEDULE,
    zb_1p::SCHEDULE,
    zb_2p::SCHEDULE,
    zb_v::SCHEDULE,
    v_half::SCHEDULE,
    v_min::SCHEDULE,
    dualpipe::SCHEDULE,
];

/// A schedule by name.
pub fn named(name: &str) -> Option<&'static Schedule> {
    SCHEDULES.iter().find(|schedule| schedule.name == name)
}

/// Some columns of a table.
fn columns<T: Clone>(rows: &[Vec<T>], of: &Range<usize>) -> Vec<Vec<T>> {
    rows.iter().map(|row| row[of.clone()].to_vec()).collect()
}

fn u32_of(n: usize) -> u32 {
    u32::try_from(n).expect("pipelines have fewer than 2^32 micro-batches")
}

/// Chunks per rank: free for interleaved stages, else what the placement says; one without a pipeline.
pub const fn chunks_of(schedule: &Schedule, pp: u32, wanted: u32) -> u32 {
    match schedule.placement {
        _ if pp == 1 => 1,
        Placement::Loop => wanted,
        Placement::Linear => 1,
        Placement::V | Placement::Bidirectional => 2,
    }
}

#[cfg(test)]
mod tests;
