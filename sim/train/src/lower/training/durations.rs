//! Durations of every pass of a plan's micro-batches, for the schedules that look at them.
//!
//! A pass takes the computation and the blocking exchanges of its slowest context rank; context exchange is taken as hidden,
//! which the event engine does not assume. Equal micro-batches and stages are estimated once.

use std::collections::BTreeMap;

use hw::Span;

use super::{
    Content, GRADIENT_BUCKETS, Share, attention, chains, contents, exchange, hybrid, layers, mixed, stage_index,
};
use crate::activation::Activation;
use crate::experts::{self, ExpertLoad};
use crate::layout::ContextExchange;
use crate::memory;
use crate::plan::{MicroBatch, Plan};
use crate::problem::{Problem, Recompute};
use crate::schedule::{PassKind, Pipeline};
use crate::stage::{Stage, stages};
use engine::cost::CostModel;
use engine::layer;
use engine::task::Ops;
use engine::task::{Collective, Op, Pass};

/// Durations of forward, input gradients and weight gradients, nanoseconds.
type Durations = [u64; 3];

struct Judge<'a> {
    problem: &'a Problem,
    cost: &'a dyn CostModel,
    load: ExpertLoad,
    /// By tensor degree, stage and content.
    known: BTreeMap<(u32, Stage, Content), Durations>,
}

/// Different pipelines of a step, and which one each data-parallel group is; groups that go in step share the slowest of
/// their durations.
///
/// # Panics
/// When the plan has no such step.
pub fn pipelines(problem: &Problem, plan: &Plan, step_index: usize, cost: &dyn CostModel) -> (Vec<Pipeline>, Vec<u32>) {
    if plan.steps[step_index].is_mixed() {
        let (mut all, mut all_of) = (Vec::new(), Vec::new());
        for part in mixed::parts(problem, plan, step_index) {
            let (of_part, pipeline_of) = pipelines(&part.problem, &part.plan, step_index, cost);
            let before = u32::try_from(all.len()).expect("pipelines fit u32");
            all_of.extend(pipeline_of.into_iter().map(|index| index + before));
            all.extend(of_part);
        }
        return (all, all_of);
    }
    let contents = contents(problem, plan, step_index);
    let load = experts::load(problem, step_index).unwrap_or(ExpertLoad::EVEN);
    let mut judge = Judge { problem, cost, load, known: BTreeMap::new() };
    let in_step = problem.layout.groups_in_step() as usize;
    let mut known: BTreeMap<&[Vec<Content>], u32> = BTreeMap::new();
    let (mut pipelines, mut pipeline_of) = (Vec::new(), Vec::with_capacity(contents.len()));
    for block in contents.chunks(in_step) {
        let index = *known.entry(block).or_insert_with(|| {
            pipelines.push(judge.pipeline(block));
            u32::try_from(pipelines.len() - 1).expect("pipelines fit u32")
        });
        pipeline_of.extend(std::iter::repeat_n(index, block.len()));
    }
    (pipelines, pipeline_of)
}

