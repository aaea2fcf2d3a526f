//! `[engine.ffn]`: GPUs of a replica that hold the experts alone, beside those that attend (attention–FFN disaggregation).

use engine::verdict::Refused;
use input::reader::Section;
use serve::capacity;
use serve::kv::lending::Borrow;
use serve::memory_rule::MemoryRule;
use serve::process_memory::ProcessMemory;
use serve::step_cost::{FfnSide, ReplicaConfig};

use super::costs::CostLaw;
use super::{Serving, ServingChoice, ServingGroup};

/// Keys of `ffn`, of which `[tune]` and `[[policies.best]]` may list values.
pub(super) const NUMBERS: [&str; 3] = ["gpus", "attention_ranks", "micro_batches"];
/// Micro-batches where nobody says how many: one is with the experts while the other one attends.
const MICRO_BATCHES: u32 = 2;

/// `ffn = { gpus = 8, attention_ranks = 4, micro_batches = 3 }`.
pub(super) fn ffn(mut section: Section<'_>) -> Option<FfnSide> {
    let gpus = section.some_count("gpus", 1..=4096);
    section.missing("gpus", "GPUs of a replica that hold the experts alone, for example 8");
    let attention_ranks = section.small("attention_ranks", Some(1), 1..=4096);
    let micro_batches = section.small("micro_batches", Some(MICRO_BATCHES), 1..=64);
    section.finish();
    gpus.map(|gpus| FfnSide { gpus, attention_ranks, micro_batches })
}

/// What does not stand beside experts on GPUs of their own, and what to do.
pub(super) fn misfit(
    serving: &Serving,
    choice: &ServingChoice,
    group: &ServingGroup,
    ffn: FfnSide,
) -> Option<(String, &'static str)> {
    let (operation, experts) = (&choice.operation, &serving.engine.experts);
    let Some(routed) = group.model.experts else {
        let what = format!("`ffn` without experts: `{}` has none that could lie on other GPUs", group.model.name);
        return Some((what, "a model with experts, or no `ffn`"));
    };
    let groups = serving.groups_of(choice);
    // Beside groups that have their experts elsewhere others may share them.
    let shares_none = operation.ffn.is_some() || groups.iter().all(|group| group.ffn.is_some());
    let is_twice = operation.ffn.is_some() && group.ffn.is_some();
    let beside = [
        (is_twice, "another `ffn`, of the engine or the variant and of the group", "say it in one of both places"),
        (
            shares_none && operation.expert_degree > 1,
            "`ep`",
            "`ffn.gpus` says how many GPUs share the experts; no `ep`",
        ),
        (operation.pipeline_degree > 1, "`pp`", "micro-batches go to and fro between two sides; no `pp`"),
        (operation.drafts.is_some(), "`speculation`", "no drafts: their time beside two sides is not known"),
        (operation.adapters.room().is_some(), "`adapters`", "adapters merged into the weights, or no `ffn`"),
        (
            experts.deep_ep.is_some(),
            "`dispatcher`",
            "tokens go from one side to the other, and not among equals; no `dispatcher`",
        ),
        (
            experts.overlaps_batches,
            "`two_batch_overlap`",
            "`ffn.micro_batches` overlap already; no `two_batch_overlap`",
        ),
        (choice.kv.borrow != Borrow::Never, "memory that is lent", "`borrow = \"never\"`"),
        (
            matches!(serving.law, CostLaw::Stages(_)),
            "`cost.stage_ms`",
            "costs of operations: a stage's time does not tell both sides apart",
        ),
    ];
    if let Some((_, other, help)) = beside.into_iter().find(|(is_there, ..)| *is_there) {
        return Some((format!("`ffn` beside {other}"), help));
    }
    let n_kept = routed.n_routed + u64::from(experts.redundant.unwrap_or(0));
    if n_kept.is_multiple_of(ffn.gpus.into()) {
        return None;
    }
    let what = format!("`ffn.gpus` = {} with {n_kept} experts", ffn.gpus);
    Some((what, "every GPU holds as many experts: a number that divides them"))
}

/// Whether GPUs with experts alone hold these, where an iteration has so many tokens of every group that attends and a process takes so much besides.
pub(super) fn fits(
    deployment: &ReplicaConfig<'_>,
    rule: MemoryRule,
    of_process: ProcessMemory,
    tokens: u32,
) -> Result<(), Refused> {
    let iteration = capacity::expert_activations(deployment, tokens.into());
    capacity::experts_fit(deployment, rule, ProcessMemory { iteration, ..of_process }.by_rule())
}
