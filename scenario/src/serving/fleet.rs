//! `[fleet]`: replicas and the router; `[[fleet.group]]` for replicas that differ, `[[fleet.type]]` for types of requests that a plan knows;
//! what changes a fleet is in `dynamics.rs`.

use std::num::NonZeroU32;
use std::path::Path;

use engine::Model;
use engine::verdict::Refused;
use hw::{Bytes, Cluster};
use serve::assignment::{Assignment, TypeCentre, nearest_types};
use serve::drafter::OwnDrafters;
use serve::engine_preset::RESERVED_GIB;
use serve::fleet::dynamics::Failures;
use serve::kv::lending::Borrow;
use serve::kv::tiers::NO_STORE;
use serve::replica::{FirstToken, Role};
use serve::router::RouterKind;
use serve::step_cost::FfnSide;
use toml_span::value::ValueInner;

use super::dynamics::{ServingLink, ServingOutage};
use super::scaling::{self, ServingScaling};
use super::{Serving, ServingChoice, ServingGroup, dynamics, ffn, streams, way};
use crate::cluster;
use crate::cluster::Tuning;
use crate::cost::Cost;
use input::diagnostic::{Code, Finding, divisors};
use input::reader::{Place, Reader, Section, small};

/// A group as it was read.
#[derive(Clone, Debug)]
struct Read {
    name: Option<String>,
    model: Option<(String, Place)>,
    gpu: Option<(String, Place)>,
    at: Place,
    gpus_per_node: u32,
    tensor_degree: Option<u32>,
    ffn: Option<FfnSide>,
    n_replicas: u32,
    usd_per_gpu_hour: Option<f64>,
    sequences_max: Option<u32>,
    tokens_max: Option<u32>,
    recv_interval: Option<NonZeroU32>,
    kv_blocks: u32,
    memory_gib: f64,
    reserved: Option<Bytes>,
    shares: Option<Vec<f64>>,
    role: Role,
    port_gb_per_s: f64,
    scaling: Option<ServingScaling>,
    failures: Option<Failures>,
    lends: bool,
    borrows: bool,
}

/// What the section says.
#[derive(Clone, Debug)]
pub struct FleetSection {
    /// 0 takes all GPUs of the cluster.
    n_replicas: u64,
    /// Router of policies that name none.
    pub router: &'static RouterKind,
    usd_per_gpu_hour: Option<f64>,
    price_at: Place,
    /// Who gives first tokens of prompts that are decoded elsewhere, where that is written.
    first_token: Option<FirstToken>,
    groups: Vec<Read>,
    types: Vec<TypeCentre>,
    types_at: Place,
    links: Vec<ServingLink>,
    outages: Vec<ServingOutage>,
}

impl FleetSection {
    /// Whether the scenario has `[[fleet.group]]`.
    pub const fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether a group has as many replicas as a scaler wants.
    pub fn scales(&self) -> bool {
        self.groups.iter().any(|group| group.scaling.is_some())
    }

    /// Whether a group has GPUs of its own, on other machines than the cluster's.
    pub fn is_apart(&self, name: &str) -> bool {
        let named = self.groups.iter().enumerate().find(|(index, group)| name_of(group, *index) == name);
        named.is_some_and(|(_, group)| group.gpu.is_some())
    }

    /// Whether equal replicas have a price.
    pub const fn has_price(&self) -> bool {
        self.usd_per_gpu_hour.is_some()
    }

    /// The same with so many equal replicas at a price.
    pub fn of_equal(self, n_replicas: u64, usd_per_gpu_hour: f64) -> Self {
        Self { n_replicas, usd_per_gpu_hour: Some(usd_per_gpu_hour), ..self }
    }

    /// The same with other numbers of replicas of some groups.
    pub fn of_groups(mut self, counts: &[(String, u64)]) -> Self {
        for (index, group) in self.groups.iter_mut().enumerate() {
            let name = name_of(group, index);
            if let Some((_, n)) = counts.iter().find(|(known, _)| *known == name) {
                group.n_replicas = small(*n);
            }
        }
        self
    }
}

/// The scenario's model. Groups with models of their own need no `[model]`; the first one's stands in.
pub fn model(reader: &mut Reader<'_>, fleet: &FleetSection, folder: &Path) -> Option<Model> {
    let first = fleet.groups.first().and_then(|group| group.model.clone());
    let is_spare = fleet.groups.iter().all(|group| group.model.is_some());
    match first.filter(|_| is_spare && !reader.has("model")) {
        Some((name, at)) => known_model(reader, &name, &at),
        None => crate::model::served(reader.section("model"), folder),
    }
}

