//! Temporal graphs: T-CSR, its conversion from events, and neighbours strictly before a moment (TF-TGN, arXiv:2409.05477, and its release).
//!
//! A slot has a neighbour, a time and the id of its edge; rows are ordered by (time, edge id, direction), so ties have one order on any number
//! of threads. Bytes with 64-bit fields: 8 (V + 1) + 24 slots. All four steps of the conversion are parallel: counts by atomic adds, offsets
//! by a scan of chunks, slots by atomic cursors, and a sort of every row.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::random::Stream;
use rayon::prelude::*;
use thiserror::Error;

use crate::csr::index;
use crate::host::{HostCosts, Job, log2};

/// Rows longer than this are sorted by all threads together.
const LONG_ROW: usize = 1 << 16;

/// An edge at a moment; its position in the list of events is its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// First end.
    pub source: u32,
    /// Second end.
    pub target: u32,
    /// When, in the data's own unit.
    pub time: u64,
}

/// Whether an event is a slot of its source alone, or of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reverse {
    /// Of the source.
    Without,
    /// Of both.
    With,
}

/// Why events are no temporal graph.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum EventError {
    /// An event names a vertex that is none.
    #[error("event {event} (counted from 0) names vertex {vertex}, the graph has {n_vertices}")]
    Beyond { event: u64, vertex: u32, n_vertices: u32 },
}

/// Temporal graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TCsr {
    offsets: Vec<u64>,
    /// Neighbour of each slot.
    pub neighbours: Vec<u32>,
    /// Time of each slot.
    pub times: Vec<u64>,
    /// Edge id of each slot.
    pub edges: Vec<u64>,
}

/// A neighbour that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Neighbour.
    pub neighbour: u32,
    /// When.
    pub time: u64,
    /// Edge id.
    pub edge: u64,
}

/// Which neighbours of the past are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The most recent ones, in the order of time.
    Recent,
    /// Distinct ones at random, in the order of time.
    Random,
}

impl TCsr {
    /// Converts events in any order; their positions are the ids of edges.
    ///
    /// # Errors
    /// When an event names a vertex that is not there.
    pub fn convert(n_vertices: u32, events: &[Event], reverse: Reverse) -> Result<Self, EventError> {
        check_events(n_vertices, events)?;
        let counts = counted(n_vertices, events, reverse);
        let mut offsets: Vec<u64> = counts.into_par_iter().map(AtomicU64::into_inner).collect();
        scan(&mut offsets);
        let mut codes = scattered(&offsets, events, reverse);
        sort_rows(&offsets, &mut codes, events);
        let side = |&code: &u64| event_of(code, events);
        Ok(Self {
            neighbours: codes.par_iter().map(|code| other_end(*code, events)).collect(),
            times: codes.par_iter().map(|code| side(code).time).collect(),
            edges: codes.par_iter().map(|code| code / 2).collect(),
            offsets,
        })
    }

    /// Vertices.
    pub fn n_vertices(&self) -> u32 {
        u32::try_from(self.offsets.len() - 1).expect("vertices have ids below 2^32")
    }

    /// First slots of the rows, and the number of slots.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Slots of a vertex.
    pub fn degree(&self, vertex: u32) -> u64 {
        self.offsets[vertex as usize + 1] - self.offsets[vertex as usize]
    }

    /// Slots of a vertex with a time before `time`.
    pub fn before(&self, vertex: u32, time: u64) -> std::ops::Range<usize> {
        let (begin, end) = (index(self.offsets[vertex as usize]), index(self.offsets[vertex as usize + 1]));
        begin..begin + self.times[begin..end].partition_point(|&at| at < time)
    }

    /// Up to `k` neighbours strictly before `time`, in the order of time: O(log d + k), the past is sliced and not copied.
    pub fn sample(&self, vertex: u32, time: u64, k: usize, take: Take, stream: Stream) -> Vec<Past> {
        let past = self.before(vertex, time);
        let slots: Vec<usize> = match take {
            Take::Recent => (past.end.saturating_sub(k).max(past.start)..past.end).collect(),
            Take::Random => {
                let mut picked = Vec::with_capacity(k);
                crate::sample::distinct(past.len() as u64, k, stream, &mut picked);
                picked.sort_unstable();
                picked.into_iter().map(|position| past.start + index(position)).collect()
            }
        };
        slots.into_iter().map(|slot| self.past(slot)).collect()
    }

    fn past(&self, slot: usize) -> Past {
        Past { neighbour: self.neighbours[slot], time: self.times[slot], edge: self.edges[slot] }
    }

    /// Samples for many (vertex, time), in parallel and in their order; query number i draws from branch i.
    pub fn sample_all(&self, queries: &[(u32, u64)], k: usize, take: Take, stream: &Stream) -> Vec<Vec<Past>> {
        let one =
            |(at, &(vertex, time)): (usize, &(u32, u64))| self.sample(vertex, time, k, take, stream.branch(at as u64));
        queries.par_iter().enumerate().map(one).collect()
    }

    /// Lengths of the rows and how many have each.
    pub fn row_lengths(&self) -> Vec<(f64, f64)> {
        let mut lengths: Vec<u64> = (0..self.n_vertices()).map(|vertex| self.degree(vertex)).collect();
        lengths.sort_unstable();
        let of = |same: &[u64]| (hw::real(same[0]), hw::real(same.len() as u64));
        lengths.chunk_by(|a, b| a == b).map(of).collect()
    }

