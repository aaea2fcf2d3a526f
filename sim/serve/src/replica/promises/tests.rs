//! Promised blocks by hand, by counting every sequence by itself, and against single steps.

use hw::{Tick, Time};

use super::*;
use crate::fleet::{Served, serve};
use crate::records::Records;
use crate::replica::tests::{SWAP, engine, requests};
use crate::replica::{Engine, Preemption, Spans};
use crate::request::{Request, Requests};
use crate::router;

/// An engine that keeps blocks, or takes them as it needs them.
fn with(policy: CapacityPolicy, batcher: &str, kv_blocks: u32, spans: Spans) -> Engine {
    let mut engine = engine(batcher, kv_blocks, Preemption::Recompute, spans);
    engine.limits.capacity_policy = policy;
    engine
}

fn run(requests: &Requests, engine: &Engine) -> Served {
    serve(requests, &[engine], (router::named("round-robin").expect("listed").make)(0).as_mut())
}

/// Requests whose clients stop before the limit that they have asked for.
fn with_limits(n: u32, per_s: f64, seed: u64, shares: bool) -> Requests {
    let mut requests = requests(n, per_s, seed, shares);
    let limit = |(at, request): (u32, &Request)| request.output + at % 3 * 9;
    requests.asked = (0..).zip(&requests.list).map(limit).collect();
    requests
}

/// Four requests of 8 and 16 tokens over 6 blocks of 8. Each comes to 24 tokens, which are 3 blocks, so two run at a time, for 16 iterations each. The first one
/// starts alone, since nobody else is here yet: iterations 1 to 16, and the second one 2 to 17. The third one finds room when the first has ended, 17 to 32,
/// and the last one 18 to 33.
#[test]
fn who_finds_no_room_for_its_whole_output_waits_for_others_to_end() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 8, 16); 4]);
    for spans in [Spans::Closed, Spans::Stepwise] {
        let mut kept = with(CapacityPolicy::GuaranteedNoEvict, "trtllm", 6, spans);
        kept.limits.watermark_blocks = 0;
        let served = run(&requests, &kept);
        assert_eq!((served.counts[0].n_steps, served.counts[0].n_preempted), (33, 0));
        assert_eq!(served.blocks[0], (6, 6));
        let ends: Vec<Time> = served.records.list.iter().map(|record| record.finished().expect("served")).collect();
        assert!(ends.windows(2).all(|pair| pair[0] < pair[1]), "one after another: {ends:?}");
        let as_needed = run(&requests, &with(CapacityPolicy::MaxUtilization, "trtllm", 6, spans));
        assert!(as_needed.counts[0].n_preempted > 0);
        // Two blocks more are enough for nobody. With three the third runs beside the second, and with six all do.
        for (kv_blocks, steps) in [(8, 33), (9, 32), (11, 32), (12, 17)] {
            kept.limits.kv_blocks = kv_blocks;
            assert_eq!(run(&requests, &kept).counts[0].n_steps, steps, "{kv_blocks} blocks");
        }
    }
}

#[test]
fn nobody_gives_up_blocks_that_were_promised_and_spans_stay_closed() {
    let mut n_otherwise = 0;
    for batcher in ["trtllm", "vllm-v1", "sarathi", "sglang", "vllm-v0"] {
        for seed in 0..12 {
            let requests = with_limits(300, [20.0, 60.0, 200.0][seed as usize % 3], seed, seed % 2 == 1);
            let of = |policy, spans| {
                let mut engine = with(policy, batcher, 30, spans);
                engine.limits.preemption = if seed % 4 == 3 { SWAP } else { Preemption::Recompute };
                run(&requests, &engine)
            };
            let closed = of(CapacityPolicy::GuaranteedNoEvict, Spans::Closed);
            let mut single = of(CapacityPolicy::GuaranteedNoEvict, Spans::Stepwise);
            let at = format!("{batcher}, seed {seed}");
            assert_eq!(closed.counts[0].n_preempted, 0, "{at}");
            assert_eq!((closed.n_unserved, closed.n_refused), (0, 0), "{at}");
            single.counts[0].n_spans = closed.counts[0].n_spans;
            assert_eq!(single, closed, "{at}");
            n_otherwise += of(CapacityPolicy::MaxUtilization, Spans::Closed).counts[0].n_preempted;
        }
    }
    assert!(n_otherwise > 100, "blocks run out where nobody keeps them: {n_otherwise}");
}

/// Blocks that all who run would need at their ends, each counted by itself from its request alone, and those that are in use.
fn needed_and_used(replica: &Replica<'_>, requests: &Requests) -> [u32; 2] {
    let runs = |slot: &&Slot| matches!(slot.phase, Phase::Prefill | Phase::Decode | Phase::Spent);
    let whole = |slot: &Slot| {
        let request = &requests.list[slot.request as usize];
        (request.prompt + requests.asked_of(slot.request as usize)).div_ceil(8)
    };
    [replica.slots.iter().filter(runs).map(whole).sum(), replica.pool.held()]
}

