//! Memory of each device while tasks run; an allocation that does not fit is named.
//!
//! Bytes in use never go below zero: freeing what was not allocated is a bug of the lowering.
//!
//! What a cache holds free counts as far as there is room. An allocator gives it back before it fails (pytorch/pytorch, `CUDACachingAllocator::malloc`:
//! `release_available_cached_blocks`, `release_cached_blocks`, then it tries again), so it never makes an allocation fail.

use hw::Time;

use crate::task::{LabelId, LaneId, TaskGraph};
use crate::timeline::MemoryMark;

/// An allocation that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Device.
    pub lane: LaneId,
    /// What it was for.
    pub label: LabelId,
    /// Bytes asked for.
    pub needed: u64,
    /// Bytes that were free.
    pub free: u64,
}

/// Memory of all devices.
#[derive(Clone, Debug)]
pub struct Memory {
    capacity: u64,
    used: Vec<u64>,
    /// What caches hold free, were there room for all of it.
    spare: Vec<u64>,
    spare_label: Option<LabelId>,
    marks: Vec<Vec<MemoryMark>>,
}

impl Memory {
    /// Devices of `capacity` bytes holding what the graph says is resident.
    ///
    /// # Errors
    /// When the resident part alone does not fit.
    pub fn new(graph: &TaskGraph, capacity: u64) -> Result<Self, Overflow> {
        let n_lanes = graph.lanes.len();
        let mut memory = Self {
            capacity,
            used: vec![0; n_lanes],
            spare: vec![0; n_lanes],
            spare_label: graph.spare,
            marks: vec![Vec::new(); n_lanes],
        };
        for (lane, resident) in (0..).map(LaneId).zip(&graph.resident) {
            for &(label, bytes) in resident {
                memory.allocate(lane, label, bytes, Time::ZERO)?;
            }
        }
        Ok(memory)
    }

    /// Takes memory.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn allocate(&mut self, lane: LaneId, label: LabelId, bytes: u64, at: Time) -> Result<(), Overflow> {
        if self.spare_label == Some(label) {
            self.spare[lane.index()] += bytes;
            self.mark(lane, at);
            return Ok(());
        }
        let free = self.capacity - self.used[lane.index()];
        if bytes > free {
            return Err(Overflow { lane, label, needed: bytes, free });
        }
        self.used[lane.index()] += bytes;
        self.mark(lane, at);
        Ok(())
    }

    /// Gives memory back.
    ///
    /// # Panics
    /// When more is freed than is in use.
    pub fn free(&mut self, lane: LaneId, label: LabelId, bytes: u64, at: Time) {
        let held = if self.spare_label == Some(label) { &mut self.spare } else { &mut self.used };
        let used = &mut held[lane.index()];
        assert!(bytes <= *used, "lane {} frees {bytes} bytes of {used}", lane.0);
        *used -= bytes;
        self.mark(lane, at);
    }

    /// Marks of equal time are kept as two at most, the highest and the last, so that peaks survive.
    fn mark(&mut self, lane: LaneId, at: Time) {
        let used = self.used[lane.index()];
        let bytes = used + self.spare[lane.index()].min(self.capacity - used);
        let marks = &mut self.marks[lane.index()];
        match marks.last_mut() {
            Some(last) if last.at == at && bytes >= last.bytes => last.bytes = bytes,
            _ => marks.push(MemoryMark { at, bytes }),
        }
    }

    /// Marks of every device.
    pub fn into_marks(self) -> Vec<Vec<MemoryMark>> {
        self.marks
    }
}
