//! Curricula of fine-tuning through the shell: what dominates their cost, what is calibrated, what is planned within a budget.

use std::path::Path;
use std::process::Command;

use input::diagnostic::{self, Source};
use reports::{PolicyResult, RunResult};
use skrull_sim::kinds;

const NAME: &str = "curriculum/gradual-qwen2-7b";

fn checked(set: &[&str]) -> kinds::Checked {
    super::checked(NAME, set)
}

fn run(set: &[&str]) -> RunResult {
    let checked = checked(set);
    let messages = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{set:?}:\n{messages}")).run(&|_| {})
}

fn row<'r>(run: &'r RunResult, policy: &str) -> &'r PolicyResult {
    run.results.iter().find(|row| row.policy == policy).expect("a policy that ran")
}

fn metric(run: &RunResult, policy: &str, key: &str) -> f64 {
    let row = row(run, policy);
    *row.metrics.get(key).unwrap_or_else(|| panic!("`{policy}` has no `{key}`: {} {}", row.status, row.why))
}

#[test]
fn classification_dominates_exactly_where_its_answers_cost_more_than_the_epochs() {
    // n_prompts · (1 + n_samples) · t_gen against epochs · examples per fact · c_train, from the run's own unit costs, without held-out facts.
    for (prompts, samples, dominates) in [(10, 16, true), (1, 0, false)] {
        let set = [
            "policies.run=['gradual']".to_owned(),
            "policies.baseline=gradual".to_owned(),
            "stages.held_out_ratio=0.0".to_owned(),
            format!("classification.prompts={prompts}"),
            format!("classification.samples={samples}"),
            "train.workload.tokens=64".to_owned(),
        ];
        let run = run(&set.each_ref().map(String::as_str));
        let of = |key| metric(&run, "gradual", key);
        assert_eq!(of("answers_per_fact"), f64::from(prompts * (1 + samples)));
        let asked_s = of("n_classifications") * of("facts") * of("answers_per_fact") * of("answer_s");
        assert!((of("classification_s") / asked_s - 1.0).abs() < 1e-9);
        let figures = &row(&run, "gradual").planner.as_ref().expect("planned").figures;
        let examples = |stage: u32| -> f64 {
            let keys = ["highly_known", "maybe_known", "weakly_known", "unknown"];
            keys.iter().map(|key| figures[&format!("stage_{stage}_{key}_examples")]).sum()
        };
        let trained_s = (8.0 * examples(1) + 2.0 * examples(2)) * of("example_epoch_s");
        assert!((of("training_s") / trained_s - 1.0).abs() < 1e-9);
        assert_eq!(asked_s > trained_s, dominates, "{asked_s} s of answers, {trained_s} s of epochs");
        assert_eq!(of("classification_ratio") > 0.5, dominates);
        assert_eq!(row(&run, "gradual").why.contains("classification takes"), dominates);
    }
}

#[test]
fn the_papers_growth_is_met_only_by_fitting_and_the_fit_is_named() {
    let growth = |run: &RunResult| metric(run, "gradual", "mastered_growth_ratio");
    let set = ["policies.run=['gradual']", "policies.baseline=gradual"];
    for target in [0.1, 0.24, 0.3] {
        let asked = format!("calibrate.mastered_growth_ratio={target}");
        let run = run(&[set[0], set[1], &asked]);
        assert!((growth(&run) - target).abs() < 1e-9, "{}", growth(&run));
        assert!(run.cost_model.free_parameters.iter().any(|words| words.contains("not predicted")));
    }
    let bare = super::root().join(format!("scenarios/{NAME}.toml"));
    let text = std::fs::read_to_string(bare).expect("a scenario");
    let text = text.replace("[calibrate]\nmastered_growth_ratio = 0.24\n", "");
    let checked = super::written(text, &[]);
    let run = checked.scenario.expect("the section may be absent").run(&|_| {});
    assert!((growth(&run) - 0.24).abs() > 0.01, "{}", growth(&run));
    assert!(run.cost_model.free_parameters.iter().all(|words| !words.contains("fitted so that")));
}

