//! What every planner answers: a plan, its objective, what no plan is better than, what holds it back, and the second choice.
//!
//! Invariants, asserted wherever one is made: a bound is never worse than the objective, and a runner-up never better. A search that ends
//! within a gap may meet a second plan that is better than its first; `beside` lets them change places. Ties end by key, then by index
//! (`ranked`). Units: the objective's own, as `Aim` names them.

use std::collections::BTreeMap;

pub use engine::verdict::{Aim, Status};

/// A figure with what it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// What is counted.
    pub aim: Aim,
    /// How much.
    pub value: f64,
}

/// What no plan is better than.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// In the objective's unit.
    pub value: f64,
    /// What sets it, in words; empty where nobody asked.
    pub limit: String,
}

impl Bound {
    /// A bound without words.
    pub const fn plain(value: f64) -> Self {
        Self { value, limit: String::new() }
    }
}

/// The second choice.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerUp<P> {
    /// What it is.
    pub plan: P,
    /// Its objective, in the unit of the answer's.
    pub objective: f64,
}

/// A plan with what its planner knows of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<P> {
    /// The plan.
    pub plan: P,
    objective: Option<Objective>,
    bound: Option<Bound>,
    /// How good it is known to be.
    pub status: Status,
    /// The limit that holds it back, in words; empty where nobody asked.
    pub limit: String,
    runner_up: Option<RunnerUp<P>>,
    /// What was chosen, in words.
    pub notes: Vec<String>,
    /// The same as figures with units in the keys, for expectations and programs.
    pub figures: BTreeMap<String, f64>,
}

impl<P> Decision<P> {
    /// A plan of a rule that counts nothing.
    pub const fn plain(plan: P) -> Self {
        Self {
            plan,
            objective: None,
            bound: None,
            status: Status::Heuristic,
            limit: String::new(),
            runner_up: None,
            notes: Vec::new(),
            figures: BTreeMap::new(),
        }
    }

    /// A plan with its objective, and nothing known of others.
    pub fn new(plan: P, aim: Aim, objective: f64) -> Self {
        Self { objective: Some(Objective { aim, value: objective }), ..Self::plain(plan) }
    }

    /// The same with objective and bound of another decision about it.
    pub fn proved_by<Q>(self, other: &Decision<Q>) -> Self {
        Self { objective: other.objective, bound: other.bound.clone(), runner_up: None, ..self }
    }

    /// The same with another objective, for what is judged again; bound and runner-up stay behind.
    pub fn judged(self, aim: Aim, objective: f64) -> Self {
        Self { objective: Some(Objective { aim, value: objective }), bound: None, runner_up: None, ..self }
    }

    /// The same with a bound and how the search ended. A bound that is not finite says nothing and is left out.
    ///
    /// # Panics
    /// When the plan has no objective, or is better than the bound.
    pub fn bounded(self, bound: Option<Bound>, status: Status) -> Self {
        let bound = bound.filter(|bound| bound.value.is_finite());
        if let Some(bound) = &bound {
            let Objective { aim, value } = self.objective.expect("a bound is on an objective");
            assert!(!aim.is_better(value, bound.value), "the plan's {value} is better than the bound of {bound:?}");
        }
        Self { bound, status, ..self }
    }

    /// The same with what holds it back.
    pub fn limited(self, limit: String) -> Self {
        Self { limit, ..self }
    }

    /// The same with what was chosen, in words and as figures.
    pub fn said(self, notes: Vec<String>, figures: BTreeMap<String, f64>) -> Self {
        Self { notes, figures, ..self }
    }

    /// The better of the plan and a second one, with the other as its runner-up; the plan itself where they are equal.
    ///
    /// # Panics
    /// When the plan has no objective, or the second one is better than the bound.
    pub fn beside(mut self, second: Option<RunnerUp<P>>) -> Self {
        let Some(mut second) = second else { return self };
        let objective = self.objective.as_mut().expect("a runner-up has the objective of the answer");
        if objective.aim.order(second.objective, objective.value).is_lt() {
            std::mem::swap(&mut self.plan, &mut second.plan);
            std::mem::swap(&mut objective.value, &mut second.objective);
        }
        assert!(
            objective.aim.order(objective.value, second.objective).is_le(),
            "{} beside {objective:?}",
            second.objective
        );
        self.runner_up = Some(second);
        let (bound, status) = (self.bound.take(), self.status);
        self.bounded(bound, status)
    }

    /// What the plan is worth; `None` for a rule that counts nothing.
    pub fn objective(&self) -> Option<f64> {
        self.objective.map(|objective| objective.value)
    }

