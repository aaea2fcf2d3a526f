//! Panels beside and below each other: cumulative latencies with their limits, and load over time, a line per policy.

use std::fmt::Write as _;

use hw::quantile;

use super::axis::{Axis, Plot, Unit, tick};
use super::{MIDDLE, SERIES, VERMILION, WIDTH, legend, legend_above, open_above, px, text};
use crate::curves::Curves;
use crate::quantity::{amount, duration, escape, float_of, percent};

/// Policies that are drawn at most; more lines than colours tell nothing apart.
const SHOWN: usize = SERIES.len();
const TOP: f64 = 52.0;
const LATENCIES: [&str; 3] = ["time to first token", "time per further token", "whole time"];
/// Height of a panel of latencies, and of one of load.
const HEIGHTS: [f64; 2] = [240.0, 130.0];
const GAP: f64 = 34.0;
/// Room for the labels below the last panel, besides a gap.
const BELOW: f64 = 21.0;
/// Quantile up to which the axis of latencies goes at least; the slowest requests may be far away.
const AXIS_QUANTILE: f64 = 0.995;
/// How many times the middle of a curve the end of the axis may be before it counts powers of ten.
const FAR: f64 = 50.0;
/// Share of its end at which such an axis begins at the latest.
const DECADES: f64 = 1e-6;

/// The first policies that have a colour, in order, and those that have to be among them.
pub fn drawn<'a>(curves: &'a [Curves], always: &[&str]) -> Vec<&'a Curves> {
    let must = |curves: &&Curves| always.contains(&curves.policy.as_str());
    let mut room = SHOWN.saturating_sub(curves.iter().filter(must).count());
    let mut takes = |curves: &&Curves| {
        let has_room = room > 0;
        if !must(curves) {
            room = room.saturating_sub(1);
        }
        must(curves) || has_room
    };
    curves.iter().filter(|curves| takes(curves)).take(SHOWN).collect()
}

/// Cumulative shares of requests over latency, with limits as dashed lines; empty where nothing was served.
pub fn latency_curves(shown: &[&Curves]) -> String {
    if shown.iter().all(|curves| curves.latencies_s.iter().all(Vec::is_empty)) {
        return String::new();
    }
    let mut out = open_above(360, legend_above(&names(shown), 60), "Share of requests by latency, for each policy");
    let width = (f64::from(WIDTH) - 70.0 - 2.0 * GAP - 20.0) / 3.0;
    for (panel, name) in LATENCIES.into_iter().enumerate() {
        let start = 60.0 + float_of(panel) * (width + GAP);
        latencies(&mut out, shown, panel, (start, width), name);
    }
    out.push_str(&legend(&names(shown), 60, 20));
    out.push_str("</svg>\n");
    out
}

/// An axis of latencies: linear, or of powers of ten where one policy's middle is so far below the end that its curve would lie on the edge.
struct Latencies {
    x: Axis,
    is_of_powers: bool,
}

impl Latencies {
    /// Up to the largest of these ends, of what was measured.
    fn new(shown: &[&Curves], panel: usize, most: f64, (start, length): (f64, f64)) -> Self {
        let positive = |values: &Vec<f64>| values.iter().copied().find(|value| *value > 0.0);
        let all = || shown.iter().map(|curves| &curves.latencies_s[panel]);
        let middle = all().filter(|values| !values.is_empty()).map(|values| quantile::of(values, 0.5));
        let least = all().filter_map(positive).fold(most, f64::min);
        if middle.fold(most, f64::min) >= most / FAR || least >= most {
            return Self { x: Axis { from: 0.0, to: most * 1.05, start, length }, is_of_powers: false };
        }
        let least = least.max(most * DECADES);
        let x = Axis { from: least.log10() - 0.05, to: most.log10() + 0.03, start, length };
        Self { x, is_of_powers: true }
    }

    fn at(&self, seconds: f64) -> f64 {
        let value = if self.is_of_powers { seconds.log10().max(self.x.from) } else { seconds };
        self.x.at(value)
    }

