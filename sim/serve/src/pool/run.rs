//! The event loop of a pool: batches end, messages leave, messages arrive.
//!
//! Order: time, then insertion. A node without entries between its layers runs a batch through all layers at once, which is the same as
//! layer by layer, because nothing can join. Elsewhere it goes round its layers and skips those without work. Every hop sends one message
//! at a time; a message arrives `latency` after it left.

use std::collections::VecDeque;

use hw::{Seconds, Span, Time};

use super::path::Paths;
use super::{Load, Outcome, PAUSE, Pool, Run};
use engine::queue::Queue;

/// A request under way; exactly one event, queue, batch or hop has it.
struct Active {
    prompt: u32,
    /// Tokens still to be generated.
    left: u32,
    /// Cached tokens.
    context: u32,
    /// Hops of its path; empty until it has one.
    path: Vec<usize>,
    /// Hops done of this round.
    at: usize,
    is_prompt: bool,
    /// When it got its path.
    issued: Time,
    /// When this round began.
    begun: Time,
    /// When its last message began to leave.
    sent: Time,
}

impl Active {
    const fn tokens(&self) -> u32 {
        if self.is_prompt { self.prompt } else { 1 }
    }
}

/// A node at work.
struct Station {
    /// Requests before each layer, or before the first where none enters between layers.
    queues: Vec<VecDeque<u32>>,
    layer: usize,
    batch: Vec<u32>,
    is_busy: bool,
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

struct Loop<'l> {
    pool: &'l Pool,
    paths: &'l mut dyn Paths,
    asked: &'l Run<'l>,
    events: Queue,
    active: Vec<Active>,
    stations: Vec<Station>,
    wires: Vec<Wire>,
    /// Requests without a path, in order.
    waiting: VecDeque<u32>,
    outcome: Outcome,
}

/// Serves requests until the end of the run.
#[must_use]
pub fn run(pool: &Pool, paths: &mut dyn Paths, asked: &Run<'_>) -> Outcome {
    let n = pool.nodes.len();
    let station = |node: usize| {
        let enters_inside =
            pool.hops.iter().any(|hop| hop.to == Some(node) && pool.entry(hop, node) > pool.nodes[node].first);
        let n_queues = if enters_inside { pool.nodes[node].n_layers() as usize } else { 1 };
        Station {
            queues: vec![VecDeque::new(); n_queues],
            layer: 0,
            batch: Vec::new(),
            is_busy: false,
            received: 0,
            cached: 0,
        }
    };
    let outcome = Outcome {
        busy_ns: vec![0; n],
        kv_peak: vec![0; n],
        hop_tokens: vec![0; pool.hops.len()],
        ..Outcome::default()
    };
    let mut all = Loop {
        pool,
        paths,
        asked,
        events: Queue::default(),
        active: Vec::new(),
        stations: (0..n).map(station).collect(),
        wires: pool.hops.iter().map(|_| Wire::default()).collect(),
        waiting: VecDeque::new(),
        outcome,
    };
    all.begin();
    while let Some(event) = all.events.pop() {
        if event.at > asked.until {
            break;
        }
        all.handle(event.slot as usize, event.at);
    }
    all.outcome.n_waiting = all.waiting.len() as u64;
    let still: Vec<Time> =
        all.active.iter().filter(|active| !active.path.is_empty()).map(|active| active.issued).collect();
    still.into_iter().for_each(|issued| all.flown(issued, asked.until));
    all.outcome
}

