//! Clients who give up or have enough, and clients who come first: moments by hand, books under random loads, spans against single steps.

use hw::{Seconds, Span, Time};

use super::{Arrivals, engine, lay, named, slow_link};
use crate::batcher::BATCHERS;
use crate::fleet::dynamics::{Failures, Outage};
use crate::fleet::held::Users;
use crate::fleet::{Fleet, Group, Rules, Served};
use crate::frontend::Frontend;
use crate::metrics::{self, Slo};
use crate::records::End;
use crate::replica::batcher::Batcher;
use crate::replica::{Engine, FirstToken, Limits, Order, Role, Spans};
use crate::request::{Patience, Request, Requests};
use crate::step_cost::StepTable;
use engine::random;

fn span(seconds: f64) -> Option<Span> {
    Some(Span::from_seconds(Seconds::new(seconds)))
}

fn at(seconds: f64, prompt: u32, output: u32) -> Request {
    Request::new(Time::ZERO + span(seconds).expect("given"), prompt, output)
}

/// One replica with so many places whose iterations take a second.
fn one(places: u32) -> Fleet {
    let limits = Limits { sequences_max: places, ..Limits::ROOMY };
    Fleet::of(Group::new("all", Engine { limits, table: StepTable::constant(Seconds::new(1.0)), ..engine(places) }, 1))
}

fn seconds(time: Option<Time>) -> Option<f64> {
    time.map(|time| (time - Time::ZERO).to_seconds().get())
}

fn ends(served: &Served) -> Vec<(End, Option<f64>)> {
    served.records.list.iter().map(|record| (record.end(), seconds(record.ended()))).collect()
}

#[test]
fn whoever_waits_too_long_leaves_and_the_next_one_comes() {
    // Place for one. The first is to have ten tokens, one per second from 1 s on, and its client waits 4.5 s: it has four of them, and the
    // iteration under way ends at 5 s. The second gives up in the queue after 3 s without a token. The third begins at 5 s: three tokens by 8 s.
    let list = vec![at(0.0, 5, 10), at(0.5, 5, 2), at(1.5, 5, 3)];
    let whole = Patience { whole: span(4.5), first_token: None };
    let first = Patience { whole: None, first_token: span(3.0) };
    let patience = vec![whole, first, Patience::default()];
    let requests = Requests { streams: vec![0, 1, 2], patience, ..Requests::of(list) };
    for spans in [Spans::Closed, Spans::Stepwise] {
        let mut fleet = one(1);
        fleet.groups[0].engine.spans = spans;
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        let expected = [(End::TimedOut, Some(4.5)), (End::TimedOut, Some(3.5)), (End::Served, Some(8.0))];
        assert_eq!(ends(&served), expected, "{spans:?}");
        assert_eq!(seconds(served.records.list[2].scheduled()), Some(5.0));
        let slo = Slo { ttft: Some(Seconds::new(10.0)), ..Slo::default() };
        let figures = metrics::of(&requests, &served, &slo, Seconds::ZERO);
        // Five tokens of eight went to nobody; one request of three was served.
        let found = ["n_served", "n_timed_out", "n_cancelled", "lost_output_tokens_ratio", "slo_attainment_ratio"];
        assert_eq!(found.map(|key| figures[key]), [1.0, 2.0, 0.0, 5.0 / 8.0, 1.0 / 3.0]);
    }
}

#[test]
fn who_leaves_the_queue_asks_for_no_prefix() {
    // Three prompts of 40 tokens with the same 32 first, place for one. The second leaves the queue, the third finds what the first one computed.
    let list = vec![at(0.0, 40, 10), at(0.5, 40, 2), at(11.5, 40, 1)];
    let patience = vec![Patience::default(), Patience { whole: None, first_token: span(3.0) }, Patience::default()];
    let mut requests = Requests { streams: vec![0, 1, 2], patience, ..Requests::of(list) };
    (requests.prefix_tokens, requests.n_prefix_ids, requests.prefix_ids) = (16, 2, vec![0, 1]);
    requests.list.iter_mut().for_each(|request| (request.prefix_first, request.prefix_count) = (0, 2));
    let mut fleet = one(1);
    let limits = Limits { block_tokens: 8, kv_blocks: 100, shares_prefixes: true, ..fleet.groups[0].engine.limits };
    fleet.groups[0].engine.limits = limits;
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    assert_eq!(served.records.list[1].end(), End::TimedOut);
    assert_eq!(metrics::prefix_hit_ratio(&requests, &served), 32.0 / 80.0);
}

