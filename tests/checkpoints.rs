//! Checkpoints by their paths on a hub: a path is a model of the catalogue in the formats that are published.

use engine::formats::Formats;
use hw::{Dtype, Format};

/// Formats with which the only way of serving is played. `model` and `more` are lines of the scenario.
fn played(model: &str, more: &str) -> Formats {
    let text = format!(
        "kind = \"serving\"\n[model]\n{model}\n[cluster]\ngpu = \"b200\"\nnodes = 1\ngpus_per_node = 8\n\
         [trace]\nlengths = \"azure-conv\"\nrequests = 10\narrivals = \"poisson\"\nrate_per_s = 1.0\n\
         [engine]\nname = \"vllm\"\ntp = 8\n{more}\n"
    );
    let serving = super::serving_of(text);
    serving.deployment_of(&serving.choices[0], serving.groups_of(&serving.choices[0])[0]).formats
}

#[test]
fn a_path_is_a_name_with_weights() {
    for (path, name, weights) in [
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3", "\"fp8-block\""),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "{ format = \"bf16\", experts = \"mxfp4\" }"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "llama-3.1-70b", "\"int8\""),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b", "\"bf16\""),
    ] {
        let by_name = played(&format!("name = \"{name}\"\nweights = {weights}"), "");
        assert_eq!(played(&format!("name = \"{path}\""), ""), by_name, "{path}");
    }
}

#[test]
fn what_is_written_holds_and_the_rest_is_as_published() {
    let published = played("name = \"nvidia/DeepSeek-R1-0528-FP4-v2\"", "");
    assert_eq!(
        (published.attention, published.behind(), published.experts),
        (Format::Bf16, Format::Nvfp4, Format::Nvfp4)
    );
    let kept = played("name = \"nvidia/DeepSeek-R1-0528-FP4-v2\"\nweights = { kv = \"fp8\" }", "");
    assert_eq!(kept, Formats { kv: Dtype::Fp8, ..published });
    let whole = played("name = \"nvidia/DeepSeek-R1-0528-FP4-v2\"\nweights = \"bf16\"", "");
    assert_eq!(whole, Formats::of(Dtype::Bf16));
}

#[test]
fn a_group_has_the_formats_of_its_own_checkpoint() {
    let group = "[[fleet.group]]\nname = \"narrow\"\nmodel = \"Qwen/Qwen3-32B-FP8\"\n";
    assert_eq!(played("name = \"qwen3-32b\"", group), Formats::weights(Format::Fp8Block, Dtype::Bf16));
}

/// Peak memory of Llama 3 70B beside a draft model, and what the reader says.
fn drafted(draft: &str) -> (f64, Vec<String>) {
    let text = format!(
        "kind = \"serving\"\n[model]\nname = \"llama-3-70b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n\
         [trace]\nprompt_tokens = 100\noutput_tokens = 20\nrequests = 8\narrivals = \"held\"\nconcurrency = 8\n\
         [engine]\nname = \"vllm\"\ntp = 8\n\
         speculation = {{ draft_tokens = 3, acceptance = 0.7, draft_model = \"{draft}\" }}\n"
    );
    let (found, said) = said(text);
    (found.map_or(f64::NAN, |metrics| metrics["peak_memory_bytes"]), said)
}

/// Metrics of the first policy of a scenario, and what its reader says.
fn said(text: String) -> (Option<std::collections::BTreeMap<String, f64>>, Vec<String>) {
    let source = input::diagnostic::Source { text, ..scenario::find("quickstart").expect("shipped").0 };
    let overrides = scenario::Overrides::default();
    let checked = skrull_sim::kinds::check(source, std::path::Path::new("."), &overrides);
    let said = checked.findings.iter().map(|finding| finding.what.clone()).collect();
    let found = checked.scenario.map(|scenario| scenario.run(&|_| {}).results.remove(0).metrics);
    (found, said)
}

#[test]
fn a_draft_model_takes_the_memory_of_its_own_formats() {
    let (whole, _) = drafted("llama-3-8b");
    let (narrow, _) = drafted("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4");
    // Seven billion parameters in layers keep 4.16 of 16 bits, over eight GPUs; keys and values take what is left of the memory, block by block.
    let saved = 6.98e9 * (16.0 - 4.16) / 8.0 / 8.0;
    assert!(((whole - narrow) / saved - 1.0).abs() < 0.05, "{whole} {narrow} {saved}");
    let (_, said) = drafted("qwen2.5-0.5b");
    assert!(said.iter().any(|what| what.contains("has 151936 tokens")), "{said:?}");
}

#[test]
fn formats_that_a_step_of_training_does_not_take_over_are_said() {
    let of = |name: &str| {
        let text = format!(
            "kind = \"training\"\n[model]\nname = \"{name}\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n\
             [parallel]\ndp = 8\nzero = 3\n[training]\nbatch_size = 8\n[workload]\ntokens = 1024\n[policies]\nrun = [\"megatron\"]\n"
        );
        said(text).1
    };
    let narrow = of("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8");
    assert!(narrow.iter().any(|what| what.contains("change nothing here")), "{narrow:?}");
    assert!(!of("llama-3.1-8b").iter().any(|what| what.contains("change nothing here")));
    let seeing = of("qwen2.5-vl-7b");
    assert!(seeing.iter().any(|what| what.contains("vision encoder is left out")), "{seeing:?}");
}

#[test]
fn heads_of_keys_and_values_are_dealt_out_or_kept_several_times() {
    let of = |tp: u32| {
        let text = format!(
            "kind = \"serving\"\n[model]\nname = \"phi-4\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 8\n\
             [trace]\nprompt_tokens = 100\noutput_tokens = 2\nrequests = 8\narrivals = \"held\"\nconcurrency = 8\n\
             [engine]\nname = \"vllm\"\ntp = {tp}\n"
        );
        said(text)
    };
    // Phi-4 has 40 heads and 10 of keys and values.
    assert!(of(2).0.is_some());
    let (found, said) = of(4);
    assert!(found.is_none() && said.iter().any(|what| what.contains("neither divides the 10 heads")), "{said:?}");
}

#[test]
fn adapters_stand_on_attention_and_on_experts_that_are_alone() {
    let of = |modules: &str| {
        let text = format!(
            "kind = \"serving\"\n[model]\nname = \"qwen3-30b-a3b\"\n[cluster]\ngpu = \"h100-sxm\"\nnodes = 1\ngpus_per_node = 1\n\
             [trace]\nprompt_tokens = 100\noutput_tokens = 4\nrequests = 8\narrivals = \"held\"\nconcurrency = 8\n\
             [engine]\nname = \"vllm\"\nadapters = {{ slots = 4, rank_max = 16, modules = \"{modules}\" }}\n"
        );
        said(text)
    };
    for modules in ["attention", "all"] {
        let (found, said) = of(modules);
        assert!(found.is_some(), "{modules}: {said:?}");
    }
}
