//! A sweep file: the scenario, the axes, how points are taken, and what the front is of.

use input::diagnostic::{Code, Finding};
use input::reader::{Reader, Section, items};

use crate::axis::{self, Axis};
use crate::condition::Condition;
use crate::sobol::AXES_MAX;

/// Points between two syncs, where the file does not say.
const CHUNK: usize = 256;

/// How points are taken from the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// All of them.
    Grid,
    /// Some at random.
    Random {
        /// How many.
        points: u64,
        /// Seed of the draws.
        seed: u64,
    },
    /// Points that fill the axes evenly.
    Sobol {
        /// How many.
        points: u64,
    },
}

/// A figure that is sought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Metric of a result.
    pub metric: String,
    /// Whether more is better.
    pub is_most: bool,
}

/// A sweep file that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Scenario: a path, or the name of a shipped one.
    pub scenario: String,
    /// Name of the folder of results; empty for that of the file.
    pub name: String,
    /// Axes.
    pub axes: Vec<Axis>,
    /// What has to hold between them.
    pub conditions: Vec<Condition>,
    /// How points are taken.
    pub sample: Sample,
    /// Seeds that every point is run with; 0 for the scenario's alone.
    pub n_seeds: u64,
    /// First of them.
    pub first_seed: u64,
    /// Points between two syncs.
    pub chunk: usize,
    /// What the front is of.
    pub objectives: Vec<Objective>,
}

impl Sweep {
    /// Seeds of every point.
    pub fn seeds(&self) -> Vec<Option<u64>> {
        match self.n_seeds {
            0 => vec![None],
            n => (self.first_seed..self.first_seed + n).map(Some).collect(),
        }
    }

    /// What is wrong with overrides of all points where every point sets a key itself.
    pub fn given_twice(&self, overrides: &[String]) -> Option<String> {
        let keys = overrides.iter().filter_map(|set| Some(set.split_once('=')?.0.trim()));
        let owner = |key: &str| match key {
            _ if self.axes.iter().any(|axis| axis.keys.iter().any(|of| of == key)) => Some("an axis gives it"),
            "seed" if self.n_seeds > 0 => Some("`seeds` gives it"),
            _ => None,
        };
        let (key, owner) = keys.into_iter().find_map(|key| Some((key, owner(key)?)))?;
        Some(format!(
            "`{key}` of the command line would change nothing: {owner}\n  = change the sweep file, or leave the key out of one of them"
        ))
    }
}

/// Reads a sweep file; `None` with errors among the findings.
pub fn read(text: &str, findings: &mut Vec<Finding>) -> Option<Sweep> {
    let value = match toml_span::parse(text) {
        Ok(value) => value,
        Err(error) => {
            let at = error.span.start..error.span.end.max(error.span.start + 1);
            findings.push(Finding::error(Code::NotToml, Some(at), format!("not valid TOML: {error}")));
            return None;
        }
    };
    let mut reader = Reader::new(value, findings);
    // Every section of a scenario would be a finding of its own.
    if !reader.has("scenario") && !reader.has("axis") && ["kind", "model"].iter().any(|key| reader.has(key)) {
        let help =
            "a sweep names it as `scenario`, beside `[[axis]]` or `seeds`; `skrull-sim compare --vary` needs no file";
        reader.find(Finding::error(Code::WrongAxis, None, "this is a scenario, and no sweep of one").help(help));
        return None;
    }
    let (mut axes, is_given) = (Vec::new(), reader.has("axis"));
    reader.each_table("axis", &mut |table| axes.extend(axis::read(table)));
    let objectives = objectives(reader.section("front"));
    let mut top = reader.top(&["axis", "front"]);
    let sweep = of_top(&mut top, axes, objectives);
    if !is_given && sweep.n_seeds == 0 {
        top.refuse_all(Code::WrongAxis, "nothing is swept", "write an `[[axis]]` with `key` and `values`, or `seeds`");
    }
    top.finish();
    (reader.n_errors() == 0).then_some(sweep)
}

