//! Prediction against execution: two timelines of one graph and the times of its operations, term by term.
//!
//! Task ids are equal by construction, so nothing is matched by guess. Errors are predicted / measured − 1; seconds throughout.

use std::collections::BTreeMap;

use hw::{Span, quantile};
use serde::Serialize;

use crate::cost::CostModel;
use crate::task::{LaneId, Op, Stream, TaskGraph};
use crate::timeline::Timeline;

/// Where an executed task's time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Ran when and where the plan says.
    Live,
    /// Ran on the device, rank by rank; its place in the step comes from the plan's dependencies.
    Joined,
    /// Could not run here: the time is the cost model's.
    Modelled,
}

/// Time of one elementary operation inside an executed step.
#[derive(Clone, Debug, PartialEq)]
pub struct PartTime {
    /// What ran.
    pub op: Op,
    /// Median over its launches, seconds.
    pub seconds: f64,
    /// Launches in a step, over all ranks that ran.
    pub n: u64,
}

/// What hardware did with a task graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// When every task ran.
    pub timeline: Timeline,
    /// Where each task's time comes from.
    pub how: Vec<How>,
    /// Times of operations.
    pub parts: Vec<PartTime>,
    /// Longest time of a reference kernel around the runs over its shortest: 1 is a steady device.
    pub unsteady: f64,
}

/// Predicted and measured seconds of something.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// By the cost model.
    pub predicted_s: f64,
    /// By the device.
    pub measured_s: f64,
}

impl Pair {
    /// Predicted / measured − 1.
    pub fn error(&self) -> f64 {
        self.predicted_s / self.measured_s.max(1e-12) - 1.0
    }
}

/// Shares between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Hidden {
    /// In the predicted step.
    pub predicted: f64,
    /// In the measured step.
    pub measured: f64,
}

/// An operation that was predicted with an interval and measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Class of the operation.
    pub class: &'static str,
    /// Expected and measured.
    pub time: Pair,
    /// Interval of the prediction.
    pub low_s: f64,
    /// Its upper end.
    pub high_s: f64,
    /// Launches in the step.
    pub n: u64,
}

/// All operations of a class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassError {
    /// Class.
    pub class: &'static str,
    /// Different operations.
    pub n_ops: usize,
    /// Sum over launches.
    pub total: Pair,
    /// Median of |error| over operations.
    pub median_error: f64,
    /// 90 % quantile of the same.
    pub p90_error: f64,
    /// Share of operations whose measured time lies in the predicted interval.
    pub inside_ratio: f64,
}

/// One plan: predicted against executed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// Policy of the plan.
    pub policy: String,
    /// The whole step.
    pub step: Pair,
    /// Interval of the predicted step.
    pub interval_s: [f64; 2],
    /// By class of operation, largest measured total first.
    pub classes: Vec<ClassError>,
    /// Busy time by stream, of all ranks together.
    pub streams: BTreeMap<&'static str, Pair>,
    /// Time by rank in which any of its streams is busy.
    pub ranks: BTreeMap<u32, Pair>,
    /// Tasks by where their time comes from.
    pub how: BTreeMap<How, usize>,
    /// Share of the time of copies to and from the host during which the rank computes; absent without copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_copies: Option<Hidden>,
    /// Every operation.
    pub points: Vec<Point>,
    /// How steady the device was: 1 is steady.
    pub unsteady: f64,
    /// Seconds of what ran: in the runs that the step is of, and in those with marks between operations, which classes are of.
    pub work_s: [f64; 2],
}

/// Elementary operations of an operation, each with how often it runs.
pub fn elementary(op: &Op) -> Vec<(&Op, u32)> {
    match op {
        Op::Sequence(parts) | Op::Slowed { parts, .. } | Op::Launched { parts, .. } => parts
            .iter()
            .flat_map(|(part, n)| elementary(part).into_iter().map(move |(op, times)| (op, times * n)))
            .collect(),
        op => vec![(op, 1)],
    }
}

fn seconds(span: Span) -> f64 {
    span.to_seconds().get()
}

