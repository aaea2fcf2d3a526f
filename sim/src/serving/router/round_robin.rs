//! Replicas in turn.

use crate::serving::router::{Router, View};

/// The policy.
#[derive(Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl Router for RoundRobin {
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        let n = view.candidates.len();
        // Replicas may have left since the last turn.
        let at = self.next % n;
        self.next = (at + 1) % n;
        view.candidates[at]
    }
}
