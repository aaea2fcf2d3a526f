//! Planning time per global batch of 256 sequences. Estimate: 256 placements over 8 ranks, well below a millisecond.

use std::collections::BTreeMap;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::cost::fixed::Fixed;
use planner::PlanContext;
use planner::train::search::bound::Judge;
use planner::train::search::space::Space;
use train::layout::{ContextExchange, Layout, Zero};
use train::problem::{Execution, Problem};
use train::workload::distribution;

fn policies(criterion: &mut Criterion) {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let problem = Problem {
        model: engine::model::embedded("qwen2.5-0.5b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 4, 8),
        layout: Layout::data_and_context(4, 8, Zero::Gradients, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: train::Workload {
            lengths: distribution::named("chatqa2-long-sft").expect("listed").sample(256, 131_072, 0),
            batch_size: 256,
            source: "bench".to_owned(),
        },
        dtype: hw::Dtype::Bf16,
        bucket_tokens: 26_624,
        execution: Execution::default(),
        reserved_memory: hw::Bytes(0),
        seed: 0,
    };
    let cost = Fixed::default();
    for name in ["skrull", "round_robin", "best_fit", "deepspeed"] {
        let policy = planner::train::policies::named(name).expect("listed");
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        criterion.bench_function(&format!("{name}, 256 sequences"), |bencher| {
            bencher.iter(|| policy.plan(&problem, &context))
        });
    }
}

/// Layouts judged by the bound, and simulated, for GPT 22B on 64 GPUs with 64 sequences.
fn search(criterion: &mut Criterion) {
    let gpu = hw::catalog::gpu("a100-sxm-80g").expect("listed");
    let problem = Problem {
        model: engine::model::embedded("gpt-22b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 8, 8),
        layout: Layout::data_and_context(64, 1, Zero::OptimizerStates, ContextExchange::Gather),
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: train::Workload { lengths: vec![2048; 64], batch_size: 64, source: "bench".to_owned() },
        dtype: hw::Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens: 2048,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    };
    let cost = engine::cost::roofline::Roofline::new(&problem.cluster);
    let topology = hw::topology::Topology::of(&problem.cluster);
    let policy = planner::train::policies::named("megatron").expect("listed");
    let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
    let candidates = Space::of(&problem).candidates(&problem);
    let mut judge = Judge::new(&problem, policy, &context);
    let mut group = criterion.benchmark_group("search");
    group.throughput(Throughput::Elements(candidates.len() as u64)).sample_size(20);
    group.bench_function("layouts by bound", |bencher| {
        bencher.iter(|| {
            candidates.iter().filter_map(|candidate| judge.least(candidate).ok()).map(|least| least.step_s).sum::<f64>()
        })
    });
    let typical = candidates
        .iter()
        .find(|c| c.layout.tp == 8 && c.layout.pp == 8 && c.schedule.name == "1f1b" && c.micro_batch == 1)
        .expect("tensor 8, pipeline 8");
    let laid_out = typical.problem(&problem);
    group.throughput(Throughput::Elements(1));
    group.bench_function("64-GPU step: plan, order, lower, simulate", |bencher| {
        bencher.iter(|| {
            let plan = planner::train::search::plan(&laid_out, policy, &context).expect("a plan");
            planner::train::search::simulate(&laid_out, &plan, &context, &topology)
        })
    });
    group.finish();
}

criterion_group!(benches, policies, search);
criterion_main!(benches);
