//! What stands in front of servers and chooses one for each request: routers of SGLang, of vLLM and of its production stack, and TensorRT-LLM's.
//!
//! Source: sgl-project/sglang `sgl-router/py_src/sglang_router/router_args.py` @ e46dcd87adca (without a word it is `cache_aware`), vllm-project/production-stack
//! `src/vllm_router/parsers/parser.py`, NVIDIA/TensorRT-LLM `tensorrt_llm/serve/router.py`.

use input::diagnostic::{Code, Finding};

use super::one::Policy;
use super::{charts, started};
use crate::Machine;
use crate::flags::Flag;
use crate::launch::Launch;

/// The rule of a scenario, and what is said of it.
#[derive(Default)]
pub(super) struct Routing {
    /// A router of scenarios, with the word that gave it.
    pub(super) router: Option<(&'static str, String)>,
    /// What is taken otherwise.
    pub(super) findings: Vec<Finding>,
}

/// Names of programs and images of routers; modules may have a part behind a point.
const PROGRAMS: [&str; 8] = [
    "sglang_router",
    "sglang-router",
    "vllm_router",
    "vllm-router",
    "smg",
    "lmstack-router",
    "sgl-model-gateway",
    "sgl-router",
];

/// Which word of a command begins a router.
fn begins(words: &[String]) -> Option<usize> {
    words.iter().position(|word| {
        let last = word.rsplit('/').next().unwrap_or_default();
        last.split([':', '.', '@']).next().is_some_and(|name| PROGRAMS.contains(&name))
    })
}

/// Options that name a policy. Those of one role count where no other does.
const OPTIONS: [&str; 5] = ["policy", "router-policy", "routing-logic", "prefill-policy", "decode-policy"];

/// Policies and the routers of a scenario that do the same.
const SAME: [(&str, &str); 7] = [
    ("round_robin", "round-robin"),
    ("roundrobin", "round-robin"),
    ("random", "random"),
    ("power_of_two", "power-of-two"),
    ("load_balancing", "least-loaded"),
    ("least_loaded", "least-loaded"),
    ("least_load", "least-loaded"),
];
/// Policies that send a request where its prefix was sent, by what a router remembers of texts or hears from engines.
const OF_PREFIXES: [&str; 7] =
    ["cache_aware", "cache_aware_zmq", "prefixaware", "kvaware", "kv_cache_aware", "prefix_hash", "prefix_aware"];

/// Policies of the routers that a file starts.
pub(super) fn policies(text: &str, machine: &Machine) -> Vec<Policy> {
    let routers = started::of(text, &[begins], machine).unwrap_or_default();
    let of_routers = routers.first().map(|one| of_launch(&one.launch)).unwrap_or_default();
    if of_routers.is_empty() { charts::policies(text) } else { of_routers }
}

fn of_launch(launch: &Launch) -> Vec<Policy> {
    let of = |flag: &Flag| Policy { word: flag.value(), at: Some(flag.at.clone()) };
    let (own, of_roles) = OPTIONS.split_at(3);
    let among = |names: &[&str]| -> Vec<Policy> {
        launch.flags.iter().filter(|flag| names.contains(&flag.name.as_str())).map(of).collect()
    };
    let found = Some(among(of_roles)).filter(|found| !found.is_empty()).unwrap_or_else(|| among(own));
    if !found.is_empty() {
        return found;
    }
    // Production stack's takes turns, the others look for prefixes.
    let is_of_stack =
        launch.flags.iter().any(|flag| ["static-backends", "service-discovery"].contains(&flag.name.as_str()));
    let word = if is_of_stack { "roundrobin" } else { "cache_aware" };
    let at = launch.flags.first().map(|flag| flag.at.clone());
    vec![Policy { word: word.to_owned(), at }]
}

/// The router of a scenario for such policies: the first one's, and what is said where others differ.
pub(super) fn routing(policies: &[Policy]) -> Routing {
    let Some(first) = policies.first() else { return Routing::default() };
    let mut routing = of_policy(first);
    let others = policies.iter().skip(1).filter(|other| other.word != first.word);
    routing.findings.extend(others.map(|other| {
        let what = format!("the router's `{}` beside `{}` is not modelled", other.word, first.word);
        Finding::warning(Code::NotModelled, other.at.clone(), what)
            .help("both roles are chosen by one rule (`fleet.router`)")
    }));
    routing
}

fn of_policy(policy: &Policy) -> Routing {
    let Policy { word, at } = policy;
    let known = word.replace('-', "_");
    if let Some((_, router)) = SAME.iter().find(|(name, _)| *name == known) {
        return Routing { router: Some((router, word.clone())), findings: Vec::new() };
    }
    if OF_PREFIXES.contains(&known.as_str()) {
        let what = format!("the router's `{word}` is not modelled as it is: `prefix-aware` is taken");
        let help = "that rule sees what replicas hold; the router guesses it from what it sent, or hears of it later";
        let finding = Finding::warning(Code::NotModelled, at.clone(), what).help(help);
        return Routing { router: Some(("prefix-aware", word.clone())), findings: vec![finding] };
    }
    let what = format!("the router's `{word}` is not modelled: replicas have turns");
    let help = "`--set fleet.router=…` gives another rule; `skrull-sim list routers` shows all";
    Routing { router: None, findings: vec![Finding::warning(Code::NotModelled, at.clone(), what).help(help)] }
}

#[cfg(test)]
mod tests {
    use crate::Imported;
    use crate::example::{import_text, on};

    fn found(text: &str) -> Imported {
        import_text(text, &on("h100-sxm"))
    }

    #[test]
    fn a_router_in_front_of_servers_is_the_fleets() {
        let server = |port: u32| format!("python3 -m sglang.launch_server --model-path llama-3-8b --port {port} &\n");
        for (policy, router, is_told) in [
            ("--policy random", "router = \"random\"", false),
            ("--policy round_robin", "router = \"round-robin\"", false),
            ("--policy power_of_two", "router = \"power-of-two\"", false),
            ("--policy cache_aware", "router = \"prefix-aware\"", true),
            ("", "router = \"prefix-aware\"", true),
            ("--policy manual", "", true),
        ] {
            let text = format!(
                "{}{}python3 -m sglang_router.launch_router --worker-urls http://a:1 http://b:2 {policy}\n",
                server(1),
                server(2)
            );
            let found = found(&text);
            assert!(found.scenario.contains(router), "{policy}: {}", found.scenario);
            let told = found.findings.iter().filter(|one| one.what.starts_with("the router's")).count();
            assert_eq!(told, usize::from(is_told), "{policy}: {:?}", found.findings);
        }
    }

    #[test]
    fn a_router_that_starts_its_servers_is_read_with_them() {
        let found = found(
            "python3 -m sglang_router.launch_server --model-path llama-3-8b --dp-size 4 --router-policy power_of_two\n",
        );
        assert!(
            found.scenario.contains("router = \"power-of-two\"") && found.scenario.contains("gpus_per_node = 4"),
            "{found:?}"
        );
        assert!(found.findings.iter().all(|one| !one.what.contains("router")), "{:?}", found.findings);
    }
}
