//! Users who wait for their answers: a held number of requests in flight, as benchmark clients keep it, and sessions of several turns.
//!
//! A user sends a request, waits for its end, pauses, and sends the next turn of the session, or the first one of the next session. Without
//! sessions and pauses that is a number of requests in flight: so many are sent together, and the next one when one has ended. Where sessions
//! arrive by themselves, each has a user of its own.
//!
//! A client counts from the moment at which it sends; the engine sees the request when a frontend is done with it (`start.rs`). A request that follows
//! another one at once misses the iteration that begins as the other ends, as it does in life.
//! Arrivals are an outcome here, so the requests come back as they were sent. Units: ticks inside, `Time` outside.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hw::{Seconds, Tick, Time};

use super::ends::IDLE;
use super::run::Run;
use super::start::OnTheWay;
use super::{Fleet, Rules, Served};
use crate::request::{Request, Requests};

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Users {
    /// So many, at least one; each takes the next session when its own has ended. They begin one after another during the ramp.
    Held {
        /// How many.
        n: u32,
        /// Time in which all begin.
        ramp: Seconds,
        /// Sessions that all end before another begins; 0 where nobody warms up. Behind them all users go on together.
        warm_up: u32,
    },
    /// One for each session, who begins when its first request arrives.
    OfSessions,
}

impl Users {
    /// So many who begin together.
    pub const fn in_flight(n: u32) -> Self {
        Self::Held { n, ramp: Seconds::ZERO, warm_up: 0 }
    }

    /// As many, where a number is held.
    #[must_use]
    pub const fn of_so_many(self, n: u32) -> Self {
        match self {
            Self::Held { ramp, warm_up, .. } => Self::Held { n, ramp, warm_up },
            Self::OfSessions => self,
        }
    }

    /// Sessions of the warm-up.
    pub const fn warm_up(self) -> u32 {
        match self {
            Self::Held { warm_up, .. } => warm_up,
            Self::OfSessions => 0,
        }
    }

    /// When the warm-up of requests without turns had ended and the others began; zero where there was none, or nothing behind it.
    pub fn begun(self, requests: &Requests) -> Seconds {
        let warm_up = self.warm_up() as usize;
        let first = requests.list.get(warm_up).filter(|_| warm_up > 0);
        first.map_or(Seconds::ZERO, |request| (request.arrival - Time::ZERO).to_seconds())
    }
}

/// Who sends the next request when one has ended.
struct Client<'r> {
    requests: &'r Requests,
    /// First request of every session.
    begins: Vec<usize>,
    /// Behind its request a user takes the next session.
    takes_next: bool,
    next_session: usize,
    /// Users who are held, and those of them who found no request to send any more.
    n_users: u32,
    n_gone: u32,
    /// When fewer than half of them were left.
    half_left: Option<Tick>,
    /// Sessions of the warm-up that have not ended; while there are any, no session behind them begins.
    warm_up: usize,
    n_warming: usize,
    /// Ticks at which requests were sent.
    sent: Vec<Tick>,
    /// Requests that users will send, by tick and by when that was known.
    due: BinaryHeap<Reverse<(Tick, u64, u32)>>,
    n_known: u64,
    on_the_way: OnTheWay,
}

impl<'r> Client<'r> {
    fn new(requests: &'r Requests, users: Users, on_the_way: OnTheWay) -> Self {
        let begins: Vec<usize> = (0..requests.len()).filter(|&request| !requests.is_turn(request)).collect();
        let warm_up = begins.len().min(users.warm_up() as usize);
        let mut client = Self {
            requests,
            begins,
            takes_next: users != Users::OfSessions,
            next_session: 0,
            n_users: 0,
            n_gone: 0,
            half_left: None,
            warm_up,
            n_warming: warm_up,
            sent: vec![Tick::ZERO; requests.len()],
            due: BinaryHeap::new(),
            n_known: 0,
            on_the_way,
        };
        match users {
            Users::Held { n, ramp, .. } => {
                client.n_users = n.max(1);
                for user in 0..n.max(1) {
                    let since = ramp.get() * f64::from(user) / f64::from(n.max(1));
                    client.begin_next(Tick::from_seconds(Seconds::new(since)));
                }
            }
            Users::OfSessions => {
                for first in client.begins.clone() {
                    client.will_send(Tick::from(requests.list[first].arrival), first);
                }
            }
        }
        client
    }

    fn will_send(&mut self, tick: Tick, request: usize) {
        let request = u32::try_from(request).expect("fewer than 2^32 requests");
        self.due.push(Reverse((tick, self.n_known, request)));
        self.n_known += 1;
    }

