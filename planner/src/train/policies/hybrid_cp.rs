//! Hybrid context parallelism of Megatron-LM: `BalancedCPScheduler` of `megatron/core/pipeline_parallel/hybrid_cp_schedule.py` @ d98e8a64dd
//! (`--hybrid-context-parallel`).
//!
//! A rank holds C tokens (`bucket_tokens`, there `max_seqlen_per_dp_cp_rank`). A sequence of s tokens asks for the least power of two of at
//! least s / C ranks, and counts as s² / ranks on each of them. Sequences are taken longest first, in rounds:
//!
//! 1. They are cut into as many buckets as there are widths, of about equal work.
//! 2. The next sequence of the first bucket that has a place goes to free ranks, else to the least loaded group of its width.
//! 3. Once narrower sequences have come, a round ends as soon as no rank is more than 5 % below the busiest one.
//! 4. The last sequence of the busiest group goes back while that evens out the ranks.
//! 5. Ranks that are still free widen the narrowest group, its width doubled each time.
//!
//! A group computes its sequences one after another, each a micro-batch of its own. All ranks wait for each other between two rounds.
//! All data and context ranks are one pool: `dp = 1`. It is a power of two, since widening runs out of ranks in others. The source knows
//! no pipeline and counts no seconds, so there is none here and no objective.

use std::collections::VecDeque;

use train::layout::ContextExchange;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use super::{all_fit, heuristic};
use crate::proof::Decision;
use crate::train::policy::{Card, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "hybrid-cp",
    about: "Megatron's hybrid context parallelism: rounds of groups whose degrees are powers of two, balanced by length²/degree",
    source: "NVIDIA/Megatron-LM @ d98e8a64dd, megatron/core/pipeline_parallel/hybrid_cp_schedule.py (BalancedCPScheduler)",
    method: "greedy, longest first, in rounds that end when ranks are balanced",
    parameters: &[],
};

/// Share of the busiest rank's work that another one may lack in a balanced round.
const SLACK: f64 = 0.05;
/// How far a bucket may be above its part of the work, as a ratio.
const BUCKET_MOST: f64 = 1.1;

/// A sequence: id and tokens.
type Sequence = (u32, u64);

pub(super) fn plan(problem: &Problem, _context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    if let Some(why) = unsupported(problem) {
        return Err(PlanError::Unsupported(why));
    }
    all_fit(problem)?;
    let pool = Pool { n_ranks: problem.layout.cp, capacity: problem.bucket_tokens };
    let planned: Vec<Vec<Round>> =
        (0..problem.workload.n_steps()).map(|step| pool.rounds(problem.workload.step(step).collect())).collect();
    let steps = planned.iter().map(|rounds| Step::of_groups(vec![micro_batches(rounds)])).collect();
    let first: Vec<String> = planned.iter().take(1).flatten().map(Round::name).collect();
    let notes = vec![format!("groups of each round of the first step: {}", first.join(" "))];
    let n_rounds = hw::real(planned.iter().map(|rounds| rounds.len() as u64).sum());
    let figures = [
        ("rounds".to_owned(), n_rounds / hw::real(planned.len().max(1) as u64)),
        ("work_imbalance_ratio".to_owned(), imbalance(&planned, problem.layout.cp)),
    ];
    Ok(heuristic(CARD.name, problem, steps).said(notes, figures.into()))
}

/// Why the source does not run such a problem, if it does not.
fn unsupported(problem: &Problem) -> Option<String> {
    let layout = &problem.layout;
    if layout.pp > 1 {
        return Some("hybrid context parallelism knows no pipeline: use `pp = 1`".to_owned());
    }
    let all = layout.dp * layout.cp;
    if layout.dp > 1 {
        return Some(format!("all ranks are one pool: use `dp = 1` and `cp = {all}`"));
    }
    if !layout.cp.is_power_of_two() {
        let (below, above) = (layout.cp.next_power_of_two() / 2, layout.cp.next_power_of_two());
        return Some(format!("groups are powers of two, and so is the pool: use `cp = {below}` or `cp = {above}`"));
    }
    let heads = problem.model.n_heads / u64::from(layout.tp);
    if layout.exchange == ContextExchange::Ulysses && !heads.is_multiple_of(u64::from(layout.cp)) {
        return Some(format!(
            "a group may take all {} ranks, and {heads} heads do not divide over them: use `exchange = \"ring\"`",
            layout.cp
        ));
    }
    None
}

