//! Several tasks as a row: what no schedule passes, the plan checked and played, figures and words. Units: seconds, bytes.

use std::collections::BTreeMap;

use engine::CostModel;
use engine::play::Case;
use engine::verdict::Refused;
use serde_json::Value;
use train::multi_task::play::{Played, iteration_s, play};
use train::multi_task::schedule::{Schedule, check};
use train::multi_task::{MultiTask, Work};

use super::bound::bound;
use super::contract::contract;
use super::most_work::most_work_first;
use super::place::Placement;
use super::{Policy, plan, spindle};
use crate::proof::{Bound, Decision, Status};
use crate::train::chosen::unweighed;

/// What all policies are asked, and what none of them passes.
pub struct Asked {
    cost: Box<dyn CostModel>,
    /// Operators cut into pieces with their times; why where there are none.
    pub work: Result<Work, Refused>,
    bound: Result<Bound, Refused>,
}

/// What came of a plan.
pub struct Row {
    /// Where its time goes, in words.
    pub why: String,
    /// Figures.
    pub metrics: BTreeMap<String, f64>,
    /// Low and high end of an iteration, seconds.
    pub interval_s: [f64; 2],
    /// The iteration as it was played.
    pub step: train::metrics::Played,
}

impl Asked {
    /// Contracts the tasks and finds the bound.
    pub fn new(training: &MultiTask, cost: Box<dyn CostModel>) -> Self {
        let training = most_work_first(training);
        let meta_ops = contract(&training);
        let work = Work::new(training, meta_ops, cost.as_ref(), Case::Expected);
        let bound = work.as_ref().map_err(Clone::clone).and_then(bound);
        Self { cost, work, bound }
    }

    /// A policy's schedule. The objective is the planned time of forward and backward; no schedule's is below the bound.
    ///
    /// # Errors
    /// When the checker refuses it.
    pub fn planned(&self, work: &Work, policy: Policy, placement: Placement) -> Result<Decision<Schedule>, Refused> {
        let played_s = |schedule: &Schedule| iteration_s(work, schedule, self.cost.as_ref()).unwrap_or(f64::INFINITY);
        let planned = plan(work, policy, placement, &played_s);
        check(work, &planned.plan)
            .map_err(|broken| Refused::infeasible(format!("the plan is no schedule: {broken}")))?;
        Ok(known(self, work, planned))
    }

    /// Plays a schedule: why, figures and their intervals.
    ///
    /// # Errors
    /// When memory is too small.
    pub fn judged(&self, work: &Work, planned: &Decision<Schedule>) -> Result<Row, Refused> {
        let played = play(work, &planned.plan, self.cost.as_ref())?;
        Ok(Row {
            why: why(&played),
            metrics: metrics(self, work, planned, &played),
            interval_s: played.interval_s,
            step: played.step,
        })
    }
}

fn why(played: &Played) -> String {
    let percent = |seconds: f64| seconds / played.iteration_s * 100.0;
    // What limits the bound does not limit this row, which may leave GPUs idle.
    format!(
        "forward and backward {:.1} %, gradients and optimizer {:.1} %, messages {:.1} %; a GPU computes {:.1} % of the time",
        percent(played.computation_s),
        percent(played.sync_s),
        percent(played.messages_s),
        played.busy_ratio * 100.0
    )
}

fn metrics(asked: &Asked, work: &Work, planned: &Decision<Schedule>, played: &Played) -> BTreeMap<String, f64> {
    let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    let theory_s = spindle::theory_s(work);
    let mut all = vec![
        ("iteration_time_s", played.iteration_s),
        ("planned_s", seconds(planned)),
        ("theory_s", theory_s),
        ("theory_gap_ratio", seconds(planned) / theory_s - 1.0),
        ("forward_backward_ratio", played.computation_s / played.iteration_s),
        ("messages_ratio", played.messages_s / played.iteration_s),
        ("sync_ratio", played.sync_s / played.iteration_s),
        ("busy_ratio", played.busy_ratio),
        ("message_bytes", hw::real(played.message_bytes)),
        ("peak_memory_bytes", played.peak_memory.as_f64()),
        ("least_memory_bytes", played.least_memory.as_f64()),
        ("n_waves", count(planned.plan.n_waves())),
        ("n_meta_ops", count(work.meta_ops.len())),
    ];
    if let Ok(bound) = &asked.bound {
        let gap = 1.0 - bound.value / played.iteration_s;
        all.extend([("iteration_time_bound_s", bound.value), ("bound_gap_ratio", gap)]);
    }
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Planned seconds of forward and backward.
fn seconds(planned: &Decision<Schedule>) -> f64 {
    planned.objective().expect("every schedule has a time")
}

/// What is known of a schedule besides.
fn known(asked: &Asked, work: &Work, planned: Decision<Schedule>) -> Decision<Schedule> {
    let mut notes = planned.notes.clone();
    let rates = work.training.rates();
    notes.extend(unweighed(std::slice::from_ref(&rates), work.n_devices()));
    notes.push(asked.bound.as_ref().map_or_else(|why| format!("no bound: {why}"), |bound| bound.limit.clone()));
    let parameters: u64 = work.training.operators.iter().map(|of| of.parameters * u64::from(of.n_layers)).sum();
    let mut figures = BTreeMap::from([
        ("theory_s".to_owned(), spindle::theory_s(work)),
        ("parameters".to_owned(), hw::real(parameters)),
    ]);
    for (number, level) in spindle::levels(work).iter().enumerate() {
        figures.insert(format!("optimum_of_level_{number}_s"), spindle::of_level(work, level).seconds);
    }
    planned.bounded(asked.bound.clone().ok(), Status::Heuristic).said(notes, figures)
}

/// Tuples of a plan, each with its devices.
pub fn pieces(work: &Work, planned: &Decision<Schedule>) -> Value {
    let pieces = planned.plan.pieces.iter().map(|piece| {
        let size = work.sizes[piece.meta_op][piece.size];
        serde_json::json!({
            "meta_op": work.meta_ops[piece.meta_op].name,
            "wave": piece.wave,
            "first_layer": piece.first,
            "layers": piece.n_layers,
            "start_s": piece.start_s,
            "end_s": piece.end_s(work),
            "tensor": size.tensor,
            "devices": piece.devices.iter().map(|rank| rank.0).collect::<Vec<u32>>(),
        })
    });
    pieces.collect()
}
