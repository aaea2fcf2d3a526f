//! Several servers of a file as a fleet: a script with several commands, or manifests of Kubernetes. Each is a group with its role and its replicas.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use engine::dispatcher::DeepEpMode;
use input::diagnostic::{Code, Finding};

use crate::client::{self, Asked};
use crate::document::Document;
use crate::flags::{Flags, Table};
use crate::launch::{self, Begins, Begun, Launch};
use crate::serving::{Server, templates};
use crate::{Imported, Machine, fleet, sglang, trtllm, vllm};

mod charts;
mod compose;
mod containers;
mod kserve;
mod manifests;
mod offloading;
mod one;
mod replicas;
mod routing;
mod scaled;
mod skypilot;
mod split;
mod started;
mod values;

use one::Started;
pub(crate) use replicas::Replicas;
use routing::Routing;
use split::Beside;

/// A server of a fleet, as it was read.
pub(crate) struct Worker {
    /// Its name.
    pub(crate) name: String,
    /// Whether it reads prompts or generates, where it does one alone.
    pub(crate) role: Option<&'static str>,
    /// How many there are.
    pub(crate) replicas: u64,
    /// What its nodes say of their GPU.
    pub(crate) label: Option<String>,
    /// What it is.
    pub(crate) server: Server,
}

/// What the options of a started server say, and the options.
type Read = fn(Launch, &Machine) -> (Server, Flags<'static>);

/// Engines whose commands are read: what begins one, and what its options say.
const ENGINES: [(Begins, Read); 3] =
    [(vllm::begins, vllm::server), (sglang::begins, sglang::server), (trtllm::begins, trtllm::server)];
/// TensorRT-LLM among them.
const TRTLLM: usize = 2;

/// Flags that join roles, which engines do not have otherwise.
const OF_ROLES: [&str; 4] =
    ["kv-transfer-config", "disaggregation-mode", "server-role", "disaggregation-transfer-backend"];

/// Whether a flag joins roles.
fn is_of_roles(name: &str) -> bool {
    let of_files = ["cache-transceiver-config", "metadata-server"];
    OF_ROLES.contains(&name) || of_files.iter().any(|start| name.starts_with(start))
}

/// Whether a file is of manifests, of Docker Compose or of values of a chart, with a container that starts a server.
pub(crate) fn is_manifest(text: &str) -> bool {
    let begins = ENGINES.map(|(begins, _)| begins);
    started::is_of_containers(text)
        && started::of(text, &begins, &Machine::default()).is_ok_and(|found| !found.is_empty())
}

/// Whether a script runs a container whose image starts vLLM.
pub(crate) fn runs_vllm(text: &str) -> bool {
    let runs = launch::has_any(text, &["docker", "podman"]);
    if !runs || started::is_of_containers(text) {
        return false;
    }
    launch::all_of_script(text, &[launch::images::of_vllm]).is_ok_and(|found| !found.is_empty())
}

/// Whether a script starts a server by a variable: `$VLLM serve`.
pub(crate) fn starts_by_variable(text: &str) -> bool {
    begins_by_variable(text, &ENGINES.map(|(begins, _)| begins))
}

/// Whether a command of a script with a variable in the place of its program begins so.
pub(crate) fn begins_by_variable(text: &str, begins: &[Begins]) -> bool {
    launch::lines(text).any(|line| line.contains('$') && [" serve", " --model"].iter().any(|word| line.contains(word)))
        && started::is_script(text)
        && launch::all_of_script(text, begins).is_ok_and(|found| !found.is_empty())
}

/// Whether a file says the servers of a split fleet of TensorRT-LLM.
pub(crate) fn is_split(text: &str) -> bool {
    trtllm::disaggregated::is_one(text)
}

/// Files of options that commands of a script name, and that are read with it.
pub(crate) fn named_beside(text: &str) -> Vec<String> {
    let starts = ["vllm serve", "vllm.entrypoints", "sglang"];
    let is_script = launch::has_any(text, &starts);
    let of_engines = if is_script { launch::files_behind(text, &[launch::CONFIG]) } else { Vec::new() };
    of_engines.into_iter().chain(trtllm::named_beside(text)).collect()
}

/// Servers of a file, and what it says beside them.
fn servers(text: &str, machine: &Machine) -> Result<(Vec<Started>, Beside), Finding> {
    if is_split(text) && !trtllm::is_script(text) {
        return trtllm::disaggregated::read(text).map(split::of);
    }
    let begins = ENGINES.map(|(begins, _)| begins);
    let mut found = started::of(text, &begins, machine)?;
    let has_server = client::leave_one(&mut found, |one| &one.launch);
    let beside = Beside { is_offline: !has_server, ..split::joined(&mut found, text, machine)? };
    for one in &mut found {
        let launch = client::without_client(std::mem::take(&mut one.launch));
        one.launch = if one.engine == TRTLLM {
            trtllm::with_options(launch, text, machine)
        } else {
            launch::with_config(launch, &|name| machine.beside(name).map(str::to_owned))
        };
    }
    started::leave_out_followers(&mut found);
    Ok((found, beside))
}

/// What a file that starts servers says: one server as it stands, several as a fleet.
pub(crate) fn imported(text: &str, machine: &Machine) -> Imported {
    let (started, mut beside) = match servers(text, machine) {
        Ok(found) => found,
        Err(finding) => return Imported::refused(finding),
    };
    if started.is_empty() {
        let help = "a command of `vllm serve`, `sglang.launch_server` or `trtllm-serve` with its options is needed";
        let finding =
            Finding::error(Code::UnreadableScript, None, "the script starts nothing that is known").help(help);
        return Imported::refused(finding);
    }
    beside.policies.extend(routing::policies(text, machine));
    let routing = routing::routing(&beside.policies);
    let mut findings = beside.findings;
    findings.extend(scaled::findings(text));
    let client = client(text, machine, (!beside.is_offline, &mut findings));
    let mut started = started;
    match started.pop() {
        Some(only) if started.is_empty() => alone(only, (routing, client), findings, machine),
        last => {
            started.extend(last);
            together(started, (routing, client), findings, machine)
        }
    }
}

/// What the client of a file asks for, where it starts one: a command of a script, or a container beside those of servers.
fn client(text: &str, machine: &Machine, (has_server, findings): (bool, &mut Vec<Finding>)) -> Option<Asked> {
    let is_script = started::is_script(text) && (!is_split(text) || trtllm::is_script(text));
    let (asked, said) = if is_script {
        client::of(text, machine, has_server)?
    } else if started::is_of_containers(text) {
        client::of_begun(&in_containers(text, machine), (text, machine), has_server)?
    } else {
        return None;
    };
    findings.extend(said);
    Some(asked)
}

/// Clients that containers of a file start. What their pods say of servers is nothing here.
fn in_containers(text: &str, machine: &Machine) -> Vec<Begun> {
    let found = started::of(text, client::begins(), machine).unwrap_or_default();
    found.into_iter().map(of_container).collect()
}

fn of_container(one: Started) -> Begun {
    let at = one.launch.flags.first().map_or(0..0, |flag| flag.at.clone());
    Begun { which: one.engine, at, launch: Launch { findings: Vec::new(), ..one.launch } }
}

/// One server as it stands.
fn alone(
    one: Started,
    (routing, client): (Routing, Option<Asked>),
    mut findings: Vec<Finding>,
    machine: &Machine,
) -> Imported {
    let gpu = gpu_of(one.label.as_deref(), machine);
    findings.extend(gpu.as_ref().err().cloned());
    let machine = Machine { gpu: gpu.unwrap_or(None), ..machine.clone() };
    let (mut server, mut flags) = ENGINES[one.engine].1(one.launch, &machine);
    server.load.client = client;
    findings.extend(templates::told(&server));
    server.copies = one.replicas.told(&mut findings);
    server.nodes = nodes(&server, one.n_pods, one.gpus_of_pod);
    // Where there is one, nobody chooses.
    if server.n_replicas() > 1 {
        server.router = routing.router;
        findings.extend(routing.findings);
    }
    flags.findings.append(&mut findings);
    server.import(flags, &machine)
}

/// Nodes of a server: as its options say, as many as pods of its group, or as many as have its GPUs.
fn nodes(server: &Server, n_pods: Option<u64>, gpus_of_pod: Option<u64>) -> Option<u64> {
    let all = server.n_gpus() / server.copies.max(1);
    let of_pods = || gpus_of_pod.filter(|n| *n < all && all.is_multiple_of(*n)).map(|n| all / n);
    server.nodes.or(n_pods.filter(|n| *n > 1)).or_else(of_pods)
}

/// Several servers as a fleet.
fn together(
    started: Vec<Started>,
    (routing, client): (Routing, Option<Asked>),
    mut findings: Vec<Finding>,
    machine: &Machine,
) -> Imported {
    let mut workers = Vec::new();
    let Routing { router, findings: of_router } = routing;
    findings.extend(of_router);
    for Started { name, replicas, label, role: known, n_pods, gpus_of_pod, engine, launch } in started {
        let role = role(&launch).or(known);
        let (mut server, mut flags) = ENGINES[engine].1(launch, machine);
        flags.given.retain(|flag| !is_of_roles(&flag.name));
        flags.judge();
        findings.append(&mut flags.findings);
        server.nodes = nodes(&server, n_pods, gpus_of_pod);
        server.router.clone_from(&router);
        server.load.client.clone_from(&client);
        findings.extend(templates::told(&server));
        workers.push(Worker { name, role, replicas: replicas.told(&mut findings), label, server });
    }
    fleet(workers, findings, machine)
}

/// What a server does of a request, where it does a part alone.
fn role(launch: &Launch) -> Option<&'static str> {
    let value = |name: &str| launch.flags.iter().find(|flag| flag.name == name).map(|flag| flag.value().to_lowercase());
    let words = OF_ROLES[..3].iter().filter_map(|name| value(name)).collect::<Vec<_>>().join(" ");
    let has = |marks: [&str; 3]| marks.iter().any(|mark| words.contains(mark));
    match (has(["kv_producer", "prefill", "context"]), has(["kv_consumer", "decode", "generation"])) {
        (true, false) => Some("prefill"),
        (false, true) => Some("decode"),
        _ => None,
    }
}

