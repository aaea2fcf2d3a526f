//! Every key of `[training]`, `[parallel]` and `[overlap]`: changed from its default it changes a figure, or is said to change nothing, or is refused. This holds for every
//! framework and every stage of ZeRO, with and without a pipeline of tensor groups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use input::diagnostic::{Code, Severity, Source};
use rayon::prelude::*;
use scenario::Overrides;
use skrull_sim::kinds;
use skrull_sim::kinds::training::run as pipeline;

const BASE: &str = "kind = \"training\"\n[model]\nname = \"tinyllama-1.1b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n\
    [training]\nbatch_size = 16\nbucket_tokens = 1024\n[workload]\ntokens = 1024\n[policies]\nrun = [\"megatron\"]\n";
const FRAMEWORKS: [&str; 4] = ["formulas", "megatron-core", "pytorch", "deepspeed"];
const LAYOUTS: [&[&str]; 2] = [&[], &["parallel.tp=2", "parallel.pp=2"]];

/// A key, and values of which one is not its default.
const CHANGED: &[(&str, &[&str])] = &[
    ("training.attention", &["unfused"]),
    ("training.attention", &["flash-attention-3"]),
    ("training.attention", &["cudnn"]),
    ("training.bucket_tokens", &["2048"]),
    ("training.casts", &["rowwise"]),
    ("training.compile", &["true"]),
    ("training.dropout", &["attention"]),
    ("training.dropout", &["residual"]),
    ("training.fragmentation", &["1.3"]),
    ("training.gradient_dtype", &["bf16", "fp32"]),
    ("training.gradient_sync", &["each_micro_batch"]),
    ("training.gradient_sync", &["at_end"]),
    ("training.graphs", &["attention"]),
    ("training.graphs", &["router"]),
    ("training.graphs", &["step"]),
    ("training.host_overhead_per_layer_us", &["200"]),
    ("training.loss", &["native"]),
    ("training.loss", &["te"]),
    ("training.loss", &["linear"]),
    ("training.loss", &["chunked"]),
    ("training.loss", &["chunked-nll"]),
    ("training.loss_parallel", &["false"]),
    ("training.narrow_gather", &["true"]),
    ("training.offload_ratio", &["0.5"]),
    ("training.parameters_on_host", &["true"]),
    ("training.predicting_layers", &["1"]),
    ("training.products", &["fp8"]),
    ("training.recompute", &["none", "full"]),
    ("training.recompute", &["core_attn"]),
    ("training.recompute", &["layernorm"]),
    ("training.recompute_layers", &["1"]),
    ("training.repeat_kv", &["true"]),
    ("training.unfused", &["[\"permutation\"]"]),
    ("training.unfused", &["[\"activation\"]"]),
    ("overlap.backward_prefetch", &["false", "true"]),
    ("overlap.delayed_weights", &["true"]),
    ("overlap.expert", &["0.5"]),
    ("overlap.forward_prefetch", &["false", "true"]),
    ("overlap.parameter_gather", &["true"]),
    ("overlap.slowdown", &["1.5"]),
    ("overlap.stage", &["false"]),
    ("overlap.tensor", &["0.5"]),
    ("parallel.chunks", &["2"]),
    ("parallel.cp", &["2"]),
    ("parallel.dp", &["1"]),
    ("parallel.ep", &["2"]),
    ("parallel.exchange", &["gather", "ring", "ulysses"]),
    ("parallel.expert_tp", &["2"]),
    ("parallel.flush_every", &["1"]),
    ("parallel.micro_batch_group", &["4"]),
    ("parallel.order", &["dp-cp-pp-tp"]),
    ("parallel.pp", &["4"]),
    ("parallel.replicate", &["2"]),
    ("parallel.schedule", &["gpipe"]),
    ("parallel.sequence_parallel", &["true", "false"]),
    ("parallel.tp", &["4"]),
];

/// Keys that are no change of how a step is executed, with why.
const OTHERS: [(&str, &str); 9] = [
    ("training.framework", "the test goes through all"),
    ("parallel.zero", "the test goes through all"),
    ("training.batch_size", "what is asked"),
    ("training.steps", "what is asked"),
    ("training.dtype", "fp16 has the bytes and products of bf16"),
    ("parallel.layers", "as many as stages"),
    ("parallel.layout", "a search"),
    ("training.zero", "of `[[group]]`, see mixed_training.rs"),
    ("training.tokens", "of `[[group]]`, see mixed_training.rs"),
];
/// Keys of `[[group]]` alone.
const MIXED: [&str; 3] = ["training.messages", "training.micro_batch", "training.micro_batches"];

