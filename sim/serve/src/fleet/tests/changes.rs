//! Losses, notices and the autoscaler: exact moments by hand, the books under random failures, and what is paid.

use hw::{Seconds, Span, Time};

use super::split::check_books;
use super::{Arrivals, close, engine, lay, named, requests, slow_link};
use crate::fleet::dynamics::{Concurrency, Failures, Outage, Rule, Scaling};
use crate::fleet::{Fleet, Group, Served};
use crate::replica::{Engine, Order, Role, Spans};
use crate::request::{Request, Requests};
use crate::speculation::Speculation;
use crate::step_cost::host::{EngineLoop, Host};
use crate::{batcher, metrics};

fn seconds(value: f64) -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(value))
}

/// Equal replicas with iterations of 10 ms.
fn fleet(n_replicas: u32) -> Fleet {
    Fleet::of(Group { usd_per_gpu_hour: Some(2.0), ..Group::new("all", engine(8), n_replicas) })
}

fn outage(replica: u32, at: f64, notice: f64, back_after: Option<f64>) -> Outage {
    Outage {
        group: 0,
        replica,
        at: seconds(at),
        notice: Seconds::new(notice),
        back_after: back_after.map(Seconds::new),
    }
}

/// Seconds of the first and last token of a request.
fn moments(served: &Served, request: usize) -> (f64, f64) {
    let record = &served.records.list[request];
    let at = |time: Option<Time>| (time.expect("served") - Time::ZERO).to_seconds().get();
    (at(record.first_token()), at(record.finished()))
}

#[test]
fn a_lost_sequence_goes_on_elsewhere_from_what_the_client_has() {
    // 100 tokens from 0 s, one every 10 ms. Replica 0 is lost at 0.505 s, when the client has 50. Replica 1 computes prompt and 50 tokens
    // in one iteration, which gives the 51st at 0.515 s; the 100th comes at 0.505 + 50 · 0.01 s.
    let mut fleet = fleet(2);
    fleet.outages = vec![outage(0, 0.505, 0.0, None)];
    let requests = Requests::of(vec![Request::new(Time::ZERO, 20, 100)]);
    for spans in [Spans::Closed, Spans::Stepwise] {
        fleet.groups[0].engine.spans = spans;
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        let (first, last) = moments(&served, 0);
        close(first, 0.01, 1e-9, "first token");
        close(last, 1.005, 1e-9, "last token");
        assert_eq!((served.changes.n_retried, served.changes.n_outages), (1, 1));
        let given: Vec<u64> = served.counts.iter().map(|counts| counts.output_tokens).collect();
        let computed: Vec<u64> = served.counts.iter().map(|counts| counts.prefill_tokens).collect();
        assert_eq!((given, computed), (vec![50, 50], vec![20, 70]));
        // Replica 0 is paid until it is lost.
        let [paid, _] = metrics::fleet::times(&fleet, &served)[0];
        close(paid.as_ns(), (0.505 + 1.005) * 1e9, 1e-9, "paid");
    }
}

#[test]
fn requests_wait_at_the_router_while_nobody_serves() {
    // The only replica is away from 1 s to 11 s; a request of 5 s gets its first token at 11.01 s. One that fits nowhere is refused.
    let mut fleet = fleet(1);
    fleet.outages = vec![outage(0, 1.0, 0.0, Some(10.0))];
    let requests = Requests::of(vec![
        Request::new(Time::ZERO, 5, 2),
        Request::new(seconds(5.0), 5, 3),
        Request::new(seconds(6.0), 99_999, 3),
    ]);
    let served = fleet.serve(&requests, named("least-loaded").as_mut());
    let (first, last) = moments(&served, 1);
    close(first, 11.01, 1e-9, "first token");
    close(last, 11.03, 1e-9, "last token");
    assert_eq!((served.n_refused, served.changes.n_retried), (1, 0));
    // Not paid while it is repaired.
    let [paid, _] = metrics::fleet::times(&fleet, &served)[0];
    close(paid.as_ns(), (11.03 - 10.0) * 1e9, 1e-9, "paid");
    // Lost for good, both later ones are refused.
    fleet.outages[0].back_after = None;
    assert_eq!(fleet.serve(&requests, named("least-loaded").as_mut()).n_refused, 2);
}

