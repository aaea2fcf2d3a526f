//! Where keys and values of prefixes go when they have to leave the device: host memory, then disk, then nowhere.
//!
//! Each tier keeps what came last; what it has no room for goes to the next one. Writing delays no iteration: copies outwards run beside the batch (so
//! do LMCache, Mooncake and vLLM's offloading connector). Those to the host take the other direction of its link. Those to disk take the disk's bandwidth:
//! while prefixes wait to be written a read has half of it, and as long as nobody reads, writing has all. What is read stays where it is.
//! Approximation: what goes to disk while a read goes on does not slow that read. Units: prefixes, ticks. Invariant: a prefix is in one tier at most, and
//! no tier holds more than its room.

use std::collections::BTreeMap;

use super::sparse::Sparse;
use hw::{Bytes, BytesPerSecond, Tick};

/// Tiers below the device.
pub const N_TIERS: usize = 2;
/// The second of them.
const DISK: usize = 1;

/// One tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// Blocks that fit.
    pub blocks: u32,
    /// Ticks to bring a block to the device.
    pub ticks_per_block: Tick,
}

/// Memory that is a tier, as it is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Store {
    /// What a replica has of it.
    pub room: Bytes,
    /// What each GPU reads of the host, or a replica of all its disks, in GB per second; `None` is the link of the GPU to its host.
    pub gb_per_s: Option<f64>,
}

/// No memory.
pub const NO_STORE: Store = Store { room: Bytes(0), gb_per_s: None };

/// Bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBytes {
    /// On each GPU.
    pub of_gpu: u64,
    /// On all GPUs of a replica.
    pub of_replica: u64,
}

/// The tiers of host and disk. Every GPU reads its own part of a block over its own link of the host; disks are read for all GPUs together.
pub fn of([host, disk]: &[Store; N_TIERS], link: BytesPerSecond, block: BlockBytes) -> [Tier; N_TIERS] {
    let tier = |store: &Store, bytes: u64| {
        let bandwidth = store.gb_per_s.map_or(link, |rate| BytesPerSecond::new(rate * 1e9));
        let blocks = u32::try_from(store.room.0 / block.of_replica.max(1)).unwrap_or(u32::MAX);
        Tier { blocks, ticks_per_block: Tick::from_seconds(Bytes(bytes) / bandwidth) }
    };
    [tier(host, block.of_gpu), tier(disk, block.of_replica)]
}

/// No tier.
pub const NO_TIERS: [Tier; N_TIERS] = [Tier { blocks: 0, ticks_per_block: Tick::ZERO }; N_TIERS];

#[derive(Clone, Debug, Default)]
struct Shelf {
    /// Prefixes that fit.
    room: usize,
    ticks_per_prefix: Tick,
    /// Prefixes by the stamp of their last use.
    order: BTreeMap<u64, u32>,
}

/// Prefixes that left the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiers {
    shelves: [Shelf; N_TIERS],
    /// Tier and stamp of prefixes that are in one.
    places: Sparse<(usize, u64)>,
    clock: u64,
    /// When the replica's iteration begins or has ended.
    now: Tick,
    /// When what went to disk is written, if nobody reads.
    written_at: Tick,
}

impl Tiers {
    /// Empty tiers for prefixes of so many blocks each.
    pub(super) fn new(tiers: &[Tier; N_TIERS], blocks_per_prefix: u32) -> Self {
        let shelf = |tier: &Tier| Shelf {
            room: tier.blocks.checked_div(blocks_per_prefix).unwrap_or(0) as usize,
            ticks_per_prefix: tier.ticks_per_block * u64::from(blocks_per_prefix),
            order: BTreeMap::new(),
        };
        let shelves = [shelf(&tiers[0]), shelf(&tiers[1])];
        Self { shelves, ..Self::default() }
    }

    /// An iteration is composed at a tick, or has ended then.
    pub(super) const fn begin(&mut self, now: Tick) {
        self.now = now;
    }

    /// Whether prefixes that leave the device may be written to disk.
    pub(super) const fn has_disk(&self) -> bool {
        self.shelves[DISK].room > 0
    }

    /// The tier that has a prefix.
    pub(super) fn tier(&self, id: u32) -> Option<usize> {
        self.places.get(id).map(|(tier, _)| *tier)
    }

    /// Ticks to bring so many prefixes of each tier to the device, those of the host first.
    pub(super) fn ticks(&self, n: [u64; N_TIERS]) -> Tick {
        let [near, read] = self.alone(n);
        // Both have half of the bandwidth until one of them is through.
        near + read + read.min(self.written_at.saturating_sub(self.now + near))
    }

    /// Ticks of each tier where nothing is written.
    fn alone(&self, n: [u64; N_TIERS]) -> [Tick; N_TIERS] {
        [0, DISK].map(|tier| self.shelves[tier].ticks_per_prefix * n[tier])
    }

    /// So many prefixes of each tier are brought. What waits to be written is done so much later.
    pub(super) fn read(&mut self, n: [u64; N_TIERS]) {
        let [near, read] = self.alone(n);
        if self.written_at > self.now + near {
            self.written_at += read;
        }
    }

    /// A prefix leaves the device, or is read again: it is the last that goes.
    pub(super) fn put(&mut self, id: u32) {
        if self.shelves.iter().all(|shelf| shelf.room == 0) {
            return;
        }
        match self.take(id) {
            Some(DISK) => self.keep(DISK, id),
            _ => self.put_into(0, id),
        }
    }

