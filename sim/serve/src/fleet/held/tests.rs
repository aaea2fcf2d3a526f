//! A closed loop by hand, where every iteration takes the same time.

use hw::{Seconds, Span, Time};

use super::*;
use crate::batcher;
use crate::dataset::Dataset;
use crate::fleet::Group;
use crate::fleet::dynamics::{Failures, Outage};
use crate::fleet::start::Start;
use crate::frontend::Frontend;
use crate::metrics::{self, Slo};
use crate::records::Record;
use crate::replica::{Engine, Limits, Spans};
use crate::request::Request;
use crate::router;
use crate::speculation::Speculation;
use crate::step_cost::StepTable;
use crate::step_cost::host::{EngineLoop, Host};

/// Time of every iteration, seconds.
const STEP_S: f64 = 0.01;

fn fleet(sequences_max: u32, spans: Spans) -> Fleet {
    let limits = Limits { sequences_max, ..Limits::ROOMY };
    let table = StepTable::constant(Seconds::new(STEP_S));
    let batcher = batcher::named("vllm-v1").expect("listed");
    Fleet::of(Group::new("all", Engine { limits, table, batcher, spans }, 1))
}

fn served(fleet: &Fleet, n: usize, in_flight: u32, start_s: f64) -> (Requests, Served) {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); n]);
    by_users(fleet, &requests, Users::in_flight(in_flight), start_s)
}

fn by_users(fleet: &Fleet, requests: &Requests, users: Users, start_s: f64) -> (Requests, Served) {
    let fleet = Fleet { start: Start { mean: Seconds::new(start_s), seed: 3, ..Start::default() }, ..fleet.clone() };
    fleet.serve_held(requests, Rules::of((router::ROUTERS[0].make)(0).as_mut()), users)
}

fn sent_ms(run: &(Requests, Served)) -> Vec<u64> {
    run.0.list.iter().map(|request| request.arrival.as_ns() / 1_000_000).collect()
}

fn first_token_s(record: &Record) -> f64 {
    hw::real(record.first_token().expect("served").as_ns()) / 1e9
}

fn figure((requests, served): &(Requests, Served), key: &str) -> f64 {
    metrics::of(requests, served, &Slo::default(), Seconds::ZERO)[key]
}

#[test]
fn one_in_flight_takes_its_iterations_one_after_another() {
    // A prompt and ten more tokens are eleven iterations of 10 ms. The next request finds an idle engine.
    let run = served(&fleet(8, Spans::Closed), 5, 1, 0.0);
    assert!((figure(&run, "ttft_s.mean") - 0.01).abs() < 1e-9);
    assert!((figure(&run, "tpot_s.mean") - 0.01).abs() < 1e-9);
    let sent: Vec<u64> = run.0.list.iter().map(|request| request.arrival.as_ns()).collect();
    assert_eq!(sent, [0, 110_000_000, 220_000_000, 330_000_000, 440_000_000]);
}

#[test]
fn a_request_that_follows_another_waits_for_the_iteration_that_began_without_it() {
    // Four in flight. The first starts the engine alone: first token at 10 ms; the other three join the next iteration: 20 ms. The first
    // ends at 110 ms, as the iteration of the other three begins; its follower waits 10 ms for that and 10 ms for its own: 20 ms. The three
    // end at 120 ms, when one is left to decode: their followers miss that iteration as well.
    let run = served(&fleet(8, Spans::Closed), 4 * 20, 4, 0.0);
    let mean = (0.01 + 79.0 * 0.02) / 80.0;
    assert!((figure(&run, "ttft_s.mean") - mean).abs() < 1e-9, "{}", figure(&run, "ttft_s.mean"));
    assert!((figure(&run, "tpot_s.mean") - 0.01).abs() < 1e-9);
}

#[test]
fn more_in_flight_than_places_queue_for_whole_turns() {
    // Two places and four in flight: requests of eleven iterations each go through two at a time, so two are served while two wait, and by
    // Little's law a request stays four over the throughput of two in eleven iterations.
    let run = served(&fleet(2, Spans::Closed), 400, 4, 0.0);
    let e2e_s = figure(&run, "e2e_s.mean");
    assert!((e2e_s / (2.0 * 0.11) - 1.0).abs() < 0.01, "{e2e_s}");
}

