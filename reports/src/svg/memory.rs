//! Memory of the fullest rank over a step, by what holds it, and the total of the emptiest rank.
//!
//! Units: seconds, GiB. The owners of a rank add up to its mark on the timeline at every moment.

use std::fmt::Write as _;

use engine::TaskGraph;
use engine::task::Moment;

use super::axis::{Axis, Plot, Unit, tick};
use super::{SERIES, VERMILION, WIDTH, legend, legend_above, open_above, px};
use crate::quantity::{duration, escape, float, gib_of};
use crate::{Picture, lanes};

/// Moments that are drawn at most; of the others the highest total of its neighbours stays.
const POINTS_MAX: usize = 600;
/// Owners with an area of their own; the rest is one.
const OWNERS_MAX: usize = 6;
const LEFT: f64 = 70.0;
const TOP: f64 = 52.0;
const PLOT_HEIGHT: f64 = 220.0;

/// Colours by what holds memory, so that one thing looks alike in the pictures of all policies.
const COLOURS: [(&str, &str); 12] = [
    ("parameters", SERIES[0]),
    ("in use", SERIES[0]),
    ("activations", SERIES[1]),
    ("gradients", SERIES[2]),
    ("optimizer states", SERIES[3]),
    ("optimizer", SERIES[3]),
    ("logits", SERIES[4]),
    ("reserved", SERIES[5]),
    ("other", "#44AA99"),
    ("whole parameters and gradients", "#332288"),
    ("recomputed layer", "#B8860B"),
    ("exchange buffers", "#882255"),
];
/// Colours of everything else, no more than owners have areas.
const FURTHER: [&str; OWNERS_MAX] = ["#DDCC77", "#7B3294", "#A6761D", "#117733", "#661100", "#999933"];

/// What is held from a moment on, by label: seconds, bytes.
pub(crate) struct Held {
    at_s: f64,
    bytes: Vec<i64>,
}

impl Held {
    fn total(&self) -> i64 {
        self.bytes.iter().sum()
    }
}

/// What a lane holds after every change, in order of time; frees come before what is taken at the same moment.
pub(crate) fn by_owner(graph: &TaskGraph, timeline: &engine::Timeline, lane: usize) -> Vec<Held> {
    if graph.labels.is_empty() {
        return totals(timeline, lane);
    }
    let mut bytes = vec![0_i64; graph.labels.len()];
    for &(label, held) in &graph.resident[lane] {
        bytes[label.0 as usize] += i64::try_from(held).unwrap_or(i64::MAX);
    }
    let of_lane = |effect: &&engine::task::MemoryEffect| graph.tasks[effect.task.0 as usize].lane.index() == lane;
    let mut changes: Vec<(u64, i64, usize)> = Vec::new();
    for effect in graph.effects.iter().filter(of_lane) {
        let index = effect.task.0 as usize;
        let at = if effect.moment == Moment::Start { timeline.start[index] } else { timeline.end[index] };
        changes.push((at.as_ns(), effect.delta_bytes, effect.label.0 as usize));
    }
    changes.sort_unstable();
    let most = whole(timeline.peak_memory_bytes(lane));
    let mut held = vec![Held { at_s: 0.0, bytes: bytes.clone() }];
    for moment in changes.chunk_by(|a, b| a.0 == b.0) {
        for &(_, delta, label) in moment {
            bytes[label] += delta;
        }
        let mut shown = bytes.clone();
        graph.give_back(&mut shown, most);
        held.push(Held { at_s: float(moment[0].0) / 1e9, bytes: shown });
    }
    held
}

/// What a lane holds in all, where nothing says what for.
fn totals(timeline: &engine::Timeline, lane: usize) -> Vec<Held> {
    let marks = timeline.memory[lane].iter();
    marks.map(|mark| Held { at_s: float(mark.at.as_ns()) / 1e9, bytes: vec![whole(mark.bytes)] }).collect()
}

fn whole(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Of many moments, in every bin of time the one with the highest total and the last one.
fn thinned(held: Vec<Held>, span_s: f64) -> Vec<Held> {
    if held.len() <= POINTS_MAX {
        return held;
    }
    let bin_of = |held: &Held| hw::whole((held.at_s / span_s * 299.0).max(0.0));
    let mut keep = vec![false; held.len()];
    let mut start = 0;
    for bin in held.chunk_by(|a, b| bin_of(a) == bin_of(b)) {
        let highest = (0..bin.len()).max_by_key(|&index| bin[index].total()).unwrap_or(0);
        keep[start + highest] = true;
        start += bin.len();
        keep[start - 1] = true;
    }
    held.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(held, _)| held).collect()
}

/// Labels from the one with the most memory to the one with the least; what holds nothing is left out.
fn owners(held: &[Held], n_labels: usize) -> Vec<usize> {
    let most = |label: usize| held.iter().map(|held| held.bytes[label]).max().unwrap_or(0);
    let mut labels: Vec<usize> = (0..n_labels).filter(|&label| most(label) > 0).collect();
    labels.sort_by_key(|&label| std::cmp::Reverse(most(label)));
    labels
}

