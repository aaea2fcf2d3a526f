//! The way of a request to an engine: one rule for every load, and for replicas that share a request.

use engine::play::Case;
use hw::Seconds;
use input::diagnostic;
use scenario::Overrides;
use scenario::serving::Serving;
use scenario::serving::played;
use serve::engine_constants::{self, EngineConstants};
use serve::engine_preset::{PRESETS, RESERVED_GIB};
use serve::replica::FirstToken;
use serve::transfer::PORT_REACHED;
use skrull_sim::kinds;

/// A shipped scenario with pieces of its text replaced, and keys from the command line.
fn changed(name: &str, pieces: &[[&str; 2]], set: &[&str]) -> kinds::Checked {
    let (source, folder) = scenario::find(name).expect("shipped");
    let mut text = source.text.clone();
    for [from, to] in pieces {
        assert!(text.contains(from), "{name} has `{from}`");
        text = text.replace(from, to);
    }
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    kinds::check(diagnostic::Source { text, ..source }, &folder, &Overrides { set, ..Overrides::default() })
}

fn words(checked: &kinds::Checked) -> String {
    diagnostic::render(&checked.source, &checked.findings)
}

/// Mean TTFT of requests of 1000 tokens under an engine, which come so seldom that each finds an idle one, or one after another.
fn ttft_s(engine: &str, is_open: bool, set: &[&str]) -> f64 {
    let name = format!("name = \"{engine}\"");
    let load = if is_open { "arrivals = \"poisson\"\nrate_per_s = 0.01" } else { "concurrency = 1" };
    let pieces = [
        ["name = \"vllm\"\nversion = \"0.11.0\"", name.as_str()],
        ["arrivals = \"held\"\nconcurrency = 32", load],
        ["[policies]\nrun = [\"vllm-v1\"]\n", ""],
    ];
    // An engine by its name batches as it does; what the file expects is not asked.
    let plain = ["trace.prompt_tokens=1000", "trace.output_tokens=2", "trace.requests=500"];
    let checked = changed("serving/closed-loop", &pieces, &[&plain[..], set].concat());
    let scenario = checked.scenario.as_ref().unwrap_or_else(|| panic!("{}", words(&checked)));
    scenario.run(&|_| {}).results[0].metrics["ttft_s.mean"]
}

#[test]
fn an_idle_engine_takes_its_start_and_its_tokenizer_whoever_sends() {
    for engine in ["vllm", "sglang", "trtllm"] {
        let EngineConstants { usual_start, tokenize, .. } = EngineConstants::of(engine);
        let (mean, tokens) = (usual_start.get(), 1000.0 * tokenize.get());
        assert_eq!(tokenize, engine_constants::tokenize());
        // The mean of 500 exponential draws is known to 4.5 % of it.
        let scatter = 4.0 * 0.045 * mean;
        let without = ttft_s(engine, true, &["engine.start_ms=0", "engine.tokenize_us_per_token=0"]);
        let with = ttft_s(engine, true, &[]);
        assert!((with - without - mean - tokens).abs() < scatter, "{engine}: {with} and {without}");
        // A tokenizer alone has no draws. Behind it a request that follows another one finds an idle engine, as one that comes by itself does.
        for is_open in [true, false] {
            let tokenized = ttft_s(engine, is_open, &["engine.start_ms=0", "engine.tokenize_us_per_token=50"]);
            assert!((tokenized - without - 0.05).abs() < 1e-6, "{engine}, open {is_open}: {tokenized} and {without}");
        }
        // Behind a short start it may miss an iteration.
        let held = ttft_s(engine, false, &[]);
        assert!((held - with).abs() < 0.2 * mean, "{engine}: {held} held and {with} open");
    }
}

fn serving(checked: &kinds::Checked) -> &Serving {
    let scenario = checked.scenario.as_ref().unwrap_or_else(|| panic!("{}", words(checked)));
    scenario.serving().expect("engines that serve")
}

#[test]
fn split_replicas_of_an_engine_hand_over_as_its_runs_are_scored() {
    for preset in &PRESETS {
        let name = format!("[engine]\nname = \"{}\"\nversion = \"{}\"", preset.name, preset.since);
        let checked = changed("serving/disaggregated", &[["[engine]", &name]], &["trace.requests=100"]);
        let serving = serving(&checked);
        for (choice, n_starts) in [("colocated", 1), ("split", preset.split.n_starts)] {
            let choice = serving.plain().find(|plain| plain.name == choice).expect("a way of serving");
            let (fleet, _) = played::fleet(serving, choice, Case::Expected);
            assert_eq!(fleet.first_token, FirstToken::Decode);
            assert_eq!(fleet.start.mean, EngineConstants::of(preset.name).usual_start * f64::from(n_starts), "{name}");
            for group in &fleet.groups {
                let nic = serving.cluster.nic_bandwidth.get();
                assert_eq!(group.port_bytes_per_s, Some(nic * PORT_REACHED));
            }
        }
    }
}

