//! A fleet as a deployment of NVIDIA Dynamo, and such a deployment as a scenario: a component for each kind of replica, with its role.
//!
//! Dynamo's own frontend routes. Engines are vLLM and SGLang. What is written is `nvidia.com/v1beta1`; `v1alpha1`, which is deprecated, is read too.
//! Source: ai-dynamo/dynamo, `deploy/operator/config/crd/bases` @ df7deed0d81b, and the templates of the package ai-dynamo 1.6.1
//! (`dynamo/profiler/templates/dgd`).

use std::fmt::Write as _;

use input::diagnostic::{Code, Finding};
use serve::deployment::Deployment;
use serve::replica::Role;

use crate::export::{ExportError, File, Planned, Target, Words, expressed, serving};
use crate::flags::{Flag, is_flag, named as flag_named};
use crate::fleet::{Group, group, named, quoted, said_of};
use crate::launch::Launch;
use crate::servers::{self, shares};
use crate::workers::{LABEL, Worker, fleet};
use crate::yaml::{self, Entry};
use crate::{Imported, Machine, sglang, vllm};

const NAME: &str = "dynamo";
const VERSION: &str = "NVIDIA Dynamo 1.6 (DynamoGraphDeployment, nvidia.com/v1beta1)";
/// Tag of the images.
const TAG: &str = "1.6.1";
/// Components of a graph, the frontend among them (`maxItems` of its schema).
const COMPONENTS_MAX: usize = 25;
/// The frontend's name.
const FRONTEND: &str = "Frontend";

/// The target.
pub const TARGET: Target = Target::new(NAME, "a deployment of a fleet, a component for each group", VERSION, write);

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
        if groups.len() >= COMPONENTS_MAX {
            what.push(format!("{} kinds of replicas: a graph has {COMPONENTS_MAX} components at most", groups.len()));
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
        "{}apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nmetadata:\n  name: {name}\nspec:\n  components:\n  - name: {FRONTEND}\n    \
         type: frontend\n    replicas: 1\n    podTemplate:\n      spec:\n        containers:\n        - name: main\n          image: {image}\n          \
         command:\n          - python3\n          args:\n          - \"-m\"\n          - dynamo.frontend\n",
        shares(deployment)
    );
    // Names differ in more than their capitals.
    let mut taken = vec![FRONTEND.to_ascii_lowercase()];
    for group in groups {
        let own = named(&group.replica.name);
        let free = |name: &String| !taken.contains(name);
        let name = std::iter::once(own.clone()).chain((2..).map(|n| format!("{own}-{n}"))).find(free);
        let name = name.unwrap_or(own);
        text += &worker(deployment, group, &name);
        taken.push(name);
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

/// The component of a group.
fn worker(deployment: &Deployment, group: &Group<'_>, name: &str) -> String {
    let role = role(group.replica.role).unwrap_or("worker");
    let mut text = format!("  - name: {name}\n    type: {role}\n    replicas: {}\n", group.replica.copies);
    if group.n_nodes > 1 {
        let _ = writeln!(text, "    multinode:\n      nodeCount: {}", group.n_nodes);
    }
    let engine = group.engine.name;
    let _ = write!(
        text,
        "    podTemplate:\n      spec:\n        nodeSelector:\n          nvidia.com/gpu.product: {}\n        containers:\n        - name: main\n          \
         image: {}\n          workingDir: /workspace/examples/backends/{engine}\n          resources:\n            limits:\n              \
         nvidia.com/gpu: \"{}\"\n          command:\n          - python3\n          - \"-m\"\n          - dynamo.{engine}\n          args:\n",
        group.label,
        image(group),
        group.gpus_per_node
    );
    for word in arguments(deployment, group) {
        let _ = writeln!(text, "          - {}", quoted(&word));
    }
    text
}

/// Arguments of Dynamo's wrapper of the engine: the engine's own, with the model by its flag and the role in Dynamo's words.
///
/// Its own checks refuse a vLLM that only reads prompts without a connector, and SGLang's order of priorities, which it turns itself.
fn arguments(deployment: &Deployment, group: &Group<'_>) -> Vec<String> {
    let of_model = if group.engine.name == "vllm" { "--model" } else { "--model-path" };
    let mut words = vec![of_model.to_owned(), deployment.model.clone()];
    let own: Vec<String> =
        group.words.iter().skip(1).filter(|word| !word.starts_with("--disaggregation-mode")).cloned().collect();
    words.extend(servers::arguments(&own).into_iter().filter(|word| word != "--schedule-low-priority-values-first"));
    if let Some(role) = role(group.replica.role) {
        words.extend(["--disaggregation-mode", role].map(str::to_owned));
    }
    words
}

/// Reads a deployment.
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
    for (name, own) in services(&entries).into_iter().chain(components(&entries, text)) {
        workers.extend(worker_of(&name, &own, text, &mut findings));
    }
    fleet(workers, findings, machine)
}

