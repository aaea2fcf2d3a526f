//! A linear axis of a chart: from values to pixels, with grid lines at round values.

use crate::quantity::float_of;

/// Lines of a grid, about.
const LINES: f64 = 6.0;

/// A linear axis: values to pixels, and where its grid lines are.
pub(crate) struct Axis {
    /// Value at the start.
    pub from: f64,
    /// Value at the end.
    pub to: f64,
    /// Pixel of the start.
    pub start: f64,
    /// Pixels to the end; negative for an axis that goes up.
    pub length: f64,
}

impl Axis {
    /// Round distance of grid lines: 1, 2 or 5 times a power of ten.
    pub fn step(&self) -> f64 {
        let rough = (self.to - self.from) / LINES;
        let ten = 10.0_f64.powf(rough.log10().floor());
        let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * ten >= rough * 0.999).unwrap_or(10.0);
        times * ten
    }

    /// Where its grid lines are.
    pub fn lines(&self) -> Vec<f64> {
        let step = self.step();
        let first = (self.from / step).ceil();
        let at = |index: usize| (first + float_of(index)) * step;
        (0..64).map(at).take_while(|value| *value <= self.to + step * 1e-6).collect()
    }

    /// Pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        self.start + (value - self.from) / (self.to - self.from) * self.length
    }
}
