//! Sorted batching of LongAlign (arXiv:2401.18058; THUDM/LongAlign `sort_and_group.py`).
//!
//! The data set is sorted by length and cut into consecutive batches, whose order is shuffled; inside a batch as DeepSpeed.
//! Only the simulated steps' sequences are known here, so they are the data set.

use engine::random;
use train::plan::Step;
use train::{Plan, Problem};

use super::deepspeed::alone;
use super::{all_fit, deal, heuristic};
use crate::proof::Decision;
use crate::train::policy::{Card, PlanContext, PlanError};

pub(super) const CARD: Card = Card {
    name: "longalign",
    about: "sequences of similar length share a batch, batches in random order, else as deepspeed",
    source: "LongAlign, arXiv:2401.18058",
    method: "sort",
    parameters: &[],
};

pub(super) fn plan(problem: &Problem, _context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
    all_fit(problem)?;
    let workload = &problem.workload;
    let mut sorted: Vec<(u32, u64)> = (0..workload.n_steps()).flat_map(|step| workload.step(step)).collect();
    sorted.sort_by_key(|&(id, tokens)| (tokens, id));
    let mut batches: Vec<&[(u32, u64)]> = sorted.chunks(workload.batch_size).collect();
    random::stream(problem.seed, "longalign").shuffle(&mut batches);
    let step = |batch: &[(u32, u64)]| Step::of_groups(deal(batch.iter().copied().map(alone), problem.layout.dp));
    Ok(heuristic(CARD.name, problem, batches.into_iter().map(step).collect()))
}
