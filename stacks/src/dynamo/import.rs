//! A deployment of NVIDIA Dynamo as a scenario: services that run an engine are groups of a fleet, with what their containers start.

use std::ops::Range;

use input::diagnostic::{Code, Finding};

use super::roles;
use crate::connectors;
use crate::environment::{self, Variable};
use crate::flags::{Flag, is_flag, last, named as flag_named};
use crate::launch::Launch;
use crate::plugins;
use crate::variables::{Variables, assigned, filled, take_entry};
use crate::workers::{Replicas, Worker, fleet};
use crate::yaml::{self, Entry};
use crate::{Imported, Machine, sglang, vllm};

/// Reads a deployment.
pub fn import(text: &str, machine: &Machine) -> Imported {
    let entries = match yaml::unfolded(text) {
        Ok(entries) => entries,
        Err(why) => return Imported::refused(why),
    };
    let (mut found, mut findings) = (Vec::new(), Vec::new());
    let shared = variables(&of_all(&entries));
    for (name, own) in services(&entries).into_iter().chain(components(&entries)) {
        found.extend(worker_of((&name, &own), &shared, machine, &mut findings));
    }
    fleet(roles::filled_in(found), findings, machine)
}

/// Keys of a service or a component, those before its own left out.
type Part<'a> = (String, Vec<Key<'a>>);

/// A key of a service, with the keys between it and the service.
#[derive(Clone, Copy)]
struct Key<'a> {
    path: &'a [String],
    entry: &'a Entry,
}

/// Keys of the deployment itself, which hold for all services.
fn of_all(entries: &[Entry]) -> Vec<Key<'_>> {
    let own = entries.iter().filter(|entry| entry.path.len() > 1 && entry.path[0] == "spec");
    own.map(|entry| Key { path: &entry.path[1..], entry }).collect()
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
fn components(entries: &[Entry]) -> Vec<Part<'_>> {
    let inside = |path: &[String]| path.len() > 3 && path[0] == "spec" && path[1] == "components" && path[2] == "-";
    let own = entries.iter().filter(|entry| inside(&entry.path));
    let items = items(own.map(|entry| Key { path: &entry.path[3..], entry }).collect());
    let name = |item: &[Key<'_>]| value(item, "name").map_or_else(String::new, |entry| entry.value.clone());
    items.into_iter().map(|item| (name(&item), item)).collect()
}

/// Keys of a list cut into its items: one begins behind a dash, or where a key stands again.
fn items(keys: Vec<Key<'_>>) -> Vec<Vec<Key<'_>>> {
    let mut items: Vec<Vec<Key<'_>>> = Vec::new();
    for key in keys {
        let is_outer = key.path.len() == 1;
        let again = |item: &Vec<Key<'_>>| item.iter().any(|other| other.path == key.path);
        match items.last_mut() {
            Some(item) if !(is_outer && (key.entry.begins_item || again(item))) => item.push(key),
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
fn container<'a>(own: &[Key<'a>]) -> Vec<Key<'a>> {
    let inside = |way: &'static [&'static str]| {
        let keys =
            own.iter().filter(move |key| key.path.len() > way.len() && key.path.iter().zip(way).all(|(a, b)| a == b));
        keys.map(move |key| Key { path: &key.path[way.len()..], ..*key }).collect::<Vec<_>>()
    };
    let older = inside(&["extraPodSpec", "mainContainer"]);
    if !older.is_empty() {
        return older;
    }
    let mut all = items(inside(&["podTemplate", "spec", "containers", "-"]));
    let main = all.iter().position(|item| value(item, "name").is_some_and(|name| name.value == "main"));
    if all.is_empty() { Vec::new() } else { all.swap_remove(main.unwrap_or(0)) }
}

