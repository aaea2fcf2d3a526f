//! Plans that give up one of the three decisions (arXiv:2502.00722, baselines): one GPU type, a fixed mix, a fixed deployment, round robin.
//!
//! Round robin sends every demand to all replicas of its model alike, so that a replica of c takes T = Σ_w f_w/h_cw / N, where N counts
//! the model's replicas; what is left to decide is y. For fixed T this is linear: g_c·used_c <= T·N with g_c = Σ_w f_w/h_cw.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::super::{Answer, Plan, Problem, RentalError, whole};
use super::{Options, bisect, relaxed, serviceable, solve};
use crate::milp::{self, Program, Unsolved};

/// Round robin's bisection ends at this part of the relaxation's makespan.
const ROUND_ROBIN_TOLERANCE: f64 = 1e-3;

/// The best plan on one GPU type alone.
///
/// # Errors
/// As `solve`; `Input` where no such type is offered.
pub fn homogeneous(problem: &Problem, offer: usize, options: Options) -> Result<Answer, RentalError> {
    if offer >= problem.offers.len() {
        let n = problem.offers.len();
        return Err(RentalError::Input(format!("GPU type {offer} is not among the {n} that are offered")));
    }
    let mut alone = problem.clone();
    let others = alone.offers.iter_mut().enumerate().filter(|(other, _)| *other != offer);
    others.for_each(|(_, other)| other.n_available = 0);
    solve(&alone, options)
}

/// The best deployment and split on a fixed mix: as many GPUs of each type as the budget allows when all types get the same number, or
/// all of a type where it has fewer.
///
/// # Errors
/// As `solve`.
pub fn uniform_composition(problem: &Problem, options: Options) -> Result<Answer, RentalError> {
    problem.check()?;
    let usd = |n: u32| -> f64 {
        problem.offers.iter().map(|offer| f64::from(n.min(offer.n_available)) * offer.usd_per_hour).sum()
    };
    let most = problem.offers.iter().map(|offer| offer.n_available).max().unwrap_or(0);
    // The cost rises with the number, so that halving finds the last one within the budget.
    let (mut n, mut over) = (0, u64::from(most) + 1);
    while over - u64::from(n) > 1 {
        let middle = u32::try_from(u64::from(n).midpoint(over)).expect("at most the greatest availability");
        if usd(middle) <= problem.budget_usd_per_hour * (1.0 + 1e-9) {
            n = middle;
        } else {
            over = u64::from(middle);
        }
    }
    let mut fixed = problem.clone();
    fixed.offers.iter_mut().for_each(|offer| offer.n_available = offer.n_available.min(n));
    solve(&fixed, options)
}

/// The best composition and split when every replica of a model has the same number of GPUs: the least with which each type that can
/// hold the model does. Of a type's configurations with that number the first one counts.
///
/// # Errors
/// As `solve`.
pub fn uniform_deployment(problem: &Problem, options: Options) -> Result<Answer, RentalError> {
    problem.check()?;
    let total = |c: usize| problem.configurations[c].n_gpus.iter().sum::<u32>();
    let is_of = |c: usize, model: usize, offer: usize| {
        let configuration = &problem.configurations[c];
        let mut taken = configuration.n_gpus.iter().enumerate().filter(|(_, n)| **n > 0);
        configuration.model == model && taken.all(|(of, _)| of == offer)
    };
    let all = 0..problem.configurations.len();
    let mut kept: Vec<usize> = Vec::new();
    let n_models = problem.configurations.iter().map(|c| c.model + 1).max().unwrap_or(0);
    for model in 0..n_models {
        let of = |offer: usize| all.clone().filter(move |&c| is_of(c, model, offer));
        let least = (0..problem.offers.len()).filter_map(|offer| of(offer).map(total).min()).max().unwrap_or(0);
        kept.extend((0..problem.offers.len()).filter_map(|offer| of(offer).find(|&c| total(c) == least)));
    }
    let mut fixed = problem.clone();
    for (c, configuration) in fixed.configurations.iter_mut().enumerate() {
        // A configuration that is not kept serves nothing, so that indices stay those of the problem.
        if !kept.contains(&c) {
            configuration.requests_per_s.fill(0.0);
        }
    }
    solve(&fixed, options)
}

