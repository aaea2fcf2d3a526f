//! Speed of the serving engine: requests per second of one core. Estimate: five events of 200 ns per request, a million per second.
//!
//! `requests` are the embedded Azure conversations; times come from the datasheet roofline of an A100, which costs the same per query
//! as a measured profile, as both are tabulated before the clock starts.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::cost::roofline::Roofline;
use engine::play::Case;
use serve::arrivals::{Arrivals, lay};
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
