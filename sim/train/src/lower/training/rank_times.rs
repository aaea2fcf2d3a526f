//! How long a rank takes for sequences of its own, or for its part of one that a ring cuts, before there is a plan: what a planner
//! needs that weighs the widths of rings.
//!
//! Forward and backward with everything that the rank waits for, seconds; of a pipeline, the slowest rank with all of its chunks. A ring's exchange runs beside
//! all hops but the last, as in the lowering; the exchanges of `gather` and `ulysses` are taken as hidden, which the lowering does not assume.
//! Attention of whole sequences runs beside the host's launches, and so does the part behind an exchange.

use std::collections::BTreeMap;

use hw::Seconds;

use super::durations::pass_ops;
use super::{Content, Share, Streamed, attention};
use crate::experts::{self, ExpertLoad};
use crate::layout::{ContextExchange, Position};
use crate::plan::MicroBatch;
use crate::problem::{AttentionKernel, Module, Problem, Recompute};
use crate::schedule::PassKind;
use crate::stage::{Stage, stages};
use engine::cost::CostModel;
use engine::layer;
use engine::task::{Collective, Document, Op, Ops, Pass};

/// Times of a rank; what many sequences share is estimated once.
pub struct RankTimes<'a> {
    problem: &'a Problem,
    cost: &'a dyn CostModel,
    load: ExpertLoad,
    /// What a micro-batch passes on a pipeline rank, one entry for equal ones.
    ranks: Vec<Vec<Stage>>,
    /// Everything but attention, of each of `ranks`, by tokens.
    dense: BTreeMap<u64, Vec<Vec<Dense>>>,
}

/// A stage without attention.
#[derive(Clone, Copy, Default)]
struct Dense {
    n_layers: u32,
    seconds: f64,
    /// What the host's launches take longer than the computation beside them, seconds: of forward, backward, and a forward that runs again.
    slack: [f64; 3],
}

/// Attention of one layer, seconds.
#[derive(Clone, Copy, Default)]
struct Attention {
    /// Beside the host's launches: of forward, backward, and a forward that runs again.
    beside: [f64; 3],
    /// Before them.
    before: f64,
}

impl Dense {
    fn with(&self, layer: Attention) -> f64 {
        let n_layers = f64::from(self.n_layers);
        let beside = layer.beside.iter().zip(self.slack).map(|(seconds, slack)| (n_layers * seconds).max(slack));
        self.seconds + n_layers * layer.before + beside.sum::<f64>()
    }
}

impl<'a> RankTimes<'a> {
    /// Times under a problem's layout.
    pub fn new(problem: &'a Problem, cost: &'a dyn CostModel) -> Self {
        Self { problem, cost, load: experts::mean(problem), ranks: by_rank(problem), dense: BTreeMap::new() }
    }

    /// A micro-batch of whole sequences on one rank, seconds.
    pub fn whole_s(&mut self, lengths: &[u64]) -> f64 {
        let documents: Vec<Document> = lengths.iter().map(|&length| Document::causal(length)).collect();
        let layer = self.attention(&documents, 1, [0.0; 2]);
        self.slowest(lengths.iter().sum(), layer)
    }

    /// What a sequence adds to a micro-batch of `of_tokens` tokens on one rank, seconds.
    pub fn share_s(&mut self, length: u64, of_tokens: u64) -> f64 {
        let layer = self.attention(&[Document::causal(length)], 1, [0.0; 2]);
        let layer_s = layer.before + layer.beside.iter().sum::<f64>();
        let share = hw::real(length) / hw::real(of_tokens.max(1));
        let dense_s = self.slowest(of_tokens, Attention::default()) * share;
        let n_layers = self.ranks.iter().map(|chunks| n_layers(chunks)).max().unwrap_or(0);
        dense_s + f64::from(n_layers) * layer_s
    }

