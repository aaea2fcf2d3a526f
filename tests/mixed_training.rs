//! Training on GPUs of several types: measured stages as a scenario, one type of GPU against kind `training`, and the search against its bound.

use std::fmt::Write as _;

use input::diagnostic::Source;
use planner::train::mixed_gpus;
use planner::train::objective::Objective;
use reports::{PolicyResult, RunResult};
use scenario::Overrides;
use score::training::row::Asked;
use score::training::tables;
use skrull_sim::kinds;
use train::timed::TimedStep;

/// Rows of Sailor's table with more than one type of GPU.
const MIXED: [&str; 5] = ["27", "28", "29", "30", "31"];

pub(super) fn run_text(text: String, set: &[&str]) -> RunResult {
    let source = Source { path: "mixed.toml".to_owned(), text };
    let set = set.iter().map(|&key| key.to_owned()).collect();
    let checked = kinds::check(source, super::root(), &Overrides { set, ..Overrides::default() });
    let findings = input::diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{findings}")).run(&|_| {})
}

fn run(name: &str, set: &[&str]) -> RunResult {
    run_text(scenario::find(name).expect("shipped").0.text, set)
}

pub(super) fn row<'r>(result: &'r RunResult, policy: &str) -> &'r PolicyResult {
    result.results.iter().find(|row| row.policy == policy).expect("it runs")
}

/// A step of measured stages as a scenario: a group and a zone for every stage of every replica, and a link for every pair that exchanges.
fn written(step: &TimedStep) -> String {
    const MESSAGE_MB: f64 = 16.0;
    const GRADIENT_MB: f64 = 512.0;
    let [n_replicas, n_stages] = [step.replicas.len(), step.reductions.len()];
    let shares: Vec<u32> = step.replicas.iter().map(|replica| replica.n_micro_batches).collect();
    let batch: u32 = shares.iter().sum();
    let mut text = format!(
        "kind = \"training\"\n[training]\nbatch_size = {batch}\ntokens = 1\nmicro_batches = {shares:?}\nmessages = \"blocking\"\n[policies]\nrun = [\"given\"]\n"
    );
    let name = |stage: usize, replica: usize| format!("s{stage}r{replica}");
    let mut links = String::new();
    let mut link = |from: String, to: String, megabytes: f64, seconds: f64| {
        let rate = megabytes / 1e3 / seconds;
        let _ = writeln!(links, "[[link]]\nbetween = [\"{from}\", \"{to}\"]\ngb_per_s = {rate:?}");
    };
    let mut stages = String::new();
    for stage in 0..n_stages {
        let mut slots = Vec::new();
        for (replica, of) in step.replicas.iter().enumerate() {
            let times = of.stages[stage];
            let ms = |span: hw::Span| span.to_seconds().get() * 1e3;
            let (group, gpus) = (name(stage, replica), times.n_gpus);
            let _ =
                writeln!(text, "[[group]]\nname = \"{group}\"\nzone = \"{group}\"\nnodes = 1\ngpus_per_node = {gpus}");
            let [forward, backward, update] =
                [times.passes.forward.whole(), times.passes.backward.whole(), times.update].map(ms);
            slots.push(format!(
                "{{ group = \"{group}\", gpus = {gpus}, forward_ms = {forward:?}, backward_ms = {backward:?}, update_ms = {update:?} }}"
            ));
            if stage + 1 < n_stages {
                link(
                    group.clone(),
                    name(stage + 1, replica),
                    MESSAGE_MB,
                    times.passes.message.whole().to_seconds().get(),
                );
            }
            if n_replicas > 1 {
                // All of a ring are as slow as its slowest: 2 (n - 1) / n of the gradients pass each link.
                let n = f64::from(u32::try_from(n_replicas).expect("few"));
                let slowest = step.reductions[stage].to_seconds().get() / (2.0 * (n - 1.0) / n);
                link(group, name(stage, (replica + 1) % n_replicas), GRADIENT_MB, slowest);
            }
        }
        let _ = writeln!(
            stages,
            "[[stage]]\nmessage_mb = {MESSAGE_MB:?}\ngradient_mb = {GRADIENT_MB:?}\nreplicas = [{}]",
            slots.join(", ")
        );
    }
    text + &links + &stages
}

#[test]
fn a_row_of_mixed_cards_that_is_written_as_a_scenario_takes_as_long_as_score_says() {
    let path = super::root().join("../shared/data/truth/sailor_runs.csv");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: shared data absent ({})", path.display());
        return;
    };
    let folder = path.parent().expect("a folder").to_owned();
    let beside = move |name: &str| input::text_file::read(&folder.join(name)).ok();
    let rows = tables::read(&text, &beside).expect("a table that is known").expect("rows");
    let mut n = 0;
    for row in rows.iter().filter(|row| MIXED.contains(&row.label.row.as_str())) {
        let Ok(Asked::Stages(step)) = &row.asked else { panic!("row {} has no stages", row.label.row) };
        let scored = step.span().to_seconds().get();
        let played = self::row(&run_text(written(step), &[]), "given").metrics["iteration_time_s"];
        // Milliseconds and bandwidths are written in full, so nothing but nanoseconds is lost.
        assert!((played / scored - 1.0).abs() < 1e-6, "row {}: {played} against {scored}", row.label.row);
        n += 1;
    }
    assert_eq!(n, MIXED.len());
}

