//! Commands of servers, read back and refused.

use input::diagnostic::Code;
use serve::deployment::{Deployment, EngineOptions, Machine, Range, Replica, Stage};
use serve::replica::{Gather, Role};

use crate::example::{codes, has_parts, import_text, on};
use crate::exported::{unsaid, written};
use crate::settings::Settings;

/// Two nodes of eight H200, with replicas of two stages of four GPUs.
fn deployment(second: u32) -> Deployment {
    let machine = Machine {
        name: "a".to_owned(),
        gpu: "h200-sxm".to_owned(),
        n_gpus: 16,
        gpus_per_node: 8,
        ..Machine::default()
    };
    let stage = |first, n, layers| Stage {
        machine: 0,
        gpus: Range::new(first, n),
        tensor: n,
        ffn_gpus: 0,
        on_host: None,
        layers,
    };
    let engine = EngineOptions { context_max: Some(8192), ..crate::example::engine("vllm-v1") };
    let stages = vec![stage(0, 4, Range::new(0, 40)), stage(4, second, Range::new(40, 40))];
    let replica = Replica { name: "both".to_owned(), copies: 2, role: Role::Both, stages, engine };
    Deployment { replicas: vec![replica], ..Deployment::new("llama-3-70b", 80, vec![machine]) }
}

#[test]
fn a_replica_comes_back_from_its_command() {
    let deployments = [deployment(4)];
    for target in ["vllm", "sglang", "trtllm"] {
        let script = written(target, &deployments, &Settings::new()).expect(target);
        let imported = import_text(&script, &on("h200-sxm"));
        has_parts(
            &imported,
            &[
                "name = \"llama-3-70b\"",
                "tp = 4",
                "pp = 2",
                "max_sequences = 128",
                "max_tokens = 4096",
                "max_context = 8192",
            ],
        );
        let codes = codes(&imported);
        assert_eq!(codes, [Code::MissingFlag], "{target}");
    }
}

#[test]
fn stages_of_different_widths_are_refused_by_name() {
    let deployments = [deployment(2)];
    let what = unsaid("vllm", &deployments, &Settings::new());
    assert_eq!(what, ["replica `both`: stages with GPUs of different numbers"]);
}

#[test]
fn what_one_engine_alone_has_is_said_to_it_and_refused_by_others() {
    let mut deployments = [deployment(4)];
    deployments[0].replicas[0].engine.batch_wait = Some(Gather::Tokens { iterations: 20, tokens: 2048 });
    let exported = |target: &str, deployments: &[Deployment]| {
        written(target, deployments, &Settings::new()).map_err(|why| why.to_string())
    };
    let script = exported("trtllm", &deployments).expect("TensorRT-LLM has it");
    // 2048 of 4096 tokens.
    assert!(script.contains("batch_wait_timeout_iters: 20\nbatch_wait_max_tokens_ratio: 0.5000\n"), "{script}");
    deployments[0].replicas[0].engine.batch_wait = Some(Gather::Ranks { iterations: 60, more: 0 });
    let script = exported("trtllm", &deployments).expect("TensorRT-LLM has it");
    let balance = "attention_dp_config:\n  enable_balance: true\n  timeout_iters: 60\n  batching_wait_iters: 0\n";
    assert!(script.contains(balance), "{script}");
    for target in ["vllm", "sglang"] {
        assert!(exported(target, &deployments).expect_err(target).contains("batch_wait"), "{target}");
    }
    let engine = &mut deployments[0].replicas[0].engine;
    (engine.batch_wait, engine.recv_interval) = (None, std::num::NonZeroU32::new(30).expect("thirty"));
    let of_key = Settings::from([("engine.recv_interval".to_owned(), 30.into())]);
    for settings in [Settings::new(), of_key] {
        let text = written("sglang", &deployments, &settings).expect("SGLang has it");
        assert_eq!(text.matches("--scheduler-recv-interval 30").count(), 1, "{text}");
    }
    assert!(exported("vllm", &deployments).expect_err("vLLM has it not").contains("recv_interval"));
}

/// Two replicas with groups of attention side by side: so many of a tensor degree, on one node.
fn grouped(ranks: u32, tensor: u32, role: Role) -> [Deployment; 1] {
    let mut one = deployment(4);
    one.model = "mixtral-8x7b".to_owned();
    one.n_layers = 32;
    let replica = &mut one.replicas[0];
    replica.role = role;
    replica.stages.truncate(1);
    replica.stages[0] = Stage {
        machine: 0,
        gpus: Range::new(0, ranks * tensor),
        tensor,
        ffn_gpus: 0,
        on_host: None,
        layers: Range::new(0, 32),
    };
    [one]
}

