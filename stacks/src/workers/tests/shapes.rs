//! Tests of files as people write them: what YAML, shells, charts and the kinds of Kubernetes make of them.

use input::diagnostic::Code;

use crate::example::{has_parts, import_text, on};
use crate::{Imported, Machine, recognise};

fn found(text: &str) -> Imported {
    import_text(text, &on("h100-sxm"))
}

fn holds(text: &str, parts: &[&str]) {
    let found = found(text);
    has_parts(&found, parts);
}

/// A pod with such lines of a container.
fn pod(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("        {line}\n")).collect();
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  template:\n    spec:\n      containers:\n      - name: c\n{lines}"
    )
}

/// A folded text is one line to a shell (YAML 1.2.2, section 8.1.3).
#[test]
fn folded_commands_are_whole() {
    const PARTS: [&str; 3] = ["tp = 4 ", "max_sequences = 64", "name = \"llama-3.1-70b\""];
    let command = "vllm serve meta-llama/Llama-3.1-70B-Instruct\n--tensor-parallel-size 4\n--max-num-seqs 64\n";
    let indented = |n: usize| command.lines().map(|line| format!("{}{line}\n", " ".repeat(n))).collect::<String>();
    for shell in ["[bash, -c]", "[\"bash\", \"-lc\", \"--\"]", "[sh, -c, --]", "[\"/bin/bash\", \"-euxc\"]"] {
        holds(&pod(&format!("command: {shell}\nargs:\n- >-\n{}", indented(2))), &PARTS);
    }
    holds(
        &pod(
            "command: [bash, -c]\nargs: [\"vllm serve meta-llama/Llama-3.1-70B-Instruct\n  --tensor-parallel-size 4 --max-num-seqs 64\"]",
        ),
        &PARTS,
    );
    let task = format!("resources:\n  accelerators: {{H100:4}}\nrun: >\n{}", indented(2));
    holds(&task, &PARTS);
    let compose = format!(
        "services:\n  v:\n    image: vllm/vllm-openai:v0.10.0\n    entrypoint: [\"bash\", \"-c\"]\n    command:\n      - >\n{}",
        indented(8)
    );
    holds(&compose, &PARTS);
    let service = "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: m}\nspec:\n  model: {uri: \"hf://meta-llama/Llama-3.1-70B-Instruct\", name: m}\n  \
                   template:\n    containers:\n      - name: main\n        env:\n          - name: VLLM_ADDITIONAL_ARGS\n            value: >-\n              --tensor-parallel-size=4\n              \
                   --max-num-seqs 64\n              --kv-cache-dtype=fp8\n";
    holds(service, &[&PARTS[..], &["kv = \"fp8\""]].concat());
    let group = format!(
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata:\n  name: v\nspec:\n  leaderWorkerTemplate:\n    size: 2\n    leaderTemplate:\n      spec:\n        \
         containers:\n        - name: l\n          command:\n          - sh\n          - -c\n          - >-\n            ray start --head;\n{}            --pipeline_parallel_size 2\n",
        indented(12)
    );
    holds(&group, &[&PARTS[..], &["pp = 2", "nodes = 2 ", "gpus_per_node = 4"]].concat());
}

/// Braces and JSON say the same as lines (section 7.4).
#[test]
fn values_in_braces_and_json_are_read() {
    let lines = "image: vllm/vllm-openai:v0.10.0\nargs: [\"--model\", \"Qwen/Qwen3-32B\", \"--tensor-parallel-size\", \"4\"]\nresources: {limits: {nvidia.com/gpu: \"4\"}}\n";
    let whole = pod(lines);
    let braces = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  template:\n    spec:\n      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}\n      containers:\n      \
                  - {name: c, image: vllm/vllm-openai:v0.10.0, args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, \"4\"], resources: {limits: {nvidia.com/gpu: \"4\"}}}\n";
    let json = "{\"apiVersion\": \"apps/v1\", \"kind\": \"Deployment\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"template\": {\"spec\": {\"containers\": [\n {\"name\": \"c\", \
                \"image\": \"vllm/vllm-openai:v0.10.0\",\n \"args\": [\"--model\", \"Qwen/Qwen3-32B\", \"--tensor-parallel-size\", \"4\"],\n \
                \"resources\": {\"limits\": {\"nvidia.com/gpu\": \"4\"}}}]}}}}\n";
    let list = format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}]}}", json.trim());
    let expected = found(&whole).scenario;
    assert!(expected.contains("tp = 4 ") && expected.contains("version = \"0.10.0\""), "{expected}");
    for text in [braces, json, &list] {
        assert_eq!(found(text).scenario, expected, "{text}");
    }
    let of_nodes = import_text(braces, &Machine::default());
    assert!(of_nodes.scenario.contains("gpu = \"l40s\""), "{}", of_nodes.scenario);
}

