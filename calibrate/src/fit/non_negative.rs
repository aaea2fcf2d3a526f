//! Least squares in relative error with coefficients that are never negative: every term of a time adds to it.

/// Sweeps of coordinate descent at most.
const SWEEPS: usize = 2000;
/// Largest change of a sweep, relative to the largest coefficient, at which it stops.
const SETTLED: f64 = 1e-9;

/// How rows far from the fit lose weight (Huber): in so many rounds, from so far off on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Robust {
    /// Rounds, at least 1.
    pub rounds: usize,
    /// Relative error above which a row loses weight.
    pub off: f64,
}

/// Minimises Σ (x · c − y)² over c ≥ 0 by coordinate descent on scaled columns; rows are terms over the measured value, and y is what they
/// should add up to: 1, or less where a part is known.
///
/// # Panics
/// Without rows.
pub fn non_negative(rows: &[Vec<f64>], wanted: &[f64], robust: Robust) -> Vec<f64> {
    let n = rows[0].len();
    let scale: Vec<f64> = (0..n)
        .map(|column| rows.iter().map(|row| row[column] * row[column]).sum::<f64>().sqrt().max(f64::MIN_POSITIVE))
        .collect();
    let mut weights = vec![1.0; rows.len()];
    let mut c = vec![0.0; n];
    for _ in 0..robust.rounds {
        let x = |row: usize, column: usize| rows[row][column] / scale[column];
        let gram: Vec<Vec<f64>> = (0..n)
            .map(|a| (0..n).map(|b| (0..rows.len()).map(|r| weights[r] * x(r, a) * x(r, b)).sum()).collect())
            .collect();
        let right: Vec<f64> = (0..n).map(|a| (0..rows.len()).map(|r| weights[r] * x(r, a) * wanted[r]).sum()).collect();
        descend(&gram, &right, &mut c);
        for (r, weight) in weights.iter_mut().enumerate() {
            let off = ((0..n).map(|a| x(r, a) * c[a]).sum::<f64>() - wanted[r]).abs();
            *weight = if off <= robust.off { 1.0 } else { robust.off / off };
        }
    }
    c.iter().zip(&scale).map(|(c, scale)| c / scale).collect()
}

/// Coordinate descent on the normal equations.
fn descend(gram: &[Vec<f64>], right: &[f64], c: &mut [f64]) {
    for _ in 0..SWEEPS {
        let mut moved = 0.0_f64;
        for a in 0..c.len() {
            if gram[a][a] > 1e-300 {
                let rest: f64 = (0..c.len()).filter(|&b| b != a).map(|b| gram[a][b] * c[b]).sum();
                let next = ((right[a] - rest) / gram[a][a]).max(0.0);
                moved = moved.max((next - c[a]).abs());
                c[a] = next;
            }
        }
        if moved <= SETTLED * c.iter().fold(0.0_f64, |most, value| most.max(*value)) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_terms_is_found_again_despite_rows_that_are_far_off() {
        // Measured = 3 · x + 0.5 · y, one row in ten is twice that; a third term that would have to be negative stays at 0.
        let rows: Vec<Vec<f64>> = (1..60_u32)
            .map(|i| {
                let (x, y) = (f64::from(i), f64::from(i * i % 17));
                let measured = (3.0 * x + 0.5 * y) * if i % 10 == 0 { 2.0 } else { 1.0 };
                vec![x / measured, y / measured, (60.0 - x) / measured]
            })
            .collect();
        let c = non_negative(&rows, &vec![1.0; rows.len()], Robust { rounds: 20, off: 0.01 });
        assert!((c[0] - 3.0).abs() < 0.03 && (c[1] - 0.5).abs() < 0.05 && c[2] < 0.02, "{c:?}");
    }
}
