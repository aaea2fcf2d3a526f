//! Pipelines over GPUs of several types: which machines there are, which stage of which replica lies where, and what a step of that takes.
//!
//! Machines of one type are a group, and a group lies in a zone. Within a zone stages exchange over the machines' own ports; between zones they need a
//! link, which may have a price. A stage has as many replicas as every other one and the same layers in each, on cards of their own (Sailor, SOSP 2025).
//! What a stage takes is priced by the cost model of its card, or measured and given. Units: seconds, bytes, dollars.

mod batch;
mod days;
mod ends;
mod grounds;
mod hosts;
mod links;
mod room;
mod slow;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use engine::CostModel;
use engine::cost::Estimate;
use engine::cost::provenance::Grounds;
use engine::play::Case;
use engine::task::Op;
use hw::{Seconds, Span};

use crate::layout::{ContextExchange, Layout, Position, Zero};
use crate::long_run::LongRun;
use crate::lower::training::{exchanged, pipelines, tensor_group, update};
use crate::metrics::Played;
use crate::muon::Dealt;
use crate::plan::{MicroBatch, Plan, Step};
use crate::problem::Problem;
use crate::schedule::PassKind;
use crate::stage::stages;
use crate::timed::{Message, Messages, PassTime, PassTimes, Replica, StageTimes, TimedStep, UNEXPLAINED};
pub use batch::Batch;
use links::Priced;
pub use links::{Group, Link, Unlinked};
pub use room::Fullest;
pub use slow::SlowNode;

/// Megabytes as bytes.
pub fn megabytes(megabytes: f64) -> f64 {
    megabytes * 1e6
}

/// Milliseconds as seconds.
pub fn milliseconds(milliseconds: f64) -> f64 {
    milliseconds / 1e3
}

/// Measured times of a stage on the cards of a replica, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Forward of a micro-batch.
    pub forward_s: f64,
    /// Backward of a micro-batch.
    pub backward_s: f64,
    /// Step of the optimizer.
    pub update_s: f64,
}

/// Where a replica of a stage lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// Position in the groups.
    pub group: usize,
    /// Its tensor group.
    pub n_gpus: u32,
    /// Where they were measured.
    pub times: Option<Times>,
}

/// What a stage exchanges, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Activations of a micro-batch to the next stage.
    pub message: f64,
    /// Gradients over its replicas.
    pub gradients: f64,
    /// What comes back of them: sums, or parameters where each replica updates its part.
    pub gathered: f64,
}

/// A stage of all pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedStage {
    /// Layers of the model.
    pub layers: u32,
    /// Its replicas.
    pub slots: Vec<Slot>,
    /// What it exchanges, where no model says so.
    pub sizes: Option<Sizes>,
}

/// A plan: stages with their replicas, and micro-batches of every replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipelines {
    /// Along the path of a micro-batch.
    pub stages: Vec<MixedStage>,
    /// By replica.
    pub micro_batches: Vec<u32>,
}

/// A replica of a stage, with the micro-batches that pass it.
#[derive(Clone, Debug)]
struct Placed {
    stage: usize,
    replica: usize,
    slot: Slot,
    /// First of its GPUs in its group: they fill its nodes stage by stage, and replicas of a stage lie side by side.
    first_gpu: u32,
    micro_batches: Range<u32>,
}

/// What is trained on which machines.
#[derive(Clone, Debug)]
pub struct MixedJob {
    /// Machines.
    pub groups: Vec<Group>,
    /// Links of zones.
    pub links: Vec<Link>,
    /// Model and execution; its cluster and layout are those of every stage in turn. `None` where all stages were measured.
    pub problem: Option<Problem>,
    /// Sequences of a step.
    pub batch: Batch,
    /// How stages exchange messages.
    pub messages: Messages,
    /// A run of days over its steps, where one is asked for.
    pub run: Option<LongRun>,
    /// A node that is slow in the step.
    pub slow_node: Option<SlowNode>,
}

