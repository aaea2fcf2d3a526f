//! How long one iteration of an engine takes, tabulated from a cost model so that a query is a few additions.
//!
//! An iteration of `m` tokens runs the GEMMs, norms and exchanges of every layer over all of them, prefill attention over its
//! chunks, decode attention over the cached tokens of its decoding sequences, and the head over the sequences that sample.
//! Decode attention is linear in cached tokens (`cost/decode.rs`), with other coefficients in iterations that also compute chunks, so a
//! span of iterations with one batch has a closed form. Approximations: prefill chunks of one iteration add up as if run
//! one after another, and sizes between the knots of a table are interpolated linearly.
//! Units: ticks of 1/1024 ns, so that sums of many iterations are exact.

use std::cell::Cell;

use hw::{Cluster, Dtype, GroupShape, Rank, Seconds, Span, Time};

use crate::cost::{CostModel, Estimate, Source};
use crate::engine::Case;
use crate::experts::ExpertLoad;
use crate::layout::{ContextExchange, Layout, Zero};
use crate::lower::layer;
use crate::model::Model;
use crate::problem::{Execution, Problem};
use crate::schedule::PassKind;
use crate::serving::decode_attention::DecodeTicks;
use crate::task::{Collective, Document, Op, Pass};
use crate::workload::Workload;

/// Ticks of a nanosecond.
pub const TICKS_PER_NS: u64 = 1024;
/// Bytes read and written per logit by the sampler: 16-bit read, 32-bit write and read.
const SAMPLER_BYTES_PER_LOGIT: u64 = 10;
/// Longest context of the prefill table; beyond it the last rate holds.
const PAST_TOKENS_MAX: u64 = 1 << 20;
/// First knot of the prefill table's axis of earlier tokens, as a power of two.
const PAST_FIRST_OCTAVE: u32 = 6;

/// Ticks of a duration.
#[must_use]
pub fn ticks_of(seconds: Seconds) -> u64 {
    hw::Bytes::from_f64(seconds.get() * 1e9 * 1024.0).0
}

/// The nanosecond in which a tick lies.
#[must_use]
pub const fn time_of(ticks: u64) -> Time {
    Time::from_ns(ticks / TICKS_PER_NS)
}

/// What a replica runs.
#[derive(Clone, Debug)]
pub struct Deployment<'a> {
    /// Architecture.
    pub model: &'a Model,
    /// Machine; the replica takes `tensor_degree` GPUs of a node, or of several nodes where it is larger.
    pub cluster: &'a Cluster,
    /// GPUs that share every layer.
    pub tensor_degree: u32,
    /// Number format of weights and activations.
    pub dtype: Dtype,
    /// Host time per iteration that no kernel hides: a free parameter.
    pub host_per_step: Seconds,
    /// Host time per sequence of an iteration.
    pub host_per_sequence: Seconds,
}

/// Time of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTable {
    /// All layers but attention, by tokens.
    tokens: Vec<u64>,
    /// Head and sampler, by sequences that sample.
    head: Vec<u64>,
    /// Decode attention of all layers.
    decode: DecodeTicks,
    prefill: PrefillTable,
    /// Host time per iteration and per sequence.
    host: [u64; 2],
    /// Weakest source among all that was asked.
    pub source: Source,
}

/// One chunk of a prompt in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Tokens whose keys and values are there already.
    pub past: u32,
    /// Tokens that are computed.
    pub new: u32,
}

/// What an iteration holds besides its chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepLoad {
    /// Decoding sequences, one token each.
    pub n_decode: u32,
    /// Keys that they attend to, together.
    pub context: u64,
    /// Tokens of all chunks.
    pub n_chunk_tokens: u32,
    /// Chunks.
    pub n_chunks: u32,
    /// Sequences that sample: the decoding ones, and those whose prompt ends here.
    pub n_sampled: u32,
}