/// One group of eight H100 with a pipeline of four stages, twice, and the same as a scenario of kind `training`.
const MIXED_ALONE: &str = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nbatch_size = 64\ntokens = 4096\n\
    [[group]]\nname = \"h100\"\ngpu = \"h100-sxm\"\nnodes = 1\n[policies]\nrun = [\"given\"]\n";
const TRAINING_ALONE: &str = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[parallel]\npp = 4\nzero = 1\n\
    layers = [8, 8, 8, 8]\n[training]\nbatch_size = 64\nbucket_tokens = 4096\nframework = \"megatron-core\"\ngradient_sync = \"at_end\"\n[workload]\ntokens = 4096\n\
    [policies]\nrun = [\"megatron\"]\n";

/// Replicas of one GPU lie side by side on nodes, and what leaves a node goes through the ports of all of them.
#[test]
fn replicas_that_share_nodes_share_their_ports() {
    for (dp, tp, pp) in [(16, 1, 1), (8, 1, 2), (4, 4, 1)] {
        let slots = format!("{{ group = \"g\", gpus = {tp} }}, ").repeat(dp);
        let stage = format!("[[stage]]\nlayers = {}\nreplicas = [{slots}]\n", 32 / pp);
        let training = "tokens = 4096\nmicro_batch = 1\nzero = 1\nrecompute = \"selective\"\n";
        let mixed = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nbatch_size = 64\n{training}\
             [[group]]\nname = \"g\"\ngpu = \"h100-sxm\"\nnodes = 2\n[policies]\nrun = [\"given\"]\n{}",
            stage.repeat(pp)
        );
        let parallel = if tp > 1 { "sequence_parallel = true\n" } else { "" };
        let alone = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\n\
             [parallel]\ndp = {dp}\ntp = {tp}\npp = {pp}\nzero = 1\n{parallel}[training]\nbatch_size = 64\nbucket_tokens = 4096\n\
             framework = \"megatron-core\"\ngradient_sync = \"at_end\"\nrecompute = \"selective\"\n[workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n"
        );
        let [mixed, alone] = [run_text(mixed, &[]), run_text(alone, &[])];
        let [mixed, alone] = [row(&mixed, "given"), row(&alone, "megatron")].map(|row| row.metrics["iteration_time_s"]);
        assert!((mixed / alone - 1.0).abs() < 0.05, "dp {dp}, tp {tp}, pp {pp}: {mixed} against {alone}");
    }
}

/// Steps that the host sets the pace of, and frameworks whose memory has parts of its own: time and memory are those of the same ranks where all cards are alike.
#[test]
fn launches_and_memory_are_those_of_one_type_of_gpu() {
    for (framework, products, [dp, tp, pp]) in [
        ("megatron-core", "fp8", [2, 8, 1]),
        ("megatron-core", "fp8", [2, 4, 2]),
        ("pytorch", "bf16", [2, 8, 1]),
        ("pytorch", "bf16", [8, 2, 1]),
        ("deepspeed", "bf16", [2, 8, 1]),
    ] {
        let slots = format!("{{ group = \"g\", gpus = {tp} }}, ").repeat(dp);
        let stage = format!("[[stage]]\nlayers = {}\nreplicas = [{slots}]\n", 32 / pp);
        let model = format!(
            "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nframework = \"{framework}\"\nproducts = \"{products}\"\nbatch_size = 64\n"
        );
        let mixed = format!(
            "{model}tokens = 4096\nzero = 1\n[[group]]\nname = \"g\"\ngpu = \"h200-sxm\"\nnodes = 2\n[policies]\nrun = [\"given\"]\n{}",
            stage.repeat(pp)
        );
        let alone = format!(
            "{model}bucket_tokens = 4096\ngradient_sync = \"at_end\"\n[cluster]\ngpu = \"h200-sxm\"\nnodes = 2\n[parallel]\ndp = {dp}\ntp = {tp}\npp = {pp}\n\
             zero = 1\nsequence_parallel = true\n[workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n"
        );
        let [mixed, alone] = [run_text(mixed, &[]), run_text(alone, &[])];
        let ratio = |key: &str| row(&mixed, "given").metrics[key] / row(&alone, "megatron").metrics[key];
        let what = format!("{framework}, {products}, dp {dp}, tp {tp}, pp {pp}");
        assert!((ratio("iteration_time_s") - 1.0).abs() < 0.05, "{what}: {}", ratio("iteration_time_s"));
        assert!((ratio("peak_memory_bytes") - 1.0).abs() < 1e-6, "{what}: {}", ratio("peak_memory_bytes"));
    }
}

