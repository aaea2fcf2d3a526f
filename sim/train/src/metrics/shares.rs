//! Where the time of a played step goes, as shares of it: mean over ranks, each lane counted as often as it occurs.

use std::collections::BTreeMap;

use hw::Time;

use super::{Played, f64_of};
use engine::task::{Op, Role, Stream};

/// Communication that a rank can be caught waiting for, with its name and its key.
pub(super) const EXPOSABLE: [(Role, &str, &str); 6] = [
    (Role::ContextExchange, "exposed context exchange", "exposed_context_ratio"),
    (Role::TensorExchange, "exposed tensor exchange", "exposed_tensor_ratio"),
    (Role::ExpertExchange, "exposed expert all-to-all", "exposed_expert_ratio"),
    (Role::GradientSync, "exposed gradient sync", "exposed_gradient_ratio"),
    (Role::ParameterGather, "exposed parameter gather", "exposed_gather_ratio"),
    (Role::Replan, "changes of plan", "replan_ratio"),
];

/// Where the time of a step goes, as shares of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares {
    pub(super) busy: f64,
    pub(super) exposed: f64,
    /// All-to-all on the rank that computes most.
    pub(super) all_to_all: f64,
    pub(super) all_to_all_mean: f64,
    pub(super) dp_imbalance: f64,
    pub(super) rank_imbalance: f64,
    /// Exposed share by role, for the roles that can be exposed.
    pub(super) exposed_by: [f64; EXPOSABLE.len()],
    pub(super) bubble: f64,
    pub(super) rank_bubble: f64,
}

impl Shares {
    pub(super) fn of(step: &Played) -> Self {
        let span = f64_ns(step.timeline.span().as_ns()).max(1.0);
        let lanes = Lanes::of(step);
        let n_ranks: f64 = step.graph.lanes.iter().map(|lane| f64::from(lane.multiplicity)).sum();
        let mean = |value: &dyn Fn(&Lanes) -> u64| {
            let weighted =
                lanes.iter().zip(&step.graph.lanes).map(|(lane, of)| f64_ns(value(lane)) * f64::from(of.multiplicity));
            weighted.sum::<f64>() / n_ranks / span
        };
        let critical = lanes.iter().max_by_key(|lane| lane.busy_ns()).map_or(0, |lane| lane.all_to_all_ns);
        let (bubble, rank_bubble) = bubbles(step, &lanes);
        Self {
            busy: mean(&Lanes::busy_ns),
            exposed: mean(&|lane: &Lanes| lane.exposed_ns(None)),
            all_to_all: f64_ns(critical) / span,
            all_to_all_mean: mean(&|lane: &Lanes| lane.all_to_all_ns),
            dp_imbalance: dp_imbalance(step, &lanes),
            rank_imbalance: rank_imbalance(step, &lanes),
            exposed_by: EXPOSABLE.map(|(role, _, _)| mean(&|lane: &Lanes| lane.exposed_ns(Some(role)))),
            bubble,
            rank_bubble,
        }
    }

    pub(super) fn mean(all: &[Self]) -> Self {
        let mean = |get: &dyn Fn(&Self) -> f64| all.iter().map(get).sum::<f64>() / f64_of(all.len());
        Self {
            busy: mean(&|s| s.busy),
            exposed: mean(&|s| s.exposed),
            all_to_all: mean(&|s| s.all_to_all),
            all_to_all_mean: mean(&|s| s.all_to_all_mean),
            dp_imbalance: mean(&|s| s.dp_imbalance),
            rank_imbalance: mean(&|s| s.rank_imbalance),
            exposed_by: std::array::from_fn(|index| mean(&|s| s.exposed_by[index])),
            bubble: mean(&|s| s.bubble),
            rank_bubble: mean(&|s| s.rank_bubble),
        }
    }

    /// Share in which a rank neither computes nor communicates: it waits for slower ranks.
    pub(super) fn waiting(&self) -> f64 {
        (1.0 - self.busy - self.exposed).max(0.0)
    }
}

pub(super) fn f64_ns(ns: u64) -> f64 {
    hw::real(ns)
}

/// Busiest data-parallel group over the mean group, each group counted as often as it occurs.
fn dp_imbalance(step: &Played, lanes: &[Lanes]) -> f64 {
    let mut groups: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for (lane, of) in lanes.iter().zip(&step.graph.lanes) {
        let group = groups.entry(of.group).or_default();
        group.0 += f64_ns(lane.busy_ns());
        group.1 = f64::from(of.multiplicity);
    }
    let groups: Vec<(f64, f64)> = groups.into_values().collect();
    max_over_mean(&groups)
}