/// Compares a simulated step with an executed one; `interval_s` are the ends of the predicted step.
pub fn compare(
    policy: &str,
    graph: &TaskGraph,
    predicted: (&Timeline, [f64; 2]),
    executed: &Execution,
    cost: &dyn CostModel,
) -> Validation {
    let (predicted, interval_s) = predicted;
    let points: Vec<Point> = executed.parts.iter().map(|part| point(part, cost)).collect();
    let mut streams: BTreeMap<&'static str, Pair> = BTreeMap::new();
    let mut how: BTreeMap<How, usize> = BTreeMap::new();
    let mut unmarked_s = 0.0;
    for (id, task) in graph.tasks.iter().enumerate() {
        let busy = |timeline: &Timeline| seconds(timeline.end[id] - timeline.start[id]);
        let pair = Pair { predicted_s: busy(predicted), measured_s: busy(&executed.timeline) };
        let sum = streams.entry(task.stream.name()).or_insert(Pair { predicted_s: 0.0, measured_s: 0.0 });
        sum.predicted_s += pair.predicted_s;
        sum.measured_s += pair.measured_s;
        *how.entry(executed.how[id]).or_default() += 1;
        unmarked_s += if executed.how[id] == How::Modelled { 0.0 } else { pair.measured_s };
    }
    Validation {
        policy: policy.to_owned(),
        step: Pair { predicted_s: seconds(predicted.span()), measured_s: seconds(executed.timeline.span()) },
        interval_s,
        classes: classes(&points),
        streams,
        ranks: ranks(graph, predicted, &executed.timeline),
        how,
        work_s: [unmarked_s, executed.parts.iter().map(|part| part.seconds * hw::real(part.n)).sum()],
        hidden_copies: hidden_copies(graph, predicted)
            .zip(hidden_copies(graph, &executed.timeline))
            .map(|(predicted, measured)| Hidden { predicted, measured }),
        points,
        unsteady: executed.unsteady,
    }
}

/// Seconds of each rank in which any of its streams is busy: streams of a rank run beside each other.
fn ranks(graph: &TaskGraph, predicted: &Timeline, measured: &Timeline) -> BTreeMap<u32, Pair> {
    let (predicted, measured) = (busy_by_rank(graph, predicted), busy_by_rank(graph, measured));
    let pair = |(rank, predicted_s): (u32, f64)| (rank, Pair { predicted_s, measured_s: measured[&rank] });
    predicted.into_iter().map(pair).collect()
}

fn busy_by_rank(graph: &TaskGraph, timeline: &Timeline) -> BTreeMap<u32, f64> {
    let mut tasks: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for (id, task) in graph.tasks.iter().enumerate() {
        let rank = graph.lanes[task.lane.index()].rank.0;
        tasks.entry(rank).or_default().push((timeline.start[id].as_ns(), timeline.end[id].as_ns()));
    }
    tasks.into_iter().map(|(rank, tasks)| (rank, hw::real(union_ns(tasks)) / 1e9)).collect()
}

/// Nanoseconds in which any of some intervals lies.
fn union_ns(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut all, mut until) = (0, 0);
    for (start, end) in intervals {
        all += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    all
}

/// Share of the time of host copies during which their rank computes.
fn hidden_copies(graph: &TaskGraph, timeline: &Timeline) -> Option<f64> {
    let mut compute: BTreeMap<LaneId, Vec<(u64, u64)>> = BTreeMap::new();
    let mut copies = Vec::new();
    for (id, task) in graph.tasks.iter().enumerate() {
        let interval = (timeline.start[id].as_ns(), timeline.end[id].as_ns());
        match task.stream {
            Stream::Compute => compute.entry(task.lane).or_default().push(interval),
            Stream::HostToDevice | Stream::DeviceToHost => copies.push((task.lane, interval)),
            _ => {}
        }
    }
    let (mut hidden, mut all) = (0, 0);
    for (lane, (start, end)) in copies {
        all += end - start;
        // Tasks of a stream do not overlap, so the parts add up.
        let under = compute.get(&lane).into_iter().flatten();
        hidden += under.map(|(from, to)| (*to).min(end).saturating_sub((*from).max(start))).sum::<u64>();
    }
    (all > 0).then(|| hw::real(hidden) / hw::real(all))
}

fn point(part: &PartTime, cost: &dyn CostModel) -> Point {
    let estimate = cost.estimate(&part.op);
    Point {
        class: part.op.class(),
        time: Pair { predicted_s: estimate.time.get(), measured_s: part.seconds },
        low_s: estimate.low.get(),
        high_s: estimate.high.get(),
        n: part.n,
    }
}

