//! Decoding sequences beside a prompt's chunk on cards that run FlashAttention 2, against tables of that launch.
//!
//! Tables: casys-kaist/LLMServingSim @ 5daddb21a545, profiler/perf (MIT), vLLM 0.19. The law (`engine::cost::decode::by_head`) was not fitted to them; the
//! shipped profiles have a curve of their own for it (`decode_attention.mixed`), which is taken out here.

use std::collections::BTreeMap;

use engine::cost::decode::by_head::{ByHead, INTERVAL};
use engine::cost::decode::{DecodeShape, Reads, ShapedDecode};
use engine::cost::profile::Profile;
use engine::cost::profiled::Profiled;
use engine::play::Case;
use hw::{Cluster, Dtype};

use crate::step_cost::ReplicaConfig;
use crate::step_cost::decode_attention::DecodeTicks;

fn profile(gpu: &str) -> Profile {
    let text = match gpu {
        "rtx-4090" => include_str!("../../../../../profiles/rtx-4090.toml"),
        "rtx-pro-6000" => include_str!("../../../../../profiles/rtx-pro-6000.toml"),
        _ => include_str!("../../../../../profiles/a100-sxm-vllm.toml"),
    };
    Profile::parse(text).expect("shipped")
}

fn cluster(gpu: &str) -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu(gpu).expect("listed"), 1, 1)
}

/// Seconds that so many sequences of so many keys add to a chunk, as the table has them: medians over chunks of 64 to 2048 tokens.
fn measured(folder: &str) -> Option<BTreeMap<(u64, u64), f64>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/llmservingsim/profiler/perf");
    let Ok(text) = std::fs::read_to_string(format!("{root}/{folder}/bf16/tp1/attention.csv")) else {
        println!("skipped: shared data absent ({folder})");
        return None;
    };
    let rows: Vec<Vec<f64>> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').map(|cell| cell.parse().expect("a number")).collect())
        .collect();
    let chunk = |row: &[f64]| [row[0], row[1]].map(hw::whole);
    let alone: BTreeMap<[u64; 2], f64> =
        rows.iter().filter(|row| row[2] == 0.0).map(|row| (chunk(row), row[4])).collect();
    let mut added: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row[2] > 0.0 && (64.0..=2048.0).contains(&row[0])) {
        let Some(without) = alone.get(&chunk(row)) else { continue };
        added.entry((hw::whole(row[2]), hw::whole(row[3]))).or_default().push((row[4] - without) * 1e-6);
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Some(added.into_iter().map(|(at, all)| (at, median(all))).collect())
}

/// Predicted over measured of sequences that together fill the card and read 2048 keys or more each.
fn ratios(gpu: &str, folder: &str, [n_heads, n_kv_heads]: [u64; 2]) -> Vec<f64> {
    let (cluster, mut profile) = (cluster(gpu), profile(gpu));
    let law = profile.decode_attention.as_mut().expect("a law");
    law.mixed = None;
    let shape = DecodeShape { n_heads, n_kv_heads, head_dim: 128, kv: Dtype::Bf16, reads: Reads::Heads };
    let shaped = ShapedDecode::of_law(law, shape, cluster.gpu.memory_bandwidth);
    let cost = Profiled::new(&profile, &cluster);
    let shaped = shaped.by_head(ByHead::on(&cluster.gpu, &shape, &cost));
    let rows = measured(folder).unwrap_or_default();
    let fills = |n: u64, keys: u64| n * n_heads >= 200 && keys >= 2048;
    let rows = rows.into_iter().filter(|((n, keys), _)| fills(*n, *keys));
    rows.map(|((n, keys), seconds)| shaped.beside_chunk(n).per_key_s * hw::real(n * keys) / seconds).collect()
}

#[test]
fn tables_of_the_launch_are_met_from_the_kernel_alone() {
    let llama = "meta-llama/Llama-3.1-8B";
    let (mut n_inside, mut n_all) = (0, 0);
    for (gpu, folder, heads) in [
        ("rtx-4090", format!("RTX4090/{llama}"), [32, 8]),
        ("rtx-pro-6000", format!("RTXPRO6000/{llama}"), [32, 8]),
        ("rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-32B".to_owned(), [64, 8]),
        ("rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507".to_owned(), [32, 4]),
    ] {
        let mut all = ratios(gpu, &folder, heads);
        all.sort_by(f64::total_cmp);
        let Some(median) = all.get(all.len() / 2) else { continue };
        println!("{gpu}, {folder}: {} rows, median {median:.2}, {:.2} to {:.2}", all.len(), all[0], all[all.len() - 1]);
        assert!((0.8..=1.25).contains(median), "{gpu}, {folder}: {all:?}");
        n_inside += all.iter().filter(|ratio| (INTERVAL[0]..=INTERVAL[1]).contains(&(1.0 / **ratio))).count();
        n_all += all.len();
    }
    println!("{n_inside} of {n_all} rows inside");
    assert!(n_inside * 100 >= n_all * 88, "{n_inside} of {n_all} rows inside");
}

/// Ticks per key of 64 sequences beside a chunk over those without one.
fn slower(model: &str, gpu: &str, (joint_attention, kv): (bool, Dtype)) -> f64 {
    let (cluster, profile) = (cluster(gpu), profile(gpu));
    let model = engine::model::embedded(model).expect("embedded");
    let mut config = ReplicaConfig { joint_attention, ..ReplicaConfig::new(&model, &cluster, 1) };
    config.formats.kv = kv;
    let ticks = DecodeTicks::new(&config, 64, &Profiled::new(&profile, &cluster), Case::Expected);
    ticks.per_key(64, 1).as_f64() / ticks.per_key(64, 0).as_f64()
}

#[test]
fn sequences_beside_a_chunk_are_slower_on_an_a100_under_an_engine_with_one_launch() {
    // Four and eight query heads of a key head: the tiles of all of them take longer than one reading of the keys.
    let [four, eight] = ["llama-3-8b", "qwen3-32b"].map(|model| slower(model, "a100-sxm-80g", (true, Dtype::Bf16)));
    assert!(four > 1.8 && (1.8..2.2).contains(&(eight / four)), "{four} and {eight}");
    let none = |found: f64| assert!((found - 1.0).abs() < 1e-9, "{found}");
    // Engines with a kernel of each kind, 8-bit keys, and attention with sinks go through other kernels.
    none(slower("llama-3-8b", "a100-sxm-80g", (false, Dtype::Bf16)));
    none(slower("llama-3-8b", "a100-sxm-80g", (true, Dtype::Fp8)));
    none(slower("gpt-oss-20b", "a100-sxm-80g", (true, Dtype::Bf16)));
    // Hopper packs query heads (FlashAttention 3).
    none(slower("llama-3-8b", "h100-sxm", (true, Dtype::Bf16)));
}
