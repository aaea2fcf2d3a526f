//! Every mechanism of a training step where training is a part of something: stages of fine-tuning, and tasks that share a model. It runs and shows, in
//! time or memory, or it is refused with the reason. Nothing is ignored.

use std::path::Path;

use input::diagnostic::{self, Severity, Source};
use rayon::prelude::*;
use scenario::{self, Overrides};
use skrull_sim::kinds::{self, Checked};

/// What a mechanism does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// The step takes another time.
    Time,
    /// The fullest GPU holds another number of bytes.
    Memory,
    /// Nobody has it there, in words that stand in the message.
    Refused(&'static str),
}

use Does::{Memory, Refused, Time};

/// A mechanism: the keys that ask for it, others that stand in both steps that are compared, and what it does.
type Row = (&'static [&'static str], &'static [&'static str], Does);

fn checked(source: Source, folder: &Path, set: &[&str]) -> Checked {
    let set = set.iter().map(|key| (*key).to_owned()).collect();
    kinds::check(source, folder, &Overrides { set, ..Overrides::default() })
}

/// Time and memory of a scenario's first row by two metrics; the messages where it is refused.
fn figures(checked: Checked, metrics: [&str; 2]) -> Result<[f64; 2], String> {
    let messages = diagnostic::render(&checked.source, &checked.findings);
    if checked.findings.iter().any(|finding| finding.severity == Severity::Error) {
        return Err(messages);
    }
    let run = checked.scenario.ok_or(messages)?.run(&|_| {});
    let row = &run.results[0];
    if !row.status.is_ok() {
        return Err(row.why.clone());
    }
    Ok(metrics.map(|key| row.metrics[key]))
}

/// What is wrong with a row, if anything.
fn wrong(of: impl Fn(&[&str]) -> Result<[f64; 2], String>, (set, beside, does): &Row) -> Option<String> {
    let with = of(&[*beside, *set].concat());
    if let Refused(words) = does {
        let why = with.err().unwrap_or_default();
        return (!why.contains(words)).then(|| format!("{set:?}: not refused with `{words}`: {why}"));
    }
    let (with, without) = match (with, of(beside)) {
        (Ok(with), Ok(without)) => (with, without),
        (Err(why), _) | (_, Err(why)) => return Some(format!("{set:?} beside {beside:?}: {why}")),
    };
    let at = usize::from(*does == Memory);
    (with[at] == without[at]).then(|| format!("{set:?} beside {beside:?}: {does:?} is {} with and without", with[at]))
}

