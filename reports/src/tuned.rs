//! The best settings of an engine and a fleet: what was served, what was left out and why, and what another value would change.
//!
//! Units: the sought figure's own, as `Aim` names them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::lines::paged;
use crate::quantity::{counted, duration, percent, plain, significant};
use crate::rows::{Rows, aligned, markdown as table};
use crate::{Aim, aim};

/// Schema of `tuned.json`.
pub const SCHEMA: &str = "skrull-sim/tuned/1";

/// Settings that were looked at, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All of them.
    pub settings: usize,
    /// Do not fit the model or the GPUs.
    pub unfit: usize,
    /// Cannot keep the limits, by a bound in closed form.
    pub late: usize,
    /// Cannot be better than the answer, by a bound in closed form.
    pub outdone: usize,
    /// Were served, and broke a limit.
    pub broke: usize,
    /// Were served within the limits.
    pub within: usize,
}

/// A setting that was served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Values of the keys that are varied.
    pub values: BTreeMap<String, String>,
    /// GPUs of all replicas.
    pub n_gpus: u32,
    /// What is sought; absent where a limit is broken.
    pub figure: Option<f64>,
    /// The limit that is broken; empty where none is.
    pub broken: String,
    /// Figures of its run.
    pub metrics: BTreeMap<String, f64>,
}

/// Settings by what is sought. Of those that break a limit the closest come first; of equal ones the first stays first.
pub fn ordered(mut settings: Vec<Setting>, aim: Aim) -> Vec<Setting> {
    let worst = if aim.is_least() { f64::INFINITY } else { f64::NEG_INFINITY };
    let met = |setting: &Setting| setting.metrics.get("slo_attainment_ratio").copied().unwrap_or(0.0);
    settings.sort_by(|a, b| {
        let figures = aim.order(a.figure.unwrap_or(worst), b.figure.unwrap_or(worst));
        figures.then_with(|| if a.figure.is_none() { met(b).total_cmp(&met(a)) } else { Ordering::Equal })
    });
    settings
}

/// What another value of one key would give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Key.
    pub key: String,
    /// Value of the answer.
    pub from: String,
    /// Another value.
    pub to: String,
    /// What is sought then; absent where it cannot be served within the limits.
    pub figure: Option<f64>,
    /// Why it cannot.
    pub why: String,
}

/// A metric that is sought or limited, and that no result has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// As it is written.
    pub metric: String,
    /// Why no result has it, where that is known; empty where there is no such metric.
    pub why: String,
    /// Those that a result has.
    pub known: Vec<String>,
}

/// The report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// `SCHEMA`.
    pub schema: String,
    /// Scenario name.
    pub scenario: String,
    /// Version of the program.
    pub version: String,
    /// The scenario's text and what was laid over it.
    #[serde(default)]
    pub origin: crate::Origin,
    /// Metric that is sought.
    pub by: String,
    /// What it counts.
    pub aim: Aim,
    /// Metrics that have a limit.
    pub limits: Vec<String>,
    /// What became of the settings.
    pub counts: Counts,
    /// Settings that were served: those within the limits by what is sought, then the others.
    pub settings: Vec<Setting>,
    /// What no setting is better than; absent where none keeps the limits or nothing bounds the others.
    pub bound: Option<f64>,
    /// How much better than the answer another setting may be at most.
    pub gap_ratio: Option<f64>,
    /// Whether the search went on to its end.
    pub is_complete: bool,
    /// The answer's figure with every cost at its low and at its high end.
    pub interval: Option<[f64; 2]>,
    /// The limit that the answer breaks at the slow end of the costs; empty where it keeps all.
    pub broken_when_slow: String,
    /// The metric that nothing has; then the search ended there.
    #[serde(skip)]
    pub unknown: Option<Unknown>,
    /// What other values would change.
    pub changes: Vec<Change>,
    /// What holds for all figures, as sentences.
    pub notes: Vec<String>,
}

impl Tuned {
    /// The answer, where a setting keeps the limits.
    pub fn answer(&self) -> Option<&Setting> {
        self.settings.first().filter(|setting| setting.figure.is_some())
    }

