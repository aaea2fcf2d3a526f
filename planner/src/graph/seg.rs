//! How enclosing subgraphs of pairs are extracted for link prediction: workers, share of the neighbours, on the fly or ahead (SEG,
//! arXiv:2201.05293), beside SEAL, a network that encodes once, and common neighbours.
//!
//! A larger share of neighbours costs more, and nothing here knows what it is worth: the planner takes the largest share of the list whose epoch
//! is within the limits, and of its ways to extract the fastest. Every way is played on the engine; the bound is what the GPU alone takes.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::random;
use engine::task::{CopyKind, Op, Ops};
use graph::cache::{Item, Ranked, row_bytes};
use graph::host::{HostCosts, Job, Kernel};
use graph::pipeline::{self, Batch, Overlap, batches};
use graph::subgraph::{self, Rule, Work};
use hw::{Format, Seconds, Span};

use engine::verdict::{Ended, Refused};

use super::judged::{Judged, Times, add_times, keyed, play};
use super::{Known, Machine};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};

/// What is done with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A subgraph with path labels, a structure encoder and a branch of features.
    PathLabels,
    /// A subgraph with one label per vertex and one branch.
    RadiusLabels,
    /// The whole graph is encoded for every batch, pairs are scored.
    EncodeOnce,
    /// Rows of both ends are compared, nothing is trained.
    CommonNeighbours,
}

/// Policies with what they do.
pub const POLICIES: [(&str, Method, &str); 4] = [
    ("seg", Method::PathLabels, "SEG: path labels and features; workers, share and on the fly or ahead are planned"),
    ("seal", Method::RadiusLabels, "SEAL: every neighbour, one label per vertex, extracted on the fly by all workers"),
    (
        "encode-once",
        Method::EncodeOnce,
        "a network over the whole graph for every batch, pairs are scored by their ends",
    ),
    (
        "common-neighbours",
        Method::CommonNeighbours,
        "common neighbours by comparing rows on the host, nothing is trained",
    ),
];

/// What is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The graph.
    pub known: Known,
    /// Numbers of a feature.
    pub width: u64,
    /// Numbers between layers.
    pub hidden: u64,
    /// Layers of a branch.
    pub n_layers: u32,
    /// Pairs of an epoch, over all GPUs.
    pub n_pairs: f64,
    /// Pairs of a batch on a GPU.
    pub batch: u32,
    /// Pairs that are scored for one pass over the whole graph, where it is encoded once.
    pub encode_batch: u32,
    /// Epochs that share what is extracted ahead.
    pub n_epochs: u32,
    /// Shares of the neighbours that may be taken at a hop.
    pub ratios: Vec<f64>,
    /// Which subgraph, but for the share.
    pub rule: Rule,
    /// Most workers of a GPU.
    pub workers_max: u32,
    /// What a worker takes.
    pub costs: HostCosts,
    /// Memory of the host for subgraphs that are extracted ahead, bytes.
    pub host_bytes: f64,
    /// Rows that the host's caches hold, bytes.
    pub hot_bytes: f64,
    /// Longest epoch that is accepted.
    pub epoch_s_max: f64,
    /// Machine.
    pub machine: Machine,
    /// Pairs that are drawn to know the work.
    pub n_drawn: u64,
    /// Seed of the draws.
    pub seed: u64,
}

/// When subgraphs are extracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Storage {
    /// For every batch anew.
    OnTheFly,
    /// Once, and kept in the host's memory.
    Ahead,
}

/// A way to extract.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Share of the neighbours at a hop.
    pub ratio: f64,
    /// Workers of each GPU.
    pub n_workers: u32,
    /// When.
    pub storage: Storage,
}

/// Batches of each worker in half of what is played.
const ROUNDS: usize = 4;

/// A way with what it takes.
#[derive(Clone)]
struct Way {
    plan: Plan,
    work: Work,
    /// Seconds of a worker for a pair, and of the GPU for a batch.
    pair_s: f64,
    gpu_s: f64,
    times: Times,
    /// Low, expected, high.
    epoch_s: [f64; 3],
}

