//! Adapters: the cap and the loading against an engine that keeps every sequence and the order of uses by itself, and spans against single steps.

use super::brute_force::{Sequence, step_ticks};
use super::*;
use crate::adapters::{AdapterLimits, Popularity};
use crate::step_cost::host::{EngineLoop, Host};

const ROOM: AdapterLimits =
    AdapterLimits { slots: 3, host_slots: 5, host_ticks: Tick::new(400_000), disk_ticks: Tick::new(900_000) };
const RANK: u32 = 8;

/// Requests that ask for eight adapters, or for none.
fn asked(n: u32, per_s: f64, seed: u64, shares: bool) -> Requests {
    let popularity = Popularity { count: 8, rank: RANK, skew: 0.7, none_ratio: 0.15 };
    popularity.lay(requests(n, per_s, seed, shares), seed)
}

fn with_room(batcher: &str, kv_blocks: u32, preemption: Preemption, spans: Spans) -> Engine {
    let mut engine = engine(batcher, kv_blocks, preemption, spans);
    engine.limits.adapters = Some(ROOM);
    engine.table = engine.table.adapted(Tick::new(3000), Tick::new(70_000), [200, ROOM.slots]);
    engine
}

#[test]
fn spans_are_single_steps_with_adapters() {
    let mut counted = [0; 3];
    for batcher in ["vllm-v1", "sarathi", "sglang", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (30, Preemption::Recompute), (30, SWAP)] {
            for seed in 0..6 {
                let requests = asked(400, [20.0, 60.0, 200.0][seed as usize % 3], seed, seed % 2 == 1);
                let engine = |spans| {
                    let mut engine = with_room(batcher, kv_blocks, preemption, spans);
                    engine.limits.recv_interval = looks_every([1, 4, 30][seed as usize % 3]);
                    if seed > 2 {
                        let per_step = Seconds::new(4e-4);
                        let host = Host::new(EngineLoop::Asynchronous, per_step, Seconds::ZERO, Seconds::ZERO);
                        engine.table = engine.table.hosted(host);
                    }
                    engine
                };
                let closed = run(&requests, &engine(Spans::Closed));
                let mut single = run(&requests, &engine(Spans::Stepwise));
                single.counts[0].n_spans = closed.counts[0].n_spans;
                assert!(single == closed, "{batcher}, {kv_blocks} blocks, {preemption:?}, seed {seed}");
                let counts = closed.counts[0];
                counted[0] += counts.n_adapter_loads;
                counted[1] += counts.n_passed_over;
                counted[2] += counts.n_preempted;
            }
        }
    }
    assert!(counted.iter().all(|n| *n > 1000), "loads, requests passed over, preemptions: {counted:?}");
}

#[test]
fn an_engine_without_room_serves_as_if_nobody_asked() {
    let requests = asked(300, 50.0, 2, false);
    let without = Requests { adapters: Vec::new(), ranks: Vec::new(), ..requests.clone() };
    let plain = engine("vllm-v1", 40, Preemption::Recompute, Spans::Closed);
    assert!(run(&requests, &plain) == run(&without, &plain));
    let with = with_room("vllm-v1", 40, Preemption::Recompute, Spans::Closed);
    assert!(run(&without, &with) == run(&without, &plain), "and one with room where nobody asks");
}

/// vLLM V1 with room for everybody's blocks, sequence by sequence.
struct Brute<'r> {
    requests: &'r Requests,
    limits: Limits,
    running: Vec<Sequence>,
    waiting: Vec<Sequence>,
    /// The adapter used last is at the end: the last three are on the device, the last five in host memory.
    used: Vec<u32>,
    loads: u64,
    passed: std::collections::BTreeSet<usize>,
}