fn known_model(reader: &mut Reader<'_>, name: &str, at: &Place) -> Option<Model> {
    match crate::model::of_name(name, at.clone()) {
        Ok(model) => Some(model),
        Err(finding) => {
            reader.find(finding);
            None
        }
    }
}

/// The scenario's machine and the memory that is not the engine's. Groups with GPUs of their own need no `[cluster]`; the first one's
/// stands in. With what the section says whatever the GPU is.
pub fn machine(reader: &mut Reader<'_>, fleet: &FleetSection) -> Option<(Cluster, Bytes, Option<Tuning>)> {
    let is_spare = !fleet.groups.is_empty() && fleet.groups.iter().all(|group| group.gpu.is_some());
    if reader.has("cluster") || !is_spare {
        return cluster::tuned(reader.section("cluster"), RESERVED_GIB)
            .map(|(cluster, reserved, tuning)| (cluster, reserved, Some(tuning)));
    }
    let first = fleet.groups.iter().find_map(|group| group.gpu.as_ref().zip(Some(group.gpus_per_node)));
    let ((name, at), gpus_per_node) = first?;
    let gpu = known_gpu(reader, name, at)?;
    Some((hw::catalog::cluster(&gpu, 1, gpus_per_node), Bytes::from_gib(RESERVED_GIB), None))
}

fn known_gpu(reader: &mut Reader<'_>, name: &str, at: &Place) -> Option<hw::Gpu> {
    let gpu = hw::catalog::gpu(name);
    if gpu.is_none() {
        let what = format!("unknown GPU `{name}`");
        reader.find(cluster::unknown_gpu(what, name, at.clone()));
    }
    gpu
}

fn price(section: &mut Section<'_>) -> Option<f64> {
    section.some_number("usd_per_gpu_hour", 0.0..=1e6).filter(|usd| *usd > 0.0)
}

/// `first_token`: a named engine's own where it is not written.
fn first_token(section: &mut Section<'_>) -> Option<FirstToken> {
    let is_written = section.has("first_token");
    let found = section.one_of("first_token", FirstToken::Prefill, &FirstToken::WORDS);
    is_written.then_some(found)
}

impl Serving {
    /// Who gives first tokens of prompts that are decoded elsewhere: as it is written, or as the named engine's routers do.
    pub(super) fn first_token(&self) -> FirstToken {
        let usual = self.engine.preset.map_or(FirstToken::Prefill, |preset| preset.split.first_token);
        self.given.fleet.first_token.unwrap_or(usual)
    }
}

/// Reads the section.
pub fn fleet(mut section: Section<'_>) -> FleetSection {
    let (n_replicas, replicas_at) = section.count("replicas", Some(0), 1..=100_000);
    let router = way::router(&mut section, "router").unwrap_or(&serve::router::ROUTERS[0]);
    let price_at = section.place("usd_per_gpu_hour").flatten();
    let usd_per_gpu_hour = price(&mut section);
    let first_token = first_token(&mut section);
    let (mut groups, mut types) = (Vec::new(), Vec::new());
    section.each_table("group", &mut |table| groups.push(group(table)));
    let types_at = section.place("type").flatten();
    section.each_table("type", &mut |mut table| {
        let mut tokens = |key| {
            let found = table.number(key, 0.0, 1.0..=1e8);
            if found < 1.0 {
                table.missing(key, "tokens of a typical request of this type");
            }
            found.max(1.0)
        };
        types.push(TypeCentre { prompt: tokens("prompt"), output: tokens("output") });
        table.finish();
    });
    let (mut links, mut outages) = (Vec::new(), Vec::new());
    section.each_table("link", &mut |table| links.push(dynamics::link(table)));
    section.each_table("outage", &mut |table| outages.push(dynamics::outage(table)));
    if !groups.is_empty() && n_replicas > 0 {
        let what = "`fleet.replicas` and `fleet.group` exclude each other";
        section.refuse(Code::ExclusiveKeys, replicas_at, what, "every group has its own `replicas`");
    }
    named_once(&mut section, &groups);
    shares_fit(&mut section, &groups, types.len().max(1));
    section.finish();
    FleetSection {
        n_replicas,
        router,
        usd_per_gpu_hour,
        price_at,
        first_token,
        groups,
        types,
        types_at,
        links,
        outages,
    }
}

