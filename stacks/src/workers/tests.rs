//! Several servers of a file: scripts, manifests, files of Compose.

mod shapes;

use input::diagnostic::{Code, Severity};

use crate::example::{codes, has_parts, import_text};
use crate::{Machine, recognise};

fn found(text: &str, gpu: Option<&str>) -> crate::Imported {
    let machine = Machine { gpu: gpu.map(str::to_owned), ..Machine::default() };
    import_text(text, &machine)
}

#[test]
fn two_commands_of_a_script_are_two_groups_with_their_roles() {
    let text = "vllm serve llama-3-8b -tp 2 --max-num-seqs 8 --kv-transfer-config '{\"kv_role\":\"kv_producer\"}' &\n\
                vllm serve llama-3-8b -tp 1 --max-num-seqs 64 --kv-transfer-config '{\"kv_role\":\"kv_consumer\"}'\n";
    let found = found(text, Some("h100-sxm"));
    has_parts(
        &found,
        &[
            "name = \"server-1\"\ntp = 2\nreplicas = 1\nrole = \"prefill\"\nmax_sequences = 8",
            "name = \"server-2\"\ntp = 1\nreplicas = 1\nrole = \"decode\"\nmax_sequences = 64",
        ],
    );
    let codes = codes(&found);
    assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
}

/// Degrees of the first part are those of all.
#[test]
fn parts_of_a_server_on_further_nodes_are_no_servers() {
    let (vllm, sglang) =
        ("vllm serve deepseek-ai/DeepSeek-V3", "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3");
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
            has_parts(&found, &keys);
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
    let named = import_text(text, &named);
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
                let told: Vec<_> = findings.iter().filter(|one| one.what.contains("is no number of servers")).collect();
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
        (
            "vllm/vllm-openai:v0.11.0",
            "command: [\"vllm\", \"serve\"]\n        args: [\"Qwen/Qwen3-32B\", \"-tp\", \"2\"]".to_owned(),
        ),
        (
            "vllm/vllm-openai:v0.11.0",
            "args: [\"--model\", \"Qwen/Qwen3-32B\", \"--tensor-parallel-size\", \"2\"]".to_owned(),
        ),
        ("vllm/vllm-openai:v0.11.0", format!("command: [\"/bin/sh\", \"-c\"]\n        {list}")),
        (
            "vllm/vllm-openai:v0.11.0",
            format!(
                "command: [sh, -c]\n        {}\n        env:\n        - name: MODEL\n          value: Qwen/Qwen3-32B\n        - name: TP\n          value: \"2\"",
                list.replace("Qwen/Qwen3-32B -tp 2", "$MODEL -tp $(TP)")
            ),
        ),
        (
            "vllm/vllm-openai:v0.11.0",
            format!(
                "command: [sh, -c]\n        {}\n        env:\n        - {{name: TP, value: \"2\"}}\n        - {{ name: OTHER, value: x }}",
                list.replace("-tp 2", "-tp $TP")
            ),
        ),
        (
            "lmsysorg/sglang:v0.5.5",
            "command: [python3, -m, sglang.launch_server]\n        args: [--model-path, Qwen/Qwen3-32B, --tp, \"2\"]"
                .to_owned(),
        ),
    ] {
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\nspec:\n  replicas: 2\n  template:\n    spec:\n      \
             initContainers:\n      - name: first\n        image: vllm/vllm-openai:v0.9.0\n        args: [\"--model\", \"llama-3-8b\"]\n      \
             containers:\n      - name: side\n        image: busybox:1.36\n        command: [sleep, infinity]\n      \
             - name: engine\n        image: {image}\n        {lines}\n"
        );
        let found = found(&text, Some("h100-sxm"));
        has_parts(&found, &["name = \"qwen3-32b\"", "tp = 2 ", "gpus_per_node = 4"]);
        let codes = codes(&found);
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
    has_parts(&found_one, &["name = \"qwen3-32b\"", "tp = 2 ", "version = \"0.11.0\"", "max_sequences = 64"]);
    let codes = codes(&found_one);
    assert_eq!(codes, [Code::MissingFlag], "{:?}", found_one.findings);
    let alone = found(&format!("services:\n{sglang}"), Some("h100-sxm")).scenario;
    assert!(alone.contains("name = \"sglang\"") && alone.contains("gpus_per_node = 6"), "{alone}");
    // Another engine beside it is refused and not dropped.
    let both = found(&format!("{one}{sglang}"), Some("h100-sxm"));
    assert!(both.findings.iter().any(|one| one.what.contains("runs another engine")), "{:?}", both.findings);
}