#[test]
fn notice_lets_a_replica_end_what_it_has() {
    // Two requests of 1 s each; notice at 0.1 s, lost at 2.1 s: nobody is computed again, and nobody new goes there.
    let mut fleet = fleet(2);
    fleet.outages = vec![outage(0, 0.1, 2.0, None)];
    let list = (0..20).map(|n| Request::new(seconds(0.05 * f64::from(n)), 5, 100)).collect();
    let requests = Requests::of(list);
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    assert_eq!((served.changes.n_retried, served.n_refused), (0, 0));
    let there: Vec<usize> = (0..20).filter(|index| served.records.list[*index].replica == 0).collect();
    // The third arrives with the notice, arrivals come first.
    assert_eq!(there, [0, 2]);
    // Without notice both go back.
    fleet.outages = vec![outage(0, 0.12, 0.0, None)];
    assert_eq!(fleet.serve(&requests, named("round-robin").as_mut()).changes.n_retried, 2);
}

/// The only replica is known at 1 s to be lost at 1.5 s, and is back at 2.5 s. Three that come at 1.2 s wait for it, as they would after its loss; the one
/// that is there ends. Where it does not come back they are refused, and where another one does they wait for that.
#[test]
fn requests_wait_for_a_replica_that_is_to_be_lost_and_comes_back() {
    let mut list = vec![Request::new(seconds(0.9), 5, 30)];
    list.extend(vec![Request::new(seconds(1.2), 5, 3); 3]);
    let requests = Requests::of(list);
    let serve = |fleet: &Fleet| fleet.serve(&requests, named("least-loaded").as_mut());
    let mut one = fleet(1);
    for failures in [None, failing(1e6, 1.0)] {
        one.groups[0].failures = failures;
        one.outages = vec![outage(0, 1.0, 0.5, Some(1.0))];
        let served = serve(&one);
        assert_eq!((served.n_refused, served.changes.n_outages, served.changes.n_retried), (0, 1, 0));
        close(moments(&served, 0).1, 1.2, 1e-9, "the last token of the one that is there");
        close(moments(&served, 1).0, 2.51, 1e-9, "the first token of one that waits");
        one.outages[0].back_after = None;
        assert_eq!(serve(&one).n_refused, 3, "for good");
    }
    let mut two = fleet(2);
    two.outages = vec![outage(0, 1.0, 0.5, None), outage(1, 1.0, 0.5, Some(1.0))];
    assert_eq!(serve(&two).n_refused, 0, "one of two comes back");
    // The first loss counts: the replica is repaired when the later one would come.
    two.outages = vec![outage(0, 1.0, 3.0, None), outage(0, 1.1, 0.4, Some(1.0)), outage(1, 0.5, 0.0, None)];
    let served = serve(&two);
    assert_eq!((served.n_refused, served.changes.n_outages), (0, 2), "back before it is lost for good");
    // A small replica beside it holds none of those that come.
    let mut small = fleet(1);
    small.groups.push(small.groups[0].clone());
    small.groups[1].engine.limits.context_max = 7;
    small.outages = vec![outage(0, 1.0, 0.5, Some(1.0))];
    let served = serve(&small);
    assert_eq!(served.n_refused, 0, "the only one that is large enough comes back");
    close(moments(&served, 1).0, 2.51, 1e-9, "the first token of one that waits");
}

/// Either side of a split fleet is known to be lost, and comes back.
#[test]
fn requests_wait_for_either_side_that_is_to_be_lost_and_comes_back() {
    let of = |name: &str, role| Group { role, ..Group::new(name, engine(8), 1) };
    let groups = vec![of("p", Role::Prefill), of("d", Role::Decode)];
    let mut fleet = Fleet { groups, ..Fleet::default() }.handing_on(1.0);
    let requests = Requests::of(vec![Request::new(seconds(1.2), 5, 3)]);
    for group in [0, 1] {
        fleet.outages = vec![Outage { group, ..outage(0, 1.0, 0.5, Some(1.0)) }];
        let served = fleet.serve(&requests, named("least-loaded").as_mut());
        assert_eq!(served.n_refused, 0, "group {group}");
        close(moments(&served, 0).0, 2.51, 1e-9, "first token");
        fleet.outages[0].back_after = None;
        assert_eq!(fleet.serve(&requests, named("least-loaded").as_mut()).n_refused, 1, "group {group} for good");
    }
}

/// Requests by replica.
fn by_replica(served: &Served) -> Vec<usize> {
    let on = |replica: u32| served.records.list.iter().filter(|record| record.replica == replica).count();
    (0..u32::try_from(served.counts.len()).expect("few")).map(on).collect()
}

