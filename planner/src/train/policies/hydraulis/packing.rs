//! Which sequences of a pipeline share a micro-batch (Hydraulis, second stage of the assignment).
//!
//! For v micro-batches: min over packings of the largest Σ cost(s), every micro-batch within the token limit; then the v with the shortest
//! pipeline. Longest first to the cheapest micro-batch with room, then moves and swaps from the most expensive one;
//! small cases are searched to the end (branch and bound), which a test holds equal to the MILP.

use super::schemes::Scheme;
use crate::train::pack;

/// Numbers of micro-batches that are tried from the least on.
const COUNTS_TRIED: usize = 16;
/// Sequences up to which a packing is searched to the end.
const EXACT_MAX: usize = 9;

/// Micro-batches as positions, and the pipeline's predicted seconds.
pub(super) type Packing = (Vec<Vec<usize>>, f64);

/// The best packing over numbers of micro-batches; `None` when some sequence does not fit.
pub(super) fn fine(lengths: &[u64], scheme: &Scheme) -> Option<Packing> {
    if lengths.is_empty() {
        return Some((Vec::new(), 0.0));
    }
    if lengths.iter().any(|length| *length > scheme.max_tokens) {
        return None;
    }
    let costs: Vec<f64> = lengths.iter().map(|&length| scheme.sequence_s(length)).collect();
    let tokens: u64 = lengths.iter().sum();
    let count = |tokens: u64| usize::try_from(tokens).expect("few micro-batches");
    let least = count(tokens.div_ceil(scheme.max_tokens)).max(1);
    let most = count(tokens / scheme.useful_tokens.max(1)).clamp(least, lengths.len());
    let mut best: Option<Packing> = None;
    let mut n_tried = 0;
    for v in least..=lengths.len() {
        let Some((bins, _)) = min_max(&costs, lengths, v, scheme.max_tokens) else { continue };
        let seconds = seconds(&bins, &costs, scheme);
        if best.as_ref().is_none_or(|(_, least)| seconds < *least) {
            best = Some((bins, seconds));
        }
        n_tried += 1;
        if n_tried == COUNTS_TRIED || v >= most {
            break;
        }
    }
    best
}

/// Best fit into micro-batches of a fixed length.
pub(super) fn fixed(lengths: &[u64], scheme: &Scheme, tokens: u64) -> Option<Packing> {
    if lengths.iter().any(|length| *length > scheme.max_tokens) {
        return None;
    }
    let bins = pack::best_fit_decreasing(lengths, tokens.min(scheme.max_tokens));
    let costs: Vec<f64> = lengths.iter().map(|&length| scheme.sequence_s(length)).collect();
    let seconds = seconds(&bins, &costs, scheme);
    Some((bins, seconds))
}

fn seconds(bins: &[Vec<usize>], costs: &[f64], scheme: &Scheme) -> f64 {
    let of_bins: Vec<f64> = bins.iter().map(|bin| bin.iter().map(|&item| costs[item]).sum()).collect();
    scheme.pipeline_s(&of_bins)
}

/// At most `n` bins with the least largest cost within the token limit: exact when small, else longest first with local search.
pub(super) fn min_max(costs: &[f64], tokens: &[u64], n: usize, limit: u64) -> Option<(Vec<Vec<usize>>, f64)> {
    let start = improved(costs, tokens, longest_first(costs, tokens, n, limit), limit);
    if costs.len() <= EXACT_MAX {
        return exact(costs, tokens, n, limit, start);
    }
    start
}

fn largest(costs: &[f64], bins: &[Vec<usize>]) -> f64 {
    bins.iter().map(|bin| bin.iter().map(|&item| costs[item]).sum::<f64>()).fold(0.0, f64::max)
}

fn by_cost(costs: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_unstable_by(|&a, &b| costs[b].total_cmp(&costs[a]).then(a.cmp(&b)));
    order
}

fn longest_first(costs: &[f64], tokens: &[u64], n: usize, limit: u64) -> Option<Vec<Vec<usize>>> {
    let (mut bins, mut sums, mut held) = (vec![Vec::new(); n], vec![0.0; n], vec![0; n]);
    for item in by_cost(costs) {
        let open = (0..n).filter(|&bin| held[bin] + tokens[item] <= limit);
        let bin = open.min_by(|&a, &b| f64::total_cmp(&sums[a], &sums[b]))?;
        sums[bin] += costs[item];
        held[bin] += tokens[item];
        bins[bin].push(item);
    }
    bins.retain(|bin| !bin.is_empty());
    Some(bins)
}

/// Moves an item out of the most expensive bin, or swaps it, as long as the two bins' larger cost falls.
fn improved(
    costs: &[f64],
    tokens: &[u64],
    start: Option<Vec<Vec<usize>>>,
    limit: u64,
) -> Option<(Vec<Vec<usize>>, f64)> {
    let mut bins = start?;
    let cost = |bin: &[usize]| bin.iter().map(|&item| costs[item]).sum::<f64>();
    let held = |bin: &[usize]| bin.iter().map(|&item| tokens[item]).sum::<u64>();
    loop {
        let top = (0..bins.len()).max_by(|&a, &b| cost(&bins[a]).total_cmp(&cost(&bins[b])))?;
        let before = cost(&bins[top]);
        let mut best: Option<(f64, usize, Option<usize>, usize)> = None;
        for other in (0..bins.len()).filter(|&other| other != top) {
            let (other_cost, other_held) = (cost(&bins[other]), held(&bins[other]));
            for (at, &item) in bins[top].iter().enumerate() {
                let swaps = bins[other].iter().enumerate().map(|(at, &back)| (Some(at), costs[back], tokens[back]));
                for (back, back_cost, back_tokens) in swaps.chain([(None, 0.0, 0)]) {
                    let (down, up) = (before - costs[item] + back_cost, other_cost + costs[item] - back_cost);
                    let fits = other_held + tokens[item] <= limit + back_tokens
                        && held(&bins[top]) + back_tokens <= limit + tokens[item];
                    let after = down.max(up);
                    if fits && after < before - 1e-12 && best.as_ref().is_none_or(|(least, ..)| after < *least) {
                        best = Some((after, at, back, other));
                    }
                }
            }
        }
        let Some((_, at, back, other)) = best else { break };
        let item = bins[top].remove(at);
        if let Some(back) = back {
            let back = bins[other].remove(back);
            bins[top].push(back);
        }
        bins[other].push(item);
    }
    bins.retain(|bin| !bin.is_empty());
    let most = largest(costs, &bins);
    Some((bins, most))
}

