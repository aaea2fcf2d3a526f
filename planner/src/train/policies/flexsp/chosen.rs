//! Which of a few plans of a step is the answer: the fastest as it is played. Where nothing is played the one with the least sum of the paper.
//!
//! The paper's sum is of micro-batches, each as long as its slowest group. Without its barrier a group begins as soon as its own ranks are free.
//! Units: seconds.

use train::plan::Step;

use super::costs::Costs;
use super::{CARD, Placed, Planner};
use crate::train::policies::heuristic;
use crate::train::search;

/// A plan is not played where it ends so many times later, by its estimate, than the best one does as it is played.
const HOPELESS: f64 = 2.0;

/// Micro-batches one after another, each as long as its slowest group.
pub(super) fn sum_s(planned: &[Placed]) -> f64 {
    planned.iter().map(|planned| planned.seconds).sum()
}

impl Planner<'_> {
    /// The end of the last group, where each begins as soon as its ranks are free.
    pub(super) fn end_s(&self, planned: &[Placed], costs: &Costs) -> f64 {
        let mut free_s = vec![0.0_f64; self.n_ranks() as usize];
        for placed in planned {
            let mut ranks = free_s.as_mut_slice();
            for (&degree, &group_s) in placed.division.iter().zip(&placed.groups_s) {
                let (own, rest) = ranks.split_at_mut(degree as usize);
                let begins_s = own.iter().copied().fold(0.0, f64::max);
                own.fill(begins_s + costs.micro_batch_s(group_s));
                ranks = rest;
            }
        }
        free_s.into_iter().fold(0.0, f64::max)
    }

    /// The answer for a step; the first of equal ones, and the first of all where none fits as it is played, so that the player says what is short.
    pub(super) fn chosen(&self, index: usize, candidates: Vec<Vec<Placed>>, costs: &Costs) -> Option<Vec<Placed>> {
        if self.topology.is_none() {
            return candidates.into_iter().min_by(|a, b| sum_s(a).total_cmp(&sum_s(b)));
        }
        let mut by_end: Vec<(f64, &Vec<Placed>)> =
            candidates.iter().map(|planned| (self.end_s(planned, costs), planned)).collect();
        by_end.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Several sets of divisions may have one plan: the same micro-batches end at the same time.
        by_end.dedup_by(|a, b| a.1 == b.1);
        let mut best: Option<(f64, &Vec<Placed>)> = None;
        for (end_s, planned) in by_end {
            let least_s = best.map_or(f64::INFINITY, |(least_s, _)| least_s);
            if engine::stop::is_asked() || end_s > HOPELESS * least_s {
                break;
            }
            if let Some(step_s) = self.played_s(index, planned).filter(|step_s| *step_s < least_s) {
                best = Some((step_s, planned));
            }
        }
        best.map(|(_, planned)| planned).or(candidates.first()).cloned()
    }

    /// A step as it is played; `None` where it does not fit.
    pub(super) fn played_s(&self, index: usize, planned: &[Placed]) -> Option<f64> {
        let mut plan = heuristic(CARD.name, self.problem, vec![Step::default(); self.problem.workload.n_steps()]).plan;
        plan.steps[index] = Step::of_groups(vec![planned.iter().map(|planned| planned.micro_batch.clone()).collect()]);
        let graph = train::lower::training::lower(self.problem, &plan, index);
        let timeline = search::play(self.problem, &graph, self.context, self.topology.as_ref()?)?;
        Some(timeline.span().to_seconds().get())
    }
}
