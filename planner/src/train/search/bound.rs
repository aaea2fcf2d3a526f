//! Lower bound on the step of a layout, without simulating it.
//!
//! A pipeline rank computes its stages for every micro-batch of its group, and blocks for their tensor and expert exchanges.
//! It cannot start before a micro-batch has passed the stages in front of it, and when backward is not split, its last pass is
//! followed by the backward of those stages. So for every rank r
//!
//!   step ≥ forward of the stages before r + passes of r + backward of the stages before r + what follows on the first rank,
//!
//! where a message leads from each of those stages to the next, and gradient reduction (unless it runs behind backward),
//! optimizer and parameter gather follow. With a split backward the last pass of r may be any, and only what follows on r
//! itself does. With ZeRO 3 a rank exchanges parameters and gradients for every micro-batch, one after another. Activations that leave for the host take the time of their copies on every rank.
//! A forward for keys and values alone has no embedding, no head and no backward.
//!
//! A straggler computes longer by its rate, and a lane goes at the pace of its slowest rank. So the rank r that holds a straggler adds
//! (rate - 1) times the computation of its own passes; what it exchanges takes as long as ever.
//!
//! Pipelines of shapes of their own are none of the layout's: of a plan that has them the certified bound of `train::bound` counts, and nothing
//! is known of its memory.
//!
//! All terms are sums of the same estimates that the simulation plays, at their least over context ranks and micro-batches;
//! nothing else is assumed. Experts count as loaded as in the step that loads them least. Work per layer is estimated once per (micro-batch, cut of the layer) and added up.

use std::collections::BTreeMap;

use engine::task::Collective;
use engine::{CostModel, Op};
use hw::Format;
use train::experts::{self, ExpertLoad};
use train::layout::{Position, Zero};
use train::lower::training::{Parts, computed_parts, parts, pipelines};
use train::metrics::causes;
use train::peak::{self, Moment};
use train::pipeline_states::Batches as Held;
use train::plan::{MicroBatch, Place, Placement as Placed, Plan, Step};
use train::problem::{GradientSync, Problem, Recompute};
use train::schedule::{Pipeline, Placement, Schedule, play};
use train::stage::{Stage, stages};

use super::space::Candidate;
use crate::train::policy::{PlanContext, PlanError, Policy, Reads};

/// Relative slack for durations that the simulation rounds to whole nanoseconds.
const ROUNDING: f64 = 1.0 - 1e-4;

/// Stages of a pipeline rank, with their places on the path.
type Chunks = Vec<(usize, Stage)>;

/// Micro-batches of one group, equal ones counted: (index into the distinct ones, how many).
type Group = Vec<(usize, u32)>;

/// Parameters of a stage on one rank: those that all its ranks have, and those of experts.
type Parameters = (f64, f64);

/// What micro-batches are remembered by: data-parallel groups, context ranks, tokens that a rank may hold.
type RoomKey = (u32, u32, u64);

/// Groups of a step.
#[derive(Default)]
struct Groups {
    distinct: Vec<Group>,
    /// Which of the distinct ones each data-parallel group is.
    of_dp: Vec<usize>,
}

/// A pipeline rank with a straggler: its group among the distinct ones, its place in the pipeline, and the straggler's rate.
type Slow = (usize, usize, f64);

/// Micro-batches that a policy makes.
struct Batches {
    distinct: Vec<MicroBatch>,
    steps: Vec<Groups>,
    /// Most micro-batches of a group.
    n_most: u32,
    /// Least tokens on a rank.
    tokens_least: u64,
    /// Whether each micro-batch is kept from forward to backward as the execution says.
    are_kept: bool,
    /// Bound on the mean step, seconds, where some step has pipelines of shapes of their own.
    of_own_shapes_s: Option<f64>,
}

/// What the work of a layer depends on besides the micro-batch.
type CutKey = (u32, u32, u32, u32, bool, bool, Recompute, Option<[Format; 4]>);

