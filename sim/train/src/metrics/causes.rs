//! Why a step takes longer than its lower bound: causes of lost time that add up to the gap.
//!
//! The mean over ranks (each lane as often as it occurs) of what a rank does in the step: computation, communication that nothing
//! hides, copies to the host that nothing hides, and waiting. Computation above the bound's work is recompute, padding, or kernels below
//! their best size (with start-ups and host time). Waiting before a data-parallel group's last pass is pipeline bubble where there is a
//! pipeline; all other waiting is imbalance between ranks. Where devices are slow, the same tasks are played on healthy ones as well. What ranks wait
//! longer than there, they wait for slow devices. Where the bound is the longest chain or communication rather than work, no
//! schedule avoids the difference. It is subtracted from the waiting causes, largest first; what remains, from the others.

use std::collections::{BTreeMap, BTreeSet};

use super::{Played, f64_of};
use crate::bound::{Bound, Floors};
use crate::plan::{MicroBatch, Plan};
use crate::problem::Problem;
use engine::Outcome;
use engine::cause::Cause;
use engine::cost::CostModel;
use engine::play::{Case, Machine};
use engine::task::{Role, Stream};
use hw::topology::Topology;

/// Below the engine's clock.
const NEGLIGIBLE_S: f64 = 1e-8;

/// A step against its bound, means over the steps of a job; seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lost {
    /// The step.
    pub step_s: f64,
    /// Lower bound on it.
    pub bound_s: f64,
    /// Lost by each of `Cause::ALL`; they add up to the step less the bound.
    pub causes_s: [f64; Cause::ALL.len()],
}

