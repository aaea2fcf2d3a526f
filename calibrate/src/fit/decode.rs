//! Fits the law of decode attention (`sim/engine/src/cost/decode.rs`) to measured launches, alone and beside a prompt's chunk.

use engine::cost::decode::{DecodeLaw, HEADS, MixedLaw};
use engine::cost::profile::Residuals;

use super::non_negative::{Robust, non_negative};
use super::surfaces::rounded;
use super::{residuals, unseen};

/// Rounds in which rows far off lose weight.
const ROBUST: Robust = Robust { rounds: 10, off: 0.03 };

/// A measured launch over sequences of one length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Launch {
    /// Decoding sequences times their query heads on this device.
    pub heads: f64,
    /// Seconds to read their keys and values at the datasheet's bandwidth.
    pub read_s: f64,
    /// Seconds of the chunk by itself; 0 where there is none.
    pub chunk_s: f64,
    /// Measured.
    pub seconds: f64,
}

impl Launch {
    /// Terms over the measured time, which coefficients should add up to 1 together with the chunk's share.
    fn terms(&self, start: bool) -> Vec<f64> {
        let terms = [if start { 1.0 } else { 0.0 }, self.heads / HEADS, self.read_s];
        // What the chunk leaves is what the sequences take; errors count relative to the whole launch.
        terms.iter().map(|term| term / self.seconds).collect()
    }
}

/// Coefficients, and measured over predicted of every launch by a fit without its fold.
fn fitted(launches: &[Launch], start: bool) -> (Vec<f64>, Vec<f64>) {
    let solve = |launches: &[&Launch]| {
        let rows: Vec<Vec<f64>> = launches.iter().map(|launch| launch.terms(start)).collect();
        let wanted: Vec<f64> = launches.iter().map(|launch| 1.0 - launch.chunk_s / launch.seconds).collect();
        non_negative(&rows, &wanted, ROBUST)
    };
    let ratio = |launch: &Launch, c: &Vec<f64>| {
        let share: f64 = launch.terms(start).iter().zip(c).map(|(x, c)| x * c).sum();
        1.0 / (share + launch.chunk_s / launch.seconds)
    };
    let ratios = unseen(launches, solve, ratio);
    (solve(&launches.iter().collect::<Vec<_>>()), ratios)
}

fn errors(ratios: &[f64]) -> Residuals {
    Residuals { n_fit: ratios.len(), ..residuals(ratios, ratios.len()) }
}

/// The law of launches without and with a chunk; `None` with fewer than ten of the former.
pub fn law(alone: &[Launch], mixed: &[Launch]) -> Option<DecodeLaw> {
    if alone.len() < 10 {
        return None;
    }
    let (c, ratios) = fitted(alone, true);
    let mixed = (mixed.len() >= 10).then(|| {
        let (c, ratios) = fitted(mixed, false);
        MixedLaw { per_sequence_s: rounded(c[1]), reached: rounded(1.0 / c[2].max(1e-3)), residuals: errors(&ratios) }
    });
    Some(DecodeLaw {
        start_s: rounded(c[0]),
        per_sequence_s: rounded(c[1]),
        reached: rounded(1.0 / c[2].max(1e-3)),
        residuals: errors(&ratios),
        mixed,
    })
}

/// A launch whose time should be a start and a multiple of a term.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Seconds of what the slope multiplies.
    pub term_s: f64,
    /// Seconds of what was measured beside it.
    pub beside_s: f64,
    /// Measured seconds of all.
    pub seconds: f64,
}

/// A start and a slope, and how much each is told by the launches: the sum of the squares of its share of their times, at most `TOLD_MAX`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Seconds.
    pub start_s: f64,
    /// Ratio.
    pub slope: f64,
    /// Of the start.
    pub start_weight: f64,
    /// Of the slope.
    pub slope_weight: f64,
}

/// Most that the launches of one shape count for.
const TOLD_MAX: f64 = 6.0;
/// Slopes that are taken for real: nothing reads faster than nine tenths of the datasheet's time, nor fifty times slower.
const SLOPE: [f64; 2] = [0.9, 50.0];
/// Least start, seconds.
pub const START_MIN_S: f64 = 1e-6;

