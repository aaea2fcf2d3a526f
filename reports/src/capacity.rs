//! What capacity costs: price against attainment of the limits, headroom at the peak, what breaks first, and how sure that is.
//!
//! Units: dollars per hour and per million output tokens, requests per second; an attainment is the share of requests that meet every
//! limit. Intervals come from serving with every cost at its low and at its high end. `html` and `markdown` show the same figures.

mod chart;
mod html;
mod markdown;

pub use html::render as html;
pub use markdown::render as markdown;

pub use engine::capacity::{CostSources, Headroom, Load, Minimize, Overload, Point, Sensitivity};
use serde::{Deserialize, Serialize};

use crate::lines::paged;
use crate::quantity::{percent, plain, ratio, share, target, usd};
use crate::rows::{Rows, aligned};

/// Schema of `capacity.json`.
pub const SCHEMA: &str = "skrull-sim/capacity/1";

/// Share of the time below which costs that were measured carry a choice no more.
const MEASURED_LEAST: f64 = 0.5;

/// A capacity report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// `SCHEMA`.
    pub schema: String,
    /// Scenario name.
    pub scenario: String,
    /// Version of the program.
    pub version: String,
    /// The scenario's text and what was laid over it.
    #[serde(default)]
    pub origin: crate::Origin,
    /// What the chosen fleet has least of; dollars per hour where it is empty.
    #[serde(default)]
    pub minimize: String,
    /// The limits, in words.
    pub limits: String,
    /// Share of requests that have to meet every limit.
    pub target_ratio: f64,
    /// Fleets, by price per token.
    pub points: Vec<Point>,
    /// Fleets that could not be tried, with the reason.
    pub left_out: Vec<(String, String)>,
    /// Whether every fleet was served that could be tried.
    pub is_complete: bool,
    /// Index of the fleet within the target that has least of what is asked.
    pub chosen: Option<usize>,
    /// Index of that which is within it at the slow end of its latencies too.
    pub safe: Option<usize>,
    /// Headroom of the chosen fleet.
    pub headroom: Option<Headroom>,
    /// What other prices and loads would change.
    pub sensitivity: Vec<Sensitivity>,
    /// Where figures come from and what was assumed, as sentences.
    pub sources: Vec<String>,
}

impl Capacity {
    /// What the chosen fleet has least of.
    fn minimize(&self) -> Minimize {
        Minimize::named(&self.minimize).unwrap_or_default()
    }

    /// How much of it a fleet has, where the other figures do not say it.
    fn minimized(&self, point: &Point) -> Option<String> {
        let amount = point.minimized;
        match self.minimize() {
            Minimize::UsdPerHour | Minimize::UsdPerMtok => None,
            Minimize::Replicas => Some(format!("{} replicas", ratio(amount))),
            Minimize::EnergyWh => Some(format!("{} Wh", ratio(amount))),
            Minimize::EnergyPerToken => Some(format!("{} J per output token", ratio(amount))),
        }
    }

    /// Whether a fleet meets the target and keeps the load for long.
    fn passes(&self, point: &Point) -> bool {
        point.attainment_ratio >= self.target_ratio && point.overload.is_none()
    }

    /// That the choice rests on costs that nobody measured on such GPUs, and the best fleet whose costs were.
    fn unmeasured(&self, chosen: &Point) -> Option<String> {
        let measured = chosen.costs.measured_ratio.filter(|ratio| *ratio < MEASURED_LEAST)?;
        let is_known = |point: &&Point| point.costs.measured_ratio.is_some_and(|ratio| ratio >= MEASURED_LEAST);
        let known = self.points.iter().filter(|point| self.passes(point)).filter(is_known);
        let best = known.min_by(|a, b| a.minimized.total_cmp(&b.minimized)).map_or_else(String::new, |best| {
            format!(
                " Of fleets with mostly measured costs {} is the best, for {} per hour.",
                plain(&best.name),
                usd(best.usd_per_hour)
            )
        });
        Some(format!(
            "Its costs are no measurements of such GPUs: {} of the time is measured ({}).{best}",
            percent(measured),
            plain(&chosen.costs.words)
        ))
    }

