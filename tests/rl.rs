//! Steps of reinforcement learning through the shell: parts are those of the kinds that they are made of, placements follow their recurrence, and
//! what has no place in a step is refused.

use input::diagnostic;
use input::diagnostic::Source;
use reports::RunResult;
use scenario::{self, Overrides};
use skrull_sim::kinds;
use std::path::Path;

fn result(checked: kinds::Checked) -> RunResult {
    let messages = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{messages}")).run(&|_| {})
}

fn run(name: &str, set: &[&str]) -> RunResult {
    result(super::checked(name, set))
}

fn messages(set: &[&str]) -> String {
    let checked = super::checked("rl/grpo-qwen3-32b", set);
    diagnostic::render(&checked.source, &checked.findings)
}

fn metric(run: &RunResult, policy: &str, key: &str) -> f64 {
    let row = run.results.iter().find(|row| row.policy == policy).expect("a way that ran");
    *row.metrics.get(key).unwrap_or_else(|| panic!("`{policy}` has no `{key}`: {} {}", row.status, row.why))
}

#[test]
fn updates_are_those_of_a_training_scenario_with_the_answers_as_its_sequences() {
    let none = "rollouts.orchestrator=none";
    let set = ["rollouts.prompts=16", "rollouts.answers=8", "train.training.batch_size=64", none];
    let step = super::checked("rl/grpo-qwen3-32b", &set);
    let scenario = step.scenario.as_ref().expect("checked");
    let lengths = &scenario.draw(&|_| {}).lengths;
    let run = result(step);
    // The first update's sequences are drawn with the picture of it; a step has two updates of as many.
    assert_eq!((lengths.len(), metric(&run, "best_fit", "n_updates")), (64, 2.0));
    let text = format!(
        "kind = \"training\"\n[model]\nname = \"qwen3-32b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 4\n[parallel]\ntp = 4\npp = 4\ndp = 2\n\
         sequence_parallel = true\n[training]\nbatch_size = 64\nframework = \"megatron-core\"\nbucket_tokens = 4096\n[workload]\nlist = {lengths:?}\n\
         [policies]\nrun = [\"best_fit\"]\n"
    );
    let source = Source { path: "alone.toml".to_owned(), text };
    let alone = result(kinds::check(source, Path::new(""), &Overrides::default()));
    let (update, all) = (metric(&alone, "best_fit", "iteration_time_s"), metric(&run, "best_fit", "training_s"));
    // The second update has other answers of the same distribution.
    assert!((all / (2.0 * update) - 1.0).abs() < 0.15, "{all} s of two updates, {update} s of one");
}

#[test]
fn parts_of_a_colocated_step_add_up() {
    let run = run("rl/grpo-qwen3-32b", &["rollouts.rewards_s=7.0"]);
    let of = |key| metric(&run, "best_fit", key);
    let parts = ["generation_s", "rewards_s", "log_probability_s", "training_s", "weights_s", "switch_s"];
    let sum: f64 = parts.iter().map(|key| of(key)).sum();
    assert!((of("step_s") / sum - 1.0).abs() < 1e-9);
    assert_eq!(of("rewards_s"), 7.0);
    assert_eq!((of("n_updates"), of("n_gpus")), (4.0, 32.0));
    // A third of the model's products in a forward: two forwards take less than an update of all answers, which recomputes nothing.
    assert!(of("log_probability_s") < of("training_s"));
    let (low, high) = (run.results[0].interval["step_s"][0], run.results[0].interval["step_s"][1]);
    assert!(low < of("step_s") && of("step_s") < high);
}

#[test]
fn a_stated_speed_of_weights_and_the_number_of_forwards_are_heeded() {
    let of = |set: &[&str], key: &str| metric(&run("rl/grpo-qwen3-32b", set), "best_fit", key);
    // 32.76 billion parameters in 16 bits.
    let sent_s = of(&["rollouts.weights_gb_per_s=2.0"], "weights_s");
    assert!((sent_s / 32.76 - 1.0).abs() < 1e-3, "{sent_s}");
    let forwards_s = [0, 1, 2].map(|n| of(&[&format!("rollouts.forward_passes={n}")], "log_probability_s"));
    assert_eq!(forwards_s[0], 0.0);
    // The second one swaps weights as well.
    assert!(forwards_s[2] > 2.0 * forwards_s[1] && forwards_s[2] < 2.1 * forwards_s[1], "{forwards_s:?}");
}

