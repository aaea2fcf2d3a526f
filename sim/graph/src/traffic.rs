//! What an epoch moves with given caches, counted line by line: the replay that predictions are held against.
//!
//! Units: transactions of 64 bytes over PCIe, visits served by GPUs of the clique.

use crate::cache::{counted_feature_lines, counted_row_lines};
use crate::csr::Csr;
use crate::sample::{Hops, Sampling, each_batch, picks, stream_of};
use engine::random::Stream;

/// Who holds a vertex in the clique of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host: over PCIe.
    Host,
    /// A GPU of the clique.
    Gpu(u32),
    /// Every GPU.
    Every,
}

/// Owners of every vertex's row and features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Of rows.
    pub rows: Vec<Owner>,
    /// Of features.
    pub features: Vec<Owner>,
}

impl Owners {
    /// Nothing is cached.
    pub fn host(n_vertices: u32) -> Self {
        Self { rows: vec![Owner::Host; n_vertices as usize], features: vec![Owner::Host; n_vertices as usize] }
    }
}

/// What was counted, rows and features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Transactions over PCIe.
    pub lines: [u64; 2],
    /// Visits that the GPU served itself.
    pub local: [u64; 2],
    /// Visits that another GPU of the clique served.
    pub peer: [u64; 2],
}

impl Counted {
    /// All transactions.
    pub const fn sum(&self) -> u64 {
        self.lines[0] + self.lines[1]
    }

    /// The same with another's.
    pub fn plus(mut self, other: &Self) -> Self {
        for kind in 0..2 {
            self.lines[kind] += other.lines[kind];
            self.local[kind] += other.local[kind];
            self.peer[kind] += other.peer[kind];
        }
        self
    }

    fn add(&mut self, kind: usize, owner: Owner, gpu: u32, lines: u64) {
        match owner {
            Owner::Host => self.lines[kind] += lines,
            Owner::Gpu(other) if other != gpu => self.peer[kind] += 1,
            Owner::Gpu(_) | Owner::Every => self.local[kind] += 1,
        }
    }
}

/// Counts an epoch of a GPU, which is number `gpu` of its clique.
pub fn replay(
    graph: &Csr,
    batches: &[Vec<u32>],
    sampling: &Sampling,
    stream: &Stream,
    (owners, gpu, width): (&Owners, u32, u64),
) -> Counted {
    let counted = each_batch(graph, batches, sampling, stream, |stream, hops| {
        let mut counted = rows(graph, sampling, stream, hops, (owners, gpu));
        for &vertex in &hops.frontiers[sampling.fan_out.len()] {
            let lines = counted_feature_lines(width, vertex);
            counted.add(1, owners.features[vertex as usize], gpu, lines);
        }
        counted
    });
    counted.iter().fold(Counted::default(), Counted::plus)
}

/// Rows that a batch reads; the picks are drawn again from the streams of their vertices.
fn rows(graph: &Csr, sampling: &Sampling, stream: &Stream, hops: &Hops, (owners, gpu): (&Owners, u32)) -> Counted {
    let mut counted = Counted::default();
    let mut picked = Vec::new();
    for ((hop, &fan_out), frontier) in (0..).zip(&sampling.fan_out).zip(&hops.frontiers) {
        for &vertex in frontier {
            let owner = owners.rows[vertex as usize];
            let mut lines = 0;
            if owner == Owner::Host {
                let own = stream_of(stream, hop, vertex);
                picks(graph.degree(vertex), fan_out, sampling.replacement, own, &mut picked);
                lines = counted_row_lines(graph.offset(vertex), &mut picked);
            }
            counted.add(0, owner, gpu, lines);
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr::Direction;
    use crate::sample::{Replacement, epoch_stream};

    #[test]
    fn lines_are_counted_as_by_hand() {
        // A star of 40 around 0: its row of 40 slots lies on slots 0 to 39, three lines. Picking all reads 1 + 3 lines; a leaf's row 1 + 1.
        let edges: Vec<(u32, u32)> = (1..=40).map(|leaf| (0, leaf)).collect();
        let (graph, _) = Csr::from_edges(41, &edges, Direction::Undirected).expect("a graph");
        let sampling = Sampling { fan_out: vec![64], replacement: Replacement::Without, batch: 2, seed: 0 };
        let stream = epoch_stream(&sampling, 0, 0);
        let none = Owners::host(41);
        // Seeds 0 and 1: the row of 0 is 4 lines, that of 1 is 2. All 41 features of 64 bytes are a line each.
        let found = replay(&graph, &[vec![0, 1]], &sampling, &stream, (&none, 0, 16));
        assert_eq!(found.lines, [6, 41]);
        let mut owners = none;
        owners.rows[0] = Owner::Every;
        owners.features[..11].fill(Owner::Gpu(1));
        owners.features[11] = Owner::Gpu(0);
        let found = replay(&graph, &[vec![0, 1]], &sampling, &stream, (&owners, 0, 16));
        assert_eq!((found.lines, found.local, found.peer), ([2, 29], [1, 1], [0, 11]));
    }
}
