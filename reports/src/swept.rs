//! What a sweep found, as a page that loads nothing and as text: the front, every point of two objectives, which axis matters, what failed.

pub mod rates;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use crate::chart::{self, Ink, Side};
use crate::html::{END, contents, figure, page, table};
use crate::lines::paged;
use crate::quantity::{escape, key_words, percent};
use crate::rows::{self, Rows, aligned};
use crate::shown;
use crate::svg::axis::{Axis, tick};
use crate::svg::{self, BLUE, MIDDLE, ORANGE, WIDTH, open, px};

/// Schema of a sweep for programs.
pub const SCHEMA: &str = "skrull-sim/sweep/1";
const LEFT: f64 = 90.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 360.0;
/// Points that are drawn at most, evenly spread over all; those of the front come on top.
const POINTS_MAX: usize = 5000;
/// Points with the same figures that a row names.
const ALSO: usize = 2;
/// Points that a terminal shows one by one, at most.
pub const FEW: usize = 20;
/// Rows of a table of the page.
const ROWS_MAX: usize = 200;

/// An objective and its figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Best {
    /// What was laid over the scenario.
    pub point: String,
    /// The same by key.
    pub values: BTreeMap<String, serde_json::Value>,
    /// Policy.
    pub policy: String,
    /// Figures of the objectives.
    pub figures: Vec<f64>,
    /// What else has the very same figures.
    pub also: Vec<String>,
}

/// A point and a policy, and what came of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// What was laid over the scenario.
    pub point: String,
    /// Policy; empty where nothing ran.
    pub policy: String,
    /// How it ended.
    pub status: String,
    /// Figures of `Swept::figures_shown`; not numbers where it has none.
    pub figures: Vec<f64>,
}

/// Everything that a sweep found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Swept {
    /// Name of the sweep.
    pub name: String,
    /// Scenario that was swept.
    pub scenario: String,
    /// Version of the program.
    pub version: String,
    /// Text of the sweep.
    pub text: String,
    /// Points.
    pub n_points: usize,
    /// Rows by status.
    pub statuses: Vec<(String, usize)>,
    /// Objectives: the key of a metric, and whether most of it is sought.
    pub objectives: Vec<(String, bool)>,
    /// Candidates that no other one beats.
    pub front: Vec<Best>,
    /// Figures of every candidate.
    pub figures: Vec<Vec<f64>>,
    /// Key, objective, share of the spread, best value and its mean.
    pub effects: Vec<(String, String, f64, String, f64)>,
    /// Policies over the rates of requests, where a sweep has several.
    pub rates: Vec<rates::Line>,
    /// Point and reason of what did not run.
    pub failures: Vec<(String, String)>,
    /// Metrics of the table of all points.
    pub figures_shown: Vec<String>,
    /// All points, where they are few.
    pub shown: Vec<Shown>,
}

impl Swept {
    /// What it found in a sentence.
    pub fn lead(&self) -> String {
        let statuses: Vec<String> = self.statuses.iter().map(|(status, n)| format!("{n} {status}")).collect();
        let rows = format!("{} points; rows: {}", self.n_points, statuses.join(", "));
        match self.objectives.as_slice() {
            [] => format!("{rows}. No `[front]` says what is sought."),
            _ => {
                let best: usize = self.front.iter().map(|best| 1 + best.also.len()).sum();
                let (n, sought) = (self.figures.len(), self.sought().join(" and "));
                format!("{rows}. Of {n} points with a policy no other one beats {best} in {sought}.")
            }
        }
    }

    /// Objectives in words.
    fn sought(&self) -> Vec<String> {
        let words =
            |(key, is_most): &(String, bool)| format!("{} {}", if *is_most { "most" } else { "least" }, key_words(key));
        self.objectives.iter().map(words).collect()
    }