/// A head and a worker of Ray with a GPU each: what joins them is the network.
#[test]
fn pods_say_how_many_gpus_a_node_has() {
    let container = "          spec:\n            containers:\n            - name: r\n              image: vllm/vllm-openai:v0.7.1\n";
    let limits = "              resources:\n                limits:\n                  nvidia.com/gpu: 1\n";
    let fleet = format!(
        "apiVersion: orchestration.aibrix.ai/v1alpha1\nkind: RayClusterFleet\nmetadata:\n  name: q\nspec:\n  replicas: 1\n  template:\n    spec:\n      headGroupSpec:\n        template:\n\
         {container}              args: [\"vllm serve Qwen/Qwen2.5-7B-Instruct --tensor-parallel-size 2\"]\n              command: [/bin/bash, -c]\n{limits}      workerGroupSpecs:\n      - replicas: 1\n        \
         template:\n{container}              command: [/bin/bash, -c, ray start]\n{limits}"
    );
    holds(&fleet, &["tp = 2 ", "nodes = 2 ", "gpus_per_node = 1"]);
    let values = "servingEngineSpec:\n  modelSpec:\n  - name: r\n    repository: lmcache/vllm-openai\n    tag: v0.3.9post2\n    modelURL: Qwen/Qwen3-8B\n    replicaCount: 1\n    requestGPU: 1\n    \
                  vllmConfig:\n      pipelineParallelSize: 2\n    raySpec:\n      enabled: true\n      headNode:\n        requestGPU: 1\n";
    holds(values, &["pp = 2 ", "nodes = 2 ", "gpus_per_node = 1"]);
    assert!(!found(values).scenario.contains("version = "), "the tag is LMCache's");
}

/// `enableLoRA` is a word of the chart's template; its ranks stand among other options.
#[test]
fn adapters_of_the_stack_are_asked_for() {
    let with = |key: &str| {
        format!(
            "servingEngineSpec:\n  modelSpec:\n  - name: l\n    repository: vllm/vllm-openai\n    tag: v0.10.0\n    modelURL: meta-llama/Llama-3.1-8B-Instruct\n{key}    vllmConfig:\n      \
             maxModelLen: 4096\n      extraArgs: [\"--max-loras\", \"4\", \"--max-lora-rank\", \"32\"]\n"
        )
    };
    let command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --enable-lora --max-model-len 4096 --max-loras 4 --max-lora-rank 32\n";
    let of_lora = |text: &str| {
        let found = found(text);
        let told = found.findings.iter().filter(|one| one.what.contains("lora")).map(|one| one.what.clone());
        let lines = found.scenario.lines().filter(|line| line.contains("lora") || line.contains("adapters"));
        (lines.map(str::to_owned).collect::<Vec<_>>(), told.collect::<Vec<_>>())
    };
    let asked = of_lora(&with("    enableLoRA: true\n"));
    assert_eq!(asked, of_lora(command));
    assert_ne!(asked, (Vec::new(), Vec::new()));
    assert_ne!(asked, of_lora(&with("    enableLoRA: false\n")));
}

#[test]
fn groups_of_one_name_are_told_apart() {
    let set = |name: &str| {
        let role = |role: &str, n: u32| {
            format!(
                "      - name: {role}\n        replicas: {n}\n        template:\n          spec:\n            containers:\n            - name: c\n              \
                 image: lmsysorg/sglang:v0.5.5\n              command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B, --tp, \"{n}\", --disaggregation-mode, {role}]\n"
            )
        };
        format!(
            "apiVersion: orchestration.aibrix.ai/v1alpha1\nkind: StormService\nmetadata:\n  name: {name}\nspec:\n  replicas: 1\n  template:\n    spec:\n      roles:\n{}{}",
            role("prefill", 1),
            role("decode", 2)
        )
    };
    let text = format!("{}---\n{}", set("one"), set("two"));
    holds(&text, &["name = \"prefill\"\n", "name = \"prefill-2\"\n", "name = \"decode\"\n", "name = \"decode-2\"\n"]);
}

#[test]
fn services_of_a_profile_do_not_start_by_themselves() {
    let text = "services:\n  vllm:\n    image: vllm/vllm-openai:v0.10.0\n    command: --model Qwen/Qwen3-8B --tensor-parallel-size 1\n  reader:\n    profiles: [\"pd\"]\n    \
                image: vllm/vllm-openai:v0.10.0\n    command: --model Qwen/Qwen3-8B --max-num-seqs 64\n";
    let told = |text: &str| {
        let found = found(text);
        let told = found.findings.into_iter().find(|one| one.what.contains("`profiles`"));
        (found.scenario, told)
    };
    let (scenario, warning) = told(text);
    assert!(!scenario.contains("[[fleet.group]]") && !scenario.contains("max_sequences"), "{scenario}");
    assert!(warning.is_some_and(|one| one.code == Code::NotModelled && one.what.contains("`reader`")));
    let (scenario, warning) = told(&text.replace("[\"pd\"]", "[]"));
    assert!(scenario.contains("[[fleet.group]]") && warning.is_none(), "{scenario}");
}

/// An image that is built on vLLM's starts its server, and one that only a shell knows does where options say so.
#[test]
fn containers_of_other_builders_are_run() {
    const PARTS: [&str; 3] = ["name = \"qwen3-32b\"", "tp = 2 ", "max_sequences = 32"];
    let options = "Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 32\n";
    holds(&format!("#!/bin/bash\ndocker run --gpus all lmcache/vllm-openai:v0.3.9 {options}"), &PARTS);
    let open = format!("docker run --gpus all $VLLM_IMG {options}");
    holds(&open, &PARTS);
    assert!(found(&open).findings.iter().any(|one| one.code == Code::UnknownValue && one.what.contains("image")));
    assert_eq!(recognise("docker run --gpus all $IMG --model-id Qwen/Qwen3-32B --num-shard 2\n"), None);
}
