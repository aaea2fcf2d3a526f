//! ByteScale (arXiv:2502.21231): hybrid data parallelism. Every sequence takes as many ranks as it needs, any integer, and
//! every rank has a list of micro-batches of its own length.
//!
//! A rank holds C tokens (`bucket_tokens`). A sequence of s tokens takes D = ceil(s / C) consecutive ranks, cut in zigzag
//! over a ring of them; shorter ones are packed to C on one rank by best fit. `naive` deals these units in order of arrival
//! (algorithm 1). `balance` takes them longest first and gives each to the ranks that are free first (algorithm 2 without a
//! pipeline: at any time all ranks are at about the same length class). With a pipeline every rank is a pipeline of its own, and any p
//! micro-batches that follow each other run on its p stages together: `balance` then gives each pipeline sequences of one length
//! class, and equal work (PP-balance). `wide` gives a sequence that would end last more ranks than hold it. All data and context ranks are one pool: the layout has `dp = 1` and `cp` ranks.
//!
//! Selective offload (equation 3): r = min(1, T(s) / copy(s)) of the activations of all but two layers stream to the host behind
//! forward and back behind backward, T one layer's forward, copy its activations' way to the host; a sequence then takes
//! D = ceil((2 + (1 − r)·(l − 2)) / l · s / C) ranks. The printed lower bound on r is left out.

use std::collections::{BTreeMap, BTreeSet};

use sim::lower::training::parts;
use sim::plan::{MicroBatch, Place, Placement, Step};
use sim::stage::Stage;
use sim::task::CopyKind;
use sim::{CostModel, Model, Op, Problem, memory};

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
    parameters: &[
        Parameter {
            name: "deal",
            unit: "word",
            default: "balance",
            allowed: Allowed::Words(&["balance", "wide", "naive"]),
            about: "longest first to the least loaded ranks (one length class per pipeline), the same with wider rings for what would end last, or in order of arrival",
        },
        Parameter {
            name: "offload",
            unit: "word",
            default: "off",
            allowed: Allowed::Words(&["off", "selective", "fixed"]),
            about: "activations of long sequences in host memory: none, as much as computation hides, or `offload_ratio`",
        },
        Parameter {
            name: "offload_ratio",
            unit: "ratio",
            default: "0.5",
            allowed: Allowed::Range(0.0, 1.0),
            about: "share of the activations of all but two layers under `offload = \"fixed\"`",
        },
    ],
};

/// What goes to some ranks together: a long sequence, or a pack of short ones.
struct Unit {
    sequences: Vec<(u32, u64)>,
    n_ranks: u32,
    /// Model operations on each of its ranks.
    work: f64,
    /// Thousandths of its activations that are offloaded.
    offload_permille: u32,
}

/// How much of a sequence is offloaded, and how many ranks it then takes.
struct Offload<'a> {
    problem: &'a Problem,
    cost: &'a dyn CostModel,
    /// `None` for none, a fixed ratio, or the largest that is hidden.
    rule: Rule,
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Off,
    Hidden,
    Fixed(f64),
}

impl Offload<'_> {
    /// Layers of a rank.
    fn n_layers(&self) -> f64 {
        let stages = sim::stage::stages(self.problem);
        f64::from(stages.iter().map(Stage::n_layers).max().unwrap_or(1))
    }

    /// Largest share of all but two layers that computation hides: equation 3.
    fn hidden(&self, tokens: u64) -> f64 {
        let mut alone = self.problem.clone();
        alone.layout.cp = 1;
        let placement = Placement { sequence: 0, from: 0, tokens, place: Place::Local(0) };
        let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
        let compute = parts(&alone, &micro_batch, self.cost).dense[0];
        let layer = Stage { n_dense: 1, ..Stage::default() }.recomputing(self.problem);
        let bytes = tokens * memory::activation_bytes_per_token(self.problem, &layer);
        let copy = self.cost.estimate(&Op::Copy { kind: CopyKind::DeviceToHost, bytes }).time.get();
        if copy > 0.0 { (compute / copy).min(1.0) } else { 1.0 }
    }

    fn ratio(&self, tokens: u64) -> f64 {
        match self.rule {
            Rule::Off => 0.0,
            Rule::Fixed(ratio) => ratio,
            Rule::Hidden => self.hidden(tokens),
        }
    }

    /// Thousandths of all layers' activations, and ranks of a sequence.
    fn of(&self, tokens: u64, capacity: u64) -> (u32, u32) {
        let layers = self.n_layers();
        let share = self.ratio(tokens) * (layers - 2.0).max(0.0) / layers;
        // Whole thousandths, downwards: a rank never holds more than it may.
        let permille = u32::try_from(hw::Bytes::from_f64((share * 1000.0).floor()).0).expect("at most a thousand");
        let left = u128::from(tokens) * u128::from(1000 - permille);
        let n = left.div_ceil(1000 * u128::from(capacity)).max(1);
        // More ranks than can be counted are more than there are.
        (permille, u32::try_from(n).unwrap_or(u32::MAX))
    }
}

