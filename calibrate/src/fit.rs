//! Fits a correction surface over a physical base, and says how well it does on rows that it did not see. The base is the datasheet
//! roofline for tables of others, and a law for what this project measures itself (`law.rs`).
//!
//! Unknowns are the surface's knots. Weighted least squares in ln(measured / base) with a small pull of neighbouring knots
//! towards each other (so that empty cells are continued), solved by conjugate gradients; three rounds in which rows
//! far from the fit lose weight (Huber), because tables hold slow first calls.

pub mod curve;
pub mod decode;
pub mod law;
pub mod non_negative;
pub mod surfaces;

use engine::cost::profile::Residuals;
use engine::cost::surface::{Axis, Corner, Surface};
use hw::quantile;

/// A measured row: where on the axes, base and measured seconds.
#[derive(Clone, Debug)]
pub struct Row {
    /// Point on the axes.
    pub point: Vec<f64>,
    /// Roofline base, seconds.
    pub base_s: f64,
    /// Measured, seconds.
    pub measured_s: f64,
    /// Rows of one shape share this; whole shapes are held out.
    pub shape: u64,
}

impl Row {
    /// Logarithm of what a start leaves over the base; a row of mere start says little of the rest.
    fn log_ratio(&self, start_s: f64) -> f64 {
        ((self.measured_s - start_s).max(self.measured_s * 0.05) / self.base_s).ln()
    }
}

/// Every fifth shape is held out.
const HELD_OUT_EVERY: u64 = 5;
/// Folds of a cross-validation.
const FOLDS: usize = 5;
/// Weight of the pull between neighbouring knots, in units of a row.
const SMOOTHING: f64 = 0.02;
/// Residual above which a row loses weight.
const HUBER: f64 = 0.10;
const ROUNDS: usize = 3;
const ITERATIONS_MAX: usize = 400;

/// Whether a shape is held out: a fixed hash, so that the split does not depend on row order.
pub(crate) fn held_out(shape: u64) -> bool {
    let mixed = (shape ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32).is_multiple_of(HELD_OUT_EVERY)
}

struct Equation {
    corners: Vec<Corner>,
    log_ratio: f64,
    weight: f64,
}

/// Fits a surface on the rows that are not held out; `start_s` is subtracted from every measurement.
pub fn surface(rows: &[Row], axes: Vec<Axis>, start_s: f64) -> (Surface, Residuals) {
    let n: usize = axes.iter().map(|axis| axis.knots.len()).product();
    let axes = surfaces::spanned(axes, rows.iter().map(|row| row.point.as_slice()));
    let mut surface = Surface { axes, values: vec![0.0; n] };
    let equations: Vec<Equation> = rows
        .iter()
        .filter(|row| !held_out(row.shape))
        .map(|row| Equation { corners: surface.corners(&row.point).0, log_ratio: row.log_ratio(start_s), weight: 1.0 })
        .collect();
    level_and_solve(&mut surface, &equations);
    // Four digits are far below the residuals and keep the file readable.
    surface.values.iter_mut().for_each(|value| *value = ten_thousandths(*value));
    let unseen: Vec<f64> = rows
        .iter()
        .filter(|row| held_out(row.shape))
        .map(|row| row.measured_s / (start_s + row.base_s * surface.factor(&row.point).0))
        .collect();
    let residuals = residuals(&unseen, equations.len());
    (surface, residuals)
}

/// Fits a surface on every row; of the residuals every row is predicted by the fit of the other four fifths.
pub fn surface_of_all(rows: &[Row], axes: Vec<Axis>) -> (Surface, Residuals) {
    let n: usize = axes.iter().map(|axis| axis.knots.len()).product();
    let blank = Surface { axes, values: vec![0.0; n] };
    let fitted = |is_used: &dyn Fn(&Row) -> bool| {
        let used = rows.iter().filter(|row| is_used(row));
        let corners = |row: &Row| blank.corners(&row.point).0;
        let equations: Vec<Equation> =
            used.map(|row| Equation { corners: corners(row), log_ratio: row.log_ratio(0.0), weight: 1.0 }).collect();
        let mut surface = blank.clone();
        level_and_solve(&mut surface, &equations);
        surface
    };
    let mut ratios = Vec::with_capacity(rows.len());
    for fold in 0..HELD_OUT_EVERY {
        let others = fitted(&|row| row.shape % HELD_OUT_EVERY != fold);
        let unseen = rows.iter().filter(|row| row.shape % HELD_OUT_EVERY == fold);
        ratios.extend(unseen.map(|row| row.measured_s / (row.base_s * others.factor(&row.point).0)));
    }
    let mut surface = fitted(&|_| true);
    surface.values.iter_mut().for_each(|value| *value = ten_thousandths(*value));
    (surface, residuals(&ratios, rows.len()))
}

/// Measured over predicted of every row, each by a fit of the rows outside of its fold; `ratio` says it of a row under such a fit.
pub fn unseen<R, F>(rows: &[R], fit: impl Fn(&[&R]) -> F, ratio: impl Fn(&R, &F) -> f64) -> Vec<f64> {
    let folds = FOLDS.min(rows.len());
    let mut ratios = Vec::with_capacity(rows.len());
    for fold in 0..folds {
        let seen = rows.iter().enumerate().filter(|(at, _)| at % folds != fold);
        let found = fit(&seen.map(|(_, row)| row).collect::<Vec<&R>>());
        ratios.extend(rows.iter().skip(fold).step_by(folds).map(|row| ratio(row, &found)));
    }
    ratios
}

