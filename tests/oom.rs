//! A scenario that is written well and does not fit memory is an outcome: a row `oom` beside the others, in every verb.

use std::path::Path;
use std::process::{Command, Output};

use engine::verdict::Ended;
use input::diagnostic::Code;
use reports::PolicyResult;

/// Rows of a shipped scenario with keys laid over it.
fn rows(name: &str, set: &[&str]) -> Vec<PolicyResult> {
    let checked = super::checked(name, set);
    let scenario = checked.scenario.unwrap_or_else(|| panic!("{name} {set:?}: {:?}", checked.findings));
    let rows = scenario.run(&|_| {}).results;
    // What does not fit when it is played may have a plan all the same.
    if rows.iter().all(|row| row.status == Ended::OutOfMemory) {
        let planned = scenario.plan(&rows[0].policy);
        assert!(planned.is_none_or(|planned| planned.is_err_and(|why| why.ended == Ended::OutOfMemory)), "{name}");
    }
    rows
}

/// Whether every row ends so, for a reason with these words.
fn all_end(rows: &[PolicyResult], ended: Ended, words: &str) -> bool {
    !rows.is_empty() && rows.iter().all(|row| row.status == ended && row.why.contains(words))
}

/// 70 billion parameters take 16 bytes each and more under Adam: 35 GB each on 32 GPUs, and 1,100 GB whole.
#[test]
fn states_that_are_sharded_fit_and_whole_ones_are_an_outcome() {
    let of = |zero: &str| {
        rows(
            "quickstart",
            &[
                "model.name='llama-3-70b'",
                "training.steps=1",
                "training.batch_size=8",
                "workload.max_tokens=4096",
                zero,
            ],
        )
    };
    assert!(all_end(&of("parallel.zero=0"), Ended::OutOfMemory, "GiB of model states per GPU"));
    let sharded = of("parallel.zero=3");
    assert!(sharded.iter().any(|row| row.status.is_ok()), "{sharded:?}");
}

/// Nothing follows from a batch that nobody can hold: each framework's reader says nothing else of it.
#[test]
fn a_micro_batch_that_nobody_writes_waits_for_states_that_fit() {
    for framework in ["formulas", "megatron-core", "deepspeed", "pytorch"] {
        let framework = format!("training.framework='{framework}'");
        let set =
            ["model.name='llama-3-70b'", "parallel.zero=0", "training.steps=1", "training.bucket_tokens=0", &framework];
        let checked = super::checked("quickstart", &set);
        let found = checked.scenario.map(|scenario| scenario.run(&|_| {}).results);
        let ends = found.as_ref().is_some_and(|rows| all_end(rows, Ended::OutOfMemory, "model states per GPU"));
        assert!(ends, "{framework}: {found:?} {:?}", checked.findings);
    }
}

/// Weights of 131 GiB: none of one card, half of each of two.
#[test]
fn weights_that_leave_no_room_are_an_outcome_and_a_wider_engine_serves() {
    let one =
        ["policies.run=['vllm-v1']", "policies.baseline='vllm-v1'", "cluster.gpu='a100-sxm-80g'", "cluster.nodes=1"];
    let of = |more: &[&str]| {
        let set = [&one[..], &["model.name='llama-3-70b'", "trace.requests=20"], more].concat();
        rows("serving/azure-conv", &set)
    };
    assert!(all_end(&of(&["cluster.gpus_per_node=1", "engine.tp=1"]), Ended::OutOfMemory, "`tp = 2` would fit"));
    assert!(all_end(&of(&["cluster.gpus_per_node=2", "engine.tp=2"]), Ended::Ok, ""));
    // Activations of a long iteration lie beside them.
    let long = ["cluster.gpus_per_node=2", "engine.tp=2", "engine.max_tokens=1048576"];
    assert!(all_end(&of(&long), Ended::OutOfMemory, "activations of `max_tokens` = 1048576 take"));
    // Room for no request is none either.
    let short = ["cluster.gpus_per_node=2", "engine.tp=2", "engine.kv_blocks=1"];
    assert!(all_end(&of(&short), Ended::OutOfMemory, "in `kv_blocks` = 1); all would need more `kv_blocks`"));
}

/// Weights as the model was trained may be wider than those that its makers publish.
#[test]
fn a_narrower_checkpoint_is_named_where_there_is_one() {
    let found = rows("serving/azure-conv", &["model.name='deepseek-v3'"]);
    let words = "the published checkpoint is narrower: `name = \"deepseek-ai/DeepSeek-V3\"`";
    assert!(all_end(&found, Ended::OutOfMemory, words), "{found:?}");
}

