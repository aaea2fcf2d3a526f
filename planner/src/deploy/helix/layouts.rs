//! Baseline placements, and a descent from them.
//!
//! Swarm: stages of equal size, nodes from fast to slow dealt to the stage with the least rate. Petals: fastest nodes first, each takes the interval that is
//! weakest so far. Separate: one pipeline per type of node. Chain, ours: one pipeline over all nodes, each with as many layers as leave it a
//! common rate, for the largest rate at which the layers suffice. The descent moves one node's range at a time, to where other ranges begin or
//! end, and keeps a move that raises (flow, supply), where supply counts how much of a common rate the layers have.

use std::collections::BTreeMap;

use super::{FlowProblem, Range, max_flow};

/// Rounds of the descent at most.
const ROUNDS_MAX: usize = 8;

/// Tokens per second that the nodes of each layer take together.
fn supply(cluster: &FlowProblem, ranges: &[Range]) -> Vec<f64> {
    let mut all = vec![0.0; cluster.n_layers as usize];
    for (node, &range) in ranges.iter().enumerate() {
        let rate = cluster.rate(node, range);
        all.iter_mut().take(range.end as usize).skip(range.first as usize).for_each(|layer| *layer += rate);
    }
    all
}

/// Nodes from fast to slow, by their work at the most layers that they hold.
fn fastest_first(cluster: &FlowProblem) -> Vec<usize> {
    let work = |&node: &usize| {
        let most = cluster.n_layers_max(node);
        f64::from(most) * cluster.rate(node, Range { first: 0, end: most })
    };
    let mut nodes: Vec<usize> = (0..cluster.nodes.len()).collect();
    nodes.sort_unstable_by(|a, b| work(b).total_cmp(&work(a)).then(a.cmp(b)));
    nodes
}

/// Petals: each node takes as many layers as it holds, where the rate so far is least.
pub fn petals(cluster: &FlowProblem) -> Vec<Range> {
    let mut ranges = vec![Range::default(); cluster.nodes.len()];
    for node in fastest_first(cluster) {
        let n = cluster.n_layers_max(node);
        if n == 0 {
            continue;
        }
        let now = supply(cluster, &ranges);
        let of = |first: u32| -> Vec<f64> {
            let mut layers = now[first as usize..(first + n) as usize].to_vec();
            layers.sort_unstable_by(f64::total_cmp);
            layers
        };
        let weaker = |a: &u32, b: &u32| {
            let pairs = of(*a).into_iter().zip(of(*b)).map(|(a, b)| a.total_cmp(&b));
            pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
        };
        let first = (0..=cluster.n_layers - n).min_by(weaker).unwrap_or(0);
        ranges[node] = Range { first, end: first + n };
    }
    ranges
}

/// Swarm: equal stages, the longest that the smallest node holds.
pub fn swarm(cluster: &FlowProblem) -> Vec<Range> {
    let least = (0..cluster.nodes.len()).map(|node| cluster.n_layers_max(node)).filter(|n| *n > 0).min().unwrap_or(1);
    let size = (1..=least).rev().find(|&size| cluster.n_layers.is_multiple_of(size)).unwrap_or(1);
    stages(cluster, &fastest_first(cluster), size)
}

/// Deals nodes to stages of one size, each to the stage with the least rate.
fn stages(cluster: &FlowProblem, nodes: &[usize], size: u32) -> Vec<Range> {
    let n_stages = cluster.n_layers.div_ceil(size);
    let mut ranges = vec![Range::default(); cluster.nodes.len()];
    if n_stages == 0 {
        return ranges;
    }
    let mut rates = vec![0.0_f64; n_stages as usize];
    for &node in nodes {
        let stage = (0..n_stages).min_by(|a, b| rates[*a as usize].total_cmp(&rates[*b as usize])).unwrap_or(0);
        let range = Range { first: stage * size, end: ((stage + 1) * size).min(cluster.n_layers) };
        ranges[node] = range;
        rates[stage as usize] += cluster.rate(node, range);
    }
    ranges
}

