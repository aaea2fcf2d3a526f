//! Serial and asynchronous loops: the published ratio, the wasted iteration, and closed forms against single steps.

use super::*;
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
