//! Planning time per global batch of every long-context system on pools of 64, 256 and 1,024 GPUs: eight sequences per GPU for data-parallel
//! systems and FlexSP, about 200,000 tokens per 64 GPUs for Hydraulis. Estimate: a planner that runs beside a step of seconds has to stay
//! below it; Skrull's runs in the data loader and has to stay below a millisecond for 256 sequences.

use std::collections::BTreeMap;

use criterion::{Criterion, criterion_group, criterion_main};
use planner::{PlanContext, Value};
use sim::cost::roofline::Roofline;
use sim::layout::{ContextExchange, Layout, Zero};
use sim::problem::{Execution, Problem};
use sim::workload::distribution;

/// A problem of some sequences of web text on a pool of A100.
fn problem(model: &str, layout: Layout, n_sequences: usize, longest: u64, bucket_tokens: u64) -> Problem {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    Problem {
        model: sim::model::embedded(model).expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, layout.n_ranks() / 8, 8),
        layout,
        schedule: sim::schedule::named("1f1b").expect("listed"),
        workload: sim::Workload {
            lengths: distribution::named("commoncrawl-like").expect("listed").sample(n_sequences, longest, 0),
            batch_size: n_sequences,
            source: "bench".to_owned(),
        },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    }
}

/// The problem that a system is asked on a pool.
fn asked(policy: &str, n: u32) -> Problem {
    let sequences = n as usize * 8;
    let pool = |exchange| Layout::data_and_context(1, n, Zero::OptimizerStates, exchange);
    match policy {
        "bytescale" => problem("mistral-7b", pool(ContextExchange::Ring), sequences, 262_144, 8192),
        "flexsp" => problem("gpt-7b-64-heads", pool(ContextExchange::Ulysses), sequences, 131_072, 5992),
        "hydraulis" => {
            let homogeneous = Layout::data_and_context(n / 16, 1, Zero::OptimizerStates, ContextExchange::Gather);
            let layout = Layout { tp: 16, sequence_parallel: true, ..homogeneous };
            problem("llama-32b", layout, n as usize * 150 / 64, 32_768, 43_520)
        }
        _ => {
            let layout = Layout::data_and_context(n / 8, 8, Zero::Gradients, ContextExchange::Gather);
            problem("qwen2.5-7b", layout, sequences, 65_536, 13_312)
        }
    }
}

fn planners(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planners");
    group.sample_size(10).warm_up_time(std::time::Duration::from_millis(200));
    for n in [64, 256, 1024] {
        for (policy, planner) in [
            ("skrull", None),
            ("chunkflow", None),
            ("bytescale", None),
            ("flexsp", None),
            ("flexsp", Some("milp")),
            ("flexsp", Some("cold")),
            ("hydraulis", None),
        ] {
            // Programs of thousands of integers are compared where the paper solves them.
            if planner.is_some() && n > 64 {
                continue;
            }
            let problem = asked(policy, n);
            let cost = Roofline::new(&problem.cluster);
            let word = planner.map(|word| ("planner".to_owned(), Value::Word(word.to_owned())));
            let parameters: BTreeMap<String, Value> = word.into_iter().collect();
            let context = PlanContext { cost: &cost, parameters };
            let of = planner::policies::named(policy).expect("listed");
            let name =
                format!("{policy} {}, {n} GPUs, {} sequences", planner.unwrap_or(""), problem.workload.batch_size);
            match of.plan(&problem, &context) {
                Err(why) => println!("{name}: {why}"),
                Ok(decision) => {
                    println!("{name}: objective {:?} s, bound {:?} s", decision.objective, decision.bound);
                    group.bench_function(name, |bencher| bencher.iter(|| of.plan(&problem, &context)));
                }
            }
        }
    }
    group.finish();
}

criterion_group!(benches, planners);
criterion_main!(benches);
