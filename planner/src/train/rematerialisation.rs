//! Memory of a step whose sizes are known at run time only: the order of operations, what may be evicted, and what is (BladeDISC++,
//! arXiv:2412.16985).
//!
//! Compile time: `order.rs` schedules by symbolic sizes, `candidates.rs` finds recompute subgraphs. Run time: `choice.rs` decides for the
//! sizes of a batch and a limit. Where the scheduled order is not proven to need no more than the original one, both are compiled and the
//! sizes decide; so no batch needs more than the original order does.

pub mod batches;
pub mod candidates;
pub mod choice;
pub mod order;
pub mod words;

#[cfg(test)]
mod tests;

use train::tensor_graph::program::Program;
use train::tensor_graph::{OperationId, TensorGraph};

pub use candidates::Rules;
pub use choice::{Manager, Way, choose};

/// Which parts of the work are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Whether operations are ordered for memory.
    pub schedule: bool,
    /// Rules by which candidates are found; `None` without rematerialisation.
    pub rematerialise: Option<Rules>,
}

/// A compiled step.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Programs among which the sizes decide; the scheduled order is first.
    pub programs: Vec<Program>,
    /// Whether the first is proven to need no more than the original order, whatever the sizes are.
    pub is_proven: bool,
}

impl Compiled {
    /// Compiles a graph.
    pub fn new(graph: &TensorGraph, passes: Passes) -> Self {
        let original = graph.original_order();
        let scheduled = if passes.schedule { order::schedule(graph) } else { original.clone() };
        let is_proven = scheduled == original || order::is_never_worse(graph, &scheduled, &original);
        let mut orders = vec![scheduled];
        if !is_proven {
            orders.push(original);
        }
        let program = |order: Vec<OperationId>| {
            let candidates = passes.rematerialise.map(|rules| candidates::candidates(graph, &order, rules));
            Program { order, candidates: candidates.unwrap_or_default() }
        };
        Self { programs: orders.into_iter().map(program).collect(), is_proven }
    }
}