/// Errors of points by class, largest measured total first. Host time is no prediction and is left out.
pub fn classes(points: &[Point]) -> Vec<ClassError> {
    let mut by_class: BTreeMap<&'static str, Vec<&Point>> = BTreeMap::new();
    for point in points.iter().filter(|point| point.class != "host") {
        by_class.entry(point.class).or_default().push(point);
    }
    let of = |(class, points): (&'static str, Vec<&Point>)| {
        let errors: Vec<f64> = points.iter().map(|point| point.time.error().abs()).collect();
        let sum = |value: fn(&Point) -> f64| points.iter().map(|point| value(point) * hw::real(point.n)).sum::<f64>();
        let inside = points.iter().filter(|p| (p.low_s..=p.high_s).contains(&p.time.measured_s)).count();
        ClassError {
            class,
            n_ops: points.len(),
            total: Pair { predicted_s: sum(|p| p.time.predicted_s), measured_s: sum(|p| p.time.measured_s) },
            median_error: quantile::of(&errors, 0.5),
            p90_error: quantile::of(&errors, 0.9),
            inside_ratio: hw::real(inside as u64) / hw::real(points.len() as u64),
        }
    };
    let mut classes: Vec<ClassError> = by_class.into_iter().map(of).collect();
    classes.sort_by(|a, b| b.total.measured_s.total_cmp(&a.total.measured_s));
    classes
}

impl Validation {
    /// The term that the step's error is mostly due to, in words.
    pub fn guilty(&self) -> String {
        let off = |class: &ClassError| class.total.predicted_s - class.total.measured_s;
        let Some(worst) = self.classes.iter().max_by(|a, b| off(a).abs().total_cmp(&off(b).abs())) else {
            return "nothing ran".to_owned();
        };
        let all: f64 = self.classes.iter().map(|class| off(class).abs()).sum();
        let direction = if off(worst) > 0.0 { "above" } else { "below" };
        let work: f64 = self.classes.iter().map(|class| class.total.measured_s).sum();
        format!(
            "{} is predicted {:.1} % {direction} what it takes ({:.1} % of all work), {:.0} % of the error of all terms",
            worst.class,
            worst.total.error().abs() * 100.0,
            worst.total.measured_s / work.max(1e-12) * 100.0,
            off(worst).abs() / all.max(1e-12) * 100.0
        )
    }

    /// How much longer what ran takes with marks between operations, where that is more than a tenth: errors of classes are then of another run than
    /// the step's.
    pub fn marks_off(&self) -> Option<f64> {
        let [unmarked_s, marked_s] = self.work_s;
        let off = marked_s / unmarked_s - 1.0;
        Some(off).filter(|off| off.is_finite() && off.abs() > MARKS_OFF)
    }

    /// Median of |error| over all operations but host time.
    pub fn median_error(&self) -> f64 {
        quantile::of(&errors(&self.points), 0.5)
    }

    /// 90 % quantile of the same.
    pub fn p90_error(&self) -> f64 {
        quantile::of(&errors(&self.points), 0.9)
    }
}

/// Above which share runs with marks and without them are said to differ.
const MARKS_OFF: f64 = 0.1;

/// |error| of every operation but host time.
pub fn errors(points: &[Point]) -> Vec<f64> {
    points.iter().filter(|point| point.class != "host").map(|point| point.time.error().abs()).collect()
}

/// The order of plans: as predicted against as measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranking {
    /// Kendall's tau-b over all pairs of plans.
    pub tau: f64,
    /// The same over pairs whose measured times differ by 5 % or more.
    pub tau_apart: f64,
    /// Such pairs.
    pub n_apart: usize,
    /// Measured time of the plan that is predicted best over that of the one measured best, minus 1.
    pub regret: f64,
}

/// Measured times that differ by less are the same for a decision.
const APART: f64 = 1.05;

/// Ranks plans by (predicted, measured) seconds; `None` for fewer than two.
pub fn rank(steps: &[Pair]) -> Option<Ranking> {
    if steps.len() < 2 {
        return None;
    }
    let (mut tau, mut apart) = (Tau::default(), Tau::default());
    for (index, a) in steps.iter().enumerate() {
        for b in &steps[index + 1..] {
            tau.add(a, b);
            if a.measured_s.max(b.measured_s) >= APART * a.measured_s.min(b.measured_s) {
                apart.add(a, b);
            }
        }
    }
    let least = |of: fn(&Pair) -> f64| steps.iter().min_by(|a, b| of(a).total_cmp(&of(b)));
    let (chosen, best) = (least(|pair| pair.predicted_s)?, least(|pair| pair.measured_s)?);
    let regret = chosen.measured_s / best.measured_s - 1.0;
    Some(Ranking { tau: tau.value(), tau_apart: apart.value(), n_apart: apart.n, regret })
}

