//! What a host does in an epoch of a question, as jobs that are predicted: counted on an epoch of its own, not on the one that is executed.

use engine::random;

use crate::csr::Csr;
use crate::host::{Job, log2};
use crate::sample::{Sampling, batches, epoch_stream, visits};
use crate::tcsr::{Event, Past, Reverse, TCsr, Take};

/// Number of the epoch that jobs are counted on.
const COUNTED: u32 = 1;
/// Batches of the past that are looked at.
const N_LOOKED_AT: usize = 64;

/// An epoch of a question on a graph in memory.
#[derive(Clone, Debug)]
pub enum Epoch {
    /// Batches of training vertices are sampled and their features gathered.
    Sampled {
        /// Graph.
        graph: Csr,
        /// Training vertices.
        train: Vec<u32>,
        /// How neighbours are picked.
        sampling: Sampling,
        /// Numbers of a feature.
        width: u64,
    },
    /// Events are converted, and the past of their ends is sampled and gathered.
    Past {
        /// Vertices.
        n_vertices: u32,
        /// Events in the order of time.
        events: Vec<Event>,
        /// Whether an event is a slot of both ends.
        reverse: Reverse,
        /// Neighbours.
        k: usize,
        /// Which.
        take: Take,
        /// Events of a batch.
        batch: usize,
        /// Numbers of an event's feature.
        width: u64,
    },
}

/// A part of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub jobs: Vec<Job>,
}

impl Epoch {
    /// Parts of the epoch with what they are predicted to do.
    #[must_use]
    pub fn terms(&self) -> Vec<Term> {
        match self {
            Self::Sampled { graph, train, sampling, width } => sampled(graph, train, sampling, *width),
            Self::Past { n_vertices, events, reverse, k, take, batch, width } => {
                let graph = TCsr::convert(*n_vertices, events, *reverse).expect("readers check events");
                let mut terms = vec![Term { name: "conversion", jobs: vec![Job::convert(&graph.row_lengths())] }];
                terms.extend(past(&graph, events, (*k, *take), *batch, *width));
                terms
            }
        }
    }

    /// Bytes of the largest array that it reads at random.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        match self {
            Self::Sampled { graph, width, .. } => {
                hw::real(graph.bytes().max(4 * width * u64::from(graph.n_vertices())))
            }
            Self::Past { events, width, .. } => hw::real(events.len() as u64 * (4 * width).max(48)),
        }
    }
}

fn sampled(graph: &Csr, train: &[u32], sampling: &Sampling, width: u64) -> Vec<Term> {
    let all = batches(train, sampling, COUNTED, 0);
    let found = visits(graph, &all, sampling, &epoch_stream(sampling, COUNTED, 0));
    let gather = Job::gathered(width, &found);
    vec![
        Term { name: "sampling", jobs: Job::sampled(graph, sampling, &found) },
        Term { name: "gather", jobs: vec![gather] },
    ]
}

/// Queries of a batch: both ends of every event, at its moment.
#[must_use]
pub fn queries(events: &[Event]) -> Vec<(u32, u64)> {
    events.iter().flat_map(|event| [(event.source, event.time), (event.target, event.time)]).collect()
}

fn past(graph: &TCsr, events: &[Event], (k, take): (usize, Take), batch: usize, width: u64) -> Vec<Term> {
    let all: Vec<&[Event]> = events.chunks(batch).collect();
    let looked_at = all.iter().step_by(all.len().div_ceil(N_LOOKED_AT));
    let (mut n, mut found, mut log2_length) = (0.0, 0.0, 0.0);
    for batch in looked_at {
        let job = past_job(graph, &queries(batch), |queries| {
            graph.sample_all(queries, k, take, &random::stream(0, "counted past"))
        });
        let own = hw::real(2 * batch.len() as u64);
        n += own;
        found += job.items / 3.0;
        log2_length += job.reads;
    }
    let (n_queries, slot_bytes) = (hw::real(2 * events.len() as u64), hw::real(24 * graph.edges.len() as u64));
    let sampling = Job::past(n_queries, log2_length / n, found / n, slot_bytes);
    let row_bytes = hw::real(4 * width);
    let rows = n_queries * found / n;
    let gather = Job::gather(rows, row_bytes, hw::real(events.len() as u64));
    vec![Term { name: "sampling", jobs: vec![sampling] }, Term { name: "gather", jobs: vec![gather] }]
}

/// What sampling of the past does, by doing it.
pub fn past_job(graph: &TCsr, queries: &[(u32, u64)], sample: impl FnOnce(&[(u32, u64)]) -> Vec<Vec<Past>>) -> Job {
    let sampled = sample(queries);
    let n = hw::real(queries.len().max(1) as u64);
    let found: usize = sampled.iter().map(Vec::len).sum();
    let log2_length: f64 = queries.iter().map(|(vertex, _)| log2(hw::real(graph.degree(*vertex)))).sum();
    let slot_bytes = hw::real(24 * graph.edges.len() as u64);
    Job::past(n, log2_length / n, hw::real(found as u64) / n, slot_bytes)
}
