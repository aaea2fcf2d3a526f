//! Partition by METIS: the graph is made coarse, cut, and made fine again with moves at every level (Karypis, Kumar, SIAM J. Sci. Comput. 1998).
//!
//! The feature `metis` builds its C sources, and tests always do. Ids of METIS are `i32`, so larger graphs are refused.

use thiserror::Error;

use crate::csr::Csr;

/// Why METIS gives no partition.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoPartition {
    /// The program has none of it.
    #[error("this program was built without METIS; `cargo build --release --features metis` builds it in")]
    NotBuilt,
    /// A graph that is known by its degrees.
    #[error("degrees alone have no edges to cut; give the graph itself, or take `legion`")]
    NoEdges,
    /// More slots than its ids count.
    #[error("the graph has {n_slots} adjacency slots, METIS counts {} at most", i32::MAX)]
    TooLarge { n_slots: u64 },
    /// METIS says so.
    #[error("METIS gives up: {0}")]
    Metis(String),
}

/// Parts with few edges between them; a vertex weighs its slots and itself, so that parts hold about as many rows and neighbours.
///
/// # Errors
/// When METIS is not built in, the graph has more slots than it counts, or it gives up.
///
/// # Panics
/// When there is no part.
pub fn multilevel(graph: &Csr, n_parts: u32) -> Result<Vec<u32>, NoPartition> {
    assert!(n_parts > 0, "a partition has parts");
    built::multilevel(graph, n_parts)
}

#[cfg(not(any(test, feature = "metis")))]
mod built {
    use super::NoPartition;
    use crate::csr::Csr;

    pub(super) fn multilevel(_: &Csr, _: u32) -> Result<Vec<u32>, NoPartition> {
        Err(NoPartition::NotBuilt)
    }
}

#[cfg(any(test, feature = "metis"))]
mod built {
    use metis::option::{Seed, UFactor};
    use metis::{Graph, Idx};

    use super::NoPartition;
    use crate::csr::{Csr, Direction};
    use crate::partition::SLACK;

    pub(super) fn multilevel(graph: &Csr, n_parts: u32) -> Result<Vec<u32>, NoPartition> {
        if n_parts == 1 {
            return Ok(vec![0; graph.n_vertices() as usize]);
        }
        let both = both_ways(graph);
        let index = |number: u64| Idx::try_from(number).map_err(|_| NoPartition::TooLarge { n_slots: both.n_slots() });
        index(both.n_slots() + u64::from(both.n_vertices()))?;
        let (mut offsets, mut neighbours, mut weights) = (vec![0], Vec::new(), Vec::new());
        for vertex in 0..both.n_vertices() {
            let row = both.row(vertex);
            neighbours.extend(row.iter().map(|neighbour| neighbour.cast_signed()));
            offsets.push(index(neighbours.len() as u64)?);
            weights.push(index(both.degree(vertex) + 1)?);
        }
        let mut parts: Vec<Idx> = vec![0; weights.len()];
        let gives_up = |why: &dyn std::fmt::Display| NoPartition::Metis(why.to_string());
        Graph::new(1, n_parts.cast_signed(), &offsets, &neighbours)
            .map_err(|why| gives_up(&why))?
            .set_vwgt(&weights)
            .set_option(Seed(0))
            .set_option(UFactor(unevenness()))
            .part_kway(&mut parts)
            .map_err(|why| gives_up(&why))?;
        Ok(parts.into_iter().map(Idx::cast_unsigned).collect())
    }

    /// What METIS calls the factor: thousandths of the mean by which a part may be heavier, as the streamed partition allows.
    fn unevenness() -> Idx {
        let thousandths = hw::whole((SLACK[1] - 1.0) * 1000.0);
        Idx::try_from(thousandths).expect("some hundred")
    }

    /// The graph with every edge in both directions, which METIS asks for.
    fn both_ways(graph: &Csr) -> Csr {
        let edges: Vec<(u32, u32)> = (0..graph.n_vertices())
            .flat_map(|vertex| graph.row(vertex).iter().map(move |neighbour| (vertex, *neighbour)))
            .collect();
        let found = Csr::from_edges(graph.n_vertices(), &edges, Direction::Undirected);
        found.expect("rows of a graph are edges of one").0
    }
}
