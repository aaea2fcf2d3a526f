//! Serial and asynchronous loops: the published ratio, the wasted iteration, and closed forms against single steps.

use super::*;
use crate::request::Patience;
use crate::step_cost::host::{EngineLoop, Host};

const US: f64 = 1e-6;

fn host(engine_loop: EngineLoop, schedule_us: f64, detokenize_us: f64) -> Host {
    Host::new(engine_loop, Seconds::new(schedule_us * US), Seconds::ZERO, Seconds::new(detokenize_us * US))
}

/// Device time of 1 ms whatever the batch, and these host times.
fn hosted(host: Host) -> Engine {
    let mut engine = engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed);
    engine.table = StepTable::constant(Seconds::new(1e-3)).hosted(host);
    engine
}

#[test]
fn the_gain_is_the_sum_over_the_largest() {
    // One sequence of 1001 tokens after a prompt of one: 1001 iterations, nobody else.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 1, 1001)]);
    for (schedule_us, detokenize_us) in [(0.0, 0.0), (300.0, 200.0), (1500.0, 100.0), (100.0, 2500.0)] {
        let last = |engine_loop| {
            let served = run(&requests, &hosted(host(engine_loop, schedule_us, detokenize_us)));
            (served.records.list[0].finished().expect("served") - Time::ZERO).to_seconds().get()
        };
        let gain = last(EngineLoop::Serial) / last(EngineLoop::Asynchronous);
        let expected = (schedule_us + 1000.0 + detokenize_us) / schedule_us.max(1000.0).max(detokenize_us);
        assert!((gain - expected).abs() < 1e-6, "{gain}, expected {expected}");
    }
}

#[test]
fn an_asynchronous_engine_computes_one_token_too_many_and_keeps_its_blocks_for_that_long() {
    // Prompt of 8 in blocks of 8 and 8 more tokens: 15 cached when the last is there, 16 after the wasted iteration.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 8, 8), Request::new(Time::ZERO, 8, 1)]);
    let of = |engine_loop| run(&requests, &hosted(host(engine_loop, 0.0, 0.0)));
    let (serial, ahead) = (of(EngineLoop::Serial), of(EngineLoop::Asynchronous));
    assert_eq!((serial.counts[0].n_steps, ahead.counts[0].n_steps), (8, 9));
    assert_eq!(serial.counts[0].output_tokens, ahead.counts[0].output_tokens);
    // The client does not see the wasted iteration: the first finishes as early as before. The second comes in the first iteration and misses the next one, which
    // a host that is ahead has composed already.
    let end_ms = |served: &Served, of: usize| {
        (served.records.list[of].finished().expect("served") - Time::ZERO).to_seconds().get() * 1e3
    };
    assert_eq!([0, 1].map(|of| end_ms(&serial, of).round()), [8.0, 2.0]);
    assert_eq!([0, 1].map(|of| end_ms(&ahead, of).round()), [8.0, 3.0]);
    // One seat: the second request waits for the first one's wasted iteration.
    let one_seat = |engine_loop| {
        let mut engine = hosted(host(engine_loop, 0.0, 0.0));
        engine.limits.sequences_max = 1;
        let served = run(&requests, &engine);
        served.records.list[1].finished().expect("served") - served.records.list[0].finished().expect("served")
    };
    let ms = |span: hw::Span| span.to_seconds().get() * 1e3;
    assert_eq!(ms(one_seat(EngineLoop::Serial)).round(), 1.0);
    assert_eq!(ms(one_seat(EngineLoop::Asynchronous)).round(), 2.0);
}

/// Milliseconds at which the second of two requests is admitted, where the host looks after so many iterations. Iterations take a millisecond.
fn admitted_ms(engine_loop: EngineLoop, interval: u32, second_at_ms: f64) -> f64 {
    let at = |ms: f64| Tick::from_seconds(Seconds::new(ms * 1e-3)).time();
    let requests = Requests::of(vec![Request::new(at(0.0), 8, 100), Request::new(at(second_at_ms), 8, 1)]);
    let mut engine = hosted(host(engine_loop, 0.0, 0.0));
    engine.limits.recv_interval = looks_every(interval);
    let served = run(&requests, &engine);
    (served.records.list[1].scheduled().expect("served") - Time::ZERO).to_seconds().get() * 1e3
}

