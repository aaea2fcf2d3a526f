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