/// A step of a plan.
#[derive(Debug)]
pub struct MixedStep {
    /// As it was played.
    pub played: Played,
    /// What sets the pace.
    pub why: String,
    /// Low and high ends of figures.
    pub intervals: BTreeMap<String, [f64; 2]>,
    /// Figures.
    pub metrics: BTreeMap<String, f64>,
    /// What its computation rests on; nothing where stages were measured.
    pub grounds: Grounds,
    /// The stage with the least memory to spare: stage, replica, bytes needed, bytes there. `None` where stages were measured.
    pub fullest: Option<Fullest>,
}

/// Costs of one card at one end of their interval.
struct AtCase<'c>(&'c dyn CostModel, Case);

impl CostModel for AtCase<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        let estimate = self.0.elementary(op);
        Estimate { time: self.1.of(&estimate), ..estimate }
    }
}

/// Costs of a card that takes so many times as long for what it and its host compute, as the engine has it of a straggler.
struct Slower<'c>(AtCase<'c>, f64);

impl CostModel for Slower<'_> {
    fn elementary(&self, op: &Op) -> Estimate {
        self.0.elementary(op)
    }

    fn estimate(&self, op: &Op) -> Estimate {
        match op {
            Op::Sequence(parts) => {
                let parts = parts.iter().map(|(part, n)| self.estimate(part).times(*n));
                parts.reduce(Estimate::then).unwrap_or_else(|| self.0.estimate(op))
            }
            Op::Collective { .. } | Op::Copy { .. } => self.0.estimate(op),
            computed => self.0.estimate(computed).scaled(self.1),
        }
    }
}

/// What the cards of a group, so many together, take of every stage.
struct OfCards {
    /// Forward and backward, by stage and micro-batch; of one micro-batch where all are alike.
    passes: Vec<Vec<[PassTime; 2]>>,
    /// Step of the optimizer, by stage, seconds.
    updates: Vec<f64>,
}

impl OfCards {
    /// A stage that was measured, which all micro-batches pass alike.
    fn measured(stage: usize, times: Times) -> Self {
        let mut of = Self { passes: vec![Vec::new(); stage + 1], updates: vec![0.0; stage + 1] };
        of.passes[stage].push([times.forward_s, times.backward_s].map(|s| PassTime::computing(span(s))));
        of.updates[stage] = times.update_s;
        of
    }

    fn pass(&self, stage: usize, micro_batch: u32) -> [PassTime; 2] {
        let of_stage = &self.passes[stage];
        of_stage[micro_batch as usize % of_stage.len()]
    }
}

impl Pipelines {
    /// Slots that exchange something, by stage: neighbours of a pipeline, and of a ring over the replicas of a stage.
    fn exchanges(&self) -> Vec<(usize, [Slot; 2])> {
        let mut found = Vec::new();
        for (index, stage) in self.stages.iter().enumerate() {
            for (replica, &slot) in stage.slots.iter().enumerate() {
                found.extend(self.stages.get(index + 1).map(|next| (index, [slot, next.slots[replica]])));
                let next = stage.slots[(replica + 1) % stage.slots.len()];
                found.extend((stage.slots.len() > 1).then_some((index, [slot, next])));
            }
        }
        found
    }

    /// Replicas of all stages, stage by stage; each has one micro-batch where they are not yet shared out.
    fn placed(&self) -> Vec<Placed> {
        let (mut all, mut first) = (Vec::new(), 0);
        for replica in 0..self.stages.first().map_or(0, |stage| stage.slots.len()) {
            let next = first + self.micro_batches.get(replica).copied().unwrap_or(1);
            let of_stage = |(stage, of): (usize, &MixedStage)| Placed {
                stage,
                replica,
                slot: of.slots[replica],
                first_gpu: 0,
                micro_batches: first..next,
            };
            all.extend(self.stages.iter().enumerate().map(of_stage));
            first = next;
        }
        all.sort_by_key(|placed| (placed.stage, placed.replica));
        let mut taken: BTreeMap<usize, u32> = BTreeMap::new();
        for placed in &mut all {
            let taken = taken.entry(placed.slot.group).or_default();
            placed.first_gpu = *taken;
            *taken += placed.slot.n_gpus;
        }
        all
    }

    /// Layers of every stage.
    pub fn layers(&self) -> Vec<u32> {
        self.stages.iter().map(|stage| stage.layers).collect()
    }

