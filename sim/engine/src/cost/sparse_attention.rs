//! Attention of prompts as long-context engines run it: vertical-slash sparse (MInference, arXiv:2407.02490; Qwen2.5-1M, arXiv:2501.15383,
//! section 3.2), and at a calibrated share of the peak where that is given.
//!
//! Per head and chunk the last 64 queries vote for `v` vertical positions and `s` diagonals; attention is computed only there. A query with `k`
//! keys then computes `min(k, kappa · (v + s) + floor · k)` of them in dense-kernel time: `kappa` is rounding to 64-blocks and the
//! kernel's lower efficiency, `floor` what keeps growing with the context (building indices). Heads have budgets of their own, and a tensor
//! group waits for its busiest GPU, so the budget that counts depends on the tensor degree.
//!
//! `kappa`, `floor` and the time per call of a head were fitted by us (relative least squares, five lengths) to the end-to-end prefill times
//! of Llama-3-8B on one A100 in arXiv:2407.02490 / microsoft/MInference; products and dense attention take 0.543 and 0.508 of the peak
//! there (fitted to the FlashAttention-2 column). Worst residual: 8 % (`minference`), 1 % (`merged`).
//!
//! `PromptAttention` lays both over another cost model, document by document; decoding sequences read all keys as before.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use hw::{Flops, FlopsPerSecond, Gpu, Seconds, real};
use serde::Deserialize;

use crate::cost::{CostModel, Estimate, Source};
use crate::task::{Document, Op, Pass};

/// Queries that vote.
const LAST_QUERIES: f64 = 64.0;

/// Vertical positions and diagonals per head, as shipped with a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// File of the figures.
    pub file: String,
    /// Vertical positions, mean over heads and layers.
    pub vertical: f64,
    /// Diagonals, mean over heads and layers.
    pub slash: f64,
    /// Tensor degree, and positions per head of the busiest GPU, mean over layers.
    busiest: Vec<(u32, f64)>,
}

impl Budget {
    /// A budget that all heads share.
    pub fn even(vertical: f64, slash: f64) -> Self {
        Self { file: String::new(), vertical, slash, busiest: Vec::new() }
    }

    /// Positions per head that decide the time of a tensor group: its busiest GPU's; between tabulated degrees that of the next larger one.
    pub fn positions(&self, tensor_degree: u32) -> f64 {
        let found = self.busiest.iter().find(|(degree, _)| *degree >= tensor_degree);
        found.or(self.busiest.last()).map_or(self.vertical + self.slash, |(_, positions)| *positions)
    }
}

static BUDGETS: LazyLock<BTreeMap<String, Budget>> = LazyLock::new(|| {
    toml::from_str(include_str!("sparse_attention/budgets.toml")).expect("the embedded table is held by a test")
});

/// The shipped budget of a model, by its name.
pub fn budget(model: &str) -> Option<&'static Budget> {
    BUDGETS.get(model)
}

/// Models with a shipped budget.
pub fn budgets() -> impl Iterator<Item = &'static str> {
    BUDGETS.keys().map(String::as_str)
}

/// A sparse kernel's law; see the header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// Name.
    pub name: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    /// Dense-kernel pairs per selected position and query.
    pub kappa: f64,
    /// Share of all pairs that is paid whatever is selected.
    pub floor: f64,
    /// Seconds per call, head and layer: estimating and launching.
    pub per_head_s: f64,
    /// Measured over predicted end-to-end times, smallest and largest.
    pub interval: [f64; 2],
}

/// Kernels with a fitted law.
pub static KERNELS: [Kernel; 2] = [
    Kernel {
        name: "minference",
        about: "Triton kernel of MInference, column `MInference` of its table",
        kappa: 2.083,
        floor: 0.0360,
        per_head_s: 1.779e-3,
        interval: [0.92, 1.05],
    },
    Kernel {
        name: "merged",
        about: "kernel merged into vLLM and SGLang, column `MInference w/ SGLang` of the same table",
        kappa: 0.7223,
        floor: 0.01128,
        per_head_s: 1.501e-3,
        interval: [0.99, 1.01],
    },
];

/// A kernel by name.
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}

impl Kernel {
    /// Query-key pairs of dense work that a chunk takes when each head keeps so many positions.
    pub fn pairs(&self, chunk: &Document, positions: f64) -> f64 {
        let (from, to) = (real(chunk.keys - chunk.queries), real(chunk.keys));
        let budget = self.kappa * positions;
        // Up to this many keys everything is computed; a query with k keys sees k, itself included.
        let dense_to = (budget / (1.0 - self.floor)).clamp(from, to);
        let triangle = |from: f64, to: f64| (to * (to + 1.0) - from * (from + 1.0)) / 2.0;
        triangle(from, dense_to) + (to - dense_to) * budget + self.floor * triangle(dense_to, to)
    }
}

