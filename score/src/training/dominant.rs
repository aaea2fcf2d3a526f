//! What dominates a step: the largest of its shares, means over ranks.

use std::collections::BTreeMap;

hw::words! {
    /// What takes the largest part of a step.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Dominant: word {
        /// Matrix products.
        Products = "products",
        /// Attention.
        Attention = "attention",
        /// Kernels that are bound by memory: norms, casts, permutations, the optimizer.
        Memory = "memory-bound kernels",
        /// Exchanges that nothing hides.
        Exchange = "exchange",
        /// A host that launches kernels more slowly than they run.
        Host = "host",
        /// Waiting in the pipeline, or for slower ranks.
        Bubble = "bubble",
        /// Layers whose times were measured as a whole.
        Layers = "measured layers",
    }
}

/// Shares of a step by the contract's keys.
const SHARES: [(&str, Dominant); 6] = [
    ("busy_gemm_ratio", Dominant::Products),
    ("busy_attention_ratio", Dominant::Attention),
    ("busy_memory_bound_ratio", Dominant::Memory),
    ("comm_exposed_ratio", Dominant::Exchange),
    ("busy_host_ratio", Dominant::Host),
    ("wait_ratio", Dominant::Bubble),
];

impl Dominant {
    /// By the figures of a step; the first one of equal shares.
    pub fn of(values: &BTreeMap<String, f64>) -> Self {
        let share = |key: &str| values.get(key).copied().unwrap_or(0.0);
        let mut found = SHARES[0];
        for (key, dominant) in SHARES {
            if share(key) > share(found.0) {
                found = (key, dominant);
            }
        }
        found.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_share_dominates() {
        let of = |shares: &[(&str, f64)]| {
            Dominant::of(&shares.iter().map(|(key, share)| ((*key).to_owned(), *share)).collect())
        };
        assert_eq!(of(&[("busy_gemm_ratio", 0.3), ("wait_ratio", 0.31), ("busy_ratio", 0.9)]), Dominant::Bubble);
        assert_eq!(of(&[("busy_host_ratio", 0.5), ("comm_exposed_ratio", 0.4)]), Dominant::Host);
        assert_eq!(of(&[]), Dominant::Products);
    }
}
