//! Fleets that are planned while they serve: profiles from their engines, timetables of hindsight, and the bound of both.
//!
//! Timetables know the rates of a profile, as the planner does. No schedule costs less than the bound that meets the limits for as many requests: a request
//! takes what no batch does for less (`serve::outlook::work`), and may wait as long as limits allow. Which drafts are accepted is drawn by request and
//! position, so the tokens of a verification are known for each interval, but for sequences that are computed again. Units: dollars, seconds, replicas.

use std::collections::BTreeMap;

use hw::{Seconds, Span, Time};
use serve::fleet::dynamics::Rule;
use serve::fleet::{Fleet, Group};
use serve::metrics::Slo;
use serve::outlook::work::work;
use serve::replica::Role;
use serve::request::{Request, Requests};
use serve::speculation::Acceptance;

use super::colocated::Colocated;
use super::forecast::Forecast;
use super::online::{Deployed, SlaPlanner, Step};
use super::{Rules, Service, Traffic, profile};
use crate::deploy::hindsight::{Demand, Interval, Load, Work};

/// Limits that nobody breaks, where only one of the two is given.
pub const NO_LIMIT_S: f64 = 1e6;

/// Who plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planner {
    /// Dynamo's SLA planner, interval by interval.
    Sla,
    /// The cheapest schedule of those who know what comes.
    Hindsight,
}

/// What a planner is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// Who plans.
    pub planner: Planner,
    /// Time between decisions.
    pub interval_s: f64,
    /// How the next interval is forecast.
    pub forecast: Forecast,
    /// Targets, where they are not the limits of `[slo]`.
    pub ttft_s: Option<f64>,
    /// The same between tokens.
    pub tpot_s: Option<f64>,
    /// Replicas of a phase that a decision may add or take away.
    pub change_max: u32,
    /// GPUs of all phases at most, where they are fewer than the groups have.
    pub gpus_max: Option<u32>,
}

impl Planned {
    /// Targets and limits of a planner over so many GPUs.
    pub fn rules(&self, slo: &Slo, n_gpus: u32) -> Rules {
        let all = of_slo(slo, self.interval_s);
        Rules {
            ttft_s: self.ttft_s.unwrap_or(all.ttft_s),
            itl_s: self.tpot_s.unwrap_or(all.itl_s),
            n_gpus_max: self.gpus_max.unwrap_or(n_gpus).min(n_gpus),
            change_max: self.change_max,
            ..all
        }
    }
}

/// The limits of `[slo]` as targets, with all the GPUs in the world.
pub fn of_slo(slo: &Slo, interval_s: f64) -> Rules {
    let limit = |limit: Option<Seconds>| limit.map_or(NO_LIMIT_S, Seconds::get);
    Rules { ttft_s: limit(slo.ttft), itl_s: limit(slo.tpot), interval_s, n_gpus_max: u32::MAX, change_max: u32::MAX }
}

/// Groups of the phases, where a fleet has one group of both phases or one of each: positions in the choice's groups.
pub fn phases(roles: &[Role]) -> Option<Vec<usize>> {
    let at = |role: Role| roles.iter().position(|found| *found == role);
    match roles {
        [Role::Both] => Some(vec![0]),
        [_, _] => Some(vec![at(Role::Prefill)?, at(Role::Decode)?]),
        _ => None,
    }
}

/// What a fleet deploys, for planners; `None` where it has not one group for both phases or one for each.
fn deployed(fleet: &Fleet, rules: Rules) -> Option<(Deployed<'_>, Vec<usize>)> {
    let decodes = &fleet.groups[*phases(&roles(fleet))?.last()?].engine;
    deployed_at(fleet, rules, profile::tokens_per_step(decodes))
}

fn roles(fleet: &Fleet) -> Vec<Role> {
    fleet.groups.iter().map(|group| group.role).collect()
}