/// Work of the busiest rank over the mean, round by round.
fn imbalance(planned: &[Vec<Round>], n_ranks: u32) -> f64 {
    let rounds = || planned.iter().flatten();
    let busiest: f64 = rounds().map(|round| round.groups.iter().map(|group| group.work).fold(0.0, f64::max)).sum();
    let total: f64 = rounds().flat_map(|round| &round.groups).map(|group| group.work * f64::from(group.width)).sum();
    busiest * f64::from(n_ranks) / total
}

/// Ranks and the tokens that each holds.
struct Pool {
    n_ranks: u32,
    capacity: u64,
}

/// Consecutive ranks, and the sequences that they compute one after another.
#[derive(Debug, PartialEq)]
struct Group {
    width: u32,
    sequences: Vec<Sequence>,
    /// Work of each of its ranks.
    work: f64,
}

/// Groups that run side by side without waiting for each other; they stand on the ranks in this order.
#[derive(Debug, Default, PartialEq)]
struct Round {
    groups: Vec<Group>,
}

impl Pool {
    /// Ranks that a sequence asks for.
    fn width(&self, tokens: u64) -> u32 {
        u32::try_from(tokens.div_ceil(self.capacity).next_power_of_two()).expect("a group holds every sequence")
    }

    /// Work of a sequence on each of its ranks, tokens².
    fn work(&self, tokens: u64) -> f64 {
        hw::real(tokens * tokens) / f64::from(self.width(tokens))
    }

    /// All rounds of a step.
    fn rounds(&self, mut sequences: Vec<Sequence>) -> Vec<Round> {
        sequences.sort_by_key(|(_, tokens)| std::cmp::Reverse(*tokens));
        let mut rounds = Vec::new();
        while !sequences.is_empty() {
            let mut buckets = self.buckets(&sequences);
            let mut round = self.filled(&mut buckets);
            let n_left = sequences.len();
            sequences = buckets.into_iter().flatten().collect();
            sequences.extend(self.trimmed(&mut round));
            assert!(sequences.len() < n_left, "a round takes sequences");
            self.widen(&mut round);
            rounds.push(round);
        }
        rounds
    }

    /// Consecutive sequences of about equal work, at most as many parts as there are widths.
    fn buckets(&self, sequences: &[Sequence]) -> VecDeque<VecDeque<Sequence>> {
        let widths: std::collections::BTreeSet<u32> = sequences.iter().map(|(_, tokens)| self.width(*tokens)).collect();
        let total: f64 = sequences.iter().map(|(_, tokens)| self.work(*tokens)).sum();
        let target = total / hw::real(widths.len() as u64);
        let mut buckets = VecDeque::new();
        let (mut bucket, mut work) = (VecDeque::new(), 0.0);
        for (index, &(id, tokens)) in sequences.iter().enumerate() {
            let next = work + self.work(tokens);
            // The source counts closed buckets twice here, as closed and as no longer wanted.
            let is_last_chance = sequences.len() - index + 2 * buckets.len() <= widths.len();
            if !bucket.is_empty() && (next > target * BUCKET_MOST || is_last_chance) {
                buckets.push_back(std::mem::take(&mut bucket));
                work = 0.0;
            }
            bucket.push_back((id, tokens));
            work += self.work(tokens);
        }
        buckets.push_back(bucket);
        buckets
    }

    /// A round of what has a place, taken out of the buckets.
    fn filled(&self, buckets: &mut VecDeque<VecDeque<Sequence>>) -> Round {
        let mut round = Round::default();
        let mut widest = None;
        let mut is_narrower = false;
        while let Some((index, at)) = self.next(buckets, &round) {
            let (id, tokens) = buckets[index].pop_front().expect("it has been seen");
            let width = self.width(tokens);
            if at == round.groups.len() {
                round.groups.push(Group { width, sequences: Vec::new(), work: 0.0 });
            }
            round.groups[at].sequences.push((id, tokens));
            round.groups[at].work += self.work(tokens);
            while buckets.front().is_some_and(VecDeque::is_empty) {
                buckets.pop_front();
            }
            is_narrower |= width < *widest.get_or_insert(width);
            if is_narrower && self.is_balanced(&round) {
                break;
            }
        }
        round
    }

