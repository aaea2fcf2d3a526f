//! Sequences to the groups of one division: longest first to the group that would end first and has room, then moves and swaps that
//! let the slowest group end earlier.

use super::Sequence;
use super::costs::Costs;

/// Rounds of local search at most; each one ends with an earlier slowest group or stops.
const ROUNDS_MAX: usize = 200;

/// Group of every sequence, and when the slowest group ends.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) group_of: Vec<usize>,
    pub(super) slowest_s: f64,
}

struct State<'a> {
    sequences: &'a [Sequence],
    buckets: &'a [usize],
    division: &'a [u32],
    costs: &'a Costs,
    ends: Vec<f64>,
    room: Vec<u64>,
    group_of: Vec<usize>,
}

/// Longest first alone: when the slowest group would end; `None` where a sequence has no room, or the division cannot end before `limit`.
/// Sequences are sorted by length, longest first.
pub(super) fn dealt(
    sequences: &[Sequence],
    buckets: &[usize],
    division: &[u32],
    costs: &Costs,
    limit: f64,
) -> Option<f64> {
    let state = State::dealt(sequences, buckets, division, costs, limit)?;
    Some(state.ends.iter().copied().fold(0.0, f64::max))
}

/// Longest first, then moves and swaps.
pub(super) fn assign(sequences: &[Sequence], buckets: &[usize], division: &[u32], costs: &Costs) -> Option<Assigned> {
    let mut state = State::dealt(sequences, buckets, division, costs, f64::INFINITY)?;
    for _ in 0..ROUNDS_MAX {
        if !state.improve() {
            break;
        }
    }
    let slowest_s = state.ends.iter().copied().fold(0.0, f64::max);
    Some(Assigned { group_of: state.group_of, slowest_s })
}

impl<'a> State<'a> {
    fn dealt(
        sequences: &'a [Sequence],
        buckets: &'a [usize],
        division: &'a [u32],
        costs: &'a Costs,
        limit: f64,
    ) -> Option<Self> {
        let mut state = Self {
            sequences,
            buckets,
            division,
            costs,
            ends: vec![0.0; division.len()],
            room: division.iter().map(|&degree| costs.capacity * u64::from(degree)).collect(),
            group_of: Vec::with_capacity(sequences.len()),
        };
        for (at, &(_, tokens)) in sequences.iter().enumerate() {
            let (group, end_s) = state.soonest(at)?;
            state.ends[group] = end_s;
            state.room[group] -= tokens;
            state.group_of.push(group);
            if end_s > limit {
                return None;
            }
        }
        Some(state)
    }

    /// The group with room for a sequence that would end first with it, the first of equal ones, and when. Most of planning passes here, so what a sequence
    /// takes is asked once for all groups of a degree.
    fn soonest(&self, at: usize) -> Option<(usize, f64)> {
        let (tokens, mut best, mut from) = (self.sequences[at].1, None, 0);
        for alike in self.division.chunk_by(|a, b| a == b) {
            let seconds = self.seconds(at, from);
            for group in from..from + alike.len() {
                let end_s = self.ends[group] + seconds;
                if self.room[group] >= tokens && best.is_none_or(|(_, least_s)| end_s < least_s) {
                    best = Some((group, end_s));
                }
            }
            from += alike.len();
        }
        best
    }

    fn seconds(&self, at: usize, group: usize) -> f64 {
        self.costs.on(self.buckets[at], self.division[group])
    }

    fn end(&self, at: usize, group: usize) -> f64 {
        self.ends[group] + self.seconds(at, group)
    }

    /// Moves a sequence out of the slowest group, or swaps it with one of another group, if the later of both groups then ends earlier.
    fn improve(&mut self) -> bool {
        let slowest = (0..self.ends.len()).max_by(|&a, &b| self.ends[a].total_cmp(&self.ends[b])).expect("a group");
        let before = self.ends[slowest];
        let mut best: Option<(f64, usize, usize, Option<usize>)> = None;
        let mut seen: Vec<usize> = Vec::new();
        for at in (0..self.group_of.len()).filter(|&at| self.group_of[at] == slowest) {
            // Sequences of one bucket are alike.
            if seen.contains(&self.buckets[at]) {
                continue;
            }
            seen.push(self.buckets[at]);
            let gone = before - self.seconds(at, slowest);
            for group in (0..self.ends.len()).filter(|&group| group != slowest) {
                let after = gone.max(self.end(at, group));
                let fits = self.room[group] >= self.sequences[at].1;
                if fits && after < before * (1.0 - 1e-9) && best.as_ref().is_none_or(|(least, ..)| after < *least) {
                    best = Some((after, at, group, None));
                }
            }
            self.swaps(at, slowest, &mut best);
        }
        let Some((_, at, group, back)) = best else { return false };
        // Both leave before either arrives: a swap needs no room for both.
        let moves = [Some((at, slowest, group)), back.map(|back| (back, group, slowest))];
        for (at, from, _) in moves.into_iter().flatten() {
            self.ends[from] -= self.seconds(at, from);
            self.room[from] += self.sequences[at].1;
        }
        for (at, _, to) in moves.into_iter().flatten() {
            self.ends[to] += self.seconds(at, to);
            self.room[to] -= self.sequences[at].1;
            self.group_of[at] = to;
        }
        true
    }

    fn swaps(&self, at: usize, slowest: usize, best: &mut Option<(f64, usize, usize, Option<usize>)>) {
        let before = self.ends[slowest];
        let tokens = self.sequences[at].1;
        for (other, &group) in self.group_of.iter().enumerate().filter(|(_, group)| **group != slowest) {
            let other_tokens = self.sequences[other].1;
            let here = before - self.seconds(at, slowest) + self.seconds(other, slowest);
            let there = self.end(at, group) - self.seconds(other, group);
            let fits = self.room[group] + other_tokens >= tokens && self.room[slowest] + tokens >= other_tokens;
            let after = here.max(there);
            if fits && after < before * (1.0 - 1e-9) && best.as_ref().is_none_or(|(least, ..)| after < *least) {
                *best = Some((after, at, group, Some(other)));
            }
        }
    }
}
