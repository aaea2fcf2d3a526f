//! `trace.sampling`: what requests ask of the sampler takes the time that vLLM's authors and ML.ENERGY measured, and says so where it takes none.

use std::collections::BTreeMap;
use std::path::Path;

use input::diagnostic::Source;
use scenario::Overrides;
use skrull_sim::kinds;

/// Qwen3-8B on one H100 with 128 requests in flight, as ML.ENERGY serves chats (ml-energy/benchmark @ c1d6557).
const CHATS: &str = r#"
kind = "serving"
[cluster]
nodes = 1
gpu = "h100-sxm"
gpus_per_node = 1
[model]
name = "Qwen/Qwen3-8B"
[engine]
name = "vllm"
version = "0.11.1"
loop = "async"
max_sequences = 128
[trace]
arrivals = "held"
concurrency = 128
prompt_tokens = 300
output_tokens = [1, 1782]
requests = 400
"#;

/// Metrics, and what is said of the scenario.
fn played(set: &[&str]) -> (BTreeMap<String, f64>, Vec<String>) {
    let source = Source { path: "chats.toml".into(), text: CHATS.to_owned() };
    let set = set.iter().map(|key| (*key).to_owned()).collect();
    let checked = kinds::check(source, Path::new("."), &Overrides { set, ..Overrides::default() });
    let said = checked.findings.iter().map(|finding| finding.what.clone()).collect();
    let metrics = checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone();
    (metrics, said)
}

fn tpot_ms(set: &[&str]) -> f64 {
    played(set).0["tpot_s.mean"] * 1e3
}

#[test]
fn a_sort_of_all_logits_takes_most_of_what_a_measured_run_took_more() {
    // ML.ENERGY's run with temperature, top-k, top-p and a penalty for repetition took 20.7 ms a token in the median. Greedy tokens are predicted at 13.
    let asked = "trace.sampling={ temperature = 0.8, top_k = 20, top_p = 0.95, repetition_penalty = 1.1 }";
    let (greedy, drawn) = (tpot_ms(&[]), tpot_ms(&[asked]));
    assert!(drawn - greedy > 4.0, "{greedy} against {drawn} ms");
    assert!((drawn / 20.7 - 1.0).abs() < 0.15, "{drawn} ms");
}

#[test]
fn what_is_neutral_is_greedy_or_a_plain_draw() {
    let greedy = tpot_ms(&[]);
    assert_eq!(tpot_ms(&["trace.sampling={ temperature = 0 }"]), greedy);
    let plain = tpot_ms(&["trace.sampling={}"]);
    assert_eq!(tpot_ms(&["trace.sampling={ temperature = 0.6, top_k = 0, top_p = 1.0 }"]), plain);
    // Softmax, random numbers and a division move 36 bytes a logit: 128 rows of 151,936 are 0.7 GB, a quarter of a millisecond.
    assert!((0.15..0.5).contains(&(plain - greedy)), "{}", plain - greedy);
}

#[test]
fn flashinfer_draws_for_almost_nothing() {
    // vllm-project/vllm#11394: 47.40 requests a second without top-p, 40.20 with PyTorch's, 47.15 with FlashInfer's.
    let lost = |version: &str| {
        let version = format!("engine.version='{version}'");
        tpot_ms(&[&version, "trace.sampling={ top_p = 0.95 }"]) / tpot_ms(&[&version]) - 1.0
    };
    let (sorted, masked, rejected) = (lost("0.11.1"), lost("0.17.0"), lost("0.21.0"));
    assert!(sorted > 0.15 && sorted < 0.5, "{sorted}");
    assert!(rejected < 0.05, "{rejected}");
    assert!(masked > rejected && masked < sorted, "{masked}");
}

#[test]
fn a_sampler_that_is_not_known_is_named() {
    let (_, said) = played(&["engine.name='trtllm'", "engine.version='1.0.0'", "trace.sampling={ top_k = 20 }"]);
    assert!(said.iter().any(|what| what.contains("`sampling` changes nothing")), "{said:?}");
    let (_, said) = played(&["trace.sampling={ temperature = 0, top_k = 20 }"]);
    assert!(said.iter().any(|what| what.contains("top_k")), "{said:?}");
}
