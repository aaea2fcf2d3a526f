//! Mélange (arXiv:2404.14527): the cheapest GPUs that carry a histogram of request sizes within a latency target.
//!
//! A replica is one GPU (or a fixed group that is priced as one). Cells of the histogram (prompt by answer length) have a rate; a GPU type
//! has a greatest rate per cell at which it keeps the target, 0 where it cannot. Every cell's rate is cut into slices, and slices are
//! packed by load, the share of a GPU's rate that they take:
//!
//! min Σ_g cost_g·n_g  s.t.  Σ_g k_bg = slices;  Σ_b k_bg·(rate_b/slices)/tput_gb <= n_g;  n_g <= available;  k, n integer
//!
//! Offers of one type at several prices carry the same. So a slice is of the type, n_g counts the replicas of all its offers, and each carries as much.
//! Slices of one cell are alike, so that k_bg counts them where the public code has a binary per slice: same optimum, fewer variables.
//! Units: requests per second, dollars per hour.

mod budget;

pub use budget::{limit_under_budget, limit_within, second_under_budget, second_within, under_budget, within};

use std::collections::BTreeMap;

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::inventory::Inventory;
use super::kinds;
use super::{RentalError, whole};
use crate::milp::{self, Budget, Solved, Unsolved};
use crate::proof::{Aim, Bound, Decision, RunnerUp};

/// What must be carried.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// GPU types, a row for each price; a price is that of one replica.
    pub inventory: Inventory,
    /// `requests_per_s_max[g][b]`: rate of cell b at which one replica of type g keeps the target; 0 where it cannot.
    pub requests_per_s_max: Vec<Vec<f64>>,
    /// Requests per second of each cell.
    pub requests_per_s: Vec<f64>,
    /// Slices into which each cell's rate is cut, at least 1.
    pub n_slices: u32,
}

/// The cheapest GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rented {
    /// Replicas of each type.
    pub replicas: Vec<u32>,
    /// Dollars per hour.
    pub usd_per_hour: f64,
    /// `shares[g][b]`: part of cell b's rate on offer g.
    pub shares: Vec<Vec<f64>>,
    /// Replicas that what each offer carries fills.
    pub load: Vec<f64>,
}

/// Rates of the cells of a histogram: fractions by row, times the overall rate.
pub fn cells(fractions: &[Vec<f64>], requests_per_s: f64) -> Vec<f64> {
    fractions.iter().flatten().map(|fraction| fraction * requests_per_s).collect()
}

struct Columns {
    variables: ProblemVariables,
    /// By offer.
    replicas: Vec<Variable>,
    /// Offers by type.
    types: Vec<Vec<usize>>,
    /// By type and cell.
    slices: Vec<Vec<Option<Variable>>>,
}

/// Offers of one type that carry the same.
fn types(load: &Load) -> Vec<Vec<usize>> {
    let (offers, rates) = (&load.inventory.offers, &load.requests_per_s_max);
    let mut types: Vec<Vec<usize>> = Vec::new();
    for g in 0..offers.len() {
        let own = types.iter_mut().find(|own| offers[own[0]].kind == offers[g].kind && rates[own[0]] == rates[g]);
        match own {
            Some(own) => own.push(g),
            None => types.push(vec![g]),
        }
    }
    types
}

/// The cheapest GPUs, with what holds the price up and the runner-up.
///
/// # Errors
/// On figures without meaning, on a cell that no type carries, when the available GPUs do not suffice, or when the budget ended.
pub fn plan(load: &Load, budget: Budget) -> Result<Decision<Rented>, RentalError> {
    let rented = solve(load, None, budget)?;
    let second = solve(load, Some(&rented.plan.replicas), budget).ok().map(|other| other.plan);
    let rented = rented.beside(second.map(|plan| RunnerUp { objective: plan.usd_per_hour, plan }));
    let limit = limit(load, &rented.plan, budget);
    Ok(rented.limited(limit))
}

