//! DeepSpeed ZeRO with static context parallelism: the baseline of Skrull (arXiv:2505.19609, section 5.1).
//!
//! Every sequence is cut over all context ranks; a micro-batch is one sequence, because its size is set by the longest one
//! (our reading); sequences are dealt to data-parallel ranks in arrival order.

use train::plan::{MicroBatch, Place, Placement, Step};
use train::{Plan, Problem};

use super::{all_fit, deal, heuristic};
use crate::proof::Decision;
use crate::train::policy::{Card, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "deepspeed",
    about: "every sequence cut over all context ranks, one per micro-batch, dealt in arrival order",
    source: "DeepSpeed ZeRO with static context parallelism, as in arXiv:2505.19609 section 5.1",
    method: "none",
    parameters: &[],
};

/// One sharded sequence as a micro-batch.
pub(super) fn alone((sequence, tokens): (u32, u64)) -> MicroBatch {
    MicroBatch {
        sequences: vec![Placement { sequence, from: 0, tokens, place: Place::Sharded }],
        ..MicroBatch::default()
    }
}

pub(super) fn plan(problem: &Problem, _context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    let step = |index| Step::of_groups(deal(problem.workload.step(index).map(alone), problem.layout.dp));
    Ok(heuristic(CARD.name, problem, (0..problem.workload.n_steps()).map(step).collect()))
}
