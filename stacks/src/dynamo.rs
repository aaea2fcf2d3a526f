//! A fleet as a deployment of NVIDIA Dynamo, and such a deployment as a scenario: a component for each kind of replica, with its role.
//!
//! Dynamo's own frontend routes. Engines are vLLM and SGLang. What is written is `nvidia.com/v1beta1`; `v1alpha1`, which is deprecated, is read too.
//! Source: ai-dynamo/dynamo, `deploy/operator/config/crd/bases` @ df7deed0d81b, and the templates of the package ai-dynamo 1.6.1
//! (`dynamo/profiler/templates/dgd`).

use std::fmt::Write as _;

use hw::Maker;
use serve::deployment::Deployment;
use serve::replica::Role;

use crate::export::{ExportError, File, Planned, Target, Words, expressed, model_of, named, serving, to_put};
use crate::fleet::{Group, group, quoted, remarks, said_of};
use crate::servers::{self, Unsayable, shares};

mod import;
mod roles;

pub use import::import;

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
    let said = said_of(&settings);
    let (mut files, mut what) = (Vec::new(), Vec::from_iter(servers::packed(&deployments)));
    if deployments.iter().all(|deployment| deployment.replicas.is_empty()) {
        what.push("a plan without replicas".to_owned());
    }
    for deployment in &deployments {
        let mut groups = Vec::new();
        for replica in &deployment.replicas {
            match group(deployment, replica, NAME, &said).and_then(of_cuda) {
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
            text += to_put(std::slice::from_ref(deployment));
            text += &remarks(&said, &deployments);
            text += &rules(&groups);
            text += &graph(deployment, &groups, first);
            files.push(File::new(&format!("{}.yaml", named(model_of(deployment))), text));
        }
    }
    expressed(files, what, NAME)
}

/// A group that Dynamo's images run: they are of CUDA.
fn of_cuda(group: Group<'_>) -> Result<Group<'_>, Unsayable> {
    if group.plugin.maker == Maker::Nvidia { Ok(group) } else { Err(Unsayable::Rocm(image(&group))) }
}

/// Remarks about rules of batching and lengths, each once.
pub(crate) fn rules(groups: &[Group<'_>]) -> String {
    let mut rules: Vec<String> = groups.iter().map(Group::rule).collect();
    rules.dedup();
    rules.concat()
}

/// The graph of one model.
fn graph(deployment: &Deployment, groups: &[Group<'_>], first: &Group<'_>) -> String {
    let name = named(model_of(deployment));
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
        "    podTemplate:\n      spec:\n        nodeSelector:\n          {}: {}\n        containers:\n        - name: main\n          \
         image: {}\n          workingDir: /workspace/examples/backends/{engine}\n          resources:\n            limits:\n              \
         {}: \"{}\"\n          command:\n          - python3\n          - \"-m\"\n          - dynamo.{engine}\n          args:\n",
        group.plugin.label,
        group.label,
        image(group),
        group.plugin.resource,
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

#[cfg(test)]
mod tests {
    use serve::deployment::Replica;

    use input::diagnostic::Code;

    use super::*;
    use crate::example::{codes, has_parts, on};
    use crate::exported::{deployed, replica, written};
    use crate::settings::Settings;

    /// Three replicas of two GPUs that read prompts, one of sixteen that generates.
    fn deployment(batcher: &str) -> [Deployment; 1] {
        let read = replica(("Read", Role::Prefill), 3, 2, batcher);
        [deployed(vec![read, replica(("Write", Role::Decode), 1, 16, batcher)])]
    }

    fn text(batcher: &str) -> String {
        written(NAME, &deployment(batcher), &Settings::new()).expect("a fleet")
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
            let found = import(&text, &on("h200-sxm"));
            has_parts(
                &found,
                &[
                    "name = \"read\"\ntp = 2\nreplicas = 3\nrole = \"prefill\"",
                    "name = \"write\"\ntp = 16\nreplicas = 1\nrole = \"decode\"",
                    "max_sequences = 128",
                ],
            );
            let codes = codes(&found);
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
            let entries = crate::yaml::entries(&text(batcher)).expect("YAML");
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
            written(NAME, &deployment(batcher), &Settings::from([(key.to_owned(), value)])).expect("a fleet")
        };
        let drafts = || serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
        let text = written("vllm-v1", "engine.speculation", drafts());
        for part in [
            r#"- "{\"method\":\"ngram\",\"num_speculative_tokens\":3}""#,
            r#"- "{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}""#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let found = import(&text, &on("h200-sxm"));
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
        let written = |deployment: &Deployment| written(NAME, std::slice::from_ref(deployment), &Settings::new());
        let text = written(&deployment).expect("a fleet");
        for name in ["- name: read\n", "- name: frontend-2\n", "- name: read-2\n"] {
            assert!(text.contains(name), "{name} in {text}");
        }
        deployment.replicas = vec![replica; 25];
        let why = written(&deployment).expect_err("too many").to_string();
        assert!(why.contains("25 kinds of replicas"), "{why}");
    }
}