    /// What it counts.
    pub fn aim(&self) -> Option<Aim> {
        self.objective.map(|objective| objective.aim)
    }

    /// What no plan is better than, in the objective's unit.
    pub fn bound(&self) -> Option<f64> {
        self.bound.as_ref().map(|bound| bound.value)
    }

    /// Distance to the bound over the objective; `None` where either is unknown or the objective is 0.
    pub fn gap(&self) -> Option<f64> {
        let (objective, bound) = (self.objective()?, self.bound()?);
        let is_least = self.aim().is_some_and(Aim::is_least);
        let beyond = if is_least { objective - bound } else { bound - objective };
        Some((beyond / objective).max(0.0)).filter(|gap| gap.is_finite())
    }

    /// The second choice.
    pub const fn runner_up(&self) -> Option<&RunnerUp<P>> {
        self.runner_up.as_ref()
    }
}

/// The best of some plans beside the best of those that are another choice; of equals the one with the least key, then the first.
/// `None` without plans.
pub fn ranked<P, K: Ord>(
    aim: Aim,
    mut found: Vec<(f64, P)>,
    key: impl Fn(&P) -> K,
    is_other: impl Fn(&P, &P) -> bool,
) -> Option<Decision<P>> {
    // A stable sort: what is equal in objective and key stays in order.
    found.sort_by(|a, b| aim.order(a.0, b.0).then_with(|| key(&a.1).cmp(&key(&b.1))));
    let mut found = found.into_iter();
    let (objective, plan) = found.next()?;
    let second = found.find(|(_, other)| is_other(other, &plan));
    let second = second.map(|(objective, plan)| RunnerUp { plan, objective });
    Some(Decision::new(plan, aim, objective).beside(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(decision: &Decision<&'static str>) -> (&'static str, Option<&'static str>) {
        (decision.plan, decision.runner_up().map(|other| other.plan))
    }

    #[test]
    fn a_second_plan_that_is_better_becomes_the_answer() {
        let second = |plan, objective| Some(RunnerUp { plan, objective });
        let seconds = || Decision::new("first", Aim::Seconds, 10.0).bounded(Some(Bound::plain(8.0)), Status::Feasible);
        assert_eq!(names(&seconds().beside(second("slower", 11.0))), ("first", Some("slower")));
        let swapped = seconds().beside(second("sooner", 9.0));
        assert_eq!(names(&swapped), ("sooner", Some("first")));
        // (9 - 8) / 9.
        assert!((swapped.gap().expect("bounded") - 1.0 / 9.0).abs() < 1e-12);
        let rate =
            || Decision::new("first", Aim::RequestsPerS, 10.0).bounded(Some(Bound::plain(12.0)), Status::Heuristic);
        assert_eq!(names(&rate().beside(second("more", 11.0))), ("more", Some("first")));
        assert_eq!(names(&rate().beside(second("equal", 10.0))), ("first", Some("equal")));
        assert!((rate().gap().expect("bounded") - 0.2).abs() < 1e-12);
    }

    #[test]
    fn of_equals_the_least_key_is_first_and_then_the_first() {
        let found = vec![(2.0, ("b", 0)), (1.0, ("c", 1)), (1.0, ("a", 2)), (1.0, ("a", 3))];
        let best = ranked(Aim::Seconds, found, |plan| plan.0, |other, best| other.0 != best.0).expect("plans");
        assert_eq!(best.plan, ("a", 2));
        assert_eq!(best.runner_up().expect("another").plan, ("c", 1));
        let none: Vec<(f64, u32)> = Vec::new();
        assert!(ranked(Aim::Seconds, none, |plan| *plan, |a, b| a != b).is_none());
    }

    #[test]
    fn a_bound_on_the_wrong_side_is_a_fault_of_the_planner() {
        let broken = |aim, bound| {
            let decide = move || Decision::new((), aim, 10.0).bounded(Some(Bound::plain(bound)), Status::Optimal);
            std::panic::catch_unwind(decide).is_err()
        };
        assert!(broken(Aim::Seconds, 10.1) && broken(Aim::TokensPerS, 9.9));
        // What a solver's tolerance explains is none.
        assert!(!broken(Aim::Seconds, 10.000_001) && !broken(Aim::TokensPerS, 10.0));
        let endless =
            Decision::new((), Aim::RequestsPerS, 1.0).bounded(Some(Bound::plain(f64::INFINITY)), Status::Heuristic);
        assert_eq!((endless.bound(), endless.gap()), (None, None));
    }
}
