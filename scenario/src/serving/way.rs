//! A way of serving: a batching policy, a router, limits and options of the engine. Variants, `[[policies.best]]` and `[tune]` have these keys.

use std::num::NonZeroU32;

use serve::batcher::{self, BATCHERS};
use serve::replica::Order;
use serve::router::{self, ROUTERS, RouterKind};
use toml_span::value::ValueInner;

use super::ServingChoice;
use super::engine::{self, EngineSection};
use super::kv::{self, KvTerms};
use super::operation::operation;
use input::diagnostic::Code;
use input::reader::Section;

/// A router by a key of a section.
pub fn router(section: &mut Section<'_>, key: &'static str) -> Option<&'static RouterKind> {
    let names = || ROUTERS.iter().map(|router| router.name);
    section.known(key, (Code::UnknownRouter, "router"), names, router::named)
}

/// Reads all keys but the name, which the caller gives it; what they say together may not fit.
pub fn way(
    section: &mut Section<'_>,
    (engine, kv): (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<ServingChoice> {
    let names = || BATCHERS.iter().map(|batcher| batcher.name());
    let batcher = if section.has("policy") || !section.has("framework") {
        section.named("policy", "a batching policy, for example `vllm-v1`", names, batcher::named)
    } else {
        // Published runs say whose engine it was, and batch as that does.
        batcher::named("vllm-v1")
    };
    let own_router = self::router(section, "router");
    let mut limits = engine.limits;
    let [usual_sequences, usual_tokens] = engine.is_usual;
    let is_usual = [usual_sequences && !section.has("max_sequences"), usual_tokens && !section.has("max_tokens")];
    limits.sequences_max = section.small("max_sequences", Some(limits.sequences_max), 1..=65_536);
    limits.tokens_max = section.small("max_tokens", Some(limits.tokens_max), 1..=1 << 20);
    limits.shares_prefixes = section.flag("prefix_cache", limits.shares_prefixes);
    limits.eviction = engine::eviction(section, limits.eviction);
    limits.order = section.one_of("scheduling", limits.order, &Order::WORDS);
    limits.recv_interval = engine::recv_interval(section, limits.recv_interval);
    let idle: &[&str] = if engine.has_door() { &["stream_interval"] } else { &["stream_interval", "api_servers"] };
    let (frontend, servers) = engine::frontend(section, (limits.frontend, engine.servers), idle);
    limits.frontend = frontend;
    limits.gather = engine::batch_wait(section, limits.gather, limits.tokens_max);
    let mut operation = operation(section, &engine.operation, engine.preset);
    operation.tensor_degree = section.some_count("tp", 1..=1024);
    let replicas = section.some_count("replicas", 1..=4096);
    let prefill_replicas = section.small("prefill_replicas", Some(0), 0..=4096);
    let prefill_tensor_degree = section.some_count("prefill_tp", 1..=1024);
    let concurrency = section.some_count("concurrency", 1..=10_000_000).and_then(NonZeroU32::new);
    let kv = section.table("kv").map_or_else(|| kv.clone(), |table| kv::terms(table, kv));
    let groups = some_of(section, "groups", "[[fleet.group]]");
    let streams = some_of(section, "streams", "[[trace.stream]]");
    let router = own_router.unwrap_or(router);
    Some(ServingChoice {
        name: String::new(),
        batcher: batcher?,
        router,
        tokens_asked: limits.tokens_max,
        tokens_raised: 0,
        limits,
        is_usual,
        servers,
        operation,
        kv,
        groups,
        streams,
        replicas,
        prefill_replicas,
        prefill_tensor_degree,
        concurrency,
        candidate: None,
        refused: None,
    })
}

/// Says that a degree of replicas which compute prompts for others changes nothing where no way of a section has any.
pub fn idle_degree(section: &mut Section<'_>) {
    if section.is_zero("prefill_replicas") {
        section.idle(&["prefill_tp"], "some `prefill_replicas`");
    }
}

/// `groups` or `streams` of a variant: those of the fleet that serve, those of the trace that are served.
fn some_of(section: &mut Section<'_>, key: &'static str, of: &str) -> Vec<String> {
    let Some((value, at)) = section.take(key) else { return Vec::new() };
    let names: Option<Vec<String>> = match &value {
        ValueInner::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    if names.as_ref().is_none_or(Vec::is_empty) {
        let what = format!("`{}` is no list of names", section.full(key));
        section.refuse(Code::WrongType, at, what, format!("write names of `{of}`, as a list"));
    }
    names.unwrap_or_default()
}
