//! Steps of frameworks: a script or a scenario of a measured run gives the step that `score` predicts of its row, and what a card or a framework
//! cannot do is refused.

use std::collections::BTreeMap;

use hw::Cluster;
use input::diagnostic::{Code, Finding};
use scenario::training::Scenario;
use score::training::constants;
use score::training::play::{Predicted, predict};
use score::training::row::{Asked, Run};
use skrull_sim::kinds::training::run as pipeline;
use stacks::Machine;
use train::problem::Framework;

/// Predicted time of a row by a scenario, over that of `score`: the same engine plays both, so only rounding of units may differ.
const SAME: std::ops::RangeInclusive<f64> = 0.999..=1.001;

/// A table of measured rows as text, and each row's cells; `None` where it is absent.
fn table(name: &str) -> Option<(String, Vec<BTreeMap<String, String>>)> {
    let path = super::root().join("../shared/data/truth").join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: shared data absent ({})", path.display());
        return None;
    };
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows = reader.deserialize().map(|row| row.expect("a row")).collect();
    Some((text, rows))
}

/// The run of a row as `score` reads it, without the other one that it may have been.
fn run_of(text: &str, row: &str) -> Run {
    let rows = score::training::tables::read(text, &|_| None).expect("a table of steps").expect("no fault");
    let found = rows.into_iter().find(|found| found.label.row == row).expect("the row");
    match found.asked {
        Ok(Asked::Layout(run)) => Run { other: None, ..*run },
        other => panic!("row {row}: {other:?}"),
    }
}

fn predicted(run: Run) -> Predicted {
    let costs = |cluster: &Cluster, framework: Framework| {
        constants::costs(
            cluster,
            &calibrate::profiles::training(&cluster.gpu, framework, train::problem::AttentionKernel::Flash),
        )
    };
    predict(&Asked::from(run), &costs)
}

fn checked(text: String) -> (Option<Scenario>, Vec<Finding>) {
    let checked = super::written(text, &[]);
    (checked.scenario.and_then(|scenario| scenario.training().cloned()), checked.findings)
}

fn scenario(text: &str) -> Scenario {
    let (scenario, findings) = checked(text.to_owned());
    scenario.unwrap_or_else(|| panic!("{findings:?}\n{text}"))
}

/// Step of the one policy of a scenario, seconds.
fn step_s(scenario: &Scenario) -> f64 {
    let result = pipeline::run(scenario, &|_| {}).result.results.remove(0);
    assert!(result.status.is_ok(), "{}", result.why);
    result.metrics["iteration_time_s"]
}

/// The options of a row of torchtitan's table.
fn torchtitan(row: &BTreeMap<String, String>) -> String {
    let cell = |name: &str| row[name].as_str();
    let gpus: u32 = cell("gpus").parse().expect("a count");
    let mut text = format!(
        "torchrun --nnodes={} --nproc_per_node=8 -m torchtitan.train --training.seq_len={} --training.local_batch_size={}",
        gpus / 8,
        cell("seq_tokens"),
        cell("local_batch_seqs")
    );
    for (column, option) in [
        ("fsdp_gpus", "parallelism.data_parallel_shard_degree"),
        ("tp_gpus", "parallelism.tensor_parallel_degree"),
        ("cp_gpus", "parallelism.context_parallel_degree"),
    ] {
        text += &format!(" --{option}={}", cell(column));
    }
    let mode = cell("activation_checkpointing").split(' ').next().unwrap_or("none");
    text += &format!(" --activation_checkpoint.mode={mode} --activation_checkpoint.selective_ac_option=op");
    // The folder of its release, which copied keys and values for every query head.
    text += " --job.config_file=torchtitan/models/llama/train_configs/llama3_8b.toml";
    if cell("compile") == "1" {
        // That release did not compile the loss, and had this name for it.
        text += " --training.compile";
    }
    if let Some(recipe) = cell("precision").strip_prefix("float8 ") {
        text += &format!(" --model.converters=float8 --float8.recipe_name={recipe}");
        if recipe == "tensorwise" {
            text += " --float8.enable_fsdp_float8_all_gather";
        }
    }
    if cell("async_tp") == "1" {
        text += " --parallelism.enable_async_tensor_parallel";
    }
    text + "\n"
}

