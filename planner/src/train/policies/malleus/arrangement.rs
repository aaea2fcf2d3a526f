//! A plan of the whole job: pipelines with their tensor groups, layers and micro-batches; which concrete group takes which stage.
//!
//! The uniform arrangement is the layout's. For a division, every stage takes a group of its class; groups that hold most of a stage's slices
//! already come first, so that little moves (`migration.rs`).

use hw::Rank;
use train::layout::Position;
use train::plan::PlacedStage;
use train::stage::{Stage as Held, stages};
use train::straggler::Rates;
use train::{Problem, plan};

use super::costs::{At, Costs};
use super::division::{Class, Divided};
use super::grouping::Group;

/// A stage on concrete devices.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stage {
    /// Devices in the order of their slices.
    pub(super) ranks: Vec<Rank>,
    /// Layers before it.
    pub(super) from_layer: u64,
    /// Its layers.
    pub(super) layers: u64,
}

/// A pipeline.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pipeline {
    pub(super) stages: Vec<Stage>,
    pub(super) micro_batches: u64,
}

/// All pipelines of the job.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrangement {
    pub(super) pipelines: Vec<Pipeline>,
    /// Whether it is the layout's.
    pub(super) is_uniform: bool,
}

/// Micro-batches dealt in turn.
pub(super) fn dealt(n: u64, n_pipelines: usize) -> Vec<u64> {
    let n_pipelines = n_pipelines as u64;
    (0..n_pipelines).map(|at| n / n_pipelines + u64::from(at < n % n_pipelines)).collect()
}

impl Arrangement {
    /// The layout's own.
    pub(super) fn uniform(problem: &Problem, n_micro_batches: u64) -> Self {
        let layout = &problem.layout;
        let held: Vec<u64> = stages(problem).iter().map(|stage: &Held| u64::from(stage.n_layers())).collect();
        let pipeline = |(dp, micro_batches): (u32, u64)| {
            let groups = (0..layout.pp)
                .map(|pp| (0..layout.tp).map(|tp| layout.rank(Position { tp, cp: 0, dp, pp })).collect::<Vec<Rank>>());
            Pipeline { stages: laid(groups.zip(held.iter().copied())), micro_batches }
        };
        let counts = dealt(n_micro_batches, layout.dp as usize);
        Self { pipelines: (0..layout.dp).zip(counts).map(pipeline).collect(), is_uniform: true }
    }

    /// A division on concrete groups; `old` holds slices already.
    pub(super) fn of(divided: &Divided, classes: &[Class], groups: &[Group], old: &Self) -> Self {
        let mut slots: Vec<Slot> = Vec::new();
        for (pipeline, layers) in divided.pipelines.iter().enumerate() {
            let mut from = 0;
            for &(class, n) in &layers.stages {
                slots.push(Slot { pipeline, class, from, layers: n });
                from += n;
            }
        }
        let taken = matched(&slots, classes, groups, old);
        let mut pipelines: Vec<Pipeline> =
            divided.micro_batches.iter().map(|&micro_batches| Pipeline { stages: Vec::new(), micro_batches }).collect();
        for (slot, group) in slots.iter().zip(taken) {
            let stage = Stage { ranks: groups[group].ranks.clone(), from_layer: slot.from, layers: slot.layers };
            pipelines[slot.pipeline].stages.push(stage);
        }
        // A pipeline without a micro-batch computes nothing.
        pipelines.retain(|pipeline| pipeline.micro_batches > 0);
        Self { pipelines, is_uniform: false }
    }