#[test]
fn the_start_of_a_request_counts_for_its_first_token_only() {
    // 7 ms on average; the mean of 4,000 exponential draws is known to 1.6 % of it.
    let run = served(&fleet(8, Spans::Closed), 4000, 1, 7e-3);
    assert!((figure(&run, "ttft_s.mean") - 0.017).abs() < 4.0 * 0.016 * 0.007);
    assert!((figure(&run, "tpot_s.mean") - 0.01).abs() < 1e-9);
}

#[test]
fn a_tokenizer_takes_its_time_for_every_token_of_a_prompt() {
    let start = Start { tokenize: Seconds::new(1e-3), ..Start::default() };
    let fleet = Fleet { start, ..fleet(8, Spans::Closed) };
    let requests = Requests::of([100, 1000].map(|prompt| Request::new(Time::ZERO, prompt, 11)).to_vec());
    let run = fleet.serve_held(&requests, Rules::of((router::ROUTERS[0].make)(0).as_mut()), Users::in_flight(1));
    assert!((figure(&run, "ttft_s.mean") - ((0.1 + 1.0) / 2.0 + 0.01)).abs() < 1e-9);
    assert!((figure(&run, "tpot_s.mean") - 0.01).abs() < 1e-9);
}

#[test]
fn starts_that_vary_part_requests_that_ended_together() {
    // Without starts all eight end and follow together, so that each waits for the iteration that began without it. With starts of some
    // iterations they come one by one into iterations that go on.
    let together = served(&fleet(8, Spans::Closed), 800, 8, 0.0);
    let parted = served(&fleet(8, Spans::Closed), 800, 8, 3e-2);
    let ends = |(_, served): &(Requests, Served)| {
        let mut ends: Vec<_> = served.records.list.iter().map(|record| record.finished()).collect();
        ends.sort_unstable();
        ends.dedup();
        ends.len()
    };
    assert!(ends(&parted) > 2 * ends(&together), "{} and {}", ends(&parted), ends(&together));
}

#[test]
fn spans_and_single_steps_agree_to_the_tick() {
    for in_flight in [1, 3, 8, 20] {
        let [closed, stepwise] =
            [Spans::Closed, Spans::Stepwise].map(|spans| served(&fleet(8, spans), 100, in_flight, 3e-3));
        assert_eq!(closed.0, stepwise.0);
        assert_eq!(closed.1.records, stepwise.1.records);
    }
}

#[test]
fn a_host_that_is_an_iteration_ahead_sees_a_request_an_iteration_later() {
    // Two in flight with answers of eleven tokens, iterations of 10 ms. A serial host: the first request starts the engine, the second joins the
    // next iteration. A host that is ahead has composed that one as well: the second waits for two iterations before its own.
    let ahead = Host::new(EngineLoop::Asynchronous, Seconds::ZERO, Seconds::ZERO, Seconds::ZERO);
    let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); 2]);
    for spans in [Spans::Closed, Spans::Stepwise] {
        for (host, seconds) in [(Host::default(), [0.01, 0.02]), (ahead, [0.01, 0.03])] {
            let mut fleet = fleet(8, spans);
            let engine = &mut fleet.groups[0].engine;
            engine.table = engine.table.clone().hosted(host);
            let (_, served) = by_users(&fleet, &requests, Users::in_flight(2), 0.0);
            let firsts: Vec<f64> = served.records.list.iter().map(first_token_s).collect();
            assert_eq!(firsts, seconds);
        }
    }
}

#[test]
fn spans_and_single_steps_agree_to_the_tick_where_the_host_is_ahead() {
    let ahead = Host::new(EngineLoop::Asynchronous, Seconds::ZERO, Seconds::ZERO, Seconds::ZERO);
    for in_flight in [1, 3, 8, 20] {
        let [closed, stepwise] = [Spans::Closed, Spans::Stepwise].map(|spans| {
            let mut fleet = fleet(8, spans);
            let engine = &mut fleet.groups[0].engine;
            engine.table = engine.table.clone().hosted(ahead);
            served(&fleet, 100, in_flight, 3e-3)
        });
        assert_eq!(closed.0, stepwise.0);
        assert_eq!(closed.1.records, stepwise.1.records);
    }
}

