//! Replicas in turn.

use crate::router::{Router, View};

/// The policy.
#[derive(Default)]
pub(super) struct RoundRobin {
    /// By round.
    next: Vec<usize>,
}

impl Router for RoundRobin {
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        let (round, n) = (view.round(), view.candidates.len());
        self.next.resize(self.next.len().max(round + 1), 0);
        // Replicas may have left since the last turn.
        let at = self.next[round] % n;
        self.next[round] = (at + 1) % n;
        view.candidates[at]
    }
}
