//! Rounds of a pipeline: closed forms, a pipeline played stage by stage, and an engine of micro-batches that come and go one by one.

use super::*;
use crate::step_cost::host::{EngineLoop, Host};
use crate::step_cost::lanes::Lanes;

const STEP_S: f64 = 1e-3;
const TOKEN_S: f64 = 1e-5;

/// Iterations of `1 ms + 10 us` per token in lanes of 64 tokens, room for everybody.
fn laned(lanes: Lanes) -> Engine {
    with_token_s(lanes, TOKEN_S)
}

fn with_token_s(lanes: Lanes, token_s: f64) -> Engine {
    let table = StepTable::linear(Seconds::new(STEP_S), Seconds::new(token_s), Seconds::ZERO).in_lanes(lanes, 64);
    Engine { table, ..engine("vllm-v1", 100_000, Preemption::Recompute, Spans::Closed) }
}

const fn stages(stages: u32) -> Lanes {
    Lanes { stages, ranks: 1 }
}

fn seconds(time: Option<Time>) -> f64 {
    (time.expect("served") - Time::ZERO).to_seconds().get()
}

/// End of every micro-batch of every round, where batch `i` takes `times[i]` over equal stages and goes around again when it is out.
fn played(n_stages: u64, times: &[u64], n_rounds: usize) -> Vec<Vec<u64>> {
    let mut free = vec![0; usize::try_from(n_stages).expect("few")];
    let mut back = vec![0; times.len()];
    let round = |_| {
        let batch = |(&time, back): (&u64, &mut u64)| {
            for free in &mut free {
                *free = (*free).max(*back) + time / n_stages;
                *back = *free;
            }
            *back
        };
        times.iter().zip(&mut back).map(batch).collect()
    };
    (0..n_rounds).map(round).collect()
}

#[test]
fn a_round_takes_as_long_as_its_largest_micro_batch() {
    let mut stream = random::stream(4, "micro-batches");
    for n_stages in [2_u64, 3, 4, 8] {
        for _ in 0..20 {
            let times: Vec<u64> = (0..n_stages).map(|_| n_stages * (1 + stream.below(20))).collect();
            let rounds = played(n_stages, &times, 2000);
            // Between late rounds, when the pipeline has filled.
            let period = (rounds[1999][0] - rounds[1899][0]) / 100;
            assert_eq!(period, *times.iter().max().expect("some"), "{n_stages} stages, {times:?}");
        }
    }
}

#[test]
fn a_lone_prompt_passes_in_chunks_and_then_token_by_token() {
    let n_stages = 4_u32;
    for n_chunks in [1_u32, 2, 4, 5, 9] {
        let requests = Requests::of(vec![Request::new(Time::ZERO, 64 * n_chunks, 11)]);
        let served = run(&requests, &laned(stages(n_stages)));
        let record = served.records.list[0];
        let chunk_s = STEP_S + 64.0 * TOKEN_S;
        // The first chunk takes its whole time, each further one follows a stage later.
        let first = chunk_s * f64::from(n_chunks + n_stages - 1) / f64::from(n_stages);
        assert!((seconds(record.first_token()) - first).abs() < 1e-8, "{n_chunks} chunks");
        let last = first + 10.0 * (STEP_S + TOKEN_S);
        assert!((seconds(record.finished()) - last).abs() < 1e-8, "{n_chunks} chunks");
    }
}

#[test]
fn a_full_pipeline_serves_as_many_batches_as_it_has_stages() {
    // 12 sequences of 1 + 1000 tokens: in batches of 12, 6, 3; each gives a token per passage of its own batch.
    let list = (0..12).map(|_| Request::new(Time::ZERO, 1, 1001)).collect();
    let requests = Requests::of(list);
    for (n_stages, batch) in [(1, 12.0), (2, 6.0), (4, 3.0)] {
        let served = run(&requests, &laned(stages(n_stages)));
        let record = served.records.list[11];
        let per_token = (seconds(record.finished()) - seconds(record.first_token())) / 1000.0;
        let expected = STEP_S + batch * TOKEN_S;
        assert!((per_token / expected - 1.0).abs() < 2e-3, "{n_stages} stages: {per_token}, expected {expected}");
    }
}

#[test]
fn the_host_serves_one_micro_batch_at_a_time() {
    // Micro-batches of 3 in 1.03 ms and 1 ms of host each: 4 ms of host per round are more than the 2.03 ms of a passage.
    let requests = Requests::of((0..12).map(|_| Request::new(Time::ZERO, 1, 1001)).collect());
    for (host_s, expected) in [(1e-3, 4e-3), (1e-4, 1.13e-3)] {
        let mut engine = laned(stages(4));
        let host = Host::new(EngineLoop::Serial, Seconds::new(host_s), Seconds::ZERO, Seconds::ZERO);
        engine.table = engine.table.hosted(host);
        let record = run(&requests, &engine).records.list[11];
        let per_token = (seconds(record.finished()) - seconds(record.first_token())) / 1000.0;
        assert!((per_token / expected - 1.0).abs() < 5e-3, "{per_token}, expected {expected}");
    }
}