#[test]
fn who_gives_the_first_token_may_be_written_and_says_where_the_hand_over_counts() {
    let fleet = |first: &str| {
        let checked = changed(
            "serving/disaggregated",
            &[[
                "run = [\"colocated\", \"colocated-512\", \"split\", \"split-far\", \"split-far-packed\"]",
                "run = [\"colocated\", \"split\"]",
            ]],
            &["trace.requests=400", first],
        );
        let serving = serving(&checked).clone();
        let result = checked.scenario.as_ref().expect("checked").run(&|_| {});
        let row = result.results.iter().find(|row| row.policy == "split").expect("it runs").metrics.clone();
        (serving, row)
    };
    let [prefill, decode] = ["fleet.first_token=prefill", "fleet.first_token=decode"].map(fleet);
    // Without a name an engine's prefill replicas give it, and nobody is on the way.
    let plain = changed("serving/disaggregated", &[], &["trace.requests=400"]);
    assert_eq!(serving(&plain).engine.start.mean, Seconds::ZERO);
    // The whole request takes as long, and the first token comes later.
    assert!((prefill.1["e2e_s.mean"] - decode.1["e2e_s.mean"]).abs() < 1e-9);
    assert!(
        decode.1["ttft_s.mean"] > prefill.1["ttft_s.mean"] + 1e-3,
        "{} {}",
        decode.1["ttft_s.mean"],
        prefill.1["ttft_s.mean"]
    );
    let idle = changed("serving/azure-conv", &[], &["trace.requests=100", "fleet.first_token=decode"]);
    assert!(words(&idle).contains("`fleet.first_token` changes nothing"), "{}", words(&idle));
}

#[test]
fn a_process_that_serves_keeps_as_much_wherever_it_is_asked() {
    let checked = changed("serving/disaggregated", &[], &["trace.requests=100"]);
    assert_eq!(serving(&checked).reserved, hw::Bytes::from_gib(RESERVED_GIB));
}

#[test]
fn constants_are_named_where_a_model_uses_them() {
    let named = |model: &str, set: &[&str]| {
        let pieces = [["name = \"vllm\"\nversion = \"0.11.0\"", "name = \"sglang\""], ["llama-3.1-70b", model]];
        let checked = changed("serving/closed-loop", &pieces, &[&["trace.requests=10"], set].concat());
        serving(&checked).free_parameters.clone()
    };
    let has = |found: &[String], key: &str| found.iter().any(|sentence| sentence.starts_with(&format!("`{key}`")));
    let of_dense = named("llama-3.1-70b", &[]);
    assert!(!has(&of_dense, "engine.host_us_per_intricate_layer") && has(&of_dense, "engine.start_ms"), "{of_dense:?}");
    let of_latent = named("deepseek-v2-lite", &["engine.tp=1"]);
    assert!(has(&of_latent, "engine.host_us_per_intricate_layer"), "{of_latent:?}");
    let of_none = named("llama-3.1-70b", &["engine.start_ms=0"]);
    assert!(!has(&of_none, "engine.start_ms"), "{of_none:?}");
}

/// Replicas that split requests on nodes of eight GPUs.
const SPLIT: &str = r#"
kind = "serving"
[model]
name = "llama-3.1-70b"
weights = "fp8"
[cluster]
gpu = "h100-sxm"
nodes = 1
[trace]
prompt_tokens = 1000
output_tokens = 20
requests = 50
rate_per_s = 0.1
[engine]
name = "vllm"
tp = 2
[policies]
run = ["split"]
[[policies.variant]]
name = "split"
policy = "vllm-v1"
replicas = 4
prefill_replicas = 2
"#;

/// Bytes per second of a port, in GB/s before a share of them is reached, and what is said.
fn port(set: &[&str]) -> (f64, String) {
    let source = diagnostic::Source { path: "split.toml".into(), text: SPLIT.to_owned() };
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let checked = kinds::check(source, std::path::Path::new("."), &Overrides { set, ..Overrides::default() });
    let serving = serving(&checked);
    let choice = serving.plain().find(|plain| plain.name == "split").expect("a way of serving");
    let (fleet, _) = played::fleet(serving, choice, Case::Expected);
    let per_gpu = fleet.groups[0].port_bytes_per_s.expect("a limit") / f64::from(fleet.groups[0].gpus_per_replica);
    (per_gpu / PORT_REACHED / 1e9, words(&checked))
}

#[test]
fn keys_and_values_take_the_link_of_the_node_where_all_replicas_are_in_one() {
    // A slow card changes nothing inside a node, and that is said.
    let (inside, said) = port(&["cluster.nodes=1", "cluster.nic_gb_per_s=0.5"]);
    assert_eq!(inside, port(&["cluster.nodes=1"]).0);
    assert!(said.contains("`cluster.nic_gb_per_s` changes nothing"), "{said}");
    assert!((port(&["cluster.nodes=1", "cluster.intra_node_gb_per_s=100"]).0 - 100.0).abs() < 1e-9);
    // Four replicas of four GPUs are on two nodes.
    let (between, said) = port(&["cluster.nodes=2", "engine.tp=4", "cluster.nic_gb_per_s=0.5"]);
    assert!((between - 0.5).abs() < 1e-9 && inside > 100.0 && !said.contains("S017"), "{between} {inside}: {said}");
}

#[test]
fn bandwidths_that_look_like_bits_or_both_directions_and_limits_like_milliseconds_are_named() {
    let said = |set: &str| words(&changed("serving/closed-loop", &[], &[set]));
    let own = |set: &[&str]| serving(&changed("serving/closed-loop", &[], set)).cluster.clone();
    let (nic, link) = (own(&[]).nic_bandwidth.get() / 1e9, own(&[]).gpu.intra_node_bandwidth.get() / 1e9);
    for (key, own, times) in [("nic_gb_per_s", nic, 8.0), ("intra_node_gb_per_s", link, 2.0)] {
        let at = |times: f64| said(&format!("cluster.{key}={:?}", own * times));
        assert!(
            at(times).contains("S215") && at(times).contains(&format!("is {times} times the link")),
            "{}",
            at(times)
        );
        for other in [0.5, 1.0, 1.5, 3.0, 16.0] {
            assert!(!at(other).contains("S215"), "{other} times {key}");
        }
    }
    for (set, ms) in
        [("slo.ttft_s=500", true), ("slo.tpot_s=50", true), ("slo.ttft_s=60", false), ("slo.tpot_s=0.5", false)]
    {
        assert_eq!(said(set).contains("S215"), ms, "{set}");
    }
}
