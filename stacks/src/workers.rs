//! Several servers of a file as a fleet: a script with several commands, or manifests of Kubernetes. Each is a group with its role and its replicas.

use std::fmt::Write as _;

use input::diagnostic::{Code, Finding};

use crate::document::Document;
use crate::flags::{Flag, Flags, Table};
use crate::launch::{self, Begins, Launch};
use crate::serving::Server;
use crate::{Imported, Machine, fleet, sglang, trtllm, vllm};

mod compose;
mod manifests;
mod replicas;

use manifests::{documents, of_manifest, replicas_of, word_of};
pub(crate) use replicas::Replicas;

/// The label by which nodes say their GPU (NVIDIA's feature discovery).
pub(crate) const LABEL: &str = "nvidia.com/gpu.product";

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

/// A command that starts a server, and what stands around it.
struct Started {
    name: String,
    replicas: Replicas,
    label: Option<String>,
    engine: usize,
    launch: Launch,
}

/// What a file that starts servers says: one server as it stands, several as a fleet.
pub(crate) fn imported(text: &str, machine: &Machine) -> Imported {
    let mut started = match started(text) {
        Ok(started) => started,
        Err(finding) => return Imported { findings: vec![finding], ..Imported::default() },
    };
    leave_out_followers(&mut started);
    let is_alone = started.len() == 1;
    let Some(first) = started.first() else {
        let help = "a command of `vllm serve`, `sglang.launch_server` or `trtllm-serve` with its options is needed";
        let finding =
            Finding::error(Code::UnreadableScript, None, "the script starts nothing that is known").help(help);
        return Imported { findings: vec![finding], ..Imported::default() };
    };
    if is_alone {
        let (mut findings, gpu) = (Vec::new(), gpu_of(first.label.as_deref(), machine));
        findings.extend(gpu.as_ref().err().cloned());
        let machine = Machine { gpu: gpu.unwrap_or(None), ..machine.clone() };
        let Started { engine, launch, replicas, .. } = started.remove(0);
        let (mut server, mut flags) = ENGINES[engine].1(launch, &machine);
        server.copies = replicas.told(&mut findings);
        flags.findings.append(&mut findings);
        return server.import(flags, &machine);
    }
    let (mut workers, mut findings) = (Vec::new(), Vec::new());
    for Started { name, replicas, label, engine, mut launch } in started {
        let role = role(&launch);
        launch.flags.retain(|flag| !OF_ROLES.contains(&flag.name.as_str()));
        let (server, mut flags) = ENGINES[engine].1(launch, machine);
        flags.judge();
        findings.append(&mut flags.findings);
        workers.push(Worker { name, role, replicas: replicas.told(&mut findings), label, server });
    }
    fleet(workers, findings, machine)
}

/// Options that say which part of a server over several nodes a command starts; the first part has none of them, or 0.
///
/// vLLM (`vllm/engine/arg_utils.py`) and SGLang (`srt/arg_groups`): every part is told the degrees of all of them.
const PARTS: [&str; 6] = ["node-rank", "r", "data-parallel-start-rank", "dpr", "data-parallel-rank", "dpn"];

/// Whether a command starts a further part of a server over several nodes. A position that only a shell knows may be the first.
fn is_follower(launch: &Launch) -> bool {
    launch.flags.iter().any(|flag| flag.name == "headless" || is_further(flag))
}

/// Whether a flag says a part that is not the first.
fn is_further(flag: &Flag) -> bool {
    PARTS.contains(&flag.name.as_str()) && flag.value().parse().is_ok_and(|n: u64| n > 0)
}

/// What a command serves: the words of the program, and the model by its flag.
fn served(started: &Started) -> (usize, &[String], Option<String>) {
    let model = started.launch.flags.iter().find(|flag| ["model", "model-path"].contains(&flag.name.as_str()));
    (started.engine, &started.launch.program, model.map(Flag::value))
}

/// Leaves out further parts of servers whose first part stands in the file too: it says the degrees of all.
fn leave_out_followers(started: &mut Vec<Started>) {
    let (heads, followers): (Vec<Started>, Vec<Started>) =
        std::mem::take(started).into_iter().partition(|one| !is_follower(&one.launch));
    let mut alone: Vec<Started> = Vec::new();
    for follower in followers {
        // Without its first part in the file, one of the parts stands for the server.
        if !heads.iter().chain(&alone).any(|other| served(other) == served(&follower)) {
            alone.push(follower);
        }
    }
    *started = heads;
    started.append(&mut alone);
}