/// Keys before the sections.
fn of_top(top: &mut Section<'_>, axes: Vec<Axis>, objectives: Vec<Objective>) -> Sweep {
    let scenario = top.text("scenario").map_or_else(String::new, |(text, _)| text);
    top.missing("scenario", "the scenario that is swept: a path beside this file, or the name of a shipped one");
    let name = if top.has("name") { top.name().unwrap_or_default() } else { String::new() };
    let sample = sample(top, axes.len());
    let n_seeds = top.count("seeds", Some(0), 0..=1_000_000).0;
    if n_seeds == 0 {
        top.idle(&["first_seed"], "`seeds`");
    }
    let first_seed = top.count("first_seed", Some(0), 0..=u64::MAX >> 2).0;
    let chunk = top.size("chunk", CHUNK, 1..=1_000_000);
    let conditions = conditions(top, &axes);
    let keys: Vec<&String> = axes.iter().flat_map(|axis| &axis.keys).collect();
    if let Some(twice) = keys.iter().enumerate().find(|(index, key)| keys[..*index].contains(key)) {
        let what = format!("two axes change `{}`", twice.1);
        top.refuse_all(Code::WrongAxis, what, "keys that change together are `keys` of one axis");
    }
    Sweep { scenario, name, axes, conditions, sample, n_seeds, first_seed, chunk, objectives }
}

/// `sample`, `points` and `seed`.
fn sample(top: &mut Section<'_>, n_axes: usize) -> Sample {
    let word = top.word("sample", 0, &["grid", "random", "sobol"]);
    if word == 0 {
        top.idle(&["points"], "`sample = \"random\"` or `\"sobol\"`");
    }
    if word != 1 {
        top.idle(&["seed"], "`sample = \"random\"`; seeds of the scenario are `seeds`");
    }
    let points = top.count("points", (word == 0).then_some(1), 1..=u64::from(u32::MAX) / 1000).0;
    let seed = top.count("seed", Some(0), 0..=u64::MAX >> 1).0;
    if word == 2 && n_axes > AXES_MAX {
        let what = format!("Sobol' points of {n_axes} axes");
        top.refuse_all(Code::WrongAxis, what, format!("{AXES_MAX} axes at most; `sample = \"random\"` takes any"));
    }
    match word {
        0 => Sample::Grid,
        1 => Sample::Random { points, seed },
        _ => Sample::Sobol { points },
    }
}

/// `where`: a list of comparisons.
fn conditions(top: &mut Section<'_>, axes: &[Axis]) -> Vec<Condition> {
    let Some((value, at)) = top.take("where") else { return Vec::new() };
    let help = "write `where = [\"parallel.tp * parallel.pp <= 8\"]` with keys of axes, numbers and 'words'";
    let Some(texts) = items(&value, |item| item.as_str().map(str::to_owned)) else {
        top.refuse(Code::WrongAxis, at, "`where` is no list of comparisons", help);
        return Vec::new();
    };
    let keys: Vec<&str> = axes.iter().flat_map(|axis| axis.keys.iter().map(String::as_str)).collect();
    let mut found = Vec::new();
    for text in texts {
        match Condition::parse(&text, &keys) {
            Ok(condition) => found.push(condition),
            Err(why) => top.refuse(Code::WrongAxis, at.clone(), format!("a condition cannot be read: {why}"), help),
        }
    }
    found
}

