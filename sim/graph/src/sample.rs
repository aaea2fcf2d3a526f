//! Sampling of neighbours over several hops, as loaders of graph training do it, and how often each vertex is visited.
//!
//! The frontier of hop h + 1 is the frontier of hop h and what was picked from it, each vertex once; the last one is the gathered set. What a
//! vertex picks is drawn from a stream of (epoch, batch, hop, vertex), so batches run in parallel with the same result on any number of
//! threads. Sources: GraphSAGE (arXiv:1706.02216); fan-out 25 and 10 in Legion (arXiv:2305.16588).

use std::sync::atomic::{AtomicU32, Ordering};

use engine::random::{self, Stream};
use rayon::prelude::*;

use crate::csr::{Csr, LINE_BYTES, index};

/// Whether a neighbour may be picked twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Distinct neighbours; all of them where there are no more than picks.
    Without,
    /// Each pick by itself.
    With,
}

/// How neighbours are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Picks of a vertex at each hop, first hop first.
    pub fan_out: Vec<u32>,
    /// Whether twice.
    pub replacement: Replacement,
    /// Seeds of a batch on a GPU.
    pub batch: u32,
    /// Seed of the draws.
    pub seed: u64,
}

/// What a batch reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hops {
    /// Vertices at each hop, each once; those of an earlier hop come first. The last is what is gathered.
    pub frontiers: Vec<Vec<u32>>,
    /// Edges picked at each hop.
    pub n_picks: Vec<u64>,
}

/// Marks of one thread: which vertices a batch has.
struct Marks {
    mark: Vec<u32>,
    now: u32,
}

impl Marks {
    fn new(n_vertices: u32) -> Self {
        Self { mark: vec![0; n_vertices as usize], now: 0 }
    }

    /// Forgets all.
    fn clear(&mut self) {
        self.now = self.now.checked_add(1).expect("fewer than 2^32 batches");
    }

    /// Marks a vertex; whether it was not yet.
    fn is_new(&mut self, vertex: u32) -> bool {
        let mark = &mut self.mark[vertex as usize];
        std::mem::replace(mark, self.now) != self.now
    }
}

/// `k` distinct numbers below `n` (Floyd's algorithm, CACM 1987), all of them where `n` is no larger; added to `picked`.
pub fn distinct(n: u64, k: usize, mut stream: Stream, picked: &mut Vec<u64>) {
    let first = picked.len();
    if n <= k as u64 {
        picked.extend(0..n);
        return;
    }
    for last in n - k as u64..n {
        let number = stream.below(last + 1);
        let is_there = picked[first..].contains(&number);
        picked.push(if is_there { last } else { number });
    }
}

/// Positions in a vertex's row that are picked at a hop.
pub fn picks(degree: u64, fan_out: u32, replacement: Replacement, mut stream: Stream, picked: &mut Vec<u64>) {
    picked.clear();
    match replacement {
        Replacement::Without => distinct(degree, fan_out as usize, stream, picked),
        Replacement::With if degree > 0 => picked.extend((0..fan_out).map(|_| stream.below(degree))),
        Replacement::With => {}
    }
}

/// The stream of a vertex at a hop of a batch.
pub const fn stream_of(batch: &Stream, hop: u32, vertex: u32) -> Stream {
    batch.branch((hop as u64) << 32 | vertex as u64)
}

/// Seeds of the batches of an epoch: the training vertices in an order of the epoch's own, cut into batches.
pub fn batches(train: &[u32], sampling: &Sampling, epoch: u32, owner: u32) -> Vec<Vec<u32>> {
    let mut order = train.to_vec();
    random::stream(sampling.seed, "order").branch(u64::from(epoch)).branch(u64::from(owner)).shuffle(&mut order);
    order.chunks(sampling.batch as usize).map(<[u32]>::to_vec).collect()
}

/// The stream of the draws of an epoch of a GPU.
pub fn epoch_stream(sampling: &Sampling, epoch: u32, owner: u32) -> Stream {
    random::stream(sampling.seed, "picks").branch(u64::from(epoch)).branch(u64::from(owner))
}

