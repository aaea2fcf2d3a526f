//! Where the graph of a question comes from: it is there, or a generator makes it when a policy runs.

use graph::Csr;
use graph::csr::Direction;
use graph::tcsr::Event;

use super::Known;

/// Where rows or events come from; what has to be made is made when a policy runs.
pub enum Source {
    /// There.
    Known(Known),
    /// Edges that a generator makes.
    Edges {
        /// Makes them.
        make: Box<dyn FnOnce() -> Vec<(u32, u32)> + Send>,
        /// Vertices at the least.
        n_vertices: u32,
        /// What an edge is.
        direction: Direction,
        /// Share of the vertices that is trained on.
        train_ratio: f64,
    },
    /// Events, with the number of vertices.
    Events {
        /// Makes them.
        make: Box<dyn FnOnce() -> Vec<Event> + Send>,
        /// Vertices.
        n_vertices: u32,
    },
}

impl Source {
    /// The graph; of events there are degrees alone to know.
    ///
    /// # Panics
    /// When events are asked for a graph, which readers refuse.
    pub fn graph(self) -> Known {
        match self {
            Self::Known(known) => known,
            Self::Edges { make, n_vertices, direction, train_ratio } => {
                let edges = make();
                let largest = edges.iter().map(|edge| edge.0.max(edge.1)).max().unwrap_or(0);
                let made = Csr::from_edges(n_vertices.max(largest + 1), &edges, direction);
                let (graph, removed) = made.expect("generators name vertices that there are");
                Known::Whole { train: trained(&graph, train_ratio), graph, removed }
            }
            Self::Events { .. } => panic!("events are no graph of rows"),
        }
    }
}

/// Vertices that are trained on, spread over the graph; one at the least.
pub fn trained(graph: &Csr, ratio: f64) -> Vec<u32> {
    const MILLION: u32 = 1_000_000;
    let n_of_million = u32::try_from(hw::whole(f64::from(MILLION) * ratio)).unwrap_or(MILLION);
    let is_trained = |vertex: &u32| graph::partition::hash(*vertex, MILLION) < n_of_million;
    let found: Vec<u32> = (0..graph.n_vertices()).filter(is_trained).collect();
    if found.is_empty() { vec![0] } else { found }
}
