//! Which replica takes a request: one policy, one file.
//!
//! A router sees the replicas as they are when the request arrives. Ties go to the lowest index, unless a policy says otherwise.

mod least_loaded;
mod power_of_two;
mod prefix_aware;
mod random;
mod round_robin;

use crate::serving::replica::Replica;

/// A routing policy.
pub trait Router {
    /// Index of the replica that takes the request.
    fn choose(&mut self, request: u32, replicas: &[Replica<'_>]) -> u32;
}

/// A row of the table of routers.
#[derive(Clone, Copy, Debug)]
pub struct RouterKind {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// Makes one from a seed.
    pub make: fn(u64) -> Box<dyn Router>,
}

/// Every routing policy.
pub static ROUTERS: [RouterKind; 5] = [
    RouterKind { name: "round-robin", about: "replicas in turn", make: |_| Box::<round_robin::RoundRobin>::default() },
    RouterKind { name: "random", about: "any replica, evenly", make: |seed| Box::new(random::Random::new(seed)) },
    RouterKind {
        name: "least-loaded",
        about: "fewest requests waiting or running",
        make: |_| Box::new(least_loaded::LeastLoaded),
    },
    RouterKind {
        name: "power-of-two",
        about: "the less loaded of two random replicas",
        make: |seed| Box::new(power_of_two::PowerOfTwo::new(seed)),
    },
    RouterKind {
        name: "prefix-aware",
        about: "the longest cached prefix, unless that replica is far busier than the least loaded one",
        make: |_| Box::new(prefix_aware::PrefixAware),
    },
];

/// A router by name.
#[must_use]
pub fn named(name: &str) -> Option<&'static RouterKind> {
    ROUTERS.iter().find(|router| router.name == name)
}
