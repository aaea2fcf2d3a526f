//! Which library computes experts, by the words of servers: `--moe-backend` and variables of vLLM, `--moe-runner-backend` of `SGLang`, `moe_config.backend` of
//! TensorRT-LLM. A word without a kernel of ours is told.

use engine::cost::experts::kernel::ExpertKernel;
use hw::Capability;
use input::diagnostic::{Code, Finding};
use serde_json::Value;

use crate::Machine;
use crate::environment::{self, Variable};
use crate::flags::Flags;

/// Words of a server, the one that is written first: vLLM's and `SGLang`'s in lower case with `_`, TensorRT-LLM's in capitals.
type Words = [(&'static str, ExpertKernel)];

/// vllm/config/kernel.py of 0.17; its own `cutlass` is another kernel than `FlashInfer`'s.
const VLLM: [(&str, ExpertKernel); 5] = [
    ("triton", ExpertKernel::Triton),
    ("flashinfer_cutlass", ExpertKernel::Cutlass),
    ("flashinfer_trtllm", ExpertKernel::Trtllm),
    ("deep_gemm", ExpertKernel::DeepGemm),
    ("marlin", ExpertKernel::Marlin),
];

/// `MOE_RUNNER_BACKEND_CHOICES` of sglang/srt/server_args.py, 0.5.9. `triton_kernel` is OpenAI's, which it takes for MXFP4 by itself; `flashinfer_mxfp4` runs the
/// kernels that TensorRT-LLM generates (layers/quantization/mxfp4.py).
const SGLANG: [(&str, ExpertKernel); 8] = [
    ("triton", ExpertKernel::Triton),
    ("flashinfer_cutlass", ExpertKernel::Cutlass),
    ("flashinfer_trtllm", ExpertKernel::Trtllm),
    ("deep_gemm", ExpertKernel::DeepGemm),
    ("marlin", ExpertKernel::Marlin),
    ("triton_kernel", ExpertKernel::Triton),
    ("flashinfer_trtllm_routed", ExpertKernel::Trtllm),
    ("flashinfer_mxfp4", ExpertKernel::Trtllm),
];

/// `MoeConfig.backend` of `tensorrt_llm/llmapi/llm_args.py`. `WIDEEP` exchanges tokens otherwise too, and `CUTEDSL` is in no table.
const TRTLLM: [(&str, ExpertKernel); 4] = [
    ("TRITON", ExpertKernel::Triton),
    ("CUTLASS", ExpertKernel::Cutlass),
    ("TRTLLM", ExpertKernel::Trtllm),
    ("DEEPGEMM", ExpertKernel::DeepGemm),
];

/// Switches of vLLM's `FlashInfer` experts by their format (vllm/envs.py, 0.17).
const SWITCHES: [&str; 3] =
    ["VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_USE_FLASHINFER_MOE_FP8", "VLLM_USE_FLASHINFER_MOE_FP4"];
/// Which of its kernels they take: `latency` or `throughput`.
const BACKEND: &str = "VLLM_FLASHINFER_MOE_BACKEND";
/// Switches of one kernel each, for MXFP4 beside activations of 8 bits.
const MXFP4: [(&str, ExpertKernel); 2] = [
    ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", ExpertKernel::Cutlass),
    ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", ExpertKernel::Trtllm),
];

/// A library that is asked for, and what asks for it.
pub(crate) type Asked = Option<(ExpertKernel, String)>;

/// What vLLM is asked for: by its option, else by variables.
pub(crate) fn of_vllm(flags: &mut Flags<'_>, machine: &Machine, environment: &[Variable]) -> Asked {
    if flags.find("moe-backend").is_some() {
        of_flag(flags, "moe-backend", &VLLM)
    } else {
        of_variables(flags, machine, environment)
    }
}

/// What `SGLang` is asked for.
pub(crate) fn of_sglang(flags: &mut Flags<'_>) -> Asked {
    of_flag(flags, "moe-runner-backend", &SGLANG)
}

/// What TensorRT-LLM is asked for.
pub(crate) fn of_trtllm(flags: &mut Flags<'_>) -> Asked {
    of_flag(flags, "moe-config.backend", &TRTLLM)
}

/// The library of an option's word. `auto` is no word of a library.
fn of_flag(flags: &mut Flags<'_>, name: &str, words: &Words) -> Asked {
    let asked = flags.text(name).filter(|asked| !asked.eq_ignore_ascii_case("auto"))?;
    let plain = asked.replace('-', "_");
    let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(&plain));
    if found.is_none() {
        flags.not_modelled(name, "no table has that kernel: experts run at the costs of the engine's own");
    }
    found.map(|(_, kernel)| (*kernel, flags.shown(name)))
}

/// The library of vLLM's variables. With `latency`, and where nothing is said, they take kernels of TensorRT-LLM on Blackwell, and CUTLASS on other cards
/// (`get_flashinfer_moe_backend` of quantization/utils/flashinfer_utils.py, 0.17).
fn of_variables(flags: &mut Flags<'_>, machine: &Machine, environment: &[Variable]) -> Asked {
    let is_on = |name: &str| environment::value(environment, name).is_some() && !environment::is_off(environment, name);
    if let Some((name, kernel)) = MXFP4.into_iter().find(|(name, _)| is_on(name)) {
        return Some((kernel, name.to_owned()));
    }
    flags.findings.extend(switched_off(environment));
    let name = SWITCHES.into_iter().find(|name| is_on(name))?;
    let gpu = machine.gpu.as_deref().and_then(hw::catalog::gpu);
    let is_blackwell = gpu.is_some_and(|gpu| gpu.capability() == Capability::Ten);
    let (kernel, source) = match environment::value(environment, BACKEND) {
        // The table of variables says so of it.
        Some("masked_gemm") => return None,
        Some("throughput") => (ExpertKernel::Cutlass, BACKEND),
        _ if is_blackwell => (ExpertKernel::Trtllm, name),
        _ => (ExpertKernel::Cutlass, name),
    };
    Some((kernel, source.to_owned()))
}

/// Switches that keep vLLM from `FlashInfer`: which kernel is left is not said.
fn switched_off(environment: &[Variable]) -> impl Iterator<Item = Finding> + '_ {
    let is_off = |variable: &&Variable| {
        SWITCHES.contains(&variable.name.as_str()) && environment::is_off(environment, &variable.name)
    };
    environment.iter().filter(is_off).map(|variable| {
        let what = format!("`{}={}` is not modelled", variable.name, variable.value);
        let finding = Finding::warning(Code::NotModelled, Some(variable.at.clone()), what);
        finding.help("kernels are those of the profile: give `engine.expert_kernel`")
    })
}

