//! Adapters: the cap and the loading against an engine that keeps every sequence and the order of uses by itself, and spans against single steps.

use super::*;
use crate::adapters::{AdapterLimits, Popularity};

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

/// vLLM V1 with room for everybody's blocks, sequence by sequence. The adapter used last is at the end of `used`: the last three are on the device,
/// the last five in host memory. Gives first and last tokens, loads, and who was passed over.
fn brute_force(requests: &Requests, engine: &Engine) -> (Vec<(Time, Time)>, u64, usize) {
    let (limits, mut running) = (engine.limits, Vec::<Sequence>::new());
    let mut waiting: Vec<Sequence> = Vec::new();
    let mut used: Vec<u32> = (1..=8).rev().collect();
    let (mut next, mut now, mut loads) = (0, Tick::ZERO, 0);
    let mut passed = std::collections::BTreeSet::new();
    let mut times = vec![(Time::ZERO, Time::ZERO); requests.len()];
    while next < requests.len() || !waiting.is_empty() || !running.is_empty() {
        let is_idle = waiting.is_empty() && running.is_empty();
        if is_idle {
            now = now.max(Tick::from(requests.list[next].arrival));
        }
        while next < requests.len() && Tick::from(requests.list[next].arrival) <= now {
            let target = requests.list[next].prompt;
            waiting.push(Sequence { request: next, generated: 0, cached: 0, target, decodes: false });
            next += 1;
        }
        let adapter = |sequence: &Sequence| requests.adapters[sequence.request];
        let mut tokens: Vec<u32> = Vec::new();
        // Decoding sequences first, then chunks, as the engine counts them.
        let decodes = u32::try_from(running.iter().filter(|sequence| sequence.decodes).count()).expect("few");
        let mut left = limits.tokens_max - decodes;
        for sequence in &running {
            let new = if sequence.decodes { 1 } else { (sequence.target - sequence.cached).min(left) };
            left -= if sequence.decodes { 0 } else { new };
            tokens.push(new);
        }
        let (mut at, mut waits) = (0, Tick::ZERO);
        while at < waiting.len() && running.len() < limits.sequences_max as usize && left > 0 {
            let asked = adapter(&waiting[at]);
            let mut in_use: Vec<u32> = running.iter().map(adapter).filter(|other| *other > 0).collect();
            in_use.sort_unstable();
            in_use.dedup();
            if asked > 0 && in_use.len() == ROOM.slots as usize && !in_use.contains(&asked) {
                at += 1;
                continue;
            }
            passed.extend(waiting[..at].iter().map(|sequence| sequence.request));
            let sequence = waiting.remove(at);
            if asked > 0 && !in_use.contains(&asked) {
                // What runs counts as used now.
                let (rest, runs): (Vec<u32>, Vec<u32>) = used.iter().partition(|other| !in_use.contains(other));
                let behind = rest.iter().rev().position(|other| *other == asked).expect("known") + runs.len();
                let rank = u64::from(RANK);
                waits += if behind >= ROOM.slots as usize { ROOM.host_ticks * rank } else { Tick::ZERO };
                waits += if behind >= ROOM.host_slots as usize { ROOM.disk_ticks * rank } else { Tick::ZERO };
                loads += u64::from(behind >= ROOM.slots as usize);
                used.retain(|other| *other != asked);
                used.push(asked);
            }
            let new = sequence.target.min(left);
            left -= new;
            running.push(sequence);
            tokens.push(new);
        }
        let mut different: Vec<u32> = Vec::new();
        let mut of_adapters = 0;
        for (sequence, new) in running.iter().zip(&tokens).filter(|(sequence, new)| adapter(sequence) > 0 && **new > 0)
        {
            of_adapters += new;
            different.push(adapter(sequence));
        }
        different.sort_unstable();
        different.dedup();
        let kinds = different.len() as u64;
        let added = Tick::new(3000) * u64::from(of_adapters) + Tick::new(70_000) * kinds;
        now += step_ticks(engine, &running, &tokens) + waits + added;
        for (sequence, new) in running.iter_mut().zip(&tokens) {
            sequence.cached += new;
            if *new > 0 && sequence.cached == sequence.target {
                sequence.generated += 1;
                sequence.target += 1;
                sequence.decodes = true;
                let times = &mut times[sequence.request];
                *times = (if times.0 == Time::ZERO { now.time() } else { times.0 }, now.time());
            }
        }
        let ends = |sequence: &Sequence| sequence.generated >= requests.list[sequence.request].output;
        let mut gone: Vec<u32> = running.iter().filter(|sequence| ends(sequence)).map(adapter).collect();
        running.retain(|sequence| !ends(sequence));
        gone.sort_unstable_by_key(|adapter| std::cmp::Reverse(*adapter));
        for adapter in gone.into_iter().filter(|gone| *gone > 0) {
            used.retain(|other| *other != adapter);
            used.push(adapter);
        }
    }
    (times, loads, passed.len())
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
