//! A borrower and its lender against a brute-force engine that keeps every sequence by itself and shares only the table of iteration
//! times with the fleet. The loop of instances that shared memory before fleets did gave the same moments, to the tick.

use std::collections::VecDeque;

use hw::{Tick, Time};

use super::lending::{FirstApart, by, fleet, lender, moments, terms, trace};
use super::*;
use crate::kv::lending::{Borrow, Exchange};
use crate::replica::Spans;
use crate::request::Request;
use crate::step_cost::{StepLoad, StepTable};

/// Blocks of a replica, and tokens of an iteration.
const HOME: u32 = 60;
const TOKENS: u32 = 512;

fn decode(table: &StepTable, n_decode: u32, context: u64) -> Tick {
    table.step(&StepLoad { n_decode, context, n_sampled: n_decode, ..StepLoad::default() }, std::iter::empty())
}

/// A request that comes first: its home is full, and what does not fit lies on the lender. Returns when its iterations begin with the keys
/// that they read there, its first token and its last one.
fn borrower(request: &Request, table: &StepTable, exchange: &Exchange) -> (Vec<(Tick, u64)>, Tick, Tick) {
    let (mut now, mut left, mut reads) = (Tick::ZERO, request.prompt, Vec::new());
    while left > 0 {
        let n = left.min(TOKENS);
        left -= n;
        let load = StepLoad { n_chunk_tokens: n, n_chunks: 1, n_sampled: u32::from(left == 0), ..StepLoad::default() };
        now += table.step(&load, std::iter::empty());
    }
    let first = now;
    for generated in 1..request.output {
        let tokens = request.prompt + generated;
        let there = u64::from(tokens.div_ceil(16) - HOME) * 16;
        reads.push((now, there));
        let own = u64::from(tokens) - there;
        let waits = (Tick::from_seconds(exchange.time(1)) + table.rate(1) * there).saturating_sub(table.rate(1) * own);
        now += decode(table, 1, own) + waits;
    }
    (reads, first, now)
}

/// Small requests in order of arrival on the lender, whose iterations are longer by the keys that were read since the last one began. Returns
/// their first and last tokens.
fn lender_by_hand(requests: &[Request], table: &StepTable, reads: &[(Tick, u64)]) -> Vec<(Tick, Tick)> {
    let mut moments = vec![(Tick::ZERO, Tick::ZERO); requests.len()];
    let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
    // Request and its output tokens so far.
    let mut running: Vec<(usize, u32)> = Vec::new();
    let arrival = |index: usize| Tick::from(requests[index].arrival);
    let (mut now, mut before) = (Tick::ZERO, None);
    loop {
        if running.is_empty() {
            let Some(&next) = waiting.front() else { return moments };
            // Nothing was under way when it came, so nothing is owed.
            if arrival(next) > now {
                (now, before) = (arrival(next), None);
            }
        }
        let read =
            |from: Tick| reads.iter().filter(|(at, _)| (from..now).contains(at)).map(|(_, keys)| keys).sum::<u64>();
        let owed = table.rate(1) * before.map_or(0, read);
        let n_decode = u32::try_from(running.len()).expect("few");
        let context = running.iter().map(|(of, done)| u64::from(requests[*of].prompt + done)).sum();
        let mut load = StepLoad { n_decode, context, n_sampled: n_decode, ..StepLoad::default() };
        while let Some(next) = waiting.front().copied().filter(|next| arrival(*next) <= now) {
            waiting.pop_front();
            running.push((next, 0));
            (load.n_chunk_tokens, load.n_chunks) = (load.n_chunk_tokens + requests[next].prompt, load.n_chunks + 1);
            load.n_sampled += 1;
        }
        before = Some(now);
        now += table.step(&load, std::iter::empty()) + owed;
        for (of, done) in &mut running {
            *done += 1;
            if *done == 1 {
                moments[*of].0 = now;
            }
            moments[*of].1 = now;
        }
        running.retain(|(of, done)| *done < requests[*of].output);
    }
}

#[test]
fn a_lender_beside_its_own_requests_is_slower_by_the_keys_that_another_reads_and_by_no_more() {
    // A request of 63 to 86 blocks on two replicas of 60: the rest lies on the other one, which serves small requests meanwhile.
    for seed in 0..8 {
        let mut requests = trace(seed, 14, [(1, 16), (1, 16)], 5.0);
        requests.list[0] = Request::new(Time::ZERO, 1000 + 16 * u32::try_from(seed).expect("small"), 300);
        let (engine, terms) = (lender("sarathi", HOME, Spans::Closed), terms(Borrow::WhenShort, false, HOME, 1));
        let (reads, first, last) = borrower(&requests.list[0], &engine.table, &terms.parties[0].exchange);
        let mut expected = vec![(first, last)];
        expected.extend(lender_by_hand(&requests.list[1..], &engine.table, &reads));
        let served = fleet(&engine, 2, Some(terms)).serve(&requests, &mut FirstApart);
        let expected: Vec<_> =
            expected.into_iter().map(|(first, last)| (Some(first.time()), Some(last.time()))).collect();
        assert_eq!(moments(&served), expected, "seed {seed}");
        assert!(reads.iter().any(|(_, keys)| *keys > 300), "the case is about keys elsewhere");
    }
}

#[test]
fn outputs_of_prompts_from_elsewhere_are_the_decodes_of_what_was_computed_here() {
    // One request at a time: n outputs are n iterations over prompt, prompt + 1, … keys.
    let engine = lender("vllm-v1", 1000, Spans::Closed);
    let list = vec![Request::new(Time::ZERO, 100, 5), Request::new(Time::from_ns(1_000_000_000), 33, 1)];
    let requests = Requests::of(list);
    let mut fleet = fleet(&engine, 1, None);
    fleet.groups[0].role = Role::Outputs;
    let served = fleet.serve(&requests, by("round-robin").as_mut());
    for (request, record) in requests.list.iter().zip(&served.records.list) {
        let mut now = Tick::from(request.arrival);
        let first = now + decode(&engine.table, 1, u64::from(request.prompt));
        for generated in 0..request.output {
            now += decode(&engine.table, 1, u64::from(request.prompt + generated));
        }
        assert_eq!((record.first_token(), record.finished()), (Some(first.time()), Some(now.time())));
    }
    assert_eq!(served.counts[0].prefill_tokens, 0);
}
