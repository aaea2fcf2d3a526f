//! Prompts here, outputs there: against closed forms, against single steps, and the books of both sides.

use std::num::NonZeroU32;

use hw::{Seconds, Tick, Time};

use super::{engine, named};
use crate::adapters::{AdapterLimits, Popularity};
use crate::fleet::{Fleet, Group, Link, Served};
use crate::metrics::latencies;
use crate::replica::{Engine, FirstToken, Role, Spans};
use crate::request::{Request, Requests};
use crate::router::ROUTERS;
use crate::step_cost::StepTable;
use crate::step_cost::host::{EngineLoop, Host};

/// Seconds of an iteration, per token and per cached token that is read.
const LAW: [f64; 3] = [2e-3, 1e-5, 3e-7];

fn linear(kv_blocks: u32, spans: Spans) -> Engine {
    let table = StepTable::linear(Seconds::new(LAW[0]), Seconds::new(LAW[1]), Seconds::new(LAW[2]));
    let mut engine = Engine { table, spans, ..engine(8) };
    engine.limits.kv_blocks = kv_blocks;
    engine
}

/// `n` prefill replicas and `m` decode replicas, a million bytes per token.
fn fleet(engine: &Engine, n: u32, m: u32, link: Link) -> Fleet {
    let of = |name: &str, n_replicas, role| Group { role, ..Group::new(name, engine.clone(), n_replicas) };
    Fleet {
        groups: vec![of("prefill", n, Role::Prefill), of("decode", m, Role::Decode)],
        links: vec![link],
        ..Fleet::default()
    }
    .handing_on(1e6)
}

pub(super) const FREE: Link =
    Link { from: 0, to: 1, bytes_per_s: None, wire: None, latency_s: 0.0, wire_ratio: 1.0, pack_s_per_token: 0.0 };

fn at(seconds: f64, prompt: u32, output: u32) -> Request {
    Request::new(Time::ZERO + hw::Span::from_seconds(Seconds::new(seconds)), prompt, output)
}

/// Seconds from arrival to first and to last token.
fn stays(requests: &Requests, served: &Served) -> Vec<(f64, f64)> {
    latencies(requests, served).map(|found| found.map(|l| (l.ttft_s, l.e2e_s)).expect("served")).collect()
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 1e-8, "{what}: {found} s, expected {expected} s");
}

#[test]
fn a_request_alone_takes_its_prompt_its_transfer_and_its_steps() {
    // Requests far apart. Prompt of p tokens: one iteration, a + b·p. Transfer: latency + p · (pack + ratio · 1 MB / bandwidth). Then
    // o − 1 iterations of a + b, reading p + 1, p + 2, … keys.
    let lengths = [(10, 5), (300, 40), (64, 2), (1, 17), (512, 100)];
    for (link, per_token, latency) in [
        (FREE, 0.0, 0.0),
        (Link { bytes_per_s: Some(5e9), latency_s: 1e-3, ..FREE }, 1e6 / 5e9, 1e-3),
        (Link { bytes_per_s: Some(5e9), wire_ratio: 0.25, pack_s_per_token: 1e-6, ..FREE }, 1e-6 + 0.25e6 / 5e9, 0.0),
    ] {
        let list = lengths.iter().zip(0_u32..).map(|(&(p, o), n)| at(10.0 * f64::from(n), p, o)).collect();
        let requests = Requests::of(list);
        let served = fleet(&linear(1000, Spans::Closed), 1, 1, link).serve(&requests, named("round-robin").as_mut());
        for ((prompt, output), (ttft, e2e)) in lengths.into_iter().zip(stays(&requests, &served)) {
            let [a, b, c] = LAW;
            let (p, steps) = (f64::from(prompt), f64::from(output - 1));
            let first = a + b * p;
            near(ttft, first, "first token");
            let decode = steps * (a + b) + c * (steps * p + steps * (steps + 1.0) / 2.0);
            near(e2e, first + latency + p * per_token + decode, &format!("{prompt} and {output} tokens"));
        }
        assert_eq!(served.moved.n, 5);
        assert_eq!(served.moved.tokens, 887);
    }
}