/// Servers of a script, or of the documents of a file of manifests.
fn started(text: &str) -> Result<Vec<Started>, Finding> {
    let begins = ENGINES.map(|(begins, _)| begins);
    let is_manifest = launch::lines(text).any(|line| line.starts_with("apiVersion:"));
    let with_options = |engine: usize, launch: Launch| {
        if engine == TRTLLM { trtllm::with_options(launch, text) } else { launch }
    };
    if let Some(entries) = compose::entries(text) {
        let services = compose::services(&entries, &begins)?.into_iter();
        let started =
            services.map(|(name, replicas, engine, launch)| Started { name, replicas, label: None, engine, launch });
        return Ok(started.collect());
    }
    if !is_manifest {
        let all = launch::all_of_script(text, &begins)?;
        let heads = Some(heads(text)).filter(|heads| heads.len() == all.len());
        let started = all.into_iter().enumerate().map(|(index, (engine, launch))| {
            let head = heads.as_ref().map(|heads| heads[index].clone());
            let (name, replicas) = head.unwrap_or_else(|| (format!("server-{}", index + 1), 1));
            Started {
                name,
                replicas: Replicas::of(replicas),
                label: None,
                engine,
                launch: with_options(engine, launch),
            }
        });
        return Ok(started.collect());
    }
    let mut found: Vec<Started> = Vec::new();
    let mut start = 0;
    for document in documents(text) {
        // A group of pods starts the same server on each: the first says all.
        if let Some((engine, mut launch)) = of_manifest(document, &begins)? {
            launch.flags.iter_mut().for_each(|flag| flag.at = flag.at.start + start..flag.at.end + start);
            let places = launch.findings.iter_mut().filter_map(|finding| finding.at.as_mut());
            places.for_each(|at| *at = at.start + start..at.end + start);
            let name = word_of(document, "name:").unwrap_or_else(|| format!("server-{}", found.len() + 1));
            let replicas = replicas_of(document).moved_by(start);
            let label = word_of(document, &format!("{LABEL}:"));
            found.push(Started { name, replicas, label, engine, launch });
        }
        start += document.len();
    }
    Ok(found)
}

/// Whether a file is of manifests, or of Docker Compose, with a container that starts a server.
pub(crate) fn is_manifest(text: &str) -> bool {
    let is_yaml = launch::lines(text).any(|line| line.starts_with("apiVersion:")) || compose::entries(text).is_some();
    is_yaml && started(text).is_ok_and(|found| !found.is_empty())
}

/// Groups that remarks of an export name: `# read: 3 × 2 GPUs of type h200-sxm`.
fn heads(text: &str) -> Vec<(String, u64)> {
    let head = |line: &str| {
        let (name, rest) = line.strip_prefix("# ")?.split_once(": ")?;
        let (n, what) = rest.split_once(" × ")?;
        what.contains(" GPUs of type ").then_some((name.to_owned(), n.parse().ok().filter(|n| *n > 0)?))
    };
    text.lines().filter_map(head).collect()
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
        let what = format!("the GPU of nodes with `{LABEL}: {label}` is not known");
        Finding::warning(Code::UnknownValue, None, what).help("give `--set cluster.gpu=…`")
    })
}