fn assert_all(of: impl Fn(&[&str]) -> Result<[f64; 2], String> + Sync, rows: &[Row]) {
    let wrong: Vec<String> = rows.par_iter().filter_map(|row| wrong(&of, row)).collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// The shipped curriculum with one way, and memory for whole weights.
fn stage(set: &[&str]) -> Result<[f64; 2], String> {
    let (source, folder) = scenario::find("curriculum/gradual-qwen2-7b").expect("shipped");
    let small = ["policies.run=['one-stage']", "policies.baseline=one-stage", "cluster.memory_gib=2000", "expect={}"];
    let checked = checked(source, &folder, &[&small, set].concat());
    figures(checked, ["example_epoch_s", "peak_memory_bytes"])
}

const WHOLE: &str = "train.optimizer={ trains = 'all' }";
const EXPERTS_OF_MODEL: &str = "model.name=mixtral-8x7b";

#[test]
fn a_stage_has_every_mechanism_of_a_training_step() {
    assert_all(
        stage,
        &[
            (&[WHOLE], &[], Time),
            (&["train.optimizer.adapter_rank=64"], &[], Memory),
            (&["train.optimizer.adapters_beside='qkv'"], &[], Time),
            (&["train.optimizer.frozen='nf4'"], &["train.training.framework='pytorch'"], Memory),
            (&[EXPERTS_OF_MODEL], &[WHOLE], Time),
            (&["train.parallel.ep=2"], &[EXPERTS_OF_MODEL, WHOLE], Time),
            (&["train.experts.imbalance=0.5"], &["train.parallel.ep=2", EXPERTS_OF_MODEL, WHOLE], Time),
            (&["train.experts.capacity=1.5"], &["train.parallel.ep=2", EXPERTS_OF_MODEL, WHOLE], Time),
            (
                &["train.experts.compression={ hashes = 4, rate = 0.25 }"],
                &["train.parallel.ep=2", EXPERTS_OF_MODEL, WHOLE],
                Time,
            ),
            (&["train.training.products='fp8'"], &["train.training.framework='megatron-core'"], Time),
            (&["train.training.framework='megatron-core'"], &[], Time),
            (&["train.training.framework='pytorch'"], &[], Time),
            (&["train.training.framework='deepspeed'"], &[], Time),
            (&["train.training.compile=true"], &["train.training.framework='pytorch'"], Time),
            (&["train.training.graphs='step'"], &["train.training.framework='megatron-core'"], Time),
            (&["train.training.host_overhead_per_layer_us=50"], &[], Time),
            (&["train.training.recompute='full'"], &[WHOLE], Time),
            (&["train.training.offload_ratio=0.5"], &["train.workload.tokens=2048"], Memory),
            (&["train.training.gradient_dtype='fp32'"], &[WHOLE], Memory),
            (&["train.training.batch_size=64"], &[], Time),
            (&["train.optimizer={ trains = 'all', rule = 'muon' }"], &[WHOLE], Time),
            (&["train.parallel.zero=1"], &[WHOLE], Memory),
            (&["train.parallel.zero=2"], &[WHOLE], Memory),
            (&["train.parallel.zero=3"], &[WHOLE], Memory),
            (&["train.parallel.tp=2"], &[], Time),
            (&["train.parallel.pp=2"], &[], Memory),
            (&["train.parallel.cp=2"], &[], Time),
            (&["train.overlap.tensor=0.5"], &["train.parallel.tp=2"], Time),
            (&["train.stragglers=[{ ranks = [1], rate = 3.0 }]"], &[], Time),
            (&["train.workload={ lengths = 'wikipedia' }"], &[], Time),
            (&["train.policies.run=['skrull']"], &["train.workload={ lengths = 'chatqa2-long-sft' }"], Time),
        ],
    );
}

#[test]
fn what_a_stage_has_not_is_refused_with_the_reason() {
    assert_all(
        stage,
        &[
            (&["train.failures={ days = 1.0, gpu_mtbf_hours = 5000.0 }"], &[], Refused("plays runs of days")),
            (&["train.checkpoint={ storage_gb_per_s = 10.0 }"], &[], Refused("plays runs of days")),
            (
                &["train.slow_nodes={ node_hours = 100.0, lasts_hours = 1.0, rate = 2.0 }"],
                &[],
                Refused("plays runs of days"),
            ),
            (&["train.expect={ order = ['a'] }"], &[], Refused("golden figures")),
            (&["train.seed=3"], &[], Refused("before the first section")),
            (&["train.policies.run=['best_fit', 'skrull']"], &[], Refused("examples are trained by one")),
            (&["train.cluster={ nodes = 2 }"], &[], Refused("write one `[cluster]`")),
            (&["train.model={ name = 'llama-3.1-8b' }"], &[], Refused("write one `[model]`")),
            (&["train.parallel.ep=2"], &[], Refused("has no experts")),
            (&["training={ lora_rank = 16 }"], &[], Refused("training")),
        ],
    );
}

/// Two tasks through two operators on a node of eight GPUs, whose layers are computed.
const TASKS: &str = "kind = \"multi-task\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n\
    [[operator]]\nname = \"text\"\nlayers = 6\nhidden = 1024\nheads = 16\ntensor = [1, 2]\n\
    [[operator]]\nname = \"head\"\nlayers = 1\nhidden = 1024\nintermediate = 4096\n\
    [[task]]\nname = \"a\"\nbatch = 16\nflow = [{ operator = \"text\", tokens = 512 }, { operator = \"head\", tokens = 512, after = [\"text\"] }]\n\
    [[task]]\nname = \"b\"\nbatch = 24\nflow = [{ operator = \"text\", tokens = 300 }]\n\
    [policies]\nrun = [\"sequential\"]\n";

fn tasks(set: &[&str]) -> Result<[f64; 2], String> {
    // `EXPERTS` stands for keys of an item of a list, which nothing lays over a file.
    let with_experts = set.contains(&EXPERTS);
    let text = if with_experts {
        TASKS.replace("heads = 16\n", "heads = 16\nexperts = 4\nexperts_per_token = 2\n")
    } else {
        TASKS.to_owned()
    };
    let set: Vec<&str> = set.iter().copied().filter(|key| *key != EXPERTS).collect();
    let source = Source { path: "tasks.toml".to_owned(), text };
    figures(checked(source, Path::new(""), &set), ["iteration_time_s", "peak_memory_bytes"])
}

const EXPERTS: &str = "experts of an operator";
const MEGATRON: &[&str] = &["training.framework='megatron-core'"];

#[test]
fn tasks_that_share_a_model_have_the_mechanisms_of_a_layer_and_its_states() {
    assert_all(
        tasks,
        &[
            (&[EXPERTS], &[], Time),
            (&[EXPERTS], &[], Memory),
            (&["training.framework='megatron-core'"], &[], Time),
            (&["training.framework='pytorch'"], &[], Time),
            (&["training.framework='deepspeed'"], &[], Time),
            (&["training.compile=true"], &["training.framework='pytorch'"], Time),
            (&["training.graphs='step'"], MEGATRON, Time),
            (&["training.products='fp8'"], MEGATRON, Time),
            (&["training.products={ dense = 'fp8' }"], &[], Time),
            (&["training.attention='unfused'"], &[], Time),
            (&["training.attention='unfused'"], &[], Memory),
            (&["training.recompute='full'"], &[], Time),
            (&["training.recompute='none'"], &[], Memory),
            (&["training.host_overhead_per_layer_us=50"], &[], Time),
            (&["training.offload_ratio=0.5"], &[], Memory),
            (&["training.fragmentation=1.5"], &[], Memory),
            (&["training.gradient_dtype='fp32'"], &[], Memory),
            (&["training.gradient_dtype='fp32'"], &[], Time),
            (&["training.zero=1"], &[], Memory),
            (&["optimizer={ first_moment = 'bf16', second_moment = 'bf16' }"], &[], Memory),
            (&["optimizer={ offload_ratio = 1.0, host_memory_gb_per_s = 50.0 }"], &[], Memory),
            (&["optimizer={ offload_ratio = 1.0, host_memory_gb_per_s = 50.0 }"], &[], Time),
            (&["optimizer={ kernels = 'foreach' }"], &["training.framework='pytorch'"], Time),
            (&["stragglers=[{ ranks = [1], rate = 3.0 }]"], &[], Time),
            (&["cost.sustained_flops_ratio=0.5"], &[], Time),
        ],
    );
}

#[test]
fn what_tasks_that_share_a_model_have_not_is_refused_with_the_reason() {
    let whole = "reduced behind the last backward";
    assert_all(
        tasks,
        &[
            (&["training.zero=2"], &[], Refused(whole)),
            (&["training.zero=3"], &[], Refused(whole)),
            (&["training.gradient_sync='at_end'"], &[], Refused("added up over them")),
            (&["training.parameters_on_host=true"], &[], Refused("hold whole parameters")),
            (&["training.narrow_gather=true"], &[], Refused("hold whole parameters")),
            (&["training.recompute_layers=1"], &[], Refused("cuts layers into pieces")),
            (&["training.loss='chunked'"], &[], Refused("heads are feed-forwards")),
            (&["training.predicting_layers=1"], &[], Refused("predicts tokens")),
            (&["training.batch_size=8"], &[], Refused("a batch of its own")),
            (&["optimizer={ trains = 'adapters' }"], &[], Refused("trained as a whole")),
            (&["optimizer={ rule = 'muon' }"], &[], Refused("needs the shapes of matrices")),
            (
                &["optimizer={ kernels = 'in-backward' }"],
                &["training.framework='pytorch'"],
                Refused("step behind the last backward"),
            ),
            (&["parallel={ tp = 2 }"], &[], Refused("a plan decides degrees")),
            (&["search={ tp = [1, 2] }"], &[], Refused("a plan decides degrees")),
            (&["overlap={ tensor = 0.5 }"], &[], Refused("part of a layer's time")),
            (&["experts={ imbalance = 0.5 }"], &[], Refused("nothing travels to experts")),
            (&["workload={ tokens = 512 }"], &[], Refused("`batch` of a task")),
            (&["model={ name = 'qwen2.5-7b' }"], &[], Refused("shape of its layers")),
            (&["failures={ days = 1.0, gpu_mtbf_hours = 5000.0 }"], &[], Refused("no run of days")),
            (&["checkpoint={ storage_gb_per_s = 10.0 }"], &[], Refused("no run of days")),
            (&["slow_nodes={ node_hours = 100.0, lasts_hours = 1.0, rate = 2.0 }"], &[], Refused("no run of days")),
            (&["stragglers=[{ ranks = [1], rate = 3.0, until_step = 1 }]"], &[], Refused("stands for all steps")),
        ],
    );
}

/// A GPU that computes three times as slowly makes what it computes three times as long, and nothing else.
#[test]
fn tasks_in_turn_wait_for_a_slow_gpu_as_long_as_it_computes() {
    let alone = |set: &[&str]| {
        let source = Source { path: "tasks.toml".to_owned(), text: TASKS.to_owned() };
        let run = checked(source, Path::new(""), set).scenario.expect("a scenario").run(&|_| {});
        let row = run.results[0].clone();
        let notes = row.planner.map(|facts| facts.notes.join("; ")).unwrap_or_default();
        (row.metrics["iteration_time_s"] * row.metrics["forward_backward_ratio"], notes)
    };
    let ((healthy_s, _), (slow_s, notes)) = (alone(&[]), alone(&["stragglers=[{ ranks = [0], rate = 3.0 }]"]));
    assert!((slow_s / healthy_s - 3.0).abs() < 1e-3, "{healthy_s} s, {slow_s} s");
    assert!(notes.contains("1 of 8 GPUs straggle, up to 3 times slower"), "{notes}");
}
