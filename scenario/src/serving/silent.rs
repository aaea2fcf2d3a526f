//! What a serving scenario says and nothing heeds, and what it takes for granted. Warnings, but for a format that a card does not have: the run stays
//! as it is.

mod dispatcher;
mod exchanges;
mod expert_kernel;
mod launches;
mod laws;
mod network;
mod prompts;

use engine::cost::reduce::ReduceKernel;
use engine::model::Model;
use hw::Bytes;
use serve::engine_formats::{lacking, runs_on};
use serve::engine_preset::PRESETS;
use serve::engine_reduces::Asked;
use serve::kv::lending::Borrow;
use serve::kv::tiers::{N_TIERS, Store, Tier};
use serve::replica::batcher::Reserve;
use serve::replica::{Gather, Limits, Role};

use super::dynamics;
use super::engine::memory_of;
use super::{Serving, ServingChoice, ServingGroup};
use crate::formats::{FOUR_BIT_EXPERTS, NARROW_WEIGHTS, misfit, narrower_checkpoint};
use crate::network::Written;
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader};

/// Where keys stand that are looked at when the whole is known; `None` where they are not there.
pub struct Places {
    name: Option<Place>,
    engine: Option<Place>,
    weights: Option<Place>,
    /// A format of the model's experts by themselves.
    expert_weights: Option<Place>,
    /// A format of feed-forwards that are no routed experts.
    dense_weights: Option<Place>,
    tiers: Option<Place>,
    all_reduce: Option<Place>,
    max_context: Option<Place>,
    dataset: Option<Place>,
    prompt_rank: Option<Place>,
    stream_interval: Option<Place>,
    api_servers: Option<Place>,
    intricate: Option<Place>,
    first_token: Option<Place>,
    watermark: Option<Place>,
    launches: launches::Written,
    network: network::Written,
    /// Keys that say how iterations are played.
    of_played: Vec<laws::Written>,
    expert_kernel: Option<Place>,
    dispatcher: Option<Place>,
    experts: [(&'static str, Option<Place>); 7],
    /// Keys that say how exchanges travel.
    exchanges: Written,
    /// Whether requests come from elsewhere, and another side of the scenario may be on the same machine.
    is_side: bool,
}

impl Places {
    /// Of a file of which no section was read yet, or of a side of one.
    pub fn of(reader: &Reader<'_>, is_side: bool) -> Self {
        let at = |section: &str, key: &str| reader.peek_in(section, key).map(|(_, at)| at);
        let experts = [
            "expert_skew",
            "expert_counts",
            "redundant_experts",
            "dispatcher",
            "two_batch_overlap",
            "host_us_per_expert_layer",
            "expert_kernel",
        ];
        let experts = experts.map(|key| (key, at("engine", key)));
        Self {
            name: at("model", "name"),
            engine: at("engine", "name"),
            weights: at("model", "weights"),
            expert_weights: expert_weights(reader),
            dense_weights: at("model.weights", "dense").or_else(|| at("engine.weights", "dense")),
            tiers: at("engine", "tiers"),
            all_reduce: at("engine", "all_reduce"),
            max_context: at("engine", "max_context"),
            dataset: at("trace", "dataset_prompts"),
            prompt_rank: at("engine", "prompt_rank"),
            stream_interval: at("engine", "stream_interval"),
            api_servers: at("engine", "api_servers"),
            intricate: at("engine", "host_us_per_intricate_layer"),
            first_token: at("fleet", "first_token"),
            watermark: at("engine", "watermark_ratio"),
            expert_kernel: at("engine", "expert_kernel"),
            dispatcher: at("engine", "dispatcher"),
            launches: launches::written(reader),
            network: network::written(reader),
            of_played: laws::written(reader),
            experts,
            exchanges: Written::of(reader),
            is_side,
        }
    }

    /// Where a choice's formats stand.
    fn of_formats(&self, choice: &ServingChoice) -> Place {
        self.weights.clone().flatten().filter(|_| choice.operation.kernels.weights.is_of_model())
    }
}

/// Where `[model]` names a format of experts by themselves.
fn expert_weights(reader: &Reader<'_>) -> Option<Place> {
    let is_of_experts = |(word, _): &(String, Place)| word.trim_matches('"') == FOUR_BIT_EXPERTS;
    let words = [("model", "weights"), ("model.weights", "format")].map(|(section, key)| reader.peek_in(section, key));
    let found = reader.peek_in("model.weights", "experts").or(words.into_iter().flatten().find(is_of_experts));
    found.map(|(_, at)| at)
}

/// What says something of experts, where no model has any.
pub fn without_experts(reader: &mut Reader<'_>, serving: &mut Serving, places: &Places) {
    if serving.groups.iter().any(|group| group.model.experts.is_some()) {
        return;
    }
    for (key, at) in &places.experts {
        if let Some(at) = at {
            reader.warn(
                Code::NoEffect,
                at.clone(),
                format!("`engine.{key}` changes nothing"),
                "it needs a model with experts",
            );
        }
    }
    for key in ["`engine.host_us_per_expert_layer`", "`engine.redundant_experts`"] {
        serving.free_parameters.retain(|found| !found.starts_with(key));
    }
}

/// `[tune]` of which no setting can be served. Its own verb says so of each, and other verbs look at none.
fn no_setting(serving: &Serving) -> Option<Finding> {
    let tune = serving.tune.as_ref()?;
    let why = serving.ways_of(tune).next()?.refused.as_ref()?;
    let is_none = serving.ways_of(tune).all(|way| way.refused.is_some());
    let what = "`[tune]` changes nothing: none of its settings can be served";
    is_none.then(|| Finding::warning(Code::NoEffect, tune.at.clone(), what).help(&why.why))
}

/// An order in which prefixes leave a cache, where nobody keeps any.
fn without_prefixes(reader: &mut Reader<'_>, serving: &Serving) {
    let is_shared = serving.choices.iter().any(|choice| choice.limits.shares_prefixes);
    let is_asked = |choice: &&ServingChoice| choice.limits.eviction != Limits::ROOMY.eviction;
    let Some(choice) = serving.choices.iter().find(is_asked) else { return };
    if !is_shared || serving.requests.prefix_tokens == 0 {
        let what = format!("`eviction = \"{}\"` orders prefixes, and nobody keeps any", choice.limits.eviction.name);
        let help = "it needs `prefix_cache` and a trace with prefixes";
        reader.warn(Code::NoEffect, None, what, help);
    }
}

/// Refuses an engine that has no build for a card.
fn engine(reader: &mut Reader<'_>, serving: &Serving, places: &Places) {
    let Some(preset) = serving.engine.preset else { return };
    let Some(group) = serving.groups.iter().find(|group| !runs_on(preset.name, &group.cluster.gpu)) else { return };
    let what = format!("`{}` does not run on `{}`", preset.name, group.cluster.gpu.name);
    let help = "TensorRT-LLM is of CUDA; `vllm` and `sglang` have builds for ROCm";
    reader.refuse(Code::WrongOperation, places.engine.clone().flatten(), what, help);
}

/// Refuses formats that a card does not multiply, where they stand, and an engine that does not run there.
pub fn formats(reader: &mut Reader<'_>, serving: &Serving, places: &Places) {
    engine(reader, serving, places);
    let mut told = Vec::new();
    for choice in serving.plain() {
        for group in serving.groups_of(choice) {
            let formats = serving.formats_of(choice, group);
            let Some(what) = misfit(&formats, &group.cluster.gpu) else { continue };
            let at = places.of_formats(choice);
            if !told.contains(&(what.clone(), at.clone())) {
                let what_of = format!("`{}`: {what}", choice.name);
                reader.refuse(Code::WrongOperation, at.clone(), what_of, NARROW_WEIGHTS);
                told.push((what, at));
            }
        }
    }
}

/// Warns of what is not heeded.
pub fn check(reader: &mut Reader<'_>, serving: &Serving, places: &Places) {
    exchanges::check(reader, serving, places);
    let mut found = laws::idle(serving, &places.of_played);
    if super::is_played(serving) {
        without_prefixes(reader, serving);
        let mut others = of_played(serving, places);
        others.retain(|other| !found.iter().any(|finding| finding.what == other.what));
        found.extend(others);
    }
    let mut told: Vec<Finding> = Vec::new();
    for finding in found {
        if !told.contains(&finding) {
            reader.find(finding.clone());
            told.push(finding);
        }
    }
}

/// What is not heeded where requests are played.
fn of_played(serving: &Serving, places: &Places) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    found.extend(serving.choices.iter().filter_map(|choice| other_engine(serving, choice)));
    for choice in serving.plain() {
        for group in serving.groups_of(choice) {
            let formats = serving.formats_of(choice, group);
            let (has_experts, at) = (group.model.experts.is_some(), places.of_formats(choice));
            let is_written = places.expert_weights.is_some() || choice.operation.kernels.weights.named.has_experts;
            if is_written && !has_experts {
                let what = format!("a format of experts changes nothing: `{}` has none", group.model.name);
                let help = "it needs a model with experts; `weights = \"fp8\"` is for all layers";
                found.push(Finding::warning(Code::NoEffect, at.clone(), what).help(help));
            }
            let Some(preset) = serving.engine.preset else { continue };
            let asked = choice.operation.kernels.formats(group.model.formats);
            let lacks = lacking(preset.name, &asked, has_experts, &group.cluster.gpu);
            let is_refused = lacks.iter().any(|row| !row.from.is_empty());
            if formats != asked && !is_refused {
                let what = format!(
                    "`{}` multiplies no 8-bit floats, so `{}` keeps weights alone in 8 bits",
                    group.cluster.gpu.name, preset.name
                );
                let help = "products run in 16 bits (Marlin kernels) at the costs of `int8-weights`; `weights = \"int8-weights\"` says so itself";
                found.push(Finding::warning(Code::NoKernel, at.clone(), what).help(help));
            }
            for row in lacks {
                let (part, format) = (row.part.name(), row.format);
                let gpu = &group.cluster.gpu;
                let first = row.first_of(gpu.maker());
                let needs = first.map(|from| format!(": it needs {}", from.word())).unwrap_or_default();
                let on = if row.from.is_empty() { String::new() } else { format!(" on `{}`", gpu.name) };
                let what = format!("`{}` has no kernel for {part} in {format}{on}{needs}", preset.name);
                let help = format!("they are priced as if it had; {}", row.instead);
                found.push(Finding::warning(Code::NoKernel, at.clone(), what).help(help));
            }
        }
    }
    found.extend(without_dense(serving, places));
    found.extend(idle_tiers(serving, places));
    found.extend(plain_layers(serving, places));
    found.extend(whole_fleet(serving, places));
    found.extend(idle_reduces(serving, places));
    found.extend(long_context(serving, places));
    found.extend(idle_dataset(serving, places));
    found.extend(idle_wait(serving));
    found.extend(idle_rank(serving, places));
    found.extend(idle_servers(serving, places));
    found.extend(idle_watermark(serving, places));
    found.extend(published(serving, places));
    found.extend(no_setting(serving));
    found.extend(launches::idle(serving, &places.launches));
    found.extend(network::idle(serving, &places.network));
    found.extend(network::wide_links(serving));
    found.extend(network::late_outages(serving));
    found.extend(dynamics::of_fewer(serving));
    found.extend(expert_kernel::unknown(serving, places.expert_kernel.as_ref()));
    found.extend(dispatcher::idle(serving, places.dispatcher.as_ref()));
    found.extend(prompts::equal_chunks(serving));
    found.extend(prompts::dense(serving));
    found.extend(prompts::alone(serving));
    found
}

/// Whether a model has products in the format of dense feed-forwards: those, shared experts and what stands around routed ones, streams and inputs of layers.
fn has_dense(model: &Model) -> bool {
    let kinds = model.kinds(0, model.n_layers);
    let is_beside = model.streams.is_some() || model.layer_inputs.is_some();
    is_beside || kinds.iter().any(|(layer, _)| model.dense_parameters(*layer) > 0)
}

/// A format of feed-forwards that are no routed experts, where no layer has any.
fn without_dense(serving: &Serving, places: &Places) -> Option<Finding> {
    let mut choices = serving.plain();
    if places.dense_weights.is_none() && !choices.any(|choice| choice.operation.kernels.weights.named.has_dense) {
        return None;
    }
    if serving.groups.iter().any(|group| has_dense(&group.model)) {
        return None;
    }
    let at = places.dense_weights.clone().flatten();
    let help = "it needs layers without experts, or experts that every token visits";
    Some(Finding::warning(Code::NoEffect, at, "`weights.dense` changes nothing").help(help))
}

/// Batches of one engine beside the costs and constants of another.
fn other_engine(serving: &Serving, choice: &ServingChoice) -> Option<Finding> {
    let preset = serving.engine.preset?;
    let batcher = choice.batcher.name();
    let owner = PRESETS.iter().find(|other| other.batcher == batcher)?;
    let is_told = |other: &ServingChoice| other.batcher.name() == batcher;
    if owner.name == preset.name || (choice.candidate.is_some() && serving.plain().any(is_told)) {
        return None;
    }
    let name = choice.candidate.as_ref().map_or(&choice.name, |candidate| &candidate.of);
    let what = format!("`{}` batches as `{}` does, and `engine.name` is `{}`", name, owner.name, preset.name);
    let help =
        format!("`policy = \"{}\"` is its own; costs and host times stay those of `{}`", preset.batcher, preset.name);
    Some(Finding::warning(Code::OtherEngine, None, what).help(help))
}

/// Prompts wait for others where the policy lets them, and for a prompt on every rank where there are several.
fn idle_wait(serving: &Serving) -> Option<Finding> {
    let waits = |choice: &&ServingChoice| choice.limits.gather.is_some();
    let choice = serving.plain().find(waits)?;
    if !serving.plain().filter(waits).any(|choice| choice.batcher.name() == "trtllm") {
        let what = format!("`batch_wait` changes nothing: `{}` lets no prompt wait for others", choice.batcher.name());
        return Some(Finding::warning(Code::NoEffect, None, what).help("it needs `policy = \"trtllm\"`"));
    }
    let has_ranks = |choice: &ServingChoice| {
        serving.groups_of(choice).iter().any(|group| serving.deployment_of(choice, group).lanes().ranks > 1)
    };
    let asks_ranks = |choice: &&ServingChoice| matches!(choice.limits.gather, Some(Gather::Ranks { .. }));
    let asked: Vec<&ServingChoice> = serving.plain().filter(asks_ranks).collect();
    if asked.is_empty() || asked.iter().any(|choice| has_ranks(choice)) {
        return None;
    }
    let what = "`batch_wait` with `until = \"ranks\"` changes nothing: attention has one rank";
    let help = "it needs experts over more GPUs than attention: `ep` above `tp`";
    Some(Finding::warning(Code::NoEffect, None, what).help(help))
}

/// Norms inside of all-reduces, asked for where no kernel computes them so, and forbidden where the engine has no option of it.
fn idle_reduces(serving: &Serving, places: &Places) -> Option<Finding> {
    let of = |choice: &ServingChoice, group: &ServingGroup| {
        let deployment = serving.deployment_of(choice, group);
        if deployment.tensor_degree == 1 { ReduceKernel::Own } else { deployment.all_reduce }
    };
    let mut kernels =
        serving.plain().flat_map(|choice| serving.groups_of(choice).into_iter().map(move |group| of(choice, group)));
    let is_idle = match serving.engine.all_reduce {
        Asked::Auto => return None,
        Asked::Fused => !kernels.any(|kernel| kernel == ReduceKernel::Fused),
        Asked::Separate => kernels.all(|kernel| kernel == ReduceKernel::Own),
    };
    let help = "it needs SGLang, or vLLM with a dense model; a card of Hopper or Blackwell with NVLink; and one rank of \
                attention on several GPUs";
    let at = places.all_reduce.clone().flatten();
    is_idle.then(|| Finding::warning(Code::NoEffect, at, "`engine.all_reduce` changes nothing").help(help))
}

/// Engines refuse a context that the model has no positions for, unless they are told otherwise.
fn long_context(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.max_context.clone()?;
    let asked = serving.engine.limits.context_max;
    let model = serving.groups.iter().map(|group| &group.model).find(|model| model.max_positions < u64::from(asked))?;
    let what =
        format!("`engine.max_context` = {asked} is above the {} positions of `{}`", model.max_positions, model.name);
    let help = match serving.engine.preset?.name {
        "vllm" => "vLLM refuses it, unless `VLLM_ALLOW_LONG_MAX_MODEL_LEN=1` is set",
        "sglang" => "SGLang refuses it, unless `SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1` is set",
        _ => "answers beyond them are of no use, unless positions are scaled",
    };
    Some(Finding::warning(Code::LongContext, at, what).help(help))
}

/// Ranks are drawn for prompts on replicas that compute prompts alone, under the one policy that looks at them.
fn idle_rank(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.prompt_rank.clone()?;
    let has_ranks = |choice: &ServingChoice| {
        let prompts = |group: &&ServingGroup| group.role == Role::Prefill;
        let ranks = |group| serving.deployment_of(choice, group).lanes().ranks;
        choice.batcher.name() == "sglang"
            && serving.groups_of(choice).into_iter().filter(prompts).any(|group| ranks(group) > 1)
    };
    if serving.plain().any(has_ranks) {
        return None;
    }
    let help =
        "it needs `policy = \"sglang\"`, replicas with `role = \"prefill\"`, and several ranks there: `ep` above `tp`";
    Some(Finding::warning(Code::NoEffect, at, "`prompt_rank` changes nothing").help(help))
}

/// Servers share what handing tokens on takes, and work on requests; clients get several tokens at once to save it, in any way of serving.
fn idle_servers(serving: &Serving, places: &Places) -> Vec<Finding> {
    if serving.choices.iter().any(|choice| choice.limits.frontend.takes_time()) {
        return Vec::new();
    }
    let servers = places.api_servers.clone().filter(|_| !serving.engine.has_door());
    let written = [("api_servers", &servers), ("stream_interval", &places.stream_interval)];
    let idle = |(key, place): (&str, &Option<Place>)| {
        let finding = Finding::warning(Code::NoEffect, place.clone()?, format!("`engine.{key}` changes nothing"));
        Some(finding.help("it needs `stream_us_per_token` above 0"))
    };
    written.into_iter().filter_map(idle).collect()
}

/// Blocks stay free of prompts that take all of theirs at once.
fn idle_watermark(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.watermark.clone()?;
    let leaves = |choice: &ServingChoice| {
        let decodes = |group: &&ServingGroup| group.role == Role::Decode;
        choice.batcher.reserve() == Reserve::Whole
            || choice.limits.gather.is_some()
            || choice.kv.borrow != Borrow::Never
            || serving.groups_of(choice).iter().any(decodes)
    };
    if serving.engine.swap.is_some() || serving.choices.iter().any(leaves) {
        return None;
    }
    let help = "it needs a policy that takes the blocks of whole prompts at once, as `sarathi`, replicas with `role = \"decode\"`, or \
                `preemption = \"swap\"`";
    Some(Finding::warning(Code::NoEffect, at, "`engine.watermark_ratio` changes nothing").help(help))
}

/// Launches of intricate layers, where no layer is one.
fn plain_layers(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.intricate.clone()?;
    if has_intricate_layers(serving) {
        return None;
    }
    let help = "it needs layers with latent attention, a scan, or experts that run through Triton";
    Some(Finding::warning(Code::NoEffect, at, "`engine.host_us_per_intricate_layer` changes nothing").help(help))
}

/// Whether a model is served with layers that are launched in more kernels than others.
fn has_intricate_layers(serving: &Serving) -> bool {
    let has_some = |choice: &ServingChoice| {
        serving.groups_of(choice).iter().any(|group| serving.deployment_of(choice, group).has_intricate_layers())
    };
    serving.choices.iter().filter(|choice| choice.is_tried()).any(has_some)
}

/// A constant of a named engine for layers that nobody serves is nobody's assumption.
pub fn without_intricate_layers(serving: &mut Serving) {
    if !has_intricate_layers(serving) {
        serving.free_parameters.retain(|found| !found.starts_with("`engine.host_us_per_intricate_layer`"));
    }
}

/// Who gives first tokens, where nobody computes prompts for others.
fn whole_fleet(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.first_token.clone()?;
    let is_split = |choice: &ServingChoice| serving.groups_of(choice).iter().any(|group| group.role == Role::Prefill);
    if serving.choices.iter().any(is_split) {
        return None;
    }
    let help = "it needs replicas with `role = \"prefill\"`, or `prefill_replicas` of a way of serving";
    Some(Finding::warning(Code::NoEffect, at, "`fleet.first_token` changes nothing").help(help))
}

/// Tiers keep prefixes that requests share, in blocks that fit.
fn idle_tiers(serving: &Serving, places: &Places) -> Option<Finding> {
    if !serving.plain().any(|choice| choice.operation.has_tiers()) {
        let what = "`engine.tiers` change nothing: none has room";
        let help = "it needs some `host_gib`, `disk_gib` or `remote_gib`";
        return Some(Finding::warning(Code::NoEffect, places.tiers.clone()?, what).help(help));
    }
    if serving.requests.prefix_tokens > 0 {
        return small_tier(serving, places);
    }
    let help = "no prefix has a name; `[trace.sessions]`, of one turn too, or a file of type `mooncake`, gives some";
    let at = places.tiers.clone().flatten();
    Some(Finding::warning(Code::NoEffect, at, "`tiers` change nothing").help(help))
}

/// A tier with room for no block.
fn small_tier(serving: &Serving, places: &Places) -> Option<Finding> {
    let (name, word) = serving.plain().find_map(|choice| {
        let group = serving.groups_of(choice).into_iter().next()?;
        let memory = memory_of(serving, choice, group).ok()?;
        let mut all = TIERS.iter().zip(&choice.operation.tiers).zip(&memory.tiers);
        let holds_none =
            |((_, store), tier): &((&&'static str, &Store), &Tier)| store.room > Bytes(0) && tier.blocks == 0;
        all.find(holds_none).map(|((word, _), _)| (choice.name.clone(), *word))
    })?;
    let what = format!("`tiers.{word}` of `{name}` changes nothing: it has no room for a block");
    let help = "a block holds keys and values of `block_tokens` on all GPUs of a replica";
    Some(Finding::warning(Code::NoEffect, places.tiers.clone().flatten(), what).help(help))
}

/// Keys of the room of each tier.
const TIERS: [&str; N_TIERS] = ["host_gib", "disk_gib"];

/// Prompts that come again are like any others where nobody keeps them.
fn idle_dataset(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.dataset.clone()?;
    if serving.plain().any(|choice| choice.limits.shares_prefixes) {
        return None;
    }
    let help = "it needs `prefix_cache = true` in `[engine]` or in a policy";
    Some(Finding::warning(Code::NoEffect, at, "`trace.dataset_prompts` changes nothing").help(help))
}

/// A model that nobody serves in 16 bits, named without a format.
fn published(serving: &Serving, places: &Places) -> Option<Finding> {
    let at = places.name.clone()?;
    let path = narrower_checkpoint(&serving.model)?;
    let is_written = |choice: &ServingChoice| !choice.operation.kernels.weights.is_of_model();
    if places.weights.is_some() || serving.plain().any(is_written) {
        return None;
    }
    let what = format!("`{}` is served in 16 bits; its checkpoint is published in fewer", serving.model.name);
    let help =
        format!("`name = \"{path}\"` is the checkpoint, `weights = \"bf16\"` in `[model]` says that 16 bits are meant");
    Some(Finding::warning(Code::PublishedFormat, at, what).help(help))
}