/// Branch and bound over items, most expensive first; empty bins are alike.
fn exact(
    costs: &[f64],
    tokens: &[u64],
    n: usize,
    limit: u64,
    start: Option<(Vec<Vec<usize>>, f64)>,
) -> Option<(Vec<Vec<usize>>, f64)> {
    let mut search = Search { costs, tokens, limit, order: by_cost(costs), best: start };
    let mut bins = vec![(0.0, 0, Vec::new()); n];
    search.extend(0, &mut bins);
    search.best
}

/// Cost, tokens and items of a bin.
type Bin = (f64, u64, Vec<usize>);

struct Search<'a> {
    costs: &'a [f64],
    tokens: &'a [u64],
    limit: u64,
    order: Vec<usize>,
    best: Option<(Vec<Vec<usize>>, f64)>,
}

impl Search<'_> {
    fn extend(&mut self, at: usize, bins: &mut Vec<Bin>) {
        let most = bins.iter().map(|bin| bin.0).fold(0.0, f64::max);
        if self.best.as_ref().is_some_and(|(_, least)| most >= *least - 1e-12) {
            return;
        }
        let Some(&item) = self.order.get(at) else {
            let found = bins.iter().map(|bin| bin.2.clone()).filter(|bin| !bin.is_empty()).collect();
            self.best = Some((found, most));
            return;
        };
        for index in 0..bins.len() {
            if bins[index].1 + self.tokens[item] <= self.limit {
                bins[index].0 += self.costs[item];
                bins[index].1 += self.tokens[item];
                bins[index].2.push(item);
                self.extend(at + 1, bins);
                bins[index].2.pop();
                bins[index].0 -= self.costs[item];
                bins[index].1 -= self.tokens[item];
            }
            if bins[index].2.is_empty() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use good_lp::{Expression, ProblemVariables, constraint, variable};
    use proptest::prelude::*;

    use super::*;
    use crate::milp::{self, Budget, Program};

    /// min Z s.t. Σ_k o\[i,k\] = 1, Σ_i o\[i,k\]·cost_i <= Z, Σ_i o\[i,k\]·tokens_i <= limit.
    fn by_milp(costs: &[f64], tokens: &[u64], n: usize, limit: u64) -> Option<f64> {
        let mut variables = ProblemVariables::new();
        let o = variables.add_vector(variable().binary(), costs.len() * n);
        let z = variables.add(variable().min(0.0));
        let mut constraints = Vec::new();
        for i in 0..costs.len() {
            constraints.push(constraint!((0..n).map(|k| Expression::from(o[i * n + k])).sum::<Expression>() == 1.0));
        }
        for k in 0..n {
            let sum = |of: &dyn Fn(usize) -> f64| (0..costs.len()).map(|i| of(i) * o[i * n + k]).sum::<Expression>();
            constraints.push(constraint!(sum(&|i| costs[i]) <= z));
            constraints.push(constraint!(sum(&|i| hw::real(tokens[i])) <= hw::real(limit)));
        }
        let program = Program { variables, objective: z.into(), constraints, start: Vec::new() };
        milp::minimise(program, &o, Budget::default()).ok().map(|solved| solved.objective)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn small_packings_equal_the_milp(
            tokens in prop::collection::vec(1_u64..100, 2..8),
            n in 1_usize..5,
            limit in 60_u64..250,
        ) {
            let costs: Vec<f64> = tokens.iter().map(|&s| hw::real(s * s) / 50.0 + 1.0).collect();
            let found = min_max(&costs, &tokens, n, limit);
            let expected = by_milp(&costs, &tokens, n, limit);
            prop_assert_eq!(found.is_some(), expected.is_some());
            if let (Some((bins, most)), Some(expected)) = (found, expected) {
                prop_assert!((most / expected - 1.0).abs() < 1e-5, "{most} {expected}");
                prop_assert!(bins.len() <= n);
                prop_assert!(bins.iter().all(|bin| bin.iter().map(|&item| tokens[item]).sum::<u64>() <= limit));
            }
        }

        #[test]
        fn large_packings_keep_every_item_and_the_limit(tokens in prop::collection::vec(1_u64..100, 20..60)) {
            let costs: Vec<f64> = tokens.iter().map(|&s| hw::real(s * s)).collect();
            let n = usize::try_from(tokens.iter().sum::<u64>().div_ceil(150)).expect("few") + 1;
            if let Some((bins, most)) = min_max(&costs, &tokens, n, 200) {
                let mut all: Vec<usize> = bins.iter().flatten().copied().collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..tokens.len()).collect::<Vec<_>>());
                let mean = costs.iter().sum::<f64>() / hw::real(n as u64);
                let top = costs.iter().copied().fold(0.0, f64::max);
                prop_assert!(most >= mean.max(top) - 1e-9 && most <= mean + top, "{most} {mean} {top}");
            }
        }
    }
}
