//! Kinds of replicas: configurations whose replicas serve the same, on GPUs of one type that is offered more than once.
//!
//! No request tells replicas of a kind apart. So each of them gets as much, whatever its GPUs cost, and offers differ in price and number alone: the
//! cheapest GPUs are rented first. A configuration that no other equals is a kind by itself.

use std::collections::BTreeMap;

use super::Problem;

/// Configurations by kind, in the order of their first.
pub(super) struct Kinds(Vec<Vec<usize>>);

impl Kinds {
    pub(super) fn of(problem: &Problem) -> Self {
        let mut kinds: Vec<Vec<usize>> = Vec::new();
        for c in 0..problem.configurations.len() {
            match kinds.iter_mut().find(|kind| are_alike(problem, kind[0], c)) {
                Some(kind) => kind.push(c),
                None => kinds.push(vec![c]),
            }
        }
        Self(kinds)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[usize]> {
        self.0.iter().map(Vec::as_slice)
    }

    /// As many replicas of every kind, on the cheapest offers that have room; of equal prices on the first.
    pub(super) fn on_cheapest(&self, problem: &Problem, mut replicas: Vec<u32>) -> Vec<u32> {
        for kind in self.iter().filter(|kind| kind.len() > 1) {
            let mut members = kind.to_vec();
            members.sort_unstable_by(|&a, &b| problem.price(a).total_cmp(&problem.price(b)).then(a.cmp(&b)));
            for (at, &cheap) in members.iter().enumerate() {
                for &dear in &members[at + 1..] {
                    replicas = moved(problem, replicas, dear, cheap);
                }
            }
        }
        replicas
    }
}

/// Whether two configurations serve the same requests equally fast on as many GPUs of the same types.
fn are_alike(problem: &Problem, a: usize, b: usize) -> bool {
    let of = [a, b].map(|c| &problem.configurations[c]);
    of[0].model == of[1].model
        && of[0].requests_per_s == of[1].requests_per_s
        && by_type(problem, a) == by_type(problem, b)
}

/// GPUs of a replica by the name of their type.
fn by_type(problem: &Problem, c: usize) -> BTreeMap<&str, u32> {
    let mut all = BTreeMap::new();
    let taken = problem.configurations[c].n_gpus.iter().zip(&problem.inventory.offers).filter(|(n, _)| **n > 0);
    taken.for_each(|(n, offer)| *all.entry(offer.kind.as_str()).or_insert(0) += n);
    all
}

/// Replicas of one configuration in the place of another's, as many as fit.
fn moved(problem: &Problem, replicas: Vec<u32>, from: usize, to: usize) -> Vec<u32> {
    let with = |n: u32| {
        let mut other = replicas.clone();
        other[from] -= n;
        other[to] += n;
        other
    };
    let fits = |n: u32| (0..problem.inventory.offers.len()).all(|offer| problem.fits(offer, &with(n)));
    let most = replicas[from].min(problem.n_replicas_available(to).saturating_sub(replicas[to]));
    // What fits with more fits with less, so that halving finds the most.
    let (mut n, mut over) = (0, most + 1);
    while over - n > 1 {
        let middle = n.midpoint(over);
        if fits(middle) {
            n = middle;
        } else {
            over = middle;
        }
    }
    with(n)
}

/// Replicas of a kind.
pub(super) fn n_replicas(kind: &[usize], replicas: &[u32]) -> u32 {
    kind.iter().map(|&c| replicas[c]).fold(0, u32::saturating_add)
}

/// What all replicas of a kind serve of every demand, dealt to its configurations by their replicas.
pub(super) fn dealt(kind: &[usize], replicas: &[u32], served: &[f64], shares: &mut [Vec<f64>]) {
    let n = n_replicas(kind, replicas);
    for &c in kind.iter().filter(|&&c| replicas[c] > 0) {
        shares[c] = served.iter().map(|share| share * (f64::from(replicas[c]) / f64::from(n))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost_efficiency::{self, Assignment, Options};
    use super::super::inventory::{Inventory, Offer};
    use super::super::mixing::{self, Decide};
    use super::super::{Configuration, Demand, Plan, melange};
    use super::*;
    use crate::proof::Aim;

    /// One GPU type at some prices and counts, and a replica on each that serves two request types at 2 and 5 requests/s.
    fn problem(offers: &[(f64, u32)]) -> Problem {
        let offer = |(at, &(usd, n)): (usize, &(f64, u32))| Offer {
            kind: "l40s".to_owned(),
            ..Offer::priced(format!("offer {at}"), usd, n)
        };
        let configuration = |at: usize| Configuration {
            name: format!("replica {at}"),
            model: 0,
            n_gpus: (0..offers.len()).map(|of| u32::from(of == at)).collect(),
            requests_per_s: vec![2.0, 5.0],
        };
        let demand = |requests| Demand { name: String::new(), model: 0, requests };
        Problem {
            inventory: Inventory::of(offers.iter().enumerate().map(offer).collect()),
            configurations: (0..offers.len()).map(configuration).collect(),
            demands: vec![demand(100.0), demand(60.0)],
            budget_usd_per_hour: 10.0,
        }
    }

    #[test]
    fn the_cheapest_offers_are_filled_first() {
        let problem = problem(&[(0.99, 3), (0.87, 2), (0.87, 1)]);
        let kinds = Kinds::of(&problem);
        for (wanted, found) in [([3, 0, 0], [0, 2, 1]), ([3, 2, 1], [3, 2, 1]), ([0, 1, 1], [0, 2, 0])] {
            assert_eq!(kinds.on_cheapest(&problem, wanted.to_vec()), found, "{wanted:?}");
        }
        // Another type of GPU is another kind, whatever it serves.
        let mut other = problem.clone();
        other.inventory.offers[1].kind = "a100".to_owned();
        assert_eq!(Kinds::of(&other).on_cheapest(&other, vec![3, 0, 0]), [2, 0, 1]);
        // As long as there is room: of three offers of three, two and one GPU the second holds the cheapest pair.
        let mut machines = problem;
        machines.configurations.iter_mut().for_each(|of| of.n_gpus.iter_mut().for_each(|n| *n *= 2));
        assert_eq!(Kinds::of(&machines).on_cheapest(&machines, vec![1, 0, 0]), [0, 1, 0]);
    }

    /// Three GPUs of a type cost and serve the same, whether they are offered at once or in parts.
    #[test]
    fn a_type_in_two_offers_is_as_one() {
        type Asked = fn(&Problem) -> Plan;
        // All 62 s of one replica's work in 21 s take three of them.
        let policies: [Asked; 6] = [
            |problem| cost_efficiency::solve(problem, Options::default()).expect("a plan").plan,
            |problem| cost_efficiency::cheapest(problem, 21.0, Options::default()).expect("a plan").plan,
            |problem| cost_efficiency::one_type(problem, Options::default()).expect("a plan").plan,
            |problem| cost_efficiency::round_robin(problem, Options::default()).expect("a plan").plan,
            |problem| melange::under_budget(problem, Options::default()).expect("a plan").plan,
            |problem| melange::within(problem, 24.0, Options::default()).expect("a plan").plan,
        ];
        for (at, asked) in policies.into_iter().enumerate() {
            let (whole, parts) = (asked(&problem(&[(1.0, 3)])), asked(&problem(&[(1.0, 2), (1.0, 1)])));
            assert!((whole.makespan_s - parts.makespan_s).abs() < 1e-6, "{at}: {whole:?} {parts:?}");
            assert!((whole.usd_per_hour - parts.usd_per_hour).abs() < 1e-9, "{at}: {whole:?} {parts:?}");
            // Each replica serves as much of each type.
            assert_eq!(parts.replicas, [2, 1], "{at}");
            let is_even = parts.shares[0].iter().zip(&parts.shares[1]).all(|(two, one)| (two - 2.0 * one).abs() < 1e-9);
            assert!(is_even, "{at}: {parts:?}");
        }
    }

    /// Replicas that are slower with uneven mixes: the parts of a type must not be told apart as plans are served either.
    #[test]
    fn served_plans_do_not_tell_offers_of_a_type_apart() {
        let settled = |problem: &Problem, deadline_s: f64| {
            let serve = |c: usize, work: &[f64]| {
                let even = work[0].min(work[1]) / work[0].max(work[1]).max(1e-9);
                let rates = &problem.configurations[c].requests_per_s;
                work.iter().zip(rates).map(|(n, rate)| n / rate).sum::<f64>() * (1.1 - 0.3 * even)
            };
            let cheapest = |problem: &Problem, slack: f64| {
                cost_efficiency::cheapest(problem, deadline_s * slack, Options::default())
            };
            let decide = Decide {
                aim: Aim::UsdPerHour,
                worth: &|(_, plan)| {
                    if plan.makespan_s <= deadline_s { Ok(plan.usd_per_hour) } else { Err(plan.makespan_s) }
                },
                solve: &|problem| cheapest(problem, 1.0),
                hopeful: Some(&|problem, slack| Some(cheapest(problem, slack).ok()?.plan.replicas)),
                others: &Vec::new,
                is_whole: true,
                assignments: &[Assignment::Soonest],
                second: None,
            };
            let start = vec![1.0; problem.configurations.len()];
            mixing::settle(problem, &start, &decide, &serve).expect("a plan").decision.plan
        };
        let whole = settled(&problem(&[(0.87, 3)]), 20.0);
        for parts in [&[(0.87, 2), (0.87, 1)][..], &[(0.87, 1), (0.87, 1), (0.87, 1)]] {
            let parts = settled(&problem(parts), 20.0);
            assert!((whole.makespan_s - parts.makespan_s).abs() < 1e-6, "{whole:?} {parts:?}");
            assert!((whole.usd_per_hour - parts.usd_per_hour).abs() < 1e-9, "{whole:?} {parts:?}");
        }
        // Dearer ones come last.
        let dearer = settled(&problem(&[(0.87, 2), (0.99, 3)]), 20.0);
        assert_eq!((dearer.replicas.as_slice(), whole.replicas.as_slice()), (&[2, 1][..], &[3][..]), "{dearer:?}");
    }
}
