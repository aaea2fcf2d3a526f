//! Fits messages between two GPUs, inside a node and between nodes: seconds = alpha + bytes over bandwidth.
//!
//! Reads the format of microsoft/vidur's network profiles: `send_recv.csv` with `size` in bytes, `devices_per_node` 1 where
//! the message crosses nodes, medians in milliseconds. Weighted least squares of relative errors, three rounds in which
//! far rows lose weight (Huber); every second size is held out and gives the residuals.

use std::collections::BTreeMap;
use std::path::Path;

use engine::cost::profile::Link;

use crate::fit;
use crate::import::{ImportError, Table};

/// Relative residual above which a row loses weight.
const HUBER: f64 = 0.05;
const ROUNDS: usize = 3;

/// Links of a machine whose network ports carry `port_gb_per_s`; without that figure only links inside a node.
///
/// # Errors
/// When the table is missing or broken.
pub fn links(dir: &Path, port_gb_per_s: Option<f64>) -> Result<Vec<Link>, ImportError> {
    let table = Table::read(dir.join("send_recv.csv"))?;
    let [time, size, per_node] = table.columns(["time_stats.send_recv.median", "size", "devices_per_node"])?;
    let mut links = Vec::new();
    for crosses_nodes in [false, true] {
        let rows = (0..size.len()).filter(|&row| (per_node[row] < 2.0) == crosses_nodes && time[row] > 0.0);
        let mut by_size: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        rows.for_each(|row| by_size.entry(hw::whole(size[row])).or_default().push(time[row] / 1e3));
        let points: Vec<(f64, f64)> =
            by_size.into_iter().map(|(bytes, seconds)| (hw::real(bytes), mean(&seconds))).collect();
        if points.len() >= 4 && (!crosses_nodes || port_gb_per_s.is_some()) {
            links.push(link(&points, crosses_nodes, port_gb_per_s.filter(|_| crosses_nodes)));
        }
    }
    Ok(links)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / hw::real(values.len() as u64)
}

pub(crate) fn link(points: &[(f64, f64)], crosses_nodes: bool, port_gb_per_s: Option<f64>) -> Link {
    let fitted: Vec<(f64, f64)> = points.iter().copied().step_by(2).collect();
    let (alpha_s, per_byte) = line(&fitted);
    let ratios: Vec<f64> =
        points.iter().skip(1).step_by(2).map(|(bytes, seconds)| seconds / (alpha_s + per_byte * bytes)).collect();
    Link {
        crosses_nodes,
        alpha_s: (alpha_s * 1e8).round() / 1e8,
        gb_per_s: (1e-7 / per_byte).round() / 100.0,
        port_gb_per_s,
        bytes_max: points.last().map_or(0.0, |(bytes, _)| *bytes),
        residuals: fit::residuals(&ratios, fitted.len()),
    }
}

/// Intercept and slope with the least relative error.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let mut weights = vec![1.0; points.len()];
    let mut found = (0.0, 0.0);
    for _ in 0..ROUNDS {
        // Rows are 1 and bytes over seconds, the right side is 1.
        let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (&(bytes, seconds), weight) in points.iter().zip(&weights) {
            let (one, size) = (1.0 / seconds, bytes / seconds);
            aa += weight * one * one;
            ab += weight * one * size;
            bb += weight * size * size;
            a += weight * one;
            b += weight * size;
        }
        let determinant = aa * bb - ab * ab;
        found = ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant);
        for (weight, &(bytes, seconds)) in weights.iter_mut().zip(points) {
            let residual = ((found.0 + found.1 * bytes) / seconds - 1.0).abs();
            *weight = if residual <= HUBER { 1.0 } else { HUBER / residual };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_despite_a_slow_row() {
        let mut points: Vec<(f64, f64)> =
            (1..50).map(|k| (f64::from(k) * 1e6, 10e-6 + f64::from(k) * 1e6 / 40e9)).collect();
        points[7].1 *= 5.0;
        let (alpha, per_byte) = line(&points);
        assert!((alpha / 10e-6 - 1.0).abs() < 0.02 && (per_byte * 40e9 - 1.0).abs() < 0.01, "{alpha} {per_byte}");
    }
}