#[test]
fn a_script_of_torchtitan_gives_the_step_that_score_gives() {
    let Some((text, rows)) = table("torchtitan.csv") else { return };
    // Rows of the second, older table have no word on what was compiled, pipelines none on their micro-batches.
    let is_asked = |row: &&BTreeMap<String, String>| {
        !row["compile"].is_empty() && row["pp_stages"] == "1" && !row["activation_checkpointing"].contains("layer")
    };
    let mut n = 0;
    for row in rows.iter().filter(is_asked) {
        let model = format!("llama-{}", row["model"].trim_start_matches("Llama ").to_lowercase().replace(' ', "-"));
        let gpu = if row["gpu"].contains("96 GB") { "h100-sxm-96g" } else { continue };
        let machine = Machine { gpu: Some(gpu.to_owned()), model: Some(model), ..Machine::default() };
        let script = torchtitan(row);
        let imported = stacks::import(stacks::Stack::Torchtitan, &script, &machine);
        let text_of = &imported.scenario;
        let mut run = run_of(&text, &row["row"]);
        // A script is for a PyTorch of today, whose norm is one kernel.
        if let Framework::Fsdp2(modules) = &mut run.problem.execution.framework {
            modules.fused_norms = true;
        }
        let ratio = step_s(&scenario(text_of)) / predicted(run).step_s;
        println!("row {}: {ratio:.4}", row["row"]);
        assert!(SAME.contains(&ratio), "row {}: {ratio}\n{script}\n{text_of}", row["row"]);
        n += 1;
    }
    assert!(n >= 3, "{n} rows");
}

