//! Matrix products under sustained load: calibration runs a kernel for milliseconds, training runs it for hours, and the power
//! limit then holds the clock below what the short run saw.
//!
//! A product never runs faster than `ratio` of the datasheet peak; slower ones are as measured. The ratio is a free parameter
//! of a machine, named in every report.

use hw::{Flops, FlopsPerSecond, Format, Gpu, Seconds};

use crate::cost::{CostModel, Estimate};
use crate::task::{Op, Pass};

/// Products that `Op::flops` counts of attention's backward over those that its kernels run, which compute the scores again (arXiv:2205.14135,
/// algorithm 4): four of five.
const BACKWARD_COUNTED: f64 = 0.8;

/// A cost model under a power limit.
pub struct Sustained<M> {
    inner: M,
    gpu: Gpu,
    /// Shares of the peak that products in 16 bits and more hold, and narrower ones.
    ratios: [f64; 2],
    attention: Attention,
}

/// What attention reaches of the 16-bit peak.
#[derive(Clone, Copy, Debug)]
enum Attention {
    /// Shares of what `Op::flops` counts, forward and backward.
    Share([f64; 2]),
    /// Those of FlashAttention-2, by the blocks of its kernels.
    Second,
}

/// Rows of a block of FlashAttention-2.
const BLOCK_ROWS: u64 = 128;
/// Most that FlashAttention-2 reaches of an H100's peak with heads of 128 and of 64, forward and backward, of all products that its kernels run.
/// Geometric fit to `profiles/measured/h100-sxm/operators-flash.csv` with the blocks below: 8 % off on average.
const SECOND: [[f64; 2]; 2] = [[0.346, 0.338], [0.326, 0.294]];
/// Blocks by which a kernel is longer than its work, over the width of a head: those that run at a time, 240 with heads of 128. Causal blocks differ in
/// length, and the last ones run alone. Fitted with it.
const TAIL: u64 = 30_000;

/// A share of the peak that holds no product.
const UNHELD: f64 = 1e6;

/// Share of the peak of FlashAttention-2 over so many blocks.
fn second(n_blocks: u64, head_dim: u64, pass: Pass) -> f64 {
    let most = SECOND[usize::from(head_dim < 128)][usize::from(pass == Pass::Backward)];
    let counted = if pass == Pass::Backward { BACKWARD_COUNTED } else { 1.0 };
    let tail = hw::real(TAIL) / hw::real(head_dim.max(1)) / hw::real(n_blocks.max(1));
    counted * most / (1.0 + tail)
}

impl<M: CostModel> Sustained<M> {
    /// `inner` on a device that holds `ratio` of its peak.
    pub fn new(inner: M, gpu: &Gpu, ratio: f64) -> Self {
        Self::by_width(inner, gpu, [ratio; 2])
    }

    /// The same where products in 16 bits and more hold another share than narrower ones.
    pub fn by_width(inner: M, gpu: &Gpu, ratios: [f64; 2]) -> Self {
        Self { inner, gpu: gpu.clone(), ratios, attention: Attention::Share([ratios[0]; 2]) }
    }

    /// The same where attention holds another share than products in 16 bits, of all that its kernels run.
    pub fn with_attention(self, share: f64) -> Self {
        Self { attention: Attention::Share([share, share * BACKWARD_COUNTED]), ..self }
    }

    /// `inner` where attention is no faster than FlashAttention-2; products stay as they are.
    pub fn second_flash_attention(inner: M, gpu: &Gpu) -> Self {
        Self { attention: Attention::Second, ..Self::new(inner, gpu, UNHELD) }
    }

    /// Most that a product holds.
    fn held_peak(&self, op: &Op) -> Option<FlopsPerSecond> {
        let format = match op {
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => *format,
            Op::Attention { documents, n_heads, head_dim, pass, .. } => {
                let n_blocks: u64 = documents.iter().map(|document| document.queries.div_ceil(BLOCK_ROWS)).sum();
                let held = match self.attention {
                    Attention::Share(shares) => shares[usize::from(*pass == Pass::Backward)],
                    Attention::Second => second(n_heads * n_blocks, *head_dim, *pass),
                };
                return Some(self.gpu.peak(Format::Bf16) * held);
            }
            _ => return None,
        };
        let [wide, narrow] = self.ratios;
        Some(self.gpu.peak(format) * if format.is_whole() { wide } else { narrow })
    }

    /// An estimate under the limit.
    fn held(&self, op: &Op, found: Estimate) -> Estimate {
        let Some(peak) = self.held_peak(op) else { return found };
        found.at_least(Flops::new(op.flops()) / peak)
    }
}

impl<M: CostModel> CostModel for Sustained<M> {
    fn inner(&self) -> Option<&dyn CostModel> {
        Some(&self.inner)
    }

    fn elementary(&self, op: &Op) -> Estimate {
        self.held(op, self.inner.elementary(op))
    }

    fn engine(&self, op: &Op) -> Option<Estimate> {
        self.inner.engine(op).map(|found| self.held(op, found))
    }

    fn least(&self, op: &Op) -> Seconds {
        let found = self.inner.least(op);
        match self.held_peak(op) {
            Some(peak) if found > Seconds::ZERO => found.max(Flops::new(op.flops()) / peak),
            _ => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::roofline::Roofline;

    #[test]
    fn a_large_product_is_held_at_the_ratio_and_a_small_one_is_left_alone() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
        let gemm = |m| Op::Gemm { m, n: 8192, k: 8192, format: Format::Bf16 };
        let (large, small) = (gemm(8192), gemm(1));
        let model = Sustained::new(roofline.clone(), &gpu, 0.5);
        let expected = large.flops() / (gpu.peak(Format::Bf16).get() * 0.5);
        assert!((model.estimate(&large).time.get() - expected).abs() < 1e-12);
        assert_eq!(model.estimate(&small), roofline.estimate(&small));
    }

    #[test]
    fn the_second_flash_attention_takes_what_was_measured() {
        // 32 heads of 128 over a causal sequence of 8,192 tokens on an H100: 1.755 ms, and 4.906 ms in backward.
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let model = Sustained::second_flash_attention(Roofline::new(&hw::catalog::cluster(&gpu, 1, 8)), &gpu);
        for (pass, measured) in [(Pass::Forward, 1.755e-3), (Pass::Backward, 4.906e-3)] {
            let documents = vec![crate::task::Document::causal(8192)];
            let op = Op::Attention { documents, n_heads: 32, n_kv_heads: 8, head_dim: 128, kv: hw::Dtype::Bf16, pass };
            let ratio = model.estimate(&op).time.get() / measured;
            assert!((0.92..1.08).contains(&ratio), "{pass:?}: {ratio}");
        }
        let gemm = Op::Gemm { m: 8192, n: 8192, k: 8192, format: Format::Bf16 };
        let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
        assert_eq!(model.estimate(&gemm), roofline.estimate(&gemm));
    }

    #[test]
    fn narrow_products_are_held_at_a_share_of_their_own() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
        let model = Sustained::by_width(roofline, &gpu, [0.5, 0.25]);
        for (format, share) in [(Format::Bf16, 0.5), (Format::Fp8, 0.25), (Format::Mxfp8, 0.25)] {
            let op = Op::Gemm { m: 8192, n: 8192, k: 8192, format };
            let expected = op.flops() / (gpu.peak(format).get() * share);
            assert!((model.estimate(&op).time.get() - expected).abs() < 1e-12, "{format:?}");
        }
    }
}
