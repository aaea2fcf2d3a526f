//! Skrull (arXiv:2505.19609, NeurIPS 2025): distribution-aware context parallelism with global data scheduling.
//!
//! Problem: a context degree sized for the longest sequence makes short ones pay for communication and small kernels.
//! Idea: inside a micro-batch short sequences stay whole on one context rank while long ones are cut over all of them, so
//! that the exchange of long ones hides behind the attention of short ones; micro-batches pair short with long.
//! Objective (formulas in `dacp.rs`): min max over data-parallel ranks of Σ T_DACP, with
//! T_DACP = max_j (max(T_comm, T_comp(local_j)) + T_comp(sharded)), at most C tokens per rank.

use train::{Plan, Problem};

use super::{all_fit, heuristic};
use crate::proof::{Aim, Decision};
use crate::train::dacp::{self, First};
use crate::train::policy::{Card, Parameter, PlanContext, PlanError};

/// Parameters of the policies that are made of DACP and GDS.
pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::word(
        "rollback",
        &["strict", "paper", "off"],
        "what happens when nothing fits: account on every rank, as printed in the paper, or do not check at all",
    ),
    Parameter::word(
        "batching",
        &["gds", "arrival"],
        "how micro-batches are grouped: global data scheduling, or arrival order (DACP only)",
    ),
];

pub(super) const CARD: Card = Card {
    name: "skrull",
    about: "short sequences whole on one context rank, long ones cut over all, communication behind computation",
    source: "arXiv:2505.19609",
    method: "greedy with roll-back",
    parameters: PARAMETERS,
};

pub(super) fn plan(problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    let decision = heuristic(CARD.name, problem, dacp::plan(problem, context, First::LeastLoad)?);
    let objective = dacp::objective(problem, &decision.plan);
    Ok(decision.judged(Aim::Seconds, objective))
}
