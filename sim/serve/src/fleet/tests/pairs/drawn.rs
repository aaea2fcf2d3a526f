//! Draws of fleets and loads. All times are whole nanoseconds times a factor, so that a law may scale them.

use std::num::NonZeroU32;

use hw::{Bytes, Seconds, Span, Tick, Time};

use super::Drawn;
use crate::adapters::{AdapterLimits, Popularity};
use crate::arrivals::{Arrivals, lay};
use crate::batcher;
use crate::fleet::dynamics::{Concurrency, Failures, Outage, Rule, Scaling};
use crate::fleet::held::Users;
use crate::fleet::start::Start;
use crate::fleet::{Fleet, Group, Link};
use crate::frontend::Frontend;
use crate::kv::remote::Remote;
use crate::kv::tiers::Tier;
use crate::replica::batcher::Cut;
use crate::replica::{CapacityPolicy, Engine, FirstToken, Gather, Limits, Order, Preemption, PromptRank, Role, Spans};
use crate::request::{Patience, Placed, Request, Requests};
use crate::sessions::Sessions;
use crate::speculation::Speculation;
use crate::step_cost::StepTable;
use crate::step_cost::chunks::{Chunking, Sizes};
use crate::step_cost::host::{EngineLoop, Host};
use crate::step_cost::lanes::Lanes;
use engine::model::Image;
use engine::random::{self, Stream};

/// Tokens of the longest prompt and of the longest answer.
const LONGEST: [u32; 2] = [200, 40];
/// Tokens that a shared prefix stands for.
const PREFIX: u32 = 16;

fn pick<T: Copy>(draw: &mut Stream, of: &[T]) -> T {
    of[usize::try_from(draw.below(of.len() as u64)).expect("an index")]
}

/// Whether something is that happens once in so many draws.
fn once_in(draw: &mut Stream, n: u64) -> bool {
    draw.below(n) == 0
}

fn some(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("above 0")
}

/// What is drawn of one fleet.
struct Drawing {
    draw: Stream,
    /// Factor of all times.
    factor: u32,
    words: Vec<String>,
}

impl Drawing {
    fn ms(&self, ms: f64) -> Seconds {
        Seconds::new(ms * 1e-3 * f64::from(self.factor))
    }

    fn ticks(&self, ms: f64) -> Tick {
        Tick::from_seconds(self.ms(ms))
    }

    fn note(&mut self, word: impl Into<String>) {
        self.words.push(word.into());
    }

    /// Once in so many draws, which is noted.
    fn once_in(&mut self, n: u64, word: &str) -> bool {
        let is = once_in(&mut self.draw, n);
        if is {
            self.note(word);
        }
        is
    }

    fn lanes(&mut self) -> Lanes {
        let (stages, ranks) = pick(&mut self.draw, &[(1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4)]);
        if stages > 1 {
            self.note(format!("stages {stages}"));
        }
        if ranks > 1 {
            self.note(format!("ranks {ranks}"));
        }
        Lanes { stages, ranks }
    }

    fn engine(&mut self, shares: bool) -> Engine {
        let names = ["vllm-v1", "vllm-v1", "sarathi", "sglang", "trtllm", "vllm-v0"];
        let batcher = batcher::named(pick(&mut self.draw, &names)).expect("listed");
        self.note(batcher.name());
        let lanes = self.lanes();
        let is_whole = batcher.cut() == Cut::Never;
        let tokens_max = if is_whole { 256 } else { pick(&mut self.draw, &[16, 48, 128]) };
        let n_drafts = if self.once_in(5, "drafts") { pick(&mut self.draw, &[1, 3]) } else { 0 };
        let limits = self.limits(lanes, tokens_max, shares);
        let limits = Limits { sequences_max: limits.sequences_max.min(tokens_max / (1 + n_drafts)), ..limits };
        let [step, token, key] = [1.0, 0.01, 0.0003].map(|ms| self.ms(ms));
        let mut table = StepTable::linear(step, token, key).in_lanes(lanes, tokens_max);
        if n_drafts > 0 {
            let per_draft_ms = pick(&mut self.draw, &[0.0, 0.1]);
            let per_draft = self.ms(per_draft_ms);
            let acceptance = pick(&mut self.draw, &[0.0, 0.6, 1.0]);
            table = table.speculating(&Speculation { n_drafts, tree: None, acceptance, per_draft, seed: 1 });
        }
        if self.once_in(3, "host") {
            let engine_loop = pick(&mut self.draw, &[EngineLoop::Serial, EngineLoop::Asynchronous]);
            self.note(format!("{engine_loop:?}"));
            table = table.hosted(Host::new(engine_loop, self.ms(0.4), self.ms(0.01), self.ms(0.02)));
        }
        if !is_whole && self.once_in(6, "chunks") {
            let tokens_max = tokens_max / 2;
            let sizes = pick(&mut self.draw, &[Sizes::Equal, Sizes::EqualTime]);
            table = table.chunked(Chunking { tokens_max, sizes, block: 4, tokens_min: 4 });
        }
        if limits.adapters.is_some() {
            table = table.adapted(self.ticks(0.001), self.ticks(0.05), [400, 4]);
        }
        Engine { limits, table, batcher, spans: Spans::Closed }
    }

