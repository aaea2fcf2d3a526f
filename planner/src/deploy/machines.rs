//! Replicas on machines: one that fits a machine lies in one, so an offer has as many places as its machines have, not as its GPUs divide.
//!
//! An offer is machines of M GPUs and a last one with what is left. Twelve GPUs in machines of six hold two replicas of four, not three.
//! Where every size divides the next larger one, replicas fit exactly if those of at least s GPUs take no more than Σ_m floor(M_m/s)·s, for every
//! size s: laying the largest first leaves no gap that a smaller one could not fill. Other sizes are packed by patterns, as in the
//! cutting-stock program (Gilmore and Gomory, 1961): a pattern says how many replicas of each size one machine holds, and n_p machines have
//! pattern p. Replicas that are larger than a machine lie one behind the other from the first GPU on and count by their GPUs alone. Others have the border, which is
//! what is left of the last machine that these touch, and the machines behind it. Units: GPUs.

use std::collections::BTreeMap;

use good_lp::{Constraint, Expression, ProblemVariables, Variable, constraint, variable};

use super::Problem;
use super::inventory::Offer;
use crate::milp::{self, Budget, Program};

/// Patterns of a machine at most; with more of them those of the largest sizes and of one size alone are kept, which can be laid all the same.
const PATTERNS_MAX: usize = 256;

/// Replicas of so many GPUs that an offer holds when it holds nothing else.
pub(super) fn n_replicas_max(offer: &Offer, size: u32) -> u32 {
    let machine = offer.n_gpus_per_machine.max(1);
    if size > machine {
        return offer.n_available / size;
    }
    let (n, left) = (offer.n_available / machine, offer.n_available % machine);
    n.saturating_mul(machine / size).saturating_add(left / size)
}

/// How many replicas of each size one machine holds.
type Pattern = Vec<u32>;

/// How replicas that fit a machine share the machines of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// GPUs alone count: there is one machine, or nothing to lay.
    Count,
    /// Every size divides the next one.
    Nested,
    /// By patterns of machines.
    Patterns,
}

/// Of sizes that differ, the largest first, none of them larger than a machine.
fn sharing(offer: &Offer, sizes: &[u32]) -> Sharing {
    if sizes.is_empty() || offer.n_available <= offer.n_gpus_per_machine.max(1) {
        Sharing::Count
    } else if sizes.windows(2).all(|pair| pair[0].is_multiple_of(pair[1])) {
        Sharing::Nested
    } else {
        Sharing::Patterns
    }
}

/// Machines with as many GPUs that are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rooms {
    /// First GPU of the first one.
    first: u32,
    /// GPUs of each.
    room: u32,
    /// How many they are.
    n: u32,
}

impl Rooms {
    /// One machine, where it has a GPU.
    fn one(first: u32, room: u32) -> Self {
        Self { first, room, n: u32::from(room > 0) }
    }

    /// First GPU and number of GPUs of each machine, of so many at most.
    fn each(self, most: u32) -> impl Iterator<Item = (u32, u32)> {
        (0..self.n.min(most)).map(move |at| (self.first + at * self.room, self.room))
    }

    /// GPUs that replicas of a size can have of them.
    const fn usable(self, size: u32) -> u32 {
        self.n * (self.room / size) * size
    }
}

/// What is free behind the first so many GPUs: the border, whole machines, and the last one.
fn rooms(offer: &Offer, taken: u32) -> [Rooms; 3] {
    let machine = offer.n_gpus_per_machine.max(1);
    let border = (taken.next_multiple_of(machine).min(offer.n_available)) - taken;
    let behind = taken + border;
    let (n, last) = ((offer.n_available - behind) / machine, (offer.n_available - behind) % machine);
    let whole = Rooms { first: behind, room: machine, n };
    [Rooms::one(taken, border), whole, Rooms::one(behind + n * machine, last)]
}

/// How many replicas of each size a machine of so many GPUs may hold where no other fits beside them.
fn patterns(room: u32, sizes: &[u32]) -> Vec<Pattern> {
    let alone = (0..sizes.len()).map(|at| {
        let mut pattern = vec![0; sizes.len()];
        pattern[at] = room / sizes[at];
        pattern
    });
    let mut all: Vec<Pattern> = alone.collect();
    extend(room, sizes, &mut Vec::new(), &mut all);
    all.sort();
    all.dedup();
    all
}