impl Loop<'_> {
    fn begin(&mut self) {
        if self.asked.requests.is_empty() {
            return;
        }
        match self.asked.load {
            Load::Open => self.issue(Time::ZERO),
            Load::Closed { in_flight: n } | Load::Filled { start: n, .. } => {
                let mut at = Time::ZERO;
                for _ in 0..n {
                    self.issue(at);
                    at = at + PAUSE;
                }
            }
        }
    }

    /// Puts the next request into the queue of events.
    fn issue(&mut self, at: Time) {
        let index = self.active.len();
        let n = self.asked.requests.len();
        let is_open = matches!(self.asked.load, Load::Open);
        if is_open && index >= n {
            return;
        }
        let request = &self.asked.requests[index % n];
        let begun = if is_open { request.arrival } else { at };
        self.active.push(Active {
            prompt: request.prompt,
            left: request.output.saturating_sub(1),
            context: 0,
            path: Vec::new(),
            at: 0,
            is_prompt: true,
            issued: begun,
            begun,
            sent: begun,
        });
        self.events.push(begun, self.slot_of(index));
    }

    /// Events of nodes come first, then those of hops, then those of requests.
    fn slot_of(&self, request: usize) -> u32 {
        u32::try_from(self.stations.len() + self.wires.len() + request).expect("fewer than 2^32 requests")
    }

    fn handle(&mut self, slot: usize, now: Time) {
        let (n, hops) = (self.stations.len(), self.wires.len());
        if slot < n {
            self.end_of_batch(slot, now);
        } else if slot < n + hops {
            self.wires[slot - n].is_busy = false;
            self.send(slot - n, now);
        } else {
            let request = slot - n - hops;
            if self.active[request].path.is_empty() {
                if matches!(self.asked.load, Load::Open) {
                    self.issue(now);
                }
                self.waiting.push_back(index(request));
                self.admit(now);
                if matches!(self.asked.load, Load::Filled { .. }) {
                    // There is always another one to try: what finds no path is put back.
                    self.outcome.n_put_back += self.waiting.len() as u64;
                    self.waiting.clear();
                }
            } else {
                self.arrive(request, now);
            }
        }
    }

    /// Gives paths to requests that wait, first come, first served.
    fn admit(&mut self, now: Time) {
        while let Some(&request) = self.waiting.front() {
            let request = request as usize;
            let Some(path) = self.paths.path(self.active[request].prompt) else { return };
            self.waiting.pop_front();
            self.outcome.n_issued += 1;
            self.active[request].path = path;
            self.active[request].issued = now;
            self.leave(request, now);
        }
    }

    /// A request goes to its next hop.
    fn leave(&mut self, request: usize, now: Time) {
        let hop = self.active[request].path[self.active[request].at];
        self.wires[hop].waiting.push_back(index(request));
        self.send(hop, now);
    }

    fn send(&mut self, hop: usize, now: Time) {
        if self.wires[hop].is_busy {
            return;
        }
        let Some(request) = self.wires[hop].waiting.pop_front() else { return };
        let way = &self.pool.hops[hop];
        let tokens = self.active[request as usize].tokens();
        let bytes = f64::from(tokens) * self.pool.message_bytes(way);
        let left = now + Span::from_seconds(Seconds::new(bytes / way.bytes_per_s));
        self.wires[hop].is_busy = true;
        self.active[request as usize].sent = now;
        self.outcome.hop_tokens[hop] += u64::from(tokens);
        self.events.push(left, index(self.stations.len() + hop));
        self.events.push(left + way.latency, self.slot_of(request as usize));
    }

    /// A message has come to a node, or back to the coordinator.
    fn arrive(&mut self, request: usize, now: Time) {
        let active = &mut self.active[request];
        let hop = active.path[active.at];
        active.at += 1;
        let tokens = u64::from(active.tokens());
        let Some(node) = self.pool.hops[hop].to else { return self.round_ends(request, now) };
        let station = &mut self.stations[node];
        let entry = self.pool.entry(&self.pool.hops[hop], node) - self.pool.nodes[node].first;
        station.queues[entry as usize].push_back(index(request));
        station.received += tokens;
        self.work(node, now);
    }

    /// Begins a batch where a node is idle and has work.
    fn work(&mut self, node: usize, now: Time) {
        let station = &mut self.stations[node];
        if station.is_busy {
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
            let bytes = hw::Tokens(std::mem::take(&mut station.received)).as_f64() * self.pool.activation_bytes;
            seconds += bytes / self.pool.copy_bytes_per_s;
        }
        let span = Span::from_seconds(Seconds::new(seconds));
        station.is_busy = true;
        self.outcome.busy_ns[node] += span.as_ns();
        self.events.push(now + span, index(node));
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
            let (tokens, cached) = (u64::from(active.prompt), u64::from(active.context));
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
        (hw::Tokens(prompt_tokens).as_f64(), f64::from(decodes))
    }

    fn end_of_batch(&mut self, node: usize, now: Time) {
        let station = &mut self.stations[node];
        let batch = std::mem::take(&mut station.batch);
        station.is_busy = false;
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
        self.work(node, now);
    }

    /// A request is through with a node.
    fn done(&mut self, node: usize, request: usize, now: Time) {
        let active = &self.active[request];
        let hop = active.path[active.at - 1];
        let tokens = u64::from(active.tokens());
        self.paths.crossed(hop, (now - active.sent).to_seconds().get());
        let station = &mut self.stations[node];
        station.cached += tokens * self.pool.layers_done(hop);
        self.outcome.kv_peak[node] = self.outcome.kv_peak[node].max(station.cached);
        self.leave(request, now);
    }

    /// A prompt or a generated token is back at the coordinator.
    fn round_ends(&mut self, request: usize, now: Time) {
        let active = &mut self.active[request];
        let (was_prompt, tokens) = (active.is_prompt, active.tokens());
        let took = (now - active.begun).as_ns();
        self.outcome.from_start.add(was_prompt, tokens);
        if active.begun >= self.asked.warm_up {
            self.outcome.within.add(was_prompt, tokens);
        }
        if now >= self.asked.warm_up {
            if was_prompt {
                self.outcome.prompt_tokens += u64::from(tokens);
                self.outcome.prompt_ns.push(took);
            } else {
                self.outcome.decode_tokens += 1;
                self.outcome.decode_ns.push(took);
            }
        }
        active.context += tokens;
        active.at = 0;
        active.begun = now;
        active.is_prompt = false;
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
            self.issue(now + PAUSE);
        }
    }

    /// A request had a path from one moment to another.
    fn flown(&mut self, issued: Time, ended: Time) {
        let warm_up = self.asked.warm_up;
        self.outcome.from_start.in_flight_ns += (ended - issued).as_ns();
        self.outcome.within.in_flight_ns += (ended.max(warm_up) - issued.max(warm_up)).as_ns();
    }

    /// A request leaves the pool, and others may find a path.
    fn end(&mut self, request: usize, now: Time) {
        let active = &mut self.active[request];
        let (path, prompt) = (std::mem::take(&mut active.path), active.prompt);
        let (context, issued) = (active.context, active.issued);
        self.flown(issued, now);
        for &hop in &path {
            if let Some(node) = self.pool.hops[hop].to {
                self.stations[node].cached -= u64::from(context) * self.pool.layers_done(hop);
            }
        }
        self.outcome.n_ended += 1;
        self.paths.left(&path, prompt);
        self.admit(now);
    }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2^32 nodes, hops and requests")
}