    fn limits(&mut self, lanes: Lanes, tokens_max: u32, shares: bool) -> Limits {
        let block_tokens = pick(&mut self.draw, &[1, 8, 16]);
        let blocks_per_sequence = pick(&mut self.draw, &[0, 0, 0, 2]);
        let longest = (LONGEST[0] + LONGEST[1] + 4).div_ceil(block_tokens) + blocks_per_sequence + 2;
        let sequences = pick(&mut self.draw, &[1, 2, 5, 12]);
        let room = pick(&mut self.draw, &[1, 3, 100]);
        let watermark_blocks = pick(&mut self.draw, &[0, 1]);
        self.note(format!("{sequences} places, {tokens_max} tokens, blocks of {block_tokens}, room for {room}"));
        let policies = [CapacityPolicy::MaxUtilization, CapacityPolicy::WholePrompt, CapacityPolicy::GuaranteedNoEvict];
        let capacity_policy = pick(&mut self.draw, &policies);
        let swaps = self.once_in(5, "swap");
        let host_blocks = pick(&mut self.draw, &[10, 1000]);
        let swap = Preemption::Swap { host_blocks, ticks_per_block: self.ticks(0.05) };
        let has_adapters = lanes == Lanes::ONE && self.once_in(5, "adapters");
        let recv_interval = if self.once_in(5, "looks") { some(4) } else { some(1) };
        let gather = self.gather(lanes);
        let [host, disk] = [self.ticks(0.01), self.ticks(0.04)];
        let tiers = shares && self.once_in(3, "tiers");
        let remote = shares && self.once_in(6, "remote");
        let frontend = if self.once_in(5, "frontend") { self.frontend() } else { Frontend::NONE };
        let [given_ticks, taken_ticks] = [self.ticks(0.02), self.ticks(0.01)];
        Limits {
            sequences_max: sequences,
            tokens_max,
            context_max: 100_000,
            block_tokens,
            blocks_per_sequence,
            kv_blocks: longest * room * lanes.ranks,
            watermark_blocks,
            capacity_policy,
            preemption: if swaps { swap } else { Preemption::Recompute },
            order: Order::Arrival,
            shares_prefixes: shares,
            tiers: if tiers {
                [Tier { blocks: 40, ticks_per_block: host }, Tier { blocks: 100, ticks_per_block: disk }]
            } else {
                crate::kv::tiers::NO_TIERS
            },
            remote: remote.then_some(Remote { room: Bytes(300), block_bytes: 1, given_ticks, taken_ticks }),
            recv_interval,
            gather,
            adapters: has_adapters.then_some(AdapterLimits {
                slots: 2,
                host_slots: 3,
                host_ticks: self.ticks(0.1),
                disk_ticks: self.ticks(0.3),
            }),
            frontend,
            ..Limits::ROOMY
        }
    }

    fn gather(&mut self, lanes: Lanes) -> Option<Gather> {
        if !self.once_in(4, "gathers") {
            return None;
        }
        let of_ranks = Gather::Ranks { iterations: 5, more: 1 };
        Some(if lanes.ranks > 1 { of_ranks } else { Gather::Tokens { iterations: 5, tokens: 60 } })
    }

    fn frontend(&mut self) -> Frontend {
        let per_token_ms = pick(&mut self.draw, &[0.02, 0.3]);
        let per_token = self.ticks(per_token_ms);
        Frontend {
            per_token,
            interval: some(pick(&mut self.draw, &[1, 4])),
            processes: some(pick(&mut self.draw, &[1, 2])),
        }
    }

