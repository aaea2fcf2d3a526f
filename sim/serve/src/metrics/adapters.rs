//! What adapters made of a run: loads, and requests that others passed. Units: loads, seconds, requests.

use std::collections::BTreeMap;

use hw::{TickSum, real};

use crate::fleet::{Fleet, Served};
use crate::request::Requests;

/// Adds `n_adapter_loads`, `adapter_load_s` (seconds that iterations waited for loads, all replicas together), `adapters_per_step` (different
/// ones in an iteration, on average) and `passed_over_ratio` (share of requests that others passed as their adapter found no slot); only where
/// requests ask for adapters and some replica keeps them.
pub fn add(into: &mut BTreeMap<String, f64>, fleet: &Fleet, requests: &Requests, served: &Served) {
    let keeps = fleet.groups.iter().any(|group| group.engine.limits.adapters.is_some());
    if !keeps || requests.ranks.is_empty() {
        return;
    }
    let sum = |of: &dyn Fn(&crate::replica::Counts) -> u64| real(served.counts.iter().map(of).sum::<u64>());
    let waited = served.counts.iter().map(|counts| counts.adapter_load_ticks).sum::<TickSum>();
    let (n_steps, n_requests) = (sum(&|counts| counts.n_steps), real(requests.len() as u64));
    into.insert("n_adapter_loads".to_owned(), sum(&|counts| counts.n_adapter_loads));
    into.insert("adapter_load_s".to_owned(), waited.as_ns() / 1e9);
    into.insert("adapters_per_step".to_owned(), sum(&|counts| counts.adapters_read) / n_steps.max(1.0));
    // A request that is served again elsewhere may have been passed over there too.
    let passed = sum(&|counts| counts.n_passed_over) / n_requests.max(1.0);
    into.insert("passed_over_ratio".to_owned(), passed.min(1.0));
}
