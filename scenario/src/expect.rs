//! `[expect]`: golden figures that a scenario carries (`reports::expect` holds results against them).

use reports::Ended;
use reports::expect::{Expectation, Holds};
use toml_span::value::ValueInner;

use input::diagnostic::Code;
use input::reader::{Section, place_of};

/// Reads the section.
pub fn read(mut section: Section<'_>) -> Vec<Expectation> {
    let mut expectations = Vec::new();
    for (key, mut value) in section.rest() {
        let at = place_of(&value);
        let name = key.name.into_owned();
        let kinds = ["metrics.", "planner.", "speedup_ratio.", "status."];
        if name != "order" && !kinds.iter().any(|kind| name.starts_with(kind)) {
            let what = format!("expectation `{name}` is about nothing that a result has");
            section.refuse(Code::WrongExpectation, at, what, "keys are \"metrics.POLICY.METRIC\", \"planner.POLICY.FIGURE\", \"speedup_ratio.POLICY\", \"status.POLICY\" and order");
            continue;
        }
        match holds(&name, value.take()) {
            Some(holds) => expectations.push(Expectation { key: name, holds }),
            None => section.refuse(Code::WrongExpectation, at, format!("expectation `{name}` cannot be read"), "write { near = 1.4, within = 0.1 }, { exact = 4 }, { min = 1, max = 2 }, { status = \"oom\" } or order = [...]"),
        }
    }
    section.finish();
    expectations
}

/// Limits on metrics: `{ n_preempted = { max = 0 } }`.
pub fn limits(mut section: Section<'_>) -> Vec<Expectation> {
    let mut limits = Vec::new();
    for (key, mut value) in section.rest() {
        let at = place_of(&value);
        let name = key.name.into_owned();
        match holds(&name, value.take()) {
            Some(Holds::Between(low, _)) if name.ends_with("attainment_ratio") && low > 1.0 => {
                let help = "a share is at most 1: `0.99` is 99 %";
                section.refuse(Code::WrongExpectation, at, format!("no share `{name}` is {low} or more"), help);
            }
            Some(holds @ Holds::Between(..)) => limits.push(Expectation { key: name, holds }),
            _ => section.refuse(
                Code::WrongExpectation,
                at,
                format!("limit `{name}` cannot be read"),
                "write { max = 2 }, { min = 1 }, { min = 1, max = 2 }, { exact = 4 } or { near = 1.4, within = 0.1 }",
            ),
        }
    }
    section.finish();
    limits
}

/// What a value asks; `None` where it is not one of the forms, with all of its keys and no other.
fn holds(name: &str, value: ValueInner<'static>) -> Option<Holds> {
    if name == "order" {
        let ValueInner::Array(items) = value else { return None };
        return items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<_>>().map(Holds::Order);
    }
    let ValueInner::Table(table) = value else { return None };
    let number = |key: &str| {
        let value = table.get(key)?;
        value.as_float().or_else(|| value.as_integer().map(|n| n as f64)).filter(|number| number.is_finite())
    };
    let mut keys: Vec<&str> = table.keys().map(|key| key.name.as_ref()).collect();
    keys.sort_unstable();
    let (low, high) = match (keys[..].as_ref(), name.starts_with("status.")) {
        (["status"], true) => return table.get("status")?.as_str().and_then(Ended::named).map(Holds::Status),
        (["near", "within"], false) => (number("near")? - number("within")?, number("near")? + number("within")?),
        (["exact"], false) => (number("exact")?, number("exact")?),
        (["max", "min"], false) => (number("min")?, number("max")?),
        (["min"], false) => (number("min")?, f64::INFINITY),
        (["max"], false) => (f64::NEG_INFINITY, number("max")?),
        _ => return None,
    };
    (low <= high).then_some(Holds::Between(low, high))
}