/// Decides and plays a policy.
pub fn judged(asked: &Asked, method: Method, cost: &dyn CostModel) -> Judged<Plan> {
    if let Err(refused) = fits(asked, method) {
        return Judged::refused(refused);
    }
    let mut ratios = asked.ratios.clone();
    ratios.sort_unstable_by(|a, b| b.total_cmp(a));
    if method != Method::PathLabels {
        ratios.truncate(1);
    }
    let mut shortest = f64::INFINITY;
    for ratio in ratios {
        let mut ways = ways(asked, method, ratio, cost);
        // The fastest first; of equals the one with fewer workers, then the one that keeps nothing.
        ways.sort_by(|a, b| {
            let key = |way: &Way| (way.plan.n_workers, way.plan.storage);
            a.epoch_s[1].total_cmp(&b.epoch_s[1]).then_with(|| key(a).cmp(&key(b)))
        });
        shortest = shortest.min(ways[0].epoch_s[1]);
        if ways[0].epoch_s[1] <= asked.epoch_s_max || method != Method::PathLabels {
            return row(asked, method, &ways, cost);
        }
    }
    let why = format!("the shortest epoch takes {shortest:.3} s, `budget.epoch_s` is {}", asked.epoch_s_max);
    Judged::refused(Refused::infeasible(why))
}

/// Whether the graph fits the GPU where the GPU encodes all of it.
fn fits(asked: &Asked, method: Method) -> Result<(), Refused> {
    if method != Method::EncodeOnce {
        return Ok(());
    }
    let degrees = asked.known.degrees();
    let numbers = hw::real(asked.width) + 3.0 * f64::from(asked.n_layers) * hw::real(asked.hidden);
    let needed = degrees.n_vertices() * (4.0 * numbers + 8.0) + 4.0 * degrees.n_slots();
    let room = hw::real(asked.machine.memory_bytes);
    if needed > room {
        let (needed, room) = (needed / hw::GIB, room / hw::GIB);
        return Err(Refused::out_of_memory(format!(
            "the whole graph with its layers takes {needed:.1} GiB, a GPU has {room:.1} GiB"
        )));
    }
    Ok(())
}

/// Ways to extract with a share of the neighbours.
fn ways(asked: &Asked, method: Method, ratio: f64, cost: &dyn CostModel) -> Vec<Way> {
    let work = work(asked, method, ratio);
    let extracted = (work, pair_s(asked, method, &work));
    let mut found = Vec::new();
    let searched = method == Method::PathLabels;
    let first = if searched { 1 } else { asked.workers_max };
    for n_workers in first..=asked.workers_max {
        let plan = Plan { ratio, n_workers, storage: Storage::OnTheFly };
        let way = way(asked, method, extracted, plan, cost);
        // From one worker above the crossing on nothing is gained.
        let crossing = way.pair_s * f64::from(batch_of(asked, method)) / way.gpu_s;
        found.push(way);
        if searched && stored_bytes(asked, &work) <= asked.host_bytes {
            found.push(self::way(asked, method, extracted, Plan { storage: Storage::Ahead, ..plan }, cost));
        }
        if f64::from(n_workers) >= crossing + 1.0 {
            break;
        }
    }
    found
}

/// Pairs of a method's batch on a GPU, which has no more than there are for it.
fn batch_of(asked: &Asked, method: Method) -> u32 {
    let given = if matches!(method, Method::EncodeOnce) { asked.encode_batch } else { asked.batch };
    let own = hw::whole((asked.n_pairs / f64::from(asked.machine.cluster.n_gpus())).ceil());
    u32::try_from(own).map_or(given, |own| given.min(own))
}

/// Bytes of all pairs extracted ahead.
fn stored_bytes(asked: &Asked, work: &Work) -> f64 {
    asked.n_pairs * 8.0 * (work.n_vertices + work.n_edges)
}

/// Mean work of a pair.
fn work(asked: &Asked, method: Method, ratio: f64) -> Work {
    let rule = Rule { ratio, ..asked.rule };
    let stream = random::stream(asked.seed, "pairs");
    let degrees = asked.known.degrees();
    let found = match (method, &asked.known) {
        (Method::EncodeOnce, _) => Work::default(),
        (Method::CommonNeighbours, _) => compared(asked, &stream),
        (_, Known::Whole { graph, .. }) => {
            let pairs = subgraph::pairs(graph, asked.n_drawn, &stream);
            let all = subgraph::works(graph, &pairs, &rule, &stream);
            all.into_iter().fold(Work::default(), Work::plus).times(1.0 / hw::real(asked.n_drawn))
        }
        (_, Known::Degrees { degrees, .. }) => subgraph::expected(degrees, &rule, asked.n_drawn, &stream),
    };
    if is_measured(asked, method) {
        return found;
    }
    // Rows of hubs are read most, and those that the host's caches hold cost no read.
    let rows: Vec<Item> = degrees
        .classes
        .iter()
        .map(|class| Item {
            hotness: class.degree,
            saved: class.degree,
            bytes: hw::real(row_bytes(0)) + 4.0 * class.degree,
            count: class.count,
        })
        .collect();
    let ranked = Ranked::new(&rows);
    let hot =
        if ranked.transactions() > 0.0 { ranked.within(asked.hot_bytes).saved / ranked.transactions() } else { 0.0 };
    Work { reads: found.reads * (1.0 - hot), ..found }
}

