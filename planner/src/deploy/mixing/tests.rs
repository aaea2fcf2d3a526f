//! Plans at rates of their own mix: closed forms, every choice of replicas tried, and searches in other orders.

use super::super::cost_efficiency::{self, Options};
use super::super::inventory::{Inventory, Offer};
use super::super::{Configuration, Demand};
use super::*;

const SOONEST: &[Assignment] = &[Assignment::Soonest];

fn problem() -> Problem {
    let offer = |name: &str| Offer::priced(name, 1.0, 4);
    let configuration = |n_gpus: [u32; 2], rates: [f64; 2]| Configuration {
        name: "c".to_owned(),
        model: 0,
        n_gpus: n_gpus.to_vec(),
        requests_per_s: rates.to_vec(),
    };
    let demand = |requests| Demand { name: String::new(), model: 0, requests };
    Problem {
        inventory: Inventory::of(vec![offer("a"), offer("b")]),
        configurations: vec![configuration([1, 0], [1.0, 2.0]), configuration([0, 1], [1.5, 1.0])],
        demands: vec![demand(100.0), demand(100.0)],
        budget_usd_per_hour: 4.0,
    }
}

fn decide(serve: &dyn Fn(usize, &[f64]) -> f64) -> Settled {
    let solve = |problem: &Problem| cost_efficiency::solve(problem, Options::default());
    let second = |problem: &Problem, plan: &Plan| cost_efficiency::second(problem, plan, Options::default());
    let decide = Decide {
        aim: Aim::Seconds,
        worth: &|(_, plan)| Ok(plan.makespan_s),
        solve: &solve,
        hopeful: None,
        others: &Vec::new,
        is_whole: false,
        assignments: SOONEST,
        second: Some(&second),
    };
    settle(&problem(), &[1.0; 2], &decide, serve).expect("a plan")
}

fn sum_s(c: usize, work: &[f64]) -> f64 {
    work.iter().zip(&problem().configurations[c].requests_per_s).map(|(n, rate)| n / rate).sum()
}

#[test]
fn service_that_adds_up_changes_nothing() {
    let settled = decide(&sum_s);
    let plain = cost_efficiency::solve(&problem(), Options::default()).expect("a plan");
    assert_eq!(settled.decision.plan.replicas, plain.plan.replicas);
    assert!((settled.decision.plan.makespan_s / plain.plan.makespan_s - 1.0).abs() < 1e-6);
    assert!(settled.mixing.iter().all(|factor| (factor - 1.0).abs() < 1e-6), "{:?}", settled.mixing);
    // The second choice was served beside it.
    assert_eq!(settled.n_rounds, 2);
    let second = settled.decision.runner_up().expect("another");
    assert!(second.objective >= plain.plan.makespan_s && second.plan.replicas != plain.plan.replicas);
}

#[test]
fn a_plan_agrees_with_service_that_does_not_add_up() {
    // A configuration is faster the more evenly both types are mixed, and loses two seconds to fill and drain.
    let serve = |c: usize, work: &[f64]| {
        let even = work[0].min(work[1]) / work[0].max(work[1]).max(1e-9);
        sum_s(c, work) * (1.0 - 0.2 * even) + 2.0
    };
    let settled = decide(&serve);
    let plan = &settled.decision.plan;
    let mut slowest = 0.0_f64;
    for (c, &y) in plan.replicas.iter().enumerate().filter(|(_, y)| **y > 0) {
        let work: Vec<f64> = plan.shares[c].iter().map(|share| share * 100.0 / f64::from(y)).collect();
        let rates = &settled.problem.configurations[c].requests_per_s;
        let planned: f64 = work.iter().zip(rates).map(|(n, rate)| n / rate).sum();
        let served = serve(c, &work);
        assert!((planned / served - 1.0).abs() < 1e-9, "rates are those of its own mix: {planned}, {served}");
        slowest = slowest.max(served);
    }
    assert!((plan.makespan_s - slowest).abs() < 1e-9, "{settled:?}");
    // Shares were decided until nothing was to be gained: at these rates no split is much better.
    assert!(settled.decision.gap().is_some_and(|gap| gap < 0.05), "{settled:?}");
}

