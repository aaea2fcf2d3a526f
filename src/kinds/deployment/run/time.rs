//! From checked work that is to end soonest to a result: find rates, decide with every policy and budget, replay every plan.
//!
//! Rows are decided in parallel and collected by index, so the number of threads changes nothing outside `measured`.

mod rates;
mod words;

use std::collections::BTreeMap;
use std::time::Instant;

use planner::deploy::cost_efficiency::{self, Assignment, Form, Options};
use planner::deploy::mixing::{self, Decide, Settled};
use planner::deploy::simulated::{self, Replay};
use planner::deploy::{Plan, Problem, RentalError};
use planner::milp::Budget;
use planner::{Aim, Bound, Decision, RunnerUp, Status};
use reports::{Column, CostModelFacts, Measured, PlannerFacts, PolicyResult, RunResult};

use crate::kinds::deployment::read::time::{Decider, GivenPlan, Rental, RentalChoice};
use crate::kinds::{self, Kind, Planned};
use crate::scenario::Head;
use rates::Asked;

/// Nodes of a search at most, and seconds behind them: a search that the clock ends is not the same everywhere, so that it should not.
const NODES: i32 = 50_000;
const SECONDS: f64 = 120.0;

impl Kind for Rental {
    fn head(&self) -> &Head {
        &self.head
    }

    fn choices(&self) -> Vec<&str> {
        self.choices.iter().map(|choice| choice.name.as_str()).collect()
    }

    fn run(&self, done: &(dyn Fn(&str) + Sync)) -> RunResult {
        let asked = rates::ask(self);
        let rows = kinds::rows(&self.choices, |choice| &choice.name, done, |choice| row(self, choice, &asked));
        result(self, &asked, rows)
    }

    fn plan(&self, choice: &str) -> Option<Result<Planned, String>> {
        let choice = self.choices.iter().find(|known| known.name == choice)?;
        let asked = rates::ask(self);
        let decided = decide(self, choice, &asked);
        Some(decided.map(|decided| words::planned(self, choice, &decided)).map_err(|why| why.to_string()))
    }
}

/// What was decided for a row.
pub struct Decided {
    /// The plan and what is known of it.
    pub decision: Decision<Plan>,
    /// The problem with the rates of the plan.
    pub problem: Problem,
    /// Corrected rate over the rate of types served alone, by configuration.
    pub mixing: Vec<f64>,
    /// Choices of replicas that were served while deciding; 0 where rates are given.
    pub n_rounds: usize,
}

fn problem_of(scenario: &Rental, asked: &Asked, budget_usd_per_hour: f64) -> Problem {
    Problem {
        inventory: scenario.inventory.clone(),
        configurations: asked.configurations.clone(),
        demands: scenario.demands.clone(),
        budget_usd_per_hour,
    }
}

/// Decides a row.
fn decide(scenario: &Rental, choice: &RentalChoice, asked: &Asked) -> Result<Decided, RentalError> {
    let problem = problem_of(scenario, asked, choice.budget_usd_per_hour);
    let options = Options { form: Form::Direct, budget: Budget { gap: scenario.gap, ..Budget::new(NODES, SECONDS) } };
    let policy = match &choice.decider {
        Decider::Given(index) => return given(problem, &scenario.plans[*index]),
        Decider::Policy(policy) => policy,
    };
    let second = |problem: &Problem, plan: &Plan| (policy.explain?.second)(problem, plan, options);
    let mut decided = if asked.engines.is_empty() {
        let decision = (policy.solve)(&problem, options)?;
        let other = second(&problem, &decision.plan);
        let decision = decision.beside(other.map(|plan| RunnerUp { objective: plan.makespan_s, plan }));
        Decided { decision, mixing: vec![1.0; problem.configurations.len()], problem, n_rounds: 0 }
    } else {
        let solve = |problem: &Problem| (policy.solve)(problem, options);
        let assign =
            |problem: &Problem, replicas: &[u32]| cost_efficiency::assigned(problem, replicas, policy.assignment);
        let serve = |c: usize, work: &[f64]| asked.serve_s(scenario, c, work);
        let second: Option<&mixing::Second<'_>> = policy.explain.is_some().then_some(&second);
        let settled =
            mixing::settle(&problem, &asked.mixing, &Decide { solve: &solve, assign: &assign, second }, &serve)?;
        let Settled { decision, problem, mixing, n_rounds } = settled;
        Decided { decision, problem, mixing, n_rounds }
    };
    if let Some(explain) = policy.explain {
        let limit = (explain.limit)(&decided.problem, &decided.decision.plan, options);
        decided.decision = decided.decision.limited(limit);
    }
    Ok(decided)
}