    /// The answer in a few sentences.
    pub fn lead(&self) -> Vec<String> {
        let target = target(self.target_ratio);
        let Some(chosen) = self.chosen.and_then(|index| self.points.get(index)) else {
            let best = self.points.iter().max_by(|a, b| {
                let load = b.overload.is_some().cmp(&a.overload.is_some());
                load.then(a.attainment_ratio.total_cmp(&b.attainment_ratio))
            });
            let best = best.map_or_else(String::new, |best| {
                let but = best.overload.map_or_else(String::new, |overload| format!(", but {}", overload.words()));
                let met = share(best.attainment_ratio, self.target_ratio);
                format!("; {} comes closest with {met}{but}", plain(&best.name))
            });
            let none = format!("No fleet that was tried meets {} for {target} of requests{best}.", self.limits);
            return [none].into_iter().chain(self.untried()).chain(self.stopped()).collect();
        };
        let mut all = vec![format!(
            "{} {}{} {} for {target} of requests: {}{} per hour, {} per million output tokens, {} within the limits.",
            plain(&chosen.name),
            self.minimize().name(),
            if self.minimize() == Minimize::UsdPerHour { " that meets" } else { ", of those that meet" },
            self.limits,
            self.minimized(chosen).map_or_else(String::new, |amount| amount + ", "),
            usd(chosen.usd_per_hour),
            usd(chosen.usd_per_mtok),
            share(chosen.attainment_ratio, self.target_ratio)
        )];
        all.extend(self.stopped());
        all.extend(self.unmeasured(chosen));
        all.push(match self.safe.and_then(|index| self.points.get(index)) {
            Some(safe) if safe.name == chosen.name => "It does so at the slow end of its latencies too.".to_owned(),
            Some(safe) => format!(
                "At the slow end of its latencies it does not. {} does, for {} per hour.",
                plain(&safe.name),
                usd(safe.usd_per_hour)
            ),
            None => "At the slow end of latencies neither it nor any other fleet that was tried does.".to_owned(),
        });
        if let Some(headroom) = &self.headroom {
            all.push(headroom_words(headroom));
            all.push(breaks_words(headroom, self.target_ratio));
        }
        all
    }

    /// Why there is no fleet at all to compare.
    fn untried(&self) -> Option<String> {
        let (name, why) = self.left_out.first().filter(|_| self.points.is_empty())?;
        let n = self.left_out.len();
        Some(format!("None of {n} fleets could be tried; the first one, {}: {}.", plain(name), plain(why)))
    }

    /// What a question that was stopped leaves open.
    fn stopped(&self) -> Option<String> {
        let open =
            "The search was stopped: a fleet that was not served may be better, or the only one within the limits.";
        (!self.is_complete).then(|| open.to_owned())
    }
}

/// The headroom in a sentence.
pub fn headroom_words(headroom: &Headroom) -> String {
    let at = format!("At the peak ({}, {:.2} requests per second)", headroom.window, headroom.requests_per_s);
    match headroom.fails {
        _ if headroom.meets <= 0.0 => format!("{at} it is beyond its limits at every load that was tried."),
        Some(fails) => format!(
            "{at} it keeps the limits up to {} times the load. At {} times it breaks one.",
            ratio(headroom.meets),
            ratio(fails)
        ),
        None => format!("{at} it keeps the limits at {} times the load. More was not tried.", ratio(headroom.meets)),
    }
}

/// What breaks first, and how many requests then meet every limit: one limit alone may still be met by more than the target asks.
fn breaks_words(headroom: &Headroom, target_ratio: f64) -> String {
    let load = headroom.loads.iter().find(|load| Some(load.factor) == headroom.fails);
    // A load that is too much for full batches breaks no limit yet.
    let load = load.filter(|load| load.attainment_ratio < target_ratio);
    let below = load.map_or_else(String::new, |load| {
        format!(
            " At {} times the load {} of requests meet every limit, and the target is {}.",
            ratio(load.factor),
            share(load.attainment_ratio, target_ratio),
            target(target_ratio)
        )
    });
    format!("What breaks first: {}.{below}", headroom.breaks)
}

