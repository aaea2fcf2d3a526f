//! The engine against a brute-force one, its closed forms against single steps, and its books.

mod adapters;
mod brute_force;
mod chunks;
mod flow;
mod frontend;
mod gaps;
mod gathering;
mod host;
mod images;
mod lanes;
mod ping_pong;
mod ranks;
mod tiers;
mod verify;

use std::num::NonZeroU32;

use hw::{Seconds, Tick, Time};

use super::*;
use crate::batcher;
use crate::fleet::{Served, serve};
use crate::request::Request;
use crate::router;
use crate::step_cost::{Chunk, StepLoad};
use engine::random;

/// A small engine: 12 sequences, 64 tokens per iteration, blocks of 8.
pub(crate) fn engine(batcher: &str, kv_blocks: u32, preemption: Preemption, spans: Spans) -> Engine {
    let limits = Limits {
        sequences_max: 12,
        // Whole prompts have to fit.
        tokens_max: if ["vllm-v0", "trtllm"].contains(&batcher) { 128 } else { 64 },
        context_max: 10_000,
        block_tokens: 8,
        kv_blocks,
        watermark_blocks: 1,
        preemption,
        shares_prefixes: true,
        ..Limits::ROOMY
    };
    let table = StepTable::linear(Seconds::new(1e-3), Seconds::new(1.1e-5), Seconds::new(3.3e-7));
    Engine { limits, table, batcher: batcher::named(batcher).expect("listed"), spans }
}

/// Random requests of up to 60 prompt and 40 output tokens; with shared prefixes of 16 tokens where asked.
pub(crate) fn requests(n: u32, per_s: f64, seed: u64, shares: bool) -> Requests {
    let mut stream = random::stream(seed, "requests of a test");
    let mut draw = |n: u64| u32::try_from(stream.below(n)).expect("small");
    let mut requests = Requests::of((0..n).map(|_| Request::new(Time::ZERO, 1 + draw(60), 1 + draw(40))).collect());
    if shares {
        (requests.n_prefix_ids, requests.prefix_tokens) = (40, 16);
        for request in &mut requests.list {
            // Chains of up to four prefixes over ten beginnings.
            let (chain, count) = (draw(10) * 4, (request.prompt / 16).min(draw(5)));
            request.prefix_first = u32::try_from(requests.prefix_ids.len()).expect("small");
            request.prefix_count = count;
            requests.prefix_ids.extend(chain..chain + count);
        }
    }
    crate::arrivals::lay(&mut requests, crate::arrivals::Arrivals::Poisson { per_s }, seed);
    requests
}

fn run(requests: &Requests, engine: &Engine) -> Served {
    serve(requests, &[engine], (router::named("round-robin").expect("listed").make)(0).as_mut())
}

fn looks_every(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}

pub(crate) const SWAP: Preemption = Preemption::Swap { host_blocks: 20, ticks_per_block: Tick::new(50_000) };

#[test]
fn closed_spans_give_what_single_steps_give() {
    for batcher in ["vllm-v1", "sarathi", "sglang", "trtllm", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (30, Preemption::Recompute), (30, SWAP)] {
            for seed in 0..6 {
                let requests = requests(400, [20.0, 60.0, 200.0][seed as usize % 3], seed, seed % 2 == 1);
                // A sequence may keep two blocks more than its tokens need; then there are as many more for twelve of them.
                let more = u32::try_from(seed).expect("small") % 2 * 2;
                let engine = |spans| {
                    let mut engine = engine(batcher, kv_blocks + 12 * more, preemption, spans);
                    engine.limits.blocks_per_sequence = more;
                    engine.limits.recv_interval = looks_every([1, 4, 30][seed as usize % 3]);
                    engine.limits.gather = (seed > 2).then_some(Gather::Tokens { iterations: 5, tokens: 60 });
                    engine
                };
                let closed = run(&requests, &engine(Spans::Closed));
                let mut single = run(&requests, &engine(Spans::Stepwise));
                let at = format!("{batcher}, {kv_blocks} blocks, {preemption:?}, seed {seed}");
                assert!(single.counts[0].n_spans > closed.counts[0].n_spans, "{at}");
                single.counts[0].n_spans = closed.counts[0].n_spans;
                assert!(single == closed, "{at}");
                if kv_blocks == 30 && seed % 3 == 2 && ["vllm-v0", "vllm-v1"].contains(&batcher) {
                    assert!(closed.counts[0].n_preempted > 0, "{at}: the case is about preemption");
                }
            }
        }
    }
}