/// Sparse attention of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseAttention {
    /// Kernel.
    pub kernel: &'static Kernel,
    /// Positions per head of the busiest GPU.
    pub positions: f64,
    /// Chunks that see more keys than this are sparse, tokens.
    pub threshold: u64,
}

impl SparseAttention {
    /// Whether a chunk is computed so.
    pub const fn holds_for(&self, chunk: &Document) -> bool {
        chunk.keys > self.threshold
    }

    /// Query-key pairs of dense work that a chunk takes, those of the vote included.
    pub fn pairs(&self, chunk: &Document) -> f64 {
        self.kernel.pairs(chunk, self.positions) + LAST_QUERIES * real(chunk.keys)
    }
}

/// A cost model with an engine's attention of prompts.
pub struct PromptAttention<M> {
    inner: M,
    peak: FlopsPerSecond,
    /// Share of the peak that dense attention reaches; `None` asks the model below.
    flops_ratio: Option<f64>,
    sparse: Option<SparseAttention>,
}

/// Attention of one layer on one GPU.
#[derive(Clone, Copy)]
struct Heads {
    n: u64,
    n_kv: u64,
    dim: u64,
    kv: hw::Dtype,
}

impl<M: CostModel> PromptAttention<M> {
    /// `inner` on a device, with dense attention at a share of its peak and sparse attention, each where it is given.
    pub fn new(inner: M, gpu: &Gpu, flops_ratio: Option<f64>, sparse: Option<SparseAttention>) -> Self {
        Self { inner, peak: gpu.peak_bf16, flops_ratio, sparse }
    }

    /// A chunk with all its keys.
    fn dense(&self, chunk: &Document, heads: Heads) -> Estimate {
        if let Some(ratio) = self.flops_ratio {
            let flops = Flops::new(4.0 * real(chunk.pairs) * real(heads.n * heads.dim));
            return Estimate::exact(flops / (self.peak * ratio), Source::Published);
        }
        let Heads { n: n_heads, n_kv: n_kv_heads, dim: head_dim, kv } = heads;
        let documents = vec![*chunk];
        self.inner.estimate(&Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass: Pass::Forward })
    }

    /// A chunk as the engine computes it.
    fn chunk(&self, chunk: &Document, heads: Heads) -> Estimate {
        let dense = self.dense(chunk, heads);
        let Some(sparse) = self.sparse.filter(|sparse| sparse.holds_for(chunk)) else { return dense };
        let share = sparse.pairs(chunk) / real(chunk.pairs);
        let calls = Seconds::new(sparse.kernel.per_head_s) * real(heads.n);
        let [low, high] = sparse.kernel.interval;
        Estimate {
            time: dense.time * share + calls,
            low: (dense.low * share + calls) * low,
            high: (dense.high * share + calls) * high,
            source: dense.source.max(Source::Published),
            outside: dense.outside * share,
            ..dense
        }
    }
}

impl<M: CostModel> CostModel for PromptAttention<M> {
    fn inner(&self) -> Option<&dyn CostModel> {
        Some(&self.inner)
    }

    fn elementary(&self, op: &Op) -> Estimate {
        let Op::Attention { documents, n_heads, n_kv_heads, head_dim, kv, pass: Pass::Forward } = op else {
            return self.inner.elementary(op);
        };
        let heads = Heads { n: *n_heads, n_kv: *n_kv_heads, dim: *head_dim, kv: *kv };
        let none = Estimate::exact(Seconds::ZERO, Source::Measured);
        documents.iter().fold(none, |sum, chunk| sum.then(self.chunk(chunk, heads)))
    }

