//! A fleet as a deployment of NVIDIA Dynamo, and such a deployment as a scenario: a service for each kind of replica, with its role.
//!
//! Dynamo's own frontend routes. Engines are vLLM and SGLang. Source: ai-dynamo/dynamo, examples/backends @ 7893f2684e43 and 04521f473b68.

use std::fmt::Write as _;

use input::diagnostic::{Code, Finding};
use serve::deployment::Deployment;
use serve::replica::Role;

use crate::export::{ExportError, File, Planned, Target, Words, expressed, serving};
use crate::flags::{Flag, Flags, is_flag, named as flag_named};
use crate::fleet::{Group, group, named, quoted, said_of};
use crate::launch::Launch;
use crate::servers::shares;
use crate::serving::Server;
use crate::yaml::{self, Entry};
use crate::{Imported, Machine, sglang, vllm};

const NAME: &str = "dynamo";
const VERSION: &str = "NVIDIA Dynamo 1.3 (DynamoGraphDeployment, nvidia.com/v1alpha1)";
/// Tag of the images.
const TAG: &str = "1.3.1";

/// The target.
pub const TARGET: Target = Target::new(NAME, "a deployment of a fleet, a service for each group", VERSION, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (deployments, settings) = serving(planned, NAME)?;
    let said = said_of(settings);
    let (mut files, mut what) = (Vec::new(), Vec::new());
    if deployments.iter().all(|deployment| deployment.replicas.is_empty()) {
        what.push("a plan without replicas".to_owned());
    }
    for deployment in deployments {
        let mut groups = Vec::new();
        for replica in &deployment.replicas {
            match group(deployment, replica, NAME, &said) {
                Ok(group) => groups.push(group),
                Err(why) => what.push(format!("replica `{}`: {why}", replica.name)),
            }
        }
        if groups.iter().any(|group| group.engine.name != groups[0].engine.name) {
            what.push("replicas of different engines behind one frontend".to_owned());
        }
        if !deployment.routes.is_empty() {
            what.push("shares of requests of different types: its frontend routes by itself".to_owned());
        }
        if let Some(first) = groups.first() {
            let mut text = words.comments(VERSION);
            text += "# Put the path of the checkpoint in the place of the model's name.\n";
            text += &said[0].lines();
            text += &graph(deployment, &groups, first);
            files.push(File::new(&format!("{}.yaml", named(&deployment.model)), text));
        }
    }
    expressed(files, what, NAME)
}

/// The graph of one model.
fn graph(deployment: &Deployment, groups: &[Group<'_>], first: &Group<'_>) -> String {
    let name = named(&deployment.model);
    let image = image(first);
    let mut text = format!(
        "{}apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata:\n  name: {name}\nspec:\n  services:\n    Frontend:\n      \
         componentType: frontend\n      replicas: 1\n      extraPodSpec:\n        mainContainer:\n          image: {image}\n",
        shares(deployment)
    );
    for group in groups {
        text += &worker(deployment, group);
    }
    text
}

fn image(group: &Group<'_>) -> String {
    format!("nvcr.io/nvidia/ai-dynamo/{}-runtime:{TAG}", group.engine.name)
}

/// What a role is called.
const fn role(role: Role) -> Option<&'static str> {
    match role {
        Role::Prefill => Some("prefill"),
        Role::Decode => Some("decode"),
        Role::Both | Role::Outputs => None,
    }
}

/// The service of a group.
fn worker(deployment: &Deployment, group: &Group<'_>) -> String {
    let role = role(group.replica.role);
    let mut text = format!("    {}:\n      componentType: worker\n", named(&group.replica.name));
    if let Some(role) = role {
        let _ = writeln!(text, "      subComponentType: {role}");
    }
    let _ = writeln!(text, "      replicas: {}", group.replica.copies);
    if group.n_nodes > 1 {
        let _ = writeln!(text, "      multinode:\n        nodeCount: {}", group.n_nodes);
    }
    let engine = group.engine.name;
    let _ = write!(
        text,
        "      resources:\n        limits:\n          gpu: \"{}\"\n      extraPodSpec:\n        nodeSelector:\n          nvidia.com/gpu.product: {}\n        \
         mainContainer:\n          image: {}\n          workingDir: /workspace/examples/backends/{engine}\n          command:\n          - python3\n          \
         - -m\n          - dynamo.{engine}\n          args:\n",
        group.gpus_per_node,
        group.label,
        image(group)
    );
    for word in arguments(deployment, group) {
        let _ = writeln!(text, "          - {}", quoted(&word));
    }
    text
}

