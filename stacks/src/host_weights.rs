//! Weights of layers in the memory of the host, as options of servers say it.
//!
//! Source: vllm-project/vllm `vllm/config/offload.py` and `vllm/model_executor/offloader/`; sgl-project/sglang `srt/server_args.py` and `srt/utils/offloader.py`, whose
//! layers give up the experts alone (`models/deepseek_v2.py`).

use serde_json::Value;

use crate::flags::{self, Flags};

/// The option of both engines with a size in GiB of each GPU.
const SIZE: &str = "cpu-offload-gb";
/// The options of both engines with layers: of a group, of them on the host, and ahead.
const LAYERS: [&str; 3] = ["offload-group-size", "offload-num-in-group", "offload-prefetch-step"];
/// Options of vLLM that choose parameters by name, of a size and of layers.
const PARAMETERS: [&str; 2] = ["cpu-offload-params", "offload-params"];
/// Segments of names that experts alone have.
const EXPERTS: [&str; 3] = ["experts", "w13_weight", "w2_weight"];
/// Most layers of a group.
const LAYERS_MAX: u64 = 1024;

/// The value of `host_weights`, and the option that gives it.
pub(crate) type Found = Option<(String, &'static str)>;

/// What vLLM's options say: a size is read in place.
pub(crate) fn of_vllm(flags: &mut Flags<'_>) -> Found {
    if let Some(layers) = layers(flags) {
        let part = part(flags, PARAMETERS[1]);
        return Some((format!("{{ {layers}{part} }}"), "--offload-group-size"));
    }
    let gib = size(flags)?;
    let part = part(flags, PARAMETERS[0]);
    Some((format!("{{ gib = {gib}{part} }}"), "--cpu-offload-gb"))
}

/// What SGLang's say: a size is copied.
pub(crate) fn of_sglang(flags: &mut Flags<'_>) -> Found {
    if let Some(layers) = layers(flags) {
        return Some((format!("{{ {layers}, part = \"experts\" }}"), "--offload-group-size"));
    }
    Some((format!("{{ gib = {}, way = \"copied\" }}", size(flags)?), "--cpu-offload-gb"))
}

/// GiB of each GPU, where there are some.
fn size(flags: &mut Flags<'_>) -> Option<f64> {
    flags.number(SIZE).filter(|gib| *gib > 0.0)
}

/// Keys of layers that are copied ahead, where there are some.
fn layers(flags: &mut Flags<'_>) -> Option<String> {
    let [group, inside, ahead] = LAYERS;
    // SGLang says -1 where there are none.
    let of = flags.number(group).filter(|of| *of > 0.0)?;
    let n = flags.count(inside, 1..=LAYERS_MAX).unwrap_or(1);
    let step = flags.count(ahead, 1..=LAYERS_MAX).unwrap_or(1);
    Some(format!("layers = {n}, of = {of}, ahead = {step}"))
}

/// Experts, where names say so; other parameters are not modelled.
fn part(flags: &mut Flags<'_>, name: &'static str) -> &'static str {
    let Some(text) = flags.text(name) else { return "" };
    let is_of_experts = |word: &str| word.split('.').any(|segment| EXPERTS.contains(&segment));
    if flags::words(&text).all(is_of_experts) {
        return ", part = \"experts\"";
    }
    flags.not_modelled(name, "all parameters of a layer are taken, or its experts with `experts`");
    ""
}

/// Options of vLLM.
pub(crate) fn vllm(value: &Value) -> Option<Vec<String>> {
    let is_of_experts = is_of_experts(value);
    let chosen = |option: &str| if is_of_experts { vec![format!("--{option} experts")] } else { Vec::new() };
    if let Some(layers) = told_layers(value) {
        return Some([vec![layers], chosen(PARAMETERS[1])].concat());
    }
    match gib(value)? {
        0.0 => Some(Vec::new()),
        gib if value.get("way").is_none_or(|way| way == "in-place") => {
            Some([vec![format!("--{SIZE} {gib}")], chosen(PARAMETERS[0])].concat())
        }
        _ => None,
    }
}