    /// A user takes the next session, if there is one and the warm-up lets it begin.
    fn begin_next(&mut self, now: Tick) {
        if self.n_warming > 0 && self.next_session >= self.warm_up {
            return;
        }
        if let Some(&first) = self.begins.get(self.next_session) {
            self.next_session += 1;
            self.will_send(now, first);
            return;
        }
        self.n_gone += 1;
        if 2 * self.n_gone > self.n_users {
            self.half_left.get_or_insert(now);
        }
    }

    /// The user of a request that has ended pauses and goes on.
    fn goes_on(&mut self, request: u32, now: Tick) {
        let turn = request as usize + 1;
        let is_turn = self.requests.is_turn(turn);
        let next = if is_turn { Some(turn) } else { self.begins.get(self.next_session).copied() };
        let pause = next.map_or(Tick::ZERO, |next| Tick::from(self.requests.pause(next)));
        if is_turn {
            self.will_send(now + pause, turn);
        } else if self.n_warming == 1 {
            self.n_warming = 0;
            (0..self.n_users).for_each(|_| self.begin_next(now));
        } else if self.takes_next {
            self.n_warming = self.n_warming.saturating_sub(1);
            self.begin_next(now + pause);
        }
    }

    /// Sends what is due, while these API servers take requests.
    fn send(&mut self, now: Tick, open: &[u32]) {
        while let Some(Reverse((tick, _, request))) = self.due.peek().copied() {
            if tick > now {
                return;
            }
            self.due.pop();
            let prompt = self.requests.list[request as usize].prompt;
            self.on_the_way.send((request, prompt), tick, open);
            self.sent[request as usize] = tick;
        }
    }

    /// Whether somebody would send after the clock has ended.
    fn is_waiting(&self) -> bool {
        !self.due.is_empty() || !self.on_the_way.is_empty()
    }

    /// Tick at which a user sends, or the engine sees, the next request.
    fn next(&self) -> Tick {
        let due = self.due.peek().map_or(IDLE, |Reverse((tick, ..))| *tick);
        due.min(self.on_the_way.next())
    }
}

impl Run<'_, '_> {
    /// Serves everything that users send; when each request was sent.
    fn play_held(mut self, users: Users) -> (Vec<Tick>, Served) {
        self.records.watch();
        let mut client = Client::new(self.requests, users, OnTheWay::new(self.fleet.start));
        client.send(Tick::ZERO, self.open_servers());
        loop {
            let (event, arrival) = (self.next_tick(), client.next());
            let now = event.min(arrival);
            // Behind the last request nobody sees failures and repairs, and no replica is paid for them.
            if now == IDLE || self.n_ended() == self.requests.len() as u64 {
                self.is_past_clock |= client.is_waiting();
                self.records.close();
                let half_left = client.half_left;
                return (client.sent, Served { half_left, ..self.end() });
            }
            if event < arrival {
                self.next_event(arrival);
                self.send_again(&mut client.on_the_way);
            } else if let Some((_, request)) = client.on_the_way.take(now) {
                self.arrive(request, client.sent[request as usize], now);
            }
            // A request that nobody can hold is answered at once.
            for (request, late) in self.records.take_ended() {
                client.goes_on(request, now + late);
            }
            client.send(now, self.open_servers());
        }
    }
}

/// The requests as they were sent, in order of sending, and what was served.
fn as_sent(requests: &Requests, (sent, mut served): (Vec<Tick>, Served)) -> (Requests, Served) {
    let mut order: Vec<usize> = (0..sent.len()).collect();
    order.sort_by_key(|&request| sent[request]);
    let sent_at = |&request: &usize| Request { arrival: sent[request].time(), ..requests.list[request] };
    let list = order.iter().map(sent_at).collect();
    served.records.list = order.iter().map(|&request| served.records.list[request]).collect();
    let gaps = order.iter().filter_map(|&request| served.token_gaps.get(request).copied()).collect();
    served.token_gaps = gaps;
    let streams = order.iter().filter_map(|&request| requests.streams.get(request).copied()).collect();
    let after_tool = order.iter().filter_map(|&request| requests.after_tool.get(request).copied()).collect();
    let asked = order.iter().filter_map(|&request| requests.asked.get(request).copied()).collect();
    let adapters = order.iter().filter_map(|&request| requests.adapters.get(request).copied()).collect();
    let (follows, pauses) = (Vec::new(), Vec::new());
    (Requests { list, streams, follows, pauses, after_tool, asked, adapters, ..requests.clone() }, served)
}

impl Fleet {
    /// Serves all requests of users who wait for their answers. Arrivals that requests have are asked of the first ones of sessions that arrive
    /// by themselves. The requests come back in the order and with the moments in which they were sent.
    ///
    /// # Panics
    /// When there is no replica.
    pub fn serve_held<'p>(&'p self, requests: &'p Requests, rules: Rules<'p>, users: Users) -> (Requests, Served) {
        as_sent(requests, self.run(requests, rules).play_held(users))
    }
}

#[cfg(test)]
mod tests;
