//! What lies between a client's sending and the engine's queue: connection and checks, which vary, and a tokenizer at a steady rate.
//!
//! Every arrival passes it: of users who wait for their answers, and of requests that come by themselves. A client counts from the moment at which it sends, so a
//! start counts for its first token. Starts are exponential draws, one for each request in order of sending. The spread parts requests that were sent
//! together. Whoever is on the way waits for nobody else. Units: ticks inside.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::random::{self, Stream};
use hw::{Seconds, Tick};

use super::ends::IDLE;
use crate::request::Requests;

/// How long requests are on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Start {
    /// Mean time from the client's sending to the engine's queue, without the tokenizer.
    pub mean: Seconds,
    /// Time of the tokenizer for each token of a prompt.
    pub tokenize: Seconds,
    /// Seed of its draws.
    pub seed: u64,
}

impl Start {
    /// Whether requests are in the queue as they are sent.
    pub fn is_instant(&self) -> bool {
        self.mean == Seconds::ZERO && self.tokenize == Seconds::ZERO
    }

    /// How long each of some requests is on the way, where they are sent in this order.
    pub fn drawn<'r>(&self, requests: &'r Requests) -> impl Iterator<Item = Tick> + 'r {
        let (start, mut draws) = (*self, self.draws());
        requests.list.iter().map(move |request| start.draw(&mut draws, request.prompt))
    }

    fn draws(&self) -> Stream {
        random::stream(self.seed, "starts of requests")
    }

    fn draw(&self, draws: &mut Stream, prompt: u32) -> Tick {
        let varies = Seconds::new(self.mean.get() * draws.exponential());
        Tick::from_seconds(varies + self.tokenize * f64::from(prompt))
    }
}

/// Requests that the engine has not seen.
pub(super) struct OnTheWay {
    start: Start,
    draws: Stream,
    /// By the tick at which the engine sees them.
    coming: BinaryHeap<Reverse<(Tick, u32)>>,
}

impl OnTheWay {
    pub(super) fn new(start: Start) -> Self {
        Self { start, draws: start.draws(), coming: BinaryHeap::new() }
    }

    /// A request with so many tokens of a prompt is sent.
    pub(super) fn send(&mut self, request: u32, prompt: u32, now: Tick) {
        let takes = self.start.draw(&mut self.draws, prompt);
        self.coming.push(Reverse((now + takes, request)));
    }

    /// Tick at which the engine sees the next one; `IDLE` where nobody is on the way.
    pub(super) fn next(&self) -> Tick {
        self.coming.peek().map_or(IDLE, |Reverse((tick, _))| *tick)
    }

