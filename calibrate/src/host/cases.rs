//! What is run under measurement: kernels of `graph` on graphs that are made for it, of a size in bytes.
//!
//! Degrees fall as a power law and neighbours are met by their degree, as in real graphs, so hubs are read more often than others. Every run
//! takes seeds of its own, and no run finds what the one before left in the caches but what any batch would.

use std::rc::Rc;
use std::sync::Arc;

use engine::random::{self, Stream};
use graph::Csr;
use graph::csr::{Direction, index};
use graph::distribution::Degrees;
use graph::epoch::{past_job, queries};
use graph::generate::{Bursts, bursts, configuration};
use graph::host::Job;
use graph::marks::Marks;
use graph::recurrence::{Again, Alike, Recurrence};
use graph::sample::{self, Hops, Replacement, Sampling, each_batch, touched_bytes};
use graph::subgraph::{self, Paths, Rule, Work};
use graph::tcsr::{Event, Reverse, TCsr, Take};
use rayon::prelude::*;

use super::clock::Clock;
use super::execute::gathered;

/// Neighbours of a vertex, picks at each of two hops, and whether a few vertices are met far more often than others. Rows are longer than the
/// picks, so all are drawn, or no longer, so all are taken.
const GRAPHS: [(u32, &[u32], bool); 4] =
    [(40, &[5, 10, 25], true), (40, &[5, 10, 25], false), (10, &[10], true), (10, &[10], false)];
/// Events of a vertex on average.
const EVENTS: [f64; 2] = [8.0, 200.0];
/// Seeds of a batch.
const BATCH: u32 = 512;
/// Seeds of a batch with a gather behind it: as many as loaders take, so that a page of rows is read several times in a batch as in an epoch.
const BATCH_LONG: u32 = 4096;
/// Such batches of a run, on each thread.
const BATCHES_LONG: u64 = 2;
/// Bytes of a row of features.
const ROW_BYTES: [u64; 4] = [64, 256, 1024, 4096];
/// Neighbours of the past.
const PASTS: [usize; 3] = [8, 32, 128];
/// Queries of a run, on each thread.
const QUERIES: u64 = 2048;
/// Most neighbours of a vertex that are taken for a subgraph.
const EXTRACTED: [u64; 3] = [8, 64, u32::MAX as u64];
/// Pairs of a run, on each thread.
const PAIRS: u64 = 64;
/// Exponent of the degrees of a graph that is extracted from.
const EXPONENT: f64 = 2.5;
/// Slots of a vertex of it on average.
const SLOTS: f64 = 16.0;
/// Least fan-out whose batches are long beside what is made once for all of them.
const LONG_FAN_OUT: u32 = 10;
/// Most bytes of a table of features.
pub const TABLE_MAX: f64 = 268_435_456.0;

/// A kernel on inputs of its own: runs it once on those of a number, and gives its seconds, without those of making the inputs, and what it did.
pub type Case = Box<dyn FnMut(u64) -> (f64, Vec<Job>)>;

/// Cases of a size.
pub fn of_size(bytes: f64) -> Vec<Case> {
    let mut cases = Vec::new();
    for (degree, fan_outs, has_hubs) in GRAPHS {
        let made = graph_of(bytes, degree, has_hubs);
        cases.extend(fan_outs.iter().map(|fan_out| sampling(&made, *fan_out, None)));
    }
    if bytes <= TABLE_MAX {
        cases.extend(gathers(bytes));
    }
    for degree in EVENTS {
        let Events { n_vertices, events, graph } = Events::of_size(bytes, degree);
        cases.push(conversion(n_vertices, &events, &graph));
        cases.extend(PASTS.map(|k| past(&events, &graph, k, None)));
    }
    let graph = Rc::new(extracted(bytes));
    cases.extend(EXTRACTED.map(|neighbours| extraction(&graph, neighbours)));
    cases
}

