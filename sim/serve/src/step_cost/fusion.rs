//! Small kernels of an iteration as a serving engine runs them: norms with the additions in front of them, activations, rotary positions.
//!
//! Layers are written kernel by kernel, and a cost model without a curve for a kernel that only moves activations starts it in four microseconds. Engines
//! replay an iteration as a CUDA graph. There a product that does nothing but launch takes 2.6 µs at the median, on H100 and H200 and under all three
//! engines (ai-dynamo/aiconfigurator @ 095f58a51c4c, gemm_perf of 16 rows and up to 128 by 256). Engines also compute the addition to the residual
//! stream inside of the norm behind it (vLLM `fused_add_rms_norm`), and TensorRT-LLM both inside of the all-reduce in front of them
//! (`AllReduceFusionOp.RESIDUAL_RMS_NORM`). What a fused kernel reads and writes is kept. Units: seconds, kernels.

use engine::cost::roofline::KERNEL_START_S;
use engine::task::{Op, Ops};
use hw::Seconds;

/// Start of a kernel in a replayed graph, seconds.
pub(super) const GRAPH_START_S: f64 = 2.6e-6;

/// What an engine computes in one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusion {
    /// Every kernel by itself, started as the cost model says.
    #[default]
    Nothing,
    /// Additions inside of the norms behind them, in a replayed graph.
    Norms,
    /// These inside of the all-reduces in front of them as well, where there are some.
    Exchanges,
}

impl Fusion {
    /// What small kernels of all layers take less than one by one: `n_norms` of them stand behind an addition, in a group of `n_ranks`.
    pub fn saved(self, ops: &Ops, n_norms: u32, n_ranks: u32) -> Seconds {
        let n_small: u32 = ops.iter().filter(|(op, _)| matches!(op, Op::Elementwise { .. })).map(|(_, n)| n).sum();
        let gone = match self {
            Self::Nothing => return Seconds::ZERO,
            Self::Norms => n_norms / 2,
            // The addition behind a feed-forward is a kernel of its own as well.
            Self::Exchanges => n_norms / 2 + if n_ranks > 1 { n_norms } else { 0 },
        };
        let gone = gone.min(n_small);
        let started = f64::from(n_small - gone) * (KERNEL_START_S - GRAPH_START_S);
        Seconds::new(f64::from(gone) * KERNEL_START_S + started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a dense layer: norm, rotary positions, addition and norm, activation, addition.
    fn layer(n: u32) -> Ops {
        vec![(Op::Elementwise { bytes: 1 << 20 }, 5 * n)]
    }

    #[test]
    fn additions_are_part_of_norms_and_a_graph_starts_kernels_sooner() {
        let saved = |fusion: Fusion, n_ranks| fusion.saved(&layer(80), 160, n_ranks).get() * 1e6;
        assert!(saved(Fusion::Nothing, 8).abs() < 1e-9);
        // 400 kernels of 4 µs become 320 of 2.6 µs.
        assert!((saved(Fusion::Norms, 1) - (1600.0 - 832.0)).abs() < 1e-6);
        // With all-reduces two of them are left in a layer.
        assert!((saved(Fusion::Exchanges, 8) - (1600.0 - 416.0)).abs() < 1e-6);
        assert!((saved(Fusion::Exchanges, 1) - (1600.0 - 832.0)).abs() < 1e-6);
    }
}
