//! Groups by the shares of a plan, then the least loaded replica of the group (arXiv:2502.00722: type `w` goes to
//! configuration `c` with probability `x_cw`).
//!
//! Groups take turns by smooth weighted round robin (the rule of nginx's upstream module): every group gains its weight, the one with most
//! is chosen and pays the sum of all. After `n` requests of a type each group has its share of them to within one request for
//! two groups, and close to that for more; a draw would miss by the square root of `n`. Weights of groups that cannot take the
//! request are left out, and where none has a weight the least loaded candidate takes it.

use crate::router::{Router, View};

/// The policy: what every group is owed, by row of the assignment and stage.
#[derive(Default)]
pub(super) struct PlanWeights {
    owed: Vec<Vec<f64>>,
}

impl Router for PlanWeights {
    fn choose(&mut self, request: u32, view: &View<'_, '_>) -> u32 {
        let row = view.row(request);
        let at = 2 * row + view.stage();
        if self.owed.len() <= at {
            self.owed.resize(at + 1, Vec::new());
        }
        let owed = &mut self.owed[at];
        let (mut best, mut sum, mut before): (Option<u32>, f64, Option<u32>) = (None, 0.0, None);
        // Replicas of a group are consecutive.
        for &replica in view.candidates {
            let group = view.group_of[replica as usize];
            if before == Some(group) {
                continue;
            }
            before = Some(group);
            let weight = view.assignment.weight(row, group);
            if weight <= 0.0 {
                continue;
            }
            if owed.len() <= group as usize {
                owed.resize(group as usize + 1, 0.0);
            }
            owed[group as usize] += weight;
            sum += weight;
            if best.is_none_or(|best| owed[group as usize] > owed[best as usize]) {
                best = Some(group);
            }
        }
        if let Some(group) = best {
            owed[group as usize] -= sum;
        }
        let chosen = view.least_loaded(|replica| best.is_none_or(|group| view.group_of[replica as usize] == group));
        chosen.expect("a group of a candidate has a candidate")
    }
}
