//! One store of keys and values for all replicas of a fleet, behind their network cards, as LMCache's remote backends and Mooncake's store are.
//!
//! Every prefix goes there as soon as it is computed (write-through: LMCache `store`, Mooncake `put`), unless it is there already. The store keeps
//! what was written or read last. Reads of all replicas take turns at its bandwidth, one after another, so two that always read have half of it
//! each. A read takes at least as long as the replica's own network cards need, and leaves the rest of the store's bandwidth to others.
//!
//! Writing delays no iteration: blocks are copied out beside it. It takes the store's bandwidth. While blocks wait to be written a read has half of
//! it, and as long as nobody reads, writing has all. Cards send and receive at once, so writes take nothing of what a card reads. Approximations:
//! what is written while a read goes on does not slow that read, and a prefix can be read as soon as it is computed. Units: bytes, ticks.
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
    /// When the blocks that were computed are written, if nobody reads.
    written_at: Tick,
}

/// A replica's way to the store.
#[derive(Clone, Debug)]
pub struct Store {
    kept: Rc<RefCell<Kept>>,
    remote: Remote,
    blocks_per_prefix: u64,
    /// When the replica's iteration begins or ends, and what it has waited for reads since.
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

    /// An iteration is composed at a tick, or has ended then.
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
        let begun = self.kept.borrow().free_at.max(asked);
        let Remote { given_ticks, taken_ticks, .. } = self.remote;
        let (n, n_halved) = (n * self.blocks_per_prefix, self.n_halved(n, begun));
        let halved = taken_ticks.max(given_ticks * 2) * n_halved;
        begun - asked + halved + taken_ticks.max(given_ticks) * (n - n_halved)
    }

    /// Blocks of so many prefixes that have half of the bandwidth when they are read from a tick on: as many as wait to be written then.
    fn n_halved(&self, n: u64, begun: Tick) -> u64 {
        let n = n * self.blocks_per_prefix;
        let waits = self.kept.borrow().written_at.saturating_sub(begun);
        if waits == Tick::ZERO { 0 } else { n.min(waits.div_ceil(self.remote.given_ticks)) }
    }

    /// A prefix that is read is the last that goes.
    pub(super) fn use_again(&mut self, id: u32) {
        if self.has(id) {
            self.keep(id);
        }
    }

    /// The iteration waits `behind` ticks for something else, and then for so many prefixes.
    pub(super) fn read(&mut self, n: u64, behind: Tick) {
        let ticks = if n > 0 { self.ticks(n, behind) } else { Tick::ZERO };
        self.take_turn(n, self.now + behind);
        self.now += behind + ticks;
    }

    /// So many prefixes that are asked for at a tick take their turn at the store. What waits to be written is done so much later.
    fn take_turn(&self, n: u64, asked: Tick) {
        let begun = self.kept.borrow().free_at.max(asked);
        let n_halved = self.n_halved(n, begun);
        let Remote { given_ticks, .. } = self.remote;
        let n = n * self.blocks_per_prefix;
        let kept = &mut *self.kept.borrow_mut();
        kept.free_at = begun + given_ticks * (n + n_halved);
        if n_halved > 0 {
            kept.written_at += given_ticks * n;
        }
    }

    /// A prefix is computed. It is written where the store does not have it yet.
    pub(super) fn write(&mut self, id: u32) {
        if !self.has(id) {
            let kept = &mut *self.kept.borrow_mut();
            kept.written_at = kept.written_at.max(self.now) + self.remote.given_ticks * self.blocks_per_prefix;
        }
        self.keep(id);
    }

    /// A prefix is written, or read: it is the last that goes.
    fn keep(&mut self, id: u32) {
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
        (0..3).for_each(|id| store.write(id));
        store.use_again(0);
        store.read(1, Tick::ZERO);
        store.write(3);
        assert_eq!([0, 1, 2, 3].map(|id| store.has(id)), [true, false, true, true]);
        // One that is larger than the room is not kept.
        let mut small = Store::new(Remote { room: Bytes(20), ..remote(1, 1) }).of_prefixes(3);
        small.write(7);
        assert!(!small.has(7));
    }

    #[test]
    fn two_replicas_that_read_wait_for_each_other_and_slow_cards_leave_bandwidth() {
        let mut first = Store::new(remote(5, 2));
        let mut second = first.seen_by(remote(5, 20));
        first.write(0);
        assert!(second.has(0), "what one replica wrote is there for the other");
        first.begin(Tick::new(1000));
        second.begin(Tick::new(1000));
        // Four blocks take the store 20 ticks; cards of 20 ticks a block take 80.
        assert_eq!((first.ticks(4, Tick::ZERO), second.ticks(4, Tick::ZERO)), (Tick::new(20), Tick::new(80)));
        first.read(4, Tick::ZERO);
        assert_eq!(second.ticks(4, Tick::ZERO), Tick::new(20 + 80));
        second.read(4, Tick::ZERO);
        // The store has given 40 ticks' worth, whatever the cards take; the first has waited for 20 of them.
        assert_eq!(first.ticks(4, Tick::ZERO), Tick::new(20 + 20));
    }

    #[test]
    fn what_waits_to_be_written_takes_half_of_a_read_and_is_done_so_much_later() {
        let mut store = Store::new(Remote { room: Bytes(10_000), ..remote(5, 2) });
        // Six blocks: 30 ticks of writing. A prefix that is there is not written again.
        (0..6).chain(0..6).for_each(|id| store.write(id));
        // Four blocks of 5 ticks at half of the bandwidth: 40. Ten: six of them at half, 60 + 20.
        assert_eq!((store.ticks(4, Tick::ZERO), store.ticks(10, Tick::ZERO)), (Tick::new(40), Tick::new(80)));
        // 20 ticks later two blocks wait, and 30 ticks later none.
        assert_eq!(store.ticks(4, Tick::new(20)), Tick::new(2 * 10 + 2 * 5));
        assert_eq!(store.ticks(4, Tick::new(30)), Tick::new(20));
        // Cards that take less than half of the bandwidth leave the rest to what is written.
        assert_eq!(store.seen_by(remote(5, 10)).ticks(4, Tick::ZERO), Tick::new(40));
        assert_eq!(store.seen_by(remote(5, 12)).ticks(4, Tick::ZERO), Tick::new(48));
        // Behind the read two blocks are left to write.
        store.read(4, Tick::ZERO);
        assert_eq!(store.kept.borrow().written_at, Tick::new(40 + 10));
        // What nobody waits for is written at the full bandwidth: 100 ticks later nothing waits.
        store.begin(Tick::new(140));
        assert_eq!(store.ticks(4, Tick::ZERO), Tick::new(20));
    }

    /// Writes that fill a share `w` of the store, block by block, and reads one behind another: each slows the other as long as both want it.
    #[test]
    fn reads_under_steady_writes_take_longer_by_what_is_written() {
        let mut store = Store::new(Remote { room: Bytes(1_000_000), ..remote(10, 1) });
        let (mut id, mut read) = (0, Tick::ZERO);
        for round in 0..1000_u64 {
            // Every 100 ticks three blocks are computed (a share of 0.3), and four are read at once.
            store.begin(Tick::new(round * 100));
            (0..3).for_each(|n| store.write(id + n));
            id += 3;
            read += store.ticks(4, Tick::ZERO);
            store.read(4, Tick::ZERO);
        }
        // Both want the store until three blocks of each are through, 60 ticks, and the last one has all of it: 40 + 30 ticks.
        assert_eq!(read, Tick::new(1000 * 70));
    }
}
