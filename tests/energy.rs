//! What GPUs draw: watts of measured runs that no share was fitted on, and where nothing is known.

use std::collections::BTreeMap;
use std::path::Path;

use input::diagnostic::Source;
use scenario::Overrides;
use skrull_sim::kinds;

/// Qwen3-32B on two H100, as ML.ENERGY serves hard problems (ml-energy/leaderboard @ 0cd52da, `Qwen__Qwen3-32B__gpqa.json`).
const PROBLEMS: &str = r#"
kind = "serving"
[cluster]
nodes = 1
gpu = "h100-sxm"
gpus_per_node = 2
[model]
name = "Qwen/Qwen3-32B"
[engine]
name = "vllm"
version = "0.11.1"
loop = "async"
tp = 2
max_tokens = 8192
[trace]
arrivals = "held"
concurrency = 8
prompt_tokens = 250
output_tokens = [1, 13000]
requests = 200
"#;

/// Metrics with their intervals.
fn played(text: &str, set: &[&str]) -> (BTreeMap<String, f64>, BTreeMap<String, [f64; 2]>) {
    let row = row(text, set);
    (row.metrics, row.interval)
}

/// The first row.
fn row(text: &str, set: &[&str]) -> reports::PolicyResult {
    let source = Source { path: "problems.toml".into(), text: text.to_owned() };
    let set = set.iter().map(|key| (*key).to_owned()).collect();
    let checked = kinds::check(source, Path::new("."), &Overrides { set, ..Overrides::default() });
    let run = checked.scenario.expect("a good scenario").run(&|_| {});
    run.results[0].clone()
}

#[test]
fn a_model_that_no_share_was_fitted_on_draws_what_was_measured() {
    // 477 W of a GPU with 8 sequences in flight, and 519 W with 32.
    for (in_flight, measured) in [("8", 477.0), ("32", 519.0)] {
        let held = format!("trace.concurrency={in_flight}");
        let (found, interval) = played(PROBLEMS, &[&held]);
        let watts = found["gpu_power_w"];
        assert!((watts / measured - 1.0_f64).abs() < 0.1, "{watts} W, not {measured}");
        let [low, high] = interval["gpu_power_w"];
        assert!(low < measured && measured < high && high <= found["gpu_power_limit_w"] + 1e-9);
    }
}

#[test]
fn watts_hours_and_tokens_agree() {
    let (found, _) = played(PROBLEMS, &[]);
    let joules = found["energy_wh"] * 3600.0;
    let of_watts = 2.0 * found["gpu_power_w"] * found["makespan_s"];
    assert!((joules / of_watts - 1.0).abs() < 1e-9, "{joules} J, and {of_watts} of two GPUs for the whole run");
}

/// Tokens of clients who gave up are nobody's: joules are divided by the tokens that dollars are divided by.
#[test]
fn joules_and_dollars_are_of_the_same_tokens() {
    let left = ["trace.timeout_s=60", "fleet.usd_per_gpu_hour=2"];
    for set in [&left[1..], &left[..]] {
        let (found, _) = played(PROBLEMS, set);
        let n_left = found.get("n_timed_out").copied().unwrap_or(0.0);
        assert_eq!(n_left > 10.0, set.len() == 2, "{n_left} have left");
        let of_joules = found["energy_wh"] * 3600.0 / found["energy_j_per_output_token"];
        let of_dollars = found["cost_usd"] / found["cost_usd_per_mtok"] * 1e6;
        assert!((of_joules / of_dollars - 1.0).abs() < 1e-9, "{of_joules} tokens, and {of_dollars}");
    }
}

#[test]
fn idle_replicas_draw_less_and_count() {
    let set = ["trace.arrivals='poisson'", "trace.rate_per_s=0.02", "trace.requests=20", "trace.output_tokens=500"];
    let few: Vec<&str> = set.to_vec();
    let (one, _) = played(PROBLEMS, &few);
    let (two, _) = played(PROBLEMS, &[&set[..], &["fleet.replicas=2", "cluster.nodes=2"]].concat());
    assert!(one["gpu_power_w"] < 300.0, "a fleet that mostly waits: {} W", one["gpu_power_w"]);
    assert!(two["energy_wh"] > 1.5 * one["energy_wh"], "{} and {} Wh", one["energy_wh"], two["energy_wh"]);
}