    /// Why there is no answer.
    pub fn failure(&self) -> Option<&'static str> {
        match (self.answer(), self.is_complete) {
            (Some(_), _) => None,
            (None, true) => Some("no setting keeps the limits"),
            (None, false) => Some("stopped before a setting was found that keeps the limits"),
        }
    }

    /// The answer in a few sentences.
    pub fn lead(&self) -> Vec<String> {
        let Counts { settings, unfit, late, outdone, broke, within } = self.counts;
        let left = if self.is_complete { "cannot be better (by bounds in closed form)" } else { "were not looked at" };
        let how_many = format!(
            "{settings} settings: {} were served, {within} within the limits; {unfit} do not fit, {late} cannot keep the limits, {outdone} {left}.",
            broke + within
        );
        let Some(answer) = self.answer() else {
            let none = if self.is_complete {
                "No setting keeps the limits."
            } else {
                "Stopped early: no setting kept the limits so far."
            };
            return [none.to_owned()].into_iter().chain(self.closest()).chain([how_many]).collect();
        };
        let gpus = |setting: &Setting| counted(setting.n_gpus.into(), "GPU");
        let figure = |setting: &Setting| setting.figure.map_or_else(String::new, |value| aim::figure(self.aim, value));
        let ends = self
            .interval
            .map_or_else(String::new, |ends| format!(" ({} over its interval)", aim::ends(self.aim, ends)));
        let mut all = vec![format!("Best: {} on {}, {}{ends}.", words(&answer.values), gpus(answer), figure(answer))];
        all.push(match self.broken_when_slow.as_str() {
            _ if self.limits.is_empty() => "It has no limits to keep.".to_owned(),
            _ if self.interval.is_none() => "It was not served at the slow end of the costs.".to_owned(),
            "" => "It keeps the limits at the slow end of the costs too.".to_owned(),
            why => format!("At the slow end of the costs it does not keep the limits: {}.", plain(why)),
        });
        let is_alike = |setting: &&Setting| setting.figure.is_some_and(|value| is_alike(Some(value), answer.figure));
        let n_alike = self.settings.iter().skip(1).take_while(is_alike).count();
        if n_alike > 0 {
            all.push(format!("As good, and listed later: {n_alike}."));
        }
        if let Some(second) = self.settings.get(1 + n_alike).filter(|setting| setting.figure.is_some()) {
            all.push(format!("Next: {} on {}, {}.", words(&second.values), gpus(second), figure(second)));
        }
        all.push(match self.gap_ratio {
            _ if !self.is_complete => {
                "The search was stopped; a setting that was not looked at may be better.".to_owned()
            }
            Some(gap) if gap > 0.0 => format!("No setting is better by more than {}.", percent(gap)),
            _ => "No setting is better.".to_owned(),
        });
        all.push(how_many);
        all
    }
}

impl Tuned {
    /// Which setting comes closest where none keeps the limits: by the figure that is limited, where one alone is, else the first that was served.
    fn closest(&self) -> Option<String> {
        let first = self.settings.first()?;
        let figure = |setting: &Setting| match self.limits.as_slice() {
            [metric] => setting.metrics.get(metric).copied(),
            _ => None,
        };
        // Of a figure with both limits it is not known which one is nearer.
        let is_least = self.settings.iter().all(|setting| setting.broken.contains("at most"));
        let is_most = self.settings.iter().all(|setting| setting.broken.contains("at least"));
        let known = self.settings.iter().filter_map(|setting| Some((setting, figure(setting)?)));
        let best = match () {
            () if is_least => known.min_by(|a, b| a.1.total_cmp(&b.1)),
            () if is_most => known.reduce(|best, next| if next.1 > best.1 { next } else { best }),
            () => None,
        };
        let (setting, what) = best.map_or((first, "One that was served"), |(setting, _)| (setting, "Closest"));
        let (values, gpus) = (words(&setting.values), counted(setting.n_gpus.into(), "GPU"));
        Some(format!("{what}: {values} on {gpus}: {}.", plain(&setting.broken)))
    }
}

/// Whether two figures differ by no more than is shown.
fn is_alike(a: Option<f64>, b: Option<f64>) -> bool {
    a.zip(b).is_some_and(|(a, b)| (a - b).abs() <= 1e-4 * b.abs())
}

/// Values by key in words.
fn words(values: &BTreeMap<String, String>) -> String {
    values.iter().map(|(key, value)| format!("{key} {}", plain(value))).collect::<Vec<_>>().join(", ")
}

/// At most so many settings that were served, as a table.
fn served(tuned: &Tuned, most: usize) -> Rows {
    let keys: Vec<&String> = tuned.settings.first().map(|setting| setting.values.keys().collect()).unwrap_or_default();
    let mut headings: Vec<String> = keys.iter().map(|key| (*key).clone()).collect();
    headings.extend(["GPUs", "TTFT p99", "TPOT p99", "in limits", "", ""].map(str::to_owned));
    let sought = headings.len() - 2;
    headings[sought].clone_from(&tuned.by);
    let mut rows = vec![headings];
    for setting in tuned.settings.iter().take(most) {
        let metric =
            |key: &str, shown: &dyn Fn(f64) -> String| setting.metrics.get(key).map_or("-".to_owned(), |v| shown(*v));
        let mut row: Vec<String> = keys.iter().map(|key| plain(&setting.values[*key])).collect();
        row.push(setting.n_gpus.to_string());
        row.push(metric("ttft_s.p99", &|value| duration(value, None)));
        row.push(metric("tpot_s.p99", &|value| duration(value, None)));
        row.push(metric("slo_attainment_ratio", &percent));
        row.push(setting.figure.map_or_else(|| "-".to_owned(), significant));
        row.push(plain(&setting.broken));
        rows.push(row);
    }
    rows
}

