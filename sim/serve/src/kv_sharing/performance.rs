//! How fast instances decode when keys lie elsewhere, and which blocks to move (arXiv:2401.02669, sections 4 and 5; the model is ours).
//!
//! An instance with `b` sequences takes `T(b) + attention(own and hosted tokens) + exposed`, where `exposed` is what queries' way and the slowest
//! lender's attention take beyond its own attention. The planner lets the most starved instance hand tokens of its longest request to the
//! one with most room, as many as admit further waiting requests, whenever the modelled sum of all rates rises.

use super::Exchange;
use crate::step_cost::{SECONDS_PER_TICK, StepTable};

fn f(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

/// Costs of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Rates<'a> {
    /// Iterations.
    pub table: &'a StepTable,
    /// Messages.
    pub exchange: Exchange,
}

/// What an instance holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Running sequences.
    pub n_running: u32,
    /// Cached tokens of its own sequences on itself.
    pub own_tokens: u64,
    /// Cached tokens of others.
    pub hosted_tokens: u64,
    /// Its tokens on others, by instance.
    pub remote_tokens: Vec<u64>,
    /// Its sequences that have tokens elsewhere.
    pub n_remote: u32,
    /// Tokens that still fit.
    pub free_tokens: u64,
    /// Tokens that waiting requests need, first come first.
    pub waiting: Vec<u64>,
    /// Tokens of its longest running request on itself that may leave: all but the tail block.
    pub movable_tokens: u64,
}

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
    /// Seconds of an instance's iteration when all its sequences decode.
    #[must_use]
    pub fn step_s(&self, load: &Load) -> f64 {
        let per_token = f(self.table.rate(1)) * SECONDS_PER_TICK;
        let fixed = f(self.table.law(load.n_running).fixed) * SECONDS_PER_TICK;
        let own = per_token * f(load.own_tokens);
        let slowest = load.remote_tokens.iter().copied().max().unwrap_or(0);
        let there = self.exchange.time(u64::from(load.n_remote)).get() + per_token * f(slowest);
        let exposed = if load.n_remote == 0 { 0.0 } else { (there - own).max(0.0) };
        fixed + own + per_token * f(load.hosted_tokens) + exposed
    }

    /// Tokens per second of all instances.
    #[must_use]
    pub fn total(&self, loads: &[Load]) -> f64 {
        let rate = |load: &Load| if load.n_running == 0 { 0.0 } else { f64::from(load.n_running) / self.step_s(load) };
        loads.iter().map(rate).sum()
    }

    /// Moves that raise the modelled total, in order; at most one per pair of instances and round.
    #[must_use]
    pub fn plan(&self, loads: &[Load]) -> Vec<Move> {
        let mut loads = loads.to_vec();
        let mut moves: Vec<Move> = Vec::new();
        // Every committed move admits a waiting request, so their number bounds the rounds.
        while let Some((next, after)) = self.best_move(&loads) {
            moves.push(next);
            loads = after;
        }
        moves
    }

    /// The first move that raises the total, starved debtors and roomy lenders first.
    fn best_move(&self, loads: &[Load]) -> Option<(Move, Vec<Load>)> {
        let before = self.total(loads);
        let starves = |load: &Load| load.waiting.first().is_some_and(|needed| *needed > load.free_tokens);
        let mut debtors: Vec<usize> = (0..loads.len()).filter(|&i| starves(&loads[i])).collect();
        debtors.sort_by_key(|&i| (loads[i].n_running, i));
        let mut lenders: Vec<usize> = (0..loads.len()).filter(|&i| loads[i].waiting.is_empty()).collect();
        lenders.sort_by_key(|&i| (std::cmp::Reverse(loads[i].free_tokens), i));
        for &debtor in &debtors {
            for &lender in &lenders {
                let amounts = amounts(&loads[debtor], loads[lender].free_tokens);
                let tried = amounts.into_iter().map(|tokens| {
                    let next = Move { debtor, lender, tokens };
                    let after = moved(loads, next);
                    (self.total(&after), next, after)
                });
                let best = tried.reduce(|best, next| if next.0 > best.0 { next } else { best });
                if let Some((_, next, after)) = best.filter(|(total, ..)| *total > before * (1.0 + 1e-9)) {
                    return Some((next, after));
                }
            }
        }
        None
    }
}

/// Tokens whose leaving admits one, two, … further waiting requests.
fn amounts(debtor: &Load, room: u64) -> Vec<u64> {
    let most = debtor.movable_tokens.min(room);
    let mut needed = 0;
    let amounts = debtor.waiting.iter().map(|tokens| {
        needed += tokens;
        needed.saturating_sub(debtor.free_tokens)
    });
    amounts.take_while(|&tokens| tokens <= most).filter(|&tokens| tokens > 0).collect()
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
