//! How fast this machine samples, gathers and converts: `cargo run --release -p graph --example throughput [EDGES_IN_MILLIONS]`.
//!
//! An R-MAT graph, an epoch of a million seeds with fan-out 25 and 10, the gather of its features, and T-CSR of a tenth as many events on one
//! thread and on all. Estimates beforehand: a picked edge is one miss of some 90 ns that several reads share, so 20 to 50 million per second
//! and core.

use std::time::Instant;

use graph::Csr;
use graph::csr::Direction;
use graph::generate::{Bursts, Quadrants, bursts, rmat};
use graph::sample::{Replacement, Sampling, batches, each_batch, epoch_stream};
use graph::tcsr::{Reverse, TCsr};

/// Seconds of something, and what came of it.
#[expect(clippy::disallowed_methods, reason = "an example measures; nothing below the shell does")]
fn timed<R>(what: &str, run: impl FnOnce() -> R) -> (f64, R) {
    let begun = Instant::now();
    let found = run();
    let seconds = begun.elapsed().as_secs_f64();
    println!("{what}: {seconds:.2} s");
    (seconds, found)
}

/// Bytes per second of copying memory with one thread.
fn bandwidth() -> f64 {
    let from = vec![1_u8; 1 << 30];
    let mut to = vec![0_u8; 1 << 30];
    let (seconds, ()) = timed("copy of 1 GiB", || to.copy_from_slice(&from));
    assert_eq!(to[to.len() - 1], 1);
    // Read and written.
    2.0 * hw::GIB / seconds
}

/// Features of every gathered vertex added up, as a gather reads them.
fn gathered(features: &[f32], width: usize, vertices: &[u32]) -> f32 {
    let mut sum = 0.0;
    for &vertex in vertices {
        let first = vertex as usize * width;
        sum += features[first..first + width].iter().sum::<f32>();
    }
    sum
}

fn main() {
    let millions: u64 =
        std::env::args().nth(1).map_or(100, |word| word.parse().expect("a number of millions of edges"));
    let n_edges = millions * 1_000_000;
    let scale = 63 - (n_edges / 16).leading_zeros();
    let n_cores = hw::real(rayon::current_num_threads() as u64);
    println!("{n_cores} threads, {millions} million edges, 2^{scale} vertices");
    let bytes_per_s = bandwidth();
    let (_, edges) = timed("R-MAT", || rmat(scale, n_edges, Quadrants::GRAPH500, 1));
    let (_, (graph, _)) = timed("rows", || Csr::from_edges(1 << scale, &edges, Direction::Directed).expect("a graph"));
    drop(edges);
    let sampling = Sampling { fan_out: vec![25, 10], replacement: Replacement::Without, batch: 8000, seed: 1 };
    let train: Vec<u32> =
        (0..graph.n_vertices()).step_by(((1_usize << scale) / 1_000_000).max(1)).take(1_000_000).collect();
    let batches = batches(&train, &sampling, 0, 0);
    let stream = epoch_stream(&sampling, 0, 0);
    let count = |hops: &graph::sample::Hops| (hops.n_picks.iter().sum::<u64>(), hops.frontiers[2].len() as u64);
    let (seconds, found) =
        timed("epoch sampled", || each_batch(&graph, &batches, &sampling, &stream, |_, hops| count(hops)));
    let n_picks: u64 = found.iter().map(|batch| batch.0).sum();
    let rate = hw::real(n_picks) / seconds / n_cores;
    println!("{} seeds, {n_picks} edges: {:.1} million per second and core", train.len(), rate / 1e6);
    println!("as lines of 64 bytes {:.2} GB/s of {:.1} GB/s that a core copies", rate * 64.0 / 1e9, bytes_per_s / 1e9);
    let width = 32;
    let features = vec![1.0_f32; (1 << scale) * width];
    let (seconds, sums) = timed("epoch sampled and gathered", || {
        each_batch(&graph, &batches, &sampling, &stream, |_, hops| gathered(&features, width, &hops.frontiers[2]))
    });
    let n_gathered: u64 = found.iter().map(|batch| batch.1).sum();
    println!("{n_gathered} rows of {} bytes in {seconds:.2} s, checksum {}", 4 * width, sums.iter().sum::<f32>());
    drop((graph, features));
    let shape = Bursts { n_vertices: 1 << (scale - 3), n_events: n_edges / 10, length: 8.0, skew: 2.0, span: 1 << 40 };
    let events = bursts(&shape, 1);
    for n_threads in [1, rayon::current_num_threads()] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("threads");
        let convert = || TCsr::convert(shape.n_vertices, &events, Reverse::With).expect("a graph").offsets().len();
        let (_, n) =
            timed(&format!("T-CSR of {} events on {n_threads} threads", events.len()), || pool.install(convert));
        assert_eq!(n, shape.n_vertices as usize + 1);
    }
}
