//! ByteScale (arXiv:2502.21231): hybrid data parallelism. Every sequence takes as many ranks as it needs, any integer, and
//! every rank has a list of micro-batches of its own length.
//!
//! A rank holds C tokens (`bucket_tokens`). A sequence of s tokens takes D = ceil(s / C) consecutive ranks, cut in zigzag
//! over a ring of them; shorter ones are packed to C on one rank by best fit. `naive` deals these units in order of arrival
//! (algorithm 1). `balance` takes them longest first and gives each to the ranks that are free first (algorithm 2 without a
//! pipeline: at any time all ranks are at about the same length class). All data and context ranks are one pool: the layout has
//! `dp = 1` and `cp` ranks. Offload ratios per sequence (equation 3) are not decided here.

use sim::plan::{MicroBatch, Place, Placement, Step};
use sim::{Model, Problem};

use super::heuristic;
use crate::dacp::flops;
use crate::pack;
use crate::policy::{Allowed, Card, Decision, Parameter, PlanContext, PlanError, Policy};

/// The policy.
pub struct ByteScale;

const CARD: Card = Card {
    name: "bytescale",
    about: "hybrid data parallelism: a ring of any number of ranks per sequence, micro-batch lists of different length",
    source: "ByteScale, arXiv:2502.21231",
    method: "greedy, longest first to the ranks that are free first",
    parameters: &[Parameter {
        name: "deal",
        unit: "word",
        default: "balance",
        allowed: Allowed::Words(&["balance", "naive"]),
        about: "longest first to the least loaded ranks, or in order of arrival",
    }],
};

/// What goes to some ranks together: a long sequence, or a pack of short ones.
struct Unit {
    sequences: Vec<(u32, u64)>,
    n_ranks: u32,
    /// Model operations on each of its ranks.
    work: f64,
}

impl Policy for ByteScale {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision, PlanError> {
        let layout = &problem.layout;
        if layout.dp > 1 || layout.pp > 1 {
            let all = layout.dp * layout.cp;
            let what = format!("all ranks are one pool: use `dp = 1`, `cp = {all}` and no pipeline");
            return Err(PlanError::Unsupported(what));
        }
        let longest = problem.workload.lengths.iter().max().copied().unwrap_or(0);
        if longest.div_ceil(problem.bucket_tokens) > u64::from(layout.cp) {
            return Err(PlanError::Infeasible(format!(
                "the longest sequence has {longest} tokens, {} ranks of {} hold fewer",
                layout.cp, problem.bucket_tokens
            )));
        }
        let balanced = context.word("deal", "balance") == "balance";
        let step = |index| {
            let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
            let mut units = units(&problem.model, &sequences, problem.bucket_tokens);
            if balanced {
                longest_first(&mut units);
            }
            Step::of_groups(vec![deal(&units, layout.cp, balanced)])
        };
        Ok(heuristic(CARD.name, problem, (0..problem.workload.n_steps()).map(step).collect()))
    }
}

/// Widest rings first, in each class the most work first: a ring waits for the slowest of its ranks, so rings come while loads are
/// still alike, and packs even out the end.
fn longest_first(units: &mut [Unit]) {
    units.sort_by(|a, b| {
        let wide = b.n_ranks.cmp(&a.n_ranks);
        wide.then(b.work.total_cmp(&a.work)).then(a.sequences[0].0.cmp(&b.sequences[0].0))
    });
}

/// A sequence: id and tokens.
type Sequence = (u32, u64);

/// Long sequences and packs, in order of their first sequence.
fn units(model: &Model, sequences: &[(u32, u64)], capacity: u64) -> Vec<Unit> {
    let (long, short): (Vec<Sequence>, Vec<Sequence>) =
        sequences.iter().copied().partition(|(_, tokens)| *tokens > capacity);
    let work = |sequences: &[(u32, u64)]| sequences.iter().map(|(_, tokens)| flops(model, *tokens)).sum::<f64>();
    let mut units: Vec<Unit> = long
        .into_iter()
        .map(|sequence| {
            let n_ranks = u32::try_from(sequence.1.div_ceil(capacity)).expect("checked against the ranks");
            Unit { sequences: vec![sequence], n_ranks, work: work(&[sequence]) / f64::from(n_ranks) }
        })
        .collect();
    let sizes: Vec<u64> = short.iter().map(|(_, tokens)| *tokens).collect();
    for bin in pack::best_fit_decreasing(&sizes, capacity) {
        let sequences: Vec<(u32, u64)> = bin.into_iter().map(|item| short[item]).collect();
        units.push(Unit { n_ranks: 1, work: work(&sequences), sequences });
    }
    units.sort_by_key(|unit| unit.sequences.iter().map(|(id, _)| *id).min());
    units
}

