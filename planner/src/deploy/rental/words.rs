//! What was rented in words, and as figures.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Decided, Question};
use crate::deploy::objective::Limit;
use crate::deploy::{Plan, Problem, usd};
use crate::proof::RunnerUp;

/// Shares below this are rounding and not named.
const SHARE_MIN: f64 = 5e-4;

/// The same with notes and figures.
pub(super) fn said(decided: Decided) -> Decided {
    let (notes, figures) = (notes(&decided), figures(&decided));
    Decided { decision: decided.decision.said(notes, figures), ..decided }
}

/// What to rent, in a sentence.
pub fn rented(decided: &Decided) -> String {
    let (problem, plan) = (&decided.problem, &decided.decision.plan);
    let words = problem.words(&plan.replicas);
    match decided.limit {
        Limit::Budget { usd_per_hour } => {
            format!("{words} for {:.2} $/h of {} $/h", plan.usd_per_hour, usd(usd_per_hour))
        }
        Limit::Deadline { seconds } => {
            format!("{words} for {:.2} $/h, done after {:.1} s of {seconds} s", plan.usd_per_hour, plan.makespan_s)
        }
    }
}

/// Replicas of every configuration, and what its mix makes of its rates.
fn figures(decided: &Decided) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    for (c, configuration) in decided.problem.configurations.iter().enumerate() {
        let n = decided.decision.plan.replicas[c];
        figures.insert(format!("replicas_of_{}", configuration.name), f64::from(n));
        if n > 0 && decided.n_rounds > 0 {
            figures.insert(format!("mixing_ratio_of_{}", configuration.name), decided.mixing[c]);
        }
    }
    figures
}

/// Who serves what, what binds, and the runner-up, a sentence each.
fn notes(decided: &Decided) -> Vec<String> {
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
        notes.push(format!("runner-up: {}", second(decided, other)));
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

/// When a second plan ends: as it was judged where time is what counts, for rates of its own mix do not know what whole requests do.
fn ends_s(decided: &Decided, other: &RunnerUp<Plan>) -> f64 {
    match decided.limit {
        Limit::Budget { .. } => other.objective,
        Limit::Deadline { .. } => other.plan.makespan_s,
    }
}

/// A second plan in words.
fn second(decided: &Decided, other: &RunnerUp<Plan>) -> String {
    let (words, seconds) = (decided.problem.words(&other.plan.replicas), ends_s(decided, other));
    format!("{words}: {seconds:.3} s for {:.4} $/h", other.plan.usd_per_hour)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The shares of a configuration in words, short where they are all alike.
fn shares(row: &[f64], problem: &Problem, model: usize) -> String {
    let asked =
        || row.iter().zip(&problem.demands).filter(|(_, demand)| demand.model == model && demand.requests > 0.0);
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

/// What is rented, for `plan.json`: offers, replicas by configuration with who serves what, and what else there is.
pub fn plan_json(question: &Question, decided: &Decided) -> Value {
    let (decision, plan) = (&decided.decision, &decided.decision.plan);
    let used = (0..plan.replicas.len()).filter(|&c| plan.replicas[c] > 0);
    let offers = question.inventory.offers.iter().zip(&plan.n_gpus).map(|(offered, n)| {
        json!({
            "gpu": offered.name, "usd_per_hour": offered.usd_per_hour, "quote": offered.quote,
            "available": offered.n_available, "rented": n,
        })
    });
    let runner_up = decision.runner_up();
    let runner_up =
        runner_up.map(|other| json!({ "about": second(decided, other), "makespan_s": ends_s(decided, other) }));
    let (budget, deadline) = match decided.limit {
        Limit::Budget { usd_per_hour } => (Some(usd_per_hour), None),
        Limit::Deadline { seconds } => (None, Some(seconds)),
    };
    json!({
        "budget_usd_per_hour": budget, "deadline_s": deadline, "offers": offers.collect::<Vec<_>>(),
        "replicas": used.map(|c| configuration(question, decided, c)).collect::<Vec<_>>(),
        "usd_per_hour": plan.usd_per_hour, "makespan_s": plan.makespan_s, "binding": decision.limit, "runner_up": runner_up,
    })
}

fn configuration(question: &Question, decided: &Decided, c: usize) -> Value {
    let (problem, plan) = (&decided.problem, &decided.decision.plan);
    let of = &problem.configurations[c];
    let gpus = of.n_gpus.iter().zip(&problem.inventory.offers).filter(|(n, _)| **n > 0);
    let gpus: Map<String, Value> = gpus.map(|(n, offer)| (offer.name.clone(), json!(n))).collect();
    let shares = plan.shares[c].iter().zip(&problem.demands).filter(|(share, _)| **share > 0.0);
    let shares: Map<String, Value> = shares.map(|(share, demand)| (demand.name.clone(), json!(share))).collect();
    json!({
        "configuration": of.name, "model": question.model_names.get(of.model), "gpus": gpus,
        "replicas": plan.replicas[c], "usd_per_hour": problem.price(c), "shares": shares,
        "mixing_ratio": decided.mixing[c],
    })
}
