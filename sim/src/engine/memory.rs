//! Memory of each device while tasks run; an allocation that does not fit is named.
//!
//! Bytes in use never go below zero: freeing what was not allocated is a bug of the lowering.

use hw::{Rank, Time};

use crate::task::{LabelId, TaskGraph};
use crate::timeline::MemoryMark;

/// An allocation that did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Device.
    pub rank: Rank,
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
    marks: Vec<Vec<MemoryMark>>,
}

impl Memory {
    /// Devices of `capacity` bytes holding what the graph says is resident.
    ///
    /// # Errors
    /// When the resident part alone does not fit.
    pub fn new(graph: &TaskGraph, capacity: u64) -> Result<Self, Overflow> {
        let n_ranks = graph.n_ranks as usize;
        let mut memory = Self { capacity, used: vec![0; n_ranks], marks: vec![Vec::new(); n_ranks] };
        for (rank, resident) in (0..graph.n_ranks).map(Rank).zip(&graph.resident) {
            for &(label, bytes) in resident {
                memory.allocate(rank, label, bytes, Time::ZERO)?;
            }
        }
        Ok(memory)
    }

    /// Takes memory.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn allocate(&mut self, rank: Rank, label: LabelId, bytes: u64, at: Time) -> Result<(), Overflow> {
        let used = self.used[rank.index()];
        let free = self.capacity - used;
        if bytes > free {
            return Err(Overflow { rank, label, needed: bytes, free });
        }
        self.set(rank, used + bytes, at);
        Ok(())
    }

    /// Gives memory back.
    ///
    /// # Panics
    /// When more is freed than is in use.
    pub fn free(&mut self, rank: Rank, bytes: u64, at: Time) {
        let used = self.used[rank.index()];
        assert!(bytes <= used, "rank {} frees {bytes} bytes of {used}", rank.0);
        self.set(rank, used - bytes, at);
    }

    /// Marks of equal time are kept as two at most, the highest and the last, so that peaks survive.
    fn set(&mut self, rank: Rank, bytes: u64, at: Time) {
        self.used[rank.index()] = bytes;
        let marks = &mut self.marks[rank.index()];
        match marks.last_mut() {
            Some(last) if last.at == at && bytes >= last.bytes => last.bytes = bytes,
            _ => marks.push(MemoryMark { at, bytes }),
        }
    }

    /// Marks of every device.
    #[must_use]
    pub fn into_marks(self) -> Vec<Vec<MemoryMark>> {
        self.marks
    }
}
