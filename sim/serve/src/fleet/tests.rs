//! Queues with a theory, Little's law, balance of routers, and the same result from the same seed.

mod averages;
mod changes;
mod clients;
mod clock;
mod drawn;
mod lending;
mod lent_attention;
mod models;
mod pairs;
mod planned;
mod remote;
mod split;

use hw::{Seconds, TickSum, Time};

use super::*;
use crate::arrivals::{Arrivals, lay};
use crate::batcher;
use crate::metrics::{self, latencies};
use crate::replica::{Limits, Spans};
use crate::request::Request;
use crate::router;
use crate::step_cost::StepTable;
use engine::random;

/// Iteration time of every engine here, seconds.
const STEP_S: f64 = 0.01;

/// Two gigabytes a second between the first two groups, a millisecond away.
fn slow_link() -> Link {
    Link { from: 0, to: 1, bytes_per_s: Some(2e9), wire: None, latency_s: 1e-3, wire_ratio: 1.0, pack_s_per_token: 0.0 }
}

fn engine(sequences_max: u32) -> Engine {
    let limits = Limits { sequences_max, tokens_max: 512, ..Limits::ROOMY };
    let table = StepTable::constant(Seconds::new(STEP_S));
    Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed }
}

/// Requests with these output lengths, drawn evenly, arriving so many per second.
fn requests(n: usize, outputs: &[u32], per_s: f64, seed: u64) -> Requests {
    let mut stream = random::stream(seed, "outputs");
    let draw =
        |stream: &mut random::Stream| outputs[usize::try_from(stream.below(outputs.len() as u64)).expect("small")];
    let mut requests = Requests::of((0..n).map(|_| Request::new(Time::ZERO, 1, draw(&mut stream))).collect());
    lay(&mut requests, Arrivals::Poisson { per_s }, seed);
    requests
}

fn run(requests: &Requests, n_replicas: usize, sequences_max: u32, router: &str) -> Served {
    let engine = engine(sequences_max);
    let engines = vec![&engine; n_replicas];
    serve(requests, &engines, (router::named(router).expect("listed").make)(7).as_mut())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    sum / n
}

fn close(found: f64, expected: f64, within: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < within, "{what}: {found}, expected {expected}");
}

#[test]
fn a_server_of_fixed_time_waits_as_md1_says() {
    // One request at a time, one iteration each: W = ρ·D / (2·(1 − ρ)).
    for load in [0.3, 0.6, 0.8] {
        let requests = requests(400_000, &[1], load / STEP_S, 11);
        let served = run(&requests, 1, 1, "round-robin");
        let wait = mean(latencies(&requests, &served).flatten().map(|l| l.queue_s));
        close(wait, load * STEP_S / (2.0 * (1.0 - load)), 0.03, &format!("mean wait at load {load}"));
    }
}

#[test]
fn a_server_of_varied_time_waits_as_pollaczek_and_khinchine_say() {
    // One request at a time, an iteration per output token: W = λ·E[S²] / (2·(1 − ρ)).
    let outputs = [1, 1, 2, 3, 5, 30];
    let (first, second) =
        (mean(outputs.iter().map(|&o| f64::from(o))), mean(outputs.iter().map(|&o| f64::from(o * o))));
    for load in [0.3, 0.6] {
        let per_s = load / (first * STEP_S);
        let requests = requests(600_000, &outputs, per_s, 5);
        let served = run(&requests, 1, 1, "round-robin");
        let wait = mean(latencies(&requests, &served).flatten().map(|l| l.queue_s));
        let theory = per_s * second * STEP_S * STEP_S / (2.0 * (1.0 - load));
        close(wait, theory, 0.03, &format!("mean wait at load {load}"));
    }
}

#[test]
fn requests_in_the_system_are_rate_times_stay() {
    // Little's law: the engine adds up requests over time; rate and stay come from the records.
    let per_s = 300.0;
    let requests = requests(200_000, &[1, 10, 40, 80], per_s, 2);
    let served = run(&requests, 2, 64, "least-loaded");
    let end = served.records.list.iter().filter_map(|record| record.finished()).max().expect("served");
    let ticks: TickSum = served.counts.iter().map(|counts| counts.request_ticks).sum();
    let in_system = ticks.as_ns() / hw::real(end.as_ns());
    let stay = mean(latencies(&requests, &served).flatten().map(|l| l.e2e_s));
    close(in_system, per_s * stay, 0.02, "requests in the system");
}

#[test]
fn two_choices_and_least_load_beat_chance() {
    // Eight servers of 0.237 s each at 0.8 load.
    let requests = requests(60_000, &[1, 10, 60], 27.0, 3);
    let wait = |router: &str| {
        let served = run(&requests, 8, 1, router);
        mean(latencies(&requests, &served).flatten().map(|l| l.queue_s))
    };
    let [random, two, least] = ["random", "power-of-two", "least-loaded"].map(wait);
    assert!(least < two && two < random / 1.5, "random {random} s, two choices {two} s, least loaded {least} s");
}

