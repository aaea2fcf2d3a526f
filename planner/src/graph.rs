//! Training of graph neural networks: where to cache what (`legion`), how to extract subgraphs (`seg`), how to sample the past (`tf_tgn`).
//!
//! Every planner enumerates its space, plays each choice on the engine, and answers with a `Decision` and what else a report shows.

pub mod judged;
pub mod legion;
pub mod seg;
pub mod source;
pub mod tf_tgn;

use graph::Csr;
use graph::csr::Removed;
use graph::distribution::Degrees;
use hw::Cluster;
use train::straggler::Rates;

/// What is known of a graph.
#[derive(Clone, Debug)]
pub enum Known {
    /// All of it, and the vertices that are trained on.
    Whole {
        /// Rows.
        graph: Csr,
        /// Training vertices.
        train: Vec<u32>,
        /// Edges that are not in it.
        removed: Removed,
    },
    /// How many vertices have which degree.
    Degrees {
        /// Degrees.
        degrees: Degrees,
        /// Training vertices.
        n_train: f64,
    },
}

impl Known {
    /// Degrees of the vertices.
    pub fn degrees(&self) -> Degrees {
        match self {
            Self::Whole { graph, .. } => Degrees::of(graph),
            Self::Degrees { degrees, .. } => degrees.clone(),
        }
    }

    /// What the graph is, in words.
    pub fn words(&self) -> String {
        match self {
            Self::Whole { graph, removed, .. } => format!(
                "graph of {} vertices and {} slots in memory, sampled; {} self-loops and {} duplicates removed",
                graph.n_vertices(),
                graph.n_slots(),
                removed.self_loops,
                removed.duplicates
            ),
            Self::Degrees { degrees, .. } => format!(
                "graph of {:.0} vertices and {:.3e} slots by its degrees: expectation, ± {:.0} % on transactions",
                degrees.n_vertices(),
                degrees.n_slots(),
                graph::distribution::INTERVAL_RATIO * 100.0
            ),
        }
    }
}

/// What everything runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// GPUs and links.
    pub cluster: Cluster,
    /// Bytes of a GPU that the job may use.
    pub memory_bytes: u64,
    /// GPUs that compute slower than the rest, in every step.
    pub stragglers: Rates,
    /// Dollars of a GPU and hour.
    pub usd_per_gpu_hour: Option<f64>,
}

impl Machine {
    /// What no policy does about GPUs that straggle, in words; `None` where none does.
    pub fn ignored(&self) -> Option<String> {
        if self.stragglers.is_healthy() {
            return None;
        }
        let rates = self.stragglers.stragglers().iter().map(|(rank, rate)| format!("GPU {} × {rate}", rank.0));
        let rates = rates.collect::<Vec<_>>().join(", ");
        Some(format!(
            "stragglers ({rates}) are played and not planned around: every GPU keeps its share of the batches"
        ))
    }
}