#[test]
fn one_type_of_gpu_takes_as_long_as_the_kind_that_knows_one() {
    let stage = "[[stage]]\nlayers = 8\nreplicas = [{ group = \"h100\" }, { group = \"h100\" }]\n";
    let mixed = run_text(format!("{MIXED_ALONE}{}", stage.repeat(4)), &[]);
    let alone = run_text(TRAINING_ALONE.to_owned(), &[]);
    let [mixed, alone] = [row(&mixed, "given"), row(&alone, "megatron")].map(|row| row.metrics["iteration_time_s"]);
    // Messages and reductions have a simpler model there.
    assert!((mixed / alone - 1.0).abs() < 0.03, "{mixed} against {alone}");
}

#[test]
fn the_search_is_no_slower_than_what_is_given_and_no_faster_than_its_bound() {
    let result = run("mixed-training/two-zones", &[]);
    let [given, search] = ["given", "search"].map(|policy| row(&result, policy));
    let seconds = |row: &PolicyResult| row.metrics["iteration_time_s"];
    assert!(seconds(search) <= seconds(given), "{} against {}", seconds(search), seconds(given));
    let bound = search.planner.as_ref().and_then(|facts| facts.bound).expect("a bound");
    assert!(seconds(search) >= bound, "{} against {bound}", seconds(search));
}

/// The best plan that is found has a step that no layer makes shorter by moving to another stage: every move is played.
#[test]
fn no_layer_moves_to_another_stage_for_a_shorter_step() {
    let source = scenario::find("mixed-training/two-zones").expect("shipped").0;
    let value = toml_span::parse(&source.text).expect("a scenario in TOML");
    let mut findings = Vec::new();
    let mut reader = input::reader::Reader::new(value, &mut findings);
    let read = scenario::mixed_training::read(&mut reader, &source, super::root(), &Overrides::default());
    let scenario = read.expect("a good scenario");
    let costs = scenario.costs();
    let found = mixed_gpus::search(&scenario.job, Objective::Seconds, &costs).expect("a plan");
    let seconds = |plan: &train::mixed_gpus::Pipelines| {
        let step = scenario.job.step(plan, &costs, engine::play::Case::Expected).expect("linked").0;
        step.span().to_seconds().get()
    };
    let best = seconds(&found.plan);
    let n_stages = found.plan.stages.len();
    for (from, to) in (0..n_stages).flat_map(|from| (0..n_stages).map(move |to| (from, to))).filter(|(a, b)| a != b) {
        let mut plan = found.plan.clone();
        plan.stages[from].layers -= 1;
        plan.stages[to].layers += 1;
        assert!(plan.stages[from].layers == 0 || seconds(&plan) >= best, "{from} to {to}: {} < {best}", seconds(&plan));
    }
}

/// Two pipelines over both zones, whose micro-batches do not come out even, are a plan of the search too.
#[test]
fn a_batch_that_replicas_do_not_divide_has_no_worse_plan_than_what_is_given() {
    let result = run("mixed-training/two-zones", &["training.batch_size=257"]);
    let [given, search] = ["given", "search"].map(|policy| row(&result, policy).metrics["iteration_time_s"]);
    assert!(search <= given, "{search} against {given}");
}

#[test]
fn what_crosses_zones_is_paid_by_the_gigabyte() {
    // Two pipelines of 128 micro-batches of 8,192 tokens, 4,096 values of two bytes each, there and back, at 0.02 dollars a gigabyte.
    let result = run("mixed-training/two-zones", &["policies.run=[\"given\"]"]);
    let paid = row(&result, "given").metrics["link_usd_per_step"];
    let counted = 2.0 * 128.0 * 2.0 * 8192.0 * 4096.0 * 2.0 / 1e9 * 0.02;
    assert!((paid - counted).abs() < 1e-9, "{paid} against {counted}");
}