/// The scenario of a fleet: the first worker's engine, and a group for each.
pub(crate) fn fleet(workers: Vec<Worker>, findings: Vec<Finding>, machine: &Machine) -> Imported {
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

/// The machine of all groups: nodes that no two groups share.
fn cluster(workers: &[Worker], machine: &Machine, out: &mut Document) {
    let per_node = u64::from(machine.per_node()).max(1);
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
    ];
    names.extend(parts.into_iter().filter(|(differs, _)| *differs).map(|(_, words)| words.to_owned()));
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use input::diagnostic::{Code, Severity};

    use crate::{Machine, import, recognise};

    fn found(text: &str, gpu: Option<&str>) -> crate::Imported {
        let machine = Machine { gpu: gpu.map(str::to_owned), ..Machine::default() };
        import(recognise(text).expect("a known stack"), text, &machine)
    }

    #[test]
    fn two_commands_of_a_script_are_two_groups_with_their_roles() {
        let text = "vllm serve llama-3-8b -tp 2 --max-num-seqs 8 --kv-transfer-config '{\"kv_role\":\"kv_producer\"}' &\n\
                    vllm serve llama-3-8b -tp 1 --max-num-seqs 64 --kv-transfer-config '{\"kv_role\":\"kv_consumer\"}'\n";
        let found = found(text, Some("h100-sxm"));
        for part in [
            "name = \"server-1\"\ntp = 2\nreplicas = 1\nrole = \"prefill\"\nmax_sequences = 8",
            "name = \"server-2\"\ntp = 1\nreplicas = 1\nrole = \"decode\"\nmax_sequences = 64",
        ] {
            assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        }
        let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
    }

    /// Degrees of the first part are those of all.
    #[test]
    fn parts_of_a_server_on_further_nodes_are_no_servers() {
        let (vllm, sglang) = (
            "vllm serve deepseek-ai/DeepSeek-V3",
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3",
        );
        let ranks = "--data-parallel-size 16 --data-parallel-size-local 8 --enable-expert-parallel";
        for (head, follower, keys) in [
            (
                format!("{vllm} {ranks}"),
                format!("{vllm} {ranks} --headless --data-parallel-start-rank 8"),
                ["ep = 16", "nodes = 2"],
            ),
            (format!("{vllm} {ranks}"), format!("{vllm} {ranks} -dpr 8"), ["ep = 16", "nodes = 2"]),
            (
                format!("{sglang} --tp 16 --nnodes 2 --node-rank 0"),
                format!("{sglang} --tp 16 --nnodes 2 --node-rank 1"),
                ["tp = 16", "nodes = 2"],
            ),
            (
                format!("{vllm} -tp 8 -pp 2 --nnodes 2 --node-rank 0"),
                format!("{vllm} -tp 8 -pp 2 --nnodes 2 --node-rank 1 --headless"),
                ["pp = 2", "nodes = 2"],
            ),
        ] {
            // In any order, and also where the first part stands in another file.
            for text in [format!("{head}\n{follower}\n"), format!("{follower}\n{head}\n"), format!("{follower}\n")] {
                let found = found(&text, Some("h200-sxm"));
                assert!(!found.scenario.contains("fleet.group"), "{text}: {}", found.scenario);
                for key in keys {
                    assert!(found.scenario.contains(key), "{key} of {text}: {}", found.scenario);
                }
            }
        }
        let other = format!("{vllm} {ranks}\n{} {ranks} --data-parallel-start-rank 8\n", vllm.replace("V3", "R1"));
        assert!(found(&other, Some("h200-sxm")).findings.iter().any(|one| one.what.contains("another model")));
    }

    #[test]
    fn one_gpu_of_all_groups_is_a_cluster_that_the_command_line_may_change() {
        let text = "vllm serve llama-3-8b -tp 4 --kv-transfer-config '{\"kv_role\":\"kv_producer\"}' &\n\
                    vllm serve llama-3-8b -dp 9 --kv-transfer-config '{\"kv_role\":\"kv_consumer\"}'\n";
        let one = found(text, Some("h100-sxm")).scenario;
        for part in ["[cluster]\ngpu = \"h100-sxm\"", "nodes = 3 ", "gpus_per_node = 8", "tp = 1\nreplicas = 9"] {
            assert!(one.contains(part), "{part} in {one}");
        }
        assert_eq!(one.matches("gpu = ").count(), 1, "{one}");
        let named = Machine { named: Some("dgx-h100".to_owned()), nodes: Some(5), ..Machine::default() };
        let named = import(recognise(text).expect("vLLM"), text, &named);
        assert!(named.scenario.contains("[cluster]\nnodes = 5"), "{}", named.scenario);
        assert!(named.findings.iter().all(|one| one.severity != Severity::Error), "{:?}", named.findings);
    }

    #[test]
    fn servers_look_for_requests_as_often_as_each_was_told() {
        let server = |role: &str, looks: &str| {
            format!("python -m sglang.launch_server --model-path llama-3-8b --disaggregation-mode {role} {looks}\n")
        };
        let ten = "--scheduler-recv-interval 10";
        for (looks, groups) in
            [([ten, ten], [10, 10]), (["", ten], [1, 10]), (["--scheduler-recv-interval 30", ten], [30, 10])]
        {
            let text = format!("{}{}", server("prefill", looks[0]), server("decode", looks[1]));
            let found = found(&text, Some("h100-sxm"));
            let roles = ["prefill", "decode"].into_iter().zip(groups);
            for part in roles.map(|(role, looks)| format!("role = \"{role}\"\nrecv_interval = {looks}\n")) {
                assert!(found.scenario.contains(&part), "{part} in {}", found.scenario);
            }
            assert!(found.findings.iter().all(|one| one.code != Code::NotModelled), "{:?}", found.findings);
        }
    }

    #[test]
    fn manifests_give_replicas_groups_and_the_gpu_of_their_nodes() {
        let one = |name: &str, n: u32, label: &str| {
            format!(
                "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  replicas: {n}\n  template:\n    spec:\n      \
                 nodeSelector:\n        nvidia.com/gpu.product: {label}\n      containers:\n      - name: engine\n        \
                 command: [\"/bin/sh\", \"-c\"]\n        args: [\"exec vllm serve llama-3-8b --tensor-parallel-size 2\"]\n"
            )
        };
        let both = found(&(one("a", 3, "NVIDIA-L4") + &one("b", 1, "NVIDIA-A40")), None);
        for part in
            ["name = \"a\"\ngpu = \"l4\"\ntp = 2\nreplicas = 3", "name = \"b\"\ngpu = \"a40\"\ntp = 2\nreplicas = 1"]
        {
            assert!(both.scenario.contains(part), "{part} in {}", both.scenario);
        }
        let odd = found(&one("a", 3, "NVIDIA-Unheard-Of"), None);
        assert!(odd.findings.iter().any(|one| one.what.contains("NVIDIA-Unheard-Of")), "{:?}", odd.findings);
    }

    #[test]
    fn replicas_that_are_no_number_of_servers_are_refused_where_they_stand() {
        let manifest = |n: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  replicas: {n}\n  template:\n    spec:\n      containers:\n      \
                 - name: engine\n        command: [\"/bin/sh\", \"-c\"]\n        args: [\"exec vllm serve llama-3-8b\"]\n"
            )
        };
        let compose = |n: &str| {
            format!(
                "services:\n  a:\n    image: vllm/vllm-openai:v0.10.0\n    command: --model llama-3-8b\n    deploy:\n      replicas: {n}\n"
            )
        };
        let dynamo = |n: &str| {
            format!(
                "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata:\n  name: a\nspec:\n  services:\n    Worker:\n      \
                 componentType: worker\n      replicas: {n}\n      extraPodSpec:\n        mainContainer:\n          command:\n            - python3\n          \
                 args:\n            - -m\n            - dynamo.vllm\n            - --model\n            - llama-3-8b\n"
            )
        };
        for of in [&manifest as &dyn Fn(&str) -> String, &compose, &dynamo] {
            for wrong in ["0", "four", "3.5", "-1"] {
                for text in [of(wrong), format!("---\n{}---\n{}", manifest("2"), manifest(wrong))] {
                    let findings = found(&text, Some("h100-sxm")).findings;
                    let told: Vec<_> =
                        findings.iter().filter(|one| one.what.contains("is no number of servers")).collect();
                    let [one] = told[..] else { panic!("{findings:?} of {text}") };
                    assert_eq!(one.severity, Severity::Error);
                    let at = one.at.clone().expect("a place");
                    assert!(text[at.clone()].starts_with("replicas") && text[at].ends_with(wrong), "{text}");
                }
            }
            let three = found(&of("3"), Some("h100-sxm"));
            assert!(three.findings.iter().all(|one| one.severity != Severity::Error), "{:?}", three.findings);
            assert!(three.scenario.contains("nodes = ") && three.scenario.contains('3'), "{}", three.scenario);
        }
    }

    /// Forms of manifests in which people start servers: words of a command, arguments behind the image, a list over several lines.
    #[test]
    fn containers_start_servers_in_several_ways() {
        let list = "args: [\n          \"vllm serve Qwen/Qwen3-32B -tp 2\"\n        ]";
        for (image, lines) in [
            ("vllm/vllm-openai:v0.11.0", "command: [\"vllm\", \"serve\"]\n        args: [\"Qwen/Qwen3-32B\", \"-tp\", \"2\"]".to_owned()),
            ("vllm/vllm-openai:v0.11.0", "args: [\"--model\", \"Qwen/Qwen3-32B\", \"--tensor-parallel-size\", \"2\"]".to_owned()),
            ("vllm/vllm-openai:v0.11.0", format!("command: [\"/bin/sh\", \"-c\"]\n        {list}")),
            ("vllm/vllm-openai:v0.11.0", format!("command: [sh, -c]\n        {}\n        env:\n        - name: MODEL\n          value: Qwen/Qwen3-32B\n        - name: TP\n          value: \"2\"", list.replace("Qwen/Qwen3-32B -tp 2", "$MODEL -tp $(TP)"))),
            ("vllm/vllm-openai:v0.11.0", format!("command: [sh, -c]\n        {}\n        env:\n        - {{name: TP, value: \"2\"}}\n        - {{ name: OTHER, value: x }}", list.replace("-tp 2", "-tp $TP"))),
            ("lmsysorg/sglang:v0.5.5", "command: [python3, -m, sglang.launch_server]\n        args: [--model-path, Qwen/Qwen3-32B, --tp, \"2\"]".to_owned()),
        ] {
            let text = format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  replicas: 2\n  template:\n    spec:\n      \
                 initContainers:\n      - name: first\n        image: vllm/vllm-openai:v0.9.0\n        args: [\"--model\", \"llama-3-8b\"]\n      \
                 containers:\n      - name: side\n        image: busybox:1.36\n        command: [sleep, infinity]\n      \
                 - name: engine\n        image: {image}\n        {lines}\n"
            );
            let found = found(&text, Some("h100-sxm"));
            for part in ["name = \"qwen3-32b\"", "tp = 2 ", "gpus_per_node = 4"] {
                assert!(found.scenario.contains(part), "{part} of {text}: {}", found.scenario);
            }
            let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
            assert_eq!(codes, [Code::MissingFlag], "{text}: {:?}", found.findings);
            let version = image.rsplit_once(":v").map_or("", |(_, version)| version);
            assert!(found.scenario.contains(&format!("version = \"{version}\"")), "{text}: {}", found.scenario);
        }
        assert_eq!(recognise("apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"), None);
    }

    #[test]
    fn services_of_compose_are_servers() {
        let one = "services:\n  web:\n    image: nginx:1.29\n    command: [nginx, -g, x]\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    \
                   ports:\n      - \"8000:8000\"\n    environment:\n      - TP=2\n      - HF_TOKEN=${HF_TOKEN}\n    command: >\n      \
                   --model ${MODEL:-Qwen/Qwen3-32B}\n      --tensor-parallel-size ${TENSOR:-2}\n      --max-num-seqs 64\n";
        let sglang = "  other:\n    image: lmsysorg/sglang:v0.5.5\n    entrypoint: python3 -m sglang.launch_server\n    \
                      command: --model-path Qwen/Qwen3-32B --tp 2\n    deploy:\n      replicas: 3\n";
        let found_one = found(one, Some("h100-sxm"));
        for part in ["name = \"qwen3-32b\"", "tp = 2 ", "version = \"0.11.0\"", "max_sequences = 64"] {
            assert!(found_one.scenario.contains(part), "{part} in {}", found_one.scenario);
        }
        let codes: Vec<Code> = found_one.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [Code::MissingFlag], "{:?}", found_one.findings);
        let alone = found(&format!("services:\n{sglang}"), Some("h100-sxm")).scenario;
        assert!(alone.contains("name = \"sglang\"") && alone.contains("gpus_per_node = 6"), "{alone}");
        // Another engine beside it is refused and not dropped.
        let both = found(&format!("{one}{sglang}"), Some("h100-sxm"));
        assert!(both.findings.iter().any(|one| one.what.contains("runs another engine")), "{:?}", both.findings);
    }

    #[test]
    fn options_that_differ_between_groups_are_named() {
        let text = "vllm serve llama-3-8b --block-size 64 --quantization fp8\nvllm serve llama-3-8b --block-size 32 --enforce-eager\n";
        let found = found(text, Some("h100-sxm"));
        let words = "`--block-size`, `--enforce-eager`, the format of weights";
        assert!(found.findings.iter().any(|one| one.what.ends_with(words)), "{:?}", found.findings);
    }

    #[test]
    fn servers_of_different_models_are_refused_and_not_dropped() {
        let found = found("vllm serve llama-3-8b\nvllm serve llama-3-70b -tp 4\n", Some("h100-sxm"));
        let wrong = found.findings.iter().filter(|one| one.severity == Severity::Error);
        let words: Vec<&str> = wrong.map(|one| one.what.as_str()).collect();
        assert_eq!(words, ["`server-2` serves another model, or runs another engine, than `server-1`"]);
    }

    #[test]
    fn a_container_that_is_run_is_a_server() {
        let text = "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 --model meta-llama/Llama-3.1-8B --tensor-parallel-size 2\n";
        let named = found(text, Some("h100-sxm"));
        assert!(named.scenario.contains("tp = 2") && named.scenario.contains("llama-3"), "{}", named.scenario);
        let behind = found("docker run vllm/vllm-openai Qwen/Qwen3-32B -tp 4\n", Some("h100-sxm"));
        assert!(behind.scenario.contains("qwen3-32b") && behind.scenario.contains("tp = 4"), "{}", behind.scenario);
    }
}