#[test]
fn a_token_at_the_deadline_is_in_time() {
    // One token per second, three of them: the last comes at 3 s, which is when its client would go.
    let patience = vec![Patience { first_token: span(1.0), whole: span(3.0) }];
    let requests = Requests { patience, ..Requests::of(vec![at(0.0, 5, 3)]) };
    let served = one(1).serve(&requests, named("round-robin").as_mut());
    assert_eq!(ends(&served), [(End::Served, Some(3.0))]);
}

#[test]
fn a_client_who_has_enough_frees_the_place() {
    // The client of the first wants ten tokens and reads three. It is in nobody's latency and in no share of the limits.
    let requests = Requests { asked: vec![10, 2], ..Requests::of(vec![at(0.0, 5, 3), at(0.0, 5, 2)]) };
    let served = one(1).serve(&requests, named("round-robin").as_mut());
    assert_eq!(ends(&served), [(End::Cancelled, Some(3.0)), (End::Served, Some(5.0))]);
    let slo = Slo { ttft: Some(Seconds::new(4.0)), ..Slo::default() };
    let figures = metrics::of(&requests, &served, &slo, Seconds::ZERO);
    assert_eq!((figures["slo_attainment_ratio"], figures["n_cancelled"], figures["ttft_s.mean"]), (1.0, 1.0, 4.0));
    // All five tokens were read, at 5 s.
    assert_eq!((figures["lost_output_tokens_ratio"], figures["output_tokens_per_s"]), (0.0, 1.0));
}

#[test]
fn a_share_of_the_clients_has_enough_somewhere_before_the_end() {
    let mut requests = Requests::of((0..20_000).map(|_| at(0.0, 5, 101)).collect());
    requests.cancel(0.25, 3);
    let cancelled: Vec<u32> =
        (0..requests.len()).filter(|&n| requests.is_cancelled(n)).map(|n| requests.list[n].output).collect();
    let n = f64::from(u32::try_from(cancelled.len()).expect("few"));
    assert!((n / 20_000.0 - 0.25).abs() < 0.01, "{n}");
    let mean = cancelled.iter().map(|&output| f64::from(output)).sum::<f64>() / n;
    // Evenly from 1 to 100.
    assert!((mean - 50.5).abs() < 2.0, "{mean}");
    assert_eq!((cancelled.iter().min(), cancelled.iter().max()), (Some(&1), Some(&100)));
}

/// Requests of two streams under a load that nobody bears: one is impatient, a fifth of all has enough early.
fn hurried(n: usize, per_s: f64, seed: u64) -> Requests {
    let mut stream = random::stream(seed, "hurried");
    let mut draw = |n: u64| 1 + u32::try_from(stream.below(n)).expect("small");
    let mut requests = Requests::of((0..n).map(|_| Request::new(Time::ZERO, draw(200), draw(60))).collect());
    requests.streams = (0..n).map(|_| draw(2) - 1).collect();
    requests.patience =
        vec![Patience { first_token: span(0.15), whole: span(0.4) }, Patience { first_token: None, whole: span(1.0) }];
    requests.priorities = vec![2, 1];
    requests.cancel(0.2, seed);
    lay(&mut requests, Arrivals::Poisson { per_s }, seed);
    requests
}

/// What must hold of any run: everybody ends once, nobody who was served waited longer than the client would, and no block is left.
fn check_books(requests: &Requests, served: &Served, at: &str) {
    let count = |end| served.records.count(end);
    let all = count(End::Served) + count(End::TimedOut) + count(End::Cancelled) + served.n_refused;
    assert_eq!(all, requests.len() as u64, "{at}");
    let ways = [End::Served, End::TimedOut, End::Cancelled].map(count);
    assert!(ways.iter().all(|n| *n > 1), "{at}: served, timed out and cancelled are {ways:?}");
    for (index, (request, record)) in requests.list.iter().zip(&served.records.list).enumerate() {
        let Patience { first_token, whole } = requests.patience_of(index);
        let Some(ended) = record.ended() else { continue };
        let is_within = |limit: Option<Span>, time: Time| limit.is_none_or(|limit| time <= request.arrival + limit);
        assert!(is_within(whole, ended), "{at}: {record:?}");
        if record.end() != End::TimedOut {
            let first = record.first_token().expect("it has tokens");
            assert!(is_within(first_token, first) && first <= ended, "{at}: {record:?}");
        }
    }
    assert!(served.blocks.iter().all(|(peak, total)| peak <= total), "{at}");
    check_sums(requests, served, at);
}