    fn requests(&mut self, shares: bool, has_adapters: bool) -> (Requests, Option<Users>) {
        let n = pick(&mut self.draw, &[40, 80]);
        let seed = self.draw.below(1000);
        let mut lengths = random::stream(seed, "lengths");
        let mut length = |most: u32| 1 + u32::try_from(lengths.below(u64::from(most))).expect("small");
        let prompt_max = if shares { 60 } else { LONGEST[0] };
        let list = (0..n).map(|_| Request::new(Time::ZERO, length(prompt_max), length(LONGEST[1]))).collect();
        let mut requests = Requests::of(list);
        let is_held = self.once_in(5, "held");
        if shares && (is_held || self.once_in(2, "turns")) {
            let context_max = LONGEST[0] + LONGEST[1];
            let sessions = Sessions { turns: 3.0, system: 20, context_max, block_tokens: PREFIX };
            requests = sessions.lay(&requests, seed);
            crate::sessions::lay_pauses(&mut requests, Seconds::new(0.01), seed);
            self.note("sessions");
        } else if shares {
            requests = beginning_alike(requests, &mut self.draw);
        }
        if has_adapters {
            requests = Popularity { count: 5, rank: 8, skew: 0.7, none_ratio: 0.2 }.lay(requests, seed);
        }
        self.clients(&mut requests, seed);
        let per_s = pick(&mut self.draw, &[20.0, 100.0, 500.0, 5000.0]);
        self.note(format!("{} requests, {per_s}/s", requests.len()));
        if requests.follows.is_empty() || !is_held {
            lay(&mut requests, Arrivals::Poisson { per_s }, seed);
        }
        let stretch = |span: Span| Span::from_ns(span.as_ns() * u64::from(self.factor));
        for request in &mut requests.list {
            request.arrival = Time::ZERO + stretch(request.arrival - Time::ZERO);
        }
        requests.pauses.iter_mut().for_each(|pause| *pause = stretch(*pause));
        let held = Users::Held { n: pick(&mut self.draw, &[1, 4, 20]), ramp: self.ms(5.0), warm_up: 0 };
        let of_sessions = (!requests.follows.is_empty()).then_some(Users::OfSessions);
        (requests, if is_held { Some(held) } else { of_sessions })
    }

    /// Streams with priorities, patience and clients who have enough.
    fn clients(&mut self, requests: &mut Requests, seed: u64) {
        let n = requests.len();
        if !self.once_in(3, "clients") {
            return;
        }
        // Turns of a session are of one stream.
        let mut stream = 0;
        for index in 0..n {
            stream = if requests.is_turn(index) { stream } else { u32::from(once_in(&mut self.draw, 2)) };
            requests.streams.push(stream);
        }
        if self.once_in(2, "priorities") {
            requests.priorities = vec![2, 1];
        }
        if self.once_in(2, "impatient") {
            let span = |ms: f64| Some(Span::from_seconds(self.ms(ms)));
            requests.patience = vec![
                Patience { first_token: span(60.0), whole: span(200.0) },
                Patience { first_token: None, whole: span(400.0) },
            ];
        }
        // What a session says further on knows the whole answer.
        if requests.follows.is_empty() && self.once_in(2, "cancelled") {
            requests.cancel(0.3, seed);
        }
    }

    fn group(&mut self, name: &str, engine: &Engine, n_replicas: u32, role: Role) -> Group {
        let mut group = Group { role, ..Group::new(name, engine.clone(), n_replicas) };
        group.gpus_per_replica = 2;
        if self.once_in(8, "scaling") {
            let rule = Concurrency { target: 2.0, interval: self.ms(10.0), window: 3 };
            let rule = Rule::Concurrency(rule);
            group.scaling = Some(Scaling { replicas_min: 1, replicas_first: 1, start_up: self.ms(4.0), rule });
        }
        if self.once_in(8, "failures") {
            group.failures = Some(Failures { mtbf: self.ms(300.0), mttr: self.ms(40.0), seed: 3 });
        }
        group
    }

