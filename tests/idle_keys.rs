//! Keys of machines, runs of days and settings that change nothing are named, in every kind; what is named changes no figure.

use std::time::{Duration, Instant};

use input::diagnostic;
use reports::RunResult;
use scenario::Overrides;
use skrull_sim::kinds::{self, Checked};

/// Two replicas on two nodes.
const SERVING: &str = "kind = \"serving\"\n[model]\nname = \"llama-3.1-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\ngpus_per_node = 8\n\
    [trace]\nrequests = 20\nprompt_tokens = 500\noutput_tokens = 20\nrate_per_s = 0.01\narrivals = \"poisson\"\n[engine]\ntp = 8\n[fleet]\nreplicas = 2\n\
    [policies]\nrun = [\"one\"]\n[[policies.variant]]\nname = \"one\"\npolicy = \"vllm-v1\"\n";

fn of(text: &str, set: &[&str]) -> Checked {
    super::written(text.to_owned(), set)
}

fn words(checked: &Checked) -> String {
    diagnostic::render(&checked.source, &checked.findings)
}

fn run(checked: Checked) -> RunResult {
    let said = words(&checked);
    checked.scenario.unwrap_or_else(|| panic!("{said}")).run(&|_| {})
}

/// Figures of all rows.
fn figures(checked: Checked) -> Vec<String> {
    run(checked).results.iter().map(|row| format!("{:?} {:?}", row.status, row.metrics)).collect()
}

/// Whether a key is said to change nothing, and whether it changes nothing.
fn is_idle(ask: &dyn Fn(&[&str]) -> Checked, beside: &[&str], key: &str) -> (bool, bool) {
    let with = [beside, &[key]].concat();
    let name = key.split('=').next().expect("a key");
    // A table of a list is named by its section alone.
    let name = name.replace("group.a100.", "group.");
    let said = words(&ask(&with));
    let is_said = said.contains(&format!("`{name}` changes nothing"))
        || said.contains(&format!("`{}` changes nothing", key.replace('=', " = ")));
    (is_said, figures(ask(beside)) == figures(ask(&with)))
}

#[test]
fn networks_that_no_exchange_of_a_replica_heeds_are_named() {
    let ask = |set: &[&str]| of(SERVING, set);
    // Replicas inside of a node: what NVLink joins is measured, and nothing passes the leaves.
    for key in ["cluster.collectives=tree", "cluster.collectives=ring", "cluster.oversubscription=4.0"] {
        assert_eq!(is_idle(&ask, &[], key), (true, true), "{key}");
    }
    // A replica on two nodes sums over both. Its rings stay on their rails, and not in one tree of leaves.
    let wide = ["engine.tp=16", "fleet.replicas=1"];
    assert_eq!(is_idle(&ask, &wide, "cluster.collectives=ring"), (false, false));
    assert_eq!(is_idle(&ask, &wide, "cluster.oversubscription=4.0"), (true, true));
    let thin = [&wide[..], &["cluster.fabric=fat_tree", "cluster.nodes_per_leaf=1"]].concat();
    assert_eq!(is_idle(&ask, &thin, "cluster.oversubscription=4.0"), (false, false));
}

#[test]
fn networks_that_other_kinds_do_not_heed_are_named() {
    let tasks = |set: &[&str]| super::checked("multi-task/example", set);
    assert_eq!(is_idle(&tasks, &[], "cluster.collectives=tree"), (true, true));
    assert_eq!(is_idle(&tasks, &[], "cost.sustained_flops_ratio=0.5"), (true, true));
    let stages = |set: &[&str]| super::checked("curriculum/gradual-qwen2-7b", set);
    assert_eq!(is_idle(&stages, &[], "cluster.collectives=hierarchical"), (true, true));
    let zones = |set: &[&str]| super::checked("mixed-training/two-zones", set);
    for key in ["group.a100.oversubscription=4.0", "group.a100.collectives=tree"] {
        assert_eq!(is_idle(&zones, &[], key), (true, true), "{key}");
    }
}

#[test]
fn links_to_hosts_that_nothing_crosses_are_named_in_every_kind_of_training() {
    let [memory, tasks, stages] = ["compiler/llama-1b-codealpaca", "multi-task/example", "curriculum/gradual-qwen2-7b"]
        .map(|name| move |set: &[&str]| super::checked(name, set));
    for (kind, ask) in [("memory", &memory), ("multi-task", &tasks), ("curriculum", &stages)] {
        for key in ["cluster.host_gb_per_s=10", "cluster.gpus_per_switch=2"] {
            // Two GPUs of a switch: one alone has no pair.
            let beside: &[&str] = if kind == "memory" { &["cluster.gpus_per_node=2"] } else { &[] };
            assert_eq!(is_idle(ask, beside, key), (true, true), "{kind} {key}");
        }
        assert!(!words(&ask(&["cluster.gpus_per_switch=1"])).contains("gpus_per_switch"), "{kind}");
    }
    // Cards without links of their own exchange over the bus, and states on the host are read by it.
    let bus = ["cluster.nvlink_island=1", "cluster.peer_access=false"];
    for key in bus {
        assert!(!is_idle(&stages, &[key], "cluster.host_gb_per_s=10").0, "{key}");
    }
    assert!(!is_idle(&tasks, &["training.offload_ratio=0.5"], "cluster.host_gb_per_s=10").0);
}

