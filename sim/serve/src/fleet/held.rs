//! A held number of requests in flight, as benchmark clients keep it: so many are sent together, and the next one when one has ended.
//!
//! A client counts from the moment at which it sends; the engine sees the request when a frontend is done with it (connection, checks, text
//! to tokens). That varies: an exponential draw for every request. The spread parts requests that ended
//! together. A request that follows another one misses the iteration that begins as the other ends, as it does in life.
//! Arrivals are an outcome here, so the requests come back as they were sent. Units: ticks inside, `Time` outside.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::random::{self, Stream};
use hw::Seconds;

use super::ends::IDLE;
use super::run::{Run, Waiter};
use super::{Fleet, Served};
use crate::replica::Engine;
use crate::request::Requests;
use crate::router::Router;
use crate::step_cost::{ticks_of, time_of};

/// A load of so many requests in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Requests in flight; at least one.
    pub in_flight: u32,
    /// Mean time from the client's sending to the engine's queue.
    pub start: Seconds,
    /// Seed of its draws.
    pub seed: u64,
}

/// Who sends the next request when one has ended.
struct Client<'r> {
    requests: &'r Requests,
    in_flight: u64,
    start_s: f64,
    draws: Stream,
    /// Ticks at which requests were sent, in their order.
    sent: Vec<u64>,
    /// Requests that the engine has not seen, by the tick at which it does.
    on_the_way: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Client<'_> {
    /// Sends as many as are missing where `n_ended` have ended.
    fn send(&mut self, n_ended: u64, now: u64) {
        let most = n_ended + self.in_flight;
        while self.sent.len() < self.requests.len() && (self.sent.len() as u64) < most {
            let request = u32::try_from(self.sent.len()).expect("fewer than 2^32 requests");
            let start = ticks_of(Seconds::new(self.start_s * self.draws.exponential()));
            self.on_the_way.push(Reverse((now + start, request)));
            self.sent.push(now);
        }
    }

    /// Tick at which the engine sees the next request.
    fn next(&self) -> u64 {
        self.on_the_way.peek().map_or(IDLE, |Reverse((tick, _))| *tick)
    }
}

impl Run<'_, '_> {
    /// Serves everything with so many requests in flight; when each was sent.
    fn play_held(mut self, held: Held) -> (Vec<u64>, Served) {
        let mut client = Client {
            requests: self.requests,
            in_flight: u64::from(held.in_flight.max(1)),
            start_s: held.start.get(),
            draws: random::stream(held.seed, "starts of requests"),
            sent: Vec::new(),
            on_the_way: BinaryHeap::new(),
        };
        client.send(0, 0);
        loop {
            let (event, arrival) = (self.next_tick(), client.next());
            if event < arrival {
                self.next_event(arrival);
                client.send(self.n_ended(), event);
            } else if let Some(Reverse((now, request))) = client.on_the_way.pop() {
                self.dispatch(Waiter { request, again: None }, now);
                // A request that nobody can hold is answered at once.
                client.send(self.n_ended(), now);
            } else {
                return (client.sent, self.end());
            }
        }
    }
}

/// The requests as they were sent, and what was served.
fn as_sent(requests: &Requests, (sent, served): (Vec<u64>, Served)) -> (Requests, Served) {
    let mut requests = requests.clone();
    for (request, tick) in requests.list.iter_mut().zip(sent) {
        request.arrival = time_of(tick);
    }
    (requests, served)
}

impl Fleet {
    /// Serves all requests, in their order, with so many in flight; arrivals that they have are not asked. The requests come back with the
    /// moments at which they were sent.
    ///
    /// # Panics
    /// When there is no replica.
    #[must_use]
    pub fn serve_held(&self, requests: &Requests, router: &mut dyn Router, held: Held) -> (Requests, Served) {
        let mut group_of = Vec::new();
        for (index, group) in (0..).zip(&self.groups) {
            group_of.extend(std::iter::repeat_n(index, group.n_replicas as usize));
        }
        let engines: Vec<&Engine> = group_of.iter().map(|group: &u32| &self.groups[*group as usize].engine).collect();
        as_sent(requests, Run::new(requests, &engines, group_of, self, router).play_held(held))
    }
}

#[cfg(test)]
mod tests;