#[test]
fn an_orchestrator_adds_its_time_to_every_part_but_the_answers() {
    let of = |orchestrator: &str| run("rl/grpo-qwen3-32b", &[&format!("rollouts.orchestrator={orchestrator}")]);
    let (with, without) = (of("nemo-rl"), of("none"));
    let more = |key| metric(&with, "best_fit", key) - metric(&without, "best_fit", key);
    assert_eq!(more("generation_s"), 0.0);
    // 2,048 answers, and 1,024 sequences of each of two groups: 4.3 ms, twice 2.4 ms, 12.7 ms.
    for (key, by_hand) in [("rewards_s", 8.81), ("log_probability_s", 4.92), ("training_s", 13.0)] {
        assert!((more(key) / by_hand - 1.0).abs() < 1e-2, "{key}: {}", more(key));
    }
    // 64 layers of nine tensors, and 12.3 GB of the optimizer's states on a GPU, which leave at 1.8 GB/s and not at the link's.
    assert!((more("weights_s") / 0.259 - 1.0).abs() < 1e-2, "{}", more("weights_s"));
    assert!((5.0..9.0).contains(&more("switch_s")), "{}", more("switch_s"));
}

#[test]
fn one_update_behind_the_longer_side_counts_and_more_distance_never_costs() {
    let run = run("rl/one-step-behind", &["rollouts.batches=in_turn"]);
    let of = |way: &str, key: &str| metric(&run, way, key);
    let trainer = of("0-off", "log_probability_s") + of("0-off", "training_s") + of("0-off", "weights_s");
    let generation = of("0-off", "generation_s");
    // On policy the trainer waits for the rewards of its own batch as well.
    let waits = generation + of("0-off", "rewards_s");
    assert!((of("0-off", "step_s") / (waits + trainer) - 1.0).abs() < 1e-9);
    let longer = trainer.max(generation + of("1-off", "weights_s"));
    assert!((of("1-off", "step_s") / longer - 1.0).abs() < 1e-9);
    assert!(of("2-off", "step_s") <= of("1-off", "step_s"));
}

#[test]
fn answers_of_several_batches_share_the_engine_where_it_is_what_holds_the_step() {
    // Ten times the forwards left out: the engine is the longer side, and its replicas idle behind the longest answers of each batch.
    let set = |batches: &str| {
        let batches = format!("rollouts.batches={batches}");
        let set = ["rollouts.forward_passes=0", "generate.fleet.replicas=2", &batches];
        run("rl/one-step-behind", &set)
    };
    let (in_turn, streamed) = (set("in_turn"), set("streamed"));
    let of = |run: &RunResult, way| metric(run, way, "step_s");
    assert!(of(&streamed, "2-off") < of(&in_turn, "2-off"), "{} and {}", of(&streamed, "2-off"), of(&in_turn, "2-off"));
    assert_eq!(of(&streamed, "0-off"), of(&in_turn, "0-off"));
}

#[test]
fn far_behind_the_engine_gives_what_it_gives_of_a_large_batch() {
    let base = ["generate.fleet.replicas=1", "rollouts.orchestrator=none", "rollouts.forward_passes=0"];
    let step = |n_prompts: u32, behind: &str, key: &str| {
        let own = [format!("rollouts.prompts={n_prompts}"), format!("rollouts.off_policy={behind}")];
        let set = [&base[..], &[&own[0], &own[1]]].concat();
        let run = run("rl/one-step-behind", &set);
        run.results.iter().map(|row| row.metrics[key]).collect::<Vec<f64>>()
    };
    let steps = step(16, "[1,2,4,16,100000]", "step_s");
    assert!(steps.windows(2).all(|pair| pair[1] <= 1.005 * pair[0]), "{steps:?}");
    // A large batch ends with a tail as every batch does; what 64 more prompts take has none.
    let [few, many] = [64, 128].map(|n| step(n, "0", "generation_s")[0]);
    let of_sixteen = (many - few) / 4.0;
    // Other answers are drawn of the same distribution.
    let last = steps.last().expect("a step");
    assert!(*last > 0.93 * of_sixteen && *last < 1.1 * of_sixteen, "{steps:?} s, {of_sixteen} s of a large batch");
}

