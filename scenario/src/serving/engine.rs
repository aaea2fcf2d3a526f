//! `[engine]`: limits of a replica, its memory, and what preemption costs.

mod context;
mod expert_kernel;
mod graphs;
mod host;

pub(crate) use expert_kernel::ExpertPlacement;

use std::num::NonZeroU32;
use std::path::Path;

use engine::{Model, encoder::Split, verdict::Refused};
use hw::{Bytes, BytesPerSecond, Gpu, Seconds, Tick};
use serve::adapters::AdapterLimits;
use serve::capacity::{self, Capacity};
use serve::engine_constants::{self, EngineConstants};
use serve::engine_preset::{self, EnginePreset, Sizes, Version};
use serve::engine_reduces::Asked;
use serve::frontend::Frontend;
use serve::kv::remote::Remote;
use serve::kv::tiers::{self, BlockBytes, N_TIERS, Tier};
use serve::kv::{EVICTIONS, Eviction};
use serve::memory_rule::MemoryRule;
use serve::process_memory::ProcessMemory;
use serve::replica::{CapacityPolicy, Gather, Limits, Order, Preemption, PromptRank};
use serve::sampler::Sampler;
use serve::step_cost::FfnSide;
use serve::step_cost::graphs::GraphFit;

use graphs::Graphs;

use super::activations;
use super::experts::{self, ExpertChoice};
use super::ffn;
use super::operation::{self, Operation};
use super::start::{self, StartSection};
use super::{Serving, ServingChoice, ServingGroup, whole_prompts};
use crate::formats::narrower_checkpoint;
use input::diagnostic::{Code, Finding};
use input::reader::{Place, Reader, Section, small};

/// What the section says.
#[derive(Clone, Debug)]
pub struct EngineSection {
    /// GPUs of a replica.
    pub tensor_degree: u32,
    /// Limits, with `kv_blocks` and `context_max` at 0 where they follow from the rest.
    pub limits: Limits,
    /// Whether nobody wrote its sequences, and its tokens.
    pub is_usual: [bool; 2],
    /// API servers of a replica, where somebody wrote them.
    pub servers: Option<NonZeroU32>,
    /// What the engine takes of the device's memory.
    memory: MemoryRule,
    /// The engine whose defaults hold, where one is named.
    pub preset: Option<&'static EnginePreset>,
    /// Its version; the newest where nobody says one.
    pub version: Version,
    /// Whether norms are asked for inside of all-reduces.
    pub all_reduce: Asked,
    /// How tokens spread over experts, and which lie twice.
    pub experts: ExpertChoice,
    /// Whether a server takes requests of as many tokens as memory holds.
    pub fits_context: bool,
    /// What is written of graphs.
    graphs: Graphs,
    /// Share of blocks that admissions of whole prompts leave free.
    watermark_ratio: f64,
    /// Host memory for swapped sequences; `None` recomputes.
    pub swap: Option<Bytes>,
    /// Host time per iteration, microseconds.
    pub host_us_per_step: f64,
    /// What it takes longer where the overlapped loop is turned off, microseconds.
    pub serial_us_per_step: f64,
    /// Host time per sequence of an iteration, microseconds.
    pub host_us_per_sequence: f64,
    /// Host time per layer of an iteration with prompts, microseconds.
    pub host_us_per_layer: f64,
    /// The same of a layer with experts, microseconds.
    pub host_us_per_expert_layer: f64,
    /// The least of an intricate layer, microseconds.
    pub host_us_per_intricate_layer: f64,
    /// Host time per sequence of an iteration that turns tokens into text, microseconds.
    pub detokenize_us_per_sequence: f64,
    /// How long requests are on the way to its queue.
    pub start: StartSection,
    /// What a tensor group shares of an encoder of images.
    pub encoder_split: Split,
    /// Where that is written.
    pub encoder_at: Option<Place>,
    /// How the engine works besides.
    pub operation: Operation,
}

