//! What measured runs say of a profile: factors on its times, with the runs that they were chosen on.
//!
//! Tables are measured kernel by kernel. A card under load has other clocks, and an engine of another version other kernels. A run of a whole engine
//! says two factors: an operation takes its table's time, times `compute` to the share of arithmetic and `memory` to the rest; the share is that of the
//! datasheet's times of both. Of exchanges and copies such a run says too little, and they keep their times. A step that a profiler recorded says a
//! factor of every kind of kernels, which then stands in place of the two.

use std::collections::BTreeMap;

use hw::{Bytes, Flops, Format, Gpu};
use serde::{Deserialize, Serialize};

use crate::cost::busy::moved;
use crate::cost::experts::FusedExperts;
use crate::cost::kernel_kind::KernelKind;
use crate::cost::unusable::Unusable;
use crate::task::{CopyKind, Op};

/// Factors that are taken for real.
pub const FACTORS: std::ops::RangeInclusive<f64> = 0.1..=10.0;
/// Longest time from a client to an engine's queue, seconds.
const START_S_MAX: f64 = 60.0;

/// Factors on a profile's times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// On what arithmetic takes.
    pub compute: f64,
    /// On what reading and writing device memory takes.
    pub memory: f64,
    /// Mean time from the client's sending to the engine's queue, seconds.
    pub start_s: f64,
    /// When they were chosen.
    pub date: String,
    /// Runs that they were chosen on.
    pub on: Vec<String>,
    /// On what kernels of a kind take, in place of both.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernels: BTreeMap<KernelKind, f64>,
}

impl Calibrated {
    /// Nothing is changed but what is said.
    pub const fn plain(start_s: f64) -> Self {
        let kernels = BTreeMap::new();
        Self { compute: 1.0, memory: 1.0, start_s, date: String::new(), on: Vec::new(), kernels }
    }

