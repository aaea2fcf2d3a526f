//! Fits a law (launch + max(compute, memory)) to measured operations, and a surface over it.
//!
//! The law is linear in its coefficients on each side of the maximum, so the fit alternates: rows go to the side that is larger,
//! then non-negative least squares in measured / predicted finds the coefficients. The surface, pulled towards no correction,
//! takes up what the shape leaves. Errors are cross-validated: every row is predicted once by a fit that has not seen it.

use engine::cost::law::{Features, Law};
use engine::cost::profile::Operator;
use engine::cost::surface::{Axis, Surface};
use engine::task::Op;

use super::non_negative::{Robust, non_negative};
use super::{Equation, float, neighbours, residuals, robust, ten_thousandths, unseen};

/// A measured operation with its place on the axes of the surface.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What ran.
    pub op: Op,
    /// Where it lies.
    pub point: Vec<f64>,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Rounds in which rows change sides.
const SIDES: usize = 12;
/// Rounds in which rows far off lose weight, and how far that is.
const ROBUST: Robust = Robust { rounds: 3, off: 0.2 };
/// Pull of the surface towards no correction, in units of a row.
const RIDGE: f64 = 0.05;
/// Knots of an axis at most.
const KNOTS: u32 = 5;
/// Least ratio of neighbouring knots.
const KNOT_RATIO: f64 = 1.5;
/// Rows that a correction needs; with fewer the law stands alone.
const ROWS_MIN: usize = 16;

/// Fits the best of several shapes, by cross-validated error, with the names of the surface's axes; `None` without rows.
pub fn operator(rows: &[Row], shapes: &[Law], names: [&str; 3]) -> Option<Operator> {
    if rows.len() < 2 {
        return None;
    }
    let judged = shapes.iter().map(|shape| {
        let fitted = |seen: &[&Row]| fit(seen, shape, names);
        let ratios = unseen(rows, fitted, |row, (law, surface)| row.seconds / predicted(law, surface, row));
        (residuals(&ratios, rows.len()), shape)
    });
    let (residuals, shape) = judged.min_by(|a, b| a.0.p90_error.total_cmp(&b.0.p90_error))?;
    let all: Vec<&Row> = rows.iter().collect();
    let (law, surface) = fit(&all, shape, names);
    Some(Operator { residuals, kernel: None, start_s: law.coefficients()[0], law: Some(law), surface })
}

/// Seconds of a row by a law and its surface.
pub fn predicted(law: &Law, surface: &Surface, row: &Row) -> f64 {
    let (start, rest) = law.seconds(&row.op).expect("rows are of the law's kernel");
    start + rest * surface.factor(&row.point).0
}

fn fit(rows: &[&Row], shape: &Law, names: [&str; 3]) -> (Law, Surface) {
    let law = coefficients(rows, shape);
    let axes = axes(rows, names);
    let n = axes.iter().map(|axis| axis.knots.len()).product();
    let mut surface = Surface { axes, values: vec![0.0; n] };
    if rows.len() >= ROWS_MIN {
        let equations: Vec<Equation> = rows
            .iter()
            .map(|row| {
                let (start, rest) = law.seconds(&row.op).expect("rows are of the law's kernel");
                // What the launch leaves, where it leaves anything; a row of mere launch says nothing of the rest.
                let left = (row.seconds - start).max(row.seconds * 0.05);
                Equation {
                    corners: surface.corners(&row.point).0,
                    log_ratio: (left / rest.max(1e-12)).ln().clamp(-1.5, 1.5),
                    weight: 1.0,
                }
            })
            .collect();
        let neighbours = neighbours(&surface);
        robust(&mut surface.values, &equations, &neighbours, RIDGE);
        if let Law::Gemm(_) = law {
            monotone(&law, &mut surface);
        }
        surface.values.iter_mut().for_each(|value| *value = ten_thousandths(*value));
    }
    (law, surface)
}

/// Axes of the surface over rows.
pub fn axes(rows: &[&Row], names: [&str; 3]) -> Vec<Axis> {
    (0..3).map(|axis| axis_of(rows, axis, names[axis])).collect()
}

/// How far measured times lie around the law alone: the relative spread that two thirds of the rows keep.
pub fn spread(rows: &[Row], shape: &Law) -> f64 {
    let law = coefficients(&rows.iter().collect::<Vec<&Row>>(), shape);
    let total = |row: &Row| law.seconds(&row.op).map_or(f64::NAN, |(start, rest)| start + rest);
    let mut off: Vec<f64> = rows.iter().map(|row| (row.seconds / total(row).max(1e-12)).ln().abs()).collect();
    off.sort_by(f64::total_cmp);
    // Six coefficients were chosen to make it small.
    let freedom = float(off.len()) / float(off.len().saturating_sub(6).max(1));
    off[(off.len() * 2 / 3).min(off.len() - 1)] * freedom.sqrt()
}

