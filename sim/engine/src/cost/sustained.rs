//! Matrix products under sustained load: calibration runs a kernel for milliseconds, training runs it for hours, and the power
//! limit then holds the clock below what the short run saw.
//!
//! A product never runs faster than `ratio` of the datasheet peak; slower ones are as measured. The ratio is a free parameter
//! of a machine, named in every report.

use hw::{Flops, FlopsPerSecond, Format, Gpu, Seconds};

use crate::cost::profiled::BLOCKS_OVER_TENSORS;
use crate::cost::{CostModel, Estimate};
use crate::task::Op;

/// A cost model under a power limit.
pub struct Sustained<M> {
    inner: M,
    gpu: Gpu,
    /// Shares of the peak that products in 16 bits and more hold, and narrower ones.
    ratios: [f64; 2],
}

impl<M: CostModel> Sustained<M> {
    /// `inner` on a device that holds `ratio` of its peak.
    pub fn new(inner: M, gpu: &Gpu, ratio: f64) -> Self {
        Self::by_width(inner, gpu, [ratio; 2])
    }

    /// The same where products in 16 bits and more hold another share than narrower ones.
    pub fn by_width(inner: M, gpu: &Gpu, ratios: [f64; 2]) -> Self {
        Self { inner, gpu: gpu.clone(), ratios }
    }

    /// Most that a product holds.
    fn held_peak(&self, op: &Op) -> Option<FlopsPerSecond> {
        let format = match op {
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => *format,
            Op::Attention { .. } => Format::Bf16,
            _ => return None,
        };
        let [wide, narrow] = self.ratios;
        let ratio = match format {
            Format::Mxfp8 if self.gpu.multiplies(Format::Mxfp8) => narrow / BLOCKS_OVER_TENSORS,
            format if format.is_whole() => wide,
            _ => narrow,
        };
        Some(self.gpu.peak(format) * ratio)
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
    #[test]
    fn units_that_scale_blocks_hold_less_by_what_the_blocks_cost() {
        let gpu = hw::catalog::gpu("b200").expect("listed");
        let roofline = Roofline::new(&hw::catalog::cluster(&gpu, 1, 8));
        let model = Sustained::by_width(roofline, &gpu, [0.5, 0.25]);
        let time = |format| model.estimate(&Op::Gemm { m: 8192, n: 8192, k: 8192, format }).time.get();
        assert!((time(Format::Mxfp8) / time(Format::Fp8) - 1.051).abs() < 1e-9);
    }
}
