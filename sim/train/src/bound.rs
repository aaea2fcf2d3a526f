//! A certified lower bound on a step: no schedule of this batch on this cluster ends earlier under this cost model.
//!
//! The class of schedules: any assignment of sequences to ranks, any context degree, any number and order of micro-batches of at
//! most so many tokens per rank, with the scenario's tensor, pipeline and expert degrees, and no recompute. Three floors, and a tail:
//!
//! - work over capacity: every token at the best time per token that a micro-batch of any size reaches (start-ups and host time
//!   included), every query-key pair at the best rate that any attention kernel reaches, divided by all ranks;
//! - longest chain: forward and backward of the longest sequence through all layers, cut over all ranks; with a ring its attention is
//!   cut over the width that is best for it, since every rank of a ring meets all keys and values, however many they are;
//! - communication: the reduction of gradients, and with ZeRO 3 the two gathers of parameters;
//! - the tail, which follows them all: optimizer, and with ZeRO 1 and 2 the gather of parameters.
//!
//! A sequence that is cut into chunks keeps its ranks from chunk to chunk.
//!
//! A step whose pipelines have shapes of their own may have any tensor degree: the cheapest counts, and exchanges of parameters do not.
//!
//! step >= max(work, chain, communication) + tail. Exchanges of tensor and expert groups, other context exchanges and pipeline fill are
//! left out. The times per token are taken on a grid of sizes; between its points a time counts as no less than at the nearer end.

use std::collections::BTreeMap;

use hw::real;

use crate::experts::{self, ExpertLoad};
use crate::layout::{ContextExchange, Position, Zero};
use crate::lower::training::{self, hybrid, layers, mixed};
use crate::plan::PipelineShape;
use crate::problem::{AttentionKernel, Problem, Recompute};
use crate::schedule::PassKind;
use crate::stage::{Stage, stages};
use engine::cost::CostModel;
use engine::layer;
use engine::task::{Collective, Document, Op, Ops, Pass};

/// Ratio of neighbouring sizes on the grid.
const GRID: f64 = 1.02;

/// The floors of a step, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// Work over capacity.
    pub work_s: f64,
    /// Longest chain.
    pub chain_s: f64,
    /// Communication that overlaps with both.
    pub communication_s: f64,
    /// Optimizer of a rank.
    pub optimizer_s: f64,
    /// Parameter gather behind the optimizer.
    pub gather_s: f64,
}

impl Bound {
    /// The bound on the step.
    pub fn step_s(&self) -> f64 {
        self.work_s.max(self.chain_s).max(self.communication_s) + self.optimizer_s + self.gather_s
    }
}

/// Floors of the steps of one problem; what several steps share is found once.
pub struct Floors<'a> {
    problem: &'a Problem,
    tokens_max: u64,
    cost: &'a dyn CostModel,
    /// Seconds per token by how experts are loaded.
    per_token: BTreeMap<ExpertLoad, f64>,
    /// Attention seconds per query-key pair by the logarithm of the length.
    per_pair: BTreeMap<u32, f64>,
}

impl<'a> Floors<'a> {
    /// Floors for micro-batches of at most `tokens_max` tokens on a rank.
    pub const fn new(problem: &'a Problem, tokens_max: u64, cost: &'a dyn CostModel) -> Self {
        Self { problem, tokens_max, cost, per_token: BTreeMap::new(), per_pair: BTreeMap::new() }
    }

    /// Floors of a step in which these sequences are computed by pipelines of any shape.
    pub fn of_any_shape(&mut self, step_index: usize, lengths: &[u64]) -> Bound {
        let (layout, model) = (&self.problem.layout, &self.problem.model);
        let degrees = (0..=layout.n_ranks().ilog2()).map(|power| 1 << power);
        let bounds = degrees.filter(|&tp| layout.cuts(model, tp)).map(|tp| {
            let problem = mixed::shaped(self.problem, PipelineShape { tp, pp: 1 }, self.problem.layout.n_ranks() / tp);
            let bound = Floors::new(&problem, self.tokens_max, self.cost).of_step(step_index, lengths);
            Bound { communication_s: 0.0, optimizer_s: 0.0, gather_s: 0.0, ..bound }
        });
        bounds.min_by(|a, b| a.step_s().total_cmp(&b.step_s())).unwrap_or_default()
    }