/// A surface through equations: their mean at first, then least squares.
fn level_and_solve(surface: &mut Surface, equations: &[Equation]) {
    let weight: f64 = equations.iter().map(|equation| equation.weight).sum();
    let mean = equations.iter().map(|equation| equation.log_ratio * equation.weight).sum::<f64>() / weight;
    surface.values.fill(mean);
    let neighbours = neighbours(surface);
    robust(&mut surface.values, equations, &neighbours, 0.0);
}

/// Knots by weighted least squares in rounds: rows far from the fit lose weight.
fn robust(values: &mut [f64], equations: &[Equation], neighbours: &[(usize, usize)], ridge: f64) {
    let mut weights: Vec<f64> = equations.iter().map(|equation| equation.weight).collect();
    for _ in 0..ROUNDS {
        solve(values, equations, &weights, neighbours, ridge);
        for (weight, equation) in weights.iter_mut().zip(equations) {
            let residual = (value(values, &equation.corners) - equation.log_ratio).abs();
            *weight = equation.weight * if residual <= HUBER { 1.0 } else { HUBER / residual };
        }
    }
}

/// Quantiles of measured / predicted.
pub fn residuals(ratios: &[f64], n_fit: usize) -> Residuals {
    let errors: Vec<f64> = ratios.iter().map(|ratio| (1.0 / ratio - 1.0).abs()).collect();
    Residuals {
        n_fit,
        n_held_out: ratios.len(),
        median_error: ten_thousandths(quantile::of(&errors, 0.5)),
        p90_error: ten_thousandths(quantile::of(&errors, 0.9)),
        low: ten_thousandths(quantile::of(ratios, 0.05)).min(1.0),
        high: ten_thousandths(quantile::of(ratios, 0.95)).max(1.0),
    }
}

/// A value as profiles write it: closer than ten thousandths says nothing.
pub fn ten_thousandths(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn float(n: usize) -> f64 {
    hw::real(n as u64)
}

fn value(values: &[f64], corners: &[Corner]) -> f64 {
    corners.iter().map(|&(corner, weight)| values[corner] * weight).sum()
}

/// Pairs of knots next to each other.
pub(crate) fn neighbours(surface: &Surface) -> Vec<(usize, usize)> {
    let sizes: Vec<usize> = surface.axes.iter().map(|axis| axis.knots.len()).collect();
    let mut pairs = Vec::new();
    for (axis, &size) in sizes.iter().enumerate() {
        let stride: usize = sizes[axis + 1..].iter().product();
        let all = 0..surface.values.len();
        pairs.extend(all.filter(|knot| (knot / stride) % size + 1 < size).map(|knot| (knot, knot + stride)));
    }
    pairs
}

/// Conjugate gradients on the normal equations.
fn solve(x: &mut [f64], equations: &[Equation], weights: &[f64], neighbours: &[(usize, usize)], ridge: f64) {
    let apply = |v: &[f64]| {
        let mut out: Vec<f64> = v.iter().map(|value| value * ridge).collect();
        for (equation, weight) in equations.iter().zip(weights) {
            let at = value(v, &equation.corners) * weight;
            equation.corners.iter().for_each(|&(corner, share)| out[corner] += at * share);
        }
        for &(a, b) in neighbours {
            let pull = (v[a] - v[b]) * SMOOTHING;
            out[a] += pull;
            out[b] -= pull;
        }
        out
    };
    let mut right = vec![0.0; x.len()];
    for (equation, weight) in equations.iter().zip(weights) {
        equation.corners.iter().for_each(|&(corner, share)| right[corner] += equation.log_ratio * weight * share);
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut residual: Vec<f64> = right.iter().zip(apply(x)).map(|(right, left)| right - left).collect();
    let mut direction = residual.clone();
    let mut norm = dot(&residual, &residual);
    let target = norm.max(1e-12) * 1e-14;
    for _ in 0..ITERATIONS_MAX {
        if norm <= target {
            break;
        }
        let image = apply(&direction);
        let step = norm / dot(&direction, &image);
        x.iter_mut().zip(&direction).for_each(|(x, d)| *x += step * d);
        residual.iter_mut().zip(&image).for_each(|(r, i)| *r -= step * i);
        let next = dot(&residual, &residual);
        let turn = next / norm;
        direction.iter_mut().zip(&residual).for_each(|(d, r)| *d = r + turn * *d);
        norm = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_surface_that_is_on_the_grid_is_found_exactly_despite_outliers() {
        // Measured = base · length^0.1 over a wide range, with one row in forty ten times too slow.
        let knots: Vec<f64> = (0..10).map(|power| f64::from(1 << power)).collect();
        let rows: Vec<Row> = (0..400_u32)
            .map(|index| {
                let at = 1.0 + f64::from(index);
                let slow = if index % 40 == 7 { 10.0 } else { 1.0 };
                Row { point: vec![at], base_s: 1e-3, measured_s: 1e-3 * at.powf(0.1) * slow, shape: u64::from(index) }
            })
            .collect();
        let (surface, residuals) = surface(&rows, vec![Axis::new("length", knots)], 0.0);
        assert!(residuals.median_error < 0.02, "{residuals:?}");
        assert!((surface.factor(&[100.0]).0 / 100.0_f64.powf(0.1) - 1.0).abs() < 0.05);
    }
}
