//! `[policies]` of a serving scenario: batching policies by name, and variants with limits and a router of their own.

use serve::batcher::{BATCHERS, Batcher};
use serve::router::RouterKind;

use super::ServingChoice;
use super::best::{self, Best};
use super::engine::EngineSection;
use super::kv::KvTerms;
use super::way;
use input::diagnostic::Code;
use input::reader::Section;
use input::run_list::{RunList, Silence, run_list_or};

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
        tokens_asked: engine.limits.tokens_max,
        tokens_raised: 0,
        is_usual: engine.is_usual,
        servers: engine.servers,
        operation: engine.operation.clone(),
        kv: kv.clone(),
        groups: Vec::new(),
        streams: Vec::new(),
        replicas: None,
        prefill_replicas: 0,
        prefill_tensor_degree: None,
        concurrency: None,
        candidate: None,
        refused: None,
    };
    let plain = BATCHERS.iter().map(|batcher| (batcher.name(), Asked::One(Box::new(plain(*batcher))))).collect();
    // An engine by its name batches as it does, unless the section says otherwise.
    let own = engine.preset.map_or_else(|| Silence::Lacks(unsaid()), |preset| Silence::Means(preset.batcher));
    let RunList { choices: asked, baseline } = run_list_or(&mut section, plain, variants, own);
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

/// What to write where neither an engine nor a rule is named.
fn unsaid() -> String {
    let rules = BATCHERS.iter().map(|batcher| batcher.name()).collect::<Vec<_>>().join(", ");
    format!("`name = \"vllm\"` (or sglang, trtllm) in `[engine]` batches as that engine does; or list some of {rules}")
}

/// What runs under a name.
#[derive(Clone)]
enum Asked {
    /// One way.
    One(Box<ServingChoice>),
    /// The best of several.
    Best(Best, Vec<ServingChoice>),
}

/// `[[policies.variant]]`: a batching policy under a name of its own.
fn variant(
    mut section: Section<'_>,
    base: (&EngineSection, &KvTerms),
    router: &'static RouterKind,
) -> Option<(String, ServingChoice)> {
    let name = section.name();
    way::idle_degree(&mut section);
    let found = way::way(&mut section, base, router);
    if let Some(what) = found.as_ref().and_then(ServingChoice::few_tokens) {
        section.refuse_all(Code::FewTokens, what, "every decoding sequence has its token in each iteration");
    }
    section.finish();
    let (name, choice) = name.zip(found)?;
    Some((name.clone(), ServingChoice { name, ..choice }))
}
