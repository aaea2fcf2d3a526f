//! Values of vLLM's production stack, and configurations of Ray Serve: models with keys that stand for options of vLLM.
//!
//! Source: vllm-project/production-stack `helm/templates/deployment-vllm-multi.yaml` @ 010004eea56f; ray-project/ray
//! `python/ray/llm/_internal/serve/core/configs/llm_config.py` (`engine_kwargs` are vLLM's own).

use input::diagnostic::{Code, Finding};

use super::Replicas;
use super::containers::{Container, items_of};
use super::one::{Policy, Started};
use crate::launch::{self, Begins};
use crate::variables::take_entry;
use crate::yaml::{self, Entry};

/// Whether a file is one of both.
pub(super) fn is_one(text: &str) -> bool {
    is_of_stack(text) || is_of_ray(text)
}

fn is_of_stack(text: &str) -> bool {
    launch::has_any(text, &["servingEngineSpec:"]) && launch::has_any(text, &["modelSpec:"])
}

fn is_of_ray(text: &str) -> bool {
    launch::has_any(text, &["llm_configs:"]) && launch::has_any(text, &["model_loading_config:"])
}

/// Servers of all models.
pub(super) fn started(text: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let entries = yaml::unfolded(text)?;
    // A service of KubeRay holds the configuration as a text.
    if let Some(entry) = entries.iter().find(|entry| entry.key() == "serveConfigV2") {
        let mut found = if is_of_ray(&entry.value) { started(&entry.value, begins)? } else { Vec::new() };
        found.iter_mut().for_each(|one| one.launch = std::mem::take(&mut one.launch).moved_to(&entry.at));
        return Ok(found);
    }
    let (list, read): (_, fn(&[Entry]) -> Model) =
        if is_of_stack(text) { ("modelSpec", of_stack) } else { ("llm_configs", of_ray) };
    let mut found = Vec::new();
    for item in items_of(&entries, list) {
        let Model { name, container, replicas, n_pods, findings } = read(&item);
        let Some((engine, launch)) = container.server(begins)? else { continue };
        let mut launch = launch.moved_to(&item[0].at);
        launch.findings.extend(findings);
        launch.findings.extend(cache_server(&entries).filter(|_| found.is_empty()));
        let one = Started::plain(name, replicas, engine, launch);
        found.push(Started { n_pods, gpus_of_pod: container.n_gpus, ..one });
    }
    Ok(found)
}

/// A warning about a store that replicas share.
fn cache_server(entries: &[Entry]) -> Option<Finding> {
    let enabled = entries.iter().find(|entry| entry.path == ["cacheserverSpec", "enabled"] && is_true(entry))?;
    let what = "the store of `cacheserverSpec` is not modelled";
    let help = "give it as `engine.tiers = { host_gib = …, remote_gib = …, remote_gb_per_s = … }`";
    Some(Finding::warning(Code::NotModelled, Some(enabled.at.clone()), what).help(help))
}

/// The policy of the stack's router.
pub(super) fn policies(text: &str) -> Vec<Policy> {
    let entries = if is_of_stack(text) { yaml::unfolded(text).unwrap_or_default() } else { Vec::new() };
    let logic = entries.iter().filter(|entry| entry.path == ["routerSpec", "routingLogic"]);
    logic.map(|entry| Policy { word: entry.value.clone(), at: Some(entry.at.clone()) }).collect()
}

/// A model of a file.
struct Model {
    name: String,
    container: Container,
    replicas: Replicas,
    /// Pods of one server.
    n_pods: Option<u64>,
    findings: Vec<Finding>,
}

/// The value of the first key of such a name.
fn value<'e>(item: &'e [Entry], key: &str) -> Option<&'e Entry> {
    item.iter().find(|entry| entry.key() == key && !entry.value.is_empty())
}

fn text_of(item: &[Entry], key: &str) -> String {
    value(item, key).map(|entry| entry.value.clone()).unwrap_or_default()
}

