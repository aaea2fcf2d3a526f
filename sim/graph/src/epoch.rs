//! What a host does in an epoch of a question, as jobs that are predicted: counted on an epoch of its own, not on the one that is executed.

use engine::random;

use crate::csr::{Csr, index};
use crate::distribution::Degrees;
use crate::host::{Job, log2};
use crate::marks::Marks;
use crate::recurrence::{Again, Alike, Recurrence};
use crate::sample::{Replacement, Sampling, Visits, batches, epoch_stream, touched_bytes, visits};
use crate::subgraph::{self, Rule, Work};
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
    /// Subgraphs of pairs are extracted and labelled.
    Pairs {
        /// Graph.
        graph: Csr,
        /// Pairs.
        n_pairs: u64,
        /// Which subgraph.
        rule: Rule,
        /// Seed of the pairs.
        seed: u64,
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
    pub fn terms(&self) -> Vec<Term> {
        match self {
            Self::Sampled { graph, train, sampling, width } => sampled(graph, train, sampling, *width),
            Self::Past { n_vertices, events, reverse, k, take, batch, width } => {
                let graph = TCsr::convert(*n_vertices, events, *reverse).expect("readers check events");
                let mut terms = vec![Term { name: "conversion", jobs: vec![Job::convert(&graph.row_lengths())] }];
                terms.extend(past(&graph, events, (*k, *take), *batch, *width));
                terms
            }
            Self::Pairs { graph, n_pairs, rule, seed } => {
                let work = mean_work(graph, *n_pairs, rule, *seed);
                let apart = subgraph::visits(&Degrees::of(graph)).apart();
                vec![Term { name: "extraction", jobs: vec![Job::extract(hw::real(*n_pairs), &work, apart)] }]
            }
        }
    }

    /// Bytes of the largest array that it reads at random.
    pub fn bytes(&self) -> f64 {
        match self {
            Self::Sampled { graph, width, .. } => {
                hw::real(graph.bytes().max(4 * width * u64::from(graph.n_vertices())))
            }
            Self::Past { events, width, .. } => hw::real(events.len() as u64 * (4 * width).max(48)),
            Self::Pairs { graph, .. } => hw::real(graph.bytes()),
        }
    }
}

/// Pairs of an epoch with this number, and the stream of what is drawn for them.
pub fn pairs(graph: &Csr, n_pairs: u64, seed: u64, number: u32) -> (Vec<[u32; 2]>, random::Stream) {
    let stream = random::stream(seed, "pairs of an epoch").branch(u64::from(number));
    (subgraph::pairs(graph, n_pairs, &stream), stream)
}

/// Mean work of a pair.
fn mean_work(graph: &Csr, n_pairs: u64, rule: &Rule, seed: u64) -> Work {
    let (pairs, stream) = pairs(graph, n_pairs, seed, COUNTED);
    let all = subgraph::works(graph, &pairs, rule, &stream);
    all.into_iter().fold(Work::default(), Work::plus).times(1.0 / hw::real(n_pairs.max(1)))
}

fn sampled(graph: &Csr, train: &[u32], sampling: &Sampling, width: u64) -> Vec<Term> {
    let all = batches(train, sampling, COUNTED, 0);
    let found = visits(graph, &all, sampling, &epoch_stream(sampling, COUNTED, 0));
    let between = Between::new(graph, &found, hw::real(4 * width));
    vec![
        Term { name: "sampling", jobs: sampling_jobs(graph, sampling, &found, &between) },
        Term { name: "gather", jobs: gather_jobs(&found, &between) },
    ]
}

/// What an epoch reads between two visits of a row. A batch is sampled and gathered in turn, so each pushes the other out of the caches.
struct Between {
    rows: Recurrence,
    features: Recurrence,
    row_bytes: f64,
    /// Bytes of a gathered batch, written over the one before.
    written: f64,
}

impl Between {
    fn new(graph: &Csr, visits: &Visits, row_bytes: f64) -> Self {
        let last = visits.rows.last().expect("an epoch has a hop");
        let bytes = mean_touched_bytes(graph, visits);
        Self {
            rows: Recurrence::of_visits(last, visits.n_batches, bytes),
            features: Recurrence::of_visits(&visits.gathers, visits.n_batches, row_bytes),
            row_bytes,
            written: gathered(visits) / hw::real(visits.n_batches) * row_bytes,
        }
    }

    fn bytes(&self, batches: f64) -> f64 {
        self.rows.bytes(batches) + self.gathered_bytes(batches)
    }

    /// Bytes of features that so many batches read and write.
    fn gathered_bytes(&self, batches: f64) -> f64 {
        self.features.bytes(batches) + self.written
    }
}

/// Rows that an epoch gathers.
fn gathered(visits: &Visits) -> f64 {
    hw::real(*visits.n_vertices.last().expect("the gathered set is counted"))
}

/// Bytes that a visit of a row touches on average.
fn mean_touched_bytes(graph: &Csr, visits: &Visits) -> f64 {
    let (mut n_visits, mut slots) = (0.0, 0.0);
    for hop in &visits.rows {
        for (vertex, &n) in (0..).zip(hop) {
            n_visits += f64::from(n);
            slots += f64::from(n) * hw::real(graph.degree(vertex));
        }
    }
    let picks = hw::real(visits.n_picks.iter().sum::<u64>()) / f64::max(n_visits, 1.0);
    touched_bytes(slots / f64::max(n_visits, 1.0), picks)
}

