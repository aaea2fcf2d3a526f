//! Deployments as what starts a whole fleet: manifests of Kubernetes, and services of SkyPilot.
//!
//! A replica within one node is a pod; one over several nodes is a group of pods with a leader (LeaderWorkerSet), or a task of several nodes. The
//! engine is the one whose batching rule the plan has: vLLM or SGLang. Which share of the requests goes where is a router's business and said in
//! remarks. What a file cannot say is an error.

use std::sync::LazyLock;

use hw::Maker;
use serde_json::Value;
use serve::deployment::{Deployment, Machine, Replica};
use serve::replica::Role;

use crate::batching::other_rule;
use crate::export::{ExportError, File, Planned, Target, Words, expressed, model_of, named, serving, to_put};
use crate::flags::rows;
use crate::plugins::{self, Plugin};
use crate::servers::{
    Layout, SGLANG_IMAGE, TAKES_ALL, Takes, Unsayable, VLLM_IMAGE, layout, other_length, packed, sglang, sglang_across,
    sglang_takes, shares, vllm, vllm_across,
};
use crate::settings::{Said, Settings, said};

const KUBERNETES_VERSION: &str = "Kubernetes 1.37 (apps/v1, v1) and LeaderWorkerSet 0.7 (leaderworkerset.x-k8s.io/v1)";
const SKYPILOT_VERSION: &str = "SkyPilot 0.14 (sky/utils/schemas.py)";

/// Manifests of Kubernetes.
pub const KUBERNETES: Target = Target::new(
    "kubernetes",
    "manifests of a fleet, a group of replicas each",
    KUBERNETES_VERSION,
    |planned, words| write(planned, words, &Form { target: "kubernetes", version: KUBERNETES_VERSION, group: pods }),
);
/// Services of SkyPilot.
pub const SKYPILOT: Target =
    Target::new("skypilot", "a service for each group of a rented fleet", SKYPILOT_VERSION, |planned, words| {
        write(planned, words, &Form { target: "skypilot", version: SKYPILOT_VERSION, group: service })
    });

/// Port at which replicas answer.
const PORT: u32 = 8000;

/// A GPU of the catalogue, its label by the device plugin of its maker (`plugins.rs`), and its name in SkyPilot's catalogue; empty where there is none.
///
/// Labels are the driver's names of products with dashes (NVIDIA/k8s-device-plugin, `gpu-feature-discovery`) or underscores (ROCm/k8s-device-plugin, node labeller); those of
/// B300, GB300 and RTX PRO 6000 as published manifests select them. SkyPilot's names: 0.14.1, `sky/utils/gpu_names.py` and `sky/catalog/data_fetchers/`. The 96 GB H100 of one owner
/// is offered nowhere.
static GPUS: LazyLock<Vec<[&str; 3]>> = LazyLock::new(|| rows(include_str!("../tables/gpus.tsv")));

/// The GPU of the catalogue that a label means.
pub(crate) fn of_label(label: &str) -> Option<&'static str> {
    GPUS.iter().find(|[_, known, _]| *known == label).map(|[name, ..]| *name)
}

/// The label of a GPU that SkyPilot's catalogue calls so.
pub(crate) fn label_of_accelerator(name: &str) -> Option<&'static str> {
    GPUS.iter().find(|[.., accelerator]| *accelerator == name).map(|[_, label, _]| *label)
}

