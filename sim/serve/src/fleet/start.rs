//! What lies between a client's sending and the engine's queue: an API server, which takes requests one after another, and what varies beside it.
//!
//! Every arrival passes it: of users who wait for their answers, and of requests that come by themselves. A client counts from the moment at which it sends, so a
//! start counts for its first token. An API server is one thread of Python (`api_server.rs`): it takes one request after another, or all that wait together.
//! Several share the requests in turn: those of replicas that take requests as one is sent. What is left of the mean start is an exponential draw, one for each request in order of sending. The spread parts
//! requests that were sent together, and nobody waits for it. API servers are lost with their replica: whoever is on the way through one is sent again, to one of those that are left, and its client
//! counts from the first sending. Where no work of an API server is known, a request is on the way to no replica, and none is lost with one. Units: ticks inside.
//!
//! Approximation: tokens of answers that pass the same thread (`frontend.rs`) delay no request, and the other way round.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::random::{self, Stream};
use hw::{Seconds, Tick};

use super::ends::IDLE;
use crate::api_server::ApiServer;
use crate::request::Requests;

/// How long requests are on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Start {
    /// Mean time from the client's sending to the engine's queue, without the tokenizer and without waiting.
    pub mean: Seconds,
    /// What an API server works on each request of that. Without a mean there is none.
    pub server: ApiServer,
    /// API servers that share the requests in turn; with zero nobody waits for another.
    pub servers: u32,
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

    /// How long each of some requests is on the way, where they come by themselves.
    pub fn drawn(&self, requests: &Requests) -> Vec<Tick> {
        let mut on_the_way = OnTheWay::new(*self);
        let all: Vec<u32> = (0..self.servers).collect();
        for (index, request) in (0_u32..).zip(&requests.list) {
            on_the_way.send((index, request.prompt), Tick::from(request.arrival), &all);
        }
        let mut takes = vec![Tick::ZERO; requests.list.len()];
        while let Some((tick, request)) = on_the_way.take(IDLE) {
            takes[request as usize] = tick - Tick::from(requests.list[request as usize].arrival);
        }
        takes
    }

    /// What a request takes of an API server, and what it takes besides on average.
    fn parts(&self) -> [Seconds; 2] {
        let work = if self.mean > Seconds::ZERO { self.server.per_request() } else { Seconds::ZERO };
        [work, (self.mean - work).max(Seconds::ZERO)]
    }
}

/// An API server with requests behind the ones that it works on.
#[derive(Default)]
struct Door {
    /// When it is done with those that it works on.
    free: Tick,
    /// Requests that go on together after that, with what each takes besides.
    gathered: Vec<(Tick, u32)>,
    /// Work on all of these.
    work: Tick,
}

impl Door {
    /// When the first of those that wait would be there, were nobody to join them.
    fn first(&self) -> Option<Tick> {
        let besides = self.gathered.iter().map(|(besides, _)| *besides).min()?;
        Some(self.free + self.work + besides)
    }

    /// Begins with those that wait, where it is free by a tick.
    fn begin(&mut self, by: Tick, own: usize, coming: &mut BinaryHeap<Reverse<Coming>>) {
        if self.gathered.is_empty() || self.free > by {
            return;
        }
        self.free += std::mem::take(&mut self.work);
        let done = self.free;
        let comes = |(besides, request)| Reverse(Coming { at: done + besides, request, door: own });
        coming.extend(self.gathered.drain(..).map(comes));
    }
}

/// A request that the engine will see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Coming {
    at: Tick,
    request: u32,
    /// API server that it passes; `NO_DOOR` where none is known.
    door: usize,
}

/// No API server.
const NO_DOOR: usize = usize::MAX;

/// Requests that the engine has not seen.
pub(super) struct OnTheWay {
    start: Start,
    draws: Stream,
    doors: Vec<Door>,
    /// Requests that were sent.
    n_sent: usize,
    /// By the tick at which the engine sees them.
    coming: BinaryHeap<Reverse<Coming>>,
}

impl OnTheWay {
    pub(super) fn new(start: Start) -> Self {
        // Where no work on requests is known nobody waits, for a tokenizer neither.
        let servers = if start.server.us_per_request > 0.0 { start.servers } else { 0 };
        let doors = (0..servers).map(|_| Door::default()).collect();
        let draws = random::stream(start.seed, "starts of requests");
        Self { start, draws, doors, n_sent: 0, coming: BinaryHeap::new() }
    }

