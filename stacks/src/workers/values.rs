//! Values of llm-d's chart: a section for each role, whose degrees and model the chart puts before the arguments of the container.
//!
//! Source: llm-d-incubation/llm-d-modelservice, `charts/llm-d-modelservice/templates/_helpers.tpl` (`vllmServeModelCommand`, `imageDefaultModelCommand`,
//! `dataParallelism`, `numWorkers`, `argsByProtocol`) @ 3051935.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use super::Replicas;
use super::containers::{Container, containers, of_group};
use super::offloading::with_offloading;
use super::one::Started;
use crate::Machine;
use crate::launch::Begins;
use crate::plugins;
use crate::variables::Variables;
use crate::yaml::{self, Entry};

/// Sections of servers, which are roles.
const ROLES: [&str; 2] = ["prefill", "decode"];

/// Whether a file is of such values.
pub(super) fn is_one(text: &str) -> bool {
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    has("modelArtifacts:") && (has("decode:") || has("prefill:"))
}

/// Servers of the sections. One section alone is a server that does both.
pub(super) fn started(text: &str, begins: &[Begins], machine: &Machine) -> Result<Vec<Started>, Finding> {
    let entries = yaml::unfolded(text)?;
    let mut found = Vec::new();
    for role in ROLES {
        let own: Vec<Entry> = entries.iter().filter(|entry| entry.path[0] == role).cloned().collect();
        let value = |path: &[&str]| own.iter().find(|entry| entry.path[1..] == *path);
        if own.len() < 2 || value(&["create"]).is_some_and(|entry| entry.value == "false") {
            continue;
        }
        let model = model(&entries, "modelArtifacts", machine.model.as_deref());
        let section = Section { role, own: &own, degrees: Degrees::of(&own)?, model, is_service: false };
        found.extend(section.started(begins)?);
    }
    if let [only] = &mut found[..] {
        only.role = None;
    }
    Ok(found)
}

/// Servers of an `LLMInferenceService` of KServe, whose controller is the chart's: the service itself, and `prefill` in it where prompts are read apart.
///
/// Source: kserve/kserve `pkg/apis/serving/v1alpha1/llm_inference_service_types.go` (`WorkloadSpec`, `ParallelismSpec`), and its templates, which put the words
/// of `VLLM_ADDITIONAL_ARGS` behind the command.
pub(super) fn of_service(entries: &[Entry], begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let spec: Vec<Entry> = entries.iter().filter(|entry| entry.path[0] == "spec").map(Entry::inner).collect();
    let is_prefill = |entry: &&Entry| entry.path.first().is_some_and(|key| key == "prefill");
    let prefill: Vec<Entry> = spec.iter().filter(is_prefill).cloned().collect();
    let own = spec.iter().filter(|entry| !is_prefill(entry) && !entry.path.is_empty());
    let own: Vec<Entry> =
        own.map(|entry| Entry { path: [&["decode".to_owned()], &entry.path[..]].concat(), ..entry.clone() }).collect();
    let mut found = Vec::new();
    for (role, own) in [("prefill", &prefill), ("decode", &own)] {
        if own.len() > 1 {
            let model = model(&spec, "model", None);
            let section = Section { role, own, degrees: Degrees::of(own)?, model, is_service: true };
            found.extend(section.started(begins)?);
        }
    }
    if let [only] = &mut found[..] {
        only.role = None;
    }
    Ok(found)
}