/// Micro-batches of all ranks: the n-th one holds the n-th unit of every rank. A ring begins when all its ranks are free.
fn deal(units: &[Unit], n_ranks: u32, balanced: bool) -> Vec<MicroBatch> {
    let n = n_ranks as usize;
    let (mut load, mut next) = (vec![0.0_f64; n], vec![0_usize; n]);
    let mut micro_batches: Vec<MicroBatch> = Vec::new();
    let mut cursor = 0;
    for unit in units {
        let width = unit.n_ranks as usize;
        // The load of a ring is that of its slowest rank.
        let free = |first: usize| load[first..first + width].iter().copied().fold(0.0, f64::max);
        let first = if balanced {
            // Rings of one width lie side by side and leave no gaps between them.
            let windows = (0..=n - width).step_by(width);
            windows.min_by(|&a, &b| free(a).total_cmp(&free(b))).expect("a sequence fits the ranks")
        } else {
            if cursor + width > n {
                cursor = 0;
            }
            cursor
        };
        cursor = first + width;
        let begins = free(first);
        let place = next[first..first + width].iter().copied().max().unwrap_or(0);
        load[first..first + width].fill(begins + unit.work);
        next[first..first + width].fill(place + 1);
        if micro_batches.len() <= place {
            micro_batches.resize_with(place + 1, MicroBatch::default);
        }
        let first = u32::try_from(first).expect("ranks fit u32");
        let of = if width == 1 { Place::Local(first) } else { Place::Ring { first, count: unit.n_ranks } };
        micro_batches[place].sequences.extend(unit.sequences.iter().map(|&(sequence, tokens)| Placement {
            sequence,
            from: 0,
            tokens,
            place: of,
        }));
    }
    micro_batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_sequence_are_any_integer() {
        // The paper's example at 8K per rank: 312K takes 39 ranks, 768K takes 96, and 32 of 128 are left.
        let model = sim::model::embedded("llama-2-7b").expect("embedded");
        for (kilo_tokens, ranks) in [(312, 39), (768, 96), (9, 2), (8, 1)] {
            let units = units(&model, &[(0, kilo_tokens * 1024)], 8 * 1024);
            assert_eq!(units[0].n_ranks, ranks);
        }
        let sequences: Vec<(u32, u64)> =
            [(0, 768 * 1024)].into_iter().chain((1..33).map(|id| (id, 8 * 1024))).collect();
        let units = units(&model, &sequences, 8 * 1024);
        let found = deal(&units, 128, false);
        assert_eq!(found.len(), 1, "one ring of 96 and 32 single ranks side by side");
        assert_eq!(found[0].sequences.len(), 33);
    }

    #[test]
    fn balanced_ranks_are_busy_alike() {
        let model = sim::model::embedded("llama-2-7b").expect("embedded");
        // One, two and four ranks.
        let lengths = (0..2000_u64).map(|k| [200, 8193, 24_577][(k % 3) as usize] + (k * k * 7919) % 7_900);
        let sequences: Vec<(u32, u64)> = (0..2000).zip(lengths).collect();
        let spread = |balanced: bool| {
            let mut units = units(&model, &sequences, 8192);
            if balanced {
                longest_first(&mut units);
            }
            let mut busy = [0.0; 16];
            for (micro_batch, _) in deal(&units, 16, balanced).iter().zip(0..) {
                for placement in &micro_batch.sequences {
                    let (first, count) = placement.place.ring(16).unwrap_or_else(|| match placement.place {
                        Place::Local(rank) => (rank, 1),
                        _ => unreachable!("a ring is a ring"),
                    });
                    for rank in first..first + count {
                        busy[rank as usize] += flops(&model, placement.tokens) / f64::from(count);
                    }
                }
            }
            let (least, most) = busy.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), &x| (a.min(x), b.max(x)));
            most / least
        };
        assert!(spread(true) < 1.1, "{}", spread(true));
        assert!(spread(true) < spread(false));
    }
}