/// An engine that replicas run.
pub(crate) struct Engine {
    /// Its name in images and modules.
    pub(crate) name: &'static str,
    /// Image of the version that commands are written for.
    image: &'static str,
    command: fn(&Layout<'_>) -> Vec<String>,
    takes: Takes,
    /// What joins several nodes: their number, this node's position, the address of the first.
    across: fn(u32, &str, &str) -> String,
    /// What a node besides the first is told.
    follower: &'static str,
    /// The batching rule that it has.
    rule: &'static str,
}

static VLLM: Engine = Engine {
    name: "vllm",
    image: VLLM_IMAGE,
    command: vllm,
    takes: TAKES_ALL,
    across: vllm_across,
    follower: " --headless",
    rule: "vllm-v1",
};
static SGLANG: Engine = Engine {
    name: "sglang",
    image: SGLANG_IMAGE,
    command: sglang,
    takes: sglang_takes,
    across: sglang_across,
    follower: "",
    rule: "sglang",
};

/// A replica kind that a form writes.
pub(crate) struct Group<'a> {
    /// Name of the model and the replica.
    pub(crate) name: String,
    /// What it is.
    pub(crate) replica: &'a Replica,
    machine: &'a Machine,
    /// What runs it.
    pub(crate) engine: &'static Engine,
    /// The engine's image.
    pub(crate) image: String,
    /// Words of the command.
    pub(crate) words: Vec<String>,
    /// GPUs of a node that it takes.
    pub(crate) gpus_per_node: u32,
    /// Nodes that it takes.
    pub(crate) n_nodes: u32,
    /// What a node's label calls its GPU.
    pub(crate) label: &'static str,
    /// By what pods ask for it.
    pub(crate) plugin: &'static Plugin,
    accelerator: &'static str,
}

impl Group<'_> {
    /// Remarks where the plan batches otherwise than its engine, and where that takes shorter requests.
    pub(crate) fn rule(&self) -> String {
        let rule = other_rule(&self.replica.engine.batcher, self.engine.rule).unwrap_or_default();
        rule + &other_length(&self.replica.engine).unwrap_or_default()
    }

    /// The command, ports and all.
    fn command(&self) -> String {
        format!("{} --host 0.0.0.0 --port {PORT}", self.words.join(" "))
    }
}

