//! The rows of a sweep as a report, and as columns for other programs.

use std::collections::BTreeMap;

use reports::columns::Column;
use reports::swept::rates::{At, Line};
use reports::swept::{Best, FEW, Shown, Swept};
use serde_json::{Map, Value};

use crate::front::{Candidate, candidates, effects, front};
use crate::given::{Objective, Sweep};
use crate::play::Played;
use crate::row::Row;

/// Values of a point in words.
fn words<'a>(point: impl IntoIterator<Item = (&'a String, &'a Value)>) -> String {
    point.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// What the rows say.
pub fn swept(sweep: &Sweep, rows: &[Row], n_points: usize) -> Swept {
    let all = candidates(rows, &sweep.objectives);
    let mut statuses: BTreeMap<&str, usize> = BTreeMap::new();
    rows.iter().for_each(|row| *statuses.entry(&row.status).or_default() += 1);
    let seed = |row: &Row| row.seed.map_or_else(String::new, |seed| format!(" seed={seed}"));
    let failure = |row: &Row| {
        Some((format!("{}{} {}", words(&row.point), seed(row), row.policy).trim().to_owned(), row.why.clone()?))
    };
    let figures_shown = figures_shown(sweep, rows);
    let is_few = rows.len() <= FEW;
    let shown = rows.iter().filter(|_| is_few).map(|row| Shown {
        point: format!("{}{}", words(&row.point), seed(row)),
        policy: row.policy.clone(),
        status: row.status.clone(),
        figures: figures_shown.iter().map(|key| figure(row, key)).collect(),
    });
    Swept {
        shown: shown.collect(),
        figures_shown: figures_shown.clone(),
        scenario: sweep.scenario.clone(),
        n_points,
        statuses: statuses.into_iter().map(|(status, n)| (status.to_owned(), n)).collect(),
        objectives: sweep.objectives.iter().map(|sought| (sought.metric.clone(), sought.is_most)).collect(),
        front: bests(&front(&all, &sweep.objectives).into_iter().map(|index| &all[index]).collect::<Vec<_>>()),
        effects: effects(&all, &sweep.objectives)
            .into_iter()
            .map(|effect| (effect.key, effect.metric, effect.ratio, effect.best.to_string(), effect.mean))
            .collect(),
        figures: all.iter().map(|candidate| candidate.figures.clone()).collect(),
        rates: rates(rows),
        failures: rows.iter().filter_map(failure).collect(),
        ..Swept::default()
    }
}

/// Metrics that a table of points shows where no objective says which; those come first that compare rows of their kind.
const COMPARED: [&str; 9] = [
    "iteration_time_s",
    "tokens_per_s",
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_s.p99",
    "tpot_s.p99",
    "slo_attainment_ratio",
    "cost_usd_per_mtok",
    "makespan_s",
];
/// Of these so many.
const COMPARED_MAX: usize = 5;

/// What a table of points shows: the objectives, or what is usually compared.
fn figures_shown(sweep: &Sweep, rows: &[Row]) -> Vec<String> {
    if !sweep.objectives.is_empty() {
        return sweep.objectives.iter().map(|sought| sought.metric.clone()).collect();
    }
    let has = |key: &&str| rows.iter().any(|row| row.metrics.contains_key(*key));
    COMPARED.into_iter().filter(has).take(COMPARED_MAX).map(str::to_owned).collect()
}

