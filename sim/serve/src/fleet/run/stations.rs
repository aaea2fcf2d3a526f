//! Replicas of a part of the layers, in the loop of all fleets: batches end, messages leave, messages arrive, stations are lost.
//!
//! A station works through a batch layer by layer; a hop carries the activations of a request from station to station, one message at a
//! time, and a message arrives `latency` after it left. A request takes its path once, with its prompt, and each generated token follows,
//! because keys and values lie there. A station without entries between its layers runs a batch through all of them at once, which is the
//! same as layer by layer, because nothing can join; elsewhere it goes round its layers and skips those without work. What a loss does is in
//! `stations/loss.rs`. Units: ticks inside, seconds at the border, tokens times layers. Ends of batches stand in `ends.rs` with those of
//! plain replicas; order among the rest: time, then insertion.

mod loss;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Run;
use crate::fleet::ends::{Ends, IDLE};
use crate::pool::path::Paths;
use crate::pool::{self, Answer, Load, Outcome, PAUSE, Pool};
use hw::{Seconds, Tick};

/// A request under way; exactly one event, queue, batch or hop has it.
struct Active {
    /// Prompt as it came.
    prompt: u32,
    output: u32,
    /// Tokens that the round under way computes: after a loss the prompt and what was generated.
    tokens: u32,
    /// Tokens still to be generated after the round under way.
    left: u32,
    /// Cached tokens.
    context: u32,
    /// Hops of its path; empty until it has one.
    path: Vec<usize>,
    /// Hops done of this round.
    at: usize,
    /// Hops of this round whose stations have cached its tokens.
    n_cached: usize,
    is_prompt: bool,
    /// Whether the prompt was computed before and lost.
    is_again: bool,
    /// Counts losses: older messages are void.
    epoch: u32,
    /// When it got its path.
    issued: Tick,
    /// When this round began, or the client had its last token.
    begun: Tick,
    /// When its last message began to leave.
    sent: Tick,
    /// When the client had its first token and its last; `Tick::NEVER` until then.
    answered: [Tick; 2],
}

impl Active {
    /// When the client had its tokens; `None` where it has not all of them.
    fn answer(&self) -> Option<Answer> {
        let [first, last] = self.answered;
        (last != Tick::NEVER).then(|| Answer { first: first.time(), last: last.time() })
    }
}

/// A station at work.
struct Station {
    /// Requests before each layer, or before the first where none enters between layers.
    queues: Vec<VecDeque<u32>>,
    layer: usize,
    batch: Vec<u32>,
    /// When the batch under way began; `None` where it is idle.
    begun: Option<Tick>,
    /// Tokens that came since the first layer last began.
    received: u64,
    cached: u64,
}

/// A hop with messages that wait.
#[derive(Default)]
struct Wire {
    waiting: VecDeque<u32>,
    is_busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A hop may send its next message.
    Free { hop: u32 },
    /// A message arrives, if its request was not lost meanwhile.
    Arrive { request: u32, epoch: u32 },
    /// A request asks for its first path.
    Issue { request: u32 },
}

/// All stations of a deployment, and what is between them.
pub(in crate::fleet) struct Stations<'r> {
    pool: &'r Pool,
    paths: &'r mut dyn Paths,
    asked: &'r pool::Run<'r>,
    events: BinaryHeap<Reverse<(Tick, u64, Event)>>,
    n_events: u64,
    active: Vec<Active>,
    stations: Vec<Station>,
    wires: Vec<Wire>,
    /// Requests without a path, in order.
    waiting: VecDeque<u32>,
    outcome: Outcome,
}

impl<'r> Stations<'r> {
    pub(in crate::fleet) fn new(pool: &'r Pool, paths: &'r mut dyn Paths, asked: &'r pool::Run<'r>) -> Self {
        let n = pool.nodes.len();
        let outcome = Outcome {
            busy_ns: vec![0; n],
            kv_peak: vec![0; n],
            hop_tokens: vec![0; pool.hops.len()],
            ..Outcome::default()
        };
        let mut all = Self {
            pool,
            paths,
            asked,
            events: BinaryHeap::new(),
            n_events: 0,
            active: Vec::new(),
            stations: (0..n).map(|node| station(pool, node)).collect(),
            wires: pool.hops.iter().map(|_| Wire::default()).collect(),
            waiting: VecDeque::new(),
            outcome,
        };
        all.begin();
        all
    }

    /// Next event that is no end of a batch.
    pub(in crate::fleet) fn next(&self) -> Option<Tick> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// Last tick that is played.
    pub(in crate::fleet) fn until(&self) -> Tick {
        Tick::from(self.asked.until)
    }

    fn push(&mut self, at: Tick, event: Event) {
        self.events.push(Reverse((at, self.n_events, event)));
        self.n_events += 1;
    }