    fn front_rows(&self) -> Rows {
        let mut rows = vec![["point", "policy"].map(str::to_owned).to_vec()];
        rows[0].extend(self.sought());
        let has_alike = self.front.iter().any(|best| !best.also.is_empty());
        rows[0].extend(has_alike.then(|| "also".to_owned()));
        let row = |best: &Best| {
            let figures = best.figures.iter().zip(&self.objectives).map(|(value, (key, _))| figure_of(key, *value));
            let also = has_alike.then(|| also(&best.also));
            [best.point.clone(), best.policy.clone()].into_iter().chain(figures).chain(also).collect()
        };
        rows.extend(self.front.iter().take(ROWS_MAX).map(row));
        rows
    }

    fn failure_rows(&self) -> Rows {
        let mut rows: Rows = vec![["point", "why"].map(str::to_owned).to_vec()];
        rows.extend(self.failures.iter().take(ROWS_MAX).map(|(point, why)| vec![point.clone(), why.clone()]));
        rows
    }

    fn shown_rows(&self) -> Rows {
        let mut rows: Rows = vec![["point", "policy", "status"].map(str::to_owned).to_vec()];
        rows[0].extend(self.figures_shown.iter().map(|key| key_words(key)));
        rows.extend(self.shown.iter().map(|row| {
            let figures = self.figures_shown.iter().zip(&row.figures);
            let figures = figures.map(|(key, value)| figure_of(key, *value));
            [&row.point, &row.policy, &row.status].map(Clone::clone).into_iter().chain(figures).collect()
        }));
        rows
    }

    fn effect_rows(&self) -> Rows {
        let mut rows =
            vec![["key", "objective", "share of the spread", "best value", "mean there"].map(str::to_owned).to_vec()];
        rows.extend(self.effects.iter().map(|(key, metric, ratio, best, mean)| {
            vec![key.clone(), key_words(metric), percent(*ratio), best.clone(), figure_of(metric, *mean)]
        }));
        rows
    }
}

/// Those with the same figures in a cell.
fn also(all: &[String]) -> String {
    let named = all.iter().take(ALSO).cloned().collect::<Vec<_>>().join("; ");
    if all.len() > ALSO { format!("{named}; {} more", all.len() - ALSO) } else { named }
}

/// For a terminal: of two objectives or more, a chart of the first two, whose marks name rows of the front.
pub fn text(swept: &Swept, ink: Ink) -> String {
    let mut out = swept.lead() + "\n";
    let mut front = swept.front_rows();
    if let [across, up, ..] = swept.sought().as_slice()
        && front.len() > 1
    {
        let points: Vec<[f64; 2]> = swept.figures.iter().map(|figures| first_two(figures)).collect();
        let best: Vec<[f64; 2]> = swept.front.iter().map(|best| first_two(&best.figures)).collect();
        let figures = [0, 1].map(|at| move |value: f64| figure_of(&swept.objectives[at].0, value));
        let sides = [Side { name: across, figure: &figures[0] }, Side { name: up, figure: &figures[1] }];
        out += &format!("\n{}", chart::scatter(&points, &best, sides, ink));
        for (place, row) in front.iter_mut().enumerate() {
            row.insert(0, if place == 0 { String::new() } else { chart::mark(place - 1).to_string() });
        }
    }
    for rows in [swept.shown_rows(), front, swept.effect_rows()] {
        if rows.len() > 1 {
            out += &format!("\n{}", aligned(&rows));
        }
    }
    let failed: Vec<String> =
        swept.failures.iter().take(FEW).map(|(point, why)| format!("no result: {point}: {why}")).collect();
    if failed.is_empty() { out } else { format!("{out}\n{}\n", paged(&failed.join("\n"))) }
}

/// For pull requests.
pub fn markdown(swept: &Swept) -> String {
    let mut out = format!("{}\n", swept.lead());
    for rows in [swept.front_rows(), swept.effect_rows(), swept.failure_rows()] {
        if rows.len() > 1 {
            out.push('\n');
            rows::markdown(&mut out, &rows);
        }
    }
    out
}