/// The same where an iteration gives a sequence so many tokens.
fn deployed_at(fleet: &Fleet, rules: Rules, tokens_per_step: f64) -> Option<(Deployed<'_>, Vec<usize>)> {
    let phases = phases(&roles(fleet))?;
    let of = |phase: usize| &fleet.groups[phases[phase]];
    let n_gpus = |phase| of(phase).gpus_per_replica;
    let deployed = if phases.len() == 1 {
        Deployed::Colocated(Colocated { engine: &of(0).engine, n_gpus: n_gpus(0), rules, tokens_per_step })
    } else {
        Deployed::Split(Service {
            prefill: profile::prefill(&of(0).engine, n_gpus(0)),
            decode: profile::decode(&of(1).engine, n_gpus(1), tokens_per_step),
            prefill_gpus: n_gpus(0),
            decode_gpus: n_gpus(1),
            rules,
        })
    };
    Some((deployed, phases))
}

fn rules(planned: &Planned, slo: &Slo, fleet: &Fleet) -> Rules {
    let gpus = fleet.groups.iter().map(|group| group.n_replicas.saturating_mul(group.gpus_per_replica));
    planned.rules(slo, gpus.fold(0, u32::saturating_add))
}

/// The planner that decides for a fleet while it serves; `None` where hindsight decides, or the groups are not those of its phases.
pub fn planner<'f>(planned: &Planned, slo: &Slo, fleet: &'f Fleet) -> Option<SlaPlanner<'f>> {
    if planned.planner != Planner::Sla {
        return None;
    }
    let (deployed, phases) = deployed(fleet, rules(planned, slo, fleet))?;
    Some(SlaPlanner::new(deployed, phases, planned.forecast))
}

