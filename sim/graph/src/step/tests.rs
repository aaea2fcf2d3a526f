//! Steps played by the engine against times by hand.

use engine::cost::roofline::Roofline;
use engine::play::{Case, Machine, Outcome, simulate};
use engine::timeline::Timeline;
use hw::topology::Topology;

use super::*;

const NETWORK: Network = Network { layer: Layer::GraphSage, width: 128, hidden: 64 };

fn cluster(n_gpus: u32, island: u32, per_switch: u32) -> Cluster {
    let gpu = hw::catalog::gpu("a100-sxm-40g").expect("listed");
    let usual = hw::catalog::cluster(&gpu, 1, n_gpus);
    Cluster { nvlink_island: island, gpus_per_switch: per_switch, ..usual }
}

fn step(feature_lines: f64, peer_bytes: f64) -> GpuStep {
    GpuStep { feature_lines, peer_bytes, n_vertices: vec![100.0, 1000.0], n_picks: vec![1000.0], ..GpuStep::default() }
}

fn play(cluster: &Cluster, split: Split, step: &GpuStep, n_steps: usize) -> (TaskGraph, Timeline) {
    let gpus = vec![step.clone(); cluster.n_gpus() as usize];
    let graph = steps(cluster, NETWORK, split, &gpus, n_steps);
    let (cost, topology) = (Roofline::new(cluster), Topology::of(cluster));
    let machine =
        Machine { cost: &cost, topology: &topology, memory_bytes: u64::MAX, case: Case::Expected, speed_changes: &[] };
    match simulate(&graph, &machine) {
        Outcome::Done(timeline) => (graph, timeline),
        other => panic!("{other:?}"),
    }
}

fn seconds(timeline: &Timeline) -> f64 {
    timeline.span().to_seconds().get()
}

/// A million lines of 64 bytes at 0.75 of 32 GB/s are 2.667 ms. Alone on a switch the flow takes that; two on one link of 32 GB/s get 16 each
/// and take 4 ms, four take 8 ms. What a batch writes in its own memory beside it changes nothing.
#[test]
fn gpus_of_a_switch_share_its_link() {
    let time = |per_switch: u32, local_bytes: f64| {
        let step = GpuStep { local_bytes, ..step(1e6, 0.0) };
        let (graph, timeline) = play(&cluster(4, 4, per_switch), Split::Together, &step, 1);
        let gathers = (0..graph.tasks.len()).filter(|task| graph.tasks[*task].role == Role::Gather);
        let ends = gathers.map(|task| (timeline.end[task] - timeline.start[task]).to_seconds().get());
        ends.fold(0.0, f64::max)
    };
    for (per_switch, expected) in [(1, 64e6 / 24e9), (2, 4e-3), (4, 8e-3)] {
        for local_bytes in [0.0, 1000.0] {
            let time = time(per_switch, local_bytes);
            assert!((time - expected).abs() < 2e-5, "{per_switch}, {local_bytes}: {time}");
        }
    }
}

/// Where reading takes most of the time, a further step costs what it reads and training hides behind it.
#[test]
fn training_hides_behind_reading() {
    let machine = cluster(2, 2, 2);
    let time = |n_steps: usize| seconds(&play(&machine, Split::Together, &step(1e6, 0.0), n_steps).1);
    let further = (time(8) - time(4)) / 4.0;
    assert!((further / 4.0e-3 - 1.0).abs() < 0.02, "{further}");
    assert!(time(1) > further, "the first step trains after it has read");
}

#[test]
fn peers_cost_less_than_the_host() {
    let machine = cluster(4, 4, 2);
    let host = seconds(&play(&machine, Split::Together, &step(1e6, 0.0), 4).1);
    let peer = seconds(&play(&machine, Split::Together, &step(0.0, 64e6), 4).1);
    assert!(peer < host / 4.0, "{peer} {host}");
}

#[test]
fn samplers_of_their_own_leave_fewer_that_train() {
    let machine = cluster(4, 1, 1);
    let (graph, _) = play(&machine, Split::Apart { n_samplers: 1 }, &step(1e5, 0.0), 3);
    let forwards = graph.tasks.iter().filter(|task| task.role == Role::Forward);
    assert_eq!(forwards.clone().count(), 9);
    assert!(forwards.into_iter().all(|task| task.lane != LaneId(0)));
    let sampled = graph.tasks.iter().filter(|task| task.role == Role::Sampling && task.lane == LaneId(0));
    assert_eq!(sampled.count(), 18, "a kernel and a copy for each of nine batches");
}

/// GraphSAGE of two layers with 100 features and 256 hidden: 2 · 100 · 256 + 2 · 256 · 256.
#[test]
fn weights_are_those_by_hand() {
    let network = Network { layer: Layer::GraphSage, width: 100, hidden: 256 };
    assert_eq!(n_weights(&network, 2), 51_200 + 131_072);
    assert_eq!(n_weights(&Network { layer: Layer::Gcn, ..network }, 2), (51_200 + 131_072) / 2);
}
