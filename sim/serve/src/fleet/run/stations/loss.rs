//! A station is lost: its memory is gone, and every request with a path over it goes again by another one.
//!
//! Tokens that clients have are not given again: a request goes on from its prompt and what was generated, which is computed anew along the
//! new path; what other stations of the old path had cached is let go. Paths avoid stations that do not take new requests, and those from
//! which none that does leads on. Invariant: afterwards nothing that is lost is in a queue, a batch, on a hop or in a cache.

use super::super::Run;
use super::super::control::State;
use super::{Stations, small};
use crate::fleet::ends::{Ends, IDLE};
use hw::Tick;

impl Stations<'_> {
    /// Loses a station; returns how many requests go again.
    fn lose(&mut self, node: usize, now: Tick, ends: &mut Ends) -> u64 {
        let over: Vec<usize> = (0..self.active.len()).filter(|&request| self.is_over(request, node)).collect();
        for &request in &over {
            self.restart(request, now);
        }
        self.rest(node, now);
        let station = &mut self.stations[node];
        assert!(station.batch.is_empty() && station.cached == 0, "everyone who was here goes again");
        (station.layer, station.received) = (0, 0);
        ends.set(small(node), IDLE);
        for &request in over.iter().rev() {
            self.waiting.push_front(small(request));
        }
        over.len() as u64
    }

    fn is_over(&self, request: usize, node: usize) -> bool {
        self.active[request].path.iter().any(|&hop| self.pool.hops[hop].to == Some(node))
    }

    /// Takes a request off its path; it asks for another one, with all its tokens.
    fn restart(&mut self, request: usize, now: Tick) {
        for hop in self.active[request].path.clone() {
            self.wires[hop].waiting.retain(|other| *other as usize != request);
            let Some(node) = self.pool.hops[hop].to else { continue };
            let station = &mut self.stations[node];
            station.batch.retain(|other| *other as usize != request);
            station.queues.iter_mut().for_each(|queue| queue.retain(|other| *other as usize != request));
        }
        self.let_go(request, now);
        let active = &mut self.active[request];
        active.epoch += 1;
        // The token of the round under way is not there yet.
        let generated = active.output.saturating_sub(active.left + 1);
        (active.tokens, active.context) = (active.prompt + generated, 0);
        (active.at, active.n_cached) = (0, 0);
        (active.is_prompt, active.is_again) = (true, true);
    }

    /// Hops that new paths may take, where some stations take no new requests.
    fn usable(&self, is_up: impl Fn(usize) -> bool) -> Vec<bool> {
        let hops = &self.pool.hops;
        let is_there = |end: Option<usize>| end.is_none_or(&is_up);
        let mut usable: Vec<bool> = hops.iter().map(|hop| is_there(hop.from) && is_there(hop.to)).collect();
        loop {
            // A hop to a station from which nothing leads on is of no use.
            let leads_on = |to: usize| (0..hops.len()).any(|next| usable[next] && hops[next].from == Some(to));
            let dead: Vec<usize> =
                (0..hops.len()).filter(|&hop| usable[hop] && hops[hop].to.is_some_and(|to| !leads_on(to))).collect();
            if dead.is_empty() {
                return usable;
            }
            dead.into_iter().for_each(|hop| usable[hop] = false);
        }
    }
}

impl Run<'_, '_> {
    /// Finds which hops new paths may take.
    pub(in crate::fleet) fn find_ways(&mut self) {
        let Some(stations) = &mut self.stations else { return };
        let control = &self.control;
        let usable = stations.usable(|node| control.state(node) == State::Up);
        stations.paths.limit_to(&usable);
    }

    /// A station is lost, and the requests over it are to look for other paths.
    pub(in crate::fleet) fn lose_station(&mut self, node: u32, now: Tick) {
        let Some(stations) = &mut self.stations else { return };
        self.control.changes.n_retried += stations.lose(node as usize, now, &mut self.ends);
    }

    /// Requests without a path look for one.
    pub(in crate::fleet) fn admit_to_stations(&mut self, now: Tick) {
        if let Some(stations) = &mut self.stations {
            stations.admit(now);
        }
    }
}
