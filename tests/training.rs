//! Claims about the training step across every combination of exchange, ZeRO stage, recompute and gradient reduction.

use std::collections::BTreeMap;
use std::path::Path;

use input::diagnostic::{Severity, Source};
use reports::PolicyResult;
use scenario::{self, Overrides};
use skrull_sim::kinds;
use skrull_sim::kinds::training::run as pipeline;

fn run(set: &[&str]) -> BTreeMap<String, PolicyResult> {
    let (source, folder) = scenario::find("quickstart").expect("shipped");
    let mut all: Vec<String> =
        ["training.steps=1", "training.batch_size=36", "training.bucket_tokens=8192", "workload.max_tokens=30000"]
            .map(str::to_owned)
            .to_vec();
    all.push("policies.run=[\"deepspeed\", \"megatron\", \"best_fit\", \"skrull\"]".to_owned());
    all.extend(set.iter().map(|item| (*item).to_owned()));
    let checked = kinds::check(source, &folder, &Overrides { set: all, ..Overrides::default() });
    let scenario = super::training(checked);
    let rows = pipeline::run(&scenario, &|_| {}).result.results;
    rows.into_iter().map(|row| (row.policy.clone(), row)).collect()
}

fn time(rows: &BTreeMap<String, PolicyResult>, policy: &str) -> f64 {
    rows[policy].metrics["iteration_time_s"]
}

#[test]
fn every_combination_finishes_within_its_interval_and_its_memory() {
    for exchange in ["gather", "ring", "ulysses"] {
        for zero in 0..4 {
            for recompute in ["none", "selective", "mlp", "layernorm", "full"] {
                let set = [
                    format!("parallel.exchange={exchange}"),
                    format!("parallel.zero={zero}"),
                    format!("training.recompute={recompute}"),
                    "parallel.cp=2".to_owned(),
                    "parallel.dp=16".to_owned(),
                    "training.bucket_tokens=16384".to_owned(),
                ];
                let rows = run(&set.each_ref().map(String::as_str));
                for (policy, row) in rows {
                    let what = format!("{exchange}, ZeRO {zero}, {recompute}, {policy}");
                    assert!(row.status.is_ok(), "{what}: {}", row.why);
                    let [low, high] = row.interval["iteration_time_s"];
                    let found = row.metrics["iteration_time_s"];
                    assert!(low <= found && found <= high, "{what}: {found} in {low} to {high}");
                    assert!(row.metrics["peak_memory_bytes"] <= 80.0 * 1_073_741_824.0, "{what}");
                    let shares: f64 = ["compute_busy_ratio", "comm_exposed_ratio", "wait_ratio"]
                        .iter()
                        .map(|key| row.metrics[*key])
                        .sum();
                    assert!((shares - 1.0).abs() < 1e-6, "{what}: shares add up to {shares}");
                }
            }
        }
    }
}

#[test]
fn full_recompute_trades_time_for_memory() {
    let (kept, full) = (run(&["training.recompute=none"]), run(&["training.recompute=full"]));
    for policy in ["deepspeed", "skrull"] {
        assert!(time(&full, policy) > time(&kept, policy), "{policy}");
        assert!(full[policy].metrics["peak_memory_bytes"] < kept[policy].metrics["peak_memory_bytes"], "{policy}");
    }
}

#[test]
fn layers_that_recompute_add_up() {
    for mode in ["selective", "mlp", "layernorm", "full"] {
        let of = |layers: u32| {
            let set = [format!("training.recompute={mode}"), format!("training.recompute_layers={layers}")];
            run(&set.each_ref().map(String::as_str))
        };
        let (none, six, twelve, all) = (run(&["training.recompute=none"]), of(6), of(12), of(24));
        for policy in ["deepspeed", "skrull"] {
            // 24 layers: memory falls and recompute grows by the same amount for every six, while others are left.
            let kept = |rows: &BTreeMap<String, PolicyResult>| rows[policy].metrics["peak_activation_bytes"];
            let saved = [&six, &twelve, &all].map(|rows| kept(&none) - kept(rows));
            let made = [&six, &twelve, &all].map(|rows| time(rows, policy) - time(&none, policy));
            assert!(made[0] > 0.0 && made[0] < made[1] && made[1] < made[2], "{mode}, {policy}: {made:?}");
            assert!((saved[1] / saved[0] / 2.0 - 1.0).abs() < 0.01, "{mode}: {saved:?}");
            // A layer that is made again lies where layers behind it were. Of all layers the last one has none behind it. Formulas make its input again, too.
            let beside = (4.0 * saved[0] - saved[2]) / (saved[0] / 6.0);
            assert!((0.99..1.2).contains(&beside), "{mode}: {beside} of {saved:?}");
        }
        assert_eq!(time(&of(1000), "skrull"), time(&all, "skrull"), "more than there are is all");
    }
}