/// Figures of a scenario, without bytes that depend on nothing but room; `None` where it is refused. And what is said to change nothing.
fn told(set: &[String]) -> Option<(Vec<String>, String)> {
    let source = Source { path: "keys.toml".to_owned(), text: BASE.to_owned() };
    let checked = kinds::check(source, Path::new("."), &Overrides { set: set.to_vec(), ..Overrides::default() });
    if checked.findings.iter().any(|finding| finding.severity == Severity::Error) {
        return None;
    }
    let idle = checked.findings.iter().filter(|finding| finding.code == Code::NoEffect);
    let idle = idle.map(|finding| finding.what.clone()).collect();
    let rows = pipeline::run(&super::training(checked), &|_| {}).result.results;
    let figures: Vec<String> = rows.iter().map(|row| format!("{:?} {:?}", row.status, row.metrics)).collect();
    Some((idle, figures.concat()))
}

/// Whether a value of a key acts, or something is said of it.
enum Found {
    Heeded,
    /// Nothing changes, and nothing is said.
    Silent,
    /// It is said to change nothing, and does.
    Wrong,
}

fn found(beside: &[String], before: &str, key: &str, value: &str) -> Found {
    let set: Vec<String> = beside.iter().cloned().chain([format!("{key}={value}")]).collect();
    let Some((idle, after)) = told(&set) else { return Found::Heeded };
    let last = key.rsplit('.').next().unwrap_or_default();
    let is_said = idle.iter().any(|what| what.contains(&format!("`{key}")) || what.contains(&format!("`{last}`")));
    match (is_said, after == *before) {
        (false, true) => Found::Silent,
        (true, false) => Found::Wrong,
        _ => Found::Heeded,
    }
}

/// What is wrong with a key beside others, if anything.
fn fault(beside: &[String], before: &str, (key, values): &(&str, &[&str])) -> Option<String> {
    let all: Vec<Found> = values.iter().map(|value| found(beside, before, key, value)).collect();
    let set = format!("{} {key} = {values:?}", beside.join(" "));
    if all.iter().all(|one| matches!(one, Found::Silent)) {
        return Some(format!("{set}: nothing changes, and nothing is said"));
    }
    all.iter().any(|one| matches!(one, Found::Wrong)).then(|| format!("{set}: it is said to change nothing, and does"))
}

#[test]
fn every_key_acts_or_is_said_to_do_nothing() {
    let mut cases: Vec<Vec<String>> = Vec::new();
    for framework in FRAMEWORKS {
        for zero in 0..4 {
            for layout in LAYOUTS {
                let set = [format!("training.framework={framework}"), format!("parallel.zero={zero}")];
                cases.push(set.into_iter().chain(layout.iter().map(|item| (*item).to_owned())).collect());
            }
        }
    }
    let faults_of = |beside: &Vec<String>| {
        let Some((_, before)) = told(beside) else { return Vec::new() };
        // Messages of a small model lie beside gathers of ZeRO 3, which take longer.
        let is_hidden = |key: &str| key == "overlap.stage" && beside[1] == "parallel.zero=3";
        let keys = CHANGED.iter().filter(|(key, _)| !is_hidden(key));
        keys.filter_map(|key| fault(beside, &before, key)).collect()
    };
    let faults: Vec<Vec<String>> = cases.par_iter().map(faults_of).collect();
    let faults = faults.concat();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A prefetch that is asked for by name has something to gather, or is said to have nothing.
#[test]
fn a_prefetch_needs_gathers() {
    for key in ["overlap.forward_prefetch", "overlap.backward_prefetch"] {
        for value in ["true", "false"] {
            for zero in 0..4 {
                let set = [format!("parallel.zero={zero}"), format!("{key}={value}")];
                let (idle, _) = told(&set).expect("a scenario");
                assert_eq!(idle.iter().any(|what| what.contains(key)), zero < 3, "{set:?} {idle:?}");
            }
        }
    }
}

/// The lists above have every key of these sections that kind `training` has.
#[test]
fn no_key_is_left_out() {
    let page = std::fs::read_to_string(super::root().join("docs/keys.md")).expect("a page");
    let mut keys: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for section in ["training", "parallel", "overlap"] {
        let from = page.find(&format!("\n## `{section}`\n")).expect("a section") + 4;
        let rows = page[from..].split("\n## ").next().unwrap_or_default();
        let is_of_training = |row: &&str| row.split(" | ").nth(5).is_some_and(|kinds| kinds.contains("training"));
        let names = rows.lines().filter(is_of_training).filter_map(|row| row.strip_prefix("| `")?.split('`').next());
        keys.insert(section, names.map(|name| format!("{section}.{name}")).collect());
    }
    let known = CHANGED.iter().map(|(key, _)| *key).chain(OTHERS.iter().map(|(key, _)| *key)).chain(MIXED);
    let known: BTreeSet<String> = known.map(str::to_owned).collect();
    let asked: BTreeSet<String> = keys.into_values().flatten().collect();
    assert_eq!(asked, known);
}
