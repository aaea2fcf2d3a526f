//! The contract's figures, computed from played steps and the problem only; one definition each (`docs/output.md`).
//!
//! Units are in the keys. Ratios are shares of the step, averaged over ranks and steps unless a key says otherwise.

use std::collections::BTreeMap;

pub mod causes;
mod copies;
mod energy;
mod flops;
mod peak;
mod shares;
pub mod unexplained;

use crate::experts::{self, ExpertLoad};
use crate::host_memory;
use crate::problem::Problem;
use energy::Energy;
use engine::cost::provenance::{Provenance, what_of};
use engine::cost::{CostModel, Source};
use engine::task::{Op, Role, Stream, Task, TaskGraph};
use engine::timeline::Timeline;
pub use flops::op_flops;
use hw::power;
pub(crate) use peak::most_held;
use shares::{EXPOSABLE, Shares};
use unexplained::Parts;

/// Figures of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Contract keys.
    pub values: BTreeMap<String, f64>,
    /// What dominates the step, in words.
    pub why: String,
    /// Weakest source among the estimates.
    pub source: Source,
    /// What share of computation comes from where, and lies outside the measured hull.
    pub provenance: Provenance,
    /// What it rests on, for the interval of a step.
    pub parts: Parts,
}

impl Metrics {
    /// Time of a step, seconds.
    pub fn step_s(&self) -> f64 {
        self.values["iteration_time_s"]
    }
}

/// A played step.
#[derive(Clone, Debug)]
pub struct Played {
    /// Tasks.
    pub graph: TaskGraph,
    /// When they ran.
    pub timeline: Timeline,
}

/// Metrics over all played steps.
///
/// # Panics
/// When no step was played.
pub fn of_steps(problem: &Problem, steps: &[Played], cost: &dyn CostModel) -> Metrics {
    assert!(!steps.is_empty(), "a job has at least one step");
    let n_steps = f64_of(steps.len());
    let n_ranks = f64::from(problem.layout.n_ranks());
    let shares = Shares::mean(&steps.iter().map(Shares::of).collect::<Vec<_>>());
    let iteration = steps.iter().map(|step| step.timeline.span().to_seconds().get()).sum::<f64>() / n_steps;
    let tokens = problem.workload.lengths.iter().map(|&length| hw::real(length)).sum::<f64>() / n_steps;
    let [model_flops, recomputed] = flops::of(problem).map(|flops| flops / n_steps);
    let device_flops = problem.cluster.gpu.peak(problem.dtype).get() * n_ranks * iteration;
    let peaks = peak::of_steps(steps);
    let work = Work::of(steps, cost);
    let mut values = BTreeMap::new();
    let mut put = |key: &str, value: f64| {
        assert!(value.is_finite(), "metric `{key}` must be finite, found {value}");
        values.insert(key.to_owned(), value);
    };
    put("iteration_time_s", iteration);
    put("tokens_per_s", tokens / iteration);
    put("tokens_per_s_per_gpu", tokens / iteration / n_ranks);
    if problem.execution.unit_times.is_none() {
        put("mfu_ratio", model_flops / device_flops);
        put("hfu_ratio", (model_flops + recomputed) / device_flops);
    }
    put("dp_imbalance_ratio", shares.dp_imbalance);
    put("rank_imbalance_ratio", shares.rank_imbalance);
    put("compute_busy_ratio", shares.busy);
    put("comm_exposed_ratio", shares.exposed);
    put("wait_ratio", shares.waiting());
    put("all_to_all_ratio", shares.all_to_all);
    put("all_to_all_mean_ratio", shares.all_to_all_mean);
    for ((role, _, key), share) in EXPOSABLE.iter().zip(shares.exposed_by) {
        // Changes of plan are rare: the key is there where one happened.
        if *role != Role::Replan || share > 0.0 {
            put(key, share);
        }
    }
    if steps.iter().any(|step| step.graph.lanes.iter().any(|lane| lane.stage > 0)) {
        put("bubble_ratio", shares.bubble);
        put("rank_bubble_ratio", shares.rank_bubble);
    }
    of_experts(problem, steps.len()).into_iter().for_each(|(key, value)| put(key, value));
    put("peak_memory_bytes", hw::real(peaks.highest));
    put("peak_memory_bytes_min", hw::real(peaks.lowest));
    put("peak_activation_bytes", hw::real(peaks.highest_above_resident));
    peaks.parts.iter().for_each(|(key, bytes)| put(key, hw::real(*bytes)));
    for (class, share) in &work.classes {
        put(&format!("busy_{class}_ratio"), share * shares.busy);
    }
    if let Some(usd_per_hour) = problem.cluster.gpu.usd_per_hour() {
        put("cost_usd_per_step", usd_per_hour / 3600.0 * n_ranks * iteration);
    }
    let energy = Energy::of(problem, steps, iteration);
    energy.iter().flat_map(|energy| energy.values(tokens)).for_each(|(key, value)| put(key, value));
    let lent = energy.and_then(|energy| energy.lender).map(power::borrowed_in_words);
    let on_host = host_memory::of_steps(problem, steps.iter().map(|step| (&step.graph, &step.timeline)));
    values.extend(on_host.figure());
    let step = words(problem, &shares, &work);
    let said = [Some(step), copies::words(steps, iteration), on_host.words(), Some(peaks.words), lent];
    Metrics {
        parts: Parts::from(&shares, &work),
        why: joined(said),
        values,
        source: work.source,
        provenance: work.provenance,
    }
}

