//! What exports of training plans say: every key of a plan stands in a file, in a remark, or is refused by name; fleets that are fixed have plans.

use input::diagnostic::Source;
use scenario::Overrides;
use skrull_sim::hardware::PlannedStep;
use skrull_sim::kinds;
use stacks::Machine;
use stacks::export::{Planned, Words};

use super::foreign::{errors, exported, machine_of, planned_of};

/// A scenario of experts on a pipeline, and one of a dense model without: bases of which single keys are changed.
const EXPERTS: &str = r#"
kind = "training"
seed = 0
[model]
name = "mixtral-8x7b"
[cluster]
gpu = "h200-sxm"
nodes = 4
gpus_per_node = 8
[parallel]
tp = 2
pp = 2
ep = 4
expert_tp = 1
schedule = "interleaved"
chunks = 2
[training]
batch_size = 32
bucket_tokens = 4096
framework = "megatron-core"
recompute = "full"
gradient_dtype = "fp32"
[workload]
tokens = 4096
[policies]
run = ["megatron"]
"#;
const DENSE: &str = r#"
kind = "training"
seed = 0
[model]
name = "llama-3-8b"
[cluster]
gpu = "h100-sxm"
nodes = 2
gpus_per_node = 8
[parallel]
tp = 2
zero = 3
sequence_parallel = false
[training]
batch_size = 16
bucket_tokens = 4096
gradient_dtype = "fp32"
recompute = "full"
[workload]
tokens = 4096
[policies]
run = ["megatron"]
"#;

/// Keys of the sections that say how a step is executed, with another value and the base in which it makes a difference.
const CHANGES: [(&str, &str, &str); 43] = [
    ("parallel.tp", "1", DENSE),
    ("parallel.pp", "4", EXPERTS),
    ("parallel.cp", "2", DENSE),
    ("parallel.ep", "2", EXPERTS),
    ("parallel.expert_tp", "2", EXPERTS),
    ("parallel.zero", "0", DENSE),
    ("parallel.replicate", "2", DENSE),
    ("parallel.sequence_parallel", "true", DENSE),
    ("parallel.schedule", "\"1f1b\"", EXPERTS),
    ("parallel.chunks", "4", EXPERTS),
    ("parallel.layers", "[7, 9, 9, 7]", EXPERTS),
    ("parallel.order", "\"tp-cp-pp-dp\"", EXPERTS),
    ("training.batch_size", "64", DENSE),
    ("training.bucket_tokens", "8192", DENSE),
    ("training.dtype", "\"fp16\"", DENSE),
    ("training.gradient_dtype", "\"bf16\"", DENSE),
    ("training.gradient_sync", "\"at_end\"", DENSE),
    ("training.recompute", "\"selective\"", DENSE),
    ("training.recompute_layers", "2", DENSE),
    ("training.attention", "\"unfused\"", DENSE),
    ("training.framework", "\"formulas\"", EXPERTS),
    ("training.products", "\"fp8\"", DENSE),
    ("training.offload_ratio", "0.5", DENSE),
    ("training.fragmentation", "1.5", DENSE),
    ("training.host_overhead_per_layer_us", "100.0", DENSE),
    ("training.graphs", "\"attention\"", EXPERTS),
    ("overlap.tensor", "0.4", DENSE),
    ("overlap.expert", "0.4", EXPERTS),
    ("training.loss", "\"te\"", EXPERTS),
    ("training.dropout", "\"both\"", DENSE),
    ("training.unfused", "[\"permutation\"]", EXPERTS),
    ("parallel.flush_every", "2", EXPERTS),
    ("parallel.micro_batch_group", "4", EXPERTS),
    ("overlap.slowdown", "1.3", DENSE),
    ("overlap.stage", "false", EXPERTS),
    ("overlap.forward_prefetch", "false", DENSE),
    ("overlap.backward_prefetch", "false", DENSE),
    ("experts.imbalance", "0.5", EXPERTS),
    ("experts.capacity", "1.5", EXPERTS),
    ("experts.dispatcher", "\"flex\"", EXPERTS),
    ("workload.tokens", "2048", DENSE),
    ("parallel.dp", "4", DENSE),
    ("parallel.exchange", "\"ulysses\"", DENSE),
];

