//! Memory scenarios through the shell: limits, steps given as data, plan files, and messages about input.

use reports::RunResult;
use skrull_sim::kinds::Checked;

fn of_text(text: &str) -> Checked {
    super::written(text.to_owned(), &[])
}

fn metric(run: &RunResult, policy: &str, key: &str) -> f64 {
    let row = run.results.iter().find(|row| row.policy == policy).unwrap_or_else(|| panic!("no {policy}"));
    *row.metrics.get(key).unwrap_or_else(|| panic!("{policy} has no {key}: {}", row.why))
}

/// Three tensors of a batch wait for the end. Sizes: x0 1000, x1 2000, x2 3000 bytes per token at 10 tokens; y is read last with all of them.
const CHAIN: &str = r#"
kind = "memory"
[cluster]
gpu = "a100-sxm-40g"
nodes = 1
gpus_per_node = 1
[step]
batch_sizes = [2]
batches = 1
[workload]
tokens = 5
[compiler]
distance = 2
[policies]
run = ["dynamic", "bladedisc++"]
[[policies.variant]]
name = "bladedisc++"
policy = "bladedisc++"
limit_gib = LIMIT
[[symbol]]
name = "tokens"
equals = "batch*sequence"
[[argument]]
name = "input"
bytes = "100*tokens"
[[operation]]
name = "first"
inputs = ["input"]
outputs = [{ name = "wide", bytes = "40_000*tokens" }]
time_us = 30
[[operation]]
name = "second"
inputs = ["wide"]
outputs = [{ name = "narrow", bytes = "100*tokens" }]
time_us = 5
[[operation]]
name = "third"
inputs = ["narrow"]
outputs = [{ name = "narrower", bytes = "10*batch*sequence" }]
time_us = 5
[[operation]]
name = "fourth"
inputs = ["narrower"]
outputs = [{ name = "large", bytes = "30_000*tokens" }]
time_us = 5
[[operation]]
name = "fifth"
inputs = ["large"]
outputs = [{ name = "small", bytes = "10*tokens" }]
time_us = 5
[[operation]]
name = "sixth"
inputs = ["small"]
outputs = [{ name = "smaller", bytes = "10*tokens" }]
time_us = 5
[[operation]]
name = "last"
inputs = ["smaller", "wide"]
outputs = [{ name = "result", bytes = "10*tokens", result = true }]
time_us = 5
"#;

#[test]
fn a_step_given_as_data_is_evicted_as_by_hand() {
    // Ten tokens: the input 1000 bytes, `wide` 400,000, `large` 300,000. As it comes, both are alive with `narrower` (100) while `fourth`
    // runs: 701,100. With `wide` gone that is 301,100, and the peak is `second` with 402,000 (input, wide, narrow). `first` again is 30 us.
    let run = |limit_bytes: f64| {
        let limit = (limit_bytes + 0.5) / 1_073_741_824.0;
        let checked = of_text(&CHAIN.replace("LIMIT", &format!("{limit:.12}")));
        let text = input::diagnostic::render(&checked.source, &checked.findings);
        checked.scenario.unwrap_or_else(|| panic!("{text}")).run(&|_| {})
    };
    let near =
        |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9 * expected, "{found}, not {expected}");
    let enough = run(701_100.0);
    for policy in ["dynamic", "bladedisc++"] {
        near(metric(&enough, policy, "peak_memory_bytes"), 701_100.0);
        near(metric(&enough, policy, "iteration_time_s"), 60e-6);
    }
    let less = run(600_000.0);
    near(metric(&less, "bladedisc++", "peak_memory_bytes"), 402_000.0);
    near(metric(&less, "bladedisc++", "iteration_time_s"), 90e-6);
    near(metric(&less, "bladedisc++", "evictions_per_step"), 1.0);
    near(metric(&less, "bladedisc++", "recompute_ratio"), 1.0 / 3.0);
    let row = &run(400_000.0).results[1];
    assert_eq!(row.status, reports::Ended::OutOfMemory);
    assert!(row.why.contains("while `second` runs"), "{}", row.why);
}

