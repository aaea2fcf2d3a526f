//! Sessions of a trace: rows with the same `session_id` are turns of one user, each sent its `delay` after the end of the one before.
//!
//! The keys are those of AIPerf's traces in Mooncake's form (ai-dynamo/aiperf, `mooncake_trace`). There the length of a turn is what is new in it, and what was said before
//! comes on top. A session whose rows have `hash_ids` names whole prompts, as Mooncake's own rows do. Units: milliseconds in files.

use std::collections::BTreeMap;

use hw::Span;

use crate::request::Requests;
use crate::sessions::Session;

/// Session and pause of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Name of its session.
    pub(super) session: Option<String>,
    /// Pause between the end of the turn before and this one.
    pub(super) delay: Option<Span>,
}

/// Rows of every session, in the order in which sessions begin; a row without a session is one by itself.
fn sessions(turns: &[Turn]) -> Vec<Vec<usize>> {
    let mut sessions: Vec<Vec<usize>> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, turn) in turns.iter().enumerate() {
        match turn.session.as_deref() {
            Some(name) if known.contains_key(name) => sessions[known[name]].push(at),
            name => {
                known.extend(name.map(|name| (name, sessions.len())));
                sessions.push(vec![at]);
            }
        }
    }
    sessions
}

/// Rows as turns of sessions.
pub(super) fn laid(requests: Requests, turns: &[Turn]) -> Requests {
    let mut laid = Requests { list: Vec::new(), ..requests.clone() };
    for session in sessions(turns) {
        lay(&requests, &session, &mut laid);
        laid.follows.extend((0..session.len()).map(|index| index > 0));
        laid.pauses.extend(session.iter().map(|at| turns[*at].delay.unwrap_or(Span::ZERO)));
    }
    laid
}

/// Adds the requests of a session.
fn lay(requests: &Requests, session: &[usize], laid: &mut Requests) {
    let of = |at: &usize| requests.list[*at];
    if session.len() == 1 || session.iter().any(|at| of(at).prefix_count > 0) {
        laid.list.extend(session.iter().map(of));
        return;
    }
    let mut said = Session::new(0, requests.prefix_tokens);
    session.iter().for_each(|at| said.say(&of(at), &[], laid));
}
