//! Rules from outside: written by hand, they equal those of the tables byte for byte; and every wrong answer has its words.

use hw::{Seconds, Span, Time};

use super::*;
use crate::fleet::dynamics::{Concurrency, Outage, Scaling};
use crate::fleet::{Group, Served};
use crate::metrics;
use crate::replica::tests::{self, SWAP, engine};
use crate::replica::{Engine, Preemption, Role};
use crate::request::{Request, Requests};
use crate::router;
use crate::step_cost::StepTable;

fn after(value: f64) -> Time {
    Time::ZERO + Span::from_seconds(Seconds::new(value))
}

fn engine_of(batcher: &str, kv_blocks: u32, preemption: Preemption) -> Engine {
    engine(batcher, kv_blocks, preemption, Spans::Stepwise)
}

/// Random requests; every second seed shares prefixes.
fn requests(n: u32, per_s: f64, seed: u64) -> Requests {
    tests::requests(n, per_s, seed, seed % 2 == 1)
}

fn named(name: &str) -> Box<dyn Router> {
    (router::named(name).expect("listed").make)(0)
}

/// A fleet by the tables' rules, and by somebody's own in place of some of them.
fn both(fleet: &Fleet, requests: &Requests, mut own: Own<'_>) -> (Served, Result<Served, Refusal>) {
    let listed = fleet.serve(requests, named("round-robin").as_mut());
    let mut fleet = fleet.clone();
    own.fit(&mut fleet);
    let served = fleet.serve_by(requests, own.over(Rules::of(named("round-robin").as_mut())));
    (listed, own.refused().map_or(Ok(served), Err))
}

/// Replicas in turn, counted by the names of replicas and not by positions.
fn in_turn() -> Route<'static> {
    let mut next = 0;
    Box::new(move |_, view| {
        let at = next % view.candidates.len();
        next = at + 1;
        Some(view.candidates[at])
    })
}

/// First come, first served: those that decode, then prompts under way, then the queue, within the tokens of an iteration.
fn first_come(reserves_whole: bool) -> Compose<'static> {
    Box::new(move |offer| {
        let mut room = offer.tokens_max - offer.decode_tokens;
        let places = (offer.sequences_max - offer.n_running) as usize;
        let mut chunks = Vec::new();
        for each in offer.prompts.iter().chain(offer.waiting.iter().take(places)) {
            let tokens = each.tokens_max.min(room);
            if room == 0 {
                break;
            }
            chunks.push((each.request, tokens));
            room -= tokens;
        }
        Some(Batch { decodes: true, chunks, reserves_whole })
    })
}

#[test]
fn a_router_by_hand_is_the_one_of_the_table() {
    let group = Group::new("all", engine_of("vllm-v1", 60, Preemption::Recompute), 4);
    let outages = vec![Outage { group: 0, replica: 1, at: after(2.0), notice: Seconds::new(0.5), back_after: None }];
    for outages in [Vec::new(), outages] {
        let fleet = Fleet { outages, ..Fleet::of(group.clone()) };
        let (listed, own) = both(&fleet, &requests(600, 200.0, 3), Own::default().routed(in_turn()));
        assert!(own == Ok(listed));
    }
}

#[test]
fn a_batching_rule_by_hand_is_the_one_of_the_table() {
    for (name, reserves_whole) in [("vllm-v1", false), ("sarathi", true)] {
        let mut n_preempted = 0;
        for (kv_blocks, preemption) in [(1000, Preemption::Recompute), (30, Preemption::Recompute), (30, SWAP)] {
            // Where blocks are short, a prefix that was offered as cached may be gone when its turn comes; the list of the rule is older then.
            let step = if kv_blocks < 1000 { 2 } else { 1 };
            for seed in (0..6).step_by(step) {
                let mut engine = engine_of(name, kv_blocks, preemption);
                // With prefixes vLLM finds again what a preempted sequence has left.
                engine.limits.shares_prefixes &= kv_blocks == 1000 || name != "vllm-v1";
                let fleet = Fleet::of(Group::new("one", engine, 1));
                let requests = requests(400, [20.0, 60.0, 200.0][seed as usize % 3], seed);
                let (listed, own) = both(&fleet, &requests, Own::default().batched(first_come(reserves_whole)));
                n_preempted += listed.counts[0].n_preempted;
                assert!(own == Ok(listed), "{name}, {kv_blocks} blocks, {preemption:?}, seed {seed}");
            }
        }
        assert!(n_preempted > 0, "{name}: memory is short in some of the cases");
    }
}