#[test]
fn services_of_compose_share_what_an_anchor_names() {
    let text = "x-vllm: &vllm\n  image: vllm/vllm-openai:v0.11.0\n  runtime: nvidia\n  command: [\"--model\", \"Qwen/Qwen3-32B\", \"--tensor-parallel-size\", \"2\"]\nservices:\n  \
                vllm-1:\n    <<: *vllm\n    ports: [\"8001:8000\"]\n  vllm-2:\n    <<: *vllm\n    ports: [\"8002:8000\"]\n  nginx:\n    image: nginx:latest\n";
    let found = found(text, Some("h100-sxm"));
    has_parts(&found, &["name = \"vllm-1\"\ntp = 2", "name = \"vllm-2\"\ntp = 2", "qwen3-32b"]);
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

/// The form of llm-d's guide (guides/wide-ep-lws): the degree is a sum over what the group of pods says.
#[test]
fn sums_of_a_group_of_pods_are_known() {
    let one = |role: &str, size: u32| {
        format!(
            "---\napiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata:\n  name: wide-ep-{role}\n  labels:\n    llm-d.ai/role: {role}\nspec:\n  \
             replicas: 1\n  leaderWorkerTemplate:\n    size: {size}\n    workerTemplate:\n      metadata:\n        labels:\n          llm-d.ai/role: {role}\n      spec:\n        \
             initContainers:\n          - name: routing-proxy\n            args:\n              - --port=8000\n            image: ghcr.io/llm-d/sidecar:v0.3.0\n        containers:\n        \
             - name: vllm-worker\n          image: ghcr.io/llm-d/llm-d-cuda:v0.3.0\n          command:\n            - /bin/bash\n            - -c\n          args:\n            - |-\n              \
             # RUN vLLM worker\n              START_RANK=$(( ${{LWS_WORKER_INDEX:-0}} * DP_SIZE_LOCAL ))\n\n              source /opt/vllm/bin/activate\n              exec vllm serve \\\n                \
             deepseek-ai/DeepSeek-R1-0528 \\\n                --port 8200 \\\n                --enable-expert-parallel \\\n                --data-parallel-hybrid-lb \\\n                \
             --data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) \\\n                --data-parallel-size-local $DP_SIZE_LOCAL \\\n                \
             --data-parallel-start-rank $START_RANK \\\n                --kv_transfer_config '{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}}'\n          env:\n          \
             - name: DP_SIZE_LOCAL\n            value: \"8\"\n          - name: VLLM_ALL2ALL_BACKEND\n            value: deepep_low_latency\n"
        )
    };
    let alone = found(&one("decode", 2), Some("h200-sxm"));
    has_parts(&alone, &["ep = 16", "nodes = 2 ", "gpus_per_node = 8"]);
    let both = found(&(one("prefill", 2) + &one("decode", 2)), Some("h200-sxm"));
    has_parts(
        &both,
        &[
            "name = \"wide-ep-prefill\"",
            "role = \"prefill\"",
            "role = \"decode\"",
            "ep = 16",
            "dispatcher = \"deepep-low-latency\"",
        ],
    );
    let told: Vec<&str> =
        both.findings.iter().map(|one| one.what.as_str()).filter(|what| what.contains("VLLM_")).collect();
    assert_eq!(told, [""; 0], "{:?}", both.findings);
    // Each of two roles has its own mode, which its batches choose.
    let prompts = one("prefill", 2).replace("deepep_low_latency", "deepep_high_throughput");
    let split = found(&(prompts + &one("decode", 2)), Some("h200-sxm"));
    assert!(split.scenario.contains("dispatcher = \"deepep\""), "{}", split.scenario);
    assert_eq!(split.findings.len(), both.findings.len(), "{:?}", split.findings);
}

/// The form of AIBrix's StormService and of role-based groups: every role is a kind of pods.
#[test]
fn roles_of_one_manifest_are_groups() {
    let role = |name: &str, n: u32, tp: u32| {
        format!(
            "        - name: {name}\n          replicas: {n}\n          stateful: true\n          template:\n            metadata:\n              labels:\n                \
             model.aibrix.ai/name: qwen3-8B\n            spec:\n              containers:\n                - name: {name}\n                  image: aibrix/vllm-openai:v0.10.0\n                  \
             command: [\"sh\", \"-c\"]\n                  args:\n                    - |\n                      python3 -m vllm.entrypoints.openai.api_server \\\n                        \
             --model /models/Qwen3-8B \\\n                        --tensor-parallel-size {tp} \\\n                        \
             --kv-transfer-config '{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}}'\n"
        )
    };
    let text = format!(
        "apiVersion: orchestration.aibrix.ai/v1alpha1\nkind: StormService\nmetadata:\n  name: vllm-pd\nspec:\n  replicas: 2\n  template:\n    spec:\n      roles:\n{}{}",
        role("prefill", 3, 1),
        role("decode", 1, 2)
    );
    let found = found(&text, Some("h100-sxm"));
    has_parts(
        &found,
        &[
            "name = \"prefill\"\ntp = 1\nreplicas = 6\nrole = \"prefill\"",
            "name = \"decode\"\ntp = 2\nreplicas = 2\nrole = \"decode\"",
        ],
    );
    let codes = codes(&found);
    assert_eq!(codes, [Code::MissingFlag], "{:?}", found.findings);
}