impl EngineSection {
    /// Parameters that are no measurement, as sentences.
    pub fn free_parameters(&self, sustained_flops_ratio: f64, choices: &[ServingChoice]) -> Vec<String> {
        let stream_us = self.limits.frontend.us_per_token();
        let is_serial = choices.iter().any(|choice| choice.operation.is_overlap_off(self.preset));
        let given = [
            ("engine.host_us_per_step", self.host_us_per_step, self.host_us_per_step > 0.0),
            ("engine.host_us_per_step", self.serial_us_per_step, self.serial_us_per_step > 0.0 && is_serial),
            ("engine.host_us_per_sequence", self.host_us_per_sequence, self.host_us_per_sequence > 0.0),
            ("engine.host_us_per_layer", self.host_us_per_layer, self.host_us_per_layer > 0.0),
            ("engine.host_us_per_expert_layer", self.host_us_per_expert_layer, self.has_expert_launches()),
            ("engine.host_us_per_intricate_layer", self.host_us_per_intricate_layer, self.has_intricate_launches()),
            (
                "engine.detokenize_us_per_sequence",
                self.detokenize_us_per_sequence,
                self.detokenize_us_per_sequence > 0.0,
            ),
            ("engine.stream_us_per_token", stream_us, stream_us > 0.0),
            ("cost.sustained_flops_ratio", sustained_flops_ratio, sustained_flops_ratio < 1.0),
        ];
        let given = given.into_iter().filter(|(_, _, is_given)| *is_given).map(|(key, value, _)| assumed(key, value));
        let mut all: Vec<String> = Vec::new();
        let drawn = self.experts.drawn();
        for parameter in given.chain(drawn).chain(choices.iter().flat_map(ServingChoice::free_parameters)) {
            if !all.contains(&parameter) {
                all.push(parameter);
            }
        }
        all
    }

    /// Whether requests wait for API servers of the named engine.
    pub(super) fn has_door(&self) -> bool {
        let works = |preset: &EnginePreset| preset.api_server.us_per_request > 0.0;
        self.start.mean > Seconds::ZERO && self.preset.is_some_and(works)
    }

    /// Whether layers with experts have a time of their own.
    fn has_expert_launches(&self) -> bool {
        self.host_us_per_expert_layer > 0.0 && self.host_us_per_expert_layer.total_cmp(&self.host_us_per_layer).is_ne()
    }

    /// Whether intricate layers take longer than all others.
    fn has_intricate_launches(&self) -> bool {
        self.host_us_per_intricate_layer > self.host_us_per_layer.max(self.host_us_per_expert_layer)
    }

    /// Batches that a tensor group has captured where an iteration has at most so many sequences and tokens, and the largest.
    pub fn captured(&self, gpu: &Gpu, tensor_degree: u32, largest: (u32, u32)) -> (Vec<u32>, u32) {
        self.graphs.captured(self.preset, (gpu, tensor_degree), largest)
    }

    /// Most tokens of a captured iteration with prompts: what is written, or those of the engine.
    pub fn prompt_graph_tokens(&self, of_engine: u32) -> u32 {
        self.graphs.prompt.unwrap_or(of_engine)
    }

    /// What a batch does whose size is not captured.
    pub fn graph_fit(&self) -> GraphFit {
        self.graphs.rule(self.preset).fit()
    }

    /// GPUs of a replica with so many in a tensor group, and with experts on GPUs of their own where a group of replicas has some.
    pub fn n_gpus(&self, tensor_degree: u32, ffn_of_group: Option<FfnSide>) -> u32 {
        self.operation.degrees(tensor_degree, ffn_of_group).n_gpus()
    }
}

/// Microseconds.
fn us(time: Seconds) -> f64 {
    time.get() * 1e6
}

/// A parameter that is no measurement, as a sentence.
fn assumed(key: &str, value: f64) -> String {
    format!("`{key}` = {value}: fitted or assumed, not measured")
}

/// What a version says that lies outside of those that presets were written for.
fn told_version(section: &mut Section<'_>, name: &str, text: &str, at: Place) {
    let Some([oldest, newest]) = engine_preset::known_versions(name) else { return };
    let known = format!("versions from {oldest} to {newest} of `{name}` are known");
    match Version::of_text(text) {
        None => {
            let what = format!("`version = \"{text}\"` is no version");
            let help = format!("write numbers, for example \"{newest}\", or a nightly build; {known}");
            section.refuse(Code::UnknownVersion, at, what, help);
        }
        Some(found)
            if found == Version::NEWEST || (oldest..=engine_preset::last_alike(name, newest)).contains(&found) => {}
        Some(found) => {
            let nearest = if found < oldest { oldest } else { newest };
            let what = format!("`{name}` {found} is outside of the versions that are known; it is taken for {nearest}");
            section.warn(Code::UnknownVersion, at, what, known);
        }
    }
}

