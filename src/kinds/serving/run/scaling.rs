//! What a fleet that is planned while it serves is held against, and who decided what, in words.

use std::collections::BTreeMap;

use engine::play::Case;
use engine::verdict::Refused;
use planner::Status;
use planner::deploy::dynamo::online::Step;
use planner::deploy::dynamo::planned::{self, Held, Planned as Question, Said};
use reports::PlannerFacts;
use reports::views::KNOWS_FUTURE;
use serde_json::json;
use serve::fleet::Fleet;

use crate::kinds::{self, Planned};
use scenario::serving::placed::deployments;
use scenario::serving::played::fleet;
use scenario::serving::scaling;
use scenario::serving::settings::of_scenario;
use scenario::serving::{Serving, ServingChoice};

/// Adds what a row is held against, where the scenario plans: metrics, and words for its planner.
pub fn hold(
    scenario: &Serving,
    choice: &ServingChoice,
    fleet: &Fleet,
    decisions: Option<&[Step]>,
    values: &mut BTreeMap<String, f64>,
) -> Option<PlannerFacts> {
    let Question { interval_s, .. } = scaling::first(scenario)?;
    let beyond_profile = scaling::beyond_profile(scenario, choice);
    let (requests, from) = (&scenario.requests_of(choice), scenario.warm_up);
    let held = Held { slo: &scenario.slo, requests, from, interval_s, beyond_profile };
    let Said { mut notes, mut figures } = planned::hold(&held, fleet, decisions, values);
    notes.extend(scaling::unforeseen(scenario, choice).map(str::to_owned));
    figures.extend(scaling::knows_future(scenario, choice).then(|| (KNOWS_FUTURE.to_owned(), 1.0)));
    Some(PlannerFacts { status: Status::Heuristic, notes, figures, ..PlannerFacts::default() })
}

/// `plan.json` of a choice that is planned: the deployment with as many replicas as there may be, checked, and how many run from when on.
///
/// # Errors
/// Why the checker refuses the deployment.
pub fn written(scenario: &Serving, choice: &ServingChoice) -> Result<Planned, Refused> {
    let placed = deployments(scenario, choice)?;
    let (fleet, _) = fleet(scenario, choice, Case::Expected);
    let super::Figures { planner, why, values, steps, .. } = super::figures(scenario, choice, Case::Expected);
    let names: Vec<&str> = fleet.groups.iter().map(|group| group.name.as_str()).collect();
    let schedule = planned::schedule(&fleet, &steps).into_iter().map(|(from_s, replicas)| {
        let replicas: BTreeMap<&str, u32> = names.iter().copied().zip(replicas).collect();
        json!({ "from_s": from_s, "replicas": replicas })
    });
    let settings = of_scenario(scenario, &choice.name, &[]);
    let more = json!({ "schedule": schedule.collect::<Vec<_>>(), "predicted": values, "settings": settings });
    let facts = planner.unwrap_or_default();
    Ok(kinds::deployed_as(&scenario.head, &choice.name, &placed, facts, &why).with(more))
}
