//! Which blocks to move (arXiv:2401.02669, section 5): the most starved replica hands tokens of its longest request to the one with most room,
//! as many as admit further waiting requests, whenever the modelled sum of all rates rises.
//!
//! Units: tokens. Invariant: every move raises the modelled total, so no plan is worse than none.

use std::cmp::Reverse;

use crate::kv::lending::rates::{Load, Rates};

/// Least rise of the modelled total for which blocks move, as a share.
const RISE_MIN: f64 = 1e-9;

/// Tokens that go from a debtor's longest request to a lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Whose.
    pub debtor: usize,
    /// To whom.
    pub lender: usize,
    /// How many.
    pub tokens: u64,
}

impl Rates<'_> {
    /// Moves that raise the modelled total, in order; at most one per pair of replicas and round.
    pub fn plan(&self, loads: &[Load]) -> Vec<Move> {
        let mut loads = loads.to_vec();
        let mut moves: Vec<Move> = Vec::new();
        // Every committed move admits a waiting request, so their number bounds the rounds.
        while let Some((next, after)) = self.first_gain(&loads) {
            moves.push(next);
            loads = after;
        }
        moves
    }

    /// The first move that raises the total, starved debtors and roomy lenders first.
    fn first_gain(&self, loads: &[Load]) -> Option<(Move, Vec<Load>)> {
        let before = self.total(loads);
        let lenders = roomy(loads);
        for debtor in starved(loads) {
            for &lender in &lenders {
                if let Some((total, next, after)) = self.best_between(loads, debtor, lender)
                    && total > before * (1.0 + RISE_MIN)
                {
                    return Some((next, after));
                }
            }
        }
        None
    }

    /// The best amount from a debtor to a lender, the smallest among equals, with the total and the loads after it.
    fn best_between(&self, loads: &[Load], debtor: usize, lender: usize) -> Option<(f64, Move, Vec<Load>)> {
        let mut best: Option<(f64, Move, Vec<Load>)> = None;
        for tokens in amounts(&loads[debtor], loads[lender].free_tokens) {
            let next = Move { debtor, lender, tokens };
            let after = moved(loads, next);
            let total = self.total(&after);
            if best.as_ref().is_none_or(|(found, ..)| total > *found) {
                best = Some((total, next, after));
            }
        }
        best
    }
}

/// Replicas whose first waiting request does not fit, fewest running sequences first.
fn starved(loads: &[Load]) -> Vec<usize> {
    let mut debtors: Vec<usize> = (0..loads.len()).filter(|&index| starves(&loads[index])).collect();
    debtors.sort_by_key(|&index| (loads[index].n_running, index));
    debtors
}

fn starves(load: &Load) -> bool {
    load.borrows && load.waiting.first().is_some_and(|needed| *needed > load.free_tokens)
}

fn has_room(load: &Load) -> bool {
    load.lends && load.waiting.is_empty()
}

/// Replicas at which nobody waits, most room first.
fn roomy(loads: &[Load]) -> Vec<usize> {
    let mut lenders: Vec<usize> = (0..loads.len()).filter(|&index| has_room(&loads[index])).collect();
    lenders.sort_by_key(|&index| (Reverse(loads[index].free_tokens), index));
    lenders
}

/// Tokens whose leaving admits one, two, … further waiting requests.
fn amounts(debtor: &Load, room: u64) -> Vec<u64> {
    let most = debtor.movable_tokens.min(room);
    let (mut needed, mut amounts) = (0, Vec::new());
    for tokens in &debtor.waiting {
        needed += tokens;
        let tokens = needed.saturating_sub(debtor.free_tokens);
        if tokens > most {
            break;
        }
        if tokens > 0 {
            amounts.push(tokens);
        }
    }
    amounts
}

/// Loads after a move and the admissions that it allows.
pub(super) fn moved(loads: &[Load], next: Move) -> Vec<Load> {
    let mut loads = loads.to_vec();
    let debtor = &mut loads[next.debtor];
    debtor.own_tokens = debtor.own_tokens.saturating_sub(next.tokens);
    debtor.movable_tokens -= next.tokens;
    debtor.free_tokens += next.tokens;
    if debtor.remote_tokens.iter().all(|tokens| *tokens == 0) {
        debtor.n_remote += 1;
    }
    debtor.remote_tokens[next.lender] += next.tokens;
    while let Some(&tokens) = debtor.waiting.first().filter(|tokens| **tokens <= debtor.free_tokens) {
        debtor.waiting.remove(0);
        debtor.n_running += 1;
        debtor.own_tokens += tokens;
        debtor.free_tokens -= tokens;
    }
    loads[next.lender].hosted_tokens += next.tokens;
    loads[next.lender].free_tokens -= next.tokens;
    loads
}