/// For programs: the front with its figures by metric, the effects of axes, and what did not run.
pub fn json(swept: &Swept) -> String {
    let sought = swept.objectives.iter().map(|(key, is_most)| json!({ "metric": key, "is_most": is_most }));
    let keys = || swept.objectives.iter().map(|(key, _)| key.clone());
    let best = |best: &Best| {
        let figures: BTreeMap<String, f64> =
            keys().zip(best.figures.iter().copied()).filter(|(_, figure)| figure.is_finite()).collect();
        json!({ "set": best.values, "policy": best.policy, "metrics": figures, "also": best.also })
    };
    let effect = |(key, metric, share, best, mean): &(String, String, f64, String, f64)| json!({ "key": key, "metric": metric, "spread_ratio": share, "best": best, "mean": mean });
    let failure = |(point, why): &(String, String)| json!({ "point": point, "why": why });
    let all = json!({
        "schema": SCHEMA, "name": swept.name, "scenario": swept.scenario, "version": swept.version,
        "n_points": swept.n_points, "rows": swept.statuses.iter().cloned().collect::<BTreeMap<String, usize>>(),
        "objectives": sought.collect::<Vec<_>>(), "front": swept.front.iter().map(best).collect::<Vec<_>>(),
        "effects": swept.effects.iter().map(effect).collect::<Vec<_>>(),
        "failures": swept.failures.iter().map(failure).collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

/// A figure in the unit of its key.
fn figure_of(key: &str, value: f64) -> String {
    shown::figure(key, value, None)
}

/// The unit in which a figure is shown, where it is no power of ten.
fn unit_of(key: &str) -> f64 {
    let is_bytes = key.split('.').next().is_some_and(|key| key.ends_with("_bytes"));
    if is_bytes { hw::GIB } else { 1.0 }
}

fn first_two(figures: &[f64]) -> [f64; 2] {
    [figures[0], figures[1]]
}

/// The page.
pub fn html(swept: &Swept) -> String {
    let mut out = page(&format!("Sweep: {} – skrull-sim", swept.name), "");
    let (name, version) = (escape(&swept.name), escape(&swept.version));
    let _ = writeln!(out, "<header>\n<h1>Sweep: {name}</h1>\n<p class=\"faint\">skrull-sim {version}</p>");
    let mut places = vec![("answer", "Answer")];
    places.extend((swept.front.len() > 1).then_some(("front", "Front")));
    let over_rates = rates::picture(&swept.rates);
    places.extend((!over_rates.is_empty()).then_some(("rates", "Throughput against latency")));
    places.extend((!swept.effects.is_empty()).then_some(("effects", "Which axis matters")));
    places.extend((!swept.failures.is_empty()).then_some(("failures", "What did not run")));
    places.push(("asked", "What was asked"));
    contents(&mut out, &places.iter().map(|(id, name)| ((*id).to_owned(), (*name).to_owned())).collect::<Vec<_>>());
    let _ = writeln!(
        out,
        "</header>\n<section id=\"answer\">\n<h2>Answer</h2>\n<p class=\"lead\">{}</p>\n</section>",
        escape(&swept.lead())
    );
    if !swept.front.is_empty() {
        out.push_str("<section id=\"front\">\n<h2>Front</h2>\n");
        let words = "Every point of the first two objectives. Orange: no other one beats it in all objectives.";
        figure(&mut out, &picture(swept), words);
        table(&mut out, &swept.front_rows(), None, "front-");
        out.push_str("</section>\n");
    }
    if !over_rates.is_empty() {
        out.push_str("<section id=\"rates\">\n<h2>Throughput against latency</h2>\n");
        figure(&mut out, &over_rates, &rates::caption(&swept.rates));
        out.push_str("</section>\n");
    }
    if !swept.effects.is_empty() {
        out.push_str("<section id=\"effects\">\n<h2>Which axis matters</h2>\n<p>Variance between values of the axis over all variance. Shares of axes that act alone add up to 100 %.</p>\n");
        table(&mut out, &swept.effect_rows(), None, "effect-");
        out.push_str("</section>\n");
    }
    if !swept.failures.is_empty() {
        out.push_str("<section id=\"failures\">\n<h2>What did not run</h2>\n");
        table(&mut out, &swept.failure_rows(), None, "failure-");
        out.push_str("</section>\n");
    }
    // What is escaped has no ends of lines.
    let lines: Vec<String> = swept.text.lines().map(escape).collect();
    let (scenario, text) = (escape(&swept.scenario), lines.join("\n"));
    let _ = writeln!(
        out,
        "<section id=\"asked\">\n<h2>What was asked</h2>\n<p>Scenario: {scenario}</p>\n<pre>{text}</pre>\n</section>"
    );
    out.push_str(END);
    out
}

/// Every candidate in the first two objectives; empty with fewer.
fn picture(swept: &Swept) -> String {
    if swept.figures.len() < 2 || swept.objectives.len() < 2 {
        return String::new();
    }
    // Lines are round in the unit that is shown.
    let units = [0, 1].map(|at| unit_of(&swept.objectives[at].0));
    let scaled = |figures: &[f64]| (figures[0] / units[0], figures[1] / units[1]);
    let pairs: Vec<(f64, f64)> = swept.figures.iter().map(|all| scaled(all)).collect();
    let axis = |values: Vec<f64>, start: f64, length: f64| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let room = ((high - low) * 0.05).max(high.abs() * 1e-6).max(f64::MIN_POSITIVE);
        Axis { from: low - room, to: high + room, start, length }
    };
    let x = axis(pairs.iter().map(|pair| pair.0).collect(), LEFT, f64::from(WIDTH) - LEFT - 20.0);
    let y = axis(pairs.iter().map(|pair| pair.1).collect(), TOP + HEIGHT, -HEIGHT);
    let mut out = open(460, "Points of the sweep in two objectives");
    let label = |at: usize| {
        let key = swept.objectives[at].0.clone();
        move |value: f64| tick(&figure_of(&key, value * units[at]))
    };
    frame(&mut out, (&x, &y), &swept.sought(), (&label(0), &label(1)));
    let mut dot = |(at_x, at_y): (f64, f64), radius: u32, colour: &str| {
        let _ = writeln!(
            out,
            "<circle cx=\"{}\" cy=\"{}\" r=\"{radius}\" fill=\"{colour}\"/>",
            px(x.at(at_x)),
            px(y.at(at_y))
        );
    };
    pairs.iter().step_by(pairs.len().div_ceil(POINTS_MAX)).for_each(|pair| dot(*pair, 2, BLUE));
    swept.front.iter().for_each(|best| dot(scaled(&best.figures), 4, ORANGE));
    out.push_str("</svg>\n");
    out
}

/// Lines of a grid with their values, and what the axes count.
fn frame(
    out: &mut String,
    (x, y): (&Axis, &Axis),
    names: &[String],
    (below, beside): (&dyn Fn(f64) -> String, &dyn Fn(f64) -> String),
) {
    let (right, bottom) = (x.start + x.length, TOP + HEIGHT);
    for line in x.upright([TOP, bottom], ".12", |_, value| below(value)) {
        let _ = writeln!(out, "{line}");
    }
    out.push_str(&y.level([LEFT, right], beside));
    let _ = writeln!(out, "{}", svg::text((LEFT + x.length / 2.0, bottom + 40.0), MIDDLE, &names[0]));
    let _ = writeln!(out, "<text x=\"8\" y=\"{}\">{}</text>", TOP - 14.0, escape(&names[1]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(figures: Vec<f64>) -> Best {
        let values = [("x".to_owned(), json!(1))].into();
        Best { point: "x=1".to_owned(), values, policy: "p".to_owned(), figures, also: Vec::new() }
    }

    #[test]
    fn programs_get_the_front_by_key_and_metric_and_pull_requests_its_tables() {
        let swept = Swept {
            n_points: 2,
            statuses: vec![("ok".to_owned(), 1), ("wrong".to_owned(), 1)],
            objectives: vec![("cost_usd".to_owned(), false), ("ttft_s.p99".to_owned(), false)],
            front: vec![best(vec![3.0, f64::NAN])],
            figures: vec![vec![3.0, f64::NAN]],
            failures: vec![("x=3".to_owned(), "[S011] out | of range".to_owned())],
            ..Swept::default()
        };
        let document: serde_json::Value = serde_json::from_str(&json(&swept)).expect("JSON");
        assert_eq!(document["schema"], SCHEMA);
        assert_eq!(document["rows"], json!({ "ok": 1, "wrong": 1 }));
        let front = json!([{ "set": { "x": 1 }, "policy": "p", "metrics": { "cost_usd": 3.0 }, "also": [] }]);
        assert_eq!(document["front"], front, "what is no number is absent");
        let tables = markdown(&swept);
        assert!(tables.starts_with(&swept.lead()) && tables.contains("| x=1 | p | $\u{a0}3.00 | - |"), "{tables}");
        assert!(tables.contains("| x=3 | [S011] out \\| of range |"), "{tables}");
    }

    #[test]
    fn a_terminal_shows_few_points_one_by_one_and_why_some_have_no_result() {
        let shown = |point: &str, status: &str, figures: Vec<f64>| Shown {
            point: point.to_owned(),
            policy: "p".to_owned(),
            status: status.to_owned(),
            figures,
        };
        let swept = Swept {
            n_points: 2,
            figures_shown: vec!["makespan_s".to_owned()],
            shown: vec![shown("x=1", "ok", vec![12.0]), shown("x=2", "infeasible", vec![f64::NAN])],
            failures: vec![("x=2 p".to_owned(), "too small".to_owned())],
            ..Swept::default()
        };
        let text = text(&swept, Ink::Plain);
        for words in ["12.00 s", "infeasible", "no result: x=2 p: too small"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    /// From 10 to 70 GiB lines lie every 10 GiB, and the terminal has the unit as well.
    #[test]
    fn bytes_have_round_lines_and_their_unit_and_the_text_has_its_lines() {
        let figures: Vec<Vec<f64>> = [10.0, 70.0].map(|gib| vec![gib * hw::GIB, 1.0 + gib]).to_vec();
        let best = best(figures[0].clone());
        let swept = Swept {
            objectives: vec![("memory_peak_bytes".to_owned(), false), ("iteration_time_s".to_owned(), false)],
            front: vec![best],
            figures,
            text: "a = 1\nb = 2\n".to_owned(),
            ..Swept::default()
        };
        let page = html(&swept);
        for words in [">20 GiB</text>", ">60 GiB</text>", "<pre>a = 1\nb = 2</pre>"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        let text = text(&swept, Ink::Plain);
        assert!(text.contains("70.0 GiB") && text.contains("71.00 s"), "{text}");
    }

    #[test]
    fn a_page_has_the_front_the_axes_and_what_failed() {
        let swept = Swept {
            name: "a<b".to_owned(),
            n_points: 3,
            statuses: vec![("ok".to_owned(), 2), ("wrong".to_owned(), 1)],
            objectives: vec![("cost_usd".to_owned(), false), ("ttft_s.p99".to_owned(), true)],
            front: vec![best(vec![1.0, 2.0])],
            figures: vec![vec![1.0, 2.0], vec![2.0, 1.0]],
            effects: vec![("x".to_owned(), "cost_usd".to_owned(), 1.0, "1".to_owned(), 1.0)],
            failures: vec![("x=3".to_owned(), "[S011] out of range".to_owned())],
            ..Swept::default()
        };
        let page = html(&swept);
        assert_eq!(page.matches("<circle").count(), 3, "two points, and one of the front on top");
        for words in ["least cost USD", "most TTFT p99", "<td>$\u{a0}1.00</td>", "<td>2.000 s</td>", ">1 s</text>"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(page.contains("a&lt;b") && page.contains("out of range") && !page.contains("NaN"));
        assert!(
            text(&swept, Ink::Plain)
                .contains("3 points; rows: 2 ok, 1 wrong. Of 2 points with a policy no other one beats 1 in"),
            "{}",
            text(&swept, Ink::Plain)
        );
    }

    #[test]
    fn points_with_the_same_figures_stand_in_one_row() {
        let also = ["x=2", "x=4", "x=8"].map(str::to_owned).to_vec();
        let best = Best { also, ..best(vec![1.0]) };
        let swept = Swept {
            objectives: vec![("cost_usd".to_owned(), false)],
            front: vec![best],
            figures: vec![vec![1.0]; 5],
            ..Swept::default()
        };
        let text = text(&swept, Ink::Plain);
        for words in ["x=2; x=4; 1 more", "Of 5 points with a policy no other one beats 4 in"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
