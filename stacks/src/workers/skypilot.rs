//! A service of SkyPilot: its `run` is a script, and what stands around it says on how many GPUs and how often it runs.
//!
//! Source: SkyPilot 0.14 `sky/utils/schemas.py`, and the variables that it gives each node (`sky/skylet/constants.py`).

use input::diagnostic::{Code, Finding};

use super::Replicas;
use super::one::Started;
use crate::fleet;
use crate::launch::{self, Begins};
use crate::variables::{Variables, assigned};
use crate::yaml::{self, Entry};

/// Whether a file is such a task.
pub(super) fn is_one(text: &str) -> bool {
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    has("run:") && has("resources:") && text.contains("accelerators")
}

/// Servers that the task starts.
pub(super) fn started(text: &str, begins: &[Begins]) -> Result<Vec<Started>, Finding> {
    let entries = yaml::unfolded(text)?;
    let find = |path: &[&str]| entries.iter().find(|entry| entry.path == *path);
    let Some(run) = find(&["run"]) else { return Ok(Vec::new()) };
    let accelerators = accelerators(&entries);
    let first = accelerators.first();
    let n_gpus = first.map_or("1", |(_, n)| n.as_str());
    let nodes = find(&["num_nodes"]).map_or("1", |entry| entry.value.as_str());
    let of_task = [("SKYPILOT_NUM_GPUS_PER_NODE", n_gpus), ("SKYPILOT_NUM_NODES", nodes), ("SKYPILOT_NODE_RANK", "0")];
    let mut variables: Variables = of_task.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let own = entries.iter().filter(|entry| entry.path.len() == 2 && entry.path[0] == "envs" && entry.value != "null");
    variables.extend(own.map(|entry| (entry.path[1].clone(), entry.value.clone())));
    let least = find(&["service", "replicas"]).or(find(&["service", "replica_policy", "min_replicas"]));
    let mut told = told(&entries, &accelerators);
    let label = first.map(|(name, _)| fleet::label_of_accelerator(name).map_or_else(|| name.clone(), str::to_owned));
    let name = find(&["name"]).map(|entry| entry.value.clone());
    let all = launch::all_of_script(&(assigned(&variables) + &run.value), begins)?;
    let started = all.into_iter().enumerate().map(|(index, (engine, launch))| {
        let mut launch = launch.moved_to(&run.at);
        launch.findings.append(&mut told);
        let name = name.clone().filter(|_| index == 0).unwrap_or_else(|| format!("server-{}", index + 1));
        let one = Started::plain(name, Replicas::read(least), engine, launch);
        Started { label: label.clone(), n_pods: nodes.parse().ok(), ..one }
    });
    Ok(started.collect())
}

/// GPUs that may be taken, and how many of a node: `H100:8`, a list or a table of such, or keys of their own.
fn accelerators(entries: &[Entry]) -> Vec<(String, String)> {
    let inside = entries.iter().filter(|entry| entry.path.iter().any(|key| key == "accelerators"));
    let mut found = Vec::new();
    for entry in inside {
        if entry.key() != "accelerators" && entry.key() != "-" {
            // Without a blank behind the colon the number is a part of the key.
            let (name, n) = entry.key().split_once(':').unwrap_or((entry.key(), &entry.value));
            found.push((name.to_owned(), n.to_owned()));
            continue;
        }
        let words =
            entry.value.trim_matches(['{', '}', '[', ']']).split(',').map(|word| word.trim().trim_matches(['"', '\'']));
        found.extend(words.filter(|word| !word.is_empty()).map(|word| {
            let (name, n) = word.split_once(':').unwrap_or((word, "1"));
            (name.trim().to_owned(), n.trim().to_owned())
        }));
    }
    found
}

/// What the task says and a scenario of it does not.
fn told(entries: &[Entry], accelerators: &[(String, String)]) -> Vec<Finding> {
    let find = |key: &str| entries.iter().find(|entry| entry.key() == key);
    let mut found = Vec::new();
    let mut warn = |entry: &Entry, what: String, help: &str| {
        found.push(Finding::warning(Code::NotModelled, Some(entry.at.clone()), what).help(help));
    };
    if let (Some(entry), [first, _, ..]) = (find("accelerators"), accelerators) {
        let what = format!("`accelerators` are any of {}: `{}` is taken", accelerators.len(), first.0);
        warn(entry, what, "`--set cluster.gpu=…` takes another one");
    }
    if let Some(entry) = find("max_replicas") {
        let what = format!("replicas go up to {}, and stay the fewest here", entry.value);
        let help = "give the group `scaling = { rule = \"concurrency\", target = …, min = …, start_up_s = … }` and the most as its `replicas`";
        warn(entry, what, help);
    }
    if let Some(entry) = find("use_spot").filter(|entry| entry.value == "true") {
        warn(
            entry,
            "`use_spot` is not modelled: machines are not taken away".to_owned(),
            "give `failures` in the group",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::Machine;
    use crate::example::{has_parts, import_text};

    #[test]
    fn a_service_says_its_gpus_and_how_often_it_runs() {
        let text = "service:\n  readiness_probe:\n    path: /v1/models\n  replica_policy:\n    min_replicas: 2\n    max_replicas: 4\nresources:\n  accelerators: {H100:2, A100-80GB:2}\n  \
                    ports: 8081\n  use_spot: true\nenvs:\n  MODEL_NAME: Qwen/Qwen3-32B\n  HF_TOKEN: null\nsetup: |\n  uv pip install vllm\nrun: |\n  echo 'Starting vllm...'\n  \
                    vllm serve $MODEL_NAME --port 8081 \\\n    --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-model-len 8192 \\\n    2>&1 | tee api_server.log\n";
        let found = import_text(text, &Machine::default());
        has_parts(
            &found,
            &["gpu = \"h100-sxm\"", "name = \"qwen3-32b\"", "tp = 2 ", "gpus_per_node = 4", "max_context = 8192"],
        );
        for words in ["any of 2: `H100`", "go up to 4", "`use_spot`"] {
            assert!(found.findings.iter().any(|one| one.what.contains(words)), "{words}: {:?}", found.findings);
        }
        let nodes = "service:\n  replicas: 3\nresources:\n  accelerators: H200:8\nnum_nodes: 2\nrun: |\n  python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 \\\n    \
                     --tp 16 --nnodes $SKYPILOT_NUM_NODES --node-rank $SKYPILOT_NODE_RANK\n";
        let found = import_text(nodes, &Machine::default());
        has_parts(&found, &["gpu = \"h200-sxm\"", "tp = 16 ", "nodes = 6 ", "gpus_per_node = 8"]);
    }
}
