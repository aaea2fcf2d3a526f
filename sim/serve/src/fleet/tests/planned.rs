//! Timetables and planners of a fleet: exact bills by hand, what a planner sees, and the books while replicas come and go.

use hw::{Seconds, Span, Time};

use super::split::check_books;
use super::{close, engine, mean, named, requests};
use crate::fleet::dynamics::{Concurrency, Outage, Rule, Scaling};
use crate::fleet::scaler::{Scaler, Seen};
use crate::fleet::{Fleet, Group, Served};
use crate::metrics;
use crate::replica::{Role, Spans};
use crate::request::{Request, Requests};

fn seconds(value: f64) -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(value))
}

fn scaled(n_replicas: u32, first: u32, rule: Rule) -> Group {
    let scaling = Scaling { replicas_min: 1, replicas_first: first, start_up: Seconds::new(20.0), rule };
    Group { scaling: Some(scaling), ..Group::new("all", engine(8), n_replicas) }
}

/// Keeps what it sees, and wants what it is told.
struct Script {
    wishes: Vec<Vec<u32>>,
    seen: Vec<Seen>,
}

impl Scaler for Script {
    fn decide(&mut self, seen: &Seen) -> Vec<u32> {
        let n = self.seen.len();
        self.seen.push(seen.clone());
        self.wishes[n % self.wishes.len()].clone()
    }
}

#[test]
fn a_timetable_is_paid_as_it_says() {
    // One replica; from 30 s on three, which serve from 50 s on; from 100 s on two. Requests of 0.5 s every second until 200 s: whoever
    // is to stop is idle at most half a second later.
    let table = vec![(seconds(30.0), 3), (seconds(100.0), 2)];
    let fleet = Fleet::of(scaled(4, 1, Rule::Timetable(table)));
    let requests = Requests::of((0..200).map(|n| Request::new(seconds(f64::from(n)), 5, 50)).collect());
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    let end_s = 199.5;
    let paid = metrics::fleet::times(&fleet, &served)[0][0].as_ns() / 1e9;
    let exact = end_s + 2.0 * 70.0 + (end_s - 100.0);
    assert!(paid >= exact && paid <= exact + 0.5 + 1e-6, "{paid} s, {exact} s by hand");
    assert_eq!((served.changes.n_started, served.changes.n_stopped), (2, 1));
    // Nobody is sent to a replica that is loading.
    let early = served.records.list.iter().take(50).all(|record| record.replica == 0);
    assert!(early && served.records.list[50..].iter().any(|record| record.replica != 0));
}

#[test]
fn a_planner_sees_what_a_frontend_counts() {
    // 100 requests, ten every second; each gives 20 tokens in 0.2 s, the first after 0.01 s. Intervals of 2 s.
    let fleet = Fleet::of(scaled(4, 2, Rule::Planned { interval: Seconds::new(2.0) }));
    let list = (0..100).map(|n| Request::new(seconds(0.1 * f64::from(n) + 0.05), 7, 20)).collect();
    let requests = Requests::of(list);
    for spans in [Spans::Closed, Spans::Stepwise] {
        let mut fleet = fleet.clone();
        fleet.groups[0].engine.spans = spans;
        let mut script = Script { wishes: vec![vec![3], vec![9], vec![0]], seen: Vec::new() };
        let served = fleet.serve_planned(&requests, named("round-robin").as_mut(), &mut script);
        assert_eq!(script.seen.len(), 5, "four intervals and the end of the last request");
        for (seen, n) in script.seen.iter().zip(1..) {
            assert_eq!((seen.at, seen.n_arrived), (seconds(2.0 * f64::from(n)), 20));
            close(seen.prompt.expect("some arrive"), 7.0, 1e-12, "prompt");
            close(seen.output.expect("some end"), 20.0, 1e-12, "output");
            // Iterations of a replica that is in use begin every 10 ms, so somebody waits for the next one at most.
            let (ttft, tpot) = (seen.ttft.expect("given").get(), seen.tpot.expect("given").get());
            assert!((0.01..=0.02).contains(&ttft) && (tpot - 0.01).abs() < 1e-9, "{ttft} s, {tpot} s");
        }
        // Three are wanted, then nine of at most four, then none of at least one; new ones load for 20 s.
        let groups: Vec<(u32, u32)> =
            script.seen.iter().map(|seen| (seen.groups[0].up, seen.groups[0].current)).collect();
        assert_eq!(groups, [(2, 2), (2, 3), (2, 4), (1, 1), (1, 3)]);
        assert_eq!(served.n_refused, 0);
    }
}

/// Prefill and decode replicas whose numbers a planner shakes.
fn shaken(spans: Spans, requests: &Requests, router: &str) -> (Served, Vec<Seen>) {
    let of = |name: &str, role| {
        let rule = Rule::Planned { interval: Seconds::new(0.7) };
        let mut engine = engine(8);
        (engine.limits.kv_blocks, engine.spans) = (60, spans);
        let scaling = Scaling { replicas_min: 1, replicas_first: 2, start_up: Seconds::new(0.3), rule };
        Group { role, scaling: Some(scaling), ..Group::new(name, engine, 4) }
    };
    let fleet =
        Fleet { groups: vec![of("p", Role::Prefill), of("d", Role::Decode)], ..Fleet::default() }.handing_on(1e6);
    let wishes = vec![vec![4, 1], vec![1, 4], vec![3, 2], vec![1, 1], vec![4, 4]];
    let mut script = Script { wishes, seen: Vec::new() };
    let served = fleet.serve_planned(requests, named(router).as_mut(), &mut script);
    (served, script.seen)
}

