//! An axis: one key of the scenario, or several that change together, with a list of values or a range.

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section, items};
use serde_json::Value;
use thiserror::Error;
use toml_span::value::ValueInner;

/// Values of an axis at most.
const VALUES_MAX: usize = 1_000_000;
/// Digits that values of a range keep, so that they read well and are the same on every platform.
const DIGITS: usize = 9;

/// One or several keys that change together.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Keys, `section.key`.
    pub keys: Vec<String>,
    /// What they take.
    pub values: Values,
}

/// What an axis takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// These values, one for each key.
    List(Vec<Vec<Value>>),
    /// Numbers between two ends, for one key.
    Range(Range),
}

/// Numbers between two ends, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// First.
    pub from: f64,
    /// Last.
    pub to: f64,
    /// How many a grid has.
    pub steps: Option<u32>,
    /// Whether factors are even, and not distances.
    pub is_log: bool,
    /// Whether only whole numbers count.
    pub is_whole: bool,
}

impl Range {
    /// The number at a share of the way.
    pub fn at(&self, share: f64) -> f64 {
        let found = if self.is_log {
            self.from * engine::random::power(self.to / self.from, share)
        } else {
            self.from + (self.to - self.from) * share
        };
        let found = if self.is_whole { found.round() } else { found };
        format!("{found:.DIGITS$e}").parse().expect("a number that was just written")
    }

    fn value(&self, share: f64) -> Value {
        let found = self.at(share);
        if self.is_whole { Value::from(found as i64) } else { Value::from(found) }
    }
}

/// Why axes are no grid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoGrid {
    /// A range without a number of values.
    #[error("the range of `{}` says no `steps`, which a grid needs", keys.join("`, `"))]
    NoSteps { keys: Vec<String> },
    /// Nobody ends so many runs.
    #[error("the grid has more than 2^64 points")]
    Endless,
}

impl Axis {
    /// Values of a grid, in order.
    ///
    /// # Errors
    /// When a range says no steps.
    pub fn listed(&self) -> Result<Vec<Vec<Value>>, NoGrid> {
        let range = match &self.values {
            Values::List(all) => return Ok(all.clone()),
            Values::Range(range) => range,
        };
        let Some(steps) = range.steps else {
            return Err(NoGrid::NoSteps { keys: self.keys.clone() });
        };
        let last = f64::from(steps.max(2) - 1);
        let mut all: Vec<Vec<Value>> = (0..steps).map(|step| vec![range.value(f64::from(step) / last)]).collect();
        all.dedup();
        Ok(all)
    }

    /// The values at a share below 1 of the axis.
    pub fn drawn(&self, share: f64) -> Vec<Value> {
        match &self.values {
            Values::List(all) => all[((share * all.len() as f64) as usize).min(all.len() - 1)].clone(),
            // Every whole number has the same share of the axis.
            Values::Range(range) if range.is_whole && !range.is_log => {
                let n = range.to - range.from + 1.0;
                vec![Value::from((range.from + (share * n).floor()).min(range.to) as i64)]
            }
            Values::Range(range) => vec![range.value(share)],
        }
    }
}

/// Reads a table of `[[axis]]`.
pub fn read(mut section: Section<'_>) -> Option<Axis> {
    let keys = keys(&mut section);
    let axis = if section.has("values") { list(&mut section, &keys) } else { range(&mut section, &keys) };
    section.finish();
    axis
}

/// `key`, or `keys` that change together.
fn keys(section: &mut Section<'_>) -> Vec<String> {
    let (one, many) = (section.text("key"), section.take("keys"));
    let at = section.at();
    match (one, many) {
        (Some((key, _)), None) => vec![key],
        (None, Some((value, at))) => {
            let read = items(&value, |item| item.as_str().map(str::to_owned)).filter(|keys| !keys.is_empty());
            read.unwrap_or_else(|| {
                section.refuse(Code::WrongAxis, at, "`axis.keys` is no list of keys", "write keys as `section.key`");
                Vec::new()
            })
        }
        _ => {
            let help = "write one of them: `key = \"section.key\"`, or `keys` that change together";
            section.refuse(Code::WrongAxis, at, "an axis has either `key` or `keys`", help);
            Vec::new()
        }
    }
}

