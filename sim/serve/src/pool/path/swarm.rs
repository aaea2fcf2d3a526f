//! SWARM's choice (arXiv:2301.11913, appendix C): every node keeps a moving average of how long each next node takes.
//!
//! A way is taken when its priority is the lowest, and its priority then grows by its average; so ways are taken in inverse proportion to
//! their times. Here a path is chosen at once when a request comes, in SWARM hop by hop. Units: seconds.

use super::Paths;
use crate::pool::Pool;

/// Weight of the newest time in the average; the public Helix simulator's setting.
const SMOOTHING: f64 = 0.8;
/// Average before the first time, seconds; the same source.
const START_S: f64 = 0.05;

/// Ways with their averages.
pub struct Swarm {
    /// Ways out of every node, the coordinator's last, and those that may be taken now.
    all: Vec<Vec<usize>>,
    ways: Vec<Vec<usize>>,
    to: Vec<Option<usize>>,
    mean_s: Vec<f64>,
    priority: Vec<f64>,
}

impl Swarm {
    /// Over a pool.
    pub fn new(pool: &Pool) -> Self {
        let all: Vec<Vec<usize>> = (0..pool.nodes.len()).map(Some).chain([None]).map(|from| pool.ways(from)).collect();
        let to: Vec<Option<usize>> = pool.hops.iter().map(|hop| hop.to).collect();
        Self { ways: all.clone(), all, mean_s: vec![START_S; to.len()], priority: vec![START_S; to.len()], to }
    }
}

impl Paths for Swarm {
    fn limit_to(&mut self, usable: &[bool]) {
        self.ways = super::left(&self.all, usable);
    }

    fn path(&mut self, _prompt: u32) -> Option<Vec<usize>> {
        let (priority, mean_s) = (&mut self.priority, &self.mean_s);
        super::walk(&self.ways, &self.to, |ways| {
            let hop = ways.iter().copied().min_by(|a, b| priority[*a].total_cmp(&priority[*b]))?;
            priority[hop] += mean_s[hop];
            Some(hop)
        })
    }

    fn crossed(&mut self, hop: usize, seconds: f64) {
        self.mean_s[hop] = SMOOTHING * seconds + (1.0 - SMOOTHING) * self.mean_s[hop];
    }
}