fn check(load: &Load) -> Result<(), RentalError> {
    let input = |message: String| Err(RentalError::Input(message));
    load.inventory.check_prices()?;
    if load.n_slices == 0 {
        return input("a cell is cut into 1 slice or more, found 0".to_owned());
    }
    if load.requests_per_s_max.len() != load.inventory.offers.len() {
        let (rows, offers) = (load.requests_per_s_max.len(), load.inventory.offers.len());
        return input(format!("rates are given for {rows} GPU types, {offers} are offered"));
    }
    if let Some(rate) = load.requests_per_s.iter().find(|rate| !(rate.is_finite() && **rate >= 0.0)) {
        return input(format!("a cell's rate must not be below 0 requests/s, found {rate}"));
    }
    if load.requests_per_s.iter().all(|&rate| rate == 0.0) {
        return input("the demand is empty: every cell has 0 requests/s".to_owned());
    }
    for (offer, row) in load.inventory.offers.iter().zip(&load.requests_per_s_max) {
        let name = &offer.name;
        if row.len() != load.requests_per_s.len() {
            let (found, cells) = (row.len(), load.requests_per_s.len());
            return input(format!("`{name}` has rates for {found} cells, the histogram has {cells}"));
        }
        if let Some(rate) = row.iter().find(|rate| !(rate.is_finite() && **rate >= 0.0)) {
            return input(format!("a rate of `{name}` must not be below 0 requests/s, found {rate}"));
        }
    }
    let too_much = |g: usize, b: usize| slice(load, g, b).is_some_and(|part| !part.is_finite());
    let cells = 0..load.requests_per_s.len();
    if let Some(g) = (0..load.inventory.offers.len()).find(|&g| cells.clone().any(|b| too_much(g, b))) {
        return input(format!(
            "a rate of `{}` is too small to carry a slice on any number of them",
            load.inventory.offers[g].name
        ));
    }
    let carried = |b: usize| load.requests_per_s_max.iter().any(|row| row[b] > 0.0);
    match (0..load.requests_per_s.len()).find(|&b| load.requests_per_s[b] > 0.0 && !carried(b)) {
        Some(b) => Err(RentalError::Infeasible(format!("no GPU type keeps the latency target in cell {b}"))),
        None => Ok(()),
    }
}

/// Load of one slice of cell b on type g; `None` where the type cannot carry it or nothing is to carry.
fn slice(load: &Load, g: usize, b: usize) -> Option<f64> {
    let (rate, most) = (load.requests_per_s[b], load.requests_per_s_max[g][b]);
    (rate > 0.0 && most > 0.0).then(|| rate / f64::from(load.n_slices) / most)
}

fn columns(load: &Load) -> Columns {
    let mut variables = ProblemVariables::new();
    let (types, mut replicas, mut slices) = (types(load), BTreeMap::new(), Vec::new());
    for own in &types {
        let sum = (0..load.requests_per_s.len()).filter_map(|b| slice(load, own[0], b)).sum::<f64>();
        for &g in own {
            // Nobody rents more replicas of a type than all slices would fill.
            let available = f64::from(load.inventory.offers[g].n_available);
            let upper = available.min((sum * f64::from(load.n_slices)).ceil());
            replicas.insert(g, variables.add(variable().integer().min(0.0).max(upper)));
        }
        let is_there = own.iter().any(|&g| load.inventory.offers[g].n_available > 0);
        let row = (0..load.requests_per_s.len()).map(|b| {
            let fits = is_there && slice(load, own[0], b).is_some();
            fits.then(|| variables.add(variable().integer().min(0.0).max(f64::from(load.n_slices))))
        });
        slices.push(row.collect());
    }
    Columns { variables, replicas: replicas.into_values().collect(), types, slices }
}

impl Columns {
    /// Replicas of a type.
    fn n_replicas(&self, own: &[usize]) -> Expression {
        own.iter().map(|&g| Expression::from(self.replicas[g])).sum()
    }
}