#[test]
fn whose_shares_of_power_they_are_is_said_where_they_are_another_cards() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/quickstart.toml"));
    let training = text.expect("shipped");
    for text in [PROBLEMS, &training] {
        let of = |gpu: &str| {
            let row = row(text, &[&format!("cluster.gpu='{gpu}'")]);
            (row.metrics.get("energy_borrowed_ratio").copied(), row.why.contains("shares of power of `h100-sxm`"))
        };
        assert_eq!((of("h100-sxm"), of("h200-sxm")), ((None, false), (Some(1.0), true)));
    }
}

#[test]
fn nothing_is_said_of_cards_without_a_limit() {
    let (unknown, _) = played(PROBLEMS, &["cluster.gpu='rtx-pro-6000'"]);
    assert!(!unknown.contains_key("energy_wh") && unknown.contains_key("tpot_s.mean"));
}

#[test]
fn drafts_that_are_refused_cost_energy_and_accepted_ones_save_it() {
    let joules = |speculation: &str| {
        let drafts = format!("engine.speculation={speculation}");
        let set = ["trace.requests=20", "trace.output_tokens=500", drafts.as_str()];
        played(PROBLEMS, &set[..if speculation.is_empty() { 2 } else { 3 }]).0["energy_j_per_output_token"]
    };
    let of = |acceptance: f64| {
        joules(&format!("{{ draft_tokens = 3, acceptance = {acceptance}, draft_model = 'qwen3-0.6b' }}"))
    };
    let plain = joules("");
    // Weights are read once for one token, or for four; and four times as many are multiplied.
    let [none, some, all] = [0.0, 0.7, 1.0].map(of);
    assert!(
        none > plain && none > some && some > all && all < plain,
        "{plain} without, {none}, {some}, {all} with drafts"
    );
    // Drafts that nobody makes are verified all the same, and a draft model is work besides.
    let free = joules("{ draft_tokens = 3, acceptance = 0.0 }");
    assert!(plain < free && free < none, "{plain}, {free}, {none}");
}

#[test]
fn a_step_of_training_draws_between_idle_and_the_limit() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/quickstart.toml"));
    let (found, interval) = played(&text.expect("shipped"), &[]);
    let watts = found["gpu_power_w"];
    assert!((200.0..700.0).contains(&watts), "{watts} W");
    let joules = found["energy_j_per_token"] * found["tokens_per_s_per_gpu"];
    assert!((joules / watts - 1.0).abs() < 1e-9, "tokens of a second take the watts of a second");
    assert!(interval.contains_key("energy_wh"));
}

#[test]
fn a_group_that_nobody_is_sent_to_draws_what_idle_gpus_draw() {
    // One request at a time, all to the first replica: whether the seven others are its group or one of their own is a name.
    let two = format!(
        "{}[fleet]\nrouter = \"least-loaded\"\n[[fleet.group]]\nname = \"a\"\nreplicas = 1\n[[fleet.group]]\nname = \
         \"standby\"\nreplicas = 7\n",
        PROBLEMS.replace("nodes = 1", "nodes = 8")
    );
    let one =
        format!("{}[fleet]\nrouter = \"least-loaded\"\nreplicas = 8\n", PROBLEMS.replace("nodes = 1", "nodes = 8"));
    let set = ["trace.concurrency=1", "trace.requests=5", "trace.output_tokens=500"];
    let [(one, _), (two, _)] = [one, two].map(|text| played(&text, &set));
    let keys =
        ["makespan_s", "replica_hours", "energy_wh", "gpu_power_w", "gpu_power_limit_w", "energy_j_per_output_token"];
    for key in keys {
        assert!((two[key] / one[key] - 1.0).abs() < 1e-9, "{key}: {} in one group, {} in two", one[key], two[key]);
    }
}
