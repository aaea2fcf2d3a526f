//! Batches that servers capture as CUDA graphs, as flags.

use serde_json::Value;

/// `graph_max` under vLLM.
pub(super) fn most_vllm(value: &Value) -> Option<Vec<String>> {
    let most = value.as_u64()?;
    Some(vec![if most == 0 { "--enforce-eager".to_owned() } else { format!("--max-cudagraph-capture-size {most}") }])
}

/// The same under SGLang.
pub(super) fn most_sglang(value: &Value) -> Option<Vec<String>> {
    let most = value.as_u64()?;
    Some(vec![if most == 0 {
        "--disable-decode-cuda-graph".to_owned()
    } else {
        format!("--cuda-graph-max-bs-decode {most}")
    }])
}

/// The same under TensorRT-LLM.
pub(super) fn most_trtllm(value: &Value) -> Option<Vec<String>> {
    let most = value.as_u64()?;
    let none = || "cuda_graph_config: null".to_owned();
    Some(vec![if most == 0 { none() } else { format!("cuda_graph_config.max_batch_size: {most}") }])
}

/// `graph_sizes` under vLLM.
pub(super) fn sizes_vllm(value: &Value) -> Option<Vec<String>> {
    Some(vec![format!("--cudagraph-capture-sizes {}", spaced(value)?)])
}

/// The same under SGLang.
pub(super) fn sizes_sglang(value: &Value) -> Option<Vec<String>> {
    Some(vec![format!("--cuda-graph-bs-decode {}", spaced(value)?)])
}

/// The same under TensorRT-LLM.
pub(super) fn sizes_trtllm(value: &Value) -> Option<Vec<String>> {
    Some(vec![format!("cuda_graph_config.batch_sizes: [{}]", spaced(value)?.replace(' ', ", "))])
}

/// `graph_padding` under vLLM, which always pads.
pub(super) fn padding_vllm(value: &Value) -> Option<Vec<String>> {
    value.as_bool()?.then(Vec::new)
}

/// The same under SGLang, which does unless it is told not to.
pub(super) fn padding_sglang(value: &Value) -> Option<Vec<String>> {
    let not = || "--disable-cuda-graph-padding".to_owned();
    Some((!value.as_bool()?).then(not).into_iter().collect())
}

/// `prompt_graph_max` under vLLM: keys of one option come one by one, so that it has others beside.
pub(super) fn prompts_vllm(value: &Value) -> Option<Vec<String>> {
    (value.as_u64()? == 0).then(|| vec!["--compilation-config.cudagraph_mode FULL_DECODE_ONLY".to_owned()])
}

/// The same under SGLang.
pub(super) fn prompts_sglang(value: &Value) -> Option<Vec<String>> {
    let most = value.as_u64()?;
    let none = || "--disable-prefill-cuda-graph".to_owned();
    Some(vec![if most == 0 { none() } else { format!("--cuda-graph-max-bs-prefill {most}") }])
}

/// Numbers of a list with spaces between them.
fn spaced(value: &Value) -> Option<String> {
    let numbers: Option<Vec<String>> = value.as_array()?.iter().map(|n| n.as_u64().map(|n| n.to_string())).collect();
    Some(numbers?.join(" "))
}