/// The plan of a scenario with values laid over it.
fn planned_with(base: &str, set: &[String]) -> PlannedStep {
    let source = Source { path: "scenario.toml".to_owned(), text: base.to_owned() };
    let overrides = Overrides { set: set.to_vec(), seed: None, ..Overrides::default() };
    let checked = kinds::check(source, std::path::Path::new(""), &overrides);
    let why = errors(&checked.findings);
    let scenario = checked.scenario.unwrap_or_else(|| panic!("{set:?}: {why:?}"));
    let scenario = scenario.training().cloned().expect("a training");
    planned_of(&scenario, "megatron").unwrap_or_else(|why| panic!("{set:?}: {why}"))
}

/// What a target makes of a scenario: its files, or what it cannot say.
fn told(base: &str, set: &[String], target: &str) -> Result<String, String> {
    let planned = planned_with(base, set);
    let files = exported(&planned, target).map_err(|why| why.to_string())?;
    Ok(files.iter().map(|file| file.text().into_owned()).collect())
}

/// The rule of exports: what the target cannot say is an error that names it, never dropped.
#[test]
fn a_key_that_is_changed_changes_the_file_or_a_remark_or_is_refused() {
    for target in ["megatron", "bridge", "torchtitan", "deepspeed"] {
        for (key, value, base) in CHANGES {
            // Torchtitan shards all or nothing, DeepSpeed takes pipelines and experts from the module.
            let base = if target == "deepspeed" { DENSE } else { base };
            if base == DENSE && CHANGES.iter().any(|(known, _, own)| *known == key && *own == EXPERTS) {
                continue;
            }
            let mut with = Vec::new();
            if target == "torchtitan" {
                with.push("parallel.zero=3".to_owned());
            }
            if key == "parallel.exchange" {
                with.extend(["parallel.cp=2".to_owned()]);
            }
            let before = told(base, &with, target);
            assert!(before.is_ok() || key == "parallel.exchange", "{target}: {before:?}");
            with.push(format!("{key}={value}"));
            if key == "parallel.dp" {
                with.push("cluster.nodes=1".to_owned());
            }
            let after = told(base, &with, target);
            assert!(before != after, "{target}: `{key} = {value}` is lost");
        }
    }
}

/// Keys of those sections are changed above, or stand here with the reason.
#[test]
fn every_key_of_an_execution_is_changed() {
    let others = [
        // The file has one step, and steps of one length are alike.
        "training.steps",
        // Layers of one framework, its compiler and its casts, and what needs narrow products: each by a test of its own.
        "training.predicting_layers",
        "training.narrow_gather",
        "training.compile",
        "training.casts",
        "training.loss_parallel",
        // Heads of keys and values that are copied: by a test of torchtitan's releases.
        "training.repeat_kv",
        // DeepSpeed's alone: by a test of its reader.
        "training.parameters_on_host",
        // Products of experts are fused on Blackwell: by a test of its own.
        "experts.fused",
        // Merging is of policies that merge.
        "experts.compression",
        // It needs an all-to-all behind computation: by a test of its own.
        "overlap.delayed_weights",
        // ZeRO 1 and 2 alone have it.
        "overlap.parameter_gather",
        // A search in the place of degrees.
        "parallel.layout",
        // Of plans that are written by hand, and of samples of other kinds.
        "training.messages",
        "training.micro_batch",
        "training.micro_batches",
        "training.tokens",
        "training.zero",
    ];
    let page = skrull_sim::commands::keys().page();
    for section in ["parallel", "training", "overlap", "experts"] {
        let rows = page.split(&format!("## `{section}`\n")).nth(1).expect("a section");
        let rows = rows.split("\n## ").next().unwrap_or_default().lines();
        for row in rows.filter(|row| row.starts_with("| `")) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let key = format!("{section}.{}", cells[0].trim_matches(['|', ' ', '`']));
            let is_training = cells.iter().any(|cell| cell.split(", ").any(|kind| kind == "training"));
            let is_known = CHANGES.iter().any(|(known, ..)| *known == key) || others.contains(&key.as_str());
            assert!(is_known || !is_training, "`{key}` is not changed: {row}");
        }
    }
}

