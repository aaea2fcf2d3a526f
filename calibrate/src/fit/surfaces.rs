//! Surfaces through weighted points, and operators whose error is that of a fit without whole shapes while the shipped fit has seen all rows.
//!
//! Knots are asked for once for every card and engine; those beyond what was measured are dropped. An axis says besides where its rows end, which is the hull.

use engine::cost::profile::{Operator, Residuals};
use engine::cost::surface::{Axis, Surface};

use super::{Equation, Row, held_out, level_and_solve, residuals};

/// A point that a surface should go through.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Where on the axes.
    pub at: Vec<f64>,
    /// Wanted logarithm.
    pub log: f64,
    /// How much it counts.
    pub weight: f64,
}

/// Axes of these names with the knots that the points span.
pub fn axes<'p>(names: &[&str], knots: &[&[f64]], points: impl Iterator<Item = &'p [f64]> + Clone) -> Vec<Axis> {
    let asked = |(index, (name, knots)): (usize, (&&str, &&[f64]))| {
        let [low, high] = ends(points.clone().map(|at| at[index]));
        measured(Axis::new(name, within(knots, low, high)), knots.len(), [low, high])
    };
    names.iter().zip(knots).enumerate().map(asked).collect()
}

/// The same axes, which say where points end.
pub fn spanned<'p>(axes: Vec<Axis>, points: impl Iterator<Item = &'p [f64]> + Clone) -> Vec<Axis> {
    let of = |(index, axis): (usize, Axis)| {
        let n_knots = axis.knots.len();
        measured(axis, n_knots, ends(points.clone().map(|at| at[index])))
    };
    axes.into_iter().enumerate().map(of).collect()
}

/// Least and largest of positions.
fn ends(at: impl Iterator<Item = f64>) -> [f64; 2] {
    at.fold([f64::INFINITY, 0.0_f64], |[low, high], at| [low.min(at), high.max(at)])
}

/// An axis over positions with such ends. One knot that was asked for stands for every place, as whoever asks for it says that the axis does not matter.
fn measured(axis: Axis, n_asked: usize, [low, high]: [f64; 2]) -> Axis {
    let says = n_asked > 1 && low <= high && axis.span() != Some([low, high]);
    Axis { measured: says.then_some([low, high]), ..axis }
}

/// Knots from the last at or below `low` to the first at or above `high`.
fn within(knots: &[f64], low: f64, high: f64) -> Vec<f64> {
    let first = knots.iter().rposition(|knot| *knot <= low).unwrap_or(0);
    let last = knots.iter().position(|knot| *knot >= high).unwrap_or(knots.len() - 1);
    knots[first..=last.max(first)].to_vec()
}

/// A surface through points.
///
/// # Panics
/// Without points.
pub fn through(points: &[Point], axes: Vec<Axis>) -> Surface {
    assert!(!points.is_empty(), "a surface needs points");
    let n = axes.iter().map(|axis| axis.knots.len()).product();
    let mut surface = Surface { axes, values: vec![0.0; n] };
    let equations: Vec<Equation> = points
        .iter()
        .map(|point| Equation { corners: surface.corners(&point.at).0, log_ratio: point.log, weight: point.weight })
        .collect();
    level_and_solve(&mut surface, &equations);
    // A thousandth is far below the residuals and keeps the file readable.
    surface.values.iter_mut().for_each(|value| *value = (*value * 1e3).round() / 1e3);
    surface
}

/// A number with four significant digits.
///
/// # Panics
/// Never: what was just written is a number.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().expect("a number that was just written")
}

/// Splits rows by whether their shape is held out: those that a fit may see, and those that judge it. Without enough shapes, every
/// fifth row is held out instead.
pub(crate) fn split<T>(rows: &[T], shape: impl Fn(&T) -> u64) -> (Vec<&T>, Vec<&T>) {
    let (held, seen): (Vec<&T>, Vec<&T>) = rows.iter().partition(|row| held_out(shape(row)));
    if held.is_empty() || seen.len() < held.len() {
        let (held, seen): (Vec<_>, Vec<_>) = rows.iter().enumerate().partition(|(index, _)| index % 5 == 4);
        return (seen.into_iter().map(|(_, row)| row).collect(), held.into_iter().map(|(_, row)| row).collect());
    }
    (seen, held)
}

