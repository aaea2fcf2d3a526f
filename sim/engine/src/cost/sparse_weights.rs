//! Weights with unstructured sparsity on tensor cores, after Flash-LLM (arXiv:2309.10285): "load sparse, compute dense".
//!
//! A decode GEMM `C[m, n] = A[m, k] · B[k, n]` with `n` sequences reads `A` in Tiled-CSL (section 4.2; `calibrate/src/cuda/tiled_csl.rs` encodes it), expands it on chip and multiplies
//! densely. The time law below was fitted to 108 bars digitised from the README figure of AlibabaResearch/flash-llm (A100; 12 shapes of
//! OPT-30B, 66B and 175B, sparsity 70, 80 and 90 %, 8, 16 and 32 sequences): mean error 4.2 %, worst 15 %, digitising ±1 to 2 TFLOPS. A law of
//! bandwidth alone misses by 17 % on average: expanding costs dense-equivalent time, so the gain saturates as weights get sparser.
//!
//! `SparseWeights` lays the law over another cost model, so that an engine with sparse weights does everything else as one with dense weights
//! does. The law has no limit of multiplication, as it was fitted below it; so a product with many rows (a prompt's chunk) takes no less than
//! the model below says that its dense operations take at best. Units: elements, bytes, seconds.

use hw::{Bytes, Format, Gpu, Seconds, real};

use crate::cost::{CostModel, Estimate, Source};
use crate::model::{Mixer, Model};
use crate::task::Op;

/// Smallest sparsity that a plan may use. A sub-tile whose kernel stages more than half of its elements in registers overflows (wrong results at
/// 50 %, issue 14 of the repository); tiles of random weights scatter, so a margin is kept.
pub const SPARSITY_MIN: f64 = 0.55;
/// Sequences beyond which the law was not fitted.
pub const SEQUENCES_MAX: u64 = 64;
/// GPU of the fit.
const FITTED_GPU: &str = "a100-sxm";
/// Memory bandwidth and peak of the fitted GPU, bytes and operations per second.
const FITTED: [f64; 2] = [2039e9, 312e12];
/// Bytes of a dense weight.
const DENSE_BYTES: u64 = 2;

/// A GEMM with sparse weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseGemm {
    /// Rows of the weights: outputs.
    pub m: u64,
    /// Columns of the weights: inputs.
    pub k: u64,
    /// Sequences.
    pub n: u64,
    /// Share of weights that are zero.
    pub sparsity: f64,
}

impl SparseGemm {
    /// Elements of the weights, in millions.
    fn millions(&self) -> f64 {
        real(self.m) * real(self.k) / 1e6
    }

    /// Time on a GPU. On the A100 the fitted law; elsewhere its terms follow memory bandwidth and peak, which nobody has checked: the
    /// interval is wide and the time counts as outside the hull, as it does beyond 64 sequences.
    pub fn estimate(&self, gpu: &Gpu) -> Estimate {
        let is_fitted = gpu.name.starts_with(FITTED_GPU);
        let (bandwidth, peak) = if is_fitted {
            (1.0, 1.0)
        } else {
            (FITTED[0] / gpu.memory_bandwidth.get(), FITTED[1] / gpu.peak_bf16.get())
        };
        // Microseconds: start, compressed megabytes, dense-equivalent megabytes, 10^9 multiply-adds.
        let load = 0.342 * 4.0 * (1.0 - self.sparsity) * self.millions() * bandwidth;
        let expand = 0.151 * 2.0 * self.millions() * peak;
        let multiply = 3.56 * self.millions() * real(self.n) / 1e3 * peak;
        let time = Seconds::new((17.1 + load + expand + multiply) * 1e-6);
        let dimension = if !is_fitted {
            Some("sparse GEMM on a GPU that it was not measured on")
        } else if self.n > SEQUENCES_MAX {
            Some("sparse GEMM of more than 64 sequences")
        } else {
            None
        };
        let (low, high) = if is_fitted { (0.85, 1.15) } else { (0.5, 2.0) };
        let outside = if dimension.is_some() { time } else { Seconds::ZERO };
        Estimate { time, low: time * low, high: time * high, source: Source::Published, outside, dimension }
    }
}

/// Names of the four products of a layer's weights, in the order of `products`.
pub const PRODUCTS: [&str; 4] = ["query-key-value", "output", "feed-forward in", "feed-forward out"];

