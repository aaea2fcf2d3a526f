//! The table of policies: one file each, one `mod` line and one row here.

use train::layout::Zero;
use train::problem::GradientSync;
use train::schedule::Placement;
use train::{Plan, Problem};

use crate::proof::Decision;
use crate::train::policy::{Card, PlanContext, PlanError, Policy, Reads};

mod best_fit;
mod bytescale;
mod chunkflow;
mod deepspeed;
mod flexsp;
mod hybrid_cp;
mod hydraulis;
mod improved;
mod longalign;
mod malleus;
mod megatron;
mod round_robin;
mod skrull;
mod skrull_exact;

/// Every policy.
pub static POLICIES: &[&dyn Policy] = &[
    &packing(&best_fit::CARD, best_fit::plan),
    &paper(&bytescale::CARD, bytescale::plan),
    &paper(&chunkflow::CARD, chunkflow::plan),
    &packing(&deepspeed::CARD, deepspeed::plan),
    &paper(&flexsp::CARD, flexsp::plan),
    &whole(paper(&hybrid_cp::CARD, hybrid_cp::plan)),
    &paper(&hydraulis::CARD, hydraulis::plan),
    &weighing(&improved::CARD, improved::plan),
    &packing(&longalign::CARD, longalign::plan),
    &whole(weighing(&malleus::CARD, malleus::plan)),
    &packing(&megatron::CARD, megatron::plan),
    &packing(&round_robin::CARD, round_robin::plan),
    &packing(&skrull::CARD, skrull::plan),
    &packing(&skrull_exact::CARD, skrull_exact::plan),
];

/// A policy that is a card and a function.
struct Paper {
    card: &'static Card,
    plan: Plans,
    weighs_stragglers: bool,
    fits_whole: bool,
    reads: Reads,
}

type Plans = fn(&Problem, &PlanContext<'_>) -> Result<Decision<Plan>, PlanError>;

const fn paper(card: &'static Card, plan: Plans) -> Paper {
    Paper { card, plan, weighs_stragglers: false, fits_whole: false, reads: Reads::Everything }
}

/// One that packs sequences into the room that ranks have, and looks at nothing else of a layout.
const fn packing(card: &'static Card, plan: Plans) -> Paper {
    whole(Paper { reads: Reads::Room, ..paper(card, plan) })
}

/// One that asks `all_fit`.
const fn whole(paper: Paper) -> Paper {
    Paper { fits_whole: true, ..paper }
}

/// One whose plans fit the speed of devices that straggle.
const fn weighing(card: &'static Card, plan: Plans) -> Paper {
    Paper { weighs_stragglers: true, ..paper(card, plan) }
}

impl Policy for Paper {
    fn card(&self) -> &'static Card {
        self.card
    }

    fn weighs_stragglers(&self) -> bool {
        self.weighs_stragglers
    }

    fn fits_whole(&self) -> bool {
        self.fits_whole
    }

    fn reads(&self) -> Reads {
        self.reads
    }

    fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
        let decision = (self.plan)(problem, context)?;
        can_run(problem, &decision.plan)?;
        Ok(decision)
    }
}

/// Refuses a plan that the execution of a problem has no way to run.
fn can_run(problem: &Problem, plan: &Plan) -> Result<(), PlanError> {
    updates_once(problem, plan)?;
    match limit_of_flushes(problem, plan) {
        Some(what) => Err(PlanError::Unsupported(format!("`parallel.flush_every` beside {what}"))),
        None => Ok(()),
    }
}

/// What a pipeline that is flushed within a step cannot have.
fn limit_of_flushes(problem: &Problem, plan: &Plan) -> Option<&'static str> {
    let every = problem.execution.flush_every?;
    if plan.steps.iter().any(train::plan::Step::is_mixed) {
        return Some("pipelines of their own, which are flushed once");
    }
    if problem.layout.pp == 1 {
        return None;
    }
    if *problem.schedule == super::orders::OPTIMAL {
        return Some("`schedule = \"optimal\"`, whose proof is of one flush");
    }
    if problem.schedule.placement == Placement::Bidirectional && !every.is_multiple_of(2) {
        return Some("two copies of the model, which take micro-batches in turn: write an even number");
    }
    let micro_batches = plan.steps.iter().flat_map(|step| step.groups.iter().flatten());
    let mut parts = micro_batches.flat_map(|micro_batch| &micro_batch.sequences);
    let lengths = &problem.workload.lengths;
    parts
        .any(|part| part.tokens < lengths[part.sequence as usize])
        .then_some("sequences that are cut over micro-batches, which may be of two flushes")
}

