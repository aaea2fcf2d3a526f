//! The central view: what replicas said in their last heartbeat, who owes whom, whom a borrower should ask, and how cycles of debt are
//! cancelled.
//!
//! Replicas ask lenders directly, so the view may be old: a lender that has no room any more refuses, and the next one is asked. A lender
//! gives only blocks of its own, so there are no chains. Invariant, checked in debug builds: what a debtor owes a lender is what lies
//! there of the debtor's requests, and what the lender's pool has lent.

use std::cmp::Reverse;

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Free blocks that it would lend.
    pub free: u32,
    /// Requests that wait for memory: such a replica is asked last.
    pub n_waiting: usize,
}

/// The last heartbeat of every replica, and all debts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    heartbeats: Vec<Heartbeat>,
    /// Node of every replica; neighbours are asked first.
    nodes: Vec<u32>,
    /// `owed[debtor][lender]`, blocks.
    owed: Vec<Vec<u32>>,
}

impl Ledger {
    /// A view of replicas on these nodes that have said nothing yet and owe nothing.
    pub fn new(nodes: Vec<u32>) -> Self {
        let n = nodes.len();
        Self { heartbeats: vec![Heartbeat::default(); n], nodes, owed: vec![vec![0; n]; n] }
    }

    /// Notes a heartbeat.
    pub fn note(&mut self, replica: u32, heartbeat: Heartbeat) {
        self.heartbeats[replica as usize] = heartbeat;
    }

    /// Free blocks that a replica said to have.
    pub fn free(&self, replica: u32) -> u32 {
        self.heartbeats[replica as usize].free
    }

    /// Lenders that a borrower should ask, best first: nobody waits there, same node, most free blocks, index.
    pub fn candidates(&self, borrower: u32) -> Vec<u32> {
        let mut lenders: Vec<u32> = Vec::new();
        for (replica, heartbeat) in (0..).zip(&self.heartbeats) {
            if replica != borrower && heartbeat.free > 0 {
                lenders.push(replica);
            }
        }
        lenders.sort_by_key(|&lender| self.rank(borrower, lender));
        lenders
    }

    fn rank(&self, borrower: u32, lender: u32) -> (bool, bool, Reverse<u32>, u32) {
        let heartbeat = self.heartbeats[lender as usize];
        let is_far = self.nodes[lender as usize] != self.nodes[borrower as usize];
        (heartbeat.n_waiting > 0, is_far, Reverse(heartbeat.free), lender)
    }

    /// Notes that blocks were lent.
    pub fn lend(&mut self, debtor: u32, lender: u32, blocks: u32) {
        assert!(debtor != lender, "nobody borrows from itself");
        self.owed[debtor as usize][lender as usize] += blocks;
    }

    /// Notes that blocks went back.
    pub fn repay(&mut self, debtor: u32, lender: u32, blocks: u32) {
        let owed = &mut self.owed[debtor as usize][lender as usize];
        assert!(blocks <= *owed, "{blocks} blocks go back, {owed} were borrowed");
        *owed -= blocks;
    }

    /// Blocks that a debtor owes a lender.
    pub fn owed(&self, debtor: u32, lender: u32) -> u32 {
        self.owed[debtor as usize][lender as usize]
    }

    /// Sum of all debts.
    pub fn debt(&self) -> u64 {
        self.owed.iter().flatten().map(|blocks| u64::from(*blocks)).sum()
    }

    /// Repayments that cancel every cycle of debts.
    pub fn repayments(&self) -> Vec<Repayment> {
        cancel_cycles(&self.owed)
    }
}

/// A debt that is paid: so many blocks of the debtor's go home from the lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repayment {
    /// Whose blocks.
    pub debtor: u32,
    /// From where.
    pub lender: u32,
    /// How many.
    pub blocks: u32,
}

/// Cancels every cycle of debts: around a cycle each pays the smallest of its debts, so at least one disappears and no replica needs more
/// memory than it has (what goes home takes the place of what leaves). Debts without cycles stay.
///
/// Ends: every round removes at least one of the `n²` debts.
pub fn cancel_cycles(debts: &[Vec<u32>]) -> Vec<Repayment> {
    let mut debts = debts.to_vec();
    let mut paid = Vec::new();
    while let Some(cycle) = cycle(&debts) {
        let edges = edges(&cycle);
        let blocks = edges.iter().map(|&(debtor, lender)| debts[debtor][lender]).min().expect("a cycle has edges");
        for (debtor, lender) in edges {
            debts[debtor][lender] -= blocks;
            paid.push(Repayment { debtor: index(debtor), lender: index(lender), blocks });
        }
    }
    paid
}

fn index(replica: usize) -> u32 {
    u32::try_from(replica).expect("fewer than 2^32 replicas")
}

/// Each of a cycle with the next one, the last with the first.
fn edges(cycle: &[usize]) -> Vec<(usize, usize)> {
    let next = cycle.iter().cycle().skip(1);
    cycle.iter().zip(next).map(|(&debtor, &lender)| (debtor, lender)).collect()
}

/// A cycle of debtors, each owing the next and the last the first; depth first, smallest index first.
fn cycle(debts: &[Vec<u32>]) -> Option<Vec<usize>> {
    let n = debts.len();
    let mut is_done = vec![false; n];
    for start in 0..n {
        // The path, and for each of its replicas the next lender to try.
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
            if let Some(from) = path.iter().position(|(replica, _)| *replica == lender) {
                return Some(path[from..].iter().map(|(replica, _)| *replica).collect());
            }
            path.push((lender, 0));
        }
    }
    None
}
