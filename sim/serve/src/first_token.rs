//! The least time to a first token: what no cut of a prompt can beat on a replica.
//!
//! Every stage computes every token at the rate of the best batch size, attends to no fewer keys than the engine's kernel selects at the best
//! speed that the cost model knows (`CostModel::least`), and the last token still passes the stages behind the first. Queues, calls of kernels,
//! hosts and decoding sequences only add. It holds for prompts of which nothing is cached. Units: seconds.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::layer;
use engine::task::{Document, Op, Pass};
use hw::Seconds;

use crate::replica::Role;
use crate::request::Requests;
use crate::step_cost::{ReplicaConfig, StepTable};

/// Replicas that may compute a prompt.
pub struct Asked<'a> {
    /// What each runs.
    pub config: ReplicaConfig<'a>,
    /// What of a request they do.
    pub role: Role,
    /// Costs of operations.
    pub cost: Box<dyn CostModel>,
    /// Times of its iterations.
    pub table: &'a StepTable,
}

/// Least mean time to the first token of those requests that count, each on whichever replicas are fastest. As in the metrics, a request counts
/// that arrives at `from` or later and whose client does not have enough before the end. `None` where nothing counts or nothing is known: prompts that
/// are cached or computed outside of the fleet, and clients who give up, since whoever waits longest is then left out of the mean.
pub fn mean_ttft(groups: &[Asked<'_>], requests: &Requests, from: Seconds) -> Option<Seconds> {
    let is_elsewhere = groups.iter().any(|group| group.role == Role::Outputs);
    if requests.prefix_tokens > 0 || requests.has_deadlines() || is_elsewhere {
        return None;
    }
    let mut known: BTreeMap<u32, f64> = BTreeMap::new();
    let least = |prompt| {
        let of_group = |group: &Asked<'_>| ttft(&group.config, group.cost.as_ref(), group.table, prompt).get();
        groups.iter().map(of_group).fold(f64::INFINITY, f64::min)
    };
    let (mut sum, mut n) = (0.0, 0_u64);
    for request in requests.counted(from) {
        sum += *known.entry(request.prompt).or_insert_with(|| least(request.prompt));
        n += 1;
    }
    (n > 0).then(|| Seconds::new(sum / hw::real(n)))
}

/// Least time to the first token of a prompt.
pub fn ttft(config: &ReplicaConfig<'_>, cost: &dyn CostModel, table: &StepTable, prompt: u32) -> Seconds {
    let tokens = table.least_tokens(prompt).span().to_seconds();
    let whole = tokens + attention(config, cost, prompt);
    let stages = f64::from(config.pipeline_degree);
    let behind = table.least_tokens(1).span().to_seconds() * (stages - 1.0);
    (whole + behind) * (1.0 / stages)
}

/// Least time of a prompt's attention in all layers, however it is cut; nothing is said where some layers attend to less than all tokens, and where attention
/// may hide behind experts on other GPUs.
pub fn attention(config: &ReplicaConfig<'_>, cost: &dyn CostModel, prompt: u32) -> Seconds {
    if !config.model.is_plain() || config.ffn.is_some() {
        return Seconds::ZERO;
    }
    let kernels = config.kernels(cost);
    let ops = layer::attention(&config.shard(), &[Document::causal(prompt.into())], 1, Pass::Forward);
    let of_layer = |(op, n): &(Op, u32)| kernels.least(op) * f64::from(*n);
    let of_layer: Seconds = ops.iter().map(of_layer).sum();
    of_layer * hw::real(config.model.n_layers)
}

#[cfg(test)]
mod tests {
    use engine::cost::roofline::Roofline;
    use engine::cost::sparse_attention::{self, SparseAttention};
    use engine::play::Case;

    use hw::Time;

    use super::*;
    use crate::request::Request;
    use crate::step_cost::{Chunk, PromptKernel, StepLoad};

    #[test]
    fn no_cut_is_faster() {
        let model = engine::model::embedded("qwen2.5-14b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h20").expect("listed"), 1, 8);
        let positions = sparse_attention::budget(&model.name).expect("shipped").positions(8);
        let sparse = SparseAttention { kernel: &sparse_attention::KERNELS[0], positions, threshold: 32_768 };
        let cost = Roofline::new(&cluster);
        for sparse in [None, Some(sparse)] {
            let prompt_attention = PromptKernel { flops_ratio: Some(0.597), sparse, ..PromptKernel::PLAIN };
            let config = ReplicaConfig { prompt_attention, ..ReplicaConfig::new(&model, &cluster, 8) };
            let prompt = 262_144;
            for size in [2048, 16_384, 65_536, 262_144] {
                let table = StepTable::new(&config, (size, 1), &cost, Case::Expected);
                let time = |past| {
                    let load = StepLoad { n_chunk_tokens: size, n_chunks: 1, ..StepLoad::default() };
                    table.step(&load, std::iter::once(Chunk { past, new: size }))
                };
                let whole = (0..prompt / size).map(|index| time(index * size)).sum::<hw::Tick>().span().to_seconds();
                let least = ttft(&config, &cost, &table, prompt);
                // Whole ticks of every chunk on the one side.
                assert!(least.get() <= whole.get() + 1e-7, "{size}: {whole:?} below {least:?}");
                assert!(
                    sparse.is_some() || size < 65_536 || whole.get() < 1.05 * least.get(),
                    "close where chunks are large"
                );
            }
        }
    }

    #[test]
    fn the_mean_is_of_the_requests_that_count() {
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let cost = Roofline::new(&cluster);
        let config = ReplicaConfig::new(&model, &cluster, 1);
        let table = StepTable::new(&config, (8192, 1), &cost, Case::Expected);
        let of = |prompt| ttft(&config, &cost, &table, prompt).get();
        let asked = [Asked {
            config: config.clone(),
            role: Role::Both,
            cost: Box::new(Roofline::new(&cluster)),
            table: &table,
        }];
        let at = |seconds: u64, prompt, output| Request::new(Time::from_ns(seconds * 1_000_000_000), prompt, output);
        let mut requests = Requests::of(vec![at(0, 8000, 2), at(10, 4000, 1), at(100, 100, 2), at(100, 200, 2)]);
        let mean = |requests: &Requests, from| mean_ttft(&asked, requests, Seconds::new(from)).map(Seconds::get);
        let near = |found: Option<f64>, wanted: f64| assert!((found.expect("known") / wanted - 1.0).abs() < 1e-12);
        near(mean(&requests, 0.0), (of(8000) + of(4000) + of(100) + of(200)) / 4.0);
        // Who arrives in the warm-up does not count, and who arrives at its end does.
        near(mean(&requests, 100.0), (of(100) + of(200)) / 2.0);
        assert_eq!(mean(&requests, 101.0), None);
        // The client of the last request wants no more than 2 of 5 tokens.
        requests.asked = vec![2, 1, 2, 5];
        near(mean(&requests, 100.0), of(100));
    }
}
