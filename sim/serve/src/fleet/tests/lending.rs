//! Replicas that lend each other memory: small cases by hand, closed spans against single steps, and every other option of a fleet beside it.

use engine::random;
use hw::{BytesPerSecond, Seconds, Span, Time};

use super::*;
use crate::arrivals::{Arrivals, lay};
use crate::batcher;
use crate::fleet::dynamics::{Concurrency, Failures, Outage, Rule, Scaling};
use crate::kv::lending::{Borrow, Exchange, Party, Terms};
use crate::replica::{Limits, Preemption, Spans};
use crate::request::Request;
use crate::router::{self, Router, View};
use crate::speculation::Speculation;
use crate::step_cost::StepTable;

fn exchange() -> Exchange {
    let (latency, bandwidth) = (Seconds::new(5e-6), BytesPerSecond::new(25e9));
    Exchange { bytes_per_token: 16_640, n_layers: 32, latency, bandwidth }
}

/// An iteration takes 10 ms, 10 µs per token and 0.3 µs per cached token.
pub(super) fn table() -> StepTable {
    StepTable::linear(Seconds::new(1e-2), Seconds::new(1e-5), Seconds::new(3e-7))
}

/// Blocks of 16 tokens, 32 sequences, 512 tokens per iteration.
pub(super) fn lender(batcher: &str, kv_blocks: u32, spans: Spans) -> Engine {
    let limits = Limits { kv_blocks, ..engine(32).limits };
    Engine { limits, table: table(), batcher: batcher::named(batcher).expect("listed"), spans }
}

pub(super) fn terms(borrow: Borrow, plans_moves: bool, lent_max: u32, n_groups: usize) -> Terms {
    let party = Party { lent_max, borrows: true, hands_on: false, per_node: 2, exchange: exchange() };
    let (heartbeat, block_bytes) = (Seconds::new(0.1), 16 * 524_288);
    Terms { borrow, plans_moves, heartbeat, block_bytes, parties: vec![party; n_groups] }
}

pub(super) fn fleet(engine: &Engine, n: u32, lending: Option<Terms>) -> Fleet {
    Fleet { lending, ..Fleet::of(Group::new("lenders", engine.clone(), n)) }
}

pub(super) fn by(router: &str) -> Box<dyn Router> {
    (router::named(router).expect("listed").make)(7)
}

pub(super) fn moments(served: &Served) -> Vec<(Option<Time>, Option<Time>)> {
    served.records.list.iter().map(|record| (record.first_token(), record.finished())).collect()
}

/// Requests of random lengths, one in eight long.
pub(super) fn trace(seed: u64, n: u64, lengths: [(u64, u64); 2], per_s: f64) -> Requests {
    let mut stream = random::stream(seed, "trace");
    let mut draw = |(from, to): (u64, u64)| u32::try_from(from + stream.below(to - from + 1)).expect("small");
    let mut list = Vec::new();
    for _ in 0..n {
        let of_length = lengths[usize::from(draw((0, 7)) == 0)];
        list.push(Request::new(Time::ZERO, draw(of_length), draw((1, 60))));
    }
    let mut requests = Requests::of(list);
    lay(&mut requests, Arrivals::Poisson { per_s }, seed);
    requests
}

fn n_finished(served: &Served) -> usize {
    served.records.list.iter().filter(|record| record.finished().is_some()).count()
}

#[test]
fn eight_replicas_hold_eight_times_the_context_of_one() {
    let engine = lender("sarathi", 100, Spans::Closed);
    let (alone, together) = (fleet(&engine, 8, None), fleet(&engine, 8, Some(terms(Borrow::WhenShort, false, 100, 1))));
    assert_eq!((alone.context_max_tokens(), together.context_max_tokens()), (1600, 12_800));
    // 750 blocks, 100 of them at home; the first new block sends a 64th of the home blocks and one more away.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 12_000, 10)]);
    let refused = alone.serve(&requests, by("round-robin").as_mut());
    assert_eq!((refused.n_refused, n_finished(&refused)), (1, 0));
    let shared = together.serve(&requests, by("round-robin").as_mut());
    assert_eq!((n_finished(&shared), shared.loaned.borrowed_blocks), (1, 652));
}

