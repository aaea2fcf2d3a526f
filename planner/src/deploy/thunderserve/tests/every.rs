//! Small fleets: every grouping that is played, and links that are faster.

use super::*;

/// Two machines of two GPUs and a link of so many Gb/s.
fn two_and_two(gbit_per_s: f64) -> Task {
    let machine = |gpu: Gpu| Offer::machine(gpu, 2);
    let machines = vec![machine(gpu("a", 48.0, 696.0, 150.0)), machine(gpu("b", 24.0, 1008.0, 80.0))];
    let machines = linked(machines, (gbit_per_s * 1e9 / 8.0, 1e-3));
    Task { machines, ttft_s: 1.0, tpot_s: 0.06, ..small(1024, 64, 10.0) }
}

#[test]
fn a_faster_link_is_never_worse() {
    // Twice as fast it looks at the same plans and at one more for each load; what is played is one of them with its routes. Rates are found within 1 %.
    let requests = serve::request::Requests::of(arrivals(120, 1024, 64));
    let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
    let tabu = Tabu { steps: 6, neighbours: 12, restarts: 0, ..Tabu::default() };
    for task in [two_and_two(1.0), four_and_four(2.5, 512, 64, 4.0)] {
        let mut before = 0.0;
        for times in [1.0, 2.0, 4.0, 8.0] {
            let found = plan_played(&task.with_links(times), tabu, &trial)
                .map_or(0.0, |found| found.objective().expect("a rate"));
            assert!(found >= before * 0.99, "{found} with a link of {times} times, {before} with half of it");
            before = found;
        }
        assert!(before > 0.0);
    }
}

/// The most requests per second of any grouping with any stages, each with the routes of several loads, when it is played.
fn played_at_best(task: &Task, trial: &Trial<'_>) -> (f64, usize) {
    let mut known: Vec<Groups> = Vec::new();
    for load in [1.0, 0.5, 0.25, 0.12] {
        let loaded = Task { requests_per_s: load * task.requests_per_s, ..task.clone() };
        search::every_deployment(&loaded, &mut |found| {
            let groups = Groups::of(&found);
            if !groups.pairs.is_empty() && !known.iter().any(|other| other.is_played_as(&groups)) {
                known.push(groups);
            }
        });
    }
    let rate = |groups: &Groups| played::rate(task, groups, trial).expect("a right deployment");
    (known.iter().map(rate).fold(0.0, f64::max), known.len())
}

#[test]
fn what_is_chosen_is_near_the_best_of_every_grouping() {
    let requests = serve::request::Requests::of(arrivals(120, 1024, 64));
    let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
    for gbit_per_s in [1.0, 4.0, 40.0] {
        let task = two_and_two(gbit_per_s);
        let (best, n) = played_at_best(&task, &trial);
        let found = plan_played(&task, Tabu::default(), &trial).expect("a plan");
        let rate = found.objective().expect("a rate");
        println!("{gbit_per_s} Gb/s: {rate:.3} of {best:.3} ({n}): {}", found.plan.deployment.plan.words(&task));
        // Rates are found within 1 %, and the search is a heuristic.
        assert!(rate >= 0.97 * best, "{gbit_per_s} Gb/s: {rate} of {best} among {n}");
    }
}

#[test]
fn the_two_best_are_those_of_playing_every_plan_to_its_end() {
    let requests = serve::request::Requests::of(arrivals(120, 1024, 64));
    let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
    let tabu = Tabu { steps: 6, neighbours: 12, restarts: 0, ..Tabu::default() };
    for task in [two_and_two(1.0), two_and_two(40.0), four_and_four(2.5, 512, 64, 4.0)] {
        let (mut known, mut rates): (Vec<Groups>, Vec<f64>) = (Vec::new(), Vec::new());
        let loads = loads(&task, &mut Ways::default(), tabu);
        for (link, load) in LINKS.iter().flat_map(|link| loads.iter().map(move |load| (link, load))) {
            let asked = Task { requests_per_s: *load, ..task.with_links(*link) };
            let Ok(found) = plan(&asked, tabu) else { continue };
            let groups = Groups::of(&found.plan);
            if !known.iter().any(|other| other.is_played_as(&groups)) {
                rates.push(played::rate(&task, &groups, &trial).expect("a right deployment"));
                known.push(groups);
            }
        }
        rates.sort_by(|a, b| b.total_cmp(a));
        let found = plan_played(&task, tabu, &trial).expect("a plan");
        let second = found.runner_up().map(|other| other.objective);
        assert_eq!((found.objective(), second), (Some(rates[0]), rates.get(1).copied()), "{rates:?}");
        assert_eq!(found.plan.n_played, known.len());
    }
}