/// A scenario of Megatron-Core with what a row of Bridge's table says. The run fitted into memory, whatever is counted of it.
fn bridge(run: &Run, model: &str, graphs: &str) -> String {
    let (problem, layout) = (&run.problem, &run.problem.layout);
    let execution = &problem.execution;
    let word = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
    let formats = execution.formats.expect("formats of products");
    let batch = u64::from(layout.dp * run.n_micro_batches * run.micro_batch);
    let bucket = (u64::from(run.micro_batch) * run.tokens).div_ceil(u64::from(layout.cp));
    let mut text = format!(
        "kind = \"training\"\nname = \"row\"\n[model]\nname = \"{model}\"\n[workload]\ntokens = {}\n[policies]\nrun = [\"megatron\"]\n\
         [cluster]\ngpu = \"{}\"\nnodes = {}\ngpus_per_node = {}\nmemory_gib = 100000\n[parallel]\n",
        run.tokens, problem.cluster.gpu.name, problem.cluster.n_nodes, problem.cluster.gpus_per_node,
    );
    let mut line = |key: &str, value: &dyn std::fmt::Display| text += &format!("{key} = {value}\n");
    let quoted = |word: &str| format!("\"{word}\"");
    for (key, degree) in [("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp)] {
        line(key, &degree);
    }
    if problem.model.experts.is_some() {
        line("ep", &layout.ep);
        line("expert_tp", &layout.expert_tp);
    }
    line("zero", &(layout.zero as u8));
    line("sequence_parallel", &layout.sequence_parallel);
    if layout.pp > 1 {
        line("schedule", &quoted(problem.schedule.name));
        line("chunks", &layout.chunks);
        if !execution.layers.is_empty() {
            line("layers", &format!("{:?}", execution.layers));
        }
    }
    let moment = |index: usize| quoted(word(execution.optimizer.moments[index] == hw::Dtype::Fp32, "fp32", "bf16"));
    line("[optimizer]\nfirst_moment", &moment(0));
    line("second_moment", &moment(1));
    line("[training]\nframework", &quoted("megatron-core"));
    line("batch_size", &batch);
    line("bucket_tokens", &bucket);
    line("graphs", &quoted(graphs));
    line("predicting_layers", &problem.model.n_predicting);
    line("recompute", &execution.recompute.written());
    line("loss", &quoted(execution.loss.word()));
    line("gradient_dtype", &quoted(word(execution.gradient_dtype == hw::Dtype::Fp32, "fp32", "bf16")));
    let is_overlapped = execution.gradient_sync == train::problem::GradientSync::Overlapped;
    line("gradient_sync", &quoted(word(is_overlapped, "overlapped", "at_end")));
    line("narrow_gather", &execution.gathers_narrow);
    let [attention, dense, experts, head] = formats.products().map(hw::Format::word);
    line("products.attention", &quoted(attention));
    line("products.dense", &quoted(dense));
    line("products.experts", &quoted(experts));
    line("products.head", &quoted(head));
    line("products.dot_product_attention", &quoted(word(formats.kv == hw::Dtype::Fp8, "fp8", "bf16")));
    line("[overlap]\ntensor", &execution.overlap.tensor);
    if let Some(share) = execution.overlap.expert {
        line("expert", &share);
    }
    line("delayed_weights", &execution.overlap.delayed_weights);
    line("stage", &execution.overlap.stage);
    line("parameter_gather", &execution.overlap.parameter_gather);
    line("[experts]\ndispatcher", &quoted(execution.experts.dispatcher.word()));
    line("fused", &execution.experts.fused);
    text
}

/// Rows of a model of Bridge's table whose graphs a scenario can say, with that word.
fn bridge_rows(rows: &[BTreeMap<String, String>], model: &str) -> Vec<(String, &'static str)> {
    let word = |row: &BTreeMap<String, String>| {
        let modules: Vec<&str> = row["cuda_graph_scope"].split('+').collect();
        train::megatron_core::Graphs::of_options(&row["cuda_graph_impl"], &modules).word()
    };
    let rows = rows.iter().filter(|row| row["model"] == model && row["task"] == "pretrain");
    rows.map(|row| (row["row"].clone(), word(row))).collect()
}

/// Each row of a model that a scenario can say: as many seconds as `score` predicts.
fn same_as_score(word: &str, model: &str, least: usize) {
    let Some((text, rows)) = table("megatron_bridge.csv") else { return };
    let mut n = 0;
    for (row, graphs) in bridge_rows(&rows, word) {
        let run = run_of(&text, &row);
        let execution = &run.problem.execution;
        // No key says which layers stay wide, and none which modules but attention and router graphs replay.
        let is_said = execution.wide_layers == 0 && execution.experts.capacity.is_none();
        let is_whole = run.problem.model.state_space.is_none() || run.problem.layout.cp == 1;
        if !is_said || !is_whole || run.problem.cluster.n_gpus() > 512 {
            continue;
        }
        let text_of = bridge(&run, model, graphs);
        let ratio = step_s(&scenario(&text_of)) / predicted(run).step_s;
        println!("{word} row {row}: {ratio:.4}");
        assert!(SAME.contains(&ratio), "row {row}: {ratio}\n{text_of}");
        n += 1;
    }
    assert!(n >= least, "{n} rows of {word}");
}

#[test]
fn a_scenario_of_a_hybrid_gives_the_step_that_score_gives() {
    same_as_score("Nemotron_3_Nano", "nemotron-3-nano-30b-a3b", 3);
}

#[test]
fn a_scenario_with_experts_and_layers_that_predict_gives_the_step_that_score_gives() {
    same_as_score("Qwen3_30B_a3B", "qwen3-30b-a3b", 3);
    same_as_score("DeepSeekV3", "deepseek-v3", 3);
}

const BASE: &str = "kind = \"training\"\nname = \"a\"\n[model]\nname = \"llama-3-8b\"\n\
                    [cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n[parallel]\ncp = 1\ntp = 2\nzero = 1\n\
                    [training]\nbatch_size = 16\nbucket_tokens = 8192\nsteps = 1\n[workload]\ntokens = 4096\n\
                    [policies]\nrun = [\"megatron\"]\n";

/// The scenario above with lines for others.
fn with(replaced: &[(&str, &str)]) -> String {
    replaced.iter().fold(BASE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    })
}

fn of(text: String, code: Code) -> Vec<Finding> {
    checked(text).1.into_iter().filter(|finding| finding.code == code).collect()
}