#[test]
fn a_decode_replica_gives_first_tokens_when_there_is_a_place() {
    // Two prompts of 100 tokens, 3 ms each on a replica of its own, 100 ms of transfer each over links of their own; one place to decode. The
    // first has its token after 103 ms. The second waits for 19 iterations of the first, and its client sees nothing until then. The ends are
    // the same whoever gives first tokens.
    let requests = Requests::of(vec![at(0.0, 100, 20), at(0.0, 100, 20)]);
    let mut fleet = fleet(&linear(1000, Spans::Closed), 2, 1, FREE);
    fleet.groups[0].port_bytes_per_s = Some(1e9);
    fleet.groups[1].engine.limits.sequences_max = 1;
    let early = stays(&requests, &fleet.serve(&requests, named("round-robin").as_mut()));
    fleet.first_token = FirstToken::Decode;
    for spans in [Spans::Closed, Spans::Stepwise] {
        fleet.groups[1].engine.spans = spans;
        let late = stays(&requests, &fleet.serve(&requests, named("round-robin").as_mut()));
        let decode = 19.0 * 2.01e-3 + 3e-7 * (19.0 * 100.0 + 19.0 * 20.0 / 2.0);
        near(late[0].0, 3e-3 + 0.1, "first prompt");
        near(late[1].0, 3e-3 + 0.1 + decode, "second prompt");
        for (early, late) in early.iter().zip(&late) {
            near(early.0, 3e-3, "a token of the prefill replica");
            near(early.1, late.1, "last token");
        }
    }
}

/// Milliseconds at which three requests have first tokens of a replica that decodes, whose host looks for requests after so many iterations. All
/// iterations take a millisecond, transfers no time. Prompts of three prefill replicas end at 1, 5.5 and 9.5 ms.
fn joined_ms(engine_loop: EngineLoop, interval: u32) -> [f64; 3] {
    let requests = Requests::of(vec![at(0.0, 8, 100), at(4.5e-3, 8, 2), at(8.5e-3, 8, 2)]);
    let mut fleet = fleet(&linear(1000, Spans::Closed), 3, 1, FREE);
    fleet.first_token = FirstToken::Decode;
    for group in &mut fleet.groups {
        group.engine.table = StepTable::constant(Seconds::new(1e-3));
    }
    let host = Host::new(engine_loop, Seconds::ZERO, Seconds::ZERO, Seconds::ZERO);
    let decode = &mut fleet.groups[1].engine;
    decode.table = StepTable::constant(Seconds::new(1e-3)).hosted(host);
    decode.limits.recv_interval = NonZeroU32::new(interval).expect("not zero");
    let found = [Spans::Closed, Spans::Stepwise].map(|spans| {
        fleet.groups[1].engine.spans = spans;
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        let first = |index: usize| {
            let first = served.records.list[index].first_token().expect("served") - Time::ZERO;
            (first.to_seconds().get() * 1e6).round() / 1e3
        };
        [0, 1, 2].map(first)
    });
    assert_eq!(found[0], found[1], "{engine_loop:?}, {interval}: spans are single steps");
    found[0]
}

#[test]
fn a_replica_that_decodes_takes_blocks_when_its_host_looks() {
    // The first request finds an idle host. A serial one waits for the device and takes blocks at once: the next boundaries are those at 6 and 10 ms.
    assert_eq!(joined_ms(EngineLoop::Serial, 1), [1.0, 6.0, 10.0]);
    // With an interval of four it looks after the fourth and the eighth iteration, at 5 and 9 ms. The second request joins at 10 ms. Then the host
    // looks again, and so sees the third, who has come at 9.5 ms.
    assert_eq!(joined_ms(EngineLoop::Serial, 4), [1.0, 10.0, 11.0]);
    // Two who are seen by one look join together: that after thirty iterations, at 31 ms.
    assert_eq!(joined_ms(EngineLoop::Serial, 30), [1.0, 32.0, 32.0]);
}

