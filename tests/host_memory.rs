//! What training keeps in the memory of its hosts: closed forms of states and activations, and what does not fit.

use input::diagnostic::Code;
use reports::{Ended, PolicyResult};
use skrull_sim::kinds::training::run as pipeline;

const BASE: &str = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[parallel]\nzero = 1\n\
    [training]\nframework = \"megatron-core\"\nbatch_size = 8\nbucket_tokens = 2048\n[workload]\ntokens = 2048\n[policies]\nrun = [\"megatron\"]\n";
const STATES: [&str; 2] = ["optimizer.offload_ratio=1.0", "optimizer.host_memory_gb_per_s=50"];

/// The row of the base with some keys, and what is said to change nothing.
fn told(set: &[&str]) -> (PolicyResult, Vec<String>) {
    let checked = super::written(BASE.to_owned(), set);
    let idle = checked.findings.iter().filter(|finding| finding.code == Code::NoEffect);
    let idle = idle.map(|finding| finding.what.clone()).collect();
    let result = pipeline::run(&super::training(checked), &|_| {}).result;
    (result.results.into_iter().next().expect("one policy"), idle)
}

fn host_bytes(set: &[&str]) -> f64 {
    told(set).0.metrics.get("host_memory_bytes").copied().unwrap_or(0.0)
}

fn n_parameters() -> f64 {
    hw::real(engine::model::embedded("llama-3-8b").expect("embedded").n_parameters())
}

fn near(found: f64, counted: f64) {
    assert!((found / counted - 1.0).abs() < 1e-3, "{found} against {counted}");
}

/// A master copy and two moments in 32 bits are twelve bytes of a parameter, and the pinned gradient that the host steps with four: DeepSpeed's estimator has as many
/// (`estimate_zero2_model_states_mem_needs`: 16). All of them are there once where ranks share them, and once for each rank where not.
#[test]
fn states_on_the_host_are_twelve_bytes_of_a_parameter_and_its_gradient_four() {
    let whole = 16.0 * n_parameters();
    near(host_bytes(&STATES), whole);
    near(host_bytes(&[STATES[1], "optimizer.offload_ratio=0.25"]), whole / 4.0);
    near(host_bytes(&[&STATES[..], &["parallel.zero=0", "parallel.tp=8"]].concat()), whole);
    near(host_bytes(&[&STATES[..], &["parallel.zero=0", "cluster.memory_gib=400"]].concat()), 8.0 * whole);
    // Two nodes share them.
    near(host_bytes(&[&STATES[..], &["cluster.nodes=2", "training.batch_size=16"]].concat()), whole / 2.0);
    // With two stages of a pipeline on two nodes, the node with the head and the larger part has more than half.
    let staged = host_bytes(&[&STATES[..], &["cluster.nodes=2", "parallel.pp=2", "parallel.layers=[20, 12]"]].concat());
    assert!(staged > whole * 0.55 && staged < whole * 0.7, "{staged} of {whole}");
    assert_eq!(host_bytes(&[]), 0.0);
}

/// DeepSpeed's ZeRO 3 with everything on the host keeps two bytes of a parameter there, twelve of states, and its shares of gradients: a device has two layers.
#[test]
fn parameters_on_the_host_are_there_but_for_two_layers() {
    let set = [
        "training.framework=deepspeed",
        "parallel.zero=3",
        "training.parameters_on_host=true",
        "training.gradient_dtype=bf16",
    ];
    let alone = host_bytes(&set);
    near(alone, 2.0 * n_parameters() * (30.0 / 32.0));
    let both = host_bytes(&[&set[..], &STATES[..]].concat());
    // Shares of gradients in 16 bits add up there, and become those in 32 bits of the host's step.
    near(both - alone, (12.0 + 2.0 + 4.0) * n_parameters());
    // ZeRO 2 has whole parameters on the device, and shares of 16 bits on their way back from the host.
    let second = [set[0], "parallel.zero=2", set[3]];
    near(host_bytes(&[&second[..], &STATES].concat()), (12.0 + 2.0 + 4.0 + 2.0) * n_parameters());
    // The published formulas have no such copies.
    near(host_bytes(&["training.framework=formulas", STATES[0], STATES[1]]), 12.0 * n_parameters());
}

/// One micro-batch of 2,048 tokens on each of eight ranks: a rank's activations, eight times.
#[test]
fn activations_wait_on_the_host() {
    let checked = super::written(BASE.to_owned(), &[]);
    let problem = super::training(checked).problem;
    let stage = train::stage::stages(&problem)[0];
    let of_rank = hw::real(2048 * train::memory::activation_bytes_per_token(&problem, &stage));
    near(host_bytes(&["training.offload_ratio=1.0"]), 8.0 * of_rank);
    near(host_bytes(&["training.offload_ratio=0.5"]), 4.0 * of_rank);
    // A second micro-batch comes when the first has gone.
    near(host_bytes(&["training.offload_ratio=0.5", "training.batch_size=16"]), 4.0 * of_rank);
}

#[test]
fn what_does_not_fit_on_the_host_is_out_of_memory_with_its_parts() {
    // 12 bytes of 8.03 billion parameters are 89.7 GiB, and 4 are 29.9.
    let with = |gib: &str| told(&[&STATES[..], &[gib]].concat()).0;
    let row = with("cluster.host_memory_gib=100");
    assert_eq!(row.status, Ended::OutOfMemory, "{}", row.why);
    assert_eq!(
        row.why,
        "the host of a node needs 119.7 GiB (optimizer states 89.7 GiB, pinned copies 29.9 GiB), and has 100.0 GiB (`cluster.host_memory_gib`)"
    );
    let row = with("cluster.host_memory_gib=120");
    assert_eq!(row.status, Ended::Ok, "{}", row.why);
    assert!(
        row.why.contains("the host of the fullest node keeps optimizer states 89.7 GiB, pinned copies 29.9 GiB"),
        "{}",
        row.why
    );
}

#[test]
fn memory_of_a_host_that_keeps_nothing_is_said_to_change_nothing() {
    let key = "cluster.host_memory_gib=80";
    let said = |set: &[&str]| told(set).1.iter().any(|what| what.contains("host_memory_gib"));
    assert!(said(&[key]));
    assert!(!said(&[&STATES[..], &[key]].concat()));
    assert!(!said(&["training.offload_ratio=0.5", key]));
}

/// A search takes a layout whose states fit: it may put all of them on the hosts or none.
#[test]
fn a_search_leaves_out_what_hosts_have_no_room_for() {
    let set = ["parallel={ layout = \"search\" }", "search.offload_ratio=[0.0, 1.0]", "search.recompute=[\"none\"]"];
    let framework = "training.framework=pytorch";
    let small = told(&[&set[..], &[framework, "cluster.host_memory_gib=1"]].concat()).0;
    assert!(!small.metrics.contains_key("host_memory_bytes"), "{}", small.why);
}
