//! Which part of a request the services of a deployment do.
//!
//! Options of a worker say it, else `subComponentType`, else its type. Dynamo's own files of 2025 tell no more than which workers read prompts alone
//! (ai-dynamo/dynamo `components/backends/vllm/deploy/disagg.yaml` @ 416ff06e7fea), so what they leave open follows from the other services.

use crate::flags::Flags;
use crate::workers::Worker;

/// Reading prompts, and generating.
const ROLES: [&str; 2] = ["prefill", "decode"];

/// What a service says of itself, by its options, its part and its type: none where it does both, or says nothing, and whether it says nothing.
pub(super) fn said(flags: &mut Flags<'_>, part: Option<&str>, kind: &str) -> (Option<&'static str>, bool) {
    let mode = flags.text("disaggregation-mode");
    let by_switch = ROLES.into_iter().find(|role| flags.is(&format!("is-{role}-worker")));
    let word = mode.as_deref().or(by_switch).or(part).unwrap_or(kind);
    let role = ROLES.into_iter().find(|role| *role == word);
    (role, mode.is_none() && role.is_none())
}

/// Fills in what services leave open, each with whether it says nothing: names say it where those of both parts are there, and beside workers of one part alone
/// the others do the other part.
pub(super) fn filled_in(found: Vec<(Worker, bool)>) -> Vec<Worker> {
    let (mut workers, open): (Vec<Worker>, Vec<bool>) = found.into_iter().unzip();
    if open.iter().all(|is_open| *is_open) && ROLES.iter().all(|role| workers.iter().any(|one| is_named(one, role))) {
        for worker in &mut workers {
            worker.role = ROLES.into_iter().find(|role| is_named(worker, role));
        }
    }
    let [reads, generates] = ROLES.map(|role| workers.iter().any(|worker| worker.role == Some(role)));
    let rest = match (reads, generates) {
        (true, false) => Some(ROLES[1]),
        (false, true) => Some(ROLES[0]),
        _ => None,
    };
    for (worker, is_open) in workers.iter_mut().zip(open) {
        worker.role = worker.role.or(rest.filter(|_| is_open));
    }
    workers
}

fn is_named(worker: &Worker, role: &str) -> bool {
    worker.name.to_lowercase().contains(role)
}
