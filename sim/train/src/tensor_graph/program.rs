//! A compiled step: an order of operations, and for every gap in which a tensor waits for its next use how it can be made again.

use super::{OperationId, TensorGraph};
use super::{TensorId, symbolic::Expression};

/// A tensor that may be evicted between two uses (arXiv:2412.16985, section 3.3), with the operations that make it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What may be evicted.
    pub tensor: TensorId,
    /// First and last check point at which it may be: positions in the order, a check point stands before its operation.
    pub window: [usize; 2],
    /// Position of the next use, before which it is made again.
    pub next_use: usize,
    /// Operations that make it again, in order.
    pub recompute: Vec<OperationId>,
    /// Inputs of these that would be gone by then and are kept for it.
    pub kept: Vec<TensorId>,
}

/// An order with its candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Every operation once.
    pub order: Vec<OperationId>,
    /// What may be evicted; empty for a compiler without rematerialisation.
    pub candidates: Vec<Candidate>,
}

impl Program {
    /// An order from which nothing is evicted.
    pub const fn of_order(order: Vec<OperationId>) -> Self {
        Self { order, candidates: Vec::new() }
    }

    /// Checks on the host in every step: one per check point at which something may go, one before every next use.
    pub fn n_checks(&self) -> usize {
        let opens = |at: usize| self.candidates.iter().any(|candidate| within(candidate, at));
        (0..self.order.len()).filter(|at| opens(*at)).count() + self.candidates.len()
    }
}

/// Whether a candidate may be evicted at a check point.
pub(super) const fn within(candidate: &Candidate, at: usize) -> bool {
    candidate.window[0] <= at && at <= candidate.window[1]
}

/// Where tensors are written and read in an order.
#[derive(Clone, Debug)]
pub struct Liveness {
    /// Position of every operation.
    pub position: Vec<usize>,
    /// Positions at which each tensor is read, rising, each once; a result of the step has one more behind the last operation.
    pub uses: Vec<Vec<usize>>,
}

impl Liveness {
    /// Of an order.
    pub fn new(graph: &TensorGraph, order: &[OperationId]) -> Self {
        let mut position = vec![0; graph.operations.len()];
        order.iter().enumerate().for_each(|(at, id)| position[id.index()] = at);
        let mut uses: Vec<Vec<usize>> = vec![Vec::new(); graph.tensors.len()];
        for (at, id) in order.iter().enumerate() {
            for input in &graph.at(*id).inputs {
                uses[input.index()].push(at);
            }
        }
        for (tensor, uses) in graph.tensors.iter().zip(&mut uses) {
            uses.dedup();
            uses.extend(tensor.is_output.then_some(order.len()));
        }
        Self { position, uses }
    }

    /// Position of a tensor's writer; `None` for an argument.
    pub fn written(&self, graph: &TensorGraph, tensor: TensorId) -> Option<usize> {
        graph.tensors[tensor.index()].producer.map(|id| self.position[id.index()])
    }

    /// Position of a tensor's last use; that of its writer where nothing reads it.
    pub fn last_use(&self, graph: &TensorGraph, tensor: TensorId) -> usize {
        let written = self.written(graph, tensor).unwrap_or(0);
        self.uses[tensor.index()].last().copied().unwrap_or(written)
    }
}

/// Bytes that are alive while each operation of an order runs, its inputs and outputs among them, as expressions.
pub fn live_bytes(graph: &TensorGraph, order: &[OperationId]) -> Vec<Expression> {
    let liveness = Liveness::new(graph, order);
    let ids = || (0..graph.tensors.len()).map(|at| TensorId(u32::try_from(at).expect("fewer than 2^32")));
    let mut live = Expression::default();
    let mut ends: Vec<Vec<TensorId>> = vec![Vec::new(); order.len() + 1];
    for id in ids() {
        if graph.is_argument(id) {
            live = live.plus(&graph.tensors[id.index()].bytes);
        } else {
            ends[liveness.last_use(graph, id)].push(id);
        }
    }
    let mut all = Vec::with_capacity(order.len());
    for (at, id) in order.iter().enumerate() {
        for output in &graph.at(*id).outputs {
            live = live.plus(&graph.tensors[output.index()].bytes);
        }
        all.push(live.clone());
        for ended in &ends[at] {
            live = live.minus(&graph.tensors[ended.index()].bytes);
        }
    }
    all
}
