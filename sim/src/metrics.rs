//! The contract's figures, computed from played steps and the problem only; one definition each (`docs/output.md`).
//!
//! Units are in the keys. Ratios are shares of the step, averaged over ranks and steps unless a key says otherwise.

use std::collections::{BTreeMap, BTreeSet};

use hw::Time;

use crate::cost::{CostModel, Source};
use crate::lower::layer;
use crate::problem::{Problem, Recompute};
use crate::task::{Document, Op, Pass, Role, Stream, TaskGraph};
use crate::timeline::Timeline;

/// Figures of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Contract keys.
    pub values: BTreeMap<String, f64>,
    /// What dominates the step, in words.
    pub why: String,
    /// Weakest source among the estimates.
    pub source: Source,
    /// Share of busy time outside the measured hull.
    pub outside_hull_ratio: f64,
    /// Dimensions outside the hull.
    pub outside_hull: BTreeSet<&'static str>,
}

/// A played step.
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
#[must_use]
pub fn of_steps(problem: &Problem, steps: &[Played], cost: &dyn CostModel) -> Metrics {
    assert!(!steps.is_empty(), "a job has at least one step");
    let n_steps = f64_of(steps.len());
    let n_ranks = f64::from(problem.layout.n_ranks());
    let shares = Shares::mean(&steps.iter().map(|step| Shares::of(problem, step)).collect::<Vec<_>>());
    let iteration = steps.iter().map(|step| step.timeline.span().to_seconds().get()).sum::<f64>() / n_steps;
    let tokens = problem.workload.lengths.iter().map(|&length| hw::Tokens(length).as_f64()).sum::<f64>() / n_steps;
    let (forward_flops, layer_flops) = forward_flops(problem);
    let model_flops = 3.0 * forward_flops / n_steps;
    let recomputed = if problem.recompute == Recompute::Full { layer_flops / n_steps } else { 0.0 };
    let peak = problem.cluster.gpu.peak(problem.dtype).get() * n_ranks * iteration;
    let peaks: Vec<u64> = steps
        .iter()
        .flat_map(|step| (0..step.timeline.memory.len()).map(|rank| step.timeline.peak_memory_bytes(rank)))
        .collect();
    let work = Work::of(steps, cost);
    let mut values = BTreeMap::new();
    let mut put = |key: &str, value: f64| {
        assert!(value.is_finite(), "metric `{key}` must be finite, found {value}");
        values.insert(key.to_owned(), value);
    };
    put("iteration_time_s", iteration);
    put("tokens_per_s", tokens / iteration);
    put("tokens_per_s_per_gpu", tokens / iteration / n_ranks);
    put("mfu_ratio", model_flops / peak);
    put("hfu_ratio", (model_flops + recomputed) / peak);
    put("dp_imbalance_ratio", shares.dp_imbalance);
    put("rank_imbalance_ratio", shares.rank_imbalance);
    put("compute_busy_ratio", shares.busy);
    put("comm_exposed_ratio", shares.exposed);
    put("wait_ratio", shares.waiting());
    put("all_to_all_ratio", shares.all_to_all);
    put("peak_memory_bytes", peaks.iter().max().map_or(0.0, |&bytes| hw::Bytes(bytes).as_f64()));
    put("peak_memory_bytes_min", peaks.iter().min().map_or(0.0, |&bytes| hw::Bytes(bytes).as_f64()));
    for (class, share) in &work.classes {
        put(&format!("busy_{class}_ratio"), share * shares.busy);
    }
    if let Some(price) = problem.cluster.gpu.prices.first() {
        put("cost_usd_per_step", price.usd_per_hour / 3600.0 * n_ranks * iteration);
    }
    Metrics {
        why: words(&shares, &work),
        values,
        source: work.source,
        outside_hull_ratio: work.outside,
        outside_hull: work.dimensions,
    }
}

fn f64_of(n: usize) -> f64 {
    hw::Tokens(n as u64).as_f64()
}

/// Model operations of one forward over the whole workload: (all, layers only). Causal attention counts the pairs
/// that are computed, so a long document is not credited with the masked half.
fn forward_flops(problem: &Problem) -> (f64, f64) {
    let tokens: u64 = problem.workload.lengths.iter().sum();
    let count = |ops: &layer::Ops| ops.iter().map(|(op, n)| flops_of(op) * f64::from(*n)).sum::<f64>();
    let documents = problem.workload.lengths.iter().map(|&length| Document::causal(length)).collect();
    let layers = hw::Tokens(problem.model.n_layers).as_f64()
        * (count(&layer::before_attention(problem, tokens, Pass::Forward))
            + count(&layer::after_attention(problem, tokens, Pass::Forward))
            + count(&layer::attention(problem, documents, 1, Pass::Forward)));
    (layers + count(&layer::head(problem, tokens, Pass::Forward)), layers)
}