impl Brute<'_> {
    fn adapter(&self, sequence: &Sequence) -> u32 {
        self.requests.adapters[sequence.request]
    }

    /// Adapters of sequences, each once.
    fn different<'s>(&self, sequences: impl Iterator<Item = &'s Sequence>) -> Vec<u32> {
        let mut found: Vec<u32> = sequences.map(|of| self.adapter(of)).filter(|adapter| *adapter > 0).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Uses an adapter beside those that run, which count as used now; ticks to load it.
    fn load(&mut self, asked: u32, in_use: &[u32]) -> Tick {
        let idle = self.used.iter().rev().filter(|other| !in_use.contains(other));
        let behind = in_use.len() + idle.take_while(|other| **other != asked).count();
        let is_far = |slots: u32| behind >= slots as usize;
        let ticks = |ticks: Tick, is_far: bool| if is_far { ticks * u64::from(RANK) } else { Tick::ZERO };
        self.loads += u64::from(is_far(ROOM.slots));
        self.used.retain(|other| *other != asked);
        self.used.push(asked);
        ticks(ROOM.host_ticks, is_far(ROOM.slots)) + ticks(ROOM.disk_ticks, is_far(ROOM.host_slots))
    }

    /// Tokens of everybody who runs in the next iteration, and ticks that it waits for adapters.
    fn compose(&mut self) -> (Vec<u32>, Tick) {
        let decodes = self.running.iter().filter(|sequence| sequence.decodes).count();
        let mut left = self.limits.tokens_max - u32::try_from(decodes).expect("few");
        let mut tokens: Vec<u32> = Vec::new();
        for sequence in &self.running {
            let new = if sequence.decodes { 1 } else { (sequence.target - sequence.cached).min(left) };
            left -= if sequence.decodes { 0 } else { new };
            tokens.push(new);
        }
        let (mut at, mut waits) = (0, Tick::ZERO);
        while at < self.waiting.len() && self.running.len() < self.limits.sequences_max as usize && left > 0 {
            let asked = self.adapter(&self.waiting[at]);
            let in_use = self.different(self.running.iter());
            let is_new = asked > 0 && !in_use.contains(&asked);
            if is_new && in_use.len() == ROOM.slots as usize {
                at += 1;
                continue;
            }
            self.passed.extend(self.waiting[..at].iter().map(|sequence| sequence.request));
            let sequence = self.waiting.remove(at);
            waits += if is_new { self.load(asked, &in_use) } else { Tick::ZERO };
            let new = sequence.target.min(left);
            left -= new;
            self.running.push(sequence);
            tokens.push(new);
        }
        (tokens, waits)
    }

    /// Ticks of an iteration.
    fn ticks(&self, engine: &Engine, tokens: &[u32]) -> Tick {
        let computed = || self.running.iter().zip(tokens).filter(|(_, new)| **new > 0);
        let of_adapters: u32 = computed().filter(|(of, _)| self.adapter(of) > 0).map(|(_, new)| new).sum();
        let kinds = self.different(computed().map(|(sequence, _)| sequence)).len() as u64;
        step_ticks(engine, &self.running, tokens) + Tick::new(3000) * u64::from(of_adapters) + Tick::new(70_000) * kinds
    }

    /// Tokens are computed at a moment; who has all of them leaves.
    fn end(&mut self, tokens: &[u32], now: Time, times: &mut [(Time, Time)]) {
        for (sequence, new) in self.running.iter_mut().zip(tokens) {
            sequence.cached += new;
            if *new > 0 && sequence.cached == sequence.target {
                sequence.generated += 1;
                sequence.target += 1;
                sequence.decodes = true;
                let times = &mut times[sequence.request];
                *times = (if times.0 == Time::ZERO { now } else { times.0 }, now);
            }
        }
        let is_done = |of: &Sequence| of.generated >= self.requests.list[of.request].output;
        let mut gone: Vec<Sequence> = self.running.extract_if(.., |of| is_done(of)).collect();
        gone.sort_by_key(|of| std::cmp::Reverse(self.requests.adapters[of.request]));
        for adapter in gone.iter().map(|of| self.requests.adapters[of.request]).filter(|adapter| *adapter > 0) {
            self.used.retain(|other| *other != adapter);
            self.used.push(adapter);
        }
    }
}

/// First and last tokens, loads, and how many were passed over.
fn brute_force(requests: &Requests, engine: &Engine) -> (Vec<(Time, Time)>, u64, usize) {
    let (running, waiting, used) = (Vec::new(), Vec::new(), (1..=8).rev().collect());
    let passed = std::collections::BTreeSet::new();
    let mut brute = Brute { requests, limits: engine.limits, running, waiting, used, loads: 0, passed };
    let (mut next, mut now) = (0, Tick::ZERO);
    let mut times = vec![(Time::ZERO, Time::ZERO); requests.len()];
    while next < requests.len() || !brute.waiting.is_empty() || !brute.running.is_empty() {
        if brute.waiting.is_empty() && brute.running.is_empty() {
            now = now.max(Tick::from(requests.list[next].arrival));
        }
        while next < requests.len() && Tick::from(requests.list[next].arrival) <= now {
            let target = requests.list[next].prompt;
            let blocks = Vec::new();
            brute.waiting.push(Sequence { request: next, generated: 0, cached: 0, target, decodes: false, blocks });
            next += 1;
        }
        let (tokens, waits) = brute.compose();
        now += brute.ticks(engine, &tokens) + waits;
        brute.end(&tokens, now.time(), &mut times);
    }
    (times, brute.loads, brute.passed.len())
}

