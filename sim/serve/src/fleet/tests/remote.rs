//! A store that replicas share: closed forms of one hit, of what another replica wrote and of two that read at once, and spans against single steps.

use super::*;
use crate::fleet::dynamics::Outage;
use crate::fleet::held::Users;
use crate::kv::remote::Remote;
use crate::kv::tiers::{self, N_TIERS, Tier};
use crate::replica::{self, Role};
use crate::sessions::Sessions;
use hw::{Bytes, Tick};

/// Seconds of an iteration and of a token.
const LAW: [f64; 2] = [1e-3, 1e-2];

fn remote(blocks: u64, given_s: f64, taken_s: f64) -> Option<Remote> {
    let [given_ticks, taken_ticks] = [given_s, taken_s].map(|time| Tick::from_seconds(Seconds::new(time)));
    Some(Remote { room: Bytes(blocks * 10), block_bytes: 10, given_ticks, taken_ticks })
}

/// Prompts of 70 tokens at these seconds, each beginning with 64 tokens of its number, in prefixes of 16.
fn prompts(list: &[(u64, u32)]) -> Requests {
    let at = |&(s, chain): &(u64, u32)| Request {
        prefix_first: chain * 4,
        prefix_count: 4,
        ..Request::new(Time::from_ns(s * 1_000_000_000), 70, 1)
    };
    Requests {
        list: list.iter().map(at).collect(),
        prefix_ids: (0..40).collect(),
        n_prefix_ids: 40,
        prefix_tokens: 16,
        ..Requests::default()
    }
}

/// Seconds to the first token of every request, on replicas of nine blocks that take requests in turn, and prompt tokens from the store.
fn ttft_s(requests: &Requests, remote: Option<Remote>, n_replicas: usize) -> (Vec<f64>, u32) {
    ttft_beside(requests, tiers::NO_TIERS, remote, n_replicas)
}

/// The same with tiers of every replica.
fn ttft_beside(
    requests: &Requests,
    tiers: [Tier; N_TIERS],
    remote: Option<Remote>,
    n_replicas: usize,
) -> (Vec<f64>, u32) {
    let mut engine = engine(12);
    engine.table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::ZERO);
    engine.limits = Limits { block_tokens: 8, kv_blocks: 9, shares_prefixes: true, remote, tiers, ..engine.limits };
    let served =
        serve(requests, &vec![&engine; n_replicas], (router::named("round-robin").expect("listed").make)(7).as_mut());
    let ttft = latencies(requests, &served).map(|found| found.expect("served").ttft_s).collect();
    (ttft, served.records.list.iter().map(|record| record.remote_tokens).sum())
}

fn near(found: &[f64], expected: &[f64]) {
    let is_near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
    assert!(is_near && found.len() == expected.len(), "{found:?}, expected {expected:?}");
}

#[test]
fn a_prefix_comes_from_the_store_where_that_is_faster_than_computing_it() {
    // One prompt fills the device, so the second pushes the first one's prefixes off. 64 tokens take 0.64 s to compute; eight blocks at 50 ms take 0.4 s.
    let requests = prompts(&[(0, 0), (10, 1), (20, 0)]);
    let all = LAW[0] + 70.0 * LAW[1];
    for (remote, third, tokens) in [
        (remote(80, 0.05, 0.01), LAW[0] + 6.0 * LAW[1] + 0.4, 64),
        // The network cards set the pace.
        (remote(80, 0.01, 0.06), LAW[0] + 6.0 * LAW[1] + 0.48, 64),
        (remote(80, 0.1, 0.01), all, 0),
        // The room of one prompt: the second one's prefixes are the last that were written.
        (remote(8, 0.05, 0.01), all, 0),
        (None, all, 0),
    ] {
        let (found, brought) = ttft_s(&requests, remote, 1);
        near(&found, &[all, all, third]);
        assert_eq!(brought, tokens, "{remote:?}");
    }
}

#[test]
fn a_prefix_comes_from_the_faster_of_two_places_that_have_it() {
    let requests = prompts(&[(0, 0), (10, 1), (20, 0)]);
    let disk = |blocks, block_s: f64| {
        let ticks_per_block = Tick::from_seconds(Seconds::new(block_s));
        [Tier::default(), Tier { blocks, ticks_per_block }]
    };
    let (all, hit) = (LAW[0] + 70.0 * LAW[1], LAW[0] + 6.0 * LAW[1]);
    for (tiers, remote, third, tokens) in [
        // 64 tokens take 0.64 s to compute. Eight blocks from the store take 0.4 s, and 8 s from a disk that has them too.
        (disk(80, 1.0), remote(80, 0.05, 0.01), hit + 0.4, 64),
        (disk(80, 0.01), remote(80, 0.05, 0.01), hit + 0.08, 0),
        // Of the four prefixes the disk has the first two, since the end of a row leaves the device first: they come from there, the others from the store.
        (disk(4, 0.01), remote(80, 0.05, 0.01), hit + 0.04 + 0.2, 32),
        // Neither is worth its while.
        (disk(80, 1.0), remote(80, 0.1, 0.01), all, 0),
    ] {
        let (found, brought) = ttft_beside(&requests, tiers, remote, 1);
        near(&found, &[all, all, third]);
        assert_eq!(brought, tokens, "{tiers:?} {remote:?}");
    }
}