#[test]
fn windows_and_states_stay_at_home() {
    let serve = |fixed: u32, kv_blocks: u32, list: Vec<Request>, (n, lent_max): (u32, u32)| {
        let mut engine = lender("sarathi", kv_blocks, Spans::Closed);
        engine.limits.blocks_per_sequence = fixed;
        let fleet = fleet(&engine, n, Some(terms(Borrow::WhenShort, false, lent_max, 1)));
        (fleet.context_max_tokens(), fleet.serve(&Requests::of(list), by("round-robin").as_mut()))
    };
    let long = |prompt| vec![Request::new(Time::ZERO, prompt, 10)];
    // Eight of a hundred blocks hold 780 of tokens beside 20 that do not leave.
    let (context, found) = serve(20, 100, long(12_000), (8, 100));
    assert_eq!((context, n_finished(&found)), (16 * 780, 1));
    assert!(found.loaned.borrowed_blocks >= 751 - 80, "{:?}", found.loaned);
    // Attention reads blocks of tokens alone: with as many of these at home nothing else changes.
    let two = |fixed| serve(fixed, 10 + fixed, vec![Request::new(Time::ZERO, 310, 2)], (2, 10)).1;
    assert_eq!((moments(&two(5)), two(5).loaned), (moments(&two(0)), two(0).loaned));
    // A replica without room for them and a block of tokens borrows for nobody.
    assert_eq!(serve(99, 100, long(5_000), (8, 100)).1.n_refused, 0);
    assert_eq!(serve(100, 100, long(5_000), (8, 100)).1.n_refused, 1);
    // Who comes later has most of its blocks elsewhere, and everybody is served.
    let crowd = (0..40).map(|_| Request::new(Time::ZERO, 100, 200)).collect();
    assert_eq!(n_finished(&serve(25, 300, crowd, (3, 300)).1), 40);
}

#[test]
fn lent_attention_hides_behind_the_own() {
    // One request of 320 tokens on two replicas of 10 blocks: 160 tokens here, 160 there. Its first iteration takes 310 of the prompt's
    // tokens at 10 µs and 10 ms; then one decode per 10 ms + 10 µs, plus 0.3 µs for each token at home, plus what the way of the
    // query takes beyond that: 32 · (5 µs + 16,640 B / 25 GB/s) + 160 · 0.3 µs − own attention.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 310, 2)]);
    let fleet = fleet(&lender("sarathi", 10, Spans::Closed), 2, Some(terms(Borrow::WhenShort, false, 10, 1)));
    let served = fleet.serve(&requests, by("round-robin").as_mut());
    let us = |time: Option<Time>| time.expect("served").as_ns() as f64 / 1e3;
    let (first, last) = (us(served.records.list[0].first_token()), us(served.records.list[0].finished()));
    assert!((first - (10_000.0 + 3_100.0)).abs() < 0.1, "{first}");
    let own = 0.3 * (311.0 - 160.0);
    let way = 32.0 * (5.0 + 16_640.0 / 25e3) + 0.3 * 160.0;
    let expected = 10_000.0 + 10.0 + own + (way - own);
    assert!((last - first - expected).abs() < 0.1, "{} µs, expected {expected}", last - first);
}

/// The first request to the first replica, all others to the second one.
pub(super) struct FirstApart;

impl Router for FirstApart {
    fn choose(&mut self, request: u32, _view: &View<'_, '_>) -> u32 {
        u32::from(request > 0)
    }
}

