//! The independent checker: holds a plan against its problem and shares no code with any policy.
//!
//! It asks for conservation (every sequence exactly once, with its own length) and for shape (steps, groups and
//! context ranks exist). Memory is not asked here: a plan that does not fit runs out of memory in the simulation,
//! which is an outcome.

use crate::plan::{Place, Plan, SCHEMA};
use crate::problem::Problem;

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
