//! `[objective]`: what a deployment is to be best at, with the keys of each objective; and policies that serve it or say why not.

use planner::deploy::objective::{Limit, Objective};
use planner::deploy::policies::{self, Policy};

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section};
use input::run_list::{RunList, run_list_among};

use super::inventory::USD;

/// Seconds of a deadline.
const SECONDS: std::ops::RangeInclusive<f64> = 1e-3..=1e9;

/// Targets of requests, multiples of a mean request alone.
pub struct Targets {
    /// Of the time to the first token.
    pub ttft_scale: f64,
    /// Of the time per further token.
    pub tpot_scale: f64,
    /// Machine on which the mean request is alone.
    pub reference: usize,
    /// Share of the requests that must meet both.
    pub attainment_ratio: f64,
    /// Arrivals for which plans are made.
    pub planned_per_s: f64,
}

/// What the section says.
pub enum Asked {
    /// What to rent within which limits, one row each.
    Rent(Objective, Vec<Limit>),
    /// Most requests within targets.
    Goodput(Targets),
    /// Most tokens.
    Throughput,
}

/// Reads the section.
pub fn objective(mut section: Section<'_>) -> Asked {
    let words = Objective::WORDS.map(|row| row.0);
    section.needs("is", "`time`, `dollars`, `goodput` or `throughput`");
    // A word that does not exist is found here, and read on as the first objective.
    let objective = Objective::ALL[section.word("is", 0, &words)];
    let asked = match objective {
        Objective::Time => {
            let usd = limits(&mut section, ("usd_per_hour", "dollars per hour"), USD);
            Asked::Rent(objective, usd.into_iter().map(|usd_per_hour| Limit::Budget { usd_per_hour }).collect())
        }
        Objective::Dollars => {
            let within = limits(&mut section, ("within_s", "seconds"), SECONDS);
            Asked::Rent(objective, within.into_iter().map(|seconds| Limit::Deadline { seconds }).collect())
        }
        Objective::Goodput => Asked::Goodput(Targets {
            ttft_scale: section.number("ttft_scale", 5.0, 0.1..=1e4),
            tpot_scale: section.number("tpot_scale", 5.0, 0.1..=1e4),
            reference: section.size("reference_machine", 0, 0..=1000),
            attainment_ratio: section.number("attainment_ratio", 0.9, 0.01..=1.0),
            planned_per_s: section.number("planned_requests_per_s", 20.0, 1e-3..=1e6),
        }),
        Objective::Throughput => Asked::Throughput,
    };
    section.finish();
    asked
}

/// One limit or several.
fn limits(
    section: &mut Section<'_>,
    (key, unit): (&'static str, &str),
    range: std::ops::RangeInclusive<f64>,
) -> Vec<f64> {
    let help = format!("{unit}, one number or a list");
    section.needs(key, &help);
    let found = section.numbers(key, range);
    if let Some(Err(at)) = &found {
        let what = format!("`objective.{key}` is no number above 0, and no list of such numbers");
        section.refuse(Code::WrongBudget, at.clone(), what, &help);
    }
    found.and_then(Result::ok).unwrap_or_default()
}

/// `run` and `baseline` of policies that serve an objective; one that serves another is told so.
pub fn run_list<T: Clone>(
    section: &mut Section<'_>,
    objective: Objective,
    plain: Vec<(&str, T)>,
    variants: Vec<(String, T)>,
) -> RunList<T> {
    run_list_among(section, plain, variants, &|name, at| refused(name, objective, at))
}

/// `policy` of a variant.
pub fn named(
    section: &mut Section<'_>,
    key: &'static str,
    help: Option<&str>,
    objective: Objective,
) -> Option<&'static Policy> {
    if let Some(help) = help {
        section.needs(key, help);
    }
    let at = section.place(key);
    let names = || policies::POLICIES.iter().filter(|policy| policy.serves(objective)).map(|policy| policy.name);
    let policy = section.known(key, (Code::UnknownPolicy, "policy"), names, policies::named)?;
    if let Some(finding) = refused(policy.name, objective, at.flatten()) {
        section.find(finding);
        return None;
    }
    Some(policy)
}

/// Why a policy that exists does not serve an objective.
fn refused(name: &str, objective: Objective, at: Place) -> Option<Finding> {
    let policy = policies::named(name).filter(|policy| !policy.serves(objective))?;
    let what = format!("`{name}` does not serve `objective.is = \"{}\"`", objective.name());
    let words: Vec<String> = policy.objectives().into_iter().map(|word| format!("`{word}`")).collect();
    let help = format!("{}; it serves {}", policy.limit, words.join(" and "));
    Some(Finding::error(Code::OtherObjective, at, what).help(help))
}