/// Arguments of Dynamo's wrapper of the engine: the engine's own, with the model by its flag and the role in Dynamo's words.
fn arguments(deployment: &Deployment, group: &Group<'_>) -> Vec<String> {
    let of_model = if group.engine.name == "vllm" { "--model" } else { "--model-path" };
    let mut words = vec![of_model.to_owned(), deployment.model.clone()];
    let own = group
        .words
        .iter()
        .skip(1)
        .filter(|word| !word.starts_with("--kv-transfer-config") && !word.starts_with("--disaggregation-mode"));
    words.extend(own.flat_map(|word| word.split_whitespace().map(str::to_owned)));
    if let Some(role) = role(group.replica.role) {
        words.extend(["--disaggregation-mode", role].map(str::to_owned));
    }
    words
}

/// A worker of a deployment, as it was read.
struct Worker {
    name: String,
    role: Option<&'static str>,
    replicas: u64,
    server: Server,
}

/// Reads a deployment.
#[must_use]
pub fn import(text: &str, machine: &Machine) -> Imported {
    let entries = match yaml::entries(text) {
        Ok(entries) => entries,
        Err(why) => {
            let what = format!("the file cannot be read: {why}");
            return Imported {
                findings: vec![Finding::error(Code::UnreadableScript, Some(why.at()), what)],
                ..Imported::default()
            };
        }
    };
    let (mut workers, mut findings) = (Vec::new(), Vec::new());
    for name in services(&entries) {
        let own: Vec<&Entry> = entries.iter().filter(|entry| entry.path.starts_with(&place(&name))).collect();
        workers.extend(worker_of(&name, &own, &mut findings));
    }
    fleet(workers, findings, machine)
}

/// Keys that lead to a service.
fn place(name: &str) -> [String; 3] {
    ["spec".to_owned(), "services".to_owned(), name.to_owned()]
}

/// Names of services, in order.
fn services(entries: &[Entry]) -> Vec<String> {
    let inside = |entry: &&Entry| entry.path.len() == 3 && entry.path[0] == "spec" && entry.path[1] == "services";
    entries.iter().filter(inside).map(|entry| entry.path[2].clone()).collect()
}

/// The value of a key of a service.
fn value<'a>(own: &[&'a Entry], key: &str) -> Option<&'a Entry> {
    own.iter().find(|entry| entry.path.len() == 4 && entry.key() == key).copied()
}

/// A service that runs an engine; `None` for frontends, planners and what runs nothing that is known.
fn worker_of(name: &str, own: &[&Entry], findings: &mut Vec<Finding>) -> Option<Worker> {
    let kind = value(own, "componentType").map_or("worker", |entry| entry.value.as_str());
    let at = own.first().map(|entry| entry.at.clone());
    if kind != "worker" && kind != "main" {
        if kind != "frontend" {
            let what = format!("service `{name}` of type `{kind}` is not modelled");
            findings.push(Finding::warning(Code::NotModelled, at, what).help("give `[fleet.scaling]` in the scenario"));
        }
        return None;
    }
    let launch = launch_of(own);
    let module = launch.program.iter().find_map(|word| word.strip_prefix("dynamo."));
    let (mut server, mut flags) = match module {
        Some("vllm") => vllm::server(launch),
        Some("sglang") => sglang::server(launch),
        other => {
            let what = format!("service `{name}` runs `{}`", other.unwrap_or("nothing that is known"));
            let help = "deployments of `dynamo.vllm` and `dynamo.sglang` are read";
            findings.push(Finding::error(Code::UnsupportedJob, at, what).help(help));
            return None;
        }
    };
    if server.model.as_deref().is_some_and(|model| model.starts_with("dynamo.")) {
        server.model = None;
    }
    let asked =
        flags.text("disaggregation-mode").or_else(|| value(own, "subComponentType").map(|entry| entry.value.clone()));
    let role = match asked.as_deref() {
        Some("prefill") => Some("prefill"),
        Some("decode") => Some("decode"),
        _ if flags.is("is-prefill-worker") => Some("prefill"),
        _ if flags.is("is-decode-worker") => Some("decode"),
        _ => None,
    };
    let replicas = value(own, "replicas").and_then(|entry| entry.value.parse().ok()).unwrap_or(1);
    flags.given.retain(|flag| !WRAPPER.contains(&flag.name.as_str()));
    flags.judge();
    findings.append(&mut flags.findings);
    Some(Worker { name: name.to_owned(), role, replicas, server })
}

