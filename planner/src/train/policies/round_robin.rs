//! Round-robin baseline of Skrull's study (arXiv:2505.19609, section 5.3): DACP without its step (a), so sequences go to the
//! rank with the most room and not to the one with the least load.

use train::{Plan, Problem};

use super::{all_fit, heuristic, skrull};
use crate::proof::{Aim, Decision};
use crate::train::dacp::{self, First};
use crate::train::policy::{Card, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "round_robin",
    about: "Skrull's baseline: sequences to the rank with the most room, work not balanced",
    source: "arXiv:2505.19609 section 5.3",
    method: "greedy with roll-back",
    parameters: skrull::PARAMETERS,
};

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    let decision = heuristic(CARD.name, problem, dacp::plan(problem, context, First::MostRoom)?);
    let objective = dacp::objective(problem, &decision.plan);
    Ok(decision.judged(Aim::Seconds, objective))
}
