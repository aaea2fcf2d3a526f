//! Sequences: what overlap hides, what slicing saves, and what a batch holds, against sums by hand.

use engine::cost::roofline::Roofline;
use engine::verdict::Ended;
use graph::generate::{Bursts, bursts};
use graph::tcsr::{Reverse, Take};

use super::*;

fn asked(neighbours: &[u32], batches: &[u32], n_layers: u32) -> Asked {
    let shape = Bursts { n_vertices: 500, n_events: 40_000, length: 4.0, skew: 2.0, span: 1 << 30 };
    let events = bursts(&shape, 1);
    let past = past::of_events(500, &events, Reverse::With, (neighbours, batches), Take::Recent).expect("a graph");
    let cluster = hw::catalog::cluster(&hw::catalog::gpu("a100-sxm-40g").expect("listed"), 1, 1);
    Asked {
        past,
        n_events: 40_000.0,
        n_epochs: 5,
        width: 64,
        hidden: 64,
        n_heads: 2,
        n_layers,
        neighbours: neighbours.to_vec(),
        batches: batches.to_vec(),
        threads_max: 4,
        costs: HostCosts::of_ns(100.0, 10.0),
        epoch_s_max: f64::INFINITY,
        machine: Machine {
            memory_bytes: cluster.gpu.memory.0,
            cluster,
            stragglers: train::straggler::Rates::default(),
            usd_per_gpu_hour: None,
        },
    }
}

fn run(asked: &Asked, name: &str) -> Judged<Plan> {
    let policy = POLICIES.iter().find(|policy| policy.name == name).expect("a policy");
    judged(asked, policy, &Roofline::new(&asked.machine.cluster))
}

#[test]
fn overlap_hides_the_shorter_part() {
    let asked = asked(&[32], &[256], 2);
    let [serial, ahead] = ["tf-tgn-serial", "tf-tgn"].map(|name| run(&asked, name).metrics);
    let parts: f64 = ["sampling", "gather", "training"].iter().map(|key| serial[&format!("{key}_per_epoch_s")]).sum();
    let steps = serial["iteration_time_s"] * serial["n_steps"];
    assert!((steps / parts - 1.0).abs() < 0.02, "one after the other: {steps} {parts}");
    let longest =
        ["sampling", "gather", "training"].iter().map(|key| ahead[&format!("{key}_per_epoch_s")]).fold(0.0, f64::max);
    let steps = ahead["iteration_time_s"] * ahead["n_steps"];
    assert!((steps / longest - 1.0).abs() < 0.05, "the longest alone: {steps} {longest}");
    assert!(ahead["hidden_per_epoch_s"] > 0.0 && serial["hidden_per_epoch_s"] < 0.02 * parts);
}

#[test]
fn slicing_saves_the_copy_of_the_past_and_moving_once_saves_bytes() {
    let asked = asked(&[8], &[256], 1);
    let [slices, copies] =
        ["tf-tgn", "tf-tgn-release"].map(|name| run(&asked, name).metrics["host_sampling_per_step_s"]);
    // By hand: a query more takes 3 numbers of every slot before it.
    let sequences = 3.0 * 256.0 * asked.past.roots[0];
    let more = sequences * 3.0 * asked.past.before * 10e-9 / 4.0;
    assert!((copies - slices - more).abs() < 1e-9, "{copies} {slices} {more}");
    let [each, once] = ["tgl", "etc"].map(|name| run(&asked, name).metrics["gather_per_epoch_s"]);
    assert!(once < each);
}

/// With two layers TGL's attention asks for neighbours of neighbours; a decoder's second layer does not.
#[test]
fn a_second_layer_multiplies_the_queries_of_a_query_and_not_of_a_decoder() {
    let (one, two) = (asked(&[8], &[64], 1), asked(&[8], &[64], 2));
    let tgl = POLICIES[0];
    let tf_tgn = *POLICIES.iter().find(|policy| policy.name == "tf-tgn-apart").expect("a policy");
    let found = one.past.found[0].0;
    let queries = |asked: &Asked, policy: &Policy| Rows::of(asked, policy, (0, 0)).n_queries();
    assert!((queries(&two, &tgl) / queries(&one, &tgl) - (1.0 + found)).abs() < 1e-9);
    assert_eq!(queries(&two, &tf_tgn), queries(&one, &tf_tgn));
    assert_eq!(queries(&one, &tf_tgn), 192.0);
}

#[test]
fn the_most_neighbours_within_the_limit_are_taken_and_the_choice_is_the_best() {
    let mut asked = asked(&[4, 64, 16], &[128, 512], 1);
    let found = run(&asked, "tf-tgn");
    assert_eq!(found.metrics["n_neighbours"], 64.0);
    let decision = found.decision.expect("a plan");
    assert!(decision.runner_up().expect("several choices").objective >= decision.objective().expect("seconds"));
    asked.epoch_s_max = 0.0;
    assert_eq!(run(&asked, "tf-tgn").ended, Ended::Infeasible);
    asked.machine.memory_bytes = 1000;
    assert_eq!(run(&asked, "tf-tgn").ended, Ended::OutOfMemory);
}

/// Degrees alone against events that are there: what a query finds, within a fifth.
#[test]
fn degrees_alone_know_the_past() {
    let events = asked(&[16], &[256], 1).past;
    let classes = events.rows.iter().map(|&(degree, count)| graph::distribution::Class { degree, count }).collect();
    let degrees = past::of_degrees(&graph::distribution::Degrees { classes }, &[16], &[256]);
    for (name, found, expected) in [
        ("before", degrees.before, events.before),
        ("log2", degrees.log2_length, events.log2_length),
        ("found", degrees.found[0].0, events.found[0].0),
    ] {
        assert!((found / expected - 1.0).abs() < 0.2, "{name}: {found} {expected}");
    }
}
