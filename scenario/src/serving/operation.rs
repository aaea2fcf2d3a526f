//! How an engine works besides its limits: degrees of parallelism, drafted tokens, the host's loop. `[engine]` says it for all, a variant
//! for itself; a variant with other degrees has as many replicas as the same GPUs give.

use engine::{Model, verdict::Refused};
use hw::Bytes;
use serve::drafter::Drafts;
use serve::engine_preset::{EnginePreset, Version, blocks};
use serve::kv::lending::Borrow;
use serve::kv::tiers::{N_TIERS, NO_STORE, Store};
use serve::replica::Role;
use serve::replica::batcher::Cut;
use serve::step_cost::host::{EngineLoop, RoundLaunches};
use serve::step_cost::host_weights::HostWeights;
use serve::step_cost::{FfnSide, ReplicaConfig};

use super::adapters::{self, AdapterChoice};
use super::costs::CostLaw;
use super::degrees::Degrees;
use super::drafts;
use super::dynamics;
use super::ffn;
use super::host_weights;
use super::kernels::{self, Kernels};
use super::{Serving, ServingChoice, ServingGroup};
use crate::formats;
use input::diagnostic::Code;
use input::reader::{Reader, Section, small};

/// How an engine works.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// GPUs that share every layer, where it is not the group's.
    pub tensor_degree: Option<u32>,
    /// Pipeline stages.
    pub pipeline_degree: u32,
    /// GPUs that share the experts, as it is written; 1 cuts each over the tensor group.
    pub expert_degree: u32,
    /// GPUs that hold the experts alone, where there are some.
    pub ffn: Option<FfnSide>,
    /// How the host works, where it is written.
    pub engine_loop: Option<EngineLoop>,
    /// Drafted tokens.
    pub drafts: Option<Drafts>,
    /// What it computes with.
    pub kernels: Kernels,
    /// Where prefixes go that leave the device: host memory, disk.
    pub tiers: [Store; N_TIERS],
    /// What all replicas share of keys and values.
    pub remote: Store,
    /// Weights in host memory.
    pub host_weights: Option<HostWeights>,
    /// What it does with requests that ask for an adapter.
    pub adapters: AdapterChoice,
    /// Engine whose published runs are asked.
    pub framework: Option<String>,
}

impl Operation {
    /// Whether one worker computes prompts and answers on one tensor group, with such degrees, without drafts and adapters.
    pub fn is_plain(&self, role: Role, degrees: Degrees) -> bool {
        let is_one_group = degrees.n_gpus() == degrees.tensor;
        role == Role::Both && is_one_group && self.drafts.is_none() && self.adapters.room().is_none()
    }

    /// How a replica lies on GPUs with tensor groups of such a degree, and with experts on GPUs of their own where a group of replicas has some.
    pub fn degrees(&self, tensor: u32, ffn_of_group: Option<FfnSide>) -> Degrees {
        let (pipeline, expert, ffn) = (self.pipeline_degree, self.expert_degree, ffn_of_group.or(self.ffn));
        Degrees { tensor, pipeline, expert, ffn }
    }

    /// One stage, experts cut like everything else, nothing drafted, a serial loop.
    pub const PLAIN: Self = Self {
        tensor_degree: None,
        pipeline_degree: 1,
        expert_degree: 1,
        ffn: None,
        engine_loop: None,
        drafts: None,
        kernels: Kernels::PLAIN,
        tiers: [NO_STORE; N_TIERS],
        remote: NO_STORE,
        host_weights: None,
        adapters: AdapterChoice::Unknown,
        framework: None,
    };

    /// How the host works: as it is written, else as the named engine has it beside such drafts.
    pub fn loop_under(&self, preset: Option<&EnginePreset>) -> EngineLoop {
        self.engine_loop.unwrap_or_else(|| usual_loop(preset, self.drafts.as_ref()))
    }

    /// Whether the overlapped loop that the engine has by itself is turned off.
    pub fn is_overlap_off(&self, preset: Option<&EnginePreset>) -> bool {
        let usual = usual_loop(preset, self.drafts.as_ref());
        usual == EngineLoop::Asynchronous && self.loop_under(preset) == EngineLoop::Serial
    }

    /// What the host launches in a round of drafts while the device waits: nothing where it works ahead.
    pub fn round_launches(&self, preset: Option<&EnginePreset>) -> RoundLaunches {
        let waits = self.loop_under(preset) == EngineLoop::Serial;
        preset.filter(|_| waits).map_or(RoundLaunches::NONE, |preset| preset.with_drafts.launches)
    }

