//! The table for a terminal: one row per policy, reasons and provenance below.

use crate::{PolicyResult, RunResult};

/// A duration in the unit that reads best.
#[must_use]
pub fn seconds(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{v:.3} s"),
        v if v >= 1e-3 => format!("{:.2} ms", v * 1e3),
        v => format!("{:.2} us", v * 1e6),
    }
}

const HEADER: [&str; 8] = ["policy", "step", "interval", "speed-up", "tokens/s", "MFU", "waiting", "peak memory"];

/// Cells of a row, in header order.
#[must_use]
pub fn cells(result: &RunResult, row: &PolicyResult) -> [String; 8] {
    let metric = |key: &str| row.metrics.get(key).copied();
    let percent = |key: &str| metric(key).map_or_else(|| "-".to_owned(), |value| format!("{:.1} %", value * 100.0));
    let dash = || "-".to_owned();
    [
        row.policy.clone(),
        metric("iteration_time_s").map_or_else(|| row.status.clone(), seconds),
        row.interval
            .get("iteration_time_s")
            .map_or_else(dash, |[low, high]| format!("{} to {}", seconds(*low), seconds(*high))),
        result.speedup_ratio.get(&row.policy).map_or_else(dash, |ratio| format!("{ratio:.2}x")),
        metric("tokens_per_s").map_or_else(dash, |value| format!("{value:.0}")),
        percent("mfu_ratio"),
        percent("wait_ratio"),
        metric("peak_memory_bytes").map_or_else(dash, |bytes| format!("{:.1} GiB", bytes / 1_073_741_824.0)),
    ]
}

/// Names of the columns.
#[must_use]
pub const fn header() -> [&'static str; 8] {
    HEADER
}

/// Sentences about the cost model.
#[must_use]
pub fn provenance(result: &RunResult) -> Vec<String> {
    let cost = &result.cost_model;
    let mut lines = vec![format!("cost model: {} (weakest source: {})", cost.profile, cost.source)];
    if cost.outside_hull_ratio > 0.0 {
        lines.push(format!(
            "outside the measured hull: {:.1} % of compute time ({})",
            cost.outside_hull_ratio * 100.0,
            cost.outside_hull.join(", ")
        ));
    }
    lines.extend(cost.free_parameters.iter().map(|parameter| format!("free parameter: {parameter}")));
    lines
}

/// The whole table.
#[must_use]
pub fn render(result: &RunResult) -> String {
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(result.results.iter().map(|row| cells(result, row)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    let mut text = format!("{} (seed {})\n\n", result.scenario, result.seed);
    for row in &rows {
        let padded: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(column, (cell, width))| {
                    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text.push('\n');
    for row in &result.results {
        text += &format!("{}: {}\n", row.policy, row.why);
    }
    text.push('\n');
    for line in provenance(result) {
        text += &format!("{line}\n");
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> RunResult {
        let ok = PolicyResult {
            policy: "skrull".to_owned(),
            status: "ok".to_owned(),
            why: "matrix multiplication 60 %".to_owned(),
            metrics: [("iteration_time_s".to_owned(), 0.5), ("mfu_ratio".to_owned(), 0.42)].into(),
            interval: [("iteration_time_s".to_owned(), [0.4, 0.6])].into(),
            ..PolicyResult::default()
        };
        let oom = PolicyResult {
            policy: "<script>".to_owned(),
            status: "oom".to_owned(),
            why: "`activations` needs 9 GiB".to_owned(),
            ..PolicyResult::default()
        };
        RunResult {
            schema: crate::SCHEMA.to_owned(),
            scenario: "sample".to_owned(),
            results: vec![ok, oom],
            baseline: "skrull".to_owned(),
            speedup_ratio: [("skrull".to_owned(), 1.0)].into(),
            ..RunResult::default()
        }
    }

    #[test]
    fn a_failed_policy_shows_its_status_and_its_reason() {
        let text = render(&sample());
        assert!(text.contains("skrull    500.00 ms  400.00 ms to 600.00 ms"), "{text}");
        assert!(text.contains("<script>        oom"), "{text}");
        assert!(text.contains("<script>: `activations` needs 9 GiB"), "{text}");
    }
}