const ONE_SIZE: [&str; 3] = [
    "step.batch_sizes=[16]",
    "step.batches=20",
    "policies.run=['dynamic','scheduled','bladedisc++','least-recompute']",
];

#[test]
fn more_memory_never_costs_more_and_enough_costs_nothing() {
    let run = |gib: u32| {
        let memory = format!("cluster.memory_gib={gib}");
        let set = [&ONE_SIZE[..], &["policies.baseline='dynamic'", memory.as_str(), "compiler.check_us=0"]].concat();
        super::checked("compiler/llama-1b-codealpaca", &set).scenario.expect("a good scenario").run(&|_| {})
    };
    let mut before = [f64::INFINITY; 2];
    for gib in [36, 40, 44, 52, 80] {
        let result = run(gib);
        for (before, policy) in before.iter_mut().zip(["bladedisc++", "least-recompute"]) {
            let row = result.results.iter().find(|row| row.policy == policy).expect("it runs");
            if row.status.is_ok() {
                let seconds = metric(&result, policy, "recompute_time_s");
                assert!(seconds <= *before, "{policy} at {gib} GiB: {seconds} after {before}");
                *before = seconds;
            } else {
                assert!(before.is_infinite(), "{policy} at {gib} GiB: {}", row.why);
            }
        }
    }
    assert_eq!(before, [0.0; 2]);
    let enough = run(80);
    let same = |key: &str| assert_eq!(metric(&enough, "bladedisc++", key), metric(&enough, "scheduled", key), "{key}");
    ["iteration_time_s", "peak_memory_bytes", "evictions_per_step"].into_iter().for_each(same);
}

/// Short batches need most at their end, when frameworks hold every gradient: 2 bytes of 1.07 billion parameters. A schedule updates a weight as
/// soon as its gradient is there; what is left is the largest of them, that of the head or of a layer's first two products.
#[test]
fn a_schedule_updates_weights_as_their_gradients_come() {
    let set = [
        "workload.tokens=100",
        "step.batch_sizes=[16]",
        "step.batches=1",
        "policies.run=['dynamic','scheduled']",
        "policies.baseline='dynamic'",
        "compiler.fragmentation=1",
    ];
    let run = super::checked("compiler/llama-1b-codealpaca", &set).scenario.expect("a good scenario").run(&|_| {});
    let saved = metric(&run, "dynamic", "peak_memory_bytes") - metric(&run, "scheduled", "peak_memory_bytes");
    assert!((0.5e9..2.2e9).contains(&saved), "{saved}");
}

#[test]
fn a_plan_file_holds_the_order_the_candidates_and_what_goes() {
    let job = super::checked("compiler/llama-1b-codealpaca", &ONE_SIZE).scenario;
    let set = [&ONE_SIZE[..], &["policies.baseline='dynamic'"]].concat();
    assert!(job.is_none(), "the baseline is not among the policies");
    let job = super::checked("compiler/llama-1b-codealpaca", &set).scenario.expect("a good scenario");
    let json = job.plan("bladedisc++").expect("it decides").expect("a plan").json;
    let program = &json["batches"][0]["compiled"][0]["programs"][0];
    let candidates = program["candidates"].as_array().expect("candidates");
    assert!(!candidates.is_empty());
    for candidate in candidates {
        let again = candidate["recompute"].as_array().expect("operations");
        assert!((1..=10).contains(&again.len()), "{candidate}");
    }
    assert!(program["order"].as_array().expect("an order").len() > 100);
    assert!(!json["batches"][0]["shapes"].as_array().expect("shapes").is_empty());
}

#[test]
fn attention_beside_operations_that_are_given_is_said_to_change_nothing() {
    let n = |step: &str| {
        let found = of_text(&CHAIN.replace("LIMIT", "1.0").replace("[step]", step));
        found.findings.iter().filter(|finding| finding.code == input::diagnostic::Code::NoEffect).count()
    };
    assert_eq!([n("[step]"), n("[step]\nattention = \"unfused\"")], [0, 1]);
}