#[test]
fn what_one_replica_wrote_another_one_reads() {
    let requests = prompts(&[(0, 0), (10, 0)]);
    let all = LAW[0] + 70.0 * LAW[1];
    let (found, brought) = ttft_s(&requests, remote(80, 0.05, 0.01), 2);
    near(&found, &[all, LAW[0] + 6.0 * LAW[1] + 0.4]);
    assert_eq!(brought, 64);
    // Without a store the second replica knows nothing of it.
    near(&ttft_s(&requests, None, 2).0, &[all, all]);
}

/// One user whose turns have prompts of 160 tokens and answers of 17. All that was said comes from the store, whichever replica decoded it, and whether or
/// not that one had a part of it.
#[test]
fn answers_of_every_decode_replica_are_in_the_store() {
    let turns = Requests::of(vec![Request::new(Time::ZERO, 160, 17); 6]);
    let sessions = Sessions { turns: 1e9, system: 32, context_max: 100_000, block_tokens: 16 };
    let requests = sessions.lay(&turns, 1);
    let expected: Vec<u32> = (0..6).map(|n| if n == 0 { 0 } else { (32 + 177 * n - 1) / 16 * 16 }).collect();
    let mut engine = engine(12);
    engine.table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::ZERO);
    (engine.limits.shares_prefixes, engine.limits.remote) = (true, remote(1_000_000, 1e-6, 1e-6));
    for n_decode in [1, 3] {
        let of = |name: &str, n, role| Group { role, ..Group::new(name, engine.clone(), n) };
        let groups = vec![of("prompts", 1, Role::Prefill), of("answers", n_decode, Role::Decode)];
        let fleet = Fleet { groups, links: vec![split::FREE], ..Fleet::default() }.handing_on(1.0);
        let (_, served) = fleet.serve_held(&requests, Rules::of(named("round-robin").as_mut()), Users::in_flight(1));
        let cached: Vec<u32> = served.records.list.iter().map(|record| record.cached_tokens).collect();
        assert_eq!(cached, expected, "{n_decode} decode replicas");
    }
}

/// A request is lost with its replica at 5 s and computed again on the other one, which reads its prompt from the store. What was cached is that of its
/// first admission: nothing, from wherever.
#[test]
fn what_is_read_again_after_a_loss_is_no_part_of_what_was_cached() {
    let mut requests = prompts(&[(0, 0)]);
    requests.list[0].output = 1_000;
    let mut engine = engine(12);
    engine.table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::ZERO);
    (engine.limits.block_tokens, engine.limits.shares_prefixes) = (8, true);
    engine.limits.remote = remote(80, 0.05, 0.01);
    let outages = vec![Outage {
        group: 0,
        replica: 0,
        at: Time::from_ns(5_000_000_000),
        notice: Seconds::ZERO,
        back_after: None,
    }];
    let fleet = Fleet { outages, ..Fleet::of(Group::new("all", engine, 2)) };
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let n_cached = [0, 1].map(|replica: usize| served.counts[replica].cached_tokens);
    assert_eq!(n_cached, [0, 64], "the second has it from the store");
    let figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
    assert_eq!((figures["prefix_hit_ratio"], figures.get("brought_ratio")), (0.0, None));
    // Where it was read at the first admission, it is all of what was cached.
    let requests = prompts(&[(0, 0), (10, 0)]);
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
    for key in ["prefix_hit_ratio", "brought_ratio", "remote_ratio"] {
        close(figures[key], 64.0 / 140.0, 1e-12, key);
    }
}

#[test]
fn two_replicas_that_read_at_once_have_half_of_the_bandwidth_each() {
    // Eight blocks of 30 ms: 0.24 s by themselves. Both together take twice as long as one, so the later one has half of the bandwidth.
    let requests = prompts(&[(0, 0), (10, 0), (10, 0)]);
    let (all, hit) = (LAW[0] + 70.0 * LAW[1], LAW[0] + 6.0 * LAW[1]);
    let (found, brought) = ttft_s(&requests, remote(80, 0.03, 0.01), 3);
    near(&found, &[all, hit + 0.24, hit + 0.48]);
    assert_eq!(brought, 128);
    // Where network cards take 30 ms a block and the store gives one in 10 ms, the second waits for 80 ms alone.
    let (found, _) = ttft_s(&requests, remote(80, 0.01, 0.03), 3);
    near(&found, &[all, hit + 0.24, hit + 0.24 + 0.08]);
}

#[test]
fn spans_are_single_steps_and_everybody_is_served_with_a_store() {
    for seed in 0..4 {
        let requests = replica::tests::requests(400, 200.0, seed, true);
        let served = |spans| {
            let mut engine = replica::tests::engine("vllm-v1", 40, replica::Preemption::Recompute, spans);
            let (given_ticks, taken_ticks) = (Tick::new(9_000), Tick::new(4_000));
            engine.limits.remote = Some(Remote { room: Bytes(2000), block_bytes: 10, given_ticks, taken_ticks });
            serve(&requests, &[&engine; 3], (router::named("least-loaded").expect("listed").make)(7).as_mut())
        };
        let (closed, mut single) = (served(Spans::Closed), served(Spans::Stepwise));
        single.counts.iter_mut().zip(&closed.counts).for_each(|(single, closed)| single.n_spans = closed.n_spans);
        assert!(single == closed, "seed {seed}");
        assert_eq!(closed.records.n_ended(), 400);
        assert!(closed.records.list.iter().any(|record| record.remote_tokens > 0), "the case is about the store");
    }
}
