//! Fewest requests waiting or running.

use crate::router::{Router, View};

/// The policy.
pub(super) struct LeastLoaded;

impl Router for LeastLoaded {
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        view.least_loaded(|_| true).expect("there is a candidate")
    }
}
