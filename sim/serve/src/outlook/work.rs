//! What each request takes of a replica at least, whoever is batched with whom: for bounds on what a fleet is paid for.
//!
//! A fleet keeps its replicas busy for no less than the sum over its requests, for each of its prices (`StepTable::least`). Queues, hosts and memory are
//! left out. With drafts the verifications of a request are known where memory holds all that run together; elsewhere they are the fewest that its
//! tokens may take. Units: seconds.

use hw::Tick;

use super::load::sequences;
use super::{Decoding, SLACK, decoding_s, holds_all};
use crate::replica::{Limits, Role};
use crate::request::Requests;
use crate::step_cost::StepTable;
use crate::step_cost::least::Prices;

/// What of a request does not depend on prices.
struct Asked {
    prompt: f64,
    /// Ticks that its prompt's attention and its first token take.
    beside: f64,
    decoding: Decoding,
}

impl Asked {
    /// Seconds at these prices, where so much is sampled for a verification.
    fn seconds(&self, (sampled, role): (f64, Role), prices: &Prices) -> f64 {
        let prompt_s = (self.prompt * prices.prompt + self.beside) * Tick::SECONDS;
        let outputs_s = decoding_s(prices, sampled, &self.decoding);
        let seconds = match role {
            Role::Prefill => prompt_s,
            Role::Decode | Role::Outputs => outputs_s,
            Role::Both => prompt_s + outputs_s,
        };
        seconds / (1.0 + SLACK)
    }
}

/// Seconds that a replica in this role is busy for each request at least, at each price that holds by itself; all prompt tokens are computed. `None` where stages have
/// times of their own.
pub fn work(table: &StepTable, limits: &Limits, role: Role, requests: &Requests) -> Option<Vec<Vec<f64>>> {
    let least = table.least(limits.sequences_max.saturating_mul(table.lanes().ranks), limits.tokens_max)?;
    let is_known = holds_all(table, &sequences(requests), limits);
    let (lanes, attention) = (f64::from(table.lanes().n()), table.least_attention());
    let asked = (0..).zip(&requests.list).map(|(index, request)| Asked {
        prompt: f64::from(request.prompt),
        beside: attention(request.prompt) / lanes + least.sampled,
        decoding: match table.acceptance() {
            Some(_) if !is_known => {
                let passes = f64::from(request.output - 1) / f64::from(table.tokens_per_sequence());
                Decoding { passes, keys: 0.0 }
            }
            acceptance => Decoding::of((index, request), acceptance),
        },
    });
    let asked: Vec<Asked> = asked.collect();
    let of = (least.sampled * f64::from(table.tokens_per_sequence()), role);
    let at = |prices: &Prices| asked.iter().map(|asked| asked.seconds(of, prices)).collect();
    Some(least.prices.iter().map(at).collect())
}
