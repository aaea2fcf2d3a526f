//! Replicas on machines against every way of laying them.

use proptest::prelude::*;

use super::super::Configuration;
use super::super::inventory::Inventory;
use super::*;

fn offer(n_gpus: u32, machine: u32) -> Offer {
    Offer { n_gpus_per_machine: machine, ..Offer::priced("x", 1.0, n_gpus) }
}

/// Whether replicas fit machines, by trying every machine for each.
fn all_fit(rooms: &mut [u32], sizes: &[u32]) -> bool {
    let Some((&size, rest)) = sizes.split_first() else { return true };
    (0..rooms.len()).any(|at| {
        if rooms[at] < size {
            return false;
        }
        rooms[at] -= size;
        let found = all_fit(rooms, rest);
        rooms[at] += size;
        found
    })
}

#[test]
fn twelve_gpus_in_machines_of_six_hold_two_replicas_of_four() {
    assert_eq!(n_replicas_max(&offer(12, 6), 4), 2);
    assert_eq!(n_replicas_max(&offer(16, 6), 4), 3);
    assert_eq!(n_replicas_max(&offer(12, 6), 12), 1);
    assert_eq!(laid(&offer(12, 6), &[(2, 2), (4, 2)]), Some(vec![vec![4, 10], vec![0, 6]]));
    assert_eq!(laid(&offer(12, 6), &[(4, 3)]), None);
}

/// Whether the program of renting has these numbers of replicas, one configuration for each size.
fn is_rentable(offer: &Offer, wanted: &[(u32, u32)]) -> bool {
    let configuration = |&(size, _): &(u32, u32)| Configuration {
        name: String::new(),
        model: 0,
        n_gpus: vec![size],
        requests_per_s: vec![1.0],
    };
    let problem = Problem {
        inventory: Inventory::of(vec![offer.clone()]),
        configurations: wanted.iter().map(configuration).collect(),
        demands: Vec::new(),
        budget_usd_per_hour: 1e9,
    };
    let mut variables = ProblemVariables::new();
    let fixed = |&(_, n): &(u32, u32)| variables.add(variable().integer().min(f64::from(n)).max(f64::from(n)));
    let replicas: Vec<(usize, Variable)> = wanted.iter().map(fixed).enumerate().collect();
    let constraints = limits(&problem, &mut variables, &replicas, true);
    let wanted: Vec<Variable> = replicas.iter().map(|(_, n)| *n).collect();
    let program = Program { variables, objective: Expression::from(0.0), constraints, start: Vec::new() };
    milp::minimise(program, &wanted, Budget::default()).is_ok()
}

#[test]
fn a_size_that_no_machine_holds_changes_nothing_for_the_others() {
    // Three of three GPUs take a machine of four each; then no machine has two left, whether or not five might be rented.
    for more in [&[][..], &[(5, 0)], &[(12, 0)]] {
        for (twos, is_there) in [(0, true), (1, false)] {
            let wanted = [&[(3, 3), (2, twos)], more].concat();
            assert_eq!(fits(&offer(12, 4), &wanted), is_there, "{wanted:?}");
            assert_eq!(is_rentable(&offer(12, 4), &wanted), is_there, "{wanted:?}");
        }
    }
    // Five leave a border of three and a machine.
    assert_eq!(laid(&offer(12, 4), &[(3, 2), (5, 1)]), Some(vec![vec![5, 8], vec![0]]));
    assert!(!fits(&offer(16, 4), &[(3, 3), (2, 1), (5, 1)]) && fits(&offer(16, 4), &[(3, 2), (2, 2), (5, 1)]));
}

/// GPUs that each machine has left when so many replicas that are larger than one lie behind each other, and so many others take machines of their own; `None`
/// where these are too few.
fn left(offer: &Offer, (size, together, alone): (u32, u32, u32)) -> Option<Vec<u32>> {
    let machine = offer.n_gpus_per_machine;
    let mut rooms = vec![machine; (offer.n_available / machine) as usize];
    rooms.push(offer.n_available % machine);
    let mut taken = together * size;
    for room in &mut rooms {
        let of = taken.min(*room);
        (*room, taken) = (*room - of, taken - of);
    }
    for _ in 0..alone {
        let mut wanted = size;
        for room in rooms.iter_mut().filter(|room| **room == machine) {
            let of = wanted.min(*room);
            (*room, wanted) = (*room - of, wanted - of);
        }
        (wanted == 0).then_some(())?;
    }
    (taken == 0).then_some(rooms)
}

#[test]
fn large_replicas_lie_apart_where_others_fit_beside_them_only_so() {
    // Two of eight on four machines of six: together they leave two GPUs and a machine, apart four and four.
    assert_eq!(laid(&offer(24, 6), &[(8, 2), (4, 2)]), Some(vec![vec![0, 12], vec![8, 20]]));
    // A replica of six wants a machine of its own, which is there where they lie together.
    assert_eq!(laid(&offer(24, 6), &[(8, 2), (6, 1)]), Some(vec![vec![0, 8], vec![18]]));
    assert_eq!(laid(&offer(36, 6), &[(8, 3), (4, 3)]), Some(vec![vec![0, 12, 24], vec![8, 20, 32]]));
    assert!(!fits(&offer(24, 6), &[(8, 2), (4, 2), (1, 1)]));
}

proptest! {
    #[test]
    fn replicas_are_laid_wherever_they_fit(
        n_machines in 2_u32..=6, more in 0_u32..6, machine in 4_u32..=8,
        sizes in prop::collection::vec((1_u32..=4, 0_u32..=3), 1..=3),
        large in prop::option::of((9_u32..=14, 0_u32..=3)),
    ) {
        let offer = offer(n_machines * machine + more % machine, machine);
        let mut all: Vec<u32> = sizes.iter().flat_map(|&(size, n)| vec![size; n as usize]).collect();
        all.sort_by(|a, b| b.cmp(a));
        let (size, n) = large.unwrap_or((9, 0));
        let is_there = (0..=n).any(|alone| {
            left(&offer, (size, n - alone, alone)).is_some_and(|mut rooms| all_fit(&mut rooms, &all))
        });
        let sizes: Vec<(u32, u32)> = sizes.into_iter().chain(large).collect();
        let found = laid(&offer, &sizes);
        prop_assert_eq!(found.is_some(), is_there, "{:?} in {:?}", sizes, offer);
        prop_assert_eq!(found.is_some(), fits(&offer, &sizes), "{:?} in {:?}", sizes, offer);
        prop_assert_eq!(found.is_some(), is_rentable(&offer, &sizes), "{:?} in {:?}", sizes, offer);
        let mut owned = vec![false; offer.n_available as usize];
        for (&(size, n), firsts) in sizes.iter().zip(found.iter().flatten()) {
            prop_assert_eq!(firsts.len(), n as usize);
            for &first in firsts {
                let is_in_one = first / machine == (first + size - 1) / machine;
                prop_assert!(is_in_one || size > machine, "in one machine");
                for gpu in first..first + size {
                    prop_assert!(!std::mem::replace(&mut owned[gpu as usize], true), "GPU {} has two owners", gpu);
                }
            }
        }
    }
}
