//! Vertical-slash sparse attention (MInference, arXiv:2407.02490; Qwen2.5-1M, arXiv:2501.15383, section 3.2).
//!
//! Per head and chunk the last 64 queries vote for `v` vertical positions and `s` diagonals; attention is computed only there. A query with `k`
//! keys then computes `min(k, kappa · (v + s) + floor · k)` of them in dense-kernel time: `kappa` is rounding to 64-blocks and the
//! kernel's lower efficiency, `floor` what keeps growing with the context (building indices). Heads have budgets of their own, and a tensor
//! group waits for its busiest GPU, so the budget that counts depends on the tensor degree.
//!
//! `kappa`, `floor` and the time per call of a head were fitted by us (relative least squares, five lengths) to the end-to-end prefill times
//! of Llama-3-8B on one A100 in arXiv:2407.02490 / microsoft/MInference; products and dense attention take 0.543 and 0.508 of the peak
//! there (fitted to the FlashAttention-2 column). Worst residual: 8 % (`minference`), 1 % (`merged`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use hw::{Flops, Seconds};
use serde::Deserialize;

use super::PromptChunk;

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
    #[must_use]
    pub fn even(vertical: f64, slash: f64) -> Self {
        Self { file: String::new(), vertical, slash, busiest: Vec::new() }
    }

    /// Positions per head that decide the time of a tensor group: its busiest GPU's; between tabulated degrees that of the next larger one.
    #[must_use]
    pub fn positions(&self, tensor_degree: u32) -> f64 {
        let found = self.busiest.iter().find(|(degree, _)| *degree >= tensor_degree);
        found.or(self.busiest.last()).map_or(self.vertical + self.slash, |(_, positions)| *positions)
    }
}

static BUDGETS: LazyLock<BTreeMap<String, Budget>> =
    LazyLock::new(|| toml::from_str(include_str!("budgets.toml")).expect("the embedded table is held by a test"));

/// The shipped budget of a model, by its name.
#[must_use]
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
#[must_use]
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}

fn f(n: u64) -> f64 {
    hw::Tokens(n).as_f64()
}

impl Kernel {
    /// Query-key pairs of dense work that a chunk takes when each head keeps so many positions.
    #[must_use]
    pub fn pairs(&self, chunk: PromptChunk, positions: f64) -> f64 {
        let (from, to) = (f(chunk.past), f(chunk.past + chunk.new));
        let budget = self.kappa * positions;
        // Up to this many keys everything is computed; a query with k keys sees k, itself included.
        let dense_to = (budget / (1.0 - self.floor)).clamp(from, to);
        let triangle = |from: f64, to: f64| (to * (to + 1.0) - from * (from + 1.0)) / 2.0;
        triangle(from, dense_to) + (to - dense_to) * budget + self.floor * triangle(dense_to, to)
    }
}

/// Operations of estimating the pattern of one head: scores of the last queries against all keys.
#[must_use]
pub fn estimation(chunk: PromptChunk, head_dim: u64) -> Flops {
    Flops::new(4.0 * LAST_QUERIES * f(chunk.past + chunk.new) * f(head_dim))
}

/// Share of the attention mass that a sparse pattern keeps, from the log-sum-exps of sparse and full attention (section 3.2.3).
#[must_use]
pub fn recall(log_sum_exp_sparse: f64, log_sum_exp_full: f64) -> f64 {
    libm::exp((log_sum_exp_sparse - log_sum_exp_full).min(0.0))
}

/// Sparsity refinement: positions are added by `step` until the recall reaches `wanted` or `most` positions are kept.
///
/// Ends for every `recall_of`: each round adds at least one position. The shipped budgets lie on such ladders of 2,048.
pub fn refined(start: u64, step: u64, most: u64, wanted: f64, recall_of: &dyn Fn(u64) -> f64) -> u64 {
    let mut positions = start.min(most);
    while positions < most && recall_of(positions) < wanted {
        positions = (positions + step.max(1)).min(most);
    }
    positions
}

/// Time of attention at a share of a device's peak.
#[must_use]
pub fn at_peak(flops: Flops, peak: hw::FlopsPerSecond, ratio: f64) -> Seconds {
    flops / (peak * ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partial_attention::PartialAttention;
    use engine::random;

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
        let (peak, n) = (312e12, f(tokens));
        let model = engine::model::embedded("llama-3-8b").expect("listed");
        let products = 2.0 * f(model.n_parameters() - model.embedding_parameters()) * n / (peak * 0.543);
        let per_pair = 4.0 * f(model.n_heads * model.head_dim * model.n_layers) / (peak * 0.508);
        let positions = budget("llama-3-8b").expect("listed").positions(1);
        let pairs = kernel.pairs(PromptChunk { past: 0, new: tokens }, positions);
        let calls = f(model.n_heads * model.n_layers) * kernel.per_head_s;
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
                let of = |keys: u64| f(keys).min(budget + kernel.floor * f(keys));
                let expected: f64 = (past + 1..=past + new).map(of).sum();
                let found = kernel.pairs(PromptChunk { past, new }, positions);
                // The border between dense and sparse queries need not be whole.
                assert!((found - expected).abs() <= 0.51, "{found}, sum {expected}");
            }
        }
    }

    #[test]
    fn chunks_add_up_to_the_whole_prompt() {
        let kernel = &KERNELS[0];
        let whole = kernel.pairs(PromptChunk { past: 0, new: 100_000 }, 3986.8);
        let cut: f64 = super::super::laid(&[32_768, 32_768, 34_464]).iter().map(|&c| kernel.pairs(c, 3986.8)).sum();
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

    #[test]
    fn recall_rises_to_one_with_the_budget_and_refinement_ends() {
        let mut stream = random::stream(5, "scores");
        let mut scores: Vec<f64> = (0..500).map(|_| 12.0 * stream.unit()).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        let values = vec![vec![1.0]; scores.len()];
        let lse = |n: usize| PartialAttention::over(&scores[..n], &values[..n], 1).log_sum_exp();
        let recall_of = |n: u64| recall(lse(usize::try_from(n).expect("small")), lse(500));
        let recalls: Vec<f64> = (0..=10).map(|n| recall_of(n * 50)).collect();
        assert!(recalls.is_sorted() && recalls[0] == 0.0 && (recalls[10] - 1.0).abs() < 1e-12, "{recalls:?}");
        let kept = refined(10, 16, 500, 0.9, &recall_of);
        assert!(recall_of(kept) >= 0.9 && recall_of(kept - 16) < 0.9, "{kept}");
        assert_eq!(refined(10, 0, 500, 2.0, &recall_of), 500, "an unreachable recall ends at everything");
    }
}
