//! Keys and values: the blocks of a replica (`pool.rs`), which prefix leaves a full cache first (a rule, a file), where those go that leave
//! the device (`tiers.rs`), what preempted sequences leave in free blocks (`left.rs`), what replicas share (`remote.rs`), and how they lend each other blocks (`lending.rs`).
//!
//! A rule ranks the prefixes that nobody holds; the least rank leaves first. Prefixes form chains, and the end of a chain must leave before its
//! start, else what stays is never found: a rule ranks the start no lower, since whoever uses the end uses the start, and is let go later.

pub mod left;
pub mod lending;
mod lfu;
mod lru;
pub mod pool;
pub mod remote;
mod sparse;
pub mod tiers;

/// What a rule sees of a prefix that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Times that a request held it since it came to the device.
    pub n_uses: u32,
    /// When the last one let it go; later is more, and no two are equal.
    pub released: u64,
}

/// Order in which prefixes leave: the least first.
pub type Rank = (u64, u64);

/// A rule of the KV cache: which prefix leaves first.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// Rank of a prefix; no two have the same.
    pub rank: fn(&Usage) -> Rank,
}

/// Every rule; the first is what engines do unless they are told.
pub static EVICTIONS: [Eviction; 2] = [lru::LRU, lfu::LFU];

/// A rule by name.
pub fn named(name: &str) -> Option<&'static Eviction> {
    EVICTIONS.iter().find(|rule| rule.name == name)
}

impl PartialEq for Eviction {
    /// Rules go by name.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Eviction {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::pool::Pool;
    use engine::random;

    #[test]
    fn no_rule_lets_the_start_of_a_chain_leave_before_its_end() {
        // Chains of three prefixes come, are used again and leave in any order; what is cached of a chain is always its beginning.
        for rule in &EVICTIONS {
            let mut stream = random::stream(3, rule.name);
            let mut pool = Pool::new(24, 16, 16).evicting(rule);
            for _ in 0..5000 {
                let chain = u32::try_from(stream.below(20)).expect("small") * 3;
                let ids: Vec<u32> = (chain..chain + 1 + u32::try_from(stream.below(3)).expect("small")).collect();
                let hit = pool.cached(&ids) as usize;
                pool.hold(&ids[..hit]);
                let missing = u32::try_from(ids.len() - hit).expect("few");
                assert!(pool.take(missing), "{}: room for one request", rule.name);
                assert_eq!(pool.publish(&ids[hit..]), missing);
                pool.let_go(&ids);
                for start in (0..60).step_by(3) {
                    let there: Vec<bool> = (start..start + 3).map(|id| pool.cached(&[id]) == 1).collect();
                    assert!(there.is_sorted_by(|a, b| a >= b), "{}: {there:?}", rule.name);
                }
            }
            assert!(pool.is_conserved());
        }
    }

    #[test]
    fn rules_differ_where_much_used_prefixes_rest() {
        // Room for two prefixes of a block. The first is used three times, then the second once; a third one drives out the first by time and the
        // second by use.
        for (name, stays) in [("lru", 1), ("lfu", 0)] {
            let mut pool = Pool::new(2, 16, 16).evicting(named(name).expect("a row"));
            let mut used = |id: u32| {
                let hit = pool.cached(&[id]) == 1;
                if hit {
                    pool.hold(&[id]);
                } else {
                    assert!(pool.take(1));
                    pool.publish(&[id]);
                }
                pool.let_go(&[id]);
            };
            [0, 0, 0, 1, 2].into_iter().for_each(&mut used);
            assert_eq!(
                [0, 1, 2].map(|id| pool.cached(&[id])),
                [u32::from(stays == 0), u32::from(stays == 1), 1],
                "{name}"
            );
        }
    }
}
