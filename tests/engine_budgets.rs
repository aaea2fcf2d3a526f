//! Tokens of an iteration, captured batches and fleets that change: what is written holds, and what it costs is said.

use std::collections::BTreeMap;
use std::path::Path;

use input::diagnostic::Source;
use scenario::{self, Overrides};
use skrull_sim::kinds;

/// An endpoint on one node, under a held load of prompts of 1,000 tokens and answers of 200.
const HELD: &str =
    "[trace]\nprompt_tokens = 1000\noutput_tokens = 200\nrequests = 192\narrivals = \"held\"\nconcurrency = 64\n";

/// Metrics of the only way of serving, its sentence, and what the reader says.
fn served(gpu: (&str, u32), lines: &str) -> (BTreeMap<String, f64>, String, Vec<String>) {
    let (gpu, n) = gpu;
    let text = format!("kind = \"serving\"\n{lines}\n[cluster]\ngpu = \"{gpu}\"\nnodes = 1\ngpus_per_node = {n}\n");
    let source = Source { text, ..scenario::find("serving/formats").expect("shipped").0 };
    let checked = kinds::check(source, Path::new("."), &Overrides::default());
    let said = checked.findings.iter().map(|finding| finding.what.clone()).collect();
    let Some(scenario) = checked.scenario else { return (BTreeMap::new(), String::new(), said) };
    let result = scenario.run(&|_| {}).results.remove(0);
    (result.metrics, result.why, said)
}

/// Mean time to the first token of Llama 3.1 8B on one H100, milliseconds.
fn ttft_ms(engine: &str) -> f64 {
    let lines = format!("[model]\nname = \"llama-3.1-8b\"\n{HELD}[engine]\n{engine}");
    served(("h100-sxm", 1), &lines).0["ttft_s.mean"] * 1e3
}

#[test]
fn whole_prompts_share_an_iteration_of_as_many_tokens_as_are_written() {
    let at = |tokens: u32| ttft_ms(&format!("name = \"trtllm\"\nmax_tokens = {tokens}"));
    let [one, few, all] = [2048, 8192, 65_536].map(at);
    // Prompts that come together wait for all that share their iteration.
    assert!(one < 0.8 * few && few < 0.8 * all, "{one} {few} {all}");
    // Nothing written is what TensorRT-LLM takes by itself.
    assert_eq!(ttft_ms("name = \"trtllm\"").to_bits(), few.to_bits());
}

#[test]
fn a_prompt_that_no_iteration_holds_is_refused_and_named() {
    let long = HELD.replace("1000", "9000");
    let lines = |more: &str| format!("[model]\nname = \"llama-3.1-8b\"\n{long}[engine]\nname = \"trtllm\"\n{more}");
    let (metrics, _, said) = served(("h100-sxm", 1), &lines(""));
    assert!(metrics.is_empty() && said.iter().any(|what| what.contains("8192 tokens of an iteration")), "{said:?}");
    assert_eq!(served(("h100-sxm", 1), &lines("max_tokens = 16384")).0["n_refused"], 0.0);
}

#[test]
fn a_chunk_is_as_small_as_it_is_written_however_many_sequences_decode() {
    let at = |tokens: u32| ttft_ms(&format!("name = \"sglang\"\nmax_tokens = {tokens}"));
    assert!(at(256) > 1.2 * at(1024), "chunks of 256 tokens take more iterations");
}

#[test]
fn ranks_of_attention_share_a_chunk_that_nobody_wrote() {
    let at = |more: &str| {
        let lines =
            format!("[model]\nname = \"deepseek-ai/DeepSeek-R1\"\n{HELD}[engine]\nname = \"sglang\"\nep = 8\n{more}");
        served(("h200-sxm", 8), &lines).0["ttft_s.mean"]
    };
    // 8,192 tokens on such a card, over eight ranks.
    assert_eq!(at("").to_bits(), at("max_tokens = 1024").to_bits());
}

#[test]
fn nothing_holds_more_than_its_card() {
    for (gpu, gib) in [("rtx-4090", 24.0), ("l40s", 48.0), ("h100-sxm", 80.0)] {
        for engine in ["trtllm", "vllm", "sglang"] {
            let lines = format!("[model]\nname = \"llama-3.1-8b\"\n{HELD}[engine]\nname = \"{engine}\"");
            let peak = served((gpu, 1), &lines).0["peak_memory_bytes"] / f64::from(1 << 30);
            assert!(peak <= gib, "{engine} takes {peak} GiB of {gpu}");
        }
    }
}