    /// Floors of a step in which these sequences are computed.
    pub fn of_step(&mut self, step_index: usize, lengths: &[u64]) -> Bound {
        let (problem, layout) = (self.problem, &self.problem.layout);
        let tokens = real(lengths.iter().sum());
        if let Some(units) = problem.execution.unit_times {
            let per_token = real(units.forward + units.input + units.weight) * 1e-9;
            let n_pipelines = f64::from(layout.dp * layout.cp);
            return Bound { work_s: tokens * per_token / n_pipelines, ..Bound::default() };
        }
        let floor = Floor::new(problem, step_index, self.cost);
        // A tensor group computes each token together.
        let n_groups = f64::from(layout.n_ranks() / layout.tp);
        let pairs_s: f64 = lengths.iter().map(|&length| self.attention_s(&floor, length)).sum();
        let work_s = (tokens * self.token_s(&floor) + pairs_s) / n_groups;
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let share = longest.div_ceil(u64::from(layout.n_ranks() / layout.tp));
        let cut_s = (self.attention_s(&floor, longest) / n_groups).max(floor.ring_s(longest));
        let chain_s = floor.micro_batch_s(share) + cut_s;
        let (communication_s, optimizer_s, gather_s) = synchronisation(problem, self.cost);
        Bound { work_s, chain_s, communication_s, optimizer_s, gather_s }
    }

    /// Seconds that `padding` tokens cost at the best time per token, over all ranks.
    pub fn padding_s(&mut self, step_index: usize, padding: u64) -> f64 {
        if padding == 0 || self.problem.execution.unit_times.is_some() {
            return 0.0;
        }
        let floor = Floor::new(self.problem, step_index, self.cost);
        let n_groups = f64::from(self.problem.layout.n_ranks() / self.problem.layout.tp);
        real(padding) * self.token_s(&floor) / n_groups
    }

    fn token_s(&mut self, floor: &Floor<'_>) -> f64 {
        *self.per_token.entry(floor.load).or_insert_with(|| floor.token_s(self.tokens_max))
    }

    /// Attention of one sequence: its pairs at the best rate of any sequence up to the next power of two.
    fn attention_s(&mut self, floor: &Floor<'_>, tokens: u64) -> f64 {
        let pairs = |tokens| real(Document::causal(tokens).pairs);
        let upto = tokens.next_power_of_two();
        let rate = self.per_pair.entry(upto.ilog2()).or_insert_with(|| floor.attention_s(upto) / pairs(upto));
        *rate * pairs(tokens)
    }
}

/// Least times of a rank for a problem without recompute.
struct Floor<'a> {
    problem: Problem,
    load: ExpertLoad,
    stage: Stage,
    cost: &'a dyn CostModel,
}

impl<'a> Floor<'a> {
    fn new(problem: &Problem, step_index: usize, cost: &'a dyn CostModel) -> Self {
        let mut bare = problem.clone();
        bare.execution.recompute = Recompute::Off;
        let of_stages = stages(problem);
        let sum = |get: &dyn Fn(&Stage) -> u32| of_stages.iter().map(get).sum();
        Self {
            load: experts::load(problem, step_index).unwrap_or(ExpertLoad::EVEN),
            stage: Stage {
                n_dense: sum(&|s| s.n_dense),
                n_expert: sum(&|s| s.n_expert),
                first: true,
                last: true,
                ..Stage::default()
            },
            problem: bare,
            cost,
        }
    }

    /// Forward and backward of `tokens` tokens through the whole model on one rank, attention left out.
    fn micro_batch_s(&self, tokens: u64) -> f64 {
        let (problem, stage) = (&self.problem, &self.stage);
        let mut ops = layer::embedding(&problem.shard(), tokens);
        for kind in [PassKind::Forward, problem.execution.backward()] {
            let n = stage.n_layers();
            ops.extend(layer::host(problem.execution.host_overhead_per_layer, if tokens > 0 { n } else { 0 }));
            if let Some(layers) = hybrid::beside_attention(problem, self.load, stage, tokens, kind) {
                ops.extend(layers);
                ops.extend(layer::head(&problem.shard(), tokens, kind));
                continue;
            }
            ops.extend(layer::repeated(&layer::before_attention(&problem.shard(), tokens, kind), n));
            ops.extend(layers::after_attention(problem, self.load, stage, tokens, kind));
            ops.extend(layer::head(&problem.shard(), tokens, kind));
        }
        self.cost.estimate(&Op::Sequence(ops)).time.get()
    }

