//! A fitted correction over a physical base: ln(measured / base) on a grid of knots, interpolated between them.
//!
//! Knots are positive and increasing and are compared by their logarithm; values are natural logarithms. Inside the grid the
//! interpolation is multilinear in the logarithms, outside it the edge is kept, and the query is marked as outside the hull.

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
    /// Cell and position inside it, and whether `at` lies on the axis.
    fn locate(&self, at: f64) -> (usize, f64, bool) {
        let last = self.knots.len() - 1;
        if last == 0 {
            return (0, 0.0, true);
        }
        let inside = at >= self.knots[0] && at <= self.knots[last];
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
            if axis.knots.is_empty() || !sorted || !positive {
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
        let axis = Axis { name: "m".to_owned(), knots: vec![1.0, 4.0, 16.0] };
        let surface = Surface { axes: vec![axis], values: vec![1.0, 0.0, 2.0] };
        assert!((surface.least(&[(1.0, 16.0)]) - 1.0).abs() < 1e-12, "the knot in the middle");
        assert!((surface.least(&[(8.0, 16.0)]) - 1.0_f64.exp()).abs() < 1e-12, "the low end");
        assert!((surface.least(&[(1.0, 2.0)]) - 0.5_f64.exp()).abs() < 1e-12, "the high end");
    }

    #[test]
    fn the_middle_of_a_cell_is_the_geometric_mean_of_its_corners() {
        let axis = |name: &str| Axis { name: name.to_owned(), knots: vec![1.0, 4.0] };
        let values = [1.0_f64, 2.0, 4.0, 8.0].iter().map(|v| v.ln()).collect();
        let surface = Surface { axes: vec![axis("m"), axis("n")], values };
        // (2, 2) is the middle in logarithms: (1·2·4·8)^(1/4) = 64^(1/4).
        assert!((surface.factor(&[2.0, 2.0]).0 - 64.0_f64.powf(0.25)).abs() < 1e-12);
        assert_eq!(surface.factor(&[4.0, 1.0]), (4.0, None));
        assert_eq!(surface.factor(&[9.0, 1.0]).1, Some(0));
    }
}
