//! Which strategies are worth having: a dynamic programme over the length histogram (Hydraulis, offline).
//!
//! The sequences of a step with lengths in (x, y] go to d copies of a scheme k, the shorter ones to the remaining ranks:
//!
//! W_k(x, y) = Σ count(s)·cost_k(s) + (pp_k − 1)·cost_k(longest s in the span)
//! t\[n\]\[y\] = min( t\[n − 1\]\[y\], min over k, x, d of max( t\[n − d·g_k\]\[x\], W_k(x, y)/d ) ),  g_k = tp·pp ranks, limit_k ≥ y
//!
//! Every y gives the best strategy for steps whose longest sequence has at most y tokens. A sequence's cost has its share of a full
//! micro-batch's c, so that schemes with a high fixed cost are not taken for cheap.

use super::schemes::Scheme;

/// So many copies of a scheme (by index).
pub(super) type Copies = (usize, u32);

/// A strategy: copies of schemes, for the longest sequences first.
pub(super) type Strategy = Vec<Copies>;

/// Spans of lengths: upper ends in tokens, and sequences of a step in each with their lengths.
pub(super) struct Histogram {
    pub(super) uppers: Vec<u64>,
    /// Per span, (length, sequences per step).
    pub(super) counts: Vec<Vec<(u64, f64)>>,
}

impl Histogram {
    /// `n_spans` spans of equal width over the lengths of `n_steps` steps.
    pub(super) fn of(lengths: &[u64], n_steps: usize, n_spans: u64) -> Self {
        let longest = lengths.iter().max().copied().unwrap_or(1);
        let width = longest.div_ceil(n_spans).max(1);
        let uppers: Vec<u64> = (1..=longest.div_ceil(width)).map(|span| (span * width).min(longest)).collect();
        let mut counts = vec![Vec::new(); uppers.len()];
        let share = 1.0 / hw::real(n_steps.max(1) as u64);
        for &length in lengths {
            let span = usize::try_from(length.div_ceil(width).max(1) - 1).expect("few spans");
            counts[span].push((length, share));
        }
        Self { uppers, counts }
    }
}

fn cost(scheme: &Scheme, tokens: u64) -> f64 {
    scheme.sequence_s(tokens) + scheme.c * hw::real(tokens) / hw::real(scheme.max_tokens)
}

/// Sums of W without its pipeline term, by scheme and span, and the longest length of each span.
struct Work {
    /// `sum[k][y]`: all spans up to y.
    sum: Vec<Vec<f64>>,
    longest: Vec<u64>,
}

impl Work {
    fn of(schemes: &[Scheme], histogram: &Histogram) -> Self {
        let sum = |scheme: &Scheme| {
            let of_span =
                |span: &Vec<(u64, f64)>| span.iter().map(|&(length, n)| n * cost(scheme, length)).sum::<f64>();
            let running = histogram.counts.iter().scan(0.0, |sum, span| {
                *sum += of_span(span);
                Some(*sum)
            });
            std::iter::once(0.0).chain(running).collect()
        };
        let longest = |span: &Vec<(u64, f64)>| span.iter().map(|(length, _)| *length).max().unwrap_or(0);
        Self { sum: schemes.iter().map(sum).collect(), longest: histogram.counts.iter().map(longest).collect() }
    }

    /// W over spans x..y for one copy, with the longest sequence's pipeline fill.
    fn of_spans(&self, k: usize, scheme: &Scheme, x: usize, y: usize) -> f64 {
        let longest = self.longest[x..y].iter().max().copied().unwrap_or(0);
        self.sum[k][y] - self.sum[k][x] + (f64::from(scheme.shape.pp) - 1.0) * cost(scheme, longest)
    }
}

/// What a cell of the table chose.
#[derive(Clone, Copy)]
enum Choice {
    Nothing,
    FewerRanks,
    Copies { scheme: usize, copies: u32, from: usize },
}