    /// The first bucket whose next sequence has a place, and the group that takes it: a new one on free ranks, else the least loaded one.
    fn next(&self, buckets: &VecDeque<VecDeque<Sequence>>, round: &Round) -> Option<(usize, usize)> {
        buckets.iter().enumerate().find_map(|(index, bucket)| {
            let width = self.width(bucket.front()?.1);
            let alike = round.groups.iter().enumerate().filter(|(_, group)| group.width == width);
            let least_loaded = alike.min_by(|(_, a), (_, b)| a.work.total_cmp(&b.work)).map(|(at, _)| at);
            let fresh = (self.n_free(round) >= width).then_some(round.groups.len());
            fresh.or(least_loaded).map(|at| (index, at))
        })
    }

    fn n_free(&self, round: &Round) -> u32 {
        self.n_ranks - round.groups.iter().map(|group| group.width).sum::<u32>()
    }

    /// Most and least work of a rank.
    fn range(&self, round: &Round) -> (f64, f64) {
        let works = || round.groups.iter().map(|group| group.work);
        let free = if self.n_free(round) > 0 { 0.0 } else { f64::INFINITY };
        (works().fold(0.0, f64::max), works().fold(free, f64::min))
    }

    fn is_balanced(&self, round: &Round) -> bool {
        let (most, least) = self.range(round);
        most - least <= SLACK * most
    }

    /// Takes the last sequence off the busiest group as long as that evens out the ranks; what was taken.
    fn trimmed(&self, round: &mut Round) -> Vec<Sequence> {
        let mut taken = Vec::new();
        while self.n_free(round) == 0 && !self.is_balanced(round) {
            let (most, least) = self.range(round);
            let at = round.groups.iter().position(|group| group.work >= most).expect("some group is the busiest");
            let &[_, .., sequence] = &round.groups[at].sequences[..] else { break };
            round.groups[at].work -= self.work(sequence.1);
            let (most_then, least_then) = self.range(round);
            if most_then - least_then >= most - least {
                round.groups[at].work = most;
                break;
            }
            round.groups[at].sequences.pop();
            taken.push(sequence);
        }
        taken
    }

    /// Doubles the narrowest group, the first of equal ones, until no rank is free.
    fn widen(&self, round: &mut Round) {
        while self.n_free(round) > 0 {
            let narrowest = round.groups.iter_mut().min_by_key(|group| group.width).expect("a round has a group");
            narrowest.work /= 2.0;
            narrowest.width *= 2;
        }
    }
}

impl Round {
    /// `<4,2,1x2>`: degrees of the groups with how often they follow each other.
    fn name(&self) -> String {
        let widths: Vec<u32> = self.groups.iter().map(|group| group.width).collect();
        let run = |run: &[u32]| if run.len() == 1 { run[0].to_string() } else { format!("{}x{}", run[0], run.len()) };
        format!("<{}>", widths.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>().join(","))
    }

    /// The n-th micro-batch holds the n-th sequence of every group.
    fn micro_batches(&self) -> Vec<MicroBatch> {
        let n = self.groups.iter().map(|group| group.sequences.len()).max().unwrap_or(0);
        let mut micro_batches = vec![MicroBatch::default(); n];
        let mut first = 0;
        for group in &self.groups {
            let place = match group.width {
                1 => Place::Local(first),
                count => Place::Ring { first, count },
            };
            for (micro_batch, &(sequence, tokens)) in micro_batches.iter_mut().zip(&group.sequences) {
                micro_batch.sequences.push(Placement { sequence, from: 0, tokens, place });
            }
            first += group.width;
        }
        micro_batches
    }
}

/// Micro-batches of a step; all ranks wait for each other before a new round.
fn micro_batches(rounds: &[Round]) -> Vec<MicroBatch> {
    let mut all: Vec<MicroBatch> = Vec::new();
    for round in rounds {
        let is_first = all.is_empty();
        let mut of_round = round.micro_batches();
        of_round[0].barrier = !is_first;
        all.extend(of_round);
    }
    all
}

#[cfg(test)]
mod tests;