/// What was served before a choice changes nothing of its time, and the answer is the best of all that were served.
#[test]
fn a_choice_has_one_time_in_any_order() {
    let serve = |c: usize, work: &[f64]| {
        let even = work[0].min(work[1]) / work[0].max(work[1]).max(1e-9);
        sum_s(c, work) * (1.0 - 0.3 * even) + 2.0
    };
    let times = |others: &[[u32; 2]]| {
        let seen = std::cell::RefCell::new(std::collections::BTreeMap::new());
        let decide = Decide {
            aim: Aim::Seconds,
            worth: &|(_, plan)| {
                seen.borrow_mut().insert(plan.replicas.clone(), plan.makespan_s);
                Ok(plan.makespan_s)
            },
            solve: &|problem| cost_efficiency::solve(problem, Options::default()),
            hopeful: None,
            others: &|| others.iter().map(|replicas| replicas.to_vec()).collect(),
            is_whole: false,
            assignments: SOONEST,
            second: None,
        };
        let settled = settle(&problem(), &[1.0; 2], &decide, &serve).expect("a plan");
        let least_s = seen.borrow().values().copied().fold(f64::INFINITY, f64::min);
        assert_eq!(settled.decision.objective(), Some(least_s));
        assert!(settled.decision.bound().is_some_and(|bound_s| bound_s <= least_s));
        seen.into_inner()
    };
    let forth = times(&[[1, 1], [2, 1], [1, 2], [3, 1], [1, 3], [0, 4], [4, 0]]);
    let back = times(&[[4, 0], [0, 4], [1, 3], [3, 1], [1, 2], [2, 1], [1, 1]]);
    assert!(forth.len() >= 7, "{forth:?}");
    assert_eq!(forth, back);
}

/// Replicas that are faster with even mixes: the program splits the types by what each configuration does best, and the same mix for all may end sooner.
/// The answer is the best of both over all replicas, by trying every one.
#[test]
fn the_same_shares_for_every_replica_are_served_beside_the_programs() {
    const BOTH: &[Assignment] = &[Assignment::Soonest, Assignment::Alike];
    let mut n_alike = 0;
    for slower in [0.0, 0.3, 0.6, 0.9] {
        let serve = |c: usize, work: &[f64]| {
            let even = work[0].min(work[1]) / work[0].max(work[1]).max(1e-9);
            sum_s(c, work) * (1.0 - slower * even)
        };
        let every: Vec<Vec<u32>> = (0..=4).flat_map(|a| (0..=4 - a).map(move |b| vec![a, b])).collect();
        let settled = |assignments: &[Assignment]| {
            let decide = Decide {
                aim: Aim::Seconds,
                worth: &|(_, plan)| Ok(plan.makespan_s),
                solve: &|problem| cost_efficiency::solve(problem, Options::default()),
                hopeful: None,
                others: &|| every.clone(),
                is_whole: true,
                assignments,
                second: None,
            };
            settle(&problem(), &[1.0; 2], &decide, &serve).expect("a plan").decision.plan
        };
        let ends = |replicas: &[u32], way| {
            let of_way = shares((&problem(), &Kinds::of(&problem())), &[1.0; 2], (replicas, way), &serve);
            of_way.map_or(f64::INFINITY, |(plan, _)| plan.makespan_s)
        };
        let least = |way| every.iter().map(|replicas| ends(replicas, way)).fold(f64::INFINITY, f64::min);
        let [soonest, alike] = [Assignment::Soonest, Assignment::Alike].map(least);
        // Round robin by hand: every replica gets the same of both types, and the slowest one ends last.
        let n = |replicas: &[u32]| f64::from(replicas[0] + replicas[1]);
        let by_hand = |replicas: &Vec<u32>| {
            let work = [100.0 / n(replicas); 2];
            (0..2).filter(|&c| replicas[c] > 0).map(|c| serve(c, &work)).fold(0.0, f64::max)
        };
        let by_hand = every.iter().filter(|of| n(of) > 0.0).map(by_hand).fold(f64::INFINITY, f64::min);
        assert!((alike / by_hand - 1.0).abs() < 1e-9, "{slower}: {alike} s, by hand {by_hand} s");
        let found = settled(BOTH).makespan_s;
        assert!((found / soonest.min(alike) - 1.0).abs() < 1e-9, "{slower}: {found} s of {soonest} and {alike} s");
        assert!(found <= settled(SOONEST).makespan_s * (1.0 + 1e-9), "{slower}");
        n_alike += u32::from(alike < soonest * (1.0 - 1e-6));
    }
    // Where mixes change nothing the program's split wins.
    assert!(n_alike < 4, "{n_alike} of 4");
}

