//! A bar per policy: the certified lower bound, then what each cause of lost time adds, to the step.

use std::fmt::Write as _;

use engine::cause::Cause;

use super::{BLUE, END, ORANGE, VERMILION, WIDTH, bar, legend, legend_above, open_above, text};
use crate::RunResult;
use crate::lost::{bound_s, causes};
use crate::quantity::{duration, float_of, shortened};

/// Colour of a cause, as far as possible that of the role that causes it.
const fn colour(cause: Cause) -> &'static str {
    match cause {
        Cause::Imbalance => "#8C8C8C",
        Cause::Bubble => "#A6761D",
        Cause::Communication => ORANGE,
        Cause::Kernel => "#56B4E9",
        Cause::Recompute => "#CC79A7",
        Cause::Padding => "#44AA99",
        Cause::Offload => VERMILION,
        Cause::Straggler => "#882255",
        Cause::Replan => "#332288",
        Cause::Other => "#F0E442",
    }
}

const LEFT: f64 = 220.0;
const RIGHT: f64 = 110.0;
const TOP: u32 = 30;
const PITCH: u32 = 28;

struct Row<'a> {
    name: &'a str,
    bound_s: f64,
    causes: Vec<(Cause, f64)>,
}

impl Row<'_> {
    fn step_s(&self) -> f64 {
        self.bound_s + self.causes.iter().map(|(_, seconds)| seconds.max(0.0)).sum::<f64>()
    }
}

/// Stacked bars of all policies that have a bound; empty where none has.
pub fn lost_bars(run: &RunResult) -> String {
    let rows: Vec<Row<'_>> = (run.results.iter())
        .filter_map(|result| Some(Row { name: &result.policy, bound_s: bound_s(result)?, causes: causes(result) }))
        .collect();
    let longest = rows.iter().map(Row::step_s).fold(0.0, f64::max);
    // Kinds of scenarios without causes say their bound in words.
    if longest <= 0.0 || rows.iter().all(|row| row.causes.is_empty()) {
        return String::new();
    }
    let n_rows = u32::try_from(rows.len()).expect("fewer than 2^32 policies");
    let used = |cause: Cause| rows.iter().any(|row| row.causes.iter().any(|(of, _)| *of == cause));
    let causes = Cause::ALL.into_iter().filter(|&cause| used(cause)).map(|cause| (cause.name(), colour(cause)));
    let entries: Vec<(&str, &str)> = [("lower bound", BLUE)].into_iter().chain(causes).collect();
    let about = "Lower bound and causes of lost time of each policy";
    let mut out = open_above(TOP + n_rows * PITCH + 8, legend_above(&entries, 20), about);
    out.push_str(&legend(&entries, 20, 16));
    let scale = (f64::from(WIDTH) - LEFT - RIGHT) / longest;
    for (index, row) in rows.iter().enumerate() {
        let top = f64::from(TOP) + f64::from(PITCH) * float_of(index);
        out.push_str(&text((LEFT - 8.0, top + 15.0), END, &shortened(row.name, 28)));
        let parts = [("lower bound", BLUE, row.bound_s)].into_iter();
        let parts = parts.chain(row.causes.iter().map(|&(cause, seconds)| (cause.name(), colour(cause), seconds)));
        let mut x = LEFT;
        for (part, colour, seconds) in parts {
            let width = seconds.max(0.0) * scale;
            let title = format!("{}: {part} {}", row.name, duration(seconds, None));
            out.push_str(&bar([x, top, width, 20.0], colour, &title));
            x += width;
        }
        let _ = writeln!(out, "{}", text((x + 8.0, top + 15.0), "", &duration(row.step_s(), None)));
    }
    out.push_str("</svg>\n");
    out
}
