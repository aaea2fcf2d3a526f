//! Times between tokens against runs that know nothing of them: no engine sees how long an answer will be, so the k-th token comes when the
//! request would end if it had k.

use super::*;
use crate::fleet::{Fleet, Group, Keeps};
use crate::frontend::Frontend;
use crate::records::Records;
use crate::speculation::Speculation;
use crate::step_cost::lanes::Lanes;
use crate::token_gaps::Gaps;

/// When every token of a request comes, by as many runs in single steps.
fn tokens(requests: &Requests, request: usize, engine: &Engine) -> Vec<Tick> {
    let with_output = |output: u32| {
        let mut shorter = requests.clone();
        shorter.list[request].output = output;
        run(&shorter, engine).records.list[request].finished().expect("served")
    };
    (1..=requests.list[request].output).map(|k| Tick::from(with_output(k))).collect()
}

/// A fleet of replicas that keeps times between tokens.
fn keeping(engine: Engine, n: u32) -> Fleet {
    Fleet { keeps: Keeps::Tokens { samples: 50 }, ..Fleet::of(Group::new("all", engine, n)) }
}

fn served(fleet: &Fleet, requests: &Requests) -> Served {
    fleet.serve(requests, (router::named("round-robin").expect("listed").make)(0).as_mut())
}

/// Nanoseconds are what records know.
fn near(found: Option<Gaps>, expected: Option<Gaps>) -> bool {
    let pairs = |(found, expected): (Gaps, Gaps)| found.seconds().into_iter().zip(expected.seconds());
    let is_near = |both| pairs(both).all(|(found, expected)| (found - expected).abs() < 3e-9);
    found.is_some() == expected.is_some() && found.zip(expected).is_none_or(is_near)
}

#[test]
fn gaps_of_spans_are_those_of_runs_that_end_at_every_token() {
    let drafts = Speculation { n_drafts: 3, tree: None, acceptance: 0.6, per_draft: Seconds::ZERO, seed: 1 };
    for (batcher, kv_blocks, preemption, drafted, stream_us) in [
        ("vllm-v1", 1000, Preemption::Recompute, false, 0.0),
        ("vllm-v1", 16, Preemption::Recompute, false, 0.0),
        ("vllm-v1", 16, SWAP, false, 0.0),
        ("sglang", 1000, Preemption::Recompute, false, 0.0),
        ("vllm-v1", 1000, Preemption::Recompute, true, 0.0),
        ("vllm-v1", 16, Preemption::Recompute, false, 150.0),
        ("sglang", 1000, Preemption::Recompute, false, 400.0),
        ("vllm-v1", 1000, Preemption::Recompute, true, 150.0),
    ] {
        let requests = requests(14, 2000.0, 3, false);
        let engine = |spans| {
            let mut engine = engine(batcher, kv_blocks, preemption, spans);
            engine.limits.frontend = Frontend::new(stream_us, [1, 1]);
            if drafted {
                engine.table = engine.table.speculating(&drafts);
            }
            engine
        };
        let found = served(&keeping(engine(Spans::Closed), 1), &requests);
        assert!(kv_blocks > 100 || found.counts[0].n_preempted > 0, "the case is about preemptions");
        for request in 0..requests.len() {
            let expected = Gaps::of(&tokens(&requests, request, &engine(Spans::Stepwise)));
            let gaps = found.token_gaps[request];
            assert!(near(gaps, expected), "{batcher} {kv_blocks} {preemption:?}, {request}: {gaps:?}, {expected:?}");
        }
    }
}

#[test]
fn gaps_behind_chunks_in_a_pipeline_are_those_of_runs_that_end_at_every_token() {
    let mut requests = requests(14, 400.0, 3, false);
    requests.list.iter_mut().for_each(|request| request.prompt *= 9);
    let engine = |spans| {
        let engine = engine("vllm-v1", 1000, Preemption::Recompute, spans);
        Engine { table: engine.table.in_lanes(Lanes { stages: 4, ranks: 1 }, 64), ..engine }
    };
    let found = served(&keeping(engine(Spans::Closed), 1), &requests);
    for request in 0..requests.len() {
        let expected = Gaps::of(&tokens(&requests, request, &engine(Spans::Stepwise)));
        assert!(near(found.token_gaps[request], expected), "{request}: {:?}, {expected:?}", found.token_gaps[request]);
    }
}

#[test]
fn a_lone_answer_slows_down_by_its_keys() {
    // 40 tokens of prompt; the k-th iteration reads 40 + k keys. 1 ms, 11 us a token and 0.33 us a key: the longest gap is the last.
    let requests = Requests::of(vec![Request::new(Time::ZERO, 40, 11)]);
    let found = served(&keeping(engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed), 1), &requests);
    let gap_s = |k: f64| 1e-3 + 1.1e-5 + 3.3e-7 * (40.0 + k);
    let [p50, p90, _, most] = found.token_gaps[0].expect("eleven tokens").seconds();
    assert!((p50 - gap_s(5.5)).abs() < 1e-8 && (p90 - gap_s(9.1)).abs() < 1e-8, "{p50} {p90}");
    assert!((most - gap_s(10.0)).abs() < 1e-8, "{most}");
}

#[test]
fn gaps_are_kept_in_every_way_of_serving_and_only_where_they_are_asked() {
    let all = requests(300, 400.0, 5, true);
    let engine = |spans| engine("vllm-v1", 40, Preemption::Recompute, spans);
    let [closed, mut single] = [Spans::Closed, Spans::Stepwise].map(|spans| served(&keeping(engine(spans), 3), &all));
    single.counts.iter_mut().zip(&closed.counts).for_each(|(single, closed)| single.n_spans = closed.n_spans);
    assert!(single == closed, "spans are single steps");
    for (at, request) in all.list.iter().enumerate() {
        assert_eq!(closed.token_gaps[at].is_some(), request.output > 1, "request {at}");
    }
    let mean = |records: &Records, at: usize| {
        let record = &records.list[at];
        (record.finished().expect("served") - record.first_token().expect("served")).to_seconds().get()
    };
    // The longest is no shorter than the mean, and the median no longer than all together.
    for (at, gaps) in closed.token_gaps.iter().enumerate().filter_map(|(at, gaps)| Some((at, (*gaps)?))) {
        let whole = mean(&closed.records, at);
        let [p50, .., most] = gaps.seconds();
        assert!(most >= whole / f64::from(all.list[at].output - 1) - 1e-9 && p50 <= whole + 1e-9);
    }
    let plain = served(&Fleet { keeps: Keeps::Records, ..keeping(engine(Spans::Closed), 3) }, &all);
    assert!(plain.token_gaps.is_empty() && plain.records == closed.records);
}