/// Samples every batch and keeps of each what `each` makes of it, in order.
pub fn each_batch<R: Send>(
    graph: &Csr,
    batches: &[Vec<u32>],
    sampling: &Sampling,
    stream: &Stream,
    each: impl Fn(&Stream, &Hops) -> R + Sync,
) -> Vec<R> {
    let one = |marks: &mut Marks, (at, seeds): (usize, &Vec<u32>)| {
        engine::stop::pause();
        let stream = stream.branch(at as u64);
        each(&stream, &sample(graph, seeds, sampling, &stream, marks))
    };
    batches.par_iter().enumerate().map_init(|| Marks::new(graph.n_vertices()), one).collect()
}

fn sample(graph: &Csr, seeds: &[u32], sampling: &Sampling, stream: &Stream, marks: &mut Marks) -> Hops {
    marks.clear();
    let mut all: Vec<u32> = seeds.iter().copied().filter(|&seed| marks.is_new(seed)).collect();
    let mut hops = Hops { frontiers: vec![all.clone()], n_picks: Vec::new() };
    let mut picked = Vec::new();
    for (hop, &fan_out) in (0..).zip(&sampling.fan_out) {
        let mut n_picks = 0;
        for at in 0..all.len() {
            let vertex = all[at];
            picks(graph.degree(vertex), fan_out, sampling.replacement, stream_of(stream, hop, vertex), &mut picked);
            n_picks += picked.len() as u64;
            let row = graph.row(vertex);
            for &position in &picked {
                let neighbour = row[index(position)];
                if marks.is_new(neighbour) {
                    all.push(neighbour);
                }
            }
        }
        hops.n_picks.push(n_picks);
        hops.frontiers.push(all.clone());
    }
    hops
}

/// Copies the features of vertices into a batch, one row of `width` numbers after the other.
///
/// # Panics
/// When a vertex has no row.
pub fn gather(features: &[f32], width: usize, vertices: impl ExactSizeIterator<Item = usize>, batch: &mut Vec<f32>) {
    batch.clear();
    batch.reserve(width * vertices.len());
    for vertex in vertices {
        batch.extend_from_slice(&features[vertex * width..(vertex + 1) * width]);
    }
}

/// Bytes of a row that a visit touches: its offset, its mark, and no more lines than neighbours are picked.
pub fn touched_bytes(degree: f64, picks: f64) -> f64 {
    const OFFSET_AND_MARK: f64 = 12.0;
    OFFSET_AND_MARK + (4.0 * degree).min(hw::real(LINE_BYTES) * picks)
}

/// How often an epoch reads each vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visits {
    /// Times that its row was read, per hop.
    pub rows: Vec<Vec<u32>>,
    /// Times that its features were gathered.
    pub gathers: Vec<u32>,
    /// Batches.
    pub n_batches: u64,
    /// Vertices of all frontiers, per hop and for the gathered set.
    pub n_vertices: Vec<u64>,
    /// Edges picked, per hop.
    pub n_picks: Vec<u64>,
}