    /// A request with so many tokens of a prompt is sent, while these API servers take requests.
    pub(super) fn send(&mut self, (request, prompt): (u32, u32), now: Tick, open: &[u32]) {
        let [work, besides] = self.start.parts();
        let varies = besides * self.draws.exponential();
        let tokenizer = self.start.tokenize * f64::from(prompt);
        if self.doors.is_empty() {
            let at = now + Tick::from_seconds(varies + work + tokenizer);
            return self.coming.push(Reverse(Coming { at, request, door: NO_DOOR }));
        }
        // A tokenizer that handlers wait for has a thread of its own.
        let (own, besides) =
            if self.start.server.gathers { (work, varies + tokenizer) } else { (work + tokenizer, varies) };
        let [own, besides] = [own, besides].map(Tick::from_seconds);
        // Where no replica is up somebody takes the request all the same: it waits for one at the router.
        let turn = open.get(self.n_sent % open.len().max(1)).map_or(0, |server| *server as usize % self.doors.len());
        self.n_sent += 1;
        let door = &mut self.doors[turn];
        door.begin(now, turn, &mut self.coming);
        if self.start.server.gathers && door.free > now {
            door.gathered.push((besides, request));
            door.work += own;
        } else {
            door.free = door.free.max(now) + own;
            self.coming.push(Reverse(Coming { at: door.free + besides, request, door: turn }));
        }
    }

    /// API servers are lost; the requests that were on their way through them, those first that would have been there first.
    pub(super) fn lose(&mut self, servers: &[u32]) -> Vec<u32> {
        let is_lost = |door: usize| servers.iter().any(|server| *server as usize == door);
        let (mut gone, left): (Vec<_>, Vec<_>) = self.coming.drain().partition(|Reverse(coming)| is_lost(coming.door));
        self.coming = left.into();
        gone.sort_by_key(|Reverse(coming)| *coming);
        let mut requests: Vec<u32> = gone.into_iter().map(|Reverse(coming)| coming.request).collect();
        for &server in servers {
            let Some(door) = self.doors.get_mut(server as usize) else { continue };
            requests.extend(std::mem::take(door).gathered.into_iter().map(|(_, request)| request));
        }
        requests
    }

    /// Tick at which the engine sees the next one, were nobody sent before that; `IDLE` where nobody is on the way.
    pub(super) fn next(&self) -> Tick {
        let first = self.coming.peek().map_or(IDLE, |Reverse(coming)| coming.at);
        self.doors.iter().filter_map(Door::first).fold(first, Tick::min)
    }