    fn holds(&self, seconds: f64) -> bool {
        if self.is_of_powers { seconds.log10() <= self.x.to } else { seconds <= self.x.to }
    }

    /// Lines with their labels; every second one has none where a label is wide for them.
    fn ticks(&self, y: &Axis) -> String {
        if !self.is_of_powers {
            return below(&self.x, y, 2);
        }
        let is_whole = |power: f64| (power - power.round()).abs() < 1e-9;
        let label = |_, power: f64| {
            if is_whole(power) { tick(&duration(10.0_f64.powf(power.round()), None)) } else { String::new() }
        };
        self.x.upright([y.start + y.length, y.start], ".12", label).concat()
    }

    const fn unit(&self) -> Unit {
        if self.is_of_powers { Unit::PowersOfSeconds } else { Unit::Seconds }
    }
}

fn latencies(out: &mut String, shown: &[&Curves], panel: usize, (start, width): (f64, f64), name: &str) {
    let end = |curves: &&Curves| quantile::of(&curves.latencies_s[panel], AXIS_QUANTILE);
    let limits = shown.iter().filter_map(|curves| curves.limits_s[panel]);
    let most = shown.iter().map(end).chain(limits.clone()).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let across = Latencies::new(shown, panel, most, (start, width));
    let y = Axis { from: 0.0, to: 1.0, start: TOP + HEIGHTS[0], length: -HEIGHTS[0] };
    let ticks = across.ticks(&y);
    beside(out, &across.x, &y, &|value| if panel == 0 { percent(value) } else { String::new() });
    let mut ink = String::new();
    let _ = writeln!(out, "{}", text((start + width / 2.0, TOP + HEIGHTS[0] + 40.0), MIDDLE, name));
    for limit in limits.take(1) {
        let at = px(across.at(limit));
        let _ =
            writeln!(ink, "<path d=\"M{at} {TOP}v{}\" stroke=\"{VERMILION}\" stroke-dasharray=\"6 4\"/>", HEIGHTS[0]);
    }
    for (index, curves) in shown.iter().enumerate() {
        let values = &curves.latencies_s[panel];
        let share = |at: usize| float_of(at) / float_of(values.len().max(2) - 1);
        let points: Vec<(f64, f64)> = values
            .iter()
            .enumerate()
            .filter(|(_, value)| across.holds(**value))
            .map(|(at, value)| (across.at(*value), y.at(share(at))))
            .collect();
        line(&mut ink, &curves.policy, &points, (index, shown.len()));
    }
    let edges = [TOP, TOP + HEIGHTS[0]];
    let plot = Plot { x: &across.x, x_unit: across.unit(), edges, y: Some((&y, Unit::Ratio)), is_zoomable: false };
    out.push_str(&plot.draw(&ticks, true, &ink));
}

/// What is drawn over time, in the order of `Curves::samples`. Replicas and dollars are left out where they stay the same.
const PANELS: [&str; 6] = ["waiting", "running", "tokens/s", "cached tokens", "replicas", "dollars"];
/// Panels that are always drawn.
const ALWAYS: usize = 4;