/// What other values would change, as a table.
fn changed(tuned: &Tuned) -> Rows {
    let mut rows = vec![["key", "from", "to", "change", ""].map(str::to_owned).to_vec()];
    let best = tuned.answer().and_then(|answer| answer.figure).unwrap_or(f64::NAN);
    for change in &tuned.changes {
        let by =
            change.figure.map_or_else(|| "-".to_owned(), |figure| format!("{:+.1} %", (figure / best - 1.0) * 100.0));
        let mut row = vec![change.key.clone(), plain(&change.from), plain(&change.to)];
        row.extend([by, plain(&change.why)]);
        rows.push(row);
    }
    rows
}

/// The report for a terminal, with at most so many settings.
pub fn text(tuned: &Tuned, most: usize) -> String {
    let mut out = paged(&tuned.lead().join("\n"));
    if !tuned.settings.is_empty() {
        let _ = write!(out, "\n{}", aligned(&served(tuned, most)));
    }
    if !tuned.changes.is_empty() {
        let _ = write!(out, "\nAnother value of one key:\n{}", aligned(&changed(tuned)));
    }
    for note in &tuned.notes {
        let _ = write!(out, "\n{}", paged(&format!("note: {note}")).trim_end());
    }
    out.trim_end().to_owned() + "\n"
}

/// The same as Markdown.
pub fn markdown(tuned: &Tuned, most: usize) -> String {
    let mut out = format!("# Settings: {}\n\n{}\n", plain(&tuned.scenario), tuned.lead().join("\n"));
    if !tuned.settings.is_empty() {
        out.push_str("\n## Settings that were served\n\n");
        table(&mut out, &served(tuned, most));
    }
    if !tuned.changes.is_empty() {
        out.push_str("\n## Another value of one key\n\n");
        table(&mut out, &changed(tuned));
    }
    for note in &tuned.notes {
        let _ = writeln!(out, "\n- {note}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_answer_the_next_one_and_what_was_left_out() {
        let setting = |tp: &str, figure: Option<f64>| Setting {
            values: BTreeMap::from([("tp".to_owned(), tp.to_owned())]),
            n_gpus: 8,
            figure,
            broken: if figure.is_some() { String::new() } else { "late".to_owned() },
            metrics: BTreeMap::from([("ttft_s.p99".to_owned(), 0.5)]),
        };
        let counts = Counts { settings: 9, unfit: 1, late: 2, outdone: 3, broke: 1, within: 2 };
        let settings = vec![setting("2", Some(4.0)), setting("4", Some(3.0)), setting("1", None)];
        let change = Change {
            key: "tp".to_owned(),
            from: "2".to_owned(),
            to: "4".to_owned(),
            figure: Some(3.0),
            ..Change::default()
        };
        let tuned = Tuned {
            by: "requests_per_s".to_owned(),
            aim: Aim::RequestsPerS,
            counts,
            settings,
            gap_ratio: Some(0.004),
            is_complete: true,
            changes: vec![change],
            ..Tuned::default()
        };
        let text = text(&tuned, 10);
        for words in [
            "Best: tp 2 on 8 GPUs, 4.000 requests/s",
            "Next: tp 4",
            "by more than 0.4",
            "3 were served, 2 within",
            "-25.0 %",
            "late",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(markdown(&tuned, 1).matches("| 8 |").count() == 1, "as many rows as asked");
        let limited = Tuned { limits: vec!["ttft_s.p99".to_owned()], ..tuned.clone() };
        assert_eq!(limited.lead()[1], "It was not served at the slow end of the costs.");
        let served = Tuned { interval: Some([3.0, 5.0]), ..limited };
        assert!(
            served.lead()[0].contains("(3.000 to 5.000 requests/s over") && served.lead()[1].starts_with("It keeps")
        );
        let none = Tuned { settings: vec![setting("1", None)], ..tuned };
        assert_eq!(none.lead()[0], "No setting keeps the limits.");
        assert_eq!(none.lead()[1], "One that was served: tp 1 on 8 GPUs: late.");
        let late = |tp: &str, seconds: f64| Setting {
            broken: format!("`ttft_s.p99` is {seconds}, at most 1 is allowed"),
            metrics: BTreeMap::from([("ttft_s.p99".to_owned(), seconds)]),
            ..setting(tp, None)
        };
        let limits = vec!["ttft_s.p99".to_owned()];
        let none = Tuned { settings: vec![late("1", 3.0), late("2", 1.5), late("4", 2.0)], limits, ..none };
        assert_eq!(none.lead()[1], "Closest: tp 2 on 8 GPUs: `ttft_s.p99` is 1.5, at most 1 is allowed.");
        let stopped = Tuned { is_complete: false, ..none };
        assert!(stopped.lead()[0].starts_with("Stopped early") && stopped.lead()[2].contains("were not looked at"));
    }
}
