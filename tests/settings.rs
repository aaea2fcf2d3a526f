//! What a scenario writes for its engines stands in the plan, runs again from it, and is said or refused by name in every export.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Keys of a scenario of serving that say how its engines work, with a value that is not the default.
const WRITTEN: [(&str, &str); 24] = [
    ("engine.all_reduce", "fused"),
    ("engine.chunk_tokens", "256"),
    ("engine.encoder_tp", "data"),
    ("engine.expert_skew", "0.5"),
    ("engine.graph_max", "64"),
    ("engine.graph_padding", "true"),
    ("engine.host_us_per_step", "100"),
    ("engine.kv_blocks", "4000"),
    ("engine.loop", "async"),
    ("engine.memory_ratio", "0.8"),
    ("engine.prefix_cache", "true"),
    ("engine.prompt_graph_max", "0"),
    ("engine.recv_interval", "4"),
    ("engine.redundant_experts", "0"),
    ("engine.scheduling", "priority"),
    ("engine.speculation", "{ draft_tokens = 2, acceptance = 0.5 }"),
    ("engine.stream_interval", "4"),
    ("engine.stream_us_per_token", "20"),
    ("engine.tiers", "{ host_gib = 64 }"),
    ("engine.watermark_ratio", "0.02"),
    ("engine.weights", "{ format = \"bf16\", kv = \"fp8\" }"),
    ("trace.timeout_s", "60"),
    ("trace.first_token_timeout_s", "5"),
    ("trace.cancel_ratio", "0.1"),
];