/// The engine that a section names: `name = "vllm"`, `version = "0.19.0"`.
fn preset(section: &mut Section<'_>) -> (Option<&'static EnginePreset>, Version) {
    let (version, is_named) = (section.text("version"), section.has("name"));
    let newest = |name: &str| engine_preset::named(name, Version::NEWEST);
    let found = section.known("name", (Code::UnknownWord, "engine"), engine_preset::names, newest);
    match (found, version) {
        (Some(preset), Some((version, at))) => {
            told_version(section, preset.name, &version, at);
            let version = Version::parse(&version);
            (engine_preset::named(preset.name, version), version)
        }
        (None, Some((_, at))) if !is_named => {
            section.refuse(Code::ExclusiveKeys, at, "`version` of no engine", "write `name`, for example \"vllm\"");
            (None, Version::NEWEST)
        }
        (found, _) => (found, Version::NEWEST),
    }
}

/// Memory that a share of a device is.
fn blocks_of(bytes: Bytes, bytes_per_block: u64) -> u32 {
    u32::try_from(bytes.0 / bytes_per_block.max(1)).unwrap_or(u32::MAX)
}

/// Which prefix leaves a full cache first.
pub fn eviction(section: &mut Section<'_>, base: &'static Eviction) -> &'static Eviction {
    let names = EVICTIONS.each_ref().map(|rule| rule.name);
    let at = EVICTIONS.iter().position(|rule| rule == base).unwrap_or(0);
    &EVICTIONS[section.word("eviction", at, &names)]
}

/// `recv_interval`: iterations that only decode between two looks for new requests.
pub fn recv_interval(section: &mut Section<'_>, default: NonZeroU32) -> NonZeroU32 {
    let found = section.small("recv_interval", Some(default.get()), 1..=100_000);
    NonZeroU32::new(found).unwrap_or(default)
}

/// `batch_wait = { iterations = 20, enough_tokens = 14746 }`: how long prompts wait for others while sequences decode; 0 iterations do not let them
/// wait. With `until = "ranks"` they wait until every rank of data-parallel attention has one, and `more_iterations` behind that.
pub fn batch_wait(section: &mut Section<'_>, base: Option<Gather>, tokens_max: u32) -> Option<Gather> {
    let Some(mut table) = section.table("batch_wait") else { return base };
    let iterations = table.small("iterations", None, 0..=100_000);
    if iterations == 0 {
        table.idle(&["enough_tokens", "more_iterations"], "some `iterations`");
    }
    let is_for_ranks = table.word("until", 0, &["tokens", "ranks"]) == 1;
    if is_for_ranks {
        table.idle(&["enough_tokens"], "`until = \"tokens\"`");
    } else {
        table.idle(&["more_iterations"], "`until = \"ranks\"`");
    }
    let tokens = table.small("enough_tokens", Some(tokens_max), 1..=tokens_max.max(1).into());
    let more = table.small("more_iterations", Some(0), 0..=100_000);
    table.finish();
    let gather = if is_for_ranks { Gather::Ranks { iterations, more } } else { Gather::Tokens { iterations, tokens } };
    (iterations > 0).then_some(gather)
}

/// `capacity_policy`: which blocks must be free for whoever is admitted. An engine has its own policy and that of taking blocks as they are needed.
fn capacity_policy(section: &mut Section<'_>, preset: Option<&EnginePreset>) -> CapacityPolicy {
    let usual = preset.map_or(CapacityPolicy::MaxUtilization, |preset| preset.capacity_policy);
    let at = section.place("capacity_policy").flatten();
    let found = section.one_of("capacity_policy", usual, &CapacityPolicy::WORDS);
    if [usual, CapacityPolicy::MaxUtilization].contains(&found) {
        return found;
    }
    let is_of_vllm = found == CapacityPolicy::WholePrompt;
    let help = if is_of_vllm { "it needs `name = \"vllm\"`, 0.19 or newer" } else { "it needs `name = \"trtllm\"`" };
    section.warn(Code::NoEffect, at, format!("`{}` changes nothing", section.full("capacity_policy")), help);
    usual
}

/// What requests wait for: a look of the host, blocks, others, a rank of attention.
fn waits(section: &mut Section<'_>, tokens_max: u32, preset: Option<&EnginePreset>) -> Limits {
    let rank = preset.map_or(PromptRank::Even, |preset| preset.prompt_rank);
    Limits {
        recv_interval: recv_interval(section, NonZeroU32::MIN),
        gather: batch_wait(section, None, tokens_max),
        capacity_policy: capacity_policy(section, preset),
        prompt_rank: section.one_of("prompt_rank", rank, &PromptRank::WORDS),
        ..Limits::ROOMY
    }
}