/// Rows of requests and figures of streams add up to those of the run, whoever left and whatever latencies leave out.
fn check_sums(requests: &Requests, served: &Served, at: &str) {
    let n_preempted: u64 = metrics::rows::requests(requests, served).map(|row| u64::from(row.n_preempted)).sum();
    assert_eq!(n_preempted, served.counts.iter().map(|counts| counts.n_preempted).sum::<u64>(), "{at}");
    let warm_up = Seconds::new(0.5);
    let mut figures = metrics::of(requests, served, &Slo::default(), warm_up);
    metrics::streams::add(&mut figures, &["a", "b"], requests, served, &Slo::default(), warm_up);
    for way in ["n_timed_out", "n_cancelled"] {
        let of_streams = ["a", "b"].map(|name| figures[&format!("stream_{way}.{name}")]);
        assert_eq!(of_streams.iter().sum::<f64>(), figures[way], "{at}: {way}");
    }
}

fn linear(batcher: &'static dyn Batcher, kv_blocks: u32, order: Order, spans: Spans) -> Engine {
    let table = StepTable::linear(Seconds::new(2e-3), Seconds::new(1e-5), Seconds::new(3e-7));
    let mut engine = Engine { table, spans, batcher, ..engine(8) };
    (engine.limits.kv_blocks, engine.limits.order) = (kv_blocks, order);
    engine
}

/// Serves both ways of playing spans, holds them equal, and checks the books.
fn play(requests: &Requests, at: &str, fleet: &dyn Fn(Spans) -> Fleet) -> Served {
    let serve = |spans| fleet(spans).serve(requests, named("least-loaded").as_mut());
    let (closed, mut single) = (serve(Spans::Closed), serve(Spans::Stepwise));
    for (single, closed) in single.counts.iter_mut().zip(&closed.counts) {
        single.n_spans = closed.n_spans;
    }
    check_books(requests, &closed, at);
    assert!(single == closed, "{at}: spans are single steps");
    closed
}

#[test]
fn everybody_ends_once_whatever_the_engine() {
    for batcher in BATCHERS {
        for (seed, kv_blocks) in [(1, 1000), (2, 60), (3, 25)] {
            for order in [Order::Arrival, Order::Priority] {
                let requests = hurried(800, 500.0, seed);
                let at = format!("{}, {kv_blocks} blocks, {order:?}", batcher.name());
                play(&requests, &at, &|spans| {
                    let mut engine = linear(batcher, kv_blocks, order, spans);
                    engine.limits.frontend = Frontend::new([0.0, 200.0][usize::from(kv_blocks == 60)], [1, 1]);
                    engine.limits.recv_interval =
                        std::num::NonZeroU32::new(1 + u32::try_from(seed).expect("small")).expect("above 0");
                    Fleet::of(Group::new("all", engine, 2))
                });
            }
        }
    }
}

#[test]
fn everybody_ends_once_on_split_and_failing_fleets() {
    let link = slow_link();
    for (seed, kv_blocks, stream_us) in [(1, 1000, 0.0), (2, 60, 0.0), (3, 25, 0.0), (1, 1000, 150.0), (2, 60, 400.0)] {
        for order in [Order::Arrival, Order::Priority] {
            let requests = hurried(800, 400.0, seed);
            let group = |name: &str, role, spans| {
                let mut engine = linear(BATCHERS[0], kv_blocks, order, spans);
                engine.limits.frontend = Frontend::new(stream_us, [1, 1]);
                Group { role, ..Group::new(name, engine, 2) }
            };
            let split = |spans| {
                Fleet {
                    first_token: if stream_us > 200.0 { FirstToken::Decode } else { FirstToken::Prefill },
                    groups: vec![group("prefill", Role::Prefill, spans), group("decode", Role::Decode, spans)],
                    links: vec![link],
                    ..Fleet::default()
                }
                .handing_on(1e6)
            };
            play(&requests, &format!("split, {kv_blocks} blocks, {order:?}, {stream_us} us"), &split);
            let failing = |spans| {
                let mut fleet = split(spans);
                for group in &mut fleet.groups {
                    group.failures = Some(Failures { mtbf: Seconds::new(0.7), mttr: Seconds::new(0.2), seed });
                }
                fleet
            };
            let served = play(&requests, &format!("failing, {kv_blocks} blocks, {order:?}, {stream_us} us"), &failing);
            assert!(served.changes.n_retried > 0, "the case is about losses");
        }
    }
}