/// Draws both; empty where nothing ran or nothing is held.
pub fn memory_areas(picture: &Picture<'_>) -> String {
    let (graph, timeline) = (picture.graph, picture.timeline);
    let n_lanes = graph.lanes.len();
    let peak = |lane: usize| timeline.peak_memory_bytes(lane);
    let fullest = (0..n_lanes).max_by_key(|&lane| (peak(lane), n_lanes - lane));
    let emptiest = (0..n_lanes).min_by_key(|&lane| (peak(lane), lane));
    let span_s = timeline.span().to_seconds().get();
    let (Some(fullest), Some(emptiest)) = (fullest, emptiest) else { return String::new() };
    if span_s <= 0.0 || peak(fullest) == 0 {
        return String::new();
    }
    // A timeline of a device knows totals alone.
    let names = if graph.labels.is_empty() { vec!["in use".to_owned()] } else { graph.labels.clone() };
    let held = thinned(by_owner(graph, timeline, fullest), span_s);
    let labels = owners(&held, names.len());
    let limit = gib_of(float(picture.device_memory_bytes));
    let highest = gib_of(float(peak(fullest)));
    // A limit far above would press the areas flat.
    let is_near = limit > 0.0 && limit < 4.0 * highest;
    let x = Axis { from: 0.0, to: span_s, start: LEFT, length: f64::from(WIDTH) - LEFT - 12.0 };
    let to = if is_near { highest.max(limit) } else { highest } * 1.06;
    let y = Axis { from: 0.0, to, start: TOP + PLOT_HEIGHT, length: -PLOT_HEIGHT };
    let lanes = lanes::names(graph);
    let (mut ink, mut entries) = areas(&held, &labels, &names, &x, &y);
    if emptiest != fullest {
        let least = thinned(by_owner(graph, timeline, emptiest), span_s);
        let totals: Vec<(f64, f64)> = least.iter().map(|held| (held.at_s, gib(held.total()))).collect();
        let label = format!("{} in all", lanes[emptiest]);
        let line = path(&totals, &x, &y);
        let _ = writeln!(
            ink,
            "<path class=\"series\" data-name=\"{}\" d=\"{line}\" fill=\"none\" stroke=\"currentColor\" stroke-dasharray=\"2 3\"/>",
            escape(&label)
        );
    }
    if is_near {
        let at = px(y.at(limit));
        let _ = writeln!(
            ink,
            "<path d=\"M{LEFT} {at}H{WIDTH}\" stroke=\"{VERMILION}\" stroke-width=\"2\" stroke-dasharray=\"6 4\"/>"
        );
        entries.push(("device memory".to_owned(), VERMILION));
    }
    let entries: Vec<(&str, &str)> = entries.iter().map(|(name, colour)| (name.as_str(), *colour)).collect();
    let about = format!("Memory of {} by owner over time under {}", lanes[fullest], picture.policy);
    let mut out = open_above(330, legend_above(&entries, 70), &about);
    out.push_str(&legend(&entries, 70, 16));
    let _ = writeln!(out, "<text x=\"8\" y=\"{}\">GiB</text>", TOP - 8.0);
    let edges = [TOP, TOP + PLOT_HEIGHT];
    let plot = Plot { x: &x, x_unit: Unit::Seconds, edges, y: Some((&y, Unit::Gib)), is_zoomable: true };
    let ticks = x.upright(edges, ".2", |_, value| tick(&duration(value, None)));
    out.push_str(&plot.draw(&ticks.concat(), true, &ink));
    out.push_str(&beside(&y));
    out.push_str("</svg>\n");
    out
}

