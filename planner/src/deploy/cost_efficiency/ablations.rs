//! Plans that give up one of the three decisions (arXiv:2502.00722, baselines): one GPU type, a fixed mix, a fixed deployment, round robin.
//!
//! Round robin sends every demand to all replicas of its model alike, so that a replica of c takes T = Σ_w f_w/h_cw / N, where N counts
//! the model's replicas; what is left to decide is y. Once the slowest configuration of a model is chosen, G = Σ_w f_w/h_cw, this is linear
//! in z = 1/T: G·z <= N over the configurations that are not slower.

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::super::inventory::Offer;
use super::super::{Plan, Problem, RentalError, usd, whole};
use super::program::{Replicas, limits};
use super::{Options, no_plan, of_cheaper, order, relaxed, serviceable, solve, without_idle};
use crate::milp::{self, Budget, Program, Unsolved};
use crate::proof::{Aim, Decision, Status};
use engine::stop;

/// Choices of slowest configurations that round robin compares at most.
const CHOICES_MAX: usize = 200_000;

/// The best plan on the GPU type of one offer alone.
///
/// # Errors
/// As `solve`; `Input` where no such type is offered.
pub fn homogeneous(problem: &Problem, offer: usize, options: Options) -> Result<Decision<Plan>, RentalError> {
    if offer >= problem.inventory.offers.len() {
        let n = problem.inventory.offers.len();
        return Err(RentalError::Input(format!("GPU type {offer} is not among the {n} that are offered")));
    }
    solve(&alone(problem, offer), options)
}

/// The problem with the GPU type of one offer: all offers of it.
fn alone(problem: &Problem, offer: usize) -> Problem {
    let mut alone = problem.clone();
    let kind = &problem.inventory.offers[offer].kind;
    let others = alone.inventory.offers.iter_mut().filter(|other| other.kind != *kind);
    others.for_each(|other| other.n_available = 0);
    alone
}

/// The first offer of each GPU type.
fn types(offers: &[Offer]) -> Vec<usize> {
    (0..offers.len()).filter(|&at| offers[..at].iter().all(|other| other.kind != offers[at].kind)).collect()
}

/// The best of all plans on one GPU type alone.
///
/// # Errors
/// As `solve`, where no type alone has a plan; the reason is the first type's.
pub fn one_type(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    of_one_type(problem, &|alone| solve(alone, options))
}

/// The best answer over every GPU type alone.
///
/// # Errors
/// Where no type alone has a plan; the reason is the first type's.
pub(super) fn of_one_type(
    problem: &Problem,
    solve: &dyn Fn(&Problem) -> Result<Decision<Plan>, RentalError>,
) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    let (mut best, mut why): (Option<Decision<Plan>>, Option<RentalError>) = (None, None);
    for offer in types(&problem.inventory.offers) {
        match solve(&alone(problem, offer)) {
            Ok(answer) if best.as_ref().is_none_or(|best| is_better(&answer, best)) => best = Some(answer),
            Ok(_) => {}
            Err(error) => why = why.or(Some(error)),
        }
    }
    best.ok_or_else(|| why.expect("at least one type is offered, and none has a plan"))
}

/// Whether a plan is better: by what is counted, then by the other of time and price.
fn is_better(a: &Decision<Plan>, b: &Decision<Plan>) -> bool {
    let figures = |decision: &Decision<Plan>| (decision.plan.makespan_s, decision.plan.usd_per_hour);
    let ((a_s, a_usd), (b_s, b_usd)) = (figures(a), figures(b));
    let (by_time, by_price) = (order(a_s, b_s), order(a_usd, b_usd));
    match a.aim() {
        Some(Aim::UsdPerHour) => by_price.then(by_time).is_lt(),
        _ => by_time.then(by_price).is_lt(),
    }
}

/// So many GPUs of each type, from its cheapest offers on; all of a type where it has fewer.
fn of_each_type(offers: &[Offer], n: u32) -> Vec<u32> {
    let mut taken = vec![0; offers.len()];
    for first in types(offers) {
        let mut of_type: Vec<usize> =
            (first..offers.len()).filter(|&at| offers[at].kind == offers[first].kind).collect();
        of_type.sort_by(|&a, &b| offers[a].usd_per_hour.total_cmp(&offers[b].usd_per_hour));
        let mut left = n;
        for at in of_type {
            taken[at] = left.min(offers[at].n_available);
            left -= taken[at];
        }
    }
    taken
}