#[test]
fn whoever_finds_no_replica_gives_up_at_the_router() {
    // The only replica is away from 1 s to 9 s. A request of 2 s with 3 s of patience is nobody's at 5 s; one with more is served.
    let mut fleet = one(4);
    fleet.outages = vec![Outage {
        group: 0,
        replica: 0,
        at: at(1.0, 1, 1).arrival,
        notice: Seconds::ZERO,
        back_after: Some(Seconds::new(8.0)),
    }];
    let patience =
        vec![Patience { first_token: span(3.0), whole: None }, Patience { first_token: None, whole: span(30.0) }];
    let list = vec![at(2.0, 5, 2), at(2.0, 5, 2)];
    let requests = Requests { streams: vec![0, 1], patience, ..Requests::of(list) };
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    assert_eq!(ends(&served), [(End::TimedOut, Some(5.0)), (End::Served, Some(11.0))]);
}

#[test]
fn a_user_whose_request_times_out_goes_on_with_the_next() {
    // One user, a place, ten tokens each at one per second, patience for 3.5 s: each request is sent as the one before is given up. The engine lets go
    // of that one at the end of its iteration, which is not the user's.
    let patience = vec![Patience { first_token: None, whole: span(3.5) }];
    let requests = Requests { patience, ..Requests::of(vec![at(0.0, 5, 10); 3]) };
    let (sent, served) = one(1).serve_held(&requests, Rules::of(named("round-robin").as_mut()), Users::in_flight(1));
    let ended: Vec<Option<f64>> = ends(&served).into_iter().map(|(_, at)| at).collect();
    assert!(served.records.list.iter().all(|record| record.end() == End::TimedOut));
    let sent: Vec<Option<f64>> = sent.list.iter().map(|request| seconds(Some(request.arrival))).collect();
    assert_eq!(ended, [Some(3.5), Some(7.0), Some(10.5)]);
    assert_eq!(sent, [Some(0.0), Some(3.5), Some(7.0)]);
    let begun: Vec<Option<f64>> = served.records.list.iter().map(|record| seconds(record.scheduled())).collect();
    assert_eq!(begun, [Some(0.0), Some(4.0), Some(7.0)]);
}

#[test]
fn a_held_number_of_users_is_held_whoever_gives_up() {
    // Two users and a place for one, prompts whose first token takes 10 s, patience for 1 s: requests come at 0, 0, 1, 1 and 2 s.
    let patience = vec![Patience { first_token: None, whole: span(1.0) }];
    let requests = Requests { patience, ..Requests::of(vec![at(0.0, 5, 2); 5]) };
    let mut fleet = one(1);
    fleet.groups[0].engine.table = StepTable::constant(Seconds::new(10.0));
    let (sent, served) = fleet.serve_held(&requests, Rules::of(named("round-robin").as_mut()), Users::in_flight(2));
    let sent: Vec<Option<f64>> = sent.list.iter().map(|request| seconds(Some(request.arrival))).collect();
    assert_eq!(sent, [0.0, 0.0, 1.0, 1.0, 2.0].map(Some));
    assert_eq!(seconds(Some(served.records.end_ticks().time())), Some(3.0));
    // A user whose request waits at the router hears of it there: the replica is lost from 0.05 to 5 s.
    let patience = vec![Patience { first_token: span(0.5), whole: None }];
    let requests = Requests { patience, ..Requests::of(vec![at(0.0, 5, 2); 3]) };
    let back_after = Some(Seconds::new(5.0));
    fleet.outages =
        vec![Outage { group: 0, replica: 0, at: at(0.05, 1, 1).arrival, notice: Seconds::ZERO, back_after }];
    let (sent, _) = fleet.serve_held(&requests, Rules::of(named("round-robin").as_mut()), Users::in_flight(1));
    let sent: Vec<Option<f64>> = sent.list.iter().map(|request| seconds(Some(request.arrival))).collect();
    assert_eq!(sent, [0.0, 0.5, 1.0].map(Some));
}