/// Keys of a service or a component, those before its own left out.
type Part<'a> = (String, Vec<Key<'a>>);

/// A key of a service, with the keys between it and the service.
#[derive(Clone, Copy)]
struct Key<'a> {
    path: &'a [String],
    entry: &'a Entry,
}

/// Services of `v1alpha1`, in order.
fn services(entries: &[Entry]) -> Vec<Part<'_>> {
    let inside = |entry: &&Entry| entry.path.len() == 3 && entry.path[0] == "spec" && entry.path[1] == "services";
    let keys = |name: &Entry| {
        let own = entries.iter().filter(|entry| entry.path.starts_with(&name.path));
        own.map(|entry| Key { path: &entry.path[3..], entry }).collect()
    };
    entries.iter().filter(inside).map(|entry| (entry.path[2].clone(), keys(entry))).collect()
}

/// Components of `v1beta1`, in order: items of a list, each with its name.
fn components<'a>(entries: &'a [Entry], text: &str) -> Vec<Part<'a>> {
    let inside = |path: &[String]| path.len() > 3 && path[0] == "spec" && path[1] == "components" && path[2] == "-";
    let own = entries.iter().filter(|entry| inside(&entry.path));
    let items = items(own.map(|entry| Key { path: &entry.path[3..], entry }).collect(), text);
    let name = |item: &[Key<'_>]| value(item, "name").map_or_else(String::new, |entry| entry.value.clone());
    items.into_iter().map(|item| (name(&item), item)).collect()
}

/// Keys of a list cut into its items: one begins behind a dash, or where a key stands again.
fn items<'a>(keys: Vec<Key<'a>>, text: &str) -> Vec<Vec<Key<'a>>> {
    let mut items: Vec<Vec<Key<'a>>> = Vec::new();
    for key in keys {
        let is_outer = key.path.len() == 1;
        let has_dash = text.get(key.entry.at.start..).is_some_and(|rest| rest.starts_with('-'));
        let again = |item: &Vec<Key<'a>>| item.iter().any(|other| other.path == key.path);
        match items.last_mut() {
            Some(item) if !(is_outer && (has_dash || again(item))) => item.push(key),
            _ => items.push(vec![key]),
        }
    }
    items
}

/// The value of a key of a service.
fn value<'a>(own: &[Key<'a>], key: &str) -> Option<&'a Entry> {
    own.iter().find(|one| one.path.len() == 1 && one.path[0] == key).map(|one| one.entry)
}

/// Keys of the container that runs the engine: `mainContainer`, or of those in the template the one called `main`, else the first.
fn container<'a>(own: &[Key<'a>], text: &str) -> Vec<Key<'a>> {
    let inside = |way: &'static [&'static str]| {
        let keys =
            own.iter().filter(move |key| key.path.len() > way.len() && key.path.iter().zip(way).all(|(a, b)| a == b));
        keys.map(move |key| Key { path: &key.path[way.len()..], ..*key }).collect::<Vec<_>>()
    };
    let older = inside(&["extraPodSpec", "mainContainer"]);
    if !older.is_empty() {
        return older;
    }
    let mut all = items(inside(&["podTemplate", "spec", "containers", "-"]), text);
    let main = all.iter().position(|item| value(item, "name").is_some_and(|name| name.value == "main"));
    if all.is_empty() { Vec::new() } else { all.swap_remove(main.unwrap_or(0)) }
}