    /// Who is there by a tick, one after another, with the tick at which. Whoever is sent before it was sent.
    pub(super) fn take(&mut self, by: Tick) -> Option<(Tick, u32)> {
        for (own, door) in self.doors.iter_mut().enumerate() {
            door.begin(by, own, &mut self.coming);
        }
        let Reverse(first) = *self.coming.peek()?;
        if first.at > by {
            return None;
        }
        self.coming.pop();
        Some((first.at, first.request))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.coming.is_empty() && self.doors.iter().all(|door| door.gathered.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use hw::{Span, Time};

    use super::*;
    use crate::fleet::dynamics::{Outage, Rule, Scaling};
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

    /// API servers that work so long on each request, and nothing else on the way.
    fn doors(work_s: f64, servers: u32, gathers: bool) -> Start {
        let server = ApiServer { us_per_request: work_s * 1e6, gathers, ..ApiServer::NONE };
        Start { mean: Seconds::new(work_s), server, servers, ..Start::default() }
    }

    /// Seconds that each request is on the way.
    fn takes_s(start: Start, requests: &Requests) -> Vec<f64> {
        start.drawn(requests).into_iter().map(Tick::to_seconds).collect()
    }

    #[test]
    fn a_crowd_comes_to_the_engine_one_by_one_or_all_but_the_first_together() {
        for servers in [1, 4] {
            let crowd = apart(0.0, [100; 1000]);
            for (k, found) in (0_u32..).zip(takes_s(doors(0.003, servers, false), &crowd)) {
                assert!((found - 0.003 * f64::from(k / servers + 1)).abs() < 1e-8, "{servers}: {k} after {found} s");
            }
            // Who finds a server free is served alone; all others of that server wait for the last of them.
            for (k, found) in (0_u32..).zip(takes_s(doors(0.003, servers, true), &crowd)) {
                let n = if k < servers { 1 } else { 1000 / servers };
                assert!((found - 0.003 * f64::from(n)).abs() < 1e-8, "{servers}: {k} after {found} s");
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_tokenizer_where_no_work_on_requests_is_known() {
        // TensorRT-LLM has servers, of which nobody measured the work.
        let unknown = Start { servers: 1, ..tokenizer(1e-3) };
        assert!(takes_s(unknown, &apart(0.0, [100; 50])).iter().all(|found| (found - 0.1).abs() < 1e-9));
    }

    #[test]
    fn requests_of_a_rate_wait_for_an_api_server_as_in_a_queue_of_fixed_times() {
        // Pollaczek and Khinchine: W = ρ·D / (2·(1 − ρ)) for Poisson arrivals, 2 ms at 80 %.
        let mut requests = Requests::of(vec![Request::new(Time::ZERO, 100, 1); 200_000]);
        crate::arrivals::lay(&mut requests, crate::arrivals::Arrivals::Poisson { per_s: 800.0 }, 5);
        let mean = |gathers| takes_s(doors(0.001, 1, gathers), &requests).iter().sum::<f64>() / 200_000.0;
        let (one_by_one, together) = (mean(false), mean(true));
        assert!((one_by_one / 0.003 - 1.0).abs() < 0.07, "{one_by_one} s");
        // Whoever goes on with others waits for them too, and for no more than all that were there.
        assert!((1.0..2.0).contains(&(together / one_by_one)), "{together} s beside {one_by_one} s");
    }

    #[test]
    fn api_servers_are_those_of_replicas_that_take_requests() {
        // 600 requests a second, of which one API server lets 500 through. Replicas that are not there have none.
        let requests = apart(1.0 / 600.0, [100; 600]);
        let start = |servers| Start { mean: Seconds::new(0.003), seed: 3, ..doors(0.002, servers, true) };
        let roomy = |n: u32, scaling: Option<Scaling>, outages: Vec<Outage>| {
            let limits = Limits { sequences_max: 1024, ..Limits::ROOMY };
            let group = fleet(Start::default(), Spans::Closed).groups.remove(0);
            let engine = Engine { limits, ..group.engine };
            Fleet { start: start(n), outages, ..Fleet::of(Group { scaling, ..Group::new("all", engine, n) }) }
        };
        let ttft = |fleet: &Fleet| metrics::of(&requests, &serve(fleet, &requests), &Slo::default(), Seconds::ZERO)["ttft_s.mean"];
        let [one, two] = [1, 2].map(|n| ttft(&roomy(n, None, Vec::new())));
        assert!(one > two + 0.03, "{one} s through one, {two} s through two");
        let scaling = |rule| Some(Scaling { replicas_min: 1, replicas_first: 1, start_up: Seconds::new(1e3), rule });
        let late = Time::ZERO + Span::from_seconds(Seconds::new(1e3));
        let scaled = ttft(&roomy(4, scaling(Rule::Timetable(vec![(late, 2)])), Vec::new()));
        assert!((scaled - one).abs() < 1e-9, "{scaled} s and {one} s");
        let lost = Outage { group: 0, replica: 1, at: Time::ZERO, notice: Seconds::ZERO, back_after: None };
        let lost = ttft(&roomy(2, None, vec![lost]));
        assert!((lost / one - 1.0).abs() < 0.02, "{lost} s and {one} s");
        // Users who wait for their answers meet the same.
        let fleet = roomy(4, scaling(Rule::Timetable(vec![(late, 2)])), Vec::new());
        let mut router = (router::ROUTERS[0].make)(0);
        let (_, held) = fleet.serve_held(&requests, Rules::of(router.as_mut()), Users::OfSessions);
        assert_eq!(held.records, serve(&fleet, &requests).records);
    }

    #[test]
    fn whoever_waits_at_the_door_of_a_lost_replica_is_sent_again() {
        // Two replicas, a second of work for each request, four at once in turn: each server has two. The first replica is lost after half a second, so both of its
        // requests stand behind the two of the other one: one by one they are done after 3 and 4 s, and those who go on together after 1 + 3 s with the second of the other.
        let list = vec![Request::new(Time::ZERO, 100, 11); 4];
        let requests = Requests::of(list);
        let away = |back_after: Option<f64>| Outage {
            group: 0,
            replica: 0,
            at: Time::ZERO + Span::from_seconds(Seconds::new(0.5)),
            notice: Seconds::ZERO,
            back_after: back_after.map(Seconds::new),
        };
        // One that is back after a second is too late for those that were sent again.
        for (gathers, done_s) in [(false, [3.0, 1.0, 4.0, 2.0]), (true, [4.0, 1.0, 4.0, 4.0])] {
            for back_after in [None, Some(1.0)] {
                let group = fleet(Start::default(), Spans::Closed).groups.remove(0);
                let group = Group::new("all", group.engine, 2);
                let fleet =
                    Fleet { start: doors(1.0, 2, gathers), outages: vec![away(back_after)], ..Fleet::of(group) };
                let by_themselves = serve(&fleet, &requests);
                let found = ttft_s(&requests, &by_themselves);
                for (found, done_s) in found.iter().zip(done_s) {
                    assert!((found - done_s - STEP_S).abs() < 2.0 * STEP_S, "{gathers}, {back_after:?}: {found} s");
                }
                assert_eq!((by_themselves.changes.n_retried, by_themselves.changes.n_outages), (2, 1));
                let mut router = (router::ROUTERS[0].make)(0);
                let (_, held) = fleet.serve_held(&requests, Rules::of(router.as_mut()), Users::OfSessions);
                assert_eq!((held.records, held.changes.n_retried), (by_themselves.records, 2));
            }
        }
    }

    #[test]
    fn nobody_at_the_door_of_another_replica_is_sent_again() {
        // The second replica is lost as its only request is served, so whoever waits at the first one's door goes on.
        let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); 3]);
        let at = Time::ZERO + Span::from_seconds(Seconds::new(1.5));
        let outage = Outage { group: 0, replica: 1, at, notice: Seconds::ZERO, back_after: None };
        let group = fleet(Start::default(), Spans::Closed).groups.remove(0);
        let group = Group::new("all", group.engine, 2);
        let fleet = Fleet { start: doors(1.0, 2, false), outages: vec![outage], ..Fleet::of(group) };
        let served = serve(&fleet, &requests);
        for (found, done_s) in ttft_s(&requests, &served).iter().zip([1.0, 1.0, 2.0]) {
            assert!((found - done_s - STEP_S).abs() < 2.0 * STEP_S, "{found} s");
        }
        assert_eq!(served.changes.n_retried, 0);
    }

    #[test]
    fn requests_that_wait_go_on_when_the_server_has_ended_all_of_them() {
        // Brute force: the server takes all who wait as it becomes free, and they leave together.
        let requests = apart(0.0007, [100; 500]);
        let sent: Vec<f64> = (0..500).map(|k| 0.0007 * f64::from(k)).collect();
        let (mut free, mut next, mut expected) = (0.0, 0, Vec::new());
        while next < sent.len() {
            let begins = f64::max(free, sent[next]);
            let n = sent[next..].iter().take_while(|at| **at <= begins + 1e-12).count();
            free = begins + 0.001 * f64::from(u32::try_from(n).expect("few"));
            expected.extend(sent[next..next + n].iter().map(|at| free - at));
            next += n;
        }
        let found = takes_s(doors(0.001, 1, true), &requests);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
        }
    }

    #[test]
    fn the_work_on_a_request_is_a_part_of_its_start() {
        // Alone, a request takes the mean whatever the part is; a start without time has no part.
        let apart = apart(10.0, [100; 4000]);
        for work_s in [0.0, 0.003, 0.015] {
            let mean = takes_s(Start { mean: Seconds::new(0.015), seed: 3, ..doors(work_s, 1, true) }, &apart);
            let mean = mean.iter().sum::<f64>() / 4000.0;
            assert!((mean / 0.015 - 1.0).abs() < 4.0 * 0.016, "{work_s}: {mean}");
        }
        let none = Start { mean: Seconds::ZERO, ..doors(0.003, 1, true) };
        assert!(none.is_instant() && none.drawn(&apart).iter().all(|takes| *takes == Tick::ZERO));
    }

    #[test]
    fn users_and_requests_by_themselves_meet_the_same_api_server() {
        let requests = apart(0.004, [100; 300]);
        let fleet = fleet(Start { mean: Seconds::new(0.015), seed: 3, ..doors(0.006, 1, true) }, Spans::Closed);
        let mut router = (router::ROUTERS[0].make)(0);
        let (sent, of_users) = fleet.serve_held(&requests, Rules::of(router.as_mut()), Users::OfSessions);
        assert_eq!(sent.list, requests.list);
        assert_eq!(of_users.records, serve(&fleet, &requests).records);
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