/// The model and the name that it is served under: `uri` of a section without its protocol and the claim of a volume, and `name`.
fn model(entries: &[Entry], section: &str, given: Option<&str>) -> [String; 2] {
    let value = |key: &str| {
        let found = entries.iter().find(|entry| entry.path == [section, key]);
        found.map(|entry| entry.value.trim_matches('"').to_owned()).unwrap_or_default()
    };
    let (name, uri) = (value("name"), value("uri"));
    let (protocol, path) = uri.split_once("://").unwrap_or(("", &uri));
    let path = path.trim_matches('"');
    // What the chart fills in is the name.
    let path = match protocol {
        _ if path.contains("{{") || path.is_empty() => name.as_str(),
        "pvc" => path.split_once('/').map_or(path, |(_, rest)| rest),
        // The last two parts are the name on the hub.
        "pvc+hf" => path.rmatch_indices('/').nth(1).map_or(path, |(at, _)| &path[at + 1..]),
        _ => path,
    };
    [given.unwrap_or(path).to_owned(), name.clone()]
}

/// Degrees of a section (`parallelism`).
#[derive(Clone, Copy)]
struct Degrees {
    tensor: u64,
    data: u64,
    local: u64,
    /// Pods of a group.
    workers: u64,
    pipeline: u64,
    /// Whether experts lie whole on all ranks.
    whole_experts: bool,
}

impl Degrees {
    fn of(own: &[Entry]) -> Result<Self, Finding> {
        let value = |key: &str| -> Result<Option<u64>, Finding> {
            let entry = own.iter().find(|entry| entry.path[1..] == ["parallelism", key]);
            let Some(entry) = entry.filter(|entry| !entry.value.is_empty()) else { return Ok(None) };
            match entry.value.parse() {
                Ok(n @ 1..=65_536) => Ok(Some(n)),
                _ => Err(refused(entry, "allowed are whole numbers from 1 to 65536")),
            }
        };
        let [tensor, data, local, workers, pipeline] =
            ["tensor", "data", "dataLocal", "workers", "pipeline"].map(value);
        let (tensor, data, local, workers, pipeline) = (tensor?, data?, local?, workers?, pipeline?.unwrap_or(1));
        let expert = own.iter().find(|entry| entry.path[1..] == ["parallelism", "expert"]);
        let whole_experts = expert.is_some_and(|entry| entry.value == "true");
        let all = data.or_else(|| Some(local? * workers.unwrap_or(1))).unwrap_or(1);
        let n_workers = workers.or_else(|| Some(all / local?)).unwrap_or(1).max(1);
        let of_worker = local.unwrap_or(all / n_workers).max(1);
        if all != of_worker * n_workers {
            let at = own
                .iter()
                .find(|entry| entry.path[1..] == ["parallelism"] || entry.path[1..] == ["parallelism", "data"]);
            let what = format!("`parallelism`: {all} data ranks are not {n_workers} pods of {of_worker}");
            let help = "`data` is `dataLocal` times `workers`";
            return Err(Finding::error(Code::WrongFlag, at.map(|entry| entry.at.clone()), what).help(help));
        }
        let tensor = tensor.unwrap_or(1);
        Ok(Self { tensor, data: all, local: of_worker, workers: n_workers, pipeline, whole_experts })
    }
}

/// The variable whose words KServe puts behind the command.
const ADDITIONAL: &str = "VLLM_ADDITIONAL_ARGS";

/// Its words.
fn additional(variables: &Variables) -> Vec<String> {
    let text = variables.iter().find(|(name, _)| name == ADDITIONAL).map(|(_, value)| value.as_str());
    let commands = crate::shell::commands(text.unwrap_or_default()).unwrap_or_default();
    commands.into_iter().next().unwrap_or_default().iter().map(crate::shell::Word::text).collect()
}

fn refused(entry: &Entry, help: &str) -> Finding {
    let what = format!("`parallelism.{}: {}` is no degree", entry.key(), entry.value);
    Finding::error(Code::WrongFlag, Some(entry.at.clone()), what).help(help)
}

/// A section of a role.
struct Section<'a> {
    role: &'static str,
    own: &'a [Entry],
    degrees: Degrees,
    model: [String; 2],
    /// Whether it is of a service of KServe, whose command needs no word.
    is_service: bool,
}

