//! ByteScale (arXiv:2502.21231): hybrid data parallelism. Every sequence takes as many ranks as it needs, any integer, and
//! every rank has a list of micro-batches of its own length.
//!
//! A rank holds C tokens (`bucket_tokens`). A sequence of s tokens takes D = ceil(s / C) consecutive ranks, cut in zigzag
//! over a ring of them; shorter ones are packed to C on one rank by best fit. `naive` deals these units in order of arrival
//! (algorithm 1). `balance` takes them longest first and gives each to the ranks that are free first (algorithm 2 without a
//! pipeline: at any time all ranks are at about the same length class). With a pipeline every rank is a pipeline of its own, and any p
//! micro-batches that follow each other run on its p stages together: `balance` then gives each pipeline sequences of one length
//! class, and equal work (PP-balance). `timed` is not in the paper: widths, places and lists by the cost model's times (`timed.rs`).
//! All data and context ranks are one pool: the layout has `dp = 1` and `cp` ranks. Offload: `offload.rs`.
//!
//! Objective: end of the slowest rank by the cost model's times (`span.rs`), seconds summed over steps. Bound: work and longest chain of
//! `train::bound`.

use std::collections::{BTreeMap, BTreeSet};

use engine::Model;
use train::bound::Floors;
use train::lower::training::RankTimes;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use super::heuristic;
use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::dacp::flops;
use crate::train::pack;
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};
use offload::{Offload, Rule};

mod offload;
mod span;
mod timed;
mod windows;

pub(super) const CARD: Card = Card {
    name: "bytescale",
    about: "hybrid data parallelism: a ring of any number of ranks per sequence, micro-batch lists of different length",
    source: "ByteScale, arXiv:2502.21231",
    method: "greedy, longest first to the ranks that are free first",
    parameters: &[
        Parameter::word(
            "deal",
            &["balance", "timed", "naive"],
            "longest first to the least loaded ranks (one length class per pipeline), ring widths and lists by the cost model's times, or in order of arrival",
        ),
        Parameter::word(
            "offload",
            &["off", "selective", "fixed"],
            "activations of long sequences in host memory: none, as much as computation hides, or `offload_ratio`",
        ),
        Parameter::number(
            ("offload_ratio", "ratio"),
            ("0.5", 0.0, 1.0),
            "share of the activations of all but two layers under `offload = \"fixed\"`",
        )
        .under("offload", &["fixed"]),
    ],
};

/// What goes to some ranks together: a long sequence, or a pack of short ones.
#[derive(Clone)]
struct Unit {
    sequences: Vec<(u32, u64)>,
    n_ranks: u32,
    /// Model operations on each of its ranks; seconds under `timed`.
    work: f64,
    /// Thousandths of its activations that are offloaded.
    offload_permille: u32,
}

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    let layout = &problem.layout;
    if layout.dp > 1 {
        let all = layout.dp * layout.cp;
        let what = format!("all ranks are one pool: use `dp = 1` and `cp = {all}`");
        return Err(PlanError::Unsupported(what));
    }
    let rules = rules(problem, context)?;
    let ways: Vec<Offload<'_>> = rules.into_iter().map(|rule| Offload { problem, cost: context.cost, rule }).collect();
    let fitting: Vec<&Offload<'_>> = ways.iter().filter(|offload| too_long(offload).is_none()).collect();
    let Some(&offload) = fitting.last() else {
        let why = ways.last().and_then(too_long).unwrap_or_default();
        return Err(PlanError::Infeasible(why));
    };
    let deal = Deal::of(context.word("deal", "balance"), layout.pp);
    let mut times = RankTimes::new(problem, context.cost);
    let mut floors = Floors::new(problem, problem.bucket_tokens, context.cost);
    let (mut steps, mut objective, mut bound) = (Vec::new(), 0.0, 0.0);
    let mut n_kept = 0;
    for index in 0..problem.workload.n_steps() {
        let sequences: Vec<Sequence> = problem.workload.step(index).collect();
        let dealt: Vec<(Vec<MicroBatch>, f64)> =
            fitting.iter().map(|offload| dealt(&sequences, deal, offload, &mut times)).collect();
        let (way, (micro_batches, span_s)) = earliest(dealt);
        n_kept += usize::from(way + 1 < fitting.len());
        let lengths: Vec<u64> = sequences.iter().map(|(_, tokens)| *tokens).collect();
        let floor = floors.of_step(index, &lengths);
        (objective, bound) = (objective + span_s, bound + floor.work_s.max(floor.chain_s));
        steps.push(Step::of_groups(vec![micro_batches]));
    }
    let (notes, figures) = said(offload, &steps, n_kept);
    let decision = heuristic(CARD.name, problem, steps)
        .judged(Aim::Seconds, objective)
        .bounded(Some(Bound::plain(bound)), Status::Heuristic);
    Ok(decision.said(notes, figures))
}