#[test]
fn batches_beyond_the_largest_graph_are_named() {
    let at = |more: &str| {
        let lines = format!(
            "[model]\nname = \"qwen3-235b-a22b\"\nweights = \"fp8\"\n{}[engine]\nname = \"trtllm\"\ntp = 8\n{more}",
            HELD.replace("concurrency = 64", "concurrency = 160")
        );
        served(("h200-sxm", 8), &lines)
    };
    let (few, why, _) = at("");
    assert!(few["launch_wait_ratio"] > 0.5 && why.contains("`engine.graph_max` captures larger batches"), "{why}");
    // TensorRT-LLM pads nothing by itself: with 256 captured, 160 still run without a graph.
    let (exact, why, _) = at("graph_max = 256");
    assert!(exact["launch_wait_ratio"] > 0.5 && why.contains("`engine.graph_padding` fills up those between"), "{why}");
    let (all, why, _) = at("graph_max = 256\ngraph_padding = true");
    assert!(!all.contains_key("launch_wait_ratio") && !why.contains("graph_max"), "{why}");
    assert!(all["tpot_s.mean"] < few["tpot_s.mean"]);
}

#[test]
fn tokens_of_a_gpu_are_over_those_that_are_paid() {
    let fleet = |scaling: &str| {
        let lines = format!(
            "[model]\nname = \"llama-3.1-8b\"\n[trace]\nprompt_tokens = 1000\noutput_tokens = 200\nrequests = 300\narrivals = \"poisson\"\n\
             rate_per_s = 2.0\n[engine]\nname = \"vllm\"\n[fleet]\nrouter = \"least-loaded\"\nusd_per_gpu_hour = 1.0\n\
             [[fleet.group]]\ngpu = \"h100-sxm\"\nreplicas = 6\n{scaling}"
        );
        served(("h100-sxm", 6), &lines).0
    };
    let auto = "scaling = { min = 1, first = 1, target = 8, interval_s = 15, start_up_s = 30 }";
    let (fixed, auto) = (fleet(""), fleet(auto));
    for metrics in [&fixed, &auto] {
        let gpu_s = metrics["replica_hours"] * 3600.0;
        let tokens = metrics["output_tokens_per_s"] * metrics["makespan_s"];
        let per_gpu = metrics["output_tokens_per_s_per_gpu"];
        assert!((per_gpu * gpu_s / tokens - 1.0).abs() < 1e-6, "{per_gpu}");
    }
    assert!(auto["output_tokens_per_s_per_gpu"] > fixed["output_tokens_per_s_per_gpu"]);
}

#[test]
fn what_is_served_within_limits_that_all_keep_is_what_is_served() {
    let lines = "[model]\nname = \"llama-3.1-8b\"\n[trace]\nprompt_tokens = 1000\noutput_tokens = 200\nrequests = 300\narrivals = \"poisson\"\n\
                 rate_per_s = 2.0\n[engine]\nname = \"vllm\"\n[slo]\nttft_s = 60.0\nwarm_up_s = 30.0\n";
    let (metrics, ..) = served(("h100-sxm", 1), lines);
    assert_eq!(metrics["slo_attainment_ratio"], 1.0);
    assert_eq!(metrics["goodput_requests_per_s"].to_bits(), metrics["requests_per_s"].to_bits());
}

#[test]
fn launches_of_layers_that_no_model_has_are_named() {
    let said = |model: &str| {
        let lines = format!(
            "[model]\nname = \"{model}\"\n{HELD}[engine]\nname = \"sglang\"\ntp = 8\nhost_us_per_intricate_layer = 100"
        );
        served(("b200", 8), &lines)
            .2
            .iter()
            .any(|what| what.contains("`engine.host_us_per_intricate_layer` changes nothing"))
    };
    assert!(said("llama-3.1-8b") && !said("deepseek-ai/DeepSeek-V3"));
}

#[test]
fn eight_bit_floats_are_weights_alone_where_a_card_multiplies_none() {
    let on = |model: &str, engine: &str| {
        let lines = format!("[model]\n{model}\n{HELD}[engine]\nname = \"{engine}\"");
        served(("a100-sxm-80g", 1), &lines)
    };
    let dense = |weights: &str, engine: &str| on(&format!("name = \"llama-3.1-8b\"\nweights = \"{weights}\""), engine);
    let marlin = |said: &[String]| said.iter().any(|what| what.contains("keeps weights alone in 8 bits"));
    for engine in ["vllm", "sglang"] {
        let [(float, _, said), (whole, _, silent)] = ["fp8", "int8-weights"].map(|weights| dense(weights, engine));
        assert_eq!(float, whole, "{engine}");
        assert!(marlin(&said) && !marlin(&silent), "{said:?} {silent:?}");
    }
    // Marlin's kernels are vLLM's and, outside of experts, SGLang's.
    let refused = |(_, _, said): (BTreeMap<String, f64>, String, Vec<String>)| {
        said.iter().any(|what| what.contains("multiplies no fp8"))
    };
    let experts = "name = \"qwen3-30b-a3b\"\nweights = \"fp8\"";
    assert!(refused(dense("fp8", "trtllm")) && refused(on(experts, "sglang")));
    assert!(!refused(on(experts, "vllm")));
}

