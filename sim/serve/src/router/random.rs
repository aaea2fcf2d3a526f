//! Any replica, evenly, from a named stream.

use crate::router::{Router, View};
use engine::random::{self, Stream};

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
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        let at = self.stream.below(view.candidates.len() as u64);
        view.candidates[usize::try_from(at).expect("a position")]
    }
}