impl Judge<'_> {
    fn pipeline(&mut self, block: &[Vec<Content>]) -> Pipeline {
        let (problem, layout) = (self.problem, &self.problem.layout);
        let n_micro_batches = block[0].len();
        let (pp, chunks) = (layout.pp as usize, layout.chunks as usize);
        let mut pipeline = Pipeline::of_schedule(problem.schedule, pp, chunks, n_micro_batches);
        let stages = stages(problem);
        let most = |index: usize| {
            block.iter().flat_map(move |group| group[index].shares.iter().map(|share| share.tokens)).max().unwrap_or(0)
        };
        let (kinds, kind_of) = kinds(block);
        for (index, stage) in stages.iter().enumerate() {
            // Where stages are placed, they are as many as ranks.
            let own = problem.at_stage(index);
            let of_kinds: Vec<(Durations, Activation)> =
                kinds.iter().map(|contents| self.of_kind(stage, contents, &own)).collect();
            for (micro_batch, &kind) in kind_of.iter().enumerate() {
                let ([forward, input, weight], held) = of_kinds[kind];
                pipeline.forward[index][micro_batch] = forward;
                pipeline.input[index][micro_batch] = input;
                pipeline.weight[index][micro_batch] = weight;
                pipeline.activation[index][micro_batch] = held.whole;
                pipeline.for_weights[index][micro_batch] = held.for_weights;
            }
        }
        let mean = (0..n_micro_batches).map(most).sum::<u64>() / (n_micro_batches as u64).max(1);
        pipeline.transfer = self.transfer(mean);
        pipeline.limit = Some(self.room(&stages));
        pipeline.chains = chains::of(&block[0]);
        pipeline.group = problem.micro_batch_group();
        pipeline
    }

    /// Slowest durations and fullest activations of micro-batches that go in step.
    fn of_kind(&mut self, stage: &Stage, contents: &[&Content], own: &Problem) -> (Durations, Activation) {
        let mut slowest = Durations::default();
        for content in contents {
            let durations = self.durations(stage, content, own);
            slowest = std::array::from_fn(|pass| slowest[pass].max(durations[pass]));
        }
        (slowest, held(own, stage, contents.iter().copied()))
    }

    /// Activation room of the fullest rank.
    fn room(&self, stages: &[Stage]) -> u64 {
        let layout = &self.problem.layout;
        let of_rank = |pp: u32| {
            let held: Vec<Stage> =
                (0..layout.chunks).map(|chunk| stages[stage_index(self.problem, pp, chunk)]).collect();
            let taken = memory::all_outside(self.problem) + memory::states(self.problem, &held).total();
            self.problem.cluster.gpu.memory.0.saturating_sub(taken.0)
        };
        (0..layout.pp).map(of_rank).min().unwrap_or(0)
    }

    fn transfer(&self, tokens: u64) -> u64 {
        let layout = &self.problem.layout;
        if layout.pp < 2 {
            return 0;
        }
        if let Some(units) = self.problem.execution.unit_times {
            return units.message * tokens;
        }
        let members = [0, 1].map(|pp| self.problem.rank(crate::layout::Position { pp, ..Default::default() }));
        let bytes = (tokens * self.problem.model.hidden * self.problem.dtype.bytes()).div_ceil(u64::from(layout.tp));
        let shape = self.problem.cluster.shape_of(&members);
        Span::from_seconds(self.cost.estimate(&Op::Collective { kind: Collective::SendRecv, bytes, shape }).time)
            .as_ns()
    }

    fn durations(&mut self, stage: &Stage, content: &Content, own: &Problem) -> Durations {
        engine::stop::pause();
        if let Some(units) = self.problem.execution.unit_times {
            let tokens = content.shares.iter().map(|share| share.tokens).max().unwrap_or(0);
            return [units.forward, units.input, units.weight].map(|unit| self.problem.unit_ns(unit, tokens));
        }
        let key = (own.layout.tp, *stage, content.clone());
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let mut slowest = [0; 3];
        // Ranks of a ring have equal shares.
        for share in content.shares.chunk_by(|a, b| a == b).map(|equal| &equal[0]) {
            for (slot, kind) in slowest.iter_mut().zip([PassKind::Forward, PassKind::Input, PassKind::Weight]) {
                let time = self.cost.estimate(&Op::Sequence(pass_ops(own, self.load, stage, share, kind))).time;
                *slot = (*slot).max(Span::from_seconds(time).as_ns());
            }
        }
        self.known.insert(key, slowest);
        slowest
    }
}

/// Different micro-batches of groups that go in step, each as its content in every group; and which of them each one is.
fn kinds(block: &[Vec<Content>]) -> (Vec<Vec<&Content>>, Vec<usize>) {
    let mut known: BTreeMap<Vec<&Content>, usize> = BTreeMap::new();
    let (mut kinds, mut kind_of) = (Vec::new(), Vec::with_capacity(block[0].len()));
    for micro_batch in 0..block[0].len() {
        let contents: Vec<&Content> = block.iter().map(|group| &group[micro_batch]).collect();
        let next = kinds.len();
        let kind = *known.entry(contents).or_insert_with_key(|contents| {
            kinds.push(contents.clone());
            next
        });
        kind_of.push(kind);
    }
    (kinds, kind_of)
}

