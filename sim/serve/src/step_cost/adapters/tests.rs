//! Time and memory of adapters by hand, on a datasheet's roofline.

use engine::cost::roofline::{KERNEL_START_S, Roofline};
use engine::play::Case;
use hw::{Bytes, Cluster};

use super::*;
use crate::step_cost::adapter_room::Modules;
use crate::step_cost::fusion::Fusion;
use crate::step_cost::{ReplicaConfig, StepTable};

const ALL: Modules = Modules { attention: true, feed_forward: true };
const ROOM: AdapterRoom = AdapterRoom { slots: 40, rank_max: 16, modules: ALL };

fn a100() -> Cluster {
    hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-80g").expect("listed"), 1, 8)
}

/// Seconds of an iteration of so many decoding sequences with so many adapters, less the same without.
fn added_s(config: &ReplicaConfig<'_>, n_decode: u32, n: u32) -> f64 {
    let cost = Roofline::new(config.cluster);
    let table = StepTable::new(config, (256, 256), &cost, Case::Expected);
    let fixed = |load| table.law_of(n_decode, load, 0).fixed.to_seconds();
    fixed(AdapterLoad { tokens: n_decode, n }) - fixed(AdapterLoad::default())
}

#[test]
fn a_token_with_an_adapter_reads_it_once_and_starts_twelve_kernels_in_a_layer() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let config = ReplicaConfig { adapters: Some(ROOM), ..ReplicaConfig::new(&model, &cluster, 1) };
    // Llama-3-8B: hidden 4096, 32 heads and 8 key-value heads of 128, 14,336 in the feed-forward, 32 layers. Elements of a layer per rank:
    // 3 · 4096 + 6144 and 2 · 4096 for attention, 2 · 4096 + 28,672 and 14,336 + 4096 for the feed-forward.
    let of_layer = 12_288.0 + 6144.0 + 8192.0 + 8192.0 + 28_672.0 + 18_432.0;
    let adapter = of_layer * 2.0 * 16.0;
    // A token's own: inputs of the four modules, their outputs read and written, and seven slices of sixteen floats that are cleared, written and read.
    let inputs = 4096.0 + 4096.0 + 4096.0 + 14_336.0;
    let outputs = 6144.0 + 4096.0 + 28_672.0 + 4096.0;
    let token = 2.0 * inputs + 4.0 * outputs + 3.0 * 7.0 * 16.0 * 4.0;
    let bandwidth = 0.75 * 2039e9;
    for (n_decode, n) in [(1, 1), (32, 1), (32, 32), (200, 40)] {
        let bytes = f64::from(n) * adapter + f64::from(n_decode) * token;
        let expected = 32.0 * (12.0 * KERNEL_START_S + bytes / bandwidth);
        let found = added_s(&config, n_decode, n);
        assert!((found / expected - 1.0).abs() < 1e-3, "{n_decode} sequences, {n} adapters: {found} s of {expected} s");
    }
    // Between tabulated numbers of adapters the time lies on a line, which it does anyway.
    let [a, b, c] = [8, 12, 16].map(|n| added_s(&config, 32, n));
    assert!((a + c - 2.0 * b).abs() < 1e-9, "{a} {b} {c}");
}

#[test]
fn replayed_graphs_start_kernels_sooner_and_a_group_cuts_one_of_both_matrices() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let plain = ReplicaConfig { adapters: Some(ROOM), ..ReplicaConfig::new(&model, &cluster, 1) };
    let fused = ReplicaConfig { fusion: Fusion::Norms, ..plain.clone() };
    // 384 kernels of 4 µs start in 2.6 µs.
    let saved = added_s(&plain, 8, 2) - added_s(&fused, 8, 2);
    assert!((saved - 384.0 * 1.4e-6).abs() < 1e-8, "{saved}");
    // Down to the rank from the hidden state is whole, so is up from the rank to it; the other ends are cut.
    let whole = 3 * 4096 + 4096 + 2 * 4096 + 4096;
    let parts = (6144 + 4096 + 28_672 + 14_336) / 4;
    assert_eq!(ROOM.bytes_per_rank(&model, 4, hw::Dtype::Bf16).0, (whole + parts) * 2 * 32);
}

