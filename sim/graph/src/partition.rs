//! Partition of vertices: edges stay inside parts as far as a stream and some rounds of moves bring it, or nothing but balance counts.
//!
//! `streamed` is Linear Deterministic Greedy (Stanton, Kliot, KDD 2012) with rounds of greedy moves under the same balance. Tests hold it against
//! brute force on small graphs, and against METIS (`multilevel`) on larger ones. `hashed` is what Legion does inside a clique.

pub mod multilevel;

use crate::csr::Csr;

/// Most vertices of a part over the mean, and most slots: hubs are few and heavy, so slots are held less tightly.
const SLACK: [f64; 2] = [1.05, 1.3];
/// Rounds of moves.
const N_ROUNDS: u32 = 4;
/// No part yet.
const NONE: u32 = u32::MAX;

/// Part of every vertex.
pub fn hashed(n_vertices: u32, n_parts: u32) -> Vec<u32> {
    (0..n_vertices).map(|vertex| hash(vertex, n_parts)).collect()
}

/// Part of a vertex by its hash.
///
/// # Panics
/// When there is no part.
pub fn hash(vertex: u32, n_parts: u32) -> u32 {
    assert!(n_parts > 0, "a partition has parts");
    let bits = engine::random::at(0, u64::from(vertex));
    u32::try_from(bits % u64::from(n_parts)).expect("a remainder of a small number")
}

/// Vertices go one by one to the part with most of their neighbours, weighted by the room that is left; then they move where more of them are.
///
/// # Panics
/// When there is no part.
pub fn streamed(graph: &Csr, n_parts: u32) -> Vec<u32> {
    assert!(n_parts > 0, "a partition has parts");
    let n_vertices = graph.n_vertices();
    let all = [u64::from(n_vertices), graph.n_slots()];
    let room = [0, 1].map(|kind| hw::real(all[kind]) / f64::from(n_parts) * SLACK[kind]);
    let mut parts = vec![NONE; n_vertices as usize];
    let mut sizes = vec![[0_u64; 2]; n_parts as usize];
    for round in 0..=N_ROUNDS {
        for vertex in 0..n_vertices {
            let now = parts[vertex as usize];
            let best = best_part(graph, vertex, &parts, &sizes, room, round == 0);
            if best == now {
                continue;
            }
            if now != NONE {
                sizes[now as usize][0] -= 1;
                sizes[now as usize][1] -= graph.degree(vertex);
            }
            parts[vertex as usize] = best;
            sizes[best as usize][0] += 1;
            sizes[best as usize][1] += graph.degree(vertex);
        }
    }
    assert!(parts.iter().all(|part| *part < n_parts), "every vertex has a part");
    parts
}

/// The part with the largest score; where scores are equal the one it is in, then the one with fewest slots.
fn best_part(graph: &Csr, vertex: u32, parts: &[u32], sizes: &[[u64; 2]], room: [f64; 2], is_first: bool) -> u32 {
    let now = parts[vertex as usize];
    let mut inside = vec![0_u32; sizes.len()];
    for &neighbour in graph.row(vertex) {
        if let Some(count) = inside.get_mut(parts[neighbour as usize] as usize) {
            *count += 1;
        }
    }
    let (mut best, mut best_key) = (now, (f64::NEG_INFINITY, false, 0_u64));
    for (part, count) in (0..).zip(&inside) {
        let [n_vertices, n_slots] = sizes[part as usize];
        let is_full = hw::real(n_vertices + 1) > room[0] || hw::real(n_slots + graph.degree(vertex)) > room[1];
        if part != now && is_full {
            continue;
        }
        let left = if is_first { 1.0 - hw::real(n_slots) / room[1] } else { 1.0 };
        let key = (f64::from(*count) * left, part == now, u64::MAX - n_slots);
        if key > best_key {
            (best, best_key) = (part, key);
        }
    }
    // No part has room for a hub, or all are full by rounding: the smallest takes it.
    if best == NONE { smallest(sizes) } else { best }
}

