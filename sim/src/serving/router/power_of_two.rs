//! The less loaded of two random replicas (Mitzenmacher, IEEE TPDS 12, 2001).

use crate::random::{self, Stream};
use crate::serving::replica::Replica;
use crate::serving::router::Router;

/// The policy.
pub(super) struct PowerOfTwo {
    stream: Stream,
}

impl PowerOfTwo {
    pub(super) fn new(seed: u64) -> Self {
        Self { stream: random::stream(seed, "router") }
    }
}

impl Router for PowerOfTwo {
    fn choose(&mut self, _request: u32, replicas: &[Replica<'_>]) -> u32 {
        let n = replicas.len() as u64;
        let first = self.stream.below(n);
        // Another one, where there is another one.
        let second = if n > 1 { (first + 1 + self.stream.below(n - 1)) % n } else { first };
        let load = |index: u64| replicas[usize::try_from(index).expect("an index of a replica")].outstanding();
        // A tie goes to the first one drawn: to the lowest index, it would fill the first replicas when load is light.
        let chosen = if load(second) < load(first) { second } else { first };
        u32::try_from(chosen).expect("fewer than 2^32 replicas")
    }
}
