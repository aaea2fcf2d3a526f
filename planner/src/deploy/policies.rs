//! Policies of renting by name: the program of arXiv:2502.00722 its plans that give up a decision, and Mélange.

use super::cost_efficiency::{self, Assignment, Form, Options};
use super::{Plan, Problem, RentalError, melange};
use crate::proof::Decision;

/// The paper's form, with its tolerance.
const BISECTION: Form = Form::Bisection { tolerance_s: 0.01 };

/// What holds a plan back, and what else there is.
#[derive(Clone, Copy, Debug)]
pub struct Explain {
    /// The limit that binds, in words.
    pub limit: fn(&Problem, &Plan, Options) -> String,
    /// The best plan with other replicas.
    pub second: fn(&Problem, &Plan, Options) -> Option<Plan>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct RentalPolicy {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// Decides replicas and shares.
    pub solve: fn(&Problem, Options) -> Result<Decision<Plan>, RentalError>,
    /// What says more of a plan; `None` for plans that give up a decision and are compared alone.
    pub explain: Option<Explain>,
    /// How it decides shares of given replicas.
    pub assignment: Assignment,
}

/// Every policy of renting.
pub static POLICIES: [RentalPolicy; 7] = [
    RentalPolicy {
        name: "cost-efficiency",
        about: "what to rent, how to deploy and who serves what by one mixed-integer program (arXiv:2502.00722)",
        solve: cost_efficiency::solve,
        explain: Some(Explain { limit: cost_efficiency::limit, second: cost_efficiency::second }),
        assignment: Assignment::Soonest,
    },
    RentalPolicy {
        name: "cost-efficiency-bisection",
        about: "the same by the paper's bisection on the makespan, to 0.01 s or the gap that is allowed",
        solve: |problem, options| cost_efficiency::solve(problem, Options { form: BISECTION, ..options }),
        explain: Some(Explain { limit: cost_efficiency::limit, second: cost_efficiency::second }),
        assignment: Assignment::Soonest,
    },
    RentalPolicy {
        name: "homogeneous",
        about: "the best single GPU type, its best deployment",
        solve: cost_efficiency::one_type,
        explain: None,
        assignment: Assignment::Soonest,
    },
    RentalPolicy {
        name: "uniform-composition",
        about: "the same number of every GPU type, deployed and split at best",
        solve: cost_efficiency::uniform_composition,
        explain: None,
        assignment: Assignment::Soonest,
    },
    RentalPolicy {
        name: "uniform-deployment",
        about: "replicas of one size, composed and split at best",
        solve: cost_efficiency::uniform_deployment,
        explain: None,
        assignment: Assignment::Soonest,
    },
    RentalPolicy {
        name: "round-robin",
        about: "every replica gets the same requests, composed and deployed at best",
        solve: cost_efficiency::round_robin,
        explain: None,
        assignment: Assignment::Alike,
    },
    RentalPolicy {
        name: "melange",
        about: "the cheapest GPUs that carry the work's rates in slices, for the shortest time within the budget (arXiv:2404.14527)",
        solve: melange::under_budget,
        explain: Some(Explain { limit: melange::limit_under_budget, second: melange::second_under_budget }),
        assignment: Assignment::Soonest,
    },
];

/// A policy by name.
#[must_use]
pub fn named(name: &str) -> Option<&'static RentalPolicy> {
    POLICIES.iter().find(|policy| policy.name == name)
}
