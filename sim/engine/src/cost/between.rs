//! A profile of a card that nobody measured, between those of two others.
//!
//! A surface is what a kernel takes over its least time by the datasheet, so its inverse is a share of the card's own peaks. The middle of two cards'
//! shares is what both say together of a third; how far they lie apart is what they leave open. A kernel that only one card has moves half as far as
//! the kernel beside it does between both cards. No units: logarithms of ratios.

use std::collections::BTreeMap;

use crate::cost::profile::{Operator, Profile};
use crate::cost::residuals::Residuals;
use crate::cost::surface::{Axis, Surface};

/// Part of the way from one card to the other.
const HALF: f64 = 0.5;

impl Profile {
    /// Kernels half-way between this card and another one; a kernel of one of them is taken as it is.
    ///
    /// Laws are in seconds of their card and have no middle, so kernels with a law are this card's.
    pub fn between(&self, other: &Self) -> Self {
        let mut operators: BTreeMap<String, Operator> = other.operators.clone();
        for (name, operator) in &self.operators {
            let found = match other.operators.get(name) {
                Some(theirs) if operator.law.is_none() && theirs.law.is_none() => operator.between(theirs),
                _ => operator.clone(),
            };
            operators.insert(name.clone(), found);
        }
        Self { operators, ..self.clone() }
    }
}

impl Operator {
    /// Half-way to another card's; the interval holds both cards.
    pub fn between(&self, other: &Self) -> Self {
        let (surface, gap) = self.surface.between(&other.surface);
        let open = libm::exp(gap * HALF);
        let residuals = Residuals {
            low: self.residuals.low.min(other.residuals.low) / open,
            high: self.residuals.high.max(other.residuals.high) * open,
            ..self.residuals.clone()
        };
        Self { residuals, start_s: self.start_s + (other.start_s - self.start_s) * HALF, surface, ..self.clone() }
    }

    /// The greater share of the peak of both, point by point; the interval holds both cards.
    pub fn greater_share(&self, other: &Self) -> Self {
        let middle = self.between(other);
        let (surface, _) = self.surface.joined(&other.surface, f64::min);
        Self { surface, ..middle }
    }

    /// As it may be half-way to a card that has no such kernel, by one that both cards have: `own` of this card, `other` of that one.
    pub fn towards(&self, own: &Self, other: &Self) -> Self {
        let mut operator = self.clone();
        let points = points(&self.surface.axes);
        let mut sum = 0.0;
        for (value, point) in operator.surface.values.iter_mut().zip(&points) {
            let step = HALF * libm::log(other.surface.factor(point).0 / own.surface.factor(point).0);
            *value += step;
            sum += step.abs();
        }
        let open = libm::exp(sum / hw::real(points.len() as u64));
        operator.residuals.low /= open;
        operator.residuals.high *= open;
        operator
    }
}

impl Surface {
    /// The middle of two grids on the knots of both, and how far they lie apart in the mean over the knots.
    fn between(&self, other: &Self) -> (Self, f64) {
        self.joined(other, |one, two| one + (two - one) * HALF)
    }

    /// One of two logarithms at the knots of both grids, and how far they lie apart in the mean.
    fn joined(&self, other: &Self, of: impl Fn(f64, f64) -> f64) -> (Self, f64) {
        let axes: Vec<Axis> = self.axes.iter().zip(&other.axes).map(|(one, other)| one.with_knots_of(other)).collect();
        let points = points(&axes);
        let mut values = Vec::with_capacity(points.len());
        let mut apart = 0.0;
        for point in &points {
            let [one, two] = [self, other].map(|surface| libm::log(surface.factor(point).0));
            values.push(of(one, two));
            apart += (two - one).abs();
        }
        (Self { axes, values }, apart / hw::real(points.len() as u64))
    }
}

impl Axis {
    /// The knots of both; what both measured, or this one where they have nothing in common.
    fn with_knots_of(&self, other: &Self) -> Self {
        let mut knots = [self.knots.as_slice(), &other.knots].concat();
        knots.sort_by(f64::total_cmp);
        knots.dedup();
        let measured = match (self.span(), other.span()) {
            (Some([low, high]), Some([least, most])) if low.max(least) <= high.min(most) => {
                Some([low.max(least), high.min(most)])
            }
            (own, others) => own.or(others),
        };
        Self { name: self.name.clone(), knots, measured }
    }
}

/// Every knot of a grid, last axis fastest.
fn points(axes: &[Axis]) -> Vec<Vec<f64>> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        let mut next = Vec::with_capacity(points.len() * axis.knots.len());
        for point in &points {
            for knot in &axis.knots {
                next.push([point.as_slice(), &[*knot]].concat());
            }
        }
        points = next;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(knots: &[f64], factors: &[f64]) -> Operator {
        let residuals = Residuals { n_fit: 1, n_held_out: 1, median_error: 0.0, p90_error: 0.0, low: 1.0, high: 1.0 };
        let axes = vec![Axis::new("m", knots.to_vec())];
        let values = factors.iter().map(|factor| factor.ln()).collect();
        Operator { residuals, kernel: None, start_s: 0.0, law: None, surface: Surface { axes, values } }
    }

    #[test]
    fn the_middle_is_the_geometric_mean_at_the_knots_of_both() {
        let (one, two) = (operator(&[1.0, 4.0], &[2.0, 2.0]), operator(&[1.0, 2.0, 4.0], &[8.0, 2.0, 8.0]));
        let found = one.between(&two);
        let close = |at: f64, wanted: f64| (found.surface.factor(&[at]).0 / wanted - 1.0).abs() < 1e-12;
        // √(2·8) = 4 at the ends and √(2·2) = 2 in the middle.
        assert!(close(1.0, 4.0) && close(2.0, 2.0) && close(4.0, 4.0), "{found:?}");
        // They are apart by ln 4, 0 and ln 4: the interval reaches half of the mean, 4^(1/3), on each side.
        assert!((found.residuals.high / 4.0_f64.powf(1.0 / 3.0) - 1.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn what_one_card_alone_measured_is_outside_of_the_middle() {
        let (one, two) = (operator(&[1.0, 64.0], &[2.0, 2.0]), operator(&[2.0, 256.0], &[2.0, 2.0]));
        let found = one.between(&two);
        let outside = |at: f64| found.surface.factor(&[at]).1;
        assert_eq!([2.0, 64.0].map(outside), [None; 2]);
        assert_eq!([1.0, 65.0].map(outside), [Some(0); 2]);
    }

    #[test]
    fn a_kernel_of_one_card_moves_half_as_far_as_the_one_beside_it() {
        let [wide, theirs] = [operator(&[1.0], &[2.0]), operator(&[1.0], &[8.0])];
        let narrow = operator(&[1.0], &[3.0]);
        // Half of the way from 2 to 8 in logarithms is a factor of 2.
        assert!((narrow.towards(&wide, &theirs).surface.factor(&[1.0]).0 - 6.0).abs() < 1e-12);
    }
}
