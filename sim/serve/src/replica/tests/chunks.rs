//! Prompts in chunks: a lone one through a pipeline played chunk by chunk, others beside one that is capped, drafts through stages.

use super::*;
use crate::speculation::Speculation;
use crate::step_cost::chunks::{ChunkLaw, Chunking, Sizes};
use crate::step_cost::lanes::Lanes;

/// A stage takes 2 ms, 10 us per token, and 20 ns for each earlier token and new one.
const LAW: ChunkLaw = ChunkLaw { a: 1e-8, b: 1e-5, c: 2e-3, gamma: 0.0 };

fn chunked(stages: u32, tokens_max: u32, chunking: Chunking) -> Engine {
    let table = StepTable::of_chunks(&LAW, stages, tokens_max).chunked(chunking);
    let engine = engine("vllm-v1", 100_000, Preemption::Recompute, Spans::Closed);
    let limits = Limits { tokens_max, context_max: 1_000_000, block_tokens: 64, ..engine.limits };
    Engine { limits, table, ..engine }
}

const fn cut(tokens_max: u32, sizes: Sizes) -> Chunking {
    Chunking { tokens_max, sizes, block: 64, tokens_min: 64 }
}

/// Seconds until a prompt has left the last of equal stages, its chunks one behind the other.
fn played(sizes: &[u32], stages: u32) -> f64 {
    let mut free = vec![0.0_f64; stages as usize];
    let mut past = 0;
    for &new in sizes {
        let time = LAW.linear(new).get() + LAW.attention(past, new).get();
        let mut ready = 0.0_f64;
        for stage in &mut free {
            *stage = ready.max(*stage) + time;
            ready = *stage;
        }
        past += new;
    }
    free.last().copied().expect("a stage")
}

fn seconds(time: Option<Time>) -> f64 {
    (time.expect("served") - Time::ZERO).to_seconds().get()
}

#[test]
fn a_lone_prompt_passes_its_stages_as_a_pipeline_played_chunk_by_chunk() {
    for stages in [1, 2, 4, 8] {
        for sizes in [Sizes::Equal, Sizes::EqualTime] {
            let engine = chunked(stages, 2048, cut(2048, sizes));
            let prompt = 200_000;
            let expected = played(&engine.table.chunks_of(prompt).expect("cut"), stages);
            let requests = Requests::of(vec![Request::new(Time::ZERO, prompt, 1)]);
            let found = seconds(run(&requests, &engine).records.list[0].first_token());
            let ratio = found / expected;
            assert!((ratio - 1.0).abs() < 1e-6, "{stages} stages, {sizes:?}: {found}, played {expected}");
        }
    }
}

/// A prompt of so many tokens with some output tokens, in chunks of 2048 through so many stages: seconds to its first and to its last token.
fn alone(stages: u32, prompt: u32, output: u32) -> [f64; 2] {
    let mut engine = chunked(stages, 2048, cut(2048, Sizes::Equal));
    engine.table = StepTable::of_chunks(&LAW, stages, 2048);
    let record = run(&Requests::of(vec![Request::new(Time::ZERO, prompt, output)]), &engine).records.list[0];
    [record.first_token(), record.finished()].map(seconds)
}

#[test]
fn a_prompt_fills_the_stages_whatever_its_last_round_holds() {
    for stages in [2, 4, 8] {
        let mut before = 0.0;
        for n_chunks in 1..=2 * stages + 1 {
            for prompt in [2048_u32 * n_chunks - 1, 2048 * n_chunks, 2048 * n_chunks + 1, 2048 * n_chunks + 700] {
                let chunks: Vec<u32> = (0..prompt.div_ceil(2048)).map(|n| 2048.min(prompt - n * 2048)).collect();
                let expected = played(&chunks, stages);
                let [first, last] = alone(stages, prompt, 4);
                assert!(
                    (first / expected - 1.0).abs() < 1e-6,
                    "{stages} stages, {prompt} tokens: {first}, played {expected}"
                );
                assert!(first >= before, "{stages} stages, {prompt} tokens: {first}, and {before} of fewer");
                // Three more tokens pass all stages by themselves.
                let decoded = 3.0 * f64::from(stages) * LAW.linear(1).get();
                assert!(
                    (last - first - decoded).abs() < 1e-8,
                    "{stages} stages, {prompt} tokens: {last} after {first}"
                );
                before = first;
            }
        }
    }
}

#[test]
fn chunks_of_equal_time_keep_stages_busy_and_equal_chunks_do_not() {
    let busy = |sizes| {
        let requests = Requests::of(vec![Request::new(Time::ZERO, 200_000, 1)]);
        let served = run(&requests, &chunked(4, 8192, cut(8192, sizes)));
        let end = served.records.end_ticks();
        served.counts[0].stage_ticks.as_f64() / end.as_f64()
    };
    assert!(busy(Sizes::EqualTime) > 0.97 && busy(Sizes::Equal) < 0.93);
}

#[test]
fn a_cap_leaves_room_for_whoever_comes_behind_a_long_prompt() {
    let requests = Requests::of(vec![Request::new(Time::ZERO, 50_000, 1), Request::new(Time::from_ns(1), 100, 1)]);
    let first_token = |chunking: Option<Chunking>| {
        let mut engine = chunked(1, 1024, cut(1024, Sizes::Equal));
        engine.table = StepTable::of_chunks(&LAW, 1, 1024);
        if let Some(chunking) = chunking {
            engine.table = engine.table.chunked(chunking);
        }
        run(&requests, &engine).records.list.iter().map(|record| seconds(record.first_token())).collect::<Vec<_>>()
    };
    let (whole, capped) = (first_token(None), first_token(Some(cut(512, Sizes::Equal))));
    assert!(whole[1] >= whole[0], "first come, first served: {whole:?}");
    // It is computed in the second iteration, of 512 and 100 tokens.
    assert!(capped[1] < 0.05 && capped[1] < capped[0] / 20.0, "{capped:?}");
}

#[test]
fn the_last_stage_drafts_for_every_micro_batch() {
    // Four stages; a batch takes 1 ms and 10 us per token through all of them, a draft 0.1 ms on the last one. With three drafts a
    // sequence has four tokens, and each of `n` micro-batches in flight its three drafts.
    let speculation = Speculation { n_drafts: 3, tree: None, acceptance: 1.0, per_draft: Seconds::new(1e-4), seed: 1 };
    let table = StepTable::linear(Seconds::new(1e-3), Seconds::new(1e-5), Seconds::ZERO);
    let lanes = Lanes { stages: 4, ranks: 1 };
    let table = table.in_lanes(lanes, 64).speculating(&speculation);
    let base = engine("vllm-v1", 100_000, Preemption::Recompute, Spans::Closed);
    let engine = Engine { table, ..base };
    for n in [1_u32, 2, 4] {
        let requests = Requests::of((0..n).map(|_| Request::new(Time::ZERO, 1, 4001)).collect());
        let record = run(&requests, &engine).records.list[0];
        let per_token = (seconds(record.finished()) - seconds(record.first_token())) / 4000.0;
        let round = 1e-3 + 4.0 * 1e-5 + f64::from(n) * 3.0 * 1e-4;
        assert!((per_token * 4.0 / round - 1.0).abs() < 5e-3, "{n} sequences: {per_token}, a round of {round}");
    }
}