fn flops_of(op: &Op) -> f64 {
    let product = |factors: &[u64]| factors.iter().map(|&factor| hw::Tokens(factor).as_f64()).product::<f64>();
    match op {
        Op::Gemm { m, n, k, .. } => 2.0 * product(&[*m, *n, *k]),
        Op::GroupedGemm { rows, n, k, .. } => 2.0 * product(&[rows.iter().sum(), *n, *k]),
        Op::Attention { documents, n_heads, head_dim, pass, .. } => {
            let pairs = documents.iter().map(|document| hw::Tokens(document.pairs).as_f64()).sum::<f64>();
            let forward = 4.0 * pairs * product(&[*n_heads, *head_dim]);
            if *pass == Pass::Forward { forward } else { 2.0 * forward }
        }
        _ => 0.0,
    }
}

/// Where the time of a step goes, as shares of it.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    busy: f64,
    exposed: f64,
    all_to_all: f64,
    dp_imbalance: f64,
    rank_imbalance: f64,
    exposed_context: f64,
    exposed_gradient: f64,
    exposed_gather: f64,
    recompute: f64,
}

impl Shares {
    fn of(problem: &Problem, step: &Played) -> Self {
        let span = f64_ns(step.timeline.span().as_ns()).max(1.0);
        let ranks = Lanes::of(step);
        let n_ranks = f64_of(ranks.len());
        let mean =
            |value: &dyn Fn(&Lanes) -> u64| ranks.iter().map(|lane| f64_ns(value(lane))).sum::<f64>() / n_ranks / span;
        let busy_of = |lane: &Lanes| lane.busy_ns();
        let group_busy: Vec<f64> = (0..problem.layout.dp)
            .map(|dp| {
                (0..problem.layout.cp).map(|cp| f64_ns(ranks[problem.layout.rank(dp, cp).index()].busy_ns())).sum()
            })
            .collect();
        let rank_busy: Vec<f64> = ranks.iter().map(|lane| f64_ns(lane.busy_ns())).collect();
        let of_role = |role: Role| mean(&|lane: &Lanes| lane.exposed_ns(Some(role)));
        let critical = ranks.iter().max_by_key(|lane| lane.busy_ns()).map_or(0, |lane| lane.all_to_all_ns);
        Self {
            busy: mean(&busy_of),
            exposed: mean(&|lane: &Lanes| lane.exposed_ns(None)),
            all_to_all: f64_ns(critical) / span,
            dp_imbalance: max_over_mean(&group_busy),
            rank_imbalance: max_over_mean(&rank_busy),
            exposed_context: of_role(Role::ContextExchange),
            exposed_gradient: of_role(Role::GradientSync),
            exposed_gather: of_role(Role::ParameterGather),
            recompute: mean(&|lane: &Lanes| lane.recompute_ns),
        }
    }

    fn mean(all: &[Self]) -> Self {
        let mean = |get: fn(&Self) -> f64| all.iter().map(get).sum::<f64>() / f64_of(all.len());
        Self {
            busy: mean(|s| s.busy),
            exposed: mean(|s| s.exposed),
            all_to_all: mean(|s| s.all_to_all),
            dp_imbalance: mean(|s| s.dp_imbalance),
            rank_imbalance: mean(|s| s.rank_imbalance),
            exposed_context: mean(|s| s.exposed_context),
            exposed_gradient: mean(|s| s.exposed_gradient),
            exposed_gather: mean(|s| s.exposed_gather),
            recompute: mean(|s| s.recompute),
        }
    }

    /// Share in which a rank neither computes nor communicates: it waits for slower ranks.
    fn waiting(&self) -> f64 {
        (1.0 - self.busy - self.exposed).max(0.0)
    }
}

fn f64_ns(ns: u64) -> f64 {
    hw::Tokens(ns).as_f64()
}

fn max_over_mean(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / f64_of(values.len());
    let max = values.iter().copied().fold(0.0, f64::max);
    if mean > 0.0 { max / mean } else { 1.0 }
}

/// Busy intervals of one rank: compute in time order, communication with its role.
#[derive(Clone, Debug, Default)]
struct Lanes {
    compute: Vec<(Time, Time)>,
    network: Vec<(Time, Time, Role)>,
    all_to_all_ns: u64,
    recompute_ns: u64,
}

