//! Tokens behind the engine against play token by token, and spans against single steps.

use super::*;
use crate::fleet::{Fleet, Group, Keeps};
use crate::frontend::Frontend;

/// A fleet of one replica that keeps times between tokens.
fn served(engine: Engine, requests: &Requests) -> Served {
    let fleet = Fleet { keeps: Keeps::Tokens { samples: 50 }, ..Fleet::of(Group::new("all", engine, 1)) };
    fleet.serve(requests, (router::named("round-robin").expect("listed").make)(0).as_mut())
}

#[test]
fn clients_see_tokens_as_a_queue_hands_them_on_one_by_one() {
    // All come together. The first begins alone, all others an iteration later; then each iteration gives every answer a token. Answers end one after another,
    // so spans differ in their sequences.
    let outputs = [3, 3, 10, 11, 12, 40, 41, 41, 60, 90];
    let requests = Requests::of(outputs.map(|output| Request::new(Time::ZERO, 1, output)).to_vec());
    let step_us = 1000.0;
    for per_token_us in [40.0, 130.0, 700.0, 2500.0] {
        let mut engine = engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed);
        engine.table = StepTable::constant(Seconds::new(step_us / 1e6));
        engine.limits.frontend = Frontend::new(per_token_us, [1, 1]);
        let served = served(engine, &requests);
        // When the last token of every iteration is through.
        let (mut free, mut through) = (0.0, Vec::new());
        let begins = |index: usize| if index == 0 { 1 } else { 2 };
        for step in 1..=91 {
            let takes_part =
                |(index, output): &(usize, &u32)| (begins(*index)..begins(*index) + **output).contains(&step);
            for _ in outputs.iter().enumerate().filter(takes_part) {
                free = f64::max(free, f64::from(step) * step_us) + per_token_us;
            }
            through.push(free);
        }
        for (index, (output, record)) in outputs.iter().zip(&served.records.list).enumerate() {
            let us = |time: Option<Time>| hw::real(time.expect("served").as_ns()) / 1e3;
            let [first, last] = [1, *output].map(|token| through[(begins(index) + token) as usize - 2]);
            assert!((us(record.first_token()) - first).abs() < 0.01, "{per_token_us}: {record:?}, {first}");
            assert!((us(record.finished()) - last).abs() < 0.01, "{per_token_us}: {record:?}, {last}");
        }
        let all: u32 = outputs.iter().sum();
        assert_eq!(served.counts[0].frontend_ticks, Frontend::new(per_token_us, [1, 1]).per_token * u64::from(all));
    }
}

#[test]
fn closed_spans_give_what_single_steps_give_and_the_engine_does_not_wait() {
    for batcher in ["vllm-v1", "sarathi", "sglang", "trtllm", "vllm-v0"] {
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (30, Preemption::Recompute), (30, SWAP)] {
            for seed in 0..4_u32 {
                let requests = requests(300, [20.0, 60.0, 200.0][seed as usize % 3], seed.into(), seed % 2 == 1);
                let of = |spans, frontend| {
                    let mut engine = engine(batcher, kv_blocks, preemption, spans);
                    engine.limits.frontend = frontend;
                    let mut served = served(engine, &requests);
                    served.counts[0].n_spans = 0;
                    served
                };
                let frontend = Frontend::new([30.0, 400.0][seed as usize / 2], [1 + seed, 1 + seed % 2]);
                let (closed, single) = (of(Spans::Closed, frontend), of(Spans::Stepwise, frontend));
                assert!(closed == single, "{batcher}, {kv_blocks} blocks, {preemption:?}, seed {seed}");
                let free = of(Spans::Closed, Frontend::NONE);
                let later = closed.records.list.iter().zip(&free.records.list);
                assert!(later.clone().all(|(late, early)| late.first_token() >= early.first_token()));
                assert!(later.clone().all(|(late, early)| late.finished() >= early.finished()));
                assert!(later.into_iter().all(|(late, early)| late.scheduled() == early.scheduled()));
                assert_eq!(closed.counts[0].n_steps, free.counts[0].n_steps, "arrivals do not depend on answers");
            }
        }
    }
}

#[test]
fn first_tokens_go_by_themselves_and_others_as_messages_have_them() {
    // A lone answer of eight tokens, one every millisecond; messages of three: the first, three, three, and the last.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 1, 8)]);
    let mut engine = engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed);
    engine.table = StepTable::constant(Seconds::new(1e-3));
    engine.limits.frontend = Frontend::new(0.0, [3, 1]);
    let served = served(engine, &requests);
    let [p50, p90, _, most] = served.token_gaps[0].expect("eight tokens").seconds();
    // Gaps of 3, 0, 0, 3, 0, 0 and 1 ms.
    assert!(p50.abs() < 1e-9 && (p90 - 3e-3).abs() < 1e-9 && (most - 3e-3).abs() < 1e-9, "{p50} {p90} {most}");
}