#[test]
fn every_way_that_modules_of_pytorch_run_changes_the_step() {
    let time = |more: &str| {
        let training = format!("[training]\nframework = \"pytorch\"\n{more}");
        step_s(&scenario(&with(&[("[training]\n", &training), ("zero = 1", "zero = 3")])))
    };
    let plain = time("");
    assert!(time("compile = true\n") < plain);
    let narrow = time("products = \"fp8\"\n");
    assert_ne!(narrow, plain);
    assert_ne!(time("products = \"fp8\"\ncasts = \"rowwise\"\n"), narrow);
    assert!(time("products = \"fp8\"\nnarrow_gather = true\n") < narrow);
    let formulas = step_s(&scenario(&with(&[("zero = 1", "zero = 3")])));
    assert!(formulas < plain, "no host, no launches: {formulas} and {plain}");
}

#[test]
fn kernels_of_attention_are_named_where_they_run() {
    let text = |gpu: &str, framework: &str, attention: &str| {
        let training = format!("[training]\nframework = \"{framework}\"\nattention = \"{attention}\"\n");
        with(&[("[training]\n", &training), ("h100-sxm", gpu), ("zero = 1", "zero = 3")])
    };
    let time = |framework: &str, attention: &str| step_s(&scenario(&text("h100-sxm", framework, attention)));
    for framework in ["pytorch", "deepspeed"] {
        let [usual, two, three, cudnn] =
            ["flash", "flash-attention-2", "flash-attention-3", "cudnn"].map(|kernel| time(framework, kernel));
        assert!(usual == two && three == cudnn && cudnn < usual, "{framework}: {usual} {two} {three} {cudnn}");
        let said = of(text("h100-sxm", framework, "flash-attention-3"), Code::WrongOperation);
        assert!(said.len() == 1 && said[0].what.contains("no measured backward"), "{said:?}");
    }
    for (gpu, framework, attention) in [
        ("h100-sxm", "pytorch", "flash-attention-2"),
        ("h100-sxm", "megatron-core", "flash-attention-3"),
        ("h100-sxm", "megatron-core", "cudnn"),
        ("h100-sxm", "formulas", "cudnn"),
        ("b200", "pytorch", "cudnn"),
    ] {
        let idle = of(text(gpu, framework, attention), Code::NoEffect);
        assert!(idle.iter().any(|one| one.what.contains(attention)), "{gpu} {framework} {attention}: {idle:?}");
    }
    let refused = of(text("a100-sxm-80g", "pytorch", "flash-attention-3"), Code::WrongOperation);
    assert!(refused.iter().any(|one| one.severity == input::diagnostic::Severity::Error), "{refused:?}");
}

#[test]
fn keys_of_other_frameworks_are_said_to_change_nothing() {
    for line in [
        "compile = true",
        "casts = \"rowwise\"",
        "predicting_layers = 1",
        "loss = \"te\"",
        "narrow_gather = true",
        "framework = \"pytorch\"\ncasts = \"rowwise\"",
    ] {
        let idle = of(with(&[("[training]\n", &format!("[training]\n{line}\n"))]), Code::NoEffect);
        assert_eq!(idle.len(), 1, "{line}: {idle:?}");
    }
}