#[test]
fn gathering_ahead_is_never_slower_than_on_demand() {
    let zero = "parallel.zero=3";
    let both = run(&[zero]);
    for key in ["forward_prefetch", "backward_prefetch"] {
        let without = run(&[zero, &format!("overlap.{key}=false")]);
        for policy in ["deepspeed", "skrull"] {
            assert!(time(&without, policy) > time(&both, policy), "{key}, {policy}");
        }
    }
}

#[test]
fn reducing_gradients_behind_backward_is_never_slower_than_at_the_end() {
    let (behind, end) = (run(&["training.gradient_sync=overlapped"]), run(&["training.gradient_sync=at_end"]));
    for policy in ["deepspeed", "skrull"] {
        // Four buckets start four times, which the overlap must win back; a fifth of a per cent is their start-up.
        assert!(time(&behind, policy) <= time(&end, policy) * 1.002, "{policy}");
    }
}

#[test]
fn sharding_states_lowers_memory_stage_by_stage() {
    let peaks: Vec<f64> = (0..4)
        .map(|zero| run(&[&format!("parallel.zero={zero}")])["deepspeed"].metrics["peak_memory_bytes_min"])
        .collect();
    assert!(peaks.windows(2).all(|pair| pair[1] < pair[0]), "{peaks:?}");
}

#[test]
fn memory_planned_from_the_device_fits_the_device() {
    // Without `bucket_tokens` the bucket is what memory leaves; strict Skrull and best fit must then never run out.
    let rows = run(&["training.bucket_tokens=0", "training.batch_size=256", "workload.max_tokens=131072"]);
    for policy in ["skrull", "best_fit"] {
        assert!(rows[policy].status.is_ok(), "{policy}: {}", rows[policy].why);
    }
}

/// A job with experts over two nodes in the kernels of a framework, with a line of `[training]` and one of `[experts]`.
fn experts(training: &str, experts: &str) -> scenario::training::Scenario {
    let text = format!(
        "kind = \"training\"\n[model]\nname = \"qwen3-30b-a3b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\n[parallel]\nep = 16\nzero = 1\n\
         [training]\nframework = \"megatron-core\"\nbatch_size = 16\nbucket_tokens = 2048\nrecompute = \"full\"\n{training}\n[experts]\n{experts}\n\
         [workload]\ntokens = 2048\n"
    );
    let source = input::diagnostic::Source { path: "experts.toml".to_owned(), text };
    super::training(kinds::check(source, super::root(), &Overrides::default()))
}

#[test]
fn graphs_and_dispatchers_are_asked_as_measured_steps_ask_them() {
    use score::training::constants::{Constants, Graphs};
    for (word, graphs) in Graphs::WORDS {
        let execution = experts(&format!("graphs = \"{word}\""), "").problem.execution;
        let (waits, launches) = Constants::of("h100-sxm").host(graphs);
        assert_eq!((execution.host_overhead_per_layer, execution.launches), (waits, launches), "{word}");
    }
    let step = |training: &str, dispatch: &str| {
        pipeline::run(&experts(training, dispatch), &|_| {}).result.results[0].metrics["iteration_time_s"]
    };
    let steps = ["none", "attention", "attention+router", "step"].map(|word| step(&format!("graphs = \"{word}\""), ""));
    // The host launches less and less, until the device is what takes as long.
    assert!(steps.windows(2).all(|pair| pair[1] <= pair[0]) && steps[3] < steps[1], "{steps:?}");
    let dispatchers = ["alltoall", "flex"].map(|word| step("graphs = \"step\"", &format!("dispatcher = \"{word}\"")));
    assert!(dispatchers[1] < dispatchers[0], "{dispatchers:?}");
}