/// The best deployment and split on a fixed mix: as many GPUs of each type as the budget allows when all types get the same number, or
/// all of a type where it has fewer.
///
/// # Errors
/// As `solve`.
pub fn uniform_composition(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    let offers = &problem.inventory.offers;
    let price = |n: u32| -> f64 {
        of_each_type(offers, n).iter().zip(offers).map(|(&n, offer)| f64::from(n) * offer.usd_per_hour).sum()
    };
    let most = offers.iter().fold(0_u32, |sum, offer| sum.saturating_add(offer.n_available));
    // The cost rises with the number, so that halving finds the last one within the budget.
    let (mut n, mut over) = (0, u64::from(most) + 1);
    while over - u64::from(n) > 1 {
        let middle = u32::try_from(u64::from(n).midpoint(over)).expect("at most the greatest availability");
        if price(middle) <= problem.budget_usd_per_hour * (1.0 + 1e-9) {
            n = middle;
        } else {
            over = u64::from(middle);
        }
    }
    let mut fixed = problem.clone();
    fixed.inventory.offers.iter_mut().zip(of_each_type(offers, n)).for_each(|(offer, n)| offer.n_available = n);
    let budget = usd(problem.budget_usd_per_hour);
    solve(&fixed, options).map_err(|why| match why {
        RentalError::Infeasible(_) if n == 0 => RentalError::Infeasible(format!(
            "one of each GPU type takes {} $/h, and the budget is {budget} $/h",
            usd(price(1))
        )),
        RentalError::Infeasible(why) => {
            RentalError::Infeasible(format!("of {n} of each GPU type, as many as {budget} $/h buys: {why}"))
        }
        other => other,
    })
}

/// The best composition and split when every replica of a model has the same number of GPUs: the least with which each type that can
/// hold the model does. Of a type's configurations with that number the one counts that would do the model's work soonest.
///
/// # Errors
/// As `solve`.
pub fn uniform_deployment(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    solve(&of_one_size(problem), options)
}

/// The problem with the configurations of one size for each model.
pub(super) fn of_one_size(problem: &Problem) -> Problem {
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
        let least =
            (0..problem.inventory.offers.len()).filter_map(|offer| of(offer).map(total).min()).max().unwrap_or(0);
        let one = |offer: usize| problem.fastest(of(offer).filter(|&c| total(c) == least));
        kept.extend((0..problem.inventory.offers.len()).filter_map(one));
    }
    let mut fixed = problem.clone();
    for (c, configuration) in fixed.configurations.iter_mut().enumerate() {
        // A configuration that is not kept serves nothing, so that indices stay those of the problem.
        if !kept.contains(&c) {
            configuration.requests_per_s.fill(0.0);
        }
    }
    fixed
}

/// The best composition and deployment when every replica of a model gets the same share of every demand: the best over every choice of
/// a slowest configuration per model, in the order of what each model could do alone.
///
/// # Errors
/// As `solve`; `Budget` for more than `CHOICES_MAX` choices.
pub fn round_robin(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    serviceable(problem)?;
    let unit_s = relaxed(problem)?;
    let choices = choices(problem, unit_s)?;
    let (mut best, mut bound_s): (Option<Plan>, f64) = (None, f64::INFINITY);
    let mut status = Status::Optimal;
    for (alone_s, slowest) in &choices {
        let alone_s = *alone_s;
        let most = best.as_ref().map_or(f64::INFINITY, |plan| plan.makespan_s);
        if alone_s >= most || stop::is_asked() {
            bound_s = bound_s.min(alone_s);
            break;
        }
        match alike(problem, slowest, Replicas::Whole, (unit_s, Least::Time { most_s: most }), options.budget) {
            Ok((replicas, least_s)) => {
                bound_s = bound_s.min(least_s);
                best = dealt(problem, replicas).filter(|plan| plan.makespan_s < most).or(best);
            }
            Err(Unsolved::Infeasible) => {}
            Err(Unsolved::Stopped(_)) => {
                bound_s = bound_s.min(alone_s);
                status = Status::Feasible;
            }
        }
    }
    let plan = best.ok_or_else(|| no_plan(problem))?;
    Ok(super::decided(cheapest_as_soon(problem, plan, &choices, (unit_s, options)), bound_s, status))
}

/// Of the plans of round robin that end as soon the cheapest.
fn cheapest_as_soon(
    problem: &Problem,
    mut best: Plan,
    choices: &[(f64, Slowest)],
    (unit_s, options): (f64, Options),
) -> Plan {
    let within_s = best.makespan_s;
    for (_, slowest) in choices.iter().take_while(|(alone_s, _)| order(*alone_s, within_s).is_le()) {
        let least = (unit_s, Least::Price { within_s });
        let Ok((replicas, _)) = alike(problem, slowest, Replicas::Whole, least, of_cheaper(options.budget)) else {
            continue;
        };
        let is_cheaper = |other: &Plan| {
            order(other.makespan_s, within_s).is_le() && order(other.usd_per_hour, best.usd_per_hour).is_lt()
        };
        if let Some(cheaper) = dealt(problem, replicas).filter(is_cheaper) {
            best = cheaper;
        }
    }
    without_idle(problem, best, &|fewer| dealt(problem, fewer))
}

/// What is least of replicas that all get the same.
#[derive(Clone, Copy)]
enum Least {
    /// The makespan, which is to be below another one.
    Time {
        /// The other one.
        most_s: f64,
    },
    /// The price, of those that end within a makespan.
    Price {
        /// The makespan.
        within_s: f64,
    },
}

/// The slowest configuration's seconds per model.
type Slowest = Vec<(usize, f64)>;