/// Lays the timetable of hindsight over the groups of a choice that have one; with no batch within the targets, all that there are.
pub fn timetable(planned: &Planned, slo: &Slo, requests: &Requests, fleet: &mut Fleet) {
    if planned.planner != Planner::Hindsight {
        return;
    }
    let rules = rules(planned, slo, fleet);
    let Some((_, phases)) = deployed(fleet, rules) else { return };
    let tables: Vec<(usize, Vec<(f64, u32)>)> = phases
        .iter()
        .enumerate()
        .map(|(phase, &group)| {
            let of = &fleet.groups[group];
            let start_up_s = of.scaling.as_ref().map_or(0.0, |scaling| scaling.start_up.get());
            let demand = demand(requests, (&*fleet, rules), phase, planned.interval_s, start_up_s);
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

/// Requests of an interval, summed up.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    input: f64,
    output: f64,
    /// Tokens after first ones, and the verifications that give them, where tokens are drafted.
    verified: [f64; 2],
}

impl Sums {
    fn add(&mut self, index: u32, request: &Request, acceptance: Option<&Acceptance>) {
        self.requests += 1.0;
        self.input += f64::from(request.prompt);
        self.output += f64::from(request.output);
        if let Some(acceptance) = acceptance {
            self.verified[0] += f64::from(request.output - 1);
            self.verified[1] += hw::real(acceptance.verifications(index, request.output).count() as u64);
        }
    }

    fn traffic(&self) -> Traffic {
        let n = self.requests.max(1.0);
        Traffic { requests: self.requests, input: self.input / n, output: self.output / n }
    }

    /// Tokens that a verification gave a sequence; `None` where there was none.
    fn tokens_per_step(&self) -> Option<f64> {
        let [tokens, passes] = self.verified;
        (passes > 0.0).then(|| tokens / passes)
    }
}

/// Requests by interval, with the start of each.
fn by_interval(requests: &Requests, interval_s: f64, acceptance: Option<&Acceptance>) -> Vec<(f64, Sums)> {
    let mut all: Vec<(f64, Sums)> = Vec::new();
    let (mut from_s, mut sums) = (0.0, Sums::default());
    for (index, request) in (0..).zip(&requests.list) {
        let at_s = arrival_s(request);
        while at_s >= from_s + interval_s {
            all.push((from_s, sums));
            (sums, from_s) = (Sums::default(), from_s + interval_s);
        }
        sums.add(index, request, acceptance);
    }
    all.push((from_s, sums));
    all
}

/// The load of a phase of a fleet over time; the last interval ends with the last arrival and counts as if it went on so. `None` where no batch
/// keeps the targets.
fn demand(
    requests: &Requests,
    (fleet, rules): (&Fleet, Rules),
    phase: usize,
    interval_s: f64,
    start_up_s: f64,
) -> Option<Demand> {
    let last = requests.list.last()?;
    let end_s = arrival_s(last);
    let (usual, phases) = deployed(fleet, rules)?;
    let acceptance = fleet.groups[*phases.last()?].engine.table.acceptance();
    let interval = |(from_s, sums): (f64, Sums)| {
        let traffic = sums.traffic();
        let drawn = sums.tokens_per_step().and_then(|tokens| deployed_at(fleet, rules, tokens));
        let deployed = drawn.as_ref().map_or(&usual, |(deployed, _)| deployed);
        let load = if traffic.requests > 0.0 { deployed.loads(&traffic).ok()?[phase] } else { 0.0 };
        Some(Interval { seconds: interval_s.min(end_s - from_s), load, requests: traffic.requests })
    };
    let intervals: Option<Vec<Interval>> =
        by_interval(requests, interval_s, acceptance).into_iter().map(interval).collect();
    Some(Demand { intervals: intervals?, start_up_s })
}

/// What every way of renting is held against.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// Limits.
    pub slo: &'a Slo,
    /// What comes.
    pub requests: &'a Requests,
    /// From when on requests count.
    pub from: Seconds,
    /// Time between decisions, seconds.
    pub interval_s: f64,
    /// What replicas have and the prices of tokens do not know, where they may be faster for it: nothing bounds their cost then.
    pub beyond_profile: Option<&'a str>,
}

/// From a request's arrival to its last token, at most, within the limits. Seconds.
fn patience_s(slo: &Slo, requests: &Requests) -> f64 {
    let limit = |limit: Option<Seconds>| limit.map_or(f64::INFINITY, Seconds::get);
    let most = requests.list.iter().map(|request| request.output).max().unwrap_or(1);
    // Nothing of no tokens is nothing, however long each may take.
    let tokens_s = if most > 1 { limit(slo.tpot) * f64::from(most - 1) } else { 0.0 };
    limit(slo.e2e).min(limit(slo.ttft) + tokens_s)
}

/// Whether replicas of a group are lost at times: nobody pays for them then, and there may be none.
fn may_be_lost(fleet: &Fleet, group: usize) -> bool {
    fleet.groups[group].failures.is_some() || fleet.outages.iter().any(|outage| outage.group == group)
}

/// Replica-seconds of a group that every schedule takes which meets the limits for a share of the requests that count; `None` where no price of a token is known.
fn replica_s(held: &Held<'_>, fleet: &Fleet, group: usize, met: f64) -> Option<f64> {
    let Held { slo, requests, from, .. } = *held;
    let Group { engine, role, .. } = &fleet.groups[group];
    let end_s = arrival_s(requests.list.last()?);
    // Every pair of prices holds by itself.
    let bounds = work(&engine.table, &engine.limits, *role, requests)?.into_iter().map(|seconds| {
        let all = requests.list.iter().zip(seconds).enumerate().filter(|(index, _)| requests.counts(*index, from));
        let works = all.map(|(_, (request, work_s))| Work { at_s: arrival_s(request), work_s, requests: 1.0 });
        let load = Load { works: works.collect(), end_s };
        if may_be_lost(fleet, group) { load.bound_with_losses(met) } else { load.bound(met, patience_s(slo, requests)) }
    });
    bounds.max_by(f64::total_cmp)
}

/// When a request arrives, seconds after the start.
fn arrival_s(request: &Request) -> f64 {
    (request.arrival - Time::ZERO).to_seconds().get()
}

/// Dollars that every schedule takes which meets the limits for a share of the requests.
pub fn bound(held: &Held<'_>, fleet: &Fleet, met: f64) -> Option<f64> {
    let of = |group: usize| {
        let Group { usd_per_gpu_hour, gpus_per_replica, .. } = fleet.groups[group];
        Some(replica_s(held, fleet, group, met)? * usd_per_gpu_hour? * f64::from(gpus_per_replica) / 3600.0)
    };
    phases(&roles(fleet))?.into_iter().map(of).sum()
}

/// What the busiest interval takes by the profile, in words; `None` where no batch keeps the limits.
fn peak(held: &Held<'_>, fleet: &Fleet) -> Option<String> {
    let rules = of_slo(held.slo, held.interval_s);
    let (_, phases) = deployed(fleet, rules)?;
    let of = |(phase, group): (usize, usize)| {
        let Group { n_replicas, name, .. } = &fleet.groups[group];
        let demand = demand(held.requests, (fleet, rules), phase, held.interval_s, 0.0)?;
        let peak = demand.intervals.iter().map(|interval| interval.load).fold(0.0, f64::max);
        Some(format!("{peak:.2} of {n_replicas} replicas of {name}"))
    };
    let peaks: Option<Vec<String>> = phases.into_iter().enumerate().map(of).collect();
    Some(format!("the busiest interval takes {}", peaks?.join(" and ")))
}

/// What is known of a row: notes and figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// In words.
    pub notes: Vec<String>,
    /// As figures.
    pub figures: BTreeMap<String, f64>,
}

