//! Replicas on machines: one that fits a machine lies in one, so an offer has as many places as its machines have, not as its GPUs divide.
//!
//! An offer is machines of M GPUs and a last one with what is left. Twelve GPUs in machines of six hold two replicas of four, not three.
//! Where every size divides the next larger one, replicas fit exactly if those of at least s GPUs take no more than Σ_m floor(M_m/s)·s, for every
//! size s: laying the largest first leaves no gap that a smaller one could not fill. Other sizes are packed by patterns, as in the
//! cutting-stock program (Gilmore and Gomory, 1961): a pattern says how many replicas of each size one machine holds, and n_p machines have
//! pattern p. A replica that is larger than a machine counts by its GPUs alone. Units: GPUs.

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

/// How replicas share the machines of an offer.
enum Sharing {
    /// GPUs alone count: there is one machine, or a replica takes several.
    Count,
    /// Every size divides the next one.
    Nested,
    /// By patterns of the whole machines, and of the last one.
    Patterns([Vec<Pattern>; 2]),
}

/// Of sizes that differ, the largest first.
fn sharing(offer: &Offer, sizes: &[u32]) -> Sharing {
    let machine = offer.n_gpus_per_machine.max(1);
    if offer.n_available <= machine || sizes.first().is_none_or(|most| *most > machine) {
        return Sharing::Count;
    }
    if sizes.windows(2).all(|pair| pair[0].is_multiple_of(pair[1])) {
        return Sharing::Nested;
    }
    Sharing::Patterns([machine, offer.n_available % machine].map(|room| patterns(room, sizes)))
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
        let sizes = sizes(taken.iter().map(|(size, _)| *size));
        match sharing(offer, &sizes) {
            Sharing::Count => {}
            Sharing::Nested => all.extend(sizes.iter().map(|&size| {
                let most = f64::from(n_replicas_max(offer, size)) * f64::from(size);
                constraint!(gpus(size) <= most)
            })),
            Sharing::Patterns(patterns) => {
                let counts = machines(variables, offer, &patterns, is_whole);
                all.extend(counts.within);
                for (size, places) in sizes.into_iter().zip(counts.places) {
                    let n: Expression =
                        taken.iter().filter(|(of, _)| *of == size).map(|&(_, y)| Expression::from(y)).sum();
                    all.push(constraint!(n <= places));
                }
            }
        }
    }
    all
}

/// Machines by pattern.
struct Machines {
    /// How many have each pattern, of the whole ones and of the last one.
    n: [Vec<Variable>; 2],
    /// No more than there are.
    within: Vec<Constraint>,
    /// Places for each size.
    places: Vec<Expression>,
}

