//! `adapters` of `[engine]`, of a variant and of a stream: room for LoRA adapters, and which ones requests ask for.

use engine::Model;
use engine::model::Mixer;
use hw::BytesPerSecond;
use serve::adapters::{ADAPTERS_MAX, AdapterLimits, Popularity, Supply};
use serve::kv::lending::Borrow;
use serve::replica::Role;
use serve::step_cost::ReplicaConfig;
use serve::step_cost::adapter_room::{AdapterRoom, Modules};

use super::costs::CostLaw;
use super::{Serving, ServingChoice, ServingGroup};
use input::diagnostic::Code;
use input::reader::{Reader, Section, small};

/// Largest rank of an adapter that engines take (vLLM 0.19, `--max-lora-rank`).
const RANK_MAX: u64 = 512;
/// Slots at most.
const SLOTS_MAX: u64 = 4096;
/// Rank that slots have room for, where nobody says (vLLM's default).
const RANK_USUAL: u32 = 16;
/// Words of `modules`.
const MODULES: [(&str, Modules); 3] = [
    ("all", Modules { attention: true, feed_forward: true }),
    ("attention", Modules { attention: true, feed_forward: false }),
    ("feed-forward", Modules { attention: false, feed_forward: true }),
];

/// What an engine does with requests that ask for an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AdapterChoice {
    /// It knows none.
    #[default]
    Unknown,
    /// Weights are merged beforehand: such a request costs what any other does.
    Merged,
    /// It keeps them beside the model.
    Apart(AdapterOptions),
}

/// Room for adapters, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterOptions {
    /// Room on every GPU.
    pub room: AdapterRoom,
    /// Where others come from.
    pub supply: Supply,
}

impl AdapterChoice {
    /// Room on every GPU.
    pub const fn room(&self) -> Option<AdapterRoom> {
        match self {
            Self::Unknown | Self::Merged => None,
            Self::Apart(options) => Some(options.room),
        }
    }

    /// What a replica does with them, over a link to the host of so many bytes per second.
    pub fn limits(&self, config: &ReplicaConfig<'_>, host_link: BytesPerSecond) -> Option<AdapterLimits> {
        match self {
            Self::Unknown | Self::Merged => None,
            Self::Apart(options) => Some(options.supply.limits(&options.room, config, host_link)),
        }
    }
}

/// `adapters = { slots = 4, rank_max = 16 }`, or `{ merged = true }`.
pub fn adapters(mut section: Section<'_>) -> AdapterChoice {
    let is_merged = section.flag("merged", false);
    if is_merged {
        let keys = ["slots", "rank_max", "host_slots", "modules", "host_gb_per_s", "disk_gb_per_s"];
        section.idle(&keys, "`merged = false`");
    }
    let slots = section.small("slots", Some(1), 1..=SLOTS_MAX);
    let rank_max = section.small("rank_max", Some(RANK_USUAL), 1..=RANK_MAX);
    let (host_slots, host_at) = section.count("host_slots", Some(slots.into()), 1..=ADAPTERS_MAX.into());
    let modules = section.one_of("modules", MODULES[0].1, &MODULES);
    let host_gb_per_s = section.some_number("host_gb_per_s", 1e-3..=1e5);
    let disk_gb_per_s = section.some_number("disk_gb_per_s", 1e-3..=1e5);
    if host_slots < slots.into() {
        let what = format!("`host_slots` = {host_slots} is below `slots` = {slots}");
        section.refuse(Code::WrongAdapters, host_at, what, "what is on the device is in host memory too: raise it");
    }
    section.finish();
    if is_merged {
        return AdapterChoice::Merged;
    }
    let room = AdapterRoom { slots, rank_max, modules };
    let supply = Supply { host_slots: small(host_slots), host_gb_per_s, disk_gb_per_s };
    AdapterChoice::Apart(AdapterOptions { room, supply })
}

/// `adapters = { count = 40, rank = 16, skew = 1.0 }` of a stream.
pub fn popularity(mut section: Section<'_>) -> Popularity {
    let count = section.small("count", None, 1..=ADAPTERS_MAX.into()).max(1);
    let rank = section.small("rank", Some(RANK_USUAL), 1..=RANK_MAX);
    // The power law of S-LoRA's own workloads (arXiv:2311.03285, section 7.1) has an exponent of 1.
    let skew = section.number("skew", 1.0, 0.0..=10.0);
    let none_ratio = section.number("none_ratio", 0.0, 0.0..=1.0);
    section.finish();
    Popularity { count, rank, skew, none_ratio }
}