/// One pipeline per type of node, with the stage size of the most flow; types that cannot hold the model stay idle.
pub fn separate(cluster: &FlowProblem) -> Vec<Range> {
    let mut types: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (node, of) in cluster.nodes.iter().enumerate() {
        types.entry(&of.name).or_default().push(node);
    }
    let mut ranges = vec![Range::default(); cluster.nodes.len()];
    for nodes in types.values() {
        let most = nodes.iter().map(|&node| cluster.n_layers_max(node)).min().unwrap_or(0);
        let all = (1..=most).map(|size| stages(cluster, nodes, size));
        let flows = all.map(|ranges| (max_flow(cluster, &ranges).tokens_per_s, ranges));
        if let Some((rate, of_type)) = flows.reduce(|a, b| if b.0 > a.0 { b } else { a })
            && rate > 0.0
        {
            nodes.iter().for_each(|&node| ranges[node] = of_type[node]);
        }
    }
    ranges
}

/// One pipeline over the nodes in their order: the largest rate F with Σ_i max { k : thr_i(k) >= F } >= M, for nodes that all are linked.
pub fn chain(cluster: &FlowProblem) -> Vec<Range> {
    chain_over(cluster, 0..cluster.nodes.len())
}

/// The same from the last node to the first: what is left of the layers falls on the other end.
pub fn chain_from_last(cluster: &FlowProblem) -> Vec<Range> {
    chain_over(cluster, (0..cluster.nodes.len()).rev())
}

fn chain_over(cluster: &FlowProblem, nodes: impl Iterator<Item = usize>) -> Vec<Range> {
    let held = |node: usize, rate: f64| {
        let rates = cluster.nodes[node].tokens_per_s.iter().zip(1..=cluster.n_layers);
        rates.filter(|(of, _)| **of >= rate).map(|(_, k)| k).max().unwrap_or(0)
    };
    let n = cluster.nodes.len();
    let sum = |rate: f64| (0..n).map(|node| u64::from(held(node, rate))).sum::<u64>();
    let mut rates: Vec<f64> = cluster.nodes.iter().flat_map(|node| node.tokens_per_s.iter().copied()).collect();
    rates.retain(|rate| *rate > 0.0);
    rates.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut ranges = vec![Range::default(); n];
    let Some(rate) = rates.into_iter().find(|rate| sum(*rate) >= u64::from(cluster.n_layers)) else { return ranges };
    let mut first = 0;
    for node in nodes {
        let end = (first + held(node, rate)).min(cluster.n_layers);
        ranges[node] = Range { first, end };
        first = end;
    }
    ranges
}

/// How far the layers are from a common rate that work alone would allow; more is better.
fn evenness(cluster: &FlowProblem, ranges: &[Range]) -> f64 {
    let target = cluster.compute_bound();
    supply(cluster, ranges).into_iter().map(|rate| rate.min(target).sqrt()).sum()
}

/// Moves single nodes while (flow, evenness) rises.
pub(super) fn descend(cluster: &FlowProblem, mut ranges: Vec<Range>) -> Vec<Range> {
    let value = |ranges: &[Range]| (max_flow(cluster, ranges).tokens_per_s, evenness(cluster, ranges));
    let mut best = value(&ranges);
    for _ in 0..ROUNDS_MAX {
        let mut is_better = false;
        for node in 0..ranges.len() {
            for range in moves(cluster, &ranges, node) {
                if engine::stop::is_asked() {
                    return ranges;
                }
                let before = std::mem::replace(&mut ranges[node], range);
                let now = value(&ranges);
                let slack = best.0 * 1e-9;
                if now.0 > best.0 + slack || (now.0 >= best.0 - slack && now.1 > best.1 + best.1 * 1e-9) {
                    (best, is_better) = (now, true);
                } else {
                    ranges[node] = before;
                }
            }
        }
        if !is_better {
            break;
        }
    }
    ranges
}

/// Ranges of a node that begin and end where others do, or are as long as it holds.
fn moves(cluster: &FlowProblem, ranges: &[Range], node: usize) -> Vec<Range> {
    let others = ranges.iter().enumerate().filter(|(other, range)| *other != node && !range.is_empty());
    let mut borders: Vec<u32> = others.flat_map(|(_, range)| [range.first, range.end]).collect();
    borders.extend([0, cluster.n_layers]);
    borders.sort_unstable();
    borders.dedup();
    let most = cluster.n_layers_max(node);
    let mut all: Vec<Range> = Vec::new();
    for &border in &borders {
        all.push(Range { first: border, end: (border + most).min(cluster.n_layers) });
        all.push(Range { first: border.saturating_sub(most), end: border });
        let ends = borders.iter().filter(|end| **end > border && **end - border <= most);
        all.extend(ends.map(|&end| Range { first: border, end }));
    }
    all.retain(|range| !range.is_empty());
    all.sort_unstable();
    all.dedup();
    all
}