#[test]
fn a_host_that_is_ahead_takes_in_who_has_come_an_iteration_later() {
    // It looks as an iteration begins, at 6 ms. Keys and values come during that iteration. It sees them at 7 ms, when the iteration until 8 ms is
    // composed already.
    assert_eq!(joined_ms(EngineLoop::Asynchronous, 1), [1.0, 8.0, 12.0]);
    // With an interval of four it looks as the fourth and the eighth iteration begin, at 4 and 8 ms, and where somebody joins, at 10 ms.
    assert_eq!(joined_ms(EngineLoop::Asynchronous, 4), [1.0, 10.0, 12.0]);
    assert_eq!(joined_ms(EngineLoop::Asynchronous, 30), [1.0, 32.0, 32.0]);
}

#[test]
fn two_transfers_share_the_link_of_their_groups() {
    // Two prefill replicas end equal prompts of 100 tokens at once: 2 + 1 ms. Over 1 GB/s each alone takes 100 ms, both together
    // 200 ms; then they decode one token, 2 ms + 10 µs + 101 · 0.3 µs, one after the other, as an idle replica starts with the first.
    // With ports of 1 GB/s at the senders and none at the receiver they do not meet.
    let requests = Requests::of(vec![at(0.0, 100, 2), at(0.0, 100, 2)]);
    let shared = fleet(&linear(1000, Spans::Closed), 2, 1, Link { bytes_per_s: Some(1e9), ..FREE });
    let mut apart = fleet(&linear(1000, Spans::Closed), 2, 1, FREE);
    apart.groups[0].port_bytes_per_s = Some(1e9);
    let mut met = fleet(&linear(1000, Spans::Closed), 2, 1, FREE);
    met.groups[1].port_bytes_per_s = Some(1e9);
    for (fleet, transfer) in [(shared, 0.2), (apart, 0.1), (met, 0.2)] {
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        for ((_, e2e), n_steps) in stays(&requests, &served).into_iter().zip([1.0, 2.0]) {
            near(e2e, 3e-3 + transfer + n_steps * (2.01e-3 + 101.0 * 3e-7), "last token");
        }
    }
}

#[test]
fn blocks_are_held_until_keys_and_values_have_moved() {
    // The prefill replica has 8 blocks of 16, a prompt takes 7: the second prompt waits until the first one's transfer of
    // 100 ms has ended, though the replica is idle.
    let requests = Requests::of(vec![at(0.0, 100, 2), at(0.0, 100, 2)]);
    let mut fleet = fleet(&linear(1000, Spans::Closed), 1, 1, Link { bytes_per_s: Some(1e9), ..FREE });
    fleet.groups[0].engine.limits.kv_blocks = 8;
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let found = stays(&requests, &served);
    near(found[0].0, 3e-3, "first prompt");
    near(found[1].0, 3e-3 + 0.1 + 3e-3, "second prompt");
    assert_eq!(served.blocks, [(7, 8), (7, 1000)]);
}

#[test]
fn a_full_decode_replica_holds_prompts_up() {
    // The decode replica has room for one sequence of 120 tokens: the second one's blocks are reserved when the first has ended, and
    // only then does its transfer start.
    let requests = Requests::of(vec![at(0.0, 100, 20), at(0.0, 100, 20)]);
    let mut fleet = fleet(&linear(1000, Spans::Closed), 2, 1, Link { bytes_per_s: Some(1e9), ..FREE });
    fleet.groups[1].engine.limits.kv_blocks = 8;
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let found = stays(&requests, &served);
    let decode = 19.0 * 2.01e-3 + 3e-7 * (19.0 * 100.0 + 19.0 * 20.0 / 2.0);
    near(found[0].1, 3e-3 + 0.1 + decode, "first");
    near(found[1].1, 3e-3 + 2.0 * (0.1 + decode), "second");
    near(found[1].0, 3e-3, "its first token does not wait");
    assert_eq!((served.blocks[0].0, served.blocks[2].0), (7, 8));
}

/// Random requests of up to 200 prompt and 60 output tokens.
fn random_requests(n: usize, per_s: f64, seed: u64) -> Requests {
    let mut stream = engine::random::stream(seed, "split");
    let mut draw = |n: u64| 1 + u32::try_from(stream.below(n)).expect("small");
    let list = (0..n).map(|_| Request::new(Time::ZERO, draw(200), draw(60))).collect();
    let mut requests = Requests::of(list);
    super::lay(&mut requests, super::Arrivals::Poisson { per_s }, seed);
    requests
}

