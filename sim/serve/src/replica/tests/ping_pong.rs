//! Replicas whose experts have GPUs of their own: a span ends where another law in keys begins.

use super::*;
use crate::step_cost::{FfnSide, ReplicaConfig};
use engine::cost::roofline::Roofline;
use engine::play::Case;

#[test]
fn spans_end_where_attention_becomes_the_slower_side() {
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 4, 8);
    let model = engine::model::embedded("mixtral-8x22b").expect("embedded");
    // Experts on two GPUs take longer than attention does at first.
    let ffn = FfnSide { gpus: 2, attention_ranks: 2, micro_batches: 2 };
    let config = ReplicaConfig { expert_degree: 2, ffn: Some(ffn), ..ReplicaConfig::new(&model, &cluster, 4) };
    let table = StepTable::new(&config, (4096, 12), &Roofline::new(&cluster), Case::Expected);
    for seed in 0..3 {
        let list = (0..60).map(|n| Request::new(Time::ZERO, 500 + 700 * (n % 7), 4000 + 300 * (n % 5)));
        let mut requests = Requests::of(list.collect());
        crate::arrivals::lay(&mut requests, crate::arrivals::Arrivals::Poisson { per_s: 2.0 }, seed);
        let engine = |spans| {
            let limits = Limits { tokens_max: 4096, ..engine("vllm-v1", 100_000, Preemption::Recompute, spans).limits };
            Engine { limits, table: table.clone(), ..engine("vllm-v1", 100_000, Preemption::Recompute, spans) }
        };
        let [closed, mut single] = [Spans::Closed, Spans::Stepwise].map(|spans| run(&requests, &engine(spans)));
        assert!(single.counts[0].n_spans > 10 * closed.counts[0].n_spans, "seed {seed}");
        single.counts[0].n_spans = closed.counts[0].n_spans;
        assert!(single == closed, "seed {seed}");
    }
}