/// A service that runs an engine; `None` for frontends, planners and what runs nothing that is known.
fn worker_of(name: &str, own: &[Key<'_>], text: &str, findings: &mut Vec<Finding>) -> Option<Worker> {
    let kind = value(own, "componentType").or_else(|| value(own, "type"));
    let kind = kind.map_or("worker", |entry| entry.value.as_str());
    let at = own.first().map(|key| key.entry.at.clone());
    if !["worker", "main", "prefill", "decode"].contains(&kind) {
        if kind != "frontend" {
            let what = format!("service `{name}` of type `{kind}` is not modelled");
            findings.push(Finding::warning(Code::NotModelled, at, what).help("give `[fleet.scaling]` in the scenario"));
        }
        return None;
    }
    let launch = launch_of(&container(own, text));
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
    let role = match asked.as_deref().unwrap_or(kind) {
        "prefill" => Some("prefill"),
        "decode" => Some("decode"),
        _ if flags.is("is-prefill-worker") => Some("prefill"),
        _ if flags.is("is-decode-worker") => Some("decode"),
        _ => None,
    };
    let replicas = value(own, "replicas").and_then(|entry| entry.value.parse().ok()).unwrap_or(1);
    flags.given.retain(|flag| !WRAPPER.contains(&flag.name.as_str()));
    flags.judge();
    findings.append(&mut flags.findings);
    let label = own.iter().find(|key| key.path.last().is_some_and(|key| key == LABEL));
    let label = label.map(|key| key.entry.value.clone());
    Some(Worker { name: name.to_owned(), role, replicas, label, server })
}

/// Flags of Dynamo's wrappers that engines do not have, and the one by which roles are joined.
const WRAPPER: [&str; 9] = [
    "disaggregation-mode",
    "kv-transfer-config",
    "is-prefill-worker",
    "is-decode-worker",
    "connector",
    "kv-events-config",
    "disaggregation-transfer-backend",
    "disaggregation-bootstrap-port",
    "endpoint",
];

/// Command and arguments of a container as a launch. What a shell is given is read as a shell reads it.
fn launch_of(container: &[Key<'_>]) -> Launch {
    let words = |key: &str| {
        let own = container.iter().filter(|one| one.path.first().is_some_and(|first| first == key));
        own.flat_map(|one| yaml::listed(one.entry).into_iter().map(|word| (word, one.entry.at.clone())))
            .collect::<Vec<_>>()
    };
    let (command, args) = (words("command"), words("args"));
    let has_shell = command.iter().any(|(word, _)| word == "-c");
    let mut launch = Launch::default();
    // Keys of a container may stand in any order.
    for (word, at) in command.into_iter().chain(args) {
        let of_shell = if has_shell { crate::shell::commands(&word).ok().and_then(|mut all| all.pop()) } else { None };
        let words = match of_shell {
            Some(words) => words.iter().map(crate::shell::Word::text).collect(),
            None => vec![word],
        };
        for word in words {
            if is_flag(&word) && !["-m", "-c"].contains(&word.as_str()) {
                let (name, value) =
                    word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
                let values = value.map(str::to_owned).into_iter().collect();
                launch.flags.push(Flag { name: flag_named(name), values, at: at.clone() });
            } else if let Some(flag) = launch.flags.last_mut() {
                flag.values.push(word);
            } else {
                launch.program.push(word);
            }
        }
    }
    launch
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
            ..Rented::default()
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
                "type: prefill",
                "nodeCount: 2",
                "nvidia.com/gpu: \"8\"",
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

    /// Fields of its schema. Source: ai-dynamo/dynamo, deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml, commit df7deed0d81b;
    /// containers are those of Kubernetes.
    #[test]
    fn every_key_of_a_component_is_one_of_its_schema() {
        const KEYS: [&str; 12] = [
            "name",
            "type",
            "replicas",
            "multinode.nodeCount",
            "podTemplate.spec.nodeSelector.nvidia.com/gpu.product",
            "podTemplate.spec.containers.-.name",
            "podTemplate.spec.containers.-.image",
            "podTemplate.spec.containers.-.workingDir",
            "podTemplate.spec.containers.-.resources.limits.nvidia.com/gpu",
            "podTemplate.spec.containers.-.resources.requests",
            "podTemplate.spec.containers.-.command.-",
            "podTemplate.spec.containers.-.args.-",
        ];
        for batcher in ["vllm-v1", "sglang"] {
            let entries = yaml::entries(&text(batcher)).expect("YAML");
            let paths = entries.iter().filter(|entry| entry.path.len() > 3 && entry.path[1] == "components");
            let keys: Vec<String> = paths.map(|entry| entry.path[3..].join(".")).collect();
            assert!(keys.len() > 20, "{keys:?}");
            for key in keys {
                assert!(KEYS.iter().any(|known| known.starts_with(&key)), "{key}");
            }
        }
    }

    /// What Dynamo's own parser refused: quotes that only a shell takes away, a prefill worker without a connector, SGLang's order of priorities.
    #[test]
    fn arguments_are_those_that_its_parser_takes() {
        let written = |batcher, key: &str, value: serde_json::Value| {
            let settings = Settings::from([(key.to_owned(), value)]);
            let deployments = deployment(batcher);
            let planned = Planned::Serving { deployments: &deployments, settings: &settings };
            export(NAME, &planned, &Words::default()).expect("a fleet")[0].text().into_owned()
        };
        let drafts = || serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
        let text = written("vllm-v1", "engine.speculation", drafts());
        for part in [
            r#"- "{\"method\":\"ngram\",\"num_speculative_tokens\":3}""#,
            r#"- "{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}""#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let found = import(&text, &Machine { gpu: Some("h200-sxm".to_owned()), ..Machine::default() });
        assert!(found.scenario.contains("draft_tokens = 3"), "{}", found.scenario);
        let text = written("sglang", "engine.scheduling", "priority".into());
        assert!(text.contains("--enable-priority-scheduling") && !text.contains("low-priority"), "{text}");
    }

    #[test]
    fn components_of_one_name_and_more_than_a_graph_holds_are_told_apart() {
        let [mut deployment] = deployment("vllm-v1");
        let replica = Replica { role: Role::Both, ..deployment.replicas[0].clone() };
        deployment.replicas =
            vec![replica.clone(), Replica { name: "frontend".to_owned(), ..replica.clone() }, replica.clone()];
        let written = |deployment: &Deployment| {
            let deployments = std::slice::from_ref(deployment);
            export(NAME, &Planned::Serving { deployments, settings: &Settings::new() }, &Words::default())
        };
        let text = written(&deployment).expect("a fleet")[0].text().into_owned();
        for name in ["- name: read\n", "- name: frontend-2\n", "- name: read-2\n"] {
            assert!(text.contains(name), "{name} in {text}");
        }
        deployment.replicas = vec![replica; 25];
        let why = written(&deployment).expect_err("too many").to_string();
        assert!(why.contains("25 kinds of replicas"), "{why}");
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

    /// The form of the package's templates: keys in alphabetical order, a container beside the main one.
    #[test]
    fn a_template_of_the_newer_form_is_read() {
        let text = "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nspec:\n  components:\n  - name: Frontend\n    podTemplate:\n      spec:\n        \
                    containers:\n        - args:\n          - -m\n          - dynamo.frontend\n          command:\n          - python3\n          name: main\n    replicas: 1\n    \
                    type: frontend\n  - name: decode\n    podTemplate:\n      spec:\n        containers:\n        - args:\n          - --other\n          name: sidecar\n        - args:\n          \
                    - --model\n          - meta-llama/Meta-Llama-3-8B\n          - --tensor-parallel-size\n          - \"2\"\n          command: [\"python3\", \"-m\", \"dynamo.vllm\"]\n          \
                    name: main\n    replicas: 3\n    type: decode\n";
        let found = import(text, &Machine { gpu: Some("h100-sxm".to_owned()), ..Machine::default() });
        assert!(
            found.scenario.contains("name = \"decode\"\ngpu = \"h100-sxm\"\ntp = 2\nreplicas = 3\nrole = \"decode\""),
            "{}",
            found.scenario
        );
        let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
    }
}
