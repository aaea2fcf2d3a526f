//! How a temporal graph is trained on as sequences: neighbours, batch, threads, overlap (TF-TGN, arXiv:2409.05477), beside TGL and ETC.
//!
//! A node and its k neighbours before a moment are a sequence of k + 1 for a decoder. More neighbours cost more, and nothing here knows what
//! they are worth: the planner takes the most of the list whose epoch is within the limits, and the fastest batch, threads and overlap. Every
//! choice is played on the engine. What the systems do differently is a table of policies, from their papers' words; no constant is fitted.

pub mod past;
mod told;

use engine::CostModel;
use engine::task::{Document, Op, Ops, Pass};
use graph::epoch::past_visits;
use graph::host::{HostCosts, Job};
use graph::pipeline::{Batch, Overlap, batches};
use graph::tcsr::{Conversion, conversion};
use hw::{Dtype, Format, Seconds, Span};

use super::Machine;
use engine::verdict::Refused;

use super::judged::{Judged, Times, play};

/// Sequences of an event: its source, its target, and a target that is drawn against it.
const SEQUENCES_PER_EVENT: u64 = 3;
/// Steps that are played.
const N_STEPS: usize = 12;

/// What a system does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Whether rows are made by all threads.
    pub is_parallel_conversion: bool,
    /// Whether a query copies its whole past before it picks.
    pub copies_past: bool,
    /// Whether the host prepares while the GPU trains.
    pub overlap: Overlap,
    /// Whether features that a batch has twice are moved once.
    pub moves_once: bool,
    /// Whether the queries of a node in a batch are one sequence, in which its own slot closes each prefix.
    pub shares_sequences: bool,
    /// How neighbours are aggregated.
    pub aggregation: Aggregation,
}

/// How neighbours are aggregated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// A causal decoder over the sequence in 16 bits with fused attention: every position is computed in every layer.
    Decoder,
    /// Attention of the node to its neighbours in 32 bits, scores in memory: a row alone, but every layer below asks for its neighbours'.
    Query,
}

const TGL: Policy = Policy {
    name: "tgl",
    about: "TGL: parallel sampler on the host, T-CSR made by one thread, attention of the node in 32 bits, no overlap",
    is_parallel_conversion: false,
    copies_past: false,
    overlap: Overlap::None,
    moves_once: false,
    shares_sequences: false,
    aggregation: Aggregation::Query,
};
const TF_TGN: Policy = Policy {
    name: "tf-tgn",
    about: "TF-TGN: sequences into a decoder with fused attention, all steps parallel, sampling sliced and ahead of training",
    is_parallel_conversion: true,
    copies_past: false,
    overlap: Overlap::Ahead,
    moves_once: false,
    shares_sequences: true,
    aggregation: Aggregation::Decoder,
};

/// Every policy.
pub const POLICIES: [Policy; 7] = [
    TGL,
    Policy { name: "tgl-ahead", about: "TGL with batches prepared ahead of training", overlap: Overlap::Ahead, ..TGL },
    Policy {
        name: "etc",
        about: "ETC: TGL with redundant accesses of a batch removed and batches prepared ahead",
        overlap: Overlap::Ahead,
        moves_once: true,
        ..TGL
    },
    TF_TGN,
    Policy {
        name: "tf-tgn-release",
        about: "TF-TGN as its sampler was released: a query copies its whole past",
        copies_past: true,
        ..TF_TGN
    },
    Policy {
        name: "tf-tgn-apart",
        about: "TF-TGN with a sequence for every query, also of the same node",
        shares_sequences: false,
        ..TF_TGN
    },
    Policy {
        name: "tf-tgn-serial",
        about: "TF-TGN without overlap of sampling and training",
        overlap: Overlap::None,
        ..TF_TGN
    },
];

/// What is known of the past of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// Lengths of rows and how many have each.
    pub rows: Vec<(f64, f64)>,
    /// Mean slots before a query.
    pub before: f64,
    /// Mean log2 of a queried row's length.
    pub log2_length: f64,
    /// For every k of the question: mean neighbours that a query finds, and share of a batch's neighbours that are distinct, for
    /// every batch of the question.
    pub found: Vec<(f64, Vec<f64>)>,
    /// Share of a batch's queried nodes that are distinct, for every batch of the question.
    pub roots: Vec<f64>,
    /// What the graph is, in words.
    pub words: String,
}

