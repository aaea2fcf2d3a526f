//! Which pipeline of a strategy gets which sequence (Hydraulis, first stage of the assignment).
//!
//! min Z  s.t. for every pipeline j: Σ_i m\[i,j\]·cost_j(s_i) + (pp_j − 1)·cost_j(S_j) <= Z;  every sequence in one pipeline that can hold it.
//! S_j is the longest sequence that pipeline j can get. Greedy: sequences that one pipeline alone can hold first, then each to the pipeline
//! that least raises the largest sum, in several orders; the best is kept. The MILP starts from it.

use engine::random::Stream;
use good_lp::{Expression, ProblemVariables, Variable, constraint, variable};

use super::schemes::Scheme;
use crate::milp::{self, Budget, Program};

/// Insertion orders that the greedy tries besides longest first.
const ORDERS: usize = 20;

/// Sequences (positions in `lengths`) of every pipeline, and the largest sum with pipeline fill, seconds.
pub(super) type Assignment = (Vec<Vec<usize>>, f64);

/// Seconds that a pipeline takes for its fill, given what it may have to hold.
fn fill_s(scheme: &Scheme, lengths: &[u64]) -> f64 {
    let longest = lengths.iter().copied().filter(|length| *length <= scheme.max_tokens).max().unwrap_or(0);
    (f64::from(scheme.shape.pp) - 1.0) * scheme.sequence_s(longest)
}

/// The best of several greedy orders; `None` when some sequence fits no pipeline.
pub(super) fn greedy(lengths: &[u64], pipelines: &[Scheme], random: &mut Stream) -> Option<Assignment> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_unstable_by(|&a, &b| lengths[b].cmp(&lengths[a]).then(a.cmp(&b)));
    let mut best = insert(lengths, pipelines, &longest_first)?;
    let mut order = longest_first;
    for _ in 0..ORDERS {
        random.shuffle(&mut order);
        if let Some(found) = insert(lengths, pipelines, &order).filter(|found| found.1 < best.1) {
            best = found;
        }
    }
    Some(best)
}

fn insert(lengths: &[u64], pipelines: &[Scheme], order: &[usize]) -> Option<Assignment> {
    let mut sums: Vec<f64> = pipelines.iter().map(|scheme| fill_s(scheme, lengths)).collect();
    let mut assigned = vec![Vec::new(); pipelines.len()];
    let fits = |index: usize, j: usize| lengths[index] <= pipelines[j].max_tokens;
    let n_choices = |index: usize| (0..pipelines.len()).filter(|&j| fits(index, j)).count();
    // Sequences with one choice first: nothing can be balanced against them later.
    let (bound, free): (Vec<usize>, Vec<usize>) = order.iter().partition(|&&index| n_choices(index) <= 1);
    for index in bound.into_iter().chain(free) {
        let after = |j: usize| sums[j] + pipelines[j].sequence_s(lengths[index]);
        let j = (0..pipelines.len()).filter(|&j| fits(index, j)).min_by(|&a, &b| after(a).total_cmp(&after(b)))?;
        sums[j] = after(j);
        assigned[j].push(index);
    }
    let largest = sums.into_iter().fold(0.0, f64::max);
    Some((assigned, largest))
}

/// What no dispatch and no packing is below, seconds: every pipeline computes its sequences and the c of so many micro-batches as its tokens
/// need, and the longest sequence passes all stages of some pipeline. The first part is the dual of the dispatch without whole sequences: with weights
/// w of pipelines that add up to one, the largest sum is no less than the weighted one, where each sequence goes where it weighs least.
pub(super) fn least_s(lengths: &[u64], pipelines: &[Scheme]) -> f64 {
    let of_sequence = |scheme: &Scheme, tokens: u64| {
        let fits = tokens <= scheme.max_tokens;
        let seconds = scheme.sequence_s(tokens) + scheme.c * hw::real(tokens) / hw::real(scheme.max_tokens);
        if fits { seconds } else { f64::INFINITY }
    };
    // A pipeline weighs what it does of the mean sequence in a second.
    let mean = lengths.iter().sum::<u64>() / (lengths.len() as u64).max(1);
    let speed = |scheme: &Scheme| 1.0 / of_sequence(scheme, mean.min(scheme.max_tokens)).max(f64::MIN_POSITIVE);
    let speeds: Vec<f64> = pipelines.iter().map(speed).collect();
    let all: f64 = speeds.iter().sum();
    let weighted = |tokens: u64| {
        let of = pipelines.iter().zip(&speeds).map(|(scheme, speed)| of_sequence(scheme, tokens) * speed / all);
        of.fold(f64::INFINITY, f64::min)
    };
    let longest = lengths.iter().max().copied().unwrap_or(0);
    let through = |scheme: &Scheme| {
        let fits = longest <= scheme.max_tokens;
        if fits { (scheme.sequence_s(longest) + scheme.c) * f64::from(scheme.shape.pp) } else { f64::INFINITY }
    };
    let alone = pipelines.iter().map(through).fold(f64::INFINITY, f64::min);
    lengths.iter().map(|&tokens| weighted(tokens)).sum::<f64>().max(alone)
}