/// Every key below needs what the base lacks: experts, a pipeline, a context group, recompute, gathers of layers.
#[test]
fn keys_without_their_need_are_said_one_by_one() {
    let idle = |changes: &[(&str, &str)]| of(with(changes), Code::NoEffect).len();
    for (from, to) in [
        ("zero = 1", "zero = 1\nexpert_tp = 2"),
        ("zero = 1", "zero = 1\nflush_every = 4"),
        ("zero = 1", "zero = 1\nmicro_batch_group = 4"),
        ("zero = 1", "zero = 1\nexchange = \"ring\""),
        ("zero = 1", "zero = 1\nschedule = \"interleaved\""),
        ("tp = 2", "tp = 1\nsequence_parallel = true"),
        ("[training]\n", "[training]\nrecompute = \"none\"\nrecompute_layers = 2\n"),
        ("[workload]", "[experts]\nimbalance = 0.5\n[workload]"),
        ("[workload]", "[experts]\ncapacity = 1.5\n[workload]"),
        ("[workload]", "[overlap]\nexpert = 0.5\n[workload]"),
        ("[workload]", "[overlap]\nslowdown = 1.2\n[workload]"),
        ("[workload]", "[overlap]\nforward_prefetch = false\n[workload]"),
        ("[workload]", "[overlap]\nbackward_prefetch = false\n[workload]"),
        ("zero = 1\n[training]", "zero = 0\n[overlap]\nparameter_gather = true\n[training]"),
        ("tp = 2\nzero = 1\n[training]", "tp = 1\nzero = 1\n[overlap]\ntensor = 0.5\n[training]"),
        ("tokens = 4096", "tokens = 4096\nmax_tokens = 2048"),
        (
            "run = [\"megatron\"]",
            "run = [\"megatron\", \"x\"]\n[[policies.variant]]\nname = \"x\"\npolicy = \"megatron\"\ncompression = \"none\"",
        ),
    ] {
        assert_eq!(idle(&[(from, to)]), 1, "{to}");
    }
    assert_eq!(idle(&[]), 0);
    let delayed = with(&[("[workload]", "[overlap]\ndelayed_weights = true\n[workload]")]);
    assert_eq!(of(delayed, Code::MissingKey).len(), 1);
    assert_eq!(idle(&[("tokens = 4096", "tokens = 4096\nmax_tokens = 2048\nlonger = \"cut\"")]), 0);
    // Every layer of the model has experts and no shared one, so nothing is dense.
    for (part, n) in [("dense", 1), ("experts", 0), ("attention", 0)] {
        let training = format!("[training]\nframework = \"megatron-core\"\nproducts = {{ {part} = \"fp8\" }}\n");
        let experts = [("llama-3-8b", "qwen3-30b-a3b"), ("zero = 1", "zero = 3"), ("[training]\n", &training)];
        assert_eq!(idle(&experts), n, "{part}");
    }
}

#[test]
fn fused_experts_are_faster_where_there_are_kernels_and_idle_elsewhere() {
    let text = |gpu: &str, products: &str, fused: bool| {
        let training = format!(
            "[experts]\nfused = {fused}\n[training]\nframework = \"megatron-core\"\ngradient_dtype = \"bf16\"\nproducts = \"{products}\"\n"
        );
        with(&[("llama-3-8b", "qwen3-30b-a3b"), ("h100-sxm", gpu), ("tp = 2", "ep = 8"), ("[training]\n", &training)])
    };
    let time = |fused| step_s(&scenario(&text("b200", "mxfp8", fused)));
    assert!(time(true) < time(false));
    for (gpu, products) in [("h100-sxm", "fp8-block"), ("b200", "nvfp4"), ("b200", "bf16")] {
        let idle = of(text(gpu, products, true), Code::NoEffect);
        assert_eq!(idle.len(), 1, "{gpu} {products}: {idle:?}");
        assert_eq!(of(text(gpu, products, false), Code::NoEffect), [], "{gpu} {products}");
    }
}

#[test]
fn kernels_that_are_not_fused_take_time_and_say_where_there_are_none() {
    let text = |model: &str, framework: &str, unfused: &str| {
        let training = format!(
            "[training]\nframework = \"{framework}\"\nrecompute = \"full\"\ngradient_dtype = \"bf16\"\n{unfused}\n"
        );
        with(&[
            ("llama-3-8b", model),
            ("tp = 2", if model.starts_with("qwen") { "ep = 8" } else { "tp = 2" }),
            // A table of positions has 2048.
            ("tokens = 4096", if model.starts_with("gpt") { "tokens = 2048" } else { "tokens = 4096" }),
            ("[training]\n", &training),
        ])
    };
    let time = |model: &str, unfused: &str| step_s(&scenario(&text(model, "megatron-core", unfused)));
    let fused = time("qwen3-30b-a3b", "");
    for word in ["permutation", "activation", "positions"] {
        assert!(time("qwen3-30b-a3b", &format!("unfused = [\"{word}\"]")) > fused, "{word}");
    }
    let idle = |model: &str, framework: &str, words: &str| {
        of(text(model, framework, &format!("unfused = [{words}]")), Code::NoEffect).len()
    };
    assert_eq!(idle("qwen3-30b-a3b", "megatron-core", "\"permutation\", \"activation\", \"positions\""), 0);
    assert_eq!(idle("llama-3-8b", "megatron-core", "\"permutation\", \"activation\""), 1);
    assert_eq!(idle("gpt-13b", "megatron-core", "\"permutation\", \"positions\""), 2);
    assert_eq!(idle("qwen3-30b-a3b", "pytorch", "\"permutation\""), 1);
    assert_eq!(of(text("llama-3-8b", "megatron-core", "unfused = \"permutation\""), Code::WrongType).len(), 1);
    assert_eq!(of(text("llama-3-8b", "megatron-core", "unfused = []"), Code::OutOfRange).len(), 1);
}

