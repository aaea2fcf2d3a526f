//! Prompts that wait for others, by hand: iterations of a millisecond, one request that decodes, and one that comes at 10.5 ms.

use super::*;

/// Milliseconds at which the second request has its first token.
fn first_token(gather: Option<Gather>, decodes: u32) -> f64 {
    let mut engine = engine("trtllm", 1000, Preemption::Recompute, Spans::Closed);
    engine.table = StepTable::constant(Seconds::new(1e-3));
    engine.limits.gather = gather;
    let at = |ns: u64, prompt: u32, output: u32| Request::new(Time::from_ns(ns), prompt, output);
    let requests = Requests::of(vec![at(0, 10, decodes), at(10_500_000, 10, 5)]);
    let time = run(&requests, &engine).records.list[1].first_token().expect("served");
    (time - Time::ZERO).to_seconds().get() * 1e3
}

#[test]
fn a_prompt_stays_behind_at_so_many_boundaries_or_until_tokens_are_enough() {
    // It is seen at 11 ms and computed until 12 ms; with three boundaries in between until 15 ms.
    assert!((first_token(None, 50) - 12.0).abs() < 1e-6);
    assert!((first_token(Some(Gather::Tokens { iterations: 3, tokens: 100 }), 50) - 15.0).abs() < 1e-6);
    // Ten tokens of the prompt and one that decodes are eleven.
    assert!((first_token(Some(Gather::Tokens { iterations: 3, tokens: 12 }), 50) - 15.0).abs() < 1e-6);
    assert!((first_token(Some(Gather::Tokens { iterations: 3, tokens: 11 }), 50) - 12.0).abs() < 1e-6);
}

#[test]
fn nobody_waits_where_nobody_decodes() {
    // The first request has ended, so the second starts as it comes.
    assert!((first_token(Some(Gather::Tokens { iterations: 3, tokens: 100 }), 5) - 11.5).abs() < 1e-6);
}