/// Both sides of a step of reinforcement learning.
#[test]
fn a_trainer_or_an_engine_that_does_not_fit_is_an_outcome_of_each_way() {
    let trainer = ["train.parallel.zero=0", "model.name='llama-3-70b'"];
    assert!(all_end(&rows("rl/placement", &trainer), Ended::OutOfMemory, "model states per GPU"));
    let engine = ["generate.engine.memory_ratio=0.1"];
    assert!(all_end(&rows("rl/placement", &engine), Ended::OutOfMemory, "of weights per GPU"));
}

/// Weights of 131 GiB on cards of 24 GB that are rented one by one or in fours; eight hold them.
#[test]
fn a_model_that_nothing_on_offer_holds_is_an_outcome_of_every_policy() {
    let asked = |rates: &str, tp: &str| {
        let text = format!(
            "kind = \"deployment\"\n[[models]]\nname = \"llama-3-70b\"\n[[inventory.gpus]]\ngpu = \"rtx-4090\"\ncount = 8\n\
             usd_per_hour = 1\n[[requests.types]]\ninput = 100\noutput = 10\nrequests = 5\n[engine]\nrates = \"{rates}\"\n\
             tp = {tp}\npp = [1]\n[objective]\nis = \"time\"\nusd_per_hour = [8]\n[policies]\n\
             run = [\"homogeneous\", \"melange\", \"cost-efficiency\"]\n"
        );
        super::written(text, &[])
    };
    for rates in ["simulated", "roofline"] {
        let scenario = asked(rates, "[1, 4]").scenario.expect("a good file");
        let found = scenario.run(&|_| {}).results;
        let words = "no offered GPU type holds `llama-3-70b` with the degrees of `[engine]`: ";
        assert!(found.len() == 3 && all_end(&found, Ended::OutOfMemory, words), "{rates}: {found:?}");
        let planned = scenario.plan("homogeneous").expect("a policy");
        assert!(planned.is_err_and(|why| why.ended == Ended::OutOfMemory), "{rates}");
        assert!(
            all_end(&asked(rates, "[8]").scenario.expect("a good file").run(&|_| {}).results, Ended::Ok, ""),
            "{rates}"
        );
    }
    // Sixty-four heads in three parts are no question of memory.
    let uncut = asked("simulated", "[3]");
    assert!(uncut.scenario.is_none() && uncut.findings.iter().any(|of| of.code == Code::WrongOperation));
}

fn ran(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skrull-sim"));
    command.current_dir(folder).args(args).arg("--no-progress").output().expect("the binary starts")
}

/// The exit code and both streams.
fn said(output: &Output) -> (Option<i32>, String) {
    let words = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), words.concat())
}

/// One engine on one card of an 8B, which fits, and of a 70B, which does not.
const ONE: [&str; 12] = [
    "--set",
    "cluster.gpu='a100-sxm-80g'",
    "--set",
    "cluster.nodes=1",
    "--set",
    "cluster.gpus_per_node=1",
    "--set",
    "engine.tp=1",
    "--set",
    "trace.requests=20",
    "--set",
    "policies.run=['vllm-v1']",
];

#[test]
fn verbs_go_on_where_one_of_several_does_not_fit() {
    let folder = std::env::temp_dir().join(format!("skrull-sim-oom-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let baseline = ["--set", "policies.baseline='vllm-v1'"];
    let varied = ["--vary", "model.name=llama-3-8b,llama-3-70b", "--seeds", "1"];
    let (code, words) =
        said(&ran(&folder, &[&["compare", "serving/azure-conv"], &ONE[..], &baseline, &varied].concat()));
    assert!(code == Some(0) && words.contains("oom"), "{code:?}: {words}");

    let sweep = "scenario = \"serving/azure-conv\"\n[[axis]]\nkey = \"model.name\"\nvalues = [\"llama-3-8b\", \"llama-3-70b\"]\n";
    std::fs::write(folder.join("s.toml"), sweep).expect("a sweep");
    let (code, words) = said(&ran(&folder, &[&["sweep", "s.toml", "--out", "swept"], &ONE[..], &baseline].concat()));
    let points = std::fs::read_to_string(folder.join("swept/points.jsonl")).expect("rows");
    assert!(code == Some(0), "{code:?}: {words}");
    assert!(points.contains("\"oom\"") && points.contains("\"ok\"") && !points.contains("\"wrong\""), "{points}");

    let alone = ["--set", "model.name='llama-3-70b'"];
    let table = ["--requests", "requests.csv"];
    let (code, words) =
        said(&ran(&folder, &[&["run", "serving/azure-conv"], &ONE[..], &baseline, &alone, &table].concat()));
    assert!(
        code == Some(1) && words.contains("1 out of memory") && words.contains("`tp = 2` would fit"),
        "{code:?}: {words}"
    );
    std::fs::remove_dir_all(&folder).expect("it was made");
}