#[test]
fn prompts_and_outputs_apart_take_own_rules_too() {
    let part = |name: &str, role| Group { role, ..Group::new(name, engine_of("vllm-v1", 80, SWAP), 2) };
    let groups = vec![part("prompts", Role::Prefill), part("outputs", Role::Decode)];
    let fleet = Fleet { groups, ..Fleet::default() }.handing_on(1e5);
    let own = Own::default().batched(first_come(false));
    let (listed, own) = both(&fleet, &requests(500, 80.0, 5), own);
    assert!(own == Ok(listed));
}

#[test]
fn whoever_is_short_first_waits_less_on_average() {
    // One prompt of 64 tokens at most at a time and one output token: a queue with one server. Serving the shortest first lowers the mean
    // wait for every arrival (Phipps, Operations Research 4, 1956).
    let mut engine = engine_of("vllm-v1", 1000, Preemption::Recompute);
    engine.table = StepTable::linear(Seconds::ZERO, Seconds::new(1e-3), Seconds::ZERO);
    let mut requests = requests(2000, 26.0, 4);
    requests.list.iter_mut().for_each(|request| request.output = 1);
    let one = |pick: fn(&Offer) -> Option<&crate::replica::offer::Offered>| -> Compose<'static> {
        Box::new(move |offer| {
            let chunks = pick(offer).map(|one| (one.request, one.tokens_max)).into_iter().collect();
            Some(Batch { decodes: true, chunks, reserves_whole: true })
        })
    };
    let wait = |rule| {
        let fleet = Fleet::of(Group::new("one", engine.clone(), 1));
        let served = both(&fleet, &requests, Own::default().batched(rule)).1.expect("within the limits");
        let waits: Vec<f64> = metrics::latencies(&requests, &served).flatten().map(|found| found.queue_s).collect();
        waits.iter().sum::<f64>() / hw::real(waits.len() as u64)
    };
    let first = wait(one(|offer| offer.waiting.first()));
    let shortest = wait(one(|offer| offer.waiting.iter().min_by_key(|one| one.tokens_max)));
    assert!(shortest < 0.8 * first, "{shortest} s against {first} s");
}

fn scaled(rule: Rule) -> Fleet {
    let scaling = Scaling { replicas_min: 1, replicas_first: 2, start_up: Seconds::new(3.0), rule };
    let group = Group::new("all", engine_of("vllm-v1", 200, Preemption::Recompute), 6);
    Fleet::of(Group { scaling: Some(scaling), ..group })
}

#[test]
fn a_scaler_by_hand_is_the_autoscaler() {
    // More at once; fewer when none of the last four wishes wanted more.
    let interval = Seconds::new(1.5);
    let fleet = scaled(Rule::Concurrency(Concurrency { target: 0.5, interval, window: 4 }));
    let mut wishes = Vec::new();
    let rule: Scale<'_> = Box::new(move |seen| {
        let [group] = seen.groups[..] else { return None };
        wishes.push(((group.in_system / 0.5).ceil() as u32).clamp(1, 6));
        let last = wishes.iter().rev().take(4).max().copied().unwrap_or(1);
        let wish = *wishes.last().expect("it was pushed");
        Some(vec![if wish > group.current { wish } else { last.min(group.current) }])
    });
    let requests = Requests::of((0..900).map(|n| Request::new(after(ramp(n)), 30, 30)).collect());
    let (listed, own) = both(&fleet, &requests, Own::default().scaled(rule, None));
    assert!(listed.changes.n_started > 2 && listed.changes.n_stopped > 2, "{:?}", listed.changes);
    assert!(own == Ok(listed));
}

/// A rush in the middle.
fn ramp(n: u32) -> f64 {
    let n = f64::from(n);
    if n < 100.0 {
        n / 5.0
    } else if n < 700.0 {
        20.0 + (n - 100.0) / 100.0
    } else {
        26.0 + (n - 700.0) / 5.0
    }
}

#[test]
fn a_scaler_by_hand_is_a_timetable() {
    let table = vec![(after(5.0), 4), (after(10.0), 1), (after(20.0), 6)];
    let fleet = scaled(Rule::Timetable(table.clone()));
    let rule: Scale<'_> = Box::new(move |seen| {
        let now = table.iter().rev().find(|(from, _)| *from <= seen.at);
        Some(vec![now.map_or(2, |(_, replicas)| *replicas)])
    });
    let requests = Requests::of((0..900).map(|n| Request::new(after(ramp(n)), 30, 30)).collect());
    let (listed, own) = both(&fleet, &requests, Own::default().scaled(rule, Some(Seconds::new(5.0))));
    assert!(own == Ok(listed));
}

