//! A recorded step beside the predicted one of the same rank: every term, every lane, and the step.
//!
//! A predicted task is taken apart into its operations, each with its share of the task's time by the cost model. So terms add up to what the
//! timeline says. A predicted exchange begins when its last rank is there; a recorded one also holds the wait for it.

use std::collections::BTreeMap;

use engine::task::{LaneId, Stream, Task};
use engine::validation::elementary;
use engine::{CostModel, Op, TaskGraph, Timeline};
use hw::Rank;
use train::Problem;

use super::Window;
use super::step::{Busy, Measured, busy, seconds};
use super::term::{Lane, Term};
use crate::bench::compare::deviation;
use crate::errors::mean;

/// What is predicted of one rank's step.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// Rank that stands for it.
    pub rank: u32,
    /// The step, and its ends.
    pub step_s: f64,
    /// With every cost at its low and at its high end.
    pub interval_s: [f64; 2],
    /// Seconds of each term, and operations.
    pub terms: BTreeMap<Term, (f64, u64)>,
    /// Lanes.
    pub busy: Busy,
}

/// One term on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Which.
    pub term: Term,
    /// Launches in a recorded step.
    pub n: f64,
    /// Seconds of a recorded step, where it ran.
    pub measured_s: Option<f64>,
    /// What recorded steps differ by: standard deviation over them.
    pub spread_s: Option<f64>,
    /// Predicted seconds.
    pub predicted_s: f64,
}

/// A recorded step beside its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// What was recorded.
    pub measured: Measured,
    /// What was predicted.
    pub predicted: Predicted,
    /// Terms that either side has.
    pub rows: Vec<Row>,
    /// Ranks of the prediction, where the file says another number.
    pub other_ranks: Option<u32>,
}

/// What is predicted of the rank that a file is of.
pub fn predicted(
    (problem, graph): (&Problem, &TaskGraph),
    (timeline, interval_s): (&Timeline, [f64; 2]),
    cost: &dyn CostModel,
    rank: u32,
) -> Predicted {
    let lane = lane_of(problem, graph, rank);
    let (mut terms, mut parts, mut waits_s) = (BTreeMap::new(), Vec::new(), 0.0);
    for (id, task) in graph.tasks.iter().enumerate().filter(|(_, task)| task.lane == lane) {
        let (start, end) = (timeline.start[id].as_ns(), timeline.end[id].as_ns());
        let op = &graph.ops[task.op.0 as usize];
        let host_s = add(&mut terms, (op, task), seconds(end - start), cost);
        let lane = lane_of_task(task, op);
        waits_s += if lane == Lane::Compute { host_s } else { 0.0 };
        parts.push((lane, start, end));
    }
    let span = Window { start: 0, end: timeline.span().as_ns() };
    // Inside a task the host's time is none of its kernels.
    let busy = busy(parts, span, 1.0);
    let busy = Busy { compute_s: busy.compute_s - waits_s, idle_s: busy.idle_s + waits_s, ..busy };
    Predicted { rank: graph.lanes[lane.index()].rank.0, step_s: seconds(span.end), interval_s, terms, busy }
}

/// The lane that stands for a rank: that of its place in the layout, in the last group before its own that is simulated.
fn lane_of(problem: &Problem, graph: &TaskGraph, rank: u32) -> LaneId {
    let place = problem.position(Rank(rank.min(problem.layout.n_ranks().saturating_sub(1))));
    let stands = |lane: &engine::task::Lane| {
        let other = problem.position(lane.rank);
        other.pp == place.pp && other.cp == place.cp && other.dp <= place.dp
    };
    let of_place = graph.lanes.iter().enumerate().filter(|(_, lane)| stands(lane));
    let nearest = of_place.max_by_key(|(_, lane)| {
        let other = problem.position(lane.rank);
        (other.dp, other.tp == place.tp)
    });
    LaneId(u32::try_from(nearest.map_or(0, |(index, _)| index)).expect("lanes fit u32"))
}

fn lane_of_task(task: &Task, op: &Op) -> Lane {
    match task.stream {
        _ if matches!(op, Op::Host { .. }) => Lane::None,
        Stream::OnTheWay => Lane::None,
        Stream::Compute => Lane::Compute,
        Stream::IntraNode | Stream::InterNode | Stream::PointToPoint | Stream::Back | Stream::Gradients => {
            Lane::Exchange
        }
        Stream::HostToDevice | Stream::DeviceToHost => Lane::Copy,
    }
}

/// Shares a task's time among its operations; the seconds of the host among them.
fn add(terms: &mut BTreeMap<Term, (f64, u64)>, (op, task): (&Op, &Task), took_s: f64, cost: &dyn CostModel) -> f64 {
    let parts = elementary(op);
    let times: Vec<f64> = parts.iter().map(|(part, n)| cost.estimate(part).time.get() * f64::from(*n)).collect();
    let all: f64 = times.iter().sum();
    // What a host needs longer than its kernels is its own; anything else that is longer slows all parts alike.
    let host_s = if matches!(op, Op::Launched { .. }) { (took_s - all).max(0.0) } else { 0.0 };
    let mut waits_s = host_s;
    if host_s > 0.0 {
        terms.entry(Term::Host).or_default().0 += host_s;
    }
    for ((part, n), time) in parts.iter().zip(times) {
        let term = Term::of_op(part, task.role);
        let seconds = if all > 0.0 { time / all * (took_s - host_s) } else { 0.0 };
        let sum = terms.entry(term).or_default();
        *sum = (sum.0 + seconds, sum.1 + u64::from(*n));
        waits_s += if term == Term::Host { seconds } else { 0.0 };
    }
    waits_s
}

/// Sets a prediction beside what was recorded.
pub fn compare(measured: Measured, predicted: Predicted, n_ranks: u32) -> Compared {
    let rows = Term::ALL.into_iter().filter_map(|term| row(term, &measured, &predicted)).collect();
    let other_ranks = measured.n_ranks.filter(|n| *n != n_ranks).map(|_| n_ranks);
    Compared { measured, predicted, rows, other_ranks }
}

fn row(term: Term, measured: &Measured, predicted: &Predicted) -> Option<Row> {
    let (took, of) = (measured.terms.get(&term), predicted.terms.get(&term));
    let is_counted = term == Term::Host && measured.host_s.is_some();
    if took.is_none() && of.is_none() && !is_counted {
        return None;
    }
    let seconds = took.map_or(&[][..], |took| &took.seconds);
    let measured_s = if term == Term::Host { measured.host_s } else { mean(seconds) };
    let n = took.map_or(0.0, |took| hw::real(took.n) / hw::real(measured.steps.len() as u64));
    Some(Row {
        term,
        n,
        measured_s,
        spread_s: deviation(seconds),
        predicted_s: of.map_or(0.0, |(seconds, _)| *seconds),
    })
}

impl Row {
    /// Predicted less recorded, seconds of a step.
    pub fn off_s(&self) -> f64 {
        self.predicted_s - self.measured_s.unwrap_or(0.0)
    }
}

impl Compared {
    /// Mean of the recorded steps, seconds.
    pub fn step_s(&self) -> f64 {
        mean(&self.measured.steps).unwrap_or(0.0)
    }

    /// Predicted over recorded step, less 1.
    pub fn error(&self) -> f64 {
        self.predicted.step_s / self.step_s() - 1.0
    }

    /// The term with the largest difference in seconds.
    pub fn guilty(&self) -> Option<&Row> {
        self.rows.iter().max_by(|a, b| a.off_s().abs().total_cmp(&b.off_s().abs()))
    }
}
