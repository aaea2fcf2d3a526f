//! Measured figures of scenarios: predicted over measured, whatever the kind and the metric.
//!
//! A table names scenarios, what is set in them, and what was measured of a metric. So anybody's own runs are scored as the published ones are. An error is
//! |predicted / measured − 1|, a bias the median of predicted / measured less 1. Units are those of the metrics.

pub(crate) mod text;
pub(crate) mod written;

use std::collections::BTreeMap;

use crate::errors::{Bias, Figure, GroupErrors, holds};
use crate::table::{Cells, Fault, Table, has_columns, header, likest};

/// Columns that tell such a table.
pub const NEEDED: [&str; 3] = ["scenario", "metric", "measured"];
/// Columns that it may have besides.
pub const OPTIONAL: [&str; 4] = ["policy", "set", "group", "source"];

/// A measured figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Line of the table.
    pub line: u64,
    /// A file in the table's folder, or the name of a shipped scenario.
    pub scenario: String,
    /// What is set in it, as `--set` takes it.
    pub set: Vec<String>,
    /// Whose figure it is; the first policy's where it is empty.
    pub policy: String,
    /// Name of the metric.
    pub metric: String,
    /// What was measured.
    pub measured: f64,
    /// What it has in common with others.
    pub group: String,
    /// Who measured it.
    pub source: String,
}

/// What came of a policy of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Its name.
    pub policy: String,
    /// Why it has none.
    pub refused: Option<String>,
    /// Metrics by their names.
    pub metrics: BTreeMap<String, f64>,
    /// Intervals of 90 %, where there are some.
    pub intervals: BTreeMap<String, [f64; 2]>,
}

/// Why a row has no prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFigure {
    /// The scenario cannot be played; with everything that is wrong with it.
    #[error("{0}")]
    NotPlayed(String),
    /// The policy has no result.
    #[error("`{policy}`: {why}")]
    Refused {
        /// Its name.
        policy: String,
        /// Why.
        why: String,
    },
    /// Nobody of that name.
    #[error("no policy `{policy}`; there are {known}")]
    NoPolicy {
        /// What was asked.
        policy: String,
        /// Names that there are.
        known: String,
    },
    /// No metric of that name.
    #[error("`{policy}` has no metric `{metric}`{near}")]
    NoMetric {
        /// Whose.
        policy: String,
        /// What was asked.
        metric: String,
        /// The one that may be meant, in words.
        near: String,
    },
}

/// A scenario that was played.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What came of every policy.
    pub figures: Vec<Figures>,
    /// What `run` warns of, a line each.
    pub warnings: Vec<String>,
}

/// A scenario that was played, or why it cannot be.
pub type Played = Result<Outcome, NoFigure>;

/// Plays a scenario with what is set in it.
pub type Play<'p> = dyn Fn(&str, &[String]) -> Played + 'p;

/// What is predicted of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// The figure.
    pub value: f64,
    /// Its interval, where it has one.
    pub interval: Option<[f64; 2]>,
}

/// A row with its prediction, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The row.
    pub row: Row,
    /// What came of it.
    pub outcome: Result<Predicted, NoFigure>,
    /// What `run` warns of, and which of several policies is taken.
    pub warnings: Vec<String>,
}

impl Scored {
    /// Predicted over measured.
    pub fn ratio(&self) -> Option<f64> {
        self.outcome.as_ref().ok().map(|found| found.value / self.row.measured)
    }

    /// Whether the measurement lies in the interval; `None` where there is none.
    pub fn is_inside(&self) -> Option<bool> {
        let [low, high] = self.outcome.as_ref().ok()?.interval?;
        Some(holds([low, high], self.row.measured))
    }
}

/// Everything about a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Every row in the table's order.
    pub rows: Vec<Scored>,
    /// All together.
    pub all: GroupErrors,
    /// By metric, group and source.
    pub groups: Vec<(&'static str, Vec<GroupErrors>)>,
}

/// Rows of a text; `None` where it is another table.
///
/// # Errors
/// Every fault of the text.
pub fn read(text: &str) -> Option<Result<Vec<Row>, Vec<Fault>>> {
    if !has_columns(text, &NEEDED) {
        return None;
    }
    let known = || NEEDED.iter().chain(&OPTIONAL);
    let unknown = header(text).into_iter().filter(|name| !known().any(|column| column == name));
    let faults: Vec<Fault> = unknown
        .map(|name| {
            let names: Vec<&str> = known().copied().collect();
            let what = format!("no such column is known; there are {}", names.join(", "));
            Fault { line: 1, column: name.to_owned(), what }
        })
        .collect();
    if !faults.is_empty() {
        return Some(Err(faults));
    }
    Some(Table::read(text, &NEEDED).and_then(|table| table.read_rows(row)))
}