    /// Slowest pipeline under these rates, seconds: micro-batches times the slowest stage, and the filling and what follows where that counts.
    pub(super) fn predicted_s(&self, costs: &Costs, rates: &Rates) -> f64 {
        let (mut most_s, mut slowest_of_all_s, mut widest) = (0.0_f64, 0.0_f64, 0.0_f64);
        for pipeline in &self.pipelines {
            let n_stages = pipeline.stages.len();
            let mut stages: Vec<f64> = Vec::with_capacity(n_stages);
            for (index, stage) in pipeline.stages.iter().enumerate() {
                let (degree, at) = (u32::try_from(stage.ranks.len()).expect("ranks fit u32"), At { index, n_stages });
                let rate = rates.slowest(stage.ranks.iter().copied());
                let layers_s = costs.layer_s(degree, rate) * hw::real(stage.layers);
                stages.push(layers_s + costs.end_s(degree, rate, at));
                widest = widest.max(costs.parameters(degree, stage.layers, at));
            }
            let slowest_s = stages.iter().copied().fold(0.0, f64::max);
            let all_s = slowest_s * hw::real(pipeline.micro_batches) + costs.fill_s(slowest_s, stages.iter().sum());
            (most_s, slowest_of_all_s) = (most_s.max(all_s), slowest_of_all_s.max(slowest_s));
        }
        most_s + costs.exchange_s(self.is_uniform, widest, slowest_of_all_s)
    }

    /// Stages of all pipelines.
    pub(super) fn stages(&self) -> impl Iterator<Item = &Stage> {
        self.pipelines.iter().flat_map(|pipeline| &pipeline.stages)
    }

    /// Whether a device has a stage.
    pub(super) fn uses(&self, rank: Rank) -> bool {
        self.stages().any(|stage| stage.ranks.contains(&rank))
    }

    /// Devices in use.
    pub(super) fn n_ranks(&self) -> usize {
        self.stages().map(|stage| stage.ranks.len()).sum()
    }

    /// As a plan has it; empty for the layout's own.
    pub(super) fn placed(&self) -> Vec<Vec<PlacedStage>> {
        if self.is_uniform {
            return Vec::new();
        }
        let stage = |stage: &Stage| plan::PlacedStage {
            ranks: stage.ranks.iter().map(|rank| rank.0).collect(),
            layers: u32::try_from(stage.layers).expect("layers fit u32"),
        };
        self.pipelines.iter().map(|pipeline| pipeline.stages.iter().map(stage).collect()).collect()
    }
}

/// Stages one after another.
pub(super) fn laid(groups: impl Iterator<Item = (Vec<Rank>, u64)>) -> Vec<Stage> {
    let mut from_layer = 0;
    groups
        .map(|(ranks, layers)| {
            let stage = Stage { ranks, from_layer, layers };
            from_layer += layers;
            stage
        })
        .collect()
}

/// A stage that a group of some class is to take.
struct Slot {
    pipeline: usize,
    class: usize,
    from: u64,
    layers: u64,
}

/// Group of every slot: the pairs that share most slices with the old arrangement first.
fn matched(slots: &[Slot], classes: &[Class], groups: &[Group], old: &Arrangement) -> Vec<usize> {
    let is_of =
        |group: &Group, class: &Class| group.degree() == class.degree && group.rate.to_bits() == class.rate.to_bits();
    let held: Vec<Option<&Stage>> =
        groups.iter().map(|group| old.stages().find(|stage| stage.ranks.contains(&group.ranks[0]))).collect();
    let mut pairs: Vec<(u64, usize, usize)> = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        for (index, group) in groups.iter().enumerate().filter(|(_, group)| is_of(group, &classes[slot.class])) {
            let shared = held[index].map_or(0, |stage| {
                let upto = (stage.from_layer + stage.layers).min(slot.from + slot.layers);
                let whole = if stage.ranks == group.ranks { 2 } else { 1 };
                whole * upto.saturating_sub(stage.from_layer.max(slot.from))
            });
            pairs.push((shared, at, index));
        }
    }
    pairs.sort_by(|a, b| b.0.cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut of_slot, mut is_taken) = (vec![None; slots.len()], vec![false; groups.len()]);
    for (_, slot, group) in pairs {
        if of_slot[slot].is_none() && !is_taken[group] {
            (of_slot[slot], is_taken[group]) = (Some(group), true);
        }
    }
    of_slot.into_iter().map(|group| group.expect("a division takes no more groups than there are")).collect()
}
