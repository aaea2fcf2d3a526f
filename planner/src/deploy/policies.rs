//! Every policy of deployments by name: what it does for each objective, and why not for the others.
//!
//! A paper is a row. Renting decides what to rent for given work, placing puts a model on GPUs that are there, layers go to nodes by flow.

use super::cost_efficiency::{self, Assignment, Form, Options};
use super::goodput::Method;
use super::helix::{Placement, Scheduling};
use super::objective::Objective;
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

/// The cheapest plan with other replicas than one's, within so many seconds.
pub type Second = fn(&Problem, f64, &Plan, Options) -> Option<Plan>;
/// What holds the price of a plan up, in words, within so many seconds.
pub type Price = fn(&Problem, f64, &Plan, Options) -> String;

/// How a policy rents for the fewest dollars.
#[derive(Clone, Copy, Debug)]
pub struct Cheapest {
    /// Decides replicas and shares, with the seconds within which all work ends.
    pub solve: fn(&Problem, f64, Options) -> Result<Decision<Plan>, RentalError>,
    /// The cheapest plan with other replicas; `None` for policies that are compared alone.
    pub second: Option<Second>,
    /// What holds the price up, in words; `None` for the same.
    pub limit: Option<Price>,
    /// Policies that decide less, whose plan this one takes where it is cheaper.
    pub others: &'static [&'static str],
}

/// How a policy rents.
#[derive(Clone, Copy, Debug)]
pub struct Renting {
    /// Decides replicas and shares so that work ends soonest.
    pub solve: fn(&Problem, Options) -> Result<Decision<Plan>, RentalError>,
    /// Decides them for the fewest dollars, where the policy can.
    pub cheapest: Option<Cheapest>,
    /// What says more of a plan; `None` for plans that give up a decision and are compared alone.
    pub explain: Option<Explain>,
    /// Whether it decides what to rent, how to deploy and who serves what: any replicas within the limits are a plan of it.
    pub is_whole: bool,
    /// Ways in which it shares requests among given replicas.
    pub assignments: &'static [Assignment],
    /// Policies that decide less, whose replicas this one takes where they end sooner within the budget. It takes those of a smaller budget too.
    pub others: &'static [&'static str],
}