/// Requests, tokens, replicas and dollars over time; empty where there are no samples.
pub fn load_curves(shown: &[&Curves]) -> String {
    let end_s = shown.iter().filter_map(|curves| Some(curves.samples.last()?[0])).fold(0.0, f64::max);
    if end_s <= 0.0 {
        return String::new();
    }
    let panels: Vec<usize> = (0..PANELS.len()).filter(|panel| *panel < ALWAYS || changes(shown, *panel)).collect();
    let entries = names(shown);
    let height = TOP + float_of(panels.len()) * (HEIGHTS[1] + GAP) + BELOW;
    let about = "Requests that wait and run, tokens per second and in the cache, replicas and dollars over time, for each policy";
    let height = u32::try_from(hw::whole(height)).expect("few panels");
    let mut out = open_above(height, legend_above(&entries, 60), about);
    let x = Axis { from: 0.0, to: end_s, start: 76.0, length: f64::from(WIDTH) - 76.0 - 20.0 };
    for (panel, &of) in panels.iter().enumerate() {
        let name = PANELS[of];
        let value = |sample: &[f64; 7]| sample[of + 1];
        let most = shown.iter().flat_map(|curves| &curves.samples).map(value).fold(0.0, f64::max);
        let top = TOP + float_of(panel) * (HEIGHTS[1] + GAP);
        let y = Axis { from: 0.0, to: most.max(1.0) * 1.05, start: top + HEIGHTS[1], length: -HEIGHTS[1] };
        let is_last = panel + 1 == panels.len();
        beside(&mut out, &x, &y, &amount);
        let ticks = below(&x, &y, if is_last { 1 } else { usize::MAX });
        let mut ink = String::new();
        let _ = writeln!(out, "<text x=\"8\" y=\"{}\">{name}</text>", px(top - 10.0));
        for (index, curves) in shown.iter().enumerate() {
            let points: Vec<(f64, f64)> =
                curves.samples.iter().map(|sample| (x.at(sample[0]), y.at(value(sample)))).collect();
            line(&mut ink, &curves.policy, &points, (index, shown.len()));
        }
        let edges = [top, top + HEIGHTS[1]];
        let plot = Plot { x: &x, x_unit: Unit::Seconds, edges, y: Some((&y, Unit::Count)), is_zoomable: true };
        out.push_str(&plot.draw(&ticks, is_last, &ink));
    }
    out.push_str(&legend(&entries, 60, 20));
    out.push_str("</svg>\n");
    out
}

/// Whether replicas or dollars are drawn, because they change.
pub fn shows_what_is_paid(shown: &[&Curves]) -> bool {
    (ALWAYS..PANELS.len()).any(|panel| changes(shown, panel))
}

/// Whether something stands otherwise later than at the second sample, after which replicas that are always there are paid.
fn changes(shown: &[&Curves], panel: usize) -> bool {
    let later = |curves: &&Curves| {
        let mut values = curves.samples.iter().skip(1).map(|sample| sample[panel + 1]);
        let first = values.next().unwrap_or(0.0);
        values.any(|value| (value - first).abs() > f64::EPSILON)
    };
    shown.iter().any(later)
}

/// Lines of the horizontal axis; every `nth` one has its label, and none where that is the largest number.
fn below(x: &Axis, y: &Axis, nth: usize) -> String {
    let label = |index: usize, value: f64| {
        if nth < usize::MAX && index.is_multiple_of(nth) { tick(&duration(value, None)) } else { String::new() }
    };
    x.upright([y.start + y.length, y.start], ".12", label).concat()
}

/// Frame, and lines of the vertical axis with their labels.
fn beside(out: &mut String, x: &Axis, y: &Axis, label: &dyn Fn(f64) -> String) {
    frame(out, x, y);
    out.push_str(&y.level([x.start, x.start + x.length], |value| tick(&label(value))));
}

/// The left edge and the lower one.
fn frame(out: &mut String, x: &Axis, y: &Axis) {
    let (top, bottom, left, right) = (px(y.start + y.length), px(y.start), px(x.start), px(x.start + x.length));
    let _ = writeln!(out, "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"currentColor\"/>");
}

/// Axes with grid lines and their labels.
pub(super) fn grid(
    out: &mut String,
    (x, y): (&Axis, &Axis),
    below: &dyn Fn(f64) -> String,
    beside: &dyn Fn(f64) -> String,
) {
    frame(out, x, y);
    for line in x.upright([y.start + y.length, y.start], ".12", |_, value| tick(&below(value))) {
        let _ = writeln!(out, "{line}");
    }
    out.push_str(&y.level([x.start, x.start + x.length], |value| tick(&beside(value))));
}

/// The line of the policy at an index of `n`; earlier ones are wider, so that one that lies under a later one is seen.
pub(super) fn line(out: &mut String, name: &str, points: &[(f64, f64)], (index, n): (usize, usize)) {
    let (colour, width) = (SERIES[index], px(1.4 + 1.0 * float_of(n - 1 - index)));
    if points.is_empty() {
        return;
    }
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{} {}", px(*x), px(*y))).collect();
    let _ = writeln!(
        out,
        "<path class=\"series\" data-name=\"{}\" d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        escape(name),
        path.join("L")
    );
}