#[test]
fn a_gpu_may_be_slow_in_the_later_updates_of_a_step() {
    let path = scenario::find("rl/one-step-behind").expect("shipped").0.text;
    let slow = |from: u32| {
        let text = format!(
            "{}\n[[train.stragglers]]\nranks = [3]\nrate = 2.0\nfrom_step = {from}\n",
            path.split("[expect]").next().expect("a text")
        );
        super::written(text, &[])
    };
    // A step has four updates.
    let training_s = [0, 2].map(|from| metric(&result(slow(from)), "0-off", "training_s"));
    let healthy = metric(&run("rl/one-step-behind", &[]), "0-off", "training_s");
    let [all, half] = training_s.map(|slow| slow - healthy);
    assert!(half > 0.3 * all && half < 0.7 * all, "{half} s of the {all} s that all updates lose");
    assert!(slow(4).scenario.is_none());
}

#[test]
fn nodes_that_are_shared_out_have_the_degrees_that_fit_them() {
    let run = run("rl/placement", &["cluster.nodes=3", "generate.fleet.replicas=24", "rollouts.train_nodes=[1,2]"]);
    let of = |way: &str, key: &str| metric(&run, way, key);
    for way in ["colocated", "split+1-train+0-off", "split+2-train+1-off"] {
        assert_eq!(of(way, "n_gpus"), 24.0);
    }
    // More nodes train faster, and the fewer that are left generate more slowly.
    assert!(of("split+1-train+1-off", "training_s") > 1.8 * of("split+2-train+1-off", "training_s"));
    assert!(of("split+1-train+1-off", "generation_s") < of("split+2-train+1-off", "generation_s"));
    // On policy one side waits for the other, so turns of all GPUs are faster.
    assert!(of("colocated", "step_s") < of("split+1-train+0-off", "step_s"));
}

#[test]
fn ways_that_share_a_side_have_the_rows_that_each_has_alone() {
    // A small search for a layout, so that the trainer of all three ways is found once.
    let set = [
        "train.parallel.layout=search",
        "rollouts.prompts=8",
        "rollouts.answers=8",
        "train.training.batch_size=64",
        "train.search.pp=[1]",
    ];
    let together = run("rl/one-step-behind", &set);
    for (at, row) in together.results.iter().enumerate() {
        let alone = run("rl/one-step-behind", &[&set[..], &[&format!("rollouts.off_policy={at}")]].concat());
        let alone = &alone.results[0];
        assert_eq!((&row.metrics, &row.interval), (&alone.metrics, &alone.interval), "{}", row.policy);
        assert_eq!((&row.why, &row.chosen, &row.planner), (&alone.why, &alone.chosen, &alone.planner));
    }
}

#[test]
fn a_search_for_nodes_that_train_finds_what_trying_every_split_finds() {
    for set in [
        &["rollouts.answer_tokens=300"][..],
        &["rollouts.answer_tokens=3000"],
        &["rollouts.batches=streamed", "rollouts.forward_passes=0"],
        &["generate.engine.tp=4", "generate.fleet.replicas=10", "train.parallel.tp=2"],
    ] {
        let base = [
            "cluster.nodes=5",
            "generate.fleet.replicas=40",
            "rollouts.placement=split",
            "rollouts.off_policy=[0,1,2]",
        ];
        let with =
            |nodes: &str| run("rl/placement", &[&base[..], set, &[&format!("rollouts.train_nodes={nodes}")]].concat());
        let (found, all) = (with("search"), with("[1,2,3,4]"));
        for behind in 0..3 {
            let of = |n: u32| metric(&all, &format!("{n}-train+{behind}-off"), "step_s");
            let least = (1..=4).map(of).fold(f64::INFINITY, f64::min);
            let row = found.results.iter().find(|row| row.policy == format!("{behind}-off")).expect("a way");
            let nodes: u32 = row.chosen["train_nodes"].as_u64().and_then(|n| n.try_into().ok()).expect("a number");
            let planner = row.planner.as_ref().expect("a decision");
            assert_eq!((row.metrics["step_s"], of(nodes)), (least, least), "{set:?}: {:?}", planner.notes);
            assert_eq!((planner.bound, planner.gap_ratio), (Some(least), Some(0.0)));
        }
    }
}

#[test]
fn splits_that_no_layout_fits_are_left_out_with_their_reason() {
    let set = [
        "cluster.nodes=4",
        "generate.fleet.replicas=32",
        "rollouts.placement=split",
        "rollouts.train_nodes=search",
        "train.parallel.tp=8",
        "train.parallel.pp=2",
    ];
    let run = run("rl/placement", &set);
    for row in &run.results {
        let notes = &row.planner.as_ref().expect("a decision").notes;
        assert_eq!(row.chosen["train_nodes"], 2, "{notes:?}");
        assert!(
            notes.iter().any(|note| note.starts_with("3 nodes that train: tp × pp × cp = 16 does not divide")),
            "{notes:?}"
        );
    }
}

