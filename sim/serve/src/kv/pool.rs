//! Paged keys and values of a replica: blocks that requests own, and blocks of prefixes that requests share.
//!
//! Units: blocks of `block_tokens` tokens. Invariant, checked on every change in debug builds: free + private + cached + lent = total +
//! borrowed. A cached prefix that no request holds is evictable, in the order of the cache's rule. Borrowed
//! blocks lie on other replicas and count as the requests' own; lent ones lie here and belong to requests of other replicas.

use std::collections::BTreeMap;

use super::left::{LeftBlocks, Owner};
use super::remote::Store;
use super::sparse::Sparse;
use super::tiers::{N_TIERS, Tier, Tiers};
use super::{EVICTIONS, Eviction, Rank, Usage};
use hw::Tick;

/// A cached prefix.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Requests that hold it.
    holders: u32,
    /// Of all requests that held it, and when it was last let go.
    usage: Usage,
}

/// By tier of the replica, whether prefixes that lie there and in the store that replicas share come from the store.
type Way = [bool; N_TIERS];

/// Leading prefixes that come from below the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brought {
    /// How many.
    pub n: usize,
    /// Ticks that they take.
    pub ticks: Tick,
    /// From where.
    way: Way,
    from: Sources,
}

/// Where a prefix lies below the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    tier: Option<usize>,
    is_remote: bool,
}

impl Place {
    const fn is_any(self) -> bool {
        self.tier.is_some() || self.is_remote
    }
}

/// Prefixes by the places in which they lie.
#[derive(Clone, Copy, Debug, Default)]
struct Lying {
    /// In a tier alone.
    near: [u64; N_TIERS],
    /// In a tier and in the store.
    both: [u64; N_TIERS],
    /// In the store alone.
    remote: u64,
}

/// Prefixes by the place that they come from.
#[derive(Clone, Copy, Debug, Default)]
struct Sources {
    near: [u64; N_TIERS],
    remote: u64,
}

impl Lying {
    const fn add(&mut self, place: Place, n: u64) {
        match place.tier {
            None => self.remote += n,
            Some(tier) if place.is_remote => self.both[tier] += n,
            Some(tier) => self.near[tier] += n,
        }
    }

    fn by(&self, way: Way) -> Sources {
        let mut sources = Sources { near: self.near, remote: self.remote };
        for (tier, n) in self.both.into_iter().enumerate() {
            if way[tier] {
                sources.remote += n;
            } else {
                sources.near[tier] += n;
            }
        }
        sources
    }
}

/// Blocks of one replica.
#[derive(Clone, Debug)]
pub struct Pool {
    total: u32,
    free: u32,
    private: u32,
    /// Blocks here that belong to requests of other replicas.
    lent: u32,
    /// Blocks on other replicas that belong to requests of this one.
    borrowed: u32,
    /// Blocks of one prefix identity; 0 where nothing is shared.
    blocks_per_prefix: u32,
    prefix_tokens: u32,
    /// Prefixes that are cached. A replica sees few of all identities at once.
    entries: Sparse<Entry>,
    n_cached: u32,
    /// Which prefix leaves first.
    rule: &'static Eviction,
    /// Prefixes that nobody holds, by the rule's rank.
    evictable: BTreeMap<Rank, u32>,
    clock: u64,
    peak: u32,
    /// What preempted sequences have left in free blocks.
    left: LeftBlocks,
    /// Where prefixes go that are evicted.
    tiers: Tiers,
    /// The store that replicas share, where they do.
    remote: Option<Store>,
}

impl Pool {
    /// An empty pool. `prefix_tokens` is 0, or a multiple of `block_tokens`, else nothing is shared.
    pub fn new(total: u32, block_tokens: u32, prefix_tokens: u32) -> Self {
        let shares = prefix_tokens > 0 && prefix_tokens.is_multiple_of(block_tokens);
        Self {
            total,
            free: total,
            private: 0,
            lent: 0,
            borrowed: 0,
            blocks_per_prefix: if shares { prefix_tokens / block_tokens } else { 0 },
            prefix_tokens,
            entries: Sparse::default(),
            n_cached: 0,
            rule: &EVICTIONS[0],
            evictable: BTreeMap::new(),
            clock: 0,
            peak: 0,
            left: LeftBlocks::default(),
            tiers: Tiers::default(),
            remote: None,
        }
    }