/// Nobody asks for the padding of sequences that are all alike: a policy that pads takes whole ones where no length is given, at most as many as a
/// replica has, and a framework's modules take one. With variable lengths the micro-batch is what memory holds.
#[test]
fn a_padded_micro_batch_holds_whole_sequences_where_no_length_is_given() {
    let bucket = |batch: u32, framework: &str, lengths: &str| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3.2-1b\"\n[cluster]\ngpu = \"h200-sxm\"\nnodes = 1\ngpus_per_node = 1\n\
             [training]\nframework = \"{framework}\"\nbatch_size = {batch}\n[workload]\n{lengths}\n[policies]\nrun = [\"megatron\"]\n"
        );
        let checked = super::written(text, &[]);
        super::training(checked).problem.bucket_tokens
    };
    assert_eq!(bucket(1, "formulas", "tokens = 8192"), 8192);
    assert_eq!(bucket(8, "pytorch", "tokens = 8192"), 8192);
    let several = bucket(64, "formulas", "tokens = 8192");
    assert!(several > 8192 && several.is_multiple_of(8192), "{several}");
    assert!(!bucket(4, "formulas", "lengths = \"lmsys-chat-1m\"").is_multiple_of(8192));
}

/// Sequences that are all alike are dealt evenly where no length is given, and a pipeline has micro-batches to fill it: the step is about as short as
/// with one sequence a micro-batch, which is no tuned choice either.
#[test]
fn sequences_that_are_alike_are_dealt_evenly_where_no_length_is_given() {
    let step = |pp: u32, batch: u32, bucket: &str| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = {pp}\ngpus_per_node = 8\n\
             [parallel]\ntp = 2\npp = {pp}\nzero = 1\n[training]\nbatch_size = {batch}\n{bucket}[workload]\ntokens = 4096\n"
        );
        let source = input::diagnostic::Source { path: "alike.toml".to_owned(), text };
        let scenario = super::training(kinds::check(source, std::path::Path::new(""), &Overrides::default()));
        let row = pipeline::run(&scenario, &|_| {}).result.results.remove(0);
        assert!(row.status.is_ok(), "{}", row.why);
        row.metrics
    };
    for (pp, batch) in [(1, 64), (1, 44), (2, 64), (2, 128), (4, 128)] {
        let (one, several) = (step(pp, batch, "bucket_tokens = 4096\n"), step(pp, batch, ""));
        let gained = several["iteration_time_s"] / one["iteration_time_s"];
        assert!(gained < 1.1, "{pp} ranks, {batch} sequences: {gained}");
        assert!((several["dp_imbalance_ratio"] - 1.0).abs() < 0.01, "{pp} ranks, {batch} sequences: {several:?}");
    }
}

/// Megatron-Core may count embedding and loss as a layer each: Llama 3.1 405B trains 126 layers in 128 stages (arXiv:2407.21783, section 3.3.2, takes a layer off
/// both ends as well).
#[test]
fn embedding_and_loss_may_stand_alone_on_their_stages() {
    let layers = format!("parallel.layers=[0{}, 0]", ", 1".repeat(24));
    let set = ["parallel.pp=2", "parallel.cp=1", "parallel.dp=16", "parallel.zero=1", "parallel.schedule=interleaved"];
    let more = ["parallel.chunks=13", layers.as_str(), "training.bucket_tokens=32768"];
    let rows = run(&[&set[..], &more[..]].concat());
    assert!(rows["megatron"].status.is_ok(), "{}", rows["megatron"].why);
}