#[test]
fn kernels_of_the_loss_and_dropout_take_time_and_memory() {
    let played = |lines: &str, gpu: &str| {
        let training = format!("[training]\nframework = \"megatron-core\"\n{lines}");
        let scenario = scenario(&with(&[("[training]\n", &training), ("h100-sxm", gpu)]));
        let result = pipeline::run(&scenario, &|_| {}).result.results.remove(0);
        (result.metrics["iteration_time_s"], result.metrics["peak_memory_bytes"])
    };
    let loss = |word: &str| played(&format!("loss = \"{word}\"\n"), "b200");
    let [unfused, native, older, te, newer, linear] =
        ["unfused", "native", "native-lts", "te", "te-2.18", "linear"].map(loss);
    assert_eq!(played("", "b200"), unfused);
    assert!(te.0 < newer.0 && newer.0 < native.0 && native.0 < unfused.0, "{te:?} {newer:?} {native:?} {unfused:?}");
    // Logits of a micro-batch of 8,192 tokens over two ranks: 128,256 rows by half.
    let logits = 8192.0 * 128_256.0 / 2.0;
    let per_logit = |more: f64, less: f64| (more - less) / logits;
    assert!((per_logit(native.1, unfused.1) - 8.0).abs() < 0.01);
    assert!((per_logit(older.1, unfused.1) - 4.0).abs() < 0.01);
    assert!(te.1 < unfused.1 && linear.1 < te.1, "{linear:?} {te:?}");
    // The head is multiplied once more, and no logit goes through memory.
    assert!(linear.0 > te.0, "{linear:?} {te:?}");
    let refused = with(&[("[training]\n", "[training]\nframework = \"megatron-core\"\nloss = \"linear\"\n")]);
    assert_eq!(of(refused, Code::WrongOperation).len(), 1);
    let [none, residual] = ["none", "residual"].map(|word| played(&format!("dropout = \"{word}\"\n"), "h100-sxm"));
    // Two masks of a byte in each of 32 layers of width 4,096, over two ranks.
    let masks = 8192.0 * 32.0 * 2.0 * 4096.0 / 2.0;
    assert!(((residual.1 - none.1) / masks - 1.0).abs() < 0.01, "{residual:?} {none:?}");
    assert_eq!(played("", "h100-sxm"), none);
    let scores =
        |word: &str| played(&format!("recompute = \"none\"\nattention = \"unfused\"\ndropout = \"{word}\"\n"), "b200");
    let [without, with_masks] = ["none", "attention"].map(scores);
    assert!(without.0 < with_masks.0 && without.1 < with_masks.1);
}

#[test]
fn graphs_of_modules_take_memory_of_their_own() {
    let peak = |graphs: &str| {
        let training = format!("[training]\nframework = \"megatron-core\"\ngraphs = \"{graphs}\"\n");
        let scenario = scenario(&with(&[("[training]\n", &training)]));
        pipeline::run(&scenario, &|_| {}).result.results.remove(0).metrics["peak_memory_bytes"]
    };
    // Over two ranks: a width of 4,096, 32 heads with their output, 8 keys and 8 values of 128, and 32 numbers of softmax.
    let of_token = (2 * 4096 + 2 * 128 * (32 + 8 + 8 + 32) + 4 * 32) / 2;
    assert!((peak("attention") - peak("none") - 8192.0 * f64::from(of_token)).abs() < 1.0);
    assert!((peak("step") - peak("none")).abs() < 1.0);
}

