//! FlexSP (arXiv:2412.01523): sequence-parallel groups of mixed degree. Long sequences need wide groups, short ones are faster in
//! narrow ones inside a node; every micro-batch divides the ranks into groups of powers of two that end together.
//!
//! 1. Sequences are sorted and cut into M consecutive micro-batches with the least largest token sum (`flexsp/blaster.rs`); M from the
//!    least that fits on, five are tried.
//! 2. Lengths are put into Q buckets, each counted at its upper length, with the least total excess (`flexsp/buckets.rs`).
//! 3. For a micro-batch every division of the ranks into powers of two is tried (`flexsp/divisions.rs`; neighbours of the best equal ones in
//!    large pools); sequences go, longest first, to the group that would end first and has room, then moves and swaps even out the
//!    slowest group. The equal divisions are among those tried, so the result is never worse than the best of them (`groups = "same"`).
//!    `groups = "batch"` keeps one degree for the whole step, the paper's BatchAda. `planner = "milp"` solves the paper's program from there (`flexsp/formulation.rs`).
//!
//! The paper adds up micro-batches, as if all ranks waited behind each. A played step has no such barrier, so a mix of degrees may lose to one degree. Plans
//! are therefore played: of each set of divisions, and of each single degree, the best by the paper's sum and the best without a barrier
//! (`flexsp/chosen.rs`). The fastest is the answer. Published coefficients, and the program from nothing, are left as the paper has them.
//!
//! All data and context ranks are one pool: `dp = 1`, `exchange = "ulysses"`. Costs are in `flexsp/costs.rs`.

use std::collections::BTreeMap;

use hw::topology::Topology;
use train::layout::ContextExchange;
use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use crate::milp::Budget;
use crate::proof::{Aim, Bound, Decision, Status};
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};

mod assign;
mod blaster;
mod buckets;
mod chosen;
mod costs;
mod divisions;
mod formulation;

use assign::{Assigned, assign};
use costs::Costs;
use divisions::Division;

pub(super) const CARD: Card = Card {
    name: "flexsp",
    about: "every micro-batch divides the ranks into sequence-parallel groups of mixed degree that end together",
    source: "FlexSP, arXiv:2412.01523; AFDWang/Hetu-Galvatron, branch flexsp",
    method: "dynamic programmes for micro-batches and buckets; every division with longest first and local search, or MILP; the best are played",
    parameters: &[
        Parameter::word(
            "groups",
            &["mixed", "same", "batch"],
            "groups of mixed degree, one degree per micro-batch, or one degree for the whole batch (BatchAda)",
        ),
        Parameter::word(
            "planner",
            &["enumerate", "milp", "cold"],
            "divisions one by one, the paper's program from the best of them, or from nothing (for comparison)",
        ),
        Parameter::count(
            ("buckets", "buckets"),
            ("16", 1.0, 1000.0),
            "lengths that are told apart when times are estimated",
        ),
        Parameter::word(
            "coefficients",
            &["own", "published-7b", "published-13b", "published-30b"],
            "times and capacity: of the scenario's cost model, or the authors'",
        ),
        Parameter::number(("seconds", "s"), ("5", 0.0, 3600.0), "time limit of the program of one micro-batch")
            .under("planner", &["milp", "cold"]),
    ],
};

/// How many numbers of micro-batches are tried from the least on (M' of the paper).
const MICRO_BATCHES_TRIED: usize = 5;
/// Divisions that local search improves.
const SEARCHED: usize = 24;
/// Nodes of the program of one micro-batch.
const NODES: i32 = 5_000;

/// A sequence: id and tokens.
type Sequence = (u32, u64);

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    let layout = &problem.layout;
    if layout.pp > 1 {
        let what = "groups of mixed degree know no pipeline: use `pp = 1`";
        return Err(PlanError::Unsupported(what.to_owned()));
    }
    if layout.dp > 1 || layout.exchange != ContextExchange::Ulysses || !layout.cp.is_power_of_two() {
        let all = (layout.dp * layout.cp).next_power_of_two();
        let what = format!("all ranks are one pool: use `dp = 1`, `cp = {all}`, `exchange = \"ulysses\"`");
        return Err(PlanError::Unsupported(what));
    }
    let is_published = context.word("coefficients", "own") != "own";
    let is_played = !is_published && context.word("planner", "enumerate") != "cold";
    Planner::new(problem, context, is_played).decided()
}

