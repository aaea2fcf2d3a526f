//! Measured seconds over bytes: straight in logarithms between measured sizes, the last bandwidth beyond them.

use serde::{Deserialize, Serialize};

use super::law::COEFFICIENT_S_MAX;
use super::residuals::Residuals;
use crate::cost::unusable::Unusable;

/// A fitted kernel or copy whose time depends on its bytes alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Error on unseen sizes.
    pub residuals: Residuals,
    /// Bytes as the operation defines them, increasing.
    pub bytes: Vec<f64>,
    /// Seconds at each size.
    pub seconds: Vec<f64>,
}

impl Curve {
    /// Least seconds per byte of any size.
    pub fn least_per_byte(&self) -> f64 {
        self.bytes.iter().zip(&self.seconds).map(|(bytes, seconds)| seconds / bytes).fold(f64::INFINITY, f64::min)
    }
}

/// Seconds for a size, and whether it lies outside the measured ones.
pub fn at(sizes: &[f64], seconds: &[f64], size: f64) -> (f64, bool) {
    let last = sizes.len() - 1;
    if last == 0 || size <= sizes[0] {
        return (seconds[0], size < sizes[0]);
    }
    if size > sizes[last] {
        // Beyond the largest size the last bandwidth holds.
        return (seconds[last] * size / sizes[last], true);
    }
    let high = sizes.partition_point(|known| *known <= size).clamp(1, last);
    let low = high - 1;
    let part = libm::log(size / sizes[low]) / libm::log(sizes[high] / sizes[low]);
    (libm::exp(libm::log(seconds[low]) * (1.0 - part) + libm::log(seconds[high]) * part), false)
}

/// What is wrong with a curve, if anything.
///
/// # Errors
/// A sentence.
pub fn check(sizes: &[f64], seconds: &[f64]) -> Result<(), Unusable> {
    let sorted = sizes.windows(2).all(|pair| pair[0] < pair[1]);
    let positive = sizes.iter().chain(seconds).all(|value| value.is_finite() && *value > 0.0)
        && seconds.iter().all(|value| *value <= COEFFICIENT_S_MAX);
    if sizes.is_empty() || sizes.len() != seconds.len() || !sorted || !positive {
        return Err(Unusable::Points { seconds_max: COEFFICIENT_S_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_sizes_the_time_is_their_geometric_mean_and_beyond_them_the_bandwidth_holds() {
        let (sizes, seconds) = ([1e3, 1e5], [1e-5, 1e-3]);
        let (middle, outside) = at(&sizes, &seconds, 1e4);
        assert!((middle - 1e-4).abs() < 1e-12 && !outside);
        assert_eq!(at(&sizes, &seconds, 1e6), (1e-3 * 10.0, true));
        assert_eq!(at(&sizes, &seconds, 10.0), (1e-5, true));
        assert!(check(&sizes, &seconds).is_ok() && check(&[2.0, 1.0], &[1.0, 1.0]).is_err());
    }
}
