//! Attention of decoding sequences: one query each over all cached keys and values, bound by memory.
//!
//! Per layer `start + 32-head sequences · per_sequence + bytes / (reached · bandwidth)`, linear in cached tokens, so that iterations
//! with an unchanged batch add up in closed form. Kernels that take a prompt's chunk and decoding sequences in one launch tile for the
//! chunk and serve the decoding sequences worse: what each of those then costs beside the chunk is `mixed`.
//! Units: seconds; `reached` is a share of the datasheet's memory bandwidth.

use serde::{Deserialize, Serialize};

use crate::cost::Source;
use crate::cost::law::COEFFICIENT_S_MAX;
use crate::cost::profile::Residuals;

/// Query heads of the sequence that `per_sequence_s` stands for.
pub const HEADS: f64 = 32.0;

/// Shares of the bandwidth that a law may have; with the datasheet's bandwidth far off, more than 1 is no mistake.
const REACHED: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// Law of one device type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeLaw {
    /// Start of the kernel and its reduction.
    pub start_s: f64,
    /// Per sequence of 32 query heads.
    pub per_sequence_s: f64,
    /// Share of the bandwidth.
    pub reached: f64,
    /// Error: of fitted rows, as three coefficients cannot follow thousands of them.
    pub residuals: Residuals,
    /// In one launch with a prompt's chunk, where that was measured; otherwise as alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed: Option<MixedLaw>,
}

/// What decoding sequences add to the launch of a chunk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixedLaw {
    /// Per sequence of 32 query heads.
    pub per_sequence_s: f64,
    /// Share of the bandwidth.
    pub reached: f64,
    /// Error of the whole launch.
    pub residuals: Residuals,
}

/// Start, seconds per sequence and share of the bandwidth where nothing was fitted: the middle of the fitted devices.
pub const ASSUMED: [f64; 3] = [12e-6, 0.07e-6, 0.83];
/// Interval there.
pub const ASSUMED_INTERVAL: [f64; 2] = [0.6, 1.8];

impl DecodeLaw {
    /// The law where nothing was fitted.
    #[must_use]
    pub fn assumed() -> Self {
        let [start_s, per_sequence_s, reached] = ASSUMED;
        let [low, high] = ASSUMED_INTERVAL;
        let residuals = Residuals { n_fit: 0, n_held_out: 0, median_error: 0.0, p90_error: 0.0, low, high };
        Self { start_s, per_sequence_s, reached, residuals, mixed: None }
    }

    /// Where the law comes from.
    #[must_use]
    pub const fn source(&self) -> Source {
        if self.residuals.n_fit == 0 { Source::Datasheet } else { Source::Measured }
    }

    /// What is wrong with it, if anything.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        let mixed = self.mixed.as_ref().map_or((0.0, 1.0), |mixed| (mixed.per_sequence_s, mixed.reached));
        let times = [self.start_s, self.per_sequence_s, mixed.0];
        if !times.iter().all(|value| (0.0..=COEFFICIENT_S_MAX).contains(value)) {
            return Err(format!("times must be from 0 to {COEFFICIENT_S_MAX:e}"));
        }
        if ![self.reached, mixed.1].iter().all(|value| REACHED.contains(value)) {
            return Err(format!("`reached` must be from {:e} to {:e}", REACHED.start(), REACHED.end()));
        }
        Ok(())
    }
}
