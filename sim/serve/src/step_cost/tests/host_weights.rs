//! Weights in host memory: what a step takes over the link, and what room they leave.

use hw::Bytes;

use super::*;
use crate::capacity;
use crate::step_cost::host_weights::{HostPart, HostWay, HostWeights};

/// Seconds of a step that decodes so many sequences, and bytes of weights on a GPU, with weights kept so over a link of so many bytes a second.
fn found(model: &str, weights: Option<HostWeights>, bytes_per_s: f64, n_decode: u32) -> (f64, f64) {
    let model = engine::model::embedded(model).expect("listed");
    let mut cluster = a100();
    cluster.gpu.host_bandwidth = hw::BytesPerSecond::new(bytes_per_s);
    let cost = Roofline::new(&cluster);
    let deployment = ReplicaConfig { host_weights: weights, ..ReplicaConfig::new(&model, &cluster, 2) };
    let table = StepTable::new(&deployment, (256, 256), &cost, Case::Expected);
    let load = StepLoad { n_decode, n_sampled: n_decode, ..StepLoad::default() };
    let step = table.step(&load, std::iter::empty()).span().to_seconds().get();
    (step, capacity::weights(&deployment).as_f64())
}

const fn of(way: HostWay) -> Option<HostWeights> {
    Some(HostWeights { way, part: HostPart::All })
}

/// Share of the link that copies reach, as `ReplicaConfig::host_link` has it.
const REACHED: f64 = 0.75;
const LINK: f64 = 32e9;

#[test]
fn copies_add_the_time_of_the_link_and_reads_take_the_place_of_memory() {
    let gib = Bytes::from_gib(4.0);
    let link = gib.as_f64() / (LINK * REACHED);
    let (plain, all) = found("llama-3-8b", None, LINK, 1);
    let (copied, _) = found("llama-3-8b", of(HostWay::Copied(gib)), LINK, 1);
    assert!((copied - plain - link).abs() < 1e-6, "{copied} of {plain} and {link}");
    // Read in place, the same bytes are not read out of the device's memory. Half of the layers' 7 GiB on this GPU take half of their products.
    let (read, left) = found("llama-3-8b", of(HostWay::InPlace(gib)), LINK, 1);
    assert!(read < copied && read > link, "{read} of {copied}");
    let memory = gib.as_f64() / (0.75 * 2039e9);
    // Each of four products of a layer starts its kernel besides.
    let starts = 32.0 * 4.0 * KERNEL_START_S;
    assert!(copied - read > memory && copied - read < memory + starts, "{} of {memory} and {starts}", copied - read);
    assert!((all - left - gib.as_f64()).abs() < 2.0, "{all} less {left}");
}

#[test]
fn a_link_without_limit_costs_nothing() {
    for way in [
        HostWay::InPlace(Bytes::from_gib(4.0)),
        HostWay::Copied(Bytes::from_gib(4.0)),
        HostWay::Ahead { n: 1, of: 4, ahead: 1 },
    ] {
        let (plain, _) = found("llama-3-8b", None, 1e18, 8);
        let (with, left) = found("llama-3-8b", of(way), 1e18, 8);
        assert!((with - plain).abs() < 1e-6, "{way:?}: {with} of {plain}");
        assert!(left < found("llama-3-8b", None, 1e18, 8).1);
    }
}

#[test]
fn copies_ahead_set_the_pace_of_a_slow_link_and_hide_behind_layers_of_a_fast_one() {
    let way = |ahead| of(HostWay::Ahead { n: 1, of: 4, ahead });
    let (plain, all) = found("llama-3-8b", None, LINK, 1);
    // A quarter of the layers: their bytes over the link, and the layers in front of the first copy.
    let (slow, left) = found("llama-3-8b", way(1), LINK, 1);
    let kept = (all - left) * 8.0 / 7.0;
    let link = kept / (LINK * REACHED);
    assert!(slow > link && slow < link + plain, "{slow} of {link}");
    // Sixteen times as fast: one copy of eight is waited for.
    let (fast, _) = found("llama-3-8b", way(1), 100.0 * LINK, 1);
    let copy = link / 100.0 / 8.0;
    assert!((fast - plain - copy).abs() < 1e-6, "{fast} of {plain} and {copy}");
    // A second buffer takes the room of a layer.
    let (_, further) = found("llama-3-8b", way(2), LINK, 1);
    assert!((further - left - kept / 8.0).abs() < 4.0, "{further} of {left}");
}

#[test]
fn of_experts_in_host_memory_those_are_read_that_are_visited() {
    let kept = |way| Some(HostWeights { way, part: HostPart::Experts });
    let gib = Bytes::from_gib(16.0);
    let (plain, _) = found("mixtral-8x7b", None, LINK, 1);
    let (read, _) = found("mixtral-8x7b", kept(HostWay::InPlace(gib)), LINK, 1);
    // One token visits two of eight.
    let visited = gib.as_f64() / 4.0 / (LINK * REACHED);
    assert!(read > visited && read < plain + visited, "{read} of {visited}");
    let (copied, _) = found("mixtral-8x7b", kept(HostWay::Copied(gib)), LINK, 1);
    assert!((copied - plain - 4.0 * visited).abs() < 1e-6, "{copied}");
    // Many visit all.
    let (many, _) = found("mixtral-8x7b", kept(HostWay::InPlace(gib)), LINK, 256);
    assert!(many > 4.0 * visited * 0.999, "{many}");
    // More than there is keeps what there is. Attention, embedding and head are left, and a buffer for the experts of a layer: 1.3, 0.3 and 1.4 GB.
    let [all, more] =
        [60.0, 600.0].map(|gib| found("mixtral-8x7b", kept(HostWay::Copied(Bytes::from_gib(gib))), LINK, 1));
    assert!((all.0 - more.0).abs() < 1e-9 && all.1 < 3.1e9, "{all:?} {more:?}");
}