/// Every set of replicas of both phases over the GPUs, each with every layout that meets the targets by means; of one machine each, or over any.
fn every_set(task: &Task, is_single: bool) -> Vec<Vec<Replica>> {
    let all: Vec<u32> = task.machines.offers.iter().map(|machine| machine.n_available).collect();
    let none: Vec<(Vec<u32>, Replica)> = Vec::new();
    let mut open = vec![(none, all)];
    let mut found = Vec::new();
    while let Some((state, left)) = open.pop() {
        if !state.is_empty() {
            found.push(state.iter().map(|(_, replica)| replica.clone()).collect());
        }
        let sizes: Vec<u32> = left.iter().map(|n| n + 1).collect();
        for mut code in 1..sizes.iter().product::<u32>() {
            let mut n_gpus = Vec::new();
            for &size in &sizes {
                n_gpus.push(code % size);
                code /= size;
            }
            let is_in_order = state.last().is_none_or(|last| last.0 <= n_gpus);
            if !is_in_order || (is_single && n_gpus.iter().filter(|n| **n > 0).count() > 1) {
                continue;
            }
            let rest: Vec<u32> = left.iter().zip(&n_gpus).map(|(left, n)| left - n).collect();
            for stages in group::layouts(task, &n_gpus) {
                let requests_per_s = group::colocated_rate(task, &stages);
                if requests_per_s > 0.0 {
                    let replica = Replica { stages, requests_per_s };
                    open.push(([state.as_slice(), &[(n_gpus.clone(), replica)]].concat(), rest.clone()));
                }
            }
        }
    }
    found
}

#[test]
fn replicas_of_both_phases_are_near_the_best_of_every_set() {
    let requests = serve::request::Requests::of(arrivals(120, 1024, 64));
    let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
    for (tpot_s, ttft_s) in [(0.06, 1.0), (0.2, 1.0), (0.04, 2.0), (0.06, 0.4)] {
        let mut task = Task { tpot_s, ttft_s, ..two_and_two(4.0) };
        task.machines.offers.iter_mut().zip([0.55, 0.4]).for_each(|(offer, usd)| offer.usd_per_hour = usd);
        let rate = |replicas: &[Replica]| played::rate(&task, &Groups::colocated(replicas), &trial).expect("right");
        let best = |is_single| every_set(&task, is_single).iter().map(|set| rate(set)).fold(0.0, f64::max);
        let [single, any] = [true, false].map(best);
        let of = |way: colocated::Way| way(&task).map_or(0.0, |replicas| rate(&replicas));
        // Means hide tails: where the token target is loose, the best set when played is another one.
        for (way, best) in
            [(colocated::per_machine as colocated::Way, single), (cost_efficiency, single), (colocated::mixed, any)]
        {
            assert!(of(way) >= 0.8 * best, "{tpot_s} s per token, {ttft_s} s before: {} of {best}", of(way));
        }
        assert!(of(melange) <= single * 1.001, "it has one replica per type, which is one of the sets");
    }
}

#[test]
fn equal_replicas_serve_no_less_than_those_that_serve_most_by_means() {
    let requests = serve::request::Requests::of(arrivals(120, 1024, 64));
    let trial = Trial { requests: &requests, attainment_ratio: 0.9, working: Working::default() };
    for n_drafts in [0, 2, 5] {
        for (tpot_s, ttft_s) in [(0.06, 1.0), (0.2, 1.0), (0.03, 2.0), (0.06, 0.4)] {
            let plain = two_and_two(4.0);
            let drafts = (n_drafts > 0).then(|| beside::drafts(n_drafts, 0.6, true));
            let beside = Beside::new(&plain.model, drafts.as_ref(), None);
            let task = Task { tpot_s, ttft_s, beside, ..plain };
            let rate = |replicas: &[Replica]| played::rate(&task, &Groups::colocated(replicas), &trial).expect("right");
            let by_means = colocated::per_machine(&task).expect("meaning");
            let found = colocated::per_machine_played(&task, &trial).expect("meaning");
            if by_means.is_empty() {
                assert!(found.plan.is_empty());
                continue;
            }
            let objective = found.objective().expect("a rate");
            assert_eq!(objective, rate(&found.plan));
            assert!(objective >= rate(&by_means), "{n_drafts} drafts, {tpot_s} s per token: {objective}");
            if let Some(second) = found.runner_up() {
                assert!(second.objective <= objective && second.objective == rate(&second.plan));
            }
            println!("{n_drafts} drafts, {tpot_s} s per token: {objective} where means choose {}", rate(&by_means));
        }
    }
}
