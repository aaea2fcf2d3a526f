//! A comparison as a picture: the figure that counts of each policy over the baseline's, with its interval, scenario by scenario.

use std::fmt::Write as _;

use super::{BLUE, END, ORANGE, VERMILION, WIDTH, open, px, text};
use crate::comparison::{Comparison, Entry, Spread};
use crate::quantity::{float, float_of, ratio, shortened};

const LEFT: f64 = 250.0;
const RIGHT: f64 = 190.0;
const PITCH: u32 = 26;
/// Attribute of a text that begins at its place.
const START: &str = " text-anchor=\"start\"";

/// Bars of the paired ratios; a self-contained picture.
pub fn ratio_bars(comparison: &Comparison) -> String {
    let ratio_of = |entry: &Entry| match comparison.shown(&entry.scenario).columns.first() {
        _ if entry.is_baseline => Some(Spread { mean: 1.0, low: None, high: None }),
        first => entry.ratio.get(&first?.key).copied(),
    };
    let largest = |entry: &Entry| ratio_of(entry).map_or(1.0, |spread| spread.high.unwrap_or(spread.mean));
    let longest = comparison.entries.iter().map(largest).fold(1.0, f64::max);
    let n_scenarios = comparison.entries.chunk_by(|a, b| a.scenario == b.scenario).count();
    let n_rows = u32::try_from(comparison.entries.len() + n_scenarios).expect("fewer than 2^32 rows");
    let height = n_rows * PITCH + 40;
    let mut out = open(height, "The figure that counts of each policy over the baseline's");
    let scale = (f64::from(WIDTH) - LEFT - RIGHT) / longest;
    let mut row = 0;
    for entries in comparison.entries.chunk_by(|a, b| a.scenario == b.scenario) {
        let y = f64::from(PITCH) * float_of(row) + 20.0;
        let shown = comparison.shown(&entries[0].scenario);
        let figure = shown.columns.first().map_or("", |column| column.heading.as_str());
        let better = if shown.more_is_better { "longer" } else { "shorter" };
        let title = format!("{}: {figure}, {better} is better", entries[0].scenario);
        let _ = writeln!(out, "{}", text((8.0, y), " font-weight=\"600\"", &title));
        row += 1;
        for entry in entries {
            let top = f64::from(PITCH) * float_of(row) + 6.0;
            bar(&mut out, entry, ratio_of(entry), top, scale);
            row += 1;
        }
    }
    let bottom = float(u64::from(n_rows * PITCH)) + 8.0;
    let _ = writeln!(
        out,
        "<path d=\"M{x} 8V{}\" stroke=\"{VERMILION}\" stroke-width=\"2\" stroke-dasharray=\"6 4\"/>\
         <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">the baseline</text>\n</svg>",
        px(bottom),
        px(bottom + 20.0),
        x = px(LEFT + scale)
    );
    out
}

fn bar(out: &mut String, entry: &Entry, spread: Option<Spread>, top: f64, scale: f64) {
    let mut put = |x: f64, attributes: &str, words: &str| out.push_str(&text((x, top + 14.0), attributes, words));
    put(LEFT - 8.0, END, &shortened(&entry.policy, 32));
    let Some(spread) = spread else {
        put(LEFT + 8.0, START, &shortened(entry.failure.as_deref().unwrap_or("no figure"), 90));
        out.push('\n');
        return;
    };
    let colour = if entry.is_baseline { ORANGE } else { BLUE };
    out.push_str(&super::bar([LEFT, top, spread.mean * scale, 18.0], colour, ""));
    let mut words = ratio(spread.mean);
    if let (Some(low), Some(high)) = (spread.low, spread.high) {
        let (from, to) = (LEFT + low.max(0.0) * scale, LEFT + high * scale);
        let middle = px(top + 9.0);
        let _ = write!(
            out,
            "<path d=\"M{} {middle}H{}M{} {}v10M{} {}v10\" stroke=\"currentColor\" stroke-width=\"2\"/>",
            px(from),
            px(to),
            px(from),
            px(top + 4.0),
            px(to),
            px(top + 4.0)
        );
        words = format!("{words} ({} to {})", ratio(low), ratio(high));
    }
    let _ = writeln!(out, "{}", text((f64::from(WIDTH) - RIGHT + 12.0, top + 14.0), START, &words));
}
