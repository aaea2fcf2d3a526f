//! Event queue: (time, insertion order), so that equal times leave first in, first out.
//!
//! Time, sequence and slot are packed into one `u128` (64, 32, 32 bits), which the standard heap orders in one
//! comparison. Invariant: fewer than 2^32 events are ever pushed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hw::Time;

/// An event as it leaves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Time,
    /// Its insertion number.
    pub sequence: u32,
    /// What it concerns, as the caller numbers it.
    pub slot: u32,
}

/// Queue of events.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<u128>>,
    pushed: u32,
}

impl Queue {
    /// A queue with room for `n` events.
    pub fn with_capacity(n: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(n), pushed: 0 }
    }

    /// Adds an event and returns its insertion number.
    ///
    /// # Panics
    /// After 2^32 events.
    pub fn push(&mut self, at: Time, slot: u32) -> u32 {
        let sequence = self.pushed;
        self.pushed = sequence.checked_add(1).expect("fewer than 2^32 events in one simulation");
        self.heap.push(Reverse(u128::from(at.as_ns()) << 64 | u128::from(sequence) << 32 | u128::from(slot)));
        sequence
    }

    /// Removes the earliest event.
    #[expect(clippy::cast_possible_truncation, reason = "each part is cut out of its own bits")]
    pub fn pop(&mut self) -> Option<Event> {
        let Reverse(packed) = self.heap.pop()?;
        Some(Event { at: Time::from_ns((packed >> 64) as u64), sequence: (packed >> 32) as u32, slot: packed as u32 })
    }

    /// Time of the earliest event.
    pub fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(packed)| Time::from_ns((packed >> 64) as u64))
    }

    /// Number of pending events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_leave_in_insertion_order() {
        let mut queue = Queue::default();
        for (at, slot) in [(5, 1), (3, 2), (5, 3), (3, 4), (u64::MAX, 5)] {
            queue.push(Time::from_ns(at), slot);
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|event| event.slot).collect();
        assert_eq!(order, [2, 4, 1, 3, 5]);
    }
}
