//! What the command line says beside a configuration, and names and defaults of its keys.

use input::diagnostic::{Code, Severity};

use super::import::import;
use crate::example::has_parts;
use crate::{Imported, Machine};

const CONFIG: &str = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "overlap_comm": true}}"#;

fn found(text: &str) -> Imported {
    let set = ["cluster.gpu=h100-sxm", "model.name=llama-3-8b", "workload.tokens=8192"];
    import(text, &Machine::of_overrides(&set.map(str::to_owned)))
}

#[test]
fn the_old_name_of_a_format_and_defaults_are_read() {
    let old = found(&CONFIG.replace("\"bf16\"", "\"bfloat16\""));
    assert_eq!(old.scenario, found(CONFIG).scenario);
    let of = |parts: &str| found(&CONFIG.replace("\"stage\": 3,", &format!("\"stage\": 3, {parts},"))).findings;
    for (usual, other) in [
        ("\"zero_hpz_partition_size\": 1", "\"zero_hpz_partition_size\": 12"),
        ("\"mics_shard_size\": -1", "\"mics_shard_size\": 4"),
    ] {
        assert_eq!(of(usual).len(), found(CONFIG).findings.len(), "{usual}");
        assert!(of(other).iter().any(|one| one.code == Code::NotModelled), "{other}");
    }
    let both = found(&CONFIG.replace("\"bf16\"", "\"fp16\": {\"enabled\": true}, \"bf16\""));
    assert!(both.findings.iter().any(|one| one.severity == Severity::Error && one.what.contains("both true")));
}

/// Four replicas of a file are as many on more ranks each, and so take as many GPUs more.
#[test]
fn degrees_of_the_command_line_count_among_the_gpus() {
    let text = CONFIG.replace("\"gradient_accumulation_steps\": 4", "\"gradient_accumulation_steps\": 8");
    for (set, lines) in [
        (&[][..], &["nodes = 1", "gpus_per_node = 4", "pp = 1"][..]),
        (&["parallel.pp=2"], &["nodes = 1", "gpus_per_node = 8", "pp = 2"]),
        (&["parallel.tp=2", "cluster.nodes=1"], &["nodes = 1", "gpus_per_node = 8", "tp = 2"]),
        (&["parallel.pp=4", "cluster.nodes=2"], &["nodes = 2", "gpus_per_node = 8", "pp = 4"]),
    ] {
        let usual = ["cluster.gpu=h100-sxm", "model.name=llama-3-8b", "workload.tokens=4096"];
        let set: Vec<String> = usual.iter().chain(set).map(|one| (*one).to_owned()).collect();
        let found = import(&text, &Machine::of_overrides(&set));
        assert!(!found.findings.iter().any(|one| one.severity == Severity::Error), "{set:?}: {:?}", found.findings);
        has_parts(&found, lines);
    }
}
