//! Throughput against latency, a line over the rates for each policy: where more requests buy more tokens, and where they buy waiting alone.

use std::fmt::Write as _;

use super::{HEIGHT, LEFT, TOP, frame};
use crate::quantity::{amount, duration, escape, shortened, significant};
use crate::svg::axis::{Axis, tick};
use crate::svg::{SERIES, WIDTH, legend, legend_above, open_above, px};

/// Strokes of lines beyond the colours, and how they are called.
const STROKES: [(&str, &str); 3] =
    [("", ""), (" stroke-dasharray=\"8 4\"", ", dashed"), (" stroke-dasharray=\"2 4\"", ", dotted")];
/// Lines that are drawn.
const LINES_MAX: usize = SERIES.len() * STROKES.len();
/// Letters of a line's name.
const LETTERS_MAX: usize = 60;

/// A policy at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// Requests that arrive a second.
    pub rate_per_s: f64,
    /// Output tokens a second.
    pub throughput: f64,
    /// Time to first token, 99th percentile, seconds.
    pub latency_s: f64,
}

/// A policy over rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Policy, and the values of other axes.
    pub name: String,
    /// By rate.
    pub points: Vec<At>,
}

/// Those that have two rates.
fn drawn(lines: &[Line]) -> impl Iterator<Item = &Line> {
    lines.iter().filter(|line| line.points.len() > 1)
}

/// What the picture shows, in words.
pub fn caption(lines: &[Line]) -> String {
    let left_out = drawn(lines).count().saturating_sub(LINES_MAX);
    let words = "A line for each policy and other values of the sweep, a point for each rate.";
    if left_out == 0 { words.to_owned() } else { format!("{words} {left_out} lines more are not drawn.") }
}

/// Draws the first lines; empty where none has two rates.
pub fn picture(lines: &[Line]) -> String {
    let lines: Vec<&Line> = drawn(lines).take(LINES_MAX).collect();
    let all = || lines.iter().flat_map(|line| &line.points);
    let (across, up) =
        (all().map(|at| at.throughput).fold(0.0, f64::max), all().map(|at| at.latency_s).fold(0.0, f64::max));
    if lines.is_empty() || across <= 0.0 || up <= 0.0 {
        return String::new();
    }
    let x = Axis { from: 0.0, to: across * 1.05, start: LEFT, length: f64::from(WIDTH) - LEFT - 20.0 };
    let y = Axis { from: 0.0, to: up * 1.05, start: TOP + HEIGHT, length: -HEIGHT };
    let strokes = || STROKES.iter().flat_map(|stroke| SERIES.map(|colour| (colour, stroke)));
    let name = |(line, (_, (_, word))): (&&Line, (&str, &(&str, &str)))| shortened(&line.name, LETTERS_MAX) + word;
    let shown: Vec<String> = lines.iter().zip(strokes()).map(name).collect();
    let entries: Vec<(&str, &str)> =
        shown.iter().map(String::as_str).zip(strokes().map(|(colour, _)| colour)).collect();
    let mut out = open_above(460, legend_above(&entries, 320), "Throughput against latency over rates");
    let names = ["output tokens a second".to_owned(), "time to first token, p99".to_owned()];
    frame(&mut out, (&x, &y), &names, (&|value| tick(&amount(value)), &|value| tick(&duration(value, None))));
    for (line, (colour, (dashes, _))) in lines.iter().zip(strokes()) {
        let place = |at: &At| format!("{} {}", px(x.at(at.throughput)), px(y.at(at.latency_s)));
        let path: Vec<String> = line.points.iter().map(place).collect();
        let path = path.join("L");
        let _ = writeln!(out, "<path d=\"M{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>");
        for at in &line.points {
            let (across, up) = (px(x.at(at.throughput)), px(y.at(at.latency_s)));
            let words = format!("{}: {} requests a second", line.name, significant(at.rate_per_s));
            let _ = writeln!(
                out,
                "<circle cx=\"{across}\" cy=\"{up}\" r=\"4\" fill=\"{colour}\"><title>{}</title></circle>",
                escape(&words)
            );
        }
    }
    out.push_str(&legend(&entries, 320, 20));
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_point_for_each_rate_in_order() {
        let at = |rate_per_s, throughput, latency_s| At { rate_per_s, throughput, latency_s };
        let line = Line { name: "p<q".to_owned(), points: vec![at(1.0, 100.0, 0.1), at(2.0, 200.0, 0.2)] };
        let alone = Line { name: "one".to_owned(), points: vec![at(1.0, 1.0, 1.0)] };
        let text = picture(&[line, alone]);
        // 200 of 210 tokens a second on 990 pixels from 90 on; 0.2 of 0.21 seconds on 360 pixels up from 400.
        assert!(text.contains("L1032.9 57.1\""), "{text}");
        assert_eq!(
            (text.matches("<circle").count(), text.contains("p&lt;q: 2.000 requests a second")),
            (2, true),
            "{text}"
        );
        assert_eq!(picture(&[]), "");
    }

    #[test]
    fn every_line_is_drawn_or_counted() {
        let at = |rate_per_s| At { rate_per_s, throughput: 100.0 * rate_per_s, latency_s: 0.1 };
        let line = |index: usize| Line { name: format!("policy {index}"), points: vec![at(1.0), at(2.0)] };
        let lines: Vec<Line> = (0..20).map(line).collect();
        let nine = picture(&lines[..9]);
        assert_eq!(nine.matches("stroke-width=\"2\"").count(), 9);
        assert_eq!(nine.matches("stroke-dasharray").count(), 9 - SERIES.len());
        assert!(nine.contains("policy 8, dashed") && !caption(&lines[..9]).contains("not drawn"));
        assert!(caption(&lines).ends_with(&format!("{} lines more are not drawn.", 20 - LINES_MAX)));
    }
}