/// What is wrong where requests ask for adapters that an engine does not know, and what to do.
pub const NO_ROOM: (&str, &str) = (
    "requests ask for adapters, and the engine has no room for any",
    "`adapters = { slots = 4 }` in `[engine]` or in the variant; `{ merged = true }` costs nothing",
);

/// A misfit: its code, what is wrong, and what to do.
type Misfit = (Code, String, String);

/// What is wrong with adapters of a choice on a group, and what to do.
pub fn misfits(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Vec<Misfit> {
    let asked: Vec<Popularity> = serving
        .streams
        .iter()
        .filter(|stream| choice.takes(stream))
        .filter_map(|stream| stream.clients.adapters)
        .collect();
    let found = match (choice.operation.adapters, asked.is_empty()) {
        (AdapterChoice::Unknown, false) => Some((NO_ROOM.0.to_owned(), NO_ROOM.1)),
        (AdapterChoice::Apart(options), _) => {
            let of_load = load_misfit(&options, &asked);
            of_load.or_else(|| {
                misfit(serving, choice, (group, options.room.modules))
                    .map(|(what, help)| (format!("adapters {what}"), help))
            })
        }
        _ => None,
    };
    found.into_iter().map(|(what, help)| (Code::WrongAdapters, what, help.to_owned())).collect()
}

/// What requests ask for and an engine does not hold.
pub fn load_misfit(options: &AdapterOptions, asked: &[Popularity]) -> Option<(String, &'static str)> {
    let AdapterOptions { room, supply: Supply { host_slots, disk_gb_per_s, .. } } = options;
    if let Some(of) = asked.iter().find(|of| of.rank > room.rank_max) {
        let what = format!("adapters of rank {} in slots of `rank_max` = {}", of.rank, room.rank_max);
        return Some((what, "raise `rank_max`: every slot then takes more memory and time"));
    }
    let count: u32 = asked.iter().map(|of| of.count).sum();
    (count > *host_slots && disk_gb_per_s.is_none()).then(|| {
        let what =
            format!("{count} adapters, and host memory keeps `host_slots` = {host_slots}: others come from disk");
        (what, "write `disk_gb_per_s`, what the disks of a replica read together, or raise `host_slots`")
    })
}

/// Matrices of a model whose adapters have no times.
fn unpriced(model: &Model, modules: Modules) -> Option<&'static str> {
    // A window changes what is attended to and no matrix, unless its layers have heads of their own.
    let is_plain = |mixer: Mixer| {
        let widths = |mixer: Mixer| (model.heads(mixer).query_width(), model.heads(mixer).n_kv);
        matches!(mixer, Mixer::Full | Mixer::Window(_) | Mixer::Chunked(_)) && widths(mixer) == widths(Mixer::Full)
    };
    let differs = model.layers.kinds().iter().any(|kind| !is_plain(kind.mixer));
    match () {
        () if modules.feed_forward && has_other_experts(model) => Some("experts beside shared or dense ones"),
        () if modules.attention && model.latent.is_some() => Some("latent attention"),
        () if differs => Some("layers that differ"),
        () => None,
    }
}

/// Why adapters on these matrices of a model have no times, and what to do.
pub fn model_misfit(model: &Model, modules: Modules) -> Option<(String, &'static str)> {
    let what = unpriced(model, modules)?;
    let help = "another model, `modules = \"attention\"` where only experts are in the way, or no adapters";
    Some((format!("on `{}`: those on {what} are not priced", model.name), help))
}

/// Whether feed-forwards of a model are no routed experts alone, as wide as the model.
fn has_other_experts(model: &Model) -> bool {
    let Some(experts) = model.experts else { return false };
    let is_mixed = model.layers.kinds().iter().any(|kind| !kind.has_experts());
    is_mixed || experts.shared_intermediate > 0 || experts.latent.is_some()
}