    fn put_into(&mut self, tier: usize, id: u32) {
        let Some(shelf) = self.shelves.get_mut(tier) else { return };
        if shelf.room == 0 {
            return self.put_into(tier + 1, id);
        }
        if tier == DISK {
            self.written_at = self.written_at.max(self.now) + shelf.ticks_per_prefix;
        }
        self.keep(tier, id);
        let shelf = &mut self.shelves[tier];
        if shelf.order.len() > shelf.room {
            let (_, oldest) = shelf.order.pop_first().expect("it has some");
            self.places.remove(oldest);
            self.put_into(tier + 1, oldest);
        }
    }

    /// A prefix is the last of its tier that goes.
    fn keep(&mut self, tier: usize, id: u32) {
        self.clock += 1;
        self.shelves[tier].order.insert(self.clock, id);
        self.places.insert(id, (tier, self.clock));
    }

    /// Takes a prefix out; the tier in which it was.
    fn take(&mut self, id: u32) -> Option<usize> {
        let (tier, stamp) = self.places.remove(id)?;
        self.shelves[tier].order.remove(&stamp);
        Some(tier)
    }

    /// The machine is lost with its memory and its disk.
    pub(super) fn forget(&mut self) {
        self.written_at = Tick::ZERO;
        self.places.clear();
        self.shelves.iter_mut().for_each(|shelf| shelf.order.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_last_stays_and_the_rest_goes_down() {
        // Prefixes of two blocks: room for two in the host at 10 ticks a block, for one on disk at 50.
        let tiers =
            [Tier { blocks: 5, ticks_per_block: Tick::new(10) }, Tier { blocks: 2, ticks_per_block: Tick::new(50) }];
        let mut found = Tiers::new(&tiers, 2);
        let all = |found: &Tiers| [0, 1, 2, 3, 4].map(|id| found.tier(id));
        found.put(0);
        found.put(1);
        assert_eq!(all(&found), [Some(0), Some(0), None, None, None]);
        // The oldest of the host goes to disk; being used again makes the 1 younger than the 2; then disk drops the 0.
        found.put(2);
        assert_eq!(all(&found), [Some(1), Some(0), Some(0), None, None]);
        found.put(1);
        found.put(3);
        assert_eq!(all(&found), [None, Some(0), Some(1), Some(0), None]);
        found.forget();
        assert_eq!(all(&found), [None; 5]);
    }

    #[test]
    fn a_block_comes_over_every_gpus_link_or_from_the_disks_of_all() {
        // A megabyte of each of two GPUs: 20 us over links of 50 GB/s, 2 MB at 10 GB/s from disk in 200 us. A GB holds 500 blocks.
        let store = Store { room: Bytes(1_000_000_000), gb_per_s: None };
        let disk = Store { gb_per_s: Some(10.0), ..store };
        let block = BlockBytes { of_gpu: 1_000_000, of_replica: 2_000_000 };
        let found = of(&[store, disk], BytesPerSecond::new(50e9), block);
        let ticks = |us: f64| Tick::from_seconds(hw::Seconds::new(us / 1e6));
        let tier = |us: f64| Tier { blocks: 500, ticks_per_block: ticks(us) };
        assert_eq!(found, [tier(20.0), tier(200.0)]);
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut found = Tiers::new(&[Tier::default(); N_TIERS], 2);
        found.put(3);
        assert_eq!(found.tier(3), None);
        // Prefixes larger than the host's room go to disk.
        let tiers =
            [Tier { blocks: 1, ticks_per_block: Tick::new(10) }, Tier { blocks: 2, ticks_per_block: Tick::new(50) }];
        let mut found = Tiers::new(&tiers, 2);
        found.put(3);
        assert_eq!(found.tier(3), Some(DISK));
    }

    #[test]
    fn what_waits_to_be_written_takes_half_of_a_read_from_disk() {
        let ticks = |n: u64| Tick::new(n);
        // Prefixes of two blocks: 20 ticks from the host, which has room for one, 100 from disk, which has room for ten.
        let tiers = [Tier { blocks: 2, ticks_per_block: ticks(10) }, Tier { blocks: 20, ticks_per_block: ticks(50) }];
        let mut found = Tiers::new(&tiers, 2);
        // Four leave the device: three of them are written, which takes 300 ticks.
        (0..4).for_each(|id| found.put(id));
        assert_eq!([[1, 0], [0, 1], [0, 3], [0, 5], [1, 1]].map(|n| found.ticks(n).get()), [20, 200, 600, 800, 220]);
        // One read for 200 ticks: 200 ticks of writing are left then.
        found.read([0, 1]);
        found.begin(ticks(200));
        assert_eq!([[0, 1], [0, 3]].map(|n| found.ticks(n).get()), [200, 500]);
        // As long as nobody reads, writing has all of the bandwidth.
        found.begin(ticks(350));
        assert_eq!([[0, 1], [1, 1]].map(|n| found.ticks(n).get()), [150, 150]);
        found.begin(ticks(400));
        assert_eq!(found.ticks([0, 1]), ticks(100));
        // What is read again is not written again.
        found.put(0);
        assert_eq!((found.tier(0), found.ticks([0, 1])), (Some(DISK), ticks(100)));
        // A lost machine writes nothing.
        found.put(4);
        assert_eq!(found.ticks([0, 1]), ticks(200));
        found.forget();
        assert_eq!(found.ticks([0, 1]), ticks(100));
    }
}
