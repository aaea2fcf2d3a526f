//! What may be evicted at which check points, and the operations that make it again (arXiv:2412.16985, section 3.3; figures of the
//! released compiler, alibaba/BladeDISC).
//!
//! Skipped are arguments, results, small static buffers, buffers just written, those with their next use nearby, and those that a
//! collective, a library or an operation with several outputs wrote. The search goes back from the writer until every input is alive at
//! the next use; at an operation that expands its input the search stops and that input is kept.

use train::tensor_graph::program::{Candidate, Liveness};
use train::tensor_graph::{Kind, OperationId, TensorGraph, TensorId};

/// Bytes below which an output makes its operation a scalar one, which does not count in distances.
const SCALAR_BYTES_MAX: i128 = 16;

/// Figures of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Least number of operations to the next use.
    pub distance: usize,
    /// Most operations of a recompute subgraph.
    pub operations: usize,
    /// Static buffers below this stay.
    pub static_bytes: u64,
}

impl Default for Rules {
    /// Those of the released compiler.
    fn default() -> Self {
        Self { distance: 20, operations: 10, static_bytes: 10 * 1024 }
    }
}

/// Candidates of an order, by tensor and gap.
pub fn candidates(graph: &TensorGraph, order: &[OperationId], rules: Rules) -> Vec<Candidate> {
    let search = Search::new(graph, order, rules);
    let ids = (0..graph.tensors.len()).map(|at| TensorId(u32::try_from(at).expect("fewer than 2^32")));
    ids.filter(|tensor| search.is_evictable(*tensor)).flat_map(|tensor| search.gaps(tensor)).collect()
}

struct Search<'a> {
    graph: &'a TensorGraph,
    rules: Rules,
    liveness: Liveness,
    /// Operations that count in distances, before each position.
    counted: Vec<usize>,
    /// Positions at which each argument changes.
    changes: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a TensorGraph, order: &[OperationId], rules: Rules) -> Self {
        let liveness = Liveness::new(graph, order);
        let is_scalar = |id: &OperationId| {
            let outputs = &graph.at(*id).outputs;
            let small = |out: &TensorId| {
                graph.tensors[out.index()].bytes.as_constant().is_some_and(|bytes| bytes <= SCALAR_BYTES_MAX)
            };
            !outputs.is_empty() && outputs.iter().all(small)
        };
        let mut counted = vec![0];
        let mut changes = vec![Vec::new(); graph.tensors.len()];
        for (at, id) in order.iter().enumerate() {
            counted.push(counted[at] + usize::from(!is_scalar(id)));
            if let Some(changed) = graph.at(*id).updates {
                changes[changed.index()].push(at);
            }
        }
        Self { graph, rules, liveness, counted, changes }
    }

    fn can_run_again(&self, id: OperationId) -> bool {
        let operation = self.graph.at(id);
        let is_known = matches!(operation.kind, Kind::Compute | Kind::Expanding);
        is_known && operation.outputs.len() == 1 && operation.updates.is_none()
    }

    fn is_evictable(&self, id: TensorId) -> bool {
        let tensor = &self.graph.tensors[id.index()];
        let is_small = tensor.bytes.as_constant().is_some_and(|bytes| bytes < i128::from(self.rules.static_bytes));
        tensor.producer.is_some_and(|producer| self.can_run_again(producer)) && !tensor.is_output && !is_small
    }

    /// A candidate for every gap between two accesses that is wide enough.
    fn gaps(&self, tensor: TensorId) -> Vec<Candidate> {
        let Some(written) = self.liveness.written(self.graph, tensor) else { return Vec::new() };
        let uses = &self.liveness.uses[tensor.index()];
        let accesses = std::iter::once(written).chain(uses.iter().copied());
        let of = |(last, next_use): (usize, usize)| {
            // At the check point behind its writer it is just written.
            let first = (last + 1).max(written + 2);
            let is_far = |at: &usize| self.counted[next_use] - self.counted[*at] >= self.rules.distance;
            let end = (first..next_use).rev().find(is_far)?;
            self.recompute(tensor, [first, end], next_use)
        };
        accesses.zip(uses.iter().copied()).filter_map(of).collect()
    }

    /// The operations that make a tensor again before its next use; `None` where there are too many, or one that cannot run again.
    fn recompute(&self, tensor: TensorId, window: [usize; 2], next_use: usize) -> Option<Candidate> {
        let graph = self.graph;
        let [first, mut end] = window;
        let mut found: Vec<OperationId> = Vec::new();
        let mut kept: Vec<TensorId> = Vec::new();
        let mut open = vec![graph.tensors[tensor.index()].producer?];
        while let Some(id) = open.pop() {
            if found.contains(&id) {
                continue;
            }
            found.push(id);
            if found.len() > self.rules.operations || !self.can_run_again(id) {
                return None;
            }
            let operation = graph.at(id);
            for input in &operation.inputs {
                let Some(producer) = graph.tensors[input.index()].producer else {
                    let ran = self.liveness.position[id.index()];
                    // It would read another value than it did.
                    if self.changes[input.index()].iter().any(|change| ran < *change && *change < next_use) {
                        return None;
                    }
                    continue;
                };
                let last_use = self.liveness.last_use(graph, *input);
                if last_use >= next_use {
                    continue;
                }
                if operation.kind == Kind::Expanding && last_use >= first {
                    end = end.min(last_use);
                    kept.push(*input);
                } else {
                    open.push(producer);
                }
            }
        }
        found.sort_by_key(|id| self.liveness.position[id.index()]);
        kept.sort_unstable();
        kept.dedup();
        // What one branch keeps another may make again; then it need not be kept.
        let is_made = |tensor: &TensorId| found.iter().any(|id| graph.at(*id).outputs.contains(tensor));
        kept.retain(|tensor| !is_made(tensor));
        Some(Candidate { tensor, window: [first, end], next_use, recompute: found, kept })
    }
}
