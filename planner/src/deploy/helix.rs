//! Helix (arXiv:2406.01566, ASPLOS 2025): layers on mixed nodes so that the most tokens flow from source to sink.
//!
//! Every node holds a range of layers, s_i to e_i, and takes thr_i(k) tokens per second with k layers. A token goes from i to j where j goes
//! on with the next layer: e_i = s_j, or s_j <= e_i < e_j where nodes may skip layers that are done (partial inference). The flow of a
//! placement is a maximum flow (`helix/flow.rs`), what any schedule of requests reaches on it at the batches that thr_i(k) is planned for.
//! Placements come from the baselines (`helix/layouts.rs`), a descent from them, and the paper's program (`helix/program.rs`) started at
//! the best of them. Two bounds on the flow: all work over all nodes, F·M <= Σ_i max_k k·thr_i(k), and the program's own.
//!
//! `replay.rs` makes a placement what the simulator plays, `typical.rs` has the rates from times of layers. Runs have other batches than
//! planned ones; `bound.rs` has what no run passes, and `traffic.rs` what it is asked for. Units: tokens per second, layers.

mod bound;
mod flow;
pub mod held;
mod layouts;
pub mod played;
mod policies;
mod program;
mod replay;
mod routes;
pub mod tables;
mod traffic;
mod typical;

pub use bound::on_pool;
pub use flow::{Flow, max_flow};
pub use layouts::{chain, petals, separate, swarm};
pub use played::{Arriving, Asked, Load, Way};
pub use policies::{Placement, Scheduling};
pub use replay::{Fill, Machines};
pub use traffic::{Held, Holding, Traffic};
pub use typical::{Typical, rates};

use super::RentalError;
use crate::milp::Budget;
use crate::proof::{self, Aim, Bound, Decision, Status};

/// A machine that can hold layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name of its type, for messages and for pipelines of one type.
    pub name: String,
    /// `tokens_per_s[k - 1]`: tokens per second with k layers; as long as it can hold layers.
    pub tokens_per_s: Vec<f64>,
}

/// Nodes and links.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowProblem {
    /// Layers of the model.
    pub n_layers: u32,
    /// Machines.
    pub nodes: Vec<Node>,
    /// `links[i][j]`: tokens per second whose activations go from node i to node j; 0 without a link.
    pub links: Vec<Vec<f64>>,
    /// Tokens per second from the source to each node, and from each node to the sink.
    pub border: f64,
    /// How a token may go on.
    pub hand_over: HandOver,
}

/// Where a token may enter a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// At its first layer only.
    Strict,
    /// At any layer: those before are skipped.
    Partial,
}

/// Layers of a node, `first..end`; empty where it holds none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First layer.
    pub first: u32,
    /// One beyond the last layer.
    pub end: u32,
}

impl Range {
    const fn is_empty(self) -> bool {
        self.end <= self.first
    }
}

/// A placement with its flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Layers of each node.
    pub ranges: Vec<Range>,
    /// Its maximum flow, whose tokens per second are the objective.
    pub flow: Flow,
}

impl FlowProblem {
    /// Tokens per second of a node with a range.
    fn rate(&self, node: usize, range: Range) -> f64 {
        let k = range.end.saturating_sub(range.first) as usize;
        if k == 0 { 0.0 } else { self.nodes[node].tokens_per_s.get(k - 1).copied().unwrap_or(0.0) }
    }

    /// Layers that a node can hold.
    fn n_layers_max(&self, node: usize) -> u32 {
        u32::try_from(self.nodes[node].tokens_per_s.len()).unwrap_or(u32::MAX).min(self.n_layers)
    }

    /// Layers that all nodes hold together at most.
    fn n_layers_held(&self) -> u64 {
        (0..self.nodes.len()).map(|node| u64::from(self.n_layers_max(node))).sum()
    }

    /// Tokens per second if every node always worked at its best number of layers: no placement has more.
    pub fn compute_bound(&self) -> f64 {
        let work = |node: &Node| {
            let rates = node.tokens_per_s.iter().zip(1_u32..=self.n_layers);
            rates.map(|(rate, k)| f64::from(k) * rate).fold(0.0, f64::max)
        };
        self.nodes.iter().map(work).sum::<f64>() / f64::from(self.n_layers.max(1))
    }