    /// The same with tiers below the device.
    pub fn with_tiers(self, tiers: &[Tier; N_TIERS]) -> Self {
        let tiers = Tiers::new(tiers, self.blocks_per_prefix);
        Self { tiers, ..self }
    }

    /// The same with a store that replicas share.
    pub fn with_remote(self, store: Option<Store>) -> Self {
        let remote =
            store.filter(|_| self.blocks_per_prefix > 0).map(|store| store.of_prefixes(self.blocks_per_prefix));
        Self { remote, ..self }
    }

    /// Whether replicas share a store.
    pub const fn has_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// An iteration is composed at a tick, or has ended then.
    pub const fn begin(&mut self, now: Tick) {
        self.tiers.begin(now);
        if let Some(store) = &mut self.remote {
            store.begin(now);
        }
    }

    /// The same by another rule of which prefix leaves first.
    pub fn evicting(self, rule: &'static Eviction) -> Self {
        assert!(self.evictable.is_empty(), "a rule is chosen before prefixes come");
        Self { rule, ..self }
    }

    /// Beginnings of a row of prefixes that lie below the device, each with the fastest way to bring it: one where the next prefix lies in another place,
    /// and one where no place has the next. In between every further prefix takes no longer than the one before, and saves no less of what is computed.
    pub fn below<'p>(&'p self, ids: &'p [u32]) -> impl Iterator<Item = Brought> + 'p {
        let place = |id: u32| {
            let place =
                Place { tier: self.tiers.tier(id), is_remote: self.remote.as_ref().is_some_and(|it| it.has(id)) };
            place.is_any().then_some(place)
        };
        let (mut lying, mut at) = (Lying::default(), 0);
        std::iter::from_fn(move || {
            let here = place(*ids.get(at)?)?;
            let same = ids[at..].iter().take_while(|id| place(**id) == Some(here)).count();
            at += same;
            lying.add(here, same as u64);
            Some(Brought { n: at, ..self.fastest(&lying) })
        })
    }

    /// The fastest way to bring prefixes that lie so.
    fn fastest(&self, lying: &Lying) -> Brought {
        let ways = [[false, false], [true, false], [false, true], [true, true]];
        let of_way = |way: Way| {
            let from = lying.by(way);
            Brought { n: 0, ticks: self.ticks(&from), way, from }
        };
        let is_other = |way: &Way| (0..N_TIERS).all(|tier| !way[tier] || lying.both[tier] > 0);
        let all = ways.into_iter().filter(is_other).map(of_way);
        all.min_by_key(|found| found.ticks).expect("what lies in a tier may come from there")
    }

    /// Ticks to bring so many prefixes of each tier and of the store, those of the replica first.
    fn ticks(&self, n: &Sources) -> Tick {
        let ticks = self.tiers.ticks(n.near);
        match &self.remote {
            Some(store) if n.remote > 0 => ticks + store.ticks(n.remote, ticks),
            _ => ticks,
        }
    }

    /// Notes that prefixes are brought from below, as it was chosen before their blocks were taken; how many of them come from the store. What had to
    /// leave a tier for that is read all the same.
    pub fn bring(&mut self, ids: &[u32], chosen: &Brought) -> u64 {
        let Brought { way, from, .. } = *chosen;
        let behind = self.tiers.ticks(from.near);
        self.tiers.read(from.near);
        if let Some(store) = &mut self.remote {
            let is_far = |id: &u32| self.tiers.tier(*id).is_none_or(|tier| way[tier]);
            ids.iter().filter(|id| is_far(id)).for_each(|id| store.use_again(*id));
            store.read(from.remote, behind);
        }
        for id in ids {
            if self.tiers.tier(*id).is_some_and(|tier| !way[tier] || !self.is_remote(*id)) {
                self.tiers.put(*id);
            }
        }
        from.remote
    }

