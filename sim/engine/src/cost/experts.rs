//! The layer of routed experts as serving engines fuse it: routing, permutation, both products, activation and the sum over experts.
//!
//! Seconds = start + Σ coefficient · term, with terms in seconds of the datasheet's peaks, so that a coefficient is how far the kernel is from
//! them and another card's time follows from its datasheet. The terms:
//! - `weights`: the matrices of visited experts over the bandwidth; with few tokens this is all there is;
//! - `products`: operations of the rows that arrive here, over the peak of their format;
//! - `padding`: operations that tiles of 64 rows do in vain, because every visited expert fills its last tile;
//! - `here`: activations of rows that are computed here, in and out of memory;
//! - `everywhere`: the same of all rows that the tokens have, also of those whose experts are on another GPU. Kernels that write zeros for
//!   them and add them up afterwards pay this however few experts a GPU holds.
//!
//! A `Surface` corrects what the terms leave, as a factor on all of them. On all but the start it would be free where the start is nearly all: a layer far larger
//! than the measured ones would take ten times its law. The rows of each expert are part of the question, because the skew of a router decides how many experts
//! are visited and how many rows the busiest GPU has.

use hw::{Flops, Format, Gpu, Seconds};
use serde::{Deserialize, Serialize};

use crate::cost::law::COEFFICIENT_S_MAX;
use crate::cost::names;
use crate::cost::residuals::Residuals;
use crate::cost::surface::Surface;
use crate::cost::unusable::Unusable;

pub mod balance;
pub mod counts;
pub mod draws;
pub mod kernel;
mod routing;
mod stream;
pub mod tables;

pub use routing::{DRAWN_TOKENS, Routing};

/// Rows of a tile of a grouped product.
const TILE: u64 = 64;
/// Bytes of an activation.
const WIDE: f64 = 2.0;
/// Largest coefficient that is taken for real.
const COEFFICIENT_MAX: f64 = 1e4;
/// Names of the axes of the surface.
pub const AXES: [&str; 3] = ["rows per visited expert", "visited experts", "elements of an expert's matrix"];

/// How many times as long as a tuned kernel one takes for rows beyond the first tile of an expert that it falls back to. Fitted on six runs of DeepSeek in
/// block-scaled 8 bits on eight GPUs with prompts of 8192 tokens under SGLang 0.5.9 on B200; no table has such kernels.
const UNTUNED: f64 = 2.8;
/// Rows of the smallest tile of that kernel (FlashInfer, `trtllm_fp8_block_scale_moe`).
const SMALLEST_TILE: u64 = 8;

/// Which kernel of a grouped product an engine runs on its shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tactic {
    /// The fastest of the variants that it has timed, as those who made the tables.
    #[default]
    Tuned,
    /// One that it falls back to. That is as good where the rows of an expert fill one tile.
    Untuned,
    /// Triton's, which `SGLang` keeps for models that it has not listed for a faster library.
    Triton,
    /// CUTLASS's, which TensorRT-LLM takes where nobody asks for another one.
    Cutlass,
    /// Triton's with the tiles that vLLM takes where it has no file of tuned ones for a shape, up to 0.16: blocks of 64 rows and 64 columns, 32 deep
    /// (`get_default_config` of vllm/model_executor/layers/fused_moe/fused_moe.py).
    DefaultTiles,
}

/// The routed experts of one layer on one GPU, for one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedExperts {
    /// Rows of each expert on this GPU; those without rows may be left out.
    pub rows: Vec<u64>,
    /// Tokens that this GPU's kernel is given.
    pub tokens: u64,
    /// Experts of a token, here and elsewhere.
    pub top_k: u64,
    /// Width of what enters an expert: that of the model, or of the projection in front of its experts.
    pub hidden: u64,
    /// Inner width of an expert on this GPU.
    pub width: u64,
    /// Whether the activation is gated, which needs three matrices instead of two.
    pub gated: bool,
    /// Format of the products.
    pub format: Format,
    /// Which variant of the kernel runs.
    pub tactic: Tactic,
}

impl Tactic {
    /// End of the name of its curve, where that is one by itself.
    pub const fn curve(self) -> Option<&'static str> {
        match self {
            Self::Tuned | Self::Untuned => None,
            Self::Triton => Some(names::TRITON_EXPERTS),
            Self::Cutlass => Some(names::CUTLASS_EXPERTS),
            Self::DefaultTiles => Some(names::DEFAULT_TILES),
        }
    }
}

