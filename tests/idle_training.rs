//! Keys of a training scenario without effect: what is said to change nothing changes nothing, and what changes something is not said to.

use input::diagnostic::Code;
use reports::PolicyResult;
use skrull_sim::kinds::training::run as pipeline;

const BASE: &str = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n\
    [training]\nbatch_size = 16\n[workload]\ntokens = 2048\n[policies]\nrun = [\"megatron\"]\n";

/// Sentences of S017, the whole result, and what of the costs is said to be fitted or assumed.
fn told(set: &[&str]) -> (Vec<String>, Vec<PolicyResult>, Vec<String>) {
    let checked = super::written(BASE.to_owned(), set);
    let idle = checked.findings.iter().filter(|finding| finding.code == Code::NoEffect);
    let idle = idle.map(|finding| finding.what.clone()).collect();
    let scenario = super::training(checked);
    let mut rows = pipeline::run(&scenario, &|_| {}).result.results;
    rows.iter_mut().for_each(|row| row.measured = reports::Measured::default());
    (idle, rows, scenario.free_parameters)
}

/// What a run gives, without the bytes of memory that its bucket could have held.
fn given(rows: &[PolicyResult]) -> Vec<String> {
    rows.iter().map(|row| format!("{:?} {:?} {:?}", row.status, row.metrics, row.interval)).collect()
}

fn check(beside: &[&str], key: &str, is_idle: bool) {
    let with: Vec<&str> = beside.iter().copied().chain([key]).collect();
    let ((_, before, _), (idle, after, _)) = (told(beside), told(&with));
    let name = key.split('=').next().unwrap_or_default();
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_said = idle.iter().any(|what| what.contains(&format!("`{name}")) || what.starts_with(&format!("`{last}`")));
    assert_eq!(is_said, is_idle, "{beside:?} {key}: {idle:?}");
    assert_eq!(given(&before) == given(&after), is_idle, "{beside:?} {key}");
}

#[test]
fn keys_of_weights_are_idle_beside_adapters() {
    let adapters = ["optimizer.trains=adapters", "parallel.zero=1"];
    for key in ["optimizer.rule=muon", "overlap.parameter_gather=true"] {
        check(&adapters, key, true);
        check(&["parallel.zero=1"], key, false);
    }
    // Adapters have gradients and states of their own, which ZeRO 1 shards.
    for key in [
        "optimizer.first_moment=bf16",
        "optimizer.second_moment=bf16",
        "optimizer.master=fp16",
        "training.gradient_dtype=fp32",
        "parallel.replicate=2",
    ] {
        check(&adapters, key, false);
    }
    // Parameters that ZeRO 3 shards are gathered beside adapters too.
    check(&["optimizer.trains=adapters", "parallel.zero=3"], "parallel.replicate=2", false);
}

/// Under ZeRO 3 no rank has room for whole gradients, so none wait for the end of a step, but those of PyTorch's modules. Under ZeRO 2 they can, and take that
/// room.
#[test]
fn gradients_that_cannot_wait_are_reduced_in_each_backward() {
    // Eight ranks hold an eighth each, or all. Formulas: 7/8 of 8 billion in 16 bits are 14 GB, less two layers and the head. PyTorch: in 32 bits 28 to 32 GB.
    for (framework, is_idle, room) in [("formulas", true, 9e9..20e9), ("pytorch", false, 26e9..33e9)] {
        let framework = format!("training.framework={framework}");
        check(&[&framework, "parallel.zero=3"], "training.gradient_sync=at_end", is_idle);
        check(&[&framework, "parallel.zero=2"], "training.gradient_sync=at_end", false);
        let peak = |sync: &str| {
            let (_, rows, _) = told(&[&framework, "parallel.zero=2", &format!("training.gradient_sync={sync}")]);
            rows[0].metrics["peak_memory_bytes"]
        };
        let more = peak("at_end") - peak("overlapped");
        assert!(room.contains(&more), "{framework}: {more}");
    }
    // Frozen weights have no gradients. Those of adapters are reduced behind the last backward in either case.
    check(&["optimizer.trains=adapters", "parallel.zero=3"], "training.gradient_sync=at_end", true);
}

/// Embedding and head keep two moments beside Muon.
#[test]
fn the_second_moment_of_muon_is_that_of_the_tables() {
    check(&["optimizer.rule=muon", "parallel.zero=1"], "optimizer.second_moment=bf16", false);
}

#[test]
fn keys_of_what_is_not_there_are_idle() {
    check(&[], "overlap.stage=false", true);
    check(&["parallel.pp=2"], "overlap.stage=false", false);
    check(&["training.attention=flash"], "training.dropout=attention", true);
    check(&["training.attention=flash"], "training.dropout=residual", false);
    check(&["training.attention=unfused"], "training.dropout=none", false);
    let units = ["cost.units={ forward_us = 1, input_us = 1, weight_us = 1 }"];
    check(&units, "training.products=fp8", true);
    check(&units, "cost.sustained_flops_ratio=0.5", true);
    check(&[], "cost.sustained_flops_ratio=0.5", false);
    // The head alone is narrow: no gather is, and its copy stands in for it.
    let head = ["parallel.zero=1", "training.framework=megatron-core", "training.products={ head = \"fp8\" }"];
    check(&head, "training.narrow_gather=true", false);
}

/// NVLink joins the GPUs of a node, so without an offload nothing passes a host.
#[test]
fn links_to_the_host_are_idle_where_nothing_passes_one() {
    for key in ["cluster.host_gb_per_s=20", "cluster.gpus_per_switch=4"] {
        for beside in [&[][..], &["parallel.tp=8"], &["parallel.pp=2"], &["cluster.nodes=2"]] {
            check(beside, key, true);
        }
        let states = ["optimizer.offload_ratio=1.0", "optimizer.host_memory_gb_per_s=50", "parallel.zero=1"];
        for beside in [&["training.offload_ratio=0.5"][..], &states] {
            check(beside, key, false);
        }
    }
    // Checkpoints of a run of days go to the host first.
    let days = ["failures={ days = 3, gpu_mtbf_hours = 5000 }", "checkpoint={ storage_gb_per_s = 100 }"];
    check(&days, "cluster.host_gb_per_s=20", false);
    check(&days, "cluster.gpus_per_switch=4", true);
}

/// Exchanges of consecutive ranks in powers of two join GPUs of one place in their nodes, which one rail has. Leaves of a fat tree are nodes.
#[test]
fn narrow_links_above_rails_are_idle_where_no_exchange_leaves_its_rail() {
    let key = "cluster.oversubscription=50";
    for layout in [&["parallel.tp=8"][..], &["parallel.tp=1"], &["parallel.tp=8", "parallel.pp=2"]] {
        let beside: Vec<&str> = ["cluster.nodes=2"].into_iter().chain(layout.iter().copied()).collect();
        check(&beside, key, true);
    }
    check(&["cluster.nodes=8", "cluster.fabric=fat_tree", "parallel.tp=8"], key, false);
    // An all-to-all of experts over two nodes leaves its rail, unless it joins one GPU of each.
    let experts = ["cluster.nodes=2", "model.name=olmoe-1b-7b"];
    check(&[&experts[..], &["parallel.ep=16"]].concat(), key, false);
    check(&[&experts[..], &["parallel.tp=8", "parallel.ep=2"]].concat(), key, true);
    // Stages and rings reach neighbours, whatever place these have, and groups that a policy makes may lie anywhere.
    let hybrid = "policies.run=[\"hybrid-cp\"]";
    for layout in [&["parallel.pp=16"][..], &["parallel.cp=16", "parallel.exchange=ring"], &["parallel.cp=16", hybrid]]
    {
        let beside: Vec<&str> = ["cluster.nodes=2", key].into_iter().chain(layout.iter().copied()).collect();
        let (idle, ..) = told(&beside);
        assert!(!idle.iter().any(|what| what.contains("oversubscription")), "{layout:?}: {idle:?}");
    }
}

#[test]
fn parameters_of_a_policy_are_idle_without_their_mode() {
    let of = |policy: &str, more: &[&str]| {
        let run = format!("policies.run=[\"{policy}\"]");
        [run].into_iter().chain(more.iter().map(|item| (*item).to_owned())).collect::<Vec<String>>()
    };
    for (policy, layout, key, mode) in [
        ("bytescale", "parallel.cp=8", "offload_ratio=0.7", "offload=fixed"),
        ("malleus", "parallel.zero=1", "restart_s=100", "reaction=restart"),
        ("hydraulis", "parallel.zero=1", "seconds=2", "dispatch=milp"),
    ] {
        let run = of(policy, &[layout]);
        let beside: Vec<&str> = run.iter().map(String::as_str).collect();
        let key = format!("policies.{policy}.{key}");
        check(&beside, &key, true);
        let mode = format!("policies.{policy}.{mode}");
        let (idle, ..) = told(&beside.iter().copied().chain([key.as_str(), mode.as_str()]).collect::<Vec<_>>());
        assert!(!idle.iter().any(|what| what.contains("changes nothing under")), "{idle:?}");
    }
}

#[test]
fn keys_of_one_layout_are_idle_beside_a_search() {
    let lists =
        ["parallel.layout=search", "search.tp=[2]", "search.pp=[1,2]", "search.cp=[1]", "search.micro_batch=[1]"];
    for key in [
        "parallel.tp=4",
        "parallel.pp=2",
        "parallel.cp=2",
        "parallel.zero=3",
        "parallel.schedule=zb-1p",
        "parallel.sequence_parallel=false",
        "training.recompute=full",
        "training.offload_ratio=0.5",
        "training.bucket_tokens=4096",
    ] {
        check(&lists, key, true);
    }
    let both: Vec<&str> = lists.iter().copied().chain(["search.products=[\"bf16\"]"]).collect();
    check(&both, "training.products=fp8", true);
    check(&lists, "training.products=fp8", false);
    // Without shards there is nothing to copy, and with those of parameters no gradient waits: then a list of one stage decides.
    for (stages, key, is_idle) in [
        ("search.zero=[0]", "parallel.replicate=2", true),
        ("search.zero=[3]", "training.gradient_sync=at_end", true),
        ("search.zero=[1]", "training.gradient_sync=at_end", false),
    ] {
        check(&lists.iter().copied().chain([stages]).collect::<Vec<_>>(), key, is_idle);
    }
    // What the search takes as it is: copies of the states are a part of what it found.
    let (idle, rows, _) =
        told(&lists.iter().copied().chain(["parallel.replicate=2", "search.zero=[1]"]).collect::<Vec<_>>());
    assert!(idle.is_empty(), "{idle:?}");
    assert_eq!(rows[0].chosen["replicate"], 2);
}

#[test]
fn a_key_that_stands_for_the_launches_of_a_host_says_so() {
    let core = ["training.framework=megatron-core", "parallel.zero=1"];
    let (_, left_out, words) = told(&core);
    assert!(!words.iter().any(|word| word.contains("launches of the card's host")), "{words:?}");
    let with: Vec<&str> = core.iter().copied().chain(["training.host_overhead_per_layer_us=0"]).collect();
    let (_, zero, words) = told(&with);
    assert!(words.iter().any(|word| word.contains("launches of the card's host, which are not counted")), "{words:?}");
    assert!(zero[0].metrics["iteration_time_s"] < left_out[0].metrics["iteration_time_s"]);
}

#[test]
fn any_overlap_of_an_all_to_all_says_that_the_host_interleaves() {
    let job = |ep: u32| {
        [format!("parallel.ep={ep}"), "overlap.expert=0.01".to_owned(), "model.name=qwen3-30b-a3b".to_owned()]
            .into_iter()
            .chain(
                ["training.framework=megatron-core", "cluster.nodes=2", "parallel.zero=1", "cluster.memory_gib=400"]
                    .map(str::to_owned),
            )
            .collect::<Vec<String>>()
    };
    let words = |ep| {
        let set = job(ep);
        told(&set.iter().map(String::as_str).collect::<Vec<_>>()).2
    };
    assert!(words(8).iter().any(|word| word.contains("its launches take 2 times as long")), "{:?}", words(8));
    assert!(!words(1).iter().any(|word| word.contains("its launches")), "{:?}", words(1));
}

#[test]
fn a_way_of_collectives_that_no_group_takes_is_idle() {
    // One node: exchanges are measured. Two nodes: gathers and scatters over both have no tree, and a sum has.
    check(&["parallel.tp=8"], "cluster.collectives=tree", true);
    let two = ["cluster.nodes=2", "parallel.tp=8", "parallel.dp=2"];
    let with = |zero: &'static str| [&two[..], &[zero]].concat();
    check(&with("parallel.zero=1"), "cluster.collectives=tree", true);
    check(&with("parallel.zero=1"), "cluster.collectives=hierarchical", false);
    check(&with("parallel.zero=0"), "cluster.collectives=tree", false);
}

#[test]
fn cutting_what_is_not_too_long_and_steps_that_repeat_are_idle() {
    check(&[], "workload.longer=cut", true);
    check(&["workload.max_tokens=4096"], "workload.longer=cut", true);
    check(&["workload.max_tokens=1500"], "workload.longer=cut", false);
    let said = |set: &[&str]| told(set).0.iter().any(|what| what.starts_with("`training.steps` = 3 changes nothing"));
    assert!(said(&["training.steps=3"]));
    // Means over the steps are those of one.
    let step_s = |set: &[&str]| told(set).1[0].metrics["iteration_time_s"];
    assert!((step_s(&["training.steps=3"]) / step_s(&[]) - 1.0).abs() < 1e-9);
    // Sequences of other lengths, and devices that are slow in one of the steps.
    assert!(!said(&["training.steps=3", "workload.max_tokens=900", "workload.longer=cut"]));
    // Tokens find other experts in every step.
    let of_experts = ["training.steps=3", "model.name=olmoe-1b-7b", "experts.imbalance=0.5"];
    assert!(!said(&of_experts) && said(&of_experts[..2]));
    assert!(!said(&["training.steps=3", "stragglers=[{ ranks = [0], rate = 2.0, from_step = 1 }]"]));
}
