//! Mélange for given work: its cheapest mix that carries all work within a deadline, and under a budget the shortest time whose mix costs no more.
//!
//! Mélange asks for the cheapest GPUs that carry given rates. Work that is to end after T seconds is a rate of f_w/T per type, and the price
//! falls as T grows, so that halving finds the least T within the budget. As in the paper a GPU type has one configuration: of those that serve most types of
//! requests the smallest. It gets no slice of a type that it does not serve. A plan is for one model.

use super::{Load, Rented, carrying, short, solve, words};
use crate::deploy::cost_efficiency::{self, Options};
use crate::deploy::inventory::{Inventory, Offer};
use crate::deploy::{Plan, Problem, RentalError, usd};
use crate::proof::{Aim, Bound, Decision, Status};

/// Slices of a type's work; the paper's suggestion.
const N_SLICES: u32 = 4;
/// Relative width of the interval of T at which halving ends.
const WIDTH: f64 = 1e-4;
/// Halvings at most.
const STEPS_MAX: usize = 60;

/// The plan; its bound is that of any plan on these GPUs, whatever its configurations.
///
/// # Errors
/// On figures without meaning, for work of several models, and where no type within the budget carries everything.
pub fn under_budget(problem: &Problem, options: Options) -> Result<Decision<Plan>, RentalError> {
    let asked = asked_of_one(problem)?;
    let none =
        || RentalError::Infeasible(format!("no mix within {} $/h carries all work", usd(problem.budget_usd_per_hour)));
    let best = soonest(problem, &asked, None, options).ok_or_else(none)?;
    let makespan_s = best.makespan_s;
    let bound = Bound::plain(cost_efficiency::bound_s(problem)?.min(makespan_s));
    Ok(Decision::new(best, Aim::Seconds, makespan_s).bounded(Some(bound), Status::Heuristic))
}

/// The cheapest mix that carries all work within `deadline_s`; its bound is that of any plan on these GPUs, whatever its configurations.
///
/// # Errors
/// On figures without meaning, for work of several models, and where no mix carries everything in time.
pub fn within(problem: &Problem, deadline_s: f64, options: Options) -> Result<Decision<Plan>, RentalError> {
    let asked = asked_of_one(problem)?;
    let of = chosen(problem, &asked);
    let rented = solve(&load(problem, &of, &asked, deadline_s), None, options.budget)?.plan;
    let plan = plan(problem, &of, &asked, &rented);
    // Of mixes at one price the one that ends soonest.
    let at_its_price = Problem { budget_usd_per_hour: plan.usd_per_hour, ..problem.clone() };
    let sooner = soonest(&at_its_price, &asked, None, options).filter(|other| other.makespan_s < plan.makespan_s);
    let plan = sooner.unwrap_or(plan);
    let usd_per_hour = plan.usd_per_hour;
    let bound = cost_efficiency::cheapest(problem, deadline_s, options)?.bound();
    let bound = bound.map(|bound| Bound::plain(bound.min(usd_per_hour)));
    Ok(Decision::new(plan, Aim::UsdPerHour, usd_per_hour).bounded(bound, Status::Heuristic))
}

/// The cheapest other mix that carries all work within `deadline_s`.
pub fn second_within(problem: &Problem, deadline_s: f64, best: &Plan, options: Options) -> Option<Plan> {
    let asked = asked(problem);
    let of = chosen(problem, &asked);
    let taken = taken(&of, best);
    let rented = solve(&load(problem, &of, &asked, deadline_s), Some(&taken), options.budget).ok()?.plan;
    Some(plan(problem, &of, &asked, &rented))
}

