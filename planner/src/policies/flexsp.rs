//! FlexSP (arXiv:2412.01523): sequence-parallel groups of mixed degree. Long sequences need wide groups, short ones are faster in
//! narrow ones inside a node; every micro-batch divides the ranks into groups of powers of two that end together.
//!
//! 1. Sequences are sorted and cut into M consecutive micro-batches with the least largest token sum ("blaster"); M from the least that
//!    fits on, a few are tried.
//! 2. Lengths are put into Q buckets, each counted at its upper length, with the least total excess (dynamic programme).
//! 3. For a micro-batch every division of the ranks into powers of two is tried; sequences go, longest first, to the group that
//!    would end first and has room. The paper solves this by MILP; all homogeneous divisions are among those tried, so the
//!    result is never worse than the best of them (`groups = "same"`, the paper's BatchAda).
//!
//! Time of a sequence of s tokens on d ranks: one layer forward and backward of s/d tokens, attention of all its keys over 1/d of
//! the heads, and four all-to-alls (Ulysses). All data and context ranks are one pool: `dp = 1`, `exchange = "ulysses"`.

use std::collections::BTreeMap;

use sim::layout::{ContextExchange, Position};
use sim::lower::training::parts;
use sim::plan::{MicroBatch, Place, Placement, Step};
use sim::task::Collective;
use sim::{CostModel, Op, Plan, Problem};

use crate::policy::{Allowed, Card, Decision, Parameter, PlanContext, PlanError, Policy};

/// The policy.
pub struct FlexSp;

const CARD: Card = Card {
    name: "flexsp",
    about: "every micro-batch divides the ranks into sequence-parallel groups of mixed degree that end together",
    source: "FlexSP, arXiv:2412.01523",
    method: "dynamic programmes for micro-batches and buckets, every division into powers of two with longest first",
    parameters: &[
        Parameter {
            name: "groups",
            unit: "word",
            default: "mixed",
            allowed: Allowed::Words(&["mixed", "same"]),
            about: "groups of mixed degree, or one degree per micro-batch",
        },
        Parameter {
            name: "buckets",
            unit: "buckets",
            default: "16",
            allowed: Allowed::Range(1.0, 1000.0),
            about: "lengths that are told apart when times are estimated",
        },
    ],
};

/// How many numbers of micro-batches are tried from the least on.
const MICRO_BATCHES_TRIED: usize = 3;

/// A sequence: id and tokens.
type Sequence = (u32, u64);

impl Policy for FlexSp {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision, PlanError> {
        let layout = &problem.layout;
        if layout.dp > 1 || layout.pp > 1 || layout.exchange != ContextExchange::Ulysses || !layout.cp.is_power_of_two()
        {
            let all = (layout.dp * layout.cp).next_power_of_two();
            let what =
                format!("all ranks are one pool: use `dp = 1`, `cp = {all}`, `exchange = \"ulysses\"`, no pipeline");
            return Err(PlanError::Unsupported(what));
        }
        // All-to-all gives every rank heads of its own.
        let heads = problem.model.n_heads / u64::from(layout.tp);
        let widest = layout.cp.min(1 << heads.trailing_zeros());
        let planner = Planner {
            problem,
            cost: context.cost,
            divisions: divisions(layout.cp, widest, context.word("groups", "mixed") == "same"),
            n_buckets: usize::try_from(hw::Bytes::from_f64(context.number("buckets", 16.0)).0).expect("few buckets"),
        };
        let (mut steps, mut objective) = (Vec::new(), 0.0);
        for index in 0..problem.workload.n_steps() {
            let (step, seconds) = planner.step(problem.workload.step(index).collect())?;
            steps.push(step);
            objective += seconds;
        }
        let plan = Plan { steps, ..super::heuristic(CARD.name, problem, Vec::new()).plan };
        Ok(Decision { objective: Some(objective), ..Decision::heuristic(plan) })
    }
}

struct Planner<'a> {
    problem: &'a Problem,
    cost: &'a dyn CostModel,
    /// Degrees of the groups, widest first; they add up to all ranks.
    divisions: Vec<Vec<u32>>,
    n_buckets: usize,
}

/// Seconds of one layer by (bucket length, degree).
type Times = BTreeMap<(u64, u32), f64>;