/// Knots in equal ratios over what the rows span.
fn axis_of(rows: &[&Row], axis: usize, name: &str) -> Axis {
    let at = rows.iter().map(|row| row.point[axis]);
    let (low, high) = at.fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
    let steps = ((high / low).ln() / KNOT_RATIO.ln()).floor().clamp(0.0, f64::from(KNOTS - 1));
    let knots = if steps < 1.0 {
        // An axis that the rows do not vary on; its hull is the point.
        if high > low { vec![low, high] } else { vec![low] }
    } else {
        let n = hw::whole(steps);
        (0..=n).map(|k| if k == n { high } else { low * (high / low).powf(float(k as usize) / steps) }).collect()
    };
    Axis { measured: (low >= high).then_some([low, high]), ..Axis::new(name, knots) }
}

/// Non-negative coefficients: alternately sides and least squares, from several first guesses of which rows memory bounds.
fn coefficients(rows: &[&Row], shape: &Law) -> Law {
    let features: Vec<Features> =
        rows.iter().map(|row| shape.features(&row.op).expect("rows are of the law's kernel")).collect();
    if features[0].memory.is_empty() {
        return sides(rows, &features, shape, vec![false; rows.len()]).1;
    }
    let density = |features: &Features| shape.density(features);
    let mut densities: Vec<f64> = features.iter().map(density).collect();
    densities.sort_by(f64::total_cmp);
    let guesses = [0, 2, 5, 8].map(|tenths| {
        let least = densities[(densities.len() - 1) * tenths / 10];
        sides(rows, &features, shape, features.iter().map(|row| density(row) < least).collect())
    });
    guesses.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("four guesses").1
}

/// The law from a first guess, and the sum of what it is off by.
fn sides(rows: &[&Row], features: &[Features], shape: &Law, mut on_memory: Vec<bool>) -> (f64, Law) {
    let (mut law, mut off) = (shape.clone(), f64::INFINITY);
    for _ in 0..SIDES {
        let scaled = |((features, memory), row): ((&Features, &bool), &&Row)| {
            let side = if *memory { &features.memory } else { &features.compute };
            side.iter().map(|x| x / row.seconds).collect::<Vec<f64>>()
        };
        let scaled: Vec<Vec<f64>> = features.iter().zip(&on_memory).zip(rows).map(scaled).collect();
        law = shape.with(&non_negative(&scaled, &vec![1.0; scaled.len()], ROBUST));
        let found = law.coefficients();
        let total = |side: &[f64]| side.iter().zip(&found).map(|(x, c)| x * c).sum::<f64>();
        let next: Vec<bool> = features.iter().map(|row| total(&row.memory) > total(&row.compute)).collect();
        let seconds = features.iter().map(|row| total(&row.compute).max(total(&row.memory)));
        off = seconds.zip(rows).map(|(seconds, row)| (seconds / row.seconds - 1.0).abs()).sum();
        if next == on_memory {
            break;
        }
        on_memory = next;
    }
    (off, law)
}

/// Knots of a product whose time would fall as a dimension grows are drawn together, axis by axis.
fn monotone(law: &Law, surface: &mut Surface) {
    let sizes: Vec<usize> = surface.axes.iter().map(|axis| axis.knots.len()).collect();
    let strides = [sizes[1] * sizes[2], sizes[2], 1];
    let rest: Vec<f64> = (0..surface.values.len())
        .map(|index| {
            let at = |axis: usize| hw::whole(surface.axes[axis].knots[index / strides[axis] % sizes[axis]]).max(1);
            let op = Op::Gemm { m: at(0), n: at(1), k: at(2), format: hw::Format::Bf16 };
            law.seconds(&op).expect("a product").1.max(1e-12).ln()
        })
        .collect();
    let mut times: Vec<f64> = surface.values.iter().zip(&rest).map(|(value, rest)| value + rest).collect();
    for axis in [0, 1, 2, 0, 1, 2] {
        for first in (0..times.len()).filter(|index| (index / strides[axis]).is_multiple_of(sizes[axis])) {
            let line: Vec<usize> = (0..sizes[axis]).map(|step| first + step * strides[axis]).collect();
            let mut high = f64::NEG_INFINITY;
            let up: Vec<f64> = line
                .iter()
                .map(|&i| {
                    high = high.max(times[i]);
                    high
                })
                .collect();
            let mut low = f64::INFINITY;
            let mut down: Vec<f64> = line
                .iter()
                .rev()
                .map(|&i| {
                    low = low.min(times[i]);
                    low
                })
                .collect();
            down.reverse();
            for ((&index, up), down) in line.iter().zip(up).zip(down) {
                times[index] = f64::midpoint(up, down);
            }
        }
    }
    surface.values.iter_mut().zip(times.iter().zip(&rest)).for_each(|(value, (time, rest))| *value = time - rest);
}

#[cfg(test)]
mod tests {
    use engine::cost::law::{AttentionLaw, GemmLaw};
    use engine::task::{Document, Pass};
    use hw::Format;

