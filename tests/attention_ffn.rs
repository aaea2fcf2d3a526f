//! Attention and experts on GPUs of their own: what it changes, what is checked on each side, and what is refused beside it.

use std::collections::BTreeMap;

use input::diagnostic;
use skrull_sim::kinds;

/// Mixtral on two nodes of H100 that only decode: four groups of two GPUs that attend, and eight with an expert each.
const BASE: &str = "kind = \"serving\"\n[model]\nname = \"mixtral-8x22b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 2\n\
                    [trace]\nprompt_tokens = 2000\noutput_tokens = 200\nrequests = 600\narrivals = \"together\"\n\
                    [engine]\ntp = 2\nmax_sequences = 128\nmax_tokens = 2048\nffn = { gpus = 8, attention_ranks = 4 }\n\
                    [fleet]\n[[fleet.group]]\nname = \"decode\"\nrole = \"outputs\"\nusd_per_gpu_hour = 2.0\n[policies]\nrun = [\"vllm-v1\"]\n";

/// Its two sides.
const APART: &str = "ffn = { gpus = 8, attention_ranks = 4 }";

fn checked(text: &str, set: &[&str]) -> kinds::Checked {
    super::written(text.to_owned(), set)
}

/// What is said of the scenario with some keys laid over it.
fn words(set: &[&str]) -> String {
    let checked = checked(BASE, set);
    diagnostic::render(&checked.source, &checked.findings)
}

/// Why the only row does not fit.
fn no_room(set: &[&str]) -> String {
    let checked = checked(BASE, set);
    let messages = diagnostic::render(&checked.source, &checked.findings);
    let row = checked.scenario.unwrap_or_else(|| panic!("{messages}")).run(&|_| {}).results.remove(0);
    assert_eq!(row.status, engine::verdict::Ended::OutOfMemory, "{row:?}");
    row.why
}

/// Metrics of the only row.
fn metrics(text: &str) -> BTreeMap<String, f64> {
    let checked = checked(text, &[]);
    let messages = diagnostic::render(&checked.source, &checked.findings);
    checked.scenario.unwrap_or_else(|| panic!("{messages}")).run(&|_| {}).results.remove(0).metrics
}

#[test]
fn both_sides_are_paid_and_keys_have_the_room_that_experts_leave() {
    let apart = metrics(BASE);
    assert!((apart["cost_usd_per_hour"] - 16.0 * 2.0).abs() < 1e-9, "{apart:?}");
    // A GPU with an expert of each of 56 layers has 3 · 6,144 · 16,384 weights of two bytes for each.
    let of_expert = 56.0 * 3.0 * 6144.0 * 16_384.0 * 2.0;
    assert!((apart["weight_bytes"] / of_expert - 1.0).abs() < 1e-3, "{}", apart["weight_bytes"]);
    // Twice as many GPUs hold the experts of replicas that share them with attention, and attention lies there besides.
    let together = metrics(&BASE.replace(APART, "ep = 8").replace("role =", "replicas = 2\nrole ="));
    assert!((together["cost_usd_per_hour"] - 16.0 * 2.0).abs() < 1e-9);
    assert!(together["weight_bytes"] > apart["weight_bytes"]);
}

#[test]
fn more_gpus_with_experts_never_leave_less_room_and_more_micro_batches_are_no_magic() {
    let of = |gpus: u32, micro_batches: u32| {
        let sides = format!("ffn = {{ gpus = {gpus}, attention_ranks = 4, micro_batches = {micro_batches} }}");
        metrics(&BASE.replace(APART, &sides))
    };
    let [four, eight] = [4, 8].map(|gpus| of(gpus, 2));
    assert!(four["kv_peak_ratio"] >= eight["kv_peak_ratio"] * 0.999, "{four:?}\n{eight:?}");
    assert!(four["tpot_s.mean"] >= eight["tpot_s.mean"], "half as many GPUs for the same experts");
    // Each micro-batch reads all weights again, and with so few tokens these are what takes time.
    let [one, many] = [1, 16].map(|n| of(8, n)["tpot_s.mean"]);
    assert!(many > 4.0 * one, "{one} {many}");
}

#[test]
fn each_side_says_where_it_has_no_room() {
    let few = no_room(&["engine.ffn={ gpus = 1, attention_ranks = 4 }"]);
    assert!(few.contains("of experts on each GPU of `ffn`") && few.contains("`ffn.gpus = 4` would fit"), "{few}");
    let large = no_room(&["cluster.memory_gib=36"]);
    assert!(large.contains("of experts on each GPU of `ffn`"), "{large}");
}

#[test]
fn what_cannot_stand_beside_it_is_refused_with_the_reason() {
    for (set, what) in [
        (vec!["engine.ep=8"], "`ffn` beside `ep`"),
        (vec!["engine.pp=2", "cluster.nodes=4"], "`ffn` beside `pp`"),
        (
            vec!["engine.speculation={ draft_tokens = 2, acceptance = 0.7, draft_us_per_token = 100 }"],
            "`ffn` beside `speculation`",
        ),
        (vec!["engine.dispatcher='deepep'"], "`ffn` beside `dispatcher`"),
        (vec!["engine.two_batch_overlap=true"], "`ffn` beside `two_batch_overlap`"),
        (vec!["kv.borrow='when-short'"], "`ffn` beside memory that is lent"),
        (vec!["model.name='llama-3-8b'"], "`ffn` without experts"),
        (vec!["engine.ffn={ gpus = 3 }"], "`ffn.gpus` = 3 with 8 experts"),
        (vec!["engine.ffn={ attention_ranks = 3 }"], "key `engine.ffn.gpus` is missing"),
        (vec!["engine.ffn={ gpus = 8, ranks = 3 }"], "unknown key `engine.ffn.ranks`"),
        (vec!["fleet.group=[{ name = 'decode', role = 'outputs', ffn = { gpus = 8 } }]"], "`ffn` beside another `ffn`"),
    ] {
        let found = words(&set);
        assert!(found.contains(what), "{set:?}: {found}");
    }
}

