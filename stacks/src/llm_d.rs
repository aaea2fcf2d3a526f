//! A fleet as the values of llm-d's chart: one group that generates, and one that reads prompts where the plan has roles. The engine is vLLM.
//!
//! Source: llm-d-incubation/llm-d-modelservice, charts/llm-d-modelservice/values.yaml @ 024c0f2d0237.

use std::fmt::Write as _;

use serve::deployment::Deployment;
use serve::replica::Role;

use crate::export::{ExportError, File, Planned, Target, Words, expressed, model_of, named, serving, to_put};
use crate::fleet::{Group, group, quoted, remarks, said_with_images};
use crate::servers::{arguments, packed};
use crate::settings::Said;

const NAME: &str = "llm-d";
const VERSION: &str = "llm-d's chart llm-d-modelservice 0.4.12 (values.yaml)";

/// The target.
pub const TARGET: Target = Target::new(NAME, "values of its chart, a file for each model", VERSION, write);

fn write(planned: &Planned<'_>, words: &Words) -> Result<Vec<File>, ExportError> {
    let (deployments, settings) = serving(planned, NAME)?;
    let said = said_with_images(settings);
    let mut head = words.comments(VERSION);
    head += &remarks(&said, &deployments);
    head += to_put(&deployments);
    let (mut files, mut what) = (Vec::new(), Vec::from_iter(packed(&deployments)));
    for deployment in &deployments {
        match values(deployment, &said) {
            Ok(text) => {
                files.push(File::new(&format!("{}-values.yaml", named(model_of(deployment))), head.clone() + &text))
            }
            Err(more) => what.extend(more),
        }
    }
    if files.is_empty() && what.is_empty() {
        what.push("a plan without replicas".to_owned());
    }
    expressed(files, what, NAME)
}

/// Values of one model; otherwise what the chart cannot say.
fn values(deployment: &Deployment, said: &[Said; 2]) -> Result<String, Vec<String>> {
    let (mut groups, mut what) = (Vec::new(), Vec::new());
    for replica in &deployment.replicas {
        match group(deployment, replica, NAME, said) {
            Ok(group) => {
                what.extend(unsaid(&group).map(|words| format!("replica `{}`: {words}", replica.name)));
                groups.push(group);
            }
            Err(why) => what.push(format!("replica `{}`: {why}", replica.name)),
        }
    }
    let of =
        |reads: bool| groups.iter().filter(|group| (group.replica.role == Role::Prefill) == reads).collect::<Vec<_>>();
    let (reading, writing) = (of(true), of(false));
    if writing.len() > 1 || reading.len() > 1 {
        what.push("several kinds of replicas with one role".to_owned());
    }
    if writing.is_empty() && what.is_empty() {
        what.push("a plan without replicas that generate".to_owned());
    }
    if !deployment.routes.is_empty() {
        what.push("shares of requests of different types: its gateway routes by itself".to_owned());
    }
    if !what.is_empty() {
        return Err(what);
    }
    let model = &deployment.model;
    let mut text = format!(
        "multinode: false\nmodelArtifacts:\n  name: {0}\n  uri: {1}\n  labels:\n    \
         llm-d.ai/inference-serving: \"true\"\n    llm-d.ai/model: {2}\naccelerator:\n  type: nvidia\nrouting:\n  servicePort: 8000\n  proxy:\n    enabled: {3}\n",
        quoted(model),
        quoted(&format!("hf://{model}")),
        named(model_of(deployment)),
        !reading.is_empty()
    );
    text.insert_str(0, &crate::dynamo::rules(&groups));
    text += &section("decode", writing.first().copied());
    text += &section("prefill", reading.first().copied());
    Ok(text)
}