/// Refuses several micro-batches where each backward updates: none is left to add gradients over. torchtune refuses them too ("Gradient accumulation is not
/// supported with optimizer in bwd", `recipes/full_finetune_single_device.py`).
fn updates_once(problem: &Problem, plan: &Plan) -> Result<(), PlanError> {
    let execution = &problem.execution;
    let n_most = plan.steps.iter().flat_map(|step| step.groups.iter().map(Vec::len)).max().unwrap_or(0);
    if !execution.updates_in_backward() || n_most < 2 {
        return Ok(());
    }
    Err(PlanError::Unsupported(format!(
        "{n_most} micro-batches for a step, and `optimizer.kernels = \"in-backward\"` updates in each backward: a step of one micro-batch, or \
         `kernels = \"fused\"`"
    )))
}

/// The policy that plans around slow devices, asked for problems that differ in these alone: what was searched for one is known for the others.
#[derive(Default)]
pub struct Replans(malleus::Divisions);

impl Replans {
    /// Its name.
    pub const POLICY: &str = malleus::CARD.name;

    /// A plan.
    ///
    /// # Errors
    /// When it has none for the layout.
    pub fn plan(&self, problem: &Problem, context: &PlanContext<'_>) -> Result<Decision<Plan>, PlanError> {
        let decision = malleus::planned(problem, context, &self.0)?;
        can_run(problem, &decision.plan)?;
        Ok(decision)
    }
}

/// A policy by name.
pub fn named(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.card().name == name)
}

/// A plan of a policy that knows nothing about its quality.
fn heuristic(policy: &str, problem: &Problem, steps: Vec<train::plan::Step>) -> Decision<Plan> {
    Decision::plain(Plan::new(policy, problem, steps))
}

/// Refuses a sequence that no group can hold.
fn all_fit(problem: &Problem) -> Result<(), PlanError> {
    let capacity = problem.bucket_tokens * u64::from(problem.layout.cp);
    let longest =
        problem.workload.lengths.iter().enumerate().max_by_key(|(index, length)| (**length, std::cmp::Reverse(*index)));
    match longest {
        Some((index, &length)) if length > capacity => Err(PlanError::Infeasible(format!(
            "sequence {index} has {length} tokens, a context group holds {capacity} ({} per rank on {} ranks)",
            problem.bucket_tokens, problem.layout.cp
        ))),
        _ => Ok(()),
    }
}

/// Why pipelines of their own cannot do what the layout says: the optimizer is cut over all of them, parameters are whole, gradients are
/// reduced once, and the policy gives layers to stages.
fn limit_of_own_pipelines(problem: &Problem) -> Option<&'static str> {
    let execution = &problem.execution;
    if !execution.layers.is_empty() {
        return Some("pipelines of their own have stages that the policy cuts: leave `parallel.layers` out");
    }
    match problem.layout.zero {
        Zero::Off => {
            Some("pipelines of their own share one optimizer, ZeRO 0 has one each: use `zero = 1` or `zero = 2`")
        }
        Zero::Parameters => {
            Some("pipelines of their own hold whole parameters, ZeRO 3 does not: use `zero = 1` or `zero = 2`")
        }
        _ if execution.gradient_sync == GradientSync::EachMicroBatch => {
            Some("pipelines of their own reduce gradients once: use `gradient_sync = \"overlapped\"` or `\"at_end\"`")
        }
        _ if problem.model.experts.is_some() && !problem.layout.holds_experts_in_tensor_groups() => {
            Some("pipelines of their own hold whole experts in each tensor group: use `ep = tp`, or `expert_tp = tp`")
        }
        _ if problem.layout.replicate > 1 => {
            Some("pipelines of their own share one copy of the sharded states: leave `parallel.replicate` out")
        }
        _ if execution.overlap.parameter_gather => {
            Some("pipelines of their own gather parameters behind the optimizer: leave `overlap.parameter_gather` out")
        }
        _ => None,
    }
}

/// Deals sequences to data-parallel groups by model operations, longest first; in each group in order of arrival.
fn deal_longest(problem: &Problem, sequences: &[(u32, u64)]) -> Vec<Vec<(u32, u64)>> {
    let weights: Vec<f64> =
        sequences.iter().map(|(_, tokens)| crate::train::dacp::flops(&problem.model, *tokens)).collect();
    let groups = crate::train::pack::longest_first(&weights, problem.layout.dp as usize);
    let in_order = |mut group: Vec<usize>| {
        group.sort_unstable();
        group.into_iter().map(|index| sequences[index]).collect()
    };
    groups.into_iter().map(in_order).collect()
}

/// Deals items to data-parallel ranks in turn.
fn deal<T>(items: impl IntoIterator<Item = T>, n_groups: u32) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = (0..n_groups).map(|_| Vec::new()).collect();
    let n = groups.len();
    for (index, item) in items.into_iter().enumerate() {
        groups[index % n].push(item);
    }
    groups
}

#[cfg(test)]
pub(crate) mod tests;
