//! `scaling` of a `[[fleet.group]]`: who decides how many of its replicas run, and whether that fits the groups it serves with.

use hw::Seconds;
use planner::deploy::dynamo::forecast::Forecast;
use planner::deploy::dynamo::planned::{NO_LIMIT_S, Planned, Planner, phases};
use serve::fleet::dynamics::{Concurrency, Rule, Scaling};
use serve::replica::Role;

use super::{Serving, ServingChoice, ServingGroup};
use input::diagnostic::Code;
use input::reader::{Place, Reader, Section};

/// How many replicas of a group run as time goes on.
#[derive(Clone, Debug)]
pub struct ServingScaling {
    /// Fewest, first and start-up; the rule of a group that is planned says only when.
    pub scaling: Scaling,
    /// What a planner or hindsight is asked.
    pub planned: Option<Planned>,
    at: Place,
}

/// Seconds between decisions where a scenario says nothing (`adjustment_interval` there).
const INTERVAL_S: f64 = 180.0;
/// Replicas that a decision changes at most where a scenario says nothing.
const CHANGE_MAX: u32 = 8;

/// Reads `scaling` of a group with at most so many replicas.
pub fn scaling(section: &mut Section<'_>, most: u32) -> Option<ServingScaling> {
    let mut table = section.table("scaling")?;
    let at = table.at();
    let rule = table.word("rule", 0, &["concurrency", "sla", "hindsight"]);
    let replicas_min = table.small("min", Some(1), 1..=u64::from(most));
    let (rule, planned) = match rule {
        0 => (Rule::Concurrency(concurrency(&mut table)), None),
        1 => {
            let planned = planned(&mut table, Planner::Sla);
            (Rule::Planned { interval: Seconds::new(planned.interval_s) }, Some(planned))
        }
        _ => (Rule::Timetable(Vec::new()), Some(planned(&mut table, Planner::Hindsight))),
    };
    // Who knows what comes knows how many are first.
    let is_hindsight = planned.is_some_and(|planned| planned.planner == Planner::Hindsight);
    let mut first = || table.small("first", Some(replicas_min), 1..=u64::from(most));
    let replicas_first = if is_hindsight { replicas_min } else { first() };
    let start_up = Seconds::new(table.needed("start_up_s", 0.0..=1e6, "seconds until a new replica serves"));
    table.finish();
    let scaling = Scaling { replicas_min, replicas_first, start_up, rule };
    Some(ServingScaling { scaling, planned, at })
}

fn concurrency(table: &mut Section<'_>) -> Concurrency {
    Concurrency {
        target: table.needed("target", 1e-3..=1e6, "requests in the system per replica"),
        interval: Seconds::new(table.number("interval_s", 15.0, 1e-3..=1e6)),
        window: table.small("window", Some(20), 1..=100_000),
    }
}

fn planned(table: &mut Section<'_>, planner: Planner) -> Planned {
    let (ttft_s, tpot_s) = (table.some_number("ttft_s", 1e-6..=1e6), table.some_number("tpot_s", 1e-6..=1e6));
    let interval_s = table.number("interval_s", INTERVAL_S, 1.0..=1e6);
    let mut planned = Planned {
        planner,
        interval_s,
        forecast: Forecast::Constant,
        ttft_s,
        tpot_s,
        change_max: u32::MAX,
        gpus_max: None,
    };
    if planner == Planner::Sla {
        planned.forecast = forecast(table);
        planned.change_max = table.small("change_max", Some(CHANGE_MAX), 1..=100_000);
        planned.gpus_max = table.some_count("gpus_max", 1..=1_000_000);
    }
    planned
}

/// `forecast`, and `forecast_intervals` where it takes some.
fn forecast(table: &mut Section<'_>) -> Forecast {
    let kind = table.word("forecast", 0, &["constant", "moving-average", "kalman", "seasonal"]);
    if matches!(kind, 0 | 2) {
        table.idle(&["forecast_intervals"], "`forecast = \"moving-average\"` or `\"seasonal\"`");
    }
    let written = table.some_count("forecast_intervals", 1..=100_000);
    if kind == 3 && written.is_none() {
        table.missing("forecast_intervals", "intervals after which requests come again");
    }
    let intervals = written.unwrap_or(5) as usize;
    match kind {
        0 => Forecast::Constant,
        1 => Forecast::MovingAverage(intervals),
        2 => Forecast::Kalman,
        _ => Forecast::Seasonal(intervals),
    }
}

