//! Arrangements played on the sequences of a step. Plans count every micro-batch as the mean, so where lengths differ a plan may lose to what it replaces.

use hw::topology::Topology;
use train::lower::training;
use train::straggler::{Rates, Straggler};
use train::{Plan, Problem};

use super::arrangement::Arrangement;
use super::reaction::{Answer, Reaction};
use super::{CARD, Job};
use crate::train::{orders, search};

impl Job<'_> {
    /// The new plan, or what is soonest done with a step's own sequences under the rates that are known: the plan that runs, or the layout's.
    pub(super) fn soonest(&self, index: usize, rates: &Rates, new: Answer, old: &Arrangement) -> Answer {
        let mut tokens = self.planner.problem.workload.step(index).map(|(_, tokens)| tokens);
        let first = tokens.next();
        let are_alike = tokens.all(|tokens| Some(tokens) == first);
        // Published coefficients are of other models, so what is played says nothing of their plans.
        if self.reaction != Reaction::Replan || self.is_published || are_alike || !self.straggles(rates) {
            return new;
        }
        let problem = self.only_step(index, rates);
        let (mut best_s, mut best) = (self.played_s(&problem, &new.arrangement), new);
        let planned_s = best.arrangement.predicted_s(self.planner.costs, rates);
        for other in [old.clone(), self.planner.uniform()] {
            let seconds = self.played_s(&problem, &other);
            if seconds < best_s {
                let runner_up_s = Some(planned_s);
                best = Answer { arrangement: other, runner_up_s, is_exhaustive: false, n_full: 0 };
                best_s = seconds;
            }
        }
        best
    }

    /// A step as a job of its own, with these rates.
    fn only_step(&self, index: usize, rates: &Rates) -> Problem {
        let mut problem = self.planner.problem.clone();
        problem.workload.lengths = self.planner.problem.workload.step(index).map(|(_, tokens)| tokens).collect();
        let straggler = |&(rank, rate)| Straggler { ranks: vec![rank], rate, from_step: 0, until_step: None };
        problem.execution.stragglers = rates.stragglers().iter().map(straggler).collect();
        problem
    }

    /// Seconds of the only step of a job; infinite where it does not fit.
    fn played_s(&self, problem: &Problem, arrangement: &Arrangement) -> f64 {
        let mut plan = Plan::new(CARD.name, problem, vec![self.step_of(problem, 0, arrangement, 0.0)]);
        _ = orders::complete(problem, &mut plan, self.context.cost);
        let graph = training::lower(problem, &plan, 0);
        let played = search::play(problem, &graph, self.context, &Topology::of(&problem.cluster));
        played.map_or(f64::INFINITY, |timeline| timeline.span().to_seconds().get())
    }
}
