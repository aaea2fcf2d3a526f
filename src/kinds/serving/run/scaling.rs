//! Fleets that are planned while they serve: profiles from their engines, timetables of hindsight, and what each way of renting is held against.
//!
//! The bound of a row is what the cheapest schedule of replicas costs that knows what comes and meets the limits of `[slo]` for as many requests
//! as the row does, in the planner's own model: replicas have the rate of their profile, which knows no queues and no differences between
//! requests of an interval. Intervals and start-ups are those of the scenario's first planned group. Units: dollars, seconds, replicas.

use std::collections::BTreeMap;

use hw::{Seconds, Span, Time};
use planner::Status;
use planner::deploy::dynamo::colocated::Colocated;
use planner::deploy::dynamo::online::{Decision, Deployed, SlaPlanner};
use planner::deploy::dynamo::{Rules, Service, Traffic, profile};
use planner::deploy::hindsight::{Demand, Interval};
use reports::{PlannerFacts, PolicyResult};
use serve::fleet::Fleet;
use serve::fleet::dynamics::Rule;
use serve::replica::Role;

use crate::kinds::serving::read::scaling::{self, Planned, Planner};
use crate::kinds::serving::read::{Serving, ServingChoice};

/// Requests that a price is given for.
const PER_REQUESTS: f64 = 1e6;

/// Metrics that the table of a planned scenario shows.
pub const COLUMNS: [(&str, &str); 6] = [
    ("cost_usd_per_mreq_met", "per 1M met"),
    ("slo_attainment_ratio", "in limits"),
    ("cost_usd", "cost"),
    ("cost_gap_ratio", "gap to bound"),
    ("ttft_s.p90", "TTFT p90"),
    ("tpot_s.p90", "TPOT p90"),
];

/// What a fleet deploys, for planners; `None` where it has not one group for both phases or one for each.
fn deployed(fleet: &Fleet, rules: Rules) -> Option<(Deployed<'_>, Vec<usize>)> {
    let roles: Vec<Role> = fleet.groups.iter().map(|group| group.role).collect();
    let phases = scaling::phases(&roles)?;
    let of = |phase: usize| &fleet.groups[phases[phase]];
    let n_gpus = |phase| of(phase).gpus_per_replica;
    let deployed = if phases.len() == 1 {
        Deployed::Colocated(Colocated { engine: &of(0).engine, n_gpus: n_gpus(0), rules })
    } else {
        Deployed::Split(Service {
            prefill: profile::prefill(&of(0).engine, n_gpus(0)),
            decode: profile::decode(&of(1).engine, n_gpus(1)),
            prefill_gpus: n_gpus(0),
            decode_gpus: n_gpus(1),
            rules,
        })
    };
    Some((deployed, phases))
}

/// What a choice's planner is asked, where it has one.
fn asked(scenario: &Serving, choice: &ServingChoice) -> Option<Planned> {
    scenario.groups_of(choice).into_iter().find_map(|group| group.scaling.as_ref()?.planned)
}

fn rules(scenario: &Serving, planned: &Planned, fleet: &Fleet) -> Rules {
    let gpus = fleet.groups.iter().map(|group| group.n_replicas.saturating_mul(group.gpus_per_replica));
    planned.rules(scenario, gpus.fold(0, u32::saturating_add))
}

/// The planner that serves with a choice's fleet.
pub fn planner<'f>(scenario: &Serving, choice: &ServingChoice, fleet: &'f Fleet) -> Option<SlaPlanner<'f>> {
    let planned = asked(scenario, choice).filter(|planned| planned.planner == Planner::Sla)?;
    let (deployed, phases) = deployed(fleet, rules(scenario, &planned, fleet))?;
    Some(SlaPlanner::new(deployed, phases, planned.forecast))
}

