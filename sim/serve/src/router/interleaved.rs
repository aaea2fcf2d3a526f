//! Interleaved weighted round robin (Katevenis, Sidiropoulos, Courcoubetis, IEEE JSAC 9, 1991), as Helix schedules requests over the flow
//! of its plan (arXiv:2406.01566).
//!
//! A cycle has as many rounds as the largest weight; in round `r` every replica with a weight of at least `r` has its turn. The replicas of
//! a group split its planned share evenly; weights are whole percents of the heaviest replica's.

use std::collections::BTreeMap;

use crate::router::{Router, View};

/// Weight of the heaviest replica, and so the finest step of a weight.
const PARTS: f64 = 100.0;

/// Where a cycle stands.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Rounds so far in this cycle.
    round: f64,
    /// Next position in the round.
    at: usize,
}

/// The policy.
#[derive(Default)]
pub(super) struct Interleaved {
    /// By row of the assignment and round.
    turns: BTreeMap<[usize; 2], Turn>,
}

impl Router for Interleaved {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        let row = view.row(request);
        let turn = self.turns.entry([row, view.round()]).or_default();
        let group = |replica: u32| view.group_of[replica as usize];
        let split = |equals: &[u32]| {
            let weight = view.assignment.weight(row, group(equals[0])) / hw::real(equals.len() as u64);
            std::iter::repeat_n(weight, equals.len())
        };
        // Replicas of a group are consecutive.
        let groups = view.candidates.chunk_by(|left, right| group(*left) == group(*right));
        let weights: Vec<f64> = groups.flat_map(split).collect();
        let largest = weights.iter().copied().fold(0.0, f64::max);
        if largest <= 0.0 {
            return view.least_loaded(|_| true).expect("there is a candidate");
        }
        loop {
            while let Some(weight) = weights.get(turn.at) {
                turn.at += 1;
                if (weight / largest * PARTS).round() > turn.round {
                    return view.candidates[turn.at - 1];
                }
            }
            turn.at = 0;
            turn.round = if turn.round + 1.0 >= PARTS { 0.0 } else { turn.round + 1.0 };
        }
    }
}
