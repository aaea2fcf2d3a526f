//! Predicted over measured: errors of a figure over some rows, and groups of rows that have something in common.
//!
//! An error is |predicted / measured − 1|.

use hw::quantile::median;

/// Errors of a figure over some rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Rows.
    pub n: usize,
    /// Mean of the error.
    pub mean: f64,
    /// Median of the error.
    pub median: f64,
    /// Largest error.
    pub worst: f64,
    /// Middle of predicted over measured, less 1.
    pub bias: f64,
}

/// What is known of a figure of some rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Errors of rows that have it predicted and measured.
    pub errors: Option<Errors>,
    /// Share of measurements inside their interval.
    pub covered: Option<f64>,
}

/// A group of rows, with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupErrors<F = Figure> {
    /// What they have in common.
    pub value: String,
    /// Rows.
    pub n_rows: usize,
    /// Those with a prediction.
    pub n_predicted: usize,
    /// How far they are off.
    pub figures: F,
}

/// Which middle of predicted over measured, less 1, is the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    /// The mean: of steps.
    Mean,
    /// The median: of latencies and of anybody's figures.
    Median,
}

impl Errors {
    /// Of predicted over measured; `None` where there are none.
    pub(crate) fn of(ratios: &[f64], bias: Bias) -> Option<Self> {
        let off: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        let mean_off = mean(&off)?;
        let middle = match bias {
            Bias::Mean => mean(ratios)?,
            Bias::Median => median(ratios),
        };
        Some(Self {
            n: ratios.len(),
            mean: mean_off,
            median: median(&off),
            worst: off.iter().copied().fold(0.0, f64::max),
            bias: middle - 1.0,
        })
    }
}

impl Figure {
    /// Of predicted over measured, and of whether measurements lie in their intervals.
    pub(crate) fn of(ratios: &[f64], bias: Bias, inside: &[bool]) -> Self {
        let n_inside = hw::real(inside.iter().filter(|is_inside| **is_inside).count() as u64);
        let covered = (!inside.is_empty()).then(|| n_inside / hw::real(inside.len() as u64));
        Self { errors: Errors::of(ratios, bias), covered }
    }
}

/// Whether a value lies in an interval.
pub(crate) fn holds([low, high]: [f64; 2], value: f64) -> bool {
    low <= value && value <= high
}

/// The mean of some values, where there are any.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / hw::real(values.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_hand_arithmetic() {
        // 10 % above, 20 % below, exact: mean 10 %, median 10 %, worst 20 %, bias −10/3 %, or 0 by the median.
        let of = |bias| Errors::of(&[1.1, 0.8, 1.0], bias).expect("ratios");
        let found = of(Bias::Mean);
        assert!((found.mean - 0.1).abs() < 1e-12 && (found.median - 0.1).abs() < 1e-12);
        assert!((found.worst - 0.2).abs() < 1e-12 && (found.bias + 0.1 / 3.0).abs() < 1e-12);
        assert_eq!(of(Bias::Median), Errors { bias: 0.0, ..found });
        assert_eq!(Errors::of(&[], Bias::Mean), None);
        assert_eq!(Figure::of(&[], Bias::Mean, &[true, false]), Figure { errors: None, covered: Some(0.5) });
    }
}
