//! Time of prefill attention by new and earlier tokens, interpolated between knots at powers of two and halfway between them.
//!
//! A kernel that is sparse above a number of keys has a table on each side of it: between them the time jumps, and no knot of one side says
//! anything of the other.

use hw::{Seconds, Tick};

use engine::cost::CostModel;
use engine::cost::sparse_attention::SparseAttention;
use engine::play::Case;
use engine::task::Document;

use super::chunks::ChunkLaw;
use super::least::least_of;
use super::writer::Writer;
use super::{PromptKernel, ReplicaConfig};
use crate::step_cost::Chunk;

/// Longest context of the table; beyond it the last rate holds.
const PAST_TOKENS_MAX: u64 = 1 << 20;
/// First knot of the axis of earlier tokens, as a power of two.
const PAST_FIRST_OCTAVE: u32 = 6;

/// Prefill attention of all layers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prefill {
    /// Between knots.
    Table(PrefillTable),
    /// The same by the keys that a chunk sees.
    Sides {
        /// Chunks that see at most so many keys are dense.
        threshold: u64,
        /// Those.
        dense: PrefillTable,
        /// All others.
        sparse: PrefillTable,
    },
    /// A law of a stage's time, and how many stages there are.
    Law {
        /// The law.
        law: ChunkLaw,
        /// Stages.
        stages: u32,
    },
}

impl Prefill {
    /// Attention that takes no time.
    pub(super) const NONE: Self = Self::Law { law: ChunkLaw { a: 0.0, b: 0.0, c: 0.0, gamma: 0.0 }, stages: 1 };

    /// Of what a writer asks, for chunks of at most so many tokens.
    pub(super) fn of(writer: &Writer<'_>, tokens_max: u32, cost: &dyn CostModel, case: Case) -> Self {
        let deployment = writer.deployment;
        // Time per pair falls with the keys where attention is not to all of them, time per token does not bend.
        let per = if deployment.model.is_plain() { Rates::Pairs } else { Rates::Tokens };
        let Some(SparseAttention { threshold, .. }) = deployment.prompt_attention.sparse else {
            return Self::Table(PrefillTable::new(tokens_max, (per, 0), |chunk| writer.prefill(chunk)));
        };
        let dense = PromptKernel { sparse: None, ..deployment.prompt_attention };
        let dense = ReplicaConfig { prompt_attention: dense, ..deployment.clone() };
        let kernels = dense.kernels(cost);
        let dense = Writer::new(&dense, kernels.as_ref(), case);
        let sides = Self::Sides {
            threshold,
            dense: PrefillTable::new(tokens_max, (per, 0), |chunk| dense.prefill(chunk)),
            sparse: PrefillTable::new(tokens_max, (Rates::Chunks, threshold + 1), |chunk| writer.prefill(chunk)),
        };
        writer.source.set(writer.source.get().max(dense.source.get()));
        sides
    }

    /// Ticks of a chunk.
    pub(super) fn ticks(&self, chunk: Chunk) -> Tick {
        match self {
            Self::Table(table) => table.ticks(chunk),
            Self::Sides { threshold, dense, sparse } => {
                let keys = u64::from(chunk.past) + u64::from(chunk.new);
                if keys > *threshold { sparse.ticks(chunk) } else { dense.ticks(chunk) }
            }
            Self::Law { law, stages } => Tick::from_seconds(law.attention(chunk.past, chunk.new) * f64::from(*stages)),
        }
    }

    /// Ticks of a prompt at least however it is cut, for its first chunk and for each pair of query and key; nothing where time is not known to grow with pairs.
    pub(super) fn least(&self) -> [f64; 2] {
        match self {
            // Rates between knots are no lower than the lowest of the knots.
            Self::Table(PrefillTable { per: Rates::Pairs, start, rates, .. }) => {
                [*start, least_of(rates.iter().copied())]
            }
            Self::Table(_) | Self::Sides { .. } | Self::Law { .. } => [0.0; 2],
        }
    }
}

/// What is interpolated between knots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rates {
    /// Ticks per query-key pair: all pairs are computed.
    Pairs,
    /// Ticks per new token: of many keys, each token computes about as many.
    Tokens,
    /// Ticks of the whole chunk: what is paid for every one outweighs its tokens, and the rest grows evenly with them.
    Chunks,
}