fn rank_imbalance(step: &Played, lanes: &[Lanes]) -> f64 {
    let of = |(lane, of): (&Lanes, &engine::task::Lane)| (f64_ns(lane.busy_ns()), f64::from(of.multiplicity));
    max_over_mean(&lanes.iter().zip(&step.graph.lanes).map(of).collect::<Vec<_>>())
}

/// Largest value over the weighted mean of (value, weight).
fn max_over_mean(values: &[(f64, f64)]) -> f64 {
    let weight: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mean = values.iter().map(|(value, weight)| value * weight).sum::<f64>() / weight;
    let max = values.iter().map(|(value, _)| *value).fold(0.0, f64::max);
    if mean > 0.0 { max / mean } else { 1.0 }
}

/// First start and last end of a rank's passes, and its work between them, nanoseconds.
type Passes = ((u64, u64), u64);

/// Idle shares of the pipeline part of a step, first forward to last backward: over all ranks and the whole span (the
/// contract's `bubble_ratio`), and over the longest span of one rank (the definition of arXiv:2401.10241).
fn bubbles(step: &Played, lanes: &[Lanes]) -> (f64, f64) {
    if step.graph.lanes.iter().all(|lane| lane.stage == 0) {
        return (0.0, 0.0);
    }
    // Lanes of each pipeline, and how many ranks they stand for.
    let mut groups: BTreeMap<u32, (Vec<Passes>, f64)> = BTreeMap::new();
    for (lane, of) in lanes.iter().zip(&step.graph.lanes) {
        let passes = lane.passes.unwrap_or_default();
        let group = groups.entry(of.group).or_default();
        group.0.push((passes, lane.useful_ns));
        group.1 += f64::from(of.multiplicity);
    }
    let ratio =
        |part: u64, whole: u64| if whole == 0 { 0.0 } else { f64_ns(whole.saturating_sub(part)) / f64_ns(whole) };
    let (mut bubble, mut rank_bubble, mut n_all) = (0.0, 0.0, 0.0);
    for (ranks, n_ranks) in groups.values() {
        let begin = ranks.iter().map(|((start, _), _)| *start).min().unwrap_or(0);
        let end = ranks.iter().map(|((_, end), _)| *end).max().unwrap_or(0);
        let useful: u64 = ranks.iter().map(|(_, useful)| useful).sum();
        n_all += n_ranks;
        bubble += n_ranks * ratio(useful, end.saturating_sub(begin) * ranks.len() as u64);
        let longest = ranks.iter().map(|((start, end), _)| end - start).max().unwrap_or(0);
        rank_bubble += n_ranks * ratio(ranks.iter().map(|(_, useful)| *useful).max().unwrap_or(0), longest);
    }
    (bubble / n_all, rank_bubble / n_all)
}

/// Busy intervals of one rank: compute in time order, communication with its role.
#[derive(Clone, Debug, Default)]
struct Lanes {
    compute: Vec<(Time, Time)>,
    network: Vec<(Time, Time, Role)>,
    /// Reductions of gradients over a communicator of their own.
    gradients: Vec<(Time, Time, Role)>,
    /// What of both computation does not hide.
    exposed: Vec<(Time, Time, Role)>,
    all_to_all_ns: u64,
    /// First start and last end of its passes, nanoseconds.
    passes: Option<(u64, u64)>,
    /// Computation of its passes without recompute, nanoseconds.
    useful_ns: u64,
}

impl Lanes {
    fn of(step: &Played) -> Vec<Self> {
        let mut lanes = vec![Self::default(); step.graph.lanes.len()];
        for (index, task) in step.graph.tasks.iter().enumerate() {
            let (start, end) = (step.timeline.start[index], step.timeline.end[index]);
            let lane = &mut lanes[task.lane.index()];
            match task.stream {
                Stream::Compute => {
                    lane.compute.push((start, end));
                    if matches!(task.role, Role::Forward | Role::Backward | Role::WeightGradient | Role::Recompute) {
                        let (from, to) = ((start - Time::ZERO).as_ns(), (end - Time::ZERO).as_ns());
                        let (first, last) = lane.passes.unwrap_or((from, to));
                        lane.passes = Some((first.min(from), last.max(to)));
                        lane.useful_ns += if task.role == Role::Recompute { 0 } else { to - from };
                    }
                }
                Stream::IntraNode | Stream::InterNode | Stream::Gradients => {
                    let held = if task.stream == Stream::Gradients { &mut lane.gradients } else { &mut lane.network };
                    held.push((start, end, task.role));
                    if is_all_to_all(&step.graph.ops[task.op.0 as usize]) {
                        lane.all_to_all_ns += (end - start).as_ns();
                    }
                }
                // A message's wait is the receiver's, and counts as waiting.
                Stream::HostToDevice
                | Stream::DeviceToHost
                | Stream::PointToPoint
                | Stream::Back
                | Stream::OnTheWay => {}
            }
        }
        lanes.iter_mut().for_each(Self::expose);
        lanes
    }