#[test]
fn a_trainer_that_keeps_its_states_needs_room_for_both_sides() {
    let run = run("rl/grpo-qwen3-32b", &["rollouts.offload=false", "generate.engine.memory_ratio=0.9"]);
    assert_eq!(run.results[0].status.to_string(), "oom", "{}", run.results[0].why);
    assert!(run.results[0].why.contains("keeps"), "{}", run.results[0].why);
}

#[test]
fn a_reference_on_the_gpus_takes_memory_and_no_copies() {
    let of = |set: &[&str]| run("rl/grpo-qwen3-32b", set);
    let (host, device) = (of(&[]), of(&["rollouts.reference=device", "generate.engine.memory_ratio=0.5"]));
    let value = |run: &RunResult, key: &str| metric(run, "best_fit", key);
    // A sixteenth of 32.76 billion parameters in 16 bits, and somewhat more on the ranks with embeddings.
    let more = value(&device, "peak_memory_bytes") - value(&host, "peak_memory_bytes");
    assert!((4.0e9..5.2e9).contains(&more), "{more}");
    assert!(value(&device, "log_probability_s") < value(&host, "log_probability_s"));
    let full = of(&["rollouts.reference=device", "rollouts.forward_passes=3", "generate.engine.memory_ratio=0.95"]);
    assert_eq!(full.results[0].status.to_string(), "oom", "{}", full.results[0].why);
    // Nine references of 8 GB beside an update that has no room for them.
    let set = ["rollouts.reference=device", "rollouts.forward_passes=10", "train.parallel.tp=2", "train.parallel.dp=4"];
    let full = of(&set);
    assert!(full.results[0].why.contains("keep the reference on the host"), "{}", full.results[0].why);
    let found = messages(&["rollouts.forward_passes=1", "rollouts.reference=device"]);
    assert!(found.contains("`rollouts.reference` changes nothing"), "{found}");
}

/// One node of two that trains has the layout of a trainer with a node of its own.
#[test]
fn layouts_are_searched_for_on_as_many_nodes_as_are_given() {
    let set = [
        "rollouts.prompts=16",
        "rollouts.answers=8",
        "train.training.batch_size=64",
        "rollouts.placement=split",
        "rollouts.off_policy=1",
        "train.parallel.layout=search",
        "train.search.tp=[1, 2]",
        "train.search.micro_batch=[1]",
    ];
    let (source, folder) = scenario::find("rl/placement").expect("shipped");
    let shared = source.text.split("[expect]").next().expect("a text").to_owned();
    let line = shared.lines().find(|line| line.starts_with("train_nodes")).expect("a line").to_owned();
    let own = shared.replace(&line, "").replace("nodes = 2", "nodes = 1").replace("replicas = 16", "replicas = 8");
    let [shared, own] = [shared, own].map(|text| {
        let overrides = Overrides { set: set.map(str::to_owned).to_vec(), ..Overrides::default() };
        result(kinds::check(Source { text, ..source.clone() }, &folder, &overrides)).results.remove(0)
    });
    assert_eq!(shared.status.to_string(), "ok", "{}", shared.why);
    assert_eq!((&shared.chosen, shared.metrics["training_s"]), (&own.chosen, own.metrics["training_s"]));
}

#[test]
fn answers_of_a_file_are_drawn_among_its_lengths() {
    let path = std::env::temp_dir().join(format!("skrull-sim-answers-{}.txt", std::process::id()));
    std::fs::write(&path, "100\n200\n").expect("a file");
    let text = include_str!("../scenarios/rl/one-step-behind.toml");
    let lines =
        text.lines().filter(|line| !line.starts_with("answer_tokens") && !line.starts_with("max_answer_tokens"));
    let file = format!("file = {:?}", path.file_name().expect("a name").to_string_lossy());
    let text: Vec<&str> =
        lines.flat_map(|line| if line == "answers = 32" { vec![line, file.as_str()] } else { vec![line] }).collect();
    let source = Source {
        path: "file.toml".to_owned(),
        text: text.join("\n").split("[expect]").next().expect("a text").to_owned(),
    };
    let checked = kinds::check(source, path.parent().expect("a folder"), &Overrides::default());
    let run = result(checked);
    std::fs::remove_file(&path).ok();
    let tokens = metric(&run, "0-off", "tokens_per_s") * metric(&run, "0-off", "step_s") / 2048.0;
    assert!((tokens - 280.0).abs() < 5.0, "130 tokens of a prompt and 150 of an answer on average, {tokens} found");
}