/// A form of files.
struct Form {
    target: &'static str,
    version: &'static str,
    group: fn(&Group<'_>) -> String,
}

fn write(planned: &Planned<'_>, words: &Words, form: &Form) -> Result<Vec<File>, ExportError> {
    let (deployments, settings) = serving(planned, form.target)?;
    let said = said_with_images(settings);
    let mut head = words.comments(form.version);
    head += to_put(&deployments);
    head += &remarks(&said, &deployments);
    let (mut files, mut what) = (Vec::new(), Vec::from_iter(packed(&deployments)));
    for deployment in &deployments {
        let mut manifests = format!("{head}{}", shares(deployment));
        for replica in &deployment.replicas {
            match group(deployment, replica, form.target, &said) {
                Ok(group) if form.target == KUBERNETES.name => manifests += &(group.rule() + &(form.group)(&group)),
                Ok(group) => {
                    let text = head.clone() + &group.rule() + &(form.group)(&group);
                    files.push(File::new(&format!("{}.yaml", group.name), text));
                }
                Err(why) => what.push(format!("replica `{}`: {why}", replica.name)),
            }
        }
        if form.target == KUBERNETES.name {
            files.push(File::new(&format!("{}.yaml", named(model_of(deployment))), manifests));
        }
    }
    if deployments.iter().all(|deployment| deployment.replicas.is_empty()) {
        what.push("a plan without replicas".to_owned());
    }
    expressed(files, what, form.target)
}

/// What becomes of the settings of a plan, for each engine that replicas run.
pub(crate) fn said_of(settings: &Settings) -> [Said; 2] {
    [&VLLM, &SGLANG].map(|engine| said(settings, engine.name))
}

/// The same where images are named: their tags tell the version of the engine that the scenario names.
pub(crate) fn said_with_images(mut settings: Settings) -> [Said; 2] {
    let name = settings.get("engine.name").cloned().unwrap_or_default();
    let Some(tag) = settings.get("engine.version").and_then(tag) else { return said_of(&settings) };
    settings.remove("engine.version");
    let mut said = said_of(&settings);
    for (said, engine) in said.iter_mut().zip([&VLLM, &SGLANG]).filter(|(_, engine)| name == engine.name) {
        said.image = Some(format!("{}:{tag}", engine.image.split(':').next().unwrap_or_default()));
    }
    said
}

/// The tag of a release, which has three numbers; a build of a day has no such tag.
fn tag(version: &Value) -> Option<String> {
    let version = version.as_str().filter(|version| version.starts_with(|letter: char| letter.is_ascii_digit()))?;
    let missing = 2_usize.saturating_sub(version.matches('.').count());
    Some(format!("v{version}{}", ".0".repeat(missing)))
}

/// Remarks about settings, those of SGLang where it runs all replicas.
pub(crate) fn remarks(said: &[Said; 2], deployments: &[Deployment]) -> String {
    let mut replicas = deployments.iter().flat_map(|deployment| &deployment.replicas);
    let is_sglang = replicas.all(|replica| replica.engine.batcher == SGLANG.rule);
    said[usize::from(is_sglang)].lines()
}

/// A replica kind as every form needs it.
pub(crate) fn group<'a>(
    deployment: &'a Deployment,
    replica: &'a Replica,
    target: &str,
    said: &'a [Said; 2],
) -> Result<Group<'a>, Unsayable> {
    let (engine, said) = match replica.engine.batcher.as_str() {
        "sglang" => (&SGLANG, &said[1]),
        "vllm-v0" | "vllm-v1" => (&VLLM, &said[0]),
        other => return Err(Unsayable::Batcher(other.to_owned())),
    };
    if !said.unsaid.is_empty() {
        return Err(Unsayable::Settings(said.unsaid.join(", ")));
    }
    // Stages on several machines are pods of several kinds, for which there is no group.
    let layout = layout(deployment, replica, target, said)?;
    (engine.takes)(&layout)?;
    let first = replica.stages.first().ok_or(Unsayable::NoStages)?;
    if replica.stages.iter().any(|stage| stage.machine != first.machine) {
        return Err(Unsayable::Machines);
    }
    let machine = deployment.machines.get(first.machine as usize).ok_or(Unsayable::NoMachine)?;
    let known = GPUS.iter().find(|[name, ..]| *name == machine.gpu);
    let [_, label, accelerator] = known.ok_or_else(|| Unsayable::Gpu(machine.gpu.clone()))?;
    if target == SKYPILOT.name && accelerator.is_empty() {
        return Err(Unsayable::Gpu(machine.gpu.clone()));
    }
    let image = said.image.as_deref().unwrap_or(engine.image);
    let image = if hw::catalog::maker(&machine.gpu) == Some(Maker::Amd) { of_rocm(image)? } else { image.to_owned() };
    let (n_gpus, per_node) = (replica.n_gpus(), machine.gpus_per_node.max(1));
    if n_gpus > per_node && !n_gpus.is_multiple_of(per_node) {
        return Err(Unsayable::Nodes { n_gpus, per_node });
    }
    Ok(Group {
        name: named(&format!("{}-{}", model_of(deployment), replica.name)),
        replica,
        machine,
        engine,
        image,
        words: (engine.command)(&layout),
        gpus_per_node: n_gpus.min(per_node),
        n_nodes: n_gpus.div_ceil(per_node),
        label,
        plugin: plugins::of(&machine.gpu),
        accelerator,
    })
}

/// The image of the same release for cards of AMD. Tags of SGLang's name a release of ROCm and the card besides (`v0.5.4-rocm700-mi30x`).
fn of_rocm(image: &str) -> Result<String, Unsayable> {
    let tag = image.strip_prefix("vllm/vllm-openai:").ok_or_else(|| Unsayable::Rocm(image.to_owned()))?;
    Ok(format!("vllm/vllm-openai-rocm:{tag}"))
}

/// A word of YAML: JSON's form of it.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What a replica is in labels.
const fn role(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both | Role::Outputs => "both",
    }
}

