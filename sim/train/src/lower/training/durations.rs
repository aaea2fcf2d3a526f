//! Durations of every pass of a plan's micro-batches, for the schedules that look at them.
//!
//! A pass takes the computation and the blocking exchanges of its slowest context rank; context exchange is taken as hidden,
//! which the event engine does not assume. A pass is no shorter than the host's launches beside it. Equal micro-batches and stages are estimated once.

use std::collections::BTreeMap;

use hw::Span;

use super::layers::{Times, plus};
use super::{
    Content, GRADIENT_BUCKETS, attention, beside, chains, contents, exchange, hybrid, layers, mixed, stage_index,
};
use crate::activation::Activation;
use crate::experts::{self, ExpertLoad};
use crate::memory;
use crate::plan::{MicroBatch, Plan};
use crate::problem::{Problem, Recompute};
use crate::schedule::{PassKind, Pipeline};
use crate::stage::{Stage, stages};
use engine::cost::CostModel;
use engine::layer;
use engine::task::{Collective, Document, Op, Ops, Pass};

/// Durations of forward, input gradients, weight gradients and a whole backward, nanoseconds.
type Durations = [u64; 4];

/// The longer of passes that go in step.
fn slower(a: Durations, b: Durations) -> Durations {
    std::array::from_fn(|pass| a[pass].max(b[pass]))
}

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
            let messages: Vec<u64> = kinds.iter().map(|contents| self.message(&pipeline, index, contents)).collect();
            for (micro_batch, &kind) in kind_of.iter().enumerate() {
                pipeline.transfer[index][micro_batch] = messages[kind];
                let ([forward, input, weight, whole], held) = of_kinds[kind];
                pipeline.forward[index][micro_batch] = forward;
                pipeline.input[index][micro_batch] = input;
                pipeline.weight[index][micro_batch] = weight;
                pipeline.joint[index][micro_batch] = whole.cast_signed() - (input + weight).cast_signed();
                pipeline.activation[index][micro_batch] = held.whole;
                pipeline.for_weights[index][micro_batch] = held.for_weights;
            }
        }
        pipeline.logits = (0..n_micro_batches).map(|micro_batch| self.logits(&stages, most(micro_batch))).collect();
        pipeline.waits_for_messages = !problem.execution.overlap.stage;
        pipeline.limit = Some(self.room(&stages));
        pipeline.chains = chains::of(&block[0]);
        pipeline.group = problem.micro_batch_group();
        pipeline.flush_every = problem.flush_every();
        pipeline
    }

    /// Slowest durations and fullest activations of micro-batches that go in step.
    fn of_kind(&mut self, stage: &Stage, contents: &[&Content], own: &Problem) -> (Durations, Activation) {
        let all = contents.iter().map(|content| self.durations(stage, content, own));
        (all.reduce(slower).unwrap_or_default(), held(own, stage, contents.iter().copied()))
    }

    /// Logits of so many tokens on the last stage, as lowering holds them (`pass.rs`).
    fn logits(&self, stages: &[Stage], tokens: u64) -> u64 {
        match (stages.last(), self.problem.execution.unit_times) {
            (Some(last), None) => {
                let own = self.problem.at_stage(stages.len() - 1);
                engine::memory::head_bytes(&own.shard(), last, tokens)
            }
            _ => 0,
        }
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

    /// Message of micro-batches that go in step, between a stage and the next one, as lowering sends it (`messages.rs`).
    fn message(&self, pipeline: &Pipeline, stage: usize, contents: &[&Content]) -> u64 {
        let [from, to] = [stage, stage + 1].map(|stage| pipeline.place(stage.min(pipeline.n_stages() - 1), 0).0);
        if from == to {
            return 0;
        }
        let shares = contents.iter().flat_map(|content| &content.shares);
        let tokens = shares.map(|share| share.tokens).max().unwrap_or(0);
        if let Some(units) = self.problem.execution.unit_times {
            return units.message * tokens;
        }
        let ends = [from, to].map(|pp| (self.problem.at_stage(pp), u32::try_from(pp).expect("ranks fit u32")));
        let tp = ends.iter().map(|(own, _)| own.layout.tp).min().unwrap_or(1);
        let members = ends.map(|(own, pp)| own.rank(crate::layout::Position { pp, ..Default::default() }));
        let bytes = (tokens * self.problem.model.hidden * self.problem.dtype.bytes()).div_ceil(u64::from(tp));
        let shape = self.problem.cluster.shape_of(&members);
        let message = Op::Collective { kind: Collective::SendRecv, bytes, shape };
        Span::from_seconds(self.cost.estimate(&message).time).as_ns()
    }

    fn durations(&mut self, stage: &Stage, content: &Content, own: &Problem) -> Durations {
        engine::stop::pause();
        if let Some(units) = self.problem.execution.unit_times {
            let tokens = content.shares.iter().map(|share| share.tokens).max().unwrap_or(0);
            return [units.forward, units.input, units.weight, units.input + units.weight]
                .map(|unit| self.problem.unit_ns(unit, tokens));
        }
        let key = (own.layout.tp, *stage, content.clone());
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let shares = &content.shares;
        // Ranks of a ring have equal shares.
        let distinct = (0..shares.len()).filter(|&cp| cp == 0 || shares[cp] != shares[cp - 1]);
        let launches = own.execution.launches.each > hw::Seconds::ZERO;
        let of_share = |cp: usize| {
            let ns = |kind| {
                let ops = pass_ops(own, self.load, stage, content, cp, kind);
                Span::from_seconds(self.cost.estimate(&Op::Sequence(ops)).time).as_ns()
            };
            let [forward, input, weight] = [PassKind::Forward, PassKind::Input, PassKind::Weight].map(ns);
            // Halves add up to the whole but for the launches that both stand beside.
            let whole = if launches { ns(PassKind::Backward) } else { input + weight };
            [forward, input, weight, whole]
        };
        let slowest = distinct.map(of_share).reduce(slower).unwrap_or_default();
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

/// Everything that a context rank computes and waits for in one pass of a stage, context exchange left out.
pub(super) fn pass_ops(
    problem: &Problem,
    load: ExpertLoad,
    stage: &Stage,
    content: &Content,
    cp: usize,
    kind: PassKind,
) -> Ops {
    let kind = if kind == PassKind::Backward { problem.execution.backward() } else { kind };
    let share = &content.shares[cp];
    if kind == PassKind::Weight {
        return beside::launched(problem, hybrid::weight_ops(problem, load, stage, share), stage, kind);
    }
    let (tokens, n_layers) = (share.tokens, stage.n_layers());
    let pass = if kind == PassKind::Forward { Pass::Forward } else { Pass::Backward };
    let n_launched = if tokens > 0 { n_layers } else { 0 };
    let mut ops = layer::host(problem.execution.host_overhead_per_layer, n_launched);
    if kind != PassKind::Forward {
        let documents: Vec<_> = share.local.iter().chain(&share.sharded).copied().collect();
        ops.extend(match problem.execution.recompute {
            Recompute::Full => pass_ops(problem, load, &stage.again(), content, cp, PassKind::Forward),
            _ => beside::launched_again(problem, hybrid::recomputed(problem, load, stage, tokens, &documents), stage),
        });
    }
    if stage.first && kind == PassKind::Forward {
        ops.extend(layer::embedding(&problem.shard(), tokens));
    }
    if stage.last {
        ops.extend(layer::head(&problem.shard(), tokens, kind));
    }
    let launched = match hybrid::of_stage(problem, load, stage, &share.local, kind) {
        Some(layers) => layers,
        None => {
            // One layer leads: the host launches beside what comes behind it.
            let before = layer::before_attention(&problem.shard(), tokens, kind);
            let n_leading = if kind == PassKind::Forward { n_layers.min(1) } else { 0 };
            let following = if kind == PassKind::Forward { *stage } else { layers::all_but_one_layer(stage) };
            ops.extend(layer::repeated(&before, n_leading));
            if kind != PassKind::Forward {
                ops.extend(layers::after_attention(problem, load, &layers::one_layer(stage), tokens, kind));
            }
            ops.extend(attention::before_exchange(problem, content, cp, n_layers, pass));
            let mut behind = attention::behind_exchange(problem, content, cp, n_layers, pass);
            behind.extend(layer::repeated(&before, n_layers - n_leading));
            behind.extend(layers::after_attention(problem, load, &following, tokens, kind));
            behind
        }
    };
    ops.extend(beside::launched(problem, launched, stage, kind));
    ops.extend(blocking(problem, load, stage, tokens, kind));
    ops
}

/// What forward and backward of a stage without neighbours compute and wait for, over whole documents on one context rank.
pub fn layer_passes(problem: &Problem, stage: &Stage, documents: Vec<Document>) -> [Ops; 2] {
    let mut content = super::content(problem, &MicroBatch::default());
    content.shares[0].tokens = documents.iter().map(|document| document.queries).sum();
    content.shares[0].local = documents;
    let load = experts::mean(problem);
    [PassKind::Forward, PassKind::Backward].map(|kind| pass_ops(problem, load, stage, &content, 0, kind))
}

/// What a forward of a stage begins with, before anything of it can go to the host: the embedding, copies of shards, what the device waits for its host, and
/// the operations of one layer before attention.
pub(crate) fn lead(problem: &Problem, stage: &Stage, tokens: u64, copies: Ops) -> Ops {
    let mut ops = if stage.first { layer::embedding(&problem.shard(), tokens) } else { Ops::new() };
    ops.extend(copies);
    let n_launched = if tokens > 0 { stage.n_layers() } else { 0 };
    ops.extend(layer::host(problem.execution.host_overhead_per_layer, n_launched));
    if !problem.model.is_hybrid() {
        ops.extend(layer::before_attention(&problem.shard(), tokens, PassKind::Forward));
    }
    ops
}

/// Exchanges that a forward or backward of a stage waits for, those of layers that it computes again included.
pub(crate) fn exchanged(problem: &Problem, stage: &Stage, tokens: u64, kind: PassKind) -> Ops {
    let load = experts::load(problem, 0).unwrap_or(ExpertLoad::EVEN);
    let mut ops = blocking(problem, load, stage, tokens, kind);
    if kind != PassKind::Forward && problem.execution.recompute == Recompute::Full {
        ops.extend(blocking(problem, load, &stage.again(), tokens, PassKind::Forward));
    }
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

/// Passes that last as long as the device or the host, whichever is longer; a whole backward is one pass.
fn longer([device, host]: Times) -> [f64; 3] {
    let [forward, input] = [0, 1].map(|pass| device[pass].max(host[pass]));
    [forward, input, (device[1] + device[2]).max(host[1] + host[2]) - input]
}

/// Durations of a micro-batch's passes in the parts that a stage adds up: seconds of forward, input and weight gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// One layer with a dense feed-forward.
    dense: Times,
    /// One layer with experts.
    expert: Times,
    /// Sums over the first layers without experts and with, where layers differ by more than that.
    running: Option<[Vec<Times>; 2]>,
    /// The embedding.
    pub first: [f64; 3],
    /// The final norm and the head.
    pub last: [f64; 3],
    /// Whether some pass makes gradients of weights alone: those of the head are beside the launches of the layers then.
    splits: bool,
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
        let ends: [f64; 3] =
            std::array::from_fn(|kind| flag(stage.first) * self.first[kind] + flag(stage.last) * self.last[kind]);
        let beside_host = [ends[0], ends[1], if self.splits { 0.0 } else { ends[2] }];
        let seconds = longer(plus(self.layers(stage), [ends, beside_host]));
        std::array::from_fn(|kind| seconds[kind] + self.unhidden.stage(stage, kind))
    }

    /// Duration of one layer's passes, where layers differ by their experts alone.
    pub fn layer(&self, with_experts: bool) -> [f64; 3] {
        longer(if with_experts { self.expert } else { self.dense })
    }

    /// Times of the layers of a stage.
    fn layers(&self, stage: &Stage) -> Times {
        let Some(running) = &self.running else {
            let times = |n: u32, of: &Times| of.map(|all| all.map(|seconds| f64::from(n) * seconds));
            return plus(times(stage.n_dense, &self.dense), times(stage.n_expert, &self.expert));
        };
        let before = stage.before.unwrap_or_default();
        let of = |of: &[Times], from: u32, n: u32| {
            plus(of[(from + n) as usize], of[from as usize].map(|all| all.map(|seconds| -seconds)))
        };
        plus(of(&running[0], before[0], stage.n_dense), of(&running[1], before[1], stage.n_expert))
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
    overlap.expert = overlap.expert.map(f64::ceil);
    let unhidden = unhidden(problem, &content, cost);
    Parts { unhidden, ..added_up(&exposed, &content, load, cost, |_| true) }
}

/// The same of computation alone, which is what a straggler takes longer for.
pub fn computed_parts(problem: &Problem, micro_batch: &MicroBatch, load: ExpertLoad, cost: &dyn CostModel) -> Parts {
    let content = super::content(problem, micro_batch);
    added_up(problem, &content, load, cost, |op| !matches!(op, Op::Collective { .. } | Op::Copy { .. }))
}

/// Seconds of the operations of a pass that count: of the device, and of the host that launches. What leads a pass is in no launch's time, and there is one
/// such layer in a stage, so it is left out of the host's.
fn apart(ops: &Ops, counts: fn(&Op) -> bool, cost: &dyn CostModel) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for (op, n) in ops.iter().filter(|(op, _)| counts(op)) {
        let seconds = |op: &Op| cost.estimate(op).time.get() * f64::from(*n);
        let (device, host) = match op {
            Op::Launched { parts, ns } => {
                (seconds(&Op::Sequence(parts.clone())), Span::from_ns(*ns).to_seconds().get() * f64::from(*n))
            }
            Op::Collective { .. } => (seconds(op), seconds(op)),
            _ => (seconds(op), 0.0),
        };
        sums = [sums[0] + device, sums[1] + host];
    }
    sums
}

/// Parts by the seconds of their operations that count, at the least over context ranks.
fn added_up(
    problem: &Problem,
    content: &Content,
    load: ExpertLoad,
    cost: &dyn CostModel,
    counts: fn(&Op) -> bool,
) -> Parts {
    let launches = problem.execution.launches.each > hw::Seconds::ZERO;
    // Where nothing splits a backward, its launches are those of the whole.
    let splits = problem.schedule.splits_backward || problem.execution.overlap.delayed_weights;
    let timed = |stage: Stage| -> Times {
        let stage = part_of(problem, stage);
        let least = |kind| {
            let of_share = |cp| apart(&pass_ops(problem, load, &stage, content, cp, kind), counts, cost);
            let all = (0..content.shares.len()).map(of_share);
            all.fold([f64::INFINITY; 2], |least, of| [least[0].min(of[0]), least[1].min(of[1])])
        };
        let [forward, input, weight] = [PassKind::Forward, PassKind::Input, PassKind::Weight].map(least);
        let more = if launches { least(PassKind::Backward)[1] - input[1] } else { 0.0 };
        let launched = if splits { weight[1].min(more) } else { more };
        [[forward[0], input[0], weight[0]], [forward[1], input[1], launched.max(0.0)]]
    };
    let layer = |with_experts: bool, place| {
        let of = |n: u32| if with_experts { [0, n] } else { [n, 0] };
        let [n_dense, n_expert] = of(1);
        timed(Stage { n_dense, n_expert, before: Some(of(place)), ..Stage::default() })
    };
    let running = hybrid::running(problem, layer);
    let is_of = |with_experts: bool| running.is_none() && (!with_experts || problem.model.experts.is_some());
    let each = |with_experts: bool| if is_of(with_experts) { layer(with_experts, 0) } else { Times::default() };
    Parts {
        dense: each(false),
        expert: each(true),
        first: timed(Stage { first: true, ..Stage::default() })[0],
        last: timed(Stage { last: true, ..Stage::default() })[0],
        splits,
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

#[cfg(test)]
mod tests;