/// `[[fleet.group]]`.
fn group(mut section: Section<'_>) -> Read {
    let (at, name, gpu) = (section.at(), section.text("name").map(|(name, _)| name), section.text("gpu"));
    let model = section.text("model");
    let (tensor_degree, sequences_max) =
        (section.some_count("tp", 1..=1024), section.some_count("max_sequences", 1..=65_536));
    let tokens_max = section.some_count("max_tokens", 1..=1 << 20);
    let kv_blocks = section.some_count("kv_blocks", 1..=1_000_000_000);
    // 0 leaves the group out, so that fleets with and without it are one scenario.
    let n_replicas = section.small("replicas", Some(1), 0..=100_000);
    let usual = hw::catalog::gpus_per_node(gpu.as_ref().map_or("", |(name, _)| name));
    let read = Read {
        name,
        model,
        gpu,
        at,
        gpus_per_node: section.small("gpus_per_node", Some(usual), 1..=1024),
        tensor_degree,
        ffn: section.table("ffn").and_then(ffn::ffn),
        n_replicas,
        usd_per_gpu_hour: price(&mut section),
        sequences_max,
        tokens_max,
        recv_interval: section.some_count("recv_interval", 1..=100_000).and_then(NonZeroU32::new),
        kv_blocks: kv_blocks.unwrap_or(0),
        memory_gib: section.number("memory_gib", 0.0, 0.001..=100_000.0),
        reserved: section.some_number("reserved_gib", 0.0..=10_000.0).map(Bytes::from_gib),
        shares: shares(&mut section),
        role: section.one_of("role", Role::Both, &Role::WORDS),
        port_gb_per_s: section.number("port_gb_per_s", 0.0, 1e-3..=1e6),
        scaling: scaling::scaling(&mut section, n_replicas.max(1)),
        failures: dynamics::failures(&mut section),
        lends: section.flag("lend", true),
        borrows: section.flag("borrow", true),
    };
    section.finish();
    read
}

/// `share`: one number, or one per type of requests.
fn shares(section: &mut Section<'_>) -> Option<Vec<f64>> {
    let (value, at) = section.take("share")?;
    let number = |value: &ValueInner<'_>| match value {
        ValueInner::Integer(number) => Some(*number as f64),
        ValueInner::Float(number) => Some(*number),
        _ => None,
    };
    let found: Option<Vec<f64>> = match &value {
        ValueInner::Array(items) => items.iter().map(|item| number(item.as_ref())).collect(),
        other => number(other).map(|share| vec![share]),
    };
    let found = found.filter(|shares| shares.iter().all(|share| share.is_finite() && *share >= 0.0));
    if found.is_none() {
        let what = "`fleet.group.share` is no share";
        let help = "write a number from 0 on, or a list with one per `[[fleet.type]]`";
        section.refuse(Code::WrongType, at, what, help);
    }
    found
}

fn named_once(section: &mut Section<'_>, groups: &[Read]) {
    for (index, group) in groups.iter().enumerate() {
        let name = name_of(group, index);
        if groups[..index].iter().enumerate().any(|(earlier, other)| name_of(other, earlier) == name) {
            let what = format!("two groups are named `{name}`");
            section.refuse(Code::TwiceNamed, group.at.clone(), what, "give each group a `name` of its own");
        }
    }
}

fn shares_fit(section: &mut Section<'_>, groups: &[Read], n_types: usize) {
    for group in groups {
        let n = group.shares.as_ref().map_or(n_types, Vec::len);
        if n != n_types {
            let what = format!("{n} shares for {n_types} types of requests");
            section.refuse(Code::WrongShares, group.at.clone(), what, "one share per `[[fleet.type]]`, in order");
        }
    }
}

/// A group is named after its GPU where it has no name.
fn name_of(group: &Read, index: usize) -> String {
    let gpu = group.gpu.as_ref().map(|(gpu, _)| gpu.clone());
    group.name.clone().or(gpu).unwrap_or_else(|| format!("group-{}", index + 1))
}

/// Fills in groups and what is planned for them; finds what does not fit.
pub fn build(reader: &mut Reader<'_>, serving: &mut Serving, fleet: &FleetSection, cost: &Cost) {
    if fleet.groups.is_empty() {
        one_group(reader, serving, fleet);
    } else {
        several_groups(reader, serving, fleet, cost);
    }
    (serving.links, serving.outages) = (fleet.links.clone(), fleet.outages.clone());
    for choice in &serving.choices {
        let is_named = |name: &String| serving.groups.iter().any(|group| group.name == *name);
        // Names that are unknown are found below, and why there are no groups at all was said.
        let has_groups = !serving.groups.is_empty() && choice.groups.iter().all(is_named);
        if has_groups && serving.groups_of(choice).is_empty() {
            let what = format!("no group of `{}` has a replica", choice.name);
            reader.refuse(Code::NoReplica, None, what, "write `replicas` from 1 on in at least one group");
        }
    }
    streams::build(reader, serving);
    dynamics::check(reader, serving);
    scaling::check(reader, serving);
    serving.free_parameters.extend(scaling::free_parameters(serving));
}