/// Keys of kind `training` that passes, states and gradients follow from act alike on mixed cards: steps of one type take as long, and hold as much.
#[test]
fn keys_of_training_act_as_they_do_on_cards_of_one_type() {
    let slots = "{ group = \"g\", gpus = 4 }, ".repeat(2);
    let stages = format!("[[stage]]\nlayers = 16\nreplicas = [{slots}]\n").repeat(2);
    let mixed = format!(
        "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nbatch_size = 64\ntokens = 4096\n\
         [[group]]\nname = \"g\"\ngpu = \"h100-sxm\"\nnodes = 2\n[policies]\nrun = [\"given\"]\n{stages}"
    );
    let alone = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\n\
         [parallel]\ndp = 2\ntp = 4\npp = 2\nzero = 1\nsequence_parallel = true\n[training]\nbatch_size = 64\nbucket_tokens = 4096\n\
         gradient_sync = \"at_end\"\n[workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n";
    let megatron = "training.framework=megatron-core";
    let pytorch = "training.framework=pytorch";
    let settings: [&[&str]; 10] = [
        &[megatron],
        &[megatron, "training.recompute=full"],
        &[megatron, "training.products=fp8"],
        &[megatron, "training.products=fp8", "training.narrow_gather=true"],
        &[megatron, "training.gradient_dtype=bf16", "optimizer.first_moment=bf16", "optimizer.second_moment=bf16"],
        &[megatron, "optimizer.rule=muon"],
        &[megatron, "optimizer.offload_ratio=1.0", "optimizer.host_memory_gb_per_s=50"],
        &[megatron, "overlap.tensor=0.8"],
        &[megatron, "training.offload_ratio=0.5"],
        &[pytorch, "training.recompute=none"],
    ];
    for set in settings {
        let [mixed, alone] = [mixed.clone(), alone.to_owned()].map(|text| run_text(text, set));
        let [mixed, alone] = [row(&mixed, "given"), row(&alone, "megatron")];
        for (key, within) in [("iteration_time_s", 0.05), ("peak_memory_bytes", 0.1)] {
            let [mixed, alone] = [mixed, alone].map(|row| row.metrics[key]);
            assert!((mixed / alone - 1.0).abs() < within, "{set:?} {key}: {mixed} against {alone}");
        }
    }
}

/// What of a setting is not there changes nothing, and is said; what is left out is Megatron-Core with its usual words.
#[test]
fn the_framework_that_is_left_out_is_megatron_core() {
    let stage = "[[stage]]\nlayers = 32\nreplicas = [{ group = \"h100\", gpus = 8 }]\n";
    let text = format!("{MIXED_ALONE}{stage}");
    let figures = |set: &[&str]| row(&run_text(text.clone(), set), "given").metrics.clone();
    assert_eq!(figures(&[]), figures(&["training.framework=megatron-core"]));
    assert_ne!(figures(&[]), figures(&["training.framework=deepspeed"]));
}

/// Sequences of 2,000 and 6,000 tokens, each its own micro-batch, through one stage of one replica: a step of both is half a step of each alone, as the optimizer
/// is in all of them.
#[test]
fn drawn_lengths_take_what_each_of_them_takes() {
    let stage = "[[stage]]\nlayers = 32\nreplicas = [{ group = \"h100\", gpus = 8 }]\n";
    let text =
        format!("{MIXED_ALONE}{stage}").replace("tokens = 4096\n", "").replace("batch_size = 64", "batch_size = 2");
    let seconds = |list: &str| {
        let result = run_text(text.clone(), &[&format!("workload.list={list}")]);
        let metrics = &row(&result, "given").metrics;
        (metrics["iteration_time_s"], metrics["tokens_per_s"])
    };
    let ([short, long], both) = ([seconds("[2000]"), seconds("[6000]")], seconds("[2000, 6000]"));
    assert!((both.0 - (short.0 + long.0) / 2.0).abs() < 3e-9, "{both:?} of {short:?} and {long:?}");
    assert!((both.1 * both.0 - 8000.0).abs() < 1e-6, "{both:?}");
    // Attention is quadratic: two of the mean length are faster.
    assert!(seconds("[1000, 31000]").0 > seconds("[16000]").0);
    // All alike, lengths are those of `tokens`.
    let plain = run_text(format!("{MIXED_ALONE}{stage}"), &["training.batch_size=2"]);
    let alike = run_text(text, &["workload.tokens=4096"]);
    assert_eq!(row(&plain, "given").metrics, row(&alike, "given").metrics);
}

/// In flight are micro-batches that follow one another: two long ones side by side need as much as long ones alone. Apart they are never in flight together.
#[test]
fn memory_is_of_the_micro_batches_in_flight() {
    let stages = "[[stage]]\nlayers = 16\nreplicas = [{ group = \"h100\", gpus = 4 }]\n".repeat(2);
    let text =
        format!("{MIXED_ALONE}{stages}").replace("tokens = 4096\n", "").replace("batch_size = 64", "batch_size = 8");
    let peak = |list: &str| {
        let result = run_text(text.clone(), &[&format!("workload.list={list}")]);
        row(&result, "given").metrics["peak_memory_bytes"]
    };
    let beside = peak("[8000, 8000, 1000, 1000, 1000, 1000, 1000, 1000]");
    let apart = peak("[8000, 1000, 1000, 1000, 8000, 1000, 1000, 1000]");
    let (all, none) = (peak("[8000]"), peak("[1000]"));
    assert!((beside - all).abs() < 1.0 && none < apart && apart < all, "{beside} {apart} {all} {none}");
}

