//! The capacity question of a serving scenario: every fleet is the scenario with another fleet in it, served by the same loop.

use engine::cost::provenance::Grounds;
use engine::stop;
use engine::verdict::Refused;
use planner::deploy::capacity::{self as asked, Answer, Asked, Candidate, CostSources, Peak, Quoted, Served};
use rayon::prelude::*;
use reports::capacity::{Capacity, SCHEMA};
use reports::{PolicyResult, table};
use serve::arrivals::{self, Arrivals};
use serve::request::Requests;

use super::{Row, best, policy, scaling};
use crate::kinds::{self, Planned};
use scenario::serving::placed::deployments;
use scenario::serving::{CostLaw, Serving};

/// What the price of a token counts.
const PER_TOKEN: &str = "dollars per million output tokens, with every replica paid from time zero until the last request ends or is refused";

/// Why a fleet was not tried.
fn late() -> Refused {
    Refused::out_of_time("stopped before it was served")
}

/// The report; `None` where the scenario asks nothing.
pub fn capacity(scenario: &Serving) -> Option<Capacity> {
    let question = &scenario.capacity.as_ref()?.question;
    let one = |asked: &Asked<'_>| stop::unless_over(|| served(scenario, asked)).unwrap_or_else(|| Err(late()));
    let judge = |all: &[Asked<'_>]| all.par_iter().map(one).collect();
    let mut answer = asked::answer(question, &judge);
    let mut sources: Vec<String> = answer.costs().into_iter().chain(answer.too_short.take()).collect();
    if stop::is_asked() {
        // Loads and prices that were not served would read as limits that are broken.
        (answer.headroom, answer.no_headroom, answer.sensitivity) = (None, None, Vec::new());
        sources.push("stopped early: fleets that were not served are left out, and headroom is not known".to_owned());
    }
    sources.extend(answer.no_headroom.take());
    sources.extend(scenario.one_draw());
    sources.extend(scenario.free_parameters.iter().cloned());
    sources.push(PER_TOKEN.to_owned());
    sources.extend(question.quoted.iter().filter_map(Quoted::words));
    Some(report(scenario, answer, sources))
}

/// `plan.json` of a fleet that was tried: the deployment that it is, checked, with the requests as they come.
///
/// # Errors
/// Why it cannot be served, or why the checker refuses it.
pub fn written(scenario: &Serving, fleet: &str) -> Option<Result<Planned, Refused>> {
    let capacity = scenario.capacity.as_ref()?;
    let candidate = capacity.question.candidates.iter().find(|candidate| candidate.name == fleet)?;
    Some(planned(scenario, candidate))
}

fn planned(scenario: &Serving, candidate: &Candidate) -> Result<Planned, Refused> {
    let capacity = scenario.capacity.as_ref().expect("only a scenario that asks is judged");
    let (quoted, load) = (&capacity.question.quoted, scenario.requests.clone());
    let varied = scenario.varied(&capacity.policy, &candidate.variation, quoted, load)?;
    let choice = &varied.choices[0];
    let planned = if scenario::serving::scaling::asked(&varied, choice).is_some() {
        scaling::written(&varied, choice)?
    } else {
        best::planned(&varied, (policy(&varied, choice), Some(choice)))?
    };
    let (origin, how) = (crate::kinds::origin(&varied.head), Some(format!("for {}", candidate.name)));
    Ok(Planned { how, ..planned.with(serde_json::json!({ "origin": origin, "fleet": candidate.name })) })
}

/// Serves what is asked by the fleet that is asked.
fn served(scenario: &Serving, asked: &Asked<'_>) -> Result<Served, Refused> {
    if stop::is_asked() {
        return Err(late());
    }
    let capacity = scenario.capacity.as_ref().expect("only a scenario that asks is judged");
    let load = requests(scenario, &capacity.question.peak, asked)?;
    let mut varied = scenario.varied(&capacity.policy, &asked.candidate.variation, &capacity.question.quoted, load)?;
    varied.slo = asked.limit.map_or(varied.slo, |key| varied.slo.only(key));
    // The same requests count at every load, and the same ones meet an outage.
    varied.keep_time(&asked.clock(&capacity.question.peak));
    // A plan of it would be refused so; costs of published runs have no plan.
    let choice = &varied.choices[0];
    if matches!(varied.law, CostLaw::Operations) {
        deployments(&varied, choice)?;
    }
    let Row { result, source, provenance, .. } = policy(&varied, choice);
    let PolicyResult { status, why, metrics, interval, .. } = result;
    let measured_ratio = provenance.measured_ratio();
    let facts = kinds::grounded(&varied.profiles(), &Grounds::of(source, provenance), &[]);
    let costs = CostSources { words: table::costs(&facts), measured_ratio };
    let found = Served { metrics, interval, overload: varied.overload(choice), costs };
    if status.is_ok() { Ok(found) } else { Err(Refused { ended: status, why }) }
}

/// The requests of the window at the load that is asked.
fn requests(scenario: &Serving, peak: &Peak, asked: &Asked<'_>) -> Result<Requests, Refused> {
    let at = |seconds: f64| hw::Time::ZERO + hw::Span::from_seconds(hw::Seconds::new(seconds));
    let all = &scenario.requests;
    let is_part = asked.is_peak && !peak.is_whole;
    let mut requests = if is_part { all.window(at(peak.from_s), at(peak.to_s)) } else { all.clone() };
    let replay = Arrivals::Replay { speed: asked.load };
    let n_late = if asked.load == 1.0 { 0 } else { arrivals::lay(&mut requests, replay, scenario.head.seed) };
    if n_late > 0 { Err(Refused::infeasible(format!("{n_late} requests would arrive too late"))) } else { Ok(requests) }
}

fn report(scenario: &Serving, answer: Answer, sources: Vec<String>) -> Capacity {
    let question = &scenario.capacity.as_ref().expect("only a scenario that asks is judged").question;
    Capacity {
        schema: SCHEMA.to_owned(),
        scenario: scenario.head.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        origin: crate::kinds::origin(&scenario.head),
        minimize: question.minimize.key().to_owned(),
        limits: question.limits_words(),
        target_ratio: question.target_ratio,
        points: answer.points,
        left_out: answer.left_out,
        is_complete: !stop::is_asked(),
        chosen: answer.chosen,
        safe: answer.safe,
        headroom: answer.headroom,
        sensitivity: answer.sensitivity,
        sources,
    }
}
