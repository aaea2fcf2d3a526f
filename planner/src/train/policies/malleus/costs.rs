//! What a layer takes and holds on a tensor group: by the scenario's cost model and memory, or as the authors profiled it.
//!
//! A group of n healthy GPUs takes α(n) times what a full group takes for a layer. With published coefficients a straggler of rate x makes that
//! x times as much (y = α · max x); with the scenario's own only computation takes x times as long, exchanges inside the group do not, and
//! the embedding and the head count as well. The time of a layer on a full group is the scenario's in both cases: the authors publish α and
//! memory, not times. A pipeline of m micro-batches takes m · o, its slowest stage, and, where filling is counted, the other stages once. Behind them gradients
//! are reduced and parameters gathered over all pipelines, as many as the fullest rank holds (`train::lower::training::mixed`). Gradients go in pieces
//! beside the last backward, two thirds of o. That is counted with the filling, by the scenario's own coefficients.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use engine::task::Collective;
use engine::{CostModel, Op};
use serde::Deserialize;
use train::layout::{Position, Zero};
use train::lower::training::mixed::{exchanges_of, own_states, shaped, shares};
use train::lower::training::{GRADIENT_BUCKETS, Parts, parts};
use train::plan::{MicroBatch, PipelineShape, Place, Placement};
use train::problem::GradientSync;
use train::stage::Stage;
use train::{Problem, memory};

const MIB: f64 = 1_048_576.0;

/// What the authors profiled for one model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedModel {
    name: String,
    /// Tensor degree of a full group.
    pub(super) tp: u32,
    alpha: Vec<f64>,
    layer_mib: Vec<f64>,
    end_mib: f64,
    fixed_mib: f64,
    memory_mib: f64,
    gap_mib: f64,
}

/// A published model by name.
pub(super) fn published(name: &str) -> Option<&'static PublishedModel> {
    static ALL: OnceLock<Vec<PublishedModel>> = OnceLock::new();
    let all =
        ALL.get_or_init(|| crate::published::models(include_str!("../../../../../profiles/published/malleus.toml")));
    all.iter().find(|model| model.name == name)
}

/// What something takes on healthy GPUs, forward and backward of a micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seconds {
    all: f64,
    /// Part of it that a straggler slows.
    compute: f64,
}

impl Seconds {
    /// With a straggler of this rate in the group.
    const fn at(self, rate: f64) -> f64 {
        self.all + (rate - 1.0) * self.compute
    }

    const fn slowed(all: f64) -> Self {
        Self { all, compute: all }
    }
}

/// Costs of a tensor degree.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Degree {
    layer: Seconds,
    /// The embedding.
    first: Seconds,
    /// The head.
    last: Seconds,
    /// Parameters of a rank: of a layer, the embedding and the head.
    parameters: [f64; 3],
    room: Room,
}

/// Seconds of a collective by the parameters of the fullest rank: a line through the least and the most that it may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    start: f64,
    each: f64,
}

impl Line {
    fn through([least, most]: [f64; 2], seconds: impl Fn(f64) -> f64) -> Self {
        let (low, high) = (seconds(least), seconds(most));
        let each = if most > least { (high - low) / (most - least) } else { 0.0 };
        Self { start: low - each * least, each }
    }

    fn at(self, parameters: f64) -> f64 {
        self.start + self.each * parameters
    }
}

/// What follows the passes of pipelines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Exchanges {
    /// One piece of the gradients.
    reduce: Line,
    /// Pieces.
    n_pieces: u32,
    gather: Line,
}

/// Share of a stage's time that backward takes.
const BACKWARD: f64 = 2.0 / 3.0;

/// Memory of a rank of a group, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Room {
    /// For layers, embedding and head.
    free: f64,
    /// Model states of a layer.
    layer: f64,
    /// Activations of a layer and micro-batch in flight.
    in_flight: f64,
    /// The embedding.
    first: f64,
    /// The head.
    last: f64,
}

/// Costs of every degree that a full group can be split into.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Costs {
    /// Tensor degree of a full group.
    pub(super) tp: u32,
    /// Layers of the model.
    pub(super) n_layers: u64,
    /// Whether the filling of pipelines counts.
    counts_fill: bool,
    /// States that are cut over all ranks, together, bytes; 0 where published memory counts them.
    cut_bytes: f64,
    /// Ranks that hold them.
    n_ranks: u32,
    degrees: BTreeMap<u32, Degree>,
    /// What follows the layout's own pipelines, and pipelines of other shapes; `None` where it does not count.
    exchanges: Option<[Exchanges; 2]>,
    /// Published memory of a layer by stage, bytes on a GPU of a full group, the last entry for the last stage.
    layer_bytes: Vec<f64>,
}