/// Whoever lost its blocks comes back with what it was answered, which makes it longer than an iteration.
#[test]
fn whole_prompts_that_come_back_with_their_answer_are_served() {
    for seed in 0..4 {
        let requests = requests(400, 200.0, seed, false);
        let mut engine = engine("vllm-v0", 25, Preemption::Recompute, Spans::Closed);
        engine.limits.tokens_max = 60;
        let served = run(&requests, &engine);
        assert!(served.counts[0].n_preempted > 0 && served.n_refused == 0);
        assert!(served.records.list.iter().all(|record| record.finished().is_some()), "seed {seed}");
    }
}

#[test]
fn every_request_is_served_once_and_time_runs_forwards() {
    for batcher in ["vllm-v1", "sarathi", "sglang", "trtllm", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (25, Preemption::Recompute), (25, SWAP)] {
            let requests = requests(1000, 100.0, 9, true);
            let served = run(&requests, &engine(batcher, kv_blocks, preemption, Spans::Closed));
            assert_eq!(served.n_refused, 0);
            for (request, record) in requests.list.iter().zip(&served.records.list) {
                let moments = (record.scheduled(), record.first_token(), record.finished());
                let (Some(scheduled), Some(first), Some(last)) = moments else { panic!("{record:?} is not served") };
                assert!(request.arrival <= scheduled && scheduled < first && first <= last, "{record:?}");
                // Every token takes an iteration of at least a millisecond.
                let least = Seconds::new(1e-3 * f64::from(request.output - 1));
                assert!((last - first).to_seconds().get() >= least.get() - 1e-9);
            }
            let (prompts, outputs) = requests.tokens();
            let counts = served.counts[0];
            assert_eq!(counts.output_tokens, outputs, "no token is given twice");
            assert!(counts.prefill_tokens + counts.cached_tokens >= prompts);
            assert!(served.blocks[0].0 <= kv_blocks);
        }
    }
}

#[test]
fn a_replica_never_rests_while_someone_is_there() {
    let requests = requests(2000, 25.0, 4, false);
    let served = run(&requests, &engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed));
    // Time that at least one request is in the system, from arrivals and ends alone.
    let (mut busy_ns, mut until) = (0, Time::ZERO);
    for (request, record) in requests.list.iter().zip(&served.records.list) {
        let end = record.finished().expect("served");
        busy_ns += end.as_ns().saturating_sub(request.arrival.max(until).as_ns());
        until = until.max(end);
    }
    let counted_ns = served.counts[0].busy_ticks.as_ns();
    assert!(counted_ns.abs_diff(busy_ns) <= 2 * requests.len() as u64, "{counted_ns} counted, {busy_ns} by intervals");
}

#[test]
fn a_cached_prefix_saves_its_tokens() {
    // Two requests of 40 tokens whose first 32 are the same, one after the other: the second computes 8.
    let mut requests =
        Requests::of(vec![Request::new(Time::ZERO, 40, 1), Request::new(Time::from_ns(1_000_000_000), 40, 1)]);
    (requests.prefix_tokens, requests.n_prefix_ids) = (16, 2);
    requests.prefix_ids = vec![0, 1, 0, 1];
    for (index, request) in requests.list.iter_mut().enumerate() {
        (request.prefix_first, request.prefix_count) = (2 * u32::try_from(index).expect("small"), 2);
    }
    let mut shared = engine("vllm-v1", 100, Preemption::Recompute, Spans::Closed);
    let served = run(&requests, &shared);
    assert_eq!((served.counts[0].cached_tokens, served.counts[0].prefill_tokens), (32, 48));
    shared.limits.shares_prefixes = false;
    let served = run(&requests, &shared);
    assert_eq!((served.counts[0].cached_tokens, served.counts[0].prefill_tokens), (0, 80));
}