/// The MILP from a start; its bound on the largest sum, where the search gave one.
pub(super) fn milp(
    lengths: &[u64],
    pipelines: &[Scheme],
    start: Assignment,
    budget: Budget,
) -> (Assignment, Option<f64>) {
    // Milliseconds keep the numbers near one.
    let ms = |seconds: f64| seconds * 1e3;
    let mut variables = ProblemVariables::new();
    let n = pipelines.len();
    let m = variables.add_vector(variable().binary(), lengths.len() * n);
    let z = variables.add(variable().min(0.0));
    let mut constraints = Vec::new();
    for (i, &length) in lengths.iter().enumerate() {
        let one: Expression = (0..n).map(|j| Expression::from(m[i * n + j])).sum();
        constraints.push(constraint!(one == 1.0));
        for j in (0..n).filter(|&j| length > pipelines[j].max_tokens) {
            constraints.push(constraint!(m[i * n + j] <= 0.0));
        }
    }
    for (j, scheme) in pipelines.iter().enumerate() {
        let sum: Expression =
            lengths.iter().enumerate().map(|(i, &length)| ms(scheme.sequence_s(length)) * m[i * n + j]).sum();
        constraints.push(constraint!(sum + ms(fill_s(scheme, lengths)) <= z));
    }
    let of_start = start.0.iter().enumerate().flat_map(|(j, items)| items.iter().map(move |&i| (i * n + j, 1.0)));
    let mut from: Vec<(Variable, f64)> = of_start.map(|(at, value)| (m[at], value)).collect();
    from.push((z, ms(start.1)));
    let program = Program { variables, objective: z.into(), constraints, start: from };
    match milp::minimise(program, &m, budget) {
        Ok(solved) => {
            let mut assigned = vec![Vec::new(); n];
            for (at, value) in solved.values.iter().enumerate().filter(|(_, value)| **value > 0.5) {
                debug_assert!(*value < 1.5);
                assigned[at % n].push(at / n);
            }
            ((assigned, solved.objective * 1e-3), solved.bound.map(|bound| bound * 1e-3))
        }
        // The start is a solution; a solver that finds none has no better one.
        Err(_) => (start, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use train::plan::PipelineShape;

    use super::*;

    fn pipelines() -> Vec<Scheme> {
        let scheme = |tp, pp, a, b, max_tokens| Scheme {
            shape: PipelineShape { tp, pp },
            a,
            b,
            c: 0.1,
            max_tokens,
            useful_tokens: 1,
            each_as_largest: false,
        };
        vec![scheme(8, 1, 2e-9, 1e-4, 40_000), scheme(4, 1, 4e-9, 2e-4, 8_000), scheme(2, 2, 4e-9, 2e-4, 9_000)]
    }

    fn brute_force(lengths: &[u64], pipelines: &[Scheme]) -> f64 {
        let mut best = f64::INFINITY;
        for mut code in 0..pipelines.len().pow(u32::try_from(lengths.len()).expect("few")) {
            let mut sums: Vec<f64> = pipelines.iter().map(|scheme| fill_s(scheme, lengths)).collect();
            for &length in lengths {
                let j = code % pipelines.len();
                code /= pipelines.len();
                sums[j] +=
                    if length > pipelines[j].max_tokens { f64::INFINITY } else { pipelines[j].sequence_s(length) };
            }
            best = best.min(sums.into_iter().fold(0.0, f64::max));
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn the_milp_is_the_best_of_all_and_never_above_the_greedy(lengths in prop::collection::vec(100_u64..20_000, 2..8)) {
            let pipelines = pipelines();
            let greedy = greedy(&lengths, &pipelines, &mut engine::random::stream(1, "test")).expect("everything fits");
            let (found, bound) = milp(&lengths, &pipelines, greedy.clone(), Budget::default());
            let best = brute_force(&lengths, &pipelines);
            prop_assert!((found.1 / best - 1.0).abs() < 1e-5, "{} {best}", found.1);
            // No sum of sequences is below the dual, whose pipelines also pay for micro-batches: these take nothing here.
            let free: Vec<Scheme> = pipelines.iter().map(|scheme| Scheme { c: 0.0, ..*scheme }).collect();
            prop_assert!(least_s(&lengths, &free) <= best * (1.0 + 1e-9));
            prop_assert!(greedy.1 >= best * (1.0 - 1e-9) && bound.expect("proved") <= best * (1.0 + 1e-6));
            let mut all: Vec<usize> = found.0.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_sequence_that_fits_nowhere_has_no_dispatch() {
        assert!(greedy(&[50_000], &pipelines(), &mut engine::random::stream(1, "test")).is_none());
    }
}
