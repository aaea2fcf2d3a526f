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

/// Rows as turns of sessions, in the order in which sessions begin; a row without a session is one by itself.
pub(super) fn laid(requests: Requests, turns: &[Turn]) -> Requests {
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
    let mut laid = Requests { list: Vec::new(), ..requests.clone() };
    for session in sessions {
        let is_whole = session.len() == 1 || session.iter().any(|at| requests.list[*at].prefix_count > 0);
        let mut said = Session::new(0, requests.prefix_tokens);
        for (index, at) in session.into_iter().enumerate() {
            if is_whole {
                laid.list.push(requests.list[at]);
            } else {
                said.say(&requests.list[at], &[], &mut laid);
            }
            laid.follows.push(index > 0);
            laid.pauses.push(turns[at].delay.unwrap_or(Span::ZERO));
        }
    }
    laid
}