    fn least(&self, op: &Op) -> Seconds {
        let Op::Attention { documents, n_heads, head_dim, pass: Pass::Forward, .. } = op else {
            return self.inner.least(op);
        };
        let dense: f64 = documents.iter().map(|chunk| real(chunk.pairs)).sum();
        let pairs = |chunk: &Document| {
            self.sparse.map_or(real(chunk.pairs), |sparse| sparse.pairs(chunk).min(real(chunk.pairs)))
        };
        let computed: f64 = documents.iter().map(pairs).sum();
        let flops = Flops::new(4.0 * computed * real(n_heads * head_dim));
        self.flops_ratio
            .map_or_else(|| self.inner.least(op) * (computed / dense.max(1.0)), |ratio| flops / (self.peak * ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefill seconds of Llama-3-8B on one A100: tokens, FlashAttention-2, MInference, MInference with the merged kernel.
    const TABLE: [(u64, f64, f64, f64); 5] = [
        (10_000, 0.98, 2.78, 2.44),
        (50_000, 8.53, 7.55, 6.20),
        (200_000, 79.39, 26.81, 20.62),
        (500_000, 456.78, 66.28, 51.96),
        (1_000_000, 1765.56, 179.12, 112.38),
    ];

    /// Products, dense attention and sparse attention of a whole prompt, seconds.
    fn parts(tokens: u64, kernel: &Kernel) -> [f64; 3] {
        let (peak, n) = (312e12, real(tokens));
        let model = crate::model::embedded("llama-3-8b").expect("listed");
        let products = 2.0 * real(model.n_parameters() - model.embedding_parameters()) * n / (peak * 0.543);
        let per_pair = 4.0 * real(model.n_heads * model.head_dim * model.n_layers) / (peak * 0.508);
        let positions = budget("llama-3-8b").expect("listed").positions(1);
        let pairs = kernel.pairs(&Document::causal(tokens), positions);
        let calls = real(model.n_heads * model.n_layers) * kernel.per_head_s;
        [products, per_pair * n * n / 2.0, per_pair * pairs + calls]
    }

    #[test]
    fn speed_ups_of_the_published_table_are_met_within_a_fifth() {
        for (tokens, dense, minference, merged) in TABLE {
            for (kernel, sparse) in [("minference", minference), ("merged", merged)] {
                let [products, attention, selected] = parts(tokens, self::kernel(kernel).expect("listed"));
                let (found, expected) = ((products + attention) / (products + selected), dense / sparse);
                assert!((found / expected - 1.0).abs() < 0.2, "{kernel} at {tokens}: {found}, published {expected}");
            }
        }
    }

    #[test]
    fn sparse_is_slower_than_dense_below_forty_thousand_tokens() {
        let gain = |tokens| {
            let [_, dense, sparse] = parts(tokens, kernel("minference").expect("listed"));
            dense / sparse
        };
        assert!(gain(10_000) < 1.0 && gain(20_000) < 1.0 && gain(40_000) < 1.0);
        assert!(gain(50_000) > 1.0, "the table has 1.13 end to end");
    }

    #[test]
    fn pairs_are_the_sum_over_queries() {
        for kernel in &KERNELS {
            for (past, new, positions) in [(0, 1, 5.0), (0, 300, 20.0), (150, 77, 40.0), (1000, 64, 3.0)] {
                let budget = kernel.kappa * positions;
                let of = |keys: u64| real(keys).min(budget + kernel.floor * real(keys));
                let expected: f64 = (past + 1..=past + new).map(of).sum();
                let found = kernel.pairs(&Document::chunk(past, new), positions);
                // The border between dense and sparse queries need not be whole.
                assert!((found - expected).abs() <= 0.51, "{found}, sum {expected}");
            }
        }
    }

    #[test]
    fn chunks_add_up_to_the_whole_prompt() {
        let kernel = &KERNELS[0];
        let whole = kernel.pairs(&Document::causal(100_000), 3986.8);
        let chunks = [(0, 32_768), (32_768, 32_768), (65_536, 34_464)];
        let cut: f64 = chunks.iter().map(|&(past, new)| kernel.pairs(&Document::chunk(past, new), 3986.8)).sum();
        assert!((whole / cut - 1.0).abs() < 1e-9);
        assert!(whole <= 100_000.0 * 100_001.0 / 2.0, "never more than dense");
    }

    #[test]
    fn shipped_budgets_are_those_of_their_files() {
        let names: Vec<&str> = budgets().collect();
        assert_eq!(names, ["llama-3-8b", "qwen2.5-14b", "qwen2.5-7b"]);
        let density = |name: &str| {
            let budget = budget(name).expect("listed");
            (budget.vertical + budget.slash) / 500_000.0
        };
        assert!((density("qwen2.5-7b") - 0.0231).abs() < 1e-4 && (density("qwen2.5-14b") - 0.0168).abs() < 1e-4);
        let budget = budget("qwen2.5-14b").expect("listed");
        assert!((budget.positions(1) - budget.vertical - budget.slash).abs() < 0.1);
        assert!(budget.positions(8) > 1.5 * budget.positions(1), "eight GPUs wait for the busiest");
        assert_eq!(budget.positions(3), budget.positions(4));
    }
}