#[test]
fn what_has_no_place_in_a_step_is_said() {
    for (set, said) in [
        ("train.workload.tokens=1000", "`[train.workload]` has no place in a step"),
        ("generate.slo.ttft_s=1.0", "`[generate.slo]` has no place in a step"),
        ("train.training.steps=3", "`training.steps` follows from the rollouts"),
        ("train.training.batch_size=500", "does not divide 2048 sequences"),
        ("rollouts.off_policy=1", "`rollouts.off_policy` changes nothing"),
        ("generate.fleet.replicas=4", "32 GPUs train and 16 generate"),
        ("generate.model.name=qwen3-8b", "`qwen3-32b` is trained, and `qwen3-8b` generates"),
        ("rollouts.max_answer_tokens=3000", "is above `max_answer_tokens`"),
        ("rollouts.placement=apart", "apart"),
        ("rollouts.train_nodes=serch", "`rollouts.train_nodes` is `serch`"),
        ("train.policies.baseline=best_fit", "`train.policies.baseline` changes nothing"),
        ("train.policies.maximize=tokens_per_usd", "`train.policies.maximize` changes nothing"),
        ("generate.policies.baseline=vllm-v1", "`generate.policies.baseline` changes nothing"),
        ("generate.cost.law=published-runs", "published runs are means"),
        ("train.seed=3", "`seed` of `[train]` has no place in a step"),
    ] {
        let found = messages(&[set]);
        assert!(found.contains(said), "{set}:\n{found}");
    }
    // A GPU that trains slowly generates slowly too, and engines have no such replicas. On nodes that train alone it is the trainer's.
    let slow = |rank: u32, set: &[&str]| {
        let straggler = format!("train.stragglers=[{{ranks=[{rank}],rate=2.0}}]");
        messages(&[&[straggler.as_str()], set].concat()).contains("of `[[train.stragglers]]` is an engine's too")
    };
    let split = ["rollouts.placement=split", "rollouts.train_nodes=2", "generate.fleet.replicas=4"];
    assert_eq!([slow(0, &[]), slow(15, &split), slow(16, &split)], [true, false, true]);
    // The frozen weights beside adapters are the reference.
    let found = messages(&["train.optimizer.trains=adapters", "rollouts.reference=device"]);
    assert!(found.contains("`rollouts.reference` changes nothing"), "{found}");
    let found = messages(&["rollouts.placement=split", "rollouts.train_nodes=4"]);
    assert!(found.contains("leaves no node of 4 to generate"), "{found}");
    let found = messages(&["rollouts.placement=split", "rollouts.train_nodes=search", "cluster.nodes=1"]);
    assert!(found.contains("leaves no node of 1 to generate"), "{found}");
}

/// How long the answers of `rl/placement` take with such machines and groups of replicas.
fn generation_s(clusters: &str, groups: &str, set: &[&str]) -> f64 {
    let (head, rest) = include_str!("../scenarios/rl/placement.toml").split_once("[cluster]").expect("a machine");
    let rest = rest.split("[expect]").next().expect("a text");
    let (_, rest) = rest.split_once("[rollouts]").expect("a section");
    let rest = rest.replace("train_nodes = 1 ", "# ").replace("replicas = 16", "");
    let own = ["rollouts.placement=split", "rollouts.off_policy=1", "rollouts.prompts=16", groups];
    let set = [&own[..], set].concat().iter().map(|word| (*word).to_owned()).collect();
    let source = Source { path: "groups.toml".to_owned(), text: format!("{head}{clusters}\n[rollouts]{rest}") };
    let run = result(kinds::check(source, Path::new("."), &Overrides { set, ..Overrides::default() }));
    run.results[0].metrics["generation_s"]
}