#[test]
fn a_share_of_memory_is_counted_as_the_named_engine_counts_it() {
    let peak = |engine: &str| {
        // Sixteen requests of 1,200 tokens lie in a fifth of the keys and values that there is room for.
        let held = HELD.replace("concurrency = 64", "concurrency = 16");
        let lines = format!("[model]\nname = \"llama-3.3-70b\"\n{held}[engine]\n{engine}\ntp = 2");
        served(("h100-sxm", 2), &lines).0.get("kv_peak_ratio").copied()
    };
    // Nine tenths of what is free is TensorRT-LLM's own rule, so that to write it changes nothing.
    assert_eq!(peak("name = \"trtllm\"\nmemory_ratio = 0.9"), peak("name = \"trtllm\""));
    // Half of what is free is room; half of the device is less than the weights take.
    assert!(peak("name = \"trtllm\"\nmemory_ratio = 0.5") > peak("name = \"trtllm\""));
    assert_eq!(peak("name = \"vllm\"\nmemory_ratio = 0.5"), None);
}

#[test]
fn vllm_does_not_start_where_no_sequence_of_its_context_fits() {
    let said = |engine: &str| {
        let lines = format!("[model]\nname = \"llama-3.1-8b\"\n{HELD}[engine]\n{engine}");
        let (metrics, _, said) = served(("l4", 1), &lines);
        assert!(!metrics.is_empty(), "{said:?}");
        said.iter().any(|what| what.starts_with("vLLM does not start so"))
    };
    // 131,072 positions of 128 KiB are 16 GiB, beside 15 of weights on 24.
    assert!(said("name = \"vllm\""));
    assert!(!said("name = \"vllm\"\nmax_context = 16384"));
    // From 0.5.20 on its larger chunks leave no room beside the weights on such a card.
    assert!(!said("name = \"sglang\"\nversion = \"0.5.19\""));
    // A server that takes what fits starts, and serves the same requests as one that is taken to start.
    assert!(!said("name = \"vllm\"\nmax_context = \"fits\""));
    let metrics =
        |engine: &str| served(("l4", 1), &format!("[model]\nname = \"llama-3.1-8b\"\n{HELD}[engine]\n{engine}")).0;
    assert_eq!(metrics("name = \"vllm\"\nmax_context = \"fits\""), metrics("name = \"vllm\""));
}

/// SGLang captures iterations with prompts, which else take as long as their launches, and keeps memory for those graphs.
#[test]
fn graphs_of_prompts_are_turned_off_by_a_key_of_their_own() {
    let at = |engine: &str| {
        let short = HELD.replace("1000", "32").replace("concurrency = 64", "concurrency = 1");
        let lines = format!(
            "[model]\nname = \"qwen3-0.6b\"\n{short}[engine]\nname = \"sglang\"\nhost_us_per_layer = 1000\n{engine}"
        );
        let metrics = served(("h100-sxm", 1), &lines).0;
        [metrics["ttft_s.mean"], metrics["tpot_s.mean"], metrics["kv_tokens"]]
    };
    let [usual, without, small] = ["", "prompt_graph_max = 0", "prompt_graph_max = 16"].map(at);
    // 28 layers of a millisecond each, in the place of an iteration of less than two.
    assert!(without[0] > usual[0] + 0.024 && without[0] < usual[0] + 0.028, "{without:?} {usual:?}");
    assert!((without[1] / usual[1] - 1.0).abs() < 0.01, "{without:?} {usual:?}");
    // 58 sizes of 8 MiB, and the first four of them, at 112 KiB a token. The share is of what is free, which is a little less than the board has.
    for (other, n_sizes) in [(usual, 58.0), (small, 4.0)] {
        let ratio = (without[2] - other[2]) / (n_sizes * 8.0 * 1024.0 / 112.0);
        assert!((0.95..1.0).contains(&ratio), "{ratio} {without:?} {other:?}");
    }
    assert_eq!(small[0].to_bits(), without[0].to_bits(), "a prompt of 32 tokens is in none of them");
    // Without graphs of batches that decode every token waits for its launches.
    assert!(at("graph_max = 0")[1] > 1.5 * usual[1]);
}