/// Adds the patterns that begin so.
fn extend(room: u32, sizes: &[u32], begun: &mut Pattern, all: &mut Vec<Pattern>) {
    if all.len() >= PATTERNS_MAX {
        return;
    }
    let Some(&size) = sizes.get(begun.len()) else {
        all.push(begun.clone());
        return;
    };
    let least = if begun.len() + 1 == sizes.len() { room / size } else { 0 };
    for n in (least..=room / size).rev() {
        begun.push(n);
        extend(room - n * size, sizes, begun, all);
        begun.pop();
    }
}

/// Sizes on an offer, the largest first, each once.
fn sizes(of: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut all: Vec<u32> = of.filter(|n| *n > 0).collect();
    all.sort_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

/// That replicas fit the machines of every offer; `is_whole` is false for a relaxation.
pub(super) fn limits(
    problem: &Problem,
    variables: &mut ProblemVariables,
    replicas: &[(usize, Variable)],
    is_whole: bool,
) -> Vec<Constraint> {
    let mut all = Vec::new();
    for (at, offer) in problem.inventory.offers.iter().enumerate() {
        let taken: Vec<(u32, Variable)> =
            replicas.iter().map(|&(c, y)| (problem.configurations[c].n_gpus[at], y)).filter(|(n, _)| *n > 0).collect();
        let from = |least: u32| taken.iter().filter(move |(size, _)| *size >= least);
        let gpus = |least: u32| -> Expression { from(least).map(|&(size, y)| f64::from(size) * y).sum() };
        all.push(constraint!(gpus(1) <= f64::from(offer.n_available)));
        let machine = offer.n_gpus_per_machine.max(1);
        let fitting = sizes(taken.iter().map(|(size, _)| *size).filter(|size| *size <= machine));
        let sharing = sharing(offer, &fitting);
        if sharing == Sharing::Count {
            continue;
        }
        let large = taken.iter().any(|(size, _)| *size > machine).then(|| gpus(machine + 1));
        let free = Free::behind(variables, (offer, &fitting), large, is_whole);
        all.extend(free.rows);
        let [_, whole, last] = rooms(offer, 0);
        if sharing == Sharing::Nested {
            all.extend(fitting.iter().enumerate().map(|(at, &size)| {
                let beside: Expression =
                    free.beside[..=at].iter().zip(&fitting).map(|(n, &of)| f64::from(of) * n.clone()).sum();
                let [of_whole, of_last] = [machine, last.room].map(|room| f64::from(room / size * size));
                let behind = of_whole * free.n[0].clone() + of_last * free.n[1].clone();
                constraint!(gpus(size) - gpus(machine + 1) <= behind + beside)
            }));
            continue;
        }
        let patterns = [whole, last].map(|of| patterns(of.room, &fitting));
        let Machines { n, places } = machines(variables, &[whole, last].map(|of| of.n), &patterns, is_whole);
        all.extend(n.iter().zip(free.n).map(|(n, free)| constraint!(sum(n) <= free)));
        for ((size, places), beside) in fitting.into_iter().zip(places).zip(free.beside) {
            let n: Expression = taken.iter().filter(|(of, _)| *of == size).map(|&(_, y)| Expression::from(y)).sum();
            all.push(constraint!(n <= places + beside));
        }
    }
    all
}

/// What replicas that are larger than a machine leave of an offer.
struct Free {
    /// Whole machines, and the last one where it has fewer GPUs.
    n: [Expression; 2],
    /// Replicas of each size on the border.
    beside: Vec<Expression>,
    rows: Vec<Constraint>,
}

impl Free {
    /// Behind so many GPUs. They touch m whole machines, and the last one where l is 1: M·(m + l) < GPUs + M, so that there is one border.
    fn behind(
        variables: &mut ProblemVariables,
        (offer, sizes): (&Offer, &[u32]),
        gpus: Option<Expression>,
        is_whole: bool,
    ) -> Self {
        let machine = offer.n_gpus_per_machine.max(1);
        let [_, whole, last] = rooms(offer, 0);
        let there = [whole.n, last.n].map(|n| Expression::from(f64::from(n)));
        let Some(gpus) = gpus else {
            let none = vec![Expression::from(0.0); sizes.len()];
            return Self { n: there, beside: none, rows: Vec::new() };
        };
        let [touched, is_last] = [whole.n, last.n].map(|most| counted(variables, most, is_whole));
        let beside: Vec<Variable> = sizes.iter().map(|size| counted(variables, machine / size, is_whole)).collect();
        let on_border: Expression = beside.iter().zip(sizes).map(|(&n, &size)| f64::from(size) * n).sum();
        let size = f64::from(machine);
        let rows = vec![
            constraint!(gpus.clone() + on_border <= size * touched + f64::from(last.room) * is_last),
            constraint!(size * touched + size * is_last <= gpus + (size - 1.0)),
            constraint!(f64::from(whole.n) * is_last <= touched),
        ];
        let [whole, last] = there;
        Self { n: [whole - touched, last - is_last], beside: beside.into_iter().map(Expression::from).collect(), rows }
    }
}

/// A count of so many at most.
fn counted(variables: &mut ProblemVariables, most: u32, is_whole: bool) -> Variable {
    let n = variable().min(0.0).max(f64::from(most));
    variables.add(if is_whole { n.integer() } else { n })
}

fn sum(variables: &[Variable]) -> Expression {
    variables.iter().copied().map(Expression::from).sum()
}

/// Machines by pattern.
struct Machines {
    /// How many of each kind have each pattern.
    n: Vec<Vec<Variable>>,
    /// Places for each size.
    places: Vec<Expression>,
}

/// Kinds of machines, so many of each, with their patterns.
fn machines(variables: &mut ProblemVariables, there: &[u32], patterns: &[Vec<Pattern>], is_whole: bool) -> Machines {
    let kinds = patterns.iter().zip(there);
    let n: Vec<Vec<Variable>> =
        kinds.map(|(patterns, &most)| patterns.iter().map(|_| counted(variables, most, is_whole)).collect()).collect();
    let place = |at: usize| -> Expression {
        let all = n.iter().flatten().zip(patterns.iter().flatten());
        all.map(|(&n, pattern)| f64::from(pattern[at]) * n).sum()
    };
    let n_sizes = patterns[0].first().map_or(0, Vec::len);
    let places = (0..n_sizes).map(place).collect();
    Machines { n, places }
}

/// GPUs up to which replicas are laid one by one to see whether they fit.
const LAID_MAX: u32 = 1 << 16;

/// Replicas `(size, n)` of each size, the largest first; `None` where they have more GPUs than there are.
fn asked(offer: &Offer, wanted: &[(u32, u32)]) -> Option<Vec<(u32, u32)>> {
    let taken = wanted.iter().map(|&(size, n)| u64::from(size) * u64::from(n)).sum::<u64>();
    let sizes = sizes(wanted.iter().filter(|(_, n)| *n > 0).map(|(size, _)| *size));
    let n_of = |size: u32| wanted.iter().filter(|(of, _)| *of == size).map(|(_, n)| *n).sum::<u32>();
    (taken <= u64::from(offer.n_available)).then(|| sizes.iter().map(|&size| (size, n_of(size))).collect())
}

/// Replicas that are larger than a machine, those that fit one, and what is free for them.
struct Split<'a> {
    large: &'a [(u32, u32)],
    fitting: &'a [(u32, u32)],
    sizes: Vec<u32>,
    rooms: [Rooms; 3],
}

