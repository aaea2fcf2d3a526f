//! The independent checker of deployments: holds one against the model and the machines, and shares no code with any planner.
//!
//! It asks: are the GPUs there and is each used once, does a tensor group lie in a node and divide the heads, do weights fit with some
//! cache beside them, on devices and on hosts, do the stages of a replica follow one another, does every route do every layer in order, with prompts before
//! tokens, over links that exist, and do the shares of every type of requests sum to one. Units: bytes, layers, GPUs.

use std::collections::BTreeMap;

use engine::model::{Layer, Model};
use thiserror::Error;

use crate::batcher;
use crate::deployment::{Deployment, Machine, OnHost, Range, Replica, Route, SCHEMA, STATION_BATCHER, Stage};
use crate::replica::Role;

/// Distance of a sum of shares from one that rounding explains.
const ROUNDING: f64 = 1e-6;

/// What a deployment is held against.
#[derive(Clone, Copy, Debug)]
pub struct Site<'s> {
    /// The model.
    pub model: &'s Model,
    /// Machines that are there, or that may be rented.
    pub machines: &'s [Machine],
    /// Bytes of a parameter.
    pub parameter_bytes: f64,
    /// Bytes of an element of a key or value.
    pub kv_bytes: f64,
}

impl<'s> Site<'s> {
    /// A model in its own formats; where parts differ, what the narrowest takes, as a rule refuses what cannot be.
    pub fn of(model: &'s Model, machines: &'s [Machine]) -> Self {
        let (parameter_bytes, kv_bytes) = (model.formats.narrowest_bytes(), hw::real(model.formats.kv.bytes()));
        Self { model, machines, parameter_bytes, kv_bytes }
    }
}

/// Where in a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Replica.
    pub replica: u32,
    /// Its stage.
    pub stage: u32,
}

impl std::fmt::Display for At {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "replica {}, stage {}", self.replica, self.stage)
    }
}

/// Why a deployment cannot be played.
#[derive(Clone, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum Refusal {
    /// A file of another kind.
    #[error("schema is `{0}`, expected `{SCHEMA}`")]
    Schema(String),
    /// Made for another model.
    #[error("it is for `{planned}` of {layers} layers, the model is `{model}` of {n_layers}")]
    OtherModel { planned: String, layers: u32, model: String, n_layers: u64 },
    /// Made for other machines.
    #[error("machine {0} is not the one that is there")]
    OtherMachine(usize),
    /// Nothing serves.
    #[error("it has no replica")]
    NoReplica,
    /// A replica that is nothing.
    #[error("replica {0} has no copy or no stage")]
    Empty(u32),
    /// A machine that does not exist.
    #[error("{at} is on machine {machine}, there are {n}")]
    UnknownMachine { at: At, machine: u32, n: usize },
    /// More GPUs than the machine has.
    #[error("{at} takes GPUs up to {end} of `{machine}`, which has {n}")]
    NoSuchGpu { at: At, end: u64, machine: String, n: u32 },
    /// A GPU with two owners.
    #[error("GPU {gpu} of `{machine}` is used by {first} and by {second}")]
    GpuTwice { machine: String, gpu: u64, first: At, second: At },
    /// A tensor group that cannot be.
    #[error(
        "{at} has tensor degree {tensor} on {n_gpus} GPUs, with {n_heads} heads and {per_node} GPUs per node: {why}"
    )]
    Tensor { at: At, tensor: u32, n_gpus: u32, n_heads: u64, per_node: u32, why: &'static str },
    /// Stages that do not follow one another.
    #[error("{at} holds layers {first} to {end}, expected some from {expected} on, up to {n_layers}")]
    Layers { at: At, first: u32, end: u32, expected: u32, n_layers: u32 },
    /// Too little memory.
    #[error(
        "{at} holds {weights_gb:.2} GB of weights and {cache_gb:.2} GB of keys and values, its GPUs have {memory_gb:.2} GB"
    )]
    Memory { at: At, weights_gb: f64, cache_gb: f64, memory_gb: f64 },
    /// Too little memory of a host.
    #[error(
        "node {node} of `{machine}` keeps {weights_gb:.2} GB of weights in the memory of its host, which has {memory_gb:.2} GB"
    )]
    HostMemory { machine: String, node: u32, weights_gb: f64, memory_gb: f64 },
    /// No room for a single block.
    #[error("replica {replica} caches {tokens} tokens, less than a block of {block}")]
    NoCache { replica: u32, tokens: u64, block: u32 },
    /// An engine that cannot run.
    #[error("replica {replica}: {why}")]
    Engine { replica: u32, why: String },
    /// A link that cannot be.
    #[error("link {link}: {why}")]
    Link { link: usize, why: &'static str },
    /// A route over a replica that does not exist.
    #[error("route {route} goes over replica {replica}, which does not exist")]
    UnknownReplica { route: usize, replica: u32 },
    /// A route over a link that does not exist.
    #[error("route {route} needs a link from {from} to {to}")]
    NoLink { route: usize, from: String, to: String },
    /// A route that leaves out a layer.
    #[error("route {route} comes to replica {replica} with {done} layers done, which holds {first} to {end}")]
    NotCovered { route: usize, replica: u32, done: u32, first: u32, end: u32 },
    /// A route that ends early.
    #[error("route {route} ends with {done} of {n_layers} layers done")]
    EndsEarly { route: usize, done: u32, n_layers: u32 },
    /// Roles in an order that cannot be.
    #[error("route {0} must go over replicas that do both, or over prefill and then decode replicas")]
    Roles(usize),
    /// Shares that do not make a whole.
    #[error("shares of requests of type {class} sum to {sum}, expected 1")]
    Shares { class: u32, sum: f64 },
    /// A share without meaning.
    #[error("route {route} has a share of {share}")]
    Share { route: usize, share: f64 },
    /// A replica that no request can use.
    #[error(
        "no route leads through replica {0}: no replica hands a request on to it, or none takes its last layer further"
    )]
    Useless(u32),
}

