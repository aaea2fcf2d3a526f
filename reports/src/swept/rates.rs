//! Throughput against latency, a line over the rates for each policy: where more requests buy more tokens, and where they buy waiting alone.

use std::fmt::Write as _;

use super::{HEIGHT, LEFT, TOP, frame};
use crate::quantity::{amount, duration, escape, shortened, significant};
use crate::svg::axis::{Axis, tick};
use crate::svg::{SERIES, WIDTH, legend, legend_above, open_above, px};

/// Lines that are drawn.
const LINES_MAX: usize = SERIES.len();

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

/// Draws the first lines; empty where none has two rates.
pub fn picture(lines: &[Line]) -> String {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.points.len() > 1).take(LINES_MAX).collect();
    let all = || lines.iter().flat_map(|line| &line.points);
    let (across, up) =
        (all().map(|at| at.throughput).fold(0.0, f64::max), all().map(|at| at.latency_s).fold(0.0, f64::max));
    if lines.is_empty() || across <= 0.0 || up <= 0.0 {
        return String::new();
    }
    let x = Axis { from: 0.0, to: across * 1.05, start: LEFT, length: f64::from(WIDTH) - LEFT - 20.0 };
    let y = Axis { from: 0.0, to: up * 1.05, start: TOP + HEIGHT, length: -HEIGHT };
    let shown: Vec<String> = lines.iter().map(|line| shortened(&line.name, 24)).collect();
    let entries: Vec<(&str, &str)> = shown.iter().map(String::as_str).zip(SERIES).collect();
    let mut out = open_above(460, legend_above(&entries, 320), "Throughput against latency over rates");
    let names = ["output tokens a second".to_owned(), "time to first token, p99".to_owned()];
    frame(&mut out, (&x, &y), &names, (&|value| tick(&amount(value)), &|value| tick(&duration(value, None))));
    for (line, colour) in lines.iter().zip(SERIES) {
        let place = |at: &At| format!("{} {}", px(x.at(at.throughput)), px(y.at(at.latency_s)));
        let path: Vec<String> = line.points.iter().map(place).collect();
        let _ = writeln!(out, "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", path.join("L"));
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
}