/// How often each vertex is picked in an epoch, expected from the rows that were read.
fn picked(graph: &Csr, sampling: &Sampling, visits: &Visits) -> Vec<f64> {
    let mut picked = vec![0.0; graph.n_vertices() as usize];
    for (visits, &fan_out) in visits.rows.iter().zip(&sampling.fan_out) {
        for (vertex, &n) in (0..).zip(visits).filter(|(_, n)| **n > 0) {
            let row = graph.row(vertex);
            let degree = hw::real(row.len() as u64);
            let taken = match sampling.replacement {
                Replacement::With => f64::from(fan_out),
                Replacement::Without => degree.min(f64::from(fan_out)),
            };
            let each = f64::from(n) * taken / degree.max(1.0);
            row.iter().for_each(|neighbour| picked[index(u64::from(*neighbour))] += each);
        }
    }
    picked
}

/// Sampling of every hop of an epoch: rows that are longer than the fan-out, and those that are taken whole, with the marks of both.
fn sampling_jobs(graph: &Csr, sampling: &Sampling, visits: &Visits, between: &Between) -> Vec<Job> {
    let again = between.rows.again();
    let picked = picked(graph, sampling, visits);
    let n_picks = picked.iter().sum::<f64>() / hw::real(visits.n_batches.max(1));
    let marks = Marks::new(&picked, n_picks).again(&between.rows, |batches| between.gathered_bytes(batches));
    let mut jobs = Vec::new();
    for (visits, &fan_out) in visits.rows.iter().zip(&sampling.fan_out) {
        let (mut whole, mut drawn) = ([0.0; 2], [0.0; 2]);
        for (vertex, &n) in (0..).zip(visits) {
            let (degree, n) = (graph.degree(vertex), f64::from(n));
            let is_drawn = degree > u64::from(fan_out) || sampling.replacement == Replacement::With;
            let sums = if is_drawn { &mut drawn } else { &mut whole };
            sums[0] += n;
            sums[1] += n * if is_drawn { f64::from(fan_out) } else { hw::real(degree) };
        }
        for Again { share, steps } in &again {
            let apart = between.bytes(*steps);
            jobs.push(Job::rows(fan_out, share * drawn[0], apart));
            jobs.push(Job::rows(1, share * whole[0], apart));
        }
        for (share, apart) in &marks {
            jobs.push(Job::marks(fan_out, share * drawn[1], *apart));
            jobs.push(Job::marks(1, share * whole[1], *apart));
        }
    }
    jobs.retain(|job| job.reads > 0.0);
    jobs
}

/// Gather of an epoch.
fn gather_jobs(visits: &Visits, between: &Between) -> Vec<Job> {
    let rows = gathered(visits);
    let job = |again: &Again| Job::gather(again.share * rows, between.row_bytes, between.bytes(again.steps));
    between.features.again().iter().map(job).collect()
}

/// Queries of a batch: both ends of every event, at its moment.
pub fn queries(events: &[Event]) -> Vec<(u32, u64)> {
    events.iter().flat_map(|event| [(event.source, event.time), (event.target, event.time)]).collect()
}

fn past(graph: &TCsr, events: &[Event], (k, take): (usize, Take), batch: usize, width: u64) -> Vec<Term> {
    let all: Vec<&[Event]> = events.chunks(batch).collect();
    let looked_at = all.iter().step_by(all.len().div_ceil(N_LOOKED_AT));
    let (mut n, mut found, mut log2_length) = (0.0, 0.0, 0.0);
    for batch in looked_at {
        let job = past_job(graph, &queries(batch), 0.0, |queries| {
            graph.sample_all(queries, k, take, &random::stream(0, "counted past"))
        });
        let own = hw::real(2 * batch.len() as u64);
        n += own;
        found += job.items / 3.0;
        log2_length += job.reads;
    }
    let n_queries = hw::real(2 * events.len() as u64);
    let found = found / n;
    let row_bytes = hw::real(4 * width);
    let apart = past_visits(&graph.row_lengths(), found, row_bytes).apart();
    let sampling = Job::past(n_queries, log2_length / n, found, apart);
    let gather = Job::gather(n_queries * found, row_bytes, apart);
    vec![Term { name: "sampling", jobs: vec![sampling] }, Term { name: "gather", jobs: vec![gather] }]
}

/// What queries of the past read, a query a step: the slots of a node's row, and the features of what is found there. A node is met by its slots.
pub fn past_visits(rows: &[(f64, f64)], found: f64, row_bytes: f64) -> Recurrence {
    let n_slots: f64 = rows.iter().map(|(length, count)| length * count).sum();
    let alike = |&(length, count): &(f64, f64)| {
        // A halving of the binary search is a line; a slot has three numbers of 64 bits.
        let slots = 64.0 * log2(length) + 24.0 * found.min(length);
        Alike { count, chance: (length / n_slots).min(1.0), bytes: slots + found.min(length) * row_bytes }
    };
    Recurrence::new(rows.iter().map(alike).collect())
}

/// What sampling of the past does, by doing it. So many bytes are read or written beside each query.
pub fn past_job(
    graph: &TCsr,
    queries: &[(u32, u64)],
    besides: f64,
    sample: impl FnOnce(&[(u32, u64)]) -> Vec<Vec<Past>>,
) -> Job {
    let sampled = sample(queries);
    let n = hw::real(queries.len().max(1) as u64);
    let found: usize = sampled.iter().map(Vec::len).sum();
    let log2_length: f64 = queries.iter().map(|(vertex, _)| log2(hw::real(graph.degree(*vertex)))).sum();
    let found = hw::real(found as u64) / n;
    Job::past(n, log2_length / n, found, past_visits(&graph.row_lengths(), found, besides / found.max(1.0)).apart())
}