#[test]
fn what_happens_behind_the_last_request_is_not_paid() {
    let plain = served(&fleet(8, Spans::Closed), 20, 4, 0.0);
    let mut failing = fleet(8, Spans::Closed);
    let failures = Failures { mtbf: Seconds::new(1e4), mttr: Seconds::new(10.0), seed: 1 };
    failing.groups[0].failures = Some(failures);
    let mut lost = fleet(8, Spans::Closed);
    let (at, back_after) = (Time::ZERO + Span::from_seconds(Seconds::new(1000.0)), Some(Seconds::new(5.0)));
    lost.outages = vec![Outage { group: 0, replica: 0, at, notice: Seconds::ZERO, back_after }];
    for fleet in [failing, lost] {
        let run = served(&fleet, 20, 4, 0.0);
        assert_eq!(run.1.paid_ticks, plain.1.paid_ticks);
        assert_eq!(run.1.changes.n_outages, 0);
        assert_eq!(run.1.records, plain.1.records);
    }
}

#[test]
fn a_user_pauses_between_an_answer_and_the_next_request() {
    // A request takes eleven iterations of 10 ms. Two users, 50 ms apart, pause for 200 ms: each sends every 310 ms, and nobody waits.
    let mut requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); 6]);
    requests.pauses = vec![Span::from_ns(200_000_000); 6];
    let users = Users::Held { n: 2, ramp: Seconds::new(0.1), warm_up: 0 };
    let run = by_users(&fleet(8, Spans::Closed), &requests, users, 0.0);
    assert_eq!(sent_ms(&run), [0, 50, 310, 360, 620, 670]);
}

#[test]
fn nobody_goes_on_before_the_whole_warm_up_has_ended() {
    // Two users warm up with three requests of 110 ms: two together and one behind them, while the other user waits. At 220 ms both go on.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); 6]);
    let users = Users::Held { n: 2, ramp: Seconds::ZERO, warm_up: 3 };
    let run = by_users(&fleet(8, Spans::Closed), &requests, users, 0.0);
    let without = served(&fleet(8, Spans::Closed), 6, 2, 0.0);
    assert_eq!(sent_ms(&run)[..3], sent_ms(&without)[..3]);
    let begun = sent_ms(&run)[3];
    let ended = |record: &Record| record.finished().expect("served").as_ns() / 1_000_000;
    assert_eq!(run.1.records.list[..3].iter().map(ended).max(), Some(begun));
    assert_eq!(sent_ms(&run)[4], begun, "both users go on together");
    assert!((users.begun(&run.0).get() * 1e3 - hw::real(begun)).abs() < 1e-6);
    // Figures leave the warm-up out: three requests are counted, and the first of them finds an idle engine.
    let counted = metrics::of(&run.0, &run.1, &Slo::default(), users.begun(&run.0));
    let seconds = counted["makespan_s"] - users.begun(&run.0).get();
    assert!((counted["requests_per_s"] - 3.0 / seconds).abs() < 1e-9);
}

#[test]
fn what_a_warm_up_has_computed_is_there_when_its_prompts_come_again() {
    let mut requests = Requests::of(vec![Request::new(Time::ZERO, 161, 11); 8]);
    Dataset { prompts: 4 }.lay(&mut requests, 16, 3);
    let mut cached = fleet(8, Spans::Closed);
    cached.groups[0].engine.limits.shares_prefixes = true;
    let run = by_users(&cached, &requests, Users::Held { n: 2, ramp: Seconds::ZERO, warm_up: 4 }, 0.0);
    // 160 of 161 tokens are whole blocks. All of the second pass are cached, and none of the first.
    let tokens: Vec<u32> = run.1.records.list.iter().map(|record| record.cached_tokens).collect();
    assert_eq!(tokens, [0, 0, 0, 0, 160, 160, 160, 160]);
}