    /// Least seconds per token over micro-batches of 1 to `tokens_max` tokens.
    fn token_s(&self, tokens_max: u64) -> f64 {
        let (mut least, mut size) = (f64::INFINITY, 1);
        let mut before = self.micro_batch_s(size);
        loop {
            // Any size up to the next grid point takes no less than the cheaper end.
            let next = hw::whole(real(size) * GRID).max(size + 1).min(tokens_max.max(1));
            let after = self.micro_batch_s(next);
            least = least.min(before.min(after) / real(next));
            if next >= tokens_max {
                return least;
            }
            (size, before) = (next, after);
        }
    }

    /// Attention of one sequence through all layers, forward and backward, at the best rate that any cut of it reaches.
    fn attention_s(&self, tokens: u64) -> f64 {
        self.attention_passes_s(tokens).iter().sum()
    }

    /// Layers with attention.
    fn n_attending(&self) -> f64 {
        let model = &self.problem.model;
        if model.is_hybrid() {
            return real(model.count(model.n_layers, |layer| layer.mixer.attends()));
        }
        f64::from(self.stage.n_layers())
    }

    /// The same for forward and for backward.
    fn attention_passes_s(&self, tokens: u64) -> [f64; 2] {
        let masked = if self.problem.execution.attention == AttentionKernel::Unfused { 0.5 } else { 1.0 };
        let documents = [Document::causal(tokens)];
        let least = |ops: Ops| ops.iter().map(|(op, n)| self.cost.least(op).get() * f64::from(*n)).sum::<f64>();
        [Pass::Forward, Pass::Backward].map(|pass| {
            if let Some(ops) = hybrid::compressed_attention(&self.problem, documents[0], pass) {
                return least(ops) * masked;
            }
            least(layer::attention(&self.problem.shard(), &documents, 1, pass)) * self.n_attending() * masked
        })
    }

    /// Attention of one sequence on a stage of the pipeline by a ring of the best width: wider ones compute less on each rank, but all keys and
    /// values pass every rank, and in a ring across nodes every port that it leaves a node by. Zero without rings.
    fn ring_s(&self, tokens: u64) -> f64 {
        let (layout, cluster) = (&self.problem.layout, &self.problem.cluster);
        if layout.exchange != ContextExchange::Ring {
            return 0.0;
        }
        let passes_s = self.attention_passes_s(tokens);
        let of_width = |count: u32| {
            // No ring of that many ranks touches fewer nodes or leaves.
            let shape = cluster.group(count, count.div_ceil(cluster.domain()));
            let pass_s = |(pass, compute_s): (Pass, f64)| {
                let bytes = training::hop_bytes(&self.problem, tokens, count, pass);
                let hop = self.cost.estimate(&Op::Collective { kind: Collective::RingShift, bytes, shape }).time.get();
                (compute_s / f64::from(count)).max(hop * f64::from(count - 1) * f64::from(self.stage.n_layers()))
            };
            [Pass::Forward, Pass::Backward].into_iter().zip(passes_s).map(pass_s).sum::<f64>()
        };
        let widths = 1..=layout.n_ranks() / (layout.tp * layout.pp);
        widths.map(of_width).fold(f64::INFINITY, f64::min) / f64::from(layout.pp)
    }
}

