//! A random way at every node: the scheduling of a pool without a plan.

use super::Paths;
use crate::pool::Pool;
use engine::random::{self, Stream};

/// Every way out of a node is as likely as the others.
pub struct Random {
    /// Ways out of every node, the coordinator's last, and those that may be taken now.
    all: Vec<Vec<usize>>,
    ways: Vec<Vec<usize>>,
    to: Vec<Option<usize>>,
    stream: Stream,
}

impl Random {
    /// Over a pool, with a seed.
    pub fn new(pool: &Pool, seed: u64) -> Self {
        let all: Vec<Vec<usize>> = (0..pool.nodes.len()).map(Some).chain([None]).map(|from| pool.ways(from)).collect();
        let to = pool.hops.iter().map(|hop| hop.to).collect();
        Self { ways: all.clone(), all, to, stream: random::stream(seed, "paths through a pool") }
    }
}

impl Paths for Random {
    fn limit_to(&mut self, usable: &[bool]) {
        self.ways = super::left(&self.all, usable);
    }

    fn path(&mut self, _prompt: u32) -> Option<Vec<usize>> {
        let stream = &mut self.stream;
        super::walk(&self.ways, &self.to, |ways| {
            let n = ways.len() as u64;
            (n > 0).then(|| ways[usize::try_from(stream.below(n)).expect("an index below the length")])
        })
    }
}