#[test]
fn a_turn_is_sent_when_the_one_before_has_ended_and_sessions_follow_each_other() {
    // Three turns and two turns; a turn takes 110 ms alone. One user plays them one after another.
    let mut requests = Requests::of(vec![Request::new(Time::ZERO, 100, 11); 5]);
    requests.follows = vec![false, true, true, false, true];
    requests.pauses = [0, 100, 100, 500, 100].map(|ms| Span::from_ns(ms * 1_000_000)).to_vec();
    let run = by_users(&fleet(8, Spans::Closed), &requests, Users::in_flight(1), 0.0);
    assert_eq!(sent_ms(&run), [0, 210, 420, 1030, 1240]);
    // Sessions that arrive by themselves have a user each: the second one begins at 30 ms, whatever the first one does.
    requests.list[3].arrival = Time::from_ns(30_000_000);
    requests.pauses = vec![Span::ZERO; 5];
    let run = by_users(&fleet(8, Spans::Closed), &requests, Users::OfSessions, 0.0);
    // The turn of 110 ms misses the iteration that begins then, for there is somebody else to compute.
    assert_eq!(sent_ms(&run), [0, 30, 110, 140, 230]);
    assert_eq!(run.0.list.iter().map(|request| request.prompt).sum::<u32>(), 500, "every turn is there once");
}

/// Prompt tokens of every turn that were cached, for one user at a time who waits for the answer, with tables of iteration times.
#[test]
fn a_turn_finds_what_its_session_said_before() {
    let turns = Requests::of(vec![Request::new(Time::ZERO, 160, 17); 8]);
    let sessions = crate::sessions::Sessions { turns: 1e9, system: 32, context_max: 100_000, block_tokens: 16 };
    let requests = sessions.lay(&turns, 1);
    let plain = StepTable::constant(Seconds::new(STEP_S));
    // A draft that is never accepted gives a token an iteration, and others give several: what is said is the same.
    let drafting = |acceptance: f64| {
        let speculation = Speculation { n_drafts: 2, tree: None, acceptance, per_draft: Seconds::ZERO, seed: 5 };
        plain.clone().speculating(&speculation)
    };
    for table in [plain.clone(), drafting(0.0), drafting(0.7)] {
        let mut fleet = fleet(8, Spans::Closed);
        (fleet.groups[0].engine.limits.shares_prefixes, fleet.groups[0].engine.table) = (true, table);
        let (_, served) = by_users(&fleet, &requests, Users::in_flight(1), 0.0);
        let cached: Vec<u32> = served.records.list.iter().map(|record| record.cached_tokens).collect();
        // Keys and values of the last output token are never computed, so 32 + 176 n tokens are there behind n turns, all in full blocks.
        let expected: Vec<u32> = (0..8).map(|n| if n == 0 { 0 } else { (32 + 177 * n - 1) / 16 * 16 }).collect();
        assert_eq!(cached, expected);
    }
}

/// Two users begin at once with the same system prompt, which both compute. Each then finds all that it said itself.
#[test]
fn whoever_computes_a_prefix_beside_another_keeps_what_follows_it() {
    let turns = Requests::of(vec![Request::new(Time::ZERO, 160, 17); 6]);
    let sessions = crate::sessions::Sessions { turns: 1e9, system: 32, context_max: 600, block_tokens: 16 };
    let requests = sessions.lay(&turns, 1);
    let firsts: Vec<usize> = (0..requests.len()).filter(|at| !requests.is_turn(*at)).collect();
    assert_eq!(firsts, [0, 3]);
    let mut fleet = fleet(8, Spans::Closed);
    // The first prompt takes two iterations, and the second begins beside its end.
    (fleet.groups[0].engine.limits.shares_prefixes, fleet.groups[0].engine.limits.tokens_max) = (true, 128);
    let (sent, served) = by_users(&fleet, &requests, Users::in_flight(2), 0.0);
    let mut cached: Vec<[u32; 2]> =
        sent.list.iter().zip(&served.records.list).map(|(of, record)| [of.prompt, record.cached_tokens]).collect();
    cached.sort_unstable();
    let of_turn = |n: u32| [32 + 177 * n + 160, if n == 0 { 0 } else { (32 + 177 * n - 1) / 16 * 16 }];
    assert_eq!(cached, [0, 0, 1, 1, 2, 2].map(of_turn));
}