/// Recompute, products, offload and the cut of stages are found with the degrees, so a plan without them would be another one.
#[test]
fn a_searched_plan_that_is_read_back_is_the_same_plan() {
    let base =
        DENSE.replace("[parallel]\ntp = 2\nzero = 3\nsequence_parallel = false\n", "[parallel]\nlayout = \"search\"\n");
    let base = base.replace("recompute = \"full\"\n", "").replace("bucket_tokens = 4096\n", "");
    for lists in [
        "recompute = [\"full\"]\nproducts = [\"fp8\"]\nzero = [1]\n",
        "recompute = [[\"layernorm\", \"mlp\"]]\npp = [4]\nchunks = [1]\nhead_layers = [4]\n",
        "offload_ratio = [0.25]\nrecompute = [\"none\"]\nmicro_batch = [1]\nnodes = [1]\n",
    ] {
        let text = format!("{base}[search]\n{lists}");
        let checked = super::written(text, &[]);
        let why = errors(&checked.findings);
        let scenario = checked.scenario.unwrap_or_else(|| panic!("{why:?}")).training().cloned().expect("a training");
        let first = planned_of(&scenario, "megatron").unwrap_or_else(|why| panic!("{lists}: {why}"));
        let json = serde_json::to_string(&first.decision.plan).expect("a plan has a JSON form");
        let plan: train::Plan = serde_json::from_str(&json).expect("the same");
        assert_eq!(plan, first.decision.plan);
        let back = skrull_sim::hardware::of_file(&scenario, plan).unwrap_or_else(|why| panic!("{lists}: {why}"));
        let of = |problem: &train::Problem| format!("{problem:?}");
        assert_eq!(of(&back.problem), of(&first.problem), "{lists}");
        assert_ne!(of(&first.problem), of(&scenario.problem));
    }
}

#[test]
fn delayed_gradients_of_weights_are_written_or_refused() {
    let overlapped = ["overlap.expert=0.5", "training.recompute=\"none\""].map(str::to_owned);
    let with = [&overlapped[..], &["overlap.delayed_weights=true".to_owned()]].concat();
    for (target, flag) in [("megatron", "--delay-wgrad-compute"), ("bridge", "delay_wgrad_compute=true")] {
        assert!(!told(EXPERTS, &overlapped, target).expect("a file").contains(flag));
        assert!(told(EXPERTS, &with, target).expect("a file").contains(flag), "{target}");
        // Megatron Core asserts that nothing is computed again whole beside it.
        let why = told(EXPERTS, &overlapped[..1], target).expect_err("refused there");
        assert!(why.contains("does not go with `--recompute-granularity full`"), "{why}");
    }
    assert!(told(EXPERTS, &with, "torchtitan").is_err_and(|why| why.contains("gradients of weights")));
}

/// Compiled modules of PyTorch have a compiled loss, which no file has to name. One that is not compiled has a key of torchtitan.
#[test]
fn a_loss_is_compiled_with_its_modules_or_not() {
    let set = |more: &[&str]| -> Vec<String> {
        let compiled = ["training.framework=\"pytorch\"", "training.compile=true", "parallel.tp=1"];
        compiled.iter().chain(more).map(|one| (*one).to_owned()).collect()
    };
    for target in ["torchtitan", "deepspeed"] {
        let text = told(DENSE, &set(&[]), target).unwrap_or_else(|why| panic!("{target}: {why}"));
        assert!(!text.contains("components"), "{text}");
    }
    let text = told(DENSE, &set(&["training.loss=\"unfused\""]), "torchtitan").expect("said");
    assert!(text.contains("--compile.components=model"), "{text}");
}

#[test]
fn fused_experts_are_written_or_refused() {
    let set = ["cluster.gpu=\"b200\"", "training.products=\"mxfp8\"", "experts.fused=true"].map(str::to_owned);
    for (target, flag) in
        [("megatron", "--use-transformer-engine-op-fuser"), ("bridge", "use_transformer_engine_op_fuser=true")]
    {
        assert!(told(EXPERTS, &set, target).expect("a file").contains(flag), "{target}");
        assert!(!told(EXPERTS, &set[..2], target).expect("a file").contains(flag), "{target}");
    }
    assert!(told(EXPERTS, &set, "torchtitan").is_err_and(|why| why.contains("fused")));
}