/// Requests that a price is given for.
const PER_REQUESTS: f64 = 1e6;

/// Adds what a row of metrics is held against, with words for its planner; `decisions` are those of who planned while it served.
pub fn hold(held: &Held<'_>, fleet: &Fleet, decisions: Option<&[Step]>, values: &mut BTreeMap<String, f64>) -> Said {
    let mut said = Said::default();
    if let Some(decisions) = decisions {
        describe(decisions, &mut said);
    }
    let value = |key: &str| values.get(key).copied();
    let paid = value("cost_usd").zip(value("slo_attainment_ratio"));
    if let Some((usd, met)) = paid {
        let served = met * hw::real(held.requests.len() as u64);
        if served > 0.0 {
            values.insert("cost_usd_per_mreq_met".to_owned(), usd / served * PER_REQUESTS);
        }
    }
    if let Some(what) = held.beyond_profile {
        said.notes.push(format!("no bound: {what}"));
        return said;
    }
    if let Some(peak) = peak(held, fleet).filter(|_| decisions.is_none()) {
        said.notes.push(format!("what holds it back: {peak}"));
    }
    let Some((usd, met, least)) = paid.and_then(|(usd, met)| Some((usd, met, bound(held, fleet, met)?))) else {
        said.notes.push("no bound: prices, limits or least times of tokens are missing".to_owned());
        return said;
    };
    values.insert("cost_bound_usd".to_owned(), least);
    values.insert("cost_gap_ratio".to_owned(), (usd - least) / usd);
    said.notes.push(format!(
        "at the least times of tokens, {:.1} % of the requests within the limits take {least:.2} $ at least; paid are {usd:.2} $",
        met * 100.0
    ));
    said
}

/// What a planner decided, in words and figures.
fn describe(decisions: &[Step], facts: &mut Said) {
    let replicas = |decision: &Step| decision.replicas.iter().sum::<u32>();
    let Some(most) =
        decisions.iter().max_by_key(|decision| (replicas(decision), std::cmp::Reverse(decision.at_s.to_bits())))
    else {
        return facts.notes.push("what holds it back: no interval ended before the run did".to_owned());
    };
    let n = hw::real(decisions.len() as u64);
    facts.notes.push(format!("what holds it back: at its most, from {:.0} s on, {}", most.at_s, most.limit));
    facts.figures.insert("n_decisions".to_owned(), n);
    facts.figures.insert("n_replicas_max".to_owned(), f64::from(replicas(most)));
    let errors = decisions.windows(2).map(|pair| (pair[0].forecast - pair[1].requests).abs());
    let arrived: f64 = decisions.iter().skip(1).map(|decision| decision.requests).sum();
    if arrived > 0.0 {
        facts.figures.insert("forecast_error_ratio".to_owned(), errors.sum::<f64>() / arrived);
    }
}

