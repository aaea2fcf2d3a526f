//! Gantt picture: a band per rank, a lane per stream, ink where the stream is busy, coloured by role.
//!
//! One path per lane and role keeps the text small. Neighbours of one role closer than the resolution are drawn as one
//! stroke; tasks narrower than it are gathered and drawn as one stroke of their total length in the role that takes
//! most of it. The resolution starts at `RESOLUTION_PX` and doubles until at most `STROKES_MAX` strokes are left.

use std::fmt::Write as _;

use engine::task::{Role, Stream};
use hw::Time;

use super::axis::{Axis, Plot, Unit};
use super::{END, WIDTH, colour, legend, legend_above, open_above, px, shown_ranks, text};
use crate::quantity::{escape, float, float_of};
use crate::{Picture, lanes};

/// Ranks that are drawn at most, besides the busiest and the least busy.
const RANKS_MAX: usize = 32;
/// Strokes that are drawn at most; a stroke takes about 13 bytes.
const STROKES_MAX: usize = 16_000;
/// Finest detail, pixels.
const RESOLUTION_PX: f64 = 0.3;

/// Where the plot begins at least, and pixels that a letter of a lane's name takes.
const LEFT_MIN: f64 = 112.0;
const LETTER: f64 = 7.4;
const TOP: u32 = 34;
/// Height that the bands share, pixels.
const BANDS_HEIGHT: f64 = 760.0;
const N_TICKS: u64 = 8;
const N_ROLES: usize = Role::ALL.len();

/// A stroke of a lane: where, how long (pixels), and what.
#[derive(Clone, Copy)]
struct Stroke {
    x: f64,
    length: f64,
    role: Role,
}

/// Draws a step; empty where nothing ran.
pub fn gantt(picture: &Picture<'_>) -> String {
    gantt_until(picture, Time::ZERO)
}

/// Draws a step on an axis that reaches this far at least, so that two pictures can be held against each other.
pub fn gantt_until(picture: &Picture<'_>, until: Time) -> String {
    let mut lanes = Lanes::of(picture);
    lanes.span_ns = lanes.span_ns.max(until.as_ns());
    if lanes.ranks.is_empty() || lanes.streams.is_empty() {
        return String::new();
    }
    let mut resolution = RESOLUTION_PX;
    let mut strokes = lanes.strokes(picture, resolution);
    while strokes.iter().map(Vec::len).sum::<usize>() > STROKES_MAX {
        resolution *= 2.0;
        strokes = lanes.strokes(picture, resolution);
    }
    draw(picture, &lanes, &strokes)
}

/// The lanes that are drawn and the tasks on each, in start order.
struct Lanes {
    ranks: Vec<usize>,
    /// A name for each.
    names: Vec<String>,
    /// Where the plot begins: names stand left of it.
    left: f64,
    streams: Vec<Stream>,
    tasks: Vec<Vec<usize>>,
    span_ns: u64,
}

impl Lanes {
    fn of(picture: &Picture<'_>) -> Self {
        let graph = picture.graph;
        let n_ranks = graph.lanes.len();
        let mut busy = vec![0_u64; n_ranks];
        let mut used = [false; Stream::ALL.len()];
        for (index, task) in graph.tasks.iter().enumerate() {
            used[task.stream.index()] = true;
            if task.stream == Stream::Compute {
                busy[task.lane.index()] += (picture.timeline.end[index] - picture.timeline.start[index]).as_ns();
            }
        }
        let busiest = (0..n_ranks).max_by_key(|&rank| (busy[rank], n_ranks - rank));
        let idlest = (0..n_ranks).min_by_key(|&rank| (busy[rank], rank));
        let always: Vec<usize> = busiest.into_iter().chain(idlest).collect();
        let ranks = shown_ranks(n_ranks, RANKS_MAX, &always);
        let streams: Vec<Stream> = Stream::ALL.into_iter().filter(|stream| used[stream.index()]).collect();
        let mut tasks = vec![Vec::new(); ranks.len() * streams.len()];
        for (index, task) in graph.tasks.iter().enumerate() {
            let stream = streams.iter().position(|&stream| stream == task.stream).expect("marked as used above");
            if let Ok(band) = ranks.binary_search(&task.lane.index()) {
                tasks[band * streams.len() + stream].push(index);
            }
        }
        tasks.iter_mut().for_each(|lane| lane.sort_by_key(|&index| (picture.timeline.start[index], index)));
        let all = lanes::names(graph);
        let names: Vec<String> = ranks.iter().map(|&rank| all[rank].clone()).collect();
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let left = LEFT_MIN.max(16.0 + LETTER * float_of(longest));
        Self { ranks, names, left, streams, tasks, span_ns: picture.timeline.span().as_ns().max(1) }
    }