/// What the experts of so many steps are given; nothing where the model has none.
fn of_experts(problem: &Problem, n_steps: usize) -> Vec<(&'static str, f64)> {
    let loads: Vec<ExpertLoad> = (0..n_steps).filter_map(|step| experts::load(problem, step)).collect();
    if loads.is_empty() {
        return Vec::new();
    }
    let ratio = |of: fn(&ExpertLoad) -> u64| hw::real(loads.iter().map(of).sum::<u64>()) / f64_of(n_steps) / 1000.0;
    vec![
        ("expert_imbalance_ratio", ratio(|load| load.permille)),
        ("dropped_token_ratio", ratio(|load| load.dropped_permille)),
        ("all_to_all_over_compute_ratio", experts::of_shapes(problem)),
    ]
}

fn f64_of(n: usize) -> f64 {
    hw::real(n as u64)
}

/// Estimated compute work by class, and where the estimates come from.
pub(crate) struct Work {
    classes: BTreeMap<&'static str, f64>,
    pub(crate) source: Source,
    pub(crate) provenance: Provenance,
}

impl Work {
    /// None.
    pub(crate) const NONE: Self =
        Self { classes: BTreeMap::new(), source: Source::Measured, provenance: Provenance::NONE };

    fn of(steps: &[Played], cost: &dyn CostModel) -> Self {
        let mut work = Self::NONE;
        let total: f64 = steps.iter().map(|step| work.add_tasks(&step.graph, &|_| 1.0, cost)).sum();
        let total = if total > 0.0 { total } else { 1.0 };
        work.classes.values_mut().for_each(|seconds| *seconds /= total);
        work
    }

    /// Adds what tasks compute, each so many times, and gives its seconds.
    pub(crate) fn add_tasks(&mut self, graph: &TaskGraph, times: &dyn Fn(&Task) -> f64, cost: &dyn CostModel) -> f64 {
        let mut uses = vec![0.0; graph.ops.len()];
        let compute = graph.tasks.iter().filter(|task| task.stream == Stream::Compute);
        compute.for_each(|task| uses[task.op.0 as usize] += times(task));
        let used = graph.ops.iter().zip(&uses).filter(|(_, n)| **n > 0.0);
        used.fold(0.0, |total, (op, &n)| total + self.add(op, n, cost))
    }

    fn add(&mut self, op: &Op, n: f64, cost: &dyn CostModel) -> f64 {
        if let Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } = op {
            let device: f64 = parts.iter().map(|(part, count)| self.add(part, n * f64::from(*count), cost)).sum();
            return device + self.add_waiting(op, n, device, cost);
        }
        let estimate = cost.estimate(op);
        let seconds = estimate.time.get() * n;
        *self.classes.entry(class_of(op)).or_default() += seconds;
        self.source = self.source.max(estimate.source);
        self.provenance.add_estimate(what_of(op), &estimate, n);
        seconds
    }
}

/// The finest time that the engine knows, seconds.
const NANOSECOND_S: f64 = 1e-9;

impl Work {
    /// What a host that launches kernels adds to the device's own time.
    fn add_waiting(&mut self, op: &Op, n: f64, device: f64, cost: &dyn CostModel) -> f64 {
        if !matches!(op, Op::Launched { .. }) {
            return 0.0;
        }
        let waiting = cost.estimate(op).time.get() * n - device;
        // What is left of two equal sums is rounding.
        if waiting < NANOSECOND_S {
            return 0.0;
        }
        *self.classes.entry("host").or_default() += waiting;
        self.provenance.add("host", Source::Published, waiting);
        waiting
    }
}

const fn class_of(op: &Op) -> &'static str {
    match op {
        Op::Gemm { .. } | Op::GroupedGemm { .. } => "gemm",
        Op::Attention { .. } => "attention",
        Op::Host { .. } => "host",
        _ => "memory_bound",
    }
}