/// Checks a deployment.
///
/// # Errors
/// Every refusal, in the order of the deployment.
pub fn check(deployment: &Deployment, site: &Site<'_>) -> Result<(), Vec<Refusal>> {
    let mut found = of_whole(deployment, site);
    for at in 0..index(deployment.replicas.len()) {
        replica(deployment, site, at, &mut found);
    }
    found.extend(gpus_once(deployment));
    found.extend(links(deployment));
    for route in 0..deployment.routes.len() {
        found.extend(of_route(deployment, route));
    }
    found.extend(shares(&deployment.routes));
    if found.is_empty() {
        found.extend(host_memory(deployment));
        found.extend(useless(deployment));
    }
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn index(n: usize) -> u32 {
    u32::try_from(n).expect("fewer than 2^32 replicas, links and routes")
}

/// It is for this model and for these machines.
fn of_whole(deployment: &Deployment, site: &Site<'_>) -> Vec<Refusal> {
    let mut found = Vec::new();
    if deployment.schema != SCHEMA {
        found.push(Refusal::Schema(deployment.schema.clone()));
    }
    if deployment.model != site.model.name || u64::from(deployment.n_layers) != site.model.n_layers {
        found.push(Refusal::OtherModel {
            planned: deployment.model.clone(),
            layers: deployment.n_layers,
            model: site.model.name.clone(),
            n_layers: site.model.n_layers,
        });
    }
    let n = deployment.machines.len().max(site.machines.len());
    let differs = |at: &usize| deployment.machines.get(*at) != site.machines.get(*at);
    found.extend((0..n).filter(differs).map(Refusal::OtherMachine));
    if deployment.replicas.is_empty() {
        found.push(Refusal::NoReplica);
    }
    found
}

/// Its stages follow one another and fit, and its engine can run.
fn replica(deployment: &Deployment, site: &Site<'_>, at: u32, found: &mut Vec<Refusal>) {
    let replica = &deployment.replicas[at as usize];
    if replica.copies == 0 || replica.stages.is_empty() {
        found.push(Refusal::Empty(at));
        return;
    }
    let mut expected = replica.stages[0].layers.first;
    for (stage, held) in replica.stages.iter().enumerate() {
        let at = At { replica: at, stage: index(stage) };
        let Range { first, end } = held.layers;
        if held.layers.is_empty() || first != expected || end > deployment.n_layers {
            found.push(Refusal::Layers { at, first, end, expected, n_layers: deployment.n_layers });
        }
        expected = end;
        let Some(machine) = deployment.machines.get(held.machine as usize) else {
            found.push(Refusal::UnknownMachine { at, machine: held.machine, n: deployment.machines.len() });
            continue;
        };
        let taken =
            u64::from(held.gpus.end) + u64::from(replica.copies - 1) * u64::from(replica.n_gpus_on(held.machine));
        if taken > u64::from(machine.n_gpus) {
            found.push(Refusal::NoSuchGpu { at, end: taken, machine: machine.name.clone(), n: machine.n_gpus });
        }
        let copies = (replica.copies, replica.n_gpus_on(held.machine));
        found.extend(tensor(site.model, machine, (held, copies), at));
        found.extend(memory(site, machine, replica, held, at));
    }
    found.extend(engine(replica, deployment.has_stations(), at));
}

/// Tensor groups divide the GPUs and the heads, and lie in a node or fill several: those of every copy, `copies` being how many
/// there are and how many GPUs each lies behind the one before.
fn tensor(model: &Model, machine: &Machine, (stage, copies): (&Stage, (u32, u32)), at: At) -> Option<Refusal> {
    let (tensor, n_gpus, per_node) = (stage.tensor, attending(stage), machine.gpus_per_node);
    let refused = |why| Some(Refusal::Tensor { at, tensor, n_gpus, n_heads: model.n_heads, per_node, why });
    if tensor == 0 || n_gpus == 0 || !n_gpus.is_multiple_of(tensor) {
        return refused("it must divide the GPUs of the stage");
    }
    if !model.n_heads.is_multiple_of(u64::from(tensor)) {
        return refused("it must divide the heads");
    }
    if (n_gpus > tensor || stage.ffn_gpus > 0) && model.experts.is_none() {
        return refused("tensor groups side by side share experts, and the model has none");
    }
    if per_node == 0 {
        return refused("a node has GPUs");
    }
    let mut firsts = firsts(stage, copies, per_node);
    if tensor <= per_node && firsts.any(|first| first % per_node + tensor > per_node) {
        return refused("a group must lie in one node");
    }
    let fills = |first: u32| tensor.is_multiple_of(per_node) && first.is_multiple_of(per_node);
    if tensor > per_node && !firsts.all(fills) {
        return refused("a group of several nodes must fill them");
    }
    None
}

/// Where in a node the tensor groups of every copy begin. Copies repeat after as many as a node has GPUs, and so do groups.
fn firsts(stage: &Stage, (copies, apart): (u32, u32), per_node: u32) -> impl Iterator<Item = u32> {
    let groups = attending(stage) / stage.tensor;
    let (first, tensor) = (stage.gpus.first % per_node, stage.tensor % per_node);
    let begin = move |copy: u32| (first + copy * (apart % per_node)) % per_node;
    let group = move |copy: u32| (0..groups.min(per_node)).map(move |group| (begin(copy) + group * tensor) % per_node);
    (0..copies.min(per_node)).flat_map(group)
}

/// GPUs of a stage that do more than hold experts.
fn attending(stage: &Stage) -> u32 {
    stage.gpus.n().saturating_sub(stage.ffn_gpus)
}

/// Weights of a stage, with the embedding on the first and the head on the last: those of every tensor group, and the routed experts.
fn weights(site: &Site<'_>, stage: &Stage) -> [f64; 2] {
    let model = site.model;
    let (first, end) = (u64::from(stage.layers.first), u64::from(stage.layers.end));
    let n_routed = model.n_expert_layers_of(end) - model.n_expert_layers_of(first.min(end));
    let shared = model.shared_parameters(first, end);
    let experts = n_routed * model.experts.map_or(0, |experts| experts.n_routed) * model.expert_parameters();
    let encoder = model.vision.as_deref().map_or(0, engine::model::VisionEncoder::n_parameters);
    let embedding = if first == 0 { model.first_stage_parameters() + encoder } else { 0 };
    let head = if end == model.n_layers { model.last_stage_parameters(first == 0) } else { 0 };
    // Every tensor group has attention, parts of it on several of its GPUs; experts are there once.
    let tensor = stage.tensor.max(1);
    let kinds = model.kinds(first, end).into_iter();
    let repeated: u64 = kinds.map(|(layer, n)| n * model.repeated_parameters(layer, tensor, true)).sum();
    let n_groups = f64::from(attending(stage) / tensor);
    [n_groups * hw::real(shared + repeated + embedding + head), hw::real(experts)]
        .map(|parameters| site.parameter_bytes * parameters)
}

/// Bytes of keys and values of a token in the layers of a stage that keep those of every token, on all GPUs of a tensor group: layers with a state or
/// a window keep so much a sequence. Fewer heads than GPUs: every GPU keeps one, as it keeps the whole of a latent vector.
fn kept_bytes(site: &Site<'_>, stage: &Stage) -> f64 {
    let (model, tensor) = (site.model, stage.tensor.max(1));
    let elements = |mixer| hw::real(model.kept_elements(mixer, tensor) * u64::from(tensor));
    let kinds = model.kinds(stage.layers.first.into(), stage.layers.end.into()).into_iter();
    let kept = kinds.filter(|(kind, _)| model.keeps_all(kind.mixer));
    let of_kind = |(kind, n): (Layer, u64)| hw::real(n) * elements(kind.mixer) / hw::real(kind.mixer.kept_together());
    site.kv_bytes * kept.map(of_kind).sum::<f64>()
}

/// The stage's GPUs hold its layers, but for what lies on hosts, and what the replica caches of them. Those with experts alone hold nothing else, and no
/// others hold these; none of their weights lie on hosts.
fn memory(site: &Site<'_>, machine: &Machine, replica: &Replica, stage: &Stage, at: At) -> Option<Refusal> {
    let each = machine.memory?.as_f64();
    let [shared, experts] = weights(site, stage);
    let cache = hw::real(replica.engine.kv_tokens) * kept_bytes(site, stage);
    let sides = if stage.ffn_gpus == 0 {
        vec![(on_device(shared + experts, stage), cache, stage.gpus.n())]
    } else {
        vec![(shared, cache, attending(stage)), (experts, 0.0, stage.ffn_gpus)]
    };
    sides.into_iter().find_map(|(weights, cache, n_gpus)| {
        let memory = each * f64::from(n_gpus);
        let refusal = Refusal::Memory { at, weights_gb: gb(weights), cache_gb: gb(cache), memory_gb: gb(memory) };
        (weights + cache > memory).then_some(refusal)
    })
}

const fn gb(bytes: f64) -> f64 {
    bytes / 1e9
}

/// Bytes of weights on the devices of a stage, with the buffers for those on hosts.
fn on_device(weights: f64, stage: &Stage) -> f64 {
    let Some(OnHost { weights: away, buffers }) = stage.on_host else { return weights };
    let n_gpus = f64::from(stage.gpus.n());
    (weights - n_gpus * away.as_f64()).max(0.0) + n_gpus * buffers.as_f64()
}

/// Hosts hold what the GPUs of their nodes leave there. The GPUs of each exist, and have one owner.
fn host_memory(deployment: &Deployment) -> Vec<Refusal> {
    let mut kept: BTreeMap<(u32, u32), f64> = BTreeMap::new();
    for replica in &deployment.replicas {
        for (stage, on_host) in replica.stages.iter().filter_map(|stage| Some((stage, stage.on_host?))) {
            let per_node = deployment.machines[stage.machine as usize].gpus_per_node;
            let copies = (0..replica.copies).map(|copy| copy * replica.n_gpus_on(stage.machine));
            for gpu in copies.flat_map(|moved| (stage.gpus.first..stage.gpus.end).map(move |gpu| gpu + moved)) {
                *kept.entry((stage.machine, gpu / per_node)).or_default() += on_host.weights.as_f64();
            }
        }
    }
    let full = |((machine, node), weights): ((u32, u32), f64)| {
        let Machine { name, host_memory, .. } = &deployment.machines[machine as usize];
        let memory = host_memory.filter(|memory| weights > memory.as_f64())?.as_f64();
        Some(Refusal::HostMemory { machine: name.clone(), node, weights_gb: gb(weights), memory_gb: gb(memory) })
    };
    kept.into_iter().filter_map(full).collect()
}

/// The engine has a policy, room for a block and for a sequence.
fn engine(replica: &Replica, is_station: bool, at: u32) -> Vec<Refusal> {
    let options = &replica.engine;
    let mut found = Vec::new();
    let mut refuse = |why: String| found.push(Refusal::Engine { replica: at, why });
    let policy = batcher::named(&options.batcher);
    let is_known = if is_station { options.batcher == STATION_BATCHER } else { policy.is_some() };
    if !is_known {
        refuse(format!("no batching policy is called `{}`", options.batcher));
    }
    if options.sequences_max == 0 || options.tokens_max == 0 || options.block_tokens == 0 {
        refuse("sequences, tokens and blocks must be above 0".to_owned());
    }
    // Where the budget is that of prompts, sequences that decode need no room in it.
    let needs_room =
        !is_station && replica.role != Role::Prefill && policy.is_none_or(|policy| policy.counts_decoding());
    if needs_room && options.tokens_max < options.sequences_max {
        let (tokens, sequences) = (options.tokens_max, options.sequences_max);
        refuse(format!("{sequences} sequences have a token each in batches of {tokens}"));
    }
    let (tokens, block) = (options.kv_tokens, options.block_tokens);
    if tokens < u64::from(block.max(1)) {
        found.push(Refusal::NoCache { replica: at, tokens, block });
    }
    found
}

/// No GPU has two owners.
fn gpus_once(deployment: &Deployment) -> Vec<Refusal> {
    let mut owners: BTreeMap<u32, Vec<(u64, u64, At)>> = BTreeMap::new();
    for (replica, of) in deployment.replicas.iter().enumerate() {
        for (stage, held) in of.stages.iter().enumerate() {
            let at = At { replica: index(replica), stage: index(stage) };
            let stride = u64::from(of.n_gpus_on(held.machine));
            let of_machine = owners.entry(held.machine).or_default();
            for copy in 0..u64::from(of.copies) {
                let moved = copy * stride;
                of_machine.push((u64::from(held.gpus.first) + moved, u64::from(held.gpus.end) + moved, at));
            }
        }
    }
    let mut found = Vec::new();
    for (machine, mut taken) in owners {
        taken.sort_by_key(|(first, end, _)| (*first, *end));
        let name = deployment.machines.get(machine as usize).map_or_else(String::new, |known| known.name.clone());
        let mut last: Option<(u64, At)> = None;
        for (first, end, at) in taken {
            if let Some((_, before)) = last.filter(|(until, _)| first < *until) {
                found.push(Refusal::GpuTwice { machine: name.clone(), gpu: first, first: before, second: at });
            }
            if last.is_none_or(|(until, _)| end > until) {
                last = Some((end, at));
            }
        }
    }
    found
}

/// Links lie between replicas that exist and carry something.
fn links(deployment: &Deployment) -> Vec<Refusal> {
    let n = deployment.replicas.len();
    let exists = |end: Option<u32>| end.is_none_or(|replica| (replica as usize) < n);
    let mut found = Vec::new();
    for (at, link) in deployment.links.iter().enumerate() {
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        let why = if !exists(link.from) || !exists(link.to) {
            "it must lie between replicas that exist"
        } else if link.from == link.to {
            "it must lie between two"
        } else if deployment.links[..at].iter().any(|known| (known.from, known.to) == (link.from, link.to)) {
            "another one lies between the same two"
        } else if !link.bytes_per_s.is_none_or(positive) || !positive(link.wire_ratio) {
            "bytes per second and what is sent of a byte must be above 0"
        } else if !(link.latency_s.is_finite() && link.latency_s >= 0.0) {
            "its latency must not be below 0"
        } else if shares_another_wire(deployment, at) {
            "links of one wire must have the same bytes per second"
        } else {
            continue;
        };
        found.push(Refusal::Link { link: at, why });
    }
    found
}

fn shares_another_wire(deployment: &Deployment, at: usize) -> bool {
    let link = &deployment.links[at];
    let same = |known: &crate::deployment::Link| link.wire.is_some() && known.wire == link.wire;
    deployment.links[..at].iter().any(|known| same(known) && known.bytes_per_s != link.bytes_per_s)
}

/// A route does every layer once for the prompt, and once for the tokens, over links.
fn of_route(deployment: &Deployment, at: usize) -> Vec<Refusal> {
    let route = &deployment.routes[at];
    let n = deployment.replicas.len();
    let unknown = route.replicas.iter().find(|replica| **replica as usize >= n);
    if let Some(&replica) = unknown {
        return vec![Refusal::UnknownReplica { route: at, replica }];
    }
    let mut found = Vec::new();
    if !(route.share_ratio.is_finite() && route.share_ratio >= 0.0) {
        found.push(Refusal::Share { route: at, share: route.share_ratio });
    }
    let roles: Vec<Role> = route.replicas.iter().map(|replica| deployment.replicas[*replica as usize].role).collect();
    let n_prefill = roles.iter().take_while(|role| **role == Role::Prefill).count();
    let (prompt, tokens) = route.replicas.split_at(n_prefill);
    let are = |role: Role| roles[n_prefill..].iter().all(|known| *known == role) && n_prefill < roles.len();
    if !((n_prefill == 0 && are(Role::Both)) || (n_prefill > 0 && are(Role::Decode))) {
        found.push(Refusal::Roles(at));
        return found;
    }
    for part in [prompt, tokens] {
        if !part.is_empty() {
            found.extend(covers(deployment, at, part));
        }
    }
    found.extend(linked(deployment, at));
    found
}

/// Every layer in order; a replica may hold layers that are done already.
fn covers(deployment: &Deployment, at: usize, part: &[u32]) -> Option<Refusal> {
    let mut done = 0;
    for &replica in part {
        let Range { first, end } = deployment.replicas[replica as usize].layers();
        if first > done || end <= done {
            return Some(Refusal::NotCovered { route: at, replica, done, first, end });
        }
        done = end;
    }
    let n_layers = deployment.n_layers;
    (done < n_layers).then_some(Refusal::EndsEarly { route: at, done, n_layers })
}

/// Every hop of a route has a link; those of the coordinator where the deployment names them.
fn linked(deployment: &Deployment, at: usize) -> Vec<Refusal> {
    let replicas = &deployment.routes[at].replicas;
    let mut ends: Vec<Option<u32>> = replicas.iter().copied().map(Some).collect();
    if deployment.links.iter().any(|link| link.from.is_none() || link.to.is_none()) {
        ends.insert(0, None);
        ends.push(None);
    }
    let name = |end: Option<u32>| end.map_or_else(|| "the coordinator".to_owned(), |n| format!("replica {n}"));
    let missing = ends.windows(2).filter(|pair| deployment.link(pair[0], pair[1]).is_none());
    missing.map(|pair| Refusal::NoLink { route: at, from: name(pair[0]), to: name(pair[1]) }).collect()
}

/// Shares of every type sum to one.
fn shares(routes: &[Route]) -> Vec<Refusal> {
    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
    for route in routes {
        *sums.entry(route.class).or_default() += route.share_ratio;
    }
    let wrong = sums.into_iter().filter(|(_, sum)| (sum - 1.0).abs() > ROUNDING || !sum.is_finite());
    wrong.map(|(class, sum)| Refusal::Shares { class, sum }).collect()
}

/// Replicas that no request could get through, where the router decides: prefill without decode, or parts that nothing leads over.
fn useless(deployment: &Deployment) -> Vec<Refusal> {
    let replicas = &deployment.replicas;
    let has = |role: Role| replicas.iter().any(|replica| replica.role == role);
    if !deployment.has_stations() {
        let alone = |role: Role| match role {
            Role::Both | Role::Outputs => false,
            Role::Prefill => !has(Role::Decode),
            Role::Decode => !has(Role::Prefill),
        };
        let lonely = (0..index(replicas.len())).filter(|at| alone(replicas[*at as usize].role));
        return lonely.map(Refusal::Useless).collect();
    }
    // Layers done when a request leaves a replica are those up to its end, so what is reached does not hang on the way there.
    let from_start = reached(deployment, |at| replicas[at].layers().first == 0, follows);
    let to_end = reached(deployment, |at| replicas[at].layers().end == deployment.n_layers, |d, a, b| follows(d, b, a));
    let lost = (0..replicas.len()).filter(|at| !(from_start[*at] && to_end[*at]));
    lost.map(|at| Refusal::Useless(index(at))).collect()
}

/// Whether a request may go on from one replica to another.
fn follows(deployment: &Deployment, from: usize, to: usize) -> bool {
    let (done, next) = (deployment.replicas[from].layers().end, deployment.replicas[to].layers());
    next.first <= done && done < next.end && deployment.link(Some(index(from)), Some(index(to))).is_some()
}

/// Replicas that are reached from those that a condition names, step by step.
fn reached(
    deployment: &Deployment,
    starts: impl Fn(usize) -> bool,
    goes: fn(&Deployment, usize, usize) -> bool,
) -> Vec<bool> {
    let n = deployment.replicas.len();
    let mut is_reached: Vec<bool> = (0..n).map(starts).collect();
    let mut open: Vec<usize> = (0..n).filter(|at| is_reached[*at]).collect();
    while let Some(from) = open.pop() {
        for (to, is_there) in is_reached.iter_mut().enumerate() {
            if !*is_there && goes(deployment, from, to) {
                *is_there = true;
                open.push(to);
            }
        }
    }
    is_reached
}

#[cfg(test)]
mod tests;