/// Coefficients of the terms; none is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsLaw {
    /// Launches, seconds.
    pub start_s: f64,
    /// Of the weights of visited experts.
    pub weights: f64,
    /// Of the products of rows.
    pub products: f64,
    /// Of the products of padding.
    pub padding: f64,
    /// Of the traffic of rows that are computed here.
    pub here: f64,
    /// Of the traffic of all rows.
    pub everywhere: f64,
}

/// Fitted experts of one format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsCurve {
    /// Error on unseen shapes.
    pub residuals: Residuals,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Law.
    pub law: ExpertsLaw,
    /// Correction of the law, where it predicts unseen shapes better than the law alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surface: Option<Surface>,
}

impl FusedExperts {
    /// Matrices of an expert.
    pub const fn n_matrices(&self) -> u64 {
        if self.gated { 3 } else { 2 }
    }

    /// Whether some of the tokens' experts are on other GPUs.
    pub fn has_experts_elsewhere(&self) -> bool {
        self.rows.iter().sum::<u64>() < self.tokens * self.top_k
    }

    /// Terms of the law in the order of its coefficients, the start being 1.
    pub fn terms(&self, gpu: &Gpu) -> [f64; 6] {
        let (mut visited, mut routed, mut padded) = (0, 0, 0);
        for &rows in self.rows.iter().filter(|rows| **rows > 0) {
            visited += 1;
            routed += rows;
            padded += rows.next_multiple_of(TILE) - rows;
        }
        let matrices = self.n_matrices();
        let elements = hw::real(matrices * self.hidden * self.width);
        let bandwidth = gpu.memory_bandwidth.get();
        let per_operation = 2.0 * elements / gpu.peak(self.format).get();
        // In, out, and between the products as much as each of their results and what the activation makes of them.
        let traffic = hw::real(2 * self.hidden + (2 * matrices - 1) * self.width) * WIDE / bandwidth;
        let longer = self.longer();
        [
            1.0,
            self.format.weight_bytes(hw::real(visited) * elements) / bandwidth,
            hw::real(routed) * per_operation * longer,
            hw::real(padded) * per_operation * longer,
            hw::real(routed) * traffic * longer,
            hw::real(self.tokens * self.top_k) * traffic * longer,
        ]
    }

    /// Time of the rows' products at the datasheet's peak: no kernel is faster. A surface says little between its last knot and what was measured.
    pub fn least(&self, gpu: &Gpu) -> Seconds {
        let elements = hw::real(self.n_matrices() * self.hidden * self.width);
        Flops::new(2.0 * elements * hw::real(self.rows.iter().sum())) / gpu.peak(self.format)
    }

    /// How many times as long as with a tuned kernel its rows take.
    fn longer(&self) -> f64 {
        let (beyond, routed) = self
            .rows
            .iter()
            .fold((0, 0), |(beyond, routed), rows| (beyond + rows.saturating_sub(SMALLEST_TILE), routed + rows));
        match self.tactic {
            Tactic::Untuned if routed > 0 => 1.0 + (UNTUNED - 1.0) * hw::real(beyond) / hw::real(routed),
            _ => 1.0,
        }
    }

    /// Place on the axes of the surface.
    pub fn point(&self) -> [f64; 3] {
        let visited = hw::real(self.rows.iter().filter(|rows| **rows > 0).count() as u64).max(1.0);
        let routed = hw::real(self.rows.iter().sum());
        [(routed / visited).max(1.0), visited, hw::real(self.hidden * self.width)]
    }
}

impl ExpertsLaw {
    /// Coefficients in the order of the terms.
    pub const fn coefficients(&self) -> [f64; 6] {
        [self.start_s, self.weights, self.products, self.padding, self.here, self.everywhere]
    }

    /// The law of these coefficients.
    pub const fn of(coefficients: [f64; 6]) -> Self {
        let [start_s, weights, products, padding, here, everywhere] = coefficients;
        Self { start_s, weights, products, padding, here, everywhere }
    }

    /// Seconds of a layer with these terms.
    pub fn seconds(&self, terms: [f64; 6]) -> f64 {
        terms.iter().zip(self.coefficients()).map(|(term, coefficient)| term * coefficient).sum()
    }
}