#[test]
fn a_request_that_no_replica_can_hold_is_refused_and_the_rest_is_served() {
    // 20 blocks of 8 hold 160 tokens: 150 + 11 − 1 fit, 150 + 12 − 1 do not.
    let at = |output| Request::new(Time::ZERO, 150, output);
    let requests = Requests::of(vec![at(12), at(11), at(1)]);
    let served = run(&requests, &engine("vllm-v1", 20, Preemption::Recompute, Spans::Closed));
    assert_eq!(served.n_refused, 1);
    assert_eq!(served.records.list[0].finished(), None);
    assert!(served.records.list[1..].iter().all(|record| record.finished().is_some()));
}

#[test]
fn what_a_sequence_keeps_besides_its_tokens_bounds_how_many_run() {
    // 60 blocks; a sequence of 8 to 16 tokens takes 2, and 13 besides: four run at once, and a fifth waits.
    let requests = Requests::of((0..5).map(|_| Request::new(Time::ZERO, 8, 8)).collect());
    let mut engine = engine("vllm-v1", 60, Preemption::Recompute, Spans::Closed);
    let waits = |engine: &Engine| {
        let records = run(&requests, engine).records.list;
        let ends = records.iter().filter_map(|record| record.finished());
        records[4].scheduled() >= ends.min()
    };
    assert!(!waits(&engine), "ten blocks are enough for five");
    engine.limits.blocks_per_sequence = 13;
    assert!(waits(&engine), "75 blocks are not there");
    engine.limits.kv_blocks = 75;
    assert!(!waits(&engine));
}

#[test]
fn prefill_first_stalls_decodes_and_chunks_do_not() {
    // One sequence decodes; a prompt of 60 tokens comes. With whole prompts first the decoding one waits for it.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 1, 30), Request::new(Time::from_ns(10_000_000), 60, 1)]);
    let total = |batcher: &str| {
        let served = run(&requests, &engine(batcher, 1000, Preemption::Recompute, Spans::Closed));
        served.counts[0].n_steps
    };
    // 1 prefill and 29 decodes; the second prompt shares an iteration with a decode, or has one of its own.
    assert_eq!((total("vllm-v1"), total("vllm-v0")), (30, 31));
}

/// Two requests of 8 tokens over four blocks of 8. Both decode until each has 16 tokens and asks for a third block: the later one gives its two up, and the first goes
/// on in one of them, the last, to its end. What the other one finds again is its first block: of 17 tokens nine are computed once more, and without prefixes all 17.
#[test]
fn a_preempted_sequence_finds_again_what_nobody_has_overwritten() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 8, 16); 2]);
    let computed = |shares: bool, batcher: &str| {
        let mut engine = engine(batcher, 4, Preemption::Recompute, Spans::Stepwise);
        (engine.limits.watermark_blocks, engine.limits.shares_prefixes) = (0, shares);
        let served = run(&requests, &engine);
        assert_eq!(served.counts[0].n_preempted, 1, "{batcher}");
        // What was computed before is no prefix of another request.
        assert_eq!(served.counts[0].cached_tokens, 0);
        served.counts[0].prefill_tokens
    };
    assert_eq!(computed(true, "vllm-v1") + 8, computed(false, "vllm-v1"));
    assert_eq!(computed(true, "sarathi"), computed(false, "sarathi"));
}