/// What adapters cannot stand beside.
fn misfit(
    serving: &Serving,
    choice: &ServingChoice,
    (group, modules): (&ServingGroup, Modules),
) -> Option<(String, &'static str)> {
    let (operation, model) = (&choice.operation, &group.model);
    let wrong = |what: &str, help| Some((what.to_owned(), help));
    if !matches!(serving.law, CostLaw::Operations) {
        return wrong("beside times of whole stages or runs", "a cost model of operations");
    }
    if let Some(found) = model_misfit(model, modules) {
        return Some(found);
    }
    let tensor_degree = operation.tensor_degree.unwrap_or(group.tensor_degree);
    if operation.pipeline_degree > 1 || operation.degrees(tensor_degree, None).attention_ranks() > 1 {
        return wrong("beside several batches at once", "`pp = 1`, and no `ep` above `tp`");
    }
    if modules.feed_forward && model.experts.is_some() && operation.expert_degree > 1 {
        // `FusedMoEWithLoRA` in vllm/lora/layers/fused_moe.py, 0.17.
        let help = "vLLM cuts every expert over the tensor group then: `ep = 1`, or `modules = \"attention\"`";
        return wrong("on experts that lie whole on GPUs", help);
    }
    if group.role == Role::Outputs {
        let help = "replicas of `role = \"both\"`, or of `\"prefill\"` and `\"decode\"`";
        return wrong("where prompts are computed outside of the fleet", help);
    }
    if choice.kv.borrow != Borrow::Never {
        return wrong("beside memory that is lent", "`borrow = \"never\"`: lenders know no slots");
    }
    if choice.batcher.name() == "trtllm" || choice.limits.gather.is_some() {
        let help =
            "TensorRT-LLM has a cache of adapters of its own: `policy = \"vllm-v1\"` or another, without `batch_wait`";
        return wrong("by the rules of TensorRT-LLM", help);
    }
    if group.scaling.as_ref().is_some_and(|scaling| scaling.planned.is_some()) {
        return wrong(
            "beside a rule of `scaling` that plans",
            "`rule = \"concurrency\"`: a plan counts with the model alone",
        );
    }
    let groups = serving.groups_of(choice);
    let is_mixed = groups.iter().any(|other| other.model_index != group.model_index);
    if is_mixed {
        wrong("of several models in one fleet", "a variant with `groups` and `streams` of each model")
    } else {
        None
    }
}

/// Adapters that requests of a choice ask for.
fn count_asked(serving: &Serving, choice: &ServingChoice) -> u32 {
    let streams = serving.streams.iter().filter(|stream| choice.takes(stream));
    streams.filter_map(|stream| stream.clients.adapters).map(|of| of.count).sum()
}

/// Disks that no adapter comes from: host memory keeps all of them.
fn idle_disks(reader: &mut Reader<'_>, serving: &Serving) {
    let mut kept = None;
    for choice in &serving.choices {
        let AdapterChoice::Apart(AdapterOptions { supply, .. }) = choice.operation.adapters else { continue };
        let count = count_asked(serving, choice);
        if supply.disk_gb_per_s.is_none() || count == 0 {
            continue;
        }
        if count > supply.host_slots {
            return;
        }
        kept = Some((supply.host_slots, count));
    }
    if let Some((slots, count)) = kept {
        let what =
            format!("`disk_gb_per_s` changes nothing: host memory keeps {slots} adapters, and there are {count}");
        reader.warn(Code::NoEffect, None, what, "it needs `host_slots` below the number of adapters");
    }
}

/// Room that nobody asks for is named: it takes memory.
pub fn check(reader: &mut Reader<'_>, serving: &Serving) {
    let asks = |choice: &ServingChoice| {
        let streams = || serving.streams.iter().filter(|stream| choice.takes(stream));
        streams().any(|stream| stream.clients.adapters.is_some())
    };
    let is_idle = |choice: &&ServingChoice| choice.operation.adapters != AdapterChoice::Unknown && !asks(choice);
    if let Some(choice) = serving.choices.iter().find(is_idle) {
        let what = format!("`{}`: no request asks for an adapter; slots take memory alone", choice.name);
        let help = "`adapters = { count = 40, rank = 16 }` in `[trace]` or in a stream";
        reader.warn(Code::NoEffect, None, what, help);
    }
    idle_disks(reader, serving);
}
