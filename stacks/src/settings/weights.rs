//! Formats of weights, keys and values in servers' words. What no flag says stands in the checkpoint, which a remark tells.

use engine::model::of_name;
use serde_json::Value;

use super::Settings;

/// Formats of weights that checkpoints have.
const FORMATS: [&str; 12] = [
    "4-bit-experts",
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "fp8-block",
    "int4",
    "int8",
    "int8-weights",
    "mxfp4",
    "mxfp8",
    "nvfp4",
];

/// Formats of a table, or the word of all. A server reads those of weights from the checkpoint; keys and values have a flag.
fn kv_format(value: &Value) -> Option<&str> {
    let is_kernel = value.get("sparsity").is_some() || value.get("products").is_some();
    let format = value.as_str().or_else(|| value.get("format")?.as_str());
    if is_kernel || format.is_some_and(|format| !FORMATS.contains(&format)) {
        return None;
    }
    Some(value.get("kv").and_then(Value::as_str).unwrap_or("bf16"))
}

fn weights(value: &Value, flag: impl Fn(&str) -> Vec<String>) -> Option<Vec<String>> {
    match kv_format(value)? {
        "bf16" => Some(Vec::new()),
        "fp8" => Some(flag("fp8")),
        _ => None,
    }
}

/// What a server finds in the checkpoint, and what it makes of one of 16 bits.
pub(super) fn of_checkpoint(value: &Value, server: &str) -> Option<&'static str> {
    if !is_narrow(value) {
        return None;
    }
    Some(if is_converted(value) && server != "trtllm" {
        "`--quantization fp8` converts weights of 16 bits as they are loaded: leave it out for a checkpoint in fp8."
    } else {
        "Weights are narrow in the prediction: the checkpoint decides it, so name one in that format."
    })
}

/// Parts of weights that have formats, that of all layers first.
const PARTS: [&str; 5] = ["format", "attention", "dense", "experts", "head"];

/// Whether a scenario writes formats of layers.
pub(crate) fn has_layers(settings: &Settings) -> bool {
    let value = settings.get("engine.weights");
    value.is_some_and(|value| value.is_string() || PARTS[..4].iter().any(|part| value.get(part).is_some()))
}

/// Whether a word or one of a table's parts is a format of fewer bits than 16.
fn is_narrow(value: &Value) -> bool {
    let is_word = |value: &Value| value.as_str().is_some_and(|word| !["bf16", "fp16", "fp32"].contains(&word));
    is_word(value) || PARTS.iter().any(|part| value.get(part).is_some_and(is_word))
}

/// Whether all layers are in the format that a server makes of 16 bits.
fn is_converted(value: &Value) -> bool {
    let has_parts = PARTS[1..].iter().any(|part| value.get(part).is_some());
    !has_parts && value.as_str().or_else(|| value.get("format")?.as_str()) == Some("fp8")
}

/// The flag that makes narrow weights of those of 16 bits.
fn converted(value: &Value, mut words: Vec<String>) -> Vec<String> {
    if is_converted(value) {
        words.push("--quantization fp8".to_owned());
    }
    words
}

/// What a server is told of keys and values in 16 bits where the checkpoint has 8 by itself, as those of ModelOpt have. TensorRT-LLM takes none of other words
/// than the checkpoint's (`validate_and_set_kv_cache_quant` of tensorrt_llm/_torch/pyexecutor/model_loader.py): `None`.
pub(super) fn of_wide_keys(settings: &Settings, server: &str) -> Option<Vec<String>> {
    let is_wide = settings.get("engine.weights").and_then(|value| value.get("kv")).is_some_and(|kv| kv == "bf16");
    if !is_wide || has_layers(settings) || !has_narrow_keys(settings) {
        return Some(Vec::new());
    }
    match server {
        "vllm" => Some(vec!["--kv-cache-dtype bfloat16".to_owned()]),
        "sglang" => Some(vec!["--kv-cache-dtype bf16".to_owned()]),
        _ => None,
    }
}

/// A name, or those of a list.
pub(crate) fn names(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .map_or_else(|| value.as_str().into_iter().collect(), |all| all.iter().filter_map(Value::as_str).collect())
}

/// Whether a checkpoint that is named has keys and values of 8 bits.
fn has_narrow_keys(settings: &Settings) -> bool {
    let is_named = |key: &str| key == "model.name" || key.starts_with("fleet.") && key.ends_with(".model");
    let named = settings.iter().filter(|(key, _)| is_named(key)).flat_map(|(_, value)| names(value));
    named.filter_map(of_name).any(|model| model.formats.kv.bytes() == 1)
}

pub(super) fn vllm(value: &Value) -> Option<Vec<String>> {
    weights(value, |format| vec![format!("--kv-cache-dtype {format}")]).map(|words| converted(value, words))
}

pub(super) fn sglang(value: &Value) -> Option<Vec<String>> {
    weights(value, |format| vec![format!("--kv-cache-dtype {format}_e4m3")]).map(|words| converted(value, words))
}

pub(super) fn trtllm(value: &Value) -> Option<Vec<String>> {
    weights(value, |format| vec![format!("kv_cache_config.dtype: {format}")])
}

#[cfg(test)]
mod tests {
    use crate::example::{import_text, on};

    #[test]
    fn keys_in_16_bits_are_read_where_the_checkpoint_has_8() {
        let (narrow, wide) = ("nvidia/Llama-3.3-70B-Instruct-FP8", "meta-llama/Llama-3.3-70B-Instruct");
        let sglang = "python -m sglang.launch_server --tp 8 --model-path";
        let weights = "weights = { kv = \"bf16\" }";
        for (command, part) in [
            (format!("vllm serve {narrow} -tp 8 --kv-cache-dtype bfloat16"), weights),
            (format!("{sglang} {narrow} --kv-cache-dtype bf16"), weights),
            (format!("vllm serve {wide} -tp 8 --kv-cache-dtype bfloat16"), "tp = 8 "),
        ] {
            let found = import_text(&command, &on("h200-sxm")).scenario;
            assert!(found.contains(part), "{command}: {found}");
            assert_eq!(found.contains("kv = "), part == weights, "{command}");
        }
    }
}
