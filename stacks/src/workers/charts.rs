//! Values of vLLM's production stack, and configurations of Ray Serve: models with keys that stand for options of vLLM.
//!
//! Source: vllm-project/production-stack `helm/values.yaml` and `helm/templates/deployment-vllm-multi.yaml`; ray-project/ray
//! `python/ray/llm/_internal/serve/core/configs/llm_config.py` (`engine_kwargs` are vLLM's own).

use input::diagnostic::{Code, Finding};

use super::Replicas;
use super::containers::{Container, items_of};
use super::one::{Policy, Started};
use crate::launch::Begins;
use crate::yaml::{self, Entry};

/// Whether a file is one of both.
pub(super) fn is_one(text: &str) -> bool {
    is_of_stack(text) || is_of_ray(text)
}

fn is_of_stack(text: &str) -> bool {
    let has = |key: &str| text.lines().any(|line| line.trim() == key);
    has("servingEngineSpec:") && has("modelSpec:")
}

fn is_of_ray(text: &str) -> bool {
    text.lines().any(|line| line.trim_start_matches(['-', ' ']).trim_end() == "llm_configs:")
        && text.contains("model_loading_config:")
}

/// Servers of all models.
pub(super) fn started(text: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let entries = yaml::entries(text)?;
    let (list, read): (_, fn(&[Entry]) -> Model) =
        if is_of_stack(text) { ("modelSpec", of_stack) } else { ("llm_configs", of_ray) };
    let mut found = Vec::new();
    for item in items_of(&entries, text, list) {
        let Model { name, container, replicas, findings } = read(&item);
        let Some((engine, launch)) = container.server(begins)? else { continue };
        let mut launch = launch.moved_to(&item[0].at);
        launch.findings.extend(findings);
        found.push(Started::plain(name, replicas, engine, launch));
    }
    Ok(found)
}

/// The policy of the stack's router.
pub(super) fn policies(text: &str) -> Vec<Policy> {
    let entries = if is_of_stack(text) { yaml::entries(text).unwrap_or_default() } else { Vec::new() };
    let logic = entries.iter().filter(|entry| entry.path == ["routerSpec", "routingLogic"]);
    logic.map(|entry| Policy { word: entry.value.clone(), at: Some(entry.at.clone()) }).collect()
}

/// A model of a file.
struct Model {
    name: String,
    container: Container,
    replicas: Replicas,
    findings: Vec<Finding>,
}

/// The value of the first key of such a name.
fn value<'e>(item: &'e [Entry], key: &str) -> Option<&'e Entry> {
    item.iter().find(|entry| entry.key() == key && !entry.value.is_empty())
}

fn text_of(item: &[Entry], key: &str) -> String {
    value(item, key).map(|entry| entry.value.clone()).unwrap_or_default()
}

/// Keys inside of a key, with the names of options.
fn options(item: &[Entry], section: &str) -> Vec<String> {
    let inside = item.iter().filter(|entry| {
        let at = entry.path.iter().position(|key| key == section);
        at.is_some_and(|at| entry.path.len() == at + 2) && !entry.value.is_empty()
    });
    let mut words = Vec::new();
    for entry in inside {
        let name = dashed(entry.key());
        match entry.value.as_str() {
            "true" | "True" => words.push(format!("--{name}")),
            // What is usual is said by leaving it out, but for caches of prefixes.
            "false" | "False" if name == "enable-prefix-caching" => words.push(format!("--no-{name}")),
            "false" | "False" | "null" => {}
            text => words.extend([format!("--{name}"), text.to_owned()]),
        }
    }
    words
}

/// `maxModelLen` and `max_model_len` as `max-model-len`.
fn dashed(key: &str) -> String {
    let mut name = String::new();
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(if letter == '_' { '-' } else { letter.to_ascii_lowercase() });
    }
    name
}

fn of_stack(item: &[Entry]) -> Model {
    let mut container = Container {
        image: format!("{}:{}", text_of(item, "repository"), text_of(item, "tag")),
        ..Container::default()
    };
    container.command = vec!["vllm".to_owned(), "serve".to_owned(), text_of(item, "modelURL")];
    let own = options(item, "vllmConfig");
    let is_other = |word: &String| !["--extra-args", "--v0", "--v1"].contains(&word.as_str());
    let mut given = own.into_iter().peekable();
    while let Some(word) = given.next() {
        if is_other(&word) {
            container.args.push(word);
        } else {
            let _ = given.next_if(|next| !next.starts_with("--"));
        }
    }
    let extra = item.iter().filter(|entry| entry.path.iter().any(|key| key == "extraArgs"));
    container.args.extend(extra.flat_map(yaml::listed));
    let of_cache: Vec<Entry> =
        item.iter().filter(|entry| entry.path.iter().any(|key| key == "lmcacheConfig")).cloned().collect();
    if value(&of_cache, "enabled").is_some_and(|entry| entry.value == "true") {
        let config = r#"{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}"#;
        container.args.extend(["--kv-transfer-config".to_owned(), config.to_owned()]);
        let size = text_of(&of_cache, "cpuOffloadingBufferSize");
        container.variables.push(("LMCACHE_MAX_LOCAL_CPU_SIZE".to_owned(), size));
    }
    let own_name = item.iter().find(|entry| entry.key() == "name").map(|entry| entry.value.clone()).unwrap_or_default();
    Model { name: own_name, container, replicas: Replicas::read(value(item, "replicaCount")), findings: Vec::new() }
}

fn of_ray(item: &[Entry]) -> Model {
    let id = text_of(item, "model_id");
    let source = value(item, "model_source").map_or_else(|| id.clone(), |entry| entry.value.clone());
    let mut container =
        Container { command: vec!["vllm".to_owned(), "serve".to_owned(), source], ..Container::default() };
    container.args = options(item, "engine_kwargs");
    if !id.is_empty() {
        container.args.extend(["--served-model-name".to_owned(), id.clone()]);
    }
    let (least, most) = (value(item, "min_replicas"), value(item, "max_replicas"));
    let mut findings = Vec::new();
    if let Some(most) = most.filter(|most| least.is_none_or(|least| least.value != most.value)) {
        let what = format!("replicas go up to {}, and stay the fewest here", most.value);
        let help = "give the group `scaling = { rule = \"concurrency\", target = …, min = …, start_up_s = … }` (`target` is `target_ongoing_requests`) and the most as its `replicas`";
        findings.push(Finding::warning(Code::NotModelled, Some(most.at.clone()), what).help(help));
    }
    if let Some(limit) = value(item, "max_ongoing_requests") {
        let what = format!("`max_ongoing_requests: {}` is not modelled", limit.value);
        let help = "requests wait at the replica that has them";
        findings.push(Finding::warning(Code::NotModelled, Some(limit.at.clone()), what).help(help));
    }
    let n =
        value(item, "num_replicas").filter(|entry| entry.value != "auto").or(least.filter(|least| least.value != "0"));
    Model { name: id, container, replicas: Replicas::read(n), findings }
}
