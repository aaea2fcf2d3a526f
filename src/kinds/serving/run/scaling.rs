//! What a fleet that is planned while it serves is held against, and who decided what, in words.

use std::collections::BTreeMap;

use engine::play::Case;
use engine::verdict::Refused;
use planner::Status;
use planner::deploy::RentalError;
use planner::deploy::dynamo::online::Step;
use planner::deploy::dynamo::planned::{self, Held, Planned as Question, Said};
use reports::{PlannerFacts, PolicyResult};
use serde_json::json;
use serve::check::{Site, check};
use serve::deployment::{Deployment, Lifted, of_engines};
use serve::fleet::Fleet;

use crate::kinds::{self, Planned};
use scenario::serving::scaling;
use scenario::serving::{Serving, ServingChoice, ServingGroup};

/// What a choice's planner is asked, where it has one.
pub fn asked(scenario: &Serving, choice: &ServingChoice) -> Option<Question> {
    scenario.groups_of(choice).into_iter().find_map(|group| group.scaling.as_ref()?.planned)
}

/// Adds what a row is held against, where the scenario plans: metrics, and words for its planner.
pub fn hold(
    scenario: &Serving,
    fleet: &Fleet,
    decisions: Option<&[Step]>,
    values: &mut BTreeMap<String, f64>,
) -> Option<PlannerFacts> {
    let (Question { interval_s, .. }, start_up_s) = scaling::first(scenario)?;
    let held = Held { slo: &scenario.slo, requests: &scenario.requests, interval_s, start_up_s };
    let Said { notes, figures } = planned::hold(&held, fleet, decisions, values);
    Some(PlannerFacts { status: Status::Heuristic, notes, figures, ..PlannerFacts::default() })
}

/// `plan.json` of a choice that is planned: the deployment with as many replicas as there may be, checked, and how many run from when on.
///
/// # Errors
/// Why the checker refuses the deployment.
pub fn written(scenario: &Serving, choice: &ServingChoice) -> Result<Planned, Refused> {
    let placed = deployments(scenario, choice)?;
    let (fleet, _) = super::fleet(scenario, choice, Case::Expected);
    let super::Figures { planner, why, values, steps, .. } = super::figures(scenario, choice, Case::Expected);
    let names: Vec<&str> = fleet.groups.iter().map(|group| group.name.as_str()).collect();
    let schedule = planned::schedule(&fleet, &steps).into_iter().map(|(from_s, replicas)| {
        let replicas: BTreeMap<&str, u32> = names.iter().copied().zip(replicas).collect();
        json!({ "from_s": from_s, "replicas": replicas })
    });
    let more = json!({ "schedule": schedule.collect::<Vec<_>>(), "predicted": values });
    let facts = planner.unwrap_or_default();
    Ok(kinds::deployed_as(&scenario.head, &choice.name, &placed, facts, &why).with(more))
}

/// The fleet of a choice as deployments that the checker holds, one for each model.
///
/// # Errors
/// Why the checker refuses one.
pub fn deployments(scenario: &Serving, choice: &ServingChoice) -> Result<Vec<Deployment>, Refused> {
    let groups = scenario.groups_of(choice);
    let mut models: Vec<u32> = groups.iter().map(|group| group.model_index).collect();
    models.sort_unstable();
    models.dedup();
    if models.is_empty() {
        return Err(Refused::infeasible("no group serves"));
    }
    let of_model = |model: u32| groups.iter().copied().filter(move |group| group.model_index == model).collect();
    models.into_iter().map(|model| deployment(scenario, choice, of_model(model))).collect()
}

/// Groups of one model as a deployment.
fn deployment(scenario: &Serving, choice: &ServingChoice, groups: Vec<&ServingGroup>) -> Result<Deployment, Refused> {
    let mut engines = Vec::new();
    for &group in &groups {
        engines.push(Lifted {
            name: &group.name,
            copies: scenario.replicas_of(choice, group),
            role: group.role,
            config: scenario.deployment_of(choice, group),
            limits: scenario.limits(choice, group),
            batcher: choice.batcher.name(),
            usd_per_gpu_hour: group.usd_per_gpu_hour,
        });
    }
    let model = &groups[0].model;
    let deployment = of_engines(model, &engines);
    let (mut parameter_bytes, mut kv_bytes) = (2.0_f64, 2.0_f64);
    for config in groups.iter().map(|group| scenario.deployment_of(choice, group)) {
        let least = config.formats.products().map(|format| format.weight_bytes(1.0)).into_iter().fold(2.0, f64::min);
        // What sparse kernels keep of weights the checker cannot say; its room for keys and values has been taken already.
        parameter_bytes = parameter_bytes.min(if config.sparse_weights.is_some() { 0.0 } else { least });
        kv_bytes = kv_bytes.min(hw::real(config.formats.kv.bytes()));
    }
    let site = Site { model, machines: &deployment.machines, parameter_bytes, kv_bytes };
    check(&deployment, &site).map_err(RentalError::refused)?;
    Ok(deployment)
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
