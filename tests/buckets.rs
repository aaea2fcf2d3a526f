//! Tokens of a micro-batch that nobody wrote: the same for a policy whoever runs beside it, on nodes that are a part of a machine, and for sequences in rows.

use reports::RunResult;

/// A training scenario of an 8B model on 32 GPUs.
fn trained(workload: &str, policies: &str) -> String {
    format!(
        "kind = \"training\"\n[model]\nname = \"qwen3-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 4\n[parallel]\ntp = 2\ncp = 4\nzero = 1\n\
         sequence_parallel = true\n[training]\nframework = \"megatron-core\"\nbatch_size = 64\nrecompute = \"full\"\n[workload]\n{workload}\n\
         [policies]\n{policies}\n"
    )
}

fn run(text: &str, set: &[&str]) -> RunResult {
    let checked = super::written(text.to_owned(), set);
    let messages = input::diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{messages}")).run(&|_| {})
}

fn metric(run: &RunResult, policy: &str, key: &str) -> f64 {
    let row = run.results.iter().find(|row| row.policy == policy).expect("it ran");
    *row.metrics.get(key).unwrap_or_else(|| panic!("{}: {}", row.status, row.why))
}

#[test]
fn a_policy_of_equal_sequences_is_as_fast_beside_others_as_alone() {
    for framework in ["training.framework=megatron-core", "training.framework=formulas"] {
        let all = ["megatron", "best_fit", "skrull", "deepspeed"];
        let of = |policies: &[&str]| run(&trained("tokens = 8192", &format!("run = {policies:?}")), &[framework]);
        let together = of(&all);
        for policy in all {
            let (beside, alone) = (metric(&together, policy, "iteration_time_s"), of(&[policy]));
            assert_eq!(beside, metric(&alone, policy, "iteration_time_s"), "{policy} {framework}");
        }
        // Equal sequences leave nothing to pack, so packing gains nothing.
        let [packed, plain] = ["best_fit", "megatron"].map(|policy| metric(&together, policy, "iteration_time_s"));
        assert_eq!(packed, plain, "{framework}");
    }
}

#[test]
fn sequences_of_rows_lie_in_them_by_best_fit() {
    // Two replicas have two rows each: 600 + 400, 600 + 400, 700 + 300 and 600 + 400.
    let rows = "list = [600, 600, 400, 400, 700, 300, 600, 400]\nrow_tokens = 1000";
    let variants = "run = [\"megatron\", \"packed\", \"in_order\"]\n[[policies.variant]]\nname = \"packed\"\npolicy = \"megatron\"\n\
                    fill = \"packed\"\n[[policies.variant]]\nname = \"in_order\"\npolicy = \"megatron\"\nfill = \"tokens\"";
    let found = run(&trained(rows, variants), &["training.batch_size=4"]);
    let of = |policy: &str| metric(&found, policy, "iteration_time_s");
    assert_eq!(of("megatron"), of("packed"));
    assert!(of("in_order") > 1.05 * of("packed"), "{} s in order, {} s packed", of("in_order"), of("packed"));
    // A micro-batch is a row, so what a rank holds of it is written as well as left out.
    let written = run(&trained(rows, variants), &["training.batch_size=4", "training.bucket_tokens=250"]);
    assert_eq!(of("megatron"), metric(&written, "megatron", "iteration_time_s"));
}

#[test]
fn a_search_over_rows_takes_whole_rows() {
    let rows = "list = [600, 600, 400, 400, 700, 300, 600, 400]\nrow_tokens = 1000";
    let set = ["training.batch_size=4", "parallel.layout=search", "search.tp=[2]", "search.pp=[1]"];
    let text =
        trained(rows, "run = [\"megatron\"]").replace("tp = 2\ncp = 4\nzero = 1\nsequence_parallel = true\n", "");
    let found = run(&text, &set);
    let chosen = &found.results[0].chosen;
    let [tokens, cp] = ["bucket_tokens", "cp"].map(|key| chosen[key].as_u64().expect("a number"));
    assert!((tokens * cp).is_multiple_of(1000), "{chosen:?}");
}

#[test]
fn a_trainer_on_a_part_of_a_machine_has_the_micro_batches_of_a_machine_of_its_own() {
    let sides = |shared: &str, own: [&str; 2], nodes: &str| {
        format!(
            "kind = \"rl\"\n[model]\nname = \"qwen3-8b\"\n{shared}[rollouts]\nprompts = 32\nanswers = 8\nprompt_tokens = 500\nanswer_tokens = 2000\n\
             max_answer_tokens = 8192\nplacement = \"split\"\n{nodes}[train.parallel]\ntp = 2\ncp = 2\nsequence_parallel = true\n{}[train.training]\n\
             framework = \"megatron-core\"\nbatch_size = 256\n[train.policies]\nrun = [\"best_fit\"]\n{}[generate.engine]\nname = \"vllm\"\ntp = 1\n\
             memory_ratio = 0.6\n[generate.fleet]\nreplicas = 8\n",
            own[0], own[1]
        )
    };
    let machine = |name: &str, n: u32| format!("[{name}cluster]\ngpu = \"h100-sxm\"\nnodes = {n}\n");
    let of_part = run(&sides(&machine("", 2), ["", ""], "train_nodes = 1\n"), &[]);
    let own = [machine("train.", 1), machine("generate.", 1)];
    let of_two = run(&sides("", [&own[0], &own[1]], ""), &[]);
    let training_s = |run: &RunResult| *run.results[0].metrics.get("training_s").expect(&run.results[0].why);
    assert_eq!(training_s(&of_part), training_s(&of_two));
}