/// What stages depend on: pipeline ranks, chunks, schedule, layers of the ends, and what is computed again.
type StageKey = (u32, u32, &'static str, [u32; 2], Recompute);

/// What ranks hold depends on: pipeline ranks, chunks, schedule, micro-batches.
type MomentKey = (u32, u32, &'static str, u32);

/// Why a layout is not looked at.
#[derive(Clone, Debug, PartialEq)]
pub enum Dropped {
    /// It needs more memory than a device has.
    TooLarge,
    /// The policy has no plan for it.
    Refused(PlanError),
}

/// The least that a layout takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Least {
    /// Mean step, seconds.
    pub step_s: f64,
    /// Memory of the fullest rank, bytes.
    pub bytes: u64,
}

/// Seconds of a rank that follow from what it holds.
#[derive(Clone, Copy)]
struct OfRank {
    follows: f64,
    copies: f64,
    /// Of a forward for keys and values alone, and of a whole micro-batch.
    gathers: [f64; 2],
    optimizer: f64,
}

/// Whether two ranks hold equal stages, wherever these lie on the path.
fn holds_alike(one: &Chunks, other: &Chunks) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|((_, a), (_, b))| a == b)
}

/// A micro-batch with the durations of its passes.
type Timed<'a> = (&'a Parts, &'a MicroBatch);

/// Durations of what a micro-batch runs on a stage, seconds: forward, gradients of inputs and of weights.
fn passes((parts, micro_batch): &Timed<'_>, stage: &Stage) -> [f64; 3] {
    if micro_batch.forward_only {
        let [forward, ..] = parts.stage(&Stage { first: false, last: false, ..*stage });
        return [forward, 0.0, 0.0];
    }
    parts.stage(stage)
}

/// All of them on the stages of a rank, seconds.
fn of_chunks(part: &Timed<'_>, chunks: &Chunks) -> f64 {
    chunks.iter().map(|(_, stage)| passes(part, stage).iter().sum::<f64>()).sum()
}

/// Judges candidates, remembering what they share.
pub struct Judge<'a> {
    policy: &'a dyn Policy,
    context: &'a PlanContext<'a>,
    /// The problem with the layout of the candidate at hand.
    scratch: Problem,
    batches: BTreeMap<RoomKey, Result<Batches, PlanError>>,
    parts: BTreeMap<(RoomKey, CutKey), Vec<Parts>>,
    /// The same of computation alone, where a device straggles.
    computed: BTreeMap<(RoomKey, CutKey), Vec<Parts>>,
    stages: BTreeMap<StageKey, Vec<Chunks>>,
    moments: BTreeMap<MomentKey, Vec<Vec<Moment>>>,
    /// Least load of experts in any step, by expert degree.
    loads: BTreeMap<u32, ExpertLoad>,
    /// Least tokens of a micro-batch on a rank, of the candidate at hand.
    tokens_least: u64,
}

impl<'a> Judge<'a> {
    /// A judge of layouts for a problem.
    pub fn new(problem: &Problem, policy: &'a dyn Policy, context: &'a PlanContext<'a>) -> Self {
        Self {
            policy,
            context,
            scratch: problem.clone(),
            batches: BTreeMap::new(),
            parts: BTreeMap::new(),
            computed: BTreeMap::new(),
            stages: BTreeMap::new(),
            moments: BTreeMap::new(),
            loads: BTreeMap::new(),
            tokens_least: 0,
        }
    }

