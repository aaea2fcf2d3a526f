//! Seconds of one layer by the number of devices: a piecewise alpha-beta curve through the sizes that can be had.
//!
//! Between neighbouring sizes a and b the time is A + W/n with A and W from both ends, so it is continuous; sizes that are no faster than a
//! smaller one are left out, so it falls (arXiv:2409.03365, section 3.2, asks for a positive curve that does not rise). Below the smallest
//! size the devices take turns: n times the time stays the same.

/// A falling curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Devices, ascending, and seconds, descending.
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// The curve through points; those that are no faster than one with fewer devices are left out.
    ///
    /// # Panics
    /// When there is no point, or a time is not positive and finite.
    pub fn new(mut points: Vec<(u32, f64)>) -> Self {
        points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut kept: Vec<(u32, f64)> = Vec::with_capacity(points.len());
        for (n, seconds) in points {
            assert!(n > 0 && seconds > 0.0 && seconds.is_finite(), "{seconds} s on {n} devices");
            if kept.last().is_none_or(|&(_, best)| seconds < best) {
                kept.push((n, seconds));
            }
        }
        assert!(!kept.is_empty(), "a curve goes through at least one point");
        Self { points: kept }
    }

    /// Devices and seconds of every size.
    pub fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// The smallest size.
    pub fn smallest(&self) -> (u32, f64) {
        self.points[0]
    }

    /// The largest size, which is the fastest.
    pub fn largest(&self) -> (u32, f64) {
        self.points[self.points.len() - 1]
    }

    /// Index of the largest size of at most `n` devices.
    pub fn within(&self, n: u32) -> Option<usize> {
        self.points.partition_point(|&(size, _)| size <= n).checked_sub(1)
    }

    /// Seconds on `n` devices.
    pub fn seconds(&self, n: f64) -> f64 {
        let (first, last) = (self.smallest(), self.largest());
        if n <= f64::from(first.0) {
            return first.1 * f64::from(first.0) / n;
        }
        let after = self.points.partition_point(|&(size, _)| f64::from(size) <= n);
        if after == self.points.len() {
            return last.1;
        }
        let ((a, slow), (b, fast)) = (self.points[after - 1], self.points[after]);
        let (at_a, at_b) = (1.0 / f64::from(a), 1.0 / f64::from(b));
        fast + (slow - fast) * (1.0 / n - at_b) / (at_a - at_b)
    }

    /// Devices that take `seconds`; the largest size where even that is slower.
    pub fn devices(&self, seconds: f64) -> f64 {
        let (first, last) = (self.smallest(), self.largest());
        if seconds >= first.1 {
            return f64::from(first.0) * first.1 / seconds;
        }
        let after = self.points.partition_point(|&(_, time)| time > seconds);
        if after == self.points.len() {
            return f64::from(last.0);
        }
        let ((a, slow), (b, fast)) = (self.points[after - 1], self.points[after]);
        let (at_a, at_b) = (1.0 / f64::from(a), 1.0 / f64::from(b));
        1.0 / (at_b + (at_a - at_b) * (seconds - fast) / (slow - fast))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_alpha_beta_law_is_met_between_its_points() {
        // T(n) = 2 + 8/n.
        let law = |n: f64| 2.0 + 8.0 / n;
        let curve = Curve::new([1, 2, 4, 16].map(|n| (n, law(f64::from(n)))).to_vec());
        for n in [1.0, 1.5, 2.0, 3.0, 7.0, 16.0] {
            assert!((curve.seconds(n) - law(n)).abs() < 1e-12, "{n}");
            assert!((curve.devices(law(n)) - n).abs() < 1e-9, "{n}");
        }
        assert_eq!(curve.seconds(0.5), 20.0, "half of the time on one device");
        assert_eq!(curve.seconds(99.0), law(16.0));
        assert_eq!(curve.devices(0.1), 16.0);
    }

    #[test]
    fn sizes_that_do_not_help_are_left_out() {
        let curve = Curve::new(vec![(4, 3.0), (1, 8.0), (2, 4.0), (3, 4.0), (8, 3.5)]);
        assert_eq!(curve.points(), [(1, 8.0), (2, 4.0), (4, 3.0)]);
        assert_eq!((curve.within(0), curve.within(3), curve.within(100)), (None, Some(1), Some(2)));
    }

    proptest! {
        #[test]
        fn devices_and_seconds_are_each_others_inverse(times in prop::collection::vec(0.1_f64..10.0, 1..6), n in 0.2_f64..40.0) {
            let curve = Curve::new(times.iter().zip(1_u32..).map(|(&time, n)| (n * n, time)).collect());
            let n = n.min(f64::from(curve.largest().0));
            prop_assert!((curve.devices(curve.seconds(n)) - n).abs() < 1e-6 * n);
        }
    }
}
