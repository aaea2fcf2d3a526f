//! Speed of the serving engine: requests per second of one core. Estimate: five events of 200 ns per request, a million per second.
//!
//! `requests` are the embedded Azure conversations; times come from the datasheet roofline of an A100, which costs the same per query
//! as a measured profile, as both are tabulated before the clock starts.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::cost::roofline::Roofline;
use engine::formats::Formats;
use engine::play::Case;
use serve::arrivals::{Arrivals, lay};
use serve::engine_preset::GraphRule;
use serve::fleet::serve;
use serve::replica::{Engine, Limits, Spans};
use serve::request::Requests;
use serve::step_cost::{Chunk, ReplicaConfig, StepLoad, StepTable};
use serve::{batcher, lengths, router};

fn engine(sequences_max: u32, tokens_max: u32) -> Engine {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 1);
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    let deployment = ReplicaConfig::new(&model, &cluster, 1);
    let limits = Limits {
        sequences_max,
        tokens_max,
        context_max: 131_072,
        kv_blocks: 26_000,
        watermark_blocks: 260,
        ..Limits::ROOMY
    };
    let table = StepTable::new(&deployment, (tokens_max, sequences_max), &Roofline::new(&cluster), Case::Expected);
    Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed }
}

fn conversations(n: usize, per_s: f64) -> Requests {
    let mut requests = lengths::named("azure-conv").expect("listed").sample(n, 1);
    lay(&mut requests, Arrivals::Poisson { per_s }, 1);
    requests
}

/// An engine as it is run: weights, keys and values in 8 bits, batches padded to captured graphs, cached prefixes.
fn engine_as_run() -> Engine {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 1);
    let model = engine::model::embedded("llama-3-8b").expect("listed");
    let formats = Formats { kv: hw::Dtype::Fp8, ..Formats::weights(hw::Format::Fp8, hw::Dtype::Bf16) };
    let graph_sizes = GraphRule::Vllm.sizes(256);
    let deployment =
        ReplicaConfig { formats, graph_sizes, prompt_graph_tokens: 256, ..ReplicaConfig::new(&model, &cluster, 1) };
    let limits = Limits {
        sequences_max: 256,
        tokens_max: 2048,
        context_max: 131_072,
        kv_blocks: 52_000,
        watermark_blocks: 520,
        shares_prefixes: true,
        ..Limits::ROOMY
    };
    let table = StepTable::new(&deployment, (2048, 256), &Roofline::new(&cluster), Case::Expected);
    Engine { limits, table, batcher: batcher::named("vllm-v1").expect("listed"), spans: Spans::Closed }
}

/// The same requests as eight turns of sessions each: every turn has 64 tokens more that the one before had, in blocks of 16.
fn turns(mut requests: Requests) -> Requests {
    const TURNS: u32 = 8;
    const BLOCKS: u32 = 4;
    let n_sessions = u32::try_from(requests.len()).expect("few") / TURNS;
    (requests.prefix_tokens, requests.n_prefix_ids) = (16, n_sessions * TURNS * BLOCKS);
    for (at, request) in (0..).zip(&mut requests.list) {
        let (session, turn) = (at % n_sessions, (at / n_sessions).min(TURNS - 1));
        let (first, count) = (session * TURNS * BLOCKS, turn * BLOCKS);
        request.prompt += count * 16;
        request.prefix_first = u32::try_from(requests.prefix_ids.len()).expect("few");
        // What this turn adds is shared by the next one.
        request.prefix_count = count + BLOCKS.min(request.prompt / 16 - count);
        requests.prefix_ids.extend(first..first + request.prefix_count);
    }
    requests
}

fn engines(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("serving");
    group.sample_size(10);
    // The peer's setting: 6.45 requests/s, chunks of 512 tokens, at most 128 sequences.
    let (requests, engine_512) = (conversations(19_366, 6.45), engine(128, 512));
    group.throughput(Throughput::Elements(19_366));
    group.bench_function("one replica, 6.45 requests/s, chunks of 512", |bencher| {
        bencher.iter(|| serve(&requests, &[&engine_512], (router::ROUTERS[0].make)(0).as_mut()));
    });
    let requests = conversations(1_000_000, 64.0 * 4.0);
    let engine_2048 = engine(256, 2048);
    let engines = vec![&engine_2048; 64];
    group.throughput(Throughput::Elements(1_000_000));
    for name in ["round-robin", "least-loaded"] {
        group.bench_function(format!("a million requests, 64 replicas, {name}"), |bencher| {
            let kind = router::named(name).expect("listed");
            bencher.iter(|| serve(&requests, &engines, (kind.make)(0).as_mut()));
        });
    }
    let (requests, as_run) = (turns(requests), engine_as_run());
    let engines = vec![&as_run; 64];
    group.bench_function("a million requests with formats, graphs and cached prefixes, 64 replicas", |bencher| {
        bencher.iter(|| serve(&requests, &engines, (router::ROUTERS[0].make)(0).as_mut()));
    });
    group.finish();
}

fn queries(criterion: &mut Criterion) {
    let table = engine(128, 512).table;
    let load = StepLoad {
        n_decode: 40,
        context: 50_000,
        n_chunk_tokens: 472,
        n_chunks: 1,
        n_sampled: 40,
        ..StepLoad::default()
    };
    criterion.bench_function("time of an iteration with one chunk", |bencher| {
        let mut past = 0;
        bencher.iter(|| {
            past = (past + 472) % 8000;
            table.step(&load, std::iter::once(Chunk { past, new: 472 }))
        });
    });
    criterion.bench_function("table of a deployment, 2,048 tokens", |bencher| bencher.iter(|| engine(256, 2048)));
}

criterion_group!(benches, queries, engines);
criterion_main!(benches);
