//! Which part of a request the services of a deployment do.
//!
//! Options of a worker say it, else `subComponentType`, else its type. Dynamo's own files of 2025 tell no more than which workers read prompts alone
//! (ai-dynamo/dynamo `components/backends/vllm/deploy/disagg.yaml` @ 416ff06e7fea), so what they leave open follows from the other services.

use crate::flags::Flags;
use crate::workers::Worker;

/// Reading prompts, and generating.
const ROLES: [&str; 2] = ["prefill", "decode"];

/// What a service says of itself, by its options, its part and its type; none where it does both, or says nothing.
pub(super) fn said(flags: &mut Flags<'_>, part: Option<&str>, kind: &str) -> Option<&'static str> {
    let mode = flags.text("disaggregation-mode");
    let by_switch = ROLES.into_iter().find(|role| flags.is(&format!("is-{role}-worker")));
    let word = mode.as_deref().or(by_switch).or(part).unwrap_or(kind);
    ROLES.into_iter().find(|role| *role == word)
}

/// Fills in what services leave open: names say it where those of both parts are there, and beside workers of one part alone the others do the other part.
pub(super) fn fill_in(workers: &mut [Worker]) {
    let is_said = workers.iter().any(|worker| worker.role.is_some());
    let has_both_names = ROLES.iter().all(|role| workers.iter().any(|worker| is_named(worker, role)));
    if !is_said && has_both_names {
        for worker in workers.iter_mut() {
            worker.role = ROLES.into_iter().find(|role| is_named(worker, role));
        }
    }
    let [reads, generates] = ROLES.map(|role| workers.iter().any(|worker| worker.role == Some(role)));
    let rest = match (reads, generates) {
        (true, false) => ROLES[1],
        (false, true) => ROLES[0],
        _ => return,
    };
    for worker in workers.iter_mut().filter(|worker| worker.role.is_none()) {
        worker.role = Some(rest);
    }
}

fn is_named(worker: &Worker, role: &str) -> bool {
    worker.name.to_lowercase().contains(role)
}
