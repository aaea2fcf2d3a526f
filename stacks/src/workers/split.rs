//! Servers of TensorRT-LLM whose file says what each does of a request: `trtllm-serve disaggregated -c FILE`.

use input::diagnostic::{Code, Finding};

use super::one::{Policy, Started};
use super::started;
use super::{Replicas, TRTLLM};
use crate::Machine;
use crate::flags::{Flag, last};
use crate::launch::Launch;
use crate::trtllm;
use crate::trtllm::disaggregated::{Servers, Split};

/// What the file says beside its servers.
#[derive(Default)]
pub(super) struct Beside {
    /// Warnings and errors.
    pub(super) findings: Vec<Finding>,
    /// What chooses a server for a prompt, and one for an answer.
    pub(super) policies: Vec<Policy>,
    /// Whether its one engine runs in a benchmark's own command.
    pub(super) is_offline: bool,
}

/// Servers of the file alone.
pub(super) fn of(split: Split) -> (Vec<Started>, Beside) {
    let mut beside = Beside { policies: policies(&split), findings: split.findings, ..Beside::default() };
    let mut found = Vec::new();
    for servers in split.servers {
        let name = name(servers.role);
        beside.findings.extend(without_degrees(&servers, name));
        let launch = Launch { program: vec!["trtllm-serve".to_owned()], flags: servers.flags, ..Launch::default() };
        let one = Started::plain(name.to_owned(), Replicas::of(servers.n), TRTLLM, launch);
        found.push(Started { role: Some(servers.role), ..one });
    }
    (found, beside)
}

fn name(role: &str) -> &'static str {
    if role == "prefill" { "context" } else { "generation" }
}

fn policies(split: &Split) -> Vec<Policy> {
    let own = split.servers.iter().filter_map(|servers| servers.router.clone());
    own.map(|(word, at)| Policy { word, at: Some(at) }).collect()
}

/// A warning where servers that are started elsewhere have degrees of their own.
fn without_degrees(servers: &Servers, name: &str) -> Option<Finding> {
    let has_degree = servers.flags.iter().any(|flag| flag.name.ends_with("-parallel-size"));
    let is_elsewhere = !has_degree && !servers.ports.is_empty();
    is_elsewhere.then(|| {
        let what = format!("the file does not say over how many GPUs a {name} server lies: one is taken");
        let help = "give the script that starts these servers, `tensor_parallel_size` in their section, or `tp` in each `[[fleet.group]]`";
        Finding::warning(Code::MissingFlag, None, what).help(help)
    })
}

/// Says of the servers of a script what they do, by the file that it gives the server in front. Without commands of their own they are those of the file.
pub(super) fn joined(found: &mut Vec<Started>, text: &str, machine: &Machine) -> Result<Beside, Finding> {
    let fronts = started::of(text, &[trtllm::begins_front], machine)?;
    let Some(front) = fronts.into_iter().next() else { return Ok(Beside::default()) };
    let Some(split) = trtllm::split(&front.launch, text, machine) else {
        if found.is_empty() {
            return Err(missing(&front.launch));
        }
        return Ok(Beside::default());
    };
    let split = split?;
    let mut own: Vec<&mut Started> = found.iter_mut().filter(|one| one.engine == TRTLLM).collect();
    if own.is_empty() {
        let (started, beside) = of(split);
        found.extend(started);
        return Ok(beside);
    }
    for servers in &split.servers {
        let is_one = |one: &&mut &mut Started| port(&one.launch).is_some_and(|port| servers.ports.contains(&port));
        let mut of_role: Vec<&mut &mut Started> = own.iter_mut().filter(is_one).collect();
        of_role.iter_mut().for_each(|one| one.role = Some(servers.role));
        // Of a loop one command stands for all.
        if let [only] = &mut of_role[..] {
            only.replicas = Replicas::of(servers.n);
        }
    }
    Ok(Beside { policies: policies(&split), findings: split.findings, ..Beside::default() })
}

fn port(launch: &Launch) -> Option<String> {
    last(&launch.flags, "port").map(Flag::value)
}

fn missing(front: &Launch) -> Finding {
    let flag = front.flags.first();
    let name = flag.map(crate::flags::Flag::value).filter(|name| !name.is_empty());
    let what = match name {
        Some(name) => format!("the servers of `trtllm-serve disaggregated` stand in `{name}`, which is not there"),
        None => "`trtllm-serve disaggregated` names no file of its servers".to_owned(),
    };
    let help = "put the file beside the script, or give the file itself";
    Finding::error(Code::MissingFlag, flag.map(|flag| flag.at.clone()), what).help(help)
}

#[cfg(test)]
mod tests {
    use input::diagnostic::{Code, Severity};

    use crate::example::{codes, has_parts, import_text, on};
    use crate::{Imported, Machine};

    fn found(text: &str, files: &[(&str, &str)]) -> Imported {
        let named = crate::named_beside(text);
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let files = files.filter(|(name, _)| named.contains(name)).collect();
        import_text(text, &Machine { files, ..on("h200-sxm") })
    }

