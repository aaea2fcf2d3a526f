//! Stages that differ: prompts that flow through them, and rounds of sequences that come back.

use engine::cost::Source;
use hw::{Seconds, Time};

use super::super::*;
use crate::batcher;
use crate::fleet::{Fleet, Group};
use crate::metrics::latencies;
use crate::request::Request;
use crate::router;
use crate::step_cost::stages::{Passage, StageLaw};

/// Stages of so many milliseconds per batch, whatever it holds, and a millisecond from each to the next but for the last.
fn table(stages_ms: &[f64], passage: Passage) -> StepTable {
    let ms = |ms: f64| move |_: u64| Seconds::new(ms * 1e-3);
    let times: Vec<_> = stages_ms.iter().map(|&of| ms(of)).collect();
    let hops: Vec<_> = (1..=times.len()).map(|next| ms(if next < times.len() { 1.0 } else { 0.0 })).collect();
    let law = |(tokens, hand_over)| StageLaw { tokens, per_pair: Seconds::ZERO, per_key: Seconds::ZERO, hand_over };
    let pairs = times.iter().zip(&hops).map(|(a, b)| (a as &dyn Fn(u64) -> Seconds, b as &dyn Fn(u64) -> Seconds));
    let laws: Vec<StageLaw<'_>> = pairs.map(law).collect();
    StepTable::of_stages(&laws, passage, 1000, Source::Measured)
}

fn engine(table: StepTable) -> Engine {
    let limits = Limits { sequences_max: 100, tokens_max: 1000, context_max: 1000, kv_blocks: 10_000, ..Limits::ROOMY };
    Engine { limits, table, batcher: batcher::named("one-prompt").expect("listed"), spans: Spans::Closed }
}

/// Milliseconds to the first and to the last token of prompts of 10 tokens with so many output tokens, at these milliseconds.
fn stays(fleet: &Fleet, arrivals: &[(u64, u32)]) -> Vec<(f64, f64)> {
    let at = |ms: u64| Time::from_ns(ms * 1_000_000);
    let requests = Requests::of(arrivals.iter().map(|&(ms, output)| Request::new(at(ms), 10, output)).collect());
    let mut router = (router::named("round-robin").expect("listed").make)(0);
    let served = fleet.serve(&requests, router.as_mut());
    let of = |found: Option<crate::metrics::Latencies>| {
        let found = found.expect("served");
        (found.ttft_s * 1e3, found.e2e_s * 1e3)
    };
    latencies(&requests, &served).map(of).collect()
}

fn check(found: &[(f64, f64)], expected: &[(f64, f64)]) {
    let near = |a: &(f64, f64), b: &(f64, f64)| (a.0 - b.0).abs() < 1e-6 && (a.1 - b.1).abs() < 1e-6;
    let all = found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| near(a, b));
    assert!(all, "found {found:?}, expected {expected:?}");
}

#[test]
fn prompts_follow_one_another_through_the_stages() {
    let prefill =
        Group { role: Role::Prefill, ..Group::new("prefill", engine(table(&[3.0, 5.0, 2.0], Passage::Flow)), 1) };
    let decode = Group { role: Role::Decode, ..Group::new("decode", engine(table(&[1.0], Passage::Rounds)), 1) };
    let fleet = Fleet { groups: vec![prefill, decode], ..Fleet::default() };
    // Alone: 3 + 1 + 5 + 1 + 2 = 12 ms. Prompts enter at 0, 3 and 6 ms, are before the second stage at 4, 7 and 10 ms, which is free for
    // them at 4, 9 and 14 ms, and leave the last one 5 + 1 + 2 ms later: at 12, 17 and 22 ms. One at 100 ms finds all stages free.
    let found = stays(&fleet, &[(0, 1), (0, 1), (0, 1), (100, 1)]);
    check(&found, &[(12.0, 12.0), (17.0, 17.0), (22.0, 22.0), (12.0, 12.0)]);
    // Nothing limits a transfer here: 3 more tokens take 3 ms on the decode replica.
    check(&stays(&fleet, &[(0, 4)]), &[(12.0, 15.0)]);
}

#[test]
fn a_round_is_a_passage_or_the_slowest_stage_for_all() {
    let fleet = |stages_ms: &[f64]| Fleet::of(Group::new("both", engine(table(stages_ms, Passage::Rounds)), 1));
    // One sequence: 3 + 1 + 5 = 9 ms for the prompt and for each of 4 tokens.
    check(&stays(&fleet(&[3.0, 5.0]), &[(0, 5)]), &[(9.0, 45.0)]);
    // Two: 20 more tokens of both take 20 rounds more.
    let of_20 = |stages_ms: &[f64]| {
        let last = |output| stays(&fleet(stages_ms), &[(0, output), (0, output)])[1].1;
        last(40) - last(20)
    };
    // A stage of 5 ms twice is 10 ms, longer than a passage of 9 ms; 4 ms twice is shorter than 4 + 1 + 4 ms.
    let found = [of_20(&[3.0, 5.0]), of_20(&[4.0, 4.0])];
    assert!((found[0] - 200.0).abs() < 1e-6 && (found[1] - 180.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn chunks_fill_stages_that_differ() {
    // Batches of 1000 tokens through stages of 3 and 5 ms with 1 ms between them: the first has left after 9 ms, each further one 5 ms later.
    let mut engine = engine(table(&[3.0, 5.0], Passage::Rounds));
    engine.batcher = batcher::named("vllm-v1").expect("listed");
    engine.limits.context_max = 10_000;
    let ttft = |prompt| {
        let requests = Requests::of(vec![Request::new(Time::ZERO, prompt, 1)]);
        let mut router = (router::named("round-robin").expect("listed").make)(0);
        let served = Fleet::of(Group::new("both", engine.clone(), 1)).serve(&requests, router.as_mut());
        served.records.list[0].first_token().map_or(0, Time::as_ns)
    };
    let prompts = [1000, 2000, 2001, 3000, 3001, 4001];
    assert_eq!(prompts.map(ttft), [9, 14, 19, 19, 24, 29].map(|ms| ms * 1_000_000));
}

#[test]
fn one_stage_is_a_plain_table() {
    let law = [2e-3, 1e-5, 3e-7];
    let tokens = |m: u64| Seconds::new(law[0] + law[1] * hw::real(m));
    let nothing = |_: u64| Seconds::ZERO;
    let of = StageLaw { tokens: &tokens, per_pair: Seconds::ZERO, per_key: Seconds::new(law[2]), hand_over: &nothing };
    let staged = StepTable::of_stages(&[of], Passage::Rounds, 1000, Source::Measured);
    let plain = StepTable::linear(Seconds::new(law[0]), Seconds::new(law[1]), Seconds::new(law[2]));
    let arrivals: Vec<(u64, u32)> = (0..60_u32).map(|n| (u64::from(n * n % 97), 1 + n * 31 % 40)).collect();
    let served = |table: StepTable| stays(&Fleet::of(Group::new("both", engine(table), 1)), &arrivals);
    check(&served(staged), &served(plain));
}