#[test]
fn whole_prompts_that_leave_no_room_beside_a_decode_are_told_of() {
    let said = |tokens: u32, policy: &str| {
        let lines = format!(
            "[model]\nname = \"llama-3.1-8b\"\n[trace]\nprompt_tokens = 2048\noutput_tokens = 8\nrequests = 12\narrivals = \"together\"\n\
             [engine]\nname = \"trtllm\"\nmax_tokens = {tokens}\n{policy}"
        );
        let (metrics, _, said) = served(("h100-sxm", 1), &lines);
        let is_told = said.iter().any(|what| what.contains("one sequence is served at a time"));
        (is_told, metrics.get("ttft_s.mean").copied())
    };
    let (one_by_one, beside) = (said(2048, ""), said(2049, ""));
    assert!(one_by_one.0 && !beside.0, "a prompt beside one token");
    assert!(one_by_one.1 > beside.1);
    assert!(!said(2048, "[policies]\nrun = [\"sarathi\"]\n").0, "prompts that are cut fit");
}

#[test]
fn activations_that_leave_no_room_are_named_with_tokens_that_fit() {
    let lines = |tokens: u32| {
        format!("[model]\nname = \"llama-3.1-8b\"\n{HELD}[engine]\nname = \"vllm\"\nmax_tokens = {tokens}\n")
    };
    let (metrics, what, _) = served(("h100-sxm", 1), &lines(1_048_576));
    assert!(metrics.is_empty() && what.contains("activations of `max_tokens` = 1048576"), "{what}");
    let fitting = what.rsplit_once("`max_tokens = ").and_then(|(_, rest)| rest.split_once('`')).expect("a number").0;
    assert!(!what.contains("larger GPUs"), "{what}");
    assert!(!served(("h100-sxm", 1), &lines(fitting.parse().expect("a number"))).0.is_empty(), "{what}");
}

/// 64 requests of 1,000 and 200 tokens need 38 blocks of 32 each. With 400 blocks ten run at a time where their outputs are kept room for, and a few more where not.
#[test]
fn trtllm_keeps_room_for_whole_outputs_unless_it_is_told_otherwise() {
    let run = |engine: &str| {
        let lines = format!("[model]\nname = \"llama-3.1-8b\"\n{HELD}[engine]\n{engine}\nkv_blocks = 400\n");
        served(("h100-sxm", 1), &lines)
    };
    let kept = run("name = \"trtllm\"");
    let said = run("name = \"trtllm\"\ncapacity_policy = \"guaranteed_no_evict\"");
    let as_needed = run("name = \"trtllm\"\ncapacity_policy = \"max_utilization\"");
    assert_eq!((kept.0["n_preempted"], &kept.0), (0.0, &said.0));
    assert!(as_needed.0["n_preempted"] > 0.0);
    // Other engines have no such choice.
    let idle = run("name = \"vllm\"\nblock_tokens = 32\ncapacity_policy = \"guaranteed_no_evict\"");
    assert!(idle.2.iter().any(|what| what.contains("`engine.capacity_policy` changes nothing")), "{:?}", idle.2);
    assert_eq!(idle.0, run("name = \"vllm\"\nblock_tokens = 32").0);
}

/// NVFP4 weights are a quarter of those in 16 bits and something for scales, and decoding one sequence reads them.
#[test]
fn workstation_cards_of_blackwell_multiply_four_bits() {
    for card in ["rtx-pro-6000", "rtx-5090"] {
        let tpot = |weights: &str| {
            let lines = format!(
                "[model]\nname = \"llama-3.1-8b\"\nweights = \"{weights}\"\n[trace]\nprompt_tokens = 64\noutput_tokens = 64\nrequests = 1\n\
                 arrivals = \"together\"\n[engine]\nname = \"vllm\"\n"
            );
            let (metrics, _, said) = served((card, 1), &lines);
            *metrics.get("tpot_s.mean").unwrap_or_else(|| panic!("{card}: {said:?}"))
        };
        let ratio = tpot("nvfp4") / tpot("bf16");
        assert!((0.28..0.7).contains(&ratio), "{card}: {ratio}");
    }
}

#[test]
fn a_checkpoint_by_its_path_keeps_keys_and_values_as_it_says() {
    let peak = |name: &str| {
        let lines = format!("[model]\nname = \"{name}\"\n{HELD}[engine]\nname = \"trtllm\"\n");
        served(("h100-sxm", 1), &lines).0["kv_peak_ratio"]
    };
    let (bare, said) = (peak("RedHatAI/Llama-3.1-8B-Instruct-FP8"), peak("nvidia/Llama-3.1-8B-Instruct-FP8"));
    assert!((bare / said - 2.0).abs() < 0.1, "{bare} {said}");
}