impl Lost {
    /// Keys and values for the metrics; causes that lose nothing are left out.
    pub fn figures(&self) -> BTreeMap<String, f64> {
        let causes = Cause::ALL.iter().zip(self.causes_s).filter(|(_, seconds)| seconds.abs() > NEGLIGIBLE_S);
        let causes = causes.map(|(cause, seconds)| (cause.key(), seconds));
        let gap = ("bound_gap_ratio", (1.0 - self.bound_s / self.step_s).max(0.0));
        let all = [("iteration_time_bound_s", self.bound_s), gap].into_iter().chain(causes);
        all.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Causes over all played steps of a plan. The bound is that of micro-batches of at most `tokens_max` tokens on a rank.
///
/// # Panics
/// When no step was played.
pub fn of_steps(problem: &Problem, plan: &Plan, steps: &[Played], tokens_max: u64, cost: &dyn CostModel) -> Lost {
    assert!(!steps.is_empty(), "a job has at least one step");
    let mut floors = Floors::new(problem, tokens_max, cost);
    let mut mean = Lost::default();
    for (index, step) in steps.iter().enumerate() {
        let bound = bound(&mut floors, problem, plan, index);
        let padding = plan.steps[index].groups.iter().flatten().map(|micro_batch| micro_batch.padding).sum();
        let padding_s = floors.padding_s(index, padding);
        let of = of_step(step, &bound, padding_s, (problem, cost));
        let n = f64_of(steps.len());
        mean.step_s += of.step_s / n;
        mean.bound_s += of.bound_s / n;
        mean.causes_s.iter_mut().zip(of.causes_s).for_each(|(sum, seconds)| *sum += seconds / n);
    }
    mean
}

/// Mean lower bound on the steps of a plan, seconds.
pub fn bound_s(problem: &Problem, plan: &Plan, tokens_max: u64, cost: &dyn CostModel) -> f64 {
    let mut floors = Floors::new(problem, tokens_max, cost);
    let steps = 0..plan.steps.len();
    let sum: f64 = steps.map(|index| bound(&mut floors, problem, plan, index).step_s()).sum();
    sum / f64_of(plan.steps.len())
}

fn bound(floors: &mut Floors<'_>, problem: &Problem, plan: &Plan, index: usize) -> Bound {
    let lengths = lengths(problem, plan, index);
    if plan.steps[index].is_mixed() { floors.of_any_shape(index, &lengths) } else { floors.of_step(index, &lengths) }
}

/// Lengths of the sequences that a plan computes in a step: a policy may choose which sequences share a step.
fn lengths(problem: &Problem, plan: &Plan, step_index: usize) -> Vec<u64> {
    let placements = plan.steps[step_index].groups.iter().flatten().flat_map(|micro_batch| &micro_batch.sequences);
    let ids: BTreeSet<u32> = placements.map(|placement| placement.sequence).collect();
    ids.into_iter().map(|id| problem.workload.lengths[id as usize]).collect()
}

/// Most tokens that a plan puts on a rank in one micro-batch.
pub fn tokens_max(plan: &Plan) -> u64 {
    let cp = plan.layout.cp;
    let on = |micro_batch: &MicroBatch| (0..cp).map(|rank| micro_batch.tokens_on(rank, cp)).max();
    plan.steps.iter().flat_map(|step| step.groups.iter().flatten()).filter_map(on).max().unwrap_or(0)
}

/// Mean time of a rank in a step by what it does, seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    useful: f64,
    recompute: f64,
    optimizer: f64,
    exposed: f64,
    offload: f64,
    slower: f64,
    replan: f64,
    bubble: f64,
    idle: f64,
}

impl Spent {
    /// Waiting that healthy devices would not have with the same tasks is waiting for slow ones.
    fn beside_healthy(mut self, healthy: &Self) -> Self {
        let waits = [
            (&mut self.idle, healthy.idle),
            (&mut self.bubble, healthy.bubble),
            (&mut self.exposed, healthy.exposed),
            (&mut self.offload, healthy.offload),
        ];
        for (wait, without) in waits {
            let more = (*wait - without).max(0.0);
            *wait -= more;
            self.slower += more;
        }
        self
    }
}

/// The same tasks where no device is slow; `None` where none is.
fn healthy(step: &Played, problem: &Problem, cost: &dyn CostModel) -> Option<Played> {
    if step.graph.lanes.iter().all(|lane| lane.rate == 1.0) {
        return None;
    }
    let mut graph = step.graph.clone();
    graph.lanes.iter_mut().for_each(|lane| lane.rate = 1.0);
    let topology = Topology::of(&problem.cluster);
    // Ends of tasks alone are asked, and other times may ask for other memory.
    let machine =
        Machine { cost, topology: &topology, memory_bytes: u64::MAX, case: Case::Expected, speed_changes: &[] };
    match engine::simulate(&graph, &machine) {
        Outcome::Done(timeline) => Some(Played { graph, timeline }),
        Outcome::OutOfMemory { .. } | Outcome::Stuck { .. } => None,
    }
}

fn of_step(step: &Played, bound: &Bound, padding_s: f64, (problem, cost): (&Problem, &dyn CostModel)) -> Lost {
    let step_s = step.timeline.span().to_seconds().get();
    let bound_s = bound.step_s();
    let spent = match healthy(step, problem, cost) {
        Some(healthy) => spent(step).beside_healthy(&spent(&healthy)),
        None => spent(step),
    };
    let mut causes = [0.0; Cause::ALL.len()];
    let mut set = |cause: Cause, seconds: f64| causes[cause as usize] = seconds;
    set(Cause::Imbalance, spent.idle);
    set(Cause::Bubble, spent.bubble);
    let exposed = (spent.exposed - spent.replan).max(0.0);
    set(Cause::Communication, (exposed - bound.gather_s).max(0.0));
    set(Cause::Straggler, spent.slower);
    set(Cause::Replan, spent.replan);
    set(Cause::Recompute, spent.recompute);
    set(Cause::Offload, spent.offload);
    let above = (spent.useful + spent.optimizer - bound.work_s - bound.optimizer_s).max(0.0);
    let padding_s = padding_s.min(above);
    set(Cause::Padding, padding_s);
    set(Cause::Kernel, above - padding_s);
    // Nobody can avoid the longest chain or communication that is longer than the work: it is waiting, or the chain's own start-ups.
    let mut unavoidable = bound.step_s() - bound.work_s - bound.optimizer_s - bound.gather_s;
    let mut waits = [Cause::Imbalance, Cause::Bubble, Cause::Communication].map(|cause| cause as usize);
    waits.sort_by(|&a, &b| causes[b].total_cmp(&causes[a]));
    let others = [Cause::Kernel, Cause::Offload, Cause::Recompute, Cause::Padding, Cause::Straggler, Cause::Replan]
        .map(|cause| cause as usize);
    for cause in waits.into_iter().chain(others) {
        let taken = unavoidable.min(causes[cause]);
        causes[cause] -= taken;
        unavoidable -= taken;
    }
    causes[Cause::Other as usize] = step_s - bound_s - causes.iter().sum::<f64>();
    Lost { step_s, bound_s, causes_s: causes }
}

/// Busy intervals of a lane in time order, nanoseconds.
#[derive(Clone, Debug, Default)]
struct Busy {
    compute: Vec<(u64, u64)>,
    network: Vec<(u64, u64)>,
    copies: Vec<(u64, u64)>,
    /// Computation by what it is for.
    useful_ns: u64,
    recompute_ns: u64,
    optimizer_ns: u64,
    /// A change of plan before everything else.
    replan_ns: u64,
    /// End of its last pass.
    passes_end: u64,
}

fn spent(step: &Played) -> Spent {
    let span = step.timeline.span().as_ns();
    let lanes = busy(step);
    let group = |index: usize| step.graph.lanes[index].group;
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    for (index, lane) in lanes.iter().enumerate() {
        let end = ends.entry(group(index)).or_default();
        *end = (*end).max(lane.passes_end);
    }
    let has_pipeline = step.graph.lanes.iter().any(|lane| lane.stage > 0);
    let n_ranks: f64 = step.graph.lanes.iter().map(|lane| f64::from(lane.multiplicity)).sum();
    let mut mean = Spent::default();
    for (index, (lane, of)) in lanes.iter().zip(&step.graph.lanes).enumerate() {
        let weight = f64::from(of.multiplicity) / n_ranks * 1e-9;
        let passes_end = if has_pipeline { ends[&group(index)] } else { 0 };
        let gaps = complement(&lane.compute, span);
        let (exposed, rest) = split(&gaps, &lane.network);
        let (offload, idle) = split(&rest, &lane.copies);
        let (bubble, idle) = split(&idle, &[(0, passes_end)]);
        let add = |sum: &mut f64, ns: u64| *sum += super::shares::f64_ns(ns) * weight;
        // What a healthy device would compute as long, and what a straggler takes longer.
        for (sum, ns) in [
            (&mut mean.useful, lane.useful_ns),
            (&mut mean.recompute, lane.recompute_ns),
            (&mut mean.optimizer, lane.optimizer_ns),
        ] {
            let seconds = super::shares::f64_ns(ns) * weight;
            *sum += seconds / of.rate;
            mean.slower += seconds - seconds / of.rate;
        }
        add(&mut mean.exposed, exposed);
        add(&mut mean.replan, lane.replan_ns);
        add(&mut mean.offload, offload);
        add(&mut mean.bubble, bubble);
        add(&mut mean.idle, idle.iter().map(|(from, to)| to - from).sum());
    }
    mean
}

fn busy(step: &Played) -> Vec<Busy> {
    let mut lanes = vec![Busy::default(); step.graph.lanes.len()];
    for (index, task) in step.graph.tasks.iter().enumerate() {
        let at = |time: hw::Time| (time - hw::Time::ZERO).as_ns();
        let (start, end) = (at(step.timeline.start[index]), at(step.timeline.end[index]));
        let lane = &mut lanes[task.lane.index()];
        match task.stream {
            Stream::Compute => {
                lane.compute.push((start, end));
                let of_role = match task.role {
                    Role::Recompute => &mut lane.recompute_ns,
                    Role::Optimizer => &mut lane.optimizer_ns,
                    _ => &mut lane.useful_ns,
                };
                *of_role += end - start;
                if task.role != Role::Optimizer {
                    lane.passes_end = lane.passes_end.max(end);
                }
            }
            Stream::IntraNode | Stream::InterNode | Stream::Gradients => {
                lane.replan_ns += if task.role == Role::Replan { end - start } else { 0 };
                lane.network.push((start, end));
            }
            Stream::HostToDevice | Stream::DeviceToHost => lane.copies.push((start, end)),
            // A message's wait is the receiver's, and counts as waiting.
            Stream::PointToPoint | Stream::Back | Stream::OnTheWay => {}
        }
    }
    for lane in &mut lanes {
        lane.network.sort_unstable();
        lane.copies.sort_unstable();
    }
    lanes
}

/// What sorted intervals without overlap leave of `0..span`.
fn complement(intervals: &[(u64, u64)], span: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut covered = 0;
    for &(start, end) in intervals {
        if start > covered {
            gaps.push((covered, start));
        }
        covered = covered.max(end);
    }
    if span > covered {
        gaps.push((covered, span));
    }
    gaps
}

/// Part of disjoint sorted gaps that intervals sorted by start cover, and what is left of the gaps.
fn split(gaps: &[(u64, u64)], intervals: &[(u64, u64)]) -> (u64, Vec<(u64, u64)>) {
    let (mut covered_ns, mut left) = (0, Vec::new());
    let mut from = 0;
    for &(begin, end) in gaps {
        let mut cursor = begin;
        // Intervals that ended before this gap end before every later one too, unless a longer one follows them.
        while from < intervals.len() && intervals[from].1 <= begin {
            from += 1;
        }
        for &(start, finish) in intervals[from..].iter().take_while(|(start, _)| *start < end) {
            if finish <= cursor {
                continue;
            }
            if start > cursor {
                left.push((cursor, start));
            }
            let upto = finish.min(end);
            covered_ns += upto - start.max(cursor);
            cursor = upto;
        }
        if cursor < end {
            left.push((cursor, end));
        }
    }
    (covered_ns, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_split_by_what_covers_them() {
        let gaps = complement(&[(2, 4), (7, 8)], 10);
        assert_eq!(gaps, [(0, 2), (4, 7), (8, 10)]);
        // 1..5 covers one of the first gap and one of the second; 3..9 two more of the second and one of the third.
        assert_eq!(split(&gaps, &[(1, 5), (3, 9)]), (5, vec![(0, 1), (9, 10)]));
        assert_eq!(split(&gaps, &[]), (0, gaps));
    }
}