#[test]
fn nothing_behind_the_end_of_a_run_counts() {
    // Both clients leave at 1 s, in the middle of iterations of 10 s. A replica that is lost at 4 s is paid until 1 s like the other, and nothing is sent again.
    let patience = vec![Patience { first_token: None, whole: span(1.0) }];
    let requests = Requests { patience, ..Requests::of(vec![at(0.0, 5, 2); 2]) };
    let mut fleet = one(1);
    (fleet.groups[0].n_replicas, fleet.groups[0].engine.table) = (2, StepTable::constant(Seconds::new(10.0)));
    fleet.outages =
        vec![Outage { group: 0, replica: 1, at: at(4.0, 1, 1).arrival, notice: Seconds::ZERO, back_after: None }];
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let of = |ticks: &[hw::Tick]| ticks.iter().map(|ticks| ticks.span().to_seconds().get()).collect::<Vec<f64>>();
    assert_eq!(of(&served.paid_ticks), [1.0, 1.0]);
    assert_eq!((served.changes.n_outages, served.changes.n_retried), (0, 0));
    // Nor is what is under way then.
    let busy: Vec<hw::Tick> = served.counts.iter().map(|counts| counts.busy_ticks).collect();
    assert_eq!((of(&busy), served.counts[0].n_beyond), (vec![1.0, 1.0], 1));
}

#[test]
fn a_router_counts_nobody_who_has_left() {
    // Iterations of 10 s, places for one: the first replica has a request and one whose client leaves its queue at 1 s, the second has one. At 2 s the next two
    // come: with the leaver gone both replicas have as much, and the first gets the first of them.
    let list = vec![at(0.0, 5, 1), at(0.0, 5, 1), at(0.0, 5, 1), at(2.0, 5, 1), at(2.0, 5, 1)];
    let hasty = Patience { first_token: span(1.0), whole: None };
    let patience = vec![Patience::default(), hasty];
    let requests = Requests { streams: vec![0, 0, 1, 0, 0], patience, ..Requests::of(list) };
    let mut fleet = one(1);
    (fleet.groups[0].n_replicas, fleet.groups[0].engine.table) = (2, StepTable::constant(Seconds::new(10.0)));
    let served = fleet.serve(&requests, named("least-loaded").as_mut());
    let replicas: Vec<u32> = served.records.list.iter().map(|record| record.replica).collect();
    assert_eq!(replicas, [0, 1, 0, 0, 1]);
}

#[test]
fn the_lowest_number_comes_first_and_the_highest_gives_way() {
    // Place for one: all come while the first is served. By priority the order is 3, 1, 2.
    let list = vec![at(0.0, 5, 4), at(1.0, 5, 2), at(1.5, 5, 2), at(2.0, 5, 2)];
    let requests = Requests { streams: vec![0, 1, 2, 3], priorities: vec![9, 5, 5, 3], ..Requests::of(list) };
    let firsts = |order| {
        let mut fleet = one(1);
        fleet.groups[0].engine.limits.order = order;
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        let first = |record: &crate::records::Record| seconds(record.first_token()).expect("served");
        served.records.list.iter().map(first).collect::<Vec<f64>>()
    };
    assert_eq!(firsts(Order::Arrival), [1.0, 5.0, 7.0, 9.0]);
    assert_eq!(firsts(Order::Priority), [1.0, 7.0, 9.0, 5.0]);
    // Two run with a block each of 16 tokens, a third block is there: both need a second one in the iteration after 16 cached tokens. The
    // first, whose number is higher, gives way though it came first.
    let list = vec![at(0.0, 16, 8), at(0.0, 16, 8)];
    let requests = Requests { streams: vec![0, 1], priorities: vec![1, 0], ..Requests::of(list) };
    for (order, loser) in [(Order::Arrival, 1), (Order::Priority, 0)] {
        let mut fleet = one(2);
        (fleet.groups[0].engine.limits.order, fleet.groups[0].engine.limits.kv_blocks) = (order, 3);
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        let lost: Vec<u32> = served.records.list.iter().map(|record| record.n_preempted).collect();
        assert_eq!(lost, if loser == 0 { [1, 0] } else { [0, 1] }, "{order:?}");
    }
}

#[test]
fn a_token_that_waits_in_the_frontend_for_too_long_is_late() {
    // One iteration a second, 3 s in the frontend: three tokens are through at 4, 7 and 10 s. A client that waits 2.5 s for the first leaves then. One that
    // waits 8 s for all leaves too, though the engine gave the last at 3 s.
    let first = Patience { whole: None, first_token: span(2.5) };
    let whole = Patience { whole: span(8.0), first_token: None };
    for (patience, expected) in [(first, 2.5), (whole, 8.0)] {
        let requests = Requests { streams: vec![0], patience: vec![patience], ..Requests::of(vec![at(0.0, 5, 3)]) };
        let mut fleet = one(1);
        fleet.groups[0].engine.limits.frontend = Frontend::new(3e6, [1, 1]);
        let served = fleet.serve(&requests, named("round-robin").as_mut());
        assert_eq!(ends(&served), [(End::TimedOut, Some(expected))], "{patience:?}");
    }
}