/// A stage's place in its pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    /// Position along the path.
    pub(super) index: usize,
    /// Stages.
    pub(super) n_stages: usize,
}

impl At {
    const fn is_first(self) -> bool {
        self.index == 0
    }

    const fn is_last(self) -> bool {
        self.index + 1 == self.n_stages
    }
}

impl Costs {
    /// Costs of a problem's layout: with `published` constants, or its own with `gap` bytes of memory left free.
    pub(super) fn new(problem: &Problem, cost: &dyn CostModel, of: Option<&PublishedModel>, gap: f64) -> Self {
        let tp = problem.layout.tp;
        let halvings = std::iter::successors(Some(tp), |degree| degree.is_multiple_of(2).then(|| degree / 2));
        let cuts = |degree: &u32| problem.layout.cuts(&problem.model, *degree);
        let mut degrees: BTreeMap<u32, Degree> =
            halvings.filter(cuts).map(|degree| (degree, own(problem, degree, cost, gap))).collect();
        let full_s = degrees.get(&tp).map_or(0.0, |full| full.layer.all);
        for (&degree, costs) in &mut degrees {
            let share = f64::from(tp) / f64::from(degree);
            if let Some(of) = of {
                let alpha = of.alpha.get((tp / degree).ilog2() as usize).copied().unwrap_or(share);
                let free = (of.memory_mib - of.gap_mib - of.fixed_mib) * MIB;
                let end = of.end_mib * MIB * share;
                let room = Room { free, layer: share, in_flight: 0.0, first: end, last: end };
                let none = Seconds::default();
                *costs = Degree { layer: Seconds::slowed(full_s * alpha), first: none, last: none, room, ..*costs };
            }
            if full_s <= 0.0 {
                // Nothing takes time: degrees count as linear.
                costs.layer = Seconds::slowed(share);
            }
        }
        let layer_bytes = of.map_or_else(Vec::new, |of| of.layer_mib.iter().map(|mib| mib * MIB).collect());
        let cut = shares(problem, 1).total().as_f64();
        Self {
            tp,
            n_layers: problem.model.n_layers,
            counts_fill: true,
            cut_bytes: if of.is_some() { 0.0 } else { cut },
            n_ranks: problem.layout.n_ranks(),
            exchanges: of.is_none().then(|| exchanges(problem, cost)),
            degrees,
            layer_bytes,
        }
    }