/// Whether the host's extraction was measured: its caches are then in the measurement.
fn is_measured(asked: &Asked, method: Method) -> bool {
    matches!(method, Method::PathLabels | Method::RadiusLabels) && asked.costs.of(Kernel::Extract).is_some()
}

/// Seconds of a worker for a pair.
fn pair_s(asked: &Asked, method: Method, work: &Work) -> f64 {
    if !is_measured(asked, method) {
        return work.reads * asked.costs.read_s + work.probes * asked.costs.item_s;
    }
    let apart = subgraph::visits(&asked.known.degrees()).apart();
    asked.costs.seconds(&Job::extract(1.0, work, apart))
}

/// Rows of both ends of a pair, read once and merged.
fn compared(asked: &Asked, stream: &random::Stream) -> Work {
    // A subgraph without hops reads nothing; one of every neighbour reads the rows of both ends, but not those of the neighbours.
    let degrees = asked.known.degrees();
    let rule = Rule { hops: 1, ratio: 1.0, neighbours_max: u64::MAX, ..asked.rule };
    let ends = subgraph::expected(&degrees, &Rule { hops: 0, ..rule }, asked.n_drawn, stream);
    let near = subgraph::expected(&degrees, &rule, asked.n_drawn, stream);
    let n_slots = near.n_vertices - ends.n_vertices;
    Work { n_vertices: 2.0, n_edges: 0.0, reads: 2.0 + n_slots / 16.0, probes: n_slots }
}

fn way(asked: &Asked, method: Method, (work, pair_s): (Work, f64), plan: Plan, cost: &dyn CostModel) -> Way {
    let cluster = &asked.machine.cluster;
    // What lies ready is copied out: two numbers of a vertex or edge.
    let kept_s = 2.0 * (work.n_vertices + work.n_edges) * asked.costs.item_s;
    let prepared_s = if plan.storage == Storage::Ahead { kept_s } else { pair_s };
    let batch = f64::from(batch_of(asked, method));
    let preparing = Span::from_seconds(Seconds::new(prepared_s * batch));
    // Workers deliver in bursts. Every worker's first batches are in the first half, and as many again in the second one: whole bursts, which stand for all later ones.
    let n_steps = 2 * ROUNDS * plan.n_workers as usize;
    let (times, gpu_s) = if method == Method::CommonNeighbours {
        let graph = pipeline::prepared(cluster, plan.n_workers, preparing, n_steps);
        (play(graph, &asked.machine, cost, n_steps), 0.0)
    } else {
        let trained = ops(asked, method, &work);
        let is_copied = f64::from(u8::from(method != Method::EncodeOnce));
        let copied = is_copied * batch * (work.n_vertices * (4.0 * hw::real(asked.width) + 2.0) + 8.0 * work.n_edges);
        let batch = Batch {
            n_workers: plan.n_workers,
            preparing,
            copied_bytes: hw::whole(copied),
            backward: trained.iter().map(|(op, n)| (op.clone(), 2 * n)).collect(),
            forward: trained,
            reduced_bytes: 4 * n_weights(asked, method),
            overlap: Overlap::Ahead,
        };
        (play(batches(cluster, &batch, n_steps), &asked.machine, cost, n_steps), gpu_s(&batch, cost))
    };
    let once = match plan.storage {
        Storage::OnTheFly => 0.0,
        Storage::Ahead => {
            let workers = f64::from(plan.n_workers * cluster.n_gpus());
            asked.n_pairs * pair_s / workers / f64::from(asked.n_epochs)
        }
    };
    // Whole nanoseconds, as all that is played: ways that are alike would else differ in their last digit.
    let epoch_s = times.epoch_s(n_batches(asked, method)).map(|seconds| ((seconds + once) * 1e9).round() / 1e9);
    Way { plan, work, pair_s, gpu_s, times, epoch_s }
}

/// Seconds of the GPU for a batch: copies run beside kernels.
fn gpu_s(batch: &Batch, cost: &dyn CostModel) -> f64 {
    let seconds = |op: &Op| cost.estimate(op).time.get();
    let trained = seconds(&Op::Sequence(batch.forward.clone())) + seconds(&Op::Sequence(batch.backward.clone()));
    let updated = seconds(&Op::Elementwise { bytes: 7 * batch.reduced_bytes });
    let copied = seconds(&Op::Copy { kind: CopyKind::HostToDevice, bytes: batch.copied_bytes });
    (trained + updated).max(copied)
}

