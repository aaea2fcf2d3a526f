//! Where keys and values of prefixes go when they have to leave the device: host memory, then disk, then nowhere.
//!
//! Each tier keeps what came last; what it has no room for goes to the next one. Reading costs time, writing none: copies outwards run beside the
//! batch over the other direction of the link (so do LMCache, Mooncake and vLLM's offloading connector). What is read stays where it is. Units:
//! prefixes, ticks. Invariant: a prefix is in one tier at most, and no tier holds more than its room.

use std::collections::BTreeMap;

use super::sparse::Sparse;
use hw::{Bytes, BytesPerSecond, Tick};

/// Tiers below the device.
pub const N_TIERS: usize = 2;

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
        Self { shelves, places: Sparse::default(), clock: 0 }
    }

    /// Ticks to bring a prefix to the device; `None` where no tier has it.
    pub(super) fn ticks(&self, id: u32) -> Option<Tick> {
        let (tier, _) = *self.places.get(id)?;
        Some(self.shelves[tier].ticks_per_prefix)
    }

    /// A prefix leaves the device, or is read again: it is the last that goes.
    pub(super) fn put(&mut self, id: u32) {
        if self.shelves.iter().all(|shelf| shelf.room == 0) {
            return;
        }
        let from = self.take(id).unwrap_or(0);
        self.put_into(from, id);
    }

    fn put_into(&mut self, tier: usize, id: u32) {
        let Some(shelf) = self.shelves.get_mut(tier) else { return };
        if shelf.room == 0 {
            return self.put_into(tier + 1, id);
        }
        self.clock += 1;
        shelf.order.insert(self.clock, id);
        self.places.insert(id, (tier, self.clock));
        if shelf.order.len() > shelf.room {
            let (_, oldest) = shelf.order.pop_first().expect("it has some");
            self.places.remove(oldest);
            self.put_into(tier + 1, oldest);
        }
    }

    /// Takes a prefix out; the tier in which it was.
    fn take(&mut self, id: u32) -> Option<usize> {
        let (tier, stamp) = self.places.remove(id)?;
        self.shelves[tier].order.remove(&stamp);
        Some(tier)
    }

    /// The machine is lost with its memory and its disk.
    pub(super) fn forget(&mut self) {
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
        let all = |found: &Tiers| [0, 1, 2, 3, 4].map(|id| found.ticks(id).map(Tick::get));
        found.put(0);
        found.put(1);
        assert_eq!(all(&found), [Some(20), Some(20), None, None, None]);
        // The oldest of the host goes to disk; being used again makes the 1 younger than the 2; then disk drops the 0.
        found.put(2);
        assert_eq!(all(&found), [Some(100), Some(20), Some(20), None, None]);
        found.put(1);
        found.put(3);
        assert_eq!(all(&found), [None, Some(20), Some(100), Some(20), None]);
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
        assert_eq!(found.ticks(3), None);
        // Prefixes larger than the host's room go to disk.
        let tiers =
            [Tier { blocks: 1, ticks_per_block: Tick::new(10) }, Tier { blocks: 2, ticks_per_block: Tick::new(50) }];
        let mut found = Tiers::new(&tiers, 2);
        found.put(3);
        assert_eq!(found.ticks(3), Some(Tick::new(100)));
    }
}