/// `stream_us_per_token`, `stream_interval` and `api_servers`: who hands tokens to clients. A way of serving is told of servers that nothing takes time in;
/// for `[engine]` all ways have to be known (`silent.rs`). `idle` are the keys that change nothing then. Beside the frontend stand its servers, where
/// somebody wrote them; else each group has those of its own degrees.
pub fn frontend(
    section: &mut Section<'_>,
    (usual, servers): (Frontend, Option<NonZeroU32>),
    idle: &[&'static str],
) -> (Frontend, Option<NonZeroU32>) {
    let us_per_token = section.number("stream_us_per_token", usual.us_per_token(), 0.0..=1e6);
    if us_per_token <= 0.0 && !idle.is_empty() {
        section.idle(idle, "`stream_us_per_token` above 0");
    }
    let interval = section.small("stream_interval", Some(usual.interval.get()), 1..=100_000);
    let written = section.some_count("api_servers", 1..=65_536).and_then(NonZeroU32::new);
    (Frontend::new(us_per_token, [interval, 1]), written.or(servers))
}

/// `preemption` and `swap_gib`: host memory for swapped sequences.
fn swap(section: &mut Section<'_>) -> Option<Bytes> {
    let swaps = section.word("preemption", 0, &["recompute", "swap"]) == 1;
    if !swaps {
        section.idle(&["swap_gib"], "`preemption = \"swap\"`");
    }
    let gib = section.number("swap_gib", 4.0, 0.0..=100_000.0);
    // Without room on the host everybody is computed again.
    (swaps && gib > 0.0).then(|| Bytes::from_gib(gib))
}

/// Every decoding sequence has its tokens in an iteration. Where an engine's budget is that of prompts alone, policies of others beside its name are asked one by
/// one.
pub(crate) fn enough_tokens(
    section: &mut Section<'_>,
    (tokens_max, at): (u64, Place),
    (sequences_max, per_sequence): (u32, u32),
    preset: Option<&EnginePreset>,
) {
    let counts_decoding = preset.is_none_or(EnginePreset::counts_decoding);
    if counts_decoding && tokens_max < u64::from(sequences_max) * u64::from(per_sequence) {
        let each = if per_sequence > 1 { format!(" times {per_sequence} tokens") } else { String::new() };
        let what =
            format!("`engine.max_tokens` = {tokens_max} is below `engine.max_sequences` = {sequences_max}{each}");
        let help = "every decoding sequence has its token in each iteration; raise the one or lower the other";
        section.refuse(Code::FewTokens, at, what, help);
    }
}

/// What an engine takes of the memory: a share that is written, or what it takes by itself. Blocks that are given take their place.
fn memory_rule(section: &mut Section<'_>, preset: Option<&EnginePreset>, kv_blocks: u32) -> MemoryRule {
    if kv_blocks > 0 {
        section.idle(&["memory_ratio"], "blocks that follow from memory: leave `kv_blocks` out");
    }
    let usual = preset.map_or(MemoryRule::OfDevice(0.9), |preset| preset.memory);
    section.some_number("memory_ratio", 0.01..=1.0).map_or(usual, |share| usual.with_share(share))
}

/// What an engine serves on which GPU, where both are known.
#[derive(Clone, Copy)]
pub struct On<'s> {
    /// Card.
    pub gpu: Option<&'s Gpu>,
    /// Model.
    pub model: Option<&'s Model>,
}

/// `encoder_tp`, and where it stands.
fn encoder(section: &mut Section<'_>) -> (Split, Option<Place>) {
    let at = section.place("encoder_tp");
    (section.one_of("encoder_tp", Split::Weights, &Split::WORDS), at)
}

/// `prefix_cache`: left out, what a named engine does with the model.
fn prefix_cache(section: &mut Section<'_>, preset: Option<&EnginePreset>, model: Option<&Model>) -> bool {
    let keeps = preset.zip(model).is_none_or(|(preset, model)| preset.keeps_prefixes_of(model));
    section.flag("prefix_cache", keeps)
}