    /// Lower bounds on step and memory.
    ///
    /// # Errors
    /// When the layout cannot fit, or the policy has no plan for it.
    pub fn least(&mut self, candidate: &Candidate) -> Result<Least, Dropped> {
        candidate.apply(&mut self.scratch);
        if self.policy.reads() == Reads::Everything {
            self.batches.clear();
            self.parts.clear();
            self.computed.clear();
        }
        let key = (candidate.layout.dp, candidate.layout.cp, candidate.bucket_tokens);
        if !self.batches.contains_key(&key) {
            let batches = batches(&self.scratch, self.policy, self.context);
            self.batches.insert(key, batches);
        }
        let batches = self.batches[&key].as_ref().map_err(|why| Dropped::Refused(why.clone()))?;
        if let Some(step_s) = batches.of_own_shapes_s {
            return Ok(Least { step_s: step_s * ROUNDING, bytes: 0 });
        }
        self.tokens_least = batches.tokens_least;
        self.remember(candidate, key);
        let batches = self.batches[&key].as_ref().expect("it is planned");
        let ranks = &self.stages[&stage_key(candidate)];
        let bytes = self.bytes(candidate, ranks, batches);
        if bytes > self.scratch.cluster.gpu.memory.0 {
            return Err(Dropped::TooLarge);
        }
        let parts: Vec<Timed<'_>> = self.parts[&(key, cut(candidate))].iter().zip(&batches.distinct).collect();
        let computed = self.computed.get(&(key, cut(candidate))).map_or(&[][..], Vec::as_slice);
        let of_step = |(step_index, groups): (usize, &Groups)| {
            let slow = self.slow(step_index, &groups.of_dp);
            self.step(candidate, ranks, (&parts, computed), &groups.distinct, &slow)
        };
        let total: f64 = batches.steps.iter().enumerate().map(of_step).sum();
        Ok(Least { step_s: total / hw::real(batches.steps.len() as u64) * ROUNDING, bytes })
    }

    /// Makes sure that the shared figures of a candidate are there.
    fn remember(&mut self, candidate: &Candidate, key: RoomKey) {
        let (layout, schedule) = (&candidate.layout, candidate.schedule);
        let batches = self.batches[&key].as_ref().expect("checked by the caller");
        let n = batches.n_most.min(3 * layout.pp * layout.chunks);
        let (pp, chunks) = (layout.pp, layout.chunks);
        self.stages
            .entry(stage_key(candidate))
            .or_insert_with(|| ranks(&self.scratch, schedule, pp as usize, chunks as usize));
        let scratch = &self.scratch;
        self.moments.entry((pp, chunks, schedule.name, n)).or_insert_with(|| {
            let mut pipeline = Pipeline::of_schedule(schedule, pp as usize, chunks as usize, n as usize);
            pipeline.group = scratch.micro_batch_group();
            pipeline.flush_every = scratch.flush_every();
            peak::moments(schedule, &pipeline)
        });
        let (scratch, cost) = (&self.scratch, self.context.cost);
        let load = *self.loads.entry(layout.ep).or_insert_with(|| experts::least(scratch));
        self.parts
            .entry((key, cut(candidate)))
            .or_insert_with(|| batches.distinct.iter().map(|mb| parts(scratch, mb, load, cost)).collect());
        if !scratch.execution.stragglers.is_empty() {
            self.computed
                .entry((key, cut(candidate)))
                .or_insert_with(|| batches.distinct.iter().map(|mb| computed_parts(scratch, mb, load, cost)).collect());
        }
    }

    /// Pipeline ranks of the candidate at hand that hold a straggler in a step.
    fn slow(&self, step_index: usize, of_dp: &[usize]) -> Vec<Slow> {
        let problem = &self.scratch;
        let rates = problem.rates(step_index);
        let of_layout = rates.stragglers().iter().filter(|(rank, _)| rank.0 < problem.layout.n_ranks());
        let placed = of_layout.map(|&(rank, rate)| (problem.position(rank), rate));
        placed.map(|(at, rate)| (of_dp[at.dp as usize], at.pp as usize, rate)).collect()
    }

