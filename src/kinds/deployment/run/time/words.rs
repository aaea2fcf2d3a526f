//! What was rented in words, and `plan.json`.

use planner::deploy::{Plan, Problem};
use serde_json::json;

use super::{Decided, Planned};
use crate::kinds::deployment::read::time::{Rental, RentalChoice};

/// Schema of the plan's file.
const SCHEMA: &str = "skrull-sim/rental/1";
/// Shares below this are rounding and not named.
const SHARE_MIN: f64 = 5e-4;

/// What to rent, in a sentence.
pub fn rented(decided: &Decided) -> String {
    let plan = &decided.decision.plan;
    format!(
        "{} for {:.2} $/h of {} $/h",
        decided.problem.words(&plan.replicas),
        plan.usd_per_hour,
        decided.problem.budget_usd_per_hour
    )
}

/// Who serves what, what binds, and the runner-up, a sentence each.
pub fn notes(decided: &Decided) -> Vec<String> {
    let (problem, decision, plan) = (&decided.problem, &decided.decision, &decided.decision.plan);
    let mut notes = Vec::new();
    for (c, row) in plan.shares.iter().enumerate().filter(|(c, _)| plan.replicas[*c] > 0) {
        let words = shares(row, problem, problem.configurations[c].model);
        notes.push(format!("{} x {} serves {words}", plan.replicas[c], problem.configurations[c].name));
    }
    if !decision.limit.is_empty() {
        notes.push(format!("what holds it back: {}", decision.limit));
    }
    if let Some(other) = decision.runner_up() {
        notes.push(format!("runner-up: {}", second(problem, &other.plan)));
    }
    if decided.n_rounds > 0 {
        let choices = if decided.n_rounds == 1 { "one choice" } else { "choices" };
        let n = if decided.n_rounds == 1 { String::new() } else { format!("{} ", decided.n_rounds) };
        notes.push(format!(
            "rates are those of the plan's own mix, found by serving {n}{choices} of replicas one by one; the bound holds for these rates"
        ));
    }
    notes
}

/// A second plan in words.
fn second(problem: &Problem, plan: &Plan) -> String {
    format!("{}: {:.3} s for {:.4} $/h", problem.words(&plan.replicas), plan.makespan_s, plan.usd_per_hour)
}

/// The shares of a configuration in words, short where they are all alike.
fn shares(row: &[f64], problem: &Problem, model: usize) -> String {
    let asked =
        || row.iter().zip(&problem.demands).filter(|(_, demand)| demand.model == model && demand.requests > 0.0);
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let served: Vec<String> = asked()
        .filter(|(share, _)| **share > SHARE_MIN)
        .map(|(share, demand)| format!("{} of {}", percent(*share), demand.name))
        .collect();
    let first = asked().map(|(share, _)| *share).next().unwrap_or(0.0);
    let is_alike = asked().count() > 2 && asked().all(|(share, _)| (share - first).abs() < SHARE_MIN);
    match served.is_empty() {
        true => "nothing".to_owned(),
        false if is_alike => format!("{} of every type", percent(first)),
        false => served.join(", "),
    }
}

/// `plan.json` and its words.
pub fn planned(scenario: &Rental, choice: &RentalChoice, decided: &Decided) -> Planned {
    let (problem, decision, plan) = (&decided.problem, &decided.decision, &decided.decision.plan);
    let replicas: Vec<serde_json::Value> = plan
        .replicas
        .iter()
        .enumerate()
        .filter(|(_, y)| **y > 0)
        .map(|(c, &y)| {
            let configuration = &problem.configurations[c];
            let gpus = configuration.n_gpus.iter().zip(&problem.inventory.offers).filter(|(n, _)| **n > 0);
            let gpus: serde_json::Map<_, _> = gpus.map(|(n, offer)| (offer.name.clone(), json!(n))).collect();
            let shares = plan.shares[c].iter().zip(&problem.demands).filter(|(share, _)| **share > 0.0);
            let shares: serde_json::Map<_, _> =
                shares.map(|(share, demand)| (demand.name.clone(), json!(share))).collect();
            json!({
                "configuration": configuration.name, "model": scenario.model_names.get(configuration.model),
                "gpus": gpus, "replicas": y, "usd_per_hour": problem.price(c), "shares": shares,
                "mixing_ratio": decided.mixing[c],
            })
        })
        .collect();
    let offers: Vec<serde_json::Value> = scenario
        .inventory
        .offers
        .iter()
        .zip(&plan.n_gpus)
        .map(|(offered, n)| {
            json!({
                "gpu": offered.name, "usd_per_hour": offered.usd_per_hour, "quote": offered.quote,
                "available": offered.n_available, "rented": n,
            })
        })
        .collect();
    let runner_up = decision
        .runner_up()
        .map(|other| json!({ "about": second(problem, &other.plan), "makespan_s": other.objective }));
    let json = json!({
        "schema": SCHEMA, "scenario": scenario.head.name, "version": env!("CARGO_PKG_VERSION"), "policy": choice.name,
        "budget_usd_per_hour": problem.budget_usd_per_hour, "offers": offers, "replicas": replicas,
        "usd_per_hour": plan.usd_per_hour, "makespan_s": plan.makespan_s, "bound_s": decision.bound(),
        "gap_ratio": decision.gap(), "status": decision.status.name(), "binding": decision.limit, "runner_up": runner_up,
    });
    let mut words = format!(
        "rent {}\nall work ends after {:.3} s; no plan ends before {:.3} s (gap {:.2} %, {})\n",
        rented(decided),
        plan.makespan_s,
        decision.bound().unwrap_or(0.0),
        decision.gap().unwrap_or(0.0) * 100.0,
        decision.status.name()
    );
    notes(decided).iter().for_each(|note| words += &format!("{note}\n"));
    Planned { json, words, ..Planned::default() }
}
