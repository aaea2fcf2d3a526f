//! Pictures of graph training: hits over the split of the caches, what each GPU holds, workers against time, epochs by cause.
//!
//! Each is a function of rows of a result: metrics and planned figures by their keys. A picture without its figures is empty.

use std::fmt::Write as _;

use super::axis::{Axis, tick};
use super::panels::{grid, line};
use super::{BLUE, MIDDLE, ORANGE, SERIES, VERMILION, WIDTH, bar, legend, legend_above, open, open_above, px, text};
use crate::quantity::{duration, escape, float_of, gib};
use crate::{PolicyResult, RunResult};

/// Left edge of what is drawn, and room right of it.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 30.0;
/// Height of a policy's row in the map of caches.
const MAP_ROW: u32 = 58;
/// Height of a bar of a cause, and of a policy's four.
const BAR: f64 = 9.0;
const CAUSES_ROW: f64 = 4.0 * BAR + 16.0;
/// Causes by the keys of their metrics.
const CAUSES: [(&str, &str); 4] = [
    ("sampling_per_epoch_s", "sampling, extraction"),
    ("gather_per_epoch_s", "gather, copies"),
    ("training_per_epoch_s", "training"),
    ("reduction_per_epoch_s", "reduction"),
];

/// A row with points of a curve.
type Curve<'a> = (&'a PolicyResult, Vec<(f64, f64)>);

/// Figures of a row whose keys are a beginning, a number and an end: (number, figure) in the order of numbers.
fn numbered(row: &PolicyResult, begin: &str, end: &str) -> Vec<(f64, f64)> {
    let Some(planner) = &row.planner else { return Vec::new() };
    let mut found = Vec::new();
    for (key, value) in &planner.figures {
        let number = key.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)).map(str::parse::<f64>);
        if let Some(Ok(number)) = number {
            found.push((number, *value));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found
}

/// Rows that have such figures, with them.
fn rows<'a>(run: &'a RunResult, begin: &str, end: &str) -> Vec<Curve<'a>> {
    let all = run.results.iter().map(|row| (row, numbered(row, begin, end)));
    all.filter(|(_, points)| points.len() > 1).take(SERIES.len()).collect()
}

/// Entries of the legend.
fn names<'a>(rows: &'a [Curve<'a>]) -> Vec<(&'a str, &'static str)> {
    rows.iter().zip(SERIES).map(|((row, _), colour)| (row.policy.as_str(), colour)).collect()
}

/// A label of an axis that counts things: none between two whole numbers.
fn whole(value: f64) -> String {
    if (value - value.round()).abs() < 1e-9 { format!("{:.0}", value.round()) } else { String::new() }
}

fn width() -> f64 {
    f64::from(WIDTH) - LEFT - RIGHT
}