impl Past {
    /// A query that finds so many neighbours, where so many bytes lie between two visits of a node.
    fn query(&self, found: f64, apart: f64) -> Job {
        Job::past(1.0, self.log2_length, found, apart)
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The past.
    pub past: Past,
    /// Events of an epoch, over all GPUs.
    pub n_events: f64,
    /// Epochs that share a conversion.
    pub n_epochs: u32,
    /// Numbers of a feature.
    pub width: u64,
    /// Numbers of a token.
    pub hidden: u64,
    /// Heads.
    pub n_heads: u64,
    /// Layers.
    pub n_layers: u32,
    /// Neighbours that may be taken.
    pub neighbours: Vec<u32>,
    /// Events of a batch on a GPU that may be taken.
    pub batches: Vec<u32>,
    /// Most threads of the host.
    pub threads_max: u32,
    /// What a thread takes.
    pub costs: HostCosts,
    /// Longest epoch that is accepted.
    pub epoch_s_max: f64,
    /// Machine.
    pub machine: Machine,
}

/// A choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Plan {
    /// Neighbours.
    pub neighbours: u32,
    /// Events of a batch on a GPU.
    pub batch: u32,
    /// Threads of the host, over all GPUs.
    pub threads: u32,
}

/// A choice with what it takes.
#[derive(Clone)]
struct Way {
    plan: Plan,
    times: Times,
    conversion: Conversion,
    /// Seconds of the host for a batch: sampling, gathering.
    host_s: [f64; 2],
    n_batches: f64,
    /// Low, expected, high.
    epoch_s: [f64; 3],
    /// What the GPU takes at the least.
    least_s: f64,
}

/// Decides and plays a policy.
pub fn judged(asked: &Asked, policy: &Policy, cost: &dyn CostModel) -> Judged<Plan> {
    let mut order: Vec<usize> = (0..asked.neighbours.len()).collect();
    order.sort_by_key(|at| u32::MAX - asked.neighbours[*at]);
    let (mut shortest, mut memory) = (f64::INFINITY, Ok(()));
    for k in order {
        let mut ways = Vec::new();
        for batch in 0..asked.batches.len() {
            let fits = fits(asked, policy, (k, batch));
            if fits.is_ok() {
                ways.extend(
                    threads(asked.threads_max).into_iter().map(|threads| way(asked, policy, (k, batch), threads, cost)),
                );
            } else {
                memory = fits;
            }
        }
        ways.sort_by(|a, b| a.epoch_s[1].total_cmp(&b.epoch_s[1]).then_with(|| a.plan.cmp(&b.plan)));
        let Some(best) = ways.first() else { continue };
        shortest = shortest.min(best.epoch_s[1]);
        if best.epoch_s[1] <= asked.epoch_s_max {
            return told::row(asked, policy, &ways);
        }
    }
    if shortest.is_finite() {
        let why = format!("the shortest epoch takes {shortest:.3} s, `budget.epoch_s` is {}", asked.epoch_s_max);
        return Judged::refused(Refused::infeasible(why));
    }
    Judged::refused(memory.err().unwrap_or_else(|| Refused::out_of_memory("there is no batch to train on")))
}

/// Numbers of threads that are tried: powers of two, and all.
fn threads(most: u32) -> Vec<u32> {
    let mut found: Vec<u32> = (0..31).map(|power| 1 << power).take_while(|n| *n < most).collect();
    found.push(most);
    found
}

/// Rows of neighbours that a batch asks for.
#[derive(Clone, Debug, PartialEq)]
struct Rows {
    /// Queries of each layer, the last layer first.
    queries: Vec<f64>,
    /// Neighbours of a query with itself.
    length: f64,
}