/// One replica of stages of one type of GPU beside the same in kind `training`: lengths that differ, experts, Muon, copies. Time, memory and computing are alike.
#[test]
fn one_replica_takes_what_it_takes_in_kind_training() {
    let (lengths, alike) = ("workload.list=[1000, 4000]", "workload.tokens=2000");
    let (copies, no_recompute) = ("training.offload_ratio=1.0", "training.recompute=none");
    for (model, layers, [tp, pp], set) in [
        ("llama-3.1-8b", 32, [4, 1], &[lengths][..]),
        ("llama-3.1-8b", 32, [2, 2], &[lengths]),
        ("llama-3.1-8b", 32, [1, 4], &[lengths]),
        ("mixtral-8x7b", 32, [2, 1], &[alike]),
        ("mixtral-8x7b", 32, [2, 1], &[alike, "optimizer.rule=muon"]),
        ("llama-3.1-8b", 32, [2, 1], &[alike, copies, no_recompute]),
        ("llama-3.1-8b", 32, [2, 2], &[lengths, copies, no_recompute]),
    ] {
        let n_gpus = tp * pp;
        let expert_tp = if model.starts_with("mixtral") { tp } else { 1 };
        let head = format!(
            "kind = \"training\"\n[model]\nname = \"{model}\"\n[training]\nframework = \"megatron-core\"\nbatch_size = 8\n"
        );
        let machines = format!("gpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = {n_gpus}\nmemory_gib = 2000.0\n");
        let stage = format!("[[stage]]\nlayers = {}\nreplicas = [{{ group = \"g\", gpus = {tp} }}]\n", layers / pp);
        let mixed =
            format!("{head}[[group]]\nname = \"g\"\n{machines}[policies]\nrun = [\"given\"]\n{}", stage.repeat(pp));
        let alone = format!(
            "{head}bucket_tokens = 4000\n[cluster]\n{machines}[parallel]\ntp = {tp}\npp = {pp}\nexpert_tp = {expert_tp}\nzero = 1\n\
             [policies]\nrun = [\"megatron\"]\nmegatron = {{ fill = \"flat\", sequences = 1 }}\n"
        );
        let [mixed, alone] = [mixed, alone].map(|text| run_text(text, set).results.swap_remove(0));
        let ratio = |key: &str| mixed.metrics[key] / alone.metrics[key];
        let ratios = ["iteration_time_s", "peak_memory_bytes", "compute_busy_ratio"].map(ratio);
        let bounds = [1e-3, 1e-9, 1e-3];
        let is_alike = ratios.iter().zip(bounds).all(|(ratio, bound)| (ratio - 1.0).abs() < bound);
        assert!(is_alike, "{model}, tp {tp}, pp {pp}, {set:?}: {ratios:?}");
    }
}

/// What kind `training` refuses of a step is refused of stages too, with the same code.
#[test]
fn what_kind_training_refuses_is_refused_of_stages() {
    let codes = |model: &str, gpus: u32, set: &[&str]| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"{model}\"\n[training]\nbatch_size = 8\ntokens = 1024\nframework = \"pytorch\"\n\
             [[group]]\nname = \"g\"\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = {gpus}\n[policies]\nrun = [\"given\"]\n\
             [[stage]]\nlayers = 32\nreplicas = [{{ group = \"g\", gpus = {gpus} }}]\n"
        );
        let source = Source { path: "mixed.toml".to_owned(), text };
        let set = set.iter().map(|&key| key.to_owned()).collect();
        let checked = kinds::check(source, super::root(), &Overrides { set, ..Overrides::default() });
        checked.findings.iter().map(|finding| finding.code as u32).collect::<std::collections::BTreeSet<u32>>()
    };
    assert!(codes("gpt-7b", 1, &[]).is_empty());
    assert_eq!(codes("gpt-7b", 1, &["training.tokens=4096"]), [214].into());
    let in_backward = "optimizer.kernels=in-backward";
    assert_eq!(codes("gpt-7b", 1, &[in_backward]), [98].into());
    assert!(codes("gpt-7b", 1, &[in_backward, "training.batch_size=1"]).is_empty());
    let adapters = ["optimizer.trains=adapters", "optimizer.adapter_rank=16"];
    for (frozen, said) in [("nf4", vec![]), ("int8", vec![192])] {
        let frozen = format!("optimizer.frozen={frozen}");
        let set = [adapters[0], adapters[1], &frozen];
        let refused = said.iter().copied().chain([98]).collect();
        assert_eq!(codes("llama-3.1-8b", 1, &set), said.into_iter().collect(), "{frozen}");
        assert_eq!(codes("llama-3.1-8b", 2, &set), refused, "{frozen}");
        let searched = codes("llama-3.1-8b", 1, &[&set[..], &["policies.run=[\"given\", \"search\"]"]].concat());
        assert_eq!(searched, refused, "{frozen}");
    }
}