/// Counts the visits of an epoch.
pub fn visits(graph: &Csr, batches: &[Vec<u32>], sampling: &Sampling, stream: &Stream) -> Visits {
    let n_hops = sampling.fan_out.len();
    let counters = || (0..graph.n_vertices()).map(|_| AtomicU32::new(0)).collect::<Vec<AtomicU32>>();
    // Sums of whole numbers are the same in any order.
    let counts: Vec<Vec<AtomicU32>> = (0..=n_hops).map(|_| counters()).collect();
    let sizes = each_batch(graph, batches, sampling, stream, |_, hops| {
        for (frontier, counts) in hops.frontiers.iter().zip(&counts) {
            for &vertex in frontier {
                counts[vertex as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        let sizes: Vec<u64> = hops.frontiers.iter().map(|frontier| frontier.len() as u64).collect();
        (sizes, hops.n_picks.clone())
    });
    let mut rows: Vec<Vec<u32>> =
        counts.into_iter().map(|hop| hop.into_iter().map(AtomicU32::into_inner).collect()).collect();
    let gathers = rows.pop().expect("the gathered set is counted");
    let mut found = Visits {
        rows,
        gathers,
        n_batches: batches.len() as u64,
        n_vertices: vec![0; n_hops + 1],
        n_picks: vec![0; n_hops],
    };
    for (sizes, picks) in sizes {
        add(&mut found.n_vertices, &sizes);
        add(&mut found.n_picks, &picks);
    }
    found
}

fn add(sums: &mut [u64], more: &[u64]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr::Direction;
    use crate::generate::{Quadrants, rmat};
    use proptest::prelude::*;

    fn sampling(fan_out: &[u32], replacement: Replacement) -> Sampling {
        Sampling { fan_out: fan_out.to_vec(), replacement, batch: 16, seed: 9 }
    }

    fn graph() -> Csr {
        Csr::from_edges(1 << 9, &rmat(9, 6000, Quadrants::GRAPH500, 1), Direction::Undirected).expect("a graph").0
    }

    #[test]
    fn a_batch_reads_what_a_walk_by_hand_reads() {
        // A path 0 - 1 - 2 - 3 and a hub 4 of 5, 6, 7; fan-out above every degree picks all.
        let edges = [(0, 1), (1, 2), (2, 3), (4, 5), (4, 6), (4, 7)];
        let (graph, _) = Csr::from_edges(8, &edges, Direction::Undirected).expect("a graph");
        let rule = sampling(&[9, 9], Replacement::Without);
        let found = each_batch(&graph, &[vec![0, 5, 0]], &rule, &epoch_stream(&rule, 0, 0), |_, hops| hops.clone());
        assert_eq!(found[0].frontiers, [vec![0, 5], vec![0, 5, 1, 4], vec![0, 5, 1, 4, 2, 6, 7]]);
        // 0 and 5 have one neighbour each; then 1 and 1 and 2 and 3.
        assert_eq!(found[0].n_picks, [2, 7]);
    }

    #[test]
    fn threads_change_nothing() {
        let (graph, rule) = (graph(), sampling(&[5, 3], Replacement::Without));
        let train: Vec<u32> = (0..400).collect();
        let run = |n: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads");
            pool.install(|| visits(&graph, &batches(&train, &rule, 0, 0), &rule, &epoch_stream(&rule, 0, 0)))
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(8));
        assert_eq!(one.rows[0].iter().sum::<u32>(), 400);
    }

    proptest! {
        #[test]
        fn distinct_numbers_are_distinct_and_all_are_drawn(n in 0_u64..40, k in 0_usize..20, seed in 0_u64..1000) {
            let mut found = Vec::new();
            distinct(n, k, random::stream(seed, "test"), &mut found);
            prop_assert_eq!(found.len() as u64, n.min(k as u64));
            found.sort_unstable();
            found.dedup();
            prop_assert_eq!(found.len() as u64, n.min(k as u64));
            prop_assert!(found.iter().all(|&number| number < n));
        }

        #[test]
        fn picks_are_edges_within_the_fan_out(seed in 0_u64..50, first in 1_u32..8, second in 1_u32..8) {
            let graph = graph();
            for replacement in [Replacement::Without, Replacement::With] {
                let rule = Sampling { seed, ..sampling(&[first, second], replacement) };
                let seeds: Vec<u32> = (0..20).map(|seed| seed * 25).collect();
                let found = each_batch(&graph, &[seeds], &rule, &epoch_stream(&rule, 0, 0), |_, hops| hops.clone());
                let [start, middle, end] = [0, 1, 2].map(|hop| &found[0].frontiers[hop]);
                prop_assert!(middle.starts_with(start) && end.starts_with(middle));
                prop_assert!(found[0].n_picks[0] <= start.len() as u64 * u64::from(first));
                for vertex in &end[start.len()..] {
                    prop_assert!(end.iter().any(|&from| graph.row(from).contains(vertex)));
                }
            }
        }
    }

    #[test]
    fn every_position_is_picked_equally_often() {
        // 10 of 40 positions, 4000 times: 1000 each, standard deviation 27.
        let mut counts = [0_u32; 40];
        let stream = random::stream(2, "test");
        for at in 0..4000 {
            let mut found = Vec::new();
            distinct(40, 10, stream.branch(at), &mut found);
            found.into_iter().for_each(|position| counts[index(position)] += 1);
        }
        assert!(counts.iter().all(|count| (880..1120).contains(count)), "{counts:?}");
    }
}
