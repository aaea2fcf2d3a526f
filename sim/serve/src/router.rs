//! Which replica takes a request: one policy, one file.
//!
//! A router sees the replicas as they are when the request arrives, and may choose among the candidates: those that run, have the right
//! role and take new requests. Ties go to the lowest index, unless a policy says otherwise.

mod frontends;
mod interleaved;
mod least_loaded;
mod least_memory;
mod plan_weights;
mod power_of_two;
mod prefix_aware;
mod random;
mod round_robin;
mod turns;

use crate::assignment::Assignment;
use crate::replica::Replica;
pub use frontends::FRONTENDS;

/// What a router sees.
#[derive(Clone, Copy, Debug)]
pub struct View<'v, 'a> {
    /// All replicas of the fleet.
    pub replicas: &'v [Replica<'a>],
    /// Indices of those that may be chosen, ascending; never empty.
    pub candidates: &'v [u32],
    /// Group of every replica.
    pub group_of: &'v [u32],
    /// What was planned.
    pub assignment: &'v Assignment,
    /// Group that has prefilled the request; none for one that arrives.
    pub from: Option<u32>,
    /// Model that the request asks for, which all candidates serve.
    pub model: u32,
}

impl View<'_, '_> {
    /// 0 for a request that arrives, 1 for one that comes from a prefill group: turns of the two are counted apart.
    pub const fn stage(&self) -> usize {
        self.from.is_some() as usize
    }

    /// Number of the round in which the candidates take turns: every model and every stage has its own.
    pub const fn round(&self) -> usize {
        2 * self.model as usize + self.stage()
    }

    /// Row of the assignment for a request, by stage.
    pub fn row(&self, request: u32) -> usize {
        self.assignment.row(request, self.from)
    }

    /// Requests that are at a replica and not finished, whose clients have not left.
    pub fn load(&self, replica: u32) -> u32 {
        self.replicas[replica as usize].waited_for()
    }

    /// The least loaded of the candidates that a filter keeps.
    pub fn least_loaded(&self, keep: impl Fn(u32) -> bool) -> Option<u32> {
        self.candidates.iter().copied().filter(|replica| keep(*replica)).min_by_key(|replica| self.load(*replica))
    }
}

/// A routing policy.
pub trait Router {
    /// The candidate that takes the request.
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32;

    /// Whether it looks at what replicas have cached. They tell it what has left their devices by now, in the middle of a span too.
    fn looks_into_caches(&self) -> bool {
        false
    }
}

/// A row of the table of routers.
#[derive(Clone, Copy, Debug)]
pub struct RouterKind {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// Whether it goes by planned shares of groups.
    pub by_shares: bool,
    /// Makes one from a seed.
    pub make: fn(u64) -> Box<dyn Router>,
}

/// Every routing policy.
pub static ROUTERS: [RouterKind; 9] = [
    RouterKind {
        name: "round-robin",
        about: "replicas in turn",
        by_shares: false,
        make: |_| Box::<round_robin::RoundRobin>::default(),
    },
    RouterKind {
        name: "frontends",
        about: "replicas in turn, by ten frontends that each have turns of their own",
        by_shares: false,
        make: |seed| frontends(frontends::FRONTENDS, seed),
    },
    RouterKind {
        name: "random",
        about: "any replica, evenly",
        by_shares: false,
        make: |seed| Box::new(random::Random::new(seed)),
    },
    RouterKind {
        name: "least-loaded",
        about: "fewest requests waiting or running",
        by_shares: false,
        make: |_| Box::new(least_loaded::LeastLoaded),
    },
    RouterKind {
        name: "least-memory",
        about: "fewest blocks of prompts waiting or running, and of what it lends",
        by_shares: false,
        make: |_| Box::new(least_memory::LeastMemory),
    },
    RouterKind {
        name: "power-of-two",
        about: "the less loaded of two random replicas",
        by_shares: false,
        make: |seed| Box::new(power_of_two::PowerOfTwo::new(seed)),
    },
    RouterKind {
        name: "prefix-aware",
        about: "the longest cached prefix, unless that replica is far busier than the least loaded one",
        by_shares: false,
        make: |_| Box::new(prefix_aware::PrefixAware),
    },
    RouterKind {
        name: "plan-weights",
        about: "groups in turn by the planned shares of the request's type, then the least loaded of the group",
        by_shares: true,
        make: |_| Box::<plan_weights::PlanWeights>::default(),
    },
    RouterKind {
        name: "interleaved-round-robin",
        about: "replicas in interleaved turns, by their part of the planned share of their group (Helix)",
        by_shares: true,
        make: |_| Box::<interleaved::Interleaved>::default(),
    },
];

/// So many frontends that each deal out their requests in turn; one alone is a single round.
pub fn frontends(n: u32, seed: u64) -> Box<dyn Router> {
    if n > 1 { Box::new(frontends::Frontends::new(n, seed)) } else { Box::<round_robin::RoundRobin>::default() }
}

/// A router by name.
pub fn named(name: &str) -> Option<&'static RouterKind> {
    ROUTERS.iter().find(|router| router.name == name)
}
