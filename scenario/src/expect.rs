//! `[expect]`: golden figures that a scenario carries (`reports::expect` holds results against them).

use reports::Ended;
use reports::expect::{Expectation, Holds, share_of};
use toml_span::Value;
use toml_span::value::ValueInner;

use input::diagnostic::Code;
use input::reader::{Section, place_of};

/// What a value of `[expect]` may be.
const FORMS: &str = "write { near = 1.4, within = 0.1 } in the figure's unit, less than the figure, or within = \"7 %\"; { exact = 4 }, { min = 1, max = 2 }, { status = \"oom\" } or order = [...]";

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
            None => section.refuse(Code::WrongExpectation, at, format!("expectation `{name}` cannot be read"), FORMS),
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
                "write { max = 2 }, { min = 1 }, { min = 1, max = 2 }, { exact = 4 }, { near = 1.4, within = 0.1 } or { near = 1.4, within = \"7 %\" }",
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
        (["near", "within"], false) => around(number("near")?, table.get("within")?)?,
        (["exact"], false) => (number("exact")?, number("exact")?),
        (["max", "min"], false) => (number("min")?, number("max")?),
        (["min"], false) => (number("min")?, f64::INFINITY),
        (["max"], false) => (f64::NEG_INFINITY, number("max")?),
        _ => return None,
    };
    (low <= high).then_some(Holds::Between(low, high))
}

/// The band around a figure, by a distance in its unit or by `"5 %"` of it. `None` where it would hold 0 and more: nearly every figure is above 0, so such a
/// distance was meant as a share.
fn around(near: f64, within: &Value<'_>) -> Option<(f64, f64)> {
    let share = |text: &str| Some(share_of(near, text.strip_suffix('%')?.trim_end().parse().ok()?));
    let number = within.as_float().or_else(|| within.as_integer().map(|n| n as f64));
    let distance = number.or_else(|| within.as_str().and_then(share)).filter(|distance| distance.is_finite())?;
    let holds_zero = near != 0.0 && distance >= near.abs();
    (!holds_zero).then_some((near - distance, near + distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn band(near: f64, within: ValueInner<'_>) -> Option<(f64, f64)> {
        around(near, &Value::new(within))
    }

    #[test]
    fn a_band_has_a_distance_or_a_share_of_its_figure() {
        assert_eq!(band(1.5, ValueInner::Float(0.5)), Some((1.0, 2.0)));
        assert_eq!(band(8.0, ValueInner::Integer(2)), Some((6.0, 10.0)));
        for share in ["25 %", "25%"] {
            assert_eq!(band(4.0, ValueInner::String(share.into())), Some((3.0, 5.0)));
        }
        assert_eq!(band(-4.0, ValueInner::String("25 %".into())), Some((-5.0, -3.0)));
    }

    #[test]
    fn no_band_around_a_figure_holds_zero() {
        assert_eq!(band(0.0, ValueInner::Float(0.1)), Some((-0.1, 0.1)));
        for within in [
            ValueInner::Float(0.02),
            ValueInner::Float(0.05),
            ValueInner::String("100 %".into()),
            ValueInner::String("5".into()),
        ] {
            assert_eq!(band(0.02, within), None);
        }
    }
}