/// The GPU of a group: what the command line says, else what nodes say of it.
fn gpu_of(label: Option<&str>, machine: &Machine) -> Result<Option<String>, Finding> {
    if machine.gpu.is_some() || machine.is_named() {
        return Ok(machine.gpu.clone());
    }
    let Some(label) = label else { return Ok(None) };
    let found = fleet::of_label(label).map(str::to_owned);
    found.map(Some).ok_or_else(|| {
        let what = format!("the GPU of nodes with the label `{label}` is not known");
        Finding::warning(Code::UnknownValue, None, what).help("give `--set cluster.gpu=…`")
    })
}

/// The scenario of a fleet: the first worker's engine, and a group for each.
pub(crate) fn fleet(mut workers: Vec<Worker>, findings: Vec<Finding>, machine: &Machine) -> Imported {
    join_dispatchers(&mut workers);
    tell_apart(&mut workers);
    let Some(first) = workers.iter().find(|worker| worker.role != Some("prefill")).or(workers.first()) else {
        let mut findings = findings;
        let what = "the deployment has no service that runs an engine";
        findings.push(Finding::error(Code::UnsupportedJob, None, what).help("services of type `worker` are read"));
        return Imported { findings, ..Imported::default() };
    };
    let mut flags = Flags::new(Vec::new(), table(first.server.engine));
    let of_workers = findings;
    let mut out = first.server.document(&mut flags);
    // One GPU for all groups is a machine that the command line may name otherwise.
    let is_one = machine.gpu.is_some() || machine.is_named();
    if is_one {
        cluster(&workers, machine, &mut out);
    }
    first.server.batching(&mut out);
    first.server.routed(&mut out);
    let mut text = out.toml();
    let mut findings = std::mem::take(&mut flags.findings);
    findings.extend(of_workers);
    for worker in &workers {
        findings.extend(differences(worker, first));
        let gpu = gpu_of(worker.label.as_deref(), machine).unwrap_or_else(|finding| {
            findings.push(finding);
            None
        });
        if gpu.is_none() && !is_one {
            findings.push(crate::no_gpu());
            return Imported { scenario: text, findings };
        }
        text += &group(worker, first, gpu.filter(|_| !is_one));
    }
    Imported { scenario: text, findings }
}