/// Lays the timetable of hindsight over the groups of a choice that have one; with no batch within the targets, all that there are.
pub fn timetable(scenario: &Serving, choice: &ServingChoice, fleet: &mut Fleet) {
    let Some(planned) = asked(scenario, choice).filter(|planned| planned.planner == Planner::Hindsight) else { return };
    let Some((deployed, phases)) = deployed(fleet, rules(scenario, &planned, fleet)) else { return };
    let tables: Vec<(usize, Vec<(f64, u32)>)> = phases
        .iter()
        .enumerate()
        .map(|(phase, &group)| {
            let of = &fleet.groups[group];
            let start_up_s = of.scaling.as_ref().map_or(0.0, |scaling| scaling.start_up.get());
            let demand = demand(scenario, &deployed, phase, planned.interval_s, start_up_s);
            let all = vec![(0.0, of.n_replicas)];
            (group, demand.map_or(all, |demand| demand.timetable(&demand.needed())))
        })
        .collect();
    for (group, table) in tables {
        let of = &mut fleet.groups[group];
        let most = of.n_replicas;
        let Some(scaling) = &mut of.scaling else { continue };
        scaling.replicas_first = table.first().map_or(1, |(_, n)| scaling.within(*n, most));
        let at = |seconds: f64| Time::ZERO + Span::from_seconds(Seconds::new(seconds));
        scaling.rule = Rule::Timetable(table.into_iter().skip(1).map(|(from_s, n)| (at(from_s), n)).collect());
    }
}

/// Requests by interval, with the start of each.
fn traffic(scenario: &Serving, interval_s: f64) -> Vec<(f64, Traffic)> {
    let mut all: Vec<(f64, Traffic)> = Vec::new();
    let mut from_s = 0.0;
    let mut sums = Traffic { requests: 0.0, input: 0.0, output: 0.0 };
    let means = |sums: Traffic| Traffic {
        input: sums.input / sums.requests.max(1.0),
        output: sums.output / sums.requests.max(1.0),
        ..sums
    };
    for request in &scenario.requests.list {
        let at_s = (request.arrival - Time::ZERO).to_seconds().get();
        while at_s >= from_s + interval_s {
            all.push((from_s, means(sums)));
            (sums, from_s) = (Traffic { requests: 0.0, input: 0.0, output: 0.0 }, from_s + interval_s);
        }
        sums.requests += 1.0;
        sums.input += f64::from(request.prompt);
        sums.output += f64::from(request.output);
    }
    all.push((from_s, means(sums)));
    all
}

/// The load of a phase over time; the last interval ends with the last arrival and counts as if it went on so. `None` where no batch
/// keeps the targets.
fn demand(
    scenario: &Serving,
    deployed: &Deployed<'_>,
    phase: usize,
    interval_s: f64,
    start_up_s: f64,
) -> Option<Demand> {
    let last = scenario.requests.list.last()?;
    let end_s = (last.arrival - Time::ZERO).to_seconds().get();
    let interval = |(from_s, traffic): (f64, Traffic)| {
        let load = if traffic.requests > 0.0 { deployed.loads(&traffic).ok()?[phase] } else { 0.0 };
        Some(Interval { seconds: interval_s.min(end_s - from_s), load, requests: traffic.requests })
    };
    let intervals: Option<Vec<Interval>> = traffic(scenario, interval_s).into_iter().map(interval).collect();
    Some(Demand { intervals: intervals?, start_up_s })
}

/// Dollars of the cheapest schedule that meets the limits for a share of the requests, and what the peak takes in words.
fn bound(scenario: &Serving, fleet: &Fleet, planned: &Planned, start_up_s: f64, met: f64) -> Option<(f64, String)> {
    let (deployed, phases) = deployed(fleet, scaling::of_slo(scenario, planned.interval_s))?;
    let (mut usd, mut peaks) = (0.0, Vec::new());
    for (phase, &group) in phases.iter().enumerate() {
        let of = &fleet.groups[group];
        let demand = demand(scenario, &deployed, phase, planned.interval_s, start_up_s)?;
        let usd_per_s = of.usd_per_gpu_hour? * f64::from(of.gpus_per_replica) / 3600.0;
        usd += demand.bound(met) * usd_per_s;
        let peak = demand.intervals.iter().map(|interval| interval.load).fold(0.0, f64::max);
        peaks.push(format!("{peak:.2} of {} replicas of {}", of.n_replicas, of.name));
    }
    Some((usd, format!("the busiest interval takes {}", peaks.join(" and "))))
}