/// A plan of the scenario, with the shares that it has or the best ones.
fn given(problem: Problem, plan: &GivenPlan) -> Result<Decided, RentalError> {
    let (usd_per_hour, n_gpus) = (problem.usd_per_hour(&plan.replicas), problem.n_gpus(&plan.replicas));
    let budget = problem.budget_usd_per_hour;
    if usd_per_hour > budget * (1.0 + 1e-9) {
        return Err(RentalError::Infeasible(format!("costs {usd_per_hour} $/h, the budget is {budget} $/h")));
    }
    if let Some((n, offer)) = n_gpus.iter().zip(&problem.inventory.offers).find(|(n, offer)| **n > offer.n_available) {
        let (name, available) = (&offer.name, offer.n_available);
        return Err(RentalError::Infeasible(format!("takes {n} of `{name}`, {available} can be had")));
    }
    let unserved = || RentalError::Infeasible("a request type goes to a configuration that cannot serve it".to_owned());
    let plan = match &plan.shares {
        None => cost_efficiency::assigned(&problem, &plan.replicas, Assignment::Soonest).ok_or_else(unserved)?,
        Some(shares) => {
            let makespan_s = makespan_s(&problem, &plan.replicas, shares).ok_or_else(unserved)?;
            Plan { replicas: plan.replicas.clone(), n_gpus, usd_per_hour, shares: shares.clone(), makespan_s }
        }
    };
    let bound_s = cost_efficiency::bound_s(&problem)?.min(plan.makespan_s);
    let makespan_s = plan.makespan_s;
    let decision =
        Decision::new(plan, Aim::Seconds, makespan_s).bounded(Some(Bound::plain(bound_s)), Status::Heuristic);
    let mixing = vec![1.0; problem.configurations.len()];
    Ok(Decided { decision, problem, mixing, n_rounds: 0 })
}

/// When the slowest configuration ends; `None` where one is to serve what it cannot.
fn makespan_s(problem: &Problem, replicas: &[u32], shares: &[Vec<f64>]) -> Option<f64> {
    let mut slowest = 0.0_f64;
    for (c, row) in shares.iter().enumerate() {
        let mut busy_s = 0.0;
        for (w, share) in row.iter().enumerate().filter(|(_, share)| **share > 0.0) {
            if problem.demands[w].requests > 0.0 {
                busy_s += share * problem.seconds(c, w).filter(|_| replicas[c] > 0)?;
            }
        }
        if busy_s > 0.0 {
            slowest = slowest.max(busy_s / f64::from(replicas[c]));
        }
    }
    Some(slowest)
}

fn row(scenario: &Rental, choice: &RentalChoice, asked: &Asked) -> PolicyResult {
    let begun = Instant::now();
    let decided = decide(scenario, choice, asked);
    let planner_wall_s = begun.elapsed().as_secs_f64();
    let empty = PolicyResult { policy: choice.name.clone(), ..PolicyResult::default() };
    let decided = match decided {
        Ok(decided) => decided,
        Err(why) => {
            let status = if matches!(why, RentalError::Budget(_)) { "timeout" } else { "infeasible" };
            return PolicyResult { status: status.to_owned(), why: why.to_string(), ..empty };
        }
    };
    let begun = Instant::now();
    let is_simulated = !asked.engines.is_empty();
    let replay = is_simulated
        .then(|| simulated::replay(&decided.problem, &decided.decision.plan, &scenario.lengths, &asked.engines));
    let pair = (scenario.lengths.as_slice(), asked.engines.as_slice());
    let played = scenario.play.filter(|_| is_simulated);
    let played = played.map(|coming| simulated::arriving(&decided.problem, &decided.decision.plan, pair, coming));
    let simulate_wall_s = begun.elapsed().as_secs_f64();
    PolicyResult {
        status: "ok".to_owned(),
        why: words::rented(&decided),
        metrics: seen(played).chain(metrics(scenario, &decided, replay.as_ref())).collect(),
        planner: Some(facts(&decided)),
        measured: Measured { planner_wall_s, simulate_wall_s },
        ..empty
    }
}

/// What clients see of requests that come one by one.
fn seen(played: Option<BTreeMap<String, f64>>) -> impl Iterator<Item = (String, f64)> {
    const KEYS: [&str; 6] =
        ["slo_attainment_ratio", "ttft_s.mean", "ttft_s.p99", "tpot_s.mean", "requests_per_s", "n_outages"];
    played.into_iter().flatten().filter(|(key, _)| KEYS.contains(&key.as_str()))
}

