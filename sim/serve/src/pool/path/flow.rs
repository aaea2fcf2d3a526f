//! Helix's choice (arXiv:2406.01566, section 5): interleaved weighted round robin with the maximum flow as weights, per node.
//!
//! At every node the next hop is the one whose load would be least after it took the prompt, load = tokens over planned tokens per second.
//! Hops are left out that carry less than 5 % of the node's flow, whose node cannot batch the prompt, or whose cache is expected to rise
//! above the high-water mark. A request is expected to need (prompt + ρ·mean output) tokens in every layer that it does on a node.
//! Units: tokens, tokens per second, tokens times layers.

use super::Paths;
use crate::pool::Pool;

/// Share of a node's flow below which a way is not taken.
const LEAST_SHARE: f64 = 0.05;

/// What is expected of a request's cache, and how full a cache may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Output tokens that are expected to be cached, of a request: ρ times the mean output.
    pub output_tokens: f64,
    /// Share of a cache that may be expected to be in use.
    pub high_water_ratio: f64,
}

/// Ways with weights and loads, and caches as they are expected to be.
pub struct Flow<'p> {
    pool: &'p Pool,
    expected: Expected,
    /// Ways out of every node, the coordinator's last, that carry enough.
    ways: Vec<Vec<usize>>,
    /// Tokens over planned tokens per second, of every hop.
    load: Vec<f64>,
    /// Tokens times layers expected on every node.
    cached: Vec<f64>,
}

impl<'p> Flow<'p> {
    /// Over a pool whose hops have the planned flow as weights.
    pub fn new(pool: &'p Pool, expected: Expected) -> Self {
        let ways = carrying(pool, |_| true);
        Self { pool, expected, ways, load: vec![0.0; pool.hops.len()], cached: vec![0.0; pool.nodes.len()] }
    }

    fn tokens(&self, prompt: u32) -> f64 {
        (f64::from(prompt) + self.expected.output_tokens).floor()
    }

    /// Whether a hop may be taken by a prompt.
    fn is_open(&self, hop: usize, prompt: u32) -> bool {
        let Some(to) = self.pool.hops[hop].to else { return true };
        let node = &self.pool.nodes[to];
        let cache = hw::real(node.cache());
        // As if the request did all of the node's layers.
        let needed = self.tokens(prompt) * f64::from(node.n_layers());
        prompt <= self.pool.prompt_tokens_max.saturating_mul(node.room.prompts)
            && self.cached[to] + needed <= self.expected.high_water_ratio * cache
    }

    fn cache(&mut self, path: &[usize], tokens: f64) {
        for &hop in path {
            if let Some(to) = self.pool.hops[hop].to {
                self.cached[to] += tokens * hw::real(self.pool.layers_done(hop));
            }
        }
    }
}

/// Ways out of every node, the coordinator's last, that carry enough of what flows over those that may be taken.
fn carrying(pool: &Pool, may: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
    let enough = |from: Option<usize>| {
        let ways: Vec<usize> = pool.ways(from).into_iter().filter(|&hop| may(hop)).collect();
        let sum: f64 = ways.iter().map(|&hop| pool.hops[hop].weight).sum();
        let carries = |hop: &usize| pool.hops[*hop].weight > 0.0 && pool.hops[*hop].weight >= LEAST_SHARE * sum;
        ways.into_iter().filter(carries).collect()
    };
    (0..pool.nodes.len()).map(Some).chain([None]).map(enough).collect()
}

impl Paths for Flow<'_> {
    fn limit_to(&mut self, usable: &[bool]) {
        self.ways = carrying(self.pool, |hop| usable[hop]);
    }

    fn path(&mut self, prompt: u32) -> Option<Vec<usize>> {
        let mut path: Vec<usize> = Vec::new();
        let mut at = self.ways.len() - 1;
        let more = |hop: usize| f64::from(prompt) / self.pool.hops[hop].weight;
        loop {
            let open = self.ways[at].iter().copied().filter(|&hop| self.is_open(hop, prompt));
            let after = |hop: usize| self.load[hop] + more(hop);
            let Some(hop) = open.min_by(|a, b| after(*a).total_cmp(&after(*b))) else {
                // A dead end: the loads are as before.
                path.into_iter().for_each(|hop| self.load[hop] -= more(hop));
                return None;
            };
            self.load[hop] += more(hop);
            path.push(hop);
            match self.pool.hops[hop].to {
                Some(node) => at = node,
                None => break,
            }
        }
        self.cache(&path, self.tokens(prompt));
        Some(path)
    }

    fn again(&mut self, path: &[usize]) {
        path.iter().for_each(|&hop| self.load[hop] += 1.0 / self.pool.hops[hop].weight);
    }

    fn left(&mut self, path: &[usize], prompt: u32) {
        self.cache(path, -self.tokens(prompt));
    }

    /// A layer's cache is that of all its nodes together.
    fn filled_ratio(&self) -> f64 {
        let layer = |layer: u32| {
            let holds = self.pool.nodes.iter().zip(&self.cached).filter(|(n, _)| (n.first..n.end).contains(&layer));
            let (used, all) = holds.fold((0.0, 0.0), |(used, all), (node, cached)| {
                let n = f64::from(node.n_layers());
                (used + cached / n, all + hw::real(node.room.kv_tokens))
            });
            if all > 0.0 { used / all } else { 1.0 }
        };
        (0..self.pool.n_layers).map(layer).fold(0.0, f64::max)
    }
}