/// Sampling of graphs of so many bytes with a gather of a whole table between batches, as an epoch has it: rows come again with as much between as no
/// graph of a sweep has. Small fan-outs are left out, because their batches are too short for it.
pub fn sampling_apart(bytes: f64, table_bytes: f64) -> Vec<Case> {
    let table = Arc::new(Table::new(1024, table_bytes));
    let mut cases = Vec::new();
    for (degree, fan_outs, has_hubs) in GRAPHS {
        let made = graph_of(bytes, degree, has_hubs);
        let long = fan_outs.iter().filter(|fan_out| **fan_out >= LONG_FAN_OUT);
        cases.extend(long.map(|fan_out| sampling(&made, *fan_out, Some(Arc::clone(&table)))));
    }
    for degree in EVENTS {
        let Events { events, graph, .. } = Events::of_size(bytes, degree);
        cases.extend(PASTS.map(|k| past(&events, &graph, k, Some(Arc::clone(&table)))));
    }
    cases
}

/// Gathers from a table of so many bytes.
pub fn gathers(bytes: f64) -> Vec<Case> {
    ROW_BYTES.map(|row_bytes| gathering(row_bytes, bytes)).into()
}

/// A graph with the share of the slots that name each vertex.
struct Made {
    graph: Rc<Csr>,
    shares: Vec<f64>,
}

/// A directed graph of so many bytes, rows of one length. A neighbour is any vertex, or drawn from a law with a heavy tail.
fn graph_of(bytes: f64, degree: u32, has_hubs: bool) -> Made {
    let n_vertices = u32::try_from(hw::whole(bytes / (12.0 + 4.0 * f64::from(degree))).max(64)).expect("few vertices");
    let n_slots = u64::from(n_vertices) * u64::from(degree);
    let mut stream = random::stream(1, "host");
    // Pareto with an exponent of 2.5, never above an eighth of the graph.
    let mut owners = Vec::new();
    for vertex in 0..n_vertices {
        let drawn = if has_hubs { 3.0 * random::power(1.0 - stream.unit(), -1.0 / 1.5) } else { 1.0 };
        let own = hw::whole(drawn).clamp(1, u64::from(n_vertices / 8));
        owners.resize(owners.len() + index(own), vertex);
    }
    let n_owners = owners.len() as u64;
    let offsets = (0..=u64::from(n_vertices)).map(|vertex| vertex * u64::from(degree)).collect();
    let neighbours = (0..n_slots).map(|_| owners[index(stream.below(n_owners))]).collect();
    let mut shares = vec![0.0; n_vertices as usize];
    owners.iter().for_each(|owner| shares[*owner as usize] += 1.0 / hw::real(n_owners));
    let graph = Csr::from_parts(offsets, neighbours).expect("offsets rise and owners are vertices");
    Made { graph: Rc::new(graph), shares }
}

/// Rows of features, and an order of them that no prefetcher follows.
struct Table {
    width: u64,
    values: Vec<f32>,
    order: Vec<usize>,
}

impl Table {
    fn new(row_bytes: u64, bytes: f64) -> Self {
        let (width, n_rows) = (row_bytes / 4, hw::whole(bytes).div_euclid(row_bytes).max(2));
        let mut order: Vec<usize> = (0..index(n_rows)).collect();
        random::stream(0, "table").shuffle(&mut order);
        Self { width, values: vec![1.0; index(n_rows * width)], order }
    }

    /// Gathers all rows; seconds.
    fn gather(&self) -> f64 {
        gathered(&self.values, index(self.width), self.order.iter().copied())
    }

    /// Bytes that a gather reads and writes.
    fn bytes(&self) -> f64 {
        8.0 * hw::real(self.values.len() as u64)
    }
}

fn n_threads() -> u64 {
    rayon::current_num_threads() as u64
}

