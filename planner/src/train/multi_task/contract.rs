//! From layers to `MetaOps` (Spindle, section 3.1): layers of one type and input size that follow each other without a branch become one.

use train::multi_task::{MetaOp, MultiTask};

/// A layer of a call, and those that it needs.
struct Node {
    call: usize,
    layer: u32,
    preds: Vec<usize>,
}

/// One node per layer of every call, in topological order: a call's layers are a chain, its first needs the last of each call before it.
fn nodes(training: &MultiTask) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut last_of_call = Vec::with_capacity(training.calls.len());
    for (index, call) in training.calls.iter().enumerate() {
        for layer in 0..training.operator(index).n_layers {
            let preds = if layer == 0 {
                call.after.iter().map(|&before| last_of_call[before]).collect()
            } else {
                vec![nodes.len() - 1]
            };
            nodes.push(Node { call: index, layer, preds });
        }
        last_of_call.push(nodes.len() - 1);
    }
    nodes
}

/// Contracts the layers of all tasks, each `MetaOp` behind those that it needs.
pub fn contract(training: &MultiTask) -> Vec<MetaOp> {
    let nodes = nodes(training);
    let mut n_successors = vec![0_usize; nodes.len()];
    nodes.iter().flat_map(|node| &node.preds).for_each(|&pred| n_successors[pred] += 1);
    let mut meta_op_of: Vec<usize> = Vec::with_capacity(nodes.len());
    let mut found: Vec<MetaOp> = Vec::new();
    for node in &nodes {
        let joins = match node.preds[..] {
            [pred] if n_successors[pred] == 1 => {
                train::multi_task::cost::is_alike(training, nodes[pred].call, node.call).then(|| meta_op_of[pred])
            }
            _ => None,
        };
        let at = joins.unwrap_or_else(|| {
            let preds: Vec<usize> = node.preds.iter().map(|&pred| meta_op_of[pred]).collect();
            let level = preds.iter().map(|&pred| found[pred].level + 1).max().unwrap_or(0);
            let call = &training.calls[node.call];
            let name = format!("{}/{}", training.tasks[call.task].name, call.name);
            let (task, call) = (call.task, node.call);
            found.push(MetaOp { name, task, call, last_call: call, layers: Vec::new(), preds, level });
            found.len() - 1
        });
        found[at].layers.push(node.layer);
        found[at].last_call = node.call;
        meta_op_of.push(at);
    }
    found
}
