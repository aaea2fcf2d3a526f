//! What turns find of their session when a tool ran before them, beside those before which the user paused. Units: requests, seconds.

use std::collections::BTreeMap;

use hw::{Seconds, Span, Time, real};

use super::{latencies, spread};
use crate::fleet::Served;
use crate::request::Requests;

/// Adds `n_tool_turns`, `tool_ttft_s`, and the shares of prompt tokens that were cached: `tool_hit_ratio` of requests behind a tool, `user_hit_ratio` of
/// all others. Only where tools run, and of requests that were sent after the warm-up.
pub fn add(into: &mut BTreeMap<String, f64>, requests: &Requests, served: &Served, warm_up: Seconds) {
    if requests.after_tool.is_empty() {
        return;
    }
    let start = Time::ZERO + Span::from_seconds(warm_up);
    let (mut cached, mut prompts) = ([0_u64; 2], [0_u64; 2]);
    let (mut ttft, mut n) = (Vec::new(), 0_u64);
    for (at, latencies) in latencies(requests, served).enumerate() {
        let (request, record, is_after_tool) = (&requests.list[at], &served.records.list[at], requests.is_after_tool(at));
        if request.arrival < start || record.scheduled().is_none() {
            continue;
        }
        n += u64::from(is_after_tool);
        let kind = usize::from(is_after_tool);
        cached[kind] += u64::from(record.cached_tokens);
        prompts[kind] += u64::from(request.prompt);
        ttft.extend(latencies.filter(|_| is_after_tool).map(|found| found.ttft_s));
    }
    into.insert("n_tool_turns".to_owned(), real(n));
    for (key, kind) in [("user_hit_ratio", 0), ("tool_hit_ratio", 1)] {
        if prompts[kind] > 0 {
            into.insert(key.to_owned(), real(cached[kind]) / real(prompts[kind]));
        }
    }
    spread(into, "tool_ttft_s", ttft);
}
