//! Several servers of a file as a fleet: a script with several commands, or manifests of Kubernetes. Each is a group with its role and its replicas.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use input::diagnostic::{Code, Finding};

use crate::flags::{Flags, Table};
use crate::launch::{self, Begins, Launch};
use crate::serving::Server;
use crate::{Imported, Machine, fleet, sglang, trtllm, vllm, yaml};

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
type Read = fn(Launch) -> (Server, Flags<'static>);
/// Words of a container's command and of its arguments, and where they stand.
type Container = ([Vec<String>; 2], Range<usize>);

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
    replicas: u64,
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
        let (mut server, mut flags) = ENGINES[engine].1(launch);
        server.copies = replicas;
        flags.findings.append(&mut findings);
        return server.import(flags, &machine);
    }
    let (mut workers, mut findings) = (Vec::new(), Vec::new());
    for Started { name, replicas, label, engine, mut launch } in started {
        let role = role(&launch);
        launch.flags.retain(|flag| !OF_ROLES.contains(&flag.name.as_str()));
        let (server, mut flags) = ENGINES[engine].1(launch);
        flags.judge();
        findings.append(&mut flags.findings);
        workers.push(Worker { name, role, replicas, label, server });
    }
    fleet(workers, findings, machine)
}

/// Servers of a script, or of the documents of a file of manifests.
fn started(text: &str) -> Result<Vec<Started>, Finding> {
    let begins = ENGINES.map(|(begins, _)| begins);
    let is_manifest = launch::lines(text).any(|line| line.starts_with("apiVersion:"));
    let with_options = |engine: usize, launch: Launch| {
        if engine == TRTLLM { trtllm::with_options(launch, text) } else { launch }
    };
    if !is_manifest {
        let all = launch::all_of_script(text, &begins)?;
        let heads = Some(heads(text)).filter(|heads| heads.len() == all.len());
        let started = all.into_iter().enumerate().map(|(index, (engine, launch))| {
            let head = heads.as_ref().map(|heads| heads[index].clone());
            let (name, replicas) = head.unwrap_or_else(|| (format!("server-{}", index + 1), 1));
            Started { name, replicas, label: None, engine, launch: with_options(engine, launch) }
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
            let replicas = word_of(document, "replicas:").and_then(|word| word.parse().ok()).unwrap_or(1);
            let label = word_of(document, &format!("{LABEL}:"));
            found.push(Started { name, replicas, label, engine, launch });
        }
        start += document.len();
    }
    Ok(found)
}

/// The first container of a document that starts a server.
fn of_manifest(document: &str, begins: &[Begins]) -> Result<Option<(usize, Launch)>, Finding> {
    let entries = yaml::entries(document).map_err(|why| {
        Finding::error(Code::UnreadableScript, Some(why.at()), format!("the file cannot be read: {why}"))
    })?;
    // Words of containers by the keys that lead to them: a command comes before its arguments.
    let mut containers: BTreeMap<&[String], Container> = BTreeMap::new();
    for entry in &entries {
        let Some(at) = entry.path.iter().position(|key| key == "args" || key == "command") else { continue };
        let (words, place) =
            containers.entry(&entry.path[..at]).or_insert_with(|| (Default::default(), entry.at.clone()));
        place.end = entry.at.end;
        words[usize::from(entry.path[at] == "args")].extend(yaml::listed(entry));
    }
    for ([command, args], place) in containers.into_values() {
        let words = [command, args].concat();
        let of_shell = words.iter().position(|word| word == "-c").and_then(|at| words.get(at + 1));
        let text = of_shell.cloned().unwrap_or_else(|| words.iter().map(|word| quoted(word)).collect());
        let found = launch::all_of_script(&text, begins)?.into_iter().next();
        if let Some((engine, mut launch)) = found {
            launch.flags.iter_mut().for_each(|flag| flag.at = place.clone());
            launch.findings.iter_mut().for_each(|finding| finding.at = Some(place.clone()));
            return Ok(Some((engine, launch)));
        }
    }
    Ok(None)
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    format!("'{}' ", word.replace('\'', "'\\''"))
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

/// Documents of a file, whose lengths are those of the file.
fn documents(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" && at > start {
            found.push(&text[start..at]);
            start = at;
        }
        at += line.len();
    }
    found.push(&text[start..]);
    found
}

/// The value of the first line with a key.
fn word_of(document: &str, key: &str) -> Option<String> {
    let found = launch::lines(document).find_map(|line| line.trim_start_matches("- ").strip_prefix(key))?;
    let word = found.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    (!word.is_empty()).then(|| word.to_owned())
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
    if machine.gpu.is_some() || machine.is_named {
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
    out.set("policies", "run", format!("[\"{}\"]", first.server.policy), "the engine's own batching");
    let mut text = out.toml();
    let mut findings = std::mem::take(&mut flags.findings);
    findings.extend(of_workers);
    for worker in &workers {
        let Worker { name, role, replicas, label, server } = worker;
        findings.extend(differences(worker, first));
        let gpu = gpu_of(label.as_deref(), machine).unwrap_or_else(|finding| {
            findings.push(finding);
            None
        });
        let Some(gpu) = gpu else {
            findings.push(crate::no_gpu());
            return Imported { scenario: text, findings };
        };
        let (name, gpu) = (crate::document::quoted(name), crate::document::quoted(&gpu));
        let n = replicas * if server.ep.is_some() { 1 } else { server.dp };
        let _ = write!(text, "\n[[fleet.group]]\nname = {name}\ngpu = {gpu}\ntp = {}\nreplicas = {n}\n", server.tp);
        if let Some(role) = role {
            let _ = writeln!(text, "role = \"{role}\"");
        }
        for (key, value, _) in server.keys.iter().filter(|(key, ..)| OF_GROUPS.contains(key)) {
            let _ = writeln!(text, "{key} = {value}");
        }
        if looks(first) && !looks(worker) {
            let _ = writeln!(text, "{LOOKS} = 1");
        }
    }
    Imported { scenario: text, findings }
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
    let of_engine = |server: &Server| {
        let keys = server.keys.iter().filter(|(key, ..)| !OF_GROUPS.contains(key));
        keys.map(|(key, value, _)| (*key, value.clone())).collect::<Vec<_>>()
    };
    if of_engine(own) != of_engine(other) || own.formats != other.formats || own.drafts != other.drafts {
        let what = format!("options of `{name}` that differ from those of `{of}` are not modelled");
        found.push(Finding::warning(Code::NotModelled, None, what).help(help));
    }
    found
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
            "name = \"server-1\"\ngpu = \"h100-sxm\"\ntp = 2\nreplicas = 1\nrole = \"prefill\"\nmax_sequences = 8",
            "name = \"server-2\"\ngpu = \"h100-sxm\"\ntp = 1\nreplicas = 1\nrole = \"decode\"\nmax_sequences = 64",
        ] {
            assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
        }
        let codes: Vec<Code> = found.findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
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