/// Adds what a row is held against, where the scenario plans: metrics, and words for its planner.
pub fn hold(
    scenario: &Serving,
    fleet: &Fleet,
    decisions: Option<&[Decision]>,
    values: &mut BTreeMap<String, f64>,
) -> Option<PlannerFacts> {
    let (planned, start_up_s) = scaling::first(scenario)?;
    let (usd, met) = (values.get("cost_usd").copied(), values.get("slo_attainment_ratio").copied());
    let mut facts = PlannerFacts { status: Status::Heuristic.name().to_owned(), ..PlannerFacts::default() };
    if let Some((usd, met)) = usd.zip(met) {
        let served = met * hw::Tokens(scenario.requests.len() as u64).as_f64();
        if served > 0.0 {
            values.insert("cost_usd_per_mreq_met".to_owned(), usd / served * PER_REQUESTS);
        }
    }
    if let Some(decisions) = decisions {
        describe(decisions, &mut facts);
    }
    let bound =
        usd.zip(met).and_then(|(usd, met)| Some((usd, met, bound(scenario, fleet, &planned, start_up_s, met)?)));
    match bound {
        Some((usd, met, (least, peak))) => {
            let gap = (usd - least) / usd;
            values.insert("cost_bound_usd".to_owned(), least);
            values.insert("cost_gap_ratio".to_owned(), gap);
            if decisions.is_none() {
                facts.notes.push(format!("what holds it back: {peak}"));
            }
            facts.notes.push(format!(
                "with hindsight and the profile's rates, {:.1} % of the requests within the limits take {least:.2} $ at least; paid are {usd:.2} $",
                met * 100.0
            ));
        }
        None => facts.notes.push("no bound: prices, limits or a profile within them are missing".to_owned()),
    }
    Some(facts)
}

/// What a planner decided, in words and figures.
fn describe(decisions: &[Decision], facts: &mut PlannerFacts) {
    let replicas = |decision: &Decision| decision.replicas.iter().sum::<u32>();
    let Some(most) =
        decisions.iter().max_by_key(|decision| (replicas(decision), std::cmp::Reverse(decision.at_s.to_bits())))
    else {
        return facts.notes.push("what holds it back: no interval ended before the run did".to_owned());
    };
    let n = hw::Tokens(decisions.len() as u64).as_f64();
    facts.notes.push(format!("what holds it back: at its most, from {:.0} s on, {}", most.at_s, most.binding));
    facts.notes.extend(most.runner_up.as_ref().map(|about| format!("runner-up then: {about}")));
    facts.figures.insert("n_decisions".to_owned(), n);
    facts.figures.insert("n_replicas_max".to_owned(), f64::from(replicas(most)));
    let errors = decisions.windows(2).map(|pair| (pair[0].forecast - pair[1].requests).abs());
    let arrived: f64 = decisions.iter().skip(1).map(|decision| decision.requests).sum();
    if arrived > 0.0 {
        facts.figures.insert("forecast_error_ratio".to_owned(), errors.sum::<f64>() / arrived);
    }
}

/// Names each row's runner-up: the cheapest other way that keeps the limits for as many requests, or else the one that keeps them for most.
pub fn runners_up(rows: &mut [PolicyResult]) {
    let figures: Vec<Option<(f64, f64)>> = rows
        .iter()
        .map(|row| row.metrics.get("cost_usd").copied().zip(row.metrics.get("slo_attainment_ratio").copied()))
        .collect();
    let names: Vec<String> = rows.iter().map(|row| row.policy.clone()).collect();
    for (index, row) in rows.iter_mut().enumerate() {
        let (Some(facts), Some((_, met))) = (&mut row.planner, figures[index]) else { continue };
        let others = || (0..names.len()).filter(|&other| other != index).filter_map(|at| Some((at, figures[at]?)));
        let as_good = others().filter(|(_, (_, of))| *of >= met).min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let closest = || others().max_by(|a, b| a.1.1.total_cmp(&b.1.1).then(b.0.cmp(&a.0)));
        let words =
            |(at, (usd, of)): (usize, (f64, f64))| format!("`{}`, {usd:.2} $ and {:.1} %", names[at], of * 100.0);
        let note = match (as_good, closest()) {
            (Some(other), _) => format!("runner-up, the cheapest that meets as many: {}", words(other)),
            (None, Some(other)) => format!("runner-up, as no other meets as many: {}", words(other)),
            (None, None) => continue,
        };
        facts.notes.push(note);
    }
}