/// Metrics of the first policy of a scenario in TOML; or what its reader refuses.
fn of_text(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let source = Source { text: text.to_owned(), ..scenario::find("quickstart").expect("shipped").0 };
    let checked = kinds::check(source, Path::new("."), &Overrides::default());
    let findings = checked.findings.iter();
    let refused: Vec<&str> = findings.filter(|f| f.severity == Severity::Error).map(|f| f.what.as_str()).collect();
    if !refused.is_empty() {
        return Err(refused.join("; "));
    }
    let rows = pipeline::run(&super::training(checked), &|_| {}).result.results;
    Ok(rows[0].metrics.clone())
}

#[test]
fn an_interval_of_checkpoints_that_nobody_wrote_is_one_that_storage_keeps_up_with() {
    // A write takes longer than two steps: below that, every checkpoint would wait for the one before.
    let useful = |more: &[&str]| {
        let (source, folder) = scenario::find("resilience/weeks").expect("shipped");
        let set = ["checkpoint.storage_gb_per_s=388"].iter().chain(more).map(|set| (*set).to_owned()).collect();
        let scenario = super::training(kinds::check(source, &folder, &Overrides { set, ..Overrides::default() }));
        pipeline::run(&scenario, &|_| {}).result.results[0].metrics.clone()
    };
    let own = useful(&[]);
    let written_s = own["checkpoint_bytes"] / 388e9;
    assert!(own["checkpoint_interval_s"] >= written_s, "{} against {written_s}", own["checkpoint_interval_s"]);
    assert!(
        (own["checkpoint_best_interval_s"] / written_s - 1.0).abs() < 1e-6,
        "{}",
        own["checkpoint_best_interval_s"]
    );
    for factor in [0.8, 1.0, 1.3] {
        let every_s = format!("checkpoint.every_s={}", own["checkpoint_interval_s"] * factor);
        let given = useful(&[&every_s])["run_goodput_ratio"];
        assert!(own["run_goodput_ratio"] >= given - 2e-3, "{} against {given} at {factor}", own["run_goodput_ratio"]);
    }
}

#[test]
fn an_overlap_of_experts_that_exchange_nothing_changes_nothing() {
    let step = |overlap: f64| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"mixtral-8x7b\"\n[cluster]\ngpu = \"gb300\"\nnodes = 4\ngpus_per_node = 8\n\
             [parallel]\nzero = 1\n[overlap]\nexpert = {overlap:?}\n[training]\nframework = \"megatron-core\"\ngradient_dtype = \"bf16\"\nbatch_size = 64\n\
             bucket_tokens = 4096\n[workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n"
        );
        of_text(&text).expect("a good scenario")["iteration_time_s"]
    };
    assert_eq!(step(0.0).to_bits(), step(1.0).to_bits());
}

/// A model with experts over 64 GPUs of a card, with what the section says of the machine besides.
fn of_experts(gpu: &str, machine: &str) -> String {
    format!(
        "kind = \"training\"\n[model]\nname = \"qwen3-30b-a3b\"\n[cluster]\ngpu = \"{gpu}\"\n{machine}\n[parallel]\nep = 32\nzero = 1\n\
         [training]\nframework = \"megatron-core\"\nbatch_size = 128\nbucket_tokens = 4096\n[workload]\ntokens = 4096\n\
         [policies]\nrun = [\"megatron\"]\n"
    )
}

#[test]
fn hosts_of_a_rack_are_one_domain_and_a_user_may_say_otherwise() {
    let step = |machine: &str| of_text(&of_experts("gb200", machine)).expect("a good scenario")["iteration_time_s"];
    let rack = step("nodes = 16");
    assert_eq!(rack.to_bits(), step("nodes = 16\ngpus_per_node = 4\nnvlink_island = 64").to_bits());
    assert_eq!(rack.to_bits(), step("nodes = 1\ngpus_per_node = 64").to_bits(), "as if the rack were a node");
    assert_eq!(rack.to_bits(), step("nodes = 8\ngpus_per_node = 8").to_bits(), "whatever a host is");
    let apart = step("nodes = 16\nnvlink_island = 4");
    assert!(apart > 1.3 * rack, "{apart} {rack}: the network joins hosts");
    let refused = of_text(&of_experts("gb200", "nodes = 16\nnvlink_island = 6")).expect_err("six are no hosts of four");
    assert!(refused.contains("no part and no multiple of the 4 GPUs of a node"), "{refused}");
    // NVLink ends at the host of every other card.
    let hopper = of_text(&of_experts("h100-sxm", "nodes = 8")).expect("a good scenario");
    assert_eq!(
        hopper["iteration_time_s"].to_bits(),
        of_text(&of_experts("h100-sxm", "nodes = 8\nnvlink_island = 8")).expect("the same")["iteration_time_s"]
            .to_bits()
    );
}

