//! A linear axis of a chart: from values to pixels, with grid lines at round values.

use super::px;
use crate::quantity::float_of;

/// Lines of a grid, about.
const LINES: f64 = 6.0;

/// A linear axis: values to pixels, and where its grid lines are.
pub(crate) struct Axis {
    /// Value at the start.
    pub from: f64,
    /// Value at the end.
    pub to: f64,
    /// Pixel of the start.
    pub start: f64,
    /// Pixels to the end; negative for an axis that goes up.
    pub length: f64,
}

impl Axis {
    /// Round distance of grid lines: 1, 2 or 5 times a power of ten.
    pub fn step(&self) -> f64 {
        let rough = (self.to - self.from) / LINES;
        let ten = 10.0_f64.powf(rough.log10().floor());
        let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * ten >= rough * 0.999).unwrap_or(10.0);
        times * ten
    }

    /// Where its grid lines are.
    pub fn lines(&self) -> Vec<f64> {
        let step = self.step();
        let first = (self.from / step).ceil();
        let at = |index: usize| (first + float_of(index)) * step;
        (0..64).map(at).take_while(|value| *value <= self.to + step * 1e-6).collect()
    }

    /// Pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        self.start + (value - self.from) / (self.to - self.from) * self.length
    }

    /// Upright lines between two edges, each with its label below; `label` is told which line it is.
    pub fn upright(&self, [top, bottom]: [f64; 2], opacity: &str, label: impl Fn(usize, f64) -> String) -> Vec<String> {
        let line = |(index, value): (usize, f64)| {
            let (at, from, to, below) = (px(self.at(value)), px(top), px(bottom), px(bottom + 18.0));
            format!(
                "<path d=\"M{at} {from}V{to}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>\
                 <text x=\"{at}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
                label(index, value)
            )
        };
        self.lines().into_iter().enumerate().map(line).collect()
    }

    /// Level lines of an axis that goes up between two edges, each with its label at the left, line by line.
    pub fn level(&self, [left, right]: [f64; 2], label: impl Fn(f64) -> String) -> String {
        let (from, to, beside) = (px(left), px(right), px(left - 8.0));
        let mut out = String::new();
        for value in self.lines() {
            let at = self.at(value);
            let (line, below, words) = (px(at), px(at + 4.0), label(value));
            out += &format!(
                "<path d=\"M{from} {line}H{to}\" stroke=\"currentColor\" stroke-opacity=\".12\"/>\
                 <text x=\"{beside}\" y=\"{below}\" text-anchor=\"end\">{words}</text>\n"
            );
        }
        out
    }
}

/// A label of a grid line without zeros behind the point, with its unit where it has one.
pub(crate) fn tick(label: &str) -> String {
    let (number, unit) = label.split_once(' ').unwrap_or((label, ""));
    let short = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{short} {unit}").trim_end().to_owned()
}

hw::words! {
    /// What an axis counts, as the page's script shows it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Unit: word {
        /// Seconds.
        Seconds = "s",
        /// Powers of ten of seconds: the axis counts exponents.
        PowersOfSeconds = "10^s",
        /// A share, shown in per cent.
        Ratio = "ratio",
        /// Gibibytes.
        Gib = "GiB",
        /// A plain number.
        Count = "",
    }
}

/// The part of a picture that data are drawn in: the script reads values off its axes and may zoom along the horizontal one.
pub(crate) struct Plot<'a> {
    /// Horizontal axis.
    pub x: &'a Axis,
    /// What it counts.
    pub x_unit: Unit,
    /// Upper and lower edge, pixels.
    pub edges: [f64; 2],
    /// Vertical axis; none where bands lie below each other.
    pub y: Option<(&'a Axis, Unit)>,
    /// Whether a part of the horizontal axis may be looked at.
    pub is_zoomable: bool,
}

impl Plot<'_> {
    /// Draws `ticks` behind and `ink` inside the plot; what reaches beyond its edges is cut.
    pub fn draw(&self, ticks: &str, has_labels: bool, ink: &str) -> String {
        let [top, bottom] = self.edges;
        let (x, width, height) = (self.x.start, self.x.length, bottom - top);
        let of_y = self.y.map_or_else(String::new, |(axis, unit)| format!(" data-y=\"{}\"", written(axis, unit)));
        let zoom = if self.is_zoomable { " data-zoom=\"\"" } else { "" };
        let labels = if has_labels { "" } else { " data-labels=\"none\"" };
        let of_x = written(self.x, self.x_unit);
        format!(
            "<g class=\"plot\" data-x=\"{of_x}\"{of_y}{zoom}>\n<g class=\"ticks\" data-y=\"{} {}\"{labels}>{ticks}</g>\n\
             <svg class=\"ink\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" viewBox=\"{x} {y} {width} {height}\" \
             preserveAspectRatio=\"none\"><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill-opacity=\"0\"/>\n\
             {ink}</svg>\n</g>\n",
            px(top),
            px(bottom),
            x = px(x),
            y = px(top),
            width = px(width),
            height = px(height),
        )
    }
}

/// An axis for the script: pixel of the start, pixels, value of the start and of the end, unit.
fn written(axis: &Axis, unit: Unit) -> String {
    format!("{} {} {} {} {}", px(axis.start), px(axis.length), axis.from, axis.to, unit.word())
}