#[test]
fn kernels_that_are_not_fused_are_written_or_refused() {
    let all = ["training.unfused=[\"permutation\", \"activation\", \"positions\"]".to_owned()];
    let [fused, unfused] = [&[], &all[..]].map(|set| told(EXPERTS, set, "megatron").expect("a file"));
    for (flag, is_of_unfused) in
        [("--moe-permute-fusion", false), ("--no-bias-swiglu-fusion", true), ("--no-rope-fusion", true)]
    {
        assert_eq!([fused.contains(flag), unfused.contains(flag)], [!is_of_unfused, is_of_unfused], "{flag}");
    }
    let bridge = told(EXPERTS, &all, "bridge").expect("a file");
    for key in ["moe_permute_fusion", "bias_activation_fusion", "apply_rope_fusion"] {
        assert!(bridge.contains(&format!("model.{key}=false")), "{key} in {bridge}");
        assert!(!told(EXPERTS, &[], "bridge").expect("a file").contains(key), "{key}");
    }
    assert!(told(EXPERTS, &all, "torchtitan").is_err_and(|why| why.contains("not fused")));
}

/// Options name the schedule's file, and the recipe is a module that Python compiles.
#[test]
fn a_schedule_comes_back_from_torchtitans_options_and_its_recipe_is_python() {
    let set = ["parallel.pp=4", "parallel.schedule=\"zb-1p\"", "parallel.zero=0"].map(str::to_owned);
    let first = planned_with(DENSE, &set);
    let files = exported(&first, "torchtitan").expect("torchtitan says it");
    let text = |name: &str| files.iter().find(|file| file.name == name).expect(name).text().into_owned();
    let machine = Machine {
        files: vec![("schedule.csv".to_owned(), text("schedule.csv"))],
        ..machine_of(&first.problem, "torchtitan")
    };
    let options = text("options.txt");
    assert_eq!(stacks::named_beside(&options), ["schedule.csv"]);
    let found = stacks::import(stacks::recognise(&options).expect("options"), &options, &machine);
    assert_eq!(errors(&found.findings), Vec::<String>::new(), "{options}");
    for part in ["schedule = \"zb-1p\"", "pp = 4", "tp = 2", "zero = 0", "gradient_dtype = \"fp32\""] {
        assert!(found.scenario.contains(part), "{part} in {}", found.scenario);
    }
    // Even stages: torchtitan would count the ends as layers.
    assert!(!found.scenario.contains("layers = ["), "{}", found.scenario);
    let recipe = text("recipe.py");
    for part in [
        "from torchtitan.models.llama3.config_registry import llama3_8b",
        "def planned():\n    config = llama3_8b()",
        "config.parallelism.pipeline_parallel_schedule_csv = str(HERE / \"schedule.csv\")",
        "config.activation_checkpoint = FullAC.Config()",
    ] {
        assert!(recipe.contains(part), "{part} in {recipe}");
    }
    let path = std::env::temp_dir().join(format!("skrull-recipe-{}.py", std::process::id()));
    std::fs::write(&path, &recipe).expect("a file");
    let code = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
    match std::process::Command::new("python3").args(["-c", code]).arg(&path).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => println!("skipped: no python3"),
    }
    std::fs::remove_file(path).ok();
}

/// Fleets that a scenario fixes are deployments, one for each model, which servers take.
#[test]
fn fleets_that_are_fixed_have_plans() {
    for (name, n_models, targets) in [
        ("serving/disaggregated", 1, &["vllm", "kubernetes"][..]),
        ("serving/mixed-fleet", 1, &["vllm", "kubernetes", "skypilot"]),
        ("together/two-models", 2, &["vllm", "sglang", "kubernetes"]),
    ] {
        let text = scenario::EMBEDDED.iter().find(|(known, _)| *known == name).expect("shipped").1;
        let source = Source { path: format!("{name} (shipped)"), text: text.to_owned() };
        let scenario = kinds::check(source, std::path::Path::new(""), &Overrides::default()).scenario.expect(name);
        let choice = scenario.choices()[0].to_owned();
        let plan = scenario.plan(&choice).expect("a plan").unwrap_or_else(|why| panic!("{name}: {}", why.why)).json;
        let deployments: Vec<serve::deployment::Deployment> =
            serde_json::from_value(plan["deployments"].clone()).expect("deployments");
        assert_eq!(deployments.len(), n_models, "{name}");
        let settings: stacks::settings::Settings = serde_json::from_value(plan["settings"].clone()).expect("settings");
        let asked = Planned::Serving { deployments: &deployments, settings: &settings };
        let taken = |target: &&str| stacks::targets::export(target, &asked, &Words::default()).is_ok();
        println!("{name} {choice}: {:?}", targets.iter().map(|target| (target, taken(target))).collect::<Vec<_>>());
        assert!(targets.iter().any(taken), "{name}");
    }
}

