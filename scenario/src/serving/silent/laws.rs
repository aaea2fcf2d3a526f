//! Keys that say how iterations are played, in a scenario whose times are given: `stage_ms`, or means of published runs.

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader};

use super::super::{CostLaw, Serving};

/// What the time of an iteration follows from where nobody gives it.
const OF_ITERATIONS: [&str; 17] = [
    "engine.host_us_per_step",
    "engine.host_us_per_sequence",
    "engine.host_us_per_layer",
    "engine.host_us_per_expert_layer",
    "engine.host_us_per_intricate_layer",
    "engine.detokenize_us_per_sequence",
    "engine.loop",
    "engine.graph_max",
    "engine.prompt_graph_max",
    "engine.graph_sizes",
    "engine.graph_padding",
    "engine.all_reduce",
    "engine.expert_skew",
    "engine.expert_kernel",
    "cost.attention_flops_ratio",
    "cost.sustained_flops_ratio",
    "cost.strict_hull",
];

/// What means of published runs do not tell either: queues, memory, clients, limits of latencies, prices.
const OF_REQUESTS: [&str; 29] = [
    "engine.max_sequences",
    "engine.max_tokens",
    "engine.max_context",
    "engine.block_tokens",
    "engine.kv_blocks",
    "engine.memory_ratio",
    "engine.watermark_ratio",
    "engine.prefix_cache",
    "engine.eviction",
    "engine.preemption",
    "engine.capacity_policy",
    "engine.swap_gib",
    "engine.recv_interval",
    "engine.batch_wait",
    "engine.prompt_rank",
    "engine.encoder_tp",
    "engine.start_ms",
    "engine.tokenize_us_per_token",
    "engine.stream_us_per_token",
    "engine.stream_interval",
    "engine.api_servers",
    "fleet.router",
    "fleet.first_token",
    "fleet.usd_per_gpu_hour",
    "slo.ttft_s",
    "slo.tpot_s",
    "slo.e2e_s",
    "slo.warm_up_s",
    "trace.requests",
];

/// A key that is written: the one that it is or stands for, how it is called, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Written {
    key: &'static str,
    words: String,
    at: Place,
}

/// Those of the keys that are written, and those of variants that stand for them.
pub(super) fn written(reader: &Reader<'_>) -> Vec<Written> {
    let keys = || OF_ITERATIONS.into_iter().chain(OF_REQUESTS);
    let mut found = Vec::new();
    for key in keys() {
        let (section, name) = key.split_once('.').expect("a key of a section");
        found.extend(reader.peek_in(section, name).map(|(_, at)| Written { key, words: format!("`{key}`"), at }));
    }
    for (variant, name, at) in reader.keys_of_list("policies", "variant") {
        let section = if name == "router" { "fleet" } else { "engine" };
        let key = keys().find(|key| key.split_once('.') == Some((section, name.as_str())));
        found.extend(key.map(|key| Written { key, words: format!("`{name}` of `{variant}`"), at }));
    }
    found
}

/// Those that change nothing, as times are given.
pub(super) fn idle(serving: &Serving, written: &[Written]) -> Vec<Finding> {
    let (is_played, help) = match serving.law {
        CostLaw::Operations => return Vec::new(),
        CostLaw::Stages(_) => (true, "it needs times of operations: `stage_ms` in `[cost]` is all that a stage takes"),
        CostLaw::PublishedRuns(_) => (false, "it needs requests that are played: leave `law` out of `[cost]`"),
    };
    let has_experts = serving.groups.iter().any(|group| group.model.experts.is_some());
    let mut found = Vec::new();
    for Written { key, words, at } in written {
        // Keys of experts were told of where nobody has any.
        let is_told = !has_experts && key.contains("expert");
        let is_heeded = is_played && OF_REQUESTS.contains(key);
        if !is_told && !is_heeded {
            let what = format!("{words} changes nothing");
            found.push(Finding::warning(Code::NoEffect, at.clone(), what).help(help));
        }
    }
    found
}
