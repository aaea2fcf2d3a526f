//! What to rent, how to deploy, who serves what: the cost-efficiency program of arXiv:2502.00722 (ICML 2025).
//!
//! Problem: a budget, GPU types with price and availability, configurations with a rate per request type, and an amount of requests of each
//! type, for one model or several. Decides the replicas of each configuration and the split of every type so that all work ends soonest.
//!
//! Two forms, which a test holds equal: the paper's bisection on the makespan T with a feasibility program at each step (appendix F), and a
//! direct form that is linear in 1/T (`cost_efficiency/program.rs` has both). Bisection tries the relaxation's T, goes up in widening steps until
//! a plan is found, and then halves; a found plan is split again exactly, so it lowers T by more than the half. It ends at its tolerance or at
//! the gap that the budget allows, whichever is wider. Several models share one T: the largest.
//!
//! Many plans may end at the same T, where one model's or one type's replicas decide it. The answer is the cheapest of them: a second program with T
//! held (`cost_efficiency/dollars.rs`), and no replica is kept without which all ends as soon.
//!
//! Units: seconds, dollars per hour. A plan is exact for its replicas (a linear program); what the search proved is in the proof.

mod ablations;
mod dollars;
mod program;

pub use ablations::{homogeneous, one_type, round_robin, uniform_composition, uniform_deployment};
#[cfg(test)]
pub(crate) use dollars::tests::example;
pub use dollars::{cheapest, cheapest_of_one_size, cheapest_of_one_type, limit_of_price, second_cheapest};

use std::cmp::Ordering;

use super::inventory::Offer;
use super::{Plan, Problem, RentalError, usd};
use crate::milp::{Budget, Unsolved};
use crate::proof::{Aim, Bound, Decision, RunnerUp, Status};
use engine::stop;
use program::Replicas;

/// Steps of the bisection at most; each halves the interval.
const BISECTIONS_MAX: usize = 60;
/// First step of the bisection above the relaxation, relative, and how much wider the next one is: optima lie a few percent above it.
const FIRST_STEP: f64 = 0.02;
const WIDENS: f64 = 3.0;
/// Relative change of T below which lifting a limit counts as no help.
const HELPS: f64 = 1e-6;

/// Relative difference of times and prices that is rounding of a solver or of a sum.
const ROUNDING: f64 = 1e-6;
/// Nodes of the second program at most: it starts from a plan, and every solution that it finds is a cheaper one.
const CHEAPER_NODES: i32 = 2_000;

/// How the program is solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// One program, linear in 1/T.
    Direct,
    /// The paper's bisection down to this many seconds.
    Bisection {
        /// Width of the interval at which it ends, seconds.
        tolerance_s: f64,
    },
}

/// Form and limits of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Form.
    pub form: Form,
    /// Limits of each program that is solved.
    pub budget: Budget,
}

impl Default for Options {
    fn default() -> Self {
        Self { form: Form::Direct, budget: Budget::default() }
    }
}

/// The best plan, with the limit that binds and the runner-up: a few more programs than `solve`.
///
/// # Errors
/// As `solve`.
pub fn plan(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    let decision = solve(problem, options)?;
    // Where rates lie twelve orders apart, a solver's tolerance lets plans through that do more than there is: what undercuts the bound is none.
    let is_plan = |plan: &Plan| decision.bound().is_none_or(|bound| plan.makespan_s >= bound);
    let second = second(problem, &decision.plan, options).filter(is_plan);
    let worth = |plan: &Plan| plan.makespan_s;
    let decision = beside(decision, second, &worth);
    let limit = limit(problem, &decision.plan, options);
    Ok(decision.limited(limit))
}

/// A plan that no other undercuts by more than the bound says; a solver's tolerance may put the bound above it.
fn decided(plan: Plan, bound_s: f64, status: Status) -> Decision<Plan> {
    let makespan_s = plan.makespan_s;
    Decision::new(plan, Aim::Seconds, makespan_s).bounded(Some(Bound::plain(bound_s.min(makespan_s))), status)
}

/// The best plan and its bound; of plans that end as soon the cheapest.
///
/// # Errors
/// On figures without meaning, when nothing that can be rented serves a demand, or when the budget ended before a plan was found.
pub fn solve(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    let found = soonest(problem, options)?;
    let (bound_s, status) = (found.bound().unwrap_or(f64::INFINITY), found.status);
    Ok(decided(cheapest_as_soon(problem, found.plan, None, options), bound_s, status))
}

/// How two figures compare, where a difference of rounding is none.
fn order(a: f64, b: f64) -> Ordering {
    if (a - b).abs() <= ROUNDING * a.abs().max(b.abs()) { Ordering::Equal } else { a.total_cmp(&b) }
}