    fn is_remote(&self, id: u32) -> bool {
        self.remote.as_ref().is_some_and(|store| store.has(id))
    }

    /// Blocks that can be had without a prefix that is written to disk: when it goes matters to who reads.
    pub fn quiet(&self) -> u32 {
        if self.tiers.has_disk() { self.free } else { self.available() }
    }

    /// Blocks that can be had at once.
    pub fn available(&self) -> u32 {
        self.free + self.n_evictable() * self.blocks_per_prefix
    }

    fn n_evictable(&self) -> u32 {
        u32::try_from(self.evictable.len()).expect("fewer than 2^32 prefixes")
    }

    /// All blocks.
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// Most blocks that requests held at once.
    pub const fn peak(&self) -> u32 {
        self.peak
    }

    /// Blocks of this replica that requests hold, alone or together, here or from elsewhere.
    pub fn held(&self) -> u32 {
        // What was borrowed and not used yet is no block of this replica.
        self.total.saturating_sub(self.available())
    }

    /// Blocks here that belong to requests of other replicas.
    pub const fn lent(&self) -> u32 {
        self.lent
    }

    /// Blocks on other replicas that belong to requests of this one.
    pub const fn borrowed(&self) -> u32 {
        self.borrowed
    }

    /// Cached prefixes, held or not.
    pub const fn n_cached(&self) -> u32 {
        self.n_cached
    }

    /// Blocks of one prefix identity.
    pub const fn blocks_per_prefix(&self) -> u32 {
        self.blocks_per_prefix
    }

    /// Whether the books balance.
    pub fn is_conserved(&self) -> bool {
        let cached = self.entries.values().count();
        let unheld = self.entries.values().filter(|entry| entry.holders == 0).count();
        cached == self.n_cached as usize && unheld == self.evictable.len() && self.balances()
    }

    const fn balances(&self) -> bool {
        self.free + self.private + self.n_cached * self.blocks_per_prefix + self.lent == self.total + self.borrowed
    }

    /// Takes `n` blocks for one request, evicting prefixes if it must; false, and nothing taken, when there are not enough.
    pub fn take(&mut self, n: u32) -> bool {
        if self.available() < n {
            return false;
        }
        self.spend(n);
        self.private += n;
        self.peak = self.peak.max(self.held());
        debug_assert!(self.balances());
        true
    }

    /// Takes `n` blocks for a sequence that comes back, `n_left` of which it finds as it has left them.
    pub fn take_again(&mut self, owner: Owner, n_left: u32, n: u32) -> bool {
        if self.available() < n {
            return false;
        }
        self.left.come_back(owner, n_left);
        self.free -= n_left;
        self.private += n_left;
        self.take(n - n_left)
    }

    /// Makes `n` blocks free and has them for somebody.
    fn spend(&mut self, n: u32) {
        self.make_free(n);
        self.free -= n;
        self.left.take(n);
    }

    /// Evicts prefixes until `n` blocks are free, which whoever has them takes later.
    pub fn make_free(&mut self, n: u32) {
        while self.free < n {
            let (_, id) = self.evictable.pop_first().expect("what is available is free or evictable");
            self.entries.remove(id);
            self.tiers.put(id);
            self.n_cached -= 1;
            self.free += self.blocks_per_prefix;
        }
    }

    /// Lends `n` blocks that are available.
    pub fn lend(&mut self, n: u32) {
        assert!(n <= self.available(), "{n} blocks lent, {} are available", self.available());
        self.spend(n);
        self.lent += n;
        self.peak = self.peak.max(self.held());
        debug_assert!(self.balances());
    }

    /// Has `n` lent blocks back.
    pub fn take_back(&mut self, n: u32) {
        assert!(n <= self.lent, "{n} blocks come back, {} are lent", self.lent);
        self.lent -= n;
        self.free += n;
        debug_assert!(self.balances());
    }

    /// Has `n` blocks more, on another replica.
    pub const fn borrow(&mut self, n: u32) {
        self.borrowed += n;
        self.free += n;
    }