/// Fleets as a table.
fn fleets(capacity: &Capacity) -> Rows {
    let headings = ["fleet", "GPUs", "$ per hour", "$ per Mtok", "within limits", "from", "to", "measured", ""];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    let of_dollars = matches!(capacity.minimize(), Minimize::UsdPerHour);
    let best = if of_dollars { "cheapest" } else { "best" };
    for (index, point) in capacity.points.iter().enumerate() {
        let mark = match () {
            () if capacity.chosen == Some(index) => format!("{best} within the target"),
            () if capacity.safe == Some(index) => format!("{best} at the slow end"),
            () if point.overload.is_some() => "too slow for the load".to_owned(),
            () if point.is_on_front => "front".to_owned(),
            () => String::new(),
        };
        let amount = capacity.minimized(point).unwrap_or_default();
        let mark = if amount.is_empty() || mark.is_empty() { amount + &mark } else { format!("{amount}, {mark}") };
        let [low, high] = point.attainment_interval;
        rows.push(vec![
            plain(&point.name),
            point.n_gpus.to_string(),
            ratio(point.usd_per_hour),
            ratio(point.usd_per_mtok),
            share(point.attainment_ratio, capacity.target_ratio),
            share(low, capacity.target_ratio),
            share(high, capacity.target_ratio),
            point.costs.measured_ratio.map_or_else(|| "-".to_owned(), percent),
            mark,
        ]);
    }
    rows
}

/// Sensitivity as a table.
fn changes(capacity: &Capacity) -> Rows {
    let mut rows =
        vec![["change", "fleet then", "$ per Mtok", "today's choice within limits"].map(str::to_owned).to_vec()];
    for row in &capacity.sensitivity {
        rows.push(vec![
            plain(&row.change),
            if row.cheapest.is_empty() { "none that was tried".to_owned() } else { plain(&row.cheapest) },
            row.usd_per_mtok.map_or_else(|| "-".to_owned(), ratio),
            row.attainment_ratio.map_or_else(|| "-".to_owned(), |met| share(met, capacity.target_ratio)),
        ]);
    }
    rows
}

/// Fleets that were left out are named on a terminal up to so many.
const LEFT_OUT_SHOWN: usize = 5;