/// Sampling of two hops, and, where there is a table, a gather of it behind each batch that is not counted as time.
fn sampling(made: &Made, fan_out: u32, table: Option<Arc<Table>>) -> Case {
    let n_seeds = if table.is_some() { BATCH_LONG } else { BATCH };
    let rule = Sampling { fan_out: vec![fan_out; 2], replacement: Replacement::Without, batch: n_seeds, seed: 1 };
    let (graph, shares) = (Rc::clone(&made.graph), &made.shares);
    let n_vertices = f64::from(graph.n_vertices());
    // Marks of all vertices are made once for many batches, as in an epoch; batches of large fan-outs are longer.
    let of_thread = if table.is_some() { BATCHES_LONG } else { u64::from((64 / (fan_out / 5).pow(2)).max(4)) };
    let n_batches = n_threads() * of_thread;
    let besides = table.as_ref().map_or(0.0, |table| table.bytes());
    let batches = move |graph: &Csr, number| -> Vec<Vec<u32>> {
        let mut stream = random::stream(number, "seeds");
        (0..n_batches).map(|_| (0..n_seeds).map(|_| vertex(graph, &mut stream)).collect()).collect()
    };
    let of_job = if graph.degree(0) > u64::from(fan_out) { fan_out } else { 1 };
    // Caches outlive a run, so a vertex comes again by the chance that a batch has it.
    let n_picks = f64::from(n_seeds) * f64::from(fan_out);
    let bytes = touched_bytes(hw::real(graph.degree(0)), f64::from(fan_out));
    let alike = |share: &f64| {
        let missed = f64::from(n_seeds) / n_vertices + n_picks * share;
        Alike { count: 1.0, chance: 1.0 - random::power(std::f64::consts::E, -missed), bytes }
    };
    let rows: Vec<Alike> = shares.iter().map(alike).collect();
    // Both hops pick: the seeds', and that of all rows that a batch has.
    let n_rows = f64::from(n_seeds) + rows.iter().map(|alike| alike.chance).sum::<f64>();
    let rows = Recurrence::new(rows);
    let marks = Marks::new(shares, n_rows * f64::from(fan_out)).again(&rows, |_| besides);
    // Found once: there are as many rows as vertices.
    let rows: Vec<(f64, f64)> =
        rows.again().into_iter().map(|Again { share, steps }| (share, rows.bytes(steps) + besides)).collect();
    let jobs = move |n_rows: f64, n_picks: f64| {
        let of_rows = |(share, apart): &(f64, f64)| Job::rows(of_job, share * n_rows, *apart);
        let of_marks = |(share, apart): &(f64, f64)| Job::marks(of_job, share * n_picks, *apart);
        rows.iter().map(of_rows).chain(marks.iter().map(of_marks)).collect()
    };
    let run = move |number| {
        let batches = batches(&graph, number);
        let own = random::stream(number, "picks");
        let clock = Clock::of_pool();
        let found = each_batch(&graph, &batches, &rule, &own, |_, hops| {
            (sizes(hops), table.as_ref().map_or(0.0, |table| table.gather()))
        });
        let seconds = clock.seconds();
        let gathers = found.iter().map(|(_, gather)| gather).sum::<f64>() / hw::real(n_threads());
        let [rows, picks] = found.into_iter().fold([0; 2], |sum, (own, _)| [sum[0] + own[0], sum[1] + own[1]]);
        (seconds - gathers, jobs(hw::real(rows), hw::real(picks)))
    };
    Box::new(run)
}

/// Rows that a batch reads and neighbours that it picks.
fn sizes(hops: &Hops) -> [u64; 2] {
    let n_rows = hops.frontiers[..hops.n_picks.len()].iter().map(|frontier| frontier.len() as u64).sum();
    [n_rows, hops.n_picks.iter().sum()]
}

fn vertex(graph: &Csr, stream: &mut Stream) -> u32 {
    u32::try_from(stream.below(u64::from(graph.n_vertices()))).expect("a vertex")
}

/// Every row of a table once a run, in another order each time: between two visits of a row lie the table and what is written.
fn gathering(row_bytes: u64, bytes: f64) -> Case {
    let (width, n_rows) = (row_bytes / 4, hw::whole(bytes).div_euclid(row_bytes).max(2));
    let table = vec![1.0_f32; index(n_rows * width)];
    // Loaders keep their batches; pages of new ones would be made while they are written.
    let mut kept = vec![Vec::new(); index(n_threads())];
    let mut orders = vec![(0..index(n_rows)).collect::<Vec<usize>>(); index(n_threads())];
    let run = move |number| {
        let stream = random::stream(number, "rows");
        (0..).zip(&mut orders).for_each(|(thread, order)| stream.branch(thread).shuffle(order));
        let clock = Clock::of_pool();
        orders.par_iter().zip(&mut kept).for_each(|(rows, batch)| {
            sample::gather(&table, index(width), rows.iter().copied(), batch);
        });
        let seconds = clock.seconds();
        let rows = hw::real(n_rows);
        let apart = 2.0 * rows * hw::real(row_bytes);
        (seconds, vec![Job::gather(hw::real(n_threads()) * rows, hw::real(row_bytes), apart)])
    };
    Box::new(run)
}