/// A service that runs an engine, and whether it leaves open which part of a request it does; `None` for frontends, planners and what runs nothing that is known.
fn worker_of(
    (name, own): (&str, &[Key<'_>]),
    shared: &Variables,
    machine: &Machine,
    findings: &mut Vec<Finding>,
) -> Option<(Worker, bool)> {
    let kind = value(own, "componentType").or_else(|| value(own, "type"));
    let kind = kind.map_or("worker", |entry| entry.value.as_str());
    let at = own.first().map(|key| key.entry.at.clone());
    let container = container(own);
    let variables = [shared.clone(), variables(own), variables(&container)].concat();
    let mut launch = launch_of(&container, &variables);
    let module = module(&launch.program).or_else(|| of_image(&container).filter(|_| !launch.flags.is_empty()));
    // Files of 2025 call the frontend the `main` component.
    if kind == "frontend" || module.as_deref() == Some("frontend") {
        findings.extend(routes(own, &launch, &variables));
        return None;
    }
    if !["worker", "main", "prefill", "decode"].contains(&kind) {
        let what = format!("service `{name}` of type `{kind}` is not modelled");
        findings.push(Finding::warning(Code::NotModelled, at, what).help("give `[fleet.scaling]` in the scenario"));
        return None;
    }
    findings.extend(offloads(&launch, &variables));
    launch.environment = environment_of(&variables, at.clone().unwrap_or_default());
    launch.findings.extend(environment::judged(&launch.environment));
    // The model stands behind its flag alone.
    launch.program.clear();
    let (mut server, mut flags) = match module.as_deref() {
        Some("vllm") => vllm::server(launch, machine),
        Some("sglang") => sglang::server(launch, machine),
        other => {
            let runs = other.map_or("nothing that is known".to_owned(), |module| format!("`{MODULE}{module}`"));
            let what = format!("service `{name}` runs {runs}");
            let help = "deployments of `dynamo.vllm` and `dynamo.sglang` are read";
            findings.push(Finding::error(Code::UnsupportedJob, at, what).help(help));
            return None;
        }
    };
    let (role, is_open) =
        roles::said(&mut flags, value(own, "subComponentType").map(|entry| entry.value.as_str()), kind);
    server.nodes = server.nodes.or_else(|| nodes(own));
    let replicas = Replicas::read(value(own, "replicas")).told(findings);
    flags.given.retain(|flag| !is_of_wrapper(&flag.name));
    flags.judge();
    findings.append(&mut flags.findings);
    let label = own.iter().find(|key| key.path.last().is_some_and(|key| plugins::is_label(key)));
    let label = label.map(|key| key.entry.value.clone());
    Some((Worker { name: name.to_owned(), role, replicas, label, server }, is_open))
}

/// The first part of a module's name: parts of it start the same engine (`dynamo.sglang.decode_worker`).
fn module(program: &[String]) -> Option<String> {
    let name = program.iter().find_map(|word| word.strip_prefix(MODULE))?;
    name.split('.').next().map(str::to_owned)
}

/// Nodes of one replica (`multinode`).
fn nodes(own: &[Key<'_>]) -> Option<u64> {
    let count = own.iter().find(|key| key.path == ["multinode", "nodeCount"])?;
    count.entry.value.parse().ok().filter(|n| *n > 1)
}

/// The engine that the image of a container starts where no command stands: `…/vllm-runtime:1.0`.
fn of_image(container: &[Key<'_>]) -> Option<String> {
    let image = &value(container, "image")?.value;
    ["vllm", "sglang"].into_iter().find(|engine| image.contains(&format!("{engine}-runtime"))).map(str::to_owned)
}

/// Variables of a service, which have its place.
fn environment_of(variables: &Variables, at: Range<usize>) -> Vec<Variable> {
    let of = |(name, value): &(String, String)| Variable { name: name.clone(), value: value.clone(), at: at.clone() };
    variables.iter().map(of).collect()
}

/// A router of a frontend that is not the scenario's: `--router-mode`, or `DYN_ROUTER_MODE` of its container.
fn routes(own: &[Key<'_>], launch: &Launch, variables: &Variables) -> Option<Finding> {
    let flag = last(&launch.flags, "router-mode");
    let variable = variables.iter().rev().find(|(name, _)| name == "DYN_ROUTER_MODE");
    let mode = flag.map(Flag::value).or_else(|| variable.map(|(_, value)| value.clone()))?;
    let nearest = match mode.as_str() {
        "round-robin" => return None,
        "random" => "random",
        "kv" => "prefix-aware",
        _ => "least-loaded",
    };
    let at = flag.map(|flag| flag.at.clone()).or_else(|| own.first().map(|key| key.entry.at.clone()));
    let what = format!("the frontend's router `{mode}` is not modelled: replicas have turns");
    let help = format!("`--set fleet.router={nearest}` is the nearest rule");
    Some(Finding::warning(Code::NotModelled, at, what).help(help))
}

/// Keys and values that leave the device: by a connector of Dynamo's wrapper that does more than join roles, or by the room that its block manager is
/// given. A connector in the engine's own words is read with them.
fn offloads(launch: &Launch, variables: &Variables) -> Option<Finding> {
    let is_one = |flag: &&Flag| flag.name == "connector" && connectors::is_offloading(&flag.value());
    let connector = launch.flags.iter().find(is_one);
    let room = variables.iter().find(|(name, _)| name.starts_with("DYN_KVBM_") && name.ends_with("_GB"));
    let named = match (connector, room) {
        (None, None) => return None,
        (Some(flag), None) => format!("`--{} {}`", flag.name, flag.value()),
        (_, Some((name, value))) => format!("`{name} = {value}`"),
    };
    let at = connector.or(launch.flags.first()).map(|flag| flag.at.clone());
    Some(Finding::warning(Code::NotModelled, at, format!("{named} is not modelled")).help(connectors::TIERS))
}

/// Flags of Dynamo's wrappers that engines do not have, and the one by which roles are joined (ai-dynamo/dynamo
/// `components/src/dynamo/common/configuration/groups/runtime_args.py`, `components/src/dynamo/vllm/backend_args.py`).
const WRAPPER: [&str; 20] = [
    "disaggregation-mode",
    "kv-transfer-config",
    "is-prefill-worker",
    "is-decode-worker",
    "connector",
    "kv-events-config",
    "disaggregation-transfer-backend",
    "disaggregation-bootstrap-port",
    "endpoint",
    "endpoint-types",
    "namespace",
    "kv-state-endpoint",
    "discovery-backend",
    "request-plane",
    "response-plane",
    "event-plane",
    "fpm-trace",
    "custom-jinja-template",
    "use-vllm-tokenizer",
    "migration-limit",
];

/// Whether a flag is of the wrapper; those of Dynamo alone begin like its name.
fn is_of_wrapper(name: &str) -> bool {
    WRAPPER.contains(&name) || name.starts_with("dyn-")
}

/// A word of a container, and where it stands.
type Placed = (String, Range<usize>);

/// Words behind a key of a container: of its command, or of its arguments. Keys may stand in any order.
fn words_of(container: &[Key<'_>], key: &str) -> Vec<Placed> {
    let own = container.iter().filter(|one| one.path.first().is_some_and(|first| first == key));
    own.flat_map(|one| yaml::listed(one.entry).into_iter().map(|word| (word, one.entry.at.clone()))).collect()
}

/// Variables of a service or of its container (`env`, `envs`).
fn variables(keys: &[Key<'_>]) -> Variables {
    let mut found = Variables::new();
    for key in keys {
        if let [list, _] | [list, _, _] = key.path
            && ["env", "envs"].contains(&list.as_str())
        {
            take_entry(&mut found, key.entry);
        }
    }
    found
}

/// Command and arguments of a container as a launch. What a shell is given is read as a shell reads it, with the container's variables.
fn launch_of(container: &[Key<'_>], variables: &Variables) -> Launch {
    let (command, args) = (words_of(container, "command"), words_of(container, "args"));
    let all: Vec<Placed> = command.into_iter().chain(args).map(|(word, at)| (filled(&word, variables), at)).collect();
    let behind_shell = all.iter().position(|(word, _)| word == "-c").and_then(|at| all.get(at + 1)).cloned();
    // Files of 2025 hand a shell the words of a command one by one, of which it runs the first: they are read as they are meant.
    let is_cut = all.iter().any(|(word, _)| word.starts_with(MODULE) && !word.contains(' '));
    // Without a command a whole one may stand in one argument.
    let whole = || all.iter().find(|(word, _)| word.contains(' ') && word.contains(MODULE)).cloned();
    let script = behind_shell.filter(|_| !is_cut).or_else(whole);
    let words = script.map_or(all.clone(), |script| of_shell(&script, variables));
    let mut launch = Launch::default();
    // What stands before the module is its interpreter; without one the image starts it, and its options are all that stands there.
    let module = words.iter().position(|(word, _)| word.starts_with(MODULE));
    let first = || words.iter().position(|(word, _)| is_flag(word) && word != "-m");
    let (program, options) = words.split_at(module.map(|at| at + 1).or_else(first).unwrap_or(words.len()));
    launch.program = program.iter().skip(module.unwrap_or(0)).map(|(word, _)| word.clone()).collect();
    for (word, at) in options {
        if is_flag(word) {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let values = value.map(str::to_owned).into_iter().collect();
            launch.flags.push(Flag { name: flag_named(name), values, at: at.clone() });
        } else if let Some(flag) = launch.flags.last_mut() {
            flag.values.push(word.clone());
        }
    }
    launch
}

/// What modules of Dynamo begin with.
const MODULE: &str = "dynamo.";

/// The last command of a shell's script that starts a module of Dynamo, behind those that prepare it; else its last one.
fn of_shell((script, at): &Placed, variables: &Variables) -> Vec<Placed> {
    // The file's reader joins the lines of a plain text, and leaves the marks of lines that go on.
    let script = script.replace("\\ ", " ");
    let commands = crate::shell::commands(&(assigned(variables) + &script)).unwrap_or_default();
    let texts = commands.iter().map(|words| words.iter().map(crate::shell::Word::text).collect::<Vec<_>>());
    let mut all: Vec<Vec<String>> = texts.collect();
    let starts = all.iter().rposition(|words| words.iter().any(|word| word.starts_with(MODULE)));
    let words = starts.map(|index| all.swap_remove(index)).or_else(|| all.pop()).unwrap_or_default();
    words.into_iter().map(|word| (word, at.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{codes, on, said};

    #[test]
    fn a_published_example_is_read() {
        let text = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Frontend:\n      componentType: frontend\n      replicas: 1\n    \
                    Planner:\n      componentType: planner\n    VllmDecodeWorker:\n      componentType: worker\n      replicas: 2\n      extraPodSpec:\n        mainContainer:\n          \
                    command:\n          - python3\n          - -m\n          - dynamo.vllm\n          args:\n            - --model\n            - meta-llama/Meta-Llama-3-8B\n            \
                    - --is-decode-worker\n    Other:\n      componentType: worker\n      extraPodSpec:\n        mainContainer:\n          args:\n          - x\n";
        let found = import(text, &on("h100-sxm"));
        assert!(found.scenario.contains("tp = 1\nreplicas = 2\nrole = \"decode\""), "{}", found.scenario);
        let words = said(&found);
        assert!(words.contains(&"service `Planner` of type `planner` is not modelled"), "{words:?}");
        assert!(words.contains(&"service `Other` runs nothing that is known"), "{words:?}");
    }

    /// The form of the package's templates: keys in alphabetical order, a container beside the main one.
    #[test]
    fn a_template_of_the_newer_form_is_read() {
        let text = "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nspec:\n  components:\n  - name: Frontend\n    podTemplate:\n      spec:\n        \
                    containers:\n        - args:\n          - -m\n          - dynamo.frontend\n          command:\n          - python3\n          name: main\n    replicas: 1\n    \
                    type: frontend\n  - name: decode\n    podTemplate:\n      spec:\n        containers:\n        - args:\n          - --other\n          name: sidecar\n        - args:\n          \
                    - --model\n          - meta-llama/Meta-Llama-3-8B\n          - --tensor-parallel-size\n          - \"2\"\n          command: [\"python3\", \"-m\", \"dynamo.vllm\"]\n          \
                    name: main\n    replicas: 3\n    type: decode\n";
        let found = import(text, &on("h100-sxm"));
        assert!(
            found.scenario.contains("name = \"decode\"\ntp = 2\nreplicas = 3\nrole = \"decode\""),
            "{}",
            found.scenario
        );
        let codes = codes(&found);
        assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
    }

    /// A worker with a command, arguments and variables, behind a frontend with arguments.
    fn deployed(frontend: &str, container: &str) -> Imported {
        let text = format!(
            "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Frontend:\n      componentType: frontend\n      \
             extraPodSpec:\n        mainContainer:\n          command: [python3, -m, dynamo.frontend]\n          args: [{frontend}]\n    \
             Worker:\n      componentType: worker\n      extraPodSpec:\n        mainContainer:\n{container}"
        );
        import(&text, &on("h100-sxm"))
    }

    #[test]
    fn a_shell_of_a_container_is_read_with_its_variables() {
        let env = "          env:\n          - name: MODEL_PATH\n            value: \"/models/llama-3-8b\"\n";
        let args =
            "          args:\n          - \"python3 -m dynamo.vllm --model $MODEL_PATH --tensor-parallel-size 2\"\n";
        let shell = "          command:\n          - /bin/sh\n          - -c\n";
        let direct = "          command: [python3, -m, dynamo.vllm]\n          args: [--model, $(MODEL_PATH), --tensor-parallel-size, \"2\"]\n";
        let exec = shell.to_owned() + &args.replace("python3", "cd /workspace && exec python3");
        for container in [
            format!("{env}{args}{shell}"),
            format!("{shell}{args}{env}"),
            format!("{exec}{env}"),
            format!("{direct}{env}"),
            format!("{direct}          env:\n          - {{name: MODEL_PATH, value: \"/models/llama-3-8b\"}}\n"),
        ] {
            let found = deployed("", &container);
            assert!(found.scenario.contains("llama-3-8b") && found.scenario.contains("tp = 2"), "{}", found.scenario);
            let codes = codes(&found);
            assert_eq!(codes, [Code::MissingFlag], "{container}: {:?}", found.findings);
        }
        let block = "          args:\n          - |\n            exec python3 -m dynamo.vllm \\\n              --model /a/models--meta-llama--Llama-3.1-8B/snapshots/x \\\n              -tp 2\n";
        let found = deployed("", &format!("{shell}{block}"));
        assert!(found.scenario.contains("llama-3.1-8b") && found.scenario.contains("tp = 2"), "{}", found.scenario);
        let served =
            block.replace("/a/models--meta-llama--Llama-3.1-8B/snapshots/x", "/m/own --served-model-name llama-3-8b");
        let found = deployed("", &format!("{shell}{served}"));
        assert!(found.scenario.contains("name = \"llama-3-8b\""), "{}", found.scenario);
    }

    #[test]
    fn arguments_without_a_command_are_read() {
        let machine = on("h100-sxm");
        let image = "          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.0\n";
        for args in [
            "          args:\n          - --model\n          - llama-3-8b\n          - --tensor-parallel-size\n          - \"2\"\n",
            "          args:\n          - \"python3 -m dynamo.vllm --model llama-3-8b --tensor-parallel-size 2\"\n",
            "          args: [-m, dynamo.vllm, --model, llama-3-8b, --tensor-parallel-size, \"2\"]\n",
        ] {
            let text = format!(
                "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n    Frontend:\n      componentType: frontend\n      \
                 extraPodSpec:\n        mainContainer:\n          args: [--router-mode, kv]\n    Worker:\n      componentType: worker\n      \
                 extraPodSpec:\n        mainContainer:\n{image}{args}"
            );
            let found = import(&text, &machine);
            assert!(found.scenario.contains("llama-3-8b") && found.scenario.contains("tp = 2"), "{args}: {found:?}");
            assert!(found.findings.iter().any(|one| one.what.contains("router `kv`")), "{:?}", found.findings);
        }
    }

    #[test]
    fn routers_and_memory_on_the_host_are_not_dropped_in_silence() {
        let worker = "          command: [python3, -m, dynamo.vllm]\n          args:\n          - --model\n          - llama-3-8b\n";
        let connector = |name: &str| {
            format!(
                "{worker}          - --kv-transfer-config\n          - '{{\"kv_connector\":\"{name}\",\"kv_role\":\"kv_both\"}}'\n"
            )
        };
        let room =
            format!("{worker}          env:\n          - name: DYN_KVBM_CPU_CACHE_GB\n            value: \"100\"\n");
        for (frontend, container, words) in [
            ("--router-mode, kv", worker.to_owned(), Some("router `kv`")),
            ("--router-mode, round-robin", connector("NixlConnector"), None),
            ("", connector("DynamoConnector"), Some("DynamoConnector")),
            ("", room, Some("`DYN_KVBM_CPU_CACHE_GB = 100`")),
        ] {
            let found = deployed(frontend, &container).findings;
            let warned: Vec<&Finding> = found.iter().filter(|one| one.code == Code::NotModelled).collect();
            assert_eq!(warned.len(), usize::from(words.is_some()), "{found:?}");
            assert!(words.is_none_or(|words| warned[0].what.contains(words)), "{found:?}");
        }
    }

    /// A service of `v1alpha1` with a container of vLLM.
    fn service(name: &str, keys: &str, option: &str) -> String {
        format!(
            "    {name}:\n      componentType: worker\n{keys}      extraPodSpec:\n        mainContainer:\n          command: [python3, -m, dynamo.vllm]\n          \
             args: [--model, llama-3-8b{option}]\n"
        )
    }

    fn of_services(services: &[String]) -> Imported {
        let head = "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nspec:\n  services:\n";
        import(&(head.to_owned() + &services.concat()), &on("h100-sxm"))
    }

    /// Files of 2025 say the part of a request by an option of one worker, by `subComponentType`, or by the names of services alone.
    #[test]
    fn parts_of_a_request_follow_from_the_other_services() {
        let roles = |found: &Imported| {
            let lines = found.scenario.lines().filter_map(|line| line.strip_prefix("role = "));
            lines.map(|word| word.trim_matches('"').to_owned()).collect::<Vec<_>>()
        };
        for (one, other, expected) in [
            (service("A", "", ""), service("B", "", ", --is-prefill-worker"), &["decode", "prefill"][..]),
            (service("A", "", ", --is-decode-worker"), service("B", "", ""), &["decode", "prefill"]),
            (service("A", "      subComponentType: decode\n", ""), service("B", "", ""), &["decode", "prefill"]),
            (service("VllmDecodeWorker", "", ""), service("VllmPrefillWorker", "", ""), &["decode", "prefill"]),
            (service("A", "", ""), service("B", "", ""), &[]),
            // One that says that it does both keeps to it.
            (service("A", "", ", --disaggregation-mode, agg"), service("B", "", ", --is-prefill-worker"), &["prefill"]),
            // One service of both parts, whatever its name is.
            (service("VllmDecodeWorker", "", ""), String::new(), &[]),
        ] {
            let found = of_services(&[one, other]);
            assert_eq!(roles(&found), expected, "{}", found.scenario);
        }
    }

    #[test]
    fn a_replica_over_several_nodes_has_a_part_of_its_gpus_on_each() {
        let keys = "      multinode:\n        nodeCount: 2\n";
        let found = of_services(&[service("A", keys, ", --tensor-parallel-size, \"8\"")]);
        assert!(
            found.scenario.contains("nodes = 2") && found.scenario.contains("gpus_per_node = 4"),
            "{}",
            found.scenario
        );
    }

    /// `components/backends/*/deploy/disagg.yaml` of July and August 2025: the frontend is the `main` component, and modules of an engine have parts.
    #[test]
    fn frontends_and_modules_of_older_files_are_known() {
        let frontend = |script: &str| {
            format!(
                "    Frontend:\n      componentType: main\n      extraPodSpec:\n        mainContainer:\n          command: [sh, -c]\n          args: [\"{script}\"]\n"
            )
        };
        let worker = |module: &str, mode: &str| {
            format!(
                "    {mode}:\n      componentType: worker\n      extraPodSpec:\n        mainContainer:\n          command: [/bin/sh, -c]\n          \
                 args: [python3, -m, dynamo.sglang{module}, --model-path, llama-3-8b, --disaggregation-mode, {mode}, --migration-limit=3]\n"
            )
        };
        for script in [
            "python3 -m dynamo.frontend --http-port 8000",
            "python3 -m dynamo.sglang.utils.clear_namespace --namespace x && python3 -m dynamo.frontend",
        ] {
            let found =
                of_services(&[frontend(script), worker(".decode_worker", "decode"), worker(".worker", "prefill")]);
            assert!(found.scenario.contains("role = \"decode\"") && found.scenario.contains("role = \"prefill\""));
            let codes = codes(&found);
            assert_eq!(codes, [Code::MissingFlag], "{script}: {:?}", found.findings);
        }
        let trtllm = service("A", "", "").replace("dynamo.vllm", "dynamo.trtllm");
        assert!(said(&of_services(&[trtllm])).contains(&"service `A` runs `dynamo.trtllm`"));
    }
}