/// Divisions of a pool among which the micro-batches of a step choose.
type Choice = Option<Vec<Division>>;

/// Choices for what is asked, the first one of which is the paper's; where plans are played, what it could fall back on too.
fn choices(groups: &str, (n_ranks, widest): (u32, u32), is_played: bool) -> Vec<Choice> {
    let equal = divisions::same(n_ranks, widest);
    let mut choices: Vec<Choice> = match groups {
        "batch" => Vec::new(),
        "same" => vec![Some(equal.clone())],
        _ => vec![(n_ranks <= divisions::ALL_MAX).then(|| divisions::all(n_ranks, widest))],
    };
    if groups == "mixed" && is_played {
        choices.push(Some(equal.clone()));
    }
    if groups == "batch" || is_played {
        choices.extend(equal.into_iter().map(|division| Some(vec![division])));
    }
    choices
}

struct Planner<'a> {
    problem: &'a Problem,
    context: &'a PlanContext<'a>,
    widest: u32,
    /// One set of divisions for the whole step; `None` for a pool that is too large to try all.
    choices: Vec<Choice>,
    /// What plans are played on; `None` where the paper's sum decides.
    topology: Option<Topology>,
    is_same: bool,
}

/// A planned micro-batch: sequences by group.
#[derive(Clone, PartialEq)]
struct Placed {
    micro_batch: MicroBatch,
    division: Division,
    /// What each group takes.
    groups_s: Vec<f64>,
    seconds: f64,
    bound_s: f64,
}

impl<'a> Planner<'a> {
    fn new(problem: &'a Problem, context: &'a PlanContext<'_>, is_played: bool) -> Self {
        let layout = &problem.layout;
        // All-to-all gives every rank heads of its own.
        let heads = problem.model.n_heads / u64::from(layout.tp);
        let widest = layout.cp.min(1 << heads.trailing_zeros());
        let groups = context.word("groups", "mixed");
        let choices = choices(groups, (layout.cp, widest), is_played);
        let topology = is_played.then(|| Topology::of(&problem.cluster));
        Self { problem, context, widest, choices, topology, is_same: groups != "mixed" }
    }

    /// The best plan of all steps.
    fn decided(&self) -> Result<Decision<Plan>, PlanError> {
        let steps = (0..self.problem.workload.n_steps()).map(|index| self.step(index));
        Ok(self.decision(steps.collect::<Result<_, _>>()?))
    }

    fn n_ranks(&self) -> u32 {
        self.problem.layout.cp
    }

    /// The best plan of a step.
    fn step(&self, index: usize) -> Result<Vec<Placed>, PlanError> {
        let mut sequences: Vec<Sequence> = self.problem.workload.step(index).collect();
        sequences.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let lengths: Vec<u64> = sequences.iter().map(|(_, tokens)| *tokens).collect();
        let n_buckets = usize::try_from(hw::whole(self.context.number("buckets", 16.0))).expect("few buckets");
        let fitted = costs::published(self.context.word("coefficients", "own"));
        let uppers = buckets::buckets(&lengths, n_buckets);
        let costs = Costs::of(self.problem, self.context.cost, fitted, uppers, self.widest);
        let mut candidates: Vec<Vec<Placed>> = Vec::new();
        for choice in &self.choices {
            candidates.extend(self.promising(choice.as_deref(), &sequences, &lengths, &costs));
        }
        if self.context.word("planner", "enumerate") != "enumerate" && !candidates.is_empty() {
            let sums_s = candidates.iter().map(|planned| chosen::sum_s(planned)).enumerate();
            let (best, _) = sums_s.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there is a plan");
            let first = candidates.remove(best);
            let solved = first.iter().map(|planned| self.solved(planned.clone(), &sequences, &costs)).collect();
            // What the program was given stays in the play: it has the better sum and not always the better step.
            candidates.extend(self.topology.is_some().then_some(first));
            candidates.insert(0, solved);
        }
        self.chosen(index, candidates, &costs).ok_or_else(|| {
            let room = costs.capacity * u64::from(self.widest);
            PlanError::Infeasible(format!(
                "the longest sequence has {} tokens, the widest group holds {room}",
                lengths[0]
            ))
        })
    }