/// A search for dollars is no dearer than one for seconds, than what is given, and no cheaper than its bound.
#[test]
fn a_search_for_dollars_finds_the_cheapest_of_its_plans() {
    let by = |key: &str| run("mixed-training/two-zones", &[&format!("policies.minimize={key}")]);
    let (fast, cheap) = (by("iteration_time_s"), by("cost_usd_per_step"));
    let usd = |result: &RunResult, policy: &str| row(result, policy).metrics["cost_usd_per_step"];
    let found = usd(&cheap, "search");
    assert!(found <= usd(&fast, "search") && found <= usd(&cheap, "given"), "{found}");
    let facts = row(&cheap, "search").planner.as_ref().expect("it was searched");
    assert_eq!(facts.objective.expect("an objective"), found);
    assert!(facts.bound.expect("a bound") <= found);
    // Tokens for a dollar are what rows are compared by.
    let ratio = usd(&cheap, "given") / found;
    assert!((cheap.speedup_ratio["search"] - ratio).abs() < 1e-9, "{ratio} {:?}", cheap.speedup_ratio);
}

/// Products in 8 bits need cards that multiply them: all of them.
#[test]
fn products_that_one_of_the_cards_lacks_are_refused() {
    let text = scenario::find("mixed-training/two-zones").expect("shipped").0.text;
    let source = Source { path: "mixed.toml".to_owned(), text };
    let set = vec!["training.products=fp8".to_owned()];
    let checked = kinds::check(source, super::root(), &Overrides { set, ..Overrides::default() });
    let found: Vec<&str> = checked.findings.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(found, ["`a100-sxm-80g` multiplies no fp8"]);
}

/// Two pipelines of two stages of four GPUs with a setting, on machines that keys describe; and the same as a scenario of one type of GPU.
fn beside_kind_training(set: &[&str], machine: &str) -> [PolicyResult; 2] {
    let slots = "{ group = \"g\", gpus = 4 }, ".repeat(2);
    let stages = format!("[[stage]]\nlayers = 16\nreplicas = [{slots}]\n").repeat(2);
    let model = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nframework = \"megatron-core\"\nbatch_size = 64\n";
    let mixed = format!(
        "{model}tokens = 4096\n[[group]]\nname = \"g\"\ngpu = \"h100-sxm\"\nnodes = 2\n{machine}\n[policies]\nrun = [\"given\"]\n{stages}"
    );
    let alone = format!(
        "{model}bucket_tokens = 4096\ngradient_sync = \"at_end\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\n{machine}\n\
         [parallel]\ndp = 2\ntp = 4\npp = 2\nzero = 1\nsequence_parallel = true\n[workload]\ntokens = 4096\n[policies]\nrun = [\"megatron\"]\n"
    );
    [mixed, alone].map(|text| run_text(text, set).results.swap_remove(0))
}

/// What lies on hosts is what kind `training` has there: states of all ranks, and activations of as many micro-batches as are in flight.
#[test]
fn hosts_of_mixed_cards_keep_what_those_of_one_type_keep() {
    let states = ["optimizer.offload_ratio=1.0", "optimizer.host_memory_gb_per_s=50"];
    let activations = ["training.offload_ratio=0.5", "training.recompute=none"];
    for set in [&states[..], &activations[..], &[states, activations].concat()] {
        let kept = beside_kind_training(set, "").map(|row| row.metrics["host_memory_bytes"]);
        assert!((kept[0] / kept[1] - 1.0).abs() < 1e-3, "{set:?}: {kept:?}");
    }
    assert!(beside_kind_training(&[], "").iter().all(|row| !row.metrics.contains_key("host_memory_bytes")));
}

/// Sixteen bytes of a parameter on two nodes are 59.8 GiB of each; the first stage has a table and the second the head, so each has half.
#[test]
fn a_group_whose_hosts_have_no_room_is_out_of_memory() {
    let states = ["optimizer.offload_ratio=1.0", "optimizer.host_memory_gb_per_s=50"];
    let [full, _] = beside_kind_training(&states, "host_memory_gib = 59");
    assert_eq!(full.status, reports::Ended::OutOfMemory);
    assert_eq!(
        full.why,
        "the host of a node of `g` needs 59.8 GiB (optimizer states 44.9 GiB, pinned copies 15.0 GiB), and has 59.0 GiB (`group.host_memory_gib`)"
    );
    let [fits, _] = beside_kind_training(&states, "host_memory_gib = 60");
    assert!(
        fits.why.ends_with("the host of the fullest node keeps optimizer states 44.9 GiB, pinned copies 15.0 GiB"),
        "{}",
        fits.why
    );
    // A search leaves such plans out.
    let text = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nbatch_size = 64\ntokens = 4096\n[[group]]\nname = \"g\"\n\
        gpu = \"h100-sxm\"\nnodes = 2\nhost_memory_gib = 30\n[policies]\nrun = [\"search\"]\n";
    let found = run_text(text.to_owned(), &states).results.swap_remove(0);
    assert_eq!(found.status, reports::Ended::Infeasible, "{}", found.why);
}

