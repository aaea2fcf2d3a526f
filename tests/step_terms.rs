//! A step of two configurations term by term, each against first principles: bytes over bandwidth, operations over peak.
//!
//! Tensor parallelism over PCIe (Qwen3-32B) and experts over two GPUs with attention on each (Qwen3-30B-A3B), on cards without peer access. The table
//! is on `docs/accuracy.md`.

use std::collections::BTreeMap;

use engine::cost::CostModel;
use engine::cost::profiled::Profiled;
use engine::model::{Model, embedded};
use engine::play::Case;
use hw::Cluster;
use serve::step_cost::average::Average;
use serve::step_cost::{ReplicaConfig, StepLoad, StepTable};

/// Decoding sequences of the whole replica, and keys of each.
const DECODE: u64 = 64;
const KEYS: u64 = 1000;

fn cluster() -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu("rtx-pro-6000").expect("listed"), 1, 2)
}

fn costs(cluster: &Cluster) -> impl CostModel {
    Profiled::new(&calibrate::profiles::of_serving("rtx-pro-6000", None).expect("shipped"), cluster)
}

/// Milliseconds of a step by what is done.
fn terms(config: &ReplicaConfig<'_>, costs: &dyn CostModel) -> BTreeMap<&'static str, f64> {
    let (decode, keys) = (DECODE as f64, KEYS as f64);
    let average = Average { decode, keys, prompt: 0.0, prompt_whole: 0.0, adapted: 0.0, adapters: 0.0 };
    let mut all = BTreeMap::new();
    for (what, _, seconds) in average.provenance(config, costs).seconds() {
        *all.entry(what).or_default() += seconds * 1e3;
    }
    all
}

/// Milliseconds of a whole step.
fn step_ms(config: &ReplicaConfig<'_>, costs: &dyn CostModel) -> f64 {
    let table = StepTable::new(config, (2048, 128), costs, Case::Expected);
    let n = u32::try_from(DECODE).expect("few");
    let load = StepLoad { n_decode: n, context: DECODE * KEYS, n_sampled: n, ..StepLoad::default() };
    table.step(&load, std::iter::empty()).to_seconds() * 1e3
}

fn model(name: &str) -> Model {
    embedded(name).expect("listed")
}

/// Milliseconds of so many bytes at the datasheet's bandwidth of memory.
fn memory_ms(bytes: f64) -> f64 {
    bytes / cluster().gpu.memory_bandwidth.get() * 1e3
}

fn told(what: &str, found: &BTreeMap<&'static str, f64>, principles: &[(&str, f64)]) {
    for (term, ms) in found {
        let first = principles.iter().find(|(known, _)| known == term).map_or(f64::NAN, |(_, ms)| *ms);
        println!("{what}: {term}: {ms:.3} ms, first principles {first:.3} ms, ratio {:.2}", ms / first);
    }
}

/// Every term is there, no faster than first principles, and at most so many times as slow.
fn close(found: &BTreeMap<&'static str, f64>, principles: &[(&str, f64)], most: &[f64]) {
    for ((term, least), most) in principles.iter().zip(most) {
        let ms = found[term];
        assert!(ms >= least * 0.97 && ms <= least * most, "{term}: {ms} ms, first principles {least} ms");
    }
}

#[test]
fn tensor_parallelism_over_pcie_is_the_sum_of_terms_that_first_principles_explain() {
    let (model, cluster) = (model("qwen3-32b"), cluster());
    let (config, costs) = (ReplicaConfig::new(&model, &cluster, 2), costs(&cluster));
    let found = terms(&config, &costs);
    // Half of all products, 2 bytes a weight, read once; the embedding is looked up.
    let weights = 2.0 * (model.n_parameters() - model.vocab * model.hidden) as f64 / 2.0;
    // Keys and values of half of the heads.
    let cached = (DECODE * KEYS) as f64 * engine::memory::kv_bytes_per_token(&model, 2, 2) as f64;
    // Two exchanges a layer: each rank sends half and gets half twice, through host memory at 16 GB/s and 20 us, behind a kernel's start of 15 us
    // and two further steps of 4 us.
    let message = (DECODE * model.hidden * 2) as f64 / 16e9 + 20e-6 + 15e-6 + 4e-6;
    let exchanges = 2.0 * model.n_layers as f64 * message * 1e3;
    let principles = [
        ("matrix products", memory_ms(weights)),
        ("attention of decoding sequences", memory_ms(cached)),
        ("all-reduce", exchanges),
    ];
    told("qwen3-32b, tp 2", &found, &principles);
    close(&found, &principles, &[1.25, 1.6, 1.05]);
    let (sum, whole) = (found.values().sum::<f64>(), step_ms(&config, &costs));
    println!("qwen3-32b, tp 2: sum {sum:.3} ms, step {whole:.3} ms");
    assert!((sum / whole - 1.0).abs() < 0.01, "{sum} ms in terms, {whole} ms as a whole");
}

#[test]
fn experts_over_two_ranks_are_the_sum_of_terms_that_first_principles_explain() {
    let (model, cluster) = (model("qwen3-30b-a3b"), cluster());
    let config = ReplicaConfig { expert_degree: 2, ..ReplicaConfig::new(&model, &cluster, 1) };
    let costs = costs(&cluster);
    let found = terms(&config, &costs);
    // Each rank decodes half of the sequences and has half of the experts. 64 tokens visit 8 of 128 experts each: 98 % of them, evenly.
    let experts = model.experts.expect("experts");
    let visited = 1.0 - (1.0 - experts.top_k as f64 / experts.n_routed as f64).powi(64);
    let of_experts = 2.0 * (model.n_layers * experts.n_routed * model.expert_parameters()) as f64 / 2.0 * visited;
    let routed = model.n_layers * experts.n_routed * model.expert_parameters();
    let dense = 2.0 * (model.n_parameters() - model.vocab * model.hidden - routed) as f64;
    let cached = (DECODE / 2 * KEYS) as f64 * engine::memory::kv_bytes_per_token(&model, 1, 2) as f64;
    let principles = [
        ("matrix products", memory_ms(dense)),
        ("attention of decoding sequences", memory_ms(cached)),
        ("experts", memory_ms(of_experts)),
    ];
    told("qwen3-30b-a3b, ep 2", &found, &principles);
    close(&found, &principles[..2], &[4.0, 2.0]);
    let (sum, whole) = (found.values().sum::<f64>(), step_ms(&config, &costs));
    println!("qwen3-30b-a3b, ep 2: sum {sum:.3} ms, step {whole:.3} ms");
    assert!((sum / whole - 1.0).abs() < 0.02, "{sum} ms in terms, {whole} ms as a whole");
}
