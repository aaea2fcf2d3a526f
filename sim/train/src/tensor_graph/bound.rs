//! Below which no peak can lie, at known sizes.

use super::{OperationId, TensorGraph, TensorId};

/// A lower bound on the peak, and the operation that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakBound {
    /// Bytes.
    pub bytes: u64,
    /// Operation during which they must be alive.
    pub operation: Option<OperationId>,
}

/// Bound on any order in which nothing is made again: while an operation runs, arguments, its inputs and outputs are alive, and so is
/// whatever an operation before it in every order writes and one behind it in every order reads.
pub fn of_orders(graph: &TensorGraph, bytes: &[u64]) -> PeakBound {
    let after = descendants(graph);
    let is_before = |first: OperationId, second: OperationId| after[first.index()][second.index()];
    largest(graph, bytes, |tensor, readers, id| {
        let Some(writer) = graph.tensors[tensor.index()].producer else { return false };
        let is_read_behind =
            graph.tensors[tensor.index()].is_output || readers.iter().any(|reader| is_before(id, *reader));
        is_before(writer, id) && is_read_behind
    })
}

/// Bound on any order with whatever recomputation: arguments, and the inputs and outputs of one operation.
pub fn of_working_sets(graph: &TensorGraph, bytes: &[u64]) -> PeakBound {
    largest(graph, bytes, |_, _, _| false)
}

/// The largest sum over operations of arguments, inputs, outputs, and tensors that `must_live` adds.
fn largest(
    graph: &TensorGraph,
    bytes: &[u64],
    must_live: impl Fn(TensorId, &[OperationId], OperationId) -> bool,
) -> PeakBound {
    let mut readers: Vec<Vec<OperationId>> = vec![Vec::new(); graph.tensors.len()];
    for id in graph.original_order() {
        graph.at(id).inputs.iter().for_each(|input| readers[input.index()].push(id));
    }
    let mut best = PeakBound { bytes: 0, operation: None };
    for id in graph.original_order() {
        let operation = graph.at(id);
        let sum = (0..graph.tensors.len())
            .map(|at| TensorId(u32::try_from(at).expect("fewer than 2^32")))
            .filter(|tensor| {
                graph.is_argument(*tensor)
                    || operation.inputs.contains(tensor)
                    || operation.outputs.contains(tensor)
                    || must_live(*tensor, &readers[tensor.index()], id)
            })
            .map(|tensor| bytes[tensor.index()])
            .sum();
        if sum > best.bytes {
            best = PeakBound { bytes: sum, operation: Some(id) };
        }
    }
    best
}

/// For every operation, which others come behind it in every order.
fn descendants(graph: &TensorGraph) -> Vec<Vec<bool>> {
    let before = graph.predecessors();
    let n = before.len();
    let mut after = vec![vec![false; n]; n];
    for (at, preds) in before.iter().enumerate() {
        for pred in preds {
            for row in &mut after {
                // Rows of earlier operations are complete: predecessors come first.
                if row[pred.index()] {
                    row[at] = true;
                }
            }
            after[pred.index()][at] = true;
        }
    }
    after
}