#[test]
fn memory_of_a_group_s_host_that_keeps_nothing_is_said_to_change_nothing() {
    let text = "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nbatch_size = 64\ntokens = 4096\n[[group]]\nname = \"g\"\n\
        gpu = \"h100-sxm\"\nnodes = 1\nhost_memory_gib = 30\n[[stage]]\nlayers = 32\nreplicas = [{ group = \"g\", gpus = 8 }]\n[policies]\nrun = [\"given\"]\n";
    let said = |set: &[&str]| {
        let source = Source { path: "mixed.toml".to_owned(), text: text.to_owned() };
        let set = set.iter().map(|&key| key.to_owned()).collect();
        let checked = kinds::check(source, super::root(), &Overrides { set, ..Overrides::default() });
        checked.findings.iter().any(|finding| finding.what == "`group.host_memory_gib` changes nothing")
    };
    assert!(said(&[]) && !said(&["training.offload_ratio=0.5"]));
}

#[test]
fn links_to_hosts_that_nothing_passes_are_named() {
    let idle = |keys: &str, set: &[&str]| {
        let stage = "[[stage]]\nlayers = 32\nreplicas = [{ group = \"h100\", gpus = 8 }]\n";
        let text = MIXED_ALONE.replacen("nodes = ", &format!("{keys}\nnodes = "), 1) + stage;
        let source = Source { path: "mixed.toml".to_owned(), text };
        let set = set.iter().map(|item| (*item).to_owned()).collect();
        let checked = kinds::check(source, super::root(), &Overrides { set, ..Overrides::default() });
        let said = checked.findings.into_iter().map(|finding| finding.what);
        said.filter(|what| what.starts_with("`group.")).collect::<Vec<String>>()
    };
    let both = "host_gb_per_s = 20.0\ngpus_per_switch = 4";
    assert_eq!(idle(both, &[]), ["`group.host_gb_per_s` changes nothing", "`group.gpus_per_switch` changes nothing"]);
    assert!(idle(both, &["training.offload_ratio=0.5"]).is_empty() && idle("gpus_per_switch = 1", &[]).is_empty());
    // Checkpoints of a run of days go to the host first.
    let days = ["failures={ days = 3, gpu_mtbf_hours = 5000 }", "checkpoint={ storage_gb_per_s = 100 }"];
    assert_eq!(idle(both, &days), ["`group.gpus_per_switch` changes nothing"]);
}

/// A slow way to the host paces passes: as much as in kind `training`, where copies are tasks of their own.
#[test]
fn a_pass_is_no_shorter_than_its_copy() {
    let step_s = |share: &str, machine: &str| {
        let set = [&format!("training.offload_ratio={share}"), "training.recompute=none"];
        beside_kind_training(&set, machine).map(|row| row.metrics["iteration_time_s"])
    };
    let [none, _] = step_s("0.0", "");
    for machine in ["host_gb_per_s = 50.0", "host_gb_per_s = 8.0", "host_gb_per_s = 16.0\ngpus_per_switch = 4"] {
        let [mixed, alone] = step_s("0.8", machine);
        assert!((mixed / alone - 1.0).abs() < 0.05, "{machine}: {mixed} against {alone}");
        assert!(machine.contains("50.0") || mixed > 1.2 * none, "{machine}: {mixed} against {none}");
    }
}

const DAYS: &str =
    "[failures]\ndays = 200.0\ngpu_mtbf_hours = 2000.0\nspare_nodes = 1\n[checkpoint]\nstorage_gb_per_s = 20.0\n";

/// A run of days over steps of one type of GPU is that of kind `training`: the same failures, the same checkpoints, the same share.
#[test]
fn a_run_of_days_on_one_type_is_that_of_the_kind_that_knows_one() {
    let [mixed, alone] = beside_kind_training(&[], &format!("\n{DAYS}"));
    for key in ["run_failures", "checkpoint_bytes", "checkpoint_stall_s", "run_restart_ratio"] {
        let [mixed, alone] = [&mixed, &alone].map(|row| row.metrics[key]);
        assert!((mixed / alone - 1.0).abs() < 0.01, "{key}: {mixed} against {alone}");
    }
    let [share, other] = [&mixed, &alone].map(|row| row.metrics["run_goodput_ratio"]);
    assert!(share < 1.0 && (share - other).abs() < 0.01, "{share} against {other}");
    assert!(mixed.interval.contains_key("run_tokens_per_s") && mixed.why.contains("of the run"), "{}", mixed.why);
}