#[test]
fn slots_take_memory_whatever_they_hold() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let plain = ReplicaConfig::new(&model, &cluster, 1);
    let with = ReplicaConfig { adapters: Some(ROOM), ..plain.clone() };
    let room = |config: &ReplicaConfig<'_>| crate::capacity::of(config, 0.9, Bytes(0)).expect("fits").kv.0;
    // Peft reports 41,943,040 parameters for rank 16 on all seven matrices of Llama-3-8B.
    assert_eq!(room(&plain) - room(&with), 40 * 41_943_040 * 2);
    let attention = Modules { feed_forward: false, ..ALL };
    // On queries, keys, values and outputs alone: 13,631,488.
    assert_eq!(AdapterRoom { modules: attention, ..ROOM }.bytes(&model, 1, hw::Dtype::Bf16).0, 40 * 13_631_488 * 2);
}

#[test]
fn multiplications_count_where_ranks_are_large() {
    let (model, cluster) = (engine::model::embedded("llama-3-8b").expect("listed"), a100());
    let time = |rank_max: u32| {
        let room = AdapterRoom { rank_max, ..ROOM };
        let config = ReplicaConfig { adapters: Some(room), ..ReplicaConfig::new(&model, &cluster, 1) };
        let cost = Roofline::new(&cluster);
        AdapterWriter::new(&Writer::new(&config, &cost, Case::Expected), room).time(8192, 1).get()
    };
    // 2 · 8192 · 512 · 2,621,440 elements per rank at three quarters of 312e12 per second.
    let elements = f64::from(32 * (3 * 4096 + 6144 + 8192 + 2 * 4096 + 28_672 + 18_432));
    let least = 2.0 * 8192.0 * 512.0 * elements / (0.75 * 312e12);
    assert!(time(512) > 0.9 * least, "{} of {least}", time(512));
    assert!(time(8) < 2.5 * time(1), "bytes of tokens count more than small ranks");
}

/// Qwen3-30B-A3B: 48 layers of 128 experts, 8 for a token, hidden 2048, 768 in an expert.
#[test]
fn adapters_on_experts_are_read_for_every_expert_that_is_visited() {
    let (model, cluster) = (engine::model::embedded("qwen3-30b-a3b").expect("listed"), a100());
    let modules = Modules { attention: false, feed_forward: true };
    let room = AdapterRoom { modules, ..ROOM };
    let config = ReplicaConfig { adapters: Some(room), ..ReplicaConfig::new(&model, &cluster, 1) };
    // `w13_lora_a_stacked`, `w13_lora_b_stacked`, `w2_lora_a_stacked` and `w2_lora_b_stacked` of `fused_moe.py`, per rank.
    let of_expert = 2 * 2048 + 2 * 768 + 768 + 2048;
    assert_eq!(room.bytes_per_rank(&model, 1, hw::Dtype::Bf16).0, 48 * 128 * of_expert * 2);
    // A row's own: inputs, outputs read and written, and three slices of sixteen numbers of 16 bits that are cleared, written and read.
    let row = 2.0 * (2048.0 + 768.0) + 4.0 * (2.0 * 768.0 + 2048.0) + 3.0 * 3.0 * 16.0 * 2.0;
    let matrices = hw::real(of_expert) * 2.0 * 16.0;
    for (n_decode, n) in [(1_u32, 1_u32), (32, 32), (32, 4), (200, 1)] {
        // One token visits eight experts; of several each expert is missed by all with the chance of a draw without it.
        let visited = 128.0 * (1.0 - (120.0_f64 / 128.0).powf(f64::from(n_decode) / f64::from(n)));
        let bytes = f64::from(n) * visited * matrices + 8.0 * f64::from(n_decode) * row;
        let expected = 48.0 * (6.0 * KERNEL_START_S + bytes / (0.75 * 2039e9));
        let found = added_s(&config, n_decode, n);
        assert!((found / expected - 1.0).abs() < 1e-3, "{n_decode} sequences, {n} adapters: {found} s of {expected} s");
    }
}