/// The best strategy for every longest length, with its predicted seconds; duplicates left out.
pub(super) fn propose(schemes: &[Scheme], histogram: &Histogram, n_ranks: u32) -> Vec<(Strategy, f64)> {
    let step = schemes.iter().map(|scheme| scheme.shape.n_ranks()).fold(n_ranks, gcd).max(1);
    let (n_cells, n_spans) = ((n_ranks / step) as usize, histogram.uppers.len());
    let work = Work::of(schemes, histogram);
    let mut time = vec![vec![f64::INFINITY; n_spans + 1]; n_cells + 1];
    let mut choice = vec![vec![Choice::Nothing; n_spans + 1]; n_cells + 1];
    for row in &mut time {
        row[0] = 0.0;
    }
    for n in 1..=n_cells {
        for y in 1..=n_spans {
            (time[n][y], choice[n][y]) = (time[n - 1][y], Choice::FewerRanks);
            for (k, scheme) in schemes
                .iter()
                .enumerate()
                .filter(|(_, scheme)| scheme.max_tokens >= work.longest[..y].iter().max().copied().unwrap_or(0))
            {
                let width = (scheme.shape.n_ranks() / step) as usize;
                for x in 0..y {
                    let whole = work.of_spans(k, scheme, x, y);
                    for copies in 1..=n / width {
                        let rest = time[n - copies * width][x];
                        let found = rest.max(whole / hw::real(copies as u64));
                        if found < time[n][y] {
                            time[n][y] = found;
                            let copies = u32::try_from(copies).expect("few copies");
                            choice[n][y] = Choice::Copies { scheme: k, copies, from: x };
                        }
                        // More copies only take ranks from the rest.
                        if rest >= found {
                            break;
                        }
                    }
                }
            }
        }
    }
    let mut found: Vec<(Strategy, f64)> = Vec::new();
    for (y, &seconds) in time[n_cells].iter().enumerate().skip(1).filter(|(_, seconds)| seconds.is_finite()) {
        let strategy = trace(schemes, &choice, step, n_cells, y);
        match found.iter_mut().find(|(known, _)| *known == strategy) {
            Some((_, known)) => *known = seconds,
            None if strategy.is_empty() => {}
            None => found.push((strategy, seconds)),
        }
    }
    found
}

fn trace(schemes: &[Scheme], choice: &[Vec<Choice>], step: u32, mut n: usize, mut y: usize) -> Strategy {
    let mut strategy: Strategy = Vec::new();
    loop {
        match choice[n][y] {
            Choice::Nothing => return strategy,
            Choice::FewerRanks => n -= 1,
            Choice::Copies { scheme, copies, from } => {
                match strategy.iter_mut().find(|(known, _)| *known == scheme) {
                    Some((_, n)) => *n += copies,
                    None => strategy.push((scheme, copies)),
                }
                n -= (copies * schemes[scheme].shape.n_ranks() / step) as usize;
                y = from;
            }
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use train::plan::PipelineShape;

    use super::*;

    /// The best maximum over every cut of the spans into runs and every scheme and number of copies of each run.
    fn brute_force(schemes: &[Scheme], histogram: &Histogram, n_ranks: u32) -> f64 {
        let (work, n) = (Work::of(schemes, histogram), histogram.uppers.len());
        let mut best = f64::INFINITY;
        for cuts in 0..1_u32 << (n - 1) {
            let mut ends: Vec<usize> = (1..n).filter(|gap| cuts & (1 << (gap - 1)) != 0).collect();
            ends.push(n);
            let n_choices = schemes.len() * n_ranks as usize;
            for mut code in 0..n_choices.pow(u32::try_from(ends.len()).expect("few")) {
                let (mut ranks, mut slowest, mut begin) = (0, 0.0_f64, 0);
                for &end in &ends {
                    let (k, copies) = (code % schemes.len(), code / schemes.len() % n_ranks as usize + 1);
                    code /= n_choices;
                    ranks += schemes[k].shape.n_ranks() * u32::try_from(copies).expect("few");
                    let fits = schemes[k].max_tokens >= work.longest[..end].iter().max().copied().unwrap_or(0);
                    let time = work.of_spans(k, &schemes[k], begin, end) / hw::real(copies as u64);
                    slowest = slowest.max(if fits { time } else { f64::INFINITY });
                    begin = end;
                }
                if ranks <= n_ranks {
                    best = best.min(slowest);
                }
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn no_division_of_ranks_and_lengths_is_better(
            lengths in prop::collection::vec(1_u64..4000, 3..9),
            costs in prop::collection::vec((1.0_f64..9.0, 1_u32..4, 1_u32..3, 1500_u64..6000), 3),
            n_ranks in 3_u32..6,
        ) {
            let scheme = |&(cost, tp, pp, max_tokens): &(f64, u32, u32, u64)| Scheme {
                shape: PipelineShape { tp, pp },
                a: cost * 1e-7 / f64::from(tp),
                b: cost * 1e-4 / f64::from(tp * pp),
                c: 0.01,
                max_tokens,
                useful_tokens: 1,
                each_as_largest: false,
            };
            let schemes: Vec<Scheme> = costs.iter().map(scheme).collect();
            let histogram = Histogram::of(&lengths, 1, 3);
            let best = brute_force(&schemes, &histogram, n_ranks);
            let found = propose(&schemes, &histogram, n_ranks);
            // The last proposal is for the longest sequence of all, unless it repeats an earlier one.
            let whole = found.iter().map(|(_, time)| *time).fold(0.0, f64::max);
            if best.is_finite() {
                prop_assert!((whole / best - 1.0).abs() < 1e-9, "{whole} {best}");
            }
            for (strategy, _) in &found {
                let ranks: u32 = strategy.iter().map(|&(k, n)| schemes[k].shape.n_ranks() * n).sum();
                prop_assert!(ranks <= n_ranks);
            }
        }
    }
}