#[test]
fn a_script_on_hosts_of_a_rack_runs_in_the_domain_of_the_rack() {
    let script = "torchrun --nproc_per_node 4 --nnodes 16 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 \
                  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 \
                  --num-experts 32 --expert-model-parallel-size 32 --moe-router-topk 2";
    for nodes in [None, Some(16)] {
        let machine = stacks::Machine { gpu: Some("gb200".to_owned()), nodes, ..stacks::Machine::default() };
        let found = stacks::import(stacks::recognise(script).expect("a script"), script, &machine);
        let wrong = found.findings.iter().find(|finding| finding.severity == Severity::Error);
        assert!(wrong.is_none(), "{wrong:?}");
        let source = Source { text: found.scenario, ..scenario::find("quickstart").expect("shipped").0 };
        let scenario = super::training(kinds::check(source, Path::new("."), &Overrides::default()));
        let cluster = &scenario.problem.cluster;
        assert_eq!((cluster.n_nodes, cluster.gpus_per_node, cluster.domain()), (16, 4, 64));
        assert!(scenario.free_parameters.iter().any(|said| said.starts_with("NVLink joins 64 GPUs, 16 nodes of 4")));
    }
}

/// A dense model under Megatron-Core on one node, with products in a format.
fn in_format(gpu: &str, products: &str) -> Result<BTreeMap<String, f64>, String> {
    of_text(&format!(
        "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"{gpu}\"\nnodes = 1\ngpus_per_node = 8\n\
         [parallel]\ntp = 2\nzero = 1\nsequence_parallel = true\n[training]\nframework = \"megatron-core\"\nproducts = \"{products}\"\n\
         recompute = \"none\"\nbatch_size = 32\nbucket_tokens = 8192\n[workload]\ntokens = 8192\n[policies]\nrun = [\"megatron\"]\n"
    ))
}

#[test]
fn formats_that_no_unit_or_no_framework_multiplies_are_refused() {
    let refused = |gpu: &str, products: &str| in_format(gpu, products).expect_err("refused");
    assert!(refused("h100-sxm", "mxfp8").contains("`h100-sxm` multiplies no mxfp8"));
    assert!(refused("h100-sxm", "nvfp4").contains("multiplies no nvfp4"));
    assert!(refused("h100-sxm", "int8").contains("no framework here trains with products in int8"));
    assert!(in_format("b200", "mxfp8").is_ok() && in_format("h100-sxm", "fp8-block").is_ok());
}

#[test]
fn narrow_products_keep_narrow_inputs_and_copies_of_their_weights() {
    let peak = |products: &str| in_format("h100-sxm", products).expect("a good scenario")["peak_memory_bytes"];
    // Of two ranks: 32 layers keep one byte less of two norms and of the activation function for 8,192 tokens, and have two narrow copies of their weights.
    let activations = 32.0 * 8192.0 * f64::from(2 * 4096 + 14_336) / 2.0;
    let weights = 2.0 * 32.0 * f64::from(4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336) / 2.0;
    let found = peak("bf16") - peak("fp8");
    assert!((found - (activations - weights)).abs() < 0.01 * activations, "{found}");
}

#[test]
fn a_pool_of_context_ranks_may_be_wider_than_the_heads() {
    let text = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 8\ngpus_per_node = 8\n\
                [parallel]\ncp = 64\nzero = 3\nexchange = \"ulysses\"\n[training]\nbatch_size = 128\nbucket_tokens = 8192\nsteps = 1\n\
                [workload]\nlengths = \"commoncrawl-like\"\nmax_tokens = 65536\n[policies]\nrun = [\"flexsp\"]\n";
    assert!(of_text(text).is_ok_and(|metrics| metrics["iteration_time_s"] > 0.0));
    let refused = of_text(&text.replace("\"flexsp\"", "\"flexsp\", \"best_fit\"")).expect_err("a group of 64");
    assert!(refused.contains("does not divide the 32 heads"), "{refused}");
}