fn smallest(sizes: &[[u64; 2]]) -> u32 {
    (0..).zip(sizes).min_by_key(|(_, size)| size[1]).map_or(0, |(part, _)| part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr::Direction;
    use crate::generate::{Quadrants, rmat};

    /// Share of the adjacency slots whose ends lie in different parts.
    fn cut_ratio(graph: &Csr, parts: &[u32]) -> f64 {
        let mut n_cut = 0_u64;
        for vertex in 0..graph.n_vertices() {
            let own = parts[vertex as usize];
            n_cut += graph.row(vertex).iter().filter(|neighbour| parts[**neighbour as usize] != own).count() as u64;
        }
        hw::real(n_cut) / hw::real(graph.n_slots().max(1))
    }

    /// No part has more vertices or slots than the slack, but for its largest vertex and what finds no room.
    fn balanced(graph: &Csr, parts: &[u32], n_parts: u32) -> bool {
        let largest = (0..graph.n_vertices()).map(|vertex| graph.degree(vertex)).max().expect("vertices");
        (0..n_parts).all(|part| {
            let own = (0..graph.n_vertices()).filter(|vertex| parts[*vertex as usize] == part);
            let slots: u64 = own.map(|vertex| graph.degree(vertex)).sum();
            hw::real(slots) <= hw::real(graph.n_slots()) / f64::from(n_parts) * SLACK[1] + hw::real(largest)
        })
    }

    #[test]
    fn communities_are_found() {
        // Two rings of cliques joined by one edge: 12 vertices each, all inside connected.
        let mut edges = vec![(0, 12)];
        for first in [0, 12] {
            for a in first..first + 12 {
                edges.extend((a + 1..first + 12).map(|b| (a, b)));
            }
        }
        let (graph, _) = Csr::from_edges(24, &edges, Direction::Undirected).expect("a graph");
        let parts = streamed(&graph, 2);
        // The best cut is the one edge of 133: by brute force over balanced halves nothing is lower, since any other split cuts a clique.
        assert!((cut_ratio(&graph, &parts) - 1.0 / 133.0).abs() < 1e-12, "{parts:?}");
    }

    #[test]
    fn within_half_more_than_the_best_balanced_cuts_of_small_graphs() {
        let (mut ours, mut least) = (0.0, 0.0);
        for seed in 0..20 {
            let (graph, _) =
                Csr::from_edges(8, &rmat(3, 14, Quadrants::skewed(0.4), seed), Direction::Undirected).expect("a graph");
            let parts = streamed(&graph, 2);
            assert!(balanced(&graph, &parts, 2), "{parts:?}");
            let halves = (0_u32..256).filter(|half| half.count_ones() == 4);
            let best = halves.map(|half| cut_ratio(&graph, &(0..8).map(|at| half >> at & 1).collect::<Vec<u32>>()));
            let best = best.fold(f64::INFINITY, f64::min);
            ours += cut_ratio(&graph, &parts);
            least += best;
        }
        assert!(ours <= 1.5 * least, "{ours} of {least}");
    }

    /// A graph with hubs and without communities.
    fn skewed(seed: u64) -> Csr {
        let edges = rmat(11, 16_000, Quadrants::GRAPH500, seed);
        Csr::from_edges(1 << 11, &edges, Direction::Undirected).expect("a graph").0
    }

    /// Sixteen communities of 64 vertices with ids spread over all: eight edges of a vertex stay inside, one of nine leaves.
    fn communities(seed: u64) -> Csr {
        let mut stream = engine::random::stream(seed, "test");
        let mut edges = Vec::new();
        for at in 0..1024_u32 {
            for edge in 0..9 {
                let inside = u32::try_from(stream.below(64)).expect("small") * 16 + at % 16;
                let outside = u32::try_from(stream.below(1024)).expect("small");
                edges.push((at, if edge < 8 { inside } else { outside }));
            }
        }
        Csr::from_edges(1024, &edges, Direction::Undirected).expect("a graph").0
    }

    #[test]
    fn the_cut_beside_that_of_metis() {
        let (mut all_ours, mut all_theirs) = (0.0, 0.0);
        for graph in [communities(1), communities(2), skewed(4)] {
            for n_parts in [2, 4] {
                let theirs = multilevel::multilevel(&graph, n_parts).expect("a small graph");
                assert!(balanced(&graph, &theirs, n_parts));
                let (ours, theirs) = (cut_ratio(&graph, &streamed(&graph, n_parts)), cut_ratio(&graph, &theirs));
                // A stream may put half of a community into each of two parts, and single moves do not bring it together again.
                assert!(ours <= 2.5 * theirs, "{n_parts}: {ours} {theirs}");
                all_ours += ours;
                all_theirs += theirs;
            }
        }
        assert!(all_ours <= 1.3 * all_theirs, "{all_ours} {all_theirs}");
    }

    #[test]
    fn fewer_edges_are_cut_than_by_hash_and_parts_are_balanced() {
        // An R-MAT graph has no communities to find: nothing is lost.
        for (graph, most) in [(communities(1), 0.5), (communities(2), 0.5), (skewed(4), 1.0)] {
            for n_parts in [2, 4] {
                let (streamed, hashed) = (streamed(&graph, n_parts), hashed(graph.n_vertices(), n_parts));
                assert!(balanced(&graph, &streamed, n_parts));
                let (ours, theirs) = (cut_ratio(&graph, &streamed), cut_ratio(&graph, &hashed));
                assert!(ours <= most * theirs, "{n_parts}: {ours} {theirs}");
            }
        }
    }
}