#[test]
fn more_budget_never_masters_less_and_every_plan_keeps_its_own() {
    let mut before = 0.0;
    for hours in [0.001, 0.05, 0.1, 0.15, 0.18, 0.19, 100.0] {
        let asked = format!("budget={{ usd_per_gpu_hour = 2.25, hours = {hours} }}");
        let run = run(&["policies.run=['planned']", "policies.baseline=planned", &asked]);
        assert!(metric(&run, "planned", "total_s") <= hours * 3600.0);
        let mastered = metric(&run, "planned", "mastered_facts");
        assert!(mastered >= before, "{hours} h: {mastered} after {before}");
        before = mastered;
        let planner = row(&run, "planned").planner.clone().expect("planned");
        assert_eq!((planner.status, planner.gap_ratio), (reports::Status::Optimal, Some(0.0)));
        assert!(planner.notes.iter().any(|note| note.contains("runner-up")) || hours < 0.01);
        assert!(row(&run, "planned").why.contains("limited by"));
    }
    // Dollars and hours are one budget: four GPUs at 2.25 dollars.
    let of =
        |set: &str| metric(&run(&["policies.run=['planned']", "policies.baseline=planned", set]), "planned", "total_s");
    assert_eq!(of("budget={ hours = 0.125 }"), of("budget={ usd_per_gpu_hour = 2.25, usd = 1.125 }"));
}

#[test]
fn no_policy_masters_more_than_its_bound_and_facts_are_conserved() {
    let run = run(&[]);
    for row in &run.results {
        let planner = row.planner.as_ref().expect("every row is planned");
        let (objective, bound) = (planner.objective.expect("facts"), planner.bound.expect("a bound"));
        assert!(objective <= bound + 1e-9, "{}: {objective} of {bound}", row.policy);
        assert!((row.metrics["facts"] - 18_000.0).abs() < 1e-6, "{}", row.policy);
        let [low, high] = row.interval["mastered_facts"];
        assert!(low <= objective && objective <= high, "{}", row.policy);
        let [low, high] = row.interval["total_s"];
        assert!(low <= row.metrics["total_s"] && row.metrics["total_s"] <= high, "{}", row.policy);
    }
}