#[test]
fn the_search_bounds_hybrids_from_below() {
    for lists in ["pp = [1]\nep = [8]\n", "pp = [2]\nep = [4]\n", "pp = [4]\nep = [2]\nchunks = [1]\n"] {
        let text = with(&[
            ("llama-3-8b", "nemotron-3-nano-30b-a3b"),
            ("h100-sxm", "b300"),
            ("cp = 1\ntp = 2\nzero = 1\n", "layout = \"search\"\n"),
            ("[training]\n", &format!("[search]\n{lists}zero = [1]\n[training]\nframework = \"megatron-core\"\n")),
            ("bucket_tokens = 8192\n", ""),
        ]);
        let scenario = scenario(&text);
        let (cost, topology) = (scenario.costs(), hw::topology::Topology::of(&scenario.problem.cluster));
        let decided = pipeline::decide(&scenario, &scenario.policies[0], cost.as_ref(), &topology);
        let best = decided.unwrap_or_else(|why| panic!("{lists}: {why}")).found.expect("a search").best.plan;
        assert!(best.bound_s > 0.0 && best.bound_s <= best.step_s, "{lists}: {} of {}", best.bound_s, best.step_s);
        // On one stage nothing but whole layers is left out of the bound.
        assert!(
            best.candidate.layout.pp > 1 || best.bound_s > 0.7 * best.step_s,
            "{} of {}",
            best.bound_s,
            best.step_s
        );
    }
}

#[test]
fn products_are_given_by_part() {
    let step = |products: &str| {
        let training = format!("[training]\nframework = \"megatron-core\"\nproducts = {products}\n");
        let scenario = scenario(&with(&[("[training]\n", &training), ("h100-sxm", "b200")]));
        (scenario.problem.execution.formats.expect("formats"), step_s(&scenario))
    };
    let (formats, mixed) = step("{ attention = \"bf16\", dense = \"mxfp8\", experts = \"nvfp4\", head = \"bf16\" }");
    let words = [formats.attention, formats.dense, formats.experts, formats.head].map(hw::Format::word);
    assert_eq!(words, ["bf16", "mxfp8", "nvfp4", "bf16"]);
    let [wide, narrow] = ["\"bf16\"", "\"mxfp8\""].map(|word| step(word).1);
    assert!(narrow < mixed && mixed < wide, "{narrow} {mixed} {wide}");
    // A word for all stands beside parts of its own.
    assert_eq!(step("{ format = \"mxfp8\", attention = \"bf16\" }").0.dense, hw::Format::Mxfp8);
    // Nothing is kept of keys and values between steps.
    let kept = with(&[("[training]\n", "[training]\nproducts = { kv = \"fp8\" }\n")]);
    assert_eq!(of(kept, Code::UnknownKey).len(), 1);
}

#[test]
fn attention_in_8_bits_is_that_of_transformer_engine() {
    let text = |gpu: &str, more: &str, format: &str| {
        let training = format!("[training]\n{more}products = {{ dot_product_attention = \"{format}\" }}\n");
        with(&[("[training]\n", &training), ("h100-sxm", gpu)])
    };
    let core = "framework = \"megatron-core\"\n";
    let step = |format: &str| {
        let (found, findings) = checked(text("gb200", core, format));
        assert!(findings.iter().all(|finding| finding.code != Code::NoEffect), "{findings:?}");
        step_s(&found.expect("a scenario"))
    };
    assert_ne!(step("fp8"), step("bf16"));
    for (gpu, more, needs) in [
        ("gb200", "", "framework = \"megatron-core\""),
        ("gb200", "framework = \"megatron-core\"\nattention = \"unfused\"\n", "attention = \"flash\""),
        ("a100-sxm-80g", core, "a card with products in 8 bits"),
    ] {
        let found = of(text(gpu, more, "fp8"), Code::WrongOperation);
        let [finding] = &found[..] else { panic!("{gpu} {more}: {found:?}") };
        assert!(finding.help.as_ref().is_some_and(|help| help.contains(needs)), "{finding:?}");
    }
}