impl Planner<'_> {
    /// The best of a few numbers of micro-batches.
    fn step(&self, mut sequences: Vec<Sequence>) -> Result<(Step, f64), PlanError> {
        sequences.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let lengths: Vec<u64> = sequences.iter().map(|(_, tokens)| *tokens).collect();
        let uppers = buckets(&lengths, self.n_buckets);
        let times = self.times(&uppers);
        let capacity = self.problem.bucket_tokens * u64::from(self.problem.layout.cp);
        let least = usize::try_from(lengths.iter().sum::<u64>().div_ceil(capacity)).expect("few micro-batches").max(1);
        let mut best: Option<(Vec<MicroBatch>, f64)> = None;
        let mut n_tried = 0;
        for n in least..=sequences.len() {
            let planned: Option<Vec<(MicroBatch, f64)>> =
                cut(&lengths, n).into_iter().map(|part| self.micro_batch(&sequences[part], &uppers, &times)).collect();
            let Some(planned) = planned else { continue };
            let seconds: f64 = planned.iter().map(|(_, seconds)| seconds).sum();
            if best.as_ref().is_none_or(|(_, least)| seconds < *least) {
                best = Some((planned.into_iter().map(|(micro_batch, _)| micro_batch).collect(), seconds));
            }
            n_tried += 1;
            if n_tried == MICRO_BATCHES_TRIED {
                break;
            }
        }
        let (micro_batches, seconds) = best.ok_or_else(|| {
            PlanError::Infeasible(format!("the longest sequence has {} tokens, all ranks hold {capacity}", lengths[0]))
        })?;
        Ok((Step::of_groups(vec![micro_batches]), seconds))
    }

    fn times(&self, uppers: &[u64]) -> Times {
        let mut lengths = uppers.to_vec();
        lengths.dedup();
        let widest = self.divisions.iter().flatten().max().copied().unwrap_or(1);
        let degrees = (0..=widest.ilog2()).map(|power| 1_u32 << power);
        let mut times = Times::new();
        for degree in degrees {
            let mut problem = self.problem.clone();
            problem.layout.cp = degree;
            for &tokens in &lengths {
                times.insert((tokens, degree), self.layer_s(&problem, tokens, degree));
            }
        }
        times
    }

    /// One layer, forward and backward, of a sequence on `degree` ranks.
    fn layer_s(&self, problem: &Problem, tokens: u64, degree: u32) -> f64 {
        let placement = Placement { sequence: 0, from: 0, tokens, place: Place::Sharded };
        let micro_batch = MicroBatch { sequences: vec![placement], ..MicroBatch::default() };
        let compute: f64 = parts(problem, &micro_batch, self.cost).dense.iter().sum();
        if degree == 1 {
            return compute;
        }
        // Query, key, value and output of this rank's tokens, forward and backward.
        let (model, rows) = (&problem.model, tokens.div_ceil(u64::from(degree)) * problem.dtype.bytes());
        let bytes = rows * (2 * model.n_heads + 2 * model.n_kv_heads.max(u64::from(degree))) * model.head_dim;
        let members: Vec<hw::Rank> =
            (0..degree).map(|cp| problem.layout.rank(Position { cp, ..Position::default() })).collect();
        let op = Op::Collective { kind: Collective::AllToAll, bytes, shape: problem.cluster.shape_of(&members) };
        compute + 2.0 * self.cost.estimate(&op).time.get()
    }

    /// The division whose slowest group ends first; `None` when some sequence has no room in any.
    fn micro_batch(&self, sequences: &[Sequence], uppers: &[u64], times: &Times) -> Option<(MicroBatch, f64)> {
        let mut best: Option<(Vec<usize>, &[u32], f64)> = None;
        let total: u64 = sequences.iter().map(|(_, tokens)| tokens).sum();
        if total > self.problem.bucket_tokens * u64::from(self.problem.layout.cp) {
            return None;
        }
        let upper: Vec<u64> = sequences.iter().map(|(_, tokens)| upper_of(uppers, *tokens)).collect();
        for division in &self.divisions {
            let limit = best.as_ref().map_or(f64::INFINITY, |(_, _, seconds)| *seconds);
            if let Some((assigned, seconds)) = self.assign(sequences, &upper, division, times, limit) {
                best = Some((assigned, division, seconds));
            }
        }
        let (assigned, division, seconds) = best?;
        let starts: Vec<u32> = division.iter().scan(0, |sum, &d| Some(std::mem::replace(sum, *sum + d))).collect();
        let place = |group: usize| match division[group] {
            1 => Place::Local(starts[group]),
            count => Place::Ring { first: starts[group], count },
        };
        let placements = sequences.iter().zip(assigned).map(|(&(sequence, tokens), group)| Placement {
            sequence,
            from: 0,
            tokens,
            place: place(group),
        });
        Some((MicroBatch { sequences: placements.collect(), ..MicroBatch::default() }, seconds))
    }

    /// Longest first to the group that would end first and has room; gives up at `limit`.
    fn assign(
        &self,
        sequences: &[Sequence],
        upper: &[u64],
        division: &[u32],
        times: &Times,
        limit: f64,
    ) -> Option<(Vec<usize>, f64)> {
        let capacity = self.problem.bucket_tokens;
        let (mut ends, mut room) = (vec![0.0; division.len()], Vec::with_capacity(division.len()));
        room.extend(division.iter().map(|&degree| capacity * u64::from(degree)));
        let mut assigned = Vec::with_capacity(sequences.len());
        let mut slowest: f64 = 0.0;
        for (&(_, tokens), &upper) in sequences.iter().zip(upper) {
            let end = |group: usize| ends[group] + times[&(upper, division[group])];
            let open = (0..division.len()).filter(|&group| room[group] >= tokens);
            let group = open.min_by(|&a, &b| end(a).total_cmp(&end(b)))?;
            ends[group] = end(group);
            room[group] -= tokens;
            slowest = slowest.max(ends[group]);
            if slowest >= limit {
                return None;
            }
            assigned.push(group);
        }
        Some((assigned, slowest))
    }
}