/// A plan beside a second one. Where the second is better by rounding alone, it counts as much: what decides beyond that was weighed before.
pub(super) fn beside(decision: Decision<Plan>, second: Option<Plan>, worth: &dyn Fn(&Plan) -> f64) -> Decision<Plan> {
    let of_plan = decision.objective().unwrap_or(f64::INFINITY);
    let second = second.map(|plan| {
        let own = worth(&plan);
        RunnerUp { objective: if order(own, of_plan).is_eq() { own.max(of_plan) } else { own }, plan }
    });
    decision.beside(second)
}

/// Of the plans that end as soon the cheapest. With `other_than`, only plans that do not contain those replicas count.
fn cheapest_as_soon(problem: &Problem, plan: Plan, other_than: Option<&[u32]>, options: Options) -> Plan {
    let found = program::cheapest(problem, plan.makespan_s, (other_than, Some(&plan)), of_cheaper(options.budget));
    let other = found.ok().and_then(|(replicas, _)| split(problem, replicas, plan.makespan_s));
    let is_cheaper = |other: &Plan| {
        order(other.makespan_s, plan.makespan_s).is_le() && order(other.usd_per_hour, plan.usd_per_hour).is_lt()
    };
    let plan = other.filter(is_cheaper).unwrap_or(plan);
    let makespan_s = plan.makespan_s;
    without_idle(problem, plan, &|fewer| split(problem, fewer, makespan_s))
}

/// Limits of the second program.
fn of_cheaper(budget: Budget) -> Budget {
    Budget { nodes: budget.nodes.min(CHEAPER_NODES), ..budget }
}

/// The plan without replicas that it does not need, the dearest first: a search that ends within a gap may leave some.
fn without_idle(problem: &Problem, mut plan: Plan, again: &dyn Fn(Vec<u32>) -> Option<Plan>) -> Plan {
    let makespan_s = plan.makespan_s;
    let mut all: Vec<usize> = (0..plan.replicas.len()).collect();
    all.sort_by(|&a, &b| problem.price(b).total_cmp(&problem.price(a)));
    for c in all {
        let with = |plan: &Plan, n: u32| {
            let mut fewer = plan.replicas.clone();
            fewer[c] = n;
            again(fewer).filter(|other| order(other.makespan_s, makespan_s).is_le())
        };
        // None or one less is mostly the answer; else the least number is found by halving.
        let (mut late, mut next) = (None, 0);
        while plan.replicas[c] > late.map_or(0, |late| late + 1) {
            match with(&plan, next) {
                Some(other) => plan = other,
                None => late = Some(next),
            }
            let least = late.map_or(0, |late| late + 1);
            let is_first = next == 0 && late == Some(0);
            next = if is_first { plan.replicas[c] - 1 } else { least.midpoint(plan.replicas[c].max(1) - 1) };
        }
    }
    plan
}

/// A plan that ends soonest and its bound, whatever it costs within the budget.
fn soonest(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    serviceable(problem)?;
    let relaxed = relaxed(problem)?;
    match options.form {
        Form::Direct => direct(problem, relaxed, options.budget),
        Form::Bisection { tolerance_s } => bisect(problem, relaxed, (tolerance_s, options.budget.gap), |trial| {
            let replicas = program::within(problem, trial, options.budget)?;
            Ok(split(problem, replicas, trial))
        }),
    }
}

/// Seconds before which no plan ends, by the relaxation of the program.
///
/// # Errors
/// As `solve`.
pub fn bound_s(problem: &Problem) -> Result<f64, RentalError> {
    problem.check()?;
    serviceable(problem)?;
    relaxed(problem)
}

/// Every demand has a configuration that can be rented at all.
fn serviceable(problem: &Problem) -> Result<(), RentalError> {
    for (w, demand) in problem.demands.iter().enumerate().filter(|(_, demand)| demand.requests > 0.0) {
        let serving: Vec<usize> =
            (0..problem.configurations.len()).filter(|&c| problem.seconds(c, w).is_some()).collect();
        if serving.is_empty() {
            return Err(RentalError::Infeasible(format!("no configuration serves `{}`", demand.name)));
        }
        if serving.iter().all(|&c| problem.n_replicas_max(c) == 0) {
            return Err(RentalError::Infeasible(unrentable(problem, &serving, &demand.name)));
        }
    }
    Ok(())
}