/// Reads the section; defaults of a named engine are those on the scenario's GPU and of its model, and those of clients where there are some.
pub fn engine(mut section: Section<'_>, On { gpu, model }: On<'_>, folder: &Path, has_clients: bool) -> EngineSection {
    let (preset, version) = preset(&mut section);
    let sizes = preset.zip(gpu).map(|(preset, gpu)| preset.sizes_on(gpu));
    let usual = |of: fn(&Sizes) -> u32, plain: u32| sizes.as_ref().map_or(plain, of);
    let tensor_degree = section.small("tp", Some(1), 1..=1024);
    let is_usual = ["max_sequences", "max_tokens"].map(|key| !section.has(key));
    let sequences_max = section.small("max_sequences", Some(usual(|sizes| sizes.sequences_max, 256)), 1..=65_536);
    let (tokens_max, at) = section.count("max_tokens", Some(usual(|sizes| sizes.tokens_max, 2048).into()), 1..=1 << 20);
    let ((context_max, fits_context), graphs) =
        (context::context_max(&mut section), graphs::graphs(&mut section, preset));
    let [block_tokens, kv_blocks] = context::blocks(&mut section, preset);
    let memory = memory_rule(&mut section, preset, kv_blocks);
    let all_reduce = section.one_of("all_reduce", Asked::Auto, &Asked::WORDS);
    let experts = experts::experts(&mut section, folder, preset);
    let watermark_ratio = section.number("watermark_ratio", 0.01, 0.0..=0.5);
    let shares_prefixes = prefix_cache(&mut section, preset, model);
    let eviction = eviction(&mut section, Limits::ROOMY.eviction);
    let order = section.one_of("scheduling", Order::Arrival, &Order::WORDS);
    let (waits, swap) = (waits(&mut section, small(tokens_max), preset), swap(&mut section));
    let constants = preset.map_or(engine_constants::NONE, |preset| EngineConstants::of(preset.name));
    let [host_us_per_step, serial_us_per_step, host_us_per_sequence] = host::iterations(&mut section, &constants);
    let [host_us_per_layer, host_us_per_expert_layer, host_us_per_intricate_layer] =
        host::launches(&mut section, &constants);
    let detokenize_us_per_sequence = host::detokenize(&mut section, preset);
    let start = start::start(&mut section, &constants, has_clients);
    let (encoder_split, encoder_at) = encoder(&mut section);
    let operation = operation::operation(&mut section, &Operation::PLAIN, preset);
    let (frontend, servers) = frontend(&mut section, (Frontend::NONE, None), &[]);
    let fewest = (if is_usual[0] { 1 } else { sequences_max }, operation.tokens_per_sequence());
    enough_tokens(&mut section, (tokens_max, at), fewest, preset);
    section.finish();
    let limits = Limits {
        sequences_max,
        tokens_max: small(tokens_max),
        context_max,
        block_tokens,
        kv_blocks,
        order,
        shares_prefixes,
        eviction,
        frontend,
        ..waits
    };
    EngineSection {
        tensor_degree,
        limits,
        is_usual,
        servers,
        memory,
        preset,
        version,
        all_reduce,
        experts,
        fits_context,
        graphs,
        watermark_ratio,
        swap,
        host_us_per_step,
        serial_us_per_step,
        host_us_per_sequence,
        host_us_per_layer,
        host_us_per_expert_layer,
        host_us_per_intricate_layer,
        detokenize_us_per_sequence,
        start,
        encoder_split,
        encoder_at,
        operation,
    }
}

/// Blocks of a group's replicas under a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Blocks of device memory.
    pub kv_blocks: u32,
    /// Blocks that the whole device would hold beside the weights and what is reserved.
    pub kv_blocks_max: u32,
    /// Blocks that a sequence takes besides those of its tokens.
    pub blocks_per_sequence: u32,
    /// Blocks that admissions of whole prompts leave free.
    pub watermark_blocks: u32,
    /// What happens when blocks run out.
    pub preemption: Preemption,
    /// Where prefixes go that leave the device.
    pub tiers: [Tier; N_TIERS],
    /// The store that replicas share.
    pub remote: Option<Remote>,
    /// Room for adapters, and how long one takes to come.
    pub adapters: Option<AdapterLimits>,
}

