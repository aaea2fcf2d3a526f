//! A graph in compressed sparse rows: the neighbours of vertex v stand at `offsets[v]..offsets[v + 1]`, in ascending order.
//!
//! Units: vertices are `u32` from 0, offsets count adjacency slots. Invariant: offsets never fall, the last one is the number of slots, and
//! every neighbour is a vertex. Self-loops and duplicate edges are removed where edges become rows, and the caller gets their counts.

use rayon::prelude::*;
use thiserror::Error;

/// Most vertices of a graph: one number below 2^32 is kept for "no vertex".
pub const VERTICES_MAX: u64 = u32::MAX as u64;

/// Bytes of a line of memory, and of a transaction.
pub const LINE_BYTES: u64 = 64;

/// A graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    offsets: Vec<u64>,
    neighbours: Vec<u32>,
}

/// Edges that did not become rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Edges from a vertex to itself.
    pub self_loops: u64,
    /// Edges that are there already; of an undirected graph also those given in both directions.
    pub duplicates: u64,
}

/// Whether an edge is a neighbour of one end or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The second end is a neighbour of the first.
    Directed,
    /// Each end is a neighbour of the other.
    Undirected,
}

/// Why arrays are no graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum CsrError {
    /// No vertex at all.
    #[error("the graph has no vertex")]
    Empty,
    /// More vertices than ids.
    #[error("the graph has {n} vertices, at most {VERTICES_MAX} have an id")]
    TooManyVertices { n: u64 },
    /// An edge to a vertex that is none.
    #[error("edge {edge} (counted from 0) names vertex {vertex}, the graph has {n_vertices}: 0 to {}", n_vertices - 1)]
    Beyond { edge: u64, vertex: u32, n_vertices: u32 },
    /// Offsets that fall, or do not begin at 0.
    #[error("the offset of vertex {vertex} is {offset}, below the {before} before it")]
    Offsets { vertex: u64, offset: u64, before: u64 },
    /// The last offset is not the number of neighbours.
    #[error("the last offset is {last}, there are {n_slots} neighbours")]
    Length { last: u64, n_slots: u64 },
}

/// A position as an index into memory.
///
/// # Panics
/// When it does not fit the machine's addresses.
pub fn index(position: u64) -> usize {
    usize::try_from(position).expect("what is in memory has an address")
}

impl Csr {
    /// A graph of so many vertices from edges; rows are sorted, self-loops and duplicates are removed and counted.
    ///
    /// # Errors
    /// When there is no vertex, or an edge names one that is not there.
    pub fn from_edges(
        n_vertices: u32,
        edges: &[(u32, u32)],
        direction: Direction,
    ) -> Result<(Self, Removed), CsrError> {
        if n_vertices == 0 {
            return Err(CsrError::Empty);
        }
        check_edges(n_vertices, edges)?;
        let mut offsets = vec![0_u64; n_vertices as usize + 1];
        let is_both = direction == Direction::Undirected;
        for &(from, to) in edges.iter().filter(|(from, to)| from != to) {
            offsets[from as usize + 1] += 1;
            offsets[to as usize + 1] += u64::from(is_both);
        }
        add_up(&mut offsets);
        let n_slots = offsets[n_vertices as usize];
        let mut neighbours = vec![0_u32; index(n_slots)];
        let mut cursors = offsets.clone();
        for &(from, to) in edges.iter().filter(|(from, to)| from != to) {
            place(&mut neighbours, &mut cursors, from, to);
            if is_both {
                place(&mut neighbours, &mut cursors, to, from);
            }
        }
        let self_loops = edges.iter().filter(|(from, to)| from == to).count() as u64;
        let graph = Self { offsets, neighbours }.without_duplicates();
        let gone = n_slots - graph.n_slots();
        let duplicates = if is_both { gone / 2 } else { gone };
        Ok((graph, Removed { self_loops, duplicates }))
    }

    /// A graph from its arrays as they are.
    ///
    /// # Errors
    /// When they are no graph.
    pub fn from_parts(offsets: Vec<u64>, neighbours: Vec<u32>) -> Result<Self, CsrError> {
        let n_vertices = (offsets.len() as u64).saturating_sub(1);
        if n_vertices == 0 {
            return Err(CsrError::Empty);
        }
        if n_vertices > VERTICES_MAX {
            return Err(CsrError::TooManyVertices { n: n_vertices });
        }
        let mut before = 0;
        for (vertex, &offset) in offsets.iter().enumerate() {
            if offset < before || (vertex == 0 && offset != 0) {
                return Err(CsrError::Offsets { vertex: vertex as u64, offset, before });
            }
            before = offset;
        }
        let n_slots = neighbours.len() as u64;
        if before != n_slots {
            return Err(CsrError::Length { last: before, n_slots });
        }
        let n_vertices = u32::try_from(n_vertices).expect("checked above");
        match neighbours.iter().position(|&neighbour| neighbour >= n_vertices) {
            Some(at) => Err(CsrError::Beyond { edge: at as u64, vertex: neighbours[at], n_vertices }),
            None => Ok(Self { offsets, neighbours }),
        }
    }

