//! Any replica, evenly, from a named stream.

use crate::random::{self, Stream};
use crate::serving::replica::Replica;
use crate::serving::router::Router;

/// The policy.
pub(super) struct Random {
    stream: Stream,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { stream: random::stream(seed, "router") }
    }
}

impl Router for Random {
    fn choose(&mut self, _request: u32, replicas: &[Replica<'_>]) -> u32 {
        u32::try_from(self.stream.below(replicas.len() as u64)).expect("fewer than 2^32 replicas")
    }
}