/// Why none of the configurations that serve a demand can be rented: the price of the cheapest that is there, or the GPUs that the smallest one lacks.
fn unrentable(problem: &Problem, serving: &[usize], demand: &str) -> String {
    let by_price = |a: &usize, b: &usize| problem.price(*a).total_cmp(&problem.price(*b));
    let there = serving.iter().copied().filter(|&c| problem.n_replicas_available(c) > 0);
    if let Some(c) = there.min_by(by_price) {
        let (budget, name) = (usd(problem.budget_usd_per_hour), &problem.configurations[c].name);
        return format!(
            "budget of {budget} $/h allows no replica that serves `{demand}`; the cheapest that can be had, `{name}`, takes {} $/h",
            usd(problem.price(c))
        );
    }
    // Offers of which there is nothing at all say less than those of which there is too little.
    let lacking = |c: usize| {
        let pairs = problem.configurations[c].n_gpus.iter().zip(&problem.inventory.offers);
        pairs.filter(|(n, _)| **n > 0).min_by_key(|(_, offer)| offer.n_available).expect("a replica takes a GPU")
    };
    let smallest = |c: usize| (lacking(c).1.n_available == 0, *lacking(c).0);
    let c = serving.iter().copied().min_by_key(|&c| smallest(c)).expect("some configuration serves it");
    let (n, offer) = lacking(c);
    format!(
        "availability allows no replica that serves `{demand}`; the smallest, `{}`, takes {n} of `{}`, {} can be had{}",
        problem.configurations[c].name,
        offer.name,
        offer.n_available,
        if *n <= offer.n_available { format!(" in machines of {}", offer.n_gpus_per_machine) } else { String::new() }
    )
}

/// Makespan of the relaxation, a bound on every plan; solved twice so that the second solve is in units of the answer.
fn relaxed(problem: &Problem) -> Result<f64, RentalError> {
    // Alone on all replicas of its fastest configuration, the slowest demand takes this long.
    let alone = |w: usize| {
        let on = |c: usize| Some(problem.seconds(c, w)? / f64::from(problem.n_replicas_max(c)));
        (0..problem.configurations.len()).filter_map(on).fold(f64::INFINITY, f64::min)
    };
    let unit_s = (0..problem.demands.len()).map(alone).filter(|s| s.is_finite()).fold(0.0, f64::max);
    let solve = |unit_s| program::direct(problem, Replicas::Split, unit_s, None, Budget::default());
    let rough = solve(unit_s).map_err(|why| unsolved(problem, why))?.bound_s;
    let bound_s = solve(rough).map_err(|why| unsolved(problem, why))?.bound_s;
    if bound_s.is_finite() { Ok(bound_s) } else { Err(no_plan(problem)) }
}

fn no_plan(problem: &Problem) -> RentalError {
    let budget = usd(problem.budget_usd_per_hour);
    RentalError::Infeasible(format!("no plan serves every demand within {budget} $/h and the available GPUs"))
}

fn unsolved(problem: &Problem, why: Unsolved) -> RentalError {
    match why {
        Unsolved::Infeasible => no_plan(problem),
        Unsolved::Stopped(why) => RentalError::Budget(why),
    }
}

/// Who decides the shares once replicas are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// The split that ends soonest.
    Soonest,
    /// Every replica of a model gets the same.
    Alike,
}

/// The plan of given replicas; `None` where they leave a demand unserved.
pub fn assigned(problem: &Problem, replicas: &[u32], assignment: Assignment) -> Option<Plan> {
    if assignment == Assignment::Alike {
        return ablations::dealt(problem, replicas.to_vec());
    }
    // Twice, so that the second solve is in units of the answer.
    let work = |w: usize| (0..replicas.len()).filter_map(|c| problem.seconds(c, w)).fold(f64::INFINITY, f64::min);
    let unit_s: f64 = (0..problem.demands.len()).map(work).filter(|seconds| seconds.is_finite()).sum();
    let rough = split(problem, replicas.to_vec(), unit_s)?;
    split(problem, replicas.to_vec(), rough.makespan_s)
}

/// The plan of replicas, split exactly.
fn split(problem: &Problem, replicas: Vec<u32>, unit_s: f64) -> Option<Plan> {
    let (shares, makespan_s) = program::split(problem, &replicas, unit_s)?;
    let n_gpus = problem.n_gpus(&replicas);
    let usd_per_hour = problem.usd_per_hour(&replicas);
    Some(Plan { replicas, n_gpus, usd_per_hour, shares, makespan_s })
}

fn direct(problem: &Problem, relaxed_s: f64, budget: Budget) -> Result<Decision<Plan>, RentalError> {
    let found = program::direct(problem, Replicas::Whole, relaxed_s, None, budget);
    let found = found.map_err(|why| unsolved(problem, why))?;
    let plan = split(problem, found.replicas, relaxed_s).ok_or_else(|| no_plan(problem))?;
    Ok(decided(plan, found.bound_s.max(relaxed_s), found.solved.status))
}