/// Keys of the section that nothing heeds.
pub fn idle(serving: &Serving) -> Vec<Finding> {
    let FleetSection { groups, types, types_at, price_at, .. } = &serving.given.fleet;
    let mut found = Vec::new();
    let mut tell = |at: &Place, what: String, help: &str| {
        found.push(Finding::warning(Code::NoEffect, at.clone(), what).help(help));
    };
    let is_priced = !groups.is_empty() && groups.iter().all(|group| group.usd_per_gpu_hour.is_some());
    if is_priced && serving.given.fleet.has_price() {
        let what = "`fleet.usd_per_gpu_hour` changes nothing".to_owned();
        tell(price_at, what, "every group has a price of its own");
    }
    let has_shares = groups.iter().any(|group| group.shares.is_some());
    let goes_by_shares = serving.choices.iter().any(|choice| choice.router.by_shares);
    let routers = "a router that goes by shares: `plan-weights` or `interleaved-round-robin`";
    if !goes_by_shares && let Some(group) = groups.iter().find(|group| group.shares.is_some()) {
        tell(&group.at, "`fleet.group.share` changes nothing".to_owned(), &format!("it needs {routers}"));
    }
    if !(types.is_empty() || goes_by_shares && has_shares) {
        let help = format!("it needs a list in `fleet.group.share`, and {routers}");
        tell(types_at, "`[[fleet.type]]` changes nothing".to_owned(), &help);
    }
    for (index, group) in groups.iter().enumerate().filter(|(_, group)| group.port_gb_per_s > 0.0) {
        let name = name_of(group, index);
        let of_choice = |choice: &&ServingChoice| serving.groups_of(choice).iter().any(|other| other.name == name);
        let sends = |choice: &ServingChoice| {
            choice.operation.remote != NO_STORE || choice.kv.borrow != Borrow::Never || group.role != Role::Both
        };
        let mut choices = serving.choices.iter().filter(of_choice).peekable();
        if choices.peek().is_some() && !choices.any(sends) {
            let help = "it needs replicas with `role = \"prefill\"` or `\"decode\"`, `remote_gib` in `tiers`, or memory that is lent";
            tell(&group.at, format!("`port_gb_per_s` of `{name}` changes nothing"), help);
        }
    }
    for (index, group) in groups.iter().enumerate() {
        if group.recv_interval.is_some() && group.role == Role::Prefill {
            let what = format!("`recv_interval` of `{}` changes nothing", name_of(group, index));
            tell(&group.at, what, "it needs replicas that decode: hosts look for requests after every prompt");
        }
    }
    found
}

fn several_groups(reader: &mut Reader<'_>, serving: &mut Serving, fleet: &FleetSection, cost: &Cost) {
    let mut taken = 0;
    for (index, read) in fleet.groups.iter().enumerate() {
        let tp = read.tensor_degree.unwrap_or(serving.engine.tensor_degree);
        let Some(cluster) = cluster_of(reader, serving, read, tp) else { continue };
        let own = read.model.as_ref().map(|(name, at)| known_model(reader, name, at));
        let Some(model) = own.unwrap_or_else(|| Some(serving.model.clone())) else { continue };
        if read.gpu.is_none() {
            taken += u64::from(serving.engine.n_gpus(tp, read.ffn)) * u64::from(read.n_replicas);
        }
        let gpu = cluster.gpu.name.clone();
        serving.groups.push(ServingGroup {
            name: name_of(read, index),
            model: model.clone(),
            drafters: OwnDrafters::of(&model),
            model_index: 0,
            profile: cost.of_gpu(&gpu, &serving.cluster.gpu.name),
            cluster,
            tensor_degree: tp,
            ffn: read.ffn,
            n_replicas: read.n_replicas,
            usd_per_gpu_hour: read.usd_per_gpu_hour.or(fleet.usd_per_gpu_hour),
            sequences_max: read.sequences_max,
            tokens_max: read.tokens_max,
            recv_interval: read.recv_interval,
            reserved: read.reserved,
            kv_blocks: read.kv_blocks,
            role: read.role,
            port_bytes_per_s: (read.port_gb_per_s > 0.0).then_some(read.port_gb_per_s * 1e9),
            scaling: read.scaling.clone(),
            failures: read.failures.map(|failures| Failures { seed: serving.head.seed, ..failures }),
            lends: read.lends,
            borrows: read.borrows,
        });
        divides(reader, &model, tp);
    }
    let n_gpus = u64::from(serving.cluster.n_gpus());
    if taken > n_gpus {
        let what = format!("groups without a `gpu` of their own take {taken} GPUs, the cluster has {n_gpus}");
        reader.refuse(Code::WrongGpuCount, None, what, "more `cluster.nodes`, or fewer `replicas`");
    }
    serving.assignment = assignment(serving, fleet);
}