/// Kendall's tau-b as it is counted.
#[derive(Default)]
struct Tau {
    n: usize,
    agree: f64,
    by_prediction: f64,
    by_measurement: f64,
}

impl Tau {
    fn add(&mut self, a: &Pair, b: &Pair) {
        let sign = |x: f64, y: f64| if x == y { 0.0 } else { (x - y).signum() };
        let (p, m) = (sign(a.predicted_s, b.predicted_s), sign(a.measured_s, b.measured_s));
        self.n += 1;
        self.agree += p * m;
        self.by_prediction += p * p;
        self.by_measurement += m * m;
    }

    fn value(&self) -> f64 {
        let scale = (self.by_prediction * self.by_measurement).sqrt();
        if scale > 0.0 { self.agree / scale } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(times: &[(f64, f64)]) -> Vec<Pair> {
        times.iter().map(|&(predicted_s, measured_s)| Pair { predicted_s, measured_s }).collect()
    }

    #[test]
    fn tau_counts_pairs_in_the_right_order() {
        // 1 2 3 4 against 1 3 2 4: five of six pairs agree, one does not: 4/6.
        let ranking = rank(&pairs(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)])).expect("four plans");
        assert!((ranking.tau - 4.0 / 6.0).abs() < 1e-12);
        assert_eq!((ranking.n_apart, ranking.regret), (6, 0.0));
        // The wrong order among two that are 2 % apart does not count for a decision; the choice costs those 2 %.
        let ranking = rank(&pairs(&[(1.0, 1.02), (2.0, 1.0), (3.0, 9.0)])).expect("three plans");
        assert!((ranking.tau - 1.0 / 3.0).abs() < 1e-12 && ranking.tau_apart == 1.0 && ranking.n_apart == 2);
        assert!((ranking.regret - 0.02).abs() < 1e-12);
        assert_eq!(rank(&pairs(&[(1.0, 1.0)])), None);
    }

    #[test]
    fn sequences_are_taken_apart_to_the_last_part() {
        let (a, b) = (Op::Elementwise { bytes: 1 }, Op::Elementwise { bytes: 2 });
        let inner = Op::Slowed { parts: vec![(a.clone(), 2), (b.clone(), 1)], permille: 1500 };
        let op = Op::Sequence(vec![(inner, 3), (b.clone(), 5)]);
        assert_eq!(elementary(&op), [(&a, 6), (&b, 3), (&b, 5)]);
    }

    /// Two streams: from 0 to 5, from 3 to 8 and from 10 to 12 something runs for 10 of 12.
    #[test]
    fn streams_beside_each_other_are_busy_once() {
        assert_eq!(union_ns(vec![(10, 12), (0, 5), (3, 8), (4, 6)]), 10);
        assert_eq!(union_ns(Vec::new()), 0);
    }

    #[test]
    fn the_guilty_class_is_the_one_with_the_largest_difference_in_seconds() {
        let point = |class, predicted_s, measured_s, n| Point {
            class,
            time: Pair { predicted_s, measured_s },
            low_s: predicted_s * 0.9,
            high_s: predicted_s * 1.1,
            n,
        };
        let points = vec![point("gemm", 1.05, 1.0, 100), point("copy", 2.0, 1.0, 1), point("host", 1.0, 1.0, 1)];
        let classes = classes(&points);
        assert_eq!(classes.iter().map(|class| class.class).collect::<Vec<_>>(), ["gemm", "copy"]);
        assert_eq!((classes[0].inside_ratio, classes[1].inside_ratio), (1.0, 0.0));
        let none = Pair { predicted_s: 1.0, measured_s: 1.0 };
        let validation = Validation {
            policy: "p".to_owned(),
            step: none,
            interval_s: [1.0, 1.0],
            classes,
            streams: BTreeMap::new(),
            ranks: BTreeMap::new(),
            how: BTreeMap::new(),
            hidden_copies: None,
            points,
            unsteady: 1.0,
            work_s: [1.0, 1.2],
        };
        assert_eq!(validation.marks_off().map(|off| (off * 1e3).round()), Some(200.0));
        assert!(validation.guilty().starts_with("gemm is predicted 5.0 % above"), "{}", validation.guilty());
        // Host time is left out. The median of the two errors that remain, 0.05 and 1, lies half-way.
        assert!((validation.median_error() - 0.525).abs() < 1e-9, "{}", validation.median_error());
    }
}
