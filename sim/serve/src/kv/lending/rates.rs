//! How fast replicas decode when keys lie elsewhere (arXiv:2401.02669, sections 4 and 5; the model is ours).
//!
//! A replica with `b` sequences takes `T(b) + attention(own and hosted tokens) + exposed`, where `exposed` is what queries' way and the slowest
//! lender's attention take beyond its own attention.

use crate::kv::lending::Exchange;
use crate::step_cost::StepTable;
use hw::real;

/// Costs of a replica.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Iterations.
    pub table: &'a StepTable,
    /// Messages.
    pub exchange: Exchange,
}

/// What a replica holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Whether others may have blocks here.
    pub lends: bool,
    /// Whether its requests may have blocks elsewhere.
    pub borrows: bool,
    /// Running sequences.
    pub n_running: u32,
    /// Cached tokens of its own sequences on itself.
    pub own_tokens: u64,
    /// Cached tokens of others.
    pub hosted_tokens: u64,
    /// Its tokens on others, by replica.
    pub remote_tokens: Vec<u64>,
    /// Its sequences that have tokens elsewhere.
    pub n_remote: u32,
    /// Tokens that still fit.
    pub free_tokens: u64,
    /// Tokens that waiting requests need, first come first.
    pub waiting: Vec<u64>,
    /// Tokens of its longest running request on itself that may leave: all but the last block.
    pub movable_tokens: u64,
}

/// A model of the rates of all replicas that share memory.
#[derive(Clone, Debug)]
pub struct Rates<'a> {
    /// By replica.
    pub members: Vec<Member<'a>>,
}

impl Rates<'_> {
    fn per_token_s(&self, member: usize) -> f64 {
        self.members[member].table.rate(1).to_seconds()
    }

    /// Seconds of a replica's iteration when all its sequences decode.
    pub fn step_s(&self, member: usize, load: &Load) -> f64 {
        let of = &self.members[member];
        let fixed = of.table.law(load.n_running).fixed.to_seconds();
        let own = self.per_token_s(member) * real(load.own_tokens);
        let hosted = self.per_token_s(member) * real(load.hosted_tokens);
        fixed + own + hosted + self.exposed_s(member, load, own)
    }

    /// What its sequences wait for lenders, beyond the time of their attention at home.
    fn exposed_s(&self, member: usize, load: &Load, own_s: f64) -> f64 {
        if load.n_remote == 0 {
            return 0.0;
        }
        let (mut way, mut slowest) = (self.members[member].exchange.time(u64::from(load.n_remote)).get(), 0.0_f64);
        for (lender, tokens) in load.remote_tokens.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
            way = way.max(self.members[lender].exchange.time(u64::from(load.n_remote)).get());
            slowest = slowest.max(self.per_token_s(lender) * real(*tokens));
        }
        (way + slowest - own_s).max(0.0)
    }

    /// Tokens per second of all replicas.
    pub fn total(&self, loads: &[Load]) -> f64 {
        let mut total = 0.0;
        for (member, load) in loads.iter().enumerate().filter(|(_, load)| load.n_running > 0) {
            total += f64::from(load.n_running) / self.step_s(member, load);
        }
        total
    }
}