/// Activations of the fullest rank of some groups' micro-batches on a stage, as the device holds them.
fn held<'a>(problem: &Problem, stage: &Stage, contents: impl Iterator<Item = &'a Content>) -> Activation {
    let shares = contents.flat_map(|content| &content.shares);
    let all = shares.map(|share| memory::activation(problem, stage, share.tokens, share.pairs()));
    let fullest = all.max_by_key(|activation| activation.whole).unwrap_or_default();
    fullest.map(|bytes| memory::on_device(problem, bytes))
}

/// Everything that a rank computes and waits for in one pass of a stage, context exchange left out.
pub(super) fn pass_ops(problem: &Problem, load: ExpertLoad, stage: &Stage, share: &Share, kind: PassKind) -> Ops {
    let kind = if kind == PassKind::Backward { problem.execution.backward() } else { kind };
    let is_own = !problem.execution.trains_weights() || !problem.model.is_hybrid();
    if kind == PassKind::Weight && is_own {
        return layers::weight_ops(problem, load, stage, share.tokens);
    }
    let n_layers = stage.n_layers();
    // With a ring, `sharded` is one of the hops; together they see every key.
    let hops = if problem.layout.exchange == ContextExchange::Ring { share.ring.max(1) } else { 1 };
    let documents: Vec<_> = share.local.iter().chain(&share.sharded).copied().collect();
    let pass = if kind == PassKind::Forward { Pass::Forward } else { Pass::Backward };
    // The half of a backward that makes gradients of weights launches no more layers and computes nothing again.
    let is_weight = kind == PassKind::Weight;
    let n_launched = if share.tokens > 0 && !is_weight { n_layers } else { 0 };
    let mut ops = layer::host(problem.execution.host_overhead_per_layer, n_launched);
    if kind != PassKind::Forward && !is_weight {
        match problem.execution.recompute {
            Recompute::Full => ops.extend(pass_ops(problem, load, &stage.again(), share, PassKind::Forward)),
            _ => ops.extend(hybrid::recomputed(problem, load, stage, share.tokens, &documents)),
        }
    }
    if stage.first && kind == PassKind::Forward {
        ops.extend(layer::embedding(&problem.shard(), share.tokens));
    }
    if stage.last {
        ops.extend(layer::head(&problem.shard(), share.tokens, kind));
    }
    if let Some(layers) = hybrid::of_stage(problem, load, stage, &share.local, kind) {
        ops.extend(layers);
        ops.extend(blocking(problem, load, stage, share.tokens, kind));
        return ops;
    }
    ops.extend(layer::repeated(&layer::before_attention(&problem.shard(), share.tokens, kind), n_layers));
    ops.extend(layer::repeated(&layer::attention(&problem.shard(), &share.local, 1, pass), n_layers));
    let heads = if problem.layout.exchange == ContextExchange::Ulysses { u64::from(share.ring.max(1)) } else { 1 };
    let sharded = layer::attention(&problem.shard(), &share.sharded, heads, pass);
    ops.extend(layer::repeated(&sharded, n_layers * hops));
    if problem.layout.exchange == ContextExchange::Ulysses {
        ops.extend(layer::repeated(&attention::transposes(problem, share), n_layers));
    }
    ops.extend(layers::after_attention(problem, load, stage, share.tokens, kind));
    ops.extend(blocking(problem, load, stage, share.tokens, kind));
    ops
}

/// Exchanges of tensor and expert group that a pass waits for.
fn blocking(problem: &Problem, load: ExpertLoad, stage: &Stage, tokens: u64, kind: PassKind) -> Ops {
    let position = crate::layout::Position::default();
    let shape = problem.cluster.shape_of(&exchange::tensor_group(problem, position));
    let hidden = problem.execution.overlap.tensor;
    let mut ops = exchange::split(layer::tensor_exchange(&problem.shard(), stage, tokens, kind, shape), hidden).1;
    if let Some(span) = problem.layout.expert_span() {
        let shape = problem.cluster.shape_of(&exchange::expert_group(problem, position, span));
        let sent = layer::expert_exchange(&problem.shard(), stage, tokens, kind, load, shape);
        ops.extend(exchange::split(sent, problem.hidden_expert_exchange()).1);
    }
    ops
}