impl ExpertsCurve {
    /// Seconds of a layer on a GPU, and the axis outside of which it lies.
    pub fn seconds(&self, layer: &FusedExperts, gpu: &Gpu) -> (f64, Option<usize>) {
        let (factor, outside) = self.surface.as_ref().map_or((1.0, None), |surface| surface.factor(&layer.point()));
        (self.law.seconds(layer.terms(gpu)) * factor, outside)
    }

    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Unusable> {
        if !(0.0..=COEFFICIENT_S_MAX).contains(&self.law.start_s) {
            let what = format!("`start_s` is {},", self.law.start_s);
            return Err(Unusable::range(what, 0, format!("{COEFFICIENT_S_MAX:e}")));
        }
        if !self.law.coefficients()[1..].iter().all(|value| (0.0..=COEFFICIENT_MAX).contains(value)) {
            return Err(Unusable::range("every coefficient", 0, format!("{COEFFICIENT_MAX:e}")));
        }
        let Some(surface) = &self.surface else { return Ok(()) };
        if surface.axes.len() != AXES.len() {
            return Err(Unusable::Axes { found: surface.axes.len(), expected: AXES.len() });
        }
        surface.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untuned_kernel_takes_longer_where_an_expert_has_more_than_a_tile() {
        let gpu = hw::catalog::gpu("b200").expect("listed");
        let ratio = |rows: &[u64], term: usize| {
            let tuned = layer(rows.to_vec());
            let untuned = FusedExperts { tactic: Tactic::Untuned, ..tuned.clone() };
            untuned.terms(&gpu)[term] / tuned.terms(&gpu)[term]
        };
        // All rows lie in a first tile; half of 32 lie beyond; weights are read once in either.
        assert!((ratio(&[8, 3, 0], 2) - 1.0).abs() < 1e-12);
        assert!((ratio(&[16, 16], 2) - 1.9).abs() < 1e-12 && (ratio(&[16, 16], 4) - 1.9).abs() < 1e-12);
        assert!((ratio(&[16, 16], 1) - 1.0).abs() < 1e-12);
    }

    fn layer(rows: Vec<u64>) -> FusedExperts {
        FusedExperts {
            rows,
            tokens: 4,
            top_k: 2,
            hidden: 1000,
            width: 100,
            gated: true,
            format: Format::Bf16,
            tactic: Tactic::Tuned,
        }
    }

    #[test]
    fn no_layer_is_faster_than_its_products_at_the_peak() {
        // 66 rows of 6e5 operations at 989e12 a second.
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let least = layer(vec![65, 0, 1]).least(&gpu).get();
        assert!((least / (66.0 * 6e5 / 989e12) - 1.0).abs() < 1e-9, "{least}");
    }

    #[test]
    fn only_visited_experts_are_read_and_each_fills_its_last_tile() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let (bandwidth, peak) = (gpu.memory_bandwidth.get(), gpu.peak(Format::Bf16).get());
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-12, "{found} of {wanted}");
        let [one, weights, products, padding, here, everywhere] = layer(vec![1, 0, 65]).terms(&gpu);
        near(one, 1.0);
        // Two experts of 3 · 1000 · 100 elements of two bytes; 66 rows of 6e5 operations; 63 and 63 rows in vain.
        near(weights, 2.0 * 3e5 * 2.0 / bandwidth);
        near(products, 66.0 * 6e5 / peak);
        near(padding, 126.0 * 6e5 / peak);
        // A row moves 2 · 1000 + 5 · 100 elements; four tokens have eight rows, wherever they are computed.
        near(here, 66.0 * 2500.0 * 2.0 / bandwidth);
        near(everywhere, 8.0 * 2500.0 * 2.0 / bandwidth);
    }

    #[test]
    fn rows_that_are_missing_are_elsewhere() {
        assert!(layer(vec![1, 2]).has_experts_elsewhere());
        assert!(!layer(vec![4, 4]).has_experts_elsewhere());
    }

    #[test]
    fn a_curve_is_its_law_times_its_surface() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let axis = |name: &str| crate::cost::surface::Axis::new(name, vec![1e9]);
        let surface = Surface { axes: AXES.map(axis).to_vec(), values: vec![2.0_f64.ln()] };
        let residuals = Residuals { n_fit: 9, n_held_out: 1, median_error: 0.0, p90_error: 0.0, low: 1.0, high: 1.0 };
        let law = ExpertsLaw { start_s: 1e-5, weights: 1.5, ..ExpertsLaw::default() };
        let curve = ExpertsCurve { residuals, kernel: None, law, surface: Some(surface) };
        assert_eq!(curve.check(), Ok(()));
        let weights = layer(vec![4, 4]).terms(&gpu)[1];
        let (found, _) = curve.seconds(&layer(vec![4, 4]), &gpu);
        assert!((found - 2.0 * (1e-5 + 1.5 * weights)).abs() < 1e-15);
    }
}
