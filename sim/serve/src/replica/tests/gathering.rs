//! Prompts that wait for others, by hand: iterations of a millisecond, one request that decodes, and one that comes at 10.5 ms.

use super::*;
use crate::step_cost::lanes::Lanes;

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

/// First tokens in milliseconds of requests that come at such milliseconds, with so many output tokens, on two ranks of data-parallel attention.
fn on_two_ranks(gather: Option<Gather>, tokens_max: u32, spans: Spans, asked: &[(f64, u32)]) -> Vec<f64> {
    let mut engine = engine("trtllm", 1000, Preemption::Recompute, spans);
    let lanes = Lanes { stages: 1, ranks: 2 };
    engine.table = StepTable::constant(Seconds::new(1e-3)).in_lanes(lanes, tokens_max);
    engine.limits.tokens_max = tokens_max;
    engine.limits.gather = gather;
    let request = |(ms, output): &(f64, u32)| {
        let time = Time::from_ns(hw::whole(ms * 1e6));
        Request::new(time, 10, *output)
    };
    let requests = Requests::of(asked.iter().map(request).collect());
    let served = run(&requests, &engine);
    let ms = |time: Option<Time>| (time.expect("served") - Time::ZERO).to_seconds().get() * 1e3;
    served.records.list.iter().map(|record| ms(record.first_token())).collect()
}

#[test]
fn prompts_wait_until_every_rank_has_one() {
    let gather = |iterations, more| Some(Gather::Ranks { iterations, more });
    let first = |gather, asked: &[(f64, u32)]| on_two_ranks(gather, 128, Spans::Closed, asked);
    // The first begins alone, and the second as it has ended its prompt, for its rank decodes nobody. A third comes at 10.5 ms and a fourth at 13.5 ms,
    // one to each rank.
    let asked = [(0.0, 90), (0.0, 90), (10.5, 5), (13.5, 5)];
    assert_eq!(first(None, &asked), [1.0, 2.0, 12.0, 15.0]);
    assert_eq!(first(gather(50, 0), &asked), [1.0, 2.0, 15.0, 15.0]);
    // With two boundaries more behind the last one.
    assert_eq!(first(gather(50, 2), &asked), [1.0, 2.0, 17.0, 17.0]);
    // Boundaries count from that at 2 ms, as both decode, whether somebody waits or not: the eighth is at 9 ms, and the eighth behind it at 17 ms.
    assert_eq!(first(gather(8, 0), &asked[..3]), [1.0, 2.0, 18.0]);
}

#[test]
fn a_rank_that_does_not_decode_waits_for_nobody() {
    let gather = Some(Gather::Ranks { iterations: 50, more: 0 });
    assert_eq!(on_two_ranks(gather, 128, Spans::Closed, &[(0.0, 90), (10.5, 5)]), [1.0, 12.0]);
}

#[test]
fn every_rank_has_tokens_of_its_own() {
    // Four prompts of ten tokens come together, and a rank has room for one at a time. The first begins alone. Then one rank decodes nobody, so
    // each takes a prompt in. The last one finds both decoding, and waits until they have ended at 6 ms.
    let gather = Some(Gather::Ranks { iterations: 50, more: 0 });
    let asked = [(0.0, 5); 4];
    assert_eq!(on_two_ranks(gather, 16, Spans::Closed, &asked), [1.0, 2.0, 2.0, 7.0]);
}

#[test]
fn openings_are_the_same_in_spans_and_step_by_step() {
    let mut stream = random::stream(7, "ranks");
    for iterations in [1, 3, 7, 60] {
        for more in [0, 2] {
            let gather = Some(Gather::Ranks { iterations, more });
            let asked: Vec<(f64, u32)> = (0..60)
                .map(|index| {
                    (
                        f64::from(index) * 3.0 + hw::real(stream.below(3000)) * 1e-3,
                        1 + u32::try_from(stream.below(40)).expect("few"),
                    )
                })
                .collect();
            let [closed, stepwise] =
                [Spans::Closed, Spans::Stepwise].map(|spans| on_two_ranks(gather, 64, spans, &asked));
            assert_eq!(closed, stepwise, "{iterations} and {more}");
        }
    }
}
