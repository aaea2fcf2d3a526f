//! The independent checker: holds a plan against its problem and shares no code with any policy.
//!
//! It asks for conservation (every sequence exactly once, with its own length) and for shape (steps, groups and
//! context ranks exist). Memory is not asked here: a plan that does not fit runs out of memory in the simulation,
//! which is an outcome.

use std::collections::BTreeMap;

use crate::plan::{Place, Plan, SCHEMA, Step};
use crate::problem::Problem;
use crate::schedule::{Order, PassKind, Pipeline, Slot, play};

/// Findings kept at most; a broken plan would list every sequence otherwise.
const FINDINGS_MAX: usize = 20;

/// Checks a plan.
///
/// # Errors
/// Every finding, in plan order, at most 20.
pub fn check(problem: &Problem, plan: &Plan) -> Result<(), Vec<String>> {
    let mut findings = Vec::new();
    if plan.schema != SCHEMA {
        findings.push(format!("plan schema is `{}`, expected `{SCHEMA}`", plan.schema));
    }
    if plan.layout != problem.layout {
        findings.push("plan is for another layout than the problem".to_owned());
    }
    if plan.steps.len() != problem.workload.n_steps() {
        findings.push(format!("plan has {} steps, the workload {}", plan.steps.len(), problem.workload.n_steps()));
    }
    let mut seen = vec![0_u32; problem.workload.lengths.len()];
    for (step_index, step) in plan.steps.iter().enumerate() {
        if step.groups.len() != problem.layout.dp as usize {
            findings.push(format!(
                "step {step_index} has {} data-parallel groups, the layout {}",
                step.groups.len(),
                problem.layout.dp
            ));
        }
        findings.extend(orders(problem, step_index, step));
        for placement in step.groups.iter().flatten().flat_map(|micro_batch| &micro_batch.sequences) {
            let id = placement.sequence as usize;
            match problem.workload.lengths.get(id) {
                None => findings.push(format!("step {step_index} places sequence {id}, which does not exist")),
                Some(&tokens) if tokens != placement.tokens => {
                    findings.push(format!("sequence {id} has {tokens} tokens, the plan says {}", placement.tokens))
                }
                Some(_) => seen[id] += 1,
            }
            if let Place::Local(index) = placement.place
                && index >= problem.layout.cp
            {
                findings.push(format!("sequence {id} is local on context rank {index} of {}", problem.layout.cp));
            }
        }
    }
    let miscounted = seen.iter().enumerate().filter(|(_, count)| **count != 1);
    findings.extend(miscounted.map(|(id, count)| format!("sequence {id} is placed {count} times, expected once")));
    findings.truncate(FINDINGS_MAX);
    if findings.is_empty() { Ok(()) } else { Err(findings) }
}

/// Orders of a pipeline: one per data-parallel group, every pass exactly once, and playable.
fn orders(problem: &Problem, step_index: usize, step: &Step) -> Vec<String> {
    let layout = &problem.layout;
    if layout.pp == 1 && step.orders.is_empty() {
        return Vec::new();
    }
    if let Some(group) = (0..step.groups.len()).find(|&group| step.order(group).is_none()) {
        return vec![format!("step {step_index} has no order for group {group}")];
    }
    // Groups of one order are held against the longest of them.
    let of_order = |(index, order): (usize, &Order)| {
        let groups = (0..step.groups.len()).filter(|&group| step.order_of[group] as usize == index);
        let longest = groups.map(|group| step.groups[group].len()).max()?;
        let n = order.iter().flatten().map(|slot| slot.micro_batch as usize + 1).max().unwrap_or(0);
        let pipeline = Pipeline::of_schedule(problem.schedule, layout.pp as usize, layout.chunks as usize, n);
        let what = format!("order {index} of step {step_index}");
        if n < longest || order.len() != layout.pp as usize {
            return Some(format!("{what} is for {n} micro-batches on {} ranks", order.len()));
        }
        for (rank, slots) in order.iter().enumerate() {
            if let Some(wrong) = passes(&pipeline, slots) {
                return Some(format!("{what}, rank {rank}: {wrong}"));
            }
        }
        play(&pipeline, order).err().map(|stuck| format!("{what} cannot be played: {:?} wait", stuck.waiting))
    };
    step.orders.iter().enumerate().filter_map(of_order).collect()
}

/// Whether a rank does every pass once: a forward, and either a whole backward or its two halves.
fn passes(pipeline: &Pipeline, slots: &[Slot]) -> Option<String> {
    let mut kinds: BTreeMap<(u32, u32), Vec<PassKind>> = BTreeMap::new();
    for slot in slots {
        kinds.entry((slot.chunk, slot.micro_batch)).or_default().push(slot.kind);
    }
    let expected: usize = (0..pipeline.n_chunks).map(|chunk| pipeline.micro_batches(chunk).count()).sum();
    if kinds.len() != expected {
        return Some(format!("passes of {} micro-batches and chunks, expected {expected}", kinds.len()));
    }
    kinds.into_iter().find_map(|((chunk, micro_batch), mut kinds)| {
        kinds.sort_unstable();
        let whole = kinds == [PassKind::Forward, PassKind::Backward];
        let halves = kinds == [PassKind::Forward, PassKind::Input, PassKind::Weight];
        (!whole && !halves).then(|| format!("chunk {chunk}, micro-batch {micro_batch} has passes {kinds:?}"))
    })
}