/// Four replicas come at the same moment, after outages or because an autoscaler started them; 64 requests wait by then and are shared by all.
#[test]
fn replicas_that_come_at_the_same_moment_share_who_waits() {
    let requests = Requests::of(vec![Request::new(seconds(1.2), 5, 30); 64]);
    for router in ["round-robin", "least-loaded", "least-memory", "power-of-two", "plan-weights"] {
        let mut back = fleet(4);
        back.outages = (0..4).map(|replica| outage(replica, 1.0, 0.0, Some(1.0))).collect();
        let served = back.serve(&requests, named(router).as_mut());
        let taken = by_replica(&served);
        assert!(taken.iter().all(|n| (12..=20).contains(n)), "{router}: {taken:?}");
    }
    let mut started = scaled(1, 4, 6);
    started.outages = vec![outage(0, 1.0, 0.0, None)];
    let served = started.serve(&requests, named("least-loaded").as_mut());
    assert_eq!((by_replica(&served), served.changes.n_started), (vec![16; 4], 4));
}

/// A batch job of 8 requests and two people come while the only replica with two places is away: by priority people go first, as they would in its queue.
#[test]
fn people_go_first_at_the_router_too() {
    let mut list = vec![Request::new(seconds(1.2), 5, 10); 8];
    list.extend(vec![Request::new(seconds(1.3), 5, 10); 2]);
    let streams = [vec![0; 8], vec![1; 2]].concat();
    let requests = Requests { streams, priorities: vec![1, 0], ..Requests::of(list) };
    let mut fleet = fleet(1);
    (fleet.groups[0].engine.limits.sequences_max, fleet.outages) = (2, vec![outage(0, 1.0, 0.0, Some(1.0))]);
    for (order, place) in [(Order::Arrival, 4.0), (Order::Priority, 0.0)] {
        fleet.groups[0].engine.limits.order = order;
        let served = fleet.serve(&requests, named("least-loaded").as_mut());
        // Ten iterations for two requests; who comes to an idle replica begins alone, and the next one an iteration later.
        close(moments(&served, 8).0, 2.01 + 0.1 * place, 1e-9, "the first of the people");
    }
}

fn failing(mtbf: f64, mttr: f64) -> Option<Failures> {
    Some(Failures { mtbf: Seconds::new(mtbf), mttr: Seconds::new(mttr), seed: 5 })
}

/// Iterations take 10 ms. One replica lives for half a millisecond, so that no token ever comes: it is given up, and what it had is refused. One that
/// lives for 5 ms gives a token in one life of seven, and goes on from there.
#[test]
fn a_replica_that_fails_before_it_gains_a_token_is_given_up() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 20, 400)]);
    let serve = |mtbf: f64, spans| {
        let mut fleet = fleet(1);
        (fleet.groups[0].failures, fleet.groups[0].engine.spans) = (failing(mtbf, 0.001), spans);
        fleet.serve(&requests, named("least-loaded").as_mut())
    };
    for spans in [Spans::Closed, Spans::Stepwise] {
        let lost = serve(0.0005, spans);
        assert_eq!((lost.changes.n_given_up, lost.changes.n_outages, lost.n_refused), (1, 1000, 1));
        let slow = serve(0.005, spans);
        assert_eq!((slow.changes.n_given_up, slow.n_refused, slow.counts[0].output_tokens), (0, 0, 400));
        assert!(slow.changes.n_outages > 1000, "{:?}", slow.changes);
    }
}

/// An autoscaler rents another machine in the place of one that is lost, and none in the place of one that is given up: two of two are.
#[test]
fn no_autoscaler_starts_a_replica_again_that_is_given_up() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 20, 400)]);
    let mut fleet = scaled(1, 2, 1);
    fleet.groups[0].failures = failing(0.0005, 0.001);
    let lost = fleet.serve(&requests, named("least-loaded").as_mut());
    assert_eq!((lost.changes.n_given_up, lost.n_refused), (2, 1), "{:?}", lost.changes);
}

/// Prefill, decode and colocated replicas that fail all the time, with few blocks and slow links.
fn troubled(spans: Spans) -> Fleet {
    let mut engine = engine(8);
    (engine.limits.kv_blocks, engine.spans) = (60, spans);
    let of =
        |name: &str, n, role, mtbf| Group { role, failures: failing(mtbf, 0.5), ..Group::new(name, engine.clone(), n) };
    let groups = vec![of("p", 3, Role::Prefill, 1.5), of("d", 3, Role::Decode, 2.0), of("b", 1, Role::Both, 3.0)];
    let link = slow_link();
    let outages = vec![Outage { group: 1, replica: 1, at: seconds(3.0), notice: Seconds::new(0.4), back_after: None }];
    Fleet { groups, links: vec![link], outages, ..Fleet::default() }.handing_on(1e6)
}

