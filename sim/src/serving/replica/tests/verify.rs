//! Speculative decoding: exact tokens, the closed form of its mean, its two ends, and books under pressure.

use super::*;
use crate::serving::speculation::Speculation;

fn speculation(n_drafts: u32, acceptance: f64) -> Speculation {
    Speculation { n_drafts, acceptance, per_draft: Seconds::new(1e-4), seed: 5 }
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
        let found = hw::Tokens(counts.verified_tokens).as_f64() / hw::Tokens(counts.n_verified).as_f64();
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
