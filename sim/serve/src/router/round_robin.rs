//! Replicas in turn.

use crate::router::{Router, View};

/// The policy.
#[derive(Default)]
pub(super) struct RoundRobin {
    /// By stage.
    next: [usize; 2],
}

impl Router for RoundRobin {
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        let n = view.candidates.len();
        // Replicas may have left since the last turn.
        let at = self.next[view.stage()] % n;
        self.next[view.stage()] = (at + 1) % n;
        view.candidates[at]
    }
}