/// Gives groups names of their own: files have roles of one name for several models or pools.
fn tell_apart(workers: &mut [Worker]) {
    let mut taken = BTreeSet::new();
    for worker in workers {
        let numbered = (2..).map(|n| format!("{}-{n}", worker.name));
        let free = std::iter::once(worker.name.clone()).chain(numbered).find(|name| !taken.contains(name));
        worker.name = free.unwrap_or_default();
        taken.insert(worker.name.clone());
    }
}

/// Where some groups call DeepEP for throughput and others for latency, all call it as their batches are: those that read prompts have many tokens.
fn join_dispatchers(workers: &mut [Worker]) {
    const KEY: &str = "dispatcher";
    let modes: BTreeSet<String> =
        workers.iter().filter_map(|worker| value_of(&worker.server, KEY)).map(str::to_owned).collect();
    let all_have_one = workers.iter().all(|worker| value_of(&worker.server, KEY).is_some());
    if modes.len() < 2 || !all_have_one {
        return;
    }
    let keys = workers.iter_mut().flat_map(|worker| &mut worker.server.keys);
    for (_, value, _) in keys.filter(|(key, ..)| *key == KEY) {
        *value = format!("\"{}\"", DeepEpMode::Auto.word());
    }
}

/// The machine of all groups: nodes that no two groups share.
fn cluster(workers: &[Worker], machine: &Machine, out: &mut Document) {
    let per_node = machine.gpus_per_node.map(u64::from).or_else(|| of_pods(workers));
    let per_node = per_node.unwrap_or_else(|| u64::from(machine.per_node())).max(1);
    let gpus = workers.iter().map(|worker| worker.server.n_gpus().saturating_mul(worker.replicas));
    let all = gpus.map(|n| n.div_ceil(per_node)).fold(0, u64::saturating_add).max(1);
    if let Some(gpu) = &machine.gpu {
        out.word("cluster", "gpu", gpu, "--gpu or --set cluster.gpu");
    }
    out.set("cluster", "nodes", machine.nodes.map_or(all, u64::from), "GPUs of all groups");
    if !machine.is_named() {
        out.set("cluster", "gpus_per_node", per_node, "");
    }
}