/// Groups keep their proportions on the nodes that do not train: the answers take as long as on three nodes of their own with half as many replicas again.
#[test]
fn a_fleet_of_several_groups_takes_the_nodes_that_do_not_train() {
    const SHARED: &str = "[cluster]\ngpu = \"h100-sxm\"\nnodes = 4";
    const OWN: &str =
        "[train.cluster]\ngpu = \"h100-sxm\"\nnodes = 1\n[generate.cluster]\ngpu = \"h100-sxm\"\nnodes = 3";
    let written = "generate.fleet.group=[{name='wide', tp=4, replicas=2}, {name='narrow', tp=1, replicas=8}]";
    let given = "generate.fleet.group=[{name='wide', tp=4, replicas=3}, {name='narrow', tp=1, replicas=12}]";
    let shared = generation_s(SHARED, written, &["rollouts.train_nodes=1"]);
    let own = generation_s(OWN, given, &[]);
    assert!((shared / own - 1.0).abs() < 1e-9, "{shared} s against {own} s");
}

/// A group on other GPUs has no part of the shared machine.
#[test]
fn a_group_with_gpus_of_its_own_is_no_part_of_what_is_shared_out() {
    let group = "generate.fleet.group=[{name='wide', tp=4, replicas=2, gpu='h200-sxm'}, {name='narrow', replicas=8}]";
    let checked = super::checked("rl/placement", &[group]);
    let found = diagnostic::render(&checked.source, &checked.findings);
    assert!(found.contains("group `wide` has GPUs of its own"), "{found}");
}

#[test]
fn answers_that_take_long_to_play_are_told_of() {
    const MANY: [&str; 3] = ["rollouts.placement=split", "rollouts.off_policy=1", "rollouts.prompts=20000"];
    let streamed = messages(&[&MANY[..], &["rollouts.batches=streamed"]].concat());
    assert!(streamed.contains("80 batches of 640000 answers take about"), "{streamed}");
    assert!(!messages(&MANY).contains("answers take about"));
}

/// A day over steps, by hand: whole steps between checkpoints, one failure, and failures of the GPUs of both sides.
#[test]
fn a_run_of_days_has_the_steps_that_failures_and_checkpoints_leave() {
    let of = |name: &str, failures: &str| {
        let set = [
            "train.failures.days=1.0",
            "train.failures.spare_nodes=1",
            "train.failures.repair_hours=0.01",
            failures,
            "train.checkpoint.mode=memory",
            "train.checkpoint.every_s=3000.0",
        ];
        run(name, &set)
    };
    for (name, is_ahead) in [("rl/grpo-qwen3-32b", false), ("rl/one-step-behind", true)] {
        let (whole, once) = (of(name, "train.failures.gpu_mtbf_hours=1e9"), of(name, "train.failures.at_hours=[12.0]"));
        for row in &whole.results {
            let way = row.policy.as_str();
            let [without, with] = [&whole, &once].map(|run| move |key: &str| metric(run, way, key));
            let segment_s = without("checkpoint_interval_s") + without("checkpoint_stall_s");
            let steps = 86_400.0 / segment_s * without("checkpoint_interval_s") / without("step_s");
            let of_segment = without("checkpoint_interval_s") / without("step_s");
            assert!(
                (of_segment - of_segment.round()).abs() < 1e-9 && (without("run_steps") - steps).abs() <= of_segment
            );
            assert!(
                (without("run_tokens_per_s") / without("tokens_per_s") / without("run_goodput_ratio") - 1.0).abs()
                    < 1e-9
            );
            // Behind a restart nothing was made ahead: the parts of the first step come one after another.
            let parts = ["generation_s", "rewards_s", "log_probability_s", "training_s", "weights_s", "switch_s"];
            let waits_s = parts.iter().map(|key| with(key)).sum::<f64>() - with("step_s");
            assert_eq!(waits_s > 1e-6 * with("step_s"), is_ahead && way != "0-off", "{name} {way}: {waits_s}");
            let read_s = with("run_restart_ratio") * 86_400.0 - 300.0 - waits_s.max(0.0);
            assert!((0.0..30.0).contains(&read_s), "{name} {way}: {read_s} s to read a checkpoint from memory");
            assert_eq!(with("run_failures"), 1.0);
        }
        // A hundred failures in the mean of all GPUs, over 32 draws.
        let gpus = metric(&whole, &whole.results[0].policy, "n_gpus");
        let drawn = of(name, &format!("train.failures.gpu_mtbf_hours={}", gpus * 24.0 / 100.0));
        let failures = metric(&drawn, &drawn.results[0].policy, "run_failures");
        assert!((failures - 100.0).abs() < 4.0 * (100.0_f64 / 32.0).sqrt(), "{name}: {failures}");
    }
    assert!(messages(&["train.slow_nodes.node_hours=1000.0"]).contains("`[train.slow_nodes]` has no place in a step"));
}