/// Divisions of `n` (a power of two) into powers of two up to `widest`, widest first; only equal parts when `same`.
fn divisions(n: u32, widest: u32, same: bool) -> Vec<Vec<u32>> {
    fn extend(left: u32, widest: u32, parts: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
        if left == 0 {
            found.push(parts.clone());
            return;
        }
        let mut part = widest.min(1 << left.ilog2());
        while part > 0 {
            parts.push(part);
            extend(left - part, part, parts, found);
            parts.pop();
            part /= 2;
        }
    }
    if same {
        return (0..=widest.ilog2()).map(|power| vec![1 << power; (n >> power) as usize]).collect();
    }
    let mut found = Vec::new();
    extend(n, widest, &mut Vec::new(), &mut found);
    found
}

/// Cuts sizes into at most `n` consecutive parts with the least largest sum: the least bound that a greedy cut keeps.
fn cut(sizes: &[u64], n: usize) -> Vec<std::ops::Range<usize>> {
    let greedy = |bound: u64| {
        let (mut parts, mut begin, mut sum) = (Vec::new(), 0, 0);
        for (index, &size) in sizes.iter().enumerate() {
            if sum + size > bound && index > begin {
                parts.push(begin..index);
                (begin, sum) = (index, 0);
            }
            sum += size;
        }
        parts.push(begin..sizes.len());
        parts
    };
    let (mut low, mut high) = (sizes.iter().max().copied().unwrap_or(0), sizes.iter().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        if greedy(middle).len() <= n { high = middle } else { low = middle + 1 }
    }
    greedy(low)
}

/// One bucket fewer is as good.
const SAME: usize = usize::MAX;