/// The shipped budget does not pay `gradual`, which masters most without one.
#[test]
fn the_report_calls_best_what_keeps_the_budget() {
    let run = run(&[]);
    let shares = run.results.iter().map(|row| (row.metrics["budget_ratio"], row.policy.as_str()));
    let beyond: Vec<&str> = shares.filter(|(share, _)| *share > 1.0).map(|(_, policy)| policy).collect();
    assert!(beyond.contains(&"gradual") && !beyond.contains(&"planned"), "{beyond:?}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-curriculum");
    let done = Command::new(env!("CARGO_BIN_EXE_skrull-sim"))
        .args(["run", NAME, "--quiet", "--out"])
        .arg(&folder)
        .output()
        .expect("the program starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let page = std::fs::read_to_string(folder.join("report.html")).expect("a report");
    let said = page.split("</strong> is best").next().and_then(|before| before.rsplit("<strong>").next());
    assert!(said.is_some_and(|best| !beyond.contains(&best)), "{said:?}");
}

/// What training cannot hold is said before anything runs, as of any training scenario; what the engine cannot hold is an outcome.
#[test]
fn a_model_that_does_not_fit_is_named() {
    for small in ["cluster.memory_gib=15.5", "engine.memory_ratio=0.15"] {
        let run = run(&[small, "policies.run=['gradual']", "policies.baseline=gradual"]);
        let row = row(&run, "gradual");
        assert!(row.status == reports::Ended::OutOfMemory && row.why.contains("GiB"), "{small}: {row:?}");
    }
}

/// A training scenario with the same keys.
fn step_s(set: &[&str]) -> f64 {
    let text = "kind = \"training\"\n[model]\nname = \"qwen2.5-7b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 4\n\
                [parallel]\nzero = 0\n[optimizer]\ntrains = \"adapters\"\nadapter_rank = 16\n\
                [training]\nbatch_size = 128\nrecompute = \"none\"\n[workload]\ntokens = 32\n[policies]\nrun = [\"best_fit\"]\n";
    let checked = super::written(text.to_owned(), set);
    checked.scenario.expect("a training scenario").run(&|_| {}).results[0].metrics["iteration_time_s"]
}

/// An example takes the step that `kind = "training"` plays, over its batch: the same keys stand below `[train]`.
#[test]
fn an_example_takes_its_share_of_the_step_that_training_plays() {
    for set in [
        &[][..],
        &["training.batch_size=64", "workload.tokens=48"],
        &["training.framework='pytorch'", "parallel.zero=3", "optimizer.trains='all'", "parallel.tp=2"],
        &["stragglers=[{ ranks = [1], rate = 2.5 }]"],
    ] {
        let of_stage: Vec<String> = set.iter().map(|key| format!("train.{key}")).collect();
        let mut all = vec!["policies.run=['one-stage']", "policies.baseline=one-stage"];
        all.extend(of_stage.iter().map(String::as_str));
        let batch = if set.contains(&"training.batch_size=64") { 64.0 } else { 128.0 };
        let (found, expected) = (metric(&run(&all), "one-stage", "example_epoch_s"), step_s(set) / batch);
        assert!((found / expected - 1.0).abs() < 1e-9, "{set:?}: {found} s, a step's share {expected} s");
    }
}

/// Rank 16 on all seven matrices of Qwen2-7B, as PEFT reports it: 40 million parameters of 16 bytes, beside frozen weights of two.
#[test]
fn frozen_weights_take_two_bytes_and_their_step_is_shorter() {
    let of = |set: &[&str]| {
        let run = run(&[&["policies.run=['one-stage']", "policies.baseline=one-stage"], set].concat());
        ["example_epoch_s", "peak_memory_bytes"].map(|key| metric(&run, "one-stage", key))
    };
    let (adapters, whole) =
        (of(&[]), of(&["train.optimizer={ trains = 'all' }", "train.parallel.zero=1", "cluster.memory_gib=200"]));
    assert!(adapters[0] < whole[0] && adapters[1] < whole[1], "{adapters:?} {whole:?}");
    let parameters = engine::model::embedded("qwen2.5-7b").expect("listed").n_parameters();
    assert!(adapters[1] > 2.0 * hw::real(parameters), "{adapters:?}");
}

/// The shipped scenario whose second stage trains otherwise, without held-out facts.
fn with_second_stage(train: &str, set: &[&str]) -> kinds::Checked {
    let (source, folder) = scenario::find(NAME).expect("shipped");
    let text = source.text.replace("epochs = 2 ", &format!("train = {train}\nepochs = 2 "));
    assert_ne!(text, source.text);
    let set = [&["stages.held_out_ratio=0.0"], set].concat();
    kinds::check(Source { text, ..source }, &folder, &super::over(&set))
}

fn run_of(checked: kinds::Checked) -> RunResult {
    let messages = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{messages}")).run(&|_| {})
}

#[test]
fn a_stage_trains_by_what_it_says_otherwise() {
    let [plain, small] = ["train.training.batch_size=128", "train.training.batch_size=32"]
        .map(|set| run(&["stages.held_out_ratio=0.0", set]));
    let mixed = run_of(with_second_stage("{ training = { batch_size = 32 } }", &[]));
    let examples = |stage: u32| -> f64 {
        let figures = &row(&mixed, "gradual").planner.as_ref().expect("planned").figures;
        let keys = ["highly_known", "maybe_known", "weakly_known", "unknown"];
        keys.iter().map(|key| figures[&format!("stage_{stage}_{key}_examples")]).sum()
    };
    let [own, other] = [&plain, &small].map(|run| metric(run, "gradual", "example_epoch_s"));
    assert!(other > own * 1.01, "{other} {own}");
    let expected = 8.0 * examples(1) * own + 2.0 * examples(2) * other;
    let found = metric(&mixed, "gradual", "training_s");
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    // One stage alone is that of the file, and a stage that says the same as the file changes nothing.
    assert_eq!(metric(&mixed, "one-stage", "training_s"), metric(&plain, "one-stage", "training_s"));
    let same = run_of(with_second_stage("{ training = { batch_size = 128 } }", &[]));
    assert_eq!(metric(&same, "gradual", "training_s"), metric(&plain, "gradual", "training_s"));
}

/// Where all stages have keys of their own, `[train]` is what they lie over: nothing trains by it alone, so it may lack what they all have.
#[test]
fn a_section_that_no_stage_trains_by_is_not_checked_and_its_hidden_keys_are_named() {
    let stages = |set: &[&str], trains: [&str; 2]| {
        let (source, folder) = scenario::find(NAME).expect("shipped");
        let mut text = source.text.clone();
        for (epochs, train) in ["epochs = 8 ", "epochs = 2 "].into_iter().zip(trains) {
            assert!(text.contains(epochs), "{epochs}");
            text = text.replace(epochs, &format!("train = {train}\n{epochs}"));
        }
        kinds::check(Source { text, ..source }, &folder, &super::over(&[&["stages.held_out_ratio=0.0"], set].concat()))
    };
    let said = |checked: &kinds::Checked| diagnostic::render(&checked.source, &checked.findings);
    let both = ["{ training = { batch_size = 32 } }", "{ training = { batch_size = 64 } }"];
    let checked = stages(&[], both);
    let words = said(&checked);
    assert!(words.contains("warning[S017]") && words.contains("`train.training.batch_size` has no effect"), "{words}");
    assert_eq!(words.matches("S017").count(), 1, "{words}");
    // What it says beside them counts, and what it says wrongly instead of them is not looked at.
    let figures = run_of(checked);
    let odd = run_of(stages(&["train.training.batch_size=3"], both));
    assert_eq!(metric(&odd, "gradual", "training_s"), metric(&figures, "gradual", "training_s"));
    let [first, second] = ["train.training.batch_size=32", "train.training.batch_size=64"]
        .map(|set| run(&["stages.held_out_ratio=0.0", set]));
    assert_eq!(metric(&figures, "one-stage", "training_s"), metric(&first, "one-stage", "training_s"));
    assert_ne!(metric(&figures, "gradual", "training_s"), metric(&first, "gradual", "training_s"));
    assert_ne!(metric(&figures, "gradual", "training_s"), metric(&second, "gradual", "training_s"));
    // One stage that trains by `[train]` alone is enough for it to count.
    let one = stages(&[], [both[0], "{ }"]);
    assert!(!said(&one).contains("has no effect"), "{}", said(&one));
}

#[test]
fn a_stage_says_what_its_layout_leaves_out_and_what_no_key_is() {
    let notes = |train: &str| {
        let run = run_of(with_second_stage(train, &[]));
        row(&run, "gradual").planner.as_ref().expect("planned").notes.join("\n")
    };
    let split = notes("{ parallel = { tp = 2 } }");
    assert!(split.contains("model states lie otherwise in stage 2"), "{split}");
    assert!(split.contains("stage 1: examples are trained by") && split.contains("stage 2: examples"), "{split}");
    assert!(!notes("{ training = { batch_size = 32 } }").contains("lie otherwise"));
    let wrong = with_second_stage("{ training = { batch_siz = 32 } }", &[]);
    let said = diagnostic::render(&wrong.source, &wrong.findings);
    assert!(wrong.scenario.is_none() && said.contains("unknown key `training.batch_siz`"), "{said}");
    let wrong = with_second_stage("4", &[]);
    let said = diagnostic::render(&wrong.source, &wrong.findings);
    assert!(said.contains("`transitions.stage.train` is integer") || said.contains("train` is "), "{said}");
    // What both stages share is one, and runs of days have no place in either.
    let days = with_second_stage("{ failures = { days = 1.0 } }", &[]);
    assert!(diagnostic::render(&days.source, &days.findings).contains("has no place in a stage"));
}
