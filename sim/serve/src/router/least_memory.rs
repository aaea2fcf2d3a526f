//! Fewest blocks of prompts that wait or run, and of other replicas' requests: for requests that differ much in length.

use crate::router::{Router, View};

/// The policy.
pub(super) struct LeastMemory;

impl Router for LeastMemory {
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        let blocks = |replica: &u32| view.replicas[*replica as usize].outstanding_blocks();
        view.candidates.iter().copied().min_by_key(blocks).expect("there is a candidate")
    }
}
