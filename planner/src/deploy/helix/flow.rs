//! Maximum flow of a placement by shortest augmenting paths (Edmonds and Karp 1972), which ends after V·E paths for any capacities.
//!
//! Every node is two vertices with its rate between them; the source feeds nodes with the first layer, nodes with the last feed the sink.
//! Units: tokens per second.

use std::collections::VecDeque;

use super::{FlowProblem, HandOver, Range};

/// What flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// From source to sink.
    pub tokens_per_s: f64,
    /// Tokens per second of each used edge; `None` is the source on the left and the sink on the right.
    pub edges: Vec<(Option<usize>, Option<usize>, f64)>,
    /// The saturated nodes and links that separate source from sink, in words.
    pub cut: Vec<String>,
}

/// Residual graph: edges in pairs, the odd one backwards.
struct Graph {
    to: Vec<usize>,
    residual: Vec<f64>,
    out: Vec<Vec<usize>>,
}

impl Graph {
    fn new(n: usize) -> Self {
        Self { to: Vec::new(), residual: Vec::new(), out: vec![Vec::new(); n] }
    }

    fn add(&mut self, from: usize, to: usize, capacity: f64) {
        for (a, b, capacity) in [(from, to, capacity), (to, from, 0.0)] {
            self.out[a].push(self.to.len());
            self.to.push(b);
            self.residual.push(capacity);
        }
    }

    /// Edge by which each vertex is reached first from `source`.
    fn reached(&self, source: usize, least: f64) -> Vec<Option<usize>> {
        let mut by = vec![None; self.out.len()];
        let mut seen = vec![false; self.out.len()];
        seen[source] = true;
        let mut open = VecDeque::from([source]);
        while let Some(vertex) = open.pop_front() {
            for &edge in &self.out[vertex] {
                let to = self.to[edge];
                if !seen[to] && self.residual[edge] > least {
                    seen[to] = true;
                    by[to] = Some(edge);
                    open.push_back(to);
                }
            }
        }
        by
    }

    fn augment(&mut self, source: usize, sink: usize, least: f64) -> f64 {
        let mut total = 0.0;
        loop {
            engine::stop::pause();
            let by = self.reached(source, least);
            let mut path = Vec::new();
            let mut vertex = sink;
            while let Some(edge) = by[vertex] {
                path.push(edge);
                vertex = self.to[edge ^ 1];
            }
            if vertex != source || path.is_empty() {
                return total;
            }
            let room = path.iter().map(|&edge| self.residual[edge]).fold(f64::INFINITY, f64::min);
            for edge in path {
                self.residual[edge] -= room;
                self.residual[edge ^ 1] += room;
            }
            total += room;
        }
    }
}

/// Whether a token may go from one range to the other.
pub(super) fn goes_on(hand_over: HandOver, from: Range, to: Range) -> bool {
    let follows = match hand_over {
        HandOver::Strict => from.end == to.first,
        HandOver::Partial => to.first <= from.end && from.end < to.end,
    };
    follows && !from.is_empty() && !to.is_empty()
}

/// The maximum flow of a placement. Ranges that a node cannot hold carry nothing, nor do nodes without a range or a row of links.
pub fn max_flow(cluster: &FlowProblem, ranges: &[Range]) -> Flow {
    let n = cluster.nodes.len();
    let (source, sink) = (2 * n, 2 * n + 1);
    let mut graph = Graph::new(2 * n + 2);
    // Edges as the caller knows them, in the order in which they are added.
    let mut known: Vec<(Option<usize>, Option<usize>)> = Vec::new();
    for (i, &range) in ranges.iter().enumerate().take(n) {
        let rate = cluster.rate(i, range);
        if rate <= 0.0 {
            continue;
        }
        graph.add(2 * i, 2 * i + 1, rate);
        known.push((Some(i), Some(i)));
        if range.first == 0 {
            graph.add(source, 2 * i, cluster.border);
            known.push((None, Some(i)));
        }
        if range.end == cluster.n_layers {
            graph.add(2 * i + 1, sink, cluster.border);
            known.push((Some(i), None));
        }
        for (j, &next) in ranges.iter().enumerate().take(n) {
            let link = cluster.links.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0.0);
            if i != j && link > 0.0 && goes_on(cluster.hand_over, range, next) {
                graph.add(2 * i + 1, 2 * j, link);
                known.push((Some(i), Some(j)));
            }
        }
    }
    let most = graph.residual.iter().copied().fold(0.0, f64::max);
    let least = most * 1e-12;
    let tokens_per_s = graph.augment(source, sink, least);
    let by = graph.reached(source, least);
    let is_reached = |vertex: usize| vertex == source || by[vertex].is_some();
    let (mut edges, mut cut) = (Vec::new(), Vec::new());
    for (at, &(from, to)) in known.iter().enumerate() {
        let flow = graph.residual[2 * at + 1];
        if from != to && flow > least {
            edges.push((from, to, flow));
        }
        if is_reached(graph.to[2 * at + 1]) && !is_reached(graph.to[2 * at]) {
            cut.push(words(cluster, from, to));
        }
    }
    Flow { tokens_per_s, edges, cut }
}

fn words(cluster: &FlowProblem, from: Option<usize>, to: Option<usize>) -> String {
    let name = |node: Option<usize>, border: &str| {
        node.map_or_else(|| border.to_owned(), |i| format!("{i} ({})", cluster.nodes[i].name))
    };
    if from == to {
        format!("node {}", name(from, ""))
    } else {
        format!("link {} to {}", name(from, "source"), name(to, "sink"))
    }
}