/// A value of TOML as JSON.
pub(crate) fn json(value: &toml_span::Value<'_>) -> Value {
    match value.as_ref() {
        ValueInner::String(text) => text.to_string().into(),
        ValueInner::Integer(number) => (*number).into(),
        ValueInner::Float(number) => (*number).into(),
        ValueInner::Boolean(flag) => (*flag).into(),
        ValueInner::Array(all) => all.iter().map(json).collect(),
        ValueInner::Table(table) => table.iter().map(|(key, value)| (key.name.to_string(), json(value))).collect(),
    }
}

/// `values`: one for each point of the axis; a list of lists where several keys change together.
fn list(section: &mut Section<'_>, keys: &[String]) -> Option<Axis> {
    let (value, at) = section.take("values")?;
    section.idle(&["from", "to", "steps", "scale"], "an axis without `values`");
    for key in ["from", "to", "steps", "scale"] {
        let _ = section.take(key);
    }
    let wrong = |section: &mut Section<'_>, at: Place, what: &str| {
        let help = "write `values = [1, 2, 4]`, and `values = [[1, 8], [2, 4]]` for two keys";
        section.find(Finding::error(Code::WrongAxis, at, what).help(help));
        None
    };
    let ValueInner::Array(all) = &value else { return wrong(section, at, "`axis.values` is no list") };
    if all.is_empty() || all.len() > VALUES_MAX {
        return wrong(section, at, "`axis.values` has no value, or more than a million");
    }
    let mut rows = Vec::with_capacity(all.len());
    for item in all {
        let row = match (keys.len(), json(item)) {
            (1, value) => vec![value],
            (_, Value::Array(row)) => row,
            _ => Vec::new(),
        };
        if row.len() != keys.len() {
            let at = input::reader::place_of(item);
            return wrong(section, at, "`axis.values` has not one value for each of `axis.keys`");
        }
        rows.push(row);
    }
    (!keys.is_empty()).then(|| Axis { keys: keys.to_vec(), values: Values::List(rows) })
}

/// `from`, `to`, `steps` and `scale`.
fn range(section: &mut Section<'_>, keys: &[String]) -> Option<Axis> {
    let ends = ["from", "to"].map(|key| section.take(key));
    let [Some((from, _)), Some((to, at))] = ends else {
        section.refuse_all(Code::WrongAxis, "an axis has neither `values` nor `from` and `to`", "write one of them");
        return None;
    };
    let is_log = section.word("scale", 0, &["linear", "log"]) == 1;
    let steps = section.some_count("steps", 2..=VALUES_MAX as u64);
    let whole = |value: &ValueInner<'_>| matches!(value, ValueInner::Integer(_));
    let is_whole = whole(&from) && whole(&to);
    let number = |value: &ValueInner<'_>| input::reader::number(value).unwrap_or(f64::NAN);
    let range = Range { from: number(&from), to: number(&to), steps, is_log, is_whole };
    let is_good = range.from < range.to && (!is_log || range.from > 0.0);
    if !is_good || keys.len() > 1 {
        let help = "`from` is a number below `to`, above 0 where `scale` is `log`, and a range is of one key";
        section.refuse(Code::WrongAxis, at, "this is no range", help);
        return None;
    }
    (!keys.is_empty()).then(|| Axis { keys: keys.to_vec(), values: Values::Range(range) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: f64, to: f64, is_log: bool, is_whole: bool) -> Axis {
        let range = Range { from, to, steps: Some(4), is_log, is_whole };
        Axis { keys: vec!["a.b".to_owned()], values: Values::Range(range) }
    }

    #[test]
    fn ranges_are_even_in_distance_or_in_factor() {
        let all = |axis: Axis| axis.listed().expect("steps").into_iter().flatten().collect::<Vec<Value>>();
        assert_eq!(all(range(1.0, 7.0, false, false)), [1.0, 3.0, 5.0, 7.0].map(Value::from));
        assert_eq!(all(range(1.0, 1000.0, true, false)), [1.0, 10.0, 100.0, 1000.0].map(Value::from));
        assert_eq!(all(range(1.0, 8.0, true, true)), [1, 2, 4, 8].map(Value::from));
        assert_eq!(all(range(1.0, 2.0, false, true)), [1, 2].map(Value::from), "equal values count once");
    }

    #[test]
    fn whole_numbers_have_equal_shares_when_they_are_drawn() {
        let axis = range(1.0, 3.0, false, true);
        let drawn: Vec<Value> = [0.0, 0.33, 0.34, 0.66, 0.67, 0.999].iter().flat_map(|u| axis.drawn(*u)).collect();
        assert_eq!(drawn, [1, 1, 2, 2, 3, 3].map(Value::from));
    }
}
