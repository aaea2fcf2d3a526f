//! Weighted turns of replicas, interleaved, as Helix schedules requests over the flow of its plan (arXiv:2406.01566).
//!
//! The replicas of a group split its planned share evenly. Interleaved weighted round robin as it was published (Katevenis, Sidiropoulos, Courcoubetis, IEEE
//! JSAC 9, 1991) counts rounds up to whole weights, which shares are not. So turns are those of `turns.rs`, which keep what it is for: shares that hold, without bursts.

use std::collections::BTreeMap;

use super::turns::Turns;
use crate::router::{Router, View};

/// The policy.
#[derive(Default)]
pub(super) struct Interleaved {
    /// By row of the assignment and round.
    turns: BTreeMap<[usize; 2], Turns>,
}

impl Router for Interleaved {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        let row = view.row(request);
        let group = |replica: u32| view.group_of[replica as usize];
        let split = |equals: &[u32]| {
            let weight = view.assignment.weight(row, group(equals[0])) / hw::real(equals.len() as u64);
            std::iter::repeat_n(weight, equals.len())
        };
        // Replicas of a group are consecutive.
        let groups = view.candidates.chunk_by(|left, right| group(*left) == group(*right));
        let weights = view.candidates.iter().copied().zip(groups.flat_map(split));
        let chosen = self.turns.entry([row, view.round()]).or_default().next(weights);
        chosen.or_else(|| view.least_loaded(|_| true)).expect("there is a candidate")
    }
}