    /// Ranks that hold the states that are cut over all of them.
    pub(super) const fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Tensor degrees, smallest first.
    pub(super) fn degrees(&self) -> impl Iterator<Item = u32> + '_ {
        self.degrees.keys().copied()
    }

    /// The same without the filling of pipelines, as the authors' objective is.
    pub(super) fn without_fill(self) -> Self {
        Self { counts_fill: false, exchanges: None, ..self }
    }

    /// Seconds of a layer on a group of a degree and rate, one micro-batch forward and backward.
    pub(super) fn layer_s(&self, degree: u32, rate: f64) -> f64 {
        self.degrees[&degree].layer.at(rate)
    }

    /// What a stage takes besides its layers.
    pub(super) fn end_s(&self, degree: u32, rate: f64, at: At) -> f64 {
        let of = &self.degrees[&degree];
        let first = if at.is_first() { of.first.at(rate) } else { 0.0 };
        first + if at.is_last() { of.last.at(rate) } else { 0.0 }
    }

    /// What a pipeline takes besides its micro-batches on the slowest stage: the others once, to fill and to drain.
    pub(super) fn fill_s(&self, slowest_s: f64, all_s: f64) -> f64 {
        if self.counts_fill { all_s - slowest_s } else { 0.0 }
    }

    /// Parameters of a rank of a stage with so many layers.
    pub(super) fn parameters(&self, degree: u32, layers: u64, at: At) -> f64 {
        let [layer, first, last] = self.degrees[&degree].parameters;
        let first = if at.is_first() { first } else { 0.0 };
        hw::real(layers) * layer + first + if at.is_last() { last } else { 0.0 }
    }

    /// What follows the passes of pipelines, the layout's own or others, whose fullest rank holds so many parameters and whose slowest stage takes
    /// so long. A piece of gradients is ready when its part of the last backward is.
    pub(super) fn exchange_s(&self, is_uniform: bool, parameters: f64, slowest_s: f64) -> f64 {
        let Some(of) = &self.exchanges else { return 0.0 };
        let Exchanges { reduce, n_pieces, gather } = of[usize::from(!is_uniform)];
        let (piece_s, n) = (reduce.at(parameters), f64::from(n_pieces));
        let beside_s = (n - 1.0) / n * BACKWARD * slowest_s;
        piece_s.max(n * piece_s - beside_s) + gather.at(parameters)
    }

    /// No plan gathers sooner, seconds: some rank holds an even share of the parameters.
    pub(super) fn least_gather_s(&self) -> f64 {
        let Some(all) = &self.exchanges else { return 0.0 };
        let of_degree = |(&degree, of): (&u32, &Degree)| {
            let [layer, first, last] = of.parameters;
            f64::from(degree) * (hw::real(self.n_layers) * layer + first + last)
        };
        let least = self.degrees.iter().map(of_degree).fold(f64::INFINITY, f64::min) / f64::from(self.n_ranks);
        all.iter().map(|of| of.gather.at(least)).fold(f64::INFINITY, f64::min)
    }

    /// No pipeline is filled and drained sooner, seconds: every layer, the embedding and the head once on healthy groups.
    pub(super) fn least_fill_s(&self) -> f64 {
        let least = |of: &dyn Fn(&Degree) -> f64| self.degrees.values().map(of).fold(f64::INFINITY, f64::min);
        let layers = hw::real(self.n_layers) * least(&|degree| degree.layer.all);
        let ends = least(&|degree| degree.first.all) + least(&|degree| degree.last.all);
        if self.counts_fill { layers + ends } else { 0.0 }
    }

    /// Whether the filling of pipelines counts.
    pub(super) const fn counts_fill(&self) -> bool {
        self.counts_fill
    }

    /// The same where states are cut over fewer ranks.
    pub(super) fn on(&self, n_ranks: u32) -> Self {
        let mut costs = self.clone();
        let more = self.cut_bytes * (1.0 / f64::from(n_ranks.max(1)) - 1.0 / f64::from(self.n_ranks));
        costs.degrees.values_mut().for_each(|degree| degree.room.free -= more);
        costs.n_ranks = n_ranks;
        costs
    }

    /// Layers that a stage has memory for.
    pub(super) fn cap(&self, degree: u32, at: At) -> u64 {
        let room = &self.degrees[&degree].room;
        let first = if at.is_first() { room.first } else { 0.0 };
        let last = if at.is_last() { room.last } else { 0.0 };
        // A single stage has both ends, which the authors count once; here they count for what they are.
        let free = (room.free - first - last).max(0.0);
        let from_end = at.n_stages - 1 - at.index;
        let per_layer = match self.layer_bytes.len().checked_sub(1) {
            Some(last) => room.layer * self.layer_bytes[last.saturating_sub(from_end)],
            // 1F1B: a stage holds a micro-batch for every stage from itself to the end.
            None => room.layer + room.in_flight * hw::real(from_end as u64 + 1),
        };
        if per_layer <= 0.0 { self.n_layers } else { hw::whole((free / per_layer).floor()).min(self.n_layers) }
    }
}

/// What follows the passes of the layout's own pipelines, and of others.
fn exchanges(problem: &Problem, cost: &dyn CostModel) -> [Exchanges; 2] {
    let layout = &problem.layout;
    let members: Vec<hw::Rank> = (0..layout.dp).map(|dp| layout.rank(Position { dp, ..Position::default() })).collect();
    if members.len() < 2 || !problem.execution.trains_weights() {
        return [Exchanges { n_pieces: 1, ..Exchanges::default() }; 2];
    }
    let n_pieces = if problem.gradient_sync() == GradientSync::AtEnd { 1 } else { GRADIENT_BUCKETS };
    let all = hw::real(problem.model.n_parameters());
    let line = |of: usize, kind: Option<Collective>| {
        Line::through([all / f64::from(layout.n_ranks()), all], |parameters| {
            let op = match (exchanges_of(problem, parameters, &members, n_pieces)[of].clone(), kind) {
                (Op::Collective { bytes, shape, .. }, Some(kind)) => Op::Collective { kind, bytes, shape },
                (op, _) => op,
            };
            cost.estimate(&op).time.get()
        })
    };
    let of_others = Exchanges { reduce: line(0, None), n_pieces, gather: line(1, None) };
    let of_own = match (layout.zero, problem.execution.overlap.parameter_gather) {
        (Zero::Off, _) => {
            Exchanges { reduce: line(0, Some(Collective::AllReduce)), gather: Line::default(), ..of_others }
        }
        (_, true) => Exchanges { gather: Line::default(), ..of_others },
        _ => of_others,
    };
    [of_own, of_others]
}