fn refused(own: Own<'_>) -> String {
    let interval = Seconds::new(1.0);
    let fleet = scaled(Rule::Planned { interval });
    let found = both(&fleet, &requests(50, 20.0, 2), own).1;
    found.expect_err("it is wrong").to_string()
}

#[test]
fn what_is_wrong_is_refused_in_words() {
    let route = |answer: Option<u32>| refused(Own::default().routed(Box::new(move |_, _| answer)));
    assert_eq!(route(Some(9)), "the router sends request 0 to replica 9, and the fleet has 0 to 5");
    let off = route(Some(4));
    assert_eq!(off, "the router sends request 0 to replica 4, which takes no such request now; [0, 1] do");
    assert_eq!(route(None), "the router gave no answer");
    let scale = |answer: Vec<u32>| refused(Own::default().scaled(Box::new(move |_| Some(answer.clone())), None));
    assert_eq!(scale(vec![7]), "the scaler wants 7 replicas of group `all`, which has 1 to 6");
    assert_eq!(scale(vec![0]), "the scaler wants 0 replicas of group `all`, which has 1 to 6");
    assert_eq!(scale(vec![1, 1]), "the scaler answers for 2 groups, and the fleet has 1");
    let batch = |answer: Batch| refused(Own::default().batched(Box::new(move |_| Some(answer.clone()))));
    let told =
        |decodes, chunks: &[(u32, u32)]| batch(Batch { decodes, chunks: chunks.to_vec(), reserves_whole: false });
    let says = |told: String, words: &str| assert!(told.ends_with(words), "{told}");
    says(told(true, &[(40, 1)]), "request 40 neither waits nor is under way here");
    says(told(true, &[(0, 1), (0, 1)]), "request 0 is in the batch twice");
    let prompt = requests(50, 20.0, 2).list[0].prompt;
    let range = format!("tokens of request 0 are asked for; an iteration computes 1 to {prompt} of it now");
    says(told(true, &[(0, 100)]), &format!("100 {range}"));
    says(told(true, &[(0, 0)]), &format!("0 {range}"));
    says(told(true, &[]), "wake the replica: 0 sequences run and 1 requests wait");
}

#[test]
fn a_batch_beyond_the_limits_is_refused() {
    let of = |request, tokens_max| crate::replica::offer::Offered {
        request,
        arrival: Time::ZERO,
        target: tokens_max,
        computed: 0,
        tokens_max,
        generated: 0,
        priority: 0,
    };
    let offer = Offer {
        at: Time::ZERO,
        n_decode: 10,
        decode_tokens: 10,
        tokens_max: 64,
        sequences_max: 12,
        n_running: 11,
        free_blocks: 9,
        block_tokens: 8,
        prompts: vec![of(3, 30)],
        waiting: vec![of(5, 40), of(7, 40)],
        must_go_on: true,
    };
    let check = |decodes, chunks: &[(u32, u32)]| {
        offer.check(&Batch { decodes, chunks: chunks.to_vec(), reserves_whole: false })
    };
    // 10 + 30 + 24 are 64.
    assert_eq!(check(true, &[(3, 30), (5, 24)]), Ok(()));
    assert_eq!(check(true, &[(3, 30), (5, 25)]), Err(WrongBatch::Tokens { tokens: 65, most: 64 }));
    assert_eq!(check(false, &[(3, 30), (5, 34)]), Ok(()));
    assert_eq!(check(false, &[(5, 1), (7, 1)]), Err(WrongBatch::Sequences { sequences: 13, most: 12 }));
    assert_eq!(check(false, &[]), Err(WrongBatch::Empty { running: 11, waiting: 2 }));
}

#[test]
fn fleets_that_an_own_rule_does_not_know_are_refused() {
    let mut fleet = Fleet::of(Group::new("all", engine_of("trtllm", 200, Preemption::Recompute), 2));
    let mut own = Own::default().scaled(Box::new(|_| None), None);
    own.fit(&mut fleet);
    assert_eq!(own.refused(), Some(Refusal::NothingScales));
    fleet.groups[0].engine.limits.gather = Some(crate::replica::Gather::Tokens { iterations: 3, tokens: 60 });
    let mut own = Own::default().batched(first_come(true));
    own.fit(&mut fleet);
    assert_eq!(own.refused(), Some(Refusal::NotBatched("prompts that wait for others")));
    let mut fleet = scaled(Rule::Timetable(Vec::new()));
    let mut own = Own::default().scaled(Box::new(|_| None), None);
    own.fit(&mut fleet);
    assert_eq!(own.refused(), Some(Refusal::NoInterval));
}