/// An undirected graph of so many bytes whose degrees fall as a power law.
fn extracted(bytes: f64) -> Csr {
    let n_vertices = (bytes / (8.0 + 4.0 * SLOTS)).max(256.0);
    let degrees = Degrees::power_law(n_vertices, SLOTS * n_vertices, EXPONENT).rounded();
    let edges = configuration(&degrees, 1);
    let n = degrees.iter().map(|(_, count)| count).sum::<u64>();
    let n = u32::try_from(n).expect("graphs of a sweep are small");
    Csr::from_edges(n, &edges, Direction::Undirected).expect("vertices that there are").0
}

/// Subgraphs of pairs, with at most so many neighbours of each end.
fn extraction(graph: &Rc<Csr>, neighbours_max: u64) -> Case {
    let graph = Rc::clone(graph);
    let rule = Rule { hops: 1, ratio: 1.0, neighbours_max, paths: Paths::WithoutEdge };
    let apart = subgraph::visits(&Degrees::of(&graph)).apart();
    let run = move |number| {
        let stream = random::stream(number, "pairs");
        let n_pairs = PAIRS * n_threads();
        let pairs = subgraph::pairs(&graph, n_pairs, &stream);
        let clock = Clock::of_pool();
        let works = subgraph::works(&graph, &pairs, &rule, &stream);
        let seconds = clock.seconds();
        let n_pairs = hw::real(n_pairs);
        let mean = works.into_iter().fold(Work::default(), Work::plus).times(1.0 / n_pairs);
        (seconds, vec![Job::extract(n_pairs, &mean, apart)])
    };
    Box::new(run)
}

/// A temporal graph, as events and converted.
struct Events {
    n_vertices: u32,
    events: Rc<Vec<Event>>,
    graph: Rc<TCsr>,
}

impl Events {
    /// One whose slots take so many bytes.
    fn of_size(bytes: f64, degree: f64) -> Self {
        let n_events = hw::whole(bytes / 48.0).max(64);
        let n_vertices = hw::whole(hw::real(2 * n_events) / degree).max(2);
        let n_vertices = u32::try_from(n_vertices).expect("graphs of a sweep are small");
        let shape = Bursts { n_vertices, n_events, length: 4.0, skew: 2.0, span: 1 << 40 };
        let events = Rc::new(bursts(&shape, 1));
        let graph = Rc::new(TCsr::convert(n_vertices, &events, Reverse::With).expect("vertices that there are"));
        Self { n_vertices, events, graph }
    }
}

fn conversion(n_vertices: u32, events: &Rc<Vec<Event>>, graph: &TCsr) -> Case {
    let (events, job) = (Rc::clone(events), Job::convert(&graph.row_lengths()));
    let run = move |_| {
        let clock = Clock::of_pool();
        let made = TCsr::convert(n_vertices, &events, Reverse::With).expect("vertices that there are");
        let seconds = clock.seconds();
        std::hint::black_box(made);
        (seconds, vec![job.clone()])
    };
    Box::new(run)
}

/// Neighbours of the past, and, where there is a table, a gather of it before each batch that is not counted as time.
fn past(events: &Rc<Vec<Event>>, graph: &Rc<TCsr>, k: usize, table: Option<Arc<Table>>) -> Case {
    let (events, graph) = (Rc::clone(events), Rc::clone(graph));
    let run = move |number| {
        // A batch of events that follow each other, as training takes them.
        let stream = random::stream(number, "queries");
        let n = (QUERIES * n_threads() / 2).min(events.len() as u64);
        let first = index(stream.branch(0).below(events.len() as u64 - n + 1));
        let batch = &events[first..first + index(n)];
        let queries = queries(batch);
        if let Some(table) = &table {
            rayon::broadcast(|_| table.gather());
        }
        let besides = table.as_ref().map_or(0.0, |table| table.bytes()) / hw::real(queries.len() as u64);
        let mut seconds = 0.0;
        let job = past_job(&graph, &queries, besides, |queries| {
            let clock = Clock::of_pool();
            let sampled = graph.sample_all(queries, k, Take::Recent, &stream);
            seconds = clock.seconds();
            sampled
        });
        (seconds, vec![job])
    };
    Box::new(run)
}