/// Groups that are planned serve alone or as a pair, have targets, and are planned alike.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let mut found: Vec<(Place, String, &str)> = Vec::new();
    let mut idle: Vec<Place> = Vec::new();
    for choice in &serving.choices {
        let groups = serving.groups_of(choice);
        let planned: Vec<(&ServingScaling, Planned)> = groups.iter().filter_map(|group| of(group)).collect();
        let Some((first, asked)) = planned.first() else { continue };
        let wrong = misfit(serving, &groups, asked, &planned);
        // A pair is planned by the rates of both phases: prompts per second and tokens within the target between them.
        if wrong.is_none() && groups.len() > 1 && asked.ttft_s.is_some() && !idle.contains(&first.at) {
            idle.push(first.at.clone());
        }
        found.extend(wrong.map(|(what, help)| (first.at.clone(), format!("`{}`: {what}", choice.name), help)));
    }
    for (at, what, help) in found {
        reader.refuse(Code::WrongScaling, at, what, help);
    }
    for at in idle {
        let what = "`scaling.ttft_s` changes nothing where prefill and decode are planned apart";
        reader.warn(
            Code::NoEffect,
            at,
            what,
            "prefill replicas are planned by their rate; more `replicas` answer sooner",
        );
    }
}

fn of(group: &ServingGroup) -> Option<(&ServingScaling, Planned)> {
    let scaling = group.scaling.as_ref()?;
    Some((scaling, scaling.planned?))
}

/// What is wrong with the planned groups of a choice, and what to do.
fn misfit(
    serving: &Serving,
    groups: &[&ServingGroup],
    asked: &Planned,
    planned: &[(&ServingScaling, Planned)],
) -> Option<(String, &'static str)> {
    let roles: Vec<Role> = groups.iter().map(|group| group.role).collect();
    if phases(&roles).is_none() || planned.len() != groups.len() {
        let what = "a planner decides for one group of both roles, or for one prefill and one decode group".to_owned();
        return Some((what, "write `groups` of the variant so, with the same `scaling.rule` in each"));
    }
    if planned.iter().any(|(_, other)| other != asked) {
        let what = "prefill and decode are planned together, and `scaling` differs in more than replicas and start-up";
        return Some((what.to_owned(), "write the same rule, interval, targets, forecast and limits in both groups"));
    }
    if asked.rules(&serving.slo, 1).itl_s >= NO_LIMIT_S {
        let what = "a planner has no target between tokens".to_owned();
        return Some((what, "write `tpot_s` in `[slo]` or in `scaling`"));
    }
    None
}

/// What a choice's planner is asked, where it has one.
pub fn asked(serving: &Serving, choice: &ServingChoice) -> Option<Planned> {
    serving.groups_of(choice).into_iter().find_map(|group| group.scaling.as_ref()?.planned)
}

/// What the scenario's planners are asked, the first one's where they differ: its intervals are those of the bound.
pub fn first(serving: &Serving) -> Option<Planned> {
    serving.groups.iter().find_map(of).map(|(_, planned)| planned)
}

/// What the replicas of a choice have that a profile does not know, and that may make them faster than their profile. Adapters and clients who
/// leave are refused beside a planner; a cache of prefixes is what engines have by themselves.
pub fn beyond_profile(serving: &Serving, choice: &ServingChoice) -> Option<&'static str> {
    (choice.limits.shares_prefixes && serving.requests.prefix_tokens > 0).then_some(
        "the profile computes every prompt token, and the prefix cache saves some of them; `prefix_cache = false` has a bound",
    )
}

/// Whether a choice's fleet is scaled by who knows what comes.
pub fn knows_future(serving: &Serving, choice: &ServingChoice) -> bool {
    asked(serving, choice).is_some_and(|asked| asked.planner == Planner::Hindsight)
}

/// What happens to a choice's fleet that hindsight does not count with.
pub fn unforeseen(serving: &Serving, choice: &ServingChoice) -> Option<&'static str> {
    let plans = knows_future(serving, choice);
    let fails = |group: &ServingGroup| {
        group.failures.is_some() || serving.outages.iter().any(|outage| outage.group() == group.name)
    };
    (plans && serving.groups_of(choice).into_iter().any(fails))
        .then_some("hindsight counts on every replica: those that are lost are not made up for")
}

/// Parameters that nobody measured, as sentences.
pub fn free_parameters(serving: &Serving) -> Vec<String> {
    let words = |group: &ServingGroup| {
        let start_up_s = group.scaling.as_ref()?.scaling.start_up.get();
        Some(format!("`{}.scaling.start_up_s` = {start_up_s}: assumed, not measured", group.name))
    };
    first(serving).map_or_else(Vec::new, |_| serving.groups.iter().filter_map(words).collect())
}
