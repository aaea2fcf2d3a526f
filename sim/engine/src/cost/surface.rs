//! A fitted correction over a physical base: ln(measured / base) on a grid of knots, interpolated between them.
//!
//! Knots are positive and increasing and are compared by their logarithm; values are natural logarithms. Inside the grid the
//! interpolation is multilinear in the logarithms, outside it the edge is kept. A query outside of what was measured is marked: knots lie where a
//! grid wants them, and the last one may lie far beyond the last row.

use serde::{Deserialize, Serialize};

use crate::cost::unusable::Unusable;

/// Largest correction that is taken for real, as a logarithm: a factor of about 5e8.
const LOG_MAX: f64 = 20.0;

/// One axis of the grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What it measures, for example `m`.
    pub name: String,
    /// Positions, positive and increasing.
    pub knots: Vec<f64>,
    /// Least and largest position that was measured; left out, the first and the last knot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<[f64; 2]>,
}

/// A grid of corrections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Surface {
    /// Axes, slowest first.
    pub axes: Vec<Axis>,
    /// ln(measured / base) at each knot, last axis fastest.
    pub values: Vec<f64>,
}

/// Corner of a cell with its weight.
pub type Corner = (usize, f64);

impl Axis {
    /// An axis whose knots are what was measured.
    pub fn new(name: &str, knots: Vec<f64>) -> Self {
        Self { name: name.to_owned(), knots, measured: None }
    }

    /// Least and largest position that was measured; `None` where a knot by itself stands for every place.
    pub fn span(&self) -> Option<[f64; 2]> {
        let last = self.knots.len() - 1;
        self.measured.or_else(|| (last > 0).then(|| [self.knots[0], self.knots[last]]))
    }

    /// Whether `at` lies among what was measured.
    fn holds(&self, at: f64) -> bool {
        self.span().is_none_or(|[low, high]| (low..=high).contains(&at))
    }

    /// Cell and position inside it, and whether `at` lies among what was measured.
    fn locate(&self, at: f64) -> (usize, f64, bool) {
        let (last, inside) = (self.knots.len() - 1, self.holds(at));
        if last == 0 {
            return (0, 0.0, inside);
        }
        let cell = self.knots.partition_point(|knot| *knot <= at).clamp(1, last) - 1;
        let (low, high) = (libm::log(self.knots[cell]), libm::log(self.knots[cell + 1]));
        let part = ((libm::log(at.max(f64::MIN_POSITIVE)) - low) / (high - low)).clamp(0.0, 1.0);
        (cell, part, inside)
    }
}

impl Surface {
    /// Corners around a point with their weights, and the axis that the point is outside of, if any.
    pub fn corners(&self, point: &[f64]) -> (Vec<Corner>, Option<usize>) {
        let mut corners: Vec<Corner> = vec![(0, 1.0)];
        let mut outside = None;
        for (index, (axis, &at)) in self.axes.iter().zip(point).enumerate() {
            let (cell, part, inside) = axis.locate(at);
            if !inside && outside.is_none() {
                outside = Some(index);
            }
            let n = axis.knots.len();
            let mut next = Vec::with_capacity(corners.len() * 2);
            for (corner, weight) in corners {
                next.push((corner * n + cell, weight * (1.0 - part)));
                if part > 0.0 {
                    next.push((corner * n + cell + 1, weight * part));
                }
            }
            corners = next;
        }
        (corners, outside)
    }

    /// Places of all values, last axis fastest.
    pub fn points(&self) -> Vec<Vec<f64>> {
        let mut points = vec![Vec::new()];
        for axis in &self.axes {
            let with = |point: &Vec<f64>, at: &f64| [point.as_slice(), &[*at]].concat();
            points = points.iter().flat_map(|point| axis.knots.iter().map(|at| with(point, at))).collect();
        }
        points
    }

    /// Factor on the base at a point, and the axis that it is outside of.
    pub fn factor(&self, point: &[f64]) -> (f64, Option<usize>) {
        let (corners, outside) = self.corners(point);
        let log = corners.iter().map(|&(corner, weight)| self.values[corner] * weight).sum::<f64>();
        (libm::exp(log), outside)
    }

