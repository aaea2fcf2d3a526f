//! Several tasks through one model: what needs a whole scenario with another key.

use input::diagnostic;
use reports::RunResult;
use scenario::Overrides;
use skrull_sim::kinds;

fn run(name: &str, set: &[&str]) -> RunResult {
    let checked = super::checked(name, set);
    checked.scenario.expect("a scenario of several tasks").run(&|_| {})
}

#[test]
fn placement_by_the_rules_takes_messages_from_a_fifth_of_the_iteration_to_a_twentieth() {
    // One port of 400 Gb/s for the eight GPUs of a node. Spindle's section 3.5 places so that messages are at most 6 %.
    let result = run("multi-task/clip-10", &["cluster.nic_gb_per_s=6.25"]);
    let share = |policy: &str| result.results.iter().find(|row| row.policy == policy).expect("it runs").metrics["messages_ratio"];
    assert!(share("spindle-random") >= 0.15, "{}", share("spindle-random"));
    assert!(share("spindle") <= 0.06, "{}", share("spindle"));
    assert!(share("spindle-consecutive") >= 3.0 * share("spindle"), "{}", share("spindle-consecutive"));
}

/// A file with the sections of a list in reverse. What stands behind the last one stays there.
fn reversed(text: &str, section: &str) -> String {
    let mut parts: Vec<&str> = text.split(section).collect();
    let head = parts.remove(0);
    let last = parts.pop().expect("there are some");
    let (one, rest) = last.split_at(last.find("\n[").map_or(last.len(), |at| at + 1));
    parts.push(one);
    parts.reverse();
    format!("{head}{section}{}\n{rest}", parts.join(&format!("\n{section}")))
}

/// Tasks and operators of a file are sets: listed in reverse they take as long under every way.
#[test]
fn the_order_of_sections_changes_nothing() {
    for (name, section) in [
        ("multi-task/example", "[[task]]"),
        ("multi-task/example", "[[operator]]"),
        ("multi-task/qwen-val", "[[task]]"),
        ("multi-task/qwen-val", "[[operator]]"),
        ("multi-task/clip-10", "[[task]]"),
    ] {
        let (source, folder) = scenario::find(name).expect("shipped");
        let source = diagnostic::Source { text: reversed(&source.text, section), ..source };
        let checked = kinds::check(source, &folder, &Overrides::default());
        let findings = diagnostic::render(&checked.source, &checked.findings);
        let other = checked.scenario.unwrap_or_else(|| panic!("{findings}")).run(&|_| {});
        for (row, other) in run(name, &[]).results.iter().zip(&other.results) {
            assert_eq!(row.metrics, other.metrics, "{name}, {section}, {}", row.policy);
        }
    }
}

#[test]
fn the_nearest_devices_are_never_taken_where_the_first_free_ones_end_sooner() {
    for gpu in ["a100-sxm-80g", "h200-sxm"] {
        let result = run("multi-task/clip-10", &[&format!("cluster.gpu=\"{gpu}\"")]);
        let seconds = |name: &str| result.results.iter().find(|row| row.policy == name).expect("it runs").metrics["iteration_time_s"];
        assert!(seconds("spindle") <= seconds("spindle-consecutive"), "{gpu}: {}", seconds("spindle"));
    }
}

/// A task of one sample takes 8 ms on one GPU alone. The other one takes 3.2 ms on four beside it: both are done after 8 ms.
const LONG_LAYER: &str = "kind = \"multi-task\"\n[cluster]\ngpu = \"a100-sxm-80g\"\nnodes = 1\ngpus_per_node = 8\n\
    [[operator]]\nname = \"o\"\nlayers = 1\nhidden = 1024\n\
    [[task]]\nname = \"a\"\nbatch = 1\nflow = [{ operator = \"o\", tokens = 300, times_ms = [[1, 8.0]] }]\n\
    [[task]]\nname = \"b\"\nbatch = 8\nflow = [{ operator = \"o\", tokens = 300, times_ms = [[1, 8.0], [4, 3.2], [8, 1.6]] }]\n\
    [policies]\nrun = [\"sequential\", \"spindle\"]\n";