/// A figure of a row; not a number where it has none.
fn figure(row: &Row, key: &str) -> f64 {
    row.metrics.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Candidates of the front, in its order; those with the very same figures are one, and the first names what the others have otherwise.
fn bests(front: &[&Candidate]) -> Vec<Best> {
    let alike = front.chunk_by(|one, other| one.figures == other.figures);
    let best = |alike: &[&Candidate]| {
        let first = alike[0];
        let other = |candidate: &&Candidate| {
            let otherwise = words(candidate.point.iter().filter(|(key, value)| first.point.get(*key) != Some(value)));
            let policy = if candidate.policy == first.policy { "" } else { &candidate.policy };
            format!("{policy} {otherwise}").trim().to_owned()
        };
        Best {
            point: words(&first.point),
            values: first.point.clone(),
            policy: first.policy.clone(),
            figures: first.figures.clone(),
            also: alike[1..].iter().map(other).collect(),
        }
    };
    alike.map(best).collect()
}

/// Why a sweep is not done: it was stopped, or no point gave a result. A part of a sweep may have none, as others may have some.
pub fn nothing_ran(rows: &[Row], played: &Played, is_part: bool) -> Option<String> {
    if !played.is_whole {
        let (n, goes) = (played.lines.len(), if rows.is_empty() { "begins again" } else { "goes on" });
        return Some(format!("stopped with {n} points: the same command {goes}"));
    }
    if is_part {
        return None;
    }
    if rows.is_empty() {
        return Some("no point keeps every condition of `where`".to_owned());
    }
    let is_idle = rows.iter().all(|row| row.status != "ok");
    is_idle.then(|| format!("no point has a result{}", rows.iter().find_map(why).unwrap_or_default()))
}

/// Points of which the scenario is wrong, and what is wrong with the first of them, in a line; nothing where all can be asked.
pub fn wrong(rows: &[Row]) -> String {
    let wrong = || rows.iter().filter(|row| row.status == "wrong");
    match wrong().find_map(why) {
        Some(why) => format!("{} points make the scenario wrong{why}\n", wrong().count()),
        None => String::new(),
    }
}

/// Whether no point can be asked at all.
pub fn is_all_wrong(rows: &[Row]) -> bool {
    !rows.is_empty() && rows.iter().all(|row| row.status == "wrong")
}

/// The point of a row without a result, and the reason.
fn why(row: &Row) -> Option<String> {
    let point: Vec<String> = row.point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    Some(format!(": with {}: {}", point.join(", "), row.why.as_ref()?))
}

/// The key of a serving scenario's rate.
const RATE: &str = "trace.rate_per_s";

/// Policies over the rates of a sweep, each with the values of other axes.
fn rates(rows: &[Row]) -> Vec<Line> {
    let objectives = [("output_tokens_per_s", true), ("ttft_s.p99", false)]
        .map(|(metric, is_most)| Objective { metric: metric.to_owned(), is_most });
    let mut lines: Vec<Line> = Vec::new();
    for candidate in candidates(rows, &objectives) {
        let Some(rate_per_s) = candidate.point.get(RATE).and_then(Value::as_f64) else { continue };
        let others = words(candidate.point.iter().filter(|(key, _)| *key != RATE));
        let name = format!("{} {others}", candidate.policy).trim_end().to_owned();
        let at = At { rate_per_s, throughput: candidate.figures[0], latency_s: candidate.figures[1] };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(at),
            None => lines.push(Line { name, points: vec![at] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|one, other| one.rate_per_s.total_cmp(&other.rate_per_s)));
    lines
}

/// One row for each point and policy: key, values of the axes, seed, policy, status, why, and every metric.
pub fn columns(rows: &[Row]) -> Vec<Column> {
    let mut columns = vec![Column::texts("key", rows.iter().map(|row| Some(row.key.as_str())))];
    columns.extend(tables(rows, |row| &row.point));
    columns.push(Column::numbers("seed", rows.iter().map(|row| row.seed.map(|seed| seed as f64))));
    columns.push(Column::texts("policy", rows.iter().map(|row| Some(row.policy.as_str()))));
    columns.push(Column::texts("status", rows.iter().map(|row| Some(row.status.as_str()))));
    columns.push(Column::texts("why", rows.iter().map(|row| row.why.as_deref())));
    columns.extend(tables(rows, |row| &row.metrics));
    columns
}

/// A column for every key of a table of the rows: of numbers, or of texts where one value is none.
fn tables(rows: &[Row], of: impl Fn(&Row) -> &Map<String, Value>) -> Vec<Column> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let column = |(key, cells): (&String, Vec<Option<&Value>>)| {
        if cells.iter().flatten().all(|cell| cell.is_number()) {
            return Column::numbers(key, cells.into_iter().map(|cell| cell.and_then(Value::as_f64)));
        }
        Column::texts(key, cells.into_iter().map(|cell| cell.map(text)))
    };
    cells(rows, of).into_iter().map(column).collect()
}

/// The cells of every key, by key. Tables are sorted and mostly have the same keys, so each row is laid along the columns and nothing is looked up.
fn cells<'r>(
    rows: &'r [Row],
    of: impl Fn(&'r Row) -> &'r Map<String, Value>,
) -> Vec<(&'r String, Vec<Option<&'r Value>>)> {
    let mut columns: Vec<(&String, Vec<Option<&Value>>)> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let mut at = 0;
        for (key, value) in of(row) {
            while columns.get(at).is_some_and(|(other, _)| *other < key) {
                at += 1;
            }
            if columns.get(at).is_none_or(|(other, _)| *other != key) {
                columns.insert(at, (key, Vec::with_capacity(rows.len())));
            }
            columns[at].1.resize(index, None);
            columns[at].1.push(Some(value));
        }
    }
    columns.iter_mut().for_each(|(_, cells)| cells.resize(rows.len(), None));
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_have_every_key_once_and_every_value_in_its_row() {
        let tables = [json!({"b": 1, "d": 2}), json!({}), json!({"a": 3, "b": 4, "c": "five"}), json!({"d": 6})];
        let row = |metrics: &Value| Row {
            key: String::new(),
            point: Map::new(),
            seed: None,
            policy: String::new(),
            status: "ok".to_owned(),
            why: None,
            metrics: metrics.as_object().expect("a table").clone(),
        };
        let rows: Vec<Row> = tables.iter().map(row).collect();
        let found = cells(&rows, |row| &row.metrics);
        assert_eq!(found.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        for (key, cells) in found {
            let looked_up: Vec<Option<&Value>> = rows.iter().map(|row| row.metrics.get(key)).collect();
            assert_eq!(cells, looked_up, "{key}");
        }
    }

    #[test]
    fn the_first_point_that_makes_a_scenario_wrong_says_why() {
        let row = |status: &str, tp: u64, why: Option<&str>| Row {
            key: String::new(),
            point: Map::from_iter([("engine.tp".to_owned(), json!(tp))]),
            seed: None,
            policy: String::new(),
            status: status.to_owned(),
            why: why.map(str::to_owned),
            metrics: Map::new(),
        };
        let mut rows = vec![row("ok", 1, None), row("oom", 2, Some("full")), row("wrong", 3, Some("3 of 8"))];
        rows.push(row("wrong", 5, Some("5 of 8")));
        assert_eq!(wrong(&rows), "2 points make the scenario wrong: with engine.tp = 3: 3 of 8\n");
        assert!(!is_all_wrong(&rows) && is_all_wrong(&rows[2..]) && !is_all_wrong(&[]));
        assert_eq!(wrong(&rows[..2]), "");
    }

    #[test]
    fn points_with_the_same_figures_are_one_row_and_a_stopped_sweep_is_not_done() {
        let candidate = |n: u64, policy: &str, figure: f64| Candidate {
            point: BTreeMap::from([("a".to_owned(), json!(n)), ("b".to_owned(), json!(1))]),
            policy: policy.to_owned(),
            figures: vec![figure, 2.0],
        };
        let all = [candidate(1, "p", 1.0), candidate(2, "p", 1.0), candidate(1, "q", 1.0), candidate(3, "p", 4.0)];
        let found = bests(&all.iter().collect::<Vec<_>>());
        let said: Vec<(&str, Vec<String>)> = found.iter().map(|best| (&*best.point, best.also.clone())).collect();
        assert_eq!(said, [("a=1 b=1", vec!["a=2".to_owned(), "q".to_owned()]), ("a=3 b=1", vec![])]);
        let stopped = Played { lines: vec![String::new(); 11], n_new: 11, is_whole: false };
        let row = Row {
            key: String::new(),
            point: Map::new(),
            seed: None,
            policy: "p".to_owned(),
            status: "ok".to_owned(),
            why: None,
            metrics: Map::new(),
        };
        let rows = [row];
        let why = nothing_ran(&rows, &stopped, false).expect("it is not done");
        assert_eq!(why, "stopped with 11 points: the same command goes on");
        assert!(nothing_ran(&rows, &Played { is_whole: true, ..stopped }, false).is_none());
    }
}