/// Durations of a micro-batch's passes in the parts that a stage adds up: seconds of forward, input and weight gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// One layer with a dense feed-forward.
    pub dense: [f64; 3],
    /// One layer with experts.
    pub expert: [f64; 3],
    /// Sums over the first layers without experts and with, where layers differ by more than that.
    running: Option<[Vec<[f64; 3]>; 2]>,
    /// The embedding.
    pub first: [f64; 3],
    /// The final norm and the head.
    pub last: [f64; 3],
    /// What the scenario does not hide of a tensor exchange of which it hides a share.
    unhidden: Unhidden,
}

/// Exchanges of a tensor group beside `Parts`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Unhidden {
    /// Of one layer, dense or with experts.
    layer: [f64; 3],
    /// Of the embedding, and of the head.
    end: [f64; 3],
    /// What whole repeats may hide beyond the share in a pass: half an exchange of each kind.
    rounding: [f64; 3],
}

impl Unhidden {
    fn stage(&self, stage: &Stage, kind: usize) -> f64 {
        let ends = u32::from(stage.first) + u32::from(stage.last);
        let exchanged = f64::from(stage.n_layers()) * self.layer[kind] + f64::from(ends) * self.end[kind];
        (exchanged - self.rounding[kind]).max(0.0)
    }
}

impl Parts {
    /// Duration of a stage's passes.
    pub fn stage(&self, stage: &Stage) -> [f64; 3] {
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        std::array::from_fn(|kind| {
            self.layers(stage, kind)
                + flag(stage.first) * self.first[kind]
                + flag(stage.last) * self.last[kind]
                + self.unhidden.stage(stage, kind)
        })
    }

    /// Duration of the layers of a stage.
    fn layers(&self, stage: &Stage, kind: usize) -> f64 {
        let Some(running) = &self.running else {
            return f64::from(stage.n_dense) * self.dense[kind] + f64::from(stage.n_expert) * self.expert[kind];
        };
        let before = stage.before.unwrap_or_default();
        let of = |of: &[[f64; 3]], from: u32, n: u32| of[(from + n) as usize][kind] - of[from as usize][kind];
        of(&running[0], before[0], stage.n_dense) + of(&running[1], before[1], stage.n_expert)
    }
}

/// Parts of the least time that a rank's stream is taken by a micro-batch: the least over context ranks, without what the
/// scenario lets run behind computation, where experts are loaded so. Everything that a pass does adds up over its layers, so four cases tell all. Of a
/// tensor exchange the hidden share alone is left out, and of whatever else is hidden everything.
pub fn parts(problem: &Problem, micro_batch: &MicroBatch, load: ExpertLoad, cost: &dyn CostModel) -> Parts {
    let content = super::content(problem, micro_batch);
    let mut exposed = problem.clone();
    let overlap = &mut exposed.execution.overlap;
    overlap.tensor = if overlap.tensor > 0.0 { 1.0 } else { 0.0 };
    overlap.expert = if overlap.expert > 0.0 { 1.0 } else { 0.0 };
    let unhidden = unhidden(problem, &content, cost);
    Parts { unhidden, ..added_up(&exposed, &content, load, |ops| cost.estimate(&Op::Sequence(ops)).time.get()) }
}

/// The same of computation alone, which is what a straggler takes longer for.
pub fn computed_parts(problem: &Problem, micro_batch: &MicroBatch, load: ExpertLoad, cost: &dyn CostModel) -> Parts {
    let content = super::content(problem, micro_batch);
    added_up(problem, &content, load, |mut ops| {
        ops.retain(|(op, _)| !matches!(op, Op::Collective { .. } | Op::Copy { .. }));
        cost.estimate(&Op::Sequence(ops)).time.get()
    })
}

