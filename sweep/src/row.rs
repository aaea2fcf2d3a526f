//! A row of `points.jsonl`: what was laid over the scenario and what came of it, a line of JSON. Nothing that was measured stands in it.

use input::diagnostic::Finding;
use reports::RunResult;
use serde_json::{Map, Value, json};

use crate::key::Key;
use crate::sample::Point;

/// What came of a point.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It ran: a row for each policy.
    Ran(Box<RunResult>),
    /// The scenario is wrong with these values.
    Wrong(Vec<Finding>),
}

/// The line of a point, with its end.
pub fn line(key: Key, point: &Point, outcome: &Outcome) -> String {
    let mut row = Map::new();
    row.insert("key".to_owned(), key.to_string().into());
    row.insert("point".to_owned(), point.set.iter().cloned().collect::<Map<String, Value>>().into());
    if let Some(seed) = point.seed {
        row.insert("seed".to_owned(), seed.into());
    }
    match outcome {
        Outcome::Ran(run) => {
            row.insert("status".to_owned(), "ran".into());
            row.insert("results".to_owned(), run.results.iter().map(result).collect());
        }
        Outcome::Wrong(findings) => {
            row.insert("status".to_owned(), "wrong".into());
            row.insert("findings".to_owned(), findings.iter().map(finding).collect());
        }
    }
    format!("{}\n", Value::Object(row))
}

/// A policy's figures, flat, as `result.json` names them.
fn result(row: &reports::PolicyResult) -> Value {
    let finite = row.metrics.iter().filter(|(_, figure)| figure.is_finite());
    let metrics: Map<String, Value> = finite.map(|(key, figure)| (key.clone(), (*figure).into())).collect();
    let mut found = json!({ "policy": row.policy, "status": row.status.name(), "metrics": metrics });
    if row.status.name() != "ok" {
        found["why"] = row.why.clone().into();
    }
    found
}

fn finding(finding: &Finding) -> Value {
    let mut found = json!({ "code": finding.code.to_string(), "what": finding.what });
    let hint = finding.help.as_deref().unwrap_or(&finding.label);
    if !hint.is_empty() {
        found["help"] = hint.into();
    }
    found
}

/// A figure of a policy under a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Key of the point.
    pub key: String,
    /// Keys and values.
    pub point: Map<String, Value>,
    /// Seed.
    pub seed: Option<u64>,
    /// Policy; empty where nothing ran.
    pub policy: String,
    /// `ok`, `oom`, `infeasible`, `timeout`, or `wrong` where the scenario is.
    pub status: String,
    /// Reason of another status than `ok`.
    pub why: Option<String>,
    /// Figures.
    pub metrics: Map<String, Value>,
}

/// Rows of a line, one for each policy; none where the line is no row.
pub fn rows(line: &str) -> Vec<Row> {
    let Ok(Value::Object(mut found)) = serde_json::from_str(line) else { return Vec::new() };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let table = |value: Option<Value>| match value {
        Some(Value::Object(table)) => table,
        _ => Map::new(),
    };
    let (key, seed) = (text(found.get("key")), found.get("seed").and_then(Value::as_u64));
    let point = table(found.remove("point"));
    let Some(Value::Array(results)) = found.remove("results") else {
        let first = found.get("findings").and_then(|all| all.get(0));
        let hint = |first: &Value| first.get("help").map_or_else(String::new, |help| format!("; {}", text(Some(help))));
        let said = |first: &Value| format!("[{}] {}{}", text(first.get("code")), text(first.get("what")), hint(first));
        let why = first.map(said);
        let (policy, status) = (String::new(), "wrong".to_owned());
        return vec![Row { key, point, seed, policy, status, why, metrics: Map::new() }];
    };
    let row = |mut result: Value| Row {
        key: key.clone(),
        point: point.clone(),
        seed,
        policy: text(result.get("policy")),
        status: text(result.get("status")),
        why: result.get("why").and_then(Value::as_str).map(str::to_owned),
        metrics: table(result.get_mut("metrics").map(Value::take)),
    };
    results.into_iter().map(row).collect()
}
