//! A held number of requests in flight, as benchmark clients keep it: so many are sent together, and the next one when one has ended.
//!
//! A client counts from the moment at which it sends; the engine sees the request `start` later (connection, checks, text to tokens). A
//! request that follows another one therefore misses the iteration that begins as the other ends, as it does in life. Arrivals are
//! an outcome here, so the requests come back as they were sent. Units: ticks inside, `Time` outside.

use std::collections::VecDeque;

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
    /// From the client's sending to the engine's queue.
    pub start: Seconds,
}

/// Who sends the next request when one has ended.
struct Client {
    in_flight: u64,
    start: u64,
    /// Ticks at which requests were sent, in their order.
    sent: Vec<u64>,
    /// Requests that the engine has not seen, with the tick at which it does.
    on_the_way: VecDeque<(u64, u32)>,
}

impl Client {
    /// Sends as many as are missing; `n` are there in all, `n_ended` have ended.
    fn send(&mut self, n: u64, n_ended: u64, now: u64) {
        while (self.sent.len() as u64) < n.min(n_ended + self.in_flight) {
            let request = u32::try_from(self.sent.len()).expect("fewer than 2^32 requests");
            self.on_the_way.push_back((now + self.start, request));
            self.sent.push(now);
        }
    }
}

impl Run<'_, '_> {
    /// Serves everything with so many requests in flight; when each was sent.
    fn play_held(mut self, held: Held) -> (Vec<u64>, Served) {
        let n = self.requests.len() as u64;
        let (in_flight, start) = (u64::from(held.in_flight.max(1)), ticks_of(held.start));
        let mut client = Client { in_flight, start, sent: Vec::new(), on_the_way: VecDeque::new() };
        client.send(n, 0, 0);
        loop {
            let arrival = client.on_the_way.front().map_or(IDLE, |(tick, _)| *tick);
            let event = self.next_tick();
            if event < arrival {
                self.next_event(arrival);
                client.send(n, self.n_ended(), event);
            } else if let Some((now, request)) = client.on_the_way.pop_front() {
                self.dispatch(Waiter { request, again: None }, now);
                // A request that nobody can hold is answered at once.
                client.send(n, self.n_ended(), now);
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
