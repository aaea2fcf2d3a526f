//! Plays a plan with single requests: queues, batches and wires, where the plan has means.
//!
//! A group that reads prompts takes them one by one, first come, first served; the next may enter when the slowest stage is free. Keys and
//! values go over a wire per pair of machines, one message at a time. A group that generates runs steps over all requests that fit its
//! cache; a group that does both reads a waiting prompt before the next step (as vLLM's first engine). Times are those of `group.rs`, with the
//! requests' own lengths. Not modelled: chunked prompts, preemption (a request enters with room for all of its tokens). Units: seconds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use hw::{Seconds, Span, Time, Tokens};
use serve::request::Request;

use super::group::{self, Stage};
use super::{Deployment, Replica, Task};

/// What is played: groups, and pairs of a group that reads and one that generates with their shares; the same one does both.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// Stages of every group.
    pub groups: Vec<Vec<Stage>>,
    /// (group of the prompt, group of the tokens, share).
    pub pairs: Vec<(usize, usize, f64)>,
}

impl Fleet {
    /// Of a deployment with phases.
    #[must_use]
    pub fn of(deployment: &Deployment) -> Self {
        let groups = deployment.groups.iter().map(|group| group.stages.clone()).collect();
        let rows = deployment.routes.iter().enumerate();
        let pairs = rows.flat_map(|(i, row)| row.iter().enumerate().map(move |(j, &share)| (i, j, share)));
        Self { groups, pairs: pairs.filter(|pair| pair.2 > 1e-9).collect() }
    }

    /// Of replicas that run both phases, by their rates.
    #[must_use]
    pub fn colocated(replicas: &[Replica]) -> Self {
        let pairs = replicas.iter().enumerate().map(|(i, replica)| (i, i, replica.requests_per_s));
        Self { groups: replicas.iter().map(|replica| replica.stages.clone()).collect(), pairs: pairs.collect() }
    }
}

/// What clients saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Played {
    /// Share of the requests that met both targets.
    pub attainment: f64,
    /// Prompt and output tokens over the time from first arrival to last token.
    pub tokens_per_s: f64,
    /// Mean time to the first token.
    pub ttft_s: f64,
    /// Mean time per further token.
    pub tpot_s: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives(usize),
    /// A prompt is read.
    Read(usize),
    /// The slowest stage of a group is free, or its step has ended.
    Free(usize),
    /// Keys and values have come.
    Moved(usize),
}

#[derive(Default)]
struct Station {
    prompts: VecDeque<usize>,
    /// Requests whose keys and values are there, without room yet.
    ready: VecDeque<usize>,
    /// Requests that generate, with their tokens left.
    running: Vec<(usize, u32)>,
    /// Tokens of running requests when they end.
    reserved: u64,
    is_busy: bool,
    is_step: bool,
}

struct Loop<'l> {
    task: &'l Task,
    fleet: &'l Fleet,
    requests: &'l [Request],
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    n_events: u64,
    stations: Vec<Station>,
    /// Tokens that fit the cache of every group.
    room: Vec<u64>,
    pair: Vec<usize>,
    wires: BTreeMap<(usize, usize), Time>,
    first: Vec<Time>,
    last: Vec<Time>,
}

fn span(seconds: f64) -> Span {
    Span::from_seconds(Seconds::new(seconds))
}

/// Serves requests in order of their arrivals.
#[must_use]
pub fn play(task: &Task, fleet: &Fleet, requests: &[Request]) -> Played {
    let room = |stages: &Vec<Stage>| hw::Bytes::from_f64(group::cache_tokens(task, stages)).0;
    let mut all = Loop {
        task,
        fleet,
        requests,
        events: BinaryHeap::new(),
        n_events: 0,
        stations: fleet.groups.iter().map(|_| Station::default()).collect(),
        room: fleet.groups.iter().map(room).collect(),
        pair: routed(fleet, requests.len()),
        wires: BTreeMap::new(),
        first: vec![Time::ZERO; requests.len()],
        last: vec![Time::ZERO; requests.len()],
    };
    if fleet.pairs.is_empty() {
        return Played::default();
    }
    for (index, request) in requests.iter().enumerate() {
        all.push(request.arrival, Event::Arrives(index));
    }
    while let Some(Reverse((now, _, event))) = all.events.pop() {
        all.handle(now, event);
    }
    all.measured()
}

/// Smooth weighted round robin over the pairs.
fn routed(fleet: &Fleet, n: usize) -> Vec<usize> {
    let total: f64 = fleet.pairs.iter().map(|pair| pair.2).sum();
    let mut credit = vec![0.0; fleet.pairs.len()];
    let mut next = || {
        credit.iter_mut().zip(&fleet.pairs).for_each(|(credit, pair)| *credit += pair.2 / total);
        let most = (0..credit.len()).rev().max_by(|&a, &b| credit[a].total_cmp(&credit[b])).unwrap_or(0);
        if let Some(credit) = credit.get_mut(most) {
            *credit -= 1.0;
        }
        most
    };
    (0..n).map(|_| next()).collect()
}

