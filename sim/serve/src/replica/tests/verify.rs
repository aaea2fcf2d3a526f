//! Speculative decoding: exact tokens, the closed form of its mean, its two ends, and books under pressure.

use super::*;
use crate::speculation::Speculation;

fn speculation(n_drafts: u32, acceptance: f64) -> Speculation {
    Speculation { n_drafts, tree: None, acceptance, per_draft: Seconds::new(1e-4), seed: 5 }
}

fn drafting(batcher: &str, kv_blocks: u32, preemption: Preemption, speculation: &Speculation) -> Engine {
    let mut engine = engine(batcher, kv_blocks, preemption, Spans::Closed);
    engine.table = engine.table.speculating(speculation);
    engine
}

#[test]
fn all_or_nothing_accepted_is_counted_by_hand() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 5, 41)]);
    // The prompt gives the first token; 40 are left, five at a time or one by one.
    for (alpha, n_steps) in [(1.0, 1 + 8), (0.0, 1 + 40)] {
        let engine = drafting("vllm-v1", 1000, Preemption::Recompute, &speculation(4, alpha));
        let served = run(&requests, &engine);
        assert_eq!((served.counts[0].n_steps, served.counts[0].output_tokens), (n_steps, 41));
    }
    let plain = run(&requests, &engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed));
    let useless = drafting("vllm-v1", 1000, Preemption::Recompute, &speculation(4, 0.0));
    let at = |served: &Served| served.records.list[0].finished().expect("served");
    assert!(at(&run(&requests, &useless)) > at(&plain), "drafts that nobody accepts cost time");
}

#[test]
fn verifications_give_as_many_tokens_as_the_closed_form_says() {
    for (k, alpha) in [(3, 0.7), (4, 0.8), (2, 0.3)] {
        // Long outputs, so that the last verification of each, which may be cut, counts little.
        let list = (0..40).map(|index| Request::new(Time::from_ns(index), 10, 2000)).collect();
        let requests = Requests::of(list);
        let speculation = speculation(k, alpha);
        let served = run(&requests, &drafting("vllm-v1", 10_000, Preemption::Recompute, &speculation));
        let counts = served.counts[0];
        assert_eq!(counts.output_tokens, 40 * 2000);
        let found = hw::real(counts.verified_tokens) / hw::real(counts.n_verified);
        let expected = speculation.tokens_per_verification();
        assert!((found / expected - 1.0).abs() < 0.01, "{found}, expected {expected} at {k}, {alpha}");
    }
}

#[test]
fn every_sequence_ends_with_its_own_tokens_whatever_happens_to_its_blocks() {
    let speculation = speculation(3, 0.6);
    let mut by_batcher = Vec::new();
    for batcher in ["vllm-v1", "sarathi", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (25, Preemption::Recompute), (25, SWAP)] {
            let requests = requests(800, 150.0, 3, kv_blocks == 25);
            let served = run(&requests, &drafting(batcher, kv_blocks, preemption, &speculation));
            assert_eq!(served.counts[0].output_tokens, requests.tokens().1, "{batcher}, {kv_blocks}, {preemption:?}");
            assert!(served.records.list.iter().all(|record| record.finished().is_some()));
            if kv_blocks == 1000 {
                by_batcher.push((served.counts[0].n_verified, served.counts[0].n_preempted));
            } else if batcher == "vllm-v1" {
                assert!(served.counts[0].n_preempted > 0, "the case is about preemption");
            }
        }
    }
    // Draws belong to requests, not to the order in which an engine serves them.
    assert!(by_batcher.windows(2).all(|pair| pair[0] == pair[1]), "{by_batcher:?}");
}

#[test]
fn every_kind_of_engine_keeps_its_books() {
    use crate::step_cost::host::{EngineLoop, Host};
    use crate::step_cost::lanes::Lanes;
    let host = |engine_loop| Host::new(engine_loop, Seconds::new(1e-3), Seconds::ZERO, Seconds::new(1e-4));
    for batcher in ["vllm-v1", "sarathi", "vllm-v0"] {
        for (kv_blocks, preemption) in [(2000, Preemption::Recompute), (52, Preemption::Recompute), (52, SWAP)] {
            for (stages, ranks) in [(1, 1), (1, 2), (2, 1), (3, 2)] {
                for engine_loop in [EngineLoop::Serial, EngineLoop::Asynchronous] {
                    for drafts in [None, Some(speculation(3, 0.7))] {
                        let mut engine = engine(batcher, kv_blocks, preemption, Spans::Closed);
                        engine.table = engine.table.in_lanes(Lanes { stages, ranks }, 64).hosted(host(engine_loop));
                        if let Some(drafts) = &drafts {
                            engine.table = engine.table.speculating(drafts);
                        }
                        let requests = requests(300, 300.0, 11, kv_blocks == 52);
                        let served = run(&requests, &engine);
                        let at = format!(
                            "{batcher}, {kv_blocks}, {preemption:?}, {stages}x{ranks}, {engine_loop:?}, {drafts:?}"
                        );
                        assert_eq!(
                            (served.n_refused, served.counts[0].output_tokens),
                            (0, requests.tokens().1),
                            "{at}"
                        );
                        for (request, record) in requests.list.iter().zip(&served.records.list) {
                            let moments = (record.scheduled(), record.first_token(), record.finished());
                            let (Some(scheduled), Some(first), Some(last)) = moments else {
                                panic!("{at}: {record:?}")
                            };
                            assert!(
                                request.arrival <= scheduled && scheduled < first && first <= last,
                                "{at}: {record:?}"
                            );
                            assert!(request.output == 1 || first < last, "{at}: {record:?}");
                        }
                    }
                }
            }
        }
    }
}

/// As vLLM counts (`num_tokens_with_spec` in v1/core/sched/scheduler.py). Two sequences decode in iterations of 16 tokens, and a prompt of 20 comes.
#[test]
fn a_verification_takes_its_tokens_out_of_the_budget_of_prompts() {
    for (n_drafts, room) in [(1, 12), (2, 10), (3, 8), (4, 6)] {
        let mut engine = drafting("vllm-v1", 1000, Preemption::Recompute, &speculation(n_drafts, 0.0));
        (engine.limits.tokens_max, engine.limits.sequences_max) = (16, 3);
        let mut list = vec![Request::new(Time::ZERO, 1, 200); 2];
        list.push(Request::new(Time::from_ns(20_000_000), 20, 1));
        let served = run(&Requests::of(list), &engine);
        assert_eq!(served.counts[0].n_chunks, 2 + 20_u64.div_ceil(room), "{n_drafts} drafts");
    }
}