impl Policy for ByteScale {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision, PlanError> {
        let layout = &problem.layout;
        if layout.dp > 1 {
            let all = layout.dp * layout.cp;
            let what = format!("all ranks are one pool: use `dp = 1` and `cp = {all}`");
            return Err(PlanError::Unsupported(what));
        }
        let rule = match context.word("offload", "off") {
            "selective" => Rule::Hidden,
            "fixed" => Rule::Fixed(context.number("offload_ratio", 0.5)),
            _ => Rule::Off,
        };
        let offload = Offload { problem, cost: context.cost, rule };
        let longest = problem.workload.lengths.iter().max().copied().unwrap_or(0);
        let (permille, on) = offload.of(longest, problem.bucket_tokens);
        // Less of a shorter sequence may be hidden, so it can take more ranks than the longest.
        let ranks = |tokens: u64| offload.of(tokens, problem.bucket_tokens).1;
        let distinct: BTreeSet<u64> = problem.workload.lengths.iter().copied().collect();
        let most = distinct.into_iter().map(|tokens| (ranks(tokens), tokens)).max();
        if let Some((needed, tokens)) = most.filter(|(needed, _)| *needed > layout.cp) {
            return Err(PlanError::Infeasible(format!(
                "a sequence of {tokens} tokens takes {needed} ranks of {} tokens, the pool has {}",
                problem.bucket_tokens, layout.cp
            )));
        }
        let balanced = context.word("deal", "balance") != "naive";
        let is_wide = context.word("deal", "balance") == "wide";
        let step = |index| {
            let sequences: Vec<(u32, u64)> = problem.workload.step(index).collect();
            let mut units = units(&problem.model, &sequences, problem.bucket_tokens, &offload);
            if is_wide {
                widen(&mut units, layout.cp);
            }
            if balanced {
                longest_first(&mut units);
            }
            let rule = match (balanced, layout.pp) {
                (false, _) => Deal::InOrder,
                (true, 1) => Deal::FirstFree,
                (true, _) => Deal::OneClass,
            };
            Step::of_groups(vec![deal(&units, layout.cp, rule)])
        };
        let decision = heuristic(CARD.name, problem, (0..problem.workload.n_steps()).map(step).collect());
        let words = if permille > 0 {
            format!(", {:.1} % of its activations offloaded", f64::from(permille) / 10.0)
        } else {
            String::new()
        };
        let notes = vec![format!("the longest sequence, {longest} tokens, is on {on} ranks{words}")];
        let mut figures: BTreeMap<String, f64> = [("ranks_of_longest".to_owned(), f64::from(on))].into();
        figures.insert("offload_hidden_ratio".to_owned(), offload.hidden(longest));
        figures.insert("offload_ratio".to_owned(), offload.ratio(longest));
        Ok(Decision { notes, figures, ..decision })
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
fn units(model: &Model, sequences: &[(u32, u64)], capacity: u64, offload: &Offload<'_>) -> Vec<Unit> {
    let (long, short): (Vec<Sequence>, Vec<Sequence>) =
        sequences.iter().copied().partition(|(_, tokens)| *tokens > capacity);
    let work = |sequences: &[(u32, u64)]| sequences.iter().map(|(_, tokens)| flops(model, *tokens)).sum::<f64>();
    let mut units: Vec<Unit> = long
        .into_iter()
        .map(|sequence| {
            let (offload_permille, n_ranks) = offload.of(sequence.1, capacity);
            let work = work(&[sequence]) / f64::from(n_ranks);
            Unit { sequences: vec![sequence], n_ranks, work, offload_permille }
        })
        .collect();
    let sizes: Vec<u64> = short.iter().map(|(_, tokens)| *tokens).collect();
    for bin in pack::best_fit_decreasing(&sizes, capacity) {
        let sequences: Vec<(u32, u64)> = bin.into_iter().map(|item| short[item]).collect();
        // Packs are too short to hide anything; a fixed ratio is for studies and applies to them as well.
        let tokens = sequences.iter().map(|(_, tokens)| tokens).sum();
        let offload_permille = if matches!(offload.rule, Rule::Fixed(_)) { offload.of(tokens, capacity).0 } else { 0 };
        units.push(Unit { n_ranks: 1, work: work(&sequences), sequences, offload_permille });
    }
    units.sort_by_key(|unit| unit.sequences.iter().map(|(id, _)| *id).min());
    units
}

/// Rings that would take longer than the mean rank get as many ranks as bring them down to it: not in the paper, which takes the least
/// ranks that hold a sequence.
fn widen(units: &mut [Unit], n_ranks: u32) {
    let whole = |unit: &Unit| unit.work * f64::from(unit.n_ranks);
    let mean = units.iter().map(whole).sum::<f64>() / f64::from(n_ranks);
    for unit in units.iter_mut().filter(|unit| unit.sequences.len() == 1 && unit.work > mean) {
        let all = whole(unit);
        let wanted = u32::try_from(hw::Bytes::from_f64((all / mean).ceil()).0).unwrap_or(n_ranks);
        unit.n_ranks = wanted.clamp(unit.n_ranks, n_ranks);
        unit.work = all / f64::from(unit.n_ranks);
    }
}

/// How units go to ranks.
#[derive(Clone, Copy, PartialEq)]
enum Deal {
    /// In turn.
    InOrder,
    /// To the ranks that are free first.
    FirstFree,
    /// Rings as above; then every rank one length class, up to the mean load.
    OneClass,
}

/// Micro-batches of all ranks: the n-th one holds the n-th unit of every rank. A ring begins when all its ranks are free.
fn deal(units: &[Unit], n_ranks: u32, rule: Deal) -> Vec<MicroBatch> {
    let n = n_ranks as usize;
    let mean = units.iter().map(|unit| unit.work * f64::from(unit.n_ranks)).sum::<f64>() / f64::from(n_ranks);
    let (mut load, mut next) = (vec![0.0_f64; n], vec![0_usize; n]);
    let mut micro_batches: Vec<MicroBatch> = Vec::new();
    let mut cursor = 0;
    for unit in units {
        let width = unit.n_ranks as usize;
        // The load of a ring is that of its slowest rank.
        let free = |first: usize| load[first..first + width].iter().copied().fold(0.0, f64::max);
        let first_free = || {
            // Rings of one width lie side by side and leave no gaps between them.
            let windows = (0..=n - width).step_by(width);
            windows.min_by(|&a, &b| free(a).total_cmp(&free(b))).expect("a sequence fits the ranks")
        };
        let first = match rule {
            Deal::InOrder if cursor + width > n => 0,
            Deal::InOrder => cursor,
            // The rank that has got this class so far goes on, while it is nearer to the mean with the unit than without.
            Deal::OneClass if width == 1 => {
                (cursor..n).find(|&rank| load[rank] + unit.work / 2.0 <= mean).unwrap_or_else(first_free)
            }
            Deal::FirstFree | Deal::OneClass => first_free(),
        };
        cursor = match rule {
            Deal::OneClass if width > 1 => 0,
            Deal::OneClass => first,
            _ => first + width,
        };
        let begins = free(first);
        let place = next[first..first + width].iter().copied().max().unwrap_or(0);
        load[first..first + width].fill(begins + unit.work);
        next[first..first + width].fill(place + 1);
        if micro_batches.len() <= place {
            micro_batches.resize_with(place + 1, MicroBatch::default);
        }
        put(&mut micro_batches[place], unit, first, n);
    }
    micro_batches
}

/// Adds a unit to a micro-batch, from a rank on.
fn put(micro_batch: &mut MicroBatch, unit: &Unit, first: usize, n_ranks: usize) {
    if unit.offload_permille > 0 {
        micro_batch.offload_permille.resize(n_ranks, 0);
        micro_batch.offload_permille[first..first + unit.n_ranks as usize].fill(unit.offload_permille);
    }
    let first = u32::try_from(first).expect("ranks fit u32");
    let place = if unit.n_ranks == 1 { Place::Local(first) } else { Place::Ring { first, count: unit.n_ranks } };
    let placements = unit.sequences.iter().map(|&(sequence, tokens)| Placement { sequence, from: 0, tokens, place });
    micro_batch.sequences.extend(placements);
}

#[cfg(test)]
mod tests;