/// Lines over one axis, with a dashed mark for each where it has one.
fn lines(
    label: &str,
    [below, beside]: [&str; 2],
    shown: &[Curve<'_>],
    (x, y): (&Axis, &Axis),
    words: (&dyn Fn(f64) -> String, &dyn Fn(f64) -> String),
    mark: &dyn Fn(&PolicyResult) -> Option<(f64, String)>,
) -> String {
    let entries = names(shown);
    let mut out = open_above(330, legend_above(&entries, 150) + 18, label);
    let _ = writeln!(out, "{}", text((8.0, 20.0), "", beside));
    grid(&mut out, (x, y), words.0, words.1);
    let _ = writeln!(out, "{}", text((x.start + x.length / 2.0, 322.0), MIDDLE, below));
    for (index, (row, points)) in shown.iter().enumerate() {
        let drawn: Vec<(f64, f64)> = points.iter().map(|point| (x.at(point.0), y.at(point.1))).collect();
        line(&mut out, &row.policy, &drawn, (index, shown.len()));
        let Some((at, text)) = mark(row) else { continue };
        let at = x.at(at.clamp(x.from, x.to));
        // Marks of rows stand below each other, on the side that has room.
        let is_left = at > x.start + x.length * 0.7;
        let (anchor, beside) = if is_left { ("end", at - 6.0) } else { ("start", at + 6.0) };
        let _ = writeln!(
            out,
            "<path d=\"M{} {}V{}\" stroke=\"{VERMILION}\" stroke-dasharray=\"6 4\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            px(at),
            px(y.start + y.length),
            px(y.start),
            px(beside),
            px(y.start + y.length / 2.0 + 18.0 * float_of(index)),
            escape(&text)
        );
    }
    out.push_str(&legend(&entries, 150, 2));
    out.push_str("</svg>\n");
    out
}

/// Share of the transactions that a cache saves, over the share of its memory for rows, with the split that was chosen.
pub fn hits_over_alpha(run: &RunResult) -> String {
    let shown = rows(run, "hit_ratio_at_alpha_", "_percent");
    if shown.is_empty() {
        return String::new();
    }
    let x = Axis { from: 0.0, to: 100.0, start: LEFT, length: width() };
    let y = Axis { from: 0.0, to: 100.0, start: 280.0, length: -236.0 };
    let percent = |value: f64| format!("{value:.0} %");
    let mark = |row: &PolicyResult| {
        let alpha = 100.0 * row.metrics.get("alpha_ratio")?;
        Some((alpha, format!("{} takes {alpha:.0} %", row.policy)))
    };
    lines(
        "Hit rate over the share of the cache for rows",
        ["share of the cache for rows; the rest holds features", "transactions that are saved"],
        &shown,
        (&x, &y),
        (&percent, &percent),
        &mark,
    )
}

/// Seconds of an epoch over workers of each GPU, with the number from which on the GPU is the limit.
pub fn epoch_over_workers(run: &RunResult) -> String {
    let shown = rows(run, "epoch_at_", "_workers_s");
    let largest = |at: fn(&(f64, f64)) -> f64| shown.iter().flat_map(|(_, points)| points).map(at).fold(0.0, f64::max);
    let (most, slowest) = (largest(|point| point.0), largest(|point| point.1));
    if most <= 1.0 || slowest <= 0.0 {
        return String::new();
    }
    let x = Axis { from: 0.0, to: most, start: LEFT, length: width() };
    let y = Axis { from: 0.0, to: slowest * 1.05, start: 280.0, length: -236.0 };
    let mark = |row: &PolicyResult| {
        let workers = *row.metrics.get("crossing_workers")?;
        Some((workers, format!("{}: the GPU is the limit from {workers:.1} workers on", row.policy)))
    };
    lines(
        "Time of an epoch over workers",
        ["workers of each GPU", "time of an epoch"],
        &shown,
        (&x, &y),
        (&whole, &|value| duration(value, None)),
        &mark,
    )
}

/// What each GPU holds: rows and features, a bar for each GPU of every policy that caches.
pub fn cache_map(run: &RunResult) -> String {
    let held = |row: &PolicyResult| {
        let (rows, features) = (numbered(row, "gpu_", "_rows_bytes"), numbered(row, "gpu_", "_features_bytes"));
        rows.into_iter().zip(features).map(|(rows, features)| [rows.1, features.1]).collect::<Vec<[f64; 2]>>()
    };
    let shown: Vec<(&PolicyResult, Vec<[f64; 2]>)> =
        run.results.iter().map(|row| (row, held(row))).filter(|(_, held)| !held.is_empty()).collect();
    let most = shown.iter().flat_map(|(_, held)| held).map(|[rows, features]| rows + features).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let height = 40 + MAP_ROW * u32::try_from(shown.len()).unwrap_or(0);
    let mut out = open(height, "What each GPU caches, rows and features");
    for (at, (row, held)) in shown.iter().enumerate() {
        let top = 44.0 + f64::from(MAP_ROW) * float_of(at);
        let _ = writeln!(out, "<text x=\"12\" y=\"{}\">{}</text>", px(top + 18.0), escape(&row.policy));
        let each = width() / float_of(held.len());
        for (gpu, [rows, features]) in held.iter().enumerate() {
            let (start, full) = (LEFT + each * float_of(gpu), each - 10.0);
            let (of_rows, of_features) = (full * rows / most, full * features / most);
            let y = px(top);
            let words = format!("GPU {gpu}: rows {}, features {}", gib(*rows), gib(*features));
            let _ = writeln!(
                out,
                "<g><title>{words}</title>\
                 <rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"24\" fill=\"currentColor\" fill-opacity=\".08\"/>\
                 <rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"24\" fill=\"{BLUE}\"/>\
                 <rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"24\" fill=\"{ORANGE}\"/>\
                 <text x=\"{}\" y=\"{}\" font-size=\"11\">GPU {gpu}</text></g>",
                px(start),
                px(full),
                px(start),
                px(of_rows),
                px(start + of_rows),
                px(of_features),
                px(start),
                px(top + 38.0)
            );
        }
    }
    out.push_str(&legend(&[("rows", BLUE), ("features", ORANGE)], 150, 20));
    out.push_str("</svg>\n");
    out
}

/// Seconds of an epoch by cause for every policy; causes overlap, so the epoch is a line of its own.
pub fn epoch_by_cause(run: &RunResult) -> String {
    let epoch = |row: &PolicyResult| row.metrics.get("epoch_time_s").copied().filter(|seconds| seconds.is_finite());
    let shown: Vec<(&PolicyResult, f64)> = run.results.iter().filter_map(|row| Some((row, epoch(row)?))).collect();
    let cause = |row: &PolicyResult, key: &str| row.metrics.get(key).copied().unwrap_or(0.0);
    let causes = |row: &PolicyResult| CAUSES.map(|(key, _)| cause(row, key));
    let most = shown.iter().flat_map(|(row, epoch)| causes(row).into_iter().chain([*epoch])).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let bottom = 44.0 + CAUSES_ROW * float_of(shown.len());
    let x = Axis { from: 0.0, to: most * 1.02, start: LEFT, length: width() };
    let y = Axis { from: 0.0, to: 1.0, start: bottom, length: 40.0 - bottom };
    let height = hw::whole(bottom + 34.0);
    let mut out = open(u32::try_from(height).unwrap_or(400), "Time of an epoch by cause");
    for line in x.upright([y.start + y.length, bottom], ".12", |_, value| tick(&duration(value, None))) {
        let _ = writeln!(out, "{line}");
    }
    for (at, (row, epoch)) in shown.iter().enumerate() {
        let top = 48.0 + CAUSES_ROW * float_of(at);
        let _ = writeln!(out, "<text x=\"12\" y=\"{}\">{}</text>", px(top + 2.5 * BAR), escape(&row.policy));
        for (index, seconds) in causes(row).into_iter().enumerate() {
            let place = [LEFT, top + BAR * float_of(index), x.at(seconds) - LEFT, BAR - 1.5];
            let title = format!("{}: {}", CAUSES[index].1, duration(seconds, None));
            let _ = writeln!(out, "{}", bar(place, SERIES[index], &title));
        }
        let end = px(x.at(*epoch));
        let _ = writeln!(
            out,
            "<path d=\"M{end} {}v{}\" stroke=\"{VERMILION}\" stroke-width=\"2.5\"/>",
            px(top - 3.0),
            px(4.0 * BAR + 5.0)
        );
    }
    let entries: Vec<(&str, &str)> =
        CAUSES.iter().zip(SERIES).map(|((_, words), colour)| (*words, colour)).chain([("epoch", VERMILION)]).collect();
    out.push_str(&legend(&entries, 150, 20));
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlannerFacts;
    use std::collections::BTreeMap;

    fn row(policy: &str, metrics: &[(&str, f64)], figures: &[(&str, f64)]) -> PolicyResult {
        let keyed = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
        };
        let planner = PlannerFacts { figures: keyed(figures), ..PlannerFacts::default() };
        let metrics = keyed(metrics);
        PolicyResult { policy: policy.to_owned(), metrics, planner: Some(planner), ..PolicyResult::default() }
    }

    fn result() -> RunResult {
        let curve = [("hit_ratio_at_alpha_000_percent", 40.0), ("hit_ratio_at_alpha_050_percent", 80.0)];
        let held = [("gpu_000_rows_bytes", 1e9), ("gpu_000_features_bytes", 3e9)];
        let workers = [("epoch_at_001_workers_s", 20.0), ("epoch_at_002_workers_s", 10.0)];
        let legion = row("<legion>", &[("alpha_ratio", 0.5), ("epoch_time_s", 2.0)], &[&curve[..], &held].concat());
        let seg =
            row("seg", &[("crossing_workers", 1.5), ("sampling_per_epoch_s", 3.0), ("epoch_time_s", 4.0)], &workers);
        RunResult { results: vec![legion, seg], kind: "graph".to_owned(), ..RunResult::default() }
    }

    #[test]
    fn each_picture_has_its_rows_and_no_text_of_a_user_as_it_is() {
        let run = result();
        for picture in [hits_over_alpha(&run), cache_map(&run), epoch_by_cause(&run)] {
            assert!(picture.contains("&lt;legion&gt;") && !picture.contains("<legion>"), "{picture}");
            assert!(picture.ends_with("</svg>\n"));
        }
        assert!(hits_over_alpha(&run).contains("takes 50 %"));
        assert!(epoch_over_workers(&run).contains("from 1.5 workers on"));
        // A quarter of what the GPU holds are rows: the bars are 1 to 3.
        let map = cache_map(&run);
        let width = |colour: &str| {
            let bar = map.split(&format!("height=\"24\" fill=\"{colour}\"")).next().expect("a bar");
            bar.rsplit("width=\"").next().and_then(|rest| rest.split('"').next()?.parse::<f64>().ok()).expect("a width")
        };
        assert!((width(ORANGE) / width(BLUE) - 3.0).abs() < 0.01);
    }

    #[test]
    fn an_axis_of_workers_counts_whole_ones() {
        // One to three workers have a line at every half.
        assert_eq!([0.0, 0.5, 1.0, 1.5, 2.0].map(whole), ["0", "", "1", "", "2"]);
    }

    #[test]
    fn nothing_to_show_is_no_picture() {
        let run = RunResult::default();
        for picture in [hits_over_alpha(&run), cache_map(&run), epoch_by_cause(&run), epoch_over_workers(&run)] {
            assert!(picture.is_empty());
        }
    }
}