/// What the program holds to be in time may be late when it is played: then another plan around it is the answer, or none.
#[test]
fn a_plan_that_is_late_when_it_is_played_is_no_answer() {
    let settled = |deadline_s: f64, late: &[u32]| {
        let within =
            |problem: &Problem, slack: f64| cost_efficiency::cheapest(problem, deadline_s * slack, Options::default());
        let hopeful = |problem: &Problem, slack: f64| Some(within(problem, slack).ok()?.plan.replicas);
        let is_late = |plan: &Plan| plan.makespan_s > deadline_s || plan.replicas == late;
        let decide = Decide {
            aim: Aim::UsdPerHour,
            worth: &|(_, plan)| if is_late(plan) { Err(plan.makespan_s) } else { Ok(plan.usd_per_hour) },
            solve: &|problem| within(problem, 1.0),
            hopeful: Some(&hopeful),
            others: &Vec::new,
            is_whole: true,
            assignments: SOONEST,
            second: None,
        };
        settle(&problem(), &[1.0; 2], &decide, &sum_s).map(|settled| settled.decision.plan)
    };
    let plain = settled(75.0, &[]).expect("a plan");
    let other = settled(75.0, &plain.replicas).expect("a plan");
    assert!(other.replicas != plain.replicas && other.usd_per_hour >= plain.usd_per_hour, "{plain:?} {other:?}");
    assert!(other.makespan_s <= 75.0);
    // All that there is ends after 1/(4/150 + 4/166.7) s at best.
    assert!(settled(10.0, &[]).is_err());
}

/// One machine of either type serve all in time for two dollars an hour together. Two of one type cost as much, four twice as much.
#[test]
fn one_type_alone_is_served_only_where_it_costs_less_than_the_best() {
    let settled = |others: &[Vec<u32>], late: &[u32]| {
        let within =
            |problem: &Problem, slack: f64| cost_efficiency::cheapest(problem, 70.0 * slack, Options::default());
        let decide = Decide {
            aim: Aim::UsdPerHour,
            worth: &|(_, plan)| if plan.replicas == late { Err(plan.makespan_s) } else { Ok(plan.usd_per_hour) },
            solve: &|problem| within(problem, 1.0),
            hopeful: None,
            others: &|| others.to_vec(),
            is_whole: false,
            assignments: SOONEST,
            second: None,
        };
        settle(&problem(), &[1.0; 2], &decide, &sum_s)
    };
    let plain = settled(&[], &[]).expect("a plan");
    assert_eq!((plain.decision.plan.replicas.as_slice(), plain.n_rounds), (&[1, 1][..], 1));
    // Dearer: nobody serves it. As dear: it is served, and ends later. Cheaper: it wins. Where nothing is in time yet, any may win.
    for (alone, late, expected, n_rounds) in
        [([0, 4], &[][..], [1, 1], 1), ([2, 0], &[], [1, 1], 2), ([0, 1], &[], [0, 1], 2), ([0, 4], &[1, 1], [0, 4], 2)]
    {
        let found = settled(&[alone.to_vec()], late).expect("a plan");
        assert_eq!((found.decision.plan.replicas.as_slice(), found.n_rounds), (&expected[..], n_rounds), "{alone:?}");
    }
}