    /// A sequence on each rank of a ring of `count`, seconds.
    pub fn ring_s(&mut self, tokens: u64, count: u32) -> f64 {
        if count < 2 {
            return self.whole_s(&[tokens]);
        }
        let document = attention::sharded_document(attention::attends(self.problem), count, 0, tokens);
        let hop_s = match self.problem.layout.exchange {
            ContextExchange::Ring => self.hop_s(tokens, count),
            ContextExchange::Gather | ContextExchange::Ulysses => [0.0; 2],
        };
        let layer = self.attention(&[document], count, hop_s);
        self.slowest(tokens.div_ceil(u64::from(count)), layer)
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

    /// Attention of one layer on each of `count` ranks.
    fn attention(&self, documents: &[Document], count: u32, hop_s: [f64; 2]) -> Attention {
        let (exchange, recompute) = (attention::attends(self.problem), self.problem.execution.recompute);
        let heads = if exchange == ContextExchange::Ulysses { u64::from(count) } else { 1 };
        let hops = if exchange == ContextExchange::Ring { f64::from(count) } else { 1.0 };
        let is_unfused = self.problem.execution.attention == AttentionKernel::Unfused;
        let again = match recompute {
            Recompute::Off => false,
            Recompute::Full => true,
            Recompute::Selective => is_unfused,
            Recompute::Modules(modules) => modules.has(Module::CoreAttention),
        };
        let passes =
            [(Pass::Forward, hop_s[0], true), (Pass::Backward, hop_s[1], true), (Pass::Forward, hop_s[0], again)];
        let mut layer = Attention::default();
        for (beside, (pass, hop_s, _)) in layer.beside.iter_mut().zip(passes).filter(|(_, (.., runs))| *runs) {
            let block_s = self.sum_s(layer::attention(&self.problem.shard(), documents, heads, pass));
            layer.before += (hops - 1.0) * block_s.max(hop_s);
            // What stands behind the exchange is launched with the rest of the layer.
            let is_behind = match (exchange, pass) {
                _ if count < 2 => true,
                (ContextExchange::Ring, _) | (ContextExchange::Gather, Pass::Forward) => true,
                (ContextExchange::Gather, Pass::Backward) | (ContextExchange::Ulysses, _) => false,
            };
            *(if is_behind { beside } else { &mut layer.before }) += block_s;
        }
        layer
    }

    /// The slowest rank with so many tokens and such an attention.
    fn slowest(&mut self, tokens: u64, layer: Attention) -> f64 {
        if !self.dense.contains_key(&tokens) {
            let of_rank = |chunks: &Vec<Stage>| chunks.iter().map(|stage| self.dense(stage, tokens)).collect();
            let times = self.ranks.iter().map(of_rank).collect();
            self.dense.insert(tokens, times);
        }
        let of_rank = |chunks: &Vec<Dense>| chunks.iter().map(|stage| stage.with(layer)).sum::<f64>();
        self.dense[&tokens].iter().map(of_rank).fold(0.0, f64::max)
    }

    fn dense(&self, stage: &Stage, tokens: u64) -> Dense {
        let n_layers = stage.n_layers();
        if let Some(units) = self.problem.execution.unit_times {
            let of = [units.forward, units.input, units.weight];
            let seconds =
                of.iter().map(|&unit| hw::Span::from_ns(self.problem.unit_ns(unit, tokens)).to_seconds().get()).sum();
            return Dense { n_layers, seconds, ..Dense::default() };
        }
        let share = Share { tokens, local: Vec::new(), sharded: Vec::new(), ring: 0, streamed: Streamed::AsExecuted };
        let content = Content { shares: vec![share], ..super::content(self.problem, &MicroBatch::default()) };
        let mut dense = Dense { n_layers, ..Dense::default() };
        for (pass, kind) in [PassKind::Forward, PassKind::Backward].into_iter().enumerate() {
            let mut slacks = Vec::new();
            for (op, n) in pass_ops(self.problem, self.load, stage, &content, 0, kind) {
                let Op::Launched { parts, ns } = op else {
                    dense.seconds += self.seconds(&op) * f64::from(n);
                    continue;
                };
                let computed_s = self.seconds(&Op::Sequence(parts));
                dense.seconds += computed_s;
                slacks.push((hw::Span::from_ns(ns).to_seconds().get() - computed_s).max(0.0));
            }
            dense.slack[pass] = slacks.pop().unwrap_or(0.0);
            // What runs again comes first in a backward.
            dense.slack[2] += slacks.pop().unwrap_or(0.0);
        }
        dense
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