/// Manifests of a group: its replicas, and the service through which they are reached.
fn pods(group: &Group<'_>) -> String {
    let Group { name, replica, n_nodes, .. } = group;
    let labels = format!("{{app: {name}, role: {}}}", role(replica.role));
    let copies = replica.copies;
    let mut text = if *n_nodes == 1 {
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\n  labels: {labels}\nspec:\n  replicas: {copies}\n  selector:\n    \
             matchLabels: {labels}\n  template:\n    metadata:\n      labels: {labels}\n{}",
            indented(&pod(group, &group.command(), true), 4)
        )
    } else {
        let across = |at: &str| (group.engine.across)(*n_nodes, at, "$(LWS_LEADER_ADDRESS)");
        let leader = format!("{} {}", group.command(), across("0"));
        let worker = format!("{} {}{}", group.command(), across("$(LWS_WORKER_INDEX)"), group.engine.follower);
        format!(
            "---\napiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata:\n  name: {name}\n  labels: {labels}\nspec:\n  replicas: {copies}\n  \
             leaderWorkerTemplate:\n    size: {n_nodes}\n    restartPolicy: RecreateGroupOnPodRestart\n    leaderTemplate:\n      metadata:\n        \
             labels: {labels}\n{}    workerTemplate:\n{}",
            indented(&pod(group, &leader, true), 6),
            indented(&pod(group, &worker, false), 6)
        )
    };
    text += &format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  selector: {labels}\n  ports:\n  - name: http\n    port: {PORT}\n    \
         targetPort: {PORT}\n"
    );
    text
}

/// The `spec` of a pod; one that answers is asked whether it is there.
fn pod(group: &Group<'_>, command: &str, answers: bool) -> String {
    let gpus = group.gpus_per_node;
    let Group { label, image, plugin, .. } = group;
    let mut text = format!(
        "spec:\n  nodeSelector:\n    {}: {label}\n  containers:\n  - name: engine\n    image: {image}\n    command: [\"/bin/sh\", \"-c\"]\n    \
         args: [{}]\n    resources:\n      limits:\n        {}: {gpus}\n    volumeMounts:\n    - name: shm\n      mountPath: /dev/shm\n",
        plugin.label,
        quoted(&format!("exec {command}")),
        plugin.resource
    );
    if answers {
        text += &format!(
            "    ports:\n    - containerPort: {PORT}\n    readinessProbe:\n      httpGet:\n        path: /health\n        port: {PORT}\n      \
             periodSeconds: 10\n"
        );
    }
    text + "  volumes:\n  - name: shm\n    emptyDir:\n      medium: Memory\n"
}

/// Lines moved to the right.
fn indented(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect()
}

/// A service of SkyPilot.
fn service(group: &Group<'_>) -> String {
    let Group { name, replica, n_nodes, .. } = group;
    let across = (group.engine.across)(*n_nodes, "$SKYPILOT_NODE_RANK", "$(echo \"$SKYPILOT_NODE_IPS\" | head -n1)");
    let follower = match group.engine.follower {
        "" => String::new(),
        words => format!(" $([ \"$SKYPILOT_NODE_RANK\" = 0 ] || echo{words})"),
    };
    let command = if *n_nodes == 1 { group.command() } else { format!("{} {across}{follower}", group.command()) };
    let usd = group.machine.usd_per_gpu_hour;
    let price = usd.map_or_else(String::new, |usd| format!("# Planned at ${usd:.2} a GPU and hour.\n"));
    let region = &group.machine.region;
    let (unsaid, region) = match region {
        Some(region) => ("", format!("  region: {}\n", quoted(region))),
        None => (" The plan names no region: the cheapest one is taken.", String::new()),
    };
    let spot = if group.machine.is_spot { "  use_spot: true\n" } else { "" };
    format!(
        "{price}# Start it with `sky serve up {name}.yaml`.{unsaid}\nname: {name}\n\
         service:\n  replicas: {}\n  readiness_probe: /health\nresources:\n{region}{spot}  accelerators: {}:{}\n  ports: {PORT}\n  image_id: docker:{}\n\
         num_nodes: {n_nodes}\nrun: |\n  {command}\n",
        replica.copies, group.accelerator, group.gpus_per_node, group.image
    )
}

#[cfg(test)]
mod tests {
    /// All cards of the catalogue but a CPU and one that nobody offers.
    #[test]
    fn every_card_of_the_catalogue_has_a_name() {
        for name in hw::catalog::gpu_names() {
            let is_known = super::GPUS.iter().any(|[known, ..]| *known == name);
            assert!(is_known || ["cpu", "h100-sxm-96g"].contains(&name), "{name}");
        }
        assert_eq!(super::of_label("NVIDIA-A40"), Some("a40"));
    }

    use serve::deployment::Deployment;
    use serve::replica::Role;