    fn begin(&mut self) {
        if self.asked.requests.is_empty() {
            return;
        }
        match self.asked.load {
            Load::Open => self.issue(Tick::ZERO),
            Load::Closed { in_flight: n } | Load::Filled { start: n, .. } => {
                for at in 0..u64::from(n) {
                    self.issue(Tick::from(PAUSE) * at);
                }
            }
        }
    }

    /// Lets the next request come.
    fn issue(&mut self, at: Tick) {
        let index = self.active.len();
        let n = self.asked.requests.len();
        let is_open = matches!(self.asked.load, Load::Open);
        if is_open && index >= n {
            return;
        }
        let request = &self.asked.requests[index % n];
        let begun = if is_open { Tick::from(request.arrival) } else { at };
        self.active.push(Active {
            prompt: request.prompt,
            output: request.output,
            tokens: request.prompt,
            left: request.output.saturating_sub(1),
            context: 0,
            path: Vec::new(),
            at: 0,
            n_cached: 0,
            is_prompt: true,
            is_again: false,
            epoch: 0,
            issued: begun,
            begun,
            sent: begun,
            answered: [Tick::NEVER; 2],
        });
        self.push(begun, Event::Issue { request: small(index) });
    }

    /// Handles what is due.
    fn advance(&mut self, now: Tick, ends: &mut Ends) {
        while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
            if at > now {
                break;
            }
            self.events.pop();
            match event {
                Event::Free { hop } => {
                    self.wires[hop as usize].is_busy = false;
                    self.send(hop as usize, now);
                }
                Event::Arrive { request, epoch } if self.active[request as usize].epoch == epoch => {
                    self.arrive(request as usize, now, ends);
                }
                Event::Arrive { .. } => {}
                Event::Issue { request } => self.come(request, now),
            }
        }
    }

    /// A request comes.
    fn come(&mut self, request: u32, now: Tick) {
        if matches!(self.asked.load, Load::Open) {
            self.issue(now);
        }
        self.waiting.push_back(request);
        self.admit(now);
        if matches!(self.asked.load, Load::Filled { .. }) && self.waiting.back() == Some(&request) {
            // There is always another one to try: what finds no path is put back.
            self.outcome.n_put_back += 1;
            self.waiting.pop_back();
        }
    }

    /// Gives paths to requests that wait, first come, first served.
    fn admit(&mut self, now: Tick) {
        while let Some(&request) = self.waiting.front() {
            let request = request as usize;
            // Of what was generated nothing is added after a loss: it is a part of the output that is expected.
            let Some(path) = self.paths.path(self.active[request].prompt) else { return };
            self.waiting.pop_front();
            let active = &mut self.active[request];
            self.outcome.n_issued += u64::from(!active.is_again);
            active.path = path;
            active.issued = now;
            self.leave(request, now);
        }
    }

    /// A request goes to its next hop.
    fn leave(&mut self, request: usize, now: Tick) {
        let hop = self.active[request].path[self.active[request].at];
        self.wires[hop].waiting.push_back(small(request));
        self.send(hop, now);
    }

    fn send(&mut self, hop: usize, now: Tick) {
        if self.wires[hop].is_busy {
            return;
        }
        let Some(request) = self.wires[hop].waiting.pop_front() else { return };
        let way = &self.pool.hops[hop];
        let active = &mut self.active[request as usize];
        active.sent = now;
        let (tokens, epoch) = (active.tokens, active.epoch);
        let bytes = f64::from(tokens) * self.pool.message_bytes(way);
        let left = now + Tick::from_seconds_in_ns(Seconds::new(bytes / way.bytes_per_s));
        self.wires[hop].is_busy = true;
        self.outcome.hop_tokens[hop] += u64::from(tokens);
        self.push(left, Event::Free { hop: small(hop) });
        self.push(left + Tick::from(way.latency), Event::Arrive { request, epoch });
    }

    /// A message has come to a station, or back to the coordinator.
    fn arrive(&mut self, request: usize, now: Tick, ends: &mut Ends) {
        let active = &mut self.active[request];
        let hop = active.path[active.at];
        active.at += 1;
        let tokens = u64::from(active.tokens);
        let Some(node) = self.pool.hops[hop].to else { return self.round_ends(request, now) };
        let station = &mut self.stations[node];
        let entry = self.pool.entry(&self.pool.hops[hop], node) - self.pool.nodes[node].first;
        station.queues[entry as usize].push_back(small(request));
        station.received += tokens;
        self.work(node, now, ends);
    }

    /// Begins a batch where a station is idle and has work.
    fn work(&mut self, node: usize, now: Tick, ends: &mut Ends) {
        let station = &mut self.stations[node];
        if station.begun.is_some() {
            return;
        }
        let n = station.queues.len();
        let Some(step) = (0..n).find(|step| !station.queues[(station.layer + step) % n].is_empty()) else { return };
        station.layer = (station.layer + step) % n;
        let (prompt_tokens, decodes) = self.batch(node);
        let station = &mut self.stations[node];
        let held = &self.pool.nodes[node];
        let layer_s = held.prompt.at(prompt_tokens) + held.decode.at(decodes);
        let n_layers = if n == 1 { f64::from(held.n_layers()) } else { 1.0 };
        let mut seconds = layer_s * n_layers;
        if station.layer == 0 {
            let bytes = hw::real(std::mem::take(&mut station.received)) * self.pool.activation_bytes;
            seconds += bytes / self.pool.copy_bytes_per_s;
        }
        let took = Tick::from_seconds_in_ns(Seconds::new(seconds));
        station.begun = Some(now);
        ends.set(small(node), now + took);
    }

    /// Takes requests from the queue in order as far as the limits allow, and says what they weigh. One that no limit allows goes alone.
    fn batch(&mut self, node: usize) -> (f64, f64) {
        let room = self.pool.nodes[node].room;
        let prompt_tokens_max = u64::from(self.pool.prompt_tokens_max) * u64::from(room.prompts);
        let context_max = u64::from(self.pool.context_per_decode) * u64::from(room.decodes);
        let (mut prompts, mut prompt_tokens, mut decodes, mut context) = (0, 0_u64, 0, 0_u64);
        let station = &mut self.stations[node];
        let mut rest = VecDeque::new();
        let queue = std::mem::take(&mut station.queues[station.layer]);
        for request in queue {
            let active = &self.active[request as usize];
            let (tokens, cached) = (u64::from(active.tokens), u64::from(active.context));
            let fits = if active.is_prompt {
                prompts < room.prompts && prompt_tokens + tokens <= prompt_tokens_max
            } else {
                decodes < room.decodes && context + cached <= context_max
            };
            if !fits && !station.batch.is_empty() {
                rest.push_back(request);
                continue;
            }
            station.batch.push(request);
            if active.is_prompt {
                (prompts, prompt_tokens) = (prompts + 1, prompt_tokens + tokens);
            } else {
                (decodes, context) = (decodes + 1, context + cached);
            }
        }
        station.queues[station.layer] = rest;
        (hw::real(prompt_tokens), f64::from(decodes))
    }

    fn end_of_batch(&mut self, node: usize, now: Tick, ends: &mut Ends) {
        ends.set(small(node), IDLE);
        self.rest(node, now);
        let station = &mut self.stations[node];
        let batch = std::mem::take(&mut station.batch);
        let n = station.queues.len();
        let layer = station.layer;
        // The layer after the one just done is looked at first.
        station.layer = (layer + 1) % n;
        if layer + 1 < n {
            station.queues[layer + 1].extend(batch);
        } else {
            for request in batch {
                self.done(node, request as usize, now);
            }
        }
        self.work(node, now, ends);
    }

    /// A station stops working: what it worked until now counts, and nothing of a batch that goes on.
    fn rest(&mut self, node: usize, now: Tick) {
        if let Some(begun) = self.stations[node].begun.take() {
            self.outcome.busy_ns[node] += (now - begun).as_ns();
        }
    }

    /// A request is through with a station.
    fn done(&mut self, node: usize, request: usize, now: Tick) {
        let active = &mut self.active[request];
        let hop = active.path[active.at - 1];
        let tokens = u64::from(active.tokens);
        active.n_cached = active.at;
        self.paths.crossed(hop, (now - active.sent).span().to_seconds().get());
        let station = &mut self.stations[node];
        station.cached += tokens * self.pool.layers_done(hop);
        self.outcome.kv_peak[node] = self.outcome.kv_peak[node].max(station.cached);
        self.leave(request, now);
    }

    /// A prompt or a generated token is back at the coordinator.
    fn round_ends(&mut self, request: usize, now: Tick) {
        let active = &self.active[request];
        let was_prompt = active.is_prompt;
        self.count(request, now);
        let active = &mut self.active[request];
        active.answered[0] = active.answered[0].min(now);
        active.context += active.tokens;
        (active.at, active.n_cached, active.begun) = (0, 0, now);
        (active.is_prompt, active.is_again, active.tokens) = (false, false, 1);
        let ends = active.left == 0;
        if ends {
            self.end(request, now);
        } else {
            active.left -= 1;
            self.paths.again(&active.path);
            self.leave(request, now);
        }
        let more = match self.asked.load {
            Load::Open => false,
            Load::Closed { .. } => ends,
            Load::Filled { level_ratio, .. } => (was_prompt || ends) && self.paths.filled_ratio() <= level_ratio,
        };
        if more {
            self.issue(now + Tick::from(PAUSE));
        }
    }

    /// Counts a round that ends. A prompt that was lost gives the token that was under way, and no prompt counts twice.
    fn count(&mut self, request: usize, now: Tick) {
        let active = &self.active[request];
        let is_prompt = active.is_prompt && !active.is_again;
        let tokens = if active.is_again { 1 } else { active.tokens };
        let warm_up = Tick::from(self.asked.warm_up);
        let took = (now - active.begun).as_ns();
        // The first token of a request is its prompt's.
        let is_first = active.is_again && active.left + 1 == active.output;
        let (is_prompt, tokens) = if is_first { (true, active.prompt) } else { (is_prompt, tokens) };
        self.outcome.recomputed_tokens += u64::from(if active.is_again { active.tokens } else { 0 });
        self.outcome.from_start.add(is_prompt, tokens);
        if active.begun >= warm_up {
            self.outcome.within.add(is_prompt, tokens);
        }
        if now >= warm_up && is_prompt {
            self.outcome.prompt_tokens += u64::from(tokens);
            self.outcome.prompt_ns.push(took);
        } else if now >= warm_up {
            self.outcome.decode_tokens += 1;
            self.outcome.decode_ns.push(took);
        }
    }

    /// A request had a path from one moment to another.
    fn flown(&mut self, issued: Tick, ended: Tick) {
        let warm_up = self.asked.warm_up.as_ns();
        let (issued, ended) = (issued.as_ns(), ended.as_ns());
        self.outcome.from_start.in_flight_ns += ended - issued;
        self.outcome.within.in_flight_ns += ended.max(warm_up) - issued.max(warm_up);
    }

    /// A request leaves the stations, and others may find a path.
    fn end(&mut self, request: usize, now: Tick) {
        self.let_go(request, now);
        self.active[request].answered[1] = now;
        self.outcome.n_ended += 1;
        self.admit(now);
    }

    /// What a request has on its path comes free.
    fn let_go(&mut self, request: usize, now: Tick) {
        let active = &mut self.active[request];
        let path = std::mem::take(&mut active.path);
        let (context, tokens, n_cached) = (u64::from(active.context), u64::from(active.tokens), active.n_cached);
        let (issued, prompt) = (active.issued, active.prompt);
        self.flown(issued, now);
        for (index, &hop) in path.iter().enumerate() {
            if let Some(node) = self.pool.hops[hop].to {
                let held = context + if index < n_cached { tokens } else { 0 };
                self.stations[node].cached -= held * self.pool.layers_done(hop);
            }
        }
        self.paths.left(&path, prompt);
    }

    /// What was counted until the end.
    fn outcome(mut self) -> Outcome {
        self.outcome.n_waiting = self.waiting.len() as u64;
        if matches!(self.asked.load, Load::Open) {
            self.outcome.answers = self.active.iter().map(Active::answer).collect();
            self.outcome.answers.resize(self.asked.requests.len(), None);
        }
        let under_way = self.active.iter().filter(|active| !active.path.is_empty());
        let issued: Vec<Tick> = under_way.map(|active| active.issued).collect();
        let until = self.until();
        for node in 0..self.stations.len() {
            self.rest(node, until);
        }
        let cached: u64 = self.stations.iter().map(|station| station.cached).sum();
        assert!(!issued.is_empty() || cached == 0, "nobody is under way, but {cached} tokens times layers are cached");
        for issued in issued {
            self.flown(issued, until);
        }
        self.outcome
    }
}