/// Eight GPUs that fail every 1,000 hours and eight every 4,000: as sixteen that fail every 1,600.
#[test]
fn rates_of_failure_of_types_add_up() {
    let stage = |group: &str| format!("[[stage]]\nlayers = 16\nreplicas = [{{ group = \"{group}\", gpus = 8 }}]\n");
    let groups = |own: [&str; 2]| {
        let group =
            |name: &str, own: &str| format!("[[group]]\nname = \"{name}\"\ngpu = \"h100-sxm\"\nnodes = 1\n{own}\n");
        let text = MIXED_ALONE.split("[[group]]").next().expect("a beginning").to_owned();
        let [a, b] = [group("a", own[0]), group("b", own[1])];
        run_text(format!("{text}{a}{b}{DAYS}[policies]\nrun = [\"given\"]\n{}{}", stage("a"), stage("b")), &[])
    };
    let mixed = groups(["gpu_mtbf_hours = 1000.0", "gpu_mtbf_hours = 4000.0"]);
    let even = groups(["gpu_mtbf_hours = 1600.0", "gpu_mtbf_hours = 1600.0"]);
    let [mixed, even] = [&mixed, &even].map(|result| &row(result, "given").metrics);
    let best = [mixed, even].map(|metrics| metrics["checkpoint_best_interval_s"]);
    assert!((best[0] / best[1] - 1.0).abs() < 1e-9, "{best:?}");
    // The same moments, and most of them of the first type, of which one spare node is there: it waits longer for repairs.
    assert!((mixed["run_failures"] / even["run_failures"] - 1.0).abs() < 0.05);
    assert!(mixed["run_waiting_ratio"] > even["run_waiting_ratio"], "{mixed:?} against {even:?}");
}

/// Eight cards that fail every 300 hours beside eight that seldom do: a step is shorter on all of them, and a run of days keeps more without the first.
#[test]
fn a_search_looks_at_what_is_kept_of_a_run_of_days() {
    let group = |name: &str, gpu: &str, hours: f64| {
        format!("[[group]]\nname = \"{name}\"\ngpu = \"{gpu}\"\nnodes = 1\ngpu_mtbf_hours = {hours:?}\n")
    };
    let text = format!(
        "kind = \"training\"\n[model]\nname = \"llama-3-8b\"\n[training]\nbatch_size = 16\ntokens = 2048\n{}{}\
         [[stage]]\nlayers = 32\nreplicas = [{}]\n[failures]\ndays = 10.0\nrestart_s = 300.0\nspare_nodes = 0\n\
         [checkpoint]\nmode = \"synchronous\"\nstorage_gb_per_s = 10.0\n[policies]\nrun = [\"given\", \"search\"]\n",
        group("a", "a100-sxm-80g", 300.0),
        group("h", "h100-sxm", 50_000.0),
        "{ group = \"h\", gpus = 1 }, ".repeat(8),
    );
    let figure = |result: &RunResult, policy: &str, key: &str| row(result, policy).metrics[key];
    let of_days = run_text(text.clone(), &[]);
    let of_step = run_text(text.clone(), &["policies.minimize=iteration_time_s"]);
    let [kept, given] = ["search", "given"].map(|policy| figure(&of_days, policy, "run_tokens_per_s"));
    assert!(kept >= given && kept > figure(&of_step, "search", "run_tokens_per_s"), "{kept} against {given}");
    let facts = row(&of_days, "search").planner.as_ref().expect("it was searched");
    assert_eq!(facts.objective, Some(kept));
    assert!(facts.bound.expect("a bound") >= kept);
    assert!((of_days.speedup_ratio["search"] - kept / given).abs() < 1e-9);
    let seconds = |policy: &str| figure(&of_step, policy, "iteration_time_s");
    assert!((of_step.speedup_ratio["search"] - seconds("given") / seconds("search")).abs() < 1e-9);
    assert!(seconds("search") < figure(&of_days, "search", "iteration_time_s"));
    // Without a run of days nothing is kept of one.
    let (steps, _) = text.split_once("[failures]").expect("a section");
    let text = steps.replace("gpu_mtbf_hours", "# gpu_mtbf_hours");
    let refused = |set: &str, text: &str| {
        let source = Source { path: "mixed.toml".to_owned(), text: format!("{text}[policies]\nrun = [\"search\"]\n") };
        let set = vec![format!("policies.maximize={set}")];
        let checked = kinds::check(source, super::root(), &Overrides { set, ..Overrides::default() });
        checked.findings.iter().map(|finding| finding.what.clone()).collect::<Vec<String>>()
    };
    let without_run = |word: &str| [format!("`{word}` is sought, and the scenario has no run of days")];
    assert_eq!(refused("run_tokens_per_s", &text), without_run("run_tokens_per_s"));
    // Dollars need prices, which these groups do not have.
    assert_eq!(refused("run_tokens_per_usd", &text), ["dollars are sought, and `a` has no price"]);
    let priced = text.replace("nodes = 1\n", "nodes = 1\nusd_per_gpu_hour = 2.0\n");
    assert_eq!(refused("run_tokens_per_usd", &priced), without_run("run_tokens_per_usd"));
}