#[test]
fn closed_spans_give_what_single_steps_give_in_lanes() {
    for lanes in [stages(2), stages(4), Lanes { stages: 1, ranks: 2 }, Lanes { stages: 2, ranks: 2 }] {
        let tight = |longer| [(40 * longer, Preemption::Recompute, longer), (40 * longer, SWAP, longer)];
        let roomy = [1, 4].map(|longer| (1000, Preemption::Recompute, longer));
        for (kv_blocks, preemption, longer) in [roomy, tight(1), tight(4)].concat() {
            // Prompts of one chunk, or of several that are still in the stages when sequences decode.
            let mut requests = requests(400, 150.0, 8, false);
            requests.list.iter_mut().for_each(|request| request.prompt *= longer);
            let of = |spans| {
                let mut engine = engine("vllm-v1", kv_blocks, preemption, spans);
                engine.table = engine.table.in_lanes(lanes, 64);
                run(&requests, &engine)
            };
            let (closed, mut single) = (of(Spans::Closed), of(Spans::Stepwise));
            single.counts[0].n_spans = closed.counts[0].n_spans;
            assert!(single == closed, "{lanes:?}, {kv_blocks} blocks, {preemption:?}");
            assert_eq!(closed.counts[0].output_tokens, requests.tokens().1);
        }
    }
}

/// Micro-batches one by one: each enters when the one before has left the first stage, takes its own sequences and what waits, and
/// its sequences come back with it. A place comes free when its last token is out. Returns mean seconds to the first token and per further token.
fn one_by_one(requests: &Requests, (n_stages, places): (usize, usize), token_s: f64) -> [f64; 2] {
    let tokens_max = 64;
    let arrival = |index: usize| requests.list[index].arrival.as_ns() as f64 / 1e9;
    let n = requests.len();
    let (mut first, mut last) = (vec![f64::NAN; n], vec![f64::NAN; n]);
    // Sequences of each lane with the tokens they still want, and when the lane is back.
    let mut lanes: Vec<(f64, Vec<(usize, u32)>)> = vec![(0.0, Vec::new()); n_stages];
    let mut free = vec![0.0_f64; n_stages];
    let (mut waiting, mut next): (VecDeque<(usize, u32)>, usize) = (VecDeque::new(), 0);
    // Prompts that have begun, and when places came free.
    let (mut begun, mut exits): (usize, Vec<f64>) = (0, Vec::new());
    loop {
        // A lane with sequences goes when it is back; an empty one when somebody waits for whom there is a place.
        let arrives = if next < n { arrival(next) } else { f64::INFINITY };
        let has_begun = waiting.front().is_some_and(|head| head.0 < begun);
        let place_at = if has_begun { 0.0 } else { free_at(&mut exits, (begun + 1).saturating_sub(places)) };
        let waits_from = if waiting.is_empty() { arrives } else { 0.0_f64 }.max(place_at);
        let ready = |lane: &(f64, Vec<(usize, u32)>)| if lane.1.is_empty() { lane.0.max(waits_from) } else { lane.0 };
        let chosen = (0..n_stages).min_by(|&a, &b| ready(&lanes[a]).total_cmp(&ready(&lanes[b]))).expect("a lane");
        let now = ready(&lanes[chosen]).max(free[0]);
        if now.is_infinite() {
            break;
        }
        while next < n && arrival(next) <= now {
            waiting.push_back((next, requests.list[next].prompt));
            next += 1;
        }
        let decoding = u32::try_from(lanes[chosen].1.len()).expect("few");
        let mut left = tokens_max - decoding;
        let mut done = Vec::new();
        while let Some(head) = waiting.front_mut() {
            if head.0 >= begun && free_at(&mut exits, (begun + 1).saturating_sub(places)) > now {
                break;
            }
            if left > 0 {
                begun = begun.max(head.0 + 1);
            }
            let tokens = head.1.min(left);
            (head.1, left) = (head.1 - tokens, left - tokens);
            if head.1 > 0 {
                break;
            }
            done.push(head.0);
            waiting.pop_front();
        }
        let stage_s = (STEP_S + f64::from(tokens_max - left) * token_s) / n_stages as f64;
        let mut at = now;
        for free in &mut free {
            *free = free.max(at) + stage_s;
            at = *free;
        }
        let lane = &mut lanes[chosen];
        lane.0 = at;
        exits.extend(lane.1.iter().filter(|(_, left)| *left == 1).map(|_| at));
        exits.extend(done.iter().filter(|index| requests.list[**index].output == 1).map(|_| at));
        lane.1.iter_mut().for_each(|(index, left)| (last[*index], *left) = (at, *left - 1));
        for index in done {
            (first[index], last[index]) = (at, at);
            lane.1.push((index, requests.list[index].output - 1));
        }
        lane.1.retain(|(_, left)| *left > 0);
    }
    let mean = |of: &dyn Fn(usize) -> f64| (0..n).map(of).sum::<f64>() / n as f64;
    let outputs = |index: usize| f64::from(requests.list[index].output.max(2) - 1);
    [mean(&|index| first[index] - arrival(index)), mean(&|index| (last[index] - first[index]) / outputs(index))]
}