    fn fleet(&mut self, engine: &Engine) -> Fleet {
        let n = pick(&mut self.draw, &[1, 2, 3]);
        self.note(format!("{n} replicas"));
        let mut fleet = Fleet::default();
        if self.once_in(3, "split") {
            let m = pick(&mut self.draw, &[1, 2]);
            let mut prefill = engine.clone();
            if self.once_in(2, "drawn ranks") {
                prefill.limits.prompt_rank = PromptRank::Drawn;
            }
            fleet.groups.push(self.group("prefill", &prefill, n, Role::Prefill));
            fleet.groups.push(self.group("decode", engine, m, Role::Decode));
            let bytes_per_s = pick(&mut self.draw, &[None, Some(2e9)]).map(|rate| rate / f64::from(self.factor));
            let wire = pick(&mut self.draw, &[None, Some(0)]);
            let latency_ms = pick(&mut self.draw, &[0.0, 1.0]);
            let latency_s = self.ms(latency_ms).get();
            fleet.links.push(Link {
                from: 0,
                to: 1,
                bytes_per_s,
                wire,
                latency_s,
                wire_ratio: 1.0,
                pack_s_per_token: 0.0,
            });
            if bytes_per_s.is_some() {
                self.note("bytes on a link");
            }
            if self.once_in(2, "told by decode") {
                fleet.first_token = FirstToken::Decode;
            }
        } else {
            let is_without = engine.limits.adapters.is_none() && self.once_in(8, "outputs alone");
            let role = if is_without { Role::Outputs } else { Role::Both };
            fleet.groups.push(self.group("all", engine, n, role));
        }
        if self.once_in(8, "outage") {
            let at = Time::ZERO + Span::from_seconds(self.ms(50.0));
            let [notice, back] = [self.ms(10.0), self.ms(100.0)];
            fleet.outages.push(Outage { group: 0, replica: 0, at, notice, back_after: Some(back) });
        }
        if self.once_in(8, "starts") {
            let processes = engine.limits.frontend.processes.get();
            let servers = processes * n;
            fleet.start = Start { mean: self.ms(2.0), servers, tokenize: self.ms(0.002), seed: 5, ..Start::default() };
        }
        fleet.handing_on(1e6)
    }
}

/// Prompts of which many begin alike.
fn beginning_alike(mut requests: Requests, draw: &mut Stream) -> Requests {
    (requests.n_prefix_ids, requests.prefix_tokens) = (60, PREFIX);
    for request in &mut requests.list {
        let chain = 6 * u32::try_from(draw.below(10)).expect("small");
        let most = u32::try_from(draw.below(7)).expect("small");
        request.prefix_first = u32::try_from(requests.prefix_ids.len()).expect("small");
        request.prefix_count = most.min(request.prompt / PREFIX);
        requests.prefix_ids.extend(chain..chain + request.prefix_count);
    }
    requests
}

/// Gives every other prompt an image or two of its tokens.
pub(super) fn lay_images(requests: &mut Requests, draw: &mut Stream) {
    for request in &mut requests.list {
        request.image_first = u32::try_from(requests.images.len()).expect("small");
        let mut at = u32::try_from(draw.below(20)).expect("small");
        for _ in 0..draw.below(3) {
            let tokens = 4 + u32::try_from(draw.below(20)).expect("small");
            if at + tokens < request.prompt {
                let image = Image { tokens, marks: 2, patches: 4 * tokens, tiles: 1 };
                requests.images.push(Placed { at, image });
                request.image_count += 1;
                at += tokens + u32::try_from(draw.below(3)).expect("small");
            }
        }
    }
}

/// A draw, all of whose times are so many times as long.
pub(super) fn drawn(number: u64, factor: u32) -> Drawn {
    let draw = random::stream(number, "pairs of mechanisms");
    let mut drawing = Drawing { draw, factor, words: vec![format!("draw {number}")] };
    let shares = drawing.once_in(2, "prefixes");
    let mut engine = drawing.engine(shares);
    let (mut requests, users) = drawing.requests(shares, engine.limits.adapters.is_some());
    let mut images = random::stream(number, "images");
    // Turns of a session share theirs.
    if requests.follows.is_empty() && once_in(&mut images, 4) {
        drawing.note("images");
        lay_images(&mut requests, &mut images);
        engine.table = engine.table.encoding_at(drawing.ms(pick(&mut images, &[0.0, 0.004, 0.1])));
    }
    if !requests.priorities.is_empty() {
        engine.limits.order = Order::Priority;
    }
    let fleet = drawing.fleet(&engine);
    let routers = ["round-robin", "random", "least-loaded", "least-memory", "power-of-two", "prefix-aware"];
    let router = pick(&mut drawing.draw, &routers);
    drawing.note(router);
    Drawn { words: drawing.words, fleet, requests, users, router }
}
