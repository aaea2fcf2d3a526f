//! Replicas on machines: one that fits a machine lies in one, so an offer has as many places as its machines have, not as its GPUs divide.
//!
//! An offer is machines of M GPUs and a last one with what is left. Twelve GPUs in machines of six hold two replicas of four, not three.
//! Where every size divides the next larger one, replicas fit exactly if those of at least s GPUs take no more than Σ_m floor(M_m/s)·s, for every
//! size s: laying the largest first leaves no gap that a smaller one could not fill. Other sizes are packed by patterns, as in the
//! cutting-stock program (Gilmore and Gomory, 1961): a pattern says how many replicas of each size one machine holds, and n_p machines have
//! pattern p. Replicas that are larger than a machine lie one behind the other from the first GPU on, or alone, from the first GPU of a machine on:
//! what lies together leaves whole machines, and what lies apart leaves more of the last machine of each. Others have these rests and the machines that
//! nobody touches. Units: GPUs.

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
    /// GPUs from one to the next.
    apart: u32,
    /// How many they are.
    n: u32,
}

impl Rooms {
    /// One machine, where it has a GPU.
    fn one(first: u32, room: u32) -> Self {
        Self { first, room, apart: room, n: u32::from(room > 0) }
    }

    /// First GPU behind them.
    const fn end(self) -> u32 {
        self.first + self.n * self.apart
    }

    /// First GPU and number of GPUs of each machine, of so many at most.
    fn each(self, most: u32) -> impl Iterator<Item = (u32, u32)> {
        (0..self.n.min(most)).map(move |at| (self.first + at * self.apart, self.room))
    }

    /// GPUs that replicas of a size can have of them.
    const fn usable(self, size: u32) -> u32 {
        self.n * (self.room / size) * size
    }
}

/// GPUs that a replica which is larger than a machine leaves of its last one where it lies alone.
const fn rest(machine: u32, size: u32) -> u32 {
    (machine - size % machine) % machine
}

/// What is free behind the first so many GPUs, and behind so many replicas `(size, n)` that lie alone: the border, the rests of these, whole machines, and the
/// last one.
fn rooms(offer: &Offer, taken: u32, alone: &[(u32, u32)]) -> Vec<Rooms> {
    let machine = offer.n_gpus_per_machine.max(1);
    let border = rest(machine, taken).min(offer.n_available - taken);
    let mut all = vec![Rooms::one(taken, border)];
    let mut behind = taken + border;
    for &(size, n) in alone {
        let room = rest(machine, size);
        let of = Rooms { first: behind + size, room, apart: size + room, n };
        behind = of.end() - size;
        all.push(of);
    }
    let (n, last) = ((offer.n_available - behind) / machine, (offer.n_available - behind) % machine);
    let whole = Rooms { first: behind, room: machine, apart: machine, n };
    all.extend([whole, Rooms::one(whole.end(), last)]);
    all
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
        all.extend(rows(variables, offer, &taken, is_whole).0);
    }
    all
}

/// That replicas of these sizes fit the machines of an offer, and of the sizes that are larger than a machine, the largest first, how many lie alone.
fn rows(
    variables: &mut ProblemVariables,
    offer: &Offer,
    taken: &[(u32, Variable)],
    is_whole: bool,
) -> (Vec<Constraint>, Vec<Variable>) {
    let gpus = |least: u32, below: u32| -> Expression {
        let of = taken.iter().filter(|(size, _)| (least..below).contains(size));
        of.map(|&(size, y)| f64::from(size) * y).sum()
    };
    let mut all = vec![constraint!(gpus(1, u32::MAX) <= f64::from(offer.n_available))];
    let machine = offer.n_gpus_per_machine.max(1);
    let fitting = sizes(taken.iter().map(|(size, _)| *size).filter(|size| *size <= machine));
    let sharing = sharing(offer, &fitting);
    if sharing == Sharing::Count {
        return (all, Vec::new());
    }
    let Free { kinds, beside, rows, alone } = Free::beside(variables, (offer, &fitting), taken, is_whole);
    all.extend(rows);
    if sharing == Sharing::Nested {
        all.extend(fitting.iter().enumerate().map(|(at, &size)| {
            let usable = kinds.iter().map(|kind| f64::from(kind.room / size * size) * kind.n.clone());
            let on_border = beside[..=at].iter().zip(&fitting).map(|(n, &of)| f64::from(of) * n.clone());
            let there: Expression = usable.chain(on_border).sum();
            constraint!(gpus(size, machine + 1) <= there)
        }));
        return (all, alone);
    }
    let patterns: Vec<Vec<Pattern>> = kinds.iter().map(|kind| patterns(kind.room, &fitting)).collect();
    let there: Vec<u32> = kinds.iter().map(|kind| kind.most).collect();
    let Machines { n, places } = machines(variables, &there, &patterns, is_whole);
    all.extend(n.iter().zip(kinds).map(|(n, kind)| constraint!(sum(n) <= kind.n)));
    for ((size, places), beside) in fitting.into_iter().zip(places).zip(beside) {
        let n: Expression = taken.iter().filter(|(of, _)| *of == size).map(|&(_, y)| Expression::from(y)).sum();
        all.push(constraint!(n <= places + beside));
    }
    (all, alone)
}

