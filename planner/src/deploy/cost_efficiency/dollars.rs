//! The same program for the fewest dollars per hour: all work ends within a deadline.
//!
//! The paper fixes the makespan T in each step of its bisection (appendix F); here T is the deadline, and the price of the replicas is what is
//! least: min Σ_c o_c·y_c  s.t.  Σ_c x_cw = 1;  Σ_w x_cw·f_w/h_cw <= T·y_c. Of plans at that price the one that ends soonest is the answer:
//! what ends soonest within this price as the budget. Units: seconds, dollars per hour.

use super::ablations::{of_one_size, of_one_type};
use super::{Options, Plan, Problem, RentalError, direct, program, relaxed, serviceable, split};
use crate::milp::Unsolved;
use crate::proof::{Aim, Bound, Decision};

/// Part of the deadline by which a solver's tolerance may miss it.
const TOLERANCE: f64 = 1e-6;

/// The cheapest plan that ends within `deadline_s`; its bound is that of the search.
///
/// # Errors
/// On figures without meaning, when no plan ends in time, or when the search ended before it found one.
pub fn cheapest(problem: &Problem, deadline_s: f64, options: Options) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    if !(deadline_s.is_finite() && deadline_s > 0.0) {
        return Err(RentalError::Input(format!("the deadline must be above 0 s, found {deadline_s}")));
    }
    serviceable(problem)?;
    let late = || RentalError::Infeasible(format!("no plan of what is offered ends within {deadline_s} s"));
    let found = program::cheapest(problem, deadline_s, (None, None), options.budget).map_err(|why| match why {
        Unsolved::Infeasible => late(),
        Unsolved::Stopped(why) => RentalError::Budget(why),
    })?;
    let (replicas, solved) = found;
    let plan = in_time(problem, replicas, deadline_s).ok_or_else(late)?;
    let plan = soonest_at_its_price(problem, plan, options);
    let usd_per_hour = plan.usd_per_hour;
    let bound = solved.bound.map(|bound| Bound::plain(bound.min(usd_per_hour)));
    Ok(Decision::new(plan, Aim::UsdPerHour, usd_per_hour).bounded(bound, solved.status))
}

/// The plan of replicas, where it ends in time.
fn in_time(problem: &Problem, replicas: Vec<u32>, deadline_s: f64) -> Option<Plan> {
    split(problem, replicas, deadline_s).filter(|plan| plan.makespan_s <= deadline_s * (1.0 + TOLERANCE))
}

/// Of the plans that cost no more the one that ends soonest.
fn soonest_at_its_price(problem: &Problem, plan: Plan, options: Options) -> Plan {
    let within = Problem { budget_usd_per_hour: plan.usd_per_hour, ..problem.clone() };
    let sooner = relaxed(&within).and_then(|relaxed_s| direct(&within, relaxed_s, options.budget));
    // The price is a sum of floats in one order, so that equal replicas have equal prices.
    let is_better = |other: &Plan| {
        let order = super::order(other.usd_per_hour, plan.usd_per_hour);
        order.then(super::order(other.makespan_s, plan.makespan_s)).is_lt()
    };
    sooner.ok().map(|found| found.plan).filter(is_better).unwrap_or(plan)
}

/// The cheapest plan that has fewer replicas of some configuration.
pub fn second_cheapest(problem: &Problem, deadline_s: f64, best: &Plan, options: Options) -> Option<Plan> {
    let (replicas, _) = program::cheapest(problem, deadline_s, (Some(&best.replicas), None), options.budget).ok()?;
    in_time(problem, replicas, deadline_s)
}

/// The cheapest plan on one GPU type alone.
///
/// # Errors
/// As `cheapest`, where no type alone has a plan; the reason is the first type's.
pub fn cheapest_of_one_type(
    problem: &Problem,
    deadline_s: f64,
    options: Options,
) -> Result<Decision<Plan>, RentalError> {
    of_one_type(problem, &|alone| cheapest(alone, deadline_s, options))
}

/// The cheapest plan when every replica of a model has the same number of GPUs.
///
/// # Errors
/// As `cheapest`.
pub fn cheapest_of_one_size(
    problem: &Problem,
    deadline_s: f64,
    options: Options,
) -> Result<Decision<Plan>, RentalError> {
    problem.check()?;
    cheapest(&of_one_size(problem), deadline_s, options)
}

