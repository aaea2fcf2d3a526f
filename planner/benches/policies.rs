//! Planning time per global batch of 256 sequences. Estimate: 256 placements over 8 ranks, well below a millisecond.

use std::collections::BTreeMap;

use criterion::{Criterion, criterion_group, criterion_main};
use planner::PlanContext;
use sim::cost::fixed::Fixed;
use sim::layout::{ContextExchange, Layout, Zero};
use sim::problem::{GradientSync, Problem, Recompute};
use sim::workload::distribution;

fn policies(criterion: &mut Criterion) {
    let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
    let problem = Problem {
        model: sim::model::embedded("qwen2.5-0.5b").expect("embedded"),
        cluster: hw::catalog::cluster(&gpu, 4, 8),
        layout: Layout { dp: 4, cp: 8, tp: 1, pp: 1, zero: Zero::Gradients, exchange: ContextExchange::Gather },
        workload: sim::Workload {
            lengths: distribution::named("chatqa2-long-sft").expect("listed").sample(256, 131_072, 0),
            batch_size: 256,
            source: "bench".to_owned(),
        },
        dtype: hw::Dtype::Bf16,
        recompute: Recompute::Selective,
        gradient_sync: GradientSync::Overlapped,
        bucket_tokens: 26_624,
        host_overhead_per_layer: hw::Seconds::ZERO,
        reserved_memory: hw::Bytes(0),
        seed: 0,
    };
    let cost = Fixed::default();
    for name in ["skrull", "round_robin", "best_fit", "deepspeed"] {
        let policy = planner::policies::named(name).expect("listed");
        let context = PlanContext { cost: &cost, parameters: BTreeMap::new() };
        criterion.bench_function(&format!("{name}, 256 sequences"), |bencher| {
            bencher.iter(|| policy.plan(&problem, &context))
        });
    }
}

criterion_group!(benches, policies);
criterion_main!(benches);