#[test]
fn nobody_is_lost_or_served_twice_while_both_phases_are_scaled() {
    for (seed, router) in [(1, "round-robin"), (2, "least-loaded")] {
        let mut requests = requests(1500, &[1, 5, 30, 60], 70.0, seed);
        requests.list.iter_mut().zip(1_u32..).for_each(|(request, n)| request.prompt = 1 + n * 37 % 300);
        let (served, seen) = shaken(Spans::Closed, &requests, router);
        check_books(&requests, &served, router);
        assert!(served.changes.n_started > 20 && served.changes.n_stopped > 20, "{:?}", served.changes);
        // A planner sees the same whether spans are played in one piece or step by step.
        assert!(seen == shaken(Spans::Stepwise, &requests, router).1, "{router}");
        let arrived: u64 = seen.iter().map(|seen| seen.n_arrived).sum();
        let last = seen.last().expect("decisions").at;
        assert_eq!(arrived, requests.list.iter().filter(|request| request.arrival <= last).count() as u64);
        // Means of intervals are those of the run.
        let prompts = mean(requests.list.iter().map(|request| f64::from(request.prompt)));
        let weighed = |seen: &Seen| Some(seen.prompt? * hw::real(seen.n_arrived));
        close(seen.iter().filter_map(weighed).sum::<f64>() / hw::real(arrived), prompts, 0.02, "prompt");
    }
}

#[test]
fn a_planner_leaves_groups_alone_that_scale_by_themselves() {
    // Prefill replicas follow their load every second. A planner looks every 0.7 s and wants the decode replicas that there are.
    let scaling = |rule| Scaling { replicas_min: 1, replicas_first: 2, start_up: Seconds::new(0.3), rule };
    let own = Rule::Concurrency(Concurrency { target: 0.3, interval: Seconds::new(1.0), window: 1 });
    let group = |name: &str, role, rule| Group { role, scaling: Some(scaling(rule)), ..Group::new(name, engine(8), 4) };
    let planned = Rule::Planned { interval: Seconds::new(0.7) };
    let groups = vec![group("p", Role::Prefill, own), group("d", Role::Decode, planned)];
    let fleet = Fleet { groups, ..Fleet::default() }.handing_on(1e6);
    let mut requests = requests(800, &[1, 5, 30, 60], 70.0, 3);
    requests.list.iter_mut().zip(1_u32..).for_each(|(request, n)| request.prompt = 1 + n * 37 % 300);
    let alone = fleet.serve(&requests, named("round-robin").as_mut());
    let mut script = Script { wishes: vec![vec![1, 2]], seen: Vec::new() };
    let watched = fleet.serve_planned(&requests, named("round-robin").as_mut(), &mut script);
    assert!(script.seen.len() > 5 && alone.changes.n_started > 1, "{:?}", alone.changes);
    assert_eq!((alone.changes, alone.records.list), (watched.changes, watched.records.list));
}

/// One replica of a timetable is lost for good in the middle of a request: whoever comes later is refused at once, but where a row is yet to come.
#[test]
fn a_timetable_whose_only_replica_is_lost_refuses_who_waits_for_nobody() {
    let requests = Requests::of((0..60).map(|n| Request::new(seconds(f64::from(n)), 5, 50)).collect());
    let (lost_s, next_s, start_up_s) = (20.2, 40.0, 20.0);
    let outage = |notice: f64| Outage {
        group: 0,
        replica: 0,
        at: seconds(lost_s - notice),
        notice: Seconds::new(notice),
        back_after: None,
    };
    for notice in [0.0, 5.0] {
        for row in [None, Some((seconds(next_s), 1))] {
            let table = [Some((seconds(10.0), 1)), row].into_iter().flatten().collect();
            let fleet = Fleet { outages: vec![outage(notice)], ..Fleet::of(scaled(1, 1, Rule::Timetable(table))) };
            let served = fleet.serve(&requests, named("round-robin").as_mut());
            let n_before = (lost_s - notice).ceil();
            // The one that is under way when its replica is lost is computed again, or refused with the others.
            let n_left = requests.len() as u64 - n_before as u64 + u64::from(notice == 0.0);
            assert_eq!(served.n_refused, if row.is_some() { 0 } else { n_left }, "{notice} s, {row:?}");
            assert_eq!((served.n_unserved, served.changes.n_outages), (0, 1), "{notice} s, {row:?}");
            for (request, record) in requests.list.iter().zip(&served.records.list) {
                let is_late = request.arrival >= seconds(lost_s - notice);
                assert_eq!(record.refused().is_some(), is_late && row.is_none() || record.finished().is_none());
                let waits = is_late && row.is_some() && request.arrival < seconds(next_s + start_up_s);
                assert!(!waits || record.finished() >= Some(seconds(next_s + start_up_s)), "{notice} s: {record:?}");
            }
        }
    }
}

/// Behind the last row a replica that starts already is waited for.
#[test]
fn a_replica_that_a_timetable_started_before_a_loss_is_waited_for() {
    let table = vec![(seconds(10.0), 2), (seconds(15.0), 1)];
    let outage = Outage { group: 0, replica: 0, at: seconds(12.0), notice: Seconds::ZERO, back_after: None };
    let fleet = Fleet { outages: vec![outage], ..Fleet::of(scaled(2, 1, Rule::Timetable(table))) };
    let requests = Requests::of((0..40).map(|n| Request::new(seconds(f64::from(n)), 5, 50)).collect());
    let served = fleet.serve(&requests, named("round-robin").as_mut());
    // The second replica starts at 10 s and stays, for one is wanted: it serves from 30 s on.
    assert_eq!((served.n_refused, served.n_unserved), (0, 0));
    let first = served.records.list[13].first_token().expect("served");
    assert!(first >= seconds(30.0) && first < seconds(30.5), "{first:?}");
}