/// When so many places have come free; never where nobody knows when.
fn free_at(exits: &mut [f64], n: usize) -> f64 {
    exits.sort_by(f64::total_cmp);
    if n == 0 { 0.0 } else { exits.get(n - 1).copied().unwrap_or(f64::INFINITY) }
}

/// Mean time to the first token and per further token over those of micro-batches one by one.
fn beside_one_by_one(requests: &Requests, (n_stages, places): (u32, u32), token_s: f64) -> [f64; 2] {
    let mut engine = with_token_s(stages(n_stages), token_s);
    engine.limits.sequences_max = places;
    let served = run(requests, &engine);
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let records = || requests.list.iter().zip(&served.records.list);
    let ttft = mean(records().map(|(r, at)| seconds(at.first_token()) - r.arrival.as_ns() as f64 / 1e9).collect());
    let tpot = |(r, at): (&Request, &crate::records::Record)| {
        (seconds(at.finished()) - seconds(at.first_token())) / f64::from(r.output.max(2) - 1)
    };
    let tpot = mean(records().map(tpot).collect());
    let [first, per_token] = one_by_one(requests, (n_stages as usize, places as usize), token_s);
    [ttft / first, tpot / per_token]
}

#[test]
fn rounds_come_near_micro_batches_that_come_and_go_one_by_one() {
    // Prompts that cost as much as a few tokens, and prompts that cost as much as ten.
    let loads = [(TOKEN_S, 100.0), (TOKEN_S, 400.0), (1e-4, 50.0), (1e-4, 150.0), (1e-4, 250.0)];
    for (n_stages, (token_s, per_s)) in [2, 4].into_iter().flat_map(|n| loads.map(|load| (n, load))) {
        let [ttft, tpot] = beside_one_by_one(&requests(3000, per_s, 17, false), (n_stages, 64), token_s);
        println!("{n_stages} stages, {per_s}/s: TTFT {ttft}, TPOT {tpot}");
        assert!((-0.01..0.15).contains(&(tpot - 1.0)), "{n_stages} stages, {per_s}/s: TPOT {tpot}");
        assert!((-0.05..0.25).contains(&(ttft - 1.0)), "{n_stages} stages, {per_s}/s: TTFT {ttft}");
    }
}

#[test]
fn prompts_of_many_chunks_come_near_micro_batches_one_by_one() {
    // Up to 16 chunks each, beside sequences that decode.
    for (n_stages, per_s) in [(2, 20.0), (2, 60.0), (4, 20.0), (4, 60.0), (4, 120.0), (8, 60.0), (8, 200.0)] {
        let mut requests = requests(2000, per_s, 5, false);
        requests.list.iter_mut().for_each(|request| request.prompt *= 17);
        let [ttft, tpot] = beside_one_by_one(&requests, (n_stages, 64), TOKEN_S);
        println!("{n_stages} stages, {per_s}/s: TTFT {ttft}, TPOT {tpot}");
        assert!((-0.05..0.05).contains(&(tpot - 1.0)), "{n_stages} stages, {per_s}/s: TPOT {tpot}");
        assert!((-0.01..0.1).contains(&(ttft - 1.0)), "{n_stages} stages, {per_s}/s: TTFT {ttft}");
    }
}

#[test]
fn a_place_comes_free_when_its_last_token_has_left_the_stages() {
    // A few places, for which requests wait; outputs of a token or two, whose places change hands in each round, and longer ones.
    for (n_stages, places, output_max, per_s) in [
        (2, 2, 1, 600.0),
        (2, 4, 2, 900.0),
        (4, 2, 1, 600.0),
        (4, 4, 1, 1200.0),
        (4, 4, 2, 900.0),
        (4, 8, 2, 1500.0),
        (8, 8, 1, 2000.0),
        (4, 4, 40, 100.0),
        (4, 8, 40, 200.0),
    ] {
        let mut requests = requests(3000, per_s, 23, false);
        requests.list.iter_mut().for_each(|request| request.output = 1 + request.output % output_max);
        let [ttft, tpot] = beside_one_by_one(&requests, (n_stages, places), TOKEN_S);
        println!("{n_stages} stages, {places} places, up to {output_max} tokens, {per_s}/s: TTFT {ttft}, TPOT {tpot}");
        assert!((-0.01..0.35).contains(&(ttft - 1.0)), "{n_stages} stages, {places} places, {per_s}/s: TTFT {ttft}");
        // Answers of a single token have no time between tokens.
        let has_none = output_max == 1;
        assert!(has_none || (-0.05..0.15).contains(&(tpot - 1.0)), "{n_stages} stages, {places} places: TPOT {tpot}");
    }
}
