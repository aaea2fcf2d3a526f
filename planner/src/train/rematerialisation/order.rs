//! Order of operations for least memory, by symbolic sizes (arXiv:2412.16985, section 3.2): among the operations that are ready, the one that
//! adds least to what is alive.
//!
//! An operation adds its outputs and takes away the inputs of which it is the last reader. Where two cannot be compared, not even at
//! likely sizes, the one whose outputs die soonest in the original order goes first, then the earlier one.

use train::tensor_graph::program::{Liveness, live_bytes};
use train::tensor_graph::symbolic::{Comparison, Expression};
use train::tensor_graph::{OperationId, TensorGraph};

/// The list schedule.
pub fn schedule(graph: &TensorGraph) -> Vec<OperationId> {
    let before = graph.predecessors();
    let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut followers: Vec<Vec<OperationId>> = vec![Vec::new(); before.len()];
    for (id, before) in graph.original_order().into_iter().zip(&before) {
        before.iter().for_each(|other| followers[other.index()].push(id));
    }
    let deaths = deaths(graph);
    let mut readers = readers(graph);
    let mut ready: Vec<OperationId> = graph.original_order().into_iter().filter(|id| waits[id.index()] == 0).collect();
    let mut order = Vec::with_capacity(before.len());
    while !ready.is_empty() {
        let at = least(graph, &ready, &readers, &deaths);
        let chosen = ready.remove(at);
        for input in distinct(graph, chosen) {
            readers[input] -= 1;
        }
        for follower in &followers[chosen.index()] {
            waits[follower.index()] -= 1;
            if waits[follower.index()] == 0 {
                let at = ready.partition_point(|other| other < follower);
                ready.insert(at, *follower);
            }
        }
        order.push(chosen);
    }
    order
}

/// Tensors that an operation reads, each once.
fn distinct(graph: &TensorGraph, id: OperationId) -> Vec<usize> {
    let mut inputs: Vec<usize> = graph.at(id).inputs.iter().map(|input| input.index()).collect();
    inputs.sort_unstable();
    inputs.dedup();
    inputs
}

/// Operations that read each tensor; results of the step have one more.
fn readers(graph: &TensorGraph) -> Vec<usize> {
    let mut readers: Vec<usize> = graph.tensors.iter().map(|tensor| usize::from(tensor.is_output)).collect();
    for id in graph.original_order() {
        distinct(graph, id).into_iter().for_each(|input| readers[input] += 1);
    }
    readers
}

/// Operations between each one and the last use of what it writes, in the original order.
fn deaths(graph: &TensorGraph) -> Vec<usize> {
    let original = graph.original_order();
    let liveness = Liveness::new(graph, &original);
    let last = |id: &OperationId| graph.at(*id).outputs.iter().map(|out| liveness.last_use(graph, *out)).max();
    original.iter().map(|id| last(id).unwrap_or(id.index()) - id.index()).collect()
}

/// What an operation adds to the live bytes.
fn impact(graph: &TensorGraph, id: OperationId, readers: &[usize]) -> Expression {
    let bytes = |tensor: usize| &graph.tensors[tensor].bytes;
    let written = graph.at(id).outputs.iter().map(|output| output.index()).filter(|output| readers[*output] > 0);
    let is_argument = |tensor: &usize| graph.tensors[*tensor].producer.is_none();
    let freed = distinct(graph, id).into_iter().filter(|input| readers[*input] == 1 && !is_argument(input));
    let added = written.fold(Expression::default(), |sum, output| sum.plus(bytes(output)));
    freed.fold(added, |sum, input| sum.minus(bytes(input)))
}

/// Position of the ready operation with the least impact.
fn least(graph: &TensorGraph, ready: &[OperationId], readers: &[usize], deaths: &[usize]) -> usize {
    let mut best = (0, impact(graph, ready[0], readers));
    for (at, id) in ready.iter().enumerate().skip(1) {
        let impact = impact(graph, *id, readers);
        let dies_sooner = deaths[id.index()] < deaths[ready[best.0].index()];
        let is_less = match graph.symbols.compare_likely(&impact, &best.1) {
            Comparison::AtMost => true,
            Comparison::AtLeast => false,
            Comparison::Equal | Comparison::Unknown => dies_sooner,
        };
        if is_less {
            best = (at, impact);
        }
    }
    best.0
}

/// Whether one order is proven to have no higher peak than another, whatever the sizes are: at each of its operations no more is alive
/// than at some operation of the other.
pub fn is_never_worse(graph: &TensorGraph, order: &[OperationId], other: &[OperationId]) -> bool {
    let others = peaks(graph, live_bytes(graph, other));
    let is_below = |live: &Expression| {
        others.iter().any(|other| matches!(graph.symbols.compare(live, other), Comparison::AtMost | Comparison::Equal))
    };
    peaks(graph, live_bytes(graph, order)).iter().all(is_below)
}

/// Of many sizes, those that no other is proven to reach.
fn peaks(graph: &TensorGraph, sizes: Vec<Expression>) -> Vec<Expression> {
    let mut peaks: Vec<Expression> = Vec::new();
    for size in sizes {
        let is_reached =
            |peak: &Expression| matches!(graph.symbols.compare(&size, peak), Comparison::AtMost | Comparison::Equal);
        if !peaks.iter().any(is_reached) {
            peaks.retain(|peak| graph.symbols.compare(peak, &size) != Comparison::AtMost);
            peaks.push(size);
        }
    }
    peaks
}