/// Flags of Dynamo's wrappers that engines do not have.
const WRAPPER: [&str; 8] = [
    "disaggregation-mode",
    "is-prefill-worker",
    "is-decode-worker",
    "connector",
    "kv-events-config",
    "disaggregation-transfer-backend",
    "disaggregation-bootstrap-port",
    "endpoint",
];

/// Command and arguments of a service's main container as a launch.
fn launch_of(own: &[&Entry]) -> Launch {
    let of_list = |entry: &&&Entry| {
        entry.key() == "-" && entry.path.iter().any(|key| key == "command" || key == "args") && !entry.value.is_empty()
    };
    let mut launch = Launch::default();
    for entry in own.iter().filter(of_list) {
        for word in entry.value.split_whitespace() {
            let word = word.trim_matches(['"', '\'']);
            if is_flag(word) && word != "-m" {
                let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
                let values = value.map(str::to_owned).into_iter().collect();
                launch.flags.push(Flag { name: flag_named(name), values, at: entry.at.clone() });
            } else if let Some(flag) = launch.flags.last_mut() {
                flag.values.push(word.to_owned());
            } else {
                launch.program.push(word.to_owned());
            }
        }
    }
    launch
}

/// The scenario of a fleet: the first worker's engine, and a group for each.
fn fleet(workers: Vec<Worker>, findings: Vec<Finding>, machine: &Machine) -> Imported {
    let Some(first) = workers.iter().find(|worker| worker.role != Some("prefill")).or(workers.first()) else {
        let mut findings = findings;
        let what = "the deployment has no service that runs an engine";
        findings.push(Finding::error(Code::UnsupportedJob, None, what).help("services of type `worker` are read"));
        return Imported { findings, ..Imported::default() };
    };
    let table = if first.server.engine == "vllm" { &*vllm::FLAGS } else { &*sglang::FLAGS };
    let mut flags = Flags::new(Vec::new(), table);
    flags.findings = findings;
    let mut out = first.server.document(&mut flags);
    let Some(gpu) = &machine.gpu else {
        flags.findings.push(crate::no_gpu());
        return Imported { scenario: out.toml(), findings: flags.findings };
    };
    out.set("policies", "run", format!("[\"{}\"]", first.server.policy), "the engine's own batching");
    let mut text = out.toml();
    for worker in &workers {
        let Worker { name, role, replicas, server } = worker;
        if (server.pp, server.ep.unwrap_or(1)) != (first.server.pp, first.server.ep.unwrap_or(1)) {
            let what = format!(
                "stages or expert ranks of `{name}` that differ from those of `{}` are not modelled",
                first.name
            );
            let help = "the engine's are taken for all groups";
            flags.findings.push(Finding::warning(Code::NotModelled, None, what).help(help));
        }
        let (name, gpu) = (crate::document::quoted(name), crate::document::quoted(gpu));
        let _ =
            write!(text, "\n[[fleet.group]]\nname = {name}\ngpu = {gpu}\ntp = {}\nreplicas = {replicas}\n", server.tp);
        if let Some(role) = role {
            let _ = writeln!(text, "role = \"{role}\"");
        }
        for (key, value, _) in server.keys.iter().filter(|(key, ..)| *key == "max_sequences" || *key == "max_tokens") {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    Imported { scenario: text, findings: flags.findings }
}

#[cfg(test)]
mod tests {
    use serve::deployment::{Deployment, Machine as Rented, Range, Replica, Stage};

    use super::*;
    use crate::settings::Settings;
    use crate::targets::export;

    /// Three replicas of two GPUs that read prompts, one of sixteen that generates.
    fn deployment(batcher: &str) -> [Deployment; 1] {
        let machine = Rented {
            name: "a".to_owned(),
            gpu: "h200-sxm".to_owned(),
            n_gpus: 48,
            gpus_per_node: 8,
            memory: None,
            usd_per_gpu_hour: None,
        };
        let replica = |name: &str, role, copies, n| {
            let stage = Stage { machine: 0, gpus: Range::new(0, n), tensor: n, layers: Range::new(0, 80) };
            let engine = crate::example::engine(batcher);
            Replica { name: name.to_owned(), copies, role, stages: vec![stage], engine }
        };
        let replicas = vec![replica("Read", Role::Prefill, 3, 2), replica("Write", Role::Decode, 1, 16)];
        [Deployment { replicas, ..Deployment::new("llama-3-70b", 80, vec![machine]) }]
    }

    fn text(batcher: &str) -> String {
        let deployments = deployment(batcher);
        export(NAME, &Planned::Serving { deployments: &deployments, settings: &Settings::new() }, &Words::default())
            .expect("a fleet")[0]
            .text()
            .into_owned()
    }

    #[test]
    fn a_fleet_with_roles_comes_back_from_its_deployment() {
        for batcher in ["vllm-v1", "sglang"] {
            let text = text(batcher);
            for part in [
                "subComponentType: prefill",
                "nodeCount: 2",
                "gpu: \"8\"",
                "- \"--disaggregation-mode\"\n          - \"decode\"",
            ] {
                assert!(text.contains(part), "{part} in {text}");
            }
            assert_eq!(crate::recognise(&text), Some(crate::Stack::Dynamo));
            let machine = Machine { gpu: Some("h200-sxm".to_owned()), ..Machine::default() };
            let found = import(&text, &machine);
            for part in [
                "name = \"read\"\ngpu = \"h200-sxm\"\ntp = 2\nreplicas = 3\nrole = \"prefill\"",
                "name = \"write\"\ngpu = \"h200-sxm\"\ntp = 16\nreplicas = 1\nrole = \"decode\"",
                "max_sequences = 128",
            ] {
                assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
            }
            let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
            assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
        }
    }

    /// Fields of its API types. Source: ai-dynamo/dynamo, deploy/operator/api/v1alpha1 (`DynamoComponentDeploymentSharedSpec`, `MultinodeSpec`,
    /// `Resources`), commit 00686d64; `mainContainer` is a container of Kubernetes.
    #[test]
    fn every_key_of_a_service_is_one_of_its_types() {
        const KEYS: [&str; 12] = [
            "componentType",
            "subComponentType",
            "replicas",
            "multinode.nodeCount",
            "resources.limits.gpu",
            "extraPodSpec.nodeSelector.nvidia.com/gpu.product",
            "extraPodSpec.mainContainer.image",
            "extraPodSpec.mainContainer.workingDir",
            "extraPodSpec.mainContainer.command",
            "extraPodSpec.mainContainer.command.-",
            "extraPodSpec.mainContainer.args",
            "extraPodSpec.mainContainer.args.-",
        ];
        for batcher in ["vllm-v1", "sglang"] {
            let entries = yaml::entries(&text(batcher)).expect("YAML");
            let paths = entries.iter().filter(|entry| entry.path.len() > 3 && entry.path[1] == "services");
            let keys: Vec<String> = paths.map(|entry| entry.path[3..].join(".")).collect();
            assert!(keys.len() > 20, "{keys:?}");
            for key in keys {
                assert!(KEYS.iter().any(|known| known.starts_with(&key)), "{key}");
            }
        }
    }

    #[test]
    fn a_published_example_is_read() {
        let text = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Frontend:\n      componentType: frontend\n      replicas: 1\n    \
                    Planner:\n      componentType: planner\n    VllmDecodeWorker:\n      componentType: worker\n      replicas: 2\n      extraPodSpec:\n        mainContainer:\n          \
                    command:\n          - python3\n          - -m\n          - dynamo.vllm\n          args:\n            - --model\n            - meta-llama/Meta-Llama-3-8B\n            \
                    - --is-decode-worker\n    Other:\n      componentType: worker\n      extraPodSpec:\n        mainContainer:\n          args:\n          - x\n";
        let found = import(text, &Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() });
        assert!(found.scenario.contains("tp = 1\nreplicas = 2\nrole = \"decode\""), "{}", found.scenario);
        let words: Vec<&str> = found.findings.iter().map(|finding| finding.what.as_str()).collect();
        assert!(words.contains(&"service `Planner` of type `planner` is not modelled"), "{words:?}");
        assert!(words.contains(&"service `Other` runs `nothing that is known`"), "{words:?}");
    }
}
