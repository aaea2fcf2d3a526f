//! The less loaded of two random replicas (Mitzenmacher, IEEE TPDS 12, 2001).

use crate::router::{Router, View};
use engine::random::{self, Stream};

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
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        let n = view.candidates.len() as u64;
        let first = self.stream.below(n);
        // Another one, where there is another one.
        let second = if n > 1 { (first + 1 + self.stream.below(n - 1)) % n } else { first };
        let [first, second] = [first, second].map(|at| view.candidates[usize::try_from(at).expect("a position")]);
        // A tie goes to the first one drawn: to the lowest index, it would fill the first replicas when load is light.
        if view.load(second) < view.load(first) { second } else { first }
    }
}