#[test]
fn a_step_that_gathers_in_eight_bits_is_not_below_its_bound() {
    for (zero, ahead) in [(2, true), (3, false)] {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"gb200\"\nnodes = 8\ngpus_per_node = 4\n\
             [parallel]\ndp = 32\nzero = {zero}\n[training]\nbatch_size = 32\nproducts = \"mxfp8\"\nnarrow_gather = true\n\
             [workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n[overlap]\nparameter_gather = {ahead}\n"
        );
        let source = Source { text, ..scenario::find("quickstart").expect("shipped").0 };
        let scenario = super::training(kinds::check(source, Path::new("."), &Overrides::default()));
        let result = pipeline::run(&scenario, &|_| {}).result;
        assert!(result.results[0].status.is_ok(), "ZeRO {zero}: {}", result.results[0].why);
        assert_eq!(reports::sound::faults(&result), Vec::<String>::new(), "ZeRO {zero}");
    }
}

#[test]
fn a_search_among_schedules_there_and_back_has_one_stage_too() {
    let of = |lists: &str| {
        of_text(&format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n\
             [parallel]\nlayout = \"search\"\n[training]\nbatch_size = 16\n[workload]\ntokens = 1024\n[policies]\nrun = [\"megatron\"]\n\
             [search]\ntp = [2]\npp = [1, 2]\ncp = [1]\nmicro_batch = [1]\nschedules = [\"zb-v\"]\n{lists}\n"
        ))
    };
    assert!(of("").expect("it runs")["iteration_time_s"] > 0.0);
    assert!(of("nodes = [2]").expect_err("there is one node").contains("`search.nodes` has 2, the cluster has 1"));
    assert!(of("ep = [2]").expect_err("no experts").contains("has no experts"));
}

#[test]
fn gradients_that_are_reduced_at_the_end_are_whole_until_then() {
    let peak = |zero: u32, sync: &str| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\ngpus_per_node = 8\n\
             [parallel]\ndp = 16\nzero = {zero}\n[training]\nbatch_size = 128\ngradient_sync = \"{sync}\"\n\
             [workload]\ntokens = 8192\n[policies]\nrun = [\"megatron\"]\n"
        );
        of_text(&text).expect("it runs")["peak_memory_bytes"]
    };
    assert_eq!(peak(2, "at_end"), peak(1, "at_end"));
    assert!(peak(2, "each_micro_batch") < 0.9 * peak(2, "at_end"));
}

#[test]
fn gradients_that_are_not_there_are_not_reduced_in_pieces() {
    // The base of adapters is frozen: when its gradients would be reduced changes nothing.
    let step = |sync: &str| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3.1-8b\"\n[cluster]\nname = \"dgx-h100\"\nnodes = 1\n[parallel]\nzero = 3\n\
             [optimizer]\ntrains = \"adapters\"\nadapters_beside = \"all\"\n[training]\nframework = \"pytorch\"\nbatch_size = 32\n\
             gradient_sync = \"{sync}\"\n[workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n"
        );
        of_text(&text).expect("a good scenario")["iteration_time_s"]
    };
    assert_eq!(step("overlapped").to_bits(), step("at_end").to_bits());
}

#[test]
fn delayed_gradients_of_weights_need_interleaved_passes() {
    let asked = |overlap: &str| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"mixtral-8x7b\"\n[cluster]\nname = \"dgx-h100\"\nnodes = 8\n[parallel]\nzero = 1\nep = 8\n\
             [overlap]\ndelayed_weights = true\n{overlap}[training]\nframework = \"megatron-core\"\nbatch_size = 64\nbucket_tokens = 4096\n\
             [workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n"
        );
        of_text(&text)
    };
    let refused = asked("").expect_err("nothing is interleaved");
    assert!(refused.contains("no all-to-all runs behind computation"), "{refused}");
    // Passes without a neighbour hide nothing, and are interleaved all the same.
    assert!(asked("expert = 0.0\n").is_ok() && asked("expert = 0.5\n").is_ok());
}