impl StepTable {
    /// Tabulates a deployment for iterations of at most `sizes_max` tokens and sequences, at one end of the cost model's interval
    /// or as expected.
    #[must_use]
    pub fn new(deployment: &Deployment<'_>, sizes_max: (u32, u32), cost: &dyn CostModel, case: Case) -> Self {
        let (tokens_max, sequences_max) = sizes_max;
        let writer = Writer::new(deployment, cost, case);
        let sequences = sequences_max.min(tokens_max).max(1) as usize;
        let tokens = filled(tokens_max as usize, |m| writer.layers(m));
        let head = filled(sequences, |n| writer.head(n));
        let prefill = PrefillTable::new(tokens_max, |chunk| writer.prefill(chunk));
        let decode = DecodeTicks::new(deployment, cost, case);
        let host = [ticks_of(deployment.host_per_step), ticks_of(deployment.host_per_sequence)];
        Self { tokens, head, decode, prefill, host, source: writer.source.get().max(decode.source) }
    }

    /// Every iteration takes the same time, whatever it holds: for queues that have a theory.
    #[must_use]
    pub fn constant(step: Seconds) -> Self {
        Self::linear(step, Seconds::ZERO, Seconds::ZERO)
    }

    /// A fixed part, a part per token and a part per cached token that is read.
    #[must_use]
    pub fn linear(step: Seconds, per_token: Seconds, per_cached_token: Seconds) -> Self {
        let (per_token, decode) = (ticks_of(per_token), [0, 0, ticks_of(per_cached_token)]);
        Self {
            tokens: (0..=1 << 16).map(|m| m * per_token).collect(),
            head: vec![0; 2],
            decode: DecodeTicks { alone: decode, mixed: decode, source: Source::Measured },
            prefill: PrefillTable::new(1, |_| Seconds::ZERO),
            host: [ticks_of(step), 0],
            source: Source::Measured,
        }
    }

    /// Ticks of an iteration.
    #[must_use]
    pub fn step(&self, load: &StepLoad, chunks: impl Iterator<Item = Chunk>) -> u64 {
        let prefill: u64 = chunks.map(|chunk| self.prefill.ticks(chunk)).sum();
        let [start, per_sequence, per_key] = if load.n_chunks == 0 { self.decode.alone } else { self.decode.mixed };
        let start = if load.n_decode == 0 { 0 } else { start };
        let decode = start + per_sequence * u64::from(load.n_decode) + per_key * load.context;
        self.tokens_at(u64::from(load.n_decode) + u64::from(load.n_chunk_tokens))
            + self.head_at(load.n_sampled)
            + prefill
            + decode
            + self.host[0]
            + self.host[1] * u64::from(load.n_decode + load.n_chunks)
    }

    /// Ticks of an iteration that only decodes, but for its cached tokens.
    #[must_use]
    pub fn decode_only(&self, n_decode: u32) -> u64 {
        self.step(&StepLoad { n_decode, n_sampled: n_decode, ..StepLoad::default() }, std::iter::empty())
    }

    /// Ticks per cached token that decoding sequences read.
    #[must_use]
    pub const fn per_cached_token(&self) -> u64 {
        self.decode.alone[2]
    }

    fn tokens_at(&self, m: u64) -> u64 {
        let last = self.tokens.len() - 1;
        self.tokens[usize::try_from(m).unwrap_or(last).min(last)]
    }

    fn head_at(&self, n: u32) -> u64 {
        self.head[(n as usize).min(self.head.len() - 1)]
    }
}

/// Values of every size up to `n`, from a function that is asked at ever sparser knots.
fn filled(n: usize, at: impl Fn(u64) -> Seconds) -> Vec<u64> {
    let mut values = vec![0_u64; n + 1];
    let mut before = 0;
    while before < n {
        let stride = match before {
            0..64 => 1,
            64..512 => 8,
            512..4096 => 32,
            4096..32_768 => 256,
            _ => 4096,
        };
        let knot = (before + stride).min(n);
        values[knot] = ticks_of(at(knot as u64));
        let (low, high) = (values[before], values[knot]);
        let width = (knot - before) as u64;
        for (index, value) in values[before..knot].iter_mut().enumerate().skip(1) {
            // Weights add up to the width; times stay far below 2^64 over it.
            *value = (low * (width - index as u64) + high * index as u64) / width;
        }
        before = knot;
    }
    values
}