    /// What it changes, in words.
    pub fn words(&self) -> String {
        let ms = self.start_s * 1e3;
        format!(
            "arithmetic × {:.3}, memory × {:.3}, {ms:.0} ms from the client to the queue",
            self.compute, self.memory
        )
    }

    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), Unusable> {
        for (key, value) in [("compute", self.compute), ("memory", self.memory)] {
            if !FACTORS.contains(&value) {
                return Err(Unusable::range(format!("`{key}` is {value},"), FACTORS.start(), FACTORS.end()));
            }
        }
        if let Some((kind, factor)) = self.kernels.iter().find(|(_, factor)| !FACTORS.contains(factor)) {
            return Err(Unusable::range(
                format!("`kernels` has {factor} for {kind:?},"),
                FACTORS.start(),
                FACTORS.end(),
            ));
        }
        if !(0.0..=START_S_MAX).contains(&self.start_s) {
            return Err(Unusable::range(format!("`start_s` is {},", self.start_s), 0, START_S_MAX));
        }
        Ok(())
    }

    /// The factor of a recorded step on an operation's time, if there is one.
    fn of_kind(&self, op: &Op) -> Option<f64> {
        self.kernels.get(&KernelKind::of(op)?).copied()
    }

    /// The least factor of any piece that an operation is cut into.
    pub fn least(&self, op: &Op) -> f64 {
        // The datasheet's share of arithmetic grows as an operation is cut less, so no piece is faster than by the lesser factor.
        self.of_kind(op).unwrap_or_else(|| self.compute.min(self.memory))
    }

    /// Factor of an operation's time.
    pub fn of_operation(&self, op: &Op, gpu: &Gpu) -> f64 {
        if let Some(factor) = self.of_kind(op) {
            return factor;
        }
        match op {
            Op::Gemm { format, .. } | Op::GroupedGemm { format, .. } => {
                self.between(op.flops(), moved(op), (gpu, *format))
            }
            Op::Attention { .. } => self.between(op.flops(), moved(op), (gpu, Format::Bf16)),
            Op::Elementwise { .. } | Op::Embedding { .. } | Op::Copy { kind: CopyKind::DeviceToDevice, .. } => {
                self.memory
            }
            _ => 1.0,
        }
    }

    /// Factor of a fused layer of experts.
    pub fn of_experts(&self, layer: &FusedExperts, gpu: &Gpu) -> f64 {
        let elements = hw::real(layer.n_matrices() * layer.hidden * layer.width);
        let rows = hw::real(layer.rows.iter().sum());
        let visited = hw::real(layer.rows.iter().filter(|rows| **rows > 0).count() as u64);
        let bytes = layer.format.weight_bytes(elements * visited);
        self.between(2.0 * rows * elements, bytes, (gpu, layer.format))
    }

    /// The factor of so many operations over so many bytes.
    fn between(&self, flops: f64, bytes: f64, (gpu, format): (&Gpu, Format)) -> f64 {
        let arithmetic = (Flops::new(flops) / gpu.peak(format)).get();
        let traffic = (Bytes::from_f64(bytes) / gpu.memory_bandwidth).get();
        let both = arithmetic + traffic;
        let share = if both > 0.0 { arithmetic / both } else { 0.0 };
        libm::exp(share * libm::log(self.compute) + (1.0 - share) * libm::log(self.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Collective;
    use hw::GroupShape;

    #[test]
    fn what_reads_weights_follows_memory_and_what_multiplies_follows_arithmetic() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let found = Calibrated { compute: 2.0, memory: 0.5, ..Calibrated::plain(0.0) };
        let product = |m| found.of_operation(&Op::Gemm { m, n: 8192, k: 8192, format: Format::Bf16 }, &gpu);
        // One row: 1.3e8 operations, 0.14 us, over 1.3e8 bytes, 40 us: a share of 0.34 %. 65,536 rows: 8.9 ms over 0.68 ms, a share of 93 %.
        assert!((product(1) - 0.5).abs() < 0.01, "{}", product(1));
        assert!(product(65_536) > 1.8 && product(65_536) < 2.0, "{}", product(65_536));
        assert!((found.of_operation(&Op::Elementwise { bytes: 1 << 20 }, &gpu) - 0.5).abs() < 1e-12);
        assert!((found.of_operation(&Op::Host { ns: 5 }, &gpu) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_recorded_step_says_a_factor_of_every_kind_of_kernels() {
        let gpu = hw::catalog::gpu("h100-sxm").expect("listed");
        let kernels = [(KernelKind::Product, 1.5), (KernelKind::AllReduce, 0.5)].into();
        let found = Calibrated { compute: 2.0, memory: 3.0, kernels, ..Calibrated::plain(0.0) };
        let product = Op::Gemm { m: 1, n: 8192, k: 8192, format: Format::Bf16 };
        let exchange = |kind| Op::Collective { kind, bytes: 8, shape: GroupShape::inside(2) };
        let factors =
            [product, exchange(Collective::AllReduce), exchange(Collective::AllGather), Op::Elementwise { bytes: 8 }]
                .map(|op| found.of_operation(&op, &gpu));
        assert_eq!(factors, [1.5, 0.5, 1.0, 3.0]);
        let again: Calibrated = toml::from_str(&toml::to_string(&found).expect("TOML")).expect("TOML");
        assert_eq!(again, found);
        let wrong = Calibrated { kernels: [(KernelKind::Memory, 0.0)].into(), ..Calibrated::plain(0.0) };
        assert!(wrong.check().is_err());
    }

    #[test]
    fn factors_out_of_reason_are_refused() {
        assert_eq!(Calibrated::plain(0.01).check(), Ok(()));
        let wrong = [
            Calibrated { compute: 0.0, ..Calibrated::plain(0.0) },
            Calibrated { memory: f64::NAN, ..Calibrated::plain(0.0) },
            Calibrated::plain(-1.0),
        ];
        assert!(wrong.iter().all(|found| found.check().is_err()));
    }
}