#[test]
fn blocks_of_all_ends_together_never_go_above_those_that_there_are() {
    for seed in 0..40 {
        let requests = with_limits(200, 100.0, seed, false);
        let (batcher, blocks) =
            (["trtllm", "sarathi", "vllm-v1"][seed as usize % 3], 30 + 3 * u32::try_from(seed).expect("small"));
        let engine = with(CapacityPolicy::GuaranteedNoEvict, batcher, blocks, Spans::Stepwise);
        let (mut replica, mut records) = (Replica::new(&engine, &requests), Records::new(&requests));
        let mut arrivals = (0_u32..).zip(&requests.list).peekable();
        let (mut end, mut n_full) = (Tick::NEVER, 0);
        loop {
            let arrival = arrivals.peek().map_or(Tick::NEVER, |(_, request)| Tick::from(request.arrival));
            if end == Tick::NEVER && arrival == Tick::NEVER {
                break;
            }
            if end < arrival {
                end = replica.advance(&mut records).unwrap_or(Tick::NEVER);
            } else if let Some((id, _)) = arrivals.next() {
                end = replica.enqueue(id, arrival, &mut records).unwrap_or(end);
            }
            let [needed, used] = needed_and_used(&replica, &requests);
            assert!(used <= needed && needed <= blocks, "seed {seed}: {used} used, {needed} promised, {blocks} there");
            n_full += u32::from(replica.has_waiting() && replica.n_running() < 12 && used < blocks);
        }
        assert!(blocks > 60 || n_full > 0, "seed {seed}: the case is about memory");
        assert_eq!(replica.outstanding(), 0);
    }
}

/// A replica that decodes what others have computed keeps blocks for the whole output of whoever comes.
#[test]
fn a_replica_that_decodes_for_others_promises_too() {
    let requests = requests(200, 60.0, 3, false);
    let preempted = |policy| {
        let engine = with(policy, "trtllm", 30, Spans::Closed);
        let group =
            |name: &str, role| crate::fleet::Group { role, ..crate::fleet::Group::new(name, engine.clone(), 1) };
        let groups = vec![group("prompts", Role::Prefill), group("outputs", Role::Decode)];
        let fleet = crate::fleet::Fleet { groups, ..crate::fleet::Fleet::default() };
        let served = fleet.serve(&requests, (router::named("round-robin").expect("listed").make)(0).as_mut());
        assert_eq!((served.n_unserved, served.n_refused), (0, 0));
        served.counts.iter().map(|counts| counts.n_preempted).sum::<u64>()
    };
    assert!(preempted(CapacityPolicy::MaxUtilization) > 0);
    assert_eq!(preempted(CapacityPolicy::GuaranteedNoEvict), 0);
}

/// Two requests of 40 tokens and one of 8 over nine blocks of 8, at most 16 tokens of a prompt an iteration. The first prompt takes five blocks, two by two. The second
/// one finds room for its first 16 tokens at once, but for the whole of it only once the first request has ended.
#[test]
fn who_finds_no_room_for_its_whole_prompt_waits_though_a_chunk_would_fit() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 40, 4), Request::new(Time::ZERO, 40, 1)]);
    let of = |policy| {
        let mut engine = with(policy, "vllm-v1", 9, Spans::Stepwise);
        (engine.limits.tokens_max, engine.limits.watermark_blocks) = (16, 0);
        run(&requests, &engine)
    };
    let waits = |served: &Served| {
        let [first, second] = [0, 1].map(|at| &served.records.list[at]);
        second.scheduled() >= first.finished()
    };
    let [whole, chunk] = [CapacityPolicy::WholePrompt, CapacityPolicy::MaxUtilization].map(of);
    assert_eq!((waits(&whole), waits(&chunk)), (true, false));
    assert_eq!(whole.counts[0].n_preempted, 0);
}

#[test]
fn spans_of_engines_that_look_for_room_for_whole_prompts_stay_closed() {
    let mut fewer = [0, 0];
    for seed in 0..12 {
        let requests = requests(300, [20.0, 60.0, 200.0][seed as usize % 3], seed, seed % 2 == 1);
        let of = |policy, spans| run(&requests, &with(policy, "vllm-v1", 30, spans));
        let closed = of(CapacityPolicy::WholePrompt, Spans::Closed);
        let mut single = of(CapacityPolicy::WholePrompt, Spans::Stepwise);
        assert_eq!((closed.n_unserved, closed.n_refused), (0, 0), "seed {seed}");
        single.counts[0].n_spans = closed.counts[0].n_spans;
        assert_eq!(single, closed, "seed {seed}");
        let other = of(CapacityPolicy::MaxUtilization, Spans::Closed);
        fewer[0] += closed.counts[0].n_preempted;
        fewer[1] += other.counts[0].n_preempted;
    }
    assert!(fewer[0] < fewer[1], "preempted with and without room for whole prompts: {fewer:?}");
}