/// Limits of a plan are those of a group. SGLang divides its two limits by the groups, and keeps experts cut where no degree is given
/// (`srt/arg_groups/parallel_hook.py`).
#[test]
fn groups_of_attention_come_back_from_their_commands() {
    let none = Settings::new();
    let machine = on("h200-sxm");
    for (target, tensor) in [("vllm", 2), ("sglang", 2), ("trtllm", 1)] {
        let script = written(target, &grouped(4, tensor, Role::Both), &none).expect(target);
        let found = import_text(&script, &machine);
        let lines = [format!("tp = {tensor} "), format!("ep = {}", 4 * tensor)];
        for line in lines.iter().map(String::as_str).chain(["max_sequences = 128", "max_tokens = 4096"]) {
            assert!(found.scenario.contains(line), "{target}: `{line}` in {}", found.scenario);
        }
        let codes = codes(&found);
        assert_eq!(codes, [Code::MissingFlag], "{target}: {:?}", found.findings);
    }
    let script = written("sglang", &grouped(4, 2, Role::Both), &none).expect("SGLang");
    for part in
        ["--tp-size 8", "--attn-dp-size 4 --ep-size 8", "--max-running-requests 512", "--chunked-prefill-size 16384"]
    {
        assert!(script.contains(part), "{part} in {script}");
    }
    let why = written("trtllm", &grouped(4, 2, Role::Both), &none).expect_err("two GPUs of a group").to_string();
    assert!(why.contains("4 groups of attention of 2 GPUs each"), "{why}");
}

#[test]
fn what_sglangs_own_checks_refuse_is_refused() {
    let drafts = serde_json::json!({ "draft_tokens": 3, "acceptance": 0.7 });
    let drafts = Settings::from([("engine.speculation".to_owned(), drafts)]);
    let why = written("sglang", &grouped(4, 2, Role::Both), &drafts).expect_err("drafts of groups").to_string();
    assert!(why.contains("groups of attention, which SGLang refuses"), "{why}");
    let mut decodes = grouped(1, 4, Role::Decode);
    decodes[0].replicas[0].engine.prefix_cache = true;
    let why = written("sglang", &decodes, &drafts).expect_err("drafts of prefixes").to_string();
    assert!(why.contains("where only decoding is done"), "{why}");
    let script = written("sglang", &decodes, &Settings::new()).expect("SGLang");
    assert!(script.contains("--disaggregation-decode-enable-radix-cache"), "{script}");
}

#[test]
fn options_that_a_script_writes_into_a_file_are_read_back() {
    let settings = Settings::from([("engine.graph_max".to_owned(), 0.into())]);
    let machine = on("h200-sxm");
    let script = written("trtllm", &[deployment(4)], &settings).expect("TensorRT-LLM");
    let found = crate::import(crate::Stack::Trtllm, &script, &machine);
    has_parts(&found, &["prefix_cache = false", "block_tokens = 16", "graph_max = 0"]);
    let other = script.replace("cat >options-both.yaml", "cat >others.yaml");
    let found = crate::import(crate::Stack::Trtllm, &other, &machine);
    let codes = codes(&found);
    assert_eq!(codes, [Code::MissingFlag, Code::NotModelled], "{:?}", found.findings);
}

/// vLLM refuses `--max-model-len` beyond the tokens of its cache (`check_enough_kv_cache_memory`).
#[test]
fn a_server_is_told_of_no_longer_requests_than_there_is_room_for() {
    let mut deployments = grouped(1, 4, Role::Both);
    let engine = &mut deployments[0].replicas[0].engine;
    // 2085 whole blocks of 16 tokens.
    (engine.context_max, engine.kv_tokens) = (Some(131_072), 33_367);
    for (target, flag) in [
        ("vllm", "--max-model-len"),
        ("sglang", "--context-length"),
        ("trtllm", "--max_seq_len"),
        ("kubernetes", "--max-model-len"),
    ] {
        let script = written(target, &deployments, &Settings::new()).expect(target);
        assert!(
            script.contains(&format!("{flag} 33360")) && script.contains("room for keys and values of 33360"),
            "{script}"
        );
    }
    deployments[0].replicas[0].engine.kv_tokens = 200_000;
    let script = written("vllm", &deployments, &Settings::new()).expect("vLLM");
    assert!(script.contains("--max-model-len 131072") && !script.contains("room for"), "{script}");
}