/// The same where each sequence has one block more for windows and states. That of the second comes free before what it has left, and its full block is there again.
#[test]
fn windows_and_states_come_back_with_what_a_preempted_sequence_finds_again() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 8, 16); 2]);
    let computed = |shares: bool| {
        let mut engine = engine("vllm-v1", 6, Preemption::Recompute, Spans::Stepwise);
        (engine.limits.watermark_blocks, engine.limits.shares_prefixes) = (0, shares);
        engine.limits.blocks_per_sequence = 1;
        let served = run(&requests, &engine);
        assert_eq!(served.counts[0].n_preempted, 1);
        served.counts[0].prefill_tokens
    };
    assert_eq!(computed(true) + 8, computed(false));
}

/// The second of them moves two blocks to the host. One of the two is overwritten, and that one comes back from there; without a prefix cache both do.
#[test]
fn a_swapped_sequence_brings_back_what_was_overwritten() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 8, 16); 2]);
    for (shares, n_moved) in [(true, 2 + 1), (false, 2 + 2)] {
        let busy = |ticks: u64| {
            let preemption = Preemption::Swap { host_blocks: 9, ticks_per_block: Tick::new(ticks) };
            let mut engine = engine("vllm-v1", 4, preemption, Spans::Stepwise);
            (engine.limits.watermark_blocks, engine.limits.shares_prefixes) = (0, shares);
            let counts = run(&requests, &engine).counts[0];
            assert_eq!((counts.n_preempted, counts.prefill_tokens), (1, 16));
            counts.busy_ticks
        };
        assert_eq!(busy(50_000) - busy(0), Tick::new(n_moved * 50_000), "{shares}");
    }
}

/// Who cannot be moved is computed again, as if nobody moved.
#[test]
fn without_room_on_the_host_a_swap_is_a_recomputation() {
    let none = Preemption::Swap { host_blocks: 0, ticks_per_block: Tick::new(50_000) };
    for (seed, batcher) in [(1, "vllm-v1"), (2, "vllm-v0"), (3, "vllm-v1"), (4, "sarathi")] {
        let requests = requests(400, 200.0, seed, false);
        let of = |preemption| run(&requests, &engine(batcher, 25, preemption, Spans::Closed));
        let (moved, again) = (of(none), of(Preemption::Recompute));
        assert!(again.counts[0].n_preempted > 0 && moved == again, "{batcher}, seed {seed}");
    }
}

/// Two requests of 40 tokens over eleven blocks of 8. Their first 32 tokens are the same: four blocks, which both hold. Each gets blocks of its own up to three, and
/// the fourth is there for the first one alone: the second moves its three to the host and back. Nobody takes them meanwhile, so an engine that finds again what
/// is left there copies none of them back. Its last token of 23 lies in a block of no copy.
#[test]
fn a_swapped_sequence_moves_its_own_blocks_and_shares_its_prefix() {
    let mut requests = Requests::of(vec![Request::new(Time::ZERO, 40, 24); 2]);
    requests.list[1].arrival = Time::from_ns(3_000_000);
    (requests.prefix_tokens, requests.n_prefix_ids, requests.prefix_ids) = (16, 2, vec![0, 1]);
    requests.list.iter_mut().for_each(|request| (request.prefix_first, request.prefix_count) = (0, 2));
    for (batcher, n_moved) in [("vllm-v1", 3), ("sarathi", 2 * 3)] {
        let served = |ticks: u64| {
            let preemption = Preemption::Swap { host_blocks: 3, ticks_per_block: Tick::new(ticks) };
            let mut engine = engine(batcher, 11, preemption, Spans::Closed);
            engine.limits.watermark_blocks = 0;
            run(&requests, &engine)
        };
        let [free, priced] = [served(0), served(50_000)];
        assert_eq!(
            (priced.counts[0].n_preempted, priced.counts[0].cached_tokens, priced.counts[0].prefill_tokens),
            (1, 32, 48),
            "{batcher}"
        );
        let moved = priced.counts[0].busy_ticks - free.counts[0].busy_ticks;
        assert_eq!(moved, Tick::new(n_moved * 50_000), "{batcher}");
    }
}
