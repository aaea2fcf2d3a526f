//! How long a rank takes for sequences of its own, or for its part of one that a ring cuts, before there is a plan: what a planner
//! needs that weighs the widths of rings.
//!
//! Forward and backward with everything that the rank waits for, seconds; of a pipeline, the slowest rank with all of its chunks. A ring's exchange runs beside
//! all hops but the last, as in the lowering; the exchanges of `gather` and `ulysses` are taken as hidden, which the lowering does not assume.

use std::collections::BTreeMap;

use hw::Seconds;

use super::durations::pass_ops;
use super::{Share, Streamed, attention};
use crate::experts::{self, ExpertLoad};
use crate::layout::{ContextExchange, Position};
use crate::problem::{AttentionKernel, Module, Problem, Recompute};
use crate::schedule::PassKind;
use crate::stage::{Stage, stages};
use engine::cost::CostModel;
use engine::layer;
use engine::task::Ops;
use engine::task::{Collective, Document, Op, Pass};

/// Times of a rank; what many sequences share is estimated once.
pub struct RankTimes<'a> {
    problem: &'a Problem,
    cost: &'a dyn CostModel,
    load: ExpertLoad,
    /// What a micro-batch passes on a pipeline rank, one entry for equal ones.
    ranks: Vec<Vec<Stage>>,
    /// Everything but attention, seconds of each of `ranks`, by tokens.
    dense: BTreeMap<u64, Vec<f64>>,
}

impl<'a> RankTimes<'a> {
    /// Times under a problem's layout.
    pub fn new(problem: &'a Problem, cost: &'a dyn CostModel) -> Self {
        Self { problem, cost, load: experts::mean(problem), ranks: by_rank(problem), dense: BTreeMap::new() }
    }

    /// A micro-batch of whole sequences on one rank, seconds.
    pub fn whole_s(&mut self, lengths: &[u64]) -> f64 {
        let documents: Vec<Document> = lengths.iter().map(|&length| Document::causal(length)).collect();
        let layer_s = self.attention_s(&documents, 1, [0.0; 2]);
        self.slowest(lengths.iter().sum(), layer_s)
    }

    /// What a sequence adds to a micro-batch of `of_tokens` tokens on one rank, seconds.
    pub fn share_s(&mut self, length: u64, of_tokens: u64) -> f64 {
        let layer_s = self.attention_s(&[Document::causal(length)], 1, [0.0; 2]);
        let share = hw::real(length) / hw::real(of_tokens.max(1));
        let dense_s = self.slowest(of_tokens, 0.0) * share;
        let n_layers = self.ranks.iter().map(|chunks| n_layers(chunks)).max().unwrap_or(0);
        dense_s + f64::from(n_layers) * layer_s
    }

    /// A sequence on each rank of a ring of `count`, seconds.
    pub fn ring_s(&mut self, tokens: u64, count: u32) -> f64 {
        if count < 2 {
            return self.whole_s(&[tokens]);
        }
        let exchange = self.problem.layout.exchange;
        let document = attention::sharded_document(exchange, count, 0, tokens);
        let hop_s = match exchange {
            ContextExchange::Ring => self.hop_s(tokens, count),
            ContextExchange::Gather | ContextExchange::Ulysses => [0.0; 2],
        };
        let layer_s = self.attention_s(&[document], count, hop_s);
        self.slowest(tokens.div_ceil(u64::from(count)), layer_s)
    }

    /// One hop of keys and values, and with their gradients, seconds.
    fn hop_s(&self, tokens: u64, count: u32) -> [f64; 2] {
        let layout = &self.problem.layout;
        let members: Vec<hw::Rank> =
            (0..count.min(layout.cp)).map(|cp| layout.rank(Position { cp, ..Position::default() })).collect();
        let shape = self.problem.cluster.shape_of(&members);
        [Pass::Forward, Pass::Backward].map(|pass| {
            let bytes = attention::hop_bytes(self.problem, tokens, count, pass);
            self.seconds(&Op::Collective { kind: Collective::RingShift, bytes, shape })
        })
    }

    /// Attention of one layer in forward and backward together, on each of `count` ranks.
    fn attention_s(&self, documents: &[Document], count: u32, hop_s: [f64; 2]) -> f64 {
        let (exchange, recompute) = (self.problem.layout.exchange, self.problem.execution.recompute);
        let heads = if exchange == ContextExchange::Ulysses { u64::from(count) } else { 1 };
        let hops = if exchange == ContextExchange::Ring { f64::from(count) } else { 1.0 };
        let [forward, backward] = [(Pass::Forward, hop_s[0]), (Pass::Backward, hop_s[1])].map(|(pass, hop_s)| {
            let block_s = self.sum_s(layer::attention(&self.problem.shard(), documents, heads, pass));
            (hops - 1.0) * block_s.max(hop_s) + block_s
        });
        let is_unfused = self.problem.execution.attention == AttentionKernel::Unfused;
        let again = match recompute {
            Recompute::Off => false,
            Recompute::Full => true,
            Recompute::Selective => is_unfused,
            Recompute::Modules(modules) => modules.has(Module::CoreAttention),
        };
        if again { 2.0 * forward + backward } else { forward + backward }
    }

    /// The slowest rank with so many tokens and an attention of so long a layer.
    fn slowest(&mut self, tokens: u64, layer_s: f64) -> f64 {
        if !self.dense.contains_key(&tokens) {
            let of_rank = |chunks: &Vec<Stage>| chunks.iter().map(|stage| self.dense_s(stage, tokens)).sum();
            let times = self.ranks.iter().map(of_rank).collect();
            self.dense.insert(tokens, times);
        }
        let with_attention = |(dense, chunks): (&f64, &Vec<Stage>)| dense + f64::from(n_layers(chunks)) * layer_s;
        self.dense[&tokens].iter().zip(&self.ranks).map(with_attention).fold(0.0, f64::max)
    }

    fn dense_s(&self, stage: &Stage, tokens: u64) -> f64 {
        if let Some(units) = self.problem.execution.unit_times {
            let of = [units.forward, units.input, units.weight];
            return of
                .iter()
                .map(|&unit| hw::Span::from_ns(self.problem.unit_ns(unit, tokens)).to_seconds().get())
                .sum();
        }
        let share = Share { tokens, local: Vec::new(), sharded: Vec::new(), ring: 0, streamed: Streamed::AsExecuted };
        let kinds = [PassKind::Forward, PassKind::Backward];
        kinds.map(|kind| self.sum_s(pass_ops(self.problem, self.load, stage, &share, kind))).iter().sum()
    }

    fn sum_s(&self, ops: Ops) -> f64 {
        if self.problem.execution.unit_times.is_some() { 0.0 } else { self.seconds(&Op::Sequence(ops)) }
    }

    fn seconds(&self, op: &Op) -> f64 {
        let time: Seconds = self.cost.estimate(op).time;
        time.get()
    }
}

/// Stages that one micro-batch passes on each pipeline rank: all chunks of the rank, or one of two copies of the model.
fn by_rank(problem: &Problem) -> Vec<Vec<Stage>> {
    let n_ranks = problem.layout.pp as usize;
    let mut ranks = vec![Vec::new(); n_ranks];
    for (index, stage) in stages(problem).into_iter().enumerate() {
        let (rank, _) = problem.schedule.placement.place(n_ranks, index, 0);
        ranks[rank].push(stage);
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

fn n_layers(chunks: &[Stage]) -> u32 {
    chunks.iter().map(Stage::n_layers).sum()
}