#[test]
fn nobody_is_lost_or_served_twice_when_replicas_fail() {
    for (seed, router) in [(1, "round-robin"), (2, "least-loaded"), (3, "power-of-two"), (4, "plan-weights")] {
        let mut requests = requests(1500, &[1, 5, 30, 60], 70.0, seed);
        requests.list.iter_mut().zip(1_u32..).for_each(|(request, n)| request.prompt = 1 + n * 37 % 300);
        let serve = |spans| troubled(spans).serve(&requests, named(router).as_mut());
        let (closed, mut single) = (serve(Spans::Closed), serve(Spans::Stepwise));
        check_books(&requests, &closed, router);
        assert!(closed.changes.n_retried > 100 && closed.changes.n_outages > 30, "{router}: {:?}", closed.changes);
        for (single, closed) in single.counts.iter_mut().zip(&closed.counts) {
            single.n_spans = closed.n_spans;
        }
        assert!(single == closed, "{router}: spans are single steps");
        assert!(serve(Spans::Closed) == closed, "{router}: the same seed gives the same result");
    }
}

/// Engines that batch, draft and pace in every way, with prefixes that requests share.
fn every_engine() -> Vec<(String, Engine)> {
    let mut engines = Vec::new();
    for batcher in ["vllm-v1", "sarathi", "vllm-v0"] {
        let plain = Engine { batcher: batcher::named(batcher).expect("listed"), ..engine(8) };
        let speculation =
            Speculation { n_drafts: 3, tree: None, acceptance: 0.6, per_draft: Seconds::new(1e-3), seed: 2 };
        let host = Host::new(EngineLoop::Asynchronous, Seconds::new(2e-3), Seconds::ZERO, Seconds::new(1e-4));
        let drafting = Engine { table: plain.table.clone().speculating(&speculation), ..plain.clone() };
        let hosted = Engine { table: plain.table.clone().hosted(host), ..plain.clone() };
        for (name, mut engine) in [("plain", plain), ("drafting", drafting), ("asynchronous", hosted)] {
            (engine.limits.kv_blocks, engine.limits.shares_prefixes) = (60, true);
            engines.push((format!("{batcher}, {name}"), engine));
        }
    }
    engines
}

#[test]
fn nobody_is_lost_whatever_the_engine_does() {
    let mut requests = requests(800, &[1, 5, 30, 60], 25.0, 11);
    (requests.prefix_tokens, requests.n_prefix_ids) = (32, 12);
    for (request, n) in requests.list.iter_mut().zip(0_u32..) {
        request.prompt = 40 + n * 37 % 250;
        (request.prefix_first, request.prefix_count) = (n, 1);
        requests.prefix_ids.push(n % 12);
    }
    for (name, engine) in every_engine() {
        let mut fleet = troubled(Spans::Closed);
        fleet.groups.iter_mut().for_each(|group| group.engine = engine.clone());
        let served = fleet.serve(&requests, named("least-loaded").as_mut());
        assert_eq!(served.n_refused, 0, "{name}");
        check_books_constant(&requests, &served);
        for (request, record) in requests.list.iter().zip(&served.records.list) {
            assert!(record.scheduled() >= Some(request.arrival) && record.first_token() <= record.finished(), "{name}");
        }
        assert!(
            served.changes.n_retried > 50 && served.moved.n > 100,
            "{name}: {:?} {:?}",
            served.changes,
            served.moved
        );
    }
}

fn scaled(first: u32, most: u32, window: u32) -> Fleet {
    let mut fleet = fleet(most);
    let rule = Concurrency { target: 4.0, interval: Seconds::new(5.0), window };
    fleet.groups[0].scaling = Some(Scaling {
        replicas_min: 1,
        replicas_first: first,
        start_up: Seconds::new(20.0),
        rule: Rule::Concurrency(rule),
    });
    fleet
}

#[test]
fn under_constant_load_the_autoscaler_settles_and_stays() {
    // 20 requests/s of 50 iterations: 10 in the system by Little's law, 4 wanted per replica: 3 replicas from 1 or from 8.
    for first in [1, 8] {
        let fleet = scaled(first, 8, 6);
        let run = |n: u32| {
            let list = (0..n).map(|n| Request::new(seconds(0.05 * f64::from(n)), 5, 50)).collect();
            fleet.serve(&Requests::of(list), named("least-loaded").as_mut())
        };
        let (short, long) = (run(8_000), run(24_000));
        assert_eq!(short.changes, long.changes, "no decision after the first 400 s");
        // From 400 s on three replicas are paid.
        let paid = |served: &Served| metrics::fleet::times(&fleet, served)[0][0].as_ns() / 1e9;
        let more = moments(&long, 23_999).1 - moments(&short, 7_999).1;
        close(paid(&long) - paid(&short), 3.0 * more, 0.01, "replicas after it has settled");
        assert!(short.changes.n_retried == 0 && short.n_refused == 0);
    }
}

