//! Prompts on ranks that were drawn for them, and requests that several frontends deal out: against brute force and bounds.

use engine::random;
use hw::{Seconds, Span, Time};

use super::{group, named, requests};
use crate::batcher;
use crate::fleet::{Fleet, Group, Served};
use crate::metrics::latencies;
use crate::replica::{Engine, PromptRank, Role};
use crate::request::{Request, Requests};
use crate::router;
use crate::step_cost::StepTable;
use crate::step_cost::host::{EngineLoop, Host};
use crate::step_cost::lanes::Lanes;

const RANKS: u32 = 4;
/// Tokens of a prompt, which fill an iteration of one rank.
const PROMPT: u32 = 64;

/// A request at some second with so many tokens of an answer.
fn at(second: f64, output: u32) -> Request {
    Request::new(Time::ZERO + Span::from_seconds(Seconds::new(second)), PROMPT, output)
}

/// What a prefill and a decode replica serve, where an iteration takes a millisecond.
fn served(rank: PromptRank, engine_loop: EngineLoop, list: impl IntoIterator<Item = Request>) -> (Requests, Served) {
    let base = super::engine(8);
    let table = StepTable::constant(Seconds::new(1e-3)).in_lanes(Lanes { stages: 1, ranks: RANKS }, PROMPT);
    let table = table.hosted(Host::new(engine_loop, Seconds::ZERO, Seconds::ZERO, Seconds::ZERO));
    let mut engine = Engine { table, batcher: batcher::named("sglang").expect("listed"), ..base };
    (engine.limits.tokens_max, engine.limits.kv_blocks, engine.limits.prompt_rank) = (PROMPT, 100_000, rank);
    let of = |name: &str, role| Group { role, ..Group::new(name, engine.clone(), 1) };
    let groups = vec![of("prefill", Role::Prefill), of("decode", Role::Decode)];
    let links = vec![super::split::FREE];
    let fleet = Fleet { groups, links, ..Fleet::default() }.handing_on(1.0);
    let requests = Requests::of(list.into_iter().collect());
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    (requests, served)
}

/// Seconds to the first token of so many prompts that come together.
fn first_tokens(rank: PromptRank, n: u32) -> Vec<f64> {
    let (requests, served) = served(rank, EngineLoop::Serial, (0..n).map(|_| at(0.0, 2)));
    latencies(&requests, &served).map(|found| found.expect("served").ttft_s).collect()
}

#[test]
fn a_prompt_waits_for_those_before_it_on_its_rank() {
    // The first prompt is alone in its iteration, because it finds the replica idle. Then the k-th prompt of a rank has its token after k iterations, whoever
    // else is idle. The draws are made again here.
    let n = 200;
    let draws = random::stream(0, "prompt ranks");
    let drawn = |request: u32| usize::try_from(draws.branch(request.into()).below(RANKS.into())).expect("a rank");
    let mut before = [1_u32; RANKS as usize];
    before[drawn(0)] = 0;
    for (request, found) in (0..n).zip(first_tokens(PromptRank::Drawn, n)) {
        let rank = drawn(request);
        before[rank] += 1;
        let expected = f64::from(before[rank]) * 1e-3;
        assert!((found - expected).abs() < 1e-9, "{request}: {found} s, expected {expected} s");
    }
    let even = first_tokens(PromptRank::Even, n);
    assert!((even[n as usize - 1] - 0.051).abs() < 1e-9, "four at a time: {} s", even[n as usize - 1]);
    assert!(before.iter().any(|n| *n > 51), "draws are not even: {before:?}");
}

#[test]
fn prompts_with_one_token_of_an_answer_leave_a_replica_that_computes_for_others() {
    // A host that is ahead keeps a sequence whose last token is there for one more iteration. Blocks of all come free, with one or with two tokens, whether
    // somebody follows or not.
    for (engine_loop, output, n) in [EngineLoop::Serial, EngineLoop::Asynchronous]
        .into_iter()
        .flat_map(|engine_loop| [(engine_loop, 1, 1_u32), (engine_loop, 1, 50), (engine_loop, 2, 50)])
    {
        let (_, served) = served(PromptRank::Drawn, engine_loop, (0..n).map(|k| at(0.3e-3 * f64::from(k), output)));
        assert_eq!(served.records.n_ended(), u64::from(n), "{engine_loop:?}, {output} tokens of {n}");
    }
    // A lone prompt takes as long as one on ranks that are filled evenly.
    let [drawn, even] = [PromptRank::Drawn, PromptRank::Even].map(|rank| {
        let (_, served) = served(rank, EngineLoop::Asynchronous, [at(0.0, 1), at(1.0, 1)]);
        served.records.list.iter().map(|record| record.finished()).collect::<Vec<_>>()
    });
    assert_eq!(drawn, even);
}

#[test]
fn every_frontend_is_even_and_all_together_are_not_in_turn() {
    let fleet = Fleet::of(group("a", 7, 1000, 1.0));
    let requests = requests(2000, &[4], 100.0, 1);
    let replicas = |router: &mut dyn router::Router| {
        let served = fleet.serve(&requests, router);
        served.records.list.iter().map(|record| record.replica).collect::<Vec<u32>>()
    };
    let several = replicas(router::frontends(10, 1).as_mut());
    // Each of ten rounds gives a replica one request more or fewer than another at most.
    let taken = |replica| several.iter().filter(|of| **of == replica).count();
    let counts: Vec<usize> = (0..7).map(taken).collect();
    let (least, most) = (counts.iter().min().expect("seven"), counts.iter().max().expect("seven"));
    assert!(most - least <= 10, "{counts:?}");
    assert!(several.windows(2).any(|pair| pair[0] == pair[1]), "two in a row to one replica");
    assert_eq!(replicas(router::frontends(1, 1).as_mut()), replicas(named("round-robin").as_mut()));
}