#[test]
fn a_lender_is_slower_by_the_attention_that_it_computes() {
    // A request of 470 tokens on two replicas of 24 blocks decodes 100 more with 6 to 13 blocks on the other one, whose own request starts later
    // and ends sooner: each of its 50 iterations has 96 to 208 keys of the first one, 0.3 µs each, or none where two of its own lie
    // between two of the borrower's.
    let first = Request::new(Time::ZERO, 470, 100);
    let other = Request::new(Time::from_ns(100_000_000), 1, 50);
    let fleet = fleet(&lender("sarathi", 24, Spans::Closed), 2, Some(terms(Borrow::WhenShort, false, 24, 1)));
    let end = |list: Vec<Request>, index: usize| {
        let served = fleet.serve(&Requests::of(list), &mut FirstApart);
        served.records.list[index].finished().expect("served").as_ns()
    };
    let small = Request::new(Time::ZERO, 1, 1);
    let alone = end(vec![small, other], 1);
    let beside = end(vec![first, other], 1);
    let more_us = (beside - alone) as f64 / 1e3;
    let [least, most] = [0.8 * 96.0, 208.0].map(|keys| 50.0 * 0.3 * keys);
    assert!((least..=most).contains(&more_us), "{more_us} µs more, {least} to {most} expected");
}

#[test]
fn with_room_for_all_lending_changes_nothing() {
    let engine = lender("vllm-v1", 4000, Spans::Closed);
    let requests = trace(1, 300, [(10, 400), (10, 400)], 40.0);
    let alone = fleet(&engine, 4, None).serve(&requests, by("least-loaded").as_mut());
    for (borrow, plans_moves) in [(Borrow::WhenShort, false), (Borrow::WhenLong, true)] {
        let lending = fleet(&engine, 4, Some(terms(borrow, plans_moves, 4000, 1)));
        let shared = lending.serve(&requests, by("least-loaded").as_mut());
        assert_eq!(moments(&shared), moments(&alone));
        assert_eq!(shared.loaned, Loaned::default());
    }
}

/// A seed's fleet of four replicas of 40 blocks: every batcher, rule and role that there is, with failures and scaling in turn.
fn mixed(seed: u64, spans: Spans) -> Fleet {
    let pick = |n: u64| usize::try_from(seed % n).expect("small");
    let mut engine = lender(["vllm-v1", "sarathi", "vllm-v0"][pick(3)], 40, spans);
    if engine.batcher.name() == "vllm-v0" {
        engine.limits.tokens_max = 4096;
    }
    engine.limits.shares_prefixes = seed.is_multiple_of(2);
    engine.limits.watermark_blocks = [0, 1][pick(2)];
    // Windows and states.
    engine.limits.blocks_per_sequence = if seed < 168 { 0 } else { 3 };
    if seed % 5 == 4 {
        engine.limits.preemption = Preemption::Swap { host_blocks: 60, ticks_per_block: Tick::new(50_000) };
    }
    if seed % 7 == 6 {
        let per_draft = Seconds::new(1e-4);
        engine.table =
            engine.table.speculating(&Speculation { n_drafts: 3, tree: None, acceptance: 0.7, per_draft, seed });
    }
    let rules =
        [(Borrow::WhenShort, false), (Borrow::WhenLong, true), (Borrow::WhenLong, false), (Borrow::WhenShort, true)];
    let (borrow, plans_moves) = rules[pick(4)];
    let mut fleet = match seed % 3 {
        0 => fleet(&engine, 4, None),
        1 => Fleet::of(Group { role: Role::Outputs, ..Group::new("outputs", engine.clone(), 4) }),
        _ => {
            let group = |name: &str, role| Group { role, ..Group::new(name, engine.clone(), 2) };
            let groups = vec![group("prefill", Role::Prefill), group("decode", Role::Decode)];
            let link = Link {
                wire: None,
                from: 0,
                to: 1,
                bytes_per_s: Some(1e9),
                latency_s: 1e-5,
                wire_ratio: 1.0,
                pack_s_per_token: 0.0,
            };
            Fleet { groups, links: vec![link], ..Fleet::default() }.handing_on(5e5)
        }
    };
    if seed % 4 == 1 {
        let failures = Failures { mtbf: Seconds::new(3.0), mttr: Seconds::new(0.4), seed };
        fleet.groups.iter_mut().for_each(|group| group.failures = Some(failures));
    }
    if seed % 4 == 2 {
        let rule = Concurrency { target: 3.0, interval: Seconds::new(0.25), window: 2 };
        let (replicas_min, start_up) = (1, Seconds::new(0.1));
        let scaling = Scaling { replicas_min, replicas_first: 1, start_up, rule: Rule::Concurrency(rule) };
        fleet.groups.iter_mut().for_each(|group| group.scaling = Some(scaling.clone()));
    }
    let lent_max = [40, 25, 40][pick(3)];
    let mut terms = terms(borrow, plans_moves, lent_max, fleet.groups.len());
    for (party, group) in terms.parties.iter_mut().zip(&fleet.groups) {
        party.hands_on = group.role == Role::Prefill;
    }
    fleet.lending = Some(terms);
    fleet
}