#[test]
fn a_host_that_is_ahead_looks_as_prompts_begin_and_misses_who_comes_while_they_are_computed() {
    // The first prompt takes from 0 to 1 ms. The second request comes in the middle of it. A serial host looks when it has ended.
    let serial = [1, 4, 30].map(|interval| admitted_ms(EngineLoop::Serial, interval, 0.5).round());
    assert_eq!(serial, [1.0, 1.0, 1.0]);
    // A host that is ahead looked at 0 ms. It looks again as its `interval`-th decode iteration begins, and composes the one after that.
    for interval in [1, 4, 30] {
        let found = admitted_ms(EngineLoop::Asynchronous, interval, 0.5).round();
        assert_eq!(found, f64::from(interval) + 1.0, "{interval}");
    }
    // Between 4 and 5 ms the fourth decode iteration runs, and it was looked at as it began. So are the eighth and the twelfth.
    let came = [3.5, 4.5, 8.5].map(|ms| admitted_ms(EngineLoop::Asynchronous, 4, ms).round());
    assert_eq!(came, [5.0, 9.0, 13.0]);
}

/// Iterations take a millisecond, and the host looks after thirty that decode. The first request decodes from 1 to 20 ms; the second comes at 2 ms and its client
/// leaves at 12 ms, and the third comes at 18 ms. At 20 ms nothing is under way, so the host sees the third, and that the second has left.
#[test]
fn a_host_with_nothing_under_way_sees_who_has_left() {
    let at = |ms: u64| Time::from_ns(ms * 1_000_000);
    let list = vec![Request::new(at(0), 8, 20), Request::new(at(2), 60, 20), Request::new(at(18), 8, 1)];
    let patience = Patience { first_token: Some(at(10) - Time::ZERO), whole: None };
    let patience = vec![Patience::default(), patience, Patience::default()];
    let requests = Requests { streams: vec![0, 1, 2], patience, ..Requests::of(list) };
    for batcher in ["vllm-v1", "sarathi", "vllm-v0", "sglang", "trtllm"] {
        for (engine_loop, first_look_ms) in [(EngineLoop::Serial, 20), (EngineLoop::Asynchronous, 21)] {
            for spans in [Spans::Closed, Spans::Stepwise] {
                let mut engine = hosted(host(engine_loop, 0.0, 0.0));
                (engine.batcher, engine.spans) = (batcher::named(batcher).expect("listed"), spans);
                (engine.limits.recv_interval, engine.limits.tokens_max) = (looks_every(30), 128);
                let served = run(&requests, &engine);
                let [second, third] = [1, 2].map(|request| served.records.list[request].scheduled());
                assert_eq!((second, third), (None, Some(at(first_look_ms))), "{batcher}, {engine_loop:?}, {spans:?}");
            }
        }
    }
}

#[test]
fn closed_spans_give_what_single_steps_give_when_a_host_that_is_ahead_looks_now_and_then() {
    for batcher in ["vllm-v1", "sarathi", "sglang", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (30, Preemption::Recompute), (30, SWAP)] {
            for seed in 0..6 {
                let requests = requests(400, [20.0, 60.0, 200.0][seed as usize % 3], seed, seed % 2 == 1);
                let of = |spans| {
                    let mut engine = engine(batcher, kv_blocks, preemption, spans);
                    engine.limits.recv_interval = looks_every([2, 7, 30][seed as usize % 3]);
                    engine.table = engine.table.hosted(host(EngineLoop::Asynchronous, 400.0, 0.0));
                    run(&requests, &engine)
                };
                let (closed, mut single) = (of(Spans::Closed), of(Spans::Stepwise));
                let at = format!("{batcher}, {kv_blocks} blocks, {preemption:?}, seed {seed}");
                assert!(single.counts[0].n_spans > closed.counts[0].n_spans, "{at}");
                single.counts[0].n_spans = closed.counts[0].n_spans;
                assert!(single == closed, "{at}");
                assert_eq!(closed.counts[0].output_tokens, requests.tokens().1, "{at}");
            }
        }
    }
}

#[test]
fn closed_spans_give_what_single_steps_give_when_the_host_paces_some() {
    for batcher in ["vllm-v1", "sarathi", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (25, Preemption::Recompute), (25, SWAP)] {
            for (engine_loop, least_us) in
                [(EngineLoop::Serial, 100.0), (EngineLoop::Asynchronous, 1060.0), (EngineLoop::Asynchronous, 1e4)]
            {
                let requests = requests(400, 60.0, 7, kv_blocks == 1000);
                let of = |spans| {
                    let mut engine = engine(batcher, kv_blocks, preemption, spans);
                    engine.table = engine.table.hosted(host(engine_loop, least_us, 0.0));
                    run(&requests, &engine)
                };
                let (closed, mut single) = (of(Spans::Closed), of(Spans::Stepwise));
                let at = format!("{batcher}, {kv_blocks} blocks, {preemption:?}, {engine_loop:?}, {least_us} us");
                assert!(single.counts[0].n_spans > closed.counts[0].n_spans, "{at}");
                single.counts[0].n_spans = closed.counts[0].n_spans;
                assert!(single == closed, "{at}");
                assert_eq!(closed.counts[0].output_tokens, requests.tokens().1, "{at}");
            }
        }
    }
}
