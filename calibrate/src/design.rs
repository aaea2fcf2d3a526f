//! Which operation to measure next: the one that the fit is least sure of.
//!
//! A law's surface is a linear model on knots, so what is known of a place is the leverage of its corners: the variance that the
//! samples so far leave there, in units of the spread of measured times around the law (D-optimal design, one point at a time). A curve
//! is least sure in the middle of its widest gap, weighted by how much its slope turns there.

use engine::cost::surface::Surface;
use engine::task::Op;

use crate::family::{Family, Region};
use crate::fit::law::{Row, axes};
use crate::fit::neighbours;
use crate::sample;

/// Places that are looked at in each round.
const CANDIDATES: u32 = 512;
/// Variance of a measurement in units of the prior.
const NOISE: f64 = 0.05;
/// Prior pull of neighbouring knots, and of all towards the law.
const PULL: f64 = 1.0;
const PRIOR: f64 = 0.3;
/// Sure enough of a gap of this ratio between sizes of a curve.
const GAP: f64 = 1.35;

/// An operation to measure, and how unsure its time is: the relative standard deviation.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// What to measure.
    pub op: Op,
    /// Relative standard deviation of its predicted time.
    pub deviation: f64,
}

impl Next {
    /// What a second of measuring says: a short operation of the same uncertainty first, because many of them fit into the time of a long
    /// one. Variance falls with time, so its root counts.
    pub fn gain(&self, flops_per_s: f64) -> f64 {
        let seconds = sample::SECONDS + sample::LAUNCHES_ALL * self.op.flops() / flops_per_s;
        self.deviation * (sample::SECONDS / seconds).sqrt()
    }
}

/// Places of the unit cube that fill it evenly (Halton), after its two ends.
pub fn places(n: u32) -> Vec<[f64; 5]> {
    let radical = |mut index: u32, base: u32| {
        let (mut value, mut digit) = (0.0, 1.0 / f64::from(base));
        while index > 0 {
            value += f64::from(index % base) * digit;
            index /= base;
            digit /= f64::from(base);
        }
        value
    };
    let inner = (1..=n).map(|index| [2, 3, 5, 7, 11].map(|base| radical(index, base)));
    [[0.0; 5], [1.0; 5]].into_iter().chain(inner).collect()
}

/// Candidates of a family that take no longer than is wanted, by a judge.
pub fn candidates(family: Family, region: &Region, fits: impl Fn(&Op) -> bool) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    for place in places(CANDIDATES) {
        let op = region.at(family, place);
        if !ops.contains(&op) && fits(&op) {
            ops.push(op);
        }
    }
    ops
}

/// The candidate that a law's surface learns most from in a second; `spread` is how far measured times lie around the law, relative, and
/// `flops_per_s` about how fast the device is.
pub fn for_law(candidates: &[Op], rows: &[Row], spread: f64, flops_per_s: f64) -> Option<Next> {
    let points: Vec<Vec<f64>> = candidates.iter().map(Family::point).collect();
    let all: Vec<Row> = candidates
        .iter()
        .zip(&points)
        .map(|(op, point)| Row { op: op.clone(), point: point.clone(), seconds: 1.0 })
        .chain(rows.iter().cloned())
        .collect();
    let axes = axes(&all.iter().collect::<Vec<&Row>>(), ["", "", ""]);
    let n = axes.iter().map(|axis| axis.knots.len()).product();
    let surface = Surface { axes, values: vec![0.0; n] };
    let mut information = vec![vec![0.0; n]; n];
    for (knot, row) in information.iter_mut().enumerate() {
        row[knot] = PRIOR;
    }
    for (a, b) in neighbours(&surface) {
        information[a][a] += PULL;
        information[b][b] += PULL;
        information[a][b] -= PULL;
        information[b][a] -= PULL;
    }
    for row in rows {
        let corners = surface.corners(&row.point).0;
        for &(a, x) in &corners {
            corners.iter().for_each(|&(b, y)| information[a][b] += x * y / NOISE);
        }
    }
    let lower = cholesky(information);
    let measured = |op: &Op| rows.iter().any(|row| row.op == *op);
    let judged = candidates.iter().zip(&points).filter(|(op, _)| !measured(op)).map(|(op, point)| {
        let mut c = vec![0.0; n];
        surface.corners(point).0.into_iter().for_each(|(knot, weight)| c[knot] = weight);
        Next { op: op.clone(), deviation: spread * leverage(&lower, c).sqrt() }
    });
    judged.max_by(|a, b| a.gain(flops_per_s).total_cmp(&b.gain(flops_per_s)))
}

