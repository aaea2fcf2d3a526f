//! What replicas lent each other, where a scenario speaks of it, and how long a request may be.

use std::collections::BTreeMap;

use crate::fleet::{Fleet, Served};

/// Adds the figures of lending, where the fleet has terms.
pub fn add(into: &mut BTreeMap<String, f64>, fleet: &Fleet, served: &Served) {
    let Some(terms) = &fleet.lending else { return };
    let loaned = &served.loaned;
    let figures = [
        ("context_max_tokens", fleet.context_max_tokens()),
        ("borrowed_bytes", loaned.borrowed_blocks * terms.block_bytes),
        ("moved_bytes", loaned.moved_blocks * terms.block_bytes),
        ("cancelled_debt_bytes", loaned.cancelled_blocks * terms.block_bytes),
        ("debt_max_bytes", loaned.debt_max * terms.block_bytes),
        ("n_refused_loans", loaned.n_refused),
        ("n_evicted", loaned.n_evicted),
    ];
    for (key, value) in figures {
        into.insert(key.to_owned(), hw::real(value));
    }
}