fn solve(load: &Load, other_than: Option<&[u32]>, budget: Budget) -> Result<Decision<Rented>, RentalError> {
    check(load)?;
    let mut columns = columns(load);
    let mut constraints: Vec<Constraint> = Vec::new();
    for (own, row) in columns.types.iter().zip(&columns.slices) {
        let cells = row.iter().enumerate().filter_map(|(b, cell)| cell.map(|cell| (b, cell)));
        let sum: Expression = cells.map(|(b, cell)| slice(load, own[0], b).expect("a cell is carried") * cell).sum();
        constraints.push(constraint!(sum <= columns.n_replicas(own)));
    }
    for b in (0..load.requests_per_s.len()).filter(|&b| load.requests_per_s[b] > 0.0) {
        let carried: Expression = columns.slices.iter().filter_map(|row| row[b]).map(Expression::from).sum();
        constraints.push(constraint!(carried == f64::from(load.n_slices)));
    }
    if let Some(other_than) = other_than {
        let mut fewer = Expression::from(0.0);
        for own in columns.types.iter().filter(|own| kinds::n_replicas(own, other_than) > 0) {
            let is_fewer = columns.variables.add(variable().binary());
            fewer += is_fewer;
            let n = f64::from(kinds::n_replicas(own, other_than));
            let available = own.iter().map(|&g| f64::from(load.inventory.offers[g].n_available)).sum::<f64>();
            let upper = available.min(1e6).max(n);
            constraints.push(constraint!(columns.n_replicas(own) + (upper - n + 1.0) * is_fewer <= upper));
        }
        constraints.push(constraint!(fewer >= 1.0));
    }
    let objective = load.inventory.offers.iter().zip(&columns.replicas).map(|(offer, &n)| offer.usd_per_hour * n).sum();
    let mut wanted = columns.replicas.clone();
    wanted.extend(columns.slices.iter().flatten().flatten());
    let program = milp::Program { variables: columns.variables, objective, constraints, start: Vec::new() };
    match milp::minimise(program, &wanted, budget) {
        Ok(solved) => Ok(rented(load, (&columns.types, &columns.slices), &solved)),
        Err(Unsolved::Infeasible) => {
            Err(RentalError::Infeasible("the available GPUs do not carry every cell within the target".to_owned()))
        }
        Err(Unsolved::Stopped(why)) => Err(RentalError::Budget(why)),
    }
}

fn rented(load: &Load, (types, cells): (&[Vec<usize>], &[Vec<Option<Variable>>]), solved: &Solved) -> Decision<Rented> {
    let n = load.inventory.offers.len();
    let replicas: Vec<u32> = solved.values[..n].iter().map(|&value| whole(value)).collect();
    let mut values = solved.values[n..].iter();
    let mut next = || whole(*values.next().expect("one value per cell"));
    let mut shares = vec![vec![0.0; load.requests_per_s.len()]; n];
    for (own, row) in types.iter().zip(cells) {
        let slices = row.iter().map(|cell| f64::from(cell.map_or(0, |_| next())));
        let of_type: Vec<f64> = slices.map(|k| k / f64::from(load.n_slices)).collect();
        kinds::dealt(own, &replicas, &of_type, &mut shares);
    }
    let of = |g: usize| -> f64 {
        let cells = shares[g].iter().enumerate().filter(|(_, share)| **share > 0.0);
        let slices = cells.map(|(b, share)| (b, share * f64::from(load.n_slices)));
        slices.map(|(b, k)| k * slice(load, g, b).expect("a cell is carried")).sum()
    };
    let filled = (0..n).map(of).collect();
    let usd = replicas.iter().zip(&load.inventory.offers).map(|(&n, offer)| f64::from(n) * offer.usd_per_hour).sum();
    let bound = solved.bound.map(|bound| Bound::plain(bound.min(usd)));
    let rented = Rented { replicas, usd_per_hour: usd, shares, load: filled };
    Decision::new(rented, Aim::UsdPerHour, usd).bounded(bound, solved.status)
}

