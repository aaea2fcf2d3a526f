//! Least frequently used: SGLang's `--radix-eviction-policy lfu` (`mem_cache/evict_policy.py`): by hits since it came, then by time.

use super::{Eviction, Usage};

/// The rule.
pub(super) const LFU: Eviction = Eviction {
    name: "lfu",
    about: "the prefix that fewest requests have used since it came, of equals the one that was let go first (SGLang)",
    rank: |usage: &Usage| (u64::from(usage.n_uses), usage.released),
};