/// The best composition and deployment when every replica of a model gets the same share of every demand.
///
/// # Errors
/// As `solve`.
pub fn round_robin(problem: &Problem, options: Options) -> Result<Answer, RentalError> {
    problem.check()?;
    serviceable(problem)?;
    let relaxed_s = relaxed(problem)?;
    bisect(problem, relaxed_s, relaxed_s * ROUND_ROBIN_TOLERANCE, |trial| {
        let replicas = alike(problem, trial, options)?;
        Ok(dealt(problem, replicas))
    })
}

/// Seconds of all the model's demands on one replica; `None` where it cannot serve one of them or has none.
fn all_demands(problem: &Problem, c: usize) -> Option<f64> {
    let model = problem.configurations[c].model;
    let asked =
        (0..problem.demands.len()).filter(|&w| problem.demands[w].model == model && problem.demands[w].requests > 0.0);
    let seconds: Option<Vec<f64>> = asked.map(|w| problem.seconds(c, w)).collect();
    seconds.filter(|seconds| !seconds.is_empty()).map(|seconds| seconds.iter().sum())
}

/// The cheapest replicas that end within `makespan_s` when each gets the same.
fn alike(problem: &Problem, makespan_s: f64, options: Options) -> Result<Vec<u32>, Unsolved> {
    let mut variables = ProblemVariables::new();
    let mut constraints: Vec<Constraint> = Vec::new();
    let mut replicas: Vec<(usize, Variable, Variable)> = Vec::new();
    for c in (0..problem.configurations.len()).filter(|&c| all_demands(problem, c).is_some()) {
        let upper = f64::from(problem.n_replicas_max(c));
        let (y, used) = (variables.add(variable().integer().min(0.0).max(upper)), variables.add(variable().binary()));
        constraints.push(constraint!(y <= upper * used));
        constraints.push(constraint!(used <= y));
        replicas.push((c, y, used));
    }
    let sum = |of: &dyn Fn(usize) -> f64| -> Expression { replicas.iter().map(|&(c, y, _)| of(c) * y).sum() };
    for &(c, _, used) in &replicas {
        let model = problem.configurations[c].model;
        let of_model = sum(&|other| f64::from(u8::from(problem.configurations[other].model == model)));
        let seconds = all_demands(problem, c).expect("filtered");
        constraints.push(constraint!(seconds / makespan_s * used <= of_model));
    }
    for demand in problem.demands.iter().filter(|demand| demand.requests > 0.0) {
        let of_model = sum(&|c| f64::from(u8::from(problem.configurations[c].model == demand.model)));
        constraints.push(constraint!(of_model >= 1.0));
    }
    constraints.push(constraint!(sum(&|c| problem.price(c)) <= problem.budget_usd_per_hour));
    for (offer, limit) in problem.offers.iter().enumerate() {
        let taken = sum(&|c| f64::from(problem.configurations[c].n_gpus[offer]));
        constraints.push(constraint!(taken <= f64::from(limit.n_available)));
    }
    let objective = sum(&|c| problem.price(c));
    let wanted: Vec<Variable> = replicas.iter().map(|&(_, y, _)| y).collect();
    let program = Program { variables, objective, constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, options.budget)?;
    let mut all = vec![0; problem.configurations.len()];
    replicas.iter().zip(&solved.values).for_each(|(&(c, ..), &y)| all[c] = whole(y));
    Ok(all)
}

/// The plan of replicas that all get the same.
fn dealt(problem: &Problem, replicas: Vec<u32>) -> Option<Plan> {
    let mut shares = vec![vec![0.0; problem.demands.len()]; replicas.len()];
    let mut makespan_s = 0.0_f64;
    for (c, &y) in replicas.iter().enumerate().filter(|(_, y)| **y > 0) {
        let model = problem.configurations[c].model;
        let of_model = replicas.iter().zip(&problem.configurations).filter(|(_, other)| other.model == model);
        let n: f64 = of_model.map(|(&y, _)| f64::from(y)).sum();
        makespan_s = makespan_s.max(all_demands(problem, c)? / n);
        for w in (0..problem.demands.len()).filter(|&w| problem.seconds(c, w).is_some()) {
            shares[c][w] = f64::from(y) / n;
        }
    }
    let n_gpus = problem.n_gpus(&replicas);
    let usd_per_hour = problem.usd_per_hour(&replicas);
    Some(Plan { replicas, n_gpus, usd_per_hour, shares, makespan_s })
}