/// Every choice of a slowest configuration per model, with the makespan that no plan with it undercuts; soonest first.
fn choices(problem: &Problem, unit_s: f64) -> Result<Vec<(f64, Slowest)>, RentalError> {
    let mut models: Vec<usize> = problem.demands.iter().filter(|d| d.requests > 0.0).map(|d| d.model).collect();
    models.sort_unstable();
    models.dedup();
    let mut all: Vec<(f64, Slowest)> = vec![(0.0, Vec::new())];
    for model in models {
        let of_model = (0..problem.configurations.len())
            .filter(|&c| problem.configurations[c].model == model && problem.n_replicas_max(c) > 0);
        let mut seconds: Vec<f64> = of_model.filter_map(|c| all_demands(problem, c)).collect();
        seconds.sort_unstable_by(f64::total_cmp);
        seconds.dedup();
        if all.len() * seconds.len() > CHOICES_MAX {
            return Err(RentalError::Budget(format!("round robin has more than {CHOICES_MAX} choices to compare")));
        }
        let alone = seconds.into_iter().filter_map(|seconds| {
            let slowest = vec![(model, seconds)];
            let least = (unit_s, Least::Time { most_s: f64::INFINITY });
            let found = alike(problem, &slowest, Replicas::Split, least, Budget::default());
            found.ok().map(|(_, least_s)| (least_s, seconds))
        });
        let alone: Vec<(f64, f64)> = alone.collect();
        let with = |(before_s, slowest): &(f64, Slowest)| {
            let (before_s, slowest) = (*before_s, slowest.clone());
            let more = move |&(alone_s, seconds): &(f64, f64)| {
                (alone_s.max(before_s), [slowest.as_slice(), &[(model, seconds)]].concat())
            };
            alone.iter().map(more).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(all)
}

/// Seconds of all the model's demands on one replica; `None` where it cannot serve one of them or has none.
fn all_demands(problem: &Problem, c: usize) -> Option<f64> {
    let model = problem.configurations[c].model;
    let asked =
        (0..problem.demands.len()).filter(|&w| problem.demands[w].model == model && problem.demands[w].requests > 0.0);
    let seconds: Option<Vec<f64>> = asked.map(|w| problem.seconds(c, w)).collect();
    seconds.filter(|seconds| !seconds.is_empty()).map(|seconds| seconds.iter().sum())
}

/// Replicas with the least makespan or price when each gets the same and none is slower than its model's choice; with a bound on that makespan
/// where it is least. `unit_s` is a time of its order.
fn alike(
    problem: &Problem,
    slowest: &Slowest,
    kind: Replicas,
    (unit_s, least): (f64, Least),
    budget: Budget,
) -> Result<(Vec<u32>, f64), Unsolved> {
    let mut variables = ProblemVariables::new();
    let limit = |c: usize| slowest.iter().find(|(model, _)| *model == problem.configurations[c].model);
    let is_open =
        |c: &usize| limit(*c).zip(all_demands(problem, *c)).is_some_and(|((_, most), seconds)| seconds <= *most);
    let open: Vec<usize> = (0..problem.configurations.len()).filter(is_open).collect();
    let count = |c: usize| variable().min(0.0).max(f64::from(problem.n_replicas_max(c)));
    let whole_or_not = |c: usize| if kind == Replicas::Whole { count(c).integer() } else { count(c) };
    let replicas: Vec<(usize, Variable)> = open.iter().map(|&c| (c, variables.add(whole_or_not(c)))).collect();
    let z = variables.add(variable().min(match least {
        Least::Time { most_s: seconds } | Least::Price { within_s: seconds } => unit_s / seconds,
    }));
    let sum = |of: &dyn Fn(usize) -> f64| -> Expression { replicas.iter().map(|&(c, y)| of(c) * y).sum() };
    let mut constraints: Vec<Constraint> = Vec::new();
    for &(model, seconds) in slowest {
        let n = sum(&|c| f64::from(u8::from(problem.configurations[c].model == model)));
        constraints.push(constraint!(seconds / unit_s * z <= n));
    }
    let objective = match least {
        Least::Time { .. } => -1.0 * z,
        Least::Price { .. } => sum(&|c| problem.price(c)),
    };
    constraints.extend(limits(problem, &mut variables, &replicas, kind));
    let wanted: Vec<Variable> = replicas.iter().map(|&(_, y)| y).collect();
    let program = Program { variables, objective, constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, budget)?;
    let mut all = vec![0; problem.configurations.len()];
    replicas.iter().zip(&solved.values).for_each(|(&(c, _), &y)| all[c] = whole(y));
    let fastest = -solved.bound.unwrap_or(f64::NEG_INFINITY);
    Ok((all, if fastest > 0.0 { unit_s / fastest } else { f64::INFINITY }))
}

/// The plan of replicas that all get the same; `None` where one of them cannot serve its model's demands, or a model has none.
pub(super) fn dealt(problem: &Problem, replicas: Vec<u32>) -> Option<Plan> {
    if replicas.iter().all(|&y| y == 0) {
        return None;
    }
    let has_replica = |model| replicas.iter().zip(&problem.configurations).any(|(&y, c)| y > 0 && c.model == model);
    if problem.demands.iter().any(|demand| demand.requests > 0.0 && !has_replica(demand.model)) {
        return None;
    }
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