/// Asks the cost model for parts of an iteration.
struct Writer<'a> {
    problem: Problem,
    shape: GroupShape,
    n_layers: u32,
    n_dense: u32,
    cost: &'a dyn CostModel,
    case: Case,
    /// Weakest source so far.
    source: Cell<Source>,
}

impl<'a> Writer<'a> {
    fn new(deployment: &Deployment<'_>, cost: &'a dyn CostModel, case: Case) -> Self {
        let layout = Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Gather);
        let tp = deployment.tensor_degree;
        let model = deployment.model;
        let ranks: Vec<Rank> = (0..tp).map(Rank).collect();
        let n_layers = u32::try_from(model.n_layers).expect("few layers");
        let n_dense = model.experts.map_or(n_layers, |e| u32::try_from(e.n_dense_layers).expect("few layers"));
        let problem = Problem {
            model: model.clone(),
            cluster: deployment.cluster.clone(),
            layout: Layout { tp, sequence_parallel: false, expert_tp: tp, ..layout },
            schedule: crate::schedule::named("1f1b").expect("the table has 1F1B"),
            workload: Workload { lengths: vec![1], batch_size: 1, source: String::new() },
            dtype: deployment.dtype,
            execution: Execution::default(),
            bucket_tokens: 1,
            reserved_memory: hw::Bytes::ZERO,
            seed: 0,
        };
        let (shape, source) = (deployment.cluster.shape_of(&ranks), Cell::new(Source::Measured));
        Self { problem, shape, n_layers, n_dense, cost, case, source }
    }

    fn sum(&self, ops: layer::Ops) -> Seconds {
        self.end(&self.cost.estimate(&Op::Sequence(ops)))
    }

    /// The end of an estimate's interval that is tabulated.
    fn end(&self, estimate: &Estimate) -> Seconds {
        self.source.set(self.source.get().max(estimate.source));
        match self.case {
            Case::Low => estimate.low,
            Case::Expected => estimate.time,
            Case::High => estimate.high,
        }
    }

    /// Embedding, GEMMs, norms and exchanges of all layers.
    fn layers(&self, m: u64) -> Seconds {
        let forward = PassKind::Forward;
        let mut ops = layer::embedding(&self.problem, m);
        ops.extend(layer::repeated(&layer::before_attention(&self.problem, m, forward), self.n_layers));
        ops.extend(layer::repeated(&layer::after_attention(&self.problem, m, forward, None), self.n_dense));
        let with_experts = layer::after_attention(&self.problem, m, forward, Some(&ExpertLoad::EVEN));
        ops.extend(layer::repeated(&with_experts, self.n_layers - self.n_dense));
        if self.shape.n_ranks > 1 {
            let bytes = m * self.problem.model.hidden * self.problem.dtype.bytes();
            // Two per layer, and one behind the embedding, which is cut over the vocabulary.
            let n = 2 * self.n_layers + 1;
            if let Some(own) = self.cost.engine_all_reduce(bytes, self.shape) {
                return self.sum(ops) + self.end(&own.times(n));
            }
            ops.push((Op::Collective { kind: Collective::AllReduce, bytes, shape: self.shape }, n));
        }
        self.sum(ops)
    }

    /// Final norm, head, gathered logits and sampler.
    fn head(&self, n: u64) -> Seconds {
        let (model, dtype) = (&self.problem.model, self.problem.dtype);
        let columns = model.vocab.div_ceil(u64::from(self.shape.n_ranks));
        let mut ops = vec![
            (Op::Elementwise { bytes: 2 * n * model.hidden * dtype.bytes() }, 1),
            (Op::Gemm { m: n, n: columns, k: model.hidden, dtype }, 1),
            (Op::Elementwise { bytes: n * model.vocab * SAMPLER_BYTES_PER_LOGIT }, 1),
        ];
        if self.shape.n_ranks > 1 {
            let bytes = n * model.vocab * dtype.bytes();
            ops.push((Op::Collective { kind: Collective::AllGather, bytes, shape: self.shape }, 1));
        }
        self.sum(ops)
    }

    /// Attention of one chunk in all layers.
    fn prefill(&self, chunk: Chunk) -> Seconds {
        let document = Document::chunk(u64::from(chunk.past), u64::from(chunk.new));
        let ops = layer::attention(&self.problem, &[document], 1, Pass::Forward);
        self.sum(layer::repeated(&ops, self.n_layers))
    }
}