    /// With these divisions the best of a few numbers of micro-batches, by the paper's sum, and without a barrier where plans are played.
    fn promising(
        &self,
        divisions: Option<&[Division]>,
        sequences: &[Sequence],
        lengths: &[u64],
        costs: &Costs,
    ) -> Vec<Vec<Placed>> {
        let all = self.among(divisions, sequences, lengths, costs);
        let least = |of: &dyn Fn(&[Placed]) -> f64| all.iter().min_by(|a, b| of(a).total_cmp(&of(b))).cloned();
        let [by_sum, by_end] = [least(&chosen::sum_s), least(&|planned| self.end_s(planned, costs))];
        let by_end = by_end.filter(|other| self.topology.is_some() && Some(other) != by_sum.as_ref());
        by_sum.into_iter().chain(by_end).collect()
    }

    /// Plans with these divisions, with the first few numbers of micro-batches that have one.
    fn among(
        &self,
        divisions: Option<&[Division]>,
        sequences: &[Sequence],
        lengths: &[u64],
        costs: &Costs,
    ) -> Vec<Vec<Placed>> {
        // One that cannot hold the longest sequence holds it in no number of micro-batches.
        let widest = divisions.map_or(self.widest, |all| all.iter().flatten().copied().max().unwrap_or(1));
        if lengths[0] > costs.capacity * u64::from(widest) {
            return Vec::new();
        }
        let capacity = costs.capacity * u64::from(self.n_ranks());
        let least = usize::try_from(lengths.iter().sum::<u64>().div_ceil(capacity.max(1))).expect("few micro-batches");
        let planned = (least.max(1)..=sequences.len()).filter_map(|n| {
            let parts = blaster::cut(lengths, n).into_iter();
            parts.map(|part| self.micro_batch(divisions, &sequences[part], costs)).collect()
        });
        planned.take(MICRO_BATCHES_TRIED).collect()
    }

    /// The division whose slowest group ends first; `None` when some sequence has no room in any.
    fn micro_batch(&self, divisions: Option<&[Division]>, sequences: &[Sequence], costs: &Costs) -> Option<Placed> {
        let total: u64 = sequences.iter().map(|(_, tokens)| tokens).sum();
        if total > costs.capacity * u64::from(self.n_ranks()) {
            return None;
        }
        let buckets: Vec<usize> = sequences.iter().map(|(_, tokens)| costs.bucket(*tokens)).collect();
        let (division, assigned) = match divisions {
            Some(all) => best_of(all, None, sequences, &buckets, costs),
            None => self.climb(sequences, &buckets, costs),
        }?;
        let bound_s = costs.micro_batch_s(costs.bound_s(&buckets, self.n_ranks()));
        Some(self.placed(sequences, &assigned.group_of, division, assigned.slowest_s, bound_s, costs))
    }

    /// Neighbours of the best equal division, as long as one is better.
    fn climb(&self, sequences: &[Sequence], buckets: &[usize], costs: &Costs) -> Option<(Division, Assigned)> {
        let equal = divisions::same(self.n_ranks(), self.widest);
        let mut best = best_of(&equal, None, sequences, buckets, costs)?;
        loop {
            let near = divisions::neighbours(&best.0, self.widest);
            match best_of(&near, Some(best.1.slowest_s), sequences, buckets, costs) {
                Some(better) => best = better,
                None => return Some(best),
            }
        }
    }