/// Which products of every layer keep their weights sparse, and how sparse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseLayers {
    /// Share of weights that are zero.
    pub sparsity: f64,
    /// In the order of `PRODUCTS`.
    pub is_sparse: [bool; 4],
}

impl SparseLayers {
    /// All four products at this sparsity.
    pub const fn all(sparsity: f64) -> Self {
        Self { sparsity, is_sparse: [true; 4] }
    }

    /// Outputs and inputs of the sparse products on one GPU of a tensor group.
    fn shapes(&self, model: &Model, tensor_degree: u32) -> Vec<(u64, u64)> {
        let all = products(model, tensor_degree).into_iter().zip(self.is_sparse);
        all.filter(|(_, is_sparse)| *is_sparse).map(|((_, m, k), _)| (m, k)).collect()
    }

    /// What the weights of so many layers on one GPU of a tensor group take less than dense ones.
    pub fn saved(&self, model: &Model, tensor_degree: u32, n_layers: u64) -> Bytes {
        let saved = |(m, k): (u64, u64)| (m * k * DENSE_BYTES).saturating_sub(matrix_bytes(m, k, self.sparsity).0);
        Bytes(self.shapes(model, tensor_degree).into_iter().map(saved).sum::<u64>() * n_layers)
    }

    /// Why an engine cannot keep a model's weights so, if that is so.
    pub fn refused(&self, model: &Model) -> Option<String> {
        if model.experts.is_some() || model.latent.is_some() {
            return Some(format!(
                "`{}` has experts or latent attention, sparse weights know dense layers only",
                model.name
            ));
        }
        (self.sparsity < SPARSITY_MIN).then(|| {
            format!(
                "at a sparsity of {} tiles hold more than the kernel's registers, the smallest is {SPARSITY_MIN}",
                self.sparsity
            )
        })
    }
}

/// A cost model whose engine keeps some weights sparse.
pub struct SparseWeights<M> {
    inner: M,
    gpu: Gpu,
    sparsity: f64,
    products: Vec<Product>,
}

/// Products of one shape, of which some have sparse weights.
struct Product {
    outputs: u64,
    inputs: u64,
    /// What the dense operations of a row take at best.
    row_least: Seconds,
    /// Sparse ones of those of a layer. An operation does not say which product it is, so each of them takes its share of both times.
    sparse_share: f64,
}

impl<M: CostModel> SparseWeights<M> {
    /// `inner` with these weights of a model cut over a tensor group.
    pub fn new(inner: M, gpu: &Gpu, layers: SparseLayers, model: &Model, tensor_degree: u32) -> Self {
        // No cut over rows takes less, so what a row takes at best is a part of what any number of them takes.
        let least = |n: u64, k: u64| inner.least(&Op::Gemm { m: 1, n, k, format: Format::Bf16 });
        let (all, sparse) =
            (SparseLayers::all(layers.sparsity).shapes(model, tensor_degree), layers.shapes(model, tensor_degree));
        let products = sparse.iter().map(|&(outputs, inputs)| {
            let [n_sparse, n] =
                [&sparse, &all].map(|of| of.iter().filter(|shape| **shape == (outputs, inputs)).count());
            let sparse_share = real(n_sparse as u64) / real(n as u64);
            Product { outputs, inputs, row_least: least(outputs, inputs), sparse_share }
        });
        let products = products.collect();
        Self { gpu: gpu.clone(), sparsity: layers.sparsity, products, inner }
    }

    /// A product of sparse weights, if an operation is one.
    fn sparse(&self, op: &Op) -> Option<Estimate> {
        let Op::Gemm { m: rows, n: outputs, k: inputs, .. } = *op else { return None };
        let product = self.products.iter().find(|product| (product.outputs, product.inputs) == (outputs, inputs))?;
        let gemm = SparseGemm { m: outputs, k: inputs, n: rows, sparsity: self.sparsity };
        let sparse = gemm.estimate(&self.gpu).at_least(product.row_least * real(rows));
        let rest = 1.0 - product.sparse_share;
        Some(if rest > 0.0 {
            sparse.scaled(product.sparse_share).then(self.inner.elementary(op).scaled(rest))
        } else {
            sparse
        })
    }
}

impl<M: CostModel> CostModel for SparseWeights<M> {
    fn inner(&self) -> Option<&dyn CostModel> {
        Some(&self.inner)
    }

    fn elementary(&self, op: &Op) -> Estimate {
        self.sparse(op).unwrap_or_else(|| self.inner.elementary(op))
    }
}

