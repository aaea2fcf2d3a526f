//! What turns find of their session when a tool ran before them, beside those before which the user paused. Units: requests, seconds.

use std::collections::BTreeMap;

use hw::{Seconds, Span, Time, real};

use super::{latencies, spread};
use crate::fleet::Served;
use crate::request::Requests;

/// Requests of one kind: how many were served, their prompts and what of them was cached.
#[derive(Clone, Copy, Default)]
struct Found {
    n: u64,
    prompts: u64,
    cached: u64,
}

/// What requests found that a user's pause, or nothing, came before, and those that a tool came before; sent after the warm-up.
fn found(requests: &Requests, served: &Served, start: Time) -> [Found; 2] {
    let mut kinds = [Found::default(); 2];
    for (at, (request, record)) in requests.list.iter().zip(&served.records.list).enumerate() {
        if request.arrival >= start && record.scheduled().is_some() {
            let kind = &mut kinds[usize::from(requests.is_after_tool(at))];
            kind.n += 1;
            kind.prompts += u64::from(request.prompt);
            kind.cached += u64::from(record.cached_tokens);
        }
    }
    kinds
}

/// Adds `n_tool_turns`, `tool_ttft_s`, and the shares of prompt tokens that were cached: `tool_hit_ratio` of requests behind a tool, `user_hit_ratio` of
/// all others. Only where tools run, and of requests that were sent after the warm-up.
pub fn add(into: &mut BTreeMap<String, f64>, requests: &Requests, served: &Served, warm_up: Seconds) {
    if requests.after_tool.is_empty() {
        return;
    }
    let start = Time::ZERO + Span::from_seconds(warm_up);
    let [users, tools] = found(requests, served, start);
    into.insert("n_tool_turns".to_owned(), real(tools.n));
    for (key, kind) in [("user_hit_ratio", users), ("tool_hit_ratio", tools)] {
        if kind.prompts > 0 {
            into.insert(key.to_owned(), real(kind.cached) / real(kind.prompts));
        }
    }
    let is_asked = |at: usize| requests.is_after_tool(at) && requests.list[at].arrival >= start;
    let ttft = latencies(requests, served).enumerate().filter(|(at, _)| is_asked(*at));
    spread(into, "tool_ttft_s", ttft.filter_map(|(_, latencies)| Some(latencies?.ttft_s)).collect());
}