#[test]
fn replicas_follow_a_peak_and_are_paid_from_their_start() {
    // 2 requests/s, 40/s from 100 s to 200 s, 2/s again; one iteration per token, so 1, 20 and 1 requests in the system.
    let mut list = Vec::new();
    let mut now = 0.0;
    while now < 600.0 {
        list.push(Request::new(seconds(now), 5, 50));
        now += if (100.0..200.0).contains(&now) { 0.025 } else { 0.5 };
    }
    let requests = Requests::of(list);
    let fleet = scaled(1, 8, 6);
    let served = fleet.serve(&requests, named("least-loaded").as_mut());
    check_books_constant(&requests, &served);
    let changes = served.changes;
    assert!(changes.n_started >= 4 && changes.n_stopped == changes.n_started, "{changes:?}: all that came have gone");
    // Fewer hours than eight replicas all the time, more than one.
    let mut figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
    metrics::fleet::add(&mut figures, &fleet, &served);
    let whole_h = figures["makespan_s"] / 3600.0;
    assert!((1.0..8.0).contains(&(figures["replica_hours"] / whole_h)), "{figures:?}");
    close(figures["cost_usd"], 2.0 * figures["replica_hours"], 1e-9, "dollars are replica hours times price");
    // A start-up of 20 s costs first tokens: without it the peak waits less.
    let mut ready = fleet.clone();
    ready.groups[0].scaling =
        fleet.groups[0].scaling.clone().map(|scaling| Scaling { start_up: Seconds::ZERO, ..scaling });
    let wait = |fleet: &Fleet| {
        let served = fleet.serve(&requests, named("least-loaded").as_mut());
        metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO)["ttft_s.mean"]
    };
    assert!(wait(&ready) < 0.7 * wait(&fleet), "{} s and {} s", wait(&ready), wait(&fleet));
}

fn check_books_constant(requests: &Requests, served: &Served) {
    assert!(served.records.list.iter().all(|record| record.finished().is_some()));
    let given: u64 = served.counts.iter().map(|counts| counts.output_tokens).sum();
    assert_eq!(given, requests.tokens().1);
}

#[test]
fn lost_spot_machines_are_replaced_and_nobody_is_lost() {
    let mut fleet = scaled(4, 8, 6);
    fleet.outages = (0..3).map(|replica| outage(replica, 40.0 + f64::from(replica), 1.0, None)).collect();
    let mut requests = requests(8000, &[20, 50, 80], 25.0, 8);
    lay(&mut requests, Arrivals::Poisson { per_s: 25.0 }, 8);
    let served = fleet.serve(&requests, named("least-loaded").as_mut());
    check_books_constant(&requests, &served);
    assert_eq!(served.changes.n_outages, 3);
    assert!(served.changes.n_started >= 3, "{:?}", served.changes);
}

#[test]
fn what_is_paid_and_what_is_counted_end_with_the_last_refusal() {
    // 80 tokens by 1 s; at 100 s one comes that nobody holds. Two GPUs' worth of dollars an hour for 100 s.
    let mut engine = engine(8);
    engine.limits.context_max = 1000;
    let fleet = Fleet::of(Group { usd_per_gpu_hour: Some(2.0), ..Group::new("all", engine, 1) });
    let requests = Requests::of(vec![Request::new(seconds(0.0), 5, 80), Request::new(seconds(100.0), 100_000, 1)]);
    let served = fleet.serve(&requests, named("least-loaded").as_mut());
    assert_eq!((served.n_refused, served.records.n_ended()), (1, 1));
    let mut figures = metrics::of(&requests, &served, &metrics::Slo::default(), Seconds::ZERO);
    metrics::fleet::add(&mut figures, &fleet, &served);
    for (key, expected) in [
        ("makespan_s", 100.0),
        ("output_tokens_per_s", 0.8),
        ("output_tokens_per_s_per_gpu", 0.8),
        ("replica_hours", 100.0 / 3600.0),
        ("cost_usd", 200.0 / 3600.0),
        ("cost_usd_per_hour", 2.0),
        ("cost_usd_per_mtok", 200.0 / 3600.0 / 80.0 * 1e6),
    ] {
        close(figures[key], expected, 1e-9, key);
    }
    // Ten samples, each at the start of its tenth, and one at the end.
    let samples = metrics::rows::series(&requests, &fleet, &served, 10);
    close(samples[9].at_s, 90.0, 1e-9, "the last sample");
    assert_eq!((samples[9].ended, samples[10].ended), (1, 2), "who is refused has ended as well");
}
