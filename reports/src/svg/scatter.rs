//! Predicted against measured times of operations, both in logarithms, with the predicted interval of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use engine::validation::Point;

use super::{BLUE, ORANGE, VERMILION, legend, legend_above, open_above, px};
use crate::quantity::duration;

const LEFT: f64 = 90.0;
const TOP: f64 = 58.0;
/// Width and height of the plot; both axes have the same range, so that the diagonal joins equal times.
const WIDE: f64 = 990.0;
const HIGH: f64 = 460.0;
/// Points that are drawn at most, evenly spread over all.
const POINTS_MAX: usize = 3000;
const COLOURS: [&str; 8] = [BLUE, ORANGE, "#009E73", VERMILION, "#CC79A7", "#56B4E9", "#8C8C8C", "#B8860B"];

/// Draws points; empty where there is none.
pub fn scatter(points: &[Point]) -> String {
    let all: Vec<&Point> = points.iter().filter(|point| point.class != "host" && point.time.measured_s > 0.0).collect();
    let drawn: Vec<&&Point> = all.iter().step_by(all.len().div_ceil(POINTS_MAX).max(1)).collect();
    let ends = drawn.iter().flat_map(|point| [point.time.measured_s, point.low_s, point.high_s]);
    let (low, high) = ends
        .filter(|seconds| *seconds > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), seconds| (low.min(seconds), high.max(seconds)));
    if low >= high {
        return String::new();
    }
    let (low, high) = (low.log10() - 0.1, high.log10() + 0.1);
    let place = |seconds: f64| (seconds.max(1e-12).log10() - low) / (high - low);
    let x = |seconds: f64| LEFT + place(seconds) * WIDE;
    let y = |seconds: f64| TOP + HIGH - place(seconds) * HIGH;
    let mut classes: BTreeMap<&str, &str> = BTreeMap::new();
    let mut ink = String::new();
    for point in &drawn {
        let next = COLOURS[classes.len() % COLOURS.len()];
        let colour = *classes.entry(point.class).or_insert(next);
        let at = x(point.time.measured_s);
        let _ = writeln!(
            ink,
            "<path d=\"M{} {}V{}\" stroke=\"{colour}\" stroke-opacity=\".35\"/><circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{colour}\" fill-opacity=\".8\"/>",
            px(at),
            px(y(point.low_s)),
            px(y(point.high_s)),
            px(at),
            px(y(point.time.predicted_s))
        );
    }
    let entries: Vec<(&str, &str)> = classes.into_iter().collect();
    let mut out = open_above(560, legend_above(&entries, 90), "Predicted against measured times of operations");
    axes(&mut out, low, high, &x, &y);
    out + &ink + &legend(&entries, 90, 16) + "</svg>\n"
}

/// Frame, the diagonal, and a line for every factor of ten.
fn axes(out: &mut String, low: f64, high: f64, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let (right, bottom) = (LEFT + WIDE, TOP + HIGH);
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDE}\" height=\"{HIGH}\" fill=\"none\" stroke=\"currentColor\" stroke-opacity=\".4\"/>\
         <path d=\"M{LEFT} {bottom}L{right} {TOP}\" stroke=\"currentColor\" stroke-opacity=\".6\" stroke-dasharray=\"5 4\"/>"
    );
    for power in -9_i32..=3 {
        if !(low..=high).contains(&f64::from(power)) {
            continue;
        }
        let seconds = 10_f64.powi(power);
        let words = duration(seconds, None).replace(".000", "").replace(".00", "").replace(".0", "");
        let (at_x, at_y) = (px(x(seconds)), px(y(seconds)));
        let _ = writeln!(
            out,
            "<path d=\"M{at_x} {TOP}V{bottom}M{LEFT} {at_y}H{right}\" stroke=\"currentColor\" stroke-opacity=\".15\"/>\
             <text x=\"{at_x}\" y=\"{}\" text-anchor=\"middle\">{words}</text>\
             <text x=\"{}\" y=\"{at_y}\" dy=\"4\" text-anchor=\"end\">{words}</text>",
            px(bottom + 18.0),
            px(LEFT - 8.0)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">measured</text>\
         <text x=\"8\" y=\"{}\">predicted, with its interval; on the dashed line both are equal</text>",
        px(LEFT + WIDE / 2.0),
        px(bottom + 36.0),
        px(TOP - 14.0)
    );
}

#[cfg(test)]
mod tests {
    use engine::validation::Pair;

    use super::*;

    #[test]
    fn every_class_has_a_colour_and_nothing_is_not_a_number() {
        let point = |class, seconds: f64| Point {
            class,
            time: Pair { predicted_s: seconds * 1.1, measured_s: seconds },
            low_s: seconds,
            high_s: seconds * 1.3,
            n: 1,
        };
        let points = [point("gemm", 1e-5), point("gemm", 2e-3), point("copy", 1e-4), point("host", 1.0)];
        let picture = scatter(&points);
        assert_eq!(picture.matches("<circle").count(), 3, "host time is no prediction");
        assert!(picture.contains(">gemm<") && picture.contains(">copy<") && !picture.contains("NaN"));
        assert!(picture.contains(">100 µs<") && picture.contains(">1 ms<"), "{picture}");
        assert_eq!(scatter(&points[3..]), "");
    }
}