    /// Gives `n` borrowed blocks back; whatever they held is here now, or gone.
    pub fn repay(&mut self, n: u32) {
        assert!(n <= self.borrowed, "{n} blocks go back, {} are borrowed", self.borrowed);
        self.spend(n);
        self.borrowed -= n;
        debug_assert!(self.balances());
    }

    /// Gives back `n` blocks of one request.
    pub fn give(&mut self, n: u32) {
        assert!(n <= self.private, "{n} blocks given back, {} are owned", self.private);
        self.private -= n;
        self.free += n;
        debug_assert!(self.balances());
    }

    /// Requests that hold a prefix; `None` where it is not cached.
    fn holders(&self, id: u32) -> Option<u32> {
        self.entries.get(id).map(|entry| entry.holders)
    }

    /// Gives back `n` blocks of a preempted sequence, the first `n_full` of which hold keys and values that follow `behind` tokens.
    pub fn leave(&mut self, owner: Owner, behind: u32, (n_full, n): (u32, u32)) {
        self.give(n - n_full);
        self.left.leave(owner, behind, n_full, self.free);
        self.give(n_full);
    }

    /// Blocks that a sequence has left and that still hold what follows `behind` tokens.
    pub fn left(&self, owner: Owner, behind: u32) -> u32 {
        self.left.of(owner, behind)
    }

    /// How many of the leading prefixes are cached.
    pub fn cached(&self, ids: &[u32]) -> u32 {
        if self.blocks_per_prefix == 0 {
            return 0;
        }
        let hit = ids.iter().take_while(|id| self.holders(**id).is_some()).count();
        u32::try_from(hit).expect("fewer than 2^32 prefixes")
    }

    /// Blocks of cached prefixes that nobody holds yet.
    pub fn unheld(&self, ids: &[u32]) -> u32 {
        let unheld = ids.iter().filter(|id| self.holders(**id) == Some(0)).count();
        u32::try_from(unheld).expect("fewer than 2^32 prefixes") * self.blocks_per_prefix
    }

    /// Holds cached prefixes for a request.
    pub fn hold(&mut self, ids: &[u32]) {
        for id in ids {
            let entry = self.entries.get_mut(*id).expect("a prefix that is held is cached");
            if entry.holders == 0 {
                self.evictable.remove(&(self.rule.rank)(&entry.usage));
            }
            entry.holders += 1;
            entry.usage.n_uses = entry.usage.n_uses.saturating_add(1);
        }
        self.peak = self.peak.max(self.held());
    }

    /// Turns a request's own blocks of these prefixes into shared ones that it holds. Of one that another request has cached meanwhile it holds that
    /// one's, and its own blocks come free (SGLang, `cache_finished_req` of python/sglang/srt/mem_cache/radix_cache.py). Each was computed, so the store
    /// has it from now on. Returns how many were turned.
    pub fn publish(&mut self, ids: &[u32]) -> u32 {
        if self.blocks_per_prefix == 0 {
            return 0;
        }
        for id in ids {
            if self.entries.get(*id).is_some() {
                self.give(self.blocks_per_prefix);
                self.hold(&[*id]);
            } else {
                self.entries.insert(*id, Entry { holders: 1, usage: Usage { n_uses: 1, released: 0 } });
                self.n_cached += 1;
                self.private -= self.blocks_per_prefix;
            }
            self.remote.iter_mut().for_each(|store| store.write(*id));
        }
        debug_assert!(self.balances());
        u32::try_from(ids.len()).expect("fewer than 2^32 prefixes")
    }

    /// Lets go of prefixes that a request holds; the end of the chain becomes evictable first.
    pub fn let_go(&mut self, ids: &[u32]) {
        for id in ids.iter().rev() {
            self.clock += 1;
            let entry = self.entries.get_mut(*id).expect("a prefix that is let go is cached");
            assert!(entry.holders > 0, "prefix {id} is held");
            entry.holders -= 1;
            if entry.holders == 0 {
                entry.usage.released = self.clock;
                self.evictable.insert((self.rule.rank)(&entry.usage), *id);
            }
        }
    }

