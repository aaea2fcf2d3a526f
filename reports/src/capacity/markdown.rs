//! The capacity report as Markdown, for pull requests and wikis.

use std::fmt::Write as _;

use super::{Capacity, changes, fleets};
use crate::rows::markdown as table;

/// Renders the report.
pub fn render(capacity: &Capacity) -> String {
    let mut out = format!("# Capacity: {}\n\n", capacity.scenario);
    for sentence in capacity.lead() {
        let _ = writeln!(out, "{sentence}");
    }
    out.push_str("\n## Fleets\n\n");
    table(&mut out, &fleets(capacity));
    for (name, why) in &capacity.left_out {
        let _ = writeln!(out, "\n{name} was left out: {why}");
    }
    if let Some(headroom) = &capacity.headroom {
        out.push_str("\n## Headroom\n\n");
        let mut rows = vec![["load", "within limits"].map(str::to_owned).to_vec()];
        rows.extend(headroom.loads.iter().map(|load| {
            vec![format!("{:.3}", load.factor), crate::quantity::share(load.attainment_ratio, capacity.target_ratio)]
        }));
        table(&mut out, &rows);
    }
    if !capacity.sensitivity.is_empty() {
        out.push_str("\n## If prices or load change\n\n");
        table(&mut out, &changes(capacity));
    }
    out.push_str("\n## Where the figures come from\n\n");
    for sentence in &capacity.sources {
        let _ = writeln!(out, "- {sentence}");
    }
    out
}