/// What vLLM is told.
pub(crate) fn for_vllm(value: &Value) -> Option<Vec<String>> {
    told(value, &VLLM, "--moe-backend ")
}

/// What `SGLang` is told.
pub(crate) fn for_sglang(value: &Value) -> Option<Vec<String>> {
    told(value, &SGLANG, "--moe-runner-backend ")
}

/// What TensorRT-LLM is told.
pub(crate) fn for_trtllm(value: &Value) -> Option<Vec<String>> {
    told(value, &TRTLLM, "moe_config.backend: ")
}

/// Nothing for `auto`; `None` where a server has no word for the library.
fn told(value: &Value, words: &Words, option: &str) -> Option<Vec<String>> {
    if value == "auto" {
        return Some(Vec::new());
    }
    let asked = ExpertKernel::named(value.as_str()?)?;
    words.iter().find(|(_, kernel)| *kernel == asked).map(|(word, _)| vec![format!("{option}{word}")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{import_text, on};

    /// The key that a text sets, and what it says is not modelled.
    fn read(text: &str, gpu: &str) -> (Option<String>, Vec<String>) {
        let found = import_text(text, &on(gpu));
        let key = found.scenario.lines().find_map(|line| {
            let rest = line.strip_prefix("expert_kernel = \"")?;
            rest.split('"').next().map(str::to_owned)
        });
        let missing = found.findings.into_iter().filter(|one| one.code == Code::NotModelled);
        (key, missing.map(|one| one.what).collect())
    }

    /// Words of the servers' own lists.
    #[test]
    fn scripts_say_which_library_computes_experts() {
        let sglang = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --moe-runner-backend";
        let vllm = "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8";
        for (text, gpu, expected) in [
            (format!("{sglang} flashinfer_trtllm\n"), "b200", "trtllm"),
            (format!("{sglang} triton\n"), "b200", "triton"),
            (format!("{vllm} --moe-backend flashinfer-cutlass\n"), "b200", "cutlass"),
            (format!("export VLLM_USE_FLASHINFER_MOE_FP8=1\n{vllm}\n"), "b200", "trtllm"),
            (format!("export VLLM_USE_FLASHINFER_MOE_FP8=1\n{vllm}\n"), "h200-sxm", "cutlass"),
            (
                format!("VLLM_USE_FLASHINFER_MOE_FP4=1 VLLM_FLASHINFER_MOE_BACKEND=throughput {vllm}\n"),
                "b200",
                "cutlass",
            ),
            (
                "export VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1\nvllm serve openai/gpt-oss-120b\n".to_owned(),
                "b200",
                "trtllm",
            ),
            ("tensor_parallel_size: 8\nmoe_config:\n  backend: CUTLASS\n".to_owned(), "b200", "cutlass"),
        ] {
            let (key, missing) = read(&text, gpu);
            assert_eq!(key.as_deref(), Some(expected), "{text}");
            assert!(missing.is_empty(), "{text}: {missing:?}");
        }
    }

    #[test]
    fn a_word_without_a_kernel_is_told_and_auto_says_nothing() {
        let sglang = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 --moe-runner-backend";
        let (key, missing) = read(&format!("{sglang} flashinfer_cutedsl\n"), "b200");
        assert_eq!(
            (key, missing),
            (None, vec!["`--moe-runner-backend flashinfer_cutedsl` is not modelled".to_owned()])
        );
        assert_eq!(read(&format!("{sglang} auto\n"), "b200"), (None, Vec::new()));
        let off = "export VLLM_USE_FLASHINFER_MOE_FP8=0\nvllm serve deepseek-ai/DeepSeek-R1 -tp 8\n";
        assert_eq!(read(off, "b200"), (None, vec!["`VLLM_USE_FLASHINFER_MOE_FP8=0` is not modelled".to_owned()]));
    }

    #[test]
    fn what_is_exported_is_read_back_as_the_same_library() {
        for (words, say) in [
            (&VLLM[..], for_vllm as fn(&Value) -> Option<Vec<String>>),
            (&SGLANG[..], for_sglang),
            (&TRTLLM[..], for_trtllm),
        ] {
            for kernel in ExpertKernel::ALL {
                let told = say(&Value::from(kernel.word()));
                let word = told.and_then(|words| words[0].rsplit(' ').next().map(str::to_owned));
                let back = word.as_ref().map(|word| words.iter().find(|(own, _)| own == word).map(|(_, found)| *found));
                assert!(back.is_none_or(|back| back == Some(kernel)), "{word:?}");
            }
            assert_eq!(say(&"auto".into()), Some(Vec::new()));
        }
        assert_eq!(for_trtllm(&"marlin".into()), None);
        assert_eq!(for_vllm(&"trtllm".into()), Some(vec!["--moe-backend flashinfer_trtllm".to_owned()]));
    }
}