#[test]
fn the_cap_and_the_loading_are_those_of_a_brute_force_engine() {
    let mut counted = (0, 0);
    for seed in 0..12 {
        let requests = asked(200, [15.0, 50.0, 150.0][seed as usize % 3], 50 + seed, false);
        let engine = with_room("vllm-v1", 100_000, Preemption::Recompute, Spans::Closed);
        let served = run(&requests, &engine);
        let (times, loads, passed) = brute_force(&requests, &engine);
        let found: Vec<_> =
            served.records.list.iter().map(|record| (record.first_token(), record.finished())).collect();
        let expected: Vec<_> = times.iter().map(|(first, last)| (Some(*first), Some(*last))).collect();
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "seed {seed}: first request that differs");
        let counts = served.counts[0];
        assert_eq!((counts.n_adapter_loads, counts.n_passed_over), (loads, passed as u64), "seed {seed}");
        counted = (counted.0 + loads, counted.1 + passed);
    }
    assert!(counted.0 > 500 && counted.1 > 100, "loads and requests passed over: {counted:?}");
}

/// Sixteen requests at once, the adapters that they ask for, and who is taken in at once with four slots: the example of vllm-project/vllm
/// pull request 15422.
#[test]
fn who_is_taken_in_is_who_vllm_takes_in() {
    let mut requests = Requests::of(vec![Request::new(Time::ZERO, 4, 9); 17]);
    // One that starts the idle engine, then the sixteen.
    requests.adapters = vec![0, 0, 0, 0, 1, 3, 2, 4, 5, 5, 5, 5, 0, 0, 1, 2, 3];
    requests.ranks = vec![RANK; 5];
    let mut engine = with_room("vllm-v1", 1000, Preemption::Recompute, Spans::Closed);
    engine.limits.adapters = Some(AdapterLimits { slots: 4, ..ROOM });
    (engine.limits.sequences_max, engine.limits.tokens_max) = (64, 1000);
    engine.table = engine.table.adapted(Tick::ZERO, Tick::ZERO, [1000, 4]);
    let served = run(&requests, &engine);
    let second = served.records.list[1].scheduled();
    let at_once = |at: &usize| served.records.list[*at].scheduled() == second;
    let taken: Vec<usize> = (1..=16).filter(at_once).collect();
    assert_eq!(taken, [1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16], "requests 8 to 11 ask for a fifth adapter");
    assert_eq!(served.counts[0].n_passed_over, 4);
}

#[test]
fn prefixes_are_shared_under_one_adapter_only() {
    let prompt = |s: u64| Request { prefix_count: 2, ..Request::new(Time::from_ns(s * 1_000_000_000), 40, 1) };
    let bare = Requests {
        list: vec![prompt(0), prompt(1), prompt(2)],
        prefix_ids: vec![0, 1],
        n_prefix_ids: 2,
        prefix_tokens: 16,
        ..Requests::default()
    };
    let cached = |requests: &Requests| {
        let engine = with_room("vllm-v1", 100, Preemption::Recompute, Spans::Closed);
        run(requests, &engine).counts[0].cached_tokens
    };
    assert_eq!(cached(&bare), 64, "the second and the third find the first one's");
    let popularity = Popularity { count: 2, rank: RANK, skew: 0.0, none_ratio: 0.0 };
    let two = (0..).map(|seed| popularity.lay(bare.clone(), seed));
    let mixed = two.into_iter().find(|laid| laid.adapters == [1, 2, 1]).expect("some seed draws it");
    assert_eq!(cached(&mixed), 32, "the third finds the first one's, the second nobody's");
}

#[test]
fn a_lost_replica_loads_again() {
    let requests = asked(60, 50.0, 5, false);
    let engine = with_room("vllm-v1", 1000, Preemption::Recompute, Spans::Closed);
    let mut replica = Replica::new(&engine, &requests);
    let mut records = crate::records::Records::new(&requests);
    let mut now = Tick::ZERO;
    for request in 0..40 {
        replica.enqueue(request, now, &mut records);
        now = replica.advance(&mut records).unwrap_or(now);
    }
    let lost = replica.lose(now);
    assert!(!lost.again.is_empty());
    let adapters = replica.adapters.as_ref().expect("some are asked for");
    assert_eq!(adapters.running(), (0, 0, 0), "nobody runs");
    assert_eq!(adapters.on_device(), [1, 2, 3]);
}