    /// Finds what of the communication no computation hides. Time is charged once, to the earliest exchange of it. The optimizer alone waits for gradients that
    /// have a communicator of their own: what is reduced before the last pass has ended, or beside an exchange that a pass waits for, holds nobody back. On a
    /// communicator that they share, as under ZeRO 3, gathers of a pass wait behind them.
    fn expose(&mut self) {
        let passes_end = Time::from_ns(self.passes.map_or(0, |(_, end)| end));
        let awaited = uncovered(std::mem::take(&mut self.network), &self.compute);
        let mut busy = self.compute.clone();
        busy.extend(awaited.iter().map(|(start, end, _)| (*start, *end)));
        busy.sort_unstable();
        let gradients = std::mem::take(&mut self.gradients).into_iter();
        let late = gradients.map(|(start, end, role)| (start.max(passes_end), end, role));
        let late = uncovered(late.filter(|(start, end, _)| start < end).collect(), &busy);
        self.exposed = awaited.into_iter().chain(late).collect();
    }

    fn busy_ns(&self) -> u64 {
        self.compute.iter().map(|(start, end)| (*end - *start).as_ns()).sum()
    }

    /// Time in which the network is busy and compute is not, with exchanges of one role or of all.
    fn exposed_ns(&self, role: Option<Role>) -> u64 {
        let of_role = self.exposed.iter().filter(|(.., of)| role.is_none_or(|role| role == *of));
        of_role.map(|(start, end, _)| (*end - *start).as_ns()).sum()
    }
}

/// Parts of intervals outside of `busy`, which are in time order and do not overlap; what several share is the earliest one's.
fn uncovered(mut intervals: Vec<(Time, Time, Role)>, busy: &[(Time, Time)]) -> Vec<(Time, Time, Role)> {
    intervals.sort_by_key(|(start, end, _)| (*start, *end));
    let (mut parts, mut covered, mut cursor) = (Vec::new(), Time::ZERO, 0);
    for (start, end, role) in intervals {
        let mut from = start.max(covered);
        covered = covered.max(end);
        while from < end {
            while cursor < busy.len() && busy[cursor].1 <= from {
                cursor += 1;
            }
            let (next, over) = busy.get(cursor).copied().unwrap_or((end, end));
            if from < next {
                parts.push((from, next.min(end), role));
            }
            from = over.max(next).max(from);
        }
    }
    parts
}

fn is_all_to_all(op: &Op) -> bool {
    match op {
        Op::Collective { kind, .. } => *kind == engine::task::Collective::AllToAll,
        Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } => {
            parts.iter().any(|(part, _)| is_all_to_all(part))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::play::{Case, Machine};
    use engine::task::{Lane, LaneId, Task, TaskGraph, TaskId};

    #[test]
    fn a_pipeline_that_stands_for_three_counts_three_times_in_a_bubble() {
        // Both stages of the first pipeline compute at once; those of the other, which is alone, one after the other: it idles half of its time.
        let lane = |(group, stage, multiplicity)| Lane {
            rank: hw::Rank(2 * group + stage),
            multiplicity,
            group,
            stage,
            rate: 1.0,
        };
        let mut graph = TaskGraph::with_lanes([(0, 0, 3), (0, 1, 3), (3, 0, 1), (3, 1, 1)].map(lane).to_vec());
        let op = graph.add_op(Op::Host { ns: 100 });
        for (index, waits) in [(0, None), (1, None), (2, None), (3, Some(TaskId(2)))] {
            let (stream, role) = (Stream::Compute, Role::Forward);
            let task = Task { op, lane: LaneId(index), stream, role, micro_batch: 0, meeting: None };
            graph.add_task(task, waits.as_slice());
        }
        let cluster = hw::catalog::cluster(&hw::catalog::gpu("h100-sxm").expect("listed"), 1, 8);
        let (topology, cost) = (hw::topology::Topology::of(&cluster), engine::cost::roofline::Roofline::new(&cluster));
        let (memory_bytes, case) = (u64::MAX, Case::Expected);
        let machine = Machine { cost: &cost, topology: &topology, memory_bytes, case, speed_changes: &[] };
        let engine::Outcome::Done(timeline) = engine::play::simulate(&graph, &machine) else { panic!("it ends") };
        let shares = Shares::of(&Played { graph, timeline });
        assert!((shares.bubble - 0.5 / 4.0).abs() < 1e-12, "{}", shares.bubble);
    }
}