/// Machines of a kind that are free.
struct Kind {
    /// GPUs of each.
    room: u32,
    /// How many there are at most.
    most: u32,
    /// How many there are.
    n: Expression,
}

/// What replicas that are larger than a machine leave of an offer.
struct Free {
    /// Whole machines, the last one where it has fewer GPUs, and the rests of replicas that lie alone.
    kinds: Vec<Kind>,
    /// Replicas of each size on the border.
    beside: Vec<Expression>,
    rows: Vec<Constraint>,
    /// Replicas of each larger size that lie alone.
    alone: Vec<Variable>,
}

impl Free {
    /// Beside these replicas. Those that lie together have G GPUs and touch m whole machines, and the last one where l is 1: M·(m + l) < G + M, so that there
    /// is one border.
    fn beside(
        variables: &mut ProblemVariables,
        (offer, fitting): (&Offer, &[u32]),
        taken: &[(u32, Variable)],
        is_whole: bool,
    ) -> Self {
        let machine = offer.n_gpus_per_machine.max(1);
        let [.., whole, last] = &rooms(offer, 0, &[])[..] else { unreachable!("there are always both") };
        let mut kinds: Vec<Kind> =
            [whole, last].map(|of| Kind { room: of.room, most: of.n, n: Expression::from(f64::from(of.n)) }).into();
        let large = sizes(taken.iter().map(|(size, _)| *size).filter(|size| *size > machine));
        if large.is_empty() {
            let none = vec![Expression::from(0.0); fitting.len()];
            return Self { kinds, beside: none, rows: Vec::new(), alone: Vec::new() };
        }
        let [touched, is_last] = [whole.n, last.n].map(|most| counted(variables, most, is_whole));
        let beside: Vec<Variable> = fitting.iter().map(|size| counted(variables, machine / size, is_whole)).collect();
        let on_border: Expression = beside.iter().zip(fitting).map(|(&n, &size)| f64::from(size) * n).sum();
        let (mut together, mut rows, mut alone) = (Expression::from(0.0), Vec::new(), Vec::new());
        kinds[0].n -= touched;
        kinds[1].n -= is_last;
        for size in large {
            let n_machines = size.div_ceil(machine);
            let most = whole.n / n_machines;
            let n = counted(variables, most, is_whole);
            let all: Expression = taken.iter().filter(|(of, _)| *of == size).map(|(_, y)| Expression::from(*y)).sum();
            rows.push(constraint!(n <= all.clone()));
            together += f64::from(size) * (all - n);
            kinds[0].n -= f64::from(n_machines) * n;
            kinds.push(Kind { room: rest(machine, size), most, n: n.into() });
            alone.push(n);
        }
        let size = f64::from(machine);
        rows.extend([
            constraint!(together.clone() + on_border <= size * touched + f64::from(last.room) * is_last),
            constraint!(size * touched + size * is_last <= together + (size - 1.0)),
            constraint!(f64::from(whole.n) * is_last <= touched),
            constraint!(kinds[0].n.clone() >= 0.0),
        ]);
        Self { kinds, beside: beside.into_iter().map(Expression::from).collect(), rows, alone }
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

/// Replicas that are larger than a machine, so many of which lie alone, those that fit one, and what is free for them.
struct Split<'a> {
    /// Size, those that lie together, those that lie alone.
    large: Vec<(u32, [u32; 2])>,
    fitting: &'a [(u32, u32)],
    sizes: Vec<u32>,
    rooms: Vec<Rooms>,
}

fn split<'a>(offer: &Offer, asked: &'a [(u32, u32)], alone: &[u32]) -> Split<'a> {
    let machine = offer.n_gpus_per_machine.max(1);
    let (large, fitting) = asked.split_at(asked.partition_point(|(size, _)| *size > machine));
    let of_alone = |at: usize| alone.get(at).copied().unwrap_or(0);
    let large: Vec<(u32, [u32; 2])> =
        large.iter().enumerate().map(|(at, &(size, n))| (size, [n - of_alone(at), of_alone(at)])).collect();
    let taken = large.iter().map(|(size, [n, _])| size * n).sum();
    let apart: Vec<(u32, u32)> = large.iter().map(|&(size, [_, n])| (size, n)).collect();
    let sizes = fitting.iter().map(|(size, _)| *size).collect();
    Split { large, fitting, sizes, rooms: rooms(offer, taken, &apart) }
}