/// What holds the price of a mix up: too few GPUs of a type, by Mélange's own program, or the load that the mix itself carries. The program may rent others:
/// it does not know how types mix, nor that whole requests fall evenly.
pub fn limit_within(problem: &Problem, deadline_s: f64, plan: &Plan, options: Options) -> String {
    let asked = asked(problem);
    let load = load(problem, &chosen(problem, &asked), &asked, deadline_s);
    let offer_of = |c: usize| problem.configurations[c].n_gpus.iter().position(|n| *n > 0);
    let used = (0..plan.replicas.len()).filter(|c| plan.replicas[*c] > 0).filter_map(|c| Some((c, offer_of(c)?)));
    let (mut rented, mut carried) = (vec![0; problem.inventory.offers.len()], Vec::new());
    for (c, offer) in used {
        rented[offer] += plan.replicas[c];
        let busy_s: f64 = asked.iter().map(|&w| plan.shares[c][w] * problem.seconds(c, w).unwrap_or(0.0)).sum();
        carried.push((problem.inventory.offers[offer].name.as_str(), (plan.replicas[c], busy_s / deadline_s)));
    }
    // Only a price below what the program finds as it is would come of more GPUs.
    let own = solve(&load, None, options.budget).map_or(f64::INFINITY, |own| own.plan.usd_per_hour);
    short(&load, &rented, own.min(plan.usd_per_hour), options.budget).unwrap_or_else(|| carrying(&carried))
}

/// Replicas of every type in a plan.
fn taken(of: &[Option<usize>], plan: &Plan) -> Vec<u32> {
    of.iter().map(|c| c.map_or(0, |c| plan.replicas[c])).collect()
}

/// Demands with requests, which are all of one model.
///
/// # Errors
/// On figures without meaning, and for work of several models.
fn asked_of_one(problem: &Problem) -> Result<Vec<usize>, RentalError> {
    problem.check()?;
    let asked = asked(problem);
    let model = problem.demands[asked[0]].model;
    if asked.iter().any(|&w| problem.demands[w].model != model) {
        return Err(RentalError::Infeasible("Mélange plans one model, and the work asks for several".to_owned()));
    }
    Ok(asked)
}

/// Demands with requests.
fn asked(problem: &Problem) -> Vec<usize> {
    (0..problem.demands.len()).filter(|&w| problem.demands[w].requests > 0.0).collect()
}

/// The least time in which a mix within the budget carries all work, by halving; `other_than` are replicas of every type that count as known.
fn soonest(problem: &Problem, asked: &[usize], other_than: Option<&[u32]>, options: Options) -> Option<Plan> {
    let of = chosen(problem, asked);
    let work = |c: usize| asked.iter().filter_map(|&w| problem.seconds(c, w)).sum::<f64>();
    let carried = |seconds: f64| -> Option<Plan> {
        let rented = solve(&load(problem, &of, asked, seconds), other_than, options.budget).ok()?.plan;
        let plan = plan(problem, &of, asked, &rented);
        (plan.usd_per_hour <= problem.budget_usd_per_hour * (1.0 + 1e-9)).then_some(plan)
    };
    // One replica of any type ends by then.
    let (mut below, mut above) = (0.0, of.iter().flatten().map(|&c| work(c)).fold(0.0, f64::max));
    let mut best = carried(above)?;
    for _ in 0..STEPS_MAX {
        above = best.makespan_s.min(above);
        if above - below <= WIDTH * above {
            break;
        }
        let middle = f64::midpoint(below, above);
        match carried(middle) {
            Some(plan) if plan.makespan_s < best.makespan_s => best = plan,
            Some(_) => above = middle,
            None => below = middle,
        }
    }
    Some(best)
}

/// What keeps a plan from ending sooner.
pub fn limit_under_budget(problem: &Problem, plan: &Plan, options: Options) -> String {
    let asked = asked(problem);
    // A sooner end that the search can tell apart.
    let sooner = load(problem, &chosen(problem, &asked), &asked, plan.makespan_s * (1.0 - 2.0 * WIDTH));
    let budget = usd(problem.budget_usd_per_hour);
    match solve(&sooner, None, options.budget) {
        Ok(rented) => format!(
            "budget of {budget} $/h: to end sooner the cheapest mix, {}, costs {:.4} $/h",
            words(&sooner, &rented.plan.replicas),
            rented.plan.usd_per_hour
        ),
        Err(why) => format!("availability: to end sooner, {why}"),
    }
}

/// The plan of another mix that ends soonest.
pub fn second_under_budget(problem: &Problem, plan: &Plan, options: Options) -> Option<Plan> {
    let asked = asked(problem);
    soonest(problem, &asked, Some(&taken(&chosen(problem, &asked), plan)), options)
}

/// The configuration of every type.
fn chosen(problem: &Problem, asked: &[usize]) -> Vec<Option<usize>> {
    (0..problem.inventory.offers.len()).map(|offer| smallest(problem, offer, asked)).collect()
}