fn split<'a>(offer: &Offer, asked: &'a [(u32, u32)]) -> Split<'a> {
    let machine = offer.n_gpus_per_machine.max(1);
    let (large, fitting) = asked.split_at(asked.partition_point(|(size, _)| *size > machine));
    let taken = large.iter().map(|(size, n)| size * n).sum();
    let sizes = fitting.iter().map(|(size, _)| *size).collect();
    Split { large, fitting, sizes, rooms: rooms(offer, taken) }
}

/// Whether replicas `(size, n)` fit the machines of an offer.
pub(super) fn fits(offer: &Offer, wanted: &[(u32, u32)]) -> bool {
    let Some(asked) = asked(offer, wanted) else { return false };
    let Split { fitting, sizes, rooms, .. } = split(offer, &asked);
    let gpus = |(size, n): &(u32, u32)| u64::from(*size) * u64::from(*n);
    match sharing(offer, &sizes) {
        Sharing::Count => true,
        Sharing::Nested => (1..=fitting.len()).all(|n| {
            let usable: u64 = rooms.iter().map(|of| u64::from(of.usable(sizes[n - 1]))).sum();
            fitting[..n].iter().map(gpus).sum::<u64>() <= usable
        }),
        Sharing::Patterns => {
            let is_laid = || first_fit(&rooms, fitting).is_some();
            (offer.n_available <= LAID_MAX && is_laid()) || n_by_pattern(&rooms, &sizes, fitting).is_some()
        }
    }
}