    /// Who is there by a tick, one after another, with the tick at which.
    pub(super) fn take(&mut self, by: Tick) -> Option<(Tick, u32)> {
        let Reverse((tick, _)) = self.coming.peek()?;
        if *tick > by {
            return None;
        }
        self.coming.pop().map(|Reverse(first)| first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.coming.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use hw::{Span, Time};

    use super::*;
    use crate::fleet::held::Users;
    use crate::fleet::{Fleet, Group, Rules, Served};
    use crate::metrics::saturation::Queue;
    use crate::metrics::{self, Slo};
    use crate::records::End;
    use crate::replica::{Engine, Limits, Spans};
    use crate::request::{Patience, Request};
    use crate::step_cost::StepTable;
    use crate::{batcher, router};

    /// Time of every iteration, seconds.
    const STEP_S: f64 = 0.01;

    fn fleet(start: Start, spans: Spans) -> Fleet {
        let table = StepTable::constant(Seconds::new(STEP_S));
        let batcher = batcher::named("vllm-v1").expect("listed");
        let limits = Limits { sequences_max: 8, ..Limits::ROOMY };
        Fleet { start, ..Fleet::of(Group::new("all", Engine { limits, table, batcher, spans }, 1)) }
    }

    fn tokenizer(s_per_token: f64) -> Start {
        Start { tokenize: Seconds::new(s_per_token), ..Start::default() }
    }

    fn exponential(mean_s: f64) -> Start {
        Start { mean: Seconds::new(mean_s), seed: 3, ..Start::default() }
    }

    /// Requests so far apart, with these prompts and eleven tokens of an answer.
    fn apart(every_s: f64, prompts: impl IntoIterator<Item = u32>) -> Requests {
        let at = |(n, prompt)| {
            Request::new(Time::ZERO + Span::from_seconds(Seconds::new(every_s) * f64::from(n)), prompt, 11)
        };
        Requests::of((0_u32..).zip(prompts).map(at).collect())
    }

    fn serve(fleet: &Fleet, requests: &Requests) -> Served {
        fleet.serve(requests, (router::ROUTERS[0].make)(0).as_mut())
    }

    fn ttft_s(requests: &Requests, served: &Served) -> Vec<f64> {
        metrics::latencies(requests, served).map(|found| found.expect("served").ttft_s).collect()
    }

    #[test]
    fn whoever_comes_alone_waits_for_the_tokenizer_and_an_iteration() {
        let requests = apart(10.0, [100, 1000, 10]);
        let found = ttft_s(&requests, &serve(&fleet(tokenizer(1e-3), Spans::Closed), &requests));
        for (found, expected) in found.iter().zip([0.11, 1.01, 0.02]) {
            assert!((found - expected).abs() < 1e-9, "{found} and {expected}");
        }
    }

    #[test]
    fn a_start_counts_for_the_first_token_alone_and_once() {
        // 7 ms on average; the mean of 4,000 exponential draws is known to 1.6 % of it. Users who hold a load find the same as requests that come by themselves.
        let (requests, fleet) = (apart(1.0, [100; 4000]), fleet(exponential(7e-3), Spans::Closed));
        let one = fleet.serve_held(&requests, Rules::of((router::ROUTERS[0].make)(0).as_mut()), Users::in_flight(1));
        let open = (requests.clone(), serve(&fleet, &requests));
        for (requests, served) in [open, one] {
            let found = metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO);
            assert!((found["ttft_s.mean"] - (STEP_S + 7e-3)).abs() < 4.0 * 0.016 * 7e-3, "{}", found["ttft_s.mean"]);
            assert!((found["tpot_s.mean"] - STEP_S).abs() < 1e-9);
        }
    }

    #[test]
    fn sessions_of_one_turn_that_arrive_by_themselves_are_requests_that_do() {
        let requests = apart(0.02, [100; 500]);
        for start in [Start::default(), exponential(0.05), Start { mean: Seconds::new(0.05), ..tokenizer(1e-4) }] {
            let fleet = fleet(start, Spans::Closed);
            let mut router = (router::ROUTERS[0].make)(0);
            let (sent, of_users) = fleet.serve_held(&requests, Rules::of(router.as_mut()), Users::OfSessions);
            assert_eq!(sent.list, requests.list);
            assert_eq!(of_users.records, serve(&fleet, &requests).records, "{start:?}");
        }
    }

    #[test]
    fn a_short_prompt_overtakes_a_long_one_on_the_way() {
        // The long one is there after 1 s, the short one at 0.1 s + 0.01 s.
        let requests = apart(0.1, [1000, 10]);
        let served = serve(&fleet(tokenizer(1e-3), Spans::Closed), &requests);
        let first_s: Vec<f64> = served
            .records
            .list
            .iter()
            .map(|record| hw::real(record.first_token().expect("served").as_ns()) / 1e9)
            .collect();
        assert!((first_s[0] - 1.01).abs() < 1e-9 && (first_s[1] - 0.12).abs() < 1e-9, "{first_s:?}");
    }

    #[test]
    fn spans_and_single_steps_agree_to_the_tick() {
        let requests = apart(0.013, [100; 300]);
        let [closed, stepwise] = [Spans::Closed, Spans::Stepwise].map(|spans| {
            serve(&fleet(Start { mean: Seconds::new(0.05), ..tokenizer(1e-5) }, spans), &requests).records
        });
        assert_eq!(closed, stepwise);
    }

    #[test]
    fn a_deadline_counts_from_the_sending() {
        // The first is on the way for longer than its client waits, and the second has its only token in time.
        let patience = Patience { first_token: Some(Span::from_seconds(Seconds::new(0.5))), whole: None };
        let requests = Requests { patience: vec![patience], ..apart(10.0, [1000, 100]) };
        let served = serve(&fleet(tokenizer(1e-3), Spans::Closed), &requests);
        let ends: Vec<End> = served.records.list.iter().map(|record| record.end()).collect();
        assert_eq!(ends, [End::TimedOut, End::Served]);
    }

    #[test]
    fn whoever_is_on_the_way_as_the_clock_ends_is_not_served() {
        let requests = apart(1.0, [1, 1_000_000]);
        // A second for the short prompt, and more days for the long one than the clock has.
        let served = serve(&fleet(tokenizer(1e3), Spans::Closed), &requests);
        assert_eq!((served.records.n_ended(), served.n_unserved), (1, 1));
    }

    #[test]
    fn who_is_on_the_way_does_not_queue() {
        // Eight places, and a request in ten iterations: nobody waits for more than the iteration under way, though all are on the way for a hundred.
        let requests = apart(10.0 * STEP_S, [100; 400]);
        let start = exponential(100.0 * STEP_S);
        let served = serve(&fleet(start, Spans::Closed), &requests);
        let found = Queue::of(&requests, &served, &start).expect("requests that came and were served");
        assert!((0.0..=1.0).contains(&found.wait_steps), "{found:?}");
        assert!(found.waiting.iter().all(|n| *n <= 8), "{found:?}");
    }
}