/// Parts by the seconds of their operations, at the least over context ranks.
fn added_up(problem: &Problem, content: &Content, load: ExpertLoad, seconds: impl Fn(Ops) -> f64) -> Parts {
    let timed = |stage: Stage| {
        let stage = part_of(problem, stage);
        [PassKind::Forward, PassKind::Input, PassKind::Weight].map(|kind| {
            let of_share = |share: &Share| seconds(pass_ops(problem, load, &stage, share, kind));
            content.shares.iter().map(of_share).fold(f64::INFINITY, f64::min)
        })
    };
    let layer = |with_experts: bool, place| {
        let of = |n: u32| if with_experts { [0, n] } else { [n, 0] };
        let [n_dense, n_expert] = of(1);
        timed(Stage { n_dense, n_expert, before: Some(of(place)), ..Stage::default() })
    };
    let running = hybrid::running(problem, layer);
    let is_of = |with_experts: bool| running.is_none() && (!with_experts || problem.model.experts.is_some());
    let each = |with_experts: bool| if is_of(with_experts) { layer(with_experts, 0) } else { [0.0; 3] };
    Parts {
        dense: each(false),
        expert: each(true),
        first: timed(Stage { first: true, ..Stage::default() }),
        last: timed(Stage { last: true, ..Stage::default() }),
        unhidden: Unhidden::default(),
        running,
    }
}

/// A part of a stage that recomputes what every stage does. A layer among few that recompute need not be one of them.
fn part_of(problem: &Problem, stage: Stage) -> Stage {
    let n_layers = u32::try_from(problem.model.n_layers).expect("layer counts are checked by the model reader");
    let execution = &problem.execution;
    if execution.recompute_layers >= n_layers {
        stage.recomputing(execution.recompute, execution.recompute_layers)
    } else {
        stage
    }
}

/// Nothing where no exchange of a tensor group is hidden, since it is then in the other parts.
fn unhidden(problem: &Problem, content: &Content, cost: &dyn CostModel) -> Unhidden {
    let share = problem.execution.overlap.tensor;
    if share == 0.0 || problem.layout.tp < 2 {
        return Unhidden::default();
    }
    let shape = problem.cluster.shape_of(&exchange::tensor_group(problem, crate::layout::Position::default()));
    let layer = part_of(problem, Stage { n_dense: 1, ..Stage::default() });
    let end = Stage { last: true, ..Stage::default() };
    let tokens = || content.shares.iter().map(|share| share.tokens);
    let (least, most) = (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0));
    let seconds = |stage: &Stage, tokens, kind, repeats: &dyn Fn(u32) -> f64| {
        let ops = layer::tensor_exchange(&problem.shard(), stage, tokens, kind, shape);
        ops.iter().map(|(op, n)| cost.estimate(op).time.get() * repeats(*n)).sum::<f64>()
    };
    let left = |n: u32| f64::from(n) * (1.0 - share);
    let half = |_| 0.5;
    let kinds = [PassKind::Forward, PassKind::Input, PassKind::Weight];
    // A forward that runs again before its backward has exchanges of its own.
    let again = |kind, stage: &Stage, tokens, repeats: &dyn Fn(u32) -> f64| match (kind, problem.execution.recompute) {
        (PassKind::Input, Recompute::Full) => seconds(stage, tokens, PassKind::Forward, repeats),
        _ => 0.0,
    };
    // A backward behind which gradients are reduced goes in pieces, each with repeats of its own.
    let pieces = |kind| match kind {
        PassKind::Forward => 1.0,
        _ => f64::from(GRADIENT_BUCKETS),
    };
    let rounding = |kind| pieces(kind) * (seconds(&layer, most, kind, &half) + again(kind, &layer, most, &half));
    Unhidden {
        layer: kinds.map(|kind| seconds(&layer, least, kind, &left) + again(kind, &layer.again(), least, &left)),
        end: kinds.map(|kind| seconds(&end, least, kind, &left)),
        rounding: kinds.map(rounding),
    }
}