    /// Pixels of the plot.
    fn width(&self) -> f64 {
        f64::from(WIDTH) - self.left - 12.0
    }

    fn strokes(&self, picture: &Picture<'_>, resolution: f64) -> Vec<Vec<Stroke>> {
        let scale = self.width() / float(self.span_ns);
        let stroke_of = |&index: &usize| {
            let (start, end) = (picture.timeline.start[index], picture.timeline.end[index]);
            let length = float((end - start).as_ns()) * scale;
            Stroke { x: self.left + float(start.as_ns()) * scale, length, role: picture.graph.tasks[index].role }
        };
        self.tasks.iter().map(|lane| merged(lane.iter().map(stroke_of), resolution)).collect()
    }
}

/// Strokes too narrow to be seen one by one.
struct Pool {
    x: f64,
    end: f64,
    ink: [f64; N_ROLES],
}

impl Pool {
    fn stroke(&self) -> Stroke {
        let most = (0..N_ROLES).fold(0, |best, role| if self.ink[role] > self.ink[best] { role } else { best });
        Stroke { x: self.x, length: self.ink.iter().sum(), role: Role::ALL[most] }
    }
}

/// Joins neighbours of one role and gathers narrow strokes, so that a lane has strokes in proportion to its width.
fn merged(strokes: impl Iterator<Item = Stroke>, resolution: f64) -> Vec<Stroke> {
    let mut out: Vec<Stroke> = Vec::new();
    let mut push = |stroke: Stroke| match out.last_mut() {
        Some(last) if last.role == stroke.role && stroke.x - (last.x + last.length) < resolution => {
            last.length = (stroke.x + stroke.length - last.x).max(last.length);
        }
        _ => out.push(stroke),
    };
    let mut pool: Option<Pool> = None;
    for stroke in strokes.filter(|stroke| stroke.length > 0.0) {
        let is_narrow = stroke.length < resolution;
        let is_far = |pool: &Pool| stroke.x - pool.end >= resolution || pool.end - pool.x >= resolution;
        if let Some(full) = pool.take_if(|pool| !is_narrow || is_far(pool)) {
            push(full.stroke());
        }
        if !is_narrow {
            push(stroke);
            continue;
        }
        let pool = pool.get_or_insert(Pool { x: stroke.x, end: stroke.x, ink: [0.0; N_ROLES] });
        pool.end = stroke.x + stroke.length;
        pool.ink[role_index(stroke.role)] += stroke.length;
    }
    if let Some(rest) = pool {
        push(rest.stroke());
    }
    out
}

fn role_index(role: Role) -> usize {
    Role::ALL.iter().position(|&other| other == role).expect("`Role::ALL` lists every role")
}

/// Heights of the lanes of a band: compute takes half as much again as the others, and a gap follows.
struct Band {
    lane: f64,
    pitch: f64,
}

impl Band {
    fn of(lanes: &Lanes) -> Self {
        let units = float(lanes.streams.len() as u64) + 1.0;
        let pitch = (BANDS_HEIGHT / float(lanes.ranks.len() as u64)).min(13.0 * units);
        Self { lane: pitch / units, pitch }
    }

    /// Top and height of a lane.
    fn place(&self, band: usize, lanes: &Lanes, stream_index: usize) -> (f64, f64) {
        let top = f64::from(TOP) + float(band as u64) * self.pitch;
        let has_compute = lanes.streams[0] == Stream::Compute;
        let height = if has_compute && stream_index == 0 { 1.5 * self.lane } else { self.lane };
        let before = if has_compute && stream_index > 0 { 0.5 } else { 0.0 };
        (top + (float(stream_index as u64) + before) * self.lane, height - 0.6)
    }
}