    use super::*;

    const GEMM: [&str; 3] = ["m", "n", "k"];

    fn gemms(of: impl Fn(&Op) -> f64) -> Vec<Row> {
        let sizes = [1_u64, 7, 32, 100, 300, 1000, 3000];
        let mut rows = Vec::new();
        for (i, m) in sizes.into_iter().enumerate() {
            for (j, n) in sizes.into_iter().enumerate() {
                for k in [64 + 13 * i as u64, 512 + j as u64] {
                    let op = Op::Gemm { m, n, k, format: Format::Bf16 };
                    let point = [m, n, k].map(hw::real).to_vec();
                    rows.push(Row { seconds: of(&op), op, point });
                }
            }
        }
        rows
    }

    #[test]
    fn a_law_is_found_again_from_what_it_says() {
        let shape = GemmLaw { tile_m: 16, tile_n: 8, slots: 4, ..GemmLaw::default() };
        let truth = Law::Gemm(GemmLaw { start_s: 3e-6, multiply_s: 2e-11, left_s: 1e-10, byte_s: 5e-10, ..shape });
        let rows = gemms(|op| truth.seconds(op).map(|(start, rest)| start + rest).expect("a product"));
        let found =
            operator(&rows, &[Law::Gemm(GemmLaw { tile_m: 1, tile_n: 1, slots: 1, ..shape }), Law::Gemm(shape)], GEMM);
        let found = found.expect("rows");
        assert!(found.residuals.p90_error < 0.01, "{:?}", found.residuals);
        let Some(Law::Gemm(law)) = found.law else { panic!("a law of products") };
        assert_eq!((law.tile_m, law.tile_n, law.slots), (16, 8, 4), "the shape that predicts best");
        assert!((law.multiply_s / 2e-11 - 1.0).abs() < 0.02 && (law.start_s / 3e-6 - 1.0).abs() < 0.05, "{law:?}");
    }

    #[test]
    fn what_the_shape_leaves_goes_into_the_surface_and_time_still_grows_with_every_dimension() {
        let shape = GemmLaw { tile_m: 1, tile_n: 1, slots: 1, ..GemmLaw::default() };
        // A kernel twice as slow at small n, with 3 % of noise.
        let noise = |op: &Op| 1.0 + 0.03 * ((op.flops() * 0.618).fract() - 0.5);
        let rows = gemms(|op| {
            let Op::Gemm { n, .. } = op else { unreachable!() };
            let slow = if *n < 64 { 2.0 } else { 1.0 };
            (2e-6 + op.flops() * 1e-12 * slow) * noise(op)
        });
        let found = operator(&rows, &[Law::Gemm(shape)], GEMM).expect("rows");
        assert!(found.residuals.median_error < 0.06, "{:?}", found.residuals);
        let law = found.law.expect("a law");
        let time = |m, n, k| {
            let op = Op::Gemm { m, n, k, format: Format::Bf16 };
            let point = [m, n, k].map(hw::real).to_vec();
            predicted(&law, &found.surface, &Row { op, point, seconds: 1.0 })
        };
        for size in [1, 7, 32, 100, 300, 1000] {
            assert!(time(size, 300, 100) <= time(2 * size, 300, 100) * 1.001);
            assert!(time(300, size, 100) <= time(300, 2 * size, 100) * 1.001);
        }
    }

    #[test]
    fn attention_of_many_documents_is_found_from_single_ones() {
        let truth =
            AttentionLaw { start_s: 4e-6, document_s: 1e-6, pair_s: 1e-12, score_s: 2e-11, ..AttentionLaw::default() };
        let truth = Law::Attention(truth);
        let attention = |documents| Op::Attention {
            documents,
            n_heads: 8,
            n_kv_heads: 2,
            head_dim: 64,
            kv: hw::Dtype::Bf16,
            pass: Pass::Forward,
        };
        let row = |documents: Vec<Document>| {
            let op = attention(documents);
            let seconds = truth.seconds(&op).map(|(start, rest)| start + rest).expect("attention");
            Row { point: engine::cost::profiled::attention_point(&op).expect("attention").to_vec(), op, seconds }
        };
        let rows: Vec<Row> = (0..40).map(|i| row(vec![Document::causal(16 << (i % 8)); 1 + i / 8])).collect();
        let found =
            operator(&rows, &[Law::Attention(AttentionLaw::default())], ["length", "tiles", "group"]).expect("rows");
        assert!(found.residuals.p90_error < 0.02, "{:?}", found.residuals);
        let mixed = row(vec![Document::causal(1500), Document::causal(20), Document::chunk(300, 100)]);
        let seconds = predicted(&found.law.expect("a law"), &found.surface, &mixed);
        assert!((seconds / mixed.seconds - 1.0).abs() < 0.05, "{seconds} {}", mixed.seconds);
    }
}
