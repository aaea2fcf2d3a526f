//! Price against attainment with its front, and attainment against load, both with intervals and the target.

use std::fmt::Write as _;

use super::{Capacity, Headroom};
use crate::quantity::{escape, float_of, percent, shortened, significant};
use crate::svg::axis::{Axis, tick};
use crate::svg::{BLUE, SERIES, VERMILION, WIDTH, legend, legend_above, open, open_above, px};

const LEFT: f64 = 76.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 340.0;
/// Pixels of a letter of a fleet's name, of a row of names, and how many rows below its point a name may stand.
const LETTER: f64 = 6.6;
const ROW: f64 = 15.0;
const ROWS_MAX: usize = 4;
/// Attainments from the lowest that is shown up to 1.
fn upward(values: impl Iterator<Item = f64>) -> Axis {
    let low = values.filter(|value| value.is_finite()).fold(1.0, f64::min);
    let from = ((low - 0.02) * 20.0).floor().max(0.0) / 20.0;
    Axis { from: from.min(0.95), to: 1.0, start: TOP + HEIGHT, length: -HEIGHT }
}

fn frame(out: &mut String, x: &Axis, y: &Axis, names: (&str, &str), show: impl Fn(f64) -> String) {
    let (right, bottom) = (x.start + x.length, TOP + HEIGHT);
    let _ = writeln!(out, "<path d=\"M{} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"currentColor\"/>", x.start);
    for line in x.upright([TOP, bottom], ".12", |_, value| show(value)) {
        let _ = writeln!(out, "{line}");
    }
    out.push_str(&y.level([x.start, right], |value| tick(&percent(value))));
    let (middle, below) = (x.start + x.length / 2.0, bottom + 40.0);
    let _ = writeln!(out, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{}</text>", names.0);
    let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", 8.0, TOP - 14.0, names.1);
}

fn target(out: &mut String, x: &Axis, y: &Axis, ratio: f64) {
    let _ = writeln!(
        out,
        "<path d=\"M{} {}H{}\" stroke=\"{VERMILION}\" stroke-dasharray=\"6 4\"/>",
        x.start,
        px(y.at(ratio)),
        x.start + x.length
    );
}

/// Draws every fleet; empty where there is none.
pub fn front(capacity: &Capacity) -> String {
    let ends =
        capacity.points.iter().flat_map(|point| point.usd_per_mtok_interval.into_iter().chain([point.usd_per_mtok]));
    let most = ends.filter(|usd| usd.is_finite()).fold(0.0, f64::max);
    if capacity.points.is_empty() || most <= 0.0 {
        return String::new();
    }
    let x = Axis { from: 0.0, to: most * 1.05, start: LEFT, length: f64::from(WIDTH) - LEFT - 60.0 };
    let low = capacity.points.iter().map(|point| point.attainment_interval[0].min(point.attainment_ratio));
    let y = upward(low.chain([capacity.target_ratio]));
    let mut gpus: Vec<&str> = Vec::new();
    for point in &capacity.points {
        if !gpus.contains(&point.gpu.as_str()) {
            gpus.push(&point.gpu);
        }
    }
    let entries: Vec<(&str, &str)> =
        gpus.iter().enumerate().map(|(index, gpu)| (*gpu, SERIES[index % SERIES.len()])).collect();
    let about = "Price per million tokens against attainment of every limit";
    let mut out = open_above(450, legend_above(&entries, 220), about);
    frame(&mut out, &x, &y, ("dollars per million output tokens", "within every limit"), |usd| tick(&significant(usd)));
    target(&mut out, &x, &y, capacity.target_ratio);
    let mut on_front: Vec<_> = capacity.points.iter().filter(|point| point.is_on_front).collect();
    on_front.sort_by(|a, b| a.usd_per_mtok.total_cmp(&b.usd_per_mtok));
    let path: Vec<String> = on_front
        .iter()
        .map(|point| format!("{} {}", px(x.at(point.usd_per_mtok)), px(y.at(point.attainment_ratio))))
        .collect();
    let _ =
        writeln!(out, "<path d=\"M{}\" fill=\"none\" stroke=\"currentColor\" stroke-opacity=\".5\"/>", path.join("L"));
    for (index, point) in capacity.points.iter().enumerate() {
        let colour = SERIES[gpus.iter().position(|gpu| *gpu == point.gpu).unwrap_or(0) % SERIES.len()];
        let (px_x, px_y) = (px(x.at(point.usd_per_mtok)), px(y.at(point.attainment_ratio)));
        let [left, right] = point.usd_per_mtok_interval.map(|usd| px(x.at(usd)));
        let [bottom, top] = point.attainment_interval.map(|ratio| px(y.at(ratio)));
        let ring = if capacity.chosen == Some(index) { 7 } else { 4 };
        let _ = writeln!(
            out,
            "<path d=\"M{left} {px_y}H{right}M{px_x} {bottom}V{top}\" stroke=\"{colour}\" stroke-opacity=\".5\"/><a href=\"#row-{index}\" aria-label=\"{name}\"><circle cx=\"{px_x}\" cy=\"{px_y}\" r=\"{ring}\" fill=\"{colour}\"><title>{name}</title></circle></a>",
            name = escape(&point.name)
        );
    }
    names(&mut out, &on_front, &x, &y);
    out.push_str(&legend(&entries, 220, 20));
    out.push_str("</svg>\n");
    out
}

/// Names of the fleets on the front, below their points so that they do not lie on the line. One that would lie on another goes a row down,
/// and is left out where that is too far from its point: the table has it.
fn names(out: &mut String, on_front: &[&super::Point], x: &Axis, y: &Axis) {
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for point in on_front {
        let name = shortened(&point.name, 32);
        let width = LETTER * float_of(name.chars().count());
        let left = (x.at(point.usd_per_mtok) + 10.0).min(f64::from(WIDTH) - 4.0 - width);
        let first = y.at(point.attainment_ratio) + ROW;
        let is_free = |row: &f64| {
            let crosses =
                |&(from, to, at): &(f64, f64, f64)| left < to && from < left + width && (row - at).abs() < ROW;
            *row < TOP + HEIGHT && !taken.iter().any(crosses)
        };
        let Some(row) = (0..ROWS_MAX).map(|n| first + ROW * float_of(n)).find(is_free) else { continue };
        taken.push((left, left + width, row));
        let name = escape(&name);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\" font-size=\"12\">{name}</text>", px(left), px(row));
    }
}

