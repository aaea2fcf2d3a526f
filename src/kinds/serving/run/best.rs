//! One choice among several ways of serving, and how prompts are cut: what was decided, as facts of a planner.

use std::collections::BTreeMap;
use std::time::Instant;

use engine::cost::Source;
use engine::play::Case;
use planner::deploy::tune::{self, Found};
use rayon::prelude::*;
use reports::{PlannerFacts, PolicyResult};
use serve::fleet::Fleet;
use serve::prefill::chunks::Sizes;
use serve::request::Requests;

use super::{Figures, figures, policy};
use crate::kinds::serving::read::{Best, Candidate, Serving, ServingChoice};
use reports::expect;

/// Chunks of a prompt that are named one by one.
const CHUNKS_SHOWN: usize = 32;

/// A way that was tried: its figure, or why it has none.
type Tried<'s> = (&'s ServingChoice, Result<f64, String>);

/// Serves with every way and takes the best one.
pub fn row(scenario: &Serving, best: &Best) -> (PolicyResult, Source) {
    let begun = Instant::now();
    let ways: Vec<&ServingChoice> = scenario.ways_of(best).collect();
    let tried: Vec<Tried<'_>> = ways.par_iter().map(|way| (*way, figure(scenario, best, way))).collect();
    let of_ways: Vec<Option<f64>> = tried.iter().map(|(_, figure)| figure.as_ref().ok().copied()).collect();
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let Some(found) = tune::best(&of_ways, best.aim.seeks) else {
        let first = tried.into_iter().find_map(|(_, figure)| figure.err()).unwrap_or_default();
        let why = format!("none of {} ways can be served within the limits; the first one: {first}", ways.len());
        let row =
            PolicyResult { policy: best.name.clone(), status: "infeasible".to_owned(), why, ..PolicyResult::default() };
        return (row, Source::Measured);
    };
    let way = ways[found.best];
    let (mut row, source) = policy(scenario, way);
    row.policy.clone_from(&best.name);
    row.measured.planner_wall_s = planner_wall_s;
    row.why = format!("{}: {}", candidate(way).label.replace('_', " "), row.why);
    row.planner = Some(facts(best, found, &tried, row.planner.take()));
    (row, source)
}

fn candidate(way: &ServingChoice) -> &Candidate {
    way.candidate.as_ref().expect("a way is a candidate")
}

/// What a way gives of what is sought.
///
/// # Errors
/// Why it cannot be served, or the limit that it breaks.
fn figure(scenario: &Serving, best: &Best, way: &ServingChoice) -> Result<f64, String> {
    if let Some(why) = &candidate(way).refused {
        return Err(why.clone());
    }
    let Figures { values, .. } = figures(scenario, way, Case::Expected);
    if let Some(broken) = expect::broken(&best.within, &values) {
        return Err(broken);
    }
    values.get(&best.aim.metric).copied().ok_or_else(|| format!("there is no `{}`", best.aim.metric))
}

/// What was chosen, what came next, and what every way gives.
fn facts(best: &Best, found: Found, tried: &[Tried<'_>], cut: Option<PlannerFacts>) -> PlannerFacts {
    let value = |at: usize| tried[at].1.as_ref().copied().unwrap_or(f64::NAN);
    let objective = value(found.best);
    let n_refused = tried.len() - found.n_tried;
    let mut notes = vec![format!(
        "best of {} ways that can be served, {n_refused} cannot; all were tried, so the bound is the answer",
        found.n_tried
    )];
    if let Some(at) = found.runner_up {
        let worse = tune::worse_by(objective, value(at)) * 100.0;
        notes.push(format!("runner-up, {worse:.1} % worse: {}", candidate(tried[at].0).label.replace('_', " ")));
    }
    if let Some((way, Err(why))) = tried.iter().find(|(_, figure)| figure.is_err()) {
        notes.push(format!("{} is out: {why}", candidate(way).label.replace('_', " ")));
    }
    let mut figures: BTreeMap<String, f64> = candidate(tried[found.best].0).values.iter().cloned().collect();
    for (way, figure) in tried {
        if let Ok(value) = figure {
            figures.insert(format!("{}_{}", best.aim.metric, candidate(way).label), *value);
        }
    }
    let cut = cut.unwrap_or_default();
    figures.extend(cut.figures);
    notes.extend(cut.notes);
    PlannerFacts {
        objective: Some(objective),
        aim: best.aim.counts,
        bound: Some(objective),
        gap_ratio: Some(0.0),
        status: "optimal".to_owned(),
        notes,
        figures,
    }
}

/// How the longest prompt is cut when it is alone, where an engine seeks chunks of equal time, beside what is known.
pub fn chunks(fleet: &Fleet, requests: &Requests, known: Option<PlannerFacts>) -> Option<PlannerFacts> {
    let longest = requests.list.iter().map(|request| request.prompt).max()?;
    let tables = fleet.groups.iter().map(|group| &group.engine.table);
    let mut seeking =
        tables.filter(|table| table.chunking().is_some_and(|chunking| chunking.sizes == Sizes::EqualTime));
    let Some(sizes) = seeking.find_map(|table| table.chunks_of(longest)) else { return known };
    let mut facts = known.unwrap_or_else(|| PlannerFacts { status: "heuristic".to_owned(), ..PlannerFacts::default() });
    let (first, last) = (sizes.first()?, sizes.last()?);
    facts.notes.push(format!("{} chunks of the longest prompt, from {first} to {last} tokens", sizes.len()));
    for (index, size) in sizes.iter().take(CHUNKS_SHOWN).enumerate() {
        facts.figures.insert(format!("chunk_{:02}_tokens", index + 1), f64::from(*size));
    }
    Some(facts)
}