/// The configuration of a type alone that serves most of what is asked; of equals that with the fewest GPUs, then the one that does so soonest.
fn smallest(problem: &Problem, offer: usize, asked: &[usize]) -> Option<usize> {
    let n_gpus = |c: usize| problem.configurations[c].n_gpus[offer];
    let is_of = |c: &usize| {
        let mut all = problem.configurations[*c].n_gpus.iter().enumerate();
        all.all(|(of, &n)| (of == offer) == (n > 0)) && problem.n_replicas_max(*c) > 0
    };
    let rank = |c: usize| {
        let seconds: Vec<f64> = asked.iter().filter_map(|&w| problem.seconds(c, w)).collect();
        (seconds.len(), n_gpus(c), seconds.iter().sum::<f64>())
    };
    let serving = (0..problem.configurations.len()).filter(is_of).map(|c| (c, rank(c))).filter(|(_, rank)| rank.0 > 0);
    let best = serving.min_by(|(_, a), (_, b)| b.0.cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2)));
    best.map(|(c, _)| c)
}

/// All work within so many seconds, as rates.
fn load(problem: &Problem, of: &[Option<usize>], asked: &[usize], seconds: f64) -> Load {
    let offer = |(offer, c): (&Offer, &Option<usize>)| match c {
        None => Offer { n_available: 0, ..offer.clone() },
        Some(c) => {
            let priced = Offer::priced(offer.name.clone(), problem.price(*c), problem.n_replicas_max(*c));
            Offer { kind: offer.kind.clone(), ..priced }
        }
    };
    let rate = |c: &Option<usize>, w: usize| c.map_or(0.0, |c| problem.configurations[c].requests_per_s[w]);
    Load {
        inventory: Inventory::of(problem.inventory.offers.iter().zip(of).map(offer).collect()),
        requests_per_s_max: of.iter().map(|c| asked.iter().map(|&w| rate(c, w)).collect()).collect(),
        requests_per_s: asked.iter().map(|&w| problem.demands[w].requests / seconds).collect(),
        n_slices: N_SLICES,
    }
}

