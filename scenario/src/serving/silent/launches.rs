//! Host times of launches that nobody waits for: graphs hold every iteration with prompts, or each layer has a time of its own.

use engine::model::Layer;
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader};
use serve::engine_preset::PromptGraphs;
use serve::replica::Role;
use serve::step_cost::ReplicaConfig;

use super::super::{CostLaw, Serving, ServingChoice, ServingGroup};

/// Where host times of launches stand, where they do.
pub(super) struct Written {
    plain: Option<Place>,
    experts: Option<Place>,
    intricate: Option<Place>,
    prompt_graphs: Option<Place>,
}

/// Finds them in a file of which no section was read yet.
pub(super) fn written(reader: &Reader<'_>) -> Written {
    const KEYS: [&str; 4] =
        ["host_us_per_layer", "host_us_per_expert_layer", "host_us_per_intricate_layer", "prompt_graph_max"];
    let [plain, experts, intricate, prompt_graphs] = KEYS.map(|key| reader.peek_in("engine", key).map(|(_, at)| at));
    Written { plain, experts, intricate, prompt_graphs }
}

/// Whether kernels of some iteration with prompts are launched one by one.
fn launches_prompts(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> bool {
    let (sequences, tokens) = serving.sizes_max(choice, group);
    let decoding = u64::from(sequences) * u64::from(choice.operation.tokens_per_sequence());
    let (tokens, counts_decoding) = (u64::from(tokens), choice.batcher.counts_decoding());
    let most = if counts_decoding { tokens.max(decoding) } else { tokens + decoding };
    u64::from(serving.deployment_of(choice, group).prompt_graph_tokens) < most
}

/// Replicas whose model has layers of a kind, and how many of them launch prompts.
fn count(serving: &Serving, has: &dyn Fn(&ReplicaConfig<'_>) -> bool) -> [usize; 2] {
    let mut n = [0; 2];
    for choice in serving.choices.iter().filter(|choice| choice.is_tried()) {
        for group in serving.groups_of(choice) {
            if has(&serving.deployment_of(choice, group)) {
                n[0] += 1;
                n[1] += usize::from(launches_prompts(serving, choice, group));
            }
        }
    }
    n
}

fn has_layers(config: &ReplicaConfig<'_>, is: impl Fn(Layer) -> bool) -> bool {
    config.model.kinds(0, config.model.n_layers).iter().any(|(layer, _)| is(*layer))
}

const GRAPHS: &str = "it needs iterations with prompts outside of captured graphs: SGLang from 0.5.10 on captures all, vLLM those of up to \
                      `graph_max` tokens; `prompt_graph_max = 0` captures none";

fn tell(key: &str, at: Option<&Place>, help: &str) -> Option<Finding> {
    let what = format!("`engine.{key}` changes nothing");
    Some(Finding::warning(Code::NoEffect, at?.clone(), what).help(help))
}

/// The time of layers that have no other one. An encoder of images is launched outside of graphs, and takes it too.
fn plain(serving: &Serving, written: &Written) -> Option<Finding> {
    let has_encoder = serving.groups.iter().any(|group| group.model.vision.is_some());
    let [all, launched] = count(serving, &|config| {
        written.experts.is_none()
            || has_layers(config, |layer| !layer.has_experts())
            || (written.intricate.is_none() && config.has_intricate_layers())
    });
    if launched > 0 || (has_encoder && !serving.requests.images.is_empty()) {
        return None;
    }
    let help = if all > 0 { GRAPHS } else { "it needs layers without experts" };
    tell("host_us_per_layer", written.plain.as_ref(), help)
}

/// `prompt_graph_max` where the engine captures as many by itself, and keeps no memory for them.
fn usual_graphs(serving: &Serving, written: &Written) -> Option<Finding> {
    let keeps_memory = serving.engine.preset.is_some_and(|preset| preset.prompt_graphs == PromptGraphs::Sglang);
    let changes = |choice: &ServingChoice, group: &ServingGroup| {
        let deployment = serving.deployment_of(choice, group);
        let own = serving.own_prompt_graphs(choice, group, deployment.graph_max);
        group.role != Role::Decode && own != deployment.prompt_graph_tokens
    };
    let mut pairs =
        serving.plain().flat_map(|choice| serving.groups_of(choice).into_iter().map(move |group| (choice, group)));
    if keeps_memory || pairs.any(|(choice, group)| changes(choice, group)) {
        return None;
    }
    tell("prompt_graph_max", written.prompt_graphs.as_ref(), "the engine captures as many tokens of prompts by itself")
}

/// Host times of launches that nobody waits for. Of layers that no model has others tell.
pub(super) fn idle(serving: &Serving, written: &Written) -> Vec<Finding> {
    if !matches!(serving.law, CostLaw::Operations) {
        return Vec::new();
    }
    let mut found: Vec<Finding> = plain(serving, written).into_iter().chain(usual_graphs(serving, written)).collect();
    let [experts, intricate] = [
        count(serving, &|config| has_layers(config, Layer::has_experts)),
        count(serving, &|config| config.has_intricate_layers()),
    ];
    if experts[0] > 0 && experts[1] == 0 {
        found.extend(tell("host_us_per_expert_layer", written.experts.as_ref(), GRAPHS));
    }
    if intricate[0] > 0 && intricate[1] == 0 {
        found.extend(tell("host_us_per_intricate_layer", written.intricate.as_ref(), GRAPHS));
    }
    found
}
