//! When replicas end what they have under way: a tree of minima, so that the earliest is at hand and ties go to the lowest index.
//!
//! Units: ticks. Invariant: every node names the earliest replica below it.

use hw::Tick;

/// Nothing is under way.
pub(super) const IDLE: Tick = Tick::NEVER;

/// Ends by replica.
pub(super) struct Ends {
    /// Earliest end below a node, with its replica. Node 1 is the root; leaf `i` is at `n_leaves + i`.
    earliest: Vec<(Tick, u32)>,
    n_leaves: usize,
}

impl Ends {
    pub(super) fn new(n: usize) -> Self {
        let n_leaves = n.next_power_of_two();
        let mut earliest = vec![(IDLE, 0); 2 * n_leaves];
        for (index, leaf) in earliest[n_leaves..].iter_mut().enumerate() {
            leaf.1 = u32::try_from(index).expect("fewer than 2^32 replicas");
        }
        for node in (1..n_leaves).rev() {
            earliest[node] = earliest[2 * node];
        }
        Self { earliest, n_leaves }
    }

    /// Earliest end with its replica; `IDLE` when nothing is under way.
    pub(super) fn earliest(&self) -> (Tick, u32) {
        self.earliest[1]
    }

    pub(super) fn set(&mut self, replica: u32, at: Tick) {
        let mut node = self.n_leaves + replica as usize;
        let mut first = (at, replica);
        self.earliest[node] = first;
        while node > 1 {
            let other = self.earliest[node ^ 1];
            // Which one is earlier nobody predicts; of equal ones the left node has the lower replica.
            let is_other = if node % 2 == 1 { other.0 <= first.0 } else { other.0 < first.0 };
            first = std::hint::select_unpredictable(is_other, other, first);
            node /= 2;
            self.earliest[node] = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_end_is_found_and_ties_go_to_the_lowest() {
        let mut ends = Ends::new(5);
        assert_eq!(ends.earliest().0, IDLE);
        for (replica, at) in [(3, 50), (1, 50), (4, 20), (0, 70)] {
            ends.set(replica, Tick::new(at));
        }
        assert_eq!(ends.earliest(), (Tick::new(20), 4));
        ends.set(4, IDLE);
        assert_eq!(ends.earliest(), (Tick::new(50), 1));
    }
}
