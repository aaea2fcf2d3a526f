//! Charts drawn by `plotters`: lengths by powers of two, memory over time.
//!
//! Units: tokens, GiB, milliseconds. `plotters` knows no `currentColor`, so one reserved ink is replaced afterwards.

use engine::timeline::MemoryMark;
use plotters::prelude::*;

use super::{BLUE, ORANGE, VERMILION, WIDTH, legend, open};
use crate::Picture;
use crate::quantity::{float, float_of, gib_of, power_of_two};
use crate::trace::lane_name;

/// Ink that becomes the page's text colour; used for nothing else.
const INK: RGBColor = RGBColor(1, 2, 3);
/// `BLUE` and `ORANGE` of the parent.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 0x72, 0xB2), RGBColor(0xE6, 0x9F, 0)];
/// `VERMILION` of the parent.
const LIMIT: RGBColor = RGBColor(0xD5, 0x5E, 0);
const INK_TEXT: &str = "#010203";
const HEIGHT: u32 = 300;
/// Points of a memory line at most.
const POINTS_MAX: u64 = 600;
const FONT: &str = "system-ui, sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Turns a `plotters` drawing into a picture of the report; empty where it could not be drawn.
fn picture_of(label: &str, entries: &[(&str, &str)], draw: impl FnOnce(&Area<'_>) -> DrawResult) -> String {
    let mut svg = String::new();
    let is_drawn = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&area).is_ok() && area.present().is_ok()
    };
    let body = svg.find("<svg").and_then(|at| svg[at..].find('>').map(|end| at + end + 1));
    match body {
        Some(body) if is_drawn => {
            open(HEIGHT, label) + &legend(entries, 78, 16) + &svg[body..].replace(INK_TEXT, "currentColor")
        }
        _ => String::new(),
    }
}

/// Shares of sequences and of tokens by length, in bins from one power of two to the next.
#[must_use]
pub fn length_histogram(lengths: &[u64]) -> String {
    let exponents: Vec<u32> = lengths.iter().filter(|&&length| length > 0).map(|length| length.ilog2()).collect();
    let (Some(&first), Some(&last)) = (exponents.iter().min(), exponents.iter().max()) else {
        return String::new();
    };
    let n_bins = last - first + 1;
    let mut bins = vec![(0.0, 0.0); n_bins as usize];
    let tokens = lengths.iter().map(|&length| float(length)).sum::<f64>();
    for &length in lengths.iter().filter(|&&length| length > 0) {
        let bin = &mut bins[(length.ilog2() - first) as usize];
        bin.0 += 100.0 / float_of(exponents.len());
        bin.1 += 100.0 * float(length) / tokens;
    }
    let entries = [("share of sequences", BLUE), ("share of tokens", ORANGE)];
    picture_of("Shares of sequences and of tokens by sequence length", &entries, |area| {
        draw_histogram(area, &bins, first)
    })
}

fn draw_histogram(area: &Area<'_>, bins: &[(f64, f64)], first: u32) -> DrawResult {
    let highest = bins.iter().map(|bin| bin.0.max(bin.1)).fold(1.0, f64::max);
    let n_bins = float_of(bins.len());
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_top(34)
        .margin_right(28)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..n_bins, 0.0..highest * 1.08)?;
    let name = |x: &f64| {
        let bin = hw::Bytes::from_f64(x.max(0.0)).0;
        power_of_two(first + u32::try_from(bin).unwrap_or(0))
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.2))
        .axis_style(INK.mix(0.6))
        .label_style((FONT, 15).into_font().color(&INK))
        .x_labels(bins.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| format!("{y:.0} %"))
        .x_desc("length in tokens, from one label to the next")
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .draw()?;
    for (index, colour) in COLOURS.into_iter().enumerate() {
        let bars = bins.iter().enumerate().map(|(bin, shares)| {
            let left = float_of(bin) + 0.08 + 0.43 * float_of(index);
            let share = if index == 0 { shares.0 } else { shares.1 };
            Rectangle::new([(left, 0.0), (left + 0.41, share)], colour.filled())
        });
        chart.draw_series(bars)?;
    }
    Ok(())
}

