//! Quantiles and medians, in one definition for every figure: linear between order statistics (`docs/output.md`), as numpy has them by default.

use crate::real;

/// Quantile of sorted values.
///
/// # Panics
/// Without values, or for a share outside of 0 to 1.
pub fn of_sorted(sorted: &[f64], share: f64) -> f64 {
    let (below, part) = place(sorted.len(), share);
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

/// Where the quantile of so many sorted values lies: the position of the value below, and the part of the way to the next one.
///
/// # Panics
/// Without values, or for a share outside of 0 to 1.
pub fn place(n: usize, share: f64) -> (usize, f64) {
    assert!(n > 0 && (0.0..=1.0).contains(&share), "quantile {share} of {n} values");
    let at = share * real(n as u64 - 1);
    let below = usize::try_from(crate::whole(at.floor())).expect("an index").min(n - 1);
    (below, at - at.floor())
}

/// Quantile of values in any order; 0 where there are none.
pub fn of(values: &[f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    of_sorted(&sorted, share)
}

/// Median of values in any order; 0 where there are none.
pub fn median(values: &[f64]) -> f64 {
    of(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_order_statistics() {
        // numpy.quantile([1, 2, 3, 4], [0, 0.5, 0.9, 1]) is [1, 2.5, 3.7, 4].
        for (share, expected) in [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)] {
            assert!((of_sorted(&[1.0, 2.0, 3.0, 4.0], share) - expected).abs() < 1e-12);
            assert!((of(&[3.0, 1.0, 4.0, 2.0], share) - expected).abs() < 1e-12);
        }
        assert_eq!(of_sorted(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_both() {
        assert_eq!([median(&[9.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 9.0]), median(&[])], [2.0, 3.0, 0.0]);
    }
}