    /// Micro-batches of the replica that has most; the least that it can be where they are not yet shared out.
    pub fn most_micro_batches(&self, all: u32) -> u32 {
        let n_replicas = self.stages.first().map_or(1, |stage| stage.slots.len().max(1));
        let even = all.div_ceil(u32::try_from(n_replicas).expect("few replicas"));
        self.micro_batches.iter().copied().max().unwrap_or(even)
    }

    /// GPUs that it takes of a group.
    pub fn n_gpus_of(&self, group: usize) -> u32 {
        let slots = self.stages.iter().flat_map(|stage| &stage.slots);
        slots.filter(|slot| slot.group == group).map(|slot| slot.n_gpus).sum()
    }

    /// GPUs that it takes.
    pub fn n_gpus(&self) -> u32 {
        self.stages.iter().flat_map(|stage| &stage.slots).map(|slot| slot.n_gpus).sum()
    }

    /// The plan in words, as a stage a part: replicas, cards, layers.
    pub fn words(&self, groups: &[Group]) -> String {
        let stage = |stage: &MixedStage| {
            let slots = stage.slots.chunk_by(|a, b| (a.group, a.n_gpus) == (b.group, b.n_gpus));
            let slots = slots.map(|of| format!("{} x {} {}", of.len(), of[0].n_gpus, groups[of[0].group].name));
            let slots = slots.collect::<Vec<_>>().join(" + ");
            if stage.layers > 0 { format!("{} layers on {slots}", stage.layers) } else { slots }
        };
        let stages: Vec<String> = self.stages.iter().map(stage).collect();
        format!("{}; micro-batches {:?}", stages.join(", "), self.micro_batches)
    }
}

impl MixedJob {
    /// The problem as a replica of the stages sees it on a group's cards.
    fn seen_by(&self, plan: &Pipelines, slot: Slot) -> Option<Problem> {
        let mut own = self.problem.clone()?;
        let group = &self.groups[slot.group];
        let n = |n: usize| u32::try_from(n).expect("few stages");
        own.cluster = group.cluster.clone();
        own.layout = Layout {
            tp: slot.n_gpus,
            pp: n(plan.stages.len()),
            // Experts are cut as everything else of a stage, so no rank holds what another one does.
            expert_tp: if own.model.experts.is_some() { slot.n_gpus } else { 1 },
            sequence_parallel: slot.n_gpus > 1,
            ..Layout::data_and_context(1, 1, own.layout.zero, ContextExchange::Gather)
        };
        own.execution.layers = plan.layers();
        own.execution.host_overhead_per_layer = group.host_per_layer;
        own.execution.launches = group.launches;
        own.execution.attention = group.attention;
        own.workload.lengths = self.batch.lengths().to_vec();
        own.workload.batch_size = self.batch.lengths().len();
        Some(own)
    }

    /// The same with all replicas.
    fn of_all(&self, plan: &Pipelines, slot: Slot) -> Option<Problem> {
        let mut own = self.seen_by(plan, slot)?;
        own.layout.dp = u32::try_from(plan.stages[0].slots.len()).expect("few replicas");
        Some(own)
    }

    /// The problem and a plan of one kind as though all stages of all replicas lay on such cards, each replica with these micro-batches.
    fn on_cards_of(&self, plan: &Pipelines, slot: Slot, micro_batches: Vec<MicroBatch>) -> (Problem, Plan) {
        let mut own = self.of_all(plan, slot).expect("there is a problem");
        // The group may have fewer machines than all stages would need.
        let n_nodes = own.layout.n_ranks().div_ceil(own.cluster.gpus_per_node.max(1));
        own.cluster.n_nodes = own.cluster.n_nodes.max(n_nodes);
        let step = Step::of_groups(vec![micro_batches; own.layout.dp as usize]);
        let plan = Plan::new("mixed", &own, vec![step]);
        (own, plan)
    }