/// Weights of the network.
fn n_weights(asked: &Asked, method: Method) -> u64 {
    let (width, hidden) = (asked.width, asked.hidden);
    let later = u64::from(asked.n_layers - 1) * 2 * hidden * hidden;
    let features = 2 * width * hidden + later;
    let scored = 2 * hidden * hidden + hidden;
    match method {
        Method::PathLabels => features + u64::from(asked.n_layers) * hidden * hidden + scored,
        Method::RadiusLabels => features + 2 * hidden * hidden + scored,
        Method::EncodeOnce => features + scored,
        Method::CommonNeighbours => 0,
    }
}

/// A layer over rows and edges: every edge brings a row of numbers to both ends, every vertex writes its sum.
fn layer(ops: &mut Ops, rows: f64, edges: f64, k: u64, hidden: u64, width: u64) {
    let bytes = 4.0 * hw::real(width) * (2.0 * edges + rows);
    ops.push((Op::Elementwise { bytes: hw::whole(bytes) }, 1));
    ops.push((Op::Gemm { m: hw::whole(rows).max(1), n: hidden, k, format: Format::Fp32 }, 1));
}

/// Operations of a forward pass.
fn ops(asked: &Asked, method: Method, work: &Work) -> Ops {
    let mut found = Ops::new();
    if method == Method::CommonNeighbours {
        return found;
    }
    let batch = f64::from(batch_of(asked, method));
    let (width, hidden) = (asked.width, asked.hidden);
    let (rows, edges) = if method == Method::EncodeOnce {
        let degrees = asked.known.degrees();
        (degrees.n_vertices(), degrees.n_slots() / 2.0)
    } else {
        (batch * work.n_vertices, batch * work.n_edges)
    };
    // Features, with the label's embedding beside them where there is one branch.
    let label = if method == Method::RadiusLabels { hidden } else { 0 };
    layer(&mut found, rows, edges, 2 * (width + label), hidden, width + label);
    for _ in 1..asked.n_layers {
        layer(&mut found, rows, edges, 2 * hidden, hidden, hidden);
    }
    if method == Method::PathLabels {
        for _ in 0..asked.n_layers {
            layer(&mut found, rows, edges, hidden, hidden, hidden);
        }
    }
    let pairs = u64::from(batch_of(asked, method));
    found.push((Op::Gemm { m: pairs, n: hidden, k: 2 * hidden, format: Format::Fp32 }, 1));
    found.push((Op::Gemm { m: pairs, n: 1, k: hidden, format: Format::Fp32 }, 1));
    found
}

/// The row of the best way.
fn row(asked: &Asked, method: Method, ways: &[Way], cost: &dyn CostModel) -> Judged<Plan> {
    let best = &ways[0];
    let metrics = metrics(asked, method, best);
    // The GPU takes its kernels and copies whatever the host does; extraction by all workers takes its time whatever the GPU does.
    let least = least_s(asked, method, best, cost);
    let mut decision = Decision::new(best.plan, Aim::Seconds, best.epoch_s[1]);
    if method == Method::PathLabels {
        let bound =
            Bound { value: least.min(best.epoch_s[1]), limit: "the GPU's kernels without start-ups".to_owned() };
        decision = decision.bounded(Some(bound), Status::Optimal);
        let other =
            ways.iter().find(|way| way.plan.storage != best.plan.storage || way.plan.n_workers != best.plan.n_workers);
        decision = decision.beside(other.map(|way| RunnerUp { plan: way.plan, objective: way.epoch_s[1] }));
    }
    let why = if matches!(method, Method::EncodeOnce | Method::CommonNeighbours) {
        plainly(method, best)
    } else {
        extraction(best, &metrics)
    };
    let decision = decision.limited(best.times.binding.to_owned()).said(notes(asked, method, ways), by_workers(ways));
    Judged {
        decision: Some(decision),
        ended: Ended::Ok,
        why,
        interval: [("epoch_time_s".to_owned(), [best.epoch_s[0], best.epoch_s[2]])].into(),
        metrics,
        source: best.times.source,
        played: Some(best.times.played.clone()),
    }
}

/// What a method takes that extracts nothing.
fn plainly(method: Method, best: &Way) -> String {
    match method {
        Method::CommonNeighbours => {
            format!("bound by rows on the host: {:.1} us of a worker for a pair", best.pair_s * 1e6)
        }
        _ => format!("bound by {}; {:.2} ms of the GPU for a batch", best.times.binding, best.gpu_s * 1e3),
    }
}