/// Figures by their keys.
fn metrics(scenario: &Rental, decided: &Decided, replay: Option<&Replay>) -> BTreeMap<String, f64> {
    let plan = &decided.decision.plan;
    let sum = |all: &[u32]| all.iter().map(|&n| f64::from(n)).sum::<f64>();
    let usd = plan.usd_per_hour * plan.makespan_s / 3600.0;
    let mut all = BTreeMap::new();
    let mut add = |key: &str, value: f64| {
        if value.is_finite() {
            all.insert(key.to_owned(), value);
        }
    };
    add("makespan_s", plan.makespan_s);
    add("cost_usd_per_hour", plan.usd_per_hour);
    add("cost_usd", usd);
    add("n_replicas", sum(&plan.replicas));
    add("n_gpus", sum(&plan.n_gpus));
    add("budget_used_ratio", plan.usd_per_hour / decided.problem.budget_usd_per_hour);
    if let Some(replay) = replay {
        add("replay_makespan_s", replay.makespan_s);
        add("replay_over_planned_ratio", replay.makespan_s / plan.makespan_s);
        add("n_refused", hw::Tokens(replay.n_refused).as_f64());
        let outputs = scenario.demands.iter().zip(&scenario.lengths);
        let tokens: f64 = outputs.map(|(demand, lengths)| demand.requests * lengths.output.as_f64()).sum();
        add("cost_usd_per_mtok", plan.usd_per_hour * replay.makespan_s / 3600.0 / tokens * 1e6);
        let least =
            decided.problem.demands.iter().map(|d| d.requests).filter(|n| *n > 0.0).fold(f64::INFINITY, f64::min);
        add("requests_per_replica_least", least / sum(&plan.replicas));
    }
    all
}

fn facts(decided: &Decided) -> PlannerFacts {
    let decision = &decided.decision;
    let plan = &decision.plan;
    let mut figures = BTreeMap::new();
    for (c, configuration) in decided.problem.configurations.iter().enumerate() {
        figures.insert(format!("replicas_of_{}", configuration.name), f64::from(plan.replicas[c]));
        if plan.replicas[c] > 0 && decided.n_rounds > 0 {
            figures.insert(format!("mixing_ratio_of_{}", configuration.name), decided.mixing[c]);
        }
    }
    PlannerFacts {
        objective: Some(plan.makespan_s),
        bound: decision.bound(),
        gap_ratio: decision.gap(),
        status: decision.status.name().to_owned(),
        notes: words::notes(decided),
        figures,
        ..PlannerFacts::default()
    }
}

/// Heading and key of every column.
fn columns(is_simulated: bool) -> Vec<Column> {
    let all: &[(&str, &str)] = if is_simulated {
        &[
            ("replay_makespan_s", "replayed"),
            ("makespan_s", "planned"),
            ("cost_usd_per_hour", "per hour"),
            ("cost_usd_per_mtok", "per Mtok"),
            ("n_replicas", "replicas"),
            ("n_gpus", "GPUs"),
        ]
    } else {
        &[("makespan_s", "makespan"), ("cost_usd_per_hour", "per hour"), ("n_replicas", "replicas"), ("n_gpus", "GPUs")]
    };
    kinds::columns(all)
}

fn result(scenario: &Rental, asked: &Asked, results: Vec<PolicyResult>) -> RunResult {
    let columns = columns(!asked.engines.is_empty());
    let worth = |row: &PolicyResult| row.metrics.get(&columns[0].key).copied();
    // Gains are relative to the baseline with the same budget.
    let of_policy = |name: &str| name.split('@').next().unwrap_or_default().to_owned();
    let gain = |(row, choice): (&PolicyResult, &RentalChoice)| {
        let same = |other: &&(&PolicyResult, &RentalChoice)| {
            other.1.budget_usd_per_hour == choice.budget_usd_per_hour
                && of_policy(&other.1.name) == scenario.head.baseline
        };
        let pairs: Vec<(&PolicyResult, &RentalChoice)> = results.iter().zip(&scenario.choices).collect();
        let base = pairs.iter().find(same).and_then(|(row, _)| worth(row))?;
        Some((row.policy.clone(), base / worth(row)?))
    };
    let speedup_ratio = results.iter().zip(&scenario.choices).filter_map(gain).collect();
    RunResult {
        cost_model: CostModelFacts {
            profile: asked.profile.clone(),
            source: asked.source.clone(),
            free_parameters: asked.free_parameters.clone(),
            outside_hull_ratio: f64::NAN,
            ..CostModelFacts::default()
        },
        columns,
        results,
        speedup_ratio,
        ..kinds::blank(&scenario.head)
    }
}

/// Names that such a scenario may use for policies, with what they do.
#[must_use]
pub fn policies() -> Vec<(&'static str, &'static str)> {
    planner::deploy::policies::POLICIES.iter().map(|policy| (policy.name, policy.about)).collect()
}