    /// The problem as each kind of slot of a plan sees it, with all replicas.
    pub fn problems(&self, plan: &Pipelines) -> Vec<Problem> {
        let slots = plan.stages.iter().flat_map(|stage| &stage.slots).map(|slot| (slot.group, slot.n_gpus));
        let kinds: BTreeSet<(usize, u32)> = slots.collect();
        let seen = kinds.into_iter();
        seen.filter_map(|(group, n_gpus)| self.of_all(plan, Slot { group, n_gpus, times: None })).collect()
    }

    /// Times of all stages on such cards.
    fn of_cards(&self, plan: &Pipelines, slot: Slot, cost: &dyn CostModel) -> OfCards {
        let own = self.seen_by(plan, slot).expect("a stage has a model or times");
        let step = Step::of_groups(vec![self.batch.contents()]);
        let (of_stages, _) = pipelines(&own, &Plan::new("mixed", &own, vec![step]), 0, cost);
        let of = &of_stages[0];
        let (copies, stages) = (self.copies(plan, slot, &own, cost), stages(&own));
        let pass = |stage: usize, at: usize, (kind, copied): (PassKind, f64)| {
            let tokens = self.batch.tokens_of(u32::try_from(at).expect("micro-batches fit u32"));
            let waits = cost.estimate(&Op::Sequence(exchanged(&own, &stages[stage], tokens, kind))).time;
            let (whole, exchanged) = (of.duration(kind, stage, at), Span::from_seconds(waits));
            let computed = Span::from_ns(whole.saturating_sub(exchanged.as_ns()));
            PassTime { computed, exchanged, copied: span(copied) }
        };
        let of_stage = |stage: usize| {
            let both = |at| {
                let [there, back] = copies[stage][at];
                [(PassKind::Forward, there), (PassKind::Backward, back)].map(|of| pass(stage, at, of))
            };
            (0..of.n_micro_batches).map(both).collect()
        };
        OfCards {
            passes: (0..stages.len()).map(of_stage).collect(),
            updates: updates(&own, plan.micro_batches.len(), cost),
        }
    }

    /// What a stage exchanges: of a message the bytes of a token, where a model says so.
    fn sizes(&self, plan: &Pipelines, stage: usize) -> Sizes {
        if let Some(sizes) = plan.stages[stage].sizes {
            return sizes;
        }
        let own = self
            .seen_by(plan, Slot { n_gpus: 1, ..plan.stages[stage].slots[0] })
            .expect("a stage has a model or sizes");
        let (shared, experts) = engine::memory::stage_parameters(&own.shard(), &stages(&own)[stage]);
        // Gradients of adapters are not exchanged in kind `training` either: they are below a hundredth of the model's.
        let trained = if own.execution.trains_weights() { shared + experts } else { 0.0 };
        let gradients = trained * hw::real(own.execution.gradient_dtype.bytes());
        let is_cut = own.layout.zero >= Zero::OptimizerStates;
        Sizes {
            message: hw::real(own.model.hidden) * hw::real(own.dtype.bytes()),
            gradients,
            gathered: if is_cut { trained * own.gathered_bytes() } else { gradients },
        }
    }

    /// Bytes of a micro-batch's message between two stages.
    fn message_bytes(&self, of_stage: &MixedStage, sizes: Sizes, micro_batch: u32) -> f64 {
        let n_tokens = if of_stage.sizes.is_some() { 1 } else { self.batch.tokens_of(micro_batch) };
        sizes.message * hw::real(n_tokens)
    }