/// Ways to offload that a plan may choose from, what was asked for last. Selective offload takes fewer ranks for a sequence, which others
/// may not need: a step in which that ends later offloads nothing.
fn rules(problem: &Problem, context: &PlanContext<'_>) -> Result<Vec<Rule>, PlanError> {
    let rules = match context.word("offload", "off") {
        "selective" => vec![Rule::Off, Rule::Hidden],
        "fixed" => vec![Rule::Fixed(context.number("offload_ratio", 0.5))],
        _ => vec![Rule::Off],
    };
    if rules != [Rule::Off] && problem.execution.offload > 0.0 {
        let what = "`offload` of the policy says what goes to the host: leave `training.offload_ratio` out";
        return Err(PlanError::Unsupported(what.to_owned()));
    }
    Ok(rules)
}

/// Why the pool is too small for a sequence, if it is. Less of a shorter sequence may be hidden, so it can take more ranks than the longest.
fn too_long(offload: &Offload<'_>) -> Option<String> {
    let (problem, n_ranks) = (offload.problem, offload.problem.layout.cp);
    let distinct: BTreeSet<u64> = problem.workload.lengths.iter().copied().collect();
    let most = distinct.into_iter().map(|tokens| (offload.of(tokens, problem.bucket_tokens).1, tokens)).max();
    let (needed, tokens) = most.filter(|(needed, _)| *needed > n_ranks)?;
    Some(format!(
        "a sequence of {tokens} tokens takes {needed} ranks of {} tokens, the pool has {n_ranks}",
        problem.bucket_tokens
    ))
}

/// The plan whose slowest rank ends first, the first of equal ones, with its position.
fn earliest(dealt: Vec<(Vec<MicroBatch>, f64)>) -> (usize, (Vec<MicroBatch>, f64)) {
    let all = dealt.into_iter().enumerate();
    all.min_by(|a, b| a.1.1.total_cmp(&b.1.1)).expect("at least one way is tried")
}

/// What was decided, in words and figures; `n_kept` steps offload less than was asked for.
fn said(offload: &Offload<'_>, steps: &[Step], n_kept: usize) -> (Vec<String>, BTreeMap<String, f64>) {
    let longest = offload.problem.workload.lengths.iter().max().copied().unwrap_or(0);
    let (on, permille) = (ranks_of(steps, longest), permille_of(steps, longest));
    let words = if permille > 0 {
        format!(", {:.1} % of its activations offloaded", f64::from(permille) / 10.0)
    } else {
        String::new()
    };
    let mut notes = vec![format!("the longest sequence, {longest} tokens, is on {on} ranks{words}")];
    if n_kept > 0 {
        notes.push(format!("{n_kept} of {} steps end earlier with nothing offloaded, and do so", steps.len()));
    }
    let is_taken = offload.rule != Rule::Hidden || permille > 0;
    let ratio = if is_taken { offload.ratio(longest) } else { 0.0 };
    let figures = [
        ("ranks_of_longest", f64::from(on)),
        ("offload_hidden_ratio", offload.hidden(longest)),
        ("offload_ratio", ratio),
    ];
    (notes, figures.into_iter().map(|(key, figure)| (key.to_owned(), figure)).collect())
}