/// `[front]`: metrics of which the least or the most is sought.
fn objectives(mut section: Section<'_>) -> Vec<Objective> {
    let mut found = Vec::new();
    for (key, is_most) in [("least", false), ("most", true)] {
        let Some((value, at)) = section.take(key) else { continue };
        match items(&value, |item| item.as_str().map(str::to_owned)) {
            Some(names) => found.extend(names.into_iter().map(|metric| Objective { metric, is_most })),
            None => {
                let help = "write `least = [\"iteration_time_s\"]`; docs/output.md has every metric";
                section.refuse(Code::WrongAxis, at, format!("`front.{key}` is no list of metrics"), help);
            }
        }
    }
    section.finish();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::points;

    fn sweep(text: &str) -> Sweep {
        let mut findings = Vec::new();
        read(text, &mut findings).unwrap_or_else(|| panic!("{findings:?}"))
    }

    fn codes(text: &str) -> Vec<Code> {
        let mut findings = Vec::new();
        let _ = read(text, &mut findings);
        findings.into_iter().map(|finding| finding.code).collect()
    }

    fn shown(text: &str) -> Vec<String> {
        let sweep = sweep(text);
        let all: Vec<String> = points(&sweep).expect("points").map(|point| point.overrides().join(" ")).collect();
        all
    }

    #[test]
    fn a_grid_has_every_combination_within_the_conditions() {
        let text = "scenario = \"s\"\nwhere = [\"p.tp * p.pp == 8\"]\n[[axis]]\nkey = \"p.tp\"\nvalues = [1, 2, 4, 8]\n\
                    [[axis]]\nkey = \"p.pp\"\nvalues = [1, 2, 4, 8]\n";
        assert_eq!(shown(text), ["p.tp=1 p.pp=8", "p.tp=2 p.pp=4", "p.tp=4 p.pp=2", "p.tp=8 p.pp=1"]);
    }

    #[test]
    fn keys_of_one_axis_change_together_and_seeds_are_the_fastest() {
        let text = "scenario = \"s\"\nseeds = 2\nfirst_seed = 5\n[[axis]]\nkeys = [\"a.x\", \"a.y\"]\nvalues = [[1, \"u\"], [2, \"v\"]]\n";
        let sweep = sweep(text);
        let all: Vec<_> =
            points(&sweep).expect("points").map(|point| (point.overrides().join(" "), point.seed)).collect();
        let expected = [("a.x=1 a.y=\"u\"", 5), ("a.x=1 a.y=\"u\"", 6), ("a.x=2 a.y=\"v\"", 5), ("a.x=2 a.y=\"v\"", 6)];
        assert_eq!(all, expected.map(|(text, seed)| (text.to_owned(), Some(seed))));
    }

    #[test]
    fn drawn_points_are_different_and_the_same_again() {
        for sample in ["random", "sobol"] {
            let text = format!(
                "scenario = \"s\"\nsample = \"{sample}\"\npoints = 6\n[[axis]]\nkey = \"a.n\"\nfrom = 1\nto = 6\n"
            );
            let mut all = shown(&text);
            assert_eq!(all, shown(&text));
            all.sort();
            assert_eq!(all, (1..=6).map(|n| format!("a.n={n}")).collect::<Vec<_>>(), "{sample}: every number once");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_what_is_idle_too() {
        let axis = "[[axis]]\nkey = \"a.n\"\nvalues = [1]\n";
        assert_eq!(codes(&format!("scenario = \"s\"\nsampel = \"grid\"\n{axis}")), [Code::UnknownKey]);
        assert_eq!(codes(&format!("scenario = \"s\"\npoints = 5\n{axis}")), [Code::NoEffect]);
        assert_eq!(codes(&format!("scenario = \"s\"\nwhere = [\"a.m > 1\"]\n{axis}")), [Code::WrongAxis]);
        assert_eq!(codes(&format!("scenario = \"s\"\n{axis}{axis}")), [Code::WrongAxis]);
        assert_eq!(codes("scenario = \"s\"\n"), [Code::WrongAxis]);
        assert_eq!(codes("scenario = \"s\"\n[[axis]]\nkey = \"a.n\"\nfrom = 5\nto = 1\n"), [Code::WrongAxis]);
        assert!(codes(axis).contains(&Code::MissingKey));
        assert_eq!(
            codes("kind = \"serving\"\n[engine]\ntp = 4\n[trace]\nrequests = 8\n"),
            [Code::WrongAxis],
            "a scenario"
        );
    }
}