    fn placed(
        &self,
        sequences: &[Sequence],
        group_of: &[usize],
        division: Division,
        slowest_s: f64,
        bound_s: f64,
        costs: &Costs,
    ) -> Placed {
        let starts: Vec<u32> = division.iter().scan(0, |sum, &d| Some(std::mem::replace(sum, *sum + d))).collect();
        let place = |group: usize| match division[group] {
            1 => Place::Local(starts[group]),
            count => Place::Ring { first: starts[group], count },
        };
        let placements = sequences.iter().zip(group_of).map(|(&(sequence, tokens), &group)| Placement {
            sequence,
            from: 0,
            tokens,
            place: place(group),
        });
        let micro_batch = MicroBatch { sequences: placements.collect(), ..MicroBatch::default() };
        let mut groups_s = vec![0.0; division.len()];
        for ((_, tokens), &group) in sequences.iter().zip(group_of) {
            groups_s[group] += costs.on(costs.bucket(*tokens), division[group]);
        }
        let seconds = costs.micro_batch_s(slowest_s);
        Placed { micro_batch, division, groups_s, seconds, bound_s: bound_s.min(seconds) }
    }

    /// The paper's program for a micro-batch, from what is known of it.
    fn solved(&self, known: Placed, all: &[Sequence], costs: &Costs) -> Placed {
        let length = |id: u32| all.iter().find(|(of, _)| *of == id).expect("a sequence of the step").1;
        let ids = known.micro_batch.sequences.iter().map(|placement| placement.sequence);
        let sequences: Vec<Sequence> = ids.map(|id| (id, length(id))).collect();
        let buckets: Vec<usize> = sequences.iter().map(|(_, tokens)| costs.bucket(*tokens)).collect();
        let mut counts = vec![0; costs.uppers.len()];
        buckets.iter().for_each(|&bucket| counts[bucket] += 1);
        let start = grouped(&known, &buckets, costs.uppers.len());
        let start = (self.context.word("planner", "enumerate") == "milp").then_some(&start);
        let budget = Budget::new(NODES, self.context.number("seconds", 5.0));
        let solved = formulation::solve(costs, &counts, self.n_ranks(), self.widest, start, budget);
        let Some((groups, slowest_s, bound_s)) = solved else { return known };
        let bound_s = bound_s.map_or(known.bound_s, |bound| known.bound_s.max(costs.micro_batch_s(bound)));
        let is_cold = self.context.word("planner", "enumerate") == "cold";
        if costs.micro_batch_s(slowest_s) >= known.seconds && !is_cold {
            return Placed { bound_s: bound_s.min(known.seconds), ..known };
        }
        let mut groups = groups;
        groups.sort_by_key(|(degree, _)| std::cmp::Reverse(*degree));
        let group_of = buckets
            .iter()
            .map(|&bucket| {
                let at = groups.iter().position(|(_, counts)| counts[bucket] > 0).expect("every sequence is placed");
                groups[at].1[bucket] -= 1;
                at
            })
            .collect::<Vec<usize>>();
        let mut division: Division = groups.iter().map(|(degree, _)| *degree).collect();
        // Ranks without sequences are groups of one.
        let taken: u32 = division.iter().sum();
        division.extend(std::iter::repeat_n(1, (self.n_ranks() - taken) as usize));
        self.placed(&sequences, &group_of, division, slowest_s, bound_s, costs)
    }