/// Thousandths of the activations of a sequence of so many tokens that are offloaded.
fn permille_of(steps: &[Step], tokens: u64) -> u32 {
    let micro_batches = steps.iter().flat_map(|step| step.groups.iter().flatten());
    let holds = |micro_batch: &&MicroBatch| micro_batch.sequences.iter().any(|placement| placement.tokens == tokens);
    micro_batches.filter(holds).flat_map(|of| of.offload_permille.iter().copied()).max().unwrap_or(0)
}

/// Most ranks that share a sequence of so many tokens.
fn ranks_of(steps: &[Step], tokens: u64) -> u32 {
    let micro_batches = steps.iter().flat_map(|step| step.groups.iter().flatten());
    let of_length = micro_batches.flat_map(|of| &of.sequences).filter(|placement| placement.tokens == tokens);
    let ranks = |placement: &Placement| match placement.place {
        Place::Ring { count, .. } => count,
        _ => 1,
    };
    of_length.map(ranks).max().unwrap_or(1)
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
fn units(model: &Model, sequences: &[Sequence], capacity: u64, offload: &Offload<'_>) -> Vec<Unit> {
    let (long, short): (Vec<Sequence>, Vec<Sequence>) =
        sequences.iter().copied().partition(|(_, tokens)| *tokens > capacity);
    let mut units: Vec<Unit> = long
        .into_iter()
        .map(|sequence| {
            let (offload_permille, n_ranks) = offload.of(sequence.1, capacity);
            let work = flops(model, sequence.1) / f64::from(n_ranks);
            Unit { sequences: vec![sequence], n_ranks, work, offload_permille }
        })
        .collect();
    units.extend(packs(&short, capacity, offload));
    units.sort_by_key(|unit| unit.sequences.iter().map(|(id, _)| *id).min());
    units
}

/// Short sequences packed by best fit, each pack for one rank.
fn packs(short: &[Sequence], capacity: u64, offload: &Offload<'_>) -> Vec<Unit> {
    let sizes: Vec<u64> = short.iter().map(|(_, tokens)| *tokens).collect();
    let pack = |bin: Vec<usize>| {
        let sequences: Vec<Sequence> = bin.into_iter().map(|item| short[item]).collect();
        // Packs are too short to hide anything; a fixed ratio is for studies and applies to them as well.
        let tokens = sequences.iter().map(|(_, tokens)| tokens).sum();
        let offload_permille = if matches!(offload.rule, Rule::Fixed(_)) { offload.of(tokens, capacity).0 } else { 0 };
        let work = sequences.iter().map(|(_, tokens)| flops(&offload.problem.model, *tokens)).sum();
        Unit { n_ranks: 1, work, sequences, offload_permille }
    };
    pack::best_fit_decreasing(&sizes, capacity).into_iter().map(pack).collect()
}

/// Micro-batches of a step, and when the slowest rank ends by the cost model's times.
fn dealt(
    sequences: &[Sequence],
    deal: Deal,
    offload: &Offload<'_>,
    times: &mut RankTimes<'_>,
) -> (Vec<MicroBatch>, f64) {
    let problem = offload.problem;
    let mut units = units(&problem.model, sequences, problem.bucket_tokens, offload);
    if deal != Deal::InOrder {
        longest_first(&mut units);
    }
    let mut priced = |micro_batches: Vec<MicroBatch>| {
        let span_s = span::of(&micro_batches, problem, times);
        (micro_batches, span_s)
    };
    let earlier = |a: (Vec<MicroBatch>, f64), b: (Vec<MicroBatch>, f64)| if b.1 < a.1 { b } else { a };
    // The paper does not say on which of the free ranks a ring lies.
    let mut of_rule = |deal| {
        let anywhere = priced(placed(&units, problem, deal, Rings::Anywhere));
        if deal == Deal::InOrder {
            return anywhere;
        }
        earlier(anywhere, priced(placed(&units, problem, deal, Rings::SideBySide)))
    };
    let dealt = of_rule(deal);
    if deal != Deal::Timed {
        return dealt;
    }
    // Never worse than the paper's.
    let dealt = earlier(dealt, of_rule(Deal::of("balance", problem.layout.pp)));
    let timed = timed::deal(sequences, problem.bucket_tokens, offload, times);
    let timed_s = span::of(&timed, problem, times);
    earlier((timed, timed_s), dealt)
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
    /// By the cost model's times.
    Timed,
}

/// Where rings begin.
#[derive(Clone, Copy, PartialEq)]
enum Rings {
    /// On any rank.
    Anywhere,
    /// At multiples of their width.
    SideBySide,
}

impl Deal {
    /// The parameter `deal` on a pipeline of so many stages.
    fn of(word: &str, pp: u32) -> Self {
        match (word, pp) {
            ("naive", _) => Self::InOrder,
            ("timed", _) => Self::Timed,
            (_, 1) => Self::FirstFree,
            _ => Self::OneClass,
        }
    }
}

/// Micro-batches of all ranks: the n-th one holds the n-th unit of every rank. A ring begins when all its ranks are free.
fn placed(units: &[Unit], problem: &Problem, deal: Deal, rings: Rings) -> Vec<MicroBatch> {
    let n = problem.layout.cp as usize;
    let per_node = (problem.cluster.domain() / problem.layout.tp).max(1) as usize;
    let mean = units.iter().map(|unit| unit.work * f64::from(unit.n_ranks)).sum::<f64>() / f64::from(problem.layout.cp);
    // Times that a rank's longest unit counts more: the paper looks at its work alone.
    let ahead = if deal == Deal::Timed { span::ahead(problem) } else { 0.0 };
    let (mut load, mut longest) = (vec![0.0_f64; n], vec![0.0_f64; n]);
    let mut lists = Lists::new(problem.layout.cp);
    let mut cursor = 0;
    for unit in units {
        let width = unit.n_ranks as usize;
        let first_free = || match rings {
            Rings::Anywhere => windows::first_free(&load, width, per_node).0,
            Rings::SideBySide => windows::side_by_side(&load, width),
        };
        let first = match deal {
            Deal::InOrder if cursor + width > n => 0,
            Deal::InOrder => cursor,
            // The rank that has got this class so far goes on, while it is nearer to the mean with the unit than without.
            Deal::OneClass | Deal::Timed if width == 1 => {
                (cursor..n).find(|&rank| load[rank] + unit.work / 2.0 <= mean).unwrap_or_else(first_free)
            }
            _ => first_free(),
        };
        cursor = match deal {
            Deal::OneClass | Deal::Timed if width > 1 => 0,
            Deal::OneClass | Deal::Timed => first,
            _ => first + width,
        };
        // The load of a ring is that of its slowest rank.
        let begins = load[first..first + width].iter().copied().fold(0.0, f64::max);
        for rank in first..first + width {
            load[rank] = begins + unit.work + ahead * (unit.work - longest[rank]).max(0.0);
            longest[rank] = longest[rank].max(unit.work);
        }
        lists.put(unit, first);
    }
    lists.micro_batches
}

/// Micro-batch lists of all ranks, as far as they are made.
struct Lists {
    micro_batches: Vec<MicroBatch>,
    /// Position of each rank's next unit.
    next: Vec<usize>,
}

impl Lists {
    fn new(n_ranks: u32) -> Self {
        Self { micro_batches: Vec::new(), next: vec![0; n_ranks as usize] }
    }

    /// Puts a unit behind everything of its ranks, from `first` on.
    fn put(&mut self, unit: &Unit, first: usize) {
        let ranks = first..first + unit.n_ranks as usize;
        let at = self.next[ranks.clone()].iter().copied().max().unwrap_or(0);
        self.next[ranks.clone()].fill(at + 1);
        if self.micro_batches.len() <= at {
            self.micro_batches.resize_with(at + 1, MicroBatch::default);
        }
        let micro_batch = &mut self.micro_batches[at];
        if unit.offload_permille > 0 {
            micro_batch.offload_permille.resize(self.next.len(), 0);
            micro_batch.offload_permille[ranks].fill(unit.offload_permille);
        }
        let first = u32::try_from(first).expect("ranks fit u32");
        let place = if unit.n_ranks == 1 { Place::Local(first) } else { Place::Ring { first, count: unit.n_ranks } };
        let placements =
            unit.sequences.iter().map(|&(sequence, tokens)| Placement { sequence, from: 0, tokens, place });
        micro_batch.sequences.extend(placements);
    }
}

#[cfg(test)]
mod tests;