/// Options of SGLang.
pub(crate) fn sglang(value: &Value) -> Option<Vec<String>> {
    if let Some(layers) = told_layers(value) {
        return is_of_experts(value).then(|| vec![layers]);
    }
    match gib(value)? {
        0.0 => Some(Vec::new()),
        gib => {
            let is_copied = value.get("way").is_some_and(|way| way == "copied");
            (is_copied && !is_of_experts(value)).then(|| vec![format!("--{SIZE} {gib}")])
        }
    }
}

fn is_of_experts(value: &Value) -> bool {
    value.get("part").is_some_and(|part| part == "experts")
}

fn gib(value: &Value) -> Option<f64> {
    value.get("gib")?.as_f64()
}

fn told_layers(value: &Value) -> Option<String> {
    let n = value.get("layers")?.as_u64()?;
    let [of, ahead] =
        [("of", n), ("ahead", 1)].map(|(key, usual)| value.get(key).and_then(Value::as_u64).unwrap_or(usual));
    let [group, inside, step] = LAYERS;
    Some(format!("--{group} {of} --{inside} {n} --{step} {ahead}"))
}

#[cfg(test)]
mod tests {
    use input::diagnostic::Code;

    use super::*;
    use crate::example::{import_text, on};

    fn found(text: &str) -> (String, Vec<Code>) {
        let found = import_text(text, &on("h100-sxm"));
        (found.scenario, found.findings.iter().map(|one| one.code).filter(|code| *code != Code::MissingFlag).collect())
    }

    #[test]
    fn options_of_both_engines_are_keys() {
        for (options, line) in [
            ("--cpu-offload-gb 20", "host_weights = { gib = 20 }"),
            (
                "--cpu-offload-gb 20 --cpu-offload-params w13_weight w2_weight",
                "host_weights = { gib = 20, part = \"experts\" }",
            ),
            ("--offload-group-size 8 --offload-num-in-group 2", "host_weights = { layers = 2, of = 8, ahead = 1 }"),
        ] {
            let (scenario, codes) = found(&format!("vllm serve Qwen/Qwen3-30B-A3B {options}\n"));
            assert!(scenario.contains(line) && codes.is_empty(), "{codes:?} {scenario}");
        }
        let (scenario, codes) =
            found("vllm serve Qwen/Qwen3-30B-A3B --cpu-offload-gb 20 --cpu-offload-params qkv_proj\n");
        assert!(
            scenario.contains("host_weights = { gib = 20 }") && codes == [Code::NotModelled],
            "{codes:?} {scenario}"
        );
        let sglang = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B";
        for (options, line) in [
            ("--cpu-offload-gb 20", "host_weights = { gib = 20, way = \"copied\" }"),
            (
                "--offload-group-size 4 --offload-num-in-group 1 --offload-prefetch-step 2",
                "host_weights = { layers = 1, of = 4, ahead = 2, part = \"experts\" }",
            ),
        ] {
            let (scenario, codes) = found(&format!("{sglang} {options}\n"));
            assert!(scenario.contains(line) && codes.is_empty(), "{codes:?} {scenario}");
        }
        assert!(!found(&format!("{sglang} --offload-group-size -1\n")).0.contains("host_weights"));
    }

    #[test]
    fn keys_are_options_of_the_engine_that_has_them() {
        let of = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let size = of("{\"gib\": 20.0, \"part\": \"experts\"}");
        assert_eq!(
            vllm(&size),
            Some(vec!["--cpu-offload-gb 20".to_owned(), "--cpu-offload-params experts".to_owned()])
        );
        assert_eq!(sglang(&size), None);
        let copied = of("{\"gib\": 20.0, \"way\": \"copied\"}");
        assert_eq!((vllm(&copied), sglang(&copied)), (None, Some(vec!["--cpu-offload-gb 20".to_owned()])));
        let layers = of("{\"layers\": 2, \"of\": 8}");
        let told = "--offload-group-size 8 --offload-num-in-group 2 --offload-prefetch-step 1".to_owned();
        assert_eq!((vllm(&layers), sglang(&layers)), (Some(vec![told]), None));
    }
}