    use crate::exported::{deployed, replica, unsaid, written};
    use crate::settings::Settings;

    /// Three copies of a replica of `n` H200s on nodes of eight.
    fn deployment(n: u32, batcher: &str, gpu: &str) -> [Deployment; 1] {
        let mut deployment = deployed(vec![replica(("Both", Role::Both), 3, n, batcher)]);
        let machine = &mut deployment.machines[0];
        (machine.gpu, machine.usd_per_gpu_hour) = (gpu.to_owned(), Some(3.5));
        [deployment]
    }

    fn text(target: &str, deployments: &[Deployment]) -> String {
        written(target, deployments, &Settings::new()).expect("a fleet")
    }

    #[test]
    fn replicas_in_a_node_are_pods_and_larger_ones_groups_of_pods() {
        let small = text("kubernetes", &deployment(4, "vllm-v1", "h200-sxm"));
        for part in
            ["kind: Deployment", "replicas: 3", "nvidia.com/gpu: 4", "gpu.product: NVIDIA-H200", "kind: Service"]
        {
            assert!(small.contains(part), "{part} in {small}");
        }
        assert!(small.contains("--tensor-parallel-size 4 --max-num-seqs 128"), "{small}");
        let large = text("kubernetes", &deployment(16, "sglang", "h200-sxm"));
        for part in
            ["kind: LeaderWorkerSet", "size: 2", "nvidia.com/gpu: 8", "--nnodes 2 --node-rank $(LWS_WORKER_INDEX)"]
        {
            assert!(large.contains(part), "{part} in {large}");
        }
    }

    #[test]
    fn pods_on_cards_of_amd_ask_for_them_by_their_plugin_and_run_the_build_for_rocm() {
        let found = text("kubernetes", &deployment(4, "vllm-v1", "mi300x"));
        for part in ["amd.com/gpu: 4", "amd.com/gpu.product-name: AMD_Instinct_MI300X_OAM", "vllm/vllm-openai-rocm:v"] {
            assert!(found.contains(part), "{part} in {found}");
        }
        assert!(!found.contains("nvidia.com"), "{found}");
        let read = crate::example::import_text(&found, &crate::Machine::default());
        assert!(read.scenario.contains("gpu = \"mi300x\""), "{}", read.scenario);
        for (target, rule) in [("kubernetes", "sglang"), ("dynamo", "vllm-v1")] {
            let why = unsaid(target, &deployment(4, rule, "mi300x"), &Settings::new()).join("\n");
            assert!(why.contains("build for ROCm is not known"), "{target}: {why}");
        }
    }

    #[test]
    fn a_group_is_a_service_with_the_name_that_its_catalogue_has() {
        let found = text("skypilot", &deployment(8, "vllm-v1", "a100-sxm-80g"));
        for part in ["accelerators: A100-80GB:8", "replicas: 3", "num_nodes: 1", "$3.50", "name: llama-3-70b-both"] {
            assert!(found.contains(part), "{part} in {found}");
        }
        assert!(found.contains("names no region") && !found.contains("use_spot"), "{found}");
        let [mut rented] = deployment(8, "vllm-v1", "a100-sxm-80g");
        (rented.machines[0].region, rented.machines[0].is_spot) = (Some("us-east-1".to_owned()), true);
        let found = text("skypilot", &[rented]);
        for part in ["resources:\n  region: \"us-east-1\"\n  use_spot: true\n", "yaml`.\nname:"] {
            assert!(found.contains(part), "{part} in {found}");
        }
    }

    #[test]
    fn what_a_fleet_cannot_say_is_named() {
        let refused = |deployments: &[Deployment]| unsaid("kubernetes", deployments, &Settings::new()).remove(0);
        assert_eq!(
            refused(&deployment(12, "vllm-v1", "h200-sxm")),
            "replica `Both`: 12 GPUs on nodes of 8: no whole number of nodes"
        );
        assert!(refused(&deployment(8, "trtllm", "h200-sxm")).contains("batching rule `trtllm`"));
        assert!(refused(&deployment(8, "vllm-v1", "made-up")).contains("GPUs of type `made-up`"));
    }
}
