//! Fits seconds over bytes: medians in bins of equal ratio, never falling as bytes grow.

use engine::cost::curve::{self, Curve};
use hw::quantile;

use super::residuals;

/// Bins per factor of ten.
const BINS: f64 = 6.0;

/// A curve through measured (bytes, seconds); `None` without points.
pub fn fit(points: &[(f64, f64)]) -> Option<Curve> {
    if points.is_empty() {
        return None;
    }
    let all = knots(points.iter());
    // Every point is predicted by the curve of the others; the ends, which that would leave outside, are not.
    let (low, high) = (all[0].0, all[all.len() - 1].0);
    let inner = (0..points.len()).filter(|&index| points[index].0 > low && points[index].0 < high);
    let ratios: Vec<f64> = inner
        .map(|index| {
            let others = knots(points.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, point)| point));
            let (sizes, seconds): (Vec<f64>, Vec<f64>) = others.into_iter().unzip();
            points[index].1 / curve::at(&sizes, &seconds, points[index].0).0
        })
        .collect();
    let residuals = residuals(if ratios.is_empty() { &[1.0] } else { &ratios }, points.len());
    let (bytes, seconds) = all.into_iter().unzip();
    Some(Curve { residuals, bytes, seconds })
}

/// Knots of increasing size and seconds that do not fall.
fn knots<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Vec<(f64, f64)> {
    let mut bins: std::collections::BTreeMap<i64, (Vec<f64>, Vec<f64>)> = std::collections::BTreeMap::new();
    for &(bytes, seconds) in points {
        #[expect(clippy::cast_possible_truncation, reason = "a logarithm is small")]
        let bin = bins.entry((bytes.max(1.0).log10() * BINS).floor() as i64).or_default();
        bin.0.push(bytes.max(1.0).ln());
        bin.1.push(seconds.ln());
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / super::float(values.len());
    let mut knots: Vec<(f64, f64)> =
        bins.into_values().map(|(bytes, seconds)| (mean(&bytes).exp(), quantile::median(&seconds).exp())).collect();
    let mut most = 0.0_f64;
    let up: Vec<f64> = knots
        .iter()
        .map(|knot| {
            most = most.max(knot.1);
            most
        })
        .collect();
    let mut least = f64::INFINITY;
    let mut down: Vec<f64> = knots
        .iter()
        .rev()
        .map(|knot| {
            least = least.min(knot.1);
            least
        })
        .collect();
    down.reverse();
    for (knot, (up, down)) in knots.iter_mut().zip(up.into_iter().zip(down)) {
        knot.1 = (up * down).sqrt();
    }
    knots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_and_a_bandwidth_are_followed_and_a_larger_size_never_takes_less() {
        // 10 µs and 1 GB/s, with 4 % of noise that makes some neighbours fall.
        let points: Vec<(f64, f64)> = (0..40)
            .map(|i| {
                let bytes = 1e3 * 1.4_f64.powi(i);
                (bytes, (1e-5 + bytes * 1e-9) * (1.0 + 0.04 * ((f64::from(i) * 0.618).fract() - 0.5)))
            })
            .collect();
        let curve = fit(&points).expect("points");
        assert!(curve.seconds.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(curve.residuals.median_error < 0.04, "{:?}", curve.residuals);
        let (seconds, outside) = engine::cost::curve::at(&curve.bytes, &curve.seconds, 2e6);
        assert!((seconds / 2.01e-3 - 1.0).abs() < 0.06 && !outside, "{seconds}");
    }
}