fn draw(picture: &Picture<'_>, lanes: &Lanes, strokes: &[Vec<Stroke>]) -> String {
    let band = Band::of(lanes);
    let bottom = f64::from(TOP) + band.pitch * float(lanes.ranks.len() as u64);
    let height = hw::whole(bottom + 40.0);
    let height = u32::try_from(height).expect("the bands share a bounded height");
    let mut roles: Vec<Role> = picture.graph.tasks.iter().map(|task| task.role).collect();
    roles.sort_unstable();
    roles.dedup();
    let entries: Vec<_> = roles.iter().map(|&role| (role.name(), colour(role))).collect();
    let about = format!("When each rank's streams are busy under {}", picture.policy);
    let mut out = open_above(height, legend_above(&entries, 78), &about);
    out.push_str(&legend(&entries, 78, 16));
    let mut ink = String::new();
    for (index, name) in lanes.names.iter().enumerate() {
        let y = f64::from(TOP) + (float(index as u64) + 0.5) * band.pitch;
        let size = px((band.pitch * 0.75).clamp(8.0, 13.0));
        let attributes = format!("{END} font-size=\"{size}\"");
        let _ = writeln!(out, "{}", text((lanes.left - 8.0, y + 2.0), &attributes, name));
        for (stream_index, &stream) in lanes.streams.iter().enumerate() {
            let place = band.place(index, lanes, stream_index);
            let name = format!("{name}, {}", stream.name());
            lane(&mut ink, &strokes[index * lanes.streams.len() + stream_index], place, (lanes, &name));
        }
    }
    let span_s = float(lanes.span_ns) / 1e9;
    let x = Axis { from: 0.0, to: span_s, start: lanes.left, length: lanes.width() };
    let edges = [f64::from(TOP), bottom];
    let plot = Plot { x: &x, x_unit: Unit::Seconds, edges, y: None, is_zoomable: true };
    out.push_str(&plot.draw(&axis(lanes, bottom), true, &ink));
    out.push_str("</svg>\n");
    out
}

/// A faint track and a path per role.
fn lane(out: &mut String, strokes: &[Stroke], (top, height): (f64, f64), (lanes, name): (&Lanes, &str)) {
    let _ = writeln!(
        out,
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\".07\"/>",
        px(lanes.left),
        px(top),
        px(lanes.width()),
        px(height)
    );
    let middle = px(top + height / 2.0);
    for role in Role::ALL {
        let mut path = String::new();
        let mut of_role = strokes.iter().filter(|stroke| stroke.role == role).peekable();
        if of_role.peek().is_none() {
            continue;
        }
        for stroke in of_role {
            let _ = write!(path, "M{} {middle}h{:.2}", px(stroke.x), stroke.length.max(0.15));
        }
        let _ = writeln!(
            out,
            "<path data-what=\"{name}: {role}\" d=\"{path}\" stroke=\"{}\" stroke-width=\"{}\"><title>{name}: {role}</title></path>",
            colour(role),
            px(height),
            name = escape(name),
            role = role.name()
        );
    }
}

/// Vertical lines at round times, labelled below.
fn axis(lanes: &Lanes, bottom: f64) -> String {
    let mut out = String::new();
    let step = tick_ns(lanes.span_ns);
    let scale = lanes.width() / float(lanes.span_ns);
    for tick in 0..=lanes.span_ns / step {
        let ns = tick * step;
        let x = px(lanes.left + float(ns) * scale);
        let label = label_of(ns, step);
        let _ = writeln!(
            out,
            "<path d=\"M{x} {TOP}V{}\" stroke=\"currentColor\" stroke-opacity=\".25\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            px(bottom),
            px(bottom + 18.0)
        );
    }
    out
}

/// A time on the axis in the unit of the axis.
fn label_of(ns: u64, step_ns: u64) -> String {
    let (unit_ns, unit) = match step_ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{} {unit}", ns / unit_ns)
}

/// 1, 2 or 5 times a power of ten that gives at most `N_TICKS` intervals and labels without a fraction.
fn tick_ns(span_ns: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            if span_ns / (factor * power) <= N_TICKS {
                return factor * power;
            }
        }
        power *= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stroke(x: f64, length: f64, role: Role) -> Stroke {
        Stroke { x, length, role }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(tick_ns(1_842_000_000), 500_000_000);
        assert_eq!(tick_ns(8), 1);
        assert_eq!(tick_ns(90), 20);
    }

    #[test]
    fn close_neighbours_of_one_role_become_one_stroke() {
        let lane = [stroke(0.0, 5.0, Role::Forward), stroke(5.1, 4.9, Role::Forward), stroke(12.0, 1.0, Role::Forward)];
        let out = merged(lane.into_iter(), 0.3);
        assert_eq!(out.len(), 2);
        assert!((out[0].length - 10.0).abs() < 1e-9);
    }

    #[test]
    fn narrow_strokes_keep_their_ink() {
        // A thousand strokes of 0.01 pixels, two of three forward, cover ten pixels of ink over ten pixels.
        let roles = [Role::Forward, Role::Forward, Role::Backward];
        let lane = (0..1000).map(|index| stroke(f64::from(index) * 0.01, 0.01, roles[index as usize % 3]));
        let out = merged(lane, 0.3);
        let ink: f64 = out.iter().map(|stroke| stroke.length).sum();
        assert!((ink - 10.0).abs() < 0.01, "{ink}");
        assert!(out.iter().all(|stroke| stroke.role == Role::Forward));
    }
}