    /// Memory is lost: cached prefixes that nobody holds are gone.
    pub fn forget(&mut self) {
        self.tiers.forget();
        for (_, id) in std::mem::take(&mut self.evictable) {
            self.entries.remove(id);
            self.n_cached -= 1;
            self.free += self.blocks_per_prefix;
        }
        debug_assert!(self.balances());
    }

    /// Tokens of one prefix identity, where prefixes are shared.
    pub const fn prefix_tokens(&self) -> u32 {
        if self.blocks_per_prefix == 0 { 0 } else { self.prefix_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::random;

    #[test]
    fn an_evicted_chain_loses_its_end_first() {
        // Ten blocks, prefixes of two blocks: three cached prefixes leave four free blocks.
        let mut pool = Pool::new(10, 16, 32);
        assert!(pool.take(6));
        assert_eq!(pool.publish(&[0, 1, 2]), 3);
        pool.let_go(&[0, 1, 2]);
        assert_eq!((pool.available(), pool.cached(&[0, 1, 2])), (10, 3));
        assert!(pool.take(5));
        assert_eq!(pool.cached(&[0, 1, 2]), 2, "one block more than free costs the last prefix");
        pool.hold(&[0]);
        assert!(!pool.take(5), "one prefix of two blocks is held");
        assert!(pool.take(3));
        assert_eq!((pool.cached(&[0, 1]), pool.held(), pool.is_conserved()), (1, 10, true));
    }

    #[test]
    fn a_prefix_that_two_requests_compute_is_kept_once() {
        // Both have computed prefixes 0 and 1, and each has one more of its own: ten blocks of which four are left.
        let mut pool = Pool::new(10, 16, 16);
        assert!(pool.take(6));
        assert_eq!((pool.publish(&[0, 1, 2]), pool.available()), (3, 4));
        assert_eq!((pool.publish(&[0, 1, 3]), pool.available(), pool.cached(&[0, 1, 3])), (3, 6, 3));
        pool.let_go(&[0, 1, 2]);
        assert_eq!((pool.available(), pool.is_conserved()), (7, true), "the second still holds three");
        pool.let_go(&[0, 1, 3]);
        assert_eq!((pool.available(), pool.cached(&[0, 1, 2]), pool.is_conserved()), (10, 3, true));
    }

    #[test]
    fn blocks_are_conserved_whatever_happens() {
        let mut stream = random::stream(1, "kv");
        let mut pool = Pool::new(200, 16, 64);
        // (private blocks, prefixes held from 0 on) of every live request; chains are 0.., as ids name all before them.
        let mut live: Vec<(u32, Vec<u32>)> = Vec::new();
        for _ in 0..20_000 {
            let pick = |stream: &mut random::Stream, n: usize| usize::try_from(stream.below(n as u64)).expect("small");
            if live.is_empty() || stream.below(2) == 0 {
                let chain: Vec<u32> = {
                    let first = u32::try_from(stream.below(4)).expect("small") * 10;
                    (first..first + u32::try_from(stream.below(10)).expect("small")).collect()
                };
                let hit = pool.cached(&chain) as usize;
                pool.hold(&chain[..hit]);
                let own = u32::try_from(stream.below(20)).expect("small");
                let missing = u32::try_from(chain.len() - hit).expect("small") * pool.blocks_per_prefix();
                if !pool.take(own + missing) {
                    pool.let_go(&chain[..hit]);
                    continue;
                }
                let turned = pool.publish(&chain[hit..]);
                let held = chain[..hit + turned as usize].to_vec();
                live.push((own + missing - turned * pool.blocks_per_prefix(), held));
            } else {
                let index = pick(&mut stream, live.len());
                let (own, held) = live.swap_remove(index);
                pool.give(own);
                pool.let_go(&held);
            }
            assert!(pool.is_conserved());
        }
        for (own, held) in live {
            pool.give(own);
            pool.let_go(&held);
        }
        assert_eq!((pool.available(), pool.held(), pool.is_conserved()), (200, 0, true));
    }
}