fn station(pool: &Pool, node: usize) -> Station {
    let enters_inside =
        pool.hops.iter().any(|hop| hop.to == Some(node) && pool.entry(hop, node) > pool.nodes[node].first);
    let n_queues = if enters_inside { pool.nodes[node].n_layers() as usize } else { 1 };
    Station {
        queues: vec![VecDeque::new(); n_queues],
        layer: 0,
        batch: Vec::new(),
        begun: None,
        received: 0,
        cached: 0,
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2^32 stations, hops and requests")
}

impl Run<'_, '_> {
    /// A batch of a station ends.
    pub(in crate::fleet) fn batch_ends(&mut self, node: u32, now: Tick) {
        let stations = self.stations.as_mut().expect("a station has ended");
        stations.end_of_batch(node as usize, now, &mut self.ends);
    }

    /// Moves messages between stations on to now.
    pub(in crate::fleet) fn pass_on(&mut self, now: Tick) {
        if let Some(stations) = &mut self.stations {
            stations.advance(now, &mut self.ends);
        }
    }

    /// Plays stations until the end that was asked for.
    pub(in crate::fleet) fn play_stations(mut self) -> Outcome {
        let until = self.stations.as_ref().map_or(Tick::ZERO, |stations| stations.until());
        self.run_until(until + Tick::ONE);
        let changes = self.control.changes;
        let stations = self.stations.take().expect("stations that are played");
        Outcome { n_outages: changes.n_outages, n_retried: changes.n_retried, ..stations.outcome() }
    }
}