/// GPUs of a node where a server lies over several: as many as the largest share of a server that a node has.
fn of_pods(workers: &[Worker]) -> Option<u64> {
    let shares = workers.iter().map(|worker| worker.server.n_gpus() / worker.server.nodes.unwrap_or(1).max(1));
    let is_spread = workers.iter().any(|worker| worker.server.nodes.is_some());
    shares.max().filter(|_| is_spread)
}

/// A worker as a group; without a GPU of its own it has those of the cluster.
fn group(worker: &Worker, first: &Worker, gpu: Option<String>) -> String {
    let Worker { name, role, replicas, server, .. } = worker;
    let mut text = format!("\n[[fleet.group]]\nname = {}\n", crate::document::quoted(name));
    if let Some(gpu) = gpu {
        let _ = writeln!(text, "gpu = {}", crate::document::quoted(&gpu));
    }
    let n = replicas.saturating_mul(if server.ep.is_some() { 1 } else { server.dp });
    let _ = writeln!(text, "tp = {}\nreplicas = {n}", server.tp);
    if let Some(role) = role {
        let _ = writeln!(text, "role = \"{role}\"");
    }
    for (key, value, _) in server.keys.iter().filter(|(key, ..)| OF_GROUPS.contains(key)) {
        let _ = writeln!(text, "{key} = {value}");
    }
    if looks(first) && !looks(worker) {
        let _ = writeln!(text, "{LOOKS} = 1");
    }
    text
}

/// Whether a server says when it looks for requests.
fn looks(worker: &Worker) -> bool {
    worker.server.keys.iter().any(|(key, ..)| *key == LOOKS)
}

/// Keys of an engine that a group has of its own.
const OF_GROUPS: [&str; 3] = ["max_sequences", "max_tokens", LOOKS];
/// One of them that is 1 where an option of it is left out.
const LOOKS: &str = "recv_interval";

/// Options of an engine.
fn table(engine: &str) -> &'static Table {
    match engine {
        "vllm" => &vllm::FLAGS,
        "sglang" => &sglang::FLAGS,
        _ => &trtllm::FLAGS,
    }
}

/// What a server has otherwise than the one whose engine stands for all.
fn differences(worker: &Worker, first: &Worker) -> Vec<Finding> {
    let (own, other) = (&worker.server, &first.server);
    let (name, of) = (&worker.name, &first.name);
    let mut found = Vec::new();
    if own.model != other.model || own.engine != other.engine {
        let what = format!("`{name}` serves another model, or runs another engine, than `{of}`");
        let help = "import each by itself; a scenario holds both as streams with models of their own";
        found.push(Finding::error(Code::UnsupportedJob, None, what).help(help));
    }
    let help = "the engine's are taken for all groups";
    if (own.pp, own.ep.unwrap_or(1)) != (other.pp, other.ep.unwrap_or(1)) {
        let what = format!("stages or expert ranks of `{name}` that differ from those of `{of}` are not modelled");
        found.push(Finding::warning(Code::NotModelled, None, what).help(help));
    }
    let names = different_options(own, other);
    if !names.is_empty() {
        let what =
            format!("options of `{name}` that differ from those of `{of}` are not modelled: {}", names.join(", "));
        found.push(Finding::warning(Code::NotModelled, None, what).help(help));
    }
    found
}

/// The value of a key of a server's engine.
fn value_of<'s>(server: &'s Server, key: &str) -> Option<&'s str> {
    server.keys.iter().find(|(known, ..)| *known == key).map(|(_, value, _)| value.as_str())
}

/// What two servers have otherwise, by the names of its options where they have some.
fn different_options(own: &Server, other: &Server) -> Vec<String> {
    let all = own.keys.iter().chain(&other.keys).filter(|(key, ..)| !OF_GROUPS.contains(key));
    let mut names: Vec<String> = all
        .filter(|(key, ..)| value_of(own, key) != value_of(other, key))
        .map(|(.., flag)| format!("`{flag}`"))
        .collect();
    let parts = [
        (own.formats[0] != other.formats[0], "the format of weights"),
        (own.formats[1] != other.formats[1], "the format of keys and values"),
        (own.drafts != other.drafts, "drafts"),
        (own.policy != other.policy, "the rule of batching"),
    ];
    names.extend(parts.into_iter().filter(|(differs, _)| *differs).map(|(_, words)| words.to_owned()));
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests;
