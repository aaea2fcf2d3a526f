//! Files that start servers of other engines, or that other tools make servers of: what they are, and what to give in their place.

use crate::{launch, workers};

/// Marks of a file, and what it is.
const MARKS: [(&str, &str); 5] = [
    ("ghcr.io/huggingface/text-generation-inference", TGI),
    ("huggingface-text-generation-inference", TGI),
    ("text-generation-launcher", TGI),
    ("tritonserver", TRITON),
    ("launch_triton_server.py", TRITON),
];

const TGI: &str = "a launch of Hugging Face's text-generation-inference, an engine that is not modelled: give the same model and degrees as a command of `vllm serve`";
const TRITON: &str = "a launch of NVIDIA's Triton server, whose engines are built beforehand: give the same model and degrees as a command of `trtllm-serve`";
const LLM_D: &str = "a scenario of llm-d-benchmark, which its tool makes a chart's values of: give those values (`values.yaml` of llm-d-modelservice)";
const SRT_SLURM: &str = "a recipe of srt-slurm, which its tool makes commands of: give those commands in one script, or `[[fleet.group]]` for each role";
const BY_VARIABLE: &str = "a script that starts a server by a variable which it does not set: set it in the script, as `VLLM=vllm` in front of `$VLLM serve`";
const OPTIONS: &str =
    "options of vLLM in a file (`vllm serve --config FILE`): give the script with that command, and the file beside it";

/// What a file is that no stack has.
pub(super) fn named(text: &str) -> Option<&'static str> {
    if is_of_llm_d_benchmark(text) {
        return Some(LLM_D);
    }
    let found = MARKS.iter().find(|(mark, _)| text.contains(mark)).map(|(_, what)| *what);
    if is_of_srt_slurm(text) {
        return Some(SRT_SLURM);
    }
    found.or_else(|| is_of_options(text).then_some(OPTIONS)).or_else(|| is_by_variable(text).then_some(BY_VARIABLE))
}

/// Whether a script starts a server by a variable of which only a shell knows what it is.
fn is_by_variable(text: &str) -> bool {
    workers::begins_by_variable(text, &[launch::by_variable::any])
}

/// Whether a tool makes commands of a file, which has words of engines in other places than they have.
pub(crate) fn is_of_a_tool(text: &str) -> bool {
    is_of_llm_d_benchmark(text) || is_of_srt_slurm(text)
}

/// Whether a file is a scenario of llm-d-benchmark (`config/scenarios` of llm-d/llm-d-benchmark).
fn is_of_llm_d_benchmark(text: &str) -> bool {
    let has_list = text.lines().any(|line| line.trim_end() == "scenario:");
    has_list && ["vllmCommon:", "shortName:", "standalone:", "modelservice:"].iter().any(|key| text.contains(key))
}

/// Whether a file is a recipe of srt-slurm: options of engines lie below its `backend`, by roles (its `docs/config-reference.md`).
fn is_of_srt_slurm(text: &str) -> bool {
    let has =
        |keys: &[&str]| text.lines().any(|line| keys.contains(&line.split('#').next().unwrap_or_default().trim()));
    has(&["backend:"]) && has(&["resources:"]) && has(&["trtllm_config:", "sglang_config:", "vllm_config:"])
}

/// Whether a file is of options of vLLM's server alone: keys that are named as they are.
fn is_of_options(text: &str) -> bool {
    const NAMES: [&str; 7] = [
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "max-model-len",
        "max-num-seqs",
        "max-num-batched-tokens",
        "gpu-memory-utilization",
        "kv-cache-dtype",
    ];
    let is_option =
        |line: &&str| line.split_once(':').is_some_and(|(key, _)| NAMES.contains(&key.replace('_', "-").as_str()));
    text.lines().filter(is_option).count() > 1
}

#[cfg(test)]
mod tests {
    use crate::elsewhere::of_text;

    #[test]
    fn launches_of_other_engines_are_named() {
        for (text, part) in [
            (
                "docker run ghcr.io/huggingface/text-generation-inference:3.3 --model-id m --num-shard 4\n",
                "text-generation",
            ),
            (
                "apiVersion: apps/v1\nkind: Deployment\nspec:\n  a: us-docker.pkg.dev/x/huggingface-text-generation-inference-cu121\n",
                "text-generation",
            ),
            ("mpirun -n 2 tritonserver --model-repository=/models\n", "Triton"),
            (
                "scenario:\n  - name: a\n    common:\n      vllmCommon:\n        customCommand: vllm serve x\n",
                "llm-d-benchmark",
            ),
            (
                "name: a\nresources:\n  gpu_type: b200\nbackend:\n  type: trtllm\n  trtllm_config:\n    prefill:\n      cuda_graph_config: null\n",
                "srt-slurm",
            ),
            ("model: Qwen/Qwen3-8B\ntensor-parallel-size: 2\nmax-model-len: 8192\n", "--config FILE"),
        ] {
            assert_eq!(crate::recognise(text), None, "{text}");
            assert!(of_text(text).is_some_and(|what| what.contains(part)), "{part}: {:?}", of_text(text));
        }
        // A server that is known counts more.
        let both = "vllm serve Qwen/Qwen3-8B\ntext-generation-launcher --model-id m\n";
        assert_eq!(of_text(both), None);
        assert_eq!(of_text("name: a\nmodel: b\n"), None);
    }
}