fn machines(variables: &mut ProblemVariables, offer: &Offer, patterns: &[Vec<Pattern>; 2], is_whole: bool) -> Machines {
    let machine = offer.n_gpus_per_machine.max(1);
    let there = [offer.n_available / machine, u32::from(!offer.n_available.is_multiple_of(machine))];
    let mut count = |most: u32| {
        let n = variable().min(0.0).max(f64::from(most));
        variables.add(if is_whole { n.integer() } else { n })
    };
    let n = [0, 1].map(|kind: usize| patterns[kind].iter().map(|_| count(there[kind])).collect::<Vec<_>>());
    let sum = |kind: usize| -> Expression { n[kind].iter().copied().map(Expression::from).sum() };
    let within = [0, 1].map(|kind| constraint!(sum(kind) <= f64::from(there[kind]))).into();
    let place = |at: usize| -> Expression {
        let of = |kind: usize| n[kind].iter().zip(&patterns[kind]).map(move |(&n, pattern)| f64::from(pattern[at]) * n);
        of(0).chain(of(1)).sum()
    };
    let n_sizes = patterns[0].first().map_or(0, Vec::len);
    let places = (0..n_sizes).map(place).collect();
    Machines { n, within, places }
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

/// Whether replicas `(size, n)` fit the machines of an offer.
pub(super) fn fits(offer: &Offer, wanted: &[(u32, u32)]) -> bool {
    let Some(asked) = asked(offer, wanted) else { return false };
    let sizes: Vec<u32> = asked.iter().map(|(size, _)| *size).collect();
    let gpus = |(size, n): &(u32, u32)| u64::from(*size) * u64::from(*n);
    let machine = offer.n_gpus_per_machine.max(1);
    match sharing(offer, &sizes) {
        Sharing::Count => true,
        Sharing::Nested => (1..=asked.len()).all(|n| {
            let size = asked[n - 1].0;
            asked[..n].iter().map(gpus).sum::<u64>() <= gpus(&(size, n_replicas_max(offer, size)))
        }),
        Sharing::Patterns(patterns) => {
            let is_laid = || first_fit(offer.n_available, machine, &asked).is_some();
            (offer.n_available <= LAID_MAX && is_laid()) || n_by_pattern(offer, &patterns, &asked).is_some()
        }
    }
}

/// The first GPU of every replica: of each entry `(size, n)`, in order. `None` where they do not fit.
pub(super) fn laid(offer: &Offer, wanted: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    let asked = asked(offer, wanted)?;
    let sizes: Vec<u32> = asked.iter().map(|(size, _)| *size).collect();
    let machine = offer.n_gpus_per_machine.max(1);
    let places = match sharing(offer, &sizes) {
        // Whole machines count as one room where only the number of GPUs matters.
        Sharing::Count => first_fit(offer.n_available, offer.n_available.max(1), &asked),
        Sharing::Nested => first_fit(offer.n_available, machine, &asked),
        Sharing::Patterns(patterns) => {
            first_fit(offer.n_available, machine, &asked).or_else(|| by_patterns(offer, &patterns, &asked))
        }
    }?;
    let mut free: Vec<std::vec::IntoIter<u32>> = places.into_iter().map(Vec::into_iter).collect();
    let place = |&(size, n): &(u32, u32)| {
        let at = sizes.iter().position(|of| *of == size);
        at.map_or_else(Vec::new, |at| free[at].by_ref().take(n as usize).collect())
    };
    Some(wanted.iter().map(place).collect())
}

/// Places of each size, the largest first, each in the first machine with room.
fn first_fit(n_gpus: u32, machine: u32, asked: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    // No more machines than replicas are begun.
    let n_replicas = asked.iter().fold(0_u32, |sum, (_, n)| sum.saturating_add(*n));
    let mut used = vec![0_u32; n_gpus.div_ceil(machine).min(n_replicas) as usize];
    let mut places = Vec::new();
    for &(size, n) in asked {
        let mut found = Vec::new();
        for (at, used) in (0..).zip(&mut used) {
            let first = at * machine;
            let most = machine.min(n_gpus - first);
            while found.len() < n as usize && *used + size <= most {
                found.push(first + *used);
                *used += size;
            }
        }
        (found.len() == n as usize).then_some(())?;
        places.push(found);
    }
    Some(places)
}

/// How many machines have each pattern, so that replicas fit.
fn n_by_pattern(offer: &Offer, patterns: &[Vec<Pattern>; 2], asked: &[(u32, u32)]) -> Option<Vec<f64>> {
    let mut variables = ProblemVariables::new();
    let Machines { n, mut within, places } = machines(&mut variables, offer, patterns, true);
    within.extend(asked.iter().zip(places).map(|(&(_, n), places)| constraint!(places >= f64::from(n))));
    let wanted: Vec<Variable> = n.iter().flatten().copied().collect();
    let program = Program { variables, objective: Expression::from(0.0), constraints: within, start: Vec::new() };
    milp::minimise(program, &wanted, Budget::default()).ok().map(|solved| solved.values)
}

/// Places of each size by the patterns of machines.
fn by_patterns(offer: &Offer, patterns: &[Vec<Pattern>; 2], asked: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    let n_machines = n_by_pattern(offer, patterns, asked)?;
    let mut places = vec![Vec::new(); asked.len()];
    let mut first = 0;
    for (pattern, &n) in patterns.iter().flatten().zip(&n_machines) {
        for _ in 0..super::whole(n) {
            let mut next = first;
            for (at, &(size, _)) in asked.iter().enumerate() {
                for _ in 0..pattern[at] {
                    places[at].push(next);
                    next += size;
                }
            }
            first += offer.n_gpus_per_machine.max(1);
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn replicas_are_laid_wherever_they_fit(
            n_machines in 2_u32..=3, left in 0_u32..6, machine in 4_u32..=8,
            sizes in prop::collection::vec((1_u32..=4, 0_u32..=3), 1..=3),
        ) {
            let offer = offer(n_machines * machine + left % machine, machine);
            let mut all: Vec<u32> = sizes.iter().flat_map(|&(size, n)| vec![size; n as usize]).collect();
            all.sort_by(|a, b| b.cmp(a));
            let mut rooms = vec![machine; n_machines as usize];
            rooms.push(left % machine);
            let found = laid(&offer, &sizes);
            prop_assert_eq!(found.is_some(), all_fit(&mut rooms, &all), "{:?} in {:?}", sizes, offer);
            prop_assert_eq!(found.is_some(), fits(&offer, &sizes), "{:?} in {:?}", sizes, offer);
            let mut owned = vec![false; offer.n_available as usize];
            for (&(size, n), firsts) in sizes.iter().zip(found.iter().flatten()) {
                prop_assert_eq!(firsts.len(), n as usize);
                for &first in firsts {
                    prop_assert_eq!(first / machine, (first + size - 1) / machine, "in one machine");
                    for gpu in first..first + size {
                        prop_assert!(!std::mem::replace(&mut owned[gpu as usize], true), "GPU {} has two owners", gpu);
                    }
                }
            }
        }
    }
}
