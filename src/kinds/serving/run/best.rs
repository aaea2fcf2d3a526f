//! One choice among several ways of serving, and how prompts are cut: what was decided, as facts of a planner.

use std::time::Instant;

use engine::play::Case;
use engine::verdict::Refused;
use planner::deploy::tune::{self, Tried};
use rayon::prelude::*;
use reports::PlannerFacts;
use reports::expect;
use serve::first_token::{self, Asked};
use serve::fleet::Fleet;
use serve::metrics;
use serve::request::Requests;
use serve::step_cost::chunks::Sizes;

use super::{Figures, Row, figures, policy};
use crate::kinds::{self, Planned};
use scenario::serving::placed::deployments;
use scenario::serving::played::fleet;
use scenario::serving::settings::of_scenario;
use scenario::serving::{Best, Candidate, CostLaw, Serving, ServingChoice};

/// Chunks of a prompt that are named one by one.
const CHUNKS_SHOWN: usize = 32;

/// What bounds the mean time to the first token, in words.
const OF_CUTS: &str = "what no cut of the prompts beats, listed or not, on an engine that has nothing else to do";

/// Serves with every way and takes the best one.
pub fn row(scenario: &Serving, best: &Best) -> Row {
    found(scenario, best).0
}

/// `plan.json` of a way with its row: its engines, and what the scenario sets of them.
pub fn planned(scenario: &Serving, (row, way): (Row, Option<&ServingChoice>)) -> Result<Planned, Refused> {
    let row = row.result;
    let Some(way) = way.filter(|_| row.status.is_ok()) else {
        return Err(Refused { ended: row.status, why: row.why });
    };
    let placed = deployments(scenario, way)?;
    let words = way.candidate.as_ref().map_or(&[][..], |candidate| &candidate.words);
    let settings = of_scenario(scenario, &row.policy, words);
    let more = serde_json::json!({ "settings": settings, "predicted": row.metrics });
    let facts = row.planner.unwrap_or_default();
    Ok(kinds::deployed_as(&scenario.head, &row.policy, &placed, facts, &row.why).with(more))
}

/// The row of the best way, and that way.
pub fn found<'s>(scenario: &'s Serving, best: &'s Best) -> (Row, Option<&'s ServingChoice>) {
    let begun = Instant::now();
    let ways: Vec<&ServingChoice> = scenario.ways_of(best).collect();
    let tried: Vec<Tried> = ways.par_iter().map(|way| tried(scenario, best, way)).collect();
    let of_ways: Vec<Option<f64>> = tried.iter().map(|way| way.figure.as_ref().ok().copied()).collect();
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let Some(found) = tune::best(&of_ways, best.aim.seeks) else {
        let first = tried.into_iter().find_map(|way| way.figure.err()).map_or_else(String::new, |refused| refused.why);
        let why = format!("none of {} ways can be served within the limits; the first one: {first}", ways.len());
        let result = kinds::refused(&best.name, Refused::infeasible(why));
        return (Row::late(result), None);
    };
    let way = ways[found.best];
    let Row { result: mut row, source, provenance, .. } = policy(scenario, way);
    row.policy.clone_from(&best.name);
    row.measured.planner_wall_s = planner_wall_s;
    row.why = format!("{}: {}", candidate(way).label.replace('_', " "), row.why);
    // A request that is refused or left unserved has no first token, so the mean leaves it out.
    let all_served = ["n_refused", "n_unserved"].iter().all(|key| row.metrics.get(*key).is_none_or(|n| *n == 0.0));
    let bound = all_served.then(|| bound(scenario, best, &ways)).flatten();
    let beyond = bound.map(|bound| (bound, OF_CUTS));
    let decided = tune::decided(found, &tried, (&best.aim.metric, best.aim.counts), beyond);
    let mut facts = kinds::facts(&decided);
    let cut = row.planner.take().unwrap_or_default();
    facts.figures.extend(cut.figures);
    facts.notes.extend(cut.notes);
    row.planner = Some(facts);
    let way = row.status.is_ok().then_some(way);
    (Row { result: row, source, curves: None, provenance }, way)
}

/// What no way gives less than, where first tokens are sought: the least of every request on the best group of any way, as far as it is known.
fn bound(scenario: &Serving, best: &Best, ways: &[&ServingChoice]) -> Option<f64> {
    if best.aim.metric != "ttft_s.mean" || !matches!(scenario.law, CostLaw::Operations) {
        return None;
    }
    let served = ways.par_iter().filter(|way| way.refused.is_none());
    let of_ways: Option<Vec<f64>> = served.map(|way| least_ttft(scenario, way)).collect();
    of_ways?.into_iter().min_by(f64::total_cmp)
}

fn least_ttft(scenario: &Serving, way: &ServingChoice) -> Option<f64> {
    let (fleet, _) = fleet(scenario, way, Case::Expected);
    let groups = scenario.groups_of(way).into_iter().zip(&fleet.groups);
    let asked = groups.map(|(group, served)| {
        let (config, cost) = (scenario.deployment_of(way, group), scenario.costs(group));
        Asked { config, role: group.role, cost, table: &served.engine.table }
    });
    let asked: Vec<_> = asked.collect();
    Some(first_token::mean_ttft(&asked, &scenario.requests_of(way), scenario.known_from(way)?)?.get())
}

fn tried(scenario: &Serving, best: &Best, way: &ServingChoice) -> Tried {
    let Candidate { label, values, .. } = candidate(way).clone();
    Tried { label, values, figure: figure(scenario, best, way) }
}

pub(super) fn candidate(way: &ServingChoice) -> &Candidate {
    way.candidate.as_ref().expect("a way is a candidate")
}

/// What a way gives of what is sought.
///
/// # Errors
/// Why it cannot be served, or the limit that it breaks.
fn figure(scenario: &Serving, best: &Best, way: &ServingChoice) -> Result<f64, Refused> {
    way.sound()?;
    let Figures { values, .. } = figures(scenario, way, Case::Expected);
    if let Some(broken) = metrics::words::past_clock(&values).or_else(|| expect::broken(&best.within, &values)) {
        return Err(Refused::infeasible(broken));
    }
    values
        .get(&best.aim.metric)
        .copied()
        .ok_or_else(|| Refused::infeasible(format!("there is no `{}`", best.aim.metric)))
}

/// How the longest prompt is cut when it is alone, where an engine seeks chunks of equal time, beside what is known.
pub fn chunks(fleet: &Fleet, requests: &Requests, known: Option<PlannerFacts>) -> Option<PlannerFacts> {
    let longest = requests.list.iter().map(|request| request.prompt).max()?;
    let tables = fleet.groups.iter().map(|group| &group.engine.table);
    let mut seeking =
        tables.filter(|table| table.chunking().is_some_and(|chunking| chunking.sizes == Sizes::EqualTime));
    let Some(sizes) = seeking.find_map(|table| table.chunks_of(longest)) else { return known };
    let mut facts =
        known.unwrap_or_else(|| PlannerFacts { status: reports::Status::Heuristic, ..PlannerFacts::default() });
    let (first, last) = (sizes.first()?, sizes.last()?);
    facts.notes.push(format!("{} chunks of the longest prompt, from {first} to {last} tokens", sizes.len()));
    for (index, size) in sizes.iter().take(CHUNKS_SHOWN).enumerate() {
        facts.figures.insert(format!("chunk_{:02}_tokens", index + 1), f64::from(*size));
    }
    Some(facts)
}