    /// A plan as a step of timed stages, with the dollars of what crosses links.
    ///
    /// # Errors
    /// When it joins zones without a link.
    pub fn step(
        &self,
        plan: &Pipelines,
        costs: &[Box<dyn CostModel>],
        case: Case,
    ) -> Result<(TimedStep, f64), Unlinked> {
        let sizes: Vec<Sizes> = (0..plan.stages.len()).map(|stage| self.sizes(plan, stage)).collect();
        let (placed, n_replicas) = (plan.placed(), plan.micro_batches.len());
        let priced = Priced { costs, case };
        let (mut replicas, mut usd) = (Vec::with_capacity(n_replicas), 0.0);
        // Replicas on as many GPUs of one group take as long, but for those on a slow node.
        let mut known: BTreeMap<(usize, u32, bool), OfCards> = BTreeMap::new();
        let (slowed, rate) = (self.slowed(plan), self.slow_node.map_or(1.0, |slow| slow.rate));
        for (index, &n_micro_batches) in plan.micro_batches.iter().enumerate() {
            let mut replica = Replica { stages: Vec::new(), n_micro_batches, own: Vec::new() };
            for (stage, of_stage) in plan.stages.iter().enumerate() {
                let here = &placed[stage * n_replicas + index];
                let slot = here.slot;
                let is_slow = slowed.contains(&(stage, index));
                let cost = Slower(AtCase(costs[slot.group].as_ref(), case), if is_slow { rate } else { 1.0 });
                let computed = || self.of_cards(plan, slot, &cost);
                let measured = slot.times.map(|times| OfCards::measured(stage, times));
                let of = match &measured {
                    Some(measured) => measured,
                    None => known.entry((slot.group, slot.n_gpus, is_slow)).or_insert_with(computed),
                };
                let next = placed.get((stage + 1) * n_replicas + index);
                let passed = self.passed(of_stage, (here, next), (of, sizes[stage]), &priced)?;
                usd += passed.usd;
                replica.stages.push(passed.stage);
                replica.own.push(passed.own);
            }
            if self.batch.is_alike() {
                replica.own.clear();
            }
            replicas.push(replica);
        }
        let mut step =
            TimedStep { replicas, reductions: vec![], gathers: vec![], tied: Span::ZERO, messages: self.messages };
        for (stage, sizes) in sizes.iter().enumerate() {
            let members: Vec<&Placed> = placed.iter().filter(|placed| placed.stage == stage).collect();
            let ops = |seen: &Placed| self.around_update(plan, (stage, sizes), (seen, &members));
            let ([reduced, gathered], dollars) =
                self.together(&members, [sizes.gradients, sizes.gathered], &ops, &priced)?;
            let is_cut = self.problem.as_ref().is_some_and(|problem| problem.layout.zero >= Zero::OptimizerStates);
            step.reductions.push(if is_cut { reduced } else { reduced + gathered });
            step.gathers.push(if is_cut { gathered } else { Span::ZERO });
            usd += dollars;
        }
        let (tied, dollars) = self.tied(plan, &placed, &priced)?;
        step.tied = tied;
        Ok((step, usd + dollars))
    }

    /// Micro-batches of a replica on one of its stages, each with its message to the next one.
    fn passed(
        &self,
        of_stage: &MixedStage,
        (here, next): (&Placed, Option<&Placed>),
        (of, sizes): (&OfCards, Sizes),
        priced: &Priced<'_>,
    ) -> Result<Passed, Unlinked> {
        let micro_batches = here.micro_batches.clone();
        let n_played = if self.batch.is_alike() { 1 } else { micro_batches.len() };
        let (mut own, mut sent_usd) = (Vec::with_capacity(n_played), 0.0);
        let mut known: BTreeMap<u64, (Message, f64)> = BTreeMap::new();
        for micro_batch in micro_batches.clone().take(n_played) {
            let [forward, backward] = of.pass(here.stage, micro_batch);
            let mut message = Message::default();
            if let Some(next) = next {
                let bytes = self.message_bytes(of_stage, sizes, micro_batch);
                let usd;
                (message, usd) = match known.get(&bytes.to_bits()) {
                    Some(known) => *known,
                    None => self.message([here, next], bytes, priced)?,
                };
                known.insert(bytes.to_bits(), (message, usd));
                sent_usd += 2.0 * usd;
            }
            own.push(PassTimes { forward, backward, message });
        }
        let update = span(of.updates[here.stage]);
        let stage = StageTimes { n_gpus: here.slot.n_gpus, passes: PassTimes::mean(&own), update };
        let times_each = hw::real((micro_batches.len() / n_played.max(1)) as u64);
        Ok(Passed { stage, own, usd: sent_usd * times_each })
    }

