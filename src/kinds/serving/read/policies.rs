//! `[policies]` of a serving scenario: batching policies by name, and variants with limits and a router of their own.

use serve::batcher::{self, BATCHERS, Batcher};
use serve::router::{self, ROUTERS, RouterKind};
use toml_span::value::ValueInner;

use super::ServingChoice;
use super::best::{self, Best};
use super::engine::EngineSection;
use super::kv::{self, KvTerms};
use super::operation::operation;
use input::diagnostic::Code;
use input::reader::Section;
use input::run_list::{RunList, run_list};

/// A router by a key of a section.
pub fn router(section: &mut Section<'_>, key: &'static str) -> Option<&'static RouterKind> {
    let names = || ROUTERS.iter().map(|router| router.name);
    section.known(key, (Code::UnknownRouter, "router"), names, router::named)
}

/// What the section says.
pub struct Policies {
    /// Ways of serving that are compared by themselves, and those that the best one is chosen among.
    pub choices: Vec<ServingChoice>,
    /// What is chosen among several ways.
    pub best: Vec<Best>,
    /// Names of what is compared, in order.
    pub names: Vec<String>,
    /// The one that the others are compared with.
    pub baseline: String,
}

/// Reads the section.
pub fn policies(
    mut section: Section<'_>,
    (engine, kv): (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Policies {
    let (mut variants, mut best) = (Vec::new(), Vec::new());
    section.each_table("variant", &mut |table| {
        let named = variant(table, (engine, kv), router);
        variants.extend(named.map(|(name, choice)| (name, Asked::One(Box::new(choice)))));
    });
    section.each_table("best", &mut |table| {
        let found = best::best(table, (engine, kv), router);
        variants.extend(found.map(|(found, ways)| (found.name.clone(), Asked::Best(found, ways))));
    });
    let plain = |batcher: &'static dyn Batcher| ServingChoice {
        name: batcher.name().to_owned(),
        batcher,
        router,
        limits: engine.limits,
        operation: engine.operation.clone(),
        kv: kv.clone(),
        groups: Vec::new(),
        streams: Vec::new(),
        replicas: None,
        candidate: None,
    };
    let plain = BATCHERS.iter().map(|batcher| (batcher.name(), Asked::One(Box::new(plain(*batcher))))).collect();
    let RunList { choices: asked, baseline } = run_list(&mut section, plain, variants);
    section.finish();
    let (mut choices, mut names) = (Vec::new(), Vec::new());
    for (name, asked) in asked {
        names.push(name);
        match asked {
            Asked::One(choice) => choices.push(*choice),
            Asked::Best(found, ways) => {
                choices.extend(ways);
                best.push(found);
            }
        }
    }
    Policies { choices, best, names, baseline }
}

/// What runs under a name.
#[derive(Clone)]
enum Asked {
    /// One way.
    One(Box<ServingChoice>),
    /// The best of several.
    Best(Best, Vec<ServingChoice>),
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

/// `[[policies.variant]]`: a batching policy under a name of its own.
fn variant(
    mut section: Section<'_>,
    base: (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<(String, ServingChoice)> {
    let found = way(&mut section, base, router);
    if let Some(what) = found.as_ref().and_then(|(_, choice)| choice.few_tokens()) {
        section.refuse_all(Code::FewTokens, what, "every decoding sequence has its token in each iteration");
    }
    section.finish();
    found
}

/// The same for one of several ways, which may not fit.
pub fn way(
    section: &mut Section<'_>,
    (engine, kv): (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<(String, ServingChoice)> {
    let name = section.name();
    let names = || BATCHERS.iter().map(|batcher| batcher.name());
    let batcher = if section.has("policy") || !section.has("framework") {
        section.named("policy", "a batching policy, for example `vllm-v1`", names, batcher::named)
    } else {
        // Published runs say whose engine it was, and batch as that does.
        batcher::named("vllm-v1")
    };
    let own_router = self::router(section, "router");
    let mut limits = engine.limits;
    limits.sequences_max = section.small("max_sequences", Some(limits.sequences_max), 1..=65_536);
    limits.tokens_max = section.small("max_tokens", Some(limits.tokens_max), 1..=1 << 20);
    limits.shares_prefixes = section.flag("prefix_cache", limits.shares_prefixes);
    let mut operation = operation(section, &engine.operation);
    operation.tensor_degree = section.some_count("tp", 1..=1024);
    let replicas = section.some_count("replicas", 1..=4096);
    let kv = section.table("kv").map_or_else(|| kv.clone(), |table| kv::terms(table, kv));
    let groups = some_of(section, "groups", "[[fleet.group]]");
    let streams = some_of(section, "streams", "[[trace.stream]]");
    let router = own_router.unwrap_or(router);
    let (name, batcher) = (name?, batcher?);
    let candidate = None;
    let choice = ServingChoice {
        name: name.clone(),
        batcher,
        router,
        limits,
        operation,
        kv,
        groups,
        streams,
        replicas,
        candidate,
    };
    Some((name, choice))
}