/// Requests of a seed, one in eight longer than a replica holds where that can be held; half of the seeds share prefixes.
fn mixed_requests(seed: u64) -> Requests {
    let long = if seed % 4 == 2 { (200, 500) } else { (500, 1_100) };
    let mut requests = trace(seed, 80, [(10, 300), long], [8.0, 30.0][usize::from(seed.is_multiple_of(3))]);
    if seed.is_multiple_of(2) {
        (requests.n_prefix_ids, requests.prefix_tokens) = (12, 32);
        for (index, request) in (0_u32..).zip(&mut requests.list) {
            let (chain, count) = (index % 4 * 3, (request.prompt / 32).min(index % 3 + 1));
            request.prefix_first = u32::try_from(requests.prefix_ids.len()).expect("small");
            request.prefix_count = count;
            requests.prefix_ids.extend(chain..chain + count);
        }
    }
    requests
}

#[test]
fn closed_spans_and_single_steps_agree_while_memory_is_lent_beside_every_other_option() {
    let (mut borrowed, mut moved, mut cancelled, mut preempted, mut refused, mut retried) = (0, 0, 0, 0, 0, 0);
    for seed in 0..252 {
        let requests = mixed_requests(seed);
        let serve = |spans| mixed(seed, spans).serve(&requests, by("least-memory").as_mut());
        let (closed, mut single) = (serve(Spans::Closed), serve(Spans::Stepwise));
        for (of, other) in single.counts.iter_mut().zip(&closed.counts) {
            of.n_spans = other.n_spans;
        }
        assert_eq!(single.loaned, closed.loaned, "seed {seed}");
        for (index, (of, other)) in single.records.list.iter().zip(&closed.records.list).enumerate() {
            assert_eq!(of, other, "seed {seed}, request {index}: single steps, closed spans");
        }
        assert_eq!(single.counts, closed.counts, "seed {seed}");
        assert!(single == closed, "seed {seed}");
        // Whoever fits is served once, whatever happens to replicas.
        assert_eq!(n_finished(&closed) as u64 + closed.n_refused, requests.len() as u64, "seed {seed}");
        let outputs: u64 = closed.counts.iter().map(|counts| counts.output_tokens).sum();
        let done = requests.list.iter().zip(&closed.records.list).filter(|(_, record)| record.finished().is_some());
        let asked: u64 = done.map(|(request, _)| u64::from(request.output)).sum();
        if closed.changes.n_outages == 0 && closed.n_refused == 0 && closed.loaned.n_evicted == 0 {
            assert!(outputs >= asked, "seed {seed}: {outputs} tokens, {asked} asked for");
        }
        borrowed += closed.loaned.borrowed_blocks;
        moved += closed.loaned.moved_blocks;
        cancelled += closed.loaned.cancelled_blocks;
        preempted += closed.counts.iter().map(|counts| counts.n_preempted).sum::<u64>();
        refused += closed.n_refused;
        retried += closed.changes.n_retried;
    }
    assert!(borrowed > 1000 && moved > 1000 && preempted > 100, "{borrowed} {moved} {preempted}");
    assert!(cancelled > 0 && retried > 0, "{cancelled} {retried} {refused}");
}

