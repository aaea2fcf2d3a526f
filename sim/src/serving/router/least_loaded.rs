//! Fewest requests waiting or running.

use crate::serving::replica::Replica;
use crate::serving::router::Router;

/// The policy.
pub(super) struct LeastLoaded;

impl Router for LeastLoaded {
    fn choose(&mut self, _request: u32, replicas: &[Replica<'_>]) -> u32 {
        let least = (0..replicas.len()).min_by_key(|&index| replicas[index].outstanding());
        u32::try_from(least.expect("a fleet has a replica")).expect("fewer than 2^32 replicas")
    }
}