/// An area per owner, the largest at the bottom, with the entries of the legend.
fn areas(
    held: &[Held],
    labels: &[usize],
    names: &[String],
    x: &Axis,
    y: &Axis,
) -> (String, Vec<(String, &'static str)>) {
    let (mut ink, mut entries) = (String::new(), Vec::new());
    let mut below = vec![0_i64; held.len()];
    let n_own = if labels.len() > OWNERS_MAX { OWNERS_MAX - 1 } else { labels.len() };
    let mut groups: Vec<(String, &[usize])> =
        labels[..n_own].iter().enumerate().map(|(at, &label)| (names[label].clone(), &labels[at..=at])).collect();
    if n_own < labels.len() {
        groups.push(("other".to_owned(), &labels[n_own..]));
    }
    let mut used: Vec<&'static str> = Vec::new();
    for (name, of) in groups {
        let colour = colour(&name, &used);
        used.push(colour);
        let add = |(held, below): (&Held, &i64)| below + of.iter().map(|&label| held.bytes[label]).sum::<i64>();
        let above: Vec<i64> = held.iter().zip(&below).map(add).collect();
        let edge = |levels: &[i64]| -> Vec<(f64, f64)> {
            held.iter().zip(levels).map(|(held, bytes)| (held.at_s, gib(*bytes))).collect()
        };
        let (top, mut bottom) = (stairs(&edge(&above), x.to), stairs(&edge(&below), x.to));
        bottom.reverse();
        let _ = writeln!(
            ink,
            "<path d=\"{}Z\" fill=\"{colour}\" fill-opacity=\".75\"/>\
             <path class=\"series\" data-stack=\"\" data-name=\"{}\" d=\"{}\" fill=\"none\"/>",
            joined([top.clone(), bottom].concat(), x, y),
            escape(&name),
            joined(top, x, y)
        );
        entries.push((name, colour));
        below = above;
    }
    (ink, entries)
}

/// Colour of what holds memory: its own where it has one, else one that is not taken yet.
fn colour(name: &str, used: &[&'static str]) -> &'static str {
    let own = COLOURS.iter().find(|(known, _)| *known == name).map(|(_, colour)| *colour);
    let free = || FURTHER.into_iter().find(|colour| !used.contains(colour)).unwrap_or(FURTHER[0]);
    own.unwrap_or_else(free)
}

fn gib(bytes: i64) -> f64 {
    gib_of(float(u64::try_from(bytes).unwrap_or(0)))
}

/// Corners of a line that keeps its level until the next point.
fn stairs(points: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::with_capacity(points.len() * 2 + 1);
    for &(at, level) in points {
        if let Some(&(_, before)) = corners.last() {
            corners.push((at, before));
        }
        corners.push((at, level));
    }
    if let Some(&(_, level)) = corners.last() {
        corners.push((end, level));
    }
    corners
}

fn joined(points: Vec<(f64, f64)>, x: &Axis, y: &Axis) -> String {
    let mut out = String::new();
    for (at, level) in points {
        let _ = write!(out, "{}{} {}", if out.is_empty() { "M" } else { "L" }, px(x.at(at)), px(y.at(level)));
    }
    out
}

fn path(points: &[(f64, f64)], x: &Axis, y: &Axis) -> String {
    joined(stairs(points, x.to), x, y)
}

fn beside(y: &Axis) -> String {
    let mut out = String::new();
    for value in y.lines() {
        let at = px(y.at(value));
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at}H{}\" stroke=\"currentColor\" stroke-opacity=\".2\" pointer-events=\"none\"/>\
             <text x=\"{}\" y=\"{at}\" dy=\"4\" text-anchor=\"end\">{}</text>",
            WIDTH - 12,
            LEFT - 8.0,
            tick(&crate::quantity::significant(value))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_level_until_the_next_point() {
        let corners = stairs(&[(0.0, 1.0), (5.0, 3.0)], 10.0);
        assert_eq!(corners, [(0.0, 1.0), (5.0, 1.0), (5.0, 3.0), (10.0, 3.0)]);
    }

    #[test]
    fn an_owner_has_one_colour_in_every_picture() {
        let none: [&str; 0] = [];
        assert_eq!((colour("logits", &none), colour("logits", &[SERIES[4]])), (SERIES[4], SERIES[4]));
        // Two that are not known differ from each other.
        assert_ne!(colour("caches", &none), colour("rows", &[colour("caches", &none)]));
        let own: std::collections::BTreeSet<&str> = COLOURS.iter().map(|(_, colour)| *colour).collect();
        // Two names are two ways to say one thing each.
        assert_eq!(own.len(), COLOURS.len() - 2);
        assert!(FURTHER.iter().all(|colour| !own.contains(colour)));
    }

    #[test]
    fn every_change_has_an_owner() {
        use engine::task::{LaneId, MemoryEffect, Op, Role, Stream, Task, TaskId};
        use hw::Time;
        let mut graph = TaskGraph::new(1);
        let (weights, activations) = (graph.label("parameters"), graph.label("activations"));
        graph.resident[0].push((weights, 5));
        let op = graph.add_op(Op::Host { ns: 1 });
        let mut timeline = engine::Timeline { memory: vec![Vec::new()], ..engine::Timeline::default() };
        // Two tasks of 2 s: the first takes 10 when it starts, the second gives them back when it ends.
        for (index, moment, delta_bytes) in [(0, Moment::Start, 10), (1, Moment::End, -10)] {
            let (lane, stream, role) = (LaneId(0), Stream::Compute, Role::Forward);
            graph.add_task(Task { op, lane, stream, role, micro_batch: 0, meeting: None }, &[]);
            graph.add_effect(MemoryEffect { task: TaskId(index), moment, label: activations, delta_bytes });
            timeline.start.push(Time::from_ns(u64::from(index) * 2_000_000_000));
            timeline.end.push(Time::from_ns(u64::from(index + 1) * 2_000_000_000));
        }
        let held: Vec<(f64, Vec<i64>)> =
            by_owner(&graph, &timeline, 0).into_iter().map(|held| (held.at_s, held.bytes)).collect();
        assert_eq!(held, [(0.0, vec![5, 0]), (0.0, vec![5, 10]), (4.0, vec![5, 0])]);
    }

    #[test]
    fn many_moments_stay_few_and_the_peak_stays() {
        let held = (0..100_000_i64).map(|at| Held {
            at_s: float(at.unsigned_abs()) / 1e5,
            bytes: vec![if at == 77_777 { 1 << 40 } else { at }],
        });
        let few = thinned(held.collect(), 1.0);
        assert!(few.len() <= POINTS_MAX && few.iter().any(|held| held.total() == 1 << 40), "{}", few.len());
    }
}