/// A start, and ticks per query-key pair or token over new and earlier tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PrefillTable {
    per: Rates,
    /// Keys that its chunks see at least.
    keys_min: u64,
    /// Ticks of the smallest chunk.
    start: f64,
    /// Rows by new tokens, columns by earlier tokens beyond the fewest that there are.
    rates: Vec<f64>,
    n_columns: usize,
}

/// Position on an axis with knots at 1, 2, 3, 4, 6, 8, 12, …: index of the knot below and how far it is to the next one.
pub(super) fn position(n: u64) -> (usize, f64) {
    if n <= 1 {
        return (0, 0.0);
    }
    let octave = n.ilog2();
    let half = 1_u64 << (octave - 1);
    let rest = n - 2 * half;
    let index = 2 * octave as usize - 1 + usize::from(rest >= half);
    (index, hw::real(rest % half) / hw::real(half))
}

/// Size at a knot.
pub(super) const fn knot(index: usize) -> u64 {
    match index {
        0 => 1,
        _ if index % 2 == 1 => 1 << index.div_ceil(2),
        _ => 3 << (index / 2 - 1),
    }
}

/// Index of the axis `1, 2, 3, …` at which the axis of earlier tokens has its second knot; the first one is 0.
const PAST_OFFSET: usize = 2 * PAST_FIRST_OCTAVE as usize - 1;

pub(super) fn past_position(past: u64) -> (usize, f64) {
    let first = 1_u64 << PAST_FIRST_OCTAVE;
    if past < first {
        return (0, hw::real(past) / hw::real(first));
    }
    let (index, share) = position(past);
    (index - PAST_OFFSET + 1, share)
}

impl Rates {
    /// What a chunk has of it.
    const fn of(self, chunk: Chunk) -> u64 {
        match self {
            Self::Pairs => Document::chunk(chunk.past as u64, chunk.new as u64).pairs,
            Self::Tokens => chunk.new as u64,
            Self::Chunks => 1,
        }
    }
}

impl PrefillTable {
    fn new(tokens_max: u32, (per, keys_min): (Rates, u64), at: impl Fn(Chunk) -> Seconds) -> Self {
        let n_rows = position(u64::from(tokens_max)).0 + 2;
        let n_columns = past_position(PAST_TOKENS_MAX).0 + 1;
        let mut rates = Vec::with_capacity(n_rows * n_columns);
        let small = |n: u64| u32::try_from(n).expect("knots stay below 2^32");
        let chunk = |beyond: u64, new: u64| Chunk { past: small(past_min(keys_min, new) + beyond), new: small(new) };
        let ticks = |chunk| Tick::unrounded(at(chunk));
        let start = if per == Rates::Chunks { 0.0 } else { ticks(chunk(0, 1)) };
        for row in 0..n_rows {
            for column in 0..n_columns {
                let beyond = if column == 0 { 0 } else { knot(column - 1 + PAST_OFFSET) };
                let chunk = chunk(beyond, knot(row));
                rates.push((ticks(chunk) - start).max(0.0) / hw::real(per.of(chunk)));
            }
        }
        Self { per, keys_min, start, rates, n_columns }
    }

    fn ticks(&self, chunk: Chunk) -> Tick {
        let new = u64::from(chunk.new);
        let (row, down) = position(new);
        let beyond = u64::from(chunk.past).saturating_sub(past_min(self.keys_min, new));
        let (column, right) = past_position(beyond);
        let right = if column < self.n_columns - 1 { right } else { 1.0 };
        let (row, column) = (row.min(self.rates.len() / self.n_columns - 2), column.min(self.n_columns - 2));
        let at = row * self.n_columns + column;
        let between = |at: usize| self.rates[at] + (self.rates[at + 1] - self.rates[at]) * right;
        let (above, below) = (between(at), between(at + self.n_columns));
        let rate = above + (below - above) * down;
        Tick::from_f64(self.start + rate * hw::real(self.per.of(chunk)))
    }
}

/// Earlier tokens of a chunk at least, so that it sees so many keys.
const fn past_min(keys: u64, new: u64) -> u64 {
    keys.saturating_sub(new)
}