#[test]
fn answers_are_kept_step_by_step_as_in_closed_spans() {
    let turns = Requests::of((0..200).map(|n| Request::new(Time::ZERO, 20 + n % 90, 5 + n % 70)).collect());
    let sessions = crate::sessions::Sessions { turns: 5.0, system: 48, context_max: 2_000, block_tokens: 16 };
    let mut requests = sessions.lay(&turns, 2);
    crate::sessions::lay_pauses(&mut requests, Seconds::new(0.3), 4);
    let run = |spans| {
        let mut fleet = fleet(6, spans);
        (fleet.groups[0].engine.limits.shares_prefixes, fleet.groups[0].engine.limits.kv_blocks) = (true, 160);
        by_users(&fleet, &requests, Users::Held { n: 9, ramp: Seconds::new(0.5), warm_up: 0 }, 0.002)
    };
    let ((requests, closed), (stepwise_requests, stepwise)) = (run(Spans::Closed), run(Spans::Stepwise));
    assert!(requests == stepwise_requests && closed.records == stepwise.records);
    assert!(closed.records.list.iter().any(|record| record.n_preempted > 0), "memory is tight");
}

#[test]
fn a_frontend_that_is_slower_than_the_engine_sets_the_rate_and_clients_wait_for_it() {
    // 32 in flight decode 3,200 tokens a second at 10 ms an iteration; a frontend of 1 ms a token lets a thousand through.
    let with = |ms: f64, processes: u32| {
        let mut fleet = fleet(32, Spans::Closed);
        fleet.groups[0].engine.limits.frontend = Frontend::new(1e3 * ms, [1, processes]);
        served(&fleet, 32 * 20, 32, 0.0)
    };
    let rate = |run: &(Requests, Served)| figure(run, "output_tokens_per_s");
    let (free, slow, four) = (with(0.0, 1), with(1.0, 1), with(1.0, 4));
    assert!(rate(&free) > 2500.0, "{}", rate(&free));
    // All end together with the queue, and the frontend is idle until the next ones have their first iteration: 352 ms of work, and 11 ms without.
    assert!((950.0..=1000.0).contains(&rate(&slow)), "{}", rate(&slow));
    assert!((figure(&slow, "frontend_busy_ratio") - rate(&slow) / 1000.0).abs() < 1e-9);
    // Four of them have as much work as one of a quarter of the time, and more only where sequences do not divide over them.
    assert!((rate(&four) / rate(&free) - 1.0).abs() < 0.1, "{} {}", rate(&four), rate(&free));
    assert!(!metrics::of(&free.0, &free.1, &Slo::default(), Seconds::ZERO).contains_key("frontend_busy_ratio"));
}

#[test]
fn the_next_request_is_sent_when_the_client_has_its_answer() {
    // Eleven iterations of 10 ms, each of whose tokens takes 5 ms more, beside the next iteration: 115 ms from one request to the next.
    let mut fleet = fleet(8, Spans::Closed);
    fleet.groups[0].engine.limits.frontend = Frontend::new(5e3, [1, 1]);
    let run = served(&fleet, 4, 1, 0.0);
    assert_eq!(sent_ms(&run), [0, 115, 230, 345]);
    assert!((figure(&run, "ttft_s.mean") - 0.015).abs() < 1e-9);
    assert!((figure(&run, "tpot_s.mean") - 0.01).abs() < 1e-9);
}

#[test]
fn the_drain_is_the_share_of_the_run_in_which_most_users_have_no_request_left() {
    // Four users with a request each of 11, 21, 31 and 101 iterations of 10 ms; the first one begins alone, so the others end 10 ms later. The third one
    // leaves at 320 ms, and the last one at 1,020 ms.
    let requests = Requests::of([11, 21, 31, 101].map(|output| Request::new(Time::ZERO, 100, output)).to_vec());
    let run = by_users(&fleet(8, Spans::Closed), &requests, Users::in_flight(4), 0.0);
    assert!((figure(&run, "few_users_ratio") - 700.0 / 1020.0).abs() < 1e-9, "{}", figure(&run, "few_users_ratio"));
    // Of nine users who share four requests most are never there; of one nobody leaves before the end.
    let of_users =
        |n: u32| figure(&by_users(&fleet(8, Spans::Closed), &requests, Users::in_flight(n), 0.0), "few_users_ratio");
    assert_eq!((of_users(9), of_users(1)), (1.0, 0.0));
    // Users of sessions that arrive by themselves are as many as come.
    let (requests, served) = by_users(&fleet(8, Spans::Closed), &requests, Users::OfSessions, 0.0);
    assert!(!metrics::of(&requests, &served, &Slo::default(), Seconds::ZERO).contains_key("few_users_ratio"));
}