/// Entries of the legend.
fn names<'a>(shown: &[&'a Curves]) -> Vec<(&'a str, &'static str)> {
    shown.iter().zip(SERIES).map(|(curves, colour)| (curves.policy.as_str(), colour)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(policy: &str, slowest_s: f64) -> Curves {
        Curves {
            policy: policy.to_owned(),
            latencies_s: [vec![0.1, 0.2, slowest_s], vec![0.01, 0.02, 0.03], vec![1.0, 2.0, 4.0]],
            limits_s: [Some(0.5), None, None],
            samples: vec![
                [0.0, 0.0, 1.0, 10.0, 100.0, 1.0, 0.0],
                [1.0, 3.0, 2.0, 40.0, 300.0, 1.0, 0.0],
                [2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
            ],
        }
    }

    #[test]
    fn every_policy_is_a_line_in_every_panel_and_a_limit_is_dashed() {
        let curves = [served("<first>", 0.3), served("second", 0.4)];
        let shown = drawn(&curves, &[]);
        let (latencies, load) = (latency_curves(&shown), load_curves(&shown));
        for (picture, n_lines) in [(&latencies, 6), (&load, 8)] {
            assert_eq!(picture.matches("stroke-width=").count(), n_lines, "two lines in each panel");
            assert!(picture.contains("&lt;first&gt;") && !picture.contains("<first>"));
        }
        assert_eq!(latencies.matches("stroke-dasharray").count(), 1);
        // The share of the slowest request is 1: the line ends at the top.
        assert!(latencies.contains(&format!(" {TOP}\"")) || latencies.contains(&format!(" {TOP}L")), "{latencies}");
    }

    #[test]
    fn replicas_and_dollars_are_drawn_where_they_change() {
        let mut scaled = served("scaled", 0.3);
        assert!(!load_curves(&[&scaled]).contains("replicas</text>"), "one replica all the time");
        assert!(!shows_what_is_paid(&[&scaled]));
        (scaled.samples[2][5], scaled.samples[2][6]) = (3.0, 0.2);
        let picture = load_curves(&[&scaled]);
        assert!(shows_what_is_paid(&[&scaled]));
        assert!(picture.contains(">replicas</text>") && picture.contains(">dollars</text>"), "{picture}");
    }

    #[test]
    fn the_policies_that_count_are_drawn_whatever_their_place() {
        let all: Vec<Curves> = (0..8).map(|at| served(&format!("p{at}"), 0.3)).collect();
        let names = |always: &[&str]| drawn(&all, always).iter().map(|of| of.policy.clone()).collect::<Vec<_>>();
        assert_eq!(names(&["p7", "p0"]), ["p0", "p1", "p2", "p3", "p4", "p7"]);
        assert_eq!(names(&[]), ["p0", "p1", "p2", "p3", "p4", "p5"]);
    }

    #[test]
    fn a_latency_far_below_the_end_has_an_axis_of_powers_of_ten() {
        let quick = Curves { latencies_s: [vec![0.01, 0.02, 0.03], Vec::new(), Vec::new()], ..served("quick", 0.0) };
        let slow = Curves { latencies_s: [vec![1.0, 50.0, 99.0], Vec::new(), Vec::new()], ..served("slow", 0.0) };
        assert!(!latency_curves(&[&quick]).contains("10^s"));
        let both = latency_curves(&[&quick, &slow]);
        assert!(both.contains("10^s") && both.contains(">100 ms<") && both.contains(">10 s<"), "{both}");
        assert!(!both.contains("NaN") && !both.contains("inf"), "{both}");
    }

    #[test]
    fn labels_have_no_zeros_behind_the_point() {
        assert_eq!(["40.00 ms", "0.500 s", "10.00", "500", "0"].map(tick), ["40 ms", "0.5 s", "10", "500", "0"]);
    }

    #[test]
    fn nothing_served_is_no_picture() {
        assert!(latency_curves(&[]).is_empty() && load_curves(&[&Curves::default()]).is_empty());
    }
}