    fn decision(&self, steps: Vec<Vec<Placed>>) -> Decision<Plan> {
        let n_steps = hw::real(steps.len() as u64);
        let all = || steps.iter().flatten();
        let objective = all().map(|planned| planned.seconds).sum::<f64>() / n_steps;
        let bound = all().map(|planned| planned.bound_s).sum::<f64>() / n_steps;
        let of_step = |step: &Vec<Placed>| {
            let names: Vec<String> =
                step.iter().map(|planned| format!("<{}>", divisions::name(&planned.division))).collect();
            names.join(" ")
        };
        let notes = vec![format!(
            "groups of each micro-batch of the first step: {}",
            steps.first().map_or_else(String::new, of_step)
        )];
        let mut figures: BTreeMap<String, f64> = BTreeMap::new();
        if let Some(fitted) = costs::published(self.context.word("coefficients", "own")) {
            figures.insert("capacity_tokens".to_owned(), hw::real(fitted.capacity(self.n_ranks())));
            for degree in [2, 8, 16, 64] {
                let (compute, exchange) = fitted.sequence_ms(8192, degree);
                figures.insert(format!("compute_8k_on_{degree}_ms"), compute);
                figures.insert(format!("all_to_all_8k_on_{degree}_ms"), exchange);
            }
        }
        let degrees = || all().flat_map(|planned| &planned.division).map(|degree| f64::from(*degree));
        figures.insert("group_ranks_min".to_owned(), degrees().fold(f64::INFINITY, f64::min));
        figures.insert("group_ranks_max".to_owned(), degrees().fold(0.0, f64::max));
        let micro_batches = |step: Vec<Placed>| step.into_iter().map(|planned| planned.micro_batch).collect();
        let is_proved = bound >= objective * (1.0 - 1e-6);
        let steps: Vec<Step> = steps.into_iter().map(|step| Step::of_groups(vec![micro_batches(step)])).collect();
        let plan = Plan { steps, ..super::heuristic(CARD.name, self.problem, Vec::new()).plan };
        // Equal groups are compared with the same bound: what mixing them could gain at most is part of the gap.
        let status = match (is_proved, self.context.word("planner", "enumerate")) {
            (true, _) => Status::Optimal,
            (false, "milp" | "cold") if !self.is_same => Status::Feasible,
            _ => Status::Heuristic,
        };
        let decision = Decision::new(plan, Aim::Seconds, objective).bounded(Some(Bound::plain(bound)), status);
        decision.said(notes, figures)
    }
}

/// The best of some divisions, if any is better than `limit`: longest first ranks them, local search decides between the first few.
fn best_of(
    divisions: &[Division],
    limit: Option<f64>,
    sequences: &[Sequence],
    buckets: &[usize],
    costs: &Costs,
) -> Option<(Division, Assigned)> {
    let mut ranking: Vec<(f64, usize)> = Vec::new();
    let mut least = f64::INFINITY;
    for (index, division) in divisions.iter().enumerate() {
        // Local search seldom wins more than this back.
        if let Some(slowest_s) = assign::dealt(sequences, buckets, division, costs, least * 1.3) {
            least = least.min(slowest_s);
            ranking.push((slowest_s, index));
        }
    }
    ranking.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let searched = ranking.iter().take(SEARCHED).filter_map(|&(_, index)| {
        let division = &divisions[index];
        Some((division.clone(), assign(sequences, buckets, division, costs)?))
    });
    let best = searched.min_by(|a, b| a.1.slowest_s.total_cmp(&b.1.slowest_s))?;
    limit.is_none_or(|limit| best.1.slowest_s < limit).then_some(best)
}

/// Sequences of every bucket in every group of a planned micro-batch.
fn grouped(planned: &Placed, buckets: &[usize], n_buckets: usize) -> formulation::Grouped {
    let starts = planned.division.iter().scan(0, |sum, &d| Some(std::mem::replace(sum, *sum + d)));
    let mut groups: Vec<(u32, u32, Vec<u32>)> =
        planned.division.iter().zip(starts).map(|(&degree, start)| (start, degree, vec![0; n_buckets])).collect();
    for (placement, &bucket) in planned.micro_batch.sequences.iter().zip(buckets) {
        let first = match placement.place {
            Place::Local(rank) => rank,
            Place::Ring { first, .. } => first,
            Place::Sharded => 0,
        };
        let group = groups.iter_mut().find(|(start, ..)| *start == first).expect("a group of the division");
        group.2[bucket] += 1;
    }
    groups.into_iter().map(|(_, degree, counts)| (degree, counts)).collect()
}

#[cfg(test)]
mod tests;