#[test]
fn formats_that_a_card_does_not_multiply_are_refused_with_those_that_it_does() {
    for (gpu, products, is_refused) in [
        ("a100-sxm-80g", "\"fp8\"", true),
        ("a100-sxm-80g", "\"nvfp4\"", true),
        ("h100-sxm", "\"nvfp4\"", true),
        ("h100-sxm", "{ format = \"fp8\", experts = \"nvfp4\" }", true),
        ("h100-sxm", "\"fp8\"", false),
        ("b200", "\"nvfp4\"", false),
    ] {
        let training = format!("[training]\nproducts = {products}\n");
        let text = with(&[("[training]\n", &training), ("h100-sxm", gpu)]);
        let place = text.find(&products[..4]).expect("it stands there");
        let found = of(text, Code::WrongOperation);
        assert_eq!(!found.is_empty(), is_refused, "{gpu} {products}: {found:?}");
        for finding in found {
            assert!(finding.what.starts_with(&format!("`{gpu}` multiplies no ")), "{}", finding.what);
            assert!(finding.help.is_some_and(|help| help.contains("bf16")));
            assert!(finding.at.is_some_and(|at| at.start.abs_diff(place) < 3));
        }
    }
}

#[test]
fn layers_that_predict_further_tokens_take_time_and_memory_of_their_own() {
    let played = |framework: &str, n: u64| {
        let training = format!("[training]\nframework = \"{framework}\"\npredicting_layers = {n}\n");
        let scenario = scenario(&with(&[("[training]\n", &training)]));
        let result = pipeline::run(&scenario, &|_| {}).result.results.remove(0);
        (scenario.problem.model.n_layers, result.metrics["iteration_time_s"], result.metrics["peak_memory_bytes"])
    };
    let [none, one, three] = [0, 1, 3].map(|n| played("megatron-core", n));
    assert_eq!([none.0, one.0, three.0], [32, 33, 35]);
    assert!(none.1 < one.1 && one.1 < three.1 && none.2 < one.2 && one.2 < three.2, "{none:?} {one:?} {three:?}");
    // A layer has 218 M parameters, halved over two ranks; a parameter has 2 bytes, 2 to 4 of its gradient, and a quarter of 12. Its loss keeps
    // 4 bytes of each logit, of which a rank has half.
    let logits = 4.0 * 8192.0 * 128_256.0 / 2.0;
    let each = ((three.2 - one.2) / 2.0 - logits) / (218.1e6 / 2.0);
    assert!((7.0..20.0).contains(&each), "{each} bytes per parameter with its activations");
    assert_eq!(played("formulas", 0).0, 32);
}

#[test]
fn windows_are_timed_with_a_framework_and_named_without() {
    let gemma = |framework: &str| {
        let training = format!("[training]\nframework = \"{framework}\"\n");
        with(&[
            ("[training]\n", &training),
            ("llama-3-8b", "gemma-3-27b"),
            ("bucket_tokens = 8192", "bucket_tokens = 4096"),
        ])
    };
    // Its encoder is left out either way.
    assert_eq!(of(gemma("formulas"), Code::LeftOut).len(), 2);
    assert_eq!(of(gemma("megatron-core"), Code::LeftOut).len(), 1);
    // Its windows have 1,024 tokens, so shorter sequences see all of themselves.
    let n_left_out = [1025, 1024].map(|n| {
        let workload = format!("[workload]\ntokens = {n}");
        of(gemma("formulas").replace("[workload]\ntokens = 4096", &workload), Code::LeftOut).len()
    });
    assert_eq!(n_left_out, [2, 1]);
    // Layers with a state are timed by a framework alone, on whole sequences.
    let hybrid = |framework: &str| {
        let training = format!("[training]\nframework = \"{framework}\"\n");
        with(&[("[training]\n", &training), ("llama-3-8b", "nemotron-3-nano-30b-a3b")])
    };
    let refused = of(hybrid("formulas"), Code::UnsupportedModel);
    assert!(refused[0].help.as_ref().is_some_and(|help| help.contains("megatron-core")), "{refused:?}");
    assert_eq!(of(hybrid("megatron-core"), Code::UnsupportedModel), []);
    assert_eq!(of(hybrid("megatron-core").replace("cp = 1", "cp = 4"), Code::UnsupportedModel).len(), 1);
    let selected = hybrid("megatron-core").replace("nemotron-3-nano-30b-a3b", "glm-5");
    assert!(of(selected, Code::UnsupportedModel)[0].what.contains("selected tokens"));
}