/// The first GPU of every replica: of each entry `(size, n)`, in order. `None` where they do not fit.
pub(super) fn laid(offer: &Offer, wanted: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    let asked = asked(offer, wanted)?;
    let Split { large, fitting, sizes, rooms } = split(offer, &asked);
    let whole = [Rooms { first: 0, room: offer.n_available, n: 1 }];
    let mut places = first_fit(&whole, large)?;
    places.extend(match sharing(offer, &sizes) {
        Sharing::Count | Sharing::Nested => first_fit(&rooms, fitting),
        Sharing::Patterns => first_fit(&rooms, fitting).or_else(|| by_patterns(&rooms, &sizes, fitting)),
    }?);
    let mut free: Vec<std::vec::IntoIter<u32>> = places.into_iter().map(Vec::into_iter).collect();
    let place = |&(size, n): &(u32, u32)| {
        let at = asked.iter().position(|(of, _)| *of == size);
        at.map_or_else(Vec::new, |at| free[at].by_ref().take(n as usize).collect())
    };
    Some(wanted.iter().map(place).collect())
}

/// Places of each size, the largest first, each in the first room with as many GPUs.
fn first_fit(rooms: &[Rooms], asked: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    // No more machines of a kind than replicas are begun.
    let n_replicas = asked.iter().fold(0_u32, |sum, (_, n)| sum.saturating_add(*n));
    let mut free: Vec<(u32, u32)> = rooms.iter().flat_map(|of| of.each(n_replicas)).collect();
    let mut places = Vec::new();
    for &(size, n) in asked {
        let mut found = Vec::new();
        for (first, room) in &mut free {
            while found.len() < n as usize && size <= *room {
                found.push(*first);
                (*first, *room) = (*first + size, *room - size);
            }
        }
        (found.len() == n as usize).then_some(())?;
        places.push(found);
    }
    Some(places)
}

/// How many machines have each pattern, so that replicas fit, by kind of room.
fn n_by_pattern(rooms: &[Rooms; 3], sizes: &[u32], asked: &[(u32, u32)]) -> Option<Vec<(Rooms, Pattern, u32)>> {
    let patterns = rooms.map(|of| patterns(of.room, sizes));
    let mut variables = ProblemVariables::new();
    let Machines { n, places } = machines(&mut variables, &rooms.map(|of| of.n), &patterns, true);
    let mut constraints: Vec<Constraint> =
        n.iter().zip(rooms).map(|(n, of)| constraint!(sum(n) <= f64::from(of.n))).collect();
    constraints.extend(asked.iter().zip(places).map(|(&(_, n), places)| constraint!(places >= f64::from(n))));
    let wanted: Vec<Variable> = n.iter().flatten().copied().collect();
    let program = Program { variables, objective: Expression::from(0.0), constraints, start: Vec::new() };
    let solved = milp::minimise(program, &wanted, Budget::default()).ok()?;
    let kinds =
        rooms.iter().zip(patterns).flat_map(|(of, patterns)| patterns.into_iter().map(|pattern| (*of, pattern)));
    Some(kinds.zip(&solved.values).map(|((of, pattern), &n)| (of, pattern, super::whole(n))).collect())
}

/// Places of each size by the patterns of machines.
fn by_patterns(rooms: &[Rooms; 3], sizes: &[u32], asked: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    let mut places = vec![Vec::new(); asked.len()];
    // The next machine of each kind, by its first one.
    let mut begun: BTreeMap<u32, u32> = BTreeMap::new();
    for (of, pattern, n) in n_by_pattern(rooms, sizes, asked)? {
        let first = begun.entry(of.first).or_insert(of.first);
        for _ in 0..n {
            let mut next = *first;
            for (at, &size) in sizes.iter().enumerate() {
                for _ in 0..pattern[at] {
                    places[at].push(next);
                    next += size;
                }
            }
            *first += of.room;
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
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

    proptest! {
        #[test]
        fn replicas_are_laid_wherever_they_fit(
            n_machines in 2_u32..=3, left in 0_u32..6, machine in 4_u32..=8,
            sizes in prop::collection::vec((1_u32..=4, 0_u32..=3), 1..=3),
            large in prop::option::of((9_u32..=14, 0_u32..=2)),
        ) {
            let offer = offer(n_machines * machine + left % machine, machine);
            let mut all: Vec<u32> = sizes.iter().flat_map(|&(size, n)| vec![size; n as usize]).collect();
            all.sort_by(|a, b| b.cmp(a));
            let mut rooms = vec![machine; n_machines as usize];
            rooms.push(left % machine);
            // Large ones take the first GPUs.
            let mut taken = large.map_or(0, |(size, n)| size * n);
            let has_room = taken <= offer.n_available;
            for room in &mut rooms {
                let of = taken.min(*room);
                (*room, taken) = (*room - of, taken - of);
            }
            let sizes: Vec<(u32, u32)> = sizes.into_iter().chain(large).collect();
            let found = laid(&offer, &sizes);
            prop_assert_eq!(found.is_some(), has_room && all_fit(&mut rooms, &all), "{:?} in {:?}", sizes, offer);
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
}