fn words(load: &Load, replicas: &[u32]) -> String {
    let used = replicas.iter().zip(&load.inventory.offers).filter(|(n, _)| **n > 0);
    used.map(|(n, offer)| format!("{n} x {}", offer.name)).collect::<Vec<_>>().join(" + ")
}

/// What keeps a price up: too few GPUs of a type, or the load that whole GPUs must carry.
fn limit(load: &Load, rented: &Rented, budget: Budget) -> String {
    let names = load.inventory.offers.iter().map(|offer| offer.name.as_str());
    let carried: Vec<Carried<'_>> =
        names.zip(rented.replicas.iter().copied().zip(rented.load.iter().copied())).collect();
    short(load, &rented.replicas, rented.usd_per_hour, budget).unwrap_or_else(|| carrying(&carried))
}

/// The type of which too few are available, at the price that more of them would allow; `rented` are replicas of every type.
fn short(load: &Load, rented: &[u32], usd_per_hour: f64, budget: Budget) -> Option<String> {
    let mut best: Option<(f64, String)> = None;
    for (g, offer) in load.inventory.offers.iter().enumerate().filter(|(_, offer)| offer.n_available < u32::MAX) {
        let mut lifted = load.clone();
        lifted.inventory.offers[g].n_available = u32::MAX;
        let usd = solve(&lifted, None, budget).map_or(f64::INFINITY, |other| other.plan.usd_per_hour);
        let helps = usd < usd_per_hour * (1.0 - 1e-9);
        if helps && best.as_ref().is_none_or(|(least, _)| usd < *least) {
            let (name, n, taken) = (&offer.name, offer.n_available, rented[g]);
            let words = format!("availability of `{name}`: {taken} of {n} are rented; with more of them {usd:.4} $/h");
            best = Some((usd, words));
        }
    }
    best.map(|(_, words)| words)
}

/// A type, its replicas, and how many of them what they serve would fill.
type Carried<'a> = (&'a str, (u32, f64));

