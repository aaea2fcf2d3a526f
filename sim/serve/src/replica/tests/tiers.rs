//! Prefixes that come back from below the device: closed forms of one request, the choice between bringing and computing, and spans against single steps.

use super::*;
use crate::kv::tiers::{N_TIERS, Tier};
use hw::Tick;

/// Seconds of an iteration and of a token.
const LAW: [f64; 2] = [1e-3, 1e-2];

fn tiers(blocks: u32, block_s: f64) -> [Tier; N_TIERS] {
    [Tier { blocks, ticks_per_block: Tick::from_seconds(Seconds::new(block_s)) }, Tier::default()]
}

/// Three prompts of 70 tokens far apart: the first and the last begin with the same 64, the other fills the device between them.
fn back_again() -> Requests {
    let at = |s: u64, first: u32| Request {
        prefix_first: first,
        prefix_count: 4,
        ..Request::new(Time::from_ns(s * 1_000_000_000), 70, 1)
    };
    Requests {
        list: vec![at(0, 0), at(10, 4), at(20, 0)],
        prefix_ids: (0..8).collect(),
        n_prefix_ids: 8,
        prefix_tokens: 16,
        ..Requests::default()
    }
}

#[test]
fn a_prefix_comes_back_where_that_is_faster_than_computing_it() {
    // Nine blocks of eight tokens: one prompt fills them. 64 tokens take 0.64 s to compute; eight blocks at 50 ms take 0.4 s, at 100 ms 0.8 s.
    let requests = back_again();
    let third = |tiers: [Tier; N_TIERS]| {
        let mut engine = engine("vllm-v1", 9, Preemption::Recompute, Spans::Closed);
        engine.table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::ZERO);
        (engine.limits.tokens_max, engine.limits.tiers) = (128, tiers);
        let served = run(&requests, &engine);
        let first = served.records.list[2].first_token().expect("served");
        ((first - requests.list[2].arrival).to_seconds().get(), served.records.list[2].brought_tokens)
    };
    let all = LAW[0] + 70.0 * LAW[1];
    for (tiers, seconds, brought) in [
        (crate::kv::tiers::NO_TIERS, all, 0),
        (tiers(8, 0.05), LAW[0] + 6.0 * LAW[1] + 0.4, 64),
        (tiers(8, 0.1), all, 0),
        // Room for three of the four: the last of the chain left the device first, so the first of it went last and three are there.
        (tiers(6, 0.05), LAW[0] + (6.0 + 16.0) * LAW[1] + 0.3, 48),
        // Room for the first two, at 10 ms a block. The others lie on a disk that takes longer than computing them does, and do no harm.
        (tiers(4, 0.01), LAW[0] + (6.0 + 32.0) * LAW[1] + 0.04, 32),
        ([tiers(4, 0.01)[0], tiers(80, 1.0)[0]], LAW[0] + (6.0 + 32.0) * LAW[1] + 0.04, 32),
        // One that is a little faster than computing them brings them all.
        ([tiers(4, 0.01)[0], tiers(80, 0.07)[0]], LAW[0] + 6.0 * LAW[1] + 0.04 + 0.28, 64),
    ] {
        let found = third(tiers);
        assert!(
            (found.0 - seconds).abs() < 1e-6 && found.1 == brought,
            "{tiers:?}: {found:?}, expected {seconds} s, {brought}"
        );
    }
}

#[test]
fn spans_are_single_steps_and_everybody_is_served_with_tiers() {
    for seed in 0..4 {
        let requests = requests(400, 100.0, seed, true);
        let engine = |spans| {
            let mut engine = engine("vllm-v1", 40, Preemption::Recompute, spans);
            engine.limits.tiers = [
                Tier { blocks: 20, ticks_per_block: Tick::new(9_000) },
                Tier { blocks: 80, ticks_per_block: Tick::new(40_000) },
            ];
            engine
        };
        let (closed, mut single) = (run(&requests, &engine(Spans::Closed)), run(&requests, &engine(Spans::Stepwise)));
        single.counts[0].n_spans = closed.counts[0].n_spans;
        assert!(single == closed, "seed {seed}");
        assert_eq!(closed.records.n_ended(), 400);
        assert!(closed.records.list.iter().any(|record| record.brought_tokens > 0), "the case is about tiers");
    }
}
