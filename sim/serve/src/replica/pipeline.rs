//! Rounds of a pipeline one behind the other: when the micro-batches of a round leave the last stage, and what the next round waits for.
//!
//! The next round starts while batches of this one are still in the stages, and no batch overtakes another (`step_cost/transit.rs`). So a replica keeps when
//! the last chunk that entered leaves the last stage. A sequence has its tokens as much later than the ends of rounds as its batch came behind the first
//! one. Where a round was held up by what is ahead of it, its first batches wait for the last ones of the round before, and those lag less.
//! A place and its blocks come free when the last token has left the last stage. Whoever takes them is composed with the next round, and enters no earlier than that.
//! Units: ticks. A batch that only decodes behind others like it waits for none of them, so spans need no such book.

use super::going::Going;
use super::{Replica, Slot};
use crate::step_cost::Round;
use crate::step_cost::transit::Transit;
use hw::Tick;

/// What a replica knows of its pipeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipeline {
    /// Micro-batches of the round under way, where that has chunks; none with one stage.
    transits: Vec<Transit>,
    /// Ticks from the start of that round's first batch until the next round's first one may start.
    turn: Tick,
    /// When the last chunk that entered in an earlier round leaves the last stage.
    drained: Tick,
    /// Ticks for which rounds were held up so far.
    held_up: Tick,
    /// Places that were given up, the first that came free first.
    places: Vec<Place>,
    /// Slots that took a place since the last round began, and when that came free.
    taken: Vec<(u32, Tick)>,
}

/// Micro-batches of a round that have chunks of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    /// Micro-batches ahead of the first of them.
    pub(super) n_before: u32,
    /// The same with all of them.
    pub(super) n: u32,
    /// Ticks that the prompt entered before the round, below zero where it entered later.
    pub(super) early: i64,
}

/// The place of a sequence whose last token is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// When that has left the last stage.
    free: Tick,
    /// Its blocks.
    blocks: u32,
}

/// How much later than the ends of rounds a sequence has its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lag {
    /// Ticks, below zero where its batch entered before its round.
    pub(super) ticks: i64,
    /// Ticks for which rounds had been held up when that was so.
    since: Tick,
}

impl Lag {
    /// The same when rounds have been held up for so many ticks.
    pub(super) fn at(self, held_up: Tick) -> i64 {
        if self.ticks <= 0 { self.ticks } else { self.ticks.saturating_sub((held_up - self.since).signed()).max(0) }
    }
}

impl Pipeline {
    /// Ticks for which rounds were held up so far.
    pub(super) const fn held_up(&self) -> Tick {
        self.held_up
    }

    /// Ticks from a moment until what entered before has left the last stage.
    pub(super) const fn ahead(&self, now: Tick) -> Tick {
        self.drained.saturating_sub(now)
    }

    /// Nothing is in the stages any more.
    pub(super) fn stop(&mut self) {
        self.drained = Tick::ZERO;
        self.places.clear();
        self.taken.clear();
    }

    /// A round has begun: whoever joins the next one enters no earlier than now.
    pub(super) fn forget_places(&mut self, now: Tick) {
        self.taken.clear();
        self.places.retain(|place| place.free > now);
    }

    /// When the first so many of the places that were given up are free, and as many of them as had so many blocks together.
    fn free_at(&self, n: usize, blocks: u64) -> Tick {
        let (mut before, mut free) = (0, Tick::ZERO);
        for (index, place) in self.places.iter().enumerate() {
            if index >= n && before >= blocks {
                break;
            }
            (before, free) = (before + u64::from(place.blocks), place.free);
        }
        free
    }

    /// When the place came free that a slot has taken.
    fn free_of(&self, id: u32) -> Tick {
        self.taken.iter().find(|(taker, _)| *taker == id).map_or(Tick::ZERO, |(_, free)| *free)
    }

    /// A round with chunks starts.
    pub(super) fn enter(&mut self, round: Round) {
        self.held_up += round.held_up;
        (self.transits, self.turn) = (round.transits, round.turn);
    }

    /// A round has ended whose last prompt passed so.
    pub(super) fn drain(&mut self, passed: Passed, [start, end]: [Tick; 2]) {
        self.drained = end.shifted(self.left(passed, start));
    }

    /// Micro-batches from the first on, so many of them, as if they were one.
    fn first(&self, n: u32) -> Transit {
        self.transits.iter().take(n as usize).copied().fold(Transit::default(), Transit::and)
    }

    /// Ticks from the end of the round that started then until a prompt has left the last stage with the last of its micro-batches.
    fn left(&self, Passed { n_before, n, early }: Passed, start: Tick) -> i64 {
        let all = self.first(n);
        let late = early.saturating_neg().saturating_sub(self.first(n_before).pace.signed()).max(0);
        let by_itself = (all.pace + all.fill).saturating_sub(self.turn).signed() - early.max(0) + late;
        let behind = (self.drained + all.pace).signed() - (start + self.turn).signed();
        by_itself.max(behind)
    }
}