/// Communication floor, optimizer and parameter gather of the pipeline rank whose tail is shortest, seconds.
fn synchronisation(problem: &Problem, cost: &dyn CostModel) -> (f64, f64, f64) {
    let layout = &problem.layout;
    let positions =
        (0..layout.dp).flat_map(|dp| (0..layout.cp).map(move |cp| Position { dp, cp, ..Position::default() }));
    // What groups of the states exchange beside their own is left out.
    let n_shards = layout.n_shards() as usize;
    let members: Vec<hw::Rank> = positions.map(|position| layout.rank(position)).take(n_shards).collect();
    let shape = problem.cluster.shape_of(&members);
    let (pp, chunks) = (layout.pp as usize, layout.chunks as usize);
    let stages = stages(problem);
    let pipeline = crate::schedule::Pipeline::of_schedule(problem.schedule, pp, chunks, 0);
    let parameters = |rank: usize| {
        let held = (0..chunks)
            .map(|chunk| engine::memory::stage_parameters(&problem.shard(), &stages[pipeline.stage(rank, chunk)]));
        held.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    };
    let of_ranks = (0..pp).map(|rank| of_rank(problem, cost, parameters(rank), shape));
    of_ranks.min_by(|a, b| (a.1 + a.2).total_cmp(&(b.1 + b.2))).unwrap_or_default()
}

/// The same of a rank with so many parameters, shared by all of a group that lies so and of experts.
fn of_rank(
    problem: &Problem,
    cost: &dyn CostModel,
    (shared, experts): (f64, f64),
    shape: hw::GroupShape,
) -> (f64, f64, f64) {
    let layout = &problem.layout;
    let seconds = |op: Op| cost.estimate(&op).time.get();
    let together = |kind, element: f64| {
        let bytes = hw::whole(shared * element);
        if shape.n_ranks < 2 { 0.0 } else { seconds(Op::Collective { kind, bytes, shape }) }
    };
    let kind = if layout.zero == Zero::Off { Collective::AllReduce } else { Collective::ReduceScatter };
    let gather = together(Collective::AllGather, problem.gathered_bytes());
    // Weights that nothing updates have no gradients, and stay as they were gathered before.
    if !problem.execution.trains_weights() {
        return if layout.zero == Zero::Parameters { (2.0 * gather, 0.0, 0.0) } else { (0.0, 0.0, 0.0) };
    }
    let reduction = together(kind, real(problem.execution.gradient_dtype.bytes()));
    let over = |n: u32| if layout.zero >= Zero::OptimizerStates { f64::from(n) } else { 1.0 };
    let own = shared / over(layout.n_shards()) + experts / over(layout.n_expert_shards());
    let optimizer_s: f64 =
        problem.execution.optimizer.least_step(own).into_iter().map(|(op, n)| seconds(op) * f64::from(n)).sum();
    match layout.zero {
        Zero::Parameters => (reduction + 2.0 * gather, optimizer_s, 0.0),
        Zero::Off => (reduction, optimizer_s, 0.0),
        _ if problem.execution.overlap.parameter_gather => (reduction + gather, optimizer_s, 0.0),
        _ => (reduction, optimizer_s, gather),
    }
}

#[cfg(test)]
mod tests {
    use hw::Cluster;

    use super::*;
    use crate::layout::{ContextExchange, Layout};
    use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
    use crate::problem::{AdaptedProducts, Adapters, Execution};
    use crate::workload::Workload;
    use engine::cost::profile::Profile;
    use engine::cost::profiled::Profiled;
    use engine::play::{Case, Machine};
    use engine::random;