#[test]
fn routers_spread_requests_as_they_say() {
    let requests = requests(8000, &[4], 100.0, 1);
    for (router, tolerance) in [("round-robin", 0), ("random", 200), ("power-of-two", 200)] {
        let served = run(&requests, 4, 8, router);
        let mut taken = [0_u32; 4];
        served.records.list.iter().for_each(|record| taken[record.replica as usize] += 1);
        assert!(taken.iter().all(|n| n.abs_diff(2000) <= tolerance), "{router}: {taken:?}");
    }
}

#[test]
fn prefixes_go_where_they_are_cached() {
    // Four families of prompts over four replicas: a router that looks hits almost always, turns hit a quarter as often at first.
    let mut requests = requests(2000, &[1], 40.0, 6);
    (requests.prefix_tokens, requests.n_prefix_ids) = (160, 40);
    let mut stream = random::stream(1, "families");
    for request in &mut requests.list {
        let family = u32::try_from(stream.below(40)).expect("small");
        request.prompt = 200;
        (request.prefix_first, request.prefix_count) = (u32::try_from(requests.prefix_ids.len()).expect("small"), 1);
        requests.prefix_ids.push(family);
    }
    let hits = |router: &str| {
        // Room for twelve of the forty prefixes and two requests.
        let mut engine = engine(2);
        (engine.limits.kv_blocks, engine.limits.shares_prefixes) = (146, true);
        let engines = vec![&engine; 4];
        let served = serve(&requests, &engines, (router::named(router).expect("listed").make)(7).as_mut());
        served.counts.iter().map(|counts| counts.cached_tokens / 160).sum::<u64>()
    };
    let (aware, turns) = (hits("prefix-aware"), hits("round-robin"));
    assert!(aware > 1800 && turns < 1000, "{aware} hits by looking, {turns} by turns");
}

#[test]
fn the_same_seed_gives_the_same_result() {
    let of = |seed| {
        let requests = requests(3000, &[1, 5, 50], 200.0, seed);
        run(&requests, 3, 16, "power-of-two")
    };
    assert!(of(1) == of(1));
    assert!(of(1) != of(2));
}

/// Replicas of the plain engine with blocks of their own number, at a price.
fn group(name: &str, n_replicas: u32, kv_blocks: u32, usd: f64) -> Group {
    let mut engine = engine(8);
    engine.limits.kv_blocks = kv_blocks;
    Group { gpus_per_replica: 2, usd_per_gpu_hour: Some(usd), ..Group::new(name, engine, n_replicas) }
}

fn named(router: &str) -> Box<dyn Router> {
    (router::named(router).expect("listed").make)(7)
}

/// Requests that each group took, by type of the assignment.
fn taken(fleet: &Fleet, served: &Served) -> Vec<Vec<u32>> {
    let n_types = fleet.assignment.shares.len();
    let mut taken = vec![vec![0; fleet.groups.len()]; n_types];
    for (index, record) in served.records.list.iter().enumerate() {
        let request = u32::try_from(index).expect("small");
        taken[fleet.assignment.type_of(request) as usize][served.group_of[record.replica as usize] as usize] += 1;
    }
    taken
}

#[test]
fn a_fleet_of_one_group_is_its_replicas() {
    let requests = requests(2000, &[1, 5, 50], 200.0, 3);
    let fleet = Fleet::of(Group { engine: engine(8), ..group("all", 3, 100_000, 1.0) });
    for router in ["round-robin", "least-loaded", "plan-weights", "prefix-aware"] {
        assert!(fleet.serve(&requests, named(router).as_mut()) == run(&requests, 3, 8, router), "{router}");
    }
}

#[test]
fn groups_take_their_planned_shares_of_every_type() {
    let mut fleet = Fleet::of(group("a", 2, 1000, 1.0));
    fleet.groups.extend([group("b", 3, 1000, 1.0), group("c", 1, 1000, 1.0)]);
    let requests = requests(8000, &[4], 100.0, 1);
    // Every third request is of type 1, which c must not take.
    fleet.assignment.types = (0..8000).map(|index| u32::from(index % 3 == 0)).collect();
    fleet.assignment.shares = vec![vec![0.5, 0.25, 0.25], vec![0.2, 0.8, 0.0]];
    let n: Vec<f64> = vec![8000.0 - 2667.0, 2667.0];
    for (router, tolerance) in [("plan-weights", 1.5), ("interleaved-round-robin", 3.0)] {
        let served = fleet.serve(&requests, named(router).as_mut());
        for (row, shares) in fleet.assignment.shares.iter().enumerate() {
            let sum: f64 = shares.iter().sum();
            for (g, share) in shares.iter().enumerate() {
                let (found, expected) = (f64::from(taken(&fleet, &served)[row][g]), n[row] * share / sum);
                assert!((found - expected).abs() <= tolerance, "{router}, type {row}, group {g}: {found}, {expected}");
            }
        }
        // Inside a group nobody is left out.
        let mut by_replica = [0_u32; 6];
        served.records.list.iter().for_each(|record| by_replica[record.replica as usize] += 1);
        assert!(by_replica.iter().all(|n| *n > 0), "{router}: {by_replica:?}");
    }
}