fn points(rows: &[&Row], start_s: f64) -> Vec<Point> {
    rows.iter().map(|row| Point { at: row.point.clone(), log: row.log_ratio(start_s), weight: 1.0 }).collect()
}

/// A kernel over the datasheet roofline; `None` without rows.
pub fn operator(rows: &[Row], names: [&str; 3], knots: [&[f64]; 3], start_s: f64) -> Option<Operator> {
    if rows.len() < 2 {
        return None;
    }
    let axes = axes(&names, &knots, rows.iter().map(|row| row.point.as_slice()));
    let (seen, held) = split(rows, |row| row.shape);
    let judged = through(&points(&seen, start_s), axes.clone());
    let residuals =
        errors(&held, seen.len(), |row| row.measured_s / (start_s + row.base_s * judged.factor(&row.point).0));
    let all: Vec<&Row> = rows.iter().collect();
    let surface = through(&points(&all, start_s), axes);
    Some(Operator { residuals, kernel: None, start_s, law: None, surface })
}

/// Quantiles of a ratio over held-out rows.
pub(crate) fn errors<T>(held: &[&T], n_fit: usize, ratio: impl Fn(&T) -> f64) -> Residuals {
    let ratios: Vec<f64> = held.iter().map(|row| ratio(row)).collect();
    residuals(if ratios.is_empty() { &[1.0] } else { &ratios }, n_fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knots_beyond_what_was_measured_are_dropped() {
        let knots = [1.0, 4.0, 16.0, 64.0];
        assert_eq!(within(&knots, 4.0, 15.0), [4.0, 16.0]);
        assert_eq!(within(&knots, 5.0, 5.0), [4.0, 16.0]);
        assert_eq!(within(&knots, 0.5, 1e9), knots);
    }

    #[test]
    fn an_axis_ends_where_its_rows_end() {
        let points = [[1.0, 5.0, 3.0, 8.0], [1024.0, 5.0, 64.0, 8.0]];
        let knots: [&[f64]; 4] = [&[1.0, 256.0, 8192.0], &[1.0, 4.0, 16.0], &[1.0], &[8.0, 16.0]];
        let found = axes(&["a", "b", "c", "d"], &knots, points.iter().map(<[f64; 4]>::as_slice));
        let spans: Vec<Option<[f64; 2]>> = found.iter().map(Axis::span).collect();
        assert_eq!(spans, [Some([1.0, 1024.0]), Some([5.0, 5.0]), None, Some([8.0, 8.0])]);
        // Where rows end at knots, knots say it.
        let whole = spanned(vec![Axis::new("a", vec![1.0, 1024.0])], points.iter().map(<[f64; 4]>::as_slice));
        assert_eq!((whole[0].measured, whole[0].span()), (None, Some([1.0, 1024.0])));
    }

    #[test]
    fn a_kernel_over_the_roofline_is_found_again_with_its_start() {
        // 2 µs and three times the base, ten times slower at one in fifty.
        let rows: Vec<Row> = (0..500_u32)
            .map(|index| {
                let (at, slow) = (f64::from(1 + index), if index % 50 == 3 { 10.0 } else { 1.0 });
                let base_s = at * 1e-6;
                Row { point: vec![at; 3], base_s, measured_s: (2e-6 + 3.0 * base_s) * slow, shape: u64::from(index) }
            })
            .collect();
        let knots: &[f64] = &[1.0, 10.0, 100.0, 1000.0];
        let found = operator(&rows, ["a", "b", "c"], [knots; 3], 2e-6).expect("rows");
        assert!((found.surface.factor(&[50.0; 3]).0 / 3.0 - 1.0).abs() < 0.02);
        assert!(found.residuals.median_error < 0.02, "{:?}", found.residuals);
        assert!(found.residuals.n_held_out > 50 && found.residuals.n_fit > 350);
    }
}