/// Bisects the makespan between the relaxation's and the best plan's; `test` returns a plan that ends within a makespan.
fn bisect(
    problem: &Problem,
    relaxed_s: f64,
    (tolerance_s, gap): (f64, f64),
    test: impl Fn(f64) -> Result<Option<Plan>, Unsolved>,
) -> Result<Decision<Plan>, RentalError> {
    if !(tolerance_s.is_finite() && tolerance_s > 0.0) {
        return Err(RentalError::Input(format!("tolerance must be above 0 s, found {tolerance_s}")));
    }
    let mut below = relaxed_s;
    let (mut trial, mut step) = (relaxed_s, FIRST_STEP);
    let close = |above: f64, below: f64| above - below <= tolerance_s.max(gap * above);
    let mut best: Option<Plan> = None;
    let mut status = Status::Optimal;
    for _ in 0..BISECTIONS_MAX {
        match test(trial) {
            Ok(Some(plan)) if best.as_ref().is_none_or(|best| plan.makespan_s < best.makespan_s) => best = Some(plan),
            // A plan that the solver's tolerance let through ends later than asked: nothing ends sooner.
            Ok(_) | Err(Unsolved::Infeasible) => below = trial,
            Err(Unsolved::Stopped(_)) => {
                status = Status::Feasible;
                break;
            }
        }
        let above = best.as_ref().map_or(f64::INFINITY, |plan| plan.makespan_s);
        if above.is_finite() && close(above, below) || stop::is_asked() {
            break;
        }
        trial = if above.is_finite() { below.midpoint(above) } else { relaxed_s * (1.0 + step) };
        step *= WIDENS;
    }
    let plan = best.ok_or_else(|| no_plan(problem))?;
    if !close(plan.makespan_s, below) {
        status = Status::Feasible;
    }
    Ok(decided(plan, below, status))
}

/// Whether an offer has no room for one more replica of any configuration that takes its GPUs.
fn is_used_up(problem: &Problem, plan: &Plan, offer: usize) -> bool {
    let has_room = |c: usize| {
        let mut more = plan.replicas.clone();
        more[c] += 1;
        problem.fits(offer, &more)
    };
    let mut taking = (0..plan.replicas.len()).filter(|&c| problem.configurations[c].n_gpus[offer] > 0);
    !taking.any(has_room)
}

/// The limit whose lifting would lower the makespan most, of those that are used up.
pub fn limit(problem: &Problem, plan: &Plan, options: Options) -> String {
    let all_usd: f64 =
        problem.inventory.offers.iter().map(|offer| f64::from(offer.n_available) * offer.usd_per_hour).sum();
    let lifted = Problem { budget_usd_per_hour: all_usd.max(problem.budget_usd_per_hour), ..problem.clone() };
    let budget_usd = problem.budget_usd_per_hour;
    let mut limits =
        vec![(format!("budget of {} $/h, of which {:.4} are spent", usd(budget_usd), plan.usd_per_hour), lifted)];
    for (offer, &taken) in plan.n_gpus.iter().enumerate().filter(|(offer, _)| is_used_up(problem, plan, *offer)) {
        let Offer { name, usd_per_hour, n_available, .. } = &problem.inventory.offers[offer];
        let mut lifted = problem.clone();
        lifted.inventory.offers[offer].n_available =
            super::whole((budget_usd / usd_per_hour).floor()).max(*n_available);
        if lifted != *problem {
            limits.push((format!("availability of `{name}`: {taken} of {n_available} are rented"), lifted));
        }
    }
    let options = Options { form: Form::Direct, ..options };
    // Limits in the order of what lifting them could give at best; most need no search.
    let at_best = |(words, lifted): (String, Problem)| Some((relaxed(&lifted).ok()?, words, lifted));
    let mut open: Vec<(f64, String, Problem)> = limits.into_iter().filter_map(at_best).collect();
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    // What was served may not be the program's best at its rates; what that gains is no limit's.
    let now_s = soonest(problem, options).map_or(f64::INFINITY, |found| found.plan.makespan_s).min(plan.makespan_s);
    let mut best = (now_s * (1.0 - HELPS), None);
    for (bound_s, words, lifted) in open {
        if bound_s >= best.0 {
            break;
        }
        let makespan_s = soonest(&lifted, options).map_or(f64::INFINITY, |found| found.plan.makespan_s);
        if makespan_s < best.0 {
            best = (makespan_s, Some(words));
        }
    }
    match best {
        (makespan_s, Some(words)) => {
            format!("{words}; without that limit the work would end after {makespan_s:.3} s")
        }
        _ => "no single limit: more budget, or more GPUs of a type that is used up, would not end the work sooner"
            .to_owned(),
    }
}

/// The best plan that has fewer replicas of some configuration.
pub fn second(problem: &Problem, best: &Plan, options: Options) -> Option<Plan> {
    let unit_s = best.makespan_s;
    let found = program::direct(problem, Replicas::Whole, unit_s, Some(&best.replicas), options.budget).ok()?;
    let plan = split(problem, found.replicas, unit_s)?;
    Some(cheapest_as_soon(problem, plan, Some(&best.replicas), options))
}

#[cfg(test)]
mod tests;