/// Who waits for whom, in words.
fn extraction(best: &Way, metrics: &BTreeMap<String, f64>) -> String {
    format!(
        "bound by {}; a pair takes {:.1} us of a worker, a batch {:.2} ms of the GPU: {:.1} workers keep it busy, {} do",
        best.times.binding,
        best.pair_s * 1e6,
        best.gpu_s * 1e3,
        metrics["crossing_workers"],
        best.plan.n_workers
    )
}

/// Seconds that the GPU's own operations take at the least.
fn least_s(asked: &Asked, method: Method, way: &Way, cost: &dyn CostModel) -> f64 {
    let mut least = 0.0;
    for (op, n) in ops(asked, method, &way.work) {
        // Forward and twice that backward.
        least += 3.0 * f64::from(n) * cost.least(&op).get();
    }
    least * n_batches(asked, method)
}

fn metrics(asked: &Asked, method: Method, way: &Way) -> BTreeMap<String, f64> {
    let n_batches = n_batches(asked, method);
    let epoch_s = way.epoch_s[1];
    let stored = if way.plan.storage == Storage::Ahead { stored_bytes(asked, &way.work) } else { 0.0 };
    let mut found = keyed(&[
        ("epoch_time_s", epoch_s),
        ("pairs_per_s", asked.n_pairs / epoch_s),
        ("extraction_per_pair_s", way.pair_s),
        ("n_workers", f64::from(way.plan.n_workers)),
        ("neighbour_ratio", way.plan.ratio),
        ("subgraph_vertices", way.work.n_vertices),
        ("subgraph_edges", way.work.n_edges),
        ("stored_bytes", stored),
    ]);
    if method != Method::CommonNeighbours {
        found.extend(keyed(&[
            ("n_steps", n_batches),
            ("iteration_time_s", way.times.further_s[1]),
            ("gpu_per_step_s", way.gpu_s),
            ("crossing_workers", way.pair_s * f64::from(batch_of(asked, method)) / way.gpu_s),
        ]));
    }
    add_times(&mut found, &way.times, n_batches, &asked.machine, epoch_s);
    found
}

/// Batches of a GPU in an epoch: whole ones where it trains. Rows are compared pair by pair.
fn n_batches(asked: &Asked, method: Method) -> f64 {
    let per_step = f64::from(batch_of(asked, method)) * f64::from(asked.machine.cluster.n_gpus());
    let n = asked.n_pairs / per_step;
    if method == Method::CommonNeighbours { n } else { n.ceil() }
}

fn notes(asked: &Asked, method: Method, ways: &[Way]) -> Vec<String> {
    let best = &ways[0];
    let mut notes = vec![asked.known.words()];
    notes.extend(asked.machine.ignored());
    if method == Method::EncodeOnce || method == Method::CommonNeighbours {
        return notes;
    }
    notes.push(format!(
        "a pair's subgraph has {:.0} vertices and {:.0} edges on average, with hubs as they are drawn",
        best.work.n_vertices, best.work.n_edges
    ));
    let stored = stored_bytes(asked, &best.work) / hw::GIB;
    let room = asked.host_bytes / hw::GIB;
    let is_ahead = best.plan.storage == Storage::Ahead;
    notes.push(match is_ahead {
        true => format!(
            "extracted once and kept: {stored:.1} of {room:.1} GiB of the host, shared by {} epochs",
            asked.n_epochs
        ),
        false if stored > room => {
            format!("extracted on the fly: ahead would take {stored:.1} GiB, the host has {room:.1} for it")
        }
        false => "extracted on the fly: no slower than reading what was extracted ahead".to_owned(),
    });
    if let Some(other) = ways.get(1) {
        notes.push(format!(
            "runner-up of {} ways: {} workers, {}: {:+.2} % of the epoch's time",
            ways.len(),
            other.plan.n_workers,
            if other.plan.storage == Storage::Ahead { "ahead" } else { "on the fly" },
            100.0 * (other.epoch_s[1] / best.epoch_s[1] - 1.0)
        ));
    }
    notes
}

/// Seconds of an epoch by workers, on the fly.
fn by_workers(ways: &[Way]) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for way in ways.iter().filter(|way| way.plan.storage == Storage::OnTheFly) {
        found.insert(format!("epoch_at_{:03}_workers_s", way.plan.n_workers), way.epoch_s[1]);
    }
    found
}

#[cfg(test)]
mod tests;