/// What must hold of any run in which everybody is served.
pub(super) fn check_books(requests: &Requests, served: &Served, at: &str) {
    assert_eq!(served.n_refused, 0, "{at}");
    for (request, record) in requests.list.iter().zip(&served.records.list) {
        let moments = (record.scheduled(), record.first_token(), record.finished());
        let (Some(scheduled), Some(first), Some(last)) = moments else { panic!("{at}: {record:?} is not served") };
        assert!(request.arrival <= scheduled && scheduled < first && first <= last, "{at}: {record:?}");
        // Every token takes an iteration.
        assert!((last - first).to_seconds().get() >= LAW[0] * f64::from(request.output - 1) - 1e-9, "{at}");
    }
    let given: u64 = served.counts.iter().map(|counts| counts.output_tokens).sum();
    assert_eq!(given, requests.tokens().1, "{at}: every token is given once");
    assert!(served.blocks.iter().all(|(peak, total)| peak <= total), "{at}");
}

#[test]
fn split_fleets_serve_everyone_once_and_spans_are_single_steps() {
    for (seed, (per_s, kv_blocks)) in [(60.0, 1000), (200.0, 60), (400.0, 25), (200.0, 25)].into_iter().enumerate() {
        let requests = random_requests(600, per_s, seed as u64);
        for link in [FREE, Link { bytes_per_s: Some(20e9), latency_s: 1e-4, ..FREE }] {
            for router in ROUTERS.iter().map(|router| router.name) {
                let serve = |spans| {
                    let mut engine = linear(kv_blocks, spans);
                    engine.limits.recv_interval = NonZeroU32::new([1, 4, 30][seed % 3]).expect("not zero");
                    let engine_loop =
                        [EngineLoop::Serial, EngineLoop::Asynchronous][usize::from(link.bytes_per_s.is_none())];
                    let host = Host::new(engine_loop, Seconds::ZERO, Seconds::ZERO, Seconds::ZERO);
                    engine.table = engine.table.hosted(host);
                    let mut fleet = fleet(&engine, 2, 3, link);
                    fleet.groups[0].port_bytes_per_s = Some(30e9);
                    fleet.serve(&requests, named(router).as_mut())
                };
                let (closed, mut single) = (serve(Spans::Closed), serve(Spans::Stepwise));
                let at = format!("{router}, {kv_blocks} blocks, {link:?}");
                check_books(&requests, &closed, &at);
                for (single, closed) in single.counts.iter_mut().zip(&closed.counts) {
                    single.n_spans = closed.n_spans;
                }
                assert!(single == closed, "{at}: spans are single steps");
                let n_moved = requests.list.iter().filter(|request| request.output > 1).count() as u64;
                assert_eq!(closed.moved.n, n_moved, "{at}");
                assert!(closed.counts[..2].iter().all(|counts| counts.n_steps > 0), "{at}");
                if kv_blocks == 25 && per_s > 300.0 {
                    let lost: u64 = closed.counts.iter().map(|counts| counts.n_preempted).sum();
                    assert!(lost > 0, "{at}: the case is about blocks that run out");
                }
            }
        }
    }
}

#[test]
fn prompts_do_not_stall_decodes_on_a_split_fleet() {
    // Two colocated replicas against one and one: long prompts stretch the token times of the former and not of the latter.
    let requests = random_requests(800, 30.0, 9);
    let mut list = requests.list.clone();
    list.iter_mut().for_each(|request| request.output = 40);
    list.iter_mut().step_by(2).for_each(|request| request.prompt = 2000);
    let requests = Requests::of(list);
    let mut slow = linear(4000, Spans::Closed);
    slow.table = StepTable::linear(Seconds::new(2e-3), Seconds::new(2e-5), Seconds::new(1e-9));
    let tail = |fleet: &Fleet| {
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        let mut tpot: Vec<f64> = latencies(&requests, &served).flatten().filter_map(|l| l.tpot_s).collect();
        tpot.sort_by(f64::total_cmp);
        hw::quantile::of_sorted(&tpot, 0.99)
    };
    let colocated = Fleet::of(Group::new("both", slow.clone(), 2));
    let (split, colocated) = (tail(&fleet(&slow, 1, 1, FREE)), tail(&colocated));
    assert!(split < 0.75 * colocated, "p99 of token times: split {split} s, colocated {colocated} s");
}