    /// The least that the fullest rank needs.
    fn bytes(&self, candidate: &Candidate, ranks: &[Chunks], batches: &Batches) -> u64 {
        let layout = &candidate.layout;
        let n = batches.n_most.min(3 * layout.pp * layout.chunks);
        let moments = &self.moments[&(layout.pp, layout.chunks, candidate.schedule.name, n)];
        let n_held = |rank: usize| moments[rank].first().map_or(0, Moment::n_held);
        // Ranks of the same stages need alike: the one with most in flight speaks for them.
        let mut alike: Vec<usize> = Vec::new();
        for rank in 0..ranks.len() {
            match alike.iter_mut().find(|other| holds_alike(&ranks[**other], &ranks[rank])) {
                Some(most) if n_held(*most) < n_held(rank) => *most = rank,
                Some(_) => {}
                None => alike.push(rank),
            }
        }
        let held = Held { n: u64::from(batches.n_most), tokens: batches.tokens_least };
        let of_rank = |&rank: &usize| {
            let stages: Vec<Stage> = ranks[rank].iter().map(|(_, stage)| *stage).collect();
            let moments = if batches.are_kept { moments[rank].as_slice() } else { &[] };
            let pp = u32::try_from(rank).expect("ranks fit u32");
            peak::least(&self.scratch, pp, &stages, moments, held)
        };
        alike.iter().map(of_rank).max().unwrap_or(0)
    }