/// Mean seconds from arrival to the last token where prompts are computed on one replica and decoded on another.
fn split_s(set: &[&str]) -> f64 {
    let set = [&["policies.variant.one.prefill_replicas=1"], set].concat();
    let result = run(of(SERVING, &set));
    result.results[0].metrics["e2e_s.mean"]
}

#[test]
fn keys_and_values_wait_for_the_latency_between_the_replicas() {
    // Requests come one by one, so each takes its own transfer. Tensor groups of eight lie on a node each: the first byte comes a millisecond later.
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-7, "{found} s, expected {expected} s");
    let at = |us: &str| split_s(&[&format!("cluster.inter_node_latency_us={us}")]);
    near(at("1005") - at("5"), 1e-3);
    // Two replicas of one GPU lie on one node, and the network has no part in it.
    let one = ["engine.tp=1", "cluster.nodes=1"];
    let with = |key: &str| split_s(&[&one[..], &[key]].concat());
    near(with("cluster.intra_node_latency_us=1002") - with("cluster.intra_node_latency_us=2"), 1e-3);
    near(with("cluster.inter_node_latency_us=1005") - with("cluster.inter_node_latency_us=5"), 0.0);
}

#[test]
fn a_run_of_days_that_keeps_nothing_is_refused_or_has_no_plan() {
    let begun = Instant::now();
    // Each 0.11 s one of 16,384 GPUs fails: a billion failures are not drawn.
    let refused = words(&super::checked("resilience/weeks", &["failures.gpu_mtbf_hours=0.5"]));
    assert!(refused.contains("error[S199]: a failure of the job every 0.11 s against a restart of 300 s"), "{refused}");
    assert!(refused.contains("raise `failures.gpu_mtbf_hours`"), "{refused}");
    // Each 11 s, so that one restart in e^27 succeeds.
    let row = &run(super::checked("resilience/weeks", &["failures.gpu_mtbf_hours=50"])).results[0];
    assert!(!row.status.is_ok() && row.why.starts_with("a failure every 11 s against a restart of 30"), "{}", row.why);
    assert!(begun.elapsed() < Duration::from_secs(60), "nothing is drawn");
    // A list of failures that strikes every restart, in a run of 0.24 hours.
    let (mut source, folder) = scenario::find("resilience/weeks").expect("shipped");
    source.text = source.text.replace("gpu_mtbf_hours = 50700.0", "at_hours = [0.001, 0.08, 0.16]");
    source.text = source.text.replace("days = 54.0", "days = 0.01");
    let row = &run(kinds::check(source, &folder, &Overrides::default())).results[0];
    assert!(!row.status.is_ok() && row.why.starts_with("nothing of the run is kept"), "{}", row.why);
}

#[test]
fn keys_of_counted_rates_are_named_beside_a_rate() {
    for key in ["rows=4", "skew=4", "clusters=96", "spread=0.2", "error_max=0.5", "expert_change=2"] {
        let key = format!("experts.compression.{key}");
        let name = key.split('=').next().expect("a key");
        let found = words(&super::checked("moe/lsh-gpt-15b", &[&key]));
        assert!(found.contains(&format!("`{name}` changes nothing")), "{key}: {found}");
        let counted = words(&super::checked("moe/lsh-hashes", &[&key]));
        assert!(!counted.contains(&format!("`{name}` changes nothing")), "{key}: {counted}");
    }
}

#[test]
fn settings_that_cannot_be_are_named_by_verbs_that_ask_none() {
    for (key, why) in [("tune.tp=100", "100"), ("tune.ep=4", "has no experts")] {
        let found = words(&of(SERVING, &[key]));
        assert!(found.contains("`[tune]` changes nothing") && found.contains(why), "{key}: {found}");
    }
    let found = words(&of(SERVING, &["tune.tp=[1,100]"]));
    assert!(!found.contains("`[tune]` changes nothing"), "one of them can be: {found}");
}

#[test]
fn sentences_name_the_key_where_the_command_line_gave_it() {
    let found = words(&of(SERVING, &["cluster.gpu=h100x"]));
    assert!(found.contains("`cluster.gpu` names an unknown GPU `h100x`"), "{found}");
    let found = words(&super::checked("rl/placement", &["rollouts.train_nodes=abc"]));
    assert!(found.contains("`rollouts.train_nodes` is `abc`") && found.contains("a whole number of nodes"), "{found}");
    let result = run(super::checked("curriculum/gradual-qwen2-7b", &["budget.usd=0.01"]));
    let notes: Vec<String> = result.results.into_iter().filter_map(|row| row.planner).flat_map(|of| of.notes).collect();
    let over = notes.iter().find(|note| note.contains("of a budget of")).expect("a cent is not enough");
    // A cent pays for four GPUs at 2.25 dollars an hour for four seconds.
    assert!(over.ends_with("of a budget of 4.0 s") && !over.contains("0.00"), "{over}");
}