fn run(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skrull-sim")).current_dir(folder).args(words).output().expect("the program")
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("settings").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The best of two ways of a small fleet, planned into a folder with some keys laid over.
fn planned(name: &str, set: &[(&str, &str)]) -> Option<(PathBuf, Value)> {
    let folder = folder(name);
    let text = "kind = \"serving\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 2\n\
        [trace]\nprompt_tokens = 500\noutput_tokens = 20\nrequests = 40\nrate_per_s = 4.0\n[engine]\ntp = 1\n[policies]\nrun = [\"best\"]\n\
        [[policies.best]]\nname = \"best\"\npolicy = \"vllm-v1\"\nby = \"ttft_s.mean\"\nmax_tokens = [512, 2048]\n";
    std::fs::write(folder.join("fleet.toml"), text).expect("a scenario");
    let set: Vec<String> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut words = vec!["plan", "fleet.toml", "--policy", "best", "--out", "."];
    words.extend(set.iter().flat_map(|set| ["--set", set]));
    let output = run(&folder, &words);
    if !output.status.success() {
        return None;
    }
    let text = std::fs::read_to_string(folder.join("plan.json")).expect("a plan");
    Some((folder, serde_json::from_str(&text).expect("JSON")))
}

#[test]
fn a_tuned_plan_carries_its_scenario_and_runs_again() {
    let (folder, plan) = planned("tuned", &[("engine.scheduling", "priority")]).expect("a plan");
    assert_eq!(plan["schema"], "skrull-sim/deployment-plan/1");
    assert!(plan["origin"]["text"].as_str().is_some_and(|text| text.contains("[[policies.best]]")), "{plan}");
    assert_eq!(plan["origin"]["set"][0], "engine.scheduling=priority");
    assert_eq!(plan["origin"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(plan["settings"]["engine.scheduling"], "priority");
    let again = run(&folder, &["run", "plan.json", "--format", "json", "--out", "again"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let result: Value = serde_json::from_slice(&again.stdout).expect("JSON");
    assert_eq!(result["results"].as_array().map(Vec::len), Some(1));
    for key in ["makespan_s", "n_steps", "requests_per_s"] {
        assert_eq!(result["results"][0]["metrics"][key], plan["predicted"][key], "{key}");
    }
    // Deployments that somebody has changed are not those of the scenario.
    let mut changed = plan;
    changed["deployments"][0]["replicas"][0]["copies"] = 7.into();
    std::fs::write(folder.join("changed.json"), changed.to_string()).expect("a file");
    let refused = run(&folder, &["run", "changed.json"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && why.contains("gives other deployments by `best`"), "{why}");
}

#[test]
fn every_setting_is_carried_by_the_plan_and_said_or_refused_by_exports() {
    for (key, value) in WRITTEN {
        let Some((folder, plan)) = planned(&key.replace('.', "-"), &[(key, value)]) else {
            panic!("`{key} = {value}` has no plan");
        };
        assert!(!plan["settings"][key].is_null(), "`{key}` is in the plan: {}", plan["settings"]);
        for target in ["vllm", "sglang", "trtllm", "kubernetes", "skypilot", "dynamo", "llm-d"] {
            let output = run(&folder, &["export", "plan.json", "--to", target, "--out", target]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let is_refused = output.status.code() == Some(2) && said.contains(key);
            assert!(output.status.success() || is_refused, "{target}, `{key}`: {said}");
        }
    }
}

#[test]
fn flags_say_what_was_written() {
    let written = [
        ("engine.scheduling", "priority", "vllm", "--scheduling-policy priority"),
        ("engine.scheduling", "priority", "sglang", "--enable-priority-scheduling"),
        ("engine.tiers", "{ host_gib = 64 }", "vllm", "--kv-offloading-size 64"),
        ("engine.weights", "{ format = \"bf16\", kv = \"fp8\" }", "trtllm", "  dtype: fp8"),
        ("engine.loop", "serial", "sglang", "--disable-overlap-schedule"),
        ("trace.timeout_s", "60", "vllm", "# The prediction has trace.timeout_s = 60"),
    ];
    for (key, value, target, flag) in written {
        let (folder, _) = planned(&format!("{target}-{}", key.replace('.', "-")), &[(key, value)]).expect("a plan");
        let output = run(&folder, &["export", "plan.json", "--to", target, "--out", "."]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let script = std::fs::read_to_string(folder.join("serve-llama-3-8b.sh")).expect("a script");
        assert!(script.contains(flag), "{target}: `{flag}` in {script}");
    }
}

#[test]
fn weights_on_hosts_are_part_of_a_plan_that_runs_again_and_is_exported() {
    let folder = folder("host-weights");
    let done = |words: &[&str]| {
        let output = run(&folder, words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    // Experts of a layer are 128 · 3 · 2880 · 2880 weights of 4.25 bits and a bias for each row. Two layers of three are copied, and one buffer is enough.
    let experts = 128.0 * 3.0 * 2880.0 * 2881.0 * 4.25 / 8.0;
    for (policy, weights, buffers, flag) in [
        ("in-place", 44.0 * 1024.0_f64.powi(3), 0.0, "--cpu-offload-gb 44"),
        ("experts-ahead", 26.0 * experts, experts, "--offload-group-size 18"),
    ] {
        done(&["plan", "serving/host-weights", "--policy", policy, "--out", "."]);
        let text = std::fs::read_to_string(folder.join("plan.json")).expect("a plan");
        let plan: Value = serde_json::from_str(&text).expect("JSON");
        let on_host = &plan["deployments"][0]["replicas"][0]["stages"][0]["on_host"];
        for (key, bytes) in [("weights", weights), ("buffers", buffers)] {
            let found = on_host[key].as_f64().unwrap_or_else(|| panic!("`{key}` of {on_host}"));
            assert!((found - bytes).abs() <= 1e-6 * bytes, "{policy}, {key}: {found} of {bytes}");
        }
        let again = done(&["run", "plan.json", "--format", "json", "--out", "again"]);
        let result: Value = serde_json::from_slice(&again).expect("JSON");
        for key in ["makespan_s", "n_steps", "requests_per_s"] {
            assert_eq!(result["results"][0]["metrics"][key], plan["predicted"][key], "{policy}, {key}");
        }
        done(&["export", "plan.json", "--to", "vllm", "--out", "."]);
        let script = std::fs::read_to_string(folder.join("serve-gpt-oss-120b.sh")).expect("a script");
        assert!(script.contains(flag), "{flag}: {script}");
    }
}

#[test]
fn a_plan_of_chunks_of_equal_time_is_a_deployment_that_runs_again_and_is_exported() {
    let folder = folder("chunks");
    let done = |words: &[&str]| {
        let output = run(&folder, words);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let planned = done(&["plan", "serving/equal-time-chunks", "--policy", "equal-time", "--out", "."]);
    assert_eq!(planned.0, Some(0), "{}", planned.1);
    let again = done(&["run", "plan.json", "--out", "again"]);
    assert_eq!(again.0, Some(0), "{}", again.1);
    let exported = done(&["export", "plan.json", "--to", "sglang", "--out", "."]);
    assert_eq!(exported.0, Some(0), "{}", exported.1);
    let script = std::fs::read_to_string(folder.join("serve-qwen2.5-14b.sh")).expect("a script");
    assert!(script.contains("--pp-size 4") && script.contains("--enable-dynamic-chunking"), "{script}");
    let (code, why) = done(&["export", "plan.json", "--to", "vllm", "--out", "."]);
    assert!(code == Some(2) && why.contains("engine.chunk_sizes"), "{why}");
}

#[test]
fn every_key_of_engines_and_clients_is_known_to_exports() {
    let page = std::fs::read_to_string(super::root().join("docs/keys.md")).expect("the page of keys");
    let mut section = "";
    let mut n = 0;
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            section = name.trim_matches('`');
        }
        let Some(key) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) else { continue };
        let is_of_clients = ["timeout_s", "first_token_timeout_s", "cancel_ratio", "priority"].contains(&key);
        let is_of_servers = line.contains("serving") || line.contains("deployment");
        let asked = matches!(section, "engine" | "kv") && is_of_servers || section == "trace" && is_of_clients;
        if asked {
            n += 1;
            let key = format!("{section}.{key}");
            assert!(stacks::settings::knows(&key), "`{key}` has a row in stacks/src/settings.rs");
        }
    }
    assert!(n > 40, "{n} keys");
}
