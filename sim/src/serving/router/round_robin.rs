//! Replicas in turn.

use crate::serving::replica::Replica;
use crate::serving::router::Router;

/// The policy.
#[derive(Default)]
pub(super) struct RoundRobin {
    next: u32,
}

impl Router for RoundRobin {
    fn choose(&mut self, _request: u32, replicas: &[Replica<'_>]) -> u32 {
        let chosen = self.next;
        self.next = (chosen + 1) % u32::try_from(replicas.len()).expect("fewer than 2^32 replicas");
        chosen
    }
}