impl Replica<'_> {
    /// Ticks from the end of a round to the moment at which a sequence's micro-batch is through.
    pub(super) fn lag(&self, slot: &Slot) -> i64 {
        slot.lag.at(self.pipeline.held_up)
    }

    /// Whether micro-batches follow each other through stages and come back.
    pub(super) const fn has_rounds(&self) -> bool {
        self.engine.table.lanes().stages > 1
    }

    /// A sequence with so many blocks gives its place up at the end of a round.
    pub(super) fn give_place(&mut self, id: u32, blocks: u32, now: Tick) {
        if self.has_rounds() {
            let place = Place { free: now.shifted(self.lag(&self.slots[id as usize])), blocks };
            let at = self.pipeline.places.partition_point(|other| *other <= place);
            self.pipeline.places.insert(at, place);
        }
    }

    /// When the place and so many blocks come free that whoever is admitted next takes; 0 blocks are those that it has.
    pub(super) fn place_free(&self, blocks: u32) -> Tick {
        let places = &self.pipeline.places;
        if places.is_empty() {
            return Tick::ZERO;
        }
        let given: u64 = places.iter().map(|place| u64::from(place.blocks)).sum();
        let n_free = self.sequences_max().saturating_sub(self.n_running()) as usize;
        let asked = if blocks == 0 { 0 } else { given + u64::from(blocks) };
        self.pipeline
            .free_at((places.len() + 1).saturating_sub(n_free), asked.saturating_sub(self.pool.available().into()))
    }

    /// A slot has taken the place that came free then.
    pub(super) fn take_place(&mut self, id: u32, free: Tick) {
        if free > Tick::ZERO {
            self.pipeline.taken.push((id, free));
        }
    }

    /// How much later than rounds a sequence has its tokens that decodes from now on in the place that came free then.
    pub(super) fn lag_in_place(&self, free: Tick, now: Tick) -> Lag {
        Lag { ticks: free.saturating_sub(now).signed(), since: self.pipeline.held_up }
    }

    /// When a prompt enters the stages that is composed now: as its request came, where that was during the round before, and no earlier than its place is free.
    pub(super) fn entry(&self, id: u32, now: Tick) -> Tick {
        let slot = &self.slots[id as usize];
        let came = self.newcomers.iter().find(|(request, _)| *request == slot.request).map_or(now, |(_, entry)| *entry);
        if slot.generated == 0 { came.max(self.pipeline.free_of(id)) } else { came }
    }

    /// When a request that comes now may enter during the round that began and ends then, the first of whose micro-batches have chunks, so many of them; none before
    /// the next round.
    pub(super) fn next_entry(&self, now: Tick, [start, end]: [Tick; 2], n_filled: u32) -> Option<Tick> {
        let n_stages = u64::from(self.engine.table.lanes().stages);
        let mut entry = start;
        let (mut n, paces) = (0, self.paces(end - start));
        for pace in paces {
            if n >= n_filled && entry >= now {
                return Some(entry).filter(|entry| *entry < end);
            }
            (n, entry) = (n + 1, entry + pace);
        }
        (u64::from(n) < n_stages).then(|| entry.max(now)).filter(|entry| *entry < end)
    }

    /// Ticks that the first stage has each micro-batch of the round under way, which takes so long. What all micro-batches take besides their tokens is spread over them.
    fn paces(&self, elapsed: Tick) -> Vec<Tick> {
        let lanes = self.engine.table.lanes();
        let n_stages = u64::from(lanes.stages);
        if self.composed.chunks.is_empty() {
            return vec![elapsed / n_stages; lanes.in_flight(self.n_decode) as usize];
        }
        let besides = elapsed.saturating_sub(self.pipeline.turn) / n_stages;
        let with_tokens = self.pipeline.transits.iter().filter(|transit| transit.pace > Tick::ZERO);
        with_tokens.map(|transit| transit.pace + besides).collect()
    }

    /// A prompt ended in a round that started then. A sequence that was computed again does not lag less than before: no client sees a later token before an earlier
    /// one.
    pub(super) fn lag_behind(&mut self, id: u32, passed: Passed, start: Tick) {
        if !self.has_rounds() {
            return;
        }
        let slot = self.slots[id as usize];
        let left = self.pipeline.left(passed, start);
        let ticks = if slot.generated == 0 { left } else { left.max(self.lag(&slot)) };
        self.slots[id as usize].lag = Lag { ticks, since: self.pipeline.held_up };
    }

    /// An iteration or span that only decodes, which waits for the chunks of earlier rounds. Behind these, it waits for nothing.
    pub(super) fn behind_chunks(&mut self, going: Going) -> Going {
        let first = going.end_of(1) - going.start;
        let stage = self.engine.table.on_slowest(first);
        let held_up = (self.pipeline.ahead(going.start) + stage).saturating_sub(first);
        if held_up == Tick::ZERO {
            return going;
        }
        self.pipeline.held_up += held_up;
        let (part, whole) = going.stage_share;
        let stage_share = (first.share(part, whole).get(), (first + held_up).get());
        Going { n_steps: 1, fixed: going.fixed + held_up, least: going.least + held_up, stage_share, ..going }
    }
}
