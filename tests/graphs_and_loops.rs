//! Captured batches and the host's loop of named engines: what a batch between two captured sizes takes, and what an overlapped loop hides.

use std::collections::BTreeMap;
use std::path::Path;

use input::diagnostic::Source;
use scenario::{self, Overrides};
use skrull_sim::kinds;

/// Metrics of so many users who wait for answers, with these lines behind `[engine]`.
fn of_users(users: u32, engine: &str) -> BTreeMap<String, f64> {
    let text = format!(
        "kind = \"serving\"\n[model]\nname = \"llama-3.1-8b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 1\n\
         [trace]\nprompt_tokens = 100\noutput_tokens = 200\nrequests = 200\narrivals = \"held\"\nconcurrency = {users}\n\
         [engine]\n{engine}\n"
    );
    let source = Source { text, ..scenario::find("serving/formats").expect("shipped").0 };
    let checked = kinds::check(source, Path::new("."), &Overrides::default());
    checked.scenario.expect("a good scenario").run(&|_| {}).results[0].metrics.clone()
}

#[test]
fn a_batch_between_two_captured_sizes_is_padded_to_the_next_or_launched() {
    let tpot = |users, engine: &str| of_users(users, &format!("name = \"trtllm\"\n{engine}"))["tpot_s.mean"];
    // 40 sequences: the engine captures 32 and 64, and pads nothing unless it is told to.
    let [exact, padded] = ["", "graph_padding = true"].map(|engine| tpot(40, engine));
    assert!(exact > 1.05 * padded, "{exact} s exact, {padded} s padded");
    // 32 are captured as they are.
    let [exact, padded] = ["", "graph_padding = true"].map(|engine| tpot(32, engine));
    assert!((exact / padded - 1.0).abs() < 0.02, "{exact} s exact, {padded} s padded");
    // A list says which: 9 run as 64 where nothing lies between, and cost what 64 idle sequences cost at least.
    let [listed, between] = ["graph_sizes = [1, 8, 64]", "graph_sizes = [1, 8, 9, 64]"]
        .map(|list| tpot(9, &format!("{list}\ngraph_padding = true")));
    assert!(listed > between, "{listed} s as 64, {between} s as 9");
}

#[test]
fn turning_the_overlapped_loop_off_makes_no_token_come_sooner() {
    for engine in ["sglang", "trtllm", "vllm"] {
        let [on, off] = ["", "\nloop = \"serial\""].map(|more| of_users(32, &format!("name = \"{engine}\"{more}")));
        let longer_ms = (off["tpot_s.mean"] - on["tpot_s.mean"]) * 1e3;
        // SGLang has 1 / 364.3 − 1 / 498.5 s between both, less what requests wait for an iteration that is composed already; vLLM has its fitted host time.
        assert!(longer_ms > 0.6, "{engine}: {longer_ms} ms");
        assert!(off["output_tokens_per_s"] < on["output_tokens_per_s"], "{engine}");
        // What is written of the host holds instead.
        let written = of_users(32, &format!("name = \"{engine}\"\nloop = \"serial\"\nhost_us_per_step = 5000"));
        assert!(written["tpot_s.mean"] > off["tpot_s.mean"] + 3e-3, "{engine}");
    }
}
