//! Golden figures that a scenario carries, and whether a result meets them.
//!
//! Keys are `metrics.<policy>.<metric>`, `planner.<policy>.<figure>`, `speedup_ratio.<policy>`, `status.<policy>` and `order` (policies from slow to fast).

use std::collections::BTreeMap;

use crate::gate::{Nearest, hint};
use crate::quantity::significant;
use crate::{Ended, PlannerFacts, PolicyResult, RunResult};

/// One expectation.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Key.
    pub key: String,
    /// What must hold.
    pub holds: Holds,
}

/// What an expectation asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Holds {
    /// A number between two bounds, both included.
    Between(f64, f64),
    /// A status.
    Status(Ended),
    /// Policies by rising gain.
    Order(Vec<String>),
}

/// So many per cent of a figure, as a distance from it.
pub const fn share_of(figure: f64, percent: f64) -> f64 {
    figure.abs() * percent / 100.0
}

/// The first limit that metrics break, in words; one that they do not have is broken.
pub fn broken(limits: &[Expectation], metrics: &BTreeMap<String, f64>) -> Option<String> {
    limits.iter().find_map(|limit| {
        let Holds::Between(low, high) = limit.holds else { return None };
        let key = &limit.key;
        match metrics.get(key) {
            Some(found) if (low..=high).contains(found) => None,
            Some(found) if *found < low => Some(format!("`{key}` is {}, at least {low} is asked", beside(*found, low))),
            Some(found) => Some(format!("`{key}` is {}, at most {high} is allowed", beside(*found, high))),
            None => Some(format!("there is no `{key}`")),
        }
    })
}

/// A figure that misses a limit, with all its digits where fewer would read as the limit.
fn beside(found: f64, limit: f64) -> String {
    let shown = significant(found);
    let is_told = shown.parse::<f64>().is_ok_and(|shown| (shown < limit) == (found < limit) && shown != limit);
    if is_told { shown } else { found.to_string() }
}

/// What does not hold of a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// Nothing is expected, or of something that a result does not have: a sentence.
    #[error("{0}")]
    Unknown(String),
    /// Figures that are missed, a sentence each.
    #[error("error: expectations of `{scenario}` failed\n  {}", misses.join("\n  "))]
    Figures {
        /// Name of the scenario.
        scenario: String,
        /// What is missed.
        misses: Vec<String>,
    },
}

/// Holds a result against what is expected of it.
///
/// # Errors
/// A name that no result has, with the nearest; else what is missed.
pub fn hold(expectations: &[Expectation], result: &RunResult, nearest: Nearest) -> Result<(), Missed> {
    if expectations.is_empty() {
        return Err(Missed::Unknown(format!("`--check` holds nothing: `{}` has no `[expect]`", result.scenario)));
    }
    if let Some(unknown) = expectations.iter().find_map(|expectation| unknown(expectation, result, nearest)) {
        return Err(Missed::Unknown(unknown));
    }
    let misses = misses(expectations, result);
    if misses.is_empty() { Ok(()) } else { Err(Missed::Figures { scenario: result.scenario.clone(), misses }) }
}

/// What names nothing: a policy that has no row, or a figure that its row lacks though it has a result.
fn unknown(expectation: &Expectation, result: &RunResult, nearest: Nearest) -> Option<String> {
    let hint = |found: &str, names| hint(nearest, found, names);
    let row = |policy: &str| result.results.iter().find(|row| row.policy == policy);
    let no_policy = |policy: &str| {
        let names = result.results.iter().map(|row| row.policy.as_str()).collect();
        format!("`{}` is expected, and no policy is called `{policy}`{}", expectation.key, hint(policy, names))
    };
    let (kind, rest) = match &expectation.holds {
        Holds::Order(policies) => {
            return policies.iter().find(|policy| row(policy).is_none()).map(|gone| no_policy(gone));
        }
        Holds::Between(..) | Holds::Status(_) => expectation.key.split_once('.')?,
    };
    if ["status", "speedup_ratio"].contains(&kind) {
        return row(rest).is_none().then(|| no_policy(rest));
    }
    let parted = rest.match_indices('.').find_map(|(at, _)| Some((row(&rest[..at])?, &rest[at + 1..])));
    let Some((row, name)) = parted else { return Some(no_policy(rest.split('.').next().unwrap_or(rest))) };
    if row.status != Ended::Ok || figure(&expectation.key, |policy| (row.policy == policy).then_some(row)).is_some() {
        return None;
    }
    let names = match kind {
        "planner" => row.planner.iter().flat_map(PlannerFacts::names).collect(),
        _ => row.metrics.keys().map(String::as_str).collect(),
    };
    Some(format!("`{}` is expected, and `{}` has no `{name}`{}", expectation.key, row.policy, hint(name, names)))
}

/// What a result misses, one sentence each.
pub fn misses(expectations: &[Expectation], result: &RunResult) -> Vec<String> {
    expectations.iter().filter_map(|expectation| miss(expectation, result)).collect()
}

