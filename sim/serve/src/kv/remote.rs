//! One store of keys and values for all replicas of a fleet, behind their network cards, as LMCache's remote backends and Mooncake's store are.
//!
//! Every prefix goes there as soon as it is computed (write-through: LMCache `store`, Mooncake `put`), and writing costs no time. The store keeps what was written or read
//! last. Reads of all replicas take turns at its bandwidth, one after another, so two that always read have half of it each. A read takes at
//! least as long as the replica's own network cards need, and leaves the rest of the store's bandwidth to others. Units: bytes, ticks.
//! Invariant: what is kept fits the room.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hw::{Bytes, BytesPerSecond, Tick};

use super::sparse::Sparse;
use super::tiers::{self, BlockBytes};

/// The store as a replica sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// What all replicas have of it together.
    pub room: Bytes,
    /// Bytes of a block of the replica, on all its GPUs.
    pub block_bytes: u64,
    /// Ticks in which the store gives such a block.
    pub given_ticks: Tick,
    /// Ticks in which the replica's network cards take it.
    pub taken_ticks: Tick,
}

impl Remote {
    /// A store as a replica of so many GPUs sees it, whose network card takes so many bytes per second each; `None` without room.
    pub fn of(store: &tiers::Store, (card, n_gpus): (BytesPerSecond, u32), block: BlockBytes) -> Option<Self> {
        let given = BytesPerSecond::new(store.gb_per_s? * 1e9);
        let ticks = |bandwidth| Tick::from_seconds(Bytes(block.of_replica) / bandwidth);
        let (given_ticks, taken_ticks) = (ticks(given), ticks(card * f64::from(n_gpus)));
        (store.room > Bytes(0)).then_some(Self {
            room: store.room,
            block_bytes: block.of_replica,
            given_ticks,
            taken_ticks,
        })
    }
}

/// What lies in the store.
#[derive(Clone, Debug, Default)]
struct Kept {
    room: u64,
    used: u64,
    /// Prefixes by the stamp of their last use.
    order: BTreeMap<u64, u32>,
    /// Stamp and bytes of every prefix.
    places: Sparse<(u64, u64)>,
    clock: u64,
    /// When the reads that were asked for are through.
    free_at: Tick,
}

/// A replica's way to the store.
#[derive(Clone, Debug)]
pub struct Store {
    kept: Rc<RefCell<Kept>>,
    remote: Remote,
    blocks_per_prefix: u64,
    /// When the replica's iteration begins, and what it has waited for reads since.
    now: Tick,
}

impl Store {
    /// An empty store.
    pub fn new(remote: Remote) -> Self {
        let kept = Kept { room: remote.room.0, ..Kept::default() };
        Self { kept: Rc::new(RefCell::new(kept)), remote, blocks_per_prefix: 1, now: Tick::ZERO }
    }

    /// The same store for another replica.
    pub fn seen_by(&self, remote: Remote) -> Self {
        Self { kept: Rc::clone(&self.kept), remote, ..self.clone() }
    }

    /// The same for prefixes of so many blocks.
    pub(super) fn of_prefixes(self, blocks: u32) -> Self {
        Self { blocks_per_prefix: blocks.into(), ..self }
    }

    /// An iteration is composed at a tick.
    pub(super) const fn begin(&mut self, now: Tick) {
        self.now = now;
    }

    /// Whether a prefix is there.
    pub(super) fn has(&self, id: u32) -> bool {
        self.kept.borrow().places.get(id).is_some()
    }

    /// Ticks from `behind` ticks after now until so many prefixes are read.
    pub(super) fn ticks(&self, n: u64, behind: Tick) -> Tick {
        let asked = self.now + behind;
        let wait = self.kept.borrow().free_at.saturating_sub(asked);
        wait + self.remote.given_ticks.max(self.remote.taken_ticks) * (n * self.blocks_per_prefix)
    }

    /// The iteration waits `behind` ticks for something else, and then for some prefixes.
    pub(super) fn read(&mut self, ids: &[u32], behind: Tick) {
        let n = ids.len() as u64;
        let ticks = if n > 0 { self.ticks(n, behind) } else { Tick::ZERO };
        ids.iter().for_each(|id| self.put(*id));
        self.take_turn(n, self.now + behind);
        self.now += behind + ticks;
    }

    /// So many prefixes that are asked for at a tick take their turn at the store.
    fn take_turn(&self, n: u64, asked: Tick) {
        let kept = &mut *self.kept.borrow_mut();
        kept.free_at = kept.free_at.max(asked) + self.remote.given_ticks * (n * self.blocks_per_prefix);
    }

    /// A prefix is written, or read: it is the last that goes.
    pub(super) fn put(&mut self, id: u32) {
        let bytes = self.remote.block_bytes * self.blocks_per_prefix;
        self.kept.borrow_mut().put(id, bytes);
    }
}

impl Kept {
    fn put(&mut self, id: u32, bytes: u64) {
        if bytes == 0 || bytes > self.room {
            return;
        }
        self.drop(id);
        while self.used + bytes > self.room {
            let (_, oldest) = self.order.first_key_value().expect("what is used is somebody's");
            self.drop(*oldest);
        }
        self.clock += 1;
        self.order.insert(self.clock, id);
        self.places.insert(id, (self.clock, bytes));
        self.used += bytes;
        debug_assert!(self.used <= self.room);
    }

    /// Drops a prefix, where it is kept.
    fn drop(&mut self, id: u32) {
        if let Some((stamp, bytes)) = self.places.remove(id) {
            self.order.remove(&stamp);
            self.used -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(given: u64, taken: u64) -> Remote {
        let (given_ticks, taken_ticks) = (Tick::new(given), Tick::new(taken));
        Remote { room: Bytes(100), block_bytes: 10, given_ticks, taken_ticks }
    }

    #[test]
    fn what_was_used_longest_ago_leaves_the_room() {
        // Prefixes of three blocks of ten bytes: three fit a hundred.
        let mut store = Store::new(remote(1, 1)).of_prefixes(3);
        (0..3).for_each(|id| store.put(id));
        store.read(&[0], Tick::ZERO);
        store.put(3);
        assert_eq!([0, 1, 2, 3].map(|id| store.has(id)), [true, false, true, true]);
        // One that is larger than the room is not kept.
        let mut small = Store::new(Remote { room: Bytes(20), ..remote(1, 1) }).of_prefixes(3);
        small.put(7);
        assert!(!small.has(7));
    }

    #[test]
    fn two_replicas_that_read_wait_for_each_other_and_slow_cards_leave_bandwidth() {
        let mut first = Store::new(remote(5, 2));
        let mut second = first.seen_by(remote(5, 20));
        first.put(0);
        assert!(second.has(0), "what one replica wrote is there for the other");
        first.begin(Tick::new(1000));
        second.begin(Tick::new(1000));
        // Four blocks take the store 20 ticks; cards of 20 ticks a block take 80.
        assert_eq!((first.ticks(4, Tick::ZERO), second.ticks(4, Tick::ZERO)), (Tick::new(20), Tick::new(80)));
        first.read(&[0; 4], Tick::ZERO);
        assert_eq!(second.ticks(4, Tick::ZERO), Tick::new(20 + 80));
        second.read(&[0; 4], Tick::ZERO);
        // The store has given 40 ticks' worth, whatever the cards take; the first has waited for 20 of them.
        assert_eq!(first.ticks(4, Tick::ZERO), Tick::new(20 + 20));
    }
}