/// Keys as options of vLLM.
fn options(keys: &[Entry]) -> Vec<String> {
    let mut words = Vec::new();
    for entry in keys.iter().filter(|entry| entry.path.len() == 1 && !entry.value.is_empty()) {
        let name = dashed(entry.key());
        match entry.value.to_lowercase().as_str() {
            "true" => words.push(format!("--{name}")),
            "false" => words.push(format!("--no-{name}")),
            "null" => {}
            _ => words.extend([format!("--{name}"), entry.value.clone()]),
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

/// Words of the template for keys beside `vllmConfig`.
fn of_model(item: &[Entry]) -> Vec<String> {
    let flags = [("enableLoRA", "--enable-lora"), ("enableTool", "--enable-auto-tool-choice")];
    let asked = flags.into_iter().filter(|(key, _)| {
        item.iter().any(|entry| entry.path.len() == OF_ITEM && entry.key() == *key && is_true(entry))
    });
    asked.map(|(_, flag)| flag.to_owned()).collect()
}

/// Keys in front of a key of a model, and the key: `servingEngineSpec`, `modelSpec`, the dash.
const OF_ITEM: usize = 4;

/// Pods of a server over a cluster of Ray: a head and so many workers (`helm/templates/ray-cluster.yaml` @ 06bd6fba7312).
fn pods_of_ray(item: &[Entry]) -> Option<u64> {
    let spec = inside(item, "raySpec");
    spec.iter().find(|entry| entry.path == ["enabled"]).filter(|entry| is_true(entry))?;
    let n_workers: u64 = text_of(item, "replicaCount").parse().unwrap_or(1);
    let of_head = spec.iter().find(|entry| entry.path == ["headNode", "requestGPU"]);
    let has_gpus = of_head.is_some_and(|entry| entry.value != "0");
    Some(n_workers.saturating_add(u64::from(has_gpus)))
}

/// Keys of `vllmConfig` that the stack's template reads.
const OF_STACK: [&str; 12] = [
    "enableChunkedPrefill",
    "enablePrefixCaching",
    "maxModelLen",
    "dtype",
    "tensorParallelSize",
    "pipelineParallelSize",
    "maxNumSeqs",
    "gpuMemoryUtilization",
    "maxLoras",
    "extraArgs",
    "v0",
    "v1",
];

/// Keys inside of a section, with the section left out.
fn inside(item: &[Entry], section: &str) -> Vec<Entry> {
    let at = |entry: &Entry| entry.path.iter().position(|key| key == section).filter(|at| entry.path.len() > at + 1);
    let own = item.iter().filter_map(|entry| Some((entry, at(entry)?)));
    own.map(|(entry, at)| Entry { path: entry.path[at + 1..].to_vec(), ..entry.clone() }).collect()
}

fn of_stack(item: &[Entry]) -> Model {
    let image = format!("{}:{}", text_of(item, "repository"), text_of(item, "tag"));
    let mut container = Container { image, ..Container::default() };
    container.command = vec!["vllm".to_owned(), "serve".to_owned(), text_of(item, "modelURL")];
    for entry in item.iter().filter(|entry| entry.path.iter().any(|key| key == "env")) {
        take_entry(&mut container.variables, entry);
    }
    let config = inside(item, "vllmConfig");
    let given: Vec<Entry> = config.iter().filter(|entry| is_option(entry)).cloned().collect();
    container.args = of_model(item);
    container.args.extend(options(&given));
    // Its template says so where the key is false, and where it is left out.
    if !config.is_empty() && !value(&config, "enablePrefixCaching").is_some_and(is_true) {
        container.args.retain(|word| !word.ends_with("enable-prefix-caching"));
        container.args.push("--no-enable-prefix-caching".to_owned());
    }
    container.args.extend(config.iter().filter(|entry| entry.path[0] == "extraArgs").flat_map(yaml::listed));
    if text_of(&config, "v0") == "1" {
        container.variables.push(("VLLM_USE_V1".to_owned(), "0".to_owned()));
    }
    with_lmcache(&inside(item, "lmcacheConfig"), &mut container);
    let name = item.iter().find(|entry| entry.key() == "name").map(|entry| entry.value.clone()).unwrap_or_default();
    let unknown = config.iter().filter(|entry| !OF_STACK.contains(&entry.path[0].as_str()));
    let findings = unknown.map(|entry| {
        let what = format!("`vllmConfig.{}` is none of the keys that the stack reads", entry.path[0]);
        let help = "the stack gives it to no server: write it as an option in `extraArgs`";
        Finding::warning(Code::UnknownFlag, Some(entry.at.clone()), what).help(help)
    });
    let n_pods = pods_of_ray(item);
    let replicas = if n_pods.is_some() { Replicas::of(1) } else { Replicas::read(value(item, "replicaCount")) };
    container.n_gpus = text_of(item, "requestGPU").parse().ok().filter(|n| *n > 0);
    Model { name, container, replicas, n_pods, findings: findings.collect() }
}

/// Whether a key of `vllmConfig` is an option of the server as it stands.
fn is_option(entry: &Entry) -> bool {
    let key = entry.path[0].as_str();
    OF_STACK.contains(&key) && !["extraArgs", "v0", "v1"].contains(&key)
}

fn is_true(entry: &Entry) -> bool {
    entry.value.eq_ignore_ascii_case("true")
}

/// Adds the connector and the variables that the stack's template gives LMCache.
fn with_lmcache(config: &[Entry], container: &mut Container) {
    if !value(config, "enabled").is_some_and(is_true) {
        return;
    }
    let role = value(config, "kvRole").map_or("kv_both", |entry| entry.value.as_str());
    let connector = format!("{{\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"{role}\"}}");
    container.args.extend(["--kv-transfer-config".to_owned(), connector]);
    let sizes = [
        ("cpuOffloadingBufferSize", "LMCACHE_MAX_LOCAL_CPU_SIZE"),
        ("diskOffloadingBufferSize", "LMCACHE_MAX_LOCAL_DISK_SIZE"),
    ];
    let given = sizes.into_iter().filter_map(|(key, name)| Some((name.to_owned(), value(config, key)?.value.clone())));
    container.variables.extend(given);
}

fn of_ray(item: &[Entry]) -> Model {
    let id = text_of(item, "model_id");
    let source = value(item, "model_source").map_or_else(|| id.clone(), |entry| entry.value.clone());
    let mut container =
        Container { command: vec!["vllm".to_owned(), "serve".to_owned(), source], ..Container::default() };
    container.args = options(&inside(item, "engine_kwargs"));
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
    Model { name: id, container, replicas: Replicas::read(n), n_pods: None, findings }
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use crate::Imported;
    use crate::example::{has_parts, import_text, on};

    fn found(text: &str) -> Imported {
        import_text(text, &on("h100-sxm"))
    }

    fn told(found: &Imported) -> Vec<&str> {
        let words = found.findings.iter().filter(|one| one.code != Code::MissingFlag);
        words.map(|one| one.what.as_str()).collect()
    }

    #[test]
    fn values_of_the_production_stack_are_servers_behind_its_router() {
        let text = "servingEngineSpec:\n  runtimeClassName: \"\"\n  modelSpec:\n  - name: \"llama3\"\n    repository: \"vllm/vllm-openai\"\n    tag: \"v0.11.0\"\n    \
                    modelURL: \"meta-llama/Llama-3.1-8B-Instruct\"\n    replicaCount: 4\n    requestGPU: 2\n    vllmConfig:\n      enablePrefixCaching: true\n      \
                    maxModelLen: 16384\n      tensorParallelSize: 2\n      maxNumSeqs: 64\n      extraArgs: [\"--enforce-eager\"]\n    lmcacheConfig:\n      enabled: true\n      \
                    cpuOffloadingBufferSize: \"20\"\n    env:\n      - name: VLLM_ATTENTION_BACKEND\n        value: FLASHINFER\nrouterSpec:\n  routingLogic: \"roundrobin\"\n";
        let whole = found(text);
        has_parts(
            &whole,
            &[
                "name = \"llama-3.1-8b\"",
                "tp = 2 ",
                "gpus_per_node = 8",
                "max_sequences = 64",
                "graph_max = 0",
                "version = \"0.11.0\"",
                "tiers = { host_gib = 40 }",
                "router = \"round-robin\"",
            ],
        );
        assert_eq!(told(&whole), ["`VLLM_ATTENTION_BACKEND=FLASHINFER` is not modelled"]);
        let shared = found(&format!("{text}cacheserverSpec:\n  enabled: true\n  replicaCount: 1\n"));
        assert!(told(&shared).contains(&"the store of `cacheserverSpec` is not modelled"), "{:?}", shared.findings);
        // The same in braces.
        let braces = "servingEngineSpec: {modelSpec: [{name: a, repository: vllm/vllm-openai, tag: v0.11.0, modelURL: meta-llama/Llama-3.1-8B-Instruct, replicaCount: 4, \
                      vllmConfig: {tensorParallelSize: 2, maxNumSeqs: 64, enablePrefixCaching: true}, lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: 20}}]}\n";
        has_parts(&found(braces), &["tp = 2 ", "max_sequences = 64", "tiers = { host_gib = 40 }"]);
        // Without the key the stack's template switches the cache off.
        let without = found(
            &text
                .replace("      enablePrefixCaching: true\n", "      maxTokens: 3\n")
                .replace("enabled: true", "enabled: false"),
        );
        assert!(without.scenario.contains("prefix_cache = false"), "{}", without.scenario);
        assert!(told(&without).contains(&"`vllmConfig.maxTokens` is none of the keys that the stack reads"));
    }

    #[test]
    fn a_configuration_of_ray_serve_is_a_server_with_its_replicas() {
        let text = "applications:\n  - name: llm_app\n    import_path: ray.serve.llm:build_openai_app\n    args:\n      llm_configs:\n        - model_loading_config:\n            \
                    model_id: qwen-32b\n            model_source: Qwen/Qwen3-32B\n          accelerator_type: H100\n          deployment_config:\n            autoscaling_config:\n              \
                    min_replicas: 2\n              max_replicas: 4\n          engine_kwargs:\n            tensor_parallel_size: 2\n            max_model_len: 16384\n            \
                    enable_prefix_caching: false\n";
        let one = found(text);
        for part in
            ["name = \"qwen3-32b\"", "tp = 2 ", "gpus_per_node = 4", "max_context = 16384", "prefix_cache = false"]
        {
            assert!(one.scenario.contains(part), "{part} in {}", one.scenario);
        }
        assert_eq!(told(&one), ["replicas go up to 4, and stay the fewest here"]);
        let inner: String = text.lines().map(|line| format!("    {line}\n")).collect();
        let service = format!(
            "apiVersion: ray.io/v1\nkind: RayService\nmetadata:\n  name: llm\nspec:\n  serveConfigV2: |\n{inner}  rayClusterConfig:\n    rayVersion: 2.46.0\n"
        );
        let whole = found(&service);
        assert!(whole.scenario.contains("tp = 2 ") && told(&whole).len() == 1, "{whole:?}");
    }
}