    /// The form of the package's example (examples/disaggregated/disagg_config.yaml).
    const FILE: &str = "hostname: localhost\nport: 8000\nmodel: Qwen/Qwen3-32B\nbackend: \"pytorch\"\ndisable_overlap_scheduler: True\ncontext_servers:\n  \
                        num_instances: 2\n  tensor_parallel_size: 2\n  pipeline_parallel_size: 1\n  max_batch_size: 4\n  kv_cache_config:\n    \
                        enable_block_reuse: False\n  cache_transceiver_config:\n    backend: DEFAULT\n  urls:\n      - \"localhost:8001\"\n      - \"localhost:8002\"\n\
                        generation_servers:\n  num_instances: 1\n  tensor_parallel_size: 4\n  pipeline_parallel_size: 1\n  kv_cache_config:\n    \
                        enable_block_reuse: False\n  cache_transceiver_config:\n    backend: DEFAULT\n  router:\n    type: load_balancing\n  urls:\n      - \"localhost:8003\"\n";
    const GROUPS: [&str; 3] = [
        "name = \"context\"\ntp = 2\nreplicas = 2\nrole = \"prefill\"\nmax_sequences = 4",
        "name = \"generation\"\ntp = 4\nreplicas = 1\nrole = \"decode\"",
        "name = \"qwen3-32b\"",
    ];

    #[test]
    fn both_sections_are_groups_with_their_roles() {
        let found_one = found(FILE, &[]);
        for part in GROUPS.into_iter().chain(["router = \"least-loaded\"", "prefix_cache = false", "loop = \"serial\""])
        {
            assert!(found_one.scenario.contains(part), "{part} in {}", found_one.scenario);
        }
        assert_eq!(codes(&found_one), [Code::MissingFlag], "{:?}", found_one.findings);
        // Without a model in the file, the command line is asked for it.
        let without = found(&FILE.replace("model: Qwen/Qwen3-32B\n", ""), &[]);
        let asked = without.findings.iter().find(|one| one.severity == Severity::Error).expect("a model is needed");
        assert!(asked.help.as_ref().is_some_and(|help| help.contains("model.name")), "{asked:?}");
    }

    #[test]
    fn the_command_of_the_server_in_front_is_read_with_its_file() {
        let front = "trtllm-serve disaggregated -c disagg.yaml\n";
        let written = format!("cat >disagg.yaml <<'END'\n{FILE}END\n{front}");
        for (text, files) in [(front, vec![("disagg.yaml", FILE)]), (written.as_str(), vec![])] {
            let found = found(text, &files);
            has_parts(&found, &GROUPS);
            assert_eq!(codes(&found), [Code::MissingFlag], "{:?}", found.findings);
        }
        let alone = found(front, &[]);
        let what = &alone.findings[0].what;
        assert!(alone.scenario.is_empty() && what.contains("`disagg.yaml`"), "{what}");
    }

    /// Commands of the documentation: which server does what stands in the file of the server in front, and options in files beside.
    #[test]
    fn workers_have_the_roles_of_their_addresses() {
        let one = |port: u32, options: &str| {
            format!(
                "trtllm-serve Qwen/Qwen3-32B --host localhost --port {port} --extra_llm_api_options ./{options} &\n"
            )
        };
        let text = one(8001, "ctx.yaml")
            + &one(8002, "ctx.yaml")
            + &one(8003, "gen.yaml")
            + "trtllm-serve disaggregated -c disagg.yaml\n";
        let disagg = "hostname: localhost\nport: 8000\ncontext_servers:\n  num_instances: 2\n  urls:\n    - \"localhost:8001\"\n    - \"localhost:8002\"\n\
                      generation_servers:\n  num_instances: 1\n  urls:\n    - \"localhost:8003\"\n";
        let ctx = "tensor_parallel_size: 2\ncache_transceiver_config:\n  backend: UCX\n";
        let gen_options = "tensor_parallel_size: 4\ncache_transceiver_config:\n  backend: UCX\n";
        let files = [("disagg.yaml", disagg), ("ctx.yaml", ctx), ("gen.yaml", gen_options)];
        let both = found(&text, &files);
        has_parts(
            &both,
            &[
                "name = \"server-2\"\ntp = 2\nreplicas = 1\nrole = \"prefill\"",
                "name = \"server-3\"\ntp = 4\nreplicas = 1\nrole = \"decode\"",
            ],
        );
        assert_eq!(codes(&both), [Code::MissingFlag], "{:?}", both.findings);
        // The file alone says how many there are, and not over how many GPUs each lies.
        let alone = found(&format!("model: Qwen/Qwen3-32B\n{disagg}"), &[]);
        let told = alone.findings.iter().filter(|one| one.what.contains("over how many GPUs")).count();
        assert_eq!(told, 2, "{:?}", alone.findings);
    }

    #[test]
    fn what_contradicts_itself_is_refused_where_it_stands() {
        for (from, to, words) in [
            ("num_instances: 2", "num_instances: 3", "3 servers and 2 `urls`"),
            ("num_instances: 2", "num_instances: none", "is no number of servers"),
            ("port: 8000\n", "port: 8000\ntensor_parallel_size: 8\n", "stands outside of it as `8`"),
        ] {
            let text = FILE.replacen(from, to, 1);
            let told: Vec<String> = found(&text, &[])
                .findings
                .into_iter()
                .filter(|one| one.severity == Severity::Error)
                .map(|one| one.what)
                .collect();
            assert!(told.iter().any(|what| what.contains(words)), "{words}: {told:?}");
        }
    }
}