#[test]
fn who_borrowed_from_a_lost_replica_is_computed_again() {
    // 30 blocks on two of 20. The lender is lost for a second: the request cannot be held, waits, and is served when it is back.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 470, 100)]);
    let outage = |back_after| Outage {
        group: 0,
        replica: 1,
        at: Time::ZERO + Span::from_seconds(Seconds::new(0.5)),
        notice: Seconds::ZERO,
        back_after,
    };
    let serve = |back_after| {
        let lending = Some(terms(Borrow::WhenShort, false, 20, 1));
        let fleet =
            Fleet { outages: vec![outage(back_after)], ..fleet(&lender("sarathi", 20, Spans::Closed), 2, lending) };
        fleet.serve(&requests, &mut FirstOf)
    };
    let back = serve(Some(Seconds::new(1.0)));
    assert_eq!((n_finished(&back), back.changes.n_retried, back.n_refused), (1, 1, 0));
    // It starts again at 1.5 s: some 50 tokens are left, 10 ms each.
    let end = back.records.list[0].finished().expect("served").as_ns();
    assert!((1_900_000_000..2_300_000_000).contains(&end), "{end}");
    let gone = serve(None);
    assert_eq!((n_finished(&gone), gone.n_refused), (0, 1), "nobody is left who could lend");
}

/// Always the first candidate.
struct FirstOf;

impl Router for FirstOf {
    fn choose(&mut self, _request: u32, view: &View<'_, '_>) -> u32 {
        view.candidates[0]
    }
}

#[test]
fn groups_that_stay_apart_neither_lend_nor_borrow() {
    let engine = lender("sarathi", 20, Spans::Closed);
    let requests = Requests::of(vec![Request::new(Time::ZERO, 470, 10)]);
    let refused = |lends: [bool; 2], borrows: [bool; 2]| {
        let mut terms = terms(Borrow::WhenShort, false, 20, 2);
        for (party, (lends, borrows)) in terms.parties.iter_mut().zip(lends.into_iter().zip(borrows)) {
            party.borrows = borrows;
            party.lent_max = if lends { 20 } else { 0 };
        }
        let groups = vec![Group::new("one", engine.clone(), 1), Group::new("other", engine.clone(), 1)];
        let fleet = Fleet { groups, lending: Some(terms), ..Fleet::default() };
        fleet.serve(&requests, by("round-robin").as_mut()).n_refused
    };
    assert_eq!(refused([true, true], [true, true]), 0);
    assert_eq!(refused([false, true], [true, false]), 0, "the second lends to the first");
    assert_eq!(refused([true, false], [true, false]), 1, "only the first lends, and to nobody");
    assert_eq!(refused([true, true], [false, false]), 1);
}

#[test]
fn decode_replicas_hold_together_what_none_of_them_holds_and_prefill_replicas_wait_for_none_of_them() {
    // A prompt of 25 blocks on a prefill replica of 40 and two decode replicas of 20.
    let group =
        |name: &str, blocks, n, role| Group { role, ..Group::new(name, lender("vllm-v1", blocks, Spans::Closed), n) };
    let requests = Requests::of(vec![Request::new(Time::ZERO, 390, 20)]);
    let serve = |prefill_blocks: u32, lending: Option<Terms>| {
        let groups = vec![group("prefill", prefill_blocks, 1, Role::Prefill), group("decode", 20, 2, Role::Decode)];
        let fleet = Fleet { groups, lending, ..Fleet::default() }.handing_on(5e5);
        (fleet.context_max_tokens(), fleet.serve(&requests, by("round-robin").as_mut()))
    };
    let mut terms = terms(Borrow::WhenShort, false, 40, 2);
    (terms.parties[0].hands_on, terms.parties[1].lent_max) = (true, 20);
    let (context, alone) = serve(40, None);
    assert_eq!((context, alone.n_refused), (320, 1));
    let (context, together) = serve(40, Some(terms.clone()));
    assert_eq!((context, n_finished(&together), together.moved.n), (640, 1, 1));
    assert!(together.loaned.borrowed_blocks >= 5, "25 to 26 blocks, 20 of them at home");
    // A prefill replica that had blocks on a decode replica could wait for itself.
    assert_eq!(serve(20, Some(terms)).1.n_refused, 1);
}