/// Upper lengths, ascending, of at most `n` buckets with the least total excess of upper over length (FlexSP, section on bucketing).
fn buckets(lengths: &[u64], n: usize) -> Vec<u64> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let k = sorted.len();
    let prefix: Vec<u64> = std::iter::once(0)
        .chain(sorted.iter().scan(0, |sum, s| {
            *sum += s;
            Some(*sum)
        }))
        .collect();
    // Excess of one bucket over sequences j..i, in ascending order.
    let excess = |j: usize, i: usize| sorted[i - 1] * (i - j) as u64 - (prefix[i] - prefix[j]);
    let mut least: Vec<u64> = (0..=k).map(|i| if i == 0 { 0 } else { excess(0, i) }).collect();
    let mut from = vec![vec![0; k + 1]];
    for _ in 1..n.min(k.max(1)) {
        let (mut next, mut origin) = (least.clone(), vec![SAME; k + 1]);
        for i in 1..=k {
            let split = (1..i).map(|j| (least[j] + excess(j, i), j)).min();
            if let Some((sum, j)) = split.filter(|(sum, _)| *sum < next[i]) {
                (next[i], origin[i]) = (sum, j);
            }
        }
        least = next;
        from.push(origin);
    }
    let (mut uppers, mut end) = (Vec::new(), k);
    for origin in from.iter().rev() {
        if end > 0 && origin[end] != SAME {
            uppers.push(sorted[end - 1]);
            end = origin[end];
        }
    }
    uppers.sort_unstable();
    uppers.dedup();
    uppers
}

fn upper_of(uppers: &[u64], tokens: u64) -> u64 {
    uppers[uppers.partition_point(|upper| *upper < tokens)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_are_all_binary_partitions() {
        // 1, 2, 4, 10, 36, 202, 1828: the binary partitions of powers of two (OEIS A002577).
        for (n, count) in [(1, 1), (2, 2), (4, 4), (8, 10), (16, 36), (32, 202), (64, 1828)] {
            let found = divisions(n, n, false);
            assert_eq!(found.len(), count, "{n}");
            assert!(found.iter().all(|parts| parts.iter().sum::<u32>() == n));
            assert!(divisions(n, n, true).iter().all(|same| found.contains(same)));
        }
    }

    #[test]
    fn cuts_have_the_least_largest_sum() {
        let sizes = [9, 7, 7, 4, 3, 3, 1];
        for n in 1..=sizes.len() {
            let parts = cut(&sizes, n);
            let sum = |part: &std::ops::Range<usize>| sizes[part.clone()].iter().sum::<u64>();
            let found = parts.iter().map(sum).max().expect("parts");
            // Every way to cut six gaps.
            let best = (0_u32..64)
                .filter(|gaps| (gaps.count_ones() as usize) < n)
                .map(|gaps| {
                    let (mut most, mut sum) = (0, 0);
                    for (index, size) in sizes.iter().enumerate() {
                        sum += size;
                        if index + 1 == sizes.len() || gaps & (1 << index) != 0 {
                            most = most.max(sum);
                            sum = 0;
                        }
                    }
                    most
                })
                .min();
            assert_eq!(Some(found), best, "{n}");
        }
    }

    #[test]
    fn buckets_waste_less_than_fixed_widths() {
        let lengths = sim::workload::distribution::named("commoncrawl-like").expect("listed").sample(512, 196_608, 3);
        let waste = |uppers: &[u64]| {
            let total: u64 = lengths.iter().sum();
            let excess: u64 = lengths.iter().map(|&length| upper_of(uppers, length) - length).sum();
            hw::Tokens(excess).as_f64() / hw::Tokens(total).as_f64()
        };
        let found = buckets(&lengths, 16);
        assert!(found.len() <= 16);
        let longest = *lengths.iter().max().expect("lengths");
        let fixed: Vec<u64> = (1..=16).map(|k| (longest * k).div_ceil(16)).collect();
        assert!(waste(&found) * 10.0 < waste(&fixed), "{} {}", waste(&found), waste(&fixed));
        assert_eq!(buckets(&[5, 5, 5], 4), [5]);
        assert_eq!(buckets(&[1, 2, 9], 2), [2, 9]);
    }

    #[test]
    fn buckets_are_the_best_of_all_choices() {
        let lengths = [3, 4, 4, 9, 10, 15, 31, 33];
        let waste = |uppers: &[u64]| lengths.iter().map(|&length| upper_of(uppers, length) - length).sum::<u64>();
        for n in 1..=5 {
            let best = (0_u32..128)
                .map(|chosen| {
                    let kept = (0..7).filter(|bit| chosen & (1 << bit) != 0).map(|bit| lengths[bit]);
                    kept.chain([33]).collect::<Vec<u64>>()
                })
                .filter(|uppers| uppers.len() <= n)
                .map(|uppers| waste(&uppers))
                .min();
            assert_eq!(Some(waste(&buckets(&lengths, n))), best, "{n} buckets");
        }
    }
}