/// Requests of four adapters, as many of each as of the others.
fn adapted(n: u32, per_s: f64, seed: u64) -> Requests {
    let popularity = Popularity { count: 4, rank: 8, skew: 0.0, none_ratio: 0.0 };
    popularity.lay(super::requests(n as usize, &[2, 5, 20], per_s, seed), seed)
}

#[test]
fn outputs_wait_for_a_slot_of_their_adapter_where_they_are_decoded() {
    let room = AdapterLimits { slots: 1, host_slots: 4, host_ticks: Tick::new(50_000), disk_ticks: Tick::ZERO };
    let play = |requests: &Requests, slots: u32, spans| {
        let mut fleet = fleet(&linear(1000, spans), 2, 1, FREE);
        fleet.first_token = FirstToken::Decode;
        for group in &mut fleet.groups {
            group.engine.limits.adapters = Some(AdapterLimits { slots, ..room });
            group.engine.table = group.engine.table.clone().adapted(Tick::ZERO, Tick::ZERO, [1, slots]);
        }
        fleet.serve(requests, named("round-robin").as_mut())
    };
    for seed in 0..6 {
        let requests = adapted(200, [50.0, 200.0][seed as usize % 2], seed);
        for slots in 1..=4 {
            let [closed, single] = [Spans::Closed, Spans::Stepwise].map(|spans| play(&requests, slots, spans));
            assert_eq!(stays(&requests, &closed), stays(&requests, &single), "{slots} slots, seed {seed}");
            let loads: Vec<u64> = closed.counts.iter().map(|counts| counts.n_adapter_loads).collect();
            assert_eq!(slots < 4, loads.iter().all(|n| *n > 0), "{slots} slots, seed {seed}: {loads:?}");
            if slots > 1 {
                continue;
            }
            // With one slot nobody decodes beside a request of another adapter.
            let spans: Vec<(Time, Time, u32)> = (0..requests.len())
                .map(|at| {
                    let record = &closed.records.list[at];
                    let moments = record.first_token().zip(record.finished()).expect("served");
                    (moments.0, moments.1, requests.adapters[at])
                })
                .collect();
            let beside = |a: &(Time, Time, u32), b: &(Time, Time, u32)| a.2 != b.2 && a.0 < b.1 && b.0 < a.1;
            assert!(!spans.iter().any(|a| spans.iter().any(|b| beside(a, b))), "seed {seed}");
        }
    }
}

#[test]
fn two_models_hand_on_what_their_own_tokens_take() {
    // Prompts of 100 tokens, of 1 MB each for one model and of 4 MB for the other, over ports of 1 GB/s: 100 ms and 400 ms. Neither comes to the other's replicas.
    let mut requests = Requests::of(vec![at(0.0, 100, 5), at(0.0, 100, 5)]);
    (requests.streams, requests.models) = (vec![0, 1], vec![0, 1]);
    let mut both = fleet(&linear(1000, Spans::Closed), 1, 1, FREE);
    both.groups.extend(both.groups.clone());
    both.links.push(Link { from: 2, to: 3, ..FREE });
    for group in &mut both.groups {
        group.port_bytes_per_s = Some(1e9);
    }
    for group in &mut both.groups[2..] {
        (group.model, group.moves.kv_bytes_per_token) = (1, 4e6);
    }
    let served = both.serve(&requests, named("round-robin").as_mut());
    assert_eq!((served.moved.n, served.n_refused), (2, 0));
    let [a, b, c] = LAW;
    let decode = 4.0 * (a + b) + c * (400.0 + 10.0);
    for ((_, e2e), moves_s) in stays(&requests, &served).into_iter().zip([0.1, 0.4]) {
        near(e2e, a + 100.0 * b + moves_s + decode, "last token");
    }
}