/// Replicas and shares by offer as a plan.
fn plan(problem: &Problem, of: &[Option<usize>], asked: &[usize], rented: &Rented) -> Plan {
    let mut replicas = vec![0; problem.configurations.len()];
    let mut shares = vec![vec![0.0; problem.demands.len()]; replicas.len()];
    let mut makespan_s = 0.0_f64;
    for (offer, c) in of.iter().enumerate().filter_map(|(offer, c)| Some((offer, (*c)?))) {
        replicas[c] = rented.replicas[offer];
        let mut busy_s = 0.0;
        for (cell, &w) in asked.iter().enumerate() {
            let share = rented.shares[offer][cell];
            shares[c][w] = share;
            busy_s += share * problem.seconds(c, w).unwrap_or(0.0);
        }
        if busy_s > 0.0 {
            makespan_s = makespan_s.max(busy_s / f64::from(rented.replicas[offer]));
        }
    }
    let (n_gpus, usd_per_hour) = (problem.n_gpus(&replicas), problem.usd_per_hour(&replicas));
    Plan { replicas, n_gpus, usd_per_hour, shares, makespan_s }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::cost_efficiency::example;
    use crate::deploy::{Configuration, Demand};

    fn of(name: &str, n_gpus: [u32; 2], rates: [f64; 2]) -> Configuration {
        Configuration { name: name.to_owned(), model: 0, n_gpus: n_gpus.to_vec(), requests_per_s: rates.to_vec() }
    }

    #[test]
    fn the_example_of_the_program_in_slices() {
        // arXiv:2502.00722, section 4.2, without its pair of t2: of (1,2,0), (1,1,1), (2,0,0) and (0,2,2) the first is best. Slices are 20 and
        // 5 requests; c1 takes one of the first type and three of the second, 20/1.0 + 15/1.2 = 32.5 s, and the pair of c2 the rest,
        // (60/0.9 + 5/0.9)/2 = 325/9 s; every other split in slices ends later.
        let mut problem = example(8.0);
        let answer = under_budget(&problem, Options::default()).expect("a plan");
        assert_eq!(answer.plan.replicas, [1, 2, 0, 0]);
        assert!((answer.plan.makespan_s - 325.0 / 9.0).abs() < 1e-6, "{:?}", answer.plan);
        // All of t1 would end it sooner, with more of t2 or t3 beside one of them, for more than 8 $/h; which is cheapest is the program's.
        let limit = limit_under_budget(&problem, &answer.plan, Options::default());
        assert!(limit.starts_with("budget of 8 $/h: to end sooner the cheapest mix, "), "{limit}");
        let second = second_under_budget(&problem, &answer.plan, Options::default()).expect("another mix");
        assert!(second.makespan_s >= 325.0 / 9.0 && second.usd_per_hour <= 8.0 + 1e-9, "{second:?}");
        assert_ne!(second.replicas, answer.plan.replicas);
        problem.demands[1].model = 1;
        assert!(matches!(under_budget(&problem, Options::default()), Err(RentalError::Infeasible(_))));
    }

    #[test]
    fn the_mix_that_is_explained_is_the_one_that_is_planned() {
        // 100 requests within 100 s. `small` serves 0.6 of them a second and `large` 1.2, so the program rents one of `large` for 3 $/h. Whoever rents two of
        // `small` all the same, each of which serves half of the requests in 50/0.6 s, hears of those: together they fill 100/0.6/100 of one.
        let offers = vec![Offer::priced("small", 2.0, 4), Offer::priced("large", 3.0, 4)];
        let at = |rate: f64, of: Configuration| Configuration { requests_per_s: vec![rate], ..of };
        let problem = Problem {
            inventory: Inventory::of(offers),
            demands: vec![Demand { name: "all".to_owned(), model: 0, requests: 100.0 }],
            configurations: vec![at(0.6, of("s", [1, 0], [0.0; 2])), at(1.2, of("l", [0, 1], [0.0; 2]))],
            budget_usd_per_hour: 100.0,
        };
        let options = Options::default();
        let program = within(&problem, 100.0, options).expect("a plan").plan;
        assert_eq!(program.replicas, [0, 1]);
        assert_eq!(limit_within(&problem, 100.0, &program, options), "load: 1 of `large` carry the load of 0.833");
        let (replicas, shares) = (vec![2, 0], vec![vec![1.0], vec![0.0]]);
        let other = Plan { n_gpus: vec![2, 0], usd_per_hour: 4.0, replicas, shares, makespan_s: 100.0 / 1.2 };
        assert_eq!(limit_within(&problem, 100.0, &other, options), "load: 2 of `small` carry the load of 1.667");
    }

    #[test]
    fn a_type_that_serves_some_requests_alone_gets_those() {
        // 100 short and 100 long requests. One `small` serves short ones at 2/s, and no long ones; one `large` serves both at 1/s. Together they end after
        // 100 s, with all short ones on `small`; `large` alone takes 200 s.
        let offers = vec![Offer::priced("small", 1.0, 1), Offer::priced("large", 2.0, 1)];
        let demand = |name: &str| Demand { name: name.to_owned(), model: 0, requests: 100.0 };
        let problem = Problem {
            inventory: Inventory::of(offers),
            demands: vec![demand("short"), demand("long")],
            configurations: vec![of("small", [1, 0], [2.0, 0.0]), of("large", [0, 1], [1.0, 1.0])],
            budget_usd_per_hour: 3.0,
        };
        let answer = under_budget(&problem, Options::default()).expect("a plan");
        assert_eq!((answer.plan.replicas.clone(), answer.plan.shares[0].clone()), (vec![1, 1], vec![1.0, 0.0]));
        assert!((answer.plan.makespan_s - 100.0).abs() < 1e-6, "{:?}", answer.plan);
        let cheapest = within(&problem, 100.1, Options::default()).expect("a plan");
        assert!((cheapest.plan.usd_per_hour - 3.0).abs() < 1e-9);
        // Two of `small` together serve everything, but there is one.
        let mut more = problem.clone();
        more.configurations.push(of("pair", [2, 0], [9.0, 9.0]));
        assert_eq!(smallest(&more, 0, &[0, 1]), Some(0));
        more.inventory.offers[0].n_available = 2;
        assert_eq!(smallest(&more, 0, &[0, 1]), Some(2));
    }
}