/// Costs of a degree by the scenario's own models, for a micro-batch of the mean sequence.
fn own(problem: &Problem, degree: u32, cost: &dyn CostModel, gap: f64) -> Degree {
    let part = shaped(problem, PipelineShape { tp: degree, pp: 1 }, 1);
    let lengths = &problem.workload.lengths;
    let mean = lengths.iter().sum::<u64>().div_ceil((lengths.len() as u64).max(1));
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let placement = Placement { sequence: 0, from: 0, tokens: mean, place: Place::Local(0) };
    let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
    let load = train::experts::mean(&part);
    let times = parts(&part, &micro_batch, load, cost);
    let mut alone = part.clone();
    // With all of it behind computation, nothing of the group's exchange is left.
    alone.execution.overlap.tensor = 1.0;
    let compute = parts(&alone, &micro_batch, load, cost);
    let sum = |all: [f64; 3], compute: [f64; 3]| Seconds { all: all.iter().sum(), compute: compute.iter().sum() };
    let layer = |parts: &Parts| parts.layer(part.model.experts.is_some());
    let parameters = |n_layers, first, last| {
        let (shared, experts) = engine::memory::stage_parameters(&part.shard(), &stage(&part, n_layers, first, last));
        shared + experts
    };
    Degree {
        layer: sum(layer(&times), layer(&compute)),
        first: sum(times.first, compute.first),
        last: sum(times.last, compute.last),
        parameters: [parameters(1, false, false), parameters(0, true, false), parameters(0, false, true)],
        room: room(problem, &part, longest, gap),
    }
}

/// A stage of layers that are all alike, with or without experts.
pub(super) fn stage(problem: &Problem, n_layers: u32, first: bool, last: bool) -> Stage {
    let [n_dense, n_expert] = if problem.model.experts.is_some() { [0, n_layers] } else { [n_layers, 0] };
    Stage { n_dense, n_expert, first, last, ..Stage::default() }
}

/// Memory of a rank, for micro-batches of so many tokens; what is cut over all ranks is so over those of the layout.
fn room(problem: &Problem, part: &Problem, tokens: u64, gap: f64) -> Room {
    let stage = |n_layers, first, last| stage(part, n_layers, first, last);
    // A layer among few that recompute counts as one that keeps everything.
    let (layer, again) = (
        stage(1, false, false),
        stage(1, false, false).recomputing(part.execution.recompute, part.execution.recompute_layers),
    );
    let of_all = u64::from(part.execution.recompute_layers) >= part.model.n_layers;
    let held = if of_all { again } else { layer };
    let states = |stage: &Stage| {
        let held = own_states(problem, memory::states(part, &[*stage]));
        held.parameters.as_f64() + held.gradients.as_f64()
    };
    let bytes = |per_token: u64| hw::real(per_token * tokens);
    let made = engine::memory::activation_bytes_per_token(&part.shard(), &held);
    let passing = engine::memory::working_bytes_per_token(&part.shard(), &again)
        + engine::memory::buffer_bytes_per_token(&part.shard(), &layer)
        + memory::in_passing(part, &layer, made * u64::from(memory::LAYERS_IN_PASSING));
    let fixed = problem.reserved_memory.as_f64()
        + shares(problem, problem.layout.n_ranks()).total().as_f64()
        + bytes(passing)
        + gap;
    Room {
        free: problem.cluster.gpu.memory.as_f64() - fixed,
        layer: states(&layer),
        in_flight: bytes(memory::on_device(part, engine::memory::activation_bytes_per_token(&part.shard(), &held))),
        first: states(&stage(0, true, false)),
        last: states(&stage(0, false, true)) + bytes(engine::memory::logit_bytes_per_token(&part.shard())),
    }
}