/// Rows and columns of a tile of the format.
const TILE: [u64; 2] = [128, 64];

/// Bytes of a sparse matrix whose tiles are near their mean: 32-bit items padded to groups of four per tile, and the offsets.
pub fn matrix_bytes(m: u64, k: u64, sparsity: f64) -> Bytes {
    let tiles = m.div_ceil(TILE[0]) * k.div_ceil(TILE[1]);
    let items = real(m) * real(k) * (1.0 - sparsity) + 1.5 * real(tiles);
    Bytes::from_f64(4.0 * items + 4.0 * real(tiles + 2))
}

/// The four products of a layer's weights on one GPU of a tensor group, by name: outputs, inputs.
pub fn products(model: &Model, tensor_degree: u32) -> [(&'static str, u64, u64); 4] {
    let cut = |n: u64| n.div_ceil(u64::from(tensor_degree));
    let (query, copies) = (model.n_heads * model.head_dim, model.heads(Mixer::Full).copies(tensor_degree));
    let up = if model.gated { 2 } else { 1 } * model.intermediate;
    let [query_key_value, output, inwards, outwards] = PRODUCTS;
    [
        (query_key_value, cut(query + 2 * model.kv_width() * copies), model.hidden),
        (output, model.hidden, cut(query)),
        (inwards, cut(up), model.hidden),
        (outwards, model.hidden, cut(model.intermediate)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a100() -> Gpu {
        hw::catalog::gpu("a100-sxm-80g").expect("listed")
    }

    /// Operations per second, counted densely.
    fn dense_flops_per_s(gemm: &SparseGemm, gpu: &Gpu) -> f64 {
        2.0 * real(gemm.m) * real(gemm.k) * real(gemm.n) / gemm.estimate(gpu).time.get()
    }

    /// The shapes of the figure: outputs, inputs.
    const SHAPES: [(u64, u64); 12] = [
        (21_504, 7168),
        (7168, 7168),
        (28_672, 7168),
        (7168, 28_672),
        (27_648, 9216),
        (9216, 9216),
        (36_864, 9216),
        (9216, 36_864),
        (36_864, 12_288),
        (12_288, 12_288),
        (49_152, 12_288),
        (12_288, 49_152),
    ];

    /// TFLOPS read off the figure at 80 %: shape, 8, 16 and 32 sequences.
    const BARS: [(u64, u64, [f64; 3]); 3] =
        [(36_864, 9216, [24.8, 48.2, 88.8]), (7168, 7168, [17.5, 33.5, 60.8]), (12_288, 49_152, [25.9, 50.7, 94.4])];

    #[test]
    fn the_law_meets_the_bars_of_the_figure() {
        for (m, k, bars) in BARS {
            for (n, expected) in [8, 16, 32].into_iter().zip(bars) {
                let found = dense_flops_per_s(&SparseGemm { m, k, n, sparsity: 0.8 }, &a100()) / 1e12;
                assert!((found / expected - 1.0).abs() < 0.15, "{m} x {k}, {n}: {found}, read {expected}");
            }
        }
    }

    #[test]
    fn the_law_meets_the_means_over_all_shapes() {
        for (n, means) in [(8, [18.9, 23.0, 28.6]), (32, [70.5, 81.9, 97.3])] {
            for (sparsity, expected) in [0.7, 0.8, 0.9].into_iter().zip(means) {
                let of = |&(m, k): &(u64, u64)| dense_flops_per_s(&SparseGemm { m, k, n, sparsity }, &a100());
                let found = SHAPES.iter().map(of).sum::<f64>() / 12e12;
                assert!((found / expected - 1.0).abs() < 0.08, "{n} at {sparsity}: {found}, read {expected}");
            }
        }
    }

    #[test]
    fn sparse_wins_above_half_and_the_gain_saturates() {
        // Dense cuBLAS on the same figure reads weights at 1.7 TB/s.
        let shapes = products(&crate::model::embedded("opt-66b").expect("listed"), 1);
        let gain = |n: u64, sparsity: f64| {
            let dense: f64 = shapes.iter().map(|(_, m, k)| 2.0 * real(m * k) / 1.7e12).sum();
            let sparse = |(_, m, k): &(&str, u64, u64)| SparseGemm { m: *m, k: *k, n, sparsity }.estimate(&a100());
            dense / shapes.iter().map(|shape| sparse(shape).time.get()).sum::<f64>()
        };
        let crossover = (30..90).map(|percent| f64::from(percent) / 100.0).find(|&sparsity| gain(16, sparsity) > 1.0);
        assert!((0.4..=0.6).contains(&crossover.expect("sparse wins somewhere")), "{crossover:?}");
        assert!((1.3..=1.5).contains(&gain(16, 0.7)) && (1.9..=2.15).contains(&gain(16, 0.9)));
        assert!(gain(64, 0.8) < gain(16, 0.8) && gain(128, 0.8) < gain(64, 0.8));
        assert!(gain(16, 1.0) < 3.0, "expanding stays when nothing is loaded");
    }

    #[test]
    fn other_gpus_are_outside_the_hull() {
        let gemm = SparseGemm { m: 9216, k: 9216, n: 16, sparsity: 0.8 };
        let h100 = gemm.estimate(&hw::catalog::gpu("h100-sxm").expect("listed"));
        assert!(h100.dimension.is_some() && h100.outside == h100.time && h100.high > h100.time * 1.9);
        assert!(gemm.estimate(&a100()).dimension.is_none());
        assert!(SparseGemm { n: 65, ..gemm }.estimate(&a100()).dimension.is_some());
    }

    #[test]
    fn bytes_break_even_with_dense_at_half() {
        let dense = 2.0 * 9216.0 * 9216.0;
        let ratio = |sparsity| matrix_bytes(9216, 9216, sparsity).as_f64() / dense;
        assert!((ratio(0.5) - 1.0).abs() < 1e-3 && (ratio(0.8) - 0.4).abs() < 1e-3, "2 (1 - sparsity) of dense");
    }

    #[test]
    fn an_engine_with_sparse_weights_changes_nothing_but_its_products() {
        use crate::cost::roofline::Roofline;

        let model = crate::model::embedded("opt-66b").expect("listed");
        let cluster = hw::catalog::cluster(&a100(), 1, 8);
        let (dense, layers) = (Roofline::new(&cluster), SparseLayers::all(0.8));
        let sparse = SparseWeights::new(dense.clone(), &a100(), layers, &model, 2);
        let product = |rows, outputs| Op::Gemm { m: rows, n: outputs, k: 9216, format: Format::Bf16 };
        // Query, key and value of half of the heads: 13,824 outputs. The head has as many as there are words, and no other product.
        for rows in [8, 64] {
            let law = SparseGemm { m: 13_824, k: 9216, n: rows, sparsity: 0.8 }.estimate(&a100());
            assert_eq!(sparse.estimate(&product(rows, 13_824)), law);
            assert_eq!(sparse.estimate(&product(rows, 50_272)), dense.estimate(&product(rows, 50_272)));
        }
        // 2 · 4096 · 13,824 · 9216 operations at 0.75 of 312e12 per second: 4.46 ms, where the law alone would say 1.9 ms.
        let many = sparse.estimate(&product(4096, 13_824)).time.get();
        assert!((many - 4.46e-3).abs() < 0.01e-3, "{many}");
    }

    /// OPT-66B on four GPUs: both products of a feed-forward are 9216 by 9216. What each saves by itself adds up to what both save, and all four to the whole.
    #[test]
    fn products_of_one_shape_save_what_they_save_together() {
        use crate::cost::roofline::Roofline;

        let model = crate::model::embedded("opt-66b").expect("listed");
        let dense = Roofline::new(&hw::catalog::cluster(&a100(), 1, 8));
        let layer_s = |is_sparse: [bool; 4]| {
            let sparse =
                SparseWeights::new(dense.clone(), &a100(), SparseLayers { sparsity: 0.8, is_sparse }, &model, 4);
            let time = |(_, n, k): (&str, u64, u64)| {
                sparse.estimate(&Op::Gemm { m: 16, n, k, format: Format::Bf16 }).time.get()
            };
            products(&model, 4).into_iter().map(time).sum::<f64>()
        };
        let saved = |is_sparse| layer_s([false; 4]) - layer_s(is_sparse);
        let [inwards, outwards] = [saved([false, false, true, false]), saved([false, false, false, true])];
        let both = saved([false, false, true, true]);
        assert!(inwards > 0.0 && (inwards + outwards - both).abs() < 1e-12, "{inwards} and {outwards} against {both}");
        let rest = saved([true, true, false, false]);
        assert!((rest + both - saved([true; 4])).abs() < 1e-12);
    }
}