    fn problem(lengths: Vec<u64>) -> Problem {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        Problem {
            model: engine::model::embedded("qwen2.5-0.5b").expect("embedded"),
            cluster: hw::catalog::cluster(&gpu, 1, 8),
            layout: Layout::data_and_context(2, 4, Zero::Gradients, ContextExchange::Gather),
            workload: Workload { batch_size: lengths.len(), lengths, source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 8192,
            execution: Execution::default(),
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes(0),
            seed: 1,
        }
    }

    fn measured(cluster: &Cluster) -> Profiled {
        let text = include_str!("../../../profiles/h100-sxm.toml");
        Profiled::new(&Profile::parse(text).expect("a profile"), cluster)
    }

    #[test]
    fn no_cut_into_micro_batches_takes_less_than_the_least_time_per_token() {
        let problem = problem(vec![1]);
        let cost = measured(&problem.cluster);
        let floor = Floor::new(&problem, 0, &cost);
        let per_token = floor.token_s(8192);
        let mut random = random::stream(7, "cuts");
        for _ in 0..200 {
            let tokens = 1 + random.below(8192);
            let found = floor.micro_batch_s(tokens);
            assert!(found >= per_token * real(tokens), "{tokens} tokens: {found} s");
        }
        // And some size comes close: the bound is not empty.
        let best = [2048, 4096, 8192].map(|tokens| floor.micro_batch_s(tokens) / real(tokens));
        assert!(best.into_iter().fold(f64::INFINITY, f64::min) < per_token * 1.05);
    }

    #[test]
    fn the_tail_is_that_of_the_rank_that_updates_fewest_parameters() {
        // Three dense layers, then one of 256 experts: the second stage shares fewer parameters, and updates more.
        let base = problem(vec![1024; 8]);
        let layout = Layout { pp: 2, ..Layout::data_and_context(1, 1, Zero::Off, ContextExchange::Gather) };
        let whole = engine::model::embedded("deepseek-v3").expect("embedded");
        let model = engine::Model { n_layers: 4, n_predicting: 0, ..whole };
        let problem = Problem { model, layout, execution: Execution { layers: vec![3, 1], ..base.execution }, ..base };
        let cost = measured(&problem.cluster);
        let of_stages = stages(&problem).into_iter().map(|stage| {
            let (shared, experts) = engine::memory::stage_parameters(&problem.shard(), &stage);
            let ops = problem.execution.optimizer.least_step(shared + experts);
            (shared, ops.iter().map(|(op, n)| cost.estimate(op).time.get() * f64::from(*n)).sum::<f64>())
        });
        let of_stages: Vec<(f64, f64)> = of_stages.collect();
        assert!(of_stages[1].0 < of_stages[0].0 && of_stages[1].1 > 2.0 * of_stages[0].1, "{of_stages:?}");
        let (_, optimizer_s, _) = synchronisation(&problem, &cost);
        assert!((optimizer_s / of_stages[0].1 - 1.0).abs() < 1e-9, "{optimizer_s} {of_stages:?}");
    }

    #[test]
    fn no_cut_of_an_attention_takes_less_than_its_least() {
        let problem = problem(vec![1]);
        let cost = measured(&problem.cluster);
        let mut random = random::stream(7, "documents");
        for _ in 0..100 {
            let tokens = 64 + random.below(60_000);
            let op = |documents: Vec<Document>, n_heads, n_kv_heads| Op::Attention {
                documents,
                n_heads,
                n_kv_heads,
                head_dim: 64,
                kv: hw::Dtype::Bf16,
                pass: Pass::Forward,
            };
            let whole = op(vec![Document::causal(tokens)], 14, 2);
            let least = cost.least(&whole).get();
            let time = |op: &Op| cost.estimate(op).time.get();
            assert!(time(&whole) >= least);
            let at = 1 + random.below(tokens - 1);
            let chunks = time(&op(vec![Document::chunk(0, at)], 14, 2))
                + time(&op(vec![Document::chunk(at, tokens - at)], 14, 2));
            assert!(chunks >= least, "{tokens} tokens cut at {at}");
            let ranks = 1 + random.below(16);
            let zigzag = time(&op(vec![Document::zigzag(tokens, ranks)], 14, 2)) * real(ranks);
            assert!(zigzag >= least, "{tokens} tokens on {ranks} ranks");
            let heads = 2.0 * time(&op(vec![Document::causal(tokens)], 7, 1));
            assert!(heads >= least, "{tokens} tokens, half the heads");
        }
    }

    #[test]
    fn a_single_long_sequence_is_bounded_by_its_chain_and_many_short_ones_by_work() {
        let long = problem(vec![8192]);
        let cost = measured(&long.cluster);
        let bound = Floors::new(&long, 8192, &cost).of_step(0, &[8192]);
        assert!(bound.chain_s > bound.work_s, "{bound:?}");
        let many = Floors::new(&long, 8192, &cost).of_step(0, &[512; 4096]);
        assert!(many.work_s > many.chain_s, "{many:?}");
        let twice = Floors::new(&long, 8192, &cost).of_step(0, &[512; 8192]);
        assert!((twice.work_s / many.work_s - 2.0).abs() < 1e-9);
    }

    fn micro_batch(sequence: u32, tokens: u64, place: Place) -> MicroBatch {
        MicroBatch { sequences: vec![Placement { sequence, from: 0, tokens, place }], ..MicroBatch::default() }
    }

    fn played_s(problem: &Problem, cost: &dyn CostModel, groups: Vec<Vec<MicroBatch>>) -> f64 {
        let plan = Plan::new("test", problem, vec![Step::of_groups(groups)]);
        let graph = training::lower(problem, &plan, 0);
        let topology = hw::topology::Topology::of(&problem.cluster);
        let machine =
            Machine { cost, topology: &topology, memory_bytes: u64::MAX, case: Case::Expected, speed_changes: &[] };
        match engine::play::simulate(&graph, &machine) {
            engine::Outcome::Done(timeline) => timeline.span().to_seconds().get(),
            other => panic!("{other:?}"),
        }
    }

    /// Frozen weights have no gradients: nothing of them is computed, exchanged or stepped with, and the bound may hold none of it.
    #[test]
    fn no_step_of_adapters_alone_is_below_its_bound() {
        for zero in [Zero::Off, Zero::Gradients, Zero::Parameters] {
            let mut problem = problem(vec![8192; 8]);
            problem.layout = Layout::data_and_context(8, 1, zero, ContextExchange::Gather);
            problem.execution.recompute = Recompute::Off;
            let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
            problem.execution.adapters = Some(Adapters::new(16, AdaptedProducts::ALL));
            let groups = (0..8).map(|sequence| vec![micro_batch(sequence, 8192, Place::Local(0))]).collect();
            let bound_s = Floors::new(&problem, 8192, &cost).of_step(0, &[8192; 8]).step_s();
            let step_s = played_s(&problem, &cost, groups);
            assert!(bound_s <= step_s && bound_s > 0.8 * step_s, "{zero:?}: {bound_s} {step_s}");
        }
    }

    #[test]
    fn no_ring_of_any_width_is_below_the_chain() {
        // The network as it is, ports of a thousandth, and slow links inside nodes as well.
        for (nic, inside) in [(1.0, 1.0), (0.001, 1.0), (0.001, 0.01)] {
            let mut problem = problem(vec![30_000]);
            problem.layout = Layout::data_and_context(1, 16, Zero::Off, ContextExchange::Ring);
            problem.bucket_tokens = 30_000;
            let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
            problem.cluster = hw::catalog::cluster(&gpu, 2, 8);
            problem.cluster.nic_bandwidth = problem.cluster.nic_bandwidth * nic;
            problem.cluster.gpu.intra_node_bandwidth = problem.cluster.gpu.intra_node_bandwidth * inside;
            let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
            let bound = Floors::new(&problem, 30_000, &cost).of_step(0, &[30_000]);
            let step_s = |count: u32| {
                let place = if count == 1 { Place::Local(0) } else { Place::Ring { first: 0, count } };
                played_s(&problem, &cost, vec![vec![micro_batch(0, 30_000, place)]])
            };
            let best = (1..=16).map(step_s).fold(f64::INFINITY, f64::min);
            assert!(bound.step_s() <= best, "{} {best}", bound.step_s());
            // Keys and values take a while on any network here: without rings the chain is far below.
            let without =
                Problem { layout: Layout { exchange: ContextExchange::Gather, ..problem.layout }, ..problem.clone() };
            let loose = Floors::new(&without, 30_000, &cost).of_step(0, &[30_000]);
            assert!(bound.chain_s > 1.3 * loose.chain_s, "{} {}", bound.chain_s, loose.chain_s);
        }
    }

    #[test]
    fn unit_times_give_work_over_pipelines() {
        let mut problem = problem(vec![4, 1, 2, 1]);
        problem.execution.unit_times =
            Some(crate::problem::UnitTimes { forward: 1000, input: 1000, weight: 1000, message: 0 });
        let cost = engine::cost::fixed::Fixed::default();
        let bound = Floors::new(&problem, 4, &cost).of_step(0, &[4, 1, 2, 1]);
        assert!((bound.step_s() - 8.0 * 3e-6 / 8.0).abs() < 1e-12);
    }
}