/// The answer for a terminal: sentences, the table of fleets, and why others are not in it.
pub fn text(capacity: &Capacity) -> String {
    let (shown, more) = capacity.left_out.split_at(capacity.left_out.len().min(LEFT_OUT_SHOWN));
    let mut said: Vec<String> =
        shown.iter().map(|(name, why)| format!("left out: {}: {}", plain(name), plain(why))).collect();
    if !more.is_empty() {
        said.push(format!("left out: {} fleets more, which the report names", more.len()));
    }
    said.extend(capacity.sources.iter().map(|source| format!("note: {source}")));
    format!("{}\n{}\n{}", paged(&capacity.lead().join("\n")), aligned(&fleets(capacity)), paged(&said.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two fleets of one type; the second one is chosen, and takes half as much again.
    pub(super) fn example() -> Capacity {
        let point = |n: u64, attainment_ratio: f64, low: f64| Point {
            name: format!("{n} x <gpu>"),
            gpu: "<gpu>".to_owned(),
            n_gpus: n,
            usd_per_hour: 2.0 * hw::real(n),
            usd_per_mtok: 0.5 * hw::real(n),
            usd_per_mtok_interval: [0.5 * hw::real(n), 0.6 * hw::real(n)],
            attainment_ratio,
            attainment_interval: [low, 1.0],
            overload: None,
            costs: CostSources { words: "h100-sxm".to_owned(), measured_ratio: Some(0.9) },
            minimized: 2.0 * hw::real(n),
            is_on_front: true,
        };
        let load = |factor, attainment_ratio: f64| Load {
            factor,
            attainment_ratio,
            attainment_interval: [attainment_ratio - 0.05, 1.0],
            overload: None,
        };
        Capacity {
            schema: SCHEMA.to_owned(),
            scenario: "example".to_owned(),
            limits: "TTFT 1 s".to_owned(),
            target_ratio: 0.99,
            points: vec![point(1, 0.6, 0.5), point(2, 0.995, 0.97)],
            is_complete: true,
            chosen: Some(1),
            headroom: Some(Headroom {
                window: "the whole trace".to_owned(),
                from_s: 0.0,
                to_s: 60.0,
                requests_per_s: 5.0,
                meets: 1.5,
                fails: Some(1.53),
                loads: vec![load(1.0, 0.995), load(1.5, 0.99), load(1.53, 0.98)],
                breaks: "the limit of TTFT: requests wait for a place".to_owned(),
            }),
            sensitivity: vec![Sensitivity { change: "load +20 %".to_owned(), ..Sensitivity::default() }],
            sources: vec!["cost model: roofline (datasheet)".to_owned()],
            ..Capacity::default()
        }
    }

    #[test]
    fn the_answer_names_the_fleet_its_certainty_and_its_headroom() {
        let lead = example().lead().join(" ");
        for words in [
            "2 x <gpu> is the cheapest",
            "99.5 % within the limits",
            "neither it nor any other",
            "up to 1.50 times the load. At 1.53 times",
            "wait for a place. At 1.53 times the load 98.0 % of requests meet every limit, and the target is 99.0 %.",
        ] {
            assert!(lead.contains(words), "{words}: {lead}");
        }
        // What is asked for and stands in no column is said.
        let mut least = example();
        (least.minimize, least.points[1].minimized) = ("energy_wh".to_owned(), 7.5);
        let lead = least.lead().join(" ");
        assert!(
            lead.starts_with(
                "2 x <gpu> is the fleet that draws least, of those that meet TTFT 1 s for 99.0 % of requests: 7.50 Wh, "
            ),
            "{lead}"
        );
        assert!(text(&least).contains("7.50 Wh, best within the target"), "{}", text(&least));
        // A fleet that just misses the target does not read as one that meets it.
        let mut near = example();
        near.points[0].attainment_ratio = 0.989_56;
        assert!(
            text(&near).contains("98.96 %") && markdown(&near).contains("98.96 %") && html(&near).contains("98.96 %")
        );
        let nothing = Capacity { chosen: None, ..example() };
        assert!(nothing.lead()[0].contains("No fleet") && nothing.lead()[0].contains("2 x <gpu> comes closest"));
        assert!(!lead.contains("could be tried"));
        // Where nothing could be tried, the reason is part of the answer, and of the table.
        let left_out: Vec<(String, String)> = (1..8).map(|n| (format!("{n} x <gpu>"), format!("reason {n}"))).collect();
        let none = Capacity { chosen: None, points: Vec::new(), left_out, ..example() };
        assert_eq!(none.lead()[1], "None of 7 fleets could be tried; the first one, 1 x <gpu>: reason 1.");
        assert!(text(&none).contains("left out: 5 x <gpu>: reason 5\nleft out: 2 fleets more"), "{}", text(&none));
        assert!(!text(&example()).contains("left out"));
        let stopped = Capacity { is_complete: false, ..example() };
        assert!(stopped.lead()[1].contains("was stopped") && !lead.contains("was stopped"));
    }

    #[test]
    fn costs_that_nobody_measured_and_a_load_that_is_too_much_are_named() {
        let mut found = example();
        assert!(text(&found).contains("90.0 %") && !found.lead().join(" ").contains("no measurements"));
        found.points[1].costs = CostSources { words: "roofline (datasheet)".to_owned(), measured_ratio: Some(0.0) };
        let lead = found.lead().join(" ");
        assert!(
            lead.contains(
                "Its costs are no measurements of such GPUs: 0.0 % of the time is measured (roofline (datasheet))."
            ),
            "{lead}"
        );
        // One that meets the target with measured costs is named beside it.
        found.points[0].attainment_ratio = 0.995;
        assert!(
            found
                .lead()
                .join(" ")
                .contains("Of fleets with mostly measured costs 1 x <gpu> is the best, for $\u{a0}2.00 per hour."),
            "{:?}",
            found.lead()
        );
        // Unless it does not keep the load, which the table says.
        found.points[0].overload = Overload::of(20.0, 9.0);
        let (lead, shown) = (found.lead().join(" "), text(&found));
        assert!(!lead.contains("mostly measured") && shown.contains("too slow for the load"), "{lead} {shown}");
        found.chosen = None;
        found.points[1].overload = Overload::of(20.0, 18.0);
        let lead = found.lead().join(" ");
        assert!(lead.contains("but 20.00 requests per second come, and full batches serve 18.00 at most"), "{lead}");
    }

    #[test]
    fn both_forms_have_every_figure_and_no_markup_of_a_name() {
        let (page, text) = (html(&example()), markdown(&example()));
        for figure in ["99.5 %", "1.00", "load +20 %", "1.53", "roofline"] {
            assert!(page.contains(figure) && text.contains(figure), "{figure}");
        }
        assert!(!page.contains("<gpu>") && page.contains("&lt;gpu&gt;"));
        assert!(!page.contains("NaN") && !page.contains("http-equiv=\"refresh\"") && page.matches("<svg").count() == 2);
    }
}