/// Memory over time of the fullest and the emptiest rank, with the device's limit.
#[must_use]
pub fn memory_lines(picture: &Picture<'_>) -> String {
    let n_ranks = picture.timeline.memory.len();
    let peak = |rank: usize| picture.timeline.peak_memory_bytes(rank);
    let fullest = (0..n_ranks).max_by_key(|&rank| (peak(rank), n_ranks - rank));
    let emptiest = (0..n_ranks).min_by_key(|&rank| (peak(rank), rank));
    let span_ns = picture.timeline.span().as_ns();
    let (Some(fullest), Some(emptiest), 1..) = (fullest, emptiest, span_ns) else {
        return String::new();
    };
    let name = |lane: usize| lane_name(&picture.graph.lanes[lane]);
    let mut lines = vec![(format!("fullest: {}", name(fullest)), steps(&picture.timeline.memory[fullest], span_ns))];
    if emptiest != fullest {
        lines.push((format!("emptiest: {}", name(emptiest)), steps(&picture.timeline.memory[emptiest], span_ns)));
    }
    let limit = gib_of(float(picture.device_memory_bytes));
    let highest = gib_of(float(peak(fullest))).max(limit).max(0.001);
    let plot = Plot { lines, limit, highest, span_ms: float(span_ns) / 1e6 };
    let label = format!("Memory over time of the fullest and the emptiest rank under {}", picture.policy);
    let mut entries: Vec<_> = plot.lines.iter().zip([BLUE, ORANGE]).map(|(line, ink)| (line.0.as_str(), ink)).collect();
    if limit > 0.0 {
        entries.push(("device memory", VERMILION));
    }
    picture_of(&label, &entries, |area| draw_memory(area, &plot))
}

struct Plot {
    lines: Vec<(String, Vec<(f64, f64)>)>,
    limit: f64,
    highest: f64,
    span_ms: f64,
}

/// A staircase in (ms, GiB); of many marks in one bin of time the highest and the last are kept.
fn steps(marks: &[MemoryMark], span_ns: u64) -> Vec<(f64, f64)> {
    let bin_of = |mark: &MemoryMark| u128::from(mark.at.as_ns()) * u128::from(POINTS_MAX) / u128::from(span_ns);
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut level = 0.0;
    for bin in marks.chunk_by(|a, b| bin_of(a) == bin_of(b)) {
        let highest = bin.iter().map(|mark| mark.bytes).max().unwrap_or(0);
        let at = |mark: &MemoryMark| float(mark.at.as_ns()) / 1e6;
        let (first, last) = (at(&bin[0]), at(&bin[bin.len() - 1]));
        let after = gib_of(float(bin[bin.len() - 1].bytes));
        if !points.is_empty() {
            points.push((first, level));
        }
        points.extend([(first, gib_of(float(highest))), (last, after)]);
        level = after;
    }
    points.push((float(span_ns) / 1e6, level));
    points
}

fn draw_memory(area: &Area<'_>, plot: &Plot) -> DrawResult {
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_top(34)
        .margin_right(28)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(0.0..plot.span_ms, 0.0..plot.highest * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.2))
        .axis_style(INK.mix(0.6))
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .x_desc("time since the start of the step, ms")
        .y_desc("GiB")
        .draw()?;
    for ((_, points), colour) in plot.lines.iter().zip(COLOURS) {
        let style = colour.stroke_width(2);
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
    }
    if plot.limit > 0.0 {
        let style = LIMIT.stroke_width(2);
        chart.draw_series(DashedLineSeries::new([(0.0, plot.limit), (plot.span_ms, plot.limit)], 6, 4, style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hw::Time;

    use super::*;

    #[test]
    fn a_staircase_rises_where_memory_is_allocated() {
        let gib = 1 << 30;
        let mark = |ms: u64, n: u64| MemoryMark { at: Time::from_ns(ms * 1_000_000), bytes: n * gib };
        let points = steps(&[mark(0, 1), mark(5, 3)], 10_000_000);
        assert_eq!(points, [(0.0, 1.0), (0.0, 1.0), (5.0, 1.0), (5.0, 3.0), (5.0, 3.0), (10.0, 3.0)]);
    }

    #[test]
    fn many_marks_stay_few_points() {
        let marks: Vec<_> = (0..100_000).map(|ns| MemoryMark { at: Time::from_ns(ns), bytes: ns }).collect();
        assert!(steps(&marks, 100_000).len() <= 3 * 601 + 1);
    }

    #[test]
    fn no_lengths_no_histogram() {
        assert_eq!(length_histogram(&[]), "");
        assert_eq!(length_histogram(&[0]), "");
    }
}