    /// Least factor in a box of points, given by its ends on each axis: the interpolation is linear between knots, so one of
    /// the ends or of the knots between them has it.
    pub fn least(&self, ranges: &[(f64, f64)]) -> f64 {
        let mut points = vec![Vec::new()];
        for (axis, &(low, high)) in self.axes.iter().zip(ranges) {
            let inside = axis.knots.iter().copied().filter(|knot| (low..high).contains(knot));
            let choices: Vec<f64> = [low, high].into_iter().chain(inside).collect();
            let extended = |point: &Vec<f64>| {
                let point = point.clone();
                choices.clone().into_iter().map(move |at| [point.as_slice(), &[at]].concat())
            };
            points = points.iter().flat_map(extended).collect();
        }
        points.iter().map(|point| self.factor(point).0).fold(f64::INFINITY, f64::min)
    }

    /// What is wrong with the grid, if anything.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Unusable> {
        let mut n = 1;
        for axis in &self.axes {
            let sorted = axis.knots.windows(2).all(|pair| pair[0] < pair[1]);
            let positive = axis.knots.iter().all(|knot| knot.is_finite() && *knot > 0.0);
            let is_span = axis.measured.is_none_or(|[low, high]| low > 0.0 && low <= high && high.is_finite());
            if axis.knots.is_empty() || !sorted || !positive || !is_span {
                return Err(Unusable::Knots { axis: axis.name.clone() });
            }
            n *= axis.knots.len();
        }
        if n != self.values.len() {
            return Err(Unusable::Values { knots: n, values: self.values.len() });
        }
        if self.values.iter().any(|value| !value.is_finite() || value.abs() > LOG_MAX) {
            return Err(Unusable::TooLarge { limit: LOG_MAX });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_a_box_is_at_an_end_or_a_knot() {
        let axis = Axis::new("m", vec![1.0, 4.0, 16.0]);
        let surface = Surface { axes: vec![axis], values: vec![1.0, 0.0, 2.0] };
        assert!((surface.least(&[(1.0, 16.0)]) - 1.0).abs() < 1e-12, "the knot in the middle");
        assert!((surface.least(&[(8.0, 16.0)]) - 1.0_f64.exp()).abs() < 1e-12, "the low end");
        assert!((surface.least(&[(1.0, 2.0)]) - 0.5_f64.exp()).abs() < 1e-12, "the high end");
    }

    #[test]
    fn the_middle_of_a_cell_is_the_geometric_mean_of_its_corners() {
        let axis = |name: &str| Axis::new(name, vec![1.0, 4.0]);
        let values = [1.0_f64, 2.0, 4.0, 8.0].iter().map(|v| v.ln()).collect();
        let surface = Surface { axes: vec![axis("m"), axis("n")], values };
        // (2, 2) is the middle in logarithms: (1·2·4·8)^(1/4) = 64^(1/4).
        assert!((surface.factor(&[2.0, 2.0]).0 - 64.0_f64.powf(0.25)).abs() < 1e-12);
        assert_eq!(surface.factor(&[4.0, 1.0]), (4.0, None));
        assert_eq!(surface.factor(&[9.0, 1.0]).1, Some(0));
    }

    #[test]
    fn a_place_between_the_last_row_and_the_last_knot_is_outside_of_what_was_measured() {
        let axis = Axis { measured: Some([2.0, 1024.0]), ..Axis::new("m", vec![1.0, 256.0, 8192.0]) };
        let surface = Surface { axes: vec![axis], values: vec![0.0, 1.0, 2.0] };
        assert_eq!(surface.check(), Ok(()));
        let outside = |at: f64| surface.factor(&[at]).1;
        assert_eq!([2.0, 300.0, 1024.0].map(outside), [None; 3]);
        assert_eq!([1.0, 1025.0, 8192.0, 1e6].map(outside), [Some(0); 4]);
        // What is answered there stays: the line between the knots, and the edge.
        assert!((surface.factor(&[8192.0]).0 - 2.0_f64.exp()).abs() < 1e-12);
        let alone = Axis { measured: Some([64.0, 64.0]), ..Axis::new("m", vec![64.0]) };
        let one = Surface { axes: vec![alone], values: vec![0.0] };
        assert_eq!((one.factor(&[64.0]).1, one.factor(&[65.0]).1), (None, Some(0)));
        let wrong = |measured: [f64; 2]| {
            let axis = Axis { measured: Some(measured), ..Axis::new("m", vec![1.0]) };
            Surface { axes: vec![axis], values: vec![0.0] }.check().is_err()
        };
        assert!(wrong([0.0, 1.0]) && wrong([2.0, 1.0]) && wrong([1.0, f64::INFINITY]) && wrong([f64::NAN, 1.0]));
    }
}
