//! Graphs from a seed: R-MAT, preferential attachment, a table of degrees, and events in bursts.
//!
//! Every edge or burst draws from a stream of its own, so a graph is the same on any number of threads. Vertices of R-MAT are the numbers of
//! the recursion as they are: hubs have low ids.

use engine::random::{self, Stream};
use rayon::prelude::*;

use crate::csr::index;
use crate::tcsr::Event;

/// Probabilities of the quadrants of an adjacency matrix, upper left first; they add up to 1 with the last (Chakrabarti, Zhan, Faloutsos,
/// SDM 2004).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quadrants {
    /// Upper left: hubs to hubs.
    pub a: f64,
    /// Upper right.
    pub b: f64,
    /// Lower left.
    pub c: f64,
}

impl Quadrants {
    /// Those of the Graph500 benchmark.
    pub const GRAPH500: Self = Self { a: 0.57, b: 0.19, c: 0.19 };

    /// Equal off-diagonals around this weight of the upper left; 0.25 has no skew. The lower right keeps the rest, as the benchmark's do
    /// (0.05 of 0.43 there).
    pub fn skewed(a: f64) -> Self {
        assert!((0.25..1.0).contains(&a), "a quadrant has at least its share, found {a}");
        // From one quarter each to the benchmark's proportions as the skew grows.
        let side = 0.25 + (0.19 - 0.25) * ((a - 0.25) / (0.57 - 0.25)).min(1.0);
        let side = side.min((1.0 - a) / 2.0);
        Self { a, b: side, c: side }
    }
}

/// Edges of an R-MAT graph of 2^`scale` vertices.
///
/// # Panics
/// When there are more vertices than ids.
pub fn rmat(scale: u32, n_edges: u64, quadrants: Quadrants, seed: u64) -> Vec<(u32, u32)> {
    assert!(scale < 32, "vertices have ids below 2^32");
    let stream = random::stream(seed, "rmat");
    (0..n_edges).into_par_iter().map(|edge| rmat_edge(scale, quadrants, stream.branch(edge))).collect()
}

fn rmat_edge(scale: u32, quadrants: Quadrants, mut stream: Stream) -> (u32, u32) {
    let Quadrants { a, b, c } = quadrants;
    let (mut from, mut to) = (0, 0);
    for _ in 0..scale {
        let at = stream.unit();
        let (down, right) = if at < a {
            (0, 0)
        } else if at < a + b {
            (0, 1)
        } else if at < a + b + c {
            (1, 0)
        } else {
            (1, 1)
        };
        from = 2 * from + down;
        to = 2 * to + right;
    }
    (from, to)
}

/// Edges of a Barabási-Albert graph: every vertex brings `per_vertex` edges to earlier ones, drawn by their degree. An edge finds its end
/// by following the positions that it drew, without the edges before it (Sanders, Schulz, IPL 2016).
///
/// # Panics
/// When there is no vertex or no edge for each.
pub fn barabasi_albert(n_vertices: u32, per_vertex: u32, seed: u64) -> Vec<(u32, u32)> {
    assert!(n_vertices > 0 && per_vertex > 0, "a vertex brings an edge");
    let stream = random::stream(seed, "barabasi-albert");
    let n_edges = u64::from(n_vertices) * u64::from(per_vertex);
    let edge = |edge: u64| (small(edge / u64::from(per_vertex)), attached(edge, per_vertex, &stream));
    (0..n_edges).into_par_iter().map(edge).collect()
}

/// Where an edge ends. Positions 2e and 2e + 1 are the ends of edge e.
fn attached(edge: u64, per_vertex: u32, stream: &Stream) -> u32 {
    let mut edge = edge;
    loop {
        let position = stream.branch(edge).below(2 * edge + 1);
        if position.is_multiple_of(2) {
            return small(position / 2 / u64::from(per_vertex));
        }
        edge = position / 2;
    }
}

/// Edges of a configuration model: vertices by degree, as many of each as the table says, with stubs joined at random. A stub that is
/// left over stays alone.
pub fn configuration(degrees: &[(u64, u64)], seed: u64) -> Vec<(u32, u32)> {
    let mut stubs = Vec::new();
    let mut vertex = 0_u32;
    for &(degree, count) in degrees {
        for _ in 0..count {
            stubs.resize(stubs.len() + index(degree), vertex);
            vertex += 1;
        }
    }
    let stream = random::stream(seed, "configuration");
    let mut keyed: Vec<(u64, u32)> =
        stubs.into_par_iter().enumerate().map(|(at, stub)| (stream.branch(at as u64).next_u64(), stub)).collect();
    keyed.par_sort_unstable();
    keyed.chunks_exact(2).map(|pair| (pair[0].1, pair[1].1)).collect()
}