/// What follows from model, degrees and the memory of a group.
///
/// # Errors
/// A sentence when the weights leave no room.
pub fn memory_of(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Result<Memory, Refused> {
    let (engine, deployment) = (&serving.engine, serving.deployment_of(choice, group));
    let gpu = &group.cluster.gpu;
    let (degree, own) = (deployment.tensor_degree, engine.preset.map(|preset| (preset, preset.sizes_on(gpu))));
    let (sequences, chunk) = serving.sizes_max(choice, group);
    let kept = kept_of(serving, group);
    let sampler = engine.preset.map_or(Sampler::Uncounted, |preset| preset.sampler);
    let graphs = engine.preset.map_or(Bytes(0), |preset| preset.graph_bytes(&deployment.graph_sizes, sequences));
    let exchanges = engine.preset.map_or(Bytes(0), |preset| preset.exchange_bytes(deployment.n_gpus()));
    let of_process = |(chunk, sequences): (u32, u32)| {
        let reserve = |(preset, sizes): (&EnginePreset, Sizes)| {
            // A chunk is that of all ranks of attention.
            let whole = chunk.saturating_mul(deployment.lanes().ranks);
            let sizes = sizes.asked(whole, engine.graphs.most(engine.preset, (gpu, degree)));
            preset.reserve(&sizes, &deployment, engine.prompt_graph_tokens(u32::MAX))
        };
        let iteration = capacity::profiled(&deployment, (chunk.into(), sequences.into()), sampler);
        ProcessMemory { iteration, kept, graphs, exchanges, reserve: own.map_or(Bytes(0), reserve) }
    };
    let sizes = (chunk, sequences);
    let capacity = capacity::by_rule(&deployment, engine.memory, of_process(sizes).by_rule())
        .map_err(|refused| activations::told(refused, (&deployment, engine.memory), &of_process, sizes))?;
    ffn::fits(&deployment, engine.memory, of_process(sizes), chunk)?;
    let block_tokens = engine.limits.block_tokens;
    let bytes_per_block = capacity.bytes_per_token * u64::from(block_tokens);
    let host_link = deployment.host_link();
    let of_replica = bytes_per_block * u64::from(deployment.n_attending());
    let block = BlockBytes { of_gpu: bytes_per_block, of_replica };
    let given = [group.kv_blocks, engine.limits.kv_blocks, capacity.blocks(block_tokens)];
    let kv_blocks = given.into_iter().find(|blocks| *blocks > 0).unwrap_or(0);
    let rest = Bytes(gpu.visible().0.saturating_sub(capacity.weights.0 + kept_of(serving, group).0));
    let kv_blocks_max = Capacity { kv: rest, ..capacity }.blocks(block_tokens);
    let preemption = engine.swap.map_or(Preemption::Recompute, |bytes| Preemption::Swap {
        // Every GPU moves its own part over its own link, so the replica's host memory is shared by all.
        host_blocks: blocks_of(bytes, of_replica),
        ticks_per_block: Tick::from_seconds(Bytes(bytes_per_block) / host_link),
    });
    let watermark = hw::whole(f64::from(kv_blocks) * engine.watermark_ratio);
    let watermark_blocks = u32::try_from(watermark).expect("a share of the blocks");
    let blocks_per_sequence = capacity.blocks_per_sequence(block_tokens);
    let tiers = tiers::of(&choice.operation.tiers, host_link, block);
    let card = BytesPerSecond::new(group.card_bytes_per_s());
    let remote = Remote::of(&choice.operation.remote, (card, deployment.n_attending()), block);
    let adapters = choice.operation.adapters.limits(&deployment, host_link);
    Ok(Memory { kv_blocks, kv_blocks_max, blocks_per_sequence, watermark_blocks, preemption, tiers, remote, adapters })
}

impl Serving {
    /// How long requests are on the way, as sentences, where they are.
    pub(super) fn starts_in_words(&self) -> impl Iterator<Item = String> + use<> {
        let given = [
            ("engine.start_ms", self.start_of_engine().get() * 1e3),
            ("engine.tokenize_us_per_token", us(self.engine.start.tokenize)),
        ];
        given.into_iter().filter(|(_, value)| *value > 0.0).map(|(key, value)| assumed(key, value))
    }

    /// Sequences and tokens of a group's iterations, at most. What nobody wrote is what the engine takes on the group's GPU, and no more sequences than an
    /// iteration has tokens for (vLLM: `_set_default_max_num_seqs_and_batched_tokens_args`).
    pub fn sizes_max(&self, choice: &ServingChoice, group: &ServingGroup) -> (u32, u32) {
        let own = self.engine.preset.map(|preset| (preset, preset.sizes_on(&group.cluster.gpu)));
        let [sequences, tokens] = choice.is_usual;
        let tokens = tokens && !self.raises_tokens(choice);
        let tensor_degree = choice.tensor_degree(group);
        let n_ranks = choice.operation.degrees(tensor_degree, group.ffn).attention_ranks();
        let drafts = choice.operation.drafts.is_some();
        let usual_sequences =
            own.filter(|_| sequences).map(|(preset, sizes)| preset.sequences_of_rank(&sizes, n_ranks, drafts));
        let usual_tokens =
            own.filter(|_| tokens).map(|(preset, sizes)| preset.tokens_of_rank(sizes.tokens_max, n_ranks));
        // An engine that does not start with fewer tokens than a prompt has starts on no group so.
        let least = if choice.batcher.keeps_budget() { 0 } else { choice.tokens_raised };
        let of_group = group.tokens_max.map(|tokens| tokens.max(least));
        let tokens_max = of_group.or(usual_tokens).unwrap_or(choice.limits.tokens_max);
        let lowers = sequences && choice.batcher.counts_decoding();
        let room = if lowers { tokens_max / choice.operation.tokens_per_sequence() } else { u32::MAX };
        let sequences_max = usual_sequences.unwrap_or(choice.limits.sequences_max).min(room).max(1);
        (group.sequences_max.unwrap_or(sequences_max), tokens_max)
    }

    /// Who hands on the tokens of a group's replicas. API servers that nobody wrote are those of the degrees that the group has under a choice.
    pub(super) fn frontend_of(&self, choice: &ServingChoice, group: &ServingGroup) -> Frontend {
        let tensor_degree = choice.tensor_degree(group);
        let degrees = choice.operation.degrees(tensor_degree, group.ffn);
        let degrees = [tensor_degree, tensor_degree * degrees.attention_ranks()];
        let usual = self.engine.preset.map_or(Frontend::NONE, |preset| preset.frontend(degrees));
        Frontend { processes: choice.servers.unwrap_or(usual.processes), ..choice.limits.frontend }
    }
}

/// What the process keeps of a GPU's memory, as asked.
fn kept_of(serving: &Serving, group: &ServingGroup) -> Bytes {
    group.reserved.unwrap_or(serving.reserved)
}

/// Says that there are more blocks than a device would hold, had it nothing else but the weights and what is reserved.
fn beyond_memory(reader: &mut Reader<'_>, serving: &Serving) {
    let mut groups = serving.plain().flat_map(|choice| {
        serving.groups_of(choice).into_iter().map(move |group| (group, memory_of(serving, choice, group)))
    });
    let beyond = |(group, memory): (&ServingGroup, Result<Memory, _>)| {
        let memory = memory.ok().filter(|memory| memory.kv_blocks > memory.kv_blocks_max)?;
        Some((group.cluster.gpu.name.clone(), memory.kv_blocks, memory.kv_blocks_max))
    };
    let Some((gpu, asked, most)) = groups.find_map(beyond) else { return };
    let what = format!(
        "`kv_blocks` = {asked} are more than the {most} that `{gpu}` would hold beside the weights and what is reserved"
    );
    reader.find(Finding::warning(Code::NoRoomForCache, None, what).help("leave it out: blocks follow from memory"));
}

/// Fills in what follows from the model, and refuses choices whose weights leave no room on a group. Others beside them are served.
pub fn memory(reader: &mut Reader<'_>, serving: &mut Serving) {
    whole_prompts::fill_in(serving);
    for index in 0..serving.choices.len() {
        let choice = &serving.choices[index];
        let refused = choice.refused.clone().or_else(|| no_room(serving, choice));
        serving.choices[index].refused = refused;
    }
    beyond_memory(reader, serving);
}

/// Why weights leave no room on a group of a choice.
fn no_room(serving: &Serving, choice: &ServingChoice) -> Option<Refused> {
    let of = |group| Some((group, memory_of(serving, choice, group).err()?));
    let (group, Refused { ended, mut why }) = serving.groups_of(choice).into_iter().find_map(of)?;
    if serving.groups.len() > 1 {
        why = format!("group `{}`: {why}", group.name);
    }
    if let Some(path) = narrower_checkpoint(&serving.model).filter(|_| choice.candidate.is_none()) {
        why += &format!("; the published checkpoint is narrower: `name = \"{path}\"` in `[model]`");
    }
    Some(Refused { ended, why })
}