/// What the groups should take, where any has a share.
fn assignment(serving: &Serving, fleet: &FleetSection) -> Assignment {
    if fleet.groups.iter().all(|group| group.shares.is_none()) {
        return Assignment::default();
    }
    let n_types = fleet.types.len().max(1);
    let share = |group: &Read, of_type: usize| group.shares.as_ref().and_then(|shares| shares.get(of_type)).copied();
    let row = |of_type| fleet.groups.iter().map(|group| share(group, of_type).unwrap_or(0.0)).collect();
    let types = if n_types > 1 { nearest_types(&serving.requests, &fleet.types) } else { Vec::new() };
    Assignment { types, shares: (0..n_types).map(row).collect(), onward: Vec::new() }
}

/// The machine of a group: nodes of its own GPU, or part of the scenario's.
fn cluster_of(reader: &mut Reader<'_>, serving: &Serving, read: &Read, tp: u32) -> Option<Cluster> {
    let mut cluster = match &read.gpu {
        None => serving.cluster.clone(),
        Some((name, at)) => {
            let gpu = known_gpu(reader, name, at)?;
            let n_nodes = (read.n_replicas.max(1) * serving.engine.n_gpus(tp, read.ffn)).div_ceil(read.gpus_per_node);
            hw::catalog::cluster(&gpu, n_nodes, read.gpus_per_node)
        }
    };
    if read.memory_gib > 0.0 {
        cluster.gpu.set_memory(Bytes::from_gib(read.memory_gib));
    }
    Some(cluster)
}

/// `fleet.replicas` equal replicas that fit the cluster.
fn one_group(reader: &mut Reader<'_>, serving: &mut Serving, fleet: &FleetSection) {
    let tensor_degree = serving.engine.tensor_degree;
    let per_replica = u64::from(serving.engine.n_gpus(tensor_degree, None));
    let n_gpus = u64::from(serving.cluster.n_gpus());
    divides(reader, &serving.model, tensor_degree);
    let n_fit = n_gpus / per_replica;
    let n_replicas = if fleet.n_replicas == 0 { n_fit } else { fleet.n_replicas };
    if n_replicas > n_fit || n_replicas == 0 {
        let what = format!("{} replicas of {per_replica} GPUs, the cluster has {n_gpus} GPUs", n_replicas.max(1));
        let help = match n_fit {
            0 => "take more nodes, or a lower `engine.tp`, `engine.pp` or `engine.ep`".to_owned(),
            _ => format!("`fleet.replicas = {n_fit}` would use them all"),
        };
        if serving.given.is_varied {
            // The question lays other fleets over this one, which hold.
            serving.choices.iter_mut().for_each(|choice| choice.refused = Some(Refused::infeasible(what.clone())));
        } else {
            reader.refuse(Code::WrongGpuCount, None, what, help);
        }
    }
    serving.groups = vec![ServingGroup {
        name: serving.cluster.gpu.name.clone(),
        model: serving.model.clone(),
        drafters: OwnDrafters::of(&serving.model),
        model_index: 0,
        cluster: serving.cluster.clone(),
        profile: serving.profile.clone(),
        tensor_degree,
        ffn: None,
        n_replicas: small(n_replicas),
        usd_per_gpu_hour: fleet.usd_per_gpu_hour,
        sequences_max: None,
        tokens_max: None,
        recv_interval: None,
        reserved: None,
        kv_blocks: 0,
        role: Role::Both,
        port_bytes_per_s: None,
        scaling: None,
        failures: None,
        lends: true,
        borrows: true,
    }];
    let as_role =
        |(name, role): (&str, Role)| ServingGroup { name: name.to_owned(), role, ..serving.groups[0].clone() };
    if serving.choices.iter().any(|choice| choice.prefill_replicas > 0) {
        serving.roles = [("prefill", Role::Prefill), ("decode", Role::Decode)].map(as_role).into();
    }
}

/// A tensor group is a whole part of the heads.
fn divides(reader: &mut Reader<'_>, model: &Model, tp: u32) {
    let heads = model.n_heads;
    if !heads.is_multiple_of(u64::from(tp)) {
        let what = format!("`engine.tp` = {tp} does not divide the {heads} attention heads of `{}`", model.name);
        reader.refuse(Code::UnevenDegree, None, what, format!("allowed here: {}", divisors(heads)));
    }
}