    /// Tokens of a decoding sequence in an iteration.
    pub fn tokens_per_sequence(&self) -> u32 {
        self.drafts.as_ref().map_or(1, |drafts| drafts.speculation.n_verified())
    }

    /// Whether keys and values of prefixes lie below the device, or in a store.
    pub fn has_tiers(&self) -> bool {
        self.tiers.iter().chain([&self.remote]).any(|store| store.room > Bytes(0))
    }

    /// What was assumed and not measured, as sentences.
    pub fn free_parameters(&self, name: &str) -> Vec<String> {
        let drafts = self.drafts.as_ref().map_or_else(Vec::new, |drafts| drafts.free_parameters(name));
        drafts.into_iter().chain(self.kernels.free_parameters()).collect()
    }
}

/// How the host of an engine works that is named or not, beside such drafts.
fn usual_loop(preset: Option<&EnginePreset>, drafts: Option<&Drafts>) -> EngineLoop {
    preset.map_or(EngineLoop::Serial, |preset| preset.loop_beside(drafts.map(Drafts::is_chain)))
}

/// `loop`: how the host works, where it is written.
fn engine_loop(section: &mut Section<'_>, written: Option<EngineLoop>, usual: EngineLoop) -> Option<EngineLoop> {
    let loops = [("serial", EngineLoop::Serial), ("async", EngineLoop::Asynchronous)];
    let is_written = section.has("loop");
    let found = section.one_of("loop", written.unwrap_or(usual), &loops);
    if is_written { Some(found) } else { written }
}

/// Reads `pp`, `ep`, `loop`, `speculation` and what the engine computes with of a section, over what holds without them.
pub fn operation(section: &mut Section<'_>, base: &Operation, preset: Option<&EnginePreset>) -> Operation {
    let mut degree = |key, found: u32| {
        let n = section.count(key, Some(found.into()), 1..=4096).0;
        small(n)
    };
    let pipeline_degree = degree("pp", base.pipeline_degree);
    let expert_degree = degree("ep", base.expert_degree);
    let ffn = section.table("ffn").map_or(base.ffn, ffn::ffn);
    let drafts = drafts::speculation(section, base.drafts.as_ref());
    let engine_loop = engine_loop(section, base.engine_loop, usual_loop(preset, drafts.as_ref()));
    let kernels = kernels::kernels(section, &base.kernels);
    let framework = section.text("framework").map_or_else(|| base.framework.clone(), |(name, _)| Some(name));
    let (tiers, remote) = section.table("tiers").map_or((base.tiers, base.remote), tiers);
    let host_weights = section.table("host_weights").map_or(base.host_weights, host_weights::host_weights);
    let adapters = section.table("adapters").map_or(base.adapters, adapters::adapters);
    let tensor_degree = base.tensor_degree;
    Operation {
        tensor_degree,
        pipeline_degree,
        expert_degree,
        ffn,
        engine_loop,
        drafts,
        kernels,
        tiers,
        remote,
        host_weights,
        adapters,
        framework,
    }
}

/// `tiers = { host_gib = 64, disk_gib = 500, disk_gb_per_s = 6, remote_gib = 2000, remote_gb_per_s = 25 }`; none of what has no room. A remote store
/// without room is a mistake.
fn tiers(mut section: Section<'_>) -> ([Store; N_TIERS], Store) {
    let host = store(&mut section, ["host_gib", "host_gb_per_s"]);
    let disk = disk(&mut section);
    let remote = remote(&mut section);
    section.finish();
    ([host, disk], remote)
}

/// The same without a store that replicas share, for which others have no link.
pub fn own_tiers(mut section: Section<'_>, what: &str, help: &str) -> [Store; N_TIERS] {
    let host = store(&mut section, ["host_gib", "host_gb_per_s"]);
    let disk = disk(&mut section);
    for key in ["remote_gib", "remote_gb_per_s"] {
        section.elsewhere(key, what, help);
    }
    section.finish();
    [host, disk]
}

/// `disk_gib` and `disk_gb_per_s`.
fn disk(section: &mut Section<'_>) -> Store {
    let disk = store(section, ["disk_gib", "disk_gb_per_s"]);
    if disk.room > Bytes(0) {
        section.missing("disk_gb_per_s", "what all disks of a replica read together, for example 6");
    }
    disk
}