/// Numbers of both sides over `BASE`: 24 ways to lay a replica, with two sizes of a batch.
const SPACE: &str = "replicas = 1\ntp = [1, 2]\nmax_sequences = [32, 256]\nmax_tokens = 2048\nffn = { gpus = [4, 8], attention_ranks = [1, 2, 4], micro_batches = [1, 3] }\n";

/// What a search finds, and its figure and the setting's when everything is served.
fn searched(by: &str, within: &str) -> (reports::tuned::Tuned, f64, BTreeMap<String, f64>) {
    let asked = format!("policy = 'vllm-v1'\nby = '{by}'\nwithin = {within}\n{SPACE}");
    let text = BASE.replace("requests = 600", "requests = 200");
    let tuned = checked(&format!("{text}[tune]\n{asked}"), &[]).scenario.expect("good").tuned().expect("`[tune]`");
    let best = format!("[[policies.best]]\nname = 'all'\n{asked}");
    let metrics = metrics(&format!("{}{best}", text.replace("run = [\"vllm-v1\"]", "run = ['all']")));
    (tuned, metrics[by], metrics)
}

#[test]
fn a_search_over_both_sides_gives_what_serving_everything_gives() {
    let late = "{ \"tpot_s.p99\" = { max = 0.06 } }";
    for (by, within) in [("output_tokens_per_s_per_gpu", "{}"), ("cost_usd_per_mtok", late), ("tpot_s.p99", "{}")] {
        let (found, truth, _) = searched(by, within);
        assert_eq!(found.counts.settings, 48, "{:?}", found.counts);
        let best = found.answer().and_then(|answer| answer.figure).expect("some setting keeps the limits");
        assert!((best / truth - 1.0).abs() <= 0.01 + 1e-9, "{by}: {best} against {truth}");
        let bound = found.bound.expect("a bound");
        let is_least = !by.contains("per_s");
        assert!(if is_least { bound <= truth * (1.0 + 1e-9) } else { bound >= truth * (1.0 - 1e-9) }, "{by}: {bound}");
        // Bounds know enough to leave settings out, but for latencies, where one sequence alone is the best that they know.
        assert!(found.counts.outdone + found.counts.late > 0 || by == "tpot_s.p99", "{by}: {:?}", found.counts);
    }
}

#[test]
fn a_setting_of_a_search_is_the_engine_that_one_would_write() {
    let (found, truth, _) = searched("output_tokens_per_s_per_gpu", "{}");
    let answer = found.answer().expect("no limits");
    let number = |part: &str, key: &str| -> String {
        let behind = part.split(&format!("{key}-")).nth(1).unwrap_or_else(|| panic!("{key} in {part}"));
        behind.split('-').next().expect("a number").to_owned()
    };
    let [gpus, ranks, parts] =
        ["gpus", "attention_ranks", "micro_batches"].map(|key| number(&answer.values["ffn"], key));
    let sides = format!("ffn = {{ gpus = {gpus}, attention_ranks = {ranks}, micro_batches = {parts} }}");
    let text = BASE.replace("requests = 600", "requests = 200").replace(APART, &sides);
    let text = text.replace("tp = 2", &format!("tp = {}", answer.values["tp"]));
    let text = text.replace("max_sequences = 128", &format!("max_sequences = {}", answer.values["max_sequences"]));
    let by_hand = metrics(&text)["output_tokens_per_s_per_gpu"];
    assert!((by_hand / answer.figure.expect("served") - 1.0).abs() < 1e-9 && truth >= by_hand * (1.0 - 1e-9));
}

#[test]
fn capacity_pays_the_gpus_of_both_sides() {
    let of_equal = BASE
        .replace("[[fleet.group]]\nname = \"decode\"\nrole = \"outputs\"\n", "")
        .replace("usd_per_gpu_hour = 2.0\n", "");
    let text = format!(
        "{of_equal}[slo]\ntpot_s = 0.1\n[capacity]\nreplicas = [1, 2]\ntp = [1, 2]\nattainment_ratio = 0.5\n[[capacity.gpu]]\nname = \"h200-sxm\"\nusd_per_gpu_hour = 3.0\n"
    )
    .replace("requests = 600", "requests = 50");
    let found = checked(&text, &[]);
    let said = diagnostic::render(&found.source, &found.findings);
    let report = found.scenario.unwrap_or_else(|| panic!("{said}")).capacity().expect("`[capacity]`");
    let mut paid: Vec<f64> = report.points.iter().map(|point| point.usd_per_hour).collect();
    paid.sort_by(f64::total_cmp);
    // Four groups of one or two GPUs attend, and eight hold the experts: 12 or 16 GPUs a replica, once or twice.
    assert_eq!(paid, [36.0, 48.0, 72.0, 96.0], "{:?}", report.left_out);
}

#[test]
fn a_plan_says_which_gpus_hold_the_experts() {
    let scenario = super::serving_of(BASE.to_owned());
    let plans = scenario::serving::placed::deployments(&scenario, &scenario.choices[0]).expect("it fits");
    let stage = &plans[0].replicas[0].stages[0];
    assert_eq!((stage.gpus.n(), stage.tensor, stage.ffn_gpus), (16, 2, 8));
}