/// `docs/source/features/disagg-serving.md` of TensorRT-LLM: both kinds name what moves keys and values, and those that read prompts do not run ahead.
#[test]
fn both_kinds_of_a_split_fleet_have_options_of_their_own() {
    let mut deployments = grouped(1, 4, Role::Prefill);
    let mut writes = deployments[0].replicas[0].clone();
    (writes.name, writes.role) = ("decode".to_owned(), Role::Decode);
    deployments[0].replicas.push(writes);
    let script = written("trtllm", &deployments, &Settings::new()).expect("TensorRT-LLM");
    let of = |name: &str| {
        let (_, text) = script.split_once(&format!("cat >options-{name}.yaml <<'END'\n")).expect(name);
        text.split_once("END\n").expect(name).0.to_owned()
    };
    let moves = "cache_transceiver_config:\n  backend: DEFAULT\n";
    assert!(of("both").contains(moves) && of("both").contains("disable_overlap_scheduler: true\n"), "{script}");
    assert!(of("decode").contains(moves) && !of("decode").contains("disable_overlap_scheduler"), "{script}");
    // The options of both are read.
    let found = crate::import(crate::Stack::Trtllm, &script, &on("h200-sxm"));
    let wrong: Vec<_> =
        found.findings.iter().filter(|one| one.severity == input::diagnostic::Severity::Error).collect();
    assert!(
        wrong.is_empty() && !found.findings.iter().any(|one| one.code == Code::UnknownFlag),
        "{:?}",
        found.findings
    );
}

#[test]
fn a_replica_on_several_nodes_says_how_they_are_joined() {
    let mut deployments = grouped(1, 16, Role::Both);
    deployments[0].replicas[0].copies = 1;
    let parts = [
        ("vllm", "--nnodes 2 --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-127.0.0.1}"),
        ("vllm", "$([ \"${NODE_RANK:-0}\" = 0 ] || echo --headless)"),
        ("sglang", "--nnodes 2 --node-rank ${NODE_RANK:-0} --dist-init-addr ${MASTER_ADDR:-127.0.0.1}:20000"),
        ("trtllm", "srun --nodes 2 --ntasks 16 --ntasks-per-node 8 --mpi pmix trtllm-llmapi-launch trtllm-serve"),
    ];
    let machine = on("h200-sxm");
    for (target, part) in parts {
        let script = written(target, &deployments, &Settings::new()).expect(target);
        assert!(script.contains(part), "{target}: {script}");
        let found = import_text(&script, &machine);
        has_parts(&found, &["tp = 16", "nodes = 2"]);
        // Which node a script of vLLM runs on is known when it runs.
        let is_expected = |one: &input::diagnostic::Finding| {
            one.code == Code::MissingFlag || target == "vllm" && one.code == Code::UnknownValue
        };
        assert!(found.findings.iter().all(is_expected), "{target}: {:?}", found.findings);
    }
    // Twelve GPUs are no whole number of nodes of eight.
    for target in ["vllm", "sglang", "trtllm"] {
        let why = written(target, &grouped(1, 12, Role::Both), &Settings::new()).expect_err(target).to_string();
        assert!(why.contains("12 GPUs on nodes of 8"), "{target}: {why}");
    }
}

/// A scenario has settings of all its policies, and a plan has the groups of one.
#[test]
fn remarks_are_of_groups_that_the_plan_has() {
    let scaling = serde_json::json!({ "rule": "sla" });
    let links = serde_json::json!([{ "from": "both", "to": "far", "wire_ratio": 0.26 }]);
    let lost = serde_json::json!([{ "group": "far" }, { "group": "both" }]);
    let mut settings = Settings::from([
        ("fleet.far.scaling".to_owned(), scaling.clone()),
        ("fleet.both.scaling".to_owned(), scaling),
        ("fleet.link".to_owned(), links),
        ("fleet.outage".to_owned(), lost),
        ("engine.name".to_owned(), "vllm".into()),
    ]);
    let mut deployments = grouped(1, 4, Role::Both);
    let script = written("vllm", &deployments, &settings).expect("vLLM");
    for (part, is_said) in [
        ("fleet.both.scaling", true),
        ("{\"group\":\"both\"}", true),
        ("far", false),
        ("fleet.link", false),
        // The script itself starts it.
        ("engine.name", false),
    ] {
        assert_eq!(script.contains(part), is_said, "{part} in {script}");
    }
    settings.insert("engine.name".to_owned(), "sglang".into());
    assert!(written("vllm", &deployments, &settings).expect("vLLM").contains("engine.name = \"sglang\""));
    // No server packs keys and values for the wire.
    deployments[0].replicas[0].name = "far".to_owned();
    let mut other = deployments[0].replicas[0].clone();
    other.name = "both".to_owned();
    deployments[0].replicas.push(other);
    for target in ["vllm", "sglang", "trtllm", "kubernetes", "skypilot", "dynamo", "llm-d"] {
        let why = written(target, &deployments, &settings).expect_err(target).to_string();
        assert!(why.contains("wire_ratio"), "{target}: {why}");
    }
}