/// Draws attainment over load; empty where fewer than two loads were tried.
pub fn load_lines(headroom: &Headroom, target_ratio: f64) -> String {
    let loads = &headroom.loads;
    if loads.len() < 2 {
        return String::new();
    }
    let most = loads.iter().map(|load| load.factor).fold(0.0, f64::max);
    let x = Axis { from: 0.0, to: most * 1.05, start: LEFT, length: f64::from(WIDTH) - LEFT - 60.0 };
    let y =
        upward(loads.iter().map(|load| load.attainment_interval[0].min(load.attainment_ratio)).chain([target_ratio]));
    let mut out = open(450, "Attainment of every limit against load");
    frame(&mut out, &x, &y, ("times the load of the trace", "within every limit"), |factor| tick(&significant(factor)));
    target(&mut out, &x, &y, target_ratio);
    let place = |factor: f64, ratio: f64| format!("{} {}", px(x.at(factor)), px(y.at(ratio)));
    let line = |of: &dyn Fn(usize) -> f64| (0..loads.len()).map(|i| place(loads[i].factor, of(i))).collect::<Vec<_>>();
    let (upper, mut lower) = (line(&|i| loads[i].attainment_interval[1]), line(&|i| loads[i].attainment_interval[0]));
    lower.reverse();
    let band = [upper, lower].concat().join("L");
    let _ = writeln!(out, "<path d=\"M{band}Z\" fill=\"{BLUE}\" fill-opacity=\".15\"/>");
    let path = line(&|i| loads[i].attainment_ratio).join("L");
    let _ = writeln!(out, "<path d=\"M{path}\" fill=\"none\" stroke=\"{BLUE}\" stroke-width=\"2\"/>");
    for load in loads {
        let (at_x, at_y) = (px(x.at(load.factor)), px(y.at(load.attainment_ratio)));
        let _ = writeln!(out, "<circle cx=\"{at_x}\" cy=\"{at_y}\" r=\"3\" fill=\"{BLUE}\"/>");
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Point;

    #[test]
    fn names_of_equal_points_stand_below_each_other() {
        let point = Point { name: "2 x gpu".to_owned(), usd_per_mtok: 1.0, attainment_ratio: 0.9, ..Point::default() };
        let (x, y) = (
            Axis { from: 0.0, to: 2.0, start: LEFT, length: 900.0 },
            Axis { from: 0.0, to: 1.0, start: TOP + HEIGHT, length: -HEIGHT },
        );
        let mut out = String::new();
        names(&mut out, &[&point; 6], &x, &y);
        // 0.9 lies at 40 + 34 = 74; four rows of 15 pixels follow, and two names find no place.
        for row in ["y=\"89\"", "y=\"104\"", "y=\"119\"", "y=\"134\""] {
            assert_eq!(out.matches(row).count(), 1, "{row}: {out}");
        }
        assert_eq!(out.matches("<text").count(), 4);
    }
}