/// Whatever the shares, each replica has its part of the first requests too, to within one of them for two replicas and two for three.
#[test]
fn interleaved_turns_keep_any_shares_from_the_first_request_on() {
    for (shares, n_first) in [([1.0, 199.0], 1), ([9.0, 1.0], 1), ([3.0, 1.0], 2), ([0.123, 0.877], 1)] {
        let mut fleet = Fleet::of(group("first", n_first, 1000, 1.0));
        fleet.groups.push(group("second", 1, 1000, 1.0));
        fleet.assignment.shares = vec![shares.to_vec()];
        let requests = requests(1000, &[4], 100.0, 1);
        let served = fleet.serve(&requests, named("interleaved-round-robin").as_mut());
        let part = |group: usize, n: u32| shares[group] / (shares[0] + shares[1]) / f64::from(n);
        let parts: Vec<f64> = (0..n_first).map(|_| part(0, n_first)).chain([part(1, 1)]).collect();
        let mut taken = vec![0.0; parts.len()];
        for (record, n) in served.records.list.iter().zip(1_u32..) {
            taken[record.replica as usize] += 1.0;
            for (taken, part) in taken.iter().zip(&parts) {
                let off: f64 = taken - part * f64::from(n);
                assert!(off.abs() <= f64::from(n_first) + 1e-9, "{shares:?}: {taken} of {n}, a part of {part}");
            }
        }
    }
}

#[test]
fn a_long_request_goes_to_the_group_that_holds_it() {
    let mut fleet = Fleet::of(group("small", 3, 4, 1.0));
    fleet.groups.push(group("large", 2, 40, 1.0));
    // Blocks of 16: 64 cached tokens fit the small ones, and the last output token is not cached.
    let at = |ns: u64, prompt| Request::new(Time::from_ns(ns), prompt, 1);
    let requests =
        Requests::of((0..40).map(|n| at(n, if n % 4 == 0 { 641 } else { 64 - u32::from(n % 2 == 0) })).collect());
    for router in ["round-robin", "random", "least-loaded", "power-of-two", "plan-weights", "interleaved-round-robin"] {
        let served = fleet.serve(&requests, named(router).as_mut());
        assert_eq!(served.n_refused, 10, "{router}: 641 tokens fit nowhere");
    }
    let requests = Requests::of((0..40).map(|n| at(n, if n % 4 == 0 { 640 } else { 64 })).collect());
    for router in ["round-robin", "random", "least-loaded", "power-of-two", "plan-weights", "interleaved-round-robin"] {
        let served = fleet.serve(&requests, named(router).as_mut());
        assert_eq!(served.n_refused, 0, "{router}");
        let large: Vec<u32> = served.records.list.iter().step_by(4).map(|record| record.replica).collect();
        assert!(large.contains(&3) && large.contains(&4), "{router}: the long ones share both: {large:?}");
    }
}

#[test]
fn a_fleet_costs_what_its_groups_cost() {
    let mut fleet = Fleet::of(group("a", 2, 1000, 1.5));
    fleet.groups.push(group("b", 3, 1000, 0.5));
    let requests = requests(2000, &[4, 8], 100.0, 1);
    let served = fleet.serve(&requests, named("least-loaded").as_mut());
    let mut figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
    metrics::fleet::add(&mut figures, &fleet, &served);
    // 2 replicas of 2 GPUs at 1.5 dollars, 3 of 2 at 0.5.
    close(figures["cost_usd_per_hour"], 9.0, 1e-12, "dollars per hour");
    close(figures["cost_usd"], 9.0 * figures["makespan_s"] / 3600.0, 1e-9, "dollars");
    let per_mtok = 9.0 / (figures["output_tokens_per_s"] * 3600.0) * 1e6;
    close(figures["cost_usd_per_mtok"], per_mtok, 1e-12, "dollars per million tokens");
    close(figures["group_share_ratio.a"] + figures["group_share_ratio.b"], 1.0, 1e-12, "shares");
    let busy = (2.0 * figures["group_busy_ratio.a"] + 3.0 * figures["group_busy_ratio.b"]) / 5.0;
    close(busy, figures["busy_ratio"], 1e-9, "busy");
    // A group without a price leaves the cost open.
    fleet.groups[0].usd_per_gpu_hour = None;
    let mut figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
    metrics::fleet::add(&mut figures, &fleet, &served);
    assert!(!figures.contains_key("cost_usd_per_hour"));
}