    fn check(&self) -> Result<(), RentalError> {
        let input = |message: String| Err(RentalError::Input(message));
        let n = self.nodes.len();
        if self.n_layers == 0 || n == 0 {
            return input(format!("{} layers on {n} nodes: neither may be 0", self.n_layers));
        }
        if self.links.len() != n || self.links.iter().any(|row| row.len() != n) {
            return input(format!("links must be a table of {n} by {n} nodes"));
        }
        let bad = |rate: &f64| !(rate.is_finite() && *rate >= 0.0);
        if let Some(rate) = self.links.iter().flatten().chain([&self.border]).find(|rate| bad(rate)) {
            return input(format!("a link must not be below 0 tokens/s, found {rate}"));
        }
        for node in &self.nodes {
            if let Some(rate) = node.tokens_per_s.iter().find(|rate| bad(rate)) {
                return input(format!("a rate of `{}` must not be below 0 tokens/s, found {rate}", node.name));
            }
        }
        let (room, layers) = (self.n_layers_held(), self.n_layers);
        if room < u64::from(layers) {
            return Err(RentalError::OutOfMemory(format!(
                "all nodes together hold {room} layers, the model has {layers}"
            )));
        }
        Ok(())
    }
}

/// The baselines and a descent from each, with their flows.
fn tried(cluster: &FlowProblem) -> Vec<Placed> {
    let starts = [petals(cluster), swarm(cluster), separate(cluster), chain(cluster)];
    let both = starts.into_iter().flat_map(|start| [layouts::descend(cluster, start.clone()), start]);
    both.map(|ranges| Placed { flow: max_flow(cluster, &ranges), ranges }).collect()
}

/// The best placement of the baselines and a descent from each; no solver.
///
/// # Errors
/// On figures without meaning, or when the nodes cannot hold the model or no token gets through.
pub fn heuristic(cluster: &FlowProblem) -> Result<Decision<Placed>, RentalError> {
    cluster.check()?;
    best(tried(cluster), cluster.compute_bound(), Status::Heuristic)
}

/// The best placement: the program, started at the heuristic's.
///
/// # Errors
/// As `heuristic`, or when the budget ended without any placement.
pub fn plan(cluster: &FlowProblem, budget: Budget) -> Result<Decision<Placed>, RentalError> {
    cluster.check()?;
    let start = heuristic(cluster);
    let from = start.as_ref().ok().map(|placed| (placed.plan.ranges.clone(), placed.plan.flow.clone()));
    let solved = program::solve(cluster, from.as_ref(), budget);
    let mut found: Vec<Placed> = from.into_iter().map(|(ranges, flow)| Placed { ranges, flow }).collect();
    match solved {
        Ok(solved) => {
            found.push(Placed { flow: max_flow(cluster, &solved.ranges), ranges: solved.ranges });
            best(found, solved.bound.min(cluster.compute_bound()), solved.status)
        }
        Err(why) => start.map_err(|_| why),
    }
}

/// The fastest of some placements, with the second.
fn best(found: Vec<Placed>, bound: f64, status: Status) -> Result<Decision<Placed>, RentalError> {
    let through = found.into_iter().filter(|placed| placed.flow.tokens_per_s > 0.0);
    let rates = through.map(|placed| (placed.flow.tokens_per_s, placed)).collect();
    let is_other = |other: &Placed, best: &Placed| other.ranges != best.ranges;
    let none = "no token gets through: no placement that was tried has a path over all layers";
    let best = proof::ranked(Aim::TokensPerS, rates, |placed| placed.ranges.clone(), is_other)
        .ok_or_else(|| RentalError::Infeasible(none.to_owned()))?;
    let (limit, least) = (limit(&best.plan), best.plan.flow.tokens_per_s);
    // The program's bound is below its own placement by the solver's tolerance.
    Ok(best.bounded(Some(Bound::plain(bound.max(least))), status).limited(limit))
}

/// The cut that holds a flow back.
fn limit(placed: &Placed) -> String {
    format!("cut through {}", placed.flow.cut.join(", "))
}

impl Placed {
    /// Tokens per second and ranges, in words.
    pub fn words(&self) -> String {
        format!("{:.2} tokens/s on ranges {}", self.flow.tokens_per_s, words(&self.ranges))
    }
}

fn words(ranges: &[Range]) -> String {
    ranges.iter().map(|range| format!("{}..{}", range.first, range.end)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