fn miss(expectation: &Expectation, result: &RunResult) -> Option<String> {
    let key = &expectation.key;
    let row = |policy: &str| result.results.iter().find(|row| row.policy == policy);
    match &expectation.holds {
        Holds::Order(policies) => {
            let gains: Vec<Option<f64>> = policies.iter().map(|p| result.speedup_ratio.get(p).copied()).collect();
            let rising = gains.windows(2).all(|pair| matches!(pair, [Some(less), Some(more)] if less < more));
            (!rising).then(|| format!("`order`: expected rising gains, found {}", gains_of(policies, &gains)))
        }
        Holds::Status(status) => {
            let policy = key.strip_prefix("status.").unwrap_or(key);
            let found = row(policy).map(|row| row.status);
            let words = found.map_or("absent", Ended::name);
            (found != Some(*status)).then(|| format!("`{key}`: expected {status}, found {words}"))
        }
        Holds::Between(low, high) => {
            let found = match key.strip_prefix("speedup_ratio.") {
                Some(policy) => result.speedup_ratio.get(policy).copied(),
                None => figure(key, row),
            };
            match found {
                Some(found) if (*low..=*high).contains(&found) => None,
                Some(found) => Some(format!("`{key}`: expected {}, found {found}", within(*low, *high))),
                None => Some(format!("`{key}`: expected {}, found no such figure", within(*low, *high))),
            }
        }
    }
}

/// Two ends in words, of which one may be open.
fn within(low: f64, high: f64) -> String {
    match (low.is_finite(), high.is_finite()) {
        (false, true) => format!("at most {high}"),
        (true, false) => format!("at least {low}"),
        _ => format!("{low} to {high}"),
    }
}

/// Policies with their gains, in words.
fn gains_of(policies: &[String], gains: &[Option<f64>]) -> String {
    let gain = |gain: &Option<f64>| gain.map_or_else(|| "no gain".to_owned(), |gain| format!("{}×", significant(gain)));
    let pairs = policies.iter().zip(gains).map(|(policy, found)| format!("`{policy}` {}", gain(found)));
    pairs.collect::<Vec<_>>().join(", ")
}

/// A metric, or a figure that a planner gave with its plan.
fn figure<'a>(key: &str, row: impl Fn(&str) -> Option<&'a PolicyResult>) -> Option<f64> {
    let (kind, rest) = key.split_once('.')?;
    // Names of policies and of metrics may both hold dots: every way to part them is tried.
    rest.match_indices('.').find_map(|(at, _)| {
        let (policy, name) = (row(&rest[..at])?, &rest[at + 1..]);
        match kind {
            "metrics" => policy.metrics.get(name).copied(),
            "planner" => policy.planner.as_ref()?.figure(name),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_misses_its_limit_never_reads_as_the_limit() {
        let broken_by = |found: f64, low: f64, high: f64| {
            let limit = Expectation { key: "share".to_owned(), holds: Holds::Between(low, high) };
            broken(&[limit], &BTreeMap::from([("share".to_owned(), found)])).unwrap_or_default()
        };
        assert_eq!(broken_by(0.999_96, 1.0, 2.0), "`share` is 0.99996, at least 1 is asked");
        assert_eq!(broken_by(0.955_12, 0.99, 1.0), "`share` is 0.955, at least 0.99 is asked");
        assert_eq!(broken_by(2.000_04, 1.0, 2.0), "`share` is 2.00004, at most 2 is allowed");
        assert_eq!(broken_by(1.0, 1.0, 2.0), "");
    }

    #[test]
    fn what_names_nothing_is_no_miss_but_unknown() {
        let metrics = BTreeMap::from([("iteration_time_s".to_owned(), 2.0)]);
        let planner = PlannerFacts { objective: Some(2.0), ..PlannerFacts::default() };
        let (policy, status) = ("skrull".to_owned(), Ended::Ok);
        let row = PolicyResult { policy, status, metrics, planner: Some(planner), ..PolicyResult::default() };
        let run = RunResult { scenario: "one".to_owned(), results: vec![row], ..RunResult::default() };
        let nearest: Nearest = |_, names| names.first().copied();
        let said = |key: &str, holds: Holds| {
            hold(&[Expectation { key: key.to_owned(), holds }], &run, nearest).map_err(|missed| missed.to_string())
        };
        let between = || Holds::Between(1.0, 3.0);
        assert_eq!(said("metrics.skrull.iteration_time_s", between()), Ok(()));
        assert_eq!(said("planner.skrull.objective", between()), Ok(()));
        let of = |key: &str, why: &str| assert!(said(key, between()).unwrap_err().contains(why), "{key}");
        of("metrics.skrul.iteration_time_s", "no policy is called `skrul`; did you mean `skrull`?");
        of("metrics.skrull.iteration_time", "`skrull` has no `iteration_time`; did you mean `iteration_time_s`?");
        of("planner.skrull.objectiv", "`skrull` has no `objectiv`; did you mean `objective`?");
        of("speedup_ratio.skrul", "did you mean `skrull`?");
        let order = Holds::Order(vec!["skrull".to_owned(), "deepspeed".to_owned()]);
        assert!(said("order", order).unwrap_err().contains("no policy is called `deepspeed`"));
        assert!(matches!(hold(&[], &run, nearest), Err(Missed::Unknown(_))));
        let low = Expectation { key: "metrics.skrull.iteration_time_s".to_owned(), holds: Holds::Between(0.0, 1.0) };
        assert!(matches!(hold(&[low], &run, nearest), Err(Missed::Figures { .. })));
    }

    #[test]
    fn an_order_that_is_missed_says_the_gains_in_words() {
        let order = Holds::Order(["fast", "slow", "gone"].map(str::to_owned).to_vec());
        let expected = Expectation { key: "order".to_owned(), holds: order };
        let gains = [("fast", 1.635), ("slow", 1.0)].map(|(name, gain)| (name.to_owned(), gain));
        let run = RunResult { speedup_ratio: BTreeMap::from(gains), ..RunResult::default() };
        let said = misses(&[expected], &run).join(" ");
        assert_eq!(said, "`order`: expected rising gains, found `fast` 1.635×, `slow` 1.000×, `gone` no gain");
    }
}