    /// Plays a plan, with costs of every group.
    ///
    /// # Errors
    /// When it joins zones without a link.
    pub fn played(&self, plan: &Pipelines, costs: &[Box<dyn CostModel>]) -> Result<MixedStep, Unlinked> {
        let (step, link_usd) = self.step(plan, costs, Case::Expected)?;
        let played = step.played();
        let step_s = played.timeline.span().to_seconds().get();
        let end = |case| self.step(plan, costs, case).map(|(step, _)| step.span().to_seconds().get());
        let [low, high] = [end(Case::Low)?, end(Case::High)?];
        let interval_s = [low.min(step_s * UNEXPLAINED[0]), high.max(step_s * UNEXPLAINED[1])];
        let (fullest, on_host) = (self.fullest(plan), self.fullest_host(plan));
        let mut metrics = self.metrics(plan, &step, step_s, link_usd, fullest);
        metrics.extend(on_host.figure());
        Ok(MixedStep {
            why: [Some(step.why()), on_host.words()].into_iter().flatten().collect::<Vec<_>>().join("; "),
            intervals: BTreeMap::from([("iteration_time_s".to_owned(), interval_s)]),
            metrics,
            grounds: self.grounds(plan, costs),
            fullest,
            played,
        })
    }

    /// Dollars of a step on so many GPUs of every group: GPUs by the hour, and what crosses links.
    pub fn usd_of_step(&self, n_gpus: &[u32], step_s: f64, link_usd: f64) -> f64 {
        let per_hour = |(group, &n_gpus): (&Group, &u32)| f64::from(n_gpus) * group.usd_per_gpu_hour;
        let usd_per_hour: f64 = self.groups.iter().zip(n_gpus).map(per_hour).sum();
        usd_per_hour / 3600.0 * step_s + link_usd
    }

    fn metrics(
        &self,
        plan: &Pipelines,
        step: &TimedStep,
        step_s: f64,
        link_usd: f64,
        fullest: Option<Fullest>,
    ) -> BTreeMap<String, f64> {
        let n_gpus = f64::from(plan.n_gpus());
        let tokens = hw::real(self.batch.tokens());
        let around_update = step.reductions.iter().zip(&step.gathers).map(|(reduced, gathered)| *reduced + *gathered);
        let reduction = (around_update.max().unwrap_or_default() + step.tied).to_seconds().get();
        let mut all = vec![
            ("iteration_time_s", step_s),
            ("tokens_per_s", tokens / step_s),
            ("tokens_per_s_per_gpu", tokens / step_s / n_gpus),
            ("compute_busy_ratio", step.computed_gpu_s() / (step_s * n_gpus)),
            ("gradient_reduction_ratio", reduction / step_s),
            ("n_gpus", n_gpus),
        ];
        let usd = self.usd_of_step(&self.n_gpus(plan), step_s, link_usd);
        if usd > 0.0 {
            all.push(("cost_usd_per_step", usd));
            all.push(("cost_usd_per_mtok", usd / tokens * 1e6));
            all.push(("tokens_per_usd", tokens / usd));
            all.push(("link_usd_per_step", link_usd));
        }
        if let Some(fullest) = fullest {
            all.push(("peak_memory_bytes", fullest.bytes));
            all.push(("free_memory_bytes_min", fullest.device_bytes - fullest.bytes));
        }
        all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// A stage of a replica with its micro-batches.
struct Passed {
    stage: StageTimes,
    own: Vec<PassTimes>,
    /// Dollars of their messages.
    usd: f64,
}

fn span(seconds: f64) -> Span {
    Span::from_seconds(Seconds::new(seconds))
}

/// Steps of the optimizer of every stage, whose states so many replicas share, seconds. Adapters have none of note, as in kind `training`.
fn updates(own: &Problem, n_replicas: usize, cost: &dyn CostModel) -> Vec<f64> {
    let layout = Layout { dp: u32::try_from(n_replicas).expect("few replicas"), ..own.layout };
    let tensor = own.cluster.shape_of(&tensor_group(own, Position::default()));
    let dealt = Dealt::over(&layout, tensor);
    let of_stage = |stage| {
        let (ops, _) = update(own, &[stage], &dealt);
        cost.estimate(&Op::Sequence(ops)).time.get()
    };
    let all = stages(own).into_iter();
    all.map(|stage| if own.execution.trains_weights() { of_stage(stage) } else { 0.0 }).collect()
}