impl Split<'_> {
    /// Whether those that fit a machine fit what is free.
    fn holds(&self, offer: &Offer) -> bool {
        let Self { fitting, sizes, rooms, .. } = self;
        let gpus = |(size, n): &(u32, u32)| u64::from(*size) * u64::from(*n);
        match sharing(offer, sizes) {
            Sharing::Count => true,
            Sharing::Nested => (1..=fitting.len()).all(|n| {
                let usable: u64 = rooms.iter().map(|of| u64::from(of.usable(sizes[n - 1]))).sum();
                fitting[..n].iter().map(gpus).sum::<u64>() <= usable
            }),
            Sharing::Patterns => {
                let is_laid = || first_fit(rooms, fitting).is_some();
                (offer.n_available <= LAID_MAX && is_laid()) || n_by_pattern(rooms, sizes, fitting).is_some()
            }
        }
    }

    /// First GPUs of the replicas that are larger than a machine, by size.
    fn large_places(&self) -> Vec<Vec<u32>> {
        let mut next = 0;
        let mut places = Vec::new();
        for (at, &(size, [together, alone])) in self.large.iter().enumerate() {
            let mut found: Vec<u32> = (0..together).map(|n| next + n * size).collect();
            next += together * size;
            // The border is the first room, and the rests come behind it.
            found.extend(self.rooms[1 + at].each(alone).map(|(first, _)| first - size));
            places.push(found);
        }
        places
    }
}

/// How many of the replicas of each size that are larger than a machine lie alone, where all fit: none if that will do.
fn lying(offer: &Offer, asked: &[(u32, u32)]) -> Option<Vec<u32>> {
    let together = split(offer, asked, &[]);
    if together.holds(offer) {
        return Some(vec![0; together.large.len()]);
    }
    if together.large.is_empty() {
        return None;
    }
    let mut variables = ProblemVariables::new();
    let fixed = |&(size, n): &(u32, u32)| {
        let n = f64::from(n);
        (size, variables.add(variable().integer().min(n).max(n)))
    };
    let taken: Vec<(u32, Variable)> = asked.iter().map(fixed).collect();
    let (constraints, alone) = rows(&mut variables, offer, &taken, true);
    let program = Program { variables, objective: Expression::from(0.0), constraints, start: Vec::new() };
    let solved = milp::minimise(program, &alone, Budget::default()).ok()?;
    Some(solved.values.iter().map(|&n| super::whole(n)).collect())
}

/// Whether replicas `(size, n)` fit the machines of an offer.
pub(super) fn fits(offer: &Offer, wanted: &[(u32, u32)]) -> bool {
    asked(offer, wanted).is_some_and(|asked| lying(offer, &asked).is_some())
}

/// The first GPU of every replica: of each entry `(size, n)`, in order. `None` where they do not fit.
pub(super) fn laid(offer: &Offer, wanted: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
    let asked = asked(offer, wanted)?;
    let split = split(offer, &asked, &lying(offer, &asked)?);
    let mut places = split.large_places();
    let Split { fitting, sizes, rooms, .. } = split;
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
fn n_by_pattern(rooms: &[Rooms], sizes: &[u32], asked: &[(u32, u32)]) -> Option<Vec<(Rooms, Pattern, u32)>> {
    let patterns: Vec<Vec<Pattern>> = rooms.iter().map(|of| patterns(of.room, sizes)).collect();
    let there: Vec<u32> = rooms.iter().map(|of| of.n).collect();
    let mut variables = ProblemVariables::new();
    let Machines { n, places } = machines(&mut variables, &there, &patterns, true);
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
fn by_patterns(rooms: &[Rooms], sizes: &[u32], asked: &[(u32, u32)]) -> Option<Vec<Vec<u32>>> {
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
            *first += of.apart;
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests;