/// What whole GPUs carry, in words.
fn carrying(carried: &[Carried<'_>]) -> String {
    let used = carried.iter().filter(|(_, (n, _))| *n > 0);
    let words = used.map(|(name, (n, load))| format!("{n} of `{name}` carry the load of {load:.3}"));
    format!("load: {}", words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::inventory::Offer;
    use super::*;

    /// The toy example of the public repository: two by two cells, 16 requests/s.
    fn toy(n_slices: u32) -> Load {
        let offer = |name: &str, usd_per_hour| Offer::priced(name, usd_per_hour, u32::MAX);
        Load {
            inventory: Inventory::of(vec![offer("A10G", 1.01), offer("A100", 3.67)]),
            requests_per_s_max: vec![vec![5.0, 1.0, 10.0, 5.0], vec![20.0, 2.0, 50.0, 20.0]],
            requests_per_s: cells(&[vec![0.25, 0.125], vec![0.375, 0.25]], 16.0),
            n_slices,
        }
    }

    #[test]
    fn the_toy_of_the_repository() {
        for n_slices in [1, 2, 4] {
            let rented = plan(&toy(n_slices), Budget::default()).expect("a plan");
            assert_eq!(rented.plan.replicas, [5, 0]);
            assert!((rented.plan.usd_per_hour - 5.05).abs() < 1e-9);
            // 4/5 + 2/1 + 6/10 + 4/5 = 4.2.
            assert!((rented.plan.load[0] - 4.2).abs() < 1e-9);
            assert_eq!(rented.limit, "load: 5 of `A10G` carry the load of 4.200");
            let second = rented.runner_up().expect("another");
            assert!(second.objective > 5.05 && second.plan.replicas[0] < 5, "{second:?}");
        }
    }

    #[test]
    fn a_type_that_is_short_is_named() {
        let mut load = toy(4);
        load.inventory.offers[0].n_available = 3;
        let rented = plan(&load, Budget::default()).expect("a plan");
        // One A100 takes cells 0, 2 and 3 (0.52) and a quarter of cell 1 (0.25); the rest of cell 1 fills 1.5 A10G.
        assert!((rented.plan.usd_per_hour - 5.69).abs() < 1e-9);
        let words = "availability of `A10G`: 2 of 3 are rented; with more of them 5.0500 $/h";
        assert_eq!(rented.limit, words);
    }

    type Spoil = fn(&mut Load);

    #[test]
    fn bad_loads_have_a_named_reason() {
        let cases: [(&str, Spoil); 6] = [
            ("price of `A10G` must be above 0 $/h, found 0", |l| l.inventory.offers[0].usd_per_hour = 0.0),
            ("the demand is empty: every cell has 0 requests/s", |l| l.requests_per_s.fill(0.0)),
            ("a cell is cut into 1 slice or more, found 0", |l| l.n_slices = 0),
            ("`A100` has rates for 3 cells, the histogram has 4", |l| l.requests_per_s_max[1].truncate(3)),
            ("no GPU type keeps the latency target in cell 1", |l| {
                l.requests_per_s_max.iter_mut().for_each(|row| row[1] = 0.0);
            }),
            ("the available GPUs do not carry every cell within the target", |l| {
                l.inventory.offers.iter_mut().for_each(|offer| offer.n_available = 1);
            }),
        ];
        for (message, spoil) in cases {
            let mut load = toy(2);
            spoil(&mut load);
            assert_eq!(plan(&load, Budget::default()).expect_err(message).to_string(), message);
        }
    }

    /// Cheapest over every type of every slice, each slice on its own.
    fn brute_force(load: &Load) -> f64 {
        let n = load.inventory.offers.len();
        let n_slices = usize::try_from(load.n_slices).expect("few");
        let slices: Vec<usize> = (0..load.requests_per_s.len() * n_slices).map(|s| s / n_slices).collect();
        let mut best = f64::INFINITY;
        for mut code in 0..n.pow(u32::try_from(slices.len()).expect("few")) {
            let mut filled = vec![0.0; n];
            for &b in &slices {
                filled[code % n] +=
                    load.requests_per_s[b] / f64::from(load.n_slices) / load.requests_per_s_max[code % n][b];
                code /= n;
            }
            let usd = filled
                .iter()
                .zip(&load.inventory.offers)
                .map(|(sum, o)| (sum - 1e-9_f64).ceil() * o.usd_per_hour)
                .sum();
            best = best.min(usd);
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn the_program_equals_brute_force_and_finer_slices_cost_no_more(
            prices in prop::collection::vec(1_u32..=8, 2),
            most in prop::collection::vec(0_u32..=9, 6),
            rates in prop::collection::vec(1_u32..=12, 3),
        ) {
            let offers = prices.iter().map(|&p| Offer::priced("g", f64::from(p), 99));
            let most: Vec<f64> = most.into_iter().map(f64::from).collect();
            let mut load = Load {
                inventory: Inventory::of(offers.collect()),
                requests_per_s_max: most.chunks(3).map(<[f64]>::to_vec).collect(),
                requests_per_s: rates.into_iter().map(f64::from).collect(),
                n_slices: 1,
            };
            let mut last = f64::INFINITY;
            for n_slices in [1, 2, 4] {
                load.n_slices = n_slices;
                match plan(&load, Budget::default()) {
                    Ok(rented) => {
                        prop_assert!(rented.plan.usd_per_hour <= last + 1e-9);
                        last = rented.plan.usd_per_hour;
                        if n_slices < 4 {
                            prop_assert!((rented.plan.usd_per_hour - brute_force(&load)).abs() < 1e-6, "{rented:?}");
                        }
                    }
                    Err(why) => prop_assert!(brute_force(&load).is_infinite() || matches!(why, RentalError::Infeasible(_))),
                }
            }
        }
    }
}
