//! Checkpoints of the runs: which architecture a path names, and in which formats its parts are published.

use engine::Model;
use engine::formats::Formats;
use hw::{Dtype, Format};

use crate::reason::Reason;
use crate::run::Run;

/// Architectures by a part of the checkpoint's path.
const MODELS: [(&str, &str); 11] = [
    ("Llama-3.1-8B", "llama-3-8b"),
    ("Llama-3.1-70B", "llama-3-70b"),
    ("Qwen3-32B", "qwen3-32b"),
    ("Qwen3-235B-A22B", "qwen3-235b-a22b"),
    ("gpt-oss-120b", "gpt-oss-120b"),
    ("MiniMax-M2.5", "minimax-m2.5"),
    ("DeepSeek-R1", "deepseek-v3"),
    ("DeepSeek-V3", "deepseek-v3"),
    ("Kimi-K2.5", "kimi-k2.5"),
    ("Qwen3.5-397B-A17B", "qwen3.5-397b-a17b"),
    ("GLM-5", "glm-5"),
];

/// Formats of the parts of a checkpoint: attention, dense feed-forward and shared experts, routed experts.
type Parts = [Format; 3];

/// Checkpoints whose parts differ, by a part of the path and the format's word; all others are in the table's formats throughout.
const MIXED: [(&str, &str, Parts, &str); 9] = [
    ("gpt-oss", "fp4", [Format::Bf16, Format::Bf16, Format::Mxfp4], "openai/gpt-oss-120b: experts alone are MXFP4"),
    (
        "Kimi-K2.5",
        "int4",
        [Format::Bf16, Format::Bf16, Format::Int4],
        "moonshotai/Kimi-K2.5: routed experts alone are int4",
    ),
    (
        "Kimi-K2.5",
        "fp4",
        [Format::Bf16, Format::Nvfp4, Format::Nvfp4],
        "nvidia/Kimi-K2.5-NVFP4: attention is not quantised",
    ),
    (
        "DeepSeek",
        "fp4",
        [Format::Bf16, Format::Nvfp4, Format::Nvfp4],
        "nvidia/DeepSeek-R1-0528-FP4: attention is not quantised",
    ),
    ("DeepSeek", "fp8", [Format::Fp8Block; 3], "deepseek-ai/DeepSeek-R1: blocks of 128 by 128"),
    ("Qwen3-235B-A22B-FP8", "fp8", [Format::Fp8Block; 3], "Qwen/Qwen3-235B-A22B-FP8: blocks of 128 by 128"),
    ("Qwen3.5-397B-A17B", "fp8", [Format::Fp8Block; 3], "Qwen/Qwen3.5-397B-A17B-FP8: blocks of 128 by 128"),
    ("GLM-5", "fp8", [Format::Fp8Block; 3], "zai-org/GLM-5-FP8: blocks of 128 by 128"),
    ("MiniMax-M2.5", "fp8", [Format::Fp8Block; 3], "MiniMaxAI/MiniMax-M2.5: blocks of 128 by 128"),
];

/// Architecture of a checkpoint.
pub(super) fn model(path: &str) -> Result<Model, Reason> {
    let known = MODELS.iter().find(|(part, _)| path.contains(part));
    known.and_then(|(_, name)| engine::model::embedded(name)).ok_or(Reason::Model)
}

/// Formats of a run's checkpoint, with keys and values in `kv`.
pub(super) fn formats(run: &Run, kv: Dtype) -> Result<Formats, Reason> {
    let mixed = MIXED.iter().find(|(part, precision, ..)| run.model.contains(part) && *precision == run.precision);
    let [attention, dense, experts] = match mixed {
        Some((.., parts, _)) => *parts,
        None => {
            let [products, experts] = [format(&run.formats[0])?, format(&run.formats[1])?];
            [products, products, experts]
        }
    };
    Ok(Formats { attention, dense, experts, head: Format::Bf16, kv })
}

/// A format by the table's word.
fn format(word: &str) -> Result<Format, Reason> {
    Ok(match word {
        "" => Format::Bf16,
        "fp8" => Format::Fp8,
        "fp8_block" => Format::Fp8Block,
        "nvfp4" => Format::Nvfp4,
        "int4_wo" => Format::Int4,
        other => return Err(Reason::Format { word: other.to_owned() }),
    })
}