impl Lanes {
    fn of(step: &Played) -> Vec<Self> {
        let mut lanes = vec![Self::default(); step.graph.n_ranks as usize];
        for (index, task) in step.graph.tasks.iter().enumerate() {
            let (start, end) = (step.timeline.start[index], step.timeline.end[index]);
            let lane = &mut lanes[task.rank.index()];
            match task.stream {
                Stream::Compute => {
                    lane.compute.push((start, end));
                    if task.role == Role::Recompute {
                        lane.recompute_ns += (end - start).as_ns();
                    }
                }
                Stream::IntraNode | Stream::InterNode => {
                    lane.network.push((start, end, task.role));
                    if is_all_to_all(&step.graph.ops[task.op.0 as usize]) {
                        lane.all_to_all_ns += (end - start).as_ns();
                    }
                }
                Stream::HostToDevice | Stream::DeviceToHost => {}
            }
        }
        for lane in &mut lanes {
            lane.network.sort_by_key(|(start, end, _)| (*start, *end));
        }
        lanes
    }

    fn busy_ns(&self) -> u64 {
        self.compute.iter().map(|(start, end)| (*end - *start).as_ns()).sum()
    }

    /// Time in which the network is busy and compute is not, counted once where streams overlap; the earliest task
    /// of an overlap is charged.
    fn exposed_ns(&self, role: Option<Role>) -> u64 {
        let mut exposed = 0;
        let mut covered = Time::ZERO;
        let mut cursor = 0;
        for &(start, end, of) in &self.network {
            let from = start.max(covered);
            if end <= from {
                continue;
            }
            covered = end;
            while cursor < self.compute.len() && self.compute[cursor].1 <= from {
                cursor += 1;
            }
            let overlap: u64 = self.compute[cursor..]
                .iter()
                .take_while(|(begin, _)| *begin < end)
                .map(|&(begin, finish)| (finish.min(end) - begin.max(from)).as_ns())
                .sum();
            if role.is_none_or(|role| role == of) {
                exposed += (end - from).as_ns() - overlap;
            }
        }
        exposed
    }
}

fn is_all_to_all(op: &Op) -> bool {
    match op {
        Op::Collective { kind, .. } => *kind == crate::task::Collective::AllToAll,
        Op::Sequence(parts) => parts.iter().any(|(part, _)| is_all_to_all(part)),
        _ => false,
    }
}

/// Estimated compute work by class, and where the estimates come from.
struct Work {
    classes: BTreeMap<&'static str, f64>,
    source: Source,
    outside: f64,
    dimensions: BTreeSet<&'static str>,
}

impl Work {
    fn of(steps: &[Played], cost: &dyn CostModel) -> Self {
        let mut work =
            Self { classes: BTreeMap::new(), source: Source::Measured, outside: 0.0, dimensions: BTreeSet::new() };
        let mut total = 0.0;
        for step in steps {
            let mut uses = vec![0_u32; step.graph.ops.len()];
            let compute = step.graph.tasks.iter().filter(|task| task.stream == Stream::Compute);
            compute.for_each(|task| uses[task.op.0 as usize] += 1);
            for (op, &n) in step.graph.ops.iter().zip(&uses).filter(|(_, n)| **n > 0) {
                total += work.add(op, f64::from(n), cost);
            }
        }
        let total = if total > 0.0 { total } else { 1.0 };
        work.classes.values_mut().for_each(|seconds| *seconds /= total);
        work.outside /= total;
        work
    }

    fn add(&mut self, op: &Op, n: f64, cost: &dyn CostModel) -> f64 {
        if let Op::Sequence(parts) = op {
            return parts.iter().map(|(part, count)| self.add(part, n * f64::from(*count), cost)).sum();
        }
        let estimate = cost.estimate(op);
        let seconds = estimate.time.get() * n;
        *self.classes.entry(class_of(op)).or_default() += seconds;
        self.source = self.source.max(estimate.source);
        self.outside += estimate.outside.get() * n;
        self.dimensions.extend(estimate.dimension);
        seconds
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

/// The step in a sentence: the largest shares first.
fn words(shares: &Shares, work: &Work) -> String {
    let names = [
        ("gemm", "matrix multiplication"),
        ("attention", "attention"),
        ("host", "host overhead"),
        ("memory_bound", "memory-bound kernels"),
    ];
    let mut parts: Vec<(f64, &str)> = names
        .iter()
        .filter_map(|(class, name)| work.classes.get(class).map(|share| (share * shares.busy, *name)))
        .collect();
    parts.push((shares.exposed_context, "exposed context exchange"));
    parts.push((shares.exposed_gradient, "exposed gradient sync"));
    parts.push((shares.exposed_gather, "exposed parameter gather"));
    parts.push((shares.waiting(), "waiting for slower ranks"));
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