impl Loop<'_> {
    fn push(&mut self, at: Time, event: Event) {
        self.n_events += 1;
        self.events.push(Reverse((at, self.n_events, event)));
    }

    fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Arrives(request) => {
                let group = self.fleet.pairs[self.pair[request]].0;
                self.stations[group].prompts.push_back(request);
                self.work(group, now);
            }
            Event::Read(request) => self.read(request, now),
            Event::Moved(request) => {
                let group = self.fleet.pairs[self.pair[request]].1;
                self.stations[group].ready.push_back(request);
                self.work(group, now);
            }
            Event::Free(group) => {
                self.stations[group].is_busy = false;
                if std::mem::take(&mut self.stations[group].is_step) {
                    self.step_ends(group, now);
                }
                self.work(group, now);
            }
        }
    }

    /// The first token is there; keys and values leave for the group that generates.
    fn read(&mut self, request: usize, now: Time) {
        self.first[request] = now;
        self.last[request] = now;
        let (from, to, _) = self.fleet.pairs[self.pair[request]];
        if self.requests[request].output <= 1 {
            return;
        }
        if from == to {
            return self.push(now, Event::Moved(request));
        }
        let wire = (group::home(&self.fleet.groups[from]), group::home(&self.fleet.groups[to]));
        let bytes = self.task.wire_bytes(f64::from(self.requests[request].prompt));
        let free = self.wires.get(&wire).copied().unwrap_or(Time::ZERO).max(now);
        let left = free + span(bytes / self.task.bandwidth(wire.0, wire.1));
        self.wires.insert(wire, left);
        self.push(left + span(self.task.start_s(wire.0, wire.1)), Event::Moved(request));
    }

    /// Begins the next prompt or step of an idle group.
    fn work(&mut self, group: usize, now: Time) {
        if self.stations[group].is_busy {
            return;
        }
        self.enter(group);
        let stages = &self.fleet.groups[group];
        let station = &mut self.stations[group];
        let both = self.fleet.pairs.iter().any(|pair| pair.0 == group && pair.1 == group);
        // A group of both phases reads a prompt only if it will fit, and then it has its place.
        let fits = |&request: &usize| !both || station.reserved + whole(&self.requests[request]) <= self.room[group];
        if let Some(request) = station.prompts.front().copied().filter(fits) {
            station.prompts.pop_front();
            let tokens = self.requests[request].prompt;
            let (slowest, latency) = group::read_s(self.task, stages, f64::from(tokens));
            station.is_busy = true;
            self.push(now + span(latency), Event::Read(request));
            // Steps of the same group wait for the prompt's end, other prompts only for the slowest stage.
            let free = if both { latency } else { slowest };
            return self.push(now + span(free), Event::Free(group));
        }
        if station.running.is_empty() {
            return;
        }
        let n = Tokens(station.running.len() as u64).as_f64();
        let context = Tokens(station.reserved).as_f64() / n;
        let step = group::step_s(self.task, stages, n, context);
        (station.is_busy, station.is_step) = (true, true);
        self.push(now + span(step), Event::Free(group));
    }

    /// Requests with keys and values begin to generate, in order, as far as there is room; one that no room would hold goes alone.
    fn enter(&mut self, group: usize) {
        let station = &mut self.stations[group];
        while let Some(&request) = station.ready.front() {
            let tokens = whole(&self.requests[request]);
            let fits = station.reserved + tokens <= self.room[group] && station.running.len() < group::RUNNING_MAX;
            if !fits && !station.running.is_empty() {
                return;
            }
            station.ready.pop_front();
            station.reserved += tokens;
            station.running.push((request, self.requests[request].output - 1));
        }
    }

    fn step_ends(&mut self, group: usize, now: Time) {
        let station = &mut self.stations[group];
        let mut freed = 0;
        station.running.retain_mut(|(request, left)| {
            *left -= 1;
            self.last[*request] = now;
            if *left == 0 {
                freed += whole(&self.requests[*request]);
            }
            *left > 0
        });
        station.reserved -= freed;
    }

    fn measured(&self) -> Played {
        let since = |at: Time, start: Time| (at - start).to_seconds().get();
        let (mut met, mut ttft, mut tpot, mut tokens) = (0.0, 0.0, 0.0, 0);
        for (index, request) in self.requests.iter().enumerate() {
            let first = since(self.first[index], request.arrival);
            let more = f64::from(request.output.saturating_sub(1).max(1));
            let token = since(self.last[index], self.first[index]) / more;
            met += f64::from(u8::from(first <= self.task.ttft_s && token <= self.task.tpot_s));
            (ttft, tpot) = (ttft + first, tpot + token);
            tokens += whole(request);
        }
        let n = Tokens(self.requests.len().max(1) as u64).as_f64();
        let begun = self.requests.first().map_or(Time::ZERO, |request| request.arrival);
        let ended = self.last.iter().copied().max().unwrap_or(begun);
        let tokens_per_s = Tokens(tokens).as_f64() / since(ended, begun).max(1e-9);
        Played { attainment: met / n, tokens_per_s, ttft_s: ttft / n, tpot_s: tpot / n }
    }
}

/// Tokens of a request when it ends.
fn whole(request: &Request) -> u64 {
    u64::from(request.prompt) + u64::from(request.output)
}

/// The largest arrival rate at which a share of the requests meets both targets, up to 1 %, with what clients saw at it. `requests` arrive
/// once per second; other rates are the same draws faster or slower.
#[must_use]
pub fn goodput(task: &Task, fleet: &Fleet, requests: &[Request], share: f64) -> (f64, Played) {
    let at = |per_s: f64| {
        let faster = |request: &Request| {
            let arrival = Time::ZERO + span((request.arrival - Time::ZERO).to_seconds().get() / per_s);
            Request { arrival, ..*request }
        };
        play(task, fleet, &requests.iter().map(faster).collect::<Vec<_>>())
    };
    let (mut low, mut best) = (0.0, Played::default());
    let mut high = 1.0 / 64.0;
    // Doubles until it fails, then halves the ratio of the two.
    loop {
        let played = at(high);
        if played.attainment < share || high > 1e4 {
            break;
        }
        (low, best, high) = (high, played, 2.0 * high);
    }
    while low > 0.0 && high / low > 1.01 {
        let middle = (low * high).sqrt();
        let played = at(middle);
        if played.attainment >= share {
            (low, best) = (middle, played);
        } else {
            high = middle;
        }
    }
    (low, best)
}