/// What holds the price up: the type of which more would save most, or the deadline.
pub fn limit_of_price(problem: &Problem, deadline_s: f64, plan: &Plan, options: Options) -> String {
    let mut best = (plan.usd_per_hour * (1.0 - TOLERANCE), None);
    let offers = problem.inventory.offers.iter().enumerate();
    for (at, offer) in offers.filter(|(at, _)| super::is_used_up(problem, plan, *at)) {
        // Nobody who is not short of a type gains by more of it.
        let mut more = problem.clone();
        more.inventory.offers[at].n_available = offer.n_available.saturating_mul(2).max(1);
        let usd_per_hour = cheapest(&more, deadline_s, options).map_or(f64::INFINITY, |found| found.plan.usd_per_hour);
        if usd_per_hour < best.0 {
            best = (usd_per_hour, Some(offer));
        }
    }
    match best {
        (usd, Some(offer)) => format!(
            "availability of `{}`: with twice as many as {} the work would cost {usd:.4} $/h",
            offer.name, offer.n_available
        ),
        _ => format!("deadline of {deadline_s} s, of which the work takes {:.3} s", plan.makespan_s),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::deploy::cost_efficiency::solve;
    use crate::deploy::inventory::{Inventory, Offer};
    use crate::deploy::{Configuration, Demand};

    /// The example of arXiv:2502.00722, section 4.2, within a budget.
    pub fn example(budget_usd_per_hour: f64) -> Problem {
        let offer = |name: &str, usd_per_hour| Offer::priced(name, usd_per_hour, 2);
        let configuration = |n_gpus: [u32; 3], rates: [f64; 2]| Configuration {
            name: "c".to_owned(),
            model: 0,
            n_gpus: n_gpus.to_vec(),
            requests_per_s: rates.to_vec(),
        };
        let demand = |requests| Demand { name: String::new(), model: 0, requests };
        Problem {
            inventory: Inventory::of(vec![offer("t1", 4.0), offer("t2", 2.0), offer("t3", 2.0)]),
            configurations: vec![
                configuration([1, 0, 0], [1.0, 1.2]),
                configuration([0, 1, 0], [0.9, 0.9]),
                configuration([0, 0, 1], [0.3, 0.5]),
                configuration([0, 2, 0], [2.4, 1.5]),
            ],
            demands: vec![demand(80.0), demand(20.0)],
            budget_usd_per_hour,
        }
    }

    #[test]
    fn the_pair_of_t2_is_the_cheapest_that_ends_within_140_thirds_seconds() {
        // 80/2.4 + 20/1.5 = 140/3 s for 4 $/h; half of that price buys one t2 or one t3, the faster of which takes 100/0.9 s. A second sooner
        // needs more than 4 $/h: 6 $/h buys the pair and a t3.
        let (problem, options) = (example(16.0), Options::default());
        let found = cheapest(&problem, 140.0 / 3.0 + 0.001, options).expect("a plan");
        assert_eq!((found.plan.replicas.as_slice(), found.plan.usd_per_hour), (&[0, 0, 0, 1][..], 4.0));
        assert!(found.bound().is_some_and(|bound| bound > 4.0 - 1e-6), "{found:?}");
        assert_eq!(cheapest(&problem, 140.0 / 3.0 - 1.0, options).expect("a plan").plan.usd_per_hour, 6.0);
        assert_eq!(cheapest(&problem, 112.0, options).expect("a plan").plan.usd_per_hour, 2.0);
        let second = second_cheapest(&problem, 112.0, &found.plan, options).expect("another");
        assert!(second.replicas[3] == 0 && second.usd_per_hour >= 2.0, "{second:?}");
        let why = cheapest(&problem, 1.0, options).expect_err("nobody is that fast").to_string();
        assert_eq!(why, "no plan of what is offered ends within 1 s");
    }

    /// Two types at one price: the faster one is rented, by every policy that rents for the fewest dollars.
    #[test]
    fn of_plans_at_one_price_the_one_that_ends_soonest_is_rented() {
        let offers = vec![Offer::priced("slow", 2.0, 4), Offer::priced("fast", 2.0, 4)];
        let configuration = |n_gpus: [u32; 2], rate| Configuration {
            name: "c".to_owned(),
            model: 0,
            n_gpus: n_gpus.to_vec(),
            requests_per_s: vec![rate],
        };
        let problem = Problem {
            inventory: Inventory::of(offers),
            configurations: vec![configuration([1, 0], 1.0), configuration([0, 1], 4.0)],
            demands: vec![Demand { name: String::new(), model: 0, requests: 100.0 }],
            budget_usd_per_hour: 16.0,
        };
        let options = Options::default();
        for deadline_s in [100.0, 200.0] {
            for found in [
                cheapest(&problem, deadline_s, options),
                cheapest_of_one_type(&problem, deadline_s, options),
                cheapest_of_one_size(&problem, deadline_s, options),
                crate::deploy::melange::within(&problem, deadline_s, options),
            ] {
                let plan = found.expect("a plan").plan;
                assert_eq!((plan.replicas.as_slice(), plan.usd_per_hour), (&[0, 1][..], 2.0), "{deadline_s} s");
                assert!((plan.makespan_s - 25.0).abs() < 1e-4, "{plan:?}");
            }
        }
    }

    #[test]
    fn dollars_and_time_are_two_sides_of_one_front() {
        // What ends soonest within a budget is at least as dear as the cheapest that ends as soon, and no cheaper plan is found at that time.
        let options = Options::default();
        for budget in [2.0, 4.0, 6.0, 8.0, 10.0, 12.0] {
            let problem = example(budget);
            let soonest = solve(&problem, options).expect("a plan").plan;
            let found = cheapest(&example(16.0), soonest.makespan_s * 1.0001, options).expect("the plan itself");
            assert!(found.plan.usd_per_hour <= soonest.usd_per_hour + 1e-9, "{budget}: {found:?}, {soonest:?}");
            let cheaper = example(found.plan.usd_per_hour - 0.5);
            let least_s = solve(&cheaper, options).map_or(f64::INFINITY, |found| found.plan.makespan_s);
            assert!(least_s > soonest.makespan_s, "{budget}: {least_s}");
        }
    }

    #[test]
    fn who_gives_up_a_decision_pays_no_less() {
        let (problem, options) = (example(16.0), Options::default());
        for deadline_s in [30.0, 40.0, 60.0, 120.0] {
            let best = cheapest(&problem, deadline_s, options).expect("a plan").plan.usd_per_hour;
            for other in [
                cheapest_of_one_type(&problem, deadline_s, options),
                cheapest_of_one_size(&problem, deadline_s, options),
                crate::deploy::melange::within(&problem, deadline_s, options),
            ] {
                let Ok(other) = other else { continue };
                assert!(other.plan.usd_per_hour >= best - 1e-9 && other.plan.makespan_s <= deadline_s * 1.00001);
            }
        }
    }
}
