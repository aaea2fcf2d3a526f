//! Ranks of data-parallel attention: each has tokens of its own in an iteration.

use proptest::prelude::*;

use super::*;
use crate::records::Records;
use crate::step_cost::ReplicaConfig;
use crate::step_cost::lanes::Lanes;
use engine::cost::roofline::Roofline;
use engine::play::Case;

/// Plays a replica, and shows it after every iteration has begun.
fn play(engine: &Engine, requests: &Requests, mut seen: impl FnMut(&Replica<'_>)) -> Records {
    let (mut replica, mut records) = (Replica::new(engine, requests), Records::new(requests));
    let mut arrivals = (0_u32..).zip(&requests.list).peekable();
    let mut end = Tick::NEVER;
    loop {
        let arrival = arrivals.peek().map_or(Tick::NEVER, |(_, request)| Tick::from(request.arrival));
        if end == Tick::NEVER && arrival == Tick::NEVER {
            return records;
        }
        if end < arrival {
            end = replica.advance(&mut records).unwrap_or(Tick::NEVER);
        } else if let Some((id, _)) = arrivals.next() {
            end = replica.enqueue(id, arrival, &mut records).unwrap_or(end);
        }
        seen(&replica);
    }
}

/// Tokens of every rank in the iteration under way, added up chunk by chunk.
fn on_ranks(replica: &Replica<'_>, n: u32) -> Vec<u32> {
    let composed = &replica.composed;
    let of = |rank: u32| composed.chunks.iter().zip(&composed.on_rank).filter(move |(_, on)| **on == rank);
    (0..n).map(|rank| of(rank).map(|((_, tokens), _)| tokens).sum()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_rank_has_more_tokens_than_an_iteration_has(
        name in prop::sample::select(vec!["vllm-v1", "sarathi", "sglang", "trtllm", "vllm-v0", "one-prompt"]),
        (stages, ranks) in (1_u32..3, 1_u32..6),
        (per_s, seed, kv_blocks) in (50.0..3000.0, 0_u64..1000, prop::sample::select(vec![60_u32, 200, 10_000])),
    ) {
        let requests = requests(150, per_s, seed, false);
        let mut engine = engine(name, kv_blocks * ranks, Preemption::Recompute, Spans::Closed);
        engine.table = engine.table.in_lanes(Lanes { stages, ranks }, engine.limits.tokens_max);
        let most = engine.limits.tokens_max * stages;
        let mut fullest = 0;
        let records = play(&engine, &requests, |replica| {
            let decoding = if replica.composed.decodes { replica.n_decode.div_ceil(ranks) } else { 0 };
            let counted = if replica.batcher.counts_decoding() { decoding } else { 0 };
            // Who is computed again as a whole takes no room for its answer, which is at most 40 tokens.
            let again = if replica.batcher.cut() == Cut::Never && kv_blocks < 10_000 { 12 * 40 } else { 0 };
            let found = on_ranks(replica, ranks).into_iter().max().unwrap_or_default();
            assert!(found + counted <= most + again, "{found} tokens beside {counted} in {most}");
            fullest = fullest.max(found);
        });
        assert!(records.list.iter().all(|record| record.finished().is_some()), "everybody is served");
        assert!(fullest > 0);
    }
}

/// Prompts of 40 tokens on two ranks of 64 tokens each.
#[test]
fn a_prompt_is_cut_where_its_rank_is_full() {
    let mut engine = engine("vllm-v1", 1000, Preemption::Recompute, Spans::Closed);
    engine.table = engine.table.in_lanes(Lanes { stages: 1, ranks: 2 }, 64);
    let mut list = vec![Request::new(Time::ZERO, 1, 1)];
    // They come while the first one is computed, so that the next iteration has all of them.
    list.extend(vec![Request::new(Time::from_ns(1), 40, 1); 4]);
    let mut shapes = Vec::new();
    play(&engine, &Requests::of(list), |replica| {
        let chunks: Vec<u32> = replica.composed.chunks.iter().map(|(_, tokens)| *tokens).collect();
        if replica.going.is_some() && shapes.last() != Some(&(on_ranks(replica, 2), chunks.clone())) {
            shapes.push((on_ranks(replica, 2), chunks));
        }
    });
    let expected = [(vec![1, 0], vec![1]), (vec![64, 64], vec![40, 40, 24, 24]), (vec![16, 16], vec![16, 16])];
    assert_eq!(shapes, expected);
}

/// Makespan in seconds of so many equal prompts at once on eight ranks of an H100 each.
fn makespan((n, prompt): (usize, u32)) -> f64 {
    let model = ::engine::model::embedded("deepseek-v2-lite").expect("listed");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
    let config = ReplicaConfig { expert_degree: 8, ..ReplicaConfig::new(&model, &cluster, 1) };
    let limits = Limits { sequences_max: 64, tokens_max: 8192, kv_blocks: 1_000_000, ..Limits::ROOMY };
    let table = StepTable::new(&config, (8192, 64), &Roofline::new(&cluster), Case::Expected);
    let batcher = batcher::named("vllm-v1").expect("listed");
    let engine = Engine { limits, table, batcher, spans: Spans::Closed };
    let records = run(&Requests::of(vec![Request::new(Time::ZERO, prompt, 1); n]), &engine).records;
    let finished = |record: &crate::records::Record| record.finished().expect("served") - Time::ZERO;
    records.list.iter().map(|record| finished(record).to_seconds().get()).fold(0.0, f64::max)
}

#[test]
fn as_many_tokens_do_not_end_earlier_in_longer_prompts() {
    // 3,072,000 tokens. Two prompts of 4,096 fill a rank; of longer ones the second is cut.
    let of = [(1500, 2048), (750, 4096), (512, 6000), (384, 8000)].map(makespan);
    println!("{of:?}");
    assert!(of.is_sorted(), "{of:?}");
}

/// A sequence that lost its blocks is computed again as a whole, also where that is more than an iteration has.
#[test]
fn what_is_computed_again_beyond_an_iteration_is_not_free() {
    let again = |tokens_max: u32| {
        let model = ::engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let config = ReplicaConfig::new(&model, &cluster, 1);
        let table = StepTable::new(&config, (tokens_max, 8), &Roofline::new(&cluster), Case::Expected);
        let load =
            crate::step_cost::StepLoad { n_chunk_tokens: 6000, n_chunks: 1, n_sampled: 1, ..StepLoad::default() };
        table.step(&load, [Chunk { past: 0, new: 6000 }].into_iter()).as_f64()
    };
    let ratio = again(512) / again(8192);
    assert!((0.9..1.3).contains(&ratio), "{ratio}");
}

/// An engine of stages and ranks with 64 tokens for each: a micro-batch takes 1 ms and 10 us per token through all stages.
fn of_lanes(lanes: Lanes) -> Engine {
    let table = StepTable::linear(Seconds::new(1e-3), Seconds::new(1e-5), Seconds::ZERO).in_lanes(lanes, 64);
    Engine { table, ..engine("vllm-v1", 100_000, Preemption::Recompute, Spans::Closed) }
}

/// Milliseconds at which every request has its first token.
fn first_tokens_ms(requests: &Requests, lanes: Lanes) -> Vec<f64> {
    let first = |record: &crate::records::Record| record.first_token().expect("served") - Time::ZERO;
    run(requests, &of_lanes(lanes)).records.list.iter().map(|record| first(record).to_seconds().get() * 1e3).collect()
}

/// A prompt alone is on one rank, so it fills as many micro-batches as it would without the others.
#[test]
fn a_lone_prompt_passes_as_many_micro_batches_on_one_of_several_ranks() {
    for (stages, prompt) in
        [2, 3, 4].into_iter().flat_map(|stages| [1, 64, 65, 128, 300].map(|prompt| (stages, prompt)))
    {
        let requests = Requests::of(vec![Request::new(Time::ZERO, prompt, 3)]);
        let alone = first_tokens_ms(&requests, Lanes { stages, ranks: 1 });
        for ranks in [2, 5] {
            let found = first_tokens_ms(&requests, Lanes { stages, ranks });
            assert_eq!(found, alone, "{prompt} tokens over {stages} stages on {ranks} ranks");
        }
    }
}

/// Two stages and two ranks. A prompt of 64 tokens is in the stages for 1.64 ms. Two that come meanwhile follow it as soon as the first stage has let it go, at
/// 0.82 ms: one of 100 tokens in micro-batches of 64 and 36, and one of 50 on the other rank, beside the first of these. A stage has a micro-batch of 64 tokens for
/// 0.82 ms and one of 36 for 0.68 ms, so the first of them is out at 2.46 ms and the second one at 3.14 ms.
#[test]
fn a_prompt_leaves_with_the_micro_batch_of_its_own_rank() {
    let list = [(0, 64), (1, 100), (1, 50)].map(|(at, prompt)| Request::new(Time::from_ns(at), prompt, 1));
    let found = first_tokens_ms(&Requests::of(list.to_vec()), Lanes { stages: 2, ranks: 2 });
    for (found, expected_us) in found.into_iter().zip([1640.0, 3140.0, 2460.0]) {
        assert!((found * 1e3 - expected_us).abs() < 1e-3, "{found} ms, by hand {expected_us} us");
    }
}