#[test]
fn no_part_of_a_wave_holds_devices_and_waits() {
    let checked = super::written(LONG_LAYER.to_owned(), &[]);
    let result = checked.scenario.expect("a scenario of several tasks").run(&|_| {});
    let seconds = |at: usize| result.results[at].metrics["planned_s"];
    assert!((seconds(0) - 9.6e-3).abs() < 1e-9 && (seconds(1) - 8e-3).abs() < 1e-9, "{} {}", seconds(0), seconds(1));
}

#[test]
fn no_way_is_below_the_bound_and_shares_of_an_iteration_add_up() {
    for nodes in ["cluster.nodes=1", "cluster.nodes=2"] {
        for row in run("multi-task/clip-10", &[nodes]).results.iter().filter(|row| row.status.is_ok()) {
            let metric = |key: &str| row.metrics[key];
            assert!(metric("iteration_time_s") >= metric("iteration_time_bound_s"), "{}", row.policy);
            assert!(metric("planned_s") >= metric("iteration_time_bound_s"), "{}", row.policy);
            let sum = metric("forward_backward_ratio") + metric("messages_ratio") + metric("sync_ratio");
            assert!((sum - 1.0).abs() < 1e-9, "{}: {sum}", row.policy);
        }
    }
}

#[test]
fn a_plan_names_every_piece_with_its_devices() {
    let job = super::checked("multi-task/example", &[]).scenario.expect("a scenario of several tasks");
    let plan = job.plan("spindle").expect("it plans").expect("it has a plan");
    let pieces = plan.json["pieces"].as_array().expect("a list").clone();
    let layers = |name: &str| -> u64 {
        let of = pieces.iter().filter(|piece| piece["meta_op"] == name);
        of.map(|piece| piece["layers"].as_u64().expect("a count")).sum()
    };
    assert_eq!(["caption/vision", "caption/text", "translate/text"].map(layers), [12, 12, 12]);
    assert!(pieces.iter().all(|piece| !piece["devices"].as_array().expect("a list").is_empty()));
}

/// What changes nothing is said, and what belongs to training steps alone is refused.
#[test]
fn keys_of_other_kinds_and_ways_are_answered() {
    let found = |name: &str, set: &str| {
        let checked = super::checked(name, &[set]);
        checked.findings.iter().map(|finding| finding.what.clone()).collect::<Vec<_>>()
    };
    for (name, set, expected) in [
        ("multi-task/qwen-val", "training.forward_ratio=0.5", "`training.forward_ratio` changes nothing"),
        (
            "curriculum/gradual-qwen2-7b",
            "classification.question_types=12",
            "`classification.question_types` changes nothing",
        ),
        ("multi-task/example", "training.recompute='full'", "`training.recompute` changes nothing"),
        (
            "multi-task/example",
            "training.host_overhead_per_layer_us=50",
            "`training.host_overhead_per_layer_us` changes nothing",
        ),
        ("multi-task/example", "training.zero=1", "`training.zero` changes nothing"),
        ("multi-task/example", "cost.strict_hull=true", "unknown key `cost.strict_hull`"),
        ("compiler/llama-1b-codealpaca", "cost.strict_hull=true", "unknown key `cost.strict_hull`"),
    ] {
        assert!(found(name, set).iter().any(|what| what == expected), "{name} {set}: {:?}", found(name, set));
    }
    for (name, set) in [
        ("multi-task/example", "training.forward_ratio=0.5"),
        ("multi-task/qwen-val", "training.recompute='full'"),
        ("multi-task/qwen-val", "training.host_overhead_per_layer_us=50"),
        ("multi-task/qwen-val", "training.zero=1"),
        ("curriculum/gradual-qwen2-7b", "classification.sharing='questions'"),
    ] {
        assert_eq!(found(name, set), Vec::<String>::new(), "{name} {set}");
    }
}

fn messages(name: &str, set: &[&str]) -> String {
    let checked = super::checked(name, set);
    diagnostic::render(&checked.source, &checked.findings)
}

#[test]
fn a_list_without_anything_is_named() {
    for key in ["task", "operator"] {
        let found = messages("multi-task/example", &[&format!("{key}=[]")]);
        assert!(found.contains(&format!("`{key}` is an empty list")), "{found}");
    }
}