/// `remote_gib` and `remote_gb_per_s`.
fn remote(section: &mut Section<'_>) -> Store {
    let is_asked = section.has("remote_gib");
    if !is_asked {
        section.idle(&["remote_gb_per_s"], "some `remote_gib`");
    }
    let room = section.some_number("remote_gib", 1e-3..=1e9);
    let gb_per_s = section.some_number("remote_gb_per_s", 1e-3..=1e6);
    if is_asked {
        section.missing("remote_gb_per_s", "what the store gives all replicas together, for example 25");
    }
    room.map_or(NO_STORE, |gib| Store { room: Bytes::from_gib(gib), gb_per_s })
}

fn store(section: &mut Section<'_>, [room, rate]: [&'static str; 2]) -> Store {
    let gib = section.number(room, 0.0, 0.0..=1e6);
    if gib == 0.0 {
        section.idle(&[rate], &format!("some `{room}`"));
    }
    Store { room: Bytes::from_gib(gib), gb_per_s: section.some_number(rate, 1e-3..=1e5) }
}

/// A misfit: its code, what is wrong, and what to do.
type Misfit = (Code, String, String);

/// Degrees, drafts and kernels fit the model and the GPUs of every group. One of several ways that does not fit is not tried.
pub fn check(reader: &mut Reader<'_>, serving: &mut Serving) {
    let mut found: Vec<(String, Code, String)> = Vec::new();
    for index in 0..serving.choices.len() {
        let choice = &serving.choices[index];
        let wrong: Vec<Misfit> =
            serving.groups_of(choice).into_iter().flat_map(|group| misfits(serving, choice, group)).collect();
        let name = choice.name.clone();
        let choice = &mut serving.choices[index];
        if choice.candidate.is_some() {
            choice.refused = wrong.into_iter().next().map(|(_, what, _)| Refused::infeasible(what));
        } else {
            found.extend(wrong.into_iter().map(|(code, what, help)| (format!("`{name}`: {what}"), code, help)));
        }
    }
    if serving.engine.version == Version::NEWEST {
        warn_of_older(reader, serving);
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.dedup();
    for (what, code, help) in found {
        reader.refuse(code, None, what, help);
    }
}

/// Says which releases do not start, where nobody says which one runs.
fn warn_of_older(reader: &mut Reader<'_>, serving: &Serving) {
    let Some(preset) = serving.engine.preset else { return };
    let mut said: Vec<String> = Vec::new();
    for choice in serving.choices.iter().filter(|choice| choice.candidate.is_none()) {
        for group in serving.groups_of(choice) {
            let deployment = serving.deployment_of(choice, group);
            let degrees = degrees_of_blocks(&deployment);
            let older = blocks::refused_before(preset.name, (&group.model, deployment.formats), degrees);
            let Some((from, why)) = older else { continue };
            let what = format!("`tp` = {}: `{}` before {from} does not start so: {why}", degrees[0], preset.name);
            if !said.contains(&what) {
                said.push(what);
            }
        }
    }
    for what in said {
        let help = "newer releases make blocks of experts smaller; `version` in `[engine]` says which one runs";
        reader.warn(Code::UnevenDegree, None, what, help);
    }
}

/// GPUs that share every dense feed-forward, and each expert.
fn degrees_of_blocks(deployment: &ReplicaConfig) -> [u64; 2] {
    let tensor = u64::from(deployment.tensor_degree);
    [tensor, if deployment.has_whole_experts() { 1 } else { tensor }]
}

impl ServingChoice {
    /// What is wrong where decoding sequences do not find room in an iteration.
    pub(super) fn few_tokens(&self) -> Option<String> {
        let tokens = self.limits.tokens_max;
        let sequences = if self.is_usual[0] { 1 } else { self.limits.sequences_max };
        let per_sequence = self.operation.tokens_per_sequence();
        let each = if per_sequence > 1 { format!(" times {per_sequence} tokens") } else { String::new() };
        (self.batcher.counts_decoding() && tokens < sequences * per_sequence)
            .then(|| format!("`max_tokens` = {tokens} is below `max_sequences` = {sequences}{each}"))
    }
}

/// What is wrong with a choice on a group, and what to do.
fn misfits(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Vec<Misfit> {
    let mut plain = degrees(serving, choice, group);
    // Of what is compared by itself that was said where it stands, but for other policies beside an engine whose budget is that of prompts.
    let was_said = choice.candidate.is_none() && serving.engine.preset.is_none_or(EnginePreset::counts_decoding);
    let few = choice.few_tokens().filter(|_| !was_said);
    plain.extend(few.map(|what| (what, "every decoding sequence has its token in each iteration")));
    let stays = |group: &ServingGroup| group.scaling.is_none() && group.failures.is_none();
    let is_steady = serving.outages.is_empty() && serving.groups.iter().all(stays);
    if choice.prefill_replicas > 0 && (serving.roles.is_empty() || !is_steady) {
        let what = "`prefill_replicas` of a way, and the fleet has groups or replicas that fail".to_owned();
        plain.push((what, "a fleet of equal replicas that stay, or groups with a `role`"));
    }
    if choice.replicas.is_some() && (serving.groups.len() > 1 || group.scaling.is_some()) {
        let what = "`replicas` of a way, and the fleet has groups or scales".to_owned();
        plain.push((what, "a fleet of equal replicas that stay"));
    }
    let plain = plain.into_iter();
    let plain = plain.map(|(what, help)| (Code::WrongOperation, what, help.to_owned()));
    let kernels = kernel_misfits(serving, choice, group);
    let blocks = block_misfit(serving, choice, group);
    let lost = dynamics::of_nobody(serving, choice, group);
    plain.chain(blocks).chain(kernels).chain(adapters::misfits(serving, choice, group)).chain(lost).collect()
}

/// Feed-forwards that the tensor group cuts inside of a block of weights with one scale, which the engine refuses.
fn block_misfit(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Option<Misfit> {
    let (preset, deployment) = (serving.engine.preset?, serving.deployment_of(choice, group));
    let [tensor, experts] = degrees_of_blocks(&deployment);
    let engine = (preset.name, serving.engine.version);
    let refusal = blocks::refusal(engine, (&group.model, deployment.formats), [tensor, experts])?;
    let blocks::Refusal { why, starts_whole, degrees, newer } = refusal;
    let whole = format!("`ep` = {tensor}, which lays experts whole on their GPUs, or ");
    let whole = if starts_whole { whole } else { String::new() };
    let what = format!("`tp` = {tensor}, and `{}` does not start so: {why}", preset.name);
    Some((Code::UnevenDegree, what, format!("{whole}a `tp` of {degrees}{newer}")))
}

/// What is wrong with what a choice computes with.
fn kernel_misfits(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Vec<Misfit> {
    let kernels = &choice.operation.kernels;
    let mut found: Vec<Misfit> = kernels.misfit(&group.model).into_iter().collect();
    let mut wrong = |what: String, help: &str| found.push((Code::WrongOperation, what, help.to_owned()));
    if let Some((what, help)) = host_weights::misfit(serving, choice, group) {
        wrong(what, help);
    }
    if let Some(what) = formats::misfit(&serving.deployment_of(choice, group).formats, &group.cluster.gpu) {
        wrong(what, formats::NARROW_WEIGHTS);
    }
    if let Some(framework) = &choice.operation.framework {
        let what = format!("`framework = \"{framework}\"` says nothing where iterations are played");
        wrong(what, "write `name` in `[engine]`; `framework` belongs to `law = \"published-runs\"` of `[cost]`");
    }
    let (_, tokens_max) = serving.sizes_max(choice, group);
    let chunk = kernels.chunk_tokens.filter(|tokens| *tokens > tokens_max);
    if let Some(tokens) = chunk {
        let what = format!("`chunk_tokens` = {tokens} is more than the `max_tokens` = {tokens_max} of an iteration");
        wrong(what, "a chunk is part of one iteration; raise `max_tokens`");
    }
    if kernels.chunking(&choice.limits).is_some() && choice.batcher.cut() == Cut::Never {
        let what = format!("`{}` computes whole prompts", choice.batcher.name());
        wrong(what, "leave out `chunk_tokens` and `chunk_sizes`, or name a policy that cuts prompts");
    }
    let has_tiers = choice.operation.has_tiers();
    if has_tiers && !choice.limits.shares_prefixes {
        wrong(
            "`tiers` keep prefixes, and `prefix_cache` is off".to_owned(),
            "write `prefix_cache = true`, or leave out `tiers`",
        );
    }
    if has_tiers && (matches!(serving.law, CostLaw::Stages(_)) || choice.kv.borrow != Borrow::Never) {
        let what = "`tiers` beside `cost.stage_ms` or memory that is lent".to_owned();
        wrong(
            what,
            "costs of operations and `borrow = \"never\"`: the others know no keys and values below the device",
        );
    }
    let has_kernels = kernels.sparse_weights().is_some() || kernels.attention.is_some();
    if matches!(serving.law, CostLaw::Stages(_)) && (has_kernels || serving.engine.experts.is_written()) {
        let what = "`cost.stage_ms` gives the time of a stage, whatever it computes with".to_owned();
        wrong(
            what,
            "leave out `weights`, `prefill_attention`, `expert_counts`, `redundant_experts` and `dispatcher`, or leave out `stage_ms`",
        );
    }
    found
}

/// What is wrong with degrees and drafts of a choice on a group, and what to do.
fn degrees(serving: &Serving, choice: &ServingChoice, group: &ServingGroup) -> Vec<(String, &'static str)> {
    let deployment = serving.deployment_of(choice, group);
    let ReplicaConfig { tensor_degree: tp, pipeline_degree: pp, expert_degree: ep, .. } = deployment;
    let mut found = Vec::new();
    if let Some(what) = group.model.uncut(tp, deployment.lanes().ranks) {
        found.push((format!("`tp` = {tp} {what}"), "a tensor degree that divides both, or that those heads divide"));
    }
    if matches!(serving.law, CostLaw::Stages(_)) && deployment.lanes().ranks > 1 {
        let what = format!("`ep` = {ep} above `tp` = {tp} beside `cost.stage_ms`, which is the time of one batch");
        found.push((
            what,
            "`ep` of at most `tp`, or costs of operations: ranks of attention share every layer's experts",
        ));
    }
    if u64::from(pp) > group.model.n_layers {
        let what = format!("`pp` = {pp} is more than the {} layers", group.model.n_layers);
        found.push((what, "every stage has a layer"));
    }
    match deployment.ffn {
        Some(ffn) => found.extend(ffn::misfit(serving, choice, group, ffn)),
        None => found.extend(expert_misfit(&group.model, tp, ep, deployment.redundant_experts)),
    }
    found.extend(serving.engine.experts.misfit(&group.model, deployment.ffn.is_none().then_some(ep)));
    if group.model.experts.is_some() && deployment.ffn.is_none() {
        found.extend(serving.engine.experts.misfit_of_ranks(deployment.lanes().ranks));
    }
    if let Some(drafts) = &choice.operation.drafts {
        found.extend(drafts.misfits(&group.model, &group.drafters, tp));
    }
    let (total, has) = (serving.n_gpus(choice), group.cluster.n_gpus());
    if let Some(n) = choice.replicas.filter(|_| serving.groups.len() == 1 && total > has) {
        let each = deployment.n_gpus();
        let of = if choice.prefill_tensor_degree.is_some() { format!("take {total}") } else { format!("of {each}") };
        found.push((format!("{n} replicas {of} GPUs, the cluster has {has} GPUs"), "fewer replicas, or more nodes"));
    }
    if choice.prefill_replicas > 0 && group.role == Role::Decode && serving.replicas_of(choice, group) == 0 {
        let what = format!("`prefill_replicas` = {} leaves no replica that decodes", choice.prefill_replicas);
        found.push((what, "fewer `prefill_replicas`, or more `replicas`"));
    } else if serving.replicas_of(choice, group) == 0 {
        let (n, has) = (deployment.n_gpus(), serving.gpus_of(group));
        let what = format!("a replica takes {n} GPUs, group `{}` has {has}", group.name);
        found.push((what, "smaller `tp`, `pp` or `ep`, or more GPUs"));
    }
    found
}

fn expert_misfit(model: &Model, tp: u32, ep: u32, redundant: Option<u32>) -> Option<(String, &'static str)> {
    if ep == 1 {
        return None;
    }
    let Some(experts) = model.experts else {
        return Some((format!("`ep` = {ep}, and `{}` has no experts", model.name), "`ep = 1`"));
    };
    // With some that lie twice their sum is what divides.
    let divides = redundant.is_some() || experts.n_routed.is_multiple_of(u64::from(ep));
    if !ep.is_multiple_of(tp) || !divides {
        let what = format!("`ep` = {ep} with `tp` = {tp} and {} experts", experts.n_routed);
        return Some((
            what,
            "a multiple of `tp` that divides the experts; attention is data-parallel over groups of `tp`",
        ));
    }
    None
}
