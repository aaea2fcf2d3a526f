//! What a fleet that is planned while it serves is held against, and who decided what, in words.

use std::collections::BTreeMap;

use planner::Status;
use planner::deploy::dynamo::online::Step;
use planner::deploy::dynamo::planned::{Held, Planned, bound};
use reports::{PlannerFacts, PolicyResult};
use serve::fleet::Fleet;

use crate::kinds::serving::read::scaling;
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

/// What a choice's planner is asked, where it has one.
pub fn asked(scenario: &Serving, choice: &ServingChoice) -> Option<Planned> {
    scenario.groups_of(choice).into_iter().find_map(|group| group.scaling.as_ref()?.planned)
}

/// Adds what a row is held against, where the scenario plans: metrics, and words for its planner.
pub fn hold(
    scenario: &Serving,
    fleet: &Fleet,
    decisions: Option<&[Step]>,
    values: &mut BTreeMap<String, f64>,
) -> Option<PlannerFacts> {
    let (planned, start_up_s) = scaling::first(scenario)?;
    let Planned { interval_s, .. } = planned;
    let held = Held { slo: &scenario.slo, requests: &scenario.requests, interval_s, start_up_s };
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
    let bound = usd.zip(met).and_then(|(usd, met)| Some((usd, met, bound(&held, fleet, met)?)));
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
fn describe(decisions: &[Step], facts: &mut PlannerFacts) {
    let replicas = |decision: &Step| decision.replicas.iter().sum::<u32>();
    let Some(most) =
        decisions.iter().max_by_key(|decision| (replicas(decision), std::cmp::Reverse(decision.at_s.to_bits())))
    else {
        return facts.notes.push("what holds it back: no interval ended before the run did".to_owned());
    };
    let n = hw::Tokens(decisions.len() as u64).as_f64();
    facts.notes.push(format!("what holds it back: at its most, from {:.0} s on, {}", most.at_s, most.limit));
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