/// A row of the table.
#[derive(Debug)]
pub struct Policy {
    /// Name in scenarios.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// How it rents: `time`, and `dollars` where it can.
    pub rents: Option<Renting>,
    /// How it places the model on GPUs that are there: `goodput`.
    pub places: Option<Method>,
    /// Where it puts layers, and how requests go: `throughput`.
    pub flows: Option<(&'static Placement, Scheduling)>,
    /// Why it serves no other objective.
    pub limit: &'static str,
}

/// A policy that does nothing yet.
const NONE: Policy = Policy { name: "", about: "", rents: None, places: None, flows: None, limit: "" };
/// A policy that rents by a program and gives up a decision.
const GIVES_UP: Renting = Renting {
    solve: cost_efficiency::one_type,
    cheapest: None,
    explain: None,
    is_whole: false,
    assignments: &[Assignment::Soonest],
    others: &[],
};
/// Policies whose plans the whole program may choose too.
const DECIDE_LESS: &[&str] = &["homogeneous", "melange"];
const EXPLAIN: Explain = Explain { limit: cost_efficiency::limit, second: cost_efficiency::second };
/// Why a policy of renting does not place.
const RENTS: &str = "it gives up a decision of renting, and what it keeps has no meaning for GPUs that are there";
/// Why a policy of placing does not rent.
const PLACES: &str = "it places on all GPUs that are there, so it has nothing to rent or to save";
/// Why a policy of layers does not know limits.
const FLOWS: &str = "it places layers on all nodes for tokens per second, and knows no limits and no prices";

/// A policy that places alone.
const fn placing(name: &'static str, about: &'static str, method: Method) -> Policy {
    Policy { name, about, places: Some(method), limit: PLACES, ..NONE }
}

/// A policy that puts layers on nodes alone.
const fn flowing(name: &'static str, about: &'static str, how: (&'static Placement, Scheduling)) -> Policy {
    Policy { name, about, flows: Some(how), limit: FLOWS, ..NONE }
}

/// Every policy of deployments.
pub static POLICIES: &[Policy] = &[
    Policy {
        name: "cost-efficiency",
        about: "what to rent, how to deploy and who serves what by one mixed-integer program (arXiv:2502.00722)",
        rents: Some(Renting {
            solve: cost_efficiency::solve,
            cheapest: Some(Cheapest {
                solve: cost_efficiency::cheapest,
                second: Some(cost_efficiency::second_cheapest),
                limit: Some(cost_efficiency::limit_of_price),
                others: DECIDE_LESS,
            }),
            explain: Some(EXPLAIN),
            is_whole: true,
            assignments: &[Assignment::Soonest, Assignment::Alike],
            others: DECIDE_LESS,
        }),
        places: Some(Method::CostEfficiency),
        limit: "its replicas hold the whole model, so no request passes layers of several",
        ..NONE
    },
    Policy {
        name: "cost-efficiency-bisection",
        about: "the same by the paper's bisection on the makespan, to 0.01 s or the gap that is allowed",
        rents: Some(Renting {
            solve: |problem, options| cost_efficiency::solve(problem, Options { form: BISECTION, ..options }),
            explain: Some(EXPLAIN),
            is_whole: true,
            assignments: &[Assignment::Soonest, Assignment::Alike],
            others: DECIDE_LESS,
            ..GIVES_UP
        }),
        limit: "it bisects the time at which work ends, and nothing else; `cost-efficiency` is the same program",
        ..NONE
    },
    Policy {
        name: "homogeneous",
        about: "the best single GPU type, its best deployment",
        rents: Some(Renting {
            cheapest: Some(Cheapest {
                solve: cost_efficiency::cheapest_of_one_type,
                second: None,
                limit: None,
                others: &[],
            }),
            ..GIVES_UP
        }),
        limit: RENTS,
        ..NONE
    },
    Policy {
        name: "uniform-composition",
        about: "the same number of every GPU type, deployed and split at best",
        rents: Some(Renting { solve: cost_efficiency::uniform_composition, ..GIVES_UP }),
        limit: "its composition is what a budget buys of every type, so without a budget it has none",
        ..NONE
    },
    Policy {
        name: "uniform-deployment",
        about: "replicas of one size, composed and split at best",
        rents: Some(Renting {
            solve: cost_efficiency::uniform_deployment,
            cheapest: Some(Cheapest {
                solve: cost_efficiency::cheapest_of_one_size,
                second: None,
                limit: None,
                others: &[],
            }),
            ..GIVES_UP
        }),
        limit: RENTS,
        ..NONE
    },
    Policy {
        name: "round-robin",
        about: "every replica gets the same requests, composed and deployed at best",
        rents: Some(Renting { solve: cost_efficiency::round_robin, assignments: &[Assignment::Alike], ..GIVES_UP }),
        limit: "its program is linear in the time at which work ends, and needs that as its objective",
        ..NONE
    },
    Policy {
        name: "melange",
        about: "the cheapest GPUs that carry the work's rates in slices, for the shortest time within the budget (arXiv:2404.14527)",
        rents: Some(Renting {
            solve: melange::under_budget,
            cheapest: Some(Cheapest {
                solve: melange::within,
                second: Some(melange::second_within),
                limit: Some(melange::limit_within),
                others: &["homogeneous"],
            }),
            explain: Some(Explain { limit: melange::limit_under_budget, second: melange::second_under_budget }),
            ..GIVES_UP
        }),
        places: Some(Method::Melange),
        limit: "its replicas hold the whole model, so no request passes layers of several",
        ..NONE
    },
    placing(
        "colocated",
        "equal replicas on each machine, which read prompts and generate (as vLLM)",
        Method::Colocated,
    ),
    placing(
        "hexgen",
        "replicas over any GPUs with stages of their own, which read and generate (arXiv:2311.11514)",
        Method::HexGen,
    ),
    placing(
        "distserve",
        "prefill and decode on different groups of the same machine (arXiv:2401.09670)",
        Method::DistServe,
    ),
    placing(
        "thunderserve",
        "prefill and decode on any groups, by tabu search (arXiv:2502.09334)",
        Method::ThunderServe,
    ),
    placing("thunderserve-stale", "what a loss leaves of ThunderServe's plan", Method::Stale),
    placing(
        "thunderserve-flip",
        "what a loss leaves of ThunderServe's plan, with flipped phases and no weights loaded",
        Method::Flip,
    ),
    Policy {
        name: "helix",
        about: "layers by maximum flow, requests by its weights (arXiv:2406.01566)",
        places: Some(Method::Helix),
        flows: Some((&Placement::Searched { solver_s: 0.0 }, Scheduling::Flow)),
        limit: PLACES,
        ..NONE
    },
    flowing(
        "played",
        "of the placements that `helix` looks at the one that serves most in the simulation; requests as Helix",
        (&Placement::Played, Scheduling::Flow),
    ),
    flowing(
        "petals",
        "each node takes the layers that are served worst, fast nodes first (arXiv:2209.01188); requests by maximum flow",
        (&Placement::Petals, Scheduling::Flow),
    ),
    flowing(
        "swarm",
        "equal stages, requests by the recent times of the next nodes (arXiv:2301.11913)",
        (&Placement::Swarm, Scheduling::Swarm),
    ),
    flowing("separate", "one pipeline per type of node", (&Placement::Separate, Scheduling::Random)),
];

/// A policy by name.
pub fn named(name: &str) -> Option<&'static Policy> {
    POLICIES.iter().find(|policy| policy.name == name)
}

impl Policy {
    /// Whether it serves an objective.
    pub fn serves(&self, objective: Objective) -> bool {
        match objective {
            Objective::Time => self.rents.is_some(),
            Objective::Dollars => self.rents.is_some_and(|rents| rents.cheapest.is_some()),
            Objective::Goodput => self.places.is_some(),
            Objective::Throughput => self.flows.is_some(),
        }
    }

    /// Words of the objectives that it serves.
    pub fn objectives(&self) -> Vec<&'static str> {
        Objective::WORDS.iter().filter(|row| self.serves(row.1)).map(|row| row.0).collect()
    }
}

/// Policies that serve an objective, each with what it does for it.
pub fn serving<T>(objective: Objective, of: impl Fn(&'static Policy) -> Option<T>) -> Vec<(&'static str, T)> {
    let serving = POLICIES.iter().filter(|policy| policy.serves(objective));
    serving.filter_map(|policy| Some((policy.name, of(policy)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_serves_an_objective_and_says_why_not_the_others() {
        for policy in POLICIES {
            let n = policy.objectives().len();
            assert!(n > 0, "{}", policy.name);
            assert!(n == Objective::ALL.len() || !policy.limit.is_empty(), "{} has no reason", policy.name);
        }
        for (word, objective) in Objective::WORDS {
            assert_eq!(objective.name(), word);
            assert!(POLICIES.iter().filter(|policy| policy.serves(objective)).count() >= 2, "{word}");
        }
    }
}
