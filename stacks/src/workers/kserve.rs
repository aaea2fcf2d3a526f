//! A service of KServe whose runtime for Hugging Face's models starts vLLM.
//!
//! Source: kserve/kserve `python/huggingfaceserver/huggingfaceserver/__main__.py`: options of its own, and behind them those of vLLM's engine.

use input::diagnostic::{Code, Finding};

use super::Replicas;
use super::containers::{Container, containers};
use super::one::Started;
use crate::launch::Begins;
use crate::yaml::Entry;

/// Options of the runtime that the engine does not have, with a value each.
const OF_RUNTIME: [&str; 8] =
    ["model-name", "model-id", "model-dir", "backend", "task", "http-port", "tensor-input-names", "max-length"];

/// The server of the service's predictor.
pub(super) fn started(entries: &[Entry], begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let value = |path: &[&str]| entries.iter().find(|entry| entry.path == *path).map(|entry| entry.value.as_str());
    let name = value(&["metadata", "name"]).unwrap_or("predictor").to_owned();
    let bounds =
        ["minReplicas", "maxReplicas"].map(|key| entries.iter().find(|entry| entry.path == ["spec", "predictor", key]));
    let format = value(&["spec", "predictor", "model", "modelFormat", "name"]).unwrap_or_default();
    let stored = value(&["spec", "predictor", "model", "storageUri"]).and_then(|uri| uri.strip_prefix("hf://"));
    for mut container in containers(entries) {
        if container.command.is_empty() && ["huggingface", "vLLM", "vllm"].contains(&format) {
            serve(&mut container, stored);
        }
        let Some((engine, launch)) = container.server(begins)? else { continue };
        let mut launch = launch.moved_to(&container.place.unwrap_or_default());
        launch.findings.extend(scaled(bounds));
        return Ok(vec![Started::plain(name, Replicas::read(bounds[0]), engine, launch)]);
    }
    Ok(Vec::new())
}

/// The runtime's arguments as a command of vLLM.
fn serve(container: &mut Container, stored: Option<&str>) {
    let mut model = stored.map(str::to_owned);
    let mut rest: Vec<String> = Vec::new();
    let mut words = std::mem::take(&mut container.args).into_iter().peekable();
    while let Some(word) = words.next() {
        let (flag, glued) =
            word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value.to_owned())));
        let name = flag.trim_start_matches('-').replace('_', "-");
        if !OF_RUNTIME.contains(&name.as_str()) {
            rest.push(word);
            continue;
        }
        let value = glued.or_else(|| words.next_if(|next| !next.starts_with('-')));
        if name == "model-id" {
            model = value;
        }
    }
    container.command = ["vllm", "serve"].into_iter().map(str::to_owned).chain(model).collect();
    container.args = rest;
}

/// A warning where replicas follow the load.
fn scaled([least, most]: [Option<&Entry>; 2]) -> Option<Finding> {
    let (least, most) = (least.map_or("1", |entry| entry.value.as_str()), most?);
    (least != most.value).then(|| {
        let what = format!("replicas go from {least} to {}, and stay the fewest here", most.value);
        let help = "give the group `scaling = { rule = \"concurrency\", target = …, min = …, start_up_s = … }` and the most as its `replicas`";
        Finding::warning(Code::NotModelled, Some(most.at.clone()), what).help(help)
    })
}

#[cfg(test)]
mod tests {
    use crate::example::{has_parts, import_text, on};

    #[test]
    fn a_predictor_of_a_model_of_hugging_face_is_a_server() {
        let text = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: qwen3\nspec:\n  predictor:\n    minReplicas: 2\n    maxReplicas: 5\n    model:\n      \
                    modelFormat:\n        name: huggingface\n      args:\n        - --model_name=qwen3\n        - --model_id=Qwen/Qwen3-32B\n        - --tensor-parallel-size=2\n        \
                    - --max-model-len=32768\n        - --backend=vllm\n      resources:\n        limits:\n          nvidia.com/gpu: \"2\"\n";
        let machine = on("h100-sxm");
        let stored = text
            .replace("        - --model_id=Qwen/Qwen3-32B\n", "")
            .replace("      args:\n", "      storageUri: hf://Qwen/Qwen3-32B\n      args:\n");
        for text in [text.to_owned(), stored] {
            let found = import_text(&text, &machine);
            has_parts(&found, &["name = \"qwen3-32b\"", "tp = 2 ", "gpus_per_node = 4", "max_context = 32768"]);
            assert!(found.findings.iter().any(|one| one.what.contains("from 2 to 5")), "{:?}", found.findings);
        }
    }
}
