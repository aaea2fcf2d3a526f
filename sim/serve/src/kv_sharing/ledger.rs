//! The central view: what instances said in their last heartbeat, whom a borrower should ask, and how cycles of debt are cancelled.
//!
//! Instances ask lenders directly, so the view may be old: a lender that has no room any more refuses, and the next one is asked.

use super::pool::Pool;

/// What an instance says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Free blocks.
    pub free: u64,
    /// Requests that wait for memory: such an instance is asked last.
    pub n_waiting: usize,
}

/// The last heartbeat of every instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    heartbeats: Vec<Heartbeat>,
    /// Instances per node; neighbours are asked first.
    per_node: usize,
}

impl Ledger {
    /// A view of instances that have said nothing yet.
    #[must_use]
    pub fn new(n_instances: usize, per_node: usize) -> Self {
        Self { heartbeats: vec![Heartbeat::default(); n_instances], per_node: per_node.max(1) }
    }

    /// Notes a heartbeat.
    pub fn note(&mut self, instance: usize, heartbeat: Heartbeat) {
        self.heartbeats[instance] = heartbeat;
    }

    /// Free blocks that an instance said to have.
    #[must_use]
    pub fn free(&self, instance: usize) -> u64 {
        self.heartbeats[instance].free
    }

    /// Lenders that a borrower should ask, best first: nobody waits there, same node, most free blocks, index.
    #[must_use]
    pub fn candidates(&self, borrower: usize) -> Vec<usize> {
        let is_lender = |&other: &usize| {
            let heartbeat = self.heartbeats[other];
            other != borrower && heartbeat.free > 0
        };
        let mut lenders: Vec<usize> = (0..self.heartbeats.len()).filter(is_lender).collect();
        let node = |instance: usize| instance / self.per_node;
        lenders.sort_by_key(|&other| {
            let heartbeat = self.heartbeats[other];
            (heartbeat.n_waiting > 0, node(other) != node(borrower), std::cmp::Reverse(heartbeat.free), other)
        });
        lenders
    }
}

/// A debt that is paid: so many blocks of the debtor's go home from the lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repayment {
    /// Whose blocks.
    pub debtor: usize,
    /// From where.
    pub lender: usize,
    /// How many.
    pub blocks: u64,
}

/// Cancels every cycle of debts: around a cycle each pays the smallest of its debts, so at least one disappears and no instance needs more
/// memory than it has (what goes home takes the place of what leaves). Debts without cycles stay.
///
/// Ends: every round removes at least one of the `n²` debts.
#[must_use]
pub fn cancel_cycles(debts: &[Vec<u64>]) -> Vec<Repayment> {
    let mut debts = debts.to_vec();
    let mut paid = Vec::new();
    while let Some(cycle) = cycle(&debts) {
        let edges = || cycle.iter().zip(cycle.iter().cycle().skip(1)).map(|(&debtor, &lender)| (debtor, lender));
        let blocks = edges().map(|(debtor, lender)| debts[debtor][lender]).min().expect("a cycle has edges");
        for (debtor, lender) in edges() {
            debts[debtor][lender] -= blocks;
            paid.push(Repayment { debtor, lender, blocks });
        }
    }
    paid
}

/// A cycle of debtors, each owing the next and the last the first; depth first, smallest index first.
fn cycle(debts: &[Vec<u64>]) -> Option<Vec<usize>> {
    let n = debts.len();
    let mut is_done = vec![false; n];
    for start in 0..n {
        // The path, and for each of its instances the next lender to try.
        let mut path = vec![(start, 0)];
        while let Some(&mut (at, ref mut next)) = path.last_mut() {
            if is_done[at] || *next == n {
                is_done[at] = true;
                path.pop();
                continue;
            }
            let lender = *next;
            *next += 1;
            if debts[at][lender] == 0 {
                continue;
            }
            if let Some(from) = path.iter().position(|(instance, _)| *instance == lender) {
                return Some(path[from..].iter().map(|(instance, _)| *instance).collect());
            }
            path.push((lender, 0));
        }
    }
    None
}

impl Pool {
    /// Repayments that cancel every cycle of this pool's debts.
    #[must_use]
    pub fn repayments(&self) -> Vec<Repayment> {
        cancel_cycles(self.debts())
    }
}