/// What events in bursts look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// Vertices.
    pub n_vertices: u32,
    /// Events.
    pub n_events: u64,
    /// Events of a burst, on average.
    pub length: f64,
    /// Exponent by which a few vertices act most: the rank of a vertex is drawn as V · u^exponent; 1 is uniform.
    pub skew: f64,
    /// Time that all events fill; an event of a burst follows the one before after a thousandth of it on average.
    pub span: u64,
}

/// Events in the order of time; the position of an event is its id.
pub fn bursts(shape: &Bursts, seed: u64) -> Vec<Event> {
    let stream = random::stream(seed, "bursts");
    let per_burst = hw::whole(shape.length.max(1.0));
    let n_bursts = shape.n_events.div_ceil(per_burst);
    let mut events: Vec<Event> = (0..n_bursts)
        .into_par_iter()
        .flat_map_iter(|burst| {
            let n = per_burst.min(shape.n_events - burst * per_burst);
            burst_events(shape, stream.branch(burst), n)
        })
        .collect();
    // A stable sort: events of the same time stay in the order of their bursts.
    events.par_sort_by_key(|event| event.time);
    events
}

fn burst_events(shape: &Bursts, mut stream: Stream, n: u64) -> Vec<Event> {
    let source = actor(shape, &mut stream);
    let mut target = actor(shape, &mut stream);
    let mut time = hw::real(shape.span) * stream.unit();
    let mut events = Vec::with_capacity(index(n));
    for _ in 0..n {
        events.push(Event { source, target, time: hw::whole(time) });
        time += stream.exponential() * hw::real(shape.span) / 1000.0;
        // Half of a burst's events stay with the partner.
        if stream.unit() < 0.5 {
            target = actor(shape, &mut stream);
        }
    }
    events
}

/// A vertex, low ids more often.
fn actor(shape: &Bursts, stream: &mut Stream) -> u32 {
    let n = f64::from(shape.n_vertices);
    let at = libm::floor(n * random::power(stream.unit(), shape.skew));
    small(hw::whole(at.min(n - 1.0)))
}

fn small(vertex: u64) -> u32 {
    u32::try_from(vertex).expect("a vertex has an id below 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr::{Csr, Direction};

    fn degrees(edges: &[(u32, u32)], n: u32) -> Vec<u64> {
        let (graph, _) = Csr::from_edges(n, edges, Direction::Undirected).expect("a graph");
        let mut found: Vec<u64> = (0..n).map(|vertex| graph.degree(vertex)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn the_same_seed_is_the_same_graph_on_any_number_of_threads() {
        let make = |n_threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("threads");
            pool.install(|| {
                let shape = Bursts { n_vertices: 50, n_events: 999, length: 8.0, skew: 2.0, span: 10_000 };
                (
                    rmat(8, 2000, Quadrants::GRAPH500, 7),
                    barabasi_albert(300, 3, 7),
                    configuration(&[(1, 100), (4, 20)], 7),
                    bursts(&shape, 7),
                )
            })
        };
        let one = make(1);
        assert_eq!(one, make(2));
        assert_eq!(one, make(8));
        assert_ne!(one.0, rmat(8, 2000, Quadrants::GRAPH500, 8));
        assert_eq!(one.3.len(), 999);
        assert!(one.3.is_sorted_by_key(|event| event.time));
    }

    #[test]
    fn quadrants_have_their_share_of_the_edges() {
        // The first bit of both ends is 0 with probability a = 0.57; of 20,000 edges the standard deviation is 0.0035.
        let edges = rmat(10, 20_000, Quadrants::GRAPH500, 3);
        let upper_left = edges.iter().filter(|(from, to)| *from < 512 && *to < 512).count();
        assert!((hw::real(upper_left as u64) / 20_000.0 - 0.57).abs() < 0.014, "{upper_left}");
        // Without skew every degree is near the mean; with it the largest is far above.
        let flat = degrees(&rmat(10, 20_000, Quadrants::skewed(0.25), 3), 1024);
        let skewed = degrees(&edges, 1024);
        assert!(flat[1023] < 80 && skewed[1023] > 250, "{} {}", flat[1023], skewed[1023]);
    }

    #[test]
    fn preferential_attachment_has_its_power_law() {
        // P(degree >= d) falls as d^-2: from 8 to 32 by 16, within sampling and small-degree effects.
        let found = degrees(&barabasi_albert(20_000, 4, 1), 20_000);
        let at_least = |d: u64| hw::real(found.iter().filter(|&&degree| degree >= d).count() as u64);
        let fall = at_least(8) / at_least(32);
        assert!((9.0..25.0).contains(&fall), "{fall}");
    }

    #[test]
    fn a_table_of_degrees_is_met_but_for_loops_and_duplicates() {
        let found = degrees(&configuration(&[(2, 5000), (10, 1000)], 5), 6000);
        let sum: u64 = found.iter().sum();
        // 20,000 stubs; a few pairs are loops or duplicates.
        assert!((19_800..=20_000).contains(&sum), "{sum}");
        assert!(found[0] <= 2 && found[5999] == 10);
    }
}