    /// Bound of one step: the slowest rank of the slowest group.
    fn step(
        &self,
        candidate: &Candidate,
        ranks: &[Chunks],
        (parts, computed): (&[Timed<'_>], &[Parts]),
        groups: &[Group],
        slow: &[Slow],
    ) -> f64 {
        let of_path = |kinds: &[usize]| {
            // Running sums over the stages before, at the least over micro-batches.
            let n_stages = ranks.iter().flatten().map(|(index, _)| index + 1).max().unwrap_or(0);
            let mut least = vec![f64::INFINITY; n_stages + 1];
            // What is wanted for keys and values alone has no backward.
            for part in parts.iter().filter(|(_, micro_batch)| kinds == [0] || !micro_batch.forward_only) {
                let mut durations = vec![0.0; n_stages];
                for (index, stage) in ranks.iter().flatten() {
                    let all = passes(part, stage);
                    durations[*index] = kinds.iter().map(|&kind| all[kind]).sum();
                }
                let mut sum = 0.0;
                for (index, least) in least.iter_mut().enumerate() {
                    *least = least.min(sum);
                    sum += durations.get(index).copied().unwrap_or(0.0);
                }
            }
            least
        };
        let splits = candidate.schedule.splits_backward;
        let linear = candidate.schedule.placement != Placement::Bidirectional;
        let (before_forward, before_backward) = (of_path(&[0]), of_path(&[1, 2]));
        let message = if linear { self.message(candidate) } else { 0.0 };
        let starts = |chunks: &[(usize, Stage)]| chunks.iter().map(|(index, _)| *index).min().unwrap_or(0);
        let head_of_path = ranks.iter().find(|chunks| starts(chunks) == 0);
        let follows_first = head_of_path.map_or(0.0, |chunks| self.of_rank(candidate, chunks).follows);
        let mut slowest: f64 = 0.0;
        // Ranks that hold alike exchange and update alike: most ranks are as the one before.
        let mut before: Option<(&Chunks, OfRank)> = None;
        for (pp, chunks) in ranks.iter().enumerate() {
            let own = match &before {
                Some((others, own)) if holds_alike(others, chunks) => *own,
                _ => self.of_rank(candidate, chunks),
            };
            before = Some((chunks, own));
            let first = starts(chunks);
            let hops = hw::real(first.min(ranks.len()) as u64) * message;
            let head = if linear { before_forward[first] + hops } else { 0.0 };
            let tail = if linear && !splits { before_backward[first] + hops + follows_first } else { own.follows };
            let sums: Vec<f64> = parts.iter().map(|part| of_chunks(part, chunks)).collect();
            let share = if linear { 1.0 } else { 0.5 };
            let most = |of: &dyn Fn(usize) -> f64| {
                let work = |group: &Group| group.iter().map(|&(index, n)| of(index) * f64::from(n)).sum::<f64>();
                groups.iter().map(work).fold(0.0, f64::max) * share
            };
            let is_whole = |index: usize| !parts[index].1.forward_only;
            let copies = most(&|index| if is_whole(index) { own.copies } else { 0.0 });
            slowest = slowest.max(head + most(&|index| sums[index]).max(copies) + tail);
            for &(group, _, rate) in slow.iter().filter(|(_, at, _)| *at == pp) {
                let of_one = |&(index, n): &(usize, u32)| {
                    let longer = (rate - 1.0) * of_chunks(&(&computed[index], parts[index].1), chunks);
                    f64::from(n) * (sums[index] + longer)
                };
                slowest = slowest.max(head + share * groups[group].iter().map(of_one).sum::<f64>() + tail);
            }
            slowest = slowest.max(most(&|index| own.gathers[usize::from(is_whole(index))]) + own.optimizer);
        }
        slowest
    }

    fn of_rank(&self, candidate: &Candidate, chunks: &Chunks) -> OfRank {
        let parameters: Vec<Parameters> =
            chunks.iter().map(|(_, stage)| engine::memory::stage_parameters(&self.scratch.shard(), stage)).collect();
        let optimizer = self.optimizer(&parameters);
        OfRank {
            follows: optimizer + self.exchanged_behind(&parameters),
            copies: self.copies(candidate, chunks),
            gathers: self.gathers(chunks, &parameters),
            optimizer,
        }
    }

    /// Least time of a message between pipeline ranks, seconds.
    fn message(&self, candidate: &Candidate) -> f64 {
        let (layout, problem) = (&candidate.layout, &self.scratch);
        if layout.pp < 2 {
            return 0.0;
        }
        let least = self.tokens_least * problem.model.hidden * problem.dtype.bytes();
        let members = [0, 1].map(|pp| layout.rank(Position { pp, ..Position::default() }));
        let (bytes, shape) = (least / u64::from(layout.tp), problem.cluster.shape_of(&members));
        let kind = engine::task::Collective::SendRecv;
        // Ranks inside a node reach each other faster; some pair of neighbours may be inside one.
        let inside = hw::GroupShape::inside(2);
        let time = |shape| self.context.cost.estimate(&Op::Collective { kind, bytes, shape }).time.get();
        time(shape).min(time(inside))
    }

    /// Copies to the host of one micro-batch on a rank, seconds; they come back over the other link.
    fn copies(&self, candidate: &Candidate, chunks: &[(usize, Stage)]) -> f64 {
        if candidate.offload == 0.0 {
            return 0.0;
        }
        let per_token: u64 = chunks
            .iter()
            .map(|(_, stage)| engine::memory::activation_bytes_per_token(&self.scratch.shard(), stage))
            .sum();
        let bytes = hw::whole(hw::real(per_token * self.tokens_least) * candidate.offload);
        let kind = engine::task::CopyKind::DeviceToHost;
        // One copy per chunk in truth; a single one has one start-up less.
        self.context.cost.estimate(&Op::Copy { kind, bytes }).time.get()
    }

    /// What ZeRO 3 exchanges on a rank, one after another, seconds: parameters before a forward for keys and values alone; for a whole micro-batch
    /// parameters before forward and before backward, and gradients behind it. Other shardings exchange nothing for a micro-batch alone.
    fn gathers(&self, chunks: &[(usize, Stage)], parameters: &[Parameters]) -> [f64; 2] {
        let (problem, layout) = (&self.scratch, &self.scratch.layout);
        if layout.zero < Zero::Parameters || layout.n_shards() < 2 || problem.execution.unit_times.is_some() {
            return [0.0; 2];
        }
        let (shape, trains) = (self.shape_of_shards(), problem.execution.trains_weights());
        let time = |kind, bytes: f64| {
            let bytes = hw::whole(bytes);
            self.context.cost.estimate(&Op::Collective { kind, bytes, shape }).time.get()
        };
        // What groups of experts exchange beside their own is left out.
        let of_chunk = |((_, stage), &(shared, _)): (&(usize, Stage), &Parameters)| {
            let n = f64::from(stage.n_layers().max(1));
            // Layers are gathered one by one; the largest tables with the first of them.
            let gathered = shared * problem.gathered_bytes() / n;
            let reduced = shared * hw::real(problem.execution.gradient_dtype.bytes());
            let is_each = trains && problem.reduces_each_micro_batch();
            let reduction = if is_each { time(Collective::ReduceScatter, reduced) } else { 0.0 };
            let gather = n * time(Collective::AllGather, gathered);
            [gather, 2.0 * gather + reduction]
        };
        chunks.iter().zip(parameters).map(of_chunk).fold([0.0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]])
    }

    /// How the ranks of the first group that shards states lie on the nodes.
    fn shape_of_shards(&self) -> hw::GroupShape {
        let layout = &self.scratch.layout;
        let positions = (0..layout.dp).flat_map(|dp| (0..layout.cp).map(move |cp| (dp, cp)));
        let members = positions.map(|(dp, cp)| layout.rank(Position { dp, cp, ..Position::default() }));
        let members: Vec<_> = members.take(layout.n_shards() as usize).collect();
        self.scratch.cluster.shape_of(&members)
    }

    /// What follows the last pass of a rank besides the optimizer, seconds: reduction of gradients, gather of parameters.
    fn exchanged_behind(&self, parameters: &[Parameters]) -> f64 {
        let problem = &self.scratch;
        let (layout, cost) = (&problem.layout, self.context.cost);
        if layout.n_shards() < 2 || !problem.execution.trains_weights() {
            return 0.0;
        }
        let shape = self.shape_of_shards();
        let time = |kind, bytes: f64| {
            let bytes = hw::whole(bytes);
            cost.estimate(&Op::Collective { kind, bytes, shape }).time.get()
        };
        let mut seconds = 0.0;
        for &(shared, _) in parameters {
            if problem.gradient_sync() == GradientSync::AtEnd {
                let kind = if layout.zero == Zero::Off { Collective::AllReduce } else { Collective::ReduceScatter };
                seconds += time(kind, shared * hw::real(problem.execution.gradient_dtype.bytes()));
            }
            let gathers = matches!(layout.zero, Zero::OptimizerStates | Zero::Gradients);
            if gathers && !problem.execution.overlap.parameter_gather {
                seconds += time(Collective::AllGather, shared * hw::real(problem.dtype.bytes()));
            }
        }
        seconds
    }

    /// Optimizer of a rank, seconds.
    fn optimizer(&self, parameters: &[Parameters]) -> f64 {
        let problem = &self.scratch;
        if !problem.execution.trains_weights() {
            return 0.0;
        }
        let sharded = problem.layout.zero >= train::layout::Zero::OptimizerStates;
        let over = |n: u32| if sharded { f64::from(n) } else { 1.0 };
        let (n_shards, n_expert_shards) = (over(problem.layout.n_shards()), over(problem.layout.n_expert_shards()));
        let parameters: f64 =
            parameters.iter().map(|(shared, experts)| shared / n_shards + experts / n_expert_shards).sum();
        self.context.cost.estimate(&Op::Sequence(problem.execution.optimizer.least_step(parameters))).time.get()
    }
}

/// Bound from a plan's own order of passes, seconds: the longest path through it with least durations. `None` where ranks of
/// one stage wait for each other inside a pass, which the path does not see.
pub fn of_order(problem: &Problem, plan: &Plan, cost: &dyn CostModel) -> Option<f64> {
    let overlap = problem.execution.overlap;
    let joined = problem.layout.expert_span().is_none_or(|span| span.dp > 1) || problem.layout.zero == Zero::Parameters;
    let has_own_shapes = plan.steps.iter().any(Step::is_mixed);
    if problem.layout.cp > 1 || joined || problem.layout.pp < 2 || overlap.hidden_experts() > 0.0 || has_own_shapes {
        return None;
    }
    let mut total = 0.0;
    for step_index in 0..plan.steps.len() {
        let (pipelines, _) = pipelines(problem, plan, step_index, cost);
        let mut longest = 0;
        for (pipeline, order) in pipelines.iter().zip(&plan.steps[step_index].orders) {
            longest = longest.max(play(pipeline, order).ok()?.span);
        }
        total += hw::Span::from_ns(longest).to_seconds().get();
    }
    Some(total / hw::real(plan.steps.len() as u64) * ROUNDING)
}

const fn stage_key(candidate: &Candidate) -> StageKey {
    let layout = &candidate.layout;
    (layout.pp, layout.chunks, candidate.schedule.name, candidate.ends, candidate.recompute)
}

fn cut(candidate: &Candidate) -> CutKey {
    let layout = &candidate.layout;
    // An expert group's place on the nodes follows from the degrees around it.
    let groups_in_node = layout.dp * layout.cp;
    (
        layout.tp,
        layout.ep,
        layout.expert_tp,
        groups_in_node,
        layout.sequence_parallel,
        layout.ep > 1,
        candidate.recompute,
        candidate.products.map(|of| [of.attention, of.dense, of.experts, of.head]),
    )
}

/// Stages of every pipeline rank with their place on the path.
fn ranks(problem: &Problem, schedule: &Schedule, pp: usize, chunks: usize) -> Vec<Chunks> {
    let (stages, pipeline) = (stages(problem), Pipeline::of_schedule(schedule, pp, chunks, 0));
    (0..pp)
        .map(|rank| {
            (0..chunks)
                .map(|chunk| {
                    let index = pipeline.stage(rank, chunk);
                    (index, stages[index])
                })
                .collect()
        })
        .collect()
}

/// What makes micro-batches equal: lengths, beginnings and places of the parts of sequences, padding, and whether only keys and values are wanted.
type Content = (Vec<(u64, u64, Place)>, u64, bool);

fn content(micro_batch: &MicroBatch) -> Content {
    let part = |part: &Placed| (part.tokens, part.from, part.place);
    (micro_batch.sequences.iter().map(part).collect(), micro_batch.padding, micro_batch.forward_only)
}

/// Micro-batches that a policy makes for a problem.
fn batches(problem: &Problem, policy: &dyn Policy, context: &PlanContext<'_>) -> Result<Batches, PlanError> {
    let plan = policy.plan(problem, context)?.plan;
    let mut distinct: Vec<MicroBatch> = Vec::new();
    let mut known: BTreeMap<Content, usize> = BTreeMap::new();
    let mut steps = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let mut groups = Groups::default();
        for micro_batches in &step.groups {
            let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
            for micro_batch in micro_batches {
                let index = *known.entry(content(micro_batch)).or_insert_with(|| {
                    distinct.push(micro_batch.clone());
                    distinct.len() - 1
                });
                *counts.entry(index).or_default() += 1;
            }
            let group: Group = counts.into_iter().collect();
            let at = groups.distinct.iter().position(|known| *known == group).unwrap_or(groups.distinct.len());
            if at == groups.distinct.len() {
                groups.distinct.push(group);
            }
            groups.of_dp.push(at);
        }
        steps.push(groups);
    }
    let cp = problem.layout.cp;
    let tokens_least =
        distinct.iter().flat_map(|mb| (0..cp).map(move |rank| mb.tokens_on(rank, cp))).min().unwrap_or(0);
    let all = steps.iter().flat_map(|groups: &Groups| &groups.distinct);
    let n_most = all.map(|group| group.iter().map(|(_, n)| n).sum()).max().unwrap_or(0);
    let are_kept = distinct.iter().all(|mb| !mb.forward_only && mb.offload_permille.is_empty());
    let of_own_shapes_s = plan.steps.iter().any(Step::is_mixed).then(|| {
        let tokens_max = problem.bucket_tokens.max(causes::tokens_max(&plan));
        causes::bound_s(problem, &plan, tokens_max, context.cost)
    });
    Ok(Batches { distinct, steps, n_most, tokens_least, are_kept, of_own_shapes_s })
}