/// What the chart cannot say of a group.
fn unsaid(group: &Group<'_>) -> Option<&'static str> {
    let n_stages = group.replica.stages.len();
    if group.engine.name != "vllm" {
        Some("an engine other than vLLM")
    } else if n_stages > 1 {
        Some("pipeline stages: the chart counts GPUs from tensor and data ranks alone")
    } else if group.n_nodes > 1 {
        Some("GPUs of several nodes: the chart's groups of pods are data-parallel ranks")
    } else {
        None
    }
}

/// The section of a role.
fn section(role: &str, group: Option<&Group<'_>>) -> String {
    let Some(group) = group else { return format!("{role}:\n  create: false\n") };
    let stage = &group.replica.stages[0];
    let tensor = stage.tensor.max(1);
    let data = stage.gpus.n() / tensor;
    let mut text = format!(
        "{role}:\n  create: true\n  replicas: {}\n  parallelism:\n    tensor: {tensor}\n    data: {data}\n    dataLocal: {data}\n  acceleratorTypes:\n    \
         labelKey: {}\n    labelValues:\n    - {}\n  containers:\n  - name: vllm\n    image: {}\n    modelCommand: vllmServe\n    args:\n",
        group.replica.copies, group.plugin.label, group.label, group.image
    );
    // The chart itself gives model and degrees; both roles send and receive keys and values by the same connector.
    let is_given = |word: &str| {
        ["--tensor-parallel-size", "--data-parallel-size", "--kv-transfer-config"]
            .iter()
            .any(|flag| word.starts_with(flag))
    };
    let own: Vec<String> = group.words.iter().skip(1).filter(|word| !is_given(word)).cloned().collect();
    for word in arguments(&own) {
        let _ = writeln!(text, "    - {}", quoted(&word));
    }
    if data > 1 {
        text += "    - \"--enable-expert-parallel\"\n";
    }
    if group.replica.role != Role::Both {
        let config = r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#;
        let _ = writeln!(text, "    - \"--kv-transfer-config\"\n    - {}", quoted(config));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{codes, has_parts, import_text};
    use crate::exported::{deployed, replica, unsaid, written};
    use crate::settings::Settings;

    fn deployment(batcher: &str, parts: &[(Role, u32)]) -> [Deployment; 1] {
        let of = |(role, n): &(Role, u32)| replica((&format!("{role:?}"), *role), 3, *n, batcher);
        [deployed(parts.iter().map(of).collect())]
    }

    #[test]
    fn roles_are_the_two_sections_of_the_chart() {
        let deployments = deployment("vllm-v1", &[(Role::Prefill, 2), (Role::Decode, 4)]);
        let text = written(NAME, &deployments, &Settings::new()).expect("values");
        for part in [
            "decode:\n  create: true\n  replicas: 3\n  parallelism:\n    tensor: 4",
            "prefill:\n  create: true\n  replicas: 3\n  parallelism:\n    tensor: 2",
            "proxy:\n    enabled: true",
            "- NVIDIA-H200",
            "- \"--max-num-seqs\"\n    - \"128\"",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let deployments = deployment("vllm-v1", &[(Role::Both, 4)]);
        let text = written(NAME, &deployments, &Settings::new()).expect("values");
        assert!(text.contains("prefill:\n  create: false"), "{text}");
    }

    /// Arguments of a container go by no shell, so no quotes are left around them.
    #[test]
    fn a_word_of_several_signs_is_one_argument_without_quotes() {
        let drafts = serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
        let settings = Settings::from([("engine.speculation".to_owned(), drafts)]);
        let deployments = deployment("vllm-v1", &[(Role::Both, 4)]);
        let text = written(NAME, &deployments, &settings).expect("values");
        let part = r#"    - "--speculative-config"
    - "{\"method\":\"ngram\",\"num_speculative_tokens\":3}""#;
        assert!(text.contains(part), "{part} in {text}");
    }

    #[test]
    fn what_the_chart_cannot_say_is_named() {
        let refused = |batcher: &str, parts: &[(Role, u32)]| {
            unsaid(NAME, &deployment(batcher, parts), &Settings::new()).join("; ")
        };
        assert_eq!(refused("sglang", &[(Role::Both, 4)]), "replica `Both`: an engine other than vLLM");
        assert!(refused("vllm-v1", &[(Role::Both, 16)]).contains("GPUs of several nodes"));
        assert_eq!(refused("vllm-v1", &[(Role::Both, 4), (Role::Both, 2)]), "several kinds of replicas with one role");
        assert_eq!(refused("vllm-v1", &[]), "a plan without replicas that generate");
    }

    /// What is exported for a fleet comes back as that fleet.
    #[test]
    fn a_fleet_comes_back_from_its_values() {
        for (parts, groups) in [
            (
                &[(Role::Prefill, 2), (Role::Decode, 8)][..],
                vec!["tp = 2\nreplicas = 3\nrole = \"prefill\"", "tp = 8\nreplicas = 3\nrole = \"decode\""],
            ),
            (&[(Role::Both, 4)][..], vec!["tp = 4 ", "nodes = 3 ", "gpus_per_node = 4"]),
        ] {
            let deployments = deployment("vllm-v1", parts);
            let text = written(NAME, &deployments, &Settings::new()).expect("values");
            let found = import_text(&text, &crate::Machine::default());
            has_parts(&found, &groups);
            has_parts(&found, &["gpu = \"h200-sxm\"", "max_sequences = 128", "llama-3-70b"]);
            let codes = codes(&found);
            assert_eq!(codes, [input::diagnostic::Code::MissingFlag], "{:?}", found.findings);
        }
    }
}