impl Rows {
    fn of(asked: &Asked, policy: &Policy, (k, batch): (usize, usize)) -> Self {
        let found = asked.past.found[k].0;
        let sequences = hw::real(SEQUENCES_PER_EVENT) * f64::from(asked.batches[batch]);
        if policy.aggregation == Aggregation::Query {
            // A layer needs the layer below for every neighbour.
            let mut queries = vec![sequences];
            for layer in 1..asked.n_layers as usize {
                queries.push(queries[layer - 1] * found.max(1.0));
            }
            return Self { queries, length: found + 1.0 };
        }
        let share = if policy.shares_sequences { asked.past.roots[batch] } else { 1.0 };
        // A node with m queries: k neighbours, one more for each query after the first, and its own slot for each.
        Self { queries: vec![sequences * share], length: found + 2.0 / share - 1.0 }
    }

    /// Queries of the host's sampler.
    fn n_queries(&self) -> f64 {
        self.queries.iter().sum()
    }

    /// Vertices whose features are moved.
    fn n_moved(&self) -> f64 {
        self.n_queries() * self.length
    }

    /// Sequences and their length as the GPU has them.
    fn whole(&self) -> [u64; 2] {
        [hw::whole(self.queries[0]).max(1), hw::whole(self.length).max(1)]
    }
}

/// Bytes of a batch on a GPU: features twice for the queue, and what backward needs of every layer.
fn batch_bytes(asked: &Asked, policy: &Policy, rows: &Rows) -> f64 {
    let tokens = rows.n_moved();
    let (hidden, width) = (hw::real(asked.hidden), hw::real(asked.width));
    let kept = match policy.aggregation {
        // Input, keys, queries and values, attention's result, and four widths between the products of the block: 9 of 2 bytes.
        Aggregation::Decoder => f64::from(asked.n_layers) * 18.0 * tokens * hidden,
        Aggregation::Query => 4.0 * (3.0 * tokens * hidden + 2.0 * tokens * hw::real(asked.n_heads)),
    };
    2.0 * tokens * (4.0 * width + 16.0) + kept
}

fn fits(asked: &Asked, policy: &Policy, at: (usize, usize)) -> Result<(), Refused> {
    let needed = batch_bytes(asked, policy, &Rows::of(asked, policy, at));
    let room = hw::real(asked.machine.memory_bytes);
    let (k, batch) = (asked.neighbours[at.0], asked.batches[at.1]);
    if needed <= room {
        return Ok(());
    }
    let (needed, room) = (needed / hw::GIB, room / hw::GIB);
    Err(Refused::out_of_memory(format!(
        "batches of {batch} events with {k} neighbours take {needed:.1} GiB, a GPU has {room:.1} GiB"
    )))
}

fn way(asked: &Asked, policy: &Policy, (k, batch): (usize, usize), threads: u32, cost: &dyn CostModel) -> Way {
    let plan = Plan { neighbours: asked.neighbours[k], batch: asked.batches[batch], threads };
    let (rows, distinct) = (Rows::of(asked, policy, (k, batch)), asked.past.found[k].1[batch]);
    let n_gpus = f64::from(asked.machine.cluster.n_gpus());
    let costs = &asked.costs;
    // Threads are shared by the GPUs; with fewer threads than GPUs a thread works for several.
    let threads_of_gpu = f64::from(threads) / n_gpus;
    let copied = if policy.copies_past { 3.0 * asked.past.before * costs.item_s } else { 0.0 };
    let row_bytes = hw::real(4 * asked.width);
    let apart = past_visits(&asked.past.rows, rows.length, row_bytes).apart();
    let query_s = costs.seconds(&asked.past.query(rows.length, apart)) + copied;
    let moved = rows.n_moved() * if policy.moves_once { distinct } else { 1.0 };
    let gather_s = costs.seconds(&Job::gather(moved, row_bytes, apart));
    let host_s = [rows.n_queries() * query_s / threads_of_gpu, gather_s / threads_of_gpu];
    let forward = ops(asked, policy, &rows, Pass::Forward);
    let least_s: f64 = forward.iter().map(|(op, n)| f64::from(*n) * cost.least(op).get()).sum();
    let step = Batch {
        n_workers: 1,
        preparing: Span::from_seconds(Seconds::new(host_s[0] + host_s[1])),
        copied_bytes: hw::whole(moved * (4.0 * hw::real(asked.width) + 16.0)),
        forward,
        backward: ops(asked, policy, &rows, Pass::Backward),
        reduced_bytes: 4 * n_weights(asked),
        overlap: policy.overlap,
    };
    let times = play(batches(&asked.machine.cluster, &step, N_STEPS), &asked.machine, cost, N_STEPS);
    let n_batches = (asked.n_events / (f64::from(plan.batch) * n_gpus)).ceil();
    let converting = if policy.is_parallel_conversion { threads } else { 1 };
    let conversion = conversion(&asked.past.rows, converting, costs);
    let once = conversion.seconds / f64::from(asked.n_epochs);
    let epoch_s = times.epoch_s(n_batches).map(|seconds| seconds + once);
    Way { plan, times, conversion, host_s, n_batches, epoch_s, least_s: least_s * n_batches }
}