/// The line through launches of one shape, in relative error; launches far off lose weight.
pub fn affine(rows: &[Affine]) -> Line {
    let mut weights = vec![1.0; rows.len()];
    let (mut start_s, mut slope) = (START_MIN_S, 1.0);
    for _ in 0..ROBUST.rounds {
        let mut normal = [[0.0_f64; 3]; 2];
        for (row, weight) in rows.iter().zip(&weights) {
            let (one, term) = (1.0 / row.seconds, row.term_s / row.seconds);
            let wanted = 1.0 - row.beside_s / row.seconds;
            normal[0] = [
                normal[0][0] + weight * one * one,
                normal[0][1] + weight * one * term,
                normal[0][2] + weight * one * wanted,
            ];
            normal[1] = [normal[0][1], normal[1][1] + weight * term * term, normal[1][2] + weight * term * wanted];
        }
        slope = slope_of(&normal);
        start_s = ((normal[0][2] - slope * normal[0][1]) / normal[0][0]).max(START_MIN_S);
        for (row, weight) in rows.iter().zip(&mut weights) {
            let off = ((row.beside_s + start_s + slope * row.term_s) / row.seconds - 1.0).abs();
            *weight = if off <= ROBUST.off { 1.0 } else { ROBUST.off / off };
        }
    }
    let told = |share: fn(&Affine, f64) -> f64, by: f64| {
        rows.iter().map(|row| share(row, by).powi(2)).sum::<f64>().min(TOLD_MAX)
    };
    let start_weight = told(|row, start_s| start_s / row.seconds, start_s);
    Line { start_s, slope, start_weight, slope_weight: told(|row, slope| slope * row.term_s / row.seconds, slope) }
}

/// Slope of the normal equations, within what is taken for real; its least where launches do not tell it.
fn slope_of(normal: &[[f64; 3]; 2]) -> f64 {
    let determinant = normal[0][0] * normal[1][1] - normal[0][1] * normal[0][1];
    if determinant <= 1e-9 * normal[0][0] * normal[1][1] {
        return 1.0;
    }
    ((normal[0][0] * normal[1][2] - normal[0][1] * normal[0][2]) / determinant).clamp(SLOPE[0], SLOPE[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_and_a_slope_are_found_beside_something_else_despite_a_slow_launch() {
        let row = |index: u32| {
            let term_s = 1e-6 * f64::from(1 << index);
            let slow = if index == 3 { 2.0 } else { 1.0 };
            Affine { term_s, beside_s: 5e-6, seconds: (5e-6 + 12e-6 + 1.25 * term_s) * slow }
        };
        let found = affine(&(0..9).map(row).collect::<Vec<Affine>>());
        assert!((found.start_s / 12e-6 - 1.0).abs() < 0.03 && (found.slope / 1.25 - 1.0).abs() < 0.02, "{found:?}");
        assert!(found.start_weight > 0.5 && found.slope_weight > 0.5);
    }

    #[test]
    fn launches_of_mere_start_tell_no_slope() {
        let row = |index: u32| Affine { term_s: 1e-9 * f64::from(index), beside_s: 0.0, seconds: 1e-5 };
        let found = affine(&(0..9).map(row).collect::<Vec<Affine>>());
        assert!(found.slope_weight < 0.01 && (found.start_s / 1e-5 - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_law_is_found_again_alone_and_beside_a_chunk() {
        let launch = |n: u32, read_s: f64, chunk_s: f64| {
            let (heads, n) = (f64::from(n) * 16.0, f64::from(n));
            let own = if chunk_s > 0.0 { n * 4e-7 + read_s / 0.4 } else { 9e-6 + n * 5e-8 + read_s / 0.8 };
            Launch { heads, read_s, chunk_s, seconds: own + chunk_s }
        };
        let sizes = || (0..8_u32).flat_map(|n| (0..8_u32).map(move |keys| (1 << n, f64::from(1 << keys))));
        let alone: Vec<Launch> = sizes().map(|(n, keys)| launch(n, f64::from(n) * keys * 1e-7, 0.0)).collect();
        let mixed: Vec<Launch> = sizes().map(|(n, keys)| launch(n, f64::from(n) * keys * 1e-7, 4e-5)).collect();
        let law = law(&alone, &mixed).expect("enough rows");
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.01, "{found} of {wanted}");
        near(law.start_s, 9e-6);
        near(law.per_sequence_s, 1e-7);
        near(law.reached, 0.8);
        let mixed = law.mixed.expect("enough rows");
        near(mixed.per_sequence_s, 8e-7);
        near(mixed.reached, 0.4);
        assert!(mixed.residuals.p90_error < 0.01);
    }
}