/// What there is of some sentences.
fn joined(said: [Option<String>; 5]) -> String {
    said.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// The step in a sentence: the largest shares first.
fn words(problem: &Problem, shares: &Shares, work: &Work) -> String {
    let host = if problem.execution.unit_times.is_some() { "passes of fixed duration" } else { "host overhead" };
    let names = [
        ("gemm", "matrix multiplication"),
        ("attention", "attention"),
        ("host", host),
        ("memory_bound", "memory-bound kernels"),
    ];
    let mut parts: Vec<(f64, &str)> = names
        .iter()
        .filter_map(|(class, name)| work.classes.get(class).map(|share| (share * shares.busy, *name)))
        .collect();
    parts.extend(EXPOSABLE.iter().zip(shares.exposed_by).map(|((_, name, _), share)| (share, *name)));
    let has_copies = problem.execution.offload > 0.0 || problem.hosts_parameters();
    let waiting = match (problem.layout.pp > 1, has_copies) {
        (true, true) => "waiting in the pipeline, for copies of the host or for slower ranks",
        (true, false) => "waiting in the pipeline or for slower ranks",
        (false, true) => "waiting for copies of the host or for slower ranks",
        (false, false) => "waiting for slower ranks",
    };
    parts.push((shares.waiting(), waiting));
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shown: Vec<String> = parts
        .iter()
        .filter(|(share, _)| *share >= 0.01)
        .take(4)
        .map(|(share, name)| format!("{name} {:.0}\u{a0}%", share * 100.0))
        .collect();
    format!(
        "{}; the busiest data-parallel group has {:.2} times the mean work, the busiest rank {:.2} times",
        shown.join(", "),
        shares.dp_imbalance,
        shares.rank_imbalance
    )
}

/// Figures that are as long as a step, and those that are as fast.
const AS_LONG: [&str; 2] = ["iteration_time_s", "cost_usd_per_step"];
const AS_FAST: [&str; 4] = ["tokens_per_s", "tokens_per_s_per_gpu", "mfu_ratio", "hfu_ratio"];

/// Intervals of a step's time and of what follows from it.
pub fn follow_from(step_s: f64, [low, high]: [f64; 2], metrics: &BTreeMap<String, f64>) -> BTreeMap<String, [f64; 2]> {
    let as_long = AS_LONG.iter().map(|key| (*key, [low / step_s, high / step_s]));
    let as_fast = AS_FAST.iter().map(|key| (*key, [step_s / high, step_s / low]));
    let of = |(key, factors): (&str, [f64; 2])| {
        let value = *metrics.get(key)?;
        Some((key.to_owned(), factors.map(|factor| value * factor)))
    };
    as_long.chain(as_fast).filter_map(of).chain(energy::intervals(metrics)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{ContextExchange, Layout, Zero};
    use crate::plan::{MicroBatch, Place, Placement, Plan, Step};
    use crate::problem::{Execution, ExpertTraffic};
    use engine::play::{Case, Machine};

    #[test]
    fn experts_are_as_uneven_as_in_the_mean_step() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let experts = ExpertTraffic { imbalance: 1.5, ..ExpertTraffic::EVEN };
        let whole = engine::model::embedded("olmoe-1b-7b").expect("embedded");
        let problem = Problem {
            model: engine::Model { n_layers: 2, ..whole },
            cluster: hw::catalog::cluster(&gpu, 1, 8),
            layout: Layout { ep: 8, ..Layout::data_and_context(8, 1, Zero::OptimizerStates, ContextExchange::Gather) },
            workload: crate::Workload { batch_size: 8, lengths: vec![512; 24], source: "test".to_owned() },
            dtype: hw::Dtype::Bf16,
            bucket_tokens: 512,
            execution: Execution { experts, ..Execution::default() },
            schedule: crate::schedule::named("1f1b").expect("listed"),
            reserved_memory: hw::Bytes(0),
            seed: 1,
        };
        let group = |sequence: u32| {
            let placement = Placement { sequence, from: 0, tokens: 512, place: Place::Local(0) };
            vec![MicroBatch { sequences: vec![placement], ..MicroBatch::default() }]
        };
        let step = |index: u32| Step::of_groups((8 * index..8 * index + 8).map(group).collect());
        let plan = Plan::new("test", &problem, (0..3).map(step).collect());
        let (topology, cost) =
            (hw::topology::Topology::of(&problem.cluster), engine::cost::roofline::Roofline::new(&problem.cluster));
        let played = |step_index| {
            let graph = crate::lower::training::lower(&problem, &plan, step_index);
            let (memory_bytes, case) = (u64::MAX, Case::Expected);
            let machine = Machine { cost: &cost, topology: &topology, memory_bytes, case, speed_changes: &[] };
            let engine::Outcome::Done(timeline) = engine::play::simulate(&graph, &machine) else { panic!("it ends") };
            Played { graph, timeline }
        };
        let drawn = [0, 1, 2].map(|step| hw::real(experts::load(&problem, step).expect("experts").permille) / 1000.0);
        assert!(drawn.iter().any(|of| (of - drawn[0]).abs() > 0.01), "{drawn:?}");
        let found = of_steps(&problem, &[0, 1, 2].map(played), &cost).values["expert_imbalance_ratio"];
        assert!((found - drawn.iter().sum::<f64>() / 3.0).abs() < 1e-9, "{found} of {drawn:?}");
    }
}