/// Prefill attention of all layers: a start, and ticks per query-key pair over new and earlier tokens.
#[derive(Clone, Debug, PartialEq)]
struct PrefillTable {
    /// Ticks of the smallest chunk.
    start: f64,
    /// Rows by new tokens, columns by earlier tokens.
    rates: Vec<f64>,
    n_columns: usize,
}

/// Position on an axis with knots at 1, 2, 3, 4, 6, 8, 12, …: index of the knot below and how far it is to the next one.
fn position(n: u64) -> (usize, f64) {
    if n <= 1 {
        return (0, 0.0);
    }
    let octave = n.ilog2();
    let half = 1_u64 << (octave - 1);
    let rest = n - 2 * half;
    let index = 2 * octave as usize - 1 + usize::from(rest >= half);
    (index, hw::Tokens(rest % half).as_f64() / hw::Tokens(half).as_f64())
}

/// Size at a knot.
const fn knot(index: usize) -> u64 {
    match index {
        0 => 1,
        _ if index % 2 == 1 => 1 << index.div_ceil(2),
        _ => 3 << (index / 2 - 1),
    }
}

/// Index of the axis `1, 2, 3, …` at which the axis of earlier tokens has its second knot; the first one is 0.
const PAST_OFFSET: usize = 2 * PAST_FIRST_OCTAVE as usize - 1;

fn past_position(past: u64) -> (usize, f64) {
    let first = 1_u64 << PAST_FIRST_OCTAVE;
    if past < first {
        return (0, hw::Tokens(past).as_f64() / hw::Tokens(first).as_f64());
    }
    let (index, share) = position(past);
    (index - PAST_OFFSET + 1, share)
}

const fn pairs(chunk: Chunk) -> u64 {
    Document::chunk(chunk.past as u64, chunk.new as u64).pairs
}

impl PrefillTable {
    fn new(tokens_max: u32, at: impl Fn(Chunk) -> Seconds) -> Self {
        let n_rows = position(u64::from(tokens_max)).0 + 2;
        let n_columns = past_position(PAST_TOKENS_MAX).0 + 1;
        let mut rates = Vec::with_capacity(n_rows * n_columns);
        let small = |n: u64| u32::try_from(n).expect("knots stay below 2^32");
        let ticks = |chunk| at(chunk).get() * 1e9 * 1024.0;
        let start = ticks(Chunk { past: 0, new: 1 });
        for row in 0..n_rows {
            for column in 0..n_columns {
                let past = if column == 0 { 0 } else { knot(column - 1 + PAST_OFFSET) };
                let chunk = Chunk { past: small(past), new: small(knot(row)) };
                rates.push((ticks(chunk) - start).max(0.0) / hw::Tokens(pairs(chunk)).as_f64());
            }
        }
        Self { start, rates, n_columns }
    }

    fn ticks(&self, chunk: Chunk) -> u64 {
        let (row, down) = position(u64::from(chunk.new));
        let (column, right) = past_position(u64::from(chunk.past));
        let (row, column) = (row.min(self.rates.len() / self.n_columns - 2), column.min(self.n_columns - 2));
        let at = row * self.n_columns + column;
        let between = |at: usize| self.rates[at] + (self.rates[at + 1] - self.rates[at]) * right;
        let (above, below) = (between(at), between(at + self.n_columns));
        let rate = above + (below - above) * down;
        hw::Bytes::from_f64(self.start + rate * hw::Tokens(pairs(chunk)).as_f64()).0
    }
}

/// A duration in ticks as a span of whole nanoseconds.
#[must_use]
pub const fn span_of(ticks: u64) -> Span {
    Span::from_ns(ticks / TICKS_PER_NS)
}

#[cfg(test)]
mod tests;
