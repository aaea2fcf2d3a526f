//! A trainer that tests ask: Qwen2.5 7B on nodes of eight H100.

use hw::{Bytes, Dtype};
use train::layout::{ContextExchange, Layout, Zero};
use train::problem::{Execution, Problem};
use train::workload::Workload;

/// With these degrees on so many nodes.
pub fn trainer([tp, pp, dp]: [u32; 3], n_nodes: u32) -> Problem {
    let layout = Layout::data_and_context(dp, 1, Zero::OptimizerStates, ContextExchange::Gather);
    Problem {
        model: engine::model::embedded("qwen2.5-7b").expect("listed"),
        cluster: hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), n_nodes, 8),
        layout: Layout { tp, pp, ..layout },
        schedule: train::schedule::named("1f1b").expect("listed"),
        workload: Workload { lengths: vec![1], batch_size: 1, source: String::new() },
        dtype: Dtype::Bf16,
        execution: Execution::default(),
        bucket_tokens: 1,
        reserved_memory: Bytes::ZERO,
        seed: 0,
    }
}