    /// Bytes with fields of 64 bits.
    pub const fn bytes(n_vertices: u64, n_slots: u64) -> u64 {
        8 * (n_vertices + 1) + 24 * n_slots
    }
}

fn check_events(n_vertices: u32, events: &[Event]) -> Result<(), EventError> {
    for (at, event) in events.iter().enumerate() {
        let vertex = event.source.max(event.target);
        if vertex >= n_vertices {
            return Err(EventError::Beyond { event: at as u64, vertex, n_vertices });
        }
    }
    Ok(())
}

/// Step 1: slots of every vertex, at the place behind it.
fn counted(n_vertices: u32, events: &[Event], reverse: Reverse) -> Vec<AtomicU64> {
    let counts: Vec<AtomicU64> = (0..=n_vertices).map(|_| AtomicU64::new(0)).collect();
    events.par_iter().for_each(|event| {
        counts[event.source as usize + 1].fetch_add(1, Ordering::Relaxed);
        if reverse == Reverse::With {
            counts[event.target as usize + 1].fetch_add(1, Ordering::Relaxed);
        }
    });
    counts
}

/// Step 2: running sums; every chunk adds up by itself, then what stands before it is added.
fn scan(counts: &mut [u64]) {
    let chunk = counts.len().div_ceil(rayon::current_num_threads().max(1)).max(1);
    counts.par_chunks_mut(chunk).for_each(crate::csr::add_up);
    let mut before = 0;
    let ends: Vec<u64> = counts.chunks(chunk).map(|part| *part.last().expect("chunks are not empty")).collect();
    let starts: Vec<u64> = ends
        .into_iter()
        .map(|end| {
            let start = before;
            before += end;
            start
        })
        .collect();
    counts.par_chunks_mut(chunk).zip(starts).for_each(|(part, start)| part.iter_mut().for_each(|sum| *sum += start));
}

/// Step 3: a code for every slot, twice the event and one more in reverse; the order inside a row is that of arrival.
fn scattered(offsets: &[u64], events: &[Event], reverse: Reverse) -> Vec<u64> {
    let n_slots = *offsets.last().expect("a graph has offsets");
    let cursors: Vec<AtomicU64> = offsets.iter().map(|&offset| AtomicU64::new(offset)).collect();
    let slots: Vec<AtomicU64> = (0..n_slots).map(|_| AtomicU64::new(0)).collect();
    events.par_iter().enumerate().for_each(|(at, event)| {
        let code = 2 * at as u64;
        let slot = cursors[event.source as usize].fetch_add(1, Ordering::Relaxed);
        slots[index(slot)].store(code, Ordering::Relaxed);
        if reverse == Reverse::With {
            let slot = cursors[event.target as usize].fetch_add(1, Ordering::Relaxed);
            slots[index(slot)].store(code + 1, Ordering::Relaxed);
        }
    });
    slots.into_par_iter().map(AtomicU64::into_inner).collect()
}

/// Step 4: every row in the order of (time, edge id, direction).
fn sort_rows(offsets: &[u64], codes: &mut [u64], events: &[Event]) {
    let mut rows = Vec::with_capacity(offsets.len());
    let mut rest = codes;
    for pair in offsets.windows(2) {
        let (row, after) = rest.split_at_mut(index(pair[1] - pair[0]));
        rows.push(row);
        rest = after;
    }
    rows.into_par_iter().for_each(|row| {
        if row.len() > LONG_ROW {
            row.par_sort_unstable_by_key(|&code| (event_of(code, events).time, code));
        } else {
            row.sort_unstable_by_key(|&code| (event_of(code, events).time, code));
        }
    });
}

fn event_of(code: u64, events: &[Event]) -> &Event {
    &events[index(code / 2)]
}

fn other_end(code: u64, events: &[Event]) -> u32 {
    let event = event_of(code, events);
    if code.is_multiple_of(2) { event.target } else { event.source }
}

/// Seconds to convert a graph of these row lengths on so many threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conversion {
    /// All steps.
    pub seconds: f64,
    /// What no number of threads is below: the counter, the cursor and the sort of the largest row.
    pub hub_s: f64,
}

/// Cost of a conversion on so many threads. The adds to one counter follow each other, and a row is sorted by one thread (long ones by all, which the
/// bound leaves out).
pub fn conversion(row_lengths: &[(f64, f64)], threads: u32, costs: &HostCosts) -> Conversion {
    let job = Job::convert(row_lengths);
    let [read_s, item_s] = costs.unit_s(&job);
    let n_vertices: f64 = row_lengths.iter().map(|(_, count)| count).sum();
    let longest = row_lengths.iter().map(|(length, _)| *length).fold(0.0, f64::max);
    let p = f64::from(threads);
    let step = |work: f64, hub: f64| (work / p).max(hub);
    // Two passes over the slots; every second read is of one of them.
    let adds = 2.0 * step(job.reads / 2.0 * read_s, longest * item_s);
    let sort = step((job.items - n_vertices) * item_s, longest * log2(longest) * item_s);
    let seconds = adds + n_vertices * item_s / p + sort;
    Conversion { seconds, hub_s: 2.0 * longest * item_s + longest * log2(longest) * item_s }
}

#[cfg(test)]
mod tests;