fn row(cells: &mut Cells<'_>) -> Row {
    for column in ["scenario", "metric"] {
        if cells.word(column).is_empty() {
            cells.fault(column, "must be stated".to_owned());
        }
    }
    if cells.word("measured").is_empty() {
        cells.fault("measured", "must be stated".to_owned());
    }
    let word = |column: &str| cells.word(column).to_owned();
    let set = cells.word("set").split(';').map(str::trim).filter(|set| !set.is_empty()).map(str::to_owned).collect();
    Row {
        line: cells.line,
        scenario: word("scenario"),
        set,
        policy: word("policy"),
        metric: word("metric"),
        measured: cells.positive_number("measured").unwrap_or(1.0),
        group: word("group"),
        source: word("source"),
    }
}

/// Plays what the rows name, each scenario with its settings once, and sets it beside what was measured. `done` is called behind every row.
pub fn score(rows: Vec<Row>, play: &Play<'_>, done: &dyn Fn()) -> Score {
    let mut played: Vec<(String, Vec<String>, Played)> = Vec::new();
    let mut scored = Vec::with_capacity(rows.len());
    for row in rows {
        let known = played.iter().position(|(scenario, set, _)| *scenario == row.scenario && *set == row.set);
        let at = known.unwrap_or_else(|| {
            played.push((row.scenario.clone(), row.set.clone(), play(&row.scenario, &row.set)));
            played.len() - 1
        });
        let found = played[at].2.as_ref().map_err(Clone::clone);
        let mut warnings = found.as_ref().map_or_else(|_| Vec::new(), |found| found.warnings.clone());
        warnings.extend(found.as_ref().ok().and_then(|found| several(&row, &found.figures)));
        let outcome = found.and_then(|found| predicted(&row, &found.figures));
        scored.push(Scored { row, outcome, warnings });
        done();
    }
    let all: Vec<&Scored> = scored.iter().collect();
    let groups = vec![
        ("metric", grouped(&all, |row| &row.metric)),
        ("group", grouped(&all, |row| &row.group)),
        ("source", grouped(&all, |row| &row.source)),
    ];
    Score { all: group_of("all", &all), groups, rows: scored }
}

/// A warning where a row names no policy and there are several.
fn several(row: &Row, found: &[Figures]) -> Option<String> {
    let (first, others) = found.split_first().filter(|(_, others)| row.policy.is_empty() && !others.is_empty())?;
    let others: Vec<String> = others.iter().map(|of| format!("`{}`", of.policy)).collect();
    Some(format!("warning: no `policy` is named: `{}` is taken, and there are {}", first.policy, others.join(", ")))
}

/// The figure that a row asks for.
fn predicted(row: &Row, found: &[Figures]) -> Result<Predicted, NoFigure> {
    let figures = if row.policy.is_empty() { found.first() } else { found.iter().find(|of| of.policy == row.policy) };
    let Some(figures) = figures else {
        let names: Vec<&str> = found.iter().map(|of| of.policy.as_str()).collect();
        return Err(NoFigure::NoPolicy { policy: row.policy.clone(), known: names.join(", ") });
    };
    if let Some(why) = &figures.refused {
        return Err(NoFigure::Refused { policy: figures.policy.clone(), why: why.clone() });
    }
    let value = figures.metrics.get(&row.metric).copied().filter(|value| value.is_finite());
    let value = value.ok_or_else(|| no_metric(&row.metric, figures))?;
    Ok(Predicted { value, interval: figures.intervals.get(&row.metric).copied() })
}

fn no_metric(metric: &str, figures: &Figures) -> NoFigure {
    let near = likest(metric, figures.metrics.keys().map(String::as_str))
        .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
    NoFigure::NoMetric { policy: figures.policy.clone(), metric: metric.to_owned(), near }
}

/// Errors by what rows have in common, in the order in which it comes; rows that say nothing of it are in no group.
fn grouped(rows: &[&Scored], of: impl Fn(&Row) -> &String) -> Vec<GroupErrors> {
    let mut values: Vec<&String> = Vec::new();
    for value in rows.iter().map(|scored| of(&scored.row)).filter(|value| !value.is_empty()) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    let group = |value: &String| {
        let those: Vec<&Scored> = rows.iter().copied().filter(|scored| of(&scored.row) == value).collect();
        group_of(value, &those)
    };
    values.into_iter().map(group).collect()
}