/// Weights of the network.
fn n_weights(asked: &Asked) -> u64 {
    // Queries, keys, values, result: 4; the block behind: 8 in a decoder. A node's time is encoded in as many numbers as a token.
    let inside = u64::from(asked.n_layers) * 12 * asked.hidden * asked.hidden;
    inside + (asked.width + asked.hidden) * asked.hidden
}

/// Operations of a pass over a batch.
fn ops(asked: &Asked, policy: &Policy, rows: &Rows, pass: Pass) -> Ops {
    let [sequences, length] = rows.whole();
    let mut layer = Ops::new();
    let format = match policy.aggregation {
        Aggregation::Decoder => {
            layer = decoder(asked, sequences, length, pass);
            layer.iter_mut().for_each(|(_, n)| *n *= asked.n_layers);
            Format::Bf16
        }
        Aggregation::Query => {
            rows.queries.iter().for_each(|queries| layer.extend(query(asked, hw::whole(*queries).max(1), length)));
            Format::Fp32
        }
    };
    // Features and times of the deepest neighbours become tokens.
    let tokens = hw::whole(rows.queries[rows.queries.len() - 1] * rows.length).max(1);
    layer.push((Op::Gemm { m: tokens, n: asked.hidden, k: asked.width + asked.hidden, format }, 1));
    if pass == Pass::Backward {
        // Twice the products and traffic; attention has a pass of its own.
        for (op, n) in &mut layer {
            if !matches!(op, Op::Attention { .. }) {
                *n *= 2;
            }
        }
    }
    layer
}

/// A decoder's layer over whole sequences.
fn decoder(asked: &Asked, sequences: u64, length: u64, pass: Pass) -> Ops {
    let (hidden, tokens) = (asked.hidden, sequences * length);
    let product = |n: u64, k: u64| Op::Gemm { m: tokens, n, k, format: Format::Bf16 };
    let attention = Op::Attention {
        documents: vec![Document::causal(length); usize::try_from(sequences).expect("sequences of a batch")],
        n_heads: asked.n_heads,
        n_kv_heads: asked.n_heads,
        head_dim: hidden / asked.n_heads,
        kv: Dtype::Bf16,
        pass,
    };
    vec![
        (product(3 * hidden, hidden), 1),
        (attention, 1),
        (product(hidden, hidden), 1),
        (product(4 * hidden, hidden), 1),
        (product(hidden, 4 * hidden), 1),
        // Two norms, two residuals, one activation of four widths: read and write, 2 bytes.
        (Op::Elementwise { bytes: 4 * tokens * hidden * 8 }, 1),
    ]
}

/// Attention of one row of each sequence: keys and values of all neighbours, scores and weights through memory.
fn query(asked: &Asked, sequences: u64, length: u64) -> Ops {
    let (hidden, tokens) = (asked.hidden, sequences * length);
    let product = |m: u64, n: u64, k: u64| Op::Gemm { m, n, k, format: Format::Fp32 };
    vec![
        (product(tokens, 2 * hidden, hidden), 1),
        (product(sequences, hidden, hidden), 1),
        // Keys and values are read once each; scores are written, read, written as weights and read: 4 bytes.
        (Op::Elementwise { bytes: 8 * tokens * hidden + 16 * tokens * asked.n_heads }, 1),
        (product(sequences, hidden, hidden), 1),
        (product(sequences, 4 * hidden, hidden), 1),
        (product(sequences, hidden, 4 * hidden), 1),
        (Op::Elementwise { bytes: 8 * sequences * hidden * 8 }, 1),
    ]
}

#[cfg(test)]
mod tests;