impl Section<'_> {
    /// The first of its containers that starts a server.
    fn started(&self, begins: &[Begins]) -> Result<Option<Started>, Finding> {
        let Degrees { tensor, data, local, workers, .. } = self.degrees;
        let commands: Vec<&Entry> = self.own.iter().filter(|entry| entry.key() == "modelCommand").collect();
        let mut all = containers(self.own);
        if all.is_empty() && self.is_service {
            all.push(Container::default());
        }
        for mut container in all {
            let mut told = Vec::new();
            let place = container.place.clone().unwrap_or_default();
            let command = commands.iter().find(|entry| self.is_beside(entry, &place)).map(|entry| entry.value.as_str());
            let is_plain = self.is_service && container.command.is_empty();
            if is_plain || matches!(command, Some("vllmServe" | "imageDefault")) {
                let mut given = std::mem::take(&mut container.args);
                given.extend(additional(&container.variables));
                container.variables.retain(|(name, _)| name != ADDITIONAL);
                container.command = vec!["vllm".to_owned(), "serve".to_owned()];
                if self.is_service {
                    told = with_offloading(self.own, &mut given);
                }
                container.args = self.of_chart().into_iter().chain(given).collect();
            }
            let degrees = [("DP_SIZE", data), ("TP_SIZE", tensor), ("DP_SIZE_LOCAL", local)];
            let degrees = degrees.map(|(name, n)| (name.to_owned(), n.to_string()));
            container.variables.splice(0..0, degrees.into_iter().chain(of_group(workers)));
            let Some((engine, launch)) = container.server(begins)? else { continue };
            let at = container.place.clone().unwrap_or_else(|| self.own[0].at.clone());
            let replicas = Replicas::read(self.own.iter().find(|entry| entry.path[1..] == ["replicas"]));
            let mut launch = launch.moved_to(&at);
            launch.findings.append(&mut told);
            let one = Started::plain(self.role.to_owned(), replicas, engine, launch);
            let n_pods = Some(workers).filter(|n| *n > 1);
            return Ok(Some(Started {
                label: self.label(),
                role: Some(self.role),
                n_pods,
                gpus_of_pod: container.n_gpus,
                ..one
            }));
        }
        Ok(None)
    }

    /// Whether a key stands in the container with such a place: behind the dash of its item.
    fn is_beside(&self, entry: &Entry, place: &Range<usize>) -> bool {
        let names = self.own.iter().filter(|one| one.path.len() == 4 && one.path[2] == "-" && one.key() == "name");
        let starts: Vec<usize> = names.map(|one| one.at.start).collect();
        let item = |at: usize| starts.iter().rposition(|start| *start <= at);
        place.is_empty() || item(entry.at.start) == item(place.start)
    }

    /// Arguments that the chart puts before those of the container.
    fn of_chart(&self) -> Vec<String> {
        let Degrees { tensor, data, local, pipeline, whole_experts, .. } = self.degrees;
        let [model, name] = &self.model;
        let mut words = vec![model.clone()];
        let degrees = [
            ("--tensor-parallel-size", tensor),
            ("--data-parallel-size", data),
            ("--data-parallel-size-local", local),
            ("--pipeline-parallel-size", pipeline),
        ];
        words
            .extend(degrees.into_iter().filter(|(_, n)| *n > 1).flat_map(|(flag, n)| [flag.to_owned(), n.to_string()]));
        words.extend(whole_experts.then(|| "--enable-expert-parallel".to_owned()));
        if !name.is_empty() {
            words.extend(["--served-model-name".to_owned(), name.clone()]);
        }
        words
    }

    /// The GPU of its nodes, where its accelerators are named by the label that says it.
    fn label(&self) -> Option<String> {
        let is_of =
            |entry: &&Entry, key: &str| entry.path.get(1..3).is_some_and(|path| path == ["acceleratorTypes", key]);
        self.own.iter().filter(|entry| is_of(entry, "labelKey")).find(|entry| plugins::is_label(&entry.value))?;
        self.own.iter().filter(|entry| is_of(entry, "labelValues")).flat_map(yaml::listed).next()
    }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use crate::Imported;
    use crate::example::{codes, has_parts, import_text, on};

    fn found(text: &str) -> Imported {
        import_text(text, &on("h200-sxm"))
    }

    /// The form of the chart's examples (examples/values-pd.yaml).
    const VALUES: &str = "multinode: false\nmodelArtifacts:\n  name: Qwen/Qwen3-32B\n  uri: hf://\"{{ .Values.modelArtifacts.name }}\"\n  size: 20Gi\nrouting:\n  servicePort: 8000\n\
                          decode:\n  create: true\n  replicas: 1\n  parallelism:\n    tensor: 4\n    data: 1\n  containers:\n  - name: \"vllm\"\n    \
                          image: \"ghcr.io/llm-d/llm-d-cuda:v0.3.0\"\n    modelCommand: vllmServe\n    args:\n      - \"--enforce-eager\"\n      - \"--kv-transfer-config\"\n      \
                          - '{\"kv_connector\":\"NixlConnector\", \"kv_role\":\"kv_both\"}'\n    env:\n      - name: VLLM_LOGGING_LEVEL\n        value: DEBUG\n      \
                          - name: VLLM_NIXL_SIDE_CHANNEL_HOST\n        valueFrom:\n          fieldRef:\n            fieldPath: status.podIP\n    ports:\n      \
                          - containerPort: 8200\n        protocol: TCP\n    mountModelVolume: true\nprefill:\n  create: true\n  replicas: 4\n  parallelism:\n    tensor: 1\n    data: 1\n  \
                          containers:\n  - name: \"vllm\"\n    image: \"ghcr.io/llm-d/llm-d-cuda:v0.3.0\"\n    modelCommand: vllmServe\n    args:\n      - \"--enforce-eager\"\n      \
                          - \"--kv-transfer-config\"\n      - '{\"kv_connector\":\"NixlConnector\", \"kv_role\":\"kv_both\"}'\n";

    #[test]
    fn sections_are_groups_with_the_degrees_that_the_chart_puts_before_their_arguments() {
        let both = found(VALUES);
        has_parts(
            &both,
            &[
                "name = \"qwen3-32b\"",
                "graph_max = 0",
                "name = \"prefill\"\ntp = 1\nreplicas = 4\nrole = \"prefill\"",
                "name = \"decode\"\ntp = 4\nreplicas = 1\nrole = \"decode\"",
            ],
        );
        assert_eq!(codes(&both), [Code::MissingFlag], "{:?}", both.findings);
        let at = VALUES.rfind("create: true").expect("two sections");
        let alone = format!("{}create: false{}", &VALUES[..at], &VALUES[at + "create: true".len()..]);
        let alone = found(&alone.replace("hf://\"{{ .Values.modelArtifacts.name }}\"", "pvc://claim/models/Qwen3-32B"))
            .scenario;
        assert!(alone.contains("tp = 4") && alone.contains("qwen3-32b") && !alone.contains("role"), "{alone}");
    }

    #[test]
    fn a_group_of_pods_has_the_ranks_of_all() {
        let text = "multinode: true\nmodelArtifacts:\n  name: deepseek-ai/DeepSeek-R1\n  uri: hf://deepseek-ai/DeepSeek-R1\ndecode:\n  create: true\n  replicas: 2\n  parallelism:\n    \
                    tensor: 1\n    data: 16\n    dataLocal: 8\n  containers:\n  - name: vllm\n    image: ghcr.io/llm-d/llm-d-cuda:v0.3.0\n    modelCommand: custom\n    \
                    command: [/bin/bash, -c]\n    args:\n    - |-\n      START_RANK=$(( ${LWS_WORKER_INDEX:-0} * DP_SIZE_LOCAL ))\n      exec vllm serve \\\n        \
                    deepseek-ai/DeepSeek-R1 \\\n        --enable-expert-parallel \\\n        --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) \\\n        \
                    --data-parallel-start-rank $START_RANK\nprefill:\n  create: false\n";
        let custom = found(text);
        has_parts(&custom, &["ep = 16", "nodes = 4", "gpus_per_node = 8"]);
        assert_eq!(codes(&custom), [Code::MissingFlag], "{:?}", custom.findings);
        let (head, _) = text.split_once("    modelCommand").expect("a container");
        let serve = format!("{head}    modelCommand: vllmServe\n    args:\n    - --enable-expert-parallel\n");
        let scenario = found(&serve).scenario;
        assert!(scenario.contains("ep = 16") && scenario.contains("gpus_per_node = 8"), "{scenario}");
        let wrong = found(&text.replace("data: 16", "data: 12"));
        assert!(wrong.findings.iter().any(|one| one.what.contains("12 data ranks")), "{:?}", wrong.findings);
    }

    /// The form of KServe's samples of such services.
    #[test]
    fn a_service_of_kserve_has_the_degrees_of_its_keys() {
        let of = |prefill: &str| {
            format!(
                "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata:\n  name: r1\nspec:\n  model:\n    uri: hf://deepseek-ai/DeepSeek-R1\n    \
                 name: deepseek-ai/DeepSeek-R1\n  replicas: 2\n  parallelism:\n    data: 16\n    dataLocal: 8\n    expert: true\n    tensor: 1\n  router:\n    route: {{}}\n  \
                 template:\n    containers:\n      - name: main\n        env:\n          - name: VLLM_ADDITIONAL_ARGS\n            value: \"--max-num-seqs 64\"\n{prefill}"
            )
        };
        let alone = found(&of(""));
        has_parts(&alone, &["ep = 16", "nodes = 4 ", "gpus_per_node = 8", "max_sequences = 64"]);
        assert_eq!(codes(&alone), [Code::MissingFlag], "{:?}", alone.findings);
        let prefill = "  prefill:\n    replicas: 3\n    parallelism:\n      data: 16\n      dataLocal: 8\n      expert: true\n    template:\n      containers:\n        - name: main\n";
        let both = found(&of(prefill)).scenario;
        for part in ["replicas = 3\nrole = \"prefill\"", "replicas = 2\nrole = \"decode\"\nmax_sequences = 64"] {
            assert!(both.contains(part), "{part} in {both}");
        }
    }

    /// The same values on fewer lines.
    #[test]
    fn sections_in_braces_are_the_same_sections() {
        let lines = "modelArtifacts:\n  uri: hf://Qwen/Qwen3-32B\n  size: 20Gi\ndecode:\n  create: true\n  replicas: 2\n  parallelism:\n    tensor: 4\n  \
                     containers:\n  - name: vllm\n    modelCommand: vllmServe\n    args:\n    - --max-num-seqs\n    - \"64\"\nprefill:\n  create: false\n";
        let half = "modelArtifacts: { uri: \"hf://Qwen/Qwen3-32B\", size: 20Gi }\ndecode:\n  create: true\n  replicas: 2\n  parallelism: { tensor: 4 }\n  \
                    containers:\n  - { name: vllm, modelCommand: vllmServe, args: [--max-num-seqs, 64] }\nprefill: { create: false }\n";
        let whole = "modelArtifacts: {uri: 'hf://Qwen/Qwen3-32B', size: 20Gi}\ndecode: {create: true, replicas: 2, parallelism: {tensor: 4}, \
                     containers: [{name: vllm, modelCommand: vllmServe, args: [--max-num-seqs, 64]}]}\nprefill: {create: false}\n";
        let expected = found(lines);
        has_parts(&expected, &["name = \"qwen3-32b\"", "tp = 4", "max_sequences = 64"]);
        for text in [half, whole] {
            assert_eq!(found(text).scenario, expected.scenario, "{text}");
        }
    }
}