fn cholesky(mut a: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    for i in 0..a.len() {
        for j in 0..=i {
            let sum: f64 = a[i][..j].iter().zip(&a[j][..j]).map(|(x, y)| x * y).sum();
            a[i][j] = if i == j { (a[i][i] - sum).max(1e-12).sqrt() } else { (a[i][j] - sum) / a[j][j] };
        }
    }
    a
}

/// cᵀ (L Lᵀ)⁻¹ c.
fn leverage(lower: &[Vec<f64>], mut c: Vec<f64>) -> f64 {
    let mut total = 0.0;
    for i in 0..c.len() {
        let sum: f64 = lower[i][..i].iter().zip(&c[..i]).map(|(x, y)| x * y).sum();
        c[i] = (c[i] - sum) / lower[i][i];
        total += c[i] * c[i];
    }
    total
}

/// The candidate in the widest gap between measured sizes, weighted by how far the middle lies off a straight line of its neighbours.
pub fn for_curve(candidates: &[Op], points: &[(f64, f64)]) -> Option<Next> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    let slope = |a: (f64, f64), b: (f64, f64)| (b.1 / a.1).ln() / (b.0 / a.0).ln();
    let judged = candidates.iter().filter_map(|op| {
        let at = Family::point(op)[0];
        let above = points.partition_point(|point| point.0 < at);
        if points.get(above).is_some_and(|point| point.0 == at) {
            return None;
        }
        let (Some(low), Some(high)) = (above.checked_sub(1).map(|low| points[low]), points.get(above).copied()) else {
            return Some(Next { op: op.clone(), deviation: 1.0 });
        };
        let gap = (high.0 / low.0).ln();
        let here = slope(low, high);
        let turn =
            [above.checked_sub(2).map(|i| slope(points[i], low)), points.get(above + 1).map(|&p| slope(high, p))];
        let turn = turn.into_iter().flatten().map(|other| (other - here).abs()).fold(0.05, f64::max);
        // How deep inside its gap the candidate lies, 1 in the middle.
        let inside = 4.0 * (at / low.0).ln() * (high.0 / at).ln() / (gap * gap);
        let deviation = if gap < GAP.ln() { 0.0 } else { turn * gap * inside / 8.0 };
        Some(Next { op: op.clone(), deviation })
    });
    judged.max_by(|a, b| a.deviation.total_cmp(&b.deviation))
}

#[cfg(test)]
mod tests {
    use hw::Format;

    use super::*;

    #[test]
    fn the_next_place_is_far_from_those_that_are_known() {
        let family = Family::Gemm(Format::Bf16);
        let region = Region::Gemm { sizes: [(1, 4096); 3] };
        let candidates = candidates(family, &region, |_| true);
        let mut rows: Vec<Row> = Vec::new();
        let mut least = f64::INFINITY;
        for round in 0..60 {
            let next = for_law(&candidates, &rows, 0.2, 1e12).expect("candidates are left");
            assert!(rows.iter().all(|row| row.op != next.op));
            if round % 20 == 19 {
                assert!(next.deviation < least, "uncertainty falls as rows come: {} {least}", next.deviation);
                least = next.deviation;
            }
            rows.push(Row { point: Family::point(&next.op), op: next.op, seconds: 1.0 });
        }
        assert!(least < 0.12, "{least}");
    }

    #[test]
    fn a_curve_is_measured_at_its_bend() {
        // Flat up to 1 MB, then proportional: the bend lies between 64 KB and 16 MB.
        let points: Vec<(f64, f64)> =
            [1e3, 64e3, 16e6, 256e6].map(|bytes: f64| (bytes, bytes.max(1e6) * 1e-9)).to_vec();
        let region = Region::Bytes { bytes: (1000, 256_000_000), row_bytes: 4096 };
        let candidates = candidates(Family::Memory("elementwise"), &region, |_| true);
        let next = for_curve(&candidates, &points).expect("a candidate");
        let Op::Elementwise { bytes } = next.op else { panic!("{next:?}") };
        assert!((64_000..16_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn of_two_that_are_as_unsure_the_short_one_is_measured() {
        let next = |n| Next { op: Op::Gemm { m: n, n, k: n, format: Format::Bf16 }, deviation: 0.1 };
        let rate = 1e14;
        assert!(next(64).gain(rate) > next(8192).gain(rate));
        // What takes no time beside the rest of a sample makes no difference.
        assert!((next(64).gain(rate) / next(128).gain(rate) - 1.0).abs() < 1e-3);
        // A long one is worth it where it is far less sure.
        let unsure = Next { deviation: 0.5, ..next(8192) };
        assert!(unsure.gain(rate) > next(64).gain(rate));
    }
}