    /// Sorts every row and keeps each neighbour once.
    fn without_duplicates(mut self) -> Self {
        let n_vertices = self.n_vertices();
        let mut rows: Vec<&mut [u32]> = Vec::with_capacity(n_vertices as usize);
        let mut rest = self.neighbours.as_mut_slice();
        for vertex in 0..n_vertices as usize {
            let (row, after) = rest.split_at_mut(index(self.offsets[vertex + 1] - self.offsets[vertex]));
            rows.push(row);
            rest = after;
        }
        rows.par_iter_mut().for_each(|row| row.sort_unstable());
        let mut kept = 0_u64;
        for vertex in 0..n_vertices as usize {
            let (begin, end) = (self.offsets[vertex], self.offsets[vertex + 1]);
            self.offsets[vertex] = kept;
            for slot in begin..end {
                let neighbour = self.neighbours[index(slot)];
                if slot == begin || self.neighbours[index(kept) - 1] != neighbour {
                    self.neighbours[index(kept)] = neighbour;
                    kept += 1;
                }
            }
        }
        self.offsets[n_vertices as usize] = kept;
        self.neighbours.truncate(index(kept));
        self
    }

    /// Number of vertices.
    pub fn n_vertices(&self) -> u32 {
        u32::try_from(self.offsets.len() - 1).expect("checked as it was made")
    }

    /// Number of adjacency slots: edges of a directed graph, twice the edges of an undirected one.
    pub const fn n_slots(&self) -> u64 {
        self.neighbours.len() as u64
    }

    /// Neighbours of a vertex.
    pub fn degree(&self, vertex: u32) -> u64 {
        self.offsets[vertex as usize + 1] - self.offsets[vertex as usize]
    }

    /// First slot of a vertex.
    pub fn offset(&self, vertex: u32) -> u64 {
        self.offsets[vertex as usize]
    }

    /// Neighbours of a vertex, ascending.
    pub fn row(&self, vertex: u32) -> &[u32] {
        &self.neighbours[index(self.offsets[vertex as usize])..index(self.offsets[vertex as usize + 1])]
    }

    /// Bytes of the arrays: 8 for each offset, 4 for each slot.
    pub const fn bytes(&self) -> u64 {
        8 * self.offsets.len() as u64 + 4 * self.neighbours.len() as u64
    }
}

fn check_edges(n_vertices: u32, edges: &[(u32, u32)]) -> Result<(), CsrError> {
    for (edge, &(from, to)) in edges.iter().enumerate() {
        let vertex = from.max(to);
        if vertex >= n_vertices {
            return Err(CsrError::Beyond { edge: edge as u64, vertex, n_vertices });
        }
    }
    Ok(())
}

/// Counts become offsets.
pub(crate) fn add_up(counts: &mut [u64]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

fn place(neighbours: &mut [u32], cursors: &mut [u64], from: u32, to: u32) {
    let cursor = &mut cursors[from as usize];
    neighbours[index(*cursor)] = to;
    *cursor += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loops_and_duplicates_are_removed_and_counted() {
        let edges = [(0, 1), (1, 0), (2, 2), (0, 1), (1, 2)];
        let (graph, removed) = Csr::from_edges(3, &edges, Direction::Undirected).expect("a graph");
        assert_eq!(removed, Removed { self_loops: 1, duplicates: 2 });
        assert_eq!([graph.row(0), graph.row(1), graph.row(2)], [&[1][..], &[0, 2], &[1]]);
        let (graph, removed) = Csr::from_edges(3, &edges, Direction::Directed).expect("a graph");
        assert_eq!(removed, Removed { self_loops: 1, duplicates: 1 });
        assert_eq!([graph.row(0), graph.row(1), graph.row(2)], [&[1][..], &[0, 2], &[]]);
        assert_eq!(graph.bytes(), 4 * 8 + 3 * 4);
    }

    #[test]
    fn arrays_that_are_no_graph_are_refused() {
        assert_eq!(Csr::from_parts(vec![0], vec![]), Err(CsrError::Empty));
        let falling = Csr::from_parts(vec![0, 2, 1], vec![0]);
        assert_eq!(falling, Err(CsrError::Offsets { vertex: 2, offset: 1, before: 2 }));
        assert_eq!(Csr::from_parts(vec![0, 1], vec![]), Err(CsrError::Length { last: 1, n_slots: 0 }));
        let beyond = Csr::from_parts(vec![0, 1, 1], vec![2]);
        assert_eq!(beyond, Err(CsrError::Beyond { edge: 0, vertex: 2, n_vertices: 2 }));
        let edges = Csr::from_edges(2, &[(0, 1), (5, 0)], Direction::Directed);
        assert_eq!(edges, Err(CsrError::Beyond { edge: 1, vertex: 5, n_vertices: 2 }));
        assert!(Csr::from_edges(0, &[], Direction::Directed).is_err());
    }

    proptest! {
        #[test]
        fn rows_hold_exactly_the_edges(edges in prop::collection::vec((0_u32..12, 0_u32..12), 0..80)) {
            let (graph, removed) = Csr::from_edges(12, &edges, Direction::Directed).expect("a graph");
            for from in 0..12 {
                for to in 0..12 {
                    prop_assert_eq!(graph.row(from).contains(&to), from != to && edges.contains(&(from, to)));
                }
            }
            prop_assert_eq!(graph.n_slots() + removed.self_loops + removed.duplicates, edges.len() as u64);
        }
    }
}