/// Replicas of every group from each moment on, seconds after the start: by the decisions of who planned, or by the timetables of who knew.
pub fn schedule(fleet: &Fleet, steps: &[Step]) -> Vec<(f64, Vec<u32>)> {
    let phases = phases(&roles(fleet)).unwrap_or_default();
    let mut now: Vec<u32> = fleet.groups.iter().map(first).collect();
    let mut changes: Vec<(f64, usize, u32)> = Vec::new();
    for step in steps {
        changes.extend(phases.iter().zip(&step.replicas).map(|(&group, &n)| (step.at_s, group, n)));
    }
    for (group, of) in fleet.groups.iter().enumerate() {
        let Some(Rule::Timetable(table)) = of.scaling.as_ref().map(|scaling| &scaling.rule) else { continue };
        changes.extend(table.iter().map(|(at, n)| ((*at - Time::ZERO).to_seconds().get(), group, *n)));
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut schedule: Vec<(f64, Vec<u32>)> = vec![(0.0, now.clone())];
    for (at_s, group, n) in changes {
        if now[group] == n {
            continue;
        }
        now[group] = n;
        match schedule.last_mut() {
            Some(last) if last.0.total_cmp(&at_s).is_eq() => last.1.clone_from(&now),
            _ => schedule.push((at_s, now.clone())),
        }
    }
    schedule
}

/// Replicas of a group at the start.
fn first(group: &Group) -> u32 {
    group.scaling.as_ref().map_or(group.n_replicas, |scaling| scaling.replicas_first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serve::{metrics, router};

    use super::super::colocated::tests::engine;
    use super::*;

    fn slo() -> Slo {
        Slo { ttft: Some(Seconds::new(1.0)), tpot: Some(Seconds::new(0.05)), e2e: None }
    }

    /// What a fleet costs, and what no fleet is below that serves as many within the limits; where requests count from a moment on.
    fn held(fleet: &Fleet, requests: &Requests, from_s: f64) -> (f64, f64) {
        let mut router = (router::named("least-loaded").expect("listed").make)(1);
        let served = fleet.serve(requests, router.as_mut());
        let (slo, from) = (slo(), Seconds::new(from_s));
        let mut values = metrics::of(requests, &served, &slo, from);
        metrics::fleet::add(&mut values, fleet, &served);
        let held = Held { slo: &slo, requests, from, interval_s: 20.0, beyond_profile: None };
        hold(&held, fleet, None, &mut values);
        (values["cost_usd"], values["cost_bound_usd"])
    }

    fn group(name: &str, role: Role, n_replicas: u32) -> Group {
        Group { role, usd_per_gpu_hour: Some(2.0), ..Group::new(name, engine(64), n_replicas) }
    }

    #[test]
    fn prompts_of_one_iteration_share_its_start() {
        // Five prompts of 20 tokens at once take 10 ms and 100 times 0.1 ms: 20 of 25 ms, so one replica is enough. The profile has one prompt in an iteration,
        // 12 ms each, and asks for 2.4 replicas.
        let at = |n: u64| Time::ZERO + Span::from_ns(n / 5 * 25_000_000);
        let requests = Requests::of((0..1000).map(|n| Request::new(at(n), 20, 1)).collect());
        let (paid, least) = held(&Fleet::of(group("all", Role::Both, 1)), &requests, 0.0);
        assert!(least <= paid && least > 0.9 * paid, "{least} of {paid}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_fleet_costs_less_than_its_bound(
            shapes in prop::collection::vec((1_u32..600, 1_u32..12), 1..40),
            (n_requests, gap_ms) in (20_u64..400, 0_u64..40),
            n_replicas in 1_u32..4,
            (is_split, from_s) in (any::<bool>(), prop::sample::select(vec![0.0, 0.5, 2.0])),
        ) {
            let request = |n: u64| {
                let (prompt, output) = shapes[usize::try_from(n).expect("few") % shapes.len()];
                Request::new(Time::ZERO + Span::from_ns(n * gap_ms * 1_000_000), prompt, output)
            };
            // Someone counts.
            let late = Request::new(Time::ZERO + Span::from_ns(20_000_000_000), 100, 2);
            let requests = Requests::of((0..n_requests).map(request).chain([late]).collect());
            let groups = if is_split {
                vec![group("prompts", Role::Prefill, n_replicas), group("outputs", Role::Decode, 1)]
            } else {
                vec![group("all", Role::Both, n_replicas)]
            };
            let (paid, least) = held(&Fleet { groups, ..Fleet::default() }, &requests, from_s);
            prop_assert!(least > 0.0 && least <= paid, "{least} of {paid}");
        }
    }
}