fn group_of(value: &str, rows: &[&Scored]) -> GroupErrors {
    let ratios: Vec<f64> = rows.iter().filter_map(|scored| scored.ratio()).collect();
    let inside: Vec<bool> = rows.iter().filter_map(|scored| scored.is_inside()).collect();
    let figures = Figure::of(&ratios, Bias::Median, &inside);
    GroupErrors { value: value.to_owned(), n_rows: rows.len(), n_predicted: ratios.len(), figures }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Errors;

    fn played(scenario: &str, set: &[String]) -> Played {
        if scenario == "absent.toml" {
            return Err(NoFigure::NotPlayed("there is no such file".to_owned()));
        }
        let factor = if set.is_empty() { 1.0 } else { 2.0 };
        let metrics = BTreeMap::from([("step_s".to_owned(), factor), ("tokens_per_s".to_owned(), 8.0 / factor)]);
        let intervals = BTreeMap::from([("step_s".to_owned(), [0.9 * factor, 1.1 * factor])]);
        let second = Figures { policy: "b".to_owned(), refused: Some("no memory".to_owned()), ..Figures::default() };
        let first = Figures { policy: "a".to_owned(), refused: None, metrics, intervals };
        let warnings = if set.is_empty() { Vec::new() } else { vec!["warning[S017]: `r` changes nothing".to_owned()] };
        Ok(Outcome { figures: vec![first, second], warnings })
    }

    #[test]
    fn figures_stand_beside_measurements_and_what_has_none_says_why() {
        let table = "scenario,policy,set,metric,measured,group\n\
                     x.toml,,,step_s,1.25,one\n\
                     x.toml,a,p.q=1; r=2,step_s,2.0,two\n\
                     x.toml,,,tokens_per_s,8,one\n\
                     x.toml,b,,step_s,1,two\n\
                     x.toml,c,,step_s,1,\n\
                     x.toml,,,steps_s,1,\n\
                     absent.toml,,,step_s,1,\n";
        let plays = std::cell::Cell::new(0);
        let play = |scenario: &str, set: &[String]| {
            plays.set(plays.get() + 1);
            played(scenario, set)
        };
        let found = score(read(table).expect("known").expect("good"), &play, &|| {});
        let ratios: Vec<Option<f64>> = found.rows.iter().map(Scored::ratio).collect();
        assert_eq!(ratios, [Some(0.8), Some(1.0), Some(1.0), None, None, None, None]);
        let inside: Vec<Option<bool>> = found.rows.iter().map(Scored::is_inside).collect();
        assert_eq!(inside[..3], [Some(false), Some(true), None]);
        let why = |index: usize| found.rows[index].outcome.clone().expect_err("no prediction").to_string();
        assert!(why(3).contains("no memory") && why(4).contains("there are a, b"), "{} {}", why(3), why(4));
        assert!(why(5).contains("did you mean `step_s`?") && why(6).contains("no such file"), "{}", why(5));
        let warned = |what: &str| -> Vec<u64> {
            let has = |scored: &&Scored| scored.warnings.iter().any(|warning| warning.contains(what));
            found.rows.iter().filter(has).map(|scored| scored.row.line).collect()
        };
        assert_eq!(warned("S017"), [3], "only what is set there is warned of");
        // The first policy is taken where none is named, and one that is named is no guess.
        assert_eq!(warned("no `policy` is named: `a` is taken, and there are `b`"), [2, 4, 7]);
        assert_eq!(found.rows.iter().map(|scored| scored.warnings.len()).sum::<usize>(), 4);
        // x.toml plain, x.toml with two settings, and the one that is not there.
        assert_eq!(plays.get(), 3);
        let Errors { mean, median, worst, bias, .. } = found.all.figures.errors.expect("three have a prediction");
        assert!((mean - 0.2 / 3.0).abs() < 1e-12 && median == 0.0 && (worst - 0.2).abs() < 1e-12 && bias == 0.0);
        assert_eq!((found.all.n_rows, found.all.n_predicted, found.all.figures.covered), (7, 3, Some(0.5)));
        let (by, groups) = &found.groups[1];
        let counts: Vec<(&str, usize)> = groups.iter().map(|group| (group.value.as_str(), group.n_rows)).collect();
        assert_eq!((*by, counts), ("group", vec![("one", 2), ("two", 2)]));
    }

    #[test]
    fn faults_of_a_table_are_named_by_line_and_column() {
        let faults = |table: &str| read(table).expect("known").expect_err("faults");
        let found = faults("scenario,metric,measured,sets\nx.toml,step_s,1,\n");
        assert!(found[0].column == "sets" && found[0].what.contains("policy, set, group, source"), "{found:?}");
        let found = faults("scenario,metric,measured\n,step_s,1\nx.toml,,-1\nx.toml,step_s,\n");
        let places: Vec<(u64, &str)> = found.iter().map(|fault| (fault.line, fault.column.as_str())).collect();
        assert_eq!(places, [(2, "scenario"), (3, "metric"), (3, "measured"), (4, "measured")]);
        assert!(read("row,model,step_s\n1,a,2\n").is_none());
    }
}