/// A format that a search tries is that of `training.products`, with the casts that modules make for it.
#[test]
fn products_that_are_searched_take_as_long_as_those_that_are_written() {
    let step_s = |framework: &str, written: &str, searched: &str| {
        let layout = if searched.is_empty() { "tp = 1\npp = 1\nzero = 1\n" } else { "layout = \"search\"\n" };
        let lists = "tp = [1]\npp = [1]\ncp = [1]\nmicro_batch = [1]\nzero = [1]\nrecompute = [\"selective\"]\n";
        let search =
            if searched.is_empty() { String::new() } else { format!("[search]\n{lists}products = [\"{searched}\"]\n") };
        let recompute = if searched.is_empty() { "recompute = \"selective\"\nbucket_tokens = 2048\n" } else { "" };
        of_text(&format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n\
             [parallel]\n{layout}{search}[training]\nframework = \"{framework}\"\nproducts = \"{written}\"\n{recompute}\
             batch_size = 64\n[workload]\ntokens = 2048\n[policies]\nrun = [\"megatron\"]\n"
        ))
        .expect("a good scenario")["iteration_time_s"]
    };
    for framework in ["pytorch", "deepspeed"] {
        let [narrow, wide] = ["fp8", "bf16"].map(|format| step_s(framework, format, ""));
        assert_eq!(step_s(framework, "bf16", "fp8"), narrow, "{framework}");
        assert_eq!(step_s(framework, "fp8", "bf16"), wide, "{framework}");
    }
}

/// Rows of a scenario of Llama 3.1 8B on eight H100 under a policy that chooses what a micro-batch holds by itself.
fn chosen_by_itself(policies: &str, more: [&str; 3]) -> Vec<PolicyResult> {
    let [parallel, training, workload] = more;
    let text = format!(
        "kind = \"training\"\n[model]\nname = \"llama-3.1-8b\"\n[cluster]\nname = \"dgx-h100\"\nnodes = 1\n[parallel]\nzero = 1\n{parallel}\
         [training]\nrecompute = \"none\"\n{training}[workload]\nlonger = \"truncate\"\n{workload}[policies]\n{policies}"
    );
    let source = Source { text, ..scenario::find("quickstart").expect("shipped").0 };
    let checked = kinds::check(source, Path::new("."), &Overrides::default());
    pipeline::run(&super::training(checked), &|_| {}).result.results
}

#[test]
fn chunks_that_a_policy_chooses_itself_fit_memory() {
    let training = "framework = \"megatron-core\"\nbatch_size = 128\n";
    let rows = chosen_by_itself(
        "run = [\"chunkflow\", \"by-hand\"]\n[[policies.variant]]\nname = \"by-hand\"\npolicy = \"chunkflow\"\nchunk_tokens = 2048\nkeep = 1\n",
        ["", training, "lengths = \"chatqa2-long-sft\"\nmax_tokens = 32768\n"],
    );
    let [own, by_hand] = &rows[..] else { panic!("two rows") };
    assert!(by_hand.status.is_ok(), "{}", by_hand.why);
    assert!(own.status.is_ok(), "{}", own.why);
    let [own, by_hand] = [own, by_hand].map(|row| row.metrics["iteration_time_s"]);
    assert!(own <= by_hand, "{own} {by_hand}");
}

#[test]
fn pipelines_that_a_policy_shapes_itself_fit_memory() {
    let training = "framework = \"pytorch\"\nbatch_size = 64\n";
    let rows = chosen_by_itself(
        "run = [\"hydraulis\", \"megatron\"]\n",
        ["tp = 4\n", training, "lengths = \"github-like\"\nmax_tokens = 8192\n"],
    );
    for row in rows {
        assert!(row.status.is_ok(), "{}: {}", row.policy, row.why);
    }
}