/// Nodes of a script are told apart by variables, as those of `examples/gpt3/train_gpt3_175b_distributed.sh` of Megatron-LM are.
#[test]
fn a_script_of_several_nodes_says_how_they_meet() {
    let script = told(DENSE, &[], "megatron").expect("a script");
    for part in ["--nnodes 2", "--node-rank \"${NODE_RANK:-0}\"", "--master-addr \"${MASTER_ADDR:-localhost}\""] {
        assert!(script.contains(part), "{part} in {script}");
    }
    let one = told(DENSE, &["cluster.nodes=1".to_owned(), "parallel.dp=4".to_owned()], "megatron").expect("a script");
    assert!(!one.contains("--node-rank"), "{one}");
}

/// `activation_checkpointing` of DeepSpeed sets options of a function that the model has to call, and its configuration compiles nothing.
#[test]
fn deepspeed_is_told_what_its_configuration_does_not_turn_on() {
    let with = |set: &[&str]| {
        let set: Vec<String> = set.iter().map(|key| (*key).to_owned()).collect();
        told(DENSE, &set, "deepspeed").expect("a configuration")
    };
    let again = "deepspeed.checkpointing.checkpoint";
    assert!(with(&[]).contains(again) && !with(&["training.recompute=\"none\""]).contains(again));
    let compiled = ["training.framework=\"pytorch\"", "training.compile=true"];
    assert!(with(&compiled).contains("the script has to compile") && !with(&compiled[..1]).contains("has to compile"));
}

/// 600 s are 60 steps of 10 s.
#[test]
fn checkpoints_of_a_run_of_days_are_flags() {
    let days = [
        "failures.days=30.0",
        "failures.gpu_mtbf_hours=50000.0",
        "failures.spare_nodes=2",
        "checkpoint.every_s=600.0",
        "checkpoint.storage_gb_per_s=100.0",
    ];
    let set: Vec<String> = days.iter().map(|key| (*key).to_owned()).collect();
    let source = Source { path: "scenario.toml".to_owned(), text: DENSE.to_owned() };
    let checked =
        kinds::check(source, std::path::Path::new(""), &Overrides { set, seed: None, ..Overrides::default() });
    let scenario = checked.scenario.expect("a scenario").training().cloned().expect("a training");
    let planned = planned_of(&scenario, "megatron").expect("a plan");
    let weeks = scenario.long_run.clone().map(|run| stacks::weeks::Weeks { run, step_s: 10.0 });
    let words = Words { weeks, ..Words::default() };
    let cost = scenario.costs();
    let asked = Planned::Training { problem: &planned.problem, plan: &planned.decision.plan, cost: cost.as_ref() };
    for (target, parts) in [
        ("megatron", ["--save-interval 60\n", "--async-save\n"]),
        ("bridge", ["checkpoint.save_interval=60\n", "checkpoint.async_save=true\n"]),
        ("deepspeed", ["a checkpoint every 60 steps (asynchronous)", "2 spare nodes"]),
    ] {
        let files = stacks::targets::export(target, &asked, &words).expect(target);
        let text: String = files.iter().map(|file| file.text().into_owned()).collect();
        for part in parts.into_iter().chain(["The prediction of 30 days has failures"]) {
            assert!(text.contains(part), "{target}: {part} in {text}");
        }
    }
}

/// Plain selective recompute of Megatron-LM is that of attention. Formulas of papers have a remark; of Megatron's own kernels the modules are to be written.
#[test]
fn selective_recompute_beside_fused_attention_is_refused_with_the_key_to_write() {
    let selective = ["training.framework=\"megatron-core\"", "training.recompute=\"selective\"", "parallel.zero=1"];
    for target in ["megatron", "bridge"] {
        let with = |set: &[&str]| told(DENSE, &set.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>(), target);
        let why = with(&selective).expect_err("no such flag");
        assert!(why.contains("`training.recompute = \"layernorm\"`") && why.contains("core_attn"), "{why}");
        // Where the score matrix is kept, dropping it is what both do.
        with(&[&selective[..], &["training.attention=\"unfused\""]].concat()).expect("a file");
        with(&[&selective[..], &["training.recompute=\"layernorm\""]].concat()).expect("a file");
        let remark = with(&[selective[1], selective[2]]).expect("a file");
        assert!(remark.contains("The prediction computes norms and activation functions again"), "{remark}");
    }
}
